//! The delay between the moment at which a waiting call could get its reply, and the reply.

use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Batch, BenchError, Client, Result};
use crate::latency::{Load, CONNECTIONS, RATE};
use crate::report::{Column, Table};
use crate::rounds::{interleave, join, permilles};
use crate::throttle;
use crate::workload::allowed;

/// Milliseconds that a client waits, in turn. They vary, to not keep step with the server's cron.
const WAITS_MS: [u64; 5] = [3, 7, 4, 6, 5];

/// The other load on the server.
const LOADS: [&str; 2] = ["idle", LOADED];
const LOADED: &str = "loaded";

/// One way to wait for `{ms}` milliseconds.
struct WayToWait {
    name: &'static str,
    peer: Option<&'static str>,
    /// The first command, of another client. The time runs from then on.
    begin: &'static str,
    wait: &'static str,
    /// The command of another client that ends the wait, or none if it ends by itself after `{ms}`.
    go: Option<&'static str>,
}

/// Removes the keys of all ways.
const RESET: &str = "DEL slot queue bucket window";

const PUSH: &str = "BLPOP, at RPUSH";
const TIMEOUT: &str = "BLPOP, at its timeout";

const WAYS: [WayToWait; 6] = [
    WayToWait {
        name: "RL.ACQUIRE, at RL.RELEASE",
        peer: Some(PUSH),
        begin: "RL.ACQUIRE slot 1 0 ID holder",
        wait: "RL.ACQUIRE slot 1 0 ID waiter BLOCK 0",
        go: Some("RL.RELEASE slot holder"),
    },
    WayToWait {
        name: PUSH,
        peer: None,
        begin: "PING",
        wait: "BLPOP queue 0",
        go: Some("RPUSH queue token"),
    },
    WayToWait {
        name: "RL.ACQUIRE, at the end of a lease",
        peer: Some(TIMEOUT),
        begin: "RL.ACQUIRE slot 1 0 LEASE {ms}",
        wait: "RL.ACQUIRE slot 1 0 BLOCK 0",
        go: None,
    },
    WayToWait {
        name: "RL.THROTTLE, when the bucket has drained",
        peer: Some(TIMEOUT),
        begin: "RL.THROTTLE bucket 0 1 {ms}ms",
        wait: "RL.THROTTLE bucket 0 1 {ms}ms BLOCK 0",
        go: None,
    },
    WayToWait {
        name: "RL.WINDOW, when an event leaves",
        peer: Some(TIMEOUT),
        begin: "RL.WINDOW window 1 {ms}ms",
        wait: "RL.WINDOW window 1 {ms}ms BLOCK 0",
        go: None,
    },
    WayToWait { name: TIMEOUT, peer: None, begin: "", wait: "BLPOP nothing 0.00{ms}", go: None },
];

fn row(what: &str, load: &str) -> String {
    format!("{what}, {load}")
}

fn plans() -> impl Iterator<Item = (&'static WayToWait, &'static str)> {
    LOADS.into_iter().flat_map(|load| WAYS.iter().map(move |way| (way, load)))
}

impl WayToWait {
    /// Waits once, and returns the delay of the reply. If the time is measured from a call, the delay includes the
    /// way of that call to the server, as only the server knows when it ran.
    fn wait(&self, [waiter, other]: &mut [Client; 2], wait_ms: u64) -> Result<Duration> {
        let batch = |text: &str| Batch::of(&text.replace("{ms}", &wait_ms.to_string()));
        let mut due = Instant::now() + Duration::from_millis(wait_ms);
        other.exchange(&batch(self.begin))?;
        waiter.send(&batch(self.wait))?;
        if let Some(go) = self.go {
            // The server replies to this only after the command before, so that someone waits.
            other.call("PING")?;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due = Instant::now();
            other.send(&batch(go))?;
        }
        let reply = waiter.receive()?;
        let delay = due.elapsed();
        let is_granted = match self.peer {
            Some(_) => allowed(&reply),
            None => self.go.is_some() == (reply.at(1).text() == "token"),
        };
        if !is_granted {
            return Err(BenchError::Refused(format!("{reply:?} to a call that waited")));
        }
        if self.go.is_some() {
            other.receive()?;
        }
        other.call(RESET)?;
        Ok(delay)
    }
}

/// A way to wait, and two clients on a server that may be busy.
struct WokenSubject<'w> {
    way: &'static WayToWait,
    load: Load<'w>,
    loaded: bool,
    clients: [Client; 2],
}

impl WokenSubject<'_> {
    /// Waits repeatedly for some time, and returns the delays.
    fn round(&mut self, time: Duration) -> Result<Vec<Duration>> {
        let WokenSubject { way, load, loaded, clients } = self;
        let started = Instant::now();
        let waits = WAITS_MS.into_iter().cycle().take_while(|_| started.elapsed() < time);
        thread::scope(|scope| {
            let load = loaded.then(|| scope.spawn(|| load.run(time)));
            let delays = waits.map(|wait_ms| way.wait(clients, wait_ms)).collect();
            if let Some(load) = load {
                join(load)?;
            }
            delays
        })
    }
}

/// Measures all in turn, `rounds` times.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    const COLUMNS: [Column; 3] = [
        Column { name: "p50 us", decimals: 0, compared: true },
        Column { name: "p99 us", decimals: 0, compared: false },
        Column { name: "waits", decimals: 0, compared: false },
    ];
    let title = format!(
        "Wake-up: delay of the reply to a waiting client, on a server that is idle or answers {RATE} SET EX a second"
    );
    let mut table = Table::new("wake", title, &COLUMNS);
    let set_ex = throttle::set_ex();
    let subjects = plans().map(|(way, load)| {
        let loaded = load == LOADED;
        let load = Load::prepare(&set_ex, CONNECTIONS)?;
        let clients = [load.host.connect()?, load.host.connect()?];
        Ok(WokenSubject { way, load, loaded, clients })
    });
    let subjects = interleave(subjects, rounds, |subject| subject.round(time));
    for ((way, load), subject) in plans().zip(subjects) {
        let figures = subject.map(|(_, rounds)| {
            let delays = rounds.concat();
            let waits = delays.len() as f64;
            let [p50, p99] = permilles(delays, [500, 990]);
            vec![p50, p99, waits]
        });
        let peer = way.peer.map(|peer| row(peer, load));
        table.add(row(way.name, load), peer, figures)?;
    }
    Ok(table)
}

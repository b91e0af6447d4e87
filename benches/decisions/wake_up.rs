//! How long after the moment it can a waiting client has its answer.

use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Batch, BenchError, Client, Result, ServerReply};
use crate::latency::{Load, RATE};
use crate::report::{Column, Table};
use crate::rounds::{interleave, join, permilles};
use crate::throttle;
use crate::workload::allowed;

/// Milliseconds that a client waits, in turn: never the same twice, so as not to keep step with the server's cron.
const WAITS_MS: [u64; 5] = [3, 7, 4, 6, 5];

/// The other load on the server.
pub const LOADS: [&str; 2] = ["idle", LOADED];
const LOADED: &str = "loaded";

/// A way to wait. `{ms}` stands for how long.
struct WayToWait {
    name: &'static str,
    peer: Option<&'static str>,
    /// What another client does first; the time runs from then.
    begin: &'static str,
    wait: &'static str,
    /// What another client does to end the waiting; none if that ends by itself, after `{ms}`.
    go: Option<&'static str>,
    woken: fn(&ServerReply) -> bool,
    /// Makes everything as it was.
    reset: &'static str,
}

pub const RELEASE: &str = "RL.ACQUIRE, at RL.RELEASE";
pub const LEASE: &str = "RL.ACQUIRE, at the end of a lease";
pub const DRAINED: &str = "RL.THROTTLE, when the bucket has drained";
pub const SLID_OUT: &str = "RL.WINDOW, when an event leaves";
pub const PUSH: &str = "BLPOP, at RPUSH";
pub const TIMEOUT: &str = "BLPOP, at its timeout";

const WAYS: [WayToWait; 6] = [
    WayToWait {
        name: RELEASE,
        peer: Some(PUSH),
        begin: "RL.ACQUIRE slot 1 0 ID holder",
        wait: "RL.ACQUIRE slot 1 0 ID waiter BLOCK 0",
        go: Some("RL.RELEASE slot holder"),
        woken: allowed,
        reset: "DEL slot",
    },
    WayToWait {
        name: PUSH,
        peer: None,
        begin: "PING",
        wait: "BLPOP queue 0",
        go: Some("RPUSH queue token"),
        woken: |reply| reply.at(1).text() == "token",
        reset: "DEL queue",
    },
    WayToWait {
        name: LEASE,
        peer: Some(TIMEOUT),
        begin: "RL.ACQUIRE slot 1 0 LEASE {ms}",
        wait: "RL.ACQUIRE slot 1 0 BLOCK 0",
        go: None,
        woken: allowed,
        reset: "DEL slot",
    },
    WayToWait {
        name: DRAINED,
        peer: Some(TIMEOUT),
        begin: "RL.THROTTLE bucket 0 1 {ms}ms",
        wait: "RL.THROTTLE bucket 0 1 {ms}ms BLOCK 0",
        go: None,
        woken: allowed,
        reset: "DEL bucket",
    },
    WayToWait {
        name: SLID_OUT,
        peer: Some(TIMEOUT),
        begin: "RL.WINDOW window 1 {ms}ms",
        wait: "RL.WINDOW window 1 {ms}ms BLOCK 0",
        go: None,
        woken: allowed,
        reset: "DEL window",
    },
    WayToWait {
        name: TIMEOUT,
        peer: None,
        begin: "",
        wait: "BLPOP nothing 0.00{ms}",
        go: None,
        woken: |reply| matches!(reply, ServerReply::Nil),
        reset: "PING",
    },
];

/// The name of a row.
pub fn row(what: &str, load: &str) -> String {
    format!("{what}, {load}")
}

/// The names of the ways, and whether each is a peer's.
pub fn ways() -> [(&'static str, bool); WAYS.len()] {
    WAYS.each_ref().map(|way| (way.name, way.peer.is_none()))
}

impl WayToWait {
    /// Waits once, and returns how late the reply was. If the time is measured from a call, it includes the
    /// way of that call to the server, as only the server knows when it ran.
    fn late(&self, [waiter, other]: &mut [Client; 2], wait_ms: u64) -> Result<Duration> {
        let said = |text: &str| Batch::of(&text.replace("{ms}", &wait_ms.to_string()));
        let mut due = Instant::now() + Duration::from_millis(wait_ms);
        other.exchange(&said(self.begin))?;
        waiter.send(&said(self.wait))?;
        if let Some(go) = self.go {
            // Answered only after the command before it was taken up, so that someone waits.
            other.call("PING")?;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due = Instant::now();
            other.send(&said(go))?;
        }
        let reply = waiter.receive()?;
        let late = due.elapsed();
        if !(self.woken)(&reply) {
            return Err(BenchError::Refused(format!("{reply:?} to a call that waited")));
        }
        if self.go.is_some() {
            other.receive()?;
        }
        other.call(self.reset)?;
        Ok(late)
    }
}

/// Two clients on a server that may be busy.
struct WokenSubject<'w> {
    way: &'static WayToWait,
    load: Load<'w>,
    loaded: bool,
    clients: [Client; 2],
}

impl WokenSubject<'_> {
    /// Waits over and over, for some time.
    fn round(&mut self, time: Duration) -> Result<Vec<Duration>> {
        let WokenSubject { way, load, loaded, clients } = self;
        let started = Instant::now();
        let waits = WAITS_MS.into_iter().cycle().take_while(|_| started.elapsed() < time);
        thread::scope(|scope| {
            let load = loaded.then(|| scope.spawn(|| load.run(time)));
            let late = waits.map(|wait_ms| way.late(clients, wait_ms)).collect();
            if let Some(load) = load {
                join(load)?;
            }
            late
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
        "Wake-up: how long after the moment it can the waiting client has its answer, on a server that is idle or \
         answers {RATE} SET EX a second"
    );
    let mut table = Table::new("wake", title, &COLUMNS);
    let set_ex = throttle::set_ex();
    let plans: Vec<(&WayToWait, &str)> =
        LOADS.iter().flat_map(|load| WAYS.iter().map(move |way| (way, *load))).collect();
    let subjects = plans.iter().map(|&(way, load)| {
        let loaded = load == LOADED;
        let load = Load::prepare(&set_ex)?;
        let clients = [load.host.connect()?, load.host.connect()?];
        Ok(WokenSubject { way, load, loaded, clients })
    });
    let subjects = interleave(subjects, rounds, |subject| subject.round(time));
    for ((way, load), subject) in plans.iter().zip(subjects) {
        let figures = subject.map(|(_, rounds)| {
            let late = rounds.concat();
            let waits = late.len() as f64;
            let [p50, p99] = permilles(late, [500, 990]);
            vec![p50, p99, waits]
        });
        let peer = way.peer.map(|peer| row(peer, load));
        table.add(row(way.name, load), peer, figures)?;
    }
    Ok(table)
}

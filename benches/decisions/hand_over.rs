//! Hand-overs of one slot among many waiting clients, compared with a BLPOP queue that holds one token.

use std::time::Duration;

use crate::client::{Batch, BenchError, Client, Result, ServerReply};
use crate::report::{Column, Table, SET_EX};
use crate::rounds::{interleave, medians};
use crate::server::{cpu_and_rate, Host};
use crate::throttle;
use crate::workload::allowed;

/// The number of waiting clients.
const WAITING: [usize; 3] = [2, 100, 2000];

const BLPOP: &str = "BLPOP + RPUSH";

/// The name of a row.
fn row(what: &str, waiting: usize) -> String {
    format!("{what}, {waiting} waiting")
}

/// A way to wait for something and to hand it on.
struct Handover {
    name: &'static str,
    /// The command that creates it.
    begin: &'static str,
    wait: &'static str,
    /// The command that hands on what a reply granted, or none if it granted nothing.
    hand_on: fn(&ServerReply) -> Option<String>,
}

const HANDOVERS: [Handover; 2] = [
    Handover {
        name: "RL.ACQUIRE BLOCK + RL.RELEASE",
        begin: "PING",
        wait: "RL.ACQUIRE slot 1 0 LEASE 3600000 BLOCK 0",
        hand_on: |reply| allowed(reply).then(|| format!("RL.RELEASE slot {}", reply.at(5).text())),
    },
    Handover {
        name: BLPOP,
        begin: "RPUSH queue token",
        wait: "BLPOP queue 0",
        hand_on: |reply| Some(format!("RPUSH queue {}", reply.at(1).text())),
    },
];

/// Clients in a queue. The one whose turn it is has what they wait for, or is about to get it.
struct Queue {
    handover: &'static Handover,
    /// Keeps the server running.
    _host: Host,
    control: Client,
    clients: Vec<Client>,
    turn: usize,
}

impl Queue {
    fn stand_in_line(handover: &'static Handover, waiting: usize) -> Result<Queue> {
        let host = Host::bare()?;
        let mut control = host.connect()?;
        control.call(handover.begin)?;
        let mut clients = Vec::new();
        for _ in 0..=waiting {
            let mut client = host.connect()?;
            client.send(&Batch::of(handover.wait))?;
            // The server replies to this only after the command before, so that the order is known.
            control.call("PING")?;
            clients.push(client);
        }
        Ok(Queue { handover, _host: host, control, clients, turn: 0 })
    }

    /// Passes the token round for some time: the client whose turn it is hands on, and goes to the end of the line. Returns
    /// the hand-overs a second, and the server's CPU time in microseconds for each.
    fn run(&mut self, time: Duration) -> Result<Vec<f64>> {
        let Queue { handover, control, clients, turn, .. } = self;
        let [cpu, rate] = cpu_and_rate(control, time, || {
            let client = &mut clients[*turn];
            let reply = client.receive()?;
            let hand_on = (handover.hand_on)(&reply)
                .ok_or_else(|| BenchError::Refused(format!("{reply:?} to a call that waited")))?;
            let mut batch = Batch::of(&hand_on);
            batch.add(handover.wait);
            client.send(&batch)?;
            client.receive()?;
            *turn = (*turn + 1) % clients.len();
            Ok(1)
        })?;
        Ok(vec![rate, cpu])
    }
}

/// Measures round trips of one client that does not wait, for comparison.
fn set_ex(time: Duration) -> Result<Vec<f64>> {
    let host = Host::bare()?;
    let mut client = host.connect()?;
    let workload = throttle::set_ex();
    workload.prepare(&host, &mut client)?;
    let mut control = host.connect()?;
    let [cpu, rate] = cpu_and_rate(&mut control, time, || {
        workload.run(&mut client, 1)?;
        Ok(1)
    })?;
    Ok(vec![rate, cpu])
}

/// Measures both at every length of the line, in turn, `rounds` times.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    const COLUMNS: [Column; 2] = [
        Column { name: "round trips/s", decimals: 0, compared: true },
        Column { name: "server CPU us each", decimals: 1, compared: false },
    ];
    let title = "Waiting: one slot, or one token in a list, goes round (medians)";
    let mut table = Table::new("block", title, &COLUMNS);
    table.add(SET_EX, None, set_ex(time))?;
    for waiting in WAITING {
        let queues = HANDOVERS.each_ref().map(|handover| Queue::stand_in_line(handover, waiting));
        let queues = interleave(queues, rounds, |queue| queue.run(time));
        for (queue, handover) in queues.into_iter().zip(&HANDOVERS) {
            let peer = (handover.name != BLPOP).then(|| row(BLPOP, waiting));
            let medians = queue.map(|(_, figures)| medians(&figures));
            table.add(row(handover.name, waiting), peer, medians)?;
        }
    }
    Ok(table)
}

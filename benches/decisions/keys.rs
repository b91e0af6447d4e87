//! CPU time of the server for a decision about one of many keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Client, Reply, Result};
use crate::report::{Column, Table};
use crate::rounds::{interleave, medians};
use crate::server::{cpu_us, Installation, Server, Time, Tool};
use crate::workload::{allowed, Workload, PIPELINE};

/// How many keys.
pub const NUMBERS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 5_000_000];

/// Keys that are made in one exchange; every number of keys is a multiple of it.
const FILLING: u64 = 500;

pub const THROTTLE: &str = "RL.THROTTLE";
pub const LUA: &str = "GCRA Lua";
pub const COMMANDS: [&str; 4] = [THROTTLE, LUA, "SET EX", "INCR"];

/// The name of a row.
pub fn row(what: &str, keys: u64) -> String {
    format!("{what}, {keys} keys")
}

type Ask = Arc<dyn Fn(String) -> String + Send + Sync>;

/// The command about a key. Each lasts for an hour at least, so that none expires in the meantime.
fn ask(command: &str, server: &Server) -> Ask {
    let gcra = server.scripts.gcra.clone();
    match command {
        THROTTLE => Arc::new(|key| format!("RL.THROTTLE {key} 100000 1 3600")),
        LUA => Arc::new(move |key| format!("EVALSHA {gcra} 1 {key} 100001 1 3600 1")),
        "INCR" => Arc::new(|key| format!("INCR {key}")),
        _ => Arc::new(|key| format!("SET {key} 1893456000000000000 EX 3600")),
    }
}

fn key(number: u64) -> String {
    format!("user:{number:07}")
}

/// Number `i` of a sequence without order (SplitMix64).
fn shuffled(i: u64) -> u64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One command on a server of its own, whose keys become more and more.
struct Subject {
    ask: Ask,
    expected: fn(&Reply) -> bool,
    /// Held for as long as its client is.
    _server: Server,
    client: Client,
    filling: Workload,
    keys: u64,
    workload: Workload,
}

impl Subject {
    fn start(installation: &Installation, command: &str) -> Result<Subject> {
        let server = Server::start(installation, Tool::None, Time::Real)?;
        let client = server.connect()?;
        let ask = ask(command, &server);
        let judged = [THROTTLE, LUA].contains(&command);
        let expected = if judged { allowed } else { |_: &_| true };
        let each_key = ask.clone();
        let filling = Workload::new(command, move |i| each_key(key(i)));
        let workload = Workload::new(command, |_| "PING".into());
        Ok(Subject { ask, expected, _server: server, client, filling, keys: 0, workload })
    }

    /// Adds what is missing of so many keys, and has the server finish moving them to larger hash tables: each look
    /// at a key takes it a step further, and there are no more steps than keys.
    fn grow(mut self, keys: u64) -> Result<Subject> {
        while self.keys < keys {
            self.filling.run(&mut self.client, FILLING as usize)?;
            self.keys += FILLING;
        }
        for first in (0..keys).step_by(FILLING as usize) {
            let some: Vec<String> = (first..first + FILLING).map(key).collect();
            self.client.call(&format!("EXISTS {}", some.join(" ")))?;
        }
        let ask = self.ask.clone();
        self.workload = Workload::new(&self.filling.name, move |i| ask(key(shuffled(i) % keys)))
            .expecting(self.expected);
        Ok(self)
    }

    /// CPU time per decision in microseconds, over some time, and the share that was not answered as expected.
    fn round(&mut self, time: Duration) -> Result<Vec<f64>> {
        let cpu = cpu_us(&mut self.client)?;
        let started = Instant::now();
        let (mut decisions, mut unexpected) = (0, 0);
        while started.elapsed() < time {
            unexpected += self.workload.run(&mut self.client, PIPELINE)?.unexpected;
            decisions += PIPELINE;
        }
        let decisions = decisions as f64;
        Ok(vec![(cpu_us(&mut self.client)? - cpu) / decisions, unexpected as f64 / decisions])
    }
}

/// Measures all commands in turn at each number of keys, `rounds` times.
pub fn table(
    installation: &Installation,
    rounds: usize,
    time: Duration,
    numbers: &[u64],
) -> Result<Table> {
    const CPU: Column = Column { name: "server CPU us", decimals: 2 };
    let title = format!(
        "CPU time of the server per command about one of many keys, which come in no order (pipeline {PIPELINE}, \
         medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("keys", title, &[CPU]);
    let subjects = COMMANDS.map(|command| Subject::start(installation, command));
    let mut subjects = subjects.into_iter().collect::<Result<Vec<_>>>()?;
    for &keys in numbers {
        let grown = subjects.drain(..).map(|subject| subject.grow(keys));
        let measured = interleave(grown, rounds, |subject| subject.round(time));
        for (command, measured) in COMMANDS.iter().zip(measured) {
            let (subject, figures) = measured?;
            subjects.push(subject);
            let peer = (*command == THROTTLE).then(|| row(LUA, keys));
            let figures = medians(&figures);
            let [cpu, unexpected] = figures[..] else { continue };
            table.add(row(command, keys), peer, Ok(vec![cpu]))?;
            if unexpected > 0.0 {
                table.remark(format!("{:.1} % answered otherwise", 100.0 * unexpected));
            }
        }
    }
    Ok(table)
}

//! CPU time and rate of decisions from many connections that each send one command at a time.

use std::time::{Duration, Instant};

use crate::client::{Batch, Client, Result};
use crate::cpu_time;
use crate::latency::Load;
use crate::report::{Table, SET_EX};
use crate::rounds::{interleave, medians};
use crate::server::{cpu_us, Host};
use crate::throttle;

/// Connections that send at the same time.
const CONNECTIONS: usize = 50;

/// Commands of each connection before the rounds.
const WARM_UP: usize = 20;

/// The commands that are compared, here and on cold keys.
pub const NAMES: [&str; 4] = [SET_EX, throttle::ALLOWED, throttle::DENIED, throttle::LUA_ALLOWED];

/// The peer of a command.
pub fn peer(name: &str) -> Option<String> {
    (name == throttle::ALLOWED).then(|| throttle::LUA_ALLOWED.to_string())
}

/// A server with its connections.
struct Crowd<'w> {
    load: Load<'w>,
    control: Client,
    /// Replies that were not as expected.
    unexpected: usize,
}

impl Crowd<'_> {
    /// Sends one command on every connection, then receives a reply on each.
    fn send_one_each(&mut self) -> Result<()> {
        let Load { workload, clients, .. } = &mut self.load;
        for client in clients.iter_mut() {
            client.send(&Batch::of(&workload.next_command()))?;
        }
        for client in clients {
            self.unexpected += usize::from(!workload.expects(&client.receive()?));
        }
        Ok(())
    }

    /// Runs one round, and returns the CPU time of a command in microseconds, and thousands of commands a second.
    fn round(&mut self, time: Duration) -> Result<Vec<f64>> {
        let cpu = cpu_us(&mut self.control)?;
        let (started, mut made) = (Instant::now(), 0.0);
        while started.elapsed() < time {
            self.send_one_each()?;
            made += CONNECTIONS as f64;
        }
        let took_s = started.elapsed().as_secs_f64();
        Ok(vec![(cpu_us(&mut self.control)? - cpu) / made, made / took_s / 1e3])
    }
}

/// Measures them in turn, `rounds` times, and takes the medians.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "CPU time of the server per command and commands a second, from {CONNECTIONS} connections that each send one command \
         at a time (1000 keys in turn, medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("connections", title, &cpu_time::COLUMNS);
    let workloads: Vec<_> = throttle::workloads(&Host::bare()?.scripts)
        .into_iter()
        .map(|(workload, _)| workload)
        .filter(|workload| NAMES.contains(&workload.name.as_str()))
        .collect();
    let crowds = workloads.iter().map(|workload| {
        let load = Load::prepare(workload, CONNECTIONS)?;
        let control = load.host.connect()?;
        let mut crowd = Crowd { load, control, unexpected: 0 };
        for _ in 0..WARM_UP {
            crowd.send_one_each()?;
        }
        Ok(crowd)
    });
    let crowds = interleave(crowds, rounds, |crowd| crowd.round(time));
    for (workload, crowd) in workloads.iter().zip(crowds) {
        let unexpected = crowd.as_ref().map_or(0, |(crowd, _)| crowd.unexpected);
        let medians = crowd.map(|(_, figures)| medians(&figures));
        table.add(&workload.name, peer(&workload.name), medians)?;
        if unexpected > 0 {
            table.remark(format!("{unexpected} answered otherwise"));
        }
    }
    Ok(table)
}

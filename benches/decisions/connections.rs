//! What users feel: many connections that each send one command at a time, and keys that no cache has.

use std::time::{Duration, Instant};

use crate::client::{Batch, Client, Result};
use crate::cpu_time::{self, PlannedRow};
use crate::peers::Scripts;
use crate::report::{Table, SET_EX};
use crate::rounds::{interleave, medians};
use crate::server::{cpu_us, Host, Time};
use crate::throttle;
use crate::workload::{allowed, denied, Workload};
use support::Random;

/// Connections that send at the same time.
const CONNECTIONS: usize = 50;

/// Commands of each connection before the rounds.
const WARM_UP: usize = 20;

const NAMES: [&str; 4] = [SET_EX, throttle::ALLOWED, throttle::DENIED, throttle::LUA_ALLOWED];

fn peer(name: &str) -> Option<String> {
    (name == throttle::ALLOWED).then(|| throttle::LUA_ALLOWED.to_string())
}

// ---- Many connections ----

/// A server and its connections.
struct Crowd {
    workload: Workload,
    /// Held for as long as its clients are.
    _host: Host,
    control: Client,
    clients: Vec<Client>,
    /// Commands that were not answered as expected.
    unexpected: usize,
}

impl Crowd {
    fn start(name: &str) -> Result<Crowd> {
        let host = Host::bare()?;
        let workloads = throttle::workloads(&host.scripts).into_iter();
        let mut named = workloads.map(|(workload, _)| workload).filter(|one| one.name == name);
        let workload = named.next().unwrap_or_else(throttle::set_ex);
        let mut control = host.connect()?;
        workload.prepare(&host, &mut control, None)?;
        let clients = (0..CONNECTIONS).map(|_| host.connect()).collect::<Result<_>>()?;
        let mut crowd = Crowd { workload, _host: host, control, clients, unexpected: 0 };
        for _ in 0..WARM_UP {
            crowd.send_one_each()?;
        }
        Ok(crowd)
    }

    /// Every connection sends one command; then each receives its answer.
    fn send_one_each(&mut self) -> Result<()> {
        let Crowd { workload, clients, unexpected, .. } = self;
        for client in clients.iter_mut() {
            client.send(&Batch::of(&workload.next_command()))?;
        }
        for client in clients {
            *unexpected += usize::from(!workload.expects(&client.receive()?));
        }
        Ok(())
    }

    /// One round: CPU time per command in microseconds, and thousands of commands in a second.
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
pub fn connections(rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "CPU time of the server per command and commands a second, from {CONNECTIONS} connections that each send one command \
         at a time (1000 keys in turn, medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("connections", title, &cpu_time::COLUMNS);
    let crowds = interleave(NAMES.map(Crowd::start), rounds, |crowd| crowd.round(time));
    for (name, crowd) in NAMES.iter().zip(crowds) {
        let unexpected = crowd.as_ref().map_or(0, |(crowd, _)| crowd.unexpected);
        table.add(*name, peer(name), crowd.map(|(_, figures)| medians(&figures)))?;
        if unexpected > 0 {
            table.remark(format!("{unexpected} answered otherwise"));
        }
    }
    Ok(table)
}

// ---- Cold keys ----

/// A command on every key, in an order that no cache foresees.
fn cold(name: &str, keys: u64, scripts: &Scripts) -> Workload {
    let gcra = scripts.gcra.clone();
    let command = move |name: &str, key: String| match name {
        throttle::ALLOWED => format!("RL.THROTTLE {key} 1000000 30 60"),
        throttle::DENIED => format!("RL.THROTTLE {key} 15 1 86400"),
        throttle::LUA_ALLOWED => format!("EVALSHA {gcra} 1 {key} 1000000 30 60 1"),
        _ => format!("SET {key} 1893456000000000000 EX 3600"),
    };
    let key = |number: u64| format!("user:{number:07}");
    // What is denied has used up all it could have.
    let all = if name == throttle::DENIED { " 16" } else { "" };
    let made: Vec<String> = (0..keys).map(|number| command(name, key(number)) + all).collect();
    let expected = match name {
        throttle::ALLOWED | throttle::LUA_ALLOWED => allowed,
        throttle::DENIED => denied,
        _ => |_: &_| true,
    };
    let asked = name.to_string();
    Workload::new(name, move |i| command(&asked, key(Random::new(i).draw() % keys)))
        .prepared_by(made)
        .expecting(expected)
}

/// Measures each command on this many keys in random order, in turn, `rounds` times, and takes the medians.
pub fn cold_keys(keys: u64, rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "CPU time of the server per decision and decisions a second, over {keys} keys in random order (one connection, \
         pipelines of 50, medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("cold", title, &cpu_time::COLUMNS);
    let scripts = Host::bare()?.scripts;
    let plans = NAMES.map(|name| PlannedRow {
        workload: cold(name, keys, &scripts),
        peer: peer(name),
        time: Time::Real,
    });
    cpu_time::measure(&mut table, &plans, rounds, time)?;
    Ok(table)
}

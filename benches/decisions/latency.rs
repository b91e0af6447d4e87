//! How long a decision takes under a steady load from many connections.

use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, Result};
use crate::peers::Scripts;
use crate::report::{Column, Table, SET_EX};
use crate::rounds::{interleave, join, medians, permilles};
use crate::server::Host;
use crate::workload::{allowed, Exchange, Workload};
use crate::{throttle, window};

/// Connections that share the load.
const CONNECTIONS: usize = 20;

/// Decisions in a second, on all connections together, whether or not the server keeps up.
pub const RATE: u64 = 20_000;

/// Events in the windows: few enough that a sorted set stays in one piece (128) if they come a little out of order.
pub const EVENTS: u64 = 60;

/// The load on one server.
pub struct Load<'w> {
    pub host: Host,
    workload: &'w Workload,
    clients: Vec<Client>,
}

impl<'w> Load<'w> {
    /// A server, and the clients that are to make the decisions of a workload there.
    pub fn prepare(workload: &'w Workload) -> Result<Load<'w>> {
        let host = Host::bare()?;
        workload.prepare(&host, &mut host.connect()?, None)?;
        let clients = (0..CONNECTIONS).map(|_| host.connect()).collect::<Result<_>>()?;
        Ok(Load { host, workload, clients })
    }

    /// Makes decisions for some time, each connection at its turn.
    pub fn run(&mut self, time: Duration) -> Result<Vec<Exchange>> {
        let Load { workload, clients, .. } = self;
        let started = Instant::now();
        let interval = Duration::from_secs(1) / RATE as u32;
        thread::scope(|scope| {
            let run = |(turn, client)| {
                let first = started + interval * turn as u32;
                let workload: &Workload = workload;
                scope.spawn(move || at_pace(workload, client, first, interval, started + time))
            };
            let threads: Vec<_> = clients.iter_mut().enumerate().map(run).collect();
            let exchanges: Result<Vec<_>> = threads.into_iter().map(join).collect();
            Ok(exchanges?.into_iter().flatten().collect())
        })
    }
}

/// The decisions of one connection. A decision that has to wait because the one before is still under way took that
/// long, too; that the client's thread is woken late is not the server's fault and does not count.
fn at_pace(
    workload: &Workload,
    client: &mut Client,
    mut due: Instant,
    interval: Duration,
    end: Instant,
) -> Result<Vec<Exchange>> {
    let mut exchanges = Vec::new();
    while due < end {
        let early = due.saturating_duration_since(Instant::now());
        thread::sleep(early);
        let late = if early.is_zero() { due.elapsed() } else { Duration::ZERO };
        let mut exchange = workload.run(client, 1)?;
        exchange.took += late;
        exchanges.push(exchange);
        due += interval * CONNECTIONS as u32;
    }
    Ok(exchanges)
}

/// What is measured, each with the name of its peer.
fn plans(scripts: &Scripts) -> Vec<(Workload, Option<String>)> {
    const PLAIN: [&str; 4] = ["INCR", SET_EX, throttle::ALLOWED, throttle::LUA_ALLOWED];
    let lua = window::lua_allowed(scripts, EVENTS);
    // As many events as come in the period, and room for clients that are not quite even.
    let (limit, period_ms) = (EVENTS * 2, EVENTS * 1000 / RATE);
    let command = format!("RL.WINDOW window {limit} {period_ms}ms");
    let name = window::row(window::SLIDING.name, EVENTS, "allowed");
    let window = Workload::new(name, move |_| command.clone()).expecting(allowed);
    let plain = throttle::workloads(scripts).into_iter();
    let plain = plain.filter(|(workload, _)| PLAIN.contains(&workload.name.as_str()));
    let mut plans: Vec<_> =
        plain.map(|(workload, peer)| (workload, peer.map(str::to_string))).collect();
    plans.push((window, Some(lua.name.clone())));
    plans.push((lua, None));
    plans.push((window::transaction(EVENTS), None));
    plans
}

/// Measures all in turn, `rounds` times, and takes the medians of what the rounds brought.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    const COLUMNS: [Column; 4] = [
        Column { name: "p50 us", decimals: 0, compared: true },
        Column { name: "p99 us", decimals: 0, compared: false },
        Column { name: "p99.9 us", decimals: 0, compared: false },
        Column { name: "answered as expected, %", decimals: 2, compared: false },
    ];
    let title = format!(
        "Latency at {RATE} decisions a second from {CONNECTIONS} connections (medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("latency", title, &COLUMNS);
    let plans = plans(&Host::bare()?.scripts);
    let loads = plans.iter().map(|(workload, _)| Load::prepare(workload));
    let loads = interleave(loads, rounds, |load| {
        let exchanges = load.run(time)?;
        let unexpected = exchanges.iter().map(|exchange| exchange.unexpected).sum::<usize>();
        let expected = 100.0 - 100.0 * unexpected as f64 / exchanges.len() as f64;
        let took = exchanges.iter().map(|exchange| exchange.took).collect();
        let mut figures = permilles(took, [500, 990, 999]).to_vec();
        figures.push(expected);
        Ok(figures)
    });
    for ((workload, peer), load) in plans.iter().zip(loads) {
        let medians = load.map(|(_, figures)| medians(&figures));
        table.add(&workload.name, peer.clone(), medians)?;
    }
    Ok(table)
}

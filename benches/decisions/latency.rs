//! Latency of decisions under a steady load from many connections.

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
pub const CONNECTIONS: usize = 20;

/// Decisions a second on all connections together, even if the server does not keep up.
pub const RATE: u64 = 20_000;

/// Events in the windows: few enough that a sorted set stays in one piece (128) if they come a little out of order.
pub const EVENTS: u64 = 60;

/// The load on one server.
pub struct Load<'w> {
    pub host: Host,
    pub workload: &'w Workload,
    pub clients: Vec<Client>,
}

impl<'w> Load<'w> {
    /// Starts a server for the decisions of a workload, and connects clients.
    pub fn prepare(workload: &'w Workload, connections: usize) -> Result<Load<'w>> {
        let host = Host::bare()?;
        workload.prepare(&host, &mut host.connect()?)?;
        let clients = (0..connections).map(|_| host.connect()).collect::<Result<_>>()?;
        Ok(Load { host, workload, clients })
    }

    /// Makes decisions for some time, on each connection in turn.
    pub fn run(&mut self, time: Duration) -> Result<Vec<Exchange>> {
        let Load { workload, clients, .. } = self;
        let started = Instant::now();
        let interval = Duration::from_secs(1) / RATE as u32;
        let step = interval * clients.len() as u32;
        thread::scope(|scope| {
            let run = |(turn, client)| {
                let first = started + interval * turn as u32;
                let workload: &Workload = workload;
                scope.spawn(move || at_pace(workload, client, first, step, started + time))
            };
            let threads: Vec<_> = clients.iter_mut().enumerate().map(run).collect();
            let exchanges: Result<Vec<_>> = threads.into_iter().map(join).collect();
            Ok(exchanges?.into_iter().flatten().collect())
        })
    }
}

/// Makes the decisions of one connection, one in each step. The time that a decision waits for the one before counts. A late
/// wake-up of the client's thread does not, as the server is not the cause.
fn at_pace(
    workload: &Workload,
    client: &mut Client,
    mut due: Instant,
    step: Duration,
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
        due += step;
    }
    Ok(exchanges)
}

/// The decisions that are measured, each with the name of its peer.
fn plans(scripts: &Scripts) -> Vec<(Workload, Option<String>)> {
    const PLAIN: [&str; 4] = ["INCR", SET_EX, throttle::ALLOWED, throttle::LUA_ALLOWED];
    let lua = window::lua_allowed(scripts, EVENTS);
    // The events that come in the period, and room for clients that are not quite even.
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

/// Measures all in turn, `rounds` times, and takes the medians of the rounds.
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
    let loads = plans.iter().map(|(workload, _)| Load::prepare(workload, CONNECTIONS));
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

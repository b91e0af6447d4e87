//! CPU time of the server for a decision, and decisions a second.

use std::time::Duration;

use crate::client::{Client, Result};
use crate::peers::Scripts;
use crate::report::{Column, Table, SET_EX};
use crate::rounds::{interleave, medians};
use crate::server::{cpu_and_rate, Host, Persistence, Time, Tool};
use crate::workload::{Workload, PIPELINE};
use crate::{reserve, throttle, window};

/// Exchanges before the rounds.
const WARM_UP: usize = 100;

/// Events in the windows.
const SIZES: [u64; 2] = [10, 100];

/// Connections that each send one command at a time.
const CONNECTIONS: usize = 50;

/// The commands that are compared without pipelining, and on cold keys.
pub const NAMES: [&str; 5] =
    [SET_EX, throttle::ALLOWED, throttle::DENIED, throttle::CELL_ALLOWED, throttle::LUA_ALLOWED];

/// A row to be measured, with the name of its peer, its server's clock, and the number of connections. One connection sends
/// pipelines; several send one command at a time.
pub struct PlannedRow {
    pub workload: Workload,
    pub peer: Option<String>,
    pub time: Time,
    pub connections: usize,
}

impl PlannedRow {
    /// A row without windows, whose server has the machine's clock.
    pub fn new(workload: Workload, peer: Option<&str>, connections: usize) -> PlannedRow {
        PlannedRow { workload, peer: peer.map(str::to_string), time: Time::Real, connections }
    }
}

fn plans(scripts: &Scripts) -> Vec<PlannedRow> {
    let mut plans: Vec<PlannedRow> = throttle::workloads(scripts)
        .into_iter()
        .map(|(workload, peer)| PlannedRow::new(workload, peer, 1))
        .collect();
    let mut held = |workload: Workload, peer: Option<&Workload>| {
        let peer = peer.map(|peer| peer.name.clone());
        plans.push(PlannedRow { workload, peer, time: Time::Held, connections: 1 });
    };
    for events in SIZES {
        let transaction = window::transaction(events);
        let lua_denied = window::lua_denied(scripts, events);
        for kind in window::KINDS {
            held(kind.allowed(events), Some(&transaction));
            held(kind.denied(events), Some(&lua_denied));
        }
        held(transaction, None);
        held(window::lua_allowed(scripts, events), None);
        held(lua_denied, None);
    }
    let lua_release = reserve::lua_release(scripts, 0);
    let lua_apply = reserve::lua_apply(scripts, 0);
    held(reserve::release(0), Some(&lua_release));
    held(reserve::apply("", 0), Some(&lua_apply));
    held(lua_release, None);
    held(lua_apply, None);
    plans
}

/// A row with a server of its own, which idles while the others are measured.
struct TimedSubject<'p> {
    workload: &'p Workload,
    host: Host,
    control: Client,
    clients: Vec<Client>,
    /// The tick of a held clock that keeps the pace.
    tick_us: i64,
    /// Decisions of all rounds, and those whose reply was not as expected.
    decisions: f64,
    unexpected: f64,
}

impl<'p> TimedSubject<'p> {
    fn start(plan: &'p PlannedRow) -> Result<TimedSubject<'p>> {
        let host = Host::start(Tool::None, Persistence::Bare, plan.time)?;
        let mut control = host.connect()?;
        let workload = &plan.workload;
        workload.prepare(&host, &mut control)?;
        let mut clients: Vec<_> =
            (0..plan.connections).map(|_| host.connect()).collect::<Result<_>>()?;
        let mut pacer = workload.pacer(&host);
        for _ in 0..WARM_UP {
            pacer.step(PIPELINE);
            exchange(workload, &mut clients)?;
        }
        let tick_us = pacer.tick_us();
        host.tick(0);
        let (decisions, unexpected) = (0.0, 0.0);
        Ok(TimedSubject { workload, host, control, clients, tick_us, decisions, unexpected })
    }

    /// Runs one round, and returns the CPU time of a decision in microseconds, and thousands of decisions a second.
    fn round(&mut self, time: Duration) -> Result<Vec<f64>> {
        let TimedSubject { workload, host, control, clients, tick_us, decisions, unexpected } =
            self;
        host.tick(*tick_us);
        let [cpu, rate] = cpu_and_rate(control, time, || {
            let [made, otherwise] = exchange(workload, clients)?;
            *decisions += made as f64;
            *unexpected += otherwise as f64;
            Ok(made)
        })?;
        host.tick(0);
        Ok(vec![cpu, rate / 1e3])
    }
}

/// Sends a pipeline on the only connection, or a command on each. Returns the number of decisions, and how many of them had
/// an unexpected reply.
fn exchange(workload: &Workload, clients: &mut [Client]) -> Result<[usize; 2]> {
    Ok(match clients {
        [client] => [PIPELINE, workload.run(client, PIPELINE)?.unexpected],
        clients => [clients.len(), workload.run_on_each(clients)?],
    })
}

/// Measures the rows in turn, `rounds` times, and adds their medians.
pub fn measure(
    table: &mut Table,
    plans: &[PlannedRow],
    rounds: usize,
    time: Duration,
) -> Result<()> {
    let subjects = plans.iter().map(TimedSubject::start);
    let subjects = interleave(subjects, rounds, |subject| subject.round(time));
    for (plan, subject) in plans.iter().zip(subjects) {
        let unexpected =
            subject.as_ref().map_or(0.0, |(subject, _)| subject.unexpected / subject.decisions);
        let figures = subject.map(|(_, figures)| medians(&figures));
        table.add(&plan.workload.name, plan.peer.clone(), figures)?;
        if unexpected > 0.0 {
            table.remark(format!("{:.1} % answered otherwise", 100.0 * unexpected));
        }
    }
    Ok(())
}

/// The columns of all tables of CPU time.
pub const COLUMNS: [Column; 2] = [
    Column { name: "CPU us", decimals: 2, compared: true },
    Column { name: "1000/s", decimals: 0, compared: false },
];

/// Measures all rows in turn, `rounds` times, and takes the medians.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "CPU time of the server per decision and decisions a second, from one connection with pipelines of {PIPELINE} \
         (medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("time", title, &COLUMNS);
    measure(&mut table, &plans(&Host::bare()?.scripts), rounds, time)?;
    Ok(table)
}

/// Measures the commands from connections that each send one at a time.
pub fn connections(rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "CPU time of the server per command and commands a second, from {CONNECTIONS} connections that each send one command \
         at a time (1000 keys in turn, medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("connections", title, &COLUMNS);
    let workloads = throttle::workloads(&Host::bare()?.scripts).into_iter();
    let plans: Vec<_> = workloads
        .filter(|(workload, _)| NAMES.contains(&workload.name.as_str()))
        .map(|(workload, peer)| PlannedRow::new(workload, peer, CONNECTIONS))
        .collect();
    measure(&mut table, &plans, rounds, time)?;
    Ok(table)
}

//! CPU time of the server, throughput and latency, pipelined and one at a time.

use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, Error, Result};
use crate::peers::Scripts;
use crate::report::{Column, Table};
use crate::rounds::{interleave, medians, permilles};
use crate::server::{cpu_us, Installation, Server, Time, Tool};
use crate::workload::{Exchange, Workload, PIPELINE};
use crate::{reserve, throttle, window};

/// Connections that keep the server busy with pipelines. About a window there is but one: the scripts' events must come
/// in the order of their times.
const CONNECTIONS: usize = 2;

/// Exchanges of each manner before the rounds.
const WARM_UP: usize = 100;

/// Events in the windows.
const SIZES: [u64; 2] = [100, 10_000];

const COLUMNS: [Column; 8] = [
    Column { name: "CPU us", decimals: 2 },
    Column { name: "1000/s", decimals: 0 },
    Column { name: "p50 us of 50", decimals: 0 },
    Column { name: "p99 us of 50", decimals: 0 },
    Column { name: "alone: CPU us", decimals: 1 },
    Column { name: "alone: 1000/s", decimals: 1 },
    Column { name: "alone: p50 us", decimals: 1 },
    Column { name: "alone: p99 us", decimals: 1 },
];

/// A row to be measured: what, the name of its peer, and by which clock.
struct Plan {
    workload: Workload,
    peer: Option<String>,
    time: Time,
}

fn plans(scripts: &Scripts) -> Vec<Plan> {
    let mut plans: Vec<Plan> = throttle::workloads(scripts)
        .into_iter()
        .map(|(workload, peer)| Plan { workload, peer: peer.map(str::to_string), time: Time::Real })
        .collect();
    let mut held = |workload: Workload, peer: Option<&Workload>| {
        let peer = peer.map(|peer| peer.name.clone());
        plans.push(Plan { workload, peer, time: Time::Held });
    };
    for events in SIZES {
        let lua_allowed = window::lua_allowed(scripts, events);
        let lua_denied = window::lua_denied(scripts, events);
        for kind in window::KINDS {
            held(kind.allowed(events), Some(&lua_allowed));
            held(kind.denied(events), Some(&lua_denied));
        }
        held(lua_allowed, None);
        held(lua_denied, None);
        held(window::transaction(events), None);
    }
    let lua_release = reserve::lua_release(scripts, 0);
    let lua_apply = reserve::lua_apply(scripts, 0);
    held(reserve::release(0), Some(&lua_release));
    held(reserve::apply(0), Some(&lua_apply));
    held(lua_release, None);
    held(lua_apply, None);
    plans
}

/// How decisions are asked for.
struct Manner {
    connections: usize,
    pipeline: usize,
    /// Of a held clock, to keep the pace.
    tick_us: i64,
}

/// A row with a server of its own, which idles while the others are measured.
struct Subject<'p> {
    workload: &'p Workload,
    server: Server,
    control: Client,
    clients: Vec<Client>,
    /// Pipelined, and one at a time.
    manners: [Manner; 2],
    /// Decisions of all rounds, and those that were not answered as expected.
    decisions: f64,
    unexpected: f64,
}

impl<'p> Subject<'p> {
    fn start(installation: &Installation, plan: &'p Plan) -> Result<Subject<'p>> {
        let server = Server::start(installation, Tool::None, plan.time)?;
        let mut control = server.connect()?;
        let workload = &plan.workload;
        workload.prepare(&server, &mut control)?;
        let mut warm_up = |connections, pipeline| -> Result<Manner> {
            let mut pacer = workload.pacer(&server);
            for _ in 0..WARM_UP {
                pacer.step(pipeline)?;
                workload.run(&mut control, pipeline)?;
            }
            Ok(Manner { connections, pipeline, tick_us: pacer.tick_us() })
        };
        let connections = if plan.time == Time::Held { 1 } else { CONNECTIONS };
        let manners = [warm_up(connections, PIPELINE)?, warm_up(1, 1)?];
        let clients: Result<Vec<Client>> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        let clients = clients?;
        let (decisions, unexpected) = (0.0, 0.0);
        Ok(Subject { workload, server, control, clients, manners, decisions, unexpected })
    }

    /// One round of both manners, a figure for each column: CPU time per decision, thousands of decisions in a second,
    /// median and 99th percentile of an exchange's time.
    fn round(&mut self, time: Duration) -> Result<Vec<f64>> {
        let Subject { workload, server, control, clients, manners, decisions, unexpected } = self;
        let mut figures = Vec::new();
        for manner in &*manners {
            server.tick(manner.tick_us)?;
            let cpu = cpu_us(control)?;
            let started = Instant::now();
            let exchanges: Result<Vec<Vec<Exchange>>> = thread::scope(|scope| {
                let workload = &**workload;
                let run = |client| scope.spawn(move || manner.run_for(time, workload, client));
                let threads: Vec<_> =
                    clients.iter_mut().take(manner.connections).map(run).collect();
                threads.into_iter().map(join).collect()
            });
            let took_s = started.elapsed().as_secs_f64();
            let cpu = cpu_us(control)? - cpu;
            let exchanges: Vec<Exchange> = exchanges?.into_iter().flatten().collect();
            let made = (exchanges.len() * manner.pipeline) as f64;
            *decisions += made;
            *unexpected += exchanges.iter().map(|exchange| exchange.unexpected as f64).sum::<f64>();
            let took = exchanges.iter().map(|exchange| exchange.took).collect();
            let [p50, p99] = permilles(took, [500, 990]);
            figures.extend([cpu / made, made / took_s / 1e3, p50, p99]);
        }
        Ok(figures)
    }
}

impl Manner {
    /// As many exchanges as fit into a span of time.
    fn run_for(
        &self,
        time: Duration,
        workload: &Workload,
        client: &mut Client,
    ) -> Result<Vec<Exchange>> {
        let started = Instant::now();
        let mut exchanges = Vec::new();
        while started.elapsed() < time {
            exchanges.push(workload.run(client, self.pipeline)?);
        }
        Ok(exchanges)
    }
}

/// What a client's thread brought.
pub fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(Error::other("a client's thread panicked")))
}

/// Measures all rows in turn, `rounds` times, and takes the medians.
pub fn table(installation: &Installation, rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "Time, medians of {rounds} interleaved rounds: {CONNECTIONS} connections (one about windows and \
         reservations) with pipelines of {PIPELINE}, then one connection with one decision at a time"
    );
    let mut table = Table::new("time", title, &COLUMNS);
    let plans = plans(&Server::start(installation, Tool::None, Time::Real)?.scripts);
    let subjects = plans.iter().map(|plan| Subject::start(installation, plan));
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
    Ok(table)
}

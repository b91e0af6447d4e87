//! CPU time of the server, throughput and latency, pipelined and one at a time.

use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, Error, Result};
use crate::peers::Scripts;
use crate::report::{medians, Column, Table};
use crate::server::{cpu_us, Installation, Server, Time, Tool};
use crate::workload::{Workload, PIPELINE};
use crate::{reserve, throttle, window};

/// Connections that keep the server busy with pipelines.
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

/// A row with a server of its own, which idles while the others are measured.
struct Subject<'p> {
    workload: &'p Workload,
    server: Server,
    control: Client,
    clients: Vec<Client>,
    /// Ticks of a held clock that keep the pace when pipelined and when not.
    ticks_us: [i64; 2],
}

impl<'p> Subject<'p> {
    fn start(installation: &Installation, plan: &'p Plan) -> Result<Subject<'p>> {
        let server = Server::start(installation, Tool::None, plan.time)?;
        let mut control = server.connect()?;
        let workload = &plan.workload;
        workload.prepare(&server, &mut control)?;
        let mut warm_up = |pipeline| -> Result<i64> {
            let mut pacer = workload.pacer(&server);
            for _ in 0..WARM_UP {
                pacer.step(pipeline)?;
                workload.run(&mut control, pipeline)?;
            }
            Ok(pacer.tick_us())
        };
        let ticks_us = [warm_up(PIPELINE)?, warm_up(1)?];
        let clients: Result<Vec<Client>> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        Ok(Subject { workload, clients: clients?, ticks_us, server, control })
    }

    /// One round of both manners: a figure for each column.
    fn round(&mut self, time: Duration) -> Result<Vec<f64>> {
        let [pipelined, alone] = self.ticks_us;
        let pipelined = self.part(time, pipelined, CONNECTIONS, PIPELINE)?;
        let alone = self.part(time, alone, 1, 1)?;
        Ok([pipelined, alone].concat())
    }

    /// CPU time per decision, thousands of decisions in a second, median and 99th percentile of an exchange's time.
    fn part(
        &mut self,
        time: Duration,
        tick_us: i64,
        connections: usize,
        pipeline: usize,
    ) -> Result<[f64; 4]> {
        self.server.tick(tick_us)?;
        let workload = self.workload;
        let cpu = cpu_us(&mut self.control)?;
        let started = Instant::now();
        let samples: Result<Vec<Vec<f64>>> = thread::scope(|scope| {
            let run = |client| scope.spawn(move || exchanges(workload, client, pipeline, time));
            let threads: Vec<_> = self.clients.iter_mut().take(connections).map(run).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Error::other("a client's thread panicked")))
            };
            threads.into_iter().map(join).collect()
        });
        let mut samples = samples?.concat();
        let took_us = started.elapsed().as_secs_f64() * 1e6;
        let cpu = cpu_us(&mut self.control)? - cpu;
        let decisions = (samples.len() * pipeline) as f64;
        samples.sort_by(f64::total_cmp);
        let percentile = |percent: usize| samples.get(samples.len() * percent / 100).copied();
        let (p50, p99) = (percentile(50).unwrap_or_default(), percentile(99).unwrap_or_default());
        Ok([cpu / decisions, decisions * 1e3 / took_us, p50, p99])
    }
}

/// Microseconds that each exchange took.
fn exchanges(
    workload: &Workload,
    client: &mut Client,
    pipeline: usize,
    time: Duration,
) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut samples = Vec::new();
    while started.elapsed() < time {
        samples.push(workload.run(client, pipeline)?.took.as_secs_f64() * 1e6);
    }
    Ok(samples)
}

/// Measures all rows in turn, `rounds` times, and takes the medians.
pub fn table(installation: &Installation, rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "Time, medians of {rounds} interleaved rounds: {CONNECTIONS} connections with pipelines of {PIPELINE}, then \
         one connection with one decision at a time"
    );
    let mut table = Table::new("time", title, &COLUMNS);
    let plans = plans(&Server::start(installation, Tool::None, Time::Real)?.scripts);
    let mut subjects: Vec<_> =
        plans.iter().map(|plan| (Subject::start(installation, plan), Vec::new())).collect();
    for _ in 0..rounds {
        for (subject, figures) in &mut subjects {
            if let Ok(running) = subject {
                match running.round(time) {
                    Ok(figure) => figures.push(figure),
                    Err(error) => *subject = Err(error),
                }
            }
        }
    }
    for (plan, (subject, figures)) in plans.iter().zip(subjects) {
        let figures = subject.map(|_| medians(&figures));
        table.add(&plan.workload.name, plan.peer.clone(), figures)?;
    }
    Ok(table)
}

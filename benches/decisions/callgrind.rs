//! Instructions of a whole server, counted by callgrind: bare, with an append-only file, and with a replica.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{BenchError, Client, Result};
use crate::held_clock::Pacer;
use crate::peers::Scripts;
use crate::report::{Column, Table};
use crate::rounds::{join, medians};
use crate::server::{Host, Persistence, Time, Tool};
use crate::workload::{Workload, PIPELINE};

/// Exchanges before the counted ones, so that nothing is counted that happens only the first time.
const WARM_UP: usize = 50;

/// The last of them, made with the counting already on.
const LAST_OF_WARM_UP: usize = 4;

/// Exchanges that are counted together. The result is the median of several counts, as some include the server's cron.
const BATCH: usize = 5;

/// Rows with expensive decisions make fewer of them, so that none takes much longer than this without callgrind.
const LONG: Duration = Duration::from_secs(2);

const SETTINGS: [Persistence; 3] = [Persistence::Bare, Persistence::Aof, Persistence::Replica];

/// A server under callgrind in each setting.
pub struct Meter {
    lanes: Vec<Lane>,
    /// Decisions that are counted in each row.
    decisions: usize,
}

struct Lane {
    host: Host,
    client: Client,
}

/// The result of one workload in one setting.
struct Count {
    instructions: f64,
    unexpected: usize,
}

impl Meter {
    /// The columns of all tables of instructions.
    pub const COLUMNS: [Column; 3] = [
        Column { name: "bare", decimals: 0, compared: true },
        Column { name: "AOF", decimals: 0, compared: true },
        Column { name: "replica", decimals: 0, compared: true },
    ];

    pub fn start(time: Time, decisions: usize) -> Result<Meter> {
        let lane = |setting| {
            let host = Host::start(Tool::Callgrind, setting, time)?;
            let client = host.connect()?;
            Ok(Lane { host, client })
        };
        let lanes = thread::scope(|scope| {
            let threads = SETTINGS.map(|setting| scope.spawn(move || lane(setting)));
            threads.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        Ok(Meter { lanes, decisions })
    }

    /// The peers' scripts, which all servers have.
    pub fn scripts(&self) -> Scripts {
        self.lanes[0].host.scripts.clone()
    }

    /// Counts a workload on empty servers and adds the row.
    pub fn add(
        &mut self,
        table: &mut Table,
        workload: &Workload,
        peer: Option<String>,
    ) -> Result<()> {
        let counts = self.count(workload);
        let unexpected: usize = counts.iter().flatten().map(|count| count.unexpected).sum();
        let instructions = counts
            .map(|counts| counts.into_iter().map(|count| count.instructions).collect::<Vec<_>>());
        table.add(&workload.name, peer, instructions)?;
        if unexpected > 0 {
            table.remark(format!("{unexpected} of {} answered otherwise", 3 * self.decisions));
        }
        Ok(())
    }

    fn count(&mut self, workload: &Workload) -> Result<Vec<Count>> {
        let decisions = self.decisions;
        thread::scope(|scope| {
            let count = move |lane: &mut Lane| lane.count(&workload.clone(), decisions);
            let lanes = self.lanes.iter_mut();
            let threads: Vec<_> = lanes.map(|lane| scope.spawn(move || count(lane))).collect();
            threads.into_iter().map(join).collect()
        })
    }
}

impl Lane {
    /// Instructions per call of an application, including work other than the commands: the event loop and the
    /// system calls' user side.
    fn count(&mut self, workload: &Workload, decisions: usize) -> Result<Count> {
        let Lane { host, client } = self;
        client.call("FLUSHALL")?;
        workload.prepare(host, client)?;
        let mut pacer = workload.pacer(host);
        let mut run = |pacer: &mut Pacer<'_>, exchanges: usize| {
            workload.run_paced(client, pacer, exchanges * PIPELINE)
        };
        let started = Instant::now();
        run(&mut pacer, 1)?;
        let took = started.elapsed();
        let most = (LONG.as_secs_f64() / took.as_secs_f64()).ceil() as usize;
        let exchanges = decisions.div_ceil(PIPELINE).min(most);
        run(&mut pacer, WARM_UP.min(most) - 1)?;
        monitor(&host.server, "instrumentation on")?;
        let mut count = || {
            run(&mut pacer, LAST_OF_WARM_UP.min(exchanges))?;
            let mut unexpected = 0;
            let mut each = Vec::new();
            for _ in 0..exchanges.div_ceil(BATCH) {
                let before = instructions(&host.server)?;
                unexpected += run(&mut pacer, BATCH.min(exchanges))?;
                let after = instructions(&host.server)?;
                let calls = (BATCH.min(exchanges) * PIPELINE) as f64 * workload.calls() as f64;
                each.push(vec![(after - before) / calls]);
            }
            Ok(Count { instructions: medians(&each)[0], unexpected })
        };
        let counted = count();
        monitor(&host.server, "instrumentation off")?;
        host.tick(0);
        counted
    }
}

/// Instructions so far, of all threads.
fn instructions(server: &support::Server) -> Result<f64> {
    // Callgrind sometimes replies with nothing.
    for _ in 0..10 {
        let status = monitor(server, "status internal")?;
        // `events-1: 4711` is a thread's total, `events-1-0: 4711` that of a function it is in.
        let totals = status.lines().filter_map(|line| {
            let (thread, total) = line.strip_prefix("events-")?.split_once(": ")?;
            thread.parse::<u32>().ok()?;
            total.trim().parse::<f64>().ok()
        });
        match totals.sum::<f64>() {
            0.0 => continue,
            total => return Ok(total),
        }
    }
    Err(BenchError::other("callgrind does not report its counts"))
}

/// Sends a monitor command to the callgrind of a server.
fn monitor(server: &support::Server, command: &str) -> Result<String> {
    let process = format!("--pid={}", server.pid());
    let output = Command::new("vgdb").args([&process, command]).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(BenchError::other(String::from_utf8_lossy(&output.stderr)))
    }
}

//! Instructions of a whole server, counted by callgrind: bare, and with an append-only file.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::held_clock::Pacer;
use crate::peers::Scripts;
use crate::report::{Column, Table};
use crate::server::{Host, Persistence, Time, Tool};
use crate::workload::{Workload, PIPELINE};
use crate::Result;
use support::{Conn, Server};

/// Exchanges before the counted ones, so that nothing is counted that happens only the first time.
const WARM_UP: usize = 50;

/// The last of them, made with the counting already on.
const LAST_OF_WARM_UP: usize = 4;

/// Exchanges that are counted together. The result is the median of several counts, as some include the server's cron.
const BATCH: usize = 5;

/// Rows with expensive decisions make fewer of them, so that none takes much longer than this without callgrind.
const LONG: Duration = Duration::from_secs(2);

/// A server under callgrind for each column.
pub struct Meter {
    lanes: Vec<(Host, Conn)>,
    /// Decisions that are counted in each row.
    decisions: usize,
}

impl Meter {
    /// The columns of all tables of instructions.
    pub const COLUMNS: [Column; 2] = [
        Column { name: "bare", decimals: 0, compared: true },
        Column { name: "AOF", decimals: 0, compared: true },
    ];

    pub fn start(time: Time, decisions: usize) -> Meter {
        let lanes = [Persistence::Bare, Persistence::Aof].map(|setting| {
            let host = Host::start(Tool::Callgrind, setting, time);
            let conn = host.server.conn();
            (host, conn)
        });
        Meter { lanes: lanes.into(), decisions }
    }

    /// The peers' scripts, which all servers have.
    pub fn scripts(&self) -> Scripts {
        self.lanes[0].0.scripts.clone()
    }

    /// Counts a workload on empty servers and adds the row.
    pub fn add(&mut self, table: &mut Table, workload: &Workload, peer: Option<&str>) {
        let decisions = self.decisions;
        let counts: Result<Vec<_>> = thread::scope(|scope| {
            let start =
                |(host, conn)| scope.spawn(move || count(host, conn, &workload.clone(), decisions));
            let threads: Vec<_> =
                self.lanes.iter_mut().map(|(host, conn)| start((&*host, conn))).collect();
            threads
                .into_iter()
                .map(|it| it.join().unwrap_or(Err("a thread panicked".into())))
                .collect()
        });
        let unexpected: usize = counts.iter().flatten().map(|(_, unexpected)| unexpected).sum();
        let figures = counts.map(|counts| counts.into_iter().map(|(each, _)| each).collect());
        table.add(&workload.name, peer, figures);
        if unexpected > 0 {
            table.remark(format!("{unexpected} of {} answered otherwise", 2 * decisions));
        }
    }
}

/// Instructions for a decision, including work other than the commands: the event loop and the system calls' user side. And
/// the number of replies that were not as expected.
fn count(
    host: &Host,
    conn: &mut Conn,
    workload: &Workload,
    decisions: usize,
) -> Result<(f64, usize)> {
    conn.cmd("FLUSHALL");
    workload.prepare(host, conn)?;
    let mut pacer = workload.pacer(host);
    let mut run = |pacer: &mut Pacer<'_>, exchanges: usize| {
        workload.run_paced(conn, pacer, exchanges * PIPELINE)
    };
    let started = Instant::now();
    run(&mut pacer, 1)?;
    let most = (LONG.as_secs_f64() / started.elapsed().as_secs_f64()).ceil() as usize;
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
            let passed = instructions(&host.server)? - before;
            each.push(passed / (BATCH.min(exchanges) * PIPELINE) as f64);
        }
        Ok((median(each), unexpected))
    };
    let counted = count();
    monitor(&host.server, "instrumentation off")?;
    host.tick(0);
    counted
}

/// The middle one of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Instructions so far, of all threads.
fn instructions(server: &Server) -> Result<f64> {
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
    Err("callgrind does not report its counts".into())
}

/// Sends a monitor command to the callgrind of a server.
fn monitor(server: &Server, command: &str) -> Result<String> {
    let process = format!("--pid={}", server.pid());
    let output = Command::new("vgdb").args([&process, command]).output();
    let output = output.map_err(|error| format!("vgdb: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

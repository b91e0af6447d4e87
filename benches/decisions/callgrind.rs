//! Instructions of a whole server, counted by callgrind: bare, and with an append-only file.

use std::process::Command;
use std::thread;

use crate::report::Table;
use crate::server;
use crate::throttle;
use crate::workload::{load_scripts, Scripts, Workload, PIPELINE};
use crate::{Effort, Result};
use support::{Conn, Server, START_US};

/// Exchanges before the counted ones, so that nothing is counted that happens only the first time.
const WARM_UP: u64 = 50;

/// The time at which the clock begins. It isn't a whole second, which scripts would write in fewer digits.
const BEGIN_US: i64 = START_US + 123_456;

/// Measures these rows, after the command with which all costs are compared.
pub fn table(
    title: &str,
    effort: &Effort,
    rows: impl Fn(&Scripts) -> Vec<Workload> + Sync,
) -> Table {
    let column = |aof| count_rows(aof, effort.counted, &rows);
    let [bare, aof] = thread::scope(|scope| {
        let columns = [false, true].map(|aof| scope.spawn(move || column(aof)));
        columns.map(|column| column.join().unwrap())
    });
    let mut table = Table::new(title, &[("bare", 0), ("AOF", 0)]);
    for ((row, bare), (_, aof)) in bare.into_iter().zip(aof) {
        table.add(&row.name, row.peer, bare.and_then(|bare| Ok(vec![bare, aof?])));
    }
    table
}

/// Counts the instructions for a decision of each row, on one server.
fn count_rows(
    aof: bool,
    decisions: u64,
    rows: &impl Fn(&Scripts) -> Vec<Workload>,
) -> Vec<(Workload, Result<f64>)> {
    let builder = server::builder()
        // Children too, as the server may be a shell script that starts the real one.
        .tool(["valgrind", "--tool=callgrind", "--instr-atstart=no"])
        .tool(["--trace-children=yes", "--callgrind-out-file=/dev/null"])
        .config("jemalloc-bg-thread no");
    let server = if aof { builder.aof() } else { builder }.with_clock_at(BEGIN_US);
    let mut conn = server.conn();
    // The cron runs by the machine's clock. In a server that is fifty times slower it would take fifty times the share.
    conn.cmd("DEBUG PAUSE-CRON 1");
    let rows = [vec![throttle::set_ex()], rows(&load_scripts(&mut conn))].concat();
    let count = |mut row: Workload| {
        eprintln!("  {}{}", row.name, if aof { ", AOF" } else { "" });
        let counted = count(&server, &mut conn, &mut row, decisions);
        (row, counted)
    };
    rows.into_iter().map(count).collect()
}

/// Instructions for a decision, including work other than the commands: the event loop and the system calls' user side.
fn count(server: &Server, conn: &mut Conn, row: &mut Workload, decisions: u64) -> Result<f64> {
    let clock = Some(server.clock());
    row.prepare(clock, conn)?;
    let mut run = |exchanges| (0..exchanges).try_for_each(|_| row.run(clock, conn).map(drop));
    run(WARM_UP)?;
    monitor(server, "instrumentation on")?;
    run(1)?;
    let before = instructions(server)?;
    run(decisions / PIPELINE)?;
    let passed = instructions(server)? - before;
    monitor(server, "instrumentation off")?;
    Ok(passed / decisions as f64)
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

//! Measures the cost of the module's decisions, compared with plain commands and with the scripts that people use today.
//!
//! `make bench`, or `cargo bench --bench decisions -- [section ...] [--quick]`. Prints tables, and the goals that the project
//! set itself. A run of all sections writes docs/benchmarks.md and its charts; any other writes its page to
//! `target/bench/`. tests/support starts the servers: CONTRIBUTING.md lists the environment variables that it reads.

mod callgrind;
mod charts;
mod client;
mod cold_keys;
mod cpu_time;
mod goals;
mod hand_over;
mod held_clock;
mod latency;
mod leases;
mod longest_calls;
mod memory;
mod page;
mod peers;
mod report;
mod reserve;
mod rounds;
mod server;
mod shaper;
mod svg_chart;
mod throttle;
mod wake_up;
mod window;
mod workload;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use client::Result;
use report::Table;

/// The number of measurements.
struct Effort {
    /// Decisions counted in each row of a table of instructions.
    counted: usize,
    /// Reservations counted in each row, each taken and ended.
    reserved: usize,
    /// Events in the windows, and reservations in addition to the measured ones.
    window_sizes: &'static [u64],
    others: &'static [u64],
    /// Repetitions of each long call.
    longest: usize,
    /// Keys that are used in random order.
    cold_keys: u64,
    /// Rounds of each measurement of time, and their length.
    rounds: usize,
    round: Duration,
}

const FULL: Effort = Effort {
    counted: 2_500,
    reserved: 1_500,
    window_sizes: &window::SIZES,
    others: &reserve::OTHERS,
    longest: 3,
    cold_keys: 1_000_000,
    rounds: 9,
    round: Duration::from_millis(200),
};

const QUICK: Effort = Effort {
    counted: 750,
    reserved: 500,
    window_sizes: &[10, 100],
    others: &[0, 10, 100],
    longest: 1,
    cold_keys: 100_000,
    rounds: 3,
    round: Duration::from_millis(100),
};

type MeasureSection = fn(&Effort) -> Result<Table>;

const SECTIONS: [(&str, MeasureSection); 14] = [
    ("throttle", |effort| throttle::table(effort.counted)),
    ("several", |effort| throttle::several(effort.counted)),
    ("window", |effort| window::table(effort.counted, effort.window_sizes)),
    ("reserve", |effort| reserve::table(effort.reserved, effort.others)),
    ("leases", |effort| leases::table(effort.reserved)),
    ("longest", |effort| longest_calls::table(effort.longest)),
    ("block", |effort| hand_over::table(effort.rounds, effort.round)),
    ("time", |effort| cpu_time::table(effort.rounds, effort.round)),
    ("connections", |effort| cpu_time::connections(effort.rounds, effort.round)),
    ("cold", |effort| cold_keys::table(effort.cold_keys, effort.rounds, effort.round)),
    ("latency", |effort| latency::table(effort.rounds, 4 * effort.round)),
    ("wake", |effort| wake_up::table(effort.rounds, 2 * effort.round)),
    ("shaper", |effort| shaper::table(effort.rounds, effort.round)),
    ("memory", |_| memory::table()),
];

fn main() -> ExitCode {
    let mut wanted = Vec::new();
    let mut quick = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => quick = true,
            // Cargo's own.
            "--bench" => {}
            section if SECTIONS.iter().any(|(name, _)| *name == section) => wanted.push(argument),
            _ => {
                let names = SECTIONS.map(|(name, _)| name).join(" | ");
                eprintln!("unknown argument {argument}; known: {names} | --quick");
                return ExitCode::FAILURE;
            }
        }
    }
    match run(&wanted, quick) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &[String], quick: bool) -> Result<()> {
    let effort = if quick { &QUICK } else { &FULL };
    // 2,000 waiters take as many connections, here and in the server. The usual soft limit is 1024.
    rlimit::increase_nofile_limit(10_000)?;
    let environment = server::describe()?;
    environment.iter().for_each(|(name, value)| println!("{name}: {value}"));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&directory)?;
    let mut tables = Vec::new();
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            let table = section(effort)?;
            table.print();
            tables.push(table);
        }
    }
    let goals = goals::goals(&tables)?;
    println!("\nGoals\n\n{}", goals::to_markdown(&goals));
    if quick || !wanted.is_empty() {
        return page::write(&directory, &environment, &tables, &goals);
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    page::write(&project.join("docs"), &environment, &tables, &goals)
}

//! What the module's decisions cost beside plain commands and beside the scripts that people use today.
//!
//! `make bench`, or `cargo bench --bench decisions -- [section ...] [--quick]`. Prints tables and the bars that the
//! project set itself, and writes `target/bench/results.json`. A run of all sections writes docs/benchmarks.md, its
//! charts and the figures of README.md as well; any other writes its page to `target/bench/`. Reads `REDIS_SERVER`.

mod block;
mod callgrind;
mod chart;
mod client;
mod clock;
mod figures;
mod keys;
mod latency;
mod memory;
mod pace;
mod page;
mod peers;
mod reach;
mod report;
mod reserve;
mod rounds;
mod server;
mod throttle;
mod time;
mod wake;
mod window;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use client::Result;
use report::Table;
use server::Installation;

/// How much is measured.
struct Effort {
    /// Decisions counted in each row of a table of instructions.
    counted: usize,
    /// Reservations counted in each row, each taken and ended.
    reserved: usize,
    /// Events in the windows.
    window_sizes: &'static [u64],
    /// Keys on the server.
    keys: &'static [u64],
    /// How often what takes time is measured, and for how long.
    rounds: usize,
    round: Duration,
}

const FULL: Effort = Effort {
    counted: 10_000,
    reserved: 2_500,
    window_sizes: &window::SIZES,
    keys: &keys::NUMBERS,
    rounds: 9,
    round: Duration::from_millis(250),
};

const QUICK: Effort = Effort {
    counted: 2_000,
    reserved: 1_000,
    window_sizes: &[100, 10_000],
    keys: &[1_000, 100_000],
    rounds: 3,
    round: Duration::from_millis(100),
};

type Section = fn(&Installation, &Effort) -> Result<Table>;

const SECTIONS: [(&str, Section); 9] = [
    ("throttle", |installation, effort| throttle::table(installation, effort.counted)),
    ("window", |installation, effort| {
        window::table(installation, effort.counted, effort.window_sizes)
    }),
    ("reserve", |installation, effort| reserve::table(installation, effort.reserved)),
    ("block", |installation, effort| block::table(installation, effort.rounds, effort.round)),
    ("time", |installation, effort| time::table(installation, effort.rounds, effort.round)),
    ("keys", |installation, effort| {
        keys::table(installation, effort.rounds, effort.round, effort.keys)
    }),
    ("latency", |installation, effort| {
        latency::table(installation, effort.rounds, 4 * effort.round)
    }),
    ("wake", |installation, effort| wake::table(installation, effort.rounds, 2 * effort.round)),
    ("memory", |installation, _| memory::table(installation)),
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
    // A queue of 2000 waiters takes as many connections; the usual soft limit is 1024.
    rlimit::increase_nofile_limit(10_000)?;
    let installation = Installation::find()?;
    let environment = installation.describe()?;
    environment.iter().for_each(|(name, value)| println!("{name}: {value}"));
    let mut tables = Vec::new();
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            let table = section(&installation, effort)?;
            table.print();
            tables.push(table);
        }
    }
    let bars = reach::bars(&tables);
    reach::print(&bars);
    let path = installation.directory.join("results.json");
    report::write_json(&path, &environment, &tables, &bars)?;
    println!("\nAll figures: {}", path.display());
    if quick || !wanted.is_empty() {
        return page::write(&installation.directory, &environment, &tables, &bars);
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    page::write(&project.join("docs"), &environment, &tables, &bars)?;
    page::update_readme(&project.join("README.md"), &environment, &tables)
}

//! Measures the cost of the module's decisions, next to plain commands, to the Lua scripts and transactions that people use,
//! and to redis-cell.
//!
//! `make bench`, or `cargo bench --bench decisions -- [section ...] [--quick]`. Prints tables, and the goals that the project
//! set itself. A run of all sections writes docs/benchmarks.md; any other writes its page to `target/bench/`. tests/support
//! starts the servers: CONTRIBUTING.md lists the environment variables that it reads.

mod callgrind;
mod cpu_time;
mod memory;
mod report;
mod reserve;
mod server;
mod shaper;
mod throttle;
mod window;
mod workload;

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use report::Table;
use support::{root, target_dir};

/// A failure of a measurement, in words: the error reply of the server, or why there is no figure.
type Result<T> = std::result::Result<T, String>;

/// The number of measurements.
struct Effort {
    /// Decisions counted in each row of a table of instructions.
    counted: u64,
    /// The most events or reservations of a key in these tables.
    largest_key: u64,
    /// Rounds of each measurement of time, and their length.
    rounds: usize,
    round: Duration,
}

const FULL: Effort =
    Effort { counted: 2_500, largest_key: 10_000, rounds: 9, round: Duration::from_millis(200) };
const QUICK: Effort =
    Effort { counted: 750, largest_key: 100, rounds: 3, round: Duration::from_millis(100) };

type MeasureSection = fn(&Effort) -> Result<Table>;

const SECTIONS: [(&str, MeasureSection); 7] = [
    ("throttle", throttle::table),
    ("several", throttle::several),
    ("window", window::table),
    ("reserve", reserve::table),
    ("time", cpu_time::table),
    ("shaper", shaper::table),
    ("memory", memory::table),
];

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (quick, wanted): (Vec<_>, Vec<_>) = arguments.partition(|argument| argument == "--quick");
    match run(&wanted, !quick.is_empty()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &[String], quick: bool) -> Result<()> {
    let names = SECTIONS.map(|(name, _)| name);
    if !wanted.iter().all(|wanted| names.contains(&wanted.as_str())) {
        return Err(format!("known: {} | --quick", names.join(" | ")));
    }
    let effort = if quick { QUICK } else { FULL };
    let environment = server::environment();
    let mut tables = Vec::new();
    for (name, measure) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            let table = measure(&effort)?;
            println!("\n{}", table.to_markdown());
            tables.push((name, table));
        }
    }
    let page = report::page(&environment, &tables)?;
    let is_whole = wanted.is_empty() && !quick;
    let folder = if is_whole { root().join("docs") } else { target_dir().join("bench") };
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join("benchmarks.md"), page))
        .map_err(|error| error.to_string())
}

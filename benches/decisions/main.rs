//! Measures the cost of the module's decisions, next to plain commands, to the Lua scripts and transactions that people use,
//! and to redis-cell.
//!
//! `make bench`, or `cargo bench --bench decisions -- [section ...] [--quick]`. Prints tables, and the goals that the project
//! set itself. A run of all sections writes docs/benchmarks.md; any other writes its page to `target/bench/`. tests/support
//! starts the servers: CONTRIBUTING.md lists the environment variables that it reads.

mod callgrind;
mod cpu_time;
mod held_clock;
mod memory;
mod peers;
mod report;
mod reserve;
mod server;
mod shaper;
mod throttle;
mod window;
mod workload;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use report::Table;

/// A failure of a measurement, in words: the error reply of the server, or why there is no figure.
type Result<T> = std::result::Result<T, String>;

/// The number of measurements.
struct Effort {
    /// Decisions counted in each row of a table of instructions.
    counted: usize,
    /// Events in the windows, and reservations next to the measured ones.
    window_sizes: &'static [u64],
    others: &'static [u64],
    /// Rounds of each measurement of time, and their length.
    rounds: usize,
    round: Duration,
}

const FULL: Effort = Effort {
    counted: 2_500,
    window_sizes: &[10, 100, 1_000, 10_000],
    others: &[0, 10, 100, 10_000],
    rounds: 9,
    round: Duration::from_millis(200),
};

const QUICK: Effort = Effort {
    counted: 750,
    window_sizes: &[10, 100],
    others: &[0, 10],
    rounds: 3,
    round: Duration::from_millis(100),
};

type MeasureSection = fn(&Effort) -> Result<Table>;

const SECTIONS: [(&str, MeasureSection); 7] = [
    ("throttle", |effort| throttle::table(effort.counted)),
    ("several", |effort| throttle::several(effort.counted)),
    ("window", |effort| window::table(effort.counted, effort.window_sizes)),
    ("reserve", |effort| reserve::table(effort.counted, effort.others)),
    ("time", |effort| cpu_time::table(effort.rounds, effort.round)),
    ("shaper", |effort| shaper::table(effort.rounds, effort.round)),
    ("memory", |_| memory::table()),
];

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let (options, wanted): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let is_section = |wanted: &String| SECTIONS.iter().any(|(name, _)| name == wanted);
    let is_option = |option: &String| ["--bench", "--quick"].contains(&option.as_str());
    if !wanted.iter().all(is_section) || !options.iter().all(is_option) {
        eprintln!("known: {} | --quick", SECTIONS.map(|(name, _)| name).join(" | "));
        return ExitCode::FAILURE;
    }
    match run(&wanted, options.contains(&"--quick".to_owned())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &[String], quick: bool) -> Result<()> {
    let effort = if quick { &QUICK } else { &FULL };
    let environment = server::describe();
    let mut tables = Vec::new();
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            let table = section(effort)?;
            println!("\n{}", table.to_markdown());
            tables.push(table);
        }
    }
    let page = report::page(&environment, &tables)?;
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = if quick || !wanted.is_empty() {
        Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench")
    } else {
        project.join("docs")
    };
    let write =
        || fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("benchmarks.md"), page));
    write().map_err(|error| error.to_string())
}

//! What the module's decisions cost beside plain commands and beside the scripts that people use today.
//!
//! `make bench`, or `cargo bench --bench decisions -- [section ...] [--quick]`. Prints tables and the bars that the
//! project set itself, and writes `target/bench/results.json`. Reads `REDIS_SERVER`.

mod callgrind;
mod client;
mod clock;
mod peers;
mod reach;
mod report;
mod server;
mod throttle;
mod workload;

use std::process::ExitCode;

use client::{Error, Result};
use report::{Environment, Table};
use server::Installation;

/// How much is measured.
struct Effort {
    /// Decisions counted in each row of a table of instructions.
    counted: usize,
}

const FULL: Effort = Effort { counted: 10_000 };
const QUICK: Effort = Effort { counted: 2_000 };

type Section = fn(&Installation, &Effort) -> Result<Table>;

const SECTIONS: [(&str, Section); 1] =
    [("throttle", |installation, effort| throttle::table(installation, effort.counted))];

fn main() -> ExitCode {
    let mut wanted = Vec::new();
    let mut effort = &FULL;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => effort = &QUICK,
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
    match run(&wanted, effort) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &[String], effort: &Effort) -> Result<()> {
    let installation = Installation::find()?;
    let environment = installation.describe()?;
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
    Ok(())
}

//! Draws the pictures of README.md, docs/choosing.md and docs/commands.md, and writes the tables of docs/operations.md.
//!
//! `make pictures` runs this. What is drawn comes from runs of the commands in memory, with a clock of their own, so it is
//! the same on every machine: tests/server/docs.rs compares it with what is committed.

mod drawn;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    for (path, text) in drawn::files() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
        println!("{}", path.display());
    }
    ExitCode::SUCCESS
}

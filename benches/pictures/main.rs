//! Draws the pictures of docs/choosing.md, and writes the tables of docs/operations.md.
//!
//! `make pictures`, or `cargo bench --bench pictures`. What is drawn comes from runs on a real server with a held clock,
//! so it is the same on every machine: tests/server/pictures.rs compares it with what is committed.

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

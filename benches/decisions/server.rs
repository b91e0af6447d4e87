//! Servers to measure on, and what they run on.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::Result;
use support::{server_binary, target_dir, Builder, Server};

/// A server with the module and redis-cell, and without a slow log.
pub fn builder() -> Builder {
    let builder = Server::builder().config("slowlog-log-slower-than -1");
    match redis_cell() {
        Some(library) => builder.config(format!("loadmodule {}", library.display())),
        None => builder,
    }
}

/// The library of redis-cell 0.2.2, which is built from crates.io. Without a network its rows are "not there".
fn redis_cell() -> Option<PathBuf> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let folder = target_dir().join("redis-cell");
        fs::create_dir_all(folder.join("src")).ok()?;
        fs::write(folder.join("src/lib.rs"), "").ok()?;
        let manifest = "[package]\nname = \"cell\"\nversion = \"0.0.0\"\n[workspace]\n[dependencies]\nredis-cell = \"=0.2.2\"\n";
        fs::write(folder.join("Cargo.toml"), manifest).ok()?;
        let mut cargo = Command::new("cargo");
        cargo.args([
            "build", "--quiet", "--release", "--package", "redis-cell", "--target-dir", "target",
        ]);
        let built = cargo.current_dir(&folder).status().ok()?;
        built.success().then(|| folder.join("target/release/libredis_cell.so"))
    };
    LIBRARY.get_or_init(build).clone()
}

/// Repeats a step for some time. It returns its number of decisions. Returns the CPU time of the server for a decision, in
/// microseconds, and the decisions a second.
pub fn cpu_and_rate(
    server: &Server,
    time: Duration,
    mut step: impl FnMut() -> Result<u64>,
) -> Result<[f64; 2]> {
    let cpu = server.cpu_time();
    let (started, mut made) = (Instant::now(), 0);
    while started.elapsed() < time {
        made += step()?;
    }
    let took_s = started.elapsed().as_secs_f64();
    let cpu_us = (server.cpu_time() - cpu).as_secs_f64() * 1e6;
    Ok([cpu_us / made as f64, made as f64 / took_s])
}

/// The middle one of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The rows of a Markdown table about the run: its date, machine and versions.
pub fn environment() -> String {
    let row = |(name, command)| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("SERVER", server_binary());
        let output = shell.output().map_or(Vec::new(), |output| output.stdout);
        format!("| {name} | {} |\n", String::from_utf8_lossy(&output).trim())
    };
    // `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0`
    [
        ("date", "date -u +%F"),
        ("server", r#""$SERVER" --version | sed 's/ server v=\([^ ]*\).*/ \1/'"#),
        ("allocator", r#""$SERVER" --version | sed 's/.*malloc=\([^ ]*\).*/\1/'"#),
        ("kernel", "uname -sr"),
        ("cpu", "sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1"),
        ("cores", "nproc"),
        ("commit", "git describe --always --dirty"),
    ]
    .map(row)
    .concat()
}

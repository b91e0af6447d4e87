//! Servers to measure on, with the module, redis-cell and the peers' scripts loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::peers::Scripts;
use support::{server_binary, Clock, Conn, Server, START_US};

/// Where the effects of a call go.
#[derive(Clone, Copy, PartialEq)]
pub enum Persistence {
    /// Neither an append-only file nor a replica.
    Bare,
    /// An append-only file, which the system syncs (`appendfsync no`).
    Aof,
}

/// The clock that a server reads.
#[derive(Clone, Copy, PartialEq)]
pub enum Time {
    /// The machine's.
    Real,
    /// The benchmark's, which begins at `START_US`.
    Held,
}

/// The program under which a server runs.
#[derive(Clone, Copy, PartialEq)]
pub enum Tool {
    None,
    /// Under callgrind, which does not count yet.
    Callgrind,
}

/// A running server; dropping it ends it.
pub struct Host {
    pub server: Server,
    pub scripts: Scripts,
    clock: Time,
}

impl Host {
    pub fn start(tool: Tool, setting: Persistence, clock: Time) -> Host {
        // A held clock advances within a command, which then looks slow.
        let mut builder =
            Server::builder().config("slowlog-log-slower-than -1").clock(clock == Time::Held);
        if tool == Tool::Callgrind {
            builder = builder
                // Children too, as the server may be a shell script that starts the real one.
                .tool(["valgrind", "--tool=callgrind", "--instr-atstart=no"])
                .tool(["--trace-children=yes", "--callgrind-out-file=/dev/null"])
                // The cron and the allocator's thread run by the machine's clock. In a server that is fifty times slower they
                // would take fifty times the share.
                .config("hz 1")
                .config("dynamic-hz no")
                .config("jemalloc-bg-thread no");
        }
        if let Some(library) = redis_cell() {
            builder = builder.config(format!("loadmodule {}", library.display()));
        }
        if setting == Persistence::Aof {
            builder = builder.aof();
        }
        let server = builder.start();
        if clock == Time::Held {
            server.clock().set_us(START_US);
        }
        let scripts = Scripts::load(&mut server.conn());
        Host { server, scripts, clock }
    }

    /// The clock of a server started with `Time::Held`.
    pub fn clock(&self) -> Option<&Clock> {
        (self.clock == Time::Held).then(|| self.server.clock())
    }

    /// Sets the tick of a held clock.
    pub fn tick(&self, tick_us: i64) {
        if let Some(clock) = self.clock() {
            clock.tick_us(tick_us);
        }
    }
}

/// The library of redis-cell 0.2.2, which is built from crates.io. Without a network its rows are "not there".
fn redis_cell() -> Option<PathBuf> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("redis-cell");
        fs::create_dir_all(folder.join("src")).ok()?;
        fs::write(folder.join("src/lib.rs"), "").ok()?;
        let manifest = "[package]\nname = \"cell\"\nversion = \"0.0.0\"\n[workspace]\n[dependencies]\nredis-cell = \"=0.2.2\"\n";
        fs::write(folder.join("Cargo.toml"), manifest).ok()?;
        let target = folder.join("target");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--release", "--package", "redis-cell"]);
        let built = cargo.current_dir(&folder).env("CARGO_TARGET_DIR", &target).status().ok()?;
        built.success().then(|| target.join("release/libredis_cell.so"))
    };
    LIBRARY.get_or_init(build).clone()
}

/// A number from `INFO`.
pub fn info(conn: &mut Conn, section: &str, field: &str) -> f64 {
    let text = conn.text(["INFO", section]);
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {field}"))
}

/// CPU time that the server has used so far, in microseconds.
fn cpu_us(conn: &mut Conn) -> f64 {
    (info(conn, "cpu", "used_cpu_user") + info(conn, "cpu", "used_cpu_sys")) * 1e6
}

/// Repeats a step for some time. It returns its number of decisions. Returns the CPU time of the server for a decision, in
/// microseconds, and the decisions a second.
pub fn cpu_and_rate(
    control: &mut Conn,
    time: Duration,
    mut step: impl FnMut() -> crate::Result<usize>,
) -> crate::Result<[f64; 2]> {
    let cpu = cpu_us(control);
    let (started, mut made) = (Instant::now(), 0);
    while started.elapsed() < time {
        made += step()?;
    }
    let took_s = started.elapsed().as_secs_f64();
    Ok([(cpu_us(control) - cpu) / made as f64, made as f64 / took_s])
}

/// Describes the run: its date, machine and versions.
pub fn describe() -> Vec<(&'static str, String)> {
    let first_line = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let text = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
        text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
    };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    // `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0`
    let server = first_line(&server_binary(), &["--version"]);
    let field = |name| server.split(' ').find_map(|word| word.strip_prefix(name));
    let name = server.split(' ').next().unwrap_or_default();
    vec![
        ("date", first_line(Path::new("date"), &["-u", "+%F"])),
        ("server", format!("{name} {}", field("v=").unwrap_or_default())),
        ("allocator", field("malloc=").unwrap_or_default().to_owned()),
        ("kernel", first_line(Path::new("uname"), &["-sr"])),
        ("cpu", model.map_or("unknown", |(_, model)| model).to_owned()),
        ("cores", thread::available_parallelism().map_or(0, usize::from).to_string()),
        ("commit", first_line(Path::new("git"), &["describe", "--always", "--dirty"])),
    ]
}

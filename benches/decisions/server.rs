//! Servers to measure on, with the module and the peers' scripts loaded.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{BenchError, Client, Result};
use crate::peers::Scripts;
use crate::report::RunEnvironment;
use support::{server_binary, wait_for_sync, Builder, Clock, Server, START_US};

/// The destination of the effects of a call.
#[derive(Clone, Copy, PartialEq)]
pub enum Persistence {
    /// Neither an append-only file nor a replica.
    Bare,
    /// An append-only file, which the system syncs (`appendfsync no`).
    Aof,
    /// One replica.
    Replica,
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
    _replica: Option<Server>,
}

impl Host {
    /// A bare server by the machine's clock.
    pub fn bare() -> Result<Host> {
        Host::start(Tool::None, Persistence::Bare, Time::Real)
    }

    pub fn start(tool: Tool, setting: Persistence, clock: Time) -> Result<Host> {
        // A held clock advances within a command, which then looks slow.
        let mut builder =
            Server::builder().config("slowlog-log-slower-than -1").clock(clock == Time::Held);
        if tool == Tool::Callgrind {
            builder = under_callgrind(builder);
        }
        if let Ok(redis_cell) = env::var("REDIS_CELL") {
            builder = builder.config(format!("loadmodule {redis_cell}"));
        }
        if setting == Persistence::Aof {
            builder = builder.aof();
        }
        let server = builder.start();
        if clock == Time::Held {
            server.clock().set_us(START_US);
        }
        let scripts = Scripts::load(&mut Client::connect(server.port())?)?;
        let replica = (setting == Persistence::Replica).then(|| {
            // Not with the same clock, which would advance when the replica reads it.
            let line = format!("replicaof 127.0.0.1 {}", server.port());
            let replica = Server::builder().config(line).start();
            wait_for_sync(&server, &replica);
            replica
        });
        Ok(Host { server, scripts, clock, _replica: replica })
    }

    pub fn connect(&self) -> Result<Client> {
        Client::connect(self.server.port())
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

fn under_callgrind(builder: Builder) -> Builder {
    builder
        // Children too, as the server may be a shell script that starts the real one.
        .tool(["valgrind", "--tool=callgrind", "--instr-atstart=no", "--trace-children=yes"])
        .tool(["--callgrind-out-file=/dev/null"])
        // The cron and the allocator's thread run by the machine's clock. In a server that is fifty times slower they would
        // take fifty times the share.
        .config("hz 1")
        .config("dynamic-hz no")
        .config("jemalloc-bg-thread no")
}

/// A number from `INFO`.
pub fn info(client: &mut Client, section: &str, field: &str) -> Result<f64> {
    let text = client.call(&format!("INFO {section}"))?;
    text.text()
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok())
        .ok_or_else(|| BenchError::other(format!("INFO {section} has no number {field}")))
}

/// CPU time that the server has used so far, in microseconds.
fn cpu_us(client: &mut Client) -> Result<f64> {
    let user = info(client, "cpu", "used_cpu_user")?;
    let system = info(client, "cpu", "used_cpu_sys")?;
    Ok((user + system) * 1e6)
}

/// Repeats a step for some time. It returns its number of decisions. Returns the CPU time of the server for a decision, in
/// microseconds, and the decisions a second.
pub fn cpu_and_rate(
    control: &mut Client,
    time: Duration,
    mut step: impl FnMut() -> Result<usize>,
) -> Result<[f64; 2]> {
    let cpu = cpu_us(control)?;
    let (started, mut made) = (Instant::now(), 0);
    while started.elapsed() < time {
        made += step()?;
    }
    let took_s = started.elapsed().as_secs_f64();
    Ok([(cpu_us(control)? - cpu) / made as f64, made as f64 / took_s])
}

/// Describes the run: its date, machine and versions.
pub fn describe() -> Result<RunEnvironment> {
    let first_line = |program: &Path, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program).args(arguments).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().next().unwrap_or_default().to_string())
    };
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    // `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0`
    let server = first_line(&server_binary(), &["--version"])?;
    let field = |name| server.split(' ').find_map(|word| word.strip_prefix(name));
    let name = server.split(' ').next().unwrap_or_default();
    Ok(vec![
        ("date", first_line(Path::new("date"), &["-u", "+%F"])?),
        ("server", format!("{name} {}", field("v=").unwrap_or_default())),
        ("allocator", field("malloc=").unwrap_or_default().to_string()),
        ("kernel", first_line(Path::new("uname"), &["-sr"])?),
        ("cpu", model.map_or("unknown", |(_, model)| model).to_string()),
        ("cores", thread::available_parallelism()?.to_string()),
        ("commit", first_line(Path::new("git"), &["describe", "--always", "--dirty"])?),
    ])
}

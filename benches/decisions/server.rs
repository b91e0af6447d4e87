//! Fresh servers with the module loaded.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, Error, Result};
use crate::clock::{self, Clock};
use crate::peers::Scripts;
use crate::report::Environment;

/// What every server is started from.
pub struct Installation {
    server: PathBuf,
    module: PathBuf,
    clock_library: PathBuf,
    /// Holds logs, clock files and the results.
    pub directory: PathBuf,
}

impl Installation {
    /// `REDIS_SERVER` (default: redis-server from the path) with the release build of this crate.
    pub fn find() -> Result<Installation> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
        let server = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let directory = target.join("bench");
        fs::create_dir_all(&directory)?;
        let module = target.join("release/libredis_ratelimit.so");
        if !module.exists() {
            return Err(Error::other(format!(
                "{} is missing: cargo build --release",
                module.display()
            )));
        }
        let clock_library = clock::build_library(&directory)?;
        Ok(Installation { server: server.into(), module, clock_library, directory })
    }

    /// What a reader of the figures must know.
    pub fn describe(&self) -> Result<Environment> {
        let first_line = |program: &Path, arguments: &[&str]| -> Result<String> {
            let output = Command::new(program).args(arguments).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text.lines().next().unwrap_or_default().to_string())
        };
        let cpu = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        // `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0`
        let server = first_line(&self.server, &["--version"])?;
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
}

/// How a server is to be run.
#[derive(Clone, Copy, PartialEq)]
pub enum Tool {
    /// On the bare machine.
    None,
    /// Under callgrind, not yet counting.
    Callgrind,
}

/// Which clock a server reads.
#[derive(Clone, Copy, PartialEq)]
pub enum Time {
    /// The machine's.
    Real,
    /// The benchmark's.
    Held,
}

/// A running server; dropping it ends it.
pub struct Server {
    process: Child,
    port: u16,
    clock: Option<Clock>,
    pub scripts: Scripts,
}

impl Server {
    /// Starts a server with the module and the peers' scripts loaded.
    pub fn start(installation: &Installation, tool: Tool, time: Time) -> Result<Server> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let name = format!("server-{}", SERIAL.fetch_add(1, Ordering::Relaxed));
        let log = installation.directory.join(format!("{name}.log"));
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = match tool {
            Tool::None => Command::new(&installation.server),
            Tool::Callgrind => Command::new("valgrind"),
        };
        if tool == Tool::Callgrind {
            // Children, as the server may be a shell script that starts the real one in its place.
            command.args(["--tool=callgrind", "--instr-atstart=no", "--trace-children=yes"]);
            command.arg("--callgrind-out-file=/dev/null").arg(&installation.server);
            // The cron works by the machine's clock: in a server slowed down fifty times it would weigh as much more.
            command.args(["--hz", "1", "--dynamic-hz", "no"]);
        }
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--maxclients", "10000", "--loadmodule"])
            .arg(&installation.module)
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        let clock = match time {
            Time::Real => None,
            Time::Held => {
                let clock = Clock::create(installation.directory.join(format!("{name}.clock")))?;
                command.env("LD_PRELOAD", &installation.clock_library);
                command.env("BENCH_CLOCK", &clock.path);
                Some(clock)
            }
        };
        let process = command.spawn().map_err(|error| {
            Error::other(format!("{}: {error}", command.get_program().to_string_lossy()))
        })?;
        let mut server = Server { process, port, clock, scripts: Scripts::default() };
        let mut client = server.wait_until_ready(&log)?;
        server.scripts = Scripts::load(&mut client)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<Client> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Ok(mut client) = self.connect() {
                if client.call("PING").is_ok() {
                    return Ok(client);
                }
            }
            if self.process.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(Error::other(format!(
                    "the server did not start:\n{}",
                    fs::read_to_string(log)?
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn connect(&self) -> Result<Client> {
        Client::connect(self.port)
    }

    /// The process; callgrind keeps it.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// The clock of a server started with `Time::Held`.
    pub fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    /// Sets the tick of a held clock.
    pub fn tick(&self, tick_us: i64) -> Result<()> {
        match &self.clock {
            Some(clock) => Ok(clock.tick(tick_us)?),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An orderly end first, so that valgrind removes its pipes in /tmp. The connection closes without a reply.
        let asked = self.connect().map(|mut client| client.call("SHUTDOWN NOSAVE"));
        let deadline = Instant::now() + Duration::from_secs(10);
        while asked.is_ok() && Instant::now() < deadline {
            if let Ok(Some(_)) = self.process.try_wait() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // Nothing is left to do about a process that cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A number from `INFO`.
pub fn info(client: &mut Client, section: &str, field: &str) -> Result<f64> {
    let text = client.call(&format!("INFO {section}"))?;
    text.text()
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok())
        .ok_or_else(|| Error::other(format!("INFO {section} has no number {field}")))
}

/// CPU time that the server has used so far, in microseconds.
pub fn cpu_us(client: &mut Client) -> Result<f64> {
    let user = info(client, "cpu", "used_cpu_user")?;
    let system = info(client, "cpu", "used_cpu_sys")?;
    Ok((user + system) * 1e6)
}

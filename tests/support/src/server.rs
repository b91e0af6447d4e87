use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::{panicking, sleep};
use std::time::{Duration, Instant};
use std::{env, io};

use redis_client::Value;

use super::client::{error_line, text};
use super::wait::slowness;
use super::{eventually, root, target_dir, Clock, Conn, SOON};

/// A way to stop a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// SHUTDOWN SAVE: writes an RDB file.
    Save,
    /// SHUTDOWN NOSAVE.
    NoSave,
    /// SIGKILL, as a crash would.
    Kill,
}

/// The kind and the release of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Version {
    /// Valkey, not Redis.
    pub is_valkey: bool,
    /// Its own release: (8, 1) is Valkey 8.1 or Redis 8.1.
    pub release: (u32, u32),
}

impl Version {
    /// Is true for Redis from this release on, and for each Valkey, which began as Redis 7.2.
    pub fn is_from(&self, major: u32, minor: u32) -> bool {
        self.is_valkey || self.release >= (major, minor)
    }

    /// Is true for Redis before 8.2, which asks the module for the keys of a command. Other servers would ask in their I/O
    /// threads, so the module gives them a key specification.
    pub fn asks_modules_for_keys(&self) -> bool {
        !self.is_valkey && self.release < (8, 1)
    }

    /// Is true if modules can add ACL categories.
    pub fn has_own_categories(&self) -> bool {
        self.release >= if self.is_valkey { (8, 0) } else { (7, 4) }
    }

    /// Skips a test on Redis before 7.0, which has load arguments but no settings of modules.
    pub fn lacks_settings(self) -> bool {
        self.lacks("CONFIG for modules", (7, 0))
    }

    /// Skips a test on Redis before that release.
    pub fn lacks(self, what: &str, since: (u32, u32)) -> bool {
        let (since, point) = since;
        self.is_skipped(!self.is_from(since, point), &format!("{what} came with {since}.{point}"))
    }

    /// Skips a test on a server without atomic slot migration.
    pub fn lacks_atomic_migration(self) -> bool {
        let since = if self.is_valkey { (9, 0) } else { (8, 4) };
        let what = "atomic slot migration came with Redis 8.4 and Valkey 9.0";
        self.is_skipped(self.release < since, what)
    }

    /// Skips a test on a server without a way to hold up an atomic slot migration.
    pub fn lacks_held_migration(self) -> bool {
        let what = "DEBUG SLOTMIGRATION came with Valkey 9.0";
        self.is_skipped(!self.is_valkey || self.release < (9, 0), what)
    }

    /// Notes that this test is skipped, for another reason than the release.
    pub fn skip(self, because: &str) {
        self.is_skipped(true, because);
    }

    /// Prints the note past the harness, which keeps the output of tests that pass: scripts/test.sh counts the notes.
    fn is_skipped(self, is_skipped: bool, because: &str) -> bool {
        if is_skipped {
            let (major, minor) = self.release;
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let because = format!("{because}, this is {major}.{minor}");
            let line = format!("skipped {test}: {because}: make test-servers\n");
            let _ = io::stderr().write_all(line.as_bytes());
        }
        is_skipped
    }

    /// The release of the server that tests run on, before one is started.
    pub fn under_test() -> Version {
        let binary = server_binary();
        let output = Command::new(&binary).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("cannot run {binary:?}: {error}"));
        // "Redis server v=7.0.15 sha=..." or "Valkey server v=8.1.1 sha=...".
        let line = String::from_utf8_lossy(&output.stdout);
        let release = line.split_once("v=").and_then(|(_, rest)| {
            let mut numbers = rest.split('.').map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        });
        let release = release.unwrap_or_else(|| panic!("no version in {line:?} of {binary:?}"));
        Version { is_valkey: line.starts_with("Valkey"), release }
    }
}

/// The options of a server. `start` starts it.
pub struct Builder {
    module: bool,
    module_args: Vec<String>,
    config: Vec<String>,
    env: Vec<(OsString, OsString)>,
    tool: Vec<OsString>,
    dir: Option<PathBuf>,
    own_clock: bool,
    clock: Option<Arc<Clock>>,
    cluster: bool,
}

impl Builder {
    /// With the module, which is the default, or without.
    pub fn module(mut self, with: bool) -> Self {
        self.module = with;
        self
    }

    /// Arguments of the module, as MODULE LOAD has them.
    pub fn module_args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.module_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A line of the configuration file, which CONFIG REWRITE may change.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// A variable of the server's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Under a program such as valgrind, which has the server's command line as its last arguments. The server then ends
    /// with SHUTDOWN, so that the program can report.
    pub fn tool<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.tool.extend(words.into_iter().map(Into::into));
        self
    }

    /// A directory that exists and stays, to load what another server left there.
    pub fn dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.dir = Some(path.into());
        self
    }

    /// With a clock that the test can set, see [`Server::clock`].
    pub fn clock(mut self, held: bool) -> Self {
        self.own_clock = held;
        self
    }

    /// With the clock of `other`, if that has one.
    pub fn clock_of(mut self, other: &Server) -> Self {
        self.clock = other.clock.clone();
        self
    }

    /// With an append-only file. It is written before each reply, so a crash of the process loses
    /// nothing, and is never rewritten unasked.
    pub fn aof(self) -> Self {
        self.config("appendonly yes")
            .config("appendfsync no")
            .config("auto-aof-rewrite-percentage 0")
    }

    /// A cluster's only node, which has all the slots.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self.config("cluster-enabled yes")
    }

    /// A replica of `master`, by the same clock. [`Server::replica_of`] waits for the copy as well.
    pub fn replica_of(self, master: &Server) -> Self {
        let line = format!("replicaof 127.0.0.1 {}", master.port());
        self.clock_of(master).config(line)
    }

    /// Starts the server and connects to it.
    #[track_caller]
    pub fn connect(self) -> (Server, Conn) {
        let server = self.start();
        let conn = server.conn();
        (server, conn)
    }

    /// Starts the server and waits until it answers.
    #[track_caller]
    pub fn start(mut self) -> Server {
        let version = Version::under_test();
        let owns_dir = self.dir.is_none();
        let dir = self.dir.take().unwrap_or_else(temporary_dir).canonicalize().unwrap();
        if self.own_clock {
            self.clock = Some(Arc::new(Clock::create(dir.join("clock"))));
        }
        let clock = self.clock.take();
        let cluster = self.cluster;
        let mut server =
            Server { builder: self, version, port: 0, dir, owns_dir, clock, process: None, pid: 0 };
        // Between choosing a port and binding it, another process may take it.
        loop {
            server.port = free_port();
            server.write_config();
            if server.spawn() {
                break;
            }
        }
        if cluster {
            server.take_all_slots();
        }
        server
    }
}

/// A running server. It is killed when dropped, and its directory removed.
pub struct Server {
    builder: Builder,
    version: Version,
    port: u16,
    dir: PathBuf,
    owns_dir: bool,
    clock: Option<Arc<Clock>>,
    process: Option<Child>,
    /// The process id of the server itself. It is not that of `process` if a script started the server without exec.
    pid: i32,
}

impl Server {
    /// A server with the module and nothing else special, and a connection to it.
    #[track_caller]
    pub fn connect() -> (Server, Conn) {
        Server::builder().connect()
    }

    /// A server with the module and nothing else special.
    #[track_caller]
    pub fn start() -> Server {
        Server::builder().start()
    }

    /// The options of a server, at first the default ones.
    pub fn builder() -> Builder {
        Builder {
            module: true,
            module_args: Vec::new(),
            config: Vec::new(),
            env: Vec::new(),
            tool: Vec::new(),
            dir: None,
            own_clock: false,
            clock: None,
            cluster: false,
        }
    }

    /// Sends a command on a new connection; none if the server refuses or resets it.
    pub fn try_ask(&self, words: impl super::CommandWords) -> Option<Value> {
        Conn::open(self.port).and_then(|mut conn| conn.try_cmd(words)).ok()
    }

    /// A new connection, RESP2.
    #[track_caller]
    pub fn conn(&self) -> Conn {
        Conn::open(self.port).expect("connect to the server")
    }

    /// A new connection, RESP3.
    #[track_caller]
    pub fn conn_resp3(&self) -> Conn {
        let mut conn = self.conn();
        let hello = conn.cmd("HELLO 3");
        assert!(matches!(hello, Value::Map(_)), "{hello:?}");
        conn
    }

    /// The address for client libraries.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port on 127.0.0.1; a restart keeps it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process, for /proc and signals.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The processor time that the process has used until now.
    pub fn cpu_time(&self) -> Duration {
        // SAFETY: asks for a clock of a child that is not reaped yet, and writes to places of its own.
        let used = unsafe {
            let (mut clock, mut used) = (0, std::mem::zeroed::<libc::timespec>());
            assert_eq!(libc::clock_getcpuclockid(self.pid, &mut clock), 0);
            assert_eq!(libc::clock_gettime(clock, &mut used), 0);
            used
        };
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    }

    /// Stops the process with SIGSTOP until the guard is dropped.
    pub fn freeze(&self) -> Frozen {
        // SAFETY: sends a signal to a child that is not reaped yet.
        unsafe { libc::kill(self.pid, libc::SIGSTOP) };
        Frozen(self.pid)
    }

    /// The folder of the server's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kind and the release.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The clock that the server reads.
    #[track_caller]
    pub fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("a server built with clock(true)")
    }

    /// The clock, to keep while the server is stopped and started.
    #[track_caller]
    pub fn shared_clock(&self) -> Arc<Clock> {
        Arc::clone(self.clock.as_ref().expect("a server built with clock(true)"))
    }

    /// A connection of a user with these rules, as ACL SETUSER has them.
    #[track_caller]
    pub fn as_user(&self, rules: &str) -> Conn {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("user{}", COUNT.fetch_add(1, Relaxed));
        assert_eq!(self.conn().text(format!("ACL SETUSER {name} on nopass {rules}")), "OK");
        let mut conn = self.conn();
        assert_eq!(conn.text(format!("AUTH {name} x")), "OK");
        conn
    }

    /// The value of a field of INFO.
    pub fn info(&self, field: &str) -> Option<String> {
        let info = self.conn().text("INFO everything");
        let value = |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned);
        info.lines().find_map(value)
    }

    /// The value of a field of INFO that is a number.
    #[track_caller]
    pub fn info_number(&self, field: &str) -> i64 {
        self.info(field).unwrap_or_else(|| panic!("INFO has no {field}")).parse().unwrap()
    }

    /// Everything the server has logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.join("server.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Is true while the process runs. If it ended by anything but `stop`, the test fails when the server is dropped.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    /// Takes the server down; its files stay until it is dropped.
    #[track_caller]
    pub fn stop(&mut self, how: Stop) {
        match how {
            Stop::Kill => return self.kill(),
            Stop::Save => self.shutdown("SHUTDOWN SAVE"),
            Stop::NoSave => self.shutdown("SHUTDOWN NOSAVE"),
        }
        let process = self.process.as_mut().unwrap();
        eventually(SOON, || process.try_wait().unwrap().is_some());
        self.process = None;
    }

    /// Takes the server down and starts it again on the same port and files.
    #[track_caller]
    pub fn restart(&mut self, how: Stop) {
        self.stop(how);
        let begin = Instant::now();
        while !self.spawn() {
            assert!(begin.elapsed() < SOON, "port {} stays taken", self.port);
        }
        if self.builder.cluster {
            self.wait_for_cluster();
        }
    }

    #[track_caller]
    fn shutdown(&mut self, line: &str) {
        // The only reply there can be is a refusal.
        if let Ok(reply) = self.conn().try_cmd(line) {
            panic!("{line}: {}", error_line(&reply));
        }
    }

    /// Lets the server shut down by itself, so that a tool such as valgrind reports what was not freed.
    fn end_orderly(&mut self) {
        let Some(process) = &mut self.process else { return };
        if !matches!(process.try_wait(), Ok(None)) || self.pid == 0 {
            return;
        }
        // SAFETY: sends a signal. The process that started this one is not reaped yet.
        unsafe { libc::kill(self.pid, libc::SIGTERM) };
        let begin = Instant::now();
        while matches!(process.try_wait(), Ok(None)) && begin.elapsed() < SOON {
            sleep(Duration::from_millis(10));
        }
    }

    fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if matches!(process.try_wait(), Ok(None)) && self.pid != 0 {
            // SAFETY: sends a signal. The process that started this one is not reaped yet.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
        let _ = process.kill();
        let _ = process.wait();
    }

    fn write_config(&self) {
        let mut lines = vec![
            "bind 127.0.0.1".into(),
            format!("port {}", self.port),
            format!("dir {:?}", self.dir),
            format!("pidfile {:?}", self.dir.join("server.pid")),
            "save \"\"".into(),
            // Copies begin at once, and nothing but commands goes into the stream, so that its
            // growth can be asserted; a clock that jumps must not end the link.
            "repl-diskless-sync-delay 0".into(),
            "repl-ping-replica-period 1000000".into(),
            "repl-timeout 1000000000".into(),
        ];
        if self.clock.is_some() {
            // The allocator's thread sleeps until a moment of the held clock; where real time is past it, it never sleeps.
            lines.push("jemalloc-bg-thread no".into());
        }
        if self.version.is_from(7, 0) {
            lines.push("enable-debug-command yes".into());
            lines.push("enable-module-command yes".into());
        }
        if self.builder.module {
            let args = self.builder.module_args.join(" ");
            lines.push(format!("loadmodule {:?} {args}", module_path()));
        }
        if let Ok(threads) = env::var("RATELIMIT_IO_THREADS") {
            lines.push(format!("io-threads {threads}"));
        }
        lines.extend(self.builder.config.iter().cloned());
        fs::write(self.dir.join("server.conf"), lines.join("\n") + "\n").unwrap();
    }

    /// Starts the process and waits until it answers; false if the port is taken.
    #[track_caller]
    fn spawn(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.dir.join("server.log"));
        let log = log.expect("open the server's log");
        let logged = log.metadata().unwrap().len() as usize;
        let mut words = self.builder.tool.clone();
        words.push(server_binary().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.arg(self.dir.join("server.conf"));
        command.stdin(process::Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        if let Some(clock) = &self.clock {
            command.envs(clock.env());
        }
        command.envs(self.builder.env.iter().map(|(name, value)| (name, value)));
        self.pid = 0;
        self.process = Some(command.spawn().expect("start the server"));

        let begin = Instant::now();
        loop {
            let exited = self.process.as_mut().unwrap().try_wait().unwrap();
            let log = self.log().split_off(logged);
            if let Some(status) = exited {
                self.process = None;
                if log.contains("already in use") {
                    return false;
                }
                panic!("the server did not start: {status}");
            }
            // Its own log first, because another server may answer on the port.
            if log.contains("Ready to accept connections") && self.answers() {
                let pid = fs::read_to_string(self.dir.join("server.pid")).unwrap();
                self.pid = pid.trim().parse().unwrap();
                return true;
            }
            assert!(begin.elapsed() < SOON * slowness(), "the server does not answer");
            sleep(Duration::from_millis(1));
        }
    }

    /// Is true if PING has a reply, even if that asks for a password.
    fn answers(&self) -> bool {
        let pong = |mut conn: Conn| -> io::Result<Value> { conn.try_cmd("PING") };
        match Conn::open(self.port).and_then(pong) {
            Ok(Value::ServerError(error)) => error.code() != "LOADING",
            reply => reply.is_ok(),
        }
    }

    fn take_all_slots(&self) {
        let reply = if self.version.is_from(7, 0) {
            self.conn().cmd("CLUSTER ADDSLOTSRANGE 0 16383")
        } else {
            let slots = (0..16384).map(|slot| slot.to_string());
            let words = ["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            self.conn().cmd(words.into_iter().chain(slots).collect::<Vec<_>>())
        };
        assert_eq!(text(&reply), "OK");
        self.wait_for_cluster();
    }

    fn wait_for_cluster(&self) {
        let mut conn = self.conn();
        eventually(SOON, || conn.text("CLUSTER INFO").contains("cluster_state:ok"));
    }
}

/// A server that is stopped with SIGSTOP until this is dropped.
pub struct Frozen(i32);

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: as in `freeze`.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let died = match &mut self.process {
            Some(process) => process.try_wait().ok().flatten(),
            None => None,
        };
        if slowness() > 1 || !self.builder.tool.is_empty() {
            self.end_orderly();
        }
        self.kill();
        if panicking() || died.is_some() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            // What a server that crashes says of itself is long, and begins with what matters.
            let crash = lines.iter().position(|line| line.contains("BUG REPORT START"));
            let last = match crash {
                Some(at) => &lines[at.saturating_sub(20)..lines.len().min(at + 100)],
                None => &lines[lines.len().saturating_sub(60)..],
            };
            eprintln!("--- log of the server on port {}\n{}\n---", self.port, last.join("\n"));
        }
        if self.owns_dir {
            let _ = fs::remove_dir_all(&self.dir);
        }
        if let (Some(status), false) = (died, panicking()) {
            panic!("the server died during the test: {status}");
        }
    }
}

/// The server, `REDIS_SERVER` or the one on the search path.
pub fn server_binary() -> PathBuf {
    env::var_os("REDIS_SERVER").unwrap_or("redis-server".into()).into()
}

/// The module's file.
pub fn module_path() -> String {
    let default = || target_dir().join("release/libredis_ratelimit.so");
    let path = root().join(env::var_os("RATELIMIT_SO").map_or_else(default, PathBuf::from));
    assert!(path.exists(), "no module at {path:?}: run `make build`");
    path.into_os_string().into_string().expect("a path of plain text")
}

fn temporary_dir() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ratelimit-test-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
    let dir = env::temp_dir().join(name);
    // Left by a process of the same number that was killed.
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).expect("create the server's directory");
    dir
}

/// A port that is free now, with the cluster bus's port 10000 above it.
pub fn free_port() -> u16 {
    let port = |number| TcpListener::bind(("127.0.0.1", number))?.local_addr().map(|at| at.port());
    loop {
        let number: u16 = port(0).expect("a free port");
        if number.checked_add(10_000).is_some_and(|bus| port(bus).is_ok()) {
            return number;
        }
    }
}

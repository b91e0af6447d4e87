use std::fs::{self, File};
use std::process::{Command, Stdio};

use redis_client::Value;

use super::client::flat;
use super::{eventually, free_port, server_binary, Conn, Running, Server, SOON};

/// A redis-sentinel process that watches one master, by the name `limits`. It is killed when dropped.
pub struct Sentinel {
    port: u16,
    _process: Running,
}

impl Sentinel {
    /// Starts it, with `config` as more lines of its configuration and its files in the folder of `home`. The quorum is the
    /// number of Sentinels that must agree that the master is down.
    #[track_caller]
    pub fn start(home: &Server, master: &Server, quorum: u32, config: &[&str]) -> Sentinel {
        let port = free_port();
        let file = home.dir().join(format!("sentinel-{port}.conf"));
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {:?}", home.dir()),
            format!("sentinel monitor limits 127.0.0.1 {} {quorum}", master.port()),
        ];
        fs::write(&file, format!("{}\n{}\n", lines.join("\n"), config.join("\n"))).unwrap();
        let log = File::create(file.with_extension("log")).unwrap();
        let mut command = Command::new(server_binary());
        command.arg(&file).arg("--sentinel");
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let sentinel = Sentinel { port, _process: Running::start(&mut command) };
        eventually(SOON, || sentinel.ask("PING").is_some());
        sentinel
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a command; none if there is no reply.
    pub fn ask(&self, line: &str) -> Option<Value> {
        Conn::open(self.port).ok()?.try_cmd(line).ok()
    }

    /// The port of the master that it names.
    pub fn master_port(&self) -> Option<u16> {
        flat(&self.ask("SENTINEL GET-MASTER-ADDR-BY-NAME limits")?).get(1)?.parse().ok()
    }

    /// Waits until it knows this many replicas of the master and this many other Sentinels.
    #[track_caller]
    pub fn wait_until_knows(&self, replicas: usize, others: usize) {
        let knows = |what: &str, number| {
            let reply = self.ask(&format!("SENTINEL {what} limits"));
            matches!(reply, Some(Value::Array(all)) if all.len() == number)
        };
        eventually(SOON, || knows("REPLICAS", replicas) && knows("SENTINELS", others));
    }
}

use std::fs;

use redis_client::{Parser, Value};

use super::client::{as_line, text};
use super::{eventually, Conn, Server, SOON};

/// Waits until `replica` has everything that `master` has sent.
#[track_caller]
pub fn wait_for_sync(master: &Server, replica: &Server) {
    eventually(SOON, || {
        replica.info("master_link_status").as_deref() == Some("up")
            && replica.repl_offset() == master.repl_offset()
    });
}

/// The value and the expiry of a key, which must be the same on each server that has it.
pub fn state(conn: &mut Conn, key: &str) -> Vec<Value> {
    let value = match conn.text(["TYPE", key]).as_str() {
        "string" => conn.cmd(["GET", key]),
        "zset" => conn.cmd(["ZRANGE", key, "0", "-1", "WITHSCORES"]),
        other => Value::SimpleString(other.into()),
    };
    let expires = conn.cmd(["PEXPIRETIME", key]);
    vec![value, expires]
}

/// Waits until `replica` has everything, and asserts that a key is the same there.
#[track_caller]
pub fn assert_in_sync(master: &Server, replica: &Server, key: &str) {
    wait_for_sync(master, replica);
    assert_eq!(state(&mut master.conn(), key), state(&mut replica.conn(), key), "{key}");
}

impl Server {
    /// A server and a replica of it that has copied it, both with the module.
    pub fn with_replica() -> (Server, Server) {
        let master = Server::start();
        let replica = Server::replica_of(&master, true);
        (master, replica)
    }

    /// A replica of `master` that has copied it, by the same clock, with or without the module.
    pub fn replica_of(master: &Server, with_module: bool) -> Server {
        let replica = Server::builder().module(with_module).replica_of(master).start();
        wait_for_sync(master, &replica);
        replica
    }

    /// Bytes of the replication stream until now. A server that never had a replica counts none.
    pub fn repl_offset(&self) -> i64 {
        self.info_number("master_repl_offset")
    }

    /// Bytes that `work` adds to the replication stream. It needs a replica, see `repl_offset`.
    pub fn repl_grows<T>(&self, work: impl FnOnce() -> T) -> i64 {
        let before = self.repl_offset();
        work();
        self.repl_offset() - before
    }

    /// The append-only file without its base, in the order in which it was written.
    pub fn aof(&self) -> Vec<u8> {
        let Ok(folder) = fs::read_dir(self.dir().join("appendonlydir")) else {
            return fs::read(self.dir().join("appendonly.aof")).expect("read the AOF");
        };
        let mut parts: Vec<_> = folder
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .collect();
        // The names differ in a number alone, so the shorter one is the older.
        parts.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        parts.iter().flat_map(|path| fs::read(path).expect("read the AOF")).collect()
    }

    /// The commands that `work` adds to the append-only file, each as a line, without SELECT.
    pub fn aof_grows_by<T>(&self, work: impl FnOnce() -> T) -> Vec<String> {
        let before = self.aof().len();
        work();
        as_commands(&self.aof()[before..])
    }

    /// Does the same without MULTI and EXEC: before 7.0 what a module replicates always comes as a transaction.
    pub fn effects_of<T>(&self, work: impl FnOnce() -> T) -> Vec<String> {
        let mut lines = self.aof_grows_by(work);
        lines.retain(|line| line != "MULTI" && line != "EXEC");
        lines
    }
}

/// The commands in a piece of an append-only file, each as a line, without SELECT.
fn as_commands(mut bytes: &[u8]) -> Vec<String> {
    let mut parser = Parser::new();
    let mut lines = Vec::new();
    while let Ok(Value::Array(words)) = parser.parse_value(&mut bytes) {
        let words: Vec<_> = words.iter().map(|word| text(word).into_bytes()).collect();
        lines.push(as_line(&words));
    }
    lines.retain(|line| !line.starts_with("SELECT "));
    lines
}

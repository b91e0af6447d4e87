use std::thread::sleep;
use std::time::{Duration, Instant};

use redis_client::Value;

use super::client::elements;
use super::{eventually, CommandWords, Conn, Server, SOON};

impl Server {
    /// How many calls wait, as INFO ratelimit says.
    pub fn waiting(&self) -> usize {
        self.figure("waiting") as usize
    }

    /// A number of INFO ratelimit.
    pub fn figure(&self, field: &str) -> i64 {
        self.number(&format!("ratelimit_{field}"))
    }

    /// A new connection on which this call waits, behind all calls that wait already.
    #[track_caller]
    pub fn wait_in_line(&self, words: impl CommandWords) -> Conn {
        self.wait_on(self.conn(), words)
    }

    /// The same, and the number of the connection, as in CLIENT KILL ID and CLIENT UNBLOCK.
    #[track_caller]
    pub fn wait_with_id(&self, words: impl CommandWords) -> (Conn, i64) {
        let mut conn = self.conn();
        let id = conn.id();
        (self.wait_on(conn, words), id)
    }

    /// `wait_in_line` where the wait may be short: it is not asked whether it has begun.
    pub fn wait_shortly(&self, words: impl CommandWords) -> Conn {
        let mut conn = self.conn();
        conn.send(words);
        sleep(Duration::from_millis(20));
        conn
    }

    /// `wait_in_line`, on a connection that is there.
    #[track_caller]
    pub fn wait_on(&self, mut conn: Conn, words: impl CommandWords) -> Conn {
        let before = self.waiting();
        conn.send(words);
        eventually(SOON, || self.waiting() == before + 1);
        conn
    }

    /// Waits until this many calls wait.
    #[track_caller]
    pub fn wait_until_waiting(&self, number: usize) {
        eventually(SOON, || self.waiting() == number);
    }

    /// Asserts that no call waits any more, by the counts of the module and of the server.
    #[track_caller]
    pub fn expect_no_waiting_calls(&self) {
        eventually(SOON, || {
            self.waiting() == 0 && self.info("blocked_clients").as_deref() == Some("0")
        });
    }
}

/// How long the reply takes from now on.
#[track_caller]
pub fn time_to_reply(conn: &mut Conn) -> (Duration, Value) {
    let begin = Instant::now();
    let reply = conn.recv();
    (begin.elapsed(), reply)
}

/// The first integer of an answer: 0 is allowed.
#[track_caller]
pub fn limited(reply: &Value) -> i64 {
    match elements(reply).first() {
        Some(Value::Int(limited)) => *limited,
        _ => panic!("no answer: {reply:?}"),
    }
}

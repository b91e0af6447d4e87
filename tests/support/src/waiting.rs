use std::thread::sleep;
use std::time::{Duration, Instant};

use redis_client::Value;

use super::client::elements;
use super::{eventually, CommandWords, Conn, Server, SOON};

impl Server {
    /// The number of calls that wait.
    pub fn waiting(&self) -> usize {
        self.info_ratelimit("waiting") as usize
    }

    /// The value of a field of INFO ratelimit that is a number.
    pub fn info_ratelimit(&self, field: &str) -> i64 {
        self.info_number(&format!("ratelimit_{field}"))
    }

    /// Opens a connection on which this call waits, behind all calls that wait already.
    #[track_caller]
    pub fn wait_in_line(&self, words: impl CommandWords) -> Conn {
        self.wait_on(self.conn(), words)
    }

    /// Does the same, and returns the id for CLIENT KILL and CLIENT UNBLOCK too.
    #[track_caller]
    pub fn wait_with_id(&self, words: impl CommandWords) -> (Conn, i64) {
        let mut conn = self.conn();
        let id = conn.id();
        (self.wait_on(conn, words), id)
    }

    /// Does the same for a wait that may be short: it sleeps instead of watching for the wait to begin.
    pub fn wait_shortly(&self, words: impl CommandWords) -> Conn {
        let mut conn = self.conn();
        conn.send(words);
        sleep(Duration::from_millis(20));
        conn
    }

    /// Has this call wait on a connection, behind all calls that wait already.
    #[track_caller]
    pub fn wait_on(&self, mut conn: Conn, words: impl CommandWords) -> Conn {
        let before = self.waiting();
        conn.send(words);
        eventually(SOON, || self.waiting() == before + 1);
        conn
    }

    /// Lets timers of the module that are due fire. They run in real time even if the clock is held, and what they do within
    /// a millisecond or two may be nothing that a command shows.
    pub fn let_timers_fire(&self) {
        sleep(Duration::from_millis(50));
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

impl Conn {
    /// Asserts that no reply comes for a while: the call waits.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        assert!(self.silent_for(Duration::from_millis(120)), "a reply came");
    }
}

/// A call that waits for the only slot of the key `k`.
pub fn waits(id: &str) -> String {
    format!("RL.ACQUIRE k 1 0 1 ID {id} LEASE 600000 BLOCK 0")
}

/// Receives a reply and measures the time until it comes.
#[track_caller]
pub fn time_to_reply(conn: &mut Conn) -> (Duration, Value) {
    let begin = Instant::now();
    let reply = conn.recv();
    (begin.elapsed(), reply)
}

/// The first integer of a reply: 0 is allowed.
#[track_caller]
pub fn limited(reply: &Value) -> i64 {
    match elements(reply).first() {
        Some(Value::Int(limited)) => *limited,
        _ => panic!("no decision: {reply:?}"),
    }
}

//! The same calls against different limits, on a real server.

use std::collections::VecDeque;
use std::iter::once;
use std::time::Duration;

use support::{ints, limited, unix_us, Conn, Server, Value};

/// The step of the clock while calls wait. Everything here happens on such steps.
const STEP_MS: i64 = 100;
const WAIT_MS: i64 = 20_000;
const MINUTE_MS: i64 = 60_000;
/// The number of checks, a millisecond each, before a call must wait or have its reply.
const PATIENCE: u32 = 10_000;

/// Calls at fixed times. Times are in milliseconds after midnight, below 0 before it.
pub struct Traffic {
    pub name: &'static str,
    pub title: &'static str,
    pub calls_ms: Vec<i64>,
    /// The first and the last moment of the picture.
    pub shown_ms: (i64, i64),
}

pub struct DrawnLimit {
    pub words: &'static str,
    /// `key` is the key.
    pub command: &'static str,
    /// The most calls that may go ahead in any 60 seconds.
    pub bound: usize,
}

/// 15 a minute, each in its own way.
pub const LIMITS: [DrawnLimit; 9] = [
    DrawnLimit {
        words: "a steady rate with bursts",
        command: "RL.THROTTLE key 14 15 60s",
        bound: 30,
    },
    DrawnLimit {
        words: "... wait in line",
        command: "RL.THROTTLE key 14 15 60s BLOCK 20s",
        bound: 30,
    },
    DrawnLimit {
        words: "... book, and sleep",
        command: "RL.THROTTLE key 14 15 60s AHEAD 20s",
        bound: 30,
    },
    DrawnLimit { words: "any 60 seconds, exact", command: "RL.WINDOW key 15 60s", bound: 15 },
    DrawnLimit {
        words: "any 60 seconds, few entries",
        command: "RL.WINDOW key 15 60s BUCKETS 10",
        bound: 15,
    },
    DrawnLimit {
        words: "denied calls count too",
        command: "RL.WINDOW key 15 60s COUNTDENIED",
        bound: 15,
    },
    DrawnLimit {
        words: "a denial closes it for 30 s",
        command: "RL.WINDOW key 15 60s 1 BAN 30s",
        bound: 15,
    },
    DrawnLimit {
        words: "each minute of the clock",
        command: "RL.WINDOW key 15 1min FIXED",
        bound: 30,
    },
    DrawnLimit {
        words: "a minute from the first call on",
        command: "RL.WINDOW key 15 60s FIXED FROM first",
        bound: 30,
    },
];

/// A call every `step_ms`, from the first time until before the other.
fn every(step_ms: usize, from_ms: i64, to_ms: i64) -> impl Iterator<Item = i64> {
    (from_ms..to_ms).step_by(step_ms)
}

pub fn all() -> [Traffic; 4] {
    [
        Traffic {
            name: "burst",
            title: "A burst at midnight: a call every second for 30 seconds, then one every 3 seconds",
            calls_ms: every(1_000, -15_000, 15_000).chain(every(3_000, 15_000, 75_000)).collect(),
            shown_ms: (-18_000, 98_000),
        },
        Traffic {
            name: "steady",
            title: "A steady stream of twice the limit: a call every 2 seconds",
            calls_ms: every(2_000, -50_000, 100_000).collect(),
            shown_ms: (-55_000, 125_000),
        },
        Traffic {
            name: "hammer",
            title: "A client that hammers for 90 seconds, pauses for a minute, then calls every 3 seconds",
            calls_ms: every(1_500, -45_000, 45_000).chain(every(3_000, 106_000, 136_000)).collect(),
            shown_ms: (-50_000, 140_000),
        },
        Traffic {
            name: "late",
            title: "A single call, and 35 seconds later one every second for a minute",
            calls_ms: once(-45_000).chain(every(1_000, -10_000, 50_000)).collect(),
            shown_ms: (-50_000, 90_000),
        },
    ]
}

/// A call and its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawnCall {
    pub came_ms: i64,
    pub may_go: bool,
    /// The time at which it could go ahead, or was denied.
    pub at_ms: i64,
}

pub struct DrawnRun {
    pub calls: Vec<DrawnCall>,
}

impl DrawnRun {
    /// The number of calls that went ahead.
    pub fn allowed(&self) -> usize {
        self.calls.iter().filter(|call| call.may_go).count()
    }

    /// The most calls that went ahead in any (t - 60 s, t].
    pub fn most_in_a_minute(&self) -> usize {
        let gone = || self.calls.iter().filter(|call| call.may_go).map(|call| call.at_ms);
        let until = |end: i64| gone().filter(|at| (end - MINUTE_MS + 1..=end).contains(at)).count();
        gone().map(until).max().unwrap_or_default()
    }
}

/// Runs the traffic against each of the limits.
pub fn run(traffic: &Traffic) -> Vec<DrawnRun> {
    let server = Server::builder().clock(true).start();
    let runs = LIMITS.iter().enumerate();
    runs.map(|(number, limit)| {
        let command = limit.command.replace("key", &format!("k{number}"));
        let runner =
            Runner { server: &server, command, conn: server.conn(), line: VecDeque::new() };
        let run = runner.run(traffic);
        assert!(run.most_in_a_minute() <= limit.bound, "{}: {}", traffic.name, limit.command);
        run
    })
    .collect()
}

/// A call that waits on a connection of its own.
struct QueuedCall {
    came_ms: i64,
    conn: Conn,
    /// The connection's.
    id: i64,
}

struct Runner<'a> {
    server: &'a Server,
    command: String,
    conn: Conn,
    line: VecDeque<QueuedCall>,
}

impl Runner<'_> {
    fn run(mut self, traffic: &Traffic) -> DrawnRun {
        let mut calls = Vec::new();
        let (from_ms, to_ms) = traffic.shown_ms;
        let waits = self.command.contains("BLOCK");
        for now_ms in (from_ms..=to_ms).step_by(STEP_MS as usize) {
            let is_call = traffic.calls_ms.contains(&now_ms);
            if !is_call && self.line.is_empty() {
                continue;
            }
            self.set_clock(now_ms);
            if waits {
                self.serve_the_line(now_ms, &mut calls);
            }
            if is_call {
                match waits {
                    true => self.call_and_wait(now_ms, &mut calls),
                    false => calls.push(self.call(now_ms)),
                }
            }
        }
        assert!(self.line.is_empty(), "the picture ends before the last wait does");
        assert_eq!(calls.len(), traffic.calls_ms.len());
        calls.sort_by_key(|call| call.came_ms);
        DrawnRun { calls }
    }

    fn set_clock(&self, now_ms: i64) {
        self.server.clock().set_us(unix_us("2026-11-22T00:00:00") + 1000 * now_ms);
    }

    fn call(&mut self, now_ms: i64) -> DrawnCall {
        let answer = self.conn.ints(format!("{} MS", self.command));
        // With AHEAD the reply says how long to wait before going on.
        let wait_ms = if answer[0] == 0 { answer.get(5).copied().unwrap_or(0) } else { 0 };
        DrawnCall { came_ms: now_ms, may_go: answer[0] == 0, at_ms: now_ms + wait_ms }
    }

    /// The number of calls that wait on the server.
    fn waiting(&mut self) -> usize {
        let info = self.conn.text("INFO ratelimit");
        let number = info.lines().find_map(|line| line.strip_prefix("ratelimit_waiting:"));
        number.and_then(|number| number.parse().ok()).expect("INFO has the number of waiting calls")
    }

    /// Calls on a new connection; one that must wait joins the line.
    fn call_and_wait(&mut self, now_ms: i64, calls: &mut Vec<DrawnCall>) {
        let mut conn = self.server.conn();
        let id = conn.id();
        conn.send(&*self.command);
        for _ in 0..PATIENCE {
            if self.waiting() > self.line.len() {
                return self.line.push_back(QueuedCall { came_ms: now_ms, conn, id });
            }
            if !conn.silent_for(Duration::from_millis(1)) {
                return calls.push(answered(now_ms, now_ms, &conn.recv()));
            }
        }
        panic!("{} neither waits nor has a reply", self.command);
    }

    /// Receives the replies that the line gets at this moment.
    fn serve_the_line(&mut self, now_ms: i64, calls: &mut Vec<DrawnCall>) {
        // A command on the key grants waiting calls. This one takes nothing.
        let look = self.command.replace("BLOCK 20s", "0");
        loop {
            self.conn.ints(&*look);
            let waiting = self.waiting();
            while self.line.len() > waiting {
                let Some(mut waiter) = self.line.pop_front() else { break };
                calls.push(answered(waiter.came_ms, now_ms, &waiter.conn.recv()));
            }
            // The server measures waits in real time, which hardly passes here. So the wait is ended explicitly, with
            // the reply of a call whose time is up.
            let is_overdue = |waiter: &QueuedCall| waiter.came_ms + WAIT_MS <= now_ms;
            match self.line.front() {
                Some(waiter) if is_overdue(waiter) => {
                    assert_eq!(self.conn.int(format!("CLIENT UNBLOCK {}", waiter.id)), 1);
                }
                _ => return,
            }
        }
    }
}

fn answered(came_ms: i64, at_ms: i64, reply: &Value) -> DrawnCall {
    assert_eq!(ints(reply).len(), 5);
    DrawnCall { came_ms, may_go: limited(reply) == 0, at_ms }
}

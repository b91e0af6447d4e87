//! A kind of decision that is measured.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use crate::Result;
use support::{elements, error_line, flat, limited, text, Clock, Conn, Value};

/// Decisions in one pipelined exchange.
pub const PIPELINE: u64 = 50;

/// The Lua scripts that people use today, written for this comparison. Nobody uses `several` yet.
const SCRIPTS: [(&str, &str); 6] = [
    ("gcra", include_str!("peers/gcra.lua")),
    ("window", include_str!("peers/window.lua")),
    ("acquire", include_str!("peers/acquire.lua")),
    ("apply", include_str!("peers/apply.lua")),
    ("semaphore", include_str!("peers/semaphore.lua")),
    ("several", include_str!("peers/several.lua")),
];

/// What calls each of the scripts on a server: `EVALSHA` with its SHA-1 sum.
pub type Scripts = HashMap<&'static str, String>;

pub fn load_scripts(conn: &mut Conn) -> Scripts {
    let mut load = |source| format!("EVALSHA {}", conn.text(["SCRIPT", "LOAD", source]));
    SCRIPTS.map(|(name, source)| (name, load(source))).into()
}

/// A row of a table. Its texts are commands, one a line, without quoting, in which these words stand for something:
///
/// - `<key>`: the key of the decision, 11 bytes
/// - `<us>`, `<ms>`: the time of the held clock; `<ms-60000>`, `<ms+20000>`: a minute before, and 20 seconds later
/// - `<number>`: six digits that differ between decisions
/// - `<id>`: the id that the module made for a reservation, in the text that ends it
#[derive(Clone)]
pub struct Workload {
    pub name: String,
    pub peer: Option<String>,
    /// Decisions are about this many keys in turn.
    keys: u64,
    ask: String,
    end: Option<String>,
    /// The first integer of the reply to each decision.
    expected: Option<RangeInclusive<i64>>,
    /// The decisions that fill a key, and the time that passes before each.
    filling: (u64, u64),
    prepare: Vec<String>,
    /// The time that passes before an exchange. All of its decisions are made at one moment.
    pace_us: u64,
    /// The number of the next decision.
    next: u64,
}

impl Workload {
    pub fn new(name: impl Into<String>, keys: u64, ask: impl Into<String>) -> Workload {
        Workload {
            name: name.into(),
            peer: None,
            keys,
            ask: ask.into(),
            end: None,
            expected: None,
            filling: (0, 0),
            prepare: Vec::new(),
            pace_us: 0,
            next: 0,
        }
    }

    /// The name of the row to compare this one with.
    pub fn peer(mut self, name: impl Into<String>) -> Workload {
        self.peer = Some(name.into());
        self
    }

    /// A second text in an exchange of its own. Its reply should be 1.
    pub fn ended_by(mut self, end: impl Into<String>) -> Workload {
        self.end = Some(end.into());
        self
    }

    pub fn allowed(mut self) -> Workload {
        self.expected = Some(0..=0);
        self
    }

    pub fn denied(mut self) -> Workload {
        self.expected = Some(1..=2);
        self
    }

    /// Decisions that are made about each key before the others, one at each step of the clock.
    pub fn filled_by(mut self, decisions: u64, pace_us: u64) -> Workload {
        self.filling = (decisions, pace_us);
        self
    }

    /// Texts to run for each key, after it was filled.
    pub fn prepared_by<S: Into<String>>(mut self, texts: impl IntoIterator<Item = S>) -> Workload {
        self.prepare = texts.into_iter().map(Into::into).collect();
        self
    }

    pub fn paced(mut self, us: u64) -> Workload {
        self.pace_us = us;
        self
    }

    /// Brings a server into the state in which the decisions are to be made: the first key, which is then copied.
    pub fn prepare(&mut self, clock: Option<&Clock>, conn: &mut Conn) -> Result<()> {
        conn.cmd("FLUSHALL");
        let (decisions, pace_us) = self.filling;
        for _ in 0..decisions {
            advance(clock, pace_us);
            self.decide(clock, conn, &[self.next])?;
            self.next += self.keys;
        }
        let prepare: Vec<_> =
            self.prepare.iter().map(|text| self.commands(text, 0, "", clock)).collect();
        exchange(conn, &prepare)?;
        let first = key(0);
        let names = flat(&conn.cmd("KEYS *"));
        let copies = (1..self.keys).flat_map(|number| {
            let copy =
                |name: &String| format!("COPY {name} {}", name.replace(&first, &key(number)));
            names.iter().map(copy).collect::<Vec<_>>()
        });
        exchange(conn, &copies.collect::<Vec<_>>()).map(drop)
    }

    /// Makes decisions in one exchange, or in two if they are ended, and returns their number. While time passes there is at
    /// most one for each key. A reply that is not as expected is an error.
    pub fn run(&mut self, clock: Option<&Clock>, conn: &mut Conn) -> Result<u64> {
        let count = if self.pace_us > 0 { PIPELINE.min(self.keys) } else { PIPELINE };
        advance(clock, self.pace_us);
        let numbers = self.take(count);
        match self.decide(clock, conn, &numbers)? {
            0 => Ok(count),
            unexpected => Err(format!("{unexpected} of {count} answered otherwise")),
        }
    }

    /// Makes one decision on each connection, all sent before the first reply is read, and returns their number.
    pub fn run_on_each(&mut self, conns: &mut [Conn]) -> u64 {
        for (number, conn) in self.take(conns.len() as u64).into_iter().zip(conns.iter_mut()) {
            conn.send(self.commands(&self.ask, number, "", None));
        }
        conns.iter_mut().for_each(|conn| drop(conn.recv()));
        conns.len() as u64
    }

    /// The numbers of the next decisions.
    fn take(&mut self, count: u64) -> Vec<u64> {
        let first = self.next;
        self.next += count;
        (first..self.next).collect()
    }

    fn decide(&self, clock: Option<&Clock>, conn: &mut Conn, numbers: &[u64]) -> Result<u64> {
        let asks: Vec<_> =
            numbers.iter().map(|number| self.commands(&self.ask, *number, "", clock)).collect();
        let replies = exchange(conn, &asks)?;
        // The reply to a decision of several commands, such as a transaction, is that to the last.
        let each = replies.len() / numbers.len();
        let last: Vec<_> = replies.chunks(each).filter_map(<[_]>::last).collect();
        let is_unexpected = |reply: &&&Value| {
            self.expected.as_ref().is_some_and(|expected| !expected.contains(&limited(reply)))
        };
        let mut unexpected = last.iter().filter(is_unexpected).count();
        if let Some(end) = &self.end {
            let ends = numbers.iter().zip(last).map(|(number, reply)| {
                let id = elements(reply).get(5).map_or(String::new(), text);
                self.commands(end, *number, &id, clock)
            });
            let ended = exchange(conn, &ends.collect::<Vec<_>>())?;
            unexpected += ended.iter().filter(|reply| **reply != Value::Int(1)).count();
        }
        Ok(unexpected as u64)
    }

    /// A text, with what its words stand for in a decision.
    fn commands(&self, text: &str, number: u64, id: &str, clock: Option<&Clock>) -> String {
        let us = clock.map_or(0, Clock::now_us);
        let ms = us / 1000;
        text.replace("<key>", &key(number % self.keys))
            .replace("<number>", &format!("{:06}", number % 1_000_000))
            .replace("<id>", id)
            .replace("<us>", &us.to_string())
            .replace("<ms>", &ms.to_string())
            .replace("<ms-60000>", &(ms - 60_000).to_string())
            .replace("<ms+20000>", &(ms + 20_000).to_string())
    }
}

fn key(number: u64) -> String {
    format!("user:{number:06}")
}

fn advance(clock: Option<&Clock>, us: u64) {
    if let Some(clock) = clock {
        clock.advance_us(us as i64);
    }
}

/// Sends the lines of all texts at once, and returns the replies or the first error.
fn exchange(conn: &mut Conn, texts: &[String]) -> Result<Vec<Value>> {
    let replies = conn.pipeline(texts.iter().flat_map(|text| text.lines()));
    let error = replies.iter().find(|reply| matches!(reply, Value::ServerError(_)));
    error.map_or(Ok(()), |error| Err(error_line(error)))?;
    Ok(replies)
}

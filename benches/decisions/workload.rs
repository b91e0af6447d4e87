//! A kind of decision that is measured.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::held_clock::Pacer;
use crate::server::Host;
use crate::Result;
use support::{error_line, text, Conn, Value};

/// Decisions in one pipelined exchange.
pub const PIPELINE: usize = 50;

type MakeCall = Arc<dyn Fn(u64) -> String + Send + Sync>;
type Settle = Arc<dyn Fn(u64, &str) -> String + Send + Sync>;

/// A row of a table. Commands are texts, one a line, without quoting.
#[derive(Clone)]
pub struct Workload {
    pub name: String,
    lead_in: Option<(Box<Workload>, usize)>,
    prepare: Vec<String>,
    ask: MakeCall,
    settle: Option<Settle>,
    expected: fn(&Value) -> bool,
    pace_us: Option<f64>,
    next: Counter,
}

/// The number of the next decision. A clone begins at 0.
#[derive(Default)]
struct Counter(AtomicU64);

impl Clone for Counter {
    fn clone(&self) -> Counter {
        Counter::default()
    }
}

impl Workload {
    /// Decision number `i` is `ask(i)`. Any reply but an error is expected.
    pub fn new(
        name: impl Into<String>,
        ask: impl Fn(u64) -> String + Send + Sync + 'static,
    ) -> Workload {
        Workload {
            name: name.into(),
            lead_in: None,
            prepare: Vec::new(),
            ask: Arc::new(ask),
            settle: None,
            expected: |_| true,
            pace_us: None,
            next: Counter::default(),
        }
    }

    /// Decisions of another kind, `count` of them, that come before all others.
    pub fn led_in_by(mut self, workload: Workload, count: usize) -> Workload {
        self.lead_in = Some((Box::new(workload), count));
        self
    }

    /// Commands to run once, after the lead-in and while the clock stands.
    pub fn prepared_by(mut self, commands: impl IntoIterator<Item = String>) -> Workload {
        self.prepare = commands.into_iter().collect();
        self
    }

    /// A second step in an exchange of its own, which may use the id in the reply to the first. Its reply should be 1.
    pub fn settled_by(
        mut self,
        settle: impl Fn(u64, &str) -> String + Send + Sync + 'static,
    ) -> Workload {
        self.settle = Some(Arc::new(settle));
        self
    }

    /// The replies that the row is about. An exchange counts the others.
    pub fn expecting(mut self, expected: fn(&Value) -> bool) -> Workload {
        self.expected = expected;
        self
    }

    /// Microseconds of a held clock that are to pass with each decision.
    pub fn paced(mut self, us: f64) -> Workload {
        self.pace_us = Some(us);
        self
    }

    /// Returns the pacer that advances the clock between decisions.
    pub fn pacer<'s>(&self, host: &'s Host) -> Pacer<'s> {
        Pacer::new(host, self.pace_us)
    }

    /// Brings an empty server into the state in which the decisions are to be made, and leaves its clock standing.
    pub fn prepare(&self, host: &Host, conn: &mut Conn) -> Result<()> {
        if let Some((lead_in, count)) = &self.lead_in {
            lead_in.prepare(host, conn)?;
            lead_in.run_paced(conn, &mut lead_in.pacer(host), *count)?;
        }
        host.tick(0);
        self.prepare.chunks(PIPELINE).try_for_each(|commands| exchange(conn, commands).map(drop))
    }

    /// Makes one decision on each connection, all sent before the first reply is read.
    pub fn run_on_each(&self, conns: &mut [Conn]) -> Result<()> {
        for (number, conn) in self.take(conns.len()).zip(conns.iter_mut()) {
            conn.send((self.ask)(number));
        }
        conns.iter_mut().try_for_each(|conn| refused(&conn.recv()).map_or(Ok(()), Err))
    }

    /// Makes `count` decisions at their pace, `PIPELINE` at a time, and returns how many replies were not as expected.
    pub fn run_paced(&self, conn: &mut Conn, pacer: &mut Pacer<'_>, count: usize) -> Result<usize> {
        let mut unexpected = 0;
        for _ in 0..count.div_ceil(PIPELINE) {
            pacer.step(PIPELINE);
            unexpected += self.run(conn)?;
        }
        Ok(unexpected)
    }

    /// Makes the next decisions in one exchange, or in two if they are settled. Returns how many replies were not as expected.
    pub fn run(&self, conn: &mut Conn) -> Result<usize> {
        let numbers = self.take(PIPELINE);
        let calls: Vec<_> = numbers.clone().map(|number| (self.ask)(number)).collect();
        let replies = exchange(conn, &calls)?;
        // The reply to a decision of several commands, such as a transaction, is that to the last.
        let each = replies.len() / PIPELINE;
        let last = replies.iter().skip(each - 1).step_by(each);
        let expected: Vec<_> =
            numbers.zip(last).filter(|(_, reply)| (self.expected)(reply)).collect();
        let mut unexpected = PIPELINE - expected.len();
        if let Some(settle) = &self.settle {
            let id = |reply: &Value| match reply {
                Value::Array(elements) => elements.get(5).map_or(String::new(), text),
                _ => String::new(),
            };
            let calls: Vec<_> =
                expected.iter().map(|(it, reply)| settle(*it, &id(reply))).collect();
            let settled = exchange(conn, &calls)?;
            unexpected += settled.iter().filter(|reply| **reply != Value::Int(1)).count();
        }
        Ok(unexpected)
    }

    fn take(&self, count: usize) -> Range<u64> {
        let first = self.next.0.fetch_add(count as u64, Ordering::Relaxed);
        first..first + count as u64
    }
}

/// Sends the lines of all texts at once, and returns the replies or the first error.
fn exchange(conn: &mut Conn, texts: &[String]) -> Result<Vec<Value>> {
    let replies = conn.pipeline(texts.iter().flat_map(|text| text.lines()));
    replies.iter().find_map(refused).map_or(Ok(()), Err)?;
    Ok(replies)
}

/// The text of an error.
fn refused(reply: &Value) -> Option<String> {
    matches!(reply, Value::ServerError(_)).then(|| error_line(reply))
}

fn first(reply: &Value) -> Option<&Value> {
    match reply {
        Value::Array(elements) => elements.first(),
        _ => None,
    }
}

/// Returns true if a decision was to allow the call.
pub fn allowed(reply: &Value) -> bool {
    first(reply) == Some(&Value::Int(0))
}

/// Returns true if a decision was to deny the call.
pub fn denied(reply: &Value) -> bool {
    matches!(first(reply), Some(Value::Int(1 | 2)))
}

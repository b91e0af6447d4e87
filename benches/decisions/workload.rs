//! A kind of decision that is measured.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Batch, Client, Result, ServerReply};
use crate::held_clock::Pacer;
use crate::server::Host;

/// Decisions in one pipelined exchange.
pub const PIPELINE: usize = 50;

type MakeCall = Arc<dyn Fn(u64) -> String + Send + Sync>;
type Settle = Arc<dyn Fn(u64, &ServerReply) -> String + Send + Sync>;

/// A row of a table. Commands are texts, one a line, without quoting.
#[derive(Clone)]
pub struct Workload {
    pub name: String,
    lead_in: Option<(Box<Workload>, usize)>,
    prepare: Vec<String>,
    ask: MakeCall,
    settle: Option<Settle>,
    expected: fn(&ServerReply) -> bool,
    pace_us: Option<f64>,
    /// Calls of an application that one decision stands for. Figures are per such call.
    stands_for: u64,
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

/// The time that the server took for one or more exchanges, and the number of replies that were not as expected.
pub struct Exchange {
    pub took: Duration,
    pub unexpected: usize,
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
            stands_for: 1,
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

    /// A second step in an exchange of its own, which may use the reply to the first. Its reply should be 1.
    pub fn settled_by(
        mut self,
        settle: impl Fn(u64, &ServerReply) -> String + Send + Sync + 'static,
    ) -> Workload {
        self.settle = Some(Arc::new(settle));
        self
    }

    /// The replies that the row is about. An exchange counts the others.
    pub fn expecting(mut self, expected: fn(&ServerReply) -> bool) -> Workload {
        self.expected = expected;
        self
    }

    /// Microseconds of a held clock that are to pass with each decision.
    pub fn paced(mut self, us: f64) -> Workload {
        self.pace_us = Some(us);
        self
    }

    /// Sets how many calls of an application a decision stands for.
    pub fn standing_for(mut self, calls: u64) -> Workload {
        self.stands_for = calls;
        self
    }

    /// The number of calls of an application that a decision stands for.
    pub fn calls(&self) -> u64 {
        self.stands_for
    }

    /// Returns the pacer that advances the clock between decisions.
    pub fn pacer<'s>(&self, host: &'s Host) -> Pacer<'s> {
        Pacer::new(host, self.pace_us)
    }

    /// Brings an empty server into the state in which the decisions are to be made, and leaves its clock standing.
    pub fn prepare(&self, host: &Host, client: &mut Client) -> Result<()> {
        if let Some((lead_in, count)) = &self.lead_in {
            lead_in.prepare(host, client)?;
            lead_in.run_paced(client, &mut lead_in.pacer(host), *count)?;
        }
        host.tick(0);
        client.call_all(&self.prepare)
    }

    /// Makes one decision on each connection, all sent before the first reply is read, and returns how many replies were not
    /// as expected.
    pub fn run_on_each(&self, clients: &mut [Client]) -> Result<usize> {
        for (number, client) in self.take(clients.len()).zip(clients.iter_mut()) {
            client.send(&Batch::of(&(self.ask)(number)))?;
        }
        let mut unexpected = 0;
        for client in clients {
            unexpected += usize::from(!(self.expected)(&client.receive()?));
        }
        Ok(unexpected)
    }

    /// Makes `count` decisions at their pace, `PIPELINE` at a time, and returns how many replies were not as expected.
    pub fn run_paced(
        &self,
        client: &mut Client,
        pacer: &mut Pacer<'_>,
        count: usize,
    ) -> Result<usize> {
        let mut unexpected = 0;
        for _ in 0..count.div_ceil(PIPELINE) {
            pacer.step(PIPELINE);
            unexpected += self.run(client, PIPELINE)?.unexpected;
        }
        Ok(unexpected)
    }

    /// Makes the next `count` decisions in one exchange, or in two if they are settled.
    pub fn run(&self, client: &mut Client, count: usize) -> Result<Exchange> {
        let numbers = self.take(count);
        let mut batch = Batch::default();
        numbers.clone().for_each(|number| batch.add(&(self.ask)(number)));
        let (replies, mut took) = client.exchange(&batch)?;
        // The reply to a decision of several commands, such as a transaction, is that to the last.
        let each = replies.len() / count;
        let last = replies.iter().skip(each - 1).step_by(each);
        let expected: Vec<_> =
            numbers.zip(last).filter(|(_, reply)| (self.expected)(reply)).collect();
        let mut unexpected = count - expected.len();
        if let Some(settle) = &self.settle {
            let mut batch = Batch::default();
            expected.iter().for_each(|(number, reply)| batch.add(&settle(*number, reply)));
            let (settled, settling) = client.exchange(&batch)?;
            took += settling;
            unexpected += settled.iter().filter(|reply| reply.integer() != Some(1)).count();
        }
        Ok(Exchange { took, unexpected })
    }

    fn take(&self, count: usize) -> Range<u64> {
        let first = self.next.0.fetch_add(count as u64, Ordering::Relaxed);
        first..first + count as u64
    }
}

/// Returns true if a decision was to allow the call.
pub fn allowed(reply: &ServerReply) -> bool {
    reply.at(0).integer() == Some(0)
}

/// Returns true if a decision was to deny the call.
pub fn denied(reply: &ServerReply) -> bool {
    matches!(reply.at(0).integer(), Some(1 | 2))
}

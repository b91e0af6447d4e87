//! What is measured: a kind of decision, made over and over.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Batch, Client, Result, ServerReply};
use crate::held_clock::Pacer;
use crate::server::Host;

/// Decisions in one pipelined exchange.
pub const PIPELINE: usize = 50;

/// The longest that preparing a server may take.
const PATIENCE: Duration = Duration::from_secs(30);

type MakeCall = Arc<dyn Fn(u64) -> String + Send + Sync>;
type Settle = Arc<dyn Fn(u64, &ServerReply) -> String + Send + Sync>;

/// A row of a table. Commands are texts, one a line, without quoting.
pub struct Workload {
    pub name: String,
    lead_in: Option<(Box<Workload>, usize)>,
    /// Commands that make keys, see `made_by`.
    make: Vec<String>,
    prepare: Vec<String>,
    ask: MakeCall,
    settle: Option<Settle>,
    expected: fn(&ServerReply) -> bool,
    pace_us: Option<f64>,
    /// Calls of an application that one decision stands for. Figures are per such call.
    stands_for: u64,
    next: AtomicU64,
}

/// One or more exchanges: how long the server took to answer, and how many answers were not the expected ones.
pub struct Exchange {
    pub took: Duration,
    pub unexpected: usize,
}

/// A key as one server has it, for another.
pub struct Copied {
    key: Vec<u8>,
    ttl_ms: String,
    dump: Vec<u8>,
}

impl Workload {
    /// Decision number `i` is `ask(i)`, any answer but an error will do.
    pub fn new(
        name: impl Into<String>,
        ask: impl Fn(u64) -> String + Send + Sync + 'static,
    ) -> Workload {
        Workload {
            name: name.into(),
            lead_in: None,
            make: Vec::new(),
            prepare: Vec::new(),
            ask: Arc::new(ask),
            settle: None,
            expected: |_| true,
            pace_us: None,
            stands_for: 1,
            next: AtomicU64::new(0),
        }
    }

    /// The same from its first decision on.
    pub fn afresh(&self) -> Workload {
        let lead_in = self.lead_in.as_ref();
        Workload {
            name: self.name.clone(),
            lead_in: lead_in.map(|(lead_in, count)| (Box::new(lead_in.afresh()), *count)),
            make: self.make.clone(),
            prepare: self.prepare.clone(),
            ask: self.ask.clone(),
            settle: self.settle.clone(),
            expected: self.expected,
            pace_us: self.pace_us,
            stands_for: self.stands_for,
            next: AtomicU64::new(0),
        }
    }

    /// Decisions of another kind, `count` of them, that come before all others.
    pub fn led_in_by(mut self, workload: Workload, count: usize) -> Workload {
        self.lead_in = Some((Box::new(workload), count));
        self
    }

    /// Commands whose keys are needed after the lead-in; a server that is slowed down gets the keys copied.
    pub fn made_by(mut self, commands: impl IntoIterator<Item = String>) -> Workload {
        self.make = commands.into_iter().collect();
        self
    }

    /// Commands to run once, after all that and while the clock stands.
    pub fn prepared_by(mut self, commands: impl IntoIterator<Item = String>) -> Workload {
        self.prepare = commands.into_iter().collect();
        self
    }

    /// A second step in an exchange of its own, which may use the answer to the first; it should answer 1.
    pub fn settled_by(
        mut self,
        settle: impl Fn(u64, &ServerReply) -> String + Send + Sync + 'static,
    ) -> Workload {
        self.settle = Some(Arc::new(settle));
        self
    }

    /// The answers that the row is about. An exchange counts the others.
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

    /// How many calls of an application a decision is about.
    pub fn calls(&self) -> u64 {
        self.stands_for
    }

    /// What lets the time between the decisions pass.
    pub fn pacer<'s>(&self, host: &'s Host) -> Pacer<'s> {
        Pacer::new(host, self.pace_us)
    }

    /// Whether keys have to be made first.
    pub fn is_made(&self) -> bool {
        !self.make.is_empty()
    }

    /// Makes the keys on an empty server and takes them.
    pub fn make(&self, client: &mut Client) -> Result<Vec<Copied>> {
        client.call_all(&self.make, PATIENCE)?;
        let keys = client.call("KEYS *")?;
        let mut copied = Vec::new();
        for key in keys.elements() {
            let key = key.bytes().to_vec();
            let mut ask = |command: &[u8]| -> Result<ServerReply> {
                client.send(&Batch::words([command, &key]))?;
                client.receive()
            };
            let ttl_ms = ask(b"PTTL")?.integer().unwrap_or(0).max(0).to_string();
            let dump = ask(b"DUMP")?.bytes().to_vec();
            copied.push(Copied { key, ttl_ms, dump });
        }
        Ok(copied)
    }

    /// Brings an empty server into the state in which the decisions are to be made, and leaves its clock standing.
    pub fn prepare(&self, host: &Host, client: &mut Client, made: Option<&[Copied]>) -> Result<()> {
        if let Some((lead_in, count)) = &self.lead_in {
            lead_in.prepare(host, client, None)?;
            lead_in.run_paced(client, &mut lead_in.pacer(host), *count)?;
        }
        host.tick(0);
        match made {
            None => client.call_all(&self.make, PATIENCE)?,
            Some(made) => {
                for Copied { key, ttl_ms, dump } in made {
                    client.send(&Batch::words([b"RESTORE", &key[..], ttl_ms.as_bytes(), dump]))?;
                    client.receive()?;
                }
            }
        }
        client.call_all(&self.prepare, PATIENCE)
    }

    /// The next decision's commands.
    pub fn next_command(&self) -> String {
        (self.ask)(self.take(1).start)
    }

    /// Whether a decision was to be answered so.
    pub fn expects(&self, reply: &ServerReply) -> bool {
        (self.expected)(reply)
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

    /// Makes the next `count` decisions in one exchange, or two where they are settled.
    pub fn run(&self, client: &mut Client, count: usize) -> Result<Exchange> {
        let numbers = self.take(count);
        let mut batch = Batch::default();
        numbers.clone().for_each(|number| batch.add(&(self.ask)(number)));
        let (replies, mut took) = client.exchange(&batch)?;
        // A decision of several commands, as a transaction, is answered by the last.
        let each = replies.len() / count;
        let answers = replies.iter().skip(each - 1).step_by(each);
        let expected: Vec<_> =
            numbers.zip(answers).filter(|(_, reply)| (self.expected)(reply)).collect();
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
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        first..first + count as u64
    }
}

/// Whether a decision was to allow.
pub fn allowed(reply: &ServerReply) -> bool {
    reply.at(0).integer() == Some(0)
}

/// Whether a decision was to deny.
pub fn denied(reply: &ServerReply) -> bool {
    matches!(reply.at(0).integer(), Some(1 | 2))
}

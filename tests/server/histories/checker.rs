//! Judges a history of calls on one key: is there an order in which the engine, making one call after the other, tells each
//! what it was told?
//!
//! An order must put a call after all that were answered before it was sent (Herlihy and Wing, "Linearizability", 1990). The
//! search is Wing and Gong's with Lowe's two improvements: a call is put in its place only when its answer forces that, and of
//! two ways to the same state one is enough.
//!
//! ```text
//! sent ----|======== a ========|----------- answered
//!              |== b ==|                    b's answer asks for: b, or a b
//! ```

use std::collections::HashSet;

use engine::decision::{Manner, TimeUnit};
use engine::memory::{Memory, Saved};
use engine::request::{Limit, Request};
use engine::reservation::Id;
use engine::settle::Applied;
use engine::store::Refused;

const KEY: &[u8] = b"k";

/// The answer DUPLICATE.
pub const DUPLICATE: i64 = -99;

/// So many states before a failover are kept, in the order of a history.
const MOST_LOST: usize = 400;

/// What was asked.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "most calls of a history take")]
pub enum What {
    /// RL.THROTTLE, RL.WINDOW or RL.ACQUIRE.
    Take(Request),
    /// RL.APPLY
    Apply(Id),
    /// RL.RELEASE
    Release(Id),
    /// A replica took over, and may have lacked the newest effects.
    Failover,
}

/// A call.
#[derive(Clone, Debug)]
pub struct Op {
    /// What was asked.
    pub what: What,
    /// When it was sent, in nanoseconds of one clock.
    pub from_ns: u64,
    /// When it was answered, or the connection was seen to be dead.
    pub to_ns: u64,
    /// What the server's clock showed then and then, in microseconds.
    pub clock_us: (u64, u64),
    /// The answer; `None` where none came, and the call may have been made or not.
    pub reply: Option<Vec<i64>>,
}

/// How a history was judged.
#[derive(Debug, Default)]
pub struct JudgedHistory {
    /// How many calls were judged.
    pub calls: usize,
    /// How many states were compared with an answer.
    pub tried: usize,
    /// The most effects that a failover must have lost.
    pub lost: usize,
}

/// One way in which the calls until now may have been made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Way {
    saved: Option<Saved>,
    now_us: u64,
    /// Of the calls that are under way, those that were made.
    made: Vec<usize>,
    /// The states before the newest effects, where a failover comes soon.
    before: Vec<Option<Saved>>,
    lost: usize,
}

struct Judge<'h> {
    memory: &'h Memory,
    ops: &'h [Op],
    tick_us: u64,
    tried: usize,
    keeps: bool,
}

/// How far before a failover an effect may lie that it loses.
const LOSS_NS: u64 = 3_000_000_000;

/// Judges all calls on a key. The server's clock moves by `tick_us` each time. An error says where no order is left.
pub fn judge(memory: &Memory, ops: &[Op], tick_us: u64) -> Result<JudgedHistory, String> {
    let mut ops = ops.to_vec();
    ops.sort_by_key(|op| op.from_ns);
    // Ends and beginnings in their order; an end before a beginning of the same moment.
    let ends = ops.iter().enumerate().map(|(at, op)| (op.to_ns, 0, at));
    let begins = ops.iter().enumerate().map(|(at, op)| (op.from_ns, 1, at));
    let mut marks: Vec<_> = ends.chain(begins).collect();
    marks.sort_unstable();
    let failovers: Vec<_> = ops
        .iter()
        .filter(|op| matches!(op.what, What::Failover))
        .map(|op| (op.from_ns, op.to_ns))
        .collect();
    let mut judge = Judge { memory, ops: &ops, tick_us, tried: 0, keeps: false };
    let first = Way { saved: None, now_us: 0, made: Vec::new(), before: Vec::new(), lost: 0 };
    let mut ways = HashSet::from([first]);
    let mut pending: Vec<usize> = Vec::new();
    for (ns, is_begin, at) in marks {
        let soon = |(from_ns, to_ns): &(u64, u64)| ns + LOSS_NS >= *from_ns && ns <= *to_ns;
        let keeps = failovers.iter().any(soon);
        if judge.keeps && !keeps {
            ways = ways.into_iter().map(|way| Way { before: Vec::new(), ..way }).collect();
        }
        judge.keeps = keeps;
        if is_begin == 1 {
            pending.push(at);
            continue;
        }
        ways = judge.end(ways, &pending, at);
        pending.retain(|other| *other != at);
        if ways.is_empty() {
            let op = &ops[at];
            let near: Vec<_> =
                ops[at.saturating_sub(12)..at].iter().map(|op| format!("{op:?}")).collect();
            return Err(format!("no order explains call {at}: {op:?}\nafter\n{}", near.join("\n")));
        }
    }
    let lost = ways.iter().map(|way| way.lost).min().unwrap_or(0);
    Ok(JudgedHistory { calls: ops.len(), tried: judge.tried, lost })
}

impl Judge<'_> {
    /// The ways that are left when a call was answered: it was made in all of them. Where no answer came, it may also not have
    /// been made.
    fn end(&mut self, ways: HashSet<Way>, pending: &[usize], at: usize) -> HashSet<Way> {
        let is_certain =
            self.ops[at].reply.is_some() || matches!(self.ops[at].what, What::Failover);
        let mut left = HashSet::new();
        let mut seen: HashSet<Way> = HashSet::new();
        let mut open: Vec<Way> = ways.into_iter().collect();
        while let Some(way) = open.pop() {
            if way.made.contains(&at) {
                let made = way.made.iter().copied().filter(|other| *other != at).collect();
                left.insert(Way { made, ..way });
                continue;
            }
            for other in pending.iter().copied().filter(|other| !way.made.contains(other)) {
                for next in self.make(&way, other) {
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
            if !is_certain {
                left.insert(way);
            }
        }
        left
    }

    /// What may come of making a call next.
    fn make(&mut self, way: &Way, at: usize) -> Vec<Way> {
        let op = &self.ops[at];
        let mut made = way.made.clone();
        made.push(at);
        made.sort_unstable();
        if matches!(op.what, What::Failover) {
            let same = Way { made: made.clone(), before: Vec::new(), ..way.clone() };
            let lost = way.before.iter().rev().enumerate().map(|(lost, saved)| Way {
                saved: saved.clone(),
                now_us: way.now_us,
                made: made.clone(),
                before: Vec::new(),
                lost: way.lost.max(lost + 1),
            });
            return std::iter::once(same).chain(lost).collect();
        }
        let mut next = Vec::new();
        let mut now_us = op.clock_us.0.max(way.now_us);
        while now_us <= op.clock_us.1 {
            let (reply, saved) = apply(self.memory, &way.saved, &op.what, now_us);
            self.tried += 1;
            if op.reply.as_ref().is_none_or(|told| *told == reply) {
                let mut before = way.before.clone();
                if self.keeps && saved != way.saved {
                    before.push(way.saved.clone());
                    if before.len() > MOST_LOST {
                        before.remove(0);
                    }
                }
                next.push(Way { saved, now_us, made: made.clone(), before, lost: way.lost });
            }
            now_us += self.tick_us;
        }
        next
    }
}

/// What the engine answers, and what it leaves.
pub fn apply(
    memory: &Memory,
    saved: &Option<Saved>,
    what: &What,
    now_us: u64,
) -> (Vec<i64>, Option<Saved>) {
    memory.reset(KEY);
    if let Some(saved) = saved {
        memory.restore(KEY, saved).expect("what was saved is sound");
    }
    let reply = match what {
        What::Take(request) => {
            match memory.attempt(KEY, request, now_us, || Id::from(&b"made"[..])) {
                Ok(told) => reply(request, &told.decision, told.id.is_some()),
                Err(Refused::Duplicate) => vec![DUPLICATE],
                Err(other) => panic!("{other:?}"),
            }
        }
        What::Apply(id) => {
            let applied =
                memory.apply(KEY, id, None, 4096, now_us).expect("a window's reservation");
            vec![i64::from(applied != Applied::NotHeld)]
        }
        What::Release(id) => vec![i64::from(memory.release(KEY, id, now_us).expect("a window"))],
        What::Failover => unreachable!("no call"),
    };
    (reply, memory.save(KEY))
}

fn reply(request: &Request, decision: &engine::decision::Decision, has_id: bool) -> Vec<i64> {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let ms = |us: u64| number(TimeUnit::Milliseconds.round_up(us));
    let verdict = decision.verdict;
    let mut reply = vec![
        number(verdict.limited()),
        number(decision.limit),
        number(decision.remaining),
        verdict.retry_after_us().map_or(-1, ms),
        ms(decision.reset_after_us),
    ];
    match (&request.limit, request.ask.manner) {
        (Limit::Reserve(..), _) => reply.push(i64::from(has_id)),
        (_, Manner::AtMost) => reply.push(number(verdict.taken())),
        _ => {}
    }
    reply
}

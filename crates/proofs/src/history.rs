//! Checks whether a history of calls on one key is linearizable: is there an order in which the engine, making one call
//! after the other, gives each call the reply that it got?
//!
//! In such an order, a call comes after every call whose reply arrived before it was sent (Herlihy and Wing,
//! "Linearizability", 1990). The search is Wing and Gong's, with Lowe's two improvements ("Testing for linearizability",
//! 2017): a call is placed only when its reply requires it, and orders that lead to the same configuration are merged.
//!
//! ```text
//! sent ----|======== a ========|----------- reply of a
//!              |== b ==|                    the reply of b requires an order: b, or a b
//! ```
//!
//! The time that the search takes grows with the length of the history only, for three reasons:
//!
//! - A state is stored without anything that can no longer change a reply (`without_the_past`), so more orders merge.
//! - A call that took nothing is placed as soon as its reply is right.
//! - The effects that a failover lost are chosen at the failover. Until then, the search keeps the configurations since the
//!   replica last had all effects, with their predecessors. Each predecessor of the last one is a possible cut.
//!
//! A history that needs more than [`Bounds::max_configurations`] for one reply is undecided, which is an error.

use std::collections::hash_map;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use engine::entry::Entry;
use engine::memory::{Memory, Saved, SavedValue};
use engine::reservation::{Id, Reservation};
use engine::throttle::StoredBucket;
use engine::{Decision, Limit, Manner, Quantity, Refusal, Request};

const KEY: &[u8] = b"k";

/// The reply to a call that fails with DUPLICATE.
pub const DUPLICATE: i64 = -99;

/// A call on the key, or a failover of its server.
#[derive(Clone, Copy, Debug)]
pub enum HistoryEvent {
    /// RL.THROTTLE, RL.WINDOW or RL.ACQUIRE.
    Take(Request),
    /// RL.APPLY
    Apply(Id),
    /// RL.RELEASE
    Release(Id),
    /// A replica took over. It had all effects until `complete_ns`, and may have lacked the newest of the later ones.
    Failover {
        /// The time in nanoseconds of the recorder's clock.
        complete_ns: u64,
    },
}

/// A call with its reply, or a failover.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The call or the failover.
    pub event: HistoryEvent,
    /// The time at which it was sent, in nanoseconds of the recorder's clock.
    pub from_ns: u64,
    /// The time at which the reply arrived, or the connection was found dead, in nanoseconds.
    pub to_ns: u64,
    /// The server's clock at `from_ns` and at `to_ns`, in microseconds.
    pub clock_us: (u64, u64),
    /// The reply. `None` if none arrived: the call may have been made or not.
    pub reply: Option<Vec<i64>>,
}

impl Recorded {
    fn is_failover(&self) -> bool {
        matches!(self.event, HistoryEvent::Failover { .. })
    }

    /// Returns whether a call with this reply changes nothing.
    fn takes_nothing(&self) -> bool {
        let Some(reply) = &self.reply else { return false };
        match &self.event {
            HistoryEvent::Take(request) => request.ask.quantity == Quantity::Look || reply[0] != 0,
            HistoryEvent::Apply(_) | HistoryEvent::Release(_) => reply[0] == 0,
            HistoryEvent::Failover { .. } => false,
        }
    }
}

/// The facts about a history that its calls do not show, and the limit of the search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The step by which the server's clock advances, in microseconds.
    pub tick_us: u64,
    /// The age in microseconds from which counted events no longer matter.
    pub period_us: u64,
    /// The maximum number of configurations to visit for one reply. A history that needs more is undecided.
    pub max_configurations: usize,
}

/// The figures of an accepted history.
#[derive(Debug, Default)]
pub struct JudgedHistory {
    /// The number of calls and failovers.
    pub calls: usize,
    /// The largest number of configurations that the search visited for one reply.
    pub max_configurations: usize,
    /// The smallest number of effects that each failover can have lost, in order.
    pub lost: Vec<usize>,
}

/// The reason why a history is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub enum Unaccepted {
    /// There is no order in which the engine gives these replies.
    Refused(String),
    /// There are too many configurations.
    Undecided(String),
}

impl fmt::Display for Unaccepted {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unaccepted::Refused(why) => write!(to, "refused: {why}"),
            Unaccepted::Undecided(why) => write!(to, "undecided: {why}"),
        }
    }
}

/// The number of a key's state in [`States`]. Many configurations share a state, and are compared with each other.
type StateNumber = usize;

/// All states that the search has found.
#[derive(Default)]
struct States {
    numbers: HashMap<Rc<Saved>, StateNumber>,
    all: Vec<Rc<Saved>>,
}

impl States {
    /// The number of the state without a key.
    const NONE: StateNumber = 0;

    fn number(&mut self, saved: Option<Saved>) -> StateNumber {
        let Some(saved) = saved else { return States::NONE };
        if let Some(known) = self.numbers.get(&saved) {
            return *known;
        }
        let saved = Rc::new(saved);
        self.all.push(Rc::clone(&saved));
        self.numbers.insert(saved, self.all.len());
        self.all.len()
    }

    fn saved(&self, state: StateNumber) -> Option<&Saved> {
        let at = state.checked_sub(1)?;
        self.all.get(at).map(|saved| &**saved)
    }
}

/// The result of one order of the calls so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Configuration {
    state: StateNumber,
    /// The server's clock at the last call in this order.
    now_us: u64,
    /// The calls without a reply so far that are already in this order.
    made: Vec<usize>,
}

/// The number of effects that each failover lost on the way to a configuration.
type Lost = Vec<usize>;

/// The predecessors of each configuration, and whether an effect lies between the two.
type Origins = HashMap<Configuration, Vec<(Configuration, bool)>>;

/// An end sorts before a beginning at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    End,
    Begin,
}

struct Search<'h> {
    memory: &'h Memory,
    calls: &'h [Recorded],
    bounds: Bounds,
    max_configurations: usize,
    states: States,
    /// The state after a call on a state at a time, for the calls that have no reply so far.
    made: HashMap<(StateNumber, usize, u64), Option<StateNumber>>,
    /// Recorded from the `complete_ns` of a failover until the failover.
    origins: Option<Origins>,
}

/// Judges the history of a key.
///
/// # Errors
///
/// [`Unaccepted::Refused`] if no order explains the replies, and [`Unaccepted::Undecided`] if there are too many orders.
pub fn judge(
    memory: &Memory,
    calls: &[Recorded],
    bounds: Bounds,
) -> Result<JudgedHistory, Unaccepted> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.from_ns);
    let ends = calls.iter().enumerate().map(|(at, call)| (call.to_ns, Mark::End, at));
    let begins = calls.iter().enumerate().map(|(at, call)| (call.from_ns, Mark::Begin, at));
    let mut marks: Vec<_> = ends.chain(begins).collect();
    marks.sort_unstable();
    let failovers: Vec<(u64, u64)> = calls
        .iter()
        .filter_map(|call| match call.event {
            HistoryEvent::Failover { complete_ns } => Some((complete_ns, call.to_ns)),
            _ => None,
        })
        .collect();
    let mut search = Search {
        memory,
        calls: &calls,
        bounds,
        max_configurations: 0,
        states: States::default(),
        made: HashMap::new(),
        origins: None,
    };
    let first = Configuration { state: States::NONE, now_us: 0, made: Vec::new() };
    let mut configurations = HashMap::from([(first, Lost::new())]);
    let mut pending: Vec<usize> = Vec::new();
    for (ns, mark, at) in marks {
        let may_lose = failovers.iter().any(|(from_ns, to_ns)| (*from_ns..=*to_ns).contains(&ns));
        match (may_lose, &search.origins) {
            (true, None) => search.origins = Some(Origins::new()),
            (false, Some(_)) => search.origins = None,
            _ => {}
        }
        if mark == Mark::Begin {
            pending.push(at);
            continue;
        }
        let near = || {
            let near: Vec<_> = (0..=at.min(11)).rev().map(|by| &calls[at - by]).collect();
            let near: Vec<_> = near.into_iter().map(|call| format!("{call:?}")).collect();
            format!("call {at} of {}, the last of these\n{}", calls.len(), near.join("\n"))
        };
        configurations = search
            .end(configurations, &pending, at)
            .ok_or_else(|| Unaccepted::Undecided(format!("too many orders explain {}", near())))?;
        pending.retain(|other| *other != at);
        if pending.is_empty() {
            search.made.clear();
        }
        if configurations.is_empty() {
            return Err(Unaccepted::Refused(format!("no order explains {}", near())));
        }
    }
    let lost = configurations.into_values().min_by_key(|lost| lost.iter().sum::<usize>());
    Ok(JudgedHistory {
        calls: calls.len(),
        max_configurations: search.max_configurations,
        lost: lost.unwrap_or_default(),
    })
}

/// Adds a configuration unless it is known with at most the same losses. Returns whether it was added.
fn note(
    known: &mut HashMap<Configuration, Lost>,
    configuration: &Configuration,
    lost: &Lost,
) -> bool {
    match known.entry(configuration.clone()) {
        hash_map::Entry::Vacant(place) => {
            place.insert(lost.clone());
            true
        }
        hash_map::Entry::Occupied(mut found) => {
            let is_less = lost.iter().sum::<usize>() < found.get().iter().sum();
            if is_less {
                found.insert(lost.clone());
            }
            is_less
        }
    }
}

impl Search<'_> {
    /// Returns the configurations that are left at the end of a call: those in which it was made and, without a reply, those
    /// in which it was not. Returns `None` if there are too many.
    fn end(
        &mut self,
        configurations: HashMap<Configuration, Lost>,
        pending: &[usize],
        at: usize,
    ) -> Option<HashMap<Configuration, Lost>> {
        let is_certain = self.calls[at].reply.is_some() || self.calls[at].is_failover();
        let mut left = HashMap::new();
        let mut seen = HashMap::new();
        let mut open: Vec<(Configuration, Lost)> = configurations.into_iter().collect();
        while let Some((one, lost)) = open.pop() {
            if seen.len() > self.bounds.max_configurations {
                return None;
            }
            if one.made.contains(&at) {
                let made = one.made.iter().copied().filter(|other| *other != at).collect();
                let ended = Configuration { made, ..one.clone() };
                self.note_origin(&ended, &one, false);
                note(&mut left, &ended, &lost);
                continue;
            }
            let waiting = || pending.iter().copied().filter(|other| !one.made.contains(other));
            // Such a call changes nothing for the others, so making it now excludes no order.
            let at_once = waiting().find_map(|other| self.make_at_once(&one, other));
            let is_alone = at_once.is_some();
            let next = match at_once {
                Some(next) => vec![(next, lost.clone())],
                None => {
                    let mut next = Vec::new();
                    for other in waiting() {
                        self.make(&one, &lost, other, &mut next);
                    }
                    next
                }
            };
            for (next, lost) in next {
                if note(&mut seen, &next, &lost) {
                    open.push((next, lost));
                }
            }
            if !is_certain && !is_alone {
                note(&mut left, &one, &lost);
            }
        }
        self.max_configurations = self.max_configurations.max(seen.len());
        Some(left)
    }

    /// Makes a call that takes nothing, if its reply is right at the time of the configuration.
    fn make_at_once(&mut self, one: &Configuration, at: usize) -> Option<Configuration> {
        let call = &self.calls[at];
        let now = call.clock_us.0..=call.clock_us.1;
        if !call.takes_nothing() || !now.contains(&one.now_us) {
            return None;
        }
        self.apply(one.state, at, one.now_us)?;
        let next = Configuration { made: with(&one.made, at), ..one.clone() };
        self.note_origin(&next, one, false);
        Some(next)
    }

    /// Adds to `next` the possible results of making this call next.
    fn make(
        &mut self,
        one: &Configuration,
        lost: &Lost,
        at: usize,
        next: &mut Vec<(Configuration, Lost)>,
    ) {
        let call = &self.calls[at];
        let made = with(&one.made, at);
        if call.is_failover() {
            for (state, effects) in self.cuts(one) {
                let state = self.without_the_past(state, one.now_us);
                let lost = [&lost[..], &[effects]].concat();
                next.push((Configuration { state, now_us: one.now_us, made: made.clone() }, lost));
            }
            return;
        }
        let mut now_us = call.clock_us.0.max(one.now_us);
        while now_us <= call.clock_us.1 {
            if let Some(state) = self.apply(one.state, at, now_us) {
                let made = Configuration { state, now_us, made: made.clone() };
                if self.origins.is_some() {
                    let before = self.without_the_past(one.state, now_us);
                    self.note_origin(&made, one, made.state != before);
                }
                next.push((made, lost.clone()));
            }
            now_us += self.bounds.tick_us;
        }
    }

    /// Returns the state after a call, or `None` if the call would have had another reply.
    fn apply(&mut self, state: StateNumber, at: usize, now_us: u64) -> Option<StateNumber> {
        if let Some(known) = self.made.get(&(state, at, now_us)) {
            return *known;
        }
        let call = &self.calls[at];
        let (reply, saved) = apply(self.memory, self.states.saved(state), &call.event, now_us);
        let left = call.reply.as_ref().is_none_or(|recorded| *recorded == reply).then(|| {
            let period_us = self.bounds.period_us;
            let left = saved.and_then(|saved| without_the_past(&saved, now_us, period_us));
            self.states.number(left)
        });
        self.made.insert((state, at, now_us), left);
        left
    }

    fn without_the_past(&mut self, state: StateNumber, now_us: u64) -> StateNumber {
        let saved = self.states.saved(state);
        let left = saved.and_then(|saved| without_the_past(saved, now_us, self.bounds.period_us));
        self.states.number(left)
    }

    fn note_origin(&mut self, one: &Configuration, from: &Configuration, by_effect: bool) {
        let Some(origins) = &mut self.origins else { return };
        let known = origins.entry(one.clone()).or_default();
        let origin = (from.clone(), by_effect);
        if one != from && !known.contains(&origin) {
            known.push(origin);
        }
    }

    /// Returns the states that a replica may have when it takes over now, each with the smallest number of lost effects: the
    /// states of this configuration and of all its predecessors.
    fn cuts(&self, last: &Configuration) -> Vec<(StateNumber, usize)> {
        let nothing = Origins::new();
        let origins = self.origins.as_ref().unwrap_or(&nothing);
        let mut effects = HashMap::from([(last, 0)]);
        let mut open = VecDeque::from([(last, 0)]);
        let mut cuts: HashMap<StateNumber, usize> = HashMap::new();
        while let Some((one, lost)) = open.pop_front() {
            if effects[one] < lost {
                continue;
            }
            let min = cuts.entry(one.state).or_insert(lost);
            *min = lost.min(*min);
            for (from, by_effect) in origins.get(one).into_iter().flatten() {
                let lost = lost + usize::from(*by_effect);
                if effects.get(from).is_some_and(|known| *known <= lost) {
                    continue;
                }
                effects.insert(from, lost);
                match by_effect {
                    true => open.push_back((from, lost)),
                    false => open.push_front((from, lost)),
                }
            }
        }
        cuts.into_iter().collect()
    }
}

fn with(made: &[usize], at: usize) -> Vec<usize> {
    let mut made = made.to_vec();
    made.push(at);
    made.sort_unstable();
    made
}

/// Returns the part of a key that can still change a reply: without events and reservations that have left, and with totals
/// that start at 0. The key never expires here, so a server whose key expires too early is refused.
fn without_the_past(saved: &Saved, now_us: u64, period_us: u64) -> Option<Saved> {
    let value = match &saved.value {
        SavedValue::Bucket(text) => {
            let stored = StoredBucket::decode(text).expect("the engine wrote it");
            if stored.needed_until_ms() * 1_000 <= now_us {
                return None;
            }
            SavedValue::Bucket(text.clone())
        }
        SavedValue::Window { reserved, entries } => {
            let is_live = |text: &&Vec<u8>| {
                Reservation::decode(text).is_none_or(|reservation| reservation.is_live(now_us))
            };
            let reserved: Vec<_> = reserved.iter().filter(is_live).cloned().collect();
            let live = entries.iter().map(|(score, member)| {
                (*score, Entry::decode(*score as f64, member).expect("the engine wrote it"))
            });
            let live: Vec<_> =
                live.take_while(|(_, entry)| entry.newest_us + period_us > now_us).collect();
            let before = live.last().map_or(0, |(_, oldest)| oldest.total_before());
            let entries: Vec<_> = live
                .into_iter()
                .map(|(score, entry)| {
                    let total = entry.total.wrapping_sub(before);
                    (score, Entry { total, ..entry }.member().as_bytes().to_vec())
                })
                .collect();
            if reserved.is_empty() && entries.is_empty() {
                return None;
            }
            SavedValue::Window { reserved, entries }
        }
    };
    Some(Saved { value, expires_at_ms: NEVER_MS })
}

/// A time in Unix milliseconds that no clock of a history reaches.
const NEVER_MS: u64 = 1 << 50;

/// Returns the engine's reply to a call, and the key after it.
pub fn apply(
    memory: &Memory,
    saved: Option<&Saved>,
    event: &HistoryEvent,
    now_us: u64,
) -> (Vec<i64>, Option<Saved>) {
    memory.delete(KEY);
    if let Some(saved) = saved {
        memory.restore(KEY, saved).expect("what was saved is sound");
    }
    let reply = match event {
        HistoryEvent::Take(request) => {
            match memory.decide(KEY, request, now_us, || Id::from(&b"made"[..])) {
                Ok(decision) => reply(request, &decision),
                Err(Refusal::Duplicate) => vec![DUPLICATE],
                Err(other) => panic!("{other:?}"),
            }
        }
        HistoryEvent::Apply(id) => {
            let applied =
                memory.apply(KEY, id, None, 4096, now_us).expect("a window's reservation");
            vec![i64::from(applied)]
        }
        HistoryEvent::Release(id) => {
            vec![i64::from(memory.release(KEY, id, now_us).expect("a window"))]
        }
        HistoryEvent::Failover { .. } => unreachable!("a failover is no call"),
    };
    (reply, memory.save(KEY))
}

fn reply(request: &Request, decision: &Decision) -> Vec<i64> {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let ms = |us: u64| number(us.div_ceil(1_000));
    let verdict = decision.verdict;
    let mut reply = vec![
        number(verdict.limited()),
        number(decision.limit),
        number(decision.remaining),
        verdict.retry_after_us().map_or(-1, ms),
        ms(decision.reset_after_us),
    ];
    match (&request.limit, request.ask.manner) {
        (Limit::Reserve(..), _) => reply.push(i64::from(decision.id.is_some())),
        (_, Manner::AtMost) => reply.push(number(verdict.taken())),
        _ => {}
    }
    reply
}

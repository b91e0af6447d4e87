//! The order of the calls in a line: LEAVE, then turns among those who call, then arrival.
//!
//! Among calls of the same LEAVE this is start-time fair queueing (Goyal, Vin and Cheng: Start-time Fair Queuing, SIGCOMM
//! 1996). BY names the caller; all calls without BY are of one caller. A call that joins gets a start tag:
//!
//! ```text
//! start = max(virtual time, the caller's end tag)       the smallest start tag is first, of equal ones the earlier arrival
//! the caller's end tag = start + quantity / weight
//! virtual time = the start tag of the call that was granted last
//!
//! a: |--4--|--4--|--4--|        weight 1, quantities 4: starts at 0, 4, 8
//! b: |2|2|2|                    weight 2, quantities 4: starts at 0, 2, 4
//!    0 2 4 6 8                  granted: a0 b0 b2 a4 b4 a8
//! ```
//!
//! A call that comes from another line (RL.ALL) may have come before calls of the same caller in this line. It takes the tag
//! of the first of these, and stands before it. Each of these then starts later by the length of the new one, as if it had
//! been there from the beginning: otherwise a caller would get more turns by standing in other lines first.
//!
//! **Lemma.** While callers f and g both have calls waiting, what each is granted, divided by its weight, differs by at most
//! `F + G`, where `F` and `G` are their largest quantities, each divided by its weight. That does not hold for a caller
//! whose calls have left unserved: the tags behind them stay, so it falls back by as much.
//!
//! **Proof.** The smallest tag is granted, and no call joins below the virtual time, so that never goes back, and no waiting
//! call is below it. Say that it goes from u to v. As long as f waits, its end tag is above the virtual time, so each of its
//! calls starts where the one before ends: what f is granted, divided by its weight, is `s1 - s0`, where s0 is the tag of
//! its first waiting call at the beginning, and s1 at the end. Now `u <= s0 <= u + F`: the call joined at u or earlier, or
//! where the call before it ends, which started at u or earlier. For the same reasons `v <= s1 <= v + F`. So f is granted at
//! most `v - u + F` and g at least `v - u - G`, or the other way round.

use super::Ticket;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What decides the place of a call in a line: LEAVE, then the turns among those who call (BY), then arrival.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'w> {
    /// The call's LEAVE. Calls with a smaller one come first.
    pub leave: u64,
    /// The caller, whose turn it takes (BY). Empty without BY: all such calls are of one caller.
    pub caller: &'w [u8],
    /// WEIGHT, from 1 to 1000.
    pub weight: u64,
    /// The quantity as asked for, at least 1.
    pub quantity: u64,
}

/// The length of a quantity of 1 with a weight of 1. Divided by any weight up to 16, and by most that people choose, it has
/// no remainder: 720720 is the least common multiple of the numbers from 1 to 16.
const UNIT: u128 = 720_720 * 1_000_000;

/// Stands for the ticket of a call that arrives now and has none yet: it is later than all others.
const LAST: Ticket = Ticket(u64::MAX);

impl Turn<'_> {
    fn length(&self) -> u128 {
        let quantity = u128::from(self.quantity).saturating_mul(UNIT);
        quantity.checked_div(u128::from(self.weight)).unwrap_or(quantity)
    }
}

/// The place of the first call of a caller. The smallest is the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) leave: u64,
    tag: u128,
    pub(super) ticket: Ticket,
}

/// The order of one line, and what it remembers of callers. A line without calls remembers nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    /// The first call of each caller.
    first: BTreeSet<Place>,
    calls: usize,
    /// The callers of each LEAVE that has any.
    levels: BTreeMap<u64, Level>,
    /// The callers that have no call in the line.
    idle: BTreeSet<Idle>,
    /// The number of callers with a name, in all levels.
    named: usize,
    /// The number of levels with a caller without a name.
    unnamed: usize,
}

/// The callers of the same LEAVE: those that have calls in the line, and those whose end tag is above the virtual time. The
/// others are forgotten, because their next call starts at the virtual time anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Level {
    virtual_time: u128,
    callers: BTreeMap<Box<[u8]>, Caller>,
}

/// A caller. Its calls stand in the order of their tickets, each where the one before it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Caller {
    /// The start tag of its first call. Without a call, the end tag of the last one.
    start: u128,
    calls: BTreeMap<Ticket, QueuedCall>,
    /// The length of the calls behind the last one that left without being granted anything.
    gap: u128,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct QueuedCall {
    /// The length of the calls between this one and the one before it that left without being granted anything. The tags of
    /// the calls behind them stay. 0 for the first.
    gap: u128,
    /// The length of this call: its quantity, divided by its weight.
    length: u128,
}

/// A caller without calls in the line. If there are too many, the first ones are forgotten.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Idle {
    is_unnamed: bool,
    leave: Reverse<u64>,
    end: u128,
    name: Box<[u8]>,
}

impl Caller {
    fn place(&self, leave: u64) -> Option<Place> {
        let (ticket, _) = self.calls.first_key_value()?;
        Some(Place { leave, tag: self.start, ticket: *ticket })
    }

    /// Adds a call before those that came later. These move back by its length.
    fn insert(&mut self, ticket: Ticket, length: u128, virtual_time: u128) {
        if self.calls.is_empty() {
            self.start = self.start.max(virtual_time);
        }
        let gap = std::mem::take(self.gap_before_next(ticket));
        self.calls.insert(ticket, QueuedCall { gap, length });
    }

    /// Removes a call. The tags of the others stay.
    fn remove(&mut self, ticket: Ticket) {
        let is_first = self.calls.keys().next() == Some(&ticket);
        let Some(QueuedCall { gap, length }) = self.calls.remove(&ticket) else { return };
        let next_gap = self.gap_before_next(ticket);
        *next_gap = next_gap.saturating_add(gap).saturating_add(length);
        if is_first {
            let first_gap = std::mem::take(next_gap);
            self.start = self.start.saturating_add(first_gap);
        }
    }

    /// Returns the gap before the next call that came after this one, or the one behind the last call.
    fn gap_before_next(&mut self, ticket: Ticket) -> &mut u128 {
        let next = self.calls.range_mut(ticket..).next();
        next.map_or(&mut self.gap, |(_, next)| &mut next.gap)
    }
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.calls == 0
    }

    pub(super) fn len(&self) -> usize {
        self.calls
    }

    pub(super) fn head(&self) -> Option<&Place> {
        self.first.first()
    }

    /// Returns whether a call stands before the place that [`Turns::enter`] would give to the call with this ticket, or to
    /// one that arrives now.
    pub(super) fn is_preceded(&self, turn: &Turn, ticket: Option<Ticket>) -> bool {
        let level = self.levels.get(&turn.leave);
        let caller = level.and_then(|level| level.callers.get(turn.caller));
        let virtual_time = level.map_or(0, |level| level.virtual_time);
        // If its caller has calls that came before, the first one has the same tag here, and comes before it.
        let tag = virtual_time.max(caller.map_or(0, |caller| caller.start));
        let ticket = ticket.unwrap_or(LAST);
        let place = Place { leave: turn.leave, tag, ticket };
        self.head().is_some_and(|head| *head < place)
    }

    /// Counts a call that was granted without standing in the line. Nobody in the line would stand before it.
    pub(super) fn count_turn(&mut self, turn: &Turn, ticket: Option<Ticket>) {
        if self.is_empty() {
            return;
        }
        let ticket = ticket.unwrap_or(LAST);
        let tag = self.change_caller(turn.leave, turn.caller, |caller, virtual_time| {
            caller.insert(ticket, turn.length(), virtual_time);
            let tag = caller.start;
            caller.remove(ticket);
            tag
        });
        self.advance(turn.leave, tag);
    }

    /// Gives a call its place: before the calls of its caller that came later, and behind all others of its caller.
    pub(super) fn enter(&mut self, turn: &Turn, ticket: Ticket) {
        self.calls = self.calls.saturating_add(1);
        self.change_caller(turn.leave, turn.caller, |caller, virtual_time| {
            caller.insert(ticket, turn.length(), virtual_time);
        });
    }

    /// Removes a call. If it was granted, it was the head.
    pub(super) fn remove(&mut self, leave: u64, name: &[u8], ticket: Ticket, granted: bool) {
        self.calls = self.calls.saturating_sub(1);
        if self.is_empty() {
            *self = Turns::default();
            return;
        }
        let tag = self.change_caller(leave, name, |caller, _| {
            let tag = caller.start;
            caller.remove(ticket);
            tag
        });
        if granted {
            self.advance(leave, tag);
        }
    }

    /// Moves the virtual time to the tag of a call that was granted.
    fn advance(&mut self, leave: u64, tag: u128) {
        let Some(level) = self.levels.get_mut(&leave) else { return };
        level.virtual_time = tag;
        for is_unnamed in [false, true] {
            let leave = Reverse(leave);
            let from = Idle { is_unnamed, leave, end: 0, name: Box::default() };
            let first = |idle: &BTreeSet<Idle>| idle.range(&from..).next().cloned();
            let is_forgettable = |idle: &Idle| {
                (idle.is_unnamed, idle.leave) == (is_unnamed, leave) && idle.end <= tag
            };
            while let Some(idle) = first(&self.idle).filter(is_forgettable) {
                self.forget(&idle);
            }
        }
    }

    /// Forgets callers until at most `max` with a name are remembered, and those without a name in at most `max` levels.
    /// Callers that have calls in the line stay.
    pub(super) fn forget_callers(&mut self, max: usize) {
        while self.named > max {
            let first = self.idle.first().filter(|idle| !idle.is_unnamed).cloned();
            let Some(idle) = first else { break };
            self.forget(&idle);
        }
        while self.unnamed > max {
            let leave = Reverse(u64::MAX);
            let from = Idle { is_unnamed: true, leave, end: 0, name: Box::default() };
            let Some(idle) = self.idle.range(from..).next().cloned() else { break };
            self.forget(&idle);
        }
    }

    fn forget(&mut self, idle: &Idle) {
        self.idle.remove(idle);
        let Idle { is_unnamed, leave: Reverse(leave), name, .. } = idle;
        let Some(level) = self.levels.get_mut(leave) else { return };
        level.callers.remove(name);
        if level.callers.is_empty() {
            self.levels.remove(leave);
        }
        let callers = if *is_unnamed { &mut self.unnamed } else { &mut self.named };
        *callers = callers.saturating_sub(1);
    }

    /// Changes a caller, which is remembered from now on. `change` receives the virtual time.
    fn change_caller<R>(
        &mut self,
        leave: u64,
        name: &[u8],
        change: impl FnOnce(&mut Caller, u128) -> R,
    ) -> R {
        let level = self.levels.entry(leave).or_default();
        if !level.callers.contains_key(name) {
            let callers = if name.is_empty() { &mut self.unnamed } else { &mut self.named };
            *callers = callers.saturating_add(1);
        }
        let caller = level.callers.entry(name.into()).or_default();
        let (is_unnamed, name) = (name.is_empty(), Box::from(name));
        let mut idle = Idle { is_unnamed, leave: Reverse(leave), end: caller.start, name };
        match caller.place(leave) {
            Some(place) => self.first.remove(&place),
            None => self.idle.remove(&idle),
        };
        let changed = change(caller, level.virtual_time);
        idle.end = caller.start;
        match caller.place(leave) {
            Some(place) => self.first.insert(place),
            None => self.idle.insert(idle),
        };
        changed
    }
}

#[cfg(test)]
mod tests;

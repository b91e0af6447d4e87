//! The order of the calls in a line: LEAVE, then turns among those who call, then arrival.
//!
//! Among calls of the same LEAVE this is start-time fair queueing (Goyal, Vin and Cheng: Start-time Fair Queuing, SIGCOMM
//! 1996). A caller is who makes calls (BY); all calls without BY are one caller. A call that joins gets a start tag:
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
//! **Lemma.** While callers f and g both have calls waiting, what each is granted, divided by its weight, differs by at most
//! `F + G`, where `F` and `G` are their largest quantities, each divided by its weight. Not counted are grants to calls that
//! took the tag of another ([`Turns::enter`]). Nor does it hold for a caller whose calls have left unserved: the tags behind
//! them stay, so it falls back by as much.
//!
//! **Proof.** The smallest tag is granted, and no call joins below the virtual time, so that never goes back, and no waiting
//! call is below it. Say that it goes from u to v. As long as f waits, its end tag is above the virtual time, so each of its
//! calls starts where the one before ends: what f is granted, divided by its weight, is `s1 - s0`, where s0 is the tag of its
//! first waiting call at the beginning, and s1 at the end. Now `u <= s0 <= u + F`: the call joined at u or earlier, or where
//! the call before it ends, which started at u or earlier. For the same reasons `v <= s1 <= v + F`. So f is granted at most
//! `v - u + F` and g at least `v - u - G`, or the other way round.

use super::Ticket;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What decides the place of a call in a line: LEAVE, then the turns among those who call (BY), then arrival.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'w> {
    /// The call's LEAVE. Calls with a smaller one come first.
    pub leave: u64,
    /// Whose turn it takes (BY), at least one byte. All calls without BY share one.
    pub who: Option<&'w [u8]>,
    /// WEIGHT, from 1 to 1000.
    pub weight: u64,
    /// The quantity as asked for, at least 1.
    pub quantity: u64,
}

/// The length of a quantity of 1 with a weight of 1. Divided by any weight up to 16, and by most that people choose, it has no
/// remainder: 720720 is the least common multiple of the numbers from 1 to 16.
const UNIT: u128 = 720_720 * 1_000_000;

impl<'w> Turn<'w> {
    /// Returns the caller. Those without a name have the empty one.
    fn caller(&self) -> &'w [u8] {
        self.who.unwrap_or_default()
    }

    fn length(&self) -> u128 {
        let quantity = u128::from(self.quantity).saturating_mul(UNIT);
        quantity.checked_div(u128::from(self.weight)).unwrap_or(quantity)
    }
}

/// The place of a call in a line. The smallest is the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) leave: u64,
    /// The start tag.
    tag: u128,
    pub(super) ticket: Ticket,
}

/// The places in one line, and what it remembers of callers. A line without calls remembers nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    order: BTreeSet<Place>,
    /// The callers of each LEAVE that has any.
    levels: BTreeMap<u64, Level>,
    /// The callers that have no call in the line.
    idle: BTreeSet<Idle>,
    /// The number of callers with a name, and without one, in all levels.
    callers: (usize, usize),
}

/// The callers of the same LEAVE: those that have calls in the line, and those whose end tag is above the virtual time. The
/// others are forgotten, because their next call starts at the virtual time anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Level {
    virtual_time: u128,
    callers: BTreeMap<Box<[u8]>, Caller>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Caller {
    /// The end tag of its last call.
    end: u128,
    /// The start tags of its calls in the line. They increase with the tickets.
    calls: BTreeMap<Ticket, u128>,
}

/// A caller without calls in the line. If there are too many, the first ones are forgotten.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Idle {
    is_unnamed: bool,
    leave: Reverse<u64>,
    end: u128,
    name: Box<[u8]>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the place of the head.
    pub(super) fn first(&self) -> Option<&Place> {
        self.order.first()
    }

    /// Returns whether a call stands before the place that [`Turns::enter`] would give to the call with the ticket `came`, or
    /// to one that comes now.
    pub(super) fn is_preceded(&self, turn: &Turn, came: Option<Ticket>) -> bool {
        self.first().is_some_and(|first| *first < self.place(turn, came).0)
    }

    /// Counts a call as granted that does not stand in the line.
    pub(super) fn pass(&mut self, turn: &Turn, came: Option<Ticket>) {
        if !self.is_empty() {
            let place = self.charge(turn, came);
            self.advance(place);
        }
    }

    /// Gives a call its place. A call that comes from another line may have come before calls of the same caller and LEAVE
    /// in this line: it stands before the first of these, and has its tag. Any other call gets a new tag.
    pub(super) fn enter(&mut self, turn: &Turn, ticket: Ticket) -> Place {
        let place = self.charge(turn, Some(ticket));
        self.change_caller(turn.leave, turn.caller(), |caller| {
            caller.calls.insert(ticket, place.tag);
        });
        self.order.insert(place);
        place
    }

    /// Removes a call, which was granted or is not served.
    pub(super) fn remove(&mut self, place: Place, name: &[u8], granted: bool) {
        self.order.remove(&place);
        if self.is_empty() {
            *self = Turns::default();
            return;
        }
        self.change_caller(place.leave, name, |caller| {
            caller.calls.remove(&place.ticket);
        });
        if granted {
            self.advance(place);
        }
    }

    /// Returns the place of a call, and whether its tag is a new one.
    fn place(&self, turn: &Turn, came: Option<Ticket>) -> (Place, bool) {
        let level = self.levels.get(&turn.leave);
        let caller = level.and_then(|level| level.callers.get(turn.caller()));
        let came_later =
            came.zip(caller).and_then(|(came, caller)| caller.calls.range(came..).next());
        let start = || {
            let virtual_time = level.map_or(0, |level| level.virtual_time);
            virtual_time.max(caller.map_or(0, |caller| caller.end))
        };
        let tag = came_later.map_or_else(start, |(_, tag)| *tag);
        let ticket = came.unwrap_or(Ticket(u64::MAX));
        (Place { leave: turn.leave, tag, ticket }, came_later.is_none())
    }

    /// Returns the place of a call, and sets the caller's end tag if the call has a tag of its own.
    fn charge(&mut self, turn: &Turn, came: Option<Ticket>) -> Place {
        let (place, is_new) = self.place(turn, came);
        if is_new {
            let end = place.tag.saturating_add(turn.length());
            self.change_caller(turn.leave, turn.caller(), |caller| caller.end = end);
        }
        place
    }

    /// Moves the virtual time to the tag of a call that was granted.
    fn advance(&mut self, granted: Place) {
        let Some(level) = self.levels.get_mut(&granted.leave) else { return };
        level.virtual_time = level.virtual_time.max(granted.tag);
        let virtual_time = level.virtual_time;
        for is_unnamed in [false, true] {
            let leave = Reverse(granted.leave);
            let from = Idle { is_unnamed, leave, end: 0, name: Box::default() };
            let first = |idle: &BTreeSet<Idle>| idle.range(&from..).next().cloned();
            let says_nothing = |idle: &Idle| {
                (idle.is_unnamed, idle.leave) == (is_unnamed, leave) && idle.end <= virtual_time
            };
            while let Some(idle) = first(&self.idle).filter(says_nothing) {
                self.forget(&idle);
            }
        }
    }

    /// Forgets callers until at most `max` with a name are remembered, and those without a name in at most `max` levels.
    /// Callers that have calls in the line stay.
    pub(super) fn forget_callers(&mut self, max: usize) {
        while self.callers.0 > max {
            let Some(idle) = self.idle.first().filter(|idle| !idle.is_unnamed).cloned() else {
                break;
            };
            self.forget(&idle);
        }
        while self.callers.1 > max {
            let from =
                Idle { is_unnamed: true, leave: Reverse(u64::MAX), end: 0, name: Box::default() };
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
        let callers = if *is_unnamed { &mut self.callers.1 } else { &mut self.callers.0 };
        *callers = callers.saturating_sub(1);
    }

    /// Changes a caller, which is remembered from now on.
    fn change_caller(&mut self, leave: u64, name: &[u8], change: impl FnOnce(&mut Caller)) {
        let level = self.levels.entry(leave).or_default();
        if !level.callers.contains_key(name) {
            level.callers.insert(name.into(), Caller::default());
            let callers = if name.is_empty() { &mut self.callers.1 } else { &mut self.callers.0 };
            *callers = callers.saturating_add(1);
        }
        let Some(caller) = level.callers.get_mut(name) else { return };
        let idle = |end| Idle {
            is_unnamed: name.is_empty(),
            leave: Reverse(leave),
            end,
            name: name.into(),
        };
        if caller.calls.is_empty() {
            self.idle.remove(&idle(caller.end));
        }
        change(caller);
        if caller.calls.is_empty() {
            self.idle.insert(idle(caller.end));
        }
    }
}

#[cfg(test)]
mod tests;

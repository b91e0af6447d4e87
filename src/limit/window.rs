//! At most `limit` in a window: counted events and held reservations together.
//!
//! ```text
//!   left       first                          tail   now
//! ----x--x--|---e------e--e-----------e--------e------|------> time
//!           |<--------------- the window ------------>|
//!  dead: not    counted = tail.total - first.before()
//!  counted
//! ```
//!
//! A running total in every entry (see [`super::event`]) makes the sum one subtraction, and the search for the
//! moment at which enough has left a bisection over time.

use super::decision::{Decision, Limited, LEAST_WAIT_IN_LINE_US};
use super::event::{Event, MAX_SUM};
use super::rule::Moment;

/// Reads a key's entries of events, in the order of their times.
pub trait Events {
    /// What reading can fail with.
    type Error;
    /// The first entry with a score above `us`; the very first for `None`.
    fn first_after(&mut self, us: Option<u64>) -> Result<Option<Event>, Self::Error>;
    /// The last entry with a score of at most `us`; the very last for `None`.
    fn last_until(&mut self, us: Option<u64>) -> Result<Option<Event>, Self::Error>;
    /// What is said where entries contradict each other, as no writing of ours can make them.
    fn contradiction() -> Self::Error;
}

/// What is to be written after a decision: first `put` is added, then the rest removed, so that the key never
/// vanishes in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The entry to add.
    pub put: Option<Event>,
    /// The entry that `put` replaces.
    pub remove: Option<Event>,
    /// Remove all other entries with times after now: `put` holds what they held.
    pub remove_future: bool,
}

/// What counts at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    moment: Moment,
    first: Option<Event>,
    tail: Option<Event>,
    edit: Edit,
}

impl Tally {
    /// Counts. Events from the future, of a clock that went back, count as happening now.
    pub fn read<E: Events>(events: &mut E, moment: Moment) -> Result<Tally, E::Error> {
        let now_us = moment.now_us();
        let mut tally = Tally { moment, first: None, tail: None, edit: Edit::default() };
        let Some(newest) = events.last_until(None)? else { return Ok(tally) };
        let mut tail = newest;
        if newest.newest_us > now_us {
            let future = events.first_after(Some(now_us))?.ok_or_else(E::contradiction)?;
            tail = Event {
                newest_us: now_us,
                span_us: now_us.saturating_sub(future.first_us()),
                total: newest.total,
                weight: newest.sum_since(&future),
                // Between two denied ones there may be others.
                denied: newest.denied && newest == future,
            };
            if !(1..=MAX_SUM).contains(&tail.weight) {
                return Err(E::contradiction());
            }
            if let Some(prior) = events.last_until(Some(now_us))? {
                // Sharing as new events do bounds the entries of a clock that swings.
                let first_us = prior.first_us();
                if prior.newest_us == now_us || moment.shares(first_us, prior.denied, tail.denied) {
                    tail.span_us = now_us.saturating_sub(first_us);
                    tail.weight = tail
                        .weight
                        .checked_add(prior.weight)
                        .filter(|weight| *weight <= MAX_SUM)
                        .ok_or_else(E::contradiction)?;
                    tail.denied = tail.denied && prior.denied;
                    tally.edit.remove = Some(prior);
                }
            }
            tally.edit.remove_future = true;
            tally.edit.put = Some(tail);
        }
        tally.tail = Some(tail);
        let left_us = moment.left_us();
        if left_us.is_some_and(|left_us| tail.newest_us <= left_us) {
            return Ok(tally);
        }
        tally.first = match events.first_after(left_us)? {
            Some(first) if first.newest_us < tail.newest_us => Some(first),
            _ => Some(tail),
        };
        if tail.weight > MAX_SUM || tally.counted() > MAX_SUM || tally.counted() < tail.weight {
            return Err(E::contradiction());
        }
        Ok(tally)
    }

    /// The sum of the events in the window.
    pub fn counted(&self) -> u64 {
        match (&self.first, &self.tail) {
            (Some(first), Some(tail)) => tail.sum_since(first),
            _ => 0,
        }
    }

    /// Whether events from the future were met, so that [`Edit`] is to be carried out whatever is decided.
    pub fn has_future(&self) -> bool {
        self.edit.remove_future
    }

    /// What is to be written.
    pub fn edit(&self) -> Edit {
        self.edit
    }

    /// Counts an event of `weight` now. What would pass [`MAX_SUM`] saturates there.
    pub fn record(&mut self, weight: u64, denied: bool) {
        let now_us = self.moment.now_us();
        let weight = weight.min(MAX_SUM.saturating_sub(self.counted()));
        if weight == 0 {
            return;
        }
        let mut event = Event { newest_us: now_us, span_us: 0, total: weight, weight, denied };
        if let Some(tail) = self.tail {
            event.total = tail.total.wrapping_add(weight);
            let first_us = tail.first_us();
            if tail.newest_us == now_us || self.moment.shares(first_us, tail.denied, denied) {
                event.span_us = now_us.saturating_sub(first_us);
                event.weight = tail.weight.saturating_add(weight);
                event.denied = tail.denied && denied;
                if self.edit.put.is_none() {
                    self.edit.remove = Some(tail);
                }
            }
        }
        self.first = self.first.or(Some(event)).map(|first| {
            // The entry that was both first and last is now this one.
            if first.before() == event.before() {
                event
            } else {
                first
            }
        });
        self.tail = Some(event);
        self.edit.put = Some(event);
    }

    /// When the last of the counted events leaves; `None` if there is none.
    pub fn empty_at_us(&self) -> Option<u64> {
        self.first?;
        self.tail.map(|tail| self.moment.leave_us(tail.newest_us))
    }

    /// When `need` of the counted events, at most all of them, will have left.
    fn left_at_us<E: Events>(&self, events: &mut E, need: u64) -> Result<Option<u64>, E::Error> {
        let (Some(first), Some(tail)) = (self.first, self.tail) else { return Ok(None) };
        if need > self.counted() {
            return Ok(None);
        }
        if need > tail.before().wrapping_sub(first.before()) {
            return Ok(Some(self.moment.leave_us(tail.newest_us)));
        }
        if need <= first.weight {
            return Ok(Some(self.moment.leave_us(first.newest_us)));
        }
        // Up to `low` too little has left; `found` is enough, and `high` is no later than `found`.
        let (mut low, mut high, mut found) = (first.newest_us, tail.newest_us, tail);
        while high.saturating_sub(low) > 1 {
            let middle = low.midpoint(high).max(low.saturating_add(1));
            match events.first_after(middle.checked_sub(1))? {
                Some(event) if event.newest_us < high => {
                    if event.sum_since(&first) >= need {
                        found = event;
                        high = middle;
                    } else {
                        low = event.newest_us;
                    }
                }
                _ => high = middle,
            }
        }
        Ok(Some(self.moment.leave_us(found.newest_us)))
    }

    /// How much of the counted will have left at `then_us`.
    fn left_by<E: Events>(&self, events: &mut E, then_us: u64) -> Result<u64, E::Error> {
        let (Some(first), Some(tail)) = (self.first, self.tail) else { return Ok(0) };
        let Some(left_us) = self.moment.left_by(then_us) else { return Ok(0) };
        if left_us >= tail.newest_us {
            return Ok(self.counted());
        }
        if left_us < first.newest_us {
            return Ok(0);
        }
        let last = events.last_until(Some(left_us))?.ok_or_else(E::contradiction)?;
        // An entry that `tail` has replaced leaves with `tail`.
        Ok(last.sum_since(&first).min(tail.before().wrapping_sub(first.before())))
    }
}

/// The live reservations of a key.
#[derive(Debug, Default)]
pub struct Held {
    /// Their quantities' sum; what would not fit saturates.
    total: u64,
    /// When each lapses, and its quantity.
    lapses: Vec<(u64, u64)>,
}

impl Held {
    /// Adds one that lapses at `end_us`.
    pub fn add(&mut self, end_us: u64, quantity: u64) {
        self.total = self.total.saturating_add(quantity);
        self.lapses.push((end_us, quantity));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lapses.len()
    }

    /// The sum of their quantities.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// When the last of them lapses.
    pub fn empty_at_us(&self) -> Option<u64> {
        self.lapses.iter().map(|(end_us, _)| *end_us).max()
    }
}

/// What one call asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The most that the window may hold.
    pub limit: u64,
    /// How much; 0 looks.
    pub quantity: u64,
    /// Take less where there is less.
    pub atmost: bool,
    /// Others wait on the key and came before.
    pub barred: bool,
}

/// A judgement on an [`Ask`], before its times are worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Granted this much; 0 where the call only looks.
    Granted(u64),
    /// Beyond what the limit could ever allow.
    Never,
    /// Denied, and this much must leave or be given back first: 0 if only others are before.
    Wanting {
        /// How much.
        need: u64,
        /// Whether the counted events alone would leave enough.
        held: bool,
    },
}

impl Ask {
    /// Judges, with `counted` in the window and `held` in reservations.
    pub fn judge(&self, counted: u64, held: u64) -> Judgement {
        let used = counted.saturating_add(held);
        let free = self.limit.saturating_sub(used);
        let least = if self.atmost { 1 } else { self.quantity };
        if self.quantity == 0 {
            return Judgement::Granted(0);
        }
        if least > self.limit {
            return Judgement::Never;
        }
        if least <= free && !self.barred {
            return Judgement::Granted(self.quantity.min(free));
        }
        let need = used.saturating_add(least).saturating_sub(self.limit);
        Judgement::Wanting { need, held: counted.saturating_add(least) <= self.limit }
    }
}

/// When `need` will have left by itself: events that leave, leases that lapse.
pub fn freed_at_us<E: Events>(
    events: &mut E,
    tally: &Tally,
    held: &mut Held,
    need: u64,
) -> Result<Option<u64>, E::Error> {
    if need == 0 {
        return Ok(Some(tally.moment.now_us()));
    }
    if held.lapses.is_empty() {
        return tally.left_at_us(events, need);
    }
    held.lapses.sort_unstable();
    // `lapsed` is what the leases before number `enough` hold. Bisects for the first lease with whose end there
    // is enough, events included.
    let (mut enough, mut end) = (0, held.lapses.len());
    let mut lapsed: u64 = 0;
    while enough < end {
        let middle = enough.midpoint(end);
        let some = held.lapses.get(enough..=middle).unwrap_or_default();
        let sum = some.iter().fold(lapsed, |sum, (_, quantity)| sum.saturating_add(*quantity));
        let end_us = some.last().map_or(0, |(end_us, _)| *end_us);
        if sum.saturating_add(tally.left_by(events, end_us)?) >= need {
            end = middle;
        } else {
            lapsed = sum;
            enough = middle.saturating_add(1);
        }
    }
    let by_lapse = held.lapses.get(enough).map(|(end_us, _)| *end_us);
    let by_events = tally.left_at_us(events, need.saturating_sub(lapsed))?;
    Ok(match (by_lapse, by_events) {
        (Some(lapse), Some(event)) => Some(lapse.min(event)),
        (lapse, event) => lapse.or(event),
    })
}

/// Puts a decision together from a judgement and the times.
pub fn decision(
    ask: &Ask,
    judgement: Judgement,
    now_us: u64,
    used: u64,
    freed_at_us: Option<u64>,
    empty_at_us: Option<u64>,
) -> Decision {
    let wait_us = freed_at_us.map(|then| then.saturating_sub(now_us));
    let (limited, granted, retry_after_us) = match judgement {
        Judgement::Granted(granted) => (Limited::Allowed, granted, None),
        Judgement::Never => (Limited::Denied, 0, None),
        Judgement::Wanting { held, .. } => {
            let limited = if held { Limited::Held } else { Limited::Denied };
            let least = if ask.barred { LEAST_WAIT_IN_LINE_US } else { 1 };
            (limited, 0, Some(wait_us.unwrap_or(0).max(least)))
        }
    };
    Decision {
        limited,
        limit: ask.limit,
        remaining: ask.limit.saturating_sub(used),
        retry_after_us,
        reset_after_us: empty_at_us.map_or(0, |then| then.saturating_sub(now_us)),
        granted,
    }
}

#[cfg(test)]
mod tests;

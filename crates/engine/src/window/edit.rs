//! The changes to write to the entries of a key when an event is counted or uncounted, or when a key is cleaned up.
//!
//! Planning reads everything that the edit removes, and writes nothing. So a call that fails has changed nothing, and
//! writing the edit cannot fail. [`WindowCount`] has an example.

use super::WindowCount;
use crate::entry::{Entries, Entry, MAX_SUM};
use crate::rule::Sharing;

/// Removes an entry, adds one, or replaces one with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryEdit {
    /// The entry to remove.
    pub old: Option<Entry>,
    /// The entry to add. If its member is there already, that element only gets a new score.
    pub new: Option<Entry>,
}

/// A range of times in Unix microseconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub from_us: u64,
    pub to_us: u64,
}

/// The changes to write to the entries of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventEdit {
    pub newest: EntryEdit,
    /// The edit of another entry: it is given back in part, or it stays in the future and takes what the call counts.
    pub other: EntryEdit,
    /// The entries that are given back whole.
    pub given_back: Option<TimeRange>,
    /// The entries from the future, which are removed because the newest one now holds their events.
    pub merged: Option<TimeRange>,
    /// The number of entries in these two ranges.
    pub in_ranges: usize,
    /// The number of dead entries to drop: the oldest ones.
    pub dropped: usize,
}

/// A change of the events that count. Each change also merges events from the future.
#[derive(Clone, Copy, Debug)]
pub enum EventChange {
    /// Only merges events from the future.
    Heal,
    /// Drops dead entries, if there are enough.
    DropDead,
    /// Counts an event now, and drops dead entries.
    Record {
        /// The quantity to count. The sum of all events saturates at [`MAX_SUM`].
        weight: u64,
        denied: bool,
        /// The limit. Events beyond it are counted coarsely.
        limit: u64,
    },
    /// Uncounts at most this quantity, the oldest events first.
    Uncount { quantity: u64 },
}

#[derive(Clone, Copy, Debug)]
pub struct EventPlan {
    pub edit: EventEdit,
    pub after: WindowCount,
}

impl WindowCount {
    /// Plans a change. Of the entries from the future it merges about `max_healed` at most.
    ///
    /// # Errors
    ///
    /// The store's own. [`Foreign`](crate::refusal::Refusal::Foreign) if the module did not write an entry that would be
    /// removed, as all of these are read.
    pub fn plan_change<E: Entries>(
        &self,
        entries: &mut E,
        change: EventChange,
        max_healed: usize,
    ) -> Result<EventPlan, E::Error> {
        let mut builder = EditBuilder::new(*self, entries);
        match change {
            EventChange::Heal => {}
            EventChange::DropDead => builder.drop_dead()?,
            EventChange::Record { weight, denied, limit } => {
                builder.record(weight, denied, limit);
                builder.drop_dead()?;
            }
            EventChange::Uncount { quantity } => {
                builder.uncount(quantity)?;
                builder.close_gap()?;
            }
        }
        builder.heal(max_healed)?;
        Ok(EventPlan { edit: builder.edit, after: builder.count })
    }
}

/// Builds an edit step by step. Each step also changes the count, which so describes the entries as the edit leaves them.
pub(super) struct EditBuilder<'c, E> {
    pub count: WindowCount,
    pub entries: &'c mut E,
    pub edit: EventEdit,
    /// The quantity that was added to the newest entry.
    pub recorded: u64,
    /// The event that was recorded is a denied call.
    pub denied: bool,
    /// The quantity that was taken from the newest entry.
    pub uncounted: u64,
}

impl<E: Entries> EditBuilder<'_, E> {
    /// Creates an edit that writes nothing yet, except the entry into which `count` has merged events from the future.
    fn new(count: WindowCount, entries: &mut E) -> EditBuilder<'_, E> {
        let mut edit = EventEdit::default();
        if let Some(future) = count.future {
            edit.newest = EntryEdit { old: future.replaced, new: count.newest };
        }
        EditBuilder { count, entries, edit, recorded: 0, denied: false, uncounted: 0 }
    }

    fn record(&mut self, weight: u64, denied: bool, limit: u64) {
        let now_us = self.count.rule_now.now_us();
        let counted = self.count.counted();
        let weight = weight.min(MAX_SUM.saturating_sub(counted));
        if weight == 0 {
            return;
        }
        (self.recorded, self.denied) = (weight, denied);
        let mut entry = Entry { newest_us: now_us, span_us: 0, total: weight, weight, denied };
        if let Some(newest) = self.count.newest {
            entry.total = newest.total.wrapping_add(weight);
            let sharing = self.count.sharing(&newest, counted, denied, limit);
            if sharing == Sharing::Joined {
                entry.span_us = now_us.saturating_sub(newest.first_us());
                entry.weight = newest.weight.saturating_add(weight);
                entry.denied = newest.denied && denied;
            }
            if sharing != Sharing::Apart {
                self.remove_newest();
            }
        }
        self.edit.newest.new = Some(entry);
        let is_only =
            self.count.oldest.is_none_or(|oldest| oldest.total_before() == entry.total_before());
        if is_only {
            self.count.oldest = Some(entry);
        }
        self.count.newest = Some(entry);
    }

    /// Removes the newest entry, unless it holds events from the future and is not stored yet.
    fn remove_newest(&mut self) {
        if self.count.future.is_none() {
            self.edit.newest.old = self.count.newest;
        }
    }

    fn uncount(&mut self, quantity: u64) -> Result<(), E::Error> {
        let (Some(_), Some(newest)) = (self.count.oldest, self.count.newest) else { return Ok(()) };
        let (after_us, until_us) =
            (self.count.rule_now.horizon_us(), self.count.newest_from_us.checked_sub(1));
        let mut left = quantity.min(self.count.counted());
        let mut in_part = None;
        self.entries.scan(after_us, until_us, |entry| {
            if entry.weight > left {
                in_part = Some(entry);
                return false;
            }
            left = left.saturating_sub(entry.weight);
            let to_us = entry.newest_us;
            let whole = TimeRange { from_us: to_us, to_us };
            self.edit.given_back.get_or_insert(whole).to_us = to_us;
            self.edit.in_ranges = self.edit.in_ranges.saturating_add(1);
            true
        })?;
        let Some(entry) = in_part else {
            self.uncount_newest(newest, left);
            return Ok(());
        };
        let rest = Entry { weight: entry.weight.saturating_sub(left), ..entry };
        if rest != entry {
            self.edit.other = EntryEdit { old: Some(entry), new: Some(rest) };
        }
        self.count.oldest = Some(rest);
        Ok(())
    }

    /// Uncounts `quantity` of the newest entry, when it is the only one left.
    fn uncount_newest(&mut self, newest: Entry, quantity: u64) {
        self.uncounted = quantity;
        let rest = Entry { weight: newest.weight.saturating_sub(quantity), ..newest };
        let rest = (rest.weight > 0).then_some(rest);
        if quantity > 0 {
            self.remove_newest();
            self.edit.newest.new = rest;
        }
        (self.count.oldest, self.count.newest) = (rest, rest);
    }
}

impl WindowCount {
    /// Returns what becomes of the newest entry if an event is counted now, where `counted` is the sum before it.
    // Inlined: it is on the hot path of every grant.
    #[inline(always)]
    fn sharing(&self, newest: &Entry, counted: u64, denied: bool, limit: u64) -> Sharing {
        let before_newest = counted.saturating_sub(newest.weight);
        let coarse = (denied || counted >= limit) && (newest.denied || before_newest >= limit);
        self.rule_now.sharing(newest, coarse)
    }
}

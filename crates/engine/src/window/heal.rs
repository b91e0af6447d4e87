//! Events from the future, which exist after the clock was set back. They count as if they happened now.
//!
//! A count holds all of them as one entry that happens now: their sum is a difference of running totals, so reading them
//! takes the same time whatever their number. An edit replaces them with that entry, about `max_healed` of them in one call.
//!
//! Why not all at once: 65,536 entries would stop the server for 20 ms. Why not leave them: they would count until the clock
//! has caught up and one period more, so a denied caller would wait longer than the reply says.

use super::edit::{EditBuilder, EntryEdit, TimeRange};
use super::WindowCount;
use crate::entry::{Entries, Entry, MAX_SUM};
use crate::refusal::Refusal;
use crate::rule::Sharing;

/// How the newest entry of a count holds the events from the future.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergedFuture {
    /// The entry before them, if the newest one replaces it too.
    pub replaced: Option<Entry>,
    /// The time of the newest stored entry, if it stays in the future and expires by that time. Without an edit all entries
    /// from the future stay.
    pub stays_us: Option<u64>,
}

impl WindowCount {
    /// Returns all entries after now as one that happens now. `newest` is the newest of them.
    ///
    /// It joins the entry before it, or replaces it, as a new event would, so that a clock that is set back and forth adds
    /// no entries.
    pub(super) fn merge_future<E: Entries>(
        &mut self,
        entries: &mut E,
        newest: Entry,
    ) -> Result<Entry, E::Error> {
        let now_us = self.rule_now.now_us();
        let oldest = entries.oldest(Some(now_us))?.ok_or(Refusal::Foreign)?;
        let prior = entries.newest(Some(now_us))?;
        let oldest = self.rule_now.first_counted(oldest, newest);
        let mut merged = Entry {
            newest_us: now_us,
            // The first entry from the future may have begun before now.
            span_us: now_us.saturating_sub(oldest.first_us()),
            total: newest.total,
            weight: newest.sum_since(&oldest),
            // Admitted events may lie between two denied ones.
            denied: newest.denied && newest == oldest,
        };
        let sharing = |prior: &Entry| self.rule_now.sharing(prior, prior.denied && merged.denied);
        let replaced = prior.filter(|prior| sharing(prior) != Sharing::Apart);
        if let Some(prior) = replaced.filter(|prior| sharing(prior) == Sharing::Joined) {
            merged.span_us = now_us.saturating_sub(prior.first_us());
            merged.weight = merged.weight.saturating_add(prior.weight);
            merged.denied &= prior.denied;
        }
        let same_total = replaced.is_some_and(|prior| prior.total == newest.total);
        if same_total || !(1..=newest.max_sum()).contains(&merged.weight) {
            return Err(Refusal::Foreign.into());
        }
        merged.weight = merged.weight.min(MAX_SUM);
        self.newest_from_us = replaced.map_or(now_us.saturating_add(1), |prior| prior.newest_us);
        self.future = Some(MergedFuture { replaced, stays_us: Some(newest.newest_us) });
        Ok(merged)
    }
}

/// The oldest entries from the future, if a call merges only these.
struct HealedPart {
    last: Entry,
    /// The sum of these entries and of the entry that they replace, minus what the call uncounts.
    weight: u64,
}

impl<E: Entries> EditBuilder<'_, E> {
    /// Merges the oldest of the entries from the future, about `max_healed` at most. Reads all entries that it removes,
    /// because a foreign one is an error.
    ///
    /// ```text
    ///   now   merged by this call   stay, with what this call counts
    /// ---|----f----f---f---f---f----|---f---f----f---f--F--> time, and running totals
    /// ```
    ///
    /// The event of this call needs a larger total than the entries that stay, so it cannot be put before them. It joins the
    /// newest entry, where it counts for too long rather than too short, until another call merges that entry too.
    pub(super) fn heal(&mut self, max_healed: usize) -> Result<(), E::Error> {
        let Some(future) = self.count.future else { return Ok(()) };
        let stays_us = self.merge_stored(max_healed)?;
        self.count.future = Some(MergedFuture { stays_us, ..future });
        Ok(())
    }

    /// Plans to merge the entries. Returns the time of the newest one if it stays and expires by that time.
    fn merge_stored(&mut self, max_healed: usize) -> Result<Option<u64>, E::Error> {
        let Some(merged) = self.edit.newest.new else {
            // Everything was uncounted. No entry may stay, as an older one would count.
            self.read_part(usize::MAX)?;
            return Ok(None);
        };
        let Some(part) = self.read_part(max_healed.max(1))? else { return Ok(None) };
        let stays = self.entries.newest(None)?.ok_or(Refusal::Foreign)?;
        if !self.count.rule_now.heals_in_parts() {
            // It still expires with the window that its first event opened.
            self.keep_whole(stays);
            return Ok(None);
        }
        if !(1..=stays.max_sum()).contains(&part.weight) {
            return Err(Refusal::Foreign.into());
        }
        let weight = part.weight.min(MAX_SUM);
        self.edit.newest.new = Some(Entry { total: part.last.total, weight, ..merged });
        if self.recorded > 0 {
            let grown = Entry {
                total: stays.total.wrapping_add(self.recorded),
                weight: stays.weight.saturating_add(self.recorded).min(MAX_SUM),
                denied: stays.denied && self.denied,
                ..stays
            };
            self.edit.other = EntryEdit { old: Some(stays), new: Some(grown) };
        }
        Ok(Some(stays.newest_us))
    }

    /// Reads the entries from the future that this call merges, and plans to remove them. `None` if it merges all of them.
    fn read_part(&mut self, max_healed: usize) -> Result<Option<HealedPart>, E::Error> {
        let rule_now = &self.count.rule_now;
        let prior_weight = self.edit.newest.old.map_or(0, |prior| prior.weight);
        let from_us = rule_now.now_us().saturating_add(1);
        let (mut len, mut weight, mut is_all) = (0_usize, 0, true);
        let (mut oldest, mut last): (Option<Entry>, Option<Entry>) = (None, None);
        self.entries.scan(Some(rule_now.now_us()), None, |entry| {
            // What was uncounted is taken from this part, so the part must hold more than that.
            let may_stop = weight > 0 || self.uncounted == 0 || !rule_now.heals_in_parts();
            if len >= max_healed && may_stop {
                is_all = false;
                return false;
            }
            let oldest = oldest.get_or_insert(entry);
            let sum = entry.sum_since(oldest).saturating_add(prior_weight);
            weight = sum.saturating_sub(self.uncounted);
            len = len.saturating_add(1);
            last = Some(entry);
            true
        })?;
        let last = last.filter(|_| !is_all);
        let to_us = last.map_or(u64::MAX, |last| last.newest_us);
        self.edit.merged = Some(TimeRange { from_us, to_us });
        self.edit.in_ranges = self.edit.in_ranges.saturating_add(len);
        Ok(last.map(|last| HealedPart { last, weight }))
    }

    /// Leaves the newest entry at its time in the future, because the entries before it, which do not count, are removed
    /// first. It takes the event of this call, or loses what the call uncounts.
    fn keep_whole(&mut self, stays: Entry) {
        let Some(newest) = self.count.newest else { return };
        self.edit.newest.new = None;
        let newest_us = stays.newest_us;
        let span_us = newest_us.saturating_sub(newest.first_us());
        let after = Entry { newest_us, span_us, ..newest };
        if after != stays {
            self.edit.other = EntryEdit { old: Some(stays), new: Some(after) };
        }
    }
}

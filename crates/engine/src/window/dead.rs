//! Dead entries, which no longer count.
//!
//! They do no harm, but every search for the oldest entry that counts passes them. So a call that takes drops them if that
//! costs less than to go on passing them. Most calls drop none, and do not look for any.
//!
//! A call knows the number of entries and the sum of those that count, but not how many count, as an entry may hold many
//! units. So if the sum is below the number, the difference is surely dead; if it is not, a call looks if the number is a
//! multiple of 16. Of calls that each add an entry, this is one in 16. If the events join an entry, the number stays, and
//! every call looks or none does. Neither does harm: such calls add no entry, and a look finds fewer than 8 dead entries
//! or drops them, which changes the number.

use super::edit::EditBuilder;
use crate::entry::{Entries, Entry, MAX_SUM};

/// A call drops dead entries if there are this many, or one in a key that has more entries than its rule needs.
pub(super) const MIN_DROPPED: usize = 8;

/// [`MIN_DROPPED`] for a set of up to [`LISTPACK_LEN`] entries, where every search walks past the dead ones.
const MIN_DROPPED_OF_LISTPACK: usize = 4;

/// Up to this many entries the server keeps a sorted set in one piece, unless it is configured otherwise.
pub(super) const LISTPACK_LEN: usize = 128;

/// If all entries may be live, a call looks for dead ones only if the number of entries is a multiple of this.
const LOOK_EVERY: usize = 16;

/// The most dead entries that a call drops, unless the sum of all entries would become too large.
pub(super) const MAX_DEAD_DROPPED: usize = 64;

impl<E: Entries> EditBuilder<'_, E> {
    /// Drops dead entries if there are enough, or if the sum of all entries would become too large.
    pub(super) fn drop_dead(&mut self) -> Result<(), E::Error> {
        let count = &self.count;
        let (Some(horizon_us), Some(newest)) = (count.rule_now.horizon_us(), count.newest) else {
            return Ok(());
        };
        let Some(mut min_dropped) = self.min_dropped(&newest) else { return Ok(()) };
        let (recorded, total_before) = (self.recorded, newest.total.wrapping_sub(self.recorded));
        // The sum of the entries from this one on, with the quantity that this call recorded. If it is above `MAX_SUM`, this
        // entry is dropped however many there are, as `Entry::max_sum` requires.
        let sum_from = |entry: &Entry| {
            let stored = total_before.wrapping_sub(entry.total_before());
            u128::from(stored).saturating_add(u128::from(recorded))
        };
        let mut dead: usize = 0;
        self.entries.scan(None, Some(horizon_us), |entry| {
            let overflows = sum_from(&entry) > u128::from(MAX_SUM);
            let drop = overflows || dead < MAX_DEAD_DROPPED;
            if drop {
                dead = dead.saturating_add(1);
                min_dropped = if overflows { 1 } else { min_dropped };
            }
            drop
        })?;
        if dead >= min_dropped {
            self.edit.dropped = dead;
        }
        Ok(())
    }

    /// Returns how many entries must be dead for a call to drop them. `None` if it is not worth looking for them.
    // Inlined: it is on the hot path of every grant.
    #[inline(always)]
    fn min_dropped(&self, newest: &Entry) -> Option<usize> {
        let len = self.entries.len();
        // A live entry counts at least 1, so there are no more live entries than the sum.
        let counted_before = self.count.counted().saturating_sub(self.recorded);
        let live = usize::try_from(counted_before).unwrap_or(usize::MAX);
        let surely_dead = len.saturating_sub(live);
        let enough = if len <= LISTPACK_LEN { MIN_DROPPED_OF_LISTPACK } else { MIN_DROPPED };
        let many = surely_dead >= enough || (surely_dead == 0 && len % LOOK_EVERY == 0);
        let full = len > self.count.rule_now.max_live();
        let total_before = newest.total.wrapping_sub(self.recorded);
        // Below this the sum of all entries is in bounds by itself, see `Entry::max_sum`.
        let may_overflow = newest.total.max(total_before) > MAX_SUM;
        (many || full || may_overflow).then_some(if full { 1 } else { enough })
    }

    /// Drops all dead entries after events were uncounted, unless there are more than the rule allows. What was uncounted
    /// stays in the running totals, as a gap between dead and live entries. If the clock were set back, the dead entries
    /// would count again, and the gap with them.
    pub(super) fn close_gap(&mut self) -> Result<(), E::Error> {
        let rule_now = &self.count.rule_now;
        let max_dropped = rule_now.max_dropped_in_gap(self.count.newest.is_none());
        let Some(horizon_us) = rule_now.horizon_us().filter(|_| max_dropped > 0) else {
            return Ok(());
        };
        let mut dead: usize = 0;
        self.entries.scan(None, Some(horizon_us), |_| {
            dead = dead.saturating_add(1);
            dead <= max_dropped
        })?;
        if dead <= max_dropped {
            self.edit.dropped = dead;
        }
        Ok(())
    }
}

//! A maximum in a window, for counted events and held reservations together.
//!
//! ```text
//!   dead       oldest                       newest   now
//! ----x--x--|---e------e--e-----------e--------e------|------> time
//!        horizon           counted = newest.total - oldest.total_before()
//! ```
//!
//! Every entry has a running total (see [`crate::entry`]). So the sum of events is one subtraction, and the moment at which
//! enough has expired is found by bisection.
//!
//! [`WindowCount`] has what counts at one moment, `WindowUsage::room` says whether there is room for a request, and
//! [`WindowCount::plan_change`] returns what to write, and what counts after it.

mod dead;
mod edit;
mod heal;
mod usage;

pub use edit::{EntryEdit, EventChange, EventEdit, EventPlan, TimeRange};
pub(crate) use usage::{Room, WindowUsage};

use crate::entry::{Entries, Entry, MAX_SUM};
use crate::expiry::Expiry;
use crate::refusal::Refusal;
use crate::reservations::Reservations;
use crate::rule::RuleNow;
use heal::MergedFuture;

/// If at most this quantity must expire, entries are read one by one instead of searched. Each counts at least 1, so no more
/// entries than that are read.
const MAX_SCANNED: u64 = 64;

/// The sum of the events that count at one moment. Only the oldest and the newest entry are read, as the difference of
/// their running totals is the sum of all entries between them.
///
/// - If nothing counts, `oldest` is `None`. `newest` is there even then, because the next entry continues its total.
/// - Neither is after the moment: `newest` holds the events from the future, as if they happened now.
///
/// ```
/// use redis_ratelimit_engine::calendar::Zones;
/// use redis_ratelimit_engine::entry::Entry;
/// use redis_ratelimit_engine::memory::Zset;
/// use redis_ratelimit_engine::rule::Rule;
/// use redis_ratelimit_engine::window::{EventChange, WindowCount};
///
/// let mut set = Zset::default();
/// let entry = |newest_us, total, weight| Entry { newest_us, span_us: 0, total, weight, denied: false };
/// for (second, total, weight) in [(10, 1, 1), (20, 3, 2), (30, 4, 1)] {
///     set.add(&entry(second * 1_000_000, total, weight));
/// }
/// let mut zones = Zones::default();
/// let rule = Rule::parse(b"15s", &mut zones).unwrap();
/// let now = rule.at(31_000_000, &mut zones).unwrap();
///
/// // The last 15 seconds: the events of second 20 and of second 30.
/// let count = WindowCount::read(&mut set, now).unwrap();
/// assert_eq!(count.counted(), 3);
/// let event = EventChange::Record { weight: 1, denied: false, limit: 5 };
/// let plan = count.plan_change(&mut set, event, 10_000).unwrap();
/// assert_eq!((count.counted(), plan.after.counted()), (3, 4));
/// // The new entry continues the total of the newest one.
/// assert_eq!(plan.edit.newest.new.unwrap().total, 5);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowCount {
    rule_now: RuleNow,
    /// The oldest entry that counts.
    oldest: Option<Entry>,
    newest: Option<Entry>,
    /// `newest` holds all stored entries from this time on.
    newest_from_us: u64,
    /// `newest` holds events from the future.
    future: Option<MergedFuture>,
}

impl WindowCount {
    /// Reads what counts now. Under the rule of a semaphore this is nothing, whatever the key holds.
    ///
    /// # Errors
    ///
    /// The store's own. [`Refusal::Foreign`] if the entries contradict each other.
    pub fn read<E: Entries>(entries: &mut E, rule_now: RuleNow) -> Result<WindowCount, E::Error> {
        let mut count = WindowCount::default();
        count.set(entries, rule_now)?;
        Ok(count)
    }

    /// Sets an empty count to what [`WindowCount::read`] returns, in place, because copying it takes as long as the rest of
    /// reading it. After an error it has no meaning.
    pub(crate) fn set<E: Entries>(
        &mut self,
        entries: &mut E,
        rule_now: RuleNow,
    ) -> Result<(), E::Error> {
        self.rule_now = rule_now;
        if !rule_now.counts() {
            return Ok(());
        }
        let Some(stored) = entries.newest(None)? else { return Ok(()) };
        let newest = if stored.newest_us > self.rule_now.now_us() {
            self.merge_future(entries, stored)?
        } else {
            self.newest_from_us = stored.newest_us;
            stored
        };
        self.newest = Some(newest);
        if !self.rule_now.set_newest(&newest, self.newest_from_us) {
            return Ok(());
        }
        // Nothing before the newest entry counts if the horizon is just before the times that it holds.
        let no_older_counts = self.rule_now.horizon_us() == self.newest_from_us.checked_sub(1);
        if no_older_counts || entries.len() == 1 {
            self.oldest = Some(newest);
            return Ok(());
        }
        // Dead entries are not read: the search for the oldest entry that counts skips them.
        let oldest = entries.oldest(self.rule_now.horizon_us())?;
        let oldest = oldest.filter(|entry| entry.newest_us < self.newest_from_us).unwrap_or(newest);
        self.oldest = Some(oldest);
        let min_counted = newest.weight.max(oldest.weight);
        if !(min_counted..=newest.max_sum()).contains(&newest.sum_since(&oldest)) {
            return Err(Refusal::Foreign.into());
        }
        Ok(())
    }

    pub(crate) fn rule_now(&self) -> &RuleNow {
        &self.rule_now
    }

    /// Returns the sum of the events in the window, at most [`MAX_SUM`].
    pub fn counted(&self) -> u64 {
        match (&self.oldest, &self.newest) {
            (Some(oldest), Some(newest)) => newest.sum_since(oldest).min(MAX_SUM),
            _ => 0,
        }
    }

    /// Returns whether it holds events from the future, which even a denied call merges.
    pub fn has_future(&self) -> bool {
        self.future.is_some()
    }

    /// Returns the time at which the last counted event expires. `None` if there is none.
    pub(crate) fn empty_at_us(&self) -> Option<u64> {
        self.oldest?;
        self.newest.map(|newest| self.rule_now.expires_us(newest.newest_us))
    }

    /// Returns the time of the newest event that stays in the future. It counts until another call merges it, so it expires
    /// later than `empty_at_us`.
    pub(crate) fn stays_us(&self) -> Option<u64> {
        self.future?.stays_us
    }

    /// Returns the time for which the events need the key, except those that stay in the future.
    pub(crate) fn expiry(&self) -> Expiry {
        let now_us = self.rule_now.now_us();
        let in_use_us = self.oldest.map_or(0, |oldest| now_us.saturating_sub(oldest.first_us()));
        Expiry {
            needed_until_us: self.empty_at_us().unwrap_or(now_us),
            in_use_us: in_use_us.min(self.rule_now.sliding_period_us()),
        }
    }

    /// Returns the time at which `need` of the counted events will have expired. `None` if fewer are counted.
    fn events_freed_at_us<E: Entries>(
        &self,
        entries: &mut E,
        need: u128,
    ) -> Result<Option<u64>, E::Error> {
        let (Some(oldest), Some(newest)) = (self.oldest, self.newest) else { return Ok(None) };
        let need = match u64::try_from(need) {
            Ok(need) if need <= self.counted() => need,
            _ => return Ok(None),
        };
        // The first entry with which enough has expired. `newest` may hold events that are stored in several entries, so its
        // events are not searched.
        let last_us = if need > newest.total_before().wrapping_sub(oldest.total_before()) {
            newest.newest_us
        } else if need <= oldest.weight {
            oldest.newest_us
        } else if MAX_SCANNED >= need {
            scan(entries, &oldest, &newest, need)?
        } else {
            bisect(entries, &oldest, &newest, need)?
        };
        Ok(Some(self.rule_now.expires_us(last_us)))
    }

    /// Returns the quantity of the counted events that will have expired at `then_us`.
    fn quantity_freed_by<E: Entries>(
        &self,
        entries: &mut E,
        then_us: u64,
    ) -> Result<u64, E::Error> {
        let (Some(oldest), Some(newest)) = (self.oldest, self.newest) else { return Ok(0) };
        let Some(horizon_us) = self.rule_now.horizon_us_at(then_us) else { return Ok(0) };
        if horizon_us >= newest.newest_us {
            return Ok(self.counted());
        }
        if horizon_us < oldest.newest_us {
            return Ok(0);
        }
        let last = entries.newest(Some(horizon_us))?.ok_or(Refusal::Foreign)?;
        // An entry that `newest` has replaced expires with `newest`.
        Ok(last.sum_since(&oldest).min(newest.total_before().wrapping_sub(oldest.total_before())))
    }
}

/// Returns the time of the first entry after `oldest` with which the sum reaches `need`, at most that of `newest`. Reads one
/// entry after the other.
fn scan<E: Entries>(
    entries: &mut E,
    oldest: &Entry,
    newest: &Entry,
    need: u64,
) -> Result<u64, E::Error> {
    // Each entry adds at least 1 to the sum. If these are not enough, the entries contradict each other.
    let (mut found_us, mut left) = (None, need);
    entries.scan(Some(oldest.newest_us), None, |entry| {
        let is_enough = entry.sum_since(oldest) >= need;
        found_us = is_enough.then_some(entry.newest_us.min(newest.newest_us));
        left = left.saturating_sub(1);
        !is_enough && left > 0
    })?;
    Ok(found_us.ok_or(Refusal::Foreign)?)
}

/// Returns the same as [`scan`], by bisection over time.
fn bisect<E: Entries>(
    entries: &mut E,
    oldest: &Entry,
    newest: &Entry,
    need: u64,
) -> Result<u64, E::Error> {
    // Too little has expired by `low`, and enough by `found`. `high` is no later than `found`.
    let (mut low, mut high) = (oldest.newest_us, newest.newest_us);
    let mut found = high;
    while high.saturating_sub(low) > 1 {
        let middle = low.midpoint(high).max(low.saturating_add(1));
        match entries.oldest(middle.checked_sub(1))? {
            Some(entry) if entry.newest_us < high => {
                if entry.sum_since(oldest) >= need {
                    found = entry.newest_us;
                    high = middle;
                } else {
                    low = entry.newest_us;
                }
            }
            _ => high = middle,
        }
    }
    Ok(found)
}

/// Returns the time at which `need` will be free because events expire and reservations end, if nobody gives anything back.
/// `None` if everything together is less than `need`.
pub(crate) fn freed_at_us<E: Entries>(
    entries: &mut E,
    window_count: &WindowCount,
    reservations: &Reservations,
    need: u128,
) -> Result<Option<u64>, E::Error> {
    if need == 0 {
        return Ok(Some(window_count.rule_now.now_us()));
    }
    let (gone_us, gone_before) =
        reservations.find_enough_gone(|gone_us, gone| -> Result<bool, E::Error> {
            let events_freed = window_count.quantity_freed_by(entries, gone_us)?;
            Ok(gone.saturating_add(u128::from(events_freed)) >= need)
        })?;
    let event_us = window_count.events_freed_at_us(entries, need.saturating_sub(gone_before))?;
    Ok(match (gone_us, event_us) {
        (Some(gone_us), Some(event_us)) => Some(gone_us.min(event_us)),
        (gone_us, event_us) => gone_us.or(event_us),
    })
}

#[cfg(test)]
mod tests;

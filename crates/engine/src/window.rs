//! A maximum in a window, for counted events and held reservations together.
//!
//! ```text
//!   dead       oldest                       newest   now
//! ----x--x--|---e------e--e-----------e--------e------|------> time
//!        horizon           counted = newest.total - oldest.before()
//! ```
//!
//! Every entry has a running total (see [`crate::entry`]). So the sum of events is one subtraction, and the moment at which
//! enough has left is found by bisection.
//!
//! [`WindowCount::read`] sums up what counts, [`WindowUse::judge`] gives the verdict, and [`WindowCount::plan`] plans what
//! to write.

use crate::decision::{Ask, Manner, Obstacle, Quantity};
use crate::entry::{Entry, MAX_SUM};
use crate::expiry::Expiry;
use crate::held::Holds;
use crate::rule::RuleNow;
use crate::store::{Entries, Refusal};

/// Removes an entry, adds one, or replaces one with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryChange {
    /// The entry to remove.
    pub old: Option<Entry>,
    /// The entry to add. If its member is there already, that element only gets a new score.
    pub new: Option<Entry>,
}

/// A range of times in Unix microseconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The earliest time.
    pub from_us: u64,
    /// The latest time.
    pub to_us: u64,
}

/// The changes to write to the entries of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventEdit {
    /// The change of the newest entry.
    pub newest: EntryChange,
    /// The change of another entry: it is given back in part, or it stays in the future and takes what the call counts.
    pub other: EntryChange,
    /// The entries that are given back whole.
    pub given_back: Option<TimeRange>,
    /// The entries from the future, which are removed because the newest one now holds their events.
    pub merged: Option<TimeRange>,
    /// The number of dead entries to drop: the oldest ones.
    pub dropped: usize,
}

/// A change of the events that count.
#[derive(Clone, Copy, Debug)]
pub enum EventChange {
    /// Only merges events from the future, as each of the other changes does too.
    Heal,
    /// Drops dead entries, if there are enough.
    CleanUp,
    /// Counts an event now, and drops dead entries.
    Record {
        /// The quantity to count. The sum of all events saturates at [`MAX_SUM`].
        weight: u64,
        /// The event is a denied call.
        denied: bool,
        /// The limit. Events beyond it are counted coarsely.
        limit: u64,
    },
    /// Uncounts at most this quantity, the oldest events first.
    Uncount {
        /// The quantity.
        quantity: u64,
    },
}

/// The effect of a change on the newest entry.
#[derive(Default)]
struct NewestChange {
    recorded: u64,
    /// The event that was recorded is a denied call.
    denied: bool,
    uncounted: u64,
}

/// Bounds on the dead entries that a call drops.
mod dead {
    /// A call drops dead entries if there are this many, or one in a key that has more entries than its rule needs.
    pub const ENOUGH: usize = 8;

    /// [`ENOUGH`] for a set of up to [`SMALL`] entries, where every search walks past the dead ones.
    pub const ENOUGH_IN_SMALL: usize = 4;

    /// Up to this many entries the server keeps a sorted set in one piece, unless it is configured otherwise.
    pub const SMALL: usize = 128;

    /// If all entries may be live, a call looks for dead ones only if the number of entries is a multiple of this: one call
    /// in 16 pays for the search.
    pub const EVERY: usize = 16;

    /// The most dead entries that a call drops, unless more are in the way of counting.
    pub const MAX: usize = 64;
}

/// Up to this many entries are read one by one instead of searched.
const MAX_SCANNED: u64 = 64;

/// The sum of the events that count at one moment. Only the oldest and the newest entry that count are read, as the
/// difference of their running totals is the sum of all between them.
///
/// - `oldest` and `newest` are both there, or neither. They are the same if one entry counts.
/// - No entry that counts is after the moment: events from the future are merged into `newest`.
/// - `edit` turns the stored entries into those that are counted here.
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
/// let mut count = WindowCount::read(&mut set, now).unwrap();
/// assert_eq!(count.counted(), 3);
/// let event = EventChange::Record { weight: 1, denied: false, limit: 5 };
/// let edit = *count.plan(&mut set, event, 10_000).unwrap();
/// assert_eq!(count.counted(), 4);
/// // The total of the new entry goes on where the newest one ended.
/// assert_eq!(edit.newest.new.unwrap().total, 5);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowCount {
    rule_now: RuleNow,
    /// The oldest entry that counts.
    oldest: Option<Entry>,
    /// The newest entry, with the events from the future in it.
    newest: Option<Entry>,
    /// The time of the newest entry that stays in the future; `None` if none does.
    stays_us: Option<u64>,
    edit: EventEdit,
}

impl WindowCount {
    /// Reads what counts now. Under the rule of a semaphore this is nothing, whatever the key holds. Events from the future,
    /// which exist after the clock was set back, count as if they happened now.
    pub fn read<E: Entries>(entries: &mut E, rule_now: RuleNow) -> Result<WindowCount, E::Error> {
        let mut window_count = WindowCount { rule_now, ..WindowCount::default() };
        if rule_now.counts() {
            window_count.read_entries(entries)?;
        }
        Ok(window_count)
    }

    // Inlined so that the large count is not copied.
    #[inline(always)]
    fn read_entries<E: Entries>(&mut self, entries: &mut E) -> Result<(), E::Error> {
        let now_us = self.rule_now.now_us();
        let Some(stored) = entries.newest(None)? else { return Ok(()) };
        self.newest = Some(stored);
        if stored.newest_us > now_us {
            self.merge_future(entries, stored)?;
        }
        let Some(newest) = self.newest else { return Ok(()) };
        if !self.rule_now.see_newest(&newest, self.stored_until_us()) {
            return Ok(());
        }
        if self.rule_now.counts_newest_alone() {
            self.oldest = Some(newest);
            return Ok(());
        }
        let horizon_us = self.rule_now.horizon_us();
        // Dead entries are not read: the search for the oldest entry that counts skips them.
        let oldest = if entries.len() == 1 { Some(stored) } else { entries.oldest(horizon_us)? };
        let oldest =
            oldest.filter(|entry| entry.newest_us < self.stored_until_us()).unwrap_or(newest);
        self.oldest = Some(oldest);
        let min_counted = newest.weight.max(oldest.weight);
        if !(min_counted..=newest.max_sum()).contains(&newest.sum_since(&oldest)) {
            return Err(Refusal::Foreign.into());
        }
        Ok(())
    }

    /// Merges all entries after now into one that happens now.
    fn merge_future<E: Entries>(&mut self, entries: &mut E, newest: Entry) -> Result<(), E::Error> {
        let now_us = self.rule_now.now_us();
        let oldest = entries.oldest(Some(now_us))?.ok_or(Refusal::Foreign)?;
        let prior = entries.newest(Some(now_us))?;
        let mut merged = if self.rule_now.counts_newest_alone() {
            self.merge_alone(&newest, prior)?
        } else {
            self.merge_into_prior(&oldest, &newest, prior)
        };
        if !(1..=newest.max_sum()).contains(&merged.weight) {
            return Err(Refusal::Foreign.into());
        }
        merged.weight = merged.weight.min(MAX_SUM);
        self.edit.merged = Some(TimeRange { from_us: now_us.saturating_add(1), to_us: u64::MAX });
        self.edit.newest.new = Some(merged);
        self.newest = Some(merged);
        Ok(())
    }

    /// Returns the newest entry, which alone counts, as one that happens now. `prior` no longer counts and is removed.
    fn merge_alone(&mut self, newest: &Entry, prior: Option<Entry>) -> Result<Entry, Refusal> {
        if prior.is_some_and(|prior| prior.total == newest.total) {
            return Err(Refusal::Foreign);
        }
        self.edit.newest.old = prior;
        let now_us = self.rule_now.now_us();
        let span_us = now_us.saturating_sub(newest.first_us());
        Ok(Entry { newest_us: now_us, span_us, ..*newest })
    }

    /// Returns the entries from `oldest` to `newest` as one that happens now. It shares the entry before it as a new event
    /// would, so that a clock that swings does not add entries.
    fn merge_into_prior(&mut self, oldest: &Entry, newest: &Entry, prior: Option<Entry>) -> Entry {
        let now_us = self.rule_now.now_us();
        let merged = Entry {
            newest_us: now_us,
            // The first entry from the future may have begun before now.
            span_us: now_us.saturating_sub(oldest.first_us()),
            total: newest.total,
            weight: newest.sum_since(oldest),
            // Admitted events may lie between two denied ones.
            denied: newest.denied && newest == oldest,
        };
        let Some(prior) = prior else { return merged };
        let denied = prior.denied && merged.denied;
        if prior.newest_us != now_us && !self.rule_now.joins_newest(prior.first_us(), denied) {
            return merged;
        }
        self.edit.newest.old = Some(prior);
        let span_us = now_us.saturating_sub(prior.first_us());
        let weight = merged.weight.saturating_add(prior.weight);
        Entry { span_us, weight, denied, ..merged }
    }

    /// Returns the time from which all entries are in `newest`. Earlier entries are unchanged.
    fn stored_until_us(&self) -> u64 {
        match (self.edit.newest.old, self.edit.newest.new, self.newest) {
            (Some(old), _, _) => old.newest_us,
            (None, Some(_), _) => self.rule_now.now_us().saturating_add(1),
            (None, None, Some(newest)) => newest.newest_us,
            (None, None, None) => 0,
        }
    }

    /// Returns the rule at the moment of the count.
    pub fn rule_now(&self) -> &RuleNow {
        &self.rule_now
    }

    /// Returns the sum of the events in the window, at most [`MAX_SUM`].
    pub fn counted(&self) -> u64 {
        match (&self.oldest, &self.newest) {
            (Some(oldest), Some(newest)) => newest.sum_since(oldest).min(MAX_SUM),
            _ => 0,
        }
    }

    /// Returns whether there were events from the future, which even a denied call merges.
    pub fn has_future(&self) -> bool {
        self.edit.merged.is_some()
    }

    /// Plans a change, and returns what to write. Afterwards this counts what is left. Of the entries from the future it
    /// merges about `max_healed` at most.
    ///
    /// # Errors
    ///
    /// The store's own. [`Refusal::Foreign`] if the module did not write an entry that would be removed, as all of these are
    /// read.
    pub fn plan<E: Entries>(
        &mut self,
        entries: &mut E,
        change: EventChange,
        max_healed: usize,
    ) -> Result<&EventEdit, E::Error> {
        let mut newest_change = NewestChange::default();
        match change {
            EventChange::Heal => {}
            EventChange::CleanUp => self.drop_dead(entries, 0)?,
            EventChange::Record { weight, denied, limit } => {
                let recorded = self.record(weight, denied, limit);
                newest_change = NewestChange { recorded, denied, ..newest_change };
                self.drop_dead(entries, recorded)?;
            }
            EventChange::Uncount { quantity } => {
                newest_change.uncounted = self.uncount(entries, quantity)?;
                self.close_gap(entries)?;
            }
        }
        self.heal(entries, &newest_change, max_healed)?;
        Ok(&self.edit)
    }

    /// Returns what [`WindowCount::plan`] returned.
    pub(crate) fn planned(&self) -> &EventEdit {
        &self.edit
    }

    /// Counts an event of `weight` now, and returns the quantity by which the sum grows.
    fn record(&mut self, weight: u64, denied: bool, limit: u64) -> u64 {
        let now_us = self.rule_now.now_us();
        let counted = self.counted();
        let weight = weight.min(MAX_SUM.saturating_sub(counted));
        if weight == 0 {
            return 0;
        }
        let mut entry = Entry { newest_us: now_us, span_us: 0, total: weight, weight, denied };
        if let Some(newest) = self.newest {
            entry.total = newest.total.wrapping_add(weight);
            let shares = self.shares_newest(&newest, counted, denied, limit);
            if shares {
                entry.span_us = now_us.saturating_sub(newest.first_us());
                entry.weight = newest.weight.saturating_add(weight);
                entry.denied = newest.denied && denied;
            }
            // If the newest entry alone counts, the new entry also replaces one whose window has ended.
            if (shares || self.rule_now.counts_newest_alone()) && self.edit.newest.new.is_none() {
                self.edit.newest.old = Some(newest);
            }
        }
        // This entry replaces the only one that counted.
        let same = self.oldest.is_none_or(|oldest| oldest.before() == entry.before());
        if same {
            self.oldest = Some(entry);
        }
        self.newest = Some(entry);
        self.edit.newest.new = Some(entry);
        weight
    }

    /// Returns whether an event that is counted now shares the newest entry, where `counted` is the sum before it.
    // Inlined: it is on the hot path of every grant.
    #[inline(always)]
    fn shares_newest(&self, newest: &Entry, counted: u64, denied: bool, limit: u64) -> bool {
        let before_newest = counted.saturating_sub(newest.weight);
        let coarse = (denied || counted >= limit) && (newest.denied || before_newest >= limit);
        let alone = self.rule_now.counts_newest_alone();
        let same_us = newest.newest_us == self.rule_now.now_us() && !alone;
        same_us || self.rule_now.joins_newest(newest.first_us(), coarse)
    }

    /// Uncounts at most `quantity`, the oldest events first, and returns how much of it was in the newest entry.
    fn uncount<E: Entries>(&mut self, entries: &mut E, quantity: u64) -> Result<u64, E::Error> {
        let (Some(_), Some(newest)) = (self.oldest, self.newest) else { return Ok(0) };
        let until_us = self.stored_until_us();
        let mut to_uncount = quantity.min(self.counted());
        let (mut given_back, mut oldest): (Option<TimeRange>, Option<Entry>) = (None, None);
        entries.scan(self.rule_now.horizon_us(), until_us.checked_sub(1), |entry| {
            if entry.weight > to_uncount {
                oldest = Some(entry);
                return false;
            }
            to_uncount = to_uncount.saturating_sub(entry.weight);
            let to_us = entry.newest_us;
            given_back.get_or_insert(TimeRange { from_us: to_us, to_us }).to_us = to_us;
            true
        })?;
        self.edit.given_back = given_back;
        let Some(entry) = oldest else {
            self.uncount_newest(newest, to_uncount);
            return Ok(to_uncount);
        };
        let rest = Entry { weight: entry.weight.saturating_sub(to_uncount), ..entry };
        if rest != entry {
            self.edit.other = EntryChange { old: Some(entry), new: Some(rest) };
        }
        self.oldest = Some(rest);
        Ok(0)
    }

    fn uncount_newest(&mut self, newest: Entry, quantity: u64) {
        let rest = Entry { weight: newest.weight.saturating_sub(quantity), ..newest };
        if quantity > 0 && self.edit.newest.new.is_none() {
            self.edit.newest.old = Some(newest);
        }
        if rest.weight == 0 {
            self.edit.newest.new = None;
            (self.oldest, self.newest) = (None, None);
        } else {
            if quantity > 0 {
                self.edit.newest.new = Some(rest);
            }
            (self.oldest, self.newest) = (Some(rest), Some(rest));
        }
    }

    /// Drops all dead entries if they are few. What was uncounted stays in the running totals, as a gap between dead and
    /// live entries. If the clock were set back, the dead entries would count again, and the gap with them.
    fn close_gap<E: Entries>(&mut self, entries: &mut E) -> Result<(), E::Error> {
        // In a window that does not slide, at most one entry counts, and dead entries never count again.
        let Some(horizon_us) = self.rule_now.horizon_us().filter(|_| self.rule_now.is_sliding())
        else {
            return Ok(());
        };
        let (mut dead, mut are_few): (usize, bool) = (0, true);
        entries.scan(None, Some(horizon_us), |_: Entry| {
            are_few = dead < dead::MAX;
            dead = dead.saturating_add(usize::from(are_few));
            are_few
        })?;
        if are_few {
            self.edit.dropped = dead;
        }
        Ok(())
    }

    /// Returns the time for which the events need the key.
    pub fn expiry(&self) -> Expiry {
        let now_us = self.rule_now.now_us();
        let in_use_us = self.oldest.map_or(0, |oldest| now_us.saturating_sub(oldest.first_us()));
        // Events that stay in the future count until another call merges them, so they leave later than `empty_at_us`.
        let stays_until_us = self.stays_us.map(|us| self.rule_now.leaves_us(us).max(us));
        Expiry {
            needed_us: self.empty_at_us().max(stays_until_us).unwrap_or(now_us),
            in_use_us: in_use_us.min(self.rule_now.sliding_period_us()),
        }
    }

    /// Returns the time at which the last counted event leaves. `None` if there is none.
    pub fn empty_at_us(&self) -> Option<u64> {
        self.oldest?;
        self.newest.map(|newest| self.rule_now.leaves_us(newest.newest_us))
    }

    /// Returns the time at which `need` of the counted events will have left. `None` if fewer are counted.
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
        if need > newest.before().wrapping_sub(oldest.before()) {
            return Ok(Some(self.rule_now.leaves_us(newest.newest_us)));
        }
        if need <= oldest.weight {
            return Ok(Some(self.rule_now.leaves_us(oldest.newest_us)));
        }
        let enough = |entry: &Entry| entry.sum_since(&oldest) >= need;
        let mut found = newest;
        if need <= MAX_SCANNED {
            entries.scan(Some(oldest.newest_us), None, |entry| {
                found = entry;
                !enough(&entry)
            })?;
            return Ok(Some(self.rule_now.leaves_us(found.newest_us.min(newest.newest_us))));
        }
        // Too little has left by `low`, and enough by `found`. `high` is no later than `found`.
        let (mut low, mut high) = (oldest.newest_us, newest.newest_us);
        while high.saturating_sub(low) > 1 {
            let middle = low.midpoint(high).max(low.saturating_add(1));
            match entries.oldest(middle.checked_sub(1))? {
                Some(entry) if entry.newest_us < high => {
                    if enough(&entry) {
                        found = entry;
                        high = middle;
                    } else {
                        low = entry.newest_us;
                    }
                }
                _ => high = middle,
            }
        }
        Ok(Some(self.rule_now.leaves_us(found.newest_us)))
    }

    /// Returns the quantity of the counted events that will have left at `then_us`.
    fn events_freed_until<E: Entries>(
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
        // An entry that `newest` has replaced leaves with `newest`.
        Ok(last.sum_since(&oldest).min(newest.before().wrapping_sub(oldest.before())))
    }

    /// Drops dead entries after a call counted `recorded`. Most calls drop none, and do not look for any.
    fn drop_dead<E: Entries>(&mut self, entries: &mut E, recorded: u64) -> Result<(), E::Error> {
        let (Some(horizon_us), Some(newest)) = (self.rule_now.horizon_us(), self.newest) else {
            return Ok(());
        };
        let Some(mut min_dropped) = self.min_dropped(entries.len(), &newest, recorded) else {
            return Ok(());
        };
        let total_before = newest.total.wrapping_sub(recorded);
        // The sum of the entries from this one on, with the quantity that this call recorded.
        let sum_from = |entry: &Entry| {
            let stored = total_before.wrapping_sub(entry.before());
            u128::from(stored).saturating_add(u128::from(recorded))
        };
        let mut dead: usize = 0;
        entries.scan(None, Some(horizon_us), |entry| {
            let in_the_way = sum_from(&entry) > u128::from(MAX_SUM);
            let drop = in_the_way || dead < dead::MAX;
            if drop {
                dead = dead.saturating_add(1);
                min_dropped = if in_the_way { 1 } else { min_dropped };
            }
            drop
        })?;
        if dead >= min_dropped {
            self.edit.dropped = dead;
        }
        Ok(())
    }

    /// Returns how many of the `len` entries must be dead for a call to drop them. `None` if it is not worth looking for
    /// them.
    // Inlined: it is on the hot path of every grant.
    #[inline(always)]
    fn min_dropped(&self, len: usize, newest: &Entry, recorded: u64) -> Option<usize> {
        // A live entry counts at least 1, so there are no more live entries than the sum.
        let counted_before = self.counted().saturating_sub(recorded);
        let live = usize::try_from(counted_before).unwrap_or(usize::MAX);
        let surely_dead = len.saturating_sub(live);
        let enough = if len <= dead::SMALL { dead::ENOUGH_IN_SMALL } else { dead::ENOUGH };
        let many = surely_dead >= enough || (surely_dead == 0 && len % dead::EVERY == 0);
        let full = len > self.rule_now.max_live();
        let total_before = newest.total.wrapping_sub(recorded);
        // Below this the sum of all entries is in bounds by itself, see `Entry::max_sum`.
        let may_overflow = newest.total.max(total_before) > MAX_SUM;
        (many || full || may_overflow).then_some(if full { 1 } else { enough })
    }

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
    fn heal<E: Entries>(
        &mut self,
        entries: &mut E,
        newest_change: &NewestChange,
        max_healed: usize,
    ) -> Result<(), E::Error> {
        let Some(future) = self.edit.merged else { return Ok(()) };
        let alone = self.rule_now.counts_newest_alone();
        let prior_weight = self.edit.newest.old.map_or(0, |prior| prior.weight);
        let (mut merged, mut merged_weight, mut is_all) = (0_usize, 0, true);
        let (mut oldest, mut last): (Option<Entry>, Option<Entry>) = (None, None);
        entries.scan(future.from_us.checked_sub(1), None, |entry| {
            // The merged entries must include what was uncounted.
            if merged >= max_healed && (merged_weight > 0 || alone) {
                is_all = false;
                return false;
            }
            let oldest = oldest.get_or_insert(entry);
            let sum = entry.sum_since(oldest).saturating_add(prior_weight);
            merged_weight = sum.saturating_sub(newest_change.uncounted);
            merged = merged.saturating_add(1);
            last = Some(entry);
            true
        })?;
        let newest = self.edit.newest.new;
        let (Some(last), Some(merge), false) = (last, newest, is_all) else { return Ok(()) };
        let newest = entries.newest(None)?.ok_or(Refusal::Foreign)?;
        self.edit.merged = Some(TimeRange { to_us: last.newest_us, ..future });
        self.stays_us = Some(newest.newest_us);
        if alone {
            self.leave_in_future(newest);
            return Ok(());
        }
        if !(1..=newest.max_sum()).contains(&merged_weight) {
            return Err(Refusal::Foreign.into());
        }
        let weight = merged_weight.min(MAX_SUM);
        self.edit.newest.new = Some(Entry { total: last.total, weight, ..merge });
        let NewestChange { recorded, denied, .. } = *newest_change;
        if recorded > 0 {
            let grown = Entry {
                total: newest.total.wrapping_add(recorded),
                weight: newest.weight.saturating_add(recorded).min(MAX_SUM),
                denied: newest.denied && denied,
                ..newest
            };
            self.edit.other = EntryChange { old: Some(newest), new: Some(grown) };
        }
        Ok(())
    }

    /// Leaves the entry that alone counts in the future, because others are removed first. The entry takes the event of this
    /// call, or loses what the call uncounts.
    fn leave_in_future(&mut self, future: Entry) {
        let Some(newest) = self.newest else { return };
        self.edit.newest.new = None;
        let newest_us = future.newest_us;
        let after =
            Entry { newest_us, span_us: newest_us.saturating_sub(newest.first_us()), ..newest };
        if after != future {
            self.edit.other = EntryChange { old: Some(future), new: Some(after) };
        }
    }
}

/// The limit of a window, and its use at one moment.
#[derive(Clone, Copy, Debug)]
pub struct WindowUse {
    /// The largest sum of counted events and held reservations at one time.
    pub limit: u64,
    /// The sum of the counted events.
    pub counted: u64,
    /// The sum of the held reservations.
    pub held: u128,
}

/// A verdict on an [`Ask`], without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UntimedVerdict {
    /// The request is allowed, and takes this quantity.
    Allowed(u64),
    /// The request asks for more than the limit can ever allow.
    Never,
    /// The request is denied until `need` has left or was given back.
    Wanting {
        /// The missing quantity. 0 if only the line is in the way.
        need: u128,
        /// The obstacle.
        obstacle: Obstacle,
    },
}

impl WindowUse {
    /// Returns the verdict on a request. With `barred` a waiter comes first.
    pub fn judge(&self, ask: &Ask, barred: bool) -> UntimedVerdict {
        let Quantity::Take(wanted) = ask.quantity else { return UntimedVerdict::Allowed(0) };
        if ask.manner == Manner::Force {
            return UntimedVerdict::Allowed(wanted);
        }
        let Some(min_available) = ask.min_available(self.limit) else {
            return UntimedVerdict::Never;
        };
        let free = self.remaining();
        if min_available <= free && !barred {
            return UntimedVerdict::Allowed(wanted.min(free.saturating_sub(ask.leave)));
        }
        let used = u128::from(self.counted).saturating_add(self.held);
        let need =
            used.saturating_add(u128::from(min_available)).saturating_sub(u128::from(self.limit));
        let without_held = self.limit.saturating_sub(self.counted);
        let obstacle =
            if min_available <= without_held { Obstacle::Held } else { Obstacle::Counted };
        UntimedVerdict::Wanting { need, obstacle }
    }

    /// Returns whether the request is denied only because of its LEAVE.
    pub fn only_leave_denies(&self, ask: &Ask) -> bool {
        let allows = |ask: &Ask| matches!(self.judge(ask, false), UntimedVerdict::Allowed(_));
        !allows(ask) && allows(&Ask { leave: 0, ..*ask })
    }

    /// Returns the quantity that is left.
    pub fn remaining(&self) -> u64 {
        let free = self.limit.saturating_sub(self.counted);
        u64::try_from(u128::from(free).saturating_sub(self.held)).unwrap_or(0)
    }
}

/// Returns the time at which `need` will be free because events leave and reservations end, if nobody gives anything back.
/// `None` if all of them are less than that.
pub fn freed_at_us<E: Entries>(
    entries: &mut E,
    window_count: &WindowCount,
    held: &impl Holds,
    need: u128,
) -> Result<Option<u64>, E::Error> {
    if need == 0 {
        return Ok(Some(window_count.rule_now.now_us()));
    }
    let (gone_us, gone_before) = held.first_gone(|gone_us, gone| -> Result<bool, E::Error> {
        let events_freed = window_count.events_freed_until(entries, gone_us)?;
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

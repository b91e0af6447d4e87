//! A sorted set of entries, in memory.

use crate::entry::{Entries, Entry};
use crate::refusal::Refusal;
use crate::window::{EventEdit, TimeRange};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;

/// A sorted set of entries. Its members are unique, and in the order of their scores and then of their bytes. Entries mostly
/// come and go at its ends, so it is a list, the newest first.
///
/// ```
/// use redis_ratelimit_engine::entry::Entry;
/// use redis_ratelimit_engine::memory::Zset;
///
/// let mut set = Zset::default();
/// let entry = |newest_us, total| Entry { newest_us, span_us: 0, total, weight: 1, denied: false };
/// set.add(&entry(1_000, 1));
/// set.add(&entry(3_000, 2));
/// // The second one moves, as it has the same member.
/// set.add(&entry(2_000, 2));
/// assert_eq!(set.entries().map(|entry| entry.newest_us).collect::<Vec<_>>(), [1_000, 2_000]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Zset {
    newest_first: VecDeque<Entry>,
}

/// A list of up to this length keeps its memory.
const FEW_ENTRIES: usize = 64;

/// Returns whether two entries have the same member, which contains everything but the time.
fn same_member(one: &Entry, other: &Entry) -> bool {
    one.total == other.total && Entry { newest_us: other.newest_us, ..*one } == *other
}

/// Compares by the order of a sorted set: by score, and then by member.
fn compare(one: &Entry, other: &Entry) -> Ordering {
    let by_time = other.newest_us.cmp(&one.newest_us);
    by_time.then_with(|| one.member().as_bytes().cmp(other.member().as_bytes()))
}

/// Compares two running totals, which wrap. Totals grow from entry to entry, so an entry whose total is larger than that of
/// the newest one is not in the set.
fn has_larger_total(entry: &Entry, newest: &Entry) -> bool {
    entry.total != newest.total && entry.total.wrapping_sub(newest.total) >> 63 == 0
}

fn debug_assert_readable(entry: &Entry) {
    debug_assert_eq!(
        Entry::decode(entry.score(), entry.member().as_bytes()).as_ref(),
        Some(entry),
        "this is written and cannot be read"
    );
}

impl Zset {
    /// Adds an entry. A member that is there already gets the new score.
    pub fn add(&mut self, entry: &Entry) {
        debug_assert_readable(entry);
        // Usually it continues the totals, so that its member cannot be there.
        let front = self.newest_first.front();
        if front.is_some_and(|front| !has_larger_total(entry, front)) {
            self.remove(entry);
        }
        let front = self.newest_first.front();
        if front.is_none_or(|front| front.newest_us < entry.newest_us) {
            self.newest_first.push_front(*entry);
            return;
        }
        let at = self.newest_first.partition_point(|one| compare(one, entry).is_lt());
        self.newest_first.insert(at, *entry);
    }

    /// Replaces `old` with `new` if that is the newest entry before and afterwards, which is the usual case. Returns whether
    /// it is.
    fn replace_newest(&mut self, old: &Entry, new: &Entry) -> bool {
        let stays_first =
            self.newest_first.get(1).is_none_or(|second| second.newest_us < new.newest_us);
        match self.newest_first.front_mut() {
            Some(front) if front == old && stays_first && has_larger_total(new, old) => {
                debug_assert_readable(new);
                *front = *new;
                true
            }
            _ => false,
        }
    }

    /// Removes the entry with the member of `entry`, and returns whether there was one.
    fn remove(&mut self, entry: &Entry) -> bool {
        let list = &mut self.newest_first;
        let at = list.partition_point(|one| one.newest_us > entry.newest_us);
        let is_it = |one: &Entry| same_member(one, entry);
        // Usually the entry to remove has the same time.
        let found = match list.get(at) {
            Some(one) if is_it(one) => Some(at),
            _ => list.iter().position(is_it),
        };
        found.and_then(|at| list.remove(at)).is_some()
    }

    /// Returns the indexes of the entries after `after_us` and up to `until_us`. `None` is no bound.
    fn between(&self, after_us: Option<u64>, until_us: Option<u64>) -> Range<usize> {
        let list = &self.newest_first;
        let newer = |than: u64| list.partition_point(|one| one.newest_us > than);
        let end = match after_us {
            None => list.len(),
            // In most calls the oldest entry is newer than this.
            Some(us) if list.back().is_some_and(|oldest| oldest.newest_us > us) => list.len(),
            Some(us) => newer(us),
        };
        until_us.map_or(0, newer).min(end)..end
    }

    fn remove_all_in(&mut self, times: TimeRange) {
        let places = self.between(times.from_us.checked_sub(1), Some(times.to_us));
        self.newest_first.drain(places);
    }

    /// Carries out an edit. All entries that it names must be there.
    pub fn apply(&mut self, edit: &EventEdit) {
        let newest = edit.newest;
        let is_replaced = match (&newest.old, &newest.new) {
            (Some(old), Some(new)) => self.replace_newest(old, new),
            _ => false,
        };
        let changes = [(!is_replaced).then_some(newest), Some(edit.other)];
        let changes = changes.iter().flatten();
        for entry in changes.clone().filter_map(|change| change.new.as_ref()) {
            self.add(entry);
        }
        for entry in changes.filter_map(|change| change.old.as_ref()) {
            let removed = self.remove(entry);
            debug_assert!(removed, "{entry:?} was not there");
        }
        if let Some(times) = edit.given_back {
            let before = self.len();
            self.remove_all_in(times);
            debug_assert!(self.len() < before, "there is no entry in {times:?}");
        }
        if let Some(times) = edit.merged {
            self.remove_all_in(times);
        }
        for _ in 0..edit.dropped {
            let last = self.newest_first.pop_back();
            debug_assert!(last.is_some(), "there is no entry to drop");
        }
        let (len, room) = (self.newest_first.len(), self.newest_first.capacity());
        if room > FEW_ENTRIES && len < room / 4 {
            self.newest_first.shrink_to(room / 2);
        }
    }

    /// Returns the entries, the oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        self.newest_first.iter().rev().copied()
    }
}

impl Entries for Zset {
    type Error = Refusal;

    fn len(&self) -> usize {
        self.newest_first.len()
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Refusal> {
        let at = self.between(None, until_us).start;
        Ok(self.newest_first.get(at).copied())
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Refusal> {
        let places = self.between(after_us, None);
        Ok(places.last().and_then(|at| self.newest_first.get(at)).copied())
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Refusal> {
        let places = self.between(after_us, until_us);
        for entry in self.newest_first.range(places).rev() {
            if !visit(*entry) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::cases;
    use crate::window::EntryEdit;
    use proptest::prelude::*;

    #[test]
    fn entries_that_are_gone_take_no_memory() {
        let mut set = Zset::default();
        for at in 1..=10_000 {
            set.add(&Entry { newest_us: at, span_us: 0, total: at, weight: 1, denied: false });
        }
        let mut room = set.newest_first.capacity();
        while set.len() > 4 {
            set.apply(&EventEdit { dropped: 4, ..EventEdit::default() });
            // Half of it, once three quarters are free: seldom.
            let shrinks = room > FEW_ENTRIES && set.len() < room / 4;
            room = if shrinks { room / 2 } else { room };
            assert_eq!(set.newest_first.capacity(), room, "{}", set.len());
        }
        assert_eq!(room, FEW_ENTRIES);
    }

    proptest! {
        #![proptest_config(cases(500))]

        #[test]
        fn an_edit_that_replaces_the_newest_entry_is_an_addition_and_a_removal(
            adds in proptest::collection::vec((0..6u64, 1..3u64), 1..6),
            put in (0..8u64, 1..3u64),
            at in 0..6usize,
        ) {
            let entry = |(newest_us, weight), total| {
                Entry { newest_us, span_us: 0, total, weight, denied: false }
            };
            let mut set = Zset::default();
            for (add, total) in adds.iter().zip(1..) {
                set.add(&entry(*add, total));
            }
            let put = entry(put, 9);
            let replaced = set.newest_first[at % set.len()];
            let mut expected = set.clone();
            expected.add(&put);
            expected.remove(&replaced);
            let newest = EntryEdit { old: Some(replaced), new: Some(put) };
            set.apply(&EventEdit { newest, ..EventEdit::default() });
            prop_assert_eq!(set.newest_first, expected.newest_first);
        }

        #[test]
        fn a_set_has_each_member_once_and_keeps_the_order_of_the_server(
            adds in proptest::collection::vec((0..6u64, 1..9u64, 1..3u64), 1..20),
        ) {
            let (mut set, mut list) = (Zset::default(), Vec::<Entry>::new());
            for (newest_us, total, weight) in adds {
                let entry = Entry { newest_us, span_us: 0, total, weight, denied: false };
                let mut next = list.clone();
                next.retain(|one| one.member().as_bytes() != entry.member().as_bytes());
                next.push(entry);
                next.sort_by(compare);
                // Totals grow from entry to entry.
                if next.iter().all(|one| one.total <= next[0].total) {
                    set.add(&entry);
                    list = next;
                }
                assert!(set.entries().rev().eq(list.iter().copied()), "{set:?}");
            }
        }
    }
}

//! RL.TOP: the most frequent of many keys, in bounded memory: Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient
//! computation of frequent and top-k elements in data streams", 2005).
//!
//! A key that is not counted yet replaces the one with the least count, and takes over that count. So a count is never too
//! small, and too large by at most the count with which it began. A key with more than 1 in n of all occurrences is always
//! among n counted keys.
//!
//! ```
//! use redis_ratelimit_engine::top_keys::{TopCount, TopKeys};
//! use redis_ratelimit_engine::DbKey;
//!
//! let (mut recent, now_us) = (TopKeys::new(2), 1_795_223_799_544_558);
//! for name in [b"a", b"a", b"a", b"b", b"c"] {
//!     recent.add(DbKey { db: 0, name }, now_us);
//! }
//! let rows = recent.top(now_us, 10);
//! assert_eq!(rows.iter().map(|row| &row.name[..]).collect::<Vec<_>>(), [b"a", b"c"]);
//! assert_eq!(rows[0].occurrences, TopCount { count: 3, overcount: 0 });
//! // c took over the count of b, so one of its two may not be its own.
//! assert_eq!(rows[1].occurrences, TopCount { count: 2, overcount: 1 });
//! ```

use crate::db_key::DbKey;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, Hasher};

/// The number of times that a key occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopCount {
    /// An upper bound of the number.
    pub count: u64,
    /// The most by which `count` is too large.
    pub overcount: u64,
}

#[derive(Debug)]
struct TopEntry {
    db: i32,
    name: Vec<u8>,
    hash: u64,
    occurrences: TopCount,
}

impl TopEntry {
    fn key(&self) -> DbKey<'_> {
        DbKey { db: self.db, name: &self.name }
    }
}

/// Counts of the most frequent keys, of at most `max_keys` at a time.
#[derive(Debug, Default)]
struct TopCounts {
    max_keys: usize,
    entries: Vec<TopEntry>,
    /// The indexes of the entries by the hash of their key, so that a key that replaces another does not allocate. The hash
    /// has a secret, because clients choose the keys.
    by_hash: HashTable<usize>,
    secret: RandomState,
    /// The indexes of the entries by the count that each had when it was last read, the least first.
    by_count: BinaryHeap<Reverse<(u64, usize)>>,
}

impl TopCounts {
    fn new(max_keys: usize) -> TopCounts {
        TopCounts { max_keys, ..TopCounts::default() }
    }

    fn hash(&self, key: DbKey) -> u64 {
        let mut hasher = self.secret.build_hasher();
        hasher.write(key.name);
        hasher.write_i32(key.db);
        hasher.finish()
    }

    fn find(&self, key: DbKey, hash: u64) -> Option<usize> {
        let is_it = |at: &usize| self.entries.get(*at).is_some_and(|entry| entry.key() == key);
        self.by_hash.find(hash, is_it).copied()
    }

    fn add(&mut self, key: DbKey) {
        let hash = self.hash(key);
        let found = self.find(key, hash).and_then(|at| self.entries.get_mut(at));
        if let Some(entry) = found {
            entry.occurrences.count = entry.occurrences.count.saturating_add(1);
            return;
        }
        if self.entries.len() < self.max_keys {
            let at = self.entries.len();
            let DbKey { db, name } = key;
            let occurrences = TopCount { count: 1, overcount: 0 };
            self.entries.push(TopEntry { db, name: name.into(), hash, occurrences });
            self.index_by_hash(hash, at);
            self.by_count.push(Reverse((1, at)));
            return;
        }
        let Some((at, min)) = self.raise_min() else { return };
        let Some(entry) = self.entries.get_mut(at) else { return };
        if let Ok(place) = self.by_hash.find_entry(entry.hash, |other| *other == at) {
            place.remove();
        }
        entry.name.clear();
        entry.name.extend_from_slice(key.name);
        entry.db = key.db;
        entry.hash = hash;
        entry.occurrences = TopCount { count: min.saturating_add(1), overcount: min };
        self.index_by_hash(hash, at);
    }

    fn index_by_hash(&mut self, hash: u64, at: usize) {
        let TopCounts { by_hash, entries, .. } = self;
        by_hash.insert_unique(hash, at, |at| entries.get(*at).map_or(0, |entry| entry.hash));
    }

    /// Returns the index of the entry with the least count, and that count. The heap then has the entry with one more.
    fn raise_min(&mut self) -> Option<(usize, u64)> {
        loop {
            let mut first = self.by_count.peek_mut()?;
            let Reverse((noted, at)) = &mut *first;
            let count = self.entries.get(*at)?.occurrences.count;
            if count == *noted {
                *noted = count.saturating_add(1);
                return Some((*at, count));
            }
            // The count has grown, so the entry moves to its new place.
            *noted = count;
        }
    }

    /// Returns an upper bound of the occurrences of a key that is not counted: the least count.
    fn min_count(&self) -> u64 {
        let min = self.entries.iter().map(|entry| entry.occurrences.count).min();
        min.filter(|_| self.entries.len() >= self.max_keys).unwrap_or(0)
    }

    fn occurrences(&self, key: DbKey) -> Option<TopCount> {
        let at = self.find(key, self.hash(key))?;
        self.entries.get(at).map(|entry| entry.occurrences)
    }

    /// Returns the bounds of the occurrences of `key`, which need not be counted. `min` is [`TopCounts::min_count`].
    fn estimate(&self, key: DbKey, min: u64) -> TopCount {
        self.occurrences(key).unwrap_or(TopCount { count: min, overcount: min })
    }
}

/// A key among the most frequent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopRow {
    pub db: i32,
    /// Its name, which the caller may have cut.
    pub name: Box<[u8]>,
    pub occurrences: TopCount,
}

/// The length of a generation, in microseconds: 10 minutes.
pub const GENERATION_US: u64 = 600_000_000;

/// The most frequent keys of the last 10 to 20 minutes: the present generation, and the one before it.
#[derive(Debug, Default)]
pub struct TopKeys {
    current: TopCounts,
    previous: TopCounts,
    /// The start of the present generation, in Unix microseconds.
    since_us: u64,
}

impl TopKeys {
    pub fn new(max_keys: usize) -> TopKeys {
        let (current, previous) = (TopCounts::new(max_keys), TopCounts::new(max_keys));
        TopKeys { current, previous, since_us: 0 }
    }

    pub fn add(&mut self, key: DbKey, now_us: u64) {
        self.rotate(now_us);
        self.current.add(key);
    }

    /// Returns the most frequent keys at `now_us`, the most frequent first.
    pub fn top(&mut self, now_us: u64, max_rows: usize) -> Vec<TopRow> {
        self.rotate(now_us);
        let is_new = |entry: &&TopEntry| self.current.occurrences(entry.key()).is_none();
        let of_both =
            self.current.entries.iter().chain(self.previous.entries.iter().filter(is_new));
        let min = (self.current.min_count(), self.previous.min_count());
        let mut top: Vec<TopRow> = of_both
            .map(|entry| {
                let current = self.current.estimate(entry.key(), min.0);
                let previous = self.previous.estimate(entry.key(), min.1);
                let count = current.count.saturating_add(previous.count);
                let overcount = current.overcount.saturating_add(previous.overcount);
                let (db, name) = (entry.db, entry.name.as_slice().into());
                TopRow { db, name, occurrences: TopCount { count, overcount } }
            })
            .collect();
        top.sort_by(|row, other| {
            let by_count = other.occurrences.count.cmp(&row.occurrences.count);
            by_count.then_with(|| (row.db, &row.name).cmp(&(other.db, &other.name)))
        });
        top.truncate(max_rows);
        top
    }

    /// Begins a new generation if the present one is over. If the clock was set back to before its start, the present one
    /// goes on from now: if a step back began a new one, two small steps would lose the latest counts.
    fn rotate(&mut self, now_us: u64) {
        let max_keys = self.current.max_keys;
        match now_us.checked_sub(self.since_us).map(|age_us| age_us / GENERATION_US) {
            None => self.since_us = now_us,
            Some(0) => {}
            Some(1) => {
                self.previous = std::mem::replace(&mut self.current, TopCounts::new(max_keys));
                self.since_us = self.since_us.saturating_add(GENERATION_US);
            }
            Some(_) => *self = TopKeys { since_us: now_us, ..TopKeys::new(max_keys) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::cases;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn db_key(name: &[u8]) -> DbKey<'_> {
        DbKey { db: 0, name }
    }

    proptest! {
        #![proptest_config(cases(300))]

        #[test]
        fn no_count_is_too_small_or_too_large_by_more_than_its_overcount(
            max_keys in 1..20usize,
            keys in proptest::collection::vec(0..60u8, 0..800),
            skew in 1..6u32,
        ) {
            let mut summary = TopCounts::new(max_keys);
            let mut exact: HashMap<u8, u64> = HashMap::new();
            for key in &keys {
                // Small numbers are more frequent.
                let key = (u32::from(*key).pow(skew) / 59u32.pow(skew - 1)) as u8;
                summary.add(db_key(&[key]));
                *exact.entry(key).or_default() += 1;
            }
            prop_assert!(summary.entries.len() <= max_keys);
            prop_assert_eq!(summary.by_count.len(), summary.entries.len());
            for (key, times) in &exact {
                let TopCount { count, overcount } = summary.estimate(db_key(&[*key]), summary.min_count());
                prop_assert!(count >= *times && count - overcount <= *times, "{key}: {count} {overcount} {times}");
                if times * max_keys as u64 > keys.len() as u64 {
                    let hash = summary.hash(db_key(&[*key]));
                    prop_assert!(summary.find(db_key(&[*key]), hash).is_some(), "{key} {times}");
                }
            }
        }

        #[test]
        fn two_generations_hold_what_came_in_ten_minutes_and_nothing_older_than_twenty(
            steps in proptest::collection::vec((0..5u8, 0..200_000_000u64), 1..200),
        ) {
            let mut recent = TopKeys::new(64);
            let (mut now_us, mut seen) = (1_000_000_000_000u64, Vec::new());
            for (key, step_us) in steps {
                now_us += step_us;
                recent.add(db_key(&[key]), now_us);
                seen.push((key, now_us));
                for TopRow { name: key, occurrences: TopCount { count, overcount }, .. } in recent.top(now_us, 64) {
                    let within = |us: u64| {
                        let young = |(other, at): &&(u8, u64)| *other == key[0] && now_us - at < us;
                        seen.iter().filter(young).count() as u64
                    };
                    prop_assert_eq!(overcount, 0);
                    prop_assert!(count >= within(GENERATION_US) && count <= within(2 * GENERATION_US));
                }
            }
        }
    }

    #[test]
    fn counts_are_forgotten_after_two_generations_even_if_nothing_came_meanwhile() {
        let start_us = 100 * GENERATION_US;
        for (quiet_us, left) in [
            (GENERATION_US, 1),
            (2 * GENERATION_US - 1, 1),
            (2 * GENERATION_US, 0),
            (3 * GENERATION_US, 0),
            (30 * GENERATION_US, 0),
        ] {
            // It is counted when a generation begins.
            let mut recent = TopKeys::new(2);
            recent.add(db_key(b"a"), start_us);
            assert_eq!(recent.top(start_us + quiet_us, 9).len(), left, "{quiet_us}");
            // And forgotten if another key is counted then.
            let mut recent = TopKeys::new(2);
            recent.add(db_key(b"a"), start_us);
            recent.add(db_key(b"b"), start_us + quiet_us);
            assert_eq!(recent.top(start_us + quiet_us, 9).len(), 1 + left, "{quiet_us}");
            // What came then belongs to the generation that begins with it.
            assert_eq!(recent.top(start_us + quiet_us + GENERATION_US, 9).len(), 1);
        }
    }

    #[test]
    fn a_clock_that_goes_back_again_and_again_forgets_nothing() {
        let mut recent = TopKeys::new(2);
        recent.add(db_key(b"a"), 5 * GENERATION_US);
        for back in 1..5 {
            recent.add(db_key(b"b"), 5 * GENERATION_US - back);
        }
        let top = recent.top(GENERATION_US, 9);
        let counts: Vec<_> = top.iter().map(|row| (&row.name[..], row.occurrences.count)).collect();
        assert_eq!(counts, [(&b"b"[..], 4), (&b"a"[..], 1)]);
        // What is old is forgotten as always.
        assert_eq!(recent.top(2 * GENERATION_US, 9).len(), 2);
        assert_eq!(recent.top(3 * GENERATION_US, 9).len(), 0);
    }
}

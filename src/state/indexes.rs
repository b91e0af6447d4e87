//! The indexes of reservations: one for each key that holds more than a few, derived from its sorted set.
//!
//! An index is valid as long as only this module has changed the set since it was read. The server notifies us of
//! nearly every change by others (see [`crate::redis::events`]). Then the index is dropped, and the next call reads the set
//! again. As a last guard, the set must still have the number of elements that it had.
//!
//! Reading a large set takes as long as a thousand calls. So a large index stays until its key is deleted or somebody
//! changes it: it takes about twice the memory of the set, and `maxmemory` bounds both. Small indexes are read again
//! quickly. All of them together hold at most 2^20 reservations; beyond that the least recently used are dropped.

use crate::redis::context::Context;
use crate::redis::events;
use crate::redis::under_lock::UnderLock;
use engine::index::Index;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A key with at least this many reservations has an index.
pub const INDEX_FROM: usize = 8;

/// The maximum number of reservations in a small index. Reading that many takes about 50 microseconds. A larger index takes
/// more than 20 kB, so no caller can create many of them without as much memory in the keyspace.
pub const SMALL: usize = 128;

/// The maximum number of reservations in all small indexes together.
const MAX_IN_SMALL: usize = 1 << 20;

/// The memory that an entry takes in addition to its key and its index.
const PER_KEY: usize = size_of::<IndexEntry>();

/// The index of one key.
struct IndexEntry {
    db: i32,
    key: Box<[u8]>,
    /// `None` while a call uses it.
    index: Option<Box<Index>>,
    /// The number of elements in the sorted set.
    len: usize,
    reservations: usize,
    bytes: usize,
    /// Its number in [`Indexes::uses`]; 0 if it is not small.
    used: u64,
}

impl IndexEntry {
    fn belongs_to(&self, db: i32, key: &[u8]) -> bool {
        self.db == db && *self.key == *key
    }
}

/// All indexes.
struct Indexes {
    /// By the hash of the database and the key.
    entries: HashTable<IndexEntry>,
    /// Makes the hashes unpredictable, because clients choose the keys.
    secret: RandomState,
    /// The hashes of the small indexes, in the order in which they were last used.
    uses: BTreeMap<u64, u64>,
    last_use: u64,
    small_reservations: usize,
    max_in_small: usize,
    bytes: usize,
}

static INDEXES: UnderLock<Option<Indexes>> = UnderLock::new(None);

/// The number of indexes, so that commands pay nothing while there are none.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The index of a value that has left its name, and the length of its set. RENAME and MOVE notify us of both names, one
/// right after the other: anything that happens in between drops the index.
static LEAVING: UnderLock<Option<(Box<Index>, usize)>> = UnderLock::new(None);

/// Whether [`LEAVING`] holds an index, which each call that writes has to know.
static IS_LEAVING: AtomicBool = AtomicBool::new(false);

fn indexes<T>(body: impl FnOnce(&mut Indexes) -> T) -> T {
    INDEXES.with(|indexes| {
        let indexes = indexes.get_or_insert_with(|| Indexes::new(MAX_IN_SMALL));
        let result = body(indexes);
        NUMBER.store(indexes.entries.len(), Ordering::Relaxed);
        result
    })
}

/// The number of indexes, and about how many bytes they take together, including the names of their keys.
pub fn totals() -> (u64, u64) {
    let number = |number| u64::try_from(number).unwrap_or(u64::MAX);
    indexes(|all| (number(all.entries.len()), number(all.bytes)))
}

/// Whether no key has an index.
pub fn is_empty() -> bool {
    NUMBER.load(Ordering::Relaxed) == 0
}

/// Takes out the index of a key for a call, if there is one and the set still has the `len` elements that it had.
pub fn take(db: i32, key: &[u8], len: usize) -> Option<Box<Index>> {
    indexes(|all| all.take(db, key, len))
}

/// Puts the index of a key back, or a new one in, now that the set has `len` elements. One that has become too short is
/// dropped.
pub fn put(ctx: Context, key: &[u8], index: Box<Index>, len: usize, is_changed: bool) {
    let db = ctx.db();
    match index.len() >= INDEX_FROM && events::watch(ctx) {
        true => indexes(|all| all.put(db, key, index, len, is_changed)),
        false => indexes(|all| drop(all.remove(db, key))),
    }
}

/// Drops the index of a key that was changed.
pub fn forget(db: i32, key: &[u8]) {
    if !is_empty() {
        indexes(|all| drop(all.remove(db, key)));
    }
}

/// Takes out the index of a value that leaves this key for another name or database, where [`move_here`] puts it back.
pub fn move_away(db: i32, key: &[u8]) {
    if !is_empty() {
        let entry = indexes(|all| all.remove(db, key));
        let leaving = entry.and_then(|entry| Some((entry.index?, entry.len)));
        IS_LEAVING.store(leaving.is_some(), Ordering::Relaxed);
        LEAVING.with(|place| *place = leaving);
    }
}

/// Replaces the index of a key with that of the value that has just moved there. Returns false if that value had none.
pub fn move_here(db: i32, key: &[u8]) -> bool {
    forget(db, key);
    if !IS_LEAVING.swap(false, Ordering::Relaxed) {
        return false;
    }
    let Some((index, len)) = LEAVING.with(Option::take) else { return false };
    indexes(|all| all.put(db, key, index, len, true));
    true
}

/// Drops the index of a value that has left its name and has not arrived elsewhere, because something else happened that may
/// have changed the value.
pub fn drop_leaving() {
    if IS_LEAVING.swap(false, Ordering::Relaxed) {
        drop(LEAVING.with(Option::take));
    }
}

/// Drops all indexes.
pub fn drop_all() {
    drop_leaving();
    drop(INDEXES.with(Option::take));
    NUMBER.store(0, Ordering::Relaxed);
}

impl Indexes {
    /// No indexes. The small ones may hold at most `max_in_small` reservations together.
    fn new(max_in_small: usize) -> Indexes {
        Indexes {
            entries: HashTable::new(),
            secret: RandomState::default(),
            uses: BTreeMap::new(),
            last_use: 0,
            small_reservations: 0,
            max_in_small,
            bytes: 0,
        }
    }

    fn take(&mut self, db: i32, key: &[u8], len: usize) -> Option<Box<Index>> {
        let hash = self.secret.hash_one((db, key));
        let entry = self.entries.find_mut(hash, |entry| entry.belongs_to(db, key))?;
        if entry.len == len {
            return entry.index.take();
        }
        self.remove(db, key);
        None
    }

    /// Stores the index of a key as the most recently used.
    fn put(&mut self, db: i32, key: &[u8], index: Box<Index>, len: usize, is_changed: bool) {
        let hash_of = |db: i32, key: &[u8]| self.secret.hash_one((db, key));
        let hash = hash_of(db, key);
        let entry = self.entries.entry(
            hash,
            |entry| entry.belongs_to(db, key),
            |entry| hash_of(entry.db, &entry.key),
        );
        let (key, index_len) = (key.into(), index.len());
        let new = || IndexEntry { db, key, index: None, len, reservations: 0, bytes: 0, used: 0 };
        let entry = entry.or_insert_with(new).into_mut();
        if self.uses.remove(&entry.used).is_some() {
            self.small_reservations = self.small_reservations.saturating_sub(entry.reservations);
        }
        if is_changed || entry.bytes == 0 {
            self.bytes = self.bytes.saturating_sub(entry.bytes);
            entry.bytes = index.bytes().saturating_add(entry.key.len()).saturating_add(PER_KEY);
            self.bytes = self.bytes.saturating_add(entry.bytes);
        }
        (entry.index, entry.len, entry.reservations) = (Some(index), len, index_len);
        entry.used = 0;
        if index_len <= SMALL {
            self.last_use = self.last_use.saturating_add(1);
            entry.used = self.last_use;
            self.uses.insert(entry.used, hash);
            self.small_reservations = self.small_reservations.saturating_add(index_len);
        }
        // Each index that is dropped holds at least a few, and at most `SMALL` were added, so few are dropped in one call.
        while self.small_reservations > self.max_in_small && self.uses.len() > 1 {
            let Some((&used, &hash)) = self.uses.first_key_value() else { return };
            self.remove_entry(hash, |entry| entry.used == used);
        }
    }

    fn remove(&mut self, db: i32, key: &[u8]) -> Option<IndexEntry> {
        self.remove_entry(self.secret.hash_one((db, key)), |entry| entry.belongs_to(db, key))
    }

    fn remove_entry(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&IndexEntry) -> bool,
    ) -> Option<IndexEntry> {
        let (entry, _) = self.entries.find_entry(hash, is_it).ok()?.remove();
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        if self.uses.remove(&entry.used).is_some() {
            self.small_reservations = self.small_reservations.saturating_sub(entry.reservations);
        }
        // Give memory back when most of the table is unused: O(n), after as many removals.
        if self.entries.len() < self.entries.capacity() / 8 {
            let secret = &self.secret;
            self.entries.shrink_to_fit(|entry| secret.hash_one((entry.db, &*entry.key)));
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::reservation::Reservation;

    fn index(reservations: usize) -> Box<Index> {
        let mut index = Box::<Index>::default();
        for number in 0..reservations as u64 {
            let id = number.to_string();
            let (id, rule) = (id.as_bytes(), &b"-"[..]);
            let (quantity, lease_ms, lease_end_us, order_us) = (1, 1, number, number);
            let gone_us = lease_end_us;
            let one = Reservation { id, quantity, lease_ms, lease_end_us, gone_us, order_us, rule };
            assert!(index.insert(&one));
        }
        index
    }

    fn key(number: usize) -> Vec<u8> {
        format!("key:{number}").into_bytes()
    }

    /// Puts an index in, and checks the bound.
    fn put(all: &mut Indexes, number: usize, reservations: usize) {
        all.put(0, &key(number), index(reservations), reservations, true);
        assert!(all.small_reservations <= all.max_in_small);
    }

    fn has(all: &Indexes, number: usize) -> bool {
        let key = key(number);
        all.entries.iter().any(|entry| entry.belongs_to(0, &key))
    }

    /// The keys of the small indexes, the least recently used first.
    fn listed(all: &Indexes) -> Vec<Vec<u8>> {
        let key_at = |(used, hash): (&u64, &u64)| {
            all.entries.find(*hash, |entry| entry.used == *used).unwrap().key.to_vec()
        };
        all.uses.iter().map(key_at).collect()
    }

    #[test]
    fn the_least_recently_used_small_indexes_are_dropped() {
        let fit = 9;
        let mut all = Indexes::new(fit * SMALL);
        (0..fit).for_each(|number| put(&mut all, number, SMALL));
        assert_eq!((all.entries.len(), all.small_reservations), (fit, fit * SMALL));
        // The first is used again, so the second is now the oldest.
        assert!(all.take(0, &key(0), SMALL).is_some());
        put(&mut all, 0, SMALL);
        put(&mut all, fit, SMALL);
        assert!(has(&all, 0) && !has(&all, 1) && has(&all, 2) && has(&all, fit));
        assert_eq!(all.entries.len(), fit);
        // A short index replaces a longer one, and only one is dropped.
        put(&mut all, fit + 1, 8);
        assert!(!has(&all, 2) && has(&all, 3));
        put(&mut all, fit + 2, SMALL - 8);
        assert!(has(&all, 3));
    }

    /// When one bound held for all indexes, each call read one of seventeen keys of 65,535 again.
    #[test]
    fn large_indexes_are_not_dropped_for_others() {
        let (large, fit) = (3, 9);
        let mut all = Indexes::new(fit * SMALL);
        (0..large).for_each(|number| put(&mut all, number, 2 * fit * SMALL));
        (large..50).for_each(|number| put(&mut all, number, SMALL));
        assert_eq!(all.entries.len(), large + fit);
        for number in 0..large {
            assert!(all.take(0, &key(number), 2 * fit * SMALL).is_some(), "{number}");
            put(&mut all, number, 2 * fit * SMALL);
        }
        // One that has become small may be dropped, and one that has become large stays.
        put(&mut all, 0, 8);
        put(&mut all, 49, SMALL + 1);
        (50..99).for_each(|number| put(&mut all, number, SMALL));
        assert!(!has(&all, 0) && has(&all, 1) && has(&all, 49) && !has(&all, 50));
    }

    #[test]
    fn small_indexes_are_ordered_by_use_whatever_is_added_and_removed() {
        let (mut all, mut model) = (Indexes::new(MAX_IN_SMALL), Vec::<(usize, usize)>::new());
        let mut random = 1_u64;
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 40) as usize % 300;
            model.retain(|(other, _)| *other != number);
            match (random >> 33) % 64 {
                0 => {
                    // Most are dropped at once, so that the table shrinks.
                    for (other, _) in model.drain(model.len().min(9)..) {
                        all.remove(0, &key(other));
                    }
                    all.remove(0, &key(number));
                }
                1..=20 => drop(all.remove(0, &key(number))),
                some => {
                    let reservations = if some < 24 { SMALL + 1 } else { 8 + some as usize % 5 };
                    put(&mut all, number, reservations);
                    model.push((number, reservations));
                }
            }
            let small = || model.iter().filter(|(_, reservations)| *reservations <= SMALL);
            assert_eq!(listed(&all), small().map(|(other, _)| key(*other)).collect::<Vec<_>>());
            assert_eq!(all.small_reservations, small().map(|(_, many)| many).sum::<usize>());
            assert_eq!(all.entries.len(), model.len());
            assert!(all.entries.allocation_size() <= 2 * PER_KEY * (16 + 8 * model.len()));
            assert!(model.iter().all(|(other, _)| has(&all, *other)));
        }
        model.iter().for_each(|(number, _)| drop(all.remove(0, &key(*number))));
        assert_eq!((all.entries.len(), all.bytes, all.small_reservations), (0, 0, 0));
    }

    #[test]
    fn an_unchanged_index_that_is_put_back_is_the_most_recently_used() {
        let mut all = Indexes::new(MAX_IN_SMALL);
        (0..3).for_each(|number| put(&mut all, number, 9));
        let bytes = all.bytes;
        let taken = all.take(0, &key(0), 9).unwrap();
        all.put(0, &key(0), taken, 12, false);
        assert_eq!(listed(&all), [key(1), key(2), key(0)]);
        assert_eq!((all.bytes, all.take(0, &key(0), 12).is_some()), (bytes, true));
    }

    #[test]
    fn an_index_belongs_to_one_database_and_to_a_number_of_elements() {
        let mut all = Indexes::new(MAX_IN_SMALL);
        all.put(0, b"k", index(9), 12, true);
        all.put(1, b"k", index(10), 10, true);
        assert_eq!(all.take(0, b"k", 12).map(|index| index.len()), Some(9));
        assert!(all.take(0, b"k", 12).is_none(), "it is out");
        assert!(all.take(1, b"k", 11).is_none(), "the set was changed");
        assert!(all.take(1, b"k", 10).is_none(), "and so it was dropped");
        assert_eq!(all.entries.len(), 1);
    }
}

//! The indexes of reservations: one for each key that holds more than a few, derived from its sorted set.
//!
//! An index is right as long as nobody but this module changed the set since it was read. The server tells of nearly
//! every change by others (see [`crate::redis::events`]), and then the index is dropped; the next call reads the set
//! anew. As a last guard, the number of elements must be what it was.
//!
//! Reading a large set anew takes as long as a thousand calls. So its index stays until its key goes or somebody changes
//! it: it takes about twice what the set itself takes, and `maxmemory` bounds both. Of small ones, which are quickly read
//! anew, those go that were not used for the longest time:
//!
//! ```text
//! newest <-> ... <-> oldest      small indexes in the order of their use, at most 2^20 reservations in all of them
//! large, large, ...              in no order
//! ```

use crate::redis::context::Context;
use crate::redis::events;
use crate::redis::under_lock::UnderLock;
use engine::index::Index;
use engine::slab::{NewSlots, Slab, Slot, NONE};
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most reservations of a small index. Reading so many anew takes some 50 microseconds, and one that is larger takes
/// more than 20 kB, so that no caller makes very many of them without as much in the keyspace.
pub const SMALL: usize = 128;

/// The most reservations in all small indexes together.
const MAX_IN_SMALL: usize = 1 << 20;

/// What an entry takes beside its key and its index.
const PER_KEY: usize = size_of::<Option<IndexEntry>>();

/// The index of one key.
struct IndexEntry {
    db: i32,
    key: Box<[u8]>,
    /// The hash of both.
    hash: u64,
    /// `None` while a call uses it.
    index: Option<Box<Index>>,
    /// How many elements the sorted set has.
    len: usize,
    reservations: usize,
    bytes: usize,
    /// Whether it is in the list of small ones, and its neighbours there.
    is_linked: bool,
    older: Slot,
    newer: Slot,
}

impl IndexEntry {
    fn belongs_to(&self, db: i32, key: &[u8]) -> bool {
        self.db == db && *self.key == *key
    }
}

/// All indexes.
struct Indexes {
    entries: Slab<IndexEntry>,
    /// By the hash of the database and the key, which has a secret: clients choose keys.
    by_key: HashTable<Slot>,
    secret: RandomState,
    /// The ends of the list of small ones.
    oldest: Slot,
    newest: Slot,
    small_reservations: usize,
    /// The most of those.
    most_in_small: usize,
    bytes: usize,
}

static INDEXES: UnderLock<Option<Indexes>> = UnderLock::new(None);

/// How many keys have an index, so that commands pay nothing while there are none.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The index of a value that has left its name, and the length of the set. RENAME and MOVE tell of the two names at once, one
/// after the other: whatever comes between them drops it.
static LEAVING: UnderLock<Option<(Box<Index>, usize)>> = UnderLock::new(None);

/// Whether there is one, as each call that writes asks.
static IS_LEAVING: AtomicBool = AtomicBool::new(false);

fn indexes<T>(body: impl FnOnce(&mut Indexes) -> T) -> T {
    INDEXES.with(|indexes| {
        let indexes = indexes.get_or_insert_with(|| Indexes::new(MAX_IN_SMALL));
        let result = body(indexes);
        NUMBER.store(indexes.number(), Ordering::Relaxed);
        result
    })
}

/// What INFO tells of the indexes.
#[derive(Clone, Copy, Debug)]
pub struct IndexTotals {
    /// Keys that have one.
    pub keys: u64,
    /// About how many bytes they take together, with the names of their keys.
    pub bytes: u64,
}

/// How many indexes there are, and how large.
pub fn totals() -> IndexTotals {
    let number = |number| u64::try_from(number).unwrap_or(u64::MAX);
    indexes(|all| IndexTotals { keys: number(all.number()), bytes: number(all.bytes) })
}

/// Whether no key has an index.
pub fn is_empty() -> bool {
    NUMBER.load(Ordering::Relaxed) == 0
}

/// Takes the index of a key out for a call, if there is one and the set has `len` elements as it had; with the place that
/// [`put_back`] finds it by.
pub fn take(db: i32, key: &[u8], len: usize) -> Option<(Box<Index>, Slot)> {
    indexes(|all| all.take(db, key, len))
}

/// Puts the index of a key back, or a new one in, where the set has `len` elements now. One of fewer than `least`
/// reservations is dropped instead.
pub fn put(ctx: Context, key: &[u8], index: Box<Index>, len: usize, least: usize) {
    let db = ctx.db();
    if index.len() < least || !events::watch(ctx) {
        indexes(|all| all.forget(db, key));
        return;
    }
    indexes(|all| all.put(db, key, index, len));
}

/// Puts an index back into its place that was not changed, where the set has `len` elements now. Returns it where the
/// place was taken away meanwhile.
pub fn put_back(
    ctx: Context,
    key: &[u8],
    slot: Slot,
    index: Box<Index>,
    len: usize,
) -> Option<Box<Index>> {
    indexes(|all| all.put_back(ctx.db(), key, slot, index, len))
}

/// Drops the index of a key, which somebody changed.
pub fn forget(db: i32, key: &[u8]) {
    if !is_empty() {
        indexes(|all| all.forget(db, key));
    }
}

/// Takes the index of a key out, whose value leaves for another name or database: [`move_here`] puts it back.
pub fn move_away(db: i32, key: &[u8]) {
    if !is_empty() {
        let leaving = indexes(|all| all.take_out(db, key));
        IS_LEAVING.store(leaving.is_some(), Ordering::Relaxed);
        LEAVING.with(|place| *place = leaving);
    }
}

/// Gives a key the index of the value that just came there, in the place of its own; false if that value had none.
pub fn move_here(db: i32, key: &[u8]) -> bool {
    forget(db, key);
    if !IS_LEAVING.swap(false, Ordering::Relaxed) {
        return false;
    }
    let Some((index, len)) = LEAVING.with(Option::take) else { return false };
    indexes(|all| all.put(db, key, index, len));
    true
}

/// Drops the index of a value that left its name and has not come to another: something happened that may have changed it.
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
    /// None, and small ones of at most so many reservations may come.
    fn new(most_in_small: usize) -> Indexes {
        Indexes {
            entries: Slab::new(),
            by_key: HashTable::new(),
            secret: RandomState::default(),
            oldest: NONE,
            newest: NONE,
            small_reservations: 0,
            most_in_small,
            bytes: 0,
        }
    }

    fn number(&self) -> usize {
        self.by_key.len()
    }

    fn find(&self, db: i32, key: &[u8]) -> Option<Slot> {
        let is_it =
            |slot: &Slot| self.entries.get(*slot).is_some_and(|entry| entry.belongs_to(db, key));
        self.by_key.find(self.secret.hash_one((db, key)), is_it).copied()
    }

    fn take(&mut self, db: i32, key: &[u8], len: usize) -> Option<(Box<Index>, Slot)> {
        let slot = self.find(db, key)?;
        let entry = self.entries.get_mut(slot)?;
        if entry.len == len {
            return entry.index.take().map(|index| (index, slot));
        }
        self.remove(slot);
        None
    }

    /// Puts an unchanged index back, which is then the one that was used last.
    fn put_back(
        &mut self,
        db: i32,
        key: &[u8],
        slot: Slot,
        index: Box<Index>,
        len: usize,
    ) -> Option<Box<Index>> {
        let place = self.entries.get_mut(slot);
        let Some(entry) = place.filter(|entry| entry.belongs_to(db, key) && entry.index.is_none())
        else {
            return Some(index);
        };
        (entry.index, entry.len) = (Some(index), len);
        if entry.is_linked && self.newest != slot {
            self.unlink(slot);
            self.link(slot);
        }
        None
    }

    /// Puts the index of a key in, which is then the one that was used last.
    fn put(&mut self, db: i32, key: &[u8], index: Box<Index>, len: usize) {
        let slot = match self.find(db, key) {
            Some(slot) => slot,
            None => match self.add(db, key) {
                Some(slot) => slot,
                None => return,
            },
        };
        self.unlink(slot);
        let Some(entry) = self.entries.get_mut(slot) else { return };
        let before = entry.bytes;
        (entry.len, entry.reservations) = (len, index.len());
        entry.bytes = index.bytes().saturating_add(entry.key.len()).saturating_add(PER_KEY);
        entry.index = Some(index);
        let (bytes, is_small) = (entry.bytes, entry.reservations <= SMALL);
        self.bytes = self.bytes.saturating_sub(before).saturating_add(bytes);
        if is_small {
            self.link(slot);
        }
        // Each that goes is of some, and at most `SMALL` came: few go in one call.
        while self.small_reservations > self.most_in_small && self.oldest != self.newest {
            self.remove(self.oldest);
        }
    }

    /// An entry without an index for a key that has none. `None` if there are more than can be numbered.
    fn add(&mut self, db: i32, key: &[u8]) -> Option<Slot> {
        let slot = self.entries.next_slot()?;
        let hash = self.secret.hash_one((db, key));
        let Indexes { entries, by_key, .. } = self;
        entries.insert(IndexEntry {
            db,
            key: key.into(),
            hash,
            index: None,
            len: 0,
            reservations: 0,
            bytes: 0,
            is_linked: false,
            older: NONE,
            newer: NONE,
        });
        by_key.insert_unique(hash, slot, |slot| hash_at(entries, *slot));
        Some(slot)
    }

    /// Removes a key; its index, and how many elements the set has.
    fn take_out(&mut self, db: i32, key: &[u8]) -> Option<(Box<Index>, usize)> {
        let slot = self.find(db, key)?;
        let entry = self.entries.get_mut(slot)?;
        let (index, len) = (entry.index.take(), entry.len);
        self.remove(slot);
        index.map(|index| (index, len))
    }

    fn forget(&mut self, db: i32, key: &[u8]) {
        if let Some(slot) = self.find(db, key) {
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.unlink(slot);
        let Some(entry) = self.entries.remove(slot) else { return };
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        if let Ok(found) = self.by_key.find_entry(entry.hash, |other| *other == slot) {
            found.remove();
        }
        if let Some(slots) = self.entries.compact() {
            self.renumber(&slots);
        }
    }

    /// Makes an entry the newest of the small ones.
    fn link(&mut self, slot: Slot) {
        let older = self.newest;
        let Some(entry) = self.entries.get_mut(slot) else { return };
        (entry.is_linked, entry.older, entry.newer) = (true, older, NONE);
        let reservations = entry.reservations;
        self.small_reservations = self.small_reservations.saturating_add(reservations);
        match self.entries.get_mut(older) {
            Some(older) => older.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
    }

    /// Takes an entry out of the list, if it is there.
    fn unlink(&mut self, slot: Slot) {
        let Some(entry) = self.entries.get_mut(slot).filter(|entry| entry.is_linked) else {
            return;
        };
        entry.is_linked = false;
        let IndexEntry { older, newer, reservations, .. } = *entry;
        self.small_reservations = self.small_reservations.saturating_sub(reservations);
        match self.entries.get_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }

    /// Follows the entries, which were moved together.
    fn renumber(&mut self, slots: &NewSlots) {
        for entry in self.entries.iter_mut() {
            (entry.older, entry.newer) = (slots.of(entry.older), slots.of(entry.newer));
        }
        self.by_key.iter_mut().for_each(|slot| *slot = slots.of(*slot));
        (self.oldest, self.newest) = (slots.of(self.oldest), slots.of(self.newest));
        let Indexes { entries, by_key, .. } = self;
        by_key.shrink_to_fit(|slot| hash_at(entries, *slot));
    }
}

/// The hash of the entry in a slot.
fn hash_at(entries: &Slab<IndexEntry>, slot: Slot) -> u64 {
    entries.get(slot).map_or(0, |entry| entry.hash)
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

    /// Puts an index in; what is in the list must add up.
    fn put(all: &mut Indexes, number: usize, reservations: usize) {
        all.put(0, &key(number), index(reservations), reservations);
        assert!(all.small_reservations <= all.most_in_small);
    }

    fn has(all: &Indexes, number: usize) -> bool {
        all.find(0, &key(number)).is_some()
    }

    /// The entries of the list, the oldest first, there and back.
    fn listed(all: &Indexes) -> Vec<Vec<u8>> {
        let walk = |from: Slot, next: fn(&IndexEntry) -> Slot| {
            let (mut found, mut at) = (Vec::new(), from);
            while let Some(entry) = all.entries.get(at) {
                found.push(entry.key.to_vec());
                at = next(entry);
            }
            found
        };
        let found = walk(all.oldest, |entry| entry.newer);
        let mut back = walk(all.newest, |entry| entry.older);
        back.reverse();
        assert_eq!(found, back);
        found
    }

    #[test]
    fn of_small_indexes_those_go_that_were_not_used_for_the_longest_time() {
        let fit = 9;
        let mut all = Indexes::new(fit * SMALL);
        (0..fit).for_each(|number| put(&mut all, number, SMALL));
        assert_eq!((all.number(), all.small_reservations), (fit, fit * SMALL));
        // The first is used again, so that the second is the oldest.
        assert!(all.take(0, &key(0), SMALL).is_some());
        put(&mut all, 0, SMALL);
        put(&mut all, fit, SMALL);
        assert!(has(&all, 0) && !has(&all, 1) && has(&all, 2) && has(&all, fit));
        assert_eq!(all.number(), fit);
        // One of a few takes the place of one of many, and only one goes.
        put(&mut all, fit + 1, 8);
        assert!(!has(&all, 2) && has(&all, 3));
        put(&mut all, fit + 2, SMALL - 8);
        assert!(has(&all, 3));
    }

    /// Seventeen keys of 65,535 were read anew by each call, as all indexes together held no more than 2^20.
    #[test]
    fn large_indexes_stay() {
        let (large, fit) = (3, 9);
        let mut all = Indexes::new(fit * SMALL);
        (0..large).for_each(|number| put(&mut all, number, 2 * fit * SMALL));
        (large..50).for_each(|number| put(&mut all, number, SMALL));
        assert_eq!(all.number(), large + fit);
        for number in 0..large {
            assert!(all.take(0, &key(number), 2 * fit * SMALL).is_some(), "{number}");
            put(&mut all, number, 2 * fit * SMALL);
        }
        // One that has become small may go, and one that has become large stays.
        put(&mut all, 0, 8);
        put(&mut all, 49, SMALL + 1);
        (50..99).for_each(|number| put(&mut all, number, SMALL));
        assert!(!has(&all, 0) && has(&all, 1) && has(&all, 49) && !has(&all, 50));
    }

    #[test]
    fn the_list_is_in_the_order_of_use_whatever_goes_and_comes() {
        let (mut all, mut model) = (Indexes::new(MAX_IN_SMALL), Vec::<(usize, usize)>::new());
        let mut random = 1_u64;
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 40) as usize % 300;
            model.retain(|(other, _)| *other != number);
            match (random >> 33) % 64 {
                0 => {
                    // Most go at once, so that the rest moves together.
                    for (other, _) in model.drain(model.len().min(9)..) {
                        all.forget(0, &key(other));
                    }
                    all.forget(0, &key(number));
                }
                1..=20 => all.forget(0, &key(number)),
                some => {
                    let reservations = if some < 24 { SMALL + 1 } else { 8 + some as usize % 5 };
                    put(&mut all, number, reservations);
                    model.push((number, reservations));
                }
            }
            let small = || model.iter().filter(|(_, reservations)| *reservations <= SMALL);
            assert_eq!(listed(&all), small().map(|(other, _)| key(*other)).collect::<Vec<_>>());
            assert_eq!(all.small_reservations, small().map(|(_, many)| many).sum::<usize>());
            assert_eq!(all.number(), model.len());
            assert!(all.entries.bytes() <= PER_KEY * 64.max(8 * model.len() + 8));
            assert!(model.iter().all(|(other, _)| has(&all, *other)));
        }
        model.iter().for_each(|(number, _)| all.forget(0, &key(*number)));
        assert_eq!((all.number(), all.bytes, all.small_reservations), (0, 0, 0));
    }

    #[test]
    fn an_unchanged_index_goes_back_to_its_place_and_is_the_one_that_was_used_last() {
        let mut all = Indexes::new(MAX_IN_SMALL);
        (0..3).for_each(|number| put(&mut all, number, 9));
        let (taken, slot) = all.take(0, &key(0), 9).unwrap();
        assert!(all.put_back(0, &key(0), slot, taken, 12).is_none());
        assert_eq!(listed(&all), [key(1), key(2), key(0)]);
        // Somebody changed the key, and another one has the place.
        let (taken, slot) = all.take(0, &key(0), 12).unwrap();
        all.forget(0, &key(0));
        put(&mut all, 3, 9);
        assert!(all.put_back(0, &key(0), slot, taken, 12).is_some());
        assert!(has(&all, 3) && !has(&all, 0));
    }

    #[test]
    fn an_index_is_of_one_database_and_of_as_many_elements() {
        let mut all = Indexes::new(MAX_IN_SMALL);
        all.put(0, b"k", index(9), 12);
        all.put(1, b"k", index(10), 10);
        assert_eq!(all.take(0, b"k", 12).map(|(index, _)| index.len()), Some(9));
        assert!(all.take(0, b"k", 12).is_none(), "it is out");
        assert!(all.take(1, b"k", 11).is_none(), "somebody changed the set");
        assert!(all.take(1, b"k", 10).is_none(), "and so it was dropped");
        assert_eq!(all.number(), 1);
    }
}

//! The indexes of reservations: one for each key that holds more than a few, derived from its sorted set.
//!
//! An index is right as long as nobody but this module changed the set since it was read. The server tells of nearly
//! every change by others (see [`crate::redis::events`]), and then the index is dropped; the next call reads the set
//! anew. As a last guard, the number of elements must be what it was.

use crate::limit::index::Index;
use crate::redis::call::Context;
use crate::redis::events;
use foldhash::quality::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most reservations in all indexes together. Beyond it the index that was not used for the longest time goes.
const MOST_RESERVATIONS: usize = 1 << 20;

struct Entry {
    /// `None` while a call uses it.
    index: Option<Box<Index>>,
    /// How many elements the sorted set has.
    len: usize,
    reservations: usize,
    bytes: usize,
    /// When it was used last, in calls.
    used: u64,
}

/// All indexes.
struct Indexes {
    keys: BTreeMap<i32, HashMap<Box<[u8]>, Entry, RandomState>>,
    reservations: usize,
    bytes: usize,
    uses: u64,
}

static INDEXES: Mutex<Option<Indexes>> = Mutex::new(None);

/// How many keys have an index, so that commands pay nothing while there are none.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

fn indexes<T>(body: impl FnOnce(&mut Indexes) -> T) -> T {
    let mut indexes = INDEXES.lock().unwrap_or_else(PoisonError::into_inner);
    body(indexes.get_or_insert_with(|| Indexes {
        keys: BTreeMap::new(),
        reservations: 0,
        bytes: 0,
        uses: 0,
    }))
}

/// What INFO tells of the indexes.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Keys that have one.
    pub keys: u64,
    /// About how many bytes they take together, with the names of their keys.
    pub bytes: u64,
}

/// How many indexes there are, and how large.
pub fn figures() -> Figures {
    let number = |number| u64::try_from(number).unwrap_or(u64::MAX);
    Figures {
        keys: number(NUMBER.load(Ordering::Relaxed)),
        bytes: number(indexes(|all| all.bytes)),
    }
}

/// Whether no key has an index.
pub fn are_none() -> bool {
    NUMBER.load(Ordering::Relaxed) == 0
}

/// Takes the index of a key out for a call, if there is one and the set has `len` elements as it had.
pub fn take(db: i32, key: &[u8], len: usize) -> Option<Box<Index>> {
    indexes(|all| {
        let entry = all.keys.get_mut(&db)?.get_mut(key)?;
        if entry.len == len {
            return entry.index.take();
        }
        all.forget(db, key);
        None
    })
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

/// Drops the index of a key, which somebody changed.
pub fn forget(db: i32, key: &[u8]) {
    if NUMBER.load(Ordering::Relaxed) > 0 {
        indexes(|all| all.forget(db, key));
    }
}

/// Drops all indexes.
pub fn forget_all() {
    let mut all = INDEXES.lock().unwrap_or_else(PoisonError::into_inner);
    *all = None;
    NUMBER.store(0, Ordering::Relaxed);
}

impl Indexes {
    fn put(&mut self, db: i32, key: &[u8], index: Box<Index>, len: usize) {
        self.uses = self.uses.wrapping_add(1);
        let (reservations, bytes) = (index.len(), index.bytes().saturating_add(key.len()));
        let entry = Entry { index: Some(index), len, reservations, bytes, used: self.uses };
        let keys = self.keys.entry(db).or_default();
        let before = match keys.get_mut(key) {
            Some(place) => Some(std::mem::replace(place, entry)),
            None => keys.insert(key.into(), entry),
        };
        self.uncount(before.as_ref());
        self.reservations = self.reservations.saturating_add(reservations);
        self.bytes = self.bytes.saturating_add(bytes);
        if before.is_none() {
            NUMBER.fetch_add(1, Ordering::Relaxed);
        }
        while self.reservations > MOST_RESERVATIONS && self.forget_oldest(self.uses) {}
    }

    fn forget(&mut self, db: i32, key: &[u8]) {
        let Some(keys) = self.keys.get_mut(&db) else { return };
        let Some(entry) = keys.remove(key) else { return };
        if keys.is_empty() {
            self.keys.remove(&db);
        }
        self.uncount(Some(&entry));
        NUMBER.fetch_sub(1, Ordering::Relaxed);
    }

    fn uncount(&mut self, entry: Option<&Entry>) {
        let Some(entry) = entry else { return };
        self.reservations = self.reservations.saturating_sub(entry.reservations);
        self.bytes = self.bytes.saturating_sub(entry.bytes);
    }

    /// Drops the index that was not used for the longest time, but not the one of use number `keep`.
    fn forget_oldest(&mut self, keep: u64) -> bool {
        let all = self.keys.iter().flat_map(|(db, keys)| keys.iter().map(move |key| (*db, key)));
        let oldest = all.min_by_key(|(_, (_, entry))| entry.used);
        let Some((db, (key, entry))) = oldest else { return false };
        if entry.used == keep {
            return false;
        }
        let key = key.clone();
        self.forget(db, &key);
        true
    }
}

//! The indexes of reservations: one for each key that holds more than a few, derived from its sorted set.
//!
//! An index is valid as long as only this module has changed the set since it was read. The server notifies us of nearly
//! every change by others (redis/key_events.rs). Then the index is dropped, and the next call reads the set again. As a last
//! guard, the set must still have the number of elements that it had.
//!
//! Reading a large set takes as long as a thousand calls. So a large index stays until its key is deleted or another client
//! changes it: it takes about twice the memory of the set, and `maxmemory` bounds both. Small indexes are read again
//! quickly. All of them together hold at most 2^20 reservations; beyond that the least recently used are dropped.
//!
//! An index goes with its value to another name or database if nobody can have changed the value on its way.
//!
//! If an entry among many reservations is foreign, this is kept instead of an index, so that only one call reads that far.

use super::{KeyContext, ServerKeyspace};
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::key_events::{watch_keys, KeyChange, KeyEvents};
use crate::redis::server_events::{ServerEvents, DATABASE_CHANGES};
use crate::redis::under_lock::UnderLock;
use crate::state::State;
use commands::keyspace::Keyspace;
use engine::index::Index;
use engine::reservations::{Reservations, INDEX_FROM};
use engine::store::{Access, Store, WindowKey};
use foldhash::quality::RandomState;
use hashbrown::hash_table::{Entry, HashTable};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The maximum number of reservations in a small index. Reading that many takes about 50 microseconds. A larger index takes
/// more than 20 kB, so no caller can create many of them without as much memory in the keyspace.
pub const SMALL: usize = 128;

/// The maximum number of reservations in all small indexes together.
const MAX_IN_SMALL: usize = 1 << 20;

/// The memory that an entry takes in addition to its key and its index.
const PER_KEY: usize = size_of::<IndexEntry>();

/// What is known about the reservations of a key.
pub enum Finding {
    Index(Box<Index>),
    /// The module did not write one of them.
    Foreign,
}

/// The index of one key.
struct IndexEntry {
    db: i32,
    key: Box<[u8]>,
    /// `None` while a call uses the index.
    finding: Option<Finding>,
    /// The number of elements in the sorted set.
    len: usize,
    /// The number of reservations that were read.
    reservations: usize,
    bytes: usize,
    /// The number of its last use, by which it is in [`Indexes::lru`]. 0 if the index is not small, and so never dropped for
    /// others.
    use_number: u64,
    /// The value of [`Indexes::touches`] when the index was stored last.
    touched_at: u64,
}

/// The length of [`Indexes::last_touches`], whose positions are hashes of database and key. Keys with the same position
/// count as touched together: then an index is dropped although it is right.
const TOUCHED_KEYS: usize = 1 << 12;

impl Finding {
    fn bytes(&self) -> usize {
        match self {
            Finding::Index(index) => index.bytes(),
            Finding::Foreign => 0,
        }
    }
}

impl IndexEntry {
    fn belongs_to(&self, db: i32, key: &[u8]) -> bool {
        self.db == db && *self.key == *key
    }
}

/// The number of tables of indexes. A table that grows moves all its entries at once: a single one took 14 ms for 114,688.
const TABLES: usize = 64;

/// Returns the table for a hash. The table itself uses its lowest and highest bits.
fn table(
    tables: &mut [HashTable<IndexEntry>; TABLES],
    hash: u64,
) -> Option<&mut HashTable<IndexEntry>> {
    tables.get_mut((hash >> 32) as usize % TABLES)
}

struct Indexes {
    /// The indexes, by the hash of the database and the key.
    tables: [HashTable<IndexEntry>; TABLES],
    len: usize,
    /// Makes the hashes unpredictable, because clients choose the keys.
    secret: RandomState,
    /// The hashes of the small indexes by the number of their last use, so that the first is the least recently used.
    lru: BTreeMap<u64, u64>,
    /// The number of the last use of any small index.
    last_use: u64,
    small_reservations: usize,
    max_in_small: usize,
    bytes: usize,
    /// The number of uses and changes of keys so far.
    touches: u64,
    /// The value of `touches` when a key with each hash was last used or changed, see [`TOUCHED_KEYS`]. Empty until the
    /// first index is stored.
    last_touches: Box<[u64]>,
    /// The index of a value that is leaving its name or database.
    leaving: Option<IndexEntry>,
}

#[derive(Default)]
pub struct KeyIndexes {
    all: UnderLock<Indexes>,
    /// The number of indexes, with the one that is leaving. While it is 0, a command only reads this.
    number: AtomicUsize,
    /// True once the server notifies us of changes to keys.
    is_watching: AtomicBool,
    /// True while the module itself removes a range of elements by a command. The server notifies us of that too.
    removes_range: AtomicBool,
}

impl Default for Indexes {
    fn default() -> Indexes {
        Indexes::new(MAX_IN_SMALL)
    }
}

impl KeyIndexes {
    fn with<T>(&self, body: impl FnOnce(&mut Indexes) -> T) -> T {
        self.all.with(|all| {
            let result = body(all);
            let leaving = usize::from(all.leaving.is_some());
            self.number.store(all.len.saturating_add(leaving), Ordering::Relaxed);
            result
        })
    }

    /// Returns the number of indexes, and about how many bytes they take together, including the names of their keys.
    pub fn totals(&self) -> (u64, u64) {
        let number = |number| u64::try_from(number).unwrap_or(u64::MAX);
        self.with(|all| (number(all.len), number(all.bytes)))
    }

    fn is_empty(&self) -> bool {
        self.number.load(Ordering::Relaxed) == 0
    }

    /// Takes out the index of a key for a call, if there is one and the set still has the `len` elements that it had, or
    /// returns that the set is foreign. The call puts the index back.
    pub fn take(&self, key_ctx: KeyContext, len: usize) -> Option<Finding> {
        if self.is_empty() {
            return None;
        }
        self.with(|all| all.take(key_ctx.ctx.db(), key_ctx.name.as_bytes(), len))
    }

    /// Stores the index of a key after a call, when the set has `len` elements. Drops it if too few reservations are left.
    pub fn put(&self, key_ctx: KeyContext, reservations: Reservations, len: usize) {
        let (db, key) = (key_ctx.ctx.db(), key_ctx.name.as_bytes());
        let is_changed = reservations.is_changed();
        let reservations_len = reservations.len();
        let is_long = reservations_len >= INDEX_FROM;
        match reservations.into_index().filter(|_| is_long && self.watch(key_ctx.ctx)) {
            Some(index) => {
                let (finding, read) = (Finding::Index(index), reservations_len);
                self.with(|all| all.put(db, key, finding, read, len, is_changed));
            }
            None => self.drop_index(db, key),
        }
    }

    /// Stores that in a set of `len` elements a foreign entry follows after `read` reservations.
    pub fn put_foreign(&self, key_ctx: KeyContext, read: usize, len: usize) {
        let (db, key) = (key_ctx.ctx.db(), key_ctx.name.as_bytes());
        if read >= INDEX_FROM && self.watch(key_ctx.ctx) {
            self.with(|all| all.put(db, key, Finding::Foreign, read, len, true));
        }
    }

    pub fn drop_index(&self, db: i32, key: &[u8]) {
        if !self.is_empty() {
            self.with(|all| all.remove(db, key));
        }
    }

    pub fn drop_all(&self) {
        drop(self.all.replace(Indexes::default()));
        self.number.store(0, Ordering::Relaxed);
    }

    /// Makes the server notify us of changes to keys from now on. Returns whether it does.
    fn watch(&self, ctx: Context) -> bool {
        if !self.is_watching.load(Ordering::Relaxed) {
            self.is_watching.store(watch_keys::<KeyIndexes>(ctx), Ordering::Relaxed);
        }
        self.is_watching.load(Ordering::Relaxed)
    }

    /// Runs `remove`, which removes a range of elements by a command, and whose change the indexes know.
    pub fn while_removing_range(&self, remove: impl FnOnce()) {
        self.removes_range.store(true, Ordering::Relaxed);
        remove();
        self.removes_range.store(false, Ordering::Relaxed);
    }
}

impl KeyEvents for KeyIndexes {
    // Reading a large set takes long, and the next call may come from any client. So a value that was written as a whole is
    // read right away, at the expense of the command that wrote it.
    fn key_changed(ctx: Context, name: KeyName, change: KeyChange) {
        let state = State::get();
        let indexes = &state.indexes;
        let is_part = matches!(change, KeyChange::Edited | KeyChange::MovedAway);
        if indexes.removes_range.load(Ordering::Relaxed) || (indexes.is_empty() && is_part) {
            return;
        }
        let (db, key) = (ctx.db(), name.as_bytes());
        let must_read = indexes.with(|all| match change {
            KeyChange::Edited | KeyChange::Written => {
                all.remove(db, key);
                change == KeyChange::Written
            }
            KeyChange::MovedAway => {
                all.leaving = all.remove(db, key);
                false
            }
            KeyChange::MovedHere => !all.receive(db, key),
        });
        if must_read {
            let key_ctx = KeyContext { ctx, name, now_us: clock::command_time_us() };
            // A foreign value is refused by the next call on it.
            let _ = ServerKeyspace::new(state).store(key_ctx, Access::Read).window().read(None);
        }
    }
}

impl ServerEvents for KeyIndexes {
    const IDS: &'static [u64] = DATABASE_CHANGES;

    fn happened() {
        State::get().indexes.drop_all();
    }
}

impl Indexes {
    /// Creates an empty set of indexes. The small ones may hold at most `max_in_small` reservations together.
    fn new(max_in_small: usize) -> Indexes {
        Indexes {
            tables: [const { HashTable::new() }; TABLES],
            len: 0,
            secret: RandomState::default(),
            lru: BTreeMap::new(),
            last_use: 0,
            small_reservations: 0,
            max_in_small,
            bytes: 0,
            touches: 0,
            last_touches: Box::default(),
            leaving: None,
        }
    }

    /// Notes that a key is used or changed, and returns the hash of the database and the key.
    fn touch(&mut self, db: i32, key: &[u8]) -> u64 {
        let hash = self.secret.hash_one((db, key));
        self.touches = self.touches.saturating_add(1);
        let now = self.touches;
        if let Some(last) = self.last_touch(hash) {
            *last = now;
        }
        hash
    }

    /// Returns the value of `touches` when a key with this hash was last touched.
    fn last_touch(&mut self, hash: u64) -> Option<&mut u64> {
        self.last_touches.get_mut(hash as usize % TOUCHED_KEYS)
    }

    fn take(&mut self, db: i32, key: &[u8], len: usize) -> Option<Finding> {
        let hash = self.touch(db, key);
        let table = table(&mut self.tables, hash)?;
        let entry = table.find_mut(hash, |entry| entry.belongs_to(db, key))?;
        if entry.len != len {
            self.remove(db, key);
            return None;
        }
        let finding = entry.finding.take()?;
        if let Finding::Foreign = finding {
            entry.finding = Some(Finding::Foreign);
        }
        Some(finding)
    }

    /// Stores the finding about `read` reservations of a key as the most recently used.
    fn put(
        &mut self,
        db: i32,
        key: &[u8],
        finding: Finding,
        read: usize,
        len: usize,
        is_changed: bool,
    ) {
        if self.last_touches.is_empty() {
            self.last_touches = vec![0; TOUCHED_KEYS].into();
        }
        let hash_of = |db: i32, key: &[u8]| self.secret.hash_one((db, key));
        let hash = hash_of(db, key);
        let Some(table) = table(&mut self.tables, hash) else { return };
        let entry = table.entry(
            hash,
            |entry| entry.belongs_to(db, key),
            |entry| hash_of(entry.db, &entry.key),
        );
        let entry = match entry {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => {
                self.len = self.len.saturating_add(1);
                let new = IndexEntry {
                    db,
                    key: key.into(),
                    finding: None,
                    len,
                    reservations: 0,
                    bytes: 0,
                    use_number: 0,
                    touched_at: 0,
                };
                place.insert(new).into_mut()
            }
        };
        if self.lru.remove(&entry.use_number).is_some() {
            self.small_reservations = self.small_reservations.saturating_sub(entry.reservations);
        }
        if is_changed || entry.bytes == 0 {
            self.bytes = self.bytes.saturating_sub(entry.bytes);
            entry.bytes = finding.bytes().saturating_add(entry.key.len()).saturating_add(PER_KEY);
            self.bytes = self.bytes.saturating_add(entry.bytes);
        }
        (entry.finding, entry.len, entry.reservations) = (Some(finding), len, read);
        (entry.use_number, entry.touched_at) = (0, self.touches);
        if read <= SMALL {
            self.last_use = self.last_use.saturating_add(1);
            entry.use_number = self.last_use;
            self.lru.insert(entry.use_number, hash);
            self.small_reservations = self.small_reservations.saturating_add(read);
        }
        // Each index that is dropped holds at least a few, and at most `SMALL` were added, so few are dropped in one call.
        while self.small_reservations > self.max_in_small && self.lru.len() > 1 {
            let Some((&last_use, &hash)) = self.lru.first_key_value() else { return };
            self.remove_entry(hash, |entry| entry.use_number == last_use);
        }
    }

    /// Removes the index of a key that is changed.
    fn remove(&mut self, db: i32, key: &[u8]) -> Option<IndexEntry> {
        let hash = self.touch(db, key);
        self.remove_entry(hash, |entry| entry.belongs_to(db, key))
    }

    /// Gives this key the index of the value that was moved here, and returns whether that index is still right. The server
    /// notifies us after it has moved the value, and another module, which is notified too, may have changed the value here
    /// by then. So the index is right only if nobody has touched this key since the index was stored under the old name.
    fn receive(&mut self, db: i32, key: &[u8]) -> bool {
        let leaving = self.leaving.take();
        let last = self.last_touch(self.secret.hash_one((db, key))).copied();
        self.remove(db, key);
        let Some(IndexEntry { finding: Some(finding), len, reservations, touched_at, .. }) =
            leaving
        else {
            return false;
        };
        let is_right = last.is_some_and(|last| last <= touched_at);
        if is_right {
            self.put(db, key, finding, reservations, len, true);
        }
        is_right
    }

    fn remove_entry(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&IndexEntry) -> bool,
    ) -> Option<IndexEntry> {
        let table = table(&mut self.tables, hash)?;
        let (entry, _) = table.find_entry(hash, is_it).ok()?.remove();
        // Give memory back when most of the table is unused: O(n), after as many removals.
        if table.len() < table.capacity() / 8 {
            let secret = &self.secret;
            table.shrink_to_fit(|entry| secret.hash_one((entry.db, &*entry.key)));
        }
        self.len = self.len.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        if self.lru.remove(&entry.use_number).is_some() {
            self.small_reservations = self.small_reservations.saturating_sub(entry.reservations);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests;

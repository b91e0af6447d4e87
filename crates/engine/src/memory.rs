//! Keys in memory, which hold what those of a server hold: the state of a bucket, or the events and reservations of a
//! window. The same code decides, so the decisions are the same.
//!
//! ```
//! use redis_ratelimit_engine::{read, Limit, Mode, Part, Request};
//! use redis_ratelimit_engine::memory::Memory;
//! use redis_ratelimit_engine::throttle::Rate;
//!
//! // Two at once, one a second.
//! let request = Request::new(Limit::Rate(Rate::new(1, 1, 1_000).unwrap()));
//! let memory = Memory::default();
//! let now_us = 1_795_223_799_544_558;
//! let allowed = || {
//!     let mut parts = [Part::new(memory.key(b"user:1", now_us), &request, 0, false)];
//!     let judged = read(&mut parts).unwrap().judge().unwrap();
//!     let plan = judged.plan(Mode::Final, || unreachable!()).unwrap();
//!     let allowed = plan.decision().allowed();
//!     plan.write();
//!     allowed
//! };
//! assert_eq!([allowed(), allowed(), allowed()], [true, true, false]);
//! ```

mod memory_window;
#[cfg(any(test, feature = "model"))]
mod model;
mod zset;

pub use memory_window::MemoryWindow;
#[cfg(any(test, feature = "model"))]
pub use model::{Saved, SavedValue};
pub use zset::Zset;

use crate::calendar::Zones;
use crate::refusal::Refusal;
use crate::store::{BucketKey, Store};
use crate::throttle::{BucketEdit, StoredBucket};
use foldhash::quality::RandomState;
use memory_window::WindowValue;
use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
enum MemoryValue {
    Bucket(StoredBucket),
    /// While a call uses a window, the key has an empty one.
    Window(WindowValue),
    /// A hash, which holds no limit.
    Hash(Fields),
}

pub type Fields = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// A window that a call has detached from its key, with the Unix millisecond in which the key expires.
type DetachedWindow = (WindowValue, u64);

#[derive(Debug)]
struct MemoryRecord {
    value: MemoryValue,
    /// The last Unix millisecond in which the key lives.
    expires_at_ms: u64,
}

impl MemoryRecord {
    /// Returns whether the key lives. As on a server, it still does in the millisecond in which it expires.
    fn is_live(&self, now_us: u64) -> bool {
        now_us / 1_000 <= self.expires_at_ms
    }
}

#[derive(Default)]
pub struct Memory {
    /// Callers choose the names, so the hashes have a secret.
    keys: RefCell<HashMap<Box<[u8]>, MemoryRecord, RandomState>>,
    zones: RefCell<Zones>,
    /// The number of calls since expired keys were dropped.
    calls: Cell<usize>,
}

impl Memory {
    pub fn delete(&self, name: &[u8]) -> bool {
        self.keys.borrow_mut().remove(name).is_some()
    }

    pub fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        body(&mut self.zones.borrow_mut())
    }

    /// Returns the number of keys, including expired ones that have not been dropped yet.
    pub fn len(&self) -> usize {
        self.keys.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key at this time, as a store.
    pub fn key<'m>(&'m self, name: &'m [u8], now_us: u64) -> MemoryKey<'m> {
        MemoryKey { memory: self, name, now_us }
    }

    /// Returns the last Unix millisecond in which a key lives. `None` if there is no such key.
    pub fn expires_at_ms(&self, name: &[u8], now_us: u64) -> Option<u64> {
        let keys = self.keys.borrow();
        keys.get(name).filter(|record| record.is_live(now_us)).map(|record| record.expires_at_ms)
    }

    /// Drops expired keys, once in as many calls of this function as there are keys. On average a call takes O(1). Must be
    /// called once for each call of a command.
    pub fn forget_expired(&self, now_us: u64) {
        let calls = self.calls.get().saturating_add(1);
        self.calls.set(calls);
        if calls > self.len() {
            self.calls.set(0);
            self.keys.borrow_mut().retain(|_, record| record.is_live(now_us));
        }
    }

    /// Detaches a window from its key, and leaves an empty one until the call is dropped. `None` if there is no key. An
    /// expired key is dropped.
    fn detach_window(&self, name: &[u8], now_us: u64) -> Result<Option<DetachedWindow>, Refusal> {
        let mut keys = self.keys.borrow_mut();
        let Some(record) = keys.get_mut(name) else { return Ok(None) };
        if !record.is_live(now_us) {
            keys.remove(name);
            return Ok(None);
        }
        match &mut record.value {
            MemoryValue::Window(window) => Ok(Some((std::mem::take(window), record.expires_at_ms))),
            MemoryValue::Bucket(_) | MemoryValue::Hash(_) => Err(Refusal::NotWindow),
        }
    }

    /// Changes the fields of a hash, which is created if there is no such key, and deleted if it is left without fields. A
    /// hash never expires.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotHash`]
    pub fn edit_hash<T>(
        &self,
        name: &[u8],
        now_us: u64,
        edit: impl FnOnce(&mut Fields) -> T,
    ) -> Result<T, Refusal> {
        let mut keys = self.keys.borrow_mut();
        let live = keys.get_mut(name).filter(|record| record.is_live(now_us));
        let mut fields = match live.map(|record| &mut record.value) {
            None => Fields::default(),
            Some(MemoryValue::Hash(fields)) => std::mem::take(fields),
            Some(MemoryValue::Bucket(_) | MemoryValue::Window(_)) => return Err(Refusal::NotHash),
        };
        drop(keys);
        let result = edit(&mut fields);
        match fields.is_empty() {
            true => drop(self.delete(name)),
            false => self.put(name, MemoryValue::Hash(fields), u64::MAX),
        }
        Ok(result)
    }

    /// Returns the fields of a hash. `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotHash`]
    pub fn hash(&self, name: &[u8], now_us: u64) -> Result<Option<Ref<'_, Fields>>, Refusal> {
        let live = Ref::filter_map(self.keys.borrow(), |keys| {
            keys.get(name).filter(|record| record.is_live(now_us))
        });
        let Ok(record) = live else { return Ok(None) };
        let fields = Ref::filter_map(record, |record| match &record.value {
            MemoryValue::Hash(fields) => Some(fields),
            MemoryValue::Bucket(_) | MemoryValue::Window(_) => None,
        });
        fields.map(Some).map_err(|_| Refusal::NotHash)
    }

    fn put(&self, name: &[u8], value: MemoryValue, expires_at_ms: u64) {
        let mut keys = self.keys.borrow_mut();
        let record = MemoryRecord { value, expires_at_ms };
        match keys.get_mut(name) {
            Some(place) => *place = record,
            None => {
                keys.insert(name.into(), record);
            }
        }
    }
}

/// A key of a [`Memory`], at one moment.
#[derive(Clone, Copy)]
pub struct MemoryKey<'m> {
    memory: &'m Memory,
    name: &'m [u8],
    now_us: u64,
}

impl<'m> Store for MemoryKey<'m> {
    type Error = Refusal;
    type Bucket = MemoryKey<'m>;
    type Window = MemoryWindow<'m>;

    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        self.memory.zones(body)
    }

    fn bucket(self) -> MemoryKey<'m> {
        self
    }

    fn window(&mut self) -> MemoryWindow<'m> {
        MemoryWindow::unread(*self)
    }
}

impl BucketKey for MemoryKey<'_> {
    type Error = Refusal;

    fn read(&mut self) -> Result<Option<StoredBucket>, Refusal> {
        let MemoryKey { memory, name, now_us } = *self;
        let keys = memory.keys.borrow();
        let live = keys.get(name).filter(|record| record.is_live(now_us));
        match live.map(|record| &record.value) {
            None => Ok(None),
            Some(MemoryValue::Bucket(stored)) => Ok(Some(*stored)),
            Some(MemoryValue::Window(_) | MemoryValue::Hash(_)) => Err(Refusal::NotBucket),
        }
    }

    fn write(&mut self, edit: BucketEdit) {
        let MemoryKey { memory, name, .. } = *self;
        match edit {
            BucketEdit::Keep => {}
            BucketEdit::Store(stored) => {
                memory.put(name, MemoryValue::Bucket(stored), stored.expires_at_ms());
            }
            BucketEdit::Delete => {
                memory.delete(name);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

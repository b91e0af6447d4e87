//! Keys in memory, as the server's are: a bucket's value, or a window's events and reservations. Decisions are the same,
//! as the same code makes them.
//!
//! ```
//! use redis_ratelimit_engine::decide::{decide, Mode, Part};
//! use redis_ratelimit_engine::memory::Memory;
//! use redis_ratelimit_engine::request::{Limit, Request};
//! use redis_ratelimit_engine::throttle::Rate;
//!
//! // Two at once, one a second.
//! let request = Request::new(Limit::Bucket(Rate::new(1, 1, 1_000).unwrap()));
//! let memory = Memory::default();
//! let now_us = 1_795_223_799_544_558;
//! let allowed = || {
//!     let mut parts = [Part::new(memory.key(b"user:1", now_us), &request)];
//!     let plan = decide(&mut parts, Mode::Final, || unreachable!()).unwrap();
//!     let allowed = plan.allowed;
//!     plan.write();
//!     allowed
//! };
//! assert_eq!([allowed(), allowed(), allowed()], [true, true, false]);
//! ```

#[cfg(any(test, feature = "model"))]
mod model;
mod window;
mod zset;

#[cfg(any(test, feature = "model"))]
pub use model::{Saved, SavedValue};
pub use window::{MemoryHeld, MemoryWindow};
pub use zset::Zset;

use crate::calendar::Zones;
use crate::reservation::HeldReservation;
use crate::store::{BucketKey, Refused, Store, WindowKey};
use crate::throttle::{BucketEdit, Stored};
use foldhash::quality::RandomState;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use window::WindowValue;

/// What a key holds.
#[derive(Debug)]
enum MemoryValue {
    Bucket(Stored),
    /// While a call uses a window, there is no key.
    Window(WindowValue),
}

/// A window that a call has taken out, with its name and the time at which it expires.
type TakenWindow = (Box<[u8]>, WindowValue, u64);

#[derive(Debug)]
struct MemoryRecord {
    value: MemoryValue,
    /// The last Unix millisecond in which the key lives.
    expires_at_ms: u64,
}

/// Whether a key has expired. As on a server it still lives in the millisecond `expires_at_ms`.
fn has_expired(expires_at_ms: u64, now_us: u64) -> bool {
    now_us / 1_000 > expires_at_ms
}

/// Keys by their names.
#[derive(Default)]
pub struct Memory {
    /// Callers choose the names, so the hashes have a secret.
    keys: RefCell<HashMap<Box<[u8]>, MemoryRecord, RandomState>>,
    zones: RefCell<Zones>,
    /// Calls since expired keys were looked for.
    calls: Cell<usize>,
}

/// Which kind of limit a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// A bucket.
    Bucket,
    /// Events and reservations.
    Window,
}

impl Memory {
    /// The live reservations of a key, the oldest first.
    ///
    /// # Errors
    ///
    /// [`Refused::NotWindow`].
    pub fn held(&self, name: &[u8], now_us: u64) -> Result<Vec<HeldReservation>, Refused> {
        let mut key = self.key(name, now_us).window();
        key.read(None)?;
        let live = key.reservations().iter().filter(|one| one.live(now_us));
        let live = live.map(|one| HeldReservation::of(&one, now_us));
        Ok(HeldReservation::oldest_first(live.collect()))
    }

    /// Forgets a key; whether it was there.
    pub fn delete(&self, name: &[u8]) -> bool {
        self.keys.borrow_mut().remove(name).is_some()
    }

    /// Lends the time zones that this store knows.
    pub fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        body(&mut self.zones.borrow_mut())
    }

    /// How many keys there are, expired ones that were not looked for yet among them.
    pub fn len(&self) -> usize {
        self.keys.borrow().len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A key, as a store at this time.
    pub fn key<'m>(&'m self, name: &'m [u8], now_us: u64) -> MemoryKey<'m> {
        MemoryKey { memory: self, name, now_us }
    }

    /// When a key expires, in Unix milliseconds; `None` where there is none.
    pub fn expires_at_ms(&self, name: &[u8], now_us: u64) -> Option<u64> {
        let keys = self.keys.borrow();
        keys.get(name)
            .map(|record| record.expires_at_ms)
            .filter(|at_ms| !has_expired(*at_ms, now_us))
    }

    /// Which kind of limit a key holds; `None` where there is none. An expired key is dropped.
    pub fn kind(&self, name: &[u8], now_us: u64) -> Option<MemoryKind> {
        let mut keys = self.keys.borrow_mut();
        let record = keys.get(name)?;
        if has_expired(record.expires_at_ms, now_us) {
            keys.remove(name);
            return None;
        }
        match record.value {
            MemoryValue::Bucket(_) => Some(MemoryKind::Bucket),
            MemoryValue::Window(_) => Some(MemoryKind::Window),
        }
    }

    /// Drops expired keys once in as many calls as there are keys, which is O(1) for a call on average. To be called once
    /// with each call.
    pub fn forget_expired(&self, now_us: u64) {
        let calls = self.calls.get().saturating_add(1);
        self.calls.set(calls);
        if calls > self.len() {
            self.calls.set(0);
            self.keys.borrow_mut().retain(|_, record| !has_expired(record.expires_at_ms, now_us));
        }
    }

    /// Takes a window out, with its name and the time at which it expires; `None` where there is no key. An expired key is
    /// dropped.
    fn take_window(&self, name: &[u8], now_us: u64) -> Result<Option<TakenWindow>, Refused> {
        let mut keys = self.keys.borrow_mut();
        let Some((name, record)) = keys.remove_entry(name) else { return Ok(None) };
        if has_expired(record.expires_at_ms, now_us) {
            return Ok(None);
        }
        match record.value {
            MemoryValue::Window(window) => Ok(Some((name, window, record.expires_at_ms))),
            MemoryValue::Bucket(_) => {
                keys.insert(name, record);
                Err(Refused::NotWindow)
            }
        }
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
    type Error = Refused;
    type Bucket = MemoryBucket<'m>;
    type Window = MemoryWindow<'m>;

    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        self.memory.zones(body)
    }

    fn bucket(self) -> MemoryBucket<'m> {
        MemoryBucket { key: self }
    }

    fn window(self) -> MemoryWindow<'m> {
        MemoryWindow::unread(self)
    }
}

/// A bucket in memory, for one call.
pub struct MemoryBucket<'m> {
    key: MemoryKey<'m>,
}

impl BucketKey for MemoryBucket<'_> {
    type Error = Refused;

    fn read(&mut self) -> Result<Option<Stored>, Refused> {
        let MemoryKey { memory, name, now_us } = self.key;
        match memory.keys.borrow().get(name) {
            Some(record) if has_expired(record.expires_at_ms, now_us) => Ok(None),
            Some(MemoryRecord { value: MemoryValue::Bucket(stored), .. }) => Ok(Some(*stored)),
            Some(MemoryRecord { value: MemoryValue::Window(_), .. }) => Err(Refused::NotBucket),
            None => Ok(None),
        }
    }

    fn write(&mut self, next: BucketEdit) {
        let MemoryKey { memory, name, .. } = self.key;
        match next {
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
mod tests {
    use super::*;
    use crate::request::{Limit, Request, Reserve, WindowLimit};
    use crate::reservation::Id;
    use crate::rule::Rule;

    #[test]
    fn a_key_lives_as_long_as_what_it_holds() {
        let now_us = 1_700_000_000_000_000;
        let window = |period: &[u8]| {
            let rule = Rule::parse(period, &mut Zones::new()).unwrap();
            WindowLimit { limit: 2, rule, most_entries: 9 }
        };
        let reserve = Reserve { lease_ms: 20_000, count_lapsed: false, id: None, most: 9 };
        for (limit, lives_us) in [
            (Limit::Reserve(window(b"-"), reserve), 20_000_000),
            (Limit::Reserve(window(b"60s"), reserve), 20_000_000),
            (Limit::Window(window(b"60s")), 60_000_000),
        ] {
            let memory = Memory::default();
            let id = || Id::from(&b"x"[..]);
            memory.decide(b"k", &Request::new(limit), now_us, id).unwrap();
            let looked = memory.look(b"k", &Request::new(limit), now_us + 1).unwrap();
            assert_eq!(looked.reset_after_us, lives_us - 1);
            assert_eq!(memory.kind(b"k", now_us + lives_us - 1), Some(MemoryKind::Window));
            // At most one second and as long as the key was in use.
            assert_eq!(memory.kind(b"k", now_us + lives_us + 1_001_000), None);
        }
    }

    #[test]
    fn a_renewed_lease_runs_for_its_own_length_or_the_new_one() {
        let now_us = 1_700_000_000_000_000;
        let rule = Rule::parse(b"60s", &mut Zones::new()).unwrap();
        let window = WindowLimit { limit: 2, rule, most_entries: 9 };
        let id = Id::from(&b"x"[..]);
        for (count_lapsed, holds_on_us) in [(false, 0), (true, 60_000_000)] {
            let memory = Memory::default();
            let reserve = Reserve { lease_ms: 20_000, count_lapsed, id: Some(id), most: 9 };
            let request = Request::new(Limit::Reserve(window, reserve));
            memory.decide(b"k", &request, now_us, || unreachable!()).unwrap();
            for (after_us, lease_ms, left_us) in
                [(10, None, 20_000_000), (20, Some(5_000), 5_000_000), (30, None, 5_000_000)]
            {
                let now_us = now_us + after_us;
                assert!(memory.renew(b"k", &id, lease_ms, now_us).unwrap());
                let held = memory.held(b"k", now_us).unwrap();
                assert_eq!(held.iter().map(|one| one.left_us).collect::<Vec<_>>(), [left_us]);
                let gone_us = now_us + left_us + holds_on_us;
                let held = |us| memory.held(b"k", us).unwrap().len();
                assert_eq!((held(gone_us - 1), held(gone_us)), (1, 0), "{count_lapsed}");
            }
        }
    }
}

//! Keys in memory, as the server's are: a bucket's value, or a window's events and reservations. Decisions are the same,
//! as the same code makes them. Tests and fuzz targets use it, and so can an application without a server.
//!
//! ```
//! use redis_ratelimit_engine::memory::Memory;
//! use redis_ratelimit_engine::request::{Limit, Request};
//! use redis_ratelimit_engine::throttle::Rate;
//!
//! // Two at once, one a second.
//! let request = Request::new(Limit::Bucket(Rate::new(1, 1, 1_000).unwrap()));
//! let memory = Memory::default();
//! let now_us = 1_795_223_799_544_558;
//! let mut allowed = || {
//!     let told = memory.decide(b"user:1", &request, now_us, || unreachable!()).unwrap();
//!     told.decision.verdict.allowed()
//! };
//! assert_eq!([allowed(), allowed(), allowed()], [true, true, false]);
//! ```

mod window;
mod zset;

pub use window::{MemoryHeld, MemoryWindow};
pub use zset::Zset;

use crate::all::PartDecision;
use crate::ban::Ban;
use crate::calendar::Zones;
use crate::decide::{decide, Mode, Part};
use crate::decision::Decision;
use crate::entry::Entry;
use crate::index::Index;
use crate::request::Request;
use crate::reservation::{HeldReservation, Id, Reservation};
use crate::settle::{self, Applied};
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
    Window(WindowValue),
    /// The place of a window that a call has taken out. Until the call puts it back there is no key.
    Taken,
}

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

fn decode_entry((score, member): &(i64, Vec<u8>)) -> Result<Entry, Refused> {
    Entry::decode(*score as f64, member).ok_or(Refused::Foreign)
}

/// A score as a whole number, which those of entries are.
fn whole(score: f64) -> i64 {
    score as i64
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

/// A key as a server keeps it, in a form that can be compared, hashed, kept and moved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Saved {
    /// Its value.
    pub value: SavedValue,
    /// The last Unix millisecond in which the key lives.
    pub expires_at_ms: u64,
}

/// The value of a key as a server keeps it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SavedValue {
    /// A bucket: the bytes of a string.
    Bucket(Vec<u8>),
    /// A window: the members of a sorted set.
    Window {
        /// Those with the score -inf, in the order of their bytes: the ban, and reservations.
        reserved: Vec<Vec<u8>>,
        /// The entries of events, with their scores, the newest first.
        entries: Vec<(i64, Vec<u8>)>,
    },
}

impl Memory {
    /// Makes a call: takes, looks or gives back, as its quantity says. `new_id` makes the id of a reservation that the caller
    /// did not name.
    ///
    /// # Errors
    ///
    /// Every [`Refused`] but that of a semaphore.
    pub fn decide(
        &self,
        name: &[u8],
        request: &Request,
        now_us: u64,
        new_id: impl FnMut() -> Id,
    ) -> Result<PartDecision, Refused> {
        self.forget_expired(now_us);
        self.decide_in(Mode::Final, name, request, now_us, new_id)
    }

    /// What [`Memory::decide`] would tell; changes nothing.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn look(&self, name: &[u8], request: &Request, now_us: u64) -> Result<Decision, Refused> {
        let looked = self.decide_in(Mode::Look, name, request, now_us, Id::default)?;
        Ok(looked.decision)
    }

    fn decide_in(
        &self,
        mode: Mode,
        name: &[u8],
        request: &Request,
        now_us: u64,
        new_id: impl FnMut() -> Id,
    ) -> Result<PartDecision, Refused> {
        let mut part = Part::new(self.key(name, now_us), request);
        decide(std::slice::from_mut(&mut part), mode, new_id)?.write();
        Ok(*part.decided())
    }

    /// Turns a reservation into an event, as [`settle::apply`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn apply(
        &self,
        name: &[u8],
        id: &Id,
        quantity: Option<u64>,
        most_entries: u32,
        now_us: u64,
    ) -> Result<Applied, Refused> {
        settle::apply(self.key(name, now_us), id, quantity, most_entries)
    }

    /// Gives a reservation back; whether it was held.
    ///
    /// # Errors
    ///
    /// As [`settle::release`].
    pub fn release(&self, name: &[u8], id: &Id, now_us: u64) -> Result<bool, Refused> {
        settle::release(self.key(name, now_us), id)
    }

    /// Renews a lease. Returns whether it is held.
    ///
    /// # Errors
    ///
    /// As [`settle::renew`].
    pub fn renew(
        &self,
        name: &[u8],
        id: &Id,
        lease_ms: Option<u64>,
        now_us: u64,
    ) -> Result<bool, Refused> {
        settle::renew(self.key(name, now_us), id, lease_ms)
    }

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

    /// A key as a server keeps it; `None` where there is none.
    ///
    /// ```
    /// use redis_ratelimit_engine::memory::{Memory, SavedValue};
    /// use redis_ratelimit_engine::request::{Limit, Request};
    /// use redis_ratelimit_engine::throttle::Rate;
    ///
    /// let request = Request::new(Limit::Bucket(Rate::new(1, 1, 1_000).unwrap()));
    /// let (memory, now_us) = (Memory::default(), 1_795_223_799_544_558);
    /// memory.decide(b"user:1", &request, now_us, || unreachable!()).unwrap();
    /// let saved = memory.save(b"user:1").unwrap();
    /// assert_eq!(saved.value, SavedValue::Bucket(b"1795223800544558000".to_vec()));
    ///
    /// let other = Memory::default();
    /// other.restore(b"user:2", &saved).unwrap();
    /// assert_eq!(other.save(b"user:2"), Some(saved));
    /// ```
    pub fn save(&self, name: &[u8]) -> Option<Saved> {
        let keys = self.keys.borrow();
        let MemoryRecord { value, expires_at_ms } = keys.get(name)?;
        let value = match value {
            MemoryValue::Taken => return None,
            MemoryValue::Bucket(stored) => SavedValue::Bucket(stored.encode().as_bytes().to_vec()),
            MemoryValue::Window(window) => {
                let index = window.reservations.as_deref();
                let ban = index.and_then(Index::ban).map(|ban| ban.text().as_bytes().to_vec());
                let members = index.into_iter().flat_map(Index::iter);
                let members = members.map(|one| one.member().as_bytes().to_vec());
                let mut reserved: Vec<_> = ban.into_iter().chain(members).collect();
                reserved.sort_unstable();
                let pair =
                    |entry: Entry| (whole(entry.score()), entry.member().as_bytes().to_vec());
                let entries = window.events.entries().rev().map(pair).collect();
                SavedValue::Window { reserved, entries }
            }
        };
        Some(Saved { value, expires_at_ms: *expires_at_ms })
    }

    /// Puts a key as a server keeps it in the place of what is there.
    ///
    /// # Errors
    ///
    /// [`Refused::Foreign`] where the module would not have written it.
    pub fn restore(&self, name: &[u8], saved: &Saved) -> Result<(), Refused> {
        let value = match &saved.value {
            SavedValue::Bucket(text) => {
                MemoryValue::Bucket(Stored::decode(text).ok_or(Refused::Foreign)?)
            }
            SavedValue::Window { reserved, entries } => {
                let mut window = WindowValue::default();
                for member in reserved {
                    let index = window.reservations.get_or_insert_default();
                    if let Some(ban) = Ban::decode(member) {
                        index.set_ban(Some(ban));
                        continue;
                    }
                    let one = Reservation::decode(member).ok_or(Refused::Foreign)?;
                    index.insert(&one);
                }
                for pair in entries {
                    window.events.add(&decode_entry(pair)?);
                }
                MemoryValue::Window(window)
            }
        };
        self.put(name, value, saved.expires_at_ms);
        Ok(())
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
            MemoryValue::Taken => None,
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

    /// Takes a window out and keeps its place. Returns it with the time at which it expires; `None` where there is no key.
    /// An expired key is dropped.
    fn take_window(&self, name: &[u8], now_us: u64) -> Result<Option<(WindowValue, u64)>, Refused> {
        let mut keys = self.keys.borrow_mut();
        let Some(record) = keys.get_mut(name) else { return Ok(None) };
        let expires_at_ms = record.expires_at_ms;
        if has_expired(expires_at_ms, now_us) {
            keys.remove(name);
            return Ok(None);
        }
        if let MemoryValue::Bucket(_) = record.value {
            return Err(Refused::NotWindow);
        }
        match std::mem::replace(&mut record.value, MemoryValue::Taken) {
            MemoryValue::Window(window) => Ok(Some((window, expires_at_ms))),
            MemoryValue::Bucket(_) | MemoryValue::Taken => Ok(None),
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
            Some(MemoryRecord { value: MemoryValue::Taken, .. }) | None => Ok(None),
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
    use crate::request::{Limit, Reserve, WindowLimit};
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

//! Single calls on keys in memory, and keys in the form in which a server stores them. Only for tests, searches and fuzz
//! targets: the product is built without it.

use super::memory_window::WindowValue;
use super::{Memory, MemoryRecord, MemoryValue};
use crate::ban::Ban;
use crate::decide::Mode;
use crate::decision::Decision;
use crate::entry::Entry;
use crate::index::Index;
use crate::model;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::reservation::{HeldReservation, Id, Reservation};
use crate::settle::Settling;
use crate::store::{Store, WindowKey};
use crate::throttle::StoredBucket;

/// A key in the form in which a server stores it, which can be compared and hashed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Saved {
    pub value: SavedValue,
    /// The last Unix millisecond in which the key lives.
    pub expires_at_ms: u64,
}

/// The value of a key in the form in which a server stores it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SavedValue {
    /// A bucket: the bytes of a string.
    Bucket(Vec<u8>),
    /// A window: the members of a sorted set.
    Window {
        /// The members with the score -inf, in the order of their bytes: the ban, and reservations.
        reserved: Vec<Vec<u8>>,
        /// The entries of events, with their scores, the newest first.
        entries: Vec<(i64, Vec<u8>)>,
    },
}

fn decode_entry((score, member): &(i64, Vec<u8>)) -> Result<Entry, Refusal> {
    Entry::decode(*score as f64, member).ok_or(Refusal::Foreign)
}

/// Returns the score of an entry as an integer.
fn whole(score: f64) -> i64 {
    score as i64
}

impl Memory {
    /// Decides a request that takes, looks or gives back, and writes the result. `new_id` makes the id of a reservation that
    /// the caller did not name.
    ///
    /// # Errors
    ///
    /// Every [`Refusal`] but that of a semaphore.
    pub fn decide(
        &self,
        name: &[u8],
        request: &Request,
        now_us: u64,
        new_id: impl FnMut() -> Id,
    ) -> Result<Decision, Refusal> {
        self.forget_expired(now_us);
        model::decide(self.key(name, now_us), request, false, Mode::Final, new_id)
    }

    /// Returns the decision that [`Memory::decide`] would return, and changes nothing.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::decide`].
    pub fn look(&self, name: &[u8], request: &Request, now_us: u64) -> Result<Decision, Refusal> {
        model::decide(self.key(name, now_us), request, false, Mode::Look, Id::default)
    }

    /// Returns the live reservations of a key, the oldest first.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotWindow`].
    pub fn held(&self, name: &[u8], now_us: u64) -> Result<Vec<HeldReservation>, Refusal> {
        let mut key = self.key(name, now_us).window();
        key.read(None)?;
        Ok(key.reservations().list_live())
    }

    /// Turns a reservation into an event. Returns whether it was held.
    ///
    /// # Errors
    ///
    /// Those of [`settle::plan`](crate::settle::plan).
    pub fn apply(
        &self,
        name: &[u8],
        id: &Id,
        quantity: Option<u64>,
        max_entries: u32,
        now_us: u64,
    ) -> Result<bool, Refusal> {
        self.settle(name, id, Settling::Apply { quantity, max_entries }, now_us)
    }

    /// Releases a reservation, and returns whether it was held.
    ///
    /// # Errors
    ///
    /// Those of [`settle::plan`](crate::settle::plan).
    pub fn release(&self, name: &[u8], id: &Id, now_us: u64) -> Result<bool, Refusal> {
        self.settle(name, id, Settling::Release, now_us)
    }

    /// Renews a lease. Returns whether it is held.
    ///
    /// # Errors
    ///
    /// Those of [`settle::plan`](crate::settle::plan).
    pub fn renew(
        &self,
        name: &[u8],
        id: &Id,
        lease_ms: Option<u64>,
        now_us: u64,
    ) -> Result<bool, Refusal> {
        self.settle(name, id, Settling::Renew { lease_ms }, now_us)
    }

    /// Settles or renews a reservation. Returns whether it is held.
    ///
    /// # Errors
    ///
    /// Those of [`settle::plan`](crate::settle::plan).
    pub fn settle(
        &self,
        name: &[u8],
        id: &Id,
        settling: Settling,
        now_us: u64,
    ) -> Result<bool, Refusal> {
        model::settle(self.key(name, now_us), id, settling)
    }

    /// Returns a key in the form in which a server stores it. `None` if there is no such key, or if it holds a hash.
    ///
    /// ```
    /// use redis_ratelimit_engine::memory::{Memory, SavedValue};
    /// use redis_ratelimit_engine::{Limit, Request};
    /// use redis_ratelimit_engine::throttle::Rate;
    ///
    /// let request = Request::new(Limit::Rate(Rate::new(1, 1, 1_000).unwrap()));
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
            MemoryValue::Hash(_) => return None,
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

    /// Replaces a key with one in the form in which a server stores it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Foreign`] if the module would not have written it.
    pub fn restore(&self, name: &[u8], saved: &Saved) -> Result<(), Refusal> {
        let value = match &saved.value {
            SavedValue::Bucket(text) => {
                MemoryValue::Bucket(StoredBucket::decode(text).ok_or(Refusal::Foreign)?)
            }
            SavedValue::Window { reserved, entries } => {
                let mut window = WindowValue::default();
                for member in reserved {
                    let index = window.reservations.get_or_insert_default();
                    if let Some(ban) = Ban::decode(member) {
                        index.set_ban(Some(ban));
                        continue;
                    }
                    let one = Reservation::decode(member).ok_or(Refusal::Foreign)?;
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
}

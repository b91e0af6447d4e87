//! Keys in memory, as the server's are: a bucket's value, or a window's events and reservations. Decisions are the same,
//! as the same code makes them. Tests and fuzz targets use it, and so can an application without a server.
//!
//! ```
//! use redis_ratelimit_engine::memory::Memory;
//! use redis_ratelimit_engine::request::{Limit, Request};
//! use redis_ratelimit_engine::throttle::Rate;
//!
//! // Two at once, one a second.
//! let request = Request::of(Limit::Bucket(Rate::new(1, 1, 1_000).unwrap()));
//! let memory = Memory::default();
//! let now_us = 1_795_223_799_544_558;
//! let mut allowed = || {
//!     let told = memory.attempt(b"user:1", &request, now_us, || unreachable!()).unwrap();
//!     told.decision.verdict.allowed()
//! };
//! assert_eq!([allowed(), allowed(), allowed()], [true, true, false]);
//! ```

use crate::attempt::{attempt, Attempt, AttemptTerms};
use crate::ban::Ban;
use crate::calendar::Zones;
use crate::decision::Decision;
use crate::entry::{Entry, LAST_US};
use crate::held::{FirstGone, Holds};
use crate::index::{HeldIndex, Index};
use crate::judge::{AnyCall, KeyCall, Mode};
use crate::request::Request;
use crate::reservation::{HeldReservation, Id, Reservation};
use crate::settle::{self, Applied};
use crate::store::{BucketKey, Change, Entries, Refused, Reservations, Store, WindowKey};
use crate::throttle::{BucketEdit, Stored};
use crate::window::Edit;
use foldhash::quality::RandomState;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A sorted set of entries: members are unique, in the order of their scores and then of their bytes. Entries mostly come
/// and go at its ends, so it is a list, the newest first.
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

/// The list is not made shorter below this length.
const FEW_ENTRIES: usize = 64;

/// A score as a whole number, which those of entries are.
fn whole(score: f64) -> i64 {
    score as i64
}

/// Whether two entries have the same member, whose bytes say all but the time.
fn same_member(one: &Entry, other: &Entry) -> bool {
    one.total == other.total && Entry { newest_us: other.newest_us, ..*one } == *other
}

/// The order of a sorted set.
fn in_order(one: &Entry, other: &Entry) -> Ordering {
    let by_time = other.newest_us.cmp(&one.newest_us);
    by_time.then_with(|| one.member().as_bytes().cmp(other.member().as_bytes()))
}

impl Zset {
    /// Adds an entry; where its member is there already, it gets the new score.
    pub fn add(&mut self, entry: &Entry) {
        // Totals grow from entry to entry, so this one is not there if it is above all others.
        let is_above = |front: &Entry| {
            entry.total != front.total && entry.total.wrapping_sub(front.total) >> 63 == 0
        };
        let front = self.newest_first.front();
        if front.is_some_and(|front| !is_above(front)) {
            self.remove(entry);
        }
        let front = self.newest_first.front();
        if front.is_none_or(|front| front.newest_us < entry.newest_us) {
            self.newest_first.push_front(*entry);
            return;
        }
        let at = self.newest_first.partition_point(|one| in_order(one, entry).is_lt());
        self.newest_first.insert(at, *entry);
    }

    /// Removes the entry that has the member of `entry`; whether there was one.
    fn remove(&mut self, entry: &Entry) -> bool {
        let list = &mut self.newest_first;
        let at = list.partition_point(|one| one.newest_us > entry.newest_us);
        let is_it = |one: &Entry| same_member(one, entry);
        // Mostly the entry to remove has the same time.
        let found = match list.get(at) {
            Some(one) if is_it(one) => Some(at),
            _ => list.iter().position(is_it),
        };
        found.and_then(|at| list.remove(at)).is_some()
    }

    /// The places of the entries that are newer than `after_us` and not newer than `until_us`. `None` is no bound.
    fn between(&self, after_us: Option<u64>, until_us: Option<u64>) -> Range<usize> {
        let list = &self.newest_first;
        let newer = |than: u64| list.partition_point(|one| one.newest_us > than);
        let end = match after_us {
            None => list.len(),
            // In most calls the oldest entry is newer.
            Some(us) if list.back().is_some_and(|oldest| oldest.newest_us > us) => list.len(),
            Some(us) => newer(us),
        };
        until_us.map_or(0, newer).min(end)..end
    }

    fn remove_between(&mut self, after_us: Option<u64>, until_us: Option<u64>) {
        let places = self.between(after_us, until_us);
        self.newest_first.drain(places);
    }

    /// Carries out an edit. Whatever it names must be there, and it drops no entry that it does not name.
    pub fn apply(&mut self, edit: &Edit) {
        let (before, after) = edit.changed.unzip();
        for entry in [edit.put, after].into_iter().flatten() {
            debug_assert_eq!(
                Entry::decode(entry.score(), entry.member().as_bytes()),
                Some(entry),
                "this is written and cannot be read"
            );
            self.add(&entry);
        }
        for entry in [edit.replaced, before].into_iter().flatten() {
            let removed = self.remove(&entry);
            debug_assert!(removed, "{entry:?} was not there");
        }
        if let Some((from_us, to_us)) = edit.given_back {
            let before = self.len();
            self.remove_between(from_us.checked_sub(1), Some(to_us));
            debug_assert!(self.len() < before, "nothing lay between {from_us} and {to_us}");
        }
        if let Some(from_us) = edit.future_from.filter(|from_us| *from_us < LAST_US) {
            self.remove_between(Some(from_us), edit.future_until);
        }
        for _ in 0..edit.trim {
            let last = self.newest_first.pop_back();
            debug_assert!(last.is_some(), "there is no entry to trim");
        }
        let (len, room) = (self.newest_first.len(), self.newest_first.capacity());
        if room > FEW_ENTRIES && len < room / 4 {
            self.newest_first.shrink_to(room / 2);
        }
    }

    /// The entries, the oldest first.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.newest_first.iter().rev().copied()
    }
}

fn decode_entry((score, member): &(i64, Vec<u8>)) -> Result<Entry, Refused> {
    Entry::decode(*score as f64, member).ok_or(Refused::Foreign)
}

impl Entries for Zset {
    type Error = Refused;

    fn len(&self) -> usize {
        self.newest_first.len()
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Refused> {
        let at = self.between(None, until_us).start;
        Ok(self.newest_first.get(at).copied())
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Refused> {
        let places = self.between(after_us, None);
        Ok(places.last().and_then(|at| self.newest_first.get(at)).copied())
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Refused> {
        let places = self.between(after_us, until_us);
        for entry in self.newest_first.range(places).rev() {
            if !visit(*entry) {
                break;
            }
        }
        Ok(())
    }
}

// ---- A window's key ----

/// A window in memory.
#[derive(Debug, Default)]
struct WindowValue {
    events: Zset,
    /// Most windows never have a reservation or a ban.
    reservations: Option<Box<Index>>,
}

impl WindowValue {
    fn is_empty(&self) -> bool {
        let holds = |index: &Index| !index.is_empty() || index.ban().is_some();
        self.events.is_empty() && !self.reservations.as_deref().is_some_and(holds)
    }
}

/// What lies under a key.
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
    /// Takes, or looks at 0, or gives back below 0. `new_id` makes the id of a reservation that the caller did not name.
    ///
    /// # Errors
    ///
    /// Every [`Refused`] but that of a semaphore.
    pub fn attempt(
        &self,
        name: &[u8],
        request: &Request,
        now_us: u64,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Attempt, Refused> {
        self.forget_expired(now_us);
        let terms = AttemptTerms { barred: false, mode: Mode::Final };
        attempt(self.key(name, now_us), request, terms, new_id, |told| told)
    }

    /// What [`Memory::attempt`] would tell; changes nothing.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn look(&self, name: &[u8], request: &Request, now_us: u64) -> Result<Decision, Refused> {
        let mut call = AnyCall::new(self.key(name, now_us), request);
        let judged = call.judge(false)?;
        judged.check_room()?;
        Ok(*judged.look().decision())
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

    /// Starts a lease anew; whether it is held.
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
        let live = key.held.iter().filter(|one| one.live(now_us));
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
    /// let request = Request::of(Limit::Bucket(Rate::new(1, 1, 1_000).unwrap()));
    /// let (memory, now_us) = (Memory::default(), 1_795_223_799_544_558);
    /// memory.attempt(b"user:1", &request, now_us, || unreachable!()).unwrap();
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
                    |entry: &Entry| (whole(entry.score()), entry.member().as_bytes().to_vec());
                let entries = window.events.newest_first.iter().map(pair).collect();
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
    pub fn reset(&self, name: &[u8]) -> bool {
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
        let (events, held) = (Zset::default(), MemoryHeld(None));
        MemoryWindow { key: self, events, held, expires_at_ms: 0, was_there: false }
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
                memory.reset(name);
            }
        }
    }
}

/// A window that was taken out for one call. It is put back when this is dropped.
pub struct MemoryWindow<'m> {
    key: MemoryKey<'m>,
    events: Zset,
    held: MemoryHeld,
    expires_at_ms: u64,
    /// Whether its place is kept in the memory.
    was_there: bool,
}

/// What is reserved in a window in memory; `None` where nothing ever was, and no ban.
pub struct MemoryHeld(Option<HeldIndex>);

impl MemoryHeld {
    fn index(&self) -> Option<&Index> {
        self.0.as_ref().map(HeldIndex::index)
    }

    fn iter(&self) -> impl Iterator<Item = Reservation<'_>> {
        self.index().into_iter().flat_map(Index::iter)
    }

    /// The index, which is made if there is none.
    fn made(&mut self, now_us: u64) -> &mut HeldIndex {
        let new = || HeldIndex::at(Box::default(), now_us, None, &mut Zones::new());
        self.0.get_or_insert_with(new)
    }
}

impl Holds for MemoryHeld {
    fn total(&self) -> u128 {
        self.0.as_ref().map_or(0, Holds::total)
    }

    fn last_gone_us(&self) -> Option<u64> {
        self.0.as_ref()?.last_gone_us()
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        self.0.as_ref().map_or(Ok((None, 0)), |held| held.first_gone(enough))
    }
}

impl Reservations for MemoryHeld {
    fn has_id(&self) -> bool {
        self.0.as_ref().is_some_and(Reservations::has_id)
    }

    fn has_at_least(&self, number: u64) -> bool {
        self.0.as_ref().map_or(number == 0, |held| held.has_at_least(number))
    }

    fn live_len(&self) -> usize {
        self.0.as_ref().map_or(0, Reservations::live_len)
    }

    fn next_order_us(&self, now_us: u64) -> u64 {
        self.0.as_ref().map_or(now_us, |held| held.next_order_us(now_us))
    }

    fn must_write(&self) -> bool {
        self.0.as_ref().is_some_and(Reservations::must_write)
    }
}

impl WindowKey for MemoryWindow<'_> {
    type Error = Refused;
    type Events<'k>
        = &'k mut Zset
    where
        Self: 'k;
    type Reservations = MemoryHeld;
    type Member = Vec<u8>;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Refused> {
        let MemoryKey { memory, name, now_us } = self.key;
        if let Some((window, expires_at_ms)) = memory.take_window(name, now_us)? {
            self.events = window.events;
            let at_now = |index| memory.zones(|zones| HeldIndex::at(index, now_us, id, zones));
            self.held = MemoryHeld(window.reservations.map(at_now));
            self.expires_at_ms = expires_at_ms;
            self.was_there = true;
        }
        Ok(())
    }

    fn reservations(&self) -> &MemoryHeld {
        &self.held
    }

    fn ban(&self) -> Option<Ban> {
        self.held.index()?.ban()
    }

    fn split(&mut self) -> (&mut Zset, &MemoryHeld) {
        (&mut self.events, &self.held)
    }

    fn running(&mut self) -> usize {
        self.held.0.as_mut().map_or(0, HeldIndex::running)
    }

    fn find_live(&mut self, id: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let found = self.held.index().and_then(|index| index.get(id));
        let live = found.filter(|one| one.live(self.key.now_us));
        Ok(live.map(|one| one.member().as_bytes().to_vec()))
    }

    fn write(&mut self, change: Change<'_, Vec<u8>>) -> usize {
        let settled = change.settle.as_deref().and_then(Reservation::decode);
        let MemoryKey { memory, now_us, .. } = self.key;
        let mut dropped: usize = 0;
        if let Some(held) = &mut self.held.0 {
            if let Some(one) = &settled {
                memory.zones(|zones| held.remove_settled(one, zones));
            }
            if change.clean {
                memory.zones(|zones| {
                    held.clean(zones, |_, healed| {
                        dropped = dropped.saturating_add(usize::from(healed.is_none()));
                    });
                });
            }
        }
        if let Some(one) = &change.reserve {
            self.held.made(now_us).add(one);
        }
        self.events.apply(change.edit);
        let old_ban = self.ban();
        let ban = change.ban.after(old_ban);
        if ban != old_ban {
            self.held.made(now_us).set_ban(ban);
        }
        if let Some(expiry) = change.expiry {
            let reserved_until_us = self.held.0.as_ref().and_then(HeldIndex::needed_until_us);
            let moved_ms = expiry.moved(
                reserved_until_us,
                ban.map(|ban| ban.end_us()),
                settled.map(|one| one.gone_us),
                Some(self.expires_at_ms),
            );
            self.expires_at_ms = moved_ms.unwrap_or(self.expires_at_ms);
        }
        dropped
    }
}

impl Drop for MemoryWindow<'_> {
    fn drop(&mut self) {
        let MemoryKey { memory, name, .. } = self.key;
        let events = std::mem::take(&mut self.events);
        let reservations = self.held.0.take().map(HeldIndex::into_index);
        let window = WindowValue { events, reservations };
        if !window.is_empty() {
            memory.put(name, MemoryValue::Window(window), self.expires_at_ms);
        } else if self.was_there {
            memory.reset(name);
        }
    }
}

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
use crate::event::{score, Event, LAST_US};
use crate::expiry::GRACE_MS;
use crate::index::{HeldIndex, Index};
use crate::judge::{KeyRequest, Mode};
use crate::request::Request;
use crate::reservation::{Id, Reservation};
use crate::rule::{Moment, Rule, RuleText};
use crate::settle::{self, Applied};
use crate::store::{BucketKey, Change, Entries, Refused, Store, WindowKey};
use crate::throttle::{BucketEdit, Stored};
use crate::window::Edit;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// A sorted set: members are unique, in the order of their scores and then of their bytes.
#[derive(Clone, Debug, Default)]
pub struct Zset {
    scores: HashMap<Vec<u8>, i64>,
    order: BTreeSet<(i64, Vec<u8>)>,
}

/// A score that holds a whole number, as those of events do.
fn whole(score: f64) -> i64 {
    score as i64
}

impl Zset {
    /// Adds an entry; where its member is there already, it gets the new score.
    pub fn add(&mut self, event: &Event) {
        let member = event.member().as_bytes().to_vec();
        self.remove(&member);
        let score = whole(event.score());
        self.scores.insert(member.clone(), score);
        self.order.insert((score, member));
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_vec()))
    }

    fn remove_scores(&mut self, from: i64, to: i64) {
        let found = self.order.range((from, Vec::new())..(to.saturating_add(1), Vec::new()));
        for (_, member) in found.cloned().collect::<Vec<_>>() {
            self.remove(&member);
        }
    }

    /// Carries out an edit. Whatever it names must be there, and it drops no entry that it does not name.
    pub fn apply(&mut self, edit: &Edit) {
        let (before, after) = edit.changed.unzip();
        for event in [edit.put, after].into_iter().flatten() {
            let back = Event::decode(event.score(), event.member().as_bytes());
            debug_assert_eq!(back, Some(event), "this is written and cannot be read");
            self.add(&event);
        }
        for event in [edit.replaced, before].into_iter().flatten() {
            let removed = self.remove(event.member().as_bytes());
            debug_assert!(removed, "{event:?} was not there");
        }
        if let Some((from_us, to_us)) = edit.given_back {
            let before = self.len();
            self.remove_scores(whole(score(to_us)), whole(score(from_us)));
            debug_assert!(self.len() < before, "nothing lay between {from_us} and {to_us}");
        }
        if let Some(from_us) = edit.future_from.filter(|from_us| *from_us < LAST_US) {
            let until_us = edit.future_until.unwrap_or(u64::MAX);
            self.remove_scores(whole(score(until_us)), whole(score(from_us.saturating_add(1))));
        }
        for _ in 0..edit.trim {
            let last = self.order.pop_last();
            debug_assert!(last.is_some(), "there is no entry to trim");
            if let Some((_, member)) = last {
                self.scores.remove(&member);
            }
        }
    }

    /// The entries, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.order.iter().rev().filter_map(|one| event(one).ok())
    }
}

fn event((score, member): &(i64, Vec<u8>)) -> Result<Event, Refused> {
    Event::decode(*score as f64, member).ok_or(Refused::Foreign)
}

impl Entries for Zset {
    type Error = Refused;

    fn len(&self) -> usize {
        self.scores.len()
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Event>, Refused> {
        let from = until_us.map_or(i64::MIN, |us| whole(score(us)));
        self.order.range((from, Vec::new())..).next().map(event).transpose()
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Event>, Refused> {
        let mut found = None;
        self.scan(after_us, None, |event| {
            found = Some(event);
            false
        })?;
        Ok(found)
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        mut visit: impl FnMut(Event) -> bool,
    ) -> Result<(), Refused> {
        let from = until_us.map_or(i64::MIN, |us| whole(score(us)));
        let to = match after_us {
            None => i64::MAX,
            Some(us) if us >= LAST_US => return Ok(()),
            // Up to and with the score of the next microsecond.
            Some(us) => whole(score(us)),
        };
        if from >= to {
            return Ok(());
        }
        for one in self.order.range((from, Vec::new())..(to, Vec::new())).rev() {
            if !visit(event(one)?) {
                break;
            }
        }
        Ok(())
    }
}

// ---- A window's key ----

/// A window in memory.
#[derive(Debug, Default)]
struct Set {
    events: Zset,
    reservations: Box<Index>,
}

/// What lies under a key.
#[derive(Debug)]
enum MemoryValue {
    Bucket(Stored),
    Window(Set),
}

#[derive(Debug)]
struct MemoryEntry {
    value: MemoryValue,
    /// The key lives until then, in Unix milliseconds.
    expires_at_ms: u64,
}

/// Whether a key is gone. As on a server it lives in the millisecond in which it expires.
fn has_expired(expires_at_ms: u64, now_us: u64) -> bool {
    now_us / 1_000 > expires_at_ms
}

/// Keys by their names.
#[derive(Default)]
pub struct Memory {
    keys: RefCell<HashMap<Box<[u8]>, MemoryEntry>>,
    zones: RefCell<Zones>,
    /// Calls since expired keys were looked for.
    calls: std::cell::Cell<usize>,
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
    /// The key is gone from then on, in Unix milliseconds.
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
        /// The events with their scores, the newest first.
        events: Vec<(i64, Vec<u8>)>,
    },
}

/// A live reservation.
#[derive(Clone, Copy, Debug)]
pub struct HeldReservation {
    /// Its id.
    pub id: Id,
    /// How much it holds.
    pub quantity: u64,
    /// Microseconds until its lease ends; 0 where it has ended, and the reservation still holds.
    pub left_us: u64,
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
        let mut call = KeyRequest::new(self.key(name, now_us), request);
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
        let live = key.held.index().iter().filter(|one| one.live(now_us));
        let mut live: Vec<_> = live
            .map(|one| {
                let left_us = one.lease_ends_us(now_us).saturating_sub(now_us);
                let id = Id::from(one.id);
                (one.order_us, HeldReservation { id, quantity: one.quantity, left_us })
            })
            .collect();
        live.sort_by_key(|(order_us, _)| *order_us);
        Ok(live.into_iter().map(|(_, one)| one).collect())
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
        let MemoryEntry { value, expires_at_ms } = keys.get(name)?;
        let value = match value {
            MemoryValue::Bucket(stored) => SavedValue::Bucket(stored.encode().as_bytes().to_vec()),
            MemoryValue::Window(set) => {
                let ban = set.reservations.ban().map(|ban| ban.text().as_bytes().to_vec());
                let members = set.reservations.iter().map(|one| one.member().as_bytes().to_vec());
                let mut reserved: Vec<_> = ban.into_iter().chain(members).collect();
                reserved.sort_unstable();
                SavedValue::Window { reserved, events: set.events.order.iter().cloned().collect() }
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
            SavedValue::Window { reserved, events } => {
                let mut set = Set::default();
                for member in reserved {
                    if let Some(ban) = Ban::decode(member) {
                        set.reservations.set_ban(Some(ban));
                        continue;
                    }
                    let one = Reservation::decode(member).ok_or(Refused::Foreign)?;
                    set.reservations.insert(&one);
                }
                for one in events {
                    set.events.add(&event(one)?);
                }
                MemoryValue::Window(set)
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
        keys.get(name).map(|entry| entry.expires_at_ms).filter(|at_ms| !has_expired(*at_ms, now_us))
    }

    /// Which kind of limit a key holds; `None` where there is none. An expired key is dropped.
    pub fn kind(&self, name: &[u8], now_us: u64) -> Option<MemoryKind> {
        let mut keys = self.keys.borrow_mut();
        let entry = keys.get(name)?;
        if has_expired(entry.expires_at_ms, now_us) {
            keys.remove(name);
            return None;
        }
        Some(match entry.value {
            MemoryValue::Bucket(_) => MemoryKind::Bucket,
            MemoryValue::Window(_) => MemoryKind::Window,
        })
    }

    /// Drops expired keys, in so few calls that each costs little. To be called once for each call.
    pub fn forget_expired(&self, now_us: u64) {
        let calls = self.calls.get().saturating_add(1);
        self.calls.set(calls);
        if calls > self.len() {
            self.calls.set(0);
            self.keys.borrow_mut().retain(|_, entry| !has_expired(entry.expires_at_ms, now_us));
        }
    }

    /// Takes a key's value out, unless it has expired.
    fn take(&self, name: &[u8], now_us: u64) -> Option<MemoryEntry> {
        let entry = self.keys.borrow_mut().remove(name)?;
        Some(entry).filter(|entry| !has_expired(entry.expires_at_ms, now_us))
    }

    fn put(&self, name: &[u8], value: MemoryValue, expires_at_ms: u64) {
        self.keys.borrow_mut().insert(name.into(), MemoryEntry { value, expires_at_ms });
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

    fn moment(&self, rule: &Rule) -> Option<Moment> {
        self.memory.zones(|zones| rule.at(self.now_us, zones))
    }

    fn leaves_us(&self, rule: &Rule, event_us: u64) -> Option<u64> {
        self.memory.zones(|zones| rule.leaves_us(event_us, zones))
    }

    fn write_rule(&self, rule: &Rule) -> RuleText {
        self.memory.zones(|zones| rule.write(zones))
    }

    fn parse_rule(&self, text: &[u8]) -> Option<Rule> {
        self.memory.zones(|zones| Rule::parse(text, zones))
    }

    fn bucket(self) -> MemoryBucket<'m> {
        MemoryBucket { key: self }
    }

    fn window(self) -> MemoryWindow<'m> {
        let held = HeldIndex::at(Box::default(), self.now_us, None, &mut Zones::new());
        MemoryWindow { key: self, events: Zset::default(), held, expires_at_ms: 0 }
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
            Some(entry) if has_expired(entry.expires_at_ms, now_us) => Ok(None),
            Some(MemoryEntry { value: MemoryValue::Bucket(stored), .. }) => Ok(Some(*stored)),
            Some(MemoryEntry { value: MemoryValue::Window(_), .. }) => Err(Refused::NotBucket),
            None => Ok(None),
        }
    }

    fn write(&mut self, next: BucketEdit) {
        let MemoryKey { memory, name, .. } = self.key;
        match next {
            BucketEdit::Keep => {}
            BucketEdit::Store(stored) => {
                let expires_at_ms = stored.void_at_ms().saturating_add(GRACE_MS);
                memory.put(name, MemoryValue::Bucket(stored), expires_at_ms);
            }
            BucketEdit::Delete => {
                memory.reset(name);
            }
        }
    }
}

/// A window that was taken out for one call, and goes back when that is done.
pub struct MemoryWindow<'m> {
    key: MemoryKey<'m>,
    events: Zset,
    held: HeldIndex,
    expires_at_ms: u64,
}

impl WindowKey for MemoryWindow<'_> {
    type Error = Refused;
    type Events<'k>
        = &'k mut Zset
    where
        Self: 'k;
    type Reservations = HeldIndex;
    type Member = Vec<u8>;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Refused> {
        let MemoryKey { memory, name, now_us } = self.key;
        let Some(entry) = memory.take(name, now_us) else { return Ok(()) };
        match entry.value {
            MemoryValue::Window(set) => {
                self.events = set.events;
                let held = |zones: &mut _| HeldIndex::at(set.reservations, now_us, id, zones);
                self.held = memory.zones(held);
                self.expires_at_ms = entry.expires_at_ms;
                Ok(())
            }
            MemoryValue::Bucket(_) => {
                memory.put(name, entry.value, entry.expires_at_ms);
                Err(Refused::NotWindow)
            }
        }
    }

    fn reservations(&self) -> &HeldIndex {
        &self.held
    }

    fn ban(&self) -> Option<Ban> {
        self.held.index().ban()
    }

    fn split(&mut self) -> (&mut Zset, &HeldIndex) {
        (&mut self.events, &self.held)
    }

    fn running(&mut self) -> usize {
        self.held.running()
    }

    fn find_live(&mut self, id: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let found = self.held.index().get(id).filter(|one| one.live(self.key.now_us));
        Ok(found.map(|one| one.member().as_bytes().to_vec()))
    }

    fn write(&mut self, change: Change<'_, Vec<u8>>) -> usize {
        let settled = change.settle.as_deref().and_then(Reservation::decode);
        let memory = self.key.memory;
        if let Some(one) = &settled {
            memory.zones(|zones| self.held.removed(one, zones));
        }
        let mut lapsed: usize = 0;
        if change.clean {
            memory.zones(|zones| {
                self.held.clean(zones, |_, healed| {
                    lapsed = lapsed.saturating_add(usize::from(healed.is_none()));
                });
            });
        }
        if let Some(one) = &change.reserve {
            self.held.added(one);
        }
        self.events.apply(change.edit);
        let ban = change.ban.after(self.ban());
        self.held.set_ban(ban);
        if let Some(expiry) = change.expiry {
            let expiry = expiry.reaching(self.held.needed_until_us());
            let expiry = expiry.reaching(ban.map(|ban| ban.end_us()));
            let current_ms = Some(self.expires_at_ms);
            let moved_ms = match settled {
                Some(one) => expiry.after_settling(one.gone_us, current_ms),
                None => expiry.after(current_ms),
            };
            self.expires_at_ms = moved_ms.unwrap_or(self.expires_at_ms);
        }
        lapsed
    }
}

impl Drop for MemoryWindow<'_> {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.events);
        let held = HeldIndex::at(Box::default(), self.key.now_us, None, &mut Zones::new());
        let reservations = std::mem::replace(&mut self.held, held).into_index();
        if events.is_empty() && reservations.is_empty() && reservations.ban().is_none() {
            return;
        }
        let value = MemoryValue::Window(Set { events, reservations });
        self.key.memory.put(self.key.name, value, self.expires_at_ms);
    }
}

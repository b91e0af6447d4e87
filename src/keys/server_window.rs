//! A key's sorted set of counted events and reservations, opened for one call.
//!
//! ```text
//! score   -inf ......... -1795223804000000 ............. -1795223799544558
//!         reservations   newest event                    oldest event
//! ```
//!
//! Nothing is written until everything that the call reads or removes has been checked to be ours.

use super::entries::{
    decode_entry, decode_reserved, ReservedMember, ServerEntries, ALL, FOREIGN, RESERVED,
};
use super::indexes::Finding;
use super::{KeyHandle, ServerKey};
use crate::redis::key::{remove_highest, remove_scores, KeyValue, Scores, WriteKey, MANY};
use crate::redis::text::OwnedString;
use crate::state::State;
use commands::error::Error;
use engine::ban::Ban;
use engine::entry::score;
use engine::reservation::{ReservationMember, ReservationRef};
use engine::reservations::{Reservations, Settled, MAX_HEALED_LEASES};
use engine::store::{self, Settlement, WindowEdit};
use engine::window::{EventEdit, TimeRange};
use smallvec::SmallVec;
use std::cell::RefCell;

/// A sorted set of events and reservations, for one call.
pub struct ServerWindow<'k, 'c> {
    store: ServerKey<'k, 'c>,
    /// The open key, and its events.
    events: ServerEntries<'c>,
    reservations: Reservations,
    /// The number of elements in the set, once the key was read or written.
    elements: usize,
}

impl<'k, 'c> ServerWindow<'k, 'c> {
    /// Creates a key that has not been read yet. `key` is closed, or open with the access of `store`.
    pub(super) fn new(store: ServerKey<'k, 'c>, key: KeyHandle<'c>) -> ServerWindow<'k, 'c> {
        ServerWindow {
            events: ServerEntries { key, newest: None, len: 0 },
            store,
            reservations: Reservations::default(),
            elements: 0,
        }
    }
}

/// Members to remove from the set. Most calls remove one, which takes no memory of its own.
type Members = SmallVec<[OwnedString; 2]>;

impl<'c> store::WindowKey for ServerWindow<'_, 'c> {
    type Error = Error;
    type Events = ServerEntries<'c>;
    type Emptied = EmptiedZset<'c>;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Error> {
        if self.store.emptied.is_some_and(EmptiedZset::is_there) {
            return Ok(());
        }
        let ServerKey { key_ctx, access, .. } = self.store;
        if self.events.key.reader().is_closed() {
            self.events.key = KeyHandle::open(self.state(), key_ctx, access)?;
        }
        if !matches!(self.events.key.reader().value(), KeyValue::Empty | KeyValue::Zset) {
            // The server does not notify us of every value that replaces a set.
            self.state().indexes.drop_index(key_ctx.ctx.db(), key_ctx.name.as_bytes());
            return Err(Error::NotWindow);
        }
        self.elements = self.events.key.reader().len();
        let state = self.state();
        match state.indexes.take(key_ctx, self.elements) {
            Some(Finding::Index(index)) => {
                let now_us = key_ctx.now_us;
                self.reservations =
                    state.zones.with(|zones| Reservations::from_index(index, now_us, id, zones));
            }
            Some(Finding::Foreign) => return Err(Error::ForeignEntry),
            None => self.read_elements(id)?,
        }
        let reserved =
            self.reservations.len().saturating_add(usize::from(self.reservations.ban().is_some()));
        self.events.len = self.elements.saturating_sub(reserved);
        // If `newest` is set, that entry was read and is ours.
        let read = usize::from(self.events.newest.is_some());
        match self.events.len > read && self.events.key.reader().lowest(FOREIGN).is_some() {
            true => Err(Error::ForeignEntry),
            false => Ok(()),
        }
    }

    fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    fn reservations_mut(&mut self) -> &mut Reservations {
        &mut self.reservations
    }

    fn split(&mut self) -> (&mut ServerEntries<'c>, &Reservations) {
        (&mut self.events, &self.reservations)
    }

    // A sorted set vanishes with its last element, and its TTL with it. So what is new is added first, and what has to go is
    // collected in `remove` until then, with three exceptions:
    //
    // - Many elements go, and no other is in the key: it is deleted first, which is faster, and begins again with what is
    //   new. It gets its old TTL back unless the edit sets one.
    // - Reservations were settled, and nothing else is or would be in the key: it stays open with its old elements, so that
    //   a waiter may be granted on it. See [`EmptiedZset`].
    // - Large ranges, and dead entries, go last, each by a command of the server, for which the key must be closed.
    fn write(&mut self, edit: WindowEdit) -> Settlement<EmptiedZset<'c>> {
        let mut remove = Members::new();
        let Some(mut key) = self.take_key(&mut remove) else {
            return Settlement { number: 0, emptied: None };
        };
        let removed = edit.events.in_ranges.saturating_add(edit.events.dropped);
        let deleted = if removed >= MANY { delete_if_emptied(&mut key, edit.events) } else { None };
        // This comes before cleaning up, so that a settled reservation is not rewritten.
        let settled = self.reservations.settle(edit.settled);
        if edit.clean && !self.reservations.is_empty() {
            self.clean(&mut key, &mut remove);
        }
        self.write_ban(&mut key, edit.ban, &mut remove);
        write_events(&mut key, edit.events, &mut remove);
        if deleted.is_some() {
            remove.clear();
        }
        if let Some(new) = &edit.reservation {
            self.add_reservation(&mut key, new, &mut remove);
        }
        let number = settled.len();
        if number > 0 && remove.len().saturating_add(number) == key.len() {
            // The key holds nothing else.
            self.elements = 0;
            return Settlement { number, emptied: Some(EmptiedZset::from(key)) };
        }
        remove.extend(settled.iter().map(|one| OwnedString::new(one.member().as_bytes())));
        if !remove.is_empty() {
            key.remove(&remove);
        }
        self.move_expiry(&mut key, &edit, &settled);
        if let (None, Some(Deleted { expires_at_ms: Some(at_ms) })) = (edit.expiry, &deleted) {
            key.expire_at(*at_ms);
        }
        self.elements = key.len();
        key.close();
        if removed > 0 && deleted.is_none() {
            self.remove_ranges(edit.events);
        }
        Settlement { number, emptied: None }
    }
}

impl<'c> ServerWindow<'_, 'c> {
    fn state(&self) -> &'static State {
        self.store.keyspace.state
    }

    /// Reads the reservations from the set, within the budget of the call if it has one, and the newest event, with which
    /// they end.
    fn read_elements(&mut self, id: Option<&[u8]>) -> Result<(), Error> {
        let ServerKey { keyspace, key_ctx, .. } = self.store;
        let reader = self.events.key.reader();
        if let Some(budget) = &keyspace.budget {
            budget.check(reader)?;
        }
        let (mut all, mut ban, mut behind) = (Vec::new(), None, None);
        for element in reader.ascending(ALL) {
            if element.score != RESERVED {
                behind = Some(element);
                break;
            }
            match decode_reserved(&element.member) {
                Some(ReservedMember::Reservation(one)) => all.push(one),
                Some(ReservedMember::Ban(one)) if ban.is_none() => ban = Some(one),
                Some(ReservedMember::Ban(_)) | None => {
                    keyspace.state.indexes.put_foreign(key_ctx, all.len(), self.elements);
                    return Err(Error::ForeignEntry);
                }
            }
        }
        if let Some(budget) = &keyspace.budget {
            budget.spend(all.len());
        }
        // Most keys hold only events.
        if !all.is_empty() || ban.is_some() {
            let (zones, now_us) = (&keyspace.state.zones, key_ctx.now_us);
            self.reservations =
                zones.with(|zones| Reservations::from_list(all, ban, now_us, id, zones));
        }
        match behind.as_ref().map(decode_entry) {
            None => {}
            Some(Ok(newest)) => self.events.newest = Some(newest),
            // If the key has reservations, only calls that count its events refuse a foreign entry. The caller refuses one
            // with a positive score.
            Some(Err(_)) if !self.reservations.is_empty() || ban.is_some() => {}
            Some(Err(error)) => return Err(error),
        }
        Ok(())
    }

    /// Takes the open key: the emptied one, whose members are added to `remove`, or the one that was read. `None` if it is
    /// not open for writing.
    #[inline(always)]
    fn take_key(&mut self, remove: &mut Members) -> Option<WriteKey<'c>> {
        if let Some(mut key) = self.store.emptied.and_then(EmptiedZset::reuse) {
            remove.extend(key.ascending(ALL).map(|element| element.member));
            return Some(key);
        }
        self.events.key.take(self.store.key_ctx)
    }

    /// Removes dead entries, and the entries in large ranges. The key is closed.
    fn remove_ranges(&mut self, edit: &EventEdit) {
        let (ctx, name) = (self.store.key_ctx.ctx, self.store.key_ctx.name);
        self.state().indexes.while_removing_range(|| {
            if are_large(edit) {
                ranges(edit).for_each(|scores| remove_scores(ctx, name, scores));
                self.elements = self.elements.saturating_sub(edit.in_ranges);
            }
            if edit.dropped > 0 {
                remove_highest(ctx, name, edit.dropped);
                self.elements = self.elements.saturating_sub(edit.dropped);
            }
        });
    }

    /// Drops reservations that are gone, and rewrites those from the future. Adds the old members to `remove`.
    fn clean(&mut self, key: &mut WriteKey, remove: &mut Members) {
        let (state, mut add) = (self.state(), Vec::new());
        let cleaned = &mut |old: &ReservationMember, new: Option<&ReservationMember>| {
            remove.push(OwnedString::new(old.as_bytes()));
            match new {
                Some(new) => add.push(*new),
                None => state.stats.lapsed.add(1),
            }
        };
        let max_healed = self.store.keyspace.share(MAX_HEALED_LEASES);
        state.zones.with(|zones| self.reservations.clean(zones, max_healed, cleaned));
        add.iter().for_each(|member| key.add(RESERVED, member.as_bytes()));
    }

    /// Writes the ban if it is new, and adds the member of the old one to `remove`.
    #[inline(always)]
    fn write_ban(&mut self, key: &mut WriteKey, new: Option<Ban>, remove: &mut Members) {
        let old = self.reservations.ban();
        if new != old {
            if let Some(ban) = new {
                key.add(RESERVED, ban.text().as_bytes());
            }
            remove.extend(old.map(|old| OwnedString::new(old.text().as_bytes())));
            self.reservations.set_ban(new);
        }
    }

    /// Writes a new reservation. An identical one may have been released; then its member stays.
    #[inline(always)]
    fn add_reservation(&mut self, key: &mut WriteKey, new: &ReservationRef, remove: &mut Members) {
        let member = new.member();
        key.add(RESERVED, member.as_bytes());
        remove.retain(|old| old.as_bytes() != member.as_bytes());
        // A list is not kept for the next call.
        if self.reservations.index().is_some() {
            self.reservations.add(new);
        }
    }

    /// Moves the TTL to the time until which the key is needed, if the edit says how.
    #[inline(always)]
    fn move_expiry(&self, key: &mut WriteKey, edit: &WindowEdit, settled: &Settled) {
        let Some(expiry) = edit.expiry else { return };
        let new_us = edit.reservation.map(|one| one.gone_us);
        let expiry = expiry.extend_to(self.reservations.needed_until_us().max(new_us));
        let settled_us = settled.iter().map(|one| one.gone_us).max();
        if let Some(at_ms) = expiry.new_expires_at_ms(settled_us, key.expires_at_ms()) {
            key.expire_at(at_ms);
        }
    }
}

// A destructor, because the index must be put back on every way out of a call, also if it is denied or refused.
impl Drop for ServerWindow<'_, '_> {
    fn drop(&mut self) {
        // Most keys have no index.
        if self.reservations.index().is_some() {
            let reservations = std::mem::take(&mut self.reservations);
            self.state().indexes.put(self.store.key_ctx, reservations, self.elements);
        }
    }
}

/// Returns the scores of the ranges of entries that are removed.
fn ranges(edit: &EventEdit) -> impl Iterator<Item = Scores> {
    let scores = |times: TimeRange| Scores { from: score(times.to_us), to: score(times.from_us) };
    [edit.given_back, edit.merged].into_iter().flatten().map(scores)
}

/// Returns whether the ranges of entries are removed by one command each, after the new entries were added. None of these
/// may be in them.
fn are_large(edit: &EventEdit) -> bool {
    let is_new = |scores: Scores| {
        let new = [edit.newest.new, edit.other.new].into_iter().flatten();
        new.into_iter().any(|new| (scores.from..=scores.to).contains(&new.score()))
    };
    edit.in_ranges >= MANY && !ranges(edit).any(is_new)
}

/// A key was deleted before new entries are written to it.
struct Deleted {
    expires_at_ms: Option<u64>,
}

/// Deletes a key from which an edit removes all elements. This is faster than removing many of them.
#[cold]
fn delete_if_emptied(key: &mut WriteKey, edit: &EventEdit) -> Option<Deleted> {
    let old = [edit.newest.old, edit.other.old].into_iter().flatten().count();
    let removed = edit.in_ranges.saturating_add(edit.dropped).saturating_add(old);
    if removed < key.len() {
        return None;
    }
    let expires_at_ms = key.expires_at_ms();
    key.delete();
    Some(Deleted { expires_at_ms })
}

/// Writes the new entries of events. Adds the members of those that they replace to `remove`, of those that are given back,
/// and of those from the future, but for large ranges.
#[inline(always)]
fn write_events(key: &mut WriteKey, edit: &EventEdit, remove: &mut Members) {
    if edit.in_ranges > 0 && !are_large(edit) {
        for scores in ranges(edit) {
            remove.extend(key.ascending(scores).map(|element| element.member));
        }
    }
    if edit.merged.is_some() {
        let new = edit.newest.new.map(|new| new.member());
        // If the new entry has the same member as one of them, that one only gets a new score and must not be removed.
        remove.retain(|old| new.as_ref().is_none_or(|new| new.as_bytes() != old.as_bytes()));
    }
    for change in [&edit.newest, &edit.other] {
        if let Some(new) = &change.new {
            key.add(new.score(), new.member().as_bytes());
        }
        if let Some(old) = &change.old {
            remove.push(OwnedString::new(old.member().as_bytes()));
        }
    }
}

/// A key whose elements have all been released but are still stored, so that the key does not vanish before a waiter adds to
/// it. It counts as empty. Whoever gets it lends it to the calls of waiters, and then deletes it. The first of them that
/// writes goes on with it, and removes the elements.
#[must_use]
pub struct EmptiedZset<'c> {
    /// `None` once a call went on with it.
    key: RefCell<Option<WriteKey<'c>>>,
}

impl<'c> EmptiedZset<'c> {
    fn from(key: WriteKey<'c>) -> EmptiedZset<'c> {
        EmptiedZset { key: RefCell::new(Some(key)) }
    }

    fn is_there(&self) -> bool {
        self.key.borrow().is_some()
    }

    /// Takes the key, to go on with it.
    pub(super) fn reuse(&self) -> Option<WriteKey<'c>> {
        self.key.take()
    }

    /// Deletes the key, unless a call went on with it, so that no call does.
    pub fn delete_now(&self) {
        if let Some(mut key) = self.reuse() {
            key.delete();
            key.close();
        }
    }
}

impl store::EmptiedKey for EmptiedZset<'_> {
    fn delete(self) {
        self.delete_now();
    }
}

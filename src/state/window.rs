//! A key's sorted set of counted events and reservations, opened for one call.
//!
//! ```text
//! score   -inf ......... -1795223804000000 ............. -1795223799544558
//!         reservations   newest event                    oldest event
//! ```
//!
//! Nothing is written before everything that is read or removed was found to be ours.

use super::emptied::EmptiedKey;
use super::entries::{
    after, ban, entry, reservation, EntryReader, KnownEvents, ALL, FOREIGN, RESERVATIONS, RESERVED,
};
use super::reservations::{find_live, ReadBudget, ServerReservations};
use super::{indexes, Intent, KeyContext, Open, ServerKey};
use crate::redis::key::{remove_highest, KeyValue, ReadKey, Scores, WriteKey};
use crate::redis::text::OwnedString;
use commands::error::Error;
use engine::ban::Ban;
use engine::entry::{score, Entry};
use engine::reservation::{id_of, HeldReservation};
use engine::store::{self, BanEdit, Change};
use engine::window::Edit;
use foldhash::quality::RandomState;
use std::collections::HashMap;

/// A sorted set of events and reservations, for one call.
pub struct ServerWindow<'c> {
    at: ServerKey<'c>,
    key: Open<'c>,
    reservations: ServerReservations<'c>,
    /// What is known of its events.
    events: KnownEvents,
}

fn open(key_ctx: KeyContext, intent: Intent) -> Result<Open, Error> {
    let mut key = Open::new(key_ctx, intent)?;
    match key.reader().value() {
        KeyValue::Empty | KeyValue::Zset => Ok(key),
        KeyValue::String(_) | KeyValue::Other => {
            // The server does not tell of every value that takes a set's place.
            indexes::forget(key_ctx.ctx.db(), key_ctx.name.as_bytes());
            Err(Error::NotZset)
        }
    }
}

/// Refuses a sorted set that somebody else keeps: one with positive scores.
fn refuse_foreign(key: &mut ReadKey) -> Result<(), Error> {
    match key.lowest(FOREIGN) {
        Some(_) => Err(Error::NotEntry),
        None => Ok(()),
    }
}

impl<'c> ServerWindow<'c> {
    /// A key that is yet to be read.
    pub fn new(at: ServerKey<'c>) -> ServerWindow<'c> {
        let key = Open::closed(at.key_ctx);
        ServerWindow {
            at,
            key,
            reservations: ServerReservations::none(),
            events: KnownEvents::default(),
        }
    }
}

impl<'c> store::WindowKey for ServerWindow<'c> {
    type Error = Error;
    type Events<'k>
        = EntryReader<'k, 'c>
    where
        Self: 'k;
    type Reservations = ServerReservations<'c>;
    type Member = OwnedString;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Error> {
        let ServerKey { key_ctx, intent, of_several } = self.at;
        self.key = open(key_ctx, intent)?;
        let reader = self.key.reader();
        match ServerReservations::indexed(key_ctx, reader, id) {
            Some(reservations) => self.reservations = reservations,
            None => {
                if of_several {
                    ReadBudget::check(reader)?;
                }
                let behind = self.reservations.read(key_ctx, reader, id)?;
                match behind.as_ref().map(entry) {
                    None => {}
                    Some(Ok(newest)) => self.events.newest = Some(newest),
                    // Beside reservations, an entry that is not ours is refused only by who counts the events.
                    Some(Err(_)) if self.reservations.elements() > 0 => {}
                    Some(Err(error)) => return Err(error),
                }
            }
        }
        self.events.len = reader.len().saturating_sub(self.reservations.elements());
        // The newest entry was read and is ours, unless an index was found.
        let read = usize::from(self.events.newest.is_some());
        if self.events.len > read {
            refuse_foreign(reader)?;
        }
        Ok(())
    }

    fn reservations(&self) -> &ServerReservations<'c> {
        &self.reservations
    }

    fn ban(&self) -> Option<Ban> {
        self.reservations.ban()
    }

    fn split(&mut self) -> (EntryReader<'_, 'c>, &ServerReservations<'c>) {
        (EntryReader::new(self.key.reader(), &self.events), &self.reservations)
    }

    fn running(&mut self) -> usize {
        self.reservations.running()
    }

    fn find_live(&mut self, id: &[u8]) -> Result<Option<OwnedString>, Error> {
        find_live(Some(&self.reservations), self.key.reader(), id, self.at.key_ctx.now_us)
    }

    fn write(&mut self, change: Change<'_, OwnedString>) -> usize {
        let Some(key) = self.key.take(self.at.key_ctx) else { return 0 };
        self.write_to(key, Vec::new(), change)
    }
}

impl<'c> ServerWindow<'c> {
    /// Which key, and when.
    pub(super) fn key_ctx(&self) -> KeyContext<'c> {
        self.at.key_ctx
    }

    /// Writes what was planned to the open key, and then removes these members, too. See [`store::WindowKey::write`].
    // Inlined, so that the change is not copied on its way: it is large.
    #[inline(always)]
    pub(super) fn write_to(
        &mut self,
        mut key: WriteKey<'c>,
        mut remove: Vec<OwnedString>,
        change: Change<'_, OwnedString>,
    ) -> usize {
        let KeyContext { ctx, name, now_us } = self.at.key_ctx;
        let edit = change.edit;
        let (mut dropped, mut settled_us) = (0, None);
        // This comes before healing, so that a settled reservation is not written anew.
        if let Some(member) = change.settle {
            if let Ok(one) = reservation(&member) {
                settled_us = Some(one.gone_us);
                self.reservations.remove_settled(&one, now_us);
            }
            remove.push(member);
        }
        let cleaning = if change.clean { self.reservations.clean() } else { None };
        if let Some(mut cleaning) = cleaning {
            cleaning.add.iter().for_each(|member| key.add(RESERVED, member.as_bytes()));
            remove.append(&mut cleaning.remove);
            dropped = cleaning.dropped;
        }
        let ban = self.write_ban(&mut key, change.ban, &mut remove);
        collect_removed(&mut key, edit, &mut remove);
        // One after the other: a loop would copy both.
        if let Some(put) = &edit.put {
            key.add(put.score(), put.member().as_bytes());
        }
        if let Some((_, new)) = &edit.changed {
            key.add(new.score(), new.member().as_bytes());
        }
        if let Some(one) = &change.reserve {
            let member = one.member();
            key.add(RESERVED, member.as_bytes());
            self.reservations.add(one);
            // What was released may have been the very same.
            remove.retain(|old| old.as_bytes() != member.as_bytes());
        }
        let member = |entry: Entry| OwnedString::new(entry.member().as_bytes());
        match (edit.replaced.map(member), edit.changed.map(|(old, _)| member(old))) {
            (None, None) => {}
            // The usual case: nothing is allocated for it.
            (Some(one), None) | (None, Some(one)) if remove.is_empty() => {
                key.remove(std::slice::from_ref(&one));
            }
            (one, other) => remove.extend([one, other].into_iter().flatten()),
        }
        if !remove.is_empty() {
            key.remove(&remove);
        }
        if let Some(expiry) = change.expiry {
            let moved_ms = expiry.moved(
                self.reservations.needed_until_us(),
                ban.map(|ban| ban.end_us()),
                settled_us,
                key.expires_at_ms(),
            );
            if let Some(at_ms) = moved_ms {
                key.expire_at(at_ms);
            }
        }
        self.reservations.set_elements(key.len().saturating_sub(edit.trim));
        drop(key);
        if edit.trim > 0 {
            remove_highest(ctx, name, edit.trim);
        }
        dropped
    }

    /// Writes what becomes of the ban, and collects the member of the one that goes; the ban that is there then.
    #[inline(always)]
    fn write_ban(
        &mut self,
        key: &mut WriteKey,
        edit: BanEdit,
        remove: &mut Vec<OwnedString>,
    ) -> Option<Ban> {
        let old_ban = self.reservations.ban();
        let new_ban = edit.after(old_ban);
        if new_ban != old_ban {
            if let Some(ban) = new_ban {
                key.add(RESERVED, ban.text().as_bytes());
            }
            remove.extend(old_ban.map(|old| OwnedString::new(old.text().as_bytes())));
            self.reservations.set_ban(new_ban);
        }
        new_ban
    }
}

/// Collects the members of the events that an edit removes wherever they are: those that were given back, and those that a
/// clock left in the future.
#[inline(always)]
fn collect_removed(key: &mut ReadKey, edit: &Edit, remove: &mut Vec<OwnedString>) {
    if let Some((from_us, to_us)) = edit.given_back {
        collect(key, Scores { from: score(to_us), to: score(from_us) }, remove);
    }
    if let Some(scores) = edit.future_from.and_then(|from_us| after(Some(from_us))) {
        let until_us = edit.future_until.unwrap_or(u64::MAX);
        collect(key, Scores { from: score(until_us), ..scores }, remove);
        let put = edit.put.map(|put| put.member());
        // The new entry may have the member of one of them. Then that one only gets its score, and must not be removed.
        let moves =
            |old: &OwnedString| put.as_ref().is_some_and(|put| put.as_bytes() == old.as_bytes());
        remove.retain(|old| !moves(old));
    }
}

/// Adds the members of all entries with these scores to `members`.
fn collect(key: &mut ReadKey, scores: Scores, members: &mut Vec<OwnedString>) {
    members.extend(key.ascending(scores).map(|element| element.member));
}

/// Gives the live reservations of these ids back; returns how many there were. An id may be there more than once. A key that
/// holds nothing else is handed over in `emptied`, where that is given, and deleted otherwise.
pub fn release<'c>(
    key_ctx: KeyContext<'c>,
    ids: &[&[u8]],
    emptied: Option<&mut Option<EmptiedKey<'c>>>,
) -> Result<usize, Error> {
    let Open::Write(mut key) = open(key_ctx, Intent::Write)? else { return Ok(0) };
    let len = key.len();
    if len == 0 {
        return Ok(0);
    }
    if len <= MAX_READ {
        return release_of_few(key_ctx, key, len, ids, emptied);
    }
    refuse_foreign(&mut key)?;
    let mut index = ServerReservations::indexed(key_ctx, &mut key, None);
    let found = match (&mut index, ids) {
        (Some(index), ids) => index.take_live(ids),
        (None, [id]) => {
            // It is one of many, so the key stays.
            let found = find_live(None, &mut key, id, key_ctx.now_us)?;
            key.remove(found.as_slice());
            return Ok(found.as_slice().len());
        }
        (None, ids) => match ids.len() <= MAX_SEARCHED.max(len / READ_PER_SEARCH) {
            true => search(key_ctx, &mut key, ids)?,
            false => pick(key_ctx, &mut key, ids)?,
        },
    };
    let released = found.len();
    if let Some(index) = &mut index {
        index.set_elements(len.saturating_sub(released));
    }
    if released == len {
        empty(key, found, emptied);
    } else {
        key.remove(&found);
    }
    Ok(released)
}

/// Empties a key of the `released` elements, which are all that it has: hands it over in `emptied` where that is given, and
/// deletes it otherwise.
fn empty<'c>(
    mut key: WriteKey<'c>,
    released: impl IntoIterator<Item = OwnedString>,
    emptied: Option<&mut Option<EmptiedKey<'c>>>,
) {
    match emptied {
        None => key.delete(),
        Some(emptied) => *emptied = Some(EmptiedKey::new(key, released.into_iter().collect())),
    }
}

/// A set of up to this many elements is read from its beginning, not searched. It has no index.
const MAX_READ: usize = 4;

/// Gives the live reservations of these ids back in a set of at most [`MAX_READ`] elements; returns how many there were.
fn release_of_few<'c>(
    key_ctx: KeyContext<'c>,
    mut key: WriteKey<'c>,
    len: usize,
    ids: &[&[u8]],
    emptied: Option<&mut Option<EmptiedKey<'c>>>,
) -> Result<usize, Error> {
    let mut members = [const { None }; MAX_READ];
    let mut read: usize = 0;
    let elements = key.ascending(ALL).take_while(|element| element.score == RESERVED);
    for (place, element) in members.iter_mut().zip(elements) {
        *place = Some(element.member);
        read = read.saturating_add(1);
    }
    if read < len {
        refuse_foreign(&mut key)?;
    }
    let mut is_live = [false; MAX_READ];
    let mut last_id = None;
    for (member, is_live) in members.iter().flatten().zip(&mut is_live) {
        let id = id_of(member.as_bytes());
        // If somebody wrote an id a second time, the first one counts, as in a search.
        if id != last_id && id.is_some_and(|id| ids.contains(&id)) {
            *is_live = reservation(member)?.live(key_ctx.now_us);
        }
        last_id = id;
    }
    let released = is_live.into_iter().filter(|is_live| *is_live).count();
    if released == len {
        empty(key, members.into_iter().flatten(), emptied);
    } else {
        let live = members.iter().flatten().zip(is_live);
        key.remove(live.filter_map(|(member, is_live)| is_live.then_some(member)));
    }
    Ok(released)
}

/// Up to this many ids are searched for one by one, however few elements there are.
const MAX_SEARCHED: usize = 8;

/// A search in the set for one id costs about as much as reading so many reservations.
const READ_PER_SEARCH: usize = 16;

/// The members of the live reservations of these ids, each found in O(log n).
fn search(
    key_ctx: KeyContext,
    key: &mut ReadKey,
    ids: &[&[u8]],
) -> Result<Vec<OwnedString>, Error> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let mut members = Vec::with_capacity(ids.len());
    for id in ids {
        members.extend(find_live(None, key, id, key_ctx.now_us)?);
    }
    Ok(members)
}

/// The same by reading all reservations once: for many ids beside a few reservations.
fn pick(key_ctx: KeyContext, key: &mut ReadKey, ids: &[&[u8]]) -> Result<Vec<OwnedString>, Error> {
    let all: Vec<OwnedString> = key.ascending(RESERVATIONS).map(|element| element.member).collect();
    let mut places = HashMap::<&[u8], usize, RandomState>::default();
    for (place, member) in all.iter().enumerate() {
        // If somebody wrote an id a second time, the first one counts, as in a search.
        places.entry(reservation(member)?.id).or_insert(place);
    }
    let mut is_named = vec![false; all.len()];
    if !places.is_empty() {
        for id in ids {
            if let Some(is_named) = places.get(id).and_then(|place| is_named.get_mut(*place)) {
                *is_named = true;
            }
        }
    }
    let mut members = Vec::new();
    for (member, is_named) in all.into_iter().zip(is_named) {
        if is_named && reservation(&member)?.live(key_ctx.now_us) {
            members.push(member);
        }
    }
    Ok(members)
}

/// The live reservations of a key, the oldest first.
pub fn list_held(key_ctx: KeyContext) -> Result<Vec<HeldReservation>, Error> {
    let mut key = open(key_ctx, Intent::Read)?;
    refuse_foreign(key.reader())?;
    let now_us = key_ctx.now_us;
    if let Some(indexed) = ServerReservations::indexed(key_ctx, key.reader(), None) {
        let mut live = Vec::with_capacity(indexed.len());
        live.extend(indexed.oldest_first().map(|one| HeldReservation::of(&one, now_us)));
        return Ok(live);
    }
    let mut live = Vec::new();
    for element in key.reader().ascending(RESERVATIONS) {
        if ban(&element.member)?.is_some() {
            continue;
        }
        let one = reservation(&element.member)?;
        if one.live(now_us) {
            live.push(HeldReservation::of(&one, now_us));
        }
    }
    Ok(HeldReservation::oldest_first(live))
}

//! The reservations of a key, read for one call: from the sorted set where they are few, else from an index in memory.

use super::entries::{ban, reservation, ALL, RESERVATIONS, RESERVED};
use super::{indexes, KeyContext};
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::events::KeyChange;
use crate::redis::key::{Element, KeyValue, ReadKey};
use crate::redis::text::OwnedString;
use crate::zones::zones;
use commands::error::Error;
use engine::ban::Ban;
use engine::held::{FirstGone, Hold, Holds, SortedHolds};
use engine::index::{next_order_us, HeldIndex, Index, IndexBuilder};
use engine::reservation::{id_of, prefix, ReservationMember, ReservationRef, ReservationView};
use engine::slab::Slot;
use engine::store;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A key with at least this many reservations has an index.
const INDEX_FROM: usize = 8;

/// What is reserved in a key.
pub enum ServerReservations<'c> {
    /// Read from the set.
    Listed(ListedReservations),
    /// In an index, which is kept for the next call.
    Indexed(IndexedReservations<'c>),
}

/// Reservations that were read for this call alone.
#[derive(Default)]
pub struct ListedReservations {
    ban: Option<Ban>,
    now_us: u64,
    live: SortedHolds,
    /// How many have a lease that runs.
    running: usize,
    newest_order_us: Option<u64>,
    has_id: bool,
    /// Their members as they are stored, in the order of the set.
    members: Vec<OwnedString>,
    /// How many of them have a lease that ends later than one lease from now: a clock went back.
    future: usize,
    /// How many of them are gone.
    gone: usize,
    /// When the last reservation that this call added stops holding.
    added_until_us: Option<u64>,
}

/// An index that was taken out for this call. It is put back when this is dropped, with the number of elements
/// that the call has told last.
pub struct IndexedReservations<'c> {
    /// `None` once it is put back.
    held: Option<HeldIndex>,
    /// The place of the index among all; `None` for a new one.
    slot: Option<Slot>,
    ctx: Context<'c>,
    name: KeyName<'c>,
    /// How many elements the set has.
    len: usize,
}

/// What is to be done to the reservations of a key beside what was asked.
#[derive(Default)]
pub struct Cleaning {
    /// Members that go.
    pub remove: Vec<OwnedString>,
    /// Members that come.
    pub add: Vec<OwnedString>,
    /// How many of those that are removed are gone.
    pub dropped: usize,
}

impl<'c> ServerReservations<'c> {
    /// Nothing reserved.
    pub fn none() -> ServerReservations<'c> {
        ServerReservations::Listed(ListedReservations::default())
    }

    /// The index of the key, if there is one.
    pub fn indexed(
        key_ctx: KeyContext<'c>,
        key: &mut ReadKey<'c>,
        id: Option<&[u8]>,
    ) -> Option<ServerReservations<'c>> {
        if indexes::is_empty() {
            return None;
        }
        let len = key.len();
        let (index, slot) = indexes::take(key_ctx.ctx.db(), key_ctx.name.as_bytes(), len)?;
        Some(ServerReservations::Indexed(IndexedReservations::new(
            index,
            Some(slot),
            key_ctx,
            len,
            id,
        )))
    }

    /// Reads all reservations in `key`, where nothing is known of it yet, and whether `id` is held. Returns the element behind
    /// them.
    pub fn read(
        &mut self,
        key_ctx: KeyContext<'c>,
        key: &mut ReadKey<'c>,
        id: Option<&[u8]>,
    ) -> Result<Option<Element>, Error> {
        let ServerReservations::Listed(listed) = self else { return Ok(None) };
        listed.now_us = key_ctx.now_us;
        let mut all: Option<IndexBuilder> = None;
        let (mut unique, mut behind) = (true, None);
        for element in key.ascending(ALL) {
            if element.score != RESERVED {
                behind = Some(element);
                break;
            }
            if listed.note_ban(&element.member)? {
                continue;
            }
            if let Some(all) = &mut all {
                unique &= all.add(&reservation(&element.member)?);
                continue;
            }
            if let Some(hold) = listed.note(&reservation(&element.member)?, id) {
                listed.live.add(hold);
            }
            listed.members.push(element.member);
            if listed.members.len() >= INDEX_FROM {
                let mut builder = IndexBuilder::default();
                for member in &listed.members {
                    unique &= builder.add(&reservation(member)?);
                }
                all = Some(builder);
            }
        }
        if !unique {
            *listed = ListedReservations::read_all(key_ctx, key, id)?;
        } else if let Some(all) = all {
            let mut index = all.build();
            ReadBudget::spend(index.len());
            index.set_ban(listed.ban);
            *self = ServerReservations::Indexed(IndexedReservations::new(
                index,
                None,
                key_ctx,
                key.len(),
                id,
            ));
        }
        Ok(behind)
    }

    /// The ban beside them.
    pub fn ban(&self) -> Option<Ban> {
        match self {
            ServerReservations::Listed(listed) => listed.ban,
            ServerReservations::Indexed(indexed) => {
                indexed.held().and_then(|held| held.index().ban())
            }
        }
    }

    /// Notes what became of the ban.
    pub fn set_ban(&mut self, ban: Option<Ban>) {
        match self {
            ServerReservations::Listed(listed) => listed.ban = ban,
            ServerReservations::Indexed(indexed) => {
                indexed.held.iter_mut().for_each(|held| held.set_ban(ban));
            }
        }
    }

    /// How many elements of the set they and the ban take.
    pub fn elements(&self) -> usize {
        self.len().saturating_add(usize::from(self.ban().is_some()))
    }

    /// How many there are, live and gone.
    pub fn len(&self) -> usize {
        match self {
            ServerReservations::Listed(listed) => listed.members.len(),
            ServerReservations::Indexed(indexed) => {
                indexed.held().map_or(0, |held| held.index().len())
            }
        }
    }

    /// How many have a lease that runs.
    pub fn running(&mut self) -> usize {
        match self {
            ServerReservations::Listed(listed) => listed.running,
            ServerReservations::Indexed(indexed) => {
                indexed.held.as_mut().map_or(0, HeldIndex::running)
            }
        }
    }

    /// Until when the key is needed for them. What lies in the future and is not written anew may hold as long as it says,
    /// wherever the clock goes.
    pub fn needed_until_us(&self) -> Option<u64> {
        match self {
            ServerReservations::Listed(listed) => {
                let future = listed.future_ones().map(|one| one.gone_us).max();
                listed.live.last_gone_us().max(future).max(listed.added_until_us)
            }
            ServerReservations::Indexed(indexed) => indexed.held()?.needed_until_us(),
        }
    }

    /// Those that are gone, and those that are written anew as a clock went back: as they are seen now, in their old
    /// order. `None` where a look at what is known tells that there are none.
    pub fn clean(&mut self) -> Option<Cleaning> {
        match self {
            ServerReservations::Listed(listed) if listed.future == 0 && listed.gone == 0 => None,
            ServerReservations::Listed(listed) => Some(listed.clean()),
            ServerReservations::Indexed(indexed) => Some(indexed.clean()),
        }
    }

    /// Removes a reservation that was settled: applied, given back or renewed.
    pub fn remove_settled(&mut self, one: &ReservationRef, now_us: u64) {
        match self {
            ServerReservations::Listed(listed) => {
                listed.live.remove(Hold::of(&seen(one, now_us)));
                // A live member that is not from the future is not looked at again. One from the future would be written anew,
                // and hold up `needed_until_us`.
                if one.is_from_future(now_us) {
                    let member = one.member();
                    listed.members.retain(|old| old.as_bytes() != member.as_bytes());
                    listed.future = listed.future.saturating_sub(1);
                }
            }
            ServerReservations::Indexed(indexed) => {
                if let Some(held) = &mut indexed.held {
                    zones(|zones| held.remove_settled(one, zones));
                }
            }
        }
    }

    /// Removes the live reservations of these ids, where the key has an index; returns their members. An id may be there
    /// more than once.
    pub fn take_live(&mut self, ids: &[&[u8]]) -> Vec<OwnedString> {
        let mut members = Vec::new();
        let ServerReservations::Indexed(IndexedReservations { held: Some(held), .. }) = self else {
            return members;
        };
        for id in ids {
            let Some(one) = held.get_live(id) else { continue };
            members.push(OwnedString::new(one.member().as_bytes()));
            held.remove(id);
        }
        members
    }

    /// Adds a reservation that was made.
    pub fn add(&mut self, one: &ReservationRef) {
        match self {
            ServerReservations::Listed(listed) => {
                listed.added_until_us = listed.added_until_us.max(Some(one.gone_us));
            }
            ServerReservations::Indexed(indexed) => {
                indexed.held.iter_mut().for_each(|held| held.add(one));
            }
        }
    }

    /// The live reservations of an index, the oldest first.
    pub fn oldest_first(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        let held = match self {
            ServerReservations::Listed(_) => None,
            ServerReservations::Indexed(indexed) => indexed.held(),
        };
        held.into_iter().flat_map(HeldIndex::oldest_first)
    }

    /// Notes how many elements the set has after the call. The index is used again only if the set still has that many.
    pub fn set_elements(&mut self, elements: usize) {
        if let ServerReservations::Indexed(indexed) = self {
            indexed.len = elements;
        }
    }
}

impl ListedReservations {
    /// Reads all reservations, however many, where somebody wrote an id a second time: an index knows each id once.
    fn read_all(
        key_ctx: KeyContext,
        key: &mut ReadKey,
        id: Option<&[u8]>,
    ) -> Result<ListedReservations, Error> {
        let mut listed =
            ListedReservations { now_us: key_ctx.now_us, ..ListedReservations::default() };
        let mut holds = Vec::new();
        for element in key.ascending(RESERVATIONS) {
            if listed.note_ban(&element.member)? {
                continue;
            }
            holds.extend(listed.note(&reservation(&element.member)?, id));
            listed.members.push(element.member);
        }
        listed.live = holds.into_iter().collect();
        Ok(listed)
    }

    /// Whether a member is a ban, which is noted. There is one at most.
    fn note_ban(&mut self, member: &OwnedString) -> Result<bool, Error> {
        let found = ban(member)?;
        if found.is_some() && self.ban.is_some() {
            return Err(Error::NotEntry);
        }
        self.ban = self.ban.or(found);
        Ok(found.is_some())
    }

    /// Notes what is known of a reservation; returns what it holds, which is not noted, if it is live.
    fn note(&mut self, one: &ReservationRef, id: Option<&[u8]>) -> Option<Hold> {
        let now_us = self.now_us;
        self.newest_order_us = self.newest_order_us.max(Some(one.order_us));
        let live = one.live(now_us);
        self.has_id |= live && id == Some(one.id);
        self.running = self.running.saturating_add(usize::from(one.runs(now_us)));
        if one.is_from_future(now_us) {
            self.future = self.future.saturating_add(1);
        } else if !live {
            self.gone = self.gone.saturating_add(1);
        }
        live.then(|| Hold::of(&seen(one, now_us)))
    }

    /// Those whose lease ends later than one lease from now.
    fn future_ones(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        let members = if self.future > 0 { self.members.as_slice() } else { &[] };
        let all = members.iter().flat_map(reservation);
        all.filter(|one| one.is_from_future(self.now_us))
    }

    fn clean(&mut self) -> Cleaning {
        let mut cleaning = Cleaning::default();
        (self.future, self.gone) = (0, 0);
        for member in std::mem::take(&mut self.members) {
            let Ok(one) = reservation(&member) else { continue };
            if one.is_from_future(self.now_us) {
                let one = seen(&one, self.now_us).member();
                cleaning.add.push(OwnedString::new(one.as_bytes()));
            } else if one.live(self.now_us) {
                continue;
            } else {
                cleaning.dropped = cleaning.dropped.saturating_add(1);
            }
            cleaning.remove.push(member);
        }
        cleaning
    }
}

impl<'c> IndexedReservations<'c> {
    fn new(
        index: Box<Index>,
        slot: Option<Slot>,
        key_ctx: KeyContext<'c>,
        len: usize,
        id: Option<&[u8]>,
    ) -> IndexedReservations<'c> {
        let KeyContext { ctx, name, now_us } = key_ctx;
        let held = zones(|zones| HeldIndex::at(index, now_us, id, zones));
        IndexedReservations { held: Some(held), slot, ctx, name, len }
    }

    fn held(&self) -> Option<&HeldIndex> {
        self.held.as_ref()
    }

    fn clean(&mut self) -> Cleaning {
        let mut cleaning = Cleaning::default();
        let member = |text: &ReservationMember| OwnedString::new(text.as_bytes());
        let cleaned = |old: &ReservationMember, new: Option<&ReservationMember>| {
            cleaning.remove.push(member(old));
            cleaning.add.extend(new.map(member));
            cleaning.dropped = cleaning.dropped.saturating_add(usize::from(new.is_none()));
        };
        if let Some(held) = &mut self.held {
            zones(|zones| held.clean(zones, cleaned));
        }
        cleaning
    }
}

impl Drop for IndexedReservations<'_> {
    fn drop(&mut self) {
        let IndexedReservations { ctx, name, len, .. } = *self;
        let Some(held) = self.held.take() else { return };
        let is_changed = held.is_changed();
        let (key, index) = (name.as_bytes(), held.into_index());
        let left = match self.slot.filter(|_| !is_changed) {
            Some(slot) => indexes::put_back(ctx, key, slot, index, len),
            None => Some(index),
        };
        if let Some(index) = left {
            indexes::put(ctx, key, index, len, INDEX_FROM);
        }
    }
}

impl store::Reservations for ServerReservations<'_> {
    /// Whether at least `number` are live.
    fn has_at_least(&self, number: u64) -> bool {
        match self {
            ServerReservations::Listed(listed) => {
                u64::try_from(listed.live.len()).unwrap_or(u64::MAX) >= number
            }
            ServerReservations::Indexed(indexed) => {
                indexed.held().is_some_and(|held| held.has_at_least(number))
            }
        }
    }

    /// Whether the id that was asked for is held.
    fn has_id(&self) -> bool {
        match self {
            ServerReservations::Listed(listed) => listed.has_id,
            ServerReservations::Indexed(indexed) => indexed.held().is_some_and(HeldIndex::has_id),
        }
    }

    fn live_len(&self) -> usize {
        match self {
            ServerReservations::Listed(listed) => listed.live.len(),
            ServerReservations::Indexed(indexed) => indexed.held().map_or(0, HeldIndex::live_len),
        }
    }

    /// The place of a new one in the order of arrival.
    fn next_order_us(&self, now_us: u64) -> u64 {
        match self {
            ServerReservations::Listed(listed) => next_order_us(listed.newest_order_us, now_us),
            ServerReservations::Indexed(indexed) => {
                indexed.held().map_or(now_us, |held| held.next_order_us(now_us))
            }
        }
    }

    /// Whether some must be written anew, as a clock went back, or many are gone.
    fn must_write(&self) -> bool {
        match self {
            ServerReservations::Listed(listed) => listed.future > 0,
            ServerReservations::Indexed(indexed) => {
                indexed.held().is_some_and(HeldIndex::must_write)
            }
        }
    }
}

impl Holds for ServerReservations<'_> {
    fn total(&self) -> u128 {
        match self {
            ServerReservations::Listed(listed) => listed.live.total(),
            ServerReservations::Indexed(indexed) => indexed.held().map_or(0, HeldIndex::total),
        }
    }

    fn last_gone_us(&self) -> Option<u64> {
        match self {
            ServerReservations::Listed(listed) => listed.live.last_gone_us(),
            ServerReservations::Indexed(indexed) => indexed.held()?.last_gone_us(),
        }
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        match self {
            ServerReservations::Listed(listed) => listed.live.first_gone(enough),
            ServerReservations::Indexed(indexed) => match indexed.held() {
                Some(held) => held.first_gone(enough),
                None => Ok((None, 0)),
            },
        }
    }
}

/// How many reservations a call over several keys may still read. Each key by itself may hold so many that reading them takes
/// tens of milliseconds. If the next key holds more than is left, the call is refused. What it has read stays known, so that
/// calling again reads the rest.
pub struct ReadBudget;

/// What a call begins with: as many as one key may hold by default.
const MAX_READ: usize = 1 << 16;

/// What is left of it.
static LEFT: AtomicUsize = AtomicUsize::new(0);

impl ReadBudget {
    /// A call over several keys begins.
    pub fn refill() {
        LEFT.store(MAX_READ, Ordering::Relaxed);
    }

    /// Whether the reservations in `key`, which has no index, may be read. The first large key always may.
    pub fn check(key: &mut ReadKey) -> Result<(), Error> {
        let (len, left) = (key.len(), LEFT.load(Ordering::Relaxed));
        if len <= indexes::SMALL || len <= left || left == MAX_READ {
            return Ok(());
        }
        // Most of what the key holds may be events, which are not read.
        match key.lowest(ALL).is_some_and(|first| first.score == RESERVED) {
            true => Err(Error::Unread),
            false => Ok(()),
        }
    }

    /// So many reservations of a key were read, which has an index from now on. A short one is not counted, as it may be dropped
    /// before the next call.
    fn spend(number: usize) {
        if number > indexes::SMALL {
            LEFT.store(LEFT.load(Ordering::Relaxed).saturating_sub(number), Ordering::Relaxed);
        }
    }
}

/// Follows what somebody else did to a key.
///
/// Reading a large set takes long, and the next call may be anybody's. So the index of a value that RENAME or MOVE moves goes
/// with it, and a value that came as a whole is read at once, at the cost of the command that brought it.
pub fn key_changed(ctx: Context, name: KeyName, change: KeyChange) {
    let (db, key) = (ctx.db(), name.as_bytes());
    if change != KeyChange::MovedHere {
        indexes::drop_leaving();
    }
    match change {
        KeyChange::Edited => indexes::forget(db, key),
        KeyChange::MovedAway => indexes::move_away(db, key),
        KeyChange::MovedHere if indexes::move_here(db, key) => {}
        KeyChange::MovedHere | KeyChange::Filled => {
            indexes::forget(db, key);
            read_ahead(KeyContext { ctx, name, now_us: clock::command_time_us() });
        }
    }
}

/// Reads a key's reservations where they are many, so that the next call finds their index.
fn read_ahead(key_ctx: KeyContext) {
    let mut key = ReadKey::open(key_ctx.ctx, key_ctx.name);
    if matches!(key.value(), KeyValue::Zset) && key.len() > indexes::SMALL {
        // What is not ours is refused by the calls on it.
        let _ = ServerReservations::none().read(key_ctx, &mut key, None);
    }
}

/// A reservation as it is seen at `now_us`.
fn seen<'m>(one: &ReservationRef<'m>, now_us: u64) -> ReservationRef<'m> {
    match one.is_from_future(now_us) {
        true => zones(|zones| ReservationView::at(now_us, zones).seen(one)),
        false => *one,
    }
}

/// The member of the reservation `id`, if it is live: of those that are known, else from the open key.
pub fn find_live(
    known: Option<&ServerReservations>,
    key: &mut ReadKey,
    id: &[u8],
    now_us: u64,
) -> Result<Option<OwnedString>, Error> {
    match known {
        Some(ServerReservations::Indexed(indexed)) => {
            let one = indexed.held().and_then(|held| held.get_live(id));
            return Ok(one.map(|one| OwnedString::new(one.member().as_bytes())));
        }
        Some(ServerReservations::Listed(listed)) => {
            // If somebody wrote an id a second time, the first one counts, as in a search.
            let found = listed.members.iter().find(|member| id_of(member.as_bytes()) == Some(id));
            let Some(member) = found else { return Ok(None) };
            let live = reservation(member)?.live(now_us);
            return Ok(live.then(|| OwnedString::new(member.as_bytes())));
        }
        None => {}
    }
    let (from, to) = (prefix(id, b':'), prefix(id, b';'));
    let Some(found) = key.first_by_member(from.as_bytes(), to.as_bytes()) else { return Ok(None) };
    let live = reservation(&found.member)?.live(now_us);
    Ok(live.then_some(found.member))
}

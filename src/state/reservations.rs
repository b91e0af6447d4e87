//! The reservations of a key, read for one call: from the sorted set if they are few, otherwise from an index in memory.

use super::entries::{decode_ban, decode_reservation, ALL, RESERVED};
use super::{indexes, KeyContext};
use crate::environment::ZONES;
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::events::KeyChange;
use crate::redis::key::{Element, KeyValue, ReadKey};
use crate::redis::text::OwnedString;
use commands::error::Error;
use engine::ban::Ban;
use engine::held::{FirstGone, Hold, Holds, SortedHolds};
use engine::index::{next_order_us, HeldIndex, Index, IndexBuilder};
use engine::reservation::{
    id_of, HeldReservation, Id, Reservation, ReservationMember, ReservationRef, ReservationView,
};
use engine::rule::RuleText;
use engine::store;
use std::cell::Cell;

/// The reservations of a key. An index is put back when this is dropped.
#[derive(Default)]
pub struct ServerReservations<'c>(Kind<'c>);

enum Kind<'c> {
    Listed(ListedReservations),
    Indexed(IndexedReservations<'c>),
}
use Kind::{Indexed, Listed};

impl Default for Kind<'_> {
    fn default() -> Self {
        Listed(ListedReservations::default())
    }
}

/// Reservations that were read for this call alone.
#[derive(Default)]
struct ListedReservations {
    ban: Option<Ban>,
    now_us: u64,
    live: SortedHolds,
    /// The number of leases that are running.
    running: usize,
    newest_order_us: Option<u64>,
    has_id: bool,
    /// The members as they are stored, in the order of the set.
    members: Vec<OwnedString>,
    /// The number of leases that end later than one lease from now, because the clock was set back.
    future: usize,
    /// The number of reservations that are gone.
    gone: usize,
    /// The time at which the last reservation that this call added stops holding.
    added_until_us: Option<u64>,
}

/// An index that was taken out of [`indexes`] for this call.
struct IndexedReservations<'c> {
    held: HeldIndex,
    ctx: Context<'c>,
    name: KeyName<'c>,
    /// The number of elements in the set.
    len: usize,
}

/// The changes that cleaning up makes to reservations that the call did not ask for.
#[derive(Default)]
pub struct Cleaning {
    /// Members to remove: reservations that are gone, and those that start again.
    pub remove: Vec<OwnedString>,
    /// Members to add: one for each reservation that starts again.
    pub add: Vec<OwnedString>,
}

/// Reservations that were taken out because they are settled.
#[derive(Default)]
pub struct Settled {
    /// Their members.
    pub members: Vec<OwnedString>,
    /// The time until which the last of them would have held.
    pub until_us: Option<u64>,
}

impl<'c> ServerReservations<'c> {
    /// Returns the reservations in the index of the key, if there is one.
    pub fn from_index(
        key_ctx: KeyContext<'c>,
        key: &mut ReadKey<'c>,
        id: Option<&[u8]>,
    ) -> Option<ServerReservations<'c>> {
        if indexes::is_empty() {
            return None;
        }
        let len = key.len();
        let index = indexes::take(key_ctx.ctx.db(), key_ctx.name.as_bytes(), len)?;
        Some(ServerReservations::new(index, key_ctx, len, id))
    }

    fn new(index: Box<Index>, key_ctx: KeyContext<'c>, len: usize, id: Option<&[u8]>) -> Self {
        let KeyContext { ctx, name, now_us } = key_ctx;
        let held = ZONES.with(|zones| HeldIndex::at(index, now_us, id, zones));
        ServerReservations(Indexed(IndexedReservations { held, ctx, name, len }))
    }

    /// Reads all reservations in `key` within the budget, if there is one, and notes whether `id` is held. Also returns the
    /// first element after them.
    pub fn read(
        key_ctx: KeyContext<'c>,
        key: &mut ReadKey<'c>,
        id: Option<&[u8]>,
        budget: Option<&ReadBudget>,
    ) -> Result<(ServerReservations<'c>, Option<Element>), Error> {
        if let Some(budget) = budget {
            budget.check(key)?;
        }
        let mut listed =
            ListedReservations { now_us: key_ctx.now_us, ..ListedReservations::default() };
        let mut next_element = None;
        for element in key.ascending(ALL) {
            if element.score != RESERVED {
                next_element = Some(element);
                break;
            }
            match decode_ban(&element.member)? {
                None => listed.members.push(element.member),
                Some(_) if listed.ban.is_some() => return Err(Error::NotEntry),
                found => listed.ban = found,
            }
        }
        if listed.members.len() >= indexes::INDEX_FROM {
            if let Some(mut index) = build_index(&listed.members)? {
                if let Some(budget) = budget {
                    budget.spend(index.len());
                }
                index.set_ban(listed.ban);
                return Ok((ServerReservations::new(index, key_ctx, key.len(), id), next_element));
            }
        }
        listed.read_members(id)?;
        Ok((ServerReservations(Listed(listed)), next_element))
    }

    /// Returns the ban of the key.
    pub fn ban(&self) -> Option<Ban> {
        match &self.0 {
            Listed(listed) => listed.ban,
            Indexed(indexed) => indexed.held.index().ban(),
        }
    }

    /// Remembers the ban that was written.
    pub fn set_ban(&mut self, ban: Option<Ban>) {
        match &mut self.0 {
            Listed(listed) => listed.ban = ban,
            Indexed(indexed) => indexed.held.set_ban(ban),
        }
    }

    /// Returns the number of reservations, live and gone.
    pub fn len(&self) -> usize {
        match &self.0 {
            Listed(listed) => listed.members.len(),
            Indexed(indexed) => indexed.held.index().len(),
        }
    }

    /// Returns the number of elements in the set that are reservations or the ban.
    pub fn elements(&self) -> usize {
        self.len().saturating_add(usize::from(self.ban().is_some()))
    }

    /// Returns the number of leases that are running.
    pub fn running(&mut self) -> usize {
        match &mut self.0 {
            Listed(listed) => listed.running,
            Indexed(indexed) => indexed.held.running(),
        }
    }

    /// Returns the time until which some reservation needs the key. A lease from the future that is not rewritten may hold
    /// until its stored end, whatever the clock does.
    pub fn needed_until_us(&self) -> Option<u64> {
        match &self.0 {
            Listed(listed) => {
                let future = listed.future_ones().map(|reservation| reservation.gone_us).max();
                listed.live.last_gone_us().max(future).max(listed.added_until_us)
            }
            Indexed(indexed) => indexed.held.needed_until_us(),
        }
    }

    /// Drops the reservations that are gone, and rewrites those from before the clock was set back as they are seen now, in
    /// their old order. `None` if there is nothing to clean up.
    pub fn clean(&mut self) -> Option<Cleaning> {
        match &mut self.0 {
            Listed(listed) if listed.future == 0 && listed.gone == 0 => None,
            Listed(listed) => Some(listed.clean()),
            Indexed(indexed) => Some(indexed.clean()),
        }
    }

    /// Returns the reservation `id`, if it is live.
    pub fn find_live(&self, id: &[u8]) -> Option<Reservation<Id, RuleText>> {
        let reservation = match &self.0 {
            Listed(listed) => {
                let member = listed.position(id).and_then(|at| listed.members.get(at))?;
                let reservation = decode_reservation(member).ok();
                reservation.filter(|reservation| reservation.live(listed.now_us))
            }
            Indexed(indexed) => indexed.held.get_live(id),
        };
        reservation.map(|reservation| reservation.owned())
    }

    /// Takes out the live reservations with these ids, which may repeat, because they are applied, released or renewed.
    pub fn settle(&mut self, ids: &[&[u8]]) -> Settled {
        match &mut self.0 {
            Listed(listed) => listed.settle(ids),
            Indexed(indexed) => {
                let mut settled = Settled::default();
                ZONES.with(|zones| {
                    indexed.held.settle(ids, zones, |one| {
                        settled.members.push(OwnedString::new(one.member().as_bytes()));
                        settled.until_us = settled.until_us.max(Some(one.gone_us));
                    })
                });
                settled
            }
        }
    }

    /// Adds a new reservation.
    pub fn add(&mut self, reservation: &ReservationRef) {
        match &mut self.0 {
            Listed(listed) => {
                listed.added_until_us = listed.added_until_us.max(Some(reservation.gone_us))
            }
            Indexed(indexed) => indexed.held.add(reservation),
        }
    }

    /// Returns the live reservations, the oldest first.
    pub fn list_live(&self) -> Vec<HeldReservation> {
        match &self.0 {
            Listed(listed) => {
                let live = listed.members.iter().flat_map(decode_reservation);
                let live = live.filter(|reservation| reservation.live(listed.now_us));
                HeldReservation::oldest_first(
                    live.map(|reservation| HeldReservation::of(&reservation, listed.now_us))
                        .collect(),
                )
            }
            Indexed(indexed) => indexed.held.list_live(),
        }
    }

    /// Remembers how many elements the set has after the call. An index is used again only if the set still has that many.
    pub fn set_elements(&mut self, elements: usize) {
        if let Indexed(indexed) = &mut self.0 {
            indexed.len = elements;
        }
    }
}

impl Drop for ServerReservations<'_> {
    fn drop(&mut self) {
        // Most keys have no index, and nothing to take.
        let Indexed(_) = self.0 else { return };
        let Indexed(indexed) = std::mem::take(&mut self.0) else { return };
        let IndexedReservations { held, ctx, name, len } = indexed;
        let is_changed = held.is_changed();
        indexes::put(ctx, name.as_bytes(), held.into_index(), len, is_changed);
    }
}

/// Builds an index of these members. `None` if an id occurs twice, which only another program can have written: an index
/// knows each id once.
fn build_index(members: &[OwnedString]) -> Result<Option<Box<Index>>, Error> {
    let (mut builder, mut is_unique) = (IndexBuilder::default(), true);
    for member in members {
        is_unique &= builder.add(&decode_reservation(member)?);
    }
    Ok(is_unique.then(|| builder.build()))
}

impl ListedReservations {
    /// Decodes the members, and notes what they hold and whether `id` is among them.
    fn read_members(&mut self, id: Option<&[u8]>) -> Result<(), Error> {
        let now_us = self.now_us;
        let mut holds = Vec::with_capacity(self.members.len());
        for member in &self.members {
            let reservation = decode_reservation(member)?;
            self.newest_order_us = self.newest_order_us.max(Some(reservation.order_us));
            let live = reservation.live(now_us);
            self.has_id |= live && id == Some(reservation.id);
            self.running = self.running.saturating_add(usize::from(reservation.runs(now_us)));
            if reservation.is_from_future(now_us) {
                self.future = self.future.saturating_add(1);
            } else if !live {
                self.gone = self.gone.saturating_add(1);
            }
            if live {
                holds.push(Hold::of(&see(&reservation, now_us)));
            }
        }
        self.live = holds.into_iter().collect();
        Ok(())
    }

    /// Returns the reservations whose lease ends later than one lease from now.
    fn future_ones(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        let members = if self.future > 0 { self.members.as_slice() } else { &[] };
        let decoded = members.iter().flat_map(decode_reservation);
        decoded.filter(|reservation| reservation.is_from_future(self.now_us))
    }

    /// Returns the position of the member with this id. The set sorts members by the length of the id and then by the id. If
    /// another program wrote an id a second time, the first one counts.
    fn position(&self, id: &[u8]) -> Option<usize> {
        let is_before = |member: &OwnedString| {
            id_of(member.as_bytes()).is_some_and(|other| (other.len(), other) < (id.len(), id))
        };
        let at = self.members.partition_point(is_before);
        let member = self.members.get(at)?;
        (id_of(member.as_bytes()) == Some(id)).then_some(at)
    }

    fn settle(&mut self, ids: &[&[u8]]) -> Settled {
        let mut positions: Vec<usize> = ids.iter().filter_map(|id| self.position(id)).collect();
        positions.sort_unstable();
        positions.dedup();
        let mut positions = positions.into_iter().peekable();
        let mut settled = Settled::default();
        for (at, member) in std::mem::take(&mut self.members).into_iter().enumerate() {
            let is_named = positions.next_if_eq(&at).is_some();
            match decode_reservation(&member) {
                Ok(reservation) if is_named && reservation.live(self.now_us) => {
                    self.live.remove(Hold::of(&see(&reservation, self.now_us)));
                    let is_future = usize::from(reservation.is_from_future(self.now_us));
                    self.future = self.future.saturating_sub(is_future);
                    settled.until_us = settled.until_us.max(Some(reservation.gone_us));
                    settled.members.push(member);
                }
                _ => self.members.push(member),
            }
        }
        settled
    }

    fn clean(&mut self) -> Cleaning {
        let mut cleaning = Cleaning::default();
        (self.future, self.gone) = (0, 0);
        for member in std::mem::take(&mut self.members) {
            let Ok(reservation) = decode_reservation(&member) else { continue };
            if reservation.is_from_future(self.now_us) {
                let reservation = see(&reservation, self.now_us).member();
                cleaning.add.push(OwnedString::new(reservation.as_bytes()));
            } else if reservation.live(self.now_us) {
                continue;
            }
            cleaning.remove.push(member);
        }
        cleaning
    }
}

impl IndexedReservations<'_> {
    fn clean(&mut self) -> Cleaning {
        let mut cleaning = Cleaning::default();
        let member = |text: &ReservationMember| OwnedString::new(text.as_bytes());
        let cleaned = |old: &ReservationMember, new: Option<&ReservationMember>| {
            cleaning.remove.push(member(old));
            cleaning.add.extend(new.map(member));
        };
        ZONES.with(|zones| self.held.clean(zones, cleaned));
        cleaning
    }
}

impl store::Reservations for ServerReservations<'_> {
    fn has_id(&self) -> bool {
        match &self.0 {
            Listed(listed) => listed.has_id,
            Indexed(indexed) => indexed.held.has_id(),
        }
    }

    fn live_len(&self) -> usize {
        match &self.0 {
            Listed(listed) => listed.live.len(),
            Indexed(indexed) => indexed.held.live_len(),
        }
    }

    fn next_order_us(&self, now_us: u64) -> u64 {
        match &self.0 {
            Listed(listed) => next_order_us(listed.newest_order_us, now_us),
            Indexed(indexed) => indexed.held.next_order_us(now_us),
        }
    }

    fn must_write(&self) -> bool {
        match &self.0 {
            Listed(listed) => listed.future > 0,
            Indexed(indexed) => indexed.held.must_write(),
        }
    }
}

impl Holds for ServerReservations<'_> {
    fn total(&self) -> u128 {
        match &self.0 {
            Listed(listed) => listed.live.total(),
            Indexed(indexed) => indexed.held.total(),
        }
    }

    fn last_gone_us(&self) -> Option<u64> {
        match &self.0 {
            Listed(listed) => listed.live.last_gone_us(),
            Indexed(indexed) => indexed.held.last_gone_us(),
        }
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        match &self.0 {
            Listed(listed) => listed.live.first_gone(enough),
            Indexed(indexed) => indexed.held.first_gone(enough),
        }
    }
}

/// Bounds the number of reservations that a call over several keys reads, because reading those of a single key may take
/// tens of milliseconds. If the next key holds more than what is left of the budget, the call is refused. What has been read
/// stays in memory, so another call reads the rest.
pub struct ReadBudget(Cell<usize>);

/// The budget of a call: the number of reservations that one key may hold by default.
const MAX_READ: usize = 1 << 16;

impl Default for ReadBudget {
    fn default() -> Self {
        ReadBudget(Cell::new(MAX_READ))
    }
}

impl ReadBudget {
    /// Refuses to read the reservations in `key`, which has no index, if they exceed the budget. The first large key never
    /// does.
    fn check(&self, key: &mut ReadKey) -> Result<(), Error> {
        let (len, left) = (key.len(), self.0.get());
        if len <= indexes::SMALL || len <= left || left == MAX_READ {
            return Ok(());
        }
        // The key may hold mostly events, which are not read.
        match key.lowest(ALL).is_some_and(|first| first.score == RESERVED) {
            true => Err(Error::Unread),
            false => Ok(()),
        }
    }

    /// Charges for the reservations that were read into a new index. A small index is free, because it may be dropped before
    /// the next call.
    fn spend(&self, number: usize) {
        if number > indexes::SMALL {
            self.0.set(self.0.get().saturating_sub(number));
        }
    }
}

/// Updates the indexes after a key was changed by something other than the module.
///
/// Reading a large set takes long, and the next call may come from any client. So RENAME and MOVE move the index with the
/// value, and a value that was written as a whole is read right away, at the expense of the command that wrote it.
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

/// Reads the reservations of a large key, so that the next call finds their index.
fn read_ahead(key_ctx: KeyContext) {
    let mut key = ReadKey::open(key_ctx.ctx, key_ctx.name);
    if matches!(key.value(), KeyValue::Zset) && key.len() > indexes::SMALL {
        // A foreign set is refused by the next call on it.
        let _ = ServerReservations::read(key_ctx, &mut key, None, None);
    }
}

/// Returns a reservation as seen at `now_us`: one from the future ends one lease from now.
fn see<'m>(reservation: &ReservationRef<'m>, now_us: u64) -> ReservationRef<'m> {
    match reservation.is_from_future(now_us) {
        true => ZONES.with(|zones| ReservationView::at(now_us, zones).see(reservation)),
        false => *reservation,
    }
}

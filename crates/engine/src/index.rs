//! An index of the reservations of one key, by id and by the time at which they are gone. Running sums let a call decide in
//! O(log n).
//!
//! ```text
//! Index                                              the reservations, live and gone
//!   by_id        hash table of positions             is this id held?
//!   duplicates   map of positions by member           which others have the same id?
//!   order        tree by the times they are gone     how much is held? when will enough be gone?
//!   future       by the starts of their leases       which are seen to end earlier than stored?
//!   lease_ends   a map, once it is asked for         how many leases run?
//! Live                                               the live ones, at one moment
//! ```

mod lease_ends;
mod tree;

use crate::ban::Ban;
use crate::reservation::{member_prefix, Hold, OwnedReservation, Reservation, ReservationRef};
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use lease_ends::LeaseEnds;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use tree::{Position, Tree};

/// A reservation that owns its id. It shares its rule with others of the index.
type IndexedReservation = Reservation<Box<[u8]>, Arc<[u8]>>;

/// Reservations that a call has settled: most calls settle one, which takes no memory of its own.
pub type Settled = SmallVec<[OwnedReservation; 1]>;

/// The reservations in their positions.
type Slots = Slab<IndexedReservation>;

fn member_at(reservations: &Slots, position: Position) -> Box<[u8]> {
    let member = reservations.get(position as usize).map(Reservation::member);
    member.map_or_else(Box::default, |member| member.as_bytes().into())
}

fn id_at(reservations: &Slots, position: Position) -> &[u8] {
    reservations.get(position as usize).map_or(&[], |reservation| &reservation.id)
}

/// The part of the index that a call reads if it changes nothing, as most tries for waiting calls do. It fills one cache
/// line: if many keys are tried in turn, each cache line that is read costs more than the rest of the work on the index.
#[derive(Debug, Default)]
#[repr(align(64))]
struct IndexSummary {
    /// The sum of all reservations except those in `future`.
    total: u128,
    /// The hold of the reservation that is gone first, except those in `future`.
    first_gone: Hold,
    /// The time at which the last reservation is gone, except those in `future`. 0 if there is none.
    last_gone_us: u64,
    /// An upper bound of the start of all leases except those in `future`.
    latest_start_us: u64,
    len: usize,
    /// The ban of the key. Few keys have one.
    ban: Option<Box<Ban>>,
}

const _: () = assert!(size_of::<IndexSummary>() == 64, "a summary fills one line of the cache");

/// The reservations of one key, live and gone.
#[derive(Debug, Default)]
pub struct Index {
    summary: IndexSummary,
    reservations: Slots,
    order: Tree,
    /// The reservations whose lease begins in the future, because the clock was set back, by the start of their lease. They
    /// are not in `order`.
    future: BTreeSet<(u64, Position)>,
    /// The positions by the hash of the id. The hash has a secret, because clients choose the ids. Each index has its
    /// own.
    by_id: HashTable<Position>,
    /// Another program may have written an id more than once. Then `by_id` has the position of the first member with the id,
    /// and this has the positions of the others, by their members.
    duplicates: BTreeMap<Box<[u8]>, Position>,
    secret: RandomState,
    rules: BTreeSet<Arc<[u8]>>,
    /// The length of all ids together.
    id_bytes: usize,
    /// An upper bound of the arrivals of all reservations.
    latest_arrival_us: Option<u64>,
    /// The ends of all leases. `None` until a call asks how many run.
    lease_ends: Option<LeaseEnds>,
}

impl Index {
    pub fn len(&self) -> usize {
        self.summary.len
    }

    pub fn is_empty(&self) -> bool {
        self.summary.len == 0
    }

    /// Returns the approximate size in bytes.
    pub fn bytes(&self) -> usize {
        /// The bytes of a reservation, and of its entry in the tree, with room for further ones.
        const PER_RESERVATION: usize = size_of::<IndexedReservation>() + 40;

        /// The bytes that the allocator adds to an id.
        const PER_ID: usize = 16;

        const PER_RULE: usize = 64;

        /// The bytes of a member of usual length and its place in the map.
        const PER_DUPLICATE: usize = 128;

        const PER_FUTURE: usize = 32;
        let ids = self.len().saturating_mul(PER_ID).saturating_add(self.id_bytes);
        let rules = self.rules.len().saturating_mul(PER_RULE);
        let duplicates = self.duplicates.len().saturating_mul(PER_DUPLICATE);
        let future = self.future.len().saturating_mul(PER_FUTURE);
        let by_id = self.by_id.allocation_size();
        let ends = self.lease_ends.as_ref().map_or(0, LeaseEnds::bytes);
        let reservations = self.reservations.capacity().saturating_mul(PER_RESERVATION);
        [reservations, ids, rules, duplicates, future, by_id, ends]
            .into_iter()
            .fold(0, usize::saturating_add)
    }

    pub fn ban(&self) -> Option<Ban> {
        self.summary.ban.as_deref().copied()
    }

    pub fn set_ban(&mut self, ban: Option<Ban>) {
        self.summary.ban = ban.map(Box::new);
    }

    /// Adds a reservation. Returns false, and adds nothing, if it is in the index already or the index is full.
    pub fn insert(&mut self, reservation: &ReservationRef) -> bool {
        let Some(position) = self.insert_unordered(reservation) else { return false };
        self.order.insert((reservation.gone_us, position), reservation.quantity);
        if let Some(ends) = &mut self.lease_ends {
            ends.insert(reservation.lease_end_us);
        }
        let summary = &mut self.summary;
        // All others are in `future`.
        let is_only = summary.len == self.future.len().saturating_add(1);
        if is_only || reservation.gone_us < summary.first_gone.gone_us {
            summary.first_gone = Hold::from(reservation);
        }
        summary.last_gone_us = summary.last_gone_us.max(reservation.gone_us);
        true
    }

    /// Adds a reservation to everything except `order` and `lease_ends`, and returns its position. Returns `None`, and adds
    /// nothing, if it is in the index already or the index is full.
    fn insert_unordered(&mut self, reservation: &ReservationRef) -> Option<Position> {
        let same_id = self.get(reservation.id);
        let is_duplicate = same_id.is_some();
        if same_id.is_some_and(|same_id| self.contains(reservation, &same_id)) {
            return None;
        }
        let (id, rule) = (reservation.id.into(), self.rule(reservation.rule));
        let Reservation { quantity, lease_ms, gone_us, lease_end_us, arrival_us, .. } =
            *reservation;
        let owned = Reservation { id, quantity, lease_ms, gone_us, lease_end_us, arrival_us, rule };
        let place = self.reservations.vacant_entry();
        let position = Position::try_from(place.key()).ok()?;
        place.insert(owned);
        match is_duplicate {
            false => self.link(position),
            true => self.link_duplicate(reservation.id, position),
        }
        self.latest_arrival_us = self.latest_arrival_us.max(Some(arrival_us));
        self.id_bytes = self.id_bytes.saturating_add(reservation.id.len());
        let summary = &mut self.summary;
        summary.latest_start_us = summary.latest_start_us.max(reservation.start_us());
        summary.total = summary.total.saturating_add(u128::from(quantity));
        summary.len = summary.len.saturating_add(1);
        Some(position)
    }

    /// Returns whether a reservation is in the index. `same_id` is the one that [`Index::get`] returns for its id.
    #[cold]
    fn contains(&self, reservation: &ReservationRef, same_id: &ReservationRef) -> bool {
        let member = reservation.member();
        member.as_bytes() == same_id.member().as_bytes()
            || self.duplicates.contains_key(member.as_bytes())
    }

    /// Adds a reservation, whose id no other one has, to `by_id`.
    #[inline(always)]
    fn link(&mut self, position: Position) {
        let Index { reservations, by_id, secret, .. } = self;
        let hash = |position: &Position| secret.hash_one(id_at(reservations, *position));
        by_id.insert_unique(hash(&position), position, hash);
    }

    /// Adds a reservation whose id others have: to `by_id` if its member is the first of them, or else to `duplicates`.
    #[cold]
    fn link_duplicate(&mut self, id: &[u8], mut position: Position) {
        let Index { reservations, by_id, duplicates, secret, .. } = self;
        let is_it = |other: &Position| id_at(reservations, *other) == id;
        let Some(linked) = by_id.find_mut(secret.hash_one(id), is_it) else { return };
        if member_at(reservations, position) < member_at(reservations, *linked) {
            std::mem::swap(linked, &mut position);
        }
        duplicates.insert(member_at(reservations, position), position);
    }

    /// Moves the next reservation with an id, if there is one, from `duplicates` to `by_id`.
    #[cold]
    fn link_next(&mut self, id: &[u8]) {
        use std::ops::Bound::{Included, Unbounded};
        let prefix = member_prefix(id);
        let from = (Included(prefix.as_bytes()), Unbounded);
        let next = self.duplicates.range::<[u8], _>(from).next().map(|(member, _)| member.clone());
        let next = next.filter(|member| member.starts_with(prefix.as_bytes()));
        if let Some(position) = next.and_then(|member| self.duplicates.remove(&member)) {
            self.link(position);
        }
    }

    fn update_first_and_last_gone(&mut self) {
        self.summary.first_gone = self.first_gone().map(Hold::from).unwrap_or_default();
        self.summary.last_gone_us = self.order.last_gone_us();
    }

    /// Returns the reservation that is gone first.
    fn first_gone(&self) -> Option<&IndexedReservation> {
        let (_, position) = self.order.first()?;
        self.reservations.get(position as usize)
    }

    pub fn remove(&mut self, id: &[u8]) -> Option<OwnedReservation> {
        let position = self.unlink(id, |_| true)?;
        self.remove_at(position)
    }

    /// Removes the reservations with these ids that are live at `now_us`, and adds them to `settled`. Ids may repeat.
    pub fn settle(&mut self, ids: &[&[u8]], now_us: u64, settled: &mut Settled) {
        /// To remove this many, building the tree again is faster than removing one after the other.
        const MANY: usize = 1_024;
        let is_live = |one: &IndexedReservation| one.is_live(now_us);
        if ids.len() < MANY.max(self.len() / 4) {
            for id in ids {
                if let Some(old) = self.unlink(id, is_live).and_then(|at| self.remove_at(at)) {
                    settled.push(old);
                }
            }
            return;
        }
        settled.reserve(ids.len().min(self.len()));
        for id in ids {
            if let Some(old) = self.unlink(id, is_live).and_then(|at| self.take_out(at)) {
                settled.push(old.borrowed().owned());
            }
        }
        self.separate_again(now_us);
        if self.is_sparse() {
            self.rebuild();
        }
    }

    /// Removes the reservation with this id from `by_id` if it meets `condition`, and returns its position.
    #[inline(always)]
    fn unlink(
        &mut self,
        id: &[u8],
        condition: impl Fn(&IndexedReservation) -> bool,
    ) -> Option<Position> {
        let Index { by_id, reservations, secret, .. } = self;
        let is_it = |position: &Position| id_at(reservations, *position) == id;
        let place = by_id.find_entry(secret.hash_one(id), is_it).ok()?;
        reservations.get(*place.get() as usize).filter(|one| condition(one))?;
        let (position, _) = place.remove();
        if !self.duplicates.is_empty() {
            self.link_next(id);
        }
        Some(position)
    }

    /// Removes this reservation, which may share its id, and returns it if it was there.
    pub fn remove_exactly(&mut self, one: &ReservationRef) -> Option<OwnedReservation> {
        if !self.duplicates.is_empty() {
            if let Some(position) = self.duplicates.remove(one.member().as_bytes()) {
                return self.remove_at(position);
            }
        }
        self.remove(one.id)
    }

    /// Removes the reservation in a position, which `by_id` no longer has.
    fn remove_at(&mut self, position: Position) -> Option<OwnedReservation> {
        let old = self.take_out(position)?;
        let was_separated = self.future.remove(&(old.start_us(), position));
        if !was_separated {
            self.order.remove((old.gone_us, position));
            let summary = &mut self.summary;
            summary.total = summary.total.saturating_sub(u128::from(old.quantity));
            if [summary.first_gone.gone_us, summary.last_gone_us].contains(&old.gone_us) {
                self.update_first_and_last_gone();
            }
        }
        if self.is_sparse() {
            self.rebuild();
        }
        Some(old.borrowed().owned())
    }

    /// Takes a reservation out of its position. The caller removes it from `by_id`, and from `future`, or from `order` and
    /// the total.
    #[inline(always)]
    fn take_out(&mut self, position: Position) -> Option<IndexedReservation> {
        let old = self.reservations.try_remove(position as usize)?;
        self.summary.len = self.summary.len.saturating_sub(1);
        self.id_bytes = self.id_bytes.saturating_sub(old.id.len());
        if let Some(ends) = &mut self.lease_ends {
            ends.remove(old.lease_end_us);
        }
        // The rule is only here and in the set, so no other reservation has it.
        if Arc::strong_count(&old.rule) <= 2 {
            self.rules.remove(&old.rule);
        }
        Some(old)
    }

    /// Returns whether most of its memory is for reservations that were removed.
    fn is_sparse(&self) -> bool {
        /// An index with room for this many is never sparse.
        const FEW: usize = 32;
        let room = self.reservations.capacity();
        room > FEW && self.len() < room / 4
    }

    /// Moves all reservations to new positions, which frees the memory of removed ones. Afterwards none is separated, as in
    /// a new index.
    fn rebuild(&mut self) {
        let old = std::mem::take(&mut self.reservations);
        self.reservations = Slots::with_capacity(old.len());
        self.by_id = HashTable::with_capacity(old.len());
        let has_duplicates = !std::mem::take(&mut self.duplicates).is_empty();
        for (_, one) in old {
            let duplicate_id =
                Some(&one.id).filter(|id| has_duplicates && self.get(id).is_some()).cloned();
            // There are no more than before, so each has a position.
            let Ok(position) = Position::try_from(self.reservations.insert(one)) else { continue };
            match duplicate_id {
                None => self.link(position),
                Some(id) => self.link_duplicate(&id, position),
            }
        }
        self.separate_again(u64::MAX);
    }

    /// Returns the reservation `id`, live or gone. If there are several, this is the one with the first member.
    pub fn get(&self, id: &[u8]) -> Option<ReservationRef<'_>> {
        let is_it = |position: &Position| id_at(&self.reservations, *position) == id;
        let position = *self.by_id.find(self.secret.hash_one(id), is_it)?;
        self.reservations.get(position as usize).map(IndexedReservation::borrowed)
    }

    /// Returns all reservations, in any order.
    pub fn iter(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        self.reservations.iter().map(|(_, reservation)| reservation.borrowed())
    }

    /// Returns whether [`Index::count_running`] was called before, so that the ends of all leases are in memory.
    pub fn has_lease_ends(&self) -> bool {
        self.lease_ends.is_some()
    }

    /// Returns the number of reservations whose lease runs at `now_us`.
    pub fn count_running(&mut self, now_us: u64) -> usize {
        let reservations = &self.reservations;
        let ends = self.lease_ends.get_or_insert_with(|| {
            let mut ends = LeaseEnds::default();
            reservations.iter().for_each(|(_, reservation)| ends.insert(reservation.lease_end_us));
            ends
        });
        self.summary.len.saturating_sub(ends.count_ended(now_us))
    }

    /// Returns the sum and the number of the reservations that are gone at `us`.
    fn sum_and_count_gone(&self, us: u64) -> (u128, usize) {
        // Usually none is gone.
        if self.none_gone(us) {
            return (0, 0);
        }
        self.order.sum_and_count_gone(us)
    }

    /// Returns the reservation that is gone first, if it is gone at `now_us`.
    pub fn first_gone_by(&self, now_us: u64) -> Option<ReservationRef<'_>> {
        if self.none_gone(now_us) {
            return None;
        }
        self.first_gone().map(IndexedReservation::borrowed)
    }

    /// Returns whether all reservations still hold at `us`.
    fn none_gone(&self, us: u64) -> bool {
        self.summary.len == 0 || self.summary.first_gone.gone_us > us
    }

    /// Separates the reservations whose lease begins after `now_us`, because the clock was set back, and returns whether
    /// there are any. O(n) for the first call after that, and whenever many of them are no longer in the future.
    #[inline]
    pub fn separate_future(&mut self, now_us: u64) -> bool {
        (self.summary.latest_start_us > now_us || !self.future.is_empty())
            && self.update_future(now_us)
    }

    /// See [`Index::separate_future`].
    #[cold]
    fn update_future(&mut self, now_us: u64) -> bool {
        /// Up to this many are put back into the order one by one.
        const FEW: usize = 1_000;
        let is_over = ..=(now_us, Position::MAX);
        if self.summary.latest_start_us > now_us || self.future.range(is_over).nth(FEW).is_some() {
            self.separate_again(now_us);
        }
        while let Some((start_us, position)) = self.future.first().copied() {
            if start_us > now_us {
                return true;
            }
            self.future.pop_first();
            let Some(one) = self.reservations.get(position as usize) else { continue };
            self.order.insert((one.gone_us, position), one.quantity);
            let summary = &mut self.summary;
            summary.total = summary.total.saturating_add(u128::from(one.quantity));
            summary.latest_start_us = summary.latest_start_us.max(start_us);
            self.update_first_and_last_gone();
        }
        false
    }

    /// Separates the reservations whose lease begins after `now_us` again, by looking at all of them.
    fn separate_again(&mut self, now_us: u64) {
        let (mut future, mut order) = (Vec::new(), Vec::with_capacity(self.len()));
        let summary = &mut self.summary;
        (summary.total, summary.latest_start_us) = (0, 0);
        for (position, one) in &self.reservations {
            let Ok(position) = Position::try_from(position) else { continue };
            if one.is_from_future(now_us) {
                future.push((one.start_us(), position));
            } else {
                order.push(((one.gone_us, position), one.quantity));
                summary.total = summary.total.saturating_add(u128::from(one.quantity));
                summary.latest_start_us = summary.latest_start_us.max(one.start_us());
            }
        }
        self.future = future.into_iter().collect();
        self.order = Tree::new(order.into_iter());
        self.update_first_and_last_gone();
    }

    /// Returns the reservations that [`Index::separate_future`] has separated.
    pub fn future(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        let one = |(_, position): &(u64, Position)| self.reservations.get(*position as usize);
        self.future.iter().filter_map(one).map(IndexedReservation::borrowed)
    }

    /// Returns the arrival of a new reservation: `now_us`, or a microsecond after the latest one if that is not before
    /// `now_us`, because it is of the same microsecond or the clock was set back.
    pub fn next_arrival_us(&self, now_us: u64) -> u64 {
        next_arrival_us(self.latest_arrival_us, now_us)
    }

    /// Returns the live reservations at `now_us`, except those that [`Index::separate_future`] has separated.
    pub fn live(&self, now_us: u64) -> Live<'_> {
        let (gone, gone_len) = self.sum_and_count_gone(now_us);
        Live { index: self, now_us, gone, gone_len }
    }

    fn rule(&mut self, text: &[u8]) -> Arc<[u8]> {
        if let Some(rule) = self.rules.get(text) {
            return Arc::clone(rule);
        }
        let rule: Arc<[u8]> = text.into();
        self.rules.insert(Arc::clone(&rule));
        rule
    }
}

/// Builds an index from all reservations of a key. This is much faster than inserting one after the other.
#[derive(Debug, Default)]
pub struct IndexBuilder(Box<Index>);

impl IndexBuilder {
    /// Adds a reservation. Returns false, and adds nothing, if it is in the index already or the index is full.
    pub fn add(&mut self, reservation: &ReservationRef) -> bool {
        self.0.insert_unordered(reservation).is_some()
    }

    pub fn build(mut self) -> Box<Index> {
        let entries = self.0.reservations.iter().filter_map(|(position, one)| {
            let position = Position::try_from(position).ok()?;
            Some(((one.gone_us, position), one.quantity))
        });
        self.0.order = Tree::new(entries);
        self.0.update_first_and_last_gone();
        self.0
    }
}

/// See [`Index::next_arrival_us`].
pub fn next_arrival_us(latest_arrival_us: Option<u64>, now_us: u64) -> u64 {
    latest_arrival_us.map_or(0, |newest_us| newest_us.saturating_add(1)).max(now_us)
}

/// The live reservations of an index at one moment.
#[derive(Debug)]
pub struct Live<'i> {
    index: &'i Index,
    now_us: u64,
    /// The sum of the reservations that are gone.
    gone: u128,
    gone_len: usize,
}

/// The time at which enough is gone, and the sum of those that were gone before.
pub type EnoughGone = (Option<u64>, u128);

impl Live<'_> {
    pub fn len(&self) -> usize {
        self.index.len().saturating_sub(self.index.future.len()).saturating_sub(self.gone_len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn total(&self) -> u128 {
        self.index.summary.total.saturating_sub(self.gone)
    }

    /// Returns the sum of those that are gone at `us`.
    pub fn gone_by(&self, us: u64) -> u128 {
        self.index.sum_and_count_gone(us).0.saturating_sub(self.gone)
    }

    /// Returns the time at which the last of them is gone. `None` if there is none.
    pub fn last_gone_us(&self) -> Option<u64> {
        Some(self.index.summary.last_gone_us).filter(|gone_us| *gone_us > self.now_us)
    }

    /// Returns the first of them, in the order in which they are gone, for which `enough` is true. `enough` gets the time at
    /// which it is gone and the sum of all that are gone by then, and stays true once it is. If there is no such
    /// reservation, the sum is that of all.
    ///
    /// # Errors
    ///
    /// That of `enough`.
    pub fn find_enough_gone<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<EnoughGone, E> {
        let index = self.index;
        // Usually the first reservation is live and enough.
        let first_gone = index.summary.first_gone;
        if first_gone.gone_us > self.now_us
            && enough(first_gone.gone_us, u128::from(first_gone.quantity))?
        {
            return Ok((Some(first_gone.gone_us), 0));
        }
        // The sums in the tree include the reservations that are gone.
        let first_enough = index.order.first_where(|gone_us, with_it| {
            Ok(gone_us > self.now_us && enough(gone_us, with_it.saturating_sub(self.gone))?)
        })?;
        Ok(match first_enough {
            Some((gone_us, before)) => (Some(gone_us), before.saturating_sub(self.gone)),
            None => (None, self.total()),
        })
    }
}

#[cfg(test)]
mod tests;

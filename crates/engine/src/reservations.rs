//! The reservations of a key at one moment, and the quantities that they hold, in the order in which they stop holding: most
//! at the end of their lease, and those with COUNTLAPSED later.
//!
//! Few are read from the key for each call. Many are in an [`Index`] that stays in memory between calls.

use crate::ban::Ban;
use crate::calendar::Zones;
pub use crate::index::Settled;
use crate::index::{next_arrival_us, EnoughGone, Index, IndexBuilder, Live};
use crate::reservation::{
    HeldReservation, Hold, OwnedReservation, Reservation, ReservationMember, ReservationRef,
    ReservationView,
};
use smallvec::SmallVec;

/// A key with at least this many reservations has an index. Below that it is faster to read them in each call.
pub const INDEX_FROM: usize = 8;

/// The most gone reservations that a call drops from an index. If there are this many, a denied call drops them too.
pub const MAX_GONE_DROPPED: usize = 64;

/// The most reservations in an index that a call rewrites after the clock was set back.
pub const MAX_HEALED_LEASES: usize = 256;

/// The reservations of a key at one moment, for one call, and the ban that is stored with them.
///
/// A call decides before it changes anything. So call `total`, `live_len`, `last_gone_us` and `find_enough_gone` only before
/// [`Reservations::add`] and [`Reservations::settle`].
///
/// ```
/// use redis_ratelimit_engine::calendar::Zones;
/// use redis_ratelimit_engine::reservations::Reservations;
/// use redis_ratelimit_engine::reservation::Reservation;
///
/// // 2 until second 30, and 1 until second 90.
/// let held = |id: &[u8], quantity, lease_end_us| {
///     let (lease_ms, gone_us, arrival_us) = (20_000, lease_end_us, lease_end_us);
///     Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule: &b"-"[..] }.owned()
/// };
/// let all = vec![held(b"a", 2, 30_000_000), held(b"b", 1, 90_000_000)];
/// let reservations = Reservations::from_list(all, None, 80_000_000, None, &mut Zones::default());
/// assert_eq!((reservations.len(), reservations.live_len(), reservations.total()), (2, 1, 1));
/// assert_eq!(reservations.last_gone_us(), Some(90_000_000));
/// ```
#[derive(Debug, Default)]
pub struct Reservations {
    now_us: u64,
    /// The reservations as they are stored, live and gone.
    stored: ListOrIndex,
    ban: Option<Ban>,
    is_id_held: bool,
    /// The member with the id of the call, if that reservation is gone. Cleaning drops it, so that the id is free.
    gone_id: Option<Box<ReservationMember>>,
    /// Some leases begin after now, because the clock was set back. They end one lease from now, rewritten or not.
    has_future: bool,
    /// The holds of the live reservations in a list, or of those from the future in an index, as the call found them: it
    /// decides before it changes any.
    holds: SortedHolds,
    is_changed: bool,
}

#[derive(Debug)]
enum ListOrIndex {
    /// By the length of their id and then by the id. Another program may have written an id a second time. Then only the
    /// first one is found by its id.
    List(Vec<OwnedReservation>),
    Index(Box<Index>),
}

impl Default for ListOrIndex {
    fn default() -> ListOrIndex {
        ListOrIndex::List(Vec::new())
    }
}

impl ListOrIndex {
    fn get(&self, id: &[u8]) -> Option<ReservationRef<'_>> {
        match self {
            ListOrIndex::List(all) => {
                let one = all.get(position(all, id))?;
                (one.id.as_bytes() == id).then(|| one.borrowed())
            }
            ListOrIndex::Index(index) => index.get(id),
        }
    }

    /// Returns all reservations, in any order.
    fn iter(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        let (list, index) = match self {
            ListOrIndex::List(all) => (Some(all), None),
            ListOrIndex::Index(index) => (None, Some(index)),
        };
        let listed = list.into_iter().flatten().map(Reservation::borrowed);
        listed.chain(index.into_iter().flat_map(|index| index.iter()))
    }
}

/// Returns the position in a list of the first reservation with this id, or of a new one.
fn position(all: &[OwnedReservation], id: &[u8]) -> usize {
    all.partition_point(|one| (one.id.as_bytes().len(), one.id.as_bytes()) < (id.len(), id))
}

impl Reservations {
    /// Returns the reservations of a key as they are seen at `now_us`, and notes whether `id` is held. `all` has each of
    /// them, in the order of their members.
    pub fn from_list(
        all: Vec<OwnedReservation>,
        ban: Option<Ban>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> Reservations {
        if all.len() >= INDEX_FROM {
            let mut builder = IndexBuilder::default();
            if all.iter().all(|one| builder.add(&one.borrowed())) {
                return Reservations::new(
                    ListOrIndex::Index(builder.build()),
                    ban,
                    now_us,
                    id,
                    zones,
                );
            }
        }
        Reservations::new(ListOrIndex::List(all), ban, now_us, id, zones)
    }

    /// Returns the reservations in an index as [`Reservations::from_list`] does.
    pub fn from_index(
        index: Box<Index>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> Reservations {
        let ban = index.ban();
        Reservations::new(ListOrIndex::Index(index), ban, now_us, id, zones)
    }

    fn new(
        mut stored: ListOrIndex,
        ban: Option<Ban>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> Reservations {
        let has_future = match &mut stored {
            ListOrIndex::List(all) => all.iter().any(|one| one.is_from_future(now_us)),
            ListOrIndex::Index(index) => index.separate_future(now_us),
        };
        let with_id = id.and_then(|id| stored.get(id));
        let is_id_held = with_id.is_some_and(|one| one.is_live(now_us));
        let gone_id = with_id.filter(|one| !one.is_live(now_us)).map(|one| Box::new(one.member()));
        let mut view = ReservationView::at(now_us, zones);
        let mut hold = |one: ReservationRef| Hold::from(&view.see(&one));
        let holds = match &stored {
            ListOrIndex::List(all) => {
                let live = all.iter().filter(|one| one.is_live(now_us));
                live.map(|one| hold(one.borrowed())).collect()
            }
            ListOrIndex::Index(index) if has_future => index.future().map(hold).collect(),
            ListOrIndex::Index(_) => SortedHolds::default(),
        };
        let is_changed = false;
        Reservations { now_us, stored, ban, is_id_held, gone_id, has_future, holds, is_changed }
    }

    /// Returns the index. `None` if the reservations were read for this call.
    pub fn index(&self) -> Option<&Index> {
        match &self.stored {
            ListOrIndex::List(_) => None,
            ListOrIndex::Index(index) => Some(index),
        }
    }

    /// Returns an index of the reservations and the ban after the call. `None` if there are neither.
    pub fn into_index(self) -> Option<Box<Index>> {
        if self.is_empty() && self.ban.is_none() {
            return None;
        }
        let mut index = match self.stored {
            ListOrIndex::List(all) => {
                let mut index = Box::<Index>::default();
                all.iter().for_each(|one| {
                    index.insert(&one.borrowed());
                });
                index
            }
            ListOrIndex::Index(index) => index,
        };
        if index.ban() != self.ban {
            index.set_ban(self.ban);
        }
        Some(index)
    }

    /// Returns whether the call changed the reservations, the ban or the index.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Returns the number of reservations, live and gone.
    pub fn len(&self) -> usize {
        match &self.stored {
            ListOrIndex::List(all) => all.len(),
            ListOrIndex::Index(index) => index.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the live reservations in the index, except those in `holds`.
    fn live(&self) -> Option<Live<'_>> {
        self.index().map(|index| index.live(self.now_us))
    }

    pub fn live_len(&self) -> usize {
        self.live().map_or(0, |live| live.len()).saturating_add(self.holds.len())
    }

    /// The sum of what live reservations hold.
    pub fn total(&self) -> u128 {
        self.live().map_or(0, |live| live.total()).saturating_add(self.holds.total())
    }

    /// Returns the time at which the last live reservation is gone. `None` if there is none.
    pub fn last_gone_us(&self) -> Option<u64> {
        self.live().and_then(|live| live.last_gone_us()).max(self.holds.last_gone_us())
    }

    /// Returns the first live reservation, in the order in which they are gone, for which `enough` is true. `enough` gets
    /// the time at which it is gone and the sum of all that are gone by then, and stays true once it is. If there is no such
    /// reservation, the sum is that of all.
    ///
    /// # Errors
    ///
    /// That of `enough`.
    pub fn find_enough_gone<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<EnoughGone, E> {
        let Some(live) = self.live() else { return self.holds.find_enough_gone(enough) };
        if self.holds.is_empty() {
            return live.find_enough_gone(enough);
        }
        // Those in the tree and those from the future are each in order. In both, find the first with which enough is gone,
        // counting what is gone of the others by then. The earlier of the two is the one.
        let future = self.holds.sums();
        let (first_us, _) = live
            .find_enough_gone(|us, gone| enough(us, gone.saturating_add(sum_gone(&future, us))))?;
        let is_enough = |us: u64, gone: u128| enough(us, gone.saturating_add(live.gone_by(us)));
        let first_future_us = first_enough(&future, is_enough)?;
        let Some(gone_us) = first_us.into_iter().chain(first_future_us).min() else {
            return Ok((None, self.total()));
        };
        let before_us = gone_us.saturating_sub(1);
        let before = live.gone_by(before_us).saturating_add(sum_gone(&future, before_us));
        Ok((Some(gone_us), before))
    }

    /// Returns whether the id with which the key was read is held.
    pub fn is_id_held(&self) -> bool {
        self.is_id_held
    }

    pub fn find_live(&self, id: &[u8]) -> Option<ReservationRef<'_>> {
        self.stored.get(id).filter(|one| one.is_live(self.now_us))
    }

    /// Returns the live reservations, the oldest first. O(n).
    pub fn list_live(&self) -> Vec<HeldReservation> {
        let live = self.stored.iter().filter(|one| one.is_live(self.now_us));
        HeldReservation::oldest_first(
            live.map(|one| HeldReservation::at(&one, self.now_us)).collect(),
        )
    }

    /// Returns the number of reservations whose lease runs.
    pub fn count_running(&mut self) -> usize {
        match &mut self.stored {
            ListOrIndex::List(all) => all.iter().filter(|one| one.runs(self.now_us)).count(),
            ListOrIndex::Index(index) => {
                // The first call makes the index larger.
                self.is_changed |= !index.has_lease_ends();
                index.count_running(self.now_us)
            }
        }
    }

    pub fn next_arrival_us(&self, now_us: u64) -> u64 {
        match &self.stored {
            ListOrIndex::List(all) => {
                next_arrival_us(all.iter().map(|one| one.arrival_us).max(), now_us)
            }
            ListOrIndex::Index(index) => index.next_arrival_us(now_us),
        }
    }

    /// Returns whether even a denied call must [clean](Reservations::clean): leases must start again because the clock was
    /// set back, or many reservations are gone.
    pub fn needs_cleaning(&self) -> bool {
        self.has_future || self.len().saturating_sub(self.live_len()) >= MAX_GONE_DROPPED
    }

    /// Returns the time until which the live reservations and the ban need the key, in Unix microseconds. A reservation from
    /// the future that has not been rewritten may hold until its stored end, so this is what counts.
    pub fn needed_until_us(&self) -> Option<u64> {
        let last_us = match &self.stored {
            ListOrIndex::List(all) => all.iter().map(|one| one.gone_us).max(),
            ListOrIndex::Index(index) => {
                let future_us = index.future().map(|one| one.gone_us).max();
                index.live(self.now_us).last_gone_us().max(future_us)
            }
        };
        let until_us = last_us.max(self.ban.map(|ban| ban.end_us()));
        until_us.filter(|until_us| *until_us > self.now_us)
    }

    pub fn add(&mut self, reservation: &ReservationRef) {
        self.is_changed = true;
        match &mut self.stored {
            ListOrIndex::List(all) => {
                all.insert(position(all, reservation.id), reservation.owned());
            }
            ListOrIndex::Index(index) => {
                index.insert(reservation);
            }
        }
    }

    /// Removes the live reservations with these ids, which may repeat, because they are applied, released or renewed.
    /// Returns them.
    pub fn settle(&mut self, ids: &[&[u8]]) -> Settled {
        let mut settled = Settled::new();
        match &mut self.stored {
            ListOrIndex::List(all) => {
                for id in ids {
                    let at = position(all, id);
                    let found = all.get(at).filter(|one| one.id.as_bytes() == *id);
                    if found.is_some_and(|one| one.is_live(self.now_us)) {
                        settled.push(all.remove(at));
                    }
                }
            }
            ListOrIndex::Index(index) => index.settle(ids, self.now_us, &mut settled),
        }
        self.is_changed |= !settled.is_empty();
        settled
    }

    /// Removes reservations that are gone, and starts the leases of those from the future again, in their old order: of an
    /// index at most [`MAX_GONE_DROPPED`] and `max_healed`. Calls `cleaned` with each old member, and the new one if there
    /// is one.
    pub fn clean(
        &mut self,
        zones: &mut Zones,
        max_healed: usize,
        cleaned: &mut dyn FnMut(&ReservationMember, Option<&ReservationMember>),
    ) {
        let (now_us, is_changed) = (self.now_us, &mut self.is_changed);
        let mut cleaned = |old: &ReservationMember, new: Option<&ReservationMember>| {
            *is_changed = true;
            cleaned(old, new);
        };
        let mut view = ReservationView::at(now_us, zones);
        match &mut self.stored {
            ListOrIndex::List(all) => all.retain_mut(|one| {
                if one.is_from_future(now_us) {
                    let old = one.member();
                    *one = view.see(&one.borrowed()).owned();
                    cleaned(&old, Some(&one.member()));
                } else if !one.is_live(now_us) {
                    cleaned(&one.member(), None);
                    return false;
                }
                true
            }),
            ListOrIndex::Index(index) => {
                let mut drop_gone = |index: &mut Index, old: &ReservationMember| {
                    let one = Reservation::decode(old.as_bytes());
                    if one.and_then(|one| index.remove_exactly(&one)).is_some() {
                        cleaned(old, None);
                    }
                };
                if let Some(old) = self.gone_id.take() {
                    drop_gone(index, &old);
                }
                for _ in 0..MAX_GONE_DROPPED {
                    let first = index.first_gone_by(now_us).map(|one| one.member());
                    let Some(old) = first else { break };
                    drop_gone(index, &old);
                }
                if !self.has_future {
                    return;
                }
                let future = index.future().take(max_healed);
                let old: Vec<ReservationMember> = future.map(|one| one.member()).collect();
                for old in &old {
                    let Some(one) = Reservation::decode(old.as_bytes()) else { continue };
                    let new = view.see(&one);
                    if index.remove_exactly(&one).is_some() {
                        index.insert(&new);
                        cleaned(old, Some(&new.member()));
                    }
                }
            }
        }
    }

    /// Returns the stored ban, or the mark that a past one left.
    pub fn ban(&self) -> Option<Ban> {
        self.ban
    }

    pub fn set_ban(&mut self, ban: Option<Ban>) {
        self.is_changed = true;
        self.ban = ban;
    }
}

/// Reservations without names, as models keep them.
#[cfg(any(test, feature = "model"))]
impl From<SortedHolds> for Reservations {
    fn from(holds: SortedHolds) -> Reservations {
        Reservations { holds, ..Reservations::default() }
    }
}

#[derive(Clone, Debug, Default)]
pub struct SortedHolds {
    /// Most keys have at most one, which takes no memory of its own.
    holds: SmallVec<[Hold; 1]>,
}

impl SortedHolds {
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    pub fn total(&self) -> u128 {
        self.holds.iter().map(|hold| u128::from(hold.quantity)).sum()
    }

    pub fn last_gone_us(&self) -> Option<u64> {
        self.holds.last().map(|hold| hold.gone_us)
    }

    /// Returns the time of each, and the sum of all that are gone by then.
    fn sums(&self) -> Vec<(u64, u128)> {
        let mut sum: u128 = 0;
        let with_sum = |hold: &Hold| {
            sum = sum.saturating_add(u128::from(hold.quantity));
            (hold.gone_us, sum)
        };
        self.holds.iter().map(with_sum).collect()
    }

    /// See [`Reservations::find_enough_gone`]. O(n).
    ///
    /// # Errors
    ///
    /// That of `enough`.
    pub fn find_enough_gone<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<EnoughGone, E> {
        let mut gone: u128 = 0;
        for hold in &self.holds {
            let with_it = gone.saturating_add(u128::from(hold.quantity));
            if enough(hold.gone_us, with_it)? {
                return Ok((Some(hold.gone_us), gone));
            }
            gone = with_it;
        }
        Ok((None, gone))
    }
}

fn sum_gone(sums: &[(u64, u128)], us: u64) -> u128 {
    let gone = sums.partition_point(|(gone_us, _)| *gone_us <= us);
    sums.split_at(gone).0.last().map_or(0, |(_, sum)| *sum)
}

/// Returns the time of the first hold for which `enough` is true, which stays true once it is.
fn first_enough<E>(
    mut sums: &[(u64, u128)],
    mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
) -> Result<Option<u64>, E> {
    let mut found = None;
    while let Some((gone_us, sum)) = sums.get(sums.len() / 2) {
        let (first, rest) = sums.split_at(sums.len() / 2);
        if enough(*gone_us, *sum)? {
            (found, sums) = (Some(*gone_us), first);
        } else {
            sums = rest.get(1..).unwrap_or_default();
        }
    }
    Ok(found)
}

impl FromIterator<Hold> for SortedHolds {
    fn from_iter<T: IntoIterator<Item = Hold>>(holds: T) -> SortedHolds {
        let mut sorted = SortedHolds::default();
        holds.into_iter().for_each(|hold| sorted.holds.push(hold));
        sorted.holds.sort_unstable();
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::{cases, START_US};
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// What a call decides by.
    fn sums(held: &Reservations) -> impl PartialEq + std::fmt::Debug {
        let Ok(first) = held.find_enough_gone(|_, gone| Ok::<bool, Infallible>(gone >= 5));
        (held.total(), held.last_gone_us(), first, held.live_len())
    }

    /// Everything else that can be asked of reservations, except for the one with an id.
    fn answers(held: &mut Reservations) -> impl PartialEq + std::fmt::Debug {
        let mut listed: Vec<_> = held
            .list_live()
            .iter()
            .map(|one| (one.id.as_bytes().to_vec(), one.quantity, one.left_us))
            .collect();
        listed.sort();
        ((held.len(), held.count_running(), held.needed_until_us(), held.ban()), listed)
    }

    /// The reservation with each id.
    fn found(held: &Reservations) -> [Option<Vec<u8>>; 4] {
        let member = |one: ReservationRef| one.member().as_bytes().to_vec();
        [b"0", b"1", b"2", b"3"].map(|id| held.find_live(id).map(member))
    }

    proptest! {
        #![proptest_config(cases(1_000))]

        #[test]
        fn a_list_and_an_index_of_the_same_reservations_agree(
            fields in proptest::collection::vec(
                (0usize..6, 1u64..9, 1u64..4_000, 0u64..8_000_000, prop_oneof![Just(0u64), 1u64..3_000_000]),
                0..7,
            ),
            settled in proptest::collection::vec(0usize..6, 0..4),
            id in 0usize..6,
        ) {
            let ids = ["0", "1", "2", "3", "4", "5"].map(str::as_bytes);
            let (now_us, zones) = (START_US, &mut Zones::new());
            // In the order of a set. Another program may have written an id more than once.
            let mut all: Vec<OwnedReservation> = fields
                .into_iter()
                .map(|(id, quantity, lease_ms, ago_us, after_us)| {
                    let id = ids[id];
                    let lease_end_us = START_US + 4_000_000 - ago_us;
                    let gone_us = lease_end_us + after_us;
                    let (arrival_us, rule) = (lease_end_us, &b"2s"[..]);
                    Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule }.owned()
                })
                .collect();
            let member = |one: &OwnedReservation| one.member().as_bytes().to_vec();
            all.sort_by_key(member);
            all.dedup_by_key(|one| member(one));
            let mut index = IndexBuilder::default();
            prop_assert!(all.iter().all(|one| index.add(&one.borrowed())));
            let mut index = Reservations::from_index(index.build(), now_us, Some(ids[id]), zones);
            let mut list = Reservations::from_list(all, None, now_us, Some(ids[id]), zones);
            prop_assert_eq!(list.is_id_held(), index.is_id_held());
            prop_assert_eq!(list.needs_cleaning(), index.needs_cleaning());
            prop_assert_eq!(list.next_arrival_us(now_us), index.next_arrival_us(now_us));
            prop_assert_eq!(sums(&list), sums(&index));
            prop_assert_eq!(found(&list), found(&index));
            prop_assert_eq!(answers(&mut list), answers(&mut index));
            let settled: Vec<&[u8]> = settled.into_iter().map(|at| ids[at]).collect();
            let mut changed = [&mut list, &mut index].map(|held| {
                held.settle(&settled).iter().map(Reservation::member).collect::<Vec<_>>()
            });
            changed.iter_mut().for_each(|members| members.sort_by_key(|old| old.as_bytes().to_vec()));
            prop_assert_eq!(&changed[0], &changed[1]);
            prop_assert_eq!(found(&list), found(&index));
            prop_assert_eq!(answers(&mut list), answers(&mut index));
            let lease_end_us = START_US + 9_000_000;
            let added = Reservation {
                id: &b"9"[..],
                quantity: 3,
                lease_ms: 9_000,
                lease_end_us,
                gone_us: lease_end_us,
                arrival_us: START_US,
                rule: &b"2s"[..],
            };
            for held in [&mut list, &mut index] {
                let before = held.len();
                held.add(&added);
                let found = held.find_live(b"9").map(|one| one.member());
                prop_assert_eq!((held.len(), found), (before + 1, Some(added.member())));
            }
            prop_assert_eq!(answers(&mut list), answers(&mut index));
            let mut changed = [&mut list, &mut index].map(|held| {
                let mut members = Vec::new();
                held.clean(zones, MAX_HEALED_LEASES, &mut |old, new| members.push((*old, new.copied())));
                members
            });
            changed.iter_mut().for_each(|members| members.sort_by_key(|(old, _)| old.as_bytes().to_vec()));
            prop_assert_eq!(&changed[0], &changed[1]);
            prop_assert_eq!(answers(&mut list), answers(&mut index));
        }
    }
}

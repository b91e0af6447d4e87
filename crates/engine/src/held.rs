//! The reservations of a key at one moment, and the quantities that they hold, in the order in which they stop holding: most
//! at the end of their lease, and those with COUNTLAPSED later.
//!
//! ```text
//! Held            the reservations of a key, for one call
//!   HeldList      few, read for this call
//!   HeldIndex     many, in an index that stays in memory
//! ```

mod held_list;

use crate::ban::Ban;
use crate::calendar::Zones;
use crate::index::{HeldIndex, IndexBuilder};
use crate::reservation::{HeldReservation, Reservation, ReservationMember, ReservationRef};
pub use held_list::{HeldList, OwnedReservation};
use std::ops::{Deref, DerefMut};

/// The quantity that one live reservation holds, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// The time at which it stops holding, in Unix microseconds.
    pub gone_us: u64,
    /// The quantity that it takes from the limit until then.
    pub quantity: u64,
}

impl Hold {
    /// Returns the hold of a reservation as it is seen at one moment.
    pub fn of<I, R>(seen: &Reservation<I, R>) -> Hold {
        Hold { gone_us: seen.gone_us, quantity: seen.quantity }
    }
}

/// The result of [`Holds::first_gone`]: the time at which that reservation is gone, and the sum of those before it.
pub type FirstGone = (Option<u64>, u128);

/// The quantities that live reservations hold.
pub trait Holds {
    /// Returns their sum.
    fn total(&self) -> u128;

    /// Returns the time at which the last reservation is gone. `None` if there is none.
    fn last_gone_us(&self) -> Option<u64>;

    /// Returns the first reservation, in the order in which they are gone, for which `enough` is true. `enough` gets the
    /// time at which it is gone and the sum of all that are gone by then, and stays true once it is. If there is no such
    /// reservation, the sum is that of all.
    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E>
    where
        Self: Sized;
}

/// The reservations of a key at one moment, for one call, and the ban that is stored with them.
pub trait Reservations: Holds {
    /// Returns the number of reservations, live and gone.
    fn len(&self) -> usize;

    /// Returns whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of live reservations.
    fn live_len(&self) -> usize;

    /// Returns whether the id with which the key was read is held.
    fn has_id(&self) -> bool;

    /// Returns the reservation `id`, if it is live.
    fn find_live(&self, id: &[u8]) -> Option<ReservationRef<'_>>;

    /// Returns the live reservations, the oldest first.
    fn list_live(&self) -> Vec<HeldReservation>;

    /// Returns the number of reservations whose lease runs.
    fn running(&mut self) -> usize;

    /// Returns the place of a new reservation in the order of arrival.
    fn next_order_us(&self, now_us: u64) -> u64;

    /// Returns whether even a denied call writes, because leases must start again after the clock was set back, or because
    /// many reservations are gone.
    fn must_write(&self) -> bool;

    /// Returns the time until which the live reservations need the key, in Unix microseconds. One from the future that has
    /// not been rewritten may hold until its stored end, so this is what counts.
    fn needed_until_us(&self) -> Option<u64>;

    /// Adds a reservation that was made.
    fn add(&mut self, reservation: &ReservationRef);

    /// Removes the live reservations with these ids, which may repeat, because they are applied, released or renewed. Calls
    /// `settled` with each.
    fn settle(
        &mut self,
        ids: &[&[u8]],
        zones: &mut Zones,
        settled: &mut dyn FnMut(&ReservationRef),
    );

    /// Removes reservations that are gone, and starts the leases of those from the future again, in their old order: a
    /// bounded number of both. Calls `cleaned` with each old member, and the new one if there is one.
    fn clean(
        &mut self,
        zones: &mut Zones,
        cleaned: &mut dyn FnMut(&ReservationMember, Option<&ReservationMember>),
    );

    /// Returns the stored ban, or the mark that a past one left.
    fn ban(&self) -> Option<Ban>;

    /// Replaces the stored ban.
    fn set_ban(&mut self, ban: Option<Ban>);
}

/// The reservations of a key at one moment, for one call, in one of two forms that answer alike.
#[derive(Debug)]
pub enum Held {
    /// Few, which were read for this call.
    List(HeldList),
    /// Many, in an index that stays in memory.
    Index(HeldIndex),
}

/// A key with at least this many reservations has an index. Up to then it is faster to read them in each call.
pub const INDEX_FROM: usize = 8;

impl Held {
    /// Returns the reservations of a key as they are seen at `now_us`, and notes whether `id` is held. `all` has each of
    /// them, in the order of their members.
    pub fn at(
        all: Vec<OwnedReservation>,
        ban: Option<Ban>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> Held {
        if all.len() >= INDEX_FROM {
            let mut builder = IndexBuilder::default();
            // An index has each id once. Another program may have written one a second time.
            if all.iter().all(|one| builder.add(&one.borrowed())) {
                let mut index = builder.build();
                index.set_ban(ban);
                return Held::Index(HeldIndex::at(index, now_us, id, zones));
            }
        }
        Held::List(HeldList::new(all, ban, now_us, id, zones))
    }
}

impl Default for Held {
    fn default() -> Held {
        Held::List(HeldList::default())
    }
}

impl Deref for Held {
    type Target = dyn Reservations;

    fn deref(&self) -> &Self::Target {
        match self {
            Held::List(list) => list,
            Held::Index(held) => held,
        }
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Held::List(list) => list,
            Held::Index(held) => held,
        }
    }
}

impl Holds for Held {
    fn total(&self) -> u128 {
        (**self).total()
    }

    fn last_gone_us(&self) -> Option<u64> {
        (**self).last_gone_us()
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        match self {
            Held::List(list) => list.first_gone(enough),
            Held::Index(held) => held.first_gone(enough),
        }
    }
}

/// A sorted list of holds. Adding and removing take O(n), which is fast enough for a few holds. An index uses such a list
/// only after the clock was set back.
#[derive(Clone, Debug, Default)]
pub struct SortedHolds {
    holds: Vec<Hold>,
}

impl SortedHolds {
    /// Adds a hold.
    pub fn add(&mut self, hold: Hold) {
        let at = self.holds.partition_point(|other| *other <= hold);
        self.holds.insert(at, hold);
    }

    /// Removes a hold.
    pub fn remove(&mut self, hold: Hold) {
        if let Ok(at) = self.holds.binary_search(&hold) {
            self.holds.remove(at);
        }
    }

    /// Returns the number of holds.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Returns whether there are no holds.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }
}

impl FromIterator<Hold> for SortedHolds {
    fn from_iter<T: IntoIterator<Item = Hold>>(holds: T) -> SortedHolds {
        let mut holds: Vec<Hold> = holds.into_iter().collect();
        holds.sort_unstable();
        SortedHolds { holds }
    }
}

impl Holds for SortedHolds {
    fn total(&self) -> u128 {
        self.holds.iter().map(|hold| u128::from(hold.quantity)).sum()
    }

    fn last_gone_us(&self) -> Option<u64> {
        self.holds.last().map(|hold| hold.gone_us)
    }

    fn first_gone<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::{cases, START_US};
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// Everything that can be asked of reservations.
    fn answers(held: &mut Held) -> impl PartialEq + std::fmt::Debug {
        let Ok(first) = held.first_gone(|_, gone| Ok::<bool, Infallible>(gone >= 5));
        let live = [b"0", b"1", b"2", b"3"].map(|id| held.find_live(id).map(|one| one.member()));
        let mut listed: Vec<_> =
            held.list_live().iter().map(|one| (one.id, one.quantity, one.left_us)).collect();
        listed.sort_by_key(|(id, ..)| id.as_bytes().to_vec());
        (
            (held.total(), held.last_gone_us(), first, held.len(), held.live_len(), held.running()),
            (held.needed_until_us(), held.ban()),
            (live.map(|member| member.map(|member| member.as_bytes().to_vec())), listed),
        )
    }

    proptest! {
        #![proptest_config(cases(1_000))]

        #[test]
        fn a_list_and_an_index_of_the_same_reservations_agree(
            fields in proptest::collection::vec(
                (1u64..9, 1u64..4_000, 0u64..8_000_000, prop_oneof![Just(0u64), 1u64..3_000_000]),
                0..5,
            ),
            settled in proptest::collection::vec(0usize..6, 0..4),
            id in 0usize..6,
        ) {
            let ids = ["0", "1", "2", "3", "4", "5"].map(str::as_bytes);
            let (now_us, zones) = (START_US, &mut Zones::new());
            let all: Vec<OwnedReservation> = std::iter::zip(ids, fields)
                .map(|(id, (quantity, lease_ms, ago_us, after_us))| {
                    let lease_end_us = START_US + 4_000_000 - ago_us;
                    let gone_us = lease_end_us + after_us;
                    let (order_us, rule) = (lease_end_us, &b"2s"[..]);
                    Reservation { id, quantity, lease_ms, lease_end_us, gone_us, order_us, rule }.owned()
                })
                .collect();
            let mut index = IndexBuilder::default();
            prop_assert!(all.iter().all(|one| index.add(&one.borrowed())));
            let index = HeldIndex::at(index.build(), now_us, Some(ids[id]), zones);
            let list = HeldList::new(all, None, now_us, Some(ids[id]), zones);
            let (mut list, mut index) = (Held::List(list), Held::Index(index));
            prop_assert_eq!(list.has_id(), index.has_id());
            prop_assert_eq!(list.must_write(), index.must_write());
            prop_assert_eq!(list.next_order_us(now_us), index.next_order_us(now_us));
            prop_assert_eq!(answers(&mut list), answers(&mut index));
            let settled: Vec<&[u8]> = settled.into_iter().map(|at| ids[at]).collect();
            let mut changed = [&mut list, &mut index].map(|held| {
                let mut members = Vec::new();
                held.settle(&settled, zones, &mut |one| members.push((one.member(), one.gone_us)));
                members
            });
            changed.iter_mut().for_each(|members| members.sort_by_key(|(old, _)| old.as_bytes().to_vec()));
            prop_assert_eq!(&changed[0], &changed[1]);
            prop_assert_eq!(answers(&mut list), answers(&mut index));
            let mut changed = [&mut list, &mut index].map(|held| {
                let mut members = Vec::new();
                held.clean(zones, &mut |old, new| members.push((*old, new.copied())));
                members
            });
            changed.iter_mut().for_each(|members| members.sort_by_key(|(old, _)| old.as_bytes().to_vec()));
            prop_assert_eq!(&changed[0], &changed[1]);
            prop_assert_eq!(answers(&mut list), answers(&mut index));
        }
    }

    #[test]
    fn what_was_removed_holds_nothing() {
        let hold = |gone_us, quantity| Hold { gone_us, quantity };
        let mut holds: SortedHolds = [hold(9, 2), hold(5, 1), hold(7, 4)].into_iter().collect();
        holds.remove(hold(7, 4));
        // There is none of this.
        holds.remove(hold(9, 1));
        assert_eq!((holds.len(), holds.total(), holds.last_gone_us()), (2, 3, Some(9)));
        assert!(!holds.is_empty());
        // What is added has its place in the order.
        holds.add(hold(7, 4));
        let found = holds.first_gone(|_, gone| Ok::<bool, ()>(gone >= 2));
        assert_eq!((found, holds.last_gone_us()), (Ok((Some(7), 1)), Some(9)));
        holds.remove(hold(7, 4));
        holds.remove(hold(5, 1));
        holds.remove(hold(9, 2));
        assert!(holds.is_empty());
        assert_eq!((holds.total(), holds.last_gone_us()), (0, None));
    }
}

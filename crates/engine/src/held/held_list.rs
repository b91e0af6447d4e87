//! The reservations of a key that has few, read for one call.

use super::{FirstGone, Hold, Holds, Reservations, SortedHolds};
use crate::ban::Ban;
use crate::calendar::Zones;
use crate::index::next_order_us;
use crate::reservation::{
    HeldReservation, Id, Reservation, ReservationMember, ReservationRef, ReservationView,
};
use crate::rule::RuleText;

/// A reservation that owns its id and its rule.
pub type OwnedReservation = Reservation<Id, RuleText>;

/// A list of reservations at one moment, for one call.
#[derive(Debug, Default)]
pub struct HeldList {
    now_us: u64,
    ban: Option<Ban>,
    /// The reservations that were read, as they are stored, by the length of their id and then by the id.
    all: Vec<OwnedReservation>,
    /// What the live ones hold as they are seen now.
    holds: SortedHolds,
    has_id: bool,
    /// The time at which the last reservation that this call added stops holding.
    added_until_us: Option<u64>,
}

impl HeldList {
    /// Creates a list of reservations, which are in the order of their members, and notes whether `id` is held.
    pub(super) fn new(
        all: Vec<OwnedReservation>,
        ban: Option<Ban>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> HeldList {
        let is_it = |one: &OwnedReservation| Some(one.id.as_bytes()) == id;
        let has_id = all.iter().any(|one| is_it(one) && one.live(now_us));
        let mut list = HeldList {
            now_us,
            ban,
            all,
            holds: SortedHolds::default(),
            has_id,
            added_until_us: None,
        };
        list.update_holds(zones);
        list
    }

    /// Returns the live reservations as they are stored.
    fn live(&self) -> impl Iterator<Item = ReservationRef<'_>> {
        self.all.iter().filter(|one| one.live(self.now_us)).map(Reservation::borrowed)
    }

    /// Updates what the live reservations hold.
    fn update_holds(&mut self, zones: &mut Zones) {
        let mut view = ReservationView::at(self.now_us, zones);
        self.holds = self.live().map(|one| Hold::of(&view.see(&one))).collect();
    }

    /// Returns the position of the reservation `id`, if it is live. If another program wrote an id a second time, the first
    /// one counts.
    fn live_position(&self, id: &[u8]) -> Option<usize> {
        let at = self.all.partition_point(|one| {
            let other = one.id.as_bytes();
            (other.len(), other) < (id.len(), id)
        });
        let one = self.all.get(at)?;
        (one.id.as_bytes() == id && one.live(self.now_us)).then_some(at)
    }
}

/// Reservations without names, as models keep them.
#[cfg(any(test, feature = "model"))]
impl From<SortedHolds> for super::Held {
    fn from(holds: SortedHolds) -> super::Held {
        super::Held::List(HeldList { holds, ..HeldList::default() })
    }
}

impl Reservations for HeldList {
    fn ban(&self) -> Option<Ban> {
        self.ban
    }

    fn set_ban(&mut self, ban: Option<Ban>) {
        self.ban = ban;
    }

    fn len(&self) -> usize {
        self.all.len()
    }

    fn has_id(&self) -> bool {
        self.has_id
    }

    fn live_len(&self) -> usize {
        self.holds.len()
    }

    fn running(&mut self) -> usize {
        self.all.iter().filter(|one| one.runs(self.now_us)).count()
    }

    fn next_order_us(&self, now_us: u64) -> u64 {
        next_order_us(self.all.iter().map(|one| one.order_us).max(), now_us)
    }

    fn must_write(&self) -> bool {
        self.all.iter().any(|one| one.is_from_future(self.now_us))
    }

    fn needed_until_us(&self) -> Option<u64> {
        self.live().map(|one| one.gone_us).max().max(self.added_until_us)
    }

    fn find_live(&self, id: &[u8]) -> Option<ReservationRef<'_>> {
        self.all.get(self.live_position(id)?).map(Reservation::borrowed)
    }

    fn list_live(&self) -> Vec<HeldReservation> {
        let live = self.live().map(|one| HeldReservation::of(&one, self.now_us));
        HeldReservation::oldest_first(live.collect())
    }

    fn add(&mut self, reservation: &ReservationRef) {
        self.added_until_us = self.added_until_us.max(Some(reservation.gone_us));
    }

    fn settle(
        &mut self,
        ids: &[&[u8]],
        zones: &mut Zones,
        settled: &mut dyn FnMut(&ReservationRef),
    ) {
        let mut positions: Vec<usize> =
            ids.iter().filter_map(|id| self.live_position(id)).collect();
        positions.sort_unstable();
        positions.dedup();
        let mut positions = positions.into_iter().peekable();
        let mut at = 0..;
        self.all.retain(|one| {
            let is_settled = at.next().is_some_and(|at| positions.next_if_eq(&at).is_some());
            if is_settled {
                settled(&one.borrowed());
            }
            !is_settled
        });
        self.update_holds(zones);
    }

    fn clean(
        &mut self,
        zones: &mut Zones,
        cleaned: &mut dyn FnMut(&ReservationMember, Option<&ReservationMember>),
    ) {
        let now_us = self.now_us;
        let mut view = ReservationView::at(now_us, zones);
        self.all.retain_mut(|one| {
            if one.is_from_future(now_us) {
                let old = one.member();
                *one = view.see(&one.borrowed()).owned();
                cleaned(&old, Some(&one.member()));
            } else if !one.live(now_us) {
                cleaned(&one.member(), None);
                return false;
            }
            true
        });
    }
}

impl Holds for HeldList {
    fn total(&self) -> u128 {
        self.holds.total()
    }

    fn last_gone_us(&self) -> Option<u64> {
        self.holds.last_gone_us()
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        self.holds.first_gone(enough)
    }
}

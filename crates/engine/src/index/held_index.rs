//! The index of a key's reservations, at one moment.

use super::Index;
use crate::ban::Ban;
use crate::calendar::Zones;
use crate::held::{FirstGone, Hold, Holds, Reservations, SortedHolds};
use crate::reservation::{
    HeldReservation, Reservation, ReservationMember, ReservationRef, ReservationView,
};

/// An index at one moment, for one call.
#[derive(Debug)]
pub struct HeldIndex {
    index: Box<Index>,
    now_us: u64,
    has_id: bool,
    /// The reservation with the id of the call, if it is gone. It is dropped, so that the id is free.
    gone_id: Option<Box<ReservationMember>>,
    /// The index was changed.
    is_changed: bool,
    /// All holds as they are seen now, if some leases are from the future. Those end one lease from now, healed or not.
    holds_now: Option<SortedHolds>,
}

/// The most gone reservations that a call drops. If there are this many, a denied call drops them too.
pub const MAX_DROPPED: usize = 64;

/// The most reservations that a call rewrites after the clock was set back.
pub const MAX_HEALED: usize = 256;

impl HeldIndex {
    /// Creates a view of the index at `now_us`, and notes whether `id` is held.
    pub fn at(
        mut index: Box<Index>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> HeldIndex {
        let has_future = index.has_future(now_us);
        let with_id = id.and_then(|id| index.get(id));
        let has_id = with_id.is_some_and(|reservation| reservation.live(now_us));
        let gone_id = with_id
            .filter(|reservation| !reservation.live(now_us))
            .map(|reservation| Box::new(reservation.member()));
        let holds_now = has_future.then(|| index.list_holds_at(now_us, zones));
        HeldIndex { index, now_us, has_id, gone_id, is_changed: false, holds_now }
    }

    /// Returns the index itself.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the index after the call.
    pub fn into_index(self) -> Box<Index> {
        self.index
    }

    /// Returns whether the index was changed.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Removes the reservation `id`, and returns whether it was there.
    fn remove(&mut self, id: &[u8]) -> bool {
        self.is_changed = true;
        self.index.remove(id)
    }

    fn drop_gone(
        &mut self,
        old: &ReservationMember,
        cleaned: &mut dyn FnMut(&ReservationMember, Option<&ReservationMember>),
    ) {
        if Reservation::decode(old.as_bytes()).is_some_and(|old| self.remove(old.id)) {
            cleaned(old, None);
        }
    }
}

impl Reservations for HeldIndex {
    fn len(&self) -> usize {
        self.index.len()
    }

    fn ban(&self) -> Option<Ban> {
        self.index.ban()
    }

    fn set_ban(&mut self, ban: Option<Ban>) {
        self.is_changed = true;
        self.index.set_ban(ban);
    }

    fn find_live(&self, id: &[u8]) -> Option<ReservationRef<'_>> {
        self.index.get(id).filter(|reservation| reservation.live(self.now_us))
    }

    fn list_live(&self) -> Vec<HeldReservation> {
        let live = self.index.oldest_first().filter(|reservation| reservation.live(self.now_us));
        live.map(|reservation| HeldReservation::of(&reservation, self.now_us)).collect()
    }

    fn running(&mut self) -> usize {
        // The first call makes the index larger.
        self.is_changed |= self.index.lease_ends.is_none();
        self.index.running(self.now_us)
    }

    fn needed_until_us(&self) -> Option<u64> {
        self.index.live(self.now_us).last_gone_us()
    }

    fn add(&mut self, reservation: &ReservationRef) {
        self.is_changed = true;
        self.index.insert(reservation);
        if let Some(holds_now) = &mut self.holds_now {
            holds_now.add(Hold::of(reservation));
        }
    }

    fn settle(
        &mut self,
        ids: &[&[u8]],
        zones: &mut Zones,
        settled: &mut dyn FnMut(&ReservationRef),
    ) {
        for id in ids {
            let Some(reservation) = self.find_live(id) else { continue };
            settled(&reservation);
            if self.holds_now.is_some() {
                let seen = Hold::of(&ReservationView::at(self.now_us, zones).see(&reservation));
                self.holds_now.iter_mut().for_each(|holds_now| holds_now.remove(seen));
            }
            self.remove(id);
        }
    }

    fn clean(
        &mut self,
        zones: &mut Zones,
        cleaned: &mut dyn FnMut(&ReservationMember, Option<&ReservationMember>),
    ) {
        if let Some(old) = self.gone_id.take() {
            self.drop_gone(&old, cleaned);
        }
        for _ in 0..MAX_DROPPED {
            let first = self.index.first_to_go(self.now_us).map(|reservation| reservation.member());
            let Some(old) = first else { break };
            self.drop_gone(&old, cleaned);
        }
        if self.holds_now.is_none() {
            return;
        }
        let future = self.index.future(self.now_us, MAX_HEALED);
        let old: Vec<ReservationMember> = future.iter().map(Reservation::member).collect();
        let mut view = ReservationView::at(self.now_us, zones);
        for old in &old {
            let Some(reservation) = Reservation::decode(old.as_bytes()) else { continue };
            let new = view.see(&reservation);
            if self.remove(reservation.id) {
                self.index.insert(&new);
                cleaned(old, Some(&new.member()));
            }
        }
    }

    fn has_id(&self) -> bool {
        self.has_id
    }

    fn live_len(&self) -> usize {
        match &self.holds_now {
            Some(holds_now) => holds_now.len(),
            None => self.index.len().saturating_sub(self.index.count_gone(self.now_us)),
        }
    }

    fn next_order_us(&self, now_us: u64) -> u64 {
        self.index.next_order_us(now_us)
    }

    fn must_write(&self) -> bool {
        self.holds_now.is_some() || self.index.count_gone(self.now_us) >= MAX_DROPPED
    }
}

impl Holds for HeldIndex {
    fn total(&self) -> u128 {
        match &self.holds_now {
            Some(holds_now) => holds_now.total(),
            None => self.index.live(self.now_us).total(),
        }
    }

    fn last_gone_us(&self) -> Option<u64> {
        match &self.holds_now {
            Some(holds_now) => holds_now.last_gone_us(),
            None => self.index.live(self.now_us).last_gone_us(),
        }
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        match &self.holds_now {
            Some(holds_now) => holds_now.first_gone(enough),
            None => self.index.live(self.now_us).first_gone(enough),
        }
    }
}

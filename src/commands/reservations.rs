//! The reservations of a key, read in full for a call that decides.

use super::entries::reservation;
use super::trim::MOST;
use crate::error::Error;
use crate::limit::reservation::{end_us, Reservation};
use crate::limit::window::Held;
use crate::redis::key::{Element, Key};
use crate::redis::text::OwnedString;

/// What a call has to know of the reservations in its key.
#[derive(Debug, Default)]
pub struct Reservations {
    /// Those that live.
    pub live: Held,
    /// Whether the id that was asked for is held.
    pub has_id: bool,
    /// Those whose lease ends later than one lease from now: a clock went back.
    from_future: Vec<OwnedString>,
    /// Those that have lapsed, first the one of the id that was asked for.
    lapsed: Vec<OwnedString>,
    len: usize,
    newest_order_us: Option<u64>,
}

impl Reservations {
    /// Reads all of them, and whether `id` is held.
    pub fn read(key: &Key, now_us: u64, id: Option<&[u8]>) -> Result<Reservations, Error> {
        let mut all = Reservations::default();
        key.scan(f64::INFINITY, true, f64::INFINITY, |element| {
            all.add(element, now_us, id)?;
            Ok::<_, Error>(true)
        })?;
        Ok(all)
    }

    fn add(&mut self, element: Element, now_us: u64, id: Option<&[u8]>) -> Result<(), Error> {
        let one = reservation(&element.member)?;
        let lapses_us = one.lapses_us(now_us);
        let (live, same_id) = (lapses_us > now_us, id == Some(one.id));
        self.len = self.len.saturating_add(1);
        self.newest_order_us = self.newest_order_us.max(Some(one.order_us));
        self.has_id |= same_id && live;
        if live {
            self.live.add(lapses_us, one.quantity);
        }
        if lapses_us < one.end_us {
            self.from_future.push(element.member);
        } else if !live {
            self.lapsed.push(element.member);
            if same_id {
                // It makes room for a new one.
                let last = self.lapsed.len().saturating_sub(1);
                self.lapsed.swap(0, last);
            }
        }
        Ok(())
    }

    /// How many there are, dead and alive.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The place of a new one in the order of arrival: now, or just behind the newest where that came in the same
    /// microsecond or before the clock went back.
    pub fn next_order_us(&self, now_us: u64) -> u64 {
        let behind = self.newest_order_us.map_or(0, |newest_us| newest_us.saturating_add(1));
        behind.max(now_us)
    }

    /// Whether some must be written anew, as a clock went back, or so many have lapsed that every call, which reads
    /// them all, would be slowed down by them.
    pub fn must_write(&self) -> bool {
        !self.from_future.is_empty() || self.lapsed.len() >= MOST
    }

    /// Those that have lapsed and are to be dropped: of few all, if this is a call that `trims`; of many a quarter, so
    /// that what a call drops is no more work than what it has read.
    pub fn lapsed_to_drop(&mut self, trims: bool) -> Vec<OwnedString> {
        let mut lapsed = std::mem::take(&mut self.lapsed);
        let most = lapsed.len().div_ceil(4).max(MOST);
        lapsed.truncate(if trims || lapsed.len() >= MOST { most } else { 0 });
        lapsed
    }

    /// Moves those from the future to `remove`, and returns what is to be written instead: the same, ending one lease
    /// from now, in their old order.
    pub fn heal(
        &mut self,
        now_us: u64,
        remove: &mut Vec<OwnedString>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let healed = self.from_future.iter().map(|member| {
            let one = reservation(member)?;
            let end_us = end_us(now_us, one.lease_ms);
            Ok(Reservation { end_us, ..one }.member().as_bytes().to_vec())
        });
        let healed = healed.collect::<Result<_, Error>>()?;
        remove.append(&mut self.from_future);
        Ok(healed)
    }
}

//! A window in memory, between calls and during a call.

use super::{MemoryKey, MemoryValue, Zset};
use crate::ban::Ban;
use crate::calendar::Zones;
use crate::held::{FirstGone, Holds};
use crate::index::{HeldIndex, Index};
use crate::reservation::{HeldReservation, Id, Reservation};
use crate::rule::RuleText;
use crate::store::{Entries, Refusal, Reservations, WindowEdit, WindowKey};

/// A window in memory.
#[derive(Debug, Default)]
pub(super) struct WindowValue {
    pub events: Zset,
    /// Most windows never have a reservation or a ban.
    pub reservations: Option<Box<Index>>,
}

impl WindowValue {
    /// Returns whether it holds no event, reservation or ban, so that the key can be removed.
    pub fn is_empty(&self) -> bool {
        let holds = |index: &Index| !index.is_empty() || index.ban().is_some();
        self.events.is_empty() && !self.reservations.as_deref().is_some_and(holds)
    }
}

/// A window that was detached from its key for one call. Dropping it puts it back.
pub struct MemoryWindow<'m> {
    key: MemoryKey<'m>,
    events: Zset,
    held: MemoryHeld,
    expires_at_ms: u64,
    /// Whether there was a window.
    is_there: bool,
}

impl<'m> MemoryWindow<'m> {
    /// Creates the window of a key that has not been read.
    pub(super) fn unread(key: MemoryKey<'m>) -> MemoryWindow<'m> {
        let (events, held) = (Zset::default(), MemoryHeld(None));
        MemoryWindow { key, events, held, expires_at_ms: 0, is_there: false }
    }
}

/// The reservations of a window in memory. `None` if it never had a reservation or a ban.
pub struct MemoryHeld(Option<HeldIndex>);

impl MemoryHeld {
    fn index(&self) -> Option<&Index> {
        self.0.as_ref().map(HeldIndex::index)
    }

    /// Returns the index, which is created if there is none.
    fn made(&mut self, now_us: u64) -> &mut HeldIndex {
        let new = || HeldIndex::at(Box::default(), now_us, None, &mut Zones::new());
        self.0.get_or_insert_with(new)
    }
}

impl Holds for MemoryHeld {
    fn total(&self) -> u128 {
        self.0.as_ref().map_or(0, Holds::total)
    }

    fn last_gone_us(&self) -> Option<u64> {
        self.0.as_ref()?.last_gone_us()
    }

    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        self.0.as_ref().map_or(Ok((None, 0)), |held| held.first_gone(enough))
    }
}

impl Reservations for MemoryHeld {
    fn has_id(&self) -> bool {
        self.0.as_ref().is_some_and(Reservations::has_id)
    }

    fn live_len(&self) -> usize {
        self.0.as_ref().map_or(0, Reservations::live_len)
    }

    fn next_order_us(&self, now_us: u64) -> u64 {
        self.0.as_ref().map_or(now_us, |held| held.next_order_us(now_us))
    }

    fn must_write(&self) -> bool {
        self.0.as_ref().is_some_and(Reservations::must_write)
    }
}

impl WindowKey for MemoryWindow<'_> {
    type Error = Refusal;
    type Events<'k>
        = &'k mut Zset
    where
        Self: 'k;
    type Reservations = MemoryHeld;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Refusal> {
        let MemoryKey { memory, name, now_us } = self.key;
        if let Some((window, expires_at_ms)) = memory.detach_window(name, now_us)? {
            self.events = window.events;
            let at_now = |index| memory.zones(|zones| HeldIndex::at(index, now_us, id, zones));
            self.held = MemoryHeld(window.reservations.map(at_now));
            self.expires_at_ms = expires_at_ms;
            self.is_there = true;
        }
        Ok(())
    }

    fn reservations(&self) -> &MemoryHeld {
        &self.held
    }

    fn ban(&self) -> Option<Ban> {
        self.held.index()?.ban()
    }

    fn split(&mut self) -> (&mut Zset, &MemoryHeld) {
        (&mut self.events, &self.held)
    }

    fn running(&mut self) -> usize {
        self.held.0.as_mut().map_or(0, HeldIndex::running)
    }

    fn list_live(&self) -> Vec<HeldReservation> {
        self.held.0.as_ref().map_or_else(Vec::new, HeldIndex::list_live)
    }

    fn find_live(&self, id: &[u8]) -> Option<Reservation<Id, RuleText>> {
        self.held.0.as_ref()?.get_live(id).map(|one| one.owned())
    }

    fn write(&mut self, edit: WindowEdit) -> usize {
        let MemoryKey { memory, now_us, .. } = self.key;
        let (mut settled, mut settled_us) = (0_usize, None);
        if let Some(held) = &mut self.held.0 {
            memory.zones(|zones| {
                held.settle(edit.settled, zones, |reservation| {
                    settled = settled.saturating_add(1);
                    settled_us = settled_us.max(Some(reservation.gone_us));
                });
                if edit.clean {
                    held.clean(zones, |_, _| {});
                }
            });
        }
        if let Some(one) = &edit.reservation {
            self.held.made(now_us).add(one);
        }
        self.events.apply(edit.events);
        let old_ban = self.ban();
        let ban = edit.ban.after(old_ban);
        if ban != old_ban {
            self.held.made(now_us).set_ban(ban);
        }
        if let Some(expiry) = edit.expiry {
            let reserved_until_us = self.held.0.as_ref().and_then(HeldIndex::needed_until_us);
            let new_ttl_ms = expiry.new_ttl_ms_after_write(
                reserved_until_us,
                ban.map(|ban| ban.end_us()),
                settled_us,
                Some(self.expires_at_ms),
            );
            self.expires_at_ms = new_ttl_ms.unwrap_or(self.expires_at_ms);
        }
        settled
    }
}

impl Drop for MemoryWindow<'_> {
    fn drop(&mut self) {
        let MemoryKey { memory, name, .. } = self.key;
        let events = std::mem::take(&mut self.events);
        let reservations = self.held.0.take().map(HeldIndex::into_index);
        let window = WindowValue { events, reservations };
        if !window.is_empty() {
            memory.put(name, MemoryValue::Window(window), self.expires_at_ms);
        } else if self.is_there {
            memory.delete(name);
        }
    }
}

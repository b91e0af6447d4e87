//! A window in memory, between calls and during a call.

use super::{MemoryKey, MemoryValue, Zset};
use crate::calendar::Zones;
use crate::entry::Entries;
use crate::index::Index;
use crate::refusal::Refusal;
use crate::reservations::{Reservations, MAX_HEALED_LEASES};
use crate::store::{Settlement, WindowEdit, WindowKey};
use std::convert::Infallible;

#[derive(Debug, Default)]
pub(super) struct WindowValue {
    pub events: Zset,
    /// Most windows never have a reservation or a ban.
    pub reservations: Option<Box<Index>>,
}

impl WindowValue {
    /// Returns whether it holds no event, reservation or ban, so that the key can be removed.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.reservations.is_none()
    }
}

/// A window that was detached from its key for one call. Dropping it puts it back.
pub struct MemoryWindow<'m> {
    key: MemoryKey<'m>,
    events: Zset,
    reservations: Reservations,
    expires_at_ms: u64,
    /// There was a key when it was read.
    existed: bool,
}

impl<'m> MemoryWindow<'m> {
    /// Creates the window of a key that has not been read.
    pub(super) fn unread(key: MemoryKey<'m>) -> MemoryWindow<'m> {
        let (events, reservations) = (Zset::default(), Reservations::default());
        MemoryWindow { key, events, reservations, expires_at_ms: 0, existed: false }
    }
}

impl WindowKey for MemoryWindow<'_> {
    type Error = Refusal;
    type Events = Zset;
    type Emptied = Infallible;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Refusal> {
        let MemoryKey { memory, name, now_us } = self.key;
        if let Some((window, expires_at_ms)) = memory.detach_window(name, now_us)? {
            self.events = window.events;
            if let Some(index) = window.reservations {
                self.reservations =
                    memory.zones(|zones| Reservations::from_index(index, now_us, id, zones));
            }
            self.expires_at_ms = expires_at_ms;
            self.existed = true;
        }
        Ok(())
    }

    fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    fn reservations_mut(&mut self) -> &mut Reservations {
        &mut self.reservations
    }

    fn split(&mut self) -> (&mut Zset, &Reservations) {
        (&mut self.events, &self.reservations)
    }

    fn write(&mut self, edit: WindowEdit) -> Settlement<Infallible> {
        let reservations = &mut self.reservations;
        let settled = reservations.settle(edit.settled);
        if edit.clean {
            let clean = |zones: &mut Zones| {
                reservations.clean(zones, MAX_HEALED_LEASES, &mut |_, _| {});
            };
            self.key.memory.zones(clean);
        }
        if let Some(reservation) = &edit.reservation {
            self.reservations.add(reservation);
        }
        self.events.apply(edit.events);
        if edit.ban != self.ban() {
            self.reservations.set_ban(edit.ban);
        }
        if let Some(expiry) = edit.expiry {
            let expiry = expiry.extend_to(self.reservations.needed_until_us());
            let settled_us = settled.iter().map(|one| one.gone_us).max();
            let new_expires_at_ms = expiry.new_expires_at_ms(settled_us, Some(self.expires_at_ms));
            self.expires_at_ms = new_expires_at_ms.unwrap_or(self.expires_at_ms);
        }
        Settlement { number: settled.len(), emptied: None }
    }
}

impl Drop for MemoryWindow<'_> {
    fn drop(&mut self) {
        let MemoryKey { memory, name, .. } = self.key;
        let events = std::mem::take(&mut self.events);
        let reservations = std::mem::take(&mut self.reservations).into_index();
        let window = WindowValue { events, reservations };
        if !window.is_empty() {
            memory.put(name, MemoryValue::Window(window), self.expires_at_ms);
        } else if self.existed {
            memory.delete(name);
        }
    }
}

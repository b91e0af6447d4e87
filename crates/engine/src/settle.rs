//! Applies, releases or renews reservations, in the steps of any call: [`plan`] reads the key and returns what to write, and
//! [`SettlePlan::write`] writes it.

use crate::expiry::Expiry;
use crate::refusal::Refusal;
use crate::reservation::{lease_end_us, OwnedReservation, Reservation};
use crate::rule::Rule;
use crate::store::{Settlement, Store, WindowEdit, WindowKey};
use crate::window::{EventChange, EventEdit, WindowCount};

/// What becomes of reservations.
#[derive(Clone, Copy, Debug)]
pub enum Settling {
    /// The reservation becomes an event of this quantity, or of its own. A quantity of 0 releases it. Live events need at
    /// most `max_entries` entries, unless the rule of the reservation sets another bound.
    Apply { quantity: Option<u64>, max_entries: u32 },
    /// The reservations are released. Their ids may repeat.
    Release,
    /// The reservation is released if its lease ends then. Another client may have reserved under the id since.
    ReleaseLease { lease_end_us: u64 },
    /// The lease starts again, with this length or its own, if it still runs.
    Renew { lease_ms: Option<u64> },
}

/// What a call writes that settles or renews reservations.
#[expect(clippy::large_enum_variant, reason = "a call allocates nothing")]
#[must_use]
pub enum SettlePlan<'p> {
    /// Nothing: the id is not held, or its lease is over.
    NotHeld,
    /// Nothing: the lease already ends when the renewed one would.
    Unchanged,
    /// The reservations with these ids are removed.
    Settle {
        ids: &'p [&'p [u8]],
        /// The changes of the events if the reservation is counted as one.
        applied: Option<EventEdit>,
        /// The reservation that replaces a renewed one.
        renewed: Option<OwnedReservation>,
        /// The time for which the events need the key. `None` leaves the TTL as it is.
        expiry: Option<Expiry>,
    },
}

impl SettlePlan<'_> {
    /// Returns whether a reservation is counted as an event.
    pub fn applies(&self) -> bool {
        matches!(self, SettlePlan::Settle { applied: Some(_), .. })
    }

    /// Writes what was planned to the key that was read. Returns how many reservations were settled or renewed.
    pub fn write<K: WindowKey>(self, mut key: K) -> Settlement<K::Emptied> {
        match self {
            SettlePlan::NotHeld => Settlement { number: 0, emptied: None },
            SettlePlan::Unchanged => Settlement { number: 1, emptied: None },
            SettlePlan::Settle { ids, applied, renewed, expiry } => {
                let reservation = renewed.as_ref().map(Reservation::borrowed);
                let (events, ban) = (&applied.unwrap_or_default(), key.ban());
                key.write(WindowEdit {
                    settled: ids,
                    events,
                    reservation,
                    clean: false,
                    ban,
                    expiry,
                })
            }
        }
    }
}

/// Reads `key`, which is the window of `store`, and plans what becomes of its reservations with these ids. Only those that
/// are released may be several.
///
/// # Errors
///
/// Errors of reading the key, [`Refusal::Foreign`], [`Refusal::Semaphore`] and [`Refusal::Clock`].
pub fn plan<'p, S: Store>(
    store: &S,
    key: &mut S::Window,
    ids: &'p [&'p [u8]],
    settling: Settling,
) -> Result<SettlePlan<'p>, S::Error> {
    key.read(None)?;
    let release = SettlePlan::Settle { ids, applied: None, renewed: None, expiry: None };
    if let Settling::Release = settling {
        return Ok(release);
    }
    let found = ids.first().and_then(|id| key.reservations().find_live(id));
    let Some(old) = found.map(|found| found.owned()) else { return Ok(SettlePlan::NotHeld) };
    match settling {
        Settling::ReleaseLease { lease_end_us } if old.lease_end_us != lease_end_us => {
            Ok(SettlePlan::NotHeld)
        }
        Settling::Release | Settling::ReleaseLease { .. } => Ok(release),
        Settling::Apply { quantity, max_entries } => {
            let rule = store.parse_rule(old.rule.as_bytes()).ok_or(Refusal::Foreign)?;
            if matches!(rule, Rule::Semaphore) {
                return Err(Refusal::Semaphore.into());
            }
            let weight = quantity.unwrap_or(old.quantity);
            if weight == 0 {
                return Ok(release);
            }
            let rule_now = store.rule_now(&rule).ok_or(Refusal::Clock)?;
            let max_entries = rule_now.rule_max_entries().unwrap_or(max_entries);
            let count = WindowCount::read(key.events(), rule_now.with_max_entries(max_entries))?;
            // The limit is not known here, so the event is counted as within it. Few events lie beyond the limit, as they
            // were reserved.
            let event = EventChange::Record { weight, denied: false, limit: u64::MAX };
            let events = count.plan_change(key.events(), event, store.max_healed())?;
            let (applied, expiry) = (Some(events.edit), Some(store.expiry(&rule, &events.after)));
            Ok(SettlePlan::Settle { ids, applied, renewed: None, expiry })
        }
        Settling::Renew { lease_ms } => {
            let (now_us, lease_ms) = (store.now_us(), lease_ms.unwrap_or(old.lease_ms));
            if !old.runs(now_us) {
                return Ok(SettlePlan::NotHeld);
            }
            let rule = store.parse_rule(old.rule.as_bytes()).ok_or(Refusal::Foreign)?;
            let lease_end_us = lease_end_us(now_us, lease_ms);
            let gone_us = store.gone_us(&rule, lease_end_us, old.counts_lapsed())?;
            if (lease_ms, lease_end_us, gone_us) == (old.lease_ms, old.lease_end_us, old.gone_us) {
                return Ok(SettlePlan::Unchanged);
            }
            let renewed = Some(Reservation { lease_ms, lease_end_us, gone_us, ..old });
            let rule_now = store.rule_now(&rule).ok_or(Refusal::Clock)?;
            let count = WindowCount::read(key.events(), rule_now)?;
            let expiry = Some(store.expiry(&rule, &count));
            Ok(SettlePlan::Settle { ids, applied: None, renewed, expiry })
        }
    }
}

#[cfg(test)]
mod tests;

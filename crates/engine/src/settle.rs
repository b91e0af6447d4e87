//! Applies, releases or renews reservations.

use crate::ban::Ban;
use crate::entry::Entries;
use crate::expiry::Expiry;
use crate::refusal::Refusal;
use crate::reservation::{lease_end_us, Id, OwnedReservation, Reservation};
use crate::rule::Rule;
use crate::store::{Store, WindowEdit, WindowKey};
use crate::window::{EventChange, EventEdit, WindowCount};

/// The outcome of applying a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// The id is not held.
    NotHeld,
    /// The reservation was released.
    Released,
    /// The reservation was counted.
    Counted,
}

/// Turns the reservation `id` of `key`, which is the window of `store`, into an event of `quantity`, or of its own quantity.
/// A quantity of 0 releases it. Live events need at most `max_entries` entries, unless the rule of the reservation sets
/// another bound.
///
/// # Errors
///
/// Errors of reading the key, [`Refusal::Foreign`], [`Refusal::Semaphore`] and [`Refusal::Clock`].
pub fn apply<S: Store>(
    store: &S,
    key: &mut S::Window,
    id: &Id,
    quantity: Option<u64>,
    max_entries: u32,
) -> Result<SettleOutcome, S::Error> {
    key.read(None)?;
    let Some(reserved) = find_live(key, id) else { return Ok(SettleOutcome::NotHeld) };
    let rule = store.parse_rule(reserved.rule.as_bytes()).ok_or(Refusal::Foreign)?;
    if matches!(rule, Rule::Semaphore) {
        return Err(Refusal::Semaphore.into());
    }
    let quantity = quantity.unwrap_or(reserved.quantity);
    if quantity == 0 {
        key.write(settling(&[id.as_bytes()], &EventEdit::default(), key.ban(), None));
        return Ok(SettleOutcome::Released);
    }
    let rule_now = store.rule_now(&rule).ok_or(Refusal::Clock)?;
    let max_entries = rule_now.entries_of_rule().unwrap_or(max_entries);
    let count = WindowCount::read(key.events(), rule_now.with_entries(max_entries))?;
    // The limit is not known here, so the event is counted as within it. Few events lie beyond the limit, as they were
    // reserved.
    let event = EventChange::Record { weight: quantity, denied: false, limit: u64::MAX };
    let plan = count.change(key.events(), event, store.max_healed())?;
    key.write(settling(&[id.as_bytes()], &plan.edit, key.ban(), Some(plan.after.expiry())));
    Ok(SettleOutcome::Counted)
}

/// Releases the live reservations with these ids, which may repeat. Returns how many there were.
///
/// # Errors
///
/// Errors of reading the key.
pub fn release<K: WindowKey>(key: &mut K, ids: &[&[u8]]) -> Result<usize, K::Error> {
    key.read(None)?;
    Ok(key.write(settling(ids, &EventEdit::default(), key.ban(), None)))
}

/// Releases the reservation `id` if its lease ends at `lease_end_us`, and returns whether it did. Another client may have
/// reserved under the id since.
///
/// # Errors
///
/// Errors of reading the key.
pub fn release_lease<K: WindowKey>(
    key: &mut K,
    id: &Id,
    lease_end_us: u64,
) -> Result<bool, K::Error> {
    key.read(None)?;
    let found = key.reservations().find_live(id.as_bytes());
    let is_held = found.is_some_and(|found| found.lease_end_us == lease_end_us);
    if is_held {
        key.write(settling(&[id.as_bytes()], &EventEdit::default(), key.ban(), None));
    }
    Ok(is_held)
}

/// Returns a copy of the reservation `id`, if it is live.
fn find_live<K: WindowKey>(key: &K, id: &Id) -> Option<OwnedReservation> {
    key.reservations().find_live(id.as_bytes()).map(|reservation| reservation.owned())
}

/// Returns the edit that removes the reservations with these ids. Other reservations and the ban stay as they are.
fn settling<'p>(
    ids: &'p [&'p [u8]],
    events: &'p EventEdit,
    ban: Option<Ban>,
    expiry: Option<Expiry>,
) -> WindowEdit<'p> {
    WindowEdit { events, reservation: None, settled: ids, clean: false, ban, expiry }
}

/// Starts the lease of the reservation `id` of `key`, which is the window of `store`, again, with `lease_ms` or its own
/// length. Returns whether it is held and its lease still ran.
///
/// # Errors
///
/// Errors of reading the key, [`Refusal::Foreign`] and [`Refusal::Clock`].
pub fn renew<S: Store>(
    store: &S,
    key: &mut S::Window,
    id: &Id,
    lease_ms: Option<u64>,
) -> Result<bool, S::Error> {
    key.read(None)?;
    let Some(old) = find_live(key, id) else { return Ok(false) };
    let (now_us, lease_ms) = (store.now_us(), lease_ms.unwrap_or(old.lease_ms));
    if !old.runs(now_us) {
        return Ok(false);
    }
    let rule = store.parse_rule(old.rule.as_bytes()).ok_or(Refusal::Foreign)?;
    let lease_end_us = lease_end_us(now_us, lease_ms);
    let gone_us = store.gone_us(&rule, lease_end_us, old.counts_lapsed())?;
    if (lease_ms, lease_end_us, gone_us) == (old.lease_ms, old.lease_end_us, old.gone_us) {
        return Ok(true);
    }
    let new = Reservation { lease_ms, lease_end_us, gone_us, ..old };
    let rule_now = store.rule_now(&rule).ok_or(Refusal::Clock)?;
    let count = WindowCount::read(key.events(), rule_now)?;
    let mut expiry = count.expiry();
    if count.has_future() {
        // A renewal leaves events from the future where they are, so the key must live as long as they may count.
        let newest = key.events().newest(None)?;
        let leaves_us = newest.and_then(|newest| store.leaves_us(&rule, newest.newest_us));
        expiry = expiry.extend_to(leaves_us);
    }
    let (ids, events) = (&[id.as_bytes()], EventEdit::default());
    key.write(WindowEdit {
        reservation: Some(new.borrowed()),
        ..settling(ids, &events, key.ban(), Some(expiry))
    });
    Ok(true)
}

#[cfg(test)]
mod tests;

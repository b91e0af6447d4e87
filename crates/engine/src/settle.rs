//! Applies, releases or renews one reservation.

use crate::expiry::Expiry;
use crate::reservation::{lease_end_us, Id, Reservation, ReservationRef};
use crate::rule::Rule;
use crate::store::{BanEdit, Entries, Refusal, Store, WindowEdit, WindowKey};
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

/// Turns the reservation `id` into an event of `quantity`, or of its own quantity. A quantity of 0 releases it. Live events
/// need at most `max_entries` entries, unless the rule of the reservation sets another bound.
///
/// # Errors
///
/// The key's own, [`Refusal::Foreign`], [`Refusal::Semaphore`] and [`Refusal::Clock`].
pub fn apply<S: Store>(
    store: S,
    id: &Id,
    quantity: Option<u64>,
    max_entries: u32,
) -> Result<SettleOutcome, S::Error> {
    let mut key = store.window();
    let Some(member) = find_live(&mut key, id)? else { return Ok(SettleOutcome::NotHeld) };
    let reserved = Reservation::decode(member.as_ref()).ok_or(Refusal::Foreign)?;
    let rule = store.parse_rule(reserved.rule).ok_or(Refusal::Foreign)?;
    if matches!(rule, Rule::Semaphore) {
        return Err(Refusal::Semaphore.into());
    }
    let quantity = quantity.unwrap_or(reserved.quantity);
    if quantity == 0 {
        give_back(&mut key, member);
        return Ok(SettleOutcome::Released);
    }
    let rule_now = store.rule_now(&rule).ok_or(Refusal::Clock)?;
    let max_entries = rule_now.entries_of_rule().unwrap_or(max_entries);
    let mut count = WindowCount::read(&mut key.events(), rule_now.with_entries(max_entries))?;
    // The limit is not known here, so the event is counted as within it. Few events lie beyond the limit, as they were
    // reserved.
    let event = EventChange::Record { weight: quantity, denied: false, limit: u64::MAX };
    let events = count.plan(&mut key.events(), event, store.max_healed())?;
    settle(&mut key, member, &events, None, Some(count.expiry()));
    Ok(SettleOutcome::Counted)
}

/// Releases the reservation `id`, and returns whether it was held. With `lease_end_us` it must be the one whose lease ends
/// then: another client may have reserved under the id since.
///
/// # Errors
///
/// The key's own.
pub fn release<S: Store>(store: S, id: &Id, lease_end_us: Option<u64>) -> Result<bool, S::Error> {
    let mut key = store.window();
    let Some(member) = find_live(&mut key, id)? else { return Ok(false) };
    if lease_end_us.is_some() {
        let found = Reservation::decode(member.as_ref()).ok_or(Refusal::Foreign)?;
        if lease_end_us != Some(found.lease_end_us) {
            return Ok(false);
        }
    }
    give_back(&mut key, member);
    Ok(true)
}

/// Opens the key, and returns the stored form of the reservation `id` if it is live.
fn find_live<K: WindowKey>(key: &mut K, id: &Id) -> Result<Option<K::Member>, K::Error> {
    key.read(None)?;
    key.find_live(id.as_bytes())
}

fn give_back<K: WindowKey>(key: &mut K, member: K::Member) {
    settle(key, member, &EventEdit::default(), None, None);
}

/// Removes a reservation, and writes what replaces it: an event, a renewed reservation, or nothing. Other reservations stay
/// as they are.
fn settle<K: WindowKey>(
    key: &mut K,
    member: K::Member,
    events: &EventEdit,
    renewed: Option<ReservationRef>,
    expiry: Option<Expiry>,
) {
    let (ban, clean) = (BanEdit::Keep, false);
    key.write(WindowEdit {
        events,
        reservation: renewed,
        settled: Some(member),
        clean,
        ban,
        expiry,
    });
}

/// Starts the lease of the reservation `id` again, with `lease_ms` or its own length. Returns whether it is held and its
/// lease still ran.
///
/// # Errors
///
/// The key's own, [`Refusal::Foreign`] and [`Refusal::Clock`].
pub fn renew<S: Store>(store: S, id: &Id, lease_ms: Option<u64>) -> Result<bool, S::Error> {
    let mut key = store.window();
    let Some(member) = find_live(&mut key, id)? else { return Ok(false) };
    let old = Reservation::decode(member.as_ref()).ok_or(Refusal::Foreign)?;
    let (now_us, lease_ms) = (store.now_us(), lease_ms.unwrap_or(old.lease_ms));
    if !old.runs(now_us) {
        return Ok(false);
    }
    let rule = store.parse_rule(old.rule).ok_or(Refusal::Foreign)?;
    let lease_end_us = lease_end_us(now_us, lease_ms);
    let gone_us = store.gone_us(&rule, lease_end_us, old.counts_lapsed())?;
    let new = Reservation { lease_ms, lease_end_us, gone_us, ..old };
    let text = new.member();
    if text.as_bytes() == member.as_ref() {
        return Ok(true);
    }
    let new = Reservation::decode(text.as_bytes()).ok_or(Refusal::Foreign)?;
    let rule_now = store.rule_now(&rule).ok_or(Refusal::Clock)?;
    let count = WindowCount::read(&mut key.events(), rule_now)?;
    let mut expiry = count.expiry();
    if count.has_future() {
        // A renewal leaves events from the future where they are, so the key must live as long as they may count.
        let newest = key.events().newest(None)?;
        let leaves_us = newest.and_then(|newest| store.leaves_us(&rule, newest.newest_us));
        expiry = expiry.extend_to(leaves_us);
    }
    settle(&mut key, member, &EventEdit::default(), Some(new), Some(expiry));
    Ok(true)
}

#[cfg(test)]
mod tests;

//! What becomes of one reservation.

use super::entries::reservation;
use super::window::{release, Change, WindowKey};
use super::{Intent, Spot};
use crate::error::Error;
use crate::limit::reservation::{end_us, Id, Reservation};
use crate::limit::rule::Rule;
use crate::limit::window::Edit;
use crate::zones::zones;

/// What RL.APPLY did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The id is not held.
    NotHeld,
    /// It was given back.
    Released,
    /// It was counted.
    Counted,
}

/// Turns the reservation `id` into an event of `quantity`, or of its own quantity; 0 gives it back. Events that live
/// need at most `most_entries` entries, where the reservation's rule does not say.
pub fn apply(
    spot: Spot,
    id: &Id,
    quantity: Option<u64>,
    most_entries: u32,
) -> Result<Applied, Error> {
    let mut key = WindowKey::open(spot, Intent::Write, None)?;
    let Some(member) = key.find_live(id.as_bytes())? else { return Ok(Applied::NotHeld) };
    let reserved = reservation(&member)?;
    let rule = zones(|zones| Rule::parse(reserved.rule, zones)).ok_or(Error::NotEntry)?;
    if matches!(rule, Rule::Semaphore) {
        return Err(Error::ApplySemaphore);
    }
    let quantity = quantity.unwrap_or(reserved.quantity);
    if quantity == 0 {
        drop(key);
        release(spot, &[*id])?;
        return Ok(Applied::Released);
    }
    let moment = zones(|zones| rule.at(spot.now_us, zones)).ok_or(Error::Clock)?;
    let most_entries = moment.most_entries().unwrap_or(most_entries);
    let mut tally = key.tally(moment.with_entries(most_entries))?;
    // The limit is not known here. Who applies has reserved, so that few events can lie beyond it.
    tally.record(quantity, false, u64::MAX);
    key.plan(&mut tally, true, most_entries)?;
    let change = Change { settle: Some(member), ..Change::default() };
    // Other reservations are not this command's business.
    key.write(&tally, tally.planned(), change)?;
    Ok(Applied::Counted)
}

/// Starts the lease of the reservation `id` anew, with `lease_ms` or its own length; whether it is held.
pub fn renew(spot: Spot, id: &Id, lease_ms: Option<u64>) -> Result<bool, Error> {
    let mut key = WindowKey::open(spot, Intent::Write, None)?;
    let Some(member) = key.find_live(id.as_bytes())? else { return Ok(false) };
    let old = reservation(&member)?;
    let lease_ms = lease_ms.unwrap_or(old.lease_ms);
    let new = Reservation { lease_ms, end_us: end_us(spot.now_us, lease_ms), ..old };
    let (old_text, new_text) = (member.as_bytes(), new.member());
    if new_text.as_bytes() == old_text {
        return Ok(true);
    }
    let new = Reservation::decode(new_text.as_bytes()).ok_or(Error::internal())?;
    let moment = zones(|zones| {
        let rule = Rule::parse(new.rule, zones).ok_or(Error::NotEntry)?;
        rule.at(spot.now_us, zones).ok_or(Error::Clock)
    })?;
    // Without events that heal: they are not this command's business.
    let tally = key.tally(moment)?;
    let keep_ttl = tally.has_future();
    let change = Change { reserve: Some(new), settle: Some(member), clean: false, keep_ttl };
    key.write(&tally, &Edit::default(), change)?;
    Ok(true)
}

/// A live reservation, as RL.HELD tells of it.
pub struct Held {
    /// Its id.
    pub id: Id,
    /// How much it holds.
    pub quantity: u64,
    /// Microseconds until it lapses.
    pub left_us: u64,
}

/// The live reservations of a key, the oldest first.
pub fn held(spot: Spot) -> Result<Vec<Held>, Error> {
    let members = super::window::held(spot)?;
    let tell = |member| {
        let one = reservation(member)?;
        let left_us = one.lapses_us(spot.now_us).saturating_sub(spot.now_us);
        Ok(Held { id: Id::from(one.id), quantity: one.quantity, left_us })
    };
    members.iter().map(tell).collect()
}

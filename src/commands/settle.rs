//! RL.APPLY, RL.RELEASE, RL.RENEW and RL.HELD: what becomes of a reservation.

use super::arguments::{checked_id, Arguments};
use super::entries::{find, open, reservation};
use super::ledger::{Change, Ledger};
use super::lifetime::expire_renewed;
use super::reply;
use super::request::Spot;
use super::waiting::wake_key;
use crate::config;
use crate::error::Error;
use crate::limit::reservation::{end_us, Reservation};
use crate::limit::rule::Rule;
use crate::options::Known;
use crate::redis::call::Call;
use crate::redis::key::Key;
use crate::redis::text::OwnedString;
use crate::stats::{self, Replied};

/// `RL.APPLY key id [quantity]`
pub fn apply(call: &Call, _known: Known) -> Result<Replied, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = checked_id(arguments.next().ok_or(Error::Arity)?)?;
    let quantity = match arguments.remaining() {
        0 => None,
        1 => Some(arguments.unsigned(0, Error::Quantity)?),
        _ => return Err(Error::Arity),
    };
    let spot = Spot::of(call)?;
    let mut key = open(spot, true)?;
    let Some(member) = find_live(&key, id, spot.now_us)? else {
        return Ok(reply::settled(call, 0));
    };
    let reserved = reservation(&member)?;
    let rule = Rule::parse(reserved.rule).ok_or(Error::NotEntry)?;
    if matches!(rule, Rule::Semaphore) {
        return Err(Error::ApplySemaphore);
    }
    match quantity.unwrap_or(reserved.quantity) {
        0 => {
            key.remove(&[member]);
            drop(key);
            stats::RELEASED.add(1);
        }
        quantity => {
            let moment = rule.at(spot.now_us).ok_or(Error::Internal)?;
            let mut ledger = Ledger::read_events(key, moment)?;
            ledger.record(quantity, false);
            let most_entries = moment.most_entries().unwrap_or_else(config::window_entries);
            let change = Change { settle: Some(member), trim: true, ..Change::default() };
            ledger.write(change, most_entries)?;
            stats::APPLIED.add(1);
        }
    }
    wake_key(spot);
    Ok(reply::settled(call, 1))
}

/// `RL.RELEASE key id [id ...]`
pub fn release(call: &Call, _known: Known) -> Result<Replied, Error> {
    let mut arguments = Arguments::after_key(call);
    if arguments.remaining() == 0 {
        return Err(Error::Arity);
    }
    let mut ids = Vec::with_capacity(arguments.remaining());
    while let Some(id) = arguments.next() {
        ids.push(checked_id(id)?);
    }
    ids.sort_unstable();
    ids.dedup();
    let spot = Spot::of(call)?;
    let mut key = open(spot, true)?;
    let mut members = Vec::with_capacity(ids.len());
    for id in ids {
        members.extend(find_live(&key, id, spot.now_us)?);
    }
    if !members.is_empty() {
        key.remove(&members);
    }
    drop(key);
    wake_key(spot);
    let released = u64::try_from(members.len()).unwrap_or(u64::MAX);
    stats::RELEASED.add(released);
    Ok(reply::settled(call, released))
}

/// `RL.RENEW key id [LEASE ms]`
pub fn renew(call: &Call, known: Known) -> Result<Replied, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = checked_id(arguments.next().ok_or(Error::Arity)?)?;
    let options = arguments.options(known)?;
    let spot = Spot::of(call)?;
    let mut key = open(spot, true)?;
    let Some(member) = find_live(&key, id, spot.now_us)? else {
        return Ok(reply::settled(call, 0));
    };
    let old = reservation(&member)?;
    let lease_ms = options.lease_ms.unwrap_or(old.lease_ms);
    let end_us = end_us(spot.now_us, lease_ms);
    let renewed = Reservation { lease_ms, end_us, ..old }.member();
    if renewed.as_bytes() != member.as_bytes() {
        key.add(f64::INFINITY, renewed.as_bytes());
        key.remove(std::slice::from_ref(&member));
        expire_renewed(&mut key, &old, end_us, spot.now_us);
    }
    drop(key);
    wake_key(spot);
    Ok(reply::settled(call, 1))
}

/// `RL.HELD key`
pub fn held(call: &Call, _known: Known) -> Result<Replied, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let spot = Spot::of(call)?;
    let key = open(spot, false)?;
    let mut members = Vec::new();
    key.scan(f64::INFINITY, true, f64::INFINITY, |element| {
        if reservation(&element.member)?.live(spot.now_us) {
            members.push(element.member);
        }
        Ok::<_, Error>(true)
    })?;
    let mut reservations = members.iter().map(reservation).collect::<Result<Vec<_>, _>>()?;
    reservations.sort_by_key(|one| one.order_us);
    spot.ctx.reply_array(reservations.len());
    for one in reservations {
        spot.ctx.reply_array(3);
        spot.ctx.reply_text(one.id);
        spot.ctx.reply_integer(one.quantity);
        spot.ctx
            .reply_integer(one.lapses_us(spot.now_us).saturating_sub(spot.now_us).div_ceil(1_000));
    }
    Ok(Replied::Allowed)
}

fn find_live(key: &Key, id: &[u8], now_us: u64) -> Result<Option<OwnedString>, Error> {
    let Some(member) = find(key, id) else { return Ok(None) };
    let live = reservation(&member)?.live(now_us);
    Ok(live.then_some(member))
}

//! RL.APPLY, RL.RELEASE, RL.RENEW and RL.HELD: what becomes of a reservation.

use super::arguments::{check_id, checked_id, Arguments};
use super::key_ctx;
use super::reply;
use crate::blocking::wake_key;
use crate::config;
use crate::error::Error;
use crate::options::{Known, Options};
use crate::redis::call::Call;
use crate::state::{window, ServerKey};
use crate::stats::{self, CallResult};
use engine::settle::{self, Applied};

/// `RL.APPLY key id [quantity]`
pub fn apply(call: &Call, _known: Known) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = checked_id(arguments.next().ok_or(Error::Arity)?)?;
    let quantity = match arguments.remaining() {
        0 => None,
        1 => Some(arguments.unsigned(0, Error::Quantity)?),
        _ => return Err(Error::Arity),
    };
    let key_ctx = key_ctx(call)?;
    let applied =
        settle::apply(ServerKey::to_write(key_ctx), &id, quantity, config::window_entries())?;
    match applied {
        Applied::NotHeld => {}
        Applied::Released => stats::RELEASED.add(1),
        Applied::Counted => stats::APPLIED.add(1),
    }
    wake_key(key_ctx);
    Ok(reply::settled(call, u64::from(applied != Applied::NotHeld)))
}

/// `RL.RELEASE key id [id ...]`
pub fn release(call: &Call, _known: Known) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    if arguments.remaining() == 0 {
        return Err(Error::Arity);
    }
    let mut ids = Vec::with_capacity(arguments.remaining());
    while let Some(id) = arguments.next() {
        check_id(id)?;
        ids.push(id);
    }
    let key_ctx = key_ctx(call)?;
    let released = window::release(key_ctx, &ids)?;
    wake_key(key_ctx);
    let released = u64::try_from(released).unwrap_or(u64::MAX);
    stats::RELEASED.add(released);
    Ok(reply::settled(call, released))
}

/// `RL.RENEW key id [LEASE ms]`
pub fn renew(call: &Call, known: Known) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = checked_id(arguments.next().ok_or(Error::Arity)?)?;
    let mut options = Options::new();
    arguments.options(&mut options, known, false)?;
    let key_ctx = key_ctx(call)?;
    let renewed = settle::renew(ServerKey::to_write(key_ctx), &id, options.number(Known::LEASE))?;
    wake_key(key_ctx);
    Ok(reply::settled(call, u64::from(renewed)))
}

/// `RL.HELD key`
pub fn held(call: &Call, _known: Known) -> Result<CallResult, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let reservations = window::held(key_ctx(call)?)?;
    let ctx = call.context();
    ctx.reply_array(reservations.len());
    for one in &reservations {
        ctx.reply_array(3);
        ctx.reply_text(one.id.as_bytes());
        ctx.reply_integer(one.quantity);
        ctx.reply_integer(one.left_us.div_ceil(1_000));
    }
    Ok(CallResult::Allowed)
}

//! RL.APPLY, RL.RELEASE and RL.RENEW, which settle or renew reservations, and RL.HELD, which lists them.

use crate::arguments::Arguments;
use crate::call::{first_key, ServerCall};
use crate::environment::Environment;
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::options::{OptionSet, Options};
use crate::reply::{CallResult, ReplySink};
use crate::waiting::WaitingKeyspace;
use engine::reservation::Id;
use engine::settle::{self, SettleOutcome};
use engine::store::{Access, Store, WindowKey};
use smallvec::SmallVec;

/// `RL.APPLY key id [quantity]`
pub(crate) fn apply<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = Id::from(arguments.id()?);
    let quantity = match arguments.remaining() {
        0 => None,
        1 => Some(arguments.unsigned(0, Error::InvalidQuantity)?),
        _ => return Err(Error::Arity),
    };
    let (key, _) = first_key(call)?;
    let max_entries = call.environment().window_entries();
    let keyspace = call.keyspace();
    let mut store = keyspace.store(key, Access::Write);
    let mut window = store.window();
    let applied = settle::apply(&store, &mut window, &id, quantity, max_entries);
    let applied = applied.map_err(Into::into)?;
    keyspace.count_settled(applied, 1);
    keyspace.wake(key, Some(window));
    Ok(reply_settled(call, u64::from(applied != SettleOutcome::NotHeld)))
}

/// `RL.RELEASE key id [id ...]`
pub(crate) fn release<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    if arguments.remaining() == 0 {
        return Err(Error::Arity);
    }
    let mut ids = SmallVec::<[&[u8]; 4]>::new();
    while arguments.remaining() > 0 {
        ids.push(arguments.id()?);
    }
    let (key, _) = first_key(call)?;
    let keyspace = call.keyspace();
    let mut window = keyspace.store(key, Access::Write).window();
    let released = settle::release(&mut window, &ids).map_err(Into::into)?;
    let released = u64::try_from(released).unwrap_or(u64::MAX);
    keyspace.count_settled(SettleOutcome::Released, released);
    keyspace.wake(key, Some(window));
    Ok(reply_settled(call, released))
}

/// `RL.RENEW key id [LEASE ms]`
pub(crate) fn renew<'a, C: ServerCall<'a>>(
    call: &C,
    accepted: OptionSet,
) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = Id::from(arguments.id()?);
    let mut options = Options::default();
    arguments.options(&call.environment(), &mut options, accepted)?;
    let (key, _) = first_key(call)?;
    let keyspace = call.keyspace();
    let mut store = keyspace.store(key, Access::Write);
    let mut window = store.window();
    let renewed = settle::renew(&store, &mut window, &id, options.number(OptionSet::LEASE));
    let renewed = renewed.map_err(Into::into)?;
    drop(window);
    // Like every command that may write: another client may have changed the key.
    keyspace.wake(key, None);
    Ok(reply_settled(call, u64::from(renewed)))
}

/// Replies with the number of reservations that were settled or renewed. If there were none, the call counts as denied.
fn reply_settled<'a, C: ServerCall<'a>>(call: &C, number: u64) -> CallResult {
    call.sink().unsigned(number);
    CallResult::from_allowed(number > 0)
}

/// `RL.HELD key`
pub(crate) fn held<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let (key, _) = first_key(call)?;
    let keyspace = call.keyspace();
    let mut window = keyspace.store(key, Access::Read).window();
    window.read(None).map_err(Into::into)?;
    let reservations = window.reservations().list_live();
    let sink = call.sink();
    sink.array(reservations.len());
    for reservation in &reservations {
        sink.array(3);
        sink.text(reservation.id.as_bytes());
        sink.unsigned(reservation.quantity);
        sink.unsigned(reservation.left_us.div_ceil(1_000));
    }
    Ok(CallResult::Allowed)
}

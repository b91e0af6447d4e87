//! RL.APPLY, RL.RELEASE and RL.RENEW, which settle or renew reservations, and RL.HELD, which lists them.

use crate::arguments::Arguments;
use crate::call::{first_key, ServerCall};
use crate::environment::Environment;
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::options::{OptionSet, Options};
use crate::reply::{CallResult, ReplySink};
use crate::waiting::WaitingKeyspace;
use engine::settle::{self, Settling};
use engine::store::{Access, Settlement, Store, WindowKey};
use smallvec::SmallVec;

/// `RL.APPLY key id [quantity]`
pub(crate) fn apply<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = arguments.id()?;
    let quantity = match arguments.remaining() {
        0 => None,
        1 => Some(arguments.unsigned(0, Error::InvalidQuantity)?),
        _ => return Err(Error::Arity),
    };
    let max_entries = call.environment().window_entries();
    settle(call, &[id], Settling::Apply { quantity, max_entries })
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
    settle(call, &ids, Settling::Release)
}

/// `RL.RENEW key id [LEASE ms]`
pub(crate) fn renew<'a, C: ServerCall<'a>>(
    call: &C,
    accepted: OptionSet,
) -> Result<CallResult, Error> {
    let mut arguments = Arguments::after_key(call);
    let id = arguments.id()?;
    let mut options = Options::default();
    arguments.options(&call.environment(), &mut options, accepted)?;
    settle(call, &[id], Settling::Renew { lease_ms: options.number(OptionSet::LEASE) })
}

/// Settles or renews the reservations with these ids, and replies with their number. If there were none, the call counts as
/// denied.
fn settle<'a, C: ServerCall<'a>>(
    call: &C,
    ids: &[&[u8]],
    settling: Settling,
) -> Result<CallResult, Error> {
    let (key, _) = first_key(call)?;
    let keyspace = call.keyspace();
    let mut store = keyspace.store(key, Access::Write);
    let mut window = store.window();
    let plan = settle::plan(&store, &mut window, ids, settling).map_err(Into::into)?;
    let applies = plan.applies();
    let Settlement { number, emptied } = plan.write(window);
    let number = u64::try_from(number).unwrap_or(u64::MAX);
    match settling {
        Settling::Renew { .. } => {}
        _ if applies => keyspace.count_applied(number),
        _ => keyspace.count_released(number),
    }
    // Even after a renewal, like every command that may write: another client may have changed the key.
    keyspace.wake(key, emptied);
    call.sink().unsigned(number);
    Ok(CallResult::from_allowed(number > 0))
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

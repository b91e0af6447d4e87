//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use crate::arguments::{Arguments, Family};
use crate::call::{first_key, ServerCall};
use crate::decide::note;
use crate::error::Error;
use crate::options::{OptionSet, Options};
use crate::reply::{self, CallResult};
use crate::waiting::{is_barred, pass, place_in_line, Block, Place, WaitingCall, WaitingKeyspace};
use engine::{read, Decision, Mode, Part, Request};
use std::{iter, slice};

/// Executes a call of a command that takes. In [`Mode::Look`] it executes the _RO form, which replies as the other form would
/// if nobody waited.
pub(crate) fn take<'a, C: ServerCall<'a>>(
    call: &C,
    family: Family,
    accepted: OptionSet,
    mode: Mode,
) -> Result<CallResult, Error> {
    // Parse.
    let mut options = Options::default();
    let mut arguments = Arguments::after_key(call);
    let parsed = arguments.take_call(&call.environment(), family, accepted, &mut options);
    // Borrowed, because moving it out of the result would copy it.
    let asked = parsed.as_ref().map_err(|error| *error)?;
    let (key, now_us) = first_key(call)?;
    let block = options.block().filter(|_| call.may_block());
    // Read, judge, plan and write.
    let keyspace = &call.keyspace();
    let Attempt { decision, place } =
        decide_in_turn(keyspace, key, &asked.request, mode, block.as_ref(), now_us)?;
    if let (Some(place), Some(block)) = (place, &block) {
        let limit = iter::once((keyspace.name(key), *asked));
        let waiting = WaitingCall::new(limit, None, block);
        return call.join(key, waiting, block.ms, place).map(|()| CallResult::Later);
    }
    // Reply.
    if mode != Mode::Look {
        note(keyspace, key, asked, &decision);
    }
    Ok(reply::write_call(&call.sink(), asked, &decision))
}

/// What came of an attempt.
pub struct Attempt {
    pub decision: Decision,
    /// Where the call begins to wait. `None` if it does not wait: it is over.
    pub place: Option<Place>,
}

/// Decides a request of this time, in Unix microseconds, after the waiters on its key. Those that cannot be granted yet bar it,
/// unless they would stand behind it. With BLOCK a denied call waits if it could be granted in time.
///
/// # Errors
///
/// [`Error::Duplicate`] if a waiter will use the id of its reservation, and those of [`decide`](crate::decide::decide).
#[inline(always)]
pub fn decide_in_turn<S: WaitingKeyspace>(
    keyspace: &S,
    key: S::Key,
    request: &Request,
    mode: Mode,
    block: Option<&Block>,
    now_us: u64,
) -> Result<Attempt, Error> {
    let (looks, takes) = (mode == Mode::Look, request.takes());
    if takes && !looks {
        keyspace.wake(key, None);
    }
    let barred = is_barred(keyspace, key, request, mode, block)?;
    // The block closes the key.
    let attempt = {
        let mut part = Part::new(keyspace.store(key, mode.access()), request, 0, barred);
        let found = read(slice::from_mut(&mut part)).map_err(Into::into)?;
        let mut judged = found.judge().map_err(Into::into)?;
        let last_us = block.map(|block| block.last_us(now_us));
        let place = place_in_line(&mut judged, last_us).map_err(Into::into)?;
        // A call that waits is tried again, so its denial does not count yet.
        let denial = if place.is_some() { Mode::Try } else { mode };
        let plan = judged.plan(denial, || keyspace.new_id()).map_err(Into::into)?;
        let decision = plan.decision();
        plan.write();
        Attempt { decision, place }
    };
    if let Some(block) = block.filter(|_| takes && attempt.decision.allowed()) {
        pass(keyspace, key, request, block);
    }
    if !takes && !looks {
        // This call may have given back. A call that takes frees nothing, and the waiters before it were tried above.
        keyspace.wake(key, None);
    }
    Ok(attempt)
}

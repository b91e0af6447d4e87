//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use crate::arguments::{Arguments, LimitKind};
use crate::arrival::Arrival;
use crate::call::{first_key, ServerCall};
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::options::{OptionSet, Options};
use crate::reply::{write_call, CallResult, ReplyForm};
use crate::waiting::WaitingKeyspace;
use engine::{Mode, Part};
use std::{iter, slice};

/// Executes a call of a command that takes. In [`Mode::Look`] it executes the _RO form, which replies as the other form
/// would if nobody waited.
pub(crate) fn take<'a, C: ServerCall<'a>>(
    call: &C,
    kind: LimitKind,
    accepted: OptionSet,
    mode: Mode,
) -> Result<CallResult, Error> {
    // Parse.
    let mut options = Options::default();
    let mut arguments = Arguments::after_key(call);
    let parsed = arguments.request(&call.environment(), kind, accepted, &mut options);
    // Borrowed, because moving it out of the result would copy it.
    let asked = parsed.as_ref().map_err(|error| *error)?;
    let (request, (key, now_us)) = (&asked.request, first_key(call)?);
    let block = options.block().filter(|_| call.may_block());
    // Let waiters go first. A call that takes frees nothing, so it need not wake them afterwards.
    let keyspace = &call.keyspace();
    let (looks, takes) = (mode == Mode::Look, request.takes());
    if takes && !looks {
        keyspace.wake(key, None);
    }
    // Read, judge, plan and write.
    let arrival = Arrival { keyspace, mode, block, now_us };
    let barred = arrival.is_barred(key, request)?;
    let decision;
    // The block closes the key.
    let awaited = {
        let mut part = Part::new(keyspace.store(key, mode.access()), request, 0, barred);
        let (plan, awaited) = arrival.decide(slice::from_mut(&mut part))?;
        decision = plan.decisions().next();
        plan.write();
        awaited
    };
    let decision = decision.as_ref().ok_or(Error::internal())?;
    // It may have given back.
    if !takes && !looks {
        keyspace.wake(key, None);
    }
    // Wait or reply.
    let (keys, decisions) = (slice::from_ref(&key), slice::from_ref(decision));
    let (form, policies) = (ReplyForm::One(options.unit()), iter::once(asked.policy_id));
    if arrival.join_or_end(call, keys, policies, form, decisions, awaited)? {
        return Ok(CallResult::Waits);
    }
    write_call(&call.sink(), form, decisions)
}

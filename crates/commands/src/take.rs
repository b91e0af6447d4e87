//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use crate::arguments::{Arguments, Family};
use crate::call::{first_key, ServerCall};
use crate::decide::note;
use crate::error::Error;
use crate::options::{OptionSet, Options};
use crate::reply::{self, CallResult};
use crate::waiting::WaitingKeyspace;
use engine::line::deadline_us;
use engine::store::Store;
use engine::{read, Decision, Judged, Mode, Part, Request};
use std::slice;

/// Executes a call of a command that takes:
///
/// `RL.THROTTLE key <max_burst count period | @policy> [quantity] [LEAVE n] [ATMOST | FORCE]
/// [BLOCK ms | AHEAD ms | BAN ms] [MS]`
///
/// `RL.WINDOW key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [ATMOST | FORCE]
/// [COUNTDENIED] [BLOCK ms | BAN ms] [MS]`
///
/// `RL.ACQUIRE key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [ATMOST]
/// [LEASE ms] [COUNTLAPSED] [ID id] [BLOCK ms] [MS]`
///
/// `CL.THROTTLE key max_burst count period [quantity]`
///
/// In [`Mode::Look`] it executes the _RO form, which replies as the other form would if nobody waited:
///
/// `RL.THROTTLE_RO key <max_burst count period | @policy> [quantity] [LEAVE n] [MS]`
///
/// `RL.WINDOW_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
///
/// `RL.ACQUIRE_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
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
    let block_ms = options.number(OptionSet::BLOCK).filter(|_| call.may_block());
    let last_us = block_ms.map(|ms| deadline_us(now_us, ms).unwrap_or(u64::MAX));
    // Read, judge, plan and write.
    let keyspace = &call.keyspace();
    let Attempt { decision, wait_us } =
        decide_in_turn(keyspace, key, &asked.request, mode, last_us)?;
    if let (Some(wait_us), Some(block_ms)) = (wait_us, block_ms) {
        return call.join(key, asked, block_ms, wait_us).map(|()| CallResult::Later);
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
    /// How long the call has to wait in line, if nobody gives anything back. `None` if it does not wait: it is over.
    pub wait_us: Option<u64>,
}

/// Decides a request after the waiters on its key. Those that cannot be granted yet bar it, unless their LEAVE is larger. A
/// denied call waits if it could be granted by `last_us`, in Unix microseconds.
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
    last_us: Option<u64>,
) -> Result<Attempt, Error> {
    let (looks, takes) = (mode == Mode::Look, request.takes());
    if takes && !looks {
        keyspace.wake(key, None);
    }
    let barred = is_barred(keyspace, key, request, mode)?;
    // The block closes the key.
    let attempt = {
        let mut part = Part::new(keyspace.store(key, mode.access()), request, 0, barred);
        let found = read(slice::from_mut(&mut part)).map_err(Into::into)?;
        let mut judged = found.judge().map_err(Into::into)?;
        let wait_us = wait_in_line_us(&mut judged, last_us).map_err(Into::into)?;
        // A call that waits is tried again, so its denial does not count yet.
        let denial = if wait_us.is_some() { Mode::Try } else { mode };
        let plan = judged.plan(denial, || keyspace.new_id()).map_err(Into::into)?;
        let decision = plan.decision();
        plan.write();
        Attempt { decision, wait_us }
    };
    if !takes && !looks {
        // This call may have given back. A call that takes frees nothing, and the waiters before it were tried above.
        keyspace.wake(key, None);
    }
    Ok(attempt)
}

/// Returns the wait of a denied call that waits in line. `None` if it does not wait: without BLOCK, and if it is certain
/// that it cannot be granted by `last_us`.
///
/// What is certain is what is counted, because only time frees it. What others hold, or wait for, they may give back at any
/// moment. So the limit is judged once more as if nobody held anything: three uses of a day that are applied deny a call
/// with `BLOCK 5s` at once, and three that are held let it wait.
fn wait_in_line_us<S: Store>(
    judged: &mut Judged<S>,
    last_us: Option<u64>,
) -> Result<Option<u64>, S::Error> {
    let (Some(wait_us), Some(last_us)) = (judged.wait_us(), last_us) else { return Ok(None) };
    let earliest_us = judged.earliest_grant_us()?;
    Ok(earliest_us.filter(|earliest_us| *earliest_us <= last_us).map(|_| wait_us))
}

/// Returns whether a waiter comes before a request. That happens only if the request takes, and not in [`Mode::Look`].
///
/// # Errors
///
/// [`Error::Duplicate`] if a waiter will use the id of its reservation.
pub(crate) fn is_barred<S: WaitingKeyspace>(
    keyspace: &S,
    key: S::Key,
    request: &Request,
    mode: Mode,
) -> Result<bool, Error> {
    if mode == Mode::Look {
        return Ok(false);
    }
    let is_claimed = |id| keyspace.read_lines(key, |lines, key| lines.is_id_claimed(key, id));
    if request.id().is_some_and(is_claimed) {
        return Err(Error::Duplicate);
    }
    let leave = request.leave();
    Ok(request.takes() && keyspace.read_lines(key, |lines, key| lines.is_barred(key, leave)))
}

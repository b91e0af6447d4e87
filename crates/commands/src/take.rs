//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use crate::arguments::{Arguments, Family};
use crate::call::{first_key, CallResult, ServerCall};
use crate::decide::{decide, note};
use crate::error::Error;
use crate::options::{OptionSet, Options};
use crate::reply;
use crate::waiting::WaitingKeyspace;
use engine::line::deadline_us;
use engine::{Decision, Mode, Request, Verdict};

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
    let mut options = Options::default();
    let mut arguments = Arguments::after_key(call);
    let request = arguments.request(&call.environment(), family, accepted, &mut options);
    // Borrowed, because moving the request out of the result would copy it.
    let request = request.as_ref().map_err(|error| *error)?;
    let (key, now_us) = first_key(call)?;
    let keyspace = &call.keyspace();
    let block_ms = options.number(OptionSet::BLOCK).filter(|_| call.may_block());
    let mode = if block_ms.is_some() { Mode::Try } else { mode };
    let mut decision = decide_in_turn(keyspace, key, request, mode)?;
    if let Some(ms) = block_ms.filter(|_| !decision.allowed()) {
        if let Some(wait_us) = time_to_wait_us(&decision, now_us, ms) {
            return call.join(key, request, ms, wait_us).map(|()| CallResult::Later);
        }
        if request.count_denied {
            decision = count_denial(keyspace, key, request)?;
        }
    }
    // The call is over, as it does not wait.
    if mode != Mode::Look {
        note(keyspace, key, request, &decision);
    }
    decision.verdict = shown(decision.verdict, request);
    reply::write(&call.sink(), request, &decision);
    Ok(CallResult::from_allowed(decision.allowed()))
}

/// Returns the microseconds to wait after a denial at `now_us` until the call could be granted. `None` if that cannot be
/// within the `block_ms` milliseconds that it may wait, 0 for no limit.
pub fn time_to_wait_us(decision: &Decision, now_us: u64, block_ms: u64) -> Option<u64> {
    let last_us = deadline_us(now_us, block_ms).unwrap_or(u64::MAX);
    // A call that SHADOW lets pass counts as allowed. It has no earliest grant, so it does not wait.
    let in_time = decision.earliest_grant_us.is_some_and(|grant_us| grant_us <= last_us);
    decision.verdict.retry_after_us().filter(|_| in_time)
}

/// Decides a request after the waiters on its key. Those that cannot be granted yet bar it, unless their LEAVE is larger.
///
/// # Errors
///
/// [`Error::Duplicate`] if a waiter will use the id of its reservation, and those of [`decide`].
#[inline(always)]
pub fn decide_in_turn<S: WaitingKeyspace>(
    keyspace: &S,
    key: S::Key,
    request: &Request,
    mode: Mode,
) -> Result<Decision, Error> {
    let (looks, takes) = (mode == Mode::Look, request.takes());
    if takes && !looks {
        keyspace.wake(key, None);
    }
    let barred = is_barred(keyspace, key, request, mode)?;
    let store = keyspace.store(key, mode.access());
    // The server has checked the command.
    let decided = decide(keyspace, store, request, barred, mode, || true);
    if !takes && !looks && decided.is_ok() {
        // This call may have given back. A call that takes frees nothing, and the waiters before it were tried above.
        keyspace.wake(key, None);
    }
    decided
}

/// Decides once more a request that will not wait because it cannot be granted in time, so that its denial counts
/// (COUNTDENIED).
// Out of line, so that the common path stays small.
#[cold]
#[inline(never)]
fn count_denial<S: WaitingKeyspace>(
    keyspace: &S,
    key: S::Key,
    request: &Request,
) -> Result<Decision, Error> {
    decide_in_turn(keyspace, key, request, Mode::Final)
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

/// Returns the verdict in the reply. Under SHADOW the caller always gets what it asks for.
fn shown(verdict: Verdict, request: &Request) -> Verdict {
    let go_after_us = match verdict {
        _ if !request.shadow => return verdict,
        Verdict::Allowed { go_after_us, .. } => go_after_us,
        Verdict::Denied { .. } | Verdict::Never => 0,
    };
    Verdict::Allowed { taken: request.ask.quantity.wanted(), go_after_us }
}

//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use crate::arguments::{Arguments, Family};
use crate::attempt::{attempt_into, AttemptReply};
use crate::call::{first_key, CallResult, ServerCall};
use crate::error::Error;
use crate::notes::Notes;
use crate::options::{OptionSet, Options};
use crate::reply;
use engine::attempt::AttemptTerms;
use engine::judge::Mode;
use engine::line::deadline_us;
use engine::request::Request;

/// Carries out a call of a command that takes:
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
pub(crate) fn take<'a, C: ServerCall<'a>>(
    call: &C,
    family: Family,
    known: OptionSet,
) -> Result<CallResult, Error> {
    let mut options = Options::new();
    let environment = call.environment();
    let mut request = Request::unread();
    let mut arguments = Arguments::after_key(call);
    arguments.request(&environment, family, known, &mut options, &mut request)?;
    serve(call, &request, options.number(OptionSet::BLOCK))
}

/// Carries out a call of a taking command: replies to it, or makes it wait.
fn serve<'a, C: ServerCall<'a>>(
    call: &C,
    request: &Request,
    block_ms: Option<u64>,
) -> Result<CallResult, Error> {
    let (key, now_us) = first_key(call)?;
    let takes = request.takes();
    if takes {
        call.wake(key);
    }
    let barred = takes && call.is_barred(key, request.leave());
    if request.id().is_some_and(|id| call.id_waits(key, id)) {
        return Err(Error::Duplicate);
    }
    let block_ms = block_ms.filter(|_| takes && !request.shadow && call.may_block());
    // A denial behind a line is not counted: that would take from those who wait. A denial under SHADOW is not counted:
    // the caller does not see it.
    let counts = block_ms.is_none() && !barred && !request.shadow;
    let mode = if counts { Mode::Final } else { Mode::Try };
    let mut tried = AttemptReply::untold();
    try_on(call, key, request, AttemptTerms { barred, mode }, &mut tried)?;
    if let Some(ms) = block_ms.filter(|_| !tried.allowed()) {
        let last_us = deadline_us(now_us, ms).unwrap_or(u64::MAX);
        if tried.earliest_grant_us.is_some_and(|grant_us| grant_us <= last_us) {
            let wait_us = tried.reply.decision.verdict.retry_after_us();
            return call.join(key, request, ms, wait_us).map(|()| CallResult::Later);
        }
        if request.count_denied && !barred {
            count_denial(call, key, request, &mut tried)?;
        }
    }
    if !takes {
        // This call may have given back. One that takes frees nothing, and whoever stood before it was tried above.
        call.wake(key);
    }
    call.notes().note_end(key, request, &mut tried);
    Ok(reply::write(&call.sink(), &tried.reply))
}

/// Carries out a call of a command that tells what one that takes would answer:
///
/// `RL.THROTTLE_RO key <max_burst count period | @policy> [quantity] [LEAVE n] [MS]`
///
/// `RL.WINDOW_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
///
/// `RL.ACQUIRE_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
pub(crate) fn look<'a, C: ServerCall<'a>>(
    call: &C,
    family: Family,
    known: OptionSet,
) -> Result<CallResult, Error> {
    let (mut options, environment) = (Options::new(), call.environment());
    let mut request = Request::unread();
    let mut arguments = Arguments::after_key(call);
    arguments.request(&environment, family, known, &mut options, &mut request)?;
    let (key, _) = first_key(call)?;
    let terms = AttemptTerms { barred: false, mode: Mode::Look };
    let mut looked = AttemptReply::untold();
    try_on(call, key, &request, terms, &mut looked)?;
    looked.conclude(&request);
    Ok(reply::write(&call.sink(), &looked.reply))
}

/// Tries a call that could not be granted in time once more, so that its denial counts.
// Few calls come here, and all others are smaller without it.
#[cold]
#[inline(never)]
fn count_denial<'a, C: ServerCall<'a>>(
    call: &C,
    key: C::Key,
    request: &Request,
    tried: &mut AttemptReply,
) -> Result<(), Error> {
    try_on(call, key, request, AttemptTerms { barred: false, mode: Mode::Final }, tried)
}

/// Tries a request on a key of the server.
#[inline]
fn try_on<'a, C: ServerCall<'a>>(
    call: &C,
    key: C::Key,
    request: &Request,
    terms: AttemptTerms,
    tried: &mut AttemptReply,
) -> Result<(), Error> {
    attempt_into(call.store(key, terms.mode), request, terms, || call.new_id(), tried)?;
    call.count_dropped(tried.dropped);
    Ok(())
}

//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use super::arguments::{Arguments, Family};
use super::reply;
use crate::attempt::{attempt, AttemptTerms};
use crate::blocking;
use crate::error::Error;
use crate::observe;
use crate::options::{Known, Options};
use crate::redis::call::Call;
use crate::stats::CallResult;
use engine::judge::Mode;
use engine::request::Request;

/// `RL.THROTTLE key <max_burst count period | @policy> [quantity] [LEAVE n] [ATMOST | FORCE]
/// [BLOCK ms | AHEAD ms | BAN ms] [MS]`
pub fn throttle(call: &Call, known: Known) -> Result<CallResult, Error> {
    take(call, Family::Throttle, known)
}

/// `RL.THROTTLE_RO key <max_burst count period | @policy> [quantity] [LEAVE n] [MS]`
pub fn throttle_ro(call: &Call, known: Known) -> Result<CallResult, Error> {
    look(call, Family::Throttle, known)
}

/// `RL.WINDOW key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [ATMOST | FORCE]
/// [COUNTDENIED] [BLOCK ms | BAN ms] [MS]`
pub fn window(call: &Call, known: Known) -> Result<CallResult, Error> {
    take(call, Family::Window, known)
}

/// `RL.WINDOW_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
pub fn window_ro(call: &Call, known: Known) -> Result<CallResult, Error> {
    look(call, Family::Window, known)
}

/// `RL.ACQUIRE key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [LEASE ms] [ID id]
/// [BLOCK ms] [MS]`
pub fn acquire(call: &Call, known: Known) -> Result<CallResult, Error> {
    take(call, Family::Acquire, known)
}

/// `RL.ACQUIRE_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
pub fn acquire_ro(call: &Call, known: Known) -> Result<CallResult, Error> {
    look(call, Family::Acquire, known)
}

/// `CL.THROTTLE key max_burst count period [quantity]`
pub fn cl_throttle(call: &Call, known: Known) -> Result<CallResult, Error> {
    take(call, Family::Throttle, known)
}

fn take(call: &Call, family: Family, known: Known) -> Result<CallResult, Error> {
    let mut options = Options::new();
    let request = Arguments::after_key(call).request(family, known, &mut options);
    // By reference, as it is large.
    let request = request.as_ref().map_err(|error| *error)?;
    serve(call, request, options.number(Known::BLOCK))
}

/// Carries out a call of a taking command: answers it, or makes it wait.
fn serve(call: &Call, request: &Request, block_ms: Option<u64>) -> Result<CallResult, Error> {
    let key_ctx = super::key_ctx(call)?;
    let takes = request.takes();
    if takes {
        blocking::wake_key(key_ctx);
    }
    let barred = takes && blocking::is_barred(key_ctx, request.leave());
    if request.id().is_some_and(|id| blocking::is_waiting(key_ctx, id)) {
        return Err(Error::Duplicate);
    }
    let block_ms = block_ms.filter(|_| takes && !request.shadow && key_ctx.ctx.may_block());
    // A denial behind a line is not counted: that would take from those who wait. A denial under SHADOW is not counted:
    // the caller does not see it.
    let counts = block_ms.is_none() && !barred && !request.shadow;
    let mode = if counts { Mode::Final } else { Mode::Try };
    let mut tried = attempt(key_ctx, request, AttemptTerms { barred, mode })?;
    if let Some(ms) = block_ms.filter(|_| !tried.allowed()) {
        let last_us = if ms == 0 {
            u64::MAX
        } else {
            key_ctx.now_us.saturating_add(ms.saturating_mul(1_000))
        };
        if tried.alone_us.is_some_and(|alone_us| alone_us <= last_us) {
            let wait_us = tried.answer.decision.verdict.retry_after_us();
            return blocking::join(call, key_ctx, request, ms, wait_us).map(|()| CallResult::Later);
        }
        if request.count_denied && !barred {
            tried = attempt(key_ctx, request, AttemptTerms { barred, mode: Mode::Final })?;
        }
    }
    if !takes {
        // It may have given back. A call that takes has been barred, or nobody waits before it.
        blocking::wake_key(key_ctx);
    }
    let ended = tried.end(request);
    observe::note(key_ctx, request, ended);
    Ok(reply::answer(key_ctx.ctx, &tried.answer))
}

fn look(call: &Call, family: Family, known: Known) -> Result<CallResult, Error> {
    let request = Arguments::after_key(call).request(family, known, &mut Options::new())?;
    let key_ctx = super::key_ctx(call)?;
    let terms = AttemptTerms { barred: false, mode: Mode::Look };
    let mut looked = attempt(key_ctx, &request, terms)?;
    looked.end(&request);
    Ok(reply::answer(key_ctx.ctx, &looked.answer))
}

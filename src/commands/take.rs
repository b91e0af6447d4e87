//! RL.THROTTLE, RL.WINDOW, RL.ACQUIRE, and their forms that only look.

use super::arguments::{Arguments, Family};
use super::attempt::{attempt, Terms};
use super::{reply, waiting};
use crate::error::Error;
use crate::options::{Known, Options};
use crate::redis::call::Call;
use crate::stats::Replied;
use engine::judge::Mode;

/// `RL.THROTTLE key <max_burst count period | @policy> [quantity] [LEAVE n] [ATMOST | FORCE]
/// [BLOCK ms | AHEAD ms | BAN ms] [MS]`
pub fn throttle(call: &Call, known: Known) -> Result<Replied, Error> {
    take(call, Family::Throttle, known)
}

/// `RL.THROTTLE_RO key <max_burst count period | @policy> [quantity] [LEAVE n] [MS]`
pub fn throttle_ro(call: &Call, known: Known) -> Result<Replied, Error> {
    look(call, Family::Throttle, known)
}

/// `RL.WINDOW key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [ATMOST | FORCE]
/// [COUNTDENIED] [BLOCK ms | BAN ms] [MS]`
pub fn window(call: &Call, known: Known) -> Result<Replied, Error> {
    take(call, Family::Window, known)
}

/// `RL.WINDOW_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
pub fn window_ro(call: &Call, known: Known) -> Result<Replied, Error> {
    look(call, Family::Window, known)
}

/// `RL.ACQUIRE key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [LEASE ms] [ID id]
/// [BLOCK ms] [MS]`
pub fn acquire(call: &Call, known: Known) -> Result<Replied, Error> {
    take(call, Family::Acquire, known)
}

/// `RL.ACQUIRE_RO key <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [MS]`
pub fn acquire_ro(call: &Call, known: Known) -> Result<Replied, Error> {
    look(call, Family::Acquire, known)
}

/// `CL.THROTTLE key max_burst count period [quantity]`
pub fn cl_throttle(call: &Call, known: Known) -> Result<Replied, Error> {
    take(call, Family::Throttle, known)
}

fn take(call: &Call, family: Family, known: Known) -> Result<Replied, Error> {
    let mut options = Options::new();
    let request = Arguments::after_key(call).request(family, known, &mut options);
    // By reference, as it is large.
    let request = request.as_ref().map_err(|error| *error)?;
    waiting::serve(call, request, options.number(Known::BLOCK))
}

fn look(call: &Call, family: Family, known: Known) -> Result<Replied, Error> {
    let request = Arguments::after_key(call).request(family, known, &mut Options::new())?;
    let spot = super::spot(call)?;
    let terms = Terms { barred: false, mode: Mode::Look };
    let mut looked = attempt(spot, &request, terms)?;
    looked.end(&request);
    Ok(reply::answer(spot.ctx, &looked.answer))
}

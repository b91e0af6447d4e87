//! RL.THROTTLE and RL.THROTTLE_RO.

use super::arguments::{Arguments, Known};
use crate::error::Error;
use crate::limit::decision::TimeUnit;
use crate::limit::throttle::{decide, look, Next, Rate, Tat};
use crate::redis::call::Call;
use crate::redis::clock;
use crate::redis::key::{Key, Kind, TTL_SLACK_MS};

/// What is asked for.
struct Request {
    rate: Rate,
    quantity: i64,
    atmost: bool,
    unit: TimeUnit,
}

/// `RL.THROTTLE key max_burst count period [quantity] [ATMOST] [MS]`
pub fn throttle(call: &mut Call) -> Result<(), Error> {
    let request = parse(call, Known::MS | Known::ATMOST)?;
    let now_us = clock::command_time_us();
    let mut key = Key::write(call.context(), call.key()?);
    let stored = stored(&key)?;
    let (decision, next) = decide(&request.rate, stored, now_us, request.quantity, request.atmost);
    match next {
        Next::Keep => {}
        Next::Store(tat) => {
            key.set(tat.encode().as_bytes(), tat.full_at_ms().saturating_add(TTL_SLACK_MS));
        }
        Next::Delete => key.delete(),
    }
    drop(key);
    call.reply_decision(&decision, request.unit, request.atmost);
    Ok(())
}

/// `RL.THROTTLE_RO key max_burst count period [quantity] [MS]`
pub fn throttle_ro(call: &mut Call) -> Result<(), Error> {
    let request = parse(call, Known::MS)?;
    let now_us = clock::command_time_us();
    let key = Key::read(call.context(), call.key()?);
    let stored = stored(&key)?;
    let decision = look(&request.rate, stored, now_us, request.quantity);
    call.reply_decision(&decision, request.unit, false);
    Ok(())
}

fn parse(call: &Call, known: Known) -> Result<Request, Error> {
    let mut arguments = Arguments::after_key(call);
    let max_burst = arguments.unsigned(0, Error::MaxBurst)?;
    if max_burst == i64::MAX.unsigned_abs() {
        return Err(Error::MaxBurst);
    }
    let count = arguments.unsigned(1, Error::Count)?;
    let period_ms = arguments.fixed_period_ms()?;
    let quantity = arguments.quantity(i64::MIN, Error::SignedQuantity)?;
    let options = arguments.options(known)?;
    if options.atmost && quantity < 0 {
        return Err(Error::AtmostNegative);
    }
    let rate = Rate::new(max_burst, count, period_ms).map_err(|_| Error::BucketTooLong)?;
    Ok(Request { rate, quantity, atmost: options.atmost, unit: options.unit })
}

fn stored(key: &Key) -> Result<Option<Tat>, Error> {
    match key.kind() {
        Kind::Empty => Ok(None),
        Kind::String => Tat::decode(key.string()).map(Some).ok_or(Error::NotTat),
        Kind::Zset | Kind::Other => Err(Error::NotString),
    }
}

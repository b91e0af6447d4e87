//! RL.THROTTLE and RL.THROTTLE_RO.

use super::arguments::Arguments;
use super::request::{look, Attempt, Mode, Request as Any, Spot, Terms};
use super::waiting;
use crate::answer::{Answer, Sixth};
use crate::error::Error;
use crate::limit::decision::{Decision, TimeUnit};
use crate::limit::throttle::{self, bar, decide, Next, Rate, Tat};
use crate::options::Known;
use crate::redis::call::Call;
use crate::redis::key::{Key, Kind, TTL_SLACK_MS};
use crate::stats::Replied;

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Request {
    rate: Rate,
    /// Below 0 gives back.
    pub quantity: i64,
    atmost: bool,
    unit: TimeUnit,
}

/// `RL.THROTTLE key max_burst count period [quantity] [ATMOST] [BLOCK ms] [MS]`
pub fn throttle(call: &Call, known: Known) -> Result<Replied, Error> {
    let (request, block_ms) = parse(call, known)?;
    waiting::serve(call, Any::Throttle(request), block_ms)
}

/// `RL.THROTTLE_RO key max_burst count period [quantity] [MS]`
pub fn throttle_ro(call: &Call, known: Known) -> Result<Replied, Error> {
    let (request, _) = parse(call, known)?;
    look(call, Any::Throttle(request))
}

fn parse(call: &Call, known: Known) -> Result<(Request, Option<u64>), Error> {
    let mut arguments = Arguments::after_key(call);
    let max_burst = arguments.unsigned(0, Error::MaxBurst)?;
    if max_burst == i64::MAX.unsigned_abs() {
        return Err(Error::MaxBurst);
    }
    let count = arguments.unsigned(1, Error::Count)?;
    let period_ms = arguments.plain_period_ms()?;
    let quantity = arguments.quantity(i64::MIN, Error::SignedQuantity)?;
    let options = arguments.options(known)?;
    if options.atmost && quantity < 0 {
        return Err(Error::AtmostNegative);
    }
    let rate = Rate::new(max_burst, count, period_ms).map_err(|_| Error::BucketTooLong)?;
    let request = Request { rate, quantity, atmost: options.atmost, unit: options.unit };
    Ok((request, options.block_ms))
}

impl Request {
    /// Takes from the bucket, or gives back.
    pub fn attempt(&self, spot: Spot, terms: Terms) -> Result<Attempt, Error> {
        let Spot { ctx, name, now_us } = spot;
        let write = terms.mode != Mode::Look;
        let mut key = if write { Key::write(ctx, name) } else { Key::read(ctx, name) };
        let stored = stored(&key)?;
        let Request { rate, quantity, atmost, .. } = self;
        let (mut decision, mut next) = if write {
            decide(rate, stored, now_us, *quantity, *atmost)
        } else {
            (throttle::look(rate, stored, now_us, *quantity, *atmost), Next::Keep)
        };
        if terms.barred {
            (decision, next) = bar(rate, stored, now_us, decision, next);
        }
        if write {
            store(&mut key, next);
        }
        let answer = self.answer(decision);
        if decision.allowed() {
            return Ok(Attempt::Allowed(answer));
        }
        let alone_us = decision.retry_after_us.map(|wait_us| now_us.saturating_add(wait_us));
        Ok(Attempt::Denied { answer, alone_us })
    }

    /// Puts back into the bucket what was granted.
    pub fn give_back(&self, spot: Spot, answer: &Answer) -> Result<(), Error> {
        let mut key = Key::write(spot.ctx, spot.name);
        let granted = i64::try_from(answer.decision.granted).unwrap_or(i64::MAX);
        let stored = stored(&key)?;
        let (_, next) = decide(&self.rate, stored, spot.now_us, granted.saturating_neg(), false);
        store(&mut key, next);
        Ok(())
    }

    fn answer(&self, decision: Decision) -> Answer {
        let sixth = if self.atmost { Sixth::Granted } else { Sixth::Absent };
        Answer { decision, unit: self.unit, sixth }
    }
}

fn stored(key: &Key) -> Result<Option<Tat>, Error> {
    match key.kind() {
        Kind::Empty => Ok(None),
        Kind::String => Tat::decode(key.string()).map(Some).ok_or(Error::NotTat),
        Kind::Zset | Kind::Other => Err(Error::NotString),
    }
}

fn store(key: &mut Key, next: Next) {
    match next {
        Next::Keep => {}
        Next::Store(tat) => {
            key.set(tat.encode().as_bytes(), tat.full_at_ms().saturating_add(TTL_SLACK_MS));
        }
        Next::Delete => key.delete(),
    }
}

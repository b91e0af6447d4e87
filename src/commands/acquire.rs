//! RL.ACQUIRE and RL.ACQUIRE_RO.

use super::arguments::{Arguments, Known, Shape};
use super::ledger::{open, Change, Ledger};
use crate::config;
use crate::error::Error;
use crate::limit::decimal::Text;
use crate::limit::decision::{Decision, TimeUnit};
use crate::limit::reservation::{end_us, Reservation, MAX_ID};
use crate::limit::window::{Ask, Judgement};
use crate::redis::call::{Call, Context, KeyName};
use crate::redis::{clock, random};

/// An id of a reservation.
pub type Id = Text<MAX_ID>;

/// What is asked for.
#[derive(Clone, Copy)]
struct Request {
    limit: u64,
    shape: Shape,
    quantity: u64,
    lease_ms: u64,
    id: Option<Id>,
    unit: TimeUnit,
}

/// `RL.ACQUIRE key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [LEASE ms] [ID id] [MS]`
pub fn acquire(call: &mut Call) -> Result<(), Error> {
    let request = parse(call, Known::MS | Known::WINDOW | Known::LEASE | Known::ID)?;
    let now_us = clock::command_time_us();
    let (decision, id) = attempt(call.context(), call.key()?, &request, now_us)?;
    call.reply_reservation(&decision, request.unit, id.as_ref().map(Text::as_bytes));
    Ok(())
}

/// `RL.ACQUIRE_RO key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [MS]`
pub fn acquire_ro(call: &mut Call) -> Result<(), Error> {
    let request = parse(call, Known::MS | Known::WINDOW)?;
    let now_us = clock::command_time_us();
    let moment = request.shape.rule.at(now_us).ok_or(Error::Internal)?;
    let mut ledger = Ledger::read(open(call.context(), call.key()?, false)?, moment)?;
    let ask = request.ask();
    let judgement = ledger.judge(&ask);
    let decision = ledger.answer(&ask, judgement)?;
    call.reply_reservation(&decision, request.unit, None);
    Ok(())
}

impl Request {
    fn ask(&self) -> Ask {
        Ask { limit: self.limit, quantity: self.quantity, atmost: false, barred: false }
    }
}

/// Sets aside what the request asks for, if it can be had at `now_us`.
fn attempt(
    ctx: Context,
    name: KeyName,
    request: &Request,
    now_us: u64,
) -> Result<(Decision, Option<Id>), Error> {
    let moment = request.shape.rule.at(now_us).ok_or(Error::Internal)?;
    let mut ledger = Ledger::read(open(ctx, name, true)?, moment)?;
    if let Some(id) = &request.id {
        if !ledger.is_free(id.as_bytes())? {
            return Err(Error::Duplicate);
        }
    }
    let ask = request.ask();
    let judgement = ledger.judge(&ask);
    let quantity = match judgement {
        Judgement::Granted(quantity @ 1..) => quantity,
        _ => {
            let write = ledger.must_heal() && matches!(judgement, Judgement::Wanting { .. });
            let decision = ledger.answer(&ask, judgement)?;
            if write {
                ledger.write(Change::default(), request.shape.entries)?;
            }
            return Ok((decision, None));
        }
    };
    if u64::try_from(ledger.held()).unwrap_or(u64::MAX) >= config::MAX_RESERVATIONS.get() {
        return Err(Error::TooManyReservations);
    }
    let end_us = end_us(now_us, request.lease_ms);
    ledger.hold(end_us, quantity);
    let decision = ledger.answer(&ask, judgement)?;
    let id = request.id.unwrap_or_else(random::id);
    let reservation = Reservation {
        id: id.as_bytes(),
        quantity,
        lease_ms: request.lease_ms,
        end_us,
        order_us: ledger.order_us(),
        rule: request.shape.rule.write().as_bytes(),
    }
    .member();
    let change = Change { reserve: Some(reservation.as_bytes()), trim: true, ..Change::default() };
    ledger.write(change, request.shape.entries)?;
    Ok((decision, Some(id)))
}

fn parse(call: &Call, known: Known) -> Result<Request, Error> {
    let mut arguments = Arguments::after_key(call);
    let limit = arguments.unsigned(0, Error::Limit)?;
    let period = arguments.period(true)?;
    let quantity = arguments.quantity(0, Error::Quantity)?.unsigned_abs();
    let options = arguments.options(known)?;
    Ok(Request {
        limit,
        shape: options.shape(limit, period)?,
        quantity,
        lease_ms: options.lease_ms.unwrap_or_else(|| config::LEASE_MS.get()),
        id: options.id.map(Id::from),
        unit: options.unit,
    })
}

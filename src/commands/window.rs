//! RL.WINDOW and RL.WINDOW_RO.

use super::arguments::{Arguments, Known, Shape};
use super::ledger::{open, Change, Ledger};
use crate::error::Error;
use crate::limit::decision::{Decision, TimeUnit};
use crate::limit::window::{Ask, Judgement};
use crate::redis::call::{Call, Context, KeyName};
use crate::redis::clock;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct Request {
    limit: u64,
    shape: Shape,
    quantity: u64,
    atmost: bool,
    count_denied: bool,
    unit: TimeUnit,
}

/// `RL.WINDOW key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [ATMOST] [COUNTDENIED] [MS]`
pub fn window(call: &mut Call) -> Result<(), Error> {
    let request = parse(call, Known::MS | Known::WINDOW | Known::ATMOST | Known::COUNTDENIED)?;
    let now_us = clock::command_time_us();
    let decision = attempt(call.context(), call.key()?, &request, now_us)?;
    call.reply_decision(&decision, request.unit, request.atmost);
    Ok(())
}

/// `RL.WINDOW_RO key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [MS]`
pub fn window_ro(call: &mut Call) -> Result<(), Error> {
    let request = parse(call, Known::MS | Known::WINDOW)?;
    let now_us = clock::command_time_us();
    let moment = request.shape.rule.at(now_us).ok_or(Error::Internal)?;
    let mut ledger = Ledger::read(open(call.context(), call.key()?, false)?, moment)?;
    let ask = request.ask();
    let judgement = ledger.judge(&ask);
    let decision = ledger.answer(&ask, judgement)?.without_held();
    call.reply_decision(&decision, request.unit, false);
    Ok(())
}

impl Request {
    fn ask(&self) -> Ask {
        Ask { limit: self.limit, quantity: self.quantity, atmost: self.atmost, barred: false }
    }
}

/// Takes from the window what the request asks for, if it can be had at `now_us`.
fn attempt(ctx: Context, name: KeyName, request: &Request, now_us: u64) -> Result<Decision, Error> {
    let moment = request.shape.rule.at(now_us).ok_or(Error::Internal)?;
    let mut ledger = Ledger::read(open(ctx, name, true)?, moment)?;
    let ask = request.ask();
    let mut judgement = ledger.judge(&ask);
    let (mut write, mut admitted) = (false, false);
    match judgement {
        Judgement::Granted(0) | Judgement::Never => {}
        Judgement::Granted(quantity) => {
            ledger.record(quantity, false);
            (write, admitted) = (true, true);
        }
        Judgement::Wanting { .. } => {
            write = ledger.must_heal();
            if request.count_denied && request.quantity <= request.limit {
                ledger.record(request.quantity, true);
                judgement = ledger.judge(&ask);
                write = true;
            }
        }
    }
    let decision = ledger.answer(&ask, judgement)?.without_held();
    if write {
        let trim = admitted || request.count_denied;
        ledger.write(Change { trim, ..Change::default() }, request.shape.entries)?;
    }
    Ok(decision)
}

fn parse(call: &Call, known: Known) -> Result<Request, Error> {
    let mut arguments = Arguments::after_key(call);
    let limit = arguments.unsigned(0, Error::Limit)?;
    let period = arguments.period(false)?;
    let quantity = arguments.quantity(0, Error::Quantity)?.unsigned_abs();
    let options = arguments.options(known)?;
    Ok(Request {
        limit,
        shape: options.shape(limit, period)?,
        quantity,
        atmost: options.atmost,
        count_denied: options.count_denied,
        unit: options.unit,
    })
}

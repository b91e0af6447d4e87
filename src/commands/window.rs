//! RL.WINDOW and RL.WINDOW_RO.

use super::arguments::{Arguments, Known, Shape};
use super::entries::open;
use super::ledger::{retract, Change, Ledger};
use super::request::{look, Attempt, Mode, Request as Any, Terms};
use super::waiting;
use crate::answer::{Answer, Sixth};
use crate::error::Error;
use crate::limit::decision::TimeUnit;
use crate::limit::window::{Ask, Judgement};
use crate::redis::call::{Call, Context, KeyName};

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Request {
    limit: u64,
    shape: Shape,
    /// 0 looks.
    pub quantity: u64,
    atmost: bool,
    /// Denied calls count as well.
    pub count_denied: bool,
    unit: TimeUnit,
}

/// `RL.WINDOW key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [ATMOST] [COUNTDENIED] [BLOCK ms] [MS]`
pub fn window(call: &mut Call) -> Result<(), Error> {
    let known = Known::MS | Known::WINDOW | Known::ATMOST | Known::COUNTDENIED | Known::BLOCK;
    let (request, block_ms) = parse(call, known)?;
    waiting::serve(call, Any::Window(request), block_ms)
}

/// `RL.WINDOW_RO key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [MS]`
pub fn window_ro(call: &mut Call) -> Result<(), Error> {
    let (request, _) = parse(call, Known::MS | Known::WINDOW)?;
    look(call, Any::Window(request))
}

fn parse(call: &Call, known: Known) -> Result<(Request, Option<u64>), Error> {
    let mut arguments = Arguments::after_key(call);
    let limit = arguments.unsigned(0, Error::Limit)?;
    let period = arguments.period(false)?;
    let quantity = arguments.quantity(0, Error::Quantity)?.unsigned_abs();
    let options = arguments.options(known)?;
    let request = Request {
        limit,
        shape: options.shape(limit, period)?,
        quantity,
        atmost: options.atmost,
        count_denied: options.count_denied,
        unit: options.unit,
    };
    Ok((request, options.block_ms))
}

impl Request {
    /// Counts an event, if the window has room.
    pub fn attempt(
        &self,
        ctx: Context,
        name: KeyName,
        now_us: u64,
        terms: Terms,
    ) -> Result<Attempt, Error> {
        let Shape { rule, entries } = self.shape;
        let moment = rule.at(now_us).ok_or(Error::Internal)?.folding_denied(entries);
        let mut ledger = Ledger::read(open(ctx, name, terms.mode != Mode::Look)?, moment, None)?;
        let ask = Ask {
            limit: self.limit,
            quantity: self.quantity,
            atmost: self.atmost,
            barred: terms.barred && self.quantity > 0,
        };
        let mut judgement = ledger.judge(&ask);
        let (mut write, mut trim) = (false, false);
        match judgement {
            Judgement::Granted(quantity) if quantity > 0 && terms.mode != Mode::Look => {
                ledger.record(quantity, false);
                (write, trim) = (true, true);
            }
            Judgement::Granted(_) | Judgement::Never => {}
            Judgement::Wanting { .. } => {
                write = ledger.must_heal();
                if terms.mode == Mode::Last && self.count_denied && self.quantity <= self.limit {
                    ledger.record(self.quantity, true);
                    judgement = ledger.judge(&ask);
                    (write, trim) = (true, true);
                }
            }
        }
        let decision = ledger.answer(&ask, judgement)?.without_held();
        let sixth = if self.atmost { Sixth::Granted } else { Sixth::Absent };
        let answer = Answer { decision, unit: self.unit, sixth };
        let attempt = if decision.allowed() {
            Attempt::Allowed(answer)
        } else {
            let alone_us = if terms.mode == Mode::Try { ledger.alone_us(&ask)? } else { None };
            Attempt::Denied { answer, alone_us }
        };
        if write && terms.mode != Mode::Look {
            ledger.write(Change { trim, ..Change::default() }, entries)?;
        }
        Ok(attempt)
    }

    /// Takes back the event that was granted.
    pub fn give_back(
        &self,
        ctx: Context,
        name: KeyName,
        answer: &Answer,
        granted_us: u64,
    ) -> Result<(), Error> {
        retract(&mut open(ctx, name, true)?, answer.decision.granted, granted_us)
    }
}

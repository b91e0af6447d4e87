//! RL.WINDOW and RL.WINDOW_RO.

use super::arguments::{windowed, Shape, Windowed};
use super::entries::{event, open};
use super::ledger::{Change, Ledger};
use super::request::{look, Attempt, Mode, Request as Any, Spot, Terms};
use super::waiting;
use crate::answer::{Answer, Sixth};
use crate::error::Error;
use crate::limit::decision::TimeUnit;
use crate::limit::event::Event;
use crate::limit::window::{Ask, Judgement};
use crate::options::Known;
use crate::redis::call::Call;
use crate::redis::key::Key;
use crate::redis::text::OwnedString;
use crate::stats::Replied;

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
pub fn window(call: &Call, known: Known) -> Result<Replied, Error> {
    let (request, block_ms) = parse(call, known)?;
    waiting::serve(call, Any::Window(request), block_ms)
}

/// `RL.WINDOW_RO key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [MS]`
pub fn window_ro(call: &Call, known: Known) -> Result<Replied, Error> {
    let (request, _) = parse(call, known)?;
    look(call, Any::Window(request))
}

fn parse(call: &Call, known: Known) -> Result<(Request, Option<u64>), Error> {
    let Windowed { limit, quantity, shape, options } = windowed(call, false, known)?;
    let request = Request {
        limit,
        shape,
        quantity,
        atmost: options.atmost,
        count_denied: options.count_denied,
        unit: options.unit,
    };
    Ok((request, options.block_ms))
}

impl Request {
    /// Counts an event, if the window has room.
    pub fn attempt(&self, spot: Spot, terms: Terms) -> Result<Attempt, Error> {
        let Shape { rule, most_entries } = self.shape;
        let moment = rule.at(spot.now_us).ok_or(Error::Internal)?.folding_denied(most_entries);
        let mut ledger = Ledger::read(open(spot, terms.mode != Mode::Look)?, moment, None)?;
        let ask = Ask {
            limit: self.limit,
            quantity: self.quantity,
            atmost: self.atmost,
            barred: terms.barred,
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
                write = ledger.must_write();
                if terms.mode == Mode::Final && self.count_denied && self.quantity <= self.limit {
                    ledger.record(self.quantity, true);
                    judgement = ledger.judge(&ask);
                    (write, trim) = (true, true);
                }
            }
        }
        let decision = ledger.decision(&ask, judgement)?.without_held();
        let sixth = if self.atmost { Sixth::Granted } else { Sixth::Absent };
        let answer = Answer { decision, unit: self.unit, sixth };
        let attempt = if decision.allowed() {
            Attempt::Allowed(answer)
        } else {
            let alone_us = if terms.mode == Mode::Try { ledger.alone_us(&ask)? } else { None };
            Attempt::Denied { answer, alone_us }
        };
        if write && terms.mode != Mode::Look {
            ledger.write(Change { trim, ..Change::default() }, most_entries)?;
        }
        Ok(attempt)
    }

    /// Takes back the event that was granted.
    pub fn give_back(&self, spot: Spot, answer: &Answer, granted_us: u64) -> Result<(), Error> {
        retract(&mut open(spot, true)?, answer.decision.granted, granted_us)
    }
}

/// More entries than this are not rewritten to take back an event.
const RETRACT_MOST: usize = 64;

/// Takes back an event of `weight` that was counted at `at_us`, out of its entry and the totals of those that came
/// since. Few can have come: where there are many, or the entry is none of that time any more, it stays.
fn retract(key: &mut Key, weight: u64, at_us: u64) -> Result<(), Error> {
    let mut events = Vec::new();
    key.scan(at_us as f64, true, f64::MAX, |element| {
        events.push(event(&element, at_us)?);
        Ok::<_, Error>(events.len() <= RETRACT_MOST)
    })?;
    let holds = |first: &Event| first.first_us() <= at_us && first.weight >= weight;
    if events.len() > RETRACT_MOST || !events.first().is_some_and(holds) {
        return Ok(());
    }
    let mut remove: Vec<_> = events.iter().map(Event::member).collect();
    for (at, event) in events.iter_mut().enumerate() {
        event.total = event.total.wrapping_sub(weight);
        if at == 0 {
            event.weight = event.weight.saturating_sub(weight);
        }
        if event.weight > 0 {
            // It may be the member of the one before, which then only moves.
            let member = event.member();
            key.add(event.newest_us as f64, member.as_bytes());
            remove.retain(|old| old.as_bytes() != member.as_bytes());
        }
    }
    let remove: Vec<_> = remove.iter().map(|old| OwnedString::new(old.as_bytes())).collect();
    if !remove.is_empty() {
        key.remove(&remove);
    }
    Ok(())
}

//! RL.ACQUIRE and RL.ACQUIRE_RO.

use super::arguments::{windowed, Shape, Windowed};
use super::entries::{find, open, reservation};
use super::ledger::{Change, Ledger};
use super::request::{look, Attempt, Mode, Request as Any, Spot, Terms};
use super::waiting;
use crate::answer::{Answer, Id, Sixth};
use crate::config;
use crate::error::Error;
use crate::limit::decision::{Decision, TimeUnit};
use crate::limit::reservation::{end_us, Reservation};
use crate::limit::window::{Ask, Judgement};
use crate::options::Known;
use crate::redis::call::Call;
use crate::redis::random;
use crate::stats::Replied;

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Request {
    limit: u64,
    shape: Shape,
    /// 0 looks.
    pub quantity: u64,
    lease_ms: u64,
    /// What the caller calls the reservation.
    pub id: Option<Id>,
    unit: TimeUnit,
}

/// `RL.ACQUIRE key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [LEASE ms] [ID id] [BLOCK ms] [MS]`
pub fn acquire(call: &Call, known: Known) -> Result<Replied, Error> {
    let (request, block_ms) = parse(call, known)?;
    waiting::serve(call, Any::Acquire(request), block_ms)
}

/// `RL.ACQUIRE_RO key limit period [quantity] [BUCKETS n | FIXED [TZ zone]] [MS]`
pub fn acquire_ro(call: &Call, known: Known) -> Result<Replied, Error> {
    let (request, _) = parse(call, known)?;
    look(call, Any::Acquire(request))
}

fn parse(call: &Call, known: Known) -> Result<(Request, Option<u64>), Error> {
    let Windowed { limit, quantity, shape, options } = windowed(call, true, known)?;
    let request = Request {
        limit,
        shape,
        quantity,
        lease_ms: options.lease_ms.unwrap_or_else(|| config::LEASE_MS.get()),
        id: options.id.map(Id::from),
        unit: options.unit,
    };
    Ok((request, options.block_ms))
}

impl Request {
    /// Sets aside what is asked for, if there is room.
    pub fn attempt(&self, spot: Spot, terms: Terms) -> Result<Attempt, Error> {
        let now_us = spot.now_us;
        let moment = self.shape.rule.at(now_us).ok_or(Error::Internal)?;
        let key = open(spot, terms.mode != Mode::Look)?;
        let mut ledger = Ledger::read(key, moment, self.id.as_ref().map(Id::as_bytes))?;
        if ledger.reservations().has_id && terms.mode != Mode::Look {
            return Err(Error::Duplicate);
        }
        let ask =
            Ask { limit: self.limit, quantity: self.quantity, atmost: false, barred: terms.barred };
        let judgement = ledger.judge(&ask);
        if let Judgement::Wanting { .. } | Judgement::Never = judgement {
            let answer = self.answer(ledger.decision(&ask, judgement)?, None);
            let alone_us = if terms.mode == Mode::Try { ledger.alone_us(&ask)? } else { None };
            let write = ledger.must_write() && judgement != Judgement::Never;
            if write && terms.mode != Mode::Look {
                ledger.write(Change::default(), self.shape.most_entries)?;
            }
            return Ok(Attempt::Denied { answer, alone_us });
        }
        if self.quantity == 0 || terms.mode == Mode::Look {
            let decision = ledger.decision(&ask, judgement)?;
            return Ok(Attempt::Allowed(self.answer(decision, None)));
        }
        let live = ledger.reservations().live.len();
        if u64::try_from(live).unwrap_or(u64::MAX) >= config::MAX_RESERVATIONS.get() {
            return Err(Error::TooManyReservations);
        }
        let end_us = end_us(now_us, self.lease_ms);
        ledger.hold(end_us, self.quantity);
        let decision = ledger.decision(&ask, judgement)?;
        let id = self.id.unwrap_or_else(|| Id::from(random::id().as_slice()));
        let reservation = Reservation {
            id: id.as_bytes(),
            quantity: self.quantity,
            lease_ms: self.lease_ms,
            end_us,
            order_us: ledger.reservations().next_order_us(now_us),
            rule: self.shape.rule.write().as_bytes(),
        }
        .member();
        let change =
            Change { reserve: Some(reservation.as_bytes()), trim: true, ..Change::default() };
        ledger.write(change, self.shape.most_entries)?;
        Ok(Attempt::Allowed(self.answer(decision, Some(id))))
    }

    /// Releases the reservation that was granted at `granted_us`.
    pub fn give_back(&self, spot: Spot, answer: &Answer, granted_us: u64) -> Result<(), Error> {
        let Sixth::Id(Some(id)) = &answer.sixth else { return Ok(()) };
        let mut key = open(spot, true)?;
        let Some(member) = find(&key, id.as_bytes()) else { return Ok(()) };
        // It may have been released, and the id taken by somebody else.
        if reservation(&member)?.end_us == end_us(granted_us, self.lease_ms) {
            key.remove(&[member]);
        }
        Ok(())
    }

    fn answer(&self, decision: Decision, id: Option<Id>) -> Answer {
        Answer { decision, unit: self.unit, sixth: Sixth::Id(id) }
    }
}

//! The order of work of every call that takes or looks, over one limit or many.
//!
//! ```text
//! open and read all --> judge all --> carry out all --> write all --> observe
//! an error here leaves everything as it is              only here is anything written
//! ```

use super::policies::Ended;
use super::{observe, waiting};
use crate::answer::{Answer, Sixth};
use crate::error::Error;
use crate::limit::all::{self, Share};
use crate::limit::decision::{Ask, Manner, Quantity, Verdict};
use crate::limit::request::{Limit, Request};
use crate::limit::reservation::{end_us, Id};
use crate::redis::random;
use crate::state::part::{Judged, Planned};
use crate::state::window::release_untold;
use crate::state::{Intent, Spot};
use crate::stats;

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Others wait on the key and came before: nothing is granted.
    pub barred: bool,
    /// What may be written.
    pub mode: Mode,
}

/// What an attempt may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A grant, and what heals. A denial counts for nothing, as the call goes on waiting.
    Try,
    /// All that, and a denial with COUNTDENIED.
    Final,
    /// Nothing.
    Look,
}

impl Mode {
    fn intent(self) -> Intent {
        if self == Mode::Look {
            Intent::Read
        } else {
            Intent::Write
        }
    }
}

/// How an attempt went.
pub enum Attempt {
    /// The request was granted, or only looked or gave back.
    Allowed(Answer),
    /// It was not.
    Denied {
        /// What the caller is told.
        answer: Answer,
        /// When the request could be granted if nothing were held and nobody waited, in Unix microseconds; `None`
        /// if never. Only worked out for a call that may wait.
        alone_us: Option<u64>,
    },
}

impl Attempt {
    /// What the caller of `request` is told if that is the end of it, and how it ended. Under a policy with SHADOW
    /// nobody is told of a denial.
    pub fn end(self, request: &Request) -> (Answer, Ended) {
        let (mut answer, ended) = match self {
            Attempt::Allowed(answer) => (answer, Ended::Allowed),
            Attempt::Denied { answer, .. } if request.shadow => (answer, Ended::ShadowDenied),
            Attempt::Denied { answer, .. } => (answer, Ended::Denied),
        };
        if request.shadow {
            let verdict = &mut answer.decision.verdict;
            let go_after_us = match verdict {
                Verdict::Allowed { go_after_us, .. } => *go_after_us,
                Verdict::Denied { .. } | Verdict::Never => 0,
            };
            *verdict = Verdict::Allowed { taken: request.ask.quantity.wanted(), go_after_us };
        }
        (answer, ended)
    }
}

/// One limit of a call: what is asked of which key, and how far that has come.
pub struct Part<'c> {
    spot: Spot<'c>,
    request: &'c Request,
    /// It must be allowed, and takes nothing (CHECK).
    check: bool,
    /// It is told, and never denies the call (SHADOW).
    shadow: bool,
    barred: bool,
    /// A denial may be counted (COUNTDENIED).
    may_count: bool,
    /// Whether the part was allowed, before a denial was counted.
    allowed: bool,
    judged: Judged<'c>,
    planned: Option<Planned>,
}

impl<'c> Part<'c> {
    /// A part that nothing was done for yet.
    pub fn of(spot: Spot<'c>, request: &'c Request, check: bool, shadow: bool) -> Part<'c> {
        Part {
            spot,
            request,
            check,
            shadow,
            barred: false,
            may_count: true,
            allowed: false,
            judged: Judged::of(spot, request),
            planned: None,
        }
    }

    /// Plans what follows from the verdict on the part, and from the one on the whole call.
    fn plan(&mut self, mode: Mode, call_allowed: bool) -> Result<(), Error> {
        let judged = &mut self.judged;
        self.allowed = judged.verdict().allowed();
        let planned = match mode {
            Mode::Look => judged.look()?,
            _ if call_allowed && self.allowed && self.check => judged.look()?,
            _ if call_allowed && self.allowed => judged.grant(|| Id::from(&random::id()[..]))?,
            Mode::Final if !call_allowed && self.may_count && judged.counts_denial() => {
                judged.count_denial()?
            }
            Mode::Try | Mode::Final => judged.deny()?,
        };
        self.planned = Some(planned);
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        let planned = self.planned.as_ref().ok_or(Error::Internal)?;
        let lapsed = self.judged.write(planned)?;
        if lapsed > 0 {
            stats::LAPSED.add(u64::try_from(lapsed).unwrap_or(0));
        }
        Ok(())
    }

    /// Notes how the part ended, where the whole call was allowed or not.
    pub fn note(&self, call_allowed: bool) {
        let ended = match (self.allowed, self.shadow) {
            (true, _) if call_allowed => Ended::Allowed,
            (true, _) => return,
            (false, true) => Ended::ShadowDenied,
            (false, false) => Ended::Denied,
        };
        observe::note(self.spot, self.request, ended);
    }

    /// The part as it weighs in the answer of the whole call, once that is done.
    pub fn share(&self) -> Result<Share, Error> {
        let quantity = if self.check { 0 } else { self.request.ask.quantity.wanted() };
        Ok(Share { decision: answer(self)?.decision, quantity, shadow: self.shadow })
    }
}

/// What the caller is told of a part, once that is done.
pub fn answer(part: &Part) -> Result<Answer, Error> {
    let planned = part.planned.as_ref().ok_or(Error::Internal)?;
    Ok(Answer::to(part.request, planned.decision, part.judged.new_id()))
}

/// Tries all parts, all or nothing; whether the call is allowed. The order of work is the same for one part and for
/// many. An error leaves every key as it was.
fn run(parts: &mut [Part], mode: Mode) -> Result<bool, Error> {
    let allowed = all::allowed(parts.iter().map(|part| (part.judged.verdict(), part.shadow)));
    for part in parts.iter_mut() {
        part.plan(mode, allowed)?;
    }
    for part in parts {
        part.write()?;
    }
    Ok(allowed)
}

/// Tries a request on its key. Only what takes is ever barred.
pub fn attempt(spot: Spot, request: &Request, terms: Terms) -> Result<Attempt, Error> {
    let mut part = Part::of(spot, request, false, false);
    part.judged.read(terms.mode.intent(), terms.barred)?;
    let tries = terms.mode == Mode::Try && !part.judged.verdict().allowed();
    let alone_us = if tries { part.judged.alone_us()? } else { None };
    let allowed = run(std::slice::from_mut(&mut part), terms.mode)?;
    let answer = answer(&part)?;
    Ok(if allowed { Attempt::Allowed(answer) } else { Attempt::Denied { answer, alone_us } })
}

/// Tries several requests, each on its key, all or nothing; whether the call is allowed. Calls that wait on one of the
/// keys come first.
pub fn attempt_all(parts: &mut [Part], mode: Mode) -> Result<bool, Error> {
    for part in parts.iter_mut() {
        if mode != Mode::Look {
            if part.request.id().is_some_and(|id| waiting::is_waiting(part.spot, id)) {
                return Err(Error::Duplicate);
            }
            let takes = part.request.takes();
            part.barred = takes && waiting::is_barred(part.spot, part.request.leave());
            // Counting a denial would take from those who wait. A policy may bring SHADOW beside COUNTDENIED.
            part.may_count = !part.barred && !part.shadow;
        }
        part.judged.read(mode.intent(), part.barred)?;
    }
    run(parts, mode)
}

/// Gives back what was granted with `answer`, at `granted_us`, to a client that was gone before it could be told.
pub fn give_back(
    spot: Spot,
    request: &Request,
    answer: &Answer,
    granted_us: u64,
) -> Result<(), Error> {
    match (&request.limit, &answer.sixth) {
        (Limit::Reserve(_, reserve), Sixth::Id(Some(id))) => {
            release_untold(spot, id.as_bytes(), end_us(granted_us, reserve.lease_ms))
        }
        (Limit::Reserve(..), _) => Ok(()),
        (Limit::Bucket(_) | Limit::Window(_), _) => {
            let quantity = Quantity::GiveBack(answer.decision.verdict.taken());
            let ask = Ask { quantity, leave: 0, manner: Manner::Whole };
            let terms = Terms { barred: false, mode: Mode::Final };
            attempt(spot, &Request { ask, ..*request }, terms).map(|_| ())
        }
    }
}

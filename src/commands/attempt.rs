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
use crate::state::part::Judged;
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
pub struct Attempt {
    /// What the caller is told.
    pub answer: Answer,
    /// When a denied request could be granted if nothing were held and nobody waited, in Unix microseconds; `None`
    /// if never. Only worked out for a call that may wait.
    pub alone_us: Option<u64>,
}

impl Attempt {
    /// Whether the request was granted, or only looked or gave back.
    pub fn allowed(&self) -> bool {
        self.answer.allowed()
    }

    /// How it ended, if that is the end of it. Under a policy with SHADOW nobody is told of a denial.
    pub fn end(&mut self, request: &Request) -> Ended {
        let ended = match self.allowed() {
            true => Ended::Allowed,
            false if request.shadow => Ended::ShadowDenied,
            false => Ended::Denied,
        };
        if request.shadow {
            let verdict = &mut self.answer.decision.verdict;
            let go_after_us = match verdict {
                Verdict::Allowed { go_after_us, .. } => *go_after_us,
                Verdict::Denied { .. } | Verdict::Never => 0,
            };
            *verdict = Verdict::Allowed { taken: request.ask.quantity.wanted(), go_after_us };
        }
        ended
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
        }
    }

    /// Decides what follows from the verdict on the part, and from the one on the whole call.
    fn decide(&mut self, mode: Mode, call_allowed: bool) -> Result<(), Error> {
        let judged = &mut self.judged;
        self.allowed = judged.verdict().allowed();
        match mode {
            Mode::Look => judged.look(),
            _ if call_allowed && self.allowed && self.check => judged.look(),
            _ if call_allowed && self.allowed => judged.grant(|| Id::from(&random::id()[..])),
            Mode::Final if !call_allowed && self.may_count && judged.counts_denial() => {
                judged.count_denial()
            }
            Mode::Try | Mode::Final => judged.deny(),
        }
    }

    fn write(&mut self) -> Result<(), Error> {
        let lapsed = self.judged.write()?;
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
    Ok(Answer::to(part.request, part.judged.decision()?, part.judged.new_id()))
}

/// Tries all parts, all or nothing; whether the call is allowed. The order of work is the same for one part and for
/// many. An error leaves every key as it was.
fn run(parts: &mut [Part], mode: Mode) -> Result<bool, Error> {
    let allowed = all::allowed(parts.iter().map(|part| (part.judged.verdict(), part.shadow)));
    for part in parts.iter_mut() {
        part.decide(mode, allowed)?;
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
    run(std::slice::from_mut(&mut part), terms.mode)?;
    Ok(Attempt { answer: answer(&part)?, alone_us })
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

//! The order of work of every call that takes or looks, over one limit or many.
//!
//! ```text
//! open and read all --> judge all --> carry out all --> write all --> observe
//! an error here leaves everything as it is              only here is anything written
//! ```

use crate::answer::{Answer, Sixth};
use crate::error::Error;
use crate::limit::decision::{Ask, Manner, Quantity};
use crate::limit::request::{Limit, Request};
use crate::limit::reservation::{end_us, Id};
use crate::redis::random;
use crate::state::part::{self, Judged, Planned};
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
    /// What the caller is told if that is the end of it.
    pub fn answer(self) -> Answer {
        match self {
            Attempt::Allowed(answer) | Attempt::Denied { answer, .. } => answer,
        }
    }
}

/// Tries a request on its key. Only what takes is ever barred.
pub fn attempt(spot: Spot, request: &Request, terms: Terms) -> Result<Attempt, Error> {
    let mut judged = part::read(spot, request, terms.mode.intent(), terms.barred)?;
    let alone_us = match terms.mode {
        Mode::Try if !judged.verdict().allowed() => judged.alone_us()?,
        _ => None,
    };
    let planned = carry_out(judged, terms.mode)?;
    let answer = write(request, planned)?;
    Ok(if answer.allowed() {
        Attempt::Allowed(answer)
    } else {
        Attempt::Denied { answer, alone_us }
    })
}

fn carry_out(judged: Judged, mode: Mode) -> Result<Planned, Error> {
    match mode {
        Mode::Look => Ok(judged.look()),
        _ if judged.verdict().allowed() => judged.grant(|| Id::from(&random::id()[..])),
        Mode::Final if judged.counts_denial() => judged.count_denial(),
        Mode::Try | Mode::Final => judged.deny(),
    }
}

fn write(request: &Request, planned: Planned) -> Result<Answer, Error> {
    let answer = Answer::to(request, planned.decision, planned.id);
    let lapsed = planned.write()?;
    stats::LAPSED.add(u64::try_from(lapsed).unwrap_or(0));
    Ok(answer)
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

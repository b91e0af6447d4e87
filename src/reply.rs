//! An answer to a call that takes: what is replied, at once or after waiting.

use engine::decision::{Decision, Manner, TimeUnit};
use engine::request::{Limit, Request};
use engine::reservation::Id;

/// Five integers, and perhaps more elements.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// What the integers say.
    pub decision: Decision,
    /// In which unit the times are.
    pub unit: TimeUnit,
    /// What follows them.
    pub sixth: ReplyTail,
}

/// The sixth element of an answer, and those behind it.
#[derive(Clone, Copy, Debug)]
pub enum ReplyTail {
    /// There is none.
    Absent,
    /// How much was had, with ATMOST.
    Granted,
    /// The wait until the caller may go on, with AHEAD.
    GoAfter,
    /// The id of the reservation; nil if there is none.
    Id(Option<Id>),
    /// The same with ATMOST: behind it how much was had, and how many reservations the key holds whose lease runs.
    IdOfPart(Option<Id>, usize),
}

impl Reply {
    /// The answer to a request, which made a reservation with this id; with ATMOST so many leases ran before it.
    pub fn to(
        request: &Request,
        decision: Decision,
        id: Option<Id>,
        running: Option<usize>,
    ) -> Reply {
        let sixth = match (&request.limit, request.ask.manner) {
            (Limit::Reserve(..), _) => match running {
                None => ReplyTail::Id(id),
                Some(number) => {
                    let number = number.saturating_add(usize::from(id.is_some()));
                    ReplyTail::IdOfPart(id, number)
                }
            },
            (_, Manner::AtMost) => ReplyTail::Granted,
            (_, Manner::Ahead(_)) => ReplyTail::GoAfter,
            (_, Manner::Whole | Manner::Force) => ReplyTail::Absent,
        };
        Reply { decision, unit: request.unit, sixth }
    }

    /// Whether the call got what it asked for.
    pub fn allowed(&self) -> bool {
        self.decision.verdict.allowed()
    }
}

//! An answer to a call that takes: what is replied, at once or after waiting.

use engine::decision::{Decision, Manner, TimeUnit};
use engine::request::{Limit, Request};
use engine::reservation::Id;

/// Five integers, and perhaps a sixth element.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// What the integers say.
    pub decision: Decision,
    /// In which unit the times are.
    pub unit: TimeUnit,
    /// What follows them.
    pub sixth: Sixth,
}

/// The sixth element of an answer.
#[derive(Clone, Copy, Debug)]
pub enum Sixth {
    /// There is none.
    Absent,
    /// How much was had, with ATMOST.
    Granted,
    /// The wait until the caller may go on, with AHEAD.
    GoAfter,
    /// The id of the reservation; nil if there is none.
    Id(Option<Id>),
}

impl Answer {
    /// The answer to a request.
    pub fn to(request: &Request, decision: Decision, id: Option<Id>) -> Answer {
        let sixth = match (&request.limit, request.ask.manner) {
            (Limit::Reserve(..), _) => Sixth::Id(id),
            (_, Manner::AtMost) => Sixth::Granted,
            (_, Manner::Ahead(_)) => Sixth::GoAfter,
            (_, Manner::Whole | Manner::Force) => Sixth::Absent,
        };
        Answer { decision, unit: request.unit, sixth }
    }

    /// Whether the call got what it asked for.
    pub fn allowed(&self) -> bool {
        self.decision.verdict.allowed()
    }
}

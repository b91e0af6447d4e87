//! What commands reply: replies to calls that take, and how a reply is written, row by row.

use crate::call::CallResult;
use crate::policies::PolicyVerdict;
use engine::decision::{Decision, Manner, TimeUnit, Verdict};
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
    pub tail: ReplyTail,
}

/// What follows the five integers of a reply.
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
    /// With ATMOST: the id of the reservation, how much was had, and how many reservations the key holds whose lease runs.
    IdAtMost {
        /// The id; nil if there is none.
        id: Option<Id>,
        /// How many leases run.
        running: usize,
    },
}

impl Reply {
    /// The reply to a request that made a reservation with this id. With ATMOST, `running` leases run after it.
    pub fn to(
        request: &Request,
        decision: Decision,
        id: Option<Id>,
        running: Option<usize>,
    ) -> Reply {
        let tail = match (&request.limit, request.ask.manner) {
            (Limit::Reserve(..), _) => match running {
                None => ReplyTail::Id(id),
                Some(running) => ReplyTail::IdAtMost { id, running },
            },
            (_, Manner::AtMost) => ReplyTail::Granted,
            (_, Manner::Ahead { .. }) => ReplyTail::GoAfter,
            (_, Manner::Whole | Manner::Force) => ReplyTail::Absent,
        };
        Reply { decision, unit: request.unit, tail }
    }

    /// Whether the call got what it asked for.
    pub fn allowed(&self) -> bool {
        self.decision.verdict.allowed()
    }

    /// Ends the call: a denial under a policy with SHADOW becomes an allowed call. Returns what its policy counts.
    pub fn conclude(&mut self, request: &Request) -> PolicyVerdict {
        let ended = match self.allowed() {
            true => PolicyVerdict::Allowed,
            false if request.shadow => PolicyVerdict::ShadowDenied,
            false => PolicyVerdict::Denied,
        };
        if request.shadow {
            let verdict = &mut self.decision.verdict;
            let go_after_us = match verdict {
                Verdict::Allowed { go_after_us, .. } => *go_after_us,
                Verdict::Denied { .. } | Verdict::Never => 0,
            };
            *verdict = Verdict::Allowed { taken: request.ask.quantity.wanted(), go_after_us };
        }
        ended
    }
}

/// Takes a reply, element by element.
pub trait ReplySink {
    /// Begins an array of `len` elements, which follow.
    fn array(&self, len: usize);
    /// Begins a map with this many fields. Two elements follow for each.
    fn map(&self, fields: usize);
    /// An integer.
    fn integer(&self, value: i64);
    /// A string.
    fn text(&self, text: &[u8]);
    /// Nil.
    fn nil(&self);

    /// An integer from 0 on; what passes 2^63 - 1 saturates.
    #[inline]
    fn unsigned(&self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// Writes a reply: five integers, and perhaps more elements.
pub fn write(sink: &impl ReplySink, reply: &Reply) -> CallResult {
    let decision = &reply.decision;
    let verdict = decision.verdict;
    sink.array(match reply.tail {
        ReplyTail::Absent => 5,
        ReplyTail::Granted | ReplyTail::GoAfter | ReplyTail::Id(_) => 6,
        ReplyTail::IdAtMost { .. } => 8,
    });
    integers(sink, decision, reply.unit, verdict.limited(), verdict.retry_after_us());
    match &reply.tail {
        ReplyTail::Absent => {}
        ReplyTail::Granted => sink.unsigned(decision.verdict.taken()),
        ReplyTail::GoAfter => match decision.verdict {
            Verdict::Allowed { go_after_us, .. } => {
                sink.unsigned(reply.unit.round_up(go_after_us));
            }
            Verdict::Denied { .. } | Verdict::Never => sink.integer(-1),
        },
        ReplyTail::Id(made) => id(sink, made.as_ref()),
        ReplyTail::IdAtMost { id: made, running } => {
            id(sink, made.as_ref());
            sink.unsigned(decision.verdict.taken());
            sink.unsigned(u64::try_from(*running).unwrap_or(u64::MAX));
        }
    }
    CallResult::of(reply.allowed())
}

/// Replies the id of a reservation, or nil.
fn id(sink: &impl ReplySink, id: Option<&Id>) {
    match id {
        Some(id) => sink.text(id.as_bytes()),
        None => sink.nil(),
    }
}

/// Replies the five integers of a decision, with these two in the places of its own.
pub(crate) fn integers(
    sink: &impl ReplySink,
    decision: &Decision,
    unit: TimeUnit,
    limited: u64,
    retry_after_us: Option<u64>,
) {
    sink.unsigned(limited);
    sink.unsigned(decision.limit);
    sink.unsigned(decision.remaining);
    match retry_after_us {
        Some(us) => sink.unsigned(unit.round_up(us)),
        None => sink.integer(-1),
    }
    sink.unsigned(unit.round_up(decision.reset_after_us));
}

/// Replies how many reservations were settled.
pub(crate) fn settled(sink: &impl ReplySink, settled: u64) -> CallResult {
    sink.unsigned(settled);
    CallResult::of(settled > 0)
}

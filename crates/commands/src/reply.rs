//! Writes replies, element by element.

use crate::error::Error;
use engine::{combine, Decision, Limit, Manner, Mode, PartDecision, Request, Verdict};

pub trait ReplySink {
    /// Begins an array. Its `len` elements follow.
    fn array(&self, len: usize);

    /// Begins a map with this many fields. Two elements follow for each.
    fn map(&self, fields: usize);

    fn integer(&self, value: i64);

    fn text(&self, text: &[u8]);

    fn nil(&self);

    /// Writes an unsigned integer, at most 2^63 - 1.
    #[inline]
    fn unsigned(&self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// The form of the reply to a call, with the unit of its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    /// About the only limit of a call.
    One(TimeUnit),
    /// About all limits of a call in this mode (RL.ALL).
    All(TimeUnit, Mode),
}

/// The unit of the times in a reply. Times are rounded up, so that a wait from a reply is always long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    /// Whole milliseconds, with the option MS.
    Milliseconds,
}

impl TimeUnit {
    pub fn round_up(self, us: u64) -> u64 {
        match self {
            TimeUnit::Seconds => us.div_ceil(1_000_000),
            TimeUnit::Milliseconds => us.div_ceil(1_000),
        }
    }
}

/// How a call that was not an error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CallResult {
    /// The call was allowed, found that a call would be, settled or renewed a reservation, or only reported.
    Allowed,
    /// The call was denied, found that a call would be, or found no reservation to settle or renew.
    Denied,
    /// The call waits (BLOCK), and gets its reply later.
    Waits,
}

impl CallResult {
    pub fn from_allowed(allowed: bool) -> CallResult {
        if allowed {
            CallResult::Allowed
        } else {
            CallResult::Denied
        }
    }
}

/// Writes the reply to a call, from the decisions about its limits, and returns how the call ended.
#[inline]
pub(crate) fn write_call(
    sink: &impl ReplySink,
    form: ReplyForm,
    decisions: &[PartDecision],
) -> Result<CallResult, Error> {
    let result = match form {
        ReplyForm::One(unit) => decisions.first().map(|only| write_one(sink, unit, only)),
        ReplyForm::All(unit, mode) => write_all(sink, unit, mode, decisions),
    };
    result.ok_or(Error::internal())
}

/// Writes the reply about the only limit of a call. Under SHADOW the caller always gets what it asks for.
fn write_one(sink: &impl ReplySink, unit: TimeUnit, part: &PartDecision) -> CallResult {
    let (request, decision) = (part.request, &part.decision);
    let taken = request.ask.quantity.wanted();
    let verdict = match decision.verdict {
        verdict if !request.shadow => verdict,
        Verdict::Allowed { go_after_us, .. } => Verdict::Allowed { taken, go_after_us },
        Verdict::Denied { .. } | Verdict::Never => Verdict::taking(taken),
    };
    write_part(sink, request, unit, verdict, decision);
    CallResult::from_allowed(verdict.allowed())
}

/// Writes the reply to RL.ALL: the integers of the limit that decides, its number, and a reply for each limit.
fn write_all(
    sink: &impl ReplySink,
    unit: TimeUnit,
    mode: Mode,
    decisions: &[PartDecision],
) -> Option<CallResult> {
    let (verdict, deciding) = combine(decisions, mode)?;
    sink.array(7);
    write_verdict(sink, verdict, &deciding.decision, unit);
    sink.unsigned(u64::try_from(deciding.index).unwrap_or(u64::MAX).saturating_add(1));
    sink.array(decisions.len());
    for part in decisions {
        write_part(sink, part.request, unit, part.decision.verdict, &part.decision);
    }
    Some(CallResult::from_allowed(verdict.allowed()))
}

/// Writes the reply about one limit with this verdict: five integers, and for some options more elements.
fn write_part(
    sink: &impl ReplySink,
    request: &Request,
    unit: TimeUnit,
    verdict: Verdict,
    decision: &Decision,
) {
    let manner = request.ask.manner;
    let reserves = matches!(request.limit, Limit::Reserve(..));
    sink.array(match (reserves, manner) {
        (false, Manner::Whole | Manner::Force) => 5,
        (true, Manner::AtMost) => 8,
        _ => 6,
    });
    write_verdict(sink, verdict, decision, unit);
    if reserves {
        match &decision.id {
            Some(id) => sink.text(id.as_bytes()),
            None => sink.nil(),
        }
    }
    match (manner, verdict) {
        (Manner::Whole | Manner::Force, _) => {}
        (Manner::AtMost, _) => sink.unsigned(verdict.taken()),
        (Manner::Ahead { .. }, Verdict::Allowed { go_after_us, .. }) => {
            sink.unsigned(unit.round_up(go_after_us));
        }
        (Manner::Ahead { .. }, Verdict::Denied { .. } | Verdict::Never) => sink.integer(-1),
    }
    if let Some(running) = decision.running {
        sink.unsigned(running.into());
    }
}

/// Writes the five integers of a verdict and the decision that it belongs to.
fn write_verdict(sink: &impl ReplySink, verdict: Verdict, decision: &Decision, unit: TimeUnit) {
    sink.unsigned(verdict.limited());
    sink.unsigned(decision.limit);
    sink.unsigned(decision.remaining);
    match verdict.retry_after_us() {
        Some(us) => sink.unsigned(unit.round_up(us)),
        None => sink.integer(-1),
    }
    sink.unsigned(unit.round_up(decision.reset_after_us));
}

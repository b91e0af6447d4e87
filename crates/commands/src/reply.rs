//! Writes replies, element by element.

use engine::{Decision, Limit, Manner, Request, TimeUnit, Verdict};

/// Receives a reply, element by element.
pub trait ReplySink {
    /// Begins an array. Its `len` elements follow.
    fn array(&self, len: usize);

    /// Begins a map with this many fields. Two elements follow for each.
    fn map(&self, fields: usize);

    /// Writes an integer.
    fn integer(&self, value: i64);

    /// Writes a string.
    fn text(&self, text: &[u8]);

    /// Writes nil.
    fn nil(&self);

    /// Writes an unsigned integer, at most 2^63 - 1.
    #[inline]
    fn unsigned(&self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// Writes the reply to a request: five integers, and for some options more elements.
pub fn write(sink: &impl ReplySink, request: &Request, decision: &Decision) {
    let (verdict, manner) = (decision.verdict, request.ask.manner);
    let reserves = matches!(request.limit, Limit::Reserve(..));
    sink.array(match (reserves, manner) {
        (false, Manner::Whole | Manner::Force) => 5,
        (true, Manner::AtMost) => 8,
        _ => 6,
    });
    integers(sink, decision, request.unit);
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
            sink.unsigned(request.unit.round_up(go_after_us));
        }
        (Manner::Ahead { .. }, Verdict::Denied { .. } | Verdict::Never) => sink.integer(-1),
    }
    if let Some(running) = decision.running {
        sink.unsigned(u64::try_from(running).unwrap_or(u64::MAX));
    }
}

/// Writes the five integers of a decision.
pub(crate) fn integers(sink: &impl ReplySink, decision: &Decision, unit: TimeUnit) {
    sink.unsigned(decision.verdict.limited());
    sink.unsigned(decision.limit);
    sink.unsigned(decision.remaining);
    match decision.verdict.retry_after_us() {
        Some(us) => sink.unsigned(unit.round_up(us)),
        None => sink.integer(-1),
    }
    sink.unsigned(unit.round_up(decision.reset_after_us));
}

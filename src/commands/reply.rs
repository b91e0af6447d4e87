//! What commands reply.

use crate::answer::{Answer, Sixth};
use crate::redis::call::Call;
use crate::redis::context::Context;
use crate::stats::Replied;
use engine::decision::{Decision, TimeUnit, Verdict};

/// Replies an answer: five integers, and perhaps a sixth element.
pub fn answer(ctx: Context, answer: &Answer) -> Replied {
    let decision = &answer.decision;
    let verdict = decision.verdict;
    ctx.reply_array(if matches!(answer.sixth, Sixth::Absent) { 5 } else { 6 });
    integers(ctx, decision, answer.unit, verdict.limited(), verdict.retry_after_us());
    match &answer.sixth {
        Sixth::Absent => {}
        Sixth::Granted => ctx.reply_integer(decision.verdict.taken()),
        Sixth::GoAfter => match decision.verdict {
            Verdict::Allowed { go_after_us, .. } => {
                ctx.reply_integer(answer.unit.round_up(go_after_us));
            }
            Verdict::Denied { .. } | Verdict::Never => ctx.reply_signed(-1),
        },
        Sixth::Id(Some(id)) => ctx.reply_text(id.as_bytes()),
        Sixth::Id(None) => ctx.reply_nil(),
    }
    Replied::of(answer.allowed())
}

/// Replies the five integers of a decision, with these two in the places of its own.
pub fn integers(
    ctx: Context,
    decision: &Decision,
    unit: TimeUnit,
    limited: u64,
    retry_after_us: Option<u64>,
) {
    ctx.reply_integer(limited);
    ctx.reply_integer(decision.limit);
    ctx.reply_integer(decision.remaining);
    match retry_after_us {
        Some(us) => ctx.reply_integer(unit.round_up(us)),
        None => ctx.reply_signed(-1),
    }
    ctx.reply_integer(unit.round_up(decision.reset_after_us));
}

/// Replies how many reservations were settled.
pub fn settled(call: &Call, settled: u64) -> Replied {
    call.context().reply_integer(settled);
    Replied::of(settled > 0)
}

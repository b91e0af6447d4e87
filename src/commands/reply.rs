//! What commands reply.

use crate::redis::call::Call;
use crate::redis::context::Context;
use crate::reply::{Reply, ReplyTail};
use crate::stats::CallResult;
use engine::decision::{Decision, TimeUnit, Verdict};
use engine::reservation::Id;

/// Replies an answer: five integers, and perhaps more elements.
pub fn answer(ctx: Context, answer: &Reply) -> CallResult {
    let decision = &answer.decision;
    let verdict = decision.verdict;
    ctx.reply_array(match answer.sixth {
        ReplyTail::Absent => 5,
        ReplyTail::Granted | ReplyTail::GoAfter | ReplyTail::Id(_) => 6,
        ReplyTail::IdOfPart(..) => 8,
    });
    integers(ctx, decision, answer.unit, verdict.limited(), verdict.retry_after_us());
    match &answer.sixth {
        ReplyTail::Absent => {}
        ReplyTail::Granted => ctx.reply_integer(decision.verdict.taken()),
        ReplyTail::GoAfter => match decision.verdict {
            Verdict::Allowed { go_after_us, .. } => {
                ctx.reply_integer(answer.unit.round_up(go_after_us));
            }
            Verdict::Denied { .. } | Verdict::Never => ctx.reply_signed(-1),
        },
        ReplyTail::Id(made) => id(ctx, made.as_ref()),
        ReplyTail::IdOfPart(made, running) => {
            id(ctx, made.as_ref());
            ctx.reply_integer(decision.verdict.taken());
            ctx.reply_integer(u64::try_from(*running).unwrap_or(u64::MAX));
        }
    }
    CallResult::of(answer.allowed())
}

/// Replies the id of a reservation, or nil.
fn id(ctx: Context, id: Option<&Id>) {
    match id {
        Some(id) => ctx.reply_text(id.as_bytes()),
        None => ctx.reply_nil(),
    }
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
pub fn settled(call: &Call, settled: u64) -> CallResult {
    call.context().reply_integer(settled);
    CallResult::of(settled > 0)
}

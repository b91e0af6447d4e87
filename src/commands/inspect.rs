//! RL.INFO: what lies under a key, for a person who asks why it is limited.

use super::arguments::Arguments;
use super::key_ctx;
use crate::blocking;
use crate::error::Error;
use crate::options::Known;
use crate::redis::call::Call;
use crate::redis::context::Context;
use crate::state::inspect::{contents, BucketContents, Contents, WindowContents};
use crate::stats::CallResult;

/// `RL.INFO key`
pub fn info(call: &Call, _known: Known) -> Result<CallResult, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let (ctx, key_ctx) = (call.context(), key_ctx(call)?);
    let found = contents(key_ctx)?;
    let waiting = blocking::waiting_on(key_ctx);
    let (fields, kind) = match &found.kind {
        // A key without state may have a line: calls wait for a semaphore of 0.
        Contents::Nothing => {
            ctx.reply_map(0);
            return Ok(CallResult::Allowed);
        }
        Contents::Bucket(_) => (6, "bucket"),
        Contents::Window(_) => (11, "window"),
    };
    ctx.reply_map(fields);
    ctx.reply_text(b"kind");
    ctx.reply_text(kind.as_bytes());
    match &found.kind {
        Contents::Nothing => {}
        Contents::Bucket(bucket) => reply_bucket(ctx, bucket),
        Contents::Window(window) => reply_window(ctx, window),
    }
    field(ctx, "ban", found.ban_us.div_ceil(1_000));
    field(ctx, "waiting", waiting);
    signed(ctx, "ttl", found.ttl_ms.map(i64::try_from));
    Ok(CallResult::Allowed)
}

fn reply_bucket(ctx: Context, bucket: &BucketContents) {
    field(ctx, "full_in", bucket.full_in_us.div_ceil(1_000));
    field(ctx, "debt", bucket.debt_ns.div_ceil(1_000_000));
}

fn reply_window(ctx: Context, window: &WindowContents) {
    field(ctx, "events", window.events);
    field(ctx, "denied", window.denied);
    field(ctx, "entries", window.entries);
    for (name, age_us) in [("oldest", window.oldest_us), ("newest", window.newest_us)] {
        signed(ctx, name, age_us.map(|age_us| i64::try_from(age_us / 1_000)));
    }
    field(ctx, "held", window.held);
    field(ctx, "reservations", window.reservations);
}

fn field(ctx: Context, name: &str, value: u64) {
    ctx.reply_text(name.as_bytes());
    ctx.reply_integer(value);
}

/// A field that is -1 where there is nothing to tell.
fn signed<E>(ctx: Context, name: &str, value: Option<Result<i64, E>>) {
    ctx.reply_text(name.as_bytes());
    ctx.reply_signed(value.map_or(-1, |value| value.unwrap_or(i64::MAX)));
}

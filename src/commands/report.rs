//! RL.POLICIES and RL.TOP: what an operator asks of the whole server.

use super::arguments::Arguments;
use crate::error::Error;
use crate::options::{Known, Options};
use crate::redis::call::Call;
use crate::redis::clock;
use crate::stats::CallResult;
use crate::{observe, policies};

/// `RL.POLICIES`
pub fn policies(call: &Call, _known: Known) -> Result<CallResult, Error> {
    if call.len() != 1 {
        return Err(Error::Arity);
    }
    let ctx = call.context();
    let listed = policies::list();
    ctx.reply_array(listed.len());
    for one in &listed {
        ctx.reply_array(5);
        ctx.reply_text(one.name.as_bytes());
        ctx.reply_text(one.definition.as_bytes());
        one.counts.iter().for_each(|count| ctx.reply_integer(*count));
    }
    Ok(CallResult::Allowed)
}

/// `RL.TOP [COUNT n] [RESET]`
pub fn top_keys(call: &Call, known: Known) -> Result<CallResult, Error> {
    let mut options = Options::new();
    Arguments::from(call, 1).options(&mut options, known, false)?;
    let most = usize::try_from(options.number(Known::COUNT).unwrap_or(10)).unwrap_or(usize::MAX);
    let heaviest = observe::most_denied(clock::command_time_us(), most);
    if options.has(Known::RESET) {
        observe::forget_top();
    }
    let ctx = call.context();
    ctx.reply_array(heaviest.len());
    for (db, name, count) in &heaviest {
        ctx.reply_array(4);
        ctx.reply_text(name);
        ctx.reply_signed(i64::from(*db));
        ctx.reply_integer(count.count);
        ctx.reply_integer(count.over);
    }
    Ok(CallResult::Allowed)
}

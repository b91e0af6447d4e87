//! RL.POLICIES and RL.TOP: what an operator asks of the whole server.

use crate::arguments::Arguments;
use crate::call::{CallResult, Overview, ServerCall};
use crate::error::Error;
use crate::options::{OptionSet, Options};
use crate::reply::ReplySink;

/// The longest key that RL.TOP shows, in bytes; longer ones are cut.
pub const MAX_TOP_KEY: usize = 256;

/// `RL.POLICIES`
pub(crate) fn policies<'a, C: ServerCall<'a> + Overview>(call: &C) -> Result<CallResult, Error> {
    if call.len() != 1 {
        return Err(Error::Arity);
    }
    let (sink, listed) = (call.sink(), call.policies());
    sink.array(listed.len());
    for one in &listed {
        sink.array(5);
        sink.text(one.name.as_bytes());
        sink.text(one.definition.as_bytes());
        sink.unsigned(one.allowed);
        sink.unsigned(one.denied);
        sink.unsigned(one.shadow_denied);
    }
    Ok(CallResult::Allowed)
}

/// `RL.TOP [COUNT n] [RESET]`
pub(crate) fn top_keys<'a, C: ServerCall<'a> + Overview>(
    call: &C,
    known: OptionSet,
) -> Result<CallResult, Error> {
    let mut options = Options::new();
    Arguments::from(call, 1).options(&call.environment(), &mut options, known, false)?;
    let most =
        usize::try_from(options.number(OptionSet::COUNT).unwrap_or(10)).unwrap_or(usize::MAX);
    let heaviest = call.most_denied(most);
    if options.has(OptionSet::RESET) {
        call.forget_denied();
    }
    let sink = call.sink();
    sink.array(heaviest.len());
    for row in &heaviest {
        sink.array(4);
        sink.text(&row.name);
        sink.integer(i64::from(row.db));
        sink.unsigned(row.times.count);
        sink.unsigned(row.times.over);
    }
    Ok(CallResult::Allowed)
}

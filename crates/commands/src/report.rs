//! RL.POLICIES and RL.TOP, which are about the whole server.

use crate::arguments::Arguments;
use crate::call::ServerCall;
use crate::environment::Environment;
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::options::{OptionSet, Options};
use crate::reply::{CallResult, ReplySink};

/// The maximum length of a key in RL.TOP, in bytes. Longer keys are cut.
pub const MAX_TOP_KEY: usize = 256;

/// `RL.POLICIES`
pub(crate) fn policies<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    if call.len() != 1 {
        return Err(Error::Arity);
    }
    let (sink, policies) = (call.sink(), call.environment().policies());
    sink.array(policies.len());
    for (name, policy) in &policies {
        sink.array(5);
        sink.text(name.as_bytes());
        sink.text(policy.definition.as_bytes());
        sink.unsigned(policy.counts.allowed.get());
        sink.unsigned(policy.counts.denied.get());
        sink.unsigned(policy.counts.shadow_denied.get());
    }
    Ok(CallResult::Allowed)
}

/// `RL.TOP [COUNT n] [RESET]`
pub(crate) fn top_keys<'a, C: ServerCall<'a>>(
    call: &C,
    accepted: OptionSet,
) -> Result<CallResult, Error> {
    let mut options = Options::default();
    Arguments::from(call, 1).options(&call.environment(), &mut options, accepted)?;
    let count = options.number(OptionSet::COUNT).unwrap_or(10);
    let (keyspace, count) = (call.keyspace(), usize::try_from(count).unwrap_or(usize::MAX));
    let most_denied = keyspace.most_denied(call.now_us(), count);
    if options.has(OptionSet::RESET) {
        keyspace.forget_denials();
    }
    let sink = call.sink();
    sink.array(most_denied.len());
    for row in &most_denied {
        sink.array(4);
        sink.text(&row.name);
        sink.integer(i64::from(row.db));
        sink.unsigned(row.occurrences.count);
        sink.unsigned(row.occurrences.overcount);
    }
    Ok(CallResult::Allowed)
}

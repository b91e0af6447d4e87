//! The setting `ratelimit.policies`, which defines limits with names.
//!
//! ```text
//! free THROTTLE 15 30 60; day WINDOW 1000 1d FIXED TZ Asia/Shanghai; burst WINDOW 5 1s SHADOW
//! name kind     limit     name kind   limit                          name  kind   limit
//! ```

use crate::arguments::{Arguments, Family};
use crate::environment::Environment;
use crate::error::Error;
use crate::limits::LimitSpec;
use crate::options::{OptionSet, Options};
use crate::policies::{Definitions, Policy};
use std::sync::Arc;

/// The maximum number of policies.
const MAX_POLICIES: usize = 1_000;

/// The maximum length of a name, in bytes.
const MAX_NAME: usize = 64;

/// Reads the definitions of policies.
///
/// # Errors
///
/// A text that names the policy whose definition is wrong, and says why.
pub fn parse(text: &[u8], environment: &impl Environment) -> Result<Definitions, String> {
    let mut policies = Definitions::new();
    for definition in text.split(|byte| *byte == b';') {
        let words: Vec<&[u8]> =
            definition.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        let [name, words @ ..] = words.as_slice() else { continue };
        let refuse = |reason: &str| Err(format!("policy {}: {reason}", name.escape_ascii()));
        let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
        if name.len() > MAX_NAME || !name.iter().all(is_name_byte) {
            return refuse("a name must have 1 to 64 letters, digits, '_', '.' or '-'");
        }
        let policy = match define(words, environment) {
            Ok(policy) => policy,
            Err(error) => return refuse(&error.reason()),
        };
        if policies.insert(String::from_utf8_lossy(name).into_owned(), policy).is_some() {
            return refuse("the name is given more than once");
        }
        if policies.len() > MAX_POLICIES {
            return Err(format!("there must be at most {MAX_POLICIES} policies"));
        }
    }
    Ok(policies)
}

/// Reads a definition after its name: a kind, the limit as in the command of that kind, and options.
fn define(words: &[&[u8]], environment: &impl Environment) -> Result<Policy, Error> {
    let mut arguments = Arguments::from(words, 0);
    let (family, accepted) = match arguments.next_word().and_then(Family::parse) {
        Some(Family::Throttle) => (Family::Throttle, OptionSet::THROTTLE.in_policy()),
        // A window of period 0 is a semaphore, which RL.ACQUIRE takes.
        Some(Family::Window) => (Family::Acquire, OptionSet::WINDOW.in_policy()),
        Some(Family::Acquire) | None => return Err(Error::PolicyKind),
    };
    let limit = arguments.limit(environment, family).map_err(|error| match error {
        Error::Arity => Error::PolicyLimit,
        other => other,
    })?;
    let mut options = Options::default();
    arguments.options(environment, &mut options, accepted).map_err(|error| {
        // The unknown option is the name of the next policy if a kind follows.
        match (error, arguments.next_word().and_then(Family::parse)) {
            (Error::UnknownOption(_), Some(_)) => Error::PolicySeparator,
            (error, _) => error,
        }
    })?;
    // A call's options are checked with its quantity. The default is 1.
    options.check(1, Some(&limit))?;
    let window_kind = options.window_kind();
    if let LimitSpec::Window { limit, period } = limit {
        environment.window(limit, period, window_kind)?;
    }
    let definition = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
    let (ban_ms, shadow) = (options.number(OptionSet::BAN), options.has(OptionSet::SHADOW));
    let counts = Arc::default();
    Ok(Policy { id: 0, limit, window_kind, ban_ms, shadow, definition, counts })
}

//! Definitions of limits that have names: in the setting `ratelimit.policies`, and in the fields of a hash of limits.
//!
//! ```text
//! free THROTTLE 15 30 60; day WINDOW 1000 1d FIXED TZ Asia/Shanghai; burst WINDOW 5 1s SHADOW
//! name kind     limit     name kind   limit                          name  kind   limit
//! ```
//!
//! A field has the name, and its value is the rest of a definition: `THROTTLE 15 30 60`.

use crate::arguments::{Arguments, LimitKind};
use crate::environment::Environment;
use crate::error::{EchoedWord, Error};
use crate::limits::LimitSpec;
use crate::options::{OptionSet, Options};
use crate::policies::{DefinedLimit, Definitions, Policy};
use smallvec::SmallVec;
use std::sync::Arc;

const MAX_POLICIES: usize = 1_000;

/// The maximum length of a name, in bytes.
const MAX_NAME: usize = 64;

/// Up to this many words the definition of a field is read without an allocation. All options together are fewer.
const FEW_WORDS: usize = 16;

/// Reads the definitions of policies.
///
/// # Errors
///
/// A text that names the policy whose definition is wrong, and says why.
pub fn parse_policies(text: &[u8], environment: &impl Environment) -> Result<Definitions, String> {
    let mut policies = Definitions::new();
    for definition in text.split(|byte| *byte == b';') {
        let words: Vec<&[u8]> = split_words(definition).collect();
        let [name, words @ ..] = words.as_slice() else { continue };
        let refuse = |reason: &str| Err(format!("policy {}: {reason}", name.escape_ascii()));
        let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
        if name.len() > MAX_NAME || !name.iter().all(is_name_byte) {
            return refuse("a name must have 1 to 64 letters, digits, '_', '.' or '-'");
        }
        let limit = match parse_definition(words, environment) {
            Ok(limit) => limit,
            Err(error) => return refuse(&error_in_table(error, words).reason()),
        };
        let definition = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
        let policy = Policy { id: 0, limit, definition, counts: Arc::default() };
        if policies.insert(String::from_utf8_lossy(name).into_owned(), policy).is_some() {
            return refuse("the name is given more than once");
        }
        if policies.len() > MAX_POLICIES {
            return Err(format!("there must be at most {MAX_POLICIES} policies"));
        }
    }
    Ok(policies)
}

/// Returns the error to report for a definition in a table, where a name stands before it, and others may follow.
fn error_in_table(error: Error, words: &[&[u8]]) -> Error {
    // The unknown option is the name of the next policy if a kind follows.
    let is_name = |unknown: EchoedWord| {
        words.windows(2).any(|pair| match pair {
            [name, kind] => EchoedWord::from(*name) == unknown && LimitKind::parse(kind).is_some(),
            _ => false,
        })
    };
    match error {
        Error::DefinitionKind => Error::PolicyKind,
        Error::UnknownOption(word) if is_name(word) => Error::PolicySeparator,
        error => error,
    }
}

/// Reads the definition that is the value of a field in a hash of limits.
///
/// # Errors
///
/// Those of the arguments of a command with this limit, and [`Error::DefinitionKind`] and [`Error::PolicyLimit`].
pub fn parse_field(value: &[u8], environment: &impl Environment) -> Result<DefinedLimit, Error> {
    let words: SmallVec<[&[u8]; FEW_WORDS]> = split_words(value).collect();
    parse_definition(&words, environment)
}

fn split_words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Reads a definition after its name: a kind, the limit as in the command of that kind, and options.
fn parse_definition(
    words: &[&[u8]],
    environment: &impl Environment,
) -> Result<DefinedLimit, Error> {
    let mut arguments = Arguments::from(words, 0);
    let (kind, accepted) = match arguments.next_word().and_then(LimitKind::parse) {
        Some(LimitKind::Rate) => (LimitKind::Rate, OptionSet::THROTTLE.in_policy()),
        // A window of period 0 is a semaphore, which RL.ACQUIRE takes.
        Some(LimitKind::Window) => (LimitKind::Reserve, OptionSet::WINDOW.in_policy()),
        Some(LimitKind::Reserve) | None => return Err(Error::DefinitionKind),
    };
    let spec = arguments.limit(environment, kind).map_err(|error| match error {
        Error::Arity => Error::PolicyLimit,
        other => other,
    })?;
    let mut options = Options::default();
    arguments.options(environment, &mut options, accepted)?;
    // A call's options are checked with its quantity. The default is 1.
    options.check(1, Some(&spec))?;
    let window_kind = options.window_kind();
    if let LimitSpec::Window { limit, period } = spec {
        environment.window(limit, period, window_kind)?;
    }
    let (ban_ms, shadow) = (options.number(OptionSet::BAN), options.has(OptionSet::SHADOW));
    Ok(DefinedLimit { spec, window_kind, ban_ms, shadow })
}

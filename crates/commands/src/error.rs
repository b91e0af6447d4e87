//! Every error that a command replies with, in one list, and those of a policy's definition. The other texts for refused
//! settings are in definitions.rs, settings.rs and the module's settings.

use engine::anchor::{Anchor, AnchorMismatch};
use engine::period::YEAR_MS;
use engine::text::ShortText;
use engine::Refusal;
use std::fmt;
use std::panic::Location;

/// A word of a client, as an error repeats it: at most 64 bytes, with `?` in place of everything but printable ASCII,
/// because other bytes might end the line of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoedWord(ShortText<64>);

impl From<&[u8]> for EchoedWord {
    fn from(word: &[u8]) -> EchoedWord {
        let mut text = ShortText::new();
        for byte in word.iter().take(64) {
            text.push(&[if byte.is_ascii_graphic() { *byte } else { b'?' }]);
        }
        EchoedWord(text)
    }
}

impl fmt::Display for EchoedWord {
    /// Writes the word, cut at the precision.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(std::str::from_utf8(self.0.as_bytes()).unwrap_or_default())
    }
}

/// The reason why a call was refused. The call took nothing. The text says what a variant means, and begins with the error's
/// code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too few or too many arguments. The server has its own text for that.
    #[error("ERR wrong number of arguments")]
    Arity,
    #[error("ERR syntax error: unknown option {0:.24}")]
    UnknownOption(EchoedWord),
    /// An option without its value, and the error for a wrong value.
    #[error("ERR {} needs a value: {}", .0, .1.reason())]
    NoValue(&'static str, &'static Error),
    #[error("ERR {0} must be an integer from {1} to {2}")]
    OptionInteger(&'static str, u64, u64),
    /// An option whose value is not a duration from this many milliseconds to a year.
    #[error(
        "ERR {} must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, from {}{} to a year ({YEAR_MS}ms)",
        .0, .1, if *.1 == 0 { "" } else { "ms" }
    )]
    OptionDuration(&'static str, u64),
    #[error("ERR {0} has the ambiguous unit m: use min")]
    AmbiguousDuration(&'static str),
    #[error("ERR {0} must not be used in RL.ALL, which takes all or nothing, at once")]
    NotInAll(&'static str),
    #[error("ERR syntax error: {0} is given more than once")]
    Twice(&'static str),
    #[error("ERR {0} and {1} must not be used together")]
    NotTogether(&'static str, &'static str),
    #[error("ERR {0} must be used with {1}")]
    Needs(&'static str, &'static str),
    #[error("ERR {0} must not be used with a quantity below {1}")]
    QuantityBelow(&'static str, i64),
    #[error("ERR FROM {} must be used with {}; with this period FROM must be {}", .0, .1.periods, .1.anchors)]
    AnchorMismatch(Anchor, AnchorMismatch),
    #[error("ERR {0} must not be used with a policy")]
    WithPolicy(&'static str),
    #[error("NOPOLICY no policy has the name {0}")]
    NoPolicy(EchoedWord),
    /// A bug of the module that was caught, and its location in the source, which goes to the server's log.
    #[error("ERR internal error of redis-ratelimit, see the server's log")]
    Internal(&'static Location<'static>),
    #[error("ERR max_burst must be an integer from 0 to 9223372036854775806")]
    InvalidMaxBurst,
    #[error("ERR count must be an integer from 1 to 9223372036854775807")]
    InvalidCount,
    #[error("ERR limit must be an integer from 0 to 9223372036854775807")]
    InvalidLimit,
    #[error("ERR quantity must be an integer from 0 to 9223372036854775807")]
    InvalidQuantity,
    #[error("ERR quantity must be an integer from -9223372036854775808 to 9223372036854775807")]
    InvalidSignedQuantity,
    #[error("ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y")]
    InvalidPeriod,
    #[error("ERR period must be 0 for a semaphore, a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y")]
    InvalidPeriodOrZero,
    #[error("ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d or w, from 1ms to 36525d")]
    InvalidPlainPeriod,
    #[error("ERR period has the ambiguous unit m: use 1min or 1mo")]
    AmbiguousPeriod,
    #[error("ERR (max_burst + 1) * period / count must be at most 100 years of 365.25 days")]
    BucketTooLong,
    /// The debt of FORCE or AHEAD would be too long, or a stored time would not fit in 19 digits.
    #[error("ERR a take must not leave a debt of more than 100 years of 365.25 days, nor a time past the year 2286")]
    DebtTooLong,
    #[error("ERR a key must not count more than 9223372036854775807")]
    SumTooLarge,
    #[error("ERR BLOCK must not be used while ratelimit.max-waiters calls are waiting")]
    TooManyWaiters,
    #[error("ERR an id must have 1 to 64 bytes")]
    InvalidId,
    #[error("ERR BY must have 1 to 64 bytes")]
    InvalidBy,
    #[error("ERR TZ {ZONES}")]
    InvalidZone,
    #[error("ERR FROM must be first, HH:MM, a weekday (mon), a day of the month (15), MM-DD, or YYYY-MM-DD from 1970 to 2255; a day may have @HH:MM, a time :SS")]
    InvalidFrom,
    #[error("ERR FROM must be a day that exists: 02-29 does, 2026-02-29 and 02-30 do not")]
    NoSuchDay,
    #[error("ERR {0} must not be used with period 0, which has no window")]
    NeedsWindow(&'static str),
    #[error("ERR FIXED must have a period of 1d, 1w, 1y, N seconds or N minutes where N divides 60, Nh where N divides 24, or Nmo where N divides 12; FROM YYYY-MM-DD and FROM first take others")]
    InvalidCalendarPeriod,
    #[error(
        "DUPLICATE the id is already held or waiting: use another id, or apply or release it first"
    )]
    Duplicate,
    #[error("ERR the key already holds as many reservations as ratelimit.max-reservations allows")]
    TooManyReservations,
    #[error("ERR the reservation is a semaphore's and must be given back with RL.RELEASE")]
    Semaphore,
    #[error("WRONGTYPE the key does not hold a window (a sorted set)")]
    NotWindow,
    #[error("WRONGTYPE the key does not hold a bucket (a string) or a window (a sorted set)")]
    NotLimit,
    #[error("ERR the key's sorted set has an entry that RL.WINDOW or RL.ACQUIRE did not write")]
    ForeignEntry,
    #[error("WRONGTYPE the key does not hold a bucket (a string)")]
    NotBucket,
    #[error("ERR the key holds a string that RL.THROTTLE did not write: it must be 19 digits of Unix nanoseconds")]
    ForeignString,
    #[error("ERR the server's clock must be between 1970 and 2255")]
    Clock,
    #[error("WRONGTYPE the last key, which LIMITS makes the hash of limits, does not hold a hash")]
    NotHash,
    #[error("ERR numkeys must be an integer from 1 to 64, or to 65 with LIMITS")]
    InvalidNumKeys,
    #[error("ERR syntax error: ELSE must be between two clauses")]
    MisplacedElse,
    #[error("ERR duplicate key: each key may be given only once")]
    KeyTwice,
    #[error("CROSSSLOT the keys of one call must be in one slot: give them the same hash tag")]
    CrossSlot,
    /// Some keys of RL.ALL are or may be on another node, because their slot is being migrated.
    #[error("TRYAGAIN the keys of one call must be on one node, but their slot is being migrated: call again after the migration")]
    SlotMigrating,
    #[error("TRYAGAIN the keys hold more reservations than one call may read: call again to read the rest")]
    TooMuchToRead,
    #[error("ERR syntax error: a clause must begin with THROTTLE, WINDOW or ACQUIRE")]
    NoClause,
    #[error("ERR the number of clauses must equal the number of keys")]
    WrongClauseCount,
    #[error("ERR the number of clauses must equal the number of keys without the hash of limits")]
    WrongClauseCountWithLimits,
    #[error("NOPOLICY limits must be given as @policy")]
    PoliciesOnly,
    #[error("ERR RL.THROTTLE needs a THROTTLE policy, but this one is a WINDOW policy")]
    WindowPolicy,
    #[error(
        "ERR RL.WINDOW and RL.ACQUIRE need a WINDOW policy, but this one is a THROTTLE policy"
    )]
    RatePolicy,
    #[error("ERR only RL.ACQUIRE accepts a policy with period 0 (a semaphore)")]
    SemaphorePolicy,
    #[error("ERR a definition must consist of THROTTLE or WINDOW, and a limit")]
    DefinitionKind,
    #[error("ERR a policy must consist of a name, THROTTLE or WINDOW, and a limit")]
    PolicyKind,
    #[error("ERR a limit must consist of max_burst, count and period, or of limit and period")]
    PolicyLimit,
    #[error("ERR two policies must have a ';' between them")]
    PolicySeparator,
    #[error("TRYAGAIN the server cannot write the key at the moment: call again")]
    NotWritable,
}

/// The time zones that TZ and the setting `timezone` may name.
pub const ZONES: &str =
    "must be an IANA time zone such as Asia/Shanghai, or an offset such as +08:00";

impl Error {
    /// Returns the text without its code.
    pub fn reason(&self) -> String {
        self.to_string().split_once(' ').map_or_else(String::new, |(_, reason)| reason.into())
    }

    /// Returns an internal error with the caller's location in the source.
    #[track_caller]
    pub const fn internal() -> Error {
        Error::Internal(Location::caller())
    }
}

/// An [`Error`], or one in a field of a hash of limits, which is rare and large, and so in a box.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Plain(#[from] Error),
    /// A field in the hash of limits whose value is not a definition, and the error in it.
    #[error("ERR the field {} of the hash of limits is not a definition: {}", .0.0, .0.1.reason())]
    InvalidField(Box<(EchoedWord, Error)>),
}

impl From<Refusal> for Error {
    fn from(refused: Refusal) -> Error {
        match refused {
            Refusal::NotBucket => Error::NotBucket,
            Refusal::NotWindow => Error::NotWindow,
            Refusal::NotHash => Error::NotHash,
            Refusal::Foreign => Error::ForeignEntry,
            Refusal::Clock => Error::Clock,
            Refusal::DebtTooLong => Error::DebtTooLong,
            Refusal::SumTooLarge => Error::SumTooLarge,
            Refusal::Duplicate => Error::Duplicate,
            Refusal::TooManyReservations => Error::TooManyReservations,
            Refusal::Semaphore => Error::Semaphore,
        }
    }
}

#[cfg(test)]
mod tests;

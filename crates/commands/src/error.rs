//! Every error that a command replies with, in one list. The texts for refused settings are in definitions.rs, settings.rs
//! and the module's settings.

use engine::anchor::Unfit;
use engine::reservation::YEAR_MS;
use engine::store::Refusal;
use std::fmt;
use std::panic::Location;

/// A word of a client, as an error repeats it: at most `N` bytes, with `?` in place of everything but printable ASCII,
/// because other bytes might end the line of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

/// An unknown option or an anchor, as an error repeats it.
pub type ArgumentText = Repeated<24>;
/// The name of a policy, as an error repeats it.
pub type PolicyText = Repeated<64>;

impl<const N: usize> From<&[u8]> for Repeated<N> {
    fn from(word: &[u8]) -> Repeated<N> {
        let mut bytes = [0; N];
        let mut len: u8 = 0;
        for (place, byte) in bytes.iter_mut().zip(word) {
            *place = if byte.is_ascii_graphic() { *byte } else { b'?' };
            len = len.saturating_add(1);
        }
        Repeated { bytes, len }
    }
}

impl<const N: usize> fmt::Display for Repeated<N> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shown = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        f.write_str(std::str::from_utf8(shown).unwrap_or_default())
    }
}

impl From<Refusal> for Error {
    fn from(refused: Refusal) -> Error {
        match refused {
            Refusal::NotBucket => Error::NotString,
            Refusal::NotWindow => Error::NotZset,
            Refusal::Foreign => Error::NotEntry,
            Refusal::Clock => Error::Clock,
            Refusal::DebtTooLong => Error::DebtTooLong,
            Refusal::SumTooLarge => Error::SumTooLarge,
            Refusal::Duplicate => Error::Duplicate,
            Refusal::TooManyReservations => Error::TooManyReservations,
            Refusal::Semaphore => Error::ApplySemaphore,
        }
    }
}

/// Defines [`Error`]. The errors that are listed below have a fixed text.
macro_rules! errors {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)*) => {
        /// The reason why a call was refused. Nothing was changed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Error {
            /// Too few or too many arguments. The server has its own text for that.
            Arity,
            /// A word that is not an option of this command.
            UnknownOption(ArgumentText),
            /// An option without its value, and the error for a wrong value.
            NoValue(&'static str, &'static Error),
            /// An option whose value is not an integer in this range.
            OptionInteger(&'static str, u64, u64),
            /// An option whose value is not a duration from this many milliseconds to a year.
            OptionDuration(&'static str, u64),
            /// An option whose value is a duration with the unit `m`.
            AmbiguousUnit(&'static str),
            /// An option of a command that clauses of RL.ALL do not take.
            NotInAll(&'static str),
            /// An option that is given twice.
            Twice(&'static str),
            /// Two options that exclude each other.
            NotTogether(&'static str, &'static str),
            /// An option without the option that it needs.
            Needs(&'static str, &'static str),
            /// An option with a quantity below its minimum.
            QuantityBelow(&'static str, i64),
            /// An anchor that does not fit the period.
            Unfit(ArgumentText, Unfit),
            /// An option for which the policy already has a value.
            BesidePolicy(&'static str),
            /// A name that no policy has.
            NoPolicy(PolicyText),
            /// A bug of the module that was caught, and its location in the source.
            Internal(&'static Location<'static>),
            $($(#[doc = $doc])+ $name,)*
        }

        /// All fixed texts.
        #[cfg(test)]
        const TEXTS: &[&str] = &[$($text,)*];

        impl Error {
            /// Returns the text of an error with a fixed text.
            fn fixed_text(self) -> Option<&'static str> {
                match self {
                    $(Error::$name => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

errors! {
    /// max_burst is not a number in its range.
    MaxBurst = "ERR max_burst must be an integer from 0 to 9223372036854775806",
    /// count is not a number in its range.
    Count = "ERR count must be an integer from 1 to 9223372036854775807",
    /// limit is not a number in its range.
    Limit = "ERR limit must be an integer from 0 to 9223372036854775807",
    /// quantity is not an integer, or is negative where it must not be.
    Quantity = "ERR quantity must be an integer from 0 to 9223372036854775807",
    /// quantity is not an integer, where it may be negative.
    SignedQuantity = "ERR quantity must be an integer from -9223372036854775808 to 9223372036854775807",
    /// Not a period.
    Period = "ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y",
    /// Not a period, where 0 is allowed.
    PeriodOrZero = "ERR period must be 0 for a semaphore, a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y",
    /// Not a period, where months and years are not allowed.
    PlainPeriod = "ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d or w, from 1ms to 36525d",
    /// A period with the unit `m`.
    PeriodM = "ERR period has the ambiguous unit m: use 1min or 1mo",
    /// The bucket would take longer than 100 years to fill.
    BucketTooLong = "ERR (max_burst + 1) * period / count must be at most 100 years of 365.25 days",
    /// FORCE would leave too long a debt, or a take would store a time that does not fit in 19 digits.
    DebtTooLong = "ERR a take must not leave a debt of more than 100 years of 365.25 days, nor a time past the year 2286",
    /// FORCE would count more in one key than fits.
    SumTooLarge = "ERR a key must not count more than 9223372036854775807",
    /// The maximum number of calls are waiting.
    TooManyWaiters = "ERR BLOCK must not be used while as many calls wait as ratelimit.max-waiters allows",
    /// An id is empty or too long.
    Id = "ERR an id must have 1 to 64 bytes",
    /// Not a time zone.
    Zone = "ERR TZ must be an IANA time zone such as Asia/Shanghai, or an offset such as +08:00",
    /// Neither `first` nor an anchor.
    From = "ERR FROM must be first, HH:MM, a weekday (mon), a day of the month (15), MM-DD, or YYYY-MM-DD from 1970 to 2255; a day may have @HH:MM, a time :SS",
    /// A date that no year has, or that this year does not have.
    NoSuchDay = "ERR FROM must be a day that exists: 02-29 does, 2026-02-29 and 02-30 do not",
    /// BUCKETS or FIXED for a semaphore.
    SemaphoreWindow = "ERR BUCKETS and FIXED must not be used with period 0, which has no window",
    /// COUNTLAPSED for a semaphore.
    SemaphoreCounts = "ERR COUNTLAPSED must not be used with period 0, which has no window",
    /// FIXED with a period that does not divide the calendar evenly.
    Calendar = "ERR FIXED must have a period of 1d, 1w, 1y, N seconds or N minutes where N divides 60, Nh where N divides 24, or Nmo where N divides 12; FROM YYYY-MM-DD and FROM first take others",
    /// A reservation or a waiting call has the id.
    Duplicate = "DUPLICATE the id is already held or waiting: use another id, or apply or release it first",
    /// The key holds the maximum number of reservations.
    TooManyReservations = "ERR the key already holds as many reservations as ratelimit.max-reservations allows",
    /// RL.APPLY on a semaphore's reservation.
    ApplySemaphore = "ERR the reservation is a semaphore's and must be given back with RL.RELEASE",
    /// The key does not hold a sorted set.
    NotZset = "WRONGTYPE the key does not hold a window (a sorted set)",
    /// The key holds neither a string nor a sorted set.
    NotLimit = "WRONGTYPE the key does not hold a bucket (a string) or a window (a sorted set)",
    /// The sorted set has an entry that the module did not write.
    NotEntry = "ERR the key's sorted set has an entry that RL.WINDOW or RL.ACQUIRE did not write",
    /// The key does not hold a string.
    NotString = "WRONGTYPE the key does not hold a bucket (a string)",
    /// The string was not written by the module.
    NotTat = "ERR the key holds a string that RL.THROTTLE did not write: it must be 19 digits of Unix nanoseconds",
    /// The server's clock shows a time outside of the supported years.
    Clock = "ERR the server's clock must be between 1970 and 2255",
    /// numkeys is not a number in its range.
    NumKeys = "ERR numkeys must be an integer from 1 to 64",
    /// ELSE without a clause before and after it.
    Else = "ERR syntax error: ELSE must be between two clauses",
    /// RL.ALL has the same key twice.
    KeyTwice = "ERR duplicate key: each key may be given only once",
    /// The keys of RL.ALL are in different slots of a cluster.
    CrossSlot = "CROSSSLOT the keys of one call must be in one slot: give them the same hash tag",
    /// Some keys of RL.ALL are or may be on another node, because their slot is being migrated.
    TryAgain = "TRYAGAIN the keys of one call must be on one node, but their slot is being migrated: call again after the migration",
    /// The keys of RL.ALL hold more reservations than one call may read.
    Unread = "TRYAGAIN the keys hold more reservations than one call may read: call again to read the rest",
    /// A clause of RL.ALL begins with another word.
    NoClause = "ERR syntax error: a clause must begin with THROTTLE, WINDOW or ACQUIRE",
    /// RL.ALL has more or fewer clauses than keys.
    Clauses = "ERR the number of clauses must equal the number of keys",
    /// A limit in numbers, where only policies are allowed.
    PoliciesOnly = "NOPOLICY limits must be given as @policy",
    /// A WINDOW policy in RL.THROTTLE.
    WindowPolicy = "ERR RL.THROTTLE needs a THROTTLE policy, but this one is a WINDOW policy",
    /// A THROTTLE policy in RL.WINDOW or RL.ACQUIRE.
    RatePolicy = "ERR RL.WINDOW and RL.ACQUIRE need a WINDOW policy, but this one is a THROTTLE policy",
    /// A semaphore policy in RL.WINDOW.
    SemaphorePolicy = "ERR only RL.ACQUIRE accepts a policy with period 0 (a semaphore)",
    /// The name in a definition is not followed by a kind of policy.
    PolicyKind = "ERR a policy must consist of a name, THROTTLE or WINDOW, and a limit",
    /// A definition lacks a part of its limit.
    PolicyLimit = "ERR a limit must consist of max_burst, count and period, or of limit and period",
    /// Another policy seems to begin within a definition.
    PolicySeparator = "ERR two policies must have a ';' between them",
    /// The server does not allow writes to the key at the moment.
    InUse = "TRYAGAIN the server cannot write the key at the moment: call again",
}

/// The reply if the module has a bug. The server's log has the details.
const INTERNAL: &str = "ERR internal error of redis-ratelimit, see the server's log";

impl Error {
    /// Returns an internal error with the caller's location in the source.
    #[track_caller]
    pub const fn internal() -> Error {
        Error::Internal(Location::caller())
    }
}

/// Writes the text, which begins with the error's code.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Arity => f.write_str("ERR wrong number of arguments"),
            Error::UnknownOption(word) => {
                write!(f, "ERR syntax error: unknown option {word}")
            }
            Error::NoValue(option, wrong) => {
                let wrong = wrong.to_string();
                let wrong = wrong.strip_prefix("ERR ").unwrap_or(&wrong);
                write!(f, "ERR {option} needs a value: {wrong}")
            }
            Error::OptionInteger(option, min, max) => {
                write!(f, "ERR {option} must be an integer from {min} to {max}")
            }
            Error::OptionDuration(option, min_ms) => {
                let unit = if *min_ms == 0 { "" } else { "ms" };
                write!(
                    f,
                    "ERR {option} must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, \
                     from {min_ms}{unit} to a year ({YEAR_MS}ms)"
                )
            }
            Error::AmbiguousUnit(option) => {
                write!(f, "ERR {option} has the ambiguous unit m: use min")
            }
            Error::NotInAll(option) => {
                write!(f, "ERR {option} must not be used in RL.ALL, which takes all or nothing and does not wait")
            }
            Error::Twice(option) => {
                write!(f, "ERR syntax error: {option} is given more than once")
            }
            Error::NotTogether(one, other) => {
                write!(f, "ERR {one} and {other} must not be used together")
            }
            Error::Needs(option, other) => {
                write!(f, "ERR {option} must be used with {other}")
            }
            Error::QuantityBelow(option, min) => {
                write!(f, "ERR {option} must not be used with a quantity below {min}")
            }
            Error::Unfit(anchor, unfit) => {
                let (periods, anchors) = (unfit.periods, unfit.anchors);
                write!(
                    f,
                    "ERR FROM {anchor} must be used with {periods}; with this period FROM must be \
                     {anchors}"
                )
            }
            Error::BesidePolicy(option) => {
                write!(f, "ERR {option} must not be used with a policy")
            }
            Error::NoPolicy(name) => {
                write!(f, "NOPOLICY no policy has the name {name}")
            }
            other => f.write_str(other.fixed_text().unwrap_or(INTERNAL)),
        }
    }
}

#[cfg(test)]
mod tests;

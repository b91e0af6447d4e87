//! Every error that a client can be told, in one place.

use std::ffi::CStr;

/// Why a call was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few or too many arguments; the server words it.
    Arity,
    /// max_burst is no number of its range.
    MaxBurst,
    /// count is no number of its range.
    Count,
    /// quantity is no number, or below 0 where that means nothing.
    Quantity,
    /// As above, for RL.THROTTLE.
    SignedQuantity,
    /// No period.
    Period,
    /// No period of a fixed length.
    FixedPeriod,
    /// `1m`.
    PeriodM,
    /// The bucket would take longer than 100 years to fill.
    BucketTooLong,
    /// An option that does not exist here.
    Option,
    /// An option given twice.
    OptionTwice,
    /// ATMOST with a quantity below 0.
    AtmostNegative,
    /// The key is no string.
    NotString,
    /// The string is no time of ours.
    NotTat,
    /// A bug of ours, caught.
    Internal,
}

impl Error {
    /// The text, which begins with the error's code.
    pub fn text(self) -> &'static CStr {
        match self {
            Error::Arity => c"ERR wrong number of arguments",
            Error::MaxBurst => c"ERR max_burst must be an integer from 0 to 9223372036854775806",
            Error::Count => c"ERR count must be an integer from 1 to 9223372036854775807",
            Error::Quantity => c"ERR quantity must be an integer from 0 to 9223372036854775807",
            Error::SignedQuantity => {
                c"ERR quantity must be an integer from -9223372036854775808 to 9223372036854775807"
            }
            Error::Period => {
                c"ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y"
            }
            Error::FixedPeriod => {
                c"ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d or w, from 1ms to 36525d"
            }
            Error::PeriodM => c"ERR period has the unit m, which may mean 1min or 1mo: say which",
            Error::BucketTooLong => {
                c"ERR (max_burst + 1) * period / count must be at most 100 years of 365.25 days"
            }
            Error::Option => c"ERR syntax error: unknown option or option without its value",
            Error::OptionTwice => c"ERR syntax error: an option may be given once",
            Error::AtmostNegative => c"ERR ATMOST must not be used with a quantity below 0",
            Error::NotString => {
                c"WRONGTYPE the key holds no string, which is what RL.THROTTLE keeps"
            }
            Error::NotTat => {
                c"ERR the key holds a string that RL.THROTTLE did not write: it must be 19 digits of Unix nanoseconds"
            }
            Error::Internal => c"ERR internal error of redis-ratelimit, see the server's log",
        }
    }
}

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
    /// limit is no number of its range.
    Limit,
    /// quantity, where it may be below 0.
    SignedQuantity,
    /// No period.
    Period,
    /// No period, where 0 is one.
    PeriodOrZero,
    /// No period of a fixed length.
    PlainPeriod,
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
    /// BUCKETS is out of its range.
    Buckets,
    /// LEASE is out of its range.
    Lease,
    /// BLOCK is out of its range.
    Block,
    /// As many calls wait as may.
    TooManyWaiters,
    /// An id is empty or too long.
    Id,
    /// No such time zone.
    Zone,
    /// TZ without FIXED.
    ZoneAlone,
    /// BUCKETS and FIXED in one call.
    BucketsAndFixed,
    /// BUCKETS or FIXED for a semaphore.
    SemaphoreWindow,
    /// The period does not divide the calendar.
    Calendar,
    /// The id is held.
    Duplicate,
    /// As many reservations as are allowed in one key.
    TooManyReservations,
    /// RL.APPLY on a semaphore's reservation.
    ApplySemaphore,
    /// The key is no sorted set.
    NotZset,
    /// An entry of the sorted set is none of ours.
    NotEntry,
    /// The key is no string.
    NotString,
    /// The string is no time of ours.
    NotTat,
    /// A bug of ours, caught.
    Internal,
}

impl Error {
    /// The text, which begins with the error's code.
    pub const fn text(self) -> &'static CStr {
        match self {
            Error::Arity => c"ERR wrong number of arguments",
            Error::MaxBurst => c"ERR max_burst must be an integer from 0 to 9223372036854775806",
            Error::Count => c"ERR count must be an integer from 1 to 9223372036854775807",
            Error::Limit => c"ERR limit must be an integer from 0 to 9223372036854775807",
            Error::Quantity => c"ERR quantity must be an integer from 0 to 9223372036854775807",
            Error::SignedQuantity => {
                c"ERR quantity must be an integer from -9223372036854775808 to 9223372036854775807"
            }
            Error::Period => {
                c"ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y"
            }
            Error::PeriodOrZero => {
                c"ERR period must be 0 for a semaphore, a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, from 1ms to 100y"
            }
            Error::PlainPeriod => {
                c"ERR period must be a whole number of seconds, or one with a unit of ms, s, min, h, d or w, from 1ms to 36525d"
            }
            Error::PeriodM => c"ERR period has the unit m, which may mean 1min or 1mo: say which",
            Error::BucketTooLong => {
                c"ERR (max_burst + 1) * period / count must be at most 100 years of 365.25 days"
            }
            Error::Option => c"ERR syntax error: unknown option or option without its value",
            Error::OptionTwice => c"ERR syntax error: an option may be given once",
            Error::AtmostNegative => c"ERR ATMOST must not be used with a quantity below 0",
            Error::Buckets => c"ERR BUCKETS must be an integer from 1 to 65536",
            Error::Lease => {
                c"ERR LEASE must be an integer from 1 to 31557600000 milliseconds, which is a year"
            }
            Error::Block => {
                c"ERR BLOCK must be an integer from 0 to 31557600000 milliseconds, which is a year"
            }
            Error::TooManyWaiters => {
                c"ERR BLOCK must not be used while as many calls wait as ratelimit.max-waiters allows"
            }
            Error::Id => c"ERR an id must have 1 to 64 bytes",
            Error::Zone => {
                c"ERR TZ must be an IANA time zone such as Asia/Shanghai, or an offset such as +08:00"
            }
            Error::ZoneAlone => c"ERR TZ must be used with FIXED",
            Error::BucketsAndFixed => c"ERR BUCKETS and FIXED must not be used together",
            Error::SemaphoreWindow => {
                c"ERR BUCKETS and FIXED must not be used with period 0, which has no window"
            }
            Error::Calendar => {
                c"ERR FIXED must have a period of 1d, 1w, 1y, N seconds or N minutes where N divides 60, Nh where N divides 24, or Nmo where N divides 12"
            }
            Error::Duplicate => {
                c"DUPLICATE the id is held or waiting: it must be another, or applied or released first"
            }
            Error::TooManyReservations => {
                c"ERR the key holds as many reservations as ratelimit.max-reservations allows"
            }
            Error::ApplySemaphore => {
                c"ERR the reservation is a semaphore's and must be given back with RL.RELEASE"
            }
            Error::NotZset => {
                c"WRONGTYPE the key holds no sorted set, which is what RL.WINDOW and RL.ACQUIRE keep"
            }
            Error::NotEntry => {
                c"ERR the key's sorted set has an entry that RL.WINDOW or RL.ACQUIRE did not write"
            }
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

//! The lengths of windows and rates.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::not_m;
use crate::Error;

/// The length of a window, or the time in which a rate's count is given out.
///
/// Made from a [`Duration`], rounded up to whole milliseconds, or parsed from a number with a unit of `ms`, `s`, `min`, `h`,
/// `d`, `w`, `mo` or `y`. From 1 ms to 100 years; a [`Rate`](crate::Rate) takes no months and years.
///
/// ```
/// # use redis_ratelimit_client::Period;
/// # use std::time::Duration;
/// let month: Period = "1mo".parse()?;
/// assert_eq!(month.to_string(), "1mo");
/// assert_eq!(Period::from(Duration::from_millis(1500)).to_string(), "1500ms");
/// # Ok::<(), redis_ratelimit_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    pub(crate) count: u64,
    pub(crate) unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unit {
    /// The first is the server's.
    names: &'static [&'static str],
    /// The length; of months and years the shortest.
    least_ms: u64,
}

const SECOND_MS: u64 = 1000;
const DAY_MS: u64 = 86_400 * SECOND_MS;
/// A number alone is seconds.
const PLAIN: Unit = Unit { names: &[""], least_ms: SECOND_MS };
const MILLISECONDS: Unit = Unit { names: &["ms", "millisecond", "milliseconds"], least_ms: 1 };
const MONTHS: Unit = Unit { names: &["mo", "month", "months"], least_ms: 28 * DAY_MS };
const YEARS: Unit = Unit { names: &["y", "year", "years"], least_ms: 365 * DAY_MS };
const UNITS: [Unit; 8] = [
    MILLISECONDS,
    Unit { names: &["s", "sec", "second", "seconds"], least_ms: SECOND_MS },
    Unit { names: &["min", "minute", "minutes"], least_ms: 60 * SECOND_MS },
    Unit { names: &["h", "hour", "hours"], least_ms: 3600 * SECOND_MS },
    Unit { names: &["d", "day", "days"], least_ms: DAY_MS },
    Unit { names: &["w", "week", "weeks"], least_ms: 7 * DAY_MS },
    MONTHS,
    YEARS,
];

impl Unit {
    fn named(name: &str) -> Option<Unit> {
        let is_name = |other: &&str| other.eq_ignore_ascii_case(name);
        UNITS.into_iter().find(|unit| unit.names.iter().any(is_name))
    }
}

impl Period {
    /// Creates a period of calendar months, as in "the 15th of the next month".
    pub const fn months(count: u64) -> Period {
        Period { count, unit: MONTHS }
    }

    /// Creates a period of calendar years.
    pub const fn years(count: u64) -> Period {
        Period { count, unit: YEARS }
    }

    /// Returns the length; `None` for months and years, which have no fixed length.
    pub fn as_duration(&self) -> Option<Duration> {
        let is_fixed = self.unit != MONTHS && self.unit != YEARS;
        is_fixed.then(|| self.least_duration())
    }

    /// Returns the length, where months last 28 days and years 365.
    pub fn least_duration(&self) -> Duration {
        Duration::from_millis(self.count.saturating_mul(self.unit.least_ms))
    }
}

impl From<Duration> for Period {
    fn from(length: Duration) -> Period {
        let ms = whole_ms(length);
        match ms % 1000 {
            0 => Period { count: ms / 1000, unit: PLAIN },
            _ => Period { count: ms, unit: MILLISECONDS },
        }
    }
}

impl FromStr for Period {
    type Err = Error;

    fn from_str(text: &str) -> Result<Period, Error> {
        let (digits, name) = split_number(text);
        let unit = if name.is_empty() { Some(PLAIN) } else { Unit::named(name) };
        match (digits.parse(), unit) {
            (Ok(count), Some(unit)) => Ok(Period { count, unit }),
            _ => Err(Error::period(text, not_m(name))),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, self.unit.names.first().unwrap_or(&""))
    }
}

/// Returns whole milliseconds, rounded up.
pub(crate) fn whole_ms(length: Duration) -> u64 {
    let ms = length.as_nanos().div_ceil(1_000_000);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// Splits a text after the digits at its front.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses the count and the period of a text such as "30/min" or "5 per 10s".
pub(crate) fn parse_per(text: &str) -> Result<(u64, Period), Error> {
    let mut hint = "";
    let mut parse = || {
        let (count, rest) = split_number(text.trim());
        let trimmed = rest.trim_start();
        let period = match trimmed.strip_prefix('/') {
            Some(period) => period,
            // Blanks are needed around the word.
            None => {
                let (word, period) = trimmed.split_once(char::is_whitespace)?;
                let is_word = word.eq_ignore_ascii_case("per") && trimmed.len() < rest.len();
                is_word.then_some(period)?
            }
        };
        let (periods, name) = split_number(period.trim());
        let (periods, name) = (if periods.is_empty() { "1" } else { periods }, name.trim_start());
        hint = not_m(name);
        let period = Period { count: periods.parse().ok()?, unit: Unit::named(name)? };
        Some((count.parse().ok()?, period))
    };
    match parse() {
        None => Err(Error::per(text, hint)),
        Some((_, Period { count: 0, .. })) => Err(Error::period_of_zero(text)),
        Some(found) => Ok(found),
    }
}

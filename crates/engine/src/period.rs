//! Periods: `60`, `500ms`, `10s`, `5min`, `2h`, `1d`, `1w`, `1mo`, `1y`.

use crate::decimal::parse_u64;
use crate::text::ShortText;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// The longest period, in milliseconds: 100 years of 365.25 days.
pub const MAX_PERIOD_MS: u64 = 3_155_760_000_000;

/// The longest lease, ban, and wait: a year of 365.25 days, in milliseconds.
pub const YEAR_MS: u64 = MAX_PERIOD_MS / 100;

const MAX_MONTHS: u64 = 1200;

pub(crate) const DAY_S: u64 = 86_400;

pub(crate) const WEEK_S: u64 = 7 * DAY_S;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// `ms`
    Millisecond,
    /// `s`, or no unit at all
    Second,
    /// `min`
    Minute,
    /// `h`
    Hour,
    /// `d`, of 24 hours
    Day,
    /// `w`
    Week,
    /// `mo`, of the calendar
    Month,
    /// `y`, of the calendar
    Year,
}

impl Unit {
    const ALL: [(&'static str, Unit, Length); 8] = [
        ("ms", Unit::Millisecond, Length::Ms(1)),
        ("s", Unit::Second, Length::Ms(1_000)),
        ("min", Unit::Minute, Length::Ms(60_000)),
        ("h", Unit::Hour, Length::Ms(3_600_000)),
        ("d", Unit::Day, Length::Ms(DAY_S * 1_000)),
        ("w", Unit::Week, Length::Ms(WEEK_S * 1_000)),
        ("mo", Unit::Month, Length::Months(1)),
        ("y", Unit::Year, Length::Months(12)),
    ];

    fn length(self) -> Length {
        let found = Unit::ALL.iter().find(|(_, unit, _)| *unit == self);
        found.map_or(Length::Ms(1), |(_, _, length)| *length)
    }

    fn suffix(self) -> &'static str {
        Unit::ALL.iter().find(|(_, unit, _)| *unit == self).map_or("", |(suffix, _, _)| suffix)
    }
}

/// A length of time from 1 ms to 100 years, in the unit in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    count: u64,
    unit: Unit,
    length: Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Length {
    /// Milliseconds, 1 to [`MAX_PERIOD_MS`].
    Ms(u64),
    /// Months of the calendar, 1 to 1200.
    Months(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodError {
    /// It is not a number with a unit that exists.
    Syntax,
    /// `1m`, which may mean a minute or a month.
    AmbiguousM,
    /// It is below 1 ms or above 100 years.
    Range,
}

impl Period {
    /// Parses a number and a unit, in upper or lower case. Without a unit it is in seconds.
    pub fn parse(text: &[u8]) -> Result<Period, PeriodError> {
        // Most periods are plain seconds.
        if let Some(count) = parse_u64(text) {
            return Period::new(count, Unit::Second);
        }
        let digits = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(digits).ok_or(PeriodError::Syntax)?;
        if suffix.eq_ignore_ascii_case(b"m") && !number.is_empty() {
            return Err(PeriodError::AmbiguousM);
        }
        let suffix = if suffix.is_empty() { b"s" } else { suffix };
        let &(_, unit, _) = Unit::ALL
            .iter()
            .find(|(name, _, _)| suffix.eq_ignore_ascii_case(name.as_bytes()))
            .ok_or(PeriodError::Syntax)?;
        if number.is_empty() || (number.len() > 1 && number.first() == Some(&b'0')) {
            return Err(PeriodError::Syntax);
        }
        // It has only digits, so it is too large if it does not parse.
        Period::new(parse_u64(number).ok_or(PeriodError::Range)?, unit)
    }

    /// Creates a period of `count` of a unit.
    ///
    /// # Errors
    ///
    /// [`PeriodError::Range`].
    pub fn new(count: u64, unit: Unit) -> Result<Period, PeriodError> {
        let within =
            |unit: u64, max: u64| count.checked_mul(unit).filter(|n| (1..=max).contains(n));
        let length = match unit.length() {
            Length::Ms(ms) => within(ms, MAX_PERIOD_MS).map(Length::Ms),
            Length::Months(months) => within(months.into(), MAX_MONTHS)
                .and_then(|months| u32::try_from(months).ok())
                .map(Length::Months),
        };
        Ok(Period { count, unit, length: length.ok_or(PeriodError::Range)? })
    }

    pub fn length(&self) -> Length {
        self.length
    }

    /// Returns the number that was written, such as 5 for `5min`.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Appends the text that [`Period::parse`] reads.
    pub fn write<const N: usize>(&self, out: &mut ShortText<N>) {
        out.push_number(self.count, 1);
        out.push(self.unit.suffix().as_bytes());
    }
}

impl Length {
    /// Returns the time at which an event of `event_us` expires in a sliding window of this length. For months this is the
    /// same day and time in UTC that many months later. If that day does not exist, it is the first instant of the next
    /// month.
    pub fn expires_us(self, event_us: u64) -> u64 {
        match self {
            Length::Ms(ms) => event_us.saturating_add(ms.saturating_mul(1_000)),
            Length::Months(months) => {
                shifted(event_us, i64::from(months)).map_or(u64::MAX, |(us, _)| us)
            }
        }
    }

    /// Returns the horizon at `now_us`: the latest time of an event that has expired in a sliding window of this length, the
    /// largest `e` with `expires_us(e) <= now_us`. `None` if that is before 1970.
    pub fn horizon_us(self, now_us: u64) -> Option<u64> {
        match self {
            Length::Ms(ms) => now_us.checked_sub(ms.saturating_mul(1_000)),
            Length::Months(months) => match shifted(now_us, i64::from(months).saturating_neg())? {
                (us, true) => Some(us),
                // All of the shorter month has expired, nothing of the one after it.
                (us, false) => us.checked_sub(1),
            },
        }
    }
}

/// Moves `us` by calendar months in UTC, and returns whether the month has that day. If not, the time is the first of the
/// next month. `None` outside 1970 to 9999.
fn shifted(us: u64, months: i64) -> Option<(u64, bool)> {
    let from = Timestamp::from_microsecond(i64::try_from(us).ok()?).ok()?;
    let from = from.to_zoned(TimeZone::UTC).datetime();
    let mut to = from.checked_add(Span::new().try_months(months).ok()?).ok()?;
    // jiff stops at the last day of a shorter month.
    let has_day = to.day() == from.day();
    if !has_day {
        to = to.first_of_month().checked_add(Span::new().months(1)).ok()?.start_of_day();
    }
    let timestamp = TimeZone::UTC.to_timestamp(to).ok()?;
    Some((u64::try_from(timestamp.as_microsecond()).ok()?, has_day))
}

#[cfg(test)]
mod tests;

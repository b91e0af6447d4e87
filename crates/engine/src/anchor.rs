//! Anchors, from which windows are counted: `09:00`, `sun`, `mon@09:00`, `15`, `31@09:00`, `04-06`, `2026-01-31@09:00:30`.

use crate::decimal::{parse_two_digits, parse_u64, split_once};
use crate::period::{Length, Period, Unit, DAY_S, WEEK_S};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::Offset;
use std::fmt::{Display, Formatter};

/// The years that a date may have.
const YEARS: std::ops::RangeInclusive<i16> = 1970..=2255;

/// The weekdays, from the first Monday after 1 January 1970 on.
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const FIRST_MONDAY: i8 = 5;

/// A leap year, so that 29 February parses.
const LEAP_YEAR: i16 = 1972;

/// A moment on the wall clock of a zone, as precise as its period needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    kind: AnchorKind,
    /// The first such moment from 1970 on. For a day of the year it is the one in [`LEAP_YEAR`].
    start: DateTime,
}

/// The day that an anchor names in addition to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnchorKind {
    /// Nothing: `09:00`.
    Time,
    /// `sun`
    Weekday,
    /// `15`
    DayOfMonth,
    /// `04-06`: a month and a day of it.
    DayOfYear,
    /// `2026-11-02`
    Date,
}

/// The start of the windows of FIXED, if it is not that of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A window starts with the first event that is counted.
    First,
    /// Windows start at an anchor, and follow each other before and after it.
    Anchor(Anchor),
}

impl Start {
    /// Parses `first` or an anchor, in upper or lower case.
    pub fn parse(text: &[u8]) -> Result<Start, AnchorError> {
        if text.eq_ignore_ascii_case(b"first") {
            return Ok(Start::First);
        }
        Anchor::parse(text).map(Start::Anchor)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorError {
    /// It does not have the form of an anchor.
    Syntax,
    /// The day does not exist in any year, or not in the year that is given.
    NoSuchDay,
}

/// A series of windows, which follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// The start of one of them on the wall clock, in seconds after midnight on 1 January 1970.
    pub start_s: i64,
    pub spacing: Spacing,
}

/// The distance between the starts of two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// Seconds that pass.
    Elapsed(i64),
    /// Seconds on the wall clock.
    Wall(i64),
    /// Months on the wall clock.
    Months(i64),
}

/// What an anchor that does not fit its period would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchorMismatch {
    /// The periods that the anchor fits.
    pub periods: &'static str,
    /// The anchors that fit the period.
    pub anchors: &'static str,
}

/// The kinds of periods, by the anchors that fit them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeriodKind {
    Milliseconds,
    Day,
    Week,
    /// A number of months that divides the year.
    Months,
    Year,
    Other,
}

impl Anchor {
    /// Parses an anchor, in upper or lower case.
    pub fn parse(text: &[u8]) -> Result<Anchor, AnchorError> {
        let (day, time) = match split_once(text, b'@') {
            Some((day, time)) => (Some(day), Some(time)),
            None if text.contains(&b':') => (None, Some(text)),
            None => (Some(text), None),
        };
        let time = time.map_or(Some(Time::midnight()), parse_time).ok_or(AnchorError::Syntax)?;
        let (kind, date) = match day {
            Some(day) => parse_day(day)?,
            None => (AnchorKind::Time, date(1970, 1, 1)?),
        };
        Ok(Anchor { kind, start: date.to_datetime(time) })
    }

    /// Returns the windows of `period` before and after this anchor.
    pub(crate) fn series(&self, period: Period) -> Result<Series, AnchorMismatch> {
        let kind = PeriodKind::new(period);
        let is_part_of_year = matches!(kind, PeriodKind::Months | PeriodKind::Year);
        let (fits, periods) = match self.kind {
            AnchorKind::Time => (kind == PeriodKind::Day, "1d"),
            AnchorKind::Weekday => (kind == PeriodKind::Week, "1w"),
            AnchorKind::DayOfMonth => {
                (kind == PeriodKind::Months, "1mo, or Nmo where N divides 12")
            }
            AnchorKind::DayOfYear => (is_part_of_year, "1y, or Nmo where N divides 12"),
            AnchorKind::Date => {
                (kind != PeriodKind::Milliseconds, "a period in s, min, h, d, w, mo or y")
            }
        };
        let mismatch = AnchorMismatch { periods, anchors: kind.anchors() };
        let start_s = wall_s(self.start).filter(|_| fits).ok_or(mismatch)?;
        Ok(Series { start_s, spacing: Spacing::new(period, kind) })
    }
}

/// The text that [`Anchor::parse`] reads.
impl Display for Anchor {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        let (date, time) = (self.start.date(), self.start.time());
        match self.kind {
            AnchorKind::Time => {}
            AnchorKind::Weekday => {
                let at = date.weekday().to_monday_zero_offset().unsigned_abs();
                f.write_str(WEEKDAYS.get(usize::from(at)).unwrap_or(&""))?;
            }
            AnchorKind::DayOfMonth => write!(f, "{}", date.day())?,
            AnchorKind::DayOfYear => write!(f, "{:02}-{:02}", date.month(), date.day())?,
            AnchorKind::Date => write!(f, "{date}")?,
        }
        match self.kind {
            AnchorKind::Time => {}
            _ if time == Time::midnight() => return Ok(()),
            _ => f.write_str("@")?,
        }
        write!(f, "{:02}:{:02}", time.hour(), time.minute())?;
        match time.second() {
            0 => Ok(()),
            second => write!(f, ":{second:02}"),
        }
    }
}

impl Series {
    /// Returns the windows of `period`, one of which starts at `start_s`. `None` for a period in milliseconds, and for a
    /// start that no anchor has.
    pub(crate) fn starting(period: Period, start_s: i64) -> Option<Series> {
        let kind = PeriodKind::new(period);
        let after_last = Date::new(YEARS.end().saturating_add(1), 1, 1).ok()?;
        let starts_s = 0..wall_s(after_last.to_datetime(Time::midnight()))?;
        let sound = kind != PeriodKind::Milliseconds && starts_s.contains(&start_s);
        sound.then_some(Series { start_s, spacing: Spacing::new(period, kind) })
    }
}

/// Returns the seconds from midnight on 1 January 1970 to a date and time on the wall clock.
pub(crate) fn wall_s(wall: DateTime) -> Option<i64> {
    Some(Offset::UTC.to_timestamp(wall).ok()?.as_second())
}

/// Parses `HH:MM` or `HH:MM:SS`.
pub(crate) fn parse_time(text: &[u8]) -> Option<Time> {
    let (hour, minute, second) = match *text {
        [h1, h2, b':', m1, m2] => (parse_two_digits(h1, h2)?, parse_two_digits(m1, m2)?, 0),
        [h1, h2, b':', m1, m2, b':', s1, s2] => {
            (parse_two_digits(h1, h2)?, parse_two_digits(m1, m2)?, parse_two_digits(s1, s2)?)
        }
        _ => return None,
    };
    Time::new(hour, minute, second, 0).ok()
}

fn parse_day(text: &[u8]) -> Result<(AnchorKind, Date), AnchorError> {
    let number = |tens, ones| parse_two_digits(tens, ones).ok_or(AnchorError::Syntax);
    Ok(match *text {
        [_] | [_, _] => {
            let day = parse_u64(text).filter(|day| (1..=31).contains(day));
            let day = day.and_then(|day| i8::try_from(day).ok()).ok_or(AnchorError::Syntax)?;
            (AnchorKind::DayOfMonth, date(1970, 1, day)?)
        }
        [_, _, _] => {
            let is_named = |(_, name): &(i8, &str)| text.eq_ignore_ascii_case(name.as_bytes());
            let named = (FIRST_MONDAY..).zip(WEEKDAYS).find(is_named);
            let (day, _) = named.ok_or(AnchorError::Syntax)?;
            (AnchorKind::Weekday, date(1970, 1, day)?)
        }
        [m1, m2, b'-', d1, d2] => {
            (AnchorKind::DayOfYear, date(LEAP_YEAR, number(m1, m2)?, number(d1, d2)?)?)
        }
        [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] => {
            let (century, year) = (i16::from(number(y1, y2)?), i16::from(number(y3, y4)?));
            let year = century.saturating_mul(100).saturating_add(year);
            let (month, day) = (number(m1, m2)?, number(d1, d2)?);
            if !YEARS.contains(&year) {
                return Err(AnchorError::Syntax);
            }
            (AnchorKind::Date, date(year, month, day)?)
        }
        _ => return Err(AnchorError::Syntax),
    })
}

fn date(year: i16, month: i8, day: i8) -> Result<Date, AnchorError> {
    Date::new(year, month, day).map_err(|_| AnchorError::NoSuchDay)
}

impl Spacing {
    fn new(period: Period, kind: PeriodKind) -> Spacing {
        let ms = match period.length() {
            Length::Months(months) => return Spacing::Months(months.into()),
            Length::Ms(ms) => ms,
        };
        let seconds = i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
        match (period.unit(), kind) {
            // 86400 and 604800 seconds are a day and a week too.
            (Unit::Day | Unit::Week, _) | (_, PeriodKind::Day | PeriodKind::Week) => {
                Spacing::Wall(seconds)
            }
            _ => Spacing::Elapsed(seconds),
        }
    }
}

impl PeriodKind {
    fn new(period: Period) -> PeriodKind {
        match (period.unit(), period.count()) {
            (Unit::Millisecond, _) => PeriodKind::Milliseconds,
            (Unit::Second, DAY_S) | (Unit::Day, 1) => PeriodKind::Day,
            (Unit::Second, WEEK_S) | (Unit::Week, 1) => PeriodKind::Week,
            (Unit::Month, 1 | 2 | 3 | 4 | 6 | 12) => PeriodKind::Months,
            (Unit::Year, 1) => PeriodKind::Year,
            _ => PeriodKind::Other,
        }
    }

    fn anchors(self) -> &'static str {
        match self {
            PeriodKind::Milliseconds => "first",
            PeriodKind::Day => "HH:MM, YYYY-MM-DD or first",
            PeriodKind::Week => "a weekday, YYYY-MM-DD or first",
            PeriodKind::Months => "a day of the month, MM-DD, YYYY-MM-DD or first",
            PeriodKind::Year => "MM-DD, YYYY-MM-DD or first",
            PeriodKind::Other => "YYYY-MM-DD or first",
        }
    }
}

#[cfg(test)]
mod tests;

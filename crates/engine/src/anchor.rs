//! Anchors, from which windows are counted: `09:00`, `sun`, `mon@09:00`, `15`, `31@09:00`, `04-06`, `2026-01-31@09:00:30`.

use crate::decimal::{parse_u64, split_once, two_digits};
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

/// The reason why a text is not an anchor.
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
    /// The distance between two starts.
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

/// The error that an anchor does not fit its period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
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
    /// Any other period.
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
    pub(crate) fn series(&self, period: Period) -> Result<Series, Unfit> {
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
        let unfit = Unfit { periods, anchors: kind.anchors() };
        let start_s = wall_s(self.start).filter(|_| fits).ok_or(unfit)?;
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
        [h1, h2, b':', m1, m2] => (two_digits(h1, h2)?, two_digits(m1, m2)?, 0),
        [h1, h2, b':', m1, m2, b':', s1, s2] => {
            (two_digits(h1, h2)?, two_digits(m1, m2)?, two_digits(s1, s2)?)
        }
        _ => return None,
    };
    Time::new(hour, minute, second, 0).ok()
}

fn parse_day(text: &[u8]) -> Result<(AnchorKind, Date), AnchorError> {
    let number = |tens, ones| two_digits(tens, ones).ok_or(AnchorError::Syntax);
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

    /// Returns the anchors that fit this kind of period.
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
mod tests {
    use super::*;
    use crate::properties::cases;
    use proptest::prelude::*;

    fn written(text: &str) -> Result<String, AnchorError> {
        Ok(Anchor::parse(text.as_bytes())?.to_string())
    }

    #[test]
    fn anchors_are_read_in_either_case_and_written_in_one_way() {
        for (text, out) in [
            ("09:00", "09:00"),
            ("00:00", "00:00"),
            ("23:59:59", "23:59:59"),
            ("09:00:00", "09:00"),
            ("sun", "sun"),
            ("SUN", "sun"),
            ("Mon@09:00", "mon@09:00"),
            ("tue@00:00", "tue"),
            ("wEd@00:00:01", "wed@00:00:01"),
            ("thu", "thu"),
            ("fri", "fri"),
            ("sat", "sat"),
            ("1", "1"),
            ("15", "15"),
            ("31@09:00", "31@09:00"),
            ("04-06", "04-06"),
            ("02-29@23:00", "02-29@23:00"),
            ("12-31", "12-31"),
            ("2026-11-02", "2026-11-02"),
            ("2026-01-31@09:00", "2026-01-31@09:00"),
            ("2026-01-31@09:00:30", "2026-01-31@09:00:30"),
            ("1970-01-01", "1970-01-01"),
            ("2255-12-31", "2255-12-31"),
            ("2024-02-29", "2024-02-29"),
            ("2000-02-29", "2000-02-29"),
        ] {
            assert_eq!(written(text), Ok(out.into()), "{text}");
        }
    }

    #[test]
    fn what_is_no_anchor_is_refused() {
        use AnchorError::{NoSuchDay, Syntax};
        for (text, error) in [
            ("", Syntax),
            ("@", Syntax),
            ("@09:00", Syntax),
            ("sun@", Syntax),
            ("sun@9:00", Syntax),
            ("sun@09:00@09:00", Syntax),
            ("sunday", Syntax),
            ("su", Syntax),
            ("so", Syntax),
            ("abc", Syntax),
            ("first", Syntax),
            ("9:00", Syntax),
            ("24:00", Syntax),
            ("09:60", Syntax),
            ("09:00:60", Syntax),
            ("09:00:0", Syntax),
            ("09.00", Syntax),
            ("0900", Syntax),
            ("09:00 ", Syntax),
            ("+9:00", Syntax),
            ("-9:00", Syntax),
            ("0", Syntax),
            ("00", Syntax),
            ("01", Syntax),
            ("015", Syntax),
            ("32", Syntax),
            ("-1", Syntax),
            ("+1", Syntax),
            ("1.", Syntax),
            ("100", Syntax),
            ("4-6", Syntax),
            ("04-6", Syntax),
            ("04/06", Syntax),
            ("ab-cd", Syntax),
            ("00-01", NoSuchDay),
            ("00-10", NoSuchDay),
            ("01-00", NoSuchDay),
            ("13-01", NoSuchDay),
            ("02-30", NoSuchDay),
            ("04-31", NoSuchDay),
            ("06-31@09:00", NoSuchDay),
            ("2026-02-29", NoSuchDay),
            ("2100-02-29", NoSuchDay),
            ("2200-02-29", NoSuchDay),
            ("2100-02-29@09:00", NoSuchDay),
            ("2026-02-30", NoSuchDay),
            ("2026-13-01", NoSuchDay),
            ("1969-12-31", Syntax),
            ("2256-01-01", Syntax),
            ("0000-01-01", Syntax),
            ("9999-01-01", Syntax),
            ("2026-1-1", Syntax),
            ("26-01-01", Syntax),
            ("2026-01-01T09:00", Syntax),
            ("2026-01-01 09:00", Syntax),
            ("2026-01-01@", Syntax),
            ("2026-01", Syntax),
        ] {
            assert_eq!(written(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn an_anchor_fits_some_periods_and_the_error_names_both_sides() {
        #[rustfmt::skip]
        let fits: [(&str, &[&str], &[&str]); 5] = [
            ("09:00", &["1d", "86400"], &["2d", "24h", "1440min", "86401", "86400000ms", "1w", "1mo", "1y"]),
            ("sun@09:00", &["1w", "604800"], &["2w", "7d", "168h", "1d", "1mo", "1y", "604800000ms"]),
            ("31", &["1mo", "2mo", "3mo", "4mo", "6mo", "12mo"], &["5mo", "24mo", "1y", "30d", "1w"]),
            ("02-29", &["1y", "1mo", "6mo", "12mo"], &["2y", "5mo", "24mo", "365d", "1d"]),
            ("2026-11-02", &["1", "7s", "90min", "5h", "14d", "3w", "10mo", "100y", "24mo"], &["1ms", "86400000ms"]),
        ];
        for (anchor, good, bad) in fits {
            let series = |period: &str| {
                let period = Period::parse(period.as_bytes()).unwrap();
                Anchor::parse(anchor.as_bytes()).unwrap().series(period)
            };
            for period in good {
                assert!(series(period).is_ok(), "{anchor} {period}");
            }
            for period in bad {
                let unfit = series(period).unwrap_err();
                assert!(!unfit.periods.is_empty() && unfit.anchors.ends_with("first"));
            }
        }
        let (day, week) = ("1d", "1w");
        let (month, year) = ("1mo, or Nmo where N divides 12", "1y, or Nmo where N divides 12");
        let units = "a period in s, min, h, d, w, mo or y";
        for (period, anchor, periods, anchors) in [
            ("1d", "sun", week, "HH:MM, YYYY-MM-DD or first"),
            ("2w", "sun", week, "YYYY-MM-DD or first"),
            ("2d", "09:00", day, "YYYY-MM-DD or first"),
            ("86400000ms", "09:00", day, "first"),
            ("1w", "09:00", day, "a weekday, YYYY-MM-DD or first"),
            ("1mo", "09:00", day, "a day of the month, MM-DD, YYYY-MM-DD or first"),
            ("1d", "15", month, "HH:MM, YYYY-MM-DD or first"),
            ("1y", "15", month, "MM-DD, YYYY-MM-DD or first"),
            ("2y", "04-06", year, "YYYY-MM-DD or first"),
            ("1w", "04-06", year, "a weekday, YYYY-MM-DD or first"),
            ("500ms", "2026-11-02", units, "first"),
            ("60000ms", "2026-11-02@09:00", units, "first"),
        ] {
            let period = Period::parse(period.as_bytes()).unwrap();
            let unfit = Anchor::parse(anchor.as_bytes()).unwrap().series(period).unwrap_err();
            assert_eq!((unfit.periods, unfit.anchors), (periods, anchors), "{anchor}");
        }
    }

    /// Days are counted on the wall clock, and so are seconds that are a day or a week.
    #[test]
    fn periods_are_counted_in_seconds_or_days_or_months() {
        for (period, spacing) in [
            ("86400", Spacing::Wall(86_400)),
            ("604800", Spacing::Wall(604_800)),
            ("2d", Spacing::Wall(172_800)),
            ("3w", Spacing::Wall(1_814_400)),
            ("172800", Spacing::Elapsed(172_800)),
            ("24h", Spacing::Elapsed(86_400)),
            ("90min", Spacing::Elapsed(5_400)),
            ("5mo", Spacing::Months(5)),
            ("2y", Spacing::Months(24)),
        ] {
            let parsed = Period::parse(period.as_bytes()).unwrap();
            assert_eq!(Spacing::new(parsed, PeriodKind::new(parsed)), spacing, "{period}");
        }
    }

    proptest! {
        #![proptest_config(cases(2_000))]

        #[test]
        fn no_bytes_make_it_panic_and_what_is_read_is_written_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..24),
            text in "([a-zA-Z]{3}|[0-9]{1,2}|[0-9]{2}-[0-9]{2}|[12][0-9]{3}-[01][0-9]-[0-3][0-9])?@?([0-2][0-9]:[0-5][0-9](:[0-9]{2})?)?",
        ) {
            for bytes in [&bytes[..], text.as_bytes()] {
                let Ok(anchor) = Anchor::parse(bytes) else { continue };
                prop_assert_eq!(Anchor::parse(anchor.to_string().as_bytes()), Ok(anchor));
            }
        }
    }
}

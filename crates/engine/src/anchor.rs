//! Anchors, from which windows are counted: `09:00`, `sun`, `mon@09:00`, `15`, `31@09:00`, `04-06`, `2026-01-31@09:00:30`.

use super::decimal::{parse_u64, two_digits, Text};
use super::period::{Length, Period, Unit, DAY_MS, DAY_S, WEEK_S};

/// The longest anchor: a date and a time with seconds.
pub const MAX_ANCHOR: usize = 19;

/// An anchor as text.
pub type AnchorText = Text<MAX_ANCHOR>;

/// The years that a date may have.
const YEARS: std::ops::RangeInclusive<u16> = 1970..=2255;

/// The weekdays, from the first Monday after 1 January 1970 on.
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const FIRST_MONDAY: u8 = 5;

/// A year that has every day that there is.
const LEAP_YEAR: u16 = 1972;

/// A moment on the wall clock of a zone, as far as it matters for the period that it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    day: Day,
    /// Seconds since midnight.
    second: u32,
}

/// Where the windows of FIXED start, if not on the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the first event that is counted.
    First,
    /// From an anchor on, and before it.
    Anchor(Anchor),
}

impl Start {
    /// Reads `first` or an anchor, in either case of letters.
    pub fn parse(text: &[u8]) -> Result<Start, AnchorError> {
        if text.eq_ignore_ascii_case(b"first") {
            return Ok(Start::First);
        }
        Anchor::parse(text).map(Start::Anchor)
    }
}

/// The day of an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Day {
    /// Any: `09:00`.
    Each,
    /// `sun`: days since Monday.
    OfWeek(u8),
    /// `15`
    OfMonth(u8),
    /// `04-06`: a month and a day of it.
    OfYear(u8, u8),
    /// `2026-11-02`
    Date(u16, u8, u8),
}

/// Why a text is no anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorError {
    /// It is written in none of the ways.
    Syntax,
    /// No year has that day, or not that year.
    NoSuchDay,
}

/// Windows that are counted from an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// What the wall shows where one of them begins, in seconds after midnight on 1 January 1970.
    pub start_s: i64,
    /// How far apart they are.
    pub spacing: Spacing,
}

/// How far apart two windows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Seconds that pass.
    Seconds(i64),
    /// Days on the wall.
    Days(i64),
    /// Months on the wall.
    Months(i64),
}

/// The anchor does not fit the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    day: Day,
    period: PeriodKind,
}

/// What anchors a period may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeriodKind {
    Milliseconds,
    Day,
    Week,
    /// So many that they divide the year.
    Months,
    Year,
    /// Any other.
    Other,
}

impl Anchor {
    /// Reads an anchor, in either case of letters.
    pub fn parse(text: &[u8]) -> Result<Anchor, AnchorError> {
        // A time has five or eight bytes.
        let mark = |from_end: usize| {
            text.len().checked_sub(from_end).filter(|at| text.get(*at) == Some(&b'@'))
        };
        let (day, time) = match mark(6).or_else(|| mark(9)) {
            Some(at) => {
                let (day, time) = text.split_at_checked(at).ok_or(AnchorError::Syntax)?;
                (day, time.strip_prefix(b"@"))
            }
            None if text.contains(&b':') => (&b""[..], Some(text)),
            None => (text, None),
        };
        let second = match time {
            Some(time) => parse_time(time).ok_or(AnchorError::Syntax)?,
            None => 0,
        };
        let day = match day {
            // `@09:00` is none.
            b"" if text.first() != Some(&b'@') && !text.is_empty() => Day::Each,
            day => parse_day(day)?,
        };
        Ok(Anchor { day, second })
    }

    /// Appends the text that [`Anchor::parse`] reads.
    pub fn write<const N: usize>(&self, out: &mut Text<N>) {
        match self.day {
            Day::Each => {}
            Day::OfWeek(day) => {
                let name = WEEKDAYS.get(usize::from(day));
                out.push(name.map_or(&b""[..], |name| name.as_bytes()));
            }
            Day::OfMonth(day) => out.push_number(day.into(), 1),
            Day::OfYear(month, day) => push_two(out, b"", month.into(), b"-", day.into()),
            Day::Date(year, month, day) => {
                out.push_number(year.into(), 4);
                push_two(out, b"-", month.into(), b"-", day.into());
            }
        }
        let is_time = self.day == Day::Each;
        if !is_time && self.second == 0 {
            return;
        }
        let (minute, second) = (self.second / 60, self.second % 60);
        let mark: &[u8] = if is_time { b"" } else { b"@" };
        push_two(out, mark, minute / 60, b":", minute % 60);
        if second != 0 {
            out.push(b":");
            out.push_number(second.into(), 2);
        }
    }

    /// The windows of `period` from this anchor on, and before it.
    pub fn series(&self, period: Period) -> Result<Series, Unfit> {
        let kind = PeriodKind::of(period);
        let (day, fits) = match self.day {
            Day::Each => (0, kind == PeriodKind::Day),
            Day::OfWeek(day) => {
                (day_number(1970, 1, day.saturating_add(FIRST_MONDAY)), kind == PeriodKind::Week)
            }
            Day::OfMonth(day) => (day_number(1970, 1, day), kind == PeriodKind::Months),
            Day::OfYear(month, day) => {
                let fits = matches!(kind, PeriodKind::Months | PeriodKind::Year);
                (day_number(LEAP_YEAR, month, day), fits)
            }
            Day::Date(year, month, day) => {
                (day_number(year, month, day), kind != PeriodKind::Milliseconds)
            }
        };
        if !fits {
            return Err(Unfit { day: self.day, period: kind });
        }
        let start_s = day.saturating_mul(DAY_S.into()).saturating_add(self.second.into());
        Ok(Series { start_s, spacing: Spacing::of(period, kind) })
    }
}

impl Series {
    /// The windows of `period`, one of which starts at `start_s`. `None` for a period in milliseconds, and a start that no
    /// anchor has.
    pub fn starting(period: Period, start_s: i64) -> Option<Series> {
        let kind = PeriodKind::of(period);
        let after_last_s =
            day_number(YEARS.end().saturating_add(1), 1, 1).saturating_mul(DAY_S.into());
        let sound = kind != PeriodKind::Milliseconds && (0..after_last_s).contains(&start_s);
        sound.then_some(Series { start_s, spacing: Spacing::of(period, kind) })
    }
}

/// `HH:MM` or `HH:MM:SS`, in seconds since midnight.
fn parse_time(text: &[u8]) -> Option<u32> {
    let (hour, minute, second) = match text {
        [h1, h2, b':', m1, m2] => (two_digits(*h1, *h2)?, two_digits(*m1, *m2)?, 0),
        [h1, h2, b':', m1, m2, b':', s1, s2] => {
            (two_digits(*h1, *h2)?, two_digits(*m1, *m2)?, two_digits(*s1, *s2)?)
        }
        _ => return None,
    };
    let in_range = hour < 24 && minute < 60 && second < 60;
    let minutes = u32::from(hour).saturating_mul(60).saturating_add(minute.into());
    in_range.then(|| minutes.saturating_mul(60).saturating_add(second.into()))
}

fn parse_day(text: &[u8]) -> Result<Day, AnchorError> {
    let day = match text {
        [_] | [_, _] => {
            let day = parse_u64(text).filter(|day| (1..=31).contains(day));
            Day::OfMonth(day.and_then(|day| u8::try_from(day).ok()).ok_or(AnchorError::Syntax)?)
        }
        [_, _, _] => {
            let is_named = |name: &&str| text.eq_ignore_ascii_case(name.as_bytes());
            let day = WEEKDAYS.iter().position(is_named).ok_or(AnchorError::Syntax)?;
            Day::OfWeek(u8::try_from(day).map_err(|_| AnchorError::Syntax)?)
        }
        [m1, m2, b'-', d1, d2] => {
            let (month, day) = day_of(LEAP_YEAR, [*m1, *m2], [*d1, *d2])?;
            Day::OfYear(month, day)
        }
        [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] => {
            let year = two_digits(*y1, *y2).zip(two_digits(*y3, *y4));
            let year = year.map(|(century, year)| {
                u16::from(century).saturating_mul(100).saturating_add(year.into())
            });
            let year = year.filter(|year| YEARS.contains(year)).ok_or(AnchorError::Syntax)?;
            let (month, day) = day_of(year, [*m1, *m2], [*d1, *d2])?;
            Day::Date(year, month, day)
        }
        _ => return Err(AnchorError::Syntax),
    };
    Ok(day)
}

/// A month and a day of it, if that year has it.
fn day_of(year: u16, month: [u8; 2], day: [u8; 2]) -> Result<(u8, u8), AnchorError> {
    let number = |[tens, ones]: [u8; 2]| two_digits(tens, ones).ok_or(AnchorError::Syntax);
    let (month, day) = (number(month)?, number(day)?);
    let last = match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        1..=12 => 31,
        _ => 0,
    };
    if (1..=last).contains(&day) {
        Ok((month, day))
    } else {
        Err(AnchorError::NoSuchDay)
    }
}

/// Days from 1 January 1970 to a day from then on (Hinnant, "chrono-compatible low-level date algorithms"). Years are
/// counted from March on, so that a leap day is the last of its year.
fn day_number(year: u16, month: u8, day: u8) -> i64 {
    let (year, month) = (i64::from(year), i64::from(month));
    let (year, month) = if month > 2 {
        (year, month.wrapping_sub(3))
    } else {
        (year.wrapping_sub(1), month.wrapping_add(9))
    };
    let leap_days = (year / 4).wrapping_sub(year / 100).wrapping_add(year / 400);
    let months = month.wrapping_mul(153).wrapping_add(2) / 5;
    // 1 March of the year 0 is 719468 days before 1 January 1970, and a month begins with day 1.
    let days = year.wrapping_mul(365).wrapping_add(leap_days).wrapping_add(months);
    days.wrapping_add(day.into()).wrapping_sub(719_469)
}

/// Appends two numbers of two digits behind their marks.
fn push_two<const N: usize>(out: &mut Text<N>, mark: &[u8], one: u32, between: &[u8], other: u32) {
    out.push(mark);
    out.push_number(one.into(), 2);
    out.push(between);
    out.push_number(other.into(), 2);
}

impl Spacing {
    fn of(period: Period, kind: PeriodKind) -> Spacing {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match (period.length(), period.unit()) {
            (Length::Months(months), _) => Spacing::Months(months.into()),
            (Length::Ms(ms), Unit::Day | Unit::Week) => Spacing::Days(signed(ms / DAY_MS)),
            // Seconds that are a day or a week.
            (Length::Ms(ms), _) if matches!(kind, PeriodKind::Day | PeriodKind::Week) => {
                Spacing::Days(signed(ms / DAY_MS))
            }
            (Length::Ms(ms), _) => Spacing::Seconds(signed(ms / 1_000)),
        }
    }
}

impl PeriodKind {
    fn of(period: Period) -> PeriodKind {
        let count = u32::try_from(period.count()).unwrap_or(u32::MAX);
        match (period.unit(), count) {
            (Unit::Millisecond, _) => PeriodKind::Milliseconds,
            (Unit::Second, DAY_S) | (Unit::Day, 1) => PeriodKind::Day,
            (Unit::Second, WEEK_S) | (Unit::Week, 1) => PeriodKind::Week,
            (Unit::Month, 1 | 2 | 3 | 4 | 6 | 12) => PeriodKind::Months,
            (Unit::Year, 1) => PeriodKind::Year,
            _ => PeriodKind::Other,
        }
    }
}

impl Unfit {
    /// The periods that the anchor fits.
    pub fn periods(&self) -> &'static str {
        match self.day {
            Day::Each => "1d",
            Day::OfWeek(_) => "1w",
            Day::OfMonth(_) => "1mo, or Nmo where N divides 12",
            Day::OfYear(..) => "1y, or Nmo where N divides 12",
            Day::Date(..) => "a period in s, min, h, d, w, mo or y",
        }
    }

    /// The anchors that fit the period.
    pub fn anchors(&self) -> &'static str {
        match self.period {
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
    use super::super::properties::cases;
    use super::*;
    use proptest::prelude::*;

    fn written(text: &str) -> Result<String, AnchorError> {
        let mut out = AnchorText::new();
        Anchor::parse(text.as_bytes())?.write(&mut out);
        Ok(String::from_utf8_lossy(out.as_bytes()).into_owned())
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
                assert!(!unfit.periods().is_empty() && unfit.anchors().ends_with("first"));
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
            assert_eq!((unfit.periods(), unfit.anchors()), (periods, anchors), "{anchor}");
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
                let mut out = AnchorText::new();
                anchor.write(&mut out);
                prop_assert_eq!(Anchor::parse(out.as_bytes()), Ok(anchor));
            }
        }
    }
}

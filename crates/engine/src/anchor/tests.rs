use super::*;
use crate::properties::cases;
use proptest::prelude::*;

fn written(text: &str) -> Result<String, AnchorError> {
    Ok(Anchor::parse(text.as_bytes())?.to_string())
}

#[test]
fn anchors_are_read_in_either_case_and_written_in_one_way() {
    for text in [
        "09:00", "00:00", "23:59:59", "sun", "thu", "fri", "sat", "1", "15", "31@09:00", "04-06",
        "02-29@23:00", "12-31", "2026-11-02", "2026-01-31@09:00", "2026-01-31@09:00:30",
        "1970-01-01", "2255-12-31", "2024-02-29", "2000-02-29",
    ] {
        assert_eq!(written(text), Ok(text.into()));
    }
    for (text, out) in [
        ("09:00:00", "09:00"),
        ("SUN", "sun"),
        ("Mon@09:00", "mon@09:00"),
        ("tue@00:00", "tue"),
        ("wEd@00:00:01", "wed@00:00:01"),
    ] {
        assert_eq!(written(text), Ok(out.into()), "{text}");
    }
}

#[test]
fn foreign_text_is_not_an_anchor() {
    use AnchorError::{NoSuchDay, Syntax};
    let refuses = |error, texts: &[&str]| {
        for text in texts {
            assert_eq!(written(text), Err(error), "{text:?}");
        }
    };
    refuses(
        Syntax,
        &[
            "", "@", "@09:00", "sun@", "sun@9:00", "sun@09:00@09:00", "sunday", "su", "so", "abc",
            "first", "9:00", "24:00", "09:60", "09:00:60", "09:00:0", "09.00", "0900", "09:00 ",
            "+9:00", "-9:00", "0", "00", "01", "015", "32", "-1", "+1", "1.", "100", "4-6", "04-6",
            "04/06", "ab-cd", "1969-12-31", "2256-01-01", "0000-01-01", "9999-01-01", "2026-1-1",
            "26-01-01", "2026-01-01T09:00", "2026-01-01 09:00", "2026-01-01@", "2026-01",
        ],
    );
    refuses(
        NoSuchDay,
        &[
            "00-01", "00-10", "01-00", "13-01", "02-30", "04-31", "06-31@09:00", "2026-02-29",
            "2100-02-29", "2200-02-29", "2100-02-29@09:00", "2026-02-30", "2026-13-01",
        ],
    );
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

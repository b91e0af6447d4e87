//! A rule that is read comes back as it is written, and holds together at any moment.
#![no_main]

use libfuzzer_sys::fuzz_target;
use engine::calendar::Zones;
use engine::rule::Rule;

/// The year 2200: periods of a century end before calendars do.
const LATE_US: u64 = 7_258_118_400_000_000;

fuzz_target!(|input: (u64, &[u8])| {
    let (us, text) = input;
    let mut zones = Zones::new();
    let Some(rule) = Rule::parse(text, &mut zones) else { return };
    let written = rule.write(&zones);
    let again = Rule::parse(written.as_bytes(), &mut zones).expect("what is written can be read");
    assert_eq!(again.write(&zones).as_bytes(), written.as_bytes());

    for now_us in [us, us % LATE_US] {
        let Some(moment) = rule.at(now_us, &mut zones) else {
            assert!(now_us > LATE_US, "no moment at {now_us}");
            continue;
        };
        if matches!(rule, Rule::Semaphore) {
            assert_eq!((moment.horizon_us(), moment.expiry_us(now_us)), (Some(u64::MAX), now_us));
            continue;
        }
        assert!(moment.horizon_us().is_none_or(|horizon_us| horizon_us < now_us));
        if now_us < LATE_US {
            let expiry_us = moment.expiry_us(now_us);
            assert!(expiry_us > now_us);
            assert!(moment.horizon_us_at(expiry_us).is_some_and(|horizon_us| horizon_us >= now_us));
            assert!(moment
                .horizon_us_at(expiry_us - 1)
                .is_none_or(|horizon_us| horizon_us < now_us));
        }
    }
});

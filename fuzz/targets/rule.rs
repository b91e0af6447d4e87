//! A rule that parses is written the same way, and its times are consistent at any moment.
#![no_main]

use engine::calendar::Zones;
use engine::entry::Entry;
use engine::rule::{Rule, RuleNow};
use libfuzzer_sys::fuzz_target;

/// 1 January 2200, so that a period of a century ends before the calendar does.
const LATE_US: u64 = 7_258_118_400_000_000;

/// Checks `set_newest`. If the first event opens the window, the newest entry counts until one period after its first event,
/// and the whole window ends then.
fn follows(rule: &Rule, rule_now: &mut RuleNow, span_us: u64) {
    let now_us = rule_now.now_us();
    let newest = Entry { newest_us: now_us, span_us, total: 1, weight: 1, denied: false };
    let (ends_us, next_us) = (rule_now.expires_us(newest.first_us()), rule_now.expires_us(now_us));
    let counts = rule_now.set_newest(&newest, now_us);
    if !matches!(rule, Rule::FromFirst(_)) {
        return assert!(counts);
    }
    assert_eq!(counts, ends_us > now_us);
    assert_eq!(counts, rule_now.joins_newest(now_us, false));
    let ends_us = if counts { ends_us } else { next_us };
    assert_eq!(rule_now.expires_us(now_us), ends_us);
    assert_eq!(rule_now.horizon_us_at(ends_us - 1), None);
    assert_eq!(rule_now.horizon_us_at(ends_us), Some(u64::MAX));
    assert!(rule_now.horizon_us().is_none_or(|horizon_us| horizon_us < now_us));
}

fuzz_target!(|input: (u64, &[u8])| {
    let (us, text) = input;
    let mut zones = Zones::new();
    let Some(rule) = Rule::parse(text, &mut zones) else { return };
    let written = rule.write(&zones);
    let again = Rule::parse(written.as_bytes(), &mut zones).expect("what is written can be read");
    assert_eq!(again.write(&zones).as_bytes(), written.as_bytes());

    for now_us in [us, us % LATE_US] {
        let Some(mut rule_now) = rule.at(now_us, &mut zones) else {
            assert!(now_us > LATE_US, "no moment at {now_us}");
            continue;
        };
        if matches!(rule, Rule::Semaphore) {
            assert_eq!(
                (rule_now.horizon_us(), rule_now.expires_us(now_us)),
                (Some(u64::MAX), now_us)
            );
            continue;
        }
        assert!(rule_now.horizon_us().is_none_or(|horizon_us| horizon_us < now_us));
        if now_us < LATE_US {
            let expires_us = rule_now.expires_us(now_us);
            assert!(expires_us > now_us);
            assert!(rule_now
                .horizon_us_at(expires_us)
                .is_some_and(|horizon_us| horizon_us >= now_us));
            assert!(rule_now
                .horizon_us_at(expires_us - 1)
                .is_none_or(|horizon_us| horizon_us < now_us));
            follows(&rule, &mut rule_now, us % (now_us + 1));
        }
    }
});

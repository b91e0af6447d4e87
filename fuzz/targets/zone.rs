//! A zone is the same by each of its names, and its windows follow each other without a gap. With the rules of any file, a
//! window contains the moment that it was asked for.
#![no_main]

use engine::calendar::{Calendar, ZoneRules, Zones};
use engine::period::Period;
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static FILE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const PERIODS: [&str; 14] = [
    "1s", "30s", "1min", "12min", "30min", "1h", "2h", "6h", "12h", "1d", "1w", "1mo", "6mo", "1y",
];
/// 1 January 1971 and 2200.
const TIMES_US: std::ops::Range<u64> = 31_536_000_000_000..7_258_118_400_000_000;

fuzz_target!(|input: (u64, u8, &[u8], &[u8])| {
    let (us, period, name, file) = input;
    let now_us = TIMES_US.start + us % (TIMES_US.end - TIMES_US.start);
    let period = PERIODS[usize::from(period) % PERIODS.len()];
    let period = Period::parse(period.as_bytes()).expect("a period");
    FILE.replace(file.to_vec());
    let mut zones =
        Zones::with_source(|name| FILE.with_borrow(|file| ZoneRules::parse(name, file)));
    let zone = zones.zone_by_name(b"Europe/Berlin").expect("a zone");
    let calendar = Calendar::new(period, zone).expect("a division");
    if let Some(window) = zones.window_at(&calendar, now_us) {
        assert!(window.start_us <= now_us && now_us < window.end_us, "{window:?} at {now_us}");
    }

    let mut zones = Zones::new();
    let Some(zone) = zones.zone_by_name(name) else { return };
    assert_eq!(zones.zone_by_name(&name.to_ascii_uppercase()), Some(zone), "in any case");
    let written = zones.name(zone);
    let again = zones.zone_by_name(written.as_bytes()).expect("by its name");
    assert_eq!(zones.name(again).as_bytes(), written.as_bytes());

    let calendar = Calendar::new(period, zone).expect("a division");
    let mut window_at = |us| zones.window_at(&calendar, us).expect("a window");
    let window = window_at(now_us);
    assert!(window.start_us <= now_us && now_us < window.end_us, "{window:?} at {now_us}");
    for inside in [window.start_us, window.end_us - 1] {
        assert_eq!(window_at(inside), window, "at {inside}");
    }
    assert_eq!(window_at(window.end_us).start_us, window.end_us, "the next");
    assert_eq!(window_at(window.start_us - 1).end_us, window.start_us, "the one before");
});

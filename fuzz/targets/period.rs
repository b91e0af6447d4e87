//! A period that parses is written the same way, and `horizon_us` is the inverse of `expires_us`.
#![no_main]

use engine::period::{Length, Period, MAX_PERIOD_MS};
use engine::text::ShortText;
use libfuzzer_sys::fuzz_target;

/// The year 9999, where calendars end.
const END_US: u64 = 253_402_207_200_000_000;

fuzz_target!(|input: (u64, &[u8])| {
    let (us, text) = input;
    let Ok(period) = Period::parse(text) else { return };
    let mut written = ShortText::<40>::new();
    period.write(&mut written);
    assert_eq!(Period::parse(written.as_bytes()), Ok(period));
    let length = period.length();
    match length {
        Length::Ms(ms) => assert!((1..=MAX_PERIOD_MS).contains(&ms)),
        Length::Months(months) => assert!((1..=1200).contains(&months)),
    }
    assert!(length.expires_us(us) > us || us == u64::MAX || length.expires_us(us) == u64::MAX);
    let _ = length.horizon_us(us);
    let now_us = us % (END_US - 110 * 31_557_600_000_000);
    if let Some(horizon_us) = length.horizon_us(now_us) {
        assert!(length.expires_us(horizon_us) <= now_us);
        assert!(length.expires_us(horizon_us + 1) > now_us);
    } else {
        assert!(length.expires_us(0) > now_us);
    }
});

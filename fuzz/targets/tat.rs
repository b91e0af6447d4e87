//! A stored time that is read is written with the same meaning, and in one way only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_ratelimit_fuzz::limit::throttle::Tat;

fuzz_target!(|bytes: &[u8]| {
    let Some(tat) = Tat::decode(bytes) else { return };
    let written = tat.encode();
    assert_eq!(Tat::decode(written.as_bytes()), Some(tat));
    // What is left out are zeros at the end of the fraction, and a point before nothing.
    let text = std::str::from_utf8(bytes).expect("digits and a point");
    let text = if text.contains('.') { text.trim_end_matches('0') } else { text };
    assert_eq!(written.as_bytes(), text.trim_end_matches('.').as_bytes());
    assert!(tat.full_at_ms() <= 10_000_000_000_000);
});

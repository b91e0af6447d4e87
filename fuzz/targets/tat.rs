//! A stored state that can be read is written with the same meaning, in its shortest form.
#![no_main]

use engine::throttle::Stored;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(stored) = Stored::decode(bytes) else { return };
    let written = stored.encode();
    assert_eq!(Stored::decode(written.as_bytes()), Some(stored));
    // Zeros at the end of the fraction are left out, and so is a point without a fraction.
    let text = std::str::from_utf8(bytes).expect("digits and signs");
    let (tat, rest) = text.split_at(text.find(['+', '!']).unwrap_or(text.len()));
    let tat = if tat.contains('.') { tat.trim_end_matches('0') } else { tat };
    let shortest = format!("{}{rest}", tat.trim_end_matches('.'));
    assert_eq!(written.as_bytes(), shortest.as_bytes());
    assert!(stored.void_at_ms() <= 10_000_000_000_000);
});

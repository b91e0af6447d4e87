//! Numbers parse as in the standard library, except that the sign +, leading zeros and -0 are errors.
#![no_main]

use engine::decimal::{leading_u64, parse_digits, parse_i64, parse_u64};
use engine::text::Text;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = std::str::from_utf8(bytes).unwrap_or("no number");
    assert_eq!(parse_i64(bytes), text.parse().ok().filter(|n: &i64| n.to_string() == text));
    assert_eq!(parse_u64(bytes), text.parse().ok().filter(|n: &u64| n.to_string() == text));
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    assert_eq!(parse_digits(bytes), text.parse().ok().filter(|_| digits));
    if let Some((value, rest)) = leading_u64(bytes) {
        assert!(bytes.ends_with(rest) && !rest.first().is_some_and(u8::is_ascii_digit));
        assert_eq!(parse_u64(&bytes[..bytes.len() - rest.len()]), Some(value));
    }
    if let Some(value) = parse_digits(bytes) {
        let mut padded = Text::<32>::new();
        padded.push_number(value, bytes.len().min(20));
        assert!(bytes.ends_with(padded.as_bytes()));
        assert_eq!(parse_digits(padded.as_bytes()), Some(value));
    }
});

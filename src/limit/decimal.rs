//! Decimal integers as Redis parses them: an optional `-`, then digits without a leading zero.

pub use crate::text::Text;

/// The integer that `text` spells, or `None` where Redis itself would refuse it: a sign `+`, blanks,
/// leading zeros, `-0`, an exponent, or a value outside the 64 bits.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text.split_first() {
        Some((b'-', digits)) => match parse_u64(digits)? {
            0 => None,
            magnitude => 0i64.checked_sub_unsigned(magnitude),
        },
        _ => i64::try_from(parse_u64(text)?).ok(),
    }
}

/// As [`parse_i64`], for integers without a sign, up to 2^64 - 1.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if text.len() > 1 && text.first() == Some(&b'0') {
        return None;
    }
    parse_digits(text)
}

/// The value of a run of digits; leading zeros are welcome. `None` for no digits, anything else than
/// digits, or more than 64 bits.
pub fn parse_digits(text: &[u8]) -> Option<u64> {
    match number_before(text, None)? {
        (value, []) => Some(value),
        _ => None,
    }
}

/// The number that `text` begins with, and what follows the `mark` after it; without a mark the number is all of
/// `text`. `None` where it does not begin so, or passes 64 bits.
pub fn number_before(text: &[u8], mark: Option<u8>) -> Option<(u64, &[u8])> {
    /// So many digits cannot pass 64 bits.
    const SAFE: usize = 19;
    let mut value: u64 = 0;
    let mut at: usize = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        if at < SAFE {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        } else {
            value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        }
        at = at.wrapping_add(1);
    }
    let rest = text.get(at..)?;
    match (at, mark) {
        (0, _) => None,
        (_, None) => rest.is_empty().then_some((value, rest)),
        (_, Some(mark)) => Some((value, rest.strip_prefix(&[mark])?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngSeed};

    #[test]
    fn takes_what_redis_takes() {
        for (text, value) in [
            ("0", 0),
            ("7", 7),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), Some(value), "{text}");
        }
    }

    #[test]
    fn refuses_what_redis_refuses() {
        for text in [
            "",
            "-",
            "+15",
            " 15",
            "15 ",
            "015",
            "00",
            "-0",
            "-01",
            "1e3",
            "1.0",
            "0x10",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999999",
            "1\0",
            "١",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(Config {
            cases: 2000,
            rng_seed: RngSeed::Fixed(1),
            failure_persistence: None,
            ..Config::default()
        })]

        #[test]
        fn every_number_is_read_as_it_was_written(value: u64, bits in 0..64u32, width in 0..30usize) {
            let value = value >> bits;
            let mut out = Text::<32>::new();
            out.push_number(value, width);
            let padded = format!("{value:0w$}", w = width.min(20));
            prop_assert_eq!(out.as_bytes(), padded.as_bytes());
            prop_assert_eq!(parse_digits(out.as_bytes()), Some(value));
            let plain = value.to_string();
            prop_assert_eq!(parse_u64(plain.as_bytes()), Some(value));
            let signed = value as i64;
            prop_assert_eq!(parse_i64(signed.to_string().as_bytes()), Some(signed));
        }

        /// The standard library's parser, less the sign +, the leading zeros and -0.
        #[test]
        fn any_text_is_a_number_or_none(text in prop_oneof![
            "[-+ 0-9]{0,21}",
            "-?(0|[1-9][0-9]{0,20})",
            any::<String>(),
        ]) {
            let canonical = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
            prop_assert_eq!(parse_i64(text.as_bytes()), canonical);
            let canonical = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
            prop_assert_eq!(parse_u64(text.as_bytes()), canonical);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let (_, _, _) = (parse_i64(&bytes), parse_u64(&bytes), parse_digits(&bytes));
        }
    }
}

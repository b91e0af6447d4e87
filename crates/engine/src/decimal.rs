//! Decimal integers as Redis parses them: an optional `-`, then digits without a leading zero.

use crate::text::ShortText;

/// Parses an integer as Redis does. `None` for a sign `+`, spaces, leading zeros, `-0`, an exponent, or a value that does
/// not fit in 64 bits.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text.split_first() {
        Some((b'-', digits)) => match parse_u64(digits)? {
            0 => None,
            magnitude => 0i64.checked_sub_unsigned(magnitude),
        },
        _ => i64::try_from(parse_u64(text)?).ok(),
    }
}

/// Like [`parse_i64`], for integers without a sign, up to 2^64 - 1.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match text {
        [b'0', _, ..] => None,
        text => parse_digits(text),
    }
}

/// Parses what [`ShortText::push_base36`] appends. `None` for any other text.
pub(crate) fn parse_base36(text: &[u8]) -> Option<u64> {
    let value = u64::from_str_radix(std::str::from_utf8(text).ok()?, 36).ok()?;
    let mut written = ShortText::<16>::new();
    written.push_base36(value);
    (written.as_bytes() == text).then_some(value)
}

/// Returns the character of `A-Z a-z 0-9 - _` (base64url) for the last six bits of `byte`.
pub(crate) fn base64_char(byte: u8) -> u8 {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    ALPHABET.get(usize::from(byte & 63)).copied().unwrap_or(b'A')
}

/// Like [`parse_u64`], for the number at the start of `text`. Returns the number and the rest of the text.
pub fn parse_leading_u64(text: &[u8]) -> Option<(u64, &[u8])> {
    if let [b'0', b'0'..=b'9', ..] = text {
        return None;
    }
    let (mut value, mut rest) = (0u64, text);
    while let [byte @ b'0'..=b'9', after @ ..] = rest {
        value = value.checked_mul(10)?.checked_add(u64::from(byte & 15))?;
        rest = after;
    }
    (rest.len() < text.len()).then_some((value, rest))
}

pub(crate) fn parse_two_digits(tens: u8, ones: u8) -> Option<i8> {
    i8::try_from(parse_fixed_digits(&[tens, ones])?).ok()
}

/// Like `str::split_once`, for bytes.
pub fn split_once(text: &[u8], mark: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == mark)?;
    Some((text.get(..at)?, text.get(at.checked_add(1)?..)?))
}

/// Returns the text before the first `mark`, and the text after it if there is one.
pub(crate) fn split_at_mark(text: &[u8], mark: u8) -> (&[u8], Option<&[u8]>) {
    split_once(text, mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Parses digits, which may have leading zeros. `None` if there are none, if there is anything else, or if the value exceeds
/// 64 bits.
pub fn parse_digits(text: &[u8]) -> Option<u64> {
    let mut bytes = text.iter();
    match text.len() {
        0 => None,
        // No number of this few digits exceeds 64 bits.
        1..=19 => bytes
            .try_fold(0u64, |value, byte| Some(value.wrapping_mul(10).wrapping_add(digit(*byte)?))),
        _ => bytes.try_fold(0u64, |value, byte| value.checked_mul(10)?.checked_add(digit(*byte)?)),
    }
}

/// Like [`parse_digits`], for exactly `N` digits, at most 19.
// All bytes are checked before the first is used, which the compiler turns into code without a loop.
pub(crate) fn parse_fixed_digits<const N: usize>(digits: &[u8; N]) -> Option<u64> {
    const { assert!(N <= 19, "the value fits") };
    let all_digits = digits.iter().fold(true, |all, byte| all & byte.is_ascii_digit());
    let value = digits
        .iter()
        .fold(0u64, |value, byte| value.wrapping_mul(10).wrapping_add(u64::from(byte & 15)));
    all_digits.then_some(value)
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte & 15))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::cases;
    use proptest::prelude::*;

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
            "", "-", "+15", " 15", "15 ", "015", "00", "-0", "-01", "1e3", "1.0", "0x10", "--1",
            "9223372036854775808", "-9223372036854775809", "99999999999999999999999", "1\0", "١",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn two_digits_are_a_number_and_nothing_else_is() {
        for (text, number) in [
            (b"00", Some(0)),
            (b"42", Some(42)),
            (b"99", Some(99)),
            (b":0", None),
            (b"0:", None),
            (b"/0", None),
        ] {
            assert_eq!(parse_two_digits(text[0], text[1]), number);
        }
        for (text, number) in
            [("0", Some(0)), ("9", Some(9)), ("a", Some(10)), ("z", Some(35)), ("10", Some(36))]
        {
            let mut out = ShortText::<32>::new();
            out.push_base36(number.unwrap());
            assert_eq!((parse_base36(text.as_bytes()), out.as_bytes()), (number, text.as_bytes()));
        }
        assert!(["", "00", "01", "A", "{", "/", "3w5e11264sgsg"]
            .iter()
            .all(|text| parse_base36(text.as_bytes()).is_none()));
    }

    proptest! {
        #![proptest_config(cases(2_000))]

        #[test]
        fn every_number_is_read_as_it_was_written(value: u64, bits in 0..64u32, width in 0..30usize) {
            let value = value >> bits;
            let mut out = ShortText::<32>::new();
            out.push_number(value, width);
            let padded = format!("{value:0width$}");
            prop_assert_eq!(out.as_bytes(), padded.as_bytes());
            prop_assert_eq!(parse_digits(out.as_bytes()), Some(value));
            let plain = value.to_string();
            prop_assert_eq!(parse_u64(plain.as_bytes()), Some(value));
            let mut base36 = ShortText::<32>::new();
            base36.push_base36(value);
            prop_assert_eq!(parse_base36(base36.as_bytes()), Some(value));
            let signed = value as i64;
            prop_assert_eq!(parse_i64(signed.to_string().as_bytes()), Some(signed));
        }

        /// The standard library's parser, less the sign +, the leading zeros and -0.
        #[test]
        fn any_text_is_a_number_or_none(text in prop_oneof![
            "[-+ 0-9]{0,21}",
            "-?(0|[1-9][0-9]{0,20})",
            // The neighbours of the digits.
            "[1-9][0-9]{0,18}[/-:][0-9]{0,9}",
            any::<String>(),
        ]) {
            let canonical = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
            prop_assert_eq!(parse_i64(text.as_bytes()), canonical);
            let canonical = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
            prop_assert_eq!(parse_u64(text.as_bytes()), canonical);
        }

        #[test]
        fn one_byte_among_digits_that_is_none_is_seen(text in "[0-9]{1,19}", at: usize, byte: u8) {
            let at = at % text.len();
            let mut bytes = text.into_bytes();
            bytes[at] = byte;
            prop_assert_eq!(parse_digits(&bytes).is_some(), byte.is_ascii_digit());
            let digits = if byte.is_ascii_digit() { bytes.len() } else { at };
            let leading = parse_u64(&bytes[..digits]).map(|value| (value, &bytes[digits..]));
            prop_assert_eq!(parse_leading_u64(&bytes), leading);
        }
    }
}

//! Short text on the stack. It knows nothing else of the crate, so that every layer may use it.

/// Text of bounded length on the stack, for values and members that are written on every call.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    /// Short, as ids are copied on every call.
    len: u16,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text::new()
    }
}

impl<const N: usize> Text<N> {
    /// No text yet.
    pub const fn new() -> Self {
        const { assert!(N <= u16::MAX as usize, "the length fits") };
        Text { bytes: [0; N], len: 0 }
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Appends `part`, or nothing of it if it does not fit: `N` is chosen for the longest text there is.
    pub fn push(&mut self, part: &[u8]) {
        let start = usize::from(self.len);
        let end = start.saturating_add(part.len());
        if let Some(room) = self.bytes.get_mut(start..end) {
            room.copy_from_slice(part);
            // It fits: see `new`.
            self.len = end as u16;
        }
    }

    /// Turns ASCII letters into lower case.
    pub fn make_lowercase(&mut self) {
        self.bytes.make_ascii_lowercase();
    }

    /// Appends `value` in decimal, padded with zeros to at least `width` digits.
    pub fn push_number(&mut self, value: u64, width: usize) {
        // Most quantities.
        if value < 10 && width <= 1 {
            return self.push(&[value as u8 | b'0']);
        }
        self.push(Decimal::of(value).padded(width));
    }

    /// Appends `value` in base 36, as [`super::decimal::parse_base36`] reads it.
    pub fn push_base36(&mut self, value: u64) {
        if value >= 36 {
            self.push_base36(value / 36);
        }
        let digit = (value % 36) as u8;
        self.push(&[digit.wrapping_add(if digit < 10 { b'0' } else { b'a' - 10 })]);
    }

    /// Appends the last `WIDTH` digits of `value`, which has no more, padded with zeros.
    #[inline]
    pub fn push_digits<const WIDTH: usize>(&mut self, value: u64) {
        let above = value / EIGHT;
        let digits = [above / EIGHT, above % EIGHT, value % EIGHT].map(spell_eight);
        // A length that the compiler knows costs no call.
        if let Some(digits) = digits.as_flattened().last_chunk::<WIDTH>() {
            self.push(digits);
        }
    }
}

/// A number in decimal, on the stack.
#[derive(Clone, Copy)]
pub struct Decimal {
    /// Three times eight digits, with zeros before the first.
    digits: [[u8; 8]; 3],
    /// The place of its first digit, or of its sign.
    first: usize,
}

impl Decimal {
    /// The digits of a number.
    #[inline]
    pub fn of(value: u64) -> Decimal {
        let (above, low) = (value / EIGHT, spell_eight(value % EIGHT));
        if above == 0 {
            // Of 0 the last digit is left.
            let first = leading_zeros(low).saturating_add(16).min(LAST_DIGIT);
            return Decimal { digits: [NO_DIGITS, NO_DIGITS, low], first };
        }
        let (top, middle) = (above / EIGHT, spell_eight(above % EIGHT));
        // Most numbers are no longer: times in microseconds.
        if top == 0 {
            let first = leading_zeros(middle).saturating_add(8);
            return Decimal { digits: [NO_DIGITS, middle, low], first };
        }
        let high = spell_eight(top);
        Decimal { digits: [high, middle, low], first: leading_zeros(high) }
    }

    /// The digits of a number below 0, behind its sign.
    #[inline]
    pub fn of_negative(magnitude: u64) -> Decimal {
        let mut number = Decimal::of(magnitude);
        // The longest number leaves four places before it.
        number.first = number.first.saturating_sub(1);
        if let Some(place) = number.digits.as_flattened_mut().get_mut(number.first) {
            *place = b'-';
        }
        number
    }

    /// Its digits, behind its sign if it has one.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.digits.as_flattened().get(self.first..).unwrap_or_default()
    }

    /// Its digits, padded with zeros to at least `width`.
    fn padded(&self, width: usize) -> &[u8] {
        let digits = self.digits.as_flattened();
        let wanted = digits.len().saturating_sub(width.clamp(1, MAX_DIGITS));
        digits.get(self.first.min(wanted)..).unwrap_or_default()
    }
}

const EIGHT: u64 = 100_000_000;

/// In the place of eight digits, where a number has fewer.
const NO_DIGITS: [u8; 8] = [b'0'; 8];

/// Where the last of three times eight digits stands.
const LAST_DIGIT: usize = 23;

/// So many digits has the largest number.
const MAX_DIGITS: usize = 20;

/// The eight digits of a number below 10^8, each in a byte as ASCII, all at once: the number is parted into fours, those into
/// pairs, those into digits. A division by a power of ten is a product and a shift, exact for numbers this small.
fn spell_eight(value: u64) -> [u8; 8] {
    // All products stay below 2^64, and no part reaches the one above it.
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = (fours.wrapping_mul(10_486) >> 20) & 0x7f_0000_007f;
    let pairs = hundreds | fours.wrapping_sub(hundreds.wrapping_mul(100)) << 16;
    let tens = (pairs.wrapping_mul(103) >> 10) & 0x000f_000f_000f_000f;
    (ZEROS | tens | pairs.wrapping_sub(tens.wrapping_mul(10)) << 8).to_le_bytes()
}

/// Eight times the digit `0`.
pub(super) const ZEROS: u64 = u64::from_le_bytes(NO_DIGITS);

/// How many of eight digits are zeros before the first other.
#[inline]
fn leading_zeros(digits: [u8; 8]) -> usize {
    (u64::from_le_bytes(digits) ^ ZEROS).trailing_zeros() as usize / 8
}

impl<const N: usize> std::fmt::Debug for Text<N> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl<const N: usize> AsRef<[u8]> for Text<N> {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<const N: usize> From<&[u8]> for Text<N> {
    fn from(bytes: &[u8]) -> Self {
        let mut text = Text::new();
        text.push(bytes);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_padded_to_the_width_and_never_cut() {
        for (value, width, text) in [
            (0, 0, "0"),
            (0, 3, "000"),
            (42, 1, "42"),
            (42, 4, "0042"),
            (99, 1, "99"),
            (100, 1, "100"),
            (100, 2, "100"),
            (1_000_000_007, 1, "1000000007"),
            (9, 25, "00000000000000000009"),
            (99_999_999, 1, "99999999"),
            (100_000_000, 1, "100000000"),
            (1_795_223_819_544_558, 1, "1795223819544558"),
            (9_999_999_999_999_999, 1, "9999999999999999"),
            (10_000_000_000_000_000, 19, "0010000000000000000"),
            (u64::MAX, 1, "18446744073709551615"),
        ] {
            let mut out = Text::<32>::new();
            out.push_number(value, width);
            assert_eq!(out.as_bytes(), text.as_bytes());
            assert_eq!(Decimal::of(value).as_bytes(), value.to_string().as_bytes());
            assert_eq!(Decimal::of_negative(value).as_bytes(), format!("-{value}").as_bytes());
            let mut out = Text::<32>::from(&b"-"[..]);
            out.push_digits::<20>(value);
            assert_eq!(out.as_bytes(), format!("-{value:020}").as_bytes());
        }
    }

    #[test]
    fn every_four_digits_are_spelled() {
        for four in 0..10_000 {
            for value in [four, four * 10_000 + 9_999 - four] {
                let digits = spell_eight(value).map(char::from);
                assert_eq!(String::from_iter(digits), format!("{value:08}"));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped() {
        let mut out = Text::<4>::new();
        out.push(b"abc");
        out.push_number(42, 1);
        assert_eq!(out.as_bytes(), b"abc");
        out.push(b"x");
        assert_eq!(out.as_bytes(), b"abcx");
    }
}

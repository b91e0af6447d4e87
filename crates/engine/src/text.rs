//! Short text on the stack. This module uses nothing else of the crate, so that every layer may use it.

/// At most `N` bytes of text on the stack, for values and members that are written on every call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortText<const N: usize> {
    /// 0 from `len` on, so that equal texts have equal bytes.
    bytes: [u8; N],
    /// Two bytes, because ids are copied on every call.
    len: u16,
}

impl<const N: usize> Default for ShortText<N> {
    fn default() -> Self {
        ShortText::new()
    }
}

impl<const N: usize> ShortText<N> {
    pub const fn new() -> Self {
        const { assert!(N <= u16::MAX as usize, "the length fits") };
        ShortText { bytes: [0; N], len: 0 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Appends `part`, or nothing if it does not fit. Callers choose `N` for their longest text.
    pub fn push(&mut self, part: &[u8]) {
        let start = usize::from(self.len);
        let end = start.saturating_add(part.len());
        if let Some(room) = self.bytes.get_mut(start..end) {
            room.copy_from_slice(part);
            // `new` asserts that `N` fits.
            self.len = end as u16;
        }
    }

    pub(crate) fn make_lowercase(&mut self) {
        self.bytes.make_ascii_lowercase();
    }

    /// Appends `value` in decimal, padded with zeros to at least `width` digits.
    pub fn push_number(&mut self, value: u64, width: usize) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(value).as_bytes();
        for _ in digits.len()..width {
            self.push(b"0");
        }
        self.push(digits);
    }

    /// Appends `value` in base 36, with the digits `0` to `9` and `a` to `z`.
    pub(crate) fn push_base36(&mut self, value: u64) {
        if value >= 36 {
            self.push_base36(value / 36);
        }
        let digit = (value % 36) as u8;
        self.push(&[digit.wrapping_add(if digit < 10 { b'0' } else { b'a' - 10 })]);
    }
}

impl<const N: usize> std::fmt::Debug for ShortText<N> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl<const N: usize> AsRef<[u8]> for ShortText<N> {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<const N: usize> From<&[u8]> for ShortText<N> {
    fn from(bytes: &[u8]) -> Self {
        let mut text = ShortText::new();
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
            (9, 20, "00000000000000000009"),
            (99_999_999, 1, "99999999"),
            (100_000_000, 1, "100000000"),
            (1_795_223_819_544_558, 1, "1795223819544558"),
            (9_999_999_999_999_999, 1, "9999999999999999"),
            (10_000_000_000_000_000, 19, "0010000000000000000"),
            (u64::MAX, 1, "18446744073709551615"),
        ] {
            let mut out = ShortText::<32>::new();
            out.push_number(value, width);
            assert_eq!(out.as_bytes(), text.as_bytes());
        }
    }

    #[test]
    fn a_part_that_does_not_fit_is_dropped() {
        let mut out = ShortText::<4>::new();
        out.push(b"abc");
        out.push_number(42, 1);
        assert_eq!(out.as_bytes(), b"abc");
        out.push(b"x");
        assert_eq!(out.as_bytes(), b"abcx");
    }
}

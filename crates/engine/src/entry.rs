//! The entries of events in a key's sorted set, the newest first. Each stands for one event, or for several that share it.
//!
//! The score is minus the time of the entry's newest event, in Unix microseconds. So a new event goes to the head of
//! the set, where inserting is cheapest. The member is the running total of everything that was ever counted in
//! the key up to and including this entry, so that the sum over any stretch of entries is one subtraction:
//!
//! ```text
//! score              member      entry
//! -1795223804000000  71d         one denied call that was counted (COUNTDENIED)
//! -1795223803500000  70x50~9000  fifty in the 9000 us that end at that time
//! -1795223801000000  20x3        three at once
//! -1795223799544558  17          one event; 17 counted so far
//! ```
//!
//! A small sorted set stores plain digits in the fewest bytes. The total is modulo 2^64. The entries of one key, including
//! dead ones, always add up to less than that (see `Entry::max_sum`), so differences are exact.

use crate::decimal::parse_leading_u64;
use crate::refusal::Refusal;
use crate::text::ShortText;

/// The longest member: 20 digits of the total, 19 of the weight, 16 of the span, and three marks.
pub type EntryMember = ShortText<58>;

/// The last microsecond that a double, and so a score, holds exactly: in the year 2255.
pub const LAST_US: u64 = (1 << 53) - 1;

/// Refuses a time that a score cannot hold exactly.
///
/// # Errors
///
/// [`Refusal::Clock`] after [`LAST_US`].
#[inline]
pub fn check_clock(now_us: u64) -> Result<(), Refusal> {
    if now_us > LAST_US {
        return Err(Refusal::Clock);
    }
    Ok(())
}

/// The largest sum that is counted in one key.
pub const MAX_SUM: u64 = i64::MAX.unsigned_abs();

/// One event that was counted, or several that share an entry. Their quantities add up to `weight`, and they happened within
/// `span_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time of its newest event in Unix microseconds, at most [`LAST_US`].
    pub newest_us: u64,
    /// The time between its first and its newest event, in microseconds.
    pub span_us: u64,
    /// The sum of all events up to and including this entry, modulo 2^64.
    pub total: u64,
    /// The sum of its events, at least 1.
    pub weight: u64,
    /// All its events are denied calls.
    pub denied: bool,
}

impl Entry {
    pub fn total_before(&self) -> u64 {
        self.total.wrapping_sub(self.weight)
    }

    pub fn first_us(&self) -> u64 {
        self.newest_us.saturating_sub(self.span_us)
    }

    /// Returns the sum of the entries from `first` to this one.
    pub fn sum_since(&self, first: &Entry) -> u64 {
        self.total.wrapping_sub(first.total_before())
    }

    /// Returns an upper bound, below 2^64, of the sum of this entry and all before it.
    ///
    /// A call that begins or ends with a total above [`MAX_SUM`] drops the oldest dead entries until the others add up to
    /// `MAX_SUM` at most. Any other call adds the same quantity to the sum and to the total. So after the total has wrapped,
    /// the sum exceeds it by at most `MAX_SUM`.
    pub(crate) fn max_sum(&self) -> u64 {
        let since_0 = if self.total <= MAX_SUM { self.total } else { 0 };
        MAX_SUM.saturating_add(since_0)
    }

    pub fn score(&self) -> f64 {
        score(self.newest_us)
    }

    /// Reads an entry. `None` for one that the module did not write.
    pub fn decode(score: f64, member: &[u8]) -> Option<Entry> {
        let newest_us = whole_us(score)?;
        let (total, marks) = parse_leading_u64(member)?;
        let (mut weight, mut span_us, mut denied) = (1, 0, false);
        // Most entries are one admitted event.
        if !marks.is_empty() {
            (weight, span_us, denied) = decode_marks(marks)?;
        }
        if span_us > newest_us {
            return None;
        }
        Some(Entry { newest_us, span_us, total, weight, denied })
    }

    /// Returns the member that [`Entry::decode`] reads.
    pub fn member(&self) -> EntryMember {
        let mut text = EntryMember::new();
        text.push_number(self.total, 1);
        if self.weight != 1 {
            text.push(b"x");
            text.push_number(self.weight, 1);
        }
        if self.span_us != 0 {
            text.push(b"~");
            text.push_number(self.span_us, 1);
        }
        if self.denied {
            text.push(b"d");
        }
        text
    }
}

/// Parses the part of a member after the total: the weight, the span, and whether all are denied calls. An entry is removed
/// by its member, so there must be only one way to write it.
fn decode_marks(mut marks: &[u8]) -> Option<(u64, u64, bool)> {
    let (mut weight, mut span_us) = (1, 0);
    if let Some(text) = marks.strip_prefix(b"x") {
        (weight, marks) = parse_leading_u64(text)?;
        if !(2..=MAX_SUM).contains(&weight) {
            return None;
        }
    }
    if let Some(text) = marks.strip_prefix(b"~") {
        (span_us, marks) = parse_leading_u64(text)?;
        if span_us == 0 {
            return None;
        }
    }
    match marks {
        [] => Some((weight, span_us, false)),
        b"d" => Some((weight, span_us, true)),
        _ => None,
    }
}

/// Returns the score of an entry whose newest event happened at `us` Unix microseconds.
pub fn score(us: u64) -> f64 {
    -(us.min(LAST_US) as f64)
}

/// Returns the time of an entry with this score. `None` if no entry has such a score.
fn whole_us(score: f64) -> Option<u64> {
    // The comparison is false for NaN. Casting there and back is cheaper than `fract`, which is a function call.
    let in_range = (-(LAST_US as f64)..=0.0).contains(&score);
    let us = (-score) as i64;
    (in_range && us as f64 == -score).then_some(us.unsigned_abs())
}

/// The entries of events of a key, by their times.
pub trait Entries {
    type Error: From<Refusal>;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the newest entry up to `until_us`. `None` is no bound.
    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Self::Error>;

    /// Returns the oldest entry after `after_us`. `None` is no bound.
    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Self::Error>;

    /// Calls `visit` with the entries after `after_us` and up to `until_us`, the oldest first, until it returns false.
    /// `None` is no bound.
    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::{cases, START_US};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(1_000))]

        #[test]
        fn every_entry_comes_back(
            newest_us in 0..=LAST_US,
            span_us in any::<u64>(),
            total in any::<u64>(),
            weight in 1..=MAX_SUM,
            denied in any::<bool>(),
        ) {
            let span_us = span_us % (newest_us + 1);
            let entry = Entry { newest_us, span_us, total, weight, denied };
            prop_assert_eq!(Entry::decode(entry.score(), entry.member().as_bytes()), Some(entry));
        }

        #[test]
        fn an_entry_that_is_read_is_written_the_same_way(text in "[0-9]{0,3}(x[0-9]{0,3})?(~[0-9]{0,3})?d?", other in "[0-9x~d:]{0,9}") {
            for text in [text, other] {
                if let Some(entry) = Entry::decode(-1e15, text.as_bytes()) {
                    assert_eq!(entry.member().as_bytes(), text.as_bytes());
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bits in any::<u64>(), member in proptest::collection::vec(any::<u8>(), 0..90)) {
            Entry::decode(f64::from_bits(bits), &member);
            Entry::decode(-1e15, &member);
        }
    }

    #[test]
    fn members_are_short_and_come_back() {
        let entry = |total, weight, span_us, denied| Entry {
            newest_us: START_US,
            span_us,
            total,
            weight,
            denied,
        };
        for (entry, member) in [
            (entry(17, 1, 0, false), "17"),
            (entry(20, 3, 0, false), "20x3"),
            (entry(70, 50, 9000, false), "70x50~9000"),
            (entry(71, 1, 0, true), "71d"),
            (entry(0, MAX_SUM, 7, true), "0x9223372036854775807~7d"),
        ] {
            assert_eq!(entry.member().as_bytes(), member.as_bytes());
            let back = Entry::decode(entry.score(), member.as_bytes());
            assert_eq!(back, Some(entry));
        }
    }

    #[test]
    fn foreign_text_is_not_an_entry() {
        for member in [
            "", "a", "017", "17x", "17x0", "17x01", "x3", "17~", "17d1", "dd", "17 ", "-1", "1.5",
            "17x1~99999999999999999", "17x2~99999999999999999", "17x1", "17x1d", "17~0", "17x01",
            "17~07", "17~3x2", "17xx2", "17~3~4", "17D", "17x9223372036854775808",
            "18446744073709551616", "17\0",
        ] {
            assert_eq!(Entry::decode(-1e15, member.as_bytes()), None, "{member:?}");
        }
        for score in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0, -1.5, -1e17] {
            assert_eq!(Entry::decode(score, b"17"), None, "{score}");
        }
    }
}

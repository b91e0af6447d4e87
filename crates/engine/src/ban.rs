//! BAN: a key is closed for a while, because a call was denied or because a call with FORCE closes it.
//!
//! ```text
//! denied with BAN 10min                 the end              granted
//! |<------- closed: no call takes ------>|<-- the mark stays -->|
//! ```
//!
//! A ban has an end and a length. After its end it stays with the key as a mark until something is granted, or until the key
//! is clear for a moment, whether or not a call comes then. While the mark stays, the key is not banned again, so
//! waiting for the retry_after of a denial suffices. FORCE closes the key in spite of a mark.

use crate::decimal::{parse_u64, split_once};
use crate::entry::LAST_US;
use crate::period::YEAR_MS;
use crate::text::ShortText;

/// The first byte of a stored ban. As a member of a sorted set it comes before all reservations; in the string of a bucket
/// it is the only byte of its kind.
pub const BAN_PREFIX: u8 = b'!';

/// The length of the longest text of a ban: `!`, 13 digits, `~`, and 11 digits.
pub(crate) const MAX_BAN_BYTES: usize = 26;

/// The stored form of a ban: a member of a sorted set, or the end of a bucket's string.
pub type BanText = ShortText<MAX_BAN_BYTES>;

/// A ban, or the mark that a past one left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The end, in Unix milliseconds.
    end_ms: u64,
    /// The length in milliseconds, 1 to [`YEAR_MS`].
    length_ms: u64,
}

impl Ban {
    /// Creates a ban that begins at `now_us` and lasts `length_ms`, 1 to [`YEAR_MS`]. Its end is rounded down.
    pub fn starting(now_us: u64, length_ms: u64) -> Ban {
        Ban { end_ms: (now_us / 1_000).saturating_add(length_ms), length_ms }
    }

    /// Reads the text that [`Ban::write`] writes. `None` for anything else.
    ///
    /// ```
    /// use redis_ratelimit_engine::ban::Ban;
    /// let ban = Ban::starting(1_795_223_799_544_558, 600_000);
    /// assert_eq!(Ban::decode(b"!1795224399544~600000"), Some(ban));
    /// assert_eq!(ban.text().as_bytes(), b"!1795224399544~600000");
    /// ```
    pub fn decode(text: &[u8]) -> Option<Ban> {
        let text = text.strip_prefix(&[BAN_PREFIX])?;
        let (end, length) = split_once(text, b'~')?;
        let (end_ms, length_ms) = (parse_u64(end)?, parse_u64(length)?);
        let sound = (1..=YEAR_MS).contains(&length_ms)
            && end_ms <= (LAST_US / 1_000).saturating_add(YEAR_MS);
        sound.then_some(Ban { end_ms, length_ms })
    }

    /// Appends the stored form, such as `!1795224399544~600000`.
    pub fn write<const N: usize>(&self, text: &mut ShortText<N>) {
        text.push(&[BAN_PREFIX]);
        text.push_number(self.end_ms, 1);
        text.push(b"~");
        text.push_number(self.length_ms, 1);
    }

    pub fn text(&self) -> BanText {
        let mut text = BanText::new();
        self.write(&mut text);
        text
    }

    /// Returns the ban as seen from `now_us`. It ends at most its own length later, even after the clock was set back.
    pub(crate) fn seen_at(self, now_us: u64) -> Ban {
        let latest = Ban::starting(now_us, self.length_ms);
        Ban { end_ms: self.end_ms.min(latest.end_ms), ..self }
    }

    pub fn end_us(&self) -> u64 {
        self.end_ms.saturating_mul(1_000)
    }

    pub fn end_ms(&self) -> u64 {
        self.end_ms
    }
}

/// A key's ban at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanNow {
    ban_or_mark: Option<Ban>,
    /// Microseconds until it ends. 0 if it is over, or if there is none.
    left_us: u64,
    /// The stored end is too far ahead, because the clock was set back.
    is_from_future: bool,
}

impl BanNow {
    /// Returns the stored ban or mark as seen at `now_us`.
    pub fn at(stored: Option<Ban>, now_us: u64) -> BanNow {
        let Some(stored) = stored else { return BanNow::default() };
        let seen = stored.seen_at(now_us);
        let left_us = seen.end_us().saturating_sub(now_us);
        BanNow { ban_or_mark: Some(seen), left_us, is_from_future: seen != stored }
    }

    pub fn starting(now_us: u64, length_ms: u64) -> BanNow {
        BanNow::at(Some(Ban::starting(now_us, length_ms)), now_us)
    }

    pub(crate) fn ban_or_mark(&self) -> Option<Ban> {
        self.ban_or_mark
    }

    pub fn left_us(&self) -> u64 {
        self.left_us
    }

    pub fn runs(&self) -> bool {
        self.left_us > 0
    }

    pub fn is_from_future(&self) -> bool {
        self.is_from_future
    }

    /// Returns the ban after a call that closes the key for `length_ms` from `now_us` on (FORCE). A ban that ends then or
    /// later stays as it is.
    pub(crate) fn close(self, now_us: u64, length_ms: u64) -> BanNow {
        let new = BanNow::starting(now_us, length_ms);
        if self.left_us < new.left_us {
            new
        } else {
            self
        }
    }

    /// Returns the ban that stays after this call: one that runs, or the mark of a past one unless something is `granted` or
    /// the key is clear.
    pub(crate) fn ban_after(&self, granted: bool, is_clear: bool) -> Option<Ban> {
        self.ban_or_mark.filter(|_| self.runs() || !(granted || is_clear))
    }

    /// Returns whether a denied call may ban the key: not while a ban runs or the mark of one stays.
    pub(crate) fn may_begin(&self) -> bool {
        self.ban_or_mark.is_none()
    }

    /// Removes the mark of a ban that is over. Called for a key that was found clear, before the call adds anything.
    pub(crate) fn drop_mark(&mut self) {
        if !self.runs() {
            *self = BanNow::default();
        }
    }
}

#[cfg(test)]
mod tests;

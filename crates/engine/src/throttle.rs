//! GCRA, the generic cell rate algorithm (ITU-T I.371, ATM Forum TM 4.0): a leaky bucket or
//! token bucket whose whole state is one time.
//!
//! That time is the theoretical arrival time (TAT): the moment at which the bucket will be full again.
//! Taking moves it into the future by the emission interval `period / count` for each unit, giving back
//! moves it towards the present. It may lie further ahead than the bucket is long only by the debt that FORCE or
//! AHEAD wrote next to it.
//!
//! ```text
//!            now                    tat       now + bucket
//! ------------|----------------------|--------------|-----------> time
//!             |<------- taken ------>|<- remaining->|
//!             |<------------- (max_burst + 1) * period / count -->|
//!
//!            now                         now + bucket     tat
//! ------------|-----------------------------------|--------|----> time
//!             |<------------- bucket ------------>|<-debt->|
//! ```

use crate::ban::{Ban, BanNow, BAN_PREFIX, MAX_BAN_BYTES};
use crate::decimal::{parse_digits, parse_fixed_digits, parse_u64, split_at_mark};
use crate::decision::{Ask, Decision, Manner, Obstacle, Quantity, Verdict};
use crate::expiry::GRACE_MS;
use crate::period::MAX_PERIOD_MS;
use crate::refusal::Refusal;
use crate::text::ShortText;
use std::num::{NonZeroU128, NonZeroU64};

/// Attoseconds, 1e-18 s. Rounding an interval down to them costs less than one part in a million at 1e12 a second, and 2^128
/// of them reach past any date.
type Attos = u128;

const ATTOS_PER_NS: u128 = 1_000_000_000;
const ATTOS_PER_US: u128 = 1_000_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// The last time that a stored value can hold: nineteen nines of nanoseconds and nine of attoseconds.
const LAST_TAT: Attos = 9_999_999_999_999_999_999_999_999_999;
const TAT_DIGITS: usize = 19;
const FRACTION_DIGITS: usize = 9;

/// The longest debt: 100 years in nanoseconds.
const MAX_DEBT_NS: u64 = MAX_PERIOD_MS * NS_PER_MS;
const MAX_DEBT: Attos = MAX_DEBT_NS as Attos * ATTOS_PER_NS;

const DEBT_DIGITS: usize = 19;
const _: () = assert!(MAX_DEBT_NS < 10u64.pow(DEBT_DIGITS as u32));

pub type BucketText = ShortText<MAX_VALUE>;

/// The length of the longest stored value: nanoseconds, a point, the fraction, a plus sign, the debt, and a ban.
const MAX_VALUE: usize = TAT_DIGITS + 1 + FRACTION_DIGITS + 1 + DEBT_DIGITS + MAX_BAN_BYTES;

/// The stored state of a bucket: its theoretical arrival time, the debt by which that may lie beyond an empty bucket, and a
/// ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBucket {
    /// The theoretical arrival time, in whole nanoseconds since 1970 of at most [`TAT_DIGITS`] digits.
    ns: u64,
    /// Attoseconds beyond those nanoseconds.
    attos: u64,
    /// The debt in whole nanoseconds, at most [`MAX_DEBT_NS`].
    debt_ns: u64,
    /// The ban, or the mark that a past one left.
    ban: Option<Ban>,
}

impl StoredBucket {
    /// Reads a stored value: 19 digits of Unix nanoseconds, perhaps a point and one to nine digits of their
    /// fraction, perhaps a plus sign and a debt in nanoseconds, and perhaps a ban. `None` for anything else.
    ///
    /// ```
    /// use redis_ratelimit_engine::throttle::StoredBucket;
    /// // Full at 1795223799.5 s, with a debt of 2 s.
    /// let stored = StoredBucket::decode(b"1795223799500000000+2000000000").unwrap();
    /// assert_eq!((stored.full_at_us(), stored.debt_ns()), (1_795_223_799_500_000, 2_000_000_000));
    /// assert_eq!(StoredBucket::decode(b"42"), None);
    /// ```
    pub fn decode(value: &[u8]) -> Option<StoredBucket> {
        // The string of another client may have 512 MB, so a long one is not searched.
        if value.len() > MAX_VALUE {
            return None;
        }
        let (whole, rest) = value.split_first_chunk::<TAT_DIGITS>()?;
        let ns = parse_fixed_digits(whole)?;
        // Most values end here.
        if rest.is_empty() {
            return Some(StoredBucket { ns, attos: 0, debt_ns: 0, ban: None });
        }
        let ban_at = rest.iter().position(|&byte| byte == BAN_PREFIX).unwrap_or(rest.len());
        let (rest, ban) = rest.split_at_checked(ban_at)?;
        let ban = if ban.is_empty() { None } else { Some(Ban::decode(ban)?) };
        let (rest, debt) = split_at_mark(rest, b'+');
        let is_allowed = |debt_ns: &u64| (1..=MAX_DEBT_NS).contains(debt_ns);
        let debt_ns = debt.map_or(Some(0), |debt| parse_u64(debt).filter(is_allowed))?;
        let attos = match rest.split_first() {
            None => 0,
            Some((b'.', digits)) if digits.len() <= FRACTION_DIGITS => {
                let missing = FRACTION_DIGITS.saturating_sub(digits.len());
                let scale = 10u64.checked_pow(u32::try_from(missing).ok()?)?;
                parse_digits(digits)?.checked_mul(scale)?
            }
            Some(_) => return None,
        };
        Some(StoredBucket { ns, attos, debt_ns, ban })
    }

    /// Creates the state of an arrival time of at most [`LAST_TAT`], without a ban.
    fn new(tat: Attos, debt_ns: u64) -> StoredBucket {
        let (ns, attos) = split_ns(tat);
        StoredBucket { ns, attos, debt_ns, ban: None }
    }

    fn tat(self) -> Attos {
        u128::from(self.ns).saturating_mul(ATTOS_PER_NS).saturating_add(u128::from(self.attos))
    }

    /// Returns the stored form. The fraction has no trailing zeros, and is left out if it is 0.
    pub fn encode(self) -> BucketText {
        let mut text = BucketText::new();
        text.push_number(self.ns, TAT_DIGITS);
        let mut fraction = self.attos;
        if fraction > 0 {
            let mut digits = FRACTION_DIGITS;
            while fraction % 10 == 0 {
                fraction /= 10;
                digits = digits.saturating_sub(1);
            }
            text.push(b".");
            text.push_number(fraction, digits);
        }
        if self.debt_ns > 0 {
            text.push(b"+");
            text.push_number(self.debt_ns, 1);
        }
        if let Some(ban) = &self.ban {
            ban.write(&mut text);
        }
        text
    }

    pub fn ban(self) -> Option<Ban> {
        self.ban
    }

    /// Returns the first Unix millisecond at which the value no longer matters, because the bucket is full and no ban runs.
    pub fn needed_until_ms(self) -> u64 {
        self.full_at_us().div_ceil(1_000).max(self.ban.map_or(0, |ban| ban.end_ms()))
    }

    /// Returns the last Unix millisecond in which its key lives.
    pub fn expires_at_ms(self) -> u64 {
        self.needed_until_ms().saturating_add(GRACE_MS)
    }

    /// Returns when the bucket is full, in Unix microseconds, rounded up.
    pub fn full_at_us(self) -> u64 {
        self.ns.saturating_add(u64::from(self.attos > 0)).div_ceil(1_000)
    }

    pub fn debt_ns(self) -> u64 {
        self.debt_ns
    }
}

/// The size of a bucket, and how fast it fills. The constructor checks both, so that no arithmetic on a `Rate` overflows.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    limit: u64,
    count: NonZeroU64,
    period_ns: NonZeroU64,
    bucket: Attos,
}

impl Rate {
    /// Creates a rate of `count` units every `period_ms` milliseconds, and up to `max_burst` (below 2^63 - 1) more than one
    /// at once. `None` if `count` or `period_ms` is 0, or if an empty bucket takes more than 100 years to fill: `(max_burst
    /// + 1) * period / count`.
    #[inline]
    pub fn new(max_burst: u64, count: u64, period_ms: u64) -> Option<Rate> {
        let limit = max_burst.saturating_add(1);
        let period_ns = NonZeroU64::new(period_ms.saturating_mul(NS_PER_MS))?;
        let count = NonZeroU64::new(count)?;
        let longest = u128::from(MAX_PERIOD_MS).saturating_mul(u128::from(NS_PER_MS));
        // Neither product can pass 2^127.
        let filled = u128::from(limit).saturating_mul(u128::from(period_ns.get()));
        if filled > longest.saturating_mul(u128::from(count.get())) {
            return None;
        }
        let rate = Rate { limit, count, period_ns, bucket: 0 };
        Some(Rate { bucket: rate.cost(limit), ..rate })
    }

    /// Returns `quantity * period / count`, rounded down once instead of for each unit. Saturates.
    fn cost(&self, quantity: u64) -> Attos {
        if let Some(product) = self.period_ns.get().checked_mul(quantity) {
            let (whole, rest) = (product / self.count, product % self.count);
            if rest == 0 {
                return u128::from(whole).saturating_mul(ATTOS_PER_NS);
            }
        }
        let product = u128::from(self.period_ns.get()).saturating_mul(u128::from(quantity));
        let count = NonZeroU128::from(self.count);
        let (whole, rest) = (product / count, product % count);
        whole.saturating_mul(ATTOS_PER_NS).saturating_add(rest.saturating_mul(ATTOS_PER_NS) / count)
    }

    /// Returns `quantity * period / count`, rounded up. Giving back subtracts this, so that the stored time is rounded down
    /// here too.
    fn refund(&self, quantity: u64) -> Attos {
        let product = u128::from(self.period_ns.get()).saturating_mul(u128::from(quantity));
        let count = NonZeroU128::from(self.count);
        let dropped = u128::from((product % count).saturating_mul(ATTOS_PER_NS) % count > 0);
        self.cost(quantity).saturating_add(dropped)
    }

    /// Returns the largest quantity whose cost is at most `room`, which is at most the bucket.
    fn affordable(&self, room: Attos) -> u64 {
        if room >= self.bucket {
            return self.limit;
        }
        // cost(q) <= room means floor(q * period / count) <= room means q * period < (room + 1) * count.
        if let Some(product) = room.saturating_add(1).checked_mul(u128::from(self.count.get())) {
            let period = u128::from(self.period_ns.get()).saturating_mul(ATTOS_PER_NS);
            // Less than one unit, as in most denied calls, so the long division is not needed.
            if product <= period {
                return 0;
            }
            let units = product.saturating_sub(1).checked_div(period);
            return units.map_or(self.limit, saturate).min(self.limit);
        }
        let (mut fits, mut too_much) = (0, self.limit);
        while too_much.saturating_sub(fits) > 1 {
            let middle = fits.midpoint(too_much);
            if self.cost(middle) <= room {
                fits = middle;
            } else {
                too_much = middle;
            }
        }
        fits
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketEdit {
    Keep,
    Store(StoredBucket),
    /// The key is deleted, because the bucket is full.
    Delete,
}

/// A bucket at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'r> {
    rate: &'r Rate,
    now_us: u64,
    now: Attos,
    /// The arrival time of an empty bucket.
    empty: Attos,
    /// The arrival time, at least `now`.
    tat: Attos,
    /// The arrival time as it is stored, which may lie before `now` or too far ahead.
    stored_tat: Attos,
    /// The stored time was beyond an empty bucket and its debt, because the clock was set back or the rate changed.
    is_from_future: bool,
    ban: BanNow,
}

impl<'r> Bucket<'r> {
    /// Creates a full bucket of `rate` at `now_us` Unix microseconds, which is the state without a key.
    pub fn full(rate: &'r Rate, now_us: u64) -> Bucket<'r> {
        let now = u128::from(now_us).saturating_mul(ATTOS_PER_US);
        let empty = now.saturating_add(rate.bucket);
        let ban = BanNow::default();
        Bucket { rate, now_us, now, empty, tat: now, stored_tat: now, is_from_future: false, ban }
    }

    pub fn set(&mut self, stored: StoredBucket) {
        let debt = u128::from(stored.debt_ns).saturating_mul(ATTOS_PER_NS);
        let last = self.empty.saturating_add(debt);
        let time = stored.tat();
        (self.tat, self.is_from_future) = (time.clamp(self.now, last), time > last);
        self.stored_tat = time;
        if stored.ban.is_some() {
            self.ban = BanNow::at(stored.ban, self.now_us);
            if self.tat == self.now {
                self.ban.drop_mark();
            }
        }
    }

    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Returns the verdict on a request. With `barred` a waiter comes first.
    ///
    /// # Errors
    ///
    /// [`Refusal::DebtTooLong`].
    pub fn judge(&self, ask: &Ask, barred: bool) -> Result<Verdict, Refusal> {
        let Quantity::Take(wanted) = ask.quantity else { return Ok(Verdict::taking(0)) };
        let within_us = match ask.manner {
            Manner::Ahead { within_us } => within_us,
            Manner::Force => {
                let after = self.tat.saturating_add(self.rate.cost(wanted));
                if after.saturating_sub(self.empty) > MAX_DEBT || after > LAST_TAT {
                    return Err(Refusal::DebtTooLong);
                }
                return Ok(Verdict::taking(wanted));
            }
            Manner::Whole | Manner::AtMost => 0,
        };
        let Some(min_available) = ask.min_available(self.rate.limit) else {
            return Ok(Verdict::Never);
        };
        let ahead = u128::from(within_us).saturating_mul(ATTOS_PER_US);
        // The caller must wait for the end of a ban too.
        let closed = u128::from(self.ban.left_us()).saturating_mul(ATTOS_PER_US);
        let missing = self.missing(min_available).max(closed);
        let verdict = if missing > ahead {
            let wait_us = us_ceil(missing.saturating_sub(ahead));
            Verdict::Denied { wait_us, obstacle: Obstacle::Counted }
        } else {
            let taken = match ask.manner {
                Manner::AtMost => wanted.min(self.remaining().saturating_sub(ask.leave)),
                _ => wanted,
            };
            // Only in the far future can the time be beyond the last one that can be stored.
            let may_pass = self.empty.saturating_add(ahead) > LAST_TAT;
            if may_pass && self.tat.saturating_add(self.rate.cost(taken)) > LAST_TAT {
                return Err(Refusal::DebtTooLong);
            }
            Verdict::Allowed { taken, go_after_us: us_ceil(missing) }
        };
        Ok(if barred { verdict.deny_in_line(Obstacle::Counted) } else { verdict })
    }

    /// Returns the time that the bucket lacks for `quantity`.
    fn missing(&self, quantity: u64) -> Attos {
        self.tat.saturating_add(self.rate.cost(quantity)).saturating_sub(self.empty)
    }

    #[inline(always)]
    fn remaining(&self) -> u64 {
        if self.tat > self.empty || self.ban.runs() {
            return 0;
        }
        self.rate.affordable(self.empty.saturating_sub(self.tat))
    }

    /// Returns the bucket after an allowed call, and what to write.
    #[inline(always)]
    pub fn grant(&self, ask: &Ask, verdict: Verdict) -> (Bucket<'r>, BucketEdit) {
        let is_full = self.tat == self.now && !self.is_from_future;
        let tat = match ask.quantity {
            Quantity::Look => return (*self, BucketEdit::Keep),
            Quantity::GiveBack(_) if is_full => return (*self, BucketEdit::Keep),
            Quantity::GiveBack(quantity) => {
                self.tat.saturating_sub(self.rate.refund(quantity)).max(self.now)
            }
            Quantity::Take(_) => {
                self.tat.saturating_add(self.rate.cost(verdict.taken())).min(LAST_TAT)
            }
        };
        let after = Bucket { tat, ..*self };
        let ban = self.ban.ban_after(ask.takes_unforced(), tat == self.now);
        // Above 1e18 a second, a unit and even the whole bucket may last less than an attosecond.
        let untouched = ask.quantity.takes() && tat == self.now && !self.is_from_future;
        let edit = if untouched && ban == self.ban.ban_or_mark() {
            BucketEdit::Keep
        } else if tat > self.now || ban.is_some() {
            self.store(tat, ban)
        } else {
            BucketEdit::Delete
        };
        (after, edit)
    }

    /// Returns the bucket after a call that also closes the key for `ban_ms` (FORCE), and what to write. `self` and `edit`
    /// are what [`Bucket::grant`] returned. A call that counts nothing leaves the stored time where it is, even if that is
    /// too far ahead.
    pub fn close(&self, edit: BucketEdit, ban_ms: u64) -> (Bucket<'r>, BucketEdit) {
        let ban = self.ban.close(self.now_us, ban_ms);
        let edit = match edit {
            BucketEdit::Keep if ban == self.ban && !ban.is_from_future() => BucketEdit::Keep,
            BucketEdit::Keep => {
                let (ns, attos) = split_ns(self.stored_tat);
                BucketEdit::Store(StoredBucket {
                    ns,
                    attos,
                    ..self.stored(self.tat, ban.ban_or_mark())
                })
            }
            BucketEdit::Store(_) | BucketEdit::Delete => self.store(self.tat, ban.ban_or_mark()),
        };
        (Bucket { ban, ..*self }, edit)
    }

    /// Returns the verdict on a denied call, the bucket after it, and what to write. A state from the future is written
    /// back, so that the wait in the reply is long enough. The call closes the key for `ban_ms` if the bucket holds less
    /// than the call's quantity, and something was granted since the last ban.
    #[inline(always)]
    pub fn deny(
        &self,
        ask: &Ask,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> (Verdict, Bucket<'r>, BucketEdit) {
        let denied = matches!(verdict, Verdict::Denied { .. });
        let bans =
            |_: &u64| denied && self.ban.may_begin() && self.missing(ask.quantity.wanted()) > 0;
        if let Some(ban_ms) = ban_ms.filter(bans) {
            let after = Bucket { ban: BanNow::starting(self.now_us, ban_ms), ..*self };
            return (verdict.deny_for_ban(after.ban.left_us()), after, after.rewrite());
        }
        let is_from_future = self.is_from_future || self.ban.is_from_future();
        let heals = is_from_future && verdict != Verdict::Never;
        (verdict, *self, if heals { self.rewrite() } else { BucketEdit::Keep })
    }

    fn rewrite(&self) -> BucketEdit {
        self.store(self.tat.min(LAST_TAT), self.ban.ban_or_mark())
    }

    #[inline(always)]
    fn store(&self, tat: Attos, ban: Option<Ban>) -> BucketEdit {
        BucketEdit::Store(self.stored(tat, ban))
    }

    #[inline(always)]
    fn stored(&self, tat: Attos, ban: Option<Ban>) -> StoredBucket {
        let debt = tat.saturating_sub(self.empty);
        // Most buckets have none. `judge` and the stored value bound it.
        let debt_ns = match debt {
            0 => 0,
            _ => split_ns(debt.saturating_add(ATTOS_PER_NS - 1)).0.min(MAX_DEBT_NS),
        };
        StoredBucket { ban, ..StoredBucket::new(tat, debt_ns) }
    }

    // Inlined so that the large result is not copied.
    #[inline(always)]
    pub fn decision(&self, verdict: Verdict) -> Decision {
        let reset_after_us = us_ceil(self.tat.saturating_sub(self.now)).max(self.ban.left_us());
        let (limit, remaining) = (self.rate.limit, self.remaining());
        Decision { verdict, limit, remaining, reset_after_us, ..Decision::default() }
    }
}

/// Returns the whole nanoseconds of a time of at most [`LAST_TAT`], and the attoseconds that are left: a long division in
/// base 2^32, because the compiler's division of 128 bits takes four times as long.
fn split_ns(time: Attos) -> (u64, u64) {
    const DIVISOR: u64 = ATTOS_PER_NS as u64;
    // The casts lose nothing: the time is below 2^94, and both quotients and the remainder are below 2^32.
    let (high, low) = ((time >> 32) as u64, time as u64 & u64::from(u32::MAX));
    let low = ((high % DIVISOR) << 32) | low;
    (((high / DIVISOR) << 32) | (low / DIVISOR), low % DIVISOR)
}

/// Returns the microseconds, rounded up, of a time of at most [`LAST_TAT`]: no wait is longer than a bucket and its debt.
fn us_ceil(time: Attos) -> u64 {
    split_ns(time.saturating_add(ATTOS_PER_US - 1)).0 / 1_000
}

fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

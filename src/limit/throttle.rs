//! GCRA, the generic cell rate algorithm (ITU-T I.371, ATM Forum TM 4.0): a leaky bucket, funnel or
//! token bucket whose whole state is one time.
//!
//! That time is the theoretical arrival time (TAT): the moment at which the bucket will be full again.
//! Taking moves it into the future by the emission interval `period / count` for each unit, giving back
//! moves it towards the present, and it may never lie further ahead than the bucket is long.
//!
//! ```text
//!            now                    tat       now + bucket
//! ------------|----------------------|--------------|-----------> time
//!             |<---- taken, debt --->|<- remaining->|
//!             |<------------- (max_burst + 1) * period / count -->|
//! ```

use super::decimal::{parse_digits, Text};
use super::decision::{Decision, Limited, LEAST_WAIT_IN_LINE_US};
use super::period::MAX_PERIOD_MS;
use std::num::{NonZeroU128, NonZeroU64};

/// Attoseconds, 1e-18 s. Fine enough that rounding an interval down to them costs less than one part in
/// a million at 1e12 a second, and that 2^128 of them reach past any date.
type Attos = u128;

const ATTOS_IN_NS: NonZeroU128 = NonZeroU128::MIN.saturating_add(999_999_999);
const ATTOS_PER_NS: u128 = ATTOS_IN_NS.get();
const ATTOS_PER_US: u128 = 1_000_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
/// Nineteen nines of nanoseconds and nine of attoseconds: the last time that a value can spell.
const LAST_TAT: Attos = 9_999_999_999_999_999_999_999_999_999;
const TAT_DIGITS: usize = 19;
const FRACTION_DIGITS: usize = 9;

/// Longest stored value: nanoseconds, a point, and the fraction.
pub type TatText = Text<32>;

/// A theoretical arrival time, in attoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tat(Attos);

impl Tat {
    /// The time that a stored value spells: 19 digits of Unix nanoseconds, and perhaps a point and one to
    /// nine digits of their fraction. `None` for anything else.
    pub fn decode(value: &[u8]) -> Option<Tat> {
        let (whole, rest) = value.split_at_checked(TAT_DIGITS)?;
        let ns = u128::from(parse_digits(whole)?);
        let fraction = match rest.split_first() {
            None => 0,
            Some((b'.', digits)) if digits.len() <= FRACTION_DIGITS => {
                let missing = FRACTION_DIGITS.saturating_sub(digits.len());
                let scale = 10u64.checked_pow(u32::try_from(missing).ok()?)?;
                parse_digits(digits)?.checked_mul(scale)?
            }
            Some(_) => return None,
        };
        Some(Tat(ns.checked_mul(ATTOS_PER_NS)?.checked_add(u128::from(fraction))?))
    }

    /// The stored form. A fraction only where there is one, without trailing zeros.
    pub fn encode(self) -> TatText {
        let mut text = TatText::new();
        // Both parts fit: LAST_TAT bounds the first, the modulus the second.
        let (ns, mut fraction) = ((self.0 / ATTOS_PER_NS) as u64, (self.0 % ATTOS_PER_NS) as u64);
        text.push_number(ns, TAT_DIGITS);
        if fraction > 0 {
            let mut digits = FRACTION_DIGITS;
            while fraction % 10 == 0 {
                fraction /= 10;
                digits = digits.saturating_sub(1);
            }
            text.push(b".");
            text.push_number(fraction, digits);
        }
        text
    }

    /// The first whole Unix millisecond at which the bucket is full, when the value stops mattering.
    pub fn full_at_ms(self) -> u64 {
        saturate(self.0.div_ceil(ATTOS_PER_US.saturating_mul(1_000)))
    }
}

/// A bucket's size and how fast it fills. The constructor checks; all arithmetic on a `Rate` is in range.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    limit: u64,
    count: NonZeroU64,
    period_ns: NonZeroU64,
    bucket: Attos,
}

/// `(max_burst + 1) * period / count`, the time in which an empty bucket fills, would pass 100 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTooLong;

impl Rate {
    /// `count` units (from 1) each `period_ms` milliseconds (1 to 100 years), and `max_burst` (below
    /// 2^63 - 1) more than one at once.
    pub fn new(max_burst: u64, count: u64, period_ms: u64) -> Result<Rate, BucketTooLong> {
        let limit = max_burst.saturating_add(1);
        let period_ns =
            NonZeroU64::new(period_ms.saturating_mul(NS_PER_MS)).ok_or(BucketTooLong)?;
        let count = NonZeroU64::new(count).ok_or(BucketTooLong)?;
        let longest = u128::from(MAX_PERIOD_MS).saturating_mul(u128::from(NS_PER_MS));
        // Neither product can pass 2^127.
        let filled = u128::from(limit).saturating_mul(u128::from(period_ns.get()));
        if filled > longest.saturating_mul(u128::from(count.get())) {
            return Err(BucketTooLong);
        }
        let rate = Rate { limit, count, period_ns, bucket: 0 };
        Ok(Rate { bucket: rate.cost(limit), ..rate })
    }

    /// `quantity * period / count`, rounded down once and not for each unit. `quantity` is at most `limit`.
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

    /// `quantity * period / count`, rounded up: what giving back takes off, so that the stored time is rounded
    /// down here as well.
    fn refund(&self, quantity: u64) -> Attos {
        let product = u128::from(self.period_ns.get()).saturating_mul(u128::from(quantity));
        let count = NonZeroU128::from(self.count);
        let dropped = u128::from((product % count).saturating_mul(ATTOS_PER_NS) % count > 0);
        self.cost(quantity).saturating_add(dropped)
    }

    /// The largest quantity whose cost is at most `room`, which is at most the bucket.
    fn affordable(&self, room: Attos) -> u64 {
        if room >= self.bucket {
            return self.limit;
        }
        let period = NonZeroU128::from(self.period_ns).saturating_mul(ATTOS_IN_NS);
        // cost(q) <= room means floor(q * period / count) <= room means q * period < (room + 1) * count.
        if let Some(product) = room.saturating_add(1).checked_mul(u128::from(self.count.get())) {
            return saturate(product.saturating_sub(1) / period).min(self.limit);
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

/// What is to be written after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Keep,
    /// This time.
    Store(Tat),
    /// The bucket is full: no key.
    Delete,
}

/// Decides one call: `quantity` units from a bucket whose stored time is `stored` (`None`: no key), at
/// `now_us` Unix microseconds. Below 0 gives back, 0 only looks. With `atmost` it takes what there is.
pub fn decide(
    rate: &Rate,
    stored: Option<Tat>,
    now_us: u64,
    quantity: i64,
    atmost: bool,
) -> (Decision, Next) {
    let now = u128::from(now_us).saturating_mul(ATTOS_PER_US);
    let empty = now.saturating_add(rate.bucket);
    // A time beyond "empty" comes from a clock that went back or from other parameters.
    let from_future = stored.is_some_and(|tat| tat.0 > empty);
    let tat = stored.map_or(now, |tat| tat.0.clamp(now, empty));
    let room = empty.saturating_sub(tat);

    if quantity <= 0 {
        let given = quantity.unsigned_abs().min(rate.limit);
        let after = tat.saturating_sub(rate.refund(given)).max(now);
        let next = if quantity == 0 || (tat == now && !from_future) {
            Next::Keep
        } else if after == now {
            Next::Delete
        } else {
            Next::Store(Tat(after))
        };
        return (rate.decision(Limited::Allowed, None, after, now, 0), next);
    }

    let wanted = quantity.unsigned_abs();
    if wanted > rate.limit && !atmost {
        return (rate.decision(Limited::Denied, None, tat, now, 0), Next::Keep);
    }
    let granted = if atmost { wanted.min(rate.affordable(room)) } else { wanted };
    let cost = rate.cost(granted);
    if granted > 0 && cost <= room {
        let after = tat.saturating_add(cost).min(LAST_TAT);
        // Beyond 1e18 a second a unit, and the whole bucket, may last less than an attosecond.
        let next = if after > now {
            Next::Store(Tat(after))
        } else if from_future {
            Next::Delete
        } else {
            Next::Keep
        };
        return (rate.decision(Limited::Allowed, None, after, now, granted), next);
    }
    let least = if atmost { 1 } else { wanted };
    let wait = rate.cost(least).saturating_sub(room);
    let next = if from_future { Next::Store(Tat(empty.min(LAST_TAT))) } else { Next::Keep };
    (rate.decision(Limited::Denied, Some(wait), tat, now, 0), next)
}

/// The decision instead of `decision` and `next`, for a call that would take while others wait: denied for a
/// millisecond at least.
pub fn bar(
    rate: &Rate,
    stored: Option<Tat>,
    now_us: u64,
    decision: Decision,
    next: Next,
) -> (Decision, Next) {
    if decision.allowed() {
        let (seen, _) = decide(rate, stored, now_us, 0, false);
        let retry_after_us = Some(LEAST_WAIT_IN_LINE_US);
        return (Decision { limited: Limited::Denied, retry_after_us, ..seen }, Next::Keep);
    }
    let retry_after_us = decision.retry_after_us.map(|wait_us| wait_us.max(LEAST_WAIT_IN_LINE_US));
    (Decision { retry_after_us, ..decision }, next)
}

/// What [`decide`] would answer to the same call now, beside `remaining` and `reset_after` of the state as it
/// stands.
pub fn look(
    rate: &Rate,
    stored: Option<Tat>,
    now_us: u64,
    quantity: i64,
    atmost: bool,
) -> Decision {
    let (asked, _) = decide(rate, stored, now_us, quantity, atmost);
    let (state, _) = decide(rate, stored, now_us, 0, false);
    Decision { remaining: state.remaining, reset_after_us: state.reset_after_us, ..asked }
}

impl Rate {
    fn decision(
        &self,
        limited: Limited,
        wait: Option<Attos>,
        tat: Attos,
        now: Attos,
        granted: u64,
    ) -> Decision {
        let debt = tat.saturating_sub(now);
        Decision {
            limited,
            limit: self.limit,
            remaining: self.affordable(self.bucket.saturating_sub(debt)),
            retry_after_us: wait.map(|attos| saturate(attos.div_ceil(ATTOS_PER_US))),
            reset_after_us: saturate(debt.div_ceil(ATTOS_PER_US)),
            granted,
        }
    }
}

fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

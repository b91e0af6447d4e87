//! A share of each limit, for several processes without a server that each grant a part of it.
//!
//! ```
//! use redis_ratelimit_commands::memory::{MemoryServer, Outcome, Value};
//! use redis_ratelimit_commands::share::Share;
//!
//! let quarter = Share::new(1, 4).expect("between 0 and 1");
//! let mut server = MemoryServer::with_share(quarter, |bytes| bytes.fill(7));
//! let reply = server.call(&[b"RL.WINDOW", b"user:1", b"10", b"1min"], 1_795_223_799_544_558);
//! let integers = [0, 2, 1, -1, 60].map(Value::Integer);
//! assert_eq!(reply, Outcome::Reply(Value::Array(integers.to_vec())));
//! ```
//!
//! The capacity is rounded down, so that the shares of all processes together never exceed the limit. The one exception is
//! that it is at least 1: otherwise a limit would admit nothing if there are more processes than it has units. A limit of 0
//! stays 0. The count of a rate is not rounded: if it would not be a whole number, the period is made longer instead, up to
//! 100 years, or else the count is rounded down. LEAVE is rounded up. Quantities, waits and leases stay as they are.

use engine::period::MAX_PERIOD_MS;
use engine::throttle::Rate;
use std::num::{NonZeroU128, NonZeroU32};

/// A fraction above 0 and of at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    numerator: NonZeroU32,
    denominator: NonZeroU32,
}

impl Share {
    /// The whole of each limit: the process shares it with no other.
    pub const ALL: Share = Share { numerator: NonZeroU32::MIN, denominator: NonZeroU32::MIN };

    /// Creates a share of `numerator / denominator`. `None` unless it is above 0 and at most 1.
    pub fn new(numerator: u32, denominator: u32) -> Option<Share> {
        let (numerator, denominator) = (NonZeroU32::new(numerator)?, NonZeroU32::new(denominator)?);
        (numerator <= denominator).then_some(Share { numerator, denominator })
    }

    /// Returns the fraction that a floating-point number stands for: 0.25 is 1/4, and the number nearest to a third is 1/3.
    /// The denominator is at most 10,000. A number that is not such a fraction is rounded down to 1/10,000. `None` unless
    /// the number is from 1/10,000 to 1.
    pub fn nearest(share: f64) -> Option<Share> {
        const MAX: u32 = 10_000;
        let exact = (1..=MAX).find_map(|denominator| {
            let numerator = share * f64::from(denominator);
            let is_near = (numerator - numerator.round()).abs() < 1e-9 * f64::from(denominator);
            let numerator = numerator.round();
            (is_near && numerator >= 1.0).then(|| Share::new(numerator as u32, denominator))?
        });
        exact.or_else(|| Share::new((share * f64::from(MAX)) as u32, MAX))
    }

    /// Returns the share of a rate; `None` if its bucket would take longer than 100 years to fill.
    #[inline]
    pub fn scale_rate(self, max_burst: u64, count: u64, period_ms: u64) -> Option<Rate> {
        let capacity = self.scale_limit(max_burst.saturating_add(1));
        let (count, period_ms) = self.scale_count(count, period_ms);
        Rate::new(capacity.saturating_sub(1), count, period_ms)
    }

    #[inline]
    pub fn scale_limit(self, limit: u64) -> u64 {
        self.floor(limit).max(limit.min(1))
    }

    #[inline]
    pub fn scale_leave(self, leave: u64) -> u64 {
        let quotient = self.product(leave).div_ceil(self.denominator.get().into());
        u64::try_from(quotient).unwrap_or(u64::MAX)
    }

    /// Returns the share of `count` in each `period_ms`, as a count and a period.
    #[inline]
    fn scale_count(self, count: u64, period_ms: u64) -> (u64, u64) {
        let product = self.product(count);
        if product % NonZeroU128::from(self.denominator) == 0 {
            return (self.floor(count), period_ms);
        }
        // The same rate in a period that is longer by the denominator, or else a smaller rate.
        let longer_ms = period_ms.checked_mul(self.denominator.get().into());
        match (i64::try_from(product), longer_ms.filter(|ms| *ms <= MAX_PERIOD_MS)) {
            (Ok(product), Some(longer_ms)) => (product.unsigned_abs(), longer_ms),
            _ => match self.floor(count) {
                0 => {
                    let ms = u128::from(period_ms).saturating_mul(self.denominator.get().into());
                    let ms = u64::try_from(ms.div_ceil(product.max(1))).unwrap_or(u64::MAX);
                    (1, ms.min(MAX_PERIOD_MS))
                }
                count => (count, period_ms),
            },
        }
    }

    fn floor(self, number: u64) -> u64 {
        let quotient = self.product(number) / NonZeroU128::from(self.denominator);
        u64::try_from(quotient).unwrap_or(u64::MAX)
    }

    fn product(self, number: u64) -> u128 {
        u128::from(number).saturating_mul(self.numerator.get().into())
    }
}

#[cfg(test)]
mod tests;

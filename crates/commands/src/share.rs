//! A share of each limit: for several processes that each keep a part of it, as they have no server to ask.
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
//! What is available at once is rounded down, so the shares of all processes together are never more than the limit, with
//! one exception: it is at least 1, or a limit would admit nothing where there are more processes than it has units. A limit
//! of 0 stays 0. The number of a rate for each period is not rounded: where it would be no whole number the period is made
//! longer. LEAVE is rounded up. Quantities, waits and leases stay as they are.

use engine::period::MAX_PERIOD_MS;
use engine::throttle::Rate;

/// A part of the whole: `part` of `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u32,
    whole: u32,
}

impl Share {
    /// All of it.
    pub const ALL: Share = Share { part: 1, whole: 1 };

    /// Creates a share of `part` of `whole`. `None` unless it is above 0 and at most all of it.
    pub fn new(part: u32, whole: u32) -> Option<Share> {
        (part > 0 && part <= whole).then_some(Share { part, whole })
    }

    /// Returns the share that a number from a program says: 0.25 is 1 of 4, and what comes next to a third is 1 of 3. The
    /// whole is up to 10,000; a number that is no such fraction is rounded down. `None` unless it is from 1/10,000 to 1.
    pub fn nearest(share: f64) -> Option<Share> {
        const MOST: u32 = 10_000;
        let exact = (1..=MOST).find_map(|whole| {
            let part = share * f64::from(whole);
            let is_near = (part - part.round()).abs() < 1e-9 * f64::from(whole);
            (is_near && part.round() >= 1.0).then(|| Share::new(part.round() as u32, whole))?
        });
        exact.or_else(|| Share::new((share * f64::from(MOST)) as u32, MOST))
    }

    /// Returns the share of a rate; `None` if its bucket would take longer than 100 years to fill.
    #[inline]
    pub fn rate(self, max_burst: u64, count: u64, period_ms: u64) -> Option<Rate> {
        let at_once = self.of_limit(max_burst.saturating_add(1));
        let (count, period_ms) = self.of_rate(count, period_ms);
        Rate::new(at_once.saturating_sub(1), count, period_ms)
    }

    /// Returns the share of a limit: the most that is available at once.
    #[inline]
    pub fn of_limit(self, limit: u64) -> u64 {
        self.floor(limit).max(limit.min(1))
    }

    /// Returns the share of what LEAVE keeps for others.
    #[inline]
    pub fn of_leave(self, leave: u64) -> u64 {
        let leave = u128::from(leave).saturating_mul(self.part.into());
        u64::try_from(leave.div_ceil(u128::from(self.whole).max(1))).unwrap_or(u64::MAX)
    }

    /// Returns the share of `count` in each `period_ms`, as a count and a period.
    #[inline]
    fn of_rate(self, count: u64, period_ms: u64) -> (u64, u64) {
        let part = u128::from(count).saturating_mul(self.part.into());
        if part.checked_rem(self.whole.into()) == Some(0) {
            return (self.floor(count), period_ms);
        }
        let part = i64::try_from(part).ok();
        let longer_ms = period_ms.checked_mul(self.whole.into()).filter(|ms| *ms <= MAX_PERIOD_MS);
        match (part, longer_ms) {
            (Some(part), Some(longer_ms)) => (part.unsigned_abs(), longer_ms),
            _ => (self.of_limit(count), period_ms),
        }
    }

    fn floor(self, number: u64) -> u64 {
        let part = u128::from(number).saturating_mul(self.part.into());
        u64::try_from(part.checked_div(self.whole.into()).unwrap_or(part)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;

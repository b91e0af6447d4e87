//! When a key expires: not before its state stops mattering, but perhaps later, so that most calls need not move the TTL.
//!
//! ```text
//! now                  needed until       that + grace + in use
//! |---------------------------|------------------|---------------> time
//!                             |<- a TTL in here stays where it is
//! ```

use std::ops::RangeInclusive;

/// Grace added to every TTL, in milliseconds. If a caller comes back within it, the server has not had to delete the key and
/// to replicate that. It is below one second because a TTL is also rounded up to a millisecond.
pub(crate) const GRACE_MS: u64 = 900;

/// How long a key is needed, and how much longer it may live.
#[derive(Clone, Copy, Debug)]
pub struct Expiry {
    /// The time at which the state stops mattering, in Unix microseconds.
    pub needed_until_us: u64,
    /// The time for which the key has been in use, at most one period, in microseconds. The TTL may run ahead by this much.
    pub in_use_us: u64,
}

impl Expiry {
    /// Returns the expiry of a key that is also needed until `until_us`, if that is known.
    pub fn extend_to(self, until_us: Option<u64>) -> Expiry {
        Expiry { needed_until_us: self.needed_until_us.max(until_us.unwrap_or(0)), ..self }
    }

    /// Returns the times of expiry that may stay, in Unix milliseconds.
    fn allowed_ms(&self) -> RangeInclusive<u64> {
        let needed_ms = self.needed_until_us.div_ceil(1_000);
        needed_ms..=needed_ms.saturating_add(GRACE_MS).saturating_add(self.in_use_us / 1_000)
    }

    /// Returns the new time of expiry, in Unix milliseconds. `None` if `current_ms` can stay. If a lease that was to end at
    /// `settled_us` was settled, the TTL becomes shorter only if that lease alone kept the key, because others may need the
    /// key longer.
    ///
    /// Say the key is needed until second 10, and a lease that was to end in second 90 is settled. A TTL of 90.9 s is that
    /// of the lease, so it becomes 10.9 s. A TTL of 60 s is not: another call set it, perhaps under a rule with a longer
    /// period, and the events that it counted would be lost if the key expired at 10.9 s.
    pub fn new_expires_at_ms(
        &self,
        settled_us: Option<u64>,
        current_ms: Option<u64>,
    ) -> Option<u64> {
        let range = self.allowed_ms();
        let stays = current_ms.is_some_and(|current_ms| {
            let others_need_it = settled_us.is_some_and(|settled_us| {
                let lease = Expiry { needed_until_us: settled_us, in_use_us: 0 }.allowed_ms();
                let kept_by_lease =
                    self.needed_until_us < settled_us && lease.contains(&current_ms);
                current_ms > *range.end() && !kept_by_lease
            });
            others_need_it || range.contains(&current_ms)
        });
        (!stays).then_some(*range.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::START_US;

    #[test]
    fn a_ttl_moves_only_when_it_is_too_short_or_too_long() {
        let fresh = Expiry { needed_until_us: 60_000_001, in_use_us: 0 };
        let busy = Expiry { needed_until_us: 60_000_001, in_use_us: 9_500_999 };
        for (expiry, current_ms, after) in [
            (fresh, None, Some(60_901)),
            (fresh, Some(60_000), Some(60_901)),
            (fresh, Some(60_001), None),
            (fresh, Some(60_901), None),
            (fresh, Some(60_902), Some(60_901)),
            (busy, Some(60_000), Some(70_401)),
            (busy, Some(70_401), None),
            (busy, Some(70_402), Some(70_401)),
        ] {
            assert_eq!(
                expiry.new_expires_at_ms(None, current_ms),
                after,
                "{expiry:?} {current_ms:?}"
            );
        }
    }

    #[test]
    fn settling_a_lease_shortens_only_the_ttl_that_it_kept() {
        let expiry = Expiry { needed_until_us: 10_000_000, in_use_us: 0 };
        for (settled_us, current_ms, after) in [
            (90_000_000, Some(90_900), Some(10_900)),
            (90_000_000, Some(90_901), None),
            (90_000_000, Some(60_000), None),
            (90_000_000, Some(9_999), Some(10_900)),
            (5_000_000, Some(5_900), Some(10_900)),
            (5_000_000, Some(60_000), None),
            (90_000_000, None, Some(10_900)),
        ] {
            let found = expiry.new_expires_at_ms(Some(settled_us), current_ms);
            assert_eq!(found, after, "{settled_us} {current_ms:?}");
        }
    }

    /// Returns how often the TTL moves in the second half of these calls, on a key whose events come at even distances and
    /// count for one period each.
    fn moves(period_us: u64, events: u64, calls: u64) -> u64 {
        let (mut ttl_ms, mut moved) = (None, 0);
        for call in 0..calls {
            let now_us = START_US + call * (period_us / events);
            let in_use_us = (call * (period_us / events)).min(period_us);
            let expiry = Expiry { needed_until_us: now_us + period_us, in_use_us };
            let changed = expiry.new_expires_at_ms(None, ttl_ms);
            moved += u64::from(changed.is_some() && call >= calls / 2);
            ttl_ms = changed.or(ttl_ms);
            // Never too short, and at most a second and the time in use too long.
            let ttl_us = ttl_ms.unwrap() * 1_000;
            let late_us = ttl_us.checked_sub(expiry.needed_until_us).expect("the TTL is too short");
            assert!(late_us <= 1_000_000 + in_use_us, "{late_us} at {call}");
        }
        moved
    }

    #[test]
    fn a_busy_key_moves_its_ttl_in_a_third_of_its_calls_at_most() {
        for period_us in [10_000, 1_000_000, 60_000_000, 86_400_000_000] {
            for events in [10, 11, 30, 1_000] {
                let moved = moves(period_us, events, 3_000);
                assert!(moved * 3 <= 1_500, "{moved} of 1500 calls, {events} in {period_us} us");
            }
        }
    }

    #[test]
    fn far_times_saturate() {
        let expiry = Expiry { needed_until_us: u64::MAX, in_use_us: u64::MAX };
        let latest_ms = u64::MAX.div_ceil(1_000) + GRACE_MS + u64::MAX / 1_000;
        assert_eq!(expiry.new_expires_at_ms(None, Some(u64::MAX)), Some(latest_ms));
        assert_eq!(expiry.new_expires_at_ms(None, Some(latest_ms)), None);
    }
}

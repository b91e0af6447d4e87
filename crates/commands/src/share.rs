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
//! What can be had at once is rounded down, so the shares of all processes together are never more than the limit, with one
//! exception: it is at least 1, or a limit would admit nothing where there are more processes than it has units. A limit of 0
//! stays 0. The number of a rate for each period is not rounded: where it would be no whole number the period is made longer.
//! LEAVE is rounded up. Quantities, waits and leases stay as they are.

use engine::period::MAX_PERIOD_MS;

/// A part of the whole: `part` of `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u32,
    whole: u32,
}

impl Share {
    /// All of it.
    pub const ALL: Share = Share { part: 1, whole: 1 };

    /// `part` of `whole`; `None` unless it is above 0 and at most all of it.
    pub fn new(part: u32, whole: u32) -> Option<Share> {
        (part > 0 && part <= whole).then_some(Share { part, whole })
    }

    /// The share that a number from a program says: 0.25 is 1 of 4, and what comes next to a third is 1 of 3. The whole is up
    /// to 10,000; a number that is no such fraction is rounded down. `None` unless it is from 1/10,000 to 1.
    pub fn nearest(share: f64) -> Option<Share> {
        const MOST: u32 = 10_000;
        if !(share > 0.0 && share <= 1.0) {
            return None;
        }
        let exact = (1..=MOST).find_map(|whole| {
            let part = share * f64::from(whole);
            let is_near = (part - part.round()).abs() < 1e-9 * f64::from(whole);
            (is_near && part.round() >= 1.0).then(|| Share::new(part.round() as u32, whole))?
        });
        exact.or_else(|| Share::new((share * f64::from(MOST)) as u32, MOST))
    }

    /// The share of a limit, which is the most that can be had at once.
    #[inline]
    pub(crate) fn of_limit(self, limit: u64) -> u64 {
        self.floor(limit).max(limit.min(1))
    }

    /// The share of what LEAVE keeps for others.
    #[inline]
    pub(crate) fn of_leave(self, leave: u64) -> u64 {
        let leave = u128::from(leave).saturating_mul(self.part.into());
        u64::try_from(leave.div_ceil(u128::from(self.whole).max(1))).unwrap_or(u64::MAX)
    }

    /// The share of `count` in each `period_ms`, as a count and a period.
    #[inline]
    pub(crate) fn of_rate(self, count: u64, period_ms: u64) -> (u64, u64) {
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
mod tests {
    use super::*;
    use crate::memory::{MemoryServer, Outcome};

    const NOW_US: u64 = 1_795_223_799_544_558;

    /// A server with a share of the policies in `policies`.
    fn server(part: u32, whole: u32, policies: &str) -> MemoryServer {
        let share = Share::new(part, whole).unwrap();
        let mut server = MemoryServer::with_share(share, |bytes| bytes.fill(7));
        server.set(b"policies", policies.as_bytes()).unwrap();
        server
    }

    /// The replies to a call that is made again and again, and to a look at its key in between.
    fn replies(mut server: MemoryServer, line: &str) -> Vec<Outcome> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        (0..5).map(|_| server.call(&words, NOW_US)).collect()
    }

    /// Checks that a share of this line is answered as `is` is without shares.
    #[track_caller]
    fn check(part: u32, whole: u32, line: &str, is: &str) {
        let shared = replies(server(part, whole, ""), line);
        assert_eq!(shared, replies(server(1, 1, ""), is), "{line}");
    }

    #[test]
    fn a_limit_is_rounded_down_but_stays_at_least_one() {
        for (line, is) in [
            ("RL.WINDOW k 10 60", "RL.WINDOW k 2 60"),
            ("RL.WINDOW k 3 60", "RL.WINDOW k 1 60"),
            ("RL.WINDOW k 0 60", "RL.WINDOW k 0 60"),
            ("rl.window_ro k 400 1mo 7 FIXED MS", "rl.window_ro k 100 1mo 7 FIXED MS"),
            ("RL.ACQUIRE k 5 0 1 ID LEAVE LEAVE 2", "RL.ACQUIRE k 1 0 1 ID LEAVE LEAVE 1"),
            ("RL.WINDOW k many 60", "RL.WINDOW k many 60"),
        ] {
            check(1, 4, line, is);
        }
    }

    #[test]
    fn a_rate_keeps_its_number_for_each_time_exactly() {
        for (line, is) in [
            // 16 at once and 30 a minute: 4 at once and 30 in four minutes.
            ("RL.THROTTLE k 15 30 60 1 MS", "RL.THROTTLE k 3 30 240000ms 1 MS"),
            ("RL.THROTTLE k 15 40 60 1 MS", "RL.THROTTLE k 3 10 60 1 MS"),
            ("RL.THROTTLE_RO k 0 1 500ms", "RL.THROTTLE_RO k 0 1 2000ms"),
            ("RL.THROTTLE k 0 1 60y", "RL.THROTTLE k 0 1 60y"),
            ("RL.THROTTLE k 0 7 30000d", "RL.THROTTLE k 0 1 30000d"),
        ] {
            check(1, 4, line, is);
        }
        check(2, 3, "RL.THROTTLE k 8 5 1s 3 MS", "RL.THROTTLE k 5 10 3000ms 3 MS");
    }

    #[test]
    fn each_clause_and_each_policy_is_scaled() {
        let all = "RL.ALL 2 WINDOW @x WINDOW 60 1min 2 LEAVE 6 ELSE ACQUIRE 8 0 1 ID WINDOW MS";
        let is = "RL.ALL 2 WINDOW @x WINDOW 15 1min 2 LEAVE 2 ELSE ACQUIRE 2 0 1 ID WINDOW MS";
        check(1, 4, all, is);
        let policies = "free THROTTLE 15 30 60;; day  WINDOW 9 1d FIXED TZ UTC BAN 5 SHADOW";
        let is = "free THROTTLE 7 15 60; ; day WINDOW 4 1d FIXED TZ UTC BAN 5 SHADOW";
        for line in ["RL.THROTTLE k @free 3 MS", "RL.WINDOW k @day 3"] {
            let shared = replies(server(1, 2, policies), line);
            assert_eq!(shared, replies(server(1, 1, is), line), "{line}");
        }
        // They are shown as they were set.
        assert_eq!(server(1, 2, policies).get(b"policies").unwrap(), policies.as_bytes());
    }

    #[test]
    fn a_share_is_above_nothing_and_at_most_all() {
        assert_eq!(
            [(0, 4), (5, 4), (0, 0)].map(|(part, whole)| Share::new(part, whole)),
            [None; 3]
        );
        check(4, 4, "RL.THROTTLE k 15 30 60 1", "RL.THROTTLE k 15 30 60 1");
    }

    #[test]
    fn a_number_is_the_nearest_fraction_or_rounded_down() {
        let share = |number: f64| Share::nearest(number).map(|share| (share.part, share.whole));
        for (number, fraction) in [
            (0.25, (1, 4)),
            (1.0 / 3.0, (1, 3)),
            (0.333_333_333, (1, 3)),
            (0.666_666_667, (2, 3)),
            (0.333, (333, 1_000)),
            (2.0 / 7.0, (2, 7)),
            (1.0, (1, 1)),
            (1.0 / 10_000.0, (1, 10_000)),
            (0.123_456_789, (1_234, 10_000)),
        ] {
            assert_eq!(share(number), Some(fraction), "{number}");
        }
        let none = [0.0, -0.5, 1.000_1, 1.5, 1e-5, f64::NAN, f64::INFINITY].map(share);
        assert_eq!(none, [None; 7]);
    }

    /// The shares of all processes together admit no more than the limit, where it has a unit for each.
    #[test]
    fn all_shares_together_are_never_more_than_the_limit() {
        for whole in 1..=20_u32 {
            for limit in whole..=60 {
                let each = Share::new(1, whole).unwrap().of_limit(limit.into());
                assert!(
                    each * u64::from(whole) <= u64::from(limit),
                    "{each} of {limit} for 1/{whole}"
                );
            }
        }
    }
}

//! The demand for a limit: how much to reserve, and when.

use super::{MS, NEVER_YET};

/// The next batch is fetched this many round trips plus `AHEAD_NS` before it is needed, but at most `MAX_AHEAD` of a lease.
pub(super) const AHEAD_ROUND_TRIPS: f64 = 2.0;
pub(super) const AHEAD_NS: i64 = 2 * MS;
pub(super) const MAX_AHEAD: f64 = 0.25;

/// Returns the quantity to reserve: what is `expected` to be spent within half a lease, and at least what is `needed`. It is
/// at most the limit, and twice the limit divided by the number of `reservations` in the key. Before the first reply, when
/// `limit` is `None`, it is what is needed.
pub(super) fn batch_size(expected: f64, needed: u64, limit: Option<u64>, reservations: u64) -> u64 {
    let needed = needed.max(1);
    let Some(limit) = limit else { return needed };
    let fair_share = limit.saturating_mul(2).checked_div(reservations).unwrap_or(limit);
    // `as` saturates.
    needed.max((expected.ceil() as u64).min(fair_share).min(limit))
}

#[derive(Clone, Debug)]
pub(super) struct Demand {
    lease_ns: i64,
    /// The quantity that is asked for in each nanosecond, as a moving average over a lease.
    rate: f64,
    updated_at_ns: i64,
    /// The quantity since the last update.
    pub asked: u64,
    /// The time of the last take.
    pub asked_at_ns: i64,
    /// The time from a request to its reply, as a moving average.
    round_trip_ns: f64,
}

impl Demand {
    pub fn new(lease_ns: i64, now_ns: i64) -> Demand {
        Demand {
            lease_ns,
            rate: 0.0,
            updated_at_ns: now_ns,
            asked: 0,
            asked_at_ns: NEVER_YET,
            round_trip_ns: MS as f64,
        }
    }

    pub fn update(&mut self, now_ns: i64) {
        // The clock of a test may go back.
        let passed = now_ns.saturating_sub(self.updated_at_ns).max(0) as f64;
        let lease = self.lease_ns as f64;
        // The old average counts for e times less after each lease. What was asked for counts as spread evenly over the time
        // since the last update.
        let weight = (-passed / lease).exp();
        let asked = self.asked as f64;
        let more = if passed > 0.0 { asked * (1.0 - weight) / passed } else { asked / lease };
        self.rate = self.rate * weight + more;
        self.asked = 0;
        self.updated_at_ns = now_ns;
    }

    pub fn record_round_trip(&mut self, passed_ns: i64) {
        self.round_trip_ns += (passed_ns as f64 - self.round_trip_ns) / 8.0;
    }

    /// Returns the end of the first lease without a take.
    pub fn idle_at_ns(&self) -> i64 {
        self.asked_at_ns.saturating_add(self.lease_ns)
    }

    /// Returns how long before it is needed a batch is fetched.
    pub fn ahead_ns(&self) -> f64 {
        let wanted = AHEAD_ROUND_TRIPS * self.round_trip_ns + AHEAD_NS as f64;
        wanted.min(self.lease_ns as f64 * MAX_AHEAD)
    }

    /// Returns the quantity that is expected to be spent until the next batch arrives.
    pub fn refill_at(&self) -> u64 {
        (self.rate * self.ahead_ns()) as u64
    }

    /// Returns the quantity that is expected to be asked for within half a lease.
    pub fn expected(&self) -> f64 {
        self.rate * self.lease_ns as f64 / 2.0
    }
}

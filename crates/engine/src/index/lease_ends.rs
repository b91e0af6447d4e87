//! Counts the leases of a key that have ended.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The ends of all leases of a key, and the number of those before one moment.
#[derive(Debug, Default)]
pub struct LeaseEnds {
    /// The number of leases that end at each time.
    at: BTreeMap<u64, usize>,
    as_of_us: u64,
    /// The number of leases that have ended by then.
    ended: usize,
}

impl LeaseEnds {
    pub fn bytes(&self) -> usize {
        /// The bytes of a time and a number, in nodes that are at least half full.
        const PER_END: usize = 32;
        self.at.len().saturating_mul(PER_END)
    }

    pub fn insert(&mut self, lease_end_us: u64) {
        let number = self.at.entry(lease_end_us).or_default();
        *number = number.saturating_add(1);
        self.ended = self.ended.saturating_add(usize::from(lease_end_us <= self.as_of_us));
    }

    pub fn remove(&mut self, lease_end_us: u64) {
        if let Some(number) = self.at.get_mut(&lease_end_us) {
            *number = number.saturating_sub(1);
            if *number == 0 {
                self.at.remove(&lease_end_us);
            }
            self.ended = self.ended.saturating_sub(usize::from(lease_end_us <= self.as_of_us));
        }
    }

    /// Returns the number of leases that have ended at `now_us`. Each end is passed only once, unless the clock is set back.
    pub fn count_ended(&mut self, now_us: u64) -> usize {
        use std::ops::Bound::{Excluded, Included};
        let before_us = self.as_of_us;
        let between = |from, to| self.at.range((Excluded(from), Included(to))).map(|(_, n)| n);
        self.ended = match now_us.cmp(&before_us) {
            Ordering::Greater => self.ended.saturating_add(between(before_us, now_us).sum()),
            Ordering::Less => self.ended.saturating_sub(between(now_us, before_us).sum()),
            Ordering::Equal => self.ended,
        };
        self.as_of_us = now_us;
        self.ended
    }
}

//! The books of a world: the grants and their times, without any state of the engine.

use super::{BookKind, WorldKey};

/// A quantity that was granted, and the time by `forward_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Grant {
    pub(super) forward_us: u64,
    pub(super) units: u64,
}

/// A reservation that a client was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BookedLease {
    pub(super) client: usize,
    pub(super) quantity: u64,
    pub(super) length_us: u64,
    /// The time until which it holds at least, by `forward_us`.
    pub(super) held_until_us: u64,
    /// The time after its lease for which it holds (COUNTLAPSED).
    pub(super) after_us: u64,
    /// The latest end of its lease, by `real_us`.
    pub(super) over_at_us: u64,
    /// The time from which its holder spends nothing, by `real_us`.
    pub(super) spend_until_us: u64,
    pub(super) spent: u64,
}

/// A ban of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BanBook {
    /// The time until which nothing is taken, by `forward_us`.
    pub(super) until_us: u64,
    /// A grant followed, or nothing counted after the ban.
    pub(super) may_again: bool,
}

/// The books of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Books {
    pub(super) grants: Vec<Grant>,
    /// The time at which the first event opened the window, and the sum of the grants in it.
    pub(super) opened: Option<(u64, u64)>,
    /// The time at which a bucket is full: microseconds by `forward_us`, times the rate's count.
    pub(super) full_at: u64,
    pub(super) leases: Vec<BookedLease>,
    pub(super) banned: Option<BanBook>,
    /// The quantities that holders spent of their reservations, and those that calls took.
    pub(super) spent: Vec<Grant>,
}

fn sum(grants: &[Grant], after_us: u64) -> u64 {
    grants.iter().filter(|grant| grant.forward_us > after_us).map(|grant| grant.units).sum()
}

impl Books {
    /// Returns the quantity that is certainly held.
    pub(super) fn held(&self, forward_us: u64) -> u64 {
        let live = self.leases.iter().filter(|lease| lease.held_until_us > forward_us);
        live.map(|lease| lease.quantity).sum()
    }

    /// Returns the sum that counts in a window, without reservations.
    pub(super) fn counted(&self, key: &WorldKey, forward_us: u64) -> u64 {
        match key.kind {
            BookKind::Sliding => sum(&self.grants, forward_us.saturating_sub(key.period_us)),
            BookKind::Fixed => sum(&self.grants, 0),
            BookKind::First => self.opened.map_or(0, |(_, sum)| sum),
            BookKind::Bucket(_) | BookKind::Semaphore => 0,
        }
    }

    /// Returns the client's lease.
    pub(super) fn lease_mut(&mut self, client: usize) -> Option<&mut BookedLease> {
        self.leases.iter_mut().find(|lease| lease.client == client)
    }

    /// Notes that a quantity was spent. Returns the quantity that was spent in one period.
    pub(super) fn spend(&mut self, key: &WorldKey, forward_us: u64, units: u64) -> u64 {
        self.spent.push(Grant { forward_us, units });
        sum(&self.spent, forward_us.saturating_sub(key.period_us))
    }

    /// Notes a grant. Returns whether it was within the limit.
    pub(super) fn grant(
        &mut self,
        key: &WorldKey,
        forward_us: u64,
        units: u64,
        go_after_us: u64,
        force: bool,
    ) -> bool {
        match key.kind {
            BookKind::Sliding | BookKind::Fixed => self.grants.push(Grant { forward_us, units }),
            BookKind::First => self.opened.get_or_insert((forward_us, 0)).1 += units,
            BookKind::Bucket(count) => {
                self.full_at = self.full_at.max(forward_us * count) + units * key.period_us;
                let latest = (forward_us + go_after_us) * count + key.max * key.period_us;
                return force || self.full_at <= latest;
            }
            BookKind::Semaphore => return true,
        }
        force || self.counted(key, forward_us) + self.held(forward_us) <= key.max
    }

    /// Notes that a quantity was given back when the key counted `counted`. The oldest grants shrink first.
    pub(super) fn give_back(&mut self, key: &WorldKey, forward_us: u64, amount: u64, counted: u64) {
        match key.kind {
            BookKind::Sliding | BookKind::Fixed => {
                let known: u64 = self.grants.iter().map(|grant| grant.units).sum();
                // The key may count events that are older than all grants here, or have dropped events that are still here.
                let mut left = amount.min(counted).saturating_sub(counted.saturating_sub(known));
                let mut older = known.saturating_sub(counted);
                for grant in &mut self.grants {
                    let stays = older.min(grant.units);
                    older -= stays;
                    let goes = left.min(grant.units - stays);
                    grant.units -= goes;
                    left -= goes;
                }
                self.grants.retain(|grant| grant.units > 0);
            }
            BookKind::First => {
                if let Some((_, sum)) = &mut self.opened {
                    *sum = sum.saturating_sub(amount);
                }
            }
            BookKind::Bucket(count) => {
                let full = forward_us * count;
                let full_at = self.full_at.saturating_sub(amount * key.period_us);
                self.full_at = full_at.max(full);
            }
            BookKind::Semaphore => {}
        }
    }

    /// Notes that a call saw the key: every lease ends at most one lease from now.
    pub(super) fn heal(&mut self, real_us: u64) {
        for lease in &mut self.leases {
            lease.over_at_us = lease.over_at_us.min(real_us + lease.length_us);
        }
    }

    /// Drops grants that can no longer matter.
    pub(super) fn forget(&mut self, key: &WorldKey, forward_us: u64) {
        let after_us = forward_us.saturating_sub(key.period_us);
        if key.kind == BookKind::Sliding {
            self.grants.retain(|grant| grant.forward_us > after_us);
        }
        self.spent.retain(|grant| grant.forward_us > after_us);
        if let BookKind::Bucket(count) = key.kind {
            // All times at which a bucket is full are equivalent.
            if self.full_at <= forward_us * count {
                self.full_at = 0;
            }
        }
    }
}

//! What the live reservations of a key hold, in the order in which they stop holding: most of them at the end of their lease,
//! and those with COUNTLAPSED later.

use super::reservation::Reservation;

/// The lease of one live reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// When it stops holding, in Unix microseconds.
    pub gone_us: u64,
    /// How much is given back then.
    pub quantity: u64,
}

impl Lease {
    /// The lease of a reservation, as it is seen at one moment.
    pub fn of(seen: &Reservation) -> Lease {
        Lease { gone_us: seen.gone_us, quantity: seen.quantity }
    }
}

/// The result of [`Leases::first_end`]: when that lease ends, and what those before it hold.
pub type FirstEnd = (Option<u64>, u128);

/// Live leases.
pub trait Leases {
    /// The sum of their quantities.
    fn total(&self) -> u128;
    /// When the last of them ends; `None` if there is none.
    fn last_end_us(&self) -> Option<u64>;
    /// The first lease, in the order of their ends, for which `enough` is true of its end and of what has lapsed by then,
    /// itself included. `enough` stays true once it is. Without such a lease the second part is all that is held.
    fn first_end<E>(&self, enough: impl FnMut(u64, u128) -> Result<bool, E>)
        -> Result<FirstEnd, E>;
}

/// Leases in a sorted list: for the few that most keys hold.
#[derive(Debug, Default)]
pub struct SortedLeases {
    leases: Vec<Lease>,
}

impl SortedLeases {
    /// Adds a lease.
    pub fn add(&mut self, lease: Lease) {
        let at = self.leases.partition_point(|other| *other <= lease);
        self.leases.insert(at, lease);
    }

    /// Removes a lease.
    pub fn remove(&mut self, lease: Lease) {
        if let Ok(at) = self.leases.binary_search(&lease) {
            self.leases.remove(at);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }
}

impl FromIterator<Lease> for SortedLeases {
    fn from_iter<T: IntoIterator<Item = Lease>>(leases: T) -> SortedLeases {
        let mut leases: Vec<Lease> = leases.into_iter().collect();
        leases.sort_unstable();
        SortedLeases { leases }
    }
}

impl Leases for SortedLeases {
    fn total(&self) -> u128 {
        self.leases.iter().map(|lease| u128::from(lease.quantity)).sum()
    }

    fn last_end_us(&self) -> Option<u64> {
        self.leases.last().map(|lease| lease.gone_us)
    }

    fn first_end<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstEnd, E> {
        let mut lapsed: u128 = 0;
        for lease in &self.leases {
            let with_it = lapsed.saturating_add(u128::from(lease.quantity));
            if enough(lease.gone_us, with_it)? {
                return Ok((Some(lease.gone_us), lapsed));
            }
            lapsed = with_it;
        }
        Ok((None, lapsed))
    }
}

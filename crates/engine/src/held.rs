//! The quantities that live reservations hold, in the order in which they stop holding: most at the end of their lease, and
//! those with COUNTLAPSED later.

use crate::reservation::Reservation;

/// The quantity that one live reservation holds, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// The time at which it stops holding, in Unix microseconds.
    pub gone_us: u64,
    /// The quantity that it takes from the limit until then.
    pub quantity: u64,
}

impl Hold {
    /// Returns the hold of a reservation as it is seen at one moment.
    pub fn of<I, R>(seen: &Reservation<I, R>) -> Hold {
        Hold { gone_us: seen.gone_us, quantity: seen.quantity }
    }
}

/// The result of [`Holds::first_gone`]: the time at which that reservation is gone, and the sum of those before it.
pub type FirstGone = (Option<u64>, u128);

/// The quantities that live reservations hold.
pub trait Holds {
    /// Returns their sum.
    fn total(&self) -> u128;

    /// Returns the time at which the last reservation is gone. `None` if there is none.
    fn last_gone_us(&self) -> Option<u64>;

    /// Returns the first reservation, in the order in which they are gone, for which `enough` is true. `enough` gets the
    /// time at which it is gone and the sum of all that are gone by then, and stays true once it is. If there is no such
    /// reservation, the sum is that of all.
    fn first_gone<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E>;
}

/// A sorted list, for the few reservations that most keys hold.
#[derive(Debug, Default)]
pub struct SortedHolds {
    holds: Vec<Hold>,
}

impl SortedHolds {
    /// Adds a hold.
    pub fn add(&mut self, hold: Hold) {
        let at = self.holds.partition_point(|other| *other <= hold);
        self.holds.insert(at, hold);
    }

    /// Removes a hold.
    pub fn remove(&mut self, hold: Hold) {
        if let Ok(at) = self.holds.binary_search(&hold) {
            self.holds.remove(at);
        }
    }

    /// Returns the number of holds.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Returns whether there are no holds.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }
}

impl FromIterator<Hold> for SortedHolds {
    fn from_iter<T: IntoIterator<Item = Hold>>(holds: T) -> SortedHolds {
        let mut holds: Vec<Hold> = holds.into_iter().collect();
        holds.sort_unstable();
        SortedHolds { holds }
    }
}

impl Holds for SortedHolds {
    fn total(&self) -> u128 {
        self.holds.iter().map(|hold| u128::from(hold.quantity)).sum()
    }

    fn last_gone_us(&self) -> Option<u64> {
        self.holds.last().map(|hold| hold.gone_us)
    }

    fn first_gone<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstGone, E> {
        let mut gone: u128 = 0;
        for hold in &self.holds {
            let with_it = gone.saturating_add(u128::from(hold.quantity));
            if enough(hold.gone_us, with_it)? {
                return Ok((Some(hold.gone_us), gone));
            }
            gone = with_it;
        }
        Ok((None, gone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_holds_nothing() {
        let hold = |gone_us, quantity| Hold { gone_us, quantity };
        let mut holds: SortedHolds = [hold(9, 2), hold(5, 1), hold(7, 4)].into_iter().collect();
        holds.remove(hold(7, 4));
        // There is none of this.
        holds.remove(hold(9, 1));
        assert_eq!((holds.len(), holds.total(), holds.last_gone_us()), (2, 3, Some(9)));
        assert!(!holds.is_empty());
        // What is added has its place in the order.
        holds.add(hold(7, 4));
        let found = holds.first_gone(|_, gone| Ok::<bool, ()>(gone >= 2));
        assert_eq!((found, holds.last_gone_us()), (Ok((Some(7), 1)), Some(9)));
        holds.remove(hold(7, 4));
        holds.remove(hold(5, 1));
        holds.remove(hold(9, 2));
        assert!(holds.is_empty());
        assert_eq!((holds.total(), holds.last_gone_us()), (0, None));
    }
}

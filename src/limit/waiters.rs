//! Calls that wait, first come, first served.
//!
//! ```text
//! join -> [ 7 | 9 | 12 | 15 ]   tickets rise, so the order of tickets is the order of arrival
//!           ^ head: the only one that is tried; the rest cost nothing until it has gone
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// Names a waiter. A later one is larger.
pub type Ticket = u64;

/// The waiters on one key. Everything is O(log n).
#[derive(Debug, Default)]
pub struct Queue {
    waiters: BTreeMap<Ticket, Option<u64>>,
    deadlines: BTreeSet<(u64, Ticket)>,
}

impl Queue {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Adds a waiter who gives up at `deadline_us` (`None`: never). Its ticket is larger than all before it.
    pub fn join(&mut self, ticket: Ticket, deadline_us: Option<u64>) {
        self.deadlines.extend(deadline_us.map(|deadline_us| (deadline_us, ticket)));
        self.waiters.insert(ticket, deadline_us);
    }

    /// Who came first.
    pub fn head(&self) -> Option<Ticket> {
        self.waiters.first_key_value().map(|(ticket, _)| *ticket)
    }

    /// Takes a waiter out, wherever it stands; whether it was there.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        let Some(deadline_us) = self.waiters.remove(&ticket) else { return false };
        if let Some(deadline_us) = deadline_us {
            self.deadlines.remove(&(deadline_us, ticket));
        }
        true
    }

    /// A waiter whose deadline has come at `now_us`, the most overdue first.
    pub fn overdue(&self, now_us: u64) -> Option<Ticket> {
        self.deadlines.first().filter(|(due_us, _)| *due_us <= now_us).map(|(_, ticket)| *ticket)
    }

    /// Whether this waiter's deadline has come at `now_us`.
    pub fn is_overdue(&self, ticket: Ticket, now_us: u64) -> bool {
        let deadline_us = self.waiters.get(&ticket).copied().flatten();
        deadline_us.is_some_and(|deadline_us| deadline_us <= now_us)
    }

    /// The next deadline of anyone.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_us, _)| *deadline_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_come_is_the_head_until_it_leaves() {
        let mut queue = Queue::default();
        for ticket in [3, 5, 8] {
            queue.join(ticket, None);
        }
        assert_eq!(queue.head(), Some(3));
        assert!(queue.leave(5));
        assert_eq!(queue.head(), Some(3));
        assert!(queue.leave(3));
        assert_eq!(queue.head(), Some(8));
        assert!(!queue.leave(3));
        assert!(queue.leave(8));
        assert!(queue.is_empty() && queue.head().is_none());
    }

    #[test]
    fn deadlines_come_in_their_own_order_and_go_with_their_waiter() {
        let mut queue = Queue::default();
        queue.join(1, Some(300));
        queue.join(2, Some(100));
        queue.join(3, None);
        queue.join(4, Some(100));
        assert_eq!(queue.next_deadline_us(), Some(100));
        assert_eq!(queue.overdue(99), None);
        assert_eq!(queue.overdue(100), Some(2));
        queue.leave(2);
        assert_eq!(queue.overdue(100), Some(4));
        queue.leave(4);
        assert_eq!(queue.overdue(299), None);
        assert_eq!(queue.next_deadline_us(), Some(300));
        queue.leave(1);
        assert_eq!((queue.overdue(u64::MAX), queue.next_deadline_us()), (None, None));
        assert_eq!(queue.head(), Some(3));
    }
}

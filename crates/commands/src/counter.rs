//! Numbers that only grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that is only changed under the server's lock, so it does without the cost of an atomic read-modify-write. A
/// crash report may read it in another thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    pub fn add(&self, number: u64) {
        self.0.store(self.get().wrapping_add(number), Ordering::Relaxed);
    }

    /// Returns the sum of all numbers that were added.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

//! Numbers that are counted up.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that is written under the server's lock, so that no atomic read-modify-write is paid for. A crash report may
/// read it in another thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `by`.
    pub fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    /// Returns the present number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

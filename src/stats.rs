//! Counters for INFO.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only the main thread writes: no atomic read-modify-write is paid for.
#[derive(Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `by`.
    pub fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    /// The present number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What became of the calls of one command since the module was loaded.
#[derive(Debug)]
pub struct CommandStats {
    /// Calls that were allowed, or only looked.
    pub allowed: Counter,
    /// Calls that were denied.
    pub denied: Counter,
    /// Calls that were answered with an error.
    pub errors: Counter,
}

impl CommandStats {
    /// All zero.
    pub const fn new() -> CommandStats {
        CommandStats { allowed: Counter::new(), denied: Counter::new(), errors: Counter::new() }
    }
}

/// Reservations that RL.APPLY turned into events.
pub static APPLIED: Counter = Counter::new();
/// Reservations that RL.RELEASE gave back.
pub static RELEASED: Counter = Counter::new();
/// Reservations that lapsed and were cleared away.
pub static LAPSED: Counter = Counter::new();

//! Counters for INFO.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that is written under the server's lock, so that no atomic read-modify-write is paid for. A crash report may
/// read it in another thread.
#[derive(Debug, Default)]
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

    /// Counts the end of a call. This is the only place where calls are counted.
    pub fn count<E>(&self, result: &Result<CallResult, E>) {
        match result {
            Ok(CallResult::Allowed) => self.allowed.add(1),
            Ok(CallResult::Denied) => self.denied.add(1),
            Ok(CallResult::Later) => {}
            Err(_) => self.errors.add(1),
        }
    }
}

/// What a call was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CallResult {
    /// It was allowed, or only looked.
    Allowed,
    /// It was denied.
    Denied,
    /// Nothing yet: it waits.
    Later,
}

impl CallResult {
    /// Allowed or denied.
    pub fn of(allowed: bool) -> CallResult {
        if allowed {
            CallResult::Allowed
        } else {
            CallResult::Denied
        }
    }
}

/// Reservations that RL.APPLY turned into events.
pub static APPLIED: Counter = Counter::new();
/// Reservations that RL.RELEASE, or RL.APPLY with 0, gave back.
pub static RELEASED: Counter = Counter::new();
/// Reservations that lapsed and were cleared away.
pub static LAPSED: Counter = Counter::new();
/// Calls that waited and were allowed.
pub static WAITED_GRANTED: Counter = Counter::new();
/// Calls that waited until their time was up, or until CLIENT UNBLOCK.
pub static WAITED_TIMED_OUT: Counter = Counter::new();

//! Counters for INFO.

use commands::counter::Counter;
use commands::reply::CallResult;
use commands::table::COMMANDS;

/// Counters of the calls of one command since the module was loaded, by how they ended.
#[derive(Debug)]
pub struct CommandStats {
    /// Calls that were allowed, looks that found that a call would be, calls that settled or renewed a reservation, and
    /// reports.
    pub allowed: Counter,
    /// Calls that were denied, looks that found that a call would be, and calls that found no reservation to settle or
    /// renew.
    pub denied: Counter,
    /// Calls that returned an error.
    pub errors: Counter,
}

impl CommandStats {
    /// Counters at zero.
    pub const fn new() -> CommandStats {
        CommandStats { allowed: Counter::new(), denied: Counter::new(), errors: Counter::new() }
    }

    /// Counts a call by how it ended. This is the only place where calls are counted for INFO.
    pub fn count<E>(&self, result: &Result<CallResult, E>) {
        match result {
            Ok(CallResult::Allowed) => self.allowed.add(1),
            Ok(CallResult::Denied) => self.denied.add(1),
            Ok(CallResult::Later) => {}
            Err(_) => self.errors.add(1),
        }
    }
}

/// The counters of each command, in the order of the table.
pub static BY_COMMAND: [CommandStats; COMMANDS.len()] =
    [const { CommandStats::new() }; COMMANDS.len()];

/// Reservations that RL.APPLY turned into events.
pub static APPLIED: Counter = Counter::new();
/// Reservations that RL.RELEASE, or RL.APPLY with 0, released.
pub static RELEASED: Counter = Counter::new();
/// Reservations that were dropped because they were gone. INFO calls them lapsed.
pub static LAPSED: Counter = Counter::new();
/// Calls that waited and were allowed.
pub static WAITED_GRANTED: Counter = Counter::new();
/// Calls that waited until their timeout or CLIENT UNBLOCK.
pub static WAITED_TIMED_OUT: Counter = Counter::new();

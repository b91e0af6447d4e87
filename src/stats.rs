//! Counters for INFO. A crash report reads them in any thread.

use commands::counter::Counter;
use commands::reply::CallResult;
use commands::table::COMMANDS;

#[derive(Default)]
pub struct Stats {
    /// The counters of each command, in the order of the table.
    pub by_command: [CommandStats; COMMANDS.len()],
    /// Reservations that RL.APPLY turned into events.
    pub applied: Counter,
    /// Reservations that RL.RELEASE, or RL.APPLY with 0, released.
    pub released: Counter,
    /// Reservations that were dropped because they were gone. INFO calls them lapsed.
    pub lapsed: Counter,
    /// Calls that waited and were allowed.
    pub waited_granted: Counter,
    /// Calls that waited until their timeout or CLIENT UNBLOCK.
    pub waited_timed_out: Counter,
}

/// Counters of the calls of one command, by how they ended.
#[derive(Default)]
pub struct CommandStats {
    /// Calls that were allowed, looks that found that a call would be, calls that settled or renewed a reservation, and
    /// reports.
    pub allowed: Counter,
    /// Calls that were denied, looks that found that a call would be, and calls that found no reservation to settle or
    /// renew.
    pub denied: Counter,
    pub errors: Counter,
}

impl CommandStats {
    /// Counts a call by how it ended. This is the only place where calls are counted for INFO.
    pub fn count<E>(&self, result: &Result<CallResult, E>) {
        match result {
            Ok(CallResult::Allowed) => self.allowed.add(1),
            Ok(CallResult::Denied) => self.denied.add(1),
            Ok(CallResult::Waits) => {}
            Err(_) => self.errors.add(1),
        }
    }
}

//! Counters for INFO.

use commands::call::CallResult;
use commands::counter::Counter;
use commands::table::COMMANDS;

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

/// The numbers of each command, by its place in the table.
pub static BY_COMMAND: [CommandStats; COMMANDS.len()] =
    [const { CommandStats::new() }; COMMANDS.len()];

/// Reservations that RL.APPLY turned into events.
pub static APPLIED: Counter = Counter::new();
/// Reservations that RL.RELEASE, or RL.APPLY with 0, gave back.
pub static RELEASED: Counter = Counter::new();
/// Reservations that were gone and were dropped: INFO calls them lapsed.
pub static LAPSED: Counter = Counter::new();
/// Calls that waited and were allowed.
pub static WAITED_GRANTED: Counter = Counter::new();
/// Calls that waited until their time was up, or until CLIENT UNBLOCK.
pub static WAITED_TIMED_OUT: Counter = Counter::new();

/// Counts reservations that were dropped because they were gone.
#[inline]
pub fn count_lapsed(number: usize) {
    if number > 0 {
        LAPSED.add(u64::try_from(number).unwrap_or(0));
    }
}

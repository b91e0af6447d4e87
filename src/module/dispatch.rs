//! Passes the calls of the server to the commands.

use super::server_traits::ServerTraits;
use crate::call_end::{end_call, end_call_after_panic, ServerCommand};
use crate::redis::call::{entry, Call, Commands, EntryPoint};
use crate::state::State;
use commands::table::COMMANDS;

macro_rules! entries {
    ($($number:literal)*) => {
        [$({
            // A call of a command that has no row would get no reply.
            assert!($number < COMMANDS.len());
            entry::<CommandTable, $number>
        }),*]
    };
}

/// A C function for each row of the table.
pub const ENTRIES: [EntryPoint; COMMANDS.len()] = entries![0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];

struct CommandTable;

impl Commands for CommandTable {
    // Inlined into each entry, where the number of the command is known.
    #[inline(always)]
    fn run(call: &Call) {
        let Some(command) = ServerCommand::find(State::get(), call.command) else { return };
        if ServerTraits::for_command(command.row.command).keys.report_keys_if_asked(call) {
            return;
        }
        let result = commands::dispatch::run(command.row, call);
        end_call(call.ctx, command, result);
    }

    fn reply_to_panic(call: &Call) {
        end_call_after_panic(call.ctx, ServerCommand::find(State::get(), call.command));
    }
}

#[cfg(test)]
pub fn entry_of(name: &str) -> EntryPoint {
    let named = |row: &commands::table::CommandRow| row.name.to_bytes() == name.as_bytes();
    ENTRIES[COMMANDS.iter().position(named).unwrap()]
}

#[cfg(test)]
mod tests;

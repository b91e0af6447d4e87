//! Passes the calls of the server to the commands, and ends them: a call is counted, and an error is its reply.

use super::log::log_warning;
use super::server_traits::ServerTraits;
use crate::blocking;
use crate::redis::call::{entry, Call, CommandNumber, Commands, EntryPoint};
use crate::redis::context::Context;
use crate::redis::handlers::WaitNumber;
use crate::stats::{CommandStats, BY_COMMAND};
use commands::error::Error;
use commands::reply::{self, CallResult};
use commands::table::{CommandRow, COMMANDS};

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

/// The commands that the server calls.
struct CommandTable;

impl Commands for CommandTable {
    // Inlined into each entry, where the number of the command is known.
    #[inline(always)]
    fn run(call: &Call) {
        let Some(command) = find(call.command) else { return };
        if ServerTraits::for_command(command.row.command).keys.report_if_asked(call) {
            return;
        }
        let result = commands::dispatch::run(command.row, call);
        end_call(call.ctx, command, result);
    }

    fn reply_to_panic(call: &Call) {
        reply_to_panic(call.ctx, Some(call.command));
    }
}

/// Counts a call that panicked, and replies with an error. The guard has logged the panic.
fn reply_to_panic(ctx: Context, number: Option<CommandNumber>) {
    if let Some(command) = number.and_then(find) {
        command.stats.count(&Err(Error::internal()));
    }
    ctx.reply_error(&Error::internal().to_string());
}

/// A row of the table with its counters.
#[derive(Clone, Copy)]
struct ServerCommand {
    row: &'static CommandRow,
    /// Counters of its calls.
    stats: &'static CommandStats,
}

#[inline(always)]
fn find(CommandNumber(number): CommandNumber) -> Option<ServerCommand> {
    let (row, stats) = (COMMANDS.get(number)?, BY_COMMAND.get(number)?);
    Some(ServerCommand { row, stats })
}

/// Counts a call by how it ended, and replies with its error, if any. A bug of ours is logged.
fn end_call(ctx: Context, command: ServerCommand, result: Result<CallResult, Error>) {
    command.stats.count(&result);
    if let Err(error) = result {
        reply_error(ctx, command, error);
    }
}

// Out of line, because most calls end without an error.
#[cold]
#[inline(never)]
fn reply_error(ctx: Context, command: ServerCommand, error: Error) {
    if let Error::Internal(at) = error {
        let name = command.row.name.to_string_lossy();
        log_warning(ctx, &format!("internal error in {name} at {at}, please report it"));
    }
    match error {
        Error::Arity => ctx.reply_wrong_arity(),
        error => ctx.reply_error(&error.to_string()),
    }
}

/// Replies to a call that waited.
pub fn answer(ctx: Context, wait: WaitNumber) {
    // Before 7.2, CLIENT UNBLOCK asks again if we ended the wait in the same turn of the event loop.
    let Some((call, result)) = blocking::answer(ctx, wait) else { return };
    let Some(command) = find(call.command) else { return };
    let result = result.map(|decision| reply::write_call(&ctx, &call.call, &decision));
    end_call(ctx, command, result);
}

/// Replies to a call that waited, after [`answer`] has panicked.
pub fn answer_after_panic(ctx: Context, wait: WaitNumber) {
    reply_to_panic(ctx, blocking::command_of(wait));
}

/// Returns the entry of the command with this name.
#[cfg(test)]
pub fn entry_of(name: &str) -> EntryPoint {
    let named = |row: &CommandRow| row.name.to_bytes() == name.as_bytes();
    ENTRIES[COMMANDS.iter().position(named).unwrap()]
}

#[cfg(test)]
mod tests;

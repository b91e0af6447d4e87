//! The end of a call: it is counted for INFO, and an error becomes its reply.

use crate::log::log_warning;
use crate::redis::call::CommandNumber;
use crate::redis::context::Context;
use crate::state::State;
use crate::stats::CommandStats;
use commands::error::{CallError, Error};
use commands::reply::CallResult;
use commands::table::{CommandRow, COMMANDS};

#[derive(Clone, Copy)]
pub struct ServerCommand {
    pub row: &'static CommandRow,
    pub stats: &'static CommandStats,
}

impl ServerCommand {
    #[inline(always)]
    pub fn find(state: &'static State, CommandNumber(number): CommandNumber) -> Option<Self> {
        let (row, stats) = (COMMANDS.get(number)?, state.stats.by_command.get(number)?);
        Some(ServerCommand { row, stats })
    }
}

/// Counts a call by how it ended, and replies with its error, if any. A bug of ours is logged.
pub fn end_call(ctx: Context, command: ServerCommand, result: Result<CallResult, CallError>) {
    command.stats.count(&result);
    if let Err(error) = result {
        reply_error(ctx, command, error);
    }
}

// Out of line, because most calls end without an error.
#[cold]
#[inline(never)]
fn reply_error(ctx: Context, command: ServerCommand, error: CallError) {
    if let CallError::Plain(Error::Internal(at)) = error {
        let name = command.row.name.to_string_lossy();
        log_warning(ctx, &format!("internal error in {name} at {at}, please report it"));
    }
    match error {
        CallError::Plain(Error::Arity) => ctx.reply_wrong_arity(),
        error => ctx.reply_error(&error.to_string()),
    }
}

/// Counts a call that panicked, and replies with an error. The guard has logged the panic.
pub fn end_call_after_panic(ctx: Context, command: Option<ServerCommand>) {
    if let Some(command) = command {
        command.stats.count(&Err(Error::internal()));
    }
    ctx.reply_error(&Error::internal().to_string());
}

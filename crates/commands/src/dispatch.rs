//! From a command to its code.

use crate::all::all;
use crate::arguments::LimitKind;
use crate::call::ServerCall;
use crate::error::CallError;
use crate::inspect::info;
use crate::reply::CallResult;
use crate::report;
use crate::settle;
use crate::table::{Command, CommandRow};
use crate::take::take;
use engine::Mode;

/// Executes a call of the command in this row: replies to it, lets it wait, or returns an error.
///
/// # Errors
///
/// The error to reply to the client. The call takes nothing then, but waiters before it may have been granted, and a state
/// from the future may have been corrected.
#[inline(always)]
pub fn run<'a, C: ServerCall<'a>>(row: &CommandRow, call: &C) -> Result<CallResult, CallError> {
    let accepted = row.options;
    let result = match row.command {
        Command::All => return all(call, accepted, Mode::Final),
        Command::AllRo => return all(call, accepted, Mode::Look),
        Command::Take(kind) => take(call, kind, accepted, Mode::Final),
        Command::Look(kind) => take(call, kind, accepted, Mode::Look),
        Command::ClThrottle => take(call, LimitKind::Rate, accepted, Mode::Final),
        Command::Apply => settle::apply(call),
        Command::Release => settle::release(call),
        Command::Renew => settle::renew(call, accepted),
        Command::Held => settle::held(call),
        Command::Info => info(call),
        Command::Policies => report::policies(call),
        Command::Top => report::top_keys(call, accepted),
    };
    result.map_err(CallError::from)
}

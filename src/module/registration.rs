//! Registers the commands as the rows of their table describe them.

use super::command_docs::arguments;
use super::dispatch::ENTRIES;
use super::server_traits::ServerTraits;
use crate::log::log_warning;
use crate::redis::call::EntryPoint;
use crate::redis::context::Context;
use crate::redis::declaration::{Declaration, Description, KeyPositions};
use crate::state::State;
use commands::table::{Command, CommandRow, COMMANDS};
use std::ffi::CStr;

/// Registers the commands, CL.THROTTLE only if the settings ask for it. If the server has added the ACL `category`, they
/// become part of it.
pub fn register(state: &State, ctx: Context, category: Option<&CStr>) -> Result<(), String> {
    for (row, entry) in COMMANDS.iter().zip(ENTRIES).filter(|(row, _)| is_offered(state, row)) {
        register_command(ctx, row, entry, category)?;
    }
    Ok(())
}

fn is_offered(state: &State, row: &CommandRow) -> bool {
    row.command != Command::ClThrottle || state.cl_throttle.get()
}

/// Returns whether a command of the module has this name, in any case.
pub fn is_command(state: &State, name: &[u8]) -> bool {
    let mut rows = COMMANDS.iter().filter(|row| is_offered(state, row));
    rows.any(|row| name.eq_ignore_ascii_case(row.name.to_bytes()))
}

/// Registers a command. If the server or another module has one with this name, this is logged and the command left out.
fn register_command(
    ctx: Context,
    row: &'static CommandRow,
    entry: EntryPoint,
    category: Option<&CStr>,
) -> Result<(), String> {
    let ServerTraits { keys, flags, categories } = ServerTraits::for_command(row.command);
    let name = row.name.to_string_lossy();
    let create = |flags: &str| Declaration::create(ctx, row.name, entry, flags, keys);
    // Servers before 7.0 do not know the flag "blocking" and refuse the whole command.
    let created = create(flags).or_else(|| create(&flags.replace(" blocking", "")));
    let Some(created) = created else {
        let line = format!(
            "the command {name} is left out, as the server or another module has one of this name"
        );
        log_warning(ctx, &line);
        return Ok(());
    };
    let description = Description {
        summary: row.summary,
        complexity: row.complexity,
        since: row.since,
        arity: row.arity(),
        keys,
        arguments: arguments(row, keys),
    };
    if !created.describe(&description) {
        return Err(format!("the server refused the description of {name}"));
    }
    let mut categories = String::from(categories);
    // The commands for operators are not in the module's own category.
    if let Some(category) = category.filter(|_| keys != KeyPositions::None) {
        categories.extend([" ", &category.to_string_lossy()]);
    }
    created.categorize(&categories);
    Ok(())
}

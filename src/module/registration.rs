//! Registers the commands as the rows of their table describe them, and passes the server's calls to them.

use super::log::log_warning;
use crate::blocking;
use crate::config::CL_THROTTLE;
use crate::redis::call::{entry, Call, CommandNumber, Commands, EntryPoint};
use crate::redis::context::Context;
use crate::redis::declaration::{Argument, Declaration, Description, KeyAccess, Keys};
use crate::redis::handlers::WaitNumber;
use crate::stats::{CommandStats, BY_COMMAND};
use commands::call::CallResult;
use commands::dispatch::run;
use commands::error::Error;
use commands::options::{OptionRow, OptionSet, OptionValue};
use commands::reply;
use commands::table::{Command, CommandRow, Positional, COMMANDS};
use std::ffi::CStr;

macro_rules! entries {
    ($($number:literal)*) => { [$(entry::<CommandTable, $number>),*] };
}

/// The commands that the server calls.
pub struct CommandTable;

impl Commands for CommandTable {
    // Inlined into each entry, where the number of the command is known.
    #[inline(always)]
    fn run(call: &Call) {
        let Some(command) = find(call.command) else { return };
        if ServerTraits::for_command(command.row.command).keys.answer(call) {
            return;
        }
        let result = run(command.row, call);
        end_call(call.ctx, command, result);
    }

    fn reply_to_panic(call: &Call) {
        // The guard has logged the panic.
        let Some(command) = find(call.command) else { return };
        command.stats.count(&Err(Error::internal()));
        call.ctx.reply_error(&Error::internal().to_string());
    }
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
    // Before 7.2, CLIENT UNBLOCK asks again if we ended the wait in the same transaction.
    let Some((call, result)) = blocking::answer(ctx, wait) else { return };
    let Some(command) = find(call.command) else { return };
    let result = result.map(|decision| {
        reply::write(&ctx, &call.request, &decision);
        CallResult::from_allowed(decision.allowed())
    });
    end_call(ctx, command, result);
}

/// A C function for each row of the table.
const ENTRIES: [EntryPoint; COMMANDS.len()] = entries![0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];

/// Registers the commands, CL.THROTTLE only if the settings ask for it. If the server has added the ACL `category`, they
/// become part of it.
pub fn register(ctx: Context, category: Option<&CStr>) -> Result<(), String> {
    for (number, entry) in ENTRIES.into_iter().enumerate() {
        let is_asked =
            |one: &ServerCommand| one.row.command != Command::ClThrottle || CL_THROTTLE.get();
        if let Some(command) = find(CommandNumber(number)).filter(is_asked) {
            command.register(ctx, entry, category)?;
        }
    }
    Ok(())
}

impl ServerCommand {
    /// Registers the command. If the server or another module has one with this name, this is logged and the command left
    /// out.
    fn register(
        self,
        ctx: Context,
        entry: EntryPoint,
        category: Option<&CStr>,
    ) -> Result<(), String> {
        let row = self.row;
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
        if let Some(category) = category.filter(|_| keys != Keys::None) {
            categories.extend([" ", &category.to_string_lossy()]);
        }
        created.categorize(&categories);
        Ok(())
    }
}

/// Returns the arguments of a command after its name, as COMMAND DOCS shows them.
fn arguments(row: &CommandRow, keys: Keys) -> Vec<Argument> {
    let keys = match keys {
        Keys::None => vec![],
        Keys::First(_) => vec![Argument::key()],
        Keys::Counted(_) => vec![Argument::integer(c"numkeys"), Argument::key().multiple()],
    };
    let positional = row.positional.iter().flat_map(positional);
    keys.into_iter().chain(positional).chain(options(row.options)).collect()
}

/// What the server has to know about a command in addition to its row.
struct ServerTraits {
    /// The positions of the keys, and the command's access to them.
    keys: Keys,
    /// Flags of RedisModule_CreateCommand.
    flags: &'static str,
    /// The ACL categories that the server would derive from the flags for a command of its own.
    categories: &'static str,
}

impl ServerTraits {
    // Inlined into each entry, where the command is known and only the keys are used.
    #[inline(always)]
    fn for_command(command: Command) -> ServerTraits {
        use Keys::{Counted, First};
        let (keys, flags, categories) = match command {
            Command::Take(_) => {
                (First(KeyAccess::Update), "write deny-oom fast blocking", "write fast blocking")
            }
            Command::ClThrottle => (First(KeyAccess::Update), "write deny-oom fast", "write fast"),
            // Without deny-oom, because releasing must work when memory is short.
            Command::Apply | Command::Release | Command::Renew => {
                (First(KeyAccess::Update), "write fast", "write fast")
            }
            Command::Look(_) => (First(KeyAccess::Read), "readonly fast", "read fast"),
            // Slow, because their cost grows with what the key holds.
            Command::Held | Command::Info => (First(KeyAccess::Read), "readonly", "read slow"),
            Command::All => (Counted(KeyAccess::Update), "write deny-oom", "write slow"),
            Command::AllRo => (Counted(KeyAccess::Read), "readonly", "read slow"),
            // For operators only, because they show names of keys and limits.
            Command::Policies | Command::Top => {
                (Keys::None, "readonly admin", "admin dangerous slow")
            }
        };
        ServerTraits { keys, flags, categories }
    }
}

/// Returns an argument as COMMAND DOCS shows it.
fn positional(argument: &Positional) -> Vec<Argument> {
    vec![match argument {
        Positional::Integer(name) => Argument::integer(name),
        Positional::Text(name) => Argument::text(name),
        Positional::OptionalInteger(name) => Argument::integer(name).optional(),
        Positional::Texts(name) => Argument::text(name).multiple(),
        Positional::Limit(numbers) => {
            let numbers = numbers.iter().flat_map(positional).collect();
            let choices = vec![Argument::group(c"numbers", numbers), Argument::text(c"policy")];
            Argument::one_of(c"rate-or-window", choices)
        }
        Positional::Joined(word, name) => {
            let joined = vec![Argument::word(word).optional(), Argument::text(name)];
            let more = Argument::group(c"more", joined).multiple().optional();
            return vec![Argument::text(name), more];
        }
    }]
}

/// Returns the options of a command in the order of their table. Neighbours that exclude each other are one argument. So are
/// an option and those that need it.
fn options(accepted: OptionSet) -> Vec<Argument> {
    let mut choices: Vec<Vec<&OptionRow>> = Vec::new();
    for row in accepted.rows().filter(|row| row.needs.is_empty()) {
        match choices.last_mut() {
            Some(choice) if choice.iter().all(|other| row.clashes_with(other)) => choice.push(row),
            _ => choices.push(vec![row]),
        }
    }
    let argument = |choice: Vec<&OptionRow>| {
        let first = choice.first()?;
        let name = first.choice.unwrap_or(first.token);
        let mut arguments: Vec<_> = choice.into_iter().map(|row| group(row, accepted)).collect();
        match arguments.len() {
            0 | 1 => arguments.pop().map(Argument::optional),
            _ => Some(Argument::one_of(name, arguments).optional()),
        }
    };
    choices.into_iter().filter_map(argument).collect()
}

/// Returns an option with those of `accepted` that need it.
fn group(row: &OptionRow, accepted: OptionSet) -> Argument {
    let needing = accepted.rows().filter(|other| other.needs == row.option);
    let needing: Vec<_> = needing.map(|other| option(other).optional()).collect();
    match row.group.filter(|_| !needing.is_empty()) {
        Some(name) => Argument::group(name, [vec![option(row)], needing].concat()),
        None => option(row),
    }
}

fn option(row: &OptionRow) -> Argument {
    let value = match row.value {
        None => return Argument::word(row.token),
        Some(OptionValue::Integer { .. }) => Argument::integer(row.value_name),
        // A duration with a unit is not an integer.
        Some(_) => Argument::text(row.value_name),
    };
    value.after(row.token)
}

/// Returns the entry of the command with this name.
#[cfg(test)]
pub fn entry_of(name: &str) -> EntryPoint {
    let named = |row: &CommandRow| row.name.to_bytes() == name.as_bytes();
    ENTRIES[COMMANDS.iter().position(named).unwrap()]
}

#[cfg(test)]
mod tests;

//! The commands as the server knows them: what is derived from the rows of command.rs, and the way from the server's
//! call to a command's code and back.

use crate::command::{Command, Nature, Positional, COMMANDS};
use crate::commands::{reply, waiting};
use crate::error::Error;
use crate::options::{Known, Place, Row, Value, TABLE};
use crate::redis::call::{entry, Call, CommandNumber, Commands, Context, Entry};
use crate::redis::command::{self, Argument, Description, Keys};
use crate::stats::Replied;
use std::ffi::CStr;

/// The table, as the server calls into it.
pub struct Table;

impl Commands for Table {
    fn run(call: &Call) {
        let Some(command) = find(call.command()) else { return };
        if command.keys.answer(call) {
            return;
        }
        finish(call.context(), command, (command.run)(call, command.options));
    }

    fn panicked(call: &Call) {
        let Some(command) = find(call.command()) else { return };
        finish(call.context(), command, Err(Error::Internal));
    }
}

fn find(CommandNumber(number): CommandNumber) -> Option<&'static Command> {
    COMMANDS.get(number)
}

/// Counts the end of a call, and replies its error if it has one.
fn finish(ctx: Context, command: &Command, result: Result<Replied, Error>) {
    command.stats.count(&result);
    match result {
        Ok(_) => {}
        Err(Error::Arity) => ctx.reply_wrong_arity(),
        Err(error) => ctx.reply_error(error.text()),
    }
}

/// Replies to a call that waited.
pub fn answer_waiter(ctx: Context, ticket: u64) {
    // Before 7.2, CLIENT UNBLOCK asks once more where we ended the wait in the same transaction.
    let Some((number, outcome)) = waiting::answer(ctx, ticket) else { return };
    let Some(command) = find(number) else { return };
    finish(ctx, command, outcome.map(|answer| reply::answer(ctx, &answer)));
}

/// One C function for each row of the table.
const ENTRIES: [Entry; COMMANDS.len()] = [
    entry::<Table, 0>,
    entry::<Table, 1>,
    entry::<Table, 2>,
    entry::<Table, 3>,
    entry::<Table, 4>,
    entry::<Table, 5>,
    entry::<Table, 6>,
    entry::<Table, 7>,
    entry::<Table, 8>,
    entry::<Table, 9>,
];

/// Registers all commands; in the ACL category, too, if the server has added it.
pub fn register(ctx: Context, category: Option<&CStr>) -> Result<(), String> {
    for (row, entry) in COMMANDS.iter().zip(ENTRIES) {
        let name = row.name.to_string_lossy();
        let create = |flags: &str| command::Command::create(ctx, row.name, entry, flags, row.keys);
        let flags = row.flags();
        // Servers before 7.0 do not know the flag "blocking" and refuse the whole command.
        let created = create(&flags).or_else(|| create(&flags.replace(" blocking", "")));
        let Some(created) = created else {
            return Err(format!(
                "the server refused the command {name}; is another module using its name?"
            ));
        };
        let description = Description {
            summary: row.summary,
            complexity: row.complexity,
            since: c"0.1.0",
            arity: row.arity(),
            keys: row.keys,
            arguments: row.arguments(),
        };
        if !created.describe(&description) {
            return Err(format!("the server refused the description of {name}"));
        }
        created.categorize(&row.categories(category));
    }
    Ok(())
}

impl Command {
    /// Flags as RedisModule_CreateCommand spells them.
    fn flags(&self) -> String {
        let flags = match self.nature {
            Nature::Takes => "write deny-oom fast blocking",
            // Without deny-oom: giving back must work when memory is short.
            Nature::Settles => "write fast",
            Nature::Looks => "readonly fast",
        };
        match self.keys {
            Keys::Counted(_) => format!("{flags} getkeys-api"),
            Keys::First(_) | Keys::None => flags.into(),
        }
    }

    /// ACL categories: servers put no module's command into `@read` or `@write` by its flags.
    fn categories(&self, own: Option<&CStr>) -> String {
        let categories = match self.nature {
            Nature::Takes => "write fast blocking",
            Nature::Settles => "write fast",
            Nature::Looks => "read fast",
        };
        match own {
            Some(own) => format!("{categories} {}", own.to_string_lossy()),
            None => categories.into(),
        }
    }

    /// Arguments with the name: exactly so many, or at least so many if below 0.
    fn arity(&self) -> i32 {
        let more = |argument: &Positional| {
            matches!(argument, Positional::OptionalInteger(_) | Positional::Texts(_))
        };
        let needed = |argument: &Positional| !matches!(argument, Positional::OptionalInteger(_));
        let keys = match self.keys {
            Keys::None => 0,
            Keys::First(_) => 1,
            Keys::Counted(_) => 2,
        };
        let least = self.positional.iter().filter(|argument| needed(argument)).count();
        let least = i32::try_from(least).unwrap_or(0).saturating_add(keys).saturating_add(1);
        let open = matches!(self.keys, Keys::Counted(_))
            || !self.options.is_empty()
            || self.positional.iter().any(more);
        if open {
            least.saturating_neg()
        } else {
            least
        }
    }

    /// All arguments after the name, as COMMAND DOCS shows them.
    fn arguments(&self) -> Vec<Argument> {
        let keys = match self.keys {
            Keys::None => vec![],
            Keys::First(_) => vec![Argument::Key],
            Keys::Counted(_) => {
                vec![Argument::Integer(c"numkeys"), Argument::Multiple(Box::new(Argument::Key))]
            }
        };
        let positional = self.positional.iter().map(|argument| match argument {
            Positional::Integer(name) => Argument::Integer(name),
            Positional::Text(name) => Argument::Text(name),
            Positional::OptionalInteger(name) => optional(Argument::Integer(name)),
            Positional::Texts(name) => Argument::Multiple(Box::new(Argument::Text(name))),
        });
        keys.into_iter().chain(positional).chain(options(self.options)).collect()
    }
}

fn optional(argument: Argument) -> Argument {
    Argument::Optional(Box::new(argument))
}

/// The options of a command in the order of their table, those that exclude each other as one.
fn options(known: Known) -> Vec<Argument> {
    let mut all: Vec<(Place, Vec<Argument>)> = Vec::new();
    for row in TABLE.iter().filter(|row| known.contains(row.option)) {
        let argument = option(row);
        match (row.place, all.last_mut()) {
            (Place::Choice(_), Some((place, choices))) if *place == row.place => {
                choices.push(argument);
            }
            (Place::With(name), Some((_, arguments))) => {
                let before = arguments.pop();
                let both = before.into_iter().chain([optional(argument)]).collect();
                arguments.push(Argument::Group(name, both));
            }
            _ => all.push((row.place, vec![argument])),
        }
    }
    let one = |(place, mut arguments): (Place, Vec<Argument>)| match place {
        Place::Choice(name) if arguments.len() > 1 => {
            Some(optional(Argument::OneOf(name, arguments)))
        }
        _ => arguments.pop().map(optional),
    };
    all.into_iter().filter_map(one).collect()
}

fn option(row: &Row) -> Argument {
    match row.value {
        Value::Nothing => Argument::Flag(row.name),
        Value::Integer(name) => Argument::Valued(row.name, Box::new(Argument::Integer(name))),
        Value::Text(name) => Argument::Valued(row.name, Box::new(Argument::Text(name))),
    }
}

//! The arguments of commands, as COMMAND DOCS shows them.

use crate::redis::declaration::{Argument, KeyPositions};
use commands::options::{OptionRow, OptionSet, OptionValue};
use commands::table::{CommandRow, Positional};

/// Returns the arguments of a command after its name, as COMMAND DOCS shows them.
pub fn arguments(row: &CommandRow, keys: KeyPositions) -> Vec<Argument> {
    let keys = match keys {
        KeyPositions::None => vec![],
        KeyPositions::First(_) => vec![Argument::key()],
        KeyPositions::Counted(_) => vec![Argument::integer(c"numkeys"), Argument::key().multiple()],
    };
    let positional = row.positional.iter().flat_map(positional);
    keys.into_iter().chain(positional).chain(options(row.options)).collect()
}

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
    let needing: Vec<_> = needing.map(|other| group(other, accepted).optional()).collect();
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

#[cfg(test)]
mod tests;

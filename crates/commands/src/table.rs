//! The table of commands, one row for each. The arity and COMMAND DOCS follow from the row. Only the keys, the flags and the
//! ACL categories are not in it: module/server_traits.rs of the module has them, because a server in memory needs none.
//!
//! To add a command, write its row in [`COMMANDS`], a variant of [`Command`], the function that it runs, and an arm in
//! [`run`](crate::dispatch::run). docs/design.md lists the other places.

use crate::arguments::LimitKind;
use crate::options::OptionSet;
use std::ffi::CStr;

/// Identifies the code that a command runs. Commands with the same code differ in the kind of limit, or in whether they may
/// change the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// RL.THROTTLE, RL.WINDOW or RL.ACQUIRE
    Take(LimitKind),
    /// RL.THROTTLE_RO, RL.WINDOW_RO or RL.ACQUIRE_RO
    Look(LimitKind),
    /// CL.THROTTLE, which is registered only if the setting `cl-throttle` is on.
    ClThrottle,
    Apply,
    Release,
    Renew,
    Held,
    Info,
    All,
    AllRo,
    Policies,
    Top,
}

pub struct CommandRow {
    /// The name, in lower case.
    pub name: &'static CStr,
    pub command: Command,
    /// One sentence for COMMAND DOCS that says what the command does.
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    /// The first version of this module with the command, for COMMAND DOCS.
    pub since: &'static CStr,
    /// The arguments between the key and the options.
    pub positional: &'static [Positional],
    pub options: OptionSet,
}

impl CommandRow {
    /// The defaults of a row: a command of constant cost, without arguments after its keys, since the first release.
    const PLAIN: CommandRow = CommandRow {
        name: c"",
        command: Command::Info,
        summary: c"",
        complexity: c"O(1)",
        since: c"0.1.0",
        positional: &[],
        options: OptionSet::empty(),
    };
}

/// An argument that is known by its position.
#[derive(Clone, Copy, Debug)]
pub enum Positional {
    /// An integer, which COMMAND DOCS shows under this name.
    Integer(&'static CStr),
    /// Any bytes, such as a key or a period.
    Text(&'static CStr),
    /// A number that may be left out.
    OptionalInteger(&'static CStr),
    /// A text that may be repeated.
    Texts(&'static CStr),
    /// A limit: either these numbers or the name of a policy.
    Limit(&'static [Positional]),
    /// A text that may be repeated, with or without this word between two of them.
    Joined(&'static CStr, &'static CStr),
}

use Positional::{Integer, Joined, Limit, OptionalInteger, Text, Texts};

const RATE: &[Positional] = &[
    Limit(&[Integer(c"max-burst"), Integer(c"count"), Text(c"period")]),
    OptionalInteger(c"quantity"),
];
const WINDOW: &[Positional] =
    &[Limit(&[Integer(c"limit"), Text(c"period")]), OptionalInteger(c"quantity")];

const CLAUSES: &[Positional] = &[Joined(c"ELSE", c"clause")];

/// For commands that search a key's events and reservations.
const SEARCHES: &CStr =
    c"O(log(N)) where N is the number of event entries and reservations in the key";

/// For commands that find a reservation by its id.
const FINDS: &CStr = c"O(log(N)) for each id, where N is the number of entries in the key";

/// For the command that lists reservations.
const LISTS: &CStr = c"O(M*log(M)) where M is the number of reservations in the key";

/// For the commands over several limits.
const FOR_EACH: &CStr = c"The sum of the complexities of its clauses";

pub static COMMANDS: [CommandRow; 16] = [
    CommandRow {
        name: c"rl.throttle",
        command: Command::Take(LimitKind::Rate),
        summary: c"Takes from a bucket that fills steadily (GCRA, leaky bucket, token bucket).",
        positional: RATE,
        options: OptionSet::THROTTLE,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.throttle_ro",
        command: Command::Look(LimitKind::Rate),
        summary: c"Returns what RL.THROTTLE would reply if nobody waited, without changing the key.",
        positional: RATE,
        options: OptionSet::THROTTLE_RO,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.window",
        command: Command::Take(LimitKind::Window),
        summary:
            c"Counts an event if it fits in a sliding or calendar window.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: OptionSet::WINDOW,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.window_ro",
        command: Command::Look(LimitKind::Window),
        summary: c"Returns what RL.WINDOW would reply if nobody waited, without changing the key.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: OptionSet::WINDOW_RO,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.acquire",
        command: Command::Take(LimitKind::Reserve),
        summary: c"Reserves a quantity of a window, or of a semaphore if the period is 0.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: OptionSet::ACQUIRE,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.acquire_ro",
        command: Command::Look(LimitKind::Reserve),
        summary: c"Returns what RL.ACQUIRE would reply if nobody waited, without changing the key.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: OptionSet::WINDOW_RO,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.apply",
        command: Command::Apply,
        summary: c"Turns a reservation into a counted event of the quantity that was used.",
        complexity: FINDS,
        positional: &[Text(c"id"), OptionalInteger(c"quantity")],
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.release",
        command: Command::Release,
        summary: c"Gives reservations back.",
        complexity: FINDS,
        positional: &[Texts(c"id")],
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.renew",
        command: Command::Renew,
        summary: c"Restarts the lease of a reservation.",
        complexity: FINDS,
        positional: &[Text(c"id")],
        options: OptionSet::LEASE,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.held",
        command: Command::Held,
        summary: c"Lists the live reservations, oldest first.",
        complexity: LISTS,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.info",
        command: Command::Info,
        summary: c"Returns the state of a limit of any kind.",
        complexity: c"O(N+M) where N is the number of event entries and M the number of reservations in the key",
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.all",
        command: Command::All,
        summary: c"Checks several limits and takes from all of them, or from none.",
        complexity: FOR_EACH,
        positional: CLAUSES,
        options: OptionSet::ALL,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.all_ro",
        command: Command::AllRo,
        summary: c"Returns what RL.ALL would reply if nobody waited, without changing the keys.",
        complexity: FOR_EACH,
        positional: CLAUSES,
        options: OptionSet::ALL_RO,
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.policies",
        command: Command::Policies,
        summary: c"Lists the policies with counts of the allowed and the denied calls that used them.",
        complexity: c"O(N) where N is the number of policies",
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"rl.top",
        command: Command::Top,
        summary: c"Lists the keys with the most denials in the last 10 to 20 minutes.",
        complexity: c"O(N*log(N)) where N is the setting ratelimit.top-keys",
        options: OptionSet::COUNT.union(OptionSet::RESET),
        ..CommandRow::PLAIN
    },
    CommandRow {
        name: c"cl.throttle",
        command: Command::ClThrottle,
        summary: c"Runs RL.THROTTLE for clients of redis-cell.",
        positional: &[
            Integer(c"max-burst"),
            Integer(c"count"),
            Text(c"period"),
            OptionalInteger(c"quantity"),
        ],
        ..CommandRow::PLAIN
    },
];

impl CommandRow {
    /// Returns the number of words in a call, including the name: exactly this many, or if it is negative, at least that
    /// many.
    pub fn arity(&self) -> i32 {
        // The name, and the key or the number of the keys.
        let first = if matches!(self.command, Command::Policies | Command::Top) { 1 } else { 2 };
        let is_required = |argument: &&Positional| !matches!(argument, OptionalInteger(_));
        let required = self.positional.iter().filter(is_required).count();
        let min_words = i32::try_from(required).unwrap_or(0).saturating_add(first);
        // A limit is at least one word: it may be the name of a policy.
        let is_one_word = |argument: &Positional| matches!(argument, Integer(_) | Text(_));
        match self.options.is_empty() && self.positional.iter().all(is_one_word) {
            true => min_words,
            false => min_words.saturating_neg(),
        }
    }
}

#[cfg(test)]
mod tests;

//! The table of commands. A row says what a command is. Its arity is derived from that here, and its key spec, ACL categories
//! and COMMAND DOCS in the module's module/registration.rs.

use crate::options::OptionSet;
use std::ffi::CStr;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// RL.THROTTLE
    Throttle,
    /// RL.THROTTLE_RO
    ThrottleRo,
    /// RL.WINDOW
    Window,
    /// RL.WINDOW_RO
    WindowRo,
    /// RL.ACQUIRE
    Acquire,
    /// RL.ACQUIRE_RO
    AcquireRo,
    /// RL.APPLY
    Apply,
    /// RL.RELEASE
    Release,
    /// RL.RENEW
    Renew,
    /// RL.HELD
    Held,
    /// RL.INFO
    Info,
    /// RL.ALL
    All,
    /// RL.ALL_RO
    AllRo,
    /// RL.POLICIES
    Policies,
    /// RL.TOP
    Top,
    /// CL.THROTTLE
    ClThrottle,
}

/// A row of the table.
pub struct CommandRow {
    /// Its name, in lower case.
    pub name: &'static CStr,
    /// Which command it is.
    pub command: Command,
    /// What it promises and needs. Where its keys are follows from that.
    pub nature: Nature,
    /// What it does, in one sentence for COMMAND DOCS.
    pub summary: &'static CStr,
    /// What a call costs, for COMMAND DOCS.
    pub complexity: &'static CStr,
    /// The version of this module that had it first, for COMMAND DOCS.
    pub since: &'static CStr,
    /// The arguments between the key and the options.
    pub positional: &'static [Positional],
    /// The options that it knows.
    pub options: OptionSet,
}

/// What a command promises and needs: its flags, ACL categories and keys follow from it. The keys of several limits are
/// counted, those that show have none, and all others have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It takes, so that it needs memory, and may wait.
    Takes,
    /// It changes keys, but works where memory is short.
    Settles,
    /// It changes nothing, and costs the same whatever the key holds.
    Looks,
    /// It changes nothing, and costs the more the more the key holds.
    Lists,
    /// It takes of several limits, and never waits.
    TakesSeveral,
    /// It looks at several limits.
    LooksSeveral,
    /// It shows names of keys and limits to an operator.
    Shows,
    /// It takes, but never waits, and is registered only where the setting `cl-throttle` says so.
    TakesOnDemand,
}

/// An argument that is known by its position.
#[derive(Clone, Copy, Debug)]
pub enum Positional {
    /// A number.
    Integer(&'static CStr),
    /// A text.
    Text(&'static CStr),
    /// A number that may be left out.
    OptionalInteger(&'static CStr),
    /// A text that comes once or more often.
    Texts(&'static CStr),
    /// A limit: these numbers, or the name of a policy.
    Limit(&'static [Positional]),
    /// A text that comes once or more often, with perhaps this word before each but the first.
    Joined(&'static CStr, &'static CStr),
}

use Positional::{Integer, Joined, Limit, OptionalInteger, Text, Texts};

const NUMBERS_OF_RATE: &[Positional] = &[Integer(c"max-burst"), Integer(c"count"), Text(c"period")];
const RATE: &[Positional] = &[Limit(NUMBERS_OF_RATE), OptionalInteger(c"quantity")];
const WINDOW: &[Positional] =
    &[Limit(&[Integer(c"limit"), Text(c"period")]), OptionalInteger(c"quantity")];

/// The clauses of a call over several limits.
const CLAUSES: &[Positional] = &[Joined(c"ELSE", c"clause")];

const CONSTANT: &CStr = c"O(1)";
/// For commands that search a key's events and reservations.
const SEARCHES: &CStr = c"O(log(N)) with N the entries of events and the reservations in the key";
/// For commands that find a reservation by its id.
const FINDS: &CStr = c"O(log(N)) for each id, with N the entries in the key";
/// For the command that lists reservations.
const LISTS: &CStr = c"O(M*log(M)) with M the reservations in the key";

/// For the commands over several limits.
const FOR_EACH: &CStr = c"What the command of each clause costs on its key";

const FIRST_RELEASE: &CStr = c"0.1.0";

/// All commands.
pub static COMMANDS: [CommandRow; 16] = [
    CommandRow {
        name: c"rl.throttle",
        command: Command::Throttle,
        nature: Nature::Takes,
        summary: c"Takes from a bucket that fills steadily (GCRA, leaky bucket, token bucket).",
        complexity: CONSTANT,
        since: FIRST_RELEASE,
        positional: RATE,
        options: OptionSet::THROTTLE,
    },
    CommandRow {
        name: c"rl.throttle_ro",
        command: Command::ThrottleRo,
        nature: Nature::Looks,
        summary: c"Answers what RL.THROTTLE would, and changes nothing.",
        complexity: CONSTANT,
        since: FIRST_RELEASE,
        positional: RATE,
        options: OptionSet::THROTTLE_RO,
    },
    CommandRow {
        name: c"rl.window",
        command: Command::Window,
        nature: Nature::Takes,
        summary:
            c"Counts an event, if a window that slides or follows the calendar has room for it.",
        complexity: SEARCHES,
        since: FIRST_RELEASE,
        positional: WINDOW,
        options: OptionSet::WINDOW,
    },
    CommandRow {
        name: c"rl.window_ro",
        command: Command::WindowRo,
        nature: Nature::Looks,
        summary: c"Answers what RL.WINDOW would, and changes nothing.",
        complexity: SEARCHES,
        since: FIRST_RELEASE,
        positional: WINDOW,
        options: OptionSet::WINDOW_RO,
    },
    CommandRow {
        name: c"rl.acquire",
        command: Command::Acquire,
        nature: Nature::Takes,
        summary: c"Reserves a place in a window, or with period 0 in a semaphore.",
        complexity: SEARCHES,
        since: FIRST_RELEASE,
        positional: WINDOW,
        options: OptionSet::ACQUIRE,
    },
    CommandRow {
        name: c"rl.acquire_ro",
        command: Command::AcquireRo,
        nature: Nature::Looks,
        summary: c"Answers what RL.ACQUIRE would, and changes nothing.",
        complexity: SEARCHES,
        since: FIRST_RELEASE,
        positional: WINDOW,
        options: OptionSet::WINDOW_RO,
    },
    CommandRow {
        name: c"rl.apply",
        command: Command::Apply,
        nature: Nature::Settles,
        summary: c"Turns a reservation into a counted event, of what was really used.",
        complexity: FINDS,
        since: FIRST_RELEASE,
        positional: &[Text(c"id"), OptionalInteger(c"quantity")],
        options: OptionSet::empty(),
    },
    CommandRow {
        name: c"rl.release",
        command: Command::Release,
        nature: Nature::Settles,
        summary: c"Gives reservations back.",
        complexity: FINDS,
        since: FIRST_RELEASE,
        positional: &[Texts(c"id")],
        options: OptionSet::empty(),
    },
    CommandRow {
        name: c"rl.renew",
        command: Command::Renew,
        nature: Nature::Settles,
        summary: c"Starts the lease of a reservation anew.",
        complexity: FINDS,
        since: FIRST_RELEASE,
        positional: &[Text(c"id")],
        options: OptionSet::LEASE,
    },
    CommandRow {
        name: c"rl.held",
        command: Command::Held,
        nature: Nature::Lists,
        summary: c"Lists the live reservations, oldest first.",
        complexity: LISTS,
        since: FIRST_RELEASE,
        positional: &[],
        options: OptionSet::empty(),
    },
    CommandRow {
        name: c"rl.info",
        command: Command::Info,
        nature: Nature::Lists,
        summary: c"Tells what lies under a key, whatever kind of limit it is.",
        complexity: c"O(N+M) with N the entries of events and M the reservations in the key",
        since: FIRST_RELEASE,
        positional: &[],
        options: OptionSet::empty(),
    },
    CommandRow {
        name: c"rl.all",
        command: Command::All,
        nature: Nature::TakesSeveral,
        summary: c"Takes from several limits, all or nothing.",
        complexity: FOR_EACH,
        since: FIRST_RELEASE,
        positional: CLAUSES,
        options: OptionSet::MS,
    },
    CommandRow {
        name: c"rl.all_ro",
        command: Command::AllRo,
        nature: Nature::LooksSeveral,
        summary: c"Answers what RL.ALL would, and changes nothing.",
        complexity: FOR_EACH,
        since: FIRST_RELEASE,
        positional: CLAUSES,
        options: OptionSet::MS,
    },
    CommandRow {
        name: c"rl.policies",
        command: Command::Policies,
        nature: Nature::Shows,
        summary: c"Lists the policies, and what became of the calls that used them.",
        complexity: c"O(N) with N the policies",
        since: FIRST_RELEASE,
        positional: &[],
        options: OptionSet::empty(),
    },
    CommandRow {
        name: c"rl.top",
        command: Command::Top,
        nature: Nature::Shows,
        summary: c"Lists the keys that were denied most in the last 10 to 20 minutes.",
        complexity: c"O(N*log(N)) with N the setting ratelimit.top-keys",
        since: FIRST_RELEASE,
        positional: &[],
        options: OptionSet::COUNT.union(OptionSet::RESET),
    },
    CommandRow {
        name: c"cl.throttle",
        command: Command::ClThrottle,
        nature: Nature::TakesOnDemand,
        summary: c"RL.THROTTLE for the clients of redis-cell.",
        complexity: CONSTANT,
        since: FIRST_RELEASE,
        positional: &[
            Integer(c"max-burst"),
            Integer(c"count"),
            Text(c"period"),
            OptionalInteger(c"quantity"),
        ],
        options: OptionSet::empty(),
    },
];

impl CommandRow {
    /// The number of words of a call with its name: exactly this many, or at least that many if negative.
    pub fn arity(&self) -> i32 {
        let optional = |argument: &Positional| matches!(argument, OptionalInteger(_));
        // A limit may be one word, the name of a policy.
        let more = |argument: &Positional| {
            optional(argument) || matches!(argument, Texts(_) | Joined(..) | Limit(_))
        };
        let needed = |argument: &Positional| !optional(argument);
        let (keys, counted) = match self.nature {
            Nature::Shows => (0, false),
            // Where there are no keys, RL.ALL itself says how many there may be.
            Nature::TakesSeveral | Nature::LooksSeveral => (1, true),
            Nature::Takes
            | Nature::Settles
            | Nature::Looks
            | Nature::Lists
            | Nature::TakesOnDemand => (1, false),
        };
        let least = self.positional.iter().filter(|argument| needed(argument)).count();
        let least = i32::try_from(least).unwrap_or(0).saturating_add(keys).saturating_add(1);
        let open = counted || !self.options.is_empty() || self.positional.iter().any(more);
        if open {
            least.saturating_neg()
        } else {
            least
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arity_is_derived_from_the_arguments() {
        let arities: Vec<_> = COMMANDS.iter().map(|row| (row.name, row.arity())).collect();
        let expected = [
            (c"rl.throttle", -3),
            (c"rl.throttle_ro", -3),
            (c"rl.window", -3),
            (c"rl.window_ro", -3),
            (c"rl.acquire", -3),
            (c"rl.acquire_ro", -3),
            (c"rl.apply", -3),
            (c"rl.release", -3),
            (c"rl.renew", -3),
            (c"rl.held", 2),
            (c"rl.info", 2),
            (c"rl.all", -3),
            (c"rl.all_ro", -3),
            (c"rl.policies", 1),
            (c"rl.top", -1),
            (c"cl.throttle", -5),
        ];
        assert_eq!(arities, expected);
    }
}

//! The table of commands. A row says what a command is; its arity, key spec, ACL categories and COMMAND DOCS are
//! derived from that in module/registration.rs.

use crate::commands::{all, inspect, report, settle, take};
use crate::error::Error;
use crate::options::Known;
use crate::redis::call::Call;
use crate::redis::declaration::{Access, Keys};
use crate::stats::{CallResult, CommandStats};
use std::ffi::CStr;

/// A row of the table.
pub struct CommandRow {
    /// Its name, in lower case.
    pub name: &'static CStr,
    /// Its code. It is given the options of this row.
    pub run: fn(&Call, Known) -> Result<CallResult, Error>,
    /// Where its keys are, and what it does with them.
    pub keys: Keys,
    /// What it promises and needs.
    pub nature: Nature,
    /// One sentence.
    pub summary: &'static CStr,
    /// What a call costs.
    pub complexity: &'static CStr,
    /// The arguments between the key and the options.
    pub positional: &'static [Positional],
    /// The options that it knows.
    pub options: Known,
    /// How its calls ended.
    pub stats: CommandStats,
}

/// What a command promises and needs, for its flags and ACL categories.
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
    /// A limit: these, or the name of a policy.
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

const UPDATES: Keys = Keys::First(Access::Update);
const READS: Keys = Keys::First(Access::Read);

const CONSTANT: &CStr = c"O(1)";
/// For commands that search a key's events and reservations.
const SEARCHES: &CStr = c"O(log(N)) with N the entries of events and the reservations in the key";
/// For commands that find a reservation by its id.
const FINDS: &CStr = c"O(log(N)) for each id, with N the entries in the key";
/// For the command that lists reservations.
const LISTS: &CStr = c"O(M*log(M)) with M the reservations in the key";

/// For the commands over several limits.
const FOR_EACH: &CStr = c"What the command of each clause costs on its key";

/// All commands.
pub static COMMANDS: [CommandRow; 16] = [
    CommandRow {
        name: c"rl.throttle",
        run: take::throttle,
        keys: UPDATES,
        nature: Nature::Takes,
        summary: c"Takes from a bucket that fills steadily (GCRA, leaky bucket, token bucket).",
        complexity: CONSTANT,
        positional: RATE,
        options: Known::THROTTLE,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.throttle_ro",
        run: take::throttle_ro,
        keys: READS,
        nature: Nature::Looks,
        summary: c"Answers what RL.THROTTLE would, and changes nothing.",
        complexity: CONSTANT,
        positional: RATE,
        options: Known::THROTTLE_RO,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.window",
        run: take::window,
        keys: UPDATES,
        nature: Nature::Takes,
        summary:
            c"Counts an event, if a window that slides or follows the calendar has room for it.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: Known::WINDOW,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.window_ro",
        run: take::window_ro,
        keys: READS,
        nature: Nature::Looks,
        summary: c"Answers what RL.WINDOW would, and changes nothing.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: Known::WINDOW_RO,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.acquire",
        run: take::acquire,
        keys: UPDATES,
        nature: Nature::Takes,
        summary: c"Reserves a place in a window, or with period 0 in a semaphore.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: Known::ACQUIRE,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.acquire_ro",
        run: take::acquire_ro,
        keys: READS,
        nature: Nature::Looks,
        summary: c"Answers what RL.ACQUIRE would, and changes nothing.",
        complexity: SEARCHES,
        positional: WINDOW,
        options: Known::WINDOW_RO,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.apply",
        run: settle::apply,
        keys: UPDATES,
        nature: Nature::Settles,
        summary: c"Turns a reservation into a counted event, of what was really used.",
        complexity: FINDS,
        positional: &[Text(c"id"), OptionalInteger(c"quantity")],
        options: Known::empty(),
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.release",
        run: settle::release,
        keys: UPDATES,
        nature: Nature::Settles,
        summary: c"Gives reservations back.",
        complexity: FINDS,
        positional: &[Texts(c"id")],
        options: Known::empty(),
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.renew",
        run: settle::renew,
        keys: UPDATES,
        nature: Nature::Settles,
        summary: c"Starts the lease of a reservation anew.",
        complexity: FINDS,
        positional: &[Text(c"id")],
        options: Known::LEASE,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.held",
        run: settle::held,
        keys: READS,
        nature: Nature::Lists,
        summary: c"Lists the live reservations, oldest first.",
        complexity: LISTS,
        positional: &[],
        options: Known::empty(),
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.info",
        run: inspect::info,
        keys: READS,
        nature: Nature::Lists,
        summary: c"Tells what lies under a key, whatever kind of limit it is.",
        complexity: c"O(N+M) with N the entries of events and M the reservations in the key",
        positional: &[],
        options: Known::empty(),
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.all",
        run: all::all,
        keys: Keys::Counted(Access::Update),
        nature: Nature::TakesSeveral,
        summary: c"Takes from several limits, all or nothing.",
        complexity: FOR_EACH,
        positional: CLAUSES,
        options: Known::MS,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.all_ro",
        run: all::all_ro,
        keys: Keys::Counted(Access::Read),
        nature: Nature::LooksSeveral,
        summary: c"Answers what RL.ALL would, and changes nothing.",
        complexity: FOR_EACH,
        positional: CLAUSES,
        options: Known::MS,
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.policies",
        run: report::policies,
        keys: Keys::None,
        nature: Nature::Shows,
        summary: c"Lists the policies, and what became of the calls that used them.",
        complexity: c"O(N) with N the policies",
        positional: &[],
        options: Known::empty(),
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"rl.top",
        run: report::top_keys,
        keys: Keys::None,
        nature: Nature::Shows,
        summary: c"Lists the keys that were denied most in the last 10 to 20 minutes.",
        complexity: c"O(N*log(N)) with N the setting ratelimit.top-keys",
        positional: &[],
        options: Known::COUNT.union(Known::RESET),
        stats: CommandStats::new(),
    },
    CommandRow {
        name: c"cl.throttle",
        run: take::cl_throttle,
        keys: UPDATES,
        nature: Nature::TakesOnDemand,
        summary: c"RL.THROTTLE for the clients of redis-cell.",
        complexity: CONSTANT,
        positional: &[
            Integer(c"max-burst"),
            Integer(c"count"),
            Text(c"period"),
            OptionalInteger(c"quantity"),
        ],
        options: Known::empty(),
        stats: CommandStats::new(),
    },
];

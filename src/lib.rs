//! Native rate limiting for Redis and Valkey: one atomic command for each decision, its state in plain
//! Redis types. docs/commands.md says what the commands do, docs/design.md why they are built this way.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(test)]
mod allocation;
mod answer;
mod command;
mod commands;
mod config;
mod error;
mod limit;
mod redis;
mod stats;

use command::Argument::{Flag, Group, Integer, Key, Multiple, OneOf, Optional, Text, Valued};
use command::{Access, Argument, Command};

/// Memory is the server's, so that it shows up in its `used_memory` and counts against `maxmemory`. The tests
/// of the algorithms run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

const TAKING: &str = "write deny-oom fast blocking";
const LOOKING: &str = "readonly fast";
/// Without deny-oom: giving back must work when memory is short.
const SETTLING: &str = "write fast";

const QUANTITY: Argument = Optional(&Integer(c"quantity"));
const ATMOST: Argument = Optional(&Flag(c"ATMOST"));
const LEASE: Argument = Optional(&Valued(c"LEASE", &Integer(c"lease-ms")));
const BLOCK: Argument = Optional(&Valued(c"BLOCK", &Integer(c"block-ms")));
const MS: Argument = Optional(&Flag(c"MS"));
const WINDOW: Argument = Optional(&OneOf(
    c"kind",
    &[
        Valued(c"BUCKETS", &Integer(c"buckets")),
        Group(c"calendar", &[Flag(c"FIXED"), Optional(&Valued(c"TZ", &Text(c"zone")))]),
    ],
));
const MAX_BURST: Argument = Integer(c"max-burst");
const COUNT: Argument = Integer(c"count");
const LIMIT: Argument = Integer(c"limit");
const PERIOD: Argument = Text(c"period");
const ID: Argument = Text(c"id");

/// The complexity of commands that read a key's events and reservations.
const READS_ALL: &std::ffi::CStr =
    c"O(log(N)+M*log(M)) with N the entries of events and M the reservations in the key";
/// The complexity of commands that find a reservation by its id.
const FINDS: &std::ffi::CStr = c"O(log(N)) for each id, with N the entries in the key";

static COMMANDS: [Command; 10] = [
    Command {
        run: commands::throttle::throttle,
        arity: -5,
        arguments: &[Key, MAX_BURST, COUNT, PERIOD, QUANTITY, ATMOST, BLOCK, MS],
        ..Command::new(
            c"rl.throttle",
            TAKING,
            Access::Update,
            c"Takes from a bucket that fills steadily (GCRA, leaky bucket, token bucket).",
        )
    },
    Command {
        run: commands::throttle::throttle_ro,
        arity: -5,
        arguments: &[Key, MAX_BURST, COUNT, PERIOD, QUANTITY, MS],
        ..Command::new(
            c"rl.throttle_ro",
            LOOKING,
            Access::Read,
            c"Answers what RL.THROTTLE would, and changes nothing.",
        )
    },
    Command {
        run: commands::window::window,
        arity: -4,
        complexity: READS_ALL,
        arguments: &[
            Key,
            LIMIT,
            PERIOD,
            QUANTITY,
            WINDOW,
            ATMOST,
            Optional(&Flag(c"COUNTDENIED")),
            BLOCK,
            MS,
        ],
        ..Command::new(
            c"rl.window",
            TAKING,
            Access::Update,
            c"Counts an event, if a window that slides or follows the calendar has room for it.",
        )
    },
    Command {
        run: commands::window::window_ro,
        arity: -4,
        complexity: READS_ALL,
        arguments: &[Key, LIMIT, PERIOD, QUANTITY, WINDOW, MS],
        ..Command::new(
            c"rl.window_ro",
            LOOKING,
            Access::Read,
            c"Answers what RL.WINDOW would, and changes nothing.",
        )
    },
    Command {
        run: commands::acquire::acquire,
        arity: -4,
        complexity: READS_ALL,
        arguments: &[
            Key,
            LIMIT,
            PERIOD,
            QUANTITY,
            WINDOW,
            LEASE,
            Optional(&Valued(c"ID", &ID)),
            BLOCK,
            MS,
        ],
        ..Command::new(
            c"rl.acquire",
            TAKING,
            Access::Update,
            c"Reserves a place in a window, or with period 0 in a semaphore.",
        )
    },
    Command {
        run: commands::acquire::acquire_ro,
        arity: -4,
        complexity: READS_ALL,
        arguments: &[Key, LIMIT, PERIOD, QUANTITY, WINDOW, MS],
        ..Command::new(
            c"rl.acquire_ro",
            LOOKING,
            Access::Read,
            c"Answers what RL.ACQUIRE would, and changes nothing.",
        )
    },
    Command {
        run: commands::settle::apply,
        arity: -3,
        complexity: FINDS,
        arguments: &[Key, ID, QUANTITY],
        ..Command::new(
            c"rl.apply",
            SETTLING,
            Access::Update,
            c"Turns a reservation into a counted event, of what was really used.",
        )
    },
    Command {
        run: commands::settle::release,
        arity: -3,
        complexity: FINDS,
        arguments: &[Key, Multiple(&ID)],
        ..Command::new(c"rl.release", SETTLING, Access::Update, c"Gives reservations back.")
    },
    Command {
        run: commands::settle::renew,
        arity: -3,
        complexity: FINDS,
        arguments: &[Key, ID, LEASE],
        ..Command::new(
            c"rl.renew",
            SETTLING,
            Access::Update,
            c"Starts the lease of a reservation anew.",
        )
    },
    Command {
        run: commands::settle::held,
        arity: 2,
        complexity: c"O(M*log(M)) with M the reservations in the key",
        arguments: &[Key],
        ..Command::new(
            c"rl.held",
            LOOKING,
            Access::Read,
            c"Lists the live reservations, oldest first.",
        )
    },
];

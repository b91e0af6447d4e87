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

mod command;
mod commands;
mod error;
mod limit;
mod redis;
mod stats;

use command::Argument::{Flag, Integer, Key, Optional, Text};
use command::{Access, Command};

/// Memory is the server's, so that it shows up in its `used_memory` and counts against `maxmemory`. The tests
/// of the algorithms run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

const WAITING: &str = "write deny-oom fast blocking";
const LOOKING: &str = "readonly fast";

static COMMANDS: [Command; 2] = [
    Command {
        run: commands::throttle::throttle,
        arity: -5,
        arguments: &[
            Key,
            Integer(c"max_burst"),
            Integer(c"count"),
            Text(c"period"),
            Optional(&Integer(c"quantity")),
            Optional(&Flag(c"ATMOST")),
            Optional(&Flag(c"MS")),
        ],
        ..Command::new(
            c"rl.throttle",
            "write deny-oom fast",
            Access::Update,
            c"Takes from a bucket that fills steadily (GCRA, leaky bucket, token bucket).",
        )
    },
    Command {
        run: commands::throttle::throttle_ro,
        arity: -5,
        arguments: &[
            Key,
            Integer(c"max_burst"),
            Integer(c"count"),
            Text(c"period"),
            Optional(&Integer(c"quantity")),
            Optional(&Flag(c"MS")),
        ],
        ..Command::new(
            c"rl.throttle_ro",
            LOOKING,
            Access::Read,
            c"Answers what RL.THROTTLE would, and changes nothing.",
        )
    },
];

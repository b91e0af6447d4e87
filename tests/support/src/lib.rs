//! A real server for each test and each benchmark, and the clock that it reads.
//!
//! ```ignore
//! use support::*;
//!
//! let (server, mut conn) = Server::with_held_clock();
//! assert_eq!(conn.ints("RL.THROTTLE a 15 30 60 1"), [0, 16, 15, -1, 2]);
//! ```
//!
//! Environment: `REDIS_SERVER` is the server, or a script that runs one (default `redis-server`);
//! `RATELIMIT_SO` is the module (default `target/release/libredis_ratelimit.so`); `RATELIMIT_TEST_SLOWNESS` is the factor
//! by which deadlines are longer, and makes each server end with SHUTDOWN (`make valgrind`); `RATELIMIT_IO_THREADS` is the
//! setting `io-threads` of each server.

mod client;
mod clock;
mod cluster;
mod library;
mod machine;
mod paths;
mod program;
mod random;
mod random_calls;
mod replication;
mod reservation;
mod sentinel;
mod server;
mod wait;
mod waiting;

pub use client::{
    assert_refused, elements, error_line, flat, ints, ints_of, text, CommandWords, Conn,
    LOAD_FAILED,
};
pub use clock::{unix_us, Clock, DOCS_US, START_US};
pub use cluster::{ask, cli, connect, Cluster};
pub use library::test_module;
pub use machine::{assert_median_ms, assert_of_least, assert_takes, unless_stalled, Machine};
pub use paths::{file, root, target_dir};
pub use program::{
    all_clients, cargo, cargo_apart, clients_dir, run, run_and_print, skip, Language, Running,
};
pub use random::{env_number, seeds, Random};
pub use random_calls::RandomCalls;
pub use redis_client::{self as redis, Value};
pub use replication::{assert_in_sync, state, wait_for_sync};
pub use reservation::{acquired, all_reply, held, Acquired, AllReply, Held};
pub use sentinel::Sentinel;
pub use server::{free_port, module_path, server_binary, Builder, Frozen, Server, Stop, Version};
pub use wait::{eventually, ms, SOON};
pub use waiting::{limited, time_to_reply, waits};

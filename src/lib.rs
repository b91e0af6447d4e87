//! Native rate limiting for Redis and Valkey: one atomic command for each decision, with its state in plain Redis types.
//! docs/commands.md describes the commands, docs/design.md how they work.
//! A call enters in redis/call.rs, and module/dispatch.rs passes it to `run` in dispatch.rs of crates/commands.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod call_end;
mod keys;
mod log;
mod module;
mod redis;
mod server_call;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod waiting;
mod zoneinfo;

/// Allocates the server's memory, so that it is part of `used_memory` and counts against `maxmemory`. Unit tests run without
/// a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

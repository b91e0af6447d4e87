//! The tests on real servers, one crate so that there is one thing to link. A file is a module:
//! `cargo test --test server rl_top::` runs tests/server/rl_top.rs. Files with `block` in their name test calls that wait.
//!
//! Tests of different files run at the same time. One that measures time, or that needs the machine for itself, is in
//! tests/timing; one that runs a program of another language is in tests/programs.

mod acl;
mod anchors_zoneinfo;
mod bans;
mod block_all;
mod block_ends;
mod block_grants;
mod block_order;
mod block_refused;
mod block_release;
mod cl_throttle;
mod cluster;
mod config;
mod denied_events;
mod docs;
mod durability;
mod effects;
mod every_command;
mod failovers;
mod foreign;
mod histories;
mod in_memory;
mod io_threads;
mod metrics;
mod policies;
mod redis_cell;
mod reservation_index;
mod reservations;
mod rewrite;
mod rl_all;
mod rl_info;
mod rl_top;
mod soak;
mod unload;
mod version;
mod zoneinfo;

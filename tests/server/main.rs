//! The tests on real servers, one crate so that there is one thing to link. A file is a module:
//! `cargo test --test server throttle::` runs tests/server/throttle.rs.
//!
//! Tests of different files run at the same time. One that measures time, or that needs the machine for itself, is in
//! tests/timing; one that runs a program of another language is in tests/programs.

mod acl;
mod all;
mod anchors_zoneinfo;
mod arguments;
mod bans;
mod blocking_all;
mod blocking_exits;
mod blocking_faults;
mod blocking_order;
mod blocking_refused;
mod build;
mod cl_throttle;
mod cluster;
mod config;
mod countlapsed;
mod denied_events;
mod docs;
mod durability;
mod everywhere;
mod extremes;
mod failovers;
mod foreign;
mod handover;
mod histories;
mod in_memory;
mod index;
mod info;
mod io_threads;
mod metrics;
mod policies;
mod redis_cell;
mod reservations;
mod rewrite;
mod soak;
mod throttle;
mod top;
mod unload;
mod window_bounds;
mod zoneinfo;

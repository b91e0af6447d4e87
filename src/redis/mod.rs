//! Safe wrappers of the server's module API, and the only place with `unsafe`. The wrappers know nothing about this module's
//! commands and settings.
//!
//! What the server calls in the module is in traits, each next to the function that asks the server to call it. The module
//! implements the traits, and the C functions that the server calls are compiled for these implementations:
//! [`load::Module`], [`call::Commands`], [`config::SettingValue`], [`info::InfoSection`], [`key_events::KeyEvents`],
//! [`blocked::BlockedEvents`], [`timer::TimerEvents`] and [`server_events::ServerEvents`].
//!
//! The server calls us under its lock: on its main thread, or on a thread of another module that has taken the lock. State
//! that outlives a call is in an [`under_lock::UnderLock`]. One function may be called without the lock: a crashing server
//! asks for INFO on the thread that crashed. Some servers would ask for the keys of a command with the flag `getkeys-api` in
//! their I/O threads, so they do not get that flag (see `declaration`).
#![allow(unsafe_code)]

pub mod acceptance;
mod api;
pub mod blocked;
pub mod call;
pub mod clock;
pub mod config;
pub mod context;
pub mod declaration;
#[cfg(test)]
pub mod fake;
pub mod guard;
pub mod info;
pub mod key;
pub mod key_events;
pub mod load;
pub mod random;
pub mod server_events;
pub mod slot;
pub mod spread;
pub mod text;
pub mod timer;
pub mod under_lock;
pub mod users;

//! The server's module API, made safe: the only place with `unsafe`. It knows nothing of this module's commands and
//! settings: they are handed to it.
//!
//! The server calls in and is called on its one main thread; nothing here starts another.
#![allow(unsafe_code)]

pub mod acceptance;
mod api;
pub mod blocking;
pub mod call;
pub mod clock;
pub mod command;
pub mod config;
pub mod events;
#[cfg(test)]
pub mod fake;
pub mod guard;
pub mod info;
pub mod key;
pub mod load;
pub mod random;
mod slot;
pub mod text;

//! The server's module API, made safe: the only place with `unsafe`.
//!
//! The server calls in and is called on its one main thread; nothing here starts another.
#![allow(unsafe_code)]

pub mod acceptance;
mod api;
pub mod blocking;
pub mod call;
pub mod clock;
mod config;
mod info;
pub mod key;
mod load;
pub mod random;
mod slot;
pub mod text;

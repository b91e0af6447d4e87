//! The commands: parse, read the clock, open the key, decide, store and replicate, wake, reply.

pub mod acquire;
mod arguments;
mod entries;
mod ledger;
mod lifetime;
mod lines;
mod request;
mod reservations;
pub mod settle;
pub mod throttle;
mod trim;
pub mod waiting;
pub mod window;

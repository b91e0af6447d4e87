//! The commands: parse, read the clock, open the key, decide, store and replicate, reply.

pub mod acquire;
mod arguments;
mod entries;
mod ledger;
mod lifetime;
mod request;
pub mod settle;
pub mod throttle;
pub mod waiting;
pub mod window;

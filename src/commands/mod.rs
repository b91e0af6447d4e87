//! The commands: parse, read the clock, open the key, decide, store and replicate, reply.

pub mod acquire;
mod arguments;
mod ledger;
mod request;
pub mod settle;
pub mod throttle;
pub mod waiting;
pub mod window;

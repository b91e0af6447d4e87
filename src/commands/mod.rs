//! The commands: parse, read the clock, open the key, decide, store and replicate, reply.

mod arguments;
pub mod throttle;

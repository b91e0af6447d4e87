//! What was proved of the engine, and what proves it again: searches through all states of small worlds, and a judge of
//! histories that were recorded on real servers.

pub mod history;
pub mod mistake;
pub mod search;
pub mod waiting;
pub mod world;
pub mod worlds;

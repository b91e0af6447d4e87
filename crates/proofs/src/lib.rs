//! What was proved of the engine, and what proves it again: searches through all states of small worlds.

pub mod mistake;
pub mod search;
pub mod waiting;
pub mod world;
pub mod worlds;

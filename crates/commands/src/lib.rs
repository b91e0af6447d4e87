//! The commands of redis-ratelimit without a server: arguments in, a decision of [`engine`], a reply out. The module gives
//! them the server's keys, and [`memory::MemoryServer`] keys in memory.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod all;
pub mod arguments;
mod arrival;
pub mod call;
pub mod counter;
pub mod decide;
pub mod definitions;
pub mod dispatch;
pub mod environment;
pub mod error;
mod inspect;
pub mod keyspace;
pub mod limits;
pub mod memory;
pub mod options;
pub mod policies;
pub mod reply;
pub mod report;
pub mod settings;
mod settle;
pub mod share;
pub mod table;
pub mod take;
pub mod waiting;

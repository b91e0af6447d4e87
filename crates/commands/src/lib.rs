//! The commands of redis-ratelimit without a server: arguments in, a decision of [`engine`], a reply out. The module gives
//! them the server's keys, and [`memory::MemoryServer`] keys in memory.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

pub mod memory;

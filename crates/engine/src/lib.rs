//! The limits of redis-ratelimit, as pure code without a server or a clock: a state and the time go in, a decision and the
//! changes of the state come out.
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

pub mod anchor;
pub mod ban;
pub mod calendar;
pub mod db_key;
pub mod decide;
pub mod decimal;
pub mod decision;
pub mod entry;
pub mod expiry;
pub mod groups;
#[cfg(kani)]
#[allow(clippy::panic, clippy::arithmetic_side_effects)]
pub mod harnesses;
pub mod heavy;
pub mod held;
pub mod index;
pub mod line;
pub mod memory;
#[cfg(any(test, kani, feature = "model"))]
pub mod model;
pub mod period;
#[cfg(test)]
mod properties;
pub mod request;
pub mod reservation;
pub mod rule;
pub mod settle;
pub mod store;
pub mod text;
pub mod throttle;
pub mod window;

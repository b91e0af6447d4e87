//! Rate limits, reservations and semaphores of [redis-ratelimit], the module for Redis and Valkey.
//!
//! [redis-ratelimit]: https://github.com/redis-ratelimit/redis-ratelimit
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
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

mod breaker;
mod calls;
mod clause;
mod core;
mod error;
mod limit;
mod limiter;
mod reply;
mod reservation;
mod server;
mod servers;
pub mod transport;

pub use clause::Clause;
pub use core::Unreachable;
pub use error::Error;
pub use limit::{Limit, Period, Rate, Reserve, Semaphore, Take, Window};
pub use limiter::{
    AcquireAllCall, AcquireCall, AllCall, Answer, Builder, Limiter, LookCall, TakeCall,
};
pub use reply::{AllReply, Decision, Held, Id, KeyInfo, KeyState, Policy, Reply, TopKey};
pub use reservation::{Cost, Reservation};

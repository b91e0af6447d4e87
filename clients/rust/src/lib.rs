#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod breaker;
mod builders;
mod calls;
mod clause;
mod cluster;
mod core;
mod error;
pub mod http;
mod library;
mod limit;
mod limiter;
mod local;
#[cfg(feature = "memory")]
mod memory;
mod period;
mod process;
mod reply;
mod reservation;
mod server;
#[cfg(test)]
mod testing;
pub mod transport;

pub use builders::{Acquire, All, Call, Look, Single, Wait};
pub use clause::Clause;
pub use core::Unreachable;
pub use error::Error;
pub use limit::{Limit, Rate, Reserve, Semaphore, Take, Window};
pub use limiter::{Builder, Limiter};
pub use local::{Local, LocalBuilder};
#[cfg(feature = "memory")]
#[cfg_attr(docsrs, doc(cfg(feature = "memory")))]
pub use memory::{MemoryLimiter, MemoryLimiterBuilder};
pub use period::Period;
pub use reply::{AllReply, Decision, Held, Id, KeyInfo, KeyState, Policy, Reply, TopKey};
pub use reservation::{Cost, Reservation};

/// The programs of the project's pages.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/recipes.md")]
    mod recipes {}
}

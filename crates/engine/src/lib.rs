//! The limits of redis-ratelimit, as pure code without a server or a clock: a state and the time go in, a decision and the
//! changes of the state come out. A call, over one limit or several, is decided in four steps:
//!
//! ```text
//! Part --read--> Found --judge--> Judged --plan--> Plan --write--> the keys
//!       the keys      is it allowed?    what becomes of them     cannot fail
//! ```
//!
//! [`read`] finds what each key holds, [`Found::judge`] whether the call is allowed, and [`Judged::plan`] what it does to
//! each key. An error of any of these leaves every key as it was. The [`Plan`] has the decisions, which are about the keys
//! as the call leaves them.
//!
//! A call over several limits is all or nothing: it is allowed if each group of limits is, and a group if one of its limits
//! would be.
//!
//! ```
//! use redis_ratelimit_engine::{read, Limit, Mode, Part, Request};
//! use redis_ratelimit_engine::memory::Memory;
//! use redis_ratelimit_engine::throttle::Rate;
//!
//! let one_a_second = Request::new(Limit::Rate(Rate::new(0, 1, 1_000).unwrap()));
//! let ten_an_hour = Request::new(Limit::Rate(Rate::new(9, 10, 3_600_000).unwrap()));
//! let (memory, now_us) = (Memory::default(), 1_795_223_799_544_558);
//! let remaining = || {
//!     let mut parts = [
//!         Part::new(memory.key(b"short", now_us), &one_a_second, 0, false),
//!         Part::new(memory.key(b"long", now_us), &ten_an_hour, 1, false),
//!     ];
//!     let judged = read(&mut parts).unwrap().judge().unwrap();
//!     let plan = judged.plan(Mode::Final, || unreachable!()).unwrap();
//!     let remaining: Vec<u64> = plan.decisions().map(|limit| limit.decision.remaining).collect();
//!     plan.write();
//!     remaining
//! };
//! assert_eq!(remaining(), [0, 9]);
//! // The first limit denies, so nothing is taken from the second.
//! assert_eq!(remaining(), [0, 9]);
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

pub mod anchor;
pub mod ban;
pub mod calendar;
mod db_key;
mod decide;
pub mod decimal;
mod decision;
pub mod entry;
mod expiry;
mod groups;
pub mod index;
pub mod line;
pub mod memory;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod period;
#[cfg(test)]
mod properties;
mod refusal;
mod request;
pub mod reservation;
pub mod reservations;
pub mod rule;
pub mod settle;
pub mod store;
pub mod text;
pub mod throttle;
pub mod top_keys;
pub mod window;

pub use db_key::{DbKey, OwnedDbKey};
pub use decide::{read, AwaitedLimit, Found, Judged, Mode, Part, Plan};
pub use decision::{Ask, Decision, Manner, Obstacle, Quantity, Verdict};
pub use expiry::Expiry;
pub use groups::{combine, denials, PartDecision, Standing};
pub use refusal::Refusal;
pub use request::{Limit, NewReservation, Request, WindowLimit};

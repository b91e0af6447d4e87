//! The algorithms. They know neither Redis nor a clock: state and `now` go in, a decision and the next
//! state come out.
#![forbid(unsafe_code)]

pub mod decimal;
pub mod decision;
pub mod period;
pub mod throttle;

//! The algorithms. They know neither Redis nor a clock: state and `now` go in, a decision and the next
//! state come out.
#![forbid(unsafe_code)]

pub mod all;
pub mod calendar;
pub mod decimal;
pub mod decision;
pub mod event;
pub mod expiry;
pub mod heavy;
pub mod held;
pub mod index;
pub mod line;
#[cfg(test)]
mod memory;
pub mod period;
#[cfg(test)]
mod properties;
pub mod request;
pub mod reservation;
pub mod rule;
pub mod throttle;
pub mod window;

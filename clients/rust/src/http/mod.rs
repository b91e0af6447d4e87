//! HTTP: headers for the state of limits, problem details of denials, addresses of clients for keys, and a middleware.
//!
//! [`headers()`] writes `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-10, `X-RateLimit-Limit`,
//! `X-RateLimit-Remaining` and `X-RateLimit-Reset`, and `Retry-After`. [`Problem`] is the body of a denial, as RFC 9457
//! defines it. With the feature `tower`, the module `tower` limits the requests to a service. With the feature `http`,
//! `retry_after` reads how long another service asks to wait.

mod address;
mod headers;
mod problem;
#[cfg(feature = "http")]
mod retry_after;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub mod tower;

pub use address::client_address;
pub use headers::{headers, ReplyWithOptions};
pub use problem::{Problem, PROBLEM_TYPE};
#[cfg(feature = "http")]
#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
pub use retry_after::retry_after;

#[cfg(test)]
mod tests;

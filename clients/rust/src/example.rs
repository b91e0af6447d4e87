//! The lines around the examples in doc comments.

/// Begins or ends an example in a doc comment. Each example runs as a test; rustdoc hides the lines that begin with `#`.
///
/// - `limiter`: the example has a [`MemoryLimiter`](crate::MemoryLimiter).
/// - `evening`: as `limiter`, at 18:00 UTC.
/// - `bare`: the example makes what it needs.
/// - `tower`: as `bare`, with a service `hello`.
macro_rules! example {
    (bare) => {
        "```
# use redis_ratelimit_client::{http::*, transport::*, *};
# use std::{future::IntoFuture, sync::Arc, time::{Duration, UNIX_EPOCH}};
# #[tokio::main(flavor = \"current_thread\")]
# async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {"
    };
    (limiter) => {
        concat!(example!(bare), "\nlet limiter = MemoryLimiter::new();")
    };
    (evening) => {
        concat!(
            example!(bare),
            "
# let clock = || UNIX_EPOCH + Duration::from_secs(18 * 3600);
# let limiter = MemoryLimiter::builder().clock(clock).build();"
        )
    };
    (tower) => {
        concat!(
            example!(bare),
            "
# use redis_ratelimit_client::tower::*;
# use std::convert::Infallible;
# use ::http::{Request, Response};
# use ::tower::{service_fn, Layer, ServiceExt};
# let hello = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });"
        )
    };
    (end) => {
        "# Ok(())\n# }\n```"
    };
}

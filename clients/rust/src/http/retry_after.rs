//! The time that another service asks its callers to wait.

use std::time::{Duration, SystemTime};

/// The longest that a key can be closed.
const MAX: Duration = Duration::from_secs(31_557_600);

/// Reads how long another service asks to wait, from the `Retry-After` of its response. `None` if there is nothing to wait
/// for: no such header, one that cannot be read, 0, or a date before `now`. At most a year of 365.25 days is returned, the
/// longest that a key can be closed.
///
/// `value` is the value of the header, as text or as it is in a `HeaderMap`: seconds or a date.
///
/// ```
/// # use redis_ratelimit_client::{http::retry_after, MemoryLimiter, Rate};
/// # use std::time::{Duration, SystemTime};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// # let response = http::Response::builder().status(429).header("retry-after", "30").body(())?;
/// let rate = Rate::per("30/s")?;
/// // The service has answered 429: nobody asks it until then.
/// if let Some(wait) = retry_after(response.headers().get("retry-after"), SystemTime::now()) {
///     let _ = limiter.close("upstream", &rate, wait).await?;
/// }
/// let denied = limiter.take("upstream", &rate).await?;
/// assert!(denied.retry_after > Some(Duration::from_secs(15)));
/// # Ok(()) }
/// ```
pub fn retry_after(value: Option<impl AsRef<[u8]>>, now: SystemTime) -> Option<Duration> {
    let value = value?;
    let text = std::str::from_utf8(value.as_ref()).ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait = match is_number {
        true => Duration::from_secs(text.parse().unwrap_or(u64::MAX)),
        false => httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?,
    };
    Some(wait.min(MAX)).filter(|wait| !wait.is_zero())
}

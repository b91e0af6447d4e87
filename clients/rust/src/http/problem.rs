//! Problem details.

use std::fmt;

use super::headers::{headers, named, quoted, ReplyWithOptions};
use crate::Error;

/// The media type of a [`Problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// The body of the response to a request that is refused, its status and its headers. Its `Display` is JSON, to be sent as
/// [`PROBLEM_TYPE`]. With the feature `axum` it is a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Problem {
    /// Limits denied the request: `quota-exceeded` with status 429.
    QuotaExceeded {
        /// The names of the limits that denied.
        violated_policies: Vec<String>,
        /// The replies to the request, for the headers.
        replies: Vec<ReplyWithOptions>,
    },
    /// Nobody could decide, because Redis could not be reached: `temporary-reduced-capacity` with status 503.
    ReducedCapacity,
    /// Redis had no time to decide ([`Error::Busy`]): the same, with a `Retry-After` of a second.
    Busy,
    /// The request could not be decided because the program or the setup is wrong: status 500.
    Internal,
}

impl Problem {
    /// Returns the problem of a request that these replies deny; `None` if they allow it.
    ///
    /// A denial by a server or by the limiter that decides in its place is [`Problem::QuotaExceeded`]. If nobody decided one
    /// that is denied, it is [`Problem::ReducedCapacity`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{http::{Problem, ReplyWithOptions}, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("1/min")?;
    /// let allowed = ReplyWithOptions::new(limiter.take("user:1", &window).await?);
    /// assert_eq!(Problem::of(&[allowed]), None);
    /// let denied = ReplyWithOptions::new(limiter.take("user:1", &window).await?);
    /// assert!(Problem::of(&[denied]).is_some_and(|problem| problem.status() == 429));
    /// # Ok(()) }
    /// ```
    pub fn of(replies: &[ReplyWithOptions]) -> Option<Problem> {
        let mut denied = replies.iter().filter(|each| !each.reply().is_allowed()).peekable();
        denied.peek()?;
        if denied.any(|each| !each.reply().decided) {
            return Some(Problem::ReducedCapacity);
        }
        let violated = named(replies).into_iter().filter(|(_, item)| item.has_denied);
        let violated_policies = violated.map(|(_, item)| item.name.into_owned()).collect();
        Some(Problem::QuotaExceeded { violated_policies, replies: replies.to_vec() })
    }

    /// Returns the status of the response: 429, 503, or 500 if the program or the setup is wrong.
    pub fn status(&self) -> u16 {
        match self {
            Problem::QuotaExceeded { .. } => 429,
            Problem::ReducedCapacity | Problem::Busy => 503,
            Problem::Internal => 500,
        }
    }

    /// Returns the headers of the response: those of the limits, as [`headers()`] writes them, with `Retry-After`.
    ///
    /// ```
    /// # use redis_ratelimit_client::{http::Problem, Error, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("1000/min")?.unit("tokens")?;
    /// let reserved = limiter.acquire("tokens", &tokens).quantity(800).await?;
    /// let denied = limiter.acquire("tokens", &tokens).quantity(800).await.unwrap_err();
    /// let headers = Problem::from(denied).headers();
    /// assert_eq!(headers[0], ("ratelimit-policy", r#""default";q=1000;qu="tokens";w=60"#.to_owned()));
    /// // The reservation may be released at any time.
    /// assert_eq!(headers.last(), Some(&("retry-after", "1".to_owned())));
    /// # Ok(()) }
    /// ```
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Problem::QuotaExceeded { replies, .. } => headers(replies),
            Problem::Busy => vec![("retry-after", "1".to_owned())],
            Problem::ReducedCapacity | Problem::Internal => Vec::new(),
        }
    }
}

impl From<&Error> for Problem {
    /// An error that becomes [`Problem::Internal`] is reported by an event, because the response does not show it.
    fn from(error: &Error) -> Problem {
        match error {
            Error::Denied(reply) => {
                let replies = [ReplyWithOptions::new(reply.as_ref().clone())];
                Problem::of(&replies).unwrap_or(Problem::Internal)
            }
            Error::Busy(_) => Problem::Busy,
            error if error.is_transient() => Problem::ReducedCapacity,
            error => {
                tracing::error!(%error, "a request could not be decided");
                Problem::Internal
            }
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        Problem::from(&error)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TYPES: &str = "https://iana.org/assignments/http-problem-types";
        let (name, title, violated) = match self {
            Problem::QuotaExceeded { violated_policies, .. } => {
                let title = "Request cannot be satisfied as assigned quota has been exceeded";
                ("quota-exceeded", title, violated_policies.as_slice())
            }
            Problem::ReducedCapacity | Problem::Busy => {
                let title =
                    "Request cannot be satisfied due to temporary server capacity constraints";
                ("temporary-reduced-capacity", title, [].as_slice())
            }
            Problem::Internal => {
                let title = "Internal Server Error";
                return write!(f, r#"{{"type":"about:blank","title":"{title}","status":500}}"#);
            }
        };
        // In JSON a string of printable ASCII is written as in RFC 9651.
        let violated: Vec<_> = violated.iter().map(|name| quoted(name)).collect();
        let (status, violated) = (self.status(), violated.join(","));
        write!(f, r#"{{"type":"{TYPES}#{name}","title":"{title}","status":{status},"#)?;
        write!(f, r#""violated-policies":[{violated}]}}"#)
    }
}

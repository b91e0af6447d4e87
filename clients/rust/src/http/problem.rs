//! Problem details.

use std::fmt;

use super::headers::{named, quoted, ReplyWithOptions};
use crate::Error;

/// The media type of a [`Problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// The body of the response to a request that is refused, and its status. Its `Display` is JSON, to be sent as
/// [`PROBLEM_TYPE`]. With the feature `axum` it is a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Problem {
    /// Limits denied the request: `quota-exceeded` with status 429.
    QuotaExceeded {
        /// The names of the limits that denied.
        violated_policies: Vec<String>,
    },
    /// Nobody could decide, because Redis could not be reached or had no time for it ([`Error::Busy`]):
    /// `temporary-reduced-capacity` with status 503.
    ReducedCapacity,
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
        Some(Problem::QuotaExceeded { violated_policies })
    }

    /// Returns the status of the response: 429, 503, or 500 if the program or the setup is wrong.
    pub fn status(&self) -> u16 {
        match self {
            Problem::QuotaExceeded { .. } => 429,
            Problem::ReducedCapacity => 503,
            Problem::Internal => 500,
        }
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Problem {
        match error {
            Error::Denied(reply) => {
                let replies = [ReplyWithOptions::new(reply.as_ref().clone())];
                Problem::of(&replies).unwrap_or(Problem::Internal)
            }
            error if error.is_transient() => Problem::ReducedCapacity,
            _ => Problem::Internal,
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
            Problem::QuotaExceeded { violated_policies } => {
                let title = "Request cannot be satisfied as assigned quota has been exceeded";
                ("quota-exceeded", title, violated_policies.as_slice())
            }
            Problem::ReducedCapacity => {
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

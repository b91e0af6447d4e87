//! The errors, and all their texts.

use std::fmt;
use std::time::Duration;

use crate::transport::ErrorReply;
use crate::AllReply;

/// The hint for the unit m.
const NOT_M: &str = ", and not m, which may be min or mo";

/// The reason why a call has no answer.
#[doc = example!(limiter)]
/// match limiter.acquire("jobs", &Semaphore::new(0)).await {
///     Ok(_) => unreachable!("the semaphore has no place"),
///     Err(Error::Denied(reply)) => assert_eq!(reply.retry_after, None), // never allowed
///     Err(error) if error.is_transient() => println!("answer 503: {error}"),
///     Err(error) => return Err(error.into()),
/// }
#[doc = example!(end)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A limit or an argument is not valid. Nothing was sent.
    InvalidArgument(String),
    /// A reservation was denied. The reply says why, and when to try again. Of a single limit it has one answer.
    Denied(Box<AllReply>),
    /// The lease of these limits ended before the reservation was settled, so nothing was counted or given back for them.
    Lapsed {
        /// The limits by name; a single limit is named after its key.
        limits: Vec<String>,
    },
    /// The call was not answered in time by a server that answers others. [`Unreachable`](crate::Unreachable) does not
    /// apply, so that a flood is not let through. The answer to an HTTP request is 503.
    Busy(String),
    /// No server answered. The call may have been counted, unless `is_sent` is false.
    Unreachable {
        /// A description for people.
        reason: String,
        /// True if the call was sent.
        is_sent: bool,
    },
    /// The server does not know the command: it has no redis-ratelimit, or one that is older than the command.
    MissingModule {
        /// Its host and port.
        server: String,
        /// The server's error.
        reply: ErrorReply,
    },
    /// The server has no policy of the name that the call gives.
    UnknownPolicy(ErrorReply),
    /// Another error reply. It means that the program or the setup is wrong.
    Server(ErrorReply),
    /// The server did not let the client in, such as for a wrong password.
    Login(String),
    /// The reply is not one of redis-ratelimit.
    UnexpectedReply(String),
    /// The [`Local`](crate::Local) was closed.
    Closed,
    /// The call needs a tokio runtime, and there is none.
    NoRuntime,
    /// The operating system has no random bytes for the id of a reservation.
    NoRandomBytes,
}

impl Error {
    /// Returns whether the call may be tried again later: the server answered only others, or did not answer at all.
    #[doc = example!(bare)]
    /// let limiter = Limiter::open("redis://127.0.0.1:1/")?; // nothing listens there
    /// let error = limiter.take("user:1", &Window::per("5/min")?).await.unwrap_err();
    /// assert!(error.is_transient());
    #[doc = example!(end)]
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Busy(_) | Error::Unreachable { .. })
    }

    /// Returns the code of an error reply, such as `WRONGTYPE`.
    #[doc = example!(limiter)]
    /// let error = limiter.take("user:1", &Window::policy("free")).await.unwrap_err();
    /// assert_eq!(error.code(), Some("NOPOLICY"));
    #[doc = example!(end)]
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::MissingModule { reply, .. }
            | Error::UnknownPolicy(reply)
            | Error::Server(reply) => Some(&reply.code),
            _ => None,
        }
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. })
    }

    /// With `has_m` the unit is m.
    pub(crate) fn per(text: &str, has_m: bool) -> Error {
        let hint = if has_m { NOT_M } else { "" };
        Error::InvalidArgument(format!(
            "{text:?} must be a count, / and a period, such as \"30/min\" or \"5/10s\", with a unit of ms, s, min, h, d, w, \
             mo, y{hint}"
        ))
    }

    /// With `has_m` the unit is m.
    pub(crate) fn period(text: &str, has_m: bool) -> Error {
        let hint = if has_m { NOT_M } else { "" };
        Error::InvalidArgument(format!(
            "{text:?} must be seconds, or a number with a unit of ms, s, min, h, d, w, mo, y{hint}"
        ))
    }

    pub(crate) fn period_of_zero(text: &str) -> Error {
        Error::InvalidArgument(format!("the period must be above 0, not as in {text:?}"))
    }

    pub(crate) fn rate_without_period() -> Error {
        Error::InvalidArgument("the period of a rate must be above 0".into())
    }

    pub(crate) fn rate_of_zero() -> Error {
        Error::InvalidArgument("the count of a rate must be at least 1, not 0".into())
    }

    pub(crate) fn rate_of_months(period: impl fmt::Display) -> Error {
        Error::InvalidArgument(format!(
            "the period of a rate must not be in months or years, which differ in length: {period}"
        ))
    }

    pub(crate) fn buckets_and_fixed() -> Error {
        Error::InvalidArgument("a window must not have both buckets and fixed windows".into())
    }

    pub(crate) fn capacity_of_zero() -> Error {
        Error::InvalidArgument("capacity must be at least 1, not 0".into())
    }

    pub(crate) fn set_by_policy(what: &str, name: &str) -> Error {
        Error::InvalidArgument(format!("the server sets the {what} of the policy {name:?}"))
    }

    pub(crate) fn unit(unit: &str) -> Error {
        Error::InvalidArgument(format!(
            "unit must be printable ASCII such as \"tokens\", not {unit:?}"
        ))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn address(error: &dyn fmt::Display) -> Error {
        Error::InvalidArgument(format!("the server's address is not valid: {error}"))
    }

    #[cfg(any(feature = "redis", feature = "fred"))]
    pub(crate) fn no_servers(what: &str) -> Error {
        Error::InvalidArgument(format!("there must be at least one {what}"))
    }

    pub(crate) fn deadline() -> Error {
        Error::InvalidArgument("deadline must be above 0".into())
    }

    pub(crate) fn no_clauses() -> Error {
        Error::InvalidArgument("there must be at least one limit".into())
    }

    pub(crate) fn same_name(name: &str) -> Error {
        Error::InvalidArgument(format!("two limits must not have the same name, which is {name:?}"))
    }

    pub(crate) fn option_of_clause(option: &str, command: &str, name: &str) -> Error {
        Error::InvalidArgument(format!(
            "{option} must not be used with {command}, as for the limit {name:?}"
        ))
    }

    pub(crate) fn charge_of_options(name: &str) -> Error {
        Error::InvalidArgument(format!(
            "a charge takes rates and windows without options and groups, unlike the limit {name:?}"
        ))
    }

    pub(crate) fn must_be_acquired(name: &str) -> Error {
        Error::InvalidArgument(format!("the limit {name:?} reserves: use acquire_all"))
    }

    pub(crate) fn reserves_nothing() -> Error {
        Error::InvalidArgument(
            "acquire_all must have at least one limit made by Clause::acquire that takes something"
                .into(),
        )
    }

    pub(crate) fn unknown_limit<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Error {
        let names: Vec<_> = names.map(|each| format!("{each:?}")).collect();
        Error::InvalidArgument(format!("there is no limit {name:?}, but {}", names.join(", ")))
    }

    pub(crate) fn cost_of_several() -> Error {
        Error::InvalidArgument("the cost of several limits must be set for each by name".into())
    }

    pub(crate) fn cost_of_counted(name: &str) -> Error {
        Error::InvalidArgument(format!(
            "the limit {name:?} reserves nothing: it was counted when it was asked"
        ))
    }

    pub(crate) fn cost_of_semaphore(name: &str) -> Error {
        Error::InvalidArgument(format!(
            "the limit {name:?} is a semaphore, which is only given back"
        ))
    }

    /// `connect_error` is the reason why there was no connection.
    pub(crate) fn no_reply_in_time(
        server: &str,
        waited: Duration,
        is_sent: bool,
        connect_error: Option<String>,
    ) -> Error {
        let cause = connect_error.map(|error| format!(": {error}")).unwrap_or_default();
        let reason = format!("{server} did not answer within {} ms{cause}", waited.as_millis());
        Error::Unreachable { reason, is_sent }
    }

    pub(crate) fn failed_before(server: &str, reason: &str) -> Error {
        Error::Unreachable { reason: format!("{server} does not answer: {reason}"), is_sent: false }
    }

    pub(crate) fn lost(server: &str, reason: &str, is_sent: bool) -> Error {
        Error::Unreachable { reason: format!("{server}: {reason}"), is_sent }
    }

    pub(crate) fn answers_others(server: &str, waited: Duration) -> Error {
        Error::Busy(format!(
            "{server} answers, but did not answer this call within {} ms",
            waited.as_millis()
        ))
    }

    pub(crate) fn server_is_full(server: &str) -> Error {
        Error::Busy(format!("{server} has no connection to give: max number of clients reached"))
    }

    pub(crate) fn cross_slot() -> Error {
        Error::Server(ErrorReply::new("CROSSSLOT the keys of one step must lie in one slot"))
    }

    pub(crate) fn unexpected(what: &str, value: &dyn fmt::Debug) -> Error {
        Error::UnexpectedReply(format!("{what} must be part of the reply, not {value:?}"))
    }

    pub(crate) fn runtime_ended() -> Error {
        let reason = "the runtime was shut down before the server answered".into();
        Error::Unreachable { reason, is_sent: true }
    }

    pub(crate) fn lease_of_semaphore() -> Error {
        Error::InvalidArgument(
            "a lease is of a window, and not of a semaphore: the period must not be 0".into(),
        )
    }

    pub(crate) fn short_lease(least_ms: u64, ms: u64) -> Error {
        Error::InvalidArgument(format!("lease must be at least {least_ms} ms, not {ms} ms"))
    }

    pub(crate) fn late_batches(lease_ms: u64) -> Error {
        let reason = format!("no batch arrived within its lease of {lease_ms} ms");
        Error::Unreachable { reason, is_sent: true }
    }

    pub(crate) fn quantity_of_zero() -> Error {
        Error::InvalidArgument("quantity must be at least 1, not 0".into())
    }

    pub(crate) fn header_name(name: &str) -> Error {
        Error::InvalidArgument(format!(
            "a name in HTTP headers must be printable ASCII, not {name:?}"
        ))
    }
}

#[cfg(feature = "memory")]
impl Error {
    pub(crate) fn share(part: u32, whole: u32) -> Error {
        Error::InvalidArgument(format!("a share must be above 0 and at most 1, not {part}/{whole}"))
    }

    pub(crate) fn setting(name: &str, value: &str, why: &str) -> Error {
        Error::InvalidArgument(format!("{name} must not be {value:?}: {why}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument(text)
            | Error::Busy(text)
            | Error::Login(text)
            | Error::UnexpectedReply(text)
            | Error::Unreachable { reason: text, .. } => f.write_str(text),
            Error::Denied(reply) => match reply.retry_after {
                Some(wait) => write!(f, "denied; allowed in {} ms", wait.as_millis()),
                None => f.write_str("denied, and never allowed"),
            },
            Error::Lapsed { limits } => {
                let names: Vec<_> = limits.iter().map(|each| format!("{each:?}")).collect();
                write!(f, "the lease ended before its work did: {}", names.join(", "))
            }
            Error::MissingModule { server, reply } => write!(
                f,
                "{server} has no redis-ratelimit, or one that does not know this command: {reply}"
            ),
            Error::UnknownPolicy(reply) | Error::Server(reply) => write!(f, "{reply}"),
            Error::Closed => f.write_str("the local limit was closed"),
            Error::NoRuntime => f.write_str("there is no tokio runtime to ask the server in"),
            Error::NoRandomBytes => {
                f.write_str("the operating system has no random bytes for the id of a reservation")
            }
        }
    }
}

impl std::error::Error for Error {}

//! The errors, and all their texts.

use std::fmt;
use std::time::Duration;

use crate::transport::ErrorReply;
use crate::{AllReply, Period};

/// Returns the hint for a unit that may be minutes or months.
pub(crate) fn not_m(unit: &str) -> &'static str {
    if unit.eq_ignore_ascii_case("m") {
        ", and not m, which may be min or mo"
    } else {
        ""
    }
}

/// Returns names for a text.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("{name:?}")).collect();
    names.join(", ")
}

/// The reason why a call has no answer.
///
/// ```
/// # use redis_ratelimit_client::{Error, MemoryLimiter, Semaphore};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// match limiter.acquire("jobs", &Semaphore::new(0)).await {
///     Ok(_) => unreachable!("the semaphore has no place"),
///     Err(Error::Denied(reply)) => assert_eq!(reply.retry_after, None), // never allowed
///     Err(error) if error.is_transient() => println!("answer 503: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
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
    /// The server replied to other calls, but not to this one in time, or it accepts no more connections.
    /// [`Unreachable`](crate::Unreachable) does not apply, so that an overload is not let through. The answer to an HTTP
    /// request is 503.
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
    /// The id of the reservation is held already, or waits. After a lost reply it means that the first call reserved.
    Duplicate(ErrorReply),
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
    /// Returns whether the call may succeed later: the server replied only to other calls, or not at all.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Busy(_) | Error::Unreachable { .. })
    }

    /// Returns the code of an error reply, such as `WRONGTYPE`.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let error = limiter.take("user:1", &Window::policy("free")).await.unwrap_err();
    /// assert_eq!(error.code(), Some("NOPOLICY"));
    /// # Ok(()) }
    /// ```
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::MissingModule { reply, .. }
            | Error::UnknownPolicy(reply)
            | Error::Duplicate(reply)
            | Error::Server(reply) => Some(&reply.code),
            _ => None,
        }
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. })
    }

    /// Returns the error that an error reply means. NOPOLICY means [`Error::UnknownPolicy`] only if the call names a policy.
    pub(crate) fn from_reply(reply: ErrorReply, has_policy: bool) -> Error {
        match reply.code.as_str() {
            "DUPLICATE" => Error::Duplicate(reply),
            "NOPOLICY" if has_policy => Error::UnknownPolicy(reply),
            _ => Error::Server(reply),
        }
    }

    pub(crate) fn no_reply_in_time(server: &str, waited: Duration, is_sent: bool) -> Error {
        let reason = format!("{server} did not answer within {} ms", waited.as_millis());
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

    pub(crate) fn late_batches(lease_ms: u64) -> Error {
        let reason = format!("no batch arrived within its lease of {lease_ms} ms");
        Error::Unreachable { reason, is_sent: true }
    }
}

/// Writes a function for each text, which returns it as an [`Error::InvalidArgument`].
macro_rules! invalid_arguments {
    ($($(#[$attribute:meta])* $name:ident($($argument:ident: $type:ty),*) => $text:literal;)+) => {
        impl Error {
            $($(#[$attribute])*
            pub(crate) fn $name($($argument: $type),*) -> Error {
                Error::InvalidArgument(format!($text))
            })+
        }
    };
}

invalid_arguments! {
    /// The hint is [`not_m`].
    per(text: &str, hint: &str) =>
        "{text:?} must be a count, / and a period, such as \"30/min\" or \"5/10s\", with a unit of ms, s, min, h, d, w, mo, \
         y{hint}";
    /// The hint is [`not_m`].
    period(text: &str, hint: &str) =>
        "{text:?} must be seconds, or a number with a unit of ms, s, min, h, d, w, mo, y{hint}";
    period_of_zero(text: &str) => "the period must be above 0, not as in {text:?}";
    rate_of_months(period: Period) =>
        "the period of a rate must not be in months or years, which differ in length: {period}";
    set_by_policy(what: &str, name: &str) => "the server sets the {what} of the policy {name:?}";
    unit(unit: &str) => "unit must be printable ASCII such as \"tokens\", not {unit:?}";
    address(error: &dyn fmt::Display) => "the server's address is not valid: {error}";
    no_nodes() => "there must be at least one node";
    no_clauses() => "there must be at least one limit";
    same_name(name: &str) => "two limits must not have the same name, which is {name:?}";
    option_of_clause(option: &str, command: &str, name: &str) =>
        "{option} must not be used with {command}, as for the limit {name:?}";
    force_of_options(name: &str) =>
        "force takes rates and windows without options and groups, unlike the limit {name:?}";
    must_be_acquired(name: &str) => "the limit {name:?} reserves: use acquire_all";
    reserves_nothing() =>
        "acquire_all must have at least one limit made by Clause::acquire that takes something";
    unknown_limit(name: &str, names: &str) => "there is no limit {name:?}, but {names}";
    cost_of_several() => "the cost of several limits must be set for each by name";
    cost_of_counted(name: &str) => "the limit {name:?} reserves nothing: it was counted when it was asked";
    cost_of_semaphore(name: &str) => "the limit {name:?} is a semaphore, which is only given back";
    semaphore_not_acquired() =>
        "a semaphore is acquired, and neither taken from nor closed: the period must not be 0";
    lease_of_semaphore() =>
        "a lease is of a window, and not of a semaphore: the period must not be 0";
    short_lease(least_ms: u64, ms: u64) => "lease must be at least {least_ms} ms, not {ms} ms";
    /// Of what is a number or a length.
    zero(name: &str) => "{name} must be above 0";
    needs(option: &str, other: &str) => "{option} must be used with {other}: call {other}() too";
    excluded(option: &str, other: &str) => "{option} must not be used with {other}";
    name_length(most: usize, length: usize) => "by must have 1 to {most} bytes, not {length}";
    weight(most: u64, weight: u64) => "weight must be from 1 to {most}, not {weight}";
    #[cfg(feature = "tower")]
    no_layer_reserves() => "no layer has reserved anything for this request";
    #[cfg(feature = "memory")]
    share(part: u32, whole: u32) => "a share must be above 0 and at most 1, not {part}/{whole}";
    #[cfg(feature = "memory")]
    setting(name: &str, value: &str, why: &str) => "{name} must not be {value:?}: {why}";
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
                None if reply.reachable => f.write_str("denied, and never allowed"),
                None => f.write_str("denied, because no server answers"),
            },
            Error::Lapsed { limits } => {
                let limits = listed(limits.iter().map(String::as_str));
                write!(f, "the lease ended before its work did: {limits}")
            }
            Error::MissingModule { server, reply } => write!(
                f,
                "{server} has no redis-ratelimit, or one that does not know this command: {reply}"
            ),
            Error::UnknownPolicy(reply) | Error::Duplicate(reply) | Error::Server(reply) => {
                write!(f, "{reply}")
            }
            Error::Closed => f.write_str("the local limit was closed"),
            Error::NoRuntime => f.write_str("there is no tokio runtime to ask the server in"),
            Error::NoRandomBytes => {
                f.write_str("the operating system has no random bytes for the id of a reservation")
            }
        }
    }
}

impl std::error::Error for Error {}

//! One server: the connection that its calls share, and its breaker.

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{timeout, timeout_at, Instant};

use crate::breaker::{Breaker, PROBE};
use crate::library::{Failure, Link, Source};
use crate::transport::{Command, ErrorReply, Value};
use crate::Error;

/// The maximum number of calls in flight on a connection. Further calls wait, and are not sent if they are given up.
const MAX_IN_FLIGHT: usize = 256;
/// A connection that was idle for this long may have been closed without this program having noticed.
const IDLE: Duration = Duration::from_millis(1);
/// A reply to another call in the first 1/EARLY of the deadline does not show that the server still replies at its end.
const EARLY: u32 = 5;
/// The number of yields to the runtime after which that is noticed: one polls the system, and in the next the task that reads
/// the connection ends.
const TURNS: usize = 3;
/// The longest that a call goes on after its deadline, because the timer fired late.
const MAX_MORE: Duration = Duration::from_millis(20);
/// The time limit for connecting, if the deadline is not longer, and for the commands of a local limit and renewals, if the
/// limiter has no deadline.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether an error reply means that the server cannot handle the call now: it is loading its data, the replica or
/// the slot has no master, or only some of the call's keys have moved to another node.
pub(crate) fn is_not_serving(reply: &ErrorReply) -> bool {
    matches!(reply.code.as_str(), "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN")
}

/// The time of a call, and how far it got.
pub(crate) struct Attempt {
    pub began: Instant,
    pub until: Option<Instant>,
    /// True if the call has BLOCK. Then it has a connection of its own, which is closed if the call is given up.
    pub waits: bool,
    /// True if something was sent, so the server may have executed it.
    pub is_sent: AtomicBool,
}

impl Attempt {
    pub fn new(within: Option<Duration>, waits: bool) -> Attempt {
        let began = Instant::now();
        let until = within.and_then(|within| began.checked_add(within));
        Attempt { began, until, waits, is_sent: AtomicBool::new(false) }
    }
}

/// One server, or the master that Sentinel names.
pub(crate) struct Server {
    source: Source,
    deadline: Option<Duration>,
    pub breaker: Breaker,
    permits: Semaphore,
    shared: Mutex<Option<Link>>,
    /// Held while the shared connection is opened. Keeps the last failure to open it.
    opening: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

impl Server {
    pub fn new(source: Source, deadline: Option<Duration>) -> Server {
        Server {
            source,
            deadline,
            breaker: Breaker::default(),
            permits: Semaphore::new(MAX_IN_FLIGHT),
            shared: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the name of the server in error messages.
    pub fn name(&self) -> String {
        self.source.to_string()
    }

    /// Returns the host and the port; `None` if it is no server that is reached by TCP.
    pub fn address(&self) -> Option<(&str, u16)> {
        self.source.address()
    }

    /// Returns the host to use for a cluster node that does not know its own host.
    pub fn host(&self) -> &str {
        self.address().map_or("", |(host, _)| host)
    }

    /// Sends commands, and returns the replies, error replies among them. An error is the one that the call ends with, unless
    /// `unreachable` decides.
    pub async fn exchange(
        self: &Arc<Self>,
        commands: &[Command],
        attempt: &Attempt,
    ) -> Result<Vec<Value>, Error> {
        let exchanged = bounded(attempt.until, pin!(self.try_exchange(commands, attempt))).await;
        let Some(exchanged) = exchanged else { return Err(self.timed_out(attempt)) };
        let replies = exchanged.map_err(|failure| self.failed(failure, attempt))?;
        self.record_reply();
        let is_demoted =
            |reply: &Value| matches!(reply, Value::Error(error) if error.code == "READONLY");
        if replies.iter().any(is_demoted) {
            // The next call looks for the master again.
            self.disconnect();
        }
        Ok(replies)
    }

    async fn try_exchange(
        self: &Arc<Self>,
        commands: &[Command],
        attempt: &Attempt,
    ) -> Result<Vec<Value>, Failure> {
        if self.breaker.is_open() {
            self.probe().await?;
        }
        let _permit = if attempt.waits { None } else { self.permits.acquire().await.ok() };
        let link = match attempt.waits {
            // Boxed, so that the future of other calls stays small.
            true => Box::pin(self.source.connect(self.deadline.unwrap_or(DEFAULT_TIMEOUT))).await?,
            false => self.connection(attempt.began).await?,
        };
        attempt.is_sent.store(true, Relaxed);
        link.send(commands).await.map_err(Failure::NoReply)
    }

    /// Returns the connection that calls share. If there is none, it is opened once for all calls that need it, in a task,
    /// because that may take longer than a call's deadline.
    async fn connection(self: &Arc<Self>, began: Instant) -> Result<Link, Failure> {
        let replied_at = self.breaker.replied_at();
        if replied_at.is_some_and(|at| began.saturating_duration_since(at) > IDLE) {
            for _ in 0..TURNS {
                yield_now().await;
            }
        }
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let server = Arc::clone(self);
        let opening = tokio::spawn(async move {
            let mut last_failure = server.opening.lock().await;
            if let Some(link) = server.open_link() {
                return Ok(link);
            }
            // Another call has tried while this one waited.
            if let Some((_, failure)) = last_failure.as_ref().filter(|(at, _)| *at >= began) {
                return Err(failure.clone());
            }
            let longest = server.deadline.unwrap_or_default().max(DEFAULT_TIMEOUT);
            let opened = server.source.connect(longest).await;
            match &opened {
                Ok(link) => *server.shared() = Some(link.clone()),
                Err(failure) => *last_failure = Some((Instant::now(), failure.clone())),
            }
            opened
        });
        let ended = || Failure::NoReply("the runtime was shut down".into());
        opening.await.unwrap_or_else(|_| Err(ended()))
    }

    fn shared(&self) -> MutexGuard<'_, Option<Link>> {
        // Nothing panics while it is held.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_link(&self) -> Option<Link> {
        self.shared().clone().filter(Link::is_open)
    }

    /// Makes the next call connect again. Calls in flight may finish.
    fn disconnect(&self) {
        *self.shared() = None;
    }

    /// Checks whether the server is back: connects again, and sends PING. One call at a time does this. Returns `Ok` if the
    /// server answers.
    ///
    /// The call that starts the probe still ends at its deadline. The probe goes on, because connecting may take longer than
    /// that.
    async fn probe(self: &Arc<Self>) -> Result<(), Failure> {
        if !self.breaker.may_probe(Instant::now()) {
            return Err(Failure::BreakerIsOpen);
        }
        let server = Arc::clone(self);
        let probing = tokio::spawn(async move {
            let attempt = Attempt::new(Some(PROBE), false);
            let pinging = async {
                let link = server.source.connect(PROBE).await?;
                link.clone().send(&[Command::new("PING")]).await.map_err(Failure::NoReply)?;
                Ok(link)
            };
            let in_time = timeout(PROBE, pinging).await;
            match in_time.unwrap_or_else(|_| Err(Failure::NoReply("no reply to PING".into()))) {
                Ok(link) => {
                    *server.shared() = Some(link);
                    server.record_reply();
                }
                Err(failure) => drop(server.failed(failure, &attempt)),
            }
            server.breaker.end_probe(Instant::now());
        });
        let _ = probing.await;
        match self.breaker.is_open() {
            true => Err(Failure::BreakerIsOpen),
            false => Ok(()),
        }
    }

    fn record_reply(&self) {
        if self.breaker.record_reply(Instant::now()) {
            tracing::info!(server = %self.source, "the server answers again: the breaker is closed");
        }
    }

    fn record_failure(&self, began: Instant, reason: &str) {
        if self.breaker.record_failure(began, Instant::now(), reason) {
            tracing::warn!(server = %self.source, reason, "the server does not answer: the breaker is open");
            self.disconnect();
        }
    }

    /// Records why a call failed before its deadline, and returns its error.
    fn failed(&self, failure: Failure, attempt: &Attempt) -> Error {
        match failure {
            Failure::BreakerIsOpen => Error::failed_before(&self.name(), &self.breaker.reason()),
            Failure::Login(reason) => {
                self.record_reply();
                Error::Login(reason)
            }
            Failure::Full => {
                self.record_reply();
                Error::server_is_full(&self.name())
            }
            Failure::NoReply(reason) => {
                self.record_failure(attempt.began, &reason);
                Error::lost(&self.name(), &reason, attempt.is_sent.load(Relaxed))
            }
        }
    }

    /// Returns the error of a call that got no reply by its deadline.
    fn timed_out(&self, attempt: &Attempt) -> Error {
        let waited = attempt.began.elapsed();
        // The server may have replied while the call waited (BLOCK), and hang now.
        let since = attempt
            .until
            .zip(self.deadline)
            .and_then(|(until, deadline)| until.checked_sub(deadline));
        let since = since.map_or(attempt.began, |since| since.max(attempt.began));
        let early = since.elapsed().checked_div(EARLY).and_then(|early| since.checked_add(early));
        let replied_at = self.breaker.replied_at();
        if replied_at.zip(early).is_some_and(|(at, early)| at > early) {
            return Error::answers_others(&self.name(), waited);
        }
        if replied_at.is_none_or(|at| at < since) {
            self.disconnect();
        }
        let is_sent = attempt.is_sent.load(Relaxed);
        let error = Error::no_reply_in_time(&self.name(), waited, is_sent);
        self.record_failure(since, &error.to_string());
        error
    }

    /// Returns the error that an error reply of this server means, see [`Error::from_reply`].
    pub fn error(&self, reply: ErrorReply, has_policy: bool) -> Error {
        match reply.code.as_str() {
            _ if is_not_serving(&reply) => Error::lost(&self.name(), &reply.to_string(), false),
            // Redis has no error code for an unknown command.
            "ERR" if reply.message.to_ascii_lowercase().starts_with("unknown command") => {
                Error::MissingModule { server: self.name(), reply }
            }
            _ => Error::from_reply(reply, has_policy),
        }
    }
}

/// Waits for the outcome of a call until its deadline. If the program was busy, so that the timer fires late, waits for that
/// much longer: the call may have been written only now, or a reply has arrived and was not read.
async fn bounded<T>(
    until: Option<Instant>,
    mut work: Pin<&mut (impl Future<Output = T> + Send)>,
) -> Option<T> {
    let Some(until) = until else { return Some(work.await) };
    if let Ok(done) = timeout_at(until, work.as_mut()).await {
        return Some(done);
    }
    let late = until.elapsed().min(MAX_MORE);
    timeout(late, work).await.ok()
}

//! Sends calls, and decides them if no server can be reached.
//!
//! ```text
//! limiter.take(..).await
//!   Groups::request     checks the limits, and writes the commands          calls.rs, clause.rs, limit.rs
//!   Core::send          the deadline, and what decides without replies      core.rs
//!   Core::execute       several commands are one transaction
//!   Routes::route       the node of the key, and redirections               cluster.rs
//!   Server::exchange    the connection to one server, and its breaker       server.rs
//!   Link::send          the crate redis, or another client library          library.rs
//!   Groups::read        the meaning of the replies                          calls.rs, reply.rs
//! ```

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::calls::Request;
use crate::cluster::Routes;
use crate::server::{is_not_serving, Attempt, DEFAULT_TIMEOUT};
use crate::transport::{BoxFuture, Command, ErrorReply, Servers, Value};
use crate::{Error, Limiter};

/// The pauses before each try to give back in the background, in milliseconds. Together they are as long as the server's
/// default lease.
pub(crate) const PAUSES_MS: [u64; 6] = [0, 50, 250, 1000, 4000, 15_000];

/// What a limiter returns while no server can be reached. Error replies always remain errors. Calls that settle, list or
/// inspect keys always return the error.
///
/// ```
/// # use redis_ratelimit_client::{Limiter, MemoryLimiter, Unreachable, Window};
/// # use redis_ratelimit_client::transport::Servers;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder(Servers::open("redis://127.0.0.1:1/")?) // nothing listens there
///     .unreachable(Unreachable::Limiter(MemoryLimiter::new().into()))
///     .build()?;
/// let reply = limiter.take("user:1", &Window::per("5/min")?).await?;
/// assert_eq!((reply.remaining, reply.reachable), (4, false));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Unreachable {
    /// [`Error::Unreachable`].
    #[default]
    Error,
    /// Allows every call, and counts nothing.
    Allow,
    /// Denies every call.
    Deny,
    /// Lets another limiter decide. It also settles what it reserved.
    Limiter(Limiter),
}

/// A clock that a test sets.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The state of a limiter, which its clones share.
pub(crate) struct Core {
    routes: Routes,
    pub unreachable: Unreachable,
    deadline: Option<Duration>,
    /// The keys in memory, if the limiter uses those instead of a server.
    pub memory: Option<Arc<dyn InMemory>>,
}

/// The keys of a [`MemoryLimiter`](crate::MemoryLimiter), which the feature `memory` adds.
pub(crate) trait InMemory: Send + Sync {
    /// Returns the clock that a test sets, if there is one.
    fn clock(&self) -> Option<Clock>;

    /// Returns the replies to commands that do not wait, without others between them.
    fn execute_together(&self, commands: &[Command]) -> Vec<Value>;
}

/// The outcome of a call.
pub(crate) enum Outcome {
    /// The replies: a single one, one for each command of a transaction, or one from each node. The limiter is the one that
    /// decided in place of the server.
    Replies(Vec<Value>, Option<Limiter>),
    /// No server could be reached. The call is allowed if this is true.
    Unreached(bool),
}

/// What decides a call if no server can be reached.
pub(crate) enum Fallback<'a> {
    /// The call is allowed if this is true.
    Answer(bool),
    Limiter(&'a Limiter),
}

impl Core {
    pub fn new(servers: Servers, unreachable: Unreachable, deadline: Option<Duration>) -> Core {
        Core { routes: Routes::new(servers, deadline), unreachable, deadline, memory: None }
    }

    /// Returns the clock that a test sets, if there is one.
    pub fn clock(&self) -> Option<Clock> {
        self.memory.as_ref().and_then(|memory| memory.clock())
    }

    /// Sends a call, and returns its outcome. If no server can be reached, `unreachable` determines the outcome. Dropping the
    /// future gives up the call: a call that waits leaves its line, and whatever the call takes after that is given back.
    pub async fn send(self: &Arc<Core>, request: Request) -> Result<Outcome, Error> {
        if let Some(outcome) = self.decide(&request) {
            return outcome;
        }
        let deadline = match request.block {
            Some(block) if block.is_zero() => None,
            Some(block) => self.deadline.map(|deadline| deadline.saturating_add(block)),
            None => self.deadline,
        };
        let attempt = Attempt::new(deadline.or(request.within), request.block.is_some());
        let call = Arc::new(Sent { core: Arc::clone(self), request, attempt });
        let mut awaited = Awaited { call: Arc::clone(&call), work: None };
        let outcome = awaited.work.insert(call.outcome()).await;
        awaited.work = None;
        outcome
    }

    /// Returns what decides a call that ended with this error, and reports that it does. The error is returned unless
    /// `unreachable` applies.
    pub fn fallback(&self, error: Error) -> Result<Fallback<'_>, Error> {
        let fallback = match &self.unreachable {
            _ if !error.is_unreachable() => return Err(error),
            Unreachable::Error => return Err(error),
            Unreachable::Allow => Fallback::Answer(true),
            Unreachable::Deny => Fallback::Answer(false),
            Unreachable::Limiter(limiter) => Fallback::Limiter(limiter),
        };
        tracing::debug!(%error, "a call is decided without the server");
        Ok(fallback)
    }

    /// Sends commands on one key together and returns their replies, error replies among them, or why there are none and
    /// whether the server may have executed the commands. `unreachable` does not apply. `has_policy` is true if they name a
    /// policy.
    pub async fn send_together(
        &self,
        commands: &[Command],
        has_policy: bool,
    ) -> Result<Vec<Result<Value, Error>>, (Error, bool)> {
        // Many takes, and closing, wait for the outcome.
        let attempt = Attempt::new(Some(self.deadline.unwrap_or(DEFAULT_TIMEOUT)), false);
        let key = commands.first().and_then(|first| first.word(1)).unwrap_or_default();
        let error = match self.routes.route(key, commands, &attempt).await {
            Ok((replies, server)) => match find_error(&replies, is_not_serving) {
                Some(error) => server.error(error, has_policy),
                None => {
                    let result = |reply| match reply {
                        Value::Error(error) => Err(server.error(error, has_policy)),
                        reply => Ok(reply),
                    };
                    return Ok(replies.into_iter().map(result).collect());
                }
            },
            Err(error) => error,
        };
        Err((error, attempt.is_sent.load(Relaxed)))
    }

    /// Sends the commands of a request, several of them as a transaction. An error reply is an error.
    async fn execute(&self, request: &Request, attempt: &Attempt) -> Result<Vec<Value>, Error> {
        let commands = &request.commands;
        let is_transaction = commands.len() > 1;
        let (mut replies, server) = match request.key() {
            None => Box::pin(self.routes.route_to_each(commands, attempt)).await?,
            Some(key) if !is_transaction => self.routes.route(key, commands, attempt).await?,
            Some(key) => {
                let keys = commands.iter().filter_map(|command| command.word(1));
                if !self.routes.are_in_one_slot(keys) {
                    return Err(Error::cross_slot());
                }
                let mut all = vec![Command::new("MULTI")];
                all.extend_from_slice(commands);
                all.push(Command::new("EXEC"));
                self.routes.route(key, &all, attempt).await?
            }
        };
        if let Some(error) = find_error(&replies, |_| true) {
            return Err(server.error(error, request.has_policy));
        }
        match replies.pop() {
            Some(Value::Array(replies)) if is_transaction => Ok(replies),
            last => {
                replies.extend(last);
                Ok(replies)
            }
        }
    }

    /// Releases in the background what a call may have reserved whose replies were lost, until one release finds it, or two
    /// do not: the server may grant it after the first, before it notices that the connection is closed, or when it goes on
    /// after it hung. If that fails, it is held until its lease ends.
    fn release_lost(self: &Arc<Core>, request: &Request) {
        let Some(release) = request.undo_request(None) else { return };
        let core = Arc::clone(self);
        tokio::spawn(async move {
            let mut has_missed = false;
            for pause in PAUSES_MS {
                sleep(Duration::from_millis(pause)).await;
                match core.send(release.clone()).await {
                    Ok(Outcome::Replies(counts, _)) if counts.contains(&Value::Integer(1)) => {
                        return;
                    }
                    Ok(_) if has_missed => return,
                    Ok(_) => has_missed = true,
                    Err(error) if error.code().is_some() => return,
                    Err(_) => {}
                }
            }
        });
    }
}

/// Decides calls on keys in memory.
impl Core {
    /// Decides a call on keys in memory; `None` if it is for a server or may wait.
    fn decide(&self, request: &Request) -> Option<Result<Outcome, Error>> {
        let memory = self.memory.as_ref().filter(|_| request.block.is_none())?;
        let replies = memory.execute_together(&request.commands);
        Some(match (replies.as_slice(), &self.routes) {
            ([Value::Error(reply)], Routes::One(server)) if request.commands.len() == 1 => {
                Err(server.error(reply.clone(), request.has_policy))
            }
            _ => Ok(Outcome::Replies(replies, None)),
        })
    }
}

fn find_error(replies: &[Value], is_sought: impl Fn(&ErrorReply) -> bool) -> Option<ErrorReply> {
    replies.iter().find_map(|reply| match reply {
        Value::Error(error) if is_sought(error) => Some(error.clone()),
        _ => None,
    })
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A call that was sent, see [`Core::send`].
struct Sent {
    core: Arc<Core>,
    request: Request,
    attempt: Attempt,
}

impl Sent {
    /// Returns a box, because a call may be decided by a call of another limiter.
    fn outcome(self: Arc<Sent>) -> BoxFuture<'static, Result<Outcome, Error>> {
        Box::pin(async move {
            // Outside of a runtime the timer panics.
            if Handle::try_current().is_err() {
                return Err(Error::NoRuntime);
            }
            let Sent { core, request, attempt } = &*self;
            let error = match core.execute(request, attempt).await {
                Ok(replies) => return Ok(Outcome::Replies(replies, None)),
                Err(error) => error,
            };
            let is_lost =
                matches!(error, Error::Busy(_) | Error::Unreachable { is_sent: true, .. });
            if is_lost && attempt.is_sent.load(Relaxed) {
                core.release_lost(request);
            }
            if !request.is_decision {
                return Err(error);
            }
            match core.fallback(error)? {
                Fallback::Answer(allow) => Ok(Outcome::Unreached(allow)),
                Fallback::Limiter(limiter) => match limiter.core().send(request.clone()).await? {
                    Outcome::Replies(replies, by) => {
                        Ok(Outcome::Replies(replies, by.or_else(|| Some(limiter.clone()))))
                    }
                    unreached => Ok(unreached),
                },
            }
        })
    }
}

/// A call whose outcome somebody waits for. If it is dropped before, what the call takes is given back.
struct Awaited {
    call: Arc<Sent>,
    /// `None` if it is done.
    work: Option<BoxFuture<'static, Result<Outcome, Error>>>,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        let call = Arc::clone(&self.call);
        let is_sent = call.attempt.is_sent.load(Relaxed);
        if !is_sent || call.request.undo.is_none() {
            return;
        }
        // Giving back needs a runtime. Without one, what the call took counts until its period or lease ends.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let outcome = if call.request.block.is_some() {
                // Read a reply that has already arrived before the connection is closed.
                yield_now().await;
                timeout(Duration::ZERO, work.as_mut()).await.ok()
            } else {
                Some(work.as_mut().await)
            };
            drop(work);
            let core = &call.core;
            match outcome {
                Some(Ok(Outcome::Replies(replies, None))) => {
                    if let Some(undo) = call.request.undo_request(replies.first()) {
                        let _ = core.send(undo).await;
                    }
                }
                // Nothing was taken, the call itself releases what it may have reserved, or another limiter decided. What
                // that one took counts until its period or lease ends.
                Some(_) => {}
                None => core.release_lost(&call.request),
            }
        });
    }
}

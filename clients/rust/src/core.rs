//! Sends calls, and decides them if no server can be reached.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{sleep, Instant};

use crate::attempt::{bounded, poll_once, Attempt};
use crate::calls::Request;
use crate::server::{is_not_serving, SendError, DEFAULT_TIMEOUT};
use crate::servers::{Route, Routes};
use crate::transport::{BoxFuture, Command, ErrorReply, Servers, Value};
use crate::{Error, Limiter};

/// The maximum number of redirections of a call. If the nodes of a cluster disagree, MOVED replies would never end.
const REDIRECTS: usize = 5;
/// A reply to another call in the first 1/EARLY of a call's time does not show that the server still replies at its end.
const EARLY: u32 = 5;
/// The pauses before the releases of a reservation whose reply was lost, in milliseconds: until one finds it, or two do not,
/// for as long as the server's default lease. The server may grant it after the first, before it notices that the connection
/// is closed, or when it goes on after it hung.
const RELEASES_MS: [u64; 6] = [0, 50, 250, 1000, 4000, 15_000];

/// What a limiter returns while no server can be reached. Error replies always remain errors. Calls that settle, list or
/// inspect keys always return the error.
#[doc = example!(bare)]
/// let limiter = Limiter::builder(Servers::open("redis://127.0.0.1:1/")?) // nothing listens there
///     .unreachable(Unreachable::Limiter(MemoryLimiter::new().into()))
///     .build()?;
/// let reply = limiter.take("user:1", &Window::per("5/min")?).await?;
/// assert_eq!((reply.remaining, reply.reachable), (4, false));
#[doc = example!(end)]
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

/// A function that is called with each error of settling in the background.
pub(crate) type Hook = Arc<dyn Fn(&Error) + Send + Sync>;

/// A clock that a test sets.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The state of a limiter, which its clones share.
pub(crate) struct Core {
    routes: Routes,
    pub unreachable: Unreachable,
    deadline: Option<Duration>,
    pub on_unsettled: Option<Hook>,
    /// The keys in memory, if the limiter uses those instead of a server.
    pub memory: Option<Arc<dyn InMemory>>,
}

/// The keys of a [`MemoryLimiter`](crate::MemoryLimiter), which the feature `memory` adds.
pub(crate) trait InMemory: Send + Sync {
    /// Returns the clock that a test sets, if there is one.
    fn clock(&self) -> Option<Clock>;

    /// Returns the replies to commands that do not wait, without others between them.
    fn ask_together(&self, commands: &[Command]) -> Vec<Value>;
}

/// The outcome of a call.
pub(crate) enum Outcome {
    /// The replies: a single one, one for each command of a transaction, or one from each node. The limiter is the one that
    /// decided in place of the server.
    Replies(Vec<Value>, Option<Limiter>),
    /// No server could be reached. The call is allowed if this is true.
    Unreached(bool),
}

/// The reason why commands that were sent together got no replies.
#[derive(Debug)]
pub(crate) struct Failed {
    pub error: Error,
    /// True if the server may have executed them.
    pub is_sent: bool,
}

impl Core {
    pub fn new(
        servers: Servers,
        unreachable: Unreachable,
        deadline: Option<Duration>,
        on_unsettled: Option<Hook>,
    ) -> Core {
        Core {
            routes: Routes::new(servers, deadline),
            unreachable,
            deadline,
            on_unsettled,
            memory: None,
        }
    }

    /// Returns the clock that a test sets, if there is one.
    pub fn clock(&self) -> Option<Clock> {
        self.memory.as_ref().and_then(|memory| memory.clock())
    }

    /// Sends a call, and returns its outcome. If no server can be reached, `unreachable` determines the outcome. Dropping the
    /// future gives up the call: a call that waits leaves its line, and whatever the call takes after that is given back.
    pub async fn send(self: &Arc<Core>, request: Request) -> Result<Outcome, Error> {
        match self.decide(&request) {
            Some(outcome) => outcome,
            None => PendingCall::new(self, request).await,
        }
    }

    async fn run(self: Arc<Core>, call: Arc<Call>) -> Result<Outcome, Error> {
        // Outside of a runtime the timer panics.
        if Handle::try_current().is_err() {
            return Err(Error::NoRuntime);
        }
        let Call { request, attempt } = &*call;
        let result = bounded(attempt, pin!(self.ask(request, attempt))).await;
        let error = match result {
            Some(Ok(replies)) => return Ok(Outcome::Replies(replies, None)),
            Some(Err(error)) => self.request_error(error, request.has_policy, attempt),
            None => self.deadline_error(attempt),
        };
        // A call that waits leaves its line on the server before another limiter decides.
        attempt.drop_link();
        let is_lost = matches!(error, Error::Busy(_) | Error::Unreachable { is_sent: true, .. });
        if is_lost && attempt.is_sent.load(Relaxed) {
            if let Some(release) = request.undo_request(None) {
                tokio::spawn(Arc::clone(&self).release_lost(release));
            }
        }
        if !request.is_decision || !error.is_unreachable() {
            return Err(error);
        }
        match &self.unreachable {
            Unreachable::Error => Err(error),
            Unreachable::Allow => Ok(Outcome::Unreached(true)),
            Unreachable::Deny => Ok(Outcome::Unreached(false)),
            Unreachable::Limiter(limiter) => match limiter.core().send(request.clone()).await? {
                Outcome::Replies(replies, by) => {
                    Ok(Outcome::Replies(replies, by.or_else(|| Some(limiter.clone()))))
                }
                unreached => Ok(unreached),
            },
        }
    }

    /// Sends commands on one key together and returns their replies, error replies among them. `unreachable` does not apply.
    /// `has_policy` is true if they name a policy.
    pub async fn send_together(
        &self,
        commands: &[Command],
        has_policy: bool,
    ) -> Result<Vec<Result<Value, Error>>, Failed> {
        // Many takes, and closing, wait for the outcome.
        let attempt = Attempt::new(Some(self.deadline.unwrap_or(DEFAULT_TIMEOUT)));
        let key = commands.first().and_then(|first| first.word(1)).unwrap_or_default();
        let asking = async {
            let replies = self.follow_redirects(key, commands, false, &attempt).await?;
            replies_unless(replies, is_not_serving)
        };
        let error = match bounded(&attempt, pin!(asking)).await {
            Some(Ok(replies)) => {
                let result = |reply| match reply {
                    Value::Error(error) => {
                        Err(self.request_error(SendError::Reply(error), has_policy, &attempt))
                    }
                    reply => Ok(reply),
                };
                return Ok(replies.into_iter().map(result).collect());
            }
            Some(Err(error)) => self.send_error(error, &attempt),
            None => self.deadline_error(&attempt),
        };
        Err(Failed { error, is_sent: attempt.is_sent.load(Relaxed) })
    }

    async fn ask(&self, request: &Request, attempt: &Attempt) -> Result<Vec<Value>, SendError> {
        let Some(key) = request.key() else {
            return self.ask_each(&request.commands, attempt).await;
        };
        if let [_] = request.commands.as_slice() {
            let is_alone = request.block.is_some();
            let replies = self.follow_redirects(key, &request.commands, is_alone, attempt).await?;
            return replies_unless(replies, |_| true);
        }
        let keys = request.commands.iter().filter_map(|command| command.word(1));
        if !self.routes.are_in_one_slot(keys) {
            let error = Error::cross_slot();
            let reply = ErrorReply::new(&error.to_string());
            return Err(SendError::Reply(reply));
        }
        let mut commands = vec![Command::new("MULTI")];
        commands.extend_from_slice(&request.commands);
        commands.push(Command::new("EXEC"));
        let replies = self.follow_redirects(key, &commands, false, attempt).await?;
        match replies_unless(replies, |_| true)?.pop() {
            Some(Value::Array(replies)) => Ok(replies),
            // Without WATCH, EXEC never replies nil.
            _ => Ok(Vec::new()),
        }
    }

    /// Sends commands to the server of their key, and follows redirections: of a transaction all commands are sent again,
    /// and else those that were redirected. Returns the replies, error replies among them.
    async fn follow_redirects(
        &self,
        key: &[u8],
        commands: &[Command],
        is_alone: bool,
        attempt: &Attempt,
    ) -> Result<Vec<Value>, SendError> {
        let server = self.routes.find(key, attempt).await?;
        let mut route = Route { server, asking: false };
        let mut replies = self.exchange(&route, commands, is_alone, attempt).await?;
        for _ in 0..REDIRECTS {
            let redirected = |(at, reply): (usize, &Value)| match reply {
                Value::Error(error) => Some((at, self.routes.redirected(error, &route.server)?)),
                _ => None,
            };
            let redirected = replies.iter().enumerate().filter_map(redirected);
            let (mut again, targets): (Vec<_>, Vec<_>) = redirected.unzip();
            let Some(target) = targets.into_iter().last() else { break };
            if is_transaction(commands) {
                again = (0..commands.len()).collect();
            }
            route = target;
            let sent: Vec<_> = again.iter().filter_map(|at| commands.get(*at).cloned()).collect();
            let found = self.exchange(&route, &sent, is_alone, attempt).await?;
            for (at, reply) in again.into_iter().zip(found) {
                if let Some(place) = replies.get_mut(at) {
                    *place = reply;
                }
            }
        }
        Ok(replies)
    }

    /// Sends a command to each node of a cluster, and returns one reply from each.
    async fn ask_each(
        &self,
        commands: &[Command],
        attempt: &Attempt,
    ) -> Result<Vec<Value>, SendError> {
        let mut all = Vec::new();
        for server in self.routes.all(attempt).await? {
            let route = Route { server, asking: false };
            all.extend(self.exchange(&route, commands, false, attempt).await?);
        }
        replies_unless(all, |_| true)
    }

    /// Sends commands to one server, and returns the replies, error replies among them.
    async fn exchange(
        &self,
        route: &Route,
        commands: &[Command],
        is_alone: bool,
        attempt: &Attempt,
    ) -> Result<Vec<Value>, SendError> {
        let server = &route.server;
        attempt.set_server(server);
        if server.breaker.is_open() {
            server.probe().await?;
        }
        let mut all = Cow::Borrowed(commands);
        if route.asking {
            // ASKING applies to the next command, or to a whole transaction.
            let each = if is_transaction(commands) { commands.len() } else { 1 };
            let asking = [Command::new("ASKING")];
            all = commands
                .chunks(each)
                .flat_map(|chunk| asking.iter().chain(chunk))
                .cloned()
                .collect();
        }
        let mut replies = server.send(&all, is_alone, attempt).await?;
        if route.asking {
            let mut sent = all.iter().map(|command| command.word(0));
            replies.retain(|_| sent.next() != Some(Some(b"ASKING")));
        }
        if find_error(&replies, |error| error.code == "READONLY").is_some() {
            // The server became a replica. The next call looks for the master again.
            server.retire_all();
            self.routes.mark_stale();
        }
        Ok(replies)
    }

    /// Returns the error of a request that failed before its deadline. NOPOLICY means [`Error::UnknownPolicy`] only if the
    /// request names a policy.
    fn request_error(&self, error: SendError, has_policy: bool, attempt: &Attempt) -> Error {
        match self.send_error(error, attempt) {
            Error::Server(reply) if reply.code == "NOPOLICY" && has_policy => {
                Error::UnknownPolicy(reply)
            }
            other => other,
        }
    }

    /// Returns the error of a call that failed before its deadline. Updates the breaker.
    fn send_error(&self, error: SendError, attempt: &Attempt) -> Error {
        let now = Instant::now();
        let server = attempt.target().map(|(server, _)| server);
        let name = server.as_ref().map_or_else(|| "the cluster".into(), |server| server.name());
        let is_sent = attempt.is_sent.load(Relaxed);
        let record_reply = || {
            if let Some(server) = &server {
                server.breaker.record_reply(now);
            }
        };
        match error {
            SendError::Reply(reply) => {
                record_reply();
                if is_not_serving(&reply) {
                    self.routes.mark_stale();
                    return Error::lost(&name, &reply.to_string(), false);
                }
                // Redis has no error code for an unknown command.
                let message = reply.message.to_ascii_lowercase();
                if reply.code == "ERR" && message.starts_with("unknown command") {
                    return Error::MissingModule { server: name, reply };
                }
                Error::Server(reply)
            }
            SendError::Login(reason) => {
                record_reply();
                Error::Login(reason)
            }
            SendError::Full => {
                record_reply();
                Error::server_is_full(&name)
            }
            SendError::BreakerOpen => {
                let reason = server.map(|server| server.breaker.reason()).unwrap_or_default();
                Error::failed_before(&name, &reason)
            }
            SendError::Lost(reason) | SendError::Refused(reason) => {
                if server.as_ref().is_some_and(|server| server.is_full()) {
                    return Error::server_is_full(&name);
                }
                self.count_failure(&reason, attempt, now);
                Error::lost(&name, &reason, is_sent)
            }
        }
    }

    /// Returns the error of a call that got no reply before its deadline. Updates the breaker.
    fn deadline_error(&self, attempt: &Attempt) -> Error {
        let now = Instant::now();
        let waited = now.saturating_duration_since(attempt.began);
        let is_sent = attempt.is_sent.load(Relaxed);
        let Some((server, link)) = attempt.target() else {
            return Error::no_reply_in_time("the cluster", waited, is_sent, None);
        };
        let is_late = attempt.is_late.load(Relaxed);
        if is_late && server.breaker.forgives_late(attempt.began, now) {
            return Error::program_was_busy(&server.name(), waited);
        }
        if server.is_full() && !is_sent {
            return Error::server_is_full(&server.name());
        }
        let early = waited.checked_div(EARLY).and_then(|early| attempt.began.checked_add(early));
        if server.breaker.replied_at().is_some_and(|at| at > early.unwrap_or(now)) {
            return Error::answers_others(&server.name(), waited);
        }
        if let Some(link) = link.filter(|link| link.replied_at() < attempt.began) {
            server.retire(&link);
        }
        let cause = server.connect_error().filter(|_| !is_sent);
        let error = Error::no_reply_in_time(&server.name(), waited, is_sent, cause);
        if !server.breaker.is_open() {
            self.count_failure(&error.to_string(), attempt, now);
        }
        error
    }

    fn count_failure(&self, reason: &str, attempt: &Attempt, now: Instant) {
        self.routes.mark_stale();
        if let Some((server, _)) = attempt.target() {
            if server.breaker.record_failure(attempt.began, now, reason) {
                // The other connections to this server are probably dead too.
                server.retire_all();
            }
        }
    }

    /// Releases what a call may have reserved whose replies were lost. If that fails, it is held until its lease ends.
    async fn release_lost(self: Arc<Core>, release: Request) {
        let mut has_missed = false;
        for pause in RELEASES_MS {
            sleep(Duration::from_millis(pause)).await;
            match self.send(release.clone()).await {
                Ok(Outcome::Replies(counts, _)) if counts.contains(&Value::Integer(1)) => return,
                Ok(_) if has_missed => return,
                Ok(_) => has_missed = true,
                Err(error) if error.code().is_some() => return,
                Err(_) => {}
            }
        }
    }
}

/// Decides calls on keys in memory.
impl Core {
    /// Decides a call on keys in memory; `None` if it is for a server or may wait.
    fn decide(&self, request: &Request) -> Option<Result<Outcome, Error>> {
        let memory = self.memory.as_ref().filter(|_| request.block.is_none())?;
        let replies = memory.ask_together(&request.commands);
        Some(match replies.as_slice() {
            [Value::Error(reply)] if request.commands.len() == 1 => {
                let error = SendError::Reply(reply.clone());
                Err(self.request_error(error, request.has_policy, &Attempt::new(None)))
            }
            _ => Ok(Outcome::Replies(replies, None)),
        })
    }
}

fn is_transaction(commands: &[Command]) -> bool {
    commands.first().is_some_and(|first| first.word(0) == Some(b"MULTI"))
}

fn find_error(replies: &[Value], is_sought: impl Fn(&ErrorReply) -> bool) -> Option<&ErrorReply> {
    replies.iter().find_map(|reply| match reply {
        Value::Error(error) if is_sought(error) => Some(error),
        _ => None,
    })
}

/// Returns the replies, or the first error reply among them for which `is_fatal` is true.
fn replies_unless(
    replies: Vec<Value>,
    is_fatal: impl Fn(&ErrorReply) -> bool,
) -> Result<Vec<Value>, SendError> {
    let error = find_error(&replies, is_fatal).cloned();
    error.map_or(Ok(replies), |error| Err(SendError::Reply(error)))
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A call that has been started.
struct Call {
    request: Request,
    attempt: Attempt,
}

/// The future outcome of a call, see [`Core::send`].
struct PendingCall {
    core: Arc<Core>,
    call: Arc<Call>,
    /// `None` if it is done.
    work: Option<BoxFuture<'static, Result<Outcome, Error>>>,
}

impl PendingCall {
    /// Starts a call, and its deadline.
    fn new(core: &Arc<Core>, request: Request) -> PendingCall {
        let deadline = match request.block {
            Some(block) if block.is_zero() => None,
            Some(block) => core.deadline.map(|deadline| deadline.saturating_add(block)),
            None => core.deadline,
        };
        let within = deadline.or(request.within);
        let call = Arc::new(Call { request, attempt: Attempt::new(within) });
        let work = Box::pin(Arc::clone(core).run(Arc::clone(&call)));
        PendingCall { core: Arc::clone(core), call, work: Some(work) }
    }
}

impl Future for PendingCall {
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        let call = Arc::clone(&self.call);
        let is_sent = call.attempt.is_sent.load(Relaxed);
        if !is_sent || call.request.undo.is_none() {
            return;
        }
        // Giving back needs a runtime. Without one, what the call took counts until its period or lease ends.
        let Ok(runtime) = Handle::try_current() else { return };
        let core = Arc::clone(&self.core);
        runtime.spawn(async move {
            let outcome = if call.request.block.is_some() {
                // Read a reply that has already arrived before the connection is closed.
                yield_now().await;
                poll_once(work.as_mut()).await
            } else {
                Some(work.as_mut().await)
            };
            drop(work);
            call.attempt.drop_link();
            match outcome {
                Some(Ok(Outcome::Replies(replies, None))) => {
                    if let Some(undo) = call.request.undo_request(replies.first()) {
                        let _ = core.send(undo).await;
                    }
                }
                // Nothing was taken, the call itself releases what it may have reserved, or another limiter decided. What
                // that one took counts until its period or lease ends.
                Some(_) => {}
                None => {
                    if let Some(release) = call.request.undo_request(None) {
                        core.release_lost(release).await;
                    }
                }
            }
        });
    }
}

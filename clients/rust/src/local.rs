//! A limit that is decided in the process: sends the rounds of its leases, and wakes the calls that wait for them. The crate
//! `leases` decides what to send.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leases::{ErrorReply, Failure, Now, Round, TakeError, Terms, MIN_LEASE_MS};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::calls;
use crate::clause::Options;
use crate::core::{Clock, Core, Fallback};
use crate::limit::Limit;
use crate::period::whole_ms;
use crate::transport::{Command, Value};
use crate::{process, Decision, Error, Id, Limiter, Reply, Window};

type Leases = leases::Leases<Error>;

/// The number of rounds after which a take gives up, because others spend what arrives.
const ROUNDS: usize = 20;
/// The default lease.
const LEASE: Duration = Duration::from_millis(100);

/// The clocks that decide when a lease ends.
enum Clocks {
    System {
        start: Instant,
    },
    /// The clock of a test, used as both clocks.
    Set(Clock),
}

fn as_ns(length: Duration) -> i64 {
    // Faster than `as_nanos`, which uses 128 bits.
    let ns = length.as_secs().saturating_mul(1_000_000_000);
    i64::try_from(ns.saturating_add(length.subsec_nanos().into())).unwrap_or(i64::MAX)
}

fn since_1970_ns(time: SystemTime) -> i64 {
    as_ns(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

impl Clocks {
    #[inline]
    fn now(&self) -> Now {
        match self {
            Clocks::System { start } => Now {
                monotonic_ns: as_ns(start.elapsed()),
                wall_ns: since_1970_ns(SystemTime::now()),
            },
            Clocks::Set(clock) => {
                let ns = since_1970_ns(clock());
                Now { monotonic_ns: ns, wall_ns: ns }
            }
        }
    }
}

/// Returns the terms of leases of a window.
///
/// # Errors
///
/// [`Error::InvalidArgument`] if the window is not valid, its period is 0, it has a ban, or the lease is too short.
fn terms(key: &[u8], window: &Window, lease: Duration, leave: u64) -> Result<Terms, Error> {
    let limit = window.to_any();
    limit.check()?;
    if limit.ban.is_some() {
        return Err(Error::excluded("a ban", "a local limit"));
    }
    if limit.is_semaphore() {
        return Err(Error::lease_of_semaphore());
    }
    let numbers = window.numbers();
    let lease_ms = whole_ms(lease);
    if lease_ms < MIN_LEASE_MS {
        return Err(Error::short_lease(MIN_LEASE_MS, lease_ms));
    }
    // A window of the calendar may end at any time, so a reservation may stop counting as soon as it lapses.
    let is_first = window.starts_at().is_some_and(|start| start.eq_ignore_ascii_case("first"));
    let is_calendar = window.is_fixed() && !is_first;
    let counted = numbers.filter(|_| !is_calendar).map(|(_, period)| period.least_duration());
    let mut command = Command::new("");
    limit.write(&mut command, 0, &Options::default(), false);
    let before = if numbers.is_some() { 2 } else { 1 };
    // Without the name, and without the quantity.
    let mut words = command.words().skip(1).map(<[u8]>::to_vec);
    let window = words.by_ref().take(before).collect();
    Ok(Terms {
        key: key.into(),
        window,
        options: words.skip(1).collect(),
        limit: numbers.map(|(limit, _)| limit),
        counted_ms: whole_ms(counted.unwrap_or_default()),
        lease_ms,
        leave,
    })
}

/// Returns a value without what leases do not need to know.
fn as_lease_value(value: &Value) -> leases::Value {
    match value {
        Value::Nil | Value::Error(_) => leases::Value::Nil,
        Value::Integer(number) => leases::Value::Integer(*number),
        Value::Bytes(_) => leases::Value::Text,
        Value::Array(values) => leases::Value::Array(values.iter().map(as_lease_value).collect()),
    }
}

#[inline]
fn as_reply(reply: leases::Reply) -> Reply {
    Reply {
        decision: match reply.decision {
            leases::Decision::Allowed => Decision::Allowed,
            leases::Decision::Denied => Decision::Denied,
            leases::Decision::Held => Decision::Held,
        },
        limit: reply.limit,
        remaining: reply.remaining,
        retry_after: reply.retry_after_ms.map(Duration::from_millis),
        reset_after: Duration::from_millis(reply.reset_after_ms),
        reachable: true,
        decided: true,
        ..Reply::unreached(true)
    }
}

impl From<TakeError> for Error {
    fn from(error: TakeError) -> Error {
        match error {
            TakeError::Closed => Error::Closed,
            TakeError::Semaphore => Error::lease_of_semaphore(),
        }
    }
}

struct State {
    leases: Leases,
    /// True while a worker task is running.
    has_worker: bool,
    /// The runtime to start the worker in if a take that needs it is called outside of a runtime.
    runtime: Option<Handle>,
}

/// The leases of one process. A forked child has its own, because only its parent may spend the parent's.
struct Process {
    id: u32,
    state: Mutex<State>,
    /// The leases may have something to send.
    due: Notify,
    /// A round is over, or the worker has ended.
    round_over: Notify,
    child: OnceLock<Box<Process>>,
}

impl Process {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Shared {
    core: Arc<Core>,
    window: Window,
    terms: Terms,
    clocks: Clocks,
    first: Process,
}

impl Shared {
    fn new(
        core: &Arc<Core>,
        window: &Window,
        terms: Terms,
        clock: Option<Clock>,
    ) -> Result<Shared, Error> {
        process::watch();
        let clocks = clock.map_or_else(|| Clocks::System { start: Instant::now() }, Clocks::Set);
        let first = Shared::process(&terms, &clocks, Id::random()?, Handle::try_current().ok());
        Ok(Shared { core: Arc::clone(core), window: window.clone(), terms, clocks, first })
    }

    fn process(terms: &Terms, clocks: &Clocks, prefix: Id, runtime: Option<Handle>) -> Process {
        let leases = Leases::new(terms.clone(), prefix.to_string(), clocks.now());
        Process {
            id: process::id(),
            state: Mutex::new(State { leases, has_worker: false, runtime }),
            due: Notify::new(),
            round_over: Notify::new(),
            child: OnceLock::new(),
        }
    }

    /// Returns the leases of this process.
    #[inline]
    fn current(&self) -> Result<&Process, Error> {
        let mut found = &self.first;
        while found.id != process::id() {
            found = self.child_of(found)?;
        }
        Ok(found)
    }

    #[cold]
    fn child_of<'a>(&'a self, parent: &'a Process) -> Result<&'a Process, Error> {
        if let Some(child) = parent.child.get() {
            return Ok(child);
        }
        let prefix = Id::random()?;
        let make = || Box::new(Shared::process(&self.terms, &self.clocks, prefix, None));
        Ok(parent.child.get_or_init(make))
    }

    fn error(&self, failure: &Failure<Error>) -> Error {
        match failure {
            Failure::Error(error) => error.clone(),
            Failure::Unreadable(value) => Error::unexpected("a decision or a count", value),
            Failure::LateBatches => Error::late_batches(self.terms.lease_ms),
        }
    }

    /// Returns the result of a take for which the server could not be reached, as `unreachable` says.
    async fn answer_instead(&self, error: Error, quantity: u64) -> Result<Reply, Error> {
        let quantity = i64::try_from(quantity).unwrap_or(i64::MAX);
        match self.core.fallback(error)? {
            Fallback::Answer(allow) => Ok(calls::unreached(allow, quantity, &Options::default())),
            Fallback::Limiter(limiter) => {
                let take = limiter.take(&self.terms.key, &self.window).quantity(quantity);
                let reply = take.leave(self.terms.leave).await?;
                Ok(Reply { reachable: false, ..reply })
            }
        }
    }

    /// Starts or wakes the worker, because the leases have something to send. Returns false if that needs a runtime and there
    /// is none.
    #[cold]
    fn wake(self: &Arc<Shared>, process: &Process, mut state: MutexGuard<'_, State>) -> bool {
        if state.has_worker {
            process.due.notify_one();
            return true;
        }
        let Some(runtime) = Handle::try_current().ok().or_else(|| state.runtime.clone()) else {
            return false;
        };
        state.has_worker = true;
        // A runtime that is shutting down drops the task at once, and dropping the task takes the lock.
        drop(state);
        let worker = Worker { shared: Arc::clone(self), round: None, is_done: false };
        runtime.spawn(worker.work());
        true
    }
}

/// The task that sends the rounds of the leases, until there is nothing more to do.
struct Worker {
    shared: Arc<Shared>,
    /// The round that is under way.
    round: Option<Round>,
    /// True if it ended because there was nothing more to do.
    is_done: bool,
}

impl Worker {
    async fn work(mut self) {
        let shared = Arc::clone(&self.shared);
        let Ok(process) = shared.current() else { return };
        loop {
            let next_at_ns = {
                let mut state = process.lock();
                let now = shared.clocks.now();
                state.leases.take_due();
                self.round = state.leases.next_round(now);
                let next_at_ns = state.leases.next_at(now);
                if self.round.is_none() {
                    if next_at_ns.is_none() {
                        state.has_worker = false;
                        self.is_done = true;
                    }
                    process.round_over.notify_waiters();
                }
                next_at_ns.map(|at_ns| at_ns.saturating_sub(now.monotonic_ns))
            };
            if self.is_done {
                return;
            }
            match &self.round {
                Some(round) => {
                    let commands: Vec<_> =
                        round.commands.iter().map(|words| as_command(words)).collect();
                    let has_policy = shared.terms.limit.is_none();
                    let outcome = shared.core.send_together(&commands, has_policy).await;
                    self.report(process, outcome);
                }
                None => {
                    let wait_ns = next_at_ns.unwrap_or(0).max(0).unsigned_abs();
                    let due = process.due.notified();
                    let _ = tokio::time::timeout(Duration::from_nanos(wait_ns), due).await;
                }
            }
        }
    }

    fn report(
        &mut self,
        process: &Process,
        outcome: Result<Vec<Result<Value, Error>>, (Error, bool)>,
    ) {
        let Some(round) = self.round.take() else { return };
        let mut state = process.lock();
        let now = self.shared.clocks.now();
        match outcome {
            Ok(replies) => {
                let replies = replies.into_iter().map(|reply| match reply {
                    Ok(value) => Ok(as_lease_value(&value)),
                    Err(error) => {
                        let code = error.code().unwrap_or_default().to_string();
                        Err(ErrorReply { code, error })
                    }
                });
                state.leases.receive(round, replies.collect(), now);
            }
            Err((error, is_sent)) => state.leases.fail(round, error, is_sent, now),
        }
        process.round_over.notify_waiters();
    }
}

fn as_command(words: &[Vec<u8>]) -> Command {
    let mut words = words.iter();
    let name = words.next().map(|name| String::from_utf8_lossy(name));
    let mut command = Command::new(&name.unwrap_or_default());
    for word in words {
        command.arg(word);
    }
    command
}

impl Drop for Worker {
    /// Reports that the runtime was shut down, unless the task ended by itself.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let Ok(process) = shared.current() else { return };
        self.report(process, Err((Error::runtime_ended(), true)));
        process.lock().has_worker = false;
        process.round_over.notify_waiters();
    }
}

/// A limit that is decided in the process, see [`Limiter::local`](crate::Limiter::local).
///
/// Threads and tasks may share it. It talks to the server in a task of the tokio runtime in which it is used. Without a
/// runtime nothing is settled, and what is held counts as spent. After fork(2), the child holds nothing of its parent's, and
/// needs its own runtime.
///
/// When it is dropped, what it holds is settled in the background; [`Local::close`] waits for that.
pub struct Local {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("terms", &self.shared.terms).finish_non_exhaustive()
    }
}

impl Limiter {
    /// Creates a limit that is decided in the process, for a window. A [`Local`] reserves a batch of the window, decides by
    /// itself in less than a microsecond while the batch's lease lasts, and settles what it spent when it reserves the next
    /// batch. All processes together never spend more than the limit in any period.
    ///
    /// A process that dies loses its batch for the whole period. A batch is the amount expected within half a lease, so use
    /// short leases for long periods.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("100000/min")?;
    /// let local = limiter.local("ingest", &window).lease(Duration::from_millis(200)).build()?;
    /// assert!(local.take(1).await?.is_allowed());
    /// local.close().await?; // settles what is held
    /// # Ok(()) }
    /// ```
    pub fn local<'a, K>(&'a self, key: &'a K, window: &'a Window) -> LocalBuilder<'a>
    where
        K: AsRef<[u8]> + ?Sized,
    {
        LocalBuilder { core: self.core(), key: key.as_ref(), window, lease: LEASE, leave: 0 }
    }
}

/// Builds a [`Local`], see [`Limiter::local`].
#[derive(Debug)]
#[must_use]
pub struct LocalBuilder<'a> {
    core: &'a Arc<Core>,
    key: &'a [u8],
    window: &'a Window,
    lease: Duration,
    leave: u64,
}

impl LocalBuilder<'_> {
    /// Sets how long a batch may be spent, from 20 ms; the default is 100 ms. The last tenth of it, and at least 2 ms, is
    /// not used.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the quantity that must remain for others; the default is 0.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("100/min")?;
    /// let local = limiter.local("ingest", &window).leave(100).build()?;
    /// assert!(!local.take(1).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn leave(mut self, leave: u64) -> Self {
        self.leave = leave;
        self
    }

    /// Builds the limit. Nothing is reserved yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the window's period is 0, it has a ban, or the lease is too short.
    pub fn build(self) -> Result<Local, Error> {
        let terms = terms(self.key, self.window, self.lease, self.leave)?;
        let shared = Shared::new(self.core, self.window, terms, self.core.clock())?;
        Ok(Local { shared: Arc::new(shared) })
    }
}

impl Local {
    /// Decides immediately. If the server must be asked, returns `None` and starts to ask. You can call it any number of
    /// times: a quantity counts as demand once, when it is decided.
    ///
    /// `limit`, `remaining` and `reset_after` of the reply are from the server's last reply.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `quantity` is 0 or the policy is a semaphore's, and [`Error::Closed`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("100000/min")?;
    /// let local = limiter.local("ingest", &window).lease(Duration::from_secs(60)).build()?;
    /// // It holds nothing yet.
    /// assert!(local.try_take(1)?.is_none());
    /// tokio::time::sleep(Duration::from_millis(10)).await;
    /// assert!(local.try_take(1)?.is_some_and(|reply| reply.is_allowed()));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn try_take(&self, quantity: u64) -> Result<Option<Reply>, Error> {
        self.decide(quantity, true)
    }

    /// Decides in the process. Returns `None` if the server must be asked, and starts to ask it if `asks` is true.
    #[inline]
    fn decide(&self, quantity: u64, asks: bool) -> Result<Option<Reply>, Error> {
        if quantity == 0 {
            return Err(Error::zero("quantity"));
        }
        let process = self.shared.current()?;
        let mut state = process.lock();
        // The lock is taken before the clock is read, so that nothing is settled between the reading and the decision.
        let now = self.shared.clocks.now();
        let reply = state.leases.take(quantity, false, now)?;
        if reply.is_none() && asks {
            // It counts as demand when it is decided: until then the caller may try any number of times.
            state.leases.want(quantity, true, now)?;
        }
        if state.leases.take_due() {
            self.shared.wake(process, state);
        }
        Ok(reply.map(as_reply))
    }

    /// Decides in the process if it holds enough, and otherwise asks the server.
    ///
    /// Dropping the future stops waiting. What was fetched for it can be spent by others, and is given back when its lease
    /// ends.
    ///
    /// # Errors
    ///
    /// Those of [`Local::try_take`], [`Error::NoRuntime`] if the server must be asked outside of a runtime, error replies of
    /// the server, and [`Error::Unreachable`] unless the limiter's `unreachable` replaces it.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("5/min")?;
    /// let local = limiter.local("ingest", &window).build()?;
    /// assert!(local.take(5).await?.is_allowed());
    /// assert!(!local.take(1).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    #[inline]
    pub async fn take(&self, quantity: u64) -> Result<Reply, Error> {
        match self.decide(quantity, false)? {
            Some(reply) => Ok(reply),
            // Boxed, so that the future of a decision in the process stays small.
            None => Box::pin(self.fetch(quantity)).await,
        }
    }

    async fn fetch(&self, quantity: u64) -> Result<Reply, Error> {
        let shared = &self.shared;
        let process = shared.current()?;
        for turn in 0..ROUNDS {
            let awaited = {
                let mut state = process.lock();
                state.leases.want(quantity, turn > 0, shared.clocks.now())?
            };
            self.wait_until(process, |state| state.leases.rounds() >= awaited).await?;
            let error = {
                let mut state = process.lock();
                let reply = state.leases.take(quantity, true, shared.clocks.now())?;
                let error = state.leases.error_since(awaited).map(|failure| shared.error(failure));
                if state.leases.take_due() {
                    shared.wake(process, state);
                }
                if let Some(reply) = reply {
                    return Ok(as_reply(reply));
                }
                error
            };
            if let Some(error) = error {
                return shared.answer_instead(error, quantity).await;
            }
        }
        let outrun = process.lock().leases.outrun_reply();
        Ok(as_reply(outrun))
    }

    /// Waits until the worker has reached a state.
    async fn wait_until(
        &self,
        process: &Process,
        is_reached: impl Fn(&State) -> bool,
    ) -> Result<(), Error> {
        loop {
            let round_over = process.round_over.notified();
            {
                let mut state = process.lock();
                if is_reached(&state) {
                    return Ok(());
                }
                // Without a worker, the runtime of the last one was shut down.
                let needs_worker = state.leases.take_due() || !state.has_worker;
                if needs_worker && !self.shared.wake(process, state) {
                    return Err(Error::NoRuntime);
                }
            }
            round_over.await;
        }
    }

    /// Settles what is held, and waits for the reply of the server. Takes that wait return [`Error::Closed`], unless a reply
    /// that is under way decides them. So do later takes, except those above the limit, or within 100 ms after a denial,
    /// which are still denied.
    ///
    /// # Errors
    ///
    /// The error reply of a server that refuses to settle, such as a replica, or [`Error::Unreachable`] unless the limiter's
    /// `unreachable` replaces it. What was held then counts when its lease ends.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Error, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let local = limiter.local("ingest", &Window::per("5/min")?).build()?;
    /// local.take(3).await?;
    /// local.close().await?;
    /// assert!(limiter.held("ingest").await?.is_empty());
    /// assert!(matches!(local.take(1).await, Err(Error::Closed)));
    /// # Ok(()) }
    /// ```
    pub async fn close(&self) -> Result<(), Error> {
        let process = self.shared.current()?;
        process.lock().leases.close();
        self.wait_until(process, |state| state.leases.is_settled()).await?;
        let unsettled = process.lock().leases.unsettled();
        let Some(failure) = unsettled else { return Ok(()) };
        self.shared.core.fallback(self.shared.error(&failure)).map(drop)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A child that never used it has nothing to settle.
        let Ok(process) = self.shared.current() else { return };
        let mut state = process.lock();
        state.leases.close();
        if state.leases.take_due() {
            self.shared.wake(process, state);
        }
    }
}

#[cfg(all(test, unix))]
mod proof;
#[cfg(test)]
mod tests;

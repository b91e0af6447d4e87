//! A limiter without a server: the engine of the server's module decides in the process, on keys in memory.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use commands::memory::{MemoryServer, Outcome, Ticket, Value as MemoryValue};
use commands::share::Share;
use tokio::sync::Notify;

use crate::core::{Clock, Core, InMemory};
use crate::transport::{BoxFuture, Command, Connection, ErrorReply, Servers, Value};
use crate::{Error, Limiter, Unreachable};

/// The pause between two readings of a test's clock while a call waits.
const POLL: Duration = Duration::from_millis(3);
/// The longest sleep of a waiting call, as the system's clock may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// The shortest sleep of a waiting call, so that the runtime can run the call whose turn is first.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// A limiter without a server, with the methods of [`Limiter`] and the replies of a server: the engine that runs in the
/// server's module decides in the process.
///
/// In tests, a clock that the test sets takes the place of sleeping. As the [`Unreachable::Limiter`] of another limiter it
/// decides while Redis is away: each process then keeps the limit, or a share of it, by itself.
///
/// Clones share the keys. Keys that have nothing counted or held are forgotten, so it takes no more memory than the limits
/// in use.
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Rate};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let rate = Rate::per("1/min")?;
/// assert!(limiter.take("user:1", &rate).await?.is_allowed());
/// assert!(!limiter.take("user:1", &rate).await?.is_allowed());
/// assert!(limiter.take("user:2", &rate).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryLimiter(Limiter);

impl MemoryLimiter {
    /// Creates a limiter with the system's clock.
    pub fn new() -> MemoryLimiter {
        MemoryLimiter::builder().build()
    }

    /// Returns a builder, to set a clock, a share, policies and settings.
    pub fn builder() -> MemoryLimiterBuilder {
        MemoryLimiterBuilder { clock: None, share: Share::ALL, settings: Vec::new() }
    }

    /// Sets a limit in the hash of limits with this key, as HSET does on a server, see [`Call::limits`](crate::Call::limits).
    /// Without a definition it removes the limit.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if the key is that of a limit.
    pub async fn define(
        &self,
        limits: impl AsRef<[u8]>,
        name: &str,
        definition: Option<&str>,
    ) -> Result<(), Error> {
        let word = if definition.is_some() { "HSET" } else { "HDEL" };
        let mut command = Command::on(word, limits.as_ref());
        command.arg(name.strip_prefix('@').unwrap_or(name).as_bytes());
        if let Some(definition) = definition {
            command.arg(definition.as_bytes());
        }
        self.ask(command).await.map(drop)
    }
}

impl Default for MemoryLimiter {
    fn default() -> MemoryLimiter {
        MemoryLimiter::new()
    }
}

impl Deref for MemoryLimiter {
    type Target = Limiter;

    fn deref(&self) -> &Limiter {
        &self.0
    }
}

impl From<MemoryLimiter> for Limiter {
    fn from(limiter: MemoryLimiter) -> Limiter {
        limiter.0
    }
}

/// Builds a [`MemoryLimiter`].
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Window};
/// # use std::time::Duration;
/// # use std::time::UNIX_EPOCH;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = || UNIX_EPOCH + Duration::from_secs(18 * 3600);
/// let builder = MemoryLimiter::builder().clock(clock).policies("day WINDOW 1000 1d FIXED")?;
/// let limiter = builder.setting("timezone", "+08:00")?.build();
/// // It is 02:00.
/// let reply = limiter.take("user:1", &Window::policy("day")).await?;
/// assert_eq!(reply.reset_after, Duration::from_secs(22 * 3600));
/// # Ok(()) }
/// ```
#[must_use]
pub struct MemoryLimiterBuilder {
    clock: Option<Clock>,
    share: Share,
    /// Names and values that a server accepts.
    settings: Vec<(String, String)>,
}

impl MemoryLimiterBuilder {
    /// Takes the time from `clock` instead of [`SystemTime::now`]. While a call waits it is read every 3 ms.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use std::time::UNIX_EPOCH;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// let now = Arc::new(AtomicU64::new(0));
    /// let clock = Arc::clone(&now);
    /// let clock = move || UNIX_EPOCH + Duration::from_secs(clock.load(Relaxed));
    /// let limiter = MemoryLimiter::builder().clock(clock).build();
    /// let window = Window::per("1/min")?;
    /// limiter.take("user:1", &window).await?;
    /// assert_eq!(limiter.look("user:1", &window).await?.retry_after, Some(Duration::from_secs(60)));
    /// now.store(60, Relaxed);
    /// assert!(limiter.take("user:1", &window).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Keeps a part of each limit, for several processes without a server: with `share(1, 4)` what is available at once is a
    /// quarter, rounded down but at least 1, so that four processes together never admit more than a limit of 4 and above.
    /// The count of a rate for each period is a quarter exactly. `leave` is rounded up, and a limit of 0 stays 0.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = MemoryLimiter::builder().share(1, 4)?.build();
    /// assert_eq!(limiter.take("user:1", &Window::per("100/min")?).await?.limit, 25);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `part` is above 0 and at most `whole`.
    pub fn share(mut self, part: u32, whole: u32) -> Result<Self, Error> {
        self.share = Share::new(part, whole).ok_or_else(|| Error::share(part, whole))?;
        Ok(self)
    }

    /// Sets the limits by name, in the words of the server's setting `ratelimit.policies`: "free WINDOW 2 1d; pro THROTTLE 9
    /// 30 60".
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the server would refuse them.
    pub fn policies(self, policies: &str) -> Result<Self, Error> {
        self.setting("policies", policies)
    }

    /// Sets another setting of the server, with or without `ratelimit.` before its name, such as `timezone`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no setting of this name, or the server would refuse the value.
    pub fn setting(mut self, name: &str, value: &str) -> Result<Self, Error> {
        let set = MemoryServer::new(fill_random).set(name.as_bytes(), value.as_bytes());
        set.map_err(|why| Error::setting(name, value, &why))?;
        self.settings.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Builds the limiter.
    pub fn build(self) -> MemoryLimiter {
        let MemoryLimiterBuilder { clock, share, settings } = self;
        let mut server = MemoryServer::with_share(share, fill_random);
        for (name, value) in settings {
            // The server of `setting` accepted it, and a share of a valid limit is valid.
            let _: Result<(), String> = server.set(name.as_bytes(), value.as_bytes());
        }
        let state = Mutex::new(State { server, waiting: 0 });
        let memory = Arc::new(Memory { state, clock, changed: Notify::new() });
        let servers = Servers::by(InProcess(Arc::clone(&memory)));
        let mut core = Core::new(servers, Unreachable::Error, None);
        core.memory = Some(memory);
        MemoryLimiter(Limiter::with_core(core))
    }
}

impl std::fmt::Debug for MemoryLimiterBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLimiterBuilder")
            .field("share", &self.share)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

fn fill_random(bytes: &mut [u8]) {
    // The limiter names its reservations by itself.
    let _ = getrandom::fill(bytes);
}

/// Keys in memory, the commands on them, and the calls that wait.
struct Memory {
    state: Mutex<State>,
    clock: Option<Clock>,
    /// Notifies waiting calls that something has changed.
    changed: Notify,
}

struct State {
    server: MemoryServer,
    /// The number of calls that wait.
    waiting: usize,
}

impl InMemory for Memory {
    fn clock(&self) -> Option<Clock> {
        self.clock.clone()
    }

    fn execute_together(&self, commands: &[Command]) -> Vec<Value> {
        let mut state = self.lock();
        commands.iter().map(|command| self.reply(&mut state, command)).collect()
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        let now = self.clock.as_ref().map_or_else(SystemTime::now, |clock| clock());
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_secs().saturating_mul(1_000_000).saturating_add(since.subsec_micros().into())
    }

    fn call(&self, state: &mut State, command: &Command) -> Outcome {
        let words: Vec<&[u8]> = command.words().collect();
        let outcome = state.server.call(&words, self.now_us());
        if state.waiting > 0 {
            self.changed.notify_waiters();
        }
        outcome
    }

    fn reply(&self, state: &mut State, command: &Command) -> Value {
        match self.call(state, command) {
            Outcome::Reply(value) => to_value(value),
            // No caller sends BLOCK here.
            Outcome::Waits(ticket) => {
                state.server.withdraw(ticket, self.now_us());
                Value::Nil
            }
        }
    }

    /// Returns the reply to a command that may wait.
    async fn execute_or_wait(&self, command: &Command) -> Value {
        let ticket = {
            let mut state = self.lock();
            match self.call(&mut state, command) {
                Outcome::Reply(value) => return to_value(value),
                Outcome::Waits(ticket) => {
                    state.waiting = state.waiting.saturating_add(1);
                    ticket
                }
            }
        };
        let waiter = Waiter { memory: self, ticket };
        loop {
            let changed = self.changed.notified();
            let sleep = {
                let mut state = self.lock();
                let now_us = self.now_us();
                if let Some(reply) = state.server.take_reply(waiter.ticket, now_us) {
                    return to_value(reply);
                }
                let next_us = state.server.next_us().unwrap_or(u64::MAX);
                let left = Duration::from_micros(next_us.saturating_sub(now_us));
                let longest = if self.clock.is_some() { POLL } else { MAX_SLEEP };
                left.clamp(MIN_SLEEP, longest)
            };
            let _ = tokio::time::timeout(sleep, changed).await;
        }
    }
}

/// Stands in for a connection, for calls that wait and for leases. Other calls are decided without it.
struct InProcess(Arc<Memory>);

impl Connection for InProcess {
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, String>> {
        Box::pin(async move {
            Ok(match commands {
                [command] => vec![self.0.execute_or_wait(command).await],
                _ => self.0.execute_together(commands),
            })
        })
    }
}

/// A call that waits. When it is dropped it leaves its line, and what it was granted is given back unless it got the reply.
struct Waiter<'a> {
    memory: &'a Memory,
    ticket: Ticket,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        state.waiting = state.waiting.saturating_sub(1);
        state.server.withdraw(self.ticket, self.memory.now_us());
        if state.waiting > 0 {
            self.memory.changed.notify_waiters();
        }
    }
}

fn to_value(value: MemoryValue) -> Value {
    match value {
        MemoryValue::Nil => Value::Nil,
        MemoryValue::Integer(number) => Value::Integer(number),
        MemoryValue::Bulk(bytes) => Value::Bytes(bytes),
        MemoryValue::Array(values) => Value::Array(values.into_iter().map(to_value).collect()),
        MemoryValue::Error(line) => Value::Error(ErrorReply::new(&line)),
    }
}

/// The examples of the page are run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct TestingPage;

#[cfg(test)]
mod tests;

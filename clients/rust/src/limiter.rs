//! The limiter and its calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::builders::{Acquire, All, Answered, Call, Look};
use crate::calls::{self, Request, Verb};
use crate::clause::{check_length, Clause};
use crate::core::{Core, Outcome};
use crate::limit::{Limit, Reserve, Take};
use crate::reply::{
    count, read_held, read_info, read_policies, read_top, Held, Id, KeyInfo, Policy, TopKey,
};
use crate::transport::{Command, Servers, Value};
use crate::{AllReply, Error, Reply, Reservation, Unreachable};

/// The default deadline.
const DEADLINE: Duration = Duration::from_secs(1);

/// Asks a server with redis-ratelimit whether calls are within their limits. It is cheap to clone, and its clones share
/// their connections.
///
/// All calls share one connection to a server; those that wait have one of their own. No call is ever sent twice. Each call
/// has a deadline, see [`Builder::deadline`]. [`Builder::unreachable`] says what it returns if no server replies by then.
///
/// If the future of a call is dropped, the call leaves the line in which it waits, and a task in the background gives back
/// whatever the call takes after that. That needs a tokio runtime and a reply of the server; otherwise a quantity counts as
/// used, and a reservation ends with its lease. A reservation whose reply is late or lost is released in the same way,
/// unless the caller gave it an id to try again with; what a call took without reserving then counts as used.
///
/// # Errors
///
/// Besides the errors that a method lists, every call returns the error replies of the server, [`Error::Busy`],
/// [`Error::Unreachable`], and [`Error::NoRuntime`] if a server must be asked outside of a tokio runtime.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<Core>);

/// Builds a [`Limiter`], see [`Limiter::builder`].
#[derive(Debug)]
pub struct Builder {
    servers: Servers,
    unreachable: Unreachable,
    deadline: Option<Duration>,
}

impl Builder {
    /// Sets what a call returns while no server answers; the default is an error.
    pub fn unreachable(mut self, unreachable: Unreachable) -> Builder {
        self.unreachable = unreachable;
        self
    }

    /// Sets the longest that a call takes: waiting for a connection, connecting, sending and answering. A call with `block`
    /// takes that much longer. The limiter of [`Unreachable::Limiter`] decides after that, within its own deadline, and its
    /// calls may block for as long again. The default is 1 second. `None` means no deadline, except that a
    /// [`Local`](crate::Local) gives up each of its commands after 5 s.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Error, Limiter, Unreachable};
    /// # use redis_ratelimit_client::transport::Servers;
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let servers = Servers::open(format!("redis://{}/", silent.local_addr()?))?;
    /// // The server hangs.
    /// let limiter = Limiter::builder(servers).deadline(Duration::from_millis(20)).build()?;
    /// let answer = tokio::time::timeout(Duration::from_millis(400), limiter.held("jobs")).await;
    /// assert!(matches!(answer, Ok(Err(Error::Unreachable { .. }))));
    /// # Ok(()) }
    /// ```
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Builder {
        self.deadline = deadline.into();
        self
    }

    /// Builds the limiter. No connection is opened yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the deadline is 0.
    pub fn build(self) -> Result<Limiter, Error> {
        check_length("deadline", self.deadline)?;
        let core = Core::new(self.servers, self.unreachable, self.deadline);
        Ok(Limiter::with_core(core))
    }
}

impl Limiter {
    /// Creates a limiter with a deadline of 1 second. While no server answers, calls end with an error.
    pub fn new(servers: impl Into<Servers>) -> Limiter {
        Limiter::with_core(Core::new(servers.into(), Unreachable::Error, Some(DEADLINE)))
    }

    /// Creates a limiter of one server, by a URL such as `redis://127.0.0.1/`, see [`Servers::open`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed.
    ///
    /// ```
    /// # use redis_ratelimit_client::Limiter;
    /// let limiter = Limiter::open("redis://127.0.0.1/")?;
    /// assert!(Limiter::open("127.0.0.1").is_err(), "it is not a URL");
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    pub fn open(server: impl redis::IntoConnectionInfo) -> Result<Limiter, Error> {
        Ok(Limiter::new(Servers::open(server)?))
    }

    /// Returns a builder, to choose a deadline and what calls return while no server answers.
    pub fn builder(servers: impl Into<Servers>) -> Builder {
        Builder {
            servers: servers.into(),
            unreachable: Unreachable::Error,
            deadline: Some(DEADLINE),
        }
    }

    pub(crate) fn with_core(core: Core) -> Limiter {
        Limiter(Arc::new(core))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Takes 1 from a rate (RL.THROTTLE) or a window (RL.WINDOW), or denies. The call has more options.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100000/min")?;
    /// let reply = limiter.take("user:1", &tokens).quantity(800).leave(2000).await?;
    /// assert_eq!(reply.remaining, 99_200);
    /// # Ok(()) }
    /// ```
    pub fn take<L: Take>(&self, key: impl AsRef<[u8]>, limit: &L) -> Call<Reply, L> {
        Call::single(self, Clause::take(key, limit), Verb::Take, Answered::reply)
    }

    /// Returns what the same call would return now if nobody waited. It changes nothing: RL.THROTTLE_RO, RL.WINDOW_RO or
    /// RL.ACQUIRE_RO.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let reply = limiter.look("user:1", &Window::per("30/min")?).await?;
    /// assert_eq!(reply.remaining, 30);
    /// # Ok(()) }
    /// ```
    pub fn look<L: Limit>(&self, key: impl AsRef<[u8]>, limit: &L) -> Call<Reply, Look<L>> {
        let limit = limit.to_any();
        let acquires = limit.is_semaphore();
        let clause = Clause::new(key.as_ref(), limit, acquires);
        Call::single(self, clause, Verb::Look, Answered::reply)
    }

    /// Reserves 1 in a window or of a semaphore (RL.ACQUIRE) for as long as the [`Reservation`] lives.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] if it is denied.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100000/min")?;
    /// let mut reservation = limiter.acquire("tokens", &tokens).quantity(4000).await?;
    /// reservation.set(1234)?;
    /// reservation.apply().await?;
    /// assert_eq!(limiter.look("tokens", &tokens).await?.remaining, 98_766);
    /// # Ok(()) }
    /// ```
    pub fn acquire(
        &self,
        key: impl AsRef<[u8]>,
        limit: &impl Reserve,
    ) -> Call<Reservation, Acquire> {
        Call::single(self, Clause::acquire(key, limit), Verb::Reserve, Reservation::new)
    }

    /// Takes from several limits, all or nothing (RL.ALL).
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let requests = Clause::take("{u1}:rpm", &Window::per("60/min")?);
    /// let tokens = Clause::take("{u1}:tpm", &Window::per("1000/min")?).quantity(2000);
    /// let reply = limiter.all([requests, tokens]).await?;
    /// // The second limit denied the call.
    /// assert_eq!((reply.is_allowed(), reply.clause), (false, 2));
    /// # Ok(()) }
    /// ```
    pub fn all(&self, clauses: impl IntoIterator<Item = Clause>) -> Call<AllReply, All> {
        Call::all(self, clauses, Verb::Take, |answered| Ok(answered.reply))
    }

    /// Takes and reserves of several limits, all or nothing (RL.ALL). What is reserved is settled as one, by one
    /// [`Reservation`].
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] if it is denied.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Semaphore, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100000/min")?;
    /// let limits = [
    ///     Clause::acquire("{u1}:tpm", &tokens).quantity(4000).name("tokens"),
    ///     Clause::acquire("{u1}:calls", &Semaphore::new(5)),
    /// ];
    /// let mut reservation = limiter.acquire_all(limits).await?;
    /// reservation.set([("tokens", 1234)])?;
    /// reservation.apply().await?;
    /// assert_eq!(limiter.look("{u1}:tpm", &tokens).await?.remaining, 98_766);
    /// # Ok(()) }
    /// ```
    pub fn acquire_all(&self, clauses: impl IntoIterator<Item = Clause>) -> Call<Reservation, All> {
        Call::all(self, clauses, Verb::Reserve, Reservation::new)
    }

    /// Counts a reservation, or what was really used (RL.APPLY); false if it is not held. For what another process reserved,
    /// see [`Reservation::detach`](crate::Reservation::detach).
    ///
    /// # Errors
    ///
    /// [`Error::Server`] for a semaphore, which is only released; others as for every call.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100000/min")?;
    /// limiter.acquire("tokens", &tokens).quantity(4000).id("job-17").await?.detach();
    /// // Later, or in another process.
    /// assert!(limiter.apply("tokens", "job-17", Some(1234)).await?);
    /// assert_eq!(limiter.look("tokens", &tokens).await?.remaining, 98_766);
    /// # Ok(()) }
    /// ```
    pub async fn apply(
        &self,
        key: impl AsRef<[u8]>,
        id: impl Into<Id>,
        quantity: Option<u64>,
    ) -> Result<bool, Error> {
        let id = id.into();
        Ok(self.settle(calls::apply(key.as_ref(), &id, quantity), 1).await? == 1)
    }

    /// Gives reservations back (RL.RELEASE), and returns how many of them were held.
    pub async fn release<I: Into<Id>>(
        &self,
        key: impl AsRef<[u8]>,
        ids: impl IntoIterator<Item = I>,
    ) -> Result<u64, Error> {
        let ids: Vec<Id> = ids.into_iter().map(Into::into).collect();
        let wanted = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        self.settle(calls::release(key.as_ref(), &ids), wanted).await
    }

    /// Restarts the lease of a reservation (RL.RENEW), which is as long as before if none is given; false if it is not held.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the lease is 0.
    pub async fn renew(
        &self,
        key: impl AsRef<[u8]>,
        id: impl Into<Id>,
        lease: Option<Duration>,
    ) -> Result<bool, Error> {
        let id = id.into();
        check_length("lease", lease)?;
        Ok(self.settle(calls::renew(key.as_ref(), &id, lease), 1).await? == 1)
    }

    /// Settles reservations, and returns how many were held. The limiter that decides while no server does settles what it
    /// reserved.
    async fn settle(&self, command: Command, wanted: u64) -> Result<u64, Error> {
        let fallback = match &self.0.unreachable {
            Unreachable::Limiter(limiter) => Some((limiter, command.clone())),
            _ => None,
        };
        let settled = self.ask(command).await.and_then(|value| count(&value));
        let Some((limiter, command)) = fallback else { return settled };
        match settled {
            Ok(settled) if settled == wanted => Ok(settled),
            Err(error) if !error.is_unreachable() => Err(error),
            settled => {
                match (settled, limiter.ask(command).await.and_then(|value| count(&value))) {
                    // The server has answered, so it does not matter whether the other limiter does.
                    (Ok(settled), theirs) => Ok(settled.saturating_add(theirs.unwrap_or(0))),
                    (Err(error), Ok(theirs)) if theirs != wanted => Err(error),
                    (Err(_), theirs) => theirs,
                }
            }
        }
    }

    /// Returns the live reservations of a key, oldest first (RL.HELD).
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Semaphore};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let permit = limiter.acquire("jobs", &Semaphore::new(5)).await?;
    /// let held = limiter.held("jobs").await?;
    /// assert_eq!(Some(&held[0].id), permit.id());
    /// # Ok(()) }
    /// ```
    pub async fn held(&self, key: impl AsRef<[u8]>) -> Result<Vec<Held>, Error> {
        read_held(&self.ask(Command::on("RL.HELD", key.as_ref())).await?)
    }

    /// Closes the key of a limit for this long, from 1 ms to a year, also to calls that wait (FORCE BAN). It takes nothing,
    /// and a key that is closed for longer stays so. [`Limiter::reset`] opens it again.
    ///
    /// Use it if another service has sent this caller away (429), so that no other caller asks it either.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the length is 0; others as for every call.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Rate};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let rate = Rate::per("30/s")?;
    /// // The service has answered 429, with Retry-After: 30.
    /// let _ = limiter.close("upstream", &rate, Duration::from_secs(30)).await?;
    /// assert!(!limiter.take("upstream", &rate).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub async fn close<L: Take>(
        &self,
        key: impl AsRef<[u8]>,
        limit: &L,
        length: Duration,
    ) -> Result<Reply, Error> {
        check_length("length", Some(length))?;
        let clause = Clause::take(key, limit).closing(length);
        Call::<Reply, L>::single(self, clause, Verb::Close, Answered::reply).await
    }

    /// Resets the limit of a key (DEL); false if nothing was stored.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("5/min")?;
    /// limiter.take("user:1", &window).quantity(5).await?;
    /// assert!(limiter.reset("user:1").await?);
    /// assert_eq!(limiter.look("user:1", &window).await?.remaining, 5);
    /// # Ok(()) }
    /// ```
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(count(&self.ask(Command::on("DEL", key.as_ref())).await?)? > 0)
    }

    /// Returns the state of a key (RL.INFO), for a person who asks why it is limited. `None` if the key does not exist.
    ///
    /// ```
    /// # use redis_ratelimit_client::{KeyState, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// assert!(limiter.info("user:1").await?.is_none());
    /// limiter.take("user:1", &Window::per("5/min")?).quantity(3).await?;
    /// let state = limiter.info("user:1").await?.map(|info| info.state);
    /// assert!(matches!(state, Some(KeyState::Window { events: 3, .. })));
    /// # Ok(()) }
    /// ```
    pub async fn info(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyInfo>, Error> {
        read_info(&self.ask(Command::on("RL.INFO", key.as_ref())).await?)
    }

    /// Returns the keys with the most denials in the last 10 to 20 minutes (RL.TOP), most first, at most `count`, which is
    /// at least 1.
    ///
    /// Each node of a cluster counts its own denials: all nodes are asked.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// limiter.take("user:1", &Window::new(0, Duration::from_secs(60))).await?;
    /// let top = limiter.top(10).await?;
    /// assert_eq!((top[0].key.as_slice(), top[0].denials), (&b"user:1"[..], 1));
    /// # Ok(()) }
    /// ```
    pub async fn top(&self, count: u64) -> Result<Vec<TopKey>, Error> {
        self.ask_top(count, false).await
    }

    /// Returns the same as [`Limiter::top`], and then forgets all denials (RL.TOP with RESET).
    pub async fn top_and_reset(&self, count: u64) -> Result<Vec<TopKey>, Error> {
        self.ask_top(count, true).await
    }

    async fn ask_top(&self, count: u64, reset: bool) -> Result<Vec<TopKey>, Error> {
        let mut command = Command::new("RL.TOP");
        command.arg(b"COUNT").number(count);
        if reset {
            command.arg(b"RESET");
        }
        let nodes = self.ask_nodes(command, None).await?;
        let mut all = Vec::new();
        for value in &nodes {
            all.extend(read_top(value)?);
        }
        all.sort_by_key(|top| std::cmp::Reverse(top.denials));
        all.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        Ok(all)
    }

    /// Returns the policies of the server by name, with the numbers of calls that they allowed and denied (RL.POLICIES).
    ///
    /// Each node of a cluster has its own: all nodes are asked, and the counts of equal policies are added up.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = MemoryLimiter::builder().policies("day WINDOW 1000 1d")?.build();
    /// limiter.take("user:1", &Window::policy("day")).await?;
    /// let policies = limiter.policies().await?;
    /// assert_eq!((policies[0].name.as_str(), policies[0].allowed), ("day", 1));
    /// # Ok(()) }
    /// ```
    pub async fn policies(&self) -> Result<Vec<Policy>, Error> {
        let nodes = self.ask_nodes(Command::new("RL.POLICIES"), None).await?;
        let mut sums: BTreeMap<(String, String), Policy> = BTreeMap::new();
        for value in &nodes {
            for policy in read_policies(value)? {
                let name = (policy.name.clone(), policy.definition.clone());
                let Policy { allowed, denied, shadow_denied, .. } = policy;
                let none = Policy { allowed: 0, denied: 0, shadow_denied: 0, ..policy };
                let sum = sums.entry(name).or_insert(none);
                sum.allowed = sum.allowed.saturating_add(allowed);
                sum.denied = sum.denied.saturating_add(denied);
                sum.shadow_denied = sum.shadow_denied.saturating_add(shadow_denied);
            }
        }
        Ok(sums.into_values().collect())
    }

    /// Returns the reply of the node that has the key, or without `key_at` of each node.
    async fn ask_nodes(
        &self,
        command: Command,
        key_at: Option<usize>,
    ) -> Result<Vec<Value>, Error> {
        match self.0.send(Request::new(vec![command], key_at)).await? {
            Outcome::Replies(values, _) => Ok(values),
            Outcome::Unreached(_) => Ok(Vec::new()),
        }
    }

    pub(crate) async fn ask(&self, command: Command) -> Result<Value, Error> {
        let values = self.ask_nodes(command, Some(1)).await?;
        values.into_iter().next().ok_or_else(|| Error::unexpected("a value", &Value::Nil))
    }
}

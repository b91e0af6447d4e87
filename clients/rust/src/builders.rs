//! The calls of a limiter that have options.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::calls::{CallOptions, Groups, Verb};
use crate::clause::Clause;
use crate::core::Outcome;
use crate::limit::{Limit, Rate, Take, Window};
use crate::reply::Id;
use crate::transport::BoxFuture;
use crate::{AllReply, Error, Limiter, Reply, Reservation};

/// A call of a [`Limiter`] that returns a `T`. It is sent when it is awaited. `K` says which options it has: a [`Rate`] or a
/// [`Window`] for a call that takes, [`Look`], [`Acquire`] or [`All`].
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Window};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// use std::future::IntoFuture; // in the prelude of Rust 2024
///
/// let call = limiter.take("user:1", &Window::per("5/min")?).quantity(2);
/// // Functions that take a future need into_future().
/// let reply = tokio::spawn(call.into_future()).await??;
/// assert_eq!(reply.remaining, 3);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct Call<T, K> {
    limiter: Limiter,
    /// The limits; one, unless `K` is [`All`].
    clauses: Vec<Clause>,
    options: CallOptions,
    verb: Verb,
    /// True if it is sent as a command of its own, and not as RL.ALL.
    is_single: bool,
    is_renewed: bool,
    finish: Finish<T>,
    kind: PhantomData<fn() -> K>,
}

/// Returns what a call returns that was answered.
type Finish<T> = fn(Answered) -> Result<T, Error>;

/// The options of [`Limiter::look`].
#[derive(Debug)]
pub struct Look<L>(PhantomData<L>);

/// The options of [`Limiter::acquire`].
#[derive(Debug)]
pub enum Acquire {}

/// The options of [`Limiter::all`] and [`Limiter::acquire_all`].
#[derive(Debug)]
pub enum All {}

/// The options of calls that take or reserve of one limit.
pub trait Single {}

impl<L: Take> Single for L {}
impl Single for Acquire {}

/// The options of calls that can wait in line.
pub trait Wait {}

impl<K: Single> Wait for K {}
impl Wait for All {}

impl<T, K> Call<T, K> {
    pub(crate) fn single(
        limiter: &Limiter,
        clause: Clause,
        verb: Verb,
        finish: Finish<T>,
    ) -> Call<T, K> {
        Call { is_single: true, ..Call::all(limiter, [clause], verb, finish) }
    }

    pub(crate) fn all(
        limiter: &Limiter,
        clauses: impl IntoIterator<Item = Clause>,
        verb: Verb,
        finish: Finish<T>,
    ) -> Call<T, K> {
        Call {
            limiter: limiter.clone(),
            clauses: clauses.into_iter().collect(),
            options: CallOptions::default(),
            verb,
            is_single: false,
            is_renewed: true,
            finish,
            kind: PhantomData,
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Clause)) -> Self {
        self.clauses.first_mut().map(set);
        self
    }
}

impl<T, K: Single> Call<T, K> {
    /// Leaves at least this much for others, such as for calls that are more important.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("100/min")?;
    /// // A batch job leaves 50 for users.
    /// assert!(!limiter.take("api", &window).quantity(60).leave(50).await?.is_allowed());
    /// assert!(limiter.take("api", &window).quantity(60).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn leave(self, leave: u64) -> Self {
        self.with(|clause| clause.options.leave = leave)
    }

    /// Takes as much of the quantity as is available, which the reply's `granted` says. The call is denied only if that is
    /// nothing.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100/min")?;
    /// let reply = limiter.take("tokens", &tokens).quantity(120).at_most().await?;
    /// assert_eq!(reply.granted, Some(100));
    /// # Ok(()) }
    /// ```
    pub fn at_most(self) -> Self {
        self.with(|clause| clause.options.at_most = true)
    }
}

impl<T, K: Wait> Call<T, K> {
    /// Waits in line for up to this time, at most a year, instead of being denied. [`Duration::ZERO`] waits without limit.
    ///
    /// A call of several limits takes nothing until all of them allow it. It must not have groups, nor limits with a ban.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Rate};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let rate = Rate::per("20/s")?.capacity(1)?;
    /// limiter.take("mail", &rate).await?;
    /// // Waits for 50 ms.
    /// assert!(limiter.take("mail", &rate).block(Duration::from_secs(5)).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn block(mut self, longest: Duration) -> Self {
        self.options.block = Some(longest);
        self
    }

    /// Names the caller, such as a tenant, in 1 to 64 bytes. Those who wait take turns by caller instead of by arrival, so
    /// that a thousand calls of one delay the first call of another by one. Only with [`Call::block`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Rate};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let (rate, longest) = (Rate::per("20/s")?.capacity(1)?, Duration::from_secs(5));
    /// // For each turn of a caller of weight 1, acme has two.
    /// let call = limiter.take("mail", &rate).block(longest).by("acme").weight(2);
    /// assert!(call.await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn by(mut self, who: impl AsRef<[u8]>) -> Self {
        self.options.by = Some(who.as_ref().into());
        self
    }

    /// Sets the caller's share, from 1 to 1000: with 2 it is granted twice as much as a caller with 1, which is the default.
    /// Only with [`Call::by`].
    pub fn weight(mut self, weight: u64) -> Self {
        self.options.weight = Some(weight);
        self
    }
}

impl<L: Take> Call<Reply, L> {
    /// Sets how much to take; the default is 1. 0 only looks, and a negative quantity gives back what was taken.
    pub fn quantity(self, quantity: i64) -> Self {
        self.with(|clause| clause.quantity = quantity)
    }

    /// Counts the quantity even if there is not enough, for what was used and is known only afterwards. Later calls wait
    /// until it is repaid.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100/min")?;
    /// assert!(limiter.take("tokens", &tokens).quantity(120).force().await?.is_allowed());
    /// assert!(!limiter.take("tokens", &tokens).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn force(self) -> Self {
        self.with(|clause| clause.options.force = true)
    }
}

impl Call<Reply, Rate> {
    /// Takes now what is available within this time. The reply's `wait` says after which time to go on.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Rate};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let rate = Rate::per("1/min")?;
    /// limiter.take("crawl", &rate).await?;
    /// let turn = limiter.take("crawl", &rate).ahead(Duration::from_secs(300)).await?;
    /// assert!(turn.wait > Some(Duration::from_secs(30)));
    /// # Ok(()) }
    /// ```
    pub fn ahead(self, longest: Duration) -> Self {
        self.with(|clause| clause.options.ahead = Some(longest))
    }
}

impl Call<Reply, Window> {
    /// Counts the call even if it is denied, so that a client that does not pause stays out.
    ///
    /// ```
    /// # use redis_ratelimit_client::{KeyState, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let login = Window::per("1/min")?;
    /// limiter.take("login", &login).await?;
    /// assert!(!limiter.take("login", &login).count_denied().await?.is_allowed());
    /// let state = limiter.info("login").await?.map(|info| info.state);
    /// assert!(matches!(state, Some(KeyState::Window { denied: 1, .. })));
    /// # Ok(()) }
    /// ```
    pub fn count_denied(self) -> Self {
        self.with(|clause| clause.options.count_denied = true)
    }
}

impl<L: Limit> Call<Reply, Look<L>> {
    /// Sets how much would be taken; the default is 1.
    pub fn quantity(self, quantity: i64) -> Self {
        self.with(|clause| clause.quantity = quantity)
    }

    /// Leaves at least this much for others, see [`Call::leave`].
    pub fn leave(self, leave: u64) -> Self {
        self.with(|clause| clause.options.leave = leave)
    }
}

impl Call<Reply, Look<Window>> {
    /// Asks what a reservation would return, instead of a call that takes.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Decision, Held, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("1/min")?;
    /// let reservation = limiter.acquire("user:1", &window).await?;
    /// // Others may give back what they hold.
    /// let reply = limiter.look("user:1", &window).reserving().await?;
    /// assert_eq!(reply.decision, Decision::Held);
    /// # Ok(()) }
    /// ```
    pub fn reserving(self) -> Self {
        self.with(|clause| clause.acquires = true)
    }
}

impl Call<Reservation, Acquire> {
    /// Sets how much to reserve; the default is 1, and 0 only looks.
    pub fn quantity(self, quantity: u64) -> Self {
        self.with(|clause| clause.set_quantity(quantity))
    }

    /// Sets how long the reservation lasts if it is not renewed, from 1 ms to a year. The server's default is 20 s.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|clause| clause.options.lease = Some(lease))
    }

    /// Counts the reservation if its lease ends before it is settled.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let (tokens, lease) = (Window::per("100/min")?, Duration::from_millis(1));
    /// let call = limiter.acquire("tokens", &tokens).quantity(60).lease(lease).count_lapsed();
    /// let lapsing = call.renewed(false).await?;
    /// tokio::time::sleep(5 * lease).await;
    /// assert_eq!(limiter.look("tokens", &tokens).await?.remaining, 40);
    /// # Ok(()) }
    /// ```
    pub fn count_lapsed(self) -> Self {
        self.with(|clause| clause.options.count_lapsed = true)
    }

    /// Names the reservation, uniquely within its key. The limiter makes an id if none is given.
    pub fn id(self, id: impl Into<Id>) -> Self {
        self.with(|clause| clause.options.id = Some(id.into()))
    }
}

impl<K> Call<Reservation, K> {
    /// Sets whether the leases are renewed while the [`Reservation`] lives, three times in the shortest; the default is
    /// true.
    pub fn renewed(mut self, is_renewed: bool) -> Self {
        self.is_renewed = is_renewed;
        self
    }
}

impl<T> Call<T, All> {
    /// Takes the limits that clauses name from a hash with this key, so that the limits of each tenant can be data: its field
    /// `rpm`, such as `WINDOW 500 1min`, is then the limit of `Window::policy("rpm")`. An HSET counts from the next call on. A
    /// name that is not in the hash is a policy of the server.
    ///
    /// If the future is dropped after the call has taken from a limit of the hash, that counts as used.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// // On a server: HSET {u1}:limits rpm "WINDOW 500 1min"
    /// limiter.define("{u1}:limits", "rpm", Some("WINDOW 500 1min")).await?;
    /// let requests = Clause::take("{u1}:rpm", &Window::policy("rpm"));
    /// let reply = limiter.all([requests]).limits("{u1}:limits").await?;
    /// assert_eq!(reply.remaining, 499);
    /// # Ok(()) }
    /// ```
    pub fn limits(mut self, key: impl AsRef<[u8]>) -> Self {
        self.options.limits = Some(key.as_ref().into());
        self
    }
}

impl Call<AllReply, All> {
    /// Asks what the call would return now (RL.ALL_RO), without taking anything.
    pub fn look(mut self) -> Self {
        self.verb = Verb::Look;
        self
    }

    /// Counts what was used, in one step, even if there is not enough. The clauses must be rates and windows without options
    /// and groups.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let tokens = Window::per("100000/min")?;
    /// let used = [Clause::take("{u1}:tpm", &tokens).quantity(120_000)];
    /// assert!(limiter.all(used).force().await?.is_allowed());
    /// assert!(!limiter.take("{u1}:tpm", &tokens).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn force(mut self) -> Self {
        self.verb = Verb::Charge;
        self
    }
}

/// A call that was answered.
pub(crate) struct Answered {
    pub limiter: Limiter,
    pub groups: Arc<Groups>,
    pub reply: AllReply,
    /// The limiter that decided because no server did.
    pub by: Option<Limiter>,
    pub is_renewed: bool,
}

impl Answered {
    /// Returns the reply of a single limit.
    pub fn reply(self) -> Result<Reply, Error> {
        Ok(self.reply.reply)
    }
}

impl<T: 'static, K> IntoFuture for Call<T, K> {
    type Output = Result<T, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Call { limiter, clauses, options, verb, is_single, is_renewed, finish, .. } = self;
        Box::pin(async move {
            let groups = Arc::new(Groups::new(clauses, options, verb, is_single)?);
            let (reply, by) = match limiter.core().send(groups.request()).await? {
                Outcome::Replies(values, by) => (groups.read(&values, by.is_none())?, by),
                Outcome::Unreached(allow) => (groups.unreached(allow), None),
            };
            finish(Answered { limiter, groups, reply, by, is_renewed })
        })
    }
}

//! The limiter and its calls.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::calls::{self, Options, Request};
use crate::clause::{Clause, Groups};
use crate::core::{Core, Hook, Outcome, Sending};
use crate::limit::{Limit, Rate, Reserve, Take, Window};
use crate::reply::{
    read_held, read_info, read_policies, read_top, Held, Id, KeyInfo, Policy, TopKey,
};
use crate::reservation::{Limits, Reservation};
use crate::transport::{BoxFuture, Servers, Value};
use crate::{AllReply, Error, Reply, Unreachable};

/// The deadline of a limiter that is given none.
const DEADLINE: Duration = Duration::from_millis(500);

/// Asks limits of a server with redis-ratelimit. It is cheap to clone, and its clones share their connections.
///
/// All calls share one connection to a server; those that wait have one of their own. No call is ever sent twice. The server
/// is asked within a deadline, see [`Builder::deadline`], and [`Builder::unreachable`] says what a call is answered while it
/// does not answer.
///
/// A call that is dropped before it was answered takes nothing: its place in the line is given up, and what was taken all the
/// same is given back.
///
/// ```no_run
/// use redis_ratelimit_client::{Limiter, Rate};
///
/// # async fn example() -> Result<(), redis_ratelimit_client::Error> {
/// let limiter = Limiter::open("redis://127.0.0.1/")?;
/// let rate = Rate::per("30/min")?.capacity(10)?;
/// let reply = limiter.take("user:1", &rate).await?;
/// if !reply.is_allowed() {
///     println!("come back in {:?}", reply.retry_after);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter(Arc<Core>);

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limiter").field(&self.0).finish()
    }
}

/// What a limiter is to be like, see [`Limiter::builder`].
pub struct Builder {
    servers: Servers,
    unreachable: Unreachable,
    deadline: Option<Duration>,
    on_unsettled: Option<Hook>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("servers", &self.servers)
            .field("unreachable", &self.unreachable)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// What a call is answered while no server answers: an error if not given.
    pub fn unreachable(mut self, unreachable: Unreachable) -> Builder {
        self.unreachable = unreachable;
        self
    }

    /// The longest that a call takes: waiting for a connection, connecting, sending and answering. A call with `block` takes
    /// that much longer. 500 ms if not given; `None` is without end.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Builder {
        self.deadline = deadline.into();
        self
    }

    /// Is called with the error if a reservation that was dropped could not be settled.
    pub fn on_unsettled(mut self, told: impl Fn(&Error) + Send + Sync + 'static) -> Builder {
        self.on_unsettled = Some(Arc::new(told));
        self
    }

    /// The limiter. No connection is opened yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the deadline is 0.
    pub fn build(self) -> Result<Limiter, Error> {
        if self.deadline == Some(Duration::ZERO) {
            return Err(Error::deadline());
        }
        let core = Core::new(self.servers, self.unreachable, self.deadline, self.on_unsettled);
        Ok(Limiter(Arc::new(core)))
    }
}

impl Limiter {
    /// A limiter with a deadline of 500 ms. While no server answers, calls end with an error.
    pub fn new(servers: impl Into<Servers>) -> Limiter {
        let core = Core::new(servers.into(), Unreachable::Error, Some(DEADLINE), None);
        Limiter(Arc::new(core))
    }

    /// The same for one server, by a URL such as `redis://127.0.0.1/`, see [`Servers::open`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn open(server: impl redis::IntoConnectionInfo) -> Result<Limiter, Error> {
        Ok(Limiter::new(Servers::open(server)?))
    }

    /// A limiter to be described.
    ///
    /// ```
    /// use redis_ratelimit_client::transport::Servers;
    /// use redis_ratelimit_client::{Limiter, Unreachable};
    /// use std::time::Duration;
    ///
    /// let limiter = Limiter::builder(Servers::open("redis://127.0.0.1/")?)
    ///     .deadline(Duration::from_millis(100))
    ///     .unreachable(Unreachable::Allow)
    ///     .on_unsettled(|error| eprintln!("a reservation was not settled: {error}"))
    ///     .build()?;
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    pub fn builder(servers: impl Into<Servers>) -> Builder {
        Builder {
            servers: servers.into(),
            unreachable: Unreachable::Error,
            deadline: Some(DEADLINE),
            on_unsettled: None,
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Takes 1 of a rate (RL.THROTTLE) or a window (RL.WINDOW), or denies. The call has more options.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::{Limiter, Rate, Window};
    /// # use std::time::Duration;
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let tokens = Window::per("100000/min")?;
    /// let reply = limiter.take("user:1:tpm", &tokens).quantity(800).leave(2000).await?;
    /// // Waits in line, for up to 5 seconds.
    /// let rate = Rate::per("10/s")?;
    /// let reply = limiter.take("outgoing", &rate).block(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn take<'a, K, L>(&'a self, key: &'a K, limit: &'a L) -> TakeCall<'a, L>
    where
        K: AsRef<[u8]> + ?Sized,
        L: Take,
    {
        let options = Options::default();
        TakeCall { limiter: self, key: key.as_ref(), limit, quantity: 1, options }
    }

    /// What the same call would be answered now if nobody waited. It changes nothing: RL.THROTTLE_RO, RL.WINDOW_RO or
    /// RL.ACQUIRE_RO.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::{Limiter, Rate};
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let left = limiter.look("user:1", &Rate::per("30/min")?).await?.remaining;
    /// # Ok(())
    /// # }
    /// ```
    pub fn look<'a, K, L>(&'a self, key: &'a K, limit: &'a L) -> LookCall<'a, L>
    where
        K: AsRef<[u8]> + ?Sized,
        L: Limit,
    {
        let key = key.as_ref();
        LookCall { limiter: self, key, limit, quantity: 1, leave: 0, reserves: false }
    }

    /// Reserves 1 in a window or of a semaphore (RL.ACQUIRE) for as long as the [`Reservation`] lives.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] if it is denied.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::{Limiter, Semaphore, Window};
    /// # use std::time::Duration;
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// // At most 5 jobs at a time. Waits for a place; it is given back when `permit` is dropped.
    /// let jobs = Semaphore::new(5);
    /// let permit = limiter.acquire("jobs", &jobs).block(Duration::from_secs(30)).await?;
    ///
    /// // Reserves what a request may cost, and counts what it did cost.
    /// let tokens = Window::per("100000/min")?;
    /// let mut reservation = limiter.acquire("tokens", &tokens).quantity(4000).await?;
    /// reservation.set(1234)?;
    /// reservation.apply().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire<'a, K, L>(&'a self, key: &'a K, limit: &'a L) -> AcquireCall<'a, L>
    where
        K: AsRef<[u8]> + ?Sized,
        L: Reserve,
    {
        let options = Options::default();
        let key = key.as_ref();
        AcquireCall { limiter: self, key, limit, quantity: 1, options, is_renewed: true }
    }

    /// Takes of several limits, all or nothing (RL.ALL).
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::{Clause, Limiter, Window};
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let requests = Window::per("60/min")?;
    /// let tokens = Window::per("100000/min")?;
    /// let reply = limiter
    ///     .all([
    ///         Clause::take("{u1}:rpm", &requests).name("requests"),
    ///         Clause::take("{u1}:tpm", &tokens).quantity(800).name("tokens"),
    ///     ])
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all(&self, clauses: impl IntoIterator<Item = Clause>) -> AllCall<'_> {
        AllCall { limiter: self, clauses: clauses.into_iter().collect(), kind: AllKind::Take }
    }

    /// Takes and reserves of several limits, all or nothing (RL.ALL). What is reserved is settled as one, by one
    /// [`Reservation`].
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] if it is denied.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::{Clause, Limiter, Semaphore, Window};
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let tokens = Window::per("100000/min")?;
    /// let mut reservation = limiter
    ///     .acquire_all([
    ///         Clause::acquire("{u1}:tpm", &tokens).quantity(4000).name("tokens"),
    ///         Clause::acquire("{u1}:calls", &Semaphore::new(5)),
    ///     ])
    ///     .await?;
    /// reservation.set([("tokens", 1234)])?;
    /// reservation.apply().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all(&self, clauses: impl IntoIterator<Item = Clause>) -> AcquireAllCall<'_> {
        AcquireAllCall { limiter: self, clauses: clauses.into_iter().collect(), is_renewed: true }
    }

    /// Counts a reservation, or what was really used (RL.APPLY); false if it is not held. For what another process reserved,
    /// see [`Reservation::detach`].
    ///
    /// # Errors
    ///
    /// [`Error::Server`] for a semaphore, which is only released; others as for every call.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::{Id, Limiter};
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let is_held = limiter.apply("tokens", "job-17", Some(1234)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn apply(
        &self,
        key: impl AsRef<[u8]>,
        id: impl Into<Id>,
        quantity: Option<u64>,
    ) -> Result<bool, Error> {
        let id = id.into();
        let request = calls::apply(key.as_ref(), &id, quantity);
        Ok(self.settle(request, 1).await? == 1)
    }

    /// Gives reservations back (RL.RELEASE), and returns how many of them were held.
    ///
    /// # Errors
    ///
    /// As for every call.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::Limiter;
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let released = limiter.release("jobs", ["job-17", "job-18"]).await?;
    /// # Ok(())
    /// # }
    /// ```
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
    /// As for every call.
    ///
    /// ```no_run
    /// # use redis_ratelimit_client::Limiter;
    /// # use std::time::Duration;
    /// # async fn example(limiter: Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// let is_held = limiter.renew("jobs", "job-17", Some(Duration::from_secs(60))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew(
        &self,
        key: impl AsRef<[u8]>,
        id: impl Into<Id>,
        lease: Option<Duration>,
    ) -> Result<bool, Error> {
        let id = id.into();
        Ok(self.settle(calls::renew(key.as_ref(), &id, lease), 1).await? == 1)
    }

    /// How many of the reservations were settled. The limiter that decides while no server does settles what it reserved.
    async fn settle(&self, request: Request, wanted: u64) -> Result<u64, Error> {
        let fallback = match &self.0.unreachable {
            Unreachable::Limiter(limiter) => Some((limiter, request.clone())),
            _ => None,
        };
        let own = self.ask(request).await.and_then(|value| calls::read_count(&value));
        let Some((limiter, request)) = fallback else { return own };
        match own {
            Ok(settled) if settled == wanted => Ok(settled),
            Err(error) if !error.is_unreachable() => Err(error),
            own => {
                let theirs = calls::read_count(&limiter.ask(request).await?)?;
                match own {
                    Ok(settled) => Ok(settled.saturating_add(theirs)),
                    Err(_) if theirs == wanted => Ok(theirs),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// The live reservations of a key, oldest first (RL.HELD).
    ///
    /// # Errors
    ///
    /// As for every call.
    ///
    /// ```no_run
    /// # async fn example(limiter: redis_ratelimit_client::Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// for held in limiter.held("jobs").await? {
    ///     println!("{} holds {} for {:?}", held.id, held.quantity, held.left);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn held(&self, key: impl AsRef<[u8]>) -> Result<Vec<Held>, Error> {
        read_held(&self.ask(calls::of_key("RL.HELD", key.as_ref())).await?)
    }

    /// Resets the limit of a key (DEL); false if nothing was stored.
    ///
    /// # Errors
    ///
    /// As for every call.
    ///
    /// ```no_run
    /// # async fn example(limiter: redis_ratelimit_client::Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// limiter.reset("user:1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(calls::read_count(&self.ask(calls::of_key("DEL", key.as_ref())).await?)? > 0)
    }

    /// The state of a key (RL.INFO), for a person who asks why it is limited. `None` if the key does not exist.
    ///
    /// # Errors
    ///
    /// As for every call.
    ///
    /// ```no_run
    /// # async fn example(limiter: redis_ratelimit_client::Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// println!("{:?}", limiter.info("user:1").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn info(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyInfo>, Error> {
        read_info(&self.ask(calls::of_key("RL.INFO", key.as_ref())).await?)
    }

    /// The keys with the most denials in the last 10 to 20 minutes (RL.TOP), most first, at most `count`. `reset` forgets them.
    ///
    /// Each node of a cluster counts its own denials: all nodes are asked.
    ///
    /// # Errors
    ///
    /// As for every call.
    ///
    /// ```no_run
    /// # async fn example(limiter: redis_ratelimit_client::Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// for top in limiter.top(10, false).await? {
    ///     println!("{} denials of {:?}", top.denials, top.key);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn top(&self, count: u64, reset: bool) -> Result<Vec<TopKey>, Error> {
        let nodes = self.ask_nodes(calls::top(count, reset)).await?;
        let mut all = Vec::new();
        for value in &nodes {
            all.extend(read_top(value)?);
        }
        all.sort_by_key(|top| std::cmp::Reverse(top.denials));
        all.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        Ok(all)
    }

    /// The policies of the server by name, with what was allowed and denied by them (RL.POLICIES).
    ///
    /// Each node of a cluster has its own: all nodes are asked, and the counts of equal policies are added up.
    ///
    /// # Errors
    ///
    /// As for every call.
    ///
    /// ```no_run
    /// # async fn example(limiter: redis_ratelimit_client::Limiter) -> Result<(), redis_ratelimit_client::Error> {
    /// for policy in limiter.policies().await? {
    ///     println!("{}: {} denied {}", policy.name, policy.definition, policy.denied);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn policies(&self) -> Result<Vec<Policy>, Error> {
        let nodes = self.ask_nodes(calls::policies()).await?;
        let mut sums: BTreeMap<(String, String), Policy> = BTreeMap::new();
        for value in &nodes {
            for policy in read_policies(value)? {
                let name = (policy.name.clone(), policy.definition.clone());
                match sums.get_mut(&name) {
                    Some(sum) => {
                        sum.allowed = sum.allowed.saturating_add(policy.allowed);
                        sum.denied = sum.denied.saturating_add(policy.denied);
                        sum.shadow_denied = sum.shadow_denied.saturating_add(policy.shadow_denied);
                    }
                    None => {
                        sums.insert(name, policy);
                    }
                }
            }
        }
        Ok(sums.into_values().collect())
    }

    async fn ask_nodes(&self, request: Request) -> Result<Vec<Value>, Error> {
        match self.0.send(request).await? {
            Outcome::Replies(values) | Outcome::Fallback(values, _) => Ok(values),
            Outcome::Chosen(_) => Ok(Vec::new()),
        }
    }

    async fn ask(&self, request: Request) -> Result<Value, Error> {
        let values = self.ask_nodes(request).await?;
        values.into_iter().next().ok_or_else(|| Error::unexpected("a value", &Value::Nil))
    }
}

/// A call of [`Limiter::take`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct TakeCall<'a, L> {
    limiter: &'a Limiter,
    key: &'a [u8],
    limit: &'a L,
    quantity: i64,
    options: Options,
}

impl<L: Take> TakeCall<'_, L> {
    /// How much to take. 0 only looks, and a negative quantity gives back what was taken.
    pub fn quantity(mut self, quantity: i64) -> Self {
        self.quantity = quantity;
        self
    }

    /// How much must be left for others, such as for calls that are more important.
    pub fn leave(mut self, leave: u64) -> Self {
        self.options.leave = leave;
        self
    }

    /// Takes as much of the quantity as is available. It is denied only if that is nothing.
    pub fn at_most(mut self) -> Self {
        self.options.at_most = true;
        self
    }

    /// Counts the quantity even if there is not enough, for what was used and is known only afterwards. Later calls wait until
    /// it is repaid.
    pub fn force(mut self) -> Self {
        self.options.force = true;
        self
    }

    /// Waits in line for up to this time instead of being denied; zero waits without end.
    pub fn block(mut self, longest: Duration) -> Self {
        self.options.block = Some(longest);
        self
    }
}

impl TakeCall<'_, Rate> {
    /// Takes now what is available within this time. The reply's `wait` says after which time to go on.
    pub fn ahead(mut self, longest: Duration) -> Self {
        self.options.ahead = Some(longest);
        self
    }
}

impl TakeCall<'_, Window> {
    /// Counts the call also if it is denied, so that only callers who pause get on.
    pub fn count_denied(mut self) -> Self {
        self.options.count_denied = true;
        self
    }
}

impl<L: Take> IntoFuture for TakeCall<'_, L> {
    type Output = Result<Reply, Error>;
    type IntoFuture = Answer;

    fn into_future(self) -> Answer {
        let request = calls::take(self.key, self.limit, self.quantity, &self.options);
        Answer::new(self.limiter, request, self.quantity, self.options, calls::read_take)
    }
}

/// A call of [`Limiter::look`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct LookCall<'a, L> {
    limiter: &'a Limiter,
    key: &'a [u8],
    limit: &'a L,
    quantity: i64,
    leave: u64,
    reserves: bool,
}

impl<L: Limit> LookCall<'_, L> {
    /// How much would be taken.
    pub fn quantity(mut self, quantity: i64) -> Self {
        self.quantity = quantity;
        self
    }

    /// How much would have to be left for others.
    pub fn leave(mut self, leave: u64) -> Self {
        self.leave = leave;
        self
    }
}

impl LookCall<'_, Window> {
    /// What a reservation would be answered, instead of a call that takes.
    pub fn reserving(mut self) -> Self {
        self.reserves = true;
        self
    }
}

impl<L: Limit> IntoFuture for LookCall<'_, L> {
    type Output = Result<Reply, Error>;
    type IntoFuture = Answer;

    fn into_future(self) -> Answer {
        let request = calls::look(self.key, self.limit, self.quantity, self.leave, self.reserves);
        let read = match request.first.word(0) {
            Some(b"RL.ACQUIRE_RO") => |value: &Value, _: &Options| Reply::read_id(value),
            _ => |value: &Value, _: &Options| Reply::read(value),
        };
        Answer::new(self.limiter, request, self.quantity, Options::default(), read)
    }
}

/// The answer to [`TakeCall`] or [`LookCall`], when it has come.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Answer {
    sending: Sending,
    quantity: i64,
    options: Options,
    read: fn(&Value, &Options) -> Result<Reply, Error>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Answer {
    fn new(
        limiter: &Limiter,
        request: Request,
        quantity: i64,
        options: Options,
        read: fn(&Value, &Options) -> Result<Reply, Error>,
    ) -> Answer {
        Answer { sending: limiter.0.send(request), quantity, options, read }
    }

    /// The reply, and the limiter that settles what was reserved if it was not this one.
    fn reply(&self, outcome: Outcome) -> Result<(Reply, Option<Limiter>), Error> {
        let read = |values: &[Value]| {
            let value = values.first().unwrap_or(&Value::Nil);
            (self.read)(value, &self.options)
        };
        match outcome {
            Outcome::Replies(values) => Ok((read(&values)?, None)),
            Outcome::Fallback(values, limiter) => {
                Ok((Reply { reachable: false, ..read(&values)? }, Some(limiter)))
            }
            Outcome::Chosen(allow) => {
                Ok((calls::unreached(allow, self.quantity, &self.options), None))
            }
        }
    }
}

impl Future for Answer {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = std::task::ready!(Pin::new(&mut self.sending).poll(context));
        Poll::Ready(outcome.and_then(|outcome| self.reply(outcome)).map(|(reply, _)| reply))
    }
}

/// A call of [`Limiter::acquire`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AcquireCall<'a, L> {
    limiter: &'a Limiter,
    key: &'a [u8],
    limit: &'a L,
    quantity: u64,
    options: Options,
    is_renewed: bool,
}

impl<L: Reserve> AcquireCall<'_, L> {
    /// How much to reserve; 0 only looks.
    pub fn quantity(mut self, quantity: u64) -> Self {
        self.quantity = quantity;
        self
    }

    /// How much must be left for others, such as for calls that are more important.
    pub fn leave(mut self, leave: u64) -> Self {
        self.options.leave = leave;
        self
    }

    /// Reserves as much of the quantity as is available, which the reply's `granted` says. It is denied only if that is
    /// nothing.
    pub fn at_most(mut self) -> Self {
        self.options.at_most = true;
        self
    }

    /// How long the reservation lasts if it is not renewed, from 1 ms to a year. The server's default is 20 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Whether the lease is renewed while the [`Reservation`] lives, three times in its length; true if not given.
    pub fn renewed(mut self, is_renewed: bool) -> Self {
        self.is_renewed = is_renewed;
        self
    }

    /// A reservation whose lease ends unsettled counts.
    pub fn count_lapsed(mut self) -> Self {
        self.options.count_lapsed = true;
        self
    }

    /// The id of the reservation, unique within its key. The limiter makes one if it is not given.
    pub fn id(mut self, id: impl Into<Id>) -> Self {
        self.options.id = Some(id.into());
        self
    }

    /// Waits in line for up to this time instead of being denied; zero waits without end.
    pub fn block(mut self, longest: Duration) -> Self {
        self.options.block = Some(longest);
        self
    }
}

impl<L: Reserve> IntoFuture for AcquireCall<'_, L> {
    type Output = Result<Reservation, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        if self.options.id.is_none() && self.quantity > 0 {
            match Id::random() {
                Ok(id) => self.options.id = Some(id),
                Err(error) => return Box::pin(std::future::ready(Err(error))),
            }
        }
        let request = calls::acquire(self.key, self.limit, self.quantity, &self.options);
        let quantity = i64::try_from(self.quantity).unwrap_or(i64::MAX);
        let limits = Limits::single(self.key, self.limit, self.options.lease);
        let options = self.options;
        let mut answer = Answer::new(self.limiter, request, quantity, options, calls::read_acquire);
        let limiter = self.limiter.clone();
        let is_renewed = self.is_renewed;
        Box::pin(async move {
            let outcome = (&mut answer.sending).await?;
            let (reply, by) = answer.reply(outcome)?;
            let settling = by.unwrap_or(limiter);
            Reservation::new(settling, limits, AllReply::single(reply), is_renewed)
        })
    }
}

/// How several limits are asked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AllKind {
    Take,
    Look,
    Charge,
}

/// A call of [`Limiter::all`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AllCall<'a> {
    limiter: &'a Limiter,
    clauses: Vec<Clause>,
    kind: AllKind,
}

impl AllCall<'_> {
    /// Only says what the call would be answered now (RL.ALL_RO), and takes nothing.
    pub fn look(mut self) -> Self {
        self.kind = AllKind::Look;
        self
    }

    /// Counts afterwards what was used, as one step and also where there is not enough. The clauses are rates and windows
    /// without options and groups.
    pub fn force(mut self) -> Self {
        self.kind = AllKind::Charge;
        self
    }

    fn request(&self, groups: &Arc<Groups>) -> Result<Request, Error> {
        if self.kind == AllKind::Charge {
            groups.check_plain()?;
            return Ok(calls::charge(groups));
        }
        let takes = self.kind == AllKind::Take;
        match groups.reserving().filter(|_| takes) {
            Some(part) => Err(Error::must_be_acquired(&part.name)),
            None => Ok(calls::all(groups, takes)),
        }
    }
}

/// Reads what several limits answer.
fn read_all(
    groups: &Groups,
    outcome: Outcome,
    kind: AllKind,
) -> Result<(AllReply, Option<Limiter>), Error> {
    let read = |values: &[Value]| {
        if kind == AllKind::Charge {
            return calls::read_charge(values, groups);
        }
        let mut reply = AllReply::read(values.first().unwrap_or(&Value::Nil))?;
        reply.paid = groups.paid(&reply, kind == AllKind::Take);
        Ok(reply)
    };
    match outcome {
        Outcome::Replies(values) => Ok((read(&values)?, None)),
        Outcome::Fallback(values, limiter) => {
            let mut reply = read(&values)?;
            reply.reply.reachable = false;
            Ok((reply, Some(limiter)))
        }
        // What was used already is not denied.
        Outcome::Chosen(allow) => Ok((AllReply::unreached(allow || kind == AllKind::Charge), None)),
    }
}

impl IntoFuture for AllCall<'_> {
    type Output = Result<AllReply, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        let groups = Groups::new(std::mem::take(&mut self.clauses), false).map(Arc::new);
        let made = groups.and_then(|groups| Ok((self.request(&groups)?, groups)));
        let (request, groups) = match made {
            Ok(made) => made,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let (sending, kind) = (self.limiter.0.send(request), self.kind);
        Box::pin(async move { read_all(&groups, sending.await?, kind).map(|(reply, _)| reply) })
    }
}

/// A call of [`Limiter::acquire_all`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AcquireAllCall<'a> {
    limiter: &'a Limiter,
    clauses: Vec<Clause>,
    is_renewed: bool,
}

impl AcquireAllCall<'_> {
    /// Whether the leases are renewed while the [`Reservation`] lives, three times in the shortest; true if not given.
    pub fn renewed(mut self, is_renewed: bool) -> Self {
        self.is_renewed = is_renewed;
        self
    }
}

impl IntoFuture for AcquireAllCall<'_> {
    type Output = Result<Reservation, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let groups = match Groups::new(self.clauses, true) {
            Ok(groups) if groups.reserving().is_some() => Arc::new(groups),
            Ok(_) => return Box::pin(std::future::ready(Err(Error::reserves_nothing()))),
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let sending = self.limiter.0.send(calls::all(&groups, true));
        let limiter = self.limiter.clone();
        let is_renewed = self.is_renewed;
        Box::pin(async move {
            let (reply, by) = read_all(&groups, sending.await?, AllKind::Take)?;
            let settling = by.unwrap_or(limiter);
            Reservation::new(settling, Limits::several(&groups), reply, is_renewed)
        })
    }
}

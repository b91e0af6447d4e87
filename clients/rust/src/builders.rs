//! The calls of a limiter that have options, and what they are answered.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::calls::{self, option_methods, Options, Request};
use crate::clause::{Clause, Groups};
#[cfg(feature = "memory")]
use crate::core::Core;
use crate::core::{Outcome, PendingCall};
use crate::limit::{Limit, Rate, Reserve, Take, Window};
#[cfg(feature = "memory")]
use crate::memory::TypedCall;
use crate::reply::Id;
use crate::reservation::{Limits, Reservation};
use crate::transport::{BoxFuture, Value};
use crate::{AllReply, Error, Limiter, Reply};

/// A call of [`Limiter::take`], which is sent when it is awaited.
///
/// ```no_run
/// # use redis_ratelimit_client::{Error, Limiter, Rate, Window};
/// # async fn example(limiter: Limiter) -> Result<(), Error> {
/// # use std::time::Duration;
/// let tokens = Window::per("100000/min")?;
/// // As much as there is, but 2000 are left for others.
/// let part = limiter.take("tokens", &tokens).quantity(5000).at_most().leave(2000).await?;
/// println!("{:?} granted", part.granted);
/// // Counts denied calls too: a client that does not pause stays out.
/// limiter.take("login", &Window::per("5/min")?).count_denied().await?;
/// // Books a turn within the next minute.
/// let rate = Rate::per("1/s")?.capacity(1)?;
/// let turn = limiter.take("crawl", &rate).ahead(Duration::from_secs(60)).await?;
/// println!("go on in {:?}", turn.wait);
/// // Counts what was used, and gives back what was not.
/// limiter.take("tokens", &tokens).quantity(1234).force().await?;
/// limiter.take("tokens", &tokens).quantity(-34).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct TakeCall<'a, L> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: &'a [u8],
    pub(crate) limit: &'a L,
    pub(crate) quantity: i64,
    pub(crate) options: Options,
}

impl<L: Take> TakeCall<'_, L> {
    /// Sets how much to take; the default is 1. 0 only looks, and a negative quantity gives back what was taken.
    pub fn quantity(mut self, quantity: i64) -> Self {
        self.quantity = quantity;
        self
    }

    option_methods!(leave, at_most, block);

    /// Counts the quantity even if there is not enough, for what was used and is known only afterwards. Later calls wait
    /// until it is repaid.
    pub fn force(mut self) -> Self {
        self.options.force = true;
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
    /// Counts the call also if it is denied, so that a client that does not pause stays out.
    pub fn count_denied(mut self) -> Self {
        self.options.count_denied = true;
        self
    }
}

impl<L: Take> IntoFuture for TakeCall<'_, L> {
    type Output = Result<Reply, Error>;
    type IntoFuture = Answer;

    fn into_future(self) -> Answer {
        let TakeCall { limiter, key, limit, quantity, options } = self;
        #[cfg(feature = "memory")]
        if let Some(answer) = Answer::in_process(limiter, key, limit, quantity, &options, false) {
            return answer;
        }
        if let Err(error) = limit.check() {
            return Answer(AnswerState::Refused(error));
        }
        let request = calls::take(key, limit, quantity, &options);
        ServerAnswer::new(limiter, request, quantity, options, calls::read_take).into()
    }
}

/// A call of [`Limiter::look`], which is sent when it is awaited.
///
/// ```no_run
/// # use redis_ratelimit_client::{Error, Limiter, Window};
/// # async fn example(limiter: Limiter) -> Result<(), Error> {
/// let window = Window::per("100/min")?;
/// let could_take = limiter.look("k", &window).quantity(10).leave(20).await?.is_allowed();
/// let could_reserve = limiter.look("k", &window).reserving().await?.is_allowed();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct LookCall<'a, L> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: &'a [u8],
    pub(crate) limit: &'a L,
    pub(crate) quantity: i64,
    pub(crate) options: Options,
    pub(crate) reserves: bool,
}

impl<L: Limit> LookCall<'_, L> {
    /// Sets how much would be taken; the default is 1.
    pub fn quantity(mut self, quantity: i64) -> Self {
        self.quantity = quantity;
        self
    }

    option_methods!(leave);
}

impl LookCall<'_, Window> {
    /// Asks what a reservation would return, instead of a call that takes.
    pub fn reserving(mut self) -> Self {
        self.reserves = true;
        self
    }
}

impl<L: Limit> IntoFuture for LookCall<'_, L> {
    type Output = Result<Reply, Error>;
    type IntoFuture = Answer;

    fn into_future(self) -> Answer {
        let LookCall { limiter, key, limit, quantity, options, reserves } = self;
        #[cfg(feature = "memory")]
        if !reserves {
            if let Some(answer) = Answer::in_process(limiter, key, limit, quantity, &options, true)
            {
                return answer;
            }
        }
        if let Err(error) = limit.check() {
            return Answer(AnswerState::Refused(error));
        }
        let request = calls::look(key, limit, quantity, &options, reserves);
        let read = match request.first.word(0) {
            Some(b"RL.ACQUIRE_RO") => |value: &Value, _: &Options| Reply::read_id(value),
            _ => |value: &Value, _: &Options| Reply::read(value),
        };
        ServerAnswer::new(limiter, request, quantity, options, read).into()
    }
}

/// The answer to [`TakeCall`] or [`LookCall`], when it has come.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Answer(AnswerState);

enum AnswerState {
    /// A server is asked.
    Server(Box<ServerAnswer>),
    /// The engine in the process is asked when this is polled.
    #[cfg(feature = "memory")]
    Engine(Arc<Core>, TypedCall),
    /// The engine has answered.
    #[cfg(feature = "memory")]
    Done,
    /// The limit is not valid. Nothing is sent.
    Refused(Error),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl From<ServerAnswer> for Answer {
    fn from(answer: ServerAnswer) -> Answer {
        Answer(AnswerState::Server(Box::new(answer)))
    }
}

impl Answer {
    /// Creates the answer of the engine; `None` if a server is asked, or the call has to be written as a command.
    #[cfg(feature = "memory")]
    fn in_process<L: Limit>(
        limiter: &Limiter,
        key: &[u8],
        limit: &L,
        quantity: i64,
        options: &Options,
        only_looks: bool,
    ) -> Option<Answer> {
        let core = limiter.core();
        core.memory.as_ref()?;
        let call = TypedCall::new(key, limit, quantity, options, only_looks)?;
        Some(Answer(AnswerState::Engine(Arc::clone(core), call)))
    }
}

impl Future for Answer {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            AnswerState::Server(answer) => {
                let outcome = std::task::ready!(Pin::new(&mut answer.pending).poll(context));
                let reply = outcome.and_then(|outcome| answer.reply(outcome));
                Poll::Ready(reply.map(|(reply, _)| reply))
            }
            #[cfg(feature = "memory")]
            AnswerState::Engine(core, call) => {
                let reply = core.decide_typed(call);
                self.0 = AnswerState::Done;
                Poll::Ready(reply)
            }
            #[cfg(feature = "memory")]
            AnswerState::Done => Poll::Pending,
            AnswerState::Refused(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

/// The answer of a server to a call of one limit, when it has come.
struct ServerAnswer {
    pending: PendingCall,
    quantity: i64,
    options: Options,
    read: fn(&Value, &Options) -> Result<Reply, Error>,
}

impl ServerAnswer {
    fn new(
        limiter: &Limiter,
        request: Request,
        quantity: i64,
        options: Options,
        read: fn(&Value, &Options) -> Result<Reply, Error>,
    ) -> ServerAnswer {
        ServerAnswer { pending: limiter.core().send(request), quantity, options, read }
    }

    /// Returns the reply, and the limiter that settles what was reserved if it was not this one.
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
            Outcome::Unreached(allow) => {
                Ok((calls::unreached(allow, self.quantity, &self.options), None))
            }
        }
    }
}

/// A call of [`Limiter::acquire`], which is sent when it is awaited.
///
/// ```no_run
/// # use redis_ratelimit_client::{Error, Limiter, Window};
/// # async fn example(limiter: Limiter) -> Result<(), Error> {
/// # use std::time::Duration;
/// let tokens = Window::per("100000/min")?;
/// let batch = limiter
///     .acquire("tokens", &tokens)
///     .quantity(5000)
///     .at_most()
///     .lease(Duration::from_secs(5))
///     .renewed(false)
///     // What is not settled within the lease counts.
///     .count_lapsed()
///     .id("batch-17")
///     .await?;
/// println!("{:?} granted", batch.reply().answers[0].granted);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AcquireCall<'a, L> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: &'a [u8],
    pub(crate) limit: &'a L,
    pub(crate) quantity: u64,
    pub(crate) options: Options,
    pub(crate) is_renewed: bool,
}

impl<L: Reserve> AcquireCall<'_, L> {
    /// Sets how much to reserve; the default is 1, and 0 only looks.
    pub fn quantity(mut self, quantity: u64) -> Self {
        self.quantity = quantity;
        self
    }

    option_methods!(leave, at_most, lease, count_lapsed, id, block);

    /// Sets whether the lease is renewed while the [`Reservation`] lives, three times in its length; the default is true.
    pub fn renewed(mut self, is_renewed: bool) -> Self {
        self.is_renewed = is_renewed;
        self
    }
}

impl<L: Reserve> IntoFuture for AcquireCall<'_, L> {
    type Output = Result<Reservation, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        let checked = self.limit.check().and_then(|()| {
            if self.options.id.is_none() && self.quantity > 0 {
                self.options.id = Some(Id::random()?);
            }
            Ok(())
        });
        if let Err(error) = checked {
            return Box::pin(std::future::ready(Err(error)));
        }
        let request = calls::acquire(self.key, self.limit, self.quantity, &self.options);
        let quantity = i64::try_from(self.quantity).unwrap_or(i64::MAX);
        let limits = Limits::single(self.key, self.limit, self.options.lease);
        let options = self.options;
        let read = calls::read_acquire;
        let mut answer = ServerAnswer::new(self.limiter, request, quantity, options, read);
        let limiter = self.limiter.clone();
        let is_renewed = self.is_renewed;
        Box::pin(async move {
            let outcome = (&mut answer.pending).await?;
            let (reply, by) = answer.reply(outcome)?;
            Reservation::new(limiter, by, limits, AllReply::single(reply), is_renewed)
        })
    }
}

/// The way to ask several limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AllKind {
    Take,
    Look,
    Charge,
}

/// A call of [`Limiter::all`], which is sent when it is awaited.
///
/// ```no_run
/// # use redis_ratelimit_client::{Error, Limiter, Clause, Window};
/// # async fn example(limiter: Limiter) -> Result<(), Error> {
/// let (requests, tokens) = (Window::per("60/min")?, Window::per("100000/min")?);
/// let limits = || {
///     [Clause::take("{u1}:rpm", &requests), Clause::take("{u1}:tpm", &tokens).quantity(800)]
/// };
/// if limiter.all(limits()).look().await?.is_allowed() {
///     // Counts afterwards, also where there is not enough.
///     limiter.all(limits()).force().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AllCall<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) clauses: Vec<Clause>,
    pub(crate) kind: AllKind,
}

impl AllCall<'_> {
    /// Only asks what the call would return now (RL.ALL_RO), and takes nothing.
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

/// Reads the answer of several limits.
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
        Outcome::Unreached(allow) => {
            Ok((AllReply::unreached(allow || kind == AllKind::Charge), None))
        }
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
        let (pending, kind) = (self.limiter.core().send(request), self.kind);
        Box::pin(async move { read_all(&groups, pending.await?, kind).map(|(reply, _)| reply) })
    }
}

/// A call of [`Limiter::acquire_all`], which is sent when it is awaited.
///
/// ```no_run
/// # use redis_ratelimit_client::{Error, Limiter, Clause, Semaphore};
/// # async fn example(limiter: Limiter) -> Result<(), Error> {
/// # use std::time::Duration;
/// let jobs = Clause::acquire("{u1}:jobs", &Semaphore::new(5)).lease(Duration::from_secs(60));
/// let reservation = limiter.acquire_all([jobs]).renewed(false).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AcquireAllCall<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) clauses: Vec<Clause>,
    pub(crate) is_renewed: bool,
}

impl AcquireAllCall<'_> {
    /// Sets whether the leases are renewed while the [`Reservation`] lives, three times in the shortest; the default is
    /// true.
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
        let pending = self.limiter.core().send(calls::all(&groups, true));
        let limiter = self.limiter.clone();
        let is_renewed = self.is_renewed;
        Box::pin(async move {
            let (reply, by) = read_all(&groups, pending.await?, AllKind::Take)?;
            Reservation::new(limiter, by, Limits::several(&groups), reply, is_renewed)
        })
    }
}

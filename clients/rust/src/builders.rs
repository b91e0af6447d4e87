//! The calls of a limiter that have options, and the futures of their replies.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::calls::{self, CallKind, LimitCall};
use crate::clause::{Clause, Groups};
use crate::core::Outcome;
use crate::limit::{Limit, Rate, Reserve, Take, Window};
use crate::options::{option_methods, Options};
use crate::reply::Id;
use crate::reservation::Reservation;
use crate::transport::{BoxFuture, Value};
use crate::{AllReply, Error, Limiter, Reply};

/// A call of [`Limiter::take`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct TakeCall<'a, L>(pub(crate) LimitCall<'a>, pub(crate) PhantomData<&'a L>);

impl<L> TakeCall<'_, L> {
    fn options(&mut self) -> &mut Options {
        &mut self.0.options
    }
}

impl<L: Take> TakeCall<'_, L> {
    /// Sets how much to take; the default is 1. 0 only looks, and a negative quantity gives back what was taken.
    pub fn quantity(mut self, quantity: i64) -> Self {
        self.0.quantity = quantity;
        self
    }

    option_methods!(leave, at_most, force, block);
}

impl TakeCall<'_, Rate> {
    option_methods!(ahead);
}

impl TakeCall<'_, Window> {
    option_methods!(count_denied);
}

impl<L: Take> IntoFuture for TakeCall<'_, L> {
    type Output = Result<Reply, Error>;
    type IntoFuture = Answer;

    fn into_future(self) -> Answer {
        Answer::new(self.0)
    }
}

/// A call of [`Limiter::look`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct LookCall<'a, L>(pub(crate) LimitCall<'a>, pub(crate) PhantomData<&'a L>);

impl<L> LookCall<'_, L> {
    fn options(&mut self) -> &mut Options {
        &mut self.0.options
    }
}

impl<L: Limit> LookCall<'_, L> {
    /// Sets how much would be taken; the default is 1.
    pub fn quantity(mut self, quantity: i64) -> Self {
        self.0.quantity = quantity;
        self
    }

    option_methods!(leave);
}

impl LookCall<'_, Window> {
    /// Asks what a reservation would return, instead of a call that takes.
    #[doc = example!(limiter)]
    /// let window = Window::per("1/min")?;
    /// let reservation = limiter.acquire("user:1", &window).await?;
    /// // Others may give back what they hold.
    /// let reply = limiter.look("user:1", &window).reserving().await?;
    /// assert_eq!(reply.decision, Decision::Held);
    #[doc = example!(end)]
    pub fn reserving(mut self) -> Self {
        self.0.kind = CallKind::LookToReserve;
        self
    }
}

impl<L: Limit> IntoFuture for LookCall<'_, L> {
    type Output = Result<Reply, Error>;
    type IntoFuture = Answer;

    fn into_future(self) -> Answer {
        Answer::new(self.0)
    }
}

/// The future reply to a [`TakeCall`] or [`LookCall`].
#[doc = example!(limiter)]
/// // It borrows nothing, unlike the call.
/// let answer: Answer = limiter.take("user:1", &Window::per("5/min")?).into_future();
/// let reply = tokio::spawn(answer).await.expect("the task does not panic")?;
/// assert_eq!(reply.remaining, 4);
#[doc = example!(end)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Answer(BoxFuture<'static, Result<Reply, Error>>);

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl Answer {
    fn new(call: LimitCall<'_>) -> Answer {
        let asking = ask(call);
        Answer(Box::pin(async move { Ok(asking.await?.0) }))
    }
}

impl Future for Answer {
    type Output = Result<Reply, Error>;

    /// # Panics
    ///
    /// If it has returned the reply before, as the futures of `async` functions do.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

/// Returns the reply to a call, and the limiter that settles what was reserved if it was not this one.
fn ask(
    call: LimitCall<'_>,
) -> impl Future<Output = Result<(Reply, Option<Limiter>), Error>> + Send + 'static {
    let request = call.check().map(|()| call.request());
    let LimitCall { limiter, kind, quantity, options, .. } = call;
    let core = Arc::clone(limiter.core());
    async move {
        match core.send(request?).await? {
            Outcome::Replies(values, by) => {
                let value = values.first().unwrap_or(&Value::Nil);
                let reply = calls::read(value, kind, &options)?;
                Ok((Reply { reachable: by.is_none(), ..reply }, by))
            }
            Outcome::Unreached(allow) => Ok((calls::unreached(allow, quantity, &options), None)),
        }
    }
}

/// A call of [`Limiter::acquire`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AcquireCall<'a, L> {
    pub(crate) call: LimitCall<'a>,
    pub(crate) is_renewed: bool,
    pub(crate) limit: PhantomData<&'a L>,
}

impl<L> AcquireCall<'_, L> {
    fn options(&mut self) -> &mut Options {
        &mut self.call.options
    }
}

impl<L: Reserve> AcquireCall<'_, L> {
    /// Sets how much to reserve; the default is 1, and 0 only looks.
    pub fn quantity(mut self, quantity: u64) -> Self {
        self.call.quantity = i64::try_from(quantity).unwrap_or(i64::MAX);
        self
    }

    option_methods!(leave, at_most, lease, count_lapsed, id, block, renewed);
}

impl<L: Reserve> IntoFuture for AcquireCall<'_, L> {
    type Output = Result<Reservation, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let AcquireCall { mut call, is_renewed, .. } = self;
        let has_id = if call.quantity == 0 { Ok(()) } else { call.options.make_id() };
        let (limiter, limits) = (call.limiter.clone(), Arc::new(Groups::from(&call)));
        let asking = ask(call);
        Box::pin(async move {
            has_id?;
            let (reply, by) = asking.await?;
            Reservation::new(limiter, by, limits, AllReply::from(reply), is_renewed)
        })
    }
}

/// The way to ask several limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AllKind {
    Take,
    Look,
    Reserve,
    Charge,
}

/// Asks several limits. Returns the reply, the limits, and the limiter that decided if it was not this one.
async fn ask_all(
    limiter: Limiter,
    clauses: Vec<Clause>,
    kind: AllKind,
) -> Result<(AllReply, Arc<Groups>, Option<Limiter>), Error> {
    let groups = Arc::new(Groups::new(clauses, kind == AllKind::Reserve)?);
    let request = match (kind, groups.reserving()) {
        (AllKind::Charge, _) => {
            groups.check_plain()?;
            calls::charge(&groups)
        }
        (AllKind::Take, Some(clause)) => {
            return Err(Error::must_be_acquired(clause.shown_name()));
        }
        (AllKind::Reserve, None) => return Err(Error::reserves_nothing()),
        _ => calls::all(&groups, kind != AllKind::Look),
    };
    match limiter.core().send(request).await? {
        Outcome::Replies(values, by) => {
            let mut reply = match kind {
                AllKind::Charge => calls::read_charge(&values, &groups)?,
                _ => AllReply::read(values.first().unwrap_or(&Value::Nil))?,
            };
            groups.add_names(&mut reply, kind != AllKind::Look);
            reply.reply.reachable = by.is_none();
            Ok((reply, groups, by))
        }
        // What was used already is not denied.
        Outcome::Unreached(allow) => {
            Ok((AllReply::unreached(allow || kind == AllKind::Charge), groups, None))
        }
    }
}

/// A call of [`Limiter::all`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AllCall<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) clauses: Vec<Clause>,
    pub(crate) kind: AllKind,
}

impl AllCall<'_> {
    /// Asks what the call would return now (RL.ALL_RO), without taking anything.
    pub fn look(mut self) -> Self {
        self.kind = AllKind::Look;
        self
    }

    /// Counts what was used, in one step, even if there is not enough. The clauses must be rates and windows without options
    /// and groups.
    #[doc = example!(limiter)]
    /// let tokens = Window::per("100000/min")?;
    /// let used = [Clause::take("{u1}:tpm", &tokens).quantity(120_000)];
    /// assert!(limiter.all(used).force().await?.is_allowed());
    /// assert!(!limiter.take("{u1}:tpm", &tokens).await?.is_allowed());
    #[doc = example!(end)]
    pub fn force(mut self) -> Self {
        self.kind = AllKind::Charge;
        self
    }
}

impl IntoFuture for AllCall<'_> {
    type Output = Result<AllReply, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let asking = ask_all(self.limiter.clone(), self.clauses, self.kind);
        Box::pin(async move { Ok(asking.await?.0) })
    }
}

/// A call of [`Limiter::acquire_all`], which is sent when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct AcquireAllCall<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) clauses: Vec<Clause>,
    pub(crate) is_renewed: bool,
}

impl AcquireAllCall<'_> {
    option_methods!(renewed);
}

impl IntoFuture for AcquireAllCall<'_> {
    type Output = Result<Reservation, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let AcquireAllCall { limiter, clauses, is_renewed } = self;
        let limiter = limiter.clone();
        Box::pin(async move {
            let asking = ask_all(limiter.clone(), clauses, AllKind::Reserve);
            let (reply, groups, by) = asking.await?;
            Reservation::new(limiter, by, groups, reply, is_renewed)
        })
    }
}

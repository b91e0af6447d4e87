//! A reservation while its work is done, or those of several limits as one.

use std::collections::HashMap;
use std::fmt;
use std::future::{pending, Future};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, sleep, Instant, MissedTickBehavior};

use crate::builders::Answered;
use crate::calls::{Groups, Request, Reserved, Settle};
use crate::clause::{check_length, Clause};
use crate::core::{Outcome, PAUSES_MS};
use crate::error::listed;
use crate::reply::Id;
use crate::server::DEFAULT_TIMEOUT;
use crate::{AllReply, Error, Limiter};

/// The number of renewals in a lease while the work runs.
pub(crate) const RENEWALS_PER_LEASE: u32 = 3;
/// The default of the server's setting ratelimit.lease, for reservations that were made without a lease of their own.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(20);
/// The shortest pause between two renewals.
pub(crate) const LEAST_RENEWAL: Duration = Duration::from_millis(5);

/// The quantity that was used: of one limit a number, of several the numbers by the names of the limits.
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Window};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let mut reservation = limiter.acquire("tokens", &Window::per("100000/min")?).await?;
/// reservation.set(1234)?; // a single limit needs no name
/// reservation.set([("tokens", 1234)])?;
/// assert!(reservation.set([("dollars", 90)]).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost(Vec<(Option<String>, u64)>);

impl From<u64> for Cost {
    fn from(quantity: u64) -> Cost {
        Cost(vec![(None, quantity)])
    }
}

impl<N: Into<String>, const COUNT: usize> From<[(N, u64); COUNT]> for Cost {
    fn from(costs: [(N, u64); COUNT]) -> Cost {
        costs.into_iter().collect()
    }
}

impl<N: Into<String>> FromIterator<(N, u64)> for Cost {
    fn from_iter<I: IntoIterator<Item = (N, u64)>>(costs: I) -> Cost {
        Cost(costs.into_iter().map(|(name, quantity)| (Some(name.into()), quantity)).collect())
    }
}

/// Returns the costs by name, or refuses a cost that is not of one of these limits.
fn check_cost(limits: &Groups, cost: Cost) -> Result<Vec<(String, u64)>, Error> {
    let all: Vec<&Clause> = limits.clauses().collect();
    let check = |(name, quantity): (Option<String>, u64)| {
        let clause = match (&name, all.as_slice()) {
            (None, [clause]) => Some(clause),
            (None, _) => return Err(Error::cost_of_several()),
            (Some(name), all) => all.iter().find(|each| each.shown_name() == name),
        };
        let Some(clause) = clause else {
            let names = listed(all.iter().map(|each| each.shown_name()));
            return Err(Error::unknown_limit(&name.unwrap_or_default(), &names));
        };
        let name = clause.shown_name();
        match clause {
            clause if !clause.reserves() => Err(Error::cost_of_counted(name)),
            clause if clause.limit.is_semaphore() => Err(Error::cost_of_semaphore(name)),
            _ => Ok((name.to_owned(), quantity)),
        }
    };
    cost.0.into_iter().map(check).collect()
}

/// A reservation of one limit or several, from [`Limiter::acquire`] or [`Limiter::acquire_all`].
///
/// End it with [`Reservation::apply`], which counts it, or with [`Reservation::release`], which gives it back. If no server
/// answers, either can be called again while the lease lasts, and a drop tries the same once more in the background. If the
/// reservation is dropped before either was called, for example because an error returns early, it is settled in the
/// background: what was [set](Reservation::set) is applied, or else everything is given back. If no server can be reached,
/// that is tried again while the lease lasts, for up to 20 seconds. An event of the crate tracing reports it if it fails.
///
/// Its leases are renewed until then, and [`Reservation::lost`] tells if one of them ended all the same.
#[must_use = "what is reserved is given back when it is dropped"]
pub struct Reservation {
    limits: Arc<Groups>,
    reply: AllReply,
    costs: HashMap<String, u64>,
    held: Arc<HeldLimits>,
    /// The shortest lease that the server may have.
    lease: Duration,
    renewal: Option<AbortHandle>,
    is_renewed: bool,
    is_settled: bool,
    /// A settlement that got no reply.
    failed: Option<Settle>,
}

/// The reservations, and the limiter that settles them.
struct HeldLimits {
    limiter: Limiter,
    reserved: Vec<Reserved>,
    is_lost: watch::Sender<bool>,
    /// When the leases end unless they are renewed.
    held_until: watch::Sender<Instant>,
}

impl HeldLimits {
    /// Settles all, as one step. It is an error if something is not held. `within` is the deadline if the limiter has none.
    async fn settle(&self, how: &Settle, within: Option<Duration>) -> Result<(), Error> {
        if self.reserved.is_empty() {
            return Ok(());
        }
        let request = Request { within, ..how.request(&self.reserved) };
        let Outcome::Replies(values, _) = self.limiter.core().send(request).await? else {
            return Ok(());
        };
        match how.read(&values, &self.reserved)? {
            limits if limits.is_empty() => Ok(()),
            limits => Err(Error::Lapsed { limits }),
        }
    }

    /// Ends a settlement that no caller waits for: tries again while nothing could be sent and the leases last, after which
    /// others may reserve by the same ids, and reports an error.
    async fn finish(&self, how: &Settle, mut settled: Result<(), Error>) {
        for pause in PAUSES_MS {
            let pause = Duration::from_millis(pause);
            let is_unsent = matches!(settled, Err(Error::Unreachable { is_sent: false, .. }));
            let left = self.held_until.borrow().saturating_duration_since(Instant::now());
            if !is_unsent || pause >= left {
                break;
            }
            sleep(pause).await;
            settled = self.settle(how, None).await;
        }
        self.report_unread(how, settled);
    }

    /// Reports an error of settling that no caller waits for.
    fn report_unread(&self, how: &Settle, settled: Result<(), Error>) {
        match (settled, how) {
            // What had lapsed was given back already.
            (Err(Error::Lapsed { .. }), Settle::Release) | (Ok(()), _) => {}
            (Err(error), _) => {
                tracing::warn!(limits = self.names(), %error, "a reservation was not settled");
            }
        }
    }

    /// Renews the leases, and returns how many were held.
    async fn renew(&self) -> Result<usize, Error> {
        match self.settle(&Settle::Renew(None), Some(DEFAULT_TIMEOUT)).await {
            Ok(()) => Ok(self.reserved.len()),
            Err(Error::Lapsed { limits }) => {
                self.report_lost();
                Ok(self.reserved.len().saturating_sub(limits.len()))
            }
            Err(error) => Err(error),
        }
    }

    fn report_lost(&self) {
        if !self.is_lost.send_replace(true) {
            tracing::warn!(limits = self.names(), "a lease was lost");
        }
    }

    fn names(&self) -> String {
        listed(self.reserved.iter().map(|each| each.clause.shown_name()))
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("reply", &self.reply)
            .field("costs", &self.costs)
            .finish_non_exhaustive()
    }
}

impl Reservation {
    /// Creates the reservation of a call.
    pub(crate) fn new(answered: Answered) -> Result<Reservation, Error> {
        let Answered { limiter, groups: limits, reply, by, is_renewed } = answered;
        if !reply.is_allowed() {
            return Err(Error::Denied(Box::new(reply)));
        }
        let reserved = limits.clauses().zip(&reply.answers).filter_map(|(clause, answer)| {
            Some(Reserved { clause: clause.clone(), id: answer.id.clone()? })
        });
        let reserved: Vec<_> = reserved.collect();
        let leases = reserved.iter().map(|each| each.clause.options.lease.unwrap_or(DEFAULT_LEASE));
        let lease = leases.min().unwrap_or(DEFAULT_LEASE);
        let mut reservation = Reservation {
            limits,
            reply,
            costs: HashMap::new(),
            held: Arc::new(HeldLimits {
                limiter: by.unwrap_or(limiter),
                reserved,
                is_lost: watch::Sender::new(false),
                held_until: watch::Sender::new(Instant::now()),
            }),
            lease,
            renewal: None,
            is_renewed,
            is_settled: false,
            failed: None,
        };
        reservation.renew_every(lease);
        Ok(reservation)
    }

    /// Renews the leases until the reservation is settled, or nothing is held.
    fn renew_every(&mut self, lease: Duration) {
        self.stop_renewing();
        let lease_end = move |began: Instant| began.checked_add(lease).unwrap_or(began);
        self.held.held_until.send_replace(lease_end(Instant::now()));
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_renewed || self.held.reserved.is_empty() {
            return;
        }
        let pause = lease.checked_div(RENEWALS_PER_LEASE).unwrap_or(lease).max(LEAST_RENEWAL);
        let held = Arc::clone(&self.held);
        let renewing = runtime.spawn(async move {
            let mut turns = interval(pause);
            turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
            turns.tick().await; // at once
                                // One that gets no reply in time does not delay the next.
            let mut renewals = JoinSet::new();
            loop {
                let turn = turns.tick().await;
                while let Some(Ok((began, renewed))) = renewals.try_join_next() {
                    match renewed {
                        Ok(0) => return,
                        Ok(_) => drop(held.held_until.send_replace(lease_end(began))),
                        Err(_) => {}
                    }
                }
                if turn >= *held.held_until.borrow() {
                    held.report_lost();
                }
                let held = Arc::clone(&held);
                renewals.spawn(async move { (turn, held.renew().await) });
            }
        });
        self.renewal = Some(renewing.abort_handle());
    }

    fn stop_renewing(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }

    /// Returns the reply to the call that reserved. For a single limit it has one answer.
    pub fn reply(&self) -> &AllReply {
        &self.reply
    }

    /// Returns the id of a single reservation. `None` if nothing is reserved: with quantity 0, by a policy in shadow, or
    /// while no server answers.
    pub fn id(&self) -> Option<&Id> {
        match self.held.reserved.as_slice() {
            [reserved] => Some(&reserved.id),
            _ => None,
        }
    }

    /// Returns the names of the limits that are reserved, and the ids of the reservations.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Semaphore};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let jobs = Clause::acquire("{u1}:jobs", &Semaphore::new(5)).name("jobs").id("job-17");
    /// let reservation = limiter.acquire_all([jobs]).await?;
    /// for (name, id) in reservation.ids() {
    ///     assert_eq!((name, id.to_string().as_str()), ("jobs", "job-17"));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn ids(&self) -> impl Iterator<Item = (&str, &Id)> {
        self.held.reserved.iter().map(|each| (each.clause.shown_name(), &each.id))
    }

    /// Sets what was really used, which [`Reservation::apply`] counts. Later numbers replace earlier ones, and a limit
    /// without one counts what was reserved.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no such limit, it reserves nothing, or it is a semaphore.
    pub fn set(&mut self, cost: impl Into<Cost>) -> Result<(), Error> {
        self.costs.extend(check_cost(&self.limits, cost.into())?);
        Ok(())
    }

    /// Counts the reservation, or what was [set](Reservation::set). A semaphore is given back. Several limits are settled in
    /// one step.
    ///
    /// It goes on in the background if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Lapsed`] if the lease had ended, so that nothing was counted, or the reservation was settled before, perhaps
    /// by a call whose reply was lost; others as for every call.
    pub async fn apply(&mut self) -> Result<(), Error> {
        self.settle(Settle::Apply(self.costs.clone())).await
    }

    /// Gives back what was reserved.
    ///
    /// It goes on in the background if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Lapsed`] if the lease had ended, so that there was nothing to give back, or the reservation was settled
    /// before, perhaps by a call whose reply was lost; others as for every call.
    pub async fn release(&mut self) -> Result<(), Error> {
        self.settle(Settle::Release).await
    }

    /// Restarts the leases, and from then on renews them three times in `lease`.
    ///
    /// # Errors
    ///
    /// [`Error::Lapsed`] if a lease had ended, and [`Error::InvalidArgument`] if `lease` is 0; others as for every call.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Semaphore};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let mut permit = limiter.acquire("jobs", &Semaphore::new(5)).await?;
    /// permit.renew(Duration::from_secs(120)).await?;
    /// assert!(limiter.held("jobs").await?[0].left > Duration::from_secs(60));
    /// # Ok(()) }
    /// ```
    pub async fn renew(&mut self, lease: impl Into<Option<Duration>>) -> Result<(), Error> {
        let Some(lease) = lease.into() else {
            return self.held.settle(&Settle::Renew(None), None).await;
        };
        check_length("lease", Some(lease))?;
        // Until the server has replied, either lease may be in force.
        self.lease = self.lease.min(lease);
        self.renew_every(self.lease);
        self.held.settle(&Settle::Renew(Some(lease)), None).await?;
        self.lease = lease;
        self.renew_every(lease);
        Ok(())
    }

    /// Waits until the lease of a limit is lost, so that others may take what it reserved: the server no longer holds it, or
    /// no renewal has been confirmed for as long as the lease lasts. The future never ends if that does not happen, or if
    /// the leases are not renewed.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Semaphore};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let jobs = Semaphore::new(1);
    /// let permit = limiter.acquire("jobs", &jobs).lease(Duration::from_millis(60)).await?;
    /// limiter.reset("jobs").await?; // by mistake
    /// tokio::select! {
    ///     () = permit.lost() => println!("stop the work"),
    ///     () = tokio::time::sleep(Duration::from_secs(60)) => unreachable!("the work is done"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_lost = self.held.is_lost.subscribe();
        async move {
            if is_lost.wait_for(|is_lost| *is_lost).await.is_err() {
                pending().await
            }
        }
    }

    /// Gives up the reservation without settling it. It can be settled by its id, for example in another process: see
    /// [`Limiter::apply`] and [`Limiter::release`]. Its lease is not renewed any more.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Semaphore};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// limiter.acquire("jobs", &Semaphore::new(5)).id("job-17").await?.detach();
    /// // Later, or in another process.
    /// assert_eq!(limiter.release("jobs", ["job-17"]).await?, 1);
    /// # Ok(()) }
    /// ```
    pub fn detach(mut self) {
        self.stop_renewing();
        self.is_settled = true;
    }

    async fn settle(&mut self, how: Settle) -> Result<(), Error> {
        let Ok(runtime) = Handle::try_current() else { return Err(Error::NoRuntime) };
        self.stop_renewing();
        self.is_settled = true;
        let (held, sent) = (Arc::clone(&self.held), how.clone());
        let (report, settled) = oneshot::channel();
        runtime.spawn(async move {
            if let Err(settled) = report.send(held.settle(&sent, None).await) {
                held.finish(&sent, settled).await;
            }
        });
        let settled = settled.await.unwrap_or_else(|_| Err(Error::runtime_ended()));
        if settled.as_ref().is_err_and(Error::is_transient) {
            self.is_settled = false;
            self.failed = Some(how);
        }
        settled
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.stop_renewing();
        if self.is_settled || self.held.reserved.is_empty() {
            return;
        }
        let held = Arc::clone(&self.held);
        let (costs, failed) = (std::mem::take(&mut self.costs), self.failed.take());
        let Ok(runtime) = Handle::try_current() else {
            return held.report_unread(&Settle::Release, Err(Error::NoRuntime));
        };
        runtime.spawn(async move {
            let how = failed.unwrap_or(match costs.is_empty() {
                true => Settle::Release,
                false => Settle::Apply(costs),
            });
            held.finish(&how, held.settle(&how, None).await).await;
        });
    }
}

//! One limit on one key, for one call. The key is read and the call is judged. Then exactly one of four things is planned: a
//! grant, a denial, a denial that counts, or a look. Then the plan is applied.
//!
//! ```text
//! call --judge--> Judged --grant | deny | count_denial | look--> Plan --apply-->
//!       may fail             may fail                                 cannot fail
//! ```
//!
//! Each step consumes the one before. What is large stays in the call, which the others borrow: moving it from step to step
//! costs as much as deciding.
//!
//! A call is on a bucket ([`BucketCall`]) or on a window ([`WindowCall`]). Both take the steps of [`KeyCall`]. The order of
//! the steps is written once, for any of them, so that a call of one command is compiled for its kind of limit.
//! [`AnyCall`] is either, for a call over several limits.

mod bucket_call;
mod window_call;

pub use bucket_call::{BucketCall, BucketWrite};
pub use window_call::{WindowCall, WindowPlan};

use super::decision::{Decision, Verdict};
use super::request::{Limit, Request};
use super::reservation::Id;
use super::store::{Refused, Store};
use super::window::WindowCount;

/// What a call may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A grant, and what heals the key. A denial neither counts (COUNTDENIED) nor closes the key (BAN). For calls that are
    /// or may be tried again, and for those whose denial is not the key's: behind a line, and under SHADOW.
    Try,
    /// All that [`Mode::Try`] writes, a denial with COUNTDENIED, and a ban where [`PlanTerms::may_ban`] allows it.
    Final,
    /// Nothing.
    Look,
}

/// On which terms a judged call is planned.
#[derive(Clone, Copy, Debug)]
pub struct PlanTerms {
    /// What may be written.
    pub mode: Mode,
    /// It takes nothing where it is allowed (CHECK, or another limit of its group was chosen).
    pub check: bool,
    /// A denial may be counted (COUNTDENIED).
    pub may_count: bool,
    /// A denial may close the key (BAN).
    pub may_ban: bool,
}

impl PlanTerms {
    /// The terms of a command with one limit.
    pub fn of(mode: Mode) -> PlanTerms {
        PlanTerms { mode, check: false, may_count: true, may_ban: true }
    }
}

/// A call on one key, and the steps that it takes. Others ask for its [`KeyCall::request`] and [judge](KeyCall::judge) it.
/// [`Judged`] takes the other steps, each in its turn.
pub trait KeyCall<'r>: Sized {
    /// What reading the key, or planning a write, may fail with.
    type Error: From<Refused>;
    /// What is to be written.
    type Write<'c>: PlannedWrite
    where
        Self: 'c;

    /// What is asked.
    fn request(&self) -> &'r Request;
    /// Judges the call. With `barred` others wait in line before it.
    ///
    /// # Errors
    ///
    /// The key's own, [`Refused::Foreign`], [`Refused::Clock`], [`Refused::DebtTooLong`] and [`Refused::Duplicate`].
    #[inline]
    fn judge(&mut self, barred: bool) -> Result<Judged<'_, Self>, Self::Error> {
        let request = self.request();
        // Only what takes is ever barred.
        let barred = barred && request.ask.takes_unforced();
        let verdict = self.read(barred)?;
        Ok(Judged { call: self, verdict })
    }

    /// Opens the key, reads it and judges what is asked.
    fn read(&mut self, barred: bool) -> Result<Verdict, Self::Error>;
    /// Refuses to make one reservation more than the key may hold.
    fn check_room(&self, verdict: Verdict) -> Result<(), Refused>;
    /// The earliest grant in Unix microseconds, ignoring reservations and waiters; `None` if never.
    fn earliest_grant_us(&mut self) -> Result<Option<u64>, Self::Error>;
    /// How many leases run, where the call makes a reservation and is to be told.
    fn running(&mut self) -> Option<usize>;
    /// What the window counts; `None` for a bucket.
    fn count(&self) -> Option<&WindowCount>;
    /// Whether a denial of this request counts in its key (COUNTDENIED).
    fn counts_denial(&self) -> bool;
    /// What the caller is told of the key as it stands.
    fn look(&self, verdict: Verdict) -> Decision;
    /// Plans a grant.
    fn grant<'c>(
        &'c mut self,
        verdict: Verdict,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<Self::Write<'c>>, Self::Error>;
    /// Plans a denial. With `ban_ms` it may close the key for so long.
    fn deny<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<Self::Write<'c>>, Self::Error>;
    /// Plans a denial that counts. With `ban_ms` it may close the key for so long.
    fn count_denial<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<Self::Write<'c>>, Self::Error>;
}

/// What is to be written to a key.
pub trait PlannedWrite {
    /// The id of the reservation that is made.
    fn id(&self) -> Option<&Id>;
    /// What the window counts then; `None` for a bucket.
    fn count(&self) -> Option<&WindowCount>;
    /// Writes and replicates it; returns how many reservations were dropped because they were gone.
    fn apply(self) -> usize;
}

/// A call that was judged.
pub struct Judged<'c, K> {
    call: &'c mut K,
    verdict: Verdict,
}

/// What is to be written, and what the caller is told.
pub struct Plan<W> {
    decision: Decision,
    /// `None`: nothing is written.
    write: Option<W>,
}

impl<'c, 'r, K: KeyCall<'r>> Judged<'c, K> {
    /// A call that was judged before, with this verdict.
    pub(crate) fn again(call: &'c mut K, verdict: Verdict) -> Judged<'c, K> {
        Judged { call, verdict }
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Refuses to make one reservation more than the key may hold.
    ///
    /// # Errors
    ///
    /// [`Refused::TooManyReservations`].
    #[inline]
    pub fn check_room(&self) -> Result<(), Refused> {
        self.call.check_room(self.verdict)
    }

    /// The earliest grant in Unix microseconds, ignoring reservations and waiters; `None` if never.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn earliest_grant_us(&mut self) -> Result<Option<u64>, K::Error> {
        self.call.earliest_grant_us()
    }

    /// How many reservations of the key have a lease that runs, where the call makes one and is to be told (ATMOST).
    #[inline]
    pub fn running(&mut self) -> Option<usize> {
        self.call.running()
    }

    /// What the window counts; `None` for a bucket.
    pub fn count(&self) -> Option<&WindowCount> {
        self.call.count()
    }

    /// Whether a denial of this request counts in its key (COUNTDENIED).
    pub fn counts_denial(&self) -> bool {
        self.call.counts_denial()
    }

    /// Plans what follows from the verdict, in a call that is allowed as a whole or not.
    ///
    /// # Errors
    ///
    /// The key's own, [`Refused::SumTooLarge`] and [`Refused::Clock`].
    #[inline]
    pub fn plan(
        self,
        terms: PlanTerms,
        call_allowed: bool,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<K::Write<'c>>, K::Error> {
        let granted = call_allowed && self.verdict.allowed();
        let ban_ms = self.call.request().ban_ms.filter(|_| terms.may_ban && !call_allowed);
        match terms.mode {
            Mode::Look => Ok(self.look()),
            Mode::Try | Mode::Final if granted && terms.check => Ok(self.look()),
            Mode::Try | Mode::Final if granted => self.grant(new_id),
            Mode::Final if !call_allowed && terms.may_count && self.call.counts_denial() => {
                self.count_denial(ban_ms)
            }
            Mode::Final => self.deny(ban_ms),
            Mode::Try => self.deny(None),
        }
    }

    /// Tells the caller of the key as it stands, and writes nothing.
    pub fn look(self) -> Plan<K::Write<'c>> {
        Plan::nothing(self.call.look(self.verdict))
    }

    /// Grants an allowed call. `new_id` makes the id of a reservation that the caller did not name.
    ///
    /// # Errors
    ///
    /// The key's own, [`Refused::SumTooLarge`] and [`Refused::Clock`].
    #[inline]
    pub fn grant(self, new_id: impl FnOnce() -> Id) -> Result<Plan<K::Write<'c>>, K::Error> {
        self.call.grant(self.verdict, new_id)
    }

    /// Denies a call: heals what a clock that went back left, and drops what lies in the way of every call. With `ban_ms` the
    /// denial may close the key for so long.
    ///
    /// # Errors
    ///
    /// The key's own.
    #[inline]
    pub fn deny(self, ban_ms: Option<u64>) -> Result<Plan<K::Write<'c>>, K::Error> {
        self.call.deny(self.verdict, ban_ms)
    }

    /// Denies a call that counts though it is denied. With `ban_ms` the denial may close the key for so long.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn count_denial(self, ban_ms: Option<u64>) -> Result<Plan<K::Write<'c>>, K::Error> {
        self.call.count_denial(self.verdict, ban_ms)
    }
}

impl<W> Plan<W> {
    /// Tells the caller this, and writes nothing.
    fn nothing(decision: Decision) -> Plan<W> {
        Plan { decision, write: None }
    }

    /// The same plan, with what is written turned into something else.
    fn map<V>(self, seen: impl FnOnce(W) -> V) -> Plan<V> {
        Plan { decision: self.decision, write: self.write.map(seen) }
    }

    /// What the caller is told.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What is written; `None` where nothing is.
    #[inline]
    pub(crate) fn into_write(self) -> Option<W> {
        self.write
    }
}

impl<W: PlannedWrite> Plan<W> {
    /// What the window counts after the call; `None` for a bucket, and where nothing is written.
    pub fn count(&self) -> Option<&WindowCount> {
        self.write.as_ref().and_then(W::count)
    }

    /// The id of the reservation that a grant makes.
    #[inline]
    pub fn id(&self) -> Option<&Id> {
        self.write.as_ref().and_then(W::id)
    }

    /// Writes and replicates what was planned; returns how many reservations were dropped because they were gone.
    #[inline]
    pub fn apply(self) -> usize {
        self.write.map_or(0, W::apply)
    }
}

/// A call on a bucket or on a window.
#[expect(clippy::large_enum_variant, reason = "a call allocates nothing")]
pub enum AnyCall<'r, S: Store> {
    /// On a bucket.
    Bucket(BucketCall<'r, S>),
    /// On a window, or a semaphore.
    Window(WindowCall<'r, S>),
}

/// What a call on either writes.
pub enum KeyWrite<'c, 'r, S: Store> {
    /// To a bucket.
    Bucket(BucketWrite<'c, S>),
    /// To a window.
    Window(WindowPlan<'c, 'r, S>),
}

/// Passes a step on to the call, whichever it is.
macro_rules! pass_on {
    ($any:expr, |$call:ident| $step:expr) => {
        match $any {
            AnyCall::Bucket($call) => $step,
            AnyCall::Window($call) => $step,
        }
    };
}

/// The same for a step that gives a plan.
macro_rules! plan_on {
    ($any:expr, |$call:ident| $step:expr) => {
        match $any {
            AnyCall::Bucket($call) => Ok($step?.map(KeyWrite::Bucket)),
            AnyCall::Window($call) => Ok($step?.map(KeyWrite::Window)),
        }
    };
}

/// Makes the call of a request on a key that is yet to be read, and goes on with it. Each kind goes on by itself: what may be
/// either would be moved as if it were both.
macro_rules! with_call {
    ($store:expr, $request:expr, |$call:pat_param| $step:expr) => {
        match &$request.limit {
            Limit::Bucket(rate) => {
                let $call = BucketCall::new($store, $request, rate);
                $step
            }
            Limit::Window(window) | Limit::Reserve(window, _) => {
                let $call = WindowCall::new($store, $request, window, $request.limit.reserve());
                $step
            }
        }
    };
}

pub(crate) use with_call;

impl<'r, S: Store> From<BucketCall<'r, S>> for AnyCall<'r, S> {
    #[inline(always)]
    fn from(call: BucketCall<'r, S>) -> AnyCall<'r, S> {
        AnyCall::Bucket(call)
    }
}

impl<'r, S: Store> From<WindowCall<'r, S>> for AnyCall<'r, S> {
    #[inline(always)]
    fn from(call: WindowCall<'r, S>) -> AnyCall<'r, S> {
        AnyCall::Window(call)
    }
}

impl<'r, S: Store> AnyCall<'r, S> {
    /// A call on a key that is yet to be read.
    #[inline]
    pub fn new(store: S, request: &'r Request) -> AnyCall<'r, S> {
        with_call!(store, request, |call| call.into())
    }
}

impl<'r, S: Store> KeyCall<'r> for AnyCall<'r, S> {
    type Error = S::Error;
    type Write<'c>
        = KeyWrite<'c, 'r, S>
    where
        Self: 'c;

    fn request(&self) -> &'r Request {
        pass_on!(self, |call| call.request())
    }

    fn read(&mut self, barred: bool) -> Result<Verdict, S::Error> {
        pass_on!(self, |call| call.read(barred))
    }

    fn check_room(&self, verdict: Verdict) -> Result<(), Refused> {
        pass_on!(self, |call| call.check_room(verdict))
    }

    fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        pass_on!(self, |call| call.earliest_grant_us())
    }

    fn running(&mut self) -> Option<usize> {
        pass_on!(self, |call| call.running())
    }

    fn count(&self) -> Option<&WindowCount> {
        pass_on!(self, |call| call.count())
    }

    fn counts_denial(&self) -> bool {
        pass_on!(self, |call| call.counts_denial())
    }

    fn look(&self, verdict: Verdict) -> Decision {
        pass_on!(self, |call| call.look(verdict))
    }

    fn grant<'c>(
        &'c mut self,
        verdict: Verdict,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<Self::Write<'c>>, S::Error> {
        plan_on!(self, |call| call.grant(verdict, new_id))
    }

    fn deny<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<Self::Write<'c>>, S::Error> {
        plan_on!(self, |call| call.deny(verdict, ban_ms))
    }

    fn count_denial<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<Self::Write<'c>>, S::Error> {
        plan_on!(self, |call| call.count_denial(verdict, ban_ms))
    }
}

impl<S: Store> PlannedWrite for KeyWrite<'_, '_, S> {
    fn id(&self) -> Option<&Id> {
        match self {
            KeyWrite::Bucket(write) => write.id(),
            KeyWrite::Window(write) => write.id(),
        }
    }

    fn count(&self) -> Option<&WindowCount> {
        match self {
            KeyWrite::Bucket(write) => write.count(),
            KeyWrite::Window(write) => write.count(),
        }
    }

    fn apply(self) -> usize {
        match self {
            KeyWrite::Bucket(write) => write.apply(),
            KeyWrite::Window(write) => write.apply(),
        }
    }
}

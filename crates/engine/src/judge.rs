//! One limit on one key, for one call: read and judged; then exactly one of granted, denied, counted though denied, or
//! looked at, which gives a plan; then written.
//!
//! ```text
//! KeyRequest --judge--> Judged --grant | deny | count_denial | look--> Plan --apply-->
//!      may fail            may fail                                    cannot fail
//! ```
//!
//! Each step consumes the one before. What is large stays in [`KeyRequest`], which the others borrow: moving it from step to
//! step costs as much as deciding.
//!
//! A request is a call on a bucket ([`BucketCall`]) or on a window ([`WindowCall`]). Both do the same steps, those of
//! [`KeyCall`], and the types here only pass each step on to the one or the other.

mod bucket_call;
mod window_call;

pub use bucket_call::BucketCall;
pub use window_call::WindowCall;

use super::decision::{Decision, Manner, Verdict};
use super::request::{Limit, Request};
use super::reservation::Id;
use super::store::{Refused, Store};
use super::throttle::BucketEdit;
use super::window::WindowCount;

/// What a call may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A grant, and what heals. A denial counts for nothing, as the call goes on waiting.
    Try,
    /// All that, and a denial with COUNTDENIED.
    Final,
    /// Nothing.
    Look,
}

/// On which terms a request is carried out.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What may be written.
    pub mode: Mode,
    /// It takes nothing where it is allowed (CHECK, or another limit of its group was chosen).
    pub check: bool,
    /// A denial may be counted (COUNTDENIED).
    pub may_count: bool,
    /// A denial may close the key (BAN).
    pub may_ban: bool,
}

impl Terms {
    /// Those of a single command.
    pub fn of(mode: Mode) -> Terms {
        Terms { mode, check: false, may_count: true, may_ban: true }
    }
}

/// A request and its key.
#[expect(clippy::large_enum_variant, reason = "a call allocates nothing")]
pub enum KeyRequest<'r, S: Store> {
    /// On a bucket.
    Bucket(BucketCall<'r, S>),
    /// On a window, or a semaphore.
    Window(WindowCall<'r, S>),
}

/// The steps of a call on one key. Each is told the verdict of the first, [`KeyCall::judge`], and is described where
/// [`Judged`] has it.
trait KeyCall<'r, S: Store> {
    fn request(&self) -> &'r Request;
    fn judge(&mut self, barred: bool) -> Result<Verdict, S::Error>;
    fn check_room(&self, verdict: Verdict) -> Result<(), Refused>;
    fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error>;
    fn running(&mut self) -> Option<usize>;
    fn count(&self) -> Option<&WindowCount>;
    fn counts_denial(&self) -> bool;
    fn look<'c>(&'c mut self, verdict: Verdict) -> Plan<'c, 'r, S>;
    fn grant<'c>(
        &'c mut self,
        verdict: Verdict,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<'c, 'r, S>, S::Error>;
    fn deny<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<'c, 'r, S>, S::Error>;
    fn count_denial<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<'c, 'r, S>, S::Error>;
}

/// Passes a step on to the call of a judged request, whichever it is.
macro_rules! pass_on {
    ($judged:expr, |$call:ident, $verdict:pat_param| $step:expr) => {
        match $judged {
            Judged::Bucket($call, $verdict) => $step,
            Judged::Window($call, $verdict) => $step,
        }
    };
}

/// A request that was judged.
pub enum Judged<'c, 'r, S: Store> {
    /// On a bucket.
    Bucket(&'c mut BucketCall<'r, S>, Verdict),
    /// On a window.
    Window(&'c mut WindowCall<'r, S>, Verdict),
}

/// What is to be written, and what the caller is told.
pub struct Plan<'c, 'r, S: Store> {
    decision: Decision,
    write: PlannedWrite<'c, 'r, S>,
}

enum PlannedWrite<'c, 'r, S: Store> {
    Nothing,
    Bucket(&'c mut BucketCall<'r, S>, BucketEdit),
    /// What its call says.
    Window(&'c mut WindowCall<'r, S>),
}

impl<'r, S: Store> KeyRequest<'r, S> {
    /// A request on a key that is yet to be read.
    pub fn new(store: S, request: &'r Request) -> KeyRequest<'r, S> {
        let (window, reserve) = match &request.limit {
            Limit::Bucket(rate) => return BucketCall::unread(store, request, rate),
            Limit::Window(window) => (window, None),
            Limit::Reserve(window, reserve) => (window, Some(reserve)),
        };
        WindowCall::unread(store, request, window, reserve)
    }

    /// Opens the key, reads it and judges the request. With `barred` others wait in line before it.
    ///
    /// # Errors
    ///
    /// The key's own, [`Refused::Foreign`], [`Refused::Clock`], [`Refused::DebtTooLong`] and [`Refused::Duplicate`].
    pub fn judge(&mut self, barred: bool) -> Result<Judged<'_, 'r, S>, S::Error> {
        let verdict = match self {
            KeyRequest::Bucket(call) => call.judge(is_barred(call.request(), barred)),
            KeyRequest::Window(call) => call.judge(is_barred(call.request(), barred)),
        }?;
        Ok(self.judged(verdict))
    }

    /// The request as it was judged, with this verdict.
    pub(crate) fn judged(&mut self, verdict: Verdict) -> Judged<'_, 'r, S> {
        match self {
            KeyRequest::Bucket(call) => Judged::Bucket(call, verdict),
            KeyRequest::Window(call) => Judged::Window(call, verdict),
        }
    }
}

/// Only what takes is ever barred.
fn is_barred(request: &Request, barred: bool) -> bool {
    barred && request.takes() && request.ask.manner != Manner::Force
}

impl<'c, 'r, S: Store> Judged<'c, 'r, S> {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        pass_on!(self, |_call, verdict| *verdict)
    }

    /// Refuses to make one reservation more than the key may hold.
    ///
    /// # Errors
    ///
    /// [`Refused::TooManyReservations`].
    pub fn check_room(&self) -> Result<(), Refused> {
        pass_on!(self, |call, verdict| call.check_room(*verdict))
    }

    /// The earliest grant in Unix microseconds, ignoring reservations and waiters; `None` if never.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        pass_on!(self, |call, _| call.earliest_grant_us())
    }

    /// How many reservations of the key have a lease that runs, where the call makes one and is to be told (ATMOST).
    pub fn running(&mut self) -> Option<usize> {
        pass_on!(self, |call, _| call.running())
    }

    /// What the window counts; `None` for a bucket.
    pub fn count(&self) -> Option<&WindowCount> {
        pass_on!(self, |call, _| call.count())
    }

    /// Whether a denial of this request counts in its key (COUNTDENIED).
    pub fn counts_denial(&self) -> bool {
        pass_on!(self, |call, _| call.counts_denial())
    }

    /// Plans what follows from the verdict, in a call that is allowed as a whole or not.
    ///
    /// # Errors
    ///
    /// The key's own, and [`Refused::SumTooLarge`].
    pub fn plan(
        self,
        terms: Terms,
        call_allowed: bool,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<'c, 'r, S>, S::Error> {
        let granted = call_allowed && self.verdict().allowed();
        let ban_ms = self.request().ban_ms.filter(|_| terms.may_ban && !call_allowed);
        match terms.mode {
            Mode::Look => Ok(self.look()),
            Mode::Try | Mode::Final if granted && terms.check => Ok(self.look()),
            Mode::Try | Mode::Final if granted => self.grant(new_id),
            Mode::Final if !call_allowed && terms.may_count && self.counts_denial() => {
                self.count_denial(ban_ms)
            }
            Mode::Final => self.deny(ban_ms),
            Mode::Try => self.deny(None),
        }
    }

    fn request(&self) -> &'r Request {
        pass_on!(self, |call, _| call.request())
    }

    /// Tells the call of the key as it stands, and writes nothing.
    pub fn look(self) -> Plan<'c, 'r, S> {
        pass_on!(self, |call, verdict| call.look(verdict))
    }

    /// Grants an allowed call. `new_id` makes the id of a reservation that the caller did not name.
    ///
    /// # Errors
    ///
    /// The key's own, and [`Refused::SumTooLarge`].
    pub fn grant(self, new_id: impl FnOnce() -> Id) -> Result<Plan<'c, 'r, S>, S::Error> {
        pass_on!(self, |call, verdict| call.grant(verdict, new_id))
    }

    /// Denies a call: heals what a clock that went back left, and drops what lies in the way of every call. With `ban_ms` the
    /// denial may close the key for so long.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn deny(self, ban_ms: Option<u64>) -> Result<Plan<'c, 'r, S>, S::Error> {
        pass_on!(self, |call, verdict| call.deny(verdict, ban_ms))
    }

    /// Denies a call that counts though it is denied. With `ban_ms` the denial may close the key for so long.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn count_denial(self, ban_ms: Option<u64>) -> Result<Plan<'c, 'r, S>, S::Error> {
        pass_on!(self, |call, verdict| call.count_denial(verdict, ban_ms))
    }
}

impl<'c, 'r, S: Store> Plan<'c, 'r, S> {
    /// Tells the call this, and writes nothing.
    fn nothing(decision: Decision) -> Plan<'c, 'r, S> {
        Plan { decision, write: PlannedWrite::Nothing }
    }
}

impl<S: Store> Plan<'_, '_, S> {
    /// What the caller is told.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What the window counts after the call; `None` for a bucket, and where nothing is written.
    pub fn count(&self) -> Option<&WindowCount> {
        match &self.write {
            PlannedWrite::Window(call) => call.count(),
            PlannedWrite::Bucket(..) | PlannedWrite::Nothing => None,
        }
    }

    /// The id of the reservation that a grant makes.
    pub fn id(&self) -> Option<&Id> {
        match &self.write {
            PlannedWrite::Window(call) => call.new_id(),
            PlannedWrite::Bucket(..) | PlannedWrite::Nothing => None,
        }
    }

    /// Writes and replicates what was planned; returns how many lapsed reservations were dropped.
    pub fn apply(self) -> usize {
        match self.write {
            PlannedWrite::Nothing => 0,
            PlannedWrite::Bucket(call, edit) => {
                call.write(edit);
                0
            }
            PlannedWrite::Window(call) => call.write(),
        }
    }
}

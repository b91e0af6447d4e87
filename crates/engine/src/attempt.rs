//! The order of work of every call that takes or looks, over one limit or many.
//!
//! ```text
//! open, read and judge all --> plan all --> write all
//! an error here leaves everything as it is  only here is anything written
//! ```

use super::all::{Choices, PartDecision};
use super::decision::{Decision, Verdict};
use super::judge::{
    with_call, AnyCall, BucketCall, Judged, KeyCall, KeyWrite, Mode, PlanTerms, PlannedWrite,
    WindowCall,
};
use super::request::{Limit, Request};
use super::reservation::Id;
use super::short::ShortList;
use super::store::{Refused, Store};
use smallvec::SmallVec;

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub struct AttemptTerms {
    /// Others wait on the key and came before: nothing is granted.
    pub barred: bool,
    /// What may be written.
    pub mode: Mode,
}

/// How an attempt went.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// What was decided.
    pub decision: Decision,
    /// The id of the reservation that was made.
    pub id: Option<Id>,
    /// How many leases of the key run after the call, where ATMOST makes a reservation.
    pub running: Option<usize>,
    /// Earliest grant, ignoring reservations and waiters, in Unix microseconds. `None` if it can never be granted, and
    /// unless the mode is [`Mode::Try`].
    pub earliest_grant_us: Option<u64>,
    /// How many reservations were dropped because they were gone.
    pub dropped: usize,
}

/// Tries a request on its key, and hands to `told` how that went. Only what takes is ever barred. `new_id` makes the id of a
/// reservation that the caller did not name.
///
/// # Errors
///
/// The key's own, and every [`Refused`] but that of a semaphore.
#[inline]
pub fn attempt<S: Store, T>(
    store: S,
    request: &Request,
    terms: AttemptTerms,
    new_id: impl FnOnce() -> Id,
    told: impl FnOnce(Attempt) -> T,
) -> Result<T, S::Error> {
    with_call!(store, request, |mut call| attempt_on(&mut call, terms, new_id, told))
}

/// Takes the steps of an attempt, compiled for each kind of call.
#[inline]
fn attempt_on<'r, K: KeyCall<'r>, T>(
    call: &mut K,
    terms: AttemptTerms,
    new_id: impl FnOnce() -> Id,
    told: impl FnOnce(Attempt) -> T,
) -> Result<T, K::Error> {
    let request = call.request();
    let mut judged = call.judge(terms.barred)?;
    judged.check_room()?;
    let allowed = judged.verdict().allowed();
    let tries = terms.mode == Mode::Try && !allowed;
    let earliest_grant_us = if tries { judged.earliest_grant_us()? } else { None };
    let running = judged.running();
    let may_ban = !terms.barred && !request.shadow;
    let on = PlanTerms { may_ban, ..PlanTerms::of(terms.mode) };
    let plan = judged.plan(on, allowed, new_id)?;
    let (decision, id) = (*plan.decision(), plan.id().copied());
    let running = running.map(|number| number.saturating_add(usize::from(id.is_some())));
    // Large as it is, it is put together where it is needed.
    Ok(told(Attempt { decision, id, running, earliest_grant_us, dropped: plan.apply() }))
}

/// One limit of a call over several.
#[derive(Clone, Copy)]
pub struct Part<'r, S> {
    /// Its key.
    pub store: S,
    /// What is asked of it.
    pub request: &'r Request,
    /// It must be allowed, and takes nothing.
    pub check: bool,
    /// It never denies the call.
    pub shadow: bool,
    /// The number of its group. Of the parts with the same number one has to be allowed.
    pub group: usize,
    /// Others wait on the key and came before: nothing is granted.
    pub barred: bool,
    /// A call waits on the key that will give the same id to its reservation.
    pub id_waits: bool,
}

/// A call over up to this many limits allocates nothing for them.
pub const FEW_PARTS: usize = 8;

/// A part whose key was opened.
struct OpenPart<'r, S: Store> {
    part: Part<'r, S>,
    call: AnyCall<'r, S>,
    verdict: Verdict,
    /// Whether it is the choice of its group.
    choice: bool,
}

impl<'r, S: Store> Part<'r, S> {
    /// Makes its call, in its place.
    #[inline(always)]
    fn open(self, place: &mut Option<OpenPart<'r, S>>) {
        let (part, verdict, choice) = (self, Verdict::Never, false);
        with_call!(part.store, part.request, |call| {
            *place = Some(OpenPart { part, call: call.into(), verdict, choice });
        });
    }
}

/// How an attempt at several limits went.
#[derive(Clone, Copy, Debug)]
pub struct WholeAttempt<'p> {
    /// Whether the call is allowed, before a denial was counted.
    pub allowed: bool,
    /// What became of each part.
    pub parts: &'p [PartDecision],
    /// Which groups have a choice.
    pub choices: &'p Choices,
    /// How many reservations were dropped because they were gone.
    pub dropped: usize,
}

/// Tries several requests, each on its key, all or nothing. An error leaves every key as it was.
///
/// # Errors
///
/// Those of [`attempt`].
#[inline]
pub fn attempt_all<'r, S: Store, T>(
    parts: impl Iterator<Item = Part<'r, S>>,
    mode: Mode,
    mut new_id: impl FnMut() -> Id,
    told: impl FnOnce(WholeAttempt<'_>) -> T,
) -> Result<T, S::Error> {
    let mut opened = ShortList::<Option<OpenPart<'r, S>>, FEW_PARTS>::new();
    for part in parts {
        let Some(place) = opened.add() else { break };
        part.open(place);
    }
    let mut choices = Choices::default();
    for OpenPart { part, call, verdict, choice } in opened.iter_mut().flatten() {
        if part.id_waits {
            return Err(Refused::Duplicate.into());
        }
        let one = call.judge(part.barred)?;
        *verdict = one.verdict();
        *choice = choices.next(part.group, *verdict, part.shadow);
        if *choice {
            one.check_room()?;
        }
    }
    let allowed = choices.allowed();
    let mut writes = SmallVec::<[KeyWrite<'_, 'r, S>; FEW_PARTS]>::new();
    let mut parts = SmallVec::<[PartDecision; FEW_PARTS]>::new();
    for OpenPart { part, call, verdict, choice } in opened.iter_mut().flatten() {
        let (verdict, choice) = (*verdict, *choice);
        let Part { check, shadow, group, barred, .. } = *part;
        // Counting a denial would take from those who wait. A policy may bring SHADOW beside COUNTDENIED.
        let may_count = !barred && !shadow;
        // Only a group that denies the call closes its keys: one without a choice.
        let may_ban = !allowed && may_count && !choices.has_choice(group);
        let terms = PlanTerms { mode, check: check || !choice, may_count, may_ban };
        let plan = Judged::again(call, verdict).plan(terms, allowed, &mut new_id)?;
        parts.push(PartDecision {
            decision: *plan.decision(),
            quantity: if check { 0 } else { part.request.ask.quantity.wanted() },
            shadow,
            group,
            choice,
            allowed: verdict.allowed(),
            id: plan.id().copied(),
        });
        if let Some(write) = plan.into_write() {
            writes.push(write);
        }
    }
    let mut dropped: usize = 0;
    for write in writes.drain(..) {
        dropped = dropped.saturating_add(write.apply());
    }
    Ok(told(WholeAttempt { allowed, parts: &parts, choices: &choices, dropped }))
}

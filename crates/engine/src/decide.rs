//! The steps of a call, for one limit or several: [`judge`], [`Judged::plan`], [`Plan::write`]. The
//! documentation of the crate has a diagram and an example.

mod bucket_state;
mod window_state;

use crate::decision::{Decision, Verdict};
use crate::groups::{Judgement, PartOutcome, Place};
use crate::request::{Limit, Request};
use crate::reservation::Id;
use crate::store::{Access, BucketKey, Store, WindowKey};
use crate::throttle::BucketEdit;
pub(crate) use bucket_state::BucketState;
pub(crate) use window_state::WindowState;

/// The changes that a call may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// None.
    Look,
    /// A grant, and changes that heal the key. The call may be tried again, so a denial neither counts (COUNTDENIED) nor
    /// bans (BAN).
    Try,
    /// In addition to those of [`Mode::Try`], a denial that counts, and a ban.
    Final,
    /// A denial that counts, even if the call could be granted by now. For a wait that ended while nothing could be written.
    CountDenial,
}

impl Mode {
    /// Returns the access to its keys that a call needs.
    pub fn access(self) -> Access {
        match self {
            Mode::Look => Access::Read,
            Mode::Try | Mode::Final | Mode::CountDenial => Access::Write,
        }
    }
}

/// What a call plans for one of its keys.
#[derive(Clone, Copy)]
enum Action {
    /// Change nothing.
    Look,
    /// Grant the call.
    Grant,
    /// Deny the call. This heals the key after the clock was set back. If it writes to a window, it drops reservations that
    /// are gone.
    Deny {
        /// The denial counts if the request says so (COUNTDENIED).
        counts: bool,
        /// The denial may close the key for this many milliseconds.
        ban_ms: Option<u64>,
    },
}

/// One limit of a call, on its key. The [`Plan`] has the decision about it.
pub struct Part<'r, S: Store> {
    request: &'r Request,
    place: Place,
    /// A waiter comes first, so the call is not granted anything if it takes without FORCE.
    barred: bool,
    pub(crate) state: PartState<'r, S>,
    judgement: Judgement,
    /// The verdict of the decision. A denial that counts changes it.
    verdict: Verdict,
    /// See [`Decision::earliest_grant_us`].
    earliest_grant_us: Option<u64>,
}

/// The state of a part: what was read from its key, and the changes to write.
#[expect(clippy::large_enum_variant, reason = "a call allocates nothing")]
pub(crate) enum PartState<'r, S: Store> {
    Bucket(BucketState<'r, S>),
    Window(WindowState<'r, S>),
}

impl<'r, S: Store> Part<'r, S> {
    /// Creates a part for a limit with this place in its call. With `barred` a waiter on its key comes first. The key is
    /// not read yet.
    // Inlined, and each arm makes the whole part, so that the large value is built in the caller's frame and not copied.
    #[inline(always)]
    pub fn new(store: S, request: &'r Request, place: Place, barred: bool) -> Part<'r, S> {
        let (judgement, verdict) = (Judgement::default(), Verdict::default());
        let part = |state| Part {
            request,
            place,
            barred,
            state,
            judgement,
            verdict,
            earliest_grant_us: None,
        };
        match &request.limit {
            Limit::Rate(rate) => part(PartState::Bucket(BucketState::new(store, request, rate))),
            Limit::Window(limit) | Limit::Reserve(limit, _) => {
                part(PartState::Window(WindowState::new(store, request, limit)))
            }
        }
    }

    /// Returns whether the limit lets its group be allowed: it would allow the call, or it never denies one (SHADOW).
    fn permits(&self) -> bool {
        self.judgement.allowed || self.request.shadow
    }

    /// Returns what to plan for this key in a call that is `allowed` or not.
    fn action(&self, mode: Mode, allowed: bool) -> Action {
        if mode == Mode::Look {
            return Action::Look;
        }
        if allowed && self.judgement.allowed {
            let takes = self.judgement.is_choice && !self.place.check;
            return if takes { Action::Grant } else { Action::Look };
        }
        // Counting a denial, or a ban, would take from waiters. Under SHADOW the caller does not see the denial.
        let is_final = mode == Mode::Final && !allowed && !self.barred && !self.request.shadow;
        // Only a group that denies the call bans.
        let ban_ms = self.request.ban_ms.filter(|_| is_final && !self.judgement.group_allowed);
        Action::Deny { counts: is_final || mode == Mode::CountDenial, ban_ms }
    }

    /// Returns the decision, as the planned changes leave the key.
    #[inline]
    fn decision(&mut self) -> Decision {
        let decision = match &mut self.state {
            PartState::Bucket(state) => state.bucket.decision(self.verdict),
            PartState::Window(state) => state.decision(self.verdict),
        };
        Decision { earliest_grant_us: self.earliest_grant_us, ..decision }
    }
}

/// A call whose keys were read: each of its limits has a verdict.
#[must_use]
pub struct Judged<'p, 'r, S: Store> {
    parts: &'p mut [Part<'r, S>],
    mode: Mode,
    allowed: bool,
}

/// Reads the keys of a call over these limits, and finds whether it is allowed.
///
/// # Errors
///
/// The store's own, and every [`Refusal`](crate::refusal::Refusal) except `Semaphore` and `SumTooLarge`.
// Inlined, as are the steps after it, because every call passes through them.
#[inline(always)]
pub fn judge<'p, 'r, S: Store>(
    parts: &'p mut [Part<'r, S>],
    mode: Mode,
) -> Result<Judged<'p, 'r, S>, S::Error> {
    let mut allowed = true;
    for group in parts.chunk_by_mut(|one, next| one.place.group == next.place.group) {
        let mut has_choice = false;
        for part in &mut *group {
            // FORCE goes ahead of waiters, and a call that takes nothing is never barred.
            let barred =
                (part.barred || mode == Mode::CountDenial) && part.request.ask.takes_unforced();
            part.verdict = match &mut part.state {
                PartState::Bucket(state) => state.judge(barred)?,
                PartState::Window(state) => state.judge(barred)?,
            };
            part.judgement.allowed = part.verdict.allowed();
            part.judgement.is_choice = !has_choice && part.permits();
            if part.judgement.is_choice {
                has_choice = true;
                if let PartState::Window(state) = &part.state {
                    state.check_room(part.verdict)?;
                }
            }
        }
        group.iter_mut().for_each(|part| part.judgement.group_allowed = has_choice);
        allowed &= has_choice;
    }
    Ok(Judged { parts, mode, allowed })
}

impl<'p, 'r, S: Store> Judged<'p, 'r, S> {
    /// Plans what to write. `new_id` makes the id of a reservation that the caller did not name.
    ///
    /// # Errors
    ///
    /// The store's own, `Foreign`, `Clock`, `DebtTooLong` and `SumTooLarge`.
    #[inline(always)]
    pub fn plan(self, mut new_id: impl FnMut() -> Id) -> Result<Plan<'p, 'r, S>, S::Error> {
        let Judged { parts, mode, allowed } = self;
        for part in &mut *parts {
            let action = part.action(mode, allowed);
            part.verdict = match &mut part.state {
                PartState::Bucket(state) => state.plan(part.verdict, action),
                PartState::Window(state) => state.plan(part.verdict, action, &mut new_id)?,
            };
            if mode == Mode::Try && !allowed {
                part.earliest_grant_us = match &mut part.state {
                    PartState::Bucket(state) => state.earliest_grant_us()?,
                    PartState::Window(state) => state.earliest_grant_us()?,
                };
            }
        }
        Ok(Plan { parts })
    }
}

/// The decisions about a call, and the changes that it writes to its keys.
#[must_use]
pub struct Plan<'p, 'r, S: Store> {
    parts: &'p mut [Part<'r, S>],
}

impl<'r, S: Store> Plan<'_, 'r, S> {
    /// Returns the decision about the first limit, which is the only one of most calls.
    #[inline]
    pub fn decision(&mut self) -> Decision {
        self.parts.first_mut().map_or_else(Decision::default, Part::decision)
    }

    /// Returns the outcome for each limit, in their order.
    pub fn outcomes(&mut self) -> impl Iterator<Item = PartOutcome<'r>> + use<'_, 'r, S> {
        self.parts.iter_mut().enumerate().map(|(index, part)| PartOutcome {
            index,
            request: part.request,
            place: part.place,
            decision: part.decision(),
            judgement: part.judgement,
        })
    }

    /// Returns whether [`write`](Plan::write) changes anything.
    pub fn changes_something(&self) -> bool {
        self.parts.iter().any(|part| match &part.state {
            PartState::Bucket(state) => state.edit != BucketEdit::Keep,
            PartState::Window(state) => state.planned.is_some(),
        })
    }

    /// Writes what was planned.
    #[inline(always)]
    pub fn write(self) {
        for part in self.parts {
            match &mut part.state {
                PartState::Bucket(BucketState { key, edit, .. }) => key.write(*edit),
                PartState::Window(WindowState { key, count, planned, .. }) => {
                    if let Some(planned) = planned {
                        key.write(planned.edit(count));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

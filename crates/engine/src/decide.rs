//! The steps of a call, for one limit or several: [`read`], [`Found::judge`], [`Judged::plan`], [`Plan::write`]. The
//! documentation of the crate has a diagram and an example.

mod bucket_state;
mod window_state;

use crate::decision::{Decision, Verdict};
use crate::groups::{PartDecision, Standing};
use crate::request::{Limit, Request};
use crate::reservation::Id;
use crate::store::{Access, BucketKey, KeyState, Settlement, Store, WindowKey};
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
    /// A denial that counts, of a barred call. For a wait that ended while nothing could be written.
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

/// What a call does to one of its keys.
#[derive(Clone, Copy)]
enum Action {
    /// Nothing.
    Look,
    /// It takes or gives back.
    Grant,
    /// It corrects what a clock that was set back has left in the future. If it writes to a window, it also drops
    /// reservations that are gone. That is all that a denial does if the call is going to be tried again, if a waiter comes
    /// before it on this key, or under SHADOW.
    Heal,
    /// In addition to healing, it counts the denial if the request says so (COUNTDENIED), and may close the key for this
    /// many milliseconds.
    Deny { ban_ms: Option<u64> },
}

/// One limit of a call, on its key.
pub struct Part<'r, S: Store> {
    request: &'r Request,
    /// The number of its group. The limits of a group follow each other.
    group: usize,
    /// A waiter comes first, so the call is not granted anything if it takes without FORCE.
    barred: bool,
    /// A denial counts although the call is barred: until now it was the first in the line.
    counts_barred: bool,
    pub(crate) state: PartState<'r, S>,
    /// The verdict on the key as the call found it.
    verdict: Verdict,
    standing: Standing,
    /// The decision, on the key as the call leaves it.
    decision: Decision,
    /// A denial of the call counts on the key (COUNTDENIED).
    counts_denial: bool,
}

/// The key of a part as it was read, and the edit that was planned.
pub(crate) type PartState<'r, S> = KeyState<BucketState<'r, S>, WindowState<'r, S>>;

impl<'r, S: Store> Part<'r, S> {
    /// Creates a part for a limit in the group with this number. With `barred` a waiter on its key comes first. The key is
    /// not read yet.
    // Inlined, and each arm makes the whole part, so that the large value is built in the caller's frame and not copied.
    #[inline(always)]
    pub fn new(store: S, request: &'r Request, group: usize, barred: bool) -> Part<'r, S> {
        let part = |state| Part {
            request,
            group,
            barred,
            counts_barred: false,
            state,
            verdict: Verdict::default(),
            standing: Standing::default(),
            decision: Decision::default(),
            counts_denial: false,
        };
        match &request.limit {
            Limit::Rate(rate) => part(PartState::Bucket(BucketState::new(store, request, rate))),
            Limit::Window(limit) | Limit::Reserve(limit, _) => {
                part(PartState::Window(WindowState::new(store, request, limit)))
            }
        }
    }

    /// Lets a denial count although the call is barred, because until now it was the first in the line.
    pub fn count_barred(self) -> Part<'r, S> {
        Part { counts_barred: true, ..self }
    }

    /// Returns what a call in this mode, which is `allowed` or not, does to this key.
    fn action(&self, mode: Mode, allowed: bool) -> Action {
        // Counting a denial, or a ban, would take from waiters. Under SHADOW the caller does not see the denial.
        let is_own_denial =
            !allowed && (!self.barred || self.counts_barred) && !self.request.shadow;
        match (mode, self.standing) {
            (Mode::Look, _) => Action::Look,
            (_, Standing::Choice) if allowed && !self.request.check => Action::Grant,
            (_, Standing::Choice) if allowed => Action::Look,
            (_, Standing::Spare) if allowed && self.verdict.allowed() => Action::Look,
            // The call was denied when its wait ended, whatever the key holds by now.
            (Mode::CountDenial, _) => Action::Deny { ban_ms: None },
            // Only a group that denies the call bans.
            (Mode::Final, Standing::Denied) if is_own_denial => {
                Action::Deny { ban_ms: self.request.ban_ms }
            }
            (Mode::Final, _) if is_own_denial => Action::Deny { ban_ms: None },
            (Mode::Try | Mode::Final, _) => Action::Heal,
        }
    }
}

/// A call whose keys were read.
#[must_use]
pub struct Found<'p, 'r, S: Store> {
    parts: &'p mut [Part<'r, S>],
}

/// Reads the keys of a call over these limits.
///
/// # Errors
///
/// The store's own, `NotBucket`, `NotWindow`, `Foreign`, `Clock` and `Duplicate`.
// Inlined, as are the steps after it, because every call passes through them.
#[inline(always)]
pub fn read<'p, 'r, S: Store>(parts: &'p mut [Part<'r, S>]) -> Result<Found<'p, 'r, S>, S::Error> {
    let failed = parts.iter_mut().enumerate().find_map(|(at, part)| {
        let read = match &mut part.state {
            PartState::Bucket(state) => state.read(),
            PartState::Window(state) => state.read(),
        };
        Some((at, read.err()?))
    });
    if let Some((at, error)) = failed {
        return Err(first_error(parts.get_mut(..at).unwrap_or_default(), error));
    }
    Ok(Found { parts })
}

/// Returns the error of the first limit that has one: that of a limit before the one that could not be read, which only
/// judging finds, or else the error of that one.
#[cold]
fn first_error<S: Store>(before: &mut [Part<'_, S>], error: S::Error) -> S::Error {
    Found { parts: before }.judge().err().unwrap_or(error)
}

impl<'p, 'r, S: Store> Found<'p, 'r, S> {
    /// Finds whether the call is allowed: whether each of its groups is, and which limit of a group is its choice.
    ///
    /// # Errors
    ///
    /// The store's own, `Foreign`, `DebtTooLong` and `TooManyReservations`.
    #[inline(always)]
    pub fn judge(self) -> Result<Judged<'p, 'r, S>, S::Error> {
        let parts = self.parts;
        let mut allowed = true;
        for group in parts.chunk_by_mut(|one, next| one.group == next.group) {
            let mut has_choice = false;
            for part in &mut *group {
                // FORCE goes ahead of waiters, and a call that takes nothing is never barred.
                let barred = part.barred && part.request.ask.takes_unforced();
                part.verdict = match &mut part.state {
                    PartState::Bucket(state) => state.judge(barred)?,
                    PartState::Window(state) => state.judge(barred)?,
                };
                part.standing = match part.verdict.allowed() {
                    _ if has_choice => Standing::Spare,
                    true => Standing::Choice,
                    false if part.request.shadow => Standing::Shadow,
                    false => Standing::Denied,
                };
                if matches!(part.standing, Standing::Choice | Standing::Shadow) {
                    has_choice = true;
                    if let PartState::Window(state) = &part.state {
                        state.check_room(part.verdict)?;
                    }
                }
            }
            if has_choice {
                let before = group.iter_mut().filter(|part| part.standing == Standing::Denied);
                before.for_each(|part| part.standing = Standing::Spare);
            }
            allowed &= has_choice;
        }
        Ok(Judged { parts, allowed })
    }
}

/// The limit for which a denied call waits, in the line on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedLimit {
    /// The index of the limit in the call.
    pub index: usize,
    /// The microseconds after which that limit allows the call.
    pub wait_us: u64,
}

/// A call whose limits have their verdicts, so it is known whether it is allowed.
#[must_use]
pub struct Judged<'p, 'r, S: Store> {
    parts: &'p mut [Part<'r, S>],
    allowed: bool,
}

impl<'p, 'r, S: Store> Judged<'p, 'r, S> {
    /// Returns the limit with this index, and its wait. `None` if it does not deny the call, or can never allow it.
    pub fn wait_for(&self, index: usize) -> Option<AwaitedLimit> {
        let denying = self.parts.get(index).filter(|part| part.standing == Standing::Denied)?;
        Some(AwaitedLimit { index, wait_us: denying.verdict.retry_after_us()? })
    }

    /// Returns the limit that denies the call for the longest time, the first of several. `None` if the call is allowed, or
    /// can never be. Each limit is a group of its own.
    pub fn longest_wait(&self) -> Option<AwaitedLimit> {
        let mut longest: Option<AwaitedLimit> = None;
        for (index, part) in self.parts.iter().enumerate() {
            if part.standing == Standing::Denied {
                let wait_us = part.verdict.retry_after_us()?;
                if longest.is_none_or(|longest| wait_us > longest.wait_us) {
                    longest = Some(AwaitedLimit { index, wait_us });
                }
            }
        }
        longest
    }

    /// Returns the earliest grant of a denied call in Unix microseconds, if nobody held anything or waited. `None` if it can
    /// never be granted. Each limit is a group of its own.
    ///
    /// # Errors
    ///
    /// The store's own, and `Foreign`.
    pub fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        let mut earliest_us = 0;
        for part in &mut *self.parts {
            let part_us = match &mut part.state {
                _ if part.standing != Standing::Denied => continue,
                PartState::Bucket(state) => state.earliest_grant_us()?,
                PartState::Window(state) => state.earliest_grant_us()?,
            };
            let Some(part_us) = part_us else { return Ok(None) };
            earliest_us = earliest_us.max(part_us);
        }
        Ok(Some(earliest_us))
    }

    /// Plans what to write, and decides. `new_id` makes the id of a reservation that the caller did not name.
    ///
    /// # Errors
    ///
    /// The store's own, `Foreign`, `Clock` and `SumTooLarge`.
    #[inline(always)]
    pub fn plan(
        self,
        mode: Mode,
        mut new_id: impl FnMut() -> Id,
    ) -> Result<Plan<'p, 'r, S>, S::Error> {
        let Judged { parts, allowed } = self;
        for part in &mut *parts {
            let action = part.action(mode, allowed);
            part.counts_denial = part.request.count_denied && matches!(action, Action::Deny { .. });
            part.decision = match &mut part.state {
                PartState::Bucket(state) => state.plan(part.verdict, action),
                PartState::Window(state) => state.plan(part.verdict, action, &mut new_id)?,
            };
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
    pub fn decision(&self) -> Decision {
        self.parts.first().map_or_else(Decision::default, |part| part.decision)
    }

    /// Returns the decision about each limit, in their order.
    pub fn decisions(&self) -> impl Iterator<Item = PartDecision<'r>> + use<'_, 'r, S> {
        self.parts.iter().enumerate().map(|(index, part)| PartDecision {
            index,
            request: part.request,
            group: part.group,
            standing: part.standing,
            decision: part.decision,
            counts_denial: part.counts_denial,
        })
    }

    /// Returns whether [`write`](Plan::write) changes anything.
    pub fn changes_something(&self) -> bool {
        self.parts.iter().any(|part| match &part.state {
            PartState::Bucket(state) => state.edit != BucketEdit::Keep,
            PartState::Window(state) => state.change.is_some(),
        })
    }

    /// Writes what was planned.
    #[inline(always)]
    pub fn write(self) {
        for part in self.parts {
            match &mut part.state {
                PartState::Bucket(BucketState { edit: BucketEdit::Keep, .. }) => {}
                PartState::Bucket(BucketState { key, edit, .. }) => key.write(*edit),
                PartState::Window(WindowState { key, change, .. }) => {
                    if let Some(change) = change {
                        // Nothing is settled, so nothing is emptied.
                        let Settlement { .. } = key.write(change.edit());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

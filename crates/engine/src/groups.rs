//! The limits of one call in groups: is the call allowed, and which limit decides?
//!
//! ```text
//! rpm                  plan   ELSE   credits
//! group of its own     one group: the first that would be allowed is its choice, and takes
//! ```
//!
//! A call is allowed if each group is, and a group if one of its limits would be. A limit that never denies (SHADOW) is
//! always allowed in its group.

use crate::decision::{Decision, Obstacle, Verdict};
use crate::request::Request;
use std::cmp::Reverse;

/// The place of a limit in its call. The default is that of the only limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The number of its group. The limits of a group follow each other.
    pub group: usize,
    /// The limit must allow the call, but nothing is taken from it (CHECK).
    pub check: bool,
}

/// The outcome of a call for one of its limits: the [`Decision`] about that limit, and what it means for the call.
#[derive(Clone, Copy, Debug)]
pub struct PartOutcome<'r> {
    /// The index of the limit in the call.
    pub index: usize,
    /// What the call asks of the limit.
    pub request: &'r Request,
    /// The place of the limit in the call.
    pub place: Place,
    /// The decision, as the call leaves the key.
    pub decision: Decision,
    /// The judgement of the limit, from before a denial was counted.
    pub judgement: Judgement,
}

/// Whether a limit would allow a call, and what follows for its group. The default denies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judgement {
    /// The limit would allow the call.
    pub allowed: bool,
    /// The limit is the choice of its group: the first that would be allowed, or that never denies (SHADOW).
    pub is_choice: bool,
    /// Its group has a choice. The call is allowed if each group has one.
    pub group_allowed: bool,
}

/// The outcome of a call over all its limits, which follows from their [`PartOutcome`]s.
#[derive(Clone, Copy, Debug)]
pub struct CallOutcome<'p, 'r> {
    /// The verdict on the whole call. One that allows takes 0: what a limit takes is in its own outcome.
    pub verdict: Verdict,
    /// The outcome for the limit that decides.
    pub deciding: &'p PartOutcome<'r>,
}

/// Combines the outcomes for all limits of a call. `None` if there are none.
pub fn combine<'p, 'r>(outcomes: &'p [PartOutcome<'r>]) -> Option<CallOutcome<'p, 'r>> {
    if outcomes.iter().all(|outcome| outcome.judgement.group_allowed) {
        let choices = || outcomes.iter().filter(|outcome| outcome.judgement.is_choice);
        let all_shadows = choices().all(|outcome| outcome.request.shadow);
        let enforced = choices().filter(|outcome| all_shadows || !outcome.request.shadow);
        let deciding = enforced.min_by_key(|outcome| room(outcome))?;
        return Some(CallOutcome { verdict: Verdict::taking(0), deciding });
    }
    let all_held = denials(outcomes).all(|(_, held)| held);
    let obstacle = if all_held { Obstacle::Held } else { Obstacle::Counted };
    // Of several waits that are the longest, the first decides: `min_by_key` returns the first.
    let (deciding, _) = denials(outcomes).min_by_key(|(outcome, _)| Reverse(wait(outcome)))?;
    let verdict = match deciding.decision.verdict.retry_after_us() {
        Some(wait_us) => Verdict::Denied { wait_us, obstacle },
        None => Verdict::Never,
    };
    Some(CallOutcome { verdict, deciding })
}

/// Returns the outcome that speaks for each group that denies: the first of those with the shortest wait. With it comes
/// whether one of the limits of the group denies only because others hold.
pub fn denials<'p, 'r>(
    outcomes: &'p [PartOutcome<'r>],
) -> impl Iterator<Item = (&'p PartOutcome<'r>, bool)> {
    let groups = outcomes.chunk_by(|one, other| one.place.group == other.place.group);
    groups.filter_map(|group| {
        let denies = |outcome: &PartOutcome| !outcome.request.shadow && !outcome.decision.allowed();
        if !group.iter().all(denies) {
            return None;
        }
        let is_held = |outcome: &PartOutcome| {
            matches!(outcome.decision.verdict, Verdict::Denied { obstacle: Obstacle::Held, .. })
        };
        let held = group.iter().any(is_held);
        group.iter().min_by_key(|outcome| wait(outcome)).map(|outcome| (outcome, held))
    })
}

/// Returns the number of such calls for which there is still room. Limits from which the call takes nothing come last.
fn room(outcome: &PartOutcome) -> (bool, u64) {
    let quantity = if outcome.place.check { 0 } else { outcome.request.ask.quantity.wanted() };
    outcome.decision.remaining.checked_div(quantity).map_or((true, 0), |calls| (false, calls))
}

/// Returns the wait of a denial, where never is the longest.
fn wait(outcome: &PartOutcome) -> (bool, u64) {
    outcome.decision.verdict.retry_after_us().map_or((true, 0), |us| (false, us))
}

#[cfg(test)]
mod tests;

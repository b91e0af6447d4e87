//! The limits of one call in groups: is the call allowed, and which limit decides?
//!
//! ```text
//! rpm                  plan   ELSE   credits
//! group of its own     one group: the first that would be allowed is its choice, and takes
//! ```
//!
//! A call is allowed if each group is, and a group if one of its limits would be. A limit that never denies (SHADOW) is
//! always allowed in its group.

use crate::decide::Mode;
use crate::decision::{Decision, Obstacle, Verdict};
use crate::request::Request;
use std::cmp::Reverse;

/// The decision about one limit of a call, and what the limit is to the call.
#[derive(Clone, Copy, Debug)]
pub struct PartDecision<'r> {
    /// The index of the limit in the call.
    pub index: usize,
    /// What the call asks of the limit.
    pub request: &'r Request,
    /// The number of its group. The limits of a group follow each other.
    pub group: usize,
    /// What it is to the call, from before a denial was counted.
    pub standing: Standing,
    /// The decision, as the call leaves the key.
    pub decision: Decision,
    /// A denial of the call counts on the key (COUNTDENIED).
    pub counts_denial: bool,
}

impl PartDecision<'_> {
    /// Returns whether the call could be allowed for this limit: the limit does not deny it, or another one of its group
    /// allows it.
    pub fn allows(&self) -> bool {
        self.standing != Standing::Denied
    }

    /// Returns whether the call takes something from this limit if it is allowed.
    pub fn takes(&self) -> bool {
        self.standing == Standing::Choice && !self.request.check && self.request.takes()
    }
}

/// What a limit is to its call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The choice of its group: the first that would be allowed. An allowed call takes from it.
    Choice,
    /// The choice of its group, because it never denies (SHADOW), although it would be denied.
    Shadow,
    /// Another limit is the choice of its group.
    Spare,
    /// No limit of its group would be allowed. So the call is denied.
    #[default]
    Denied,
}

/// Returns the verdict on the whole call, made in this mode, and the limit that decides. A verdict that allows takes 0: what
/// a limit takes is in its own decision. `None` if there are no limits.
pub fn combine<'p, 'r>(
    parts: &'p [PartDecision<'r>],
    mode: Mode,
) -> Option<(Verdict, &'p PartDecision<'r>)> {
    if parts.iter().all(PartDecision::allows) {
        let choices = || parts.iter().filter(|part| part.standing != Standing::Spare);
        let all_shadows = choices().all(|part| part.request.shadow);
        let enforced = choices().filter(|part| all_shadows || !part.request.shadow);
        let deciding = enforced.min_by_key(|part| room(part, mode))?;
        return Some((Verdict::taking(0), deciding));
    }
    let all_held = denials(parts).all(|(_, held)| held);
    let obstacle = if all_held { Obstacle::Held } else { Obstacle::Counted };
    // Of several waits that are the longest, the first decides: `min_by_key` returns the first.
    let (deciding, _) = denials(parts).min_by_key(|(part, _)| Reverse(wait(part)))?;
    let verdict = match deciding.decision.verdict.retry_after_us() {
        Some(wait_us) => Verdict::Denied { wait_us, obstacle },
        None => Verdict::Never,
    };
    Some((verdict, deciding))
}

/// Returns the decision that speaks for each group that denies: the first of those with the shortest wait. With it comes
/// whether one of the limits of the group denies only because others hold.
pub fn denials<'p, 'r>(
    parts: &'p [PartDecision<'r>],
) -> impl Iterator<Item = (&'p PartDecision<'r>, bool)> {
    let groups = parts.chunk_by(|one, other| one.group == other.group);
    groups.filter_map(|group| {
        let denies = |part: &PartDecision| !part.request.shadow && !part.decision.allowed();
        if !group.iter().all(denies) {
            return None;
        }
        let is_held = |part: &PartDecision| {
            matches!(part.decision.verdict, Verdict::Denied { obstacle: Obstacle::Held, .. })
        };
        let held = group.iter().any(is_held);
        group.iter().min_by_key(|part| wait(part)).map(|part| (part, held))
    })
}

/// Returns the number of such calls for which there is room after this one. Limits from which the call takes nothing come
/// last.
fn room(part: &PartDecision, mode: Mode) -> (bool, u64) {
    let quantity = if part.request.check { 0 } else { part.request.ask.quantity.wanted() };
    // A call that only looks has taken nothing yet.
    let untaken = if mode == Mode::Look { part.decision.verdict.taken() } else { 0 };
    let remaining = part.decision.remaining.saturating_sub(untaken);
    remaining.checked_div(quantity).map_or((true, 0), |calls| (false, calls))
}

/// Returns the wait of a denial, where never is the longest.
fn wait(part: &PartDecision) -> (bool, u64) {
    part.decision.verdict.retry_after_us().map_or((true, 0), |us| (false, us))
}

#[cfg(test)]
mod tests;

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
mod tests {
    use super::*;
    use crate::decision::{Ask, Quantity};
    use crate::request::Limit;
    use crate::throttle::Rate;

    fn part(verdict: Verdict, remaining: u64, quantity: i64, shadow: bool) -> PartOutcome<'static> {
        let limit = Limit::Rate(Rate::new(99, 1, 1_000).unwrap());
        let ask = Ask::whole(Quantity::from_signed(quantity));
        let request = Box::leak(Box::new(Request { ask, shadow, ..Request::new(limit) }));
        let decision = Decision { verdict, limit: 100, remaining, ..Decision::default() };
        let judgement = Judgement { allowed: verdict.allowed(), ..Judgement::default() };
        PartOutcome { index: 0, request, place: Place::default(), decision, judgement }
    }

    /// Returns the index of the limit that decides and the verdict, if these limits form groups of these sizes.
    fn combined(groups: &[usize], mut parts: Vec<PartOutcome>) -> Option<(usize, Verdict)> {
        let numbers = groups.iter().enumerate().flat_map(|(group, len)| vec![group; *len]);
        for (index, (part, group)) in parts.iter_mut().zip(numbers).enumerate() {
            (part.index, part.place.group) = (index, group);
        }
        for group in parts.chunk_by_mut(|one, next| one.place.group == next.place.group) {
            let choice =
                group.iter().position(|part| part.request.shadow || part.judgement.allowed);
            for (at, part) in group.iter_mut().enumerate() {
                part.judgement.is_choice = choice == Some(at);
                part.judgement.group_allowed = choice.is_some();
            }
        }
        combine(&parts).map(|outcome| (outcome.deciding.index, outcome.verdict))
    }

    /// Returns the same if each limit is a group of its own.
    fn alone(parts: Vec<PartOutcome>) -> Option<(usize, Verdict)> {
        combined(&vec![1; parts.len()], parts)
    }

    fn denied(wait_us: u64, obstacle: Obstacle) -> Verdict {
        Verdict::Denied { wait_us, obstacle }
    }

    const YES: Verdict = Verdict::Allowed { taken: 1, go_after_us: 0 };

    #[test]
    fn of_an_allowed_call_the_limit_with_the_least_room_decides() {
        for (parts, deciding_part) in [
            (vec![part(YES, 9, 1, false), part(YES, 8, 1, false)], 1),
            // 9 / 3 is less than 8 / 1; 11 / 3 is 3 as well, and later.
            (vec![part(YES, 8, 1, false), part(YES, 9, 3, false), part(YES, 11, 3, false)], 1),
            // Checks and looks come last, shadows do not count.
            (vec![part(YES, 0, 0, false), part(YES, 50, 1, false)], 1),
            (vec![part(YES, 0, 1, true), part(YES, 50, 1, false)], 1),
            (vec![part(YES, 7, 0, false), part(YES, 5, 0, false)], 0),
            // If all are shadows, they count.
            (vec![part(YES, 9, 1, true), part(Verdict::Never, 0, 1, true)], 1),
        ] {
            let expected = Some((deciding_part, Verdict::taking(0)));
            assert_eq!(alone(parts.clone()), expected, "{parts:?}");
        }
    }

    #[test]
    fn of_a_denied_call_the_limit_with_the_longest_wait_decides() {
        let (counted, held) = (Obstacle::Counted, Obstacle::Held);
        let no = |wait_us, obstacle| part(denied(wait_us, obstacle), 0, 1, false);
        let shadow = part(denied(9, counted), 0, 1, true);
        let never = part(Verdict::Never, 0, 1, false);
        for (parts, deciding_part, verdict) in [
            (vec![part(YES, 9, 1, false), no(5, counted)], 1, denied(5, counted)),
            (vec![no(5, held), no(7, counted)], 1, denied(7, counted)),
            (vec![no(7, held), no(7, held)], 0, denied(7, held)),
            (vec![no(7, held), never], 1, Verdict::Never),
            (vec![no(7, held), shadow], 0, denied(7, held)),
        ] {
            let expected = Some((deciding_part, verdict));
            assert_eq!(alone(parts.clone()), expected, "{parts:?}");
        }
    }

    #[test]
    fn only_choices_decide_an_allowed_call() {
        let (no, counted) = (denied(5, Obstacle::Counted), Obstacle::Counted);
        for (groups, parts, deciding_part) in [
            (&[2][..], vec![part(no, 0, 1, false), part(YES, 9, 1, false)], 1),
            // The second would have less room, but nothing is taken of it.
            (&[2], vec![part(YES, 9, 1, false), part(YES, 1, 1, false)], 0),
            (
                &[1, 2],
                vec![part(YES, 9, 1, false), part(no, 0, 1, false), part(YES, 8, 1, false)],
                2,
            ),
            // A shadow decides only if every choice is one.
            (
                &[1, 2],
                vec![
                    part(YES, 9, 1, false),
                    part(denied(5, counted), 0, 1, true),
                    part(YES, 1, 1, false),
                ],
                0,
            ),
            (&[2], vec![part(denied(5, counted), 0, 1, true), part(YES, 1, 1, false)], 0),
        ] {
            let expected = Some((deciding_part, Verdict::taking(0)));
            assert_eq!(combined(groups, parts.clone()), expected, "{parts:?}");
        }
    }

    #[test]
    fn a_group_denies_with_its_shortest_wait() {
        let no = |wait_us| part(denied(wait_us, Obstacle::Counted), 0, 1, false);
        let held = |wait_us| part(denied(wait_us, Obstacle::Held), 0, 1, false);
        let never = part(Verdict::Never, 0, 1, false);
        let (counts, holds) = (|us| denied(us, Obstacle::Counted), |us| denied(us, Obstacle::Held));
        for (groups, parts, deciding_part, verdict) in [
            (&[2][..], vec![no(7), no(5)], 1, counts(5)),
            (&[2], vec![no(5), no(5)], 0, counts(5)),
            (&[2], vec![never, no(5)], 1, counts(5)),
            (&[2], vec![never, never], 0, Verdict::Never),
            // The longest of the groups.
            (&[1, 2], vec![no(6), no(9), no(5)], 0, counts(6)),
            (&[1, 2], vec![no(6), no(9), no(8)], 2, counts(8)),
            // A group is held if one of its limits is, whichever speaks.
            (&[2], vec![no(5), held(9)], 0, holds(5)),
            (&[1, 2], vec![no(6), held(9), no(9)], 1, counts(9)),
            (&[1, 2], vec![held(6), held(9), no(9)], 1, holds(9)),
            // A group with a shadow denies nothing.
            (&[1, 2], vec![no(6), no(9), part(Verdict::Never, 0, 1, true)], 0, counts(6)),
        ] {
            let expected = Some((deciding_part, verdict));
            assert_eq!(combined(groups, parts.clone()), expected, "{parts:?}");
        }
    }
}

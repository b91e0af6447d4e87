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

/// The decision about one limit, with its part in the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartDecision {
    /// The decision, as the call leaves the key.
    pub decision: Decision,
    /// The quantity that the call takes; 0 if it only looks or checks.
    pub quantity: u64,
    /// The limit never denies the call (SHADOW).
    pub shadow: bool,
    /// The number of its group.
    pub group: usize,
    /// The limit is the choice of its group: the first that would be allowed.
    pub is_choice: bool,
    /// Its group has a choice.
    pub group_allowed: bool,
    /// The limit would allow the call, before a denial was counted.
    pub allowed: bool,
}

/// The decision of all limits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeReply {
    /// 0 if the call is allowed, 1 if it is denied, 2 if it is denied only because others hold.
    pub limited: u64,
    /// The index of the limit that decides.
    pub deciding_part: usize,
    /// Microseconds after which the same call is allowed. `None` if it was allowed, or can never be.
    pub retry_after_us: Option<u64>,
}

/// Returns the decision about a call over `parts`, which was `allowed` before a denial was counted.
pub fn whole_reply(parts: &[PartDecision], allowed: bool) -> WholeReply {
    if allowed {
        let choices = || parts.iter().enumerate().filter(|(_, part)| part.is_choice);
        let all_shadows = choices().all(|(_, part)| part.shadow);
        let enforced = choices().filter(|(_, part)| all_shadows || !part.shadow);
        let deciding_part = enforced.min_by_key(|(_, part)| room(part)).map_or(0, |(at, _)| at);
        return WholeReply { limited: 0, deciding_part, retry_after_us: None };
    }
    // Of several waits that are the longest, the first decides.
    let (mut longest, mut all_held): (Option<(usize, &PartDecision)>, bool) = (None, true);
    for (at, part, held) in denials(parts) {
        all_held &= held;
        if longest.is_none_or(|(_, other)| wait(part) > wait(other)) {
            longest = Some((at, part));
        }
    }
    WholeReply {
        limited: if all_held { 2 } else { 1 },
        deciding_part: longest.map_or(0, |(at, _)| at),
        retry_after_us: longest.and_then(|(_, part)| part.decision.verdict.retry_after_us()),
    }
}

/// Returns the limit that speaks for each group that denies: the first of those with the shortest wait. The index of the
/// limit comes with it, and whether the group denies only because others hold.
pub fn denials(parts: &[PartDecision]) -> impl Iterator<Item = (usize, &PartDecision, bool)> {
    let groups =
        parts.chunk_by(|one, other| one.group == other.group).scan(0usize, |begin, group| {
            let first = *begin;
            *begin = first.saturating_add(group.len());
            Some((first, group))
        });
    groups.filter_map(|(first, group)| {
        let denies = |part: &PartDecision| !part.shadow && !part.decision.verdict.allowed();
        if !group.iter().all(denies) {
            return None;
        }
        let is_held = |part: &PartDecision| {
            matches!(part.decision.verdict, Verdict::Denied { obstacle: Obstacle::Held, .. })
        };
        let held = group.iter().any(is_held);
        let shortest = group.iter().enumerate().min_by_key(|(_, part)| wait(part));
        shortest.map(|(at, part)| (first.saturating_add(at), part, held))
    })
}

/// Returns the number of such calls for which there is still room. Limits from which the call takes nothing come last.
fn room(part: &PartDecision) -> (bool, u64) {
    match part.decision.remaining.checked_div(part.quantity) {
        Some(calls) => (false, calls),
        None => (true, 0),
    }
}

/// Returns the wait of a denied part, where never is the longest.
fn wait(part: &PartDecision) -> (bool, u64) {
    match part.decision.verdict.retry_after_us() {
        Some(us) => (false, us),
        None => (true, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(verdict: Verdict, remaining: u64, quantity: u64, shadow: bool) -> PartDecision {
        let decision = Decision { verdict, limit: 100, remaining, ..Decision::default() };
        PartDecision { decision, quantity, shadow, ..PartDecision::default() }
    }

    /// Returns the reply if these limits form groups of these sizes.
    fn whole_reply_of(groups: &[usize], mut parts: Vec<PartDecision>, allowed: bool) -> WholeReply {
        let numbers = groups.iter().enumerate().flat_map(|(group, len)| vec![group; *len]);
        for (part, group) in parts.iter_mut().zip(numbers) {
            part.group = group;
        }
        for group in parts.chunk_by_mut(|one, next| one.group == next.group) {
            let first =
                group.iter().position(|part| part.shadow || part.decision.verdict.allowed());
            first.into_iter().for_each(|at| group[at].is_choice = true);
        }
        whole_reply(&parts, allowed)
    }

    /// Returns the reply if each limit is a group of its own.
    fn alone(parts: Vec<PartDecision>, allowed: bool) -> WholeReply {
        whole_reply_of(&vec![1; parts.len()], parts, allowed)
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
            let answer = alone(parts.clone(), true);
            let expected = WholeReply { limited: 0, deciding_part, retry_after_us: None };
            assert_eq!(answer, expected, "{parts:?}");
        }
    }

    #[test]
    fn of_a_denied_call_the_limit_with_the_longest_wait_decides() {
        let (counted, held) = (Obstacle::Counted, Obstacle::Held);
        for (parts, limited, deciding_part, retry_after_us) in [
            (vec![part(YES, 9, 1, false), part(denied(5, counted), 0, 1, false)], 1, 1, Some(5)),
            (
                vec![part(denied(5, held), 0, 1, false), part(denied(7, counted), 0, 1, false)],
                1,
                1,
                Some(7),
            ),
            (
                vec![part(denied(7, held), 0, 1, false), part(denied(7, held), 0, 1, false)],
                2,
                0,
                Some(7),
            ),
            (
                vec![part(denied(7, held), 0, 1, false), part(Verdict::Never, 0, 1, false)],
                1,
                1,
                None,
            ),
            (
                vec![part(denied(7, held), 0, 1, false), part(denied(9, counted), 0, 1, true)],
                2,
                0,
                Some(7),
            ),
        ] {
            let answer = alone(parts.clone(), false);
            let expected = WholeReply { limited, deciding_part, retry_after_us };
            assert_eq!(answer, expected, "{parts:?}");
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
            let expected = WholeReply { limited: 0, deciding_part, retry_after_us: None };
            assert_eq!(whole_reply_of(groups, parts.clone(), true), expected, "{parts:?}");
        }
    }

    #[test]
    fn a_group_denies_with_its_shortest_wait() {
        let no = |wait_us| part(denied(wait_us, Obstacle::Counted), 0, 1, false);
        let held = |wait_us| part(denied(wait_us, Obstacle::Held), 0, 1, false);
        let never = part(Verdict::Never, 0, 1, false);
        for (groups, parts, limited, deciding_part, retry_after_us) in [
            (&[2][..], vec![no(7), no(5)], 1, 1, Some(5)),
            (&[2], vec![no(5), no(5)], 1, 0, Some(5)),
            (&[2], vec![never, no(5)], 1, 1, Some(5)),
            (&[2], vec![never, never], 1, 0, None),
            // The longest of the groups.
            (&[1, 2], vec![no(6), no(9), no(5)], 1, 0, Some(6)),
            (&[1, 2], vec![no(6), no(9), no(8)], 1, 2, Some(8)),
            // A group answers 2 if one of its limits does, whichever speaks.
            (&[2], vec![no(5), held(9)], 2, 0, Some(5)),
            (&[1, 2], vec![no(6), held(9), no(9)], 1, 1, Some(9)),
            (&[1, 2], vec![held(6), held(9), no(9)], 2, 1, Some(9)),
            // A group with a shadow denies nothing.
            (&[1, 2], vec![no(6), no(9), part(Verdict::Never, 0, 1, true)], 1, 0, Some(6)),
        ] {
            let expected = WholeReply { limited, deciding_part, retry_after_us };
            assert_eq!(whole_reply_of(groups, parts.clone(), false), expected, "{parts:?}");
        }
    }
}

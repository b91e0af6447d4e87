use super::*;
use crate::decision::{Ask, Quantity};
use crate::request::Limit;
use crate::throttle::Rate;

fn part(verdict: Verdict, remaining: u64, quantity: i64, shadow: bool) -> PartDecision<'static> {
    let limit = Limit::Rate(Rate::new(99, 1, 1_000).unwrap());
    let ask = Ask::whole(Quantity::from_signed(quantity));
    let request = Box::leak(Box::new(Request { ask, shadow, ..Request::new(limit) }));
    let decision = Decision { verdict, limit: 100, remaining, ..Decision::default() };
    PartDecision {
        index: 0,
        request,
        group: 0,
        standing: Standing::Denied,
        decision,
        counts_denial: false,
    }
}

/// Returns the index of the limit that decides and the verdict, if these limits form groups of these sizes.
fn combined(groups: &[usize], mut parts: Vec<PartDecision>) -> Option<(usize, Verdict)> {
    let numbers = groups.iter().enumerate().flat_map(|(group, len)| vec![group; *len]);
    for (index, (part, group)) in parts.iter_mut().zip(numbers).enumerate() {
        (part.index, part.group) = (index, group);
    }
    for group in parts.chunk_by_mut(|one, next| one.group == next.group) {
        let choice = group.iter().position(|part| part.request.shadow || part.decision.allowed());
        for (at, part) in group.iter_mut().enumerate() {
            part.standing = match choice {
                None => Standing::Denied,
                Some(choice) if choice != at => Standing::Spare,
                Some(_) if part.decision.allowed() => Standing::Choice,
                Some(_) => Standing::Shadow,
            };
        }
    }
    combine(&parts, Mode::Final).map(|(verdict, deciding)| (deciding.index, verdict))
}

/// Returns the same if each limit is a group of its own.
fn alone(parts: Vec<PartDecision>) -> Option<(usize, Verdict)> {
    combined(&vec![1; parts.len()], parts)
}

fn denied(wait_us: u64, obstacle: Obstacle) -> Verdict {
    Verdict::Denied { wait_us, obstacle }
}

const YES: Verdict = Verdict::Allowed { taken: 1, go_after_us: 0 };

#[test]
fn the_limit_with_the_least_room_decides_an_allowed_call() {
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
fn the_limit_with_the_longest_wait_decides_a_denied_call() {
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
        (&[1, 2], vec![part(YES, 9, 1, false), part(no, 0, 1, false), part(YES, 8, 1, false)], 2),
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

//! Several limits in one call: whether it is allowed, and which limit decides.

use super::decision::{Decision, Verdict};

/// One limit of a call over several.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// What it decided, as the call leaves it.
    pub decision: Decision,
    /// How much was asked of it; 0 where it only looks, or only checks.
    pub quantity: u64,
    /// Told, but never the reason of a denial (SHADOW).
    pub shadow: bool,
}

/// The answer of all limits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// 0 allowed, 1 denied, 2 denied only because others hold.
    pub limited: u64,
    /// The limit that decides, counted from 0.
    pub decides: usize,
    /// Microseconds after which the same call is allowed; `None` if it was, or can never be.
    pub retry_after_us: Option<u64>,
}

/// Whether a call over limits with these verdicts is allowed: all but the shadows must allow it.
pub fn allowed(verdicts: impl IntoIterator<Item = (Verdict, bool)>) -> bool {
    verdicts.into_iter().all(|(verdict, shadow)| shadow || verdict.allowed())
}

/// Puts the answer of a call over `shares` together; `allowed` is what it was before a denial was counted.
pub fn together(shares: &[Share], allowed: bool) -> Together {
    let enforced = || {
        let all_shadows = shares.iter().all(|share| share.shadow);
        shares.iter().enumerate().filter(move |(_, share)| all_shadows || !share.shadow)
    };
    if allowed {
        let decides = enforced().min_by_key(|(_, share)| room(share)).map_or(0, |(at, _)| at);
        return Together { limited: 0, decides, retry_after_us: None };
    }
    let denying = || enforced().filter(|(_, share)| !share.decision.verdict.allowed());
    // The first of the longest: `min_by_key` takes the first of equals.
    let longest = denying().min_by_key(|(_, share)| std::cmp::Reverse(wait(share)));
    let all_held = denying().all(|(_, share)| share.decision.verdict.limited() == 2);
    Together {
        limited: if all_held { 2 } else { 1 },
        decides: longest.map_or(0, |(at, _)| at),
        retry_after_us: longest.and_then(|(_, share)| share.decision.verdict.retry_after_us()),
    }
}

/// How many more such calls there is room for; limits of which nothing was asked come last.
fn room(share: &Share) -> (bool, u64) {
    match share.decision.remaining.checked_div(share.quantity) {
        Some(calls) => (false, calls),
        None => (true, 0),
    }
}

/// The wait of a denied share; never is the longest.
fn wait(share: &Share) -> (bool, u64) {
    match share.decision.verdict.retry_after_us() {
        Some(us) => (false, us),
        None => (true, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::decision::Obstacle;
    use super::*;

    fn share(verdict: Verdict, remaining: u64, quantity: u64, shadow: bool) -> Share {
        let decision = Decision { verdict, limit: 100, remaining, reset_after_us: 0 };
        Share { decision, quantity, shadow }
    }

    fn denied(wait_us: u64, by: Obstacle) -> Verdict {
        Verdict::Denied { wait_us, by }
    }

    const YES: Verdict = Verdict::Allowed { taken: 1, go_after_us: 0 };

    #[test]
    fn of_an_allowed_call_the_limit_with_the_least_room_decides() {
        for (shares, decides) in [
            (vec![share(YES, 9, 1, false), share(YES, 8, 1, false)], 1),
            // 9 / 3 is less than 8 / 1; 11 / 3 is 3 as well, and later.
            (vec![share(YES, 8, 1, false), share(YES, 9, 3, false), share(YES, 11, 3, false)], 1),
            // Checks and looks come last, shadows do not count.
            (vec![share(YES, 0, 0, false), share(YES, 50, 1, false)], 1),
            (vec![share(YES, 0, 1, true), share(YES, 50, 1, false)], 1),
            (vec![share(YES, 7, 0, false), share(YES, 5, 0, false)], 0),
            // Where all are shadows, they count.
            (vec![share(YES, 9, 1, true), share(Verdict::Never, 0, 1, true)], 1),
        ] {
            let answer = together(&shares, true);
            let expected = Together { limited: 0, decides, retry_after_us: None };
            assert_eq!(answer, expected, "{shares:?}");
        }
    }

    #[test]
    fn of_a_denied_call_the_limit_with_the_longest_wait_decides() {
        let (counted, held) = (Obstacle::Counted, Obstacle::Held);
        for (shares, limited, decides, retry_after_us) in [
            (vec![share(YES, 9, 1, false), share(denied(5, counted), 0, 1, false)], 1, 1, Some(5)),
            (
                vec![share(denied(5, held), 0, 1, false), share(denied(7, counted), 0, 1, false)],
                1,
                1,
                Some(7),
            ),
            (
                vec![share(denied(7, held), 0, 1, false), share(denied(7, held), 0, 1, false)],
                2,
                0,
                Some(7),
            ),
            (
                vec![share(denied(7, held), 0, 1, false), share(Verdict::Never, 0, 1, false)],
                1,
                1,
                None,
            ),
            (
                vec![share(denied(7, held), 0, 1, false), share(denied(9, counted), 0, 1, true)],
                2,
                0,
                Some(7),
            ),
        ] {
            let answer = together(&shares, false);
            let expected = Together { limited, decides, retry_after_us };
            assert_eq!(answer, expected, "{shares:?}");
        }
    }
}

//! The steps of a call, for one limit or several: [`judge`], [`Judged::plan`], [`Plan::write`]. The
//! documentation of the crate has a diagram and an example.

mod bucket_state;
mod window_state;

use crate::decision::{Decision, Verdict};
use crate::groups::{Judgement, PartOutcome, Place};
use crate::request::{Limit, Request};
use crate::reservation::Id;
use crate::store::{Access, BucketKey, Store, WindowKey};
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
            Limit::Window(window) | Limit::Reserve(window, _) => {
                part(PartState::Window(WindowState::new(store, request, window)))
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
            PartState::Window(window) => window.decision(self.verdict),
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
                PartState::Bucket(bucket) => bucket.judge(barred)?,
                PartState::Window(window) => window.judge(barred)?,
            };
            part.judgement.allowed = part.verdict.allowed();
            part.judgement.is_choice = !has_choice && part.permits();
            if part.judgement.is_choice {
                has_choice = true;
                if let PartState::Window(window) = &part.state {
                    window.check_room(part.verdict)?;
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
    #[inline]
    pub fn plan(self, mut new_id: impl FnMut() -> Id) -> Result<Plan<'p, 'r, S>, S::Error> {
        let Judged { parts, mode, allowed } = self;
        for part in &mut *parts {
            let action = part.action(mode, allowed);
            part.verdict = match &mut part.state {
                PartState::Bucket(bucket) => bucket.plan(part.verdict, action),
                PartState::Window(window) => window.plan(part.verdict, action, &mut new_id)?,
            };
            if mode == Mode::Try && !allowed {
                part.earliest_grant_us = match &mut part.state {
                    PartState::Bucket(bucket) => bucket.earliest_grant_us()?,
                    PartState::Window(window) => window.earliest_grant_us()?,
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

    /// Writes what was planned.
    #[inline]
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
mod tests {
    use super::*;
    use crate::calendar::Zones;
    use crate::decision::{Ask, Quantity};
    use crate::memory::{Memory, Saved, SavedValue};
    use crate::model::decide;
    use crate::refusal::Refusal;
    use crate::request::{NewReservation, WindowLimit};
    use crate::rule::Rule;
    use crate::throttle::Rate;

    const NOW_US: u64 = 1_700_000_000_000_000;

    /// Returns whether a call over these limits is allowed, and which of them are choices. Each limit has its group, whether
    /// it would be allowed, and whether it is a shadow.
    fn choices(limits: &[(usize, bool, bool)]) -> (bool, Vec<bool>) {
        let memory = Memory::default();
        let one = Limit::Rate(Rate::new(0, 1, 1_000).unwrap());
        let allowed = Request::new(one);
        let mut never = allowed;
        never.ask.quantity = Quantity::Take(2);
        let names: Vec<_> = (0..limits.len()).map(|at| at.to_string()).collect();
        let requests: Vec<_> = limits
            .iter()
            .map(|(_, is_allowed, shadow)| {
                let request = if *is_allowed { allowed } else { never };
                Request { shadow: *shadow, ..request }
            })
            .collect();
        let parts =
            limits.iter().zip(&requests).zip(&names).map(|(((group, ..), request), name)| {
                let place = Place { group: *group, check: false };
                Part::new(memory.key(name.as_bytes(), NOW_US), request, place, false)
            });
        let mut parts: Vec<_> = parts.collect();
        let mut plan = judge(&mut parts, Mode::Final).unwrap().plan(|| unreachable!()).unwrap();
        let outcomes: Vec<_> = plan.outcomes().collect();
        plan.write();
        let call_allowed = outcomes.iter().all(|outcome| outcome.judgement.group_allowed);
        let is_taken = |name: &String| memory.save(name.as_bytes()).is_some();
        for (outcome, name) in outcomes.iter().zip(&names) {
            let takes = call_allowed && outcome.judgement.is_choice && outcome.judgement.allowed;
            assert_eq!(is_taken(name), takes, "{limits:?}");
            let group = outcomes.iter().filter(|other| other.place.group == outcome.place.group);
            let has_choice = group.filter(|other| other.judgement.is_choice).count() == 1;
            assert_eq!(outcome.judgement.group_allowed, has_choice, "{limits:?}");
        }
        (call_allowed, outcomes.iter().map(|outcome| outcome.judgement.is_choice).collect())
    }

    #[test]
    fn the_first_limit_of_a_group_that_would_be_allowed_is_its_choice() {
        let (yes, no) = (true, false);
        for (limits, chosen, allowed) in [
            (&[(0, yes, no), (0, yes, no)][..], &[true, false][..], true),
            (&[(0, no, no), (0, yes, no)], &[false, true], true),
            (&[(0, no, no), (0, no, no)], &[false, false], false),
            (&[(0, no, yes), (0, yes, no)], &[true, false], true),
            (&[(0, yes, no), (0, no, yes)], &[true, false], true),
            (&[(0, yes, no), (1, no, no), (1, yes, no)], &[true, false, true], true),
            (&[(0, no, no), (1, no, no), (1, yes, no)], &[false, false, true], false),
            (&[(0, no, no), (0, no, no), (1, yes, no)], &[false, false, true], false),
        ] {
            assert_eq!(choices(limits), (allowed, chosen.to_vec()), "{limits:?}");
        }
    }

    /// A denial counts only if nobody waits before the call, and the call itself will not wait.
    #[test]
    fn only_a_final_denial_with_no_line_before_it_is_counted() {
        let limit = |limit| Limit::Window(window("60s", limit));
        let take = Request { count_denied: true, ..Request::new(limit(1)) };
        for (mode, barred, counted) in [
            (Mode::Final, false, 2),
            (Mode::Final, true, 1),
            (Mode::Try, false, 1),
            (Mode::Try, true, 1),
            (Mode::CountDenial, false, 2),
            (Mode::Look, false, 1),
        ] {
            let memory = Memory::default();
            assert!(memory.decide(b"k", &take, NOW_US, || unreachable!()).is_ok());
            let key = memory.key(b"k", NOW_US);
            let decision = decide(key, &take, barred, mode, || unreachable!()).unwrap();
            assert!(!decision.allowed());
            // Only a call that may be tried again gets a wait.
            let is_told = decision.earliest_grant_us.is_some();
            assert_eq!(is_told, mode == Mode::Try, "{mode:?} {barred}");
            let looked = memory.look(b"k", &Request::new(limit(9)), NOW_US).unwrap();
            assert_eq!(looked.remaining, 9 - counted, "{mode:?} {barred}");
        }
    }

    fn window(period: &str, limit: u64) -> WindowLimit {
        let rule = Rule::parse(period.as_bytes(), &mut Zones::new()).unwrap();
        WindowLimit { max: limit, rule, max_entries: 9 }
    }

    fn taking(limit: Limit, quantity: u64, leave: u64, ban_ms: Option<u64>) -> Request {
        let ask = Ask { leave, ..Ask::whole(Quantity::Take(quantity)) };
        Request { ask, ban_ms, ..Request::new(limit) }
    }

    fn reserving(window: WindowLimit, id: &str) -> Request {
        let id = Some(Id::from(id.as_bytes()));
        let reserve =
            NewReservation { lease_ms: 20_000, count_lapsed: false, id, max_reservations: 9 };
        Request::new(Limit::Reserve(window, reserve))
    }

    /// Makes a call on the key `k`. Returns whether it is allowed, and whether it writes to a window.
    fn call(memory: &Memory, request: &Request, now_us: u64) -> (bool, bool) {
        let mut parts = [Part::new(memory.key(b"k", now_us), request, Place::default(), false)];
        let mut plan = judge(&mut parts, Mode::Final).unwrap().plan(|| unreachable!()).unwrap();
        let allowed = plan.decision().allowed();
        plan.write();
        let [part] = &parts;
        let writes = matches!(&part.state, PartState::Window(window) if window.planned.is_some());
        (allowed, writes)
    }

    #[test]
    fn a_denied_call_heals_the_keys_that_it_would_take_from() {
        let bucket = Limit::Rate(Rate::new(1, 1, 1_000).unwrap());
        let never = taking(bucket, 3, 0, None);
        for limit in [bucket, Limit::Window(window("60s", 9))] {
            for (quantity, heals) in
                [(Quantity::Look, false), (Quantity::GiveBack(1), false), (Quantity::Take(1), true)]
            {
                let memory = Memory::default();
                for _ in 0..2 {
                    assert!(call(&memory, &Request::new(limit), NOW_US).0);
                }
                let before = memory.save(b"k");
                let back_us = NOW_US - 60_000_000;
                let request = Request { ask: Ask::whole(quantity), ..Request::new(limit) };
                let [first, second] = [0, 1].map(|group| Place { group, check: false });
                let mut parts = [
                    Part::new(memory.key(b"k", back_us), &request, first, false),
                    Part::new(memory.key(b"never", back_us), &never, second, false),
                ];
                let mut plan =
                    judge(&mut parts, Mode::Final).unwrap().plan(|| unreachable!()).unwrap();
                assert!(plan.outcomes().any(|outcome| !outcome.judgement.group_allowed));
                plan.write();
                drop(parts);
                assert_eq!(memory.save(b"k") != before, heals, "{limit:?} {quantity:?}");
            }
        }
    }

    #[test]
    fn all_that_a_clock_left_in_the_future_is_healed_at_once_where_it_is_not_much() {
        let (memory, request) = (Memory::default(), Request::new(Limit::Window(window("60s", 9))));
        for second in 0..5 {
            assert!(call(&memory, &request, NOW_US + second * 1_000_000).0);
        }
        assert!(call(&memory, &request, NOW_US - 1_000_000).0);
        let Some(Saved { value: SavedValue::Window { entries, .. }, .. }) = memory.save(b"k")
        else {
            panic!("a window")
        };
        assert_eq!(
            entries.iter().map(|(score, _)| *score).collect::<Vec<_>>(),
            [1_000_000 - NOW_US as i64]
        );
        assert_eq!(memory.look(b"k", &request, NOW_US).unwrap().remaining, 3);
    }

    #[test]
    fn a_clock_beyond_what_a_score_holds_is_refused() {
        const LAST: u64 = 9_007_199_254_740_991;
        for limit in [Limit::Rate(Rate::new(0, 1, 1_000).unwrap()), Limit::Window(window("60s", 1))]
        {
            let look = |now_us| Memory::default().look(b"k", &Request::new(limit), now_us).err();
            let refused = [LAST - 1, LAST, LAST + 1, LAST + 2].map(look);
            assert_eq!(
                refused,
                [None, None, Some(Refusal::Clock), Some(Refusal::Clock)],
                "{limit:?}"
            );
        }
    }

    #[test]
    fn the_earliest_grant_ignores_reservations_and_the_line() {
        let bucket = |limit: u64| Limit::Rate(Rate::new(limit - 1, 1, 1_000).unwrap());
        let count = |limit| Limit::Window(window("60s", limit));
        let (full, banned) = (NOW_US + 60_000_000, NOW_US + 90_000_000);
        // The call before, the ban of a denied call after it, the call that is tried, and its earliest grant.
        for (before, ban_ms, asks, earliest_us) in [
            (bucket(1), None, Request::new(bucket(2)), Some(NOW_US)),
            (bucket(1), None, Request::new(bucket(1)), Some(NOW_US + 1_000_000)),
            (bucket(1), None, taking(bucket(1), 2, 0, None), None),
            (bucket(1), Some(90_000), Request::new(bucket(1)), Some(banned)),
            (count(1), None, Request::new(count(2)), Some(NOW_US)),
            (count(1), None, Request::new(count(1)), Some(full)),
            (count(1), None, taking(count(1), 2, 0, None), None),
            (count(1), Some(90_000), Request::new(count(1)), Some(banned)),
            (count(1), Some(90_000), Request::new(count(2)), Some(banned)),
            (count(1), Some(9_000), Request::new(count(1)), Some(full)),
            (
                reserving(window("-", 1), "a").limit,
                None,
                reserving(window("-", 1), "b"),
                Some(NOW_US),
            ),
            (
                reserving(window("-", 1), "a").limit,
                None,
                reserving(window("60s", 1), "b"),
                Some(NOW_US),
            ),
        ] {
            let memory = Memory::default();
            assert!(call(&memory, &Request::new(before), NOW_US).0);
            if ban_ms.is_some() {
                assert!(!call(&memory, &taking(before, 1, 0, ban_ms), NOW_US).0);
            }
            let key = memory.key(b"k", NOW_US);
            let decision = decide(key, &asks, true, Mode::Try, || unreachable!()).unwrap();
            assert_eq!(decision.earliest_grant_us, earliest_us, "{asks:?}");
        }
    }

    #[test]
    fn a_ban_begins_once_ends_with_a_grant_and_is_not_for_a_leave() {
        let limit = |limit| Limit::Window(window("60s", limit));
        let give_back =
            Request { ask: Ask::whole(Quantity::GiveBack(1)), ..Request::new(limit(2)) };
        let has_mark = |memory: &Memory| match memory.save(b"k").map(|saved| saved.value) {
            Some(SavedValue::Window { reserved, .. }) => {
                reserved.first().is_some_and(|member| member.starts_with(b"!"))
            }
            _ => false,
        };
        let (over_us, again) = (NOW_US + 5_000_000, taking(limit(1), 1, 0, Some(5_000)));
        let memory = Memory::default();
        assert_eq!(call(&memory, &Request::new(limit(1)), NOW_US), (true, true));
        // Its quantity is there, and only its LEAVE is not.
        assert_eq!(call(&memory, &taking(limit(2), 1, 1, Some(5_000)), NOW_US), (false, false));
        assert_eq!(call(&memory, &again, NOW_US), (false, true));
        // Denied costs nothing, while the ban runs and afterwards.
        for now_us in [NOW_US + 1, over_us - 1, over_us] {
            assert_eq!(call(&memory, &again, now_us), (false, false), "{now_us}");
            assert!(has_mark(&memory));
        }
        // A reservation is a grant.
        assert_eq!(call(&memory, &reserving(window("60s", 2), "a"), over_us), (true, true));
        assert!(!has_mark(&memory));
        assert_eq!(call(&memory, &taking(limit(2), 2, 0, Some(5_000)), over_us), (false, true));
        assert!(has_mark(&memory));
        // The key is clear once all is given back.
        let over_us = over_us + 5_000_000;
        assert_eq!(memory.release(b"k", &Id::from(&b"a"[..]), over_us), Ok(true));
        assert_eq!(call(&memory, &give_back, over_us), (true, true));
        assert!(memory.is_empty());
    }
}

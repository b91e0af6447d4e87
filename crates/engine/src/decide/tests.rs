use super::*;
use crate::decision::{Ask, Quantity};
use crate::memory::tests::{self as memory_tests, acquire, window, NOW_US};
use crate::memory::{Memory, Saved, SavedValue};
use crate::model::decide;
use crate::refusal::Refusal;
use crate::throttle::Rate;

/// Plans a call over these limits.
fn planned<'p, 'r, S: Store<Error = Refusal>>(parts: &'p mut [Part<'r, S>]) -> Plan<'p, 'r, S> {
    read(parts).unwrap().judge().unwrap().plan(Mode::Final, || unreachable!()).unwrap()
}

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
    let parts = limits.iter().zip(&requests).zip(&names).map(|(((group, ..), request), name)| {
        Part::new(memory.key(name.as_bytes(), NOW_US), request, *group, false)
    });
    let mut parts: Vec<_> = parts.collect();
    let plan = planned(&mut parts);
    let decided: Vec<_> = plan.decisions().collect();
    plan.write();
    let call_allowed = decided.iter().all(|one| one.standing != Standing::Denied);
    let is_choice =
        |one: &PartDecision| matches!(one.standing, Standing::Choice | Standing::Shadow);
    let is_taken = |name: &String| memory.save(name.as_bytes()).is_some();
    for (one, name) in decided.iter().zip(&names) {
        let takes = call_allowed && one.standing == Standing::Choice;
        assert_eq!(is_taken(name), takes, "{limits:?}");
        let group = decided.iter().filter(|other| other.group == one.group);
        let has_choice = group.filter(|other| is_choice(other)).count() == 1;
        assert_eq!(one.standing != Standing::Denied, has_choice, "{limits:?}");
    }
    (call_allowed, decided.iter().map(is_choice).collect())
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
        (Mode::CountDenial, true, 2),
        (Mode::Look, false, 1),
    ] {
        let memory = Memory::default();
        assert!(memory.decide(b"k", &take, NOW_US, || unreachable!()).is_ok());
        let key = memory.key(b"k", NOW_US);
        let decision = decide(key, &take, barred, mode, || unreachable!()).unwrap();
        assert!(!decision.allowed());
        let looked = memory.look(b"k", &Request::new(limit(9)), NOW_US).unwrap();
        assert_eq!(looked.remaining, 9 - counted, "{mode:?} {barred}");
    }
}

fn taking(limit: Limit, quantity: u64, leave: u64, ban_ms: Option<u64>) -> Request {
    let ask = Ask { leave, ..Ask::whole(Quantity::Take(quantity)) };
    Request { ask, ban_ms, ..Request::new(limit) }
}

/// Makes a call on the key `k`. Returns whether it is allowed, and whether it writes to a window.
fn call(memory: &Memory, request: &Request, now_us: u64) -> (bool, bool) {
    let (decision, writes) = memory_tests::call(memory, request, now_us).unwrap();
    (decision.allowed(), writes)
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
            let mut parts = [
                Part::new(memory.key(b"k", back_us), &request, 0, false),
                Part::new(memory.key(b"never", back_us), &never, 1, false),
            ];
            let plan = planned(&mut parts);
            assert!(plan.decisions().any(|one| one.standing == Standing::Denied));
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
    let Some(Saved { value: SavedValue::Window { entries, .. }, .. }) = memory.save(b"k") else {
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
    for limit in [Limit::Rate(Rate::new(0, 1, 1_000).unwrap()), Limit::Window(window("60s", 1))] {
        let look = |now_us| Memory::default().look(b"k", &Request::new(limit), now_us).err();
        let refused = [LAST - 1, LAST, LAST + 1, LAST + 2].map(look);
        assert_eq!(refused, [None, None, Some(Refusal::Clock), Some(Refusal::Clock)], "{limit:?}");
    }
}

#[test]
fn the_earliest_grant_ignores_reservations_and_the_line() {
    let bucket = |limit: u64| Limit::Rate(Rate::new(limit - 1, 1, 1_000).unwrap());
    let count = |limit| Limit::Window(window("60s", limit));
    let reserve = |period, id| acquire(window(period, 1), id, 20_000);
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
        (reserve("-", "a").limit, None, reserve("-", "b"), Some(NOW_US)),
        (reserve("-", "a").limit, None, reserve("60s", "b"), Some(NOW_US)),
    ] {
        let memory = Memory::default();
        assert!(call(&memory, &Request::new(before), NOW_US).0);
        if ban_ms.is_some() {
            assert!(!call(&memory, &taking(before, 1, 0, ban_ms), NOW_US).0);
        }
        let key = memory.key(b"k", NOW_US);
        let mut parts = [Part::new(key, &asks, 0, true)];
        let mut judged = read(&mut parts).unwrap().judge().unwrap();
        assert_eq!(judged.earliest_grant_us(), Ok(earliest_us), "{asks:?}");
    }
}

#[test]
fn a_ban_begins_once_ends_with_a_grant_and_is_not_for_a_leave() {
    let limit = |limit| Limit::Window(window("60s", limit));
    let give_back = Request { ask: Ask::whole(Quantity::GiveBack(1)), ..Request::new(limit(2)) };
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
    assert_eq!(call(&memory, &acquire(window("60s", 2), "a", 20_000), over_us), (true, true));
    assert!(!has_mark(&memory));
    assert_eq!(call(&memory, &taking(limit(2), 2, 0, Some(5_000)), over_us), (false, true));
    assert!(has_mark(&memory));
    // The key is clear once all is given back.
    let over_us = over_us + 5_000_000;
    assert_eq!(memory.release(b"k", &Id::from(&b"a"[..]), over_us), Ok(true));
    assert_eq!(call(&memory, &give_back, over_us), (true, true));
    assert!(memory.is_empty());
}

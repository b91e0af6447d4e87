use super::*;
use crate::decide::{read, Mode, Part, PartState};
use crate::decision::{Ask, Decision, Manner, Obstacle, Quantity, Verdict};
use crate::request::{Limit, NewReservation, Request, WindowLimit};
use crate::reservation::Id;
use crate::rule::Rule;
use crate::settle::Settling;
use crate::store::{WindowKey, MAX_HEALED_EVENTS};
use crate::throttle::Rate;

pub(crate) const NOW_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;

pub(crate) fn window(period: &str, limit: u64) -> WindowLimit {
    let rule = Rule::parse(period.as_bytes(), &mut Zones::new()).unwrap();
    WindowLimit { limit, rule, max_entries: 9 }
}

/// Reserves one.
pub(crate) fn acquire(window: WindowLimit, id: &str, lease_ms: u64) -> Request {
    let id = Some(Id::from(id.as_bytes()));
    let reserve = NewReservation { lease_ms, count_lapsed: false, id, max_reservations: 99 };
    Request::new(Limit::Reserve(window, reserve))
}

/// Makes a call. Returns the decision, and whether anything was to be written.
pub(crate) fn call(
    memory: &Memory,
    request: &Request,
    now_us: u64,
) -> Result<(Decision, bool), Refusal> {
    let mut parts = [Part::new(memory.key(b"k", now_us), request, 0, false)];
    let plan = read(&mut parts)?.judge()?.plan(Mode::Final, || unreachable!())?;
    let decision = plan.decision();
    plan.write();
    let [part] = &parts;
    let writes = matches!(&part.state, PartState::Window(window) if window.change.is_some());
    Ok((decision, writes))
}

/// Returns how many reservations are stored, including those that are gone.
fn stored(memory: &Memory) -> usize {
    let SavedValue::Window { reserved, .. } = memory.save(b"k").unwrap().value else {
        panic!("a window")
    };
    reserved.len()
}

/// The ids that the key holds, the oldest first.
fn held(memory: &Memory, now_us: u64) -> Vec<String> {
    let held = memory.held(b"k", now_us).unwrap();
    held.iter().map(|one| String::from_utf8_lossy(one.id.as_bytes()).into_owned()).collect()
}

/// A reservation under a short rule is applied while an event of a longer rule needs the key.
#[test]
fn settling_keeps_a_ttl_that_another_call_needs() {
    let memory = Memory::default();
    let expires_at_ms = || memory.save(b"k").unwrap().expires_at_ms;
    assert!(call(&memory, &acquire(window("10s", 9), "a", 5_000), NOW_US).is_ok());
    assert!(call(&memory, &Request::new(Limit::Window(window("100s", 9))), NOW_US).is_ok());
    let before_ms = expires_at_ms();
    let applied = memory.apply(b"k", &Id::from(&b"a"[..]), None, 9, NOW_US);
    assert_eq!(applied, Ok(true));
    assert_eq!(expires_at_ms(), before_ms);
}

/// The clock is set back from a later window of the calendar, and a call merges only the oldest of many events from there.
#[test]
fn events_that_stay_in_the_future_keep_the_key_until_their_window_ends() {
    const LATER_US: u64 = NOW_US + 3_600 * SECOND_US;
    const LATER_END_MS: u64 = 1_700_006_400_000;
    let take = |limit| Request::new(Limit::Window(limit));
    for (limit, reserves) in [(20_000, false), (5, false), (20_000, true)] {
        let memory = Memory::default();
        for at_us in (LATER_US..).take(MAX_HEALED_EVENTS + 2) {
            assert!(call(&memory, &take(window("2h", 20_000)), at_us).is_ok());
        }
        let rule = memory.zones(|zones| Rule::parse(b"1h@UTC", zones)).unwrap();
        let limit = WindowLimit { limit, rule, max_entries: 1 };
        if reserves {
            assert!(call(&memory, &acquire(limit, "a", 1_000), LATER_US).is_ok());
            assert_eq!(memory.apply(b"k", &Id::from(&b"a"[..]), None, 1, NOW_US), Ok(true));
        } else {
            assert!(call(&memory, &take(limit), NOW_US).is_ok());
        }
        let expires_at_ms = memory.expires_at_ms(b"k", NOW_US).unwrap();
        assert!((LATER_END_MS..=LATER_END_MS + 1_000).contains(&expires_at_ms), "{expires_at_ms}");
    }
}

#[test]
fn an_id_that_is_held_is_refused_and_so_is_one_reservation_too_many() {
    let memory = Memory::default();
    let request = |limit, id| {
        let mut request = acquire(window("60s", limit), id, 20_000);
        if let Limit::Reserve(_, reserve) = &mut request.limit {
            reserve.max_reservations = 2;
        }
        request
    };
    for (after_us, id, refused) in [
        (0, "a", None),
        (0, "a", Some(Refusal::Duplicate)),
        (1, "b", None),
        (1, "c", Some(Refusal::TooManyReservations)),
        (19_999_999, "c", Some(Refusal::TooManyReservations)),
        // The first one is gone, then the second one too.
        (20_000_000, "c", None),
        (20_000_000, "d", Some(Refusal::TooManyReservations)),
        (20_000_001, "b", None),
        // The clock was set back.
        (-5_000_000, "c", Some(Refusal::Duplicate)),
        (-5_000_000, "d", Some(Refusal::TooManyReservations)),
    ] {
        let now_us = NOW_US.checked_add_signed(after_us).unwrap();
        assert_eq!(call(&memory, &request(9, id), now_us).err(), refused, "{id} after {after_us}");
    }
    // What is denied makes none, and meets no such bound.
    let (denied, ..) = call(&memory, &request(2, "d"), NOW_US + 20_000_001).unwrap();
    assert!(!denied.allowed());
}

#[test]
fn reservations_are_listed_in_the_order_of_their_arrival() {
    let memory = Memory::default();
    let reserve = |id, now_us| call(&memory, &acquire(window("-", 9), id, 20_000), now_us);
    assert!(reserve("x", NOW_US).is_ok() && reserve("b", NOW_US).is_ok());
    // The next one takes its place in memory.
    assert!(memory.release(b"k", &Id::from(&b"x"[..]), NOW_US).unwrap());
    assert!(reserve("a", NOW_US).is_ok() && reserve("0", NOW_US - SECOND_US).is_ok());
    assert_eq!(held(&memory, NOW_US), ["b", "a", "0"]);
    let mut window = memory.key(b"k", NOW_US).window();
    window.read(None).unwrap();
    assert_eq!(window.reservations().live_len(), 3);
}

#[test]
fn a_grant_drops_what_is_gone_and_a_denial_where_much_is() {
    for (gone, writes) in [(63, false), (64, true)] {
        let memory = Memory::default();
        let (long, short) = (window("60s", 99), window("60s", 5));
        let take = Request::new(Limit::Window(long));
        let mut five = take;
        five.ask.quantity = Quantity::Take(5);
        assert!(call(&memory, &five, NOW_US).unwrap().0.allowed());
        for id in 0..gone {
            assert!(call(&memory, &acquire(long, &id.to_string(), 1_000), NOW_US).is_ok());
        }
        let now_us = NOW_US + SECOND_US;
        for (now_us, writes) in [(now_us - 1, false), (now_us, writes)] {
            let request = Request::new(Limit::Window(short));
            let (denied, found) = call(&memory, &request, now_us).unwrap();
            assert_eq!((denied.allowed(), found), (false, writes), "{gone}");
            assert_eq!(stored(&memory), if writes { 0 } else { gone });
        }
        // Giving back changes nothing else.
        let expires_at_ms = memory.expires_at_ms(b"k", now_us);
        let give_back = Request { ask: Ask::whole(Quantity::GiveBack(1)), ..take };
        assert!(call(&memory, &give_back, now_us).unwrap().1, "{gone}");
        assert_eq!(stored(&memory), if writes { 0 } else { gone });
        assert_eq!(memory.expires_at_ms(b"k", now_us), expires_at_ms);
        let (granted, _) = call(&memory, &acquire(long, "new", 1_000), now_us).unwrap();
        assert_eq!((granted.allowed(), stored(&memory)), (true, 1), "{gone}");
        assert_eq!(held(&memory, now_us), ["new"]);
    }
}

#[test]
fn a_denial_restarts_leases_after_the_clock_was_set_back() {
    let memory = Memory::default();
    let one = window("-", 1);
    assert!(call(&memory, &acquire(one, "a", 20_000), NOW_US).is_ok());
    let back_us = NOW_US - 60 * SECOND_US;
    let (denied, writes) = call(&memory, &acquire(one, "b", 20_000), back_us).unwrap();
    let verdict = Verdict::Denied { wait_us: 20 * SECOND_US, obstacle: Obstacle::Held };
    assert_eq!((denied.verdict, writes, stored(&memory)), (verdict, true, 1));
    // It ends then, even if the clock goes forward again.
    assert_eq!(held(&memory, back_us + 20 * SECOND_US - 1), ["a"]);
    assert!(call(&memory, &acquire(one, "b", 20_000), back_us + 20 * SECOND_US)
        .unwrap()
        .0
        .allowed());
}

#[test]
fn atmost_says_how_many_leases_run() {
    let memory = Memory::default();
    let limit = window("60s", 3);
    let request = |id, lease_ms, manner| {
        let mut request = acquire(limit, id, lease_ms);
        request.ask.manner = manner;
        if let Limit::Reserve(_, reserve) = &mut request.limit {
            reserve.count_lapsed = true;
        }
        request
    };
    for (after_us, request, running) in [
        (0, request("a", 1_000, Manner::AtMost), Some(1)),
        (0, request("b", 20_000, Manner::Whole), None),
        // The first one still holds, but its lease has ended.
        (SECOND_US, request("c", 20_000, Manner::AtMost), Some(2)),
        (SECOND_US, request("d", 20_000, Manner::AtMost), Some(2)),
        (
            SECOND_US,
            Request {
                ask: request("d", 1, Manner::AtMost).ask,
                ..Request::new(Limit::Window(limit))
            },
            None,
        ),
    ] {
        let (decision, ..) = call(&memory, &request, NOW_US + after_us).unwrap();
        assert_eq!(decision.running, running, "{:?}", request.limit);
    }
}

#[test]
fn a_key_is_restored_as_it_was_saved() {
    let memory = Memory::default();
    let limit = window("60s", 3);
    let mut take = Request::new(Limit::Window(limit));
    assert!(call(&memory, &acquire(limit, "a", 90_000), NOW_US).is_ok());
    assert!(call(&memory, &take, NOW_US).is_ok() && call(&memory, &take, NOW_US + 7).is_ok());
    take.ban_ms = Some(10_000);
    take.ask.quantity = Quantity::Take(2);
    assert!(!call(&memory, &take, NOW_US + 9).unwrap().0.allowed());
    let saved = memory.save(b"k").unwrap();
    let SavedValue::Window { reserved, entries } = &saved.value else { panic!("a window") };
    assert_eq!(reserved[0], b"!1700000010000~10000");
    assert_eq!(reserved.len(), 2);
    let scores: Vec<i64> = entries.iter().map(|(score, _)| *score).collect();
    assert_eq!(scores, [-1_700_000_000_000_007, -1_700_000_000_000_000]);
    let other = Memory::default();
    other.restore(b"k", &saved).unwrap();
    assert_eq!(other.save(b"k"), Some(saved.clone()));
    let at =
        |memory: &Memory| (held(memory, NOW_US), memory.look(b"k", &take, NOW_US + 9).unwrap());
    assert_eq!(at(&other), at(&memory));
    // What the module does not write is refused, and the key stays.
    for (reserved, entries) in [
        (vec![b"x".to_vec()], vec![]),
        (vec![], vec![(-1, b"x".to_vec())]),
        (vec![], vec![(1, entries[0].1.clone())]),
    ] {
        let value = SavedValue::Window { reserved, entries };
        let foreign = Saved { value, expires_at_ms: u64::MAX };
        assert_eq!(other.restore(b"k", &foreign), Err(Refusal::Foreign));
    }
    let foreign = Saved { value: SavedValue::Bucket(b"x".to_vec()), expires_at_ms: u64::MAX };
    assert_eq!(other.restore(b"k", &foreign), Err(Refusal::Foreign));
    assert_eq!(other.save(b"k"), Some(saved));
}

#[test]
fn a_key_lives_in_its_last_millisecond_and_is_forgotten_afterwards() {
    let rate = Rate::new(0, 1, 1_000).unwrap();
    let (bucket, count) = (Request::new(Limit::Rate(rate)), window("1s", 9));
    for request in [bucket, Request::new(Limit::Window(count))] {
        let memory = Memory::default();
        assert!(memory.is_empty());
        memory.decide(b"k", &request, NOW_US, || unreachable!()).unwrap();
        assert!(memory.len() == 1 && !memory.is_empty());
        let last_ms = memory.expires_at_ms(b"k", NOW_US).unwrap();
        assert_eq!(last_ms, NOW_US / 1_000 + 1_900);
        assert_eq!(memory.expires_at_ms(b"none", NOW_US), None);
        let end_us = (last_ms + 1) * 1_000;
        assert_eq!(memory.expires_at_ms(b"k", end_us - 1), Some(last_ms));
        assert_eq!(memory.expires_at_ms(b"k", end_us), None);
        // Another kind of limit may have the key from then on.
        if matches!(request.limit, Limit::Window(_)) {
            assert_eq!(memory.look(b"k", &bucket, end_us - 1), Err(Refusal::NotBucket));
            assert!(memory.look(b"k", &bucket, end_us).is_ok());
        }
        // Calls on another key drop it, once in as many calls as there are keys.
        for len in [2, 2, 1] {
            memory.decide(b"other", &bucket, end_us, || unreachable!()).unwrap();
            assert_eq!(memory.len(), len, "{request:?}");
        }
        assert_eq!(memory.expires_at_ms(b"k", NOW_US), None);
    }
}

#[test]
fn a_released_quantity_is_there_for_others() {
    let (memory, limit) = (Memory::default(), window("-", 1));
    let reserve =
        |id, now_us| call(&memory, &acquire(limit, id, 20_000), now_us).unwrap().0.allowed();
    let [a, b] = [b"a", b"b"].map(|id| Id::from(&id[..]));
    assert!(reserve("a", NOW_US));
    assert_eq!(memory.release(b"k", &b, NOW_US), Ok(false));
    assert!(!reserve("b", NOW_US + 1));
    assert_eq!(memory.release(b"k", &a, NOW_US + 1), Ok(true));
    // Nothing is left.
    assert!(memory.is_empty());
    assert_eq!(memory.release(b"k", &a, NOW_US + 1), Ok(false));
    assert!(reserve("b", NOW_US + 1));
    // By now another client may hold the same id, with another lease.
    let end_us = NOW_US + 1 + 20 * SECOND_US;
    for (id, end_us, released) in
        [(&b, end_us - 1, false), (&a, end_us, false), (&b, end_us, true), (&b, end_us, false)]
    {
        let release = Settling::ReleaseLease { lease_end_us: end_us };
        assert_eq!(memory.settle(b"k", id, release, NOW_US + 2), Ok(released));
    }
    assert!(memory.is_empty());
}

#[test]
fn a_key_lives_as_long_as_what_it_holds() {
    let reserve = |period, id| acquire(window(period, 2), id, 20_000);
    let count = Request::new(Limit::Window(window("60s", 2)));
    for (request, look, lives_us) in [
        (reserve("-", "x"), reserve("-", "y"), 20_000_000),
        (reserve("60s", "x"), reserve("60s", "y"), 20_000_000),
        (count, count, 60_000_000),
    ] {
        let memory = Memory::default();
        assert!(call(&memory, &request, NOW_US).is_ok());
        let looked = memory.look(b"k", &look, NOW_US + 1).unwrap();
        assert_eq!(looked.reset_after_us, lives_us - 1);
        assert!(memory.expires_at_ms(b"k", NOW_US + lives_us - 1).is_some());
        // At most one second and as long as the key was in use.
        assert_eq!(memory.expires_at_ms(b"k", NOW_US + lives_us + 1_001_000), None);
    }
}

#[test]
fn a_ttl_runs_ahead_by_as_long_as_the_key_was_in_use() {
    let (memory, request) = (Memory::default(), Request::new(Limit::Window(window("60s", 9))));
    for (at_s, lives_s) in [(0, 60), (20, 80 + 20), (50, 110 + 50), (75, 160), (300, 360)] {
        let now_us = NOW_US + at_s * SECOND_US;
        assert!(call(&memory, &request, now_us).unwrap().0.allowed());
        let last_ms = memory.expires_at_ms(b"k", now_us).unwrap();
        assert_eq!(last_ms, NOW_US / 1_000 + lives_s * 1_000 + 900, "{at_s}");
    }
}

#[test]
fn a_renewed_lease_runs_for_its_own_length_or_the_new_one() {
    let id = Id::from(&b"x"[..]);
    for (count_lapsed, holds_on_us) in [(false, 0), (true, 60_000_000)] {
        let memory = Memory::default();
        let mut request = acquire(window("60s", 2), "x", 20_000);
        if let Limit::Reserve(_, reserve) = &mut request.limit {
            reserve.count_lapsed = count_lapsed;
        }
        assert!(call(&memory, &request, NOW_US).is_ok());
        for (after_us, lease_ms, left_us) in
            [(10, None, 20_000_000), (20, Some(5_000), 5_000_000), (30, None, 5_000_000)]
        {
            let now_us = NOW_US + after_us;
            assert!(memory.renew(b"k", &id, lease_ms, now_us).unwrap());
            let held = memory.held(b"k", now_us).unwrap();
            assert_eq!(held.iter().map(|one| one.left_us).collect::<Vec<_>>(), [left_us]);
            let gone_us = now_us + left_us + holds_on_us;
            let held = |us| memory.held(b"k", us).unwrap().len();
            assert_eq!((held(gone_us - 1), held(gone_us)), (1, 0), "{count_lapsed}");
        }
    }
}

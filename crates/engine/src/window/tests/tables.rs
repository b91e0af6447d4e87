//! Single promises, most of them as a table.

use super::*;

#[test]
fn a_folded_entry_leaves_when_its_newest_event_does() {
    let rule = rule("1s/10");
    let mut world = WindowWorld::new();
    for (at_us, quantity, remaining, retry_after_us, reset_after_us) in [
        (0, 1, 2, None, 1_000_000),
        (99_999, 1, 1, None, 1_000_000),
        // A new entry: a bucket has passed since the first event of the last.
        (100_000, 1, 0, None, 1_000_000),
        (1_000_000, 1, 0, Some(99_999), 100_000),
        (1_099_999, 2, 0, None, 1_000_000),
    ] {
        world.now_us = START_US + at_us;
        let decision = world.call(&rule, 3, &ask(quantity), ModelCommand::Count).decision;
        let found =
            (decision.remaining, decision.verdict.retry_after_us(), decision.reset_after_us);
        assert_eq!(found, (remaining, retry_after_us, reset_after_us), "at {at_us}");
    }
}

/// Events in 65,536 buckets took 21 ms to merge in one call.
#[test]
fn many_events_from_the_future_are_merged_by_several_calls() {
    let rule = rule("1s/1000");
    let mut world = WindowWorld { max_healed: 3, ..WindowWorld::new() };
    let call = |world: &mut WindowWorld, quantity: i64, kind: ModelCommand| {
        let done = world.call(&rule, 12, &ask(quantity), kind);
        (done.decision.verdict.allowed(), done.counted)
    };
    for part in 0..10 {
        world.now_us = START_US + 500_000 + part * 1_000;
        assert_eq!(call(&mut world, 1, ModelCommand::Count), (true, part));
    }
    // All of them count as happening now. Three become one, the oldest first.
    world.now_us = START_US + 100;
    assert_eq!(call(&mut world, 3, ModelCommand::Count), (false, 10));
    let later = |at: i64| (500_000 + at * 1_000, 1, 0);
    let stay = |from: i64| (from..10).map(later).collect::<Vec<_>>();
    assert_eq!(world.entries(), [vec![(100, 3, 0)], stay(3)].concat());
    // What is admitted meanwhile joins the newest, and counts for too long rather than too short.
    assert_eq!(call(&mut world, 1, ModelCommand::Count), (true, 10));
    let last = (509_000, 2, 0);
    assert_eq!(world.entries(), [vec![(100, 6, 0)], stay(6)[..3].to_vec(), vec![last]].concat());
    // So does a denied call that counts, and a given back one takes from the oldest.
    world.pass(1_000);
    assert_eq!(call(&mut world, 2, ModelCommand::CountDenied), (false, 11));
    let last = (509_000, 4, 0);
    assert_eq!(world.entries(), [(100, 6, 0), (1_100, 3, 0), last]);
    assert_eq!(call(&mut world, -7, ModelCommand::Count), (true, 13));
    assert_eq!(world.entries(), [(1_100, 6, 0)]);
    // If nothing stays in the future, the wait in the reply is long enough.
    assert_eq!(call(&mut world, 7, ModelCommand::Count), (false, 6));
    world.pass(1_000_000);
    assert_eq!(call(&mut world, 7, ModelCommand::Count), (true, 0));
}

#[test]
fn events_merged_into_an_earlier_entry_begin_with_it_and_are_as_admitted() {
    let rule = rule("1s/1000");
    let mut world = WindowWorld::new();
    for (at_us, limit) in [(0, 5), (300, 5), (500_000, 1), (400, 1)] {
        world.now_us = START_US + at_us;
        let kind = if at_us == 500_000 { ModelCommand::CountDenied } else { ModelCommand::Count };
        world.call(&rule, limit, &ask(1), kind);
    }
    assert_eq!(world.entries(), [(400, 3, 400)]);
    assert!(world.zset.entries().all(|one| !one.denied));
}

/// Denied events are counted more coarsely, and an admitted one must not be.
#[test]
fn an_admitted_event_that_joins_a_denied_one_from_the_future_makes_it_an_admitted_one() {
    for (kind, stays_denied) in [(ModelCommand::Count, false), (ModelCommand::CountDenied, true)] {
        let rule = rule("1s/1000");
        let mut world = WindowWorld { max_healed: 3, ..WindowWorld::new() };
        let limit = |part| if part < 9 { 9 } else { 1 };
        for part in 0..10 {
            world.now_us = START_US + 500_000 + part * 1_000;
            world.call(&rule, limit(part), &ask(1), ModelCommand::CountDenied);
        }
        world.now_us = START_US + 100;
        let limit = if stays_denied { 1 } else { 20 };
        let done = world.call(&rule, limit, &ask(1), kind);
        assert_eq!(done.decision.verdict.allowed(), !stays_denied);
        let newest = world.zset.entries().max_by_key(|one| one.newest_us).unwrap();
        assert_eq!((newest.weight, newest.denied), (2, stays_denied));
    }
}

#[test]
fn admitted_events_from_the_future_between_denied_ones_stay_admitted() {
    let rule = rule("4096ms");
    let mut world = WindowWorld::new();
    for (step_us, limit) in [(0, 1), (5_000, 1), (5_000, 9), (5_000, 1), (-11_000, 1), (900, 2)] {
        world.pass(step_us);
        world.call(&rule, limit, &ask(1), ModelCommand::CountDenied);
    }
    // The three from the future became one at 4,000, an admitted one among them: it leaves on time, while the
    // denied call at 4,900 has an entry of its own.
    assert_eq!(world.entries(), [(0, 1, 0), (4_000, 4, 0), (4_900, 1, 0)]);
}

#[test]
fn a_caller_who_hammers_stays_out_and_memory_stays_flat() {
    let rule = rule("41ms");
    let mut world = WindowWorld::new();
    for _ in 0..3 {
        assert!(world
            .call(&rule, 3, &ask(1), ModelCommand::CountDenied)
            .decision
            .verdict
            .allowed());
    }
    for _ in 0..9_000 {
        world.now_us += 7;
        let done = plain_call(&mut world, &rule, 3, &ask(1), ModelCommand::CountDenied);
        assert!(!done.decision.verdict.allowed());
        assert!(world.zset.len() <= 4_098 + MAX_DEAD, "{} entries", world.zset.len());
    }
    // A call that can never be allowed does not count.
    let before = world.entries();
    let beyond = world.call(&rule, 3, &ask(4), ModelCommand::CountDenied);
    assert_eq!(beyond.decision.verdict, Verdict::Never);
    assert_eq!(world.entries(), before);
}

/// A call without the checks that look at every entry.
fn plain_call(
    world: &mut WindowWorld,
    rule: &Ruled,
    limit: u64,
    ask: &Ask,
    kind: ModelCommand,
) -> ModelReply {
    let rule_now = rule.at(world.now_us).unwrap();
    let call = plain(rule_now, limit, *ask, kind);
    call.make(&mut world.zset, &SortedHolds::default()).unwrap()
}

#[test]
fn a_clock_that_swings_makes_no_more_entries() {
    for (text, on_us, back_us, most) in [
        ("10ms/10", 1_001, -999, 11),
        ("10ms/10", 11, -9, 11),
        // 4 ms, and a denied call's entry spans 10 us.
        ("41ms", 11, -9, 402),
        ("1s@UTC", 11, -9, 1),
    ] {
        let rule = rule(text);
        let mut world = WindowWorld::new();
        for _ in 0..2_000 {
            for step_us in [on_us, back_us] {
                world.pass(step_us);
                plain_call(&mut world, &rule, 1, &ask(1), ModelCommand::CountDenied);
            }
        }
        let entries = world.live_entries(&rule);
        assert!(entries <= most, "{text} {on_us}: {entries}");
    }
}

#[test]
fn one_who_only_has_to_queue_waits_a_millisecond() {
    let rule = rule("1s");
    let rule_now = rule.at(START_US).unwrap();
    for (leases, kind, limited) in [
        (0, ModelCommand::Count, 1),
        (1, ModelCommand::Count, 1),
        (0, ModelCommand::Hold(9), 2),
        (1, ModelCommand::Hold(9), 2),
    ] {
        let mut world = WindowWorld::new();
        world.call(&rule, 5, &ask(1), ModelCommand::Count);
        let lease = Hold { gone_us: START_US + 9_000_000, quantity: 1 };
        let held: SortedHolds = (0..leases).map(|_| lease).collect();
        let before = world.zset.clone();
        let call = |ask: Ask, barred| {
            let max_entries = MAX_ENTRIES;
            let call = ModelCall { max_entries, barred, ..plain(rule_now, 5, ask, kind) };
            call.make(&mut world.zset.clone(), &held).unwrap()
        };
        let done = call(ask(1), true);
        let verdict = done.decision.verdict;
        assert_eq!(
            (verdict.limited(), verdict.retry_after_us()),
            (limited, Some(1_000)),
            "{leases}"
        );
        assert_eq!(done.edit, None);
        // It would be allowed without the line, and what does not stand in line is.
        assert!(call(ask(1), false).decision.verdict.allowed());
        for free in [ask(0), ask(-1), force(9)] {
            assert!(call(free, true).decision.verdict.allowed(), "{free:?}");
        }
        assert_eq!(call(ask(6), true).decision.verdict, Verdict::Never);
        assert_eq!(before.len(), 1);
    }
}

// ---- FORCE ----

#[test]
fn events_forced_beyond_the_limit_need_few_entries_and_leave_little_late() {
    let rule = rule("41ms");
    let mut world = WindowWorld::new();
    let mut most = 0;
    for call in 0..20_000u64 {
        world.now_us += 4 + call % 3;
        let done = plain_call(&mut world, &rule, 5, &force(1), ModelCommand::Count);
        assert_eq!(
            (done.decision.verdict, done.decision.remaining.min(1)),
            (Verdict::taking(1), u64::from(call < 4))
        );
        world.list.push(Counted { at_us: world.now_us, weight: 1, coarse: false });
        most = most.max(world.zset.len());
    }
    // Five, one for each 4096th of the period, and a few dead ones.
    assert!((1_000..=5 + 4_097 + MAX_DEAD).contains(&most), "{most} entries");
    // Those that are counted late are late by less than a 4096th of the period.
    let counted = |us: u64| -> u64 {
        world.list.iter().filter(|one| one.at_us + 41_000 > us).map(|one| one.weight).sum()
    };
    let window_count = WindowCount::read(&mut world.zset, rule.at(world.now_us).unwrap()).unwrap();
    assert!(window_count.counted() >= counted(world.now_us));
    assert!(window_count.counted() <= counted(world.now_us - 11), "{}", window_count.counted());
    // With fewer entries allowed it folds more coarsely.
    let mut world = WindowWorld::new();
    for _ in 0..2_000 {
        world.now_us += 30;
        let rule_now = rule.at(world.now_us).unwrap();
        let (ask, kind) = (force(3), ModelCommand::Count);
        let call = ModelCall { max_entries: 16, ..plain(rule_now, 5, ask, kind) };
        call.make(&mut world.zset, &SortedHolds::default()).unwrap();
    }
    assert!(world.zset.len() <= 5 + 17 + MAX_DEAD, "{} entries", world.zset.len());
}

#[test]
fn events_forced_within_the_limit_leave_on_time() {
    let rule = rule("4096ms");
    let mut world = WindowWorld::new();
    // A 4096th is a millisecond: the first five are within the limit, the rest beyond.
    for _ in 0..8 {
        world.call(&rule, 5, &force(1), ModelCommand::Count);
        world.pass(300);
    }
    let entries =
        [(0, 1, 0), (300, 1, 0), (600, 1, 0), (900, 1, 0), (1_200, 1, 0), (2_100, 3, 600)];
    assert_eq!(world.entries(), entries);
    // A denied call folds only with events beyond the limit.
    world.call(&rule, 5, &ask(1), ModelCommand::CountDenied);
    assert_eq!(world.entries()[5], (2_400, 4, 900));
    world.pass(100);
    world.call(&rule, 5, &ask(1), ModelCommand::CountDenied);
    assert_eq!(world.entries()[6], (2_500, 1, 0));
}

#[test]
fn no_force_passes_the_largest_sum() {
    let rule = rule("1s");
    let mut world = WindowWorld::new();
    let rule_now = rule.at(START_US).unwrap();
    let mut forced = |quantity: u64| {
        let ask = Ask { manner: Manner::Force, ..Ask::whole(Quantity::Take(quantity)) };
        let (limit, kind) = (5, ModelCommand::Count);
        let call = plain(rule_now, limit, ask, kind);
        call.make(&mut world.zset, &SortedHolds::default()).map(|done| done.window_count.counted())
    };
    assert_eq!(forced(MAX_SUM - 1), Ok(MAX_SUM - 1));
    assert_eq!(forced(2), Err(Refusal::SumTooLarge));
    assert_eq!(forced(1), Ok(MAX_SUM));
    assert_eq!(forced(1), Err(Refusal::SumTooLarge));
}

// ---- Giving back ----

/// Takes each of the quantities a hundredth of a second after the other, denied ones too, then gives back.
fn given_back(text: &str, limit: u64, quantities: &[i64], amount: i64) -> WindowWorld {
    let rule = rule(text);
    let mut world = WindowWorld::new();
    for quantity in quantities {
        world.call(&rule, limit, &ask(*quantity), ModelCommand::CountDenied);
        world.pass(10_000);
    }
    let before =
        WindowCount::read(&mut world.zset, rule.at(world.now_us).unwrap()).unwrap().counted();
    let done = world.call(&rule, limit, &ask(-amount), ModelCommand::Count);
    assert_eq!(done.decision.verdict, Verdict::taking(0));
    assert_eq!(done.window_count.counted(), before.saturating_sub(amount.unsigned_abs()));
    world
}

#[test]
fn giving_back_from_a_folded_entry_leaves_its_time() {
    // A bucket of 100 ms holds all three.
    for (amount, left) in
        [(1, vec![(20_000, 5, 20_000)]), (5, vec![(20_000, 1, 20_000)]), (6, vec![])]
    {
        assert_eq!(given_back("1s/10", 9, &[2, 3, 1], amount).entries(), left, "{amount}");
    }
    // Three folded, and three more next to them.
    for (amount, left) in [
        (2, vec![(10_000, 1, 10_000), (30_000, 3, 10_000)]),
        (3, vec![(30_000, 3, 10_000)]),
        (4, vec![(30_000, 2, 10_000)]),
    ] {
        assert_eq!(given_back("1s/50", 9, &[2, 1, 1, 2], amount).entries(), left, "{amount}");
    }
}

#[test]
fn giving_back_counts_events_from_the_future_as_now() {
    for (amount, left) in [
        (1, vec![(0, 1, 0), (500_000, 4, 0)]),
        (2, vec![(500_000, 4, 0)]),
        (3, vec![(500_000, 3, 0)]),
        (6, vec![]),
        (9, vec![]),
    ] {
        let rule = rule("1s");
        let mut world = WindowWorld::new();
        world.call(&rule, 9, &ask(2), ModelCommand::Count);
        for (at_us, quantity) in [(700_000, 3), (700_001, 1)] {
            world.now_us = START_US + at_us;
            world.call(&rule, 9, &ask(quantity), ModelCommand::Count);
        }
        world.now_us = START_US + 500_000;
        let done = world.call(&rule, 9, &ask(-amount), ModelCommand::Count);
        assert_eq!(
            (done.counted, done.decision.remaining),
            (6, 9 - (6 - amount.min(6)).unsigned_abs())
        );
        assert_eq!(world.entries(), left, "{amount}");
    }
}

#[test]
fn giving_back_where_nothing_counts_writes_nothing() {
    let rule = rule("1s");
    let mut world = WindowWorld::new();
    assert_eq!(world.call(&rule, 3, &ask(-1), ModelCommand::Count).edit, None);
    world.call(&rule, 3, &ask(3), ModelCommand::Count);
    world.pass(1_000_000);
    let done = world.call(&rule, 3, &ask(-1), ModelCommand::Count);
    assert_eq!((done.edit, done.decision.remaining), (None, 3));
    assert_eq!(world.entries(), [(0, 3, 0)]);
    // Looking at it, as RL.WINDOW_RO does, gives nothing back either.
    world.call(&rule, 3, &ask(2), ModelCommand::Count);
    let done = world.call(&rule, 3, &ask(-1), ModelCommand::Look);
    assert_eq!((done.edit, done.decision.remaining), (None, 1));
}

/// What was uncounted lies between entries that count again: sums must not pass what a key may hold.
#[test]
fn uncounted_events_do_not_count_again_with_the_dead() {
    let (short, long) = (rule("1s"), rule("10s"));
    let given_back = || {
        let mut world = WindowWorld::new();
        world.call(&short, 9, &ask(1), ModelCommand::Count);
        world.pass(1_000_000);
        world.call(&short, 9, &ask(5), ModelCommand::Count);
        world.pass(1);
        world.call(&short, 9, &ask(1), ModelCommand::Count);
        world.call(&short, 9, &ask(-5), ModelCommand::Count);
        assert_eq!(world.entries(), [(1_000_001, 1, 0)]);
        world
    };
    // The event of the beginning would be in these windows, and with it the gap of five behind it.
    let done = given_back().call(&long, 9, &ask(0), ModelCommand::Count);
    assert_eq!(done.decision.remaining, 8);
    let mut world = given_back();
    world.now_us = START_US + 500_000;
    assert_eq!(world.call(&short, 9, &ask(0), ModelCommand::Count).decision.remaining, 8);
}

/// If too many are dead for one call, they stay, and the uncounted events may count again.
#[test]
fn giving_back_drops_the_dead_only_where_they_are_few() {
    for (dead, left) in [(3, 1), (64, 1), (65, 66)] {
        let rule = rule("1s");
        let mut world = WindowWorld::new();
        for _ in 0..dead {
            world.call(&rule, 99, &ask(1), ModelCommand::Count);
            world.pass(1);
        }
        world.pass(1_000_000);
        // Not by a call, as grants drop the dead as well.
        let newest = world.zset.newest(None).unwrap().unwrap();
        let now_us = world.now_us;
        for more in 1..=2 {
            let total = newest.total + more;
            let newest_us = now_us + more;
            world.zset.add(&Entry { newest_us, span_us: 0, total, weight: 1, denied: false });
        }
        world.pass(2);
        world.call(&rule, 99, &ask(-1), ModelCommand::Count);
        assert_eq!(world.entries().len(), left, "{dead}");
    }
}

// ---- Sums near the largest ----

/// COUNTDENIED at a limit and a quantity of 2^63 - 1, next to a reservation: the sum saturates, and the wait is still right.
#[test]
fn denied_calls_at_the_largest_sum_are_told_a_wait_that_suffices() {
    let rule = rule("1s");
    let mut world = WindowWorld::new();
    assert!(world
        .call(&rule, MAX_SUM, &ask(1), ModelCommand::Hold(1_500))
        .decision
        .verdict
        .allowed());
    for step_us in [0, 0, 1, 400_000, 300_000, 299_999] {
        world.pass(step_us);
        // `call` tries again after the wait, and a microsecond before.
        let done = world.call(&rule, MAX_SUM, &ask(i64::MAX), ModelCommand::CountDenied);
        assert!(done.denial_counted);
        assert_eq!(done.window_count.counted(), MAX_SUM);
    }
}

// ---- Trimming ----

#[test]
fn dead_entries_stay_few_in_busy_use() {
    // The limit, how often a call comes, and what it asks for.
    for (text, limit, every_us, quantity) in [
        ("10ms", 5, 300, 1),
        ("10ms", 40, 230, 1),
        ("10ms", 500, 19, 1),
        ("10ms", 1_000_000, 301, 4_000),
        ("10ms", 1_000, 97, 7),
        ("10ms/10", 1_000, 97, 1),
        ("10ms/64", 100_000, 50, 30),
    ] {
        let rule = rule(text);
        let mut world = WindowWorld::new();
        let mut most = 0;
        for _ in 0..6_000 {
            world.pass(every_us);
            let rule_now = rule.at(world.now_us).unwrap();
            let live = world.live_entries(&rule);
            let before = WindowCount::read(&mut world.zset, rule_now).unwrap().counted();
            let done = plain_call(&mut world, &rule, limit, &ask(quantity), ModelCommand::Count);
            if done.decision.verdict.allowed() {
                most = most.max(world.dead_entries(&rule));
            }
            // Nothing that counts is dropped.
            assert!(world.live_entries(&rule) >= live);
            assert_eq!(done.counted, before);
            let after = WindowCount::read(&mut world.zset, rule_now).unwrap().counted();
            assert_eq!(after, before + done.decision.verdict.taken());
        }
        assert!(most <= MAX_DEAD, "{text} {limit}: {most} dead entries");
    }
}

#[test]
fn many_dead_entries_go_a_bounded_number_at_a_time() {
    let rule = rule("10ms");
    let mut world = WindowWorld::new();
    for _ in 0..1_000 {
        world.pass(1);
        plain_call(&mut world, &rule, 1_000, &ask(1), ModelCommand::Count);
    }
    assert_eq!(world.zset.len(), 1_000);
    world.pass(20_000);
    let mut left = 1_000;
    for call in 1..=20 {
        world.pass(1);
        let done = plain_call(&mut world, &rule, 1_000, &ask(1), ModelCommand::Count);
        let dropped = done.edit.unwrap().dropped;
        assert!(dropped <= dead::MAX_DEAD_DROPPED);
        left -= dropped;
        assert_eq!(world.zset.len(), left + call);
    }
    assert!(left <= MAX_DEAD, "{left} dead entries");
    // A call that takes nothing drops nothing.
    world.pass(20_000);
    for ask in [ask(0), ask(-1), ask(1_001)] {
        assert_eq!(plain_call(&mut world, &rule, 1_000, &ask, ModelCommand::Count).edit, None);
    }
}

/// An entry that began before now and ended after it lost its beginning, and took another bucket's events in.
#[test]
fn an_entry_that_a_clock_goes_back_into_keeps_its_beginning() {
    let rule = rule("10ms/10");
    let mut world = WindowWorld::new();
    for (at_us, entries) in [
        (0, vec![(0, 1, 0)]),
        (900, vec![(900, 2, 900)]),
        (100, vec![(100, 3, 100)]),
        (999, vec![(999, 4, 999)]),
        (1_000, vec![(999, 4, 999), (1_000, 1, 0)]),
    ] {
        world.now_us = START_US + at_us;
        world.call(&rule, 20, &ask(1), ModelCommand::Count);
        assert_eq!(world.entries(), entries, "{at_us}");
    }
}

/// Looking for dead entries takes time, so a call does it only if there may be enough of them.
#[test]
fn a_call_looks_for_dead_entries_where_there_may_be_enough() {
    let rule = rule("10ms");
    for (dead, live, weight, max_entries, before, dropped) in [
        (3, 9, 1, 99, 0u64, 0),
        (4, 9, 1, 99, 0, 4),
        // Weights hide how many are dead.
        (5, 9, 2, 99, 0, 0),
        (7, 9, 2, 99, 0, 7),
        // A set that the server keeps in one piece, and a larger one.
        (7, 121, 1, 999, 0, 7),
        (7, 122, 1, 999, 0, 0),
        (8, 121, 1, 999, 0, 8),
        // More entries than the rule needs.
        (1, 3, 1, 3, 0, 0),
        (1, 4, 1, 3, 0, 1),
        // The dead and the living sum up to all that may be counted, and to one more.
        (1, 1, MAX_SUM - 1, 99, 0, 0),
        (1, 1, MAX_SUM, 99, 0, 1),
        // The same where the total says more than the sum, as what came before was dropped.
        (1, 1, MAX_SUM - 1, 99, 1, 0),
        (1, 1, MAX_SUM, 99, 1, 1),
    ] {
        let (mut zset, mut total) = (Zset::default(), before);
        for (at, weight) in (0..dead + live).map(|at| (at, if at < dead { 1 } else { weight })) {
            total = total.wrapping_add(weight);
            let newest_us = START_US + at + if at < dead { 0 } else { 20_000 };
            zset.add(&Entry { newest_us, span_us: 0, total, weight, denied: false });
        }
        let rule_now = rule.at(START_US + 20_000 + dead + live).unwrap();
        let count = WindowCount::read(&mut zset, rule_now.with_max_entries(max_entries)).unwrap();
        let plan = count.plan_change(&mut zset, EventChange::DropDead, usize::MAX).unwrap();
        assert_eq!(plan.edit.dropped, dropped, "{dead} {live} {weight}");
    }
}

#[test]
fn an_impossible_sum_of_events_is_foreign() {
    let rule = rule("10ms");
    for (oldest_total, newest_total, is_foreign) in [
        // Totals do not go back.
        (9, 5, true),
        (0, MAX_SUM + 2, true),
        // Up to 2^64 a sum is at most MAX_SUM.
        (2, MAX_SUM + 1, false),
        (1, MAX_SUM + 1, true),
        // Then totals begin again at 0, and a sum is at most MAX_SUM more than the total.
        (MAX_SUM + 3, 0, false),
        (MAX_SUM + 2, 0, true),
        (MAX_SUM + 3, MAX_SUM, false),
        (MAX_SUM + 2, MAX_SUM, true),
    ] {
        let mut zset = Zset::default();
        for (newest_us, total) in [(START_US - 1, oldest_total), (START_US, newest_total)] {
            zset.add(&Entry { newest_us, span_us: 0, total, weight: 1, denied: false });
        }
        let count = WindowCount::read(&mut zset, rule.at(START_US).unwrap());
        assert_eq!(count.is_err(), is_foreign, "{oldest_total} {newest_total}");
    }
}

#[test]
fn giving_back_older_events_does_not_rewrite_the_rest() {
    let rule = rule("1s");
    let mut world = WindowWorld::new();
    let oldest_us = world.now_us;
    for _ in 0..2 {
        world.call(&rule, 5, &ask(1), ModelCommand::Count);
        world.pass(300);
    }
    let edit = world.call(&rule, 5, &ask(-1), ModelCommand::Count).edit.unwrap();
    let given_back = Some(TimeRange { from_us: oldest_us, to_us: oldest_us });
    assert_eq!(edit, EventEdit { given_back, in_ranges: 1, ..EventEdit::default() });
}

// ---- FROM first ----

/// A key of `entries` of this weight, each this many microseconds after the start.
fn entries_of_another_rule(weight: u64, times_us: impl Iterator<Item = i64>) -> WindowWorld {
    let mut world = WindowWorld::new();
    for (newest_us, total) in times_us.zip((weight..).step_by(weight as usize)) {
        let newest_us = START_US.checked_add_signed(newest_us).unwrap();
        world.zset.add(&Entry { newest_us, span_us: 0, total, weight, denied: false });
    }
    world
}

/// The entry that counts stays in the future until the others there are gone. Each call removes a bounded number of them.
#[test]
fn many_entries_from_the_future_go_in_parts_and_only_the_newest_counts() {
    let rule = rule("10s^first");
    for (quantity, remaining) in [(1, 2), (-1, 4), (-9, 5)] {
        let mut world = entries_of_another_rule(2, 1_000..1_300);
        world.max_healed = 64;
        let call = |world: &mut WindowWorld, quantity| {
            let kind = ModelCommand::Count;
            let call = ModelCall {
                max_healed: 64,
                ..plain(rule.at(world.now_us).unwrap(), 5, ask(quantity), kind)
            };
            call.make(&mut world.zset, &SortedHolds::default()).unwrap().decision
        };
        let decision = call(&mut world, quantity);
        assert_eq!(decision.remaining, remaining, "{quantity}");
        assert_eq!(
            decision.reset_after_us,
            if remaining < 5 { 10_000_000 } else { 0 },
            "{quantity}"
        );
        if remaining == 5 {
            // If the entry is given back whole, all others from the future go with it.
            assert_eq!(world.zset.len(), 0);
            continue;
        }
        world.pass(500);
        for left in [172, 108, 44, 1] {
            assert_eq!(call(&mut world, 9).verdict, Verdict::Never);
            let denied = call(&mut world, 5);
            assert_eq!((denied.remaining, denied.reset_after_us), (remaining, 9_999_500), "{left}");
            assert_eq!(world.zset.len(), left);
        }
    }
}

#[test]
fn only_the_newest_entry_counts_on_a_key_from_another_rule() {
    let rule = rule("10s^first");
    let mut world = entries_of_another_rule(1, (-9_000_000..-6_000_000).step_by(10_000));
    let decision = plain_call(&mut world, &rule, 5, &ask(1), ModelCommand::Count).decision;
    // Its first event came 6.01 s ago.
    assert_eq!((decision.remaining, decision.reset_after_us), (3, 3_990_000));
    // The others go, a bounded number with each call.
    for most in [236, 172, 108, 44, 1] {
        assert!(world.zset.len() <= most, "{most}");
        plain_call(&mut world, &rule, 5, &force(1), ModelCommand::Count);
    }
    assert_eq!(world.zset.len(), 1);
}

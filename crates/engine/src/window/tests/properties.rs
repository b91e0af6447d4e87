//! Random calls: the engine decides as a plain list of all events does.

use super::*;
use crate::period::Period;
use crate::properties::cases;
use proptest::prelude::*;
use proptest::sample::select;

/// A move of the clock between two calls, in eighths of a period and in microseconds.
#[derive(Clone, Copy, Debug)]
enum ClockStep {
    On(i64, i64),
    Back(i64, i64),
}

impl WindowWorld {
    /// Notes that the newest event, which was denied or forced, may share an entry with those before it that lie beyond
    /// `limit`, where `counted` were counted without it.
    fn count_beyond_coarsely(&mut self, counted: u64, limit: u64) {
        let mut before = counted;
        for event in self.list.iter_mut().rev().skip(1) {
            before = match before.checked_sub(event.weight) {
                Some(before) if before >= limit => before,
                _ => return,
            };
            event.coarse = true;
        }
    }

    fn step(&mut self, step: ClockStep, period_us: u64) {
        let by = |parts: i64, us: i64| parts * (period_us / 8) as i64 + us;
        let us = match step {
            ClockStep::On(parts, us) => by(parts, us),
            ClockStep::Back(parts, us) => -by(parts, us),
        };
        self.now_us = self.now_us.checked_add_signed(us).unwrap().max(START_US / 2);
    }

    /// Moves the clock and settles as `act` says, then makes its call, or gives back `refund`, on both.
    fn act(
        &mut self,
        rule: &Ruled,
        obvious: Obvious,
        period_us: u64,
        act: &WindowAct,
        refund: u64,
    ) {
        self.step(act.step, period_us);
        if let Some((which, weight)) = act.settle {
            self.settle(rule, obvious, which, weight);
        }
        let (ask, kind) = act.or_refund(refund);
        self.agree(rule, obvious, act.limit, &ask, kind);
    }
}

fn steps() -> impl Strategy<Value = ClockStep> {
    prop_oneof![
        4 => Just(ClockStep::On(0, 0)),
        8 => (0i64..40).prop_map(|us| ClockStep::On(0, us)),
        8 => (0i64..3, -2i64..40).prop_map(|(parts, us)| ClockStep::On(parts, us.max(-2 * parts))),
        2 => (-2i64..3).prop_map(|us| ClockStep::On(8, us)),
        1 => Just(ClockStep::On(50, 1)),
        2 => (0i64..40).prop_map(|us| ClockStep::Back(0, us)),
        1 => (0i64..12, 0i64..40).prop_map(|(parts, us)| ClockStep::Back(parts, us)),
    ]
}

fn forward() -> impl Strategy<Value = ClockStep> {
    steps().prop_map(|step| match step {
        ClockStep::Back(parts, us) => ClockStep::On(parts, us),
        on => on,
    })
}

fn quantities() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1u64), 4 => 2u64..7, 1 => Just(0u64), 1 => 7u64..30]
}

fn kinds() -> impl Strategy<Value = ModelCommand> {
    prop_oneof![6 => Just(ModelCommand::Count), 2 => (1u64..60).prop_map(ModelCommand::Hold), 1 => Just(ModelCommand::Look)]
}

/// The same commands, and COUNTDENIED in half of the calls.
fn kinds_with_denied() -> impl Strategy<Value = ModelCommand> {
    prop_oneof![Just(ModelCommand::CountDenied), kinds()]
}

/// The manner in which a call takes, and its LEAVE.
fn ways() -> impl Strategy<Value = (Manner, u64)> {
    prop_oneof![
        16 => Just((Manner::Whole, 0)),
        2 => Just((Manner::AtMost, 0)),
        2 => (0u64..9).prop_map(|leave| (Manner::Whole, leave)),
        1 => (0u64..9).prop_map(|leave| (Manner::AtMost, leave)),
    ]
}

/// The same manners, and FORCE.
fn ways_with_force() -> impl Strategy<Value = (Manner, u64)> {
    prop_oneof![4 => ways(), 1 => Just((Manner::Force, 0))]
}

/// A call, and the changes before it.
#[derive(Clone, Debug)]
struct WindowAct {
    step: ClockStep,
    limit: u64,
    quantity: u64,
    way: (Manner, u64),
    kind: ModelCommand,
    settle: Option<(usize, u64)>,
}

impl WindowAct {
    /// A reservation does not go beyond the limit.
    fn ask(&self) -> Ask {
        let quantity = Quantity::from_signed(i64::try_from(self.quantity).unwrap());
        let (manner, leave) = match (self.way, self.kind) {
            ((Manner::Force, _), ModelCommand::Hold(_)) => (Manner::Whole, 0),
            (way, _) => way,
        };
        Ask { leave, manner, ..Ask::whole(quantity) }
    }
}

fn acts_with(
    steps: impl Strategy<Value = ClockStep>,
    limits: impl Strategy<Value = u64>,
    kinds: impl Strategy<Value = ModelCommand>,
    ways: impl Strategy<Value = (Manner, u64)>,
) -> impl Strategy<Value = Vec<WindowAct>> {
    let settle = proptest::option::weighted(0.1, (0usize..8, 0u64..9));
    let act = (steps, limits, quantities(), ways, kinds, settle).prop_map(
        |(step, limit, quantity, way, kind, settle)| WindowAct {
            step,
            limit,
            quantity,
            way,
            kind,
            settle,
        },
    );
    proptest::collection::vec(act, 1..60)
}

fn acts(
    steps: impl Strategy<Value = ClockStep>,
    limits: impl Strategy<Value = u64>,
    kinds: impl Strategy<Value = ModelCommand>,
) -> impl Strategy<Value = Vec<WindowAct>> {
    acts_with(steps, limits, kinds, ways())
}

/// Sixty quantities to give back; 0 stands for a call that takes.
fn refunds() -> impl Strategy<Value = Vec<u64>> {
    let refund = prop_oneof![3 => Just(0u64), 2 => 1u64..5, 1 => 5u64..40];
    proptest::collection::vec(refund, 60)
}

/// Calls while the clock steps back, or while events are given back. After both, events that were given back may count
/// again.
fn acts_and_refunds(
    kinds: BoxedStrategy<ModelCommand>,
) -> impl Strategy<Value = (Vec<WindowAct>, Vec<u64>)> {
    prop_oneof![
        (acts_with(steps(), 0u64..12, kinds.clone(), ways_with_force()), Just(vec![0; 60])),
        (acts_with(forward(), 0u64..12, kinds, ways_with_force()), refunds()),
    ]
}

/// The maximum number of entries from the future that a call merges. Mostly it is too small to merge all.
fn heals() -> impl Strategy<Value = usize> {
    prop_oneof![Just(usize::MAX), 0usize..4]
}

fn totals() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1u64), Just(u64::MAX - 5), Just(u64::MAX), Just(1 << 63)]
}

impl WindowAct {
    /// Returns this call, or one that gives back `refund` if that is not 0.
    fn or_refund(&self, refund: u64) -> (Ask, ModelCommand) {
        match (refund, self.kind) {
            (0, kind) => (self.ask(), kind),
            (refund, ModelCommand::Look) => {
                (ask(-i64::try_from(refund).unwrap()), ModelCommand::Look)
            }
            (refund, _) => (ask(-i64::try_from(refund).unwrap()), ModelCommand::Count),
        }
    }
}

/// The entries of a set, and those of them that were read.
struct ReadEntries<'z> {
    zset: &'z mut Zset,
    read: Vec<Entry>,
}

impl Entries for ReadEntries<'_> {
    type Error = Refusal;

    fn len(&self) -> usize {
        self.zset.len()
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Refusal> {
        let newest = self.zset.newest(until_us)?;
        self.read.extend(newest);
        Ok(newest)
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Refusal> {
        let oldest = self.zset.oldest(after_us)?;
        self.read.extend(oldest);
        Ok(oldest)
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Refusal> {
        self.zset.scan(after_us, until_us, |entry| {
            self.read.push(entry);
            visit(entry)
        })
    }
}

fn changes() -> impl Strategy<Value = EventChange> {
    prop_oneof![
        Just(EventChange::Heal),
        Just(EventChange::DropDead),
        (1u64..4).prop_map(event),
        (1u64..30).prop_map(|quantity| EventChange::Uncount { quantity }),
    ]
}

proptest! {
    #![proptest_config(cases(1_000))]

    /// An entry that is removed without being read may be foreign. The entries come from any rule, some from the future.
    #[test]
    fn an_edit_removes_only_what_was_read_and_leaves_what_it_counts(
        text in select(&["10s", "10s/3", "10s@UTC", "10s^first"][..]),
        times_ms in proptest::collection::btree_set(0u64..20_000, 1..20),
        change in changes(),
        max_healed in heals(),
    ) {
        let (rule, now_us) = (rule(text), START_US + 12_000_000);
        let mut zset = Zset::default();
        for (time_ms, total) in times_ms.into_iter().zip((2..).step_by(2)) {
            let newest_us = START_US + time_ms * 1_000;
            zset.add(&Entry { newest_us, span_us: 0, total, weight: 2, denied: false });
        }
        let before: Vec<Entry> = zset.entries().collect();
        let mut entries = ReadEntries { zset: &mut zset, read: Vec::new() };
        let count = WindowCount::read(&mut entries, rule.at(now_us).unwrap()).unwrap();
        let EventPlan { edit, after: count } =
            count.plan_change(&mut entries, change, max_healed).unwrap();
        let read = entries.read;
        zset.apply(&edit);
        let after: Vec<Entry> = zset.entries().collect();
        for entry in before.iter().filter(|entry| !after.contains(entry)) {
            prop_assert!(read.contains(entry), "{entry:?} was not read: {edit:?}");
        }
        let again = WindowCount::read(&mut zset, rule.at(now_us).unwrap()).unwrap();
        prop_assert_eq!(again.counted(), count.counted(), "{:?}\n{:?}", edit, after);
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Calls with weights, LEAVE and leases decide exactly, while limits change and the clock steps in both directions. They
    /// may have different periods.
    #[test]
    fn the_exact_kind_decides_as_the_list_does(
        (period_ms, periods_ms) in prop_oneof![
            select(&[1u64, 7, 100][..]).prop_map(|period_ms| (period_ms, vec![period_ms; 60])),
            (Just(3u64), proptest::collection::vec(select(&[1u64, 2, 3, 20][..]), 60)),
        ],
        acts in acts(steps(), 0u64..12, kinds()),
        total in totals(),
        max_healed in heals(),
    ) {
        let mut world = WindowWorld { max_healed, ..WindowWorld::with_total(total) };
        for (act, each_ms) in acts.into_iter().zip(periods_ms) {
            let (rule, obvious) = exact(each_ms);
            world.act(&rule, obvious, period_ms * 1_000, &act, 0);
        }
    }

    /// With COUNTDENIED a denied call may count for 1/4096 of the period too long, and an admitted one never does. A key has
    /// as few entries when the clock steps and limits change.
    #[test]
    fn denied_calls_that_count_leave_admitted_ones_alone(
        period_ms in select(&[1u64, 10, 40, 400][..]),
        buckets in select(&[0u64, 1, 2, 3, 10, 64, 4_096, 10_000, 65_536][..]),
        acts in prop_oneof![
            acts_with(steps(), 0u64..12, kinds_with_denied(), ways_with_force()),
            acts_with(steps(), 0u64..60, kinds(), ways_with_force()),
        ],
        total in totals(),
        max_healed in heals(),
    ) {
        let text = if buckets == 0 { format!("{period_ms}ms") } else { format!("{period_ms}ms/{buckets}") };
        let fold = if buckets == 0 { u64::MAX } else { buckets };
        let mut world = WindowWorld { max_healed, ..WindowWorld::with_total(total) };
        for act in acts {
            world.step(act.step, period_ms * 1_000);
            let bounds = (period_ms * 1_000, fold, fold.min(4_096));
            bounded(&mut world, &rule(&text), &act, bounds);
        }
    }
}

proptest! {
    #![proptest_config(cases(200))]

    /// In periods this short, FORCE and COUNTDENIED delay what they count by less than a microsecond, so the list is exact.
    #[test]
    fn short_periods_decide_as_the_list_does_with_all_options(
        period_ms in 1u64..=4,
        (acts, refunds) in acts_and_refunds(kinds_with_denied().boxed()),
        total in totals(),
        max_healed in heals(),
    ) {
        let (rule, obvious) = exact(period_ms);
        let mut world = WindowWorld { max_healed, ..WindowWorld::with_total(total) };
        for (act, refund) in acts.into_iter().zip(refunds) {
            world.act(&rule, obvious, period_ms * 1_000, &act, refund);
        }
    }

    #[test]
    fn months_decide_as_the_list_does(
        months in select(&[1u32, 3, 12][..]),
        acts in acts(steps(), 0u64..12, kinds()),
        max_healed in heals(),
    ) {
        let (rule, obvious) = (rule(&format!("{months}mo")), Obvious::Months(months));
        let mut world = WindowWorld { max_healed, ..WindowWorld::new() };
        for act in acts {
            world.step(act.step, u64::from(months) * 30 * 86_400_000_000);
            world.agree(&rule, obvious, act.limit, &act.ask(), act.kind);
        }
    }

    #[test]
    fn calendar_windows_decide_as_the_list_does(
        (text, period_s, from_s) in select(&[
            ("1s@UTC", 1u64, 0u64),
            ("15min@+05:45", 900, 0),
            ("1h@+05:45", 3_600, 900),
            ("1d@Asia/Shanghai", 86_400, 57_600),
            ("1w@UTC", 604_800, 345_600),
        ][..]),
        (acts, refunds) in acts_and_refunds(kinds().boxed()),
        total in totals(),
        max_healed in heals(),
    ) {
        let obvious = Obvious::Fixed(period_s * 1_000_000, from_s * 1_000_000);
        let rule = rule(text);
        let mut world = WindowWorld { max_healed, ..WindowWorld::with_total(total) };
        for (act, refund) in acts.into_iter().zip(refunds) {
            world.act(&rule, obvious, period_s * 1_000_000, &act, refund);
            prop_assert!(world.live_entries(&rule) <= 1, "{:?}", world.zset);
        }
    }

    /// Denied calls count in the window too. Giving back does not move its start.
    #[test]
    fn windows_from_the_first_event_on_decide_as_the_list_does(
        (period, period_us) in select(&[("1ms", 1_000u64), ("2s", 2_000_000), ("1mo", 30 * 86_400_000_000)][..]),
        acts in acts_with(
            steps(), 0u64..12, kinds_with_denied(), ways_with_force()),
        refunds in refunds(),
        total in totals(),
    ) {
        let rule = rule(&format!("{period}^first"));
        let obvious = Obvious::First(Period::parse(period.as_bytes()).unwrap().length());
        let mut world = WindowWorld::with_total(total);
        for (act, refund) in acts.into_iter().zip(refunds) {
            world.act(&rule, obvious, period_us, &act, refund);
            prop_assert!(world.zset.len() <= 1, "{:?}", world.zset);
        }
    }

    /// If the clock is set back or the period gets longer, uncounted events may count again. The count is never too small.
    #[test]
    fn giving_back_forgets_nothing_else_when_the_clock_steps_and_the_period_changes(
        acts in acts_with(steps(), 0u64..12, kinds(), ways_with_force()),
        refunds in refunds(),
        periods in proptest::collection::vec(select(&["1ms", "2ms", "3ms"][..]), 60),
        total in totals(),
        max_healed in heals(),
    ) {
        let mut world = WindowWorld { max_healed, ..WindowWorld::with_total(total) };
        for ((act, refund), text) in acts.into_iter().zip(refunds).zip(periods) {
            world.step(act.step, 2_000);
            let rule = rule(text);
            let period_us = rule.at(world.now_us).unwrap().sliding_period_us();
            let (ask, kind) = act.or_refund(refund);
            let obvious = Obvious::Sliding(period_us);
            let expected = world.expect(obvious, act.limit, &ask, kind);
            let done = world.call(&rule, act.limit, &ask, kind);
            prop_assert!(done.counted >= expected.counted, "{done:?}\n{expected:?}\n{:?}", world.list);
            if let Quantity::GiveBack(amount) = ask.quantity {
                if kind != ModelCommand::Look {
                    prop_assert_eq!(done.edit.is_some(), done.counted > 0);
                    prop_assert!(done.window_count.counted() <= done.counted - amount.min(done.counted));
                }
            }
            world.note(obvious, &ask, kind, &done);
        }
    }

    /// Whichever counted event a refund was meant for, no period keeps more than the limit.
    #[test]
    fn whatever_is_given_back_no_more_than_the_limit_is_kept(
        (text, period_us, calendar) in select(&[
            ("2ms", 2_000u64, false), ("2ms/3", 2_000, false), ("2ms/40", 2_000, false), ("1s@UTC", 1_000_000, true),
        ][..]),
        limit in 1u64..12,
        acts in acts(forward(), Just(0u64), prop_oneof![2 => Just(ModelCommand::Count), 1 => Just(ModelCommand::CountDenied)]),
        refunds in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1u64..4), 60),
    ) {
        let rule = rule(text);
        let mut world = WindowWorld::new();
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for (act, (gives, which, most)) in acts.into_iter().zip(refunds) {
            world.step(act.step, period_us);
            let now_us = world.now_us;
            let done = if gives {
                let window_count = WindowCount::read(&mut world.zset, rule.at(now_us).unwrap()).unwrap();
                let since_us = window_count.oldest.map_or(u64::MAX, |oldest| oldest.first_us());
                let mut counting: Vec<&mut (u64, u64)> =
                    kept.iter_mut().filter(|(at_us, weight)| *at_us >= since_us && *weight > 0).collect();
                if counting.is_empty() {
                    continue;
                }
                let meant = which.index(counting.len());
                let amount = most.min(counting[meant].1);
                counting[meant].1 -= amount;
                world.call(&rule, limit, &ask(-i64::try_from(amount).unwrap()), ModelCommand::Count)
            } else {
                world.call(&rule, limit, &act.ask(), act.kind)
            };
            kept.push((now_us, done.decision.verdict.taken()));
            let window = |us: u64| if calendar { us / period_us } else { 0 };
            let recent = kept.iter().filter(|(at_us, _)| {
                (calendar || at_us + period_us > now_us) && window(*at_us) == window(now_us)
            });
            let sum: u64 = recent.map(|(_, weight)| *weight).sum();
            prop_assert!(sum <= limit, "{sum} were kept: {kept:?}");
        }
    }

    /// Sums up to 2^63 - 1 are exact, although the running total wraps at 2^64.
    #[test]
    fn sums_near_the_largest_number_decide_as_the_list_does(
        acts in acts(forward(), select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, 3][..]), Just(ModelCommand::Count)),
        weights in proptest::collection::vec(
            select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, MAX_SUM / 3, 1 << 61, 3, 1][..]), 60),
        refunds in proptest::collection::vec(proptest::bool::weighted(0.2), 60),
        total in totals(),
    ) {
        let (rule, obvious) = exact(1);
        let mut world = WindowWorld::with_total(total);
        for ((mut act, weight), refund) in acts.into_iter().zip(weights).zip(refunds) {
            act.quantity = weight;
            world.step(act.step, 1_000);
            let (ask, kind) = act.or_refund(if refund { weight } else { 0 });
            world.agree(&rule, obvious, act.limit, &ask, kind);
        }
    }

    /// Whatever the clock, the period and the sums do, the module accepts all entries that it wrote.
    #[test]
    fn sums_near_the_largest_number_contradict_nothing_when_the_clock_steps(
        acts in acts(steps(), select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, 3][..]), prop_oneof![Just(ModelCommand::Count), Just(ModelCommand::CountDenied)]),
        weights in proptest::collection::vec(
            select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, MAX_SUM / 3, 1 << 61, 3, 1][..]), 60),
        forces in proptest::collection::vec(proptest::bool::weighted(0.2), 60),
        rules in proptest::collection::vec(select(&["1ms", "1ms/1", "10ms/1", "1s", "1s@UTC", "1h@UTC"][..]), 60),
        total in totals(),
        max_healed in heals(),
    ) {
        let mut world = WindowWorld { max_healed, ..WindowWorld::with_total(total) };
        for (((act, weight), forces), text) in acts.into_iter().zip(weights).zip(forces).zip(rules) {
            world.step(act.step, 1_000);
            let rule = rule(text);
            let manner = if forces { Manner::Force } else { Manner::Whole };
            let ask = Ask { manner, ..Ask::whole(Quantity::Take(weight)) };
            let rule_now = rule.at(world.now_us).unwrap();
            let call = ModelCall { max_healed, ..plain(rule_now, act.limit, ask, act.kind) };
            match call.make(&mut world.zset, &SortedHolds::default()) {
                Ok(_) => {}
                Err(refused) => prop_assert_eq!((refused, manner), (Refusal::SumTooLarge, Manner::Force)),
            }
        }
    }

    /// Whatever is dead and in the way of counting, all entries sum up to less than 2^64, so that nothing is missing if they
    /// count again.
    #[test]
    fn huge_sums_are_exact_while_thousands_of_entries_are_dead(
        dead in 0u64..4_000,
        calls in proptest::collection::vec(
            (select(&[0i64, 3_000, 20_000][..]),
             select(&[MAX_SUM, MAX_SUM - 2_000, 1 << 62, 2_000, 1_000, 1][..]),
             proptest::bool::weighted(0.2)),
            1..12,
        ),
        total in prop_oneof![totals(), 0..=u64::MAX],
    ) {
        let rule = rule("10ms/65536");
        let mut world = WindowWorld::with_total(total);
        world.add_dead(dead);
        for (us, weight, gives) in calls {
            world.pass(us);
            let quantity = if gives { Quantity::GiveBack(weight) } else { Quantity::Take(weight) };
            let rule_now = rule.at(world.now_us).unwrap();
            let call = plain(rule_now, MAX_SUM, Ask::whole(quantity), ModelCommand::Count);
            prop_assert!(call.make(&mut world.zset, &SortedHolds::default()).is_ok());
            let newest = world.zset.newest(None).unwrap();
            let max_sum = newest.map_or(0, |newest| newest.max_sum());
            prop_assert!(world.whole_sum() <= u128::from(max_sum));
        }
    }

    /// With BUCKETS n no window has more than the limit, a denial lasts at most one bucket too long, and a key has at most
    /// n + 1 entries.
    #[test]
    fn buckets_fold_and_never_admit_more_than_the_limit(
        buckets in select(&[1u64, 2, 3, 10, 64][..]),
        limit in 1u64..60,
        acts in acts(forward(), Just(0u64), Just(ModelCommand::Count)),
    ) {
        let period_us = 10_000;
        let rule = rule(&format!("10ms/{buckets}"));
        let mut world = WindowWorld::new();
        for mut act in acts {
            act.limit = limit;
            world.step(act.step, period_us);
            bounded(&mut world, &rule, &act, (period_us, buckets, buckets));
            let now_us = world.now_us;
            let recent = world.list.iter().filter(|one| one.at_us + period_us > now_us);
            prop_assert!(recent.map(|one| one.weight).sum::<u64>() <= limit);
        }
    }

    /// Calls under any rules share one key. No event that counts is forgotten, and every returned wait is correct.
    #[test]
    fn rules_may_change_from_call_to_call(
        acts in acts_with(
            steps(), 0u64..30, kinds_with_denied(), ways_with_force()),
        rules in proptest::collection::vec(select(&[
            ("2ms", 2_000), ("1s", 1_000_000), ("10ms/3", 10_000), ("1s/4096", 1_000_000),
            ("1s@UTC", 0), ("1min@UTC", 0), ("1d@Asia/Shanghai", 0), ("1mo", 0), ("-", 0),
        ][..]), 60),
        max_healed in heals(),
    ) {
        let mut world = WindowWorld { max_healed, ..WindowWorld::new() };
        for (act, (text, period_us)) in acts.into_iter().zip(rules) {
            world.step(act.step, 800_000);
            let rule = rule(text);
            if let Some((which, weight)) = act.settle {
                if text != "-" {
                    world.settle(&rule, Obvious::Sliding(period_us), which, weight);
                }
            }
            let kind = if text == "-" { ModelCommand::Hold(9) } else { act.kind };
            let act = WindowAct { kind, ..act };
            let now_us = world.now_us;
            let live = |world: &WindowWorld| -> u64 {
                let live = world.list.iter().filter(|one| one.at_us.min(now_us) + period_us > now_us);
                live.map(|one| one.weight).sum()
            };
            let before = live(&world);
            let done = world.call(&rule, act.limit, &act.ask(), kind);
            prop_assert!(done.counted >= before, "{} of {before}", done.counted);
            world.note(Obvious::Sliding(period_us), &act.ask(), kind, &done);
            if period_us > 0 && kind != ModelCommand::Look && !matches!(kind, ModelCommand::Hold(_)) {
                let live = live(&world);
                let window_count = WindowCount::read(&mut world.zset, rule.at(now_us).unwrap()).unwrap();
                prop_assert!(window_count.counted() >= live, "{} of {live}", window_count.counted());
            }
        }
    }

    /// Whatever the sorted set contains, reading and counting do not panic, and write only what can be read again.
    #[test]
    fn no_entries_make_it_panic(
        entries in proptest::collection::vec(
            ((START_US - 3_000)..(START_US + 3_000), any::<u64>(), weights(), 0u64..2_000, any::<bool>()),
            0..6,
        ),
        small in any::<bool>(),
        text in select(&["1ms", "2ms/3", "100y", "1mo", "1s@UTC", "1y@Asia/Shanghai", "-"][..]),
        (limit, quantity, manner, leave, barred) in (weights(), weights(), 0usize..3, weights(), any::<bool>()),
        gives in any::<bool>(),
        leases in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..4),
        denied in any::<bool>(),
        max_healed in heals(),
    ) {
        let mut zset = Zset::default();
        for (newest_us, total, weight, span_us, denied) in entries {
            let total = if small { total % 16 } else { total };
            zset.add(&Entry { newest_us, span_us, total, weight, denied });
        }
        let manner = [Manner::Whole, Manner::AtMost, Manner::Force][manner];
        let quantity = if gives { Quantity::GiveBack(quantity) } else { Quantity::Take(quantity) };
        let ask = Ask { leave, manner, ..Ask::whole(quantity) };
        let leases: SortedHolds =
            leases.into_iter().map(|(end_us, quantity)| Hold { gone_us: end_us, quantity }).collect();
        for now_us in [0, 1, START_US - 5_000, START_US, START_US + 1_000, LAST_US] {
            let Some(rule_now) = rule(text).at(now_us) else { continue };
            for kind in [ModelCommand::Count, ModelCommand::CountDenied, ModelCommand::Look, ModelCommand::Hold(7)] {
                let mut zset = zset.clone();
                let call = ModelCall { barred, max_healed, ..plain(rule_now, limit, ask, kind) };
                let Ok(_) = call.make(&mut zset, &leases) else { continue };
                if text == "-" || kind == ModelCommand::Look {
                    continue;
                }
                // What was written can be read again, unless there is nonsense between the entries that count.
                let Ok(window_count) = WindowCount::read(&mut zset, rule_now) else { continue };
                let event = EventChange::Record { weight: 3, denied, limit };
                if let Ok(plan) = window_count.plan_change(&mut zset, event, max_healed) {
                    zset.apply(&plan.edit);
                }
            }
        }
    }
}

fn weights() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..9, 1u64..=MAX_SUM, Just(MAX_SUM), Just(MAX_SUM - 1)]
}

/// A call whose counted sum lies between that of the list and that of a list whose events leave late: by a
/// bucket the admitted, by a bucket or a 4096th of the period those that are counted coarsely.
fn bounded(
    world: &mut WindowWorld,
    rule: &Ruled,
    act: &WindowAct,
    (period_us, buckets, coarse_buckets): (u64, u64, u64),
) {
    let now_us = world.now_us;
    let sum = |late_us: &dyn Fn(bool) -> u64| -> u64 {
        let live =
            |one: &&Counted| one.at_us.min(now_us) + period_us + late_us(one.coarse) > now_us;
        world.list.iter().filter(live).map(|one| one.weight).sum()
    };
    let least = sum(&|_| 0);
    let most = sum(&|coarse| {
        // Less than a period / n, in whole microseconds.
        let buckets = if coarse { coarse_buckets } else { buckets };
        period_us.div_ceil(buckets) - 1
    });
    let done = world.call(rule, act.limit, &act.ask(), act.kind);
    world.note(Obvious::Sliding(period_us), &act.ask(), act.kind, &done);
    let is_beyond = done.decision.verdict.taken() > 0 && done.counted >= act.limit;
    if done.denial_counted || is_beyond {
        world.count_beyond_coarsely(done.counted, act.limit);
    }
    let counted = done.counted;
    assert!(counted >= least, "{counted} of {least} counted\n{:?}\n{:?}", world.zset, world.list);
    assert!(
        counted <= most,
        "{counted} counted, at most {most}\n{:?}\n{:?}",
        world.zset,
        world.list
    );
    let live = world.live_entries(rule);
    if buckets <= 65_536 {
        assert!(
            live as u64 <= buckets + 1,
            "{live} entries in {buckets} buckets\n{:?}",
            world.zset
        );
    }
}

//! The engine beside an obvious one: a list of events and a list of leases, looked at from end to end.

use super::super::decision::Limited;
use super::super::period::Period;
use super::super::properties::cases;
use super::super::rule::Rule;
use super::*;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, BTreeSet};

/// 21 November 2026, in the middle of nothing.
const START_US: u64 = 1_795_223_799_544_558;

/// A sorted set: members are unique, in the order of their scores.
#[derive(Clone, Debug, Default)]
struct Zset {
    scores: BTreeMap<Vec<u8>, u64>,
    order: BTreeSet<(u64, Vec<u8>)>,
}

impl Zset {
    fn add(&mut self, event: &Event) {
        let member = event.member().as_bytes().to_vec();
        self.remove(&member);
        self.scores.insert(member.clone(), event.newest_us);
        self.order.insert((event.newest_us, member));
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_vec()))
    }

    /// As the commands do it: what is put may be one of those from the future, and then only moves.
    fn apply(&mut self, edit: &Edit, now_us: u64) {
        if let Some(put) = edit.put {
            self.add(&put);
        }
        if let Some(old) = edit.remove {
            assert!(self.remove(old.member().as_bytes()), "{old:?} was not there");
        }
        if edit.remove_future {
            assert!(edit.put.is_some());
            for (_, member) in self.order.split_off(&(now_us + 1, Vec::new())) {
                self.scores.remove(&member);
            }
        }
    }

    fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.order.iter().map(|(score, member)| Event::decode(*score as f64, member).unwrap())
    }
}

impl Events for Zset {
    type Error = &'static str;

    fn first_after(&mut self, us: Option<u64>) -> Result<Option<Event>, &'static str> {
        let from = us.map_or(0, |us| us.saturating_add(1));
        let Some((score, member)) = self.order.range((from, Vec::new())..).next() else {
            return Ok(None);
        };
        Event::decode(*score as f64, member).map(Some).ok_or("foreign")
    }

    fn last_until(&mut self, us: Option<u64>) -> Result<Option<Event>, &'static str> {
        let to = us.map_or(u64::MAX, |us| us.saturating_add(1));
        let Some((score, member)) = self.order.range(..(to, Vec::new())).next_back() else {
            return Ok(None);
        };
        Event::decode(*score as f64, member).map(Some).ok_or("foreign")
    }

    fn contradiction() -> &'static str {
        "contradiction"
    }
}

/// When an event leaves, as anybody would say it.
#[derive(Clone, Copy, Debug)]
enum Obvious {
    Sliding(u64),
    Months(u32),
    /// Windows of so many microseconds, the first of which began at the second number.
    Fixed(u64, u64),
}

impl Obvious {
    fn leave_us(self, event_us: u64) -> u64 {
        match self {
            Obvious::Sliding(period_us) => event_us + period_us,
            Obvious::Months(months) => {
                super::super::period::Length::Months(months).leave_us(event_us)
            }
            Obvious::Fixed(period_us, from_us) => {
                event_us + period_us - (event_us - from_us) % period_us
            }
        }
    }
}

fn rule(text: &str) -> Rule {
    Rule::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
}

fn exact(period_ms: u64) -> (Rule, Obvious) {
    (rule(&format!("{period_ms}ms")), Obvious::Sliding(period_ms * 1_000))
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    at_us: u64,
    weight: u64,
    denied: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    end_us: u64,
    lease_us: u64,
    quantity: u64,
}

impl Lease {
    fn seen_from(self, now_us: u64) -> Lease {
        Lease { end_us: self.end_us.min(now_us + self.lease_us), ..self }
    }
}

#[derive(Clone, Debug, Default)]
struct World {
    now_us: u64,
    zset: Zset,
    list: Vec<Counted>,
    leases: Vec<Lease>,
}

/// What one call does when it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// RL.WINDOW
    Count,
    /// RL.WINDOW COUNTDENIED
    CountDenied,
    /// RL.ACQUIRE with a lease of so many microseconds
    Hold(u64),
    /// _RO
    Look,
}

/// What the list says of one call.
#[derive(Debug)]
struct Expected {
    counted: u64,
    granted: u64,
    limited: Limited,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
}

impl World {
    fn new() -> World {
        World { now_us: START_US, ..World::default() }
    }

    /// One whose totals are about to run around.
    fn with_total(total: u64) -> World {
        let mut world = World::new();
        world.zset.add(&Event { newest_us: 7, span_us: 0, total, weight: 1, denied: false });
        world
    }

    fn held(&self, now_us: u64) -> Held {
        let mut held = Held::default();
        for lease in self.leases.iter().map(|lease| lease.seen_from(now_us)) {
            if lease.end_us > now_us {
                held.add(lease.end_us, lease.quantity);
            }
        }
        held
    }

    /// A call, done as the commands do it.
    fn call(&mut self, rule: &Rule, ask: &Ask, kind: Kind) -> (u64, Decision) {
        let now_us = self.now_us;
        let moment = rule.at(now_us).unwrap();
        let mut tally = Tally::read(&mut self.zset, moment).unwrap();
        let counted = tally.counted();
        let mut held = self.held(now_us);
        let mut judgement = ask.judge(tally.counted(), held.total());
        let mut write = false;
        match judgement {
            Judgement::Granted(0) | Judgement::Never => {}
            _ if kind == Kind::Look => {}
            Judgement::Granted(quantity) => {
                if let Kind::Hold(lease_us) = kind {
                    let end_us = now_us + lease_us;
                    held.add(end_us, quantity);
                    self.leases.push(Lease { end_us, lease_us, quantity });
                } else {
                    tally.record(quantity, false);
                }
                write = true;
            }
            Judgement::Wanting { .. } => {
                write = tally.has_future();
                if kind == Kind::CountDenied && ask.quantity <= ask.limit {
                    tally.record(ask.quantity, true);
                    judgement = ask.judge(tally.counted(), held.total());
                    write = true;
                }
            }
        }
        let mut freed_us = None;
        if let Judgement::Wanting { need, .. } = judgement {
            freed_us = freed_at_us(&mut self.zset, &tally, &mut held, need).unwrap();
        }
        if write {
            let edit = tally.edit();
            for event in [edit.put, edit.remove].into_iter().flatten() {
                let back = Event::decode(event.newest_us as f64, event.member().as_bytes());
                assert_eq!(back, Some(event), "is written and cannot be read");
            }
            self.zset.apply(&edit, now_us);
            for lease in &mut self.leases {
                *lease = lease.seen_from(now_us);
            }
            let scores: BTreeSet<u64> = self.zset.scores.values().copied().take(100).collect();
            assert_eq!(scores.len(), self.zset.scores.len().min(100), "two entries at one time");
            let again = Tally::read(&mut self.zset, moment).unwrap();
            assert_eq!(again.counted(), tally.counted(), "counted anew");
            assert_eq!(again.empty_at_us(), tally.empty_at_us());
            assert!(!again.has_future());
            if let Judgement::Wanting { need, .. } = judgement {
                let later = freed_at_us(&mut self.zset, &again, &mut held, need).unwrap();
                assert_eq!(later, freed_us, "after the edit was carried out");
            }
        }
        let used = tally.counted().saturating_add(held.total());
        let empty_us = tally.empty_at_us().max(held.empty_at_us());
        let decision = decision(ask, judgement, now_us, used, freed_us, empty_us);
        if write {
            self.waits_are_right(rule, ask, &decision);
        }
        (counted, decision)
    }

    /// Waiting as told suffices and no less does, and the key is as good as new when it is said to be.
    fn waits_are_right(&mut self, rule: &Rule, ask: &Ask, decision: &Decision) {
        let at = |world: &mut World, us: u64| {
            let tally = Tally::read(&mut world.zset, rule.at(us).unwrap()).unwrap();
            let held = world.held(us).total();
            (ask.judge(tally.counted(), held), tally.counted() == 0 && held == 0)
        };
        if let Some(wait_us) = decision.retry_after_us {
            let then_us = self.now_us + wait_us;
            assert!(matches!(at(self, then_us).0, Judgement::Granted(_)), "{wait_us} is too short");
            let before = at(self, then_us - 1).0;
            assert!(matches!(before, Judgement::Wanting { .. }), "{wait_us} is too long");
        }
        let new_us = self.now_us + decision.reset_after_us;
        assert!(at(self, new_us).1, "not as new when it is said to be");
        if decision.reset_after_us > 0 {
            assert!(!at(self, new_us - 1).1, "as good as new sooner than it is said to be");
        }
    }

    /// The same call on the lists. `decided` is what the engine made of it where that may differ.
    fn expect(&mut self, obvious: Obvious, ask: &Ask, kind: Kind) -> Expected {
        let now_us = self.now_us;
        let mut list = self.list.clone();
        for event in &mut list {
            event.at_us = event.at_us.min(now_us);
        }
        let leases: Vec<Lease> = self.leases.iter().map(|lease| lease.seen_from(now_us)).collect();
        let counted_at = |list: &[Counted], us: u64| -> u64 {
            list.iter().filter(|one| obvious.leave_us(one.at_us) > us).map(|one| one.weight).sum()
        };
        let held_at = |leases: &[Lease], us: u64| -> u64 {
            leases.iter().filter(|one| one.end_us > us).map(|one| one.quantity).sum()
        };
        let counted = counted_at(&list, now_us);
        let held = held_at(&leases, now_us);
        let free = ask.limit.saturating_sub(counted + held);
        let least = if ask.atmost { 1 } else { ask.quantity };
        let mut expected = Expected {
            counted,
            granted: 0,
            limited: Limited::Allowed,
            remaining: free,
            retry_after_us: None,
            reset_after_us: 0,
        };
        let mut leases_after = leases.clone();
        let mut list_after = list.clone();
        if ask.quantity == 0 {
        } else if least <= free {
            expected.granted = ask.quantity.min(free);
            if kind != Kind::Look {
                expected.remaining -= expected.granted;
                if let Kind::Hold(lease_us) = kind {
                    let quantity = expected.granted;
                    leases_after.push(Lease { end_us: now_us + lease_us, lease_us, quantity });
                } else {
                    let weight = expected.granted;
                    list_after.push(Counted { at_us: now_us, weight, denied: false });
                }
            }
        } else {
            expected.limited =
                if counted + least <= ask.limit { Limited::Held } else { Limited::Denied };
            let leaves = list.iter().map(|one| obvious.leave_us(one.at_us));
            let mut ends: Vec<u64> = leaves.chain(leases.iter().map(|one| one.end_us)).collect();
            ends.sort_unstable();
            let fits =
                |us: &u64| counted_at(&list, *us) + held_at(&leases, *us) + least <= ask.limit;
            let then_us = ends.into_iter().filter(|us| *us > now_us).find(fits);
            expected.retry_after_us = then_us.map(|us| us - now_us);
            if least > ask.limit {
                expected.limited = Limited::Denied;
                assert_eq!(expected.retry_after_us, None);
            }
        }
        let events = list_after.iter().map(|one| obvious.leave_us(one.at_us));
        let ends = events.chain(leases_after.iter().map(|one| one.end_us));
        let empty_us = ends.filter(|us| *us > now_us).max().unwrap_or(now_us);
        expected.reset_after_us = empty_us - now_us;
        expected
    }

    /// Writes into the lists what the engine decided.
    fn note(&mut self, ask: &Ask, kind: Kind, decision: &Decision) {
        let never = (if ask.atmost { 1 } else { ask.quantity }) > ask.limit;
        if kind == Kind::Look || ask.quantity == 0 || never {
            return;
        }
        for event in &mut self.list {
            event.at_us = event.at_us.min(self.now_us);
        }
        let at_us = self.now_us;
        if decision.granted > 0 && !matches!(kind, Kind::Hold(_)) {
            self.list.push(Counted { at_us, weight: decision.granted, denied: false });
        } else if !decision.allowed() && kind == Kind::CountDenied && ask.quantity <= ask.limit {
            self.list.push(Counted { at_us, weight: ask.quantity, denied: true });
        }
    }

    /// A call on both, which must agree in everything.
    fn agree(&mut self, rule: &Rule, obvious: Obvious, ask: &Ask, kind: Kind) -> Decision {
        let expected = self.expect(obvious, ask, kind);
        let (counted, decision) = self.call(rule, ask, kind);
        self.note(ask, kind, &decision);
        let what = || format!("{ask:?} {kind:?}\n{decision:?}\n{expected:?}\n{:?}", self.list);
        assert_eq!(counted, expected.counted, "counted {}", what());
        assert_eq!(decision.granted, expected.granted, "granted {}", what());
        assert_eq!(decision.limited, expected.limited, "limited {}", what());
        assert_eq!(decision.remaining, expected.remaining, "remaining {}", what());
        assert_eq!(decision.retry_after_us, expected.retry_after_us, "retry {}", what());
        assert_eq!(decision.reset_after_us, expected.reset_after_us, "reset {}", what());
        decision
    }

    /// Applies some reservation: its lease goes, and an event of this weight comes now, whatever the limit.
    fn settle(&mut self, rule: &Rule, which: usize, weight: u64) {
        let now_us = self.now_us;
        self.leases.retain(|lease| lease.seen_from(now_us).end_us > now_us);
        if self.leases.is_empty() {
            return;
        }
        self.leases.remove(which % self.leases.len());
        if weight > 0 {
            let mut tally = Tally::read(&mut self.zset, rule.at(now_us).unwrap()).unwrap();
            tally.record(weight, false);
            self.zset.apply(&tally.edit(), now_us);
            for event in &mut self.list {
                event.at_us = event.at_us.min(now_us);
            }
            self.list.push(Counted { at_us: now_us, weight, denied: false });
        }
    }

    /// Removes some of the entries that no longer count, the oldest first.
    fn trim(&mut self, rule: &Rule, most: usize) {
        let Some(left_us) = rule.at(self.now_us).unwrap().left_us() else { return };
        let dead = self.zset.order.range(..(left_us + 1, Vec::new()));
        let dead: Vec<(u64, Vec<u8>)> = dead.take(most).cloned().collect();
        for (score, member) in dead {
            self.zset.remove(&member);
            self.list.retain(|one| one.at_us > score);
        }
    }

    /// Those that count, but for those from the future that a call which changes nothing has left there.
    fn live_entries(&self, rule: &Rule) -> usize {
        let left_us = rule.at(self.now_us).unwrap().left_us();
        let live = |us: u64| us <= self.now_us && left_us.is_none_or(|left| us > left);
        self.zset.events().filter(|event| live(event.newest_us)).count()
    }

    fn step(&mut self, step: Step, period_us: u64) {
        let by = |parts: i64, us: i64| parts * (period_us / 8) as i64 + us;
        let us = match step {
            Step::On(parts, us) => by(parts, us),
            Step::Back(parts, us) => -by(parts, us),
        };
        self.now_us = self.now_us.checked_add_signed(us).unwrap().max(START_US / 2);
    }
}

/// How the clock moves between two calls: eighths of a period, and microseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    On(i64, i64),
    Back(i64, i64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::On(0, 0)),
        8 => (0i64..40).prop_map(|us| Step::On(0, us)),
        8 => (0i64..3, -2i64..40).prop_map(|(parts, us)| Step::On(parts, us.max(-2 * parts))),
        2 => (-2i64..3).prop_map(|us| Step::On(8, us)),
        1 => Just(Step::On(50, 1)),
        2 => (0i64..40).prop_map(|us| Step::Back(0, us)),
        1 => (0i64..12, 0i64..40).prop_map(|(parts, us)| Step::Back(parts, us)),
    ]
}

fn forward() -> impl Strategy<Value = Step> {
    steps().prop_map(|step| match step {
        Step::Back(parts, us) => Step::On(parts, us),
        on => on,
    })
}

fn quantities() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1u64), 4 => 2u64..7, 1 => Just(0u64), 1 => 7u64..30]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![6 => Just(Kind::Count), 2 => (1u64..60_000).prop_map(Kind::Hold), 1 => Just(Kind::Look)]
}

/// A call, and what happens before it.
#[derive(Clone, Debug)]
struct Act {
    step: Step,
    limit: u64,
    quantity: u64,
    atmost: bool,
    kind: Kind,
    settle: Option<(usize, u64)>,
    trim: usize,
}

impl Act {
    fn ask(&self) -> Ask {
        Ask { limit: self.limit, quantity: self.quantity, atmost: self.atmost, barred: false }
    }
}

fn acts(
    steps: impl Strategy<Value = Step>,
    limits: impl Strategy<Value = u64>,
    kinds: impl Strategy<Value = Kind>,
) -> impl Strategy<Value = Vec<Act>> {
    let settle = proptest::option::weighted(0.1, (0usize..8, 0u64..9));
    let act =
        (steps, limits, quantities(), proptest::bool::weighted(0.1), kinds, settle, 0usize..20)
            .prop_map(|(step, limit, quantity, atmost, kind, settle, trim)| Act {
                step,
                limit,
                quantity,
                atmost,
                kind,
                settle,
                trim: trim.saturating_sub(16),
            });
    proptest::collection::vec(act, 1..60)
}

fn totals() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1u64), Just(u64::MAX - 5), Just(u64::MAX), Just(1 << 63)]
}

proptest! {
    #![proptest_config(cases(150))]

    /// Limits raised and lowered, weights, leases, settling, trimming, and a clock that steps both ways.
    #[test]
    fn the_exact_kind_decides_as_the_list_does(
        period_ms in select(&[1u64, 7, 100][..]),
        acts in acts(steps(), 0u64..12, kinds()),
        total in totals(),
    ) {
        let (rule, obvious) = exact(period_ms);
        let mut world = World::with_total(total);
        for act in acts {
            world.step(act.step, period_ms * 1_000);
            if let Some((which, weight)) = act.settle {
                world.settle(&rule, which, weight);
            }
            world.trim(&rule, act.trim);
            world.agree(&rule, obvious, &act.ask(), act.kind);
        }
    }

    #[test]
    fn months_decide_as_the_list_does(
        months in select(&[1u32, 3, 12][..]),
        acts in acts(steps(), 0u64..12, kinds()),
    ) {
        let (rule, obvious) = (rule(&format!("{months}mo")), Obvious::Months(months));
        let mut world = World::new();
        for act in acts {
            world.step(act.step, u64::from(months) * 30 * 86_400_000_000);
            world.agree(&rule, obvious, &act.ask(), act.kind);
        }
    }

    /// Each call with a period of its own, on one log.
    #[test]
    fn another_period_counts_the_same_events(
        acts in acts(steps(), 0u64..12, kinds()),
        periods in proptest::collection::vec(select(&[1u64, 2, 3, 20][..]), 60),
    ) {
        let mut world = World::new();
        for (act, period_ms) in acts.into_iter().zip(periods) {
            let (rule, obvious) = exact(period_ms);
            world.step(act.step, 3_000);
            world.agree(&rule, obvious, &act.ask(), act.kind);
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
        acts in acts(steps(), 0u64..12, kinds()),
        total in totals(),
    ) {
        let obvious = Obvious::Fixed(period_s * 1_000_000, from_s * 1_000_000);
        let rule = rule(text);
        let mut world = World::with_total(total);
        for act in acts {
            world.step(act.step, period_s * 1_000_000);
            if let Some((which, weight)) = act.settle {
                world.settle(&rule, which, weight);
            }
            world.trim(&rule, act.trim);
            world.agree(&rule, obvious, &act.ask(), act.kind);
            prop_assert!(world.live_entries(&rule) <= 1, "{:?}", world.zset);
        }
    }

    /// Sums up to 2^63 - 1, where everything that was ever counted runs around 2^64.
    #[test]
    fn sums_near_the_largest_number_decide_as_the_list_does(
        acts in acts(forward(), select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, 3][..]), Just(Kind::Count)),
        weights in proptest::collection::vec(
            select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, MAX_SUM / 3, 1 << 61, 3, 1][..]), 60),
        total in totals(),
    ) {
        let (rule, obvious) = exact(1);
        let mut world = World::with_total(total);
        for (mut act, weight) in acts.into_iter().zip(weights) {
            act.quantity = weight;
            world.step(act.step, 1_000);
            world.agree(&rule, obvious, &act.ask(), act.kind);
            // As the commands do where totals may have run around.
            world.trim(&rule, usize::MAX);
        }
    }

    /// BUCKETS n: never more than limit in any window, too early a denial by one bucket at most, n + 1 entries.
    #[test]
    fn buckets_fold_and_never_admit_more_than_the_limit(
        buckets in select(&[1u64, 2, 3, 10, 64][..]),
        limit in 1u64..60,
        acts in acts(forward(), Just(0u64), Just(Kind::Count)),
    ) {
        let period_us = 10_000;
        let rule = rule(&format!("10ms/{buckets}"));
        let mut world = World::new();
        for mut act in acts {
            act.limit = limit;
            world.step(act.step, period_us);
            bounded(&mut world, &rule, &act.ask(), act.kind, (period_us, buckets, buckets));
            let now_us = world.now_us;
            let recent = world.list.iter().filter(|one| one.at_us + period_us > now_us);
            prop_assert!(recent.map(|one| one.weight).sum::<u64>() <= limit);
        }
    }

    #[test]
    fn buckets_stay_as_many_when_the_clock_steps_and_limits_change(
        buckets in select(&[1u64, 2, 3, 10, 64][..]),
        acts in acts(steps(), 0u64..60, kinds()),
        total in totals(),
    ) {
        let rule = rule(&format!("10ms/{buckets}"));
        let mut world = World::with_total(total);
        for act in acts {
            world.step(act.step, 10_000);
            world.trim(&rule, act.trim);
            bounded(&mut world, &rule, &act.ask(), act.kind, (10_000, buckets, buckets));
        }
    }

    /// COUNTDENIED: denied calls may be late by a 4096th of the period, admitted ones not at all.
    #[test]
    fn denied_calls_that_count_leave_admitted_ones_alone(
        period_ms in select(&[1u64, 40, 400][..]),
        buckets in select(&[0u64, 3, 4_096, 10_000, 65_536][..]),
        acts in acts(
            steps(), 0u64..12, prop_oneof![Just(Kind::Count), Just(Kind::CountDenied)]),
    ) {
        let text = if buckets == 0 { format!("{period_ms}ms") } else { format!("{period_ms}ms/{buckets}") };
        let fold = if buckets == 0 { u64::MAX } else { buckets };
        let mut world = World::new();
        for act in acts {
            world.step(act.step, period_ms * 1_000);
            let bounds = (period_ms * 1_000, fold, fold.min(4_096));
            bounded(&mut world, &rule(&text), &act.ask(), act.kind, bounds);
        }
    }

    /// Any rules on one log: nothing is forgotten, and every wait that is told is right.
    #[test]
    fn rules_may_change_from_call_to_call(
        acts in acts(steps(), 0u64..30, prop_oneof![Just(Kind::CountDenied), kinds()]),
        rules in proptest::collection::vec(select(&[
            ("2ms", 2_000), ("1s", 1_000_000), ("10ms/3", 10_000), ("1s/4096", 1_000_000),
            ("1s@UTC", 0), ("1min@UTC", 0), ("1d@Asia/Shanghai", 0), ("1mo", 0), ("-", 0),
        ][..]), 60),
    ) {
        let mut world = World::new();
        for (act, (text, period_us)) in acts.into_iter().zip(rules) {
            world.step(act.step, 800_000);
            let rule = rule(text);
            if let Some((which, weight)) = act.settle {
                if text != "-" {
                    world.settle(&rule, which, weight);
                }
            }
            let kind = if text == "-" { Kind::Hold(9) } else { act.kind };
            let live = |world: &World| -> u64 {
                let live = |one: &&Counted| one.at_us.min(world.now_us) + period_us > world.now_us;
                world.list.iter().filter(live).map(|one| one.weight).sum()
            };
            let before = live(&world);
            let (counted, decision) = world.call(&rule, &act.ask(), kind);
            world.note(&act.ask(), kind, &decision);
            prop_assert!(period_us == 0 || counted >= before, "{counted} of {before}");
            let live = live(&world);
            if period_us > 0 && kind != Kind::Look && !matches!(kind, Kind::Hold(_)) {
                let tally = Tally::read(&mut world.zset, rule.at(world.now_us).unwrap()).unwrap();
                prop_assert!(tally.counted() >= live, "{} of {live}", tally.counted());
            }
        }
    }

    /// Whatever lies in the sorted set, reading and counting neither panics nor writes what cannot be read.
    #[test]
    fn no_entries_make_it_panic(
        entries in proptest::collection::vec(
            ((START_US - 3_000)..(START_US + 3_000), any::<u64>(), weights(), 0u64..2_000, any::<bool>()),
            0..6,
        ),
        small in any::<bool>(),
        text in select(&["1ms", "2ms/3", "100y", "1mo", "1s@UTC", "1y@Asia/Shanghai", "-"][..]),
        ask in (weights(), weights(), any::<bool>(), any::<bool>()),
        leases in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..4),
        denied in any::<bool>(),
    ) {
        let mut zset = Zset::default();
        for (newest_us, total, weight, span_us, denied) in entries {
            let total = if small { total % 16 } else { total };
            zset.add(&Event { newest_us, span_us, total, weight, denied });
        }
        let (limit, quantity, atmost, barred) = ask;
        let ask = Ask { limit, quantity, atmost, barred };
        for now_us in [0, 1, START_US - 5_000, START_US, START_US + 1_000, 1 << 53, u64::MAX] {
            let Some(moment) = rule(text).at(now_us) else { continue };
            let Ok(mut tally) = Tally::read(&mut zset, moment) else { continue };
            let mut held = Held::default();
            for (end_us, quantity) in &leases {
                held.add(*end_us, *quantity);
            }
            let judgement = ask.judge(tally.counted(), held.total());
            let mut freed = None;
            if let Judgement::Wanting { need, .. } = judgement {
                freed = freed_at_us(&mut zset, &tally, &mut held, need).unwrap_or(None);
            }
            decision(&ask, judgement, now_us, tally.counted(), freed, tally.empty_at_us());
            if text != "-" {
                tally.record(quantity, denied);
            }
            for event in [tally.edit().put, tally.edit().remove].into_iter().flatten() {
                if event.newest_us <= 1 << 53 {
                    let back = Event::decode(event.newest_us as f64, event.member().as_bytes());
                    prop_assert_eq!(back, Some(event));
                }
            }
        }
    }
}

fn weights() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..9, 1u64..=MAX_SUM, Just(MAX_SUM), Just(MAX_SUM - 1)]
}

/// A call whose counted sum lies between that of the list and that of a list whose events leave late: by a
/// bucket the admitted, by a bucket or a 4096th of the period the denied.
fn bounded(
    world: &mut World,
    rule: &Rule,
    ask: &Ask,
    kind: Kind,
    (period_us, buckets, denied_buckets): (u64, u64, u64),
) {
    let now_us = world.now_us;
    let sum = |late_us: &dyn Fn(bool) -> u64| -> u64 {
        let live =
            |one: &&Counted| one.at_us.min(now_us) + period_us + late_us(one.denied) > now_us;
        world.list.iter().filter(live).map(|one| one.weight).sum()
    };
    let least = sum(&|_| 0);
    let most = sum(&|denied| {
        // Less than a period / n, in whole microseconds.
        let buckets = if denied { denied_buckets } else { buckets };
        period_us.div_ceil(buckets) - 1
    });
    let (counted, decision) = world.call(rule, ask, kind);
    world.note(ask, kind, &decision);
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

/// now in microseconds after the start, quantity, and limited, remaining, retry_after, reset_after.
type Row = (u64, u64, Limited, u64, Option<u64>, u64);

fn table(rule: &Rule, limit: u64, rows: &[Row]) {
    let mut world = World::new();
    let start_us = START_US - START_US % 1_000_000;
    for (number, (at_us, quantity, limited, remaining, retry, reset)) in rows.iter().enumerate() {
        world.now_us = start_us + at_us;
        let ask = Ask { limit, quantity: *quantity, atmost: false, barred: false };
        let (_, decision) = world.call(rule, &ask, Kind::Count);
        let found = (
            decision.limited,
            decision.remaining,
            decision.retry_after_us,
            decision.reset_after_us,
        );
        assert_eq!(found, (*limited, *remaining, *retry, *reset), "row {number} at {at_us}");
    }
}

#[test]
fn an_event_leaves_one_period_after_it_came_and_no_microsecond_sooner() {
    use Limited::{Allowed, Denied};
    table(
        &rule("1s"),
        3,
        &[
            (0, 1, Allowed, 2, None, 1_000_000),
            // The same microsecond counts again.
            (0, 1, Allowed, 1, None, 1_000_000),
            (400_000, 1, Allowed, 0, None, 1_000_000),
            (400_001, 1, Denied, 0, Some(599_999), 999_999),
            (999_999, 1, Denied, 0, Some(1), 400_001),
            // Both of the first have left.
            (1_000_000, 3, Denied, 2, Some(400_000), 400_000),
            (1_000_000, 2, Allowed, 0, None, 1_000_000),
            (1_400_000, 1, Allowed, 0, None, 1_000_000),
            // Never.
            (1_400_000, 4, Denied, 0, None, 1_000_000),
            // Looks.
            (1_400_000, 0, Allowed, 0, None, 1_000_000),
            (2_400_000, 0, Allowed, 3, None, 0),
        ],
    );
}

#[test]
fn a_calendar_window_empties_at_its_end() {
    use Limited::{Allowed, Denied};
    table(
        &rule("1s@UTC"),
        2,
        &[
            (900_000, 1, Allowed, 1, None, 100_000),
            (999_999, 1, Allowed, 0, None, 1),
            (999_999, 1, Denied, 0, Some(1), 1),
            (1_000_000, 2, Allowed, 0, None, 1_000_000),
            (1_500_000, 1, Denied, 0, Some(500_000), 500_000),
        ],
    );
}

#[test]
fn a_folded_entry_leaves_when_its_newest_event_does() {
    use Limited::{Allowed, Denied};
    table(
        &rule("1s/10"),
        3,
        &[
            (0, 1, Allowed, 2, None, 1_000_000),
            (99_999, 1, Allowed, 1, None, 1_000_000),
            // A new entry: a bucket has passed since the first event of the last.
            (100_000, 1, Allowed, 0, None, 1_000_000),
            (1_000_000, 1, Denied, 0, Some(99_999), 100_000),
            (1_099_999, 2, Allowed, 0, None, 1_000_000),
        ],
    );
}

#[test]
fn events_from_the_future_count_as_now() {
    use Limited::{Allowed, Denied};
    table(
        &rule("1s"),
        2,
        &[
            (5_000_000, 1, Allowed, 1, None, 1_000_000),
            (5_500_000, 1, Allowed, 0, None, 1_000_000),
            // Nobody is locked out for longer than one period from here.
            (100, 1, Denied, 0, Some(1_000_000), 1_000_000),
            (1_000_099, 1, Denied, 0, Some(1), 1),
            (1_000_100, 2, Allowed, 0, None, 1_000_000),
        ],
    );
}

#[test]
fn a_caller_who_hammers_stays_out_and_memory_stays_flat() {
    let rule = rule("41ms");
    let mut world = World::new();
    let ask = |limit| Ask { limit, quantity: 1, atmost: false, barred: false };
    for _ in 0..3 {
        assert!(world.call(&rule, &ask(3), Kind::CountDenied).1.allowed());
    }
    for _ in 0..9_000 {
        world.now_us += 7;
        assert!(!world.call(&rule, &ask(3), Kind::CountDenied).1.allowed());
        world.trim(&rule, 64);
        assert!(world.zset.scores.len() <= 4_098, "{} entries", world.zset.scores.len());
    }
    // A call that can never be allowed does not count.
    let before = world.zset.scores.clone();
    let beyond = Ask { quantity: 4, ..ask(3) };
    assert_eq!(world.call(&rule, &beyond, Kind::CountDenied).1.retry_after_us, None);
    assert_eq!(world.zset.scores, before);
}

#[test]
fn admitted_and_denied_in_turns_take_no_more_entries_than_both_alone() {
    let rule = rule("41ms");
    let mut world = World::new();
    let mut admitted = Vec::new();
    for call in 0..12_000u64 {
        world.now_us += 4;
        let limit = if call % 50 == 0 { MAX_SUM } else { 1 };
        let ask = Ask { limit, quantity: 1, atmost: false, barred: false };
        if world.call(&rule, &ask, Kind::CountDenied).1.allowed() {
            admitted.push(world.now_us);
        }
        world.trim(&rule, 64);
        let live = admitted.iter().filter(|at| **at + 41_000 > world.now_us).count();
        assert!(world.zset.scores.len() <= live + 4_098, "{live} live admitted");
    }
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
        let mut world = World::new();
        let ask = Ask { limit: 1, quantity: 1, atmost: false, barred: false };
        for _ in 0..2_000 {
            for step_us in [on_us, back_us] {
                world.now_us = world.now_us.checked_add_signed(step_us).unwrap();
                world.call(&rule, &ask, Kind::CountDenied);
            }
        }
        let entries = world.live_entries(&rule);
        assert!(entries <= most, "{text} {on_us}: {entries}");
    }
}

#[test]
fn admitted_events_from_the_future_between_denied_ones_stay_admitted() {
    let rule = rule("4096ms");
    let mut world = World::new();
    let ask = |limit| Ask { limit, quantity: 1, atmost: false, barred: false };
    for (step_us, limit) in [(0, 1), (5_000, 1), (5_000, 9), (5_000, 1), (-11_000, 1), (900, 1)] {
        world.now_us = world.now_us.checked_add_signed(step_us).unwrap();
        world.call(&rule, &ask(limit), Kind::CountDenied);
    }
    // The three from the future became one at 4,000, an admitted one among them: it leaves on time, while the
    // denied call at 4,900 has an entry of its own.
    let entries: Vec<_> =
        world.zset.events().map(|one| (one.newest_us - START_US, one.weight)).collect();
    assert_eq!(entries, [(0, 1), (4_000, 4), (4_900, 1)]);
}

#[test]
fn no_sum_passes_the_largest_number() {
    let rule = rule("1s");
    let mut zset = Zset::default();
    for step in 0..5 {
        let now_us = START_US + step;
        let mut tally = Tally::read(&mut zset, rule.at(now_us).unwrap()).unwrap();
        // More than any limit allows, as APPLY may.
        tally.record(MAX_SUM / 2 + 1, false);
        assert!(tally.counted() <= MAX_SUM);
        zset.apply(&tally.edit(), now_us);
    }
    let tally = Tally::read(&mut zset, rule.at(START_US + 5).unwrap()).unwrap();
    assert_eq!(tally.counted(), MAX_SUM);
    assert_eq!(zset.scores.len(), 2);
}

#[test]
fn one_who_only_has_to_queue_waits_a_millisecond() {
    let rule = rule("1s");
    let mut zset = Zset::default();
    let mut tally = Tally::read(&mut zset, rule.at(START_US).unwrap()).unwrap();
    tally.record(1, false);
    zset.apply(&tally.edit(), START_US);
    let ask = Ask { limit: 5, quantity: 1, atmost: false, barred: true };
    for leases in [0, 1] {
        let mut held = Held::default();
        for _ in 0..leases {
            held.add(START_US + 9_000_000, 1);
        }
        let judgement = ask.judge(tally.counted(), held.total());
        assert_eq!(judgement, Judgement::Wanting { need: 0, held: true });
        let freed = freed_at_us(&mut zset, &tally, &mut held, 0).unwrap();
        let decision = decision(&ask, judgement, START_US, 1, freed, tally.empty_at_us());
        assert_eq!(decision.retry_after_us, Some(1_000), "{leases} leases");
    }
}

#[test]
fn judgements_at_the_edges() {
    use Judgement::{Granted, Never, Wanting};
    const MAX: u64 = MAX_SUM;
    for (limit, quantity, atmost, counted, held, judgement) in [
        // Zero looks, whatever there is.
        (0, 0, false, 0, 0, Granted(0)),
        (5, 0, true, 9, 9, Granted(0)),
        // A limit of zero shuts everybody out.
        (0, 1, false, 0, 0, Never),
        (0, 1, true, 0, 0, Never),
        (5, 6, false, 0, 0, Never),
        (5, 6, false, 5, 5, Never),
        // ATMOST takes what there is.
        (5, 6, true, 0, 0, Granted(5)),
        (5, 6, true, 3, 1, Granted(1)),
        (5, 6, true, 3, 2, Wanting { need: 1, held: true }),
        (5, 6, true, 5, 0, Wanting { need: 1, held: false }),
        // Counted and held are told apart.
        (5, 5, false, 0, 0, Granted(5)),
        (5, 5, false, 1, 0, Wanting { need: 1, held: false }),
        (5, 5, false, 0, 1, Wanting { need: 1, held: true }),
        (5, 3, false, 3, 1, Wanting { need: 2, held: false }),
        // A limit lowered below what is used.
        (5, 1, false, 9, 0, Wanting { need: 5, held: false }),
        (5, 1, false, 4, 9, Wanting { need: 9, held: true }),
        // The largest numbers.
        (MAX, MAX, false, 0, 0, Granted(MAX)),
        (MAX, MAX, false, 1, 0, Wanting { need: 1, held: false }),
        (MAX, MAX, false, MAX, 0, Wanting { need: MAX, held: false }),
        (MAX, 1, false, MAX, MAX, Wanting { need: MAX + 1, held: false }),
    ] {
        let ask = Ask { limit, quantity, atmost, barred: false };
        assert_eq!(ask.judge(counted, held), judgement, "{ask:?} {counted} {held}");
    }
}

#[test]
fn periods_of_a_century_count_from_the_first_event_on() {
    let period = Period::parse(b"100y").unwrap();
    let rule = Rule::Sliding { period, buckets: None };
    let mut world = World::new();
    let ask = Ask { limit: 1, quantity: 1, atmost: false, barred: false };
    assert!(world.call(&rule, &ask, Kind::Count).1.allowed());
    world.now_us += 99 * 31_557_600_000_000;
    let (_, decision) = world.call(&rule, &ask, Kind::Count);
    assert!(!decision.allowed() && decision.retry_after_us.is_some());
}

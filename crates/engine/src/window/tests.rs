//! The product beside an obvious model: a list of events and a list of leases, looked at from end to end.

use super::super::calendar::Zones;
use super::super::event::LAST_US;
use super::super::held::{Lease, SortedLeases};
use super::super::memory::{ModelCall, ModelCommand, ModelReply, Zset};
use super::super::period::Length;
use super::super::properties::cases;
use super::super::rule::Rule;
use super::*;
use proptest::prelude::*;
use proptest::sample::select;
use std::cell::RefCell;

/// 21 November 2026, in the middle of nothing.
const START_US: u64 = 1_795_223_799_544_558;

/// The default of `ratelimit.window-entries`.
const MOST_ENTRIES: u32 = 4096;

/// The most dead entries that a busy key keeps: those that are not worth a removal, and those that come until the next
/// look for them.
const MOST_DEAD: usize = 8 + 16;

/// When an event leaves, as anybody would say it.
#[derive(Clone, Copy, Debug)]
enum Obvious {
    Sliding(u64),
    Months(u32),
    /// Windows of so many microseconds, the first of which began at the second number.
    Fixed(u64, u64),
}

impl Obvious {
    fn expiry_us(self, event_us: u64) -> u64 {
        match self {
            Obvious::Sliding(period_us) => event_us + period_us,
            Obvious::Months(months) => Length::Months(months).expiry_us(event_us),
            Obvious::Fixed(period_us, from_us) => {
                event_us + period_us - (event_us - from_us) % period_us
            }
        }
    }
}

/// A rule, and the zones that it was read with.
struct Ruled {
    rule: Rule,
    zones: RefCell<Zones>,
}

impl Ruled {
    fn at(&self, now_us: u64) -> Option<Moment> {
        self.rule.at(now_us, &mut self.zones.borrow_mut())
    }
}

fn rule(text: &str) -> Ruled {
    let mut zones = Zones::new();
    let rule = Rule::parse(text.as_bytes(), &mut zones).unwrap_or_else(|| panic!("{text}"));
    Ruled { rule, zones: RefCell::new(zones) }
}

fn exact(period_ms: u64) -> (Ruled, Obvious) {
    (rule(&format!("{period_ms}ms")), Obvious::Sliding(period_ms * 1_000))
}

fn ask(quantity: i64) -> Ask {
    Ask { quantity: Quantity::from_signed(quantity), leave: 0, manner: Manner::Whole }
}

fn force(quantity: i64) -> Ask {
    Ask { manner: Manner::Force, ..ask(quantity) }
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    at_us: u64,
    weight: u64,
    denied: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    end_us: u64,
    lease_us: u64,
    quantity: u64,
}

impl Reserved {
    fn seen_from(self, now_us: u64) -> Reserved {
        Reserved { end_us: self.end_us.min(now_us + self.lease_us), ..self }
    }
}

#[derive(Clone, Debug, Default)]
struct WindowWorld {
    now_us: u64,
    zset: Zset,
    list: Vec<Counted>,
    leases: Vec<Reserved>,
    /// How many entries from the future a call merges.
    heal_most: usize,
}

/// What the list says of one call.
#[derive(Debug)]
struct Expected {
    counted: u64,
    verdict: Verdict,
    remaining: u64,
    reset_after_us: u64,
}

/// The sum of `list` that counts at `us`.
fn counted_at(list: &[Counted], obvious: Obvious, us: u64) -> u64 {
    list.iter().filter(|one| obvious.expiry_us(one.at_us) > us).map(|one| one.weight).sum()
}

fn held_at(leases: &[Reserved], us: u64) -> u64 {
    leases.iter().filter(|one| one.end_us > us).map(|one| one.quantity).sum()
}

/// A call by whom nobody bars, which heals as much as there is.
fn plain(moment: Moment, limit: u64, ask: Ask, kind: ModelCommand) -> ModelCall {
    let (most_entries, heal_most) = (MOST_ENTRIES, usize::MAX);
    ModelCall { moment, limit, most_entries, heal_most, ask, kind, barred: false }
}

impl WindowWorld {
    fn new() -> WindowWorld {
        WindowWorld { now_us: START_US, heal_most: usize::MAX, ..WindowWorld::default() }
    }

    /// One whose totals are about to run around.
    fn with_total(total: u64) -> WindowWorld {
        let mut world = WindowWorld::new();
        world.zset.add(&Event { newest_us: 7, span_us: 0, total, weight: 1, denied: false });
        world
    }

    fn pass(&mut self, us: i64) {
        self.now_us = self.now_us.checked_add_signed(us).unwrap();
    }

    fn held(&self, now_us: u64) -> SortedLeases {
        let leases = self.leases.iter().map(|lease| lease.seen_from(now_us));
        let live = leases.filter(|lease| lease.end_us > now_us);
        live.map(|lease| Lease { end_us: lease.end_us, quantity: lease.quantity }).collect()
    }

    fn look(&mut self, rule: &Ruled, limit: u64, ask: &Ask, us: u64) -> ModelReply {
        let held = self.held(us);
        let kind = ModelCommand::Look;
        let moment = rule.at(us).unwrap();
        let call = ModelCall { heal_most: self.heal_most, ..plain(moment, limit, *ask, kind) };
        let done = call.make(&mut self.zset, &held).unwrap();
        assert_eq!(done.edit, None, "looking writes");
        done
    }

    /// A call on the product. What it writes is checked against what it said.
    fn call(&mut self, rule: &Ruled, limit: u64, ask: &Ask, kind: ModelCommand) -> ModelReply {
        let now_us = self.now_us;
        let moment = rule.at(now_us).unwrap();
        let held = self.held(now_us);
        let times: Vec<u64> = self.zset.events().map(|event| event.newest_us).collect();
        let call = ModelCall { heal_most: self.heal_most, ..plain(moment, limit, *ask, kind) };
        let done = call.make(&mut self.zset, &held).unwrap();
        if let (ModelCommand::Hold(lease_ms), Verdict::Allowed { taken: quantity @ 1.., .. }) =
            (kind, done.decision.verdict)
        {
            let lease_us = lease_ms * 1_000;
            self.leases.push(Reserved { end_us: now_us + lease_us, lease_us, quantity });
        }
        // A denied call writes leases from the future anew, if there is nothing else to write.
        let heals =
            matches!(done.decision.verdict, Verdict::Denied { .. }) && kind != ModelCommand::Look;
        if done.edit.is_some() || heals {
            for lease in &mut self.leases {
                *lease = lease.seen_from(now_us);
            }
        }
        if let Some(edit) = &done.edit {
            self.forget_trimmed(&moment, edit, &times);
            self.written(rule, limit, ask, kind, &done);
        }
        let future_leases = self.leases.iter().any(|one| one.seen_from(now_us).end_us < one.end_us);
        let healed = done.edit.is_some_and(|edit| edit.future_until.is_none());
        if !future_leases && (!done.window_count.has_future() || healed) {
            self.waits_are_right(rule, limit, ask, kind, &done.decision);
        }
        done
    }

    /// Only what is dead may be trimmed, and the list forgets it too.
    fn forget_trimmed(&mut self, moment: &Moment, edit: &Edit, times: &[u64]) {
        let Some(last_us) = edit.trim.checked_sub(1).map(|last| times[last]) else { return };
        assert!(moment.horizon_us().is_some_and(|horizon_us| last_us <= horizon_us), "trims live");
        self.list.retain(|one| one.at_us > last_us);
    }

    fn written(
        &mut self,
        rule: &Ruled,
        limit: u64,
        ask: &Ask,
        kind: ModelCommand,
        done: &ModelReply,
    ) {
        let times: Vec<u64> = self.zset.events().map(|event| event.newest_us).collect();
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "two entries at one time");
        let again = WindowCount::read(&mut self.zset, rule.at(self.now_us).unwrap());
        if !matches!(rule.rule, Rule::Semaphore) {
            let again = again.unwrap();
            assert_eq!(again.counted(), done.window_count.counted(), "counted anew");
            assert_eq!(again.empty_at_us(), done.window_count.empty_at_us());
            let stays = done.edit.is_some_and(|edit| edit.future_until.is_some());
            assert_eq!(again.has_future(), stays, "from the future");
        }
        if !done.decision.verdict.allowed() {
            let later = self.look(rule, limit, ask, self.now_us).decision;
            assert_eq!(later.verdict.retry_after_us(), done.decision.verdict.retry_after_us());
            assert_eq!(later.remaining, done.decision.remaining, "{kind:?}");
        }
    }

    /// Waiting as told suffices and no less does, and the key is as good as new when it is said to be.
    fn waits_are_right(
        &mut self,
        rule: &Ruled,
        limit: u64,
        ask: &Ask,
        kind: ModelCommand,
        decision: &Decision,
    ) {
        if let Some(wait_us) = decision.verdict.retry_after_us() {
            let then_us = self.now_us + wait_us;
            let then = self.look(rule, limit, ask, then_us).decision.verdict;
            assert!(then.allowed(), "{wait_us} is too short: {then:?}");
            let before = self.look(rule, limit, ask, then_us - 1).decision.verdict;
            assert!(matches!(before, Verdict::Denied { .. }), "{wait_us} is too long: {before:?}");
        }
        if kind == ModelCommand::Look {
            return;
        }
        let new_us = self.now_us + decision.reset_after_us;
        let mut as_new = |us: u64| {
            let seen = self.look(rule, u64::MAX, &super::tests::ask(0), us).decision;
            seen.remaining == u64::MAX
        };
        assert!(as_new(new_us), "not as new when it is said to be");
        if decision.reset_after_us > 0 {
            assert!(!as_new(new_us - 1), "as good as new sooner than it is said to be");
        }
    }

    /// The same call on the lists.
    fn expect(&self, obvious: Obvious, limit: u64, ask: &Ask, kind: ModelCommand) -> Expected {
        let now_us = self.now_us;
        let mut list = self.list.clone();
        list.iter_mut().for_each(|event| event.at_us = event.at_us.min(now_us));
        let mut leases: Vec<Reserved> =
            self.leases.iter().map(|lease| lease.seen_from(now_us)).collect();
        let (counted, held) = (counted_at(&list, obvious, now_us), held_at(&leases, now_us));
        let free = limit.saturating_sub(counted).saturating_sub(held);
        let wanted = ask.quantity.wanted();
        let atmost = ask.manner == Manner::AtMost;
        let least = u128::from(if atmost { 1 } else { wanted }) + u128::from(ask.leave);
        let verdict = if !ask.quantity.takes() {
            Verdict::taking(0)
        } else if ask.manner == Manner::Force {
            Verdict::taking(wanted)
        } else if least > u128::from(limit) {
            Verdict::Never
        } else if least <= u128::from(free) {
            Verdict::taking(if atmost { wanted.min(free - ask.leave) } else { wanted })
        } else {
            let expiries = list.iter().map(|one| obvious.expiry_us(one.at_us));
            let mut ends: Vec<u64> = expiries.chain(leases.iter().map(|one| one.end_us)).collect();
            ends.sort_unstable();
            let fits = |us: &u64| {
                let used = u128::from(counted_at(&list, obvious, *us));
                used + u128::from(held_at(&leases, *us)) + least <= u128::from(limit)
            };
            let then_us = ends.into_iter().filter(|us| *us > now_us).find(fits).unwrap();
            let only_held = matches!(kind, ModelCommand::Hold(_))
                && u128::from(counted) + least <= u128::from(limit);
            let by = if only_held { Obstacle::Held } else { Obstacle::Counted };
            Verdict::Denied { wait_us: then_us - now_us, by }
        };
        if kind != ModelCommand::Look {
            let quantity = verdict.taken();
            match (ask.quantity, kind) {
                (Quantity::GiveBack(amount), _) => give_back(&mut list, obvious, now_us, amount),
                (_, ModelCommand::Hold(lease_ms)) if quantity > 0 => {
                    let lease_us = lease_ms * 1_000;
                    leases.push(Reserved { end_us: now_us + lease_us, lease_us, quantity });
                }
                _ if quantity > 0 => {
                    list.push(Counted { at_us: now_us, weight: quantity, denied: false });
                }
                _ => {}
            }
        }
        let used = counted_at(&list, obvious, now_us);
        let remaining = limit.saturating_sub(used).saturating_sub(held_at(&leases, now_us));
        let expiries = list.iter().map(|one| obvious.expiry_us(one.at_us));
        let ends = expiries.chain(leases.iter().map(|one| one.end_us));
        let empty_us = ends.filter(|us| *us > now_us).max().unwrap_or(now_us);
        Expected { counted, verdict, remaining, reset_after_us: empty_us - now_us }
    }

    /// Writes into the list what the product did.
    fn note(&mut self, obvious: Obvious, ask: &Ask, kind: ModelCommand, done: &ModelReply) {
        let at_us = match &done.edit {
            Some(edit) => self.heal(edit),
            None => self.now_us,
        };
        let taken = done.decision.verdict.taken();
        match ask.quantity {
            _ if kind == ModelCommand::Look || matches!(kind, ModelCommand::Hold(_)) => {}
            Quantity::GiveBack(amount) => give_back(&mut self.list, obvious, at_us, amount),
            _ if taken > 0 => self.list.push(Counted { at_us, weight: taken, denied: false }),
            Quantity::Take(weight) if done.denial_counted => {
                self.list.push(Counted { at_us, weight, denied: true });
            }
            _ => {}
        }
    }

    /// Takes events from the future as happening now, as far as an edit does; returns when what it counts happens.
    fn heal(&mut self, edit: &Edit) -> u64 {
        let now_us = self.now_us;
        let until_us = edit.future_until.unwrap_or(u64::MAX);
        for event in self.list.iter_mut().filter(|event| event.at_us <= until_us) {
            event.at_us = event.at_us.min(now_us);
        }
        let joined = edit.changed.filter(|_| edit.future_until.is_some());
        joined.map_or(now_us, |(_, grown)| grown.newest_us)
    }

    /// A call on both, which must agree in everything.
    fn agree(
        &mut self,
        rule: &Ruled,
        obvious: Obvious,
        limit: u64,
        ask: &Ask,
        kind: ModelCommand,
    ) -> ModelReply {
        let expected = self.expect(obvious, limit, ask, kind);
        let done = self.call(rule, limit, ask, kind);
        self.note(obvious, ask, kind, &done);
        let decision = done.decision;
        let what =
            || format!("{limit} {ask:?} {kind:?}\n{decision:?}\n{expected:?}\n{:?}", self.list);
        assert_eq!(done.counted, expected.counted, "counted {}", what());
        assert_eq!(decision.verdict, expected.verdict, "verdict {}", what());
        assert_eq!(decision.remaining, expected.remaining, "remaining {}", what());
        assert_eq!(decision.reset_after_us, expected.reset_after_us, "reset {}", what());
        done
    }

    /// Applies some reservation: its lease goes, and an event of this weight comes now, whatever the limit.
    fn settle(&mut self, rule: &Ruled, which: usize, weight: u64) {
        let now_us = self.now_us;
        self.leases.retain(|lease| lease.seen_from(now_us).end_us > now_us);
        if self.leases.is_empty() {
            return;
        }
        self.leases.remove(which % self.leases.len());
        if weight > 0 {
            let moment = rule.at(now_us).unwrap();
            let times: Vec<u64> = self.zset.events().map(|event| event.newest_us).collect();
            let mut window_count = WindowCount::read(&mut self.zset, moment).unwrap();
            window_count.record(weight, false, u64::MAX);
            window_count.trim(&mut self.zset, MOST_ENTRIES).unwrap();
            let edit = *window_count.edit(&mut self.zset, self.heal_most).unwrap();
            self.zset.apply(&edit);
            self.forget_trimmed(&moment, &edit, &times);
            let at_us = self.heal(&edit);
            self.list.push(Counted { at_us, weight, denied: false });
        }
    }

    /// Those that count, but for those from the future that a call which changes nothing has left there.
    fn live_entries(&self, rule: &Ruled) -> usize {
        let horizon_us = rule.at(self.now_us).unwrap().horizon_us();
        let live = |us: u64| us <= self.now_us && horizon_us.is_none_or(|horizon| us > horizon);
        self.zset.events().filter(|event| live(event.newest_us)).count()
    }

    fn dead_entries(&self, rule: &Ruled) -> usize {
        let horizon_us = rule.at(self.now_us).unwrap().horizon_us();
        let dead = |us: u64| horizon_us.is_some_and(|horizon_us| us <= horizon_us);
        self.zset.events().filter(|event| dead(event.newest_us)).count()
    }

    /// The entries: time after the start, weight, and span.
    fn entries(&self) -> Vec<(i64, u64, u64)> {
        let since = |us: u64| i64::try_from(us).unwrap() - i64::try_from(START_US).unwrap();
        self.zset.events().map(|one| (since(one.newest_us), one.weight, one.span_us)).collect()
    }

    fn step(&mut self, step: ClockStep, period_us: u64) {
        let by = |parts: i64, us: i64| parts * (period_us / 8) as i64 + us;
        let us = match step {
            ClockStep::On(parts, us) => by(parts, us),
            ClockStep::Back(parts, us) => -by(parts, us),
        };
        self.now_us = self.now_us.checked_add_signed(us).unwrap().max(START_US / 2);
    }
}

/// Uncounts the oldest of what counts.
fn give_back(list: &mut Vec<Counted>, obvious: Obvious, now_us: u64, amount: u64) {
    let mut left = amount;
    for one in list.iter_mut().filter(|one| obvious.expiry_us(one.at_us) > now_us) {
        let gone = one.weight.min(left);
        one.weight -= gone;
        left -= gone;
    }
    list.retain(|one| one.weight > 0);
}

/// How the clock moves between two calls: eighths of a period, and microseconds.
#[derive(Clone, Copy, Debug)]
enum ClockStep {
    On(i64, i64),
    Back(i64, i64),
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

/// How a call takes; the second is its LEAVE.
fn ways() -> impl Strategy<Value = (Manner, u64)> {
    prop_oneof![
        16 => Just((Manner::Whole, 0)),
        2 => Just((Manner::AtMost, 0)),
        2 => (0u64..9).prop_map(|leave| (Manner::Whole, leave)),
        1 => (0u64..9).prop_map(|leave| (Manner::AtMost, leave)),
    ]
}

/// The same, and FORCE.
fn ways_with_force() -> impl Strategy<Value = (Manner, u64)> {
    prop_oneof![4 => ways(), 1 => Just((Manner::Force, 0))]
}

/// A call, and what happens before it.
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
        Ask { quantity, leave, manner }
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

/// Sixty quantities that are given back; 0 is a call that takes.
fn refunds() -> impl Strategy<Value = Vec<u64>> {
    let refund = prop_oneof![3 => Just(0u64), 2 => 1u64..5, 1 => 5u64..40];
    proptest::collection::vec(refund, 60)
}

/// How many entries from the future a call merges: mostly too few.
fn heals() -> impl Strategy<Value = usize> {
    prop_oneof![Just(usize::MAX), 0usize..4]
}

fn totals() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1u64), Just(u64::MAX - 5), Just(u64::MAX), Just(1 << 63)]
}

impl WindowAct {
    /// The same, or a call that gives back.
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

proptest! {
    #![proptest_config(cases(150))]

    /// Limits raised and lowered, weights, LEAVE, leases, settling, trimming, and a clock that steps both ways.
    #[test]
    fn the_exact_kind_decides_as_the_list_does(
        period_ms in select(&[1u64, 7, 100][..]),
        acts in acts(steps(), 0u64..12, kinds()),
        total in totals(),
        heal_most in heals(),
    ) {
        let (rule, obvious) = exact(period_ms);
        let mut world = WindowWorld { heal_most, ..WindowWorld::with_total(total) };
        for act in acts {
            world.step(act.step, period_ms * 1_000);
            if let Some((which, weight)) = act.settle {
                world.settle(&rule, which, weight);
            }
            world.agree(&rule, obvious, act.limit, &act.ask(), act.kind);
        }
    }

    /// FORCE folds what lies beyond the limit by less than a microsecond here: the list is exact.
    #[test]
    fn force_counts_beyond_the_limit_as_the_list_does(
        period_ms in 1u64..=4,
        acts in acts_with(steps(), 0u64..12, kinds(), ways_with_force()),
        total in totals(),
        heal_most in heals(),
    ) {
        let (rule, obvious) = exact(period_ms);
        let mut world = WindowWorld { heal_most, ..WindowWorld::with_total(total) };
        for act in acts {
            world.step(act.step, period_ms * 1_000);
            if let Some((which, weight)) = act.settle {
                world.settle(&rule, which, weight);
            }
            world.agree(&rule, obvious, act.limit, &act.ask(), act.kind);
        }
    }

    /// Giving back uncounts the oldest, while the clock goes on.
    #[test]
    fn giving_back_decides_as_the_list_does(
        period_ms in 1u64..=4,
        acts in acts_with(forward(), 0u64..12, kinds(), ways_with_force()),
        refunds in refunds(),
        total in totals(),
    ) {
        let (rule, obvious) = exact(period_ms);
        let mut world = WindowWorld::with_total(total);
        for (act, refund) in acts.into_iter().zip(refunds) {
            world.step(act.step, period_ms * 1_000);
            if let Some((which, weight)) = act.settle {
                world.settle(&rule, which, weight);
            }
            let (ask, kind) = act.or_refund(refund);
            world.agree(&rule, obvious, act.limit, &ask, kind);
        }
    }

    #[test]
    fn months_decide_as_the_list_does(
        months in select(&[1u32, 3, 12][..]),
        acts in acts(steps(), 0u64..12, kinds()),
        heal_most in heals(),
    ) {
        let (rule, obvious) = (rule(&format!("{months}mo")), Obvious::Months(months));
        let mut world = WindowWorld { heal_most, ..WindowWorld::new() };
        for act in acts {
            world.step(act.step, u64::from(months) * 30 * 86_400_000_000);
            world.agree(&rule, obvious, act.limit, &act.ask(), act.kind);
        }
    }

    /// Each call with a period of its own, on one log.
    #[test]
    fn another_period_counts_the_same_events(
        acts in acts(steps(), 0u64..12, kinds()),
        periods in proptest::collection::vec(select(&[1u64, 2, 3, 20][..]), 60),
        heal_most in heals(),
    ) {
        let mut world = WindowWorld { heal_most, ..WindowWorld::new() };
        for (act, period_ms) in acts.into_iter().zip(periods) {
            let (rule, obvious) = exact(period_ms);
            world.step(act.step, 3_000);
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
        acts in acts_with(steps(), 0u64..12, kinds(), ways_with_force()),
        total in totals(),
        heal_most in heals(),
    ) {
        let obvious = Obvious::Fixed(period_s * 1_000_000, from_s * 1_000_000);
        let rule = rule(text);
        let mut world = WindowWorld { heal_most, ..WindowWorld::with_total(total) };
        for act in acts {
            world.step(act.step, period_s * 1_000_000);
            if let Some((which, weight)) = act.settle {
                world.settle(&rule, which, weight);
            }
            world.agree(&rule, obvious, act.limit, &act.ask(), act.kind);
            prop_assert!(world.live_entries(&rule) <= 1, "{:?}", world.zset);
        }
    }

    #[test]
    fn giving_back_in_calendar_windows_decides_as_the_list_does(
        acts in acts_with(forward(), 0u64..12, kinds(), ways_with_force()),
        refunds in refunds(),
        total in totals(),
    ) {
        let obvious = Obvious::Fixed(1_000_000, 0);
        let rule = rule("1s@UTC");
        let mut world = WindowWorld::with_total(total);
        for (act, refund) in acts.into_iter().zip(refunds) {
            world.step(act.step, 1_000_000);
            let (ask, kind) = act.or_refund(refund);
            world.agree(&rule, obvious, act.limit, &ask, kind);
            prop_assert!(world.live_entries(&rule) <= 1, "{:?}", world.zset);
        }
    }

    /// Where the clock goes back, or the period gets longer, what was uncounted may count again: never less than the list.
    #[test]
    fn giving_back_forgets_nothing_else_when_the_clock_steps_and_the_period_changes(
        acts in acts_with(steps(), 0u64..12, kinds(), ways_with_force()),
        refunds in refunds(),
        periods in proptest::collection::vec(select(&["1ms", "2ms", "3ms"][..]), 60),
        total in totals(),
        heal_most in heals(),
    ) {
        let mut world = WindowWorld { heal_most, ..WindowWorld::with_total(total) };
        for ((act, refund), text) in acts.into_iter().zip(refunds).zip(periods) {
            world.step(act.step, 2_000);
            let rule = rule(text);
            let period_us = rule.at(world.now_us).unwrap().period_us();
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

    /// Whichever of the events that still count a refund was meant for, no more than the limit were kept in any period.
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
                let since_us = window_count.first.map_or(u64::MAX, |first| first.first_us());
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

    /// Sums up to 2^63 - 1, where everything that was ever counted runs around 2^64.
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

    /// Leaps back and forth, longer periods and large sums: nothing that the module wrote is foreign to it.
    #[test]
    fn sums_near_the_largest_number_contradict_nothing_when_the_clock_steps(
        acts in acts(steps(), select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, 3][..]), prop_oneof![Just(ModelCommand::Count), Just(ModelCommand::CountDenied)]),
        weights in proptest::collection::vec(
            select(&[MAX_SUM, MAX_SUM - 1, MAX_SUM / 2, MAX_SUM / 3, 1 << 61, 3, 1][..]), 60),
        forces in proptest::collection::vec(proptest::bool::weighted(0.2), 60),
        rules in proptest::collection::vec(select(&["1ms", "1ms/1", "10ms/1", "1s", "1s@UTC", "1h@UTC"][..]), 60),
        total in totals(),
        heal_most in heals(),
    ) {
        let mut world = WindowWorld { heal_most, ..WindowWorld::with_total(total) };
        for (((act, weight), forces), text) in acts.into_iter().zip(weights).zip(forces).zip(rules) {
            world.step(act.step, 1_000);
            let rule = rule(text);
            let manner = if forces { Manner::Force } else { Manner::Whole };
            let ask = Ask { quantity: Quantity::Take(weight), leave: 0, manner };
            let moment = rule.at(world.now_us).unwrap();
            let call = ModelCall { heal_most, ..plain(moment, act.limit, ask, act.kind) };
            match call.make(&mut world.zset, &SortedLeases::default()) {
                Ok(_) => {}
                Err(refused) => prop_assert_eq!((refused, manner), (Refused::SumTooLarge, Manner::Force)),
            }
        }
    }

    /// BUCKETS n: never more than limit in any window, too early a denial by one bucket at most, n + 1 entries.
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

    #[test]
    fn buckets_stay_as_many_when_the_clock_steps_and_limits_change(
        buckets in select(&[1u64, 2, 3, 10, 64][..]),
        acts in acts_with(steps(), 0u64..60, kinds(), ways_with_force()),
        total in totals(),
        heal_most in heals(),
    ) {
        let rule = rule(&format!("10ms/{buckets}"));
        let mut world = WindowWorld { heal_most, ..WindowWorld::with_total(total) };
        for act in acts {
            world.step(act.step, 10_000);
            bounded(&mut world, &rule, &act, (10_000, buckets, buckets));
        }
    }

    /// COUNTDENIED: denied calls may be late by a 4096th of the period, admitted ones not at all.
    #[test]
    fn denied_calls_that_count_leave_admitted_ones_alone(
        period_ms in select(&[1u64, 40, 400][..]),
        buckets in select(&[0u64, 3, 4_096, 10_000, 65_536][..]),
        acts in acts(
            steps(), 0u64..12, prop_oneof![Just(ModelCommand::Count), Just(ModelCommand::CountDenied)]),
        heal_most in heals(),
    ) {
        let text = if buckets == 0 { format!("{period_ms}ms") } else { format!("{period_ms}ms/{buckets}") };
        let fold = if buckets == 0 { u64::MAX } else { buckets };
        let mut world = WindowWorld { heal_most, ..WindowWorld::new() };
        for act in acts {
            world.step(act.step, period_ms * 1_000);
            let bounds = (period_ms * 1_000, fold, fold.min(4_096));
            bounded(&mut world, &rule(&text), &act, bounds);
        }
    }

    /// Any rules on one log: nothing is forgotten, and every wait that is told is right.
    #[test]
    fn rules_may_change_from_call_to_call(
        acts in acts_with(
            steps(), 0u64..30, prop_oneof![Just(ModelCommand::CountDenied), kinds()], ways_with_force()),
        rules in proptest::collection::vec(select(&[
            ("2ms", 2_000), ("1s", 1_000_000), ("10ms/3", 10_000), ("1s/4096", 1_000_000),
            ("1s@UTC", 0), ("1min@UTC", 0), ("1d@Asia/Shanghai", 0), ("1mo", 0), ("-", 0),
        ][..]), 60),
        heal_most in heals(),
    ) {
        let mut world = WindowWorld { heal_most, ..WindowWorld::new() };
        for (act, (text, period_us)) in acts.into_iter().zip(rules) {
            world.step(act.step, 800_000);
            let rule = rule(text);
            if let Some((which, weight)) = act.settle {
                if text != "-" {
                    world.settle(&rule, which, weight);
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

    /// Whatever lies in the sorted set, reading and counting neither panics nor writes what cannot be read.
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
        heal_most in heals(),
    ) {
        let mut zset = Zset::default();
        for (newest_us, total, weight, span_us, denied) in entries {
            let total = if small { total % 16 } else { total };
            zset.add(&Event { newest_us, span_us, total, weight, denied });
        }
        let manner = [Manner::Whole, Manner::AtMost, Manner::Force][manner];
        let quantity = if gives { Quantity::GiveBack(quantity) } else { Quantity::Take(quantity) };
        let ask = Ask { quantity, leave, manner };
        let leases: SortedLeases =
            leases.into_iter().map(|(end_us, quantity)| Lease { end_us, quantity }).collect();
        for now_us in [0, 1, START_US - 5_000, START_US, START_US + 1_000, LAST_US] {
            let Some(moment) = rule(text).at(now_us) else { continue };
            for kind in [ModelCommand::Count, ModelCommand::CountDenied, ModelCommand::Look, ModelCommand::Hold(7)] {
                let mut zset = zset.clone();
                let call = ModelCall { barred, heal_most, ..plain(moment, limit, ask, kind) };
                let Ok(_) = call.make(&mut zset, &leases) else { continue };
                if text == "-" || kind == ModelCommand::Look {
                    continue;
                }
                // What was written can be read again, unless there was nonsense between what counts.
                let Ok(mut window_count) = WindowCount::read(&mut zset, moment) else { continue };
                window_count.record(3, denied, limit);
                if let Ok(edit) = window_count.edit(&mut zset, heal_most) {
                    zset.apply(edit);
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
    world: &mut WindowWorld,
    rule: &Ruled,
    act: &WindowAct,
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
    let done = world.call(rule, act.limit, &act.ask(), act.kind);
    world.note(Obvious::Sliding(period_us), &act.ask(), act.kind, &done);
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

/// now in microseconds after the start, quantity, and limited, remaining, retry_after, reset_after.
type Row = (u64, i64, u64, u64, Option<u64>, u64);

fn table(rule: &Ruled, limit: u64, rows: &[Row]) {
    let mut world = WindowWorld::new();
    let start_us = START_US - START_US % 1_000_000;
    for (number, (at_us, quantity, limited, remaining, retry, reset)) in rows.iter().enumerate() {
        world.now_us = start_us + at_us;
        let decision = world.call(rule, limit, &ask(*quantity), ModelCommand::Count).decision;
        let found = (
            decision.verdict.limited(),
            decision.remaining,
            decision.verdict.retry_after_us(),
            decision.reset_after_us,
        );
        assert_eq!(found, (*limited, *remaining, *retry, *reset), "row {number} at {at_us}");
    }
}

#[test]
fn an_event_leaves_one_period_after_it_came_and_no_microsecond_sooner() {
    table(
        &rule("1s"),
        3,
        &[
            (0, 1, 0, 2, None, 1_000_000),
            // The same microsecond counts again.
            (0, 1, 0, 1, None, 1_000_000),
            (400_000, 1, 0, 0, None, 1_000_000),
            (400_001, 1, 1, 0, Some(599_999), 999_999),
            (999_999, 1, 1, 0, Some(1), 400_001),
            // Both of the first have left.
            (1_000_000, 3, 1, 2, Some(400_000), 400_000),
            (1_000_000, 2, 0, 0, None, 1_000_000),
            (1_400_000, 1, 0, 0, None, 1_000_000),
            // Never.
            (1_400_000, 4, 1, 0, None, 1_000_000),
            // Looks.
            (1_400_000, 0, 0, 0, None, 1_000_000),
            (2_400_000, 0, 0, 3, None, 0),
        ],
    );
}

#[test]
fn a_calendar_window_empties_at_its_end() {
    table(
        &rule("1s@UTC"),
        2,
        &[
            (900_000, 1, 0, 1, None, 100_000),
            (999_999, 1, 0, 0, None, 1),
            (999_999, 1, 1, 0, Some(1), 1),
            (1_000_000, 2, 0, 0, None, 1_000_000),
            (1_500_000, 1, 1, 0, Some(500_000), 500_000),
        ],
    );
}

#[test]
fn a_folded_entry_leaves_when_its_newest_event_does() {
    table(
        &rule("1s/10"),
        3,
        &[
            (0, 1, 0, 2, None, 1_000_000),
            (99_999, 1, 0, 1, None, 1_000_000),
            // A new entry: a bucket has passed since the first event of the last.
            (100_000, 1, 0, 0, None, 1_000_000),
            (1_000_000, 1, 1, 0, Some(99_999), 100_000),
            (1_099_999, 2, 0, 0, None, 1_000_000),
        ],
    );
}

#[test]
fn events_from_the_future_count_as_now() {
    table(
        &rule("1s"),
        2,
        &[
            (5_000_000, 1, 0, 1, None, 1_000_000),
            (5_500_000, 1, 0, 0, None, 1_000_000),
            // Nobody is locked out for longer than one period from here.
            (100, 1, 1, 0, Some(1_000_000), 1_000_000),
            (1_000_099, 1, 1, 0, Some(1), 1),
            (1_000_100, 2, 0, 0, None, 1_000_000),
        ],
    );
}

/// Events in 65,536 buckets took 21 ms to merge in one call.
#[test]
fn many_events_from_the_future_are_merged_by_several_calls() {
    let rule = rule("1s/1000");
    let mut world = WindowWorld { heal_most: 3, ..WindowWorld::new() };
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
    // The wait that is told where nothing stays in the future suffices.
    assert_eq!(call(&mut world, 7, ModelCommand::Count), (false, 6));
    world.pass(1_000_000);
    assert_eq!(call(&mut world, 7, ModelCommand::Count), (true, 0));
}

#[test]
fn what_is_given_back_of_many_events_from_the_future_goes_in_one_piece() {
    for (amount, left) in [(2, 8), (3, 7), (5, 5), (9, 1), (10, 0)] {
        let rule = rule("1s/1000");
        let mut world = WindowWorld { heal_most: 3, ..WindowWorld::new() };
        for part in 0..10 {
            world.now_us = START_US + 500_000 + part * 1_000;
            world.call(&rule, 12, &ask(1), ModelCommand::Count);
        }
        world.now_us = START_US + 100;
        let done = world.call(&rule, 12, &ask(-amount), ModelCommand::Count);
        assert_eq!((done.counted, done.decision.remaining), (10, 12 - left));
        let again = world.look(&rule, 12, &ask(0), world.now_us);
        assert_eq!(again.counted, left, "{amount}: {:?}", world.entries());
        assert_eq!(again.decision.reset_after_us, if left > 0 { 1_000_000 } else { 0 });
    }
}

#[test]
fn giving_back_frees_the_oldest_first() {
    table(
        &rule("1s"),
        3,
        &[
            // Nothing to give back.
            (0, -1, 0, 3, None, 0),
            (0, 2, 0, 1, None, 1_000_000),
            (100_000, 1, 0, 0, None, 1_000_000),
            // One of the first two goes; the other leaves in time.
            (200_000, -1, 0, 1, None, 900_000),
            (200_000, 2, 1, 1, Some(800_000), 900_000),
            (300_000, 1, 0, 0, None, 1_000_000),
            // The rest of the first, and the second.
            (300_000, -2, 0, 2, None, 1_000_000),
            (300_000, -9, 0, 3, None, 0),
            (300_000, -9, 0, 3, None, 0),
            (300_000, 4, 1, 3, None, 0),
        ],
    );
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
        assert!(world.zset.len() <= 4_098 + MOST_DEAD, "{} entries", world.zset.len());
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
    let moment = rule.at(world.now_us).unwrap();
    let call = plain(moment, limit, *ask, kind);
    call.make(&mut world.zset, &SortedLeases::default()).unwrap()
}

#[test]
fn admitted_and_denied_in_turns_take_no_more_entries_than_both_alone() {
    let rule = rule("41ms");
    let mut world = WindowWorld::new();
    let mut admitted = Vec::new();
    for call in 0..12_000u64 {
        world.now_us += 4;
        let limit = if call % 50 == 0 { MAX_SUM } else { 1 };
        let done = plain_call(&mut world, &rule, limit, &ask(1), ModelCommand::CountDenied);
        if done.decision.verdict.allowed() {
            admitted.push(world.now_us);
        }
        let live = admitted.iter().filter(|at| **at + 41_000 > world.now_us).count();
        assert!(world.zset.len() <= live + 4_098 + MOST_DEAD, "{live} live admitted");
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
fn no_sum_passes_the_largest_number() {
    let rule = rule("1s");
    let mut zset = Zset::default();
    for step in 0..5 {
        let now_us = START_US + step;
        let mut window_count = WindowCount::read(&mut zset, rule.at(now_us).unwrap()).unwrap();
        // More than any limit allows, as APPLY may.
        window_count.record(MAX_SUM / 2 + 1, false, u64::MAX);
        assert!(window_count.counted() <= MAX_SUM);
        let edit = window_count.edit(&mut zset, usize::MAX).unwrap();
        zset.apply(edit);
    }
    let window_count = WindowCount::read(&mut zset, rule.at(START_US + 5).unwrap()).unwrap();
    assert_eq!(window_count.counted(), MAX_SUM);
    assert_eq!(zset.len(), 2);
}

#[test]
fn one_who_only_has_to_queue_waits_a_millisecond() {
    let rule = rule("1s");
    let moment = rule.at(START_US).unwrap();
    for (leases, kind, limited) in [
        (0, ModelCommand::Count, 1),
        (1, ModelCommand::Count, 1),
        (0, ModelCommand::Hold(9), 2),
        (1, ModelCommand::Hold(9), 2),
    ] {
        let mut world = WindowWorld::new();
        world.call(&rule, 5, &ask(1), ModelCommand::Count);
        let lease = Lease { end_us: START_US + 9_000_000, quantity: 1 };
        let held: SortedLeases = (0..leases).map(|_| lease).collect();
        let before = world.zset.clone();
        let call = |ask: Ask, barred| {
            let most_entries = MOST_ENTRIES;
            let call = ModelCall { most_entries, barred, ..plain(moment, 5, ask, kind) };
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

#[test]
fn judgements_at_the_edges() {
    use UntimedVerdict::{Allowed, Never};
    const MAX: u64 = MAX_SUM;
    let wanting = |need: u64, held: bool| UntimedVerdict::Wanting {
        need: u128::from(need),
        by: if held { Obstacle::Held } else { Obstacle::Counted },
    };
    let (whole, atmost, force) = (Manner::Whole, Manner::AtMost, Manner::Force);
    for (limit, quantity, leave, manner, counted, held, untimed) in [
        // Zero looks, whatever there is.
        (0, 0, 0, whole, 0, 0, Allowed(0)),
        (5, 0, 9, atmost, 9, 9, Allowed(0)),
        // A limit of zero shuts everybody out, but FORCE.
        (0, 1, 0, whole, 0, 0, Never),
        (0, 1, 0, atmost, 0, 0, Never),
        (0, 7, 0, force, 3, 3, Allowed(7)),
        (5, 6, 0, whole, 0, 0, Never),
        (5, 6, 0, whole, 5, 5, Never),
        // ATMOST takes what there is.
        (5, 6, 0, atmost, 0, 0, Allowed(5)),
        (5, 6, 0, atmost, 3, 1, Allowed(1)),
        (5, 6, 0, atmost, 3, 2, wanting(1, true)),
        (5, 6, 0, atmost, 5, 0, wanting(1, false)),
        // Counted and held are told apart.
        (5, 5, 0, whole, 0, 0, Allowed(5)),
        (5, 5, 0, whole, 1, 0, wanting(1, false)),
        (5, 5, 0, whole, 0, 1, wanting(1, true)),
        (5, 3, 0, whole, 3, 1, wanting(2, false)),
        // LEAVE asks for more, and takes no more.
        (5, 2, 3, whole, 0, 0, Allowed(2)),
        (5, 2, 3, whole, 1, 0, wanting(1, false)),
        (5, 2, 3, whole, 0, 1, wanting(1, true)),
        (5, 2, 4, whole, 0, 0, Never),
        (5, 9, 3, atmost, 0, 0, Allowed(2)),
        (5, 9, 3, atmost, 1, 0, Allowed(1)),
        (5, 9, 3, atmost, 1, 1, wanting(1, true)),
        (5, 9, 4, atmost, 0, 0, Allowed(1)),
        (5, 9, 5, atmost, 0, 0, Never),
        (5, 1, u64::MAX, whole, 0, 0, Never),
        // A limit lowered below what is used.
        (5, 1, 0, whole, 9, 0, wanting(5, false)),
        (5, 1, 0, whole, 4, 9, wanting(9, true)),
        // The largest numbers.
        (MAX, MAX, 0, whole, 0, 0, Allowed(MAX)),
        (MAX, MAX, 0, whole, 1, 0, wanting(1, false)),
        (MAX, MAX, 0, whole, MAX, 0, wanting(MAX, false)),
        (MAX, 1, 0, whole, MAX, MAX, wanting(MAX + 1, false)),
        (MAX, 1, MAX, whole, 0, 0, Never),
        (MAX, 1, MAX - 1, whole, MAX, MAX, wanting(2 * MAX, false)),
    ] {
        let quantity = Quantity::from_signed(i64::try_from(quantity).unwrap());
        let ask = Ask { quantity, leave, manner };
        let used = WindowUse { limit, counted, held: u128::from(held) };
        assert_eq!(used.judge(&ask, false), untimed, "{ask:?} {counted} {held}");
    }
}

#[test]
fn periods_of_a_century_count_from_the_first_event_on() {
    let rule = rule("100y");
    let mut world = WindowWorld::new();
    assert!(world.call(&rule, 1, &ask(1), ModelCommand::Count).decision.verdict.allowed());
    world.now_us += 99 * 31_557_600_000_000;
    let verdict = world.call(&rule, 1, &ask(1), ModelCommand::Count).decision.verdict;
    assert!(!verdict.allowed() && verdict.retry_after_us().is_some());
}

// ---- FORCE ----

#[test]
fn what_is_forced_beyond_the_limit_needs_few_entries_and_leaves_little_late() {
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
        world.list.push(Counted { at_us: world.now_us, weight: 1, denied: false });
        most = most.max(world.zset.len());
    }
    // Five, one for each 4096th of the period, and a few dead ones.
    assert!((1_000..=5 + 4_097 + MOST_DEAD).contains(&most), "{most} entries");
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
        let moment = rule.at(world.now_us).unwrap();
        let (ask, kind) = (force(3), ModelCommand::Count);
        let call = ModelCall { most_entries: 16, ..plain(moment, 5, ask, kind) };
        call.make(&mut world.zset, &SortedLeases::default()).unwrap();
    }
    assert!(world.zset.len() <= 5 + 17 + MOST_DEAD, "{} entries", world.zset.len());
}

#[test]
fn what_is_forced_within_the_limit_leaves_on_time() {
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
    // A denied call beside them folds with what lies beyond the limit only.
    world.call(&rule, 5, &ask(1), ModelCommand::CountDenied);
    assert_eq!(world.entries()[5], (2_400, 4, 900));
    world.pass(100);
    world.call(&rule, 5, &ask(1), ModelCommand::CountDenied);
    assert_eq!(world.entries()[6], (2_500, 1, 0));
}

#[test]
fn a_wait_behind_what_was_forced_is_until_it_is_repaid() {
    table_of(
        &rule("1s"),
        2,
        &[
            (0, force(1), 0, 1, None, 1_000_000),
            (100_000, force(4), 0, 0, None, 1_000_000),
            // Five are counted, and four of them must leave.
            (200_000, ask(1), 1, 0, Some(900_000), 900_000),
            (1_000_000, ask(1), 1, 0, Some(100_000), 100_000),
            // Giving back repays it.
            (1_000_000, ask(-3), 0, 1, None, 100_000),
            (1_000_000, ask(1), 0, 0, None, 1_000_000),
            (1_000_000, force(0), 0, 0, None, 1_000_000),
        ],
    );
}

/// The same as [`Row`], with all that can be asked.
type AskRow = (u64, Ask, u64, u64, Option<u64>, u64);

fn table_of(rule: &Ruled, limit: u64, rows: &[AskRow]) {
    let mut world = WindowWorld::new();
    let start_us = START_US - START_US % 1_000_000;
    for (number, (at_us, ask, limited, remaining, retry, reset)) in rows.iter().enumerate() {
        world.now_us = start_us + at_us;
        let decision = world.call(rule, limit, ask, ModelCommand::Count).decision;
        let verdict = decision.verdict;
        let found = (
            verdict.limited(),
            decision.remaining,
            verdict.retry_after_us(),
            decision.reset_after_us,
        );
        assert_eq!(found, (*limited, *remaining, *retry, *reset), "row {number} at {at_us}");
    }
}

#[test]
fn no_force_passes_the_largest_sum() {
    let rule = rule("1s");
    let mut world = WindowWorld::new();
    let moment = rule.at(START_US).unwrap();
    let mut forced = |quantity: u64| {
        let ask = Ask { quantity: Quantity::Take(quantity), leave: 0, manner: Manner::Force };
        let (limit, kind) = (5, ModelCommand::Count);
        let call = plain(moment, limit, ask, kind);
        call.make(&mut world.zset, &SortedLeases::default()).map(|done| done.window_count.counted())
    };
    assert_eq!(forced(MAX_SUM - 1), Ok(MAX_SUM - 1));
    assert_eq!(forced(2), Err(Refused::SumTooLarge));
    assert_eq!(forced(1), Ok(MAX_SUM));
    assert_eq!(forced(1), Err(Refused::SumTooLarge));
}

// ---- LEAVE ----

#[test]
fn leave_keeps_a_reserve_for_others() {
    let leaving = |quantity: i64, leave: u64| Ask { leave, ..ask(quantity) };
    let atmost =
        |quantity: i64, leave: u64| Ask { manner: Manner::AtMost, ..leaving(quantity, leave) };
    table_of(
        &rule("1s"),
        5,
        &[
            (0, leaving(1, 5), 1, 5, None, 0),
            (0, leaving(2, 3), 0, 3, None, 1_000_000),
            (100_000, leaving(1, 3), 1, 3, Some(900_000), 900_000),
            (100_000, atmost(9, 2), 0, 2, None, 1_000_000),
            (200_000, atmost(9, 2), 1, 2, Some(800_000), 900_000),
            (200_000, leaving(1, 1), 0, 1, None, 1_000_000),
            (200_000, leaving(1, 1), 1, 1, Some(800_000), 1_000_000),
            (200_000, leaving(0, 9), 0, 1, None, 1_000_000),
            (200_000, ask(1), 0, 0, None, 1_000_000),
        ],
    );
}

#[test]
fn a_call_that_only_its_leave_denies_is_not_counted() {
    let rule = rule("1s");
    for (quantity, leave, counts) in
        [(1, 1, false), (2, 0, true), (2, 2, true), (1, 3, false), (3, 3, false)]
    {
        let mut world = WindowWorld::new();
        world.call(&rule, 5, &ask(4), ModelCommand::Count);
        world.pass(1);
        let done = world.call(&rule, 5, &Ask { leave, ..ask(quantity) }, ModelCommand::CountDenied);
        assert!(!done.decision.verdict.allowed());
        assert_eq!(done.denial_counted, counts, "{quantity} LEAVE {leave}");
        assert_eq!(done.edit.is_some(), counts);
    }
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
fn giving_back_uncounts_the_oldest_entries_and_a_part_of_the_next() {
    for (amount, left) in [
        (1, vec![(0, 1, 0), (10_000, 3, 0), (20_000, 1, 0)]),
        (2, vec![(10_000, 3, 0), (20_000, 1, 0)]),
        (3, vec![(10_000, 2, 0), (20_000, 1, 0)]),
        (4, vec![(10_000, 1, 0), (20_000, 1, 0)]),
        (5, vec![(20_000, 1, 0)]),
        (6, vec![]),
        (7, vec![]),
        (i64::MAX, vec![]),
    ] {
        assert_eq!(given_back("1s", 9, &[2, 3, 1], amount).entries(), left, "{amount}");
    }
}

#[test]
fn giving_back_takes_denied_calls_in_their_turn() {
    // Two are admitted, the third and the fourth denied, and each counts.
    for (amount, left) in [
        (1, vec![(0, 1, 0), (10_000, 1, 0), (20_000, 2, 0)]),
        (2, vec![(10_000, 1, 0), (20_000, 2, 0)]),
        (3, vec![(20_000, 2, 0)]),
        (4, vec![(20_000, 1, 0)]),
        (5, vec![]),
    ] {
        let world = given_back("1s", 2, &[2, 1, 2], amount);
        assert_eq!(world.entries(), left, "{amount}");
        assert!(world.zset.events().all(|event| event.denied == (event.newest_us > START_US)));
    }
}

#[test]
fn giving_back_from_a_folded_entry_leaves_its_time() {
    // A bucket of 100 ms holds all three.
    for (amount, left) in
        [(1, vec![(20_000, 5, 20_000)]), (5, vec![(20_000, 1, 20_000)]), (6, vec![])]
    {
        assert_eq!(given_back("1s/10", 9, &[2, 3, 1], amount).entries(), left, "{amount}");
    }
    // Three folded, and three more beside them.
    for (amount, left) in [
        (2, vec![(10_000, 1, 10_000), (30_000, 3, 10_000)]),
        (3, vec![(30_000, 3, 10_000)]),
        (4, vec![(30_000, 2, 10_000)]),
    ] {
        assert_eq!(given_back("1s/50", 9, &[2, 1, 1, 2], amount).entries(), left, "{amount}");
    }
}

#[test]
fn giving_back_in_a_calendar_window_takes_from_its_one_entry() {
    for (amount, left) in [(1, vec![(20_000, 5, 20_000)]), (6, vec![])] {
        assert_eq!(given_back("1d@UTC", 9, &[2, 3, 1], amount).entries(), left, "{amount}");
    }
    // What the window before counted is not touched.
    let rule = rule("1s@UTC");
    let mut world = WindowWorld::new();
    world.call(&rule, 9, &ask(3), ModelCommand::Count);
    world.pass(1_000_000);
    let done = world.call(&rule, 9, &ask(-2), ModelCommand::Count);
    assert_eq!((done.counted, done.edit), (0, None));
    world.call(&rule, 9, &ask(2), ModelCommand::Count);
    world.call(&rule, 9, &ask(-5), ModelCommand::Count);
    assert_eq!(world.entries(), [(0, 3, 0)]);
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
fn a_longer_period_may_count_again_what_was_uncounted() {
    let (short, long) = (rule("1s"), rule("10s"));
    let mut world = WindowWorld::new();
    world.call(&short, 9, &ask(1), ModelCommand::Count);
    world.pass(1_000_000);
    world.call(&short, 9, &ask(5), ModelCommand::Count);
    world.pass(1);
    world.call(&short, 9, &ask(1), ModelCommand::Count);
    world.call(&short, 9, &ask(-5), ModelCommand::Count);
    assert_eq!(world.entries(), [(0, 1, 0), (1_000_001, 1, 0)]);
    let done = world.call(&long, 9, &ask(0), ModelCommand::Count);
    assert_eq!(done.decision.remaining, 2);
    // They leave with the entry behind them.
    world.now_us = START_US + 10_000_000;
    assert_eq!(world.call(&long, 9, &ask(0), ModelCommand::Count).decision.remaining, 8);
}

// ---- Sums near the largest ----

/// RL.WINDOW k 2^63-2 10ms 2^63-2 BUCKETS 1; after 25 ms two single calls; then the clock goes back by an hour.
#[test]
fn a_clock_that_goes_back_over_large_sums_contradicts_nothing() {
    let folded = rule("10ms/1");
    for (text, back_us) in [
        ("10ms/1", -3_600_000_000),
        ("10ms/1", -20_000),
        ("10ms", -20_000),
        ("1h", 0),
        ("1h/1", 0),
        ("1d@UTC", 0),
    ] {
        let mut world = WindowWorld::new();
        let most = i64::MAX - 1;
        let limit = MAX_SUM - 1;
        assert!(world
            .call(&folded, limit, &ask(most), ModelCommand::Count)
            .decision
            .verdict
            .allowed());
        world.pass(25_000);
        for _ in 0..2 {
            assert!(world
                .call(&folded, limit, &ask(1), ModelCommand::Count)
                .decision
                .verdict
                .allowed());
        }
        world.pass(back_us);
        // Nothing is forgotten that the call can see, and all leaves in time.
        let rule = rule(text);
        let done = world.call(&rule, limit, &ask(1), ModelCommand::Count);
        assert!(done.counted >= 2, "{text}");
        let reset_us = done.decision.reset_after_us;
        world.now_us += reset_us;
        assert_eq!(
            world.call(&rule, limit, &ask(0), ModelCommand::Count).decision.remaining,
            limit
        );
    }
}

/// COUNTDENIED at a limit and a quantity of 2^63 - 1 beside a reservation: the sum saturates, and the wait stays right.
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
        // `call` waits as it was told, and a microsecond less.
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
            let moment = rule.at(world.now_us).unwrap();
            let live = world.live_entries(&rule);
            let before = WindowCount::read(&mut world.zset, moment).unwrap().counted();
            let done = plain_call(&mut world, &rule, limit, &ask(quantity), ModelCommand::Count);
            if done.decision.verdict.allowed() {
                most = most.max(world.dead_entries(&rule));
            }
            // Nothing that counts is dropped.
            assert!(world.live_entries(&rule) >= live);
            assert_eq!(done.counted, before);
            let after = WindowCount::read(&mut world.zset, moment).unwrap().counted();
            assert_eq!(after, before + done.decision.verdict.taken());
        }
        assert!(most <= MOST_DEAD, "{text} {limit}: {most} dead entries");
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
        let trimmed = done.edit.unwrap().trim;
        assert!(trimmed <= trim::MOST);
        left -= trimmed;
        assert_eq!(world.zset.len(), left + call);
    }
    assert!(left <= MOST_DEAD, "{left} dead entries");
    // A call that takes nothing drops nothing.
    world.pass(20_000);
    for ask in [ask(0), ask(-1), ask(1_001)] {
        assert_eq!(plain_call(&mut world, &rule, 1_000, &ask, ModelCommand::Count).edit, None);
    }
}

/// Each entry is dead when the next comes.
#[test]
fn dead_entries_go_four_at_a_time_from_a_small_set_and_eight_from_a_large_one() {
    let rule = rule("10ms");
    let mut world = WindowWorld::new();
    let call = |world: &mut WindowWorld| {
        world.pass(20_000);
        let done = plain_call(world, &rule, 1_000, &ask(1), ModelCommand::Count);
        done.edit.unwrap().trim
    };
    let trimmed: Vec<usize> = (0..10).map(|_| call(&mut world)).collect();
    assert_eq!(trimmed, [0, 0, 0, 0, 4, 0, 0, 0, 4, 0]);
    // As many live entries that nothing is removed by their number alone.
    for _ in 0..200 {
        world.pass(1);
        plain_call(&mut world, &rule, 1_000, &ask(1), ModelCommand::Count);
    }
    let live = world.zset.len();
    let mut most_dead = 0;
    for _ in 0..100 {
        world.pass(50);
        plain_call(&mut world, &rule, 1_000, &ask(1), ModelCommand::Count);
        let window_count =
            WindowCount::read(&mut world.zset, rule.at(world.now_us).unwrap()).unwrap();
        most_dead = most_dead.max(world.zset.len() - window_count.counted() as usize);
    }
    assert!(live > trim::SMALL && most_dead < trim::ENOUGH, "{live} {most_dead}");
}

/// Dead entries whose sum leaves no room for what is counted go at once, however many they are.
#[test]
fn dead_entries_that_stand_in_the_way_of_counting_go_at_once() {
    let rule = rule("10ms");
    let mut world = WindowWorld::new();
    for _ in 0..100 {
        world.pass(1);
        let weight = i64::MAX / 100;
        assert!(plain_call(&mut world, &rule, MAX_SUM, &ask(weight), ModelCommand::Count)
            .decision
            .verdict
            .allowed());
    }
    world.pass(20_000);
    let done = plain_call(&mut world, &rule, MAX_SUM, &ask(i64::MAX), ModelCommand::Count);
    assert!(done.decision.verdict.allowed());
    assert_eq!((done.edit.unwrap().trim, world.zset.len()), (100, 1));
    assert_eq!(
        WindowCount::read(&mut world.zset, rule.at(world.now_us).unwrap()).unwrap().counted(),
        MAX_SUM
    );
}

/// The total has passed 2^64 since a huge entry died, and so has the sum of all with the one that comes.
#[test]
fn a_huge_event_drops_what_died_before_the_total_began_anew() {
    let rule = rule("10ms");
    let mut world = WindowWorld::new();
    let dead = |total: u64, weight: u64, us: u64| {
        let newest_us = START_US - us;
        Event { newest_us, span_us: 0, total, weight, denied: false }
    };
    let small = trim::WATCHED - 1;
    world.zset.add(&dead(0u64.wrapping_sub(1), MAX_SUM, 50_000));
    world.zset.add(&dead(small - 1, small, 40_000));
    // Not by a call that counts little.
    world.pass(1);
    assert_eq!(
        plain_call(&mut world, &rule, MAX_SUM, &ask(1), ModelCommand::Count).edit.unwrap().trim,
        0
    );
    world.pass(20_000);
    let done = plain_call(&mut world, &rule, MAX_SUM, &ask(i64::MAX), ModelCommand::Count);
    assert!(done.decision.verdict.allowed());
    assert_eq!((done.edit.unwrap().trim, world.zset.len()), (3, 1));
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

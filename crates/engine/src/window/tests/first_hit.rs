//! Windows that the first event opens, compared with a model: one number, and when it began to count.

use super::*;
use crate::period::Period;
use crate::properties::cases;
use proptest::prelude::*;

const MAX_ENTRIES: u32 = 1;

#[derive(Clone, Copy, Debug)]
enum HitStep {
    Pass(u64),
    GoBack(u64),
    Take { quantity: u64, leave: u64, manner: Manner, kind: ModelCommand },
    GiveBack(u64),
    Apply { nth: usize, quantity: u64 },
    Release { nth: usize },
}

/// A window as the words say it: when its first event came, and how much was counted since.
#[derive(Clone, Copy, Debug, Default)]
struct HitWindow {
    start_us: u64,
    counted: u64,
}

#[derive(Clone, Copy, Debug)]
struct HitReserved {
    end_us: u64,
    lease_us: u64,
    quantity: u64,
}

struct HitWorld {
    rule: Rule,
    length: Length,
    limit: u64,
    now_us: u64,
    zset: Zset,
    window: HitWindow,
    reserved: Vec<HitReserved>,
    went_back: bool,
}

fn rule_now(rule: &Rule, now_us: u64) -> RuleNow {
    rule.at(now_us, &mut Zones::new()).unwrap()
}

impl HitWorld {
    fn new(period: &str, limit: u64) -> HitWorld {
        let text = format!("{period}^first");
        HitWorld {
            rule: Rule::parse(text.as_bytes(), &mut Zones::new()).unwrap(),
            length: Period::parse(period.as_bytes()).unwrap().length(),
            limit,
            now_us: START_US,
            zset: Zset::default(),
            window: HitWindow::default(),
            reserved: Vec::new(),
            went_back: false,
        }
    }

    /// The window as a call sees it: it did not begin in the future, and it may have ended.
    fn window_now(&self) -> HitWindow {
        let start_us = self.window.start_us.min(self.now_us);
        let over = self.length.leaves_us(start_us) <= self.now_us;
        HitWindow { start_us, counted: if over { 0 } else { self.window.counted } }
    }

    fn ends_us(&self, window: HitWindow) -> u64 {
        self.length.leaves_us(window.start_us)
    }

    fn count(&mut self, quantity: u64) {
        let seen = self.window_now();
        self.window = match seen.counted {
            0 => HitWindow { start_us: self.now_us, counted: quantity },
            counted => HitWindow { counted: counted + quantity, ..seen },
        };
    }

    fn live(&self) -> Vec<Hold> {
        let end_us = |one: &HitReserved| one.end_us.min(self.now_us + one.lease_us);
        let live = self.reserved.iter().filter(|one| end_us(one) > self.now_us);
        live.map(|one| Hold { gone_us: end_us(one), quantity: one.quantity }).collect()
    }

    fn held_at(&self, us: u64) -> u64 {
        self.live().iter().filter(|one| one.gone_us > us).map(|one| one.quantity).sum()
    }

    /// Returns when `least` is free. Tries each moment at which an event leaves.
    fn free_at_us(&self, least: u64) -> u64 {
        let seen = self.window_now();
        let mut moments: Vec<u64> = self.live().iter().map(|one| one.gone_us).collect();
        moments.push(self.ends_us(seen));
        moments.sort_unstable();
        let free = |us: u64| {
            let counted = if us < self.ends_us(seen) { seen.counted } else { 0 };
            counted + self.held_at(us) + least <= self.limit
        };
        moments.into_iter().find(|us| free(*us)).unwrap()
    }

    fn call(&mut self, ask: &Ask, kind: ModelCommand) -> ModelReply {
        let leases: SortedHolds = self.live().into_iter().collect();
        let rule_now = rule_now(&self.rule, self.now_us);
        let call = ModelCall {
            rule_now,
            limit: self.limit,
            max_entries: MAX_ENTRIES,
            max_healed: 64,
            ask: *ask,
            kind,
            barred: false,
        };
        call.make(&mut self.zset, &leases).unwrap()
    }

    /// Compares the reply with the model.
    fn compare(&self, decision: &Decision, verdict: Verdict) {
        let seen = self.window_now();
        let used = seen.counted + self.held_at(self.now_us);
        let ends_us = if seen.counted > 0 { self.ends_us(seen) } else { 0 };
        let last_us = self.live().iter().map(|one| one.gone_us).max().unwrap_or(0).max(ends_us);
        let expected = Decision {
            verdict,
            limit: self.limit,
            remaining: self.limit.saturating_sub(used),
            reset_after_us: last_us.saturating_sub(self.now_us),
            ..*decision
        };
        assert_eq!(*decision, expected, "{:?}", self.window);
    }

    fn take(&mut self, quantity: u64, leave: u64, manner: Manner, kind: ModelCommand) {
        let ask = Ask { leave, manner, ..Ask::whole(Quantity::Take(quantity)) };
        let seen = self.window_now();
        let free = self.limit.saturating_sub(seen.counted + self.held_at(self.now_us));
        if kind != ModelCommand::Look {
            self.heal_reserved();
        }
        let least = leave + if manner == Manner::AtMost { 1 } else { quantity };
        let forced = manner == Manner::Force;
        let done = self.call(&ask, kind);
        let look = kind == ModelCommand::Look;
        if forced || least <= free {
            let taken =
                if manner == Manner::AtMost { quantity.min(free - leave) } else { quantity };
            match kind {
                ModelCommand::Count | ModelCommand::CountDenied => self.count(taken),
                ModelCommand::Look => {}
                ModelCommand::Hold(lease_ms) => {
                    self.window.start_us = self.window.start_us.min(self.now_us);
                    let lease_us = lease_ms * 1_000;
                    let end_us = self.now_us + lease_us;
                    self.reserved.push(HitReserved { end_us, lease_us, quantity: taken });
                }
            }
            return self.compare(&done.decision, Verdict::taking(taken));
        }
        if least > self.limit {
            return self.compare(&done.decision, Verdict::Never);
        }
        if !look {
            self.window.start_us = self.window.start_us.min(self.now_us);
        }
        let enough_without_leave = least - leave <= free;
        if kind == ModelCommand::CountDenied && !enough_without_leave && quantity <= self.limit {
            self.count(quantity);
        }
        let wait_us = self.free_at_us(least) - self.now_us;
        let obstacle = match kind {
            ModelCommand::Hold(_) if least + self.window_now().counted <= self.limit => {
                Obstacle::Held
            }
            _ => Obstacle::Counted,
        };
        self.compare(&done.decision, Verdict::Denied { wait_us, obstacle });
        // Looking heals nothing that came from the future.
        if !look || !self.went_back {
            self.wait_is_right(&ask, wait_us);
        }
    }

    /// A call that takes rewrites what was left behind when the clock was set back.
    fn heal_reserved(&mut self) {
        for one in &mut self.reserved {
            one.end_us = one.end_us.min(self.now_us + one.lease_us);
        }
    }

    /// The same call is allowed after the wait, and not a microsecond before.
    fn wait_is_right(&mut self, ask: &Ask, wait_us: u64) {
        let now_us = self.now_us;
        for (us, allowed) in [(now_us + wait_us, true), (now_us + wait_us - 1, false)] {
            self.now_us = us;
            assert_eq!(self.call(ask, ModelCommand::Look).decision.verdict.allowed(), allowed);
        }
        self.now_us = now_us;
    }

    fn give_back(&mut self, amount: u64) {
        let quantity = Quantity::GiveBack(amount);
        let done = self.call(&Ask::whole(quantity), ModelCommand::Count);
        let seen = self.window_now();
        assert_eq!(done.edit.is_some(), seen.counted > 0);
        if seen.counted > 0 {
            self.window = HitWindow { counted: seen.counted.saturating_sub(amount), ..seen };
        }
        self.compare(&done.decision, Verdict::taking(0));
    }

    fn apply(&mut self, nth: usize, quantity: u64) {
        if self.reserved.is_empty() {
            return;
        }
        self.reserved.remove(nth % self.reserved.len());
        let mut window_count =
            WindowCount::read(&mut self.zset, rule_now(&self.rule, self.now_us)).unwrap();
        let edit = window_count.plan(&mut self.zset, event(quantity), 64).unwrap();
        self.zset.apply(&edit);
        self.count(quantity);
    }

    fn make(&mut self, step: HitStep) {
        match step {
            HitStep::Pass(us) => self.now_us += us,
            HitStep::GoBack(us) => {
                self.now_us -= us;
                self.went_back = true;
            }
            HitStep::Take { quantity, leave, manner, kind } => {
                let forced = manner == Manner::Force;
                let kind = if forced { ModelCommand::Count } else { kind };
                self.take(quantity, if forced { 0 } else { leave }, manner, kind);
            }
            HitStep::GiveBack(amount) => self.give_back(amount),
            HitStep::Apply { nth, quantity } => self.apply(nth, quantity),
            HitStep::Release { nth } => {
                if !self.reserved.is_empty() {
                    self.reserved.remove(nth % self.reserved.len());
                }
            }
        }
        assert!(self.zset.entries().count() <= 1, "there is more than one entry");
    }
}

fn steps() -> impl Strategy<Value = Vec<HitStep>> {
    let us = || prop_oneof![0..3u64, 0..2_000_000u64, 900_000..1_100_000u64];
    let manner = prop_oneof![
        4 => Just(Manner::Whole),
        1 => Just(Manner::AtMost),
        1 => Just(Manner::Force),
    ];
    let kind = prop_oneof![
        Just(ModelCommand::Count),
        Just(ModelCommand::CountDenied),
        Just(ModelCommand::Look),
        (1..1_500u64).prop_map(ModelCommand::Hold),
    ];
    let take = (1..6u64, prop_oneof![2 => Just(0), 1 => 0..3u64], manner, kind).prop_map(
        |(quantity, leave, manner, kind)| HitStep::Take { quantity, leave, manner, kind },
    );
    let step = prop_oneof![
        3 => us().prop_map(HitStep::Pass),
        1 => us().prop_map(HitStep::GoBack),
        6 => take,
        1 => (1..4u64).prop_map(HitStep::GiveBack),
        1 => (0..9usize, 1..4u64).prop_map(|(nth, quantity)| HitStep::Apply { nth, quantity }),
        1 => (0..9usize).prop_map(|nth| HitStep::Release { nth }),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_window_from_the_first_event_on_is_one_number_and_its_beginning(
        period in proptest::sample::select(&["1ms", "1000ms", "1s", "2s", "1min", "1mo"][..]),
        limit in 0..7u64,
        steps in steps(),
    ) {
        let mut world = HitWorld::new(period, limit);
        for step in steps {
            world.make(step);
        }
    }
}

/// The entry that counts stays where it is until the others of the future have gone, a bounded number with each call.
#[test]
fn many_entries_from_the_future_go_in_parts_and_only_the_newest_counts() {
    for quantity in [1, -1, -9] {
        let mut world = HitWorld::new("10s", 5);
        for nth in 0..300 {
            let newest_us = START_US + 1_000 + nth;
            world.zset.add(&Entry {
                newest_us,
                span_us: 0,
                total: 2 * nth + 2,
                weight: 2,
                denied: false,
            });
        }
        let ask = |quantity| {
            let quantity = Quantity::from_signed(quantity);
            Ask::whole(quantity)
        };
        let decision = world.call(&ask(quantity), ModelCommand::Count).decision;
        let counted = u64::try_from((2 + quantity).max(0)).unwrap();
        assert_eq!(decision.remaining, 5 - counted, "{quantity}");
        assert_eq!(decision.reset_after_us, if counted > 0 { 10_000_000 } else { 0 }, "{quantity}");
        if counted == 0 {
            // What is given back whole goes in one piece, and takes the others of the future with it.
            assert_eq!(world.zset.entries().count(), 0);
            continue;
        }
        world.now_us += 4_000_000;
        world.now_us -= 3_999_500;
        for left in [172, 108, 44, 1] {
            let decision = world.call(&ask(9), ModelCommand::CountDenied).decision;
            assert_eq!((decision.verdict, decision.remaining), (Verdict::Never, 5 - counted));
            let denied = world.call(&ask(5), ModelCommand::Count).decision;
            assert_eq!(denied.remaining, 5 - counted);
            assert_eq!(denied.reset_after_us, 9_999_500, "{left}");
            assert_eq!(world.zset.entries().count(), left);
        }
    }
}

#[test]
fn of_a_key_from_another_rule_the_newest_entry_alone_counts() {
    let mut world = HitWorld::new("10s", 5);
    let mut total = 0;
    for (ago_us, weight) in (0..300).map(|nth| (9_000_000 - nth * 10_000, 1)) {
        total += weight;
        let newest_us = START_US - ago_us;
        world.zset.add(&Entry { newest_us, span_us: 0, total, weight, denied: false });
    }
    let ask = Ask::whole(Quantity::Take(1));
    let decision = world.call(&ask, ModelCommand::Count).decision;
    // Its first event came 6.01 s ago.
    assert_eq!((decision.remaining, decision.reset_after_us), (3, 3_990_000));
    // The others go, a bounded number with each call.
    for left in [236, 172, 108, 44, 1, 1] {
        world.call(&Ask { manner: Manner::Force, ..ask }, ModelCommand::Count);
        assert!(world.zset.entries().count() <= left + 64, "{left}");
    }
    assert_eq!(world.zset.entries().count(), 1);
}

//! Any calls on one window, compared with a list of the admitted events. Nothing panics or contradicts itself, no admitted
//! event is lost, no period has more than the limit, and the returned wait suffices while a microsecond less does not.
#![no_main]

use arbitrary::Arbitrary;
use engine::calendar::Zones;
use engine::entry::{Entry, MAX_SUM};
use engine::memory::Zset;
use engine::model::{ModelCall, ModelCommand, ModelReply};
use engine::reservation::Hold;
use engine::reservations::SortedHolds;
use engine::rule::{Rule, RuleNow};
use engine::window::{EventChange, EventEdit, WindowCount};
use engine::{Ask, Manner, Quantity, Refusal, Verdict};
use libfuzzer_sys::fuzz_target;

const RULES: [&str; 14] = [
    "1ms", "10ms", "1s", "60s", "1mo", "1s/1", "60s/10", "60s/4096", "1y/12", "1min@UTC",
    "1d@America/New_York", "7min@Asia/Kathmandu=tots0u", "1mo@Europe/Berlin=1jqy0", "-",
];
const START_US: u64 = 1_795_223_799_544_558;
/// 1 January 2200.
const LATE_US: u64 = 7_258_118_400_000_000;

#[derive(Arbitrary, Debug)]
struct WindowInput {
    rule: u8,
    limit: u64,
    shift: u8,
    /// The initial total, so that it also wraps.
    total: u64,
    steps: Vec<WindowStep>,
}

#[derive(Arbitrary, Debug)]
enum WindowStep {
    Pass { us: u64, shift: u8 },
    GoBack { us: u64, shift: u8 },
    Take { quantity: u64, shift: u8, way: WindowWay, kind: TakeKind, barred: bool },
    GiveBack { quantity: u64, shift: u8 },
    Apply { quantity: u64, shift: u8 },
    Release { nth: u8 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum WindowWay {
    Whole,
    AtMost,
    Leave { leave: u64, shift: u8, atmost: bool },
    Force,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum TakeKind {
    Count,
    CountDenied,
    Hold { lease_ms: u64, shift: u8 },
    Look,
}

#[derive(Clone, Copy, Debug)]
struct FuzzedEvent {
    at_us: u64,
    weight: u64,
}

#[derive(Clone, Copy, Debug)]
struct FuzzedReserved {
    end_us: u64,
    lease_us: u64,
    quantity: u64,
}

struct FuzzedWindow {
    rule: Rule,
    zones: Zones,
    limit: u64,
    now_us: u64,
    zset: Zset,
    counted: Vec<FuzzedEvent>,
    leases: Vec<FuzzedReserved>,
    /// Entries are distinct to the microsecond: no denied call and nothing beyond the limit was counted.
    exact: bool,
    gave_back: bool,
    stepped_back: bool,
    /// The events of the list exceed the largest sum, after some that had left counted again.
    overflowed: bool,
}

fn small(value: u64, shift: u8) -> u64 {
    value >> (shift % 64)
}

fn live(rule_now: &RuleNow, at_us: u64) -> bool {
    rule_now.horizon_us().is_none_or(|horizon_us| at_us.min(rule_now.now_us()) > horizon_us)
}

impl FuzzedWindow {
    fn rule_now(&mut self, now_us: u64) -> RuleNow {
        self.rule.at(now_us, &mut self.zones).expect("a year that the calendar knows")
    }

    fn held(&self, now_us: u64) -> SortedHolds {
        let end_us = |one: &FuzzedReserved| one.end_us.min(now_us.saturating_add(one.lease_us));
        let live = self.leases.iter().filter(|one| end_us(one) > now_us);
        live.map(|one| Hold { gone_us: end_us(one), quantity: one.quantity }).collect()
    }

    fn call(
        &mut self,
        now_us: u64,
        ask: &Ask,
        kind: ModelCommand,
        barred: bool,
    ) -> Result<ModelReply, Refusal> {
        let (rule_now, held) = (self.rule_now(now_us), self.held(now_us));
        let (limit, max_entries, max_healed) = (self.limit, 4096, usize::MAX);
        let call = ModelCall { rule_now, limit, max_entries, max_healed, ask: *ask, kind, barred };
        call.make(&mut self.zset, &held)
    }

    fn look(&mut self, now_us: u64, ask: &Ask) -> ModelReply {
        self.call(now_us, ask, ModelCommand::Look, false).expect("no contradiction")
    }

    /// Compares the counted sum with the list.
    fn compare(&mut self, rule_now: &RuleNow, counted: u64) {
        if self.overflowed {
            return;
        }
        let lives: u128 = self
            .counted
            .iter()
            .filter(|one| live(rule_now, one.at_us))
            .map(|one| u128::from(one.weight))
            .sum();
        // No sum is larger, even if events that had left count again. A give-back then reduces that sum.
        let known = lives.min(u128::from(MAX_SUM));
        self.overflowed = known < lives;
        assert!(u128::from(counted) >= known, "{counted} counted, {lives} admitted");
        // Events that were given back may count again if the clock is set back.
        if self.exact && !self.overflowed && !(self.gave_back && self.stepped_back) {
            assert_eq!(u128::from(counted), lives);
        }
    }

    /// Applies the edit of a call to the lists. `times` are the times of the entries before the call.
    fn note(&mut self, rule_now: &RuleNow, edit: &EventEdit, times: &[u64]) {
        let now_us = rule_now.now_us();
        if let Some(last) = edit.dropped.checked_sub(1) {
            assert!(!live(rule_now, times[last]), "a live entry is dropped");
            self.counted.retain(|one| one.at_us > times[last]);
        }
        for one in &mut self.counted {
            one.at_us = one.at_us.min(now_us);
        }
        for one in &mut self.leases {
            one.end_us = one.end_us.min(now_us.saturating_add(one.lease_us));
        }
    }

    fn make(&mut self, ask: &Ask, kind: ModelCommand, barred: bool) {
        let now_us = self.now_us;
        let rule_now = self.rule_now(now_us);
        let semaphore = matches!(self.rule, Rule::Semaphore);
        let times: Vec<u64> = self.zset.entries().map(|one| one.newest_us).collect();
        let first = self.zset.entries().find(|one| live(&rule_now, one.newest_us));
        let held = self.held(now_us).total();
        let done = match self.call(now_us, ask, kind, barred) {
            Err(Refusal::SumTooLarge) => return assert_eq!(ask.manner, Manner::Force),
            done => done.expect("no contradiction"),
        };
        if !semaphore {
            self.compare(&rule_now, done.counted);
        }
        if let Some(edit) = &done.edit {
            self.note(&rule_now, edit, &times);
        }
        let used = u128::from(done.counted) + held;
        match (done.decision.verdict, ask.quantity) {
            (_, Quantity::Look) => assert_eq!(done.edit, None),
            (verdict, Quantity::GiveBack(amount)) => {
                assert_eq!((verdict, done.edit.is_some()), (Verdict::taking(0), done.counted > 0));
                let left = done.counted.saturating_sub(amount);
                if self.gave_back && self.stepped_back {
                    // Events that were given back and counted again leave with the entry before them.
                    assert!(done.window_count.counted() <= left);
                } else {
                    assert_eq!(done.window_count.counted(), left);
                }
                self.give_back(amount, first.map_or(u64::MAX, |first| first.first_us()));
            }
            (Verdict::Allowed { taken, .. }, Quantity::Take(wanted)) => {
                if ask.manner == Manner::Force {
                    assert_eq!(taken, wanted);
                    self.exact &= used + u128::from(taken) <= u128::from(self.limit);
                } else {
                    assert!(taken > 0 && !barred);
                    let after = used + u128::from(taken) + u128::from(ask.leave);
                    assert!(after <= u128::from(self.limit));
                }
                match kind {
                    ModelCommand::Look => assert_eq!(done.edit, None),
                    ModelCommand::Hold(lease_ms) => {
                        let lease_us = lease_ms * 1_000;
                        let end_us = now_us.saturating_add(lease_us);
                        self.leases.push(FuzzedReserved { end_us, lease_us, quantity: taken });
                    }
                    ModelCommand::Count | ModelCommand::CountDenied => {
                        self.counted.push(FuzzedEvent { at_us: now_us, weight: taken });
                    }
                }
            }
            (Verdict::Never, _) => {
                let min_taken =
                    if ask.manner == Manner::AtMost { 1 } else { ask.quantity.wanted() };
                assert!(u128::from(min_taken) + u128::from(ask.leave) > u128::from(self.limit));
                assert_eq!(done.edit, None);
            }
            (Verdict::Denied { wait_us, .. }, _) => {
                self.exact &= !done.denial_counted;
                // A denied call rewrites leases from the future.
                for one in &mut self.leases {
                    one.end_us = one.end_us.min(now_us.saturating_add(one.lease_us));
                }
                self.wait_is_right(ask, kind, wait_us, barred);
            }
        }
        if done.edit.is_some() && !semaphore {
            let again = WindowCount::read(&mut self.zset, rule_now).expect("no contradiction");
            assert!(!again.has_future());
            assert_eq!(again.counted(), done.window_count.counted());
            self.compare(&rule_now, again.counted());
        }
    }

    fn wait_is_right(&mut self, ask: &Ask, kind: ModelCommand, wait_us: u64, barred: bool) {
        let then_us = self.now_us.saturating_add(wait_us);
        assert!(wait_us > 0 && (!barred || wait_us >= 1_000));
        // A look does not heal the key.
        if kind == ModelCommand::Look && self.stepped_back || then_us >= LATE_US {
            return;
        }
        assert!(self.look(then_us, ask).decision.verdict.allowed(), "{wait_us} is too short");
        if !barred {
            let before = self.look(then_us - 1, ask).decision.verdict;
            assert!(!before.allowed(), "{wait_us} is too long");
        }
    }

    /// Removes the oldest events from the list, starting at `since_us`, where the oldest entry that counts begins.
    fn give_back(&mut self, mut left: u64, since_us: u64) {
        self.gave_back = true;
        let since_us = since_us.min(self.now_us);
        for one in self.counted.iter_mut().filter(|one| one.at_us >= since_us) {
            let gone = one.weight.min(left);
            one.weight -= gone;
            left -= gone;
        }
        self.counted.retain(|one| one.weight > 0);
    }

    fn apply(&mut self, weight: u64) {
        let rule_now = self.rule_now(self.now_us);
        let mut window_count =
            WindowCount::read(&mut self.zset, rule_now).expect("no contradiction");
        let before = window_count.counted();
        self.compare(&rule_now, before);
        let times: Vec<u64> = self.zset.entries().map(|one| one.newest_us).collect();
        let event = EventChange::Record { weight, denied: false, limit: u64::MAX };
        let edit = window_count.plan(&mut self.zset, event, usize::MAX).expect("no contradiction");
        // After the clock was set back, dead events may count again, so `before` may exceed the list.
        let added = weight.min(MAX_SUM.saturating_sub(before));
        assert_eq!(window_count.counted(), before + added);
        self.zset.apply(&edit);
        self.note(&rule_now, &edit, &times);
        if added > 0 {
            self.counted.push(FuzzedEvent { at_us: self.now_us, weight: added });
        }
    }
}

fuzz_target!(|input: WindowInput| {
    let text = RULES[usize::from(input.rule) % RULES.len()];
    let mut zones = Zones::new();
    let rule = Rule::parse(text.as_bytes(), &mut zones).expect("a rule");
    let mut world = FuzzedWindow {
        rule,
        zones,
        limit: small(input.limit, input.shift).min(MAX_SUM),
        now_us: START_US,
        zset: Zset::default(),
        counted: Vec::new(),
        leases: Vec::new(),
        exact: matches!(rule, Rule::Sliding { buckets: None, .. }),
        gave_back: false,
        stepped_back: false,
        overflowed: false,
    };
    // A semaphore counts no events.
    let semaphore = matches!(rule, Rule::Semaphore);
    if !semaphore {
        let total = input.total;
        let old = Entry { newest_us: START_US - 1, span_us: 0, total, weight: 1, denied: false };
        world.zset.add(&old);
        world.counted.push(FuzzedEvent { at_us: START_US - 1, weight: 1 });
    }
    for step in input.steps.iter().take(100) {
        match *step {
            WindowStep::Pass { us, shift } => {
                world.now_us = world.now_us.saturating_add(small(us, shift)).min(LATE_US);
            }
            WindowStep::GoBack { us, shift } => {
                world.now_us = world.now_us.saturating_sub(small(us, shift)).max(START_US / 2);
                world.stepped_back = true;
            }
            WindowStep::Take { quantity, shift, way, kind, barred } => {
                let quantity = small(quantity, shift).min(MAX_SUM);
                let quantity =
                    if quantity == 0 { Quantity::Look } else { Quantity::Take(quantity) };
                let (leave, manner) = match way {
                    WindowWay::Whole => (0, Manner::Whole),
                    WindowWay::AtMost => (0, Manner::AtMost),
                    WindowWay::Leave { leave, shift, atmost } => {
                        (small(leave, shift), if atmost { Manner::AtMost } else { Manner::Whole })
                    }
                    WindowWay::Force => (0, Manner::Force),
                };
                let kind = match kind {
                    TakeKind::Count => ModelCommand::Count,
                    TakeKind::CountDenied => ModelCommand::CountDenied,
                    TakeKind::Hold { lease_ms, shift } => {
                        ModelCommand::Hold(small(lease_ms, shift).clamp(1, 31_557_600_000))
                    }
                    TakeKind::Look => ModelCommand::Look,
                };
                // A semaphore takes only reservations, and no reservation is forced.
                let kind = if semaphore { ModelCommand::Hold(9) } else { kind };
                let holds = matches!(kind, ModelCommand::Hold(_));
                let whole = if manner == Manner::Force && holds { Manner::Whole } else { manner };
                world.make(&Ask { leave, manner: whole, ..Ask::whole(quantity) }, kind, barred);
            }
            WindowStep::GiveBack { quantity, shift } => {
                let quantity = Quantity::GiveBack(small(quantity, shift).max(1));
                let ask = Ask::whole(quantity);
                if !semaphore {
                    world.make(&ask, ModelCommand::Count, false);
                }
            }
            WindowStep::Apply { quantity, shift } => {
                if !semaphore {
                    world.apply(small(quantity, shift).min(MAX_SUM));
                }
            }
            WindowStep::Release { nth } => {
                if usize::from(nth) < world.leases.len() {
                    world.leases.remove(usize::from(nth));
                }
            }
        }
    }
});

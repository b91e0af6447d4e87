//! Any calls on one window, its entries in a plain list: beside every entry a list of what was admitted and when.
//! Nothing panics or contradicts itself, nothing admitted is ever forgotten, nobody gets more than the limit, and
//! waiting as told is enough and no less is.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redis_ratelimit_fuzz::limit::event::{Event, MAX_SUM};
use redis_ratelimit_fuzz::limit::rule::{Moment, Rule};
use redis_ratelimit_fuzz::limit::window::{
    decision, freed_at_us, Ask, Edit, Events, Held, Judgement, Tally,
};

const RULES: [&str; 12] = [
    "1ms",
    "10ms",
    "1s",
    "60s",
    "1mo",
    "1s/1",
    "60s/10",
    "60s/4096",
    "1y/12",
    "1min@UTC",
    "1d@America/New_York",
    "-",
];
const START_US: u64 = 1_795_223_799_544_558;
/// 1 January 2200.
const LATE_US: u64 = 7_258_118_400_000_000;

#[derive(Arbitrary, Debug)]
struct Input {
    rule: u8,
    limit: u64,
    shift: u8,
    /// What the running total begins with, so that it also runs around.
    total: u64,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Pass { us: u64, shift: u8 },
    StepBack { us: u64, shift: u8 },
    Take { quantity: u64, shift: u8, atmost: bool, barred: bool, count_denied: bool },
    Apply { quantity: u64, shift: u8 },
    Hold { quantity: u64, shift: u8, lease_us: u64, lease_shift: u8 },
    Release { nth: u8 },
}

/// A sorted set as a list in its order.
#[derive(Clone, Debug, Default)]
struct Zset(Vec<(u64, Vec<u8>)>);

impl Zset {
    fn add(&mut self, event: &Event) {
        let member = event.member().as_bytes().to_vec();
        self.0.retain(|(_, old)| *old != member);
        self.0.push((event.newest_us, member));
        self.0.sort();
    }

    /// As the commands write it.
    fn apply(&mut self, edit: &Edit, now_us: u64) {
        if let Some(put) = edit.put {
            self.add(&put);
        }
        if let Some(old) = edit.remove {
            let before = self.0.len();
            self.0.retain(|(_, member)| member != old.member().as_bytes());
            assert!(self.0.len() < before, "{old:?} was not there");
        }
        if edit.remove_future {
            assert!(edit.put.is_some());
            self.0.retain(|(us, _)| *us <= now_us);
        }
    }
}

#[derive(Debug)]
struct Contradiction;

impl Events for Zset {
    type Error = Contradiction;

    fn first_after(&mut self, us: Option<u64>) -> Result<Option<Event>, Contradiction> {
        let found = self.0.iter().find(|(at_us, _)| us.is_none_or(|us| *at_us > us));
        found
            .map(|(at_us, member)| Event::decode(*at_us as f64, member).ok_or(Contradiction))
            .transpose()
    }

    fn last_until(&mut self, us: Option<u64>) -> Result<Option<Event>, Contradiction> {
        let found = self.0.iter().rfind(|(at_us, _)| us.is_none_or(|us| *at_us <= us));
        found
            .map(|(at_us, member)| Event::decode(*at_us as f64, member).ok_or(Contradiction))
            .transpose()
    }

    fn contradiction() -> Contradiction {
        Contradiction
    }
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    at_us: u64,
    weight: u64,
}

struct World {
    rule: Rule,
    limit: u64,
    now_us: u64,
    zset: Zset,
    counted: Vec<Counted>,
    leases: Vec<(u64, u64)>,
    /// Entries are told apart to the microsecond, and no denied call was counted.
    exact: bool,
}

fn live(moment: &Moment, at_us: u64) -> bool {
    moment.left_us().is_none_or(|left_us| at_us.min(moment.now_us()) > left_us)
}

impl World {
    fn moment(&self, now_us: u64) -> Moment {
        self.rule.at(now_us).expect("a year that the calendar knows")
    }

    fn held(&self, now_us: u64) -> Held {
        let mut held = Held::default();
        for (end_us, quantity) in &self.leases {
            if *end_us > now_us {
                held.add(*end_us, *quantity);
            }
        }
        held
    }

    /// Reads, and compares what is counted with the list.
    fn read(&mut self) -> Tally {
        let moment = self.moment(self.now_us);
        let tally = Tally::read(&mut self.zset, moment).expect("no contradiction");
        let lives: u128 = self
            .counted
            .iter()
            .filter(|one| live(&moment, one.at_us))
            .map(|one| u128::from(one.weight))
            .sum();
        assert!(
            u128::from(tally.counted()) >= lives,
            "{} counted, {lives} admitted",
            tally.counted()
        );
        if self.exact {
            assert_eq!(u128::from(tally.counted()), lives);
        }
        tally
    }

    fn write(&mut self, tally: &Tally, trim: bool) {
        let (now_us, edit) = (self.now_us, tally.edit());
        let moment = self.moment(now_us);
        self.zset.apply(&edit, now_us);
        if edit.remove_future {
            for one in &mut self.counted {
                one.at_us = one.at_us.min(now_us);
            }
        }
        if trim {
            // All of the dead, where the commands drop some.
            self.zset.0.retain(|(us, _)| live(&moment, *us));
            self.counted.retain(|one| live(&moment, one.at_us));
        }
    }

    fn record(&mut self, tally: &mut Tally, weight: u64, denied: bool) {
        let before = tally.counted();
        tally.record(weight, denied);
        let added = weight.min(MAX_SUM - before);
        assert_eq!(tally.counted(), before + added);
        if added > 0 && !denied {
            self.counted.push(Counted { at_us: self.now_us, weight: added });
        }
        self.exact &= !denied;
        self.write(tally, true);
    }

    fn take(&mut self, ask: &Ask, count_denied: bool) {
        let mut tally = self.read();
        let mut held = self.held(self.now_us);
        let judgement = ask.judge(tally.counted(), held.total());
        let used = tally.counted().saturating_add(held.total());
        match judgement {
            Judgement::Granted(granted) => {
                assert!(granted <= self.limit.saturating_sub(used));
                assert_eq!(granted > 0, ask.quantity > 0);
                if granted > 0 {
                    self.record(&mut tally, granted, false);
                    assert!(self.read().counted() <= self.limit);
                }
            }
            Judgement::Never => assert!(ask.quantity > self.limit || self.limit == 0),
            Judgement::Wanting { need, .. } => {
                let freed = freed_at_us(&mut self.zset, &tally, &mut held, need);
                let freed_us = freed.expect("no contradiction").expect("all leaves some time");
                let decision = decision(
                    ask,
                    judgement,
                    self.now_us,
                    used,
                    Some(freed_us),
                    tally.empty_at_us(),
                );
                assert_eq!(decision.granted, 0);
                if tally.has_future() {
                    self.write(&tally, false);
                    let healed = self.read();
                    assert!(!healed.has_future());
                    assert!(healed.counted() == tally.counted());
                }
                if need > 0 && freed_us < LATE_US {
                    assert!(freed_us > self.now_us);
                    let alone = Ask { barred: false, ..*ask };
                    for (us, enough) in [(freed_us, true), (freed_us - 1, false)] {
                        let moment = self.moment(us);
                        let then = Tally::read(&mut self.zset, moment).expect("no contradiction");
                        let judged = alone.judge(then.counted(), self.held(us).total());
                        let granted = matches!(judged, Judgement::Granted(_));
                        assert_eq!(granted, enough, "{us}, told {freed_us} at {}", self.now_us);
                    }
                }
                if count_denied && ask.quantity <= self.limit {
                    let mut tally = self.read();
                    self.record(&mut tally, ask.quantity, true);
                }
            }
        }
    }
}

fuzz_target!(|input: Input| {
    let text = RULES[usize::from(input.rule) % RULES.len()];
    let rule = Rule::parse(text.as_bytes()).expect("a rule");
    let mut world = World {
        rule,
        limit: (input.limit >> (input.shift % 64)).min(MAX_SUM),
        now_us: START_US,
        zset: Zset::default(),
        counted: Vec::new(),
        leases: Vec::new(),
        exact: matches!(rule, Rule::Sliding { buckets: None, .. }),
    };
    // It counts no events, and nobody writes them under one.
    let semaphore = matches!(rule, Rule::Semaphore);
    if !semaphore {
        // One that nobody counts any more.
        let total = input.total;
        let old = Event { newest_us: START_US - 1, span_us: 0, total, weight: 1, denied: false };
        world.zset.add(&old);
        world.counted.push(Counted { at_us: START_US - 1, weight: 1 });
    }
    let small = |value: u64, shift: u8| value >> (shift % 64);
    for call in input.calls.iter().take(100) {
        match *call {
            Call::Pass { us, shift } => {
                world.now_us = world.now_us.saturating_add(small(us, shift)).min(LATE_US);
            }
            Call::StepBack { us, shift } => {
                world.now_us = world.now_us.saturating_sub(small(us, shift)).max(START_US / 2);
            }
            Call::Take { quantity, shift, atmost, barred, count_denied } => {
                let quantity = small(quantity, shift).min(MAX_SUM);
                let ask = Ask { limit: world.limit, quantity, atmost, barred };
                if !semaphore {
                    world.take(&ask, count_denied);
                }
            }
            Call::Apply { quantity, shift } => {
                if !semaphore {
                    let mut tally = world.read();
                    world.record(&mut tally, small(quantity, shift).min(MAX_SUM), false);
                }
            }
            Call::Hold { quantity, shift, lease_us, lease_shift } => {
                let quantity = small(quantity, shift).min(MAX_SUM);
                let ask = Ask { limit: world.limit, quantity, atmost: false, barred: false };
                let held = world.held(world.now_us).total();
                let judgement = ask.judge(world.read().counted(), held);
                if matches!(judgement, Judgement::Granted(some) if some > 0) {
                    let lease_us = small(lease_us, lease_shift).clamp(1, 31_557_600_000_000_000);
                    world.leases.push((world.now_us.saturating_add(lease_us), quantity));
                    assert!(world.held(world.now_us).total() <= world.limit);
                }
            }
            Call::Release { nth } => {
                if usize::from(nth) < world.leases.len() {
                    world.leases.remove(usize::from(nth));
                }
            }
        }
    }
});

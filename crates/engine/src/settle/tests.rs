//! The promise of COUNTLAPSED, by brute force: holders take batches, spend them unit by unit while their leases run, and
//! settle what they spent, in time, late or never. No period, and no window of the calendar, has more than limit spent.

use crate::decision::{Ask, Manner, Quantity};
use crate::memory::Memory;
use crate::properties::{cases, START_US};
use crate::request::{Limit, NewReservation, Request, WindowLimit};
use crate::reservation::Id;
use crate::rule::Rule;
use proptest::prelude::*;

const KEY: &[u8] = b"api";

/// Rules, and the most entries of events under them; limits above that share entries.
const RULES: [(&str, u32); 9] = [
    ("10s", 4096),
    ("10s", 3),
    ("700ms", 4096),
    ("10s@UTC", 1),
    ("1min@+05:30", 1),
    ("1h@Asia/Kolkata", 1),
    ("7s@UTC=tnulc0", 1),
    ("10s^first", 1),
    ("700ms^first", 1),
];

#[derive(Clone, Debug)]
enum PromiseStep {
    /// Takes a batch.
    Acquire { quantity: u64, atmost: bool, lease_ms: u64 },
    /// Spends this many units of a batch, if its lease still runs and that many are left.
    Spend { batch: usize, units: u64 },
    /// Settles with what was spent: by RL.APPLY, or by RL.RELEASE if nothing was.
    Settle { batch: usize },
    /// Renews the lease.
    Renew { batch: usize, lease_ms: Option<u64> },
    /// Its holder dies.
    Die { batch: usize },
    /// RL.WINDOW, which spends at once.
    Window { quantity: u64 },
    /// Time goes on.
    Pass { us: u64 },
    /// Time goes on until a lease ends, or to the microsecond before.
    PassTo { batch: usize, before: bool },
    /// The server's clock steps back.
    TurnBack { us: u64 },
}

fn steps() -> impl Strategy<Value = Vec<PromiseStep>> {
    let lease_ms = || prop_oneof![Just(1u64), Just(300), Just(2_000), Just(9_000), Just(70_000)];
    let batch = || 0usize..6;
    let pass = prop_oneof![
        Just(1u64),
        0u64..2_000_000,
        Just(10_000_000),
        Just(9_999_999),
        0u64..90_000_000,
    ];
    let step = prop_oneof![
        6 => (1u64..12, any::<bool>(), lease_ms())
            .prop_map(|(quantity, atmost, lease_ms)| PromiseStep::Acquire { quantity, atmost, lease_ms }),
        9 => (batch(), 1u64..9).prop_map(|(batch, units)| PromiseStep::Spend { batch, units }),
        3 => batch().prop_map(|batch| PromiseStep::Settle { batch }),
        2 => (batch(), proptest::option::of(lease_ms()))
            .prop_map(|(batch, lease_ms)| PromiseStep::Renew { batch, lease_ms }),
        1 => batch().prop_map(|batch| PromiseStep::Die { batch }),
        1 => (1u64..6).prop_map(|quantity| PromiseStep::Window { quantity }),
        5 => pass.prop_map(|us| PromiseStep::Pass { us }),
        2 => (batch(), any::<bool>()).prop_map(|(batch, before)| PromiseStep::PassTo { batch, before }),
        1 => prop_oneof![Just(1u64), 0u64..3_000_000, 0u64..100_000_000]
            .prop_map(|us| PromiseStep::TurnBack { us }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// What a holder knows of its batch. Its clock never steps.
struct PromiseBatch {
    id: Id,
    granted: u64,
    spent: u64,
    lease_ms: u64,
    /// When its lease ends.
    end_us: u64,
}

struct PromiseWorld {
    memory: Memory,
    window: WindowLimit,
    /// The time that passes, which nobody can set.
    now_us: u64,
    /// By how much the server's clock was set back.
    back_us: u64,
    batches: Vec<PromiseBatch>,
    made: u64,
    /// When units were spent, and how many.
    spent: Vec<(u64, u64)>,
    /// When windows began, where the first event opens one.
    opened: Vec<u64>,
}

impl PromiseWorld {
    fn server_us(&self) -> u64 {
        self.now_us - self.back_us
    }

    fn expires_us(&self, us: u64) -> u64 {
        let expires_us = self.memory.zones(|zones| self.window.rule.expires_us(us, zones));
        expires_us.expect("a year we know")
    }

    /// An event is counted now.
    fn count(&mut self) {
        let now_us = self.now_us;
        if self.opened.last().is_none_or(|opened| self.expires_us(*opened) <= now_us) {
            self.opened.push(now_us);
        }
    }

    fn ask(&self, limit: Limit, quantity: u64, atmost: bool) -> Request {
        let manner = if atmost { Manner::AtMost } else { Manner::Whole };
        let ask = Ask { manner, ..Ask::whole(Quantity::Take(quantity)) };
        Request { ask, ..Request::new(limit) }
    }

    fn step(&mut self, step: &PromiseStep) {
        let server_us = self.server_us();
        match *step {
            PromiseStep::Acquire { quantity, atmost, lease_ms } => {
                self.made += 1;
                let id = Id::from(self.made.to_string().as_bytes());
                let reserve = NewReservation {
                    lease_ms,
                    count_lapsed: true,
                    id: Some(id),
                    max_reservations: u64::MAX,
                };
                let request = self.ask(Limit::Reserve(self.window, reserve), quantity, atmost);
                let decision = self.memory.decide(KEY, &request, server_us, || unreachable!());
                let decision = decision.unwrap();
                let granted = decision.verdict.taken();
                assert_eq!(decision.id.is_some(), granted > 0);
                assert!(granted == quantity || granted == 0 || atmost);
                if granted > 0 {
                    let end_us = self.now_us + lease_ms * 1_000;
                    self.batches.push(PromiseBatch { id, granted, spent: 0, lease_ms, end_us });
                }
            }
            PromiseStep::Spend { batch, units } => {
                let now_us = self.now_us;
                let Some(batch) = self.batches.get_mut(batch) else { return };
                if now_us < batch.end_us {
                    let units = units.min(batch.granted - batch.spent);
                    batch.spent += units;
                    self.spent.push((now_us, units));
                }
            }
            PromiseStep::Settle { batch } if batch < self.batches.len() => {
                let batch = self.batches.remove(batch);
                let (id, spent) = (&batch.id, batch.spent);
                let settled = match spent {
                    0 => self.memory.release(KEY, id, server_us).unwrap(),
                    _ => {
                        let max_entries = self.window.max_entries;
                        let applied =
                            self.memory.apply(KEY, id, Some(spent), max_entries, server_us);
                        let counted = applied.unwrap();
                        if counted {
                            self.count();
                        }
                        counted
                    }
                };
                assert!(settled || self.now_us >= batch.end_us, "it is held while its lease runs");
            }
            PromiseStep::Renew { batch, lease_ms } => {
                let now_us = self.now_us;
                let Some(batch) = self.batches.get_mut(batch) else { return };
                let renewed = self.memory.renew(KEY, &batch.id, lease_ms, server_us).unwrap();
                assert!(renewed || now_us >= batch.end_us);
                if renewed {
                    batch.lease_ms = lease_ms.unwrap_or(batch.lease_ms);
                    batch.end_us = now_us + batch.lease_ms * 1_000;
                }
            }
            PromiseStep::Die { batch } if batch < self.batches.len() => {
                self.batches.remove(batch);
            }
            PromiseStep::Window { quantity } => {
                let request = self.ask(Limit::Window(self.window), quantity, true);
                let decision = self.memory.decide(KEY, &request, server_us, || unreachable!());
                let taken = decision.unwrap().verdict.taken();
                self.spent.push((self.now_us, taken));
                if taken > 0 {
                    self.count();
                }
            }
            PromiseStep::Pass { us } => self.now_us += us,
            PromiseStep::PassTo { batch, before } => {
                let end_us = self.batches.get(batch).map_or(0, |batch| batch.end_us);
                self.now_us = self.now_us.max(end_us - u64::from(before && end_us > 0));
            }
            // A window of the calendar may have more if the clock is set back past its start.
            PromiseStep::TurnBack { us } if matches!(self.window.rule, Rule::Sliding { .. }) => {
                self.back_us += us;
            }
            PromiseStep::Settle { .. } | PromiseStep::Die { .. } | PromiseStep::TurnBack { .. } => {
            }
        }
    }

    /// The most that was ever spent in one period, or in one window of the calendar.
    fn max_spent(&self) -> u64 {
        let spent: Vec<_> =
            self.spent.iter().map(|(us, n)| (*us, *n, self.expires_us(*us))).collect();
        if matches!(self.window.rule, Rule::FromFirst(_)) {
            let in_window = |from_us: u64| {
                let until_us = self.expires_us(from_us);
                let counts = spent.iter().filter(|(us, ..)| (from_us..until_us).contains(us));
                counts.map(|(_, units, _)| units).sum()
            };
            return self.opened.iter().map(|us| in_window(*us)).max().unwrap_or(0);
        }
        let at = |then_us: u64| {
            let counts =
                spent.iter().filter(|(us, _, expires_us)| *us <= then_us && *expires_us > then_us);
            counts.map(|(_, units, _)| units).sum()
        };
        spent.iter().map(|(us, ..)| at(*us)).max().unwrap_or(0)
    }
}

fn max_spent(rule: usize, limit: u64, steps: &[PromiseStep]) -> u64 {
    let memory = Memory::default();
    let (rule, max_entries) = RULES[rule];
    let mut rule = memory.zones(|zones| Rule::parse(rule.as_bytes(), zones)).unwrap();
    if let Rule::Sliding { buckets, .. } = &mut rule {
        *buckets = (limit > u64::from(max_entries)).then_some(max_entries);
    }
    let window = WindowLimit { limit, rule, max_entries };
    let mut world = PromiseWorld {
        memory,
        window,
        now_us: START_US,
        back_us: 0,
        batches: Vec::new(),
        made: 0,
        spent: Vec::new(),
        opened: Vec::new(),
    };
    for step in steps {
        world.step(step);
    }
    world.max_spent()
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn no_period_has_more_than_limit_spent(
        rule in 0..RULES.len(),
        limit in prop_oneof![1u64..10, Just(20)],
        steps in steps(),
    ) {
        prop_assert!(max_spent(rule, limit, &steps) <= limit);
    }
}

//! Any occurrences of any keys at any times, compared with exact counts. No count is too small or too large by more than
//! its stated error, a key that is frequent enough is never missed, what is shown is in order, and memory is bounded.
#![no_main]

use arbitrary::Arbitrary;
use engine::heavy::{HeavyRow, RecentHeavy, Summary, GENERATION_US};
use engine::DbKey;
use libfuzzer_sys::fuzz_target;
use std::collections::{HashMap, HashSet};

#[derive(Arbitrary, Debug)]
struct HeavyInput<'a> {
    most: u8,
    start_us: u64,
    steps: Vec<HeavyStep<'a>>,
}

#[derive(Arbitrary, Debug)]
enum HeavyStep<'a> {
    Add { db: u8, name: &'a [u8], times: u8 },
    Pass { us: u64, shift: u8 },
    Back { us: u64, shift: u8 },
    Show { most: u8 },
}

/// What one generation holds, exactly.
type Exact = HashMap<(i32, Vec<u8>), u64>;

/// The generations as they are described: one begins when the one before it is ten minutes old. If the clock is set back
/// before its beginning, it begins again with what it counted.
#[derive(Default)]
struct HeavyModel {
    now: Exact,
    before: Exact,
    since_us: u64,
}

impl HeavyModel {
    fn turn(&mut self, now_us: u64) {
        if now_us < self.since_us {
            self.since_us = now_us;
        } else if now_us - self.since_us >= 2 * GENERATION_US {
            *self = HeavyModel { since_us: now_us, ..HeavyModel::default() };
        } else if now_us - self.since_us >= GENERATION_US {
            self.before = std::mem::take(&mut self.now);
            self.since_us += GENERATION_US;
        }
    }

    fn times(&self, key: &(i32, Vec<u8>)) -> u64 {
        let of = |exact: &Exact| exact.get(key).copied().unwrap_or(0);
        of(&self.now) + of(&self.before)
    }
}

fn small(value: u64, shift: u8) -> u64 {
    value >> (shift % 64)
}

fn show(
    recent: &mut RecentHeavy,
    model: &mut HeavyModel,
    now_us: u64,
    top_keys: usize,
    most: usize,
) {
    model.turn(now_us);
    let all = recent.heaviest(now_us, usize::MAX);
    assert!(all.len() <= 2 * top_keys);
    assert!(all.windows(2).all(|two| two[0].times.count >= two[1].times.count));
    let mut shown = HashSet::new();
    for HeavyRow { db, name, times: count } in &all {
        let key = (*db, name.to_vec());
        let times = model.times(&key);
        assert!(
            count.count >= times && count.count - count.overcount <= times,
            "{key:?} {count:?} {times}"
        );
        assert!(shown.insert(key));
    }
    let exact = [&model.now, &model.before];
    let total: u64 = exact.iter().flat_map(|exact| exact.values()).sum();
    for key in exact.iter().flat_map(|exact| exact.keys()) {
        if model.times(key) * top_keys as u64 > total {
            assert!(shown.contains(key), "{key:?} of {total}");
        }
    }
    let few = recent.heaviest(now_us, most);
    assert_eq!(few, all[..most.min(all.len())]);
}

fuzz_target!(|input: HeavyInput| {
    let top_keys = usize::from(input.most % 16) + 1;
    let mut recent = RecentHeavy::new(top_keys);
    let mut model = HeavyModel::default();
    let mut now_us = input.start_us >> 2;
    // None at all is no more than nothing.
    let mut none = Summary::new(0);
    for step in input.steps.iter().take(300) {
        match *step {
            HeavyStep::Add { db, name, times } => {
                let db = i32::from(db % 3);
                let key = DbKey { db, name };
                none.add(key);
                for _ in 0..times {
                    recent.add(key, now_us);
                }
                if times > 0 {
                    model.turn(now_us);
                    *model.now.entry((db, name.to_vec())).or_default() += u64::from(times);
                }
            }
            HeavyStep::Pass { us, shift } => now_us = now_us.saturating_add(small(us, shift)),
            HeavyStep::Back { us, shift } => now_us = now_us.saturating_sub(small(us, shift)),
            HeavyStep::Show { most } => {
                show(&mut recent, &mut model, now_us, top_keys, most.into())
            }
        }
    }
    show(&mut recent, &mut model, now_us, top_keys, 10);
});

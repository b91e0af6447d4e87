//! One limit that needs more than a core, sharded over several keys or taken in batches by each process: how much more or
//! less than one key either admits.

use commands::memory::{MemoryServer, Outcome};
use support::{Random, START_US};

use super::{call, integers, markdown_row, new_server};

/// The limit: 1000 in any second.
const LIMIT: u64 = 1000;
const PROCESSES: usize = 16;
/// Calls that come in the same step come at one instant.
const STEP_US: u64 = 5_000;
const STEPS_A_SECOND: usize = 200;
const SECONDS: usize = 4;
/// The most calls in a step. Each of them comes by chance.
const CHANCES: i64 = 200;

/// Loads, each with the calls a second in each second of a run.
const LOADS: [(&str, [i64; SECONDS]); 4] = [
    ("80 % of the limit", [800; SECONDS]),
    ("100 %", [1_000; SECONDS]),
    ("150 %", [1_500; SECONDS]),
    ("10 %, then 300 %", [100, 100, 3_000, 3_000]),
];

/// The process that makes each call, for each step.
type DrawnCalls = Vec<Vec<usize>>;

/// One process of the sixteen makes a quarter of the calls.
fn calls((_, rates): &(&str, [i64; SECONDS])) -> DrawnCalls {
    let mut random = Random::new(1);
    let mut step = |rate: i64| {
        let chance = rate * STEP_US as i64 / CHANCES;
        let is_call = |random: &mut Random| random.below(1_000_000) < chance;
        let count = (0..CHANCES).filter(|_| is_call(&mut random)).count();
        let process = |random: &mut Random| match random.one_in(5) {
            true => 0,
            false => random.below(PROCESSES as i64) as usize,
        };
        (0..count).map(|_| process(&mut random)).collect()
    };
    rates.iter().flat_map(|&rate| [rate; STEPS_A_SECOND]).map(&mut step).collect()
}

/// The number admitted in each step, and the number of commands.
#[derive(Default)]
struct Admissions {
    admitted: Vec<u64>,
    commands: u64,
    calls: u64,
}

impl Admissions {
    fn total(&self) -> u64 {
        self.admitted.iter().sum()
    }

    fn most_in_a_second(&self) -> u64 {
        let seconds = self.admitted.windows(STEPS_A_SECOND);
        seconds.map(|second| second.iter().sum()).max().unwrap_or_default()
    }
}

/// One run, from an empty database.
struct Simulation {
    server: MemoryServer,
    now_us: u64,
    random: Random,
    outcome: Admissions,
}

impl Simulation {
    /// Runs `step` over all calls. It returns how many of the callers of a step are admitted.
    fn run(
        calls: &DrawnCalls,
        mut step: impl FnMut(&mut Simulation, &[usize]) -> u64,
    ) -> Admissions {
        let mut simulation = Simulation {
            server: new_server(),
            now_us: START_US.unsigned_abs(),
            random: Random::new(2),
            outcome: Admissions::default(),
        };
        for callers in calls {
            simulation.now_us += STEP_US;
            let admitted = step(&mut simulation, callers);
            simulation.outcome.admitted.push(admitted);
            simulation.outcome.calls += callers.len() as u64;
        }
        simulation.outcome
    }

    /// Executes a command and returns the integers of its reply.
    fn call(&mut self, command: &str) -> Vec<i64> {
        self.outcome.commands += 1;
        match call(&mut self.server, command, self.now_us) {
            Outcome::Reply(reply) => integers(reply),
            Outcome::Waits(_) => panic!("{command} waits"),
        }
    }

    /// Makes a call on one of this many shards, and returns whether it is allowed.
    fn ask(&mut self, shard: usize, shards: usize) -> bool {
        let limit = LIMIT / shards as u64;
        self.call(&format!("RL.WINDOW limit:{shard} {limit} 1"))[0] == 0
    }

    fn any(&mut self, shards: usize) -> usize {
        self.random.below(shards as i64) as usize
    }

    fn sharded(calls: &DrawnCalls, shards: usize, choice: Choice) -> Admissions {
        Simulation::run(calls, |simulation, callers| {
            let is_admitted = |process: &&usize| {
                let shard = match choice {
                    Choice::Process => *process % shards,
                    Choice::Random | Choice::Twice => simulation.any(shards),
                };
                let mut allowed = simulation.ask(shard, shards);
                if !allowed && choice == Choice::Twice {
                    // Another shard than the first.
                    let other = (shard + 1 + simulation.any(shards - 1)) % shards;
                    allowed = simulation.ask(other, shards);
                }
                allowed
            };
            callers.iter().filter(is_admitted).count() as u64
        })
    }

    /// Each process takes up to `batch` at a time and spends it by itself. A process that was denied asks again after
    /// the returned wait. The rest of a batch is thrown away `keep_us` after it was taken.
    fn batched(calls: &DrawnCalls, batch: u64, keep_us: u64) -> Admissions {
        let mut stocks = [Stock::default(); PROCESSES];
        Simulation::run(calls, |simulation, callers| {
            let now_us = simulation.now_us;
            let mut admitted = 0;
            for &process in callers {
                let stock = &mut stocks[process];
                if now_us >= stock.good_until_us {
                    stock.left = 0;
                }
                if stock.left == 0 && now_us >= stock.ask_at_us {
                    let command = format!("RL.WINDOW limit {LIMIT} 1 {batch} ATMOST MS");
                    let answer = simulation.call(&command);
                    stock.left = answer[5] as u64;
                    stock.good_until_us = now_us.saturating_add(keep_us);
                    stock.ask_at_us = now_us + 1000 * answer[3].max(0) as u64;
                }
                if stock.left > 0 {
                    stock.left -= 1;
                    admitted += 1;
                }
            }
            admitted
        })
    }
}

/// The part of a batch that a process has not spent.
#[derive(Clone, Copy, Default)]
struct Stock {
    left: u64,
    good_until_us: u64,
    ask_at_us: u64,
}

/// The shard that a call asks.
#[derive(Clone, Copy, PartialEq)]
enum Choice {
    /// Any.
    Random,
    /// Any, and another one if that denies.
    Twice,
    /// Always that of its process.
    Process,
}

/// The tables of shards and of batches.
pub fn tables() -> (String, String) {
    let all: Vec<DrawnCalls> = LOADS.iter().map(calls).collect();
    let one: Vec<_> =
        all.iter().map(|calls| Simulation::sharded(calls, 1, Choice::Random)).collect();

    let mut sharded = head("shards, and how a call chooses one");
    for (choice, words) in [
        (Choice::Random, "at random"),
        (Choice::Twice, "at random, and a second one if the first denies"),
        (Choice::Process, "that of its process"),
    ] {
        for shards in [4, 16, 64] {
            if choice == Choice::Process && shards > PROCESSES {
                continue;
            }
            let run = |calls| Simulation::sharded(calls, shards, choice);
            let outcomes: Vec<_> = all.iter().map(run).collect();
            sharded += &row(format!("{shards}, {words}"), &outcomes, &one, LIMIT);
        }
    }
    let mut batched = head("batch, and what becomes of the rest");
    for (keep_us, words) in [(u64::MAX, "kept"), (1_000_000, "thrown away after a second")] {
        for batch in [5, 20, 100] {
            let run = |calls| Simulation::batched(calls, batch, keep_us);
            let outcomes: Vec<_> = all.iter().map(run).collect();
            let bound = LIMIT + PROCESSES as u64 * (batch - 1);
            batched += &row(format!("{batch}, {words}"), &outcomes, &one, bound);
        }
    }
    (sharded, batched)
}

fn head(first: &str) -> String {
    let loads = LOADS.map(|(name, _)| name).join(" | ");
    format!(
        "| {first} | {loads} | most in a second | commands for 100 calls |\n\
         |---|---|---|---|---|---|---|\n"
    )
}

/// A row of what was admitted, next to what `one` key admits. In no second is it more than the bound.
fn row(name: String, outcomes: &[Admissions], one: &[Admissions], bound: u64) -> String {
    let mut cells = vec![name.clone()];
    for (outcome, one) in outcomes.iter().zip(one) {
        let part = 100.0 * outcome.total() as f64 / one.total() as f64;
        cells.push(format!("{part:.1} %"));
    }
    let most = outcomes.iter().map(Admissions::most_in_a_second).max().unwrap_or_default();
    assert!(most <= bound, "{name}: {most} in a second, not {bound}");
    let commands: u64 = outcomes.iter().map(|outcome| outcome.commands).sum();
    let calls: u64 = outcomes.iter().map(|outcome| outcome.calls).sum();
    cells.push(most.to_string());
    cells.push(format!("{:.0}", 100.0 * commands as f64 / calls as f64));
    markdown_row(&cells)
}

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
    commands: u64,
}

impl Simulation {
    /// Runs all calls. `admits` says whether the call of a process is admitted.
    fn run(
        calls: &DrawnCalls,
        mut admits: impl FnMut(&mut Simulation, usize) -> bool,
    ) -> Admissions {
        let now_us = START_US.unsigned_abs();
        let mut simulation = Simulation { server: new_server(), now_us, commands: 0 };
        let step = |callers: &Vec<usize>| {
            simulation.now_us += STEP_US;
            callers.iter().filter(|process| admits(&mut simulation, **process)).count() as u64
        };
        let admitted = calls.iter().map(step).collect();
        let calls = calls.iter().map(|callers| callers.len() as u64).sum();
        Admissions { admitted, commands: simulation.commands, calls }
    }

    /// Executes a command and returns the integers of its reply.
    fn call(&mut self, command: &str) -> Vec<i64> {
        self.commands += 1;
        match call(&mut self.server, command, self.now_us) {
            Outcome::Reply(reply) => integers(reply),
            Outcome::Waits(_) => panic!("{command} waits"),
        }
    }
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

fn sharded(calls: &DrawnCalls, shards: usize, choice: Choice) -> Admissions {
    let limit = LIMIT / shards as u64;
    let mut random = Random::new(2);
    Simulation::run(calls, |simulation, process| {
        let mut any = |count: usize| random.below(count as i64) as usize;
        let mut ask =
            |shard| simulation.call(&format!("RL.WINDOW limit:{shard} {limit} 1"))[0] == 0;
        let shard = if choice == Choice::Process { process % shards } else { any(shards) };
        ask(shard) || choice == Choice::Twice && ask((shard + 1 + any(shards - 1)) % shards)
    })
}

/// The part of a batch that a process has not spent.
#[derive(Clone, Copy, Default)]
struct Stock {
    left: u64,
    good_until_us: u64,
    ask_at_us: u64,
}

/// Each process takes up to `batch` at a time and spends it by itself. A process that was denied asks again after the
/// returned wait. The rest of a batch is thrown away `keep_us` after it was taken.
fn batched(calls: &DrawnCalls, batch: u64, keep_us: u64) -> Admissions {
    let command = format!("RL.WINDOW limit {LIMIT} 1 {batch} ATMOST MS");
    let mut stocks = [Stock::default(); PROCESSES];
    Simulation::run(calls, |simulation, process| {
        let (stock, now_us) = (&mut stocks[process], simulation.now_us);
        if now_us >= stock.good_until_us {
            stock.left = 0;
        }
        if stock.left == 0 && now_us >= stock.ask_at_us {
            let answer = simulation.call(&command);
            stock.left = answer[5] as u64;
            stock.good_until_us = now_us.saturating_add(keep_us);
            stock.ask_at_us = now_us + 1000 * answer[3].max(0) as u64;
        }
        let admitted = stock.left > 0;
        stock.left = stock.left.saturating_sub(1);
        admitted
    })
}

/// The tables of shards and of batches.
pub fn tables() -> (String, String) {
    let all = LOADS.each_ref().map(calls);
    let one = all.each_ref().map(|calls| sharded(calls, 1, Choice::Random));
    let mut of_shards = head("shards, and how a call chooses one");
    for (choice, words, counts) in [
        (Choice::Random, "at random", &[4, 16, 64][..]),
        (Choice::Twice, "at random, and a second one if the first denies", &[4, 16, 64]),
        (Choice::Process, "that of its process", &[4, 16]),
    ] {
        for &shards in counts {
            let runs = all.each_ref().map(|calls| sharded(calls, shards, choice));
            of_shards += &row(format!("{shards}, {words}"), &runs, &one, LIMIT);
        }
    }
    let mut of_batches = head("batch, and what becomes of the rest");
    for (keep_us, words) in [(u64::MAX, "kept"), (1_000_000, "thrown away after a second")] {
        for batch in [5, 20, 100] {
            let runs = all.each_ref().map(|calls| batched(calls, batch, keep_us));
            let bound = LIMIT + PROCESSES as u64 * (batch - 1);
            of_batches += &row(format!("{batch}, {words}"), &runs, &one, bound);
        }
    }
    (of_shards, of_batches)
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

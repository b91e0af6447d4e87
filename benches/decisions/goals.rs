//! The goals that the project set itself, and how far a run got.

use serde_json::{json, Value};

use crate::report::{markdown_row, Table, SET_EX};
use crate::{hand_over, leases, longest_calls, memory, reserve, throttle, wake_up, window};

/// One goal.
pub struct Goal {
    what: String,
    bound: f64,
    /// Whether the figure is to stay at or below the bound, or to reach it.
    side: GoalSide,
    /// None where it was not measured, or the server has not what it is about.
    figure: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum GoalSide {
    AtMost,
    AtLeast,
}

/// The columns of instructions.
const BARE: usize = 0;
const AOF: usize = 1;

impl Goal {
    fn at_most(what: impl Into<String>, figure: Option<f64>, bound: f64) -> Goal {
        Goal { what: what.into(), bound, side: GoalSide::AtMost, figure }
    }

    fn at_least(what: impl Into<String>, figure: Option<f64>, bound: f64) -> Goal {
        Goal { side: GoalSide::AtLeast, ..Goal::at_most(what, figure, bound) }
    }

    /// A row must be at most `bound` times another one.
    fn ratio(table: &Table, column: usize, name: &str, to: &str, bound: f64) -> Goal {
        let setting = if column == AOF { ", with the AOF" } else { "" };
        Goal::at_most(format!("{name} / {to}{setting}"), table.ratio(column, name, to), bound)
    }

    fn verdict(&self) -> &'static str {
        let reached = self.figure.map(|figure| match self.side {
            GoalSide::AtMost => figure <= self.bound,
            GoalSide::AtLeast => figure >= self.bound,
        });
        match reached {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "-",
        }
    }

    fn cells(&self) -> [String; 4] {
        let figure = self.figure.map_or("not there".into(), |figure| format!("{figure:.3}"));
        let sign = if self.side == GoalSide::AtMost { "<=" } else { ">=" };
        [self.verdict().into(), self.what.clone(), figure, format!("{sign} {:.3}", self.bound)]
    }

    pub fn to_json(&self) -> Value {
        json!({
            "goal": self.what,
            "side": if self.side == GoalSide::AtMost { "at most" } else { "at least" },
            "bound": self.bound,
            "figure": self.figure,
            "verdict": self.verdict(),
        })
    }
}

/// Prints the goals of the sections that were run.
pub fn print(goals: &[Goal]) {
    println!("\nGoals\n");
    let width = goals.iter().map(|goal| goal.what.chars().count()).max().unwrap_or(0);
    for goal in goals {
        let [verdict, what, figure, bound] = goal.cells();
        println!("{verdict:6}  {what:width$}  {figure:>9} {bound}");
    }
}

/// The goals in a table of Markdown.
pub fn to_markdown(goals: &[Goal]) -> String {
    let rows = goals.iter().map(|goal| markdown_row(&goal.cells()));
    format!("| | goal | figure | bound |\n|---|---|---:|---:|\n{}", rows.collect::<String>())
}

/// Compares what was measured with every goal of the sections that were run.
pub fn goals(tables: &[Table]) -> Vec<Goal> {
    type Goals = fn(&Table) -> Vec<Goal>;
    let of_section: [(&str, Goals); 9] = [
        ("throttle", of_throttle),
        ("several", with_read_budget),
        ("window", of_window),
        ("reserve", of_reserve),
        ("leases", of_leases),
        ("longest", of_longest),
        ("block", of_block),
        ("wake", of_wake),
        ("memory", of_memory),
    ];
    let of_table = |table: &Table| {
        let section = of_section.iter().find(|(id, _)| *id == table.id);
        section.map_or_else(Vec::new, |(_, goals)| goals(table))
    };
    tables.iter().flat_map(of_table).collect()
}

fn of_throttle(table: &Table) -> Vec<Goal> {
    let [off, on] = throttle::TOP_KEYS.map(throttle::denied_with_top);
    vec![
        Goal::ratio(table, BARE, throttle::ALLOWED, SET_EX, 1.25),
        Goal::ratio(table, BARE, throttle::DENIED, SET_EX, 0.89),
        Goal::ratio(table, AOF, throttle::ALLOWED, SET_EX, 1.08),
        Goal::ratio(table, AOF, throttle::DENIED, SET_EX, 0.52),
        Goal::ratio(table, BARE, throttle::FORCE, throttle::ALLOWED, 1.05),
        Goal::ratio(table, BARE, throttle::AHEAD, throttle::ALLOWED, 1.05),
        Goal::ratio(table, BARE, &on, &off, 1.06),
    ]
}

fn with_read_budget(table: &Table) -> Vec<Goal> {
    let goal = |(column, verdict)| {
        let row = |what| throttle::row_of_several(what, verdict);
        Goal::ratio(table, column, &row(throttle::ALL), &row(throttle::SINGLE), 1.02)
    };
    [(BARE, "allowed"), (BARE, "denied"), (AOF, "allowed"), (AOF, "denied")].map(goal).into()
}

fn of_window(table: &Table) -> Vec<Goal> {
    let [exact, buckets, fixed, from_date, from_first] = window::KINDS.map(|kind| kind.name);
    let mut goals = Vec::new();
    for (events, bound) in [(5, 0.705), (10, 0.675), (30, 0.595), (100, 0.465), (1_000, 0.555)] {
        let row = |what| window::row(what, events, "allowed");
        goals.push(Goal::ratio(table, BARE, &row(exact), &row(window::MULTI), bound));
    }
    let allowed = |events| window::row(exact, events, "allowed");
    goals.push(Goal::ratio(table, BARE, &allowed(10_000), SET_EX, 2.2));
    for (events, bound) in [(10, 2.0), (100, 2.5), (1_000, 1.5)] {
        goals.push(Goal::ratio(table, AOF, &allowed(events), SET_EX, bound));
    }
    for events in window::SIZES {
        let bound = match events {
            0..=128 => 1.35,
            129..=1_000 => 1.02,
            _ => 1.05,
        };
        let denied = window::row(exact, events, "denied");
        goals.push(Goal::ratio(table, BARE, &denied, SET_EX, bound));
    }
    for kind in [buckets, fixed] {
        for events in [100, 10_000] {
            let row = window::row(kind, events, "allowed");
            goals.push(Goal::ratio(table, BARE, &row, &allowed(10), 1.0));
        }
    }
    for (kind, bound) in [(from_date, 1.1), (from_first, 1.05)] {
        for (column, verdict) in
            [(BARE, "allowed"), (BARE, "denied"), (AOF, "allowed"), (AOF, "denied")]
        {
            let row = |kind| window::row(kind, 100, verdict);
            goals.push(Goal::ratio(table, column, &row(kind), &row(fixed), bound));
        }
    }
    goals
}

fn of_reserve(table: &Table) -> Vec<Goal> {
    let release = |others| reserve::row(reserve::RELEASE, others);
    let [none, beside @ ..] = reserve::OTHERS;
    let mut goals = vec![Goal::ratio(table, BARE, &release(none), SET_EX, 3.2)];
    for others in beside {
        let bound = if others == 10 { 2.9 } else { 3.3 };
        goals.push(Goal::ratio(table, BARE, &release(others), SET_EX, bound));
    }
    let figures: Vec<f64> =
        beside.iter().filter_map(|others| table.figure(&release(*others))).collect();
    let most = figures.iter().copied().reduce(f64::max);
    let least = figures.iter().copied().reduce(f64::min);
    let flat = most.zip(least).filter(|_| figures.len() == beside.len());
    let flat = flat.map(|(most, least)| most / least);
    goals.push(Goal::at_most("the dearest of these with others / the cheapest", flat, 1.15));
    for others in reserve::APPLIED_WITH {
        let row = |what| reserve::row(what, others);
        let bound = if others == 0 { 0.6 } else { 0.35 };
        let goal = Goal::ratio(table, BARE, &row(reserve::APPLY), &row(reserve::LUA_APPLY), bound);
        goals.push(goal);
        let counts = row(reserve::APPLY_COUNTLAPSED);
        goals.push(Goal::ratio(table, BARE, &counts, &row(reserve::APPLY), 1.05));
    }
    goals
}

fn of_leases(table: &Table) -> Vec<Goal> {
    vec![Goal::ratio(table, BARE, leases::LEASES, leases::CALLS, 0.15)]
}

fn of_longest(table: &Table) -> Vec<Goal> {
    longest_calls::names()
        .map(|name| Goal::at_most(format!("{name}: ms"), table.figure(name), 5.0))
        .collect()
}

fn of_block(table: &Table) -> Vec<Goal> {
    let share = |waiting| {
        table.ratio(
            BARE,
            &hand_over::row(hand_over::ACQUIRE, waiting),
            &hand_over::row(hand_over::BLPOP, waiting),
        )
    };
    let shares = hand_over::WAITING.map(share);
    let what = |waiting| {
        format!(
            "{}: round trips beside {}",
            hand_over::row(hand_over::ACQUIRE, waiting),
            hand_over::BLPOP
        )
    };
    let mut goals: Vec<Goal> = hand_over::WAITING
        .into_iter()
        .zip(shares)
        .map(|(waiting, share)| Goal::at_least(what(waiting), share, 0.5))
        .collect();
    // BLPOP's rate also includes what this many connections cost the system.
    let [fewest, .., most] = shares;
    let flat = most.zip(fewest).map(|(most, fewest)| most / fewest);
    goals.push(Goal::at_least("the last of these shares / the first", flat, 0.9));
    goals
}

fn of_wake(table: &Table) -> Vec<Goal> {
    let goal = |what: &str, load: &str| {
        let row = wake_up::row(what, load);
        let p99 = table.figures(&row).and_then(|figures| figures.get(1)).copied();
        Goal::at_most(format!("{row}: p99 us"), p99, 10_000.0)
    };
    let ours = || wake_up::ways().into_iter().filter(|(_, peer)| !peer);
    wake_up::LOADS
        .into_iter()
        .flat_map(|load| ours().map(move |(what, _)| goal(what, load)))
        .collect()
}

fn of_memory(table: &Table) -> Vec<Goal> {
    // What a key of redis-cell 0.5.0 takes above one of `SET EX`; it is not in this run.
    const REDIS_CELL: f64 = 32.0;
    let above_set_ex = |name: &str| {
        let figure = table.figure(name).zip(table.figure(SET_EX));
        // `used_memory` moves by a few kilobytes of buffers.
        let figure = figure.map(|(key, set_ex)| (key - set_ex).round());
        Goal::at_most(
            format!("{name}: bytes a key above SET EX, as redis-cell"),
            figure,
            REDIS_CELL,
        )
    };
    let mut goals = vec![above_set_ex(memory::WHOLE), above_set_ex(memory::FRACTION)];
    // What an event took with the first layout.
    for (events, bytes) in [(10, 25.4), (100, 14.0), (1_000, 102.5)] {
        let window = memory::row(memory::WINDOW, events);
        goals.push(Goal::at_most(
            format!("{window}: bytes an event"),
            table.figure(&window),
            bytes,
        ));
    }
    for events in [10_000, 100_000] {
        let window = memory::row(memory::WINDOW, events);
        let usual = memory::row(memory::USUAL, events);
        goals.push(Goal::ratio(table, BARE, &window, &usual, 0.5));
    }
    goals
}

//! The goals that the project set itself, and the figures that a run reached.

use crate::report::{markdown_row, Table, SET_EX};
use crate::{hand_over, leases, longest_calls, memory, reserve, throttle, wake_up, window};

pub struct Goal {
    what: String,
    /// None if it was not measured, or the server lacks what it is about.
    figure: Option<f64>,
    /// The most that the figure may be, or the least.
    bound: f64,
    is_minimum: bool,
}

/// The columns of instructions.
const BARE: usize = 0;
const AOF: usize = 1;

impl Goal {
    fn at_most(what: impl Into<String>, figure: Option<f64>, bound: f64) -> Goal {
        Goal { what: what.into(), figure, bound, is_minimum: false }
    }

    fn at_least(what: impl Into<String>, figure: Option<f64>, bound: f64) -> Goal {
        Goal { is_minimum: true, ..Goal::at_most(what, figure, bound) }
    }

    /// A row must be at most `bound` times another one.
    fn ratio(table: &Table, column: usize, name: &str, to: &str, bound: f64) -> Goal {
        let setting = if column == AOF { ", with the AOF" } else { "" };
        Goal::at_most(format!("{name} / {to}{setting}"), table.ratio(column, name, to), bound)
    }

    fn to_markdown(&self) -> String {
        let Goal { what, figure, bound, is_minimum } = self;
        let verdict = match figure {
            Some(figure) if (figure >= bound) == *is_minimum || figure == bound => "met",
            Some(_) => "MISSED",
            None => "-",
        };
        let figure = figure.map_or("not there".into(), |figure| format!("{figure:.3}"));
        let sign = if *is_minimum { ">=" } else { "<=" };
        markdown_row(&[verdict, what, &figure, &format!("{sign} {bound:.3}")])
    }
}

/// The goals in a table of Markdown.
pub fn to_markdown(goals: &[Goal]) -> String {
    let rows: String = goals.iter().map(Goal::to_markdown).collect();
    format!("| | goal | figure | bound |\n|---|---|---:|---:|\n{rows}")
}

/// Compares what was measured with every goal of the sections that were run.
pub fn goals(tables: &[Table]) -> Vec<Goal> {
    let of_table = |table: &Table| match table.id {
        "throttle" => of_throttle(table),
        "several" => of_several(table),
        "window" => of_window(table),
        "reserve" => of_reserve(table),
        "leases" => vec![Goal::ratio(table, BARE, leases::LEASES, leases::CALLS, 0.15)],
        "longest" => of_longest(table),
        "block" => of_block(table),
        "wake" => of_wake(table),
        "memory" => of_memory(table),
        _ => Vec::new(),
    };
    tables.iter().flat_map(of_table).collect()
}

fn of_throttle(table: &Table) -> Vec<Goal> {
    let [off, on] = throttle::TOP_KEYS.map(throttle::denied_with_top);
    [
        (BARE, throttle::ALLOWED, SET_EX, 1.25),
        (BARE, throttle::DENIED, SET_EX, 0.89),
        (AOF, throttle::ALLOWED, SET_EX, 1.08),
        (AOF, throttle::DENIED, SET_EX, 0.52),
        (BARE, throttle::FORCE, throttle::ALLOWED, 1.05),
        (BARE, throttle::AHEAD, throttle::ALLOWED, 1.05),
        (BARE, &on, &off, 1.06),
    ]
    .map(|(column, name, to, bound)| Goal::ratio(table, column, name, to, bound))
    .into()
}

const COLUMNS_AND_VERDICTS: [(usize, &str); 4] =
    [(BARE, "allowed"), (BARE, "denied"), (AOF, "allowed"), (AOF, "denied")];

fn of_several(table: &Table) -> Vec<Goal> {
    let goal = |(column, verdict)| {
        let [all, single] =
            [throttle::ALL, throttle::SINGLE].map(|what| throttle::row_of_several(what, verdict));
        Goal::ratio(table, column, &all, &single, 1.02)
    };
    COLUMNS_AND_VERDICTS.map(goal).into()
}

fn of_window(table: &Table) -> Vec<Goal> {
    let [exact, buckets, fixed, from_date, from_first] = window::KINDS.map(|kind| kind.name);
    let mut goals = Vec::new();
    let mut add = |column, name: &str, to: &str, bound| {
        goals.push(Goal::ratio(table, column, name, to, bound));
    };
    let allowed = |events| window::row(exact, events, "allowed");
    for (events, bound) in [(5, 0.705), (10, 0.675), (30, 0.595), (100, 0.465), (1_000, 0.555)] {
        add(BARE, &allowed(events), &window::row(window::MULTI, events, "allowed"), bound);
    }
    add(BARE, &allowed(10_000), SET_EX, 2.2);
    for (events, bound) in [(10, 2.0), (100, 2.5), (1_000, 1.5)] {
        add(AOF, &allowed(events), SET_EX, bound);
    }
    for events in window::SIZES {
        let bound = match events {
            0..=128 => 1.35,
            129..=1_000 => 1.02,
            _ => 1.05,
        };
        add(BARE, &window::row(exact, events, "denied"), SET_EX, bound);
    }
    for kind in [buckets, fixed] {
        for events in [100, 10_000] {
            add(BARE, &window::row(kind, events, "allowed"), &allowed(10), 1.0);
        }
    }
    for (kind, bound) in [(from_date, 1.1), (from_first, 1.05)] {
        for (column, verdict) in COLUMNS_AND_VERDICTS {
            let row = |kind| window::row(kind, 100, verdict);
            add(column, &row(kind), &row(fixed), bound);
        }
    }
    goals
}

fn of_reserve(table: &Table) -> Vec<Goal> {
    let release = |others| reserve::row(reserve::RELEASE, others);
    let bound = |others| match others {
        0 => 3.2,
        10 => 2.9,
        _ => 3.3,
    };
    let goal = |others| Goal::ratio(table, BARE, &release(others), SET_EX, bound(others));
    let mut goals: Vec<Goal> = reserve::OTHERS.map(goal).into();
    let with_others = reserve::OTHERS[1..].iter();
    let figures: Option<Vec<f64>> =
        with_others.map(|others| table.figure(&release(*others))).collect();
    let spread = figures.map(|figures| {
        let [most, least] =
            [f64::max, f64::min].map(|choose| figures.iter().copied().reduce(choose));
        most.unwrap_or_default() / least.unwrap_or_default()
    });
    goals.push(Goal::at_most("the dearest of these with others / the cheapest", spread, 1.15));
    for others in reserve::APPLIED_WITH {
        let [apply, lua, countlapsed] =
            [reserve::APPLY, reserve::LUA_APPLY, reserve::APPLY_COUNTLAPSED]
                .map(|what| reserve::row(what, others));
        let bound = if others == 0 { 0.6 } else { 0.35 };
        goals.push(Goal::ratio(table, BARE, &apply, &lua, bound));
        goals.push(Goal::ratio(table, BARE, &countlapsed, &apply, 1.05));
    }
    goals
}

fn of_longest(table: &Table) -> Vec<Goal> {
    longest_calls::names()
        .map(|name| Goal::at_most(format!("{name}: ms"), table.figure(name), 5.0))
        .collect()
}

fn of_block(table: &Table) -> Vec<Goal> {
    let shares = hand_over::WAITING.map(|waiting| {
        let [ours, blpop] =
            [hand_over::ACQUIRE, hand_over::BLPOP].map(|what| hand_over::row(what, waiting));
        let share = table.ratio(BARE, &ours, &blpop);
        (format!("{ours}: round trips beside {}", hand_over::BLPOP), share)
    });
    let [(_, fewest), .., (_, most)] = &shares;
    // BLPOP's rate also includes what this many connections cost the system.
    let flat = most.zip(*fewest).map(|(most, fewest)| most / fewest);
    let mut goals: Vec<Goal> =
        shares.into_iter().map(|(what, share)| Goal::at_least(what, share, 0.5)).collect();
    goals.push(Goal::at_least("the last of these shares / the first", flat, 0.9));
    goals
}

fn of_wake(table: &Table) -> Vec<Goal> {
    let ours = wake_up::rows().filter(|(_, is_peer)| !is_peer);
    ours.map(|(row, _)| {
        let p99 = table.figures(&row).and_then(|figures| figures.get(1)).copied();
        Goal::at_most(format!("{row}: p99 us"), p99, 10_000.0)
    })
    .collect()
}

fn of_memory(table: &Table) -> Vec<Goal> {
    // The bytes that a key of redis-cell 0.5.0, which is not in this run, takes above one of `SET EX`.
    const REDIS_CELL: f64 = 32.0;
    let above_set_ex = |name: &str| {
        let figure = table.figure(name).zip(table.figure(SET_EX));
        // `used_memory` moves by a few kilobytes of buffers.
        let figure = figure.map(|(key, set_ex)| (key - set_ex).round());
        let what = format!("{name}: bytes a key above SET EX, as redis-cell");
        Goal::at_most(what, figure, REDIS_CELL)
    };
    let mut goals = vec![above_set_ex(memory::WHOLE), above_set_ex(memory::FRACTION)];
    // The bytes of an event in the first layout.
    for (events, bytes) in [(10, 25.4), (100, 14.0), (1_000, 102.5)] {
        let window = memory::row(memory::WINDOW, events);
        goals.push(Goal::at_most(
            format!("{window}: bytes an event"),
            table.figure(&window),
            bytes,
        ));
    }
    for events in [10_000, 100_000] {
        let [window, usual] = [memory::WINDOW, memory::USUAL].map(|what| memory::row(what, events));
        goals.push(Goal::ratio(table, BARE, &window, &usual, 0.5));
    }
    goals
}

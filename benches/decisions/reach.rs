//! The bars that the project set itself, and how far a run got.

use serde_json::{json, Value};

use crate::report::{markdown_row, Table, SET_EX};
use crate::{block, memory, reserve, throttle, wake, window};

/// One bar.
pub struct Bar {
    what: String,
    bound: f64,
    /// Whether the figure is to stay at or below the bound, or to reach it.
    side: Side,
    figure: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    AtMost,
    AtLeast,
}

impl Bar {
    /// A row's figure is to be at most `bound` times that of another.
    fn at_most(table: &Table, name: &str, to: &str, bound: f64) -> Bar {
        let figure = table.ratio(name, to);
        Bar { what: format!("{name} / {to}"), bound, side: Side::AtMost, figure }
    }

    /// A row's figure is to be at least `bound` times that of another.
    fn at_least(table: &Table, name: &str, to: &str, bound: f64) -> Bar {
        Bar { side: Side::AtLeast, ..Bar::at_most(table, name, to, bound) }
    }

    fn verdict(&self) -> &'static str {
        let reached = self.figure.map(|figure| match self.side {
            Side::AtMost => figure <= self.bound,
            Side::AtLeast => figure >= self.bound,
        });
        match reached {
            Some(true) => "PASS",
            Some(false) => "miss",
            None => "-",
        }
    }

    fn cells(&self) -> [String; 4] {
        let figure = self.figure.map_or("not there".into(), |figure| format!("{figure:.3}"));
        let sign = if self.side == Side::AtMost { "<=" } else { ">=" };
        [self.verdict().into(), self.what.clone(), figure, format!("{sign} {:.3}", self.bound)]
    }

    pub fn to_json(&self) -> Value {
        json!({
            "bar": self.what,
            "side": if self.side == Side::AtMost { "at most" } else { "at least" },
            "bound": self.bound,
            "figure": self.figure,
            "verdict": self.verdict(),
        })
    }
}

/// Prints the bars of the sections that were run.
pub fn print(bars: &[Bar]) {
    println!("\nReach\n");
    let width = bars.iter().map(|bar| bar.what.chars().count()).max().unwrap_or(0);
    for bar in bars {
        let [verdict, what, figure, bound] = bar.cells();
        println!("{verdict:4}  {what:width$}  {figure:>9} {bound}");
    }
}

/// The bars in a table of Markdown.
pub fn to_markdown(bars: &[Bar]) -> String {
    let rows = bars.iter().map(|bar| markdown_row(&bar.cells()));
    format!("| | bar | figure | bound |\n|---|---|---:|---:|\n{}", rows.collect::<String>())
}

/// Compares what was measured with every bar of the sections that were run.
pub fn bars(tables: &[Table]) -> Vec<Bar> {
    type Bars = fn(&Table) -> Vec<Bar>;
    let of_section: [(&str, Bars); 6] = [
        ("throttle", of_throttle),
        ("window", of_window),
        ("reserve", of_reserve),
        ("block", of_block),
        ("wake", of_wake),
        ("memory", of_memory),
    ];
    let of_table = |table: &Table| {
        let section = of_section.iter().find(|(id, _)| *id == table.id);
        section.map_or_else(Vec::new, |(_, bars)| bars(table))
    };
    tables.iter().flat_map(of_table).collect()
}

fn of_throttle(table: &Table) -> Vec<Bar> {
    [(throttle::ALLOWED, 1.0), (throttle::FRACTION, 1.0), (throttle::DENIED, 0.55)]
        .map(|(name, bound)| Bar::at_most(table, name, SET_EX, bound))
        .into()
}

fn of_window(table: &Table) -> Vec<Bar> {
    let [exact, buckets, fixed] = window::KINDS.map(|kind| kind.name);
    let mut bars = Vec::new();
    for events in [100, 10_000] {
        for (verdict, bound) in [("allowed", 1.0 / 3.0), ("denied", 0.2)] {
            let row = |what| window::row(what, events, verdict);
            bars.push(Bar::at_most(table, &row(exact), &row(window::LUA), bound));
            bars.push(Bar::at_most(table, &row(buckets), &row(exact), 1.0));
            bars.push(Bar::at_most(table, &row(fixed), &row(exact), 1.0));
        }
    }
    bars
}

fn of_reserve(table: &Table) -> Vec<Bar> {
    let bars = |others| {
        let row = |what| reserve::row(what, others);
        [
            Bar::at_most(table, &row(reserve::RELEASE), SET_EX, 3.0),
            Bar::at_most(table, &row(reserve::APPLY), &row(reserve::LUA_APPLY), 0.25),
        ]
    };
    reserve::OTHERS.into_iter().flat_map(bars).collect()
}

fn of_block(table: &Table) -> Vec<Bar> {
    let acquire = block::WAITING.map(|waiting| block::row(block::ACQUIRE, waiting));
    let blpop = block::WAITING.map(|waiting| block::row(block::BLPOP, waiting));
    let beside_blpop =
        acquire.iter().zip(&blpop).map(|(row, peer)| Bar::at_least(table, row, peer, 0.5));
    let mut bars: Vec<Bar> = beside_blpop.collect();
    // What so many connections cost the system is in BLPOP's rate as well.
    let share = |bar: Option<&Bar>| bar.and_then(|bar| bar.figure);
    let (fewest, most) = (share(bars.first()), share(bars.last()));
    bars.push(Bar {
        what: "flat: the last of these shares / the first".into(),
        bound: 0.9,
        side: Side::AtLeast,
        figure: most.zip(fewest).map(|(most, fewest)| most / fewest),
    });
    bars
}

fn of_wake(table: &Table) -> Vec<Bar> {
    let bar = |what: &str, load: &str| {
        let row = wake::row(what, load);
        let p99 = table.figures(&row).and_then(|figures| figures.get(1)).copied();
        Bar { what: format!("{row}: p99 us"), bound: 10_000.0, side: Side::AtMost, figure: p99 }
    };
    let ours = || wake::ways().into_iter().filter(|(_, peer)| !peer);
    let bars = |load| ours().map(move |(what, _)| bar(what, load));
    wake::LOADS.into_iter().flat_map(bars).collect()
}

fn of_memory(table: &Table) -> Vec<Bar> {
    // What a key of redis-cell 0.5.0 takes above one of `SET EX`; it is not in this run.
    const REDIS_CELL: f64 = 32.0;
    let above_set_ex = |name: &str| {
        let figure = table.figure(name).zip(table.figure(SET_EX));
        // `used_memory` moves by a few kilobytes of buffers.
        let figure = figure.map(|(key, set_ex)| (key - set_ex).round());
        let what = format!("{name}: bytes a key above SET EX, as redis-cell");
        Bar { what, bound: REDIS_CELL, side: Side::AtMost, figure }
    };
    let mut bars = vec![above_set_ex(memory::WHOLE), above_set_ex(memory::FRACTION)];
    for events in memory::EVENTS {
        let row = |what| memory::row(what, events);
        let window = row(memory::WINDOW);
        bars.push(match events {
            100_000 => Bar {
                what: format!("{window}: bytes an event"),
                bound: 12.0,
                side: Side::AtMost,
                figure: table.figure(&window),
            },
            _ => Bar::at_most(table, &window, &row(memory::USUAL), 1.0),
        });
    }
    bars
}

//! Which charts are drawn of the tables.

use std::path::Path;

use crate::chart::{Axis, Chart, ChartLine, ChartRow, Scale, Whose};
use crate::client::{BenchError, Result};
use crate::report::{Table, SET_EX};
use crate::{latency, memory, throttle, wake_up, window};

/// One chart.
pub struct Figure {
    pub id: &'static str,
    pub title: &'static str,
    /// The sections whose tables it shows.
    sections: &'static [&'static str],
    kind: FigureKind,
}

/// What it shows.
enum FigureKind {
    /// One row for each command, one figure for each mark.
    Rows { x: Axis, marks: &'static [&'static str], rows: fn() -> Vec<(String, Whose)> },
    /// One line for each command, one point for each size.
    Lines { x: Axis, y: Axis, sizes: &'static [u64], lines: fn() -> Vec<Named> },
}

/// A line of a chart: its name, its owner, and the name of the row at each size.
type Named = (String, Whose, Box<dyn Fn(u64) -> String>);

const EVENTS: Axis = Axis { name: "events in the window", scale: Scale::Log };

pub const FIGURES: [Figure; 7] = [
    Figure {
        id: "instructions",
        title: "Instructions of the whole server for one decision (windows of 100 events)",
        sections: &["throttle", "window"],
        kind: FigureKind::Rows {
            x: Axis { name: "instructions per decision", scale: Scale::Linear },
            marks: &["bare"],
            rows: || commands(100),
        },
    },
    Figure {
        id: "cpu",
        title: "CPU time of the server for one decision (windows of 100 events, pipelines of 50)",
        sections: &["time"],
        kind: FigureKind::Rows {
            x: Axis { name: "µs of CPU time per decision", scale: Scale::Linear },
            marks: &["CPU"],
            rows: || commands(100),
        },
    },
    Figure {
        id: "window",
        title: "Instructions for one decision about a full window, by its size",
        sections: &["window"],
        kind: FigureKind::Lines {
            x: EVENTS,
            y: Axis { name: "instructions per decision", scale: Scale::Log },
            sizes: &window::SIZES,
            lines: of_window,
        },
    },
    Figure {
        id: "latency",
        title: "Latency at 20,000 decisions a second from 20 connections",
        sections: &["latency"],
        kind: FigureKind::Rows {
            x: Axis { name: "µs until the answer", scale: Scale::Log },
            marks: &["p50", "p99", "p99.9"],
            rows: || commands(latency::EVENTS),
        },
    },
    Figure {
        id: "wake",
        title: "How long after the moment it can a waiting client has its answer",
        sections: &["wake"],
        kind: FigureKind::Rows {
            x: Axis { name: "µs until the answer", scale: Scale::Log },
            marks: &["p50", "p99"],
            rows: of_wake,
        },
    },
    Figure {
        id: "key-memory",
        title: "Memory of one key",
        sections: &["memory"],
        kind: FigureKind::Rows {
            x: Axis { name: "bytes per key (200,000 keys of 11 bytes)", scale: Scale::Linear },
            marks: &["bytes"],
            rows: || {
                let lua = ("GCRA Lua".to_string(), Whose::Peers(0));
                vec![plain(SET_EX), ours(memory::WHOLE), ours(memory::FRACTION), lua]
            },
        },
    },
    Figure {
        id: "event-memory",
        title: "Memory of one event, with its share of the key",
        sections: &["memory"],
        kind: FigureKind::Lines {
            x: EVENTS,
            y: Axis { name: "bytes per event", scale: Scale::Log },
            sizes: &memory::EVENTS,
            lines: || {
                let [ours, usual, lean] = [memory::WINDOW, memory::USUAL, memory::LEAN];
                vec![
                    named(ours, Whose::Ours(0), move |size| memory::row(ours, size)),
                    named(usual, Whose::Peers(0), move |size| memory::row(usual, size)),
                    named(lean, Whose::Peers(1), move |size| memory::row(lean, size)),
                ]
            },
        },
    },
];

fn plain(name: &str) -> (String, Whose) {
    (name.to_string(), Whose::Plain)
}

fn ours(name: &str) -> (String, Whose) {
    (name.to_string(), Whose::Ours(0))
}

fn named(name: &str, whose: Whose, row: impl Fn(u64) -> String + 'static) -> Named {
    (name.to_string(), whose, Box::new(row))
}

/// The commands to compare, with this many events in the windows.
fn commands(events: u64) -> Vec<(String, Whose)> {
    let of_window = |what, whose, verdict| (window::row(what, events, verdict), whose);
    let peers = |name: &str| (name.to_string(), Whose::Peers(0));
    vec![
        plain("INCR"),
        plain(SET_EX),
        ours(throttle::ALLOWED),
        ours(throttle::DENIED),
        peers(throttle::LUA_ALLOWED),
        peers(throttle::LUA_DENIED),
        of_window(window::SLIDING.name, Whose::Ours(0), "allowed"),
        of_window(window::SLIDING.name, Whose::Ours(0), "denied"),
        of_window(window::LUA, Whose::Peers(0), "allowed"),
        of_window(window::LUA, Whose::Peers(0), "denied"),
        of_window(window::MULTI, Whose::Peers(0), "allowed"),
    ]
}

fn of_window() -> Vec<Named> {
    let [exact, buckets, fixed, ..] = window::KINDS.map(|kind| kind.name);
    let lines = [
        (exact, "allowed", Whose::Ours(0)),
        (exact, "denied", Whose::Ours(1)),
        (buckets, "allowed", Whose::Ours(2)),
        (fixed, "allowed", Whose::Ours(3)),
        (window::LUA, "allowed", Whose::Peers(0)),
        (window::LUA, "denied", Whose::Peers(1)),
        (window::MULTI, "allowed", Whose::Peers(2)),
    ];
    let line = |(what, verdict, whose)| {
        let name = format!("{what}, {verdict}");
        named(&name, whose, move |events| window::row(what, events, verdict))
    };
    let set_ex = named(SET_EX, Whose::Plain, |_| SET_EX.to_string());
    lines.into_iter().map(line).chain([set_ex]).collect()
}

fn of_wake() -> Vec<(String, Whose)> {
    let row = |load| {
        move |(what, peer): (&str, bool)| {
            (wake_up::row(what, load), if peer { Whose::Peers(0) } else { Whose::Ours(0) })
        }
    };
    wake_up::LOADS.iter().flat_map(|load| wake_up::ways().map(row(load))).collect()
}

impl Figure {
    /// How to repeat it.
    pub fn command(&self) -> String {
        match self.sections {
            [section] => format!("make bench BENCH={section}"),
            sections => format!("make bench BENCH=\"{}\"", sections.join(" ")),
        }
    }

    /// Draws it, if all its sections were run. Answers whether they were.
    pub fn draw(&self, path: &Path, tables: &[Table], run: &str) -> Result<bool> {
        let tables: Vec<&Table> =
            tables.iter().filter(|table| self.sections.contains(&table.id)).collect();
        if tables.len() < self.sections.len() {
            return Ok(false);
        }
        let find = |row: &str| tables.iter().find_map(|table| table.figures(row));
        let footer = format!("Repeat it: {} · {run}", self.command());
        let chart = Chart { path, title: self.title, footer: &footer };
        let drawn = match &self.kind {
            FigureKind::Rows { x, marks, rows } => {
                let row = |(name, whose): (String, Whose)| {
                    let figures = find(&name)?.get(..marks.len())?.to_vec();
                    Some(ChartRow { name, whose, figures })
                };
                let rows: Vec<ChartRow> = rows().into_iter().filter_map(row).collect();
                chart.rows(*x, marks, &rows)
            }
            FigureKind::Lines { x, y, sizes, lines } => {
                let line = |(name, whose, row): Named| {
                    let point = |&size| Some((size as f64, *find(&row(size))?.first()?));
                    ChartLine { name, whose, points: sizes.iter().filter_map(point).collect() }
                };
                let lines: Vec<ChartLine> = lines().into_iter().map(line).collect();
                chart.lines(*x, *y, &lines)
            }
        };
        drawn.map_err(|error| BenchError::other(error.to_string()))?;
        Ok(true)
    }
}

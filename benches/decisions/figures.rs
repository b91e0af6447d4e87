//! The charts that are drawn from the tables.

use crate::chart::{draw_lines, draw_rows, Axis, ChartLine, ChartRow, Owner, Scale};
use crate::report::{Table, SET_EX};
use crate::{latency, memory, throttle, wake_up, window};

/// One chart.
pub struct Figure {
    pub id: &'static str,
    pub title: &'static str,
    /// The sections whose tables it shows.
    sections: &'static [&'static str],
    x: Axis,
    kind: FigureKind,
}

type Named = (String, Owner);

enum FigureKind {
    /// Rows of the tables, with the figures of the first columns, which have these names.
    Rows(&'static [&'static str], Vec<Named>),
    /// Lines, and what is measured along the other axis.
    Lines(Axis, Vec<NamedLine>),
}

/// The name of a line, its owner, and the row of each size.
type NamedLine = (String, Owner, Vec<(u64, String)>);

fn line(name: &str, owner: Owner, sizes: &[u64], row: impl Fn(u64) -> String) -> NamedLine {
    (name.to_string(), owner, sizes.iter().map(|&size| (size, row(size))).collect())
}

const fn linear(name: &'static str) -> Axis {
    Axis { name, scale: Scale::Linear }
}

const fn log(name: &'static str) -> Axis {
    Axis { name, scale: Scale::Log }
}

/// All charts of the page.
pub fn all() -> [Figure; 7] {
    let named = |name: &str, owner| (name.to_string(), owner);
    let memory_line =
        |name, owner| line(name, owner, &memory::EVENTS, |events| memory::row(name, events));
    [
        Figure {
            id: "instructions",
            title: "Instructions of the whole server for one decision (windows of 100 events)",
            sections: &["throttle", "window"],
            x: linear("instructions per decision"),
            kind: FigureKind::Rows(&["bare"], commands(100)),
        },
        Figure {
            id: "cpu",
            title:
                "CPU time of the server for one decision (windows of 100 events, pipelines of 50)",
            sections: &["time"],
            x: linear("µs of CPU time per decision"),
            kind: FigureKind::Rows(&["CPU"], commands(100)),
        },
        Figure {
            id: "window",
            title: "Instructions for one decision about a full window, by its size",
            sections: &["window"],
            x: log("events in the window"),
            kind: FigureKind::Lines(log("instructions per decision"), windows()),
        },
        Figure {
            id: "latency",
            title: "Latency at 20,000 decisions a second from 20 connections",
            sections: &["latency"],
            x: log("µs until the reply"),
            kind: FigureKind::Rows(&["p50", "p99", "p99.9"], commands(latency::EVENTS)),
        },
        Figure {
            id: "wake",
            title: "Delay of the reply to a waiting client",
            sections: &["wake"],
            x: log("µs until the reply"),
            kind: FigureKind::Rows(&["p50", "p99"], wake_up::rows().map(wake_up_row).collect()),
        },
        Figure {
            id: "key-memory",
            title: "Memory of one key",
            sections: &["memory"],
            x: linear("bytes per key (200,000 keys of 11 bytes)"),
            kind: FigureKind::Rows(
                &["bytes"],
                vec![
                    named(SET_EX, Owner::Server),
                    named(memory::WHOLE, Owner::Module(0)),
                    named(memory::FRACTION, Owner::Module(0)),
                    named(memory::LUA, Owner::Peer(0)),
                ],
            ),
        },
        Figure {
            id: "event-memory",
            title: "Memory of one event, with its share of the key",
            sections: &["memory"],
            x: log("events in the window"),
            kind: FigureKind::Lines(
                log("bytes per event"),
                vec![
                    memory_line(memory::WINDOW, Owner::Module(0)),
                    memory_line(memory::USUAL, Owner::Peer(0)),
                    memory_line(memory::LEAN, Owner::Peer(1)),
                ],
            ),
        },
    ]
}

fn wake_up_row((name, is_peer): (String, bool)) -> Named {
    (name, if is_peer { Owner::Peer(0) } else { Owner::Module(0) })
}

/// The commands to compare, with this many events in the windows.
fn commands(events: u64) -> Vec<Named> {
    let plain = [
        ("INCR", Owner::Server),
        (SET_EX, Owner::Server),
        (throttle::ALLOWED, Owner::Module(0)),
        (throttle::DENIED, Owner::Module(0)),
        (throttle::LUA_ALLOWED, Owner::Peer(0)),
        (throttle::LUA_DENIED, Owner::Peer(0)),
    ];
    let windows = [
        (window::SLIDING.name, "allowed", Owner::Module(0)),
        (window::SLIDING.name, "denied", Owner::Module(0)),
        (window::LUA, "allowed", Owner::Peer(0)),
        (window::LUA, "denied", Owner::Peer(0)),
        (window::MULTI, "allowed", Owner::Peer(0)),
    ];
    let plain = plain.map(|(name, owner)| (name.to_string(), owner)).into_iter();
    let windows = windows.map(|(name, verdict, owner)| (window::row(name, events, verdict), owner));
    plain.chain(windows).collect()
}

fn windows() -> Vec<NamedLine> {
    let [exact, buckets, fixed, ..] = window::KINDS.map(|kind| kind.name);
    let lines = [
        (exact, "allowed", Owner::Module(0)),
        (exact, "denied", Owner::Module(1)),
        (buckets, "allowed", Owner::Module(2)),
        (fixed, "allowed", Owner::Module(3)),
        (window::LUA, "allowed", Owner::Peer(0)),
        (window::LUA, "denied", Owner::Peer(1)),
        (window::MULTI, "allowed", Owner::Peer(2)),
    ];
    let set_ex = line(SET_EX, Owner::Server, &window::SIZES, |_| SET_EX.to_string());
    let line = |(name, verdict, owner)| {
        let row = |events| window::row(name, events, verdict);
        line(&format!("{name}, {verdict}"), owner, &window::SIZES, row)
    };
    lines.into_iter().map(line).chain([set_ex]).collect()
}

impl Figure {
    /// The command that repeats the measurement.
    pub fn command(&self) -> String {
        match self.sections {
            [section] => format!("make bench BENCH={section}"),
            sections => format!("make bench BENCH=\"{}\"", sections.join(" ")),
        }
    }

    /// Returns the chart as SVG, or none if one of its sections was not run.
    pub fn draw(&self, tables: &[Table], run: &str) -> Option<String> {
        let tables: Vec<&Table> =
            tables.iter().filter(|table| self.sections.contains(&table.id)).collect();
        if tables.len() < self.sections.len() {
            return None;
        }
        let find = |row: &str| tables.iter().find_map(|table| table.figures(row));
        let footer = format!("Repeat it: {} · {run}", self.command());
        Some(match &self.kind {
            FigureKind::Rows(marks, rows) => {
                let row = |(name, owner): &Named| {
                    let figures = find(name)?.get(..marks.len())?.to_vec();
                    Some(ChartRow { name: name.clone(), owner: *owner, figures })
                };
                let rows: Vec<ChartRow> = rows.iter().filter_map(row).collect();
                draw_rows(self.title, &footer, self.x, marks, &rows)
            }
            FigureKind::Lines(y, lines) => {
                let line = |(name, owner, rows): &NamedLine| {
                    let point =
                        |(size, row): &(u64, String)| Some((*size as f64, *find(row)?.first()?));
                    let points = rows.iter().filter_map(point).collect();
                    ChartLine { name: name.clone(), owner: *owner, points }
                };
                let lines: Vec<ChartLine> = lines.iter().map(line).collect();
                draw_lines(self.title, &footer, [self.x, *y], &lines)
            }
        })
    }
}

//! The charts that are drawn from the tables.

use crate::report::{Table, SET_EX};
use crate::svg_chart::{draw_lines, draw_rows, Axis, ChartLine, ChartRow, Scale};
use crate::{latency, memory, window};

/// One chart.
pub struct Chart {
    pub id: &'static str,
    pub title: &'static str,
    /// The sections whose tables it shows.
    sections: &'static [&'static str],
    x: Axis,
    /// What is measured upwards, in a chart of lines. Without it the chart has rows.
    y: Option<Axis>,
    /// The names of the marks in a row, one for each of the first columns.
    marks: &'static [&'static str],
    /// The rows or lines. `{}` stands for the number of events, and a name that ends with `*` for all that begin so.
    names: &'static [&'static str],
    /// The numbers of events: one in a chart of rows, and those along a line.
    events: &'static [u64],
}

const fn linear(name: &'static str) -> Axis {
    Axis { name, scale: Scale::Linear }
}

const fn log(name: &'static str) -> Axis {
    Axis { name, scale: Scale::Log }
}

const COMMANDS: &[&str] = &[
    "INCR", SET_EX, "RL.THROTTLE allowed", "RL.THROTTLE denied", "GCRA Lua allowed",
    "GCRA Lua denied", "RL.WINDOW, {} events, allowed", "RL.WINDOW, {} events, denied",
    "ZSET Lua, {} events, allowed", "ZSET Lua, {} events, denied",
    "ZSET MULTI, {} events, allowed",
];

const WINDOWS: &[&str] = &[
    "RL.WINDOW, {} events, allowed",
    "RL.WINDOW, {} events, denied",
    "RL.WINDOW BUCKETS 10, {} events, allowed",
    "RL.WINDOW FIXED, {} events, allowed",
    "ZSET Lua, {} events, allowed",
    "ZSET Lua, {} events, denied",
    "ZSET MULTI, {} events, allowed",
    SET_EX,
];

/// All charts of the page.
pub const CHARTS: [Chart; 7] = [
    Chart {
        id: "instructions",
        title: "Instructions of the whole server for one decision (windows of 100 events)",
        sections: &["throttle", "window"],
        x: linear("instructions per decision"),
        y: None,
        marks: &["bare"],
        names: COMMANDS,
        events: &[100],
    },
    Chart {
        id: "cpu",
        title: "CPU time of the server for one decision (windows of 100 events, pipelines of 50)",
        sections: &["time"],
        x: linear("µs of CPU time per decision"),
        y: None,
        marks: &["CPU"],
        names: COMMANDS,
        events: &[100],
    },
    Chart {
        id: "window",
        title: "Instructions for one decision about a full window, by its size",
        sections: &["window"],
        x: log("events in the window"),
        y: Some(log("instructions per decision")),
        marks: &[],
        names: WINDOWS,
        events: &window::SIZES,
    },
    Chart {
        id: "latency",
        title: "Latency at 20,000 decisions a second from 20 connections",
        sections: &["latency"],
        x: log("µs until the reply"),
        y: None,
        marks: &["p50", "p99", "p99.9"],
        names: COMMANDS,
        events: &[latency::EVENTS],
    },
    Chart {
        id: "wake",
        title: "Delay of the reply to a waiting client",
        sections: &["wake"],
        x: log("µs until the reply"),
        y: None,
        marks: &["p50", "p99"],
        names: &["*"],
        events: &[0],
    },
    Chart {
        id: "key-memory",
        title: "Memory of one key",
        sections: &["memory"],
        x: linear("bytes per key (200,000 keys of 11 bytes)"),
        y: None,
        marks: &["bytes"],
        names: &[SET_EX, "RL.THROTTLE 15 30 60", "RL.THROTTLE 15 7 60", "GCRA Lua"],
        events: &[0],
    },
    Chart {
        id: "event-memory",
        title: "Memory of one event, with its share of the key",
        sections: &["memory"],
        x: log("events in the window"),
        y: Some(log("bytes per event")),
        marks: &[],
        names: &[
            "RL.WINDOW, {} events", "ZADD key ms ms:random, {} events", "ZADD key us us, {} events",
        ],
        events: &memory::EVENTS,
    },
];

impl Chart {
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
        let footer = format!("Repeat it: {} · {run}", self.command());
        let row = |name: &str, events: u64| name.replace("{}", &events.to_string());
        let find = |name: &str| tables.iter().find_map(|table| table.figures(name));
        let Some(y) = self.y else {
            let like = |name: &&str| {
                let name = row(name, self.events[0]);
                tables.iter().find_map(|table| table.names_like(&name)).unwrap_or_default()
            };
            let shown = |name: &str| {
                let figures = find(name)?.get(..self.marks.len())?.to_vec();
                Some(ChartRow { name: name.to_string(), figures })
            };
            let rows: Vec<_> = self.names.iter().flat_map(like).filter_map(shown).collect();
            return Some(draw_rows(self.title, &footer, self.x, self.marks, &rows));
        };
        let line = |name: &&str| {
            let point = |&events| Some((events as f64, *find(&row(name, events))?.first()?));
            let points = self.events.iter().filter_map(point).collect();
            ChartLine { name: name.replace(", {} events", ""), points }
        };
        let lines: Vec<_> = self.names.iter().map(line).collect();
        Some(draw_lines(self.title, &footer, [self.x, y], &lines))
    }
}

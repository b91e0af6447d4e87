//! Writes docs/benchmarks.md and its charts.

use std::fs;
use std::path::Path;

use crate::charts::CHARTS;
use crate::client::{BenchError, Result};
use crate::goals::{self, Goal};
use crate::report::{markdown_row, RunEnvironment, Table, SET_EX};
use crate::svg_chart::number;
use crate::throttle;

/// The page's prose. A line in braces stands for figures.
const PROSE: &str = include_str!("page.md");

/// Writes the page and its charts into `directory`, without the sections that were not run.
pub fn write(
    directory: &Path,
    environment: &RunEnvironment,
    tables: &[Table],
    goals: &[Goal],
) -> Result<()> {
    let charts = directory.join("charts");
    fs::create_dir_all(&charts)?;
    let line = |wanted: &str| {
        let found = environment.iter().find(|(name, _)| *name == wanted);
        found.map_or("", |(_, value)| value.as_str())
    };
    let run = [line("server"), line("cpu"), line("date")].join(", ");
    let mut page = String::new();
    for line in PROSE.lines() {
        let tag = line.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let text = match tag.map(|tag| tag.split_once(' ').unwrap_or((tag, ""))) {
            None => line.to_string(),
            Some(("environment", _)) => {
                let rows = environment.iter().map(|(name, value)| markdown_row(&[*name, value]));
                format!("| | |\n|---|---|\n{}", rows.collect::<String>())
            }
            Some(("goals", _)) => goals::to_markdown(goals),
            Some(("table", id)) => {
                let table = tables.iter().find(|table| table.id == id);
                table.map_or_else(String::new, |table| {
                    let table = table.to_markdown();
                    format!("<details><summary>All figures</summary>\n\n{table}\n</details>")
                })
            }
            Some(("costs", _)) => costs(environment, tables).unwrap_or_default(),
            Some(("chart", id)) => {
                let chart = CHARTS.iter().find(|chart| chart.id == id);
                let chart = chart.ok_or_else(|| BenchError::other(format!("no chart {id}")))?;
                if let Some(svg) = chart.draw(tables, &run) {
                    fs::write(charts.join(format!("{id}.svg")), svg)?;
                    let (title, command) = (chart.title, chart.command());
                    format!("![{title}](charts/{id}.svg)\n\nRepeat it: `{command}`.")
                } else {
                    String::new()
                }
            }
            Some((tag, _)) => return Err(BenchError::other(format!("page.md: {tag} is unknown"))),
        };
        page += text.trim_end();
        page.push('\n');
    }
    Ok(fs::write(directory.join("benchmarks.md"), page)?)
}

/// The table that compares RL.THROTTLE with redis-cell and with the script.
fn costs(environment: &RunEnvironment, tables: &[Table]) -> Option<String> {
    let server = &environment.iter().find(|(name, _)| *name == "server")?.1;
    let table = |id| tables.iter().find(|table| table.id == id);
    let (counted, timed, weighed) = (table("throttle")?, table("connections")?, table("memory")?);
    // redis-cell may not be there.
    let cells = |figure: &dyn Fn(&str) -> Option<String>, names: [&str; 3]| {
        names.map(|name| figure(name).unwrap_or_else(|| "-".into())).join(" | ")
    };
    let ratio = |name: &str| Some(format!("{:.2}", counted.ratio(0, name, SET_EX)?));
    let cpu_us = |name: &str| Some(format!("{:.1}", timed.figure(0, name)?));
    let weight = |name: &str| Some(number(weighed.figure(0, name)?.round()));
    Some(format!(
        "| on {server} | RL.THROTTLE | redis-cell | the usual GCRA script |\n| --- | --- | --- | --- |\n\
         | instructions of the server, allowed, if `{SET_EX}` is 1 (1,000 keys in turn, pipelines of 50) | {} |\n\
         | the same, denied | {} |\n\
         | µs of CPU time, allowed, where `{SET_EX}` takes {} (50 connections, one command at a time) | {} |\n\
         | bytes for a key, where `{SET_EX}` takes {} | {} |\n",
        cells(&ratio, [throttle::ALLOWED, throttle::CELL_ALLOWED, throttle::LUA_ALLOWED]),
        cells(&ratio, [throttle::DENIED, throttle::CELL_DENIED, throttle::LUA_DENIED]),
        cpu_us(SET_EX)?,
        cells(&cpu_us, [throttle::ALLOWED, throttle::CELL_ALLOWED, throttle::LUA_ALLOWED]),
        weight(SET_EX)?,
        cells(&weight, ["RL.THROTTLE 15 30 60", "redis-cell", "GCRA Lua"]),
    ))
}

//! The goals that the project set itself, and the figures that a run reached.

use crate::client::{BenchError, Result};
use crate::report::{markdown_row, Table};

const GOALS: &str = include_str!("goals.txt");

pub struct Goal {
    what: String,
    /// None if it was not measured, or the server lacks what it is about.
    figure: Option<f64>,
    bound: f64,
    /// True if the figure must be at least the bound instead of at most.
    is_minimum: bool,
}

impl Goal {
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
pub fn goals(tables: &[Table]) -> Result<Vec<Goal>> {
    let mut goals = Vec::new();
    for line in GOALS.lines().filter(|line| !line.starts_with('#')) {
        add_goals(line, tables, &mut goals)
            .ok_or_else(|| BenchError::other(format!("goals.txt: {line}")))?;
    }
    Ok(goals)
}

/// Adds the goals of a line whose section was run. Returns `None` if there is no such column, or the line is malformed.
fn add_goals(line: &str, tables: &[Table], goals: &mut Vec<Goal>) -> Option<()> {
    let [section, rows, column, bound] = line.split(" | ").collect::<Vec<_>>().try_into().ok()?;
    let (sign, bound) = bound.split_once(' ')?;
    let bound = bound.parse().ok()?;
    let Some(table) = tables.iter().find(|table| table.id == section) else { return Some(()) };
    let at = table.column(column)?;
    let (row, to) = rows.split_once(" / ").map_or((rows, None), |(row, to)| (row, Some(to)));
    for name in table.names_like(row).unwrap_or(vec![row]) {
        let (what, figure) = match to {
            Some(to) => {
                let setting = if column == "AOF" { ", with the AOF" } else { "" };
                (format!("{name} / {to}{setting}"), table.ratio(at, name, to))
            }
            None => (format!("{name}: {column}"), table.figure(at, name)),
        };
        goals.push(Goal { what, figure, bound, is_minimum: sign == ">=" });
    }
    Some(())
}

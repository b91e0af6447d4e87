//! Tables for people and the same figures for machines.

use std::fs;
use std::path::Path;

use serde_json::{json, Map, Value};

use crate::client::{Error, Result};
use crate::reach::Bar;

/// The row that all costs are compared with.
pub const SET_EX: &str = "SET k v EX 60";

/// A column of figures.
#[derive(Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub decimals: usize,
}

struct Row {
    name: String,
    peer: Option<String>,
    /// One figure for each column, none where it could not be measured.
    figures: Vec<f64>,
    remark: String,
}

/// Figures of one kind. Their first column is the one by which rows are compared.
pub struct Table {
    pub id: &'static str,
    title: String,
    columns: Vec<Column>,
    rows: Vec<Row>,
}

impl Table {
    pub fn new(id: &'static str, title: impl Into<String>, columns: &[Column]) -> Table {
        Table { id, title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, or what the server said instead. `peer` names the row of what people use today.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        peer: Option<String>,
        figures: Result<Vec<f64>>,
    ) -> Result<()> {
        let (figures, remark) = match figures {
            Ok(figures) => (figures, String::new()),
            Err(Error::Io(error)) => return Err(Error::Io(error)),
            Err(refused) => (Vec::new(), refused.to_string()),
        };
        let name = name.into();
        eprintln!("  {name} {remark}");
        self.rows.push(Row { name, peer, figures, remark });
        Ok(())
    }

    /// Puts a remark to the last row.
    pub fn remark(&mut self, text: String) {
        if let Some(row) = self.rows.last_mut() {
            row.remark = text;
        }
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// The figure in a row's first column.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.row(name)?.figures.first().copied()
    }

    /// How a row's first figure relates to that of another row.
    pub fn ratio(&self, name: &str, to: &str) -> Option<f64> {
        Some(self.figure(name)? / self.figure(to)?)
    }

    fn ratios(&self, row: &Row) -> [Option<f64>; 2] {
        let to_peer = row.peer.as_ref().and_then(|peer| self.ratio(&row.name, peer));
        [self.ratio(&row.name, SET_EX), to_peer]
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let figures = self.columns.iter().enumerate().map(|(index, column)| {
            row.figures.get(index).map(|figure| format!("{figure:.*}", column.decimals))
        });
        let ratios = self.ratios(row).map(|ratio| ratio.map(|ratio| format!("{ratio:.2}")));
        let cells = figures.chain(ratios).map(|cell| cell.unwrap_or_else(|| "-".into()));
        [row.name.clone()].into_iter().chain(cells).collect()
    }

    /// Prints the table, first column to the left, figures to the right.
    pub fn print(&self) {
        let titles = self.columns.iter().map(|column| column.name);
        let header: Vec<String> = [""]
            .into_iter()
            .chain(titles)
            .chain(["/ SET EX", "/ peer"])
            .map(str::to_string)
            .collect();
        let mut lines = vec![(header, "")];
        lines.extend(self.rows.iter().map(|row| (self.cells(row), row.remark.as_str())));
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|(cells, _)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len() + 3).map(width).collect();
        println!("\n{}\n", self.title);
        for (cells, remark) in &lines {
            let mut line = String::new();
            for (index, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                line += &match index {
                    0 => format!("{cell:width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            println!("{}", format!("{line}  {remark}").trim_end());
        }
    }

    fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_to_json(row)).collect();
        json!({ "title": self.title, "rows": rows })
    }

    fn row_to_json(&self, row: &Row) -> Value {
        let [to_set_ex, to_peer] = self.ratios(row);
        let named = self.columns.iter().zip(&row.figures);
        let figures: Map<String, Value> =
            named.map(|(column, figure)| (column.name.into(), json!(figure))).collect();
        json!({
            "name": row.name,
            "figures": figures,
            "to_set_ex": to_set_ex,
            "peer": row.peer,
            "to_peer": to_peer,
            "remark": row.remark,
        })
    }
}

/// Where and on what a run was made.
pub type Environment = Vec<(&'static str, String)>;

/// Writes everything to `path`.
pub fn write_json(
    path: &Path,
    environment: &Environment,
    tables: &[Table],
    bars: &[Bar],
) -> Result<()> {
    let environment: Map<String, Value> =
        environment.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    let tables: Map<String, Value> =
        tables.iter().map(|table| (table.id.to_string(), table.to_json())).collect();
    let reach: Vec<Value> = bars.iter().map(Bar::to_json).collect();
    let results = json!({ "environment": environment, "tables": tables, "reach": reach });
    let text = serde_json::to_string_pretty(&results).map_err(std::io::Error::from)?;
    Ok(fs::write(path, text + "\n")?)
}

/// The median of each column.
pub fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let columns = rounds.first().map_or(0, Vec::len);
    let median = |column| {
        let mut figures: Vec<f64> =
            rounds.iter().filter_map(|round| round.get(column)).copied().collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied()
    };
    (0..columns).filter_map(median).collect()
}

//! Tables of what was measured.

use crate::client::{BenchError, Result};

/// The row with which all costs are compared.
pub const SET_EX: &str = "SET k v EX 60";

/// A column of figures.
#[derive(Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub decimals: usize,
    /// True if the table has ratios of this column.
    pub compared: bool,
}

struct ReportRow {
    name: String,
    peer: Option<String>,
    /// One figure for each column, or none at all if the row could not be measured.
    figures: Vec<f64>,
    remark: String,
}

/// Figures of one kind.
pub struct Table {
    pub id: &'static str,
    title: String,
    columns: Vec<Column>,
    rows: Vec<ReportRow>,
}

impl Table {
    pub fn new(id: &'static str, title: impl Into<String>, columns: &[Column]) -> Table {
        Table { id, title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with its figures, or with the error of the server. `peer` is the name of the row to compare it with.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        peer: Option<String>,
        figures: Result<Vec<f64>>,
    ) -> Result<()> {
        let (figures, remark) = match figures {
            Ok(figures) => (figures, String::new()),
            Err(BenchError::Io(error)) => return Err(BenchError::Io(error)),
            Err(refused) => (Vec::new(), refused.to_string()),
        };
        let name = name.into();
        eprintln!("  {name} {remark}");
        self.rows.push(ReportRow { name, peer, figures, remark });
        Ok(())
    }

    /// Sets the remark of the last row.
    pub fn remark(&mut self, text: String) {
        if let Some(row) = self.rows.last_mut() {
            row.remark = text;
        }
    }

    /// The rows with a name, or with names that begin like one that ends with `*`. None if there are none.
    pub fn names_like(&self, name: &str) -> Option<Vec<&str>> {
        let names = self.rows.iter().map(|row| row.name.as_str());
        let names: Vec<_> = match name.strip_suffix('*') {
            Some(begin) => names.filter(|name| name.starts_with(begin)).collect(),
            None => names.filter(|one| *one == name).collect(),
        };
        (!names.is_empty()).then_some(names)
    }

    /// A row's figures, one for each column.
    pub fn figures(&self, name: &str) -> Option<&[f64]> {
        let row = self.rows.iter().find(|row| row.name == name)?;
        Some(&row.figures)
    }

    /// The place of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The figure in a row and a column.
    pub fn figure(&self, column: usize, name: &str) -> Option<f64> {
        self.figures(name)?.get(column).copied()
    }

    /// The ratio of a row's figure in a column to that of another row.
    pub fn ratio(&self, column: usize, name: &str, to: &str) -> Option<f64> {
        Some(self.figure(column, name)? / self.figure(column, to)?)
    }

    /// The ratios of a row to another in all compared columns.
    fn ratios(&self, name: &str, to: &str) -> Vec<f64> {
        let compared = (0..self.columns.len()).filter(|&column| self.columns[column].compared);
        compared.filter_map(|column| self.ratio(column, name, to)).collect()
    }

    fn cells(&self, row: &ReportRow) -> Vec<String> {
        let figures = self.columns.iter().enumerate().map(|(index, column)| {
            row.figures.get(index).map(|figure| format!("{figure:.*}", column.decimals))
        });
        let ratios = [Some(SET_EX), row.peer.as_deref()].map(|to| {
            let ratios = self.ratios(&row.name, to?);
            let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
            (!ratios.is_empty()).then(|| ratios.join(" / "))
        });
        let cells = figures.chain(ratios).map(|cell| cell.unwrap_or_else(|| "-".into()));
        [row.name.clone()].into_iter().chain(cells).collect()
    }

    /// The header and the rows; a column in which no row has a figure is left out.
    fn lines(&self) -> Vec<Vec<String>> {
        let titles = self.columns.iter().map(|column| column.name);
        let header = [""].into_iter().chain(titles).chain(["/ SET EX", "/ peer"]);
        let cells: Vec<_> = self.rows.iter().map(|row| self.cells(row)).collect();
        let used = |column: usize| cells.iter().any(|cells| cells[column] != "-");
        let used: Vec<bool> = (0..self.columns.len() + 3).map(used).collect();
        let keep = |cells: Vec<String>| -> Vec<String> {
            cells.into_iter().zip(&used).filter(|(_, used)| **used).map(|(cell, _)| cell).collect()
        };
        let header = keep(header.map(str::to_string).collect());
        [header].into_iter().chain(cells.into_iter().map(keep)).collect()
    }

    /// Prints the table, first column to the left, figures to the right.
    pub fn print(&self) {
        let lines = self.lines();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|cells| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
        let remarks = [""].into_iter().chain(self.rows.iter().map(|row| row.remark.as_str()));
        println!("\n{}\n", self.title);
        for (cells, remark) in lines.iter().zip(remarks) {
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

    /// The table in Markdown, under its title.
    pub fn to_markdown(&self) -> String {
        let mut lines = self.lines().into_iter();
        let header = lines.next().unwrap_or_default();
        let mut text = format!("{}.\n\n{}", self.title, markdown_row(&header));
        text += &format!("|---|{}\n", "---:|".repeat(header.len() - 1));
        for (mut cells, row) in lines.zip(&self.rows) {
            cells[0] = [row.name.as_str(), &row.remark].join(" ").trim_end().to_string();
            text += &markdown_row(&cells);
        }
        text
    }
}

/// One line of a table.
pub fn markdown_row(cells: &[impl AsRef<str>]) -> String {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The date, the machine and the versions of a run, each with its name.
pub type RunEnvironment = Vec<(&'static str, String)>;

//! Tables of what was measured, the goals, and the page with both.

use crate::throttle;
use crate::Result;

/// The row with which all costs are compared.
pub const SET_EX: &str = "SET k v EX 60";

/// The page's prose. A line in braces stands for figures.
const PROSE: &str = include_str!("page.md");

const GOALS: &str = include_str!("goals.txt");

/// A column of figures.
#[derive(Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub decimals: usize,
    /// True if the table has ratios of this column.
    pub compared: bool,
}

struct Row {
    name: String,
    peer: Option<String>,
    /// One figure for each column, or none at all if the row could not be measured.
    figures: Vec<f64>,
    remark: String,
}

/// Figures of one kind.
pub struct Table {
    id: &'static str,
    title: String,
    columns: Vec<Column>,
    rows: Vec<Row>,
}

impl Table {
    pub fn new(id: &'static str, title: impl Into<String>, columns: &[Column]) -> Table {
        Table { id, title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with its figures, or with the reason why there are none. `peer` is the name of the row to compare it with.
    pub fn add(&mut self, name: &str, peer: Option<&str>, figures: Result<Vec<f64>>) {
        let (figures, remark) = match figures {
            Ok(figures) => (figures, String::new()),
            Err(error) if error.to_lowercase().contains("unknown") => (vec![], "not there".into()),
            Err(error) => (vec![], error),
        };
        eprintln!("  {name} {remark}");
        self.rows.push(Row { name: name.into(), peer: peer.map(str::to_owned), figures, remark });
    }

    /// Sets the remark of the last row.
    pub fn remark(&mut self, text: String) {
        if let Some(row) = self.rows.last_mut() {
            row.remark = text;
        }
    }

    /// The figure in a row and a column.
    fn figure(&self, column: usize, name: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.name == name)?;
        row.figures.get(column).copied()
    }

    /// The ratio of a row's figure in a column to that of another row.
    fn ratio(&self, column: usize, name: &str, to: &str) -> Option<f64> {
        Some(self.figure(column, name)? / self.figure(column, to)?)
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let figures = self.columns.iter().zip(&row.figures);
        let mut cells = vec![[&row.name, row.remark.as_str()].join(" ").trim_end().to_owned()];
        cells.extend(figures.map(|(column, figure)| format!("{figure:.*}", column.decimals)));
        cells.resize(self.columns.len() + 1, "-".into());
        for to in [Some(SET_EX), row.peer.as_deref()] {
            let compared = (0..self.columns.len()).filter(|&column| self.columns[column].compared);
            let ratios = compared.filter_map(|column| self.ratio(column, &row.name, to?));
            let ratios: Vec<_> = ratios.map(|ratio| format!("{ratio:.2}")).collect();
            cells.push(if ratios.is_empty() { "-".into() } else { ratios.join(" / ") });
        }
        cells
    }

    /// The table in Markdown, under its title; a column in which no row has a figure is left out.
    pub fn to_markdown(&self) -> String {
        let titles = self.columns.iter().map(|column| column.name.to_owned());
        let header = [String::new()].into_iter().chain(titles);
        let header = header.chain(["/ SET EX", "/ peer"].map(str::to_owned)).collect();
        let lines: Vec<Vec<_>> = self.rows.iter().map(|row| self.cells(row)).collect();
        let is_used = |column: usize| column == 0 || lines.iter().any(|it| it[column] != "-");
        let used: Vec<_> = (0..self.columns.len() + 3).filter(|&column| is_used(column)).collect();
        let write = |cells: &Vec<String>| {
            let cells: Vec<_> = used.iter().map(|&column| cells[column].as_str()).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rows: String = lines.iter().map(write).collect();
        let rule = "---:|".repeat(used.len() - 1);
        format!("{}.\n\n{}|---|{rule}\n{rows}", self.title, write(&header))
    }
}

/// Compares what was measured with every goal of the sections that were run, in a table of Markdown.
fn goals(tables: &[Table]) -> Result<String> {
    let mut text = "| | goal | figure | bound |\n|---|---|---:|---:|\n".to_owned();
    for line in GOALS.lines().filter(|line| !line.starts_with('#')) {
        text += &goal(line, tables).ok_or_else(|| format!("goals.txt: {line}"))?;
    }
    Ok(text)
}

/// The row of a goal; empty if its section was not run. Returns `None` if there is no such column, or the line is malformed.
fn goal(line: &str, tables: &[Table]) -> Option<String> {
    let [section, rows, column, bound] = line.split(" | ").collect::<Vec<_>>().try_into().ok()?;
    let (sign, limit) = bound.split_once(' ')?;
    let limit: f64 = limit.parse().ok()?;
    let Some(table) = tables.iter().find(|table| table.id == section) else {
        return Some(String::new());
    };
    let at = table.columns.iter().position(|it| it.name == column)?;
    let figure = match rows.split_once(" / ") {
        Some((row, to)) => table.ratio(at, row, to),
        None => table.figure(at, rows),
    };
    let verdict = match figure {
        Some(figure) if figure == limit || (figure > limit) == (sign == ">=") => "met",
        Some(_) => "MISSED",
        None => "-",
    };
    let figure = figure.map_or("not there".into(), |figure| format!("{figure:.3}"));
    Some(format!("| {verdict} | {rows}: {column} | {figure} | {bound} |\n"))
}

/// The page, without the tables of sections that were not run.
pub fn page(environment: &[(&str, String)], tables: &[Table]) -> Result<String> {
    let goals = goals(tables)?;
    println!("\n{goals}");
    let mut page = String::new();
    for line in PROSE.lines() {
        let tag = line.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let text = match tag.map(|tag| tag.split_once(' ').unwrap_or((tag, ""))) {
            None => line.to_owned(),
            Some(("environment", _)) => {
                let rows =
                    environment.iter().map(|(name, value)| format!("| {name} | {value} |\n"));
                format!("| | |\n|---|---|\n{}", rows.collect::<String>())
            }
            Some(("goals", _)) => goals.clone(),
            Some(("costs", _)) => costs(tables).unwrap_or_default(),
            Some(("table", id)) => {
                let table = tables.iter().find(|table| table.id == id);
                table.map_or_else(String::new, Table::to_markdown)
            }
            Some((tag, _)) => return Err(format!("page.md: {tag} is unknown")),
        };
        page += text.trim_end();
        page.push('\n');
    }
    Ok(page)
}

/// The table that compares RL.THROTTLE with redis-cell and with the script.
fn costs(tables: &[Table]) -> Option<String> {
    let table = |id| tables.iter().find(|table| table.id == id);
    let (counted, timed, memory) = (table("throttle")?, table("time")?, table("memory")?);
    let row = |what: &str, figure: &dyn Fn(&str) -> Option<f64>, decimals, names: [&str; 3]| {
        let cell = |name| figure(name).map_or("-".into(), |it| format!("{it:.decimals$}"));
        format!("| {what} | {} |\n", names.map(cell).join(" | "))
    };
    let allowed = [throttle::ALLOWED, throttle::CELL_ALLOWED, throttle::LUA_ALLOWED];
    let denied = [throttle::DENIED, throttle::CELL_DENIED, throttle::LUA_DENIED];
    let ratio = |name: &str| counted.ratio(0, name, SET_EX);
    let time = |name: &str| timed.figure(1, name);
    let bytes = |name: &str| memory.figure(0, name);
    Some(
        [
            "| | RL.THROTTLE | redis-cell | the usual GCRA script |\n|---|---:|---:|---:|\n".into(),
            row(&format!("instructions, allowed, if `{SET_EX}` is 1"), &ratio, 2, allowed),
            row("the same, denied", &ratio, 2, denied),
            row(
                &format!(
                    "µs of CPU time, allowed, one command at a time (`{SET_EX}`: {:.1})",
                    time(SET_EX)?
                ),
                &time,
                1,
                allowed,
            ),
            row(
                &format!("bytes for a key (`{SET_EX}`: {:.0})", bytes(SET_EX)?),
                &bytes,
                0,
                ["RL.THROTTLE 15 30 60", "redis-cell", "GCRA Lua"],
            ),
        ]
        .concat(),
    )
}

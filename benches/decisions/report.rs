//! Tables of what was measured, the goals, and the page with both.

use crate::Result;

/// The row with which all costs are compared.
pub const SET_EX: &str = "SET k v EX 60";

/// The page's prose. What is in braces stands for figures: the name of a section, or a figure with its decimals.
const PROSE: &str = include_str!("page.md");

const GOALS: &str = include_str!("goals.txt");

struct Row {
    name: String,
    peer: Option<String>,
    /// One figure for each column, or none at all if the row could not be measured.
    figures: Vec<f64>,
}

/// Figures of one kind.
pub struct Table {
    title: String,
    /// The name of each column, and its decimals.
    columns: &'static [(&'static str, usize)],
    rows: Vec<Row>,
}

impl Table {
    pub fn new(title: impl Into<String>, columns: &'static [(&'static str, usize)]) -> Table {
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row with its figures, or with the reason why there are none. `peer` is the name of the row to compare it with.
    pub fn add(&mut self, name: &str, peer: Option<String>, figures: Result<Vec<f64>>) {
        let (name, figures) = match figures {
            Ok(figures) => (name.to_owned(), figures),
            Err(error) if error.to_lowercase().contains("unknown") => {
                (format!("{name} not there"), vec![])
            }
            Err(error) => (format!("{name} {error}"), vec![]),
        };
        self.rows.push(Row { name, peer, figures });
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
        let mut cells = vec![row.name.clone()];
        let figures = row.figures.iter().zip(self.columns);
        cells.extend(figures.map(|(figure, (_, decimals))| format!("{figure:.decimals$}")));
        cells.resize(self.columns.len() + 1, "-".into());
        for to in [Some(SET_EX), row.peer.as_deref()] {
            let ratio = |column| Some(format!("{:.2}", self.ratio(column, &row.name, to?)?));
            let ratios: Vec<_> = (0..self.columns.len()).filter_map(ratio).collect();
            cells.push(if ratios.is_empty() { "-".into() } else { ratios.join(" / ") });
        }
        cells
    }

    /// The table in Markdown, under its title; a column in which no row has a figure is left out.
    pub fn to_markdown(&self) -> String {
        let columns = self.columns.iter().map(|(name, _)| *name);
        let header = [""].into_iter().chain(columns).chain(["/ SET EX", "/ peer"]);
        let header = header.map(str::to_owned).collect();
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

/// The sections that were run.
type Sections<'a> = &'a [(&'a str, Table)];

fn table<'a>(sections: Sections<'a>, name: &str) -> Option<&'a Table> {
    sections.iter().find(|(section, _)| *section == name).map(|(_, table)| table)
}

/// The figure that `section | row | column` or, for a ratio, `section | row / row | column` names.
fn figure(sections: Sections, name: &str) -> Option<f64> {
    let [section, rows, column] = name.split(" | ").collect::<Vec<_>>().try_into().ok()?;
    let table = table(sections, section)?;
    let column = table.columns.iter().position(|(name, _)| *name == column)?;
    match rows.split_once(" / ") {
        Some((row, to)) => table.ratio(column, row, to),
        None => table.figure(column, rows),
    }
}

/// Compares what was measured with every goal of the sections that were run, in a table of Markdown.
fn goals(sections: Sections) -> String {
    let was_run = |line: &&str| sections.iter().any(|(name, _)| line.starts_with(name));
    let rows = GOALS.lines().filter(was_run).filter_map(|line| goal(sections, line));
    format!("| | goal | figure | bound |\n|---|---|---:|---:|\n{}", rows.collect::<String>())
}

/// The row of a goal: `section | row | column | <= 1.5`.
fn goal(sections: Sections, line: &str) -> Option<String> {
    let (name, bound) = line.rsplit_once(" | ")?;
    let (_, rows) = name.split_once(" | ")?;
    let (sign, limit) = bound.split_once(' ')?;
    let limit: f64 = limit.parse().ok()?;
    let figure = figure(sections, name);
    let verdict = match figure {
        Some(figure) if figure == limit || (figure > limit) == (sign == ">=") => "met",
        Some(_) => "MISSED",
        None => "-",
    };
    let figure = figure.map_or("not there".into(), |figure| format!("{figure:.3}"));
    Some(format!("| {verdict} | {} | {figure} | {bound} |\n", rows.replace(" | ", ": ")))
}

/// The page, without the tables of sections that were not run.
pub fn page(environment: &str, sections: Sections) -> Result<String> {
    let goals = goals(sections);
    println!("\n{goals}");
    let mut page = String::new();
    for part in PROSE.split_inclusive('}') {
        let Some((text, tag)) = part.strip_suffix('}').and_then(|part| part.split_once('{')) else {
            page += part;
            continue;
        };
        let value = match (tag, tag.rsplit_once(" | ")) {
            ("environment", _) => Some(environment.to_owned()),
            ("goals", _) => Some(goals.clone()),
            (_, None) => Some(table(sections, tag).map_or(String::new(), Table::to_markdown)),
            (_, Some((name, decimals))) => decimals.parse().ok().map(|decimals: usize| {
                figure(sections, name).map_or("-".into(), |figure| format!("{figure:.decimals$}"))
            }),
        };
        page += text;
        page += value.ok_or_else(|| format!("page.md: {tag}"))?.trim_end();
    }
    Ok(page)
}

//! The pictures and tables that are drawn from runs: what each file in docs/ should say.

mod capacity;
mod picture;
mod svg;
mod traffic;

use std::fs;
use std::path::Path;

/// A table stands between this line with its name and the last line.
const BEGIN: &str = "<!-- make pictures: ";
const END: &str = "<!-- end -->";

/// The path of each file, from the top of the repository, and its text.
pub fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for traffic in traffic::all() {
        let svg = picture::draw(&traffic, &traffic::run(&traffic));
        files.push((format!("docs/pictures/{}.svg", traffic.name), svg));
    }
    let (sharded, batched) = capacity::tables();
    let operations = fill(&page("docs/operations.md"), "sharded", &sharded);
    files.push(("docs/operations.md".into(), fill(&operations, "batched", &batched)));
    files
}

fn page(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Replaces what stands between the marks of this name.
fn fill(page: &str, name: &str, text: &str) -> String {
    let begin = format!("{BEGIN}{name} -->\n");
    let (head, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (_, tail) = rest.split_once(END).unwrap_or_else(|| panic!("no {END} after {begin}"));
    format!("{head}{begin}\n{text}\n{END}{tail}")
}

fn markdown_row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

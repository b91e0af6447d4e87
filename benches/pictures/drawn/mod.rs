//! The pictures and tables that are drawn from runs: what each file in docs/ should say.

mod capacity;
mod picture;
mod traffic;

use std::fs;
use std::path::Path;

use traffic::{Traffic, LIMITS};

/// A table stands between this line with its name and the last line.
const BEGIN: &str = "<!-- make pictures: ";
const END: &str = "<!-- end -->";

/// The path of each file, from the top of the repository, and its text.
pub fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut choosing = page("docs/choosing.md");
    for traffic in traffic::all() {
        let runs = traffic::run(&traffic);
        let svg = picture::draw(&traffic, &runs);
        files.push((format!("docs/pictures/{}.svg", traffic.name), svg));
        choosing = fill(&choosing, traffic.name, &table(&traffic, &runs));
    }
    files.push(("docs/choosing.md".into(), choosing));
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

fn table(traffic: &Traffic, runs: &[traffic::DrawnRun]) -> String {
    let calls = traffic.calls_ms.len();
    let mut text = format!(
        "| {calls} calls | go ahead at once | go ahead later | longest wait | denied at once | denied later | most in 60 s |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for (limit, run) in LIMITS.iter().zip(runs) {
        assert!(run.most_in_a_minute() <= limit.bound, "{}: {}", traffic.name, limit.command);
        let row = [
            format!("`{}`", limit.command),
            run.at_once().to_string(),
            run.later().to_string(),
            format!("{} s", run.longest_wait_ms() as f64 / 1000.0),
            run.denied_at_once().to_string(),
            run.denied_later().to_string(),
            run.most_in_a_minute().to_string(),
        ];
        text += &markdown_row(&row);
    }
    text
}

fn markdown_row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

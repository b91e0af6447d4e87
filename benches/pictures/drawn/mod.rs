//! The pictures and tables that are drawn from runs: what each file in docs/ should say.

mod capacity;
mod picture;
mod svg;
mod traffic;
mod turns;

use std::fs;
use std::path::Path;

use commands::memory::{MemoryServer, Outcome, Value};

/// A table stands between this line with its name and the last line.
const BEGIN: &str = "<!-- make pictures: ";
const END: &str = "<!-- end -->";

/// The limits in the picture of README.md: a rate, with and without waiting, and two kinds of windows.
const README_LIMITS: [usize; 4] = [0, 1, 3, 7];

/// The path of each file, from the top of the repository, and its text.
pub fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for traffic in traffic::all() {
        let runs = traffic::run(&traffic);
        let lanes: Vec<_> = traffic::LIMITS.iter().zip(&runs).collect();
        let svg = picture::draw(&traffic, &lanes);
        files.push((format!("docs/pictures/{}.svg", traffic.name), svg));
        if traffic.name == "burst" {
            let svg = picture::draw(&traffic, &README_LIMITS.map(|limit| lanes[limit]));
            files.push(("docs/pictures/readme.svg".into(), svg));
        }
    }
    files.push(("docs/pictures/turns.svg".into(), turns::draw()));
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

/// A server without keys, in memory. It has the module's commands, and each call says what time it is.
fn new_server() -> MemoryServer {
    MemoryServer::new(|bytes| bytes.fill(0))
}

/// Executes a command at a time.
fn call(server: &mut MemoryServer, command: &str, now_us: u64) -> Outcome {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    server.call(&words, now_us)
}

/// The integers of a reply that has nothing else.
fn integers(reply: Value) -> Vec<i64> {
    let integer = |value: &Value| match value {
        Value::Integer(number) => Some(*number),
        _ => None,
    };
    let integers = match &reply {
        Value::Array(values) => values.iter().map(integer).collect(),
        _ => None,
    };
    integers.unwrap_or_else(|| panic!("not an array of integers: {reply:?}"))
}

fn markdown_row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

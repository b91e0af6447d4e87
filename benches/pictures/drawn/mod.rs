//! The pictures and tables that are drawn from runs: what each file in docs/ should say.

mod capacity;
mod picture;
mod svg;
mod traffic;
mod turns;

use std::fs;
use std::path::Path;

use commands::memory::{MemoryServer, Outcome, Ticket, Value};
use support::unix_us;

/// The step of the clock. Every call of a picture comes and ends on such a step.
const STEP_MS: usize = 100;

/// A table stands between this line with its name and the last line.
const BEGIN: &str = "<!-- make pictures: ";
const END: &str = "<!-- end -->";

/// The limits in the picture of README.md: a rate, with and without waiting, and two kinds of windows.
const README_LIMITS: [usize; 4] = [0, 1, 3, 7];

/// The path of each file, from the top of the repository, and its text.
pub fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for traffic in traffic::all() {
        let lanes = traffic::LIMITS.map(|limit| (limit, traffic::run(&traffic, limit)));
        let svg = picture::draw(&traffic, lanes.iter());
        files.push((format!("docs/pictures/{}.svg", traffic.name), svg));
        if traffic.name == "burst" {
            let svg = picture::draw(&traffic, README_LIMITS.iter().map(|limit| &lanes[*limit]));
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

/// A call and its result. Times are in milliseconds after midnight, below 0 before it.
#[derive(Clone)]
pub struct DrawnCall {
    pub came_ms: i64,
    pub may_go: bool,
    /// The time at which it could go ahead, or was denied.
    pub at_ms: i64,
}

/// Makes calls, each a time and a command, from the first moment of a picture to its last.
fn run(calls: &[(i64, String)], (from_ms, to_ms): (i64, i64)) -> Vec<DrawnCall> {
    let mut server = new_server();
    let mut waiting: Vec<(Ticket, usize)> = Vec::new();
    let mut results = vec![None; calls.len()];
    for now_ms in (from_ms..=to_ms).step_by(STEP_MS) {
        let now_us = (unix_us("2026-11-22T00:00:00") + 1000 * now_ms).unsigned_abs();
        let mut end = |number: usize, reply| {
            let answer = integers(reply);
            let may_go = answer[0] == 0;
            // With AHEAD the reply says how long to wait before going on.
            let wait_ms = answer.get(5).filter(|_| may_go).copied().unwrap_or(0);
            let (came_ms, _) = calls[number];
            results[number] = Some(DrawnCall { came_ms, may_go, at_ms: now_ms + wait_ms });
        };
        for (ticket, reply) in server.take_ended(now_us) {
            let at = waiting.iter().position(|(waits, _)| *waits == ticket).expect("a call waits");
            end(waiting.remove(at).1, reply);
        }
        for (number, (_, command)) in calls.iter().enumerate().filter(|it| it.1 .0 == now_ms) {
            match call(&mut server, command, now_us) {
                Outcome::Waits(ticket) => waiting.push((ticket, number)),
                Outcome::Reply(reply) => end(number, reply),
            }
        }
    }
    results.into_iter().map(|it| it.expect("the picture ends after the last wait")).collect()
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

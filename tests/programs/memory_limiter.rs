//! MemoryLimiter of the clients answers what a server answers: random calls to a server with a held clock that steps forward
//! and back, and the same calls at the same times to the engine in Python and in JavaScript.
//!
//! `RATELIMIT_CALLS=100000 cargo test --test programs memory_limiter::` compares that many calls, and `RATELIMIT_SEED=n`
//! others.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{json, Value as Json};
use support::*;

use crate::helpers::{has_engine, typescript};

/// In `make test`; `make test-clients` makes ten times as many.
const CALLS: usize = 3_000;

fn as_json(reply: Value) -> Json {
    match reply {
        Value::Nil => Json::Null,
        Value::Int(number) => json!(number),
        Value::Array(values) => values.into_iter().map(as_json).collect(),
        Value::ServerError(error) => json!({"error": error_line(&Value::ServerError(error))}),
        other => json!(text(&other)),
    }
}

const YEAR_2100_US: i64 = 4_102_444_800_000_000;

/// Records what a server answers: each line has the time, the words and the reply.
fn record(file: &Path, calls: usize, seed: u64) {
    let (server, mut conn) = Server::with_held_clock();
    let mut lines = String::new();
    let mut random = RandomCalls::new(seed);
    let mut ask = |words: Vec<String>| {
        let reply = as_json(conn.cmd(words.as_slice()));
        writeln!(lines, "{}", json!([server.clock().now_us(), words, reply])).unwrap();
    };
    let policies = ["CONFIG", "SET", "ratelimit.policies", RandomCalls::POLICIES];
    ask(policies.map(str::to_owned).to_vec());
    for _ in 0..calls {
        ask(random.draw());
        let step_us = match random.below(60) {
            0..=20 => 0,
            21..=40 => random.below(20_000),
            41..=54 => random.below(2_000_000),
            55..=56 => {
                // An expired key lives again if the clock steps back before the server has deleted it. The server deletes
                // it at the latest when a call names it, but may do so at any time before.
                for key in RandomCalls::keys() {
                    ask(vec!["RL.INFO".to_owned(), key]);
                }
                let most_us = [3_000, 3_000_000, 90_000_000_000][random.below(3) as usize];
                -random.below(most_us)
            }
            57..=58 => random.below(90_000_000_000),
            _ => random.below(3_000_000_000_000),
        };
        // After 2099 only short steps.
        let is_late = server.clock().now_us() + step_us >= YEAR_2100_US;
        server.clock().advance_us(if is_late { step_us % 1_000_000 } else { step_us });
    }
    fs::write(file, lines).unwrap();
}

fn recorded() -> PathBuf {
    let calls = env_number("RATELIMIT_CALLS").map_or(CALLS, |calls| calls as usize);
    let seed = env_number("RATELIMIT_SEED").unwrap_or(1);
    fs::create_dir_all(clients_dir()).unwrap();
    let file = clients_dir().join("calls.jsonl");
    record(&file, calls, seed);
    file
}

/// One test, as both replay the same recording.
#[test]
fn the_engines_in_python_and_javascript_answer_random_calls_as_a_server_does() {
    let python = clients_dir().join("python/bin/python");
    let has_node = clients_dir().join("node_modules/installed.json").exists();
    let has_python = python.exists();
    if !has_python && !has_node {
        return skip("MemoryLimiter", "neither Python nor Node is installed");
    }
    let file = recorded();
    if !has_python {
        skip("MemoryLimiter in Python", "not installed");
    } else if has_engine("python") {
        let mut command = Command::new(python);
        command.args(["-m", "tests.replay"]).arg(&file);
        command.current_dir(root().join("clients/python")).env("PYTHONPATH", "src");
        run_and_print(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    }
    if !has_node {
        skip("MemoryLimiter in JavaScript", "not installed");
    } else if let Some(tools) = typescript() {
        run_and_print(Command::new("node").arg(tools.join("build/test/replay.js")).arg(&file));
    }
}

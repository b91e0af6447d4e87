//! MemoryLimiter of the clients answers what a server answers: random calls to a server with a held clock that steps forward
//! and back, and the same calls at the same times to the engine in Python and in JavaScript.
//!
//! `RATELIMIT_CALLS=100000 cargo test --test programs memory_limiter::` makes so many, `RATELIMIT_SEED=n` others.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{json, Value as Json};
use support::*;

use crate::helpers::build_engine;

/// In `make test`; `make test-clients` makes ten times as many.
const CALLS: usize = 3_000;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is {text}")))
}

fn as_json(reply: Value) -> Json {
    match reply {
        Value::Nil => Json::Null,
        Value::Int(number) => json!(number),
        Value::Array(values) => values.into_iter().map(as_json).collect(),
        Value::ServerError(error) => json!({"error": error_line(&Value::ServerError(error))}),
        other => json!(text(&other)),
    }
}

/// Calls of every command with every option, on few keys, so that they meet each other's state.
struct MemoryCalls {
    random: Random,
    ids: u64,
}

impl MemoryCalls {
    fn pick(&mut self, choices: &[&str]) -> String {
        self.random.pick(choices).to_owned()
    }

    fn number(&mut self, most: i64) -> String {
        self.random.below(most).to_string()
    }

    fn maybe(&mut self, n: i64, words: &str) -> String {
        if self.random.one_in(n) {
            format!(" {words}")
        } else {
            String::new()
        }
    }

    /// Now and then an id that is taken.
    fn id(&mut self) -> String {
        if !self.random.one_in(6) {
            self.ids += 1;
        }
        format!("job-{}", self.ids)
    }

    /// One that may be held.
    fn known_id(&mut self) -> String {
        let back = self.random.below(6) as u64;
        format!("job-{}", self.ids.saturating_sub(back))
    }

    fn rate(&mut self) -> String {
        self.pick(&[
            "4 4 1s",
            "0 20 1",
            "15 30 60",
            "9 7 500ms",
            "0 1 1h",
            "99 1000000 1",
            "2 7 1d",
            "@free",
            "4 4 1s",
            "15 30 60",
            "0 20 1",
            "2 3 1mo",
        ])
    }

    /// Of these a key has few, as other parameters are other limits.
    fn window(&mut self, key: &str) -> (String, &'static str) {
        let number = key.bytes().last().unwrap_or_default() % 8;
        let (limit, option) = match number {
            0 => ("6 3", ""),
            1 => ("5 60", " BUCKETS 4"),
            2 => ("100 1h", " FIXED"),
            3 => ("20 1d", " FIXED TZ America/New_York"),
            4 => ("3 1mo", " FIXED FROM 15@09:00 TZ Europe/Berlin"),
            5 => ("4 10s", " FIXED FROM first"),
            6 => ("@day", ""),
            _ => ("10 1mo", ""),
        };
        (limit.to_owned(), option)
    }

    fn quantity(&mut self) -> String {
        self.pick(&["", " 1", " 2", " 3", " 0", " -1", " 7", " 200"])
    }

    fn leave(&mut self) -> String {
        let leave = format!("LEAVE {}", self.random.below(4));
        self.maybe(6, &leave)
    }

    fn throttle_options(&mut self) -> String {
        let mut options = self.leave();
        options += &self.maybe(6, "ATMOST");
        options += &self.maybe(8, "FORCE");
        options += &self.maybe(8, "BAN 5s");
        options += &self.maybe(8, "AHEAD 2s");
        options
    }

    fn window_options(&mut self) -> String {
        let mut options = self.leave();
        options += &self.maybe(6, "ATMOST");
        options += &self.maybe(8, "FORCE");
        options += &self.maybe(6, "COUNTDENIED");
        options += &self.maybe(8, "BAN 700");
        options
    }

    fn acquire_options(&mut self) -> String {
        let mut options = self.leave();
        let lease = format!("LEASE {}", self.pick(&["300", "2s", "1min"]));
        options += &self.maybe(2, &lease);
        options += &self.maybe(4, "COUNTLAPSED");
        write!(options, " ID {}", self.id()).unwrap();
        options
    }

    fn window_key(&mut self) -> String {
        let letter = self.random.pick(b"abcdefgh");
        format!("{{u}}:{}", char::from(letter))
    }

    fn clause(&mut self, key: &str) -> String {
        let mut clause = match key {
            "{u}:sema" => format!("ACQUIRE 3 0 1 ID {}", self.id()),
            key if key.contains("rate") => format!("THROTTLE {}{}", self.rate(), self.quantity()),
            key => {
                let (limit, option) = self.window(key);
                let (quantity, is_window) = (self.quantity(), self.random.one_in(2));
                if is_window {
                    format!("WINDOW {limit}{quantity}{option}{}", self.maybe(5, "COUNTDENIED"))
                } else {
                    format!("ACQUIRE {limit}{quantity}{option} ID {}", self.id())
                }
            }
        };
        clause += &self.leave();
        clause += &self.maybe(6, "SHADOW");
        clause += &self.maybe(8, "CHECK");
        clause
    }

    fn all(&mut self) -> String {
        let mut keys: Vec<String> = vec![];
        for _ in 0..=self.random.below(3) {
            let key = match self.random.below(4) {
                0 => "{u}:rate0".to_owned(),
                1 => "{u}:sema".to_owned(),
                _ => self.window_key(),
            };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut line =
            format!("RL.ALL{} {} {}", self.maybe(5, "").trim_end(), keys.len(), keys.join(" "));
        if self.random.one_in(5) {
            line = line.replacen("RL.ALL", "RL.ALL_RO", 1);
        }
        for (at, key) in keys.iter().enumerate() {
            if at > 0 {
                line += &self.maybe(3, "ELSE");
            }
            line = format!("{line} {}", self.clause(key));
        }
        line + &self.maybe(2, "MS")
    }

    fn next(&mut self) -> String {
        let key = self.window_key();
        let (limit, option) = self.window(&key);
        let ms = self.maybe(2, "MS");
        match self.random.below(28) {
            0..=5 => {
                let key = format!("{{u}}:rate{}", self.random.below(3));
                let (rate, quantity) = (self.rate(), self.quantity());
                format!("RL.THROTTLE {key} {rate}{quantity}{}{ms}", self.throttle_options())
            }
            6 => format!(
                "RL.THROTTLE_RO {{u}}:rate{} {}{}{ms}",
                self.number(3),
                self.rate(),
                self.leave()
            ),
            7..=12 => {
                let quantity = self.quantity();
                format!("RL.WINDOW {key} {limit}{quantity}{option}{}{ms}", self.window_options())
            }
            13 => format!("RL.WINDOW_RO {key} {limit}{option}{}{ms}", self.leave()),
            14..=16 => {
                let quantity = self.pick(&["", " 1", " 2", " 0"]);
                let options = self.acquire_options();
                let atmost = self.maybe(5, "ATMOST");
                format!("RL.ACQUIRE {key} {limit}{quantity}{option}{options}{atmost}{ms}")
            }
            17 => format!("RL.ACQUIRE {{u}}:sema 3 0 1{}{ms}", self.acquire_options()),
            18 => format!("RL.ACQUIRE_RO {key} {limit}{option}{ms}"),
            19 => format!("RL.APPLY {key} {}{}", self.known_id(), self.maybe(2, "2")),
            20 => format!("RL.RELEASE {key} {} {}", self.known_id(), self.known_id()),
            21 => format!("RL.RENEW {key} {}{}", self.known_id(), self.maybe(2, "LEASE 5s")),
            22 => format!("RL.HELD {}", if self.random.one_in(2) { "{u}:sema" } else { &key }),
            23 | 24 => self.all(),
            25 => format!("RL.INFO {}", self.pick(&[&key, "{u}:rate0", "{u}:sema", "nothing"])),
            26 => self.pick(&["RL.TOP", "RL.TOP COUNT 2", "RL.POLICIES", "RL.TOP COUNT 3 RESET"]),
            _ => self.rare(),
        }
    }

    /// Mistakes, and what is done now and then.
    fn rare(&mut self) -> String {
        let key = self.window_key();
        let (limit, option) = self.window(&key);
        match self.random.below(13) {
            0 => format!("DEL {key}"),
            1 => "DEL {u}:rate0 {u}:sema nothing".to_owned(),
            2 => format!("RL.WINDOW {key} {limit} many{option}"),
            3 => format!("RL.WINDOW {key}"),
            4 => "RL.THROTTLE k 1 1 1m".to_owned(),
            5 => format!("RL.THROTTLE {key} 4 4 1s"),
            6 => format!("RL.WINDOW {key} 5 60 FIXED BUCKETS 3"),
            7 => format!("RL.ACQUIRE {key} @day ID "),
            8 => format!("RL.WINDOW {key} 5 60 NONSENSE"),
            9 => "RL.ALL 2 a WINDOW 5 60".to_owned(),
            10 => format!("rl.window {key} {limit} 1{option} ms"),
            11 => "RL.THROTTLE k @none".to_owned(),
            _ => "CONFIG GET ratelimit.lease".to_owned(),
        }
    }
}

const POLICIES: &str = "free THROTTLE 15 30 60; day WINDOW 1000 1d FIXED TZ Asia/Shanghai; shy WINDOW 5 1s SHADOW BAN 5s";

const YEAR_2100_US: i64 = 4_102_444_800_000_000;

/// All keys that these calls name.
const KEYS: &str = "{u}:a {u}:b {u}:c {u}:d {u}:e {u}:f {u}:g {u}:h {u}:rate0 {u}:rate1 {u}:rate2 {u}:sema a k nothing";

/// Records what a server answers: each line has the time, the words and the reply.
fn record(file: &Path, calls: usize, seed: u64) {
    let (server, mut conn) = Server::held();
    let mut lines = String::new();
    let mut random = MemoryCalls { random: Random::new(seed), ids: 0 };
    let mut ask = |words: Vec<String>| {
        let reply = as_json(conn.cmd(words.as_slice()));
        writeln!(lines, "{}", json!([server.clock().now_us(), words, reply])).unwrap();
    };
    let policies = ["CONFIG", "SET", "ratelimit.policies", POLICIES];
    ask(policies.map(str::to_owned).to_vec());
    for _ in 0..calls {
        ask(random.next().split(' ').map(str::to_owned).collect());
        let step_us = match random.random.below(60) {
            0..=20 => 0,
            21..=40 => random.random.below(20_000),
            41..=54 => random.random.below(2_000_000),
            55..=56 => {
                // An expired key lives again if the clock steps back before the server has deleted it. The server deletes
                // it at the latest when a call names it, but may do so at any time before.
                for key in KEYS.split(' ') {
                    ask(vec!["RL.INFO".to_owned(), key.to_owned()]);
                }
                let most_us = random.random.pick(&[3_000, 3_000_000, 90_000_000_000]);
                -random.random.below(most_us)
            }
            57..=58 => random.random.below(90_000_000_000),
            _ => random.random.below(3_000_000_000_000),
        };
        // After 2099 only short steps.
        let is_late = server.clock().now_us() + step_us >= YEAR_2100_US;
        server.clock().advance_us(if is_late { step_us % 1_000_000 } else { step_us });
    }
    fs::write(file, lines).unwrap();
}

fn recorded() -> PathBuf {
    let calls = number("RATELIMIT_CALLS").map_or(CALLS, |calls| calls as usize);
    let seed = number("RATELIMIT_SEED").unwrap_or(1);
    fs::create_dir_all(clients_dir()).unwrap();
    let file = clients_dir().join("calls.jsonl");
    record(&file, calls, seed);
    file
}

/// One test, as both replay the same recording.
#[test]
fn the_engines_in_python_and_javascript_answer_random_calls_as_a_server_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = clients_dir().join("python/bin/python");
    let has_node = clients_dir().join("node_modules/installed.json").exists();
    let has_python = python.exists();
    if !has_python && !has_node {
        return skip("MemoryLimiter", "neither Python nor Node is installed");
    }
    let file = recorded();
    if has_python {
        build_engine("python");
        let mut command = Command::new(python);
        command.args(["-m", "tests.replay"]).arg(&file);
        command.current_dir(root.join("clients/python")).env("PYTHONPATH", "src");
        print!("{}", run(command.env("PYTHONDONTWRITEBYTECODE", "1")));
    } else {
        skip("MemoryLimiter in Python", "not installed");
    }
    if has_node {
        build_engine("typescript");
        let mut command = Command::new("node");
        print!("{}", run(command.arg(root.join("clients/typescript/test/replay.mjs")).arg(&file)));
    } else {
        skip("MemoryLimiter in JavaScript", "not installed");
    }
}

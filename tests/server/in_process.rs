//! The server in memory answers as the module does: random calls of every command with random options, over a few keys, at the
//! same times of a clock that is held, forward and back. Replies are compared whole.
//!
//! `RATELIMIT_CALLS=100000 RATELIMIT_SEED=2 cargo test --test server in_process::` makes so many calls, and others than by default.

#[allow(dead_code, reason = "the clients use more of it")]
#[path = "../clients/cases.rs"]
mod cases;

use commands::memory::{MemoryServer, Outcome, Ticket, Value as Local};
use serde_json::{json, Value as Json};
use std::collections::BTreeMap;
use std::env;
use std::time::Duration;
use support::*;

const SOON: Duration = Duration::from_secs(20);

/// How many calls are compared by default.
const CALLS: i64 = 2_000;

const POLICIES: &str = "rate THROTTLE 3 5 1s; shadow THROTTLE 1 1 2s SHADOW; banned THROTTLE 1 1 1s BAN 1500; \
    window WINDOW 4 3s; day WINDOW 9 1d FIXED TZ Asia/Shanghai; quiet WINDOW 2 5s SHADOW; coarse WINDOW 40 2s BUCKETS 4 BAN 700ms; \
    pool WINDOW 3 0; first WINDOW 4 5s FIXED FROM first";

/// Some of these, some of them wrong.
const PERIODS: [&str; 16] = [
    "1", "1s", "2s", "3s", "500ms", "1500ms", "10", "1min", "1h", "1d", "1w", "1mo", "1y", "7",
    "86400", "1m",
];

/// A call is its words, made one after the other.
struct ServedCalls {
    random: Random,
    words: Vec<String>,
}

impl ServedCalls {
    fn say(&mut self, word: impl ToString) {
        self.words.push(word.to_string());
    }

    fn say_one(&mut self, words: &[&str]) {
        let word = self.random.pick(words);
        self.say(word);
    }

    fn below(&mut self, end: i64) -> i64 {
        self.random.below(end)
    }

    fn one_in(&mut self, n: i64) -> bool {
        self.random.one_in(n)
    }

    /// A key of this kind; seldom one of another.
    fn key(&mut self, kind: char) -> String {
        let kind = if self.one_in(60) { self.random.pick(&['t', 'w', 'a', 's']) } else { kind };
        format!("{kind}{}", self.below(3))
    }

    fn number(&mut self, most: i64) -> String {
        match self.below(40) {
            0 => self.random.pick(&["-1", "x", "01", "", "9223372036854775807", "1.5"]).into(),
            1 => self.below(100_000).to_string(),
            _ => self.below(most).to_string(),
        }
    }

    fn period(&mut self, usual: &str) -> String {
        if self.one_in(6) {
            self.random.pick(&PERIODS).into()
        } else {
            usual.into()
        }
    }

    fn duration(&mut self) -> String {
        match self.below(20) {
            0 => self.random.pick(&["0", "-5", "1y", "x", "1m", "0s", "53w"]).into(),
            1..=4 => format!("{}s", self.below(4)),
            5 => "2min".into(),
            _ => self.below(3_000).to_string(),
        }
    }

    fn id(&mut self) -> String {
        if self.one_in(80) {
            String::new()
        } else {
            format!("id{}", self.below(12))
        }
    }

    /// The limit of a command, in numbers or as a policy.
    fn limit(&mut self, kind: char) {
        if self.one_in(8) {
            let names = match (self.below(10), kind) {
                (0, _) => ["nobody", "rate", "pool", "window"],
                (_, 't') => ["rate", "shadow", "banned", "rate"],
                (_, 's') => ["pool", "pool", "window", "quiet"],
                _ => match self.below(2) {
                    0 => ["window", "day", "quiet", "coarse"],
                    _ => ["first", "first", "window", "coarse"],
                },
            };
            let name = self.random.pick(&names);
            return self.say(format!("@{name}"));
        }
        match kind {
            't' => {
                let (burst, count) = (self.number(7), self.number(12));
                let period = self.period("2s");
                self.words.extend([burst, count, period]);
            }
            's' => {
                let limit = self.number(7);
                self.words.extend([limit, "0".into()]);
            }
            _ => {
                let limit = self.number(12);
                let usual = self.random.pick(&["2s", "5s", "1min"]);
                let period = self.period(usual);
                self.words.extend([limit, period]);
            }
        }
    }

    fn quantity(&mut self, may_be_negative: bool) {
        match self.below(12) {
            0..=5 => {}
            6 => self.say(0),
            7 if may_be_negative || self.one_in(10) => {
                let back = self.below(4);
                self.say(-back);
            }
            8 => {
                let wrong = self.number(30);
                self.say(wrong);
            }
            _ => {
                let some = self.below(5);
                self.say(some);
            }
        }
    }

    fn option(&mut self, name: &str) {
        if self.one_in(30) {
            self.say(name.to_lowercase());
        } else {
            self.say(name);
        }
        match name {
            "LEAVE" | "COUNT" => {
                let value = self.number(6);
                self.say(value);
            }
            "BUCKETS" => {
                let value = self.number(9);
                self.say(value);
            }
            "LEASE" | "AHEAD" | "BAN" => {
                let value = self.duration();
                self.say(value);
            }
            "ID" => {
                let id = self.id();
                self.say(id);
            }
            "FROM" => self.say_one(&[
                "first",
                "first",
                "09:00",
                "mon",
                "15",
                "02-29",
                "2023-11-02",
                "2023-11-14@22:13:19",
                "31",
                "32",
            ]),
            "TZ" => self.say_one(&["UTC", "Asia/Shanghai", "+05:45", "America/New_York", "Mars"]),
            _ => {}
        }
    }

    fn options(&mut self, usual: &[&str], often: i64) {
        for name in usual {
            if self.one_in(often) {
                self.option(name);
            }
        }
        if self.one_in(120) {
            let name = self.random.pick(&[
                "MS",
                "CHECK",
                "FROM",
                "TZ",
                "ATMOST",
                "COUNTDENIED",
                "COUNT",
                "NONE",
            ]);
            self.option(name);
        }
    }

    /// How a window counts.
    fn shape(&mut self) {
        match self.below(10) {
            0 => self.option("BUCKETS"),
            1 => self.option("FIXED"),
            2 => {
                self.option("FIXED");
                self.option("FROM");
            }
            3 => {
                self.option("FIXED");
                self.option("TZ");
            }
            _ => {}
        }
    }

    fn clause(&mut self) {
        let kind = self.random.pick(&['t', 'w', 'a', 's']);
        self.say(match kind {
            't' => "THROTTLE",
            'w' => "WINDOW",
            _ => "ACQUIRE",
        });
        self.limit(kind);
        self.quantity(false);
        if kind == 'w' || kind == 'a' {
            self.shape();
        }
        self.options(&["LEAVE", "CHECK", "SHADOW"], 8);
        match kind {
            't' => self.options(&["BAN"], 8),
            'w' => self.options(&["BAN", "COUNTDENIED"], 8),
            _ => {
                self.option("ID");
                self.options(&["LEASE", "COUNTLAPSED"], 3);
            }
        }
    }

    /// The words of the next call.
    fn next(&mut self) -> Vec<String> {
        self.words = Vec::new();
        match self.below(100) {
            0..=19 => {
                self.say_one(&["RL.THROTTLE", "RL.THROTTLE", "rl.throttle", "RL.THROTTLE_RO"]);
                let key = self.key('t');
                self.say(key);
                self.limit('t');
                self.quantity(true);
                self.options(&["LEAVE", "ATMOST", "FORCE", "AHEAD", "BAN", "MS"], 7);
            }
            20..=44 => {
                self.say_one(&["RL.WINDOW", "RL.WINDOW", "RL.WINDOW", "RL.WINDOW_RO"]);
                let key = self.key('w');
                self.say(key);
                self.limit('w');
                self.quantity(true);
                self.shape();
                self.options(&["LEAVE", "ATMOST", "FORCE", "COUNTDENIED", "BAN", "MS"], 7);
            }
            45..=64 => {
                self.say_one(&["RL.ACQUIRE", "RL.ACQUIRE", "RL.ACQUIRE", "RL.ACQUIRE_RO"]);
                let kind = self.random.pick(&['a', 'a', 'w', 's']);
                let key = self.key(kind);
                self.say(key);
                self.limit(kind);
                self.quantity(false);
                if kind != 's' {
                    self.shape();
                }
                let takes = self.words[0] == "RL.ACQUIRE";
                if takes || self.one_in(20) {
                    self.option("ID");
                    self.options(&["LEASE", "COUNTLAPSED", "ATMOST"], 3);
                }
                self.options(&["LEAVE", "MS"], 6);
            }
            65..=69 => {
                let (key, id) = (self.settled_key(), self.id());
                self.words.extend(["RL.APPLY".into(), key, id]);
                if self.one_in(2) {
                    let quantity = self.number(5);
                    self.say(quantity);
                }
            }
            70..=74 => {
                let key = self.settled_key();
                self.words.extend(["RL.RELEASE".into(), key]);
                for _ in 0..=self.below(4) {
                    let id = self.id();
                    self.say(id);
                }
            }
            75..=77 => {
                let (key, id) = (self.settled_key(), self.id());
                self.words.extend(["RL.RENEW".into(), key, id]);
                self.options(&["LEASE"], 2);
            }
            78..=80 => {
                let key = self.settled_key();
                self.words.extend(["RL.HELD".into(), key]);
            }
            81..=85 => {
                let kind = self.random.pick(&['t', 'w', 'a', 's']);
                let key = self.key(kind);
                self.words.extend(["RL.INFO".into(), key]);
            }
            86..=93 => self.all(),
            94 => {
                self.say("RL.TOP");
                self.options(&["COUNT", "RESET"], 5);
            }
            95 => self.say("RL.POLICIES"),
            96 => {
                let (one, other) = (self.key('w'), self.key('t'));
                self.words.extend(["DEL".into(), one, other]);
            }
            97 => {
                let key = self.key('t');
                self.words.extend(["RL.THROTTLE", &key, "0", "1", "9999999h"].map(String::from));
            }
            _ => {
                // Words that are cut off.
                let words = self.next();
                let kept = 1 + self.below(words.len() as i64) as usize;
                self.words = words[..kept].to_vec();
                // Of what is no command of ours, or makes an id of its own, the replies differ.
                if self.words[0] == "DEL" || self.makes_id() {
                    self.words = vec!["RL.HELD".into()];
                }
            }
        }
        std::mem::take(&mut self.words)
    }

    /// Whether a reservation might be made whose id its caller does not name.
    fn makes_id(&self) -> bool {
        let has = |word: &str| self.words.iter().any(|own| own.eq_ignore_ascii_case(word));
        let named = self.words.iter().filter(|own| *own == "ID").count();
        let acquires = self.words.iter().filter(|own| own.contains("ACQUIRE")).count();
        has("RL.ACQUIRE") || acquires > named
    }

    fn settled_key(&mut self) -> String {
        let kind = self.random.pick(&['a', 'a', 'w', 's']);
        self.key(kind)
    }

    fn all(&mut self) {
        self.say_one(&["RL.ALL", "RL.ALL", "RL.ALL_RO"]);
        let number = 1 + self.below(4);
        self.say(number);
        let (mut keys, mut clauses) = (Vec::new(), Vec::new());
        for _ in 0..number {
            let before = self.words.len();
            self.clause();
            let clause = self.words.split_off(before);
            let kind = match (clause[0].as_str(), clause.get(2).map(String::as_str)) {
                ("THROTTLE", _) => 't',
                ("WINDOW", _) => 'w',
                (_, Some("0")) => 's',
                _ => 'a',
            };
            keys.push(self.key(kind));
            clauses.push(clause);
        }
        // A key twice is an error; mostly there is none.
        if !self.one_in(20) {
            for at in 1..keys.len() {
                if keys[..at].contains(&keys[at]) {
                    keys[at] = format!("{}-{at}", keys[at]);
                }
            }
        }
        self.words.extend(keys);
        for (at, clause) in clauses.into_iter().enumerate() {
            if at > 0 && self.one_in(4) {
                self.say("ELSE");
            }
            self.words.extend(clause);
        }
        if self.one_in(3) {
            self.say("MS");
        }
    }
}

/// All keys that calls may name.
fn all_keys() -> impl Iterator<Item = String> {
    let plain = || "twas".chars().flat_map(|kind| (0..3).map(move |at| format!("{kind}{at}")));
    plain().chain(plain().flat_map(|key| (1..4).map(move |at| format!("{key}-{at}"))))
}

/// The last calls that named a key of this call, with their times.
fn told_of(history: &[String], words: &[String]) -> String {
    let keys: Vec<String> = all_keys().filter(|key| words.contains(key)).collect();
    let names = |line: &&String| line.split(' ').any(|word| keys.iter().any(|key| key == word));
    let lines: Vec<&str> = history.iter().filter(names).map(String::as_str).collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// A server's reply as the server in memory tells it.
fn local(reply: &Value) -> Local {
    match reply {
        Value::Nil => Local::Nil,
        Value::Int(number) => Local::Integer(*number),
        Value::BulkString(text) => Local::Bulk(text.clone()),
        Value::SimpleString(text) => Local::Bulk(text.clone().into_bytes()),
        Value::Okay => Local::Bulk(b"OK".to_vec()),
        Value::Array(values) => Local::Array(values.iter().map(local).collect()),
        Value::ServerError(_) => Local::Error(error_line(reply)),
        other => panic!("{other:?}"),
    }
}

fn call(memory: &mut MemoryServer, words: &[String], now_us: i64) -> Outcome {
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    memory.call(&words, now_us as u64)
}

fn in_memory() -> MemoryServer {
    let mut numbers = Random::new(1);
    MemoryServer::new(move |bytes| bytes.fill_with(|| numbers.draw() as u8))
}

#[test]
fn random_calls_are_answered_in_memory_as_by_the_module() {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<i64>().expect(name));
    let calls = number("RATELIMIT_CALLS").unwrap_or(CALLS);
    let seed = number("RATELIMIT_SEED").unwrap_or(1);
    let (server, mut conn) = Server::held();
    let mut memory = in_memory();
    for words in [
        ["CONFIG", "SET", "ratelimit.policies", POLICIES],
        ["CONFIG", "SET", "ratelimit.top-keys", "5"],
    ] {
        let words = words.map(String::from);
        assert_eq!(call(&mut memory, &words, START_US), Outcome::Reply(local(&conn.cmd(&words))));
    }
    let mut stream = ServedCalls { random: Random::new(seed as u64), words: Vec::new() };
    let (mut history, mut kinds) = (Vec::new(), BTreeMap::<String, [i64; 2]>::new());
    for number in 0..calls {
        let clock = server.clock();
        match stream.below(400) {
            0..=199 => {}
            200..=299 => clock.advance_us(stream.below(1_000_000)),
            300..=390 => clock.advance_us(1 + stream.below(1_000)),
            391..=394 => clock.advance_ms(stream.below(4_000)),
            395 => clock.advance_ms(stream.below(100_000_000)),
            _ => {
                // A key that has expired may be gone, or come back with the clock: a server deletes it when it is asked for.
                for key in all_keys() {
                    let words = ["RL.INFO".into(), key];
                    let told = Outcome::Reply(local(&conn.cmd(&words)));
                    let here = call(&mut memory, &words, clock.now_us());
                    assert_eq!(
                        here,
                        told,
                        "{words:?} before call {number} of seed {seed}, after:\n{}",
                        told_of(&history, &words)
                    );
                }
                clock.advance_ms(-stream.below(3_000));
            }
        }
        let (words, now_us) = (stream.next(), clock.now_us());
        history.push(format!("{now_us} {}", words.join(" ")));
        let told = local(&conn.cmd(&words));
        let count = kinds.entry(words[0].to_uppercase()).or_default();
        count[usize::from(matches!(told, Local::Error(_)))] += 1;
        let here = call(&mut memory, &words, now_us);
        let told = Outcome::Reply(told);
        let after = || told_of(&history, &words);
        assert_eq!(
            here,
            told,
            "call {number} of seed {seed}, in memory and by the module, after:\n{}",
            after()
        );
        // Now and then what is stored, with its TTL.
        for key in all_keys().filter(|key| words.contains(key) && number % 4 == 0) {
            let words = ["RL.INFO".into(), key];
            let told = Outcome::Reply(local(&conn.cmd(&words)));
            let here = call(&mut memory, &words, now_us);
            assert_eq!(
                here,
                told,
                "{words:?} after call {number} of seed {seed}, after:\n{}",
                told_of(&history, &words)
            );
        }
    }
    println!("{calls} calls of seed {seed}, replies and errors: {kinds:?}");
    // The calls are worth comparing: of each command there are replies that are no errors.
    assert!(kinds.len() >= 16 && kinds.values().all(|[replies, _]| *replies > 0), "{kinds:?}");
}

/// The words of a call that are given in one line.
fn say(memory: &mut MemoryServer, line: &str, now_us: i64) -> Outcome {
    let words: Vec<String> = line.split(' ').map(String::from).collect();
    call(memory, &words, now_us)
}

fn as_json(reply: &Local) -> Json {
    match reply {
        Local::Nil => Json::Null,
        Local::Integer(number) => json!(number),
        Local::Bulk(text) => json!(String::from_utf8_lossy(text)),
        Local::Array(values) => values.iter().map(as_json).collect(),
        Local::Error(text) => json!({ "error": text }),
    }
}

#[test]
fn the_cases_that_every_client_is_tested_with_are_answered_in_memory() {
    // As docs/commands.md.
    const NOW_US: i64 = 1_795_238_388_000_000;
    let mut memory = in_memory();
    let replies: Vec<Json> = cases::calls()
        .iter()
        .map(|words| match call(&mut memory, words, NOW_US) {
            Outcome::Reply(reply) => as_json(&reply),
            Outcome::Waits(_) => panic!("{words:?} waits"),
        })
        .collect();
    cases::check("in memory", &replies);
}

#[test]
fn calls_that_wait_are_granted_in_memory_in_the_order_of_the_module() {
    const STEPS: i64 = 400;
    const MOST_WAITING: usize = 6;
    let seed = 1;
    let mut random = Random::new(seed);
    let (server, mut conn) = Server::held();
    let mut memory = in_memory();
    let mut waiting: BTreeMap<Ticket, Conn> = BTreeMap::new();
    let (mut idle, mut granted, mut history) = (Vec::<Conn>::new(), 0, Vec::new());
    for step in 0..STEPS {
        let id = format!("id{step}");
        let line = match random.below(12) {
            0..=2 => format!(
                "RL.ACQUIRE s 3 0 {} LEAVE {} BLOCK 0 ID {id}",
                random.below(3),
                random.below(2)
            ),
            3 => format!("RL.ACQUIRE s 3 0 {} ATMOST BLOCK 1h ID {id} MS", 1 + random.below(3)),
            4 => format!(
                "RL.THROTTLE t 4 1 1h {} LEAVE {} BLOCK 0",
                1 + random.below(4),
                random.below(2)
            ),
            5 => format!("RL.THROTTLE t 4 1 1h -{}", 1 + random.below(3)),
            6 => format!("RL.WINDOW w 3 1h {} BLOCK 1d", 1 + random.below(3)),
            7 => format!("RL.WINDOW w 3 1h -{}", 1 + random.below(2)),
            8 => format!("RL.ALL 2 t w THROTTLE 4 1 1h 1 WINDOW 3 1h {}", random.below(2)),
            _ => match held_ids(&mut memory, "s") {
                ids if ids.is_empty() => "RL.RELEASE s none".into(),
                ids => {
                    let gone = 1 + random.below(ids.len() as i64) as usize;
                    format!("RL.RELEASE s {}", ids[..gone].join(" "))
                }
            },
        };
        if waiting.len() >= MOST_WAITING && line.contains("BLOCK") {
            continue;
        }
        history.push(line.clone());
        let told = match say(&mut memory, &line, START_US) {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Waits(ticket) => {
                let mut own = idle.pop().unwrap_or_else(|| server.conn());
                own.send(line.as_str());
                // It stands in line once the server has read it.
                let number = waiting.len() as i64 + 1;
                eventually(SOON, || waiting_calls(&mut conn) == number);
                waiting.insert(ticket, own);
                None
            }
        };
        if let Some(told) = told {
            assert_eq!(told, local(&conn.cmd(line.as_str())), "{line} of seed {seed}");
        }
        for (ticket, reply) in memory.take_ended(START_US as u64) {
            let mut own = waiting.remove(&ticket).expect("a wait ends once");
            assert_eq!(
                reply,
                local(&own.recv()),
                "a grant after {line} of seed {seed}\n{}",
                history.join("\n")
            );
            idle.push(own);
            granted += 1;
        }
        assert_eq!(waiting_calls(&mut conn), waiting.len() as i64, "after {line} of seed {seed}");
    }
    assert!(granted > 20, "{granted}");
}

/// The ids of what a key holds, the oldest first.
fn held_ids(memory: &mut MemoryServer, key: &str) -> Vec<String> {
    let Outcome::Reply(held) = say(memory, &format!("RL.HELD {key}"), START_US) else {
        panic!("RL.HELD waits")
    };
    let held = as_json(&held);
    held.as_array().unwrap().iter().map(|one| one[0].as_str().unwrap().to_owned()).collect()
}

/// How many calls wait on the server.
fn waiting_calls(conn: &mut Conn) -> i64 {
    let info = conn.text("INFO ratelimit");
    let line = info.lines().find_map(|line| line.strip_prefix("ratelimit_waiting:"));
    line.expect("a number").trim().parse().unwrap()
}

#[test]
fn a_call_that_waits_in_memory_is_denied_when_its_time_is_up_and_not_before() {
    let mut memory = in_memory();
    let at = |ms: i64| START_US + 1_000 * ms;
    assert!(matches!(say(&mut memory, "RL.THROTTLE k 0 1 10 1 MS", at(0)), Outcome::Reply(_)));
    // The next can be had after 10 seconds.
    let denied = [1, 1, 0, 10_000, 10_000].map(Local::Integer).to_vec();
    let reply = say(&mut memory, "RL.THROTTLE k 0 1 10 1 BLOCK 9999 MS", at(0));
    assert_eq!(reply, Outcome::Reply(Local::Array(denied)));
    let Outcome::Waits(granted) = say(&mut memory, "RL.THROTTLE k 0 1 10 1 BLOCK 10000 MS", at(0))
    else {
        panic!("it does not wait")
    };
    let Outcome::Waits(dismissed) =
        say(&mut memory, "RL.THROTTLE k 0 1 10 1 BLOCK 15000 MS", at(0))
    else {
        panic!("it does not wait")
    };
    let (mut now_us, mut told) = (at(0), Vec::new());
    while let Some(next_us) = memory.next_us() {
        // Soon, so that changed keys and clocks are noticed, and never in the past.
        assert!(next_us as i64 > now_us && next_us as i64 <= now_us + 100_000);
        now_us = next_us as i64;
        told.extend(
            memory
                .take_ended(now_us as u64)
                .into_iter()
                .map(|(ticket, reply)| (ticket, now_us, reply)),
        );
    }
    let integers = |values: [i64; 5]| Local::Array(values.map(Local::Integer).to_vec());
    assert_eq!(
        told,
        [
            (granted, at(10_000), integers([0, 1, 0, -1, 10_000])),
            (dismissed, at(15_000), integers([1, 1, 0, 5_000, 5_000])),
        ]
    );
}

#[test]
fn who_goes_away_leaves_the_line_and_gives_back_what_was_granted_meanwhile() {
    let mut memory = in_memory();
    let now_us = START_US as u64;
    let waits = |memory: &mut MemoryServer, line: &str| match say(memory, line, START_US) {
        Outcome::Waits(ticket) => ticket,
        Outcome::Reply(reply) => panic!("{reply:?}"),
    };
    say(&mut memory, "RL.ACQUIRE s 1 0 1 ID a", START_US);
    let first = waits(&mut memory, "RL.ACQUIRE s 1 0 1 ID b BLOCK 0");
    let second = waits(&mut memory, "RL.ACQUIRE s 1 0 1 ID c BLOCK 0");
    let third = waits(&mut memory, "RL.ACQUIRE s 1 0 1 ID d BLOCK 0");
    assert_eq!(memory.next_us().map(|next_us| next_us > now_us), Some(true));
    memory.withdraw(second, now_us);
    assert_eq!(say(&mut memory, "RL.RELEASE s a", START_US), Outcome::Reply(Local::Integer(1)));
    // The first was granted, and goes before it is told: the third comes.
    assert_eq!(memory.next_us(), Some(now_us));
    memory.withdraw(first, now_us);
    let ended: Vec<Ticket> = memory.take_ended(now_us).iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!((ended, memory.next_us()), (vec![third], None));
    let held = Local::Array(vec![Local::Array(vec![
        Local::Bulk(b"d".to_vec()),
        Local::Integer(1),
        Local::Integer(20_000),
    ])]);
    assert_eq!(say(&mut memory, "RL.HELD s", START_US), Outcome::Reply(held));
}

#[test]
fn settings_are_changed_together_or_not_at_all_and_say_what_is_allowed() {
    let mut memory = in_memory();
    let mut reply = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).into()).collect();
        match call(&mut memory, &words, START_US) {
            Outcome::Reply(reply) => as_json(&reply),
            Outcome::Waits(_) => panic!("it waits"),
        }
    };
    let all = ["ratelimit.lease", "5000", "ratelimit.timezone", "Mars"];
    let error = "ERR CONFIG SET failed (possibly related to argument 'ratelimit.timezone') - \
        must be an IANA time zone such as Asia/Shanghai, or an offset such as +08:00";
    assert_eq!(reply(&[&["CONFIG", "SET"][..], &all].concat()), json!({ "error": error }));
    assert_eq!(reply(&["CONFIG", "GET", "ratelimit.lease"]), json!(["ratelimit.lease", "20000"]));
    assert_eq!(reply(&["CONFIG", "SET", "ratelimit.policies-only", "yes"]), json!("OK"));
    let refused = json!({ "error": "NOPOLICY limits must be given as @policy" });
    assert_eq!(reply(&["RL.THROTTLE", "k", "1", "1", "1"]), refused);
    let policies = "a WINDOW 5 60";
    assert_eq!(reply(&["CONFIG", "SET", "ratelimit.policies", policies]), json!("OK"));
    assert_eq!(reply(&["RL.WINDOW", "k", "@a"]), json!([0, 5, 4, -1, 60]));
    assert_eq!(reply(&["RL.POLICIES"]), json!([["a", "WINDOW 5 60", 1, 0, 0]]));
    let arity = json!({ "error": "ERR wrong number of arguments for 'rl.throttle' command" });
    assert_eq!(reply(&["RL.THROTTLE", "k"]), arity);
    assert_eq!(reply(&["DEL", "k", "none"]), json!(1));
    let unknown = "ERR unknown command 'PING', with args beginning with: 'x' ";
    assert_eq!(reply(&["PING", "x"]), json!({ "error": unknown }));
}

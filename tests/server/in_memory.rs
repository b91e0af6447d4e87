//! The server in memory answers as the module does: random calls of every command with random options, over a few keys, at
//! the same times of a clock that is held, forward and back. Replies are compared whole.
//!
//! `RATELIMIT_CALLS=100000 RATELIMIT_SEED=2 cargo test --test server in_memory::` makes this many calls, with another seed.

#[allow(dead_code, reason = "the clients use more of it")]
#[path = "../clients/cases.rs"]
mod cases;

use commands::memory::{MemoryServer, Outcome, Ticket, Value as Local};
use serde_json::{json, Value as Json};
use std::collections::BTreeMap;
use support::*;

/// How many calls are compared by default.
const CALLS: i64 = 2_000;

/// The last calls that named a key of this call, with their times.
fn recent_calls(history: &[String], words: &[String]) -> String {
    let keys: Vec<String> = RandomCalls::keys().filter(|key| words.contains(key)).collect();
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

/// The reply to a call on the server, which must be the same in memory.
#[track_caller]
fn same_reply(
    memory: &mut MemoryServer,
    conn: &mut Conn,
    words: &[String],
    now_us: i64,
    when: impl FnOnce() -> String,
) -> Local {
    let on_server = local(&conn.cmd(words));
    let here = call(memory, words, now_us);
    if here != Outcome::Reply(on_server.clone()) {
        panic!("{words:?} {}\nin memory: {here:?}\non the server: {on_server:?}", when());
    }
    on_server
}

fn in_memory() -> MemoryServer {
    let mut numbers = Random::new(1);
    MemoryServer::new(move |bytes| bytes.fill_with(|| numbers.draw() as u8))
}

#[test]
fn random_calls_are_answered_in_memory_as_by_the_module() {
    let calls = env_number("RATELIMIT_CALLS").map_or(CALLS, |calls| calls as i64);
    let seed = env_number("RATELIMIT_SEED").unwrap_or(1);
    let (server, mut conn) = Server::with_held_clock();
    if server.version().lacks_settings() {
        return;
    }
    let mut memory = in_memory();
    for words in [
        ["CONFIG", "SET", "ratelimit.policies", RandomCalls::POLICIES],
        ["CONFIG", "SET", "ratelimit.top-keys", "5"],
    ] {
        same_reply(&mut memory, &mut conn, &words.map(String::from), START_US, String::new);
    }
    let after = |history: &[String], words: &[String]| {
        format!("seed {seed}, after:\n{}", recent_calls(history, words))
    };
    let mut stream = RandomCalls::new(seed);
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
                for key in RandomCalls::keys() {
                    let words = ["RL.INFO".into(), key];
                    let when = || format!("before call {number}, {}", after(&history, &words));
                    same_reply(&mut memory, &mut conn, &words, clock.now_us(), when);
                }
                clock.advance_ms(-stream.below(3_000));
            }
        }
        let (words, now_us) = (stream.draw(), clock.now_us());
        history.push(format!("{now_us} {}", words.join(" ")));
        let when = || format!("call {number}, {}", after(&history, &words));
        let reply = same_reply(&mut memory, &mut conn, &words, now_us, when);
        let has_limits = words.iter().any(|word| word.eq_ignore_ascii_case("LIMITS"));
        let kind = words[0].to_uppercase() + if has_limits { " LIMITS" } else { "" };
        let count = kinds.entry(kind).or_default();
        count[usize::from(matches!(reply, Local::Error(_)))] += 1;
        // Now and then what is stored, with its TTL.
        for key in RandomCalls::keys().filter(|key| words.contains(key) && number % 4 == 0) {
            let words = ["RL.INFO".into(), key];
            let when = || format!("behind call {number}, {}", after(&history, &words));
            same_reply(&mut memory, &mut conn, &words, now_us, when);
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
    const MAX_WAITING: usize = 6;
    let seed = 1;
    let mut random = Random::new(seed);
    let (server, mut conn) = Server::with_held_clock();
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
        if waiting.len() >= MAX_WAITING && line.contains("BLOCK") {
            continue;
        }
        history.push(line.clone());
        let reply = match say(&mut memory, &line, START_US) {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Waits(ticket) => {
                let mut own = idle.pop().unwrap_or_else(|| server.conn());
                own.send(line.as_str());
                // It stands in line once the server has read it.
                server.wait_until_waiting(waiting.len() + 1);
                waiting.insert(ticket, own);
                None
            }
        };
        if let Some(reply) = reply {
            assert_eq!(reply, local(&conn.cmd(line.as_str())), "{line} of seed {seed}");
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
        assert_eq!(server.waiting(), waiting.len(), "after {line} of seed {seed}");
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

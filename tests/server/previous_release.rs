//! State that earlier releases wrote is understood: each file in tests/state/ is loaded, by plain commands as a replica
//! or an append-only file has them, and then answers as it did.
//!
//! A file says when which calls were made, what they left in the keys, and what was asked and answered later, in rounds:
//!
//! ```text
//! at 1700000000000000        the clock stands there from now on, in microseconds after 1970
//! made 40* RL.WINDOW a 99 1h how the state came about; not run here. 40 calls, 7 ms apart; # is the number of the call
//! state SET a 17... PXAT 17...
//! rounds 1700000000000000 1700000060000000   when everything below was asked
//! ask RL.THROTTLE a 0 1 60
//! replies [1,1,0,60,60]; [0,1,0,-1,60]       one for each round
//! ```
//!
//! Bytes that would be hard to read are `\xff`. With each release comes a file of that version, and none is changed or
//! removed as long as docs/servers.md promises to read it. To write one, copy the newest file, add calls and questions for
//! what is new, and let the module of that release fill in states and replies:
//!
//! ```text
//! RATELIMIT_SO=... STATE=tests/state/0.2.0.txt cargo test --test server previous_release:: -- --ignored
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use support::*;

#[test]
fn state_of_every_release_is_answered_as_that_release_did() {
    let mut files: Vec<_> = fs::read_dir(root().join("tests/state"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        load(&file);
    }
}

/// Loads a file into an empty server and compares every answer.
fn load(file: &Path) {
    let (server, mut conn) = Server::with_held_clock();
    let (mut keys, mut replies, mut wrong) = (BTreeSet::new(), 0, String::new());
    let (mut rounds, mut asked) = (Vec::new(), Vec::new());
    let text = fs::read_to_string(file).unwrap();
    for (kind, rest) in lines(&text) {
        match kind {
            "at" => server.clock().set_us(rest.parse().unwrap()),
            "made" => {}
            "state" => {
                let words = words(rest);
                keys.insert(words[1].clone());
                let reply = conn.cmd(&words);
                assert!(!matches!(reply, Value::ServerError(_)), "{file:?}: {rest}: {reply:?}");
            }
            "rounds" => rounds.extend(rest.split(' ').map(|at| at.parse::<i64>().unwrap())),
            "ask" => asked.push((rest, Vec::new())),
            "replies" => asked.last_mut().unwrap().1.extend(rest.split("; ")),
            _ => panic!("{file:?}: {kind} {rest}"),
        }
    }
    for (round, at) in rounds.iter().enumerate() {
        server.clock().set_us(*at);
        for (call, then) in &asked {
            let now = show(&conn.cmd(words(call)));
            replies += 1;
            if then[round] != now {
                writeln!(wrong, "  at {at} {call}\n    then {}\n    now  {now}", then[round])
                    .unwrap();
            }
        }
    }
    assert!(keys.len() >= 30 && replies >= 300, "{file:?}: {} keys, {replies} replies", keys.len());
    assert!(wrong.is_empty(), "{file:?} is not answered as it was:\n{wrong}");
}

/// The kind of each line, and the rest of it.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap_or_else(|| panic!("{line}")))
}

#[test]
#[ignore = "writes the file of a release; see the head of this file"]
fn write_the_state_of_this_release() {
    let path = std::env::var("STATE").expect("STATE= names the file");
    let text = fs::read_to_string(&path).expect("a copy of the newest file");
    let (server, mut conn) = Server::with_held_clock();
    let mut out = format!("# Written by version {}.\n", server.info("ratelimit_version").unwrap());
    for (kind, rest) in lines(&text).take_while(|(kind, _)| *kind != "rounds") {
        match kind {
            "at" => server.clock().set_us(rest.parse().unwrap()),
            "made" => {
                let (times, call) = rest.split_once("* ").unwrap_or(("1", rest));
                for number in 1..=times.parse::<u32>().unwrap() {
                    let reply = conn.cmd(words(&call.replace('#', &number.to_string())));
                    assert!(!matches!(reply, Value::ServerError(_)), "{call}: {reply:?}");
                    if times != "1" {
                        server.clock().advance_ms(7);
                    }
                }
            }
            _ => continue,
        }
        writeln!(out, "{kind} {rest}").unwrap();
    }

    let mut keys = conn.array("KEYS *");
    keys.sort_by_key(bytes);
    for key in keys.iter().map(bytes) {
        let of_key = |words: &[&str]| -> Vec<Vec<u8>> {
            let mut words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            words.insert(1, key.clone());
            words
        };
        let expires = show(&conn.cmd(of_key(&["PEXPIRETIME"]))).into_bytes();
        if conn.text(of_key(&["TYPE"])) == "string" {
            let value = bytes(&conn.cmd(of_key(&["GET"])));
            state_line(&mut out, &[b"SET".to_vec(), key, value, b"PXAT".to_vec(), expires]);
            continue;
        }
        let members = conn.array(of_key(&["ZRANGE", "0", "-1", "WITHSCORES"]));
        for pairs in members.chunks(20) {
            let pairs = pairs.chunks(2).flat_map(|pair| [bytes(&pair[1]), bytes(&pair[0])]);
            state_line(&mut out, &of_key(&["ZADD"]).into_iter().chain(pairs).collect::<Vec<_>>());
        }
        state_line(&mut out, &[b"PEXPIREAT".to_vec(), key, expires]);
    }

    let rounds = lines(&text).find(|(kind, _)| *kind == "rounds").expect("rounds").1;
    let asked: Vec<_> = lines(&text).filter(|(kind, _)| *kind == "ask").collect();
    let mut replies = vec![Vec::new(); asked.len()];
    for at in rounds.split(' ') {
        server.clock().set_us(at.parse().unwrap());
        for ((_, call), replies) in asked.iter().zip(&mut replies) {
            replies.push(show(&conn.cmd(words(call))));
        }
    }
    writeln!(out, "rounds {rounds}").unwrap();
    for ((_, call), replies) in asked.iter().zip(&replies) {
        writeln!(out, "ask {call}\nreplies {}", replies.join("; ")).unwrap();
    }
    fs::write(path, out).unwrap();
}

fn state_line(out: &mut String, words: &[Vec<u8>]) {
    let words: Vec<_> = words.iter().map(|word| escaped(word)).collect();
    writeln!(out, "state {}", words.join(" ")).unwrap();
}

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        other => panic!("not a string: {other:?}"),
    }
}

/// One word: `\xff` stands for a byte that cannot be seen, a blank or a backslash.
fn escaped(word: &[u8]) -> String {
    let escape = |&byte: &u8| match byte {
        b'\\' => r"\x5c".to_owned(),
        0x21..=0x7e => char::from(byte).to_string(),
        _ => format!(r"\x{byte:02x}"),
    };
    word.iter().map(escape).collect()
}

/// The words of a line, as `escaped` wrote them.
fn words(line: &str) -> Vec<Vec<u8>> {
    let word = |word: &str| {
        let mut parts = word.split(r"\x");
        let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
        for part in parts {
            bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
            bytes.extend(part[2..].bytes());
        }
        bytes
    };
    line.split(' ').map(word).collect()
}

/// A reply in one line.
fn show(reply: &Value) -> String {
    match reply {
        Value::Nil => "nil".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => format!("'{}'", escaped(bytes)),
        // Its words may change, its code may not.
        Value::ServerError(error) => format!("(error) {}", error.code()),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(show).collect();
            format!("[{}]", values.join(","))
        }
        other => text(other),
    }
}

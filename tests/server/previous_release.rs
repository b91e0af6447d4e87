//! State that earlier releases wrote is understood: each file in tests/state/ is loaded, by plain commands as a replica
//! or an append-only file has them, and then answers as it did.
//!
//! A file says at which time which calls were made, what they left in the keys, and what was asked and answered then:
//!
//! ```text
//! at 1700000000000000        the clock stands there from now on, in microseconds after 1970
//! made RL.THROTTLE a 0 1 60  how the state came about; not run here
//! state SET a 17... PXAT 17...
//! ask RL.THROTTLE a 0 1 60
//! reply [1,1,0,60,60]
//! ```
//!
//! Bytes that would be hard to read are `\xff`. With each release comes a file of that version, and none is changed or
//! removed as long as docs/servers.md promises to read it. To write one, with the module of that release:
//!
//! ```text
//! RATELIMIT_SO=... STATE=tests/state/0.2.0.txt cargo test --test server previous_release:: -- --ignored
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use support::*;

/// The calls to make, in order. `+1500` advances the clock by 1500 ms. `20* RL...` makes a call 20 times, 7 ms apart, with
/// its number in the place of `#`.
const MADE: &str = r"
40* RL.WINDOW window:buckets 100 1h 1 BUCKETS 6
+1300000
25* RL.WINDOW window:buckets 100 1h 1 BUCKETS 6
RL.THROTTLE throttle:whole 15 30 60 4
RL.THROTTLE throttle:fraction 6 7 60 3
RL.THROTTLE throttle:fast 99999999 1000000 1 90000000
RL.THROTTLE throttle:slow 9 10 365d 3
RL.THROTTLE throttle:debt 4 5 60 20 FORCE
RL.THROTTLE throttle:debt-fraction 6 7 60 20 FORCE
RL.THROTTLE throttle:ahead 0 1 60
RL.THROTTLE throttle:ahead 0 1 60 1 AHEAD 3min
RL.THROTTLE throttle:booked 1 1 60 2
RL.THROTTLE throttle:booked 1 1 60 1 AHEAD 3min
RL.THROTTLE throttle:back 9 10 60 8
RL.THROTTLE throttle:back 9 10 60 -3
RL.THROTTLE throttle:\xff\x00\x20: 2 3 60
RL.WINDOW window:units 5 60
RL.WINDOW window:plain 5 1h
+1500
RL.WINDOW window:plain 5 1h 2
+250
RL.WINDOW window:plain 5 1h
RL.WINDOW window:atmost 100 1h 40
+3
RL.WINDOW window:atmost 100 1h 80 ATMOST
150* RL.WINDOW window:many 200 1h
RL.WINDOW window:day 10 1d 4 FIXED
RL.WINDOW window:zone 10 1d 4 FIXED TZ Asia/Shanghai
RL.WINDOW window:berlin 10 1mo 4 FIXED TZ Europe/Berlin
RL.WINDOW window:month 10 1mo 3
RL.WINDOW window:year 10 1y 3
5* RL.WINDOW window:denied 2 60 1 COUNTDENIED
RL.WINDOW window:force 3 1h 2
RL.WINDOW window:force 3 1h 10 FORCE
RL.WINDOW window:back 10 1h 6
+11
RL.WINDOW window:back 10 1h 3
RL.WINDOW window:back 10 1h -4
RL.WINDOW window:large 9223372036854775807 1h 9223372036854775806
RL.ACQUIRE acquire:window 10 1h 2 ID a LEASE 10min
RL.ACQUIRE acquire:window 10 1h 3 ID b LEASE 10min
RL.ACQUIRE acquire:window 10 1h 4 ID c LEASE 10min
RL.APPLY acquire:window b 1
RL.APPLY acquire:window unknown 1
RL.RENEW acquire:window c LEASE 2h
RL.ACQUIRE acquire:semaphore 5 0 1 ID job-1 LEASE 1h
RL.ACQUIRE acquire:semaphore 5 0 2 ID job-2 LEASE 1h
RL.ACQUIRE acquire:semaphore 5 0 1 ID job-3 LEASE 1h
RL.RENEW acquire:semaphore job-2 LEASE 3h
RL.RELEASE acquire:semaphore job-3
RL.ACQUIRE acquire:bytes 5 0 1 ID \xff\x00\x20\x0a LEASE 1h
RL.ACQUIRE acquire:made 5 0 1 LEASE 1h
RL.ACQUIRE acquire:lapsed 3 0 1 ID short LEASE 1s
RL.ACQUIRE acquire:lapsed 3 0 1 ID long LEASE 1h
12* RL.ACQUIRE acquire:many 30 1h 1 ID job-# LEASE 2h
RL.APPLY acquire:many job-3
RL.ACQUIRE acquire:buckets 10 1h 2 ID a LEASE 10min BUCKETS 6
RL.APPLY acquire:buckets a 1
RL.ACQUIRE acquire:buckets 10 1h 2 ID b LEASE 10min BUCKETS 6
RL.ACQUIRE acquire:fixed 10 1d 2 ID a LEASE 10min FIXED TZ Asia/Shanghai
RL.APPLY acquire:fixed a 2
RL.ACQUIRE acquire:fixed 10 1d 3 ID b LEASE 10min FIXED TZ Asia/Shanghai
RL.ALL 3 {u1}:rpm {u1}:tpm {u1}:jobs WINDOW 60 1min WINDOW 100000 1min 800 ACQUIRE 5 0 1 ID job-17 LEASE 1h
+2000
";

/// What to ask of each key, again and again as time goes on: what looks, then what takes.
const LOOKED: &str = r"
RL.THROTTLE_RO throttle:whole 15 30 60 1 MS
RL.THROTTLE_RO throttle:fraction 6 7 60 1 MS
RL.THROTTLE_RO throttle:fast 99999999 1000000 1 20000000 MS
RL.THROTTLE_RO throttle:slow 9 10 365d 8 MS
RL.THROTTLE_RO throttle:debt 4 5 60 1 MS
RL.THROTTLE_RO throttle:debt-fraction 6 7 60 1 MS
RL.THROTTLE_RO throttle:ahead 0 1 60 1 MS
RL.THROTTLE_RO throttle:booked 1 1 60 1 MS
RL.THROTTLE_RO throttle:back 9 10 60 7 MS
RL.THROTTLE_RO throttle:\xff\x00\x20: 2 3 60 3 MS
RL.WINDOW_RO window:units 5 60 5 MS
RL.WINDOW_RO window:plain 5 1h 3 MS
RL.WINDOW_RO window:atmost 100 1h 50 MS
RL.WINDOW_RO window:many 200 1h 100 MS
RL.WINDOW_RO window:buckets 100 1h 60 BUCKETS 6 MS
RL.WINDOW_RO window:day 10 1d 7 FIXED MS
RL.WINDOW_RO window:zone 10 1d 7 FIXED TZ Asia/Shanghai MS
RL.WINDOW_RO window:berlin 10 1mo 7 FIXED TZ Europe/Berlin MS
RL.WINDOW_RO window:month 10 1mo 8 MS
RL.WINDOW_RO window:year 10 1y 8 MS
RL.WINDOW_RO window:denied 2 60 1 MS
RL.WINDOW_RO window:force 3 1h 1 MS
RL.WINDOW_RO window:back 10 1h 6 MS
RL.WINDOW_RO window:large 9223372036854775807 1h 2 MS
RL.ACQUIRE_RO acquire:window 10 1h 5 MS
RL.HELD acquire:window
RL.ACQUIRE_RO acquire:semaphore 5 0 4 MS
RL.HELD acquire:semaphore
RL.HELD acquire:bytes
RL.HELD acquire:made
RL.ACQUIRE_RO acquire:lapsed 3 0 2 MS
RL.HELD acquire:lapsed
RL.ACQUIRE_RO acquire:many 30 1h 20 MS
RL.HELD acquire:many
RL.ACQUIRE_RO acquire:buckets 10 1h 8 BUCKETS 6 MS
RL.HELD acquire:buckets
RL.ACQUIRE_RO acquire:fixed 10 1d 6 FIXED TZ Asia/Shanghai MS
RL.HELD acquire:fixed
RL.ALL_RO 3 {u1}:rpm {u1}:tpm {u1}:jobs WINDOW 60 1min 60 WINDOW 100000 1min 800 ACQUIRE 5 0 1 MS
";
const TAKEN: &str = r"
RL.THROTTLE throttle:whole 15 30 60 2 MS
RL.THROTTLE throttle:fraction 6 7 60 2 MS
RL.THROTTLE throttle:fast 99999999 1000000 1 5000000 MS
RL.THROTTLE throttle:slow 9 10 365d 2 MS
RL.THROTTLE throttle:debt 4 5 60 1 MS
RL.THROTTLE throttle:debt-fraction 6 7 60 1 FORCE MS
RL.THROTTLE throttle:ahead 0 1 60 1 AHEAD 2min MS
RL.THROTTLE throttle:booked 1 1 60 -1 MS
RL.THROTTLE throttle:back 9 10 60 -1 MS
RL.THROTTLE throttle:\xff\x00\x20: 2 3 60 2 MS
RL.WINDOW window:units 5 60 2 MS
RL.WINDOW window:plain 5 1h 1 MS
RL.WINDOW window:atmost 100 1h 50 ATMOST MS
RL.WINDOW window:many 200 1h 30 MS
RL.WINDOW window:buckets 100 1h 20 BUCKETS 6 MS
RL.WINDOW window:day 10 1d 3 FIXED MS
RL.WINDOW window:zone 10 1d 3 FIXED TZ Asia/Shanghai MS
RL.WINDOW window:berlin 10 1mo 3 FIXED TZ Europe/Berlin MS
RL.WINDOW window:month 10 1mo 2 MS
RL.WINDOW window:year 10 1y 2 MS
RL.WINDOW window:denied 2 60 1 COUNTDENIED MS
RL.WINDOW window:force 3 1h 1 FORCE MS
RL.WINDOW window:back 10 1h -2 MS
RL.WINDOW window:large 9223372036854775807 1h 2 MS
RL.APPLY acquire:window a 1
RL.ACQUIRE acquire:window 10 1h 2 ID a LEASE 10min MS
RL.RENEW acquire:semaphore job-1 LEASE 90min
RL.RELEASE acquire:semaphore job-2 job-3
RL.ACQUIRE acquire:semaphore 5 0 3 ID job-2 LEASE 90min MS
RL.RELEASE acquire:bytes \xff\x00\x20\x0a
RL.ACQUIRE acquire:lapsed 3 0 2 ID short LEASE 1min MS
RL.APPLY acquire:many job-5 2
RL.RELEASE acquire:many job-1 job-12
RL.ACQUIRE acquire:many 30 1h 20 ID job-1 LEASE 30min MS
RL.ACQUIRE acquire:buckets 10 1h 3 ID c LEASE 10min BUCKETS 6 MS
RL.APPLY acquire:fixed b 5
RL.ACQUIRE acquire:fixed 10 1d 2 ID c LEASE 10min FIXED TZ Asia/Shanghai MS
RL.ALL 3 {u1}:rpm {u1}:tpm {u1}:jobs WINDOW 60 1min 30 WINDOW 100000 1min 90000 ACQUIRE 5 0 2 ID job-18 LEASE 1h MS
";

/// Milliseconds between two rounds of questions: at once, and after a minute, 20 minutes, an hour, a day, a month and a
/// year.
const ROUNDS: [i64; 7] =
    [0, 60_000, 1_200_000, 3_600_000, 86_400_000, 2_678_400_000, 31_622_400_000];

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
    let (server, mut conn) = Server::held();
    let (mut keys, mut replies, mut wrong) = (BTreeSet::new(), 0, String::new());
    let mut asked: Option<(&str, String)> = None;
    let text = fs::read_to_string(file).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (kind, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{file:?}: {line}"));
        match kind {
            "at" => server.clock().set_us(rest.parse().unwrap()),
            "made" => {}
            "state" => {
                let words = words(rest);
                keys.insert(words[1].clone());
                let reply = conn.cmd(&words);
                assert!(!matches!(reply, Value::ServerError(_)), "{file:?}: {line}: {reply:?}");
            }
            "ask" => asked = Some((rest, show(&conn.cmd(words(rest))))),
            "reply" => {
                let (call, found) = asked.take().expect("each reply follows what was asked");
                replies += 1;
                if found != rest {
                    let at = server.clock().now_us();
                    writeln!(wrong, "  at {at} {call}\n    then {rest}\n    now  {found}").unwrap();
                }
            }
            _ => panic!("{file:?}: {line}"),
        }
    }
    assert!(keys.len() >= 30 && replies >= 300, "{file:?}: {} keys, {replies} replies", keys.len());
    assert!(wrong.is_empty(), "{file:?} is not answered as it was:\n{wrong}");
}

#[test]
#[ignore = "writes the file of a release; see the head of this file"]
fn write_the_state_of_this_release() {
    let path = std::env::var("STATE").expect("STATE= names the file");
    let (server, mut conn) = Server::held();
    let mut out = format!("# Written by version {}.\n", server.info("ratelimit_version").unwrap());
    let at = |out: &mut String| writeln!(out, "at {}", server.clock().now_us()).unwrap();

    at(&mut out);
    for line in MADE.lines().filter(|line| !line.is_empty()) {
        if let Some(ms) = line.strip_prefix('+') {
            server.clock().advance_ms(ms.parse().unwrap());
            at(&mut out);
            continue;
        }
        let (times, call) = line.split_once("* ").unwrap_or(("1", line));
        for number in 1..=times.parse::<u32>().unwrap() {
            let reply = conn.cmd(words(&call.replace('#', &number.to_string())));
            assert!(!matches!(reply, Value::ServerError(_)), "{call}: {reply:?}");
            if times != "1" {
                server.clock().advance_ms(7);
            }
        }
        writeln!(out, "made {line}").unwrap();
        if times != "1" {
            at(&mut out);
        }
    }

    let Value::Array(mut keys) = conn.cmd("KEYS *") else { panic!("no keys") };
    keys.sort_by_key(bytes);
    for key in keys.iter().map(bytes) {
        let expires = conn.cmd(&[b"PEXPIRETIME".to_vec(), key.clone()]);
        let expires = show(&expires).into_bytes();
        let is_string = conn.text(&[b"TYPE".to_vec(), key.clone()]) == "string";
        if is_string {
            let value = bytes(&conn.cmd(&[b"GET".to_vec(), key.clone()]));
            state_line(&mut out, &[b"SET".to_vec(), key, value, b"PXAT".to_vec(), expires]);
            continue;
        }
        let get = [
            b"ZRANGE".to_vec(),
            key.clone(),
            b"0".to_vec(),
            b"-1".to_vec(),
            b"WITHSCORES".to_vec(),
        ];
        let Value::Array(members) = conn.cmd(&get) else { panic!("no sorted set") };
        for pairs in members.chunks(20) {
            let pairs = pairs.chunks(2).flat_map(|pair| [bytes(&pair[1]), bytes(&pair[0])]);
            let add: Vec<_> = [b"ZADD".to_vec(), key.clone()].into_iter().chain(pairs).collect();
            state_line(&mut out, &add);
        }
        state_line(&mut out, &[b"PEXPIREAT".to_vec(), key, expires]);
    }

    for ms in ROUNDS {
        server.clock().advance_ms(ms);
        at(&mut out);
        for call in LOOKED.lines().chain(TAKEN.lines()).filter(|line| !line.is_empty()) {
            writeln!(out, "ask {call}\nreply {}", show(&conn.cmd(words(call)))).unwrap();
        }
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

//! Replies of a server in memory. tests/server/in_memory.rs compares them with those of a real server.

use super::*;
use crate::policies::Definitions;

pub const NOW_US: u64 = 1_795_223_799_544_558;

/// A reply on one line.
fn spelled(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Integer(number) => number.to_string(),
        Value::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Value::Error(text) => text.clone(),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(spelled).collect();
            format!("[{}]", values.join(" "))
        }
    }
}

/// The server, and its clock in microseconds after the start.
pub struct World {
    pub server: MemoryServer,
    at_us: u64,
}

impl World {
    pub fn new() -> World {
        World { server: MemoryServer::new(|bytes| bytes.fill(7)), at_us: 0 }
    }

    pub fn call(&mut self, line: &str) -> Outcome {
        // A word with spaces in it is written with tildes.
        let words: Vec<String> = line.split(' ').map(|word| word.replace('~', " ")).collect();
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        self.server.call(&words, NOW_US + self.at_us)
    }

    #[track_caller]
    fn reply(&mut self, line: &str) -> Value {
        match self.call(line) {
            Outcome::Reply(reply) => reply,
            Outcome::Waits(_) => panic!("{line} waits"),
        }
    }

    /// Makes a call that waits.
    #[track_caller]
    fn wait(&mut self, line: &str) -> Ticket {
        match self.call(line) {
            Outcome::Waits(ticket) => ticket,
            Outcome::Reply(reply) => panic!("{line}: {reply:?}"),
        }
    }

    #[track_caller]
    pub fn check(&mut self, table: &[(&str, &str)]) {
        for (line, reply) in table {
            assert_eq!(spelled(&self.reply(line)), *reply, "{line}");
        }
    }

    /// Checks that the reply to a call is an error that begins with these words.
    #[track_caller]
    fn check_error(&mut self, line: &str, begins: &str) {
        match self.reply(line) {
            Value::Error(error) if error.starts_with(begins) => {}
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn every_command_answers_as_on_a_server() {
    let mut world = World::new();
    world.check(&[
        ("RL.THROTTLE b 15 30 60", "[0 16 15 -1 2]"),
        ("RL.INFO b", "[kind bucket full_in 2000 debt 0 ban 0 waiting 0 ttl 2901]"),
        ("RL.THROTTLE d 4 1 1s 7 FORCE MS", "[0 5 0 -1 7000]"),
        ("RL.INFO d", "[kind bucket full_in 7000 debt 2000 ban 0 waiting 0 ttl 7901]"),
        ("RL.INFO w", "[]"),
        ("RL.WINDOW w 1 60", "[0 1 0 -1 60]"),
        (
            "RL.INFO w",
            "[kind window events 1 denied 0 entries 1 oldest 0 newest 0 held 0 reservations 0 ban 0 waiting 0 ttl 60901]",
        ),
        ("RL.WINDOW w 1 60 MS", "[1 1 0 60000 60000]"),
        ("RL.ACQUIRE a 2 0 1 ID x LEASE 5s MS", "[0 2 1 -1 5000 x]"),
        ("RL.ACQUIRE a 2 0 1 MS", "[0 2 0 -1 20000 HHHHHHHHHHHHHHHH]"),
        ("RL.ACQUIRE a 2 0 MS", "[2 2 0 5000 20000 nil]"),
        ("RL.HELD a", "[[x 1 5000] [HHHHHHHHHHHHHHHH 1 20000]]"),
        ("RL.RENEW a x LEASE 7s", "1"),
        ("RL.RENEW a y", "0"),
        ("RL.RELEASE a x y", "1"),
        (
            "RL.ALL 2 w free WINDOW 1 60 WINDOW 5 60 MS",
            "[1 1 0 60000 60000 1 [[1 1 0 60000 60000] [0 5 5 -1 0]]]",
        ),
        ("DEL w b none", "2"),
        ("RL.WINDOW_RO w 1 60", "[0 1 1 -1 0]"),
        ("PING x", "ERR unknown command 'PING'"),
        ("DEL", "ERR wrong number of arguments for 'del' command"),
        ("RL.HELD", "ERR wrong number of arguments for 'rl.held' command"),
        ("RL.HELD a b", "ERR wrong number of arguments for 'rl.held' command"),
        ("RL.WINDOW", "ERR wrong number of arguments for 'rl.window' command"),
    ]);
    // What lapses is free at that moment.
    world.at_us = 19_999_999;
    world.check(&[("RL.HELD a", "[[HHHHHHHHHHHHHHHH 1 1]]")]);
    world.at_us = 20_000_000;
    world.check(&[("RL.HELD a", "[]")]);
    // The key goes a little later.
    world.at_us = 23_000_000;
    world.check(&[("DEL a", "0")]);
}

#[test]
fn every_setting_is_shown_as_it_was_set_and_wrong_ones_change_nothing() {
    let mut world = World::new();
    for (name, first, value) in [
        ("window-entries", "4096", "8"),
        ("lease", "20000", "5000"),
        ("max-reservations", "65536", "9"),
        ("max-waiters", "10000", "0"),
        ("top-keys", "128", "7"),
        ("timezone", "UTC", "Asia/Shanghai"),
        ("policies-only", "no", "yes"),
        ("policies-only", "yes", "no"),
        ("policies", "", "day WINDOW 9 1d FIXED"),
    ] {
        let value = value.replace(' ', "~");
        let name = format!("ratelimit.{name}");
        let pair = |value: &str| format!("[{name} {}]", value.replace('~', " "));
        world.check(&[
            (&format!("CONFIG GET {name}"), &pair(first)),
            (&format!("CONFIG SET {name} {value}"), "OK"),
            (&format!("CONFIG GET {name}"), &pair(&value)),
        ]);
    }
    world.check(&[("CONFIG SET ratelimit.policies-only NO", "OK")]);
    for (line, why) in [
        ("ratelimit.policies-only maybe", "must be yes or no"),
        (
            "ratelimit.timezone Mars",
            "must be an IANA time zone such as Asia/Shanghai, or an offset such as +08:00",
        ),
    ] {
        let (name, _) = line.split_once(' ').unwrap();
        let error =
            format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}");
        world.check(&[(&format!("CONFIG SET {line}"), &error)]);
    }
    // All of them, or none.
    let both = "CONFIG SET ratelimit.lease 6000 ratelimit.max-waiters -1";
    world.check_error(both, "ERR CONFIG SET failed");
    world.check(&[
        ("CONFIG GET ratelimit.lease", "[ratelimit.lease 5000]"),
        ("CONFIG SET ratelimit.lease", "ERR wrong number of arguments for 'config|set' command"),
    ]);
}

#[test]
fn settings_apply_to_the_calls_that_follow() {
    World::new().check(&[
        ("RL.ACQUIRE a 2 0 1 ID x MS", "[0 2 1 -1 20000 x]"),
        ("CONFIG SET ratelimit.lease 5000", "OK"),
        ("RL.ACQUIRE b 2 0 1 ID x MS", "[0 2 1 -1 5000 x]"),
    ]);
}

#[test]
fn a_policy_limits_by_its_name_and_is_counted() {
    let mut world = World::new();
    world.check(&[
        ("RL.WINDOW k @day", "NOPOLICY no policy has the name day"),
        ("CONFIG SET ratelimit.policies day~WINDOW~1~60s;~try~WINDOW~0~60s~SHADOW", "OK"),
        ("RL.WINDOW k @day", "[0 1 0 -1 60]"),
        ("RL.WINDOW k @day", "[1 1 0 60 60]"),
        ("RL.WINDOW s @try", "[0 0 0 -1 0]"),
        ("RL.TOP RESET", "[[k 0 1 0]]"),
        ("RL.TOP", "[]"),
    ]);
    let policies = "[[day WINDOW 1 60s 1 1 0] [try WINDOW 0 60s SHADOW 0 0 1]]";
    world.check(&[("RL.POLICIES", policies)]);
    let number =
        |world: &World| world.server.policies.policy_by_name(b"day").map(|policy| policy.id);
    let before = number(&world);
    world.server.policies.replace(b"", Definitions::new());
    world.check(&[
        ("RL.POLICIES", "[]"),
        ("RL.WINDOW k @day", "NOPOLICY no policy has the name day"),
        ("CONFIG GET ratelimit.policies", "[ratelimit.policies ]"),
        ("CONFIG SET ratelimit.policies day~WINDOW~1~60s", "OK"),
    ]);
    // Another policy of this name: a call that began on the old one is not counted on it.
    assert!(before.is_some() && number(&world) > before);
}

#[test]
fn the_number_of_keys_of_a_call_has_bounds() {
    let mut world = World::new();
    for (line, begins) in [
        ("RL.ALL 1", "ERR wrong number of arguments for 'rl.all' command"),
        ("RL.ALL 1 k", "ERR the number of clauses must equal the number of keys"),
        ("CONFIG NONSENSE ratelimit.lease 1", "ERR unknown"),
        ("XY.WINDOW k 5 60", "ERR unknown command"),
        ("RL.ALL 1 k MS WINDOW 5 60", "ERR syntax error: a clause must begin with "),
        ("RL.ALL 2 a b WINDOW 5 60 MS WINDOW 5 60", "ERR syntax error: unknown option WINDOW"),
    ] {
        world.check_error(line, begins);
    }
    let call = |number: usize| {
        let keys: Vec<_> = (0..number).map(|at| format!("k{at}")).collect();
        let clauses = vec!["WINDOW 5 60"; number];
        format!("RL.ALL {number} {} {}", keys.join(" "), clauses.join(" "))
    };
    world.check_error(&call(65), "ERR numkeys must be an integer from 1 to 64");
    assert!(spelled(&world.reply(&call(64))).starts_with("[0 "));
}

#[test]
fn the_same_clause_decides_a_call_that_only_looks() {
    World::new().check(&[
        (
            "RL.ALL_RO 2 a b WINDOW 1 60 SHADOW WINDOW 0 60 SHADOW",
            "[0 1 1 -1 0 1 [[0 1 1 -1 0] [1 0 0 -1 0]]]",
        ),
        (
            "RL.ALL 2 a b WINDOW 1 60 SHADOW WINDOW 0 60 SHADOW",
            "[0 1 0 -1 60 1 [[0 1 0 -1 60] [1 0 0 -1 0]]]",
        ),
    ]);
}

#[test]
fn the_table_of_policies_has_bounds() {
    let mut world = World::new();
    let mut set = |text: &str| {
        let words: [&[u8]; 4] = [b"CONFIG", b"SET", b"ratelimit.policies", text.as_bytes()];
        match world.server.call(&words, NOW_US) {
            Outcome::Reply(Value::Bulk(_)) => true,
            Outcome::Reply(Value::Error(_)) => false,
            other => panic!("{other:?}"),
        }
    };
    let name = |len: usize| format!("{} WINDOW 5 60", "n".repeat(len));
    assert!(set(&name(64)) && !set(&name(65)) && !set("n! WINDOW 5 60"));
    let table = |number: usize| {
        let rows: Vec<_> = (0..number).map(|at| format!("p{at} WINDOW 5 60")).collect();
        rows.join(";")
    };
    assert!(set(&table(1_000)) && !set(&table(1_001)));
}

#[test]
fn clauses_with_policies_are_counted_by_how_they_ended() {
    let mut world = World::new();
    let table = "day~WINDOW~1~60s;wide~WINDOW~9~60s;try~WINDOW~0~60s~SHADOW";
    world.check(&[(&format!("CONFIG SET ratelimit.policies {table}"), "OK")]);
    for line in [
        "RL.ALL 2 a b WINDOW @day WINDOW @try",
        // The first of the group is full, and the second takes.
        "RL.ALL 2 a c WINDOW @day ELSE WINDOW @wide",
        "RL.ALL 1 a WINDOW @day",
        "RL.ALL_RO 1 a WINDOW @day",
        // The second one would be allowed, and is counted nowhere.
        "RL.ALL 2 a c WINDOW @day WINDOW @wide",
    ] {
        assert!(matches!(world.reply(line), Value::Array(_)), "{line}");
    }
    let policies =
        "[[day WINDOW 1 60s 1 2 0] [try WINDOW 0 60s SHADOW 0 0 1] [wide WINDOW 9 60s 1 0 0]]";
    world.check(&[("RL.POLICIES", policies), ("RL.TOP", "[[a 0 2 0]]")]);
    // Set to what it was, the table keeps its counts; with another text between, they are gone.
    world.check(&[
        ("CONFIG SET ratelimit.policies day~WINDOW~1~60s", "OK"),
        (&format!("CONFIG SET ratelimit.policies {table}"), "OK"),
        ("RL.POLICIES", policies),
        ("CONFIG SET ratelimit.policies wide~WINDOW~9~60s", "OK"),
        ("CONFIG SET ratelimit.policies none~WINDOW~9~60s", "OK"),
        ("CONFIG SET ratelimit.policies day~WINDOW~1~60s", "OK"),
        ("RL.POLICIES", "[[day WINDOW 1 60s 0 0 0]]"),
    ]);
}

#[test]
fn the_ban_of_a_policy_begins_only_where_a_call_may_have_one() {
    for (line, bans) in [
        ("RL.WINDOW k @p 1", true),
        ("RL.WINDOW k @p 1 FORCE", false),
        // This ban is the call's own.
        ("RL.WINDOW k @p 0 FORCE BAN 5s", true),
        ("RL.WINDOW k @s 0 FORCE BAN 5s", true),
        ("RL.WINDOW k @p 1 ATMOST", false),
        ("RL.WINDOW k @p 1 BLOCK 1", false),
        ("RL.ALL 1 k WINDOW @p CHECK", false),
        ("RL.WINDOW k @p 0 LEAVE 1", false),
        ("RL.ACQUIRE k @p 1", false),
        ("RL.WINDOW_RO k @p 1", false),
    ] {
        let mut world = World::new();
        world.check(&[
            ("CONFIG SET ratelimit.policies p~WINDOW~1~1s~BAN~5s;s~WINDOW~1~1s~SHADOW", "OK"),
            ("RL.WINDOW k @p 1", "[0 1 0 -1 1]"),
        ]);
        world.call(line);
        // The window is free again, and only a ban can deny.
        world.at_us = 3_000_000;
        let reply = spelled(&world.reply("RL.WINDOW k 1 1s 1"));
        assert!(reply.starts_with(if bans { "[1 " } else { "[0 " }), "{line}: {reply}");
    }
}

/// The ban ends 558 us before 5 seconds have passed.
#[test]
fn calls_in_line_are_tried_when_a_ban_of_force_ends() {
    for (fill, take, free) in [
        ("RL.ACQUIRE k 1 1s 1 ID x LEASE 1h", "RL.WINDOW k 1 1s", "RL.RELEASE k x"),
        ("RL.THROTTLE k 0 1 1h", "RL.THROTTLE k 0 1 1h", "RL.THROTTLE k 0 1 1h -1"),
    ] {
        let mut world = World::new();
        world.reply(fill);
        let first = world.wait(&format!("{take} 1 BLOCK 0"));
        assert!(
            spelled(&world.reply(&format!("{take} 0 FORCE BAN 5s MS"))).starts_with("[0 1 0 -1 ")
        );
        world.at_us = 1_000_000;
        world.reply(free);
        // It has not taken what was given back, and stays before those that come later.
        assert!(world.server.ended(NOW_US + world.at_us).is_empty());
        let denied = spelled(&world.reply(&format!("{take} 1 BLOCK 3999 MS")));
        assert_eq!(denied, "[1 1 0 4000 4000]", "{take}");
        let second = world.wait(&format!("{take} 1 BLOCK 4s MS"));
        let end_us = NOW_US + 5_000_000 - 558;
        assert!(world.server.ended(end_us - 1).is_empty());
        assert_eq!(world.server.ended(end_us), [first], "{take}");
        assert_eq!(world.server.ended(NOW_US + 5_000_000), [first, second], "{take}");
        let denied = world.server.take_reply(second, NOW_US + 5_000_000).unwrap();
        assert!(spelled(&denied).starts_with("[1 1 0 "), "{take}");
    }
}

#[test]
fn an_id_of_a_waiting_call_is_refused_in_clauses_too_and_the_line_is_counted() {
    let mut world = World::new();
    world.check(&[("RL.ACQUIRE k 1 0 1 ID a LEASE 1h", "[0 1 0 -1 3600 a]")]);
    world.wait("RL.ACQUIRE k 1 0 1 ID b BLOCK 0");
    world.check_error("RL.ALL 1 k ACQUIRE 1 0 1 ID b", "DUPLICATE ");
    let reply = world.reply("RL.ALL_RO 1 k ACQUIRE 1 0 1 ID b");
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
    // A call that only looks ignores the line, and one that takes does not.
    world.check(&[("RL.ACQUIRE n 3 0 2 LEASE 1h", "[0 3 1 -1 3600 HHHHHHHHHHHHHHHH]")]);
    world.wait("RL.ACQUIRE n 3 0 2 BLOCK 0");
    world.check(&[
        ("RL.ALL_RO 1 n ACQUIRE 3 0 1 MS", "[0 3 1 -1 3600000 1 [[0 3 1 -1 3600000 nil]]]"),
        ("RL.ALL 1 n ACQUIRE 3 0 0 MS", "[0 3 1 -1 3600000 1 [[0 3 1 -1 3600000 nil]]]"),
        ("RL.ALL 1 n ACQUIRE 3 0 1 MS", "[2 3 1 1 3600000 1 [[2 3 1 1 3600000 nil]]]"),
    ]);
    let info = spelled(&world.reply("RL.INFO k"));
    assert!(info.contains("waiting 1"), "{info}");
}

#[test]
fn a_call_that_waits_is_told_when_it_is_granted_or_its_time_is_up() {
    let mut world = World::new();
    world.check(&[("RL.WINDOW k 1 1s 1 MS", "[0 1 0 -1 1000]")]);
    let [first, second, third] = ["5s", "1500", "0"]
        .map(|block| world.wait(&format!("RL.WINDOW k 1 1s 1 BLOCK {block} MS")));
    // Soon, so that a changed clock is noticed.
    assert!(world.server.next_us().unwrap() <= NOW_US + 100_000);
    assert!(world.server.take_ended(NOW_US + 999_999).is_empty());
    let mut ended = |at_us| {
        let ended = world.server.take_ended(NOW_US + at_us);
        ended.into_iter().map(|(ticket, reply)| (ticket, spelled(&reply))).collect::<Vec<_>>()
    };
    assert_eq!(ended(1_000_000), [(first, "[0 1 0 -1 1000]".to_string())]);
    assert_eq!(ended(1_500_000), [(second, "[1 1 0 500 500]".to_string())]);
    assert_eq!(ended(2_000_000), [(third, "[0 1 0 -1 1000]".to_string())]);
}

#[test]
fn the_reply_to_one_call_is_taken_and_what_another_was_granted_can_still_be_given_back() {
    let mut world = World::new();
    world.check(&[("RL.WINDOW k 2 1s 2 MS", "[0 2 0 -1 1000]")]);
    let [first, second] = [(); 2].map(|()| world.wait("RL.WINDOW k 2 1s 1 BLOCK 5s MS"));
    assert_eq!(world.server.take_reply(first, NOW_US + 999_999), None);
    assert!(world.server.ended(NOW_US + 999_999).is_empty());
    world.at_us = 1_000_000;
    for _ in 0..2 {
        assert_eq!(world.server.ended(NOW_US + world.at_us), [first, second]);
    }
    let reply = world.server.take_reply(first, NOW_US + world.at_us).unwrap();
    assert_eq!(spelled(&reply), "[0 2 1 -1 1000]");
    assert_eq!(world.server.take_reply(first, NOW_US + world.at_us), None);
    assert_eq!(world.server.ended(NOW_US + world.at_us), [second]);
    world.check(&[("RL.WINDOW_RO k 2 1s 0 MS", "[0 2 0 -1 1000]")]);
    world.server.withdraw(second, NOW_US + world.at_us);
    world.check(&[("RL.WINDOW_RO k 2 1s 0 MS", "[0 2 1 -1 1000]")]);
}

/// A call that could only be granted after its wait is denied immediately, as if it had no BLOCK.
#[test]
fn a_call_that_cannot_be_granted_in_time_is_denied_and_counts_as_without_block() {
    for (options, retry_ms) in [("", 40_000), ("COUNTDENIED ", 50_000)] {
        let mut world = World::new();
        world.check(&[("RL.WINDOW k 1 60s 1 MS", "[0 1 0 -1 60000]")]);
        world.at_us = 10_000_000;
        let denied = format!("RL.WINDOW k 1 60s 1 {options}BLOCK 1s MS");
        world.reply(&denied);
        world.at_us = 20_000_000;
        let reply = format!("[1 1 0 {retry_ms} {retry_ms}]");
        world.check(&[("RL.WINDOW_RO k 1 60s 1 MS", &reply)]);
    }
    // Behind a call that waits, a denial does not count.
    let mut world = World::new();
    world.check(&[("RL.WINDOW k 1 60s 1 MS", "[0 1 0 -1 60000]")]);
    world.wait("RL.WINDOW k 1 60s 1 BLOCK 0");
    world.at_us = 10_000_000;
    for line in ["RL.WINDOW k 1 60s 1 COUNTDENIED BLOCK 1s", "RL.WINDOW k 1 60s 1 COUNTDENIED"] {
        world.reply(line);
    }
    world.check(&[("RL.WINDOW_RO k 1 60s 1 MS", "[1 1 0 50000 50000]")]);
}

#[test]
fn a_call_whose_time_is_up_is_counted_even_if_another_command_has_tried_it_since() {
    for commands in 0..2 {
        let mut world = World::new();
        world.reply("RL.ACQUIRE k 1 60s 1 LEASE 1h");
        let waits = world.wait("RL.WINDOW k 1 60s 1 COUNTDENIED BLOCK 50ms");
        world.at_us = 60_000;
        for _ in 0..commands {
            world.reply("RL.WINDOW k 1 60s");
        }
        assert_eq!(world.server.ended(NOW_US + world.at_us), [waits]);
        // The reservation and the denied call.
        world.check(&[("RL.WINDOW_RO k 9 60s 0", "[0 9 7 -1 3600]")]);
    }
}

#[test]
fn a_call_is_barred_only_by_those_that_leave_as_little_or_less() {
    let mut world = World::new();
    world.check(&[("RL.WINDOW k 9 60s 7 MS", "[0 9 2 -1 60000]")]);
    world.wait("RL.WINDOW k 9 60s 1 LEAVE 5 BLOCK 0");
    world.check(&[
        ("RL.WINDOW k 9 60s 1 LEAVE 5 MS", "[1 9 2 60000 60000]"),
        ("RL.WINDOW k 9 60s 1 LEAVE 1 MS", "[0 9 1 -1 60000]"),
        ("RL.WINDOW k 9 60s 1 MS", "[0 9 0 -1 60000]"),
    ]);
}

#[test]
fn an_id_of_a_waiting_call_is_taken_until_it_leaves() {
    let mut world = World::new();
    world.check(&[("RL.ACQUIRE k 1 0 1 ID a LEASE 1h", "[0 1 0 -1 3600 a]")]);
    let ticket = world.wait("RL.ACQUIRE k 1 0 1 ID b BLOCK 0");
    world.check_error("RL.ACQUIRE k 1 0 1 ID b", "DUPLICATE ");
    world.check(&[("RL.ACQUIRE k 1 0 1 ID c", "[2 1 0 3600 3600 nil]")]);
    world.server.withdraw(ticket, NOW_US);
    world.check(&[("RL.RELEASE k a", "1"), ("RL.ACQUIRE k 1 0 1 ID b", "[0 1 0 -1 20 b]")]);
}

#[test]
fn a_deletion_wakes_and_a_grant_without_a_reader_is_given_back() {
    for call in ["RL.WINDOW k 1 1h 1", "RL.THROTTLE k 0 1 1h 1", "RL.ACQUIRE k 1 0 1 LEASE 1h"] {
        let mut world = World::new();
        let is_denied = |world: &mut World| {
            let Value::Array(reply) = world.reply(call) else { panic!("{call}") };
            reply[0] != Value::Integer(0)
        };
        assert!(!is_denied(&mut world));
        let ticket = world.wait(&format!("{call} BLOCK 0"));
        world.check(&[("DEL k", "1")]);
        // It was granted at that moment.
        assert!(is_denied(&mut world), "{call}");
        world.server.withdraw(ticket, NOW_US);
        assert!(world.server.take_ended(NOW_US).is_empty());
        assert!(!is_denied(&mut world), "{call}");
    }
}

#[test]
fn the_next_in_line_gets_what_callers_that_are_gone_would_have_had() {
    let mut world = World::new();
    world.check(&[("RL.ACQUIRE s 1 0 1 ID a", "[0 1 0 -1 20 a]")]);
    let [first, second, third] =
        ["b", "c", "d"].map(|id| world.wait(&format!("RL.ACQUIRE s 1 0 1 ID {id} BLOCK 0")));
    world.server.withdraw(second, NOW_US);
    world.check(&[("RL.RELEASE s a", "1"), ("RL.HELD s", "[[b 1 20000]]")]);
    assert_eq!(world.server.next_us(), Some(NOW_US));
    world.server.withdraw(first, NOW_US);
    let ended: Vec<_> = world.server.take_ended(NOW_US).iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!((ended, world.server.next_us()), (vec![third], None));
    world.check(&[("RL.HELD s", "[[d 1 20000]]")]);
}

#[test]
fn waiters_are_granted_before_a_call_over_several_limits() {
    let mut world = World::new();
    world.check(&[("RL.WINDOW k 2 1s 2 MS", "[0 2 0 -1 1000]")]);
    world.wait("RL.WINDOW k 2 1s 1 BLOCK 0");
    // Both are free again: one for the waiter, one for this call.
    world.at_us = 1_000_000;
    world.check(&[("RL.ALL 1 k WINDOW 2 1s MS", "[0 2 0 -1 1000 1 [[0 2 0 -1 1000]]]")]);
}

#[test]
fn a_clock_that_is_set_back_makes_the_heads_of_lines_due() {
    let mut world = World::new();
    for line in ["RL.WINDOW a 1 1s 1", "RL.WINDOW b 1 1s 1"] {
        world.check(&[(line, "[0 1 0 -1 1]")]);
        world.wait(&format!("{line} BLOCK 0"));
    }
    let mut due = |at_us| {
        world.at_us = at_us;
        world.check(&[("RL.WINDOW other 1 1s 0", "[0 1 1 -1 0]")]);
        world.server.next_us().unwrap() - (NOW_US + at_us)
    };
    for at_us in [10, 10, 20] {
        assert!(due(at_us) > 0, "{at_us}");
    }
    assert_eq!(due(19), 0);
    // All that is due is done at once.
    assert!(world.server.take_ended(NOW_US + 19).is_empty());
    assert_eq!(world.server.take_ended(NOW_US + 1_000_019).len(), 2);
}

#[test]
fn a_field_of_the_hash_is_the_limit_with_its_name_and_else_the_policy() {
    let mut world = World::new();
    world.check(&[
        ("CONFIG SET ratelimit.policies rpm~WINDOW~5~1min;~slow~THROTTLE~1~1~1min", "OK"),
        // Without the hash the policies alone.
        ("RL.ALL 2 a h WINDOW @rpm LIMITS", "[0 5 4 -1 60 1 [[0 5 4 -1 60]]]"),
        ("HSET h rpm WINDOW~500~1min tpm window~~9~1h~ban~10s", "2"),
        ("RL.ALL 2 a h WINDOW @rpm LIMITS", "[0 500 498 -1 60 1 [[0 500 498 -1 60]]]"),
        ("HSET h rpm WINDOW~3~1min", "0"),
        (
            "RL.ALL 5 a b c d h WINDOW 7 1min WINDOW @tpm 2 THROTTLE @slow WINDOW @rpm LIMITS MS",
            "[0 2 1 -1 60000 3 [[0 7 4 -1 60000] [0 9 7 -1 3600000] [0 2 1 -1 60000] [0 3 2 -1 60000]]]",
        ),
        // The call is counted in the policy of that name, also if the field has another limit.
        ("RL.POLICIES", "[[rpm WINDOW 5 1min 3 0 0] [slow THROTTLE 1 1 1min 1 0 0]]"),
        ("RL.ALL_RO 2 d h WINDOW @rpm MS limits", "[0 3 2 -1 60000 1 [[0 3 2 -1 60000]]]"),
        ("HDEL h rpm tpm none", "2"),
        ("RL.ALL_RO 2 d h WINDOW @rpm LIMITS", "[0 5 4 -1 60 1 [[0 5 4 -1 60]]]"),
        ("DEL h", "0"),
        // A hash that no clause names is not read, and neither is an id or a key of this name.
        ("RL.ALL 2 a b WINDOW 7 1min LIMITS", "[0 7 3 -1 60 1 [[0 7 3 -1 60]]]"),
        ("RL.ALL 2 LIMITS b ACQUIRE @rpm ID LIMITS WINDOW 9 1h CHECK MS", "[0 5 4 -1 20000 1 [[0 5 4 -1 20000 LIMITS] [0 9 7 -1 3600000]]]"),
    ]);
}

#[test]
fn a_definition_in_a_hash_says_everything_that_one_of_a_policy_says() {
    let definitions = [
        ("window", "WINDOW 2 1min"),
        ("buckets", "WINDOW 50 1min BUCKETS 4"),
        ("day", "WINDOW 9 1d FIXED TZ Asia/Shanghai"),
        ("first", "WINDOW 2 1min FIXED FROM first"),
        ("zone", "WINDOW 2 1d FIXED"),
        ("jobs", "WINDOW 1 0"),
        ("ban", "WINDOW 1 1s BAN 1h"),
        ("quiet", "WINDOW 0 1s SHADOW"),
        ("rate", "THROTTLE 1 1 1min"),
        ("lock", "THROTTLE 0 1 1s BAN 1h"),
        ("hush", "throttle 0 1 1h shadow"),
    ];
    let (mut table, mut hash) = (World::new(), World::new());
    for (name, definition) in definitions {
        hash.call(&format!("HSET h {name} {}", definition.replace(' ', "~")));
    }
    let policies: Vec<_> = definitions.iter().map(|(name, it)| format!("{name} {it};")).collect();
    table.call(&format!("CONFIG SET ratelimit.policies {}", policies.concat().replace(' ', "~")));
    let changes = ["timezone America/New_York", "window-entries 8", "policies-only yes"];
    for at in 0..4 {
        for (name, _) in definitions {
            for clause in ["WINDOW", "THROTTLE", "ACQUIRE"] {
                for options in ["", " 2", " 0", " CHECK", " SHADOW", " LEAVE 1"] {
                    let call = format!("1 k:{name} {clause} @{name}{options}");
                    let in_hash = call
                        .replacen("1 k", "2 k", 1)
                        .replace(&format!(":{name} "), &format!(":{name} h "));
                    let expected = table.reply(&format!("RL.ALL {call} MS"));
                    let found = hash.reply(&format!("RL.ALL {in_hash} LIMITS MS"));
                    assert_eq!(found, expected, "{call}");
                }
            }
        }
        for world in [&mut table, &mut hash] {
            world.at_us += 700_000;
            if let Some(change) = changes.get(at) {
                world.check(&[(&format!("CONFIG SET ratelimit.{change}"), "OK")]);
            }
        }
    }
}

#[test]
fn errors_of_the_hash_come_after_those_of_arguments_and_before_those_of_keys() {
    let mut world = World::new();
    let long = "n".repeat(70);
    world.check(&[
        (&format!("HSET h bad WINDOW~many~1min none  {long} x rate THROTTLE~1~1~1s jobs WINDOW~1~0 two WINDOW~5~1s~free~THROTTLE~1~1~1s"), "6"),
        ("RL.THROTTLE text 1 1 1h", "[0 2 1 -1 3600]"),
        ("HSET text a b", "WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HDEL text a", "WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HSET h a", "ERR wrong number of arguments for 'hset' command"),
        ("HDEL h", "ERR wrong number of arguments for 'hdel' command"),
        ("RL.WINDOW h 5 60", "WRONGTYPE the key does not hold a window (a sorted set)"),
        ("RL.THROTTLE h 5 5 60", "WRONGTYPE the key does not hold a bucket (a string)"),
        ("RL.INFO h", "WRONGTYPE the key does not hold a bucket (a string) or a window (a sorted set)"),
    ]);
    let limit = "limit must be an integer from 0 to 9223372036854775807";
    let field = |name: &str, why: &str| {
        format!("ERR the field {name} of the hash of limits is not a definition: {why}")
    };
    let kind = "a definition must consist of THROTTLE or WINDOW, and a limit";
    let unequal = "ERR the number of clauses must equal the number of keys";
    for (call, error) in [
        ("2 a h WINDOW @bad LIMITS", field("bad", limit)),
        ("2 a h WINDOW @none LIMITS", field("none", kind)),
        (&format!("2 a h WINDOW @{long} LIMITS"), field(&long[..64], kind)),
        ("2 a h WINDOW @two LIMITS", field("two", "syntax error: unknown option free")),
        ("2 a h WINDOW @rate LIMITS", Error::RatePolicy.to_string()),
        ("2 a h THROTTLE @jobs LIMITS", Error::WindowPolicy.to_string()),
        ("2 a h WINDOW @jobs LIMITS", Error::SemaphorePolicy.to_string()),
        ("2 a h WINDOW @other LIMITS", "NOPOLICY no policy has the name other".into()),
        ("2 a text WINDOW @other LIMITS", Error::NotHash.to_string()),
        // Before errors of keys, whatever their clauses.
        ("3 text b h WINDOW 5 60 WINDOW @bad LIMITS", field("bad", limit)),
        ("3 a b h WINDOW @rate WINDOW @bad LIMITS", Error::RatePolicy.to_string()),
        // After errors of arguments, wherever they are.
        ("3 a b h WINDOW @bad WINDOW many 60 LIMITS", format!("ERR {limit}")),
        (
            "3 a b text WINDOW @bad WINDOW 5 60 NONSENSE LIMITS",
            "ERR syntax error: unknown option NONSENSE".into(),
        ),
        ("2 a text WINDOW @bad LIMITS limits", Error::Twice("LIMITS").to_string()),
        ("2 a h WINDOW @bad LIMITS NONSENSE", "ERR syntax error: unknown option NONSENSE".into()),
        ("2 a h WINDOW @bad WINDOW @bad LIMITS", format!("{unequal} without the hash of limits")),
        (
            "1 h LIMITS",
            "ERR syntax error: a clause must begin with THROTTLE, WINDOW or ACQUIRE".into(),
        ),
        ("2 a text WINDOW @bad BAN 1s LIMITS", "ERR BAN must not be used with a policy".into()),
        // Without LIMITS as ever.
        ("2 a h WINDOW @bad", "NOPOLICY no policy has the name bad".into()),
        ("2 a b WINDOW @bad WINDOW many 60", "NOPOLICY no policy has the name bad".into()),
        ("2 a b ACQUIRE @bad ID LIMITS WINDOW 5 60", "NOPOLICY no policy has the name bad".into()),
        ("2 a h WINDOW 5 60", unequal.into()),
    ] {
        for command in ["RL.ALL", "RL.ALL_RO"] {
            let line = format!("{command} {call}");
            assert_eq!(world.reply(&line), Value::Error(error.clone()), "{line}");
        }
    }
    world.check(&[("DEL a b", "0")]);
}

#[test]
fn a_call_that_waits_keeps_the_limits_that_it_came_with() {
    let mut world = World::new();
    world.check(&[
        ("HSET h rpm WINDOW~1~1s~BAN~1h jobs WINDOW~1~0", "2"),
        (
            "RL.ALL 3 a b h WINDOW @rpm ACQUIRE @jobs ID x LIMITS",
            "[0 1 0 -1 1 1 [[0 1 0 -1 1] [0 1 0 -1 20 x]]]",
        ),
        (
            "RL.ALL 2 a h WINDOW @bad ELSE WINDOW @rpm LIMITS BLOCK 1s",
            "ERR ELSE and BLOCK must not be used together",
        ),
    ]);
    let call = "RL.ALL 3 a b h WINDOW @rpm ACQUIRE @jobs ID y BY acme BLOCK 5s LIMITS MS";
    let ticket = world.wait(call);
    world.check(&[("HSET h rpm x jobs x", "0"), ("RL.RELEASE b x", "1")]);
    let granted = "[0 1 0 -1 1000 1 [[0 1 0 -1 1000] [0 1 0 -1 20000 y]]]";
    let replies = world.server.take_ended(NOW_US + 1_000_000);
    let replies: Vec<_> = replies.iter().map(|(ticket, reply)| (*ticket, spelled(reply))).collect();
    assert_eq!(replies, [(ticket, granted.to_string())]);
}

#[test]
fn there_may_be_64_clauses_and_the_hash_of_limits() {
    let mut world = World::new();
    world.check(&[("HSET k64 a WINDOW~1~60", "1")]);
    let keys = |number| (0..number).map(|at| format!(" k{at}")).collect::<String>();
    let call = |number: usize, clauses: &str, rest: &str| {
        format!("RL.ALL {number}{}{clauses}{rest}", keys(number))
    };
    let numkeys = Error::InvalidNumKeys.to_string();
    assert!(matches!(world.reply(&call(65, &" WINDOW @a".repeat(64), " LIMITS")), Value::Array(_)));
    for (number, clauses, rest) in [
        (65, " WINDOW 1 60".repeat(65), ""),
        (65, " WINDOW 1 60".repeat(64) + " ACQUIRE 1 60 ID LIMITS", ""),
        (66, " WINDOW 1 60".repeat(65), " LIMITS"),
    ] {
        assert_eq!(world.reply(&call(number, &clauses, rest)), Value::Error(numkeys.clone()));
    }
}

/// Runs a call without the check of its arity, and returns how it ended.
fn run_unchecked(world: &World, line: &str) -> Result<CallResult, CallError> {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let is_named = |row: &&CommandRow| row.name.to_bytes().eq_ignore_ascii_case(words[0]);
    let row = COMMANDS.iter().find(is_named).unwrap();
    let reply = &ValueBuilder::default();
    run(row, &MemoryCall::new(&world.server, &words, reply))
}

#[test]
fn settling_is_denied_where_nothing_was_held() {
    let mut world = World::new();
    for id in ["a", "b", "c"] {
        let acquired = format!("[0 3 {} -1 20 {id}]", (b'c' - id.as_bytes()[0]));
        world.check(&[(&format!("RL.ACQUIRE k 3 0 1 ID {id}"), &acquired)]);
    }
    for (line, result) in [
        ("RL.RENEW k a", CallResult::Allowed),
        ("RL.RENEW k x", CallResult::Denied),
        ("RL.RELEASE k x a", CallResult::Allowed),
        ("RL.RELEASE k b c", CallResult::Allowed),
        ("RL.RELEASE k b", CallResult::Denied),
        ("RL.APPLY k b", CallResult::Denied),
    ] {
        assert_eq!(run_unchecked(&world, line), Ok(result), "{line}");
    }
}

#[test]
fn keys_that_have_expired_take_no_memory() {
    let mut world = World::new();
    world.check(&[("RL.WINDOW k 2 1s", "[0 2 1 -1 1]")]);
    // They are dropped once in as many calls as there are keys.
    for _ in 0..3 {
        world.server.call(&[b"RL.WINDOW", b"other", b"2", b"1s"], NOW_US + 60_000_000);
    }
    assert_eq!(world.server.keys.len(), 1);
}

/// Servers before 7.0 do not know the arity of a command.
#[test]
fn commands_refuse_a_word_too_many_that_a_server_let_pass() {
    let world = World::new();
    for line in ["RL.HELD k x", "RL.INFO k x"] {
        assert_eq!(run_unchecked(&world, line), Err(Error::Arity.into()), "{line}");
    }
}

/// Returns the calls whose wait has ended by then, with what `limited` is for each.
fn ended(world: &mut World, at_us: u64) -> Vec<(Ticket, String)> {
    world.at_us = at_us;
    let ended = world.server.take_ended(NOW_US + at_us).into_iter();
    ended.map(|(ticket, reply)| (ticket, spelled(&reply)[1..2].into())).collect()
}

/// Returns the number of calls in the line of each of these keys.
fn waiting<const N: usize>(world: &mut World, keys: [&str; N]) -> [u64; N] {
    keys.map(|key| {
        let info = spelled(&world.reply(&format!("RL.INFO {key}")));
        let (_, count) = info.split_once("waiting ").unwrap_or(("", "0 "));
        count.split(' ').next().unwrap().parse().unwrap()
    })
}

#[test]
fn a_call_over_several_limits_waits_for_the_longest_wait_and_holds_nothing() {
    let mut world = World::new();
    world.reply("RL.ALL 2 a b WINDOW 1 1s WINDOW 1 3s");
    let waits = world.wait("RL.ALL 2 a b WINDOW 1 1s WINDOW 1 3s BLOCK 10s MS");
    assert_eq!(waiting(&mut world, ["a", "b"]), [0, 1]);
    assert_eq!(ended(&mut world, 1_500_000), []);
    // It does not hold up the other limit, nor take from it.
    world.check(&[("RL.WINDOW a 1 1s 1 MS", "[0 1 0 -1 1000]")]);
    assert_eq!(ended(&mut world, 2_999_999), []);
    world.at_us = 3_000_000;
    let ended = world.server.take_ended(NOW_US + world.at_us);
    let reply = "[0 1 0 -1 1000 1 [[0 1 0 -1 1000] [0 1 0 -1 3000]]]";
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].0, spelled(&ended[0].1)), (waits, reply.into()));
}

#[test]
fn a_call_changes_lines_by_the_time_at_which_it_came() {
    let mut world = World::new();
    world.check(&[
        ("RL.ACQUIRE a 1 0 1 ID a LEASE 1h", "[0 1 0 -1 3600 a]"),
        ("RL.ACQUIRE b 1 0 1 ID b LEASE 2h", "[0 1 0 -1 7200 b]"),
    ]);
    let early = world.wait("RL.ACQUIRE a 1 0 1 ID early BLOCK 0");
    let both = world.wait("RL.ALL 2 a b ACQUIRE 1 0 1 ID x ACQUIRE 1 0 1 ID y BLOCK 0");
    let late = world.wait("RL.ACQUIRE a 1 0 1 ID late BLOCK 0");
    assert_eq!(waiting(&mut world, ["a", "b"]), [2, 1]);
    // Its own limit would allow it now, and the other denies it: it stands between those two there.
    world.check(&[("RL.RELEASE b b", "1")]);
    assert_eq!(waiting(&mut world, ["a", "b"]), [3, 0]);
    world.check(&[("RL.RELEASE a a", "1")]);
    assert_eq!(ended(&mut world, 1), [(early, "0".into())]);
    world.check(&[("RL.RELEASE a early", "1")]);
    assert_eq!(ended(&mut world, 2), [(both, "0".into())]);
    world.check(&[("RL.HELD a", "[[x 1 20000]]"), ("RL.HELD b", "[[y 1 20000]]")]);
    world.check(&[("RL.RELEASE a x", "1")]);
    assert_eq!(ended(&mut world, 3), [(late, "0".into())]);
}

#[test]
fn a_call_over_several_limits_waits_behind_those_before_it_in_any_of_its_lines() {
    let mut world = World::new();
    world.reply("RL.ACQUIRE a 2 0 2 ID a LEASE 1h");
    let first = world.wait("RL.ACQUIRE a 2 0 2 ID first BLOCK 0");
    // Nothing is missing on `b`.
    let both = world.wait("RL.ALL 2 b a ACQUIRE 2 0 ACQUIRE 2 0 1 ID y BLOCK 0 MS");
    world.check(&[("RL.RELEASE a a", "1")]);
    assert_eq!(ended(&mut world, 1), [(first, "0".into())]);
    assert_eq!(waiting(&mut world, ["a", "b"]), [1, 0]);
    world.check(&[("RL.RELEASE a first", "1")]);
    assert_eq!(ended(&mut world, 2), [(both, "0".into())]);
    // While one waits, a call over several limits that does not wait is denied, and takes nothing.
    world.wait("RL.ACQUIRE a 2 0 2 BLOCK 0");
    world.check(&[(
        "RL.ALL 2 a c ACQUIRE 2 0 WINDOW 5 1min MS",
        "[2 2 1 1 20000 1 [[2 2 1 1 20000 nil] [0 5 5 -1 0]]]",
    )]);
}

#[test]
fn what_a_call_over_several_limits_was_granted_is_given_back_on_every_key() {
    let mut world = World::new();
    world.reply("RL.ALL 2 a b WINDOW 1 1s WINDOW 3 1min 2");
    let options = "WINDOW 1 1s WINDOW 3 1min 1 ACQUIRE 1 0 1 ID x ACQUIRE 4 0 2 CHECK BLOCK 0";
    let waits = world.wait(&format!("RL.ALL 4 a b c d {options}"));
    assert_eq!(world.server.ended(NOW_US + 1_000_000), [waits]);
    world.server.withdraw(waits, NOW_US + 1_000_000);
    world.at_us = 1_000_000;
    world.check(&[
        ("RL.WINDOW_RO a 1 1s", "[0 1 1 -1 0]"),
        ("RL.WINDOW_RO b 3 1min", "[0 3 1 -1 60]"),
        ("RL.HELD c", "[]"),
        ("RL.INFO d", "[]"),
    ]);
}

#[test]
fn the_ids_of_a_waiting_call_are_taken_on_every_key() {
    let mut world = World::new();
    world.reply("RL.ACQUIRE a 1 0 1 LEASE 1h");
    let all = "RL.ALL 2 a b ACQUIRE 1 0 1 ID x ACQUIRE 9 0 1 ID y";
    let waits = world.wait(&format!("{all} BLOCK 0"));
    for call in ["RL.ACQUIRE a 1 0 1 ID x", "RL.ACQUIRE b 9 0 1 ID y", all] {
        world.check_error(call, "DUPLICATE ");
    }
    world.check(&[("RL.ACQUIRE b 9 0 1 ID x", "[0 9 8 -1 20 x]")]);
    world.server.withdraw(waits, NOW_US);
    world.check(&[("RL.ACQUIRE b 9 0 1 ID y", "[0 9 7 -1 20 y]")]);
}

#[test]
fn a_call_over_several_limits_is_denied_at_once_if_one_of_them_can_never_allow_it_in_time() {
    let mut world = World::new();
    world.reply("RL.ALL 2 a b WINDOW 1 1s WINDOW 1 1min");
    for line in [
        "RL.ALL 2 a c WINDOW 1 1s WINDOW 5 1min 6 BLOCK 0",
        "RL.ALL 2 a b WINDOW 1 1s WINDOW 1 1min BLOCK 59s",
        "RL.ALL 2 a b WINDOW 1 1s WINDOW 1 1min CHECK BLOCK 59s",
    ] {
        let reply = spelled(&world.reply(line));
        assert!(reply.starts_with("[1 "), "{line}: {reply}");
    }
    // SHADOW does not wait.
    world.wait("RL.ALL 2 a b WINDOW 1 1s WINDOW 1 1min SHADOW BLOCK 2s");
    world.check_error("RL.ALL 1 a WINDOW 1 1s BAN 5s BLOCK 1s", "ERR BAN and BLOCK must not ");
    world.check_error("RL.ALL 2 a b WINDOW 1 1s ELSE WINDOW 1 1s BLOCK 1s", "ERR ELSE and BLOCK ");
    world.check_error("RL.ALL_RO 1 a WINDOW 1 1s BLOCK 1s", "ERR syntax error: unknown option BL");
    world
        .check_error("RL.ALL 1 a WINDOW 1 1s MS BLOCK 1s MS", "ERR syntax error: MS is given more");
    world.check_error("RL.ALL 1 a WINDOW 1 1s BLOCK 1s LEAVE 1", "ERR syntax error: unknown opti");
}

#[test]
fn a_denial_of_several_limits_counts_once_when_the_wait_ends() {
    let mut world = World::new();
    world.reply("RL.ACQUIRE a 1 0 1 LEASE 1h");
    let all = "RL.ALL 3 a b c ACQUIRE 1 0 1 WINDOW 9 1h COUNTDENIED WINDOW 9 1h BLOCK 1s";
    let waits = world.wait(all);
    world.check(&[("RL.WINDOW_RO b 9 1h", "[0 9 9 -1 0]")]);
    // Others come and go meanwhile.
    world.check(&[("RL.WINDOW b 9 1h", "[0 9 8 -1 3600]")]);
    assert_eq!(ended(&mut world, 1_000_000), [(waits, "2".into())]);
    world.check(&[
        ("RL.WINDOW_RO b 9 1h", "[0 9 7 -1 3600]"),
        ("RL.WINDOW_RO c 9 1h", "[0 9 9 -1 0]"),
    ]);
}

#[test]
fn those_who_wait_take_turns() {
    let mut world = World::new();
    world.reply("RL.THROTTLE k 0 1 1s");
    let mut wait = |by: &str| world.wait(&format!("RL.THROTTLE k 0 1 1s 1 {by}BLOCK 1h"));
    let a = [(); 4].map(|()| wait("BY a "));
    let b = [(); 2].map(|()| wait("by b weight 2 "));
    let [other] = [(); 1].map(|()| wait(""));
    let mut order = Vec::new();
    for second in 1..=7 {
        order.extend(ended(&mut world, second * 1_000_000).into_iter().map(|(ticket, _)| ticket));
    }
    assert_eq!(order, [a[0], b[0], other, b[1], a[1], a[2], a[3]]);
}

#[test]
fn a_call_with_block_is_barred_only_by_those_who_would_stand_before_it() {
    let mut world = World::new();
    world.reply("RL.WINDOW k 3 1min 2");
    for _ in 0..2 {
        world.wait("RL.WINDOW k 3 1min 2 BLOCK 0 BY a");
    }
    // The first turn of b comes before the second of a, but behind its first, which waits for 2.
    world.wait("RL.WINDOW k 3 1min 1 BLOCK 0 BY b");
    let mut world = World::new();
    world.reply("RL.WINDOW k 4 1min 2");
    world.wait("RL.WINDOW k 4 1min 3 LEAVE 1 BLOCK 0 BY a");
    // Of a smaller LEAVE, so it is granted on arrival.
    world.check(&[("RL.WINDOW k 4 1min 1 BLOCK 0 BY b", "[0 4 1 -1 60]")]);
    // Without BLOCK only a smaller LEAVE counts.
    world.check(&[("RL.WINDOW k 4 1min 1 LEAVE 1 MS", "[1 4 1 60000 60000]")]);
}

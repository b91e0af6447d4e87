//! No single call keeps the server from everybody else, whatever its caller has chosen, made or sent.

use super::with_others;
use std::time::Duration;
use support::*;

/// The longest time of one call; the machine that runs the tests may be slow and busy.
const MOST: Duration = Duration::from_millis(40);

/// The CPU time of the server for one command, and its reply.
fn timed(server: &Server, conn: &mut Conn, words: impl CommandWords) -> (Duration, Value) {
    let before = server.cpu_time();
    let reply = conn.cmd(words);
    (server.cpu_time() - before, reply)
}

/// Each call searched all indexes for the oldest to drop, and a large index that was dropped had to be read again.
#[test]
fn many_small_keys_delay_no_other_client() {
    let _guard = with_others();
    const SMALL_KEYS: usize = 125_000;
    let longest = || {
        let (server, mut conn) = Server::with_held_clock();
        conn.reserve_many("large", 65_535, "1h");
        conn.reserve_many("small:0", 9, "1h");
        // The first call of each reads it.
        let script = "for at = ARGV[1], ARGV[2] do
                redis.call('COPY', 'small:0', 'small:' .. at)
                redis.call('RL.ACQUIRE_RO', 'small:' .. at, 65536, 0)
            end";
        for from in (1..SMALL_KEYS).step_by(5_000) {
            let to = (from + 4_999).min(SMALL_KEYS - 1);
            conn.cmd(["EVAL", script, "0", &from.to_string(), &to.to_string()]);
        }
        let indexes = server.info_ratelimit("indexes");
        assert!((100_000..SMALL_KEYS as i64).contains(&indexes), "{indexes}");
        let mut call = |call: &str| {
            let (took, reply) = timed(&server, &mut conn, call);
            assert_eq!(acquired(&reply).numbers[0], 0, "{call}");
            took
        };
        let calls = [
            "RL.ACQUIRE_RO large 65536 0", "RL.ACQUIRE_RO small:0 65536 0",
            "RL.ACQUIRE_RO small:1 65536 0", "RL.ACQUIRE small:2 65536 0",
            "RL.ACQUIRE large 65536 0",
        ];
        calls.map(&mut call).into_iter().max().unwrap()
    };
    assert_takes(MOST / 4, longest);
}

/// Each of them made the next call read all 65,535 again.
#[test]
fn no_call_pays_for_a_change_that_keeps_every_reservation() {
    let _guard = with_others();
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("k", 65_535, "1h");
    // A command that writes a whole value pays for reading it, and one that moves it need not.
    let changes = [
        ("EXPIRE k 7000", "k", true),
        ("PERSIST k", "k", true),
        ("RENAME k a", "a", true),
        ("RENAMENX a b", "b", true),
        ("COPY b c", "c", false),
        ("RENAME c d", "d", true),
        ("RENAME b d", "d", false),
        ("ZUNIONSTORE e 1 d", "e", false),
        ("ZRANGESTORE f d 0 -1", "f", false),
        ("COPY d f REPLACE", "f", false),
        ("MOVE f 1", "f", true),
    ];
    let mut longest = Duration::ZERO;
    for (change, key, is_short) in changes {
        let (took, _) = timed(&server, &mut conn, change);
        if is_short {
            longest = longest.max(took);
        }
        if change.starts_with("MOVE") {
            conn.text("SELECT 1");
        }
        for call in
            [format!("RL.ACQUIRE_RO {key} 65536 0"), format!("RL.ALL_RO 1 {key} ACQUIRE 65536 0")]
        {
            let (took, reply) = timed(&server, &mut conn, &call[..]);
            let Value::Array(reply) = reply else { panic!("{reply:?}") };
            assert_eq!(reply[..3], [0, 65_536, 1].map(Value::Int), "{call} after {change}");
            longest = longest.max(took);
        }
    }
    let keys: Vec<_> = (0..16).map(|n| format!("copy:{n}")).collect();
    for key in &keys {
        conn.cmd(["COPY", "f", key]);
    }
    let clauses = "ACQUIRE 65536 0 ".repeat(keys.len());
    let call = format!("RL.ALL {} {} {}", keys.len(), keys.join(" "), clauses.trim());
    let (took, reply) = timed(&server, &mut conn, &call[..]);
    assert!(matches!(&reply, Value::Array(reply) if reply[0] == Value::Int(0)), "{reply:?}");
    longest = longest.max(took);
    println!("the longest call: {longest:?}");
    assert!(longest < MOST / 4, "{longest:?}");
}

/// Each call read all of them again, and RL.ALL those of all its keys.
#[test]
fn an_entry_that_another_client_has_written_is_found_once() {
    let _guard = with_others();
    const KEYS: usize = 16;
    for (entry, is_foreign) in [("#06:r00007:1:20000:9999999999999999::-", false), ("x", true)] {
        let (server, mut conn) = Server::with_held_clock();
        conn.reserve_many("k0", 60_000, "1h");
        conn.int(["ZADD", "k0", "-inf", entry]);
        let keys: Vec<_> = (0..KEYS).map(|n| format!("k{n}")).collect();
        for key in &keys[1..] {
            conn.cmd(["COPY", "k0", key]);
        }
        let clauses = "ACQUIRE 65536 0 ".repeat(KEYS);
        let all = format!("RL.ALL_RO {KEYS} {} {}", keys.join(" "), clauses.trim());
        conn.cmd("RL.HELD k0");
        for call in
            ["RL.ACQUIRE k0 65536 0 0", "RL.ACQUIRE k0 65536 0 65536", "RL.RENEW k0 x", &all]
        {
            assert_takes(MOST / 10, || {
                let (took, reply) = timed(&server, &mut conn, call);
                assert_eq!(matches!(reply, Value::ServerError(_)), is_foreign, "{call}: {reply:?}");
                took
            });
        }
    }
}

/// A denied call searched all of them for the one with which enough would have left.
#[test]
fn entries_that_contradict_each_other_are_not_read_one_after_the_other() {
    let _guard = with_others();
    let (server, mut conn) = Server::with_held_clock();
    let now_us = server.clock().now_us();
    // The newest and the oldest could be ours, but all between them have the same total.
    let entry = |ago_us: i64, member: String| [(ago_us - now_us).to_string(), member];
    let mut entries = vec![entry(3_000_000, "1".into()), entry(1_000_000, "60".into())];
    entries.extend((2..60_000).map(|n| entry(1_000_000 + n, format!("5x{n}"))));
    conn.add_entries("k", entries);
    assert_takes(MOST / 40, || {
        let (took, reply) = timed(&server, &mut conn, "RL.WINDOW k 60 1h 30");
        assert!(error_line(&reply).contains("did not write"), "{reply:?}");
        took
    });
}

/// Each entry was read twice, and removed by its member: 20 ms.
#[test]
fn many_entries_are_given_back_at_once() {
    let _guard = with_others();
    const ENTRIES: i64 = 65_536;
    let (server, mut conn) = Server::with_held_clock();
    let now_us = server.clock().now_us();
    let entry = |n: i64| [(n * 10_000 - now_us).to_string(), (ENTRIES - n).to_string()];
    conn.add_entries("before", (0..ENTRIES).map(entry));
    for (call, left, most) in [
        (format!("RL.WINDOW k 100000 1h -{ENTRIES} BUCKETS {ENTRIES}"), 0, MOST / 4),
        (format!("RL.WINDOW k 100000 1h -{} BUCKETS {ENTRIES}", ENTRIES - 1), 1, MOST / 2),
        ("RL.WINDOW k 100000 1h -1 FIXED FROM first".into(), 0, MOST / 4),
    ] {
        assert_takes(most, || {
            conn.cmd("COPY before k REPLACE");
            let (took, reply) = timed(&server, &mut conn, &call[..]);
            assert_eq!((ints(&reply)[0], conn.int("ZCARD k")), (0, left), "{call}");
            took
        });
    }
}

/// Each of its keys was healed as far as by a call on that key alone.
#[test]
fn a_call_over_many_keys_heals_a_part_of_each() {
    let _guard = with_others();
    const KEYS: i64 = 64;
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("a0", 1_000, "1h");
    let now_us = server.clock().now_us();
    let entry = |n: i64| [(n - now_us).to_string(), (9_000 - n).to_string()];
    conn.add_entries("w0", (1..4_000).map(entry));
    for (key, clause) in [("a", "ACQUIRE 100000 0 "), ("w", "WINDOW 100000 1h ")] {
        let keys: Vec<_> = (0..KEYS).map(|n| format!("{key}{n}")).collect();
        let call =
            format!("RL.ALL {KEYS} {} {}", keys.join(" "), clause.repeat(KEYS as usize).trim());
        assert_takes(MOST / 2, || {
            for copy in &keys[1..] {
                conn.cmd(["COPY", &keys[0], copy, "REPLACE"]);
            }
            server.clock().advance_ms(-7_200_000);
            // The first call after the clock was set back looks at all reservations.
            conn.cmd(&call[..]);
            let (took, reply) = timed(&server, &mut conn, &call[..]);
            assert!(
                matches!(&reply, Value::Array(reply) if reply[0] == Value::Int(0)),
                "{reply:?}"
            );
            took
        });
    }
}

/// A call of RL.RELEASE or SREM with this many ids.
fn ids(command: &str, key: &str, number: usize) -> Vec<String> {
    let ids = (0..number).map(|n| format!("r{n:05}"));
    [command.to_string(), key.to_string()].into_iter().chain(ids).collect()
}

#[test]
fn releasing_half_a_million_ids_takes_no_longer_than_twice_what_srem_takes() {
    let _guard = with_others();
    const NUMBER: usize = 500_000;
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("few", 3, "1h");
    conn.reserve_many("many", 40, "1h");
    conn.cmd("RL.WINDOW events 100 60 50");
    conn.cmd(&ids("SADD", "set", 40)[..]);
    let mut once = |command: &str, key: &str| {
        // Only what is released goes.
        let twin = format!("{key}:twin");
        conn.cmd(["COPY", key, &twin, "REPLACE"]);
        let (took, reply) = timed(&server, &mut conn, &ids(command, &twin, NUMBER)[..]);
        let held = match key {
            "few" => 3,
            "many" | "set" => 40,
            _ => 0,
        };
        assert_eq!(reply, Value::Int(held));
        took
    };
    let calls = [
        ("SREM", "none"),
        ("SREM", "set"),
        ("RL.RELEASE", "none"),
        ("RL.RELEASE", "events"),
        ("RL.RELEASE", "few"),
        ("RL.RELEASE", "many"),
    ];
    assert_of_least(
        |which| once(calls[which].0, calls[which].1),
        |[srem_none, srem, none, events, few, many]| {
            none < 2 * srem_none && [events, few, many].iter().all(|took| *took < 2 * srem)
        },
    );
}

#[test]
fn all_that_is_held_is_released_by_one_call() {
    let _guard = with_others();
    const NUMBER: usize = 63_486;
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("k", NUMBER, "1h");
    // Some are named twice.
    let mut words = ids("RL.RELEASE", "twin", NUMBER);
    words.extend(["r00001".into(), "r00002".into(), "unknown".into()]);
    let mut released = 0;
    for has_index in [true, false] {
        assert_takes(20 * MOST, || {
            conn.cmd("COPY k twin");
            if !has_index {
                // The copy has one until it is changed.
                conn.cmd("ZADD twin -inf #01:x:1:20000:1::-");
                conn.cmd("ZREM twin #01:x:1:20000:1::-");
            }
            let (took, reply) = timed(&server, &mut conn, &words[..]);
            assert_eq!(reply, Value::Int(NUMBER as i64));
            assert_eq!(conn.int("EXISTS twin"), 0);
            released += NUMBER as i64;
            took
        });
    }
    assert_eq!(server.info_ratelimit("reservations_released"), released);
}

/// All 200,000 clauses were parsed before the call was refused.
#[test]
fn clauses_beyond_the_keys_are_not_parsed() {
    let _guard = with_others();
    let (server, mut conn) = Server::with_held_clock();
    let call = |clauses: usize, last: &str| {
        let mut words: Vec<String> = ["RL.ALL", "1", "k"].map(Into::into).into();
        for _ in 0..clauses {
            words.extend(["WINDOW", "5", "60"].map(Into::into));
        }
        words.push(last.into());
        words
    };
    let few = conn.err(&call(1, "WINDOW 5 60").join(" ").split(' ').collect::<Vec<_>>()[..]);
    let words = call(200_000, "nonsense");
    let mut echo = words.clone();
    (echo[0], echo[1]) = ("SREM".into(), "none".into());
    assert_of_least(
        |which| {
            let (took, reply) = timed(&server, &mut conn, &[&echo, &words][which][..]);
            if which == 1 {
                assert_eq!(error_line(&reply), few);
            }
            took
        },
        |[srem, all]| all < srem * 3 / 2 + Duration::from_millis(5),
    );
}

/// One call merged all: 21 ms.
#[test]
fn after_the_clock_was_set_back_buckets_are_healed_in_pieces() {
    let _guard = with_others();
    const BUCKETS: i64 = 65_536;
    let (server, mut conn) = Server::with_held_clock();
    let now_us = server.clock().now_us();
    let step_us = 3_600_000_000 / BUCKETS;
    // As RL.WINDOW writes them.
    let entry = |n: i64| [(-(now_us - (BUCKETS - n) * step_us)).to_string(), (n + 1).to_string()];
    conn.add_entries("k", (0..BUCKETS).map(entry));
    let look = format!("RL.WINDOW_RO k {BUCKETS} 1h 1 BUCKETS {BUCKETS} MS");
    assert_eq!(conn.ints(&look)[2], 0);
    let replica = Server::replica_of(&server, true);
    server.clock().advance_ms(-7_200_000);
    // All count as happening now, and each call merges some of them.
    let call = format!("RL.WINDOW k {BUCKETS} 1h 1 BUCKETS {BUCKETS} MS");
    conn.cmd("COPY k before");
    assert_takes(MOST / 2, || {
        conn.cmd("COPY before k REPLACE");
        let (mut calls, mut longest, mut most) = (0, Duration::ZERO, 0);
        let mut entries = conn.int("ZCARD k");
        while entries > 1 {
            let (took, reply) = timed(&server, &mut conn, &call[..]);
            assert_eq!(ints(&reply)[..3], [1, BUCKETS, 0]);
            let left = conn.int("ZCARD k");
            (longest, most) = (longest.max(took), most.max(entries - left));
            entries = left;
            calls += 1;
            if entries == 1 {
                assert_eq!(ints(&reply)[3..], [3_600_000, 3_600_000]);
            } else {
                assert!(calls < 20 && conn.int("PTTL k") > 7_200_000, "{entries} after {calls}");
            }
        }
        assert!(most <= 10_000 && calls <= 7, "{most} in one of {calls} calls");
        longest
    });
    // From the last of those calls on it is one period.
    assert_eq!(conn.ints(&look)[2], 0);
    wait_for_sync(&server, &replica);
    assert_eq!(replica.conn().ints(&look)[2], 0);
    let ttl_ms = conn.int("PTTL k");
    assert!((3_600_000..=7_201_000).contains(&ttl_ms), "{ttl_ms}");
    server.clock().advance_ms(3_599_999);
    assert_eq!(conn.ints(&call)[0], 1);
    server.clock().advance_ms(1);
    assert_eq!(conn.ints(&call)[..3], [0, BUCKETS, BUCKETS - 1]);
}

//! BLOCK: a release that hands all that a key holds to a waiting call is one change, in which the key does not vanish.

use std::time::Duration;

use support::*;

/// A server whose clock stands, with an append-only file.
fn with_aof() -> (Server, Conn) {
    Server::builder().aof().with_held_clock()
}

/// The effects of `work`, each by its name and the ids in it: `ZADD k -inf #01:a:1:600000:...` as `ZADD a`.
fn effects<T>(server: &Server, work: impl FnOnce() -> T) -> Vec<String> {
    let short = |line: &String| {
        let words: Vec<_> = line.split(' ').collect();
        let ids = words.iter().filter(|word| word.starts_with('#'));
        let ids = ids.map(|member| member.split(':').nth(1).unwrap());
        std::iter::once(words[0]).chain(ids).collect::<Vec<_>>().join(" ")
    };
    server.effects_of(work).iter().map(short).collect()
}

/// Runs a test for which a release must grant within one turn of the event loop. That is over after a millisecond: then the
/// key is deleted, and the timer grants.
fn in_one_turn(test: impl Fn()) {
    unless_stalled(Duration::from_micros(500), test);
}

// ---- What is replicated ----

#[test]
fn a_grant_is_added_before_the_released_reservation_is_removed() {
    in_one_turn(|| {
        let (server, mut conn) = with_aof();
        conn.cmd("RL.ACQUIRE k 1 0 1 ID a LEASE 600000");
        let mut waiters = ["b", "c"].map(|id| server.wait_in_line(waits(id)));
        for (at, (old, new)) in [("a", "b"), ("b", "c")].into_iter().enumerate() {
            let written = effects(&server, || {
                assert_eq!(conn.int(format!("RL.RELEASE k {old}")), 1);
                assert_eq!(acquired(&waiters[at].recv()).id(), new);
            });
            // The key has its TTL still, and that lasts long enough.
            assert_eq!(written, [format!("ZADD {new}"), format!("ZREM {old}")]);
            assert_eq!(conn.held_ids("k"), [new]);
        }
        assert_eq!(
            (
                server.info_ratelimit("reservations_released"),
                server.info_ratelimit("waited_granted")
            ),
            (2, 2)
        );
        // No call waits for the last one.
        assert_eq!(effects(&server, || conn.int("RL.RELEASE k c")), ["DEL"]);
        assert_eq!(conn.int("EXISTS k"), 0);
        server.expect_no_waiting_calls();
    });
}

#[test]
fn a_longer_and_a_shorter_lease_move_the_ttl() {
    in_one_turn(|| {
        for (lease_ms, ms) in [(60_000, 60_900), (3_600_000, 3_600_900)] {
            let (server, mut conn) = with_aof();
            conn.cmd("RL.ACQUIRE k 1 0 1 ID a LEASE 600000");
            let call = format!("RL.ACQUIRE k 1 0 1 ID b LEASE {lease_ms} BLOCK 0");
            let mut waiter = server.wait_in_line(call);
            let written = effects(&server, || conn.int("RL.RELEASE k a"));
            assert_eq!(written, ["ZADD b", "ZREM a", "PEXPIREAT"]);
            assert_eq!(acquired(&waiter.recv()).id(), "b");
            assert_eq!(conn.int("PTTL k"), ms);
        }
    });
}

/// They are one step for those who wait, so the key is empty at its end.
#[test]
fn a_transaction_and_a_script_delete_the_key_before_the_grant() {
    let script = ["EVAL", "return redis.call('RL.RELEASE', KEYS[1], 'a')", "1", "k"].words();
    let transaction = ["MULTI", "RL.RELEASE k a", "EXEC"].map(|line| line.words()).to_vec();
    for step in [transaction, vec![script]] {
        let (server, mut conn) = with_aof();
        conn.cmd("RL.ACQUIRE k 1 0 1 ID a LEASE 600000");
        let mut waiter = server.wait_in_line(waits("b"));
        let written = effects(&server, || {
            conn.pipeline(&step);
            assert_eq!(acquired(&waiter.recv()).id(), "b");
        });
        assert_eq!(written, ["DEL", "ZADD b", "PEXPIREAT"]);
        assert_eq!(conn.held_ids("k"), ["b"]);
    }
}

// ---- Several at once ----

#[test]
fn several_that_are_released_at_once_go_to_as_many_as_they_are_enough_for() {
    in_one_turn(|| {
        // Up to four are read, up to seven searched, and more are in an index.
        for held in [2, 3, 6, 12] {
            let (server, mut conn) = with_aof();
            let ids: Vec<_> = (0..held).map(|number| format!("h{number}")).collect();
            for id in &ids {
                conn.acquire(format!("RL.ACQUIRE k {held} 0 1 ID {id} LEASE 600000")).id();
            }
            let waits = |id: &str, quantity: usize| {
                server.wait_in_line(format!(
                    "RL.ACQUIRE k {held} 0 {quantity} ID {id} LEASE 600000 BLOCK 0"
                ))
            };
            let mut granted = [waits("a", 1), waits("b", held - 1)];
            let mut waiting = waits("c", 1);
            let written = effects(&server, || {
                // Some are named twice.
                let call = format!("RL.RELEASE k {} h0 {}", ids.join(" "), ids[held - 1]);
                assert_eq!(conn.int(call), held as i64);
            });
            assert_eq!(written[0], "ZADD a", "{written:?}");
            assert_eq!(written.last().unwrap(), "ZADD b", "{written:?}");
            let mut removed: Vec<_> = written[1].split(' ').skip(1).collect();
            removed.sort_by_key(|id| id[1..].parse::<usize>().unwrap());
            assert_eq!(removed, ids);
            assert_eq!(written.len(), 3, "{written:?}");
            assert_eq!(granted.each_mut().map(|conn| acquired(&conn.recv()).id()), ["a", "b"]);
            assert_eq!(conn.held_ids("k"), ["a", "b"]);
            waiting.expect_silence();
            assert_eq!(conn.int("RL.RELEASE k a"), 1);
            assert_eq!(acquired(&waiting.recv()).id(), "c");
            assert_eq!(conn.held_ids("k"), ["b", "c"]);
        }
    });
}

#[test]
fn the_rest_of_a_key_counts_for_a_waiting_call() {
    in_one_turn(|| {
        let (server, mut conn) = with_aof();
        // An event next to the reservation, and then a lapsed reservation next to it.
        conn.cmd("RL.WINDOW k 2 1h 1");
        conn.cmd("RL.ACQUIRE k 2 1h 1 ID a LEASE 600000");
        let mut waiter = server.wait_in_line("RL.ACQUIRE k 2 1h 2 ID b LEASE 600000 BLOCK 0");
        assert_eq!(effects(&server, || conn.int("RL.RELEASE k a")), ["ZREM a"]);
        waiter.expect_silence();
        let written = effects(&server, || conn.cmd("RL.WINDOW k 2 1h -1"));
        assert_eq!(written[..2], ["ZREM", "ZADD b"]);
        assert_eq!(acquired(&waiter.recv()).id(), "b");
        conn.cmd("RL.ACQUIRE s 2 0 1 ID a LEASE 600000");
        conn.cmd("RL.ACQUIRE s 2 0 1 ID lapsed LEASE 1000");
        let mut waiter = server.wait_in_line("RL.ACQUIRE s 2 0 2 ID b LEASE 600000 BLOCK 0");
        server.clock().advance_ms(1_001);
        let written = effects(&server, || {
            assert_eq!(conn.int("RL.RELEASE s a lapsed"), 1);
            assert_eq!(acquired(&waiter.recv()).id(), "b");
        });
        assert_eq!(written[..3], ["ZREM a", "ZADD b", "ZREM lapsed"]);
    });
}

// ---- Who is granted something else, or nothing ----

#[test]
fn an_event_takes_the_place_of_what_was_released() {
    in_one_turn(|| {
        let (server, mut conn) = with_aof();
        for (call, release) in [
            ("RL.WINDOW k 1 1h 1 BLOCK 0", "RL.RELEASE k a"),
            ("RL.WINDOW k 1 1h 1 FIXED BLOCK 0", "RL.RELEASE k a"),
            ("RL.WINDOW k 1 1h 1 BLOCK 0", "RL.APPLY k a 0"),
        ] {
            conn.cmd("DEL k");
            conn.cmd("RL.ACQUIRE k 1 1h 1 ID a LEASE 600000");
            let mut waiter = server.wait_in_line(call);
            let written = effects(&server, || {
                assert_eq!(conn.int(release), 1);
                assert_eq!(limited(&waiter.recv()), 0);
            });
            assert_eq!(written, ["ZADD", "ZREM a", "PEXPIREAT"], "{call}");
            assert_eq!((conn.int("ZCARD k"), conn.held_ids("k").len()), (1, 0), "{call}");
            assert_eq!(limited(&conn.cmd("RL.WINDOW k 1 1h 1")), 1, "{call}");
        }
    });
}

#[test]
fn a_call_that_waits_for_a_bucket_gets_one() {
    let (server, mut conn) = with_aof();
    conn.cmd("RL.THROTTLE k 0 1 1h");
    let mut waiter = server.wait_in_line("RL.THROTTLE k 0 1 1h 1 BLOCK 0");
    // Nobody is tried while the key changes its kind.
    let written = effects(&server, || {
        let reserve = "ZADD k -inf #01:a:1:600000:1700000600000000::-";
        conn.pipeline(["DEL k", reserve, "RL.RELEASE k a"]);
        assert_eq!(limited(&waiter.recv()), 0);
    });
    assert_eq!(written, ["DEL", "ZADD a", "DEL", "SET"]);
    assert_eq!(conn.text("TYPE k"), "string");
}

#[test]
fn the_very_same_reservation_is_granted_again() {
    let (server, mut conn) = with_aof();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID a LEASE 600000");
    let mut waiter = server.wait_in_line(waits("b"));
    let same = "ZADD k -inf #01:b:1:600000:1700000600000000::-";
    assert_eq!(conn.pipeline(["DEL k", same, "RL.RELEASE k b"]), [1, 1, 1].map(Value::Int));
    assert_eq!(acquired(&waiter.recv()).id(), "b");
    assert_eq!(conn.held_ids("k"), ["b"]);
    assert_eq!(conn.int("ZCARD k"), 1);
}

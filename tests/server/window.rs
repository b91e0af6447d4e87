//! What RL.WINDOW and RL.WINDOW_RO answer, on a clock that the test holds.

use std::thread;

use support::*;

/// Runs commands at times in microseconds after the start and compares their answers.
#[track_caller]
fn check(table: &[(i64, &str, &[i64])]) {
    let (server, mut conn) = Server::held();
    for (at_us, line, answer) in table {
        server.clock().set_us(START_US + at_us);
        assert_eq!(conn.ints(*line), *answer, "{line} at {at_us}");
    }
}

#[test]
fn times_are_rounded_up_to_seconds_or_with_ms_to_milliseconds() {
    check(&[
        (0, "RL.WINDOW k 1 10", &[0, 1, 0, -1, 10]),
        (1, "RL.WINDOW k 1 10", &[1, 1, 0, 10, 10]),
        (999_999, "RL.WINDOW k 1 10", &[1, 1, 0, 10, 10]),
        (1_000_000, "RL.WINDOW k 1 10", &[1, 1, 0, 9, 9]),
        (9_999_999, "RL.WINDOW k 1 10", &[1, 1, 0, 1, 1]),
        (9_999_999, "RL.WINDOW k 1 10 ms", &[1, 1, 0, 1, 1]),
        (9_999_000, "RL.WINDOW k 1 10 mS", &[1, 1, 0, 1, 1]),
        (9_998_999, "RL.WINDOW k 1 10 Ms", &[1, 1, 0, 2, 2]),
    ]);
}

#[test]
fn waiting_retry_after_suffices_and_a_millisecond_less_does_not() {
    for options in ["", "BUCKETS 3", "BUCKETS 1", "FIXED", "COUNTDENIED"] {
        let (server, mut conn) = Server::held();
        let clock = server.clock();
        for (step_us, quantity) in [(0, 2), (1_234_567, 3), (100_001, 1), (3, 4), (777, 5)] {
            clock.advance_us(step_us);
            let line = format!("RL.WINDOW k 10 1min {quantity} {options} MS");
            conn.cmd(&line);
        }
        let ask = format!("RL.WINDOW k 10 1min 7 {options} MS");
        let denied = conn.ints(&ask);
        assert_eq!(denied[0], 1, "{options}: {denied:?}");
        clock.advance_ms(denied[3] - 1);
        let look = ask.replace("RL.WINDOW", "RL.WINDOW_RO").replace("COUNTDENIED", "");
        let early = conn.ints(&look);
        assert_eq!((early[0], early[3]), (1, 1), "{options}: {denied:?} {early:?}");
        clock.advance_ms(1);
        assert_eq!(conn.ints(&look)[0], 0, "{options}: {denied:?}");
        assert_eq!(conn.ints(&ask)[0], 0, "{options}: {denied:?}");
    }
}

#[test]
fn quantity_0_looks_and_changes_nothing() {
    let (server, mut conn) = Server::held();
    for line in ["RL.WINDOW k 2 1 0", "RL.WINDOW k 0 1 0", "RL.WINDOW k 2 1 0 COUNTDENIED"] {
        assert_eq!(conn.ints(line)[..1], [0]);
        assert_eq!(conn.int("EXISTS k"), 0);
    }
    assert_eq!(conn.ints("RL.WINDOW k 2 1 0 ATMOST"), [0, 2, 2, -1, 0, 0]);
    conn.cmd("RL.WINDOW k 2 1 2");
    conn.cmd("PEXPIRE k 123456");
    server.clock().advance_ms(100);
    for line in
        ["RL.WINDOW k 2 1 0 MS", "RL.WINDOW k 2 1 0 COUNTDENIED MS", "RL.WINDOW_RO k 2 1 0 MS"]
    {
        assert_eq!(conn.ints(line), [0, 2, 0, -1, 900]);
    }
    // A limit below what was counted.
    assert_eq!(conn.ints("RL.WINDOW k 1 1 0 MS"), [0, 1, 0, -1, 900]);
    // Nor is a state from the future healed.
    server.clock().advance_ms(-500);
    let before = conn.cmd("ZRANGE k 0 -1 WITHSCORES");
    assert_eq!(conn.ints("RL.WINDOW k 2 1 0 MS"), [0, 2, 0, -1, 1000]);
    assert_eq!(conn.cmd("ZRANGE k 0 -1 WITHSCORES"), before);
    assert_eq!(conn.int("PTTL k"), 123_456 - 100 + 500);
}

#[test]
fn beyond_the_limit_is_denied_for_good_and_writes_nothing() {
    let (_server, mut conn) = Server::held();
    for line in [
        "RL.WINDOW k 5 60 6", "RL.WINDOW k 5 60 6 COUNTDENIED", "RL.WINDOW k 5 60 6 BUCKETS 2",
        "RL.WINDOW k 5 1d 6 FIXED COUNTDENIED", "RL.WINDOW_RO k 5 60 6",
        "RL.WINDOW k 5 60 9223372036854775807",
    ] {
        assert_eq!(conn.ints(line), [1, 5, 5, -1, 0], "{line}");
        assert_eq!(conn.int("EXISTS k"), 0, "{line}");
    }
    for line in ["RL.WINDOW k 0 60", "RL.WINDOW k 0 60 COUNTDENIED", "RL.WINDOW_RO k 0 60"] {
        assert_eq!(conn.ints(line), [1, 0, 0, -1, 0], "{line}");
    }
    assert_eq!(conn.ints("RL.WINDOW k 0 60 ATMOST"), [1, 0, 0, -1, 0, 0]);
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn beyond_the_limit_heals_nothing() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 5 60");
    server.clock().advance_ms(-1_000);
    let before = conn.cmd("ZRANGE k 0 -1 WITHSCORES");
    assert_eq!(conn.ints("RL.WINDOW k 5 60 6"), [1, 5, 4, -1, 60]);
    assert_eq!(conn.ints("RL.WINDOW k 0 60"), [1, 0, 0, -1, 60]);
    assert_eq!(conn.cmd("ZRANGE k 0 -1 WITHSCORES"), before);
}

#[test]
fn two_clients_at_once_get_exactly_the_limit() {
    let server = Server::start();
    let admitted: i64 = thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut conn = server.conn();
                    (0..50)
                        .flat_map(|_| conn.pipeline(vec!["RL.WINDOW k 3000 1h"; 100]))
                        .filter(|reply| ints(reply)[0] == 0)
                        .count() as i64
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(admitted, 3000);
    assert_eq!(server.conn().ints("RL.WINDOW_RO k 3000 1h")[..3], [1, 3000, 0]);
}

#[test]
fn the_state_is_a_sorted_set_whose_scores_are_minus_the_times_of_the_events() {
    let (server, mut conn) = Server::held();
    let mut times = Vec::new();
    for _ in 0..5 {
        conn.cmd("RL.WINDOW k 5 60");
        times.insert(0, format!("-{}", server.clock().now_us()));
        server.clock().advance_us(1_234_567);
    }
    assert_eq!(conn.text("TYPE k"), "zset");
    let pairs = conn.array("ZRANGE k 0 -1 WITHSCORES");
    let scores: Vec<_> = pairs.iter().skip(1).step_by(2).map(text).collect();
    assert_eq!(scores, times);
}

/// It may run ahead by the time for which the key had been in use, up to one period.
#[test]
fn the_ttl_reaches_to_the_end_of_the_state_and_not_far_beyond() {
    for options in ["", "BUCKETS 5", "FIXED", "COUNTDENIED"] {
        let (server, mut conn) = Server::held();
        let call = format!("RL.WINDOW k 20 10s {options} MS");
        let (mut used_ms, mut moved, mut before) = (0, 0, 0);
        for round in 0..300 {
            let step_us = 1_000 + (round * 7_919) % 400_000;
            server.clock().advance_us(step_us);
            used_ms += if round == 0 { 0 } else { step_us / 1_000 + 1 };
            let [limited, _, _, _, reset_ms] = conn.ints(&call)[..] else { panic!("no answer") };
            let ttl_ms = conn.int("PTTL k");
            let most_ms = reset_ms + 1_000 + used_ms.min(10_000);
            assert!((reset_ms..=most_ms).contains(&ttl_ms), "{ttl_ms} for {reset_ms}");
            let expires = server.clock().now_us() / 1_000 + ttl_ms;
            moved += i64::from(limited == 0 && round > 20 && expires != before);
            before = expires;
        }
        assert!(moved < 100, "{options}: the TTL was moved {moved} times");
    }
}

#[test]
fn the_ttl_never_decides() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 1 10");
    conn.cmd("PERSIST k");
    server.clock().advance_ms(9_999);
    assert_eq!(conn.ints("RL.WINDOW k 1 10 MS"), [1, 1, 0, 1, 1]);
    server.clock().advance_ms(1);
    assert_eq!(conn.ints("RL.WINDOW_RO k 1 10 MS"), [0, 1, 1, -1, 0]);
    assert_eq!(conn.ints("RL.WINDOW k 1 10 MS"), [0, 1, 0, -1, 10_000]);
    assert!((10_000..=21_000).contains(&conn.int("PTTL k")));
}

#[test]
fn buckets_up_to_65536_are_taken() {
    check(&[
        (0, "RL.WINDOW k 70000 60 BUCKETS 65536", &[0, 70_000, 69_999, -1, 60]),
        (0, "RL.WINDOW k 70000 60 BUCKETS 1", &[0, 70_000, 69_998, -1, 60]),
        (0, "RL.WINDOW k 5 60 BUCKETS 65536", &[0, 5, 2, -1, 60]),
    ]);
}

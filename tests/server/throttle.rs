//! The values of RL.THROTTLE and RL.WINDOW, and their expiry.

use support::*;

#[test]
fn the_key_may_be_any_bytes() {
    let (_server, mut conn) = Server::with_held_clock();
    let keys: [&[u8]; 6] =
        [b"", b"\0", b"a\0b", b"\xff\xfe\xfd", b" \r\n", "schl\u{fc}ssel".as_bytes()];
    for (number, key) in keys.iter().enumerate() {
        let argv: [&[u8]; 5] = [b"RL.THROTTLE", key, b"0", b"1", b"1"];
        assert_eq!(conn.ints(argv), [0, 1, 0, -1, 1]);
        assert_eq!(conn.ints(argv), [1, 1, 0, 1, 1]);
        assert_eq!(conn.int("DBSIZE"), number as i64 + 1);
        assert!(conn.int([b"PTTL", *key]) > 0);
    }
}

#[test]
fn a_live_key_of_redis_cell_goes_on_working() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.cmd("SET k 1700000003000000000 EX 3");
    assert_eq!(conn.ints("RL.THROTTLE_RO k 4 1 1"), [0, 5, 2, -1, 3]);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 1, -1, 4]);
    assert_eq!(conn.text("GET k"), "1700000004000000000");
    // For a quantity of -3 on a fresh key redis-cell stores a time in the past, without a TTL.
    conn.cmd("SET k 1699999997000000000");
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 4, -1, 1]);
    assert!((1_000..=2_000).contains(&conn.int("PTTL k")));
}

#[test]
fn a_window_is_a_sorted_set_whose_scores_are_minus_the_times_of_the_events() {
    let (server, mut conn) = Server::with_held_clock();
    let mut times = Vec::new();
    for _ in 0..5 {
        conn.cmd("RL.WINDOW k 5 60");
        times.insert(0, format!("-{}", server.clock().now_us()));
        server.clock().advance_us(1_234_567);
    }
    let pairs = conn.array("ZRANGE k 0 -1 WITHSCORES");
    let scores: Vec<_> = pairs.iter().skip(1).step_by(2).map(text).collect();
    assert_eq!(scores, times);
}

#[test]
fn replies_are_the_same_without_a_ttl() {
    let (server, mut conn) = Server::with_held_clock();
    for (call, full) in [("RL.THROTTLE k 0 1 10 1 MS", 10_900), ("RL.WINDOW k 1 10 1 MS", 21_000)] {
        conn.pipeline(["DEL k", call, "PERSIST k"]);
        server.clock().advance_ms(9_999);
        assert_eq!(conn.ints(call), [1, 1, 0, 1, 1], "{call}");
        server.clock().advance_ms(1);
        assert_eq!(conn.ints(call), [0, 1, 0, -1, 10_000], "{call}");
        assert!((10_000..=full).contains(&conn.int("PTTL k")), "{call}");
    }
}

//! What RL.WINDOW and RL.WINDOW_RO answer, on a clock that the test holds.

use std::thread;

use support::*;

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

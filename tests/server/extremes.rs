//! Sums near 2^63, periods of decades, and clocks at both ends of what the module knows.

use support::*;

/// Asserts that a denied call with MS is denied until its retry_after has passed and is then allowed.
#[track_caller]
fn assert_exact(server: &Server, conn: &mut Conn, answer: &[i64], look: &str) {
    assert!(answer[0] > 0 && answer[3] > 0, "not denied for a time: {answer:?}");
    let now_us = server.clock().now_us();
    server.clock().advance_ms(answer[3] - 1);
    assert_eq!(conn.ints(look)[0], 1, "a millisecond early: {answer:?}");
    server.clock().advance_ms(1);
    assert_eq!(conn.ints(look)[0], 0, "waited as the reply says: {answer:?}");
    server.clock().set_us(now_us);
}

#[test]
fn an_event_of_a_period_of_decades_counts_for_decades() {
    const YEAR_S: i64 = 31_557_600;
    for call in [
        "RL.WINDOW k 2 60y 1 MS".to_owned(),
        format!("RL.WINDOW k 2 {} 1 MS", 60 * YEAR_S),
        "RL.WINDOW k 2 100y 1 MS BUCKETS 10".to_owned(),
        "RL.WINDOW k 2 720mo 1 MS COUNTDENIED".to_owned(),
    ] {
        let (server, mut conn) = Server::held();
        assert_eq!(conn.ints(&call)[..3], [0, 2, 1], "{call}");
        server.clock().advance_us(41 * YEAR_S * 1_000_000);
        let look = call.replacen("RL.WINDOW", "RL.WINDOW_RO", 1).replace(" COUNTDENIED", "");
        assert_eq!(conn.ints(&look)[..3], [0, 2, 1], "{call}");
        assert_eq!(conn.ints(&call)[..3], [0, 2, 0], "{call}");
        let answer = conn.ints(&look);
        assert_eq!(answer[..3], [1, 2, 0], "{call}");
        assert_exact(&server, &mut conn, &answer, &look);
    }
}

#[test]
fn a_reservation_is_made_and_settled_next_to_an_event_of_decades_ago() {
    let (server, mut conn) = Server::held();
    assert_eq!(conn.ints("RL.WINDOW k 5 99y 3")[0], 0);
    server.clock().advance_us(41 * 31_557_600 * 1_000_000);
    let had = conn.acquire("RL.ACQUIRE k 5 99y 2 ID x");
    assert_eq!(had.numbers[..3], [0, 5, 0]);
    assert_eq!(conn.held_ids("k"), ["x"]);
    assert_eq!(conn.int("RL.RENEW k x"), 1);
    assert_eq!(conn.int("RL.APPLY k x 1"), 1);
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 99y")[2], 1);
}

#[test]
fn a_bucket_of_decades_drains_for_decades() {
    let (server, mut conn) = Server::held();
    assert_eq!(conn.ints("RL.THROTTLE k 1 1 18262d 2")[..3], [0, 2, 0]);
    server.clock().advance_us(41 * 31_557_600 * 1_000_000);
    let answer = conn.ints("RL.THROTTLE k 1 1 18262d 1 MS");
    assert_eq!(answer[..3], [1, 2, 0]);
    assert_exact(&server, &mut conn, &answer, "RL.THROTTLE_RO k 1 1 18262d");
}

/// Every command, on the key of its kind.
const CALLS: [&str; 13] = [
    "RL.THROTTLE t 4 1 60", "RL.THROTTLE t 4 1 60 0", "RL.THROTTLE t 4 1 60 -1",
    "RL.THROTTLE_RO t 4 1 60", "RL.WINDOW w 5 60", "RL.WINDOW w 5 1d FIXED", "RL.WINDOW_RO w 5 60",
    "RL.ACQUIRE a 5 60", "RL.ACQUIRE_RO a 5 60", "RL.HELD a", "RL.RENEW a x", "RL.APPLY a x",
    "RL.RELEASE a x",
];

#[test]
fn a_clock_beyond_2255_is_an_error_that_says_so_and_changes_nothing() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2255-06-01T00:00:00"));
    conn.pipeline(["RL.THROTTLE t 4 1 60", "RL.WINDOW w 5 60", "RL.ACQUIRE a 5 60 1 ID x"]);
    for key in ["t", "w", "a"] {
        // Else the server deletes it at the new time.
        assert_eq!(conn.int(format!("PERSIST {key}")), 1);
    }
    let dumps = |conn: &mut Conn| ["DUMP t", "DUMP w", "DUMP a"].map(|line| conn.cmd(line));
    let before = dumps(&mut conn);
    for now in ["2256-01-01T00:00:00", "2300-01-01T00:00:00", "9999-01-01T00:00:00"] {
        server.clock().set_us(unix_us(now));
        for call in CALLS {
            conn.refuses(call, "ERR the server's clock must be between 1970 and 2255");
        }
    }
    assert_eq!((dumps(&mut conn), conn.int("DBSIZE")), (before, 3));
    server.clock().set_us(unix_us("2255-06-01T00:00:01"));
    for call in CALLS {
        assert!(!matches!(conn.cmd(call), Value::ServerError(_)), "{call}");
    }
}

#[test]
fn every_command_works_at_both_ends_of_the_clock() {
    for now in ["1970-01-02T00:00:00", "1971-06-01T00:00:00", "2255-06-01T00:00:00"] {
        let (server, mut conn) = Server::held();
        server.clock().set_us(unix_us(now));
        conn.pipeline(["RL.THROTTLE t 4 1 60", "RL.WINDOW w 5 60", "RL.ACQUIRE a 5 60 1 ID x"]);
        for call in CALLS {
            let reply = conn.cmd(call);
            assert!(!matches!(reply, Value::ServerError(_)), "{now}: {call}: {reply:?}");
        }
        conn.cmd("FLUSHALL");
        for _ in 0..5 {
            assert_eq!(conn.ints("RL.WINDOW w 5 60")[0], 0, "{now}");
        }
        assert_eq!(conn.ints("RL.WINDOW w 5 60 1 MS")[..4], [1, 5, 0, 60_000], "{now}");
        server.clock().advance_ms(60_000);
        assert_eq!(conn.ints("RL.WINDOW w 5 60")[..3], [0, 5, 4], "{now}");
    }
}

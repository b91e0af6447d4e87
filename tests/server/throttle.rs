//! RL.THROTTLE and RL.THROTTLE_RO: keys, stored values and their lifetime.

use support::*;

const START_MS: i64 = START_US / 1000;

/// When `key` expires, in Unix milliseconds; -1 if it never does, -2 if there is none.
fn expires_at_ms(server: &Server, conn: &mut Conn, key: &str) -> i64 {
    match conn.int(["PTTL", key]) {
        left @ (-1 | -2) => left,
        left => server.clock().now_us() / 1000 + left,
    }
}

fn dbsize(conn: &mut Conn) -> i64 {
    conn.int("DBSIZE")
}

#[test]
fn the_key_may_be_any_bytes() {
    let (_server, mut conn) = Server::held();
    let keys: [&[u8]; 6] =
        [b"", b"\0", b"a\0b", b"\xff\xfe\xfd", b" \r\n", "schl\u{fc}ssel".as_bytes()];
    for (number, key) in keys.iter().enumerate() {
        let argv: [&[u8]; 5] = [b"RL.THROTTLE", key, b"1", b"1", b"1"];
        assert_eq!(conn.ints(argv), [0, 2, 1, -1, 1]);
        assert_eq!(conn.ints(argv), [0, 2, 0, -1, 2]);
        assert_eq!(conn.ints(argv), [1, 2, 0, 1, 2]);
        assert_eq!(dbsize(&mut conn), number as i64 + 1);
        assert!(conn.int([b"PTTL", *key]) > 0);
    }
}

// ---- What the key holds ----

#[test]
fn a_live_key_of_redis_cell_goes_on_working() {
    let (server, mut conn) = Server::held();
    conn.cmd("SET k 1700000003000000000 EX 3");
    assert_eq!(conn.ints("RL.THROTTLE_RO k 4 1 1"), [0, 5, 2, -1, 3]);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 1, -1, 4]);
    assert_eq!(conn.text("GET k"), "1700000004000000000");
    // What its quantity -3 on a fresh key leaves: a time in the past, without TTL.
    conn.cmd("SET k 1699999997000000000");
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 4, -1, 1]);
    let expires = expires_at_ms(&server, &mut conn, "k");
    assert!((START_MS + 1000..=START_MS + 2000).contains(&expires), "{expires}");
}

// ---- Time to live ----

#[test]
fn a_key_expires_when_its_state_stops_mattering_or_a_second_later() {
    let (server, mut conn) = Server::held();
    for (parameters, reset_ms) in [
        ("0 1 1ms", 1),
        ("4 1 1", 1000),
        ("4 1 1 5", 5000),
        ("4 3 1", 334),
        ("4 1000000000 1", 1),
        ("0 1 36525d", 3_155_760_000_000),
    ] {
        conn.cmd("DEL k");
        let reset_at = START_MS + reset_ms;
        assert_eq!(conn.ints(format!("RL.THROTTLE k {parameters} MS"))[4], reset_ms);
        let expires = expires_at_ms(&server, &mut conn, "k");
        assert!((reset_at..=reset_at + 1000).contains(&expires), "{parameters}: {expires}");
    }
}

#[test]
fn the_ttl_moves_with_the_state_and_a_denied_call_leaves_it() {
    let (server, mut conn) = Server::held();
    let mut reset_at = START_MS;
    for wait_ms in [0, 0, 1234, 100, 700] {
        server.clock().advance_ms(wait_ms);
        let now_ms = server.clock().now_us() / 1000;
        reset_at = reset_at.max(now_ms) + 1000;
        assert_eq!(conn.ints("RL.THROTTLE k 4 1 1s 1 MS")[4], reset_at - now_ms);
        let expires = expires_at_ms(&server, &mut conn, "k");
        assert!((reset_at..=reset_at + 1000).contains(&expires), "{wait_ms}: {expires}");
        let before = conn.dumped("k");
        assert_eq!(conn.ints("RL.THROTTLE k 4 1 1s 5")[0], 1);
        assert_eq!(conn.dumped("k"), before);
    }
    conn.cmd("RL.THROTTLE k 4 1 1s -1");
    let expires = expires_at_ms(&server, &mut conn, "k");
    assert!((reset_at - 1000..=reset_at + 1000).contains(&expires), "{expires}");
}

#[test]
fn the_ttl_decides_no_answer() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.THROTTLE k 4 1 1s 5");
    conn.cmd("PERSIST k");
    server.clock().advance_ms(2000);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1s 0"), [0, 5, 2, -1, 3]);
    server.clock().advance_ms(60_000);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1s 0"), [0, 5, 5, -1, 0]);
    // Full again, before it expires and after.
    conn.cmd("RL.THROTTLE k 4 1 1s 5");
    for wait_ms in [5000, 1000, 1000] {
        server.clock().advance_ms(wait_ms);
        assert_eq!(conn.ints("RL.THROTTLE_RO k 4 1 1s"), [0, 5, 5, -1, 0]);
    }
    assert_eq!(conn.int("EXISTS k"), 0);
}

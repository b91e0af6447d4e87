//! `RL.WINDOW ... FIXED FROM first`, on a clock that the test holds.

use std::time::Duration;

use support::*;

#[test]
fn any_period_will_do() {
    let (server, mut conn) = Server::held();
    for (period, start, end) in [
        ("1ms", "2026-11-21T12:00:00", "2026-11-21T12:00:00.001"),
        ("1500ms", "2026-11-21T12:00:00", "2026-11-21T12:00:01.5"),
        ("7", "2026-11-21T12:00:00", "2026-11-21T12:00:07"),
        ("5h", "2026-11-21T12:00:00", "2026-11-21T17:00:00"),
        ("30d", "2026-11-21T12:00:00", "2026-12-21T12:00:00"),
        // As in a sliding window: in UTC, and where the day does not exist, from the month after on.
        ("1mo", "2026-11-21T12:00:00", "2026-12-21T12:00:00"),
        ("1mo", "2026-01-31T12:00:00", "2026-03-01T00:00:00"),
        ("5mo", "2026-08-31T12:00:00", "2027-01-31T12:00:00"),
        ("1y", "2024-02-29T12:00:00", "2025-03-01T00:00:00"),
        ("100y", "2026-11-21T12:00:00", "2126-11-21T12:00:00"),
    ] {
        let us = |text: &str| match text.split_once('.') {
            Some((whole, part)) => {
                unix_us(whole) + part.parse::<i64>().unwrap() * 10i64.pow(6 - part.len() as u32)
            }
            None => unix_us(text),
        };
        let (start_us, end_us) = (us(start), us(end));
        conn.cmd("DEL k");
        server.clock().set_us(start_us);
        let long_ms = (end_us - start_us) / 1_000;
        let call = format!("RL.WINDOW k 1 {period} FIXED FROM first MS");
        assert_eq!(conn.ints(&call), [0, 1, 0, -1, long_ms], "{period} {start}");
        assert!((long_ms..=long_ms + 1_000).contains(&conn.int("PTTL k")), "{period} {start}");
        server.clock().set_us(end_us - 1);
        assert_eq!(conn.ints(&call), [1, 1, 0, 1, 1], "{period} {start}");
        server.clock().set_us(end_us);
        assert_eq!(conn.ints(&call)[..4], [0, 1, 0, -1], "{period} {start}");
    }
}

#[test]
fn it_waits_for_the_end_of_the_window() {
    let (_server, mut conn) = Server::connect();
    let call = "RL.WINDOW k 1 2s FIXED FROM first MS";
    conn.cmd(call);
    // Not within 100 ms: denied at once.
    assert_eq!(conn.ints(format!("{call} BLOCK 100"))[..3], [1, 1, 0]);
    let (waited, reply) = {
        conn.send(format!("{call} BLOCK 60s"));
        time_to_reply(&mut conn)
    };
    assert_eq!(ints(&reply)[..4], [0, 1, 0, -1]);
    assert!(waited < Duration::from_secs(20), "{waited:?}");
}

#[test]
fn rl_all_takes_of_all_kinds_at_once_or_of_none() {
    let (_server, mut conn) = Server::held();
    let call =
        "RL.ALL 3 {u}f {u}a {u}r WINDOW 2 10s FIXED FROM first ACQUIRE 2 1w FIXED FROM sun ID x \
                WINDOW 2 1mo FIXED FROM 31 MS";
    let parts = conn.array(call);
    let Value::Array(answers) = &parts[6] else { panic!("{call}") };
    assert_eq!(ints(&answers[0]), [0, 2, 1, -1, 10_000]);
    assert_eq!(acquired(&answers[1]).numbers[..4], [0, 2, 1, -1]);
    assert_eq!(ints(&answers[2])[..4], [0, 2, 1, -1]);
    // Only to look, and with a denial that takes nothing of the others.
    let denied =
        "RL.ALL 2 {u}f {u}r WINDOW 2 10s 2 FIXED FROM first WINDOW 2 1mo 1 FIXED FROM 31 MS";
    let parts = conn.array(denied);
    assert_eq!((parts[0].clone(), parts[3].clone()), (Value::Int(1), Value::Int(10_000)));
    assert_eq!(conn.ints("RL.WINDOW_RO {u}r 2 1mo FIXED FROM 31")[2], 1);
    let Value::Array(parts) = conn.cmd(denied.replacen("RL.ALL", "RL.ALL_RO", 1)) else { panic!() };
    assert_eq!((parts[0].clone(), parts[3].clone()), (Value::Int(1), Value::Int(10_000)));
    assert_eq!(conn.int("RL.APPLY {u}a x"), 1);
}

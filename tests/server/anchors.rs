//! `RL.WINDOW ... FIXED FROM anchor`, on a clock that the test holds. tests/server/anchors_zoneinfo.rs compares the
//! windows themselves.

use support::*;

#[test]
fn the_word_after_from_is_its_value_and_options_come_in_any_order() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2026-11-21T12:00:00"));
    for words in [
        "1d 1 FIXED FROM 09:00 TZ Asia/Tokyo MS",
        "1d FROM 09:00 FIXED TZ Asia/Tokyo MS",
        "1d MS tz Asia/Tokyo from 09:00 fixed",
        "1d TZ Asia/Tokyo LEAVE 0 FROM 09:00:00 ATMOST FIXED MS",
    ] {
        conn.cmd("DEL k");
        let reply = conn.ints(format!("RL.WINDOW k 3 {words}"));
        assert_eq!(reply[..5], [0, 3, 2, -1, 12 * 3_600_000], "{words}");
    }
    // Two keys that are called like options, and a clause between them.
    let call = "RL.ALL 2 FROM first WINDOW 3 1d FIXED FROM 09:00 WINDOW 3 10s FIXED FROM first MS";
    let parts = conn.array(call);
    assert_eq!(parts[6], clause_results([[0, 3, 2, -1, 75_600_000], [0, 3, 2, -1, 10_000]]));
}

fn clause_results(answers: [[i64; 5]; 2]) -> Value {
    let answer = |numbers: [i64; 5]| Value::Array(numbers.map(Value::Int).into());
    Value::Array(answers.map(answer).into())
}

#[test]
fn without_tz_the_zone_is_the_settings() {
    let (server, mut conn) = Server::builder().module_args(["timezone", "Asia/Tokyo"]).held();
    server.clock().set_us(unix_us("2026-11-21T12:00:00"));
    assert_eq!(conn.ints("RL.WINDOW k 1 1d FIXED FROM 09:00")[4], 12 * 3_600);
    assert_eq!(conn.ints("RL.WINDOW utc 1 1d FIXED FROM 09:00 TZ UTC")[4], 21 * 3_600);
    if server.version().is_from(7, 0) {
        conn.cmd("CONFIG SET ratelimit.timezone -01:00");
        assert_eq!(
            conn.ints("RL.WINDOW_RO k 1 1d FIXED FROM 09:00"),
            [1, 1, 0, 22 * 3_600, 22 * 3_600]
        );
    }
}

#[test]
fn reservations_remember_the_anchor_and_count_in_the_window_of_their_moment() {
    let (server, mut conn) = Server::held();
    for (window, end) in [
        ("1mo FIXED FROM 31@09:00:30 TZ America/Argentina/ComodRivadavia", "2026-11-30T12:00:30"),
        (
            "3155760000s FIXED FROM 2026-11-30@09:00:30 TZ America/Argentina/ComodRivadavia",
            "2026-11-30T12:00:30",
        ),
        ("1w FIXED FROM SUN", "2026-11-22T00:00:00"),
        ("1d FIXED FROM 09:00 TZ Asia/Tokyo", "2026-11-22T00:00:00"),
    ] {
        conn.cmd("FLUSHALL");
        let end_us = unix_us(end);
        server.clock().set_us(end_us - 10_000_000);
        let id = "x".repeat(64);
        conn.cmd(format!("RL.ACQUIRE k 3 {window} ID {id} LEASE 30000"));
        conn.cmd(format!("RL.ACQUIRE k 3 {window} ID b LEASE 30000"));
        assert_eq!(conn.int("RL.APPLY k b"), 1, "{window}");
        let (period, from) = window.split_once(' ').unwrap();
        let look = format!("RL.WINDOW_RO k 3 {period} 2 {from} MS");
        // One that counts, and one that is held across the window's end.
        assert_eq!(conn.ints(&look), [1, 3, 1, 10_000, 30_000], "{window}");
        server.clock().set_us(end_us + 1_000_000);
        assert_eq!(conn.ints(&look)[..3], [0, 3, 2], "{window}");
        assert_eq!(conn.int(format!("RL.RENEW k {id}")), 1);
        assert_eq!(conn.int(format!("RL.APPLY k {id} 2")), 1);
        let reply = conn.ints(&look);
        assert_eq!(reply[..3], [1, 3, 1], "{window}");
        assert!(reply[3] > 80_000_000, "{window}: {reply:?}");
        let left_ms = reply[4];
        assert!((left_ms..=left_ms + 1_000).contains(&conn.int("PTTL k")), "{window}");
    }
}

#[test]
fn policies_have_anchors_and_a_call_on_one_does_not() {
    let policies = "billing WINDOW 3 1mo FIXED FROM 15 TZ Asia/Tokyo; sprint WINDOW 3 14d FIXED FROM 2026-11-02; \
                    first WINDOW 3 1h FIXED FROM first; soft WINDOW 1 1d FIXED FROM 09:00 SHADOW";
    let (server, mut conn) = Server::builder().module_args(["policies", policies]).held();
    server.clock().set_us(unix_us("2026-11-21T12:00:00"));
    for (policy, window) in [
        ("@billing", "3 1mo FIXED FROM 15 TZ Asia/Tokyo"),
        ("@sprint", "3 14d FIXED FROM 2026-11-02"),
        ("@first", "3 1h FIXED FROM first"),
    ] {
        let named = conn.ints(format!("RL.WINDOW a{policy} {policy} MS"));
        assert_eq!(named, conn.ints(format!("RL.WINDOW b{policy} {window} MS")), "{policy}");
        let named = conn.acquire(format!("RL.ACQUIRE a{policy} {policy} MS")).numbers;
        let plain = conn.acquire(format!("RL.ACQUIRE b{policy} {window} MS")).numbers;
        assert_eq!(named, plain, "{policy}");
        for options in ["FROM first", "FROM 15", "FIXED FROM 15"] {
            let error = conn.err(format!("RL.WINDOW k {policy} {options}"));
            let option = options.split(' ').next().unwrap();
            assert_eq!(error, format!("ERR {option} must not be used with a policy"));
        }
        assert_eq!(
            conn.err(format!("RL.ALL 1 k ACQUIRE {policy} 1 FROM first")),
            "ERR FROM must not be used with a policy"
        );
    }
    for _ in 0..2 {
        assert_eq!(conn.ints("RL.WINDOW s @soft")[0], 0);
    }
    let shown = flat(&conn.cmd("RL.POLICIES"));
    assert!(shown.contains(&"WINDOW 3 1mo FIXED FROM 15 TZ Asia/Tokyo".to_owned()), "{shown:?}");
}

#[test]
fn many_anchors_of_one_zone_are_distinguished() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2026-11-21T12:00:00"));
    for _ in 0..2 {
        for day in 1..=31 {
            let month = if day <= 21 { "12" } else { "11" };
            let ends =
                unix_us(&format!("2026-{month}-{:02}T00:00:00", if day == 31 { 30 } else { day }));
            let left = (ends - server.clock().now_us()) / 1_000_000;
            for (period, anchor) in [("1mo", format!("{day}")), ("1mo", format!("{day}@00:00:00"))]
            {
                let reply = conn.ints(format!("RL.WINDOW {day} 100 {period} FIXED FROM {anchor}"));
                assert_eq!(reply[4], left, "{period} {anchor}");
            }
        }
        for hour in 0..24 {
            let left = (hour + 24 - 12) % 24 * 3_600;
            let reply = conn.ints(format!("RL.WINDOW h{hour} 9 1d FIXED FROM {hour:02}:00"));
            assert_eq!(reply[4], if left == 0 { 86_400 } else { left }, "{hour}");
        }
    }
}

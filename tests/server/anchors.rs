//! `RL.WINDOW ... FIXED FROM anchor`, on a clock that the test holds. The windows of this page were worked out by hand;
//! tests/server/anchors_zoneinfo.rs compares many more.

use support::*;

/// `period FIXED FROM anchor [TZ zone]`, and the instants at which one window ends and the next begins, in UTC, without
/// zeros at the end.
const WINDOWS: &[(&str, &str)] = &[
    ("1d FIXED FROM 09:00", "2026-11-20T09:00 2026-11-21T09:00 2026-11-22T09:00"),
    ("86400 FIXED FROM 09:00:30", "2026-11-20T09:00:30 2026-11-21T09:00:30"),
    ("1d FIXED FROM 09:00 TZ Asia/Tokyo", "2026-11-21 2026-11-22"),
    // Nine o'clock, in winter and in summer. The day before the change has 23 hours, and 25.
    (
        "1d FIXED FROM 09:00 TZ Europe/Berlin",
        "2026-03-27T08:00 2026-03-28T08:00 2026-03-29T07:00 2026-03-30T07:00",
    ),
    ("1d FIXED FROM 09:00 TZ Europe/Berlin", "2026-10-23T07:00 2026-10-24T07:00 2026-10-25T08:00"),
    // 02:30 does not come on 29 March: the first instant after the gap is 03:00. On 25 October it comes twice.
    ("1d FIXED FROM 02:30 TZ Europe/Berlin", "2026-03-28T01:30 2026-03-29T01:00 2026-03-30T00:30"),
    ("1d FIXED FROM 02:30 TZ Europe/Berlin", "2026-10-24T00:30 2026-10-25T00:30 2026-10-26T01:30"),
    // There was no 30 December 2011 in Apia: its window starts with the 31st, and is empty where they start alike.
    ("1d FIXED FROM 00:00 TZ Pacific/Apia", "2011-12-29T10:00 2011-12-30T10:00 2011-12-31T10:00"),
    (
        "1d FIXED FROM 12:00 TZ Pacific/Apia",
        "2011-12-28T22:00 2011-12-29T22:00 2011-12-30T10:00 2011-12-30T22:00",
    ),
    ("1w FIXED FROM sun", "2026-11-15 2026-11-22 2026-11-29"),
    ("1w FIXED FROM MON", "2026-11-16 2026-11-23"),
    ("604800 FIXED FROM Mon@09:00 TZ +08:00", "2026-11-16T01:00 2026-11-23T01:00"),
    ("1mo FIXED FROM 15", "2026-10-15 2026-11-15 2026-12-15"),
    ("1mo FIXED FROM 31", "2026-01-31 2026-02-28 2026-03-31 2026-04-30"),
    ("1mo FIXED FROM 30@23:59:59", "2028-01-30T23:59:59 2028-02-29T23:59:59"),
    ("3mo FIXED FROM 31@12:00", "2026-01-31T12:00 2026-04-30T12:00 2026-07-31T12:00"),
    ("12mo FIXED FROM 2", "2026-01-02 2027-01-02"),
    // The tax year of Britain.
    ("1y FIXED FROM 04-06 TZ Europe/London", "2025-04-05T23:00 2026-04-05T23:00 2027-04-05T23:00"),
    ("3mo FIXED FROM 04-06@09:00", "2026-10-06T09:00 2027-01-06T09:00"),
    ("1y FIXED FROM 02-29", "2026-02-28 2027-02-28 2028-02-29"),
    ("6mo FIXED FROM 08-31", "2026-02-28 2026-08-31 2027-02-28"),
    ("14d FIXED FROM 2026-11-02", "2026-10-19 2026-11-02 2026-11-16 2026-11-30"),
    ("2w FIXED FROM 2026-11-02 TZ Asia/Shanghai", "2026-11-15T16:00 2026-11-29T16:00"),
    (
        "10mo FIXED FROM 2026-01-31@09:00",
        "2025-03-31T09:00 2026-01-31T09:00 2026-11-30T09:00 2027-09-30T09:00",
    ),
    // Before the anchor, and from a February that has a 29th.
    ("1mo FIXED FROM 2255-12-31", "2026-10-31 2026-11-30"),
    ("4y FIXED FROM 2024-02-29", "2020-02-29 2024-02-29"),
    ("1y FIXED FROM 2024-02-29", "2026-02-28 2027-02-28"),
    // Lengths of time: the clock's change in Berlin moves the wall's time.
    (
        "24h FIXED FROM 2026-03-27@09:00 TZ Europe/Berlin",
        "2026-03-28T08:00 2026-03-29T08:00 2026-03-30T08:00",
    ),
    (
        "1d FIXED FROM 2026-03-27@09:00 TZ Europe/Berlin",
        "2026-03-28T08:00 2026-03-29T07:00 2026-03-30T07:00",
    ),
    ("90min FIXED FROM 2026-11-21@00:20", "2026-11-20T22:50 2026-11-21T00:20 2026-11-21T01:50"),
    ("7s FIXED FROM 2026-11-21@00:00:03", "2026-11-20T23:59:56 2026-11-21T00:00:03"),
    // An anchor in the gap, and one that comes twice.
    ("12h FIXED FROM 2026-03-29@02:30 TZ Europe/Berlin", "2026-03-29T01:00 2026-03-29T13:00"),
    ("12h FIXED FROM 2026-10-25@02:30 TZ Europe/Berlin", "2026-10-25T00:30 2026-10-25T12:30"),
    // To the ends of the clock.
    ("100y FIXED FROM 2055-06-01", "2055-06-01 2155-06-01"),
    ("1d FIXED FROM 09:00", "2255-05-31T09:00 2255-06-01T09:00"),
];

#[test]
fn windows_start_at_the_anchor_to_the_microsecond() {
    let (server, mut conn) = Server::held();
    for (window, borders) in WINDOWS {
        let whole = |border: &str| format!("{border}{}", &"2026-01-01T00:00:00"[border.len()..]);
        let borders: Vec<_> = borders.split(' ').map(|border| unix_us(&whole(border))).collect();
        for pair in borders.windows(2) {
            let (start_us, end_us) = (pair[0], pair[1]);
            let call = format!("RL.WINDOW k 2 {window} MS");
            let long_ms = (end_us - start_us) / 1000;
            conn.cmd("FLUSHALL");
            // The last microsecond of the window before.
            server.clock().set_us(start_us - 1);
            assert_eq!(conn.ints(format!("{call} ATMOST")), [0, 2, 1, -1, 1, 1], "{call} {pair:?}");
            assert_eq!(conn.ints(&call), [0, 2, 0, -1, 1], "{call} {pair:?}");
            assert_eq!(conn.ints(&call), [1, 2, 0, 1, 1], "{call} {pair:?}");
            server.clock().set_us(start_us);
            assert_eq!(conn.ints(&call), [0, 2, 1, -1, long_ms], "{call} {pair:?}");
            assert!((long_ms..=long_ms + 1000).contains(&conn.int("PTTL k")), "{call} {pair:?}");
            server.clock().set_us(end_us - 1);
            assert_eq!(conn.ints(&call), [0, 2, 0, -1, 1], "{call} {pair:?}");
            assert_eq!(conn.ints(&call), [1, 2, 0, 1, 1], "{call} {pair:?}");
            server.clock().set_us(end_us);
            assert_eq!(conn.ints(&call)[..4], [0, 2, 1, -1], "{call} {pair:?}");
        }
    }
}

#[test]
fn a_window_that_started_before_1970_is_a_window() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("1970-01-01T00:00:01"));
    // Since 21 December 1969.
    let left = unix_us("1970-01-04T00:00:00") / 1_000_000 - 1;
    assert_eq!(conn.ints("RL.WINDOW k 2 14d FIXED FROM 1970-01-04"), [0, 2, 1, -1, left]);
    assert_eq!(conn.ints("RL.WINDOW k 2 14d 0 FIXED FROM 2255-12-30")[2], 1);
    let left = unix_us("1970-02-01T00:00:00") / 1_000_000 - 1;
    assert_eq!(conn.ints("RL.WINDOW l 2 100y FIXED FROM 1970-02-01"), [0, 2, 1, -1, left]);
}

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
fn what_lapsed_unsettled_counts_in_the_window_in_which_its_lease_ended() {
    let (server, mut conn) = Server::held();
    let call = "RL.ACQUIRE k 1 1d FIXED FROM 09:00 LEASE 1000 COUNTLAPSED MS";
    for (started, held_until) in [
        ("2026-11-21T08:59:58", "2026-11-21T09:00:00"),
        ("2026-11-22T08:59:59", "2026-11-23T09:00:00"),
    ] {
        conn.cmd("DEL k");
        server.clock().set_us(unix_us(started));
        conn.cmd(call);
        server.clock().set_us(unix_us(held_until) - 1);
        assert_eq!(conn.acquire(call).numbers, [2, 1, 0, 1, 1], "{started}");
        server.clock().set_us(unix_us(held_until));
        assert_eq!(conn.acquire(call).numbers[..4], [0, 1, 0, -1], "{started}");
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
fn clock_steps_end_windows_early_or_begin_them_again() {
    let (server, mut conn) = Server::held();
    let call = "RL.WINDOW k 3 1d FIXED FROM 09:00 MS";
    server.clock().set_us(unix_us("2026-11-21T10:00:00"));
    for left in [2, 1, 0] {
        assert_eq!(conn.ints(call)[..3], [0, 3, left]);
    }
    // Back within the window: what was counted counts.
    server.clock().set_us(unix_us("2026-11-21T09:30:00"));
    assert_eq!(conn.ints(call), [1, 3, 0, 84_600_000, 84_600_000]);
    // Back over its start: they happen now, in the window before, and no call waits for longer than that one.
    server.clock().set_us(unix_us("2026-11-21T08:59:00"));
    assert_eq!(conn.ints(call), [1, 3, 0, 60_000, 60_000]);
    server.clock().set_us(unix_us("2026-11-21T09:00:00"));
    assert_eq!(conn.ints(call), [0, 3, 2, -1, 86_400_000]);
    // Forward: the window has ended.
    server.clock().set_us(unix_us("2026-11-25T08:59:59"));
    assert_eq!(conn.ints(call), [0, 3, 2, -1, 1_000]);
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

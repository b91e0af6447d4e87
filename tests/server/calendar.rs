//! `RL.WINDOW ... FIXED`: windows of the calendar, on a clock that the test holds.

use support::*;

/// Windows as `period zone`, their first instant and their end, in UTC: worked out by hand.
const WINDOWS: &[(&str, &str, &str, &str)] = &[
    ("1d", "UTC", "2026-02-28T00:00:00", "2026-03-01T00:00:00"),
    ("1d", "UTC", "2024-02-29T00:00:00", "2024-03-01T00:00:00"),
    ("1d", "Asia/Shanghai", "2026-05-31T16:00:00", "2026-06-01T16:00:00"),
    ("1d", "asia/shanghai", "2026-12-31T16:00:00", "2027-01-01T16:00:00"),
    ("1d", "+08:00", "2026-05-31T16:00:00", "2026-06-01T16:00:00"),
    ("1d", "+05:45", "2026-06-01T18:15:00", "2026-06-02T18:15:00"),
    ("1d", "-03:30", "2026-06-01T03:30:00", "2026-06-02T03:30:00"),
    ("1d", "Asia/Kathmandu", "2026-06-01T18:15:00", "2026-06-02T18:15:00"),
    // 23 and 25 hours.
    ("1d", "America/New_York", "2026-03-08T05:00:00", "2026-03-09T04:00:00"),
    ("1d", "America/New_York", "2026-11-01T04:00:00", "2026-11-02T05:00:00"),
    ("1d", "Europe/Berlin", "2026-03-28T23:00:00", "2026-03-29T22:00:00"),
    ("1d", "Europe/Berlin", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),
    // Clocks are set by half an hour here.
    ("1d", "Australia/Lord_Howe", "2026-04-04T13:00:00", "2026-04-05T13:30:00"),
    ("1d", "Australia/Lord_Howe", "2026-10-03T13:30:00", "2026-10-04T13:00:00"),
    // Clocks are set at midnight: this day begins at one o'clock.
    ("1d", "America/Havana", "2026-03-08T05:00:00", "2026-03-09T04:00:00"),
    ("1d", "Africa/Cairo", "2026-04-23T22:00:00", "2026-04-24T21:00:00"),
    ("86400", "Asia/Shanghai", "2026-05-31T16:00:00", "2026-06-01T16:00:00"),
    ("86400s", "Europe/Berlin", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),
    ("24h", "Asia/Shanghai", "2026-05-31T16:00:00", "2026-06-01T16:00:00"),
    ("604800", "UTC", "2025-12-29T00:00:00", "2026-01-05T00:00:00"),
    ("1w", "UTC", "2025-12-29T00:00:00", "2026-01-05T00:00:00"),
    ("1w", "UTC", "2020-12-28T00:00:00", "2021-01-04T00:00:00"),
    ("1w", "Europe/Berlin", "2026-03-22T23:00:00", "2026-03-29T22:00:00"),
    ("1mo", "UTC", "2024-02-01T00:00:00", "2024-03-01T00:00:00"),
    ("1mo", "Europe/Berlin", "2026-02-28T23:00:00", "2026-03-31T22:00:00"),
    ("3mo", "UTC", "2026-10-01T00:00:00", "2027-01-01T00:00:00"),
    ("6mo", "UTC", "2026-07-01T00:00:00", "2027-01-01T00:00:00"),
    ("12mo", "UTC", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
    ("1y", "UTC", "2028-01-01T00:00:00", "2029-01-01T00:00:00"),
    ("1y", "Asia/Shanghai", "2026-12-31T16:00:00", "2027-12-31T16:00:00"),
    ("1s", "UTC", "2026-06-01T12:00:59", "2026-06-01T12:01:00"),
    ("30", "UTC", "2026-06-01T12:00:30", "2026-06-01T12:01:00"),
    ("60", "UTC", "2026-06-01T12:00:00", "2026-06-01T12:01:00"),
    ("15min", "+05:45", "2026-06-01T12:15:00", "2026-06-01T12:30:00"),
    ("900", "UTC", "2026-06-01T12:45:00", "2026-06-01T13:00:00"),
    ("1h", "+05:45", "2026-06-01T12:15:00", "2026-06-01T13:15:00"),
    ("60MIN", "UTC", "2026-06-01T12:00:00", "2026-06-01T13:00:00"),
    ("6h", "Asia/Shanghai", "2026-06-01T10:00:00", "2026-06-01T16:00:00"),
    ("12h", "Europe/Berlin", "2026-03-28T23:00:00", "2026-03-29T10:00:00"),
    ("21600", "UTC", "2026-06-01T18:00:00", "2026-06-02T00:00:00"),
    // 02:00 to 03:00 comes twice on this day, and not at all on the other.
    ("1h", "Europe/Berlin", "2026-10-25T00:00:00", "2026-10-25T01:00:00"),
    ("1h", "Europe/Berlin", "2026-10-25T01:00:00", "2026-10-25T02:00:00"),
    ("1h", "Europe/Berlin", "2026-03-29T00:00:00", "2026-03-29T01:00:00"),
];

#[test]
fn windows_begin_and_end_with_the_calendars_units_to_the_microsecond() {
    let (server, mut conn) = Server::held();
    for (period, zone, start, end) in WINDOWS {
        let (start_us, end_us) = (unix_us(start), unix_us(end));
        let call = format!("RL.WINDOW k 2 {period} FIXED TZ {zone} MS");
        let long_ms = (end_us - start_us) / 1000;
        conn.cmd("FLUSHALL");
        // The last microsecond of the window before.
        server.clock().set_us(start_us - 1);
        assert_eq!(conn.ints(format!("{call} ATMOST")), [0, 2, 1, -1, 1, 1], "{call} {start}");
        assert_eq!(conn.ints(&call), [0, 2, 0, -1, 1], "{call} {start}");
        assert_eq!(conn.ints(&call), [1, 2, 0, 1, 1], "{call} {start}");
        // The first of this one.
        server.clock().set_us(start_us);
        assert_eq!(conn.ints(&call), [0, 2, 1, -1, long_ms], "{call} {start}");
        assert!((long_ms..=long_ms + 1000).contains(&conn.int("PTTL k")), "{call} {start}");
        server.clock().set_us((start_us + end_us) / 2);
        assert_eq!(conn.ints(&call)[..3], [0, 2, 0], "{call} {start}");
        let left_ms = (end_us - server.clock().now_us() + 999) / 1000;
        assert_eq!(conn.ints(&call), [1, 2, 0, left_ms, left_ms], "{call} {start}");
        // And its last.
        server.clock().set_us(end_us - 1);
        assert_eq!(conn.ints(&call), [1, 2, 0, 1, 1], "{call} {end}");
        server.clock().set_us(end_us);
        assert_eq!(conn.ints(&call)[..4], [0, 2, 1, -1], "{call} {end}");
    }
}

#[test]
fn atmost_and_countdenied_go_with_fixed() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2026-06-01T12:00:00"));
    assert_eq!(conn.ints("RL.WINDOW k 5 1h 9 ATMOST FIXED"), [0, 5, 0, -1, 3_600, 5]);
    assert_eq!(conn.ints("RL.WINDOW k 5 1h FIXED COUNTDENIED"), [1, 5, 0, 3_600, 3_600]);
    // The denied call counts too: a raised limit finds six.
    assert_eq!(conn.ints("RL.WINDOW_RO k 9 1h FIXED")[2], 3);
    server.clock().set_us(unix_us("2026-06-01T13:00:00"));
    assert_eq!(conn.ints("RL.WINDOW k 5 1h FIXED COUNTDENIED"), [0, 5, 4, -1, 3_600]);
}

#[test]
fn a_clock_that_steps_back_in_a_window_loses_nothing() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2026-06-01T12:30:00"));
    for _ in 0..3 {
        conn.cmd("RL.WINDOW k 3 1h FIXED");
        server.clock().advance_us(1_000_000);
    }
    server.clock().set_us(unix_us("2026-06-01T12:10:00"));
    assert_eq!(conn.ints("RL.WINDOW k 3 1h FIXED"), [1, 3, 0, 3_000, 3_000]);
    // Back over the start: all of it is in the hour that is now.
    server.clock().set_us(unix_us("2026-06-01T11:30:00"));
    assert_eq!(conn.ints("RL.WINDOW k 3 1h FIXED"), [1, 3, 0, 1_800, 1_800]);
    server.clock().set_us(unix_us("2026-06-01T12:00:00"));
    assert_eq!(conn.ints("RL.WINDOW k 3 1h FIXED"), [0, 3, 2, -1, 3_600]);
}

#[test]
fn a_period_that_does_not_divide_the_calendar_is_an_error_that_says_so() {
    let (_server, mut conn) = Server::held();
    let periods = "7s 45s 61s 90s 7min 90min 120min 1440min 5h 9h 48h 25h 2d 7d 30d 365d 2w 52w 5mo 7mo 24mo 2y 100y 1ms \
                   1000ms 86400000ms 86401 172800 100 2592000";
    for period in periods.split(' ') {
        assert_eq!(
            conn.err(format!("RL.WINDOW k 1 {period} FIXED")),
            "ERR FIXED must have a period of 1d, 1w, 1y, N seconds or N minutes where N divides 60, \
             Nh where N divides 24, or Nmo where N divides 12; FROM YYYY-MM-DD and FROM first take others",
            "{period}"
        );
    }
}

#[test]
fn all_offsets_and_many_zones_are_taken() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2026-06-01T00:00:00"));
    for minutes in (-1_439..=1_439_i64).step_by(7) {
        let sign = if minutes < 0 { '-' } else { '+' };
        let zone = format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60);
        let since_midnight = minutes.rem_euclid(1_440);
        let left = (1_440 - since_midnight) * 60;
        conn.cmd("DEL k");
        assert_eq!(conn.ints(format!("RL.WINDOW k 1 1d FIXED TZ {zone}"))[4], left, "{zone}");
    }
    for zone in ["Zulu", "GMT", "Etc/GMT+5", "Pacific/Chatham", "America/Argentina/Buenos_Aires"] {
        conn.cmd(format!("RL.WINDOW other 1 1d FIXED TZ {zone}"));
    }
}

#[test]
fn the_first_window_of_1970_and_the_years_after_2200_work() {
    let (server, mut conn) = Server::held();
    for (now_us, left) in [
        (1_000_000, 86_399),
        (unix_us("2200-06-01T12:00:00"), 43_200),
        (unix_us("2250-12-31T12:00:00"), 43_200),
    ] {
        server.clock().set_us(now_us);
        conn.cmd("FLUSHALL");
        assert_eq!(conn.ints("RL.WINDOW k 1 1d FIXED"), [0, 1, 0, -1, left]);
        assert_eq!(conn.ints("RL.WINDOW k 1 1d FIXED"), [1, 1, 0, left, left]);
        assert_eq!(conn.ints("RL.WINDOW s 1 1y")[0], 0);
        assert_eq!(conn.ints("RL.WINDOW s 1 1y")[0], 1);
        assert_eq!(conn.ints("RL.WINDOW_RO t 1 1y FIXED TZ Asia/Tokyo"), [0, 1, 1, -1, 0]);
    }
}

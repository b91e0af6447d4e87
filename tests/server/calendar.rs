//! `RL.WINDOW ... FIXED`: windows of the calendar, on a clock that the test holds.

use support::*;

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

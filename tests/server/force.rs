//! FORCE: what was used counts although there is not enough.

use support::*;

const MAX: i64 = i64::MAX;

#[test]
fn the_debt_is_stored_with_the_time_and_only_while_there_is_one() {
    let (server, mut conn) = Server::held();
    let tat = |seconds: i64| (START_US + seconds * 1_000_000) * 1_000;
    conn.cmd("RL.THROTTLE k 4 1 1 5 FORCE");
    assert_eq!(conn.text("GET k"), tat(5).to_string());
    conn.cmd("RL.THROTTLE k 4 1 1 3 FORCE");
    assert_eq!(conn.text("GET k"), format!("{}+3000000000", tat(8)));
    server.clock().advance_ms(1_000);
    // Every write stores the debt as it then is.
    conn.cmd("RL.THROTTLE k 4 1 1 1 FORCE");
    assert_eq!(conn.text("GET k"), format!("{}+3000000000", tat(9)));
    conn.cmd("RL.THROTTLE k 4 1 1 -3");
    assert_eq!(conn.text("GET k"), tat(6).to_string());
    // A fraction, and whole nanoseconds of debt, rounded up.
    conn.cmd("DEL k");
    conn.cmd("RL.THROTTLE k 0 3 1 2 FORCE");
    let value = conn.text("GET k");
    let (time, debt) = value.split_once('+').expect("a debt");
    let whole = (server.clock().now_us() * 1_000 + 666_666_666).to_string();
    assert!(time.starts_with(&whole), "{value}");
    assert_eq!(debt, "333333334");
}

#[test]
fn a_debt_above_100_years_is_an_error_and_changes_nothing() {
    let (_server, mut conn) = Server::held();
    // A year each.
    assert_eq!(conn.ints("RL.THROTTLE k 0 1 365d 99 FORCE")[0], 0);
    let before = conn.cmd("DUMP k");
    for quantity in [5, 1_000, MAX] {
        let error = "ERR a take must not leave a debt of more than 100 years of 365.25 days";
        conn.refuses(format!("RL.THROTTLE k 0 1 365d {quantity} FORCE"), error);
        conn.refuses(format!("RL.THROTTLE new 0 1 365d {MAX} FORCE"), error);
    }
    assert_eq!(conn.cmd("DUMP k"), before);
    assert_eq!(conn.int("EXISTS new"), 0);
}

#[test]
fn a_key_counts_up_to_the_largest_number_and_then_answers_an_error() {
    for options in ["", "BUCKETS 3", "FIXED"] {
        let (_server, mut conn) = Server::held();
        let call = |quantity: i64| format!("RL.WINDOW k 5 60 {quantity} FORCE {options}");
        assert_eq!(conn.ints(call(MAX - 3))[..4], [0, 5, 0, -1], "{options}");
        assert_eq!(conn.ints(call(3))[0], 0, "{options}");
        let before = conn.cmd("DUMP k");
        for quantity in [1, 4, MAX] {
            conn.refuses(call(quantity), "ERR a key must not count more than 9223372036854775807");
        }
        assert_eq!(conn.ints(call(0))[..3], [0, 5, 0], "{options}");
        assert_eq!(conn.cmd("DUMP k"), before, "{options}");
    }
}

#[test]
fn force_does_not_queue_behind_waiting_calls() {
    let (server, mut conn) = Server::connect();
    conn.pipeline(["RL.THROTTLE t 0 1 1h", "RL.WINDOW w 1 1h"]);
    let _waiters = [
        server.wait_in_line("RL.THROTTLE t 0 1 1h 1 BLOCK 0"),
        server.wait_in_line("RL.WINDOW w 1 1h 1 BLOCK 0"),
    ];
    assert_eq!(conn.ints("RL.THROTTLE t 0 1 1h 2 FORCE")[..4], [0, 1, 0, -1]);
    assert_eq!(conn.ints("RL.WINDOW w 1 1h 2 FORCE")[..4], [0, 1, 0, -1]);
    assert_eq!(server.waiting(), 2);
}

//! FORCE: what was used counts although there is not enough.

use support::*;

const MAX: i64 = i64::MAX;

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

//! A negative quantity on RL.WINDOW: what turned out not to count is given back.

use support::*;

#[test]
fn where_nothing_is_counted_not_one_byte_is_written() {
    let (server, mut conn) = Server::builder().aof().held();
    let nothing: [String; 0] = [];
    for options in ["", "BUCKETS 3", "FIXED"] {
        let call = format!("RL.WINDOW k 5 60 -1 {options}");
        let grown = server.aof_grows_by(|| assert_eq!(conn.ints(&call), [0, 5, 5, -1, 0]));
        assert_eq!(grown, nothing, "{options}");
    }
    // Reservations are no events, and neither is what has left.
    conn.cmd("RL.ACQUIRE k 5 60 2 ID x LEASE 600000");
    let before = conn.cmd("DUMP k");
    let grown =
        server.aof_grows_by(|| assert_eq!(conn.ints("RL.WINDOW k 5 60 -9")[..4], [0, 5, 3, -1]));
    assert_eq!((grown.as_slice(), conn.cmd("DUMP k")), (&nothing[..], before));
    assert_eq!(conn.held_ids("k"), ["x"]);
    conn.cmd("RL.WINDOW k 5 60 3");
    server.clock().advance_ms(60_000);
    assert_eq!(conn.ints("RL.WINDOW k 5 60 -9")[..4], [0, 5, 3, -1]);
    assert_eq!(conn.held_ids("k"), ["x"]);
}

#[test]
fn looking_accepts_it() {
    let (_server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 5 60 2");
    let before = conn.cmd("DUMP k");
    for quantity in [-1, -9, i64::MIN] {
        let call = format!("RL.WINDOW_RO k 5 60 {quantity}");
        assert_eq!(conn.ints(call), [0, 5, 3, -1, 60], "{quantity}");
    }
    assert_eq!(conn.cmd("DUMP k"), before);
    assert_eq!(conn.ints(format!("RL.WINDOW k 5 60 {}", i64::MIN)), [0, 5, 5, -1, 0]);
}

#[test]
fn it_never_waits_and_wakes_calls_that_do() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.WINDOW k 2 1h 2");
    let mut waiter = server.wait_in_line("RL.WINDOW k 2 1h 1 BLOCK 0");
    assert_eq!(conn.ints("RL.WINDOW k 2 1h -1 BLOCK 0")[0], 0);
    assert_eq!(limited(&waiter.recv()), 0);
    server.expect_no_waiting_calls();
}

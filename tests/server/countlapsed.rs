//! ATMOST and COUNTLAPSED of calls of RL.ACQUIRE that wait.

use std::thread::sleep;
use std::time::Duration;

use support::*;

#[test]
fn a_call_with_atmost_waits_only_while_there_is_nothing() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 5 60 3 ID a LEASE 60000");
    let granted = conn.acquire("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID b LEASE 60000");
    assert_eq!(granted.part, Some((2, 2)));
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID c LEASE 60000");
    let (mut late, id) = server.wait_with_id("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID d LEASE 60000");
    assert_eq!(conn.int("RL.RELEASE k a"), 1);
    let granted = acquired(&waiter.recv());
    assert_eq!((&granted.numbers[..3], granted.part), (&[0, 5, 0][..], Some((3, 2))));
    assert_eq!(conn.int(format!("CLIENT UNBLOCK {id}")), 1);
    let denied = acquired(&late.recv());
    assert_eq!((denied.limited(), denied.part), (2, Some((0, 2))));
    assert_eq!(denied.id, None);
}

/// The clock begins at 22:13:20.
#[test]
fn a_lapsed_reservation_holds_as_long_as_an_event_would_and_can_only_be_settled() {
    let (server, mut conn) = Server::with_held_clock();
    for (period, shape, gone_ms) in [
        ("60", "", 61_000),
        ("1min", "FIXED", 40_000),
        ("1d", "FIXED TZ Asia/Shanghai", 64_000_000),
        ("1min", "FIXED FROM first", 61_000),
    ] {
        server.at_ms(0);
        conn.cmd("DEL k");
        conn.cmd(format!("RL.ACQUIRE k 3 {period} 3 {shape} ID a LEASE 1000 COUNTLAPSED"));
        for ms in [1_000, gone_ms - 1] {
            server.at_ms(ms);
            let again = format!("RL.ACQUIRE k 3 {period} {shape} MS");
            assert_eq!(conn.acquire(&again).numbers[..4], [2, 3, 0, gone_ms - ms], "{again}");
            conn.refuses(format!("{again} ID a"), "DUPLICATE ");
            assert_eq!(conn.int("RL.RENEW k a"), 0);
            assert_eq!(conn.held("k")[0].ms_left, 0);
        }
        assert_eq!(conn.int("RL.APPLY k a 1"), 1);
        let look = format!("RL.WINDOW_RO k 3 {period} {shape}");
        assert_eq!(conn.ints(look)[2], 2, "{period} {shape}");
    }
}

#[test]
fn waiting_calls_are_woken_when_a_lapsed_reservation_is_gone_or_settled_late() {
    let (server, mut conn) = Server::connect();
    // Of 600 ms, 100 of which a busy machine may take before it is waited for.
    let (least, most) = (Duration::from_millis(480), Duration::from_millis(1_200));
    unless_stalled(Duration::from_millis(50), || {
        server.conn().cmd("DEL k");
        server.conn().cmd("RL.ACQUIRE k 1 400ms ID a LEASE 200 COUNTLAPSED");
        let mut waiter = server.wait_shortly("RL.WINDOW k 1 400ms BLOCK 0");
        let (took, reply) = time_to_reply(&mut waiter);
        assert_eq!(limited(&reply), 0);
        assert!((least..most).contains(&took), "{took:?}");
    });

    // Whoever cannot have it within ms by what is counted waits all the same: it may be given back.
    for settle in ["RL.RELEASE k b", "RL.APPLY k b 0"] {
        conn.cmd("DEL k");
        conn.cmd("RL.ACQUIRE k 1 60 ID b LEASE 1 COUNTLAPSED");
        let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 60 ID c BLOCK 30000");
        assert_eq!(conn.held("k")[0].ms_left, 0);
        assert_eq!(conn.int(settle), 1);
        assert_eq!(limited(&waiter.recv()), 0, "{settle}");
    }
    server.expect_no_waiting_calls();
}

#[test]
fn the_reservation_of_a_waiter_counts_when_it_lapses() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 60 ID a LEASE 60000");
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 60 ID b LEASE 1 COUNTLAPSED BLOCK 0 MS");
    conn.refuses("RL.ACQUIRE k 1 60 ID b", "DUPLICATE ");
    assert_eq!(conn.int("RL.RELEASE k a"), 1);
    assert_eq!(acquired(&waiter.recv()).numbers, [0, 1, 0, -1, 60_001]);
    // Past the end of b's lease, by the real clock of a server of its own.
    sleep(ms(5));
    let held = conn.held("k");
    assert_eq!((held.len(), held[0].ms_left), (1, 0));
    // A waiter that disconnects before it gets its reply gives back.
    let gone = server.wait_in_line("RL.ACQUIRE k 1 60 ID c LEASE 60000 COUNTLAPSED ATMOST BLOCK 0");
    drop(gone);
    eventually(SOON, || server.waiting() == 0);
    assert_eq!(conn.int("RL.RELEASE k b"), 1);
    assert_eq!(conn.acquire("RL.ACQUIRE k 1 60 ID d").limited(), 0);
}

//! BLOCK of RL.ALL: calls that wait for several limits, one line at a time.

use support::*;

/// A call that waits for the slot of `a` and for that of `b`.
fn both(id: &str) -> String {
    format!("RL.ALL 2 a b ACQUIRE 1 0 1 ID {id} LEASE 600000 ACQUIRE 1 0 1 ID {id} LEASE 600000 BLOCK 0")
}

/// A server whose slots `a` and `b` are held by `x` and `y`.
fn held() -> (Server, Conn) {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
    conn.cmd("RL.ACQUIRE b 1 0 1 ID y LEASE 700000");
    (server, conn)
}

/// The numbers of calls in the lines of these keys.
fn lines<const N: usize>(conn: &mut Conn, keys: [&str; N]) -> [i64; N] {
    keys.map(|key| conn.info_field(key, "waiting"))
}

#[test]
fn a_call_wakes_whichever_of_its_keys_made_the_grant_possible() {
    for order in [["a x", "b y"], ["b y", "a x"]] {
        let (server, mut conn) = held();
        let mut waiter = server.wait_in_line(both("z"));
        // In the line of the longest wait, and it holds nothing.
        assert_eq!(lines(&mut conn, ["a", "b"]), [0, 1]);
        conn.cmd(format!("RL.RELEASE {}", order[0]));
        waiter.expect_silence();
        conn.cmd(format!("RL.RELEASE {}", order[1]));
        let reply = all_reply(&waiter.recv());
        assert_eq!(reply.numbers[0], 0);
        assert_eq!([conn.held_ids("a"), conn.held_ids("b")], [["z"], ["z"]]);
        server.expect_no_waiting_calls();
    }
}

#[test]
fn a_change_that_is_no_command_of_the_module_wakes_too() {
    let (server, mut conn) = held();
    let mut waiter = server.wait_in_line(both("z"));
    conn.cmd("DEL a b");
    assert_eq!(all_reply(&waiter.recv()).numbers[0], 0);
    // A key that became another type is an error when the call would be granted.
    let mut waiter = server.wait_in_line(both("w"));
    conn.cmd("SET a v");
    conn.cmd("RL.RELEASE b z");
    assert!(error_line(&waiter.recv()).starts_with("WRONGTYPE "));
    assert_eq!(conn.held_ids("b"), [""; 0]);
    server.expect_no_waiting_calls();
}

#[test]
fn lines_of_one_key_go_on_while_a_call_over_several_waits_for_another() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.WINDOW own 1 1h 1");
    conn.cmd("RL.ACQUIRE shared 1 0 1 ID x LEASE 600000");
    // The call of an exhausted tenant waits for its own limit, not in the line that all share.
    let _exhausted = server.wait_in_line("RL.ALL 2 shared own ACQUIRE 1 0 WINDOW 1 1h 1 BLOCK 0");
    let mut other = server.wait_in_line("RL.ACQUIRE shared 1 0 1 ID y LEASE 600000 BLOCK 0");
    conn.cmd("RL.RELEASE shared x");
    assert_eq!(acquired(&other.recv()).id(), "y");
    assert_eq!(lines(&mut conn, ["shared", "own"]), [0, 1]);
}

#[test]
fn a_grant_to_a_client_that_is_gone_is_given_back_on_every_key() {
    let (server, replica) = Server::with_replica();
    let mut conn = server.conn();
    let call = "RL.ALL 3 t w a THROTTLE 2 3 1h 2 WINDOW 3 1h 2 ACQUIRE 1 0 1 LEASE 600000";
    assert_eq!(limited(&conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000")), 0);
    let mut dying = server.conn();
    let kill = format!("CLIENT KILL ID {}", dying.id());
    let mut dead = server.wait_on(dying, format!("{call} BLOCK 0"));
    let mut living = server.wait_in_line(format!("{call} BLOCK 0"));
    conn.pipeline(["RL.RELEASE a x".to_owned(), kill]);
    dead.expect_closed();
    assert_eq!(all_reply(&living.recv()).numbers[0], 0);
    // Once, by the one that lives.
    assert_eq!(conn.ints("RL.THROTTLE_RO t 2 3 1h 0")[2], 1);
    assert_eq!(conn.ints("RL.WINDOW_RO w 3 1h 0")[2], 1);
    assert_eq!(conn.held("a").len(), 1);
    for key in ["t", "w", "a"] {
        assert_in_sync(&server, &replica, key);
    }
    server.expect_no_waiting_calls();
}

#[test]
fn turns_are_taken_in_every_line_and_a_call_that_changes_lines_keeps_its_time() {
    let (server, mut conn) = held();
    let call = |by: &str| format!("RL.ACQUIRE b 1 0 1 ID {by} LEASE 700000 BLOCK 0 BY {by}");
    let mut first = server.wait_in_line(call("acme"));
    let mut moved = server.wait_in_line(format!("{} BY acme", both("m")));
    let mut tenth: Vec<_> = (0..8).map(|n| server.wait_in_line(both(&format!("t{n}")))).collect();
    let mut other = server.wait_in_line(call("other"));
    // All of RL.ALL wait for `b`, whose lease is the longer one.
    assert_eq!(lines(&mut conn, ["a", "b"]), [0, 11]);
    conn.cmd("RL.RELEASE b y");
    assert_eq!(acquired(&first.recv()).id(), "acme");
    conn.cmd("RL.RELEASE b acme");
    // The first of those without BY is next, but `a` is still held, so it waits there from now on.
    assert_eq!(acquired(&other.recv()).id(), "other");
    assert_eq!(lines(&mut conn, ["a", "b"]), [1, 8]);
    conn.cmd("RL.RELEASE b other");
    // All others have changed lines, in the order in which they came.
    assert_eq!(lines(&mut conn, ["a", "b"]), [9, 0]);
    // There `acme` has had no turn, and of equal turns the earlier arrival is first.
    conn.cmd("RL.RELEASE a x");
    assert_eq!(conn.held_ids("a"), ["m"]);
    assert_eq!(all_reply(&moved.recv()).numbers[0], 0);
    conn.transaction(["RL.RELEASE a m", "RL.RELEASE b m"]);
    assert_eq!(all_reply(&tenth.remove(0).recv()).numbers[0], 0);
}

#[test]
fn in_a_cluster_a_slot_that_moves_away_takes_the_calls_over_several_keys_along() {
    let cluster = Cluster::of(3, 0);
    let from = cluster.master_of("k");
    let to = (from + 1) % 3;
    let (first, second) = (cluster.node(from), cluster.node(to));
    let mut here = first.conn();
    let slot = here.int("CLUSTER KEYSLOT k");
    here.cmd("RL.ACQUIRE {k}a 1 0 1 ID x LEASE 600000");
    here.cmd("RL.ACQUIRE {k}b 1 0 1 ID y LEASE 700000");
    let call = both("z").replace(" a b ", " {k}a {k}b ");
    let mut waiter = first.wait_in_line(&call);
    cluster.begin_move(slot, from, to);
    cluster.move_keys(from, to, &["{k}a"]);
    // Its line's key is free here, and the other is on another node: nothing may be made of that here.
    here.cmd("RL.RELEASE {k}b y");
    waiter.expect_silence();
    assert_eq!(here.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
    cluster.end_move(slot, from, to);
    let moved = error_line(&waiter.recv());
    assert_eq!(moved, format!("MOVED {slot} 127.0.0.1:{}", second.port()));
    let mut waiter = second.wait_in_line(&call);
    second.conn().cmd("RL.RELEASE {k}a x");
    assert_eq!(all_reply(&waiter.recv()).numbers[0], 0);
}

//! AHEAD takes now what will be available within some time, and the reply says when to go on.

use support::*;

#[test]
fn whole_seconds_are_rounded_up() {
    let (_server, mut conn) = Server::held();
    let call = "RL.THROTTLE k 0 1 700ms 1 AHEAD 2000";
    assert_eq!(conn.ints(call), [0, 1, 0, -1, 1, 0]);
    assert_eq!(conn.ints(call), [0, 1, 0, -1, 2, 1]);
    assert_eq!(conn.ints(call), [0, 1, 0, -1, 3, 2]);
    assert_eq!(conn.ints(call), [1, 1, 0, 1, 3, -1]);
}

#[test]
fn quantity_0_looks_and_beyond_the_limit_is_denied_for_good() {
    let (_server, mut conn) = Server::held();
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1 0 AHEAD 5s MS"), [0, 5, 5, -1, 0, 0]);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1 6 AHEAD 60s MS"), [1, 5, 5, -1, 0, -1]);
    assert_eq!(conn.int("EXISTS k"), 0);
    conn.cmd("RL.THROTTLE k 4 1 1 5");
    let before = conn.cmd("DUMP k");
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1 0 AHEAD 5s MS"), [0, 5, 0, -1, 5_000, 0]);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1 6 AHEAD 1h MS"), [1, 5, 0, -1, 5_000, -1]);
    assert_eq!(conn.cmd("DUMP k"), before);
}

#[test]
fn while_others_wait_it_is_denied() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.THROTTLE k 0 1 1h");
    let mut waiter = server.wait_in_line("RL.THROTTLE k 0 1 1h 1 BLOCK 0");
    let answer = conn.ints("RL.THROTTLE k 0 1 1h 1 AHEAD 2h MS");
    assert_eq!((answer[0], answer[5]), (1, -1));
    assert!(answer[3] >= 1, "{answer:?}");
    conn.cmd("DEL k");
    assert_eq!(limited(&waiter.recv()), 0);
    assert_eq!(conn.ints("RL.THROTTLE k 0 1 1h 1 AHEAD 2h MS")[0], 0);
}

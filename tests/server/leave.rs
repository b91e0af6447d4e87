//! LEAVE: some is kept in reserve for others.

use support::*;

#[test]
fn a_quantity_that_exceeds_the_limit_with_leave_is_denied_for_good() {
    let (_server, mut conn) = Server::held();
    for (call, limit) in [
        ("RL.THROTTLE k 9 1 1 5 LEAVE 6", 10),
        ("RL.THROTTLE k 9 1 1 1 LEAVE 9223372036854775807", 10),
        ("RL.WINDOW k 5 60 3 LEAVE 3", 5),
        ("RL.WINDOW k 5 60 1 LEAVE 9223372036854775807 COUNTDENIED", 5),
        ("RL.WINDOW k 5 60 1 LEAVE 5 ATMOST", 5),
    ] {
        assert_eq!(conn.ints(call)[..4], [1, limit, limit, -1], "{call}");
    }
    let reply = conn.acquire("RL.ACQUIRE k 5 60 3 LEAVE 3");
    assert_eq!((reply.numbers, reply.id), ([1, 5, 5, -1, 0], None));
    // A semaphore says 1 to more than its limit, LEAVE included.
    assert_eq!(conn.acquire("RL.ACQUIRE k 5 0 3 LEAVE 3").limited(), 1);
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn a_line_is_in_the_order_of_leave_and_then_of_arrival() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 3 0 3 ID all LEASE 600000");
    let wait = |leave: i64, id: &str| {
        server
            .wait_in_line(format!("RL.ACQUIRE k 3 0 1 LEAVE {leave} ID {id} LEASE 600000 BLOCK 0"))
    };
    let mut batch = [wait(2, "batch-1"), wait(2, "batch-2")];
    let mut middle = wait(1, "middle");
    let mut important = [wait(0, "first"), wait(0, "second")];
    assert_eq!(conn.int("RL.RELEASE k all"), 1);
    // Two of the three places go to calls without LEAVE. Then not enough remains for the others.
    for (waiter, id) in important.iter_mut().zip(["first", "second"]) {
        assert_eq!(acquired(&waiter.recv()).id(), id);
    }
    server.wait_until_waiting(3);
    // A call without LEAVE does not queue behind those with one.
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 1 ID third LEASE 600000").limited(), 0);
    assert_eq!(conn.int("RL.RELEASE k first second"), 2);
    assert_eq!(acquired(&middle.recv()).id(), "middle");
    server.wait_until_waiting(2);
    assert_eq!(conn.int("RL.RELEASE k third middle"), 2);
    assert_eq!(acquired(&batch[0].recv()).id(), "batch-1");
    server.wait_until_waiting(1);
    assert_eq!(conn.int("RL.RELEASE k batch-1"), 1);
    assert_eq!(acquired(&batch[1].recv()).id(), "batch-2");
    server.expect_no_waiting_calls();
}

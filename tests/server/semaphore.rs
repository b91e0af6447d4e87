//! RL.ACQUIRE with period 0: at most limit are held at one time, and only RELEASE or the lease ends them.

use support::*;

#[test]
fn at_most_limit_are_held_at_one_time() {
    let (server, mut conn) = Server::held();
    let acquire = |lease_ms: i64| format!("RL.ACQUIRE k 3 0 LEASE {lease_ms} MS");
    let first = conn.acquire(acquire(5_000));
    assert_eq!(first.numbers, [0, 3, 2, -1, 5_000]);
    assert_eq!(conn.acquire(acquire(9_000)).numbers, [0, 3, 1, -1, 9_000]);
    assert_eq!(conn.acquire(acquire(7_000)).numbers, [0, 3, 0, -1, 9_000]);
    let denied = conn.acquire(acquire(1_000));
    assert_eq!((denied.numbers, denied.id), ([2, 3, 0, 5_000, 9_000], None));
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 2 MS").numbers, [2, 3, 0, 7_000, 9_000]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 3 MS").numbers, [2, 3, 0, 9_000, 9_000]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 4 MS").numbers, [1, 3, 0, -1, 9_000]);
    assert_eq!(conn.acquire("RL.ACQUIRE_RO k 3 0 MS").numbers, [2, 3, 0, 5_000, 9_000]);
    assert_eq!(conn.int(["RL.RELEASE", "k", &first.id()]), 1);
    assert_eq!(conn.acquire(acquire(1)).numbers, [0, 3, 0, -1, 9_000]);
    server.at_ms(1);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 0 MS").numbers, [0, 3, 1, -1, 8_999]);
    server.at_ms(9_000);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 0 MS").numbers, [0, 3, 3, -1, 0]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 3 MS").numbers, [0, 3, 0, -1, 20_000]);
}

#[test]
fn applying_a_semaphores_reservation_is_an_error() {
    let (_server, mut conn) = Server::held();
    conn.cmd("RL.ACQUIRE k 2 0 ID a");
    let dump = conn.cmd("DUMP k");
    for line in ["RL.APPLY k a", "RL.APPLY k a 0", "RL.APPLY k a 5"] {
        conn.refuses(
            line,
            "ERR the reservation is a semaphore's and must be given back with RL.RELEASE",
        );
    }
    assert_eq!(conn.cmd("DUMP k"), dump);
    assert_eq!(conn.int("RL.APPLY k nobody"), 0);
    assert_eq!(conn.int("RL.RENEW k a"), 1);
    assert_eq!(conn.int("RL.RELEASE k a"), 1);
    assert_eq!(conn.int("RL.APPLY k a"), 0);
}

#[test]
fn a_key_ends_with_its_last_holder() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.ACQUIRE k 2 0 ID a");
    conn.cmd("RL.ACQUIRE k 2 0 ID b");
    assert_eq!(conn.int("RL.RELEASE k b a"), 2);
    assert_eq!(conn.int("EXISTS k"), 0);
    conn.cmd("RL.ACQUIRE k 2 0 LEASE 1500");
    server.at_ms(2_501);
    assert_eq!(conn.int("EXISTS k"), 0);
}

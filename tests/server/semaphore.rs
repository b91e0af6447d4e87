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
fn the_newest_limit_counts() {
    let (_server, mut conn) = Server::held();
    for _ in 0..4 {
        conn.cmd("RL.ACQUIRE k 4 0");
    }
    assert_eq!(conn.acquire("RL.ACQUIRE k 2 0").numbers, [2, 2, 0, 20, 20]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 5 0").numbers, [0, 5, 0, -1, 20]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 0 0").numbers, [1, 0, 0, -1, 20]);
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

// ---- The clock ----

#[test]
fn a_clock_that_steps_back_delays_no_call_for_longer_than_a_lease() {
    let (server, mut conn) = Server::held();
    for lease_ms in [1_000, 5_000, 60_000] {
        conn.cmd(format!("RL.ACQUIRE k 3 0 ID {lease_ms} LEASE {lease_ms}"));
    }
    let left =
        |conn: &mut Conn| -> Vec<_> { conn.held("k").iter().map(|one| one.ms_left).collect() };
    // An hour back: every lease ends one lease from the call that sees it.
    server.at_ms(-3_600_000);
    assert_eq!(left(&mut conn), [1_000, 5_000, 60_000]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 MS").numbers, [2, 3, 0, 1_000, 60_000]);
    server.at_ms(-3_600_000 + 999);
    assert_eq!(left(&mut conn), [1, 4_001, 59_001]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 MS").numbers, [2, 3, 0, 1, 59_001]);
    server.at_ms(-3_600_000 + 1_000);
    assert_eq!(
        conn.acquire("RL.ACQUIRE k 3 0 ID new LEASE 2000 MS").numbers,
        [0, 3, 0, -1, 59_000]
    );
    // A little back and forth: nothing is longer than it was, and no call is allowed.
    for (ms, seen) in [
        (-3_600_000 + 500, [5_000, 60_000, 2_000]),
        (-3_600_000 + 1_500, [4_000, 59_000, 1_000]),
        (-3_600_000 + 1_000, [4_500, 59_500, 1_500]),
    ] {
        server.at_ms(ms);
        assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 MS").limited(), 2, "{ms}");
        let now: Vec<_> = left(&mut conn);
        for (now, seen) in now.iter().zip(seen) {
            assert!(*now <= seen, "{ms}: {now} of {seen}");
        }
        assert_eq!(now.len(), 3);
    }
    // A step forward ends leases early.
    server.at_ms(0);
    assert_eq!(conn.held("k"), []);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 0 3").limited(), 0);
}

#[test]
fn a_lease_that_a_step_back_lengthened_can_be_settled() {
    for (line, answer) in [("RL.RELEASE k a", 1), ("RL.RENEW k a", 1)] {
        let (server, mut conn) = Server::held();
        conn.cmd("RL.ACQUIRE k 1 0 ID a LEASE 1000");
        server.at_ms(-86_400_000);
        assert_eq!(conn.int(line), answer, "{line}");
        let after = conn.acquire("RL.ACQUIRE k 1 0 MS").numbers;
        match line {
            "RL.RENEW k a" => assert_eq!(after, [2, 1, 0, 1_000, 1_000]),
            _ => assert_eq!(after, [0, 1, 0, -1, 20_000]),
        }
    }
}

#[test]
fn events_of_a_window_and_a_step_back_go_together() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.ACQUIRE k 3 60 2 ID a LEASE 5000");
    conn.cmd("RL.APPLY k a");
    conn.cmd("RL.ACQUIRE k 3 60 ID b LEASE 5000");
    server.at_ms(-3_600_000);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 60 MS").numbers, [2, 3, 0, 5_000, 60_000]);
    server.at_ms(-3_600_000 + 5_000);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 60 2 MS").numbers, [1, 3, 1, 55_000, 55_000]);
    server.at_ms(-3_600_000 + 60_000);
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 60 3 MS").limited(), 0);
}

/// Dead reservations must not stay in a key as long as it has a live one.
#[test]
fn denied_calls_clear_away_leases_that_have_lapsed_where_many_lie() {
    const DEAD: i64 = 5_000;
    let (server, mut conn) = Server::held();
    let take = format!(
        "for i = 1, {DEAD} do redis.call('RL.ACQUIRE', KEYS[1], {DEAD}, 0, 'LEASE', 1000) end"
    );
    conn.cmd(["EVAL", &take, "1", "k"]);
    server.clock().advance_ms(1_001);
    conn.cmd("RL.ACQUIRE k 1 0 ID lives LEASE 3600000");
    let mut left = conn.int("ZCARD k");
    assert!(left > DEAD / 2, "not all in one call: {left}");
    for _ in 0..DEAD / 64 + 1 {
        assert_eq!(conn.acquire("RL.ACQUIRE k 1 0").limited(), 2);
        let now = conn.int("ZCARD k");
        assert!(now < left || left <= 64, "{now} of {left}");
        left = now;
    }
    assert!(left <= 64, "{left}");
    assert_eq!(conn.held_ids("k"), ["lives"]);
    assert_eq!(server.figure("reservations_lapsed"), DEAD + 1 - left);
}

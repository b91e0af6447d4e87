//! ATMOST and COUNTLAPSED on RL.ACQUIRE: as much as there is, and reservations that count when their lease ends unsettled.

use std::time::Duration;

use support::*;

/// The clock begins 22:13:20 UTC, 14 November 2023.
const TO_MIDNIGHT_MS: i64 = 6_400_000;

/// The ids of RL.HELD with the milliseconds that are left.
fn left(conn: &mut Conn, key: &str) -> Vec<(String, i64)> {
    let text = |one: Held| (String::from_utf8_lossy(&one.id).into_owned(), one.ms_left);
    conn.held(key).into_iter().map(text).collect()
}

// ---- ATMOST ----

#[test]
fn atmost_reserves_as_much_as_is_available_and_returns_how_many_leases_run() {
    let (server, mut conn) = Server::held();
    for period in ["60", "0"] {
        let key = format!("k{period}");
        let call = |quantity: i64, rest: &str| {
            format!("RL.ACQUIRE {key} 10 {period} {quantity} ATMOST {rest} MS")
        };
        let first = conn.acquire_part(call(7, "ID a"));
        assert_eq!(first.numbers, [0, 10, 3, -1, 20_000]);
        assert_eq!((first.id, first.granted, first.running), (Some(b"a".to_vec()), 7, 1));
        let part = conn.acquire_part(call(7, "ID b"));
        assert_eq!(part.numbers, [0, 10, 0, -1, 20_000]);
        assert_eq!((part.id, part.granted, part.running), (Some(b"b".to_vec()), 3, 2));
        let none = conn.acquire_part(call(7, "ID c"));
        assert_eq!(none.numbers, [2, 10, 0, 20_000, 20_000]);
        assert_eq!((none.id, none.granted, none.running), (None, 0, 2));
        let look = conn.acquire_part(call(0, ""));
        assert_eq!(look.numbers, [0, 10, 0, -1, 20_000]);
        assert_eq!((look.id, look.granted, look.running), (None, 0, 2));
        assert_eq!(conn.held(&key).iter().map(|one| one.quantity).collect::<Vec<_>>(), [7, 3]);
        assert_eq!(conn.int(["RL.RELEASE", &key, "b"]), 1);
        // Beyond the limit, and more than there could ever be.
        let most = conn.acquire_part(call(i64::MAX, "LEAVE 1"));
        assert_eq!((most.numbers[..3].to_vec(), most.granted), (vec![0, 10, 1], 2));
        let none = conn.acquire_part(call(1, "LEAVE 1"));
        assert_eq!((none.numbers[..3].to_vec(), none.granted), (vec![2, 10, 1], 0));
        let never = conn.acquire_part(call(1, "LEAVE 10"));
        assert_eq!((never.numbers[..4].to_vec(), never.running), (vec![1, 10, 1, -1], 2));
    }
    // What is counted denies with 1.
    assert_eq!(conn.int("RL.APPLY k60 a 10"), 1);
    let none = conn.acquire_part("RL.ACQUIRE k60 10 60 5 ATMOST MS");
    assert_eq!((none.numbers, none.granted, none.running), ([1, 10, 0, 60_000, 60_000], 0, 1));
    server.at_ms(60_000);
    let all = conn.acquire_part("RL.ACQUIRE k60 10 60 12 ATMOST MS");
    assert_eq!((all.numbers, all.granted, all.running), ([0, 10, 0, -1, 20_000], 10, 1));
    assert!(all.id.is_some_and(|id| id.len() >= 16));
    // A limit of 0 gives nothing, ever.
    let never = conn.acquire_part("RL.ACQUIRE zero 0 60 1 ATMOST");
    assert_eq!((never.numbers, never.granted, never.running), ([1, 0, 0, -1, 0], 0, 0));
    assert_eq!(conn.int("EXISTS zero"), 0);
}

#[test]
fn the_eighth_element_counts_leases_that_run_of_every_kind() {
    for others in [0, 20] {
        let (server, mut conn) = Server::held();
        let running = |conn: &mut Conn| {
            let look = conn.acquire_part("RL.ACQUIRE k 100 60 0 ATMOST");
            let denied = conn.acquire_part("RL.ACQUIRE k 0 60 1 ATMOST");
            assert_eq!((denied.granted, denied.running), (0, look.running));
            look.running - others
        };
        for other in 0..others {
            conn.cmd(format!("RL.ACQUIRE k 100 60 ID other:{other} LEASE 1d"));
        }
        assert_eq!(running(&mut conn), 0);
        conn.cmd("RL.ACQUIRE k 100 60 ID short LEASE 1000");
        conn.cmd("RL.ACQUIRE k 100 60 ID counts LEASE 2000 COUNTLAPSED");
        conn.cmd("RL.ACQUIRE k 100 0 ID place LEASE 3000");
        conn.cmd("RL.ACQUIRE k 100 60 ID settled LEASE 4000 COUNTLAPSED");
        for (ms, runs) in [(0, 4), (999, 4), (1_000, 3), (1_999, 3), (2_000, 2), (3_000, 1)] {
            server.at_ms(ms);
            assert_eq!(running(&mut conn), runs, "{ms}");
        }
        // Back again: what was not cleared away runs again.
        server.at_ms(1_500);
        assert_eq!(running(&mut conn), 3);
        assert_eq!(conn.int("RL.RENEW k counts LEASE 9000"), 1);
        assert_eq!(conn.int("RL.APPLY k settled"), 1);
        server.at_ms(3_000);
        assert_eq!(running(&mut conn), 1);
        let made = conn.acquire_part("RL.ACQUIRE k 100 60 2 ATMOST COUNTLAPSED ID last");
        assert_eq!((made.granted, made.running), (2, 2 + others));
        assert_eq!(conn.int("RL.RELEASE k counts last"), 2);
        assert_eq!(running(&mut conn), 0);
    }
}

#[test]
fn a_call_with_atmost_waits_only_while_there_is_nothing() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 5 60 3 ID a LEASE 60000");
    let part = conn.acquire_part("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID b LEASE 60000");
    assert_eq!((part.granted, part.running), (2, 2));
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID c LEASE 60000");
    let (mut late, id) = server.wait_with_id("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID d LEASE 60000");
    assert_eq!(conn.int("RL.RELEASE k a"), 1);
    let part = acquired_part(&waiter.recv());
    assert_eq!((part.numbers[..3].to_vec(), part.granted, part.running), (vec![0, 5, 0], 3, 2));
    assert_eq!(conn.int(format!("CLIENT UNBLOCK {id}")), 1);
    let denied = acquired_part(&late.recv());
    assert_eq!((denied.numbers[0], denied.granted, denied.running), (2, 0, 2));
    assert_eq!(denied.id, None);
}

#[test]
fn a_policy_that_only_shadows_answers_the_quantity_as_granted() {
    let policies = "policies s WINDOW 5 60 SHADOW; p WINDOW 5 60 BAN 1s; z WINDOW 5 0";
    let (server, mut conn) = Server::builder().module_args(policies.split(' ')).held();
    let part = conn.acquire_part("RL.ACQUIRE k @s 3 ATMOST COUNTLAPSED ID a MS");
    assert_eq!((part.numbers, part.granted, part.running), ([0, 5, 2, -1, 80_000], 3, 1));
    // It takes what there is.
    let part = conn.acquire_part("RL.ACQUIRE k @s 9 ATMOST COUNTLAPSED ID b MS");
    assert_eq!((part.numbers, part.granted, part.running), ([0, 5, 0, -1, 80_000], 9, 2));
    assert_eq!(conn.held("k").iter().map(|one| one.quantity).collect::<Vec<_>>(), [3, 2]);
    let none = conn.acquire_part("RL.ACQUIRE k @s 9 ATMOST COUNTLAPSED ID c MS");
    assert_eq!((none.numbers, none.granted, none.running), ([0, 5, 0, -1, 80_000], 9, 2));
    assert_eq!(none.id, None);
    let counts = conn.cmd("RL.POLICIES");
    let Value::Array(rows) = &counts else { panic!("{counts:?}") };
    let Value::Array(row) = &rows[1] else { panic!("{counts:?}") };
    assert_eq!(ints(&Value::Array(row[2..].to_vec())), [2, 0, 1]);

    // The policy's ban has no effect on RL.ACQUIRE, nor has COUNTLAPSED with a policy of period 0.
    conn.cmd("RL.WINDOW p @p 5");
    assert_eq!(conn.acquire_part("RL.ACQUIRE p @p 1 ATMOST MS").numbers[..4], [1, 5, 0, 60_000]);
    assert_eq!(
        conn.acquire("RL.ACQUIRE z @z 2 COUNTLAPSED ID x MS").numbers,
        [0, 5, 3, -1, 20_000]
    );
    server.at_ms(20_000);
    assert_eq!(conn.acquire("RL.ACQUIRE z @z 0 COUNTLAPSED MS").numbers, [0, 5, 5, -1, 0]);
}

// ---- COUNTLAPSED: until when it holds ----

#[test]
fn it_holds_until_an_event_at_the_end_of_its_lease_would_have_left() {
    // What is said after the limit, the lease, and when it is gone.
    for (window, lease_ms, gone_ms) in [
        ("60", 20_000, 80_000),
        ("500ms", 100, 600),
        ("60 BUCKETS 3", 20_000, 80_000),
        // Until the end of the window in which the lease ends.
        ("1min FIXED", 30_000, 40_000),
        ("1min FIXED", 39_999, 40_000),
        ("1min FIXED", 40_000, 100_000),
        ("1min FIXED", 50_000, 100_000),
        ("1d FIXED", 20_000, TO_MIDNIGHT_MS),
        ("1d FIXED TZ Asia/Shanghai", 20_000, 64_000_000),
        ("1d FIXED TZ Asia/Shanghai", 64_000_001, 64_000_000 + 86_400_000),
        ("1d FIXED FROM 22:13:30", 9_999, 10_000),
        ("1d FIXED FROM 22:13:30", 10_000, 86_410_000),
        // From the first event on: a period after the end of the lease.
        ("1min FIXED FROM first", 20_000, 80_000),
        // 30 days lie between 14 November and 14 December.
        ("1mo", 20_000, 30 * 86_400_000 + 20_000),
    ] {
        // Beside none, and where the key has an index.
        for others in [0, 9] {
            let (server, mut conn) = Server::held();
            let limit = 4 + others;
            let call = |rest: &str| {
                let mut words = window.split(' ');
                let period = words.next().unwrap();
                let shape: Vec<_> = words.collect();
                format!("RL.ACQUIRE k {limit} {period} {rest} {} MS", shape.join(" "))
            };
            for other in 0..others {
                conn.cmd(call(&format!("1 ID other:{other} LEASE 365d")));
            }
            let lease = format!("LEASE {lease_ms} COUNTLAPSED");
            let had = conn.acquire(call(&format!("4 ID a {lease}"))).numbers;
            let reset_ms = |ms: i64| if others > 0 { 365 * 86_400_000 - ms } else { gone_ms - ms };
            assert_eq!(had, [0, limit, 0, -1, reset_ms(0)], "{window} {lease_ms}");
            for ms in [0, lease_ms - 1, lease_ms, gone_ms - 1] {
                server.at_ms(ms);
                let denied = conn.acquire(call("1 ID b")).numbers;
                let wanted = [2, limit, 0, gone_ms - ms, reset_ms(ms)];
                assert_eq!(denied, wanted, "{window} {lease_ms}: {ms}");
                let held = left(&mut conn, "k");
                assert_eq!(held.len() as i64, 1 + others);
                assert_eq!(held[others as usize], ("a".into(), (lease_ms - ms).max(0)));
                conn.refuses(call("1 ID a"), "DUPLICATE ");
                assert_eq!(server.figure("reservations_lapsed"), 0);
            }
            server.clock().set_us(START_US + gone_ms * 1_000 - 1);
            assert_eq!(conn.acquire(call("1 ID b")).numbers[..4], [2, limit, 0, 1]);
            assert_eq!(conn.int("RL.RENEW k a"), 0);
            server.at_ms(gone_ms);
            assert_eq!(left(&mut conn, "k").len() as i64, others);
            assert_eq!(conn.acquire(call("4 ID a")).numbers[..4], [0, limit, 0, -1]);
            assert_eq!(server.figure("reservations_lapsed"), 1);
        }
    }
}

// ---- What else it is ----

#[test]
fn it_counts_for_max_reservations_until_it_is_gone() {
    for most in [3, 12] {
        let (server, mut conn) =
            Server::builder().module_args(["max-reservations", &most.to_string()]).held();
        for id in 0..most {
            conn.cmd(format!("RL.ACQUIRE k 99 60 ID {id} LEASE 1000 COUNTLAPSED"));
        }
        for ms in [0, 1_000, 60_999] {
            server.at_ms(ms);
            conn.refuses(
                "RL.ACQUIRE k 99 60 ID x",
                "ERR the key already holds as many reservations as ",
            );
        }
        server.at_ms(61_000);
        assert_eq!(conn.acquire("RL.ACQUIRE k 99 60 ID x").limited(), 0);
    }
}

#[test]
fn info_shows_it_until_it_is_gone() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.ACQUIRE k 9 60 3 ID a LEASE 1000 COUNTLAPSED");
    for (ms, fields) in [(0, [3, 1]), (60_999, [3, 1]), (61_000, [0, 0])] {
        server.at_ms(ms);
        assert_eq!(["held", "reservations"].map(|name| conn.info_field("k", name)), fields, "{ms}");
    }
}

#[test]
fn the_key_lives_until_it_is_gone() {
    for (period, shape, gone_ms) in
        [("60", "", 61_000), ("1min", "FIXED", 40_000), ("1d", "FIXED", TO_MIDNIGHT_MS)]
    {
        let (server, mut conn) = Server::held();
        conn.cmd(format!("RL.ACQUIRE k 9 {period} {shape} ID a LEASE 1000 COUNTLAPSED"));
        let ttl_ms = conn.int("PTTL k");
        assert!((gone_ms..=gone_ms + 1_000).contains(&ttl_ms), "{ttl_ms} for {gone_ms}");
        assert_eq!(conn.int("RL.RENEW k a LEASE 2000"), 1);
        let gone_ms = if shape.is_empty() { gone_ms + 1_000 } else { gone_ms };
        let ttl_ms = conn.int("PTTL k");
        assert!((gone_ms..=gone_ms + 1_000).contains(&ttl_ms), "{ttl_ms} for {gone_ms}");
        server.at_ms(5_000);
        assert_eq!(conn.int("RL.APPLY k a"), 1);
        let needed_ms = if shape.is_empty() { 60_000 } else { gone_ms - 5_000 };
        let ttl_ms = conn.int("PTTL k");
        assert!((needed_ms..=needed_ms + 1_000).contains(&ttl_ms), "{ttl_ms} for {needed_ms}");
    }
}

#[test]
fn a_member_has_the_end_of_the_lease_and_how_much_longer_it_holds() {
    let (server, mut conn) = Server::held();
    let members = |conn: &mut Conn| flat(&conn.cmd("ZRANGE k 0 -1"));
    conn.cmd("RL.ACQUIRE k 9 60 2 ID a COUNTLAPSED");
    assert_eq!(members(&mut conn), ["#01:a:2:20000:1700000020000000+60000000::60s"]);
    conn.cmd("DEL k");
    conn.cmd("RL.ACQUIRE k 9 60 2 ID a");
    assert_eq!(members(&mut conn), ["#01:a:2:20000:1700000020000000::60s"]);
    // What was written before there was COUNTLAPSED goes on.
    server.at_ms(20_000);
    assert_eq!(conn.int("RL.RELEASE k a"), 0);
    // What the module does not write is an error.
    conn.cmd("DEL k");
    conn.cmd("ZADD k -inf #01:a:2:20000:1700000020000000+0::60s");
    conn.refuses("RL.ACQUIRE k 9 60", "ERR the key's sorted set has an entry that ");
}

// ---- Waiting calls ----

#[test]
fn waiting_calls_are_woken_when_it_is_gone_or_settled_late() {
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
    std::thread::sleep(Duration::from_millis(5));
    let held = conn.held("k");
    assert_eq!((held.len(), held[0].ms_left), (1, 0));
    // A waiter that disconnects before it gets its reply gives back.
    let gone = server.wait_in_line("RL.ACQUIRE k 1 60 ID c LEASE 60000 COUNTLAPSED ATMOST BLOCK 0");
    drop(gone);
    eventually(SOON, || server.waiting() == 0);
    assert_eq!(conn.int("RL.RELEASE k b"), 1);
    assert_eq!(conn.acquire("RL.ACQUIRE k 1 60 ID d").limited(), 0);
}

// ---- RL.ALL, MULTI, Lua ----

#[test]
fn a_clause_of_rl_all_counts_when_it_lapses() {
    let (server, mut conn) = Server::held();
    let all = "RL.ALL 2 a b WINDOW 9 60 ACQUIRE 3 60 2 LEASE 1000 COUNTLAPSED ID x MS";
    let Value::Array(answer) = conn.cmd(all) else { panic!("no answer") };
    let Value::Array(clauses) = &answer[6] else { panic!("{answer:?}") };
    let had = acquired(&clauses[1]);
    assert_eq!((had.numbers, had.id), ([0, 3, 1, -1, 61_000], Some(b"x".to_vec())));
    server.at_ms(1_000);
    assert_eq!(left(&mut conn, "b"), [("x".into(), 0)]);
    let denied = "RL.ALL 2 a b WINDOW 9 60 ACQUIRE 3 60 2 ID y MS";
    let looked = denied.replace("RL.ALL", "RL.ALL_RO");
    for call in [denied, &looked] {
        let parts = conn.array(call);
        assert_eq!(ints(&Value::Array(parts[..6].to_vec())), [2, 3, 1, 60_000, 60_000, 2]);
    }
    let duplicate = "RL.ALL 2 a b WINDOW 9 60 ACQUIRE 3 60 1 ID x COUNTLAPSED";
    conn.refuses(duplicate, "DUPLICATE ");
    conn.refuses(duplicate.replace("RL.ALL", "RL.ALL_RO"), "DUPLICATE ");
    assert_eq!(conn.int("RL.APPLY b x 1"), 1);
    assert_eq!(limited(&conn.cmd(denied)), 0);
    // COUNTLAPSED changes nothing with _RO, and applies with SHADOW.
    let shadow = "RL.ALL 1 c ACQUIRE 3 60 3 LEASE 1000 COUNTLAPSED SHADOW ID z";
    assert_eq!(limited(&conn.cmd(shadow.replace("RL.ALL", "RL.ALL_RO"))), 0);
    assert_eq!(conn.int("EXISTS c"), 0);
    assert_eq!(limited(&conn.cmd(shadow)), 0);
    server.at_ms(61_999);
    assert_eq!(left(&mut conn, "c"), [("z".into(), 0)]);
    server.at_ms(62_000);
    assert_eq!(left(&mut conn, "c"), []);
}

#[test]
fn scripts_and_transactions_settle_it_late() {
    let (server, mut conn) = Server::held();
    let script = "local had = redis.call('RL.ACQUIRE', KEYS[1], 9, 60, 20, 'ATMOST', 'ID', 'a', \
        'COUNTLAPSED', 'LEASE', 1000, 'MS'); return {had[1], had[7], had[8], had[5]}";
    let had = conn.cmd(["EVAL", script, "1", "k"]);
    assert_eq!(ints(&had), [0, 9, 1, 61_000]);
    server.at_ms(1_000);
    let replies = conn.transaction([
        "RL.RENEW k a",
        "RL.APPLY k a 4",
        "RL.ACQUIRE k 9 60 9 ATMOST BLOCK 0 COUNTLAPSED ID b MS",
        "RL.ACQUIRE k 9 60 9 ATMOST BLOCK 0 COUNTLAPSED ID c MS",
    ]);
    assert_eq!((&replies[0], &replies[1]), (&Value::Int(0), &Value::Int(1)));
    let had = acquired_part(&replies[2]);
    assert_eq!((had.numbers, had.granted, had.running), ([0, 9, 0, -1, 80_000], 5, 1));
    let none = acquired_part(&replies[3]);
    assert_eq!((none.numbers, none.granted, none.running), ([2, 9, 0, 60_000, 80_000], 0, 1));
}

// ---- Effects ----

#[test]
fn the_effects_are_plain_commands_and_nothing_happens_at_the_end_of_a_lease() {
    let (server, mut conn) = Server::builder().aof().held();
    let lines = server.aof_grows_by(|| {
        conn.cmd("RL.ACQUIRE k 5 60 9 ATMOST ID a LEASE 1000 COUNTLAPSED");
    });
    assert!(lines.iter().all(|line| !line.contains("RL.")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("ZADD k -inf #01:a:5:")), "{lines:?}");
    server.at_ms(1_000);
    let lines = server.aof_grows_by(|| {
        assert_eq!(conn.int("RL.RENEW k a"), 0);
        assert_eq!(conn.acquire("RL.ACQUIRE k 5 60 ID b").limited(), 2);
        assert_eq!(conn.held("k").len(), 1);
    });
    assert_eq!(lines, [""; 0]);
    let lines = server.aof_grows_by(|| assert_eq!(conn.int("RL.APPLY k a 3"), 1));
    assert!(lines.iter().any(|line| line.starts_with("ZREM k #01:a:5:")), "{lines:?}");
}

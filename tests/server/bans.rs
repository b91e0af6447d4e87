//! BAN: a denial closes the key for a while, or a call with FORCE does.

use std::time::Instant;

use support::*;

/// Ten minutes in milliseconds.
const BAN: i64 = 600_000;

#[test]
fn a_ban_is_stored_in_plain_values_and_lifted_by_a_deletion() {
    let (server, mut conn) = Server::with_held_clock();
    let end_ms = (server.clock().now_us() + BAN * 1_000) / 1_000;
    for _ in 0..2 {
        conn.cmd("RL.WINDOW w 1 1s 1 BAN 10min");
        conn.cmd("RL.THROTTLE b 0 1 1s 1 BAN 10min");
    }
    assert_eq!(flat(&conn.cmd("ZRANGE w 0 0 WITHSCORES")), [&format!("!{end_ms}~{BAN}"), "-inf"]);
    assert!(conn.text("GET b").ends_with(&format!("!{end_ms}~{BAN}")), "{}", conn.text("GET b"));
    for key in ["w", "b"] {
        let ttl = conn.int(["PTTL", key]);
        assert!((BAN..=BAN + 1_000).contains(&ttl), "{key}: {ttl}");
        assert_eq!(conn.info_field(key, "ban"), BAN, "{key}");
    }
    conn.cmd("DEL w b");
    assert_eq!(conn.ints("RL.WINDOW w 1 1s")[0], 0);
    assert_eq!(conn.ints("RL.THROTTLE b 0 1 1s")[0], 0);
}

#[test]
fn applying_a_reservation_does_not_permit_another_ban() {
    let (server, mut conn) = Server::with_held_clock();
    conn.cmd("RL.ACQUIRE k 3 1min 1 LEASE 20min ID x");
    conn.cmd("RL.WINDOW k 3 1min 1");
    conn.cmd("RL.WINDOW k 1 1min 1 BAN 1s");
    server.clock().advance_ms(1_000);
    assert_eq!(conn.int("RL.APPLY k x"), 1);
    assert_eq!(conn.ints("RL.WINDOW k 1 1min 1 BAN 10min MS"), [1, 1, 0, 60_000, 60_000]);
    // A reservation is one.
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 1min 1 ID y").limited(), 0);
    assert_eq!(conn.ints("RL.WINDOW k 1 1min 1 BAN 10min MS")[3], BAN);
}

#[test]
fn the_mark_of_a_ban_stays_as_long_as_something_is_reserved() {
    let (server, mut conn) = Server::with_held_clock();
    conn.cmd("RL.ACQUIRE k 9 1min 1 LEASE 20min ID x");
    conn.cmd("RL.WINDOW k 9 1min 1");
    // The first denial bans, the second meets the mark, and the third comes after the key held nothing.
    for (lasts_ms, ban) in [(1_000, 1_000), (BAN, 0), (BAN, BAN)] {
        assert_eq!(conn.ints(format!("RL.WINDOW k 1 1min 1 BAN {lasts_ms}"))[0], 1);
        assert_eq!(conn.info_field("k", "ban"), ban);
        if ban == 0 {
            assert_eq!(conn.int("RL.RELEASE k x"), 1);
        }
        // All events leave. FORCE is no grant.
        server.clock().advance_ms(61_000);
        conn.cmd("RL.WINDOW k 1 1min 1 FORCE");
    }
}

#[test]
fn reservations_go_on_while_the_key_is_closed() {
    let (server, mut conn) = Server::with_held_clock();
    conn.cmd("RL.ACQUIRE k 3 1min 1 LEASE 20min ID x");
    conn.cmd("RL.ACQUIRE k 3 1min 1 LEASE 20min ID y");
    conn.cmd("RL.ACQUIRE k 3 1min 1 LEASE 20min ID z");
    conn.cmd("RL.APPLY k x");
    // The wait without the ban is longer here: until the reservations lapse.
    assert_eq!(conn.ints("RL.WINDOW k 1 1min 1 BAN 10min MS")[3], 1_200_000);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 1min 1 MS").numbers, [1, 9, 0, BAN, 1_200_000]);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 0 1 MS").numbers[..4], [1, 9, 0, BAN]);
    assert_eq!(conn.held("k").len(), 2);
    assert_eq!(conn.int("RL.RENEW k y"), 1);
    assert_eq!(conn.int("RL.APPLY k y"), 1);
    assert_eq!(conn.int("RL.RELEASE k z"), 1);
    assert_eq!(conn.held("k"), []);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 1min 1 MS").numbers[3], BAN);
    server.clock().advance_ms(BAN);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 1min 1 MS").limited(), 0);
}

/// From eight reservations on the module keeps an index of them, and the ban with it.
#[test]
fn a_ban_and_many_reservations_share_a_key() {
    let (server, mut conn) =
        Server::builder().module_args(["max-reservations", "20"]).with_held_clock();
    for id in 0..20 {
        conn.cmd(format!("RL.ACQUIRE k 100 1min 1 LEASE 20min ID {id}"));
    }
    conn.cmd("RL.WINDOW k 100 1min 1");
    assert_eq!(conn.ints("RL.WINDOW k 1 1min 1 BAN 10min MS")[3], 1_200_000);
    for call in ["RL.ACQUIRE_RO k 100 1min 1 MS", "RL.ACQUIRE_RO k 100 1min 1 MS"] {
        assert_eq!(conn.acquire(call).numbers[3], BAN);
    }
    assert_eq!(conn.held("k").len(), 20);
    // After a manual change the index is read again, and the ban with it.
    conn.cmd("ZREM k no");
    conn.cmd("ZADD k -1 5");
    conn.cmd("ZREM k 5");
    assert_eq!(conn.acquire("RL.ACQUIRE_RO k 100 1min 1 MS").numbers[3], BAN);
    // It is no reservation: one that goes makes room for one.
    server.clock().advance_ms(BAN);
    conn.cmd("RL.RELEASE k 7");
    assert_eq!(conn.acquire("RL.ACQUIRE k 100 1min 1 ID new").limited(), 0);
    conn.refuses("RL.ACQUIRE k 100 1min 1 ID more", "ERR the key already holds as many");
    let ids: Vec<_> = (0..20).map(|id| id.to_string()).collect();
    assert_eq!(conn.int(format!("RL.RELEASE k {}", ids.join(" "))), 19);
    assert_eq!(conn.held_ids("k"), ["new"]);
}

#[test]
fn a_ban_holds_again_where_the_clock_goes_back_before_its_end() {
    let (server, mut conn) = Server::with_held_clock();
    for (key, ask) in [("w", "RL.WINDOW w 1 1h 1"), ("b", "RL.THROTTLE b 0 1 1h 1")] {
        conn.cmd(ask);
        conn.cmd(format!("{ask} BAN 10min"));
        server.clock().advance_ms(BAN + 1_000);
        assert_eq!(conn.info_field(key, "ban"), 0);
        assert_eq!(conn.ints(ask)[0], 1);
        server.clock().advance_ms(-61_000);
        assert_eq!(conn.info_field(key, "ban"), 60_000, "{key}");
        let look = ask.replacen(' ', "_RO ", 1).replace("1h", "1ms");
        assert_eq!(conn.ints(format!("{look} MS"))[..4], [1, 1, 0, 60_000], "{look}");
    }
}

#[test]
fn waiting_calls_wait_until_the_ban_ends() {
    let (_server, mut conn) = Server::connect();
    conn.cmd("RL.WINDOW k 1 1s");
    conn.cmd("RL.WINDOW k 1 1s 1 BAN 700ms");
    // It cannot be within that time because of the ban.
    assert_eq!(conn.ints("RL.WINDOW k 9 1s 1 BLOCK 300 MS")[0], 1);
    let start = Instant::now();
    assert_eq!(conn.ints("RL.WINDOW k 9 1s 1 BLOCK 5s MS")[0], 0);
    assert!(start.elapsed() >= ms(200), "{:?}", start.elapsed());
    let mut throttle = |rest: &str| conn.ints(format!("RL.THROTTLE b 0 1 150ms {rest}"));
    throttle("1");
    assert_eq!(throttle("1 BAN 700ms MS")[0], 1);
    assert_eq!(throttle("1 BLOCK 300 MS")[0], 1);
    let start = Instant::now();
    assert_eq!(throttle("1 BLOCK 5s MS")[0], 0);
    assert!(start.elapsed() >= ms(500), "{:?}", start.elapsed());
}

#[test]
fn clauses_of_groups_that_deny_ban_their_keys() {
    let (_server, mut conn) = Server::with_held_clock();
    for key in ["{u}:a", "{u}:b", "{u}:c"] {
        assert_eq!(conn.ints(["RL.WINDOW", key, "1", "60"])[0], 0);
    }
    for (call, is_limited) in [
        // A group that is allowed bans nothing; SHADOW and looks ban nothing.
        ("RL.ALL 2 {u}:a {u}:free WINDOW 1 60 BAN 1h ELSE WINDOW 5 60", 0),
        ("RL.ALL 2 {u}:a {u}:free WINDOW 1 60 BAN 1h SHADOW WINDOW 5 60", 0),
        ("RL.ALL_RO 1 {u}:a WINDOW 1 60 BAN 1h", 1),
        // Denied by another clause: the first would be allowed.
        ("RL.ALL 2 {u}:free {u}:c WINDOW 9 60 BAN 1h WINDOW 1 60", 1),
    ] {
        assert_eq!(limited(&conn.cmd(call)), is_limited, "{call}");
        for key in ["{u}:a", "{u}:c", "{u}:free"] {
            assert_eq!(conn.info_field(key, "ban"), 0, "{call}: {key}");
        }
    }
    let denied = all_reply(&conn.cmd(
        "RL.ALL 3 {u}:a {u}:b {u}:c WINDOW 1 60 BAN 1h ELSE WINDOW 1 60 BAN 2h WINDOW 1 60 MS",
    ));
    assert_eq!(denied.clauses[0][..4], [1, 1, 0, 3_600_000]);
    assert_eq!(denied.clauses[1][..4], [1, 1, 0, 7_200_000]);
    assert_eq!(denied.clauses[2][..4], [1, 1, 0, 60_000]);
    assert_eq!(denied.numbers, [1, 1, 0, 3_600_000, 3_600_000, 1]);
    let bans = ["{u}:a", "{u}:b", "{u}:c"].map(|key| conn.info_field(key, "ban"));
    assert_eq!(bans, [3_600_000, 7_200_000, 0]);
}

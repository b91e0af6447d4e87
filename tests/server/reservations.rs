//! RL.ACQUIRE, RL.APPLY, RL.RELEASE, RL.RENEW and RL.HELD on one server: replies, ids, errors, stored values and their
//! lifetime.

use support::*;

/// A server whose clock stands, with arguments of the module, and a connection.
fn start_with<const N: usize>(args: [&str; N]) -> (Server, Conn) {
    Server::builder().module_args(args).held()
}

// ---- Reserve, then settle ----

#[test]
fn what_is_applied_counts_and_the_rest_is_given_back() {
    let (server, mut conn) = Server::held();
    let figures = || ["applied", "released"].map(|it| server.figure(&format!("reservations_{it}")));
    for (settle, counted) in
        [("RL.APPLY k a", 3), ("RL.APPLY k a 5", 5), ("RL.APPLY k a 0", 0), ("RL.RELEASE k a", 0)]
    {
        conn.cmd("DEL k");
        conn.acquire("RL.ACQUIRE k 9 60 3 ID a");
        let [mut applied, mut released] = figures();
        assert_eq!(conn.int(settle), 1, "{settle}");
        *(if counted > 0 { &mut applied } else { &mut released }) += 1;
        assert_eq!(figures(), [applied, released], "{settle}");
        assert_eq!(conn.int(settle), 0, "{settle}");
        assert_eq!(conn.int("EXISTS k"), i64::from(counted > 0), "{settle}");
        assert_eq!(conn.ints("RL.WINDOW_RO k 9 60")[2], 9 - counted, "{settle}");
    }
    conn.acquire("RL.ACQUIRE s 2 0 ID a");
    conn.refuses("RL.APPLY s a", "ERR the reservation is a semaphore's and must be given back");
    assert_eq!(conn.int("RL.RELEASE s a"), 1);
}

#[test]
fn a_reservation_with_a_long_zone_and_an_anchor_stays_small() {
    let (_server, mut conn) = Server::connect();
    conn.acquire("RL.ACQUIRE a 3 1mo FIXED FROM 15@12:00 TZ Europe/Berlin");
    let encoding = conn.text("OBJECT ENCODING a");
    assert!(["listpack", "ziplist"].contains(&encoding.as_str()), "{encoding}");
}

/// The TTL did not change while an event was in the future, and the key expired before the lease.
#[test]
fn a_renewed_lease_keeps_a_key_with_events_from_the_future() {
    for (period, shape) in [("10", ""), ("1min", "FIXED")] {
        let (server, mut conn) = Server::held();
        server.at_ms(50_000);
        conn.cmd(format!("RL.WINDOW k 5 {period} {shape}"));
        conn.cmd(format!("RL.ACQUIRE k 5 {period} {shape} ID a LEASE 1000"));
        server.at_ms(30_000);
        assert_eq!(conn.int("RL.RENEW k a LEASE 5000"), 1);
        // The event may count until it leaves, wherever the clock goes.
        let needed_ms = if shape.is_empty() { 30_000 } else { 70_000 };
        let ttl_ms = conn.int("PTTL k");
        assert!((needed_ms..=needed_ms + 1_000).contains(&ttl_ms), "{ttl_ms}");
        assert_eq!(conn.int("RL.RENEW k a LEASE 100000"), 1);
        let ttl_ms = conn.int("PTTL k");
        assert!((100_000..=101_000).contains(&ttl_ms), "{ttl_ms}");
    }
}

/// The TTL became so short that the key expired before a lease from the future that had not been rewritten.
#[test]
fn a_renewed_lease_keeps_a_key_with_leases_from_the_future() {
    for others in [0, 9] {
        let (server, mut conn) = Server::held();
        server.at_ms(10_000);
        for id in 0..=others {
            conn.cmd(format!("RL.ACQUIRE k 20 0 ID {id} LEASE 9000"));
        }
        conn.cmd("RL.ACQUIRE k 20 0 ID long LEASE 90000");
        server.at_ms(5_000);
        assert_eq!(conn.int("RL.RENEW k long LEASE 1"), 1);
        let ttl_ms = conn.int("PTTL k");
        assert!((14_000..=15_000).contains(&ttl_ms), "{ttl_ms}");
        server.at_ms(9_999);
        assert_eq!(conn.held("k").len() as i64, 1 + others);
    }
}

#[test]
fn looking_changes_nothing() {
    let (server, mut conn) = Server::held();
    assert_eq!(conn.acquire("RL.ACQUIRE k 5 60 0 ID a"), conn.acquire("RL.ACQUIRE_RO k 5 60 0"));
    assert_eq!(conn.acquire("RL.ACQUIRE_RO k 5 60").numbers, [0, 5, 5, -1, 0]);
    assert_eq!(conn.int("DBSIZE"), 0);
    conn.cmd("RL.ACQUIRE k 5 60 ID a");
    let before = conn.dumped("k");
    // Not even after the clock was set back, when a call may write corrections.
    server.clock().advance_ms(-30_000);
    for line in
        ["RL.ACQUIRE k 5 60 0", "RL.ACQUIRE_RO k 5 60 7", "RL.ACQUIRE k 5 60 6", "RL.HELD k"]
    {
        conn.cmd(line);
    }
    server.clock().set_us(START_US);
    assert_eq!(conn.dumped("k"), before);
}

#[test]
fn a_lease_is_as_long_as_the_setting_by_default() {
    let (server, mut conn) = start_with(["lease", "1234"]);
    conn.cmd("RL.ACQUIRE k 2 60 ID a");
    conn.cmd("RL.ACQUIRE k 2 60 ID b LEASE 99");
    if server.version().is_from(7, 0) {
        assert_eq!(conn.text("CONFIG SET ratelimit.lease 50"), "OK");
        assert_eq!(conn.acquire("RL.ACQUIRE other 2 60").numbers[4], 1);
    }
    assert_eq!(conn.int("RL.RENEW k a"), 1);
    let left: Vec<_> = conn.held("k").iter().map(|one| one.ms_left).collect();
    assert_eq!(left, [1_234, 99]);
}

// ---- Ids ----

#[test]
fn an_id_may_be_any_1_to_64_bytes() {
    let (_server, mut conn) = Server::held();
    let odd: Vec<Vec<u8>> = vec![
        b"\0".to_vec(),
        b"\xff".to_vec(),
        b":".to_vec(),
        b";".to_vec(),
        b"0".to_vec(),
        b"inf".to_vec(),
        b"[a".to_vec(),
        b"a b\r\n".to_vec(),
        b"a:1:2:3::-".to_vec(),
        vec![0; 64],
        vec![0xff; 64],
        vec![b':'; 64],
        vec![b';'; 63],
        (0..64).collect(),
        (192..=255).collect(),
    ];
    for id in &odd {
        let acquire = [&b"RL.ACQUIRE"[..], b"k", b"100", b"60", b"2", b"ID", id];
        assert_eq!(conn.acquire(acquire).id.as_ref(), Some(id));
        conn.refuses(acquire, "DUPLICATE ");
    }
    let held: Vec<_> = conn.held("k").into_iter().map(|one| one.id).collect();
    assert_eq!(held, odd);
    for (number, id) in odd.iter().enumerate() {
        assert_eq!(conn.int([&b"RL.RENEW"[..], b"k", id]), 1);
        let settle = if number % 2 == 0 { &b"RL.APPLY"[..] } else { b"RL.RELEASE" };
        assert_eq!(conn.int([settle, b"k", id]), 1);
        assert_eq!(conn.int([settle, b"k", id]), 0);
        assert_eq!(conn.held("k").len(), odd.len() - number - 1);
    }
    assert_eq!(conn.ints("RL.WINDOW k 100 60 0")[2], 100 - 2 * 8);
    let before = conn.dumped("k");
    for id in [&b""[..], &[b'a'; 65], &[b'a'; 1000]] {
        let error = "ERR an id must have 1 to 64 bytes";
        conn.refuses([&b"RL.ACQUIRE"[..], b"k", b"100", b"60", b"ID", id], error);
        conn.refuses([&b"RL.APPLY"[..], b"k", id], error);
        conn.refuses([&b"RL.APPLY"[..], b"k", id, b"1"], error);
        conn.refuses([&b"RL.RELEASE"[..], b"k", b"a", id], error);
        conn.refuses([&b"RL.RENEW"[..], b"k", id], error);
    }
    assert_eq!(conn.dumped("k"), before);
}

#[test]
fn a_thousand_ids_are_released_in_one_call() {
    let (server, mut conn) = Server::held();
    let name = |number: i32| format!("job-{number}");
    conn.pipeline((0..1_000).map(|at| format!("RL.ACQUIRE k 2000 60 ID {}", name(at))));
    let words = |range: std::ops::Range<i32>| {
        let head = ["RL.RELEASE".to_owned(), "k".to_owned()];
        head.into_iter().chain(range.map(name)).collect::<Vec<_>>()
    };
    conn.cmd("RL.ACQUIRE k 2000 60 ID stays");
    // Some are unknown, all are named twice.
    let mut twice = words(0..1_010);
    twice.extend(words(0..1_010).split_off(2));
    assert_eq!(conn.int(&twice), 1_000);
    assert_eq!(conn.held_ids("k"), ["stays"]);
    assert_eq!(conn.int(&twice), 0);
    assert_eq!(conn.int("RL.RELEASE k stays stays stays"), 1);
    assert_eq!(conn.int("EXISTS k"), 0);
    assert_eq!(server.figure("reservations_released"), 1001);
}

#[test]
fn an_id_that_is_held_is_a_duplicate_whatever_else_is_asked() {
    let (server, mut conn) = start_with(["max-reservations", "1"]);
    conn.cmd("RL.ACQUIRE k 2 60 ID a LEASE 30000");
    conn.cmd("RL.WINDOW k 2 60");
    let before = conn.dumped("k");
    for line in [
        "RL.ACQUIRE k 2 60 ID a", "RL.ACQUIRE k 2 60 0 ID a", "RL.ACQUIRE k 2 60 9 ID a",
        "RL.ACQUIRE k 0 60 ID a", "RL.ACQUIRE k 9 60 ID a LEASE 1",
        "RL.ACQUIRE k 9 1d FIXED ID a MS", "RL.ACQUIRE k 9 0 ID a", "RL.ACQUIRE k 9 0 0 ID a",
    ] {
        conn.refuses(line, "DUPLICATE ");
    }
    assert_eq!(conn.dumped("k"), before);
    server.clock().advance_ms(-10_000);
    conn.refuses("RL.ACQUIRE k 2 60 ID a", "DUPLICATE ");
    server.clock().set_us(START_US);
    assert_eq!(conn.dumped("k"), before);
}

#[test]
fn ids_from_the_server_are_16_characters_and_unique() {
    let (_server, mut conn) = Server::held();
    let keys = (0..100).flat_map(|key| [key; 100]);
    let replies = conn.pipeline(keys.map(|key| format!("RL.ACQUIRE k{key} 100 0")));
    let mut ids: Vec<_> = replies.iter().map(|reply| acquired(reply).id()).collect();
    assert!(ids.iter().all(|id| id.len() == 16), "{:?}", &ids[..3]);
    let plain =
        |id: &String| id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    assert!(ids.iter().all(plain), "{:?}", &ids[..3]);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 10_000);
}

#[test]
fn a_key_holds_no_more_reservations_than_allowed() {
    let (server, mut conn) = start_with(["max-reservations", "3"]);
    for lease_ms in [1_000, 2_000, 3_000] {
        conn.cmd(format!("RL.ACQUIRE k 9 60 ID {lease_ms} LEASE {lease_ms}"));
    }
    let before = conn.dumped("k");
    let full =
        "ERR the key already holds as many reservations as ratelimit.max-reservations allows";
    conn.refuses("RL.ACQUIRE k 9 60", full);
    assert_eq!(conn.dumped("k"), before);
    // What would be denied anyway is, and looking always works.
    assert_eq!(conn.acquire("RL.ACQUIRE k 3 60").limited(), 2);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 60 0").limited(), 0);
    assert_eq!(conn.int("RL.RENEW k 1000"), 1);
    assert_eq!(conn.ints("RL.WINDOW k 9 60")[0], 0);
    server.at_ms(1_000);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 60 ID next").limited(), 0);
    conn.refuses("RL.ACQUIRE k 9 60", full);
    assert_eq!(conn.acquire("RL.ACQUIRE other 9 60").limited(), 0);
    assert_eq!(conn.int("RL.RELEASE k next"), 1);
    assert_eq!(conn.acquire("RL.ACQUIRE k 9 60").limited(), 0);
}

// ---- Memory, time to live, replication, INFO ----

#[test]
fn settling_never_makes_a_key_and_answers_of_0_write_nothing() {
    let (server, mut conn) = Server::builder().aof().held();
    conn.cmd("RL.ACQUIRE k 5 60 ID a LEASE 1000");
    server.at_ms(1_000);
    let before = conn.dumped("k");
    let calls = [
        "APPLY k a", "APPLY k a 0", "APPLY k a 3", "RELEASE k a b", "RENEW k a",
        "RENEW k a LEASE 9",
    ];
    let written = server.aof_grows_by(|| {
        for call in calls {
            assert_eq!(conn.int(format!("RL.{call}")), 0, "{call}");
            assert_eq!(conn.int(format!("RL.{}", call.replace(" k ", " nokey "))), 0, "{call}");
        }
    });
    assert_eq!(written, [""; 0]);
    assert_eq!(conn.dumped("k"), before);
    assert_eq!(conn.int("EXISTS nokey"), 0);
}

#[test]
fn denied_calls_and_looks_write_nothing() {
    let (server, mut conn) = Server::builder().aof().held();
    conn.cmd("RL.ACQUIRE k 2 60 2 ID a LEASE 50000");
    let written = server.aof_grows_by(|| {
        for ms in [0, 1_000, 40_000] {
            server.at_ms(ms);
            for line in [
                "RL.ACQUIRE k 2 60", "RL.ACQUIRE k 2 60 9", "RL.ACQUIRE k 2 60 0",
                "RL.ACQUIRE_RO k 2 60", "RL.ACQUIRE k 2 60 ID a", "RL.ACQUIRE k 2 60 ID b",
                "RL.HELD k",
            ] {
                conn.cmd(line);
            }
        }
    });
    assert_eq!(written, [""; 0]);
}

#[test]
fn info_counts_what_became_of_reservations() {
    let (server, mut conn) = Server::held();
    let info = |name: &str| server.info(&format!("ratelimit_reservations_{name}")).unwrap();
    for (id, lease_ms) in [("a", 9_000), ("b", 9_000), ("c", 9_000), ("d", 10), ("e", 10)] {
        conn.cmd(format!("RL.ACQUIRE k 9 60 ID {id} LEASE {lease_ms}"));
    }
    conn.cmd("RL.APPLY k a");
    conn.cmd("RL.APPLY k nobody");
    conn.cmd("RL.RELEASE k b c nobody");
    assert_eq!(
        (info("applied"), info("released"), info("lapsed")),
        ("1".into(), "2".into(), "0".into())
    );
    server.at_ms(10);
    conn.cmd("RL.ACQUIRE k 9 60");
    assert_eq!(info("lapsed"), "2");
    let command = |name: &str| server.info(&format!("ratelimit_{name}")).unwrap();
    assert_eq!((command("acquire_allowed"), command("acquire_denied")), ("6".into(), "0".into()));
    conn.cmd("RL.ACQUIRE k 0 60");
    conn.cmd("RL.ACQUIRE k x 60");
    assert_eq!((command("acquire_denied"), command("acquire_errors")), ("1".into(), "1".into()));
}

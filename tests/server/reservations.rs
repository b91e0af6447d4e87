//! RL.ACQUIRE, RL.APPLY, RL.RELEASE, RL.RENEW and RL.HELD on one server: replies, ids, errors, stored values and their
//! lifetime.

use support::*;

// ---- Reserve, then settle ----

#[test]
fn an_applied_quantity_counts_and_the_rest_is_given_back() {
    let (server, mut conn) = Server::with_held_clock();
    let figures =
        || ["applied", "released"].map(|it| server.info_ratelimit(&format!("reservations_{it}")));
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

/// The event may count until it leaves, wherever the clock goes.
#[test]
fn a_renewed_lease_keeps_a_key_with_events_from_the_future() {
    for (window, needed_ms) in [("5 10", 30_000), ("5 1min FIXED", 70_000)] {
        let (server, mut conn) = Server::with_held_clock();
        server.at_ms(50_000);
        conn.cmd(format!("RL.WINDOW k {window}"));
        conn.cmd(format!("RL.ACQUIRE k {window} ID a LEASE 1000"));
        server.at_ms(30_000);
        for (lease_ms, needed_ms) in [(5_000, needed_ms), (100_000, 100_000)] {
            assert_eq!(conn.int(format!("RL.RENEW k a LEASE {lease_ms}")), 1);
            let ttl_ms = conn.int("PTTL k");
            assert!((needed_ms..=needed_ms + 1_000).contains(&ttl_ms), "{window}: {ttl_ms}");
        }
    }
}

#[test]
fn a_lease_is_as_long_as_the_setting_by_default() {
    let (server, mut conn) = Server::builder().module_args(["lease", "1234"]).with_held_clock();
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
    let (_server, mut conn) = Server::with_held_clock();
    let odd: Vec<Vec<u8>> = vec![
        b"\0".to_vec(),
        b":".to_vec(),
        b"inf".to_vec(),
        b"a b\r\n".to_vec(),
        b"a:1:2:3::-".to_vec(),
        vec![0; 64],
        vec![0xff; 64],
        vec![b':'; 64],
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
    assert_eq!(conn.ints("RL.WINDOW k 100 60 0")[2], 100 - 2 * 5);
}

#[test]
fn ids_from_the_server_are_16_characters_and_unique() {
    let (_server, mut conn) = Server::with_held_clock();
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
fn settling_never_makes_a_key_and_answers_of_0_write_nothing() {
    let (server, mut conn) = Server::builder().aof().with_held_clock();
    conn.cmd("RL.ACQUIRE k 5 60 ID a LEASE 1000");
    server.at_ms(1_000);
    let written = server.aof_grows_by(|| {
        for call in ["APPLY k a", "APPLY k a 0", "APPLY k a 3", "RELEASE k a b", "RENEW k a"] {
            for key in [" k ", " none "] {
                assert_eq!(conn.int(format!("RL.{}", call.replace(" k ", key))), 0, "{call}");
            }
        }
    });
    assert_eq!(written, [""; 0]);
    // A lease that has lapsed is counted when a call drops it.
    assert_eq!(server.info_ratelimit("reservations_lapsed"), 0);
    conn.acquire("RL.ACQUIRE k 5 60");
    assert_eq!(server.info_ratelimit("reservations_lapsed"), 1);
}

//! BLOCK: no call is granted anything while the server would refuse or hold up the same call.

use std::cell::Cell;
use std::thread::sleep;
use std::time::Instant;

use support::*;

/// Four calls that wait for what comes free by itself after a second, and three whose time is up before the master accepts
/// writes again. `refuse` and `accept` tell it to refuse or hold up writes and to accept them. A call that is not held up is
/// answered `code` meanwhile.
#[track_caller]
fn nothing_is_granted_while(
    code: Option<&str>,
    refuse: impl FnOnce(&Server, &Server, &mut Conn),
    accept: impl FnOnce(&mut Conn),
) {
    let (server, replica) = Server::with_replica();
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE a 1 0 1 ID holder LEASE 1000");
    conn.cmd("RL.WINDOW w 1 1s");
    conn.cmd("RL.THROTTLE t 0 1 1s");
    conn.cmd("RL.ACQUIRE f 1 1h 1 ID z LEASE 600000");
    conn.cmd("RL.ALL 2 v u WINDOW 1 1s THROTTLE 0 1 1s");
    conn.cmd("RL.ACQUIRE g 1 1h 1 ID z LEASE 600000");
    let waits = [
        "RL.ACQUIRE a 1 0 1 ID x LEASE 600000 BLOCK 0",
        "RL.WINDOW w 1 1h 1 BLOCK 0",
        "RL.THROTTLE t 0 1 1h 1 BLOCK 0",
        "RL.ALL 2 v u WINDOW 1 1h THROTTLE 0 1 1h BLOCK 0",
    ];
    let mut line = waits.map(|call| server.wait_shortly(call));
    let mut behind = server.wait_shortly("RL.ACQUIRE a 1 0 1 BLOCK 1500 MS");
    // Their denials count nothing.
    let counting = "RL.ALL 2 h g WINDOW 1000 1h 1 COUNTDENIED ACQUIRE 1 1h 1 BLOCK 1500 MS";
    let mut counted = server.wait_shortly("RL.WINDOW f 1 1h 1 COUNTDENIED BLOCK 1500 MS");
    let mut counted_in_all = server.wait_shortly(counting);
    refuse(&server, &replica, &mut conn);
    let begin = Instant::now();
    while begin.elapsed() < ms(1_200) {
        for waiter in &mut line {
            assert!(waiter.silent_for(ms(10)), "granted while writes are refused");
        }
    }
    if let Some(code) = code {
        let refused = conn.err("RL.WINDOW other 1 1h");
        assert!(refused.starts_with(code), "{refused}");
    }
    // Time is up all the same.
    assert_eq!(limited(&behind.recv()), 2);
    assert_eq!(limited(&counted.recv()), 1);
    assert_eq!(limited(&counted_in_all.recv()), 2);
    for waiter in &mut line {
        assert!(waiter.silent_for(ms(1)), "granted while writes are refused");
    }
    accept(&mut conn);
    for waiter in &mut line {
        assert!(!waiter.silent_for(SOON), "not granted after writes are accepted again");
        assert_eq!(limited(&waiter.recv()), 0);
    }
    // One is reserved and nothing is counted.
    assert_eq!(conn.ints("RL.WINDOW_RO f 1000 1h 0")[2], 999);
    assert_eq!(conn.ints("RL.WINDOW_RO h 1000 1h 0")[2], 1000);
    assert_eq!(conn.held_ids("a"), ["x"]);
    server.expect_no_waiting_calls();
    for key in ["a", "w", "t", "v", "u"] {
        assert_in_sync(&server, &replica, key);
    }
}

#[test]
fn a_waiter_waits_on_while_replicas_are_missing() {
    if Version::under_test().lacks("the check of RM_Call for replicas", (7, 0)) {
        return;
    }
    nothing_is_granted_while(
        Some("NOREPLICAS"),
        |_, _, conn| assert_eq!(conn.text("CONFIG SET min-replicas-to-write 2"), "OK"),
        |conn| assert_eq!(conn.text("CONFIG SET min-replicas-to-write 0"), "OK"),
    );
}

#[test]
fn a_waiter_waits_on_after_a_failed_save() {
    if Version::under_test().lacks("the check of RM_Call for the disk", (7, 0)) {
        return;
    }
    nothing_is_granted_while(
        Some("MISCONF"),
        |server, _, conn| {
            assert_eq!(conn.text(["CONFIG", "SET", "save", "3600 1000000"]), "OK");
            // A directory where the file should be.
            std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
            conn.cmd("BGSAVE");
            eventually(SOON, || server.info("rdb_last_bgsave_status").as_deref() == Some("err"));
        },
        |conn| assert_eq!(conn.text("CONFIG SET stop-writes-on-bgsave-error no"), "OK"),
    );
}

#[test]
fn a_waiter_waits_on_while_memory_is_short() {
    nothing_is_granted_while(
        Some("OOM"),
        |_, _, conn| assert_eq!(conn.text("CONFIG SET maxmemory 1"), "OK"),
        |conn| assert_eq!(conn.text("CONFIG SET maxmemory 0"), "OK"),
    );
}

#[test]
fn a_waiter_waits_on_while_writes_are_paused() {
    nothing_is_granted_while(
        None,
        |_, _, conn| assert_eq!(conn.text("CLIENT PAUSE 60000 WRITE"), "OK"),
        |conn| assert_eq!(conn.text("CLIENT UNPAUSE"), "OK"),
    );
}

#[test]
fn a_waiter_waits_on_while_all_clients_are_paused() {
    nothing_is_granted_while(
        None,
        |_, _, conn| assert_eq!(conn.text("CLIENT PAUSE 3000 ALL"), "OK"),
        |_| {},
    );
}

#[test]
fn a_waiter_waits_on_until_a_failover_is_called_off() {
    let frozen = Cell::new(None);
    nothing_is_granted_while(
        None,
        |_, replica, conn| {
            // It never catches up.
            frozen.set(Some(replica.freeze()));
            assert_eq!(conn.text("FAILOVER"), "OK");
        },
        |conn| {
            assert_eq!(conn.text("FAILOVER ABORT"), "OK");
            drop(frozen.take());
        },
    );
}

#[test]
fn a_client_that_disconnects_during_a_pause_leaves_the_others_in_line() {
    let (master, replica) = Server::with_replica();
    let mut conn = master.conn();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let (first, first_id) = master.wait_with_id(waits("a"));
    let second = master.wait_in_line(waits("b"));
    let mut third = master.wait_in_line(waits("c"));
    let (mut fourth, fourth_id) = master.wait_with_id(waits("d"));
    conn.pipeline(["RL.RENEW k holder LEASE 100", "CLIENT PAUSE 60000 WRITE"]);
    // Past the end of the lease, which a timer watches in real time.
    sleep(ms(200));
    drop(second);
    conn.cmd(format!("CLIENT KILL ID {first_id}"));
    drop(first);
    conn.cmd(format!("CLIENT UNBLOCK {fourth_id}"));
    assert_eq!(limited(&fourth.recv()), 2);
    master.wait_until_waiting(1);
    master.let_timers_fire();
    conn.cmd("CLIENT UNPAUSE");
    assert_eq!(acquired(&third.recv()).id(), "c");
    assert_in_sync(&master, &replica, "k");
}

#[test]
fn giving_back_works_when_memory_is_short_and_wakes_waiting_calls_when_it_is_not() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    conn.cmd("RL.ACQUIRE w 2 1h 2 ID holder LEASE 600000");
    let mut released = server.wait_in_line("RL.ACQUIRE k 1 0 1 ID x BLOCK 0 LEASE 600000");
    let mut applied = server.wait_in_line("RL.WINDOW w 2 1h 1 BLOCK 0");
    assert_eq!(conn.text("CONFIG SET maxmemory 1"), "OK");
    assert_eq!(conn.int("RL.RELEASE k holder"), 1);
    assert_eq!(conn.int("RL.APPLY w holder 1"), 1);
    assert!(released.silent_for(ms(300)) && applied.silent_for(ms(1)));
    assert_eq!(server.waiting(), 2);
    assert_eq!(conn.held_ids("k"), Vec::<String>::new());
    assert_eq!(conn.text("CONFIG SET maxmemory 0"), "OK");
    assert_eq!(acquired(&released.recv()).id(), "x");
    assert_eq!(limited(&applied.recv()), 0);
}

#[test]
fn waiters_are_granted_while_the_server_evicts_keys() {
    let (server, mut conn) = Server::builder().config("maxmemory-policy allkeys-random").connect();
    let used: u64 = server.info("used_memory").unwrap().parse().unwrap();
    conn.cmd(format!("CONFIG SET maxmemory {}", used + 3_000_000));
    let fill = "for i = 1, 40 do redis.call('SET', i .. ARGV[1], string.rep('x', 100000)) end";
    conn.cmd(["EVAL", fill, "0", "a"]);
    assert_eq!(limited(&conn.cmd("RL.THROTTLE k 0 1 200ms")), 0);
    let mut waiter = server.conn();
    waiter.send("RL.THROTTLE k 0 1 200ms 1 BLOCK 0");
    // As much over the limit as a command left it.
    conn.cmd(["EVAL", fill, "0", "b"]);
    assert!(!waiter.silent_for(SOON));
    assert_eq!(limited(&waiter.recv()), 0);
}

#[test]
fn a_waiter_waits_on_while_the_server_cannot_evict_enough() {
    let (server, mut conn) = Server::builder().config("maxmemory-policy volatile-lru").connect();
    if server.version().lacks("the check of RM_Call for memory", (7, 0)) {
        return;
    }
    assert_eq!(limited(&conn.cmd("RL.THROTTLE k 0 1 1h")), 0);
    let mut waiter = server.wait_in_line("RL.THROTTLE k 0 1 1h 1 BLOCK 0");
    // Before the second command the server evicts the key, which is not enough.
    conn.pipeline(["CONFIG SET maxmemory 1", "PING"]);
    assert_eq!(conn.int("EXISTS k"), 0);
    waiter.expect_silence();
    conn.refuses("RL.THROTTLE other 0 1 1h", "OOM");
    conn.cmd("CONFIG SET maxmemory 0");
    assert_eq!(limited(&waiter.recv()), 0);
}

/// The replies to the calls that the server stops blocking when the cluster goes down, shortly before each of them would be
/// granted. `None` if the machine was too slow for that.
fn replies_when_the_cluster_goes_down(reads: &str) -> Option<Vec<Value>> {
    let config = format!("cluster-allow-reads-when-down {reads}");
    let (server, mut conn) = Server::builder().cluster().config(config).connect();
    // The server visits all its clients once a second, so with idle ones in between it stops blocking one of the three late.
    let mut idle = Vec::new();
    let calls =
        ["RL.THROTTLE {k}t 0 1 500ms", "RL.WINDOW {k}w 1 500ms", "RL.ACQUIRE {k}a 1 0 1 LEASE 500"];
    let mut waiters = calls.map(|call| {
        assert_eq!(limited(&conn.cmd(call)), 0);
        let call = call.replace("500ms", "500ms 1");
        idle.extend((0..50).map(|_| server.conn()));
        server.wait_shortly(format!("{call} BLOCK 0"))
    });
    if server.waiting() < 3 {
        return None;
    }
    let lost = i64::from(conn.int("CLUSTER KEYSLOT {k}") == 0);
    assert_eq!(conn.text(format!("CLUSTER DELSLOTS {lost}")), "OK");
    eventually(SOON, || conn.text("CLUSTER INFO").contains("cluster_state:fail"));
    if server.info_ratelimit("waited_granted") > 0 {
        return None;
    }
    conn.refuses("RL.WINDOW {k}w 1 500ms", "CLUSTERDOWN ");
    // Within a second the server stops blocking them. It does so by a timer, which is not held with the clock.
    sleep(ms(1_500));
    let replies = waiters.iter_mut().filter_map(|waiter| match waiter.silent_for(ms(1)) {
        true => None,
        false => Some(waiter.recv()),
    });
    let replies: Vec<_> = replies.collect();
    assert_eq!(server.info_ratelimit("waited_granted"), 0, "{replies:?}");
    drop(idle);
    Some(replies)
}

#[test]
fn while_the_cluster_is_down_no_waiting_call_is_granted_even_if_reads_are_allowed() {
    for reads in ["yes", "no"] {
        let replies = (0..10).find_map(|_| replies_when_the_cluster_goes_down(reads));
        let replies = replies.expect("a cluster that goes down within 500 ms");
        for reply in &replies {
            assert_refused(reply, "CLUSTERDOWN ", &format!("a call that waited, reads {reads}"));
        }
    }
}

// ---- What the server counts ----

/// A server on which OBJECT FREQ counts each use of a key as one.
fn counting() -> Builder {
    let builder = Server::builder().config("maxmemory-policy allkeys-lfu");
    builder.config("lfu-log-factor 0").config("lfu-decay-time 0")
}

/// Errors that the server has counted, calls of the command that asks it whether it accepts writes, and keys that were found
/// or not. OBJECT FREQ counts as well.
fn counts(server: &Server) -> [Option<String>; 4] {
    ["total_error_replies", "cmdstat_copy", "keyspace_hits", "keyspace_misses"]
        .map(|field| server.info(field))
}

#[test]
fn waiting_is_no_use_of_the_key_and_no_command_or_error_of_the_server() {
    for cluster in [false, true] {
        let builder = counting();
        let (server, mut conn) = if cluster { builder.cluster() } else { builder }.connect();
        let calls =
            ["RL.THROTTLE t 0 1 1h 1", "RL.WINDOW w 1 1h 1", "RL.ACQUIRE a 1 0 1 LEASE 3600000"];
        let waiters = calls.map(|call| {
            assert_eq!(limited(&conn.cmd(call)), 0);
            server.wait_in_line(format!("{call} BLOCK 0"))
        });
        let used =
            |conn: &mut Conn| ["t", "w", "a"].map(|key| conn.int(format!("OBJECT FREQ {key}")));
        let (before, counted) = (used(&mut conn), counts(&server));
        // Timers look at the waiting calls in real time. That must not count.
        sleep(ms(600));
        assert_eq!(counts(&server), counted, "in a cluster: {cluster}");
        assert_eq!(used(&mut conn), before, "in a cluster: {cluster}");
        // A call of a client counts.
        conn.cmd("RL.WINDOW_RO w 1 1h");
        assert!(used(&mut conn)[1] > before[1]);
        drop(waiters);
    }
}

#[test]
fn a_grant_after_waiting_is_a_use_of_the_key() {
    let (server, mut conn) = counting().connect();
    conn.cmd("RL.WINDOW w 1 700ms");
    let mut waiter = server.wait_in_line("RL.WINDOW w 1 700ms 1 BLOCK 0");
    let before = conn.int("OBJECT FREQ w");
    assert_eq!(limited(&waiter.recv()), 0);
    assert_eq!(conn.int("OBJECT FREQ w"), before + 1);
}

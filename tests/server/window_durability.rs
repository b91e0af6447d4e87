//! RL.WINDOW's state through crashes, copies and transactions: what the server decided is what stays.

use std::time::Duration;

use support::*;

const KINDS: [&str; 7] = [
    "",
    "BUCKETS 3",
    "FIXED",
    "COUNTDENIED",
    "FIXED COUNTDENIED",
    "FIXED FROM 2026-11-21@00:00:07 TZ Asia/Tokyo",
    "FIXED FROM first COUNTDENIED",
];

/// Everything in the keys `0` to `6`, and when it expires.
fn state(server: &Server, conn: &mut Conn) -> Vec<(Value, i64)> {
    let now_ms = server.clock().now_us() / 1000;
    (0..7)
        .map(|key| {
            let entries = conn.cmd(format!("ZRANGE {key} 0 -1 WITHSCORES"));
            match conn.int(format!("PTTL {key}")) {
                -2 => (entries, -2),
                ttl_ms => (entries, now_ms + ttl_ms),
            }
        })
        .collect()
}

/// One call of some kind, some time after the last.
fn random_call(server: &Server, random: &mut Random) -> String {
    let step_us = match random.below(40) {
        0 => -random.below(90_000_000),
        1 => random.below(90_000_000),
        _ => random.below(900_000),
    };
    server.clock().advance_us(step_us);
    let key = random.below(7);
    let period = ["10s", "60", "1h"][random.below(3) as usize];
    let period = if KINDS[key as usize].contains("FIXED") { "60" } else { period };
    let (limit, quantity) = (random.below(12), random.below(4));
    let atmost = ["", "ATMOST"][random.below(2) as usize];
    format!("RL.WINDOW {key} {limit} {period} {quantity} {} {atmost}", KINDS[key as usize])
}

#[test]
fn a_crash_keeps_every_decision_in_the_aof() {
    let (mut server, mut conn) = Server::builder().aof().held();
    let mut random = Random::new(1);
    for round in 0..3 {
        for _ in 0..150 {
            let call = random_call(&server, &mut random);
            conn.cmd(call);
        }
        let before = state(&server, &mut conn);
        server.restart(Stop::Kill);
        conn = server.conn();
        assert_eq!(state(&server, &mut conn), before, "round {round}");
        if round == 1 {
            conn.cmd("BGREWRITEAOF");
            let done = || server.info("aof_rewrite_in_progress").as_deref() == Some("0");
            eventually(SOON, || {
                done() && server.info("aof_rewrite_scheduled").as_deref() == Some("0")
            });
            assert_eq!(server.info("aof_last_bgrewrite_status").as_deref(), Some("ok"));
            assert_eq!(state(&server, &mut conn), before);
        }
    }
}

#[test]
fn a_rewritten_aof_without_rdb_preamble_loads_the_same() {
    let (mut server, mut conn) = Server::builder().aof().config("aof-use-rdb-preamble no").held();
    let mut random = Random::new(2);
    for _ in 0..200 {
        let call = random_call(&server, &mut random);
        conn.cmd(call);
    }
    let before = state(&server, &mut conn);
    conn.cmd("BGREWRITEAOF");
    eventually(SOON, || server.info("aof_rewrite_in_progress").as_deref() == Some("0"));
    server.restart(Stop::Kill);
    assert_eq!(state(&server, &mut server.conn()), before);
}

#[test]
fn an_rdb_and_a_reload_keep_every_decision() {
    let (mut server, mut conn) = Server::held();
    let mut random = Random::new(3);
    for _ in 0..200 {
        let call = random_call(&server, &mut random);
        conn.cmd(call);
    }
    // More than a listpack holds.
    for _ in 0..300 {
        server.clock().advance_us(1_003);
        conn.cmd("RL.WINDOW 0 1000 60");
    }
    let before = state(&server, &mut conn);
    assert_eq!(conn.text("DEBUG RELOAD"), "OK");
    assert_eq!(state(&server, &mut conn), before);
    server.restart(Stop::Save);
    assert_eq!(state(&server, &mut server.conn()), before);
    let answer = server.conn().ints("RL.WINDOW 0 1000 60");
    assert_eq!(answer[0], 0);
}

#[test]
fn a_server_without_the_module_loads_the_files() {
    for with_aof in [false, true] {
        let builder = Server::builder().clock(true);
        let mut old = if with_aof { builder.aof() } else { builder }.start();
        old.clock().set_us(START_US);
        let mut random = Random::new(4);
        let mut conn = old.conn();
        for _ in 0..100 {
            let call = random_call(&old, &mut random);
            conn.cmd(call);
        }
        let before = state(&old, &mut conn);
        old.stop(if with_aof { Stop::Kill } else { Stop::Save });
        let builder = Server::builder().module(false).clock_of(&old).dir(old.dir());
        let new = if with_aof { builder.aof() } else { builder }.start();
        assert_eq!(state(&new, &mut new.conn()), before);
    }
}

#[test]
fn replicas_with_and_without_the_module_equal_their_master_after_each_call() {
    let (master, _) = Server::held();
    let with = Server::replica_of(&master, true);
    let without = Server::replica_of(&master, false);
    let (mut conn, mut one, mut two) = (master.conn(), with.conn(), without.conn());
    let mut random = Random::new(5);
    for _ in 0..250 {
        let call = random_call(&master, &mut random);
        conn.cmd(&call);
        assert_eq!(conn.int("WAIT 2 20000"), 2);
        let expected = state(&master, &mut conn);
        assert_eq!(state(&master, &mut one), expected, "{call}");
        assert_eq!(state(&master, &mut two), expected, "{call}");
        let look = call.replace("RL.WINDOW", "RL.WINDOW_RO").replace("ATMOST", "");
        let look = look.replace("COUNTDENIED", "");
        assert_eq!(one.cmd(&look), conn.cmd(&look), "{look}");
    }
    assert!(one.err("RL.WINDOW 0 5 60").starts_with("READONLY "));
}

#[test]
fn a_replica_that_takes_over_goes_on_where_the_master_was() {
    let (mut master, _) = Server::held();
    let replica = Server::replica_of(&master, true);
    for _ in 0..3 {
        master.conn().cmd("RL.WINDOW k 3 60");
        master.clock().advance_ms(1_000);
    }
    wait_for_sync(&master, &replica);
    master.stop(Stop::Kill);
    let mut conn = replica.conn();
    conn.cmd("REPLICAOF NO ONE");
    assert_eq!(conn.ints("RL.WINDOW k 3 60"), [1, 3, 0, 57, 59]);
    replica.clock().advance_ms(57_000);
    assert_eq!(conn.ints("RL.WINDOW k 3 60"), [0, 3, 0, -1, 60]);
}

#[test]
fn a_dump_restored_under_another_name_is_the_same_limit() {
    let (server, mut conn) = Server::held();
    for kind in KINDS {
        conn.cmd("FLUSHALL");
        let call = format!("RL.WINDOW k 3 60 {kind}");
        for _ in 0..3 {
            conn.cmd(&call);
            server.clock().advance_ms(1_000);
        }
        let Value::BulkString(dump) = conn.cmd("DUMP k") else { panic!("no dump") };
        let ttl_ms = conn.int("PTTL k").to_string();
        conn.cmd([&b"RESTORE"[..], b"other", ttl_ms.as_bytes(), &dump]);
        conn.cmd("RENAME k third");
        for key in ["other", "third"] {
            let answer = conn.ints(call.replace(" k ", &format!(" {key} ")));
            assert_eq!(answer[..3], [1, 3, 0], "{kind} {key}");
        }
        assert_eq!(conn.ints(&call)[0], 0);
    }
}

#[test]
fn the_aof_holds_plain_commands_with_absolute_times() {
    let (server, mut conn) = Server::builder().aof().held();
    let mut random = Random::new(6);
    let written = server.aof_grows_by(|| {
        for _ in 0..500 {
            let call = random_call(&server, &mut random);
            conn.cmd(call);
        }
    });
    assert!(written.len() > 300);
    for line in &written {
        let name = line.split(' ').next().unwrap();
        let plain =
            ["ZADD", "ZREM", "ZREMRANGEBYRANK", "PEXPIREAT", "DEL", "UNLINK", "MULTI", "EXEC"];
        assert!(plain.contains(&name), "{line}");
    }
}

#[test]
fn watch_sees_an_allowed_call_and_no_denied_one() {
    let server = Server::start();
    let (mut conn, mut other) = (server.conn(), server.conn());
    for (call, seen) in [
        ("RL.WINDOW k 2 1h", true),
        ("RL.WINDOW k 2 1h 0", false),
        ("RL.WINDOW_RO k 2 1h", false),
        ("RL.WINDOW k 2 1h 2", false),
        ("RL.WINDOW k 2 1h 3", false),
        ("RL.WINDOW k 2 1h 2 COUNTDENIED", true),
        ("RL.WINDOW k 9 1h", true),
        ("RL.WINDOW k 9 1d FIXED", true),
    ] {
        conn.cmd("WATCH k");
        other.cmd(call);
        let replies = conn.pipeline(["MULTI", "PING", "EXEC"]);
        assert_eq!(replies[2] == Value::Nil, seen, "{call}");
    }
}

#[test]
fn tracking_clients_hear_of_changes_only() {
    let server = Server::start();
    let (mut conn, mut other) = (server.conn_resp3(), server.conn());
    conn.cmd("CLIENT TRACKING ON");
    other.cmd("RL.WINDOW k 1 1h");
    conn.cmd("ZCARD k");
    other.cmd("RL.WINDOW k 1 1h");
    assert!(conn.silent_for(Duration::from_millis(50)));
    other.cmd("RL.WINDOW k 2 1h");
    assert!(!conn.silent_for(SOON));
}

#[test]
fn a_script_is_replicated_as_its_effects() {
    let (server, mut conn) = Server::builder().aof().held();
    let replica = Server::replica_of(&server, false);
    let script = "for _ = 1, 30 do redis.call('RL.WINDOW', KEYS[1], 20, 60) end";
    let written = server.aof_grows_by(|| conn.cmd(["EVAL", script, "1", "0"]));
    assert!(written.iter().all(|line| !line.to_uppercase().contains("EVAL")), "{written:?}");
    assert_eq!(conn.int("WAIT 1 20000"), 1);
    assert_eq!(state(&server, &mut replica.conn()), state(&server, &mut conn));
}

#[test]
fn one_moment_rules_a_whole_script_where_the_server_freezes_time() {
    let server = Server::start();
    if server.version().lacks("time that is frozen for a script", (7, 2)) {
        return;
    }
    let script = "redis.call('RL.WINDOW', KEYS[1], 3, 60)
        local until_us = redis.call('TIME')
        for _ = 1, 100000 do redis.call('PING') end
        return redis.call('RL.WINDOW', KEYS[1], 3, 60, 'MS')[5]";
    assert_eq!(server.conn().int(["EVAL", script, "1", "k"]), 60_000);
    assert_eq!(server.conn().int("ZCARD k"), 1);
}

#[test]
fn a_key_that_expired_while_the_server_was_down_is_gone() {
    let (mut server, _) = Server::builder().aof().held();
    server.conn().cmd("RL.WINDOW k 1 60");
    server.stop(Stop::Kill);
    server.clock().advance_ms(62_000);
    let new = Server::builder().clock_of(&server).aof().dir(server.dir()).start();
    assert_eq!(new.conn().int("EXISTS k"), 0);
    assert_eq!(new.conn().ints("RL.WINDOW k 1 60"), [0, 1, 0, -1, 60]);
}

/// While it still serves the old one.
#[test]
fn a_replica_with_the_module_may_load_next_to_its_old_data() {
    if Version::under_test().lacks("loading while old data is served", (7, 0)) {
        return;
    }
    let master = Server::builder().config("repl-diskless-sync yes").start();
    master.conn().cmd("RL.WINDOW k 5 1h");
    // One module that does not bear it keeps the whole server from it.
    let replica = Server::builder().config("repl-diskless-load swapdb").replica_of(&master).start();
    wait_for_sync(&master, &replica);
    let log = replica.log();
    assert!(!log.contains("Skipping diskless-load"), "{log}");
    assert!(log.contains("to parser"), "{log}");
    // It took over what it loaded, and goes on from there.
    let mut conn = replica.conn();
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h")[..3], [0, 5, 4]);
    master.conn().cmd("RL.WINDOW k 5 1h");
    wait_for_sync(&master, &replica);
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h")[..3], [0, 5, 3]);
}

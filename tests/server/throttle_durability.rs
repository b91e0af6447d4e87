//! What RL.THROTTLE leaves in files, on replicas and for a module that is loaded again.

use std::fs;

use support::*;

/// Value and milliseconds left, by a clock that stands still.
fn value_and_ttl(conn: &mut Conn, key: &str) -> (Value, i64) {
    (conn.cmd(["GET", key]), conn.int(["PTTL", key]))
}

/// A state of every kind: whole and fractional, deep and shallow, given back, healed.
fn fill(server: &Server, conn: &mut Conn) -> [&'static str; 4] {
    for _ in 0..12 {
        conn.cmd("RL.THROTTLE whole 15 1 1 2");
        conn.cmd("RL.THROTTLE fraction 15 3 7s");
        conn.cmd("RL.THROTTLE back 15 1 1 4");
        conn.cmd("RL.THROTTLE back 15 1 1 -2");
        server.clock().advance_ms(950);
    }
    conn.cmd("SET healed 9999999999999999999");
    conn.cmd("RL.THROTTLE healed 4 1 1");
    ["whole", "fraction", "back", "healed"]
}

fn look(conn: &mut Conn) -> Vec<Vec<i64>> {
    ["whole 15 1 1", "fraction 15 3 7s", "back 15 1 1", "healed 4 1 1"]
        .map(|parameters| conn.ints(format!("RL.THROTTLE_RO {parameters} 5 MS")))
        .to_vec()
}

#[test]
fn a_restart_from_the_aof_after_a_crash_answers_the_same() {
    let (mut server, mut conn) = Server::builder().aof().held();
    let keys = fill(&server, &mut conn);
    let expected = look(&mut conn);
    assert!(expected.iter().any(|reply| reply[0] == 1), "some are denied: {expected:?}");
    let states = keys.map(|key| value_and_ttl(&mut conn, key));
    server.restart(Stop::Kill);
    let mut conn = server.conn();
    assert_eq!(look(&mut conn), expected);
    assert_eq!(keys.map(|key| value_and_ttl(&mut conn, key)), states);
    // And when some time passes while it is down.
    server.stop(Stop::Kill);
    server.clock().advance_ms(2000);
    let later = Server::builder().aof().dir(server.dir()).clock_of(&server).start();
    for (before, after) in expected.iter().zip(look(&mut later.conn())) {
        assert_eq!(after[4], (before[4] - 2000).max(0));
    }
}

#[test]
fn a_rewritten_aof_and_an_rdb_file_answer_the_same() {
    let (mut server, mut conn) = Server::builder().aof().held();
    let keys = fill(&server, &mut conn);
    let expected = look(&mut conn);
    let states = keys.map(|key| value_and_ttl(&mut conn, key));
    conn.cmd("BGREWRITEAOF");
    eventually(SOON, || {
        server.info("aof_rewrite_in_progress").as_deref() == Some("0")
            && server.info("aof_rewrite_scheduled").as_deref() == Some("0")
    });
    assert_eq!(server.info("aof_last_bgrewrite_status").as_deref(), Some("ok"));
    server.restart(Stop::Kill);
    let mut conn = server.conn();
    assert_eq!(look(&mut conn), expected);
    assert_eq!(keys.map(|key| value_and_ttl(&mut conn, key)), states);

    let (mut server, mut conn) = Server::builder().held();
    let keys = fill(&server, &mut conn);
    let expected = look(&mut conn);
    assert_eq!(conn.text("DEBUG RELOAD"), "OK");
    assert_eq!(look(&mut conn), expected);
    assert_eq!(keys.map(|key| value_and_ttl(&mut conn, key)), states);
    server.restart(Stop::Save);
    let mut conn = server.conn();
    assert_eq!(look(&mut conn), expected);
    assert_eq!(keys.map(|key| value_and_ttl(&mut conn, key)), states);
}

#[test]
fn dump_and_restore_carry_the_state() {
    let (server, mut conn) = Server::builder().held();
    let (other, mut there) = Server::builder().clock_of(&server).module(false).held();
    for key in fill(&server, &mut conn) {
        let Value::BulkString(dump) = conn.cmd(["DUMP", key]) else { panic!("DUMP {key}") };
        let left = conn.int(["PTTL", key]).to_string();
        let restore: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), left.as_bytes(), &dump];
        assert_eq!(text(&there.cmd(restore)), "OK");
        assert_eq!(there.text(["GET", key]), conn.text(["GET", key]));
        let restore: [&[u8]; 5] = [b"RESTORE", key.as_bytes(), left.as_bytes(), &dump, b"REPLACE"];
        let expected = look(&mut conn);
        assert_eq!(text(&conn.cmd(restore)), "OK");
        assert_eq!(look(&mut conn), expected);
    }
    drop(other);
}

#[test]
fn the_aof_has_plain_effects_and_one_for_each_change() {
    let (server, mut conn) = Server::builder().aof().held();
    let mut effects = |line: &str| {
        let mut lines = server.aof_grows_by(|| conn.cmd(line));
        // Before 7.0 what a module replicates comes as a transaction.
        lines.retain(|line| line != "MULTI" && line != "EXEC");
        lines
    };
    let set = |seconds: i64| {
        let at_ms = START_US / 1000 + seconds * 1000 + 900;
        vec![format!("SET k {}000000000 PXAT {at_ms}", 1_700_000_000 + seconds)]
    };
    assert_eq!(effects("RL.THROTTLE k 4 1 1"), set(1));
    assert_eq!(effects("RL.THROTTLE k 4 1 1 9 ATMOST"), set(5));
    assert_eq!(effects("RL.THROTTLE k 4 1 1 -2"), set(3));
    assert_eq!(effects("RL.THROTTLE k 4 1 1 -9"), ["DEL k"]);
    assert_eq!(effects("RL.THROTTLE k 4 1 1 -9"), [""; 0]);
    assert_eq!(effects("RL.THROTTLE k 4 1 1 0"), [""; 0]);
    assert_eq!(effects("RL.THROTTLE k 4 1 1 6"), [""; 0]);
    assert_eq!(effects("RL.THROTTLE k 4 1 1 x"), [""; 0]);
    effects("SET k 9999999999999999999");
    assert_eq!(effects("RL.THROTTLE k 4 1 1 6"), [""; 0]);
    assert_eq!(effects("RL.THROTTLE k 4 1 1 1"), set(5));
    assert_eq!(effects("RL.THROTTLE k 4 1 1 1"), [""; 0]);
    assert_eq!(effects("EVAL return{redis.call('RL.THROTTLE','k',4,1,1)} 0"), [""; 0]);
    assert_eq!(effects("EVAL return{redis.call('RL.THROTTLE','k',4,1,1,-1)} 0"), set(4));
    // A caller that comes back just after the bucket became full does not pay for a DEL as well.
    server.clock().advance_ms(4500);
    assert_eq!(effects("RL.THROTTLE k 4 1 1"), ["SET k 1700000005500000000 PXAT 1700000006400"]);
}

#[test]
fn a_thousand_denied_and_peeking_calls_add_not_one_byte() {
    let (server, mut conn) = Server::builder().aof().held();
    let replica = Server::replica_of(&server, false);
    conn.cmd("RL.THROTTLE k 4 1 1 5");
    wait_for_sync(&server, &replica);
    let before = value_and_ttl(&mut conn, "k");
    let (aof, dirty) = (server.aof().len(), server.info("rdb_changes_since_last_save"));
    for call in [
        "RL.THROTTLE k 4 1 1",
        "RL.THROTTLE k 4 1 1 6",
        "RL.THROTTLE k 4 1 1 5 ATMOST",
        "RL.THROTTLE k 4 1 1 0",
        "RL.THROTTLE_RO k 4 1 1",
        "RL.THROTTLE none 4 1 1 0",
        "RL.THROTTLE none 4 1 1 6",
        "RL.THROTTLE none 4 1 1 -1",
        "RL.THROTTLE_RO none 4 1 1",
    ] {
        let grown = server.repl_grows(|| {
            for reply in conn.pipeline([call; 1000]) {
                ints(&reply);
            }
        });
        assert_eq!(grown, 0, "{call}");
    }
    assert_eq!(server.aof().len(), aof);
    assert_eq!(server.info("rdb_changes_since_last_save"), dirty);
    assert_eq!(value_and_ttl(&mut conn, "k"), before);
}

#[test]
fn replicas_with_and_without_the_module_hold_the_same_value_and_expiry() {
    let (server, mut conn) = Server::builder().held();
    let replicas = [true, false].map(|module| Server::replica_of(&server, module));
    let keys = fill(&server, &mut conn);
    conn.pipeline(["RL.THROTTLE gone 4 1 1", "RL.THROTTLE gone 4 1 1 -1"]);
    let expected = look(&mut conn);
    for replica in &replicas {
        wait_for_sync(&server, replica);
        let mut there = replica.conn();
        for key in keys {
            assert_eq!(value_and_ttl(&mut there, key), value_and_ttl(&mut conn, key));
            if server.version().is_from(7, 0) {
                let at = |conn: &mut Conn| conn.int(["PEXPIRETIME", key]);
                assert_eq!(at(&mut there), at(&mut conn));
            }
        }
        assert_eq!(there.int("EXISTS gone"), 0);
    }
    // The one with the module may look, and takes over as the master was.
    let mut there = replicas[0].conn();
    assert_eq!(look(&mut there), expected);
    assert!(there.err("RL.THROTTLE whole 15 1 1").starts_with("READONLY "));
    there.cmd("REPLICAOF NO ONE");
    assert_eq!(look(&mut there), expected);
    let again = "RL.THROTTLE fraction 15 3 7s";
    assert_eq!(there.ints(again), conn.ints(again));
    assert_eq!(value_and_ttl(&mut there, "fraction"), value_and_ttl(&mut conn, "fraction"));
}

#[test]
fn a_rebuilt_module_is_loaded_under_the_same_data_without_a_restart() {
    let (server, mut conn) = Server::builder().held();
    let keys = fill(&server, &mut conn);
    let expected = look(&mut conn);
    let states = keys.map(|key| value_and_ttl(&mut conn, key));
    assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    assert!(conn.err("RL.THROTTLE whole 15 1 1").starts_with("ERR unknown command"));
    assert_eq!(keys.map(|key| value_and_ttl(&mut conn, key)), states);
    let rebuilt = server.dir().join("rebuilt.so");
    fs::copy(module_path(), &rebuilt).unwrap();
    assert_eq!(conn.text(["MODULE", "LOAD", rebuilt.to_str().unwrap()]), "OK");
    assert_eq!(look(&mut conn), expected);
    for _ in 0..20 {
        conn.cmd("MODULE UNLOAD ratelimit");
        conn.cmd(["MODULE", "LOAD", rebuilt.to_str().unwrap()]);
    }
    assert_eq!(look(&mut conn), expected);
    conn.ints("RL.THROTTLE whole 15 1 1 -1");
}

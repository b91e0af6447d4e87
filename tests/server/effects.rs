//! What calls store, and the effects that they write to the append-only file and to replicas.

use support::*;

/// Admits `count` events, one after each `step_us`.
fn fill(server: &Server, conn: &mut Conn, call: &str, count: usize, step_us: i64) {
    for _ in 0..count {
        assert_eq!(conn.ints(call)[0], 0, "{call}");
        server.clock().advance_us(step_us);
    }
}

#[test]
fn a_steady_state_writes_little_more_than_one_command_for_each_allowed_call() {
    let (server, mut conn) = Server::builder().aof().with_held_clock();
    // In small sets dead entries go four at a time, in others eight, each time in a transaction of three commands.
    for (limit, period, step_us, most) in [(100, "1s", 10_000, 1.8), (400, "10s", 25_000, 1.4)] {
        let call = format!("RL.WINDOW k:{limit} {limit} {period}");
        let count = 2 * limit as usize;
        fill(&server, &mut conn, &call, count, step_us);
        let count = 2_000;
        let mut written = server.aof_grows_by(|| fill(&server, &mut conn, &call, count, step_us));
        if !server.version().is_from(7, 0) {
            // 6.2 wraps what a module writes even where it is one command.
            written.retain(|line| line != "MULTI" && line != "EXEC");
        }
        let times = written.len() as f64 / count as f64;
        assert!(times < most, "{times} commands for each call of {call}");
        let ttl = written.iter().filter(|line| line.starts_with("PEXPIREAT")).count() as i64;
        let seconds = count as i64 * step_us / 1_000_000;
        assert!(ttl <= seconds * 10 / 8 + 1, "the TTL was moved {ttl} times in {seconds} s");
    }
}

#[test]
fn folded_calls_write_a_constant_number_of_commands() {
    let (server, mut conn) = Server::builder().aof().with_held_clock();
    for options in ["BUCKETS 10", "FIXED", "FIXED COUNTDENIED", ""] {
        let call = format!("RL.WINDOW k 1000000 60 {options}");
        fill(&server, &mut conn, &call, 300, 1_000);
        let written = server.effects_of(|| fill(&server, &mut conn, &call, 300, 1_000)).len();
        assert!(written <= 620, "{written} commands for 300 calls with {options}");
    }
}

#[test]
fn denied_and_looking_calls_write_nothing() {
    let (server, mut conn) = Server::builder().aof().with_held_clock();
    let replica = Server::replica_of(&server, false);
    for (fill, limit, calls) in [
        ("RL.THROTTLE", "4 1 1", "1|6|5 ATMOST|0"),
        ("RL.WINDOW", "3 60", "1|2|4 COUNTDENIED|9 ATMOST|0 COUNTDENIED"),
        ("RL.WINDOW", "3 60", "1 BUCKETS 3|2 BUCKETS 3|4 BUCKETS 3 COUNTDENIED"),
        ("RL.WINDOW", "3 60", "1 FIXED|2 FIXED|0 FIXED|9 FIXED ATMOST"),
        ("RL.ACQUIRE", "2 60", "1|9|0|1 ID b"),
    ] {
        conn.cmd("DEL k");
        while limited(&conn.cmd(format!("{fill} k {limit}"))) == 0 {}
        let (dirty, before) = (server.info("rdb_changes_since_last_save"), conn.cmd("DUMP k"));
        let written = server.aof_grows_by(|| {
            let sent = server.repl_grows(|| {
                for call in calls.split('|').cycle().take(100) {
                    server.clock().advance_us(100);
                    conn.cmd(format!("{fill} k {limit} {call}"));
                    conn.cmd(format!("{fill}_RO k {limit} 1"));
                    conn.cmd(format!("{fill} none {limit} 0"));
                    conn.cmd(format!("{fill} none {limit} 99"));
                }
                conn.pipeline(["RL.THROTTLE none 4 1 1 -1", "RL.WINDOW k x 60", "RL.HELD none"]);
            });
            assert_eq!(sent, 0, "{fill} {calls}");
        });
        assert_eq!(written, [""; 0], "{fill} {calls}");
        assert_eq!(server.info("rdb_changes_since_last_save"), dirty, "{fill} {calls}");
        assert_eq!((conn.cmd("DUMP k"), conn.int("EXISTS none")), (before, 0), "{fill} {calls}");
    }
    drop(replica);
}

#[test]
fn the_aof_has_plain_effects_and_one_for_each_change() {
    let (server, mut conn) = Server::builder().aof().with_held_clock();
    let mut effects = |line: &str| server.effects_of(|| conn.cmd(line));
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
fn watch_sees_a_call_that_changed_something_and_no_other() {
    let (server, mut conn) = Server::with_held_clock();
    let mut other = server.conn();
    conn.cmd("RL.THROTTLE k 1 1 1");
    for (call, changes) in [
        ("RL.THROTTLE k 1 1 1 0", false),
        ("RL.THROTTLE_RO k 1 1 1", false),
        ("RL.THROTTLE k 1 1 1 2", false),
        ("RL.THROTTLE k 1 1 1 3", false),
        ("RL.THROTTLE k 1 1 1", true),
        ("RL.THROTTLE k 1 1 1", false),
        ("RL.THROTTLE k 1 1 1 -1", true),
        ("RL.THROTTLE k 1 1 1 -1", true),
        ("RL.THROTTLE k 1 1 1 -1", false),
        ("RL.WINDOW k 2 1h", true),
        ("RL.WINDOW k 2 1h 0", false),
        ("RL.WINDOW_RO k 2 1h", false),
        ("RL.WINDOW k 2 1h 2", false),
        ("RL.WINDOW k 2 1h 3", false),
        ("RL.WINDOW k 2 1h 2 COUNTDENIED", true),
        ("RL.WINDOW k 9 1h", true),
        ("RL.WINDOW k 9 1d FIXED", true),
        ("DEL k", true),
        ("RL.ACQUIRE k 2 0 1 ID a", true),
        ("RL.ACQUIRE k 2 0 2", false),
        ("RL.RENEW k a LEASE 1h", true),
        ("RL.RELEASE k b", false),
        ("RL.RELEASE k a", true),
        ("RL.RELEASE k a", false),
    ] {
        conn.cmd("WATCH k");
        other.cmd(call);
        let replies = conn.pipeline(["MULTI", "PING", "EXEC"]);
        assert_eq!(replies[2] == Value::Nil, changes, "{call}");
    }
}

#[test]
fn a_window_is_a_sorted_set_whose_scores_are_minus_the_times_of_the_events() {
    let (server, mut conn) = Server::with_held_clock();
    let mut times = Vec::new();
    for _ in 0..5 {
        conn.cmd("RL.WINDOW k 5 60");
        times.insert(0, format!("-{}", server.clock().now_us()));
        server.clock().advance_us(1_234_567);
    }
    let pairs = conn.array("ZRANGE k 0 -1 WITHSCORES");
    let scores: Vec<_> = pairs.iter().skip(1).step_by(2).map(text).collect();
    assert_eq!(scores, times);
}

#[test]
fn replies_are_the_same_without_a_ttl() {
    let (server, mut conn) = Server::with_held_clock();
    for (call, full) in [("RL.THROTTLE k 0 1 10 1 MS", 10_900), ("RL.WINDOW k 1 10 1 MS", 21_000)] {
        conn.pipeline(["DEL k", call, "PERSIST k"]);
        server.clock().advance_ms(9_999);
        assert_eq!(conn.ints(call), [1, 1, 0, 1, 1], "{call}");
        server.clock().advance_ms(1);
        assert_eq!(conn.ints(call), [0, 1, 0, -1, 10_000], "{call}");
        assert!((10_000..=full).contains(&conn.int("PTTL k")), "{call}");
    }
}

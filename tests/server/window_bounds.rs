//! The costs of calls: commands that are written and replicated.

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
        let written = server.aof_grows_by(|| fill(&server, &mut conn, &call, 300, 1_000));
        let written = written.iter().filter(|line| *line != "MULTI" && *line != "EXEC").count();
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

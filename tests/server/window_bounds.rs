//! What RL.WINDOW costs: entries, memory, replication, and the time of a single call.

use std::time::Duration;

use support::*;

/// Admits `count` events, one after each `step_us`.
fn fill(server: &Server, conn: &mut Conn, call: &str, count: usize, step_us: i64) {
    for _ in 0..count {
        assert_eq!(conn.ints(call)[0], 0, "{call}");
        server.clock().advance_us(step_us);
    }
}

#[test]
fn a_million_a_minute_costs_kilobytes() {
    let (server, mut conn) = Server::held();
    // 300,000 events in 30 s: twenty at every second millisecond.
    let script = "local had = 0 for _ = 1, 20 do
        if redis.call('RL.WINDOW', KEYS[1], 1000000, 60)[1] == 0 then had = had + 1 end
    end return had";
    for second in 0..30 {
        for step in 0..500 {
            server.clock().set_us(START_US + second * 1_000_000 + step * 2_000);
            assert_eq!(conn.int(["EVAL", script, "1", "k"]), 20);
        }
        assert!(conn.int("ZCARD k") <= 4_100);
    }
    assert_eq!(conn.ints("RL.WINDOW_RO k 1000000 60")[..3], [0, 1_000_000, 700_000]);
    assert!(conn.int("MEMORY USAGE k SAMPLES 0") < 1_000_000);
}

#[test]
fn a_limit_of_window_entries_is_exact_and_one_more_folds() {
    let (server, mut conn) =
        Server::builder().clock(true).module_args(["window-entries", "8"]).connect();
    for (limit, freed) in [(8, 1), (9, 0)] {
        server.clock().set_us(START_US);
        conn.cmd("FLUSHALL");
        let call = format!("RL.WINDOW k {limit} 80s");
        fill(&server, &mut conn, &call, limit as usize, 1_000_000);
        assert_eq!(conn.ints(&call)[0], 1);
        server.clock().set_us(START_US + 80_000_000);
        let look = call.replace("RL.WINDOW", "RL.WINDOW_RO");
        assert_eq!(conn.ints(&look)[2], freed);
        // At most an eighth of the period late.
        server.clock().set_us(START_US + 90_000_000);
        assert!(conn.ints(&look)[2] >= 1);
    }
}

#[test]
fn buckets_that_fall_out_all_at_once_cost_a_bounded_piece_of_work() {
    let (server, mut conn) = Server::held();
    let call = "RL.WINDOW k 100000 6s BUCKETS 6000";
    fill(&server, &mut conn, call, 6_000, 1_000);
    assert!(conn.int("ZCARD k") >= 5_900);
    conn.pipeline(["PERSIST k", "COPY k filled"]);
    server.clock().advance_us(60_000_000);
    assert_takes(Duration::from_millis(500), || {
        conn.cmd("COPY filled k REPLACE");
        let before = server.cpu_time();
        let mut left = 100_000;
        for _ in 0..500 {
            server.clock().advance_us(1_001);
            let entries = conn.int("ZCARD k");
            left -= 1;
            let answer = conn.ints(call);
            assert_eq!(answer[..3], [0, 100_000, left]);
            let removed = entries + 1 - conn.int("ZCARD k");
            assert!((0..=100).contains(&removed), "{removed} entries at once");
        }
        assert!(conn.int("ZCARD k") <= 6_002);
        server.cpu_time() - before
    });
}

#[test]
fn a_hammered_key_stays_small_with_countdenied() {
    for (options, most, calls) in [("", 4_200, 5_000), ("BUCKETS 10", 16, 500), ("FIXED", 3, 500)] {
        let (server, mut conn) = Server::held();
        let call = format!("RL.WINDOW k 5 60 {options} COUNTDENIED");
        for _ in 0..calls {
            server.clock().advance_us(75_000_000 / calls);
            conn.cmd(&call);
        }
        assert!(conn.int("ZCARD k") <= most, "{options}: {}", conn.int("ZCARD k"));
        let bytes = conn.int("MEMORY USAGE k SAMPLES 0");
        for _ in 0..calls {
            server.clock().advance_us(75_000_000 / calls);
            conn.cmd(&call);
        }
        let grown = conn.int("MEMORY USAGE k SAMPLES 0") - bytes;
        assert!(grown < 20_000, "{options}: {grown} bytes more than {bytes}");
    }
}

#[test]
fn a_small_window_is_as_small_as_the_recipe() {
    let (server, mut conn) = Server::held();
    for events in [10, 100] {
        conn.cmd("FLUSHALL");
        for _ in 0..events {
            server.clock().advance_us(10_007);
            conn.cmd("RL.WINDOW k 100 60");
            conn.cmd(format!("ZADD r {0} {0}", server.clock().now_us()));
        }
        let bytes = conn.int("MEMORY USAGE k SAMPLES 0");
        let recipe = conn.int("MEMORY USAGE r SAMPLES 0");
        assert!(bytes <= recipe, "{events} events: {bytes} bytes, the recipe's {recipe}");
    }
}

#[test]
fn a_steady_state_writes_little_more_than_one_command_for_each_allowed_call() {
    let (server, mut conn) = Server::builder().aof().held();
    // In small sets dead entries go four at a time, in others eight, each time in a transaction of three commands.
    for (limit, period, step_us, most) in [(100, "1s", 10_000, 1.8), (4_000, "10s", 2_500, 1.4)] {
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
    let (server, mut conn) = Server::builder().aof().held();
    for options in ["BUCKETS 10", "FIXED", "FIXED COUNTDENIED", ""] {
        let call = format!("RL.WINDOW k 1000000 60 {options}");
        fill(&server, &mut conn, &call, 1_000, 1_000);
        let written = server.aof_grows_by(|| fill(&server, &mut conn, &call, 1_000, 1_000));
        let written = written.iter().filter(|line| *line != "MULTI" && *line != "EXEC").count();
        assert!(written <= 2_050, "{written} commands for 1000 calls with {options}");
    }
}

#[test]
fn denied_and_looking_calls_write_nothing() {
    let (server, mut conn) = Server::builder().aof().held();
    let replica = Server::replica_of(&server, false);
    for options in ["", "BUCKETS 3", "FIXED"] {
        conn.cmd("FLUSHALL");
        for _ in 0..3 {
            conn.cmd(format!("RL.WINDOW k 3 60 {options}"));
        }
        let calls = [
            format!("RL.WINDOW k 3 60 {options}"),
            format!("RL.WINDOW k 3 60 2 {options}"),
            format!("RL.WINDOW k 3 60 4 {options} COUNTDENIED"),
            format!("RL.WINDOW k 3 60 9 {options} ATMOST"),
            format!("RL.WINDOW k 0 60 {options} COUNTDENIED"),
            format!("RL.WINDOW k 3 60 0 {options} COUNTDENIED"),
            format!("RL.WINDOW_RO k 3 60 {options}"),
            format!("RL.WINDOW_RO missing 3 60 {options}"),
            format!("RL.WINDOW missing 3 60 0 {options}"),
            format!("RL.WINDOW missing 3 60 4 {options}"),
            format!("RL.WINDOW k 3 nonsense {options}"),
        ];
        let dirty = server.info("rdb_changes_since_last_save");
        let expires_at = server.clock().now_us() / 1000 + conn.int("PTTL k");
        let written = server.aof_grows_by(|| {
            let sent = server.repl_grows(|| {
                for call in calls.iter().cycle().take(110) {
                    server.clock().advance_ms(1);
                    conn.cmd(call);
                }
            });
            assert_eq!(sent, 0, "{options}");
        });
        assert_eq!(written, Vec::<String>::new(), "{options}");
        assert_eq!(server.info("rdb_changes_since_last_save"), dirty, "{options}");
        assert_eq!(server.clock().now_us() / 1000 + conn.int("PTTL k"), expires_at);
        assert_eq!(conn.int("EXISTS missing"), 0);
    }
    drop(replica);
}

#[test]
fn a_clock_that_stepped_back_is_healed_once() {
    let (server, mut conn) = Server::builder().aof().held();
    fill(&server, &mut conn, "RL.WINDOW k 5 60", 5, 1_000);
    server.clock().advance_ms(-3_600_000);
    let look = server.aof_grows_by(|| conn.cmd("RL.WINDOW_RO k 5 60"));
    assert!(look.is_empty(), "{look:?}");
    let healed = server.aof_grows_by(|| conn.cmd("RL.WINDOW k 5 60"));
    assert!(healed.iter().any(|line| line.starts_with("ZADD")), "{healed:?}");
    server.clock().advance_ms(1);
    let again = server.aof_grows_by(|| conn.cmd("RL.WINDOW k 5 60"));
    assert!(again.is_empty(), "{again:?}");
    assert_eq!(conn.int("ZCARD k"), 1);
}

#[test]
fn many_events_from_the_future_are_merged_in_milliseconds() {
    let (server, mut conn) = Server::held();
    fill(&server, &mut conn, "RL.WINDOW k 4096 60", 4_096, 1_000);
    server.clock().advance_ms(-3_600_000);
    conn.cmd("COPY k filled");
    assert_takes(Duration::from_millis(50), || {
        conn.cmd("COPY filled k REPLACE");
        let before = server.cpu_time();
        assert_eq!(conn.ints("RL.WINDOW k 4096 60")[..4], [1, 4_096, 0, 60]);
        server.cpu_time() - before
    });
    assert_eq!(conn.int("ZCARD k"), 1);
}

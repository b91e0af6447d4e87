//! BLOCK: when a call that waits is woken, and when it is not.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::{connect_with_others, with_others};
use support::*;

/// The promise for RL.* commands and for what leaves by itself.
const WAKES_WITHIN_MS: u64 = 10;
/// And for every other change to a key.
const NOTICES_WITHIN_MS: u64 = 100;
/// The number of measurements, the median of which counts.
const MANY: usize = 15;
const SOME: usize = 5;

/// The time since `due`; none before it.
fn since(due: Instant) -> Duration {
    Instant::now().saturating_duration_since(due)
}

// ---- On a command ----

#[test]
fn a_command_that_frees_something_wakes() {
    let (_guard, server, mut conn) = connect_with_others();
    let mut waiter = server.conn();
    let one = "RL.ACQUIRE k 1 0 ID x LEASE 600000";
    let (three, two) = ("RL.ACQUIRE k 3 1h 3 ID x LEASE 600000", "RL.WINDOW k 3 1h 2 BLOCK 60000");
    let throttle = ("RL.THROTTLE k 4 1 1h 5", "RL.THROTTLE k 4 1 1h 2 BLOCK 20000000");
    for ((fill, waits), free, after) in [
        ((one, WAITS), "RL.RELEASE k x", 0),
        ((three, two), "RL.APPLY k x 1", 0),
        ((three, two), "RL.APPLY k x 0", 0),
        (throttle, "RL.THROTTLE k 4 1 1h -2", 0),
        // After a script.
        ((one, WAITS), "EVAL redis.call('RL.RELEASE','k','x') 0", 0),
        // The shorter lease lapses.
        ((one, WAITS), "RL.RENEW k x LEASE 25", 25),
    ] {
        println!("{waits}, {free}:");
        assert_median_ms(WAKES_WITHIN_MS, MANY, || {
            conn.cmd("FLUSHALL");
            assert_eq!(limited(&conn.cmd(fill)), 0, "{fill}");
            waiter.send(waits);
            server.wait_until_waiting(1);
            let begin = Instant::now();
            assert!(!matches!(conn.cmd(free), Value::ServerError(_)), "{free}");
            let reply = waiter.recv();
            assert_eq!(limited(&reply), 0, "{free}: {reply:?}");
            assert!(begin.elapsed() >= ms(after), "{free}: {:?}", begin.elapsed());
            since(begin + ms(after))
        });
    }
}

// ---- By itself ----

#[test]
fn a_lapsed_lease_an_event_that_leaves_and_a_drained_bucket_wake_and_not_sooner() {
    let (_guard, server, mut conn) = connect_with_others();
    let mut waiter = server.conn();
    for (after, fill, waits) in [
        // A lease that lapses,
        (33, "RL.ACQUIRE k 1 0 LEASE 33", WAITS),
        (33, "RL.ACQUIRE k 1 1h LEASE 33", "RL.WINDOW k 1 1h BLOCK 0"),
        // an event that slides out,
        (37, "RL.WINDOW k 1 37ms", "RL.WINDOW k 1 37ms BLOCK 60000"),
        (37, "RL.WINDOW k 3 37ms 3", "RL.ACQUIRE k 3 37ms 2 BLOCK 0"),
        // and a bucket that has drained enough.
        (40, "RL.THROTTLE k 0 25 1s", "RL.THROTTLE k 0 25 1s BLOCK 60000"),
        (30, "RL.THROTTLE k 9 100 1s 10", "RL.THROTTLE k 9 100 1s 3 BLOCK 0"),
    ] {
        println!("{waits}:");
        assert_median_ms(WAKES_WITHIN_MS, MANY, || {
            conn.cmd("FLUSHALL");
            let begin = Instant::now();
            assert_eq!(limited(&conn.cmd(fill)), 0, "{fill}");
            let filled = Instant::now();
            assert_eq!(limited(&waiter.cmd(waits)), 0, "{waits}");
            assert!(begin.elapsed() >= ms(after), "{waits}: {:?}", begin.elapsed());
            since(filled + ms(after))
        });
    }
}

#[test]
fn a_window_of_the_calendar_that_begins_wakes() {
    let (_guard, _server, mut conn) = connect_with_others();
    let time_us = |conn: &mut Conn| -> u64 {
        let time = conn.array("TIME");
        let part = |index: usize| text(&time[index]).parse::<u64>().unwrap();
        part(0) * 1_000_000 + part(1)
    };
    // Each takes a second, so there are few.
    assert_median_ms(WAKES_WITHIN_MS, 3, || {
        conn.cmd("DEL k");
        let next_us = time_us(&mut conn).next_multiple_of(1_000_000);
        conn.cmd("RL.WINDOW k 1 1s FIXED");
        assert_eq!(conn.ints("RL.WINDOW k 1 1s FIXED BLOCK 0 MS")[..4], [0, 1, 0, -1]);
        let now_us = time_us(&mut conn);
        assert!(now_us >= next_us, "{now_us} is before {next_us}");
        Duration::from_micros(now_us - next_us)
    });
}

/// The times at which forty calls for one of twenty a second are granted.
fn forty_through_a_shaper(server: &Server) -> Vec<Duration> {
    server.conn().cmd("DEL k");
    let begin = Instant::now();
    assert_eq!(limited(&server.conn().cmd("RL.THROTTLE k 0 20 1s")), 0);
    let take = |mut conn: Conn| {
        assert_eq!(conn.ints("RL.THROTTLE k 0 20 1s 1 BLOCK 60000 MS")[..4], [0, 1, 0, -1]);
        begin.elapsed()
    };
    let mut came: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = (0..40).map(|_| server.conn()).collect();
        let all: Vec<_> = all.into_iter().map(|conn| scope.spawn(move || take(conn))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    came.sort_unstable();
    for (at, came) in (1..).zip(&came) {
        // Never faster, whatever was late before.
        assert!(*came >= ms(50) * at, "number {at} came at {came:?}");
    }
    came
}

#[test]
fn twenty_a_second_come_fifty_milliseconds_apart() {
    let _guard = with_others();
    let server = Server::start();
    let mut steps = Vec::new();
    assert_median_ms(50 + WAKES_WITHIN_MS, 39, || {
        if steps.is_empty() {
            let came = forty_through_a_shaper(&server);
            steps.extend(came.windows(2).map(|two| two[1] - two[0]));
        }
        steps.pop().expect("39 steps between forty")
    });
}

// ---- On any other change to the key ----

const HOLDS: &str = "RL.ACQUIRE k 1 0 LEASE 600000";
const WAITS: &str = "RL.ACQUIRE k 1 0 BLOCK 60000";

/// A call of each type that takes all of `k`, and one that waits for it.
const KINDS: [(&str, &str); 3] = [
    (HOLDS, WAITS),
    ("RL.THROTTLE k 0 1 1h", "RL.THROTTLE k 0 1 1h 1 BLOCK 60000000"),
    ("RL.WINDOW k 1 1h", "RL.WINDOW k 1 1h BLOCK 0"),
];

#[test]
fn a_key_that_goes_or_is_replaced_is_noticed() {
    const THEIRS: &str = "RL.ACQUIRE other 2 0 1 ID theirs LEASE 600000";
    const HALF: (&str, &str) =
        ("RL.ACQUIRE k 2 0 2 LEASE 600000", "RL.ACQUIRE k 2 0 1 BLOCK 60000 ID mine");
    let (_guard, server, mut conn) = connect_with_others();
    let mut waiter = server.conn();
    conn.cmd(THEIRS);
    let Value::BulkString(dump) = conn.cmd("DUMP other") else { panic!("DUMP") };
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"600000", &dump, b"REPLACE"];
    let goes = [
        "DEL k", "UNLINK k", "FLUSHALL", "FLUSHDB ASYNC", "RENAME k elsewhere", "MOVE k 5",
        "SWAPDB 0 7", "PEXPIRE k 1",
        // Waiting calls look at the key many times before, and leave its TTL as it is.
        "PEXPIRE k 300",
    ];
    let goes = KINDS.into_iter().flat_map(|kind| goes.map(|change| (kind, change.words())));
    let replaced = ["RENAME other k".words(), "COPY other k REPLACE".words(), restore.words()];
    for ((holds, waits), change) in goes.chain(replaced.map(|change| (HALF, change))) {
        let shown = String::from_utf8_lossy(&change.join(&b' ')).into_owned();
        println!("{waits}, {shown}:");
        let (after, times) = if shown == "PEXPIRE k 300" { (300, 3) } else { (0, SOME) };
        assert_median_ms(NOTICES_WITHIN_MS, times, || {
            conn.cmd("FLUSHALL");
            conn.cmd(THEIRS);
            assert_eq!(limited(&conn.cmd(holds)), 0);
            waiter.send(waits);
            server.wait_until_waiting(1);
            assert!(waiter.silent_for(ms(20)));
            let begin = Instant::now();
            assert!(!matches!(conn.cmd(&change), Value::ServerError(_)), "{shown}");
            assert_eq!(limited(&waiter.recv()), 0, "{shown}");
            let took = begin.elapsed();
            // The server's own clock may be some milliseconds old.
            assert!(took + ms(10) >= ms(after), "{took:?}");
            if waits == HALF.1 {
                assert_eq!(conn.held_ids("k"), ["theirs", "mine"]);
            }
            took.saturating_sub(ms(after))
        });
    }
}

#[test]
fn a_key_that_became_another_value_ends_all_waits_with_an_error() {
    let (_guard, server, mut conn) = connect_with_others();
    let [reservation, throttle, window] = KINDS;
    let no_time = "ERR the key holds a string that RL.THROTTLE did not write";
    for ((holds, waits), change, error) in [
        (reservation, "SET k v", "WRONGTYPE "),
        (reservation, "SET k 1700000000000000000", "WRONGTYPE "),
        (window, "EVAL redis.call('del','k')redis.call('lpush','k',1) 0", "WRONGTYPE "),
        (throttle, "EVAL redis.call('del','k')redis.call('zadd','k',1,1) 0", "WRONGTYPE "),
        (throttle, "EVAL redis.call('del','k')redis.call('xadd','k','*','a',1) 0", "WRONGTYPE "),
        (throttle, "SET k hello", no_time),
    ] {
        assert_median_ms(NOTICES_WITHIN_MS, SOME, || {
            conn.cmd("DEL k");
            conn.cmd(holds);
            let mut line = [(); 3].map(|()| server.wait_in_line(waits));
            let begin = Instant::now();
            assert!(!matches!(conn.cmd(change), Value::ServerError(_)), "{change}");
            for waiter in &mut line {
                assert_refused(&waiter.recv(), error, change);
            }
            begin.elapsed()
        });
        assert_ne!(conn.text("TYPE k"), "none", "what lies there stays");
    }
    server.expect_no_waiting_calls();
}

// ---- Until its time is up ----

#[test]
fn a_wait_times_out_at_its_end_with_the_denial() {
    let (_guard, server, mut conn) = connect_with_others();
    conn.cmd("RL.ACQUIRE a 2 0 2 LEASE 600000");
    conn.cmd("RL.ACQUIRE w 2 1h 2 LEASE 600000");
    let mut waiter = server.conn();
    for (waits, denied) in [
        ("RL.ACQUIRE a 2 0 1 BLOCK 27 MS", [2, 2, 0]),
        ("RL.ACQUIRE w 2 1h 1 BLOCK 27 MS", [2, 2, 0]),
        ("RL.WINDOW w 2 1h 1 BLOCK 27 MS", [1, 2, 0]),
    ] {
        assert_median_ms(WAKES_WITHIN_MS, MANY, || {
            let begin = Instant::now();
            let parts = waiter.array(waits);
            let took = begin.elapsed();
            assert!(took >= ms(27), "{took:?}");
            let numbers = ints_of(&parts[..5]);
            assert_eq!(numbers[..3], denied, "{waits}");
            assert!((500_000..=600_000).contains(&numbers[3]), "{waits}: {numbers:?}");
            took - ms(27)
        });
    }
    // Those behind the head as well, each at its own end.
    let _head = server.wait_in_line("RL.ACQUIRE a 2 0 2 BLOCK 0");
    let _second = server.wait_in_line("RL.ACQUIRE a 2 0 2 BLOCK 600000");
    assert_median_ms(WAKES_WITHIN_MS, MANY, || {
        let begin = Instant::now();
        let denial = waiter.acquire("RL.ACQUIRE a 2 0 1 BLOCK 31 MS");
        let took = begin.elapsed();
        assert_eq!((denial.limited(), denial.id), (2, None));
        assert!(took >= ms(31), "{took:?}");
        took - ms(31)
    });
    assert_eq!(server.waiting(), 2);
}

#[test]
fn the_last_moment_is_still_in_time() {
    let (_guard, _server, mut conn) = connect_with_others();
    let mut allowed = 0;
    for _ in 0..20 {
        // Nobody else takes anything: waiting exactly retry_after suffices.
        let denied = "RL.THROTTLE k 0 1 20ms 1 MS";
        let replies = conn.pipeline(["DEL k", "RL.THROTTLE k 0 1 20ms", denied]);
        let retry_ms = ints(&replies[2])[3];
        let waits = format!("RL.THROTTLE k 0 1 20ms 1 BLOCK {retry_ms}");
        allowed += i32::from(conn.ints(waits)[0] == 0);
    }
    assert_eq!(allowed, 20);
}

#[test]
fn a_release_in_time_is_granted_even_if_a_long_script_looks_at_an_old_time() {
    let _guard = with_others();
    unless_stalled(ms(200), || {
        let (server, mut conn) = Server::connect();
        conn.cmd("RL.ACQUIRE k 1 0 1 ID x LEASE 600000");
        let mut waiter = server.wait_shortly("RL.ACQUIRE k 1 0 BLOCK 1000");
        // The lease lapses while the script runs, and so does the waiter's time.
        let script = "local start = os.clock(); while os.clock() - start < 1.2 do end; \
                  return redis.call('RL.ACQUIRE', KEYS[1], 1, 0, 0)";
        conn.send("RL.RENEW k x LEASE 400");
        conn.send(["EVAL", script, "1", "k"]);
        assert_eq!(limited(&waiter.recv()), 0);
    });
}

// ---- Denied at once ----

#[test]
fn a_call_that_can_never_be_granted_or_only_too_late_is_denied_at_once() {
    let (_guard, server, mut conn) = connect_with_others();
    conn.cmd("RL.THROTTLE t 4 1 1h 5");
    conn.cmd("RL.WINDOW w 5 1h 5");
    conn.cmd("RL.ACQUIRE s 5 0 5 LEASE 600000");
    conn.cmd("RL.ACQUIRE m 5 1h 2 LEASE 600000");
    conn.cmd("RL.WINDOW m 5 1h 3");
    for (call, is_never) in [
        ("RL.THROTTLE t 4 1 1h 6 BLOCK 0", true),
        ("RL.THROTTLE free 4 1 1h 6 BLOCK 0", true),
        ("RL.WINDOW w 5 1h 6 BLOCK 0", true),
        ("RL.WINDOW free 0 1h 1 BLOCK 0", true),
        ("RL.ACQUIRE w 5 1h 6 BLOCK 0", true),
        ("RL.ACQUIRE s 5 0 6 BLOCK 0", true),
        ("RL.ACQUIRE s 0 0 1 BLOCK 0", true),
        ("RL.WINDOW free 0 1h 1 ATMOST BLOCK 0", true),
        ("RL.THROTTLE t 4 1 1h 1 BLOCK 3590000", false),
        ("RL.WINDOW w 5 1h 1 BLOCK 3590000", false),
        ("RL.ACQUIRE w 5 1h 1 BLOCK 3590000", false),
        ("RL.WINDOW w 5 1h 1 ATMOST BLOCK 3590000", false),
        ("RL.WINDOW w 5 1h 1 FIXED BLOCK 1", false),
        // Whatever may be released: three are counted, and three do not fit beside them.
        ("RL.ACQUIRE m 5 1h 3 BLOCK 3590000", false),
        ("RL.WINDOW m 5 1h 3 BLOCK 3590000", false),
    ] {
        let parts = conn.array(call);
        let is_told_never = parts[3] == Value::Int(-1);
        assert_eq!((&parts[0], is_told_never), (&Value::Int(1), is_never), "{call}: {parts:?}");
    }
    assert_eq!(server.waiting(), 0);
    assert_eq!(server.info_ratelimit("waited_timed_out"), 0);
    // What may be released in time, or leaves in time, is waited for.
    let _lines = [
        "RL.THROTTLE t 4 1 1h 1 BLOCK 3600000", "RL.WINDOW w 5 1h 1 BLOCK 3600000",
        "RL.ACQUIRE s 5 0 5 BLOCK 1000000", "RL.ACQUIRE m 5 1h 2 BLOCK 1000000",
    ]
    .map(|waits| server.wait_in_line(waits));
    // Decided for its own quantity alone, whatever waits before it.
    for call in [
        "RL.WINDOW w 5 1h 1 BLOCK 3590000", "RL.WINDOW w 5 1h 6 BLOCK 0",
        "RL.THROTTLE t 4 1 1h 1 BLOCK 3500000",
    ] {
        let answer = conn.ints(call);
        assert_eq!(answer[0], 1, "{call}: {answer:?}");
    }
    let _fifth = server.wait_in_line("RL.WINDOW w 5 1h 5 BLOCK 3600000");
    assert_eq!(server.waiting(), 5);
}

#[test]
fn a_call_behind_others_is_judged_alone() {
    let _guard = with_others();
    unless_stalled(ms(200), || {
        let (server, mut conn) = Server::connect();
        conn.cmd("RL.THROTTLE k 0 1 1s");
        let _first = server.wait_shortly("RL.THROTTLE k 0 1 1s 1 BLOCK 60000");
        // By itself it would be granted in time, but another call is ahead of it.
        let begin = Instant::now();
        assert_eq!(conn.ints("RL.THROTTLE k 0 1 1s 1 BLOCK 1300")[0], 1);
        assert!(begin.elapsed() >= ms(1300), "{:?}", begin.elapsed());
    });
}

// ---- When the wall clock steps ----

#[test]
fn a_wall_clock_that_steps_back_delays_no_waiting_call() {
    let _guard = with_others();
    let (server, mut conn) = Server::builder().clock(true).connect();
    conn.cmd("RL.ACQUIRE k 1 0 ID x LEASE 600000");
    conn.cmd("RL.ACQUIRE l 1 0 ID x LEASE 2000");
    conn.cmd("RL.ACQUIRE m 1 0 ID x LEASE 600000");
    let mut changed = server.wait_in_line("RL.ACQUIRE k 1 0 BLOCK 0");
    let mut lapses = server.wait_shortly("RL.ACQUIRE l 1 0 BLOCK 0");
    let mut times_out = server.wait_shortly("RL.ACQUIRE m 1 0 BLOCK 2000");
    server.clock().run_behind_ms(3_600_000);
    sleep(ms(200));
    // Not a command of ours, which would wake by itself.
    conn.cmd("DEL k");
    for (waiter, limit) in [(&mut changed, 0), (&mut lapses, 0), (&mut times_out, 2)] {
        let (took, reply) = time_to_reply(waiter);
        assert_eq!(limited(&reply), limit);
        assert!(took < SOON, "{took:?}");
    }
    // And once more, and forward.
    conn.cmd("RL.ACQUIRE k 1 0 ID y LEASE 600000");
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 0 BLOCK 0");
    server.clock().run_behind_ms(7_200_000);
    conn.cmd("DEL k");
    assert!(!waiter.silent_for(SOON));
    assert_eq!(limited(&waiter.recv()), 0);
    conn.cmd("DEL k");
    conn.cmd("RL.ACQUIRE k 1 0 ID y LEASE 60000");
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 0 BLOCK 0");
    server.clock().release();
    // The step ends the lease.
    assert!(!waiter.silent_for(SOON));
    assert_eq!(limited(&waiter.recv()), 0);
}

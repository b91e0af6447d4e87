//! BLOCK: which calls wait, and which of them is served first.

use std::thread::sleep;
use std::time::{Duration, Instant};

use support::*;

/// A call that is denied because another holds the only slot of `key`, in milliseconds.
fn acquire(key: &str, id: &str) -> String {
    format!("RL.ACQUIRE {key} 1 0 1 ID {id} LEASE 600000 MS")
}

fn acquire_block(key: &str, id: &str) -> String {
    acquire(key, id) + " BLOCK 0"
}

fn ids(held: &[Held]) -> Vec<String> {
    held.iter().map(|one| String::from_utf8_lossy(&one.id).into_owned()).collect()
}

// ---- First come, first served ----

#[test]
fn no_call_jumps_the_line_when_what_the_head_waits_for_becomes_available() {
    for (fill, waits, call) in [
        ("RL.ACQUIRE k 1 0 LEASE 1000", "RL.ACQUIRE k 1 0 BLOCK 0", "RL.ACQUIRE k 1 0"),
        ("RL.WINDOW k 1 1s", "RL.WINDOW k 1 1s BLOCK 0", "RL.ACQUIRE k 1 1s"),
        // The head wants three at once while one becomes available every 200 ms.
        ("RL.THROTTLE k 2 5 1s 3", "RL.THROTTLE k 2 5 1s 3 BLOCK 0", "RL.THROTTLE k 2 5 1s"),
    ] {
        // The waiter has to stand in line long before its moment.
        unless_stalled(Duration::from_millis(200), || {
            let server = Server::start();
            server.conn().cmd(fill);
            let mut waiter = server.wait_shortly(waits);
            let mut others = [server.conn(), server.conn()];
            let begin = Instant::now();
            while waiter.silent_for(Duration::from_micros(50)) {
                assert!(begin.elapsed() < SOON, "{waits} is never granted");
                for other in &mut others {
                    let replies = other.pipeline([call; 20]);
                    assert!(replies.iter().all(|reply| limited(reply) > 0), "{call} was allowed");
                }
            }
            assert_eq!(limited(&waiter.recv()), 0);
        });
    }
}

#[test]
fn a_call_in_a_pipeline_waits_before_the_next_is_carried_out() {
    let (server, mut conn) = Server::connect();
    conn.cmd(acquire("k", "x"));
    let mut piped = server.conn();
    piped.send("SET first 1");
    let mut piped = server.wait_on(piped, acquire_block("k", "y"));
    piped.send("RL.HELD k");
    piped.send("SET later 1");
    assert_eq!(text(&piped.recv()), "OK");
    piped.expect_silence();
    assert_eq!(conn.int("EXISTS later"), 0);
    conn.cmd("RL.RELEASE k x");
    assert_eq!(acquired(&piped.recv()).id(), "y");
    assert_eq!(ids(&held(&piped.recv())), ["y"]);
    assert_eq!(text(&piped.recv()), "OK");
}

// ---- Lines are apart ----

#[test]
fn the_same_key_of_two_databases_has_two_lines() {
    let server = Server::start();
    let (mut zero, mut one) = (server.conn(), server.conn());
    one.cmd("SELECT 1");
    for conn in [&mut zero, &mut one] {
        assert_eq!(limited(&conn.cmd(acquire("k", "x"))), 0);
    }
    let mut waits_in_zero = server.wait_in_line(acquire_block("k", "y"));
    let mut other = server.conn();
    other.cmd("SELECT 1");
    let mut waits_in_one = server.wait_on(other, acquire_block("k", "y"));
    one.cmd("RL.RELEASE k x");
    assert_eq!(limited(&waits_in_one.recv()), 0);
    waits_in_zero.expect_silence();
    assert_eq!(zero.held_ids("k"), ["x"]);
    assert_eq!(one.held_ids("k"), ["y"]);
    // By a timer too, which belongs to no client.
    assert_eq!(one.int("RL.RENEW k y LEASE 30"), 1);
    let mut third = server.conn();
    third.cmd("SELECT 1");
    third.send(acquire_block("k", "z"));
    assert_eq!(limited(&third.recv()), 0);
    assert_eq!(one.held_ids("k"), ["z"]);
    assert_eq!(zero.held_ids("k"), ["x"]);
    zero.cmd("RL.RELEASE k x");
    assert_eq!(limited(&waits_in_zero.recv()), 0);
}

#[test]
fn a_key_may_have_any_name() {
    let (server, mut conn) = Server::connect();
    let odd: [&[u8]; 13] = [
        b"", b"\0", b"a\0b", b"{", b"}", b"{}", b"{}x", b"{tag}x", b"x{tag}y{z}", b"}{", b"a}b",
        b"\xff\xfe", b"{a\0b}c",
    ];
    let mut lines = Vec::new();
    for key in odd {
        let hold: [&[u8]; 6] = [b"RL.ACQUIRE", key, b"1", b"0", b"ID", b"x"];
        assert_eq!(limited(&conn.cmd(hold)), 0, "{}", key.escape_ascii());
        let wait: [&[u8]; 8] = [b"RL.ACQUIRE", key, b"1", b"0", b"ID", b"y", b"BLOCK", b"0"];
        lines.push(server.wait_in_line(wait));
    }
    for (key, waiter) in odd.iter().zip(&mut lines).rev() {
        let release: [&[u8]; 3] = [b"RL.RELEASE", key, b"x"];
        assert_eq!(conn.cmd(release), Value::Int(1));
        assert_eq!(limited(&waiter.recv()), 0, "{}", key.escape_ascii());
        assert_eq!(ids(&held(&conn.cmd([&b"RL.HELD"[..], key]))), ["y"]);
    }
    // Nothing was made beside them.
    assert_eq!(conn.int("DBSIZE"), odd.len() as i64);
    server.expect_no_waiting_calls();
}

#[test]
fn grants_denials_and_errors_come_over_resp3_too() {
    let (server, mut conn) = Server::connect();
    conn.cmd(acquire("k", "x"));
    let mut granted = server.wait_on(server.conn_resp3(), acquire_block("k", "y"));
    conn.cmd("RL.RELEASE k x");
    assert_eq!(acquired(&granted.recv()).id(), "y");
    let mut denied = server.conn_resp3();
    let denial = denied.acquire("RL.ACQUIRE k 1 0 BLOCK 5 MS");
    assert_eq!((denial.limited(), denial.id), (2, None));
    let mut wrong = server.wait_on(server.conn_resp3(), acquire_block("k", "z"));
    conn.cmd("SET k v");
    assert!(error_line(&wrong.recv()).starts_with("WRONGTYPE "));
}

// ---- Options beside BLOCK ----

#[test]
fn countdenied_does_not_count_a_wait_that_ends_behind_the_head() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.WINDOW k 3 1h 2");
    let counted = |conn: &mut Conn| 1000 - conn.ints("RL.WINDOW_RO k 1000 1h 0")[2];
    let head = server.wait_in_line("RL.WINDOW k 3 1h 3 COUNTDENIED BLOCK 0");
    // One is available, and another call waits for it.
    let call = "RL.WINDOW k 3 1h 1 COUNTDENIED BLOCK 50";
    assert_eq!(limited(&conn.cmd(call)), 1);
    assert_eq!(counted(&mut conn), 2);
    let (mut behind, id) = server.wait_with_id("RL.WINDOW k 3 1h 1 COUNTDENIED BLOCK 0");
    assert_eq!(conn.int(format!("CLIENT UNBLOCK {id}")), 1);
    assert_eq!(limited(&behind.recv()), 1);
    server.let_timers_fire();
    assert_eq!(counted(&mut conn), 2);
    // The head's own denial counts.
    drop(head);
    server.wait_until_waiting(0);
    assert_eq!(limited(&conn.cmd("RL.WINDOW k 3 1h 3 COUNTDENIED BLOCK 50")), 1);
    assert_eq!(counted(&mut conn), 5);
}

#[test]
fn a_call_with_atmost_waits_only_while_there_is_nothing() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 5 60 3 ID a LEASE 60000");
    let granted = conn.acquire("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID b LEASE 60000");
    assert_eq!(granted.part, Some((2, 2)));
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID c LEASE 60000");
    let (mut late, id) = server.wait_with_id("RL.ACQUIRE k 5 60 4 ATMOST BLOCK 0 ID d LEASE 60000");
    assert_eq!(conn.int("RL.RELEASE k a"), 1);
    let granted = acquired(&waiter.recv());
    assert_eq!((&granted.numbers[..3], granted.part), (&[0, 5, 0][..], Some((3, 2))));
    assert_eq!(conn.int(format!("CLIENT UNBLOCK {id}")), 1);
    let denied = acquired(&late.recv());
    assert_eq!((denied.limited(), denied.part), (2, Some((0, 2))));
    assert_eq!(denied.id, None);
}

#[test]
fn waiting_calls_are_woken_when_a_lapsed_reservation_is_gone_or_settled_late() {
    let (server, mut conn) = Server::connect();
    // Of 600 ms, 100 of which a busy machine may take before it is waited for.
    let (least, most) = (Duration::from_millis(480), Duration::from_millis(1_200));
    unless_stalled(Duration::from_millis(50), || {
        server.conn().cmd("DEL k");
        server.conn().cmd("RL.ACQUIRE k 1 400ms ID a LEASE 200 COUNTLAPSED");
        let mut waiter = server.wait_shortly("RL.WINDOW k 1 400ms BLOCK 0");
        let (took, reply) = time_to_reply(&mut waiter);
        assert_eq!(limited(&reply), 0);
        assert!((least..most).contains(&took), "{took:?}");
    });

    // Whoever cannot have it within ms by what is counted waits all the same: it may be given back.
    for settle in ["RL.RELEASE k b", "RL.APPLY k b 0"] {
        conn.cmd("DEL k");
        conn.cmd("RL.ACQUIRE k 1 60 ID b LEASE 1 COUNTLAPSED");
        let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 60 ID c BLOCK 30000");
        assert_eq!(conn.held("k")[0].ms_left, 0);
        assert_eq!(conn.int(settle), 1);
        assert_eq!(limited(&waiter.recv()), 0, "{settle}");
    }
    server.expect_no_waiting_calls();
}

#[test]
fn the_reservation_of_a_waiter_counts_when_it_lapses() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 60 ID a LEASE 60000");
    let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 60 ID b LEASE 1 COUNTLAPSED BLOCK 0 MS");
    conn.refuses("RL.ACQUIRE k 1 60 ID b", "DUPLICATE ");
    assert_eq!(conn.int("RL.RELEASE k a"), 1);
    assert_eq!(acquired(&waiter.recv()).numbers, [0, 1, 0, -1, 60_001]);
    // Past the end of b's lease, by the real clock of a server of its own.
    sleep(ms(5));
    let held = conn.held("k");
    assert_eq!((held.len(), held[0].ms_left), (1, 0));
    // A waiter that disconnects before it gets its reply gives back.
    let gone = server.wait_in_line("RL.ACQUIRE k 1 60 ID c LEASE 60000 COUNTLAPSED ATMOST BLOCK 0");
    drop(gone);
    eventually(SOON, || server.waiting() == 0);
    assert_eq!(conn.int("RL.RELEASE k b"), 1);
    assert_eq!(conn.acquire("RL.ACQUIRE k 1 60 ID d").limited(), 0);
}

// ---- How many may wait ----

#[test]
fn past_max_waiters_a_call_that_would_wait_is_an_error() {
    // Before 7.0 the setting is an argument of the module.
    let builder = Server::builder();
    let server = builder.module_args(["max-waiters", "2"]).start();
    let mut conn = server.conn();
    for key in ["k", "l", "m"] {
        conn.cmd(acquire(key, "x"));
    }
    let first = server.wait_in_line(acquire_block("k", "a"));
    let mut second = server.wait_in_line(acquire_block("l", "b"));
    // Over all keys; and only what would wait.
    for key in ["k", "l", "m"] {
        conn.refuses(
            acquire_block(key, "c"),
            "ERR BLOCK must not be used while ratelimit.max-waiters calls are waiting",
        );
        assert_eq!(limited(&conn.cmd(acquire(key, "c"))), 2);
    }
    assert_eq!(limited(&conn.cmd(acquire_block("free", "c"))), 0);
    assert_eq!(limited(&conn.cmd("RL.WINDOW w 0 1h BLOCK 0")), 1);
    assert_eq!(server.waiting(), 2);
    drop(first);
    server.wait_until_waiting(1);
    let mut third = server.wait_in_line(acquire_block("k", "c"));
    conn.cmd("RL.RELEASE k x");
    assert_eq!(acquired(&third.recv()).id(), "c");
    if server.version().is_from(7, 0) {
        // Calls that wait go on waiting.
        assert_eq!(conn.text("CONFIG SET ratelimit.max-waiters 0"), "OK");
        assert!(conn.err(acquire_block("k", "d")).contains("max-waiters"));
        assert_eq!(server.waiting(), 1);
    }
    conn.cmd("RL.RELEASE l x");
    assert_eq!(acquired(&second.recv()).id(), "b");
}

/// Somebody else may have made room: any command on the key lets the head in.
#[test]
fn a_command_that_settles_nothing_lets_the_head_in_too() {
    for command in ["RL.APPLY k nobody", "RL.RENEW k nobody", "RL.RELEASE k nobody"] {
        let (server, mut conn) = Server::connect();
        conn.cmd("RL.ACQUIRE k 1 0 ID first LEASE 600000");
        let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 0 ID second LEASE 600000 BLOCK 0");
        let remove =
            "local all = redis.call('ZRANGE', KEYS[1], 0, -1) redis.call('ZREM', KEYS[1], all[1])";
        let remove = ["EVAL", remove, "1", "k"].words();
        let replies = conn.pipeline([remove, command.words(), "RL.HELD k".words()]);
        assert_eq!(ids(&held(&replies[2])), ["second"], "{command}");
        assert_eq!(limited(&waiter.recv()), 0, "{command}");
    }
}

// ---- A transaction or a script is one step ----

/// What fills `k`, the calls that wait for it, and what a transaction does before it counts eight of ten: nobody is tried
/// before its end, so that two are left within it.
const STEPS: [(&str, &str, &str); 10] = [
    ("RL.WINDOW k 10 1h 10", "RL.WINDOW k 10 1h 1 BLOCK 0", "DEL k"),
    ("RL.WINDOW k 10 1h 10", "RL.WINDOW k 10 1h 1 BLOCK 0", "RL.WINDOW k 10 1h -10"),
    ("RL.WINDOW k 10 1h 10", "RL.ALL 1 k WINDOW 10 1h 1 BLOCK 0", "RL.WINDOW k 10 1h -10"),
    ("RL.WINDOW k 10 1h 10", "RL.WINDOW k 10 1h 1 BLOCK 0", "DEL k; RL.WINDOW k 10 1h 0"),
    ("RL.ACQUIRE k 10 1h 10 ID x", "RL.WINDOW k 10 1h 1 BLOCK 0", "RL.RELEASE k x"),
    ("RL.ACQUIRE k 10 1h 10 ID x", "RL.ACQUIRE k 10 1h 1 LEASE 600000 BLOCK 0", "RL.APPLY k x 0"),
    ("RL.ACQUIRE k 10 1h 10 ID x", "RL.WINDOW k 10 1h 1 BLOCK 0", "RL.APPLY k x 0; RL.RENEW k x"),
    ("RL.WINDOW k 10 1h 10", "RL.ACQUIRE k 10 1h 1 LEASE 600000 BLOCK 0", "DEL k; RL.RELEASE k x"),
    // Within the step waiting calls bar others as ever.
    (
        "RL.ACQUIRE k 10 1h 10 ID x", "RL.WINDOW k 10 1h 1 BLOCK 0",
        "RL.RELEASE k x; RL.ACQUIRE k 10 1h",
    ),
    (
        "RL.WINDOW k 10 1h 10",
        "RL.WINDOW k 10 1h 1 BLOCK 0",
        "DEL k; RL.ALL 2 other k WINDOW 1 1h WINDOW 10 1h",
    ),
];

/// The ways to run commands as one step.
fn ways() -> Vec<&'static str> {
    let mut ways = vec!["MULTI", "EVAL", "EVAL in MULTI"];
    if !Version::under_test().lacks("FUNCTION", (7, 0)) {
        ways.push("FCALL");
    }
    ways
}

/// Runs the lines in ARGV as commands.
const RUN_ALL: &str = "local replies = {}
    for at, line in ipairs(ARGV) do
        local words = {}
        for word in line:gmatch('%S+') do words[#words + 1] = word end
        replies[at] = redis.call(unpack(words))
    end
    return replies";

/// Runs commands as one step, or by another module. Returns their replies.
fn as_one_step(way: &str, conn: &mut Conn, commands: &[&str]) -> Vec<Value> {
    fn script<'a>(commands: &[&'a str]) -> Vec<&'a str> {
        [&["EVAL", RUN_ALL, "0"], commands].concat()
    }
    match way {
        "MULTI" => conn.transaction(commands),
        "EVAL" => conn.array(script(commands)),
        "EVAL in MULTI" => {
            let (first, rest) = commands.split_at(1);
            let replies = conn.transaction([script(first), script(rest)]);
            replies.iter().flat_map(|replies| elements(replies).to_vec()).collect()
        }
        "FCALL" => {
            let body = RUN_ALL.replace("ARGV", "args");
            let register = "redis.register_function('run', function(keys, args)";
            let library = format!("#!lua name=calls\n{register} {body} end)");
            conn.cmd(["FUNCTION", "LOAD", "REPLACE", &library]);
            conn.array([&["FCALL", "run", "0"], commands].concat())
        }
        _ => commands.iter().map(|line| conn.cmd(format!("TESTS.CALL {line}"))).collect(),
    }
}

#[test]
fn nobody_is_tried_before_the_end_of_a_step() {
    for way in ways() {
        let (server, mut conn) = Server::connect();
        for (fill, waits, step) in STEPS {
            let fill = fill.replace(" ID x", " ID x LEASE 600000");
            assert_eq!(limited(&conn.cmd(fill)), 0);
            let mut line = [(); 3].map(|()| server.wait_in_line(waits));
            let mut commands: Vec<_> = step.split("; ").collect();
            commands.extend(["RL.WINDOW k 10 1h 8 FORCE", "RL.WINDOW_RO k 10 1h 0"]);
            let replies = as_one_step(way, &mut conn, &commands);
            assert_eq!(ints(replies.last().unwrap())[2], 2, "{way}, {step}: {replies:?}");
            if step.contains("RL.ALL") || step.contains("RL.ACQUIRE k") {
                assert_ne!(limited(&replies[1]), 0, "{way}, {step}: {replies:?}");
            }
            // The next two get what it has left.
            for waiter in &mut line[..2] {
                assert_eq!(limited(&waiter.recv()), 0, "{way}, {step}");
            }
            line[2].expect_silence();
            assert_eq!(conn.ints("RL.WINDOW_RO k 1000 1h 0")[2], 990, "{way}, {step}");
            conn.cmd("DEL k");
            assert_eq!(limited(&line[2].recv()), 0, "{way}, {step}");
            conn.cmd("FLUSHALL");
        }
        server.expect_no_waiting_calls();
    }
}

#[test]
fn nobody_is_tried_within_a_call_of_another_module() {
    let load = format!("loadmodule {} call", test_module());
    let (server, mut conn) = Server::builder().config(load).connect();
    conn.cmd(acquire("k", "x"));
    let mut waiter = server.wait_in_line(acquire_block("k", "y"));
    let replies = conn.pipeline(["TESTS.CALL RL.RELEASE k x", "RL.HELD k"]);
    assert_eq!(held(&replies[1]), []);
    assert_eq!(acquired(&waiter.recv()).id(), "y");
}

#[test]
fn nobody_is_tried_while_a_script_is_busy() {
    let (server, mut conn) = Server::connect();
    conn.cmd("CONFIG SET lua-time-limit 1");
    conn.cmd(acquire("k", "x"));
    let mut waiter = server.wait_in_line(acquire_block("k", "y"));
    // The server turns its event loop meanwhile.
    let script = "redis.call('RL.RELEASE', KEYS[1], 'x')
        local n = 0 while n < 3e7 do n = n + 1 end
        return redis.call('RL.HELD', KEYS[1])";
    conn.send(["EVAL", script, "1", "k"]);
    let mut other = server.conn();
    let mut was_busy = false;
    while conn.silent_for(ms(1)) {
        was_busy |= matches!(other.cmd("PING"), Value::ServerError(_));
    }
    assert!(was_busy);
    assert_eq!(held(&conn.recv()), []);
    assert_eq!(acquired(&waiter.recv()).id(), "y");
}

// ---- Where no client may be blocked ----

/// A call that would wait is denied at once, however often, and leaves nothing behind.
#[test]
fn block_is_ignored_within_a_step_and_in_calls_of_another_module() {
    for way in ways().into_iter().chain(["TESTS.CALL"]) {
        let load = format!("loadmodule {} call", test_module());
        let (server, mut conn) = Server::builder().config(load).connect();
        let call = |conn: &mut Conn, line: &str| limited(&as_one_step(way, conn, &[line])[0]);
        conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
        conn.cmd("RL.WINDOW w 1 1h");
        conn.cmd("RL.THROTTLE t 0 1 1h");
        for _ in 0..20 {
            for (line, denial) in [
                ("RL.ACQUIRE a 1 0 1 BLOCK 0", 2),
                ("RL.WINDOW w 1 1h 1 BLOCK 0", 1),
                ("RL.THROTTLE t 0 1 1h 1 BLOCK 0", 1),
                ("RL.ALL 2 a w ACQUIRE 1 0 WINDOW 9 1h BLOCK 0", 2),
            ] {
                assert_eq!(call(&mut conn, line), denial, "{way}: {line}");
            }
        }
        server.expect_no_waiting_calls();
        // What is available is taken.
        assert_eq!(call(&mut conn, "RL.ACQUIRE free 1 0 1 BLOCK 0"), 0, "{way}");
        // Also behind a call that waits.
        let mut waiter = server.wait_in_line("RL.ACQUIRE a 1 0 1 BLOCK 0");
        assert_eq!(call(&mut conn, "RL.ACQUIRE a 1 0 1 BLOCK 0"), 2, "{way}");
        // A denial that ends the call counts.
        assert_eq!(call(&mut conn, "RL.WINDOW w 1 1h 1 COUNTDENIED BLOCK 0"), 1, "{way}");
        assert_eq!(conn.ints("RL.WINDOW w 1000 1h 0")[2], 998, "{way}");
        conn.cmd("RL.RELEASE a x");
        assert_eq!(limited(&waiter.recv()), 0, "{way}");
        server.expect_no_waiting_calls();
        eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
    }
}

#[test]
fn on_a_replica_that_may_be_written_to_block_is_ignored() {
    let master = Server::start();
    let replica = Server::builder().config("replica-read-only no").replica_of(&master).start();
    wait_for_sync(&master, &replica);
    let mut conn = replica.conn();
    for (call, denied) in [
        ("RL.ACQUIRE k 1 0 1", 2),
        ("RL.WINDOW w 1 1h 1", 1),
        ("RL.THROTTLE t 0 1 1h 1", 1),
        ("RL.ALL 1 all ACQUIRE 1 0", 2),
    ] {
        // What is allowed is taken, and what is not is denied at once.
        for (block, expected) in [("1h", 0), ("0", denied), ("2h", denied)] {
            let reply = conn.cmd(format!("{call} BLOCK {block}"));
            assert_eq!(limited(&reply), expected, "{call} BLOCK {block}");
        }
    }
    replica.expect_no_waiting_calls();
    assert_eq!(replica.info_ratelimit("waited_timed_out"), 0);
}

/// The module's state belongs to the thread that holds the server's lock, not to one thread.
#[test]
fn another_module_may_call_from_its_own_thread() {
    let load = format!("loadmodule {} call", test_module());
    let (server, mut conn) = Server::builder().config(load).connect();
    let mut in_thread = |line: &str| conn.cmd(format!("TESTS.THREAD {line}"));
    for call in ["RL.THROTTLE t 0 1 60", "RL.WINDOW w 1 1d 1 FIXED TZ Asia/Shanghai"] {
        assert_eq!([0, 1].map(|_| limited(&in_thread(call))), [0, 1], "{call}");
    }
    assert!(matches!(in_thread("RL.TOP"), Value::Array(keys) if keys.len() == 2));
    for number in 0..20 {
        let call = format!("RL.ACQUIRE s 20 0 1 ID {number} LEASE 600000");
        assert_eq!(limited(&in_thread(&call)), 0, "{call}");
    }
    // A change to a key in a thread drops the key's index.
    assert_eq!(in_thread("ZREMRANGEBYRANK s 0 -1"), Value::Int(20));
    assert_eq!(limited(&in_thread("RL.ACQUIRE s 20 0 19 ID x LEASE 600000")), 0);
    // A release in a thread wakes waiting calls.
    let mut waiter = server.wait_in_line("RL.ACQUIRE s 20 0 2 BLOCK 20000");
    assert_eq!(in_thread("RL.RELEASE s x"), Value::Int(1));
    assert_eq!(limited(&waiter.recv()), 0);
    server.expect_no_waiting_calls();
}

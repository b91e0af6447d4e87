//! BLOCK: what could crash the server, leak, or lose or double a grant.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::*;

#[track_caller]
fn same_state(master: &Server, replica: &Server, key: &str) {
    wait_for_sync(master, replica);
    assert_eq!(state(&mut master.conn(), key), state(&mut replica.conn(), key), "{key}");
}

// ---- Timers while nothing may be replicated ----

/// Three lines whose moment comes while a pause is in force: none is granted before it is over.
#[track_caller]
fn nothing_is_granted_during(master: &Server, replica: &Server, pause: &str, end: impl FnOnce()) {
    const MOMENT_MS: u64 = 300;
    let mut conn = master.conn();
    conn.cmd("RL.ACQUIRE a 1 0 1 ID holder LEASE 600000");
    conn.cmd("RL.ACQUIRE w 1 1h 1 ID holder LEASE 600000");
    conn.cmd("RL.THROTTLE t 0 1 1h");
    let mut line = [
        "RL.ACQUIRE a 1 0 1 ID x LEASE 600000 BLOCK 0",
        "RL.THROTTLE t 0 1 1h 1 BLOCK 0",
        "RL.WINDOW w 1 1h 1 BLOCK 0",
    ]
    .map(|call| master.wait_in_line(call));
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + ms(MOMENT_MS);
    let replies = conn.pipeline([
        format!("RL.RENEW a holder LEASE {MOMENT_MS}"),
        format!("RL.RENEW w holder LEASE {MOMENT_MS}"),
        format!("SET t {} EX 10000", soon.as_nanos()),
        pause.to_owned(),
    ]);
    assert_eq!(replies, [Value::Int(1), Value::Int(1), Value::Okay, Value::Okay]);
    assert!(line[0].silent_for(ms(MOMENT_MS + 200)), "granted while paused");
    for waiter in &mut line {
        assert!(waiter.silent_for(ms(1)), "granted while paused");
    }
    end();
    for waiter in &mut line {
        assert_eq!(limited(&waiter.recv()), 0);
    }
    for key in ["a", "t", "w"] {
        same_state(master, replica, key);
    }
    assert_eq!(master.conn().held_ids("a"), ["x"]);
}

#[test]
fn a_timer_during_client_pause_write_waits_for_its_end() {
    let (master, replica) = Server::with_replica();
    nothing_is_granted_during(&master, &replica, "CLIENT PAUSE 60000 WRITE", || {
        assert_eq!(master.conn().text("CLIENT UNPAUSE"), "OK");
    });
}

#[test]
fn a_timer_during_client_pause_all_waits_for_its_end() {
    let (master, replica) = Server::with_replica();
    nothing_is_granted_during(&master, &replica, "CLIENT PAUSE 1500 ALL", || {});
}

#[test]
fn a_failover_that_is_called_off_goes_on_granting() {
    let (master, replica) = Server::with_replica();
    // It never catches up.
    let frozen = replica.freeze();
    nothing_is_granted_during(&master, &replica, "FAILOVER", || {
        assert_eq!(master.conn().text("FAILOVER ABORT"), "OK");
        drop(frozen);
    });
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
    same_state(&master, &replica, "k");
}

// ---- A waiter that dies between its grant and its reply ----

#[test]
fn the_grant_of_a_waiter_killed_before_its_answer_goes_to_the_next() {
    let (server, replica) = Server::with_replica();
    for (fill, waits, free) in [
        (
            "RL.ACQUIRE k 1 0 1 ID x LEASE 600000",
            "RL.ACQUIRE k 1 0 1 LEASE 600000 BLOCK 0",
            &["RL.RELEASE k x"][..],
        ),
        (
            "RL.ACQUIRE k 1 1h 1 ID x LEASE 600000",
            "RL.ACQUIRE k 1 1h 1 LEASE 600000 BLOCK 0",
            &["RL.APPLY k x 0"],
        ),
        // The first is no command of the module, so the second is there to wake the line.
        ("RL.WINDOW k 1 1h", "RL.WINDOW k 1 1h 1 BLOCK 0", &["DEL k", "RL.WINDOW k 1 1h 0"]),
        ("RL.THROTTLE k 0 1 1h", "RL.THROTTLE k 0 1 1h 1 BLOCK 0", &["RL.THROTTLE k 0 1 1h -1"]),
    ] {
        let mut conn = server.conn();
        for dying in 1..=2 {
            assert_eq!(limited(&conn.cmd(fill)), 0);
            let mut dead = Vec::new();
            let mut kills = Vec::new();
            for _ in 0..dying {
                let mut waiter = server.conn();
                kills.push(format!("CLIENT KILL ID {}", waiter.id()));
                dead.push(server.wait_on(waiter, waits));
            }
            let mut living = server.wait_in_line(waits);
            let mut last = server.wait_in_line(waits);
            conn.pipeline(free.iter().map(|line| (*line).to_owned()).chain(kills));
            for waiter in &mut dead {
                waiter.expect_closed();
            }
            assert!(!living.silent_for(SOON), "lost: {waits}");
            assert_eq!(limited(&living.recv()), 0);
            assert!(last.silent_for(ms(120)), "given twice: {waits}");
            same_state(&server, &replica, "k");
            conn.cmd("DEL k");
            assert_eq!(limited(&last.recv()), 0);
            conn.cmd("DEL k");
        }
    }
    server.expect_no_waiting_calls();
}

/// Once it is a master again, others may have settled what the dead client was granted.
#[test]
fn a_server_that_became_a_replica_gives_nothing_back_for_a_dead_client() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID x LEASE 600000");
    let mut waiter = server.conn();
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    let mut waiter = server.wait_on(waiter, waits("w").as_str());
    conn.pipeline(["RL.RELEASE k x", &kill, "REPLICAOF 127.0.0.1 1"]);
    waiter.expect_closed();
    // A timer gives back, once that is possible.
    server.let_timers_fire();
    conn.cmd("REPLICAOF NO ONE");
    server.let_timers_fire();
    assert_eq!(conn.held_ids("k"), ["w"]);
}

#[test]
fn a_dead_client_gives_back_exactly_what_it_took() {
    let (server, mut conn) = Server::connect();
    let mut kill_after = |fill: &str, waits: &str, free: &[&str]| {
        conn.cmd(fill);
        let (mut waiter, id) = server.wait_with_id(waits);
        conn.pipeline([free, &[&format!("CLIENT KILL ID {id}")]].concat());
        waiter.expect_closed();
        server.expect_no_waiting_calls();
        server.let_timers_fire();
    };
    // A part, by ATMOST.
    kill_after(
        "RL.THROTTLE t 9 1 1h 10",
        "RL.THROTTLE t 9 1 1h 7 ATMOST BLOCK 0",
        &["RL.THROTTLE t 9 1 1h -3"],
    );
    kill_after(
        "RL.ACQUIRE w 9 1h 9 ID x LEASE 600000",
        "RL.WINDOW w 9 1h 5 ATMOST BLOCK 0",
        &["RL.APPLY w x 6"],
    );
    // Somebody else's event came after it: theirs stays.
    kill_after(
        "RL.WINDOW v 9 1h 9",
        "RL.WINDOW v 9 1h 2 BLOCK 0",
        &["DEL v", "RL.WINDOW v 9 1h 0", "RL.WINDOW v 9 1h 3"],
    );
    // Single events: the total of one is the name of another.
    let three = ["RL.WINDOW u 9 1h"; 3];
    let kill = [&["DEL u", "RL.WINDOW u 9 1h 0"][..], &three].concat();
    kill_after("RL.WINDOW u 9 1h 9", "RL.WINDOW u 9 1h 1 BLOCK 0", &kill);
    kill_after(
        "RL.WINDOW c 9 1d 9 FIXED",
        "RL.WINDOW c 9 1d 1 FIXED BLOCK 0",
        &["DEL c", "RL.WINDOW c 9 1d 3 FIXED"],
    );
    let mut conn = server.conn();
    assert_eq!(conn.ints("RL.WINDOW u 9 1h")[2], 5);
    assert_eq!(conn.ints("RL.WINDOW c 9 1d FIXED")[2], 5);
    assert_eq!(conn.ints("RL.THROTTLE t 9 1 1h 0")[2], 3);
    assert_eq!(conn.ints("RL.WINDOW w 9 1h 0")[2], 3);
    assert_eq!(conn.ints("RL.WINDOW v 9 1h 0")[2], 6);
}

/// A connection, another whose call waits for what the holder has, and the number of that.
fn behind_a_holder(server: &Server) -> (Conn, Conn, i64) {
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let mut first = server.conn();
    let id = first.id();
    (conn, server.wait_on(first, waits("a")), id)
}

#[test]
fn client_unblock_right_after_the_grant_returns_the_grant_or_gives_it_back() {
    // A server that is held up in the command leaves the grant to its timer.
    unless_stalled(ms(1), || {
        let server = Server::start();
        let (mut conn, mut first, id) = behind_a_holder(&server);
        conn.pipeline(["RL.RELEASE k holder", &format!("CLIENT UNBLOCK {id}")]);
        // One reply, the grant, and then that of the next call.
        assert_eq!(acquired(&first.recv()).id(), "a");
        assert_eq!(text(&first.cmd("PING")), "PONG");
        server.let_timers_fire();
        assert_eq!(conn.held_ids("k"), ["a"]);
    });
}

#[test]
fn client_unblock_error_right_after_the_grant_does_not_lose_or_repeat_it() {
    let server = Server::start();
    let (mut conn, mut first, id) = behind_a_holder(&server);
    let mut second = server.wait_in_line(waits("b"));
    conn.pipeline(["RL.RELEASE k holder", &format!("CLIENT UNBLOCK {id} ERROR")]);
    let reply = first.recv();
    server.let_timers_fire();
    match reply {
        // It got its reply before, or its grant was given back without a reply.
        Value::Array(_) => assert_eq!(conn.held_ids("k"), ["a"]),
        other => {
            assert!(error_line(&other).starts_with("UNBLOCKED "));
            // Valkey drops the reply without a word to the module: the reservation stays until its lease ends.
            if !server.version().is_valkey {
                assert_eq!(acquired(&second.recv()).id(), "b");
            }
        }
    }
    assert_eq!(conn.held("k").len(), 1);
}

// ---- Where no client may be blocked ----

/// A call that would wait is denied at once, however often, and leaves nothing behind.
#[track_caller]
fn block_is_ignored(server: &Server, mut call: impl FnMut(&mut Conn, &str) -> Value) {
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
    conn.cmd("RL.WINDOW w 1 1h");
    conn.cmd("RL.THROTTLE t 0 1 1h");
    for _ in 0..20 {
        for (line, denial) in [
            ("RL.ACQUIRE a 1 0 1 BLOCK 0", 2),
            ("RL.WINDOW w 1 1h 1 BLOCK 0", 1),
            ("RL.THROTTLE t 0 1 1h 1 BLOCK 0", 1),
        ] {
            let reply = call(&mut conn, line);
            assert_eq!(limited(&reply), denial, "{line}: {reply:?}");
        }
    }
    server.expect_no_waiting_calls();
    // What is available is taken.
    assert_eq!(limited(&call(&mut conn, "RL.ACQUIRE free 1 0 1 BLOCK 0")), 0);
    // Also behind a call that waits.
    let mut waiter = server.wait_in_line("RL.ACQUIRE a 1 0 1 BLOCK 0");
    assert_eq!(limited(&call(&mut conn, "RL.ACQUIRE a 1 0 1 BLOCK 0")), 2);
    // A denial that ends the call counts.
    assert_eq!(limited(&call(&mut conn, "RL.WINDOW w 1 1h 1 COUNTDENIED BLOCK 0")), 1);
    assert_eq!(conn.ints("RL.WINDOW w 1000 1h 0")[2], 998);
    conn.cmd("RL.RELEASE a x");
    assert_eq!(limited(&waiter.recv()), 0);
    server.expect_no_waiting_calls();
    eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
}

#[test]
fn block_is_ignored_in_multi() {
    block_is_ignored(&Server::start(), |conn, line| conn.transaction([line]).remove(0));
}

#[test]
fn block_is_ignored_in_lua() {
    block_is_ignored(&Server::start(), |conn, line| {
        let script = "local a = {}; for word in ARGV[1]:gmatch('%S+') do a[#a + 1] = word end; \
                      return redis.call(unpack(a))";
        conn.cmd(["EVAL", script, "0", line])
    });
}

#[test]
fn block_is_ignored_in_functions() {
    let server = Server::start();
    if server.version().lacks("FUNCTION", (7, 0)) {
        return;
    }
    let library = "#!lua name=calls\nredis.register_function('call', function(keys, args) \
                   local a = {}; for word in args[1]:gmatch('%S+') do a[#a + 1] = word end; \
                   return redis.call(unpack(a)) end)";
    assert_eq!(server.conn().text(["FUNCTION", "LOAD", library]), "calls");
    block_is_ignored(&server, |conn, line| conn.cmd(["FCALL", "call", "0", line]));
}

#[test]
fn block_is_ignored_in_calls_of_another_module() {
    let server = Server::builder().config(format!("loadmodule {} call", test_module())).start();
    block_is_ignored(&server, |conn, line| {
        let mut words = vec![b"TESTS.CALL".to_vec()];
        words.extend(line.words());
        conn.cmd(words)
    });
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

// ---- Replication and files ----

#[test]
fn each_grant_is_replicated() {
    let master = Server::builder().aof().start();
    let replica = Server::replica_of(&master, true);
    let mut conn = master.conn();
    for db in ["0", "3"] {
        conn.cmd(["SELECT", db]);
        let in_line = |call: &str| {
            let mut conn = master.conn();
            conn.cmd(["SELECT", db]);
            master.wait_on(conn, call)
        };
        let same = |key: &str| {
            wait_for_sync(&master, &replica);
            let (mut here, mut there) = (master.conn(), replica.conn());
            here.cmd(["SELECT", db]);
            there.cmd(["SELECT", db]);
            let (here, there) = (state(&mut here, key), state(&mut there, key));
            assert_eq!(here, there, "{key} in {db}");
            assert_ne!(here[0], Value::SimpleString("none".into()));
        };
        conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
        let mut line: Vec<_> = (0..4)
            .map(|number| in_line(&format!("RL.ACQUIRE a 1 0 1 ID {number} LEASE 600000 BLOCK 0")))
            .collect();
        let mut holder = "x".to_owned();
        for waiter in &mut line {
            conn.cmd(format!("RL.RELEASE a {holder}"));
            holder = acquired(&waiter.recv()).id();
            same("a");
        }
        // By timers.
        conn.cmd("RL.ACQUIRE l 1 0 1 LEASE 100");
        conn.cmd("RL.ACQUIRE w 1 1h 1 LEASE 100");
        conn.cmd("RL.THROTTLE t 0 10 1s");
        for (key, call) in [
            ("l", "RL.ACQUIRE l 1 0 1 ID y LEASE 600000 BLOCK 0"),
            ("w", "RL.WINDOW w 1 1h 1 BLOCK 0"),
            ("t", "RL.THROTTLE t 0 1 1h 1 BLOCK 0"),
        ] {
            assert_eq!(limited(&conn.cmd(call)), 0);
            same(key);
        }
    }
    drop(conn);
    let aof: Vec<_> = as_commands(&master.aof());
    assert!(aof.iter().all(|line| !line.to_uppercase().starts_with("RL.")), "{aof:?}");
}

#[test]
fn reloading_the_data_set_does_not_disturb_waiting_calls() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID x LEASE 600000");
    let mut waiter = server.wait_in_line(waits("a"));
    assert_eq!(conn.text("DEBUG RELOAD"), "OK");
    assert!(waiter.silent_for(ms(150)));
    conn.cmd("RL.RELEASE k x");
    assert_eq!(acquired(&waiter.recv()).id(), "a");
}

// ---- Many ----

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = env_number("RATELIMIT_SEED").unwrap_or_else(now);
    eprintln!("RATELIMIT_SEED={seed}");
    seed
}

/// Eight workers take, hold and release by the rules, and sometimes vanish or are unblocked or killed at any
/// moment. A worker that got its reply is inside until it releases: there are never more inside than
/// there are slots, a release of what was granted finds it, and in the end every slot is free.
#[test]
fn no_grant_is_lost_or_given_twice_in_1000_rounds_of_random_timing() {
    const WORKERS: i64 = 8;
    const ROUNDS: i64 = 1000;
    const SLOTS: i64 = 3;
    let seed = seed();
    let server = Server::start();
    let inside = AtomicI64::new(0);
    let (rounds, grants) = (AtomicI64::new(0), AtomicI64::new(0));
    let work = |number: i64| {
        let mut random = Random::new(seed ^ (number as u64) << 32);
        let (mut conn, mut other) = (server.conn(), server.conn());
        let mut round = 0;
        while rounds.fetch_add(1, SeqCst) < ROUNDS {
            round += 1;
            let id = format!("w{number}r{round}");
            let block = random.pick(&[0, 1, 2, 3, 5, 8, 20]);
            let call = format!("RL.ACQUIRE k {SLOTS} 0 1 ID {id} LEASE 600000 BLOCK {block}");
            if random.one_in(6) {
                // It vanishes at some moment; what it may have been granted is given back by another.
                let client = conn.id();
                conn.send(&call);
                sleep(Duration::from_micros(random.below(4000) as u64));
                match random.below(4) {
                    0 => {}
                    1 => drop(other.cmd(format!("CLIENT KILL ID {client}"))),
                    2 => {
                        let kill = format!("CLIENT KILL ID {client}");
                        let release = format!("RL.RELEASE k {id}");
                        other.pipeline([release, kill]);
                    }
                    _ => {
                        let how = random.pick(&["TIMEOUT", "ERROR"]);
                        other.cmd(format!("CLIENT UNBLOCK {client} {how}"));
                        conn.recv();
                    }
                }
                conn = server.conn();
                // Until its connection is gone its call may still come in.
                let named = format!("id={client} ");
                eventually(SOON, || !other.text("CLIENT LIST").contains(&named));
                other.cmd(format!("RL.RELEASE k {id}"));
                continue;
            }
            let answer = conn.acquire(&call);
            if answer.limited() != 0 {
                assert_ne!(block, 0, "BLOCK 0 is never denied");
                continue;
            }
            grants.fetch_add(1, SeqCst);
            assert_eq!(answer.id(), id);
            let now_inside = inside.fetch_add(1, SeqCst) + 1;
            assert!(now_inside <= SLOTS, "{now_inside} inside, seed {seed}");
            sleep(Duration::from_micros(random.below(2500) as u64));
            inside.fetch_sub(1, SeqCst);
            match random.below(5) {
                0 => assert_eq!(conn.int(format!("RL.RENEW k {id} LEASE 1")), 1),
                1 => assert_eq!(
                    conn.int([
                        "EVAL",
                        "return redis.call('RL.RELEASE', KEYS[1], ARGV[1])",
                        "1",
                        "k",
                        &id
                    ]),
                    1
                ),
                _ => assert_eq!(conn.int(format!("RL.RELEASE k {id}")), 1, "seed {seed}"),
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let work = &work;
                scope.spawn(move || work(number))
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let mut conn = server.conn();
    eventually(SOON, || conn.held_ids("k").is_empty());
    assert_eq!(conn.acquire(format!("RL.ACQUIRE k {SLOTS} 0 {SLOTS} ID all")).limited(), 0);
    assert!(grants.load(SeqCst) > ROUNDS / 4, "{grants:?} grants");
    server.expect_no_waiting_calls();
    conn.cmd("DEL k");
    eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
}

#[test]
fn the_memory_of_2000_waiters_comes_back() {
    rlimit::increase_nofile_limit(u64::MAX).expect("raise the limit of open files");
    let (server, mut conn) = Server::connect();
    let used = || server.info_number("used_memory");
    let before = used();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let mut line: Vec<_> = (0..2000).map(|_| server.conn()).collect();
    line.iter_mut()
        .enumerate()
        .for_each(|(number, waiter)| waiter.send(waits(&number.to_string())));
    server.wait_until_waiting(2000);
    assert_eq!(server.info("blocked_clients").as_deref(), Some("2000"));
    // Half of them go, the rest is answered by one change.
    line.truncate(1000);
    server.wait_until_waiting(1000);
    conn.cmd("SET k v");
    for waiter in &mut line {
        assert!(error_line(&waiter.recv()).starts_with("WRONGTYPE "));
    }
    drop(line);
    server.expect_no_waiting_calls();
    conn.cmd("DEL k");
    // Servers keep what blocking a module's client took for the next; from 7.0 on they free it little by little.
    if server.version().is_from(7, 0) {
        eventually(SOON, || used() - before < 1_000_000);
    }
    eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
}

#[test]
fn info_counts_how_waits_ended() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID x LEASE 600000");
    let mut granted = server.wait_in_line(waits("a"));
    let left = server.wait_in_line(waits("b"));
    assert_eq!(limited(&conn.cmd("RL.ACQUIRE k 1 0 BLOCK 5")), 2);
    assert_eq!(limited(&conn.cmd("RL.ACQUIRE k 1 0")), 2);
    let figures = || {
        ["waiting", "waited_granted", "waited_timed_out"].map(|name| server.info_ratelimit(name))
    };
    assert_eq!(figures(), [2, 0, 1]);
    drop(left);
    server.wait_until_waiting(1);
    conn.cmd("RL.RELEASE k x");
    granted.recv();
    assert_eq!(figures(), [0, 1, 1]);
    // Each call is counted once, by its reply.
    assert_eq!(
        ["acquire_allowed", "acquire_denied", "acquire_errors"]
            .map(|name| server.info_ratelimit(name)),
        [2, 2, 0]
    );
}

//! BLOCK: a grant is replicated, is given back if its client is gone, and is never lost or given twice.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::*;

#[test]
fn grants_are_replicated_in_their_database() {
    let (master, replica) = Server::with_replica();
    let [mut here, mut there] = [&master, &replica].map(Server::conn);
    for conn in [&mut here, &mut there] {
        conn.cmd("SELECT 3");
    }
    let acquire = "RL.ACQUIRE k 1 0 1 ID y LEASE 600000 BLOCK 0";
    for (fill, waits, free) in [
        ("RL.ACQUIRE k 1 0 1 ID x LEASE 600000", acquire, "RL.RELEASE k x"),
        // By timers.
        ("RL.ACQUIRE k 1 0 1 LEASE 100", acquire, "PING"),
        ("RL.ACQUIRE k 1 1h 1 LEASE 100", "RL.WINDOW k 1 1h 1 BLOCK 0", "PING"),
        ("RL.THROTTLE k 0 10 1s", "RL.THROTTLE k 0 1 1h 1 BLOCK 0", "PING"),
    ] {
        here.cmd("DEL k");
        assert_eq!(limited(&here.cmd(fill)), 0);
        let mut waiter = master.conn();
        waiter.cmd("SELECT 3");
        waiter.send(waits);
        sleep(ms(20));
        here.cmd(free);
        assert_eq!(limited(&waiter.recv()), 0, "{waits}");
        wait_for_sync(&master, &replica);
        assert_eq!(state(&mut here, "k"), state(&mut there, "k"), "{waits}");
        assert_eq!(here.int("EXISTS k"), 1);
    }
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
            assert_in_sync(&server, &replica, "k");
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

/// The dead client was granted the id but never got the reply. Meanwhile it was released, and another client has it now.
#[test]
fn a_dead_client_s_grant_is_not_given_back_in_place_of_another() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let (_dies, id) = server.wait_with_id("RL.ACQUIRE k 1 0 1 ID x LEASE 600000 BLOCK 0");
    let replies = conn.pipeline([
        "RL.RELEASE k holder",
        &format!("CLIENT KILL ID {id}"),
        "RL.RELEASE k x",
        "RL.ACQUIRE k 1 0 1 ID x LEASE 500000",
    ]);
    assert_eq!(acquired(&replies[3]).id(), "x");
    server.let_timers_fire();
    assert_eq!(conn.held_ids("k"), ["x"]);
    server.expect_no_waiting_calls();
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

// ---- At random ----

/// Workers take, hold and release slots of one key or of three at once by the rules, and sometimes vanish or are unblocked or
/// killed at any moment. A worker that got its reply is inside until it releases: there are never more inside than there are
/// slots, a release of what was granted finds it, and in the end every slot is free.
#[test]
fn no_grant_is_lost_or_given_twice_in_1000_rounds_of_random_timing() {
    const WORKERS: i64 = 12;
    const ROUNDS: i64 = 1000;
    const SLOTS: [(&str, i64); 3] = [("a", 3), ("b", 5), ("c", 4)];
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = env_number("RATELIMIT_SEED").unwrap_or_else(now);
    eprintln!("RATELIMIT_SEED={seed}");
    let server = Server::start();
    let inside = SLOTS.map(|_| AtomicI64::new(0));
    let (rounds, grants) = (AtomicI64::new(0), AtomicI64::new(0));
    let work = |number: i64| {
        let mut random = Random::new(seed ^ (number as u64) << 32);
        let (mut conn, mut other) = (server.conn(), server.conn());
        let mut round = 0;
        while rounds.fetch_add(1, SeqCst) < ROUNDS {
            round += 1;
            let id = format!("w{number}r{round}");
            let taken = if random.one_in(2) { &SLOTS[..1] } else { &SLOTS };
            let clause = |(_, limit): &_| format!("{limit} 0 1 ID {id} LEASE 600000 ");
            let block = random.pick(&[0, 1, 2, 3, 5, 8, 20]);
            let by = random.pick(&["", " BY x", " BY y WEIGHT 3"]);
            let call = match taken {
                [one] => format!("RL.ACQUIRE a {}BLOCK {block}{by}", clause(one)),
                all => {
                    let clauses = all.iter().map(|one| format!("ACQUIRE {}", clause(one)));
                    format!("RL.ALL 3 a b c {}BLOCK {block}{by}", clauses.collect::<String>())
                }
            };
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
                        other.pipeline([format!("RL.RELEASE a {id}"), kill]);
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
                for (key, _) in taken {
                    other.cmd(format!("RL.RELEASE {key} {id}"));
                }
                continue;
            }
            if limited(&conn.cmd(&call)) != 0 {
                assert_ne!(block, 0, "BLOCK 0 is never denied");
                continue;
            }
            grants.fetch_add(1, SeqCst);
            for (inside, (key, limit)) in inside.iter().zip(taken) {
                let now_inside = inside.fetch_add(1, SeqCst) + 1;
                assert!(now_inside <= *limit, "{now_inside} inside {key}, seed {seed}");
            }
            sleep(Duration::from_micros(random.below(2500) as u64));
            for (inside, (key, _)) in inside.iter().zip(taken) {
                inside.fetch_sub(1, SeqCst);
                let release = "return redis.call('RL.RELEASE', KEYS[1], ARGV[1])";
                let released = match random.below(5) {
                    0 => conn.int(format!("RL.RENEW {key} {id} LEASE 1")),
                    1 => conn.int(["EVAL", release, "1", key, &id]),
                    _ => conn.int(format!("RL.RELEASE {key} {id}")),
                };
                assert_eq!(released, 1, "{key}, seed {seed}");
            }
        }
    };
    scope(|scope| {
        let workers: Vec<_> =
            (0..WORKERS).map(|number| scope.spawn(move || work(number))).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let mut conn = server.conn();
    for (key, limit) in SLOTS {
        eventually(SOON, || conn.held_ids(key).is_empty());
        assert_eq!(conn.acquire(format!("RL.ACQUIRE {key} {limit} 0 {limit}")).limited(), 0);
    }
    assert!(grants.load(SeqCst) > ROUNDS / 4, "{grants:?} grants");
    server.expect_no_waiting_calls();
    eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
}

//! BLOCK of RL.ALL: calls that wait for several limits, one line at a time.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::Duration;

use support::*;

/// A call that waits for the slot of `a` and for that of `b`.
fn both(id: &str) -> String {
    format!("RL.ALL 2 a b ACQUIRE 1 0 1 ID {id} LEASE 600000 ACQUIRE 1 0 1 ID {id} LEASE 600000 BLOCK 0")
}

/// A server whose slots `a` and `b` are held by `x` and `y`.
fn held() -> (Server, Conn) {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
    conn.cmd("RL.ACQUIRE b 1 0 1 ID y LEASE 700000");
    (server, conn)
}

/// The numbers of calls in the lines of these keys.
fn lines<const N: usize>(conn: &mut Conn, keys: [&str; N]) -> [i64; N] {
    keys.map(|key| conn.info_field(key, "waiting"))
}

#[test]
fn a_call_wakes_whichever_of_its_keys_made_the_grant_possible() {
    for order in [["a x", "b y"], ["b y", "a x"]] {
        let (server, mut conn) = held();
        let mut waiter = server.wait_in_line(both("z"));
        // In the line of the longest wait, and it holds nothing.
        assert_eq!(lines(&mut conn, ["a", "b"]), [0, 1]);
        conn.cmd(format!("RL.RELEASE {}", order[0]));
        waiter.expect_silence();
        conn.cmd(format!("RL.RELEASE {}", order[1]));
        let reply = all_reply(&waiter.recv());
        assert_eq!(reply.numbers[0], 0);
        assert_eq!([conn.held_ids("a"), conn.held_ids("b")], [["z"], ["z"]]);
        server.expect_no_waiting_calls();
    }
}

#[test]
fn a_change_that_is_no_command_of_the_module_wakes_too() {
    let (server, mut conn) = held();
    let mut waiter = server.wait_in_line(both("z"));
    conn.cmd("DEL a b");
    assert_eq!(all_reply(&waiter.recv()).numbers[0], 0);
    // A key that became another type is an error when the call would be granted.
    let mut waiter = server.wait_in_line(both("w"));
    conn.cmd("SET a v");
    conn.cmd("RL.RELEASE b z");
    assert!(error_line(&waiter.recv()).starts_with("WRONGTYPE "));
    assert_eq!(conn.held_ids("b"), [""; 0]);
    server.expect_no_waiting_calls();
}

#[test]
fn lines_of_one_key_go_on_while_a_call_over_several_waits_for_another() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.WINDOW own 1 1h 1");
    conn.cmd("RL.ACQUIRE shared 1 0 1 ID x LEASE 600000");
    // The call of an exhausted tenant waits for its own limit, not in the line that all share.
    let _exhausted = server.wait_in_line("RL.ALL 2 shared own ACQUIRE 1 0 WINDOW 1 1h 1 BLOCK 0");
    let mut other = server.wait_in_line("RL.ACQUIRE shared 1 0 1 ID y LEASE 600000 BLOCK 0");
    conn.cmd("RL.RELEASE shared x");
    assert_eq!(acquired(&other.recv()).id(), "y");
    assert_eq!(lines(&mut conn, ["shared", "own"]), [0, 1]);
}

#[test]
fn a_grant_to_a_client_that_is_gone_is_given_back_on_every_key() {
    let (server, replica) = Server::with_replica();
    let mut conn = server.conn();
    let call = "RL.ALL 3 t w a THROTTLE 2 3 1h 2 WINDOW 3 1h 2 ACQUIRE 1 0 1 LEASE 600000";
    assert_eq!(limited(&conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000")), 0);
    let mut dying = server.conn();
    let kill = format!("CLIENT KILL ID {}", dying.id());
    let mut dead = server.wait_on(dying, format!("{call} BLOCK 0"));
    let mut living = server.wait_in_line(format!("{call} BLOCK 0"));
    conn.pipeline(["RL.RELEASE a x".to_owned(), kill]);
    dead.expect_closed();
    assert_eq!(all_reply(&living.recv()).numbers[0], 0);
    // Once, by the one that lives.
    assert_eq!(conn.ints("RL.THROTTLE_RO t 2 3 1h 0")[2], 1);
    assert_eq!(conn.ints("RL.WINDOW_RO w 3 1h 0")[2], 1);
    assert_eq!(conn.held("a").len(), 1);
    wait_for_sync(&server, &replica);
    for key in ["t", "w", "a"] {
        assert_eq!(state(&mut conn, key), state(&mut replica.conn(), key));
    }
    server.expect_no_waiting_calls();
}

#[test]
fn client_unblock_answers_the_denial_of_the_moment_and_counts_it_once() {
    let (server, mut conn) = held();
    let call = "RL.ALL 3 c a b WINDOW 9 1h 2 COUNTDENIED ACQUIRE 1 0 ACQUIRE 1 0 BLOCK 0";
    for (how, counted) in [("TIMEOUT", 7), ("ERROR", 7)] {
        let (mut waiter, id) = server.wait_with_id(call);
        conn.cmd("RL.RENEW a x LEASE 800000");
        conn.cmd(format!("CLIENT UNBLOCK {id} {how}"));
        match how {
            "TIMEOUT" => {
                // By now the other slot is held longer.
                let reply = all_reply(&waiter.recv());
                assert_eq!((reply.numbers[0], reply.numbers[5]), (2, 2), "{reply:?}");
            }
            _ => assert!(error_line(&waiter.recv()).starts_with("UNBLOCKED ")),
        }
        eventually(SOON, || conn.ints("RL.WINDOW_RO c 9 1h 0")[2] == counted);
        conn.cmd("RL.RENEW a x LEASE 600000");
    }
    server.expect_no_waiting_calls();
}

#[test]
fn client_unblock_counts_no_denial_under_shadow() {
    let server = Server::builder().module_args(["policies", "soft WINDOW 5 1h SHADOW"]).start();
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
    let call = "RL.ALL 2 c a WINDOW @soft COUNTDENIED ACQUIRE 1 0 BLOCK 0";
    let (mut waiter, id) = server.wait_with_id(call);
    conn.cmd(format!("CLIENT UNBLOCK {id}"));
    assert_eq!(limited(&waiter.recv()), 2);
    server.let_timers_fire();
    assert_eq!(conn.ints("RL.WINDOW_RO c 5 1h 0")[2], 5);
}

#[test]
fn within_a_transaction_and_on_a_replica_block_is_ignored() {
    let (server, mut conn) = held();
    let replies = conn.transaction([both("z")]);
    assert_eq!(limited(&replies[0]), 2);
    let script = "return redis.call('RL.ALL', '2', 'a', 'b', 'ACQUIRE', '1', '0', 'ACQUIRE', '1', '0', 'BLOCK', '0')";
    assert_eq!(limited(&conn.cmd(["EVAL", script, "2", "a", "b"])), 2);
    assert_eq!(server.waiting(), 0);
    // A transaction is one step also for those who wait.
    let mut waiter = server.wait_in_line(both("w"));
    conn.transaction([
        "RL.RELEASE a x", "RL.RELEASE b y", "RL.ACQUIRE a 1 0", "RL.ACQUIRE a 1 0 1 ID v",
        "DEL a b", "RL.WINDOW a 1 1h 0",
    ]);
    assert_eq!(all_reply(&waiter.recv()).numbers[0], 0);
    assert_eq!(conn.held_ids("a"), ["w"]);
}

#[test]
fn turns_are_taken_in_every_line_and_a_call_that_changes_lines_keeps_its_time() {
    let (server, mut conn) = held();
    let call = |by: &str| format!("RL.ACQUIRE b 1 0 1 ID {by} LEASE 700000 BLOCK 0 BY {by}");
    let mut first = server.wait_in_line(call("acme"));
    let mut moved = server.wait_in_line(format!("{} BY acme", both("m")));
    let mut tenth: Vec<_> = (0..8).map(|n| server.wait_in_line(both(&format!("t{n}")))).collect();
    let mut other = server.wait_in_line(call("other"));
    // All of RL.ALL wait for `b`, whose lease is the longer one.
    assert_eq!(lines(&mut conn, ["a", "b"]), [0, 11]);
    conn.cmd("RL.RELEASE b y");
    assert_eq!(acquired(&first.recv()).id(), "acme");
    conn.cmd("RL.RELEASE b acme");
    // The first of those without BY is next, but `a` is still held, so it waits there from now on.
    assert_eq!(acquired(&other.recv()).id(), "other");
    assert_eq!(lines(&mut conn, ["a", "b"]), [1, 8]);
    conn.cmd("RL.RELEASE b other");
    // All others have changed lines, in the order in which they came.
    assert_eq!(lines(&mut conn, ["a", "b"]), [9, 0]);
    // There `acme` has had no turn, and of equal turns the earlier arrival is first.
    conn.cmd("RL.RELEASE a x");
    assert_eq!(conn.held_ids("a"), ["m"]);
    assert_eq!(all_reply(&moved.recv()).numbers[0], 0);
    conn.transaction(["RL.RELEASE a m", "RL.RELEASE b m"]);
    assert_eq!(all_reply(&tenth.remove(0).recv()).numbers[0], 0);
}

#[test]
fn in_a_cluster_a_slot_that_moves_away_takes_the_calls_over_several_keys_along() {
    let cluster = Cluster::of(3, 0);
    let from = cluster.master_of("k");
    let to = (from + 1) % 3;
    let (first, second) = (cluster.node(from), cluster.node(to));
    let mut here = first.conn();
    let slot = here.int("CLUSTER KEYSLOT k");
    here.cmd("RL.ACQUIRE {k}a 1 0 1 ID x LEASE 600000");
    here.cmd("RL.ACQUIRE {k}b 1 0 1 ID y LEASE 700000");
    let call = both("z").replace(" a b ", " {k}a {k}b ");
    let mut waiter = first.wait_in_line(&call);
    cluster.begin_move(slot, from, to);
    cluster.move_keys(from, to, &["{k}a"]);
    // Its line's key is free here, and the other is on another node: nothing may be made of that here.
    here.cmd("RL.RELEASE {k}b y");
    waiter.expect_silence();
    assert_eq!(here.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
    cluster.end_move(slot, from, to);
    let moved = error_line(&waiter.recv());
    assert_eq!(moved, format!("MOVED {slot} 127.0.0.1:{}", second.port()));
    let mut waiter = second.wait_in_line(&call);
    second.conn().cmd("RL.RELEASE {k}a x");
    assert_eq!(all_reply(&waiter.recv()).numbers[0], 0);
}

/// Callers of three limits and of one of them are unblocked, killed and closed at random, and settle what they were granted.
/// Nothing is admitted beyond a limit, and in the end nothing is left.
#[test]
fn no_limit_admits_more_and_nothing_leaks_whoever_dies() {
    const CALLERS: i64 = 40;
    let seeds = seeds([1, 2].into_iter());
    for seed in seeds {
        let server = Server::start();
        let inside = [3, 5, 4].map(|limit| (limit, AtomicI64::new(0)));
        let granted = AtomicI64::new(0);
        let work = |number: i64| {
            let mut random = Random::new(seed ^ (number as u64) << 32);
            let mut conn = server.conn();
            for round in 0..12 {
                let id = format!("c{number}r{round}");
                let lease = format!("ID {id} LEASE 600000");
                let quantities = [1, random.below(2) + 1, 1];
                let clauses = [("a", 3), ("b", 5), ("c", 4)].iter().zip(quantities);
                let clauses: String = clauses
                    .map(|((_, limit), quantity)| format!(" ACQUIRE {limit} 0 {quantity} {lease}"))
                    .collect();
                let by = random.pick(&["", " BY x", " BY y WEIGHT 3"]);
                let block = random.pick(&[5, 50, 2000]);
                let call = format!("RL.ALL 3 a b c{clauses} BLOCK {block}{by}");
                if random.one_in(4) {
                    let client = conn.id();
                    conn.send(&call);
                    sleep(Duration::from_micros(random.below(4000) as u64));
                    let mut other = server.conn();
                    if random.one_in(2) {
                        other.cmd(format!("CLIENT KILL ID {client}"));
                    }
                    conn = server.conn();
                    let named = format!("id={client} ");
                    eventually(SOON, || !other.text("CLIENT LIST").contains(&named));
                    for key in ["a", "b", "c"] {
                        other.cmd(format!("RL.RELEASE {key} {id}"));
                    }
                    continue;
                }
                let reply = all_reply(&conn.cmd(&call));
                if reply.numbers[0] != 0 {
                    continue;
                }
                granted.fetch_add(1, SeqCst);
                for ((limit, inside), quantity) in inside.iter().zip(quantities) {
                    let now = inside.fetch_add(quantity, SeqCst) + quantity;
                    assert!(now <= *limit, "{now} of {limit}, seed {seed}");
                }
                sleep(Duration::from_micros(random.below(2500) as u64));
                for ((_, inside), quantity) in inside.iter().zip(quantities) {
                    inside.fetch_sub(quantity, SeqCst);
                }
                for key in ["a", "b", "c"] {
                    assert_eq!(conn.int(format!("RL.RELEASE {key} {id}")), 1, "seed {seed}");
                }
            }
        };
        scope(|scope| {
            let workers: Vec<_> = (0..CALLERS).map(|n| scope.spawn(move || work(n))).collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        let mut conn = server.conn();
        for key in ["a", "b", "c"] {
            eventually(SOON, || conn.held_ids(key).is_empty());
        }
        assert!(granted.load(SeqCst) > CALLERS, "{granted:?}, seed {seed}");
        server.expect_no_waiting_calls();
        eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == redis_client::Value::Okay);
    }
}

//! Reservations across crashes, restarts and failovers: the plain commands that carry them.

use support::*;

const LIMIT: &str = "5 1h";

/// The key's entries and when it expires in Unix milliseconds, as a server without the module sees them.
fn state(server: &Server, conn: &mut Conn, key: &str) -> (Value, i64) {
    let entries = conn.cmd(["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    (entries, server.clock().now_us() / 1000 + conn.int(["PTTL", key]))
}

/// Two reservations, one renewed, one event.
fn reserve(conn: &mut Conn) {
    for id in ["a", "b", "c"] {
        assert_eq!(conn.acquire(format!("RL.ACQUIRE k {LIMIT} ID {id} LEASE 60000")).id(), id);
    }
    assert_eq!(conn.int("RL.APPLY k c"), 1);
    assert_eq!(conn.int("RL.RENEW k b LEASE 90000"), 1);
    conn.cmd("RL.ACQUIRE sem 1 0 ID s LEASE 60000");
}

/// What `reserve` left, ten seconds later on any server with the module.
fn assert_still_held(conn: &mut Conn) {
    let held: Vec<_> = conn.held("k").into_iter().map(|one| (one.id, one.ms_left)).collect();
    assert_eq!(held, [(b"a".to_vec(), 50_000), (b"b".to_vec(), 80_000)]);
    assert_eq!(conn.held("sem")[0].ms_left, 50_000);
    assert_eq!(conn.acquire("RL.ACQUIRE_RO sem 1 0 MS").numbers, [2, 1, 0, 50_000, 50_000]);
}

/// What can be done with it where one may write.
fn assert_can_be_settled(conn: &mut Conn) {
    assert!(conn.err(format!("RL.ACQUIRE k {LIMIT} ID a")).starts_with("DUPLICATE "));
    assert_eq!(conn.int("RL.APPLY k a 2"), 1);
    assert_eq!(conn.int("RL.APPLY k a 2"), 0);
    assert_eq!(conn.int("RL.RELEASE k b"), 1);
    assert_eq!(conn.acquire(format!("RL.ACQUIRE k {LIMIT} 0")).numbers, [0, 5, 2, -1, 3_600]);
    assert_eq!(conn.int("RL.RELEASE sem s"), 1);
}

#[test]
fn a_crash_between_acquire_and_apply_loses_nothing() {
    let aof = || Server::builder().clock(true).aof().config("appendfsync always");
    for (how, mut server) in [
        (Stop::Kill, aof().start()),
        (Stop::Save, Server::builder().clock(true).start()),
        (Stop::NoSave, aof().start()),
    ] {
        server.clock().set_us(START_US);
        let mut conn = server.conn();
        reserve(&mut conn);
        let before = ["k", "sem"].map(|key| state(&server, &mut conn, key));
        server.clock().advance_ms(10_000);
        server.restart(how);
        let mut conn = server.conn();
        assert_eq!(["k", "sem"].map(|key| state(&server, &mut conn, key)), before, "{how:?}");
        assert_still_held(&mut conn);
        assert_can_be_settled(&mut conn);
    }
}

#[test]
fn a_lease_that_ends_while_the_server_is_down_is_over() {
    let (mut server, _) = Server::builder().aof().held();
    server.conn().cmd("RL.ACQUIRE sem 1 0 ID a LEASE 1000");
    server.stop(Stop::Kill);
    server.clock().advance_ms(1_000);
    let mut again = Server::builder().clock_of(&server).aof().dir(server.dir()).start();
    assert_eq!(again.conn().held("sem"), []);
    assert_eq!(again.conn().acquire("RL.ACQUIRE sem 1 0").limited(), 0);
    again.stop(Stop::Kill);
}

#[test]
fn a_failover_moves_no_lease() {
    let (master, mut conn) = Server::held();
    let replica = Server::replica_of(&master, true);
    reserve(&mut conn);
    wait_for_sync(&master, &replica);
    master.clock().advance_ms(10_000);
    let mut promoted = replica.conn();
    // A replica answers calls that only look.
    assert_still_held(&mut promoted);
    assert_eq!(promoted.acquire(format!("RL.ACQUIRE_RO k {LIMIT} 3")).numbers[..3], [2, 5, 2]);
    for line in ["RL.ACQUIRE k 5 1h", "RL.APPLY k a", "RL.RELEASE k a", "RL.RENEW k a"] {
        assert!(promoted.err(line).starts_with("READONLY "), "{line}");
    }
    assert_eq!(promoted.text("REPLICAOF NO ONE"), "OK");
    assert_still_held(&mut promoted);
    assert_can_be_settled(&mut promoted);
}

#[test]
fn a_replica_without_the_module_carries_everything() {
    let (master, _) = Server::held();
    let plain = Server::replica_of(&master, false);
    reserve(&mut master.conn());
    wait_for_sync(&master, &plain);
    master.clock().advance_ms(10_000);
    plain.conn().cmd("REPLICAOF NO ONE");
    // What it has is what a server with the module takes over.
    let next = Server::replica_of(&plain, true);
    next.conn().cmd("REPLICAOF NO ONE");
    assert_still_held(&mut next.conn());
    assert_can_be_settled(&mut next.conn());
}

#[test]
fn a_server_without_the_module_loads_the_file() {
    let (mut server, _) = Server::builder().aof().held();
    reserve(&mut server.conn());
    let before = state(&server, &mut server.conn(), "k");
    server.stop(Stop::Kill);
    let plain = Server::builder().module(false).clock_of(&server).aof().dir(server.dir()).start();
    assert_eq!(state(&plain, &mut plain.conn(), "k"), before);
}

#[test]
fn only_plain_commands_are_written_to_the_file() {
    let (server, mut conn) = Server::builder().aof().held();
    let written = server.aof_grows_by(|| reserve(&mut conn));
    let names: Vec<_> = written.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(
        names.iter().all(|name| ["MULTI", "ZADD", "ZREM", "PEXPIREAT", "EXEC"].contains(name)),
        "{written:#?}"
    );
    let mut one = server.aof_grows_by(|| conn.cmd("RL.RELEASE k a b"));
    // Redis before 7.0 wraps even one command.
    one.retain(|line| !["MULTI", "EXEC"].contains(&line.as_str()));
    assert_eq!(one.len(), 1, "{one:?}");
    assert!(one[0].starts_with("ZREM k #01:a:"), "{one:?}");
}

#[test]
fn a_replica_equals_its_master_after_each_of_many_calls() {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (master, _) = Server::held();
        let replica = Server::replica_of(&master, seed % 2 == 0);
        let (mut one, mut two) = (master.conn(), replica.conn());
        let options = random.pick(&["10s #", "1min # FIXED", "10s # BUCKETS 3", "0 #"]);
        for _ in 0..150 {
            let id = random.pick(&["a", "b", "c", "d"]);
            let quantity = random.below(4).to_string();
            let window = options.replace('#', &quantity);
            let line = match random.below(8) {
                0..=2 => {
                    let lease_ms = random.pick(&[10, 3_000, 40_000]);
                    format!("RL.ACQUIRE k 9 {window} ID {id} LEASE {lease_ms}")
                }
                3 if options != "0 #" => format!("RL.WINDOW k 9 {window} COUNTDENIED"),
                4 => format!("RL.APPLY k {id} {quantity}"),
                5 => format!("RL.RELEASE k {id}"),
                6 => format!("RL.RENEW k {id} LEASE {}", 1 + random.below(9_000)),
                _ => {
                    master.clock().advance_ms(random.pick(&[0, 1, 700, 9_000, -5_000]));
                    "PING".into()
                }
            };
            one.cmd(&line);
            assert_eq!(one.int("WAIT 1 10000"), 1);
            let copy = state(&replica, &mut two, "k");
            assert_eq!(copy, state(&master, &mut one, "k"), "seed {seed}: {line}");
        }
    }
}

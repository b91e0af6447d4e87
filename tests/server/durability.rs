//! The values that random calls of every command store outlive crashes, restarts and failovers, and servers without the
//! module in between; a module that is loaded again goes on from them.
//!
//! `RATELIMIT_SEED=n cargo test --test server durability::` makes other calls.

use std::fs;

use support::*;

/// Calls one after the other, some time apart.
struct Calls {
    stream: RandomCalls,
    made: Vec<String>,
}

impl Calls {
    fn new(seed: u64) -> Calls {
        let seed = env_number("RATELIMIT_SEED").unwrap_or(seed);
        Calls { stream: RandomCalls::new(seed), made: Vec::new() }
    }

    /// Lets some time pass, seldom back, and returns the next call for these servers.
    fn next(&mut self, clock: &Clock, conns: &mut [&mut Conn]) -> Vec<String> {
        match self.stream.below(40) {
            0 => {
                // Expired keys come back with the clock, unless the server was asked for them.
                conns.iter_mut().for_each(|conn| drop(stored(conn)));
                clock.advance_ms(-self.stream.below(3_000));
            }
            1 => clock.advance_ms(self.stream.below(4_000)),
            2..=20 => clock.advance_us(self.stream.below(900_000)),
            _ => {}
        }
        // Hashes are the server's own.
        let mut draws = std::iter::repeat_with(|| self.stream.draw());
        let call = draws.find(|call| !call[0].starts_with('H')).unwrap();
        self.made.push(format!("{} {}", clock.now_us(), call.join(" ")));
        call
    }

    fn make(&mut self, number: usize, server: &Server, conn: &mut Conn) {
        for _ in 0..number {
            let call = self.next(server.clock(), &mut [conn]);
            conn.cmd(call);
        }
    }

    #[track_caller]
    fn assert_same(&self, found: &[Value], expected: &[Value]) {
        let last = &self.made[self.made.len().saturating_sub(20)..];
        assert_eq!(found, expected, "after\n{}", last.join("\n"));
    }
}

/// A server that knows the policies of the calls, with a clock that is held.
fn builder() -> Builder {
    Server::builder().clock(true).module_args(["policies", RandomCalls::POLICIES])
}

fn started(builder: Builder) -> (Server, Conn) {
    let server = builder.start();
    server.clock().set_us(START_US);
    let conn = server.conn();
    (server, conn)
}

/// The values of all keys, and when they expire, by a clock that stands still.
fn stored(conn: &mut Conn) -> Vec<Value> {
    let ask =
        |key: &str| ["GET #", "ZRANGE # 0 -1 WITHSCORES", "PTTL #"].map(|it| it.replace('#', key));
    conn.pipeline(RandomCalls::keys().flat_map(|key| ask(&key)))
}

/// The replies of a server with the module about all keys and limits on them.
fn looked(conn: &mut Conn) -> Vec<Value> {
    let ask = |key: &str| {
        let calls = ["INFO #", "HELD #", "THROTTLE_RO # 3 5 1s 2 MS", "WINDOW_RO # 4 5s 2 MS"];
        calls.map(|it| format!("RL.{}", it.replace('#', key)))
    };
    conn.pipeline(RandomCalls::keys().flat_map(|key| ask(&key)))
}

fn rewrite_aof(server: &Server) {
    server.conn().cmd("BGREWRITEAOF");
    eventually(SOON, || {
        let is_over = |field| server.info(field).as_deref() == Some("0");
        is_over("aof_rewrite_in_progress") && is_over("aof_rewrite_scheduled")
    });
    assert_eq!(server.info("aof_last_bgrewrite_status").as_deref(), Some("ok"));
}

#[test]
fn crashes_restarts_reloads_and_servers_without_the_module_keep_every_decision() {
    let aof = || builder().aof();
    let mut all = String::new();
    for (seed, builder, how) in [
        (1, aof(), Stop::Kill),
        (2, aof().config("aof-use-rdb-preamble no"), Stop::Kill),
        (3, builder(), Stop::Save),
    ] {
        let (mut server, mut conn) = started(builder);
        let mut calls = Calls::new(seed);
        for round in 0..2 {
            for _ in 0..10 {
                calls.make(45, &server, &mut conn);
                all += &format!("{:?}", stored(&mut conn));
            }
            // More than a listpack holds.
            for _ in 0..200 {
                server.clock().advance_us(1_003);
                conn.cmd("RL.WINDOW w2-3 1000 60");
            }
            let (before, expected) = (stored(&mut conn), looked(&mut conn));
            match (how, round) {
                (Stop::Kill, 1) => rewrite_aof(&server),
                (Stop::Save, 1) => assert_eq!(conn.text("DEBUG RELOAD"), "OK"),
                _ => {}
            }
            calls.assert_same(&stored(&mut conn), &before);
            server.restart(how);
            conn = server.conn();
            calls.assert_same(&stored(&mut conn), &before);
            calls.assert_same(&looked(&mut conn), &expected);
        }
        let before = stored(&mut conn);
        server.stop(how);
        let plain = Server::builder().module(false).clock_of(&server).dir(server.dir());
        let plain = if how == Stop::Kill { plain.aof() } else { plain }.start();
        calls.assert_same(&stored(&mut plain.conn()), &before);
    }
    // The calls left states of each kind: fractions and debts of buckets, bans, denied events, leases that count.
    for form in [".6666", "00+", "!17", "d\"", "#04:id1", "000::5s"] {
        assert!(all.contains(form), "no {form}");
    }
}

#[test]
fn windows_and_leases_end_while_the_server_is_down() {
    let (mut server, mut conn) = started(builder().aof());
    conn.pipeline([
        "RL.WINDOW w 1 60", "RL.ACQUIRE s 1 0 1 ID a LEASE 50s", "RL.THROTTLE t 4 1 60 5",
    ]);
    conn.pipeline(["RL.ACQUIRE l 2 0 1 ID short LEASE 50s", "RL.ACQUIRE l 2 0 1 ID long LEASE 1h"]);
    server.stop(Stop::Kill);
    server.clock().advance_ms(62_000);
    let later = builder().clock(false).clock_of(&server).aof().dir(server.dir()).start();
    let mut conn = later.conn();
    assert_eq!(conn.int("EXISTS w s"), 0);
    assert_eq!(conn.ints("RL.WINDOW w 1 60"), [0, 1, 0, -1, 60]);
    assert_eq!(conn.held_ids("l"), ["long"]);
    assert_eq!(conn.ints("RL.THROTTLE_RO t 4 1 60 MS"), [0, 5, 1, -1, 238_000]);
}

#[test]
fn replicas_with_and_without_the_module_equal_their_master_after_each_call() {
    let (master, mut conn) = started(builder());
    let replicas = [true, false].map(|module| Server::replica_of(&master, module));
    let [mut with, mut without] = replicas.each_ref().map(Server::conn);
    let mut calls = Calls::new(5);
    for _ in 0..300 {
        calls.make(1, &master, &mut conn);
        assert_eq!(conn.int("WAIT 2 20000"), 2);
        let expected = stored(&mut conn);
        calls.assert_same(&stored(&mut with), &expected);
        calls.assert_same(&stored(&mut without), &expected);
    }
    calls.assert_same(&looked(&mut with), &looked(&mut conn));
    for call in ["RL.THROTTLE k 1 1 1", "RL.WINDOW k 5 60", "RL.RELEASE k a"] {
        with.refuses(call, "READONLY ");
    }
}

#[test]
fn a_replica_that_takes_over_goes_on_where_the_master_was() {
    let (master, mut conn) = started(builder());
    let plain = Server::replica_of(&master, false);
    let mut calls = Calls::new(6);
    calls.make(300, &master, &mut conn);
    wait_for_sync(&master, &plain);
    plain.conn().cmd("REPLICAOF NO ONE");
    // A server with the module takes over what one without it carried.
    let next = builder().clock(false).clock_of(&master).replica_of(&plain).start();
    wait_for_sync(&plain, &next);
    let mut promoted = next.conn();
    promoted.cmd("REPLICAOF NO ONE");
    for _ in 0..300 {
        let call = calls.next(master.clock(), &mut [&mut conn, &mut promoted]);
        // These two are of the server.
        if !["RL.TOP", "RL.POLICIES"].contains(&call[0].to_uppercase().as_str()) {
            let replies = [promoted.cmd(&call), conn.cmd(&call)];
            calls.assert_same(&replies[..1], &replies[1..]);
        }
    }
    calls.assert_same(&stored(&mut promoted), &stored(&mut conn));
}

#[test]
fn a_key_restored_or_renamed_is_the_same_limit() {
    let (server, mut conn) = started(builder());
    let plain = Server::builder().module(false).clock_of(&server).start();
    let mut calls = Calls::new(22);
    calls.make(300, &server, &mut conn);
    let expected = looked(&mut conn);
    let mut moved = 0;
    for key in RandomCalls::keys() {
        let Value::BulkString(dump) = conn.cmd(["DUMP", &key]) else { continue };
        let ttl = conn.int(["PTTL", &key]).to_string();
        let restore = [&b"RESTORE"[..], key.as_bytes(), ttl.as_bytes(), &dump];
        assert_eq!(text(&plain.conn().cmd(restore)), "OK");
        if moved % 2 == 0 {
            conn.cmd(["DEL", &key]);
            conn.cmd(restore);
        } else {
            conn.pipeline([format!("RENAME {key} other"), format!("RENAME other {key}")]);
        }
        moved += 1;
    }
    assert!(moved > 5, "{moved} keys");
    calls.assert_same(&looked(&mut conn), &expected);
    calls.assert_same(&stored(&mut plain.conn()), &stored(&mut conn));
}

#[test]
fn the_aof_holds_plain_commands_with_absolute_times() {
    let (server, mut conn) = started(builder().aof());
    let mut calls = Calls::new(8);
    let written = server.aof_grows_by(|| calls.make(500, &server, &mut conn));
    assert!(written.len() > 300, "{} lines", written.len());
    let plain = "SET ZADD ZREM ZREMRANGEBYRANK PEXPIREAT DEL UNLINK MULTI EXEC";
    for line in &written {
        let words: Vec<_> = line.split(' ').collect();
        assert!(plain.split(' ').any(|name| name == words[0]), "{line}");
        assert!(words[0] != "SET" || words[3] == "PXAT", "{line}");
    }
}

#[test]
fn a_rebuilt_module_is_loaded_under_the_same_data_without_a_restart() {
    let (server, mut conn) = started(Server::builder().clock(true));
    let mut calls = Calls::new(9);
    calls.make(300, &server, &mut conn);
    let (before, expected) = (stored(&mut conn), looked(&mut conn));
    let rebuilt = server.dir().join("rebuilt.so");
    fs::copy(module_path(), &rebuilt).unwrap();
    for _ in 0..20 {
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
        conn.refuses("RL.THROTTLE k 15 1 1", "ERR unknown command");
        calls.assert_same(&stored(&mut conn), &before);
        assert_eq!(conn.text(["MODULE", "LOAD", rebuilt.to_str().unwrap()]), "OK");
    }
    calls.assert_same(&looked(&mut conn), &expected);
}

// ---- Effects of single calls ----

/// A server without the module that carries out the effects of another, one after the other.
struct Follower {
    /// Kept because dropping it ends the server.
    _server: Server,
    conn: Conn,
}

impl Follower {
    fn of(server: &Server) -> Follower {
        let follower = Server::builder().module(false).clock_of(server).start();
        Follower { conn: follower.conn(), _server: follower }
    }

    fn existing(conn: &mut Conn) -> Vec<String> {
        let keys: Vec<String> = RandomCalls::keys().collect();
        let found = conn.pipeline(keys.iter().map(|key| ["EXISTS", key]));
        std::iter::zip(keys, found)
            .filter(|(_, is)| *is == Value::Int(1))
            .map(|(key, _)| key)
            .collect()
    }

    /// Carries out the effects of one call of `conn`. A key that the call keeps is there after each of them: otherwise its
    /// TTL would go with it. Only if many elements are removed, and all, a key is deleted first.
    #[track_caller]
    fn follow(&mut self, effects: &[String], conn: &mut Conn) {
        let mut kept = Self::existing(&mut self.conn);
        let after = Self::existing(conn);
        kept.retain(|key| after.contains(key));
        for effect in effects {
            self.conn.cmd(effect);
            let is_here = self.conn.pipeline(kept.iter().map(|key| ["EXISTS", key]));
            let here = std::iter::zip(&kept, is_here).all(|(_, is)| is == Value::Int(1));
            let may_delete = effect.starts_with("UNLINK ");
            assert!(
                here || may_delete,
                "{effect} deletes a key, of {kept:?}, in\n{}",
                effects.join("\n")
            );
        }
        assert_eq!(stored(&mut self.conn), stored(conn), "after\n{}", effects.join("\n"));
    }
}

#[test]
fn no_effect_deletes_a_key_that_its_call_keeps() {
    let (server, mut conn) = started(builder().aof());
    let mut follower = Follower::of(&server);
    let mut calls = Calls::new(10);
    for _ in 0..600 {
        let call = calls.next(server.clock(), &mut [&mut conn, &mut follower.conn]);
        let effects = server.effects_of(|| conn.cmd(call));
        follower.follow(&effects, &mut conn);
    }
    // A call that waits is granted by the call that settles what it waits for.
    let hold = "RL.ACQUIRE w0 2 1s 2 ID x LEASE 1h";
    for (fill, waits, free) in [
        ("RL.ACQUIRE s0 1 0 1 ID x", "RL.ACQUIRE s0 1 0 1 ID y BLOCK 0", "RL.RELEASE s0 x"),
        (hold, "RL.WINDOW w0 2 1s 1 BLOCK 0", "RL.RELEASE w0 x"),
        (hold, "RL.WINDOW w0 2 1s 1 BLOCK 0", "RL.APPLY w0 x 1"),
        (hold, "RL.ACQUIRE w0 2 1s 2 ID y BLOCK 0", "RL.APPLY w0 x 0"),
    ] {
        for conn in [&mut conn, &mut follower.conn] {
            conn.text("FLUSHALL");
        }
        let effects = server.effects_of(|| conn.cmd(fill));
        follower.follow(&effects, &mut conn);
        let mut waiter = server.wait_in_line(waits);
        let effects = server.effects_of(|| {
            assert_eq!(conn.int(free), 1);
            assert_eq!(limited(&waiter.recv()), 0, "{waits}");
        });
        follower.follow(&effects, &mut conn);
    }
}

#[test]
fn many_elements_are_removed_by_one_effect() {
    const MANY: i64 = 3_000;
    let (server, mut conn) = started(builder().aof());
    let mut follower = Follower::of(&server);
    let single = "RL.WINDOW w0 9223372036854775807 1h 1 BUCKETS 65536";
    // The newest entry is of three events.
    let fill = |conn: &mut Conn, ago_us: i64| {
        let newest_us = server.clock().now_us() - ago_us;
        let entry = |n: i64| [(n - newest_us).to_string(), (MANY - n).to_string()];
        let words = ["ZADD", "w0"].map(String::from).into_iter();
        let newest = [(-newest_us).to_string(), format!("{}x3", MANY + 3)];
        let words: Vec<_> = words.chain(newest).chain((1..MANY).flat_map(entry)).collect();
        conn.pipeline([words, ["PEXPIRE", "w0", "7200000"].map(String::from).to_vec()]);
    };
    let reserve = |conn: &mut Conn| {
        conn.pipeline((0..MANY).map(|n| format!("RL.ACQUIRE w0 {MANY} 0 1 ID r{n}")));
    };
    let ids: String = (0..MANY).map(|n| format!(" r{n}")).collect();
    for (ago_us, call, expected) in [
        (0, "RL.WINDOW w0 100000 1h -2000 BUCKETS 65536", "ZREMRANGEBYSCORE"),
        (0, "RL.WINDOW w0 100000 1h -3000 BUCKETS 65536", "UNLINK ZADD PEXPIREAT"),
        (0, "RL.WINDOW w0 100000 1h -9999 BUCKETS 65536", "UNLINK"),
        (0, "RL.WINDOW w0 100000 1h -1 FIXED FROM first", "ZADD ZREM"),
        (0, "RL.WINDOW w0 100000 1h -3 FIXED FROM first", "UNLINK"),
        // All are dead, and in the way of a large quantity.
        (
            4_000_000_000,
            &single.replace("1h 1 ", "1h 9223372036854775807 "),
            "UNLINK ZADD PEXPIREAT",
        ),
        (4_000_000_000, single, "ZADD PEXPIREAT ZREMRANGEBYRANK"),
        // All are from the future.
        (-4_000_000_000, single, "UNLINK ZADD PEXPIREAT"),
        (-4_000_000_000, "RL.WINDOW w0 100000 1h -9999 BUCKETS 65536", "UNLINK"),
        (i64::MAX, &format!("RL.RELEASE w0{ids}"), "UNLINK"),
    ] {
        for conn in [&mut conn, &mut follower.conn] {
            conn.text("FLUSHALL");
        }
        let filling = server.effects_of(|| match ago_us {
            i64::MAX => reserve(&mut conn),
            _ => fill(&mut conn, ago_us),
        });
        follower.conn.pipeline(&filling);
        let call: Vec<&str> = call.split(' ').collect();
        let effects = server.effects_of(|| conn.cmd(&call));
        let names: Vec<_> = effects.iter().filter_map(|effect| effect.split(' ').next()).collect();
        assert_eq!(names.join(" "), expected, "{:?}", &call[..call.len().min(8)]);
        follower.follow(&effects, &mut conn);
    }
}

#[test]
fn a_script_sees_one_instant_where_the_server_freezes_time() {
    let server = Server::start();
    if server.version().lacks("time that is frozen for a script", (7, 2)) {
        return;
    }
    let script = "redis.call('RL.WINDOW', KEYS[1], 3, 60)
        local until_us = redis.call('TIME')
        for _ = 1, 100000 do redis.call('PING') end
        return redis.call('RL.WINDOW', KEYS[1], 3, 60, 'MS')[5]";
    assert_eq!(server.conn().int(["EVAL", script, "1", "k"]), 60_000);
    assert_eq!(server.conn().int("ZCARD k"), 1);
}

/// While it still serves the old one.
#[test]
fn a_replica_with_the_module_may_load_next_to_its_old_data() {
    if Version::under_test().lacks("loading while old data is served", (7, 0)) {
        return;
    }
    let master = Server::builder().config("repl-diskless-sync yes").start();
    master.conn().cmd("RL.WINDOW k 5 1h");
    // One module that does not bear it keeps the whole server from it.
    let replica = Server::builder().config("repl-diskless-load swapdb").replica_of(&master).start();
    wait_for_sync(&master, &replica);
    let log = replica.log();
    assert!(!log.contains("Skipping diskless-load"), "{log}");
    assert!(log.contains("to parser"), "{log}");
    // It took over what it loaded, and goes on from there.
    let mut conn = replica.conn();
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h")[..3], [0, 5, 4]);
    master.conn().cmd("RL.WINDOW k 5 1h");
    wait_for_sync(&master, &replica);
    assert_eq!(conn.ints("RL.WINDOW_RO k 5 1h")[..3], [0, 5, 3]);
}

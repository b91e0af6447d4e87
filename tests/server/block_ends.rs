//! BLOCK: every way in which a wait ends other than by a grant or by its time.

use std::net::Shutdown;
use std::thread::sleep;

use support::*;

fn take_slot(conn: &mut Conn) {
    assert_eq!(conn.acquire("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000").limited(), 0);
}

/// The first of three leaves by `leave`; the slot then goes to the second, and after it to the third.
#[track_caller]
fn one_leaves(leave: impl FnOnce(&Server, Conn, i64)) {
    let (server, mut conn) = Server::connect();
    take_slot(&mut conn);
    let (first, id) = server.wait_with_id(waits("a"));
    let mut second = server.wait_in_line(waits("b"));
    let mut third = server.wait_in_line(waits("c"));
    leave(&server, first, id);
    server.wait_until_waiting(2);
    assert_eq!(conn.int("RL.RELEASE k holder"), 1);
    assert_eq!(acquired(&second.recv()).id(), "b");
    assert_eq!(conn.held_ids("k"), ["b"]);
    third.expect_silence();
    assert_eq!(conn.int("RL.RELEASE k b"), 1);
    assert_eq!(acquired(&third.recv()).id(), "c");
    server.expect_no_waiting_calls();
    assert_eq!(conn.int("RL.RELEASE k c"), 1);
    assert_eq!(conn.int("EXISTS k"), 0);
    can_be_unloaded(&server);
}

/// Neither clients nor timers are left.
#[track_caller]
fn can_be_unloaded(server: &Server) {
    let mut conn = server.conn();
    eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
    assert_eq!(text(&conn.cmd("PING")), "PONG");
}

#[test]
fn a_closed_connection_leaves_the_line() {
    one_leaves(|_, first, _| drop(first));
}

#[test]
fn a_connection_closed_on_one_side_leaves_the_line() {
    one_leaves(|_, mut first, _| {
        first.socket().shutdown(Shutdown::Write).unwrap();
        first.expect_closed();
    });
}

#[test]
fn client_kill_leaves_the_line() {
    one_leaves(|server, mut first, id| {
        assert_eq!(server.conn().int(format!("CLIENT KILL ID {id}")), 1);
        first.expect_closed();
    });
}

#[test]
fn client_unblock_timeout_answers_the_denial() {
    one_leaves(|server, mut first, id| {
        assert_eq!(server.conn().int(format!("CLIENT UNBLOCK {id} TIMEOUT")), 1);
        let denial = acquired(&first.recv());
        assert_eq!((denial.numbers[..3].to_vec(), denial.id), (vec![2, 1, 0], None));
        assert!((500..=600).contains(&denial.numbers[3]), "{:?}", denial.numbers);
        // The connection goes on, and may wait again.
        assert_eq!(text(&first.cmd("PING")), "PONG");
        assert_eq!(limited(&first.cmd("RL.ACQUIRE k 1 0 BLOCK 5")), 2);
    });
}

#[test]
fn client_unblock_error_answers_an_error() {
    one_leaves(|server, mut first, id| {
        assert_eq!(server.conn().int(format!("CLIENT UNBLOCK {id} ERROR")), 1);
        assert!(error_line(&first.recv()).starts_with("UNBLOCKED "));
        assert_eq!(text(&first.cmd("PING")), "PONG");
        assert_eq!(limited(&first.cmd("RL.ACQUIRE k 1 0 BLOCK 5")), 2);
    });
}

#[test]
fn a_denial_by_client_unblock_is_counted_like_any_other() {
    let policies = ["allow-unload", "yes", "policies", "soft WINDOW 1000 1h SHADOW"];
    let (server, mut conn) = Server::builder().module_args(policies).connect();
    conn.cmd("RL.ACQUIRE k 3 1h 2 ID x LEASE 600000");
    conn.cmd("RL.WINDOW k 3 1h 1");
    let (mut waiter, id) = server.wait_with_id("RL.WINDOW k 3 1h 2 COUNTDENIED BLOCK 0");
    // The next call already counts it.
    let calls = [format!("CLIENT UNBLOCK {id}"), "RL.WINDOW k 1000 1h 1".into()];
    assert_eq!(ints(&conn.pipeline(calls)[1])[2], 994);
    assert_eq!(limited(&waiter.recv()), 1);
    assert_eq!(server.info_ratelimit("waited_timed_out"), 1);
    conn.cmd("RL.ACQUIRE a 1 0 1 ID x LEASE 600000");
    let call = "RL.ALL 2 k a WINDOW 1000 1h 2 COUNTDENIED ACQUIRE 1 0 BLOCK 0";
    let (mut waiter, id) = server.wait_with_id(call);
    conn.cmd(format!("CLIENT UNBLOCK {id}"));
    // The reply is about the state with the count.
    assert_eq!(all_reply(&waiter.recv()).clauses[0][..3], [0, 1000, 992]);
    eventually(SOON, || conn.ints("RL.WINDOW_RO k 1000 1h 0")[2] == 992);
    // Nothing is counted while the server refuses writes, nor afterwards.
    let (mut waiter, id) = server.wait_with_id(call);
    assert_eq!(conn.text("CONFIG SET maxmemory 1"), "OK");
    conn.cmd(format!("CLIENT UNBLOCK {id}"));
    assert_eq!(limited(&waiter.recv()), 2);
    assert_eq!(conn.text("CONFIG SET maxmemory 0"), "OK");
    // Nor by an error, nor under SHADOW.
    let (mut waiter, id) = server.wait_with_id(call);
    conn.cmd(format!("CLIENT UNBLOCK {id} ERROR"));
    assert!(error_line(&waiter.recv()).starts_with("UNBLOCKED "));
    let (mut waiter, id) = server.wait_with_id(call.replace("WINDOW 1000 1h", "WINDOW @soft"));
    conn.cmd(format!("CLIENT UNBLOCK {id}"));
    assert_eq!(limited(&waiter.recv()), 2);
    server.let_timers_fire();
    assert_eq!(conn.ints("RL.WINDOW_RO k 1000 1h 0")[2], 992);
    can_be_unloaded(&server);
}

#[test]
fn when_the_master_becomes_a_replica_its_waiters_get_a_reply() {
    let [server, other] = [(); 2].map(|()| Server::start());
    let mut conn = server.conn();
    take_slot(&mut conn);
    conn.cmd("RL.THROTTLE t 0 1 1h");
    let mut line = [
        server.wait_in_line(waits("a")),
        server.wait_in_line(waits("b")),
        server.wait_in_line("RL.THROTTLE t 0 1 1h 1 BLOCK 0"),
    ];
    let become_replica = format!("REPLICAOF 127.0.0.1 {}", other.port());
    assert_eq!(conn.text(become_replica), "OK");
    for waiter in &mut line {
        assert!(error_line(&waiter.recv()).starts_with("UNBLOCKED "));
    }
    server.expect_no_waiting_calls();
    wait_for_sync(&other, &server);
    conn.refuses(waits("a"), "READONLY ");
    // And back.
    assert_eq!(conn.text("REPLICAOF NO ONE"), "OK");
    take_slot(&mut conn);
    let mut waiter = server.wait_in_line(waits("a"));
    conn.cmd("RL.RELEASE k holder");
    assert_eq!(acquired(&waiter.recv()).id(), "a");
    can_be_unloaded(&server);
}

#[test]
fn rights_that_are_taken_away_do_not_end_a_wait() {
    let (server, mut conn) = Server::connect();
    take_slot(&mut conn);
    conn.cmd("ACL SETUSER app on >secret ~* +@all");
    let mut app = server.conn();
    app.cmd("AUTH app secret");
    let mut waiter = server.wait_on(app, waits("a"));
    conn.cmd("ACL SETUSER app resetkeys -@all");
    waiter.expect_silence();
    assert_eq!(conn.int("RL.RELEASE k holder"), 1);
    assert_eq!(acquired(&waiter.recv()).id(), "a");
    server.expect_no_waiting_calls();
}

#[test]
fn a_server_with_waiters_shuts_down() {
    let (mut server, mut conn) = Server::builder().aof().connect();
    take_slot(&mut conn);
    let mut line = [waits("a"), waits("b")].map(|call| server.wait_in_line(call));
    server.stop(Stop::Save);
    for waiter in &mut line {
        waiter.expect_closed();
    }
    let log = server.log();
    assert!(!log.contains("BUG REPORT") && !log.contains("ASSERT"), "{log}");
}

#[test]
fn a_shutdown_that_waits_for_a_replica_grants_nothing_and_may_be_called_off() {
    let mut master = Server::builder().start();
    if master.version().lacks("SHUTDOWN that waits for replicas", (7, 0)) {
        return;
    }
    let replica = Server::replica_of(&master, true);
    let mut conn = master.conn();
    conn.cmd("CONFIG SET shutdown-timeout 60");
    let mut waiter = master.conn();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    waiter.send(waits("a"));
    master.wait_until_waiting(1);
    let frozen = replica.freeze();
    conn.cmd("SET lag 1");
    let mut shutdown = master.conn();
    shutdown.send("RL.RENEW k holder LEASE 500");
    shutdown.send("SHUTDOWN NOSAVE");
    assert_eq!(shutdown.recv(), Value::Int(1));
    // The lease lapses meanwhile.
    assert!(waiter.silent_for(ms(700)));
    assert!(master.is_running());
    assert_eq!(text(&conn.cmd("SHUTDOWN ABORT")), "OK");
    assert_refused(&shutdown.recv(), "ERR Errors trying to SHUTDOWN", "SHUTDOWN NOSAVE");
    drop(frozen);
    assert_eq!(acquired(&waiter.recv()).id(), "a");
    wait_for_sync(&master, &replica);
    assert_eq!(replica.conn().held_ids("k"), ["a"]);
}

#[test]
fn the_module_is_unloaded_only_when_no_call_waits() {
    let (server, mut conn) = Server::connect();
    take_slot(&mut conn);
    let mut waiter = server.wait_in_line(waits("a"));
    conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
    // The wait goes on as if nothing had been asked.
    waiter.expect_silence();
    conn.cmd("RL.RELEASE k holder");
    assert_eq!(acquired(&waiter.recv()).id(), "a");
    can_be_unloaded(&server);
    let mut conn = server.conn();
    conn.refuses(waits("b"), "ERR unknown command");
    // Grants are plain data, and stay valid when the module is loaded again.
    assert_eq!(conn.text(["MODULE", "LOAD", &module_path()]), "OK");
    assert_eq!(conn.held_ids("k"), ["a"]);
    let mut waiter = server.wait_in_line(waits("b"));
    conn.cmd("RL.RELEASE k a");
    assert_eq!(acquired(&waiter.recv()).id(), "b");
}

#[test]
fn the_module_is_unloaded_only_when_the_grants_of_dead_clients_were_given_back() {
    let (server, mut conn) = Server::connect();
    take_slot(&mut conn);
    let (mut waiter, id) = server.wait_with_id(waits("a"));
    // Nothing can be given back during the pause.
    let kill = format!("CLIENT KILL ID {id}");
    conn.pipeline(["RL.RELEASE k holder", &kill, "CLIENT PAUSE 60000 WRITE"]);
    waiter.expect_closed();
    server.expect_no_waiting_calls();
    conn.refuses("MODULE UNLOAD ratelimit", "ERR Error unloading module: ");
    conn.cmd("CLIENT UNPAUSE");
    can_be_unloaded(&server);
    assert_eq!(conn.int("EXISTS k"), 0);
}

// ---- Slots that move ----

#[test]
fn a_slot_that_moves_away_takes_its_waiters_along() {
    let cluster = Cluster::of(3, 0);
    let from = cluster.master_of("k");
    let to = (from + 1) % 3;
    let (first, second) = (cluster.node(from), cluster.node(to));
    let (mut here, mut there) = (first.conn(), second.conn());
    let slot = here.int("CLUSTER KEYSLOT k");
    // A lease lapses while the key moves: it must not be granted here.
    here.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let taken = ["RL.THROTTLE {k}t 0 1 1h 1", "RL.WINDOW {k}w 1 1h 1"];
    taken.iter().for_each(|call| assert_eq!(limited(&here.cmd(call)), 0));
    let mut line = [
        first.wait_in_line(waits("a")),
        first.wait_in_line("RL.ACQUIRE k 1 0 1 ID b LEASE 600000 BLOCK 60000"),
        first.wait_in_line(format!("{} BLOCK 0", taken[0])),
        first.wait_in_line(format!("{} BLOCK 0", taken[1])),
    ];
    let mut times_out = first.wait_in_line("RL.ACQUIRE k 1 0 1 ID c LEASE 600000 BLOCK 3000");
    cluster.begin_move(slot, from, to);
    assert_eq!(here.int("RL.RENEW k holder LEASE 600"), 1);
    cluster.move_keys(from, to, &["k", "{k}t", "{k}w"]);
    // Past the end of the lease. In real time, because the timers that would grant it are not held with the clock.
    sleep(ms(800));
    // It is neither granted nor made here.
    assert_eq!(limited(&times_out.recv()), 2);
    assert_eq!(here.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
    for waiter in &mut line {
        assert!(waiter.silent_for(ms(1)));
    }
    cluster.end_move(slot, from, to);
    for waiter in &mut line {
        let moved = error_line(&waiter.recv());
        assert_eq!(moved, format!("MOVED {slot} 127.0.0.1:{}", second.port()));
    }
    first.expect_no_waiting_calls();
    assert_eq!(here.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
    // There it goes on.
    taken.iter().for_each(|call| assert_eq!(limited(&there.cmd(call)), 1));
    there.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let mut waiter = second.wait_in_line(waits("a"));
    // By a timer.
    there.cmd("RL.RENEW k holder LEASE 60");
    assert_eq!(acquired(&waiter.recv()).id(), "a");
    can_be_unloaded(first);
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

//! The harness itself, without the module's commands.

use std::fs;
use std::time::Duration;

use support::*;

const NOON_US: i64 = 1_700_000_000_000_000;

fn time_us(conn: &mut Conn) -> i64 {
    let Value::Array(parts) = conn.cmd("TIME") else { panic!("TIME answers an array") };
    let part = |index: usize| text(&parts[index]).parse::<i64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

fn is_running(pid: i32) -> bool {
    // Under a script the server is not our child, and its zombie may remain.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_server_is_killed_and_its_directory_removed_on_drop() {
    let server = Server::start();
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    assert!(is_running(pid) && dir.exists());
    drop(server);
    assert!(!is_running(pid));
    assert!(!dir.exists());
}

#[test]
fn a_server_that_died_fails_its_test() {
    let mut server = Server::start();
    server.conn().send("SHUTDOWN NOSAVE");
    eventually(Duration::from_secs(20), || !server.is_running());
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(server)));
    assert!(died.is_err());
}

#[test]
fn the_module_is_loaded_by_default() {
    let loaded = |server: Server| server.conn().text("INFO modules").contains("name=ratelimit,");
    assert!(loaded(Server::start()));
    assert!(!loaded(Server::builder().module(false).start()));
}

#[test]
fn the_version_is_what_info_says() {
    let server = Server::start();
    let is_valkey = server.info("server_name").as_deref() == Some("valkey");
    let field = if is_valkey { "valkey_version" } else { "redis_version" };
    let (major, minor) = server.version().release;
    let info = server.info(field).unwrap();
    assert_eq!(server.version().is_valkey, is_valkey);
    assert!(info.starts_with(&format!("{major}.{minor}.")), "{info}");
}

#[test]
fn a_clock_shows_real_time_until_it_is_held() {
    let server = Server::builder().clock(true).start();
    let mut conn = server.conn();
    let before = server.clock().now_us();
    let shown = time_us(&mut conn);
    assert!((before..=server.clock().now_us()).contains(&shown));
    server.clock().set_us(NOON_US);
    assert_eq!(time_us(&mut conn), NOON_US);
    server.clock().release();
    assert!(time_us(&mut conn) >= before);
}

#[test]
fn a_held_clock_steps_both_ways_and_the_next_command_sees_it() {
    let server = Server::builder().clock(true).start();
    let clock = server.clock();
    let mut conn = server.conn();
    clock.set_us(NOON_US);
    let end_ms = NOON_US / 1000 + 60_000;
    conn.cmd("SET k v");
    conn.cmd(format!("PEXPIREAT k {end_ms}"));
    // From 7.2 on PTTL answers by the cached time of the command, which is what a module is given too.
    for _ in 0..1000 {
        clock.advance_ms(3);
        assert_eq!(conn.int("PTTL k"), end_ms - clock.now_us() / 1000);
    }
    clock.advance_ms(-86_400_000);
    assert_eq!(conn.int("PTTL k"), end_ms - clock.now_us() / 1000);
    clock.advance_us(1);
    assert_eq!(clock.now_us(), NOON_US + 3_000_000 - 86_400_000_000 + 1);
    assert_eq!(time_us(&mut conn), clock.now_us());
}

#[test]
fn expiry_follows_the_held_clock() {
    let server = Server::builder().clock(true).start();
    let mut conn = server.conn();
    server.clock().set_us(NOON_US);
    conn.cmd("SET k v PX 1000");
    server.clock().advance_ms(999);
    assert_eq!(conn.int("PTTL k"), 1);
    assert_eq!(conn.text("GET k"), "v");
    server.clock().advance_ms(2);
    assert_eq!(conn.cmd("GET k"), Value::Nil);
}

#[test]
fn an_aof_survives_a_crash() {
    let mut server = Server::builder().aof().start();
    let grown = server.aof_grows_by(|| server.conn().cmd("SET k v"));
    assert_eq!(grown, ["SET k v"]);
    let (pid, port) = (server.pid(), server.port());
    server.restart(Stop::Kill);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.port(), port);
    assert_eq!(server.conn().text("GET k"), "v");
}

#[test]
fn shutdown_saves_when_asked() {
    let mut server = Server::start();
    server.conn().cmd("SET k v");
    server.restart(Stop::Save);
    server.conn().cmd("SET l v");
    server.restart(Stop::NoSave);
    assert_eq!(server.conn().pipeline(["EXISTS k", "EXISTS l"]), [Value::Int(1), Value::Int(0)]);
}

#[test]
fn another_server_loads_what_one_left() {
    let mut old = Server::builder().aof().start();
    old.conn().cmd("SET k v");
    old.stop(Stop::Kill);
    let new = Server::builder().module(false).aof().dir(old.dir()).start();
    assert_eq!(new.conn().text("GET k"), "v");
}

#[test]
fn a_replica_copies_its_master_and_lives_by_its_clock() {
    let master = Server::builder().clock(true).start();
    let mut conn = master.conn();
    conn.cmd("SET before v");
    let replica = Server::replica_of(&master, false);
    master.clock().set_us(NOON_US);
    assert!(master.repl_grows(|| conn.cmd("SET after v")) > 0);
    assert_eq!(master.repl_grows(|| conn.cmd("GET after")), 0);
    wait_for_sync(&master, &replica);
    let mut copy = replica.conn();
    assert_eq!(copy.text("GET before") + &copy.text("GET after"), "vv");
    assert_eq!(time_us(&mut copy), NOON_US);
    assert!(copy.err("SET k v").starts_with("READONLY "));
}

#[test]
fn a_cluster_node_answers_before_and_after_a_restart() {
    let mut server = Server::builder().cluster().aof().start();
    assert_eq!(server.conn().text("SET k v"), "OK");
    server.restart(Stop::Kill);
    assert_eq!(server.conn().text("GET k"), "v");
    assert!(server.conn().err("MGET a b").starts_with("CROSSSLOT "));
}

#[test]
fn a_command_is_a_line_or_its_bytes() {
    let server = Server::start();
    let mut conn = server.conn();
    conn.cmd([&b"SET"[..], b"\0 k", b"a b\xff"]);
    assert_eq!(conn.cmd(["GET", "\0 k"]), Value::BulkString(b"a b\xff".to_vec()));
    conn.cmd("SET k 1");
    assert_eq!(conn.err("LPUSH k 1")[..10], *"WRONGTYPE ");
    assert_eq!(conn.err("GET"), "ERR wrong number of arguments for 'get' command");
    assert_eq!(conn.ints("BITFIELD k GET u8 0 GET u8 8"), [49, 0]);
    assert_refused(&conn.pipeline(["NOSUCH", "GET k"])[0], "ERR unknown command ", "NOSUCH");
}

#[test]
fn resp3_is_spoken() {
    let server = Server::start();
    let mut conn = server.conn_resp3();
    conn.cmd("HSET h f v");
    assert!(matches!(conn.cmd("HGETALL h"), Value::Map(_)));
}

#[test]
fn a_client_of_the_crate_connects() {
    let server = Server::start();
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let pong: String = redis::cmd("PING").query(&mut client).unwrap();
    assert_eq!(pong, "PONG");
}

#[test]
fn a_waiting_connection_is_silent_until_its_reply_or_its_end() {
    let server = Server::start();
    let (mut one, mut two) = (server.conn(), server.conn());
    let id = two.id();
    one.send("BLPOP list 0");
    two.send("BLPOP other 0");
    assert!(at_least(50, || one.silent_for(Duration::from_millis(50))));
    server.conn().cmd("LPUSH list x");
    assert!(!one.silent_for(Duration::from_secs(20)));
    assert!(matches!(one.recv(), Value::Array(pair) if pair.len() == 2));
    assert_eq!(server.conn().int(format!("CLIENT KILL ID {id}")), 1);
    two.expect_closed();
    one.half_close();
    one.expect_closed();
}

#[test]
fn config_rewrite_survives_a_restart() {
    let mut server = Server::builder().config("maxmemory-samples 3").start();
    server.conn().pipeline(["CONFIG SET maxmemory-samples 7", "CONFIG REWRITE"]);
    server.restart(Stop::NoSave);
    assert!(matches!(
        server.conn().cmd("CONFIG GET maxmemory-samples"),
        Value::Array(pair) if text(&pair[1]) == "7"
    ));
}

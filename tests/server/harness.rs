//! The harness itself, without the module's commands.

use std::fs;
use std::time::Duration;

use support::*;

const NOON_US: i64 = 1_700_000_000_000_000;

fn time_us(conn: &mut Conn) -> i64 {
    let parts = conn.array("TIME");
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
    eventually(SOON, || !server.is_running());
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(server)));
    assert!(died.is_err());
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
fn a_waiting_connection_is_silent_until_its_reply_or_its_end() {
    let server = Server::start();
    let (mut one, mut two) = (server.conn(), server.conn());
    let id = two.id();
    one.send("BLPOP list 0");
    two.send("BLPOP other 0");
    assert!(at_least(50, || one.silent_for(Duration::from_millis(50))));
    server.conn().cmd("LPUSH list x");
    assert!(!one.silent_for(SOON));
    assert!(matches!(one.recv(), Value::Array(pair) if pair.len() == 2));
    assert_eq!(server.conn().int(format!("CLIENT KILL ID {id}")), 1);
    two.expect_closed();
    one.half_close();
    one.expect_closed();
}

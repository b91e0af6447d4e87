//! The settings `ratelimit.*`: CONFIG GET, SET and REWRITE, redis.conf, and load arguments.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::*;

/// Is true if a call without TZ has the windows of Shanghai.
fn is_in_shanghai(conn: &mut Conn) -> bool {
    conn.cmd("DEL a b");
    let left = |conn: &mut Conn, call| conn.ints(call)[4];
    let shanghai = left(conn, "RL.WINDOW b 1 1d FIXED TZ Asia/Shanghai");
    // A second or more may pass between the two; the zones are hours apart.
    left(conn, "RL.WINDOW a 1 1d FIXED").abs_diff(shanghai) < 60
}

#[test]
fn a_zone_is_set_by_name_or_offset_and_a_bad_one_refused() {
    let server = Server::start();
    if Version::under_test().lacks_settings() {
        return;
    }
    let mut conn = server.conn();
    for (given, shown) in [
        ("europe/BERLIN", "Europe/Berlin"),
        ("-03:30", "-03:30"),
        ("America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
    ] {
        assert_eq!(conn.text(format!("CONFIG SET ratelimit.timezone {given}")), "OK");
        assert_eq!(conn.setting("ratelimit.timezone"), shown);
    }
    for zone in ["Mars/Olympus", "", "+8", "+25:00", "Asia/Shanghai ", "\0", "UTC\0"] {
        let error = conn.err(["CONFIG", "SET", "ratelimit.timezone", zone]);
        assert!(error.contains("must be an IANA time zone"), "{zone:?}: {error}");
    }
    assert_eq!(conn.setting("ratelimit.timezone"), "America/Argentina/Buenos_Aires");
}

#[test]
fn a_digest_says_whether_two_servers_have_the_same_settings() {
    const FIELD: &str = "ratelimit_settings_digest";
    let digest = |arguments: &str| {
        let words = arguments.split_whitespace();
        Server::builder().module_args(words).start().info(FIELD).unwrap()
    };
    let default = digest("");
    assert_eq!(default.len(), 16);
    assert_eq!(default, digest("timezone utc window-entries 4096 policies-only no"));

    // Several have the same value: the digest says which setting has it.
    let deciding = [
        "window-entries 1", "lease 1", "max-reservations 1", "max-waiters 1",
        "timezone Asia/Shanghai", "policies-only yes", "cl-throttle yes", "zoneinfo /nowhere",
    ];
    let digests: BTreeSet<_> = deciding.iter().map(|one| digest(one)).collect();
    assert_eq!(digests.len(), deciding.len(), "one differs from the next");
    assert!(!digests.contains(&default));
    let mut reversed = deciding;
    reversed.reverse();
    let all = digest(&deciding.join(" "));
    assert_eq!(all, digest(&reversed.join(" ")));
    assert!(all != default && !digests.contains(&all));

    let others = ["top-keys 0", "notify-denied yes", "allow-unload yes", "policies a WINDOW 5 60"];
    assert_eq!(default, digest(&others.join(" ")));
    if Version::under_test().lacks_settings() {
        return;
    }
    let (mut server, mut conn) = Server::connect();
    let pairs = conn.array("CONFIG GET ratelimit.*");
    assert_eq!(pairs.len(), 2 * (deciding.len() + others.len()), "each setting is tried");
    assert_eq!(conn.text("CONFIG SET ratelimit.lease 20000"), "OK");
    assert_eq!(server.info(FIELD).unwrap(), digest("lease 20000"));
    // The last two are read at the start alone.
    let settable = &deciding[..deciding.len() - 2];
    for setting in settable {
        assert_eq!(conn.text(format!("CONFIG SET ratelimit.{setting}")), "OK");
    }
    assert_eq!(conn.text("CONFIG REWRITE"), "OK");
    server.restart(Stop::NoSave);
    assert_eq!(server.info(FIELD).unwrap(), digest(&settable.join(" ")));
}

#[test]
fn load_arguments_are_taken_with_and_without_the_prefix() {
    for arguments in [
        ["window-entries", "8", "timezone", "Asia/Shanghai", "lease", "31557600000"],
        [
            "ratelimit.lease", "31557600000", "ratelimit.timezone", "asia/shanghai",
            "Window-Entries", "8",
        ],
    ] {
        let (server, mut conn) = Server::builder().clock(true).module_args(arguments).connect();
        assert!(is_in_shanghai(&mut conn));
        server.clock().set_us(1_700_000_000_000_000);
        for _ in 0..100 {
            server.clock().advance_ms(10);
            conn.cmd("RL.WINDOW k 1000 1s");
        }
        assert!(conn.int("ZCARD k") <= 10);
        if server.version().is_from(7, 0) {
            assert_eq!(conn.setting("ratelimit.window-entries"), "8");
            assert_eq!(conn.setting("ratelimit.timezone"), "Asia/Shanghai");
            assert_eq!(conn.setting("ratelimit.lease"), "31557600000");
            assert_eq!(conn.setting("ratelimit.max-waiters"), "10000");
        }
    }
}

#[test]
fn bad_load_arguments_are_refused_with_a_line_in_the_log() {
    let server = Server::builder().module(false).start();
    let path = module_path();
    let mut conn = server.conn();
    for arguments in [
        "window-entries",
        "window-entries 0",
        "window-entries 65537",
        "window-entries 8x",
        "window-entries +8",
        "window-entries 08",
        "window-entries -1",
        "window-entries 9223372036854775808",
        "lease 0",
        "lease 31557600001",
        "lease 5s",
        "max-reservations 0",
        "max-waiters -1",
        "timezone Mars/Olympus",
        "timezone +8",
        "nonsense 8",
        "cl-throttle maybe",
        "ratelimit. 8",
        "ratelimit.ratelimit.lease 8",
        "lease 8 timezone",
        "lease 7 policies a WINDOW 5 60; b WINDOW x 60",
        "policies",
    ] {
        conn.refuses(format!("MODULE LOAD {path} {arguments}"), LOAD_FAILED);
        let log = server.log();
        let line = log.lines().rfind(|line| line.contains("redis-ratelimit: load argument"));
        assert!(line.is_some(), "{arguments}: {log}");
    }
    assert_eq!(conn.text(format!("MODULE LOAD {path} lease 8")), "OK");
    assert_eq!(conn.ints("RL.WINDOW k 1 60")[0], 0);
}

#[test]
fn a_bad_line_of_redis_conf_keeps_the_server_from_starting() {
    let other = Server::start();
    if Version::under_test().lacks_settings() {
        return;
    }
    for (line, reason) in [
        ("window-entries 0", "ratelimit."),
        ("window-entries x", "ratelimit."),
        ("timezone Mars/Olympus", "ratelimit."),
        ("lease 0", "ratelimit."),
        ("lesae 1", "Module Configuration detected without loadmodule directive"),
        ("policies \"a WINDOW 5 60; b WINDOW x 60\"", "policy b: limit must be an integer from 0"),
    ] {
        let loads = format!("loadmodule {}", module_path());
        let log = log_of_a_start_that_fails(&other, &format!("{loads}\nratelimit.{line}\n"));
        assert!(log.contains(reason), "{line}: {log}");
    }
}

/// Starts a server with these lines in its file, next to another server. It must end by itself.
#[track_caller]
fn log_of_a_start_that_fails(other: &Server, lines: &str) -> String {
    let config = other.dir().join("bad.conf");
    let log = other.dir().join("bad.log");
    fs::write(&config, format!("port 0\nunixsocket bad.socket\n{lines}")).unwrap();
    let binary = server_binary();
    let mut server = Command::new(binary)
        .arg(&config)
        .current_dir(other.dir())
        .stdout(fs::File::create(&log).unwrap())
        .stderr(fs::File::options().append(true).open(&log).unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while server.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(10));
    }
    let _ = server.kill();
    assert!(!server.wait().unwrap().success(), "{lines}");
    fs::read_to_string(&log).unwrap()
}

#[test]
fn a_second_load_is_refused_with_the_reason_in_the_log() {
    const REASON: &str =
        "a module with the name ratelimit is already loaded: keep one loadmodule line, or send \
        MODULE UNLOAD ratelimit first";
    let (server, path) = (Server::start(), module_path());
    let mut conn = server.conn();
    conn.refuses(format!("MODULE LOAD {path}"), LOAD_FAILED);
    assert!(server.log().contains(REASON), "{}", server.log());
    // The first one goes on.
    assert_eq!(conn.ints("RL.WINDOW k 5 60"), [0, 5, 4, -1, 60]);
    assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    assert_eq!(conn.text(format!("MODULE LOAD {path}")), "OK");
    let lines = format!("loadmodule {path}\n").repeat(2);
    let log = log_of_a_start_that_fails(&server, &lines);
    assert!(log.contains(REASON), "{log}");
}

#[test]
fn a_setting_that_is_given_twice_to_one_load_is_refused() {
    if Version::under_test().lacks_settings() {
        return;
    }
    let server = Server::builder().module(false).start();
    let (mut conn, path) = (server.conn(), module_path());
    let load = ["MODULE", "LOADEX", &path, "CONFIG"];
    let mut times = 0;
    for (name, value, arguments) in [
        ("policies", "a WINDOW 5 60", "policies b WINDOW 6 60"),
        ("policies", "a WINDOW 5 60", "lease 30000 policies"),
        ("lease", "5000", "ratelimit.lease 6000"),
        ("timezone", "Asia/Shanghai", "window-entries 8 timezone Europe/Lisbon"),
        ("policies-only", "no", "policies-only yes"),
    ] {
        let name = format!("ratelimit.{name}");
        let mut words = [&load[..], &[&name, value, "ARGS"]].concat();
        words.extend(arguments.split(' '));
        if arguments.ends_with("policies") {
            words.push("");
        }
        conn.refuses(&words, "ERR Error loading the extension");
        let reason = format!(
            "redis-ratelimit: {name} has one value after CONFIG and another after ARGS: give it once"
        );
        times = server.log().lines().filter(|line| line.contains(&reason)).count();
        assert!(times >= 1, "{reason}\n{}", server.log());
        // Nothing of it is left.
        assert_eq!(conn.text(format!("MODULE LOAD {path}")), "OK");
        for (name, default) in [("policies", ""), ("lease", "20000"), ("timezone", "UTC")] {
            assert_eq!(conn.setting(&format!("ratelimit.{name}")), default);
        }
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    }
    assert_eq!(times, 1);
    // The same value loses nothing, nor do different settings. Of two arguments the last one counts.
    let words = "ratelimit.lease 5000 ARGS lease 4000 lease 5000 top-keys 9".split(' ');
    assert_eq!(conn.text(load.into_iter().chain(words).collect::<Vec<_>>()), "OK");
    assert_eq!(
        (conn.setting("ratelimit.lease"), conn.setting("ratelimit.top-keys")),
        ("5000".into(), "9".into())
    );
}

/// CONFIG SET and CONFIG REWRITE leave both in the file.
#[test]
fn a_file_whose_settings_differ_from_its_load_arguments_starts_with_the_settings() {
    if Version::under_test().lacks_settings() {
        return;
    }
    let load = format!("loadmodule {} lease 5000 policies b WINDOW 6 60", module_path());
    let (mut server, mut conn) = Server::builder().module(false).config(load).connect();
    assert_eq!(conn.text("CONFIG SET ratelimit.lease 7000"), "OK");
    assert_eq!(conn.text("CONFIG REWRITE"), "OK");
    server.restart(Stop::NoSave);
    assert_eq!(server.conn().setting("ratelimit.lease"), "7000");
    assert_eq!(server.conn().setting("ratelimit.policies"), "b WINDOW 6 60");
    let line = "the load argument lease is not used, as the configuration file has ratelimit.lease";
    assert!(server.log().contains(line), "{}", server.log());
}

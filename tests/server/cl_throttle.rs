//! CL.THROTTLE: RL.THROTTLE under the name that redis-cell's clients send.

use support::*;

/// A server that answers CL.THROTTLE, with a held clock.
fn cell() -> (Server, Conn) {
    Server::builder().module_args(["cl-throttle", "yes"]).with_held_clock()
}

#[test]
fn cl_throttle_is_unknown_unless_the_setting_says_so() {
    for words in [&[][..], &["cl-throttle", "no"]] {
        let (server, mut conn) = Server::builder().module_args(words.iter().copied()).connect();
        assert!(conn.err("CL.THROTTLE k 15 30 60 1").contains("unknown command"));
        assert_eq!(conn.ints("RL.THROTTLE k 15 30 60 1")[0], 0);
        if server.version().is_from(7, 0) {
            assert_eq!(conn.setting("ratelimit.cl-throttle"), "no");
        }
    }
    // It cannot be set later.
    let server = Server::start();
    if server.version().is_from(7, 0) {
        let mut conn = server.conn();
        let error = conn.err("CONFIG SET ratelimit.cl-throttle yes");
        assert!(error.contains("immutable"), "{error}");
        assert!(conn.err("CL.THROTTLE k 15 30 60 1").contains("unknown command"));
    }
}

#[test]
fn a_line_of_redis_conf_turns_it_on_and_outlives_config_rewrite() {
    let mut server = match Version::under_test().lacks_settings() {
        true => return,
        false => Server::builder().config("ratelimit.cl-throttle yes").start(),
    };
    for _ in 0..2 {
        let mut conn = server.conn();
        assert_eq!(conn.ints("CL.THROTTLE k 15 30 60 0"), [0, 16, 16, -1, 0]);
        assert_eq!(conn.text("CONFIG SET ratelimit.lease 5"), "OK");
        assert_eq!(conn.text("CONFIG REWRITE"), "OK");
        server.restart(Stop::NoSave);
    }
}

#[test]
fn cl_throttle_answers_and_stores_what_rl_throttle_does() {
    let (server, mut conn) = cell();
    let max = i64::MAX.to_string();
    for rate in ["15 30 60", "0 1 1", "1000000 7 500ms", "15 0 60", "x 1 1", "-1 1 1", "1 1 1m"] {
        for quantity in ["", "1", "0", "3", "-2", "17", &max, "x", "1.5"] {
            server.clock().advance_ms(1_234);
            let [one, other] = ["CL", "RL"]
                .map(|name| conn.cmd(format!("{name}.THROTTLE {name} {rate} {quantity}")));
            assert_eq!(one, other, "{rate} {quantity}");
            assert_eq!(conn.dumped("CL"), conn.dumped("RL"), "{rate} {quantity}");
        }
    }
    // The two share a key.
    assert_eq!(conn.ints("CL.THROTTLE k 4 1 60 3"), [0, 5, 2, -1, 180]);
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 60 3"), [1, 5, 2, 60, 180]);
    assert_eq!(conn.ints("CL.THROTTLE k 4 1 60 3"), [1, 5, 2, 60, 180]);
    assert!(server.info_ratelimit("cl_throttle_errors") > 0);
    assert!(server.info_ratelimit("cl_throttle_denied") > 0);
}

#[test]
fn cl_throttle_has_no_options() {
    let (_server, mut conn) = cell();
    for options in ["MS", "1 MS", "1 ATMOST", "1 BLOCK 5", "1 AHEAD 5", "1 LEAVE 1", "1 1"] {
        let call = format!("CL.THROTTLE k 15 30 60 {options}");
        conn.refuses(call, "ERR syntax error: unknown option ");
    }
    for call in ["CL.THROTTLE", "CL.THROTTLE k", "CL.THROTTLE k 15", "CL.THROTTLE k 15 30"] {
        // Before 7.0 the server says the name as the client wrote it.
        let error = conn.err(call).to_lowercase();
        assert_eq!(error, "err wrong number of arguments for 'cl.throttle' command", "{call}");
    }
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn lower_case_in_scripts_and_an_empty_key_work() {
    let (_server, mut conn) = cell();
    let script = "return redis.call('cl.throttle', KEYS[1], 15, 30, 60)";
    assert_eq!(conn.ints(["EVAL", script, "1", "lua"]), [0, 16, 15, -1, 2]);
    assert_eq!(conn.ints(["CL.THROTTLE", "", "15", "30", "60"]), [0, 16, 15, -1, 2]);
    assert_eq!(conn.int(["EXISTS", ""]), 1);
}

/// The names of all commands of the module.
fn names(conn: &mut Conn) -> Vec<String> {
    flat(&conn.cmd("COMMAND LIST FILTERBY MODULE ratelimit"))
}

#[test]
fn every_command_whose_name_is_taken_is_left_out_and_the_others_are_there() {
    let other = test_module();
    let load = format!("MODULE LOAD {} cl-throttle yes allow-unload yes", module_path());
    if Version::under_test().lacks("COMMAND LIST", (7, 0)) {
        return;
    }
    let all = names(&mut cell().1);
    assert_eq!(all.len(), 16, "{all:?}");
    let (server, mut conn) = Server::builder().module(false).connect();
    let one = vec!["rl.throttle".to_string()];
    for taken in [&one, &all] {
        let take = ["MODULE", "LOAD", &other, "take"].map(String::from);
        assert_eq!(conn.text([&take[..], taken].concat()), "OK");
        for _ in 0..2 {
            assert_eq!(conn.text(&load), "OK");
            let mut left = names(&mut conn);
            left.extend(taken.clone());
            left.sort();
            let mut expected = all.clone();
            expected.sort();
            assert_eq!(left, expected);
            assert_eq!(conn.text("RL.THROTTLE k 15 30 60"), "another module");
            for name in &all {
                let is_ours = !taken.contains(name);
                let docs = format!("{:?}", conn.cmd(["COMMAND", "DOCS", name]));
                assert_eq!(docs.contains("complexity"), is_ours, "{name}: {docs}");
                let info = format!("{:?}", conn.cmd(["COMMAND", "INFO", name]));
                assert!(info.contains(name.as_str()), "{info}");
            }
            if taken == &one {
                assert_eq!(conn.ints("RL.THROTTLE_RO k 15 30 60"), [0, 16, 16, -1, 0]);
                assert_eq!(conn.ints("RL.WINDOW w 5 60"), [0, 5, 4, -1, 60]);
                assert!(matches!(conn.cmd("RL.ALL 1 w THROTTLE 1 1 1"), Value::ServerError(_)));
                assert_eq!(conn.int("DEL w"), 1);
            }
            assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
        }
        assert_eq!(conn.text("MODULE UNLOAD tests"), "OK");
    }
    let log = server.log();
    for name in &all {
        let line =
            format!("the command {name} is left out, as the server or another module has one");
        let times = log.lines().filter(|log| log.contains(&line)).count();
        assert_eq!(times, if *name == "rl.throttle" { 4 } else { 2 }, "{name}: {log}");
    }
    assert_eq!(conn.text(&load), "OK");
    assert_eq!(conn.ints("RL.THROTTLE k 15 30 60"), [0, 16, 15, -1, 2]);
    // A command of the server itself.
    let (server, mut conn) = Server::builder().config("rename-command ECHO rl.throttle").connect();
    assert_eq!(conn.text("RL.THROTTLE x"), "x");
    assert_eq!(conn.ints("RL.WINDOW w 5 60"), [0, 5, 4, -1, 60]);
    assert!(server.log().contains("the command rl.throttle is left out"), "{}", server.log());
}

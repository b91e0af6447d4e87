//! RL.THROTTLE in transactions, scripts, clusters and under short memory, by any client, and what the server
//! tells about it.

mod support;

use std::time::Duration;

use support::*;

// ---- Transactions and scripts ----

#[test]
fn it_works_in_multi() {
    let (server, mut conn) = Server::held();
    let calls = ["MULTI", "RL.THROTTLE k 1 1 1", "RL.THROTTLE k 1 1 1", "RL.THROTTLE k 1 1 1"];
    conn.pipeline(calls);
    conn.pipeline(["RL.THROTTLE_RO k 1 1 1", "SET counter 5", "RL.THROTTLE counter 1 1 1"]);
    let Value::Array(replies) = conn.cmd("EXEC") else { panic!("EXEC") };
    let told = [[0, 2, 1, -1, 1], [0, 2, 0, -1, 2], [1, 2, 0, 1, 2], [1, 2, 0, 1, 2]];
    for (reply, told) in replies.iter().zip(told) {
        assert_eq!(ints(reply), told);
    }
    assert!(error_line(&replies[5]).starts_with("ERR the key holds "));
    // A bad arity is refused when it is queued, where the server is told the arity.
    if server.version().is_from(7, 0) {
        conn.cmd("MULTI");
        assert!(conn.err("RL.THROTTLE k").starts_with("ERR wrong number"));
        assert!(conn.err("EXEC").starts_with("EXECABORT "));
    }
}

#[test]
fn watch_sees_a_call_that_changed_something_and_no_other() {
    let (server, mut conn) = Server::held();
    let mut other = server.conn();
    conn.cmd("RL.THROTTLE k 1 1 1");
    for (call, changes) in [
        ("RL.THROTTLE k 1 1 1 0", false),
        ("RL.THROTTLE_RO k 1 1 1", false),
        ("RL.THROTTLE k 1 1 1 2", false),
        ("RL.THROTTLE k 1 1 1 3", false),
        ("RL.THROTTLE k 1 1 1", true),
        ("RL.THROTTLE k 1 1 1", false),
        ("RL.THROTTLE k 1 1 1 -1", true),
        ("RL.THROTTLE k 1 1 1 -1", true),
        ("RL.THROTTLE k 1 1 1 -1", false),
    ] {
        conn.cmd("WATCH k");
        other.cmd(call);
        conn.pipeline(["MULTI", "PING"]);
        assert_eq!(conn.cmd("EXEC") == Value::Nil, changes, "{call}");
    }
}

#[test]
fn it_works_in_lua_and_in_functions() {
    let (server, mut conn) = Server::held();
    let script = "local r = redis.call('RL.THROTTLE', KEYS[1], 1, 1, 1); \
                  r[#r + 1] = redis.call('RL.THROTTLE', KEYS[1], 1, 1, 1)[1]; return r";
    assert_eq!(conn.ints(["EVAL", script, "1", "k"]), [0, 2, 1, -1, 1, 0]);
    assert_eq!(conn.ints(["EVAL", script, "1", "k"]), [1, 2, 0, 1, 2, 1]);
    let caught = "local r = redis.pcall('RL.THROTTLE', KEYS[1], 1, 0, 1); return r.err";
    assert!(conn.text(["EVAL", caught, "1", "k"]).contains("count must be"));
    if server.version().is_from(7, 0) {
        let looks = "return redis.call('RL.THROTTLE_RO', KEYS[1], 1, 1, 1)";
        assert_eq!(conn.ints(["EVAL_RO", looks, "1", "k"]), [1, 2, 0, 1, 2]);
        let writes = "return redis.call('RL.THROTTLE', KEYS[1], 1, 1, 1)";
        assert!(conn.err(["EVAL_RO", writes, "1", "k"]).contains("Write commands are not allowed"));
        let library = "#!lua name=limits\nredis.register_function('take', function(keys) \
                       return redis.call('RL.THROTTLE', keys[1], 4, 1, 1) end)";
        assert_eq!(conn.text(["FUNCTION", "LOAD", library]), "limits");
        assert_eq!(conn.ints("FCALL take 1 f"), [0, 5, 4, -1, 1]);
    }
}

#[test]
fn it_works_pipelined_and_over_resp3() {
    let (server, mut conn) = Server::held();
    let replies = conn.pipeline(["RL.THROTTLE k 2 1 1"; 4]);
    let limited: Vec<i64> = replies.iter().map(|reply| ints(reply)[0]).collect();
    assert_eq!(limited, [0, 0, 0, 1]);
    let mut conn = server.conn_resp3();
    assert_eq!(conn.ints("RL.THROTTLE three 15 30 60 1"), [0, 16, 15, -1, 2]);
    assert_eq!(conn.ints("RL.THROTTLE three 15 30 60 99 ATMOST"), [0, 16, 0, -1, 32, 15]);
    assert_eq!(conn.ints("RL.THROTTLE_RO three 15 30 60 1"), [1, 16, 0, 2, 32]);
    assert!(conn.err("RL.THROTTLE three 15 0 60").starts_with("ERR count"));
}

#[test]
fn databases_are_apart() {
    let (_server, mut conn) = Server::held();
    assert_eq!(conn.ints("RL.THROTTLE k 0 1 1")[0], 0);
    conn.cmd("SELECT 3");
    assert_eq!(conn.ints("RL.THROTTLE k 0 1 1")[0], 0);
    assert_eq!(conn.ints("RL.THROTTLE k 0 1 1")[0], 1);
}

// ---- Cluster ----

#[test]
fn a_cluster_routes_it_by_its_one_key() {
    let server = Server::builder().clock(true).cluster().start();
    server.clock().set_us(START_US);
    let mut conn = server.conn();
    for command in ["RL.THROTTLE", "RL.THROTTLE_RO"] {
        let call = format!("{command} {{user}}:1 15 30 60 1");
        assert_eq!(flat(&conn.cmd(format!("COMMAND GETKEYS {call}"))), ["{user}:1"]);
        assert_eq!(conn.ints(call)[0], 0);
    }
    let slot = conn.int("CLUSTER KEYSLOT user");
    assert_eq!(conn.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")), 1);

    let second = Server::builder().cluster().start();
    let mut there = second.conn();
    // It gives up the slots it was started with, to join with none.
    if server.version().is_from(7, 0) {
        there.cmd("CLUSTER FLUSHSLOTS");
    } else {
        there.cmd("CLUSTER RESET");
    }
    let id = there.text("CLUSTER MYID");
    conn.cmd(format!("CLUSTER MEET 127.0.0.1 {}", second.port()));
    eventually(Duration::from_secs(20), || conn.text("CLUSTER NODES").contains(&id));
    let empty = conn.int("CLUSTER KEYSLOT other");
    let give = format!("CLUSTER SETSLOT {empty} NODE {id}");
    eventually(Duration::from_secs(20), || matches!(conn.cmd(&give), Value::Okay));
    for command in ["RL.THROTTLE", "RL.THROTTLE_RO"] {
        let told = conn.err(format!("{command} other 15 30 60 1"));
        assert_eq!(told, format!("MOVED {empty} 127.0.0.1:{}", second.port()));
    }
    assert_eq!(conn.ints("RL.THROTTLE {user}:1 15 30 60 1")[2], 14);
}

// ---- Short memory and rights ----

#[test]
fn short_of_memory_it_is_an_oom_error_and_nothing_is_written() {
    let (_server, mut conn) = Server::held();
    conn.cmd("RL.THROTTLE k 4 1 1");
    let before = conn.text("GET k");
    conn.cmd("CONFIG SET maxmemory 1");
    for call in ["RL.THROTTLE k 4 1 1", "RL.THROTTLE k 4 1 1 -1", "RL.THROTTLE new 4 1 1"] {
        assert!(conn.err(call).starts_with("OOM "), "{call}");
    }
    assert_eq!(conn.ints("RL.THROTTLE_RO k 4 1 1"), [0, 5, 4, -1, 1]);
    assert_eq!((conn.text("GET k"), conn.int("DBSIZE")), (before, 1));
    conn.cmd("CONFIG SET maxmemory 0");
    assert_eq!(conn.ints("RL.THROTTLE k 4 1 1"), [0, 5, 3, -1, 2]);
}

#[test]
fn a_user_who_may_only_read_may_look() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.THROTTLE k 4 1 1");
    for (rule, mut reader) in server.readers("rl.throttle_ro") {
        assert_eq!(reader.ints("RL.THROTTLE_RO k 4 1 1"), [0, 5, 4, -1, 1], "{rule}");
        assert!(reader.err("RL.THROTTLE k 4 1 1").starts_with("NOPERM "), "{rule}");
        assert!(reader.err("RL.THROTTLE k 4 1 1 0").starts_with("NOPERM "), "{rule}");
    }
    conn.cmd("ACL SETUSER elsewhere on nopass +@all ~mine:*");
    let mut elsewhere = server.conn();
    elsewhere.cmd("AUTH elsewhere x");
    assert_eq!(elsewhere.ints("RL.THROTTLE mine:1 4 1 1")[0], 0);
    assert!(elsewhere.err("RL.THROTTLE k 4 1 1").starts_with("NOPERM "));
    assert!(elsewhere.err("RL.THROTTLE_RO k 4 1 1").starts_with("NOPERM "));
    assert_eq!(conn.ints("RL.THROTTLE_RO k 4 1 1")[2], 4);
}

#[test]
fn the_acl_categories_are_told_where_the_server_has_them() {
    let (server, mut conn) = Server::held();
    let can = if server.version().is_valkey { (8, 0) } else { (7, 4) };
    let release = server.version().release;
    if server.version().is_from(7, 2) {
        for (category, command) in
            [("read", "rl.throttle_ro"), ("write", "rl.throttle"), ("fast", "rl.throttle")]
        {
            let commands = flat(&conn.cmd(format!("ACL CAT {category}")));
            assert!(commands.contains(&command.to_owned()), "{category}");
        }
    }
    if release >= can {
        let mut commands = flat(&conn.cmd("ACL CAT ratelimit"));
        commands.sort();
        assert!(commands.contains(&"rl.throttle".to_owned()), "{commands:?}");
        assert!(commands.contains(&"rl.throttle_ro".to_owned()), "{commands:?}");
    }
}

// ---- What the server tells ----

#[test]
fn command_info_tells_flags_and_keys() {
    let (server, mut conn) = Server::held();
    let all = "COMMAND INFO RL.THROTTLE RL.THROTTLE_RO";
    let Value::Array(infos) = conn.cmd(all) else { panic!("{all}") };
    let names = ["rl.throttle", "rl.throttle_ro"];
    let flags: [&[&str]; 2] = [&["write", "denyoom", "fast"], &["readonly", "fast"]];
    let spec_flags: [&[&str]; 2] = [&["RW", "access", "update"], &["RO", "access"]];
    for (index, info) in infos.iter().enumerate() {
        let Value::Array(parts) = info else { panic!("{info:?}") };
        assert_eq!(text(&parts[0]), names[index]);
        if server.version().is_from(7, 0) {
            assert_eq!(parts[1], Value::Int(-5));
            let specs = flat(&parts[8]);
            for flag in spec_flags[index] {
                assert!(specs.iter().any(|word| word.eq_ignore_ascii_case(flag)), "{specs:?}");
            }
            assert!(!specs.iter().any(|word| word == "incomplete"), "{specs:?}");
        }
        let told = flat(&parts[2]);
        for flag in flags[index] {
            assert!(told.iter().any(|word| word == flag), "{told:?} lacks {flag}");
        }
        assert_eq!([&parts[3], &parts[4], &parts[5]], [&Value::Int(1); 3]);
    }
}

#[test]
fn command_docs_tell_every_argument() {
    let (server, mut conn) = Server::held();
    if server.version().lacks("COMMAND DOCS", (7, 0)) {
        return;
    }
    for (command, arguments) in [
        ("rl.throttle", vec!["key", "max-burst", "count", "period", "quantity", "ATMOST", "MS"]),
        ("rl.throttle_ro", vec!["key", "max-burst", "count", "period", "quantity", "MS"]),
    ] {
        let docs = flat(&conn.cmd(format!("COMMAND DOCS {command}")));
        for word in ["summary", "complexity", "since"] {
            assert!(docs.contains(&word.to_owned()), "{docs:?} lacks {word}");
        }
        let mut rest = docs.iter();
        for argument in arguments {
            assert!(rest.any(|word| word == argument), "{docs:?} lacks {argument}");
        }
    }
}

#[test]
fn info_counts_what_became_of_the_calls() {
    let (server, mut conn) = Server::held();
    conn.pipeline(["RL.THROTTLE k 1 1 1"; 5]);
    conn.pipeline(["RL.THROTTLE k 1 1 1 0", "RL.THROTTLE k 1 1 1 -1", "RL.THROTTLE k 1 0 1"]);
    conn.pipeline(["RL.THROTTLE_RO k 1 1 1", "RL.THROTTLE_RO k 1 1 1 9"]);
    conn.pipeline(["RL.THROTTLE_RO k 1 1 x", "SET c 5", "RL.THROTTLE_RO c 1 1 1"]);
    for (field, number) in [
        ("throttle_allowed", "4"),
        ("throttle_denied", "3"),
        ("throttle_errors", "1"),
        ("throttle_ro_allowed", "1"),
        ("throttle_ro_denied", "1"),
        ("throttle_ro_errors", "2"),
    ] {
        let told = server.info(&format!("ratelimit_{field}"));
        assert_eq!(told.as_deref(), Some(number), "{field}");
    }
    let section = conn.text("INFO ratelimit");
    assert!(section.contains("ratelimit_throttle_allowed:4"), "{section}");
}

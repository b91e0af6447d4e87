//! What holds for every command: short of memory, with few rights, at any time and with wrong options, and what COMMAND INFO
//! and ACL CAT say. The commands run in transactions and scripts in tests/programs/clients.rs.

use support::*;

/// For each family: a taking call on the key `k` that is allowed once, and the call that looks.
const FAMILIES: [[&str; 2]; 3] = [
    ["RL.THROTTLE k 0 1 60", "RL.THROTTLE_RO k 0 1 60"],
    ["RL.WINDOW k 1 60", "RL.WINDOW_RO k 1 60"],
    ["RL.ACQUIRE k 1 60", "RL.ACQUIRE_RO k 1 60"],
];

// ---- Short memory and rights ----

#[test]
fn short_of_memory_taking_is_an_oom_error_and_settling_works() {
    let (server, mut conn) = Server::with_held_clock();
    conn.pipeline(["RL.THROTTLE t 4 1 1", "RL.WINDOW w 5 60"]);
    conn.pipeline(["x", "y", "z"].map(|id| format!("RL.ACQUIRE a 5 60 1 ID {id}")));
    let dumps = |conn: &mut Conn| ["DUMP t", "DUMP w", "DUMP a"].map(|line| conn.cmd(line));
    let before = dumps(&mut conn);
    conn.cmd("CONFIG SET maxmemory 1");
    for call in [
        "RL.THROTTLE t 4 1 1", "RL.THROTTLE t 4 1 1 0", "RL.THROTTLE t 4 1 1 -1",
        "RL.THROTTLE new 4 1 1", "RL.WINDOW w 5 60", "RL.WINDOW w 5 60 0",
        "RL.WINDOW new 5 1d FIXED", "RL.ACQUIRE a 5 60", "RL.ACQUIRE new 5 0",
    ] {
        conn.refuses(call, "OOM ");
    }
    assert_eq!(conn.ints("RL.THROTTLE_RO t 4 1 1"), [0, 5, 4, -1, 1]);
    assert_eq!(conn.ints("RL.WINDOW_RO w 5 60"), [0, 5, 4, -1, 60]);
    assert_eq!((dumps(&mut conn), conn.int("DBSIZE")), (before, 3));
    assert_eq!(conn.pipeline(["RL.RENEW a x", "RL.APPLY a x"]), [1, 1].map(Value::Int));
    let release = "return redis.call('RL.RELEASE', KEYS[1], 'y')";
    assert_eq!(conn.int(["EVAL", release, "1", "a"]), 1);
    let in_transaction = conn.pipeline(["MULTI", "RL.RELEASE a z", "EXEC"]).remove(2);
    match server.version().is_from(7, 2) {
        true => assert_eq!(ints(&in_transaction), [1]),
        false => assert_refused(&in_transaction, "EXECABORT ", "a release in a transaction"),
    }
    conn.cmd("CONFIG SET maxmemory 0");
    assert_eq!(conn.ints("RL.THROTTLE t 4 1 1"), [0, 5, 3, -1, 2]);
    assert_eq!(conn.ints("RL.WINDOW w 5 60"), [0, 5, 3, -1, 60]);
}

/// Connections of users who may only read, one for each way to say so in an ACL: by this command's name, and others. The
/// text is the user's rules.
fn readers(server: &Server, command: &str) -> Vec<(String, Conn)> {
    let mut rules = vec![format!("-@all +{command} ~*")];
    // Before 7.2 no module's command is in any category.
    if server.version().is_from(7, 2) {
        rules.push("-@all +@read ~*".into());
    }
    if server.version().is_from(7, 0) {
        rules.push("+@all %R~*".into());
    }
    rules.into_iter().map(|rule| (rule.clone(), server.as_user(&rule))).collect()
}

#[test]
fn a_user_with_read_permissions_may_look() {
    let (server, mut conn) = Server::with_held_clock();
    for [take, look] in FAMILIES {
        conn.cmd("DEL k");
        conn.cmd(take);
        let name = look.split(' ').next().unwrap().to_lowercase();
        for (rule, mut reader) in readers(&server, &name) {
            assert_ne!(limited(&reader.cmd(look)), 0, "{rule}: {look}");
            reader.refuses(take, "NOPERM ");
            let nothing = format!("{take} 0");
            assert!(reader.err(nothing).starts_with("NOPERM "), "{rule}: {take} 0");
        }
    }
    for (rule, mut reader) in readers(&server, "rl.info") {
        let before = conn.dumped("k");
        assert!(matches!(reader.cmd("RL.INFO k"), Value::Array(_)), "{rule}");
        assert_eq!(conn.dumped("k"), before);
    }
}

// ---- What the server reports ----

/// Name, arity and flags. RL.ALL has movable keys, see rl_all.rs, and the admin commands have none.
const COMMANDS: [(&str, i64, &str); 16] = [
    ("rl.throttle", -3, "write denyoom fast blocking"),
    ("rl.throttle_ro", -3, "readonly fast"),
    ("rl.window", -3, "write denyoom fast blocking"),
    ("rl.window_ro", -3, "readonly fast"),
    ("rl.acquire", -3, "write denyoom fast blocking"),
    ("rl.acquire_ro", -3, "readonly fast"),
    ("rl.apply", -3, "write fast"),
    ("rl.release", -3, "write fast"),
    ("rl.renew", -3, "write fast"),
    ("rl.held", 2, "readonly"),
    ("rl.info", 2, "readonly"),
    ("rl.all", -3, "write denyoom blocking movablekeys"),
    ("rl.all_ro", -3, "readonly movablekeys"),
    ("rl.top", -1, "readonly admin"),
    ("rl.policies", 1, "readonly admin"),
    ("cl.throttle", -5, "write denyoom fast"),
];

/// A server that has all commands.
fn with_all_commands() -> (Server, Conn) {
    Server::builder().module_args(["cl-throttle", "yes"]).with_held_clock()
}

#[test]
fn command_info_lists_flags_and_keys() {
    let (server, mut conn) = with_all_commands();
    let since_7 = server.version().is_from(7, 0);
    for (name, arity, flags) in COMMANDS {
        let parts = conn.command_info(name);
        assert_eq!(text(&parts[0]), name);
        let (shown, flags) = (flat(&parts[2]), flags.split(' ').collect::<Vec<_>>());
        for flag in
            ["write", "readonly", "denyoom", "fast", "blocking", "admin", "movablekeys", "noscript"]
        {
            let is_there = flags.contains(&flag) && (flag != "blocking" || since_7);
            assert_eq!(shown.iter().any(|word| word == flag), is_there, "{name}: {flag} {shown:?}");
        }
        let has_key = !flags.contains(&"movablekeys") && !flags.contains(&"admin");
        if !flags.contains(&"movablekeys") {
            assert_eq!(ints_of(&parts[3..6]), [i64::from(has_key); 3], "{name}");
        }
        if since_7 {
            assert_eq!(parts[1], Value::Int(arity), "{name}");
            assert!(flat(&conn.cmd(format!("COMMAND DOCS {name}"))).contains(&"summary".into()));
        }
        if since_7 && has_key {
            let specs = flat(&parts[8]);
            let writes = flags.contains(&"write");
            let access: &[&str] =
                if writes { &["RW", "access", "update"] } else { &["RO", "access"] };
            for flag in access {
                assert!(specs.iter().any(|word| word == flag), "{name}: {specs:?} lacks {flag}");
            }
            assert!(!specs.iter().any(|word| word == "incomplete"), "{name}: {specs:?}");
        }
    }
}

#[test]
fn the_acl_categories_follow_the_flags_where_the_server_has_them() {
    let (server, mut conn) = with_all_commands();
    let has_own = server.version().has_own_categories();
    for (command, _, flags) in COMMANDS {
        let mut expected = vec![if flags.contains("fast") { "@fast" } else { "@slow" }];
        expected.extend(flags.contains("blocking").then_some("@blocking"));
        if flags.contains("admin") {
            expected.extend(["@admin", "@dangerous"]);
        } else {
            expected.push(if flags.contains("write") { "@write" } else { "@read" });
            expected.extend(has_own.then_some("@ratelimit"));
        }
        expected.sort_unstable();
        let mut results = flat(&conn.command_info(command)[6]);
        results.sort();
        // Before 7.2 a module's command is in none.
        let has_any = server.version().is_from(7, 2);
        assert_eq!(results, if has_any { expected } else { vec![] }, "{command}");
        let all = ["read", "write", "fast", "slow", "blocking", "admin", "dangerous"];
        for category in all.into_iter().chain(has_own.then_some("ratelimit")) {
            let listed = flat(&conn.cmd(format!("ACL CAT {category}")));
            let is_in = results.contains(&format!("@{category}"));
            assert_eq!(listed.iter().any(|name| name == command), is_in, "{command}: {category}");
        }
    }
}

// ---- Clocks and arguments ----

/// Every command, on the key of its kind.
const CALLS: [&str; 13] = [
    "RL.THROTTLE t 4 1 60", "RL.THROTTLE t 4 1 60 0", "RL.THROTTLE t 4 1 60 -1",
    "RL.THROTTLE_RO t 4 1 60", "RL.WINDOW w 5 60", "RL.WINDOW w 5 1d FIXED", "RL.WINDOW_RO w 5 60",
    "RL.ACQUIRE a 5 60", "RL.ACQUIRE_RO a 5 60", "RL.HELD a", "RL.RENEW a x", "RL.APPLY a x",
    "RL.RELEASE a x",
];

#[test]
fn every_command_works_at_both_ends_of_the_clock_and_none_beyond() {
    let (server, mut conn) = Server::with_held_clock();
    for now in ["1970-01-02T00:00:00", "1971-06-01T00:00:00", "2255-06-01T00:00:00"] {
        server.clock().set_us(unix_us(now));
        conn.cmd("FLUSHALL");
        conn.cmd("RL.ACQUIRE a 5 60 1 ID x");
        for call in CALLS {
            let reply = conn.cmd(call);
            assert!(!matches!(reply, Value::ServerError(_)), "{now}: {call}: {reply:?}");
        }
        assert_eq!(conn.ints("RL.WINDOW full 1 60")[0], 0, "{now}");
        assert_eq!(conn.ints("RL.WINDOW full 1 60 1 MS")[..4], [1, 1, 0, 60_000], "{now}");
        server.clock().advance_ms(60_000);
        assert_eq!(conn.ints("RL.WINDOW full 1 60")[0], 0, "{now}");
    }
    // Without a TTL, or the server deletes the keys at the new time.
    conn.pipeline(["RL.THROTTLE t 4 1 60", "PERSIST t", "PERSIST w", "PERSIST a"]);
    let dumps = |conn: &mut Conn| ["DUMP t", "DUMP w", "DUMP a"].map(|line| conn.cmd(line));
    let before = dumps(&mut conn);
    for now in ["2256-01-01T00:00:00", "9999-01-01T00:00:00"] {
        server.clock().set_us(unix_us(now));
        for call in CALLS {
            conn.refuses(call, "ERR the server's clock must be between 1970 and 2255");
        }
    }
    assert_eq!(dumps(&mut conn), before);
}

/// crates/commands/src/arguments/tests.rs has the ranges of all arguments and options, and the options that may be combined.
#[test]
fn an_unknown_option_of_any_bytes_is_one_line_and_short() {
    let (_server, mut conn) = Server::with_held_clock();
    let odd: [&[u8]; 7] =
        [b"", b"\0", b"a\r\nb", b"+OK\r\n", b"\xff\xfe", "größe".as_bytes(), &[b'A'; 100_000]];
    for option in odd {
        for call in
            ["RL.THROTTLE k 9 1 1 1", "RL.WINDOW k 9 60 1", "RL.ACQUIRE k 9 0 1", "RL.RENEW k x"]
        {
            let mut words = call.words();
            words.push(option.to_vec());
            let error = conn.err(&words);
            assert!(error.starts_with("ERR syntax error: unknown option "), "{error}");
            assert!(error.len() < 300, "{} bytes of error", error.len());
            assert!(!error.contains(['\r', '\n', '\0']), "{error:?}");
            // The reply was one reply.
            assert_eq!(conn.text("PING"), "PONG");
        }
    }
}

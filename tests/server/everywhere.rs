//! The commands in clusters, short of memory and with few rights, and what the server reports about them. They run in
//! transactions and scripts in tests/programs/clients.rs.

use support::*;

/// For each family: a taking call on the key `k` that is allowed once, and the call that looks.
const FAMILIES: [[&str; 2]; 3] = [
    ["RL.THROTTLE k 0 1 60", "RL.THROTTLE_RO k 0 1 60"],
    ["RL.WINDOW k 1 60", "RL.WINDOW_RO k 1 60"],
    ["RL.ACQUIRE k 1 60", "RL.ACQUIRE_RO k 1 60"],
];

#[test]
fn watch_sees_a_call_that_changed_something_and_no_other() {
    let (server, mut conn) = Server::with_held_clock();
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
        ("RL.WINDOW k 2 1h", true),
        ("RL.WINDOW k 2 1h 0", false),
        ("RL.WINDOW_RO k 2 1h", false),
        ("RL.WINDOW k 2 1h 2", false),
        ("RL.WINDOW k 2 1h 3", false),
        ("RL.WINDOW k 2 1h 2 COUNTDENIED", true),
        ("RL.WINDOW k 9 1h", true),
        ("RL.WINDOW k 9 1d FIXED", true),
        ("DEL k", true),
        ("RL.ACQUIRE k 2 0 1 ID a", true),
        ("RL.ACQUIRE k 2 0 2", false),
        ("RL.RENEW k a LEASE 1h", true),
        ("RL.RELEASE k b", false),
        ("RL.RELEASE k a", true),
        ("RL.RELEASE k a", false),
    ] {
        conn.cmd("WATCH k");
        other.cmd(call);
        let replies = conn.pipeline(["MULTI", "PING", "EXEC"]);
        assert_eq!(replies[2] == Value::Nil, changes, "{call}");
    }
}

// ---- Cluster ----

/// Calls on a key with a hash tag.
const CALLS: [&str; 11] = [
    "RL.THROTTLE {user}:1 15 30 60 1",
    "RL.THROTTLE_RO {user}:1 15 30 60 1",
    "RL.WINDOW {user}:2 5 60 1 FIXED TZ UTC",
    "RL.WINDOW_RO {user}:2 5 60 1 FIXED TZ UTC",
    "RL.ACQUIRE {user}:3 5 0 1 ID x",
    "RL.ACQUIRE_RO {user}:3 5 0",
    "RL.RENEW {user}:3 x",
    "RL.HELD {user}:3",
    "RL.INFO {user}:3",
    "RL.APPLY {user}:3 y",
    "RL.RELEASE {user}:3 x y z",
];

#[test]
fn a_cluster_routes_each_command_by_its_one_key() {
    let cluster = Cluster::of(3, 0);
    let (here, there) = (cluster.master_of("{user}"), cluster.master_of("{bar}"));
    assert_ne!(here, there);
    let (here, mut there) = (cluster.node(here), cluster.node(there).conn());
    let mut conn = here.conn();
    let slot = conn.int("CLUSTER KEYSLOT user");
    let several = ["RL.ALL", "RL.ALL_RO"]
        .map(|name| format!("{name} 2 {{user}}:4 {{user}}:5 WINDOW 5 60 WINDOW 5 60"));
    for call in CALLS.into_iter().chain(several.iter().map(String::as_str)) {
        assert!(!matches!(conn.cmd(call), Value::ServerError(_)), "{call}");
        assert_eq!(there.err(call), format!("MOVED {slot} 127.0.0.1:{}", here.port()), "{call}");
    }
    for call in CALLS {
        let key = call.split(' ').nth(1).unwrap();
        assert_eq!(flat(&conn.cmd(format!("COMMAND GETKEYS {call}"))), [key]);
    }
    assert_eq!(conn.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")), 4);
}

// ---- Short memory and rights ----

#[test]
fn short_of_memory_taking_is_an_oom_error_and_nothing_is_written() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.pipeline(["RL.THROTTLE t 4 1 1", "RL.WINDOW w 5 60", "RL.ACQUIRE a 5 60 1 ID x"]);
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
    conn.cmd("CONFIG SET maxmemory 0");
    assert_eq!(conn.ints("RL.THROTTLE t 4 1 1"), [0, 5, 3, -1, 2]);
    assert_eq!(conn.ints("RL.WINDOW w 5 60"), [0, 5, 3, -1, 60]);
}

#[test]
fn a_user_with_read_permissions_may_look() {
    let (server, mut conn) = Server::with_held_clock();
    for [take, look] in FAMILIES {
        conn.cmd("DEL k");
        conn.cmd(take);
        let name = look.split(' ').next().unwrap().to_lowercase();
        for (rule, mut reader) in server.readers(&name) {
            assert_ne!(limited(&reader.cmd(look)), 0, "{rule}: {look}");
            reader.refuses(take, "NOPERM ");
            let nothing = format!("{take} 0");
            assert!(reader.err(nothing).starts_with("NOPERM "), "{rule}: {take} 0");
        }
    }
    for (rule, mut reader) in server.readers("rl.info") {
        let before = conn.dumped("k");
        assert!(matches!(reader.cmd("RL.INFO k"), Value::Array(_)), "{rule}");
        assert_eq!(conn.dumped("k"), before);
    }
}

#[test]
fn a_user_needs_the_right_to_the_key() {
    let (server, mut conn) = Server::with_held_clock();
    let mut elsewhere = server.as_user("+@all ~mine:*");
    for [take, look] in FAMILIES {
        assert_eq!(limited(&elsewhere.cmd(take.replacen(" k ", " mine:k ", 1))), 0, "{take}");
        elsewhere.cmd("DEL mine:k");
        elsewhere.refuses(take, "NOPERM ");
        elsewhere.refuses(look, "NOPERM ");
    }
    assert_eq!(conn.int("EXISTS k"), 0);
}

// ---- What the server reports ----

/// Name, arity and flags. RL.ALL has movable keys, see tests/server/all.rs, and the admin commands have none.
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

#[test]
fn info_counts_what_became_of_the_calls() {
    let (server, mut conn) = Server::with_held_clock();
    conn.pipeline(["RL.THROTTLE k 1 1 1"; 5]);
    conn.pipeline(["RL.THROTTLE k 1 1 1 0", "RL.THROTTLE k 1 1 1 -1", "RL.THROTTLE k 1 0 1"]);
    conn.pipeline(["RL.THROTTLE_RO k 1 1 1", "RL.THROTTLE_RO k 1 1 1 9"]);
    conn.pipeline(["RL.THROTTLE_RO k 1 1 x", "SET c 5", "RL.THROTTLE_RO c 1 1 1"]);
    conn.pipeline(["RL.WINDOW w 2 60"; 5]);
    conn.pipeline(["RL.WINDOW w 2 60 0", "RL.WINDOW w 2 60 9", "RL.WINDOW w 2 60 COUNTDENIED"]);
    conn.pipeline(["RL.WINDOW w x 60", "RL.WINDOW_RO w 2 60", "RL.WINDOW_RO w 9 60"]);
    conn.pipeline(["RL.WINDOW c 2 60", "RL.WINDOW_RO c 2 60"]);
    for (command, numbers) in [
        ("throttle", [4, 3, 1]),
        ("throttle_ro", [1, 1, 2]),
        ("window", [3, 5, 2]),
        ("window_ro", [1, 1, 1]),
    ] {
        let figure = |result| server.info_ratelimit(&format!("{command}_{result}"));
        assert_eq!(["allowed", "denied", "errors"].map(figure), numbers, "{command}");
    }
    let section = conn.text("INFO ratelimit");
    assert!(section.contains("ratelimit_throttle_allowed:4"), "{section}");
}

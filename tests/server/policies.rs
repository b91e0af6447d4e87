//! Policies: limits by name, SHADOW, policies-only, RL.POLICIES and its counters.

use support::*;

/// A server with this table and a held clock. A load argument works on every server.
#[track_caller]
fn with(table: &str) -> (Server, Conn) {
    Server::builder().module_args(["policies", table]).with_held_clock()
}

#[track_caller]
fn set(conn: &mut Conn, table: &str) {
    assert_eq!(conn.text(["CONFIG", "SET", "ratelimit.policies", table]), "OK");
}

/// A row of RL.POLICIES.
#[derive(Debug, PartialEq)]
struct CountedPolicy {
    name: String,
    definition: String,
    /// allowed, denied, shadow_denied.
    counts: Vec<i64>,
}

#[track_caller]
fn rows(conn: &mut Conn) -> Vec<CountedPolicy> {
    let rows = conn.array("RL.POLICIES");
    let row = |row: &Value| match row {
        Value::Array(parts) if parts.len() == 5 => CountedPolicy {
            name: text(&parts[0]),
            definition: text(&parts[1]),
            counts: ints_of(&parts[2..]),
        },
        other => panic!("no row: {other:?}"),
    };
    rows.iter().map(row).collect()
}

/// The counts of one policy, which RL.POLICIES and INFO must show alike.
#[track_caller]
fn counts(server: &Server, name: &str) -> Vec<i64> {
    let row = rows(&mut server.conn()).into_iter().find(|row| row.name == name);
    let counts = row.unwrap_or_else(|| panic!("no policy {name}")).counts;
    let [allowed, denied, shadow_denied] = counts[..] else { panic!("{counts:?}") };
    assert_eq!(
        server.info(&format!("ratelimit_policy_{name}")),
        Some(format!("allowed={allowed},denied={denied},shadow_denied={shadow_denied}"))
    );
    counts
}

// ---- The table ----

#[test]
fn a_table_is_refused_as_a_whole_with_the_name_and_the_reason() {
    let server = Server::start();
    if Version::under_test().lacks_settings() {
        return;
    }
    let mut conn = server.conn();
    let good = "good THROTTLE 15 30 60";
    set(&mut conn, good);
    let long = "n".repeat(65);
    for (part, why) in [
        ("bad", "policy bad: a policy must consist of a name, THROTTLE or WINDOW, and a limit"),
        ("bad ACQUIRE 5 60", "policy bad: a policy must consist of a name, THROTTLE or WINDOW"),
        ("bad THROTTLE 15 30", "policy bad: a limit must consist of max_burst, count and period"),
        ("bad THROTTLE 9223372036854775806 1 1", "policy bad: (max_burst + 1) * period / count"),
        ("bad WINDOW 5 7d FIXED", "policy bad: FIXED must have a period"),
        ("bad WINDOW 5 60 MS", "policy bad: syntax error: unknown option MS"),
        ("bad THROTTLE 1 1 1 SHADOW c window 5 60", "policy bad: two policies must have a ';'"),
        ("bad WINDOW 5 60 BAN 5m", "policy bad: BAN has the ambiguous unit m: use min"),
        ("good WINDOW 5 60", "policy good: the name is given more than once"),
        ("b@d WINDOW 5 60", "policy b@d: a name must have 1 to 64 letters, digits"),
        ("b\u{e4}d WINDOW 5 60", "policy b\\xc3\\xa4d: a name must have 1 to 64 letters"),
        (&format!("{long} WINDOW 5 60"), &format!("policy {long}: a name must have 1 to 64")),
    ] {
        for table in
            [format!("{good} SHADOW; {part}; last WINDOW 1 1"), format!("{part};{good} SHADOW")]
        {
            let error = conn.err(["CONFIG", "SET", "ratelimit.policies", &table]);
            assert!(error.contains(why), "{part}: {error}");
            assert_eq!(conn.setting("ratelimit.policies"), good, "{part}");
            assert_eq!(rows(&mut conn).len(), 1, "{part}");
        }
    }
    // A kind and options are words in any case, a name is not.
    set(&mut conn, "a throttle 15 30 60 shadow; A Window 5 1D fixed tz asia/shanghai");
    assert_eq!(rows(&mut conn).len(), 2);
}

#[test]
fn empty_parts_are_skipped_and_an_empty_text_is_an_empty_table() {
    for table in [
        ";; a  WINDOW\t5   60 ;;\t; b THROTTLE 1 1 1 SHADOW ;",
        "b THROTTLE 1 1 1 SHADOW;a WINDOW 5 60",
    ] {
        let (_server, mut conn) = with(table);
        let row = |name: &str, definition: &str| CountedPolicy {
            name: name.into(),
            definition: definition.into(),
            counts: vec![0, 0, 0],
        };
        let both = [row("a", "WINDOW 5 60"), row("b", "THROTTLE 1 1 1 SHADOW")];
        assert_eq!(rows(&mut conn), both, "{table}");
    }
    if Version::under_test().lacks_settings() {
        return;
    }
    let (_server, mut conn) = with("a WINDOW 5 60");
    for empty in ["", ";", " ; ;; "] {
        set(&mut conn, "a WINDOW 5 60");
        assert_eq!(conn.ints("RL.WINDOW k @a 0")[1], 5);
        set(&mut conn, empty);
        assert_eq!(rows(&mut conn), []);
        assert_eq!(conn.setting("ratelimit.policies"), empty);
        assert_eq!(conn.err("RL.WINDOW k @a 0"), "NOPOLICY no policy has the name a");
    }
}

#[test]
fn the_order_is_that_of_the_bytes_and_the_definition_is_as_it_was_written() {
    let longest = "n".repeat(64);
    let table = format!(
        "{longest} WINDOW 1 1; b Window 5 60S; a.b throttle 0 1 1000MS; _ WINDOW 3 0 shadow; B WINDOW 1 1; 9 WINDOW 1 1; - WINDOW 1 1"
    );
    let (_server, mut conn) = with(&table);
    let found: Vec<_> =
        rows(&mut conn).iter().map(|row| format!("{} {}", row.name, row.definition)).collect();
    let others = "- WINDOW 1 1; 9 WINDOW 1 1; B WINDOW 1 1; _ WINDOW 3 0 shadow; a.b throttle 0 1 1000MS; b Window 5 60S";
    assert_eq!(found.join("; "), format!("{others}; {longest} WINDOW 1 1"));
    assert_eq!(conn.ints(format!("RL.WINDOW k @{longest}"))[1], 1);
}

#[test]
fn a_table_in_redis_conf_outlives_config_rewrite_and_a_restart() {
    if Version::under_test().lacks_settings() {
        return;
    }
    let table = "a WINDOW 5 60; b THROTTLE 1 1 1 SHADOW";
    for line in [
        format!("ratelimit.policies \"{table}\""),
        format!("ratelimit.policies '{table}'"),
        format!("ratelimit.policies {table}"),
    ] {
        let (mut server, mut conn) = Server::builder().config(&line).connect();
        assert_eq!(conn.setting("ratelimit.policies"), table, "{line}");
        conn.cmd("CONFIG SET ratelimit.policies-only yes");
        // As it was, another one, and none.
        for table in [
            table,
            "  a WINDOW 5 60;\tc WINDOW 1 1d FIXED TZ +08:00 ;;\n d.e_f-g THROTTLE 1 1 1\r\n",
            "",
        ] {
            set(&mut server.conn(), table);
            let before = rows(&mut server.conn());
            assert_eq!(server.conn().text("CONFIG REWRITE"), "OK");
            server.restart(Stop::NoSave);
            assert_eq!(server.conn().setting("ratelimit.policies"), table);
            assert_eq!(rows(&mut server.conn()), before);
        }
        server.conn().refuses("RL.WINDOW k 5 60", "NOPOLICY limits must be given as @policy");
    }
}

#[test]
fn as_a_load_argument_the_table_stands_last_with_or_without_quotes() {
    let table = "a WINDOW 5 60; b THROTTLE 1 1 1 SHADOW";
    for name in ["policies", "ratelimit.policies", "Policies"] {
        for value in [table.to_owned(), format!("\"{table}\""), format!("'{table}'")] {
            // A line of redis.conf.
            let words = ["lease", "77", "policies-only", "yes", name, &value];
            let (mut server, mut conn) = Server::builder().module_args(words).connect();
            let names: Vec<_> = rows(&mut conn).into_iter().map(|row| row.name).collect();
            assert_eq!(names, ["a", "b"], "{name} {value}");
            assert_eq!(conn.ints("RL.WINDOW k @a 0")[1], 5);
            conn.refuses("RL.WINDOW k 5 60", "NOPOLICY ");
            // The server rewrites the line without the quotes.
            assert_eq!(conn.text("CONFIG REWRITE"), "OK");
            server.restart(Stop::NoSave);
            assert_eq!(rows(&mut server.conn()).len(), 2, "{name} {value}");
        }
    }
    // By MODULE LOAD and by the command line, as words or as one.
    let (_server, mut conn) = Server::builder().module(false).connect();
    let path = module_path();
    for words in
        [vec!["policies", table], [&["policies"], &*table.split(' ').collect::<Vec<_>>()].concat()]
    {
        let load = [&["MODULE", "LOAD", &path, "allow-unload", "yes"], words.as_slice()].concat();
        assert_eq!(conn.text(load), "OK");
        assert_eq!(rows(&mut conn).len(), 2);
        assert_eq!(conn.text("MODULE UNLOAD ratelimit"), "OK");
    }
    assert_eq!(conn.text(format!("MODULE LOAD {}", module_path())), "OK");
    assert_eq!(rows(&mut conn), []);
}

// ---- Names in calls ----

const KINDS: &str =
    "rate THROTTLE 9 1 1; win WINDOW 5 60; day WINDOW 3 1d FIXED TZ Asia/Shanghai; \
                     four WINDOW 100 60 BUCKETS 4; sem WINDOW 2 0; Win WINDOW 6 60";

#[test]
fn a_name_decides_and_stores_the_same_as_its_limit() {
    let (_server, mut conn) = with(KINDS);
    for (call, numbers) in [
        ("RL.THROTTLE r @rate 3 MS", "RL.THROTTLE r2 9 1 1 3 MS"),
        ("RL.THROTTLE r @rate", "RL.THROTTLE r2 9 1 1"),
        ("RL.THROTTLE_RO r @rate 2 MS", "RL.THROTTLE_RO r2 9 1 1 2 MS"),
        ("RL.WINDOW w @win 1 COUNTDENIED MS", "RL.WINDOW w2 5 60 1 COUNTDENIED MS"),
        ("RL.WINDOW w @Win MS", "RL.WINDOW w2 6 60 MS"),
        ("RL.WINDOW_RO d @day MS", "RL.WINDOW_RO d2 3 1d FIXED TZ Asia/Shanghai MS"),
        ("RL.WINDOW f @four 30 MS", "RL.WINDOW f2 100 60 30 BUCKETS 4 MS"),
        ("RL.ACQUIRE d @day ID x MS", "RL.ACQUIRE d2 3 1d FIXED TZ Asia/Shanghai ID x MS"),
        ("RL.ACQUIRE s @sem 2 LEASE 5s ID x MS", "RL.ACQUIRE s2 2 0 2 LEASE 5s ID x MS"),
        ("RL.ACQUIRE_RO s @sem 1 MS", "RL.ACQUIRE_RO s2 2 0 1 MS"),
        (
            "RL.ALL 3 r w s THROTTLE @rate 1 WINDOW @Win 1 CHECK ACQUIRE @sem 1 ID z MS",
            "RL.ALL 3 r2 w2 s2 THROTTLE 9 1 1 1 WINDOW 6 60 1 CHECK ACQUIRE 2 0 1 ID z MS",
        ),
    ] {
        assert_eq!(conn.cmd(call), conn.cmd(numbers), "{call}");
        for key in ["r", "w", "d", "f", "s"] {
            assert_eq!(conn.dumped(key), conn.dumped(&format!("{key}2")), "{call}");
        }
    }
}

#[test]
fn with_policies_only_limits_in_numbers_are_refused_in_every_command() {
    let builder = Server::builder()
        .module_args(["cl-throttle", "yes", "policies-only", "yes", "policies", KINDS]);
    let (server, mut conn) = builder.with_held_clock();
    for call in [
        "RL.THROTTLE k 9 1 1", "RL.THROTTLE k 9 1 1 0", "RL.THROTTLE k 9 1 1 -1",
        "RL.THROTTLE k x y z", "RL.THROTTLE_RO k 9 1 1", "RL.WINDOW k 5 60",
        "RL.WINDOW k 5 60 1 FORCE", "RL.WINDOW_RO k 5 60", "RL.ACQUIRE k 5 60", "RL.ACQUIRE k 5 0",
        "RL.ACQUIRE_RO k 5 0", "RL.ALL 1 k THROTTLE 9 1 1", "RL.ALL 2 k l WINDOW @win WINDOW 5 60",
        "RL.ALL 1 k ACQUIRE 5 0 CHECK", "RL.ALL 1 k WINDOW 5 60 SHADOW",
        "RL.ALL_RO 1 k WINDOW 5 60", "CL.THROTTLE k 9 1 1", "CL.THROTTLE k 9 1 1 1",
    ] {
        conn.refuses(call, "NOPOLICY limits must be given as @policy");
    }
    assert_eq!(conn.int("DBSIZE"), 0);
    assert_eq!(conn.ints("RL.THROTTLE r @rate")[0], 0);
    assert_eq!(conn.ints("RL.WINDOW w @win")[0], 0);
    assert_eq!(conn.acquire("RL.ACQUIRE s @sem ID x").limited(), 0);
    // Commands that name no limit work as before.
    assert_eq!(conn.int("RL.RENEW s x"), 1);
    assert_eq!(conn.held_ids("s"), ["x"]);
    assert_eq!(conn.int("RL.RELEASE s x"), 1);
    if server.version().is_from(7, 0) {
        // The table itself has limits in numbers.
        set(&mut conn, "win WINDOW 8 60");
        assert_eq!(conn.ints("RL.WINDOW w @win 0")[1], 8);
        assert_eq!(conn.text("CONFIG SET ratelimit.policies-only no"), "OK");
        assert_eq!(conn.ints("RL.WINDOW w 5 60 0")[1], 5);
    }
}

// ---- SHADOW ----

#[test]
fn a_shadow_denies_nothing_and_takes_what_is_there() {
    let (server, mut conn) = with("s WINDOW 5 60 SHADOW; r THROTTLE 4 1 1s SHADOW");
    for (call, reply) in [
        ("RL.WINDOW w @s 4 MS", "0 5 1 -1 60000"),
        ("RL.WINDOW w @s 2 COUNTDENIED MS", "0 5 1 -1 60000"),
        ("RL.WINDOW w @s 2 BLOCK 1h MS", "0 5 1 -1 60000"),
        ("RL.WINDOW w @s 1 LEAVE 1 MS", "0 5 1 -1 60000"),
        ("RL.WINDOW w @s 9 ATMOST MS", "0 5 0 -1 60000 9"),
        ("RL.WINDOW w @s 2 FORCE MS", "0 5 0 -1 60000"),
        ("RL.WINDOW w @s -4 MS", "0 5 2 -1 60000"),
        ("RL.ACQUIRE w @s 3 ID a MS", "0 5 2 -1 60000"),
        ("RL.ACQUIRE a @s 3 ATMOST COUNTLAPSED ID a MS", "0 5 2 -1 80000 a 3 1"),
        ("RL.ACQUIRE a @s 9 ATMOST COUNTLAPSED ID b MS", "0 5 0 -1 80000 b 9 2"),
        ("RL.ACQUIRE a @s 9 ATMOST COUNTLAPSED ID c MS", "0 5 0 -1 80000 9 2"),
        ("RL.THROTTLE t @r 5 MS", "0 5 0 -1 5000"),
        ("RL.THROTTLE t @r 1 MS", "0 5 0 -1 5000"),
        ("RL.THROTTLE t @r 1 AHEAD 999 MS", "0 5 0 -1 5000 0"),
        ("RL.THROTTLE t @r 1 AHEAD 1s MS", "0 5 0 -1 6000 1000"),
    ] {
        assert_eq!(flat(&conn.cmd(call)).join(" "), reply, "{call}");
    }
    assert_eq!(conn.held("a").iter().map(|one| one.quantity).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(counts(&server, "s"), [5, 0, 5]);
    assert_eq!(counts(&server, "r"), [2, 0, 2]);
}

#[test]
fn a_shadow_behind_a_line_is_answered_at_once_and_takes_nothing() {
    let (server, mut conn) = with("s WINDOW 9 60 SHADOW; e WINDOW 9 60; r THROTTLE 9 1 1 SHADOW");
    conn.cmd("RL.WINDOW w 5 60 5");
    let waits = server.wait_in_line("RL.WINDOW w 5 60 BLOCK 0");
    for call in ["RL.WINDOW w @s MS", "RL.WINDOW w @s 1 BLOCK 0 MS"] {
        assert_eq!(conn.ints(call), [0, 9, 4, -1, 60_000], "{call}");
    }
    assert_eq!(conn.ints("RL.WINDOW w @s 3 ATMOST MS"), [0, 9, 4, -1, 60_000, 3]);
    assert_eq!(conn.acquire("RL.ACQUIRE w @s MS").id, None);
    assert_eq!(counts(&server, "s"), [0, 0, 4]);
    assert_eq!(conn.ints("RL.WINDOW w @e MS")[0], 1);
    assert_eq!(counts(&server, "e"), [0, 1, 0]);
    conn.cmd("RL.THROTTLE t 0 1 60");
    let others = server.wait_in_line("RL.THROTTLE t 0 1 60 BLOCK 0");
    assert_eq!(conn.ints("RL.THROTTLE t @r 1 AHEAD 1h MS")[..4], [0, 10, 0, -1]);
    assert_eq!(counts(&server, "r"), [0, 0, 1]);
    drop((waits, others));
    server.expect_no_waiting_calls();
}

#[test]
fn a_shadow_in_rl_all_is_as_the_word_shadow() {
    let (server, mut conn) = with("new WINDOW 1 60 SHADOW; old WINDOW 2 60; off WINDOW 1 0 SHADOW");
    // The first call is allowed by both, the second only by the limit that is enforced, and the third by neither.
    for _ in 0..3 {
        let word = conn.cmd("RL.ALL 2 c d WINDOW 1 60 SHADOW WINDOW 2 60 MS");
        assert_eq!(conn.cmd("RL.ALL 2 a b WINDOW @new WINDOW @old MS"), word);
    }
    assert_eq!((counts(&server, "new"), counts(&server, "old")), (vec![1, 0, 2], vec![2, 1, 0]));
    conn.cmd("RL.ACQUIRE ban 1 0");
    let check = "RL.ALL 2 ban b2 ACQUIRE @off CHECK WINDOW @old";
    assert_eq!(limited(&conn.cmd(check)), 0);
    // COUNTDENIED counts nothing in a clause that is a shadow.
    let denied = "RL.ALL 2 fresh b WINDOW @new 1 COUNTDENIED WINDOW @old";
    assert_eq!(limited(&conn.cmd(denied)), 1);
    assert_eq!(conn.int("EXISTS fresh"), 0);
}

// ---- Changes of the table ----

#[test]
fn waiting_calls_and_reservations_keep_their_limit_when_the_policy_changes() {
    if Version::under_test().lacks_settings() {
        return;
    }
    let (server, mut conn) = with("sem WINDOW 1 0; w WINDOW 2 60");
    assert_eq!(conn.acquire("RL.ACQUIRE s @sem 1 ID x LEASE 1h").id(), "x");
    let mut waits = server.wait_in_line("RL.ACQUIRE s @sem 1 ID y BLOCK 0 MS");
    conn.cmd("RL.WINDOW w @w 2");
    let mut others = server.wait_in_line("RL.WINDOW w @w 2 BLOCK 0 MS");
    set(&mut conn, "sem WINDOW 9 0; w WINDOW 50 60");
    // It waits on, also where the new numbers would let it pass, until there is what it asked for.
    conn.cmd("RL.RENEW s x");
    conn.cmd("RL.WINDOW w @w 0");
    assert!(waits.silent_for(std::time::Duration::from_millis(150)));
    assert!(others.silent_for(std::time::Duration::from_millis(1)));
    let held = conn.held("s");
    assert_eq!((held.len(), held[0].ms_left), (1, 3_600_000));
    assert_eq!(conn.int("RL.RELEASE s x"), 1);
    let reply = acquired(&waits.recv());
    assert_eq!(reply.numbers[..3], [0, 1, 0]);
    assert_eq!(conn.ints("RL.WINDOW w @w -2")[1], 50);
    assert_eq!(ints(&others.recv())[..3], [0, 2, 0]);
    // Counted once each, under the name that stayed.
    assert_eq!(counts(&server, "sem"), [2, 0, 0]);
    assert_eq!(counts(&server, "w"), [2, 0, 0]);
}

#[test]
fn a_config_set_that_fails_or_changes_a_policy_loses_no_counters() {
    if Version::under_test().lacks_settings() {
        return;
    }
    let (server, mut conn) = with("a WINDOW 1 60; b WINDOW 0 60");
    conn.cmd("RL.WINDOW w @a");
    conn.cmd("RL.WINDOW w @b");
    let words = ["CONFIG", "SET", "ratelimit.policies", "b WINDOW 9 60", "ratelimit.lease", "0"];
    for words in [words, ["CONFIG", "SET", "ratelimit.lease", "0", words[2], words[3]]] {
        conn.refuses(
            words,
            "ERR CONFIG SET failed (possibly related to argument 'ratelimit.lease')",
        );
        assert_eq!(conn.setting("ratelimit.policies"), "a WINDOW 1 60; b WINDOW 0 60");
        assert_eq!(counts(&server, "a"), [1, 0, 0]);
        assert_eq!(counts(&server, "b"), [0, 1, 0]);
    }
    conn.cmd("RL.WINDOW w @a");
    assert_eq!(counts(&server, "a"), [1, 1, 0]);
    // A name keeps its counters where its policy becomes one of another kind, or SHADOW.
    for table in ["a WINDOW 1 60 SHADOW; b WINDOW 9 60", "a THROTTLE 0 1 1; b WINDOW 9 60"] {
        set(&mut conn, table);
        assert_eq!(counts(&server, "a"), [1, 1, 0]);
    }
}

#[test]
fn a_call_that_waited_is_counted_once_and_by_its_end() {
    let table = "w WINDOW 1 60; sem WINDOW 1 0";
    let (server, mut conn) = Server::builder().module_args(["policies", table]).connect();
    conn.cmd("RL.WINDOW w @w");
    let mut waits = server.wait_in_line("RL.WINDOW w @w BLOCK 0");
    assert_eq!(counts(&server, "w"), [1, 0, 0]);
    conn.cmd("RL.WINDOW w @w -1");
    assert_eq!(limited(&waits.recv()), 0);
    assert_eq!(counts(&server, "w"), [2, 0, 0]);
    // By the end of its time, and by CLIENT UNBLOCK.
    conn.cmd("RL.ACQUIRE s @sem");
    assert_eq!(conn.acquire("RL.ACQUIRE s @sem 1 BLOCK 60").limited(), 2);
    let (mut waits, id) = server.wait_with_id("RL.ACQUIRE s @sem 1 BLOCK 0");
    assert_eq!(conn.int(format!("CLIENT UNBLOCK {id}")), 1);
    assert_eq!(limited(&waits.recv()), 2);
    assert_eq!(counts(&server, "sem"), [1, 2, 0]);
}

#[test]
fn a_digest_shows_whether_two_nodes_have_the_same_table() {
    let digest = |table: &str| with(table).0.info("ratelimit_policies_digest").unwrap();
    let one = digest("a WINDOW 5 60; b THROTTLE 1 1 1");
    assert_eq!(one.len(), 16);
    assert_eq!(one, digest("b  THROTTLE 1 1 1;;a WINDOW 5   60;"));
    assert_ne!(one, digest("a WINDOW 5 61; b THROTTLE 1 1 1"));
    assert_ne!(one, digest("a WINDOW 5 60; c THROTTLE 1 1 1"));
    assert_eq!(digest(";"), "0".repeat(16));
}

//! RL.ALL: several limits, all or nothing.

use support::*;

#[test]
fn all_clauses_are_of_one_instant_while_the_clock_goes_on() {
    let (server, mut conn) = Server::with_held_clock();
    // It moves on whenever the server looks.
    server.clock().tick_us(1_000);
    conn.cmd("RL.ALL 3 a b c WINDOW 5 60 WINDOW 5 60 ACQUIRE 5 60 1 LEASE 1000 ID x");
    let event = |conn: &mut Conn, key: &str| conn.text(format!("ZSCORE {key} 1"));
    let at = event(&mut conn, "a");
    assert_eq!(event(&mut conn, "b"), at);
    let end_us = at.trim_start_matches('-').parse::<i64>().unwrap() + 1_000_000;
    let held = conn.cmd("ZRANGE c 0 0");
    assert!(format!("{held:?}").contains(&format!(":{end_us}:")), "{held:?} {at}");
}

#[test]
fn an_error_in_any_clause_is_the_reply_and_changes_nothing() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.pipeline(["RPUSH {u}:list x", "SET {u}:counter 5", "RL.ACQUIRE {u}:held 9 0 1 ID dup"]);
    let good = [("{u}:a", "WINDOW 5 60"), ("{u}:b", "THROTTLE 4 1 1"), ("{u}:c", "ACQUIRE 5 0")];
    for (key, bad, begin) in [
        ("{u}:list", "WINDOW 5 60", "WRONGTYPE "),
        ("{u}:list", "WINDOW 5 60 SHADOW", "WRONGTYPE "),
        ("{u}:counter", "THROTTLE 4 1 1 CHECK", "ERR the key holds a string that RL.THROTTLE "),
        ("{u}:held", "ACQUIRE 9 0 1 ID dup", "DUPLICATE "),
        ("{u}:d", "WINDOW x 60", "ERR limit must be an integer from 0 "),
        ("{u}:d", "WINDOW 5 60 CHECK SHADOW", "ERR SHADOW and CHECK must not be used together"),
        ("{u}:a", "WINDOW 5 60", "ERR duplicate key: each key may be given only once"),
    ] {
        for at in 0..=good.len() {
            let mut all = good.to_vec();
            all.insert(at, (key, bad));
            let keys: Vec<_> = all.iter().map(|one| one.0).collect();
            let clauses: Vec<_> = all.iter().map(|one| one.1).collect();
            let call = format!("RL.ALL 4 {} {}", keys.join(" "), clauses.join(" "));
            conn.refuses(&call, begin);
            assert_eq!(conn.int("DBSIZE"), 3, "{call}");
        }
    }
}

#[test]
fn keys_and_values_may_be_words_of_the_syntax_and_there_may_be_64() {
    let (_server, mut conn) = Server::with_held_clock();
    let call = "RL.ALL 3 WINDOW MS @x ACQUIRE 5 0 1 ID WINDOW THROTTLE 4 1 1 ACQUIRE 5 0 1 ID MS";
    let answer = all_reply(&conn.cmd(call));
    assert_eq!(answer.ids, [Some("WINDOW".into()), None, Some("MS".into())]);
    // Only the very last word is the unit, and here it is an id.
    assert_eq!(answer.clauses[0][4], 20);
    let keys: Vec<_> = (0..64).map(|number| format!("{{u}}:{number}")).collect();
    let clauses = "WINDOW 1 60 ".repeat(64);
    let call = format!("RL.ALL 64 {} {clauses}", keys.join(" "));
    assert_eq!(flat(&conn.cmd(format!("COMMAND GETKEYS {call}"))), keys);
    assert_eq!(all_reply(&conn.cmd(&call)).clauses.len(), 64);
    assert_eq!(all_reply(&conn.cmd(&call)).numbers[0], 1);
}

#[test]
fn a_cluster_wants_all_keys_in_one_slot() {
    let (_server, mut conn) = Server::builder().cluster().connect();
    for call in ["RL.ALL 2 a b WINDOW 5 60 WINDOW 5 60", "RL.ALL_RO 2 a b WINDOW 5 60 WINDOW 5 60"]
    {
        conn.refuses(call, "CROSSSLOT ");
        // Behind keys that are together, and before an error that only the module can find.
        let third =
            call.replace("2 a b", "3 {a}1 {a}2 b").replacen("WINDOW", "WINDOW x 60 WINDOW", 1);
        conn.refuses(&third, "CROSSSLOT ");
        // Redis 7 and 8.0 refuse what the script does before the module is asked, and word it themselves.
        let script = format!("return redis.call('{}')", call.replace(' ', "', '"));
        for keys in ["0", "1 a"] {
            let words = ["EVAL", &script].into_iter().chain(keys.split(' ')).collect::<Vec<_>>();
            let error = conn.err(words);
            let expected = ["CROSSSLOT ", "hash to the same slot", "non local key"];
            assert!(expected.iter().any(|text| error.contains(text)), "{script}: {error}");
        }
        conn.cmd("MULTI");
        conn.cmd(call);
        let queued = conn.cmd("EXEC");
        let error = match &queued {
            Value::Array(replies) => error_line(&replies[0]),
            _ => error_line(&queued),
        };
        assert!(["CROSSSLOT ", "EXECABORT "].iter().any(|code| error.starts_with(code)), "{error}");
        assert_eq!(conn.int("DBSIZE"), 0);
    }
    assert_eq!(all_reply(&conn.cmd("RL.ALL 2 {u}a {u}b WINDOW 5 60 WINDOW 5 60")).numbers[0], 0);
    // A slot that is not the one of the keys that the script names.
    let other =
        "return redis.call('RL.ALL', 2, '{u}a', '{u}b', 'WINDOW', 5, 60, 'WINDOW', 5, 60)[3]";
    assert_eq!(conn.int(["EVAL", other, "1", "a"]), 3);
    assert_eq!(conn.ints("RL.WINDOW_RO {u}b 5 60")[2], 3);
    assert_eq!(conn.int("DBSIZE"), 2);
}

#[test]
fn the_server_finds_the_keys_of_rl_all() {
    let (server, mut conn) = Server::with_held_clock();
    for (name, access) in [("RL.ALL", "RW"), ("RL.ALL_RO", "RO")] {
        let keys =
            |call: String, conn: &mut Conn| conn.cmd(format!("COMMAND GETKEYS {name} {call}"));
        let call = "3 a b c WINDOW 5 60 WINDOW 5 60 WINDOW 5 60".to_owned();
        assert_eq!(flat(&keys(call, &mut conn)), ["a", "b", "c"], "{name}");
        for numkeys in ["x", "-1", "0", "9", "18446744073709551615"] {
            let call = format!("{numkeys} a b WINDOW 5 60");
            assert!(matches!(keys(call, &mut conn), Value::ServerError(_)), "{name} {numkeys}");
        }
        let parts = conn.command_info(name);
        // The first key, the last and the step: clients that know no key specs go by them.
        let range = ints_of(&parts[3..6]);
        let first = if server.version().asks_modules_for_keys() { 0 } else { 2 };
        assert_eq!(range, [first, first, first / 2], "{name}");
        if server.version().is_from(7, 0) {
            let Value::Array(specs) = &parts[8] else { panic!("{name}: {parts:?}") };
            let spec: Vec<String> = flat(&specs[0]);
            for word in [access, "access", "keynum", "keynumidx", "firstkey"] {
                assert!(spec.iter().any(|shown| shown == word), "{name}: {spec:?} lacks {word}");
            }
            let others = if first == 0 { 0 } else { 1 };
            assert_eq!(
                specs[1..].iter().map(flat).filter(|spec| spec.contains(&"not_key".into())).count(),
                others
            );
            assert_eq!(specs.len(), 1 + others, "{name}: {specs:?}");
        }
    }
}

#[test]
fn the_effects_of_rl_all_are_one_transaction_of_plain_commands() {
    let (server, mut conn) = Server::builder().aof().with_held_clock();
    let call = "RL.ALL 3 {u}a {u}b {u}c THROTTLE 4 1 1 WINDOW 5 60 ACQUIRE 5 0";
    let grown = server.aof_grows_by(|| conn.cmd(call));
    assert_eq!((grown[0].as_str(), grown.last().unwrap().as_str()), ("MULTI", "EXEC"));
    assert_eq!(grown.iter().filter(|line| *line == "MULTI").count(), 1, "{grown:?}");
    assert!(!grown.iter().any(|line| line.to_uppercase().contains("RL.")), "{grown:?}");
    // A denied call writes nothing.
    let denied = call.replace("WINDOW 5 60", "WINDOW 1 60");
    let grown = server.aof_grows_by(|| conn.cmd(denied));
    assert!(grown.is_empty(), "{grown:?}");
}

// ---- ELSE: the first clause of a group that would be allowed takes ----

#[test]
fn else_stands_between_two_clauses() {
    let (_server, mut conn) = Server::with_held_clock();
    let misplaced = "ERR syntax error: ELSE must be between two clauses";
    let number = "ERR the number of clauses must equal the number of keys";
    for (call, error) in [
        ("1 a ELSE WINDOW 1 1", misplaced),
        ("1 a WINDOW 1 1 ELSE", misplaced),
        ("1 a WINDOW 1 1 ELSE MS", misplaced),
        ("2 a b WINDOW 1 1 else Else WINDOW 1 1", misplaced),
        ("2 a b WINDOW 1 1 ELSE 5 WINDOW 1 1", misplaced),
        ("1 a WINDOW 1 1 ELSE WINDOW 1 1", number),
    ] {
        conn.refuses(format!("RL.ALL {call}"), error);
    }
    // A key and an id may have this name.
    let call = "RL.ALL 2 ELSE else ACQUIRE 1 1 1 ID ELSE else WINDOW 5 1 MS";
    assert_eq!(all_reply(&conn.cmd(call)).ids[0].as_deref(), Some("ELSE"));
}

#[test]
fn countdenied_counts_in_every_clause_of_a_denied_call() {
    let (_server, mut conn) = Server::with_held_clock();
    let call = "RL.ALL 3 {u}:a {u}:b {u}:c WINDOW 1 60 COUNTDENIED ELSE WINDOW 2 60 COUNTDENIED WINDOW 0 60 MS";
    // The first clause would be allowed, and is full once the denied call was counted; the second still has room.
    let answer = all_reply(&conn.cmd(call));
    assert_eq!(answer.numbers[0], 1);
    assert_eq!(answer.clauses[..2], [[1, 1, 0, 60_000, 60_000], [0, 2, 1, -1, 60_000]]);
    // An allowed call counts only in its choice.
    let call = call.replace("WINDOW 0 60", "WINDOW 9 60");
    assert_eq!(all_reply(&conn.cmd(&call)).numbers[0], 0);
    assert_eq!(
        ["{u}:a", "{u}:b"].map(|key| conn.ints(format!("RL.WINDOW_RO {key} 9 60 0"))[2]),
        [8, 7]
    );
}

#[test]
fn errors_are_met_in_all_clauses_and_too_many_reservations_only_in_a_choice() {
    let (_server, mut conn) =
        Server::builder().module_args(["max-reservations", "1"]).with_held_clock();
    conn.cmd("RL.ACQUIRE {u}:jobs 9 0 1 ID x");
    conn.cmd("SET {u}:text no");
    let full =
        "ERR the key already holds as many reservations as ratelimit.max-reservations allows";
    for (call, error) in [
        ("RL.ALL 2 {u}:free {u}:jobs WINDOW 5 60 ELSE ACQUIRE 9 0", None),
        ("RL.ALL 2 {u}:jobs {u}:free ACQUIRE 9 0 ELSE WINDOW 5 60", Some(full)),
        ("RL.ALL 2 {u}:full {u}:jobs WINDOW 0 60 ELSE ACQUIRE 9 0", Some(full)),
        ("RL.ALL 2 {u}:free {u}:jobs WINDOW 5 60 ELSE ACQUIRE 9 0 1 ID x", Some("DUPLICATE ")),
        ("RL.ALL 2 {u}:free {u}:text WINDOW 5 60 ELSE WINDOW 5 60", Some("WRONGTYPE ")),
        // Of two errors of state the first, whichever step of the decision finds it.
        ("RL.ALL 2 {u}:jobs {u}:text ACQUIRE 9 0 WINDOW 5 60", Some(full)),
        ("RL.ALL 2 {u}:text {u}:jobs WINDOW 5 60 ACQUIRE 9 0", Some("WRONGTYPE ")),
        // Errors of arguments come before those of state.
        ("RL.ALL 2 {u}:text {u}:free WINDOW 5 60 ELSE WINDOW 5 1m", Some("ERR period ")),
    ] {
        match error {
            None => assert_eq!(all_reply(&conn.cmd(call)).numbers[0], 0, "{call}"),
            Some(error) => assert!(conn.err(call).starts_with(error), "{call}"),
        }
    }
    assert_eq!(conn.ints("RL.WINDOW_RO {u}:free 9 60 0")[2], 8);
    // A call that would be denied anyway, or only looks, gets no error.
    for (limit, limited) in [("1 0", 2), ("9 0 0", 0)] {
        let reply = conn.acquire(format!("RL.ACQUIRE {{u}}:jobs {limit}"));
        assert_eq!(reply.limited(), limited, "{limit}");
    }
}

// ---- LIMITS: the last key is a hash of limits ----

/// Sets fields of a hash.
#[track_caller]
fn hset(conn: &mut Conn, key: &str, fields: &[(&str, &str)]) {
    let pairs = fields.iter().flat_map(|(field, value)| [*field, *value]);
    let words: Vec<_> = ["HSET", key].into_iter().chain(pairs).collect();
    assert!(matches!(conn.cmd(&words), Value::Int(_)), "{words:?}");
}

#[test]
fn a_change_of_the_hash_counts_from_the_next_call_on() {
    let (_server, mut conn) =
        Server::builder().module_args(["policies", "rpm WINDOW 5 1min"]).with_held_clock();
    let call = "RL.ALL 2 {u}:rpm {u}:limits WINDOW @rpm LIMITS";
    let limit = |conn: &mut Conn| all_reply(&conn.cmd(call)).numbers[1];
    assert_eq!(limit(&mut conn), 5);
    for (change, expected) in [
        (vec!["HSET", "{u}:limits", "rpm", "WINDOW 500 1min"], 500),
        (vec!["HSET", "{u}:limits", "rpm", "window  600\t1MIN shadow"], 600),
        (vec!["HDEL", "{u}:limits", "rpm"], 5),
        (vec!["HSET", "{u}:limits", "rpm", "WINDOW 700 1min", "RPM", "WINDOW 1 1min"], 700),
        (vec!["DEL", "{u}:limits"], 5),
        (vec!["HSET", "{u}:limits", "other", "WINDOW 1 1min"], 5),
        (vec!["HSET", "{u}:other", "rpm", "WINDOW 800 1min"], 5),
        (vec!["RENAME", "{u}:other", "{u}:limits"], 800),
        (vec!["PEXPIRE", "{u}:limits", "0"], 5),
    ] {
        conn.cmd(&change);
        assert_eq!(limit(&mut conn), expected, "{change:?}");
    }
    // A name may have any bytes.
    hset(&mut conn, "{u}:limits", &[("999", "7"), ("a\0b; \u{e4}", "WINDOW 901 1min")]);
    let odd = ["RL.ALL", "2", "{u}:rpm", "{u}:limits", "WINDOW", "@a\0b; \u{e4}", "LIMITS"];
    assert_eq!(all_reply(&conn.cmd(odd)).numbers[1], 901);
    // A number is another encoding of a value.
    assert_eq!(
        conn.err("RL.ALL 2 {u}:rpm {u}:limits WINDOW @999 LIMITS"),
        "ERR the field 999 of the hash of limits is not a definition: \
         a definition must consist of THROTTLE or WINDOW, and a limit"
    );
}

/// crates/commands/src/memory/tests.rs has the errors of definitions, and their order.
#[test]
fn a_last_key_of_another_type_is_an_error_once_a_clause_names_a_limit() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.pipeline(["SET text x", "RPUSH list x", "SADD set x", "RL.WINDOW window 5 60"]);
    hset(&mut conn, "h", &[("none", "")]);
    for key in ["text", "list", "set", "window"] {
        for command in ["RL.ALL", "RL.ALL_RO"] {
            let call = format!("{command} 2 a {key} WINDOW @any LIMITS");
            conn.refuses(&call, "WRONGTYPE the last key, which LIMITS makes the hash of limits, ");
        }
        let call = format!("RL.ALL 2 a {key} WINDOW 5 60 LIMITS");
        assert_eq!(all_reply(&conn.cmd(call)).numbers[0], 0);
    }
    conn.refuses("RL.ALL 2 a h WINDOW @none LIMITS", "ERR the field none of the hash of limits ");
    conn.refuses("RL.ALL 2 h h WINDOW @none LIMITS", "ERR duplicate key: ");
}

#[test]
fn the_hash_is_only_read_and_nothing_of_it_is_replicated() {
    let (server, mut conn) =
        Server::builder().module_args(["policies-only", "yes"]).aof().with_held_clock();
    hset(&mut conn, "{u}:limits", &[("rpm", "WINDOW 1 1min")]);
    conn.cmd("PEXPIREAT {u}:limits 4000000000000");
    let call = "RL.ALL 2 {u}:rpm {u}:limits WINDOW @rpm LIMITS";
    conn.cmd("WATCH {u}:limits");
    let grown = server.aof_grows_by(|| assert_eq!(all_reply(&conn.cmd(call)).numbers[0], 0));
    assert!(!grown.is_empty() && !grown.iter().any(|word| word.contains("limits")), "{grown:?}");
    let grown = server.aof_grows_by(|| assert_eq!(all_reply(&conn.cmd(call)).numbers[0], 1));
    assert!(grown.is_empty(), "{grown:?}");
    // A transaction that watches the hash goes on, and reads it as a script does.
    let replies = conn.pipeline(["MULTI", call, "EXEC"]);
    let Value::Array(executed) = &replies[2] else { panic!("{replies:?}") };
    assert_eq!(all_reply(&executed[0]).numbers[..2], [1, 1]);
    let script = format!("return redis.call('{}')", call.replace(' ', "','"));
    let in_script = conn.cmd(["EVAL", &script, "2", "{u}:rpm", "{u}:limits"]);
    assert_eq!(all_reply(&in_script).numbers[..2], [1, 1]);
    assert_eq!(all_reply(&server.conn_resp3().cmd(call)).numbers[..2], [1, 1]);
    assert_eq!(conn.int("PTTL {u}:limits"), 4_000_000_000_000 - server.clock().now_us() / 1_000);
    // Limits in numbers are still refused.
    let numbers = "RL.ALL 3 {u}:rpm {u}:b {u}:limits WINDOW @rpm WINDOW 5 60 LIMITS";
    assert_eq!(conn.err(numbers), "NOPOLICY limits must be given as @policy");
}

#[test]
fn the_hash_is_one_of_the_keys_for_acls_and_key_specs_and_in_a_cluster() {
    let (server, mut conn) = Server::with_held_clock();
    hset(&mut conn, "limits", &[("rpm", "WINDOW 7 1h")]);
    let call = "RL.ALL 2 mine limits WINDOW @rpm LIMITS";
    assert_eq!(flat(&conn.cmd(format!("COMMAND GETKEYS {call}"))), ["mine", "limits"]);
    for (rules, may_take, may_look) in [
        ("-@all +rl.all +rl.all_ro ~mine ~limits", true, true),
        ("+@all ~mine ~other", false, false),
        ("+@all ~mine %R~limits", false, true),
        ("+@all ~mine %W~limits", false, false),
    ] {
        if rules.contains('%') && !server.version().is_from(7, 0) {
            continue;
        }
        let mut user = server.as_user(rules);
        for (command, may) in [("RL.ALL", may_take), ("RL.ALL_RO", may_look)] {
            let reply = user.cmd(call.replace("RL.ALL", command));
            match may {
                true => assert_eq!(all_reply(&reply).numbers[1], 7, "{rules}: {command}"),
                false => assert!(error_line(&reply).starts_with("NOPERM "), "{rules}: {reply:?}"),
            }
        }
    }
    let (_server, mut conn) = Server::builder().cluster().connect();
    hset(&mut conn, "limits", &[("rpm", "WINDOW 7 1h")]);
    conn.refuses(call, "CROSSSLOT ");
    let together = call.replace("mine", "{limits}:mine");
    assert_eq!(all_reply(&conn.cmd(together)).numbers[1], 7);
}

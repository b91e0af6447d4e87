//! RL.TOP: the keys that were denied most.

use support::*;

/// A row of RL.TOP.
#[derive(Clone, Debug, PartialEq)]
struct TopRow {
    key: Vec<u8>,
    db: i64,
    denials: i64,
    over: i64,
}

fn row(key: impl AsRef<[u8]>, db: i64, denials: i64) -> TopRow {
    TopRow { key: key.as_ref().to_vec(), db, denials, over: 0 }
}

#[track_caller]
fn top(conn: &mut Conn, words: impl CommandWords) -> Vec<TopRow> {
    let one = |row: &Value| match elements(row) {
        [Value::BulkString(key), Value::Int(db), Value::Int(denials), Value::Int(over)] => {
            TopRow { key: key.clone(), db: *db, denials: *denials, over: *over }
        }
        _ => panic!("no row: {row:?}"),
    };
    conn.array(words).iter().map(one).collect()
}

/// All rows, which must come in order.
#[track_caller]
fn all(conn: &mut Conn) -> Vec<TopRow> {
    let rows = top(conn, "RL.TOP COUNT 1000000");
    assert!(rows.windows(2).all(|two| two[0].denials >= two[1].denials), "{rows:?}");
    rows
}

#[test]
fn each_denied_reply_counts_once_and_nothing_else_does() {
    let table = "shadow WINDOW 0 60 SHADOW; enforced WINDOW 0 60";
    let (_server, mut conn) =
        Server::builder().module_args(["cl-throttle", "yes", "policies", table]).with_held_clock();
    for call in [
        "RL.THROTTLE t 0 1 60", "RL.THROTTLE t 0 1 60 0", "RL.THROTTLE_RO t 0 1 60",
        "RL.THROTTLE t 0 1 60 -1", "RL.THROTTLE t 0 1 60", "RL.THROTTLE t 0 1 60 1 FORCE",
        "RL.WINDOW w 1 60", "RL.WINDOW_RO w 1 60", "RL.WINDOW w 1 60 -1",
        "RL.WINDOW w 1 60 5 ATMOST", "RL.WINDOW w @shadow", "RL.ACQUIRE s 1 0 1 ID x",
        "RL.ACQUIRE_RO s 1 0", "RL.RELEASE s nobody", "RL.HELD s", "RL.ALL_RO 1 w WINDOW 1 60",
        "RL.ALL 1 w WINDOW 1 60 SHADOW", "RL.TOP",
    ] {
        assert!(!matches!(conn.cmd(call), Value::ServerError(_)), "{call}");
    }
    conn.cmd("SET string x");
    conn.refuses(
        "RL.WINDOW string 1 60",
        "WRONGTYPE the key does not hold a window (a sorted set)",
    );
    conn.refuses("RL.ACQUIRE s 1 0 1 ID x", "DUPLICATE the id is already held ");
    assert_eq!(all(&mut conn), []);

    for (call, limited) in [
        ("RL.THROTTLE t 0 1 60", 1),
        ("RL.THROTTLE t 0 1 60 0", 0),
        ("RL.THROTTLE t 0 1 60 1 AHEAD 1ms", 1),
        ("RL.THROTTLE t 0 1 60 5 ATMOST", 1),
        // More than can ever be granted.
        ("RL.THROTTLE t 0 1 60 9", 1),
        ("CL.THROTTLE t 0 1 60 1", 1),
        ("RL.WINDOW w 1 60 1", 1),
        ("RL.WINDOW w 1 60 1 COUNTDENIED", 1),
        ("RL.WINDOW w 1 60 9 ATMOST", 1),
        ("RL.WINDOW w @enforced", 1),
    ] {
        assert_eq!(conn.ints(call)[0], limited, "{call}");
    }
    assert_eq!(conn.acquire("RL.ACQUIRE s 1 0").limited(), 2);
    assert_eq!(conn.acquire("RL.ACQUIRE s 1 0 5").limited(), 1);
    assert_eq!(all(&mut conn), [row("t", 0, 5), row("w", 0, 4), row("s", 0, 2)]);

    // In a transaction and in a script, one for each reply.
    conn.transaction(["RL.ACQUIRE s 1 0", "RL.ACQUIRE s 1 0 1 BLOCK 0"]);
    let script = "for i = 1, 3 do redis.call('RL.WINDOW', KEYS[1], 1, 60) end";
    conn.cmd(["EVAL", script, "1", "w"]);
    assert_eq!(all(&mut conn), [row("w", 0, 7), row("t", 0, 5), row("s", 0, 4)]);
}

#[test]
fn count_is_ten_by_default_and_at_least_one() {
    let (_server, mut conn) = Server::with_held_clock();
    for number in 1..=15 {
        for _ in 0..number {
            conn.cmd(format!("RL.WINDOW k{number:02} 0 60"));
        }
    }
    let expected: Vec<_> =
        (1..=15).rev().map(|number| row(format!("k{number:02}"), 0, number)).collect();
    assert_eq!(top(&mut conn, "RL.TOP"), expected[..10]);
    assert_eq!(top(&mut conn, "RL.TOP COUNT 1"), expected[..1]);
    assert_eq!(top(&mut conn, "rl.top count 12"), expected[..12]);
    assert_eq!(top(&mut conn, "RL.TOP COUNT 9223372036854775807"), expected);
    let range = "ERR COUNT must be an integer from 1 to 9223372036854775807";
    conn.refuses("RL.TOP RESET COUNT x", range);
    // An error forgets nothing.
    assert_eq!(all(&mut conn), expected);
    assert_eq!(top(&mut conn, "RL.TOP RESET COUNT 2"), expected[..2]);
    assert_eq!(all(&mut conn), []);
    conn.cmd("RL.WINDOW k01 0 60");
    assert_eq!(top(&mut conn, "RL.TOP COUNT 5 RESET"), [row("k01", 0, 1)]);
    assert_eq!(all(&mut conn), []);
}

#[test]
fn a_key_may_have_any_bytes_and_is_cut_after_256() {
    let (_server, mut conn) = Server::with_held_clock();
    let short = vec![b'x'; 256];
    let binary: Vec<u8> = (0..=255).collect();
    let mut deny = |key: &[u8], times: usize| {
        for _ in 0..times {
            conn.cmd([b"RL.WINDOW", key, b"0", b"60"]);
        }
    };
    // Keys that agree in 256 bytes are counted as one.
    deny(&short, 4);
    deny(&[&short[..], b"y"].concat(), 2);
    deny(&vec![b'x'; 1 << 20], 3);
    deny(&binary, 5);
    deny(b"", 3);
    deny(b"\r\n\0", 2);
    let rows = [row(&short, 0, 9), row(&binary, 0, 5), row("", 0, 3), row("\r\n\0", 0, 2)];
    assert_eq!(all(&mut conn), rows);
}

#[test]
fn keys_of_several_databases_are_distinguished() {
    let (server, mut conn) = Server::connect();
    for (db, times) in [(0, 1), (3, 3), (15, 2)] {
        conn.cmd(format!("SELECT {db}"));
        for _ in 0..times {
            conn.cmd("RL.WINDOW k 0 60");
        }
    }
    assert_eq!(all(&mut conn), [row("k", 3, 3), row("k", 15, 2), row("k", 0, 1)]);
    // A wait that ends in denial, by its time or by CLIENT UNBLOCK, is one of its own database.
    conn.cmd("SELECT 7");
    conn.cmd("RL.ACQUIRE s 1 0 1 LEASE 1h");
    assert_eq!(conn.acquire("RL.ACQUIRE s 1 0 1 BLOCK 50").limited(), 2);
    let mut other = server.conn();
    other.cmd("SELECT 7");
    let id = other.id();
    let mut waits = server.wait_on(other, "RL.ACQUIRE s 1 0 1 BLOCK 0");
    assert_eq!(server.conn().int(format!("CLIENT UNBLOCK {id}")), 1);
    assert_eq!(limited(&waits.recv()), 2);
    assert!(all(&mut conn).contains(&row("s", 7, 2)), "{:?}", all(&mut conn));
}

#[test]
fn a_wait_counts_at_its_end_and_only_where_it_is_denied() {
    let (server, mut conn) = Server::connect();
    conn.cmd("RL.ACQUIRE s 1 0 1 ID x LEASE 1h");
    let mut granted = server.wait_in_line("RL.ACQUIRE s 1 0 1 ID y BLOCK 0");
    assert_eq!(all(&mut conn), []);
    conn.cmd("RL.RELEASE s x");
    assert_eq!(limited(&granted.recv()), 0);
    assert_eq!(all(&mut conn), []);

    let mut times_out = server.wait_in_line("RL.ACQUIRE s 1 0 1 BLOCK 1s");
    assert_eq!(all(&mut conn), []);
    // Behind a line a call without BLOCK is denied at once.
    assert_eq!(conn.acquire("RL.ACQUIRE s 1 0").limited(), 2);
    assert_eq!(all(&mut conn), [row("s", 0, 1)]);
    assert_eq!(limited(&times_out.recv()), 2);
    assert_eq!(all(&mut conn), [row("s", 0, 2)]);

    // A waiter that gets an error or disconnects was not denied.
    for (end, is_told) in [("UNBLOCK", true), ("KILL ID", false)] {
        let (mut waits, id) = server.wait_with_id("RL.ACQUIRE s 1 0 1 BLOCK 0");
        let how = if is_told { "ERROR" } else { "" };
        assert_eq!(conn.int(format!("CLIENT {end} {id} {how}")), 1);
        if is_told {
            assert_refused(&waits.recv(), "UNBLOCKED ", "a call that waited");
        }
    }
    server.expect_no_waiting_calls();
    // What cannot be within its time is denied at once.
    conn.cmd("RL.WINDOW w 1 1h");
    assert_eq!(conn.ints("RL.WINDOW w 1 1h 1 BLOCK 10")[0], 1);
    assert_eq!(all(&mut conn), [row("s", 0, 2), row("w", 0, 1)]);
}

#[test]
fn rl_all_counts_one_for_each_enforced_clause_that_denies() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.cmd("RL.ALL 3 a b c WINDOW 0 60 WINDOW 0 60 SHADOW WINDOW 0 60 CHECK");
    conn.cmd("RL.ALL 2 b c WINDOW 0 60 0 WINDOW 1 60 0");
    conn.cmd("RL.ALL_RO 1 b WINDOW 0 60");
    assert_eq!(top(&mut conn, "RL.TOP RESET"), [row("a", 0, 1), row("c", 0, 1)]);
    // Judged before COUNTDENIED counts: the first clause is filled only by the denial of the second.
    let call = "RL.ALL 2 d e WINDOW 2 60 1 COUNTDENIED WINDOW 1 60";
    conn.cmd(call);
    let reply = flat(&conn.cmd(call));
    assert_eq!((&reply[0], &reply[6]), (&"1".into(), &"1".into()));
    assert_eq!(all(&mut conn), [row("e", 0, 1)]);
    // Now both deny.
    conn.cmd(call);
    assert_eq!(all(&mut conn), [row("e", 0, 2), row("d", 0, 1)]);
}

#[test]
fn with_top_keys_0_nothing_is_counted() {
    let (server, mut conn) = Server::builder().module_args(["top-keys", "0"]).with_held_clock();
    conn.cmd("RL.WINDOW k 0 60");
    assert_eq!(all(&mut conn), []);
    assert_eq!(top(&mut conn, "RL.TOP COUNT 5 RESET"), []);
    if server.version().is_from(7, 0) {
        assert_eq!(conn.text("CONFIG SET ratelimit.top-keys 1"), "OK");
        conn.cmd("RL.WINDOW a 0 60");
        conn.cmd("RL.WINDOW b 0 60");
        let only = TopRow { key: b"b".to_vec(), db: 0, denials: 2, over: 1 };
        assert_eq!(all(&mut conn), [only]);
    }
}

#[test]
fn config_set_top_keys_forgets() {
    let (server, mut conn) = Server::connect();
    if server.version().lacks_settings() {
        return;
    }
    for number in [64, 10_000, 0, 128] {
        conn.cmd("RL.WINDOW k 0 60");
        assert_eq!(conn.text(format!("CONFIG SET ratelimit.top-keys {number}")), "OK");
        assert_eq!(all(&mut conn), [], "{number}");
    }
    conn.cmd("RL.WINDOW k 0 60");
    // CONFIG RESETSTAT and FLUSHALL are about other things.
    conn.cmd("CONFIG RESETSTAT");
    conn.cmd("FLUSHALL");
    assert_eq!(all(&mut conn), [row("k", 0, 1)]);
}

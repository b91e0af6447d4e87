//! `ratelimit.notify-denied`: denials as keyspace events.

use std::collections::BTreeMap;
use std::time::Duration;

use support::*;

/// A connection that is subscribed to these events of all keys.
fn listener(server: &Server) -> Conn {
    let mut conn = server.conn();
    conn.cmd(["PSUBSCRIBE", "__keyspace@*__:*"]);
    conn
}

/// The events that have come: database, key and name.
fn events(conn: &mut Conn) -> Vec<(i64, String, String)> {
    let mut events = Vec::new();
    while !conn.silent_for(Duration::from_millis(100)) {
        let words = flat(&conn.recv());
        let [kind, _, channel, event] = words.as_slice() else { panic!("{words:?}") };
        assert_eq!(kind, "pmessage");
        let (db, key) = channel["__keyspace@".len()..].split_once("__:").unwrap();
        events.push((db.parse().unwrap(), key.into(), event.clone()));
    }
    events
}

fn denied(db: i64, key: &str) -> (i64, String, String) {
    (db, key.into(), "rl.denied".into())
}

/// A server that sends events of these classes, with a module that reports denials.
fn telling(classes: &str) -> Server {
    Server::builder()
        .module_args(["notify-denied", "yes"])
        .config(format!("notify-keyspace-events {classes}"))
        .start()
}

#[test]
fn a_denial_is_reported_with_the_key_and_its_database() {
    let server = telling("Kd");
    let (mut conn, mut subscriber) = (server.conn(), listener(&server));
    conn.cmd("RL.WINDOW w 1 60");
    assert_eq!(events(&mut subscriber), []);
    conn.cmd("RL.WINDOW w 1 60");
    assert_eq!(events(&mut subscriber), [denied(0, "w")]);
    conn.cmd("SELECT 5");
    conn.cmd("RL.THROTTLE t 0 1 60 2");
    conn.cmd("RL.ACQUIRE s 0 0");
    assert_eq!(events(&mut subscriber), [denied(5, "t"), denied(5, "s")]);
    // By the event's name.
    let mut by_name = server.conn();
    by_name.cmd("SUBSCRIBE __keyevent@5__:rl.denied");
    conn.cmd("CONFIG SET notify-keyspace-events Ed");
    conn.cmd("RL.WINDOW w 0 60");
    assert_eq!(flat(&by_name.recv()), ["message", "__keyevent@5__:rl.denied", "w"]);
}

#[test]
fn denied_events_need_the_setting_and_the_event_class() {
    let server = Server::builder().config("notify-keyspace-events KA").start();
    let (mut conn, mut subscriber) = (server.conn(), listener(&server));
    conn.cmd("RL.WINDOW w 0 60");
    assert_eq!(events(&mut subscriber), []);
    if server.version().is_from(7, 0) {
        assert_eq!(conn.setting("ratelimit.notify-denied"), "no");
        assert_eq!(conn.text("CONFIG SET ratelimit.notify-denied yes"), "OK");
        conn.cmd("RL.WINDOW w 0 60");
        assert_eq!(events(&mut subscriber), [denied(0, "w")]);
        assert_eq!(conn.text("CONFIG SET ratelimit.notify-denied no"), "OK");
        conn.cmd("RL.WINDOW w 0 60");
        assert_eq!(events(&mut subscriber), []);
        conn.refuses("CONFIG SET ratelimit.notify-denied maybe", "ERR CONFIG SET failed ");
    }
    let server = telling("Kg$zx");
    let (mut conn, mut subscriber) = (server.conn(), listener(&server));
    conn.cmd("RL.WINDOW w 0 60");
    conn.cmd("RL.THROTTLE t 0 1 60");
    conn.cmd("RL.THROTTLE t 0 1 60");
    assert!(events(&mut subscriber).iter().all(|(_, _, event)| event != "rl.denied"));
}

#[test]
fn each_denial_that_rl_top_counts_is_one_event() {
    let table = "shadow WINDOW 1 60 SHADOW; on WINDOW 2 60";
    let server = Server::builder()
        .module_args(["notify-denied", "yes", "policies", table])
        .config("notify-keyspace-events Kd")
        .start();
    let (mut conn, mut subscriber) = (server.conn(), listener(&server));
    let mut random = Random::new(15);
    for step in 0..600 {
        if random.one_in(10) {
            conn.cmd(format!("SELECT {}", random.below(3)));
        }
        let key = random.pick(&["a", "b", "c"]);
        let other = random.pick(&["d", "e"]);
        let call = match random.below(12) {
            0 => format!("RL.THROTTLE t{key} 3 1 60"),
            1 => format!("RL.THROTTLE t{key} 3 1 60 1 AHEAD 5s"),
            2 => format!("RL.THROTTLE_RO t{key} 3 1 60"),
            3 => format!("RL.WINDOW {key} @shadow"),
            4 => format!("RL.WINDOW {key} @on 1 COUNTDENIED"),
            5 => format!("RL.WINDOW {key} @on 2 ATMOST"),
            6 => format!("RL.ACQUIRE {key} 4 60"),
            7 => format!("RL.ACQUIRE s{key} 2 0 1 LEASE 1h ID {step}"),
            8 => format!("RL.ACQUIRE s{key} 2 0 1 LEASE 1h BLOCK 3"),
            9 => format!("RL.ALL 2 {key} {other} WINDOW @on 1 COUNTDENIED WINDOW 5 60"),
            10 => format!("RL.ALL 2 {key} {other} WINDOW 3 60 CHECK WINDOW 1 60 SHADOW"),
            _ => format!("RL.ALL_RO 1 {key} WINDOW 1 60"),
        };
        assert!(!matches!(conn.cmd(&call), Value::ServerError(_)), "{call}");
    }
    let mut counted = BTreeMap::<(i64, String), i64>::new();
    for (db, key, event) in events(&mut subscriber) {
        assert_eq!(event, "rl.denied");
        *counted.entry((db, key)).or_default() += 1;
    }
    let rows = conn.array("RL.TOP COUNT 1000");
    let row = |row: &Value| {
        let words = flat(row);
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        assert_eq!(number(3), 0);
        ((number(1), words[0].clone()), number(2))
    };
    let top: BTreeMap<_, _> = rows.iter().map(row).collect();
    assert_eq!(counted, top);
    assert!(counted.values().sum::<i64>() > 150, "{counted:?}");
}

#[test]
fn a_denial_in_a_transaction_or_script_is_reported_too_and_replicates_nothing() {
    let server = telling("Kd");
    let replica = Server::replica_of(&server, true);
    let (mut conn, mut subscriber) = (server.conn(), listener(&server));
    let alone = server.repl_grows(|| conn.cmd("RL.WINDOW u 0 60"));
    let together = server.repl_grows(|| {
        conn.transaction(["RL.WINDOW w 0 60"]);
        conn.cmd(["EVAL", "return redis.call('rl.window', KEYS[1], 0, 60)", "1", "v"]);
    });
    assert_eq!(events(&mut subscriber), [denied(0, "u"), denied(0, "w"), denied(0, "v")]);
    assert_eq!(alone, 0);
    // Before 7.0 the server replicates MULTI and EXEC where a command might have written.
    assert!(together == 0 || !server.version().is_from(7, 0), "{together}");
    drop(replica);
}

//! Values that the module did not write are errors, and stay as they are.

use support::*;

const NOT_OURS: &str =
    "ERR the key's sorted set has an entry that RL.WINDOW or RL.ACQUIRE did not write";

/// Calls on a bucket.
const OF_STRINGS: [&str; 8] = [
    "RL.THROTTLE k 1 1 1", "RL.THROTTLE k 1 1 1 0", "RL.THROTTLE k 1 1 1 -1",
    "RL.THROTTLE k 1 1 1 9", "RL.THROTTLE k 1 1 1 ATMOST", "RL.THROTTLE k 1 1 1 1 FORCE",
    "RL.THROTTLE_RO k 1 1 1", "RL.INFO k",
];
/// Calls that read the events of a window.
const OF_EVENTS: [&str; 9] = [
    "RL.WINDOW k 5 60", "RL.WINDOW k 5 60 0", "RL.WINDOW k 5 60 -1",
    "RL.WINDOW k 5 60 5 COUNTDENIED", "RL.WINDOW k 5 60 BUCKETS 2",
    "RL.WINDOW k 5 1d FIXED ATMOST", "RL.WINDOW k 5 10s FIXED FROM first", "RL.WINDOW_RO k 5 60",
    "RL.ACQUIRE k 9 60",
];
/// Calls that read reservations, and no events.
const OF_RESERVATIONS: [&str; 13] = [
    "RL.ACQUIRE k 5 0", "RL.ACQUIRE k 5 0 0 ID a", "RL.ACQUIRE_RO k 5 0", "RL.ALL 1 k ACQUIRE 5 0",
    "RL.ALL_RO 1 k ACQUIRE 5 0", "RL.APPLY k a", "RL.APPLY k none 0", "RL.RELEASE k a",
    "RL.RELEASE k a b c", "RL.RENEW k a", "RL.RENEW k none", "RL.HELD k", "RL.INFO k",
];

/// Each of these calls fails with this error, and leaves the key `k` as it is.
#[track_caller]
fn are_refused<'a>(conn: &mut Conn, calls: impl IntoIterator<Item = &'a str>, error: &str) {
    let before = conn.dumped("k");
    for call in calls {
        conn.refuses(call, error);
    }
    assert_eq!(conn.dumped("k"), before);
}

#[test]
fn a_key_of_another_type_is_a_wrongtype_error_and_stays() {
    let (_server, mut conn) = Server::with_held_clock();
    let of_sets = || OF_EVENTS.into_iter().chain(OF_RESERVATIONS);
    for make in [
        "SET k 12345", "RL.THROTTLE k 1 1 1", "RPUSH k 1700000000000000000", "HSET k f v",
        "SADD k m", "XADD k 1-1 f v", "ZADD k 1 m",
    ] {
        conn.pipeline(["DEL k", make]);
        let kind = conn.text("TYPE k");
        if kind != "zset" {
            let encoding = conn.text("OBJECT ENCODING k");
            let calls = of_sets().filter(|call| *call != "RL.INFO k");
            are_refused(
                &mut conn,
                calls,
                "WRONGTYPE the key does not hold a window (a sorted set)",
            );
            assert_eq!(conn.text("OBJECT ENCODING k"), encoding);
        }
        if kind != "string" {
            let calls =
                OF_STRINGS.into_iter().filter(|call| kind != "zset" || *call != "RL.INFO k");
            are_refused(&mut conn, calls, "WRONGTYPE ");
        }
    }
}

#[test]
fn a_string_that_is_no_bucket_is_an_error_and_stays() {
    let (_server, mut conn) = Server::with_held_clock();
    let texts: [&[u8]; 13] = [
        b"", b"5", b"-5", b"hello", b"\xff\xfe", b"3.14", b"18446744073709551615",
        b"-1700000000000000000", b"170000000000000000", b"1700000000000000000.",
        b"1700000000000000000.0123456789", b" 1700000000000000000", b"1700000000000000000\0",
    ];
    let tat = START_US * 1_000;
    // The last debt is of 101 years.
    let debts = "+ +0 +-1 ++1 +1+1 +01 +1.5 +x +99999999999999999999 +3187317600000000000 !1~ +1!";
    let debts = debts.split(' ').map(|debt| format!("{tat}{debt}").into_bytes());
    for value in texts.map(<[u8]>::to_vec).into_iter().chain(debts) {
        for lifetime in ["", "PX 5000"] {
            let mut set = vec![b"SET".to_vec(), b"k".to_vec(), value.clone()];
            set.extend(lifetime.split_ascii_whitespace().map(Vec::from));
            conn.cmd(set);
            are_refused(
                &mut conn,
                OF_STRINGS,
                "ERR the key holds a string that RL.THROTTLE did not write",
            );
        }
    }
    conn.pipeline(["SET k 41", "RL.THROTTLE k 1 1 1"]);
    assert_eq!(conn.int("INCR k"), 42);
}

#[test]
fn a_sorted_set_with_a_foreign_entry_is_an_error_and_stays() {
    let (_server, mut conn) = Server::with_held_clock();
    // N stands for now, B for a second before and L for a second later.
    let (now, before, later) = (START_US, START_US - 1_000_000, START_US + 1_000_000);
    let of_events = "-N a,-N N-1,-L a,-N 1.5,-N -1,-N 01,-N 1x0,-N 1x,-N 1~,-N 1x2~3~4,-N 1dd,-N 18446744073709551616,\
        -N 5x9223372036854775808,-N 9223372036854775808x9223372036854775808,-N 5~99999999999999999,-0.5 1,-1.5 1,-N.5 1,\
        -1e300 1,-1 x,-1 1x1,-N :01:a:1:20000:1700000020000000::60s,-N #01:a:1:20000:1700000020000000::60s,\
        -B 5 -N 3,-B 0 -N 9223372036854775809,-B 10x9 -N 5,-B a -N 3,-B 2 -N a";
    // Points of players, what the recipe that users migrate from stores, and what an early version of this module wrote.
    let of_all = "5 a,1700000000 user:1,1.5 1,1e300 1,9007199254740994 1,inf a,inf 1,inf :01:a:1:1000:1::,5e-324 x,N 1,\
        100 42 250 7,1700000000 1,1700000000000 1700000000000,0.5 #01:a:1:1:1:: -5 1,-N 1 inf a,\
        -inf x,-inf 1,-inf 17,-inf #01:a,-inf #01:z:0:20000:1700000020000000::60s,-inf #99:z:1:20000:1700000020000000::60s,\
        -inf #01:a:2:20000:1700000020000000+0::60s,-inf !1~0,-inf !";
    // The number of reservations in the key. From eight on it has an index.
    for others in [0, 1, 20] {
        for (entries, is_for_all) in [(of_events, false), (of_all, true)] {
            for entry in entries.split(',').map(str::trim) {
                conn.cmd("DEL k");
                for id in (b'a'..).map(char::from).take(others) {
                    conn.cmd(format!("RL.ACQUIRE k 99 0 1 ID {id}"));
                }
                let (n, b, l) = (now.to_string(), before.to_string(), later.to_string());
                let entry = entry.replace('N', &n).replace('B', &b).replace('L', &l);
                conn.cmd(format!("ZADD k {entry}"));
                // From the first event on, the newest entry is all that counts.
                let is_one = entry.split(' ').count() == 2;
                let of_events =
                    OF_EVENTS.into_iter().filter(|call| is_one || !call.contains("first"));
                let of_reservations = OF_RESERVATIONS.into_iter().filter(|_| is_for_all);
                are_refused(&mut conn, of_events.chain(of_reservations), NOT_OURS);
                // What counts no events does not read them.
                if !is_for_all && others > 0 {
                    assert_eq!(conn.int("RL.RENEW k a"), 1, "{entry}");
                    assert_eq!(conn.acquire("RL.ACQUIRE k 99 0 1 ID z").limited(), 0, "{entry}");
                    assert_eq!(conn.int("RL.RELEASE k z a"), 2, "{entry}");
                }
                let members = entry.split(' ').skip(1).step_by(2).map(str::to_owned);
                conn.cmd(
                    ["ZREM".into(), "k".into()].into_iter().chain(members).collect::<Vec<String>>(),
                );
                assert_eq!(conn.acquire("RL.ACQUIRE k 99 60").limited(), 0, "{entry}");
            }
        }
    }
}

/// Found by `make fuzz`, target reservation: a member whose rule is too long was read, but RL.RENEW wrote it back without
/// its rule, and so did a call that corrected its lease after the clock was set back.
#[test]
fn a_reservation_whose_rule_is_unknown_can_only_be_released_and_one_that_is_too_long_not_even_that()
{
    let (_server, mut conn) = Server::with_held_clock();
    for rule in ["x", "60s@Mars/Base", "7d@UTC", "60s/0", "0s", "--", "60s^noon"] {
        let member = format!("#01:a:1:20000:{}::{rule}", START_US + 20_000_000);
        conn.cmd(["ZADD", "k", "-inf", &member]);
        are_refused(&mut conn, ["RL.APPLY k a"], NOT_OURS);
        assert_eq!(conn.held_ids("k"), ["a"]);
        assert_eq!(conn.int("RL.RELEASE k a"), 1);
        assert_eq!(conn.int("EXISTS k"), 0);
    }
    for end_us in [START_US + 1_000_000, START_US + 90_000_000] {
        let member = format!("#01:a:1:20000:{end_us}::{}s", "9".repeat(300));
        conn.cmd(["ZADD", "k", "-inf", &member]);
        are_refused(&mut conn, OF_EVENTS.into_iter().chain(OF_RESERVATIONS), NOT_OURS);
        conn.cmd("DEL k");
    }
}

#[test]
fn a_foreign_entry_among_dead_ones_is_an_error_where_it_would_be_removed() {
    let (server, mut conn) = Server::with_held_clock();
    conn.cmd(format!("ZADD k -{} foreign", START_US - 100_000_000));
    let mut refused = 0;
    for _ in 0..40 {
        server.clock().advance_ms(500);
        match conn.cmd("RL.WINDOW k 5 1s") {
            Value::ServerError(error) => {
                assert!(format!("{error:?}").contains("the key's sorted set"), "{error:?}");
                refused += 1;
            }
            _ => assert_eq!(refused, 0, "it was removed"),
        }
    }
    assert!(refused > 20, "{refused}");
    conn.int("ZREM k foreign");
    assert_eq!(conn.ints("RL.WINDOW k 5 1s")[0], 0);
    assert!(conn.int("ZCARD k") < 8);
}

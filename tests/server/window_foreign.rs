//! RL.WINDOW on values that the module did not write.

use support::*;

#[test]
fn a_key_of_another_type_is_a_wrongtype_error_and_stays() {
    let (_server, mut conn) = Server::held();
    conn.pipeline([
        "SET string 1",
        "RL.THROTTLE tat 1 1 1",
        "RPUSH list 1",
        "HSET hash 1 1",
        "SADD set 1",
        "XADD stream 1-1 a b",
        "PFADD hll 1",
    ]);
    for key in ["string", "tat", "list", "hash", "set", "stream", "hll"] {
        let before = conn.cmd(format!("DUMP {key}"));
        for call in [
            "RL.WINDOW k 5 60",
            "RL.WINDOW k 5 60 0",
            "RL.WINDOW k 5 60 9",
            "RL.WINDOW k 0 60 BUCKETS 3 COUNTDENIED",
            "RL.WINDOW k 5 60 FIXED ATMOST",
            "RL.WINDOW_RO k 5 60",
            "RL.ACQUIRE k 9 60",
            "RL.ACQUIRE k 9 0 0 ID a",
            "RL.ACQUIRE_RO k 9 60",
            "RL.APPLY k a",
            "RL.RELEASE k a b",
            "RL.RENEW k a",
            "RL.HELD k",
        ] {
            conn.refuses(call.replacen(" k", &format!(" {key}"), 1), "WRONGTYPE ");
        }
        assert_eq!(conn.cmd(format!("DUMP {key}")), before);
    }
}

#[test]
fn an_entry_that_is_none_of_ours_is_an_error_and_stays() {
    let (_server, mut conn) = Server::held();
    let (now, before, later) = (START_US, START_US - 1_000_000, START_US + 1_000_000);
    for entries in [
        "5 a".to_owned(),
        "1700000000 user:1".to_owned(),
        format!("-{now} a"),
        format!("-{now} {now}-1"),
        format!("-{later} a"),
        format!("-{now} 1.5"),
        format!("-{now} -1"),
        format!("-{now} 01"),
        format!("-{now} 1x0"),
        format!("-{now} 1x"),
        format!("-{now} 1~"),
        format!("-{now} 1x2~3~4"),
        format!("-{now} 1dd"),
        format!("-{now} 18446744073709551616"),
        format!("-{now} 5x9223372036854775808"),
        format!("-{now} 5~99999999999999999"),
        "-0.5 1".to_owned(),
        "1.5 1".to_owned(),
        format!("-{now}.5 1"),
        "1e300 1".to_owned(),
        "-1e300 1".to_owned(),
        "9007199254740994 1".to_owned(),
        "inf a".to_owned(),
        "inf 1".to_owned(),
        "inf :01:a:1:1000:1::".to_owned(),
        "-inf 1".to_owned(),
        // Points of players, the seconds and milliseconds of the recipe that users migrate from, and what an early
        // version of this module wrote.
        format!("{now} 1"),
        "100 42 250 7".to_owned(),
        format!("{} 1", now / 1_000_000),
        format!("{0} {0}", now / 1_000),
        // Ours by their looks, but the totals run backwards.
        format!("-{before} 5 -{now} 3"),
        format!("-{before} 0 -{now} 9223372036854775809"),
        format!("-{before} 10x9 -{now} 5"),
        format!("-{before} a -{now} 3"),
        format!("-{before} 2 -{now} a"),
        format!("-{now} 1 inf a"),
    ] {
        conn.cmd("DEL k");
        conn.cmd(format!("ZADD k {entries}"));
        let dump = conn.cmd("DUMP k");
        for options in ["5 60", "5 60 0", "5 60 5 COUNTDENIED", "5 60 BUCKETS 2", "5 1d FIXED"] {
            let error = conn.err(format!("RL.WINDOW k {options}"));
            assert!(error.starts_with("ERR the key's sorted set"), "{entries}: {error}");
            assert_eq!(conn.cmd("DUMP k"), dump, "{entries}");
        }
        assert!(conn.err("RL.WINDOW_RO k 5 60").starts_with("ERR the key's"), "{entries}");
        assert_eq!(conn.int("PTTL k"), -1);
    }
}

#[test]
fn a_dead_foreign_entry_is_never_removed() {
    let (server, mut conn) = Server::held();
    conn.cmd("ZADD k 5 foreign -inf other");
    for _ in 0..100 {
        server.clock().advance_ms(500);
        conn.cmd("RL.WINDOW k 5 1s");
    }
    assert_eq!(conn.text("ZSCORE k foreign"), "5");
    assert_eq!(conn.text("ZSCORE k other"), "-inf");
}

#[test]
fn one_positive_score_among_events_is_an_error_in_every_call_until_it_goes() {
    let (server, mut conn) = Server::held();
    for _ in 0..3 {
        server.clock().advance_ms(500);
        conn.cmd("RL.WINDOW k 3 60");
    }
    for (score, member) in [("5", "91"), ("5e-324", "foreign"), ("inf", "92")] {
        conn.cmd(["ZADD", "k", score, member]);
        let dump = conn.cmd("DUMP k");
        for options in ["3 60", "4 60", "4 60 0", "4 60 -1", "3 60 BUCKETS 2", "4 1d FIXED"] {
            let error = conn.err(format!("RL.WINDOW k {options}"));
            assert!(error.starts_with("ERR the key's sorted set"), "{score} {options}: {error}");
        }
        assert!(conn.err("RL.ACQUIRE k 4 60").starts_with("ERR the key's sorted set"));
        assert!(conn.err("RL.WINDOW_RO k 3 60").starts_with("ERR the key's sorted set"));
        assert_eq!(conn.cmd("DUMP k"), dump, "{score}");
        conn.cmd(["ZREM", "k", member]);
        assert_eq!(conn.ints("RL.WINDOW k 3 60")[0], 1);
    }
}

#[test]
fn a_foreign_entry_among_dead_ones_is_an_error_where_it_would_be_removed() {
    let (server, mut conn) = Server::held();
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

#[test]
fn no_sorted_set_ends_the_server() {
    let (server, mut conn) = Server::held();
    let mut random = Random::new(1);
    let totals =
        ["0", "1", "5", "9223372036854775807", "9223372036854775808", "18446744073709551615"];
    for _ in 0..1_500 {
        conn.cmd("DEL k");
        for _ in 0..1 + random.below(6) {
            let score = match random.below(8) {
                0 => "inf".to_owned(),
                1 => "-inf".to_owned(),
                2 => "9007199254740992".to_owned(),
                3 => format!("-{}", START_US + random.below(3)),
                4 => "0".to_owned(),
                _ => format!("-{}", START_US - 30_000_000 + random.below(60_000_000)),
            };
            let mut member = random.pick(&totals).to_owned();
            if random.one_in(2) {
                member += &format!("x{}", random.pick(&totals));
            }
            if random.one_in(3) {
                member += &format!("~{}", random.below(100_000_000));
            }
            if random.one_in(4) {
                member += "d";
            }
            conn.cmd(format!("ZADD k {score} {member}"));
        }
        let limit = random.pick(&["0", "3", "9223372036854775807"]);
        let quantity = random.pick(&["1", "2", "9223372036854775807"]);
        let options = random.pick(&["", "BUCKETS 1", "FIXED", "COUNTDENIED", "ATMOST"]);
        let before = conn.cmd("DUMP k");
        let reply = conn.cmd(format!("RL.WINDOW k {limit} 60 {quantity} {options}"));
        if matches!(reply, Value::ServerError(_)) {
            assert!(error_line(&reply).starts_with("ERR the key's sorted set"), "{reply:?}");
            assert_eq!(conn.cmd("DUMP k"), before);
        } else {
            let answer = ints(&reply);
            assert!((0..=limit.parse().unwrap()).contains(&answer[2]), "{answer:?}");
            assert!(answer[3] >= -1 && answer[4] >= 0, "{answer:?}");
            conn.cmd(format!("RL.WINDOW_RO k {limit} 60 {quantity}"));
        }
    }
    assert!(!server.log().contains("internal error"));
}

//! RL.WINDOW with bad arguments and foreign values.

use support::*;

// ---- Arguments ----

/// What follows `RL.WINDOW k`, and how the error begins.
const BAD: &[(&str, &str)] = &[
    ("", "ERR wrong number of arguments"),
    ("5", "ERR wrong number of arguments"),
    ("x 60", "ERR limit must be an integer from 0 "),
    ("-1 60", "ERR limit must be an integer from 0 "),
    ("+1 60", "ERR limit must be an integer from 0 "),
    ("01 60", "ERR limit must be an integer from 0 "),
    ("1.0 60", "ERR limit must be an integer from 0 "),
    ("1e3 60", "ERR limit must be an integer from 0 "),
    ("0x10 60", "ERR limit must be an integer from 0 "),
    ("-0 60", "ERR limit must be an integer from 0 "),
    ("9223372036854775808 60", "ERR limit must be an integer from 0 "),
    ("99999999999999999999999999 60", "ERR limit must be an integer from 0 "),
    ("5 x", "ERR period must be a whole number of seconds, "),
    ("5 0", "ERR period must be a whole number of seconds, "),
    ("5 0ms", "ERR period must be a whole number of seconds, "),
    ("5 -1", "ERR period must be a whole number of seconds, "),
    ("5 +1", "ERR period must be a whole number of seconds, "),
    ("5 01", "ERR period must be a whole number of seconds, "),
    ("5 1.5", "ERR period must be a whole number of seconds, "),
    ("5 s", "ERR period must be a whole number of seconds, "),
    ("5 1sec", "ERR period must be a whole number of seconds, "),
    ("5 1minute", "ERR period must be a whole number of seconds, "),
    ("5 60ss", "ERR period must be a whole number of seconds, "),
    ("5 3155760001", "ERR period must be a whole number of seconds, "),
    ("5 36526d", "ERR period must be a whole number of seconds, "),
    ("5 101y", "ERR period must be a whole number of seconds, "),
    ("5 1201mo", "ERR period must be a whole number of seconds, "),
    ("5 9223372036854775808", "ERR period must be a whole number of seconds, "),
    ("5 99999999999999999999y", "ERR period must be a whole number of seconds, "),
    ("5 1m", "ERR period has the ambiguous unit m: use 1min or 1mo"),
    ("5 1M", "ERR period has the ambiguous unit m: use 1min or 1mo"),
    ("5 60 +1", "ERR quantity must be an integer from -9223372036854775808 "),
    ("5 60 01", "ERR quantity must be an integer from -9223372036854775808 "),
    ("5 60 1x", "ERR quantity must be an integer from -9223372036854775808 "),
    ("5 60 1.0", "ERR quantity must be an integer from -9223372036854775808 "),
    ("5 60 9223372036854775808", "ERR quantity must be an integer from -9223372036854775808 "),
    ("5 60 -9223372036854775809", "ERR quantity must be an integer from -9223372036854775808 "),
    ("5 60 1 1", "ERR syntax error: unknown option 1"),
    ("5 60 nonsense", "ERR syntax error: unknown option nonsense"),
    ("5 60 1 nonsense", "ERR syntax error: unknown option nonsense"),
    ("5 60 ATMOST 1", "ERR syntax error: unknown option 1"),
    ("5 60 MS 1", "ERR syntax error: unknown option 1"),
    ("5 60 LEASE 1", "ERR syntax error: unknown option LEASE"),
    ("5 60 ID x", "ERR syntax error: unknown option ID"),
    ("5 60 MS MS", "ERR syntax error: MS is given more than once"),
    ("5 60 MS ms", "ERR syntax error: MS is given more than once"),
    ("5 60 ATMOST ATMOST", "ERR syntax error: ATMOST is given more than once"),
    ("5 60 COUNTDENIED COUNTDENIED", "ERR syntax error: COUNTDENIED is given more than once"),
    ("5 60 FIXED FIXED", "ERR syntax error: FIXED is given more than once"),
    ("5 60 BUCKETS 5 BUCKETS 5", "ERR syntax error: BUCKETS is given more than once"),
    ("5 60 FIXED TZ UTC TZ UTC", "ERR syntax error: TZ is given more than once"),
    ("5 60 BUCKETS", "ERR BUCKETS needs a value: BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS 0", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS -1", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS +1", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS 65537", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS x", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS MS", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS 9223372036854775808", "ERR BUCKETS must be an integer from 1 to 65536"),
    ("5 60 BUCKETS 5 FIXED", "ERR BUCKETS and FIXED must not be used together"),
    ("5 60 FIXED BUCKETS 5", "ERR BUCKETS and FIXED must not be used together"),
    ("5 60 TZ UTC", "ERR TZ must be used with FIXED"),
    ("5 60 BUCKETS 5 TZ UTC", "ERR TZ must be used with FIXED"),
    ("5 60 FIXED TZ", "ERR TZ needs a value: TZ must be an IANA time zone "),
    ("5 60 FIXED TZ Mars/Olympus", "ERR TZ must be an IANA time zone "),
    ("5 60 FIXED UTC", "ERR syntax error: unknown option UTC"),
    ("5 7s FIXED", "ERR FIXED must have a period of 1d, 1w, 1y, "),
];

#[test]
fn a_bad_call_is_an_error_that_says_what_is_allowed_and_changes_nothing() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 5 60");
    let before = conn.cmd("DUMP k");
    for (arguments, error) in BAD {
        for command in ["RL.WINDOW", "RL.WINDOW_RO"] {
            let looks = command == "RL.WINDOW_RO";
            let unknown = looks && (arguments.contains("ATMOST") || arguments.contains("DENIED"));
            let error = if unknown { "ERR syntax error: unknown option " } else { *error };
            conn.refuses(format!("{command} k {arguments}"), error);
        }
        if server.version().is_from(7, 0) || arguments.contains(' ') {
            conn.refuses(format!("RL.WINDOW new {arguments}"), error);
        }
    }
    for options in ["ATMOST", "COUNTDENIED", "BLOCK 1"] {
        let error = conn.err(format!("RL.WINDOW_RO k 5 60 {options}"));
        assert!(error.contains("unknown option"), "{error}");
    }
    assert_eq!(conn.cmd("DUMP k"), before);
    assert_eq!(conn.int("DBSIZE"), 1);
    assert_eq!(conn.err("RL.WINDOW"), "ERR wrong number of arguments for 'rl.window' command");
}

#[test]
fn options_come_in_any_order_and_case() {
    let (_server, mut conn) = Server::held();
    for options in [
        "FIXED TZ UTC ATMOST COUNTDENIED MS",
        "ms countdenied atmost tz utc fixed",
        "2 Tz Asia/Shanghai Ms FiXeD atMost",
        "TZ +08:00 FIXED",
        "COUNTDENIED BUCKETS 3 MS",
        "0 MS buckets 3 atmost",
    ] {
        assert_eq!(conn.ints(format!("RL.WINDOW k 100 60 {options}"))[0], 0, "{options}");
    }
    assert_eq!(conn.ints("rl.window k 100 60 2 bUCKETS 7")[0], 0);
    assert_eq!(conn.ints("RL.window_ro k 100 60 2 TZ UTC FIXED ms")[0], 0);
}

#[test]
fn arguments_may_be_any_bytes() {
    let (_server, mut conn) = Server::held();
    let long = vec![b'9'; 100_000];
    let odd: [&[u8]; 9] =
        [b"", b"\0", b"1\0", b" 1", b"1 ", b"\xff\xfe", b"-", b"%s%n", long.as_slice()];
    // From limit to the last option.
    let errors = [
        "ERR limit must be an integer from 0 ",
        "ERR period must be a whole number of seconds, ",
        "ERR quantity must be an integer from ",
        "ERR syntax error: unknown option ",
        "ERR BUCKETS must be an integer from 1 ",
        "ERR syntax error: unknown option ",
        "ERR syntax error: unknown option ",
    ];
    for word in odd {
        for (at, error) in (2..).zip(errors) {
            let mut words: Vec<&[u8]> =
                vec![b"RL.WINDOW", b"k", b"5", b"60", b"1", b"BUCKETS", b"5", b"ATMOST", b"MS"];
            words[at] = word;
            conn.refuses(&words, error);
            words[0] = b"RL.WINDOW_RO";
            conn.refuses(&words, error);
        }
    }
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn no_order_of_words_and_values_ends_the_server() {
    let (server, mut conn) = Server::held();
    let words = [
        "0",
        "1",
        "5",
        "-1",
        "60",
        "1ms",
        "500ms",
        "1d",
        "1mo",
        "100y",
        "1m",
        "65536",
        "FIXED",
        "TZ",
        "UTC",
        "Europe/Berlin",
        "+05:45",
        "BUCKETS",
        "ATMOST",
        "COUNTDENIED",
        "MS",
        "x",
        "",
        "9223372036854775807",
        "9223372036854775808",
        "4096",
        "4097",
        "1y",
        "3mo",
        "1w",
        "86400",
    ];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % end as u64) as usize
    };
    let errors = [
        "ERR wrong number of arguments",
        "ERR limit must be ",
        "ERR period ",
        "ERR quantity must be ",
        "ERR syntax error: ",
        "ERR BUCKETS ",
        "ERR FIXED must have a period of ",
        "ERR TZ ",
        "ERR ATMOST must not be used with a quantity below 0",
    ];
    for _ in 0..300 {
        let calls: Vec<Vec<&str>> = (0..20)
            .map(|_| {
                let command = ["RL.WINDOW", "RL.WINDOW_RO"][below(2)];
                let mut call = vec![command, ["a", "b", "c"][below(3)]];
                call.extend((0..below(3)).map(|_| words[below(5)]));
                call.extend((0..below(7)).map(|_| words[below(words.len())]));
                call
            })
            .collect();
        for (reply, call) in conn.pipeline(&calls).iter().zip(&calls) {
            match reply {
                Value::Array(_) => assert!((5..=6).contains(&ints(reply).len()), "{call:?}"),
                other => {
                    let error = error_line(other);
                    let is_expected = errors.iter().any(|begin| error.starts_with(begin));
                    assert!(is_expected, "{call:?}: {error:?}");
                }
            }
        }
        server.clock().advance_us([1, 1_000, 1_000_000, -3_000_000, 86_400_000_000][below(5)]);
    }
    assert!(!server.log().contains("internal error"));
}

// ---- Foreign values ----

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
            format!("RL.WINDOW {key} 5 60"),
            format!("RL.WINDOW {key} 5 60 0"),
            format!("RL.WINDOW {key} 5 60 9"),
            format!("RL.WINDOW {key} 0 60 BUCKETS 3 COUNTDENIED"),
            format!("RL.WINDOW {key} 5 60 FIXED ATMOST"),
            format!("RL.WINDOW_RO {key} 5 60"),
        ] {
            assert!(conn.err(&call).starts_with("WRONGTYPE "), "{call}");
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
    let mut random = 0x0123_4567_89ab_cdef_u64;
    let mut below = |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    let totals =
        ["0", "1", "5", "9223372036854775807", "9223372036854775808", "18446744073709551615"];
    for _ in 0..1_500 {
        conn.cmd("DEL k");
        for _ in 0..1 + below(6) {
            let score = match below(8) {
                0 => "inf".to_owned(),
                1 => "-inf".to_owned(),
                2 => "9007199254740992".to_owned(),
                3 => format!("-{}", START_US as u64 + below(3)),
                4 => "0".to_owned(),
                _ => format!("-{}", START_US as u64 - 30_000_000 + below(60_000_000)),
            };
            let mut member = totals[below(6) as usize].to_owned();
            if below(2) == 0 {
                member += &format!("x{}", totals[below(6) as usize]);
            }
            if below(3) == 0 {
                member += &format!("~{}", below(100_000_000));
            }
            if below(4) == 0 {
                member += "d";
            }
            conn.cmd(format!("ZADD k {score} {member}"));
        }
        let limit = ["0", "3", "9223372036854775807"][below(3) as usize];
        let quantity = ["1", "2", "9223372036854775807"][below(3) as usize];
        let options = ["", "BUCKETS 1", "FIXED", "COUNTDENIED", "ATMOST"][below(5) as usize];
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

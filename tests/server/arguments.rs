//! The arguments of the commands: numbers, periods, options, their values, and which options may be combined.

use support::*;

/// Calls that options may follow, and those that each takes. The keys `t` and `w` are there, and must stay as they are.
const TAKERS: [(&str, &str); 10] = [
    ("RL.THROTTLE k 4 1 1", "LEAVE ATMOST FORCE BLOCK AHEAD BAN MS"),
    ("RL.THROTTLE_RO k 4 1 1", "LEAVE MS"),
    ("RL.WINDOW k 4 60", "BUCKETS FIXED FROM TZ LEAVE ATMOST FORCE COUNTDENIED BLOCK BAN MS"),
    ("RL.WINDOW_RO k 4 60", "BUCKETS FIXED FROM TZ LEAVE MS"),
    ("RL.ACQUIRE k 4 60", "BUCKETS FIXED FROM TZ LEAVE ATMOST LEASE COUNTLAPSED ID BLOCK MS"),
    ("RL.ACQUIRE_RO k 4 60", "BUCKETS FIXED FROM TZ LEAVE MS"),
    ("RL.ALL 1 k THROTTLE 4 1 1", "LEAVE BAN CHECK SHADOW"),
    ("RL.ALL 1 k WINDOW 4 60", "BUCKETS FIXED FROM TZ LEAVE COUNTDENIED BAN CHECK SHADOW"),
    ("RL.ALL 1 k ACQUIRE 4 60", "BUCKETS FIXED FROM TZ LEAVE LEASE COUNTLAPSED ID CHECK SHADOW"),
    ("RL.RENEW w a", "LEASE"),
];

/// Options that exclude each other, in the order of the error.
const EXCLUDED: &str = "BUCKETS FIXED, LEAVE FORCE, ATMOST FORCE, BLOCK FORCE, COUNTDENIED FORCE, AHEAD FORCE, \
    LEAVE AHEAD, ATMOST AHEAD, BLOCK AHEAD, ATMOST BAN, FORCE BAN, BLOCK BAN, AHEAD BAN, ID CHECK, LEASE CHECK, \
    COUNTLAPSED CHECK, COUNTDENIED CHECK, BAN CHECK, SHADOW CHECK, COUNTDENIED SHADOW";

/// Words that are not numbers.
const NO_NUMBERS: &str =
    "x many + - -0 +1 01 1.0 1e3 0x10 1x 9223372036854775808 99999999999999999999";
/// Words that are not lengths of time.
const NO_LENGTHS: &str =
    "x s ms -1 +1 01 1.5 1.5s -5s +5s 05s 5sec 5ss 1us 9223372036854775808 99999999999999999999s";
/// What is neither.
const ODD: [&[u8]; 9] =
    [b"", b" ", b" 1", b"1 ", b"1\0", b"\xff\xfe", b"1\xe9", b"\xd9\xa1", &[b'9'; 100_000]];

/// An option with a value, if it has one.
fn spelled(option: &str) -> String {
    let value = match option {
        "LEAVE" | "BUCKETS" | "COUNT" => " 1",
        "BLOCK" | "LEASE" | "AHEAD" | "BAN" => " 5s",
        "FROM" => " 2026-11-02",
        "TZ" => " UTC",
        "ID" => " x",
        _ => "",
    };
    format!("{option}{value}")
}

/// What the value of an option must be.
fn range(option: &str) -> String {
    let least = if option == "BLOCK" { "0" } else { "1ms" };
    match option {
        "LEAVE" => "LEAVE must be an integer from 0 to 9223372036854775807".into(),
        "BUCKETS" => "BUCKETS must be an integer from 1 to 65536".into(),
        "FROM" => "FROM must be first, HH:MM, ".into(),
        "TZ" => "TZ must be an IANA time zone ".into(),
        "ID" => "an id must have 1 to 64 bytes".into(),
        _ => format!(
            "{option} must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, \
             from {least} to a year (31557600000ms)"
        ),
    }
}

fn needs_fixed(option: &str) -> bool {
    option == "FROM" || option == "TZ"
}

/// A server with a held clock and a bucket `t` and a window `w`, and what the two keys hold.
fn with_keys() -> (Server, Conn, Vec<Value>) {
    let (server, mut conn) = Server::held();
    conn.pipeline(["RL.THROTTLE t 15 30 60", "RL.WINDOW w 5 60", "RL.ACQUIRE w 9 60 1 ID a"]);
    let before = held_by_keys(&mut conn);
    (server, conn, before)
}

/// What the keys hold; panics if there are others.
#[track_caller]
fn held_by_keys(conn: &mut Conn) -> Vec<Value> {
    assert_eq!(conn.int("DBSIZE"), 2);
    conn.pipeline(["DUMP t", "DUMP w", "PTTL t", "PTTL w"])
}

#[track_caller]
fn accepts(conn: &mut Conn, call: &str) {
    let reply = conn.cmd(call);
    assert!(!matches!(reply, Value::ServerError(_)), "{call}: {reply:?}");
    conn.cmd("DEL k");
}

// ---- Numbers and periods ----

#[test]
fn numbers_and_periods_have_ranges_and_no_other_spelling() {
    let (_server, mut conn, before) = with_keys();
    let limit = "limit must be an integer from 0 to 9223372036854775807";
    let period = "period must be a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, \
                  from 1ms to 100y";
    let semaphore = period.replace("be a whole", "be 0 for a semaphore, a whole");
    let signed = "quantity must be an integer from -9223372036854775808 to 9223372036854775807";
    let quantity = "quantity must be an integer from 0 to 9223372036854775807";
    let burst = "max_burst must be an integer from 0 to 9223372036854775806";
    let count = "count must be an integer from 1 to 9223372036854775807";
    let plain = "period must be a whole number of seconds, or one with a unit of ms, s, min, h, d or w, from 1ms \
                 to 36525d";
    for (call, names, error, more) in [
        ("t # 30 60", "THROTTLE THROTTLE_RO", burst, "-1 9223372036854775807"),
        ("t 15 # 60", "THROTTLE THROTTLE_RO", count, "0 -1"),
        ("t 15 30 #", "THROTTLE THROTTLE_RO", plain, "0 0ms 1mo 1y 36526d 3155760001"),
        ("t 15 30 60 # MS", "THROTTLE THROTTLE_RO", signed, "-9223372036854775809"),
        ("w # 60", "WINDOW WINDOW_RO ACQUIRE ACQUIRE_RO", limit, "-1"),
        ("w 5 #", "WINDOW WINDOW_RO", period, "0 0ms 101y 1201mo 36526d 3155760001"),
        ("w 5 #", "ACQUIRE ACQUIRE_RO", &semaphore, "00 0s 101y 1201mo 36526d 3155760001"),
        ("w 5 60 # MS", "WINDOW WINDOW_RO", signed, "-9223372036854775809"),
        ("w 5 60 # MS", "ACQUIRE", quantity, "-1"),
        ("w a #", "APPLY", quantity, "-1"),
    ] {
        let wrong = if error.starts_with("period") { NO_LENGTHS } else { NO_NUMBERS };
        let wrong = wrong.split(' ').chain(more.split(' ')).map(str::as_bytes).chain(ODD);
        // A word of letters in the place of a quantity is an option.
        let wrong: Vec<_> = wrong
            .filter(|word| {
                !call.ends_with(" # MS") || !word.first().is_some_and(u8::is_ascii_alphabetic)
            })
            .collect();
        for name in names.split(' ') {
            for word in &wrong {
                let mut words = format!("RL.{name} {call}").words();
                let place = words.iter().position(|word| word == b"#").unwrap();
                words[place] = word.to_vec();
                conn.refuses(&words, &format!("ERR {error}"));
            }
            if error.starts_with("period") {
                for period in ["1m", "1M"] {
                    let call = format!("RL.{name} {}", call.replace('#', period));
                    conn.refuses(call, "ERR period has the ambiguous unit m: use 1min or 1mo");
                }
            }
        }
    }
    for rate in [
        "1 1 3155760000",
        "9223372036854775806 1 1ms",
        "9223372036854775806 9223372036854775806 36525d",
    ] {
        conn.refuses(
            format!("RL.THROTTLE t {rate}"),
            "ERR (max_burst + 1) * period / count must be ",
        );
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

#[test]
fn too_few_and_too_many_arguments_are_errors() {
    let (_server, mut conn, before) = with_keys();
    let arity = "ERR wrong number of arguments for '";
    for call in [
        "RL.THROTTLE t 15 30", "RL.THROTTLE_RO t 15 30", "RL.WINDOW w 5", "RL.WINDOW_RO w 5",
        "RL.ACQUIRE w 9", "RL.ACQUIRE_RO w 9", "RL.APPLY w", "RL.RELEASE w", "RL.RENEW w",
        "RL.HELD", "RL.INFO",
    ] {
        let words: Vec<_> = call.split(' ').collect();
        (1..=words.len()).for_each(|number| conn.refuses(&words[..number], arity));
    }
    for call in ["RL.APPLY w a 1 1", "RL.HELD w a", "RL.HELD w MS", "RL.INFO w x", "RL.POLICIES x"]
    {
        conn.refuses(call, arity);
    }
    for call in
        ["RL.WINDOW w 5 60 1", "RL.ACQUIRE w 5 60 MS", "RL.THROTTLE t 9 1 1 ATMOST", "RL.RENEW w a"]
    {
        conn.refuses(format!("{call} 1"), "ERR syntax error: unknown option 1");
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

// ---- Options ----

#[test]
fn an_option_is_taken_once_in_any_case_by_the_commands_that_know_it() {
    let (_server, mut conn, before) = with_keys();
    let mut all: Vec<_> = TAKERS.iter().flat_map(|(_, options)| options.split(' ')).collect();
    all.extend(["COUNT", "RESET", "NOSUCH", "M", "MSS"]);
    for (call, known) in TAKERS {
        for option in &all {
            let spelled = spelled(option);
            if !known.split(' ').any(|one| one == *option) {
                // As the last word MS is RL.ALL's own.
                let in_all = call.starts_with("RL.ALL ");
                let error = match *option {
                    "MS" if in_all => continue,
                    "ATMOST" | "FORCE" | "BLOCK" | "AHEAD" if in_all => format!(
                        "ERR {option} must not be used in RL.ALL, which takes all or nothing and does not wait"
                    ),
                    _ => format!("ERR syntax error: unknown option {option}"),
                };
                conn.refuses(format!("{call} {spelled}"), &error);
                continue;
            }
            let fixed = if needs_fixed(option) { "FIXED" } else { "" };
            if !call.starts_with("RL.RENEW ") {
                accepts(&mut conn, &format!("{call} {spelled} {fixed}"));
                accepts(&mut conn, &format!("{call} {fixed} {spelled}").to_lowercase());
            }
            if needs_fixed(option) {
                let error = format!("ERR {option} must be used with FIXED");
                conn.refuses(format!("{call} {spelled}"), &error);
                conn.refuses(format!("{call} {spelled} BUCKETS 5"), &error);
            }
            let error = format!("ERR syntax error: {option} is given more than once");
            conn.refuses(format!("{call} {spelled} {fixed} {spelled}"), &error);
            if spelled.contains(' ') {
                let error = format!("ERR {option} needs a value: {}", range(option));
                conn.refuses(format!("{call} {fixed} {option}"), &error);
            }
        }
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

#[test]
fn options_are_combined_unless_one_excludes_the_other() {
    let (_server, mut conn, before) = with_keys();
    for (call, known) in TAKERS {
        for (one, other) in
            known.split(' ').flat_map(|one| known.split(' ').map(move |other| (one, other)))
        {
            let pair = [one, other];
            let fixed = if pair.into_iter().any(needs_fixed) { "FIXED" } else { "" };
            if one == other
                || fixed == "FIXED" && (pair.contains(&"FIXED") || pair.contains(&"BUCKETS"))
            {
                continue;
            }
            let call = format!("{call} {} {} {fixed}", spelled(one), spelled(other));
            let excluded = EXCLUDED.split(", ").filter_map(|pair| pair.split_once(' '));
            let mut excluded = excluded.filter(|(a, b)| pair == [*a, *b] || pair == [*b, *a]);
            match excluded.next() {
                Some((a, b)) => {
                    conn.refuses(call, &format!("ERR {a} and {b} must not be used together"))
                }
                None => accepts(&mut conn, &call),
            }
        }
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

#[test]
fn some_options_need_a_quantity_that_takes() {
    let (_server, mut conn, before) = with_keys();
    for (call, known) in TAKERS.into_iter().filter(|(call, _)| !call.starts_with("RL.RENEW ")) {
        let is_signed = call.contains("RL.THROTTLE") || call.contains("RL.WINDOW");
        for option in known.split(' ').filter(|option| !needs_fixed(option)) {
            for quantity in if is_signed { -1..=1 } else { 0..=1 } {
                let least = match option {
                    "BAN" => 1,
                    "LEAVE" | "ATMOST" | "FORCE" | "AHEAD" => 0,
                    _ => -1,
                };
                let call = format!("{call} {quantity} {}", spelled(option));
                if quantity < least {
                    let error =
                        format!("ERR {option} must not be used with a quantity below {least}");
                    conn.refuses(call, &error);
                } else {
                    accepts(&mut conn, &call);
                }
            }
        }
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

#[test]
fn options_of_a_window_are_refused_with_period_0() {
    let (_server, mut conn, before) = with_keys();
    for (call, known) in TAKERS.into_iter().filter(|(call, _)| call.contains("ACQUIRE")) {
        let call = call.replace("4 60", "4 0");
        for option in known.split(' ').filter(|option| !needs_fixed(option)) {
            let refused = match option {
                "BUCKETS" | "FIXED" => "BUCKETS and FIXED",
                "COUNTLAPSED" => option,
                _ => "",
            };
            let call = format!("{call} {}", spelled(option));
            if refused.is_empty() {
                accepts(&mut conn, &call);
            } else {
                let error =
                    format!("ERR {refused} must not be used with period 0, which has no window");
                conn.refuses(call, &error);
            }
        }
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

#[test]
fn the_value_of_an_option_has_a_range_and_no_other_spelling() {
    let (_server, mut conn, before) = with_keys();
    let long = "A".repeat(100_000);
    for (call, known) in TAKERS {
        for option in known.split(' ').filter(|option| spelled(option).contains(' ')) {
            let wrong = match option {
                "LEAVE" => format!("{NO_NUMBERS} -1 MS 1s"),
                "BUCKETS" => format!("{NO_NUMBERS} -1 MS 1s 0 65537"),
                "FROM" => "24:00 9:00 noon FIXED MS firs 0 32 1969-12-31 2256-01-01".into(),
                "TZ" => "Mars/Olympus Europe Europe/ MS +8 +08 +0800 +08:0 +24:00 +08:60 08:00 ++8:00 +0a:00 \
                         ../../etc/passwd UTC+1 EST5EDT,M3.2.0,M11.1.0 Asia\\Shanghai"
                    .into(),
                "ID" => "x".repeat(65),
                _ => format!("{NO_LENGTHS} 1mo 1y 366d 53w 31557600001 MS"),
            };
            let least = if ["LEASE", "AHEAD", "BAN"].contains(&option) { "0 0s" } else { "" };
            let odd: &[&[u8]] = if option == "ID" { &[b"", &[0; 65]] } else { &ODD };
            let wrong = wrong.split(' ').chain(least.split_whitespace()).chain([&*long]);
            let error = format!("ERR {}", range(option));
            for value in wrong.map(str::as_bytes).chain(odd.iter().copied()) {
                let mut words = call.words();
                words.extend(needs_fixed(option).then(|| b"FIXED".to_vec()));
                words.extend([option.into(), value.to_vec()]);
                conn.refuses(&words, &error);
            }
            if range(option).contains("whole milliseconds") {
                for value in ["1m", "20M", "0m"] {
                    let error = format!("ERR {option} has the ambiguous unit m: use min");
                    conn.refuses(format!("{call} {option} {value}"), &error);
                }
            }
        }
    }
    for (call, error) in [
        ("RL.WINDOW k 4 1y FIXED FROM 02-30", "ERR FROM must be a day that exists: "),
        (
            "RL.WINDOW k 4 1d FIXED FROM first TZ UTC",
            "ERR TZ and FROM first must not be used together",
        ),
        (
            "RL.WINDOW k 4 1d TZ UTC FROM FIRST FIXED",
            "ERR TZ and FROM first must not be used together",
        ),
        ("RL.WINDOW k 4 7s FIXED", "ERR FIXED must have a period of 1d, 1w, 1y, "),
        ("RL.ACQUIRE k 4 500ms FIXED", "ERR FIXED must have a period of 1d, 1w, 1y, "),
        ("RL.WINDOW k 4 60 FIXED UTC", "ERR syntax error: unknown option UTC"),
    ] {
        conn.refuses(call, error);
    }
    assert_eq!(held_by_keys(&mut conn), before);
}

#[test]
fn an_unknown_option_of_any_bytes_is_one_line_and_short() {
    let (_server, mut conn) = Server::held();
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

// ---- Lengths of waits and leases ----

/// Lengths of time as options take them, in milliseconds.
const LENGTHS: [(&str, i64); 14] = [
    ("1", 1),
    ("5000", 5_000),
    ("31557600000", 31_557_600_000),
    ("1ms", 1),
    ("250MS", 250),
    ("5s", 5_000),
    ("5S", 5_000),
    ("2min", 120_000),
    ("2Min", 120_000),
    ("3h", 10_800_000),
    ("1d", 86_400_000),
    ("365D", 31_536_000_000),
    ("1w", 604_800_000),
    ("52w", 31_449_600_000),
];

#[test]
fn a_lease_may_carry_a_unit() {
    let (server, mut conn) = Server::held();
    for (length, ms) in LENGTHS {
        server.clock().set_us(START_US);
        conn.cmd("DEL k");
        let had = conn.acquire(format!("RL.ACQUIRE k 1 0 1 ID x LEASE {length} MS"));
        assert_eq!(had.numbers, [0, 1, 0, -1, ms], "{length}");
        // One millisecond before its end it is held still.
        server.clock().advance_ms(ms - 1);
        assert_eq!(conn.held("k")[0].ms_left, 1, "{length}");
        assert_eq!(conn.int(format!("RL.RENEW k x LEASE {length}")), 1, "{length}");
        assert_eq!(conn.held("k")[0].ms_left, ms, "{length}");
        server.clock().advance_ms(ms);
        assert_eq!(conn.held("k"), [], "{length}");
    }
}

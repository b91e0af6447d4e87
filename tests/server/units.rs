//! Lengths of waits and leases with a unit, and errors that name what was wrong.

use std::time::Duration;

use support::*;

/// Lengths that BLOCK and LEASE take, in milliseconds.
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

/// Lengths that neither takes.
const BAD: [&str; 24] = [
    "",
    "x",
    "-1",
    "+1",
    "01",
    "1.5",
    "1.5s",
    "-5s",
    "+5s",
    "05s",
    "s",
    "ms",
    "5sec",
    "5ss",
    "5 s",
    "5s ",
    "1m",
    "1M",
    "1mo",
    "1y",
    "366d",
    "53w",
    "31557600001",
    "99999999999999999999s",
];

#[test]
fn a_lease_may_carry_a_unit() {
    let (server, mut conn) = Server::held();
    for (length, ms) in LENGTHS {
        conn.cmd("DEL k");
        let had = conn.acquire(format!("RL.ACQUIRE k 1 0 1 ID x LEASE {length} MS"));
        assert_eq!(had.numbers, [0, 1, 0, -1, ms], "{length}");
        assert_eq!(conn.held("k")[0].ms_left, ms, "{length}");
        // One millisecond before its end it is held still.
        server.clock().advance_ms(ms - 1);
        assert_eq!(conn.held_ids("k"), ["x"], "{length}");
        server.clock().advance_ms(1);
        assert!(conn.held("k").is_empty(), "{length}");
        server.clock().set_us(START_US);
    }
}

#[test]
fn the_lease_of_a_renewal_may_carry_a_unit() {
    let (_server, mut conn) = Server::held();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID x LEASE 10000");
    for (length, ms) in LENGTHS.into_iter().rev() {
        assert_eq!(conn.int(format!("RL.RENEW k x LEASE {length}")), 1, "{length}");
        assert_eq!(conn.held("k")[0].ms_left, ms, "{length}");
    }
}

#[test]
fn a_wait_may_carry_a_unit() {
    let (server, mut conn) = Server::held();
    let nothing = [("0", 0), ("0s", 0), ("0ms", 0), ("0h", 0)];
    for (length, _) in LENGTHS.into_iter().chain(nothing) {
        for call in ["RL.THROTTLE t 9 1 1", "RL.WINDOW w 9 60", "RL.ACQUIRE a 9 0"] {
            let reply = conn.cmd(format!("{call} 1 BLOCK {length} MS"));
            assert_eq!(limited(&reply), 0, "{call} 1 BLOCK {length}");
            conn.cmd("FLUSHALL");
        }
    }
    server.expect_no_waiting_calls();
}

#[test]
fn a_wait_with_a_unit_lasts_as_long_as_it_says() {
    let server = Server::start();
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID x LEASE 600000");
    unless_stalled(Duration::from_millis(300), || {
        let mut waiter = server.wait_in_line("RL.ACQUIRE k 1 0 1 BLOCK 1s");
        let (took, reply) = time_to_reply(&mut waiter);
        assert_eq!(acquired(&reply).limited(), 2);
        let bounds = Duration::from_millis(900)..Duration::from_millis(1500);
        assert!(bounds.contains(&took), "{took:?}");
    });
}

#[test]
fn a_length_that_is_none_is_an_error_that_names_the_option_and_changes_nothing() {
    let (_server, mut conn) = Server::held();
    conn.cmd("RL.ACQUIRE held 5 0 1 ID x");
    let before = conn.cmd("DUMP held");
    let [block, lease] = [("BLOCK", "0"), ("LEASE", "1ms")].map(|(option, least)| {
        format!(
            "ERR {option} must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, \
             from {least} to a year (31557600000ms)"
        )
    });
    for length in BAD {
        for (wrong, words) in [
            (&block, vec!["RL.THROTTLE", "k", "9", "1", "1", "1", "BLOCK", length]),
            (&block, vec!["RL.WINDOW", "k", "9", "60", "1", "BLOCK", length]),
            (&block, vec!["RL.ACQUIRE", "held", "9", "0", "1", "BLOCK", length]),
            (&lease, vec!["RL.ACQUIRE", "held", "9", "0", "1", "LEASE", length]),
            (&lease, vec!["RL.RENEW", "held", "x", "LEASE", length]),
        ] {
            assert_eq!(conn.err(&words), *wrong, "{words:?}");
        }
    }
    for length in ["0", "0s"] {
        for call in ["RL.ACQUIRE held 9 0 1 LEASE", "RL.RENEW held x LEASE"] {
            assert_eq!(conn.err(format!("{call} {length}")), lease, "{call} {length}");
        }
    }
    assert_eq!(conn.cmd("DUMP held"), before);
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn the_error_of_a_length_lists_the_units() {
    let (_server, mut conn) = Server::held();
    for call in ["RL.ACQUIRE k 9 0 1 BLOCK 1mo", "RL.ACQUIRE k 9 0 1 LEASE 1y"] {
        let error = conn.err(call);
        for word in ["ms", "s", "min", "h", "d", "w"] {
            let is_named = error.split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
            assert!(is_named, "{call}: {error} lacks {word}");
        }
    }
}

/// Calls that stop short of an option's value, and the option.
const WITHOUT_VALUE: [(&str, &str); 12] = [
    ("RL.THROTTLE k 9 1 1 1 BLOCK", "BLOCK"),
    ("RL.THROTTLE k 9 1 1 block", "BLOCK"),
    ("RL.WINDOW k 9 60 BLOCK", "BLOCK"),
    ("RL.WINDOW k 9 60 1 MS BUCKETS", "BUCKETS"),
    ("RL.WINDOW k 9 60 FIXED TZ", "TZ"),
    ("RL.WINDOW_RO k 9 60 buckets", "BUCKETS"),
    ("RL.ACQUIRE k 9 60 LEASE", "LEASE"),
    ("RL.ACQUIRE k 9 60 ID", "ID"),
    ("RL.ACQUIRE k 9 60 1 ID x BLOCK", "BLOCK"),
    ("RL.ACQUIRE k 9 60 FIXED tz", "TZ"),
    ("RL.ACQUIRE_RO k 9 60 BUCKETS", "BUCKETS"),
    ("RL.RENEW k x LEASE", "LEASE"),
];

#[test]
fn an_option_without_its_value_is_named() {
    let (_server, mut conn) = Server::held();
    for (call, option) in WITHOUT_VALUE {
        conn.refuses(call, &format!("ERR {option} needs a value: "));
    }
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn an_option_that_is_unknown_or_given_twice_is_named() {
    let (_server, mut conn) = Server::held();
    for (call, error) in [
        ("RL.THROTTLE k 9 1 1 FOO", "unknown option FOO"),
        ("RL.THROTTLE k 9 1 1 1 BUCKETS 3", "unknown option BUCKETS"),
        ("RL.THROTTLE_RO k 9 1 1 ATMOST", "unknown option ATMOST"),
        ("RL.WINDOW k 9 60 MS LEASE 5", "unknown option LEASE"),
        ("RL.WINDOW_RO k 9 60 COUNTDENIED", "unknown option COUNTDENIED"),
        ("RL.ACQUIRE k 9 60 1 COUNTDENIED", "unknown option COUNTDENIED"),
        ("RL.ACQUIRE_RO k 9 60 1 ATMOST", "unknown option ATMOST"),
        ("RL.WINDOW k 9 60 1 COUNTLAPSED", "unknown option COUNTLAPSED"),
        ("RL.ACQUIRE k 9 60 1 1", "unknown option 1"),
        ("RL.RENEW k x BLOCK 5", "unknown option BLOCK"),
        ("RL.THROTTLE k 9 1 1 MS ms", "MS is given more than once"),
        ("RL.WINDOW k 9 60 BUCKETS 5 BUCKETS 5", "BUCKETS is given more than once"),
        ("RL.ACQUIRE k 9 60 ID x ID y", "ID is given more than once"),
    ] {
        let reply = conn.err(call);
        assert!(
            reply.eq_ignore_ascii_case(&format!("ERR syntax error: {error}")),
            "{call}: {reply}"
        );
    }
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn an_unknown_option_of_any_bytes_is_one_line_and_short() {
    let (_server, mut conn) = Server::held();
    let long = vec![b'A'; 100_000];
    let odd: [&[u8]; 7] =
        [b"", b"\0", b"a\r\nb", b"+OK\r\n", b"\xff\xfe", "größe".as_bytes(), long.as_slice()];
    for option in odd {
        for words in [
            vec![&b"RL.THROTTLE"[..], b"k", b"9", b"1", b"1", b"1", option],
            vec![&b"RL.WINDOW"[..], b"k", b"9", b"60", b"1", option],
            vec![&b"RL.ACQUIRE"[..], b"k", b"9", b"0", b"1", option],
            vec![&b"RL.RENEW"[..], b"k", b"x", option, b"5"],
        ] {
            let error = conn.err(&words);
            assert!(error.starts_with("ERR syntax error: unknown option "), "{error}");
            assert!(error.len() < 300, "{} bytes of error", error.len());
            assert!(!error.contains(['\r', '\n', '\0']), "{error:?}");
            // The reply was one reply.
            assert_eq!(conn.text("PING"), "PONG");
        }
    }
}

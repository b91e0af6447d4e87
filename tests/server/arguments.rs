//! Wrong arguments on a server. crates/commands/src/arguments/tests.rs has the ranges of all arguments and options, and the
//! options that may be combined.

use support::*;

#[test]
fn wrong_arguments_are_errors_that_change_nothing() {
    let (_server, mut conn) = Server::with_held_clock();
    conn.pipeline(["RL.THROTTLE t 15 30 60", "RL.WINDOW w 5 60", "RL.ACQUIRE w 9 60 1 ID a"]);
    let held = |conn: &mut Conn| conn.pipeline(["DUMP t", "DUMP w", "PTTL t", "PTTL w", "DBSIZE"]);
    let before = held(&mut conn);
    for (call, error) in [
        ("RL.THROTTLE t x 30 60", "ERR max_burst must be an integer from 0 to 9223372036854775806"),
        ("RL.THROTTLE_RO t 15 30 1mo", "ERR period must be a whole number of seconds, or "),
        ("RL.THROTTLE t 1 1 3155760000", "ERR (max_burst + 1) * period / count must be "),
        ("RL.WINDOW w 5 60 1 TZ UTC", "ERR TZ must be used with FIXED"),
        ("RL.WINDOW_RO w 5 60 1 FORCE", "ERR syntax error: unknown option FORCE"),
        ("RL.ACQUIRE w 5 60 -1", "ERR quantity must be an integer from 0 to 9223372036854775807"),
        ("RL.ACQUIRE_RO w 5 1m", "ERR period has the ambiguous unit m: use 1min or 1mo"),
        (
            "RL.ALL 2 t w THROTTLE 15 30 60 WINDOW 5 60 AHEAD 1",
            "ERR AHEAD must not be used in RL.ALL",
        ),
        ("RL.APPLY w a -1", "ERR quantity must be an integer from 0 to 9223372036854775807"),
        ("RL.RENEW w a LEASE 0", "ERR LEASE must be whole milliseconds, or "),
    ] {
        conn.refuses(call, error);
    }
    let long = "x".repeat(65);
    conn.refuses(["RL.RELEASE", "w", "a", &long], "ERR an id must have 1 to 64 bytes");
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
    assert_eq!(held(&mut conn), before);
}

#[test]
fn an_unknown_option_of_any_bytes_is_one_line_and_short() {
    let (_server, mut conn) = Server::with_held_clock();
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

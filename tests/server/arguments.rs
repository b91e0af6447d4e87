//! Wrong arguments on a server. crates/commands/src/arguments/tests.rs has the ranges of all arguments and options, and the
//! options that may be combined.

use support::*;

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

//! What is an error, in which order errors come, and what they name.

use support::*;

const NOT_OURS: &str =
    "ERR the key's sorted set has an entry that RL.WINDOW or RL.ACQUIRE did not write";

#[test]
fn with_several_limits_errors_in_arguments_come_before_errors_in_stored_values() {
    let (_server, mut conn) = Server::connect();
    conn.cmd("SET text x");
    conn.cmd("ZADD foreign 1 x");
    conn.cmd("RL.ACQUIRE held 5 0 1 ID a");
    for (clause, error) in [
        ("WINDOW x 60", "ERR limit must be an integer from 0 to 9223372036854775807"),
        ("WINDOW 5 60 NONSENSE", "ERR syntax error: unknown option NONSENSE"),
        ("WINDOW @none", "NOPOLICY no policy has the name none"),
        (
            "WINDOW 5 60 BLOCK 1s",
            "ERR BLOCK must not be used in RL.ALL, which takes all or nothing and does not wait",
        ),
        (
            "WINDOW 5 60 1 force",
            "ERR FORCE must not be used in RL.ALL, which takes all or nothing and does not wait",
        ),
        ("ACQUIRE 5 60 LEASE 5m", "ERR LEASE has the ambiguous unit m: use min"),
        ("WINDOW 5 60 BAN 10M", "ERR BAN has the ambiguous unit m: use min"),
        ("THROTTLE 5 1 1m", "ERR period has the ambiguous unit m: use 1min or 1mo"),
        ("WINDOW 5 60 WINDOW 5 60", "ERR the number of clauses must equal the number of keys"),
        ("", "ERR the number of clauses must equal the number of keys"),
    ] {
        for (key, first) in [
            ("text", "WINDOW 5 60"),
            ("foreign", "WINDOW 5 60"),
            ("foreign", "THROTTLE 1 1 1"),
            ("held", "ACQUIRE 5 0 1 ID a"),
        ] {
            for command in ["RL.ALL", "RL.ALL_RO"] {
                let call = format!("{command} 2 {key} other {first} {clause}");
                assert_eq!(conn.err(call.as_str()), error, "{call}");
            }
        }
    }
    // Of arguments that are wrong the first counts, and so of keys.
    let error = conn.err("RL.ALL 2 a b WINDOW 5 60 LEAVE -1 WINDOW x 60");
    assert_eq!(error, "ERR LEAVE must be an integer from 0 to 9223372036854775807");
    conn.refuses("RL.ALL 2 text foreign WINDOW 5 60 WINDOW 5 60", "WRONGTYPE ");
    assert_eq!(conn.err("RL.ALL 2 foreign text WINDOW 5 60 WINDOW 5 60"), NOT_OURS);
    conn.refuses("RL.ALL 2 held text ACQUIRE 5 0 1 ID a WINDOW 5 60", "DUPLICATE ");
}

#[test]
fn a_take_past_2286_is_an_error_and_writes_nothing() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2250-01-01T00:00:00"));
    // One in ten years, ten at once.
    let rate = "9 1 3652d";
    assert_eq!(conn.ints(format!("RL.THROTTLE k {rate} 3"))[..3], [0, 10, 7]);
    let before = conn.text("GET k");
    let error = "ERR a take must not leave a debt of more than 100 years of 365.25 days, nor a time past the year 2286";
    for options in ["1", "5 ATMOST", "1 FORCE", "1 AHEAD 5", "1 BLOCK 100"] {
        assert_eq!(conn.err(format!("RL.THROTTLE k {rate} {options}")), error, "{options}");
        assert_eq!(conn.text("GET k"), before);
    }
    assert_eq!(conn.err(format!("RL.THROTTLE_RO k {rate}")), error);
    assert_eq!(conn.err(format!("RL.ALL 2 k other THROTTLE {rate} WINDOW 5 60")), error);
    assert_eq!(conn.int("EXISTS other"), 0);
    assert_eq!(conn.ints(format!("RL.THROTTLE k {rate} 0"))[..3], [0, 10, 7]);
    assert_eq!(conn.ints(format!("RL.THROTTLE k {rate} -1"))[..3], [0, 10, 8]);
}

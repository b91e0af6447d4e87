//! Clocks at both ends of what the module knows.

use support::*;

/// Every command, on the key of its kind.
const CALLS: [&str; 13] = [
    "RL.THROTTLE t 4 1 60", "RL.THROTTLE t 4 1 60 0", "RL.THROTTLE t 4 1 60 -1",
    "RL.THROTTLE_RO t 4 1 60", "RL.WINDOW w 5 60", "RL.WINDOW w 5 1d FIXED", "RL.WINDOW_RO w 5 60",
    "RL.ACQUIRE a 5 60", "RL.ACQUIRE_RO a 5 60", "RL.HELD a", "RL.RENEW a x", "RL.APPLY a x",
    "RL.RELEASE a x",
];

#[test]
fn a_clock_beyond_2255_is_an_error_that_says_so_and_changes_nothing() {
    let (server, mut conn) = Server::held();
    server.clock().set_us(unix_us("2255-06-01T00:00:00"));
    conn.pipeline(["RL.THROTTLE t 4 1 60", "RL.WINDOW w 5 60", "RL.ACQUIRE a 5 60 1 ID x"]);
    for key in ["t", "w", "a"] {
        // Else the server deletes it at the new time.
        assert_eq!(conn.int(format!("PERSIST {key}")), 1);
    }
    let dumps = |conn: &mut Conn| ["DUMP t", "DUMP w", "DUMP a"].map(|line| conn.cmd(line));
    let before = dumps(&mut conn);
    for now in ["2256-01-01T00:00:00", "2300-01-01T00:00:00", "9999-01-01T00:00:00"] {
        server.clock().set_us(unix_us(now));
        for call in CALLS {
            conn.refuses(call, "ERR the server's clock must be between 1970 and 2255");
        }
    }
    assert_eq!((dumps(&mut conn), conn.int("DBSIZE")), (before, 3));
    server.clock().set_us(unix_us("2255-06-01T00:00:01"));
    for call in CALLS {
        assert!(!matches!(conn.cmd(call), Value::ServerError(_)), "{call}");
    }
}

#[test]
fn every_command_works_at_both_ends_of_the_clock() {
    for now in ["1970-01-02T00:00:00", "1971-06-01T00:00:00", "2255-06-01T00:00:00"] {
        let (server, mut conn) = Server::held();
        server.clock().set_us(unix_us(now));
        conn.pipeline(["RL.THROTTLE t 4 1 60", "RL.WINDOW w 5 60", "RL.ACQUIRE a 5 60 1 ID x"]);
        for call in CALLS {
            let reply = conn.cmd(call);
            assert!(!matches!(reply, Value::ServerError(_)), "{now}: {call}: {reply:?}");
        }
        conn.cmd("FLUSHALL");
        for _ in 0..5 {
            assert_eq!(conn.ints("RL.WINDOW w 5 60")[0], 0, "{now}");
        }
        assert_eq!(conn.ints("RL.WINDOW w 5 60 1 MS")[..4], [1, 5, 0, 60_000], "{now}");
        server.clock().advance_ms(60_000);
        assert_eq!(conn.ints("RL.WINDOW w 5 60")[..3], [0, 5, 4], "{now}");
    }
}

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
fn every_command_works_at_both_ends_of_the_clock_and_none_beyond() {
    let (server, mut conn) = Server::with_held_clock();
    for now in ["1970-01-02T00:00:00", "1971-06-01T00:00:00", "2255-06-01T00:00:00"] {
        server.clock().set_us(unix_us(now));
        conn.cmd("FLUSHALL");
        conn.cmd("RL.ACQUIRE a 5 60 1 ID x");
        for call in CALLS {
            let reply = conn.cmd(call);
            assert!(!matches!(reply, Value::ServerError(_)), "{now}: {call}: {reply:?}");
        }
        assert_eq!(conn.ints("RL.WINDOW full 1 60")[0], 0, "{now}");
        assert_eq!(conn.ints("RL.WINDOW full 1 60 1 MS")[..4], [1, 1, 0, 60_000], "{now}");
        server.clock().advance_ms(60_000);
        assert_eq!(conn.ints("RL.WINDOW full 1 60")[0], 0, "{now}");
    }
    // Without a TTL, or the server deletes the keys at the new time.
    conn.pipeline(["RL.THROTTLE t 4 1 60", "PERSIST t", "PERSIST w", "PERSIST a"]);
    let dumps = |conn: &mut Conn| ["DUMP t", "DUMP w", "DUMP a"].map(|line| conn.cmd(line));
    let before = dumps(&mut conn);
    for now in ["2256-01-01T00:00:00", "9999-01-01T00:00:00"] {
        server.clock().set_us(unix_us(now));
        for call in CALLS {
            conn.refuses(call, "ERR the server's clock must be between 1970 and 2255");
        }
    }
    assert_eq!(dumps(&mut conn), before);
}

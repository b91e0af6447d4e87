//! Calls CL.THROTTLE with the crate redis-cell-rs, which was written for redis-cell: redis-cell-client PORT_WITH_HELD_CLOCK
//!
//! The crate's own test makes one call, which must parse. This makes that call, and then others with known replies.

use std::env;
use std::time::Duration;

use redis_cell_rs::{Cmd, Key, Policy, Verdict};

/// total, remaining, reset_after, and of a blocked call retry_after.
type Numbers = (usize, usize, u64, Option<u64>);

fn numbers(verdict: Verdict) -> Numbers {
    match verdict {
        Verdict::Allowed(details) => (details.total, details.remaining, details.reset_after, None),
        Verdict::Blocked(details) => {
            (details.total, details.remaining, details.reset_after, Some(details.retry_after))
        }
    }
}

fn main() {
    let port: u16 = env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    for protocol in ["resp2", "resp3"] {
        let url = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
        let mut conn = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        let mut call = |key: &str, policy: &Policy| -> Numbers {
            let key = Key::from(key);
            let cmd: redis::Cmd = Cmd::new(&key, policy).into();
            numbers(cmd.query(&mut conn).expect("an answer that the crate understands"))
        };

        // A burst of 1, 10 in 60 seconds, 1 each.
        let policy = Policy::new(1, 10, Duration::from_secs(60), 1);
        assert_eq!(call("user123", &policy), (2, 1, 6, None));
        assert_eq!(call("user123", &policy), (2, 0, 12, None));
        assert_eq!(call("user123", &policy), (2, 0, 12, Some(6)));
        assert_eq!(call("another", &policy), (2, 1, 6, None));
        assert_eq!(call("", &policy), (2, 1, 6, None));

        let policy = Policy::from_tokens_per_second(1);
        let (total, remaining, reset_after, retry_after) = call("second", &policy);
        assert_eq!((total, reset_after, retry_after), (remaining + 1, 1, None));

        let policy = Policy::from_tokens_per_period(100, Duration::from_secs(100))
            .max_burst(99)
            .apply_tokens(40)
            .name("general");
        assert_eq!(call("some", &policy), (100, 60, 40, None));
        assert_eq!(call("some", &policy), (100, 20, 80, None));
        assert_eq!(call("some", &policy), (100, 20, 80, Some(20)));

        let policy = Policy::from_tokens_per_day(5_000).max_burst(0);
        assert_eq!(call("day", &policy), (1, 0, 18, None));
        assert_eq!(call("day", &policy), (1, 0, 18, Some(18)));
    }
    println!("CL.THROTTLE with redis-cell-rs");
}

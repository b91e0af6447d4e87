//! The algorithm by itself.

use super::super::decision::{Decision, Limited};
use super::*;

/// 14 November 2023, 22:13:20 UTC, in microseconds.
const START_US: u64 = 1_700_000_000_000_000;

fn rate(max_burst: u64, count: u64, period_ms: u64) -> Rate {
    Rate::new(max_burst, count, period_ms).unwrap()
}

fn tat(value: &str) -> Tat {
    Tat::decode(value.as_bytes()).unwrap()
}

/// One key and the clock.
struct Bucket {
    rate: Rate,
    stored: Option<Tat>,
    now_us: u64,
}

impl Bucket {
    fn new(rate: Rate) -> Bucket {
        Bucket { rate, stored: None, now_us: START_US }
    }

    fn call(&mut self, quantity: i64, atmost: bool) -> Decision {
        let (decision, next) = decide(&self.rate, self.stored, self.now_us, quantity, atmost);
        match next {
            Next::Keep => {}
            Next::Store(tat) => self.stored = Some(tat),
            Next::Delete => self.stored = None,
        }
        decision
    }

    fn take(&mut self, quantity: i64) -> Decision {
        self.call(quantity, false)
    }

    #[allow(dead_code)]
    fn passes(&mut self) -> bool {
        self.take(1).allowed()
    }
}

/// Subtracting a cost that was rounded down left an attosecond: 15 remaining of 16, and a key.
#[test]
fn what_was_taken_at_once_can_be_given_back_one_by_one() {
    for count in [3, 7, 999_999_937] {
        let mut bucket = Bucket::new(rate(15, count, 1000));
        assert!(bucket.take(16).allowed());
        for remaining in 1..=16 {
            assert_eq!(bucket.take(-1).remaining, remaining);
        }
        assert_eq!(bucket.stored, None, "{count}");
    }
}

/// Beyond 1e18 a second there is nothing to wait for, but a state from the future was left as it was.
#[test]
fn a_bucket_shorter_than_the_resolution_forgets_a_state_from_the_future() {
    let rate = rate(3, i64::MAX.unsigned_abs(), 1);
    let future = Some(tat("1700000000000000001"));
    for (quantity, next) in
        [(1, Next::Delete), (-1, Next::Delete), (0, Next::Keep), (5, Next::Keep)]
    {
        assert_eq!(decide(&rate, future, START_US, quantity, false).1, next, "{quantity}");
        assert_eq!(decide(&rate, None, START_US, quantity, false).1, Next::Keep, "{quantity}");
    }
}

#[test]
fn looking_answers_for_the_quantity_asked_and_of_the_state_as_it_stands() {
    let rate = rate(4, 1, 1000);
    let two_taken = Some("1700000002000000000");
    for (stored, quantity, limited, remaining, retry_after_us, reset_after_us) in [
        (None, 1, Limited::Allowed, 5, None, 0),
        (None, 6, Limited::Denied, 5, None, 0),
        (None, -1, Limited::Allowed, 5, None, 0),
        (two_taken, 3, Limited::Allowed, 3, None, 2_000_000),
        (two_taken, 4, Limited::Denied, 3, Some(1_000_000), 2_000_000),
        (two_taken, -1, Limited::Allowed, 3, None, 2_000_000),
        (two_taken, 0, Limited::Allowed, 3, None, 2_000_000),
    ] {
        let decision = look(&rate, stored.map(tat), START_US, quantity);
        let told = (decision.limited, decision.remaining, decision.retry_after_us);
        assert_eq!(told, (limited, remaining, retry_after_us), "{stored:?} {quantity}");
        assert_eq!(decision.reset_after_us, reset_after_us, "{stored:?} {quantity}");
    }
}

//! The algorithm by itself.

use super::super::decision::Decision;
use super::*;

/// 14 November 2023, 22:13:20 UTC, in microseconds.
const START_US: u64 = 1_700_000_000_000_000;

fn rate(max_burst: u64, count: u64, period_ms: u64) -> Rate {
    Rate::new(max_burst, count, period_ms).unwrap()
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

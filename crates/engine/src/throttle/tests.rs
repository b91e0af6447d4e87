//! A slow exact model in rational numbers, crate governor as a second oracle, and the case table.

use super::super::decision::TimeUnit;
use super::super::memory::{stored_after, throttle};
use super::*;
use governor::clock::{Clock, FakeRelativeClock};
use governor::{Quota, RateLimiter};
use num_rational::BigRational;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use std::num::NonZeroU32;
use std::time::Duration;

#[path = "../../../../tests/support/src/gcra_table.rs"]
mod gcra_table;

/// 14 November 2023, 22:13:20 UTC, in microseconds.
const START_US: u64 = 1_700_000_000_000_000;
const YEAR_US: u64 = 31_557_600_000_000;
const SECOND_US: u64 = 1_000_000;

fn config(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() }
}

fn rate(max_burst: u64, count: u64, period_ms: u64) -> Rate {
    Rate::new(max_burst, count, period_ms).unwrap()
}

fn stored(value: &str) -> Stored {
    Stored::decode(value.as_bytes()).unwrap()
}

fn tat(tat: Attos) -> Stored {
    Stored::of(tat, 0)
}

fn ask(quantity: i64) -> Ask {
    Ask { quantity: Quantity::from_signed(quantity), leave: 0, manner: Manner::Whole }
}

fn asking(quantity: i64, atmost: bool) -> Ask {
    Ask { manner: if atmost { Manner::AtMost } else { Manner::Whole }, ..ask(quantity) }
}

fn force(quantity: u64) -> Ask {
    Ask { quantity: Quantity::Take(quantity), leave: 0, manner: Manner::Force }
}

fn ahead(quantity: u64, ahead_us: u64) -> Ask {
    Ask { quantity: Quantity::Take(quantity), leave: 0, manner: Manner::Ahead(ahead_us) }
}

fn leaving(quantity: u64, leave: u64, atmost: bool) -> Ask {
    Ask { leave, ..asking(i64::try_from(quantity).unwrap(), atmost) }
}

fn decide(rate: &Rate, stored: Option<Stored>, now_us: u64, ask: &Ask) -> (Decision, Next) {
    throttle(rate, stored, now_us, ask).unwrap()
}

/// What _RO answers.
fn look(rate: &Rate, stored: Option<Stored>, now_us: u64, ask: &Ask) -> Decision {
    let bucket = Bucket::read(rate, stored, now_us);
    bucket.look(bucket.judge(ask, false).unwrap())
}

/// One key and the clock.
struct TestKey {
    rate: Rate,
    stored: Option<Stored>,
    now_us: u64,
}

impl TestKey {
    fn new(rate: Rate) -> TestKey {
        TestKey { rate, stored: None, now_us: START_US }
    }

    fn call(&mut self, ask: &Ask) -> Result<Decision, Refused> {
        let (decision, next) = throttle(&self.rate, self.stored, self.now_us, ask)?;
        self.stored = stored_after(self.stored, next);
        if let Some(stored) = self.stored {
            assert_eq!(Stored::decode(stored.encode().as_bytes()), Some(stored));
        }
        Ok(decision)
    }

    fn take(&mut self, quantity: i64) -> Decision {
        self.call(&ask(quantity)).unwrap()
    }

    fn take_atmost(&mut self, quantity: i64) -> Decision {
        self.call(&asking(quantity, true)).unwrap()
    }

    fn passes(&mut self) -> bool {
        self.take(1).verdict.allowed()
    }

    /// The stored value as text.
    fn value(&self) -> String {
        let text = self.stored.map_or(StoredText::new(), Stored::encode);
        String::from_utf8(text.as_bytes().to_vec()).unwrap()
    }

    fn length_us(&self) -> u64 {
        u64::try_from(self.rate.bucket / ATTOS_PER_US).unwrap()
    }
}

// ---- The case table, and single sentences of the contract ----

#[test]
fn answers_as_throttled_and_redis_cell_do() {
    use gcra_table::{CASES, COUNT, MAX_BURST, PERIOD_MS};
    let mut key = TestKey::new(rate(MAX_BURST, COUNT, PERIOD_MS));
    let ms = |us| i64::try_from(TimeUnit::Milliseconds.round_up(us)).unwrap();
    for (number, case) in CASES.iter().enumerate() {
        key.now_us = START_US.checked_add_signed(case.at_ms * 1000).unwrap();
        let got = key.take(case.quantity);
        let answer = (
            i64::try_from(got.verdict.limited()).unwrap(),
            i64::try_from(got.remaining).unwrap(),
            got.verdict.retry_after_us().map_or(-1, ms),
            ms(got.reset_after_us),
        );
        let told = (case.limited, case.remaining, case.retry_ms, case.reset_ms);
        assert_eq!(answer, told, "case {number}, {case:?}");
    }
}

#[test]
fn quantity_0_looks_whatever_it_finds() {
    let rate = rate(2, 1, 1000);
    for (value, remaining, reset_after_us) in [
        (None, 3, 0),
        (Some("1699999999000000000"), 3, 0),
        (Some("1700000001000000000"), 2, 1_000_000),
        (Some("1700000003000000000"), 0, 3_000_000),
        (Some("9999999999999999999.999999999"), 0, 3_000_000),
        (Some("1700000005000000000+2000000000"), 0, 5_000_000),
        (Some("1700000005000000000+1000000000"), 0, 4_000_000),
    ] {
        let manners = [Manner::Whole, Manner::AtMost, Manner::Force, Manner::Ahead(9_000_000)];
        for (manner, leave) in
            manners.map(|manner| (manner, 0)).into_iter().chain([(Manner::Whole, 9)])
        {
            let ask = Ask { quantity: Quantity::Look, leave, manner };
            let (decision, next) = decide(&rate, value.map(stored), START_US, &ask);
            let verdict = Verdict::taking(0);
            let expected = Decision { verdict, limit: 3, remaining, reset_after_us };
            assert_eq!((decision, next), (expected, Next::Keep), "{value:?} {ask:?}");
        }
    }
}

#[test]
fn looking_answers_for_the_quantity_asked_and_of_the_state_as_it_stands() {
    let rate = rate(4, 1, 1000);
    let two_taken = Some("1700000002000000000");
    for (value, quantity, limited, remaining, retry_after_us, reset_after_us) in [
        (None, 1, 0, 5, None, 0),
        (None, 6, 1, 5, None, 0),
        (None, -1, 0, 5, None, 0),
        (two_taken, 3, 0, 3, None, 2_000_000),
        (two_taken, 4, 1, 3, Some(1_000_000), 2_000_000),
        (two_taken, -1, 0, 3, None, 2_000_000),
        (two_taken, 0, 0, 3, None, 2_000_000),
    ] {
        let decision = look(&rate, value.map(stored), START_US, &ask(quantity));
        let verdict = decision.verdict;
        let told = (verdict.limited(), decision.remaining, verdict.retry_after_us());
        assert_eq!(told, (limited, remaining, retry_after_us), "{value:?} {quantity}");
        assert_eq!(decision.reset_after_us, reset_after_us, "{value:?} {quantity}");
    }
}

#[test]
fn giving_back_writes_only_where_there_is_a_debt() {
    let rate = rate(4, 1, 1000);
    for (value, quantity, next) in [
        (None, -1, Next::Keep),
        (None, i64::MIN, Next::Keep),
        (Some("1700000000000000000"), -1, Next::Keep),
        (Some("1699999999000000000"), -1, Next::Keep),
        (Some("1700000002000000000"), -1, Next::Store(stored("1700000001000000000"))),
        (Some("1700000002000000000"), -2, Next::Delete),
        (Some("1700000002000000000"), i64::MIN, Next::Delete),
        (Some("9999999999999999999"), -1, Next::Store(stored("1700000004000000000"))),
        (Some("9999999999999999999"), -5, Next::Delete),
    ] {
        let (decision, got) = decide(&rate, value.map(stored), START_US, &ask(quantity));
        assert_eq!(got, next, "{value:?} {quantity}");
        assert_eq!(decision.verdict, Verdict::taking(0));
    }
}

/// Subtracting a cost that was rounded down left an attosecond: 15 remaining of 16, and a key.
#[test]
fn what_was_taken_at_once_can_be_given_back_one_by_one() {
    for count in [3, 7, 999_999_937] {
        let mut key = TestKey::new(rate(15, count, 1000));
        assert!(key.take(16).verdict.allowed());
        for remaining in 1..=16 {
            assert_eq!(key.take(-1).remaining, remaining);
        }
        assert_eq!(key.stored, None, "{count}");
    }
}

/// Beyond 1e18 a second there is nothing to wait for, but a state from the future was left as it was.
#[test]
fn a_bucket_shorter_than_the_resolution_forgets_a_state_from_the_future() {
    let rate = rate(3, i64::MAX.unsigned_abs(), 1);
    let future = Some(stored("1700000000000000001"));
    for (quantity, next) in
        [(1, Next::Delete), (-1, Next::Delete), (0, Next::Keep), (5, Next::Keep)]
    {
        let ask = ask(quantity);
        assert_eq!(decide(&rate, future, START_US, &ask).1, next, "{quantity}");
        assert_eq!(decide(&rate, None, START_US, &ask).1, Next::Keep, "{quantity}");
    }
}

#[test]
fn atmost_takes_what_there_is() {
    let mut key = TestKey::new(rate(4, 1, 1000));
    for (quantity, limited, taken, remaining, retry_after_us) in [
        (2, 0, 2, 3, None),
        (0, 0, 0, 3, None),
        (i64::MAX, 0, 3, 0, None),
        (1, 1, 0, 0, Some(1_000_000)),
        (i64::MAX, 1, 0, 0, Some(1_000_000)),
    ] {
        let got = key.take_atmost(quantity);
        let verdict = got.verdict;
        let told = (verdict.limited(), verdict.taken(), got.remaining, verdict.retry_after_us());
        assert_eq!(told, (limited, taken, remaining, retry_after_us));
    }
    key.now_us += SECOND_US;
    assert_eq!(key.take_atmost(9).verdict.taken(), 1);
}

/// The arguments at which redis-cell 0.5.0 truncates the interval, here with what it should be.
#[test]
fn rates_that_fool_redis_cell_are_kept() {
    for (max_burst, count, period_ms) in [
        (6000, 6000, 1000),
        (1, 2000, 1000),
        (1, 8000, 1000),
        (5, 3_000_000, 1000),
        (10, 2_000_000_000, 1000),
        (0, 1_000_000_000_000, 1000),
    ] {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let mut admitted = 0;
        // Greedy: all that can be had, every 50 microseconds of one second.
        for _ in 0..=20_000 {
            admitted += key.take_atmost(i64::MAX).verdict.taken();
            key.now_us += 50;
        }
        let refilled = (max_burst + 1) * 20_000;
        let most = (max_burst + 1) + count;
        let expected = most.min(refilled + max_burst + 1);
        assert!(admitted <= expected, "{max_burst} {count}: {admitted} > {expected}");
        // Never much below either, unless the bucket is shorter than the caller's step.
        if refilled >= count {
            assert!(admitted >= count, "{max_burst} {count}: {admitted} < {count}");
        }
    }
}

#[test]
fn the_bucket_may_be_a_hundred_years_long_and_no_longer() {
    const MAX: u64 = 9_223_372_036_854_775_806;
    for (max_burst, count, period_ms, fits) in [
        (0, 1, MAX_PERIOD_MS, true),
        (1, 1, MAX_PERIOD_MS, false),
        (1, 2, MAX_PERIOD_MS, true),
        (2, 2, MAX_PERIOD_MS, false),
        (MAX, MAX + 1, MAX_PERIOD_MS, true),
        (MAX, MAX, MAX_PERIOD_MS, false),
        (MAX, 1, 1, false),
        (MAX_PERIOD_MS - 1, 1, 1, true),
        (MAX_PERIOD_MS, 1, 1, false),
        (0, MAX + 1, 1, true),
    ] {
        let got = Rate::new(max_burst, count, period_ms);
        assert_eq!(got.is_ok(), fits, "{max_burst} {count} {period_ms}");
    }
}

#[test]
fn the_value_is_19_digits_and_a_fraction_only_where_there_is_one() {
    for (attos, text) in [
        (0, "0000000000000000000"),
        (1, "0000000000000000000.000000001"),
        (1_700_000_000_000_000_000_000_000_000, "1700000000000000000"),
        (1_700_000_000_333_333_333_333_333_333, "1700000000333333333.333333333"),
        (1_700_000_000_333_333_333_500_000_000, "1700000000333333333.5"),
        (1_700_000_000_333_333_333_050_000_000, "1700000000333333333.05"),
        (LAST_TAT, "9999999999999999999.999999999"),
    ] {
        assert_eq!(tat(attos).encode().as_bytes(), text.as_bytes());
        assert_eq!(Stored::decode(text.as_bytes()), Some(tat(attos)));
    }
}

#[test]
fn a_value_of_any_other_form_is_none_of_ours() {
    for text in [
        "",
        "0",
        "42",
        "-170000000000000000",
        "-1700000000000000000",
        "+170000000000000000",
        " 1700000000000000000",
        "1700000000000000000 ",
        "1700000000000000000\n",
        "1700000000000000000.",
        "1700000000000000000.-1",
        "1700000000000000000.1x",
        "1700000000000000000.0000000001",
        "1700000000000000000,5",
        "170000000000000000",
        "17000000000000000000",
        "18446744073709551615",
        "1.70000000000000000e9",
        "0x17000000000000000",
        "١٧٠٠٠٠٠٠٠٠",
    ] {
        assert_eq!(Stored::decode(text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(Stored::decode(b"170000000000000000\xff"), None);
    assert_eq!(Stored::decode(&[0; 19]), None);
    assert_eq!(Stored::decode(&[b'9'; 1 << 20]), None);
}

// ---- Debts, bookings and LEAVE, each as a table ----

/// When (milliseconds after the start), what is asked, and then: the stored value after it, limited, remaining,
/// retry_after, reset_after, and the wait until the caller may go on, in microseconds.
type Row<'a> = (i64, Ask, &'a str, u64, u64, Option<u64>, u64, u64);

fn table(rate: Rate, rows: &[Row]) {
    let mut key = TestKey::new(rate);
    for (number, row) in rows.iter().enumerate() {
        let (at_ms, ask, value, limited, remaining, retry, reset, go_after) = *row;
        key.now_us = START_US.checked_add_signed(at_ms * 1000).unwrap();
        let got = key.call(&ask).unwrap();
        let goes = match got.verdict {
            Verdict::Allowed { go_after_us, .. } => go_after_us,
            Verdict::Denied { .. } | Verdict::Never => 0,
        };
        let verdict = got.verdict;
        let told = (verdict.limited(), got.remaining, verdict.retry_after_us(), got.reset_after_us);
        assert_eq!((told, goes), ((limited, remaining, retry, reset), go_after), "row {number}");
        assert_eq!(key.value(), value, "row {number}");
    }
}

#[test]
fn force_writes_a_debt_that_later_calls_repay() {
    let second = SECOND_US;
    table(
        rate(2, 1, 1000),
        &[
            (0, force(2), "1700000002000000000", 0, 1, None, 2 * second, 0),
            // Three more where one is left: a debt of two seconds.
            (0, force(3), "1700000005000000000+2000000000", 0, 0, None, 5 * second, 0),
            (0, ask(1), "1700000005000000000+2000000000", 1, 0, Some(3 * second), 5 * second, 0),
            (
                0,
                asking(9, true),
                "1700000005000000000+2000000000",
                1,
                0,
                Some(3 * second),
                5 * second,
                0,
            ),
            // Between writes it does not shrink, and a denied call does not write.
            (1_500, ask(1), "1700000005000000000+2000000000", 1, 0, Some(1_500_000), 3_500_000, 0),
            // Every write stores what is left of it.
            (1_500, force(1), "1700000006000000000+1500000000", 0, 0, None, 4_500_000, 0),
            // Giving back repays, and beyond the debt there is none.
            (2_000, ask(-1), "1700000005000000000", 0, 0, None, 3 * second, 0),
            (3_000, ask(1), "1700000006000000000", 0, 0, None, 3 * second, 0),
            // A quantity beyond the limit can be forced, and only forced.
            (3_000, ask(4), "1700000006000000000", 1, 0, None, 3 * second, 0),
            (3_000, force(4), "1700000010000000000+4000000000", 0, 0, None, 7 * second, 0),
            (3_000, ask(-9), "", 0, 3, None, 0, 0),
            (3_000, ask(0), "", 0, 3, None, 0, 0),
        ],
    );
}

#[test]
fn a_debt_is_rounded_up_to_whole_nanoseconds() {
    table(
        rate(0, 3, 1000),
        &[
            (0, force(1), "1700000000333333333.333333333", 0, 0, None, 333_334, 0),
            (0, force(1), "1700000000666666666.666666666+333333334", 0, 0, None, 666_667, 0),
            (0, ask(1), "1700000000666666666.666666666+333333334", 1, 0, Some(666_667), 666_667, 0),
        ],
    );
}

#[test]
fn a_clock_that_goes_back_keeps_the_debt_and_not_more() {
    let second = SECOND_US;
    let forced = force(5);
    table(
        rate(2, 1, 1000),
        &[
            (60_000, forced, "1700000065000000000+2000000000", 0, 0, None, 5 * second, 0),
            // A minute back: three seconds of bucket and two of debt are left, though a call only looks.
            (0, ask(0), "1700000065000000000+2000000000", 0, 0, None, 5 * second, 0),
            (0, ask(4), "1700000065000000000+2000000000", 1, 0, None, 5 * second, 0),
            // The call that is denied writes it back.
            (0, ask(1), "1700000005000000000+2000000000", 1, 0, Some(3 * second), 5 * second, 0),
            (
                -1_000,
                ask(1),
                "1700000004000000000+2000000000",
                1,
                0,
                Some(3 * second),
                5 * second,
                0,
            ),
            (1_000, ask(1), "1700000004000000000+2000000000", 1, 0, Some(second), 3 * second, 0),
            (2_000, ask(1), "1700000005000000000", 0, 0, None, 3 * second, 0),
        ],
    );
}

#[test]
fn ahead_books_in_order_and_a_negative_quantity_cancels() {
    let second = SECOND_US;
    table(
        rate(2, 1, 1000),
        &[
            (0, ahead(3, 1), "1700000003000000000", 0, 0, None, 3 * second, 0),
            (0, ahead(1, second - 1), "1700000003000000000", 1, 0, Some(1), 3 * second, 0),
            (0, ahead(1, second), "1700000004000000000+1000000000", 0, 0, None, 4 * second, second),
            (
                0,
                ahead(2, 9 * second),
                "1700000006000000000+3000000000",
                0,
                0,
                None,
                6 * second,
                3 * second,
            ),
            // Whoever does not book comes after both.
            (0, ask(1), "1700000006000000000+3000000000", 1, 0, Some(4 * second), 6 * second, 0),
            (
                0,
                ahead(1, 3 * second),
                "1700000006000000000+3000000000",
                1,
                0,
                Some(second),
                6 * second,
                0,
            ),
            // The second booking is cancelled.
            (0, ask(-2), "1700000004000000000+1000000000", 0, 0, None, 4 * second, 0),
            (
                500,
                ahead(1, 3 * second),
                "1700000005000000000+1500000000",
                0,
                0,
                None,
                4_500_000,
                1_500_000,
            ),
            (
                500,
                ahead(4, 99 * second),
                "1700000005000000000+1500000000",
                1,
                0,
                None,
                4_500_000,
                0,
            ),
            (
                500,
                Ask { quantity: Quantity::Look, ..ahead(1, second) },
                "1700000005000000000+1500000000",
                0,
                0,
                None,
                4_500_000,
                0,
            ),
        ],
    );
}

#[test]
fn bookings_stand_to_the_microsecond() {
    // 300 a second: a unit takes 3333 and a third of a microsecond.
    let mut key = TestKey::new(rate(0, 300, 1000));
    assert!(key.passes());
    let mut goes = Vec::new();
    for _ in 0..6 {
        match key.call(&ahead(1, 20_000)).unwrap().verdict {
            Verdict::Allowed { go_after_us, .. } => goes.push(go_after_us),
            verdict => goes.push(verdict.retry_after_us().unwrap()),
        }
    }
    // The sixth can be had in time.
    assert_eq!(goes, [3_334, 6_667, 10_000, 13_334, 16_667, 20_000]);
    // The next waits until its 23333 and a third are 20000.
    let denied = key.call(&ahead(1, 20_000)).unwrap().verdict;
    assert_eq!(denied, Verdict::Denied { wait_us: 3_334, by: Obstacle::Counted });
    key.now_us += 3_333;
    assert!(!key.call(&ahead(1, 20_000)).unwrap().verdict.allowed());
    key.now_us += 1;
    let booked = key.call(&ahead(1, 20_000)).unwrap().verdict;
    assert_eq!(booked, Verdict::Allowed { taken: 1, go_after_us: 20_000 });
}

#[test]
fn leave_keeps_a_reserve_for_others() {
    let second = SECOND_US;
    table(
        rate(4, 1, 1000),
        &[
            (0, leaving(1, 5, false), "", 1, 5, None, 0, 0),
            (0, leaving(1, u64::MAX, true), "", 1, 5, None, 0, 0),
            (0, leaving(2, 3, false), "1700000002000000000", 0, 3, None, 2 * second, 0),
            // Three must be left beside the one.
            (0, leaving(1, 3, false), "1700000002000000000", 1, 3, Some(second), 2 * second, 0),
            (0, leaving(9, 3, true), "1700000002000000000", 1, 3, Some(second), 2 * second, 0),
            (0, leaving(9, 1, true), "1700000004000000000", 0, 1, None, 4 * second, 0),
            // Whoever leaves nothing has the last one.
            (0, leaving(1, 1, false), "1700000004000000000", 1, 1, Some(second), 4 * second, 0),
            (0, ask(1), "1700000005000000000", 0, 0, None, 5 * second, 0),
            (0, leaving(0, 5, false), "1700000005000000000", 0, 0, None, 5 * second, 0),
        ],
    );
}

#[test]
fn a_debt_is_a_length_of_time_whatever_limit_wrote_it() {
    let mut key = TestKey::new(rate(0, 1, 1000));
    assert!(key.call(&force(4)).is_ok());
    assert_eq!(key.value(), "1700000004000000000+3000000000");
    // A bucket of ten seconds: of that debt none is left, and the next write says so.
    key.rate = rate(9, 1, 1000);
    assert_eq!(key.take(0).remaining, 6);
    assert_eq!(key.take(1).remaining, 5);
    assert_eq!(key.value(), "1700000005000000000");
    // A bucket of half a second: what is beyond it was no debt, and goes.
    key.rate = rate(0, 2, 1000);
    let denied = key.take(1);
    assert_eq!(denied.verdict.retry_after_us(), Some(500_000));
    assert_eq!(key.value(), "1700000000500000000");
    // With a debt beside it a shorter bucket keeps the debt.
    key.rate = rate(0, 1, 1000);
    assert!(key.call(&force(4)).is_ok());
    assert_eq!(key.value(), "1700000004500000000+3500000000");
    key.rate = rate(0, 2, 1000);
    assert_eq!(key.take(1).verdict.retry_after_us(), Some(4_000_000));
    assert_eq!(key.value(), "1700000004000000000+3500000000");
}

#[test]
fn no_debt_is_longer_than_a_hundred_years() {
    const YEARS_S: u64 = MAX_PERIOD_MS / 1000;
    let rate = rate(0, 1, 1000);
    for (quantity, fits) in [
        (YEARS_S, true),
        (YEARS_S + 1, true),
        (YEARS_S + 2, false),
        (i64::MAX as u64, false),
        (u64::MAX, false),
    ] {
        let told = throttle(&rate, None, START_US, &force(quantity));
        assert_eq!(told.is_ok(), fits, "{quantity}");
    }
    let mut key = TestKey::new(rate);
    assert!(key.call(&force(YEARS_S + 1)).is_ok());
    assert_eq!(
        key.value(),
        format!("{}+{MAX_DEBT_NS}", 1_700_000_000_000_000_000 + MAX_DEBT_NS + 1_000_000_000)
    );
    // Nothing is written for what is an error, and what comes in meanwhile can be forced again.
    let before = key.stored;
    assert_eq!(key.call(&force(1)), Err(Refused::DebtTooLong));
    assert_eq!(key.stored, before);
    key.now_us += SECOND_US;
    assert!(key.call(&force(1)).is_ok());
    assert_eq!(key.call(&force(1)), Err(Refused::DebtTooLong));
    // A time that nineteen digits cannot spell is one too.
    key = TestKey { now_us: 7_258_118_400_000_000, ..TestKey::new(rate) };
    assert_eq!(key.call(&force(YEARS_S)), Err(Refused::DebtTooLong));
    assert_eq!(key.stored, None);
    assert!(key.call(&force(YEARS_S / 2)).is_ok());
}

#[test]
fn a_take_that_would_lie_past_the_last_time_is_an_error_and_admits_nothing() {
    // One in ten years, ten at once, in 2200.
    let rate = Rate::new(9, 1, MAX_PERIOD_MS / 10).unwrap();
    let mut key = TestKey { now_us: 7_258_118_400_000_000, ..TestKey::new(rate) };
    assert_eq!(key.take(8).verdict, Verdict::taking(8));
    let before = key.stored;
    let ahead = Ask { manner: Manner::Ahead(SECOND_US), ..ask(1) };
    for take in [ask(1), ask(2), asking(5, true), force(1), ahead] {
        assert_eq!(key.call(&take), Err(Refused::DebtTooLong), "{take:?}");
        assert_eq!(key.stored, before);
    }
    // What cannot be had is denied as ever, and looking and giving back are not concerned.
    assert!(matches!(key.take(3).verdict, Verdict::Denied { .. }));
    assert_eq!(key.take(11).verdict, Verdict::Never);
    assert_eq!(key.take(0).remaining, 2);
    assert_eq!(key.take(-1).remaining, 3);
}

#[test]
fn a_bucket_is_full_at_the_first_whole_millisecond() {
    for (ns, attos, ms) in [
        (1_700_000_000_000_000_000, 0, 1_700_000_000_000),
        (1_700_000_000_000_000_000, 1, 1_700_000_000_001),
        (1_700_000_000_000_000_000, 999_999_999, 1_700_000_000_001),
        (1_700_000_000_000_000_001, 0, 1_700_000_000_001),
        (1_700_000_000_000_999_999, 1, 1_700_000_000_001),
        (1_700_000_000_001_000_000, 0, 1_700_000_000_001),
    ] {
        assert_eq!(Stored { ns, attos, debt_ns: 0, ban: None }.full_at_ms(), ms, "{ns}.{attos}");
    }
}

#[test]
fn a_value_as_long_as_can_be_is_read_and_a_longer_one_is_refused() {
    let ban = "!1700000005000~5000";
    let longest = format!("1700000000000000000.123456789+3155760000000000000{ban}");
    assert_eq!(stored(&longest).encode().as_bytes(), longest.as_bytes());
    for tail in ["0", "!", "x"] {
        let long = longest.clone() + &tail.repeat(LONGEST_VALUE);
        assert_eq!(Stored::decode(long.as_bytes()), None);
    }
}

#[test]
fn debts_are_read_as_they_are_written_and_others_are_refused() {
    for (value, debt_ns) in [
        ("1700000002000000000+1", 1),
        ("1700000002000000000+3155760000000000000", MAX_DEBT_NS),
        ("1700000002000000000.5+2000000000", 2_000_000_000),
        ("1700000002000000000.333333333+9", 9),
        ("0000000000000000000+7", 7),
    ] {
        let stored = stored(value);
        assert_eq!(stored.debt_ns, debt_ns, "{value}");
        assert_eq!(stored.encode().as_bytes(), value.as_bytes());
    }
    for value in [
        "1700000002000000000+",
        "1700000002000000000+0",
        "1700000002000000000+01",
        "1700000002000000000+3155760000000000001",
        "1700000002000000000+9223372036854775808",
        "1700000002000000000+18446744073709551617",
        "1700000002000000000+-1",
        "1700000002000000000++1",
        "1700000002000000000+1+1",
        "1700000002000000000+1.5",
        "1700000002000000000+ 1",
        "1700000002000000000+1 ",
        "1700000002000000000-1",
        "1700000002000000000.+1",
        "1700000002000000000+1.",
        "170000000200000000+1",
        "17000000020000000000+1",
        "+1700000002000000000",
        "+1",
        "+",
    ] {
        assert_eq!(Stored::decode(value.as_bytes()), None, "{value}");
    }
}

#[test]
fn the_longest_value_fits() {
    let longest = Stored::of(LAST_TAT, MAX_DEBT_NS);
    let text = "9999999999999999999.999999999+3155760000000000000";
    assert_eq!(longest.encode().as_bytes(), text.as_bytes());
    assert_eq!(Stored::decode(text.as_bytes()), Some(longest));
}

#[test]
fn whoever_stands_behind_others_waits_a_millisecond_at_least() {
    let rate = rate(0, 1, 1000);
    let (fresh, empty) = (None, Some(stored("1700000001000000000")));
    for (state, ask, verdict) in [
        (fresh, ask(1), Verdict::Denied { wait_us: 1_000, by: Obstacle::Counted }),
        (fresh, asking(1, true), Verdict::Denied { wait_us: 1_000, by: Obstacle::Counted }),
        (fresh, ahead(1, SECOND_US), Verdict::Denied { wait_us: 1_000, by: Obstacle::Counted }),
        (empty, ask(1), Verdict::Denied { wait_us: SECOND_US, by: Obstacle::Counted }),
        (empty, ahead(1, SECOND_US), Verdict::Denied { wait_us: 1_000, by: Obstacle::Counted }),
        (empty, ask(2), Verdict::Never),
        (empty, force(1), Verdict::taking(1)),
        (empty, ask(-1), Verdict::taking(0)),
        (empty, ask(0), Verdict::taking(0)),
    ] {
        let bucket = Bucket::read(&rate, state, START_US);
        assert_eq!(bucket.judge(&ask, true), Ok(verdict), "{ask:?}");
    }
}

// ---- The exact model ----

fn whole(value: impl Into<u128>) -> BigRational {
    BigRational::from_integer(value.into().into())
}

fn up(value: BigRational) -> u64 {
    value.ceil().to_integer().try_into().unwrap()
}

fn down(value: BigRational) -> u64 {
    value.floor().to_integer().try_into().unwrap()
}

fn down_to_attos(value: &BigRational) -> u128 {
    value.floor().to_integer().try_into().unwrap()
}

/// GCRA as the books have it, and debts beside it: no rounding anywhere but of the debt that is stored, in microseconds.
struct Model {
    limit: u64,
    interval: BigRational,
    tat: Option<BigRational>,
    debt_ns: u64,
}

impl Model {
    fn new(max_burst: u64, count: u64, period_ms: u64) -> Model {
        let mut model = Model { limit: 0, interval: whole(0u64), tat: None, debt_ns: 0 };
        model.set_rate(max_burst, count, period_ms);
        model
    }

    fn set_rate(&mut self, max_burst: u64, count: u64, period_ms: u64) {
        self.limit = max_burst + 1;
        self.interval = whole(period_ms) * whole(1000u64) / whole(count);
    }

    fn call(&mut self, now_us: u64, ask: &Ask) -> Result<Decision, Refused> {
        let now = whole(now_us);
        let empty = &now + &self.interval * whole(self.limit);
        let last = &empty + whole(self.debt_ns) / whole(1000u64);
        let from_future = self.tat.as_ref().is_some_and(|tat| *tat > last);
        let tat = self.tat.clone().unwrap_or(now.clone()).max(now.clone()).min(last);
        let cost = |quantity: u64| &self.interval * whole(quantity);
        let free = |tat: &BigRational| {
            if *tat > empty {
                0
            } else {
                down((&empty - tat) / &self.interval)
            }
        };
        let (ahead_us, books) = match ask.manner {
            Manner::Ahead(ahead_us) => (ahead_us, true),
            _ => (0, false),
        };
        let (verdict, after) = match ask.quantity {
            Quantity::Look => (Verdict::taking(0), None),
            Quantity::GiveBack(_) if tat == now && !from_future => (Verdict::taking(0), None),
            Quantity::GiveBack(given) => {
                (Verdict::taking(0), Some((&tat - cost(given)).max(now.clone())))
            }
            Quantity::Take(wanted) if ask.manner == Manner::Force => {
                let after = &tat + cost(wanted);
                if &after - &empty > whole(MAX_DEBT_NS) / whole(1000u64) {
                    return Err(Refused::DebtTooLong);
                }
                (Verdict::taking(wanted), Some(after))
            }
            Quantity::Take(wanted) => {
                let atmost = ask.manner == Manner::AtMost;
                let least = u128::from(if atmost { 1 } else { wanted }) + u128::from(ask.leave);
                let missing = &tat + &self.interval * whole(least) - &empty;
                if least > u128::from(self.limit) {
                    (Verdict::Never, None)
                } else if missing > whole(ahead_us) {
                    let wait_us = up(missing - whole(ahead_us));
                    let verdict = Verdict::Denied { wait_us, by: Obstacle::Counted };
                    (verdict, from_future.then(|| tat.clone()))
                } else {
                    let most = if atmost { free(&tat) - ask.leave } else { u64::MAX };
                    let taken = wanted.min(most);
                    let go_after_us = if books { up(missing.max(whole(0u64))) } else { 0 };
                    (Verdict::Allowed { taken, go_after_us }, Some(&tat + cost(taken)))
                }
            }
        };
        let told = after.as_ref().unwrap_or(&tat);
        let remaining = free(told);
        let reset_after_us = up(told - &now);
        if let Some(after) = after {
            let debt = (&after - &empty).max(whole(0u64)) * whole(1000u64);
            self.debt_ns = up(debt);
            self.tat = Some(after).filter(|after| *after > now);
        }
        Ok(Decision { verdict, limit: self.limit, remaining, reset_after_us })
    }
}

/// A number of any magnitude up to `most`, each as likely.
fn magnitude(most: u64) -> impl Strategy<Value = u64> {
    (0..=most.ilog2()).prop_flat_map(move |bits| {
        let least = 1u64 << bits;
        least..=(least - 1).saturating_mul(2).saturating_add(1).clamp(least, most)
    })
}

/// max_burst, count and period, from 1 per 100 days to 1e12 per second.
fn parameters(most_burst: u64, most_count: u64) -> impl Strategy<Value = (u64, u64, u64)> {
    let period_ms = prop_oneof![
        Just(1),
        Just(1000),
        Just(60_000),
        Just(86_400_000),
        Just(8_640_000_000),
        magnitude(8_640_000_000),
    ];
    let count = prop_oneof![Just(1), Just(3), Just(7), Just(most_count), magnitude(most_count)];
    let max_burst = prop_oneof![0..20u64, magnitude(most_burst)];
    (max_burst, count, period_ms).prop_filter("fits into a hundred years", |&(burst, count, ms)| {
        Rate::new(burst, count, ms).is_ok()
    })
}

/// What a caller does next.
#[derive(Clone, Debug)]
enum CallerStep {
    /// Moves the clock by so many thousandths of the bucket's length, and a few microseconds.
    Clock(i64, i64),
    /// Asks for a number of units.
    Ask(i64, Way),
    /// Asks for so many thousandths of what the bucket holds; negative gives back.
    AskPart(i64, Way),
    /// Waits for as long as it was told last.
    Wait,
}

/// How a step takes: with so many thousandths of the limit, or of the bucket's length.
#[derive(Clone, Copy, Debug)]
enum Way {
    Whole,
    AtMost,
    Leave(i64, bool),
    Force,
    Ahead(i64),
}

/// ATMOST or not.
fn plain() -> BoxedStrategy<Way> {
    prop_oneof![Just(Way::Whole), Just(Way::AtMost)].boxed()
}

/// All options.
fn any_way() -> BoxedStrategy<Way> {
    prop_oneof![
        Just(Way::Whole),
        Just(Way::AtMost),
        (0..1100i64, any::<bool>()).prop_map(|(part, atmost)| Way::Leave(part, atmost)),
        Just(Way::Force),
        (0..2500i64).prop_map(Way::Ahead),
    ]
    .boxed()
}

fn steps(back: i64, give: i64, ways: BoxedStrategy<Way>) -> impl Strategy<Value = Vec<CallerStep>> {
    let step = prop_oneof![
        2 => (-back..1200i64, -3..=3i64).prop_map(|(part, us)| CallerStep::Clock(part, us)),
        3 => (-give.min(3)..4i64, ways.clone()).prop_map(|(q, way)| CallerStep::Ask(q, way)),
        3 => (-give..1100i64, ways).prop_map(|(part, way)| CallerStep::AskPart(part, way)),
        2 => Just(CallerStep::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

fn part_of(value: u64, thousandths: i64) -> i64 {
    let part = i128::from(value) * i128::from(thousandths) / 1000;
    i64::try_from(part).unwrap_or(if part < 0 { i64::MIN } else { i64::MAX })
}

/// A call and a clock that steps: what one wants of a key next.
impl TestKey {
    /// What a step asks for; `None` for one that only moves the clock. The time that it goes on is added to `true_us`.
    fn wants(&mut self, step: &CallerStep, told_us: u64, true_us: &mut u64) -> Option<Ask> {
        let now_us = match step {
            CallerStep::Clock(part, us) => {
                let by = part_of(self.length_us(), *part) + us;
                let late_us = START_US + 100 * YEAR_US;
                self.now_us.saturating_add_signed(by).clamp(START_US / 2, late_us)
            }
            CallerStep::Wait => self.now_us + told_us,
            CallerStep::Ask(quantity, way) => return Some(self.ask(*quantity, *way)),
            CallerStep::AskPart(part, way) => {
                return Some(self.ask(part_of(self.rate.limit, *part), *way));
            }
        };
        *true_us += now_us.saturating_sub(self.now_us);
        self.now_us = now_us;
        None
    }

    /// Options that do not go with a negative quantity are left out there.
    fn ask(&self, quantity: i64, way: Way) -> Ask {
        let whole = ask(quantity);
        let (leave, manner) = match way {
            _ if quantity < 0 => (0, Manner::Whole),
            Way::Whole => (0, Manner::Whole),
            Way::AtMost => (0, Manner::AtMost),
            Way::Leave(part, atmost) => {
                let leave = part_of(self.rate.limit, part).unsigned_abs();
                (leave, if atmost { Manner::AtMost } else { Manner::Whole })
            }
            Way::Force => (0, Manner::Force),
            Way::Ahead(part) => {
                (0, Manner::Ahead(part_of(self.length_us(), part).unsigned_abs().min(YEAR_US)))
            }
        };
        Ask { leave, manner, ..whole }
    }

    /// The debt that is stored.
    fn debt_ns(&self) -> u64 {
        self.stored.map_or(0, |stored| stored.debt_ns)
    }
}

/// Calls both, which must agree in everything. A debt that is a whole number of nanoseconds may be stored as one more
/// or less, because the stored time is rounded down.
fn agree(key: &mut TestKey, model: &mut Model, ask: &Ask) -> Result<u64, TestCaseError> {
    let got = key.call(ask);
    prop_assert_eq!(got, model.call(key.now_us, ask), "{:?}", ask);
    prop_assert_eq!(key.stored.is_some(), model.tat.is_some());
    prop_assert!(key.debt_ns().abs_diff(model.debt_ns) <= 1, "{} {}", key.value(), model.debt_ns);
    model.debt_ns = key.debt_ns();
    Ok(got.ok().and_then(|got| got.verdict.retry_after_us()).unwrap_or(0).min(YEAR_US))
}

/// Rates that share moments no closer than a thousand attoseconds.
const KIN: [(u64, u64, u64); 6] = [
    (0, 1, 1000),
    (4, 3, 1000),
    (9, 10, 60_000),
    (30, 7, 1),
    (2, 1000, 86_400_000),
    (99, 60, 60_000),
];

proptest! {
    #![proptest_config(config(400))]

    /// Counts up to 1e9 each millisecond and a microsecond clock leave a thousand attoseconds between any two
    /// moments that differ, more than sixty roundings can bridge: every number of every reply is the exact one.
    #[test]
    fn replies_are_the_exact_models(
        (max_burst, count, period_ms) in parameters(1_000_000, 1_000_000_000),
        steps in steps(1200, 1100, plain()),
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let mut model = Model::new(max_burst, count, period_ms);
        let (mut told_us, mut true_us) = (0, 0);
        for step in steps {
            let Some(ask) = key.wants(&step, told_us, &mut true_us) else { continue };
            told_us = agree(&mut key, &mut model, &ask)?;
        }
    }

    /// The same with all options. Debts are whole nanoseconds, which asks for larger intervals.
    #[test]
    fn replies_with_debts_and_bookings_are_the_exact_models(
        (max_burst, count, period_ms) in parameters(1_000_000, 1_000_000),
        steps in steps(1200, 1100, any_way()),
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let mut model = Model::new(max_burst, count, period_ms);
        let (mut told_us, mut true_us) = (0, 0);
        for step in steps {
            let Some(ask) = key.wants(&step, told_us, &mut true_us) else { continue };
            told_us = agree(&mut key, &mut model, &ask)?;
        }
    }

    /// The limit changes on a live key, with debts from one limit under another, and the clock steps both ways.
    #[test]
    fn replies_are_the_exact_models_when_the_parameters_change(
        steps in steps(1200, 1100, any_way()),
        changes in prop::collection::vec((any::<bool>(), 0..KIN.len()), 60),
    ) {
        let (max_burst, count, period_ms) = KIN[0];
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let mut model = Model::new(max_burst, count, period_ms);
        let (mut told_us, mut true_us) = (0, 0);
        for (step, (changes, other)) in steps.into_iter().zip(changes) {
            if changes {
                let (max_burst, count, period_ms) = KIN[other];
                key.rate = rate(max_burst, count, period_ms);
                model.set_rate(max_burst, count, period_ms);
            }
            let Some(ask) = key.wants(&step, told_us, &mut true_us) else { continue };
            told_us = agree(&mut key, &mut model, &ask)?;
        }
    }

    /// One step from any state, at any rate and after any change of parameters.
    #[test]
    fn one_step_is_the_exact_one_to_the_attosecond(
        (max_burst, count, period_ms) in parameters(i64::MAX as u64 - 1, i64::MAX as u64),
        used_part in -200..1500i64,
        used_attos in 0..ATTOS_PER_US,
        debt_ns in prop_oneof![Just(0), 0..2000u64, magnitude(MAX_DEBT_NS)],
        quantity_part in -1100..1100i64,
        quantity_few in -3..=3i64,
        way in any_way(),
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let now = u128::from(START_US) * ATTOS_PER_US;
        let shift = i128::try_from(key.rate.bucket).unwrap() / 1000 * i128::from(used_part);
        let past_empty = if used_part > 1000 { u128::from(debt_ns) * ATTOS_PER_NS } else { 0 };
        let before = Stored::of(now.saturating_add_signed(shift) + used_attos + past_empty, debt_ns);
        key.stored = Some(before);
        let quantity = part_of(key.rate.limit, quantity_part).saturating_add(quantity_few);
        let ask = key.ask(quantity, way);

        let attos_per_ms = ATTOS_PER_US * 1000;
        let interval = whole(period_ms) * whole(attos_per_ms) / whole(count);
        let length = &interval * whole(key.rate.limit);
        let floor_length = down_to_attos(&length);
        let cost = |units: u64| &interval * whole(units);
        let floor_cost = |units: u64| down_to_attos(&cost(units));
        let empty = now + floor_length;
        let last = empty + u128::from(debt_ns) * ATTOS_PER_NS;
        let from_future = before.tat() > last;
        let tat = before.tat().clamp(now, last);
        let fits = |units: u64, tat: u128| cost(units) + whole(tat - now) <= length;
        let nearly_fits =
            |units: u64, tat: u128| cost(units) + whole(tat - now) < &length + whole(1u64);
        let debt_of = |tat: u128| tat.saturating_sub(empty).div_ceil(ATTOS_PER_NS);

        let seen = look(&key.rate, key.stored, START_US, &Ask { manner: Manner::Whole, ..ask });
        let still = decide(&key.rate, key.stored, START_US, &super::tests::ask(0)).0;
        prop_assert_eq!((seen.remaining, seen.reset_after_us), (still.remaining, still.reset_after_us));
        let Ok((got, next)) = throttle(&key.rate, key.stored, START_US, &ask) else {
            prop_assert_eq!(ask.manner, Manner::Force);
            prop_assert!(debt_of(tat + floor_cost(ask.quantity.wanted())) > u128::from(MAX_DEBT_NS));
            return Ok(());
        };
        let (asked, taken) = (ask.quantity.wanted(), got.verdict.taken());
        let least = u128::from(if ask.manner == Manner::AtMost { 1 } else { asked }) + u128::from(ask.leave);
        match (ask.quantity, ask.manner, got.verdict) {
            (Quantity::Look | Quantity::GiveBack(_), ..) => {
                prop_assert_eq!(got.verdict, Verdict::taking(0));
            }
            (_, Manner::Force, verdict) => prop_assert_eq!(verdict, Verdict::taking(asked)),
            (_, _, Verdict::Never) => prop_assert!(least > u128::from(key.rate.limit)),
            (_, Manner::Ahead(ahead_us), verdict) => {
                let missing = (tat + floor_cost(asked)).saturating_sub(empty);
                let ahead = u128::from(ahead_us) * ATTOS_PER_US;
                let us = |attos: u128| u64::try_from(attos.div_ceil(ATTOS_PER_US)).unwrap();
                prop_assert_eq!(verdict, if missing > ahead {
                    Verdict::Denied { wait_us: us(missing - ahead), by: Obstacle::Counted }
                } else {
                    Verdict::Allowed { taken: asked, go_after_us: us(missing) }
                });
            }
            (_, manner, Verdict::Allowed { go_after_us, .. }) => {
                prop_assert_eq!(go_after_us, 0);
                prop_assert!(taken > 0 && least <= u128::from(key.rate.limit));
                prop_assert!(taken == asked || (manner == Manner::AtMost && taken < asked));
                prop_assert!(taken + ask.leave <= key.rate.limit);
                prop_assert!(nearly_fits(taken + ask.leave, tat));
                if taken < asked && taken + ask.leave < key.rate.limit {
                    prop_assert!(!fits(taken + ask.leave + 1, tat));
                }
            }
            (_, _, Verdict::Denied { wait_us, by }) => {
                prop_assert!(wait_us > 0 && by == Obstacle::Counted);
                prop_assert!(least <= u128::from(key.rate.limit));
                prop_assert!(!fits(u64::try_from(least).unwrap(), tat));
            }
        }

        // The new time is the exact one, rounded down.
        let after = if let Quantity::GiveBack(given) = ask.quantity {
            let after = whole(tat) - cost(given);
            down_to_attos(&after.max(whole(now)))
        } else {
            tat + floor_cost(taken)
        };
        match next {
            Next::Keep => {
                let nothing_to_say = asked == 0 && ask.quantity == Quantity::Look || got.verdict == Verdict::Never;
                prop_assert!(nothing_to_say || (after == tat && !from_future));
            }
            Next::Store(stored) => {
                prop_assert_eq!(stored.tat(), after);
                prop_assert_eq!(u128::from(stored.debt_ns), debt_of(after));
                prop_assert!(stored.tat() > now);
                prop_assert!(got.verdict.allowed() || from_future);
            }
            Next::Delete => prop_assert_eq!(after, now),
        }
        prop_assert_eq!(u128::from(got.reset_after_us), (after - now).div_ceil(ATTOS_PER_US));
        prop_assert!(got.remaining <= key.rate.limit);
        prop_assert!(got.remaining == 0 || nearly_fits(got.remaining, after));
        prop_assert!(got.remaining == key.rate.limit || !fits(got.remaining + 1, after));

        // Looking says the same and changes nothing.
        let seen = look(&key.rate, key.stored, START_US, &ask);
        let same = |verdict: Verdict| (verdict.limited(), verdict.retry_after_us());
        prop_assert_eq!(same(seen.verdict), same(got.verdict));
        prop_assert_eq!((seen.remaining, seen.reset_after_us), (still.remaining, still.reset_after_us));
    }

    /// In any span of true time no more than max_burst + 1 + count / period * T, to one part in a million, also
    /// when the clock goes back.
    #[test]
    fn never_over_admits(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000)
            .prop_filter("1e12 a second", |&(_, count, ms)| count <= ms.saturating_mul(1_000_000_000)),
        steps in steps(1200, 0, plain()),
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let (mut true_us, mut told_us) = (0u64, 0);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            let Some(ask) = key.wants(&step, told_us, &mut true_us) else { continue };
            let verdict = key.call(&ask).unwrap().verdict;
            admitted.push((true_us, verdict.taken()));
            told_us = verdict.retry_after_us().unwrap_or(0).min(YEAR_US);
        }
        within_the_rate(&admitted, (max_burst, count, period_ms), 0);
    }

    /// The same for what is booked, which counts when the caller may go on. That is rounded up to a microsecond.
    #[test]
    fn bookings_never_over_admit_and_come_in_order(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000)
            .prop_filter("1e12 a second", |&(_, count, ms)| count <= ms.saturating_mul(1_000_000_000)),
        steps in steps(0, 0, prop_oneof![plain(), (0..2500i64).prop_map(Way::Ahead)].boxed()),
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let (mut true_us, mut told_us, mut last_us) = (0u64, 0, 0);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            let Some(ask) = key.wants(&step, told_us, &mut true_us) else { continue };
            let verdict = key.call(&ask).unwrap().verdict;
            told_us = verdict.retry_after_us().unwrap_or(0).min(YEAR_US);
            if let Verdict::Allowed { taken: taken @ 1.., go_after_us } = verdict {
                let at_us = true_us + go_after_us;
                prop_assert!(at_us >= last_us, "{verdict:?} comes before an earlier one");
                last_us = at_us;
                admitted.push((at_us, taken));
            }
        }
        within_the_rate(&admitted, (max_burst, count, period_ms), 1);
    }

    /// Whoever books goes on at the first microsecond at which the same call without AHEAD would pass, if nobody else
    /// comes; and who is denied may book after the wait that was told, and not a microsecond sooner.
    #[test]
    fn who_books_goes_on_when_a_caller_who_waits_would_pass(
        (max_burst, count, period_ms) in parameters(1_000_000, 1_000_000),
        used_part in 0..3000i64,
        debt_part in 0..2000u64,
        quantity_part in 1..=1000i64,
        ahead_part in 0..2500i64,
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let debt_ns = key.length_us() * debt_part;
        let used = u128::try_from(used_part).unwrap() * key.rate.bucket / 1000;
        let tat = u128::from(START_US) * ATTOS_PER_US + used;
        key.stored = Some(Stored::of(tat, debt_ns.min(MAX_DEBT_NS)));
        // What is from the future is written back.
        key.take(-1);
        let quantity = part_of(key.rate.limit, quantity_part).max(1);
        let booking = key.ask(quantity, Way::Ahead(ahead_part));
        let Manner::Ahead(ahead_us) = booking.manner else { unreachable!() };
        let before = key.stored;
        let at = |us: u64, ask: &Ask| decide(&key.rate, before, START_US + us, ask).0.verdict;
        let waits = at(0, &ask(quantity)).retry_after_us().unwrap_or(0);
        match at(0, &booking) {
            Verdict::Allowed { taken, go_after_us } => {
                prop_assert_eq!((taken, go_after_us), (quantity.unsigned_abs(), waits));
                prop_assert!(go_after_us <= ahead_us);
            }
            Verdict::Denied { wait_us, .. } => {
                prop_assert!(waits > ahead_us);
                prop_assert_eq!(wait_us, waits - ahead_us);
                prop_assert!(at(wait_us, &booking).allowed());
                prop_assert!(!at(wait_us - 1, &booking).allowed());
            }
            Verdict::Never => prop_assert!(false, "within the limit"),
        }
        let booked = key.call(&booking).unwrap();
        if booked.verdict.allowed() && waits > 0 {
            prop_assert_eq!(booked.remaining, 0);
            // A negative quantity cancels.
            key.take(-quantity);
            let left = key.stored.map_or(0, |stored| stored.tat());
            let had = before.map_or(0, |stored| stored.tat());
            prop_assert!(had.abs_diff(left) <= 2, "{had} {left}");
        }
    }

    /// Whatever state a denied call met, and whatever it healed.
    #[test]
    fn waiting_as_told_suffices_and_a_millisecond_less_does_not(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000),
        used_part in 1..3000i64,
        used_attos in 0..ATTOS_PER_US,
        debt_ns in prop_oneof![2 => Just(0), 1 => magnitude(MAX_DEBT_NS)],
        now_us in 0..START_US + 100 * YEAR_US,
        quantity_part in 0..=1000i64,
        way in any_way(),
    ) {
        let mut key = TestKey { rate: rate(max_burst, count, period_ms), stored: None, now_us };
        let used = key.rate.bucket / 1000 * u128::try_from(used_part).unwrap() + used_attos;
        let tat = u128::from(now_us) * ATTOS_PER_US + used + u128::from(debt_ns) * ATTOS_PER_NS / 2;
        key.stored = Some(Stored::of(tat.min(LAST_TAT), debt_ns));
        let quantity = part_of(key.rate.limit, quantity_part).max(1);
        let ask = key.ask(quantity, way);
        let verdict = key.call(&ask).map(|told| told.verdict);
        if let Some(retry_us) = verdict.ok().and_then(Verdict::retry_after_us) {
            prop_assert!(retry_us >= 1);
            let again = |after_us: u64| decide(&key.rate, key.stored, now_us + after_us, &ask).0.verdict;
            let ms = TimeUnit::Milliseconds.round_up(retry_us);
            prop_assert!(again(retry_us).allowed());
            prop_assert!(again(ms * 1000).allowed());
            prop_assert!(again(TimeUnit::Seconds.round_up(retry_us) * SECOND_US).allowed());
            prop_assert!(!again(retry_us - 1).allowed());
            prop_assert!(!again((ms - 1) * 1000).allowed());
        }
    }

    #[test]
    fn a_clock_that_went_back_locks_out_for_one_bucket_at_most_and_the_debt(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000),
        back_us in 0..START_US,
        quantity_part in 0..=1000i64,
        forced_part in prop_oneof![Just(0), 0..2000i64],
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let limit = i64::try_from(key.rate.limit).unwrap();
        let quantity = part_of(key.rate.limit, quantity_part).max(1);
        assert!(key.take(limit).verdict.allowed());
        let forced = part_of(key.rate.limit, forced_part).unsigned_abs();
        prop_assume!(forced == 0 || key.call(&force(forced)).is_ok());
        let debt_us = key.debt_ns().div_ceil(1_000);
        // As long as what was forced takes to come in.
        prop_assert!(u128::from(key.debt_ns()) <= key.rate.cost(forced).div_ceil(ATTOS_PER_NS));
        key.now_us -= back_us;
        let told = key.take(quantity);
        let retry_us = told.verdict.retry_after_us().unwrap();
        let length_us = u64::try_from(key.rate.bucket.div_ceil(ATTOS_PER_US)).unwrap() + debt_us;
        prop_assert!(retry_us <= length_us);
        prop_assert!(told.reset_after_us <= length_us);
        // Healing keeps the debt, however often the clock goes back.
        for _ in 0..3 {
            let before = key.debt_ns();
            key.now_us -= key.now_us.min(back_us);
            let told = key.take(quantity);
            prop_assert!(told.verdict.retry_after_us().unwrap() <= length_us);
            prop_assert_eq!(key.debt_ns(), before);
        }
        key.now_us += key.take(quantity).verdict.retry_after_us().unwrap();
        prop_assert!(key.take(quantity).verdict.allowed());
    }

    /// At up to 1e9 a second: the rounding of so many intervals together is far below one interval.
    #[test]
    fn a_full_bucket_passes_max_burst_and_one_singles_at_one_instant(
        (max_burst, count, period_ms) in parameters(3000, 1_000_000_000_000)
            .prop_filter("1e9 a second", |&(_, count, ms)| count <= ms.saturating_mul(1_000_000)),
        idle_us in 0..YEAR_US,
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        for _ in 0..2 {
            for left in (0..=max_burst).rev() {
                let got = key.take(1);
                prop_assert!(got.verdict.allowed());
                prop_assert_eq!(got.remaining, left);
            }
            prop_assert!(!key.passes());
            key.now_us += key.take(0).reset_after_us + idle_us;
        }
    }

    #[test]
    fn a_full_bucket_passes_one_call_of_max_burst_and_one(
        (max_burst, count, period_ms) in parameters(i64::MAX as u64 - 1, i64::MAX as u64),
    ) {
        let mut key = TestKey::new(rate(max_burst, count, period_ms));
        let got = key.take(i64::try_from(key.rate.limit).unwrap());
        prop_assert!(got.verdict.allowed());
        // Beyond 1e18 a second a unit costs less than the resolution.
        if key.rate.cost(1) > 0 {
            prop_assert_eq!(got.remaining, 0);
            prop_assert!(!key.passes());
        }
    }

    /// A state never says more than "empty", whatever parameters wrote it.
    #[test]
    fn changed_parameters_meet_no_more_than_an_empty_bucket(
        rates in prop::collection::vec(parameters(1_000_000, 1_000_000_000), 2..6),
        quantity_part in 1..=1000i64,
    ) {
        let mut key = TestKey::new(rate(rates[0].0, rates[0].1, rates[0].2));
        for (max_burst, count, period_ms) in rates {
            key.rate = rate(max_burst, count, period_ms);
            let quantity = part_of(key.rate.limit, quantity_part).max(1);
            let got = key.take(quantity);
            let length_us = u64::try_from(key.rate.bucket.div_ceil(ATTOS_PER_US)).unwrap();
            prop_assert!(got.reset_after_us <= length_us);
            key.now_us += got.verdict.retry_after_us().unwrap_or(0);
            prop_assert!(got.verdict.allowed() || key.take(quantity).verdict.allowed());
        }
    }

    /// Where the interval is a whole number of nanoseconds governor is exact too.
    #[test]
    fn agrees_with_governor(
        interval_us in magnitude(10_000_000),
        burst in 1..40u32,
        calls in prop::collection::vec((0..3000u64, 1..45u32), 1..100),
    ) {
        let clock = FakeRelativeClock::default();
        let quota = Quota::with_period(Duration::from_micros(interval_us)).unwrap();
        let quota = quota.allow_burst(NonZeroU32::new(burst).unwrap());
        let governor = RateLimiter::direct_with_clock(quota, clock.clone());
        // The same rate in milliseconds: 1000 each interval_us milliseconds.
        let mut key = TestKey::new(rate(u64::from(burst) - 1, 1000, interval_us));
        for (wait_parts, quantity) in calls {
            let wait_us = interval_us * wait_parts / 1000;
            clock.advance(Duration::from_micros(wait_us));
            key.now_us += wait_us;
            let got = key.take(i64::from(quantity)).verdict;
            match governor.check_n(NonZeroU32::new(quantity).unwrap()) {
                Err(_) => prop_assert_eq!(got, Verdict::Never),
                Ok(Ok(())) => prop_assert!(got.allowed()),
                Ok(Err(not_until)) => {
                    let wait = not_until.wait_time_from(clock.now());
                    prop_assert_eq!(got.retry_after_us(), Some(u64::try_from(wait.as_micros()).unwrap()));
                }
            }
        }
    }
}

/// In no span of time more than max_burst + 1 and what comes in until `grace_us` later, to one part in a million.
fn within_the_rate(
    admitted: &[(u64, u64)],
    (max_burst, count, period_ms): (u64, u64, u64),
    grace_us: u64,
) {
    let per_us = whole(count) / (whole(period_ms) * whole(1000u64));
    let million = whole(1_000_000u64);
    for (first, &(from_us, _)) in admitted.iter().enumerate() {
        let mut sum = 0u128;
        for &(at_us, taken) in &admitted[first..] {
            sum += u128::from(taken);
            let most = whole(max_burst + 1) + &per_us * whole(at_us - from_us + grace_us);
            let most = most * (&million + whole(1u64)) / &million;
            assert!(whole(sum) <= most, "{sum} from {from_us} to {at_us}");
        }
    }
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn nothing_panics(
        max_burst in edges(),
        count in edges(),
        period_ms in edges(),
        now_us in edges(),
        value in "[0-9]{19}(\\.[0-9]{1,9})?(\\+[1-9][0-9]{0,18})?",
        key in any::<bool>(),
        quantity in edges(),
        leave in edges(),
        ahead_us in edges(),
        manner in 0..4u8,
    ) {
        let stored = Stored::decode(value.as_bytes()).filter(|_| key);
        if let Ok(rate) = Rate::new(max_burst, count, period_ms) {
            let quantity = Quantity::from_signed(quantity as i64);
            let manner = [Manner::Whole, Manner::AtMost, Manner::Force, Manner::Ahead(ahead_us)][usize::from(manner)];
            let ask = Ask { quantity, leave, manner };
            let barred = Bucket::read(&rate, stored, now_us).judge(&ask, true);
            let Ok((decision, next)) = throttle(&rate, stored, now_us, &ask) else {
                let ahead_us = if let Manner::Ahead(us) = manner { us } else { 0 };
                let last = (u128::from(now_us) + u128::from(ahead_us)) * ATTOS_PER_US + rate.bucket;
                prop_assert!(manner == Manner::Force || last > LAST_TAT);
                return Ok(());
            };
            let barred = barred.unwrap();
            prop_assert_eq!(barred.allowed(), !quantity.takes() || manner == Manner::Force);
            prop_assert!(barred.retry_after_us().is_none_or(|wait_us| wait_us >= 1_000));
            prop_assert_eq!(barred == Verdict::Never, decision.verdict == Verdict::Never);
            prop_assert!(decision.remaining <= rate.limit);
            prop_assert!(decision.verdict.taken() <= rate.limit || manner == Manner::Force);
            if let Next::Store(stored) = next {
                prop_assert_eq!(Stored::decode(stored.encode().as_bytes()), Some(stored));
                stored.full_at_ms();
            }
        }
    }

    #[test]
    fn every_state_is_read_as_it_was_written(
        attos in 0..=LAST_TAT,
        zeros in 0..28u32,
        debt_ns in prop_oneof![Just(0), magnitude(MAX_DEBT_NS)],
    ) {
        let stored = Stored::of(attos / 10u128.pow(zeros) * 10u128.pow(zeros), debt_ns);
        prop_assert_eq!(Stored::decode(stored.encode().as_bytes()), Some(stored));
    }

    #[test]
    fn any_bytes_are_a_state_or_none(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[0-9]{0,19}[0-9.eE+\\- ]{0,12}".prop_map(String::into_bytes),
        "[0-9]{19}(\\.[0-9]{1,10})?\\+?[0-9]{0,20}".prop_map(String::into_bytes),
    ]) {
        if let Some(stored) = Stored::decode(&bytes) {
            let count = |wanted: u8| bytes.iter().filter(|&&byte| byte == wanted).count();
            let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
            prop_assert!(digits >= 19 && digits + count(b'.') + count(b'+') == bytes.len());
            prop_assert!(bytes.len() <= 49 && count(b'.') <= 1 && count(b'+') <= 1);
            // Only zeros at the end of the fraction are written otherwise.
            let text = String::from_utf8(bytes).unwrap();
            let (tat, debt) = text.split_once('+').map_or((&text[..], ""), |(tat, _)| (tat, &text[tat.len()..]));
            let tat = if tat.contains('.') { tat.trim_end_matches('0').trim_end_matches('.') } else { tat };
            let written = stored.encode();
            let text = format!("{tat}{debt}");
            prop_assert_eq!(written.as_bytes(), text.as_bytes());
        }
    }

    #[test]
    fn the_value_expires_when_it_stops_mattering(attos in 0..=LAST_TAT) {
        let full_at = u128::from(tat(attos).full_at_ms()) * 1000 * ATTOS_PER_US;
        prop_assert!((attos..attos + 1000 * ATTOS_PER_US).contains(&full_at));
    }
}

/// Any number, those near an edge more often.
fn edges() -> impl Strategy<Value = u64> {
    let near = |edge: u64| {
        (0..=2u64, any::<bool>()).prop_map(move |(by, above)| {
            if above {
                edge.saturating_add(by)
            } else {
                edge.saturating_sub(by)
            }
        })
    };
    prop_oneof![
        any::<u64>(),
        magnitude(u64::MAX),
        near(0),
        near(i64::MAX as u64),
        near(u64::MAX),
        near(MAX_PERIOD_MS),
        near(START_US),
    ]
}

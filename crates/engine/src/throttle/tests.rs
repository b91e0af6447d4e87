//! The case table that other implementations share, tests of single promises, and random calls compared with a model.

use super::*;
use crate::model::{bucket, stored_after, throttle};

mod lemmas;
mod properties;

/// 14 November 2023, 22:13:20 UTC, in microseconds.
const START_US: u64 = 1_700_000_000_000_000;
const YEAR_US: u64 = 31_557_600_000_000;
const SECOND_US: u64 = 1_000_000;

fn rate(max_burst: u64, count: u64, period_ms: u64) -> Rate {
    Rate::new(max_burst, count, period_ms).unwrap()
}

fn stored(value: &str) -> StoredBucket {
    StoredBucket::decode(value.as_bytes()).unwrap()
}

fn tat(tat: Attos) -> StoredBucket {
    StoredBucket::new(tat, 0)
}

fn ask(quantity: i64) -> Ask {
    Ask::whole(Quantity::from_signed(quantity))
}

fn asking(quantity: i64, atmost: bool) -> Ask {
    Ask { manner: if atmost { Manner::AtMost } else { Manner::Whole }, ..ask(quantity) }
}

fn force(quantity: u64) -> Ask {
    Ask { manner: Manner::Force, ..Ask::whole(Quantity::Take(quantity)) }
}

fn leaving(quantity: u64, leave: u64, atmost: bool) -> Ask {
    Ask { leave, ..asking(i64::try_from(quantity).unwrap(), atmost) }
}

fn decide(
    rate: &Rate,
    stored: Option<StoredBucket>,
    now_us: u64,
    ask: &Ask,
) -> (Decision, BucketEdit) {
    throttle(rate, stored, now_us, ask).unwrap()
}

/// What _RO answers.
fn look(rate: &Rate, stored: Option<StoredBucket>, now_us: u64, ask: &Ask) -> Decision {
    let bucket = bucket(rate, stored, now_us);
    bucket.decision(bucket.judge(ask, false).unwrap())
}

/// One key and the clock.
struct TestKey {
    rate: Rate,
    stored: Option<StoredBucket>,
    now_us: u64,
}

impl TestKey {
    fn new(rate: Rate) -> TestKey {
        TestKey { rate, stored: None, now_us: START_US }
    }

    fn call(&mut self, ask: &Ask) -> Result<Decision, Refusal> {
        let (decision, next) = throttle(&self.rate, self.stored, self.now_us, ask)?;
        self.stored = stored_after(self.stored, next);
        if let Some(stored) = self.stored {
            assert_eq!(StoredBucket::decode(stored.encode().as_bytes()), Some(stored));
        }
        Ok(decision)
    }

    fn take(&mut self, quantity: i64) -> Decision {
        self.call(&ask(quantity)).unwrap()
    }

    /// The stored value as text.
    fn value(&self) -> String {
        let text = self.stored.map_or(BucketText::new(), StoredBucket::encode);
        String::from_utf8(text.as_bytes().to_vec()).unwrap()
    }

    fn length_us(&self) -> u64 {
        u64::try_from(self.rate.bucket / ATTOS_PER_US).unwrap()
    }
}

// ---- The case table, and single promises ----

/// The case table that throttled (Go) and redis-cell share, and what it leaves out: a burst of 4, and one in a second. One
/// bucket goes through all cases.
#[rustfmt::skip]
#[test]
fn answers_as_throttled_and_redis_cell_do() {
    let mut key = TestKey::new(rate(4, 1, 1_000));
    let ms = |us| i64::try_from(u64::div_ceil(us, 1_000)).unwrap();
    // Times are in milliseconds, the first since the beginning.
    for (number, (at_ms, quantity, limited, remaining, retry_ms, reset_ms)) in [
        //    at  qty  limited  remaining  retry  reset

        // 0: more than the bucket holds can never be granted.
        (    0,  6, 1, 5,   -1,    0),
        // 1-5: the burst of max_burst + 1 ...
        (    0,  1, 0, 4,   -1, 1000),
        (    0,  1, 0, 3,   -1, 2000),
        (    0,  1, 0, 2,   -1, 3000),
        (    0,  1, 0, 1,   -1, 4000),
        (    0,  1, 0, 0,   -1, 5000),
        // 6: ... and no more.
        (    0,  1, 1, 0, 1000, 5000),
        // 7-11: it drains by one a second, also between whole seconds.
        ( 3000,  1, 0, 2,   -1, 3000),
        ( 3100,  1, 0, 1,   -1, 3900),
        ( 4000,  1, 0, 1,   -1, 4000),
        ( 8000,  1, 0, 4,   -1, 1000),
        ( 9500,  1, 0, 4,   -1, 1000),
        // 12: quantity 0 looks.
        ( 9500,  0, 0, 4,   -1, 1000),
        // 13: several at once ...
        ( 9500,  2, 0, 2,   -1, 3000),
        // 14: ... all or nothing.
        ( 9500,  5, 1, 2, 3000, 3000),
        // 15: throttled and redis-cell end here. One millisecond too early is too early,
        (12499,  5, 1, 4,    1,    1),
        // 16: the returned moment is exact.
        (12500,  5, 0, 0,   -1, 5000),
        // 17-18: giving back.
        (12500, -2, 0, 2,   -1, 3000),
        (12500,  3, 1, 2, 1000, 3000),
        // 19-20: never beyond full, and nothing to a full one.
        (12500, -9, 0, 5,   -1,    0),
        (12500, -1, 0, 5,   -1,    0),
        // 21-22: fractions of the interval.
        (20000,  5, 0, 0,   -1, 5000),
        (20001,  1, 1, 0,  999, 4999),
        // 23-24: if the clock is set back a little, what has drained since then is lost.
        (22500,  0, 0, 2,   -1, 2500),
        (21000,  1, 0, 0,   -1, 5000),
        // 25: if it is set back far, the bucket is empty, and no worse.
        (10000,  1, 1, 0, 1000, 5000),
        // 26-28: that was written back, so the returned wait is exact.
        (10999,  1, 1, 0,    1, 4001),
        (11000,  1, 0, 0,   -1, 5000),
        (11000,  0, 0, 0,   -1, 5000),
        // 29-31: looking and what can never be heal nothing: the state is still the one of 11000.
        ( 5000,  0, 0, 0,   -1, 5000),
        ( 5000,  6, 1, 0,   -1, 5000),
        (12000,  1, 0, 0,   -1, 5000),
    ].into_iter().enumerate() {
        key.now_us = START_US.checked_add_signed(at_ms * 1_000).unwrap();
        let got = key.take(quantity);
        let retry_after_ms = got.verdict.retry_after_us().map_or(-1, ms);
        let reply = (got.verdict.limited(), got.remaining, retry_after_ms, ms(got.reset_after_us));
        assert_eq!(reply, (limited, remaining, retry_ms, reset_ms), "case {number}");
    }
}

/// Beyond 1e18 a second there is nothing to wait for, but a state from the future was left as it was.
#[test]
fn a_bucket_shorter_than_the_resolution_forgets_a_state_from_the_future() {
    let rate = rate(3, i64::MAX.unsigned_abs(), 1);
    let future = Some(stored("1700000000000000001"));
    for (quantity, next) in [
        (1, BucketEdit::Delete),
        (-1, BucketEdit::Delete),
        (0, BucketEdit::Keep),
        (5, BucketEdit::Keep),
    ] {
        let ask = ask(quantity);
        assert_eq!(decide(&rate, future, START_US, &ask).1, next, "{quantity}");
        assert_eq!(decide(&rate, None, START_US, &ask).1, BucketEdit::Keep, "{quantity}");
    }
    // It is full and empty at the same time.
    assert_eq!(look(&rate, None, START_US, &ask(1)).remaining, 4);
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
        assert_eq!(got.is_some(), fits, "{max_burst} {count} {period_ms}");
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
        assert_eq!(StoredBucket::decode(text.as_bytes()), Some(tat(attos)));
    }
}

// ---- Debts, and what is stored ----

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
        let reply = throttle(&rate, None, START_US, &force(quantity));
        assert_eq!(reply.is_ok(), fits, "{quantity}");
    }
    let mut key = TestKey::new(rate);
    assert!(key.call(&force(YEARS_S + 1)).is_ok());
    assert_eq!(
        key.value(),
        format!("{}+{MAX_DEBT_NS}", 1_700_000_000_000_000_000 + MAX_DEBT_NS + 1_000_000_000)
    );
    // Nothing is written for what is an error, and what comes in meanwhile can be forced again.
    let before = key.stored;
    assert_eq!(key.call(&force(1)), Err(Refusal::DebtTooLong));
    assert_eq!(key.stored, before);
    key.now_us += SECOND_US;
    assert!(key.call(&force(1)).is_ok());
    assert_eq!(key.call(&force(1)), Err(Refusal::DebtTooLong));
    // A time that nineteen digits cannot spell is one too.
    key = TestKey { now_us: 7_258_118_400_000_000, ..TestKey::new(rate) };
    assert_eq!(key.call(&force(YEARS_S)), Err(Refusal::DebtTooLong));
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
    let ahead = Ask { manner: Manner::Ahead { within_us: SECOND_US }, ..ask(1) };
    for take in [ask(1), ask(2), asking(5, true), force(1), ahead] {
        assert_eq!(key.call(&take), Err(Refusal::DebtTooLong), "{take:?}");
        assert_eq!(key.stored, before);
    }
    // What cannot be had is denied as ever, and looking and giving back are not concerned.
    assert!(matches!(key.take(3).verdict, Verdict::Denied { .. }));
    assert_eq!(key.take(11).verdict, Verdict::Never);
    assert_eq!(key.take(0).remaining, 2);
    assert_eq!(key.take(-1).remaining, 3);
    // The last time itself can be stored.
    let rate = Rate::new(9, 1, 1000).unwrap();
    let state = Some(stored("9999999998999999999.999999999"));
    for take in [ask(1), force(1)] {
        let (_, next) = decide(&rate, state, 9_999_999_995_000_000, &take);
        assert_eq!(next, BucketEdit::Store(tat(LAST_TAT)), "{take:?}");
    }
}

#[test]
fn a_denied_call_writes_only_what_heals_or_bans() {
    let rate = rate(2, 1, 1000);
    let banned = Ban::starting(START_US, 5_000);
    for (value, ask, healed, bans) in [
        ("1700000003000000000", ask(1), None, true),
        ("1700000005000000000+2000000000", ask(1), None, true),
        ("1700000003000000000.000000001", ask(1), Some("1700000003000000000"), true),
        ("1700000001000000000", ask(3), None, true),
        // Only its LEAVE denies it.
        ("1700000001000000000", leaving(2, 1, false), None, false),
        ("1700000001000000000", ask(4), None, false),
    ] {
        let bucket = bucket(&rate, Some(stored(value)), START_US);
        let verdict = bucket.judge(&ask, false).unwrap();
        let next = |text: Option<&str>| {
            text.map_or(BucketEdit::Keep, |text| BucketEdit::Store(stored(text)))
        };
        assert_eq!(bucket.deny(&ask, verdict, None).2, next(healed), "{value} {ask:?}");
        let with_ban = format!("{}!{}~5000", healed.unwrap_or(value), banned.end_ms());
        let expected = next(if bans { Some(&with_ban) } else { healed });
        assert_eq!(bucket.deny(&ask, verdict, Some(5_000)).2, expected, "{value} {ask:?}");
    }
}

#[test]
fn a_bucket_is_full_at_the_first_whole_microsecond() {
    for (ns, attos, us, ms) in [
        (1_700_000_000_000_000_000, 0, 1_700_000_000_000_000, 1_700_000_000_000),
        (1_700_000_000_000_000_000, 1, 1_700_000_000_000_001, 1_700_000_000_001),
        (1_700_000_000_000_000_000, 999_999_999, 1_700_000_000_000_001, 1_700_000_000_001),
        (1_700_000_000_000_000_001, 0, 1_700_000_000_000_001, 1_700_000_000_001),
        (1_700_000_000_000_001_000, 0, 1_700_000_000_000_001, 1_700_000_000_001),
        (1_700_000_000_000_999_999, 1, 1_700_000_000_001_000, 1_700_000_000_001),
        (1_700_000_000_001_000_000, 0, 1_700_000_000_001_000, 1_700_000_000_001),
    ] {
        let stored = StoredBucket { ns, attos, debt_ns: 0, ban: None };
        assert_eq!((stored.full_at_us(), stored.needed_until_ms()), (us, ms), "{ns}.{attos}");
        // A ban that ends later keeps the value, one that ends sooner does not.
        for (end_ms, needed_until_ms) in [(ms - 1, ms), (ms + 1, ms + 1)] {
            let ban = Ban::starting((end_ms - 1) * 1_000, 1);
            let stored = StoredBucket { ban: Some(ban), ..stored };
            assert_eq!(stored.needed_until_ms(), needed_until_ms, "{ns}.{attos} {end_ms}");
        }
    }
}

#[test]
fn a_value_as_long_as_can_be_is_read_and_a_longer_one_is_refused() {
    let ban = "!9038756854740~31557600000";
    let longest = format!("1700000000000000000.123456789+3155760000000000000{ban}");
    assert_eq!(longest.len(), MAX_VALUE);
    assert_eq!(stored(&longest).encode().as_bytes(), longest.as_bytes());
    assert_eq!(stored(&longest).ban(), Ban::decode(ban.as_bytes()));
    for tail in ["0", "!", "x"] {
        let long = longest.clone() + &tail.repeat(MAX_VALUE);
        assert_eq!(StoredBucket::decode(long.as_bytes()), None);
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
        assert_eq!(stored.debt_ns(), debt_ns, "{value}");
        assert_eq!(stored.encode().as_bytes(), value.as_bytes());
    }
    for end in ["+", "+0", "+01", "+1+1", "+1.", ".", ".+1", "+3155760000000000001"] {
        let value = format!("1700000002000000000{end}");
        assert_eq!(StoredBucket::decode(value.as_bytes()), None, "{value}");
    }
}

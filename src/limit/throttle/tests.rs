//! A slow exact model in rational numbers, crate governor as a second oracle, and the case table.

use super::super::decision::{Decision, Limited, TimeUnit};
use super::*;
use governor::clock::{Clock, FakeRelativeClock};
use governor::{Quota, RateLimiter};
use num_rational::BigRational;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use std::num::NonZeroU32;
use std::time::Duration;

#[path = "../../../tests/support/gcra_table.rs"]
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

    fn passes(&mut self) -> bool {
        self.take(1).allowed()
    }
}

// ---- The case table, and single sentences of the contract ----

#[test]
fn answers_as_throttled_and_redis_cell_do() {
    use gcra_table::{CASES, COUNT, MAX_BURST, PERIOD_MS};
    let mut bucket = Bucket::new(rate(MAX_BURST, COUNT, PERIOD_MS));
    let ms = |us| i64::try_from(TimeUnit::Milliseconds.round_up(us)).unwrap();
    for (number, case) in CASES.iter().enumerate() {
        bucket.now_us = START_US.checked_add_signed(case.at_ms * 1000).unwrap();
        let got = bucket.take(case.quantity);
        let answer = (
            got.limited as i64,
            i64::try_from(got.remaining).unwrap(),
            got.retry_after_us.map_or(-1, ms),
            ms(got.reset_after_us),
        );
        let told = (case.limited, case.remaining, case.retry_ms, case.reset_ms);
        assert_eq!(answer, told, "case {number}, {case:?}");
    }
}

#[test]
fn quantity_0_looks_whatever_it_finds() {
    let rate = rate(2, 1, 1000);
    for (stored, remaining, reset_after_us) in [
        (None, 3, 0),
        (Some("1699999999000000000"), 3, 0),
        (Some("1700000001000000000"), 2, 1_000_000),
        (Some("1700000003000000000"), 0, 3_000_000),
        (Some("9999999999999999999.999999999"), 0, 3_000_000),
    ] {
        for atmost in [false, true] {
            let (decision, next) = decide(&rate, stored.map(tat), START_US, 0, atmost);
            let expected = Decision {
                limited: Limited::Allowed,
                limit: 3,
                remaining,
                retry_after_us: None,
                reset_after_us,
                granted: 0,
            };
            assert_eq!((decision, next), (expected, Next::Keep), "{stored:?}");
        }
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
        let decision = look(&rate, stored.map(tat), START_US, quantity, false);
        let told = (decision.limited, decision.remaining, decision.retry_after_us);
        assert_eq!(told, (limited, remaining, retry_after_us), "{stored:?} {quantity}");
        assert_eq!(decision.reset_after_us, reset_after_us, "{stored:?} {quantity}");
    }
}

#[test]
fn giving_back_writes_only_where_there_is_a_debt() {
    let rate = rate(4, 1, 1000);
    for (stored, quantity, next) in [
        (None, -1, Next::Keep),
        (None, i64::MIN, Next::Keep),
        (Some("1700000000000000000"), -1, Next::Keep),
        (Some("1699999999000000000"), -1, Next::Keep),
        (Some("1700000002000000000"), -1, Next::Store(tat("1700000001000000000"))),
        (Some("1700000002000000000"), -2, Next::Delete),
        (Some("1700000002000000000"), i64::MIN, Next::Delete),
        (Some("9999999999999999999"), -1, Next::Store(tat("1700000004000000000"))),
        (Some("9999999999999999999"), -5, Next::Delete),
    ] {
        let (decision, got) = decide(&rate, stored.map(tat), START_US, quantity, false);
        assert_eq!(got, next, "{stored:?} {quantity}");
        assert_eq!((decision.limited, decision.retry_after_us), (Limited::Allowed, None));
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
fn atmost_takes_what_there_is() {
    let mut bucket = Bucket::new(rate(4, 1, 1000));
    for (quantity, limited, granted, remaining, retry_after_us) in [
        (2, Limited::Allowed, 2, 3, None),
        (0, Limited::Allowed, 0, 3, None),
        (i64::MAX, Limited::Allowed, 3, 0, None),
        (1, Limited::Denied, 0, 0, Some(1_000_000)),
        (i64::MAX, Limited::Denied, 0, 0, Some(1_000_000)),
    ] {
        let got = bucket.call(quantity, true);
        let told = (got.limited, got.granted, got.remaining, got.retry_after_us);
        assert_eq!(told, (limited, granted, remaining, retry_after_us));
    }
    bucket.now_us += SECOND_US;
    assert_eq!(bucket.call(9, true).granted, 1);
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
        let mut bucket = Bucket::new(rate(max_burst, count, period_ms));
        let mut admitted = 0;
        // Greedy: all that can be had, every 50 microseconds of one second.
        for _ in 0..=20_000 {
            admitted += bucket.call(i64::MAX, true).granted;
            bucket.now_us += 50;
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
        assert_eq!(Tat(attos).encode().as_bytes(), text.as_bytes());
        assert_eq!(Tat::decode(text.as_bytes()), Some(Tat(attos)));
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
        assert_eq!(Tat::decode(text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(Tat::decode(b"170000000000000000\xff"), None);
    assert_eq!(Tat::decode(&[0; 19]), None);
    assert_eq!(Tat::decode(&[b'9'; 1 << 20]), None);
}

// ---- The exact model ----

fn whole(value: impl Into<u128>) -> BigRational {
    BigRational::from_integer(value.into().into())
}

fn signed(value: i64) -> BigRational {
    BigRational::from_integer(value.into())
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

/// GCRA as the books have it: no rounding anywhere, in microseconds.
struct Model {
    limit: u64,
    interval: BigRational,
    tat: BigRational,
}

impl Model {
    fn new(max_burst: u64, count: u64, period_ms: u64) -> Model {
        let interval = whole(period_ms) * whole(1000u64) / whole(count);
        Model { limit: max_burst + 1, interval, tat: whole(0u64) }
    }

    fn call(&mut self, now_us: u64, quantity: i64, atmost: bool) -> Decision {
        let now = whole(now_us);
        let length = &self.interval * whole(self.limit);
        let tat = self.tat.clone().max(now.clone()).min(&now + &length);
        let debt = &tat - &now;
        let free = down((&length - &debt) / &self.interval);
        let wanted = quantity.max(0).unsigned_abs();
        let (granted, least) = if atmost { (wanted.min(free), 1) } else { (wanted, wanted) };
        let allowed = quantity <= 0 || (granted > 0 && granted <= free);
        let never = !atmost && wanted > self.limit;
        let was_full = tat == now;
        let moved = if quantity < 0 { signed(quantity) } else { whole(granted) };
        let after = if allowed { (&tat + moved * &self.interval).max(now.clone()) } else { tat };
        if quantity < 0 && after == now {
            // A key that becomes full goes; one that is full stays as it is.
            if !was_full {
                self.tat = whole(0u64);
            }
        } else if quantity != 0 && !never {
            self.tat = after.clone();
        }
        let wait = &self.interval * whole(least.min(self.limit)) - (&length - &debt);
        Decision {
            limited: if allowed { Limited::Allowed } else { Limited::Denied },
            limit: self.limit,
            remaining: down((&length - (&after - &now)) / &self.interval),
            retry_after_us: (!allowed && !never).then(|| up(wait)),
            reset_after_us: up(after - now),
            granted: if allowed { granted } else { 0 },
        }
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
enum Step {
    /// Moves the clock by so many thousandths of the bucket's length, and a few microseconds.
    Clock(i64, i64),
    /// Asks for a number of units.
    Ask(i64, bool),
    /// Asks for so many thousandths of what the bucket holds; negative gives back.
    AskPart(i64, bool),
    /// Waits for as long as it was told last.
    Wait,
}

fn steps(back: i64, give: i64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (-back..1200i64, -3..=3i64).prop_map(|(part, us)| Step::Clock(part, us)),
        3 => (-give.min(3)..4i64, any::<bool>()).prop_map(|(q, m)| Step::Ask(q, m)),
        3 => (-give..1100i64, any::<bool>()).prop_map(|(part, m)| Step::AskPart(part, m)),
        2 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

fn part_of(value: u64, thousandths: i64) -> i64 {
    let part = i128::from(value) * i128::from(thousandths) / 1000;
    i64::try_from(part).unwrap_or(if part < 0 { i64::MIN } else { i64::MAX })
}

proptest! {
    #![proptest_config(config(400))]

    /// Counts up to 1e9 each millisecond and a microsecond clock leave a thousand attoseconds between any two
    /// moments that differ, more than sixty roundings can bridge: every number of every reply is the exact one.
    #[test]
    fn replies_are_the_exact_models(
        (max_burst, count, period_ms) in parameters(1_000_000, 1_000_000_000),
        steps in steps(1200, 1100),
    ) {
        let mut bucket = Bucket::new(rate(max_burst, count, period_ms));
        let mut model = Model::new(max_burst, count, period_ms);
        let length_us = u64::try_from(bucket.rate.bucket / ATTOS_PER_US).unwrap();
        let mut told_us = 0;
        for step in steps {
            let (quantity, atmost) = match step {
                Step::Clock(part, us) => {
                    let by = part_of(length_us, part) + us;
                    bucket.now_us = bucket.now_us.saturating_add_signed(by).clamp(START_US / 2, START_US + 100 * YEAR_US);
                    continue;
                }
                Step::Wait => {
                    bucket.now_us += told_us;
                    continue;
                }
                Step::Ask(quantity, atmost) => (quantity, atmost),
                Step::AskPart(part, atmost) => (part_of(bucket.rate.limit, part), atmost),
            };
            let atmost = atmost && quantity >= 0;
            let got = bucket.call(quantity, atmost);
            prop_assert_eq!(got, model.call(bucket.now_us, quantity, atmost), "{} {}", quantity, atmost);
            told_us = got.retry_after_us.unwrap_or(0).min(YEAR_US);
        }
    }

    /// One step from any state, at any rate and after any change of parameters.
    #[test]
    fn one_step_is_the_exact_one_to_the_attosecond(
        (max_burst, count, period_ms) in parameters(i64::MAX as u64 - 1, i64::MAX as u64),
        debt_part in -200..1500i64,
        debt_attos in 0..ATTOS_PER_US,
        quantity_part in -1100..1100i64,
        quantity_few in -3..=3i64,
        atmost in any::<bool>(),
    ) {
        let rate = rate(max_burst, count, period_ms);
        let now = u128::from(START_US) * ATTOS_PER_US;
        let shift = i128::try_from(rate.bucket).unwrap() / 1000 * i128::from(debt_part);
        let stored = Tat(now.saturating_add_signed(shift) + debt_attos);
        let quantity = part_of(rate.limit, quantity_part).saturating_add(quantity_few);
        let atmost = atmost && quantity >= 0;
        let (got, next) = decide(&rate, Some(stored), START_US, quantity, atmost);

        let attos_per_ms = ATTOS_PER_US * 1000;
        let interval = whole(period_ms) * whole(attos_per_ms) / whole(count);
        let length = &interval * whole(rate.limit);
        let one = whole(1u128);
        let floor_length = whole(down_to_attos(&length));
        let empty = whole(now) + &floor_length;
        let before = whole(stored.0).max(whole(now)).min(empty.clone());
        let debt = &before - whole(now);
        let cost = |units: u64| &interval * whole(units);
        let fits = |units: u64, debt: &BigRational| cost(units) + debt <= length;
        let nearly_fits = |units: u64, debt: &BigRational| cost(units) + debt < &length + &one;

        let asked = quantity.max(0).unsigned_abs();
        let wanted = if atmost { got.granted.max(1) } else { asked };
        if got.allowed() && asked > 0 {
            prop_assert!(got.granted == asked || (atmost && got.granted < asked));
            prop_assert!(got.granted <= rate.limit);
            prop_assert!(nearly_fits(got.granted, &debt));
            if got.granted < asked && got.granted < rate.limit {
                prop_assert!(!fits(got.granted + 1, &debt));
            }
        }
        if !got.allowed() {
            prop_assert!(asked > 0 && got.granted == 0);
            prop_assert!(wanted > rate.limit || !fits(wanted, &debt));
            prop_assert_eq!(got.retry_after_us.is_none(), !atmost && asked > rate.limit);
        } else {
            prop_assert_eq!(got.retry_after_us, None);
        }

        // The new time is the exact one, rounded down.
        let moved = if quantity < 0 {
            -cost(quantity.unsigned_abs().min(rate.limit))
        } else {
            cost(got.granted)
        };
        let after = whole(down_to_attos(&(&before + moved))).max(whole(now));
        let from_future = whole(stored.0) > empty;
        match next {
            Next::Keep => {
                let nothing_to_say = quantity == 0 || (!got.allowed() && got.retry_after_us.is_none());
                prop_assert!(nothing_to_say || (after == before && !from_future));
            }
            Next::Store(tat) => {
                prop_assert_eq!(whole(tat.0), after.clone());
                prop_assert!(tat.0 > now);
                prop_assert!(got.allowed() || from_future);
            }
            Next::Delete => prop_assert_eq!(&after, &whole(now)),
        }
        let after_debt = &after - whole(now);
        prop_assert!(after_debt <= floor_length);
        prop_assert_eq!(got.reset_after_us, up(&after_debt / whole(ATTOS_PER_US)));
        prop_assert!(got.remaining <= rate.limit);
        prop_assert!(nearly_fits(got.remaining, &after_debt));
        prop_assert!(got.remaining == rate.limit || !fits(got.remaining + 1, &after_debt));

        // Looking says the same and changes nothing.
        let seen = look(&rate, Some(stored), START_US, quantity, atmost);
        let still = decide(&rate, Some(stored), START_US, 0, false).0;
        prop_assert_eq!((seen.limited, seen.retry_after_us), (got.limited, got.retry_after_us));
        prop_assert_eq!((seen.remaining, seen.reset_after_us), (still.remaining, still.reset_after_us));
    }

    /// In any span of true time no more than max_burst + 1 + count / period * T, to one part in a million, also
    /// when the clock goes back.
    #[test]
    fn never_over_admits(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000)
            .prop_filter("1e12 a second", |&(_, count, ms)| count <= ms.saturating_mul(1_000_000_000)),
        steps in steps(1200, 0),
    ) {
        let mut bucket = Bucket::new(rate(max_burst, count, period_ms));
        let length_us = u64::try_from(bucket.rate.bucket / ATTOS_PER_US).unwrap();
        let (mut true_us, mut told_us) = (0u64, 0);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            let (quantity, atmost) = match step {
                Step::Clock(part, us) => {
                    let by = part_of(length_us, part) + us;
                    let now_us = bucket.now_us.saturating_add_signed(by).clamp(START_US / 2, START_US + 100 * YEAR_US);
                    true_us += now_us.saturating_sub(bucket.now_us);
                    bucket.now_us = now_us;
                    continue;
                }
                Step::Wait => {
                    true_us += told_us;
                    bucket.now_us += told_us;
                    continue;
                }
                Step::Ask(quantity, atmost) => (quantity, atmost),
                Step::AskPart(part, atmost) => (part_of(bucket.rate.limit, part), atmost),
            };
            let got = bucket.call(quantity, atmost);
            admitted.push((true_us, got.granted));
            told_us = got.retry_after_us.unwrap_or(0).min(YEAR_US);
        }
        let per_us = whole(count) / (whole(period_ms) * whole(1000u64));
        let million = whole(1_000_000u64);
        for (first, &(from_us, _)) in admitted.iter().enumerate() {
            let mut sum = 0u128;
            for &(at_us, granted) in &admitted[first..] {
                sum += u128::from(granted);
                let most = whole(max_burst + 1) + &per_us * whole(at_us - from_us);
                prop_assert!(whole(sum) <= most * (&million + whole(1u64)) / &million);
            }
        }
    }

    /// Whatever state a denied call met, and whatever it healed.
    #[test]
    fn waiting_as_told_suffices_and_a_millisecond_less_does_not(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000),
        debt_part in 1..3000i64,
        debt_attos in 0..ATTOS_PER_US,
        now_us in 0..START_US + 100 * YEAR_US,
        quantity_part in 0..=1000i64,
        atmost in any::<bool>(),
    ) {
        let mut bucket = Bucket { rate: rate(max_burst, count, period_ms), stored: None, now_us };
        let debt = bucket.rate.bucket / 1000 * u128::try_from(debt_part).unwrap() + debt_attos;
        bucket.stored = Some(Tat((u128::from(now_us) * ATTOS_PER_US + debt).min(LAST_TAT)));
        let quantity = part_of(bucket.rate.limit, quantity_part).max(1);
        if let Some(retry_us) = bucket.call(quantity, atmost).retry_after_us {
            prop_assert!(retry_us >= 1);
            let again = |after_us: u64| decide(&bucket.rate, bucket.stored, now_us + after_us, quantity, atmost).0;
            let ms = TimeUnit::Milliseconds.round_up(retry_us);
            prop_assert!(again(retry_us).allowed());
            prop_assert!(again(ms * 1000).allowed());
            prop_assert!(again(TimeUnit::Seconds.round_up(retry_us) * SECOND_US).allowed());
            prop_assert!(!again(retry_us - 1).allowed());
            prop_assert!(!again((ms - 1) * 1000).allowed());
        }
    }

    #[test]
    fn a_clock_that_went_back_locks_out_for_one_bucket_at_most(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000),
        back_us in 0..START_US,
        quantity_part in 0..=1000i64,
    ) {
        let mut bucket = Bucket::new(rate(max_burst, count, period_ms));
        let limit = i64::try_from(bucket.rate.limit).unwrap();
        let quantity = part_of(bucket.rate.limit, quantity_part).max(1);
        assert!(bucket.take(limit).allowed());
        bucket.now_us -= back_us;
        let told = bucket.take(quantity);
        let length_us = u64::try_from(bucket.rate.bucket.div_ceil(ATTOS_PER_US)).unwrap();
        prop_assert!(told.retry_after_us.unwrap() <= length_us);
        prop_assert!(told.reset_after_us <= length_us);
        bucket.now_us += told.retry_after_us.unwrap();
        prop_assert!(bucket.take(quantity).allowed());
    }

    /// At up to 1e9 a second: the rounding of so many intervals together is far below one interval.
    #[test]
    fn a_full_bucket_passes_max_burst_and_one_singles_at_one_instant(
        (max_burst, count, period_ms) in parameters(3000, 1_000_000_000_000)
            .prop_filter("1e9 a second", |&(_, count, ms)| count <= ms.saturating_mul(1_000_000)),
        idle_us in 0..YEAR_US,
    ) {
        let mut bucket = Bucket::new(rate(max_burst, count, period_ms));
        for _ in 0..2 {
            for left in (0..=max_burst).rev() {
                let got = bucket.take(1);
                prop_assert!(got.allowed());
                prop_assert_eq!(got.remaining, left);
            }
            prop_assert!(!bucket.passes());
            bucket.now_us += bucket.take(0).reset_after_us + idle_us;
        }
    }

    #[test]
    fn a_full_bucket_passes_one_call_of_max_burst_and_one(
        (max_burst, count, period_ms) in parameters(i64::MAX as u64 - 1, i64::MAX as u64),
    ) {
        let mut bucket = Bucket::new(rate(max_burst, count, period_ms));
        let got = bucket.take(i64::try_from(bucket.rate.limit).unwrap());
        prop_assert!(got.allowed());
        // Beyond 1e18 a second a unit costs less than the resolution.
        if bucket.rate.cost(1) > 0 {
            prop_assert_eq!(got.remaining, 0);
            prop_assert!(!bucket.passes());
        }
    }

    /// A state never says more than "empty", whatever parameters wrote it.
    #[test]
    fn changed_parameters_meet_no_more_than_an_empty_bucket(
        rates in prop::collection::vec(parameters(1_000_000, 1_000_000_000), 2..6),
        quantity_part in 1..=1000i64,
    ) {
        let mut bucket = Bucket::new(rate(rates[0].0, rates[0].1, rates[0].2));
        for (max_burst, count, period_ms) in rates {
            bucket.rate = rate(max_burst, count, period_ms);
            let quantity = part_of(bucket.rate.limit, quantity_part).max(1);
            let got = bucket.take(quantity);
            let length_us = u64::try_from(bucket.rate.bucket.div_ceil(ATTOS_PER_US)).unwrap();
            prop_assert!(got.reset_after_us <= length_us);
            bucket.now_us += got.retry_after_us.unwrap_or(0);
            prop_assert!(got.allowed() || bucket.take(quantity).allowed());
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
        let mut bucket = Bucket::new(rate(u64::from(burst) - 1, 1000, interval_us));
        for (wait_parts, quantity) in calls {
            let wait_us = interval_us * wait_parts / 1000;
            clock.advance(Duration::from_micros(wait_us));
            bucket.now_us += wait_us;
            let got = bucket.take(i64::from(quantity));
            match governor.check_n(NonZeroU32::new(quantity).unwrap()) {
                Err(_) => prop_assert!(!got.allowed() && got.retry_after_us.is_none()),
                Ok(Ok(())) => prop_assert!(got.allowed()),
                Ok(Err(not_until)) => {
                    let wait = not_until.wait_time_from(clock.now());
                    prop_assert_eq!(got.retry_after_us, Some(u64::try_from(wait.as_micros()).unwrap()));
                }
            }
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
        value in "[0-9]{19}(\\.[0-9]{1,9})?",
        key in any::<bool>(),
        quantity in edges(),
        atmost in any::<bool>(),
    ) {
        let stored = Tat::decode(value.as_bytes()).filter(|_| key);
        if let Ok(rate) = Rate::new(max_burst, count, period_ms) {
            let quantity = quantity as i64;
            look(&rate, stored, now_us, quantity, false);
            let (decision, next) = decide(&rate, stored, now_us, quantity, atmost && quantity >= 0);
            prop_assert!(decision.remaining <= rate.limit);
            prop_assert!(decision.granted <= rate.limit);
            if let Next::Store(tat) = next {
                prop_assert_eq!(Tat::decode(tat.encode().as_bytes()), Some(tat));
                tat.full_at_ms();
            }
        }
    }

    #[test]
    fn every_time_is_read_as_it_was_written(attos in 0..=LAST_TAT, zeros in 0..28u32) {
        let tat = Tat(attos / 10u128.pow(zeros) * 10u128.pow(zeros));
        prop_assert_eq!(Tat::decode(tat.encode().as_bytes()), Some(tat));
    }

    #[test]
    fn any_bytes_are_a_time_or_none(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[0-9]{0,19}[0-9.eE+\\- ]{0,12}".prop_map(String::into_bytes),
    ]) {
        if let Some(tat) = Tat::decode(&bytes) {
            let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
            let points = bytes.iter().filter(|&&byte| byte == b'.').count();
            prop_assert!(digits >= 19 && digits + points == bytes.len() && bytes.len() <= 29);
            prop_assert!(bytes.starts_with(tat.encode().as_bytes()));
        }
    }

    #[test]
    fn the_value_expires_when_it_stops_mattering(attos in 0..=LAST_TAT) {
        let full_at = u128::from(Tat(attos).full_at_ms()) * 1000 * ATTOS_PER_US;
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

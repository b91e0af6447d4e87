//! Random calls compared with an exact model in rational numbers.

use super::*;
use crate::model::bucket;
use crate::properties::cases;
use num_rational::BigRational;
use proptest::prelude::*;

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

/// GCRA as in the literature, and debts. Times are in microseconds. Only the stored debt is rounded.
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

    fn call(&mut self, now_us: u64, ask: &Ask) -> Result<Decision, Refusal> {
        let now = whole(now_us);
        let empty = &now + &self.interval * whole(self.limit);
        let last = &empty + whole(self.debt_ns) / whole(1000u64);
        let is_from_future = self.tat.as_ref().is_some_and(|tat| *tat > last);
        let tat = self.tat.clone().unwrap_or(now.clone()).max(now.clone()).min(last);
        let cost = |quantity: u64| &self.interval * whole(quantity);
        let free = |tat: &BigRational| {
            if *tat > empty {
                0
            } else {
                down((&empty - tat) / &self.interval)
            }
        };
        let cannot_be_stored = |tat: &BigRational| *tat > whole(LAST_TAT) / whole(ATTOS_PER_US);
        let (within_us, books) = match ask.manner {
            Manner::Ahead { within_us } => (within_us, true),
            _ => (0, false),
        };
        let (verdict, after) = match ask.quantity {
            Quantity::Look => (Verdict::taking(0), None),
            Quantity::GiveBack(_) if tat == now && !is_from_future => (Verdict::taking(0), None),
            Quantity::GiveBack(quantity) => {
                (Verdict::taking(0), Some((&tat - cost(quantity)).max(now.clone())))
            }
            Quantity::Take(wanted) if ask.manner == Manner::Force => {
                let after = &tat + cost(wanted);
                if &after - &empty > whole(MAX_DEBT_NS) / whole(1000u64) || cannot_be_stored(&after)
                {
                    return Err(Refusal::DebtTooLong);
                }
                (Verdict::taking(wanted), Some(after))
            }
            Quantity::Take(wanted) => {
                let atmost = ask.manner == Manner::AtMost;
                let least = u128::from(if atmost { 1 } else { wanted }) + u128::from(ask.leave);
                let missing = &tat + &self.interval * whole(least) - &empty;
                if least > u128::from(self.limit) {
                    (Verdict::Never, None)
                } else if missing > whole(within_us) {
                    let wait_us = up(missing - whole(within_us));
                    let verdict = Verdict::Denied { wait_us, obstacle: Obstacle::Counted };
                    (verdict, is_from_future.then(|| tat.clone()))
                } else {
                    let most = if atmost { free(&tat) - ask.leave } else { u64::MAX };
                    let taken = wanted.min(most);
                    if cannot_be_stored(&(&tat + cost(taken))) {
                        return Err(Refusal::DebtTooLong);
                    }
                    let go_after_us = if books { up(missing.max(whole(0u64))) } else { 0 };
                    (Verdict::Allowed { taken, go_after_us }, Some(&tat + cost(taken)))
                }
            }
        };
        let shown = after.as_ref().unwrap_or(&tat);
        let remaining = free(shown);
        let reset_after_us = up(shown - &now);
        if let Some(after) = after {
            let debt = (&after - &empty).max(whole(0u64)) * whole(1000u64);
            self.debt_ns = up(debt);
            self.tat = Some(after).filter(|after| *after > now);
        }
        Ok(Decision {
            verdict,
            limit: self.limit,
            remaining,
            reset_after_us,
            ..Decision::default()
        })
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
        Rate::new(burst, count, ms).is_some()
    })
}

/// What a caller does next.
#[derive(Clone, Debug)]
enum CallerStep {
    /// Moves the clock by this many thousandths of the bucket's length, and a few microseconds.
    Clock(i64, i64),
    /// Asks for a number of units.
    Ask(i64, Way),
    /// Asks for this many thousandths of the bucket's capacity. A negative number gives back.
    AskPart(i64, Way),
    /// Waits for the time in the last reply.
    Wait,
}

/// How a step takes, in thousandths of the limit or of the bucket's length.
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
    /// Whether the time that taking `quantity` leads to can be stored, as all until 2286 can. If not, the call is an error.
    fn can_store(&self, quantity: i64) -> bool {
        let tat = self.stored.map_or(0, StoredBucket::tat);
        tat + self.rate.cost(quantity.unsigned_abs()) <= LAST_TAT
    }

    /// What a step asks for; `None` for one that only moves the clock. The time that it goes on is added to `true_us`.
    fn wants(&mut self, step: &CallerStep, told_us: u64, true_us: &mut u64) -> Option<Ask> {
        let now_us = match step {
            CallerStep::Clock(part, us) => {
                let obstacle = part_of(self.length_us(), *part) + us;
                let late_us = START_US + 100 * YEAR_US;
                self.now_us.saturating_add_signed(obstacle).clamp(START_US / 2, late_us)
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
                let within_us = part_of(self.length_us(), part).unsigned_abs().min(YEAR_US);
                (0, Manner::Ahead { within_us })
            }
        };
        Ask { leave, manner, ..whole }
    }

    /// The debt that is stored.
    fn debt_ns(&self) -> u64 {
        self.stored.map_or(0, |stored| stored.debt_ns)
    }
}

/// Makes calls of a key and its model, which must agree in everything. A debt that is a whole number of nanoseconds may be
/// stored as one more or less, because the stored time is rounded down. Before a step the rate may become another.
fn agree(
    (max_burst, count, period_ms): (u64, u64, u64),
    steps: impl IntoIterator<Item = (CallerStep, Option<(u64, u64, u64)>)>,
) -> Result<(), TestCaseError> {
    let mut key = TestKey::new(rate(max_burst, count, period_ms));
    let mut model = Model::new(max_burst, count, period_ms);
    let mut told_us = 0;
    for (step, other) in steps {
        if let Some((max_burst, count, period_ms)) = other {
            key.rate = rate(max_burst, count, period_ms);
            model.set_rate(max_burst, count, period_ms);
        }
        let Some(ask) = key.wants(&step, told_us, &mut 0) else { continue };
        let got = key.call(&ask);
        prop_assert_eq!(got, model.call(key.now_us, &ask), "{:?}", ask);
        prop_assert_eq!(key.stored.is_some(), model.tat.is_some());
        prop_assert!(
            key.debt_ns().abs_diff(model.debt_ns) <= 1,
            "{} {}",
            key.value(),
            model.debt_ns
        );
        model.debt_ns = key.debt_ns();
        told_us = got.ok().and_then(|got| got.verdict.retry_after_us()).unwrap_or(0).min(YEAR_US);
    }
    Ok(())
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
    #![proptest_config(cases(400))]

    /// Counts up to 1e9 each millisecond and a microsecond clock leave a thousand attoseconds between any two
    /// moments that differ, more than sixty roundings can bridge: every number of every reply is the exact one.
    #[test]
    fn replies_are_the_exact_models(
        parameters in parameters(1_000_000, 1_000_000_000),
        steps in steps(1200, 1100, plain()),
    ) {
        agree(parameters, steps.into_iter().map(|step| (step, None)))?;
    }

    /// The same with all options. Debts are whole nanoseconds, which asks for larger intervals.
    #[test]
    fn replies_with_debts_and_bookings_are_the_exact_models(
        parameters in parameters(1_000_000, 1_000_000),
        steps in steps(1200, 1100, any_way()),
    ) {
        agree(parameters, steps.into_iter().map(|step| (step, None)))?;
    }

    /// The limit changes on a live key, with debts from one limit under another, and the clock steps both ways.
    #[test]
    fn replies_are_the_exact_models_when_the_parameters_change(
        steps in steps(1200, 1100, any_way()),
        changes in prop::collection::vec(prop::option::of(prop::sample::select(&KIN[..])), 60),
    ) {
        agree(KIN[0], steps.into_iter().zip(changes))?;
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
        let before = StoredBucket::new(now.saturating_add_signed(shift) + used_attos + past_empty, debt_ns);
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
        let is_from_future = before.tat() > last;
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
            (_, Manner::Ahead { within_us }, verdict) => {
                let missing = (tat + floor_cost(asked)).saturating_sub(empty);
                let ahead = u128::from(within_us) * ATTOS_PER_US;
                let us = |attos: u128| u64::try_from(attos.div_ceil(ATTOS_PER_US)).unwrap();
                prop_assert_eq!(verdict, if missing > ahead {
                    Verdict::Denied { wait_us: us(missing - ahead), obstacle: Obstacle::Counted }
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
            (_, _, Verdict::Denied { wait_us, obstacle }) => {
                prop_assert!(wait_us > 0 && obstacle == Obstacle::Counted);
                prop_assert!(least <= u128::from(key.rate.limit));
                prop_assert!(!fits(u64::try_from(least).unwrap(), tat));
            }
        }

        // The new time is the exact one, rounded down.
        let after = if let Quantity::GiveBack(quantity) = ask.quantity {
            let after = whole(tat) - cost(quantity);
            down_to_attos(&after.max(whole(now)))
        } else {
            tat + floor_cost(taken)
        };
        match next {
            BucketEdit::Keep => {
                let nothing_to_say = asked == 0 && ask.quantity == Quantity::Look || got.verdict == Verdict::Never;
                prop_assert!(nothing_to_say || (after == tat && !is_from_future));
            }
            BucketEdit::Store(stored) => {
                prop_assert_eq!(stored.tat(), after);
                prop_assert_eq!(u128::from(stored.debt_ns), debt_of(after));
                prop_assert!(stored.tat() > now);
                prop_assert!(got.verdict.allowed() || is_from_future);
            }
            BucketEdit::Delete => prop_assert_eq!(after, now),
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
    /// when the clock is set back. What is booked counts when the caller may go on, which is rounded up to a microsecond,
    /// and comes in order.
    #[test]
    fn never_over_admits(
        (max_burst, count, period_ms) in parameters(1_000_000_000_000, 1_000_000_000_000)
            .prop_filter("1e12 a second", |&(_, count, ms)| count <= ms.saturating_mul(1_000_000_000)),
        (books, steps) in prop_oneof![
            (Just(false), steps(1200, 0, plain())),
            (Just(true), steps(0, 0, prop_oneof![plain(), (0..2500i64).prop_map(Way::Ahead)].boxed())),
        ],
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
        within_the_rate(&admitted, (max_burst, count, period_ms), u64::from(books));
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
        key.stored = Some(StoredBucket::new(tat.min(LAST_TAT), debt_ns));
        let quantity = part_of(key.rate.limit, quantity_part).max(1);
        let ask = key.ask(quantity, way);
        let verdict = key.call(&ask).map(|decision| decision.verdict);
        if let Some(retry_us) = verdict.ok().and_then(Verdict::retry_after_us) {
            prop_assert!(retry_us >= 1);
            prop_assume!(key.can_store(quantity));
            let again = |after_us: u64| decide(&key.rate, key.stored, now_us + after_us, &ask).0.verdict;
            let ms = retry_us.div_ceil(1_000);
            prop_assert!(again(retry_us).allowed());
            prop_assert!(again(ms * 1000).allowed());
            prop_assert!(again(retry_us.next_multiple_of(SECOND_US)).allowed());
            prop_assert!(!again(retry_us - 1).allowed());
            prop_assert!(!again((ms - 1) * 1000).allowed());
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
    #![proptest_config(cases(4000))]

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
        within_us in edges(),
        manner in 0..4u8,
    ) {
        let stored = StoredBucket::decode(value.as_bytes()).filter(|_| key);
        if let Some(rate) = Rate::new(max_burst, count, period_ms) {
            let quantity = Quantity::from_signed(quantity as i64);
            let manner = [Manner::Whole, Manner::AtMost, Manner::Force, Manner::Ahead { within_us }][usize::from(manner)];
            let ask = Ask { leave, manner, ..Ask::whole(quantity) };
            let barred = bucket(&rate, stored, now_us).judge(&ask, true);
            let Ok((decision, next)) = throttle(&rate, stored, now_us, &ask) else {
                let within_us = if let Manner::Ahead { within_us } = manner { within_us } else { 0 };
                let last = (u128::from(now_us) + u128::from(within_us)) * ATTOS_PER_US + rate.bucket;
                prop_assert!(manner == Manner::Force || last > LAST_TAT);
                return Ok(());
            };
            let barred = barred.unwrap();
            prop_assert_eq!(barred.allowed(), !quantity.takes() || manner == Manner::Force);
            prop_assert!(barred.retry_after_us().is_none_or(|wait_us| wait_us >= 1_000));
            prop_assert_eq!(barred == Verdict::Never, decision.verdict == Verdict::Never);
            prop_assert!(decision.remaining <= rate.limit);
            prop_assert!(decision.verdict.taken() <= rate.limit || manner == Manner::Force);
            if let BucketEdit::Store(stored) = next {
                prop_assert_eq!(StoredBucket::decode(stored.encode().as_bytes()), Some(stored));
                stored.needed_until_ms();
            }
        }
    }

    #[test]
    fn every_state_is_read_as_it_was_written(
        attos in 0..=LAST_TAT,
        zeros in 0..28u32,
        debt_ns in prop_oneof![Just(0), magnitude(MAX_DEBT_NS)],
    ) {
        let stored = StoredBucket::new(attos / 10u128.pow(zeros) * 10u128.pow(zeros), debt_ns);
        prop_assert_eq!(StoredBucket::decode(stored.encode().as_bytes()), Some(stored));
    }

    #[test]
    fn any_bytes_are_a_state_or_none(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[0-9]{0,19}[0-9.eE+\\- ]{0,12}".prop_map(String::into_bytes),
        "[0-9]{19}(\\.[0-9]{1,10})?\\+?[0-9]{0,20}".prop_map(String::into_bytes),
    ]) {
        if let Some(stored) = StoredBucket::decode(&bytes) {
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
}

/// Any number, those near an edge more often.
fn edges() -> impl Strategy<Value = u64> {
    let near = |edge: u64| {
        (0..=2u64, any::<bool>()).prop_map(move |(obstacle, above)| {
            if above {
                edge.saturating_add(obstacle)
            } else {
                edge.saturating_sub(obstacle)
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

//! Ties what was proved of the arithmetic (crates/proofs/lemmas/lemmas.py) to the functions that run.

use super::*;

#[test]
fn the_formulas_that_were_proved_are_the_ones_that_run() {
    let mut rows = 0;
    for line in include_str!("../../lemmas.txt").lines() {
        let Some(numbers) = line.strip_prefix("gcra ") else { continue };
        let numbers: Vec<u128> = numbers.split(' ').map(|one| one.parse().unwrap()).collect();
        let [max_burst, count, period_ms, quantity, room, cost, refund, affordable, bucket] =
            numbers[..]
        else {
            panic!("{line}")
        };
        let [max_burst, count, period_ms, quantity] =
            [max_burst, count, period_ms, quantity].map(|one| u64::try_from(one).unwrap());
        let rate = Rate::new(max_burst, count, period_ms).unwrap();
        assert_eq!(rate.bucket, bucket, "{line}");
        assert_eq!(rate.cost(quantity), cost, "{line}");
        assert_eq!(rate.refund(quantity), refund, "{line}");
        assert_eq!(u128::from(rate.affordable(room)), affordable, "{line}");
        let time = cost.min(LAST_TAT);
        let (ns, attos) = split_ns(time);
        assert_eq!(
            (u128::from(ns), u128::from(attos)),
            (time / 1_000_000_000, time % 1_000_000_000)
        );
        rows += 1;
    }
    assert_eq!(rows, 50);
}

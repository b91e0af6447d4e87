//! Ties what was proved of sums and of the bisection (crates/proofs/lemmas/lemmas.py) to the functions that run.

use super::*;
use crate::calendar::Zones;
use crate::rule::Rule;

const HOUR_US: u64 = 3_600_000_000;

#[test]
fn the_sums_and_the_bisection_that_were_proved_are_the_ones_that_run() {
    let mut rows = 0;
    let zones = &mut Zones::new();
    let rule = Rule::parse(b"1h", zones).unwrap();
    for line in include_str!("../../lemmas.txt").lines() {
        let Some(numbers) = line.strip_prefix("sum ") else { continue };
        let numbers: Vec<u64> = numbers.split(' ').map(|one| one.parse().unwrap()).collect();
        let (entries, &[need, counted, answer]) = numbers.split_at(numbers.len() - 3) else {
            panic!("{line}")
        };
        let mut zset = Zset::default();
        let mut now_us = START_US;
        for entry in entries.chunks(3) {
            now_us = START_US + entry[0];
            let (total, weight) = (entry[1], entry[2]);
            zset.add(&Entry { newest_us: now_us, span_us: 0, total, weight, denied: false });
        }
        let rule_now = rule.at(now_us, zones).unwrap();
        let count = WindowCount::read(&mut zset, rule_now).unwrap();
        assert_eq!(count.counted(), counted, "{line}");
        let held = Reservations::default();
        let freed_us = freed_at_us(&mut zset, &count, &held, u128::from(need)).unwrap();
        assert_eq!(freed_us, Some(START_US + answer + HOUR_US), "{line}");
        rows += 1;
    }
    assert_eq!(rows, 50);
}

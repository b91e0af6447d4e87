//! An entry that can be read is written the same way, and its weight is at most the largest sum of a key.
#![no_main]

use engine::entry::{Entry, MAX_SUM};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (f64, u64, &[u8])| {
    let (score, us, member) = input;
    for score in [score, -((us >> 11) as f64), -1.8e15] {
        let Some(entry) = Entry::decode(score, member) else { continue };
        assert_eq!(entry.score(), score);
        assert_eq!(entry.member().as_bytes(), member);
        assert!((1..=MAX_SUM).contains(&entry.weight));
        assert!(entry.first_us() <= entry.newest_us);
        assert_eq!(entry.sum_since(&entry), entry.weight);
    }
});

//! An entry that is read would be written so, and none is worth more than a key may hold.
#![no_main]

use engine::event::{Event, MAX_SUM};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (f64, u64, &[u8])| {
    let (score, us, member) = input;
    for score in [score, -((us >> 11) as f64), -1.8e15] {
        let Some(event) = Event::decode(score, member) else { continue };
        assert_eq!(event.score(), score);
        assert_eq!(event.member().as_bytes(), member);
        assert!((1..=MAX_SUM).contains(&event.weight));
        assert!(event.first_us() <= event.newest_us);
        assert_eq!(event.sum_since(&event), event.weight);
    }
});

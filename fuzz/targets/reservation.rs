//! A reservation that is read can be written, and means the same then.
#![no_main]

use libfuzzer_sys::fuzz_target;
use engine::event::MAX_SUM;
use engine::reservation::{prefix, Reservation, MAX_ID, YEAR_MS};

fuzz_target!(|input: (u64, &[u8])| {
    let (now_us, member) = input;
    let Some(one) = Reservation::decode(member) else { return };
    assert!((1..=MAX_ID).contains(&one.id.len()));
    assert!((1..=MAX_SUM).contains(&one.quantity));
    assert!((1..=YEAR_MS).contains(&one.lease_ms));
    assert_eq!(one.live(now_us), one.lapses_us(now_us) > now_us);
    assert!(one.lapses_us(now_us) <= one.end_us);

    // As healing does it, and RENEW.
    let end_us = one.lapses_us(now_us);
    for written in [one, Reservation { end_us, ..one }] {
        let again = written.member();
        let bytes = again.as_bytes();
        assert!(
            prefix(one.id, b':').as_bytes() <= bytes && bytes < prefix(one.id, b';').as_bytes()
        );
        let back = Reservation::decode(bytes).expect("what is written can be read");
        assert_eq!((back.id, back.rule), (one.id, one.rule));
        assert_eq!((back.quantity, back.lease_ms), (one.quantity, one.lease_ms));
        assert_eq!((back.end_us, back.order_us), (written.end_us, written.order_us));
    }
});

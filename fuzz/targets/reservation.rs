//! A reservation that can be read can be written, with the same meaning.
#![no_main]

use engine::calendar::Zones;
use engine::entry::MAX_SUM;
use engine::period::YEAR_MS;
use engine::reservation::{Reservation, ReservationView, MAX_ID};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &[u8])| {
    let (now_us, member) = input;
    let Some(one) = Reservation::decode(member) else { return };
    assert!((1..=MAX_ID).contains(&one.id.len()));
    assert!((1..=MAX_SUM).contains(&one.quantity));
    assert!((1..=YEAR_MS).contains(&one.lease_ms));
    assert_eq!(one.runs(now_us), one.seen_lease_end_us(now_us) > now_us);
    assert!(one.seen_lease_end_us(now_us) <= one.lease_end_us && one.lease_end_us <= one.gone_us);
    assert!(one.is_live(now_us) || !one.runs(now_us));
    assert_eq!(one.member().as_bytes(), member);

    // Healing and RL.RENEW write it like this.
    let seen = ReservationView::at(now_us, &mut Zones::new()).see(&one);
    assert_eq!(
        seen.lease_end_us,
        if one.is_from_future(now_us) { one.seen_lease_end_us(now_us) } else { one.lease_end_us }
    );
    assert_eq!(
        (seen.is_live(now_us), seen.counts_lapsed()),
        (one.is_live(now_us), one.counts_lapsed())
    );
    for written in [one, seen] {
        let again = written.member();
        let bytes = again.as_bytes();
        let back = Reservation::decode(bytes).expect("what is written can be read");
        assert_eq!((back.id, back.rule), (one.id, one.rule));
        assert_eq!((back.quantity, back.lease_ms), (one.quantity, one.lease_ms));
        assert_eq!(
            (back.lease_end_us, back.arrival_us),
            (written.lease_end_us, written.arrival_us)
        );
        assert_eq!(back.gone_us, written.gone_us);
    }
});

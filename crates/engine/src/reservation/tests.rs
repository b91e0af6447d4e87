use super::*;
use crate::properties::{cases, START_US};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn every_reservation_comes_back(
        id in proptest::collection::vec(any::<u8>(), 1..=MAX_ID),
        quantity in 1..=MAX_SUM,
        lease_ms in 1..=YEAR_MS,
        lease_end_us in any::<u64>(),
        after_us in prop_oneof![Just(0), 1..=MAX_AFTER_US],
        arrival_us in any::<u64>(),
        rule in "[ -~]{1,96}",
    ) {
        let (rule, gone_us) = (rule.as_bytes(), lease_end_us.saturating_add(after_us));
        let one = Reservation { id: &id[..], quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule };
        let member = one.member();
        let back = Reservation::decode(member.as_bytes()).unwrap();
        let fields = |one: &ReservationRef| {
            (one.quantity, one.lease_ms, one.lease_end_us, one.gone_us, one.arrival_us)
        };
        prop_assert_eq!(fields(&back), fields(&one));
        prop_assert_eq!((back.id, back.rule), (one.id, one.rule));
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..90),
        text in "#[0-9]{0,3}:[a-z:]{0,5}:[0-9]{0,3}:[0-9]{0,3}:[0-9]{0,20}(\\+[0-9]{0,20})?:[0-9]{0,3}:.{0,9}",
    ) {
        for bytes in [&bytes[..], text.as_bytes()] {
            if let Some(one) = Reservation::decode(bytes) {
                let again = one.member();
                prop_assert_eq!(again.as_bytes(), bytes);
            }
        }
    }
}

const MEMBER: &[u8] = b"#05:job-1:2:20000:1795223819544558::60s";

/// A server keeps a sorted set in a listpack as long as no member is longer than 64 bytes.
#[test]
fn an_id_of_the_server_fits_a_listpack_with_common_rules() {
    for rule in [
        "1d@America/Argentina/Buenos_Aires",
        "1mo@Europe/Berlin=quo0",
        "6mo@America/Argentina/Buenos_Aires=1kirn",
        "1y@Europe/Berlin=16ibo0",
        "14d@+05:45=tnvac0",
        "1w@America/Argentina/Buenos_Aires=83o0",
        "60s/65536",
        "30d^first",
    ] {
        let mut zones = Zones::new();
        let rule = Rule::parse(rule.as_bytes(), &mut zones).unwrap().write(&zones);
        let (now_us, lease_ms) = (START_US, 20_000);
        let end_us = lease_end_us(now_us, lease_ms);
        let reservation = Reservation {
            id: &id_from_random([0; 16]),
            quantity: 9,
            lease_ms,
            lease_end_us: end_us,
            gone_us: end_us,
            arrival_us: start_us(end_us, lease_ms),
            rule: rule.as_bytes(),
        };
        let length = reservation.member().as_bytes().len();
        assert!(length <= 64, "{length} with {rule:?}");
    }
}

#[test]
fn sixteen_random_bytes_are_sixteen_characters() {
    let bytes = [0, 25, 26, 51, 52, 61, 62, 63, 64, 90, 127, 128, 200, 254, 255, 1];
    assert_eq!(&id_from_random(bytes), b"AZaz09-_Aa_AI-_B");
}

/// A reservation of a semaphore holds after its lease only if another client wrote it so.
#[test]
fn a_rule_without_events_keeps_the_time_that_it_finds() {
    let one = Reservation::decode(b"#01:x:1:1000:1795223819544558+7::-").unwrap();
    let zones = &mut Zones::new();
    for (start_us, now_us) in [(one.start_us(), one.start_us()), (START_US, START_US)] {
        let seen = ReservationView::at(now_us, zones).see(&one);
        assert_eq!(seen.lease_end_us, start_us + 1_000_000);
        assert_eq!(seen.gone_us, seen.lease_end_us + 7);
        assert!(!seen.is_from_future(now_us));
    }
}

#[test]
fn foreign_text_is_not_a_reservation() {
    for member in [
        "",
        "#",
        ":05:job-1:2:20000:1795223819544558::60s",
        "17",
        "#05:job-1",
        "#06:job-1:2:20000:1795223819544558::60s",
        "#05:job-1:0:20000:1795223819544558::60s",
        "#05:job-1:2:0:1795223819544558::60s",
        "#05:job-1:02:20000:1795223819544558::60s",
        "#05:job-1:2:20000:x::60s",
        "#05:job-1:2:20000:1795223819544558:60s",
        "#05:job-1:2:20000:1795223819544558::",
        "#05:job-1:2:20000:1795223819544558+:60s",
        "#05:job-1:2:20000:1795223819544558+0::60s",
        "#05:job-1:2:20000:1795223819544558+01::60s",
        "#05:job-1:2:20000:1795223819544558-1::60s",
        "#05:job-1:2:20000:1795223819544558++1::60s",
        "#05:job-1:2:20000:1795223819544558+1+1::60s",
        "#05:job-1:2:20000:1795223819544558+1:60s",
        "#05:job-1:2:20000:18446744073709551615+1::60s",
        "#05:job-1:2:20000:1795223819544558+3158438400000001::60s",
        "#00::2:20000:1795223819544558::60s",
        "#5:job-1:2:20000:1795223819544558::60s",
    ] {
        assert!(Reservation::decode(member.as_bytes()).is_none(), "{member}");
    }
    let longest = b"#05:job-1:2:20000:1795223819544558+3158438400000000::60s";
    assert!(Reservation::decode(longest).is_some());
}

#[test]
fn a_rule_that_could_not_be_written_back_is_none_of_ours() {
    for (length, ours) in [(MAX_RULE, true), (MAX_RULE + 1, false), (1_000, false)] {
        let member = [MEMBER, &vec![b'x'; length - 3]].concat();
        assert_eq!(Reservation::decode(&member).is_some(), ours, "{length}");
    }
}

#[test]
fn a_lease_from_the_future_ends_one_lease_from_now() {
    let one = Reservation::decode(MEMBER).unwrap();
    assert_eq!(one.seen_lease_end_us(one.lease_end_us - 1), one.lease_end_us);
    assert_eq!(one.seen_lease_end_us(1_000_000), 21_000_000);
    assert!(one.is_live(one.lease_end_us - 1) && !one.is_live(one.lease_end_us));
}

#[test]
fn a_reservation_that_counts_when_it_lapses_holds_longer_than_its_lease() {
    let text = b"#05:job-1:2:20000:1795223819544558+60000000::60s";
    let one = Reservation::decode(text).unwrap();
    assert_eq!(one.member().as_bytes(), text);
    assert_eq!(one.gone_us, one.lease_end_us + 60_000_000);
    assert!(one.runs(one.lease_end_us - 1) && !one.runs(one.lease_end_us));
    assert!(one.is_live(one.gone_us - 1) && !one.is_live(one.gone_us));
}

#[test]
fn after_a_clock_that_went_back_it_holds_by_its_rule_from_the_new_end_on() {
    let minute = 60_000_000;
    // Half a minute into a minute, and a lease of 20 seconds.
    let now_us = 1_795_223_790_000_000;
    for (rule, after_us) in [
        ("60s", minute),
        ("60s/10", minute),
        ("1min@UTC", minute / 6),
        // 31 days from 21 November on: until 21 December.
        ("1mo", 30 * 1_440 * minute),
        // What no rule says stays as it was.
        ("?", 7),
    ] {
        let lease_end_us = now_us + 900 * minute;
        let one = Reservation {
            lease_end_us,
            gone_us: lease_end_us + 7,
            rule: rule.as_bytes(),
            ..Reservation::decode(MEMBER).unwrap()
        };
        let zones = &mut Zones::new();
        let seen = ReservationView::at(now_us, zones).see(&one);
        assert_eq!(seen.lease_end_us, now_us + 20_000_000, "{rule}");
        assert_eq!(seen.gone_us, seen.lease_end_us + after_us, "{rule}");
        // From then on it is as it is.
        let again = ReservationView::at(now_us, zones).see(&seen);
        assert_eq!((again.lease_end_us, again.gone_us), (seen.lease_end_us, seen.gone_us));
        let plain = Reservation { gone_us: one.lease_end_us, ..one };
        assert_eq!(ReservationView::at(now_us, zones).see(&plain).gone_us, now_us + 20_000_000);
    }
}

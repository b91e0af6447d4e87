use super::*;
use crate::memory::{MemoryServer, Outcome};

const NOW_US: u64 = 1_795_223_799_544_558;

/// A server with a share of the policies in `policies`.
fn server(part: u32, whole: u32, policies: &str) -> MemoryServer {
    let share = Share::new(part, whole).unwrap();
    let mut server = MemoryServer::with_share(share, |bytes| bytes.fill(7));
    server.set(b"policies", policies.as_bytes()).unwrap();
    server
}

/// The replies to a call that is made again and again, and to a look at its key in between.
fn replies(mut server: MemoryServer, line: &str) -> Vec<Outcome> {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    (0..5).map(|_| server.call(&words, NOW_US)).collect()
}

/// Checks that a share of this line is answered as `is` is without shares.
#[track_caller]
fn check(part: u32, whole: u32, line: &str, is: &str) {
    let shared = replies(server(part, whole, ""), line);
    assert_eq!(shared, replies(server(1, 1, ""), is), "{line}");
}

#[test]
fn a_limit_is_rounded_down_but_stays_at_least_one() {
    for (line, is) in [
        ("RL.WINDOW k 10 60", "RL.WINDOW k 2 60"),
        ("RL.WINDOW k 3 60", "RL.WINDOW k 1 60"),
        ("RL.WINDOW k 0 60", "RL.WINDOW k 0 60"),
        ("rl.window_ro k 400 1mo 7 FIXED MS", "rl.window_ro k 100 1mo 7 FIXED MS"),
        ("RL.ACQUIRE k 5 0 1 ID LEAVE LEAVE 2", "RL.ACQUIRE k 1 0 1 ID LEAVE LEAVE 1"),
        ("RL.WINDOW k many 60", "RL.WINDOW k many 60"),
    ] {
        check(1, 4, line, is);
    }
}

#[test]
fn a_rate_keeps_its_number_for_each_time_exactly() {
    for (line, is) in [
        // 16 at once and 30 a minute: 4 at once and 30 in four minutes.
        ("RL.THROTTLE k 15 30 60 1 MS", "RL.THROTTLE k 3 30 240000ms 1 MS"),
        ("RL.THROTTLE k 15 40 60 1 MS", "RL.THROTTLE k 3 10 60 1 MS"),
        ("RL.THROTTLE_RO k 0 1 500ms", "RL.THROTTLE_RO k 0 1 2000ms"),
        // No period is longer than 100 years, or 36525 days.
        ("RL.THROTTLE k 0 1 30000d", "RL.THROTTLE k 0 1 36525d"),
        ("RL.THROTTLE k 0 7 30000d", "RL.THROTTLE k 0 1 30000d"),
    ] {
        check(1, 4, line, is);
    }
    check(2, 3, "RL.THROTTLE k 8 5 1s 3 MS", "RL.THROTTLE k 5 10 3000ms 3 MS");
    // Three processes with almost a third of 2 a week must not admit 3.
    check(3_333, 10_000, "RL.THROTTLE k 0 2 7d", "RL.THROTTLE k 0 1 907290730ms");
}

#[test]
fn each_clause_and_each_policy_is_scaled() {
    let all = "RL.ALL 2 WINDOW @x WINDOW 60 1min 2 LEAVE 6 ELSE ACQUIRE 8 0 1 ID WINDOW MS";
    let is = "RL.ALL 2 WINDOW @x WINDOW 15 1min 2 LEAVE 2 ELSE ACQUIRE 2 0 1 ID WINDOW MS";
    check(1, 4, all, is);
    let policies = "free THROTTLE 15 30 60;; day  WINDOW 9 1d FIXED TZ UTC BAN 5 SHADOW";
    let is = "free THROTTLE 7 15 60; ; day WINDOW 4 1d FIXED TZ UTC BAN 5 SHADOW";
    for line in ["RL.THROTTLE k @free 3 MS", "RL.WINDOW k @day 3"] {
        let shared = replies(server(1, 2, policies), line);
        assert_eq!(shared, replies(server(1, 1, is), line), "{line}");
    }
    // They are shown as they were set.
    assert_eq!(server(1, 2, policies).get(b"policies").unwrap(), policies.as_bytes());
}

#[test]
fn a_share_is_above_nothing_and_at_most_all() {
    assert_eq!([(0, 4), (5, 4), (0, 0)].map(|(part, whole)| Share::new(part, whole)), [None; 3]);
    check(4, 4, "RL.THROTTLE k 15 30 60 1", "RL.THROTTLE k 15 30 60 1");
}

#[test]
fn a_number_is_the_nearest_fraction_or_rounded_down() {
    let share = |number: f64| {
        Share::nearest(number).map(|share| (share.numerator.get(), share.denominator.get()))
    };
    for (number, fraction) in [
        (0.25, (1, 4)),
        (1.0 / 3.0, (1, 3)),
        (0.333_333_333, (1, 3)),
        (0.666_666_667, (2, 3)),
        (0.333, (333, 1_000)),
        (2.0 / 7.0, (2, 7)),
        (1.0, (1, 1)),
        (1.0 / 10_000.0, (1, 10_000)),
        (0.123_456_789, (1_234, 10_000)),
    ] {
        assert_eq!(share(number), Some(fraction), "{number}");
    }
    let none = [0.0, -0.5, 1.000_1, 1.5, 1e-5, f64::NAN, f64::INFINITY].map(share);
    assert_eq!(none, [None; 7]);
}

/// The shares of all processes together admit no more than the limit, where it has a unit for each.
#[test]
fn all_shares_together_are_never_more_than_the_limit() {
    for whole in 1..=20_u32 {
        for limit in whole..=60 {
            let each = Share::new(1, whole).unwrap().scale_limit(limit.into());
            assert!(each * u64::from(whole) <= u64::from(limit), "{each} of {limit} for 1/{whole}");
        }
    }
}

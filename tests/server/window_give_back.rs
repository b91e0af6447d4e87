//! A negative quantity on RL.WINDOW: what turned out not to count is given back.

use support::*;

#[test]
fn the_oldest_that_counts_is_uncounted() {
    let (server, mut conn) = Server::held();
    for _ in 0..3 {
        assert_eq!(conn.ints("RL.WINDOW k 3 60")[0], 0);
        server.clock().advance_ms(10_000);
    }
    assert_eq!(conn.ints("RL.WINDOW k 3 60 1 MS"), [1, 3, 0, 30_000, 50_000]);
    assert_eq!(conn.ints("RL.WINDOW k 3 60 -1 MS"), [0, 3, 1, -1, 50_000]);
    // The second is the oldest now.
    assert_eq!(conn.ints("RL.WINDOW k 3 60 2 MS"), [1, 3, 1, 40_000, 50_000]);
    assert_eq!(conn.ints("RL.WINDOW k 3 60 -2 MS"), [0, 3, 3, -1, 0]);
    assert_eq!(conn.int("EXISTS k"), 0);
}

#[test]
fn of_a_larger_entry_the_rest_stays_with_its_time() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 9 60 5");
    server.clock().advance_ms(20_000);
    conn.cmd("RL.WINDOW k 9 60 4");
    assert_eq!(conn.ints("RL.WINDOW k 9 60 -3 MS"), [0, 9, 3, -1, 60_000]);
    assert_eq!(conn.ints("RL.WINDOW_RO k 9 60 4 MS"), [1, 9, 3, 40_000, 60_000]);
    assert_eq!(conn.ints("RL.WINDOW_RO k 9 60 5 MS"), [1, 9, 3, 40_000, 60_000]);
    assert_eq!(conn.ints("RL.WINDOW_RO k 9 60 6 MS"), [1, 9, 3, 60_000, 60_000]);
    // Two of the first entry and one of the second.
    assert_eq!(conn.ints("RL.WINDOW k 9 60 -3 MS"), [0, 9, 6, -1, 60_000]);
    assert_eq!(conn.ints("RL.WINDOW_RO k 9 60 7 MS"), [1, 9, 6, 60_000, 60_000]);
}

#[test]
fn where_nothing_is_counted_not_one_byte_is_written() {
    let (server, mut conn) = Server::builder().aof().held();
    let nothing: [String; 0] = [];
    for options in ["", "BUCKETS 3", "FIXED"] {
        let call = format!("RL.WINDOW k 5 60 -1 {options}");
        let grown = server.aof_grows_by(|| assert_eq!(conn.ints(&call), [0, 5, 5, -1, 0]));
        assert_eq!(grown, nothing, "{options}");
    }
    // Reservations are no events, and neither is what has left.
    conn.cmd("RL.ACQUIRE k 5 60 2 ID x LEASE 600000");
    let before = conn.cmd("DUMP k");
    let grown =
        server.aof_grows_by(|| assert_eq!(conn.ints("RL.WINDOW k 5 60 -9")[..4], [0, 5, 3, -1]));
    assert_eq!((grown.as_slice(), conn.cmd("DUMP k")), (&nothing[..], before));
    assert_eq!(conn.held_ids("k"), ["x"]);
    conn.cmd("RL.WINDOW k 5 60 3");
    server.clock().advance_ms(60_000);
    assert_eq!(conn.ints("RL.WINDOW k 5 60 -9")[..4], [0, 5, 3, -1]);
    assert_eq!(conn.held_ids("k"), ["x"]);
}

#[test]
fn denied_calls_that_were_counted_are_uncounted_in_their_order() {
    let (server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 2 60 2");
    for _ in 0..2 {
        server.clock().advance_ms(10_000);
        assert_eq!(conn.ints("RL.WINDOW k 2 60 1 COUNTDENIED")[0], 1);
    }
    assert_eq!(conn.ints("RL.WINDOW_RO k 2 60 1 MS")[3], 50_000);
    // The two admitted are the oldest.
    assert_eq!(conn.ints("RL.WINDOW k 2 60 -2 MS")[..4], [0, 2, 0, -1]);
    assert_eq!(conn.ints("RL.WINDOW_RO k 2 60 1 MS")[3], 50_000);
    assert_eq!(conn.ints("RL.WINDOW k 2 60 -1 MS")[..4], [0, 2, 1, -1]);
    assert_eq!(conn.ints("RL.WINDOW_RO k 2 60 2 MS")[3], 60_000);
}

#[test]
fn looking_accepts_it() {
    let (_server, mut conn) = Server::held();
    conn.cmd("RL.WINDOW k 5 60 2");
    let before = conn.cmd("DUMP k");
    for quantity in [-1, -9, i64::MIN] {
        let call = format!("RL.WINDOW_RO k 5 60 {quantity}");
        assert_eq!(conn.ints(call), [0, 5, 3, -1, 60], "{quantity}");
    }
    assert_eq!(conn.cmd("DUMP k"), before);
    assert_eq!(conn.ints(format!("RL.WINDOW k 5 60 {}", i64::MIN)), [0, 5, 5, -1, 0]);
}

#[test]
fn it_never_waits_and_wakes_calls_that_do() {
    let server = Server::start();
    let mut conn = server.conn();
    conn.cmd("RL.WINDOW k 2 1h 2");
    let mut waiter = server.wait_in_line("RL.WINDOW k 2 1h 1 BLOCK 0");
    assert_eq!(conn.ints("RL.WINDOW k 2 1h -1 BLOCK 0")[0], 0);
    assert_eq!(limited(&waiter.recv()), 0);
    server.expect_no_waiting_calls();
}

/// A window as a list of when something was counted, and how much.
#[derive(Debug, Default)]
struct GiveBackModel {
    events: Vec<(i64, i64)>,
}

/// How a key's events leave.
#[derive(Clone, Copy, Debug)]
enum GiveBackRule {
    Sliding,
    Fixed,
}

const PERIOD_US: i64 = 60_000_000;

impl GiveBackRule {
    fn leaves_us(self, event_us: i64) -> i64 {
        match self {
            GiveBackRule::Sliding => event_us + PERIOD_US,
            GiveBackRule::Fixed => event_us - event_us.rem_euclid(PERIOD_US) + PERIOD_US,
        }
    }
}

impl GiveBackModel {
    fn live(&self, kind: GiveBackRule, now_us: i64) -> Vec<(i64, i64)> {
        let live = |event: &&(i64, i64)| kind.leaves_us(event.0) > now_us;
        self.events.iter().filter(live).copied().collect()
    }

    /// The five integers, in milliseconds.
    fn call(&mut self, kind: GiveBackRule, now_us: i64, limit: i64, quantity: i64) -> Vec<i64> {
        let mut events = self.live(kind, now_us);
        let sum = |events: &[(i64, i64)]| events.iter().map(|event| event.1).sum::<i64>();
        let (mut limited, mut retry_us) = (0, -1);
        if quantity < 0 {
            let mut back = -quantity;
            for event in &mut events {
                let part = back.min(event.1);
                event.1 -= part;
                back -= part;
            }
            events.retain(|event| event.1 > 0);
            self.events = events.clone();
        } else if quantity > limit {
            limited = 1;
        } else if sum(&events) + quantity > limit && quantity > 0 {
            limited = 1;
            let mut rest = events.clone();
            while sum(&rest) + quantity > limit {
                retry_us = kind.leaves_us(rest.remove(0).0) - now_us;
            }
        } else if quantity > 0 {
            events.push((now_us, quantity));
            self.events.push((now_us, quantity));
        }
        let reset_us = events.last().map_or(0, |last| kind.leaves_us(last.0) - now_us);
        let in_ms = |us: i64| if us < 0 { -1 } else { (us + 999) / 1_000 };
        vec![limited, limit, (limit - sum(&events)).max(0), in_ms(retry_us), in_ms(reset_us)]
    }
}

#[test]
fn every_answer_is_that_of_a_list_of_events() {
    let (server, mut conn) = Server::held();
    let clock = server.clock();
    for seed in seeds(1..=80) {
        let mut random = Random::new(seed);
        conn.cmd("FLUSHALL");
        clock.set_us(START_US + random.below(86_400_000_000));
        let kind =
            random.pick(&[GiveBackRule::Sliding, GiveBackRule::Sliding, GiveBackRule::Fixed]);
        let options = if matches!(kind, GiveBackRule::Fixed) { "FIXED" } else { "" };
        let limit = 1 + random.below(20);
        let mut model = GiveBackModel::default();
        for step in 0..250 {
            clock.advance_us(match random.below(8) {
                0..=2 => 0,
                3 => 1,
                4 => random.below(PERIOD_US),
                _ => random.below(PERIOD_US / 10),
            });
            let quantity = match random.below(3) {
                0 => -random.below(limit + 2),
                _ => random.below(limit.min(5) + 1),
            };
            let line = format!("RL.WINDOW k {limit} 60 {quantity} MS {options}");
            let expected = model.call(kind, clock.now_us(), limit, quantity);
            let answer = conn.ints(&line);
            assert_eq!(answer, expected, "seed {seed}, step {step}: {line} at {}", clock.now_us());
        }
    }
}

/// Whichever of the events that still count a refund is meant for: those that are kept never are more than the limit in
/// any period. The test means it for a random one.
#[test]
fn whichever_event_was_meant_no_more_than_the_limit_are_kept_in_any_period() {
    let (server, mut conn) = Server::held();
    let clock = server.clock();
    for seed in seeds(1..=80) {
        let mut random = Random::new(seed);
        conn.cmd("FLUSHALL");
        clock.set_us(START_US);
        let limit = 2 + random.below(8);
        let options = random.pick(&["", "", "BUCKETS 5", "BUCKETS 1"]);
        // When each was admitted; those that were given back are taken out.
        let mut kept: Vec<i64> = Vec::new();
        for _ in 0..300 {
            clock.advance_us(random.below(PERIOD_US / 8));
            let now_us = clock.now_us();
            let counting: Vec<usize> =
                (0..kept.len()).filter(|&at| kept[at] + PERIOD_US > now_us).collect();
            if random.one_in(4) && !counting.is_empty() {
                assert_eq!(conn.ints(format!("RL.WINDOW k {limit} 60 -1 {options}"))[0], 0);
                kept.remove(random.pick(&counting));
            } else if conn.ints(format!("RL.WINDOW k {limit} 60 1 {options}"))[0] == 0 {
                kept.push(now_us);
            }
            let in_period = |end: &i64| {
                kept.iter().filter(|at| **at <= *end && **at + PERIOD_US > *end).count() as i64
            };
            let most = kept.iter().map(in_period).max().unwrap_or(0);
            assert!(most <= limit, "seed {seed}: {most} of {limit} kept with {options}");
        }
    }
}

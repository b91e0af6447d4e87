//! Random calls of RL.WINDOW, each answer compared with that of an obvious list of events.

use support::*;

/// How a key's events leave.
#[derive(Clone, Copy, Debug)]
enum ModelRule {
    Sliding {
        period_us: i64,
    },
    /// Windows in UTC that begin at multiples of their length.
    Fixed {
        length_us: i64,
    },
}

impl ModelRule {
    fn leaves_us(self, event_us: i64) -> i64 {
        match self {
            ModelRule::Sliding { period_us } => event_us + period_us,
            ModelRule::Fixed { length_us } => event_us - event_us.rem_euclid(length_us) + length_us,
        }
    }

    fn words(self) -> String {
        match self {
            ModelRule::Sliding { period_us } => format!("{}ms", period_us / 1000),
            ModelRule::Fixed { length_us } => format!("{} FIXED", length_us / 1_000_000),
        }
    }
}

/// One call.
#[derive(Debug)]
struct ModelAsk {
    limit: i64,
    quantity: i64,
    atmost: bool,
    count_denied: bool,
    looks: bool,
}

/// A key as a list of when something was counted, and how much.
struct WindowModel {
    kind: ModelRule,
    events: Vec<(i64, i64)>,
}

impl WindowModel {
    /// The five integers, and with ATMOST the sixth, in microseconds.
    fn call(&mut self, now_us: i64, ask: &ModelAsk) -> Vec<i64> {
        let live = |(at_us, weight): &(i64, i64)| {
            let at_us = *at_us.min(&now_us);
            (self.kind.leaves_us(at_us) > now_us).then_some((at_us, *weight))
        };
        let mut events: Vec<_> = self.events.iter().filter_map(live).collect();
        events.sort_unstable();
        let sum = |events: &[(i64, i64)]| events.iter().map(|(_, weight)| weight).sum::<i64>();
        let least = if ask.atmost { 1 } else { ask.quantity };
        let free = ask.limit - sum(&events);
        let (mut limited, mut granted, mut retry_us) = (1, 0, -1);
        if ask.quantity == 0 {
            limited = 0;
        } else if least > ask.limit {
        } else if least <= free {
            (limited, granted) = (0, ask.quantity.min(free));
            if !ask.looks {
                events.push((now_us, granted));
                self.events = events.clone();
            }
        } else {
            if ask.count_denied && ask.quantity <= ask.limit {
                events.push((now_us, ask.quantity));
            }
            if !ask.looks {
                self.events = events.clone();
            }
            // The first moment at which enough has left.
            let mut rest = events.clone();
            while sum(&rest) + least > ask.limit {
                retry_us = self.kind.leaves_us(rest.remove(0).0) - now_us;
            }
        }
        let reset_us = events.last().map_or(0, |last| self.kind.leaves_us(last.0) - now_us);
        let mut answer =
            vec![limited, ask.limit, (ask.limit - sum(&events)).max(0), retry_us, reset_us];
        if ask.atmost {
            answer.push(granted);
        }
        answer
    }
}

fn in_unit(mut answer: Vec<i64>, unit_us: i64) -> Vec<i64> {
    for time in [3, 4] {
        answer[time] = match answer[time] {
            -1 => -1,
            us => (us + unit_us - 1) / unit_us,
        };
    }
    answer
}

fn play(server: &Server, conn: &mut Conn, seed: u64) {
    let mut random = Random::new(seed);
    let clock = server.clock();
    clock.set_us(START_US + random.below(86_400_000_000));
    conn.cmd("FLUSHALL");
    let kind = match random.below(4) {
        0 => ModelRule::Fixed { length_us: 60_000_000 },
        1 => ModelRule::Sliding { period_us: 1_000 * (1 + random.below(20)) },
        2 => ModelRule::Sliding { period_us: 60_000_000 },
        _ => ModelRule::Sliding { period_us: 1_000_000 },
    };
    let length_us = match kind {
        ModelRule::Sliding { period_us } => period_us,
        ModelRule::Fixed { length_us } => length_us,
    };
    // Denied calls fold at a 4096th of the period: the clock moves in larger steps where they are counted.
    let counts_denied = random.one_in(3);
    let grain_us = if counts_denied { length_us / 1_000 } else { 1 };
    let busy = 1 + random.below(30);
    let mut model = WindowModel { kind, events: Vec::new() };
    // A dead event may be gone or not: the clock does not go back to where it would count again.
    let mut floor_us = 0;
    for step in 0..250 {
        let mut now_us = clock.now_us();
        let far = length_us / grain_us;
        now_us += grain_us
            * match random.below(30) {
                0 => -random.below(far * 3),
                1 => random.below(far * 3),
                2..=8 => 0,
                9..=12 => 1,
                _ => random.below(far / busy + 2),
            };
        clock.set_us(now_us.max(floor_us).max(START_US));
        let leave = model.events.iter().map(|(at_us, _)| kind.leaves_us(*at_us));
        floor_us = leave.filter(|us| *us <= clock.now_us()).fold(floor_us, i64::max);
        let ask = ModelAsk {
            limit: if random.one_in(10) { random.below(40) } else { 1 + random.below(15) },
            quantity: if random.one_in(3) { random.below(9) } else { 1 },
            atmost: random.one_in(6),
            count_denied: counts_denied && random.one_in(2),
            looks: random.one_in(5),
        };
        let ask = ModelAsk {
            atmost: ask.atmost && !ask.looks,
            count_denied: ask.count_denied && !ask.looks,
            ..ask
        };
        let (unit_us, unit) = if random.one_in(4) { (1_000_000, "") } else { (1_000, "MS") };
        let mut period = kind.words();
        let mut fixed = "";
        if let Some(length) = period.strip_suffix(" FIXED") {
            (period, fixed) = (length.to_owned(), "FIXED");
        }
        let line = format!(
            "RL.WINDOW{} k {} {period} {} {fixed} {} {} {unit}",
            if ask.looks { "_RO" } else { "" },
            ask.limit,
            ask.quantity,
            if ask.atmost { "ATMOST" } else { "" },
            if ask.count_denied { "COUNTDENIED" } else { "" },
        );
        let expected = in_unit(model.call(clock.now_us(), &ask), unit_us);
        let answer = conn.ints(&line);
        assert_eq!(answer, expected, "seed {seed}, step {step}: {line} at {}", clock.now_us());
        // Waiting for retry_after is enough, and a millisecond less is not. A call that only looks does not correct a state
        // from the future, which goes on being so.
        let healed = model.events.iter().all(|(at_us, _)| *at_us <= clock.now_us());
        if healed && answer[0] == 1 && answer[3] > 0 && unit == "MS" && random.one_in(4) {
            let look = format!(
                "RL.WINDOW_RO k {} {period} {} {fixed}",
                ask.limit,
                if ask.atmost { 1 } else { ask.quantity }
            );
            let now_us = clock.now_us();
            clock.advance_ms(answer[3] - 1);
            assert_eq!(conn.ints(&look)[0], 1, "seed {seed}, step {step}: {line}");
            clock.advance_ms(1);
            assert_eq!(conn.ints(&look)[0], 0, "seed {seed}, step {step}: {line}");
            clock.set_us(now_us);
        }
    }
}

#[test]
fn every_answer_is_that_of_a_list_of_events() {
    let server = Server::builder().clock(true).start();
    let mut conn = server.conn();
    for seed in seeds(1..=120) {
        play(&server, &mut conn, seed);
    }
}

//! Random calls of RL.THROTTLE with FORCE, AHEAD and giving back, parameters that change on a live key and clocks that
//! step both ways; each answer is compared with that of an exact model.

use support::*;

/// The model counts in parts of a nanosecond that all the intervals are whole numbers of.
const PARTS: i128 = 210;
const MS: i128 = 1_000_000 * PARTS;

/// One limit.
#[derive(Clone, Copy, Debug)]
struct ModelRate {
    max_burst: i128,
    count: i128,
    period_s: i128,
}

impl ModelRate {
    fn interval(self) -> i128 {
        self.period_s * 1_000 * MS / self.count
    }

    fn bucket(self) -> i128 {
        (self.max_burst + 1) * self.interval()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Plain,
    Looks,
    Atmost,
    Force,
    Ahead { ms: i128 },
}

/// A key: when the bucket is full again, and by how much that may be beyond an empty bucket.
#[derive(Debug, Default)]
struct DebtModel {
    stored: Option<(i128, i128)>,
}

impl DebtModel {
    /// The five integers in milliseconds, and a sixth where there is one.
    fn call(&mut self, now: i128, rate: ModelRate, quantity: i128, how: How) -> Vec<i128> {
        let (interval, bucket, limit) = (rate.interval(), rate.bucket(), rate.max_burst + 1);
        let (stored, debt) = self.stored.unwrap_or((now, 0));
        let mut tat = stored.min(now + bucket + debt).max(now);
        let is_healed = stored > now + bucket + debt;
        let free = ((now + bucket - tat) / interval).clamp(0, limit);
        let wait_for = |quantity: i128| tat + quantity * interval - now - bucket;
        let (mut limited, mut retry, mut sixth) = (0, -1, None);
        let mut write = true;
        let mut taken = quantity;
        match how {
            How::Looks if quantity <= 0 => taken = 0,
            _ if quantity == 0 => {
                taken = 0;
                sixth = matches!(how, How::Ahead { .. } | How::Atmost).then_some(0);
            }
            _ if quantity < 0 => {}
            How::Force => {}
            How::Atmost => {
                taken = quantity.min(free);
                sixth = Some(taken);
                if taken == 0 {
                    (limited, retry) = (1, wait_for(1));
                }
            }
            How::Ahead { ms } => {
                let wait = wait_for(quantity);
                sixth = Some(wait.max(0));
                if quantity > limit {
                    (limited, taken, sixth, write) = (1, 0, Some(-1), false);
                } else if wait > ms * MS {
                    (limited, taken, retry, sixth) = (1, 0, wait - ms * MS, Some(-1));
                }
            }
            How::Plain | How::Looks => {
                if quantity > limit {
                    (limited, taken, write) = (1, 0, false);
                } else if wait_for(quantity) > 0 {
                    (limited, taken, retry) = (1, 0, wait_for(quantity));
                } else if how == How::Looks {
                    taken = 0;
                }
            }
        }
        if how != How::Looks && quantity != 0 {
            tat = (tat + taken * interval).max(now);
            let changes = taken > 0 || (taken < 0 && self.stored.is_some());
            if changes || (write && is_healed) {
                // Whole nanoseconds, rounded up.
                let debt = (tat - now - bucket).max(0);
                let debt = (debt + PARTS - 1) / PARTS * PARTS;
                self.stored = (tat > now).then_some((tat, debt));
            }
        }
        let remaining = ((now + bucket - tat) / interval).clamp(0, limit);
        let in_ms = |parts: i128| if parts < 0 { -1 } else { (parts + MS - 1) / MS };
        let mut answer = vec![limited, limit, remaining, in_ms(retry), in_ms(tat - now)];
        answer.extend(sixth.map(|sixth| if how == How::Atmost { sixth } else { in_ms(sixth) }));
        answer
    }
}

fn play(server: &Server, conn: &mut Conn, seed: u64, bookings: bool) {
    let mut random = Random::new(seed);
    let clock = server.clock();
    clock.set_us(START_US + random.below(86_400_000_000));
    conn.cmd("FLUSHALL");
    let mut rate = ModelRate { max_burst: 4, count: 1, period_s: 1 };
    let mut model = DebtModel::default();
    for step in 0..200 {
        if step == 0 || random.one_in(12) {
            rate = ModelRate {
                max_burst: random.pick(&[0, 1, 4, 15, 99]),
                count: random.pick(&[1, 2, 3, 7, 30]),
                period_s: random.pick(&[1, 2, 60, 3_600]),
            };
        }
        let interval_us = (rate.interval() / PARTS / 1_000) as i64;
        let step_us = match random.below(14) {
            0 => -random.below(interval_us * 20),
            1 => random.below(interval_us * 40),
            2..=6 => 0,
            _ => random.below(interval_us * 2),
        };
        clock.set_us((clock.now_us() + step_us).max(START_US));
        // The server may have deleted a key that is full again, or not yet: the clock does not go back to before that.
        let now = i128::from(clock.now_us()) * 1_000 * PARTS;
        if model.stored.is_some_and(|(tat, _)| tat <= now) {
            conn.cmd("DEL k");
            model.stored = None;
        }
        let how = match random.below(if bookings { 12 } else { 8 }) {
            0 => How::Looks,
            1 => How::Atmost,
            2..=4 => How::Force,
            5..=7 => How::Plain,
            _ => How::Ahead { ms: 1 + i128::from(random.below(interval_us * 6 / 1_000 + 2)) },
        };
        let mut quantity = i128::from(random.below(rate.max_burst as i64 + 3));
        if matches!(how, How::Plain | How::Looks) && random.one_in(3) {
            quantity = -i128::from(random.below(rate.max_burst as i64 + 3));
        }
        let options = match how {
            How::Plain | How::Looks => String::new(),
            How::Atmost => "ATMOST".into(),
            How::Force => "FORCE".into(),
            How::Ahead { ms } => format!("AHEAD {ms}"),
        };
        let ModelRate { max_burst, count, period_s } = rate;
        let looks = if how == How::Looks { "_RO" } else { "" };
        let line =
            format!("RL.THROTTLE{looks} k {max_burst} {count} {period_s} {quantity} {options} MS");
        let now_us = clock.now_us();
        let expected = model.call(i128::from(now_us) * 1_000 * PARTS, rate, quantity, how);
        let answer: Vec<i128> = conn.ints(&line).into_iter().map(i128::from).collect();
        assert_eq!(answer, expected, "seed {seed}, step {step}: {line} at {now_us}");
    }
}

#[test]
fn every_answer_with_debts_is_that_of_an_exact_model() {
    let (server, mut conn) = Server::held();
    seeds(1..=120).into_iter().for_each(|seed| play(&server, &mut conn, seed, false));
}

#[test]
fn every_answer_with_debts_and_bookings_is_that_of_an_exact_model() {
    let (server, mut conn) = Server::held();
    seeds(1..=120).into_iter().for_each(|seed| play(&server, &mut conn, seed, true));
}

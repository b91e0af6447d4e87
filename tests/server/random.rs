//! Random calls of everything on real sockets, with restarts in between: after kill -9 from the AOF, rewritten or not,
//! and after a save from the RDB file. What comes back is held against models that hold buckets, events and leases in
//! plain lists, and never were down.
//!
//! `RATELIMIT_SEED=n cargo test --test server random::` replays one seed; a failure prints its own. `RATELIMIT_ROUNDS=n`
//! plays n seeds, each longer than the one that runs by default.

use std::fmt::Write;

use support::*;

const STEPS: usize = 250;
/// RL.THROTTLE with an interval of whole microseconds: the model's times are exact.
const BURST: i64 = 4;
const INTERVAL_US: i64 = 250_000;
const BUCKET_US: i64 = (BURST + 1) * INTERVAL_US;
const THROTTLE: &str = "4 4 1s";

const LIMIT: i64 = 6;
const PERIOD_US: i64 = 3_000_000;

/// The expected state of the server, kept in the simplest way.
#[derive(Debug, Default)]
struct FamiliesModel {
    now_us: i64,
    /// When the bucket is full again.
    tat_us: i64,
    /// When something was counted in the window `w`, and how much; in each minute of the calendar, `f`.
    events: Vec<(i64, i64)>,
    fixed: Vec<(i64, i64)>,
    /// Reservations in the window `w`, and in the semaphore `s`: id, quantity, end.
    leases: Vec<(String, i64, i64)>,
    held: Vec<(String, i64, i64)>,
}

const MINUTE_US: i64 = 60_000_000;

fn minute_end(us: i64) -> i64 {
    us - us.rem_euclid(MINUTE_US) + MINUTE_US
}

fn ms(us: i64) -> i64 {
    (us + 999).div_euclid(1_000)
}

impl FamiliesModel {
    fn forget(&mut self) {
        let now_us = self.now_us;
        self.events.retain(|(us, _)| us + PERIOD_US > now_us);
        self.fixed.retain(|(us, _)| minute_end(*us) > now_us);
        self.leases.retain(|(_, _, end_us)| *end_us > now_us);
        self.held.retain(|(_, _, end_us)| *end_us > now_us);
    }

    fn throttle(&mut self, quantity: i64) -> Vec<i64> {
        let tat_us = self.tat_us.max(self.now_us);
        let after_us = (tat_us + quantity * INTERVAL_US).max(self.now_us);
        let (mut limited, mut retry_us, mut debt_us) = (0, -1, after_us - self.now_us);
        if quantity > BURST + 1 {
            (limited, debt_us) = (1, tat_us - self.now_us);
        } else if quantity > 0 && debt_us > BUCKET_US {
            (limited, retry_us, debt_us) = (1, debt_us - BUCKET_US, tat_us - self.now_us);
        } else {
            self.tat_us = after_us;
        }
        let remaining = (BUCKET_US - debt_us) / INTERVAL_US;
        vec![
            limited,
            BURST + 1,
            remaining,
            if retry_us < 0 { -1 } else { ms(retry_us) },
            ms(debt_us),
        ]
    }

    /// When each of what counts ends, and how much: (window with its leases, minute, semaphore).
    fn ends(&self, key: char) -> Vec<(i64, i64)> {
        let leases = |all: &[(String, i64, i64)]| -> Vec<_> {
            all.iter().map(|(_, quantity, end_us)| (*end_us, *quantity)).collect()
        };
        let mut ends = match key {
            'w' => {
                let mut ends = leases(&self.leases);
                ends.extend(self.events.iter().map(|(us, weight)| (us + PERIOD_US, *weight)));
                ends
            }
            'f' => self.fixed.iter().map(|(us, weight)| (minute_end(*us), *weight)).collect(),
            _ => leases(&self.held),
        };
        ends.sort_unstable();
        ends
    }

    /// The reply for `quantity`, and whether it is granted.
    fn answer(&self, key: char, quantity: i64) -> (Vec<i64>, bool) {
        let ends = self.ends(key);
        let used: i64 = ends.iter().map(|(_, weight)| weight).sum();
        let counted: i64 = match key {
            'w' => self.events.iter().map(|(_, weight)| weight).sum(),
            'f' => used,
            _ => 0,
        };
        let had = used + quantity <= LIMIT;
        let (mut need, mut retry_us) = (used + quantity - LIMIT, -1);
        for (end_us, weight) in &ends {
            if need > 0 && quantity <= LIMIT {
                retry_us = end_us - self.now_us;
                need -= weight;
            }
        }
        let limited = match had || quantity == 0 {
            true => 0,
            false if quantity <= LIMIT && counted + quantity <= LIMIT => 2,
            false => 1,
        };
        if limited == 0 {
            retry_us = -1;
        }
        let reset_us = ends.last().map_or(0, |(end_us, _)| end_us - self.now_us);
        let retry = if retry_us < 0 { -1 } else { ms(retry_us) };
        (vec![limited, LIMIT, (LIMIT - used).max(0), retry, ms(reset_us)], had && quantity > 0)
    }

    fn list(&mut self, key: char) -> &mut Vec<(String, i64, i64)> {
        if key == 'w' {
            &mut self.leases
        } else {
            &mut self.held
        }
    }
}

/// A server, its models, and what was done.
struct FamiliesRun {
    server: Server,
    conn: Conn,
    model: FamiliesModel,
    random: Random,
    with_aof: bool,
    history: String,
}

impl FamiliesRun {
    fn new(seed: u64) -> FamiliesRun {
        let with_aof = seed % 2 == 0;
        let builder = Server::builder().clock(true);
        let server = if with_aof { builder.aof() } else { builder }.start();
        server.clock().set_us(START_US);
        let mut conn = server.conn();
        conn.cmd("SET x 5");
        let model = FamiliesModel { now_us: START_US, ..FamiliesModel::default() };
        let history = format!("seed {seed}, AOF: {with_aof}\n");
        FamiliesRun { server, conn, model, random: Random::new(seed), with_aof, history }
    }

    fn note(&mut self, line: &str) {
        writeln!(self.history, "{} {line}", self.model.now_us - START_US).unwrap();
    }

    /// A call in one of the ways that there are: alone, in MULTI, in a script.
    fn call(&mut self, line: &str) -> Value {
        self.note(line);
        match self.random.below(4) {
            0 => {
                let mut replies = self.conn.pipeline(["MULTI", line, "EXEC"]);
                let Some(Value::Array(mut values)) = replies.pop() else {
                    panic!("no EXEC: {line}")
                };
                values.pop().unwrap()
            }
            1 => {
                let script = "return redis.call(unpack(ARGV))";
                let mut words = vec![b"EVAL".to_vec(), script.into(), b"1".to_vec()];
                let call = line.words();
                words.push(call[1].clone());
                words.extend(call);
                self.conn.cmd(words)
            }
            _ => self.conn.cmd(line),
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=3 => self.throttle(),
            4..=7 => self.window(),
            8..=12 => self.acquire(),
            13..=16 => self.settle(),
            17 => self.odd(),
            18 if self.random.one_in(4) => self.restart(),
            _ => {
                let us = self.random.pick(&[0, 1, 999, 250_000, 400_000, 1_000_000, 20_000_000]);
                let us = us * self.random.below(3);
                self.server.clock().advance_us(us);
                self.model.now_us += us;
            }
        }
        self.model.forget();
        self.check();
    }

    fn throttle(&mut self) {
        let quantity = self.random.pick(&[1, 1, 1, 2, 3, 5, 6, -1, -3, 0]);
        let reply = self.call(&format!("RL.THROTTLE t {THROTTLE} {quantity} MS"));
        assert_eq!(ints(&reply), self.model.throttle(quantity));
    }

    fn window(&mut self) {
        let (key, rule) = self.random.pick(&[('w', "3s"), ('f', "1min")]);
        let fixed = if key == 'f' { "FIXED" } else { "" };
        let quantity = self.random.pick(&[1, 1, 1, 2, 3, 7]);
        let (mut expected, had) = self.model.answer(key, quantity);
        if had {
            let now_us = self.model.now_us;
            let list = if key == 'w' { &mut self.model.events } else { &mut self.model.fixed };
            list.push((now_us, quantity));
            expected = self.model.answer(key, 0).0;
        }
        expected[0] = expected[0].min(1);
        let reply = self.call(&format!("RL.WINDOW {key} {LIMIT} {rule} {quantity} {fixed} MS"));
        assert_eq!(ints(&reply), expected);
    }

    fn acquire(&mut self) {
        let (key, rule) = self.random.pick(&[('w', "3s"), ('s', "0")]);
        let id = self.random.pick(&["a", "b", "c:1", "dddd"]);
        let quantity = self.random.pick(&[1, 1, 2, 4]);
        let lease_ms = self.random.pick(&[1, 300, 2_000, 60_000]);
        let line =
            format!("RL.ACQUIRE {key} {LIMIT} {rule} {quantity} ID {id} LEASE {lease_ms} MS");
        let (mut expected, had) = self.model.answer(key, quantity);
        let end_us = self.model.now_us + lease_ms * 1_000;
        if self.model.list(key).iter().any(|(other, ..)| other == id) {
            self.note(&line);
            assert!(self.conn.err(&line).starts_with("DUPLICATE "), "{line}");
            return;
        }
        if had {
            self.model.list(key).push((id.into(), quantity, end_us));
            expected = self.model.answer(key, 0).0;
        }
        let reply = acquired(&self.call(&line));
        assert_eq!(reply.numbers.to_vec(), expected);
        assert_eq!(reply.id, had.then(|| id.into()));
    }

    fn settle(&mut self) {
        let key = self.random.pick(&['w', 's']);
        let id = self.random.pick(&["a", "b", "c:1", "dddd"]);
        let now_us = self.model.now_us;
        let place = self.model.list(key).iter().position(|(other, ..)| other == id);
        let line = match self.random.below(3) {
            0 if key == 'w' => {
                if let Some(place) = place {
                    let (_, quantity, _) = self.model.leases.remove(place);
                    self.model.events.push((now_us, quantity));
                }
                format!("RL.APPLY {key} {id}")
            }
            1 => {
                if let Some(place) = place {
                    self.model.list(key)[place].2 = now_us + 5_000_000;
                }
                format!("RL.RENEW {key} {id} LEASE 5000")
            }
            _ => {
                if let Some(place) = place {
                    self.model.list(key).remove(place);
                }
                format!("RL.RELEASE {key} {id}")
            }
        };
        assert_eq!(self.call(&line), Value::Int(i64::from(place.is_some())), "{line}");
    }

    /// What changes nothing: errors, and foreign keys.
    fn odd(&mut self) {
        let (line, error) = self.random.pick(&[
            ("RL.WINDOW x 6 3s", "WRONGTYPE the key does not hold a window (a sorted set)"),
            ("RL.THROTTLE x 4 4 1s", "ERR the key holds a string that RL.THROTTLE did not write"),
            ("RL.WINDOW w 6 1m", "ERR period has the ambiguous unit m"),
            ("RL.APPLY s a b c", "ERR wrong number of arguments"),
            ("RL.ACQUIRE w -1 3s", "ERR limit must be an integer from 0 "),
            ("RL.RENEW w", "ERR wrong number of arguments"),
        ]);
        self.note(line);
        self.conn.refuses(line, error);
    }

    fn restart(&mut self) {
        let how =
            if self.with_aof { self.random.pick(&[Stop::Kill, Stop::NoSave]) } else { Stop::Save };
        if self.with_aof && self.random.one_in(2) {
            self.note("BGREWRITEAOF");
            self.conn.cmd("BGREWRITEAOF");
            let server = &self.server;
            eventually(SOON, || {
                server.info("aof_rewrite_in_progress").as_deref() == Some("0")
                    && server.info("aof_rewrite_scheduled").as_deref() == Some("0")
            });
        }
        self.note(&format!("{how:?}"));
        self.server.restart(how);
        self.conn = self.server.conn();
    }

    /// All keys are as the model has them, and none lives for ever.
    fn check(&mut self) {
        let tat_us = self.model.tat_us;
        let throttled = self.model.throttle(0);
        self.model.tat_us = tat_us;
        let replies = self.conn.pipeline([
            &format!("RL.THROTTLE_RO t {THROTTLE} 0 MS"),
            &format!("RL.WINDOW_RO w {LIMIT} 3s 0 MS"),
            &format!("RL.WINDOW_RO f {LIMIT} 1min 0 FIXED MS"),
            "RL.HELD w",
            "RL.HELD s",
        ]);
        assert_eq!(ints(&replies[0]), throttled, "t");
        assert_eq!(ints(&replies[1]), self.model.answer('w', 0).0, "w");
        assert_eq!(ints(&replies[2]), self.model.answer('f', 0).0, "f");
        for (reply, key) in [(&replies[3], 'w'), (&replies[4], 's')] {
            let now_us = self.model.now_us;
            let line = |(id, quantity, end_us): &(String, i64, i64)| Held {
                id: id.clone().into(),
                quantity: *quantity,
                ms_left: ms(end_us - now_us),
            };
            let expected: Vec<_> = self.model.list(key).iter().map(line).collect();
            assert_eq!(held(reply), expected, "{key}");
        }
        for key in ["t", "w", "f", "s"] {
            assert_ne!(self.conn.int(["TTL", key]), -1, "{key} lives for ever");
        }
    }
}

/// On a failure the seed and the last steps are shown.
impl Drop for FamiliesRun {
    fn drop(&mut self) {
        show_end(&self.history, &self.model);
    }
}

#[test]
fn a_restart_brings_back_the_same_state() {
    let (seeds, steps) = match (env_number("RATELIMIT_SEED"), env_number("RATELIMIT_ROUNDS")) {
        (Some(seed), _) => (seed..=seed, 4 * STEPS),
        (None, Some(rounds)) => (1..=rounds, 4 * STEPS),
        (None, None) => (1..=4, STEPS),
    };
    for seed in seeds {
        let mut run = FamiliesRun::new(seed);
        for _ in 0..steps {
            run.step();
        }
    }
}

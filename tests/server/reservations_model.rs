//! RL.ACQUIRE, RL.APPLY, RL.RELEASE, RL.RENEW, RL.HELD and RL.WINDOW against a model that holds events and leases
//! in plain lists, and that never goes down while the server is killed, rewrites its AOF or loads an RDB file.
//!
//! `RATELIMIT_SEED=n cargo test --test server reservations_model::` replays one seed; a failure prints its own.

use std::fmt::Write;

use support::*;

const MINUTE_US: i64 = 60_000_000;
/// 21 November 2026, 00:00:30 in Kolkata, is this long before a multiple of seven minutes.
const KOLKATA_US: i64 = 7 * MINUTE_US - 1_795_199_430_000_000 % (7 * MINUTE_US);
const SEEDS: u64 = 36;
const STEPS: usize = 500;
/// Reservations that every other seed begins with: enough for the module to keep an index of the key.
const OTHERS: i64 = 9;

/// A kind of window.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WindowKind {
    Semaphore,
    Sliding { period_us: i64 },
    Buckets { period_us: i64, n: i64 },
    Fixed { period_us: i64, offset_us: i64 },
    FirstHit { period_us: i64 },
}

/// Arguments and their meaning.
const KINDS: [(&str, &str, WindowKind); 9] = [
    ("0", "", WindowKind::Semaphore),
    ("10", "", WindowKind::Sliding { period_us: 10_000_000 }),
    ("700ms", "", WindowKind::Sliding { period_us: 700_000 }),
    ("10s", "BUCKETS 4", WindowKind::Buckets { period_us: 10_000_000, n: 4 }),
    ("1min", "FIXED", WindowKind::Fixed { period_us: MINUTE_US, offset_us: 0 }),
    (
        "1h",
        "FIXED TZ Asia/Kolkata",
        WindowKind::Fixed { period_us: 60 * MINUTE_US, offset_us: 330 * MINUTE_US },
    ),
    (
        "7min",
        "FIXED FROM 2026-11-21@00:00:30 TZ Asia/Kolkata",
        WindowKind::Fixed { period_us: 7 * MINUTE_US, offset_us: KOLKATA_US },
    ),
    ("10s", "FIXED FROM first", WindowKind::FirstHit { period_us: 10_000_000 }),
    ("700ms", "FIXED FROM FIRST", WindowKind::FirstHit { period_us: 700_000 }),
];

impl WindowKind {
    /// When an event stops counting, in a window that began with it where the first event opens one.
    fn leave_us(self, event_us: i64) -> i64 {
        match self {
            WindowKind::FirstHit { period_us } => event_us + period_us,
            WindowKind::Semaphore => event_us,
            WindowKind::Sliding { period_us } | WindowKind::Buckets { period_us, .. } => {
                event_us + period_us
            }
            WindowKind::Fixed { period_us, offset_us } => {
                let local_us = event_us + offset_us;
                local_us - local_us.rem_euclid(period_us) + period_us - offset_us
            }
        }
    }

    /// The length of a sliding window; 0 for others.
    fn period_ms(self) -> i64 {
        match self {
            WindowKind::Sliding { period_us } | WindowKind::Buckets { period_us, .. } => {
                period_us / 1_000
            }
            WindowKind::Semaphore | WindowKind::Fixed { .. } | WindowKind::FirstHit { .. } => 0,
        }
    }

    /// Whether an event at `now_us` is counted with those that began at `first_us`.
    fn folds(self, first_us: i64, now_us: i64, limit: i64) -> bool {
        match self {
            WindowKind::Buckets { period_us, n } if limit > n => {
                (now_us - first_us) * n < period_us
            }
            WindowKind::FirstHit { period_us } => now_us - first_us < period_us,
            _ => false,
        }
    }
}

/// Events that count until the newest of them leaves.
#[derive(Clone, Copy, Debug)]
struct ModelEntry {
    first_us: i64,
    newest_us: i64,
    quantity: i64,
}

#[derive(Clone, Debug)]
struct ModelLease {
    id: String,
    quantity: i64,
    lease_us: i64,
    end_us: i64,
    /// When its lease ends, it counts as an event (COUNTLAPSED).
    counts: bool,
}

impl ModelLease {
    /// When it holds nothing any more.
    fn gone_us(&self, kind: WindowKind) -> i64 {
        if self.counts {
            kind.leave_us(self.end_us)
        } else {
            self.end_us
        }
    }
}

#[derive(Clone, Debug)]
struct ReservationsModel {
    kind: WindowKind,
    limit: i64,
    now_us: i64,
    entries: Vec<ModelEntry>,
    /// In the order in which they were granted.
    leases: Vec<ModelLease>,
}

/// limited, limit, remaining, retry_after, reset_after in microseconds; -1 stays -1.
type Answer = [i64; 5];

impl ReservationsModel {
    /// The state as a call now takes it: nothing is from the future.
    fn seen(&self) -> ReservationsModel {
        let mut seen = self.clone();
        seen.heal();
        seen
    }

    /// When an entry stops counting.
    fn leaves_us(&self, entry: &ModelEntry) -> i64 {
        match self.kind {
            WindowKind::FirstHit { .. } => self.kind.leave_us(entry.first_us),
            kind => kind.leave_us(entry.newest_us),
        }
    }

    /// Takes events from the future as happening now, and leases as beginning now.
    fn heal(&mut self) {
        self.heal_events();
        for lease in &mut self.leases {
            lease.end_us = lease.end_us.min(self.now_us + lease.lease_us);
        }
    }

    fn heal_events(&mut self) {
        let (kind, now_us, limit) = (self.kind, self.now_us, self.limit);
        let is_future = |e: &ModelEntry| e.newest_us > now_us;
        let Some(first) = self.entries.iter().find(|e| is_future(e)) else { return };
        let first_us = first.first_us.min(now_us);
        let future: i64 = self.entries.iter().filter(|e| is_future(e)).map(|e| e.quantity).sum();
        self.entries.retain(|e| !is_future(e));
        match self.entries.last_mut() {
            // They share the entry before them as an event of now would.
            Some(last) if last.newest_us == now_us || kind.folds(last.first_us, now_us, limit) => {
                last.newest_us = now_us;
                last.quantity += future;
            }
            _ => self.entries.push(ModelEntry { first_us, newest_us: now_us, quantity: future }),
        }
    }

    /// What ends by itself after `now_us`: when, and how much.
    fn ends(&self) -> Vec<(i64, i64)> {
        let events = self.entries.iter().map(|e| (self.leaves_us(e), e.quantity));
        let leases = self.leases.iter().map(|l| (l.gone_us(self.kind), l.quantity));
        let mut ends: Vec<_> =
            events.chain(leases).filter(|(end_us, _)| *end_us > self.now_us).collect();
        ends.sort_unstable();
        ends
    }

    fn counted(&self) -> i64 {
        let counts = |e: &&ModelEntry| self.leaves_us(e) > self.now_us;
        self.entries.iter().filter(counts).map(|e| e.quantity).sum()
    }

    fn held(&self) -> i64 {
        self.leases.iter().filter(|l| self.holds(l)).map(|l| l.quantity).sum()
    }

    fn holds(&self, lease: &ModelLease) -> bool {
        lease.gone_us(self.kind) > self.now_us
    }

    /// How many leases run.
    fn running(&self) -> i64 {
        self.leases.iter().filter(|l| l.end_us > self.now_us).count() as i64
    }

    /// Where the live lease `id` is.
    fn live(&self, id: &str) -> Option<usize> {
        self.leases.iter().position(|l| l.id == id && self.holds(l))
    }

    /// The answer for `quantity`, before anything is taken; to be asked of a state as it is seen.
    fn answer(&self, quantity: i64) -> Answer {
        let (counted, held) = (self.counted(), self.held());
        let (mut limited, mut retry_us) = (0, -1);
        if quantity > self.limit {
            limited = 1;
        } else if quantity > 0 && counted + held + quantity > self.limit {
            limited = if counted + quantity <= self.limit { 2 } else { 1 };
            let mut need = counted + held + quantity - self.limit;
            for (end_us, freed) in self.ends() {
                need -= freed;
                if need <= 0 {
                    retry_us = end_us - self.now_us;
                    break;
                }
            }
        }
        let reset_us = self.ends().last().map_or(0, |(end_us, _)| end_us - self.now_us);
        [limited, self.limit, (self.limit - counted - held).max(0), retry_us, reset_us]
    }

    fn record(&mut self, quantity: i64) {
        self.heal_events();
        let (kind, now_us, limit) = (self.kind, self.now_us, self.limit);
        match self.entries.last_mut() {
            Some(last) if last.newest_us == now_us || kind.folds(last.first_us, now_us, limit) => {
                last.newest_us = now_us;
                last.quantity += quantity;
            }
            _ => {
                if matches!(kind, WindowKind::FirstHit { .. }) {
                    self.entries.clear();
                }
                self.entries.push(ModelEntry { first_us: now_us, newest_us: now_us, quantity });
            }
        }
    }

    /// RL.WINDOW: the answer and what was granted.
    fn window(&mut self, quantity: i64, atmost: bool) -> (Answer, i64) {
        let seen = self.seen();
        let free = (self.limit - seen.counted() - seen.held()).max(0);
        let least = if atmost { quantity.min(1) } else { quantity };
        let mut answer = seen.answer(least);
        let granted = match answer[0] {
            0 => quantity.min(free),
            _ => 0,
        };
        if quantity > 0 && least <= self.limit {
            self.heal();
        }
        if granted > 0 {
            self.record(granted);
            answer = self.answer(0);
        }
        answer[0] = answer[0].min(1);
        (answer, granted)
    }

    /// RL.ACQUIRE: the answer and what was granted; nothing for DUPLICATE.
    fn acquire(&mut self, wanted: ModelLease, atmost: bool) -> Option<(Answer, i64)> {
        if self.live(&wanted.id).is_some() {
            return None;
        }
        let (quantity, seen) = (wanted.quantity, self.seen());
        let least = if atmost { quantity.min(1) } else { quantity };
        let answer = seen.answer(least);
        let free = (self.limit - seen.counted() - seen.held()).max(0);
        if quantity > 0 && least <= self.limit {
            self.heal();
        }
        if quantity == 0 || answer[0] != 0 {
            return Some((answer, 0));
        }
        let granted = quantity.min(free);
        let (kind, now_us) = (self.kind, self.now_us);
        self.leases.retain(|l| l.gone_us(kind) > now_us);
        self.leases.push(ModelLease { quantity: granted, ..wanted });
        Some((self.answer(0), granted))
    }

    fn release(&mut self, id: &str) -> bool {
        self.live(id).map(|at| self.leases.remove(at)).is_some()
    }

    fn apply(&mut self, id: &str, quantity: Option<i64>) -> bool {
        let Some(at) = self.live(id) else { return false };
        let lease = self.leases.remove(at);
        match quantity.unwrap_or(lease.quantity) {
            0 => {}
            quantity => self.record(quantity),
        }
        true
    }

    fn renew(&mut self, id: &str, lease_us: Option<i64>) -> bool {
        let Some(at) = self.live(id) else { return false };
        let lease = &mut self.leases[at];
        if lease.end_us <= self.now_us {
            return false;
        }
        lease.lease_us = lease_us.unwrap_or(lease.lease_us);
        lease.end_us = self.now_us + lease.lease_us;
        true
    }

    fn held_list(&self) -> Vec<Held> {
        let seen = self.seen();
        let live = seen.leases.iter().filter(|l| seen.holds(l));
        live.map(|l| Held {
            id: l.id.clone().into(),
            quantity: l.quantity,
            ms_left: ceil((l.end_us - seen.now_us).max(0), 1000),
        })
        .collect()
    }

    /// The earliest time that the clock may step back to without bringing back what has ended: the server may
    /// have cleared that away or not.
    fn floor_us(&self) -> i64 {
        let events = self.entries.iter().map(|e| self.leaves_us(e));
        let ended = events.chain(self.leases.iter().map(|l| l.gone_us(self.kind)));
        let floor_us = ended.filter(|end_us| *end_us <= self.now_us).max().unwrap_or(START_US);
        match self.kind {
            WindowKind::Fixed { period_us, .. } => {
                floor_us.max(self.kind.leave_us(self.now_us) - period_us)
            }
            _ => floor_us,
        }
    }
}

fn ceil(us: i64, unit: i64) -> i64 {
    (us + unit - 1).div_euclid(unit)
}

/// As the reply has it: times in milliseconds or seconds, rounded up.
fn in_unit(mut answer: Answer, ms: bool) -> Answer {
    let unit = if ms { 1_000 } else { 1_000_000 };
    for time in &mut answer[3..] {
        if *time != -1 {
            *time = ceil(*time, unit);
        }
    }
    answer
}

/// One key and its model, which must agree after each step.
struct ReservationsRun<'s> {
    server: &'s mut Server,
    conn: Conn,
    seed: u64,
    key: String,
    arguments: (&'static str, &'static str),
    others: i64,
    model: ReservationsModel,
    random: Random,
    /// Ended things that the lists no longer show.
    floor_us: i64,
    /// The retry_after of the last denied call, in milliseconds.
    retry_ms: Option<i64>,
    history: String,
}

impl<'s> ReservationsRun<'s> {
    fn new(server: &'s mut Server, seed: u64) -> ReservationsRun<'s> {
        let mut random = Random::new(seed);
        let (period, options, kind) = KINDS[seed as usize % KINDS.len()];
        let others = if seed as usize / KINDS.len() % 2 == 1 { OTHERS } else { 0 };
        let limit = others + 1 + random.below(9);
        let model = ReservationsModel {
            kind,
            limit,
            now_us: START_US,
            entries: Vec::new(),
            leases: Vec::new(),
        };
        server.clock().set_us(START_US);
        let mut run = ReservationsRun {
            conn: server.conn(),
            server,
            seed,
            key: format!("key:{seed}"),
            arguments: (period, options),
            others,
            model,
            random,
            floor_us: START_US,
            retry_ms: None,
            history: format!("seed {seed}, {kind:?}, limit {limit}\n"),
        };
        (0..others).for_each(|other| run.reserve(&format!("other:{other}")));
        run
    }

    fn reserve(&mut self, id: &str) {
        let line = self.line("RL.ACQUIRE", 1, &format!("ID {id} LEASE 1d"));
        assert_eq!(self.conn.acquire(&line).id(), id);
        let lease_us = 86_400_000_000;
        let end_us = self.model.now_us + lease_us;
        let lease = ModelLease { id: id.into(), quantity: 1, lease_us, end_us, counts: false };
        assert!(self.model.acquire(lease, false).is_some());
    }

    /// A call alone, in a transaction or in a script.
    fn call(&mut self, line: &str) -> Value {
        self.note(line);
        match self.random.below(8) {
            0 => self.conn.transaction([line]).remove(0),
            1 => {
                let mut words: Vec<_> = line.split_whitespace().collect();
                let key = words[1];
                words.splice(..0, ["EVAL", "return redis.call(unpack(ARGV))", "1", key]);
                self.conn.cmd(words)
            }
            _ => self.conn.cmd(line),
        }
    }

    /// Loses the process or the memory of the server, but no effect.
    fn restart(&mut self) {
        let rewritten = || {
            let is_over = |field| self.server.info(field).as_deref() == Some("0");
            is_over("aof_rewrite_in_progress") && is_over("aof_rewrite_scheduled")
        };
        match self.seed % 4 {
            0 => {}
            1 => {
                self.server.conn().cmd("BGREWRITEAOF");
                eventually(SOON, rewritten);
            }
            2 => return assert_eq!(self.conn.text("DEBUG RELOAD"), "OK"),
            _ => return,
        }
        self.note("restart");
        self.server.restart(Stop::Kill);
        self.conn = self.server.conn();
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=5 => self.acquire(),
            6..=8 if self.model.kind != WindowKind::Semaphore => self.window(),
            9..=10 => self.apply(),
            11 => self.release(),
            12..=13 => self.renew(),
            14 => self.step_back(),
            _ => self.pass(),
        }
        self.check();
    }

    fn id(&mut self) -> String {
        self.random.pick(&["a", "ab", "abc", "b", "b:1", ":"]).into()
    }

    /// The call that may come after a name, a key and a limit.
    fn line(&mut self, name: &str, quantity: i64, rest: &str) -> String {
        let (period, options) = self.arguments;
        let (key, limit) = (&self.key, self.model.limit);
        format!("{name} {key} {limit} {period} {quantity} {options} {rest}")
    }

    fn note(&mut self, line: &str) {
        writeln!(self.history, "{} {line}", self.model.now_us - START_US).unwrap();
    }

    fn acquire(&mut self) {
        // Another limit for the same window is a parameter that changed.
        if !matches!(self.model.kind, WindowKind::Buckets { .. }) && self.random.one_in(10) {
            self.model.limit = self.others + self.random.below(10);
        }
        let (id, ms) = (self.id(), !self.random.one_in(3));
        let quantity = self.random.pick(&[0, 1, 1, 1, 2, 2, 3, 5, 11]);
        let lease_ms = self.random.pick(&[1, 50, 300, 2_000, 9_000, 15_000, 90_000]);
        let unit = if ms { "MS" } else { "" };

        let look = self.line("RL.ACQUIRE_RO", quantity, unit);
        let seen = self.conn.acquire(&look);
        assert_eq!(seen.numbers, in_unit(self.model.seen().answer(quantity), ms), "{look}");
        assert_eq!(seen.id, None);

        let counts = self.model.kind != WindowKind::Semaphore && self.random.one_in(2);
        let atmost = self.random.one_in(3);
        let options = [(counts, "COUNTLAPSED"), (atmost, "ATMOST")]
            .map(|(on, word)| if on { word } else { "" });
        let rest = format!("ID {id} LEASE {lease_ms} {unit} {}", options.join(" "));
        let line = self.line("RL.ACQUIRE", quantity, &rest);
        let (lease_us, now_us) = (lease_ms * 1_000, self.model.now_us);
        let wanted =
            ModelLease { id: id.clone(), quantity, lease_us, end_us: now_us + lease_us, counts };
        let Some((answer, granted)) = self.model.acquire(wanted, atmost) else {
            return self.conn.refuses(&line, "DUPLICATE ");
        };
        let reply = self.call(&line);
        let (numbers, returned_id) = match atmost {
            true => {
                let reply = acquired_part(&reply);
                let seen = self.model.seen();
                assert_eq!((reply.granted, reply.running), (granted, seen.running()), "{line}");
                (reply.numbers, reply.id)
            }
            false => {
                let reply = acquired(&reply);
                (reply.numbers, reply.id)
            }
        };
        assert_eq!(numbers, in_unit(answer, ms), "{line}");
        assert_eq!(returned_id, (granted > 0).then(|| id.into_bytes()), "{line}");
        if granted > 0 {
            self.check_ttl();
        }
        self.follow_retry(&answer, if atmost { quantity.min(1) } else { quantity });
    }

    fn window(&mut self) {
        let (atmost, ms) = (self.random.one_in(3), !self.random.one_in(3));
        let quantity = self.random.pick(&[0, 1, 1, 1, 2, 3, 5, 11]);
        let unit = if ms { "MS" } else { "" };

        let look = self.line("RL.WINDOW_RO", quantity, unit);
        let mut seen = self.model.seen().answer(quantity);
        seen[0] = seen[0].min(1);
        assert_eq!(self.conn.ints(&look), in_unit(seen, ms), "{look}");

        let line = self.line("RL.WINDOW", quantity, if atmost { "ATMOST MS" } else { "MS" });
        let (answer, granted) = self.model.window(quantity, atmost);
        let mut expected = in_unit(answer, true).to_vec();
        if atmost {
            expected.push(granted);
        }
        assert_eq!(ints(&self.call(&line)), expected, "{line}");
        if granted > 0 {
            self.check_ttl();
        }
        self.follow_retry(&answer, if atmost { quantity.min(1) } else { quantity });
    }

    fn apply(&mut self) {
        let id = self.id();
        let quantity = self.random.pick(&[None, None, Some(0), Some(1), Some(2), Some(12)]);
        let text = quantity.map_or(String::new(), |quantity| quantity.to_string());
        let line = format!("RL.APPLY {} {id} {text}", self.key);
        if self.model.kind == WindowKind::Semaphore && self.model.live(&id).is_some() {
            self.conn.refuses(&line, "ERR the reservation is a semaphore's ");
            return;
        }
        let applied = i64::from(self.model.apply(&id, quantity));
        assert_eq!(self.call(&line), Value::Int(applied), "{line}");
    }

    fn release(&mut self) {
        let ids: Vec<_> = (0..1 + self.random.below(3)).map(|_| self.id()).collect();
        let line = format!("RL.RELEASE {} {}", self.key, ids.join(" "));
        let released = ids.iter().filter(|id| self.model.release(id)).count() as i64;
        assert_eq!(self.call(&line), Value::Int(released), "{line}");
    }

    fn renew(&mut self) {
        let id = self.id();
        let lease_ms = self.random.pick(&[None, Some(1), Some(700), Some(30_000)]);
        let option = lease_ms.map_or(String::new(), |lease_ms| format!("LEASE {lease_ms}"));
        let line = format!("RL.RENEW {} {id} {option}", self.key);
        let renewed = i64::from(self.model.renew(&id, lease_ms.map(|ms| ms * 1_000)));
        assert_eq!(self.call(&line), Value::Int(renewed), "{line}");
    }

    /// Time passes: a little, a lot, the retry_after of a denied call, or a millisecond less.
    fn pass(&mut self) {
        let us = match (self.random.below(8), self.retry_ms) {
            (0, Some(ms)) => ms * 1_000,
            (1, Some(ms)) => (ms - 1) * 1_000,
            (2, _) => 0,
            (3, _) => 1,
            (4, _) => self.random.below(90_000_000),
            (5, _) => self.random.below(3_600) * 1_000_000,
            _ => self.random.below(2_000_000),
        };
        self.go_to(self.model.now_us + us);
    }

    fn step_back(&mut self) {
        let us = self.random.pick(&[1, 1_000, 700_000, 5_000_000, 20_000_000]);
        self.go_to((self.model.now_us - us).max(self.floor_us));
    }

    fn go_to(&mut self, us: i64) {
        self.model.now_us = us;
        self.floor_us = self.floor_us.max(self.model.floor_us());
        self.server.clock().set_us(us);
        self.note("now");
        // A step back leaves the wait behind.
        self.retry_ms = None;
    }

    /// A denied call is allowed after its retry_after, but not a millisecond sooner.
    fn follow_retry(&mut self, answer: &Answer, quantity: i64) {
        self.retry_ms = None;
        if answer[3] == -1 {
            return;
        }
        let ms = ceil(answer[3], 1_000);
        self.retry_ms = Some(ms);
        if !self.random.one_in(4) {
            return;
        }
        let now_us = self.model.now_us;
        for (ms, limited) in [(ms - 1, true), (ms, false)] {
            self.server.clock().set_us(now_us + ms * 1_000);
            let line = self.line("RL.ACQUIRE_RO", quantity, "MS");
            let reply = self.conn.acquire(&line);
            assert_eq!(reply.limited() != 0, limited, "after {ms} ms: {line}");
        }
        self.server.clock().set_us(now_us);
    }

    /// The key lives until its state stops mattering, rounded up, and one second longer. Beyond that its TTL may run ahead
    /// by the time for which the key was in use, up to one period.
    fn check_ttl(&mut self) {
        let last_us = self.model.ends().last().unwrap().0;
        let needed_ms = ceil(last_us, 1_000) - self.model.now_us / 1_000;
        let ttl_ms = self.conn.int(["PTTL", &self.key]);
        let most_ms = needed_ms + 1_000 + self.model.kind.period_ms();
        assert!((needed_ms..=most_ms).contains(&ttl_ms), "{ttl_ms} for {needed_ms}");
    }

    /// Nobody sees anything else than the model, and the key does not vanish too soon.
    fn check(&mut self) {
        let seen = self.model.seen();
        let look = self.line("RL.ACQUIRE", 0, "MS");
        let held_by = format!("RL.HELD {}", self.key);
        let replies = self.conn.pipeline([&held_by, &look, &format!("PTTL {}", self.key)]);
        assert_eq!(held(&replies[0]), self.model.held_list());
        assert_eq!(acquired(&replies[1]).numbers, in_unit(seen.answer(0), true), "{look}");
        if let (Some((last_us, _)), Value::Int(ttl_ms)) = (seen.ends().last(), &replies[2]) {
            let needed_ms = ceil(*last_us, 1_000) - self.model.now_us / 1_000;
            assert!(*ttl_ms >= needed_ms, "the key lives {ttl_ms} ms, needed are {needed_ms}");
        }
    }
}

/// On a failure the seed and the last steps are shown.
impl Drop for ReservationsRun<'_> {
    fn drop(&mut self) {
        show_end(&self.history, &self.model);
    }
}

#[test]
fn random_calls_agree_with_events_and_leases_in_plain_lists() {
    let mut server = Server::builder().clock(true).aof().start();
    for seed in seeds(0..SEEDS) {
        let mut run = ReservationsRun::new(&mut server, seed);
        for step in 0..STEPS {
            if step == STEPS / 2 {
                run.restart();
            }
            run.step();
        }
    }
}

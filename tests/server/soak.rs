//! Everything at once, on a master and its replica: many clients on the same keys, while connections die, settings
//! change, snapshots and rewrites run, clients are paused, the two change roles and memory is short. `make soak`.
//!
//! Each client notes when it sent a call and when the reply came. A grant was made somewhere between the two, so the grants
//! that certainly lie in one window must never be more than the limit.
//!
//! `RATELIMIT_SOAK_SECONDS` is how long (10), `RATELIMIT_SEED` what happens in which order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use support::*;

const WORKERS: u64 = 16;
/// The server's time may be that of the moment at which it woke, a little before a call was sent.
const SLACK_US: i64 = 20_000;
/// Between the beginning and the end: names of time zones, tables that do not shrink.
const MEMORY_SLACK: i64 = 768 * 1024;

/// A limit that everybody shares. Rates and windows of the calendar are in the books of histories.rs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SoakLimit {
    key: &'static str,
    most: i64,
    /// The words after the key.
    arguments: &'static str,
    options: &'static str,
    /// 0 for a semaphore.
    period_us: i64,
}

const fn limit(
    key: &'static str,
    most: i64,
    arguments: &'static str,
    options: &'static str,
    period_us: i64,
) -> SoakLimit {
    SoakLimit { key, most, arguments, options, period_us }
}

const WINDOWS: [SoakLimit; 4] = [
    limit("exact", 20, "20 1s", "", 1_000_000),
    limit("buckets", 200, "200 2s", "BUCKETS 8", 2_000_000),
    limit("folded", 9_000, "9000 2s", "", 2_000_000),
    limit("denied", 30, "30 500ms", "COUNTDENIED", 500_000),
];
const RESERVE: SoakLimit = limit("reserve", 15, "15 1s", "", 1_000_000);
const SEMAPHORE: SoakLimit = limit("semaphore", 5, "5 0", "", 0);

/// A grant to a client: between these times, or for a semaphore at least from the one to the other.
#[derive(Clone, Copy, Debug)]
struct SoakEntry {
    from_us: i64,
    to_us: i64,
    quantity: i64,
}

type SoakBooks = BTreeMap<SoakLimit, Vec<SoakEntry>>;

fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64
}

/// The two servers; which one is the master changes.
struct Pair {
    servers: [Server; 2],
    master: AtomicUsize,
}

impl Pair {
    fn master(&self) -> &Server {
        &self.servers[self.master.load(SeqCst)]
    }

    fn replica(&self) -> &Server {
        &self.servers[1 - self.master.load(SeqCst)]
    }
}

/// One client, on a connection that dies now and then.
struct Worker<'p> {
    pair: &'p Pair,
    conn: Option<Conn>,
    random: Random,
    books: SoakBooks,
}

impl Worker<'_> {
    /// Makes a call. No reply if the connection died or the server refuses commands at the time.
    fn call(&mut self, line: &str) -> Option<Value> {
        let pair = self.pair;
        let conn = self.conn.get_or_insert_with(|| pair.master().conn());
        if self.random.one_in(40) {
            // Gone before the reply, or before the grant.
            conn.send(line);
            if self.random.one_in(2) {
                sleep(Duration::from_millis(self.random.below(20) as u64));
            }
            self.conn = None;
            return None;
        }
        match conn.try_cmd(line) {
            Ok(error @ Value::ServerError(_)) => {
                let error = error_line(&error);
                let codes = ["OOM ", "READONLY ", "UNBLOCKED ", "MASTERDOWN "];
                let is_expected = codes.iter().any(|code| error.starts_with(code));
                assert!(is_expected || error.contains("max-waiters"), "{line}: {error}");
                if error.starts_with("READONLY ") {
                    self.conn = None;
                }
                None
            }
            Ok(reply) => Some(reply),
            Err(_) => {
                self.conn = None;
                None
            }
        }
    }

    fn note(&mut self, limit: SoakLimit, from_us: i64, to_us: i64, quantity: i64) {
        self.books.entry(limit).or_default().push(SoakEntry { from_us, to_us, quantity });
    }

    fn maybe_block(&mut self) -> String {
        match self.random.below(3) {
            0 => format!("BLOCK {}", 1 + self.random.below(400)),
            _ => String::new(),
        }
    }

    fn take(&mut self, limit: SoakLimit) {
        let quantity = 1 + self.random.below((limit.most / 20).max(3));
        let atmost = self.random.one_in(3);
        let options = if atmost { "ATMOST" } else { "" };
        let line = format!(
            "RL.WINDOW {} {} {quantity} {} {options} {}",
            limit.key,
            limit.arguments,
            limit.options,
            self.maybe_block()
        );
        let from_us = now_us();
        let Some(reply) = self.call(&line) else { return };
        let reply = ints(&reply);
        if reply[0] == 0 {
            self.note(limit, from_us, now_us(), if atmost { reply[5] } else { quantity });
        }
    }

    /// RL.ACQUIRE; then it is applied, released, renewed or forgotten.
    fn reserve(&mut self, limit: SoakLimit) {
        let lease_ms = 50 + self.random.below(600);
        let quantity = 1 + self.random.below(3);
        let line = format!(
            "RL.ACQUIRE {} {} {quantity} LEASE {lease_ms} {}",
            limit.key,
            limit.arguments,
            self.maybe_block()
        );
        let sent_us = now_us();
        let Some(reply) = self.call(&line) else { return };
        let reply = acquired(&reply);
        let Some(id) = reply.id.map(|id| String::from_utf8(id).unwrap()) else { return };
        let had_us = now_us();
        // Until then it is held for certain.
        let mut until_us = sent_us + lease_ms * 1_000 - SLACK_US;
        sleep(Duration::from_micros(self.random.below(8_000) as u64));
        if self.random.one_in(4) {
            let renew_us = now_us();
            if self.call(&format!("RL.RENEW {} {id} LEASE {lease_ms}", limit.key))
                == Some(Value::Int(1))
            {
                until_us = renew_us + lease_ms * 1_000 - SLACK_US;
            }
        }
        let settle_us = now_us();
        match self.random.below(8) {
            0 => {}
            1..=3 if limit != SEMAPHORE => {
                if self.call(&format!("RL.APPLY {} {id}", limit.key)) == Some(Value::Int(1)) {
                    self.note(limit, settle_us, now_us(), quantity);
                }
            }
            _ => {
                // Answered or not, it may be gone from when it was sent.
                until_us = until_us.min(settle_us);
                self.call(&format!("RL.RELEASE {} {id}", limit.key));
            }
        }
        if limit == SEMAPHORE && until_us > had_us {
            self.note(limit, had_us, until_us, quantity);
        }
    }

    /// Calls on keys of its own, which come and go.
    fn wander(&mut self) {
        let key = self.random.below(5_000);
        let line = match self.random.below(4) {
            0 => format!("RL.THROTTLE own:t:{key} 5 10 1s"),
            1 => format!("RL.WINDOW own:w:{key} 5 700ms"),
            2 => format!("RL.ACQUIRE own:a:{key} 3 1s LEASE 300"),
            _ => format!("RL.WINDOW own:f:{key} 5 1s FIXED TZ {}", "Europe/Berlin"),
        };
        self.call(&line);
    }

    fn work(&mut self, until: Instant) {
        while Instant::now() < until {
            match self.random.below(12) {
                0..=4 => {
                    let window = self.random.pick(&WINDOWS);
                    self.take(window);
                }
                5..=6 => self.take(RESERVE),
                7..=8 => self.reserve(RESERVE),
                9..=10 => self.reserve(SEMAPHORE),
                _ => self.wander(),
            }
            sleep(Duration::from_micros(self.random.below(6_000) as u64));
        }
        // A wait whose reply will not be read.
        if let Some(mut conn) = self.conn.take() {
            conn.send("RL.ACQUIRE semaphore 5 0 5 LEASE 100 BLOCK 0");
        }
    }
}

/// Causes faults of the servers meanwhile.
struct SoakFaults<'p> {
    pair: &'p Pair,
    random: Random,
    done: BTreeMap<&'static str, u64>,
    paused_until: Instant,
}

impl SoakFaults<'_> {
    fn set(&mut self, name: &str, value: impl std::fmt::Display) {
        for server in &self.pair.servers {
            server.try_ask(format!("CONFIG SET {name} {value}"));
        }
    }

    fn cause(&mut self, until: Instant) {
        while Instant::now() < until {
            let what = self.one();
            *self.done.entry(what).or_default() += 1;
            sleep(Duration::from_millis(20 + self.random.below(300) as u64));
        }
        self.set("maxmemory", 0);
        self.set("ratelimit.max-waiters", 10_000);
    }

    fn one(&mut self) -> &'static str {
        let (master, replica) = (self.pair.master(), self.pair.replica());
        let either = if self.random.one_in(2) { master } else { replica };
        match self.random.below(14) {
            0 => {
                master.try_ask("CLIENT KILL TYPE normal SKIPME yes");
                "all connections die"
            }
            1..=2 => {
                let list = master.conn().text("CLIENT LIST");
                let ids: Vec<_> = list
                    .lines()
                    .filter_map(|line| line.strip_prefix("id=")?.split(' ').next())
                    .collect();
                let id = ids[self.random.below(ids.len() as i64) as usize];
                // Redis 7.0 ends itself if it is to unblock a client that a pause holds back.
                let paused = Instant::now() < self.paused_until;
                let line = match self.random.below(3) {
                    _ if paused => format!("CLIENT KILL ID {id}"),
                    0 => format!("CLIENT UNBLOCK {id}"),
                    1 => format!("CLIENT UNBLOCK {id} ERROR"),
                    _ => format!("CLIENT KILL ID {id}"),
                };
                master.try_ask(&line);
                "a connection dies or is unblocked"
            }
            3 => {
                either.try_ask("BGSAVE");
                "BGSAVE"
            }
            4 => {
                either.try_ask("BGREWRITEAOF");
                "BGREWRITEAOF"
            }
            5..=6 => {
                let how = self.random.pick(&["WRITE", "ALL"]);
                let ms = 10 + self.random.below(250);
                master.try_ask(format!("CLIENT PAUSE {ms} {how}"));
                self.paused_until = Instant::now() + Duration::from_millis(ms as u64 + 500);
                "CLIENT PAUSE"
            }
            7..=9 => {
                let (name, value) = self.random.pick(&[
                    ("ratelimit.window-entries", "1"),
                    ("ratelimit.window-entries", "16"),
                    ("ratelimit.window-entries", "4096"),
                    ("ratelimit.max-waiters", "3"),
                    ("ratelimit.max-waiters", "10000"),
                    ("ratelimit.lease", "1"),
                    ("ratelimit.timezone", "Asia/Kathmandu"),
                    ("ratelimit.timezone", "UTC"),
                    ("zset-max-listpack-entries", "2"),
                    ("zset-max-listpack-entries", "128"),
                    ("hz", "100"),
                    ("hz", "10"),
                ]);
                self.set(name, value);
                "CONFIG SET"
            }
            10..=11 => {
                let used = master.info("used_memory").unwrap();
                master.try_ask(format!("CONFIG SET maxmemory {used}"));
                sleep(Duration::from_millis(self.random.below(300) as u64));
                self.set("maxmemory", 0);
                "memory is short"
            }
            _ => {
                self.fail_over();
                "failover"
            }
        }
    }

    /// The replica becomes the master, with all data of the old master.
    fn fail_over(&mut self) {
        let (master, replica) = (self.pair.master(), self.pair.replica());
        let line = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 10000", replica.port());
        eventually(SOON, || replica.info("master_link_status").as_deref() == Some("up"));
        if master.try_ask(&line) != Some(Value::Okay) {
            return;
        }
        eventually(SOON, || master.info("master_failover_state").as_deref() == Some("no-failover"));
        if master.info("role").as_deref() == Some("slave") {
            self.pair.master.fetch_xor(1, SeqCst);
        }
    }
}

/// Asserts that no window has more than the limit for certain.
fn balance(limit: SoakLimit, entries: &mut [SoakEntry]) {
    entries.sort_unstable_by_key(|entry| entry.from_us);
    if limit.period_us > 0 {
        for (at, first) in entries.iter().enumerate() {
            let end_us = first.from_us + limit.period_us - SLACK_US;
            let starting = entries[at..].iter().take_while(|entry| entry.from_us < end_us);
            let within: Vec<_> = starting.filter(|entry| entry.to_us < end_us).collect();
            let sum = within.iter().map(|entry| entry.quantity).sum::<i64>();
            assert!(sum <= limit.most, "{limit:?} within a period: {within:?}");
        }
        return;
    }
    let mut changes: Vec<_> = entries
        .iter()
        .flat_map(|one| [(one.from_us, one.quantity), (one.to_us, -one.quantity)])
        .collect();
    // What ends comes before what begins in the same microsecond.
    changes.sort_unstable();
    let mut held = 0;
    for (us, change) in changes {
        held += change;
        assert!(held <= limit.most, "{limit:?}: {held} held at {us}");
    }
}

fn start(seed: u64) -> Pair {
    let builder = || Server::builder().aof().config("maxmemory-policy noeviction");
    let master = builder().start();
    let replica = builder().replica_of(&master).start();
    wait_for_sync(&master, &replica);
    // What is made once: zones, tables, the connections' pools.
    let pair = Pair { servers: [master, replica], master: AtomicUsize::new(0) };
    run(&pair, seed ^ 1, Duration::from_secs(2), false);
    settle(&pair);
    pair
}

/// Waits until no call waits, and empties the servers.
fn settle(pair: &Pair) {
    for server in &pair.servers {
        server.expect_no_waiting_calls();
    }
    pair.master().conn().cmd("CLIENT UNPAUSE");
    pair.master().conn().cmd("FLUSHALL");
    for server in &pair.servers {
        for field in ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"] {
            eventually(SOON, || server.info_number(field) == 0);
        }
    }
    wait_for_sync(pair.master(), pair.replica());
}

/// Runs for `time`, with or without faults. Returns what was granted.
fn run(pair: &Pair, seed: u64, time: Duration, faults: bool) -> SoakBooks {
    let until = Instant::now() + time;
    let mut random = Random::new(seed);
    let mut books = SoakBooks::new();
    scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let random = Random::new(random.draw());
                let mut worker = Worker { pair, conn: None, random, books: SoakBooks::new() };
                scope.spawn(move || {
                    worker.work(until);
                    worker.books
                })
            })
            .collect();
        if faults {
            let (random, paused_until) = (Random::new(random.draw()), Instant::now());
            let mut faults = SoakFaults { pair, random, done: BTreeMap::new(), paused_until };
            faults.cause(until);
            eprintln!("{:?}", faults.done);
        }
        for worker in workers {
            for (limit, entries) in worker.join().expect("a worker") {
                books.entry(limit).or_default().extend(entries);
            }
        }
    });
    books
}

#[test]
#[ignore = "takes minutes: make soak"]
fn with_everything_at_once_the_books_balance() {
    let seconds = env_number("RATELIMIT_SOAK_SECONDS").unwrap_or(10);
    let seed = env_number("RATELIMIT_SEED").unwrap_or(1);
    eprintln!("soak: {seconds} s, seed {seed}");
    let pair = start(seed);
    // Apart from the server's buffers.
    let memory = |server: &Server| server.info_number("used_memory_dataset");
    let before = pair.servers.each_ref().map(memory);

    let mut books = run(&pair, seed, Duration::from_secs(seconds), true);
    settle(&pair);
    for (limit, entries) in &mut books {
        let sum: i64 = entries.iter().map(|entry| entry.quantity).sum();
        eprintln!("{}: {} grants of {sum}", limit.key, entries.len());
        balance(*limit, entries);
    }
    for (server, before) in pair.servers.iter().zip(before) {
        let after = memory(server);
        eprintln!("port {}: {before} bytes before, {after} after", server.port());
        assert!(after <= before + MEMORY_SLACK, "{before} bytes have become {after}");
        assert_eq!(server.info("blocked_clients").as_deref(), Some("0"));
        let log = server.log();
        let bad = ["panic", "internal error", "ASSERTION", "BUG REPORT"];
        assert!(!bad.iter().any(|word| log.contains(word)), "the log has one of {bad:?}");
        // Neither clients nor timers are left.
        let mut conn = server.conn();
        // Settings were changed all the time.
        conn.cmd("CONFIG SET ratelimit.allow-unload yes");
        eventually(SOON, || conn.cmd("MODULE UNLOAD ratelimit") == Value::Okay);
    }
}

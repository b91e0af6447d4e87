//! Histories of many clients on a cluster, while servers are killed and paused, slots move and replicas take over: each key's
//! calls must be linearizable against the engine. `make prove` records long ones.
//!
//! The servers live by one clock that follows real time in steps of 20 ms, and moves only while no call is under way. So it
//! is known at which time a call was decided, and the engine must give the same reply, to the millisecond. If a call might
//! have been decided at either of two times, the replies of a long window would not show which for seconds, and each such
//! call would double the number of orders to try.
//!
//! Before a master is killed its replicas are cut off for a moment, so that they lack the newest effects. Half of the keys
//! remember for 5 to 10 seconds, longer than a failover takes, so that their next replies show what was lost.
//!
//! `RATELIMIT_HISTORIES` is how many histories are recorded, of `RATELIMIT_HISTORY_SECONDS` seconds each, and
//! `RATELIMIT_SEED` what happens in which order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, RwLock};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::memory::Memory;
use engine::reservation::Id;
use engine::rule::Rule;
use engine::throttle::Rate;
use engine::{Limit, Manner, NewReservation, Quantity, Request, WindowLimit};
use proofs::history::{apply, judge, Bounds, HistoryEvent, Recorded, DUPLICATE};
use support::*;

const CLIENTS: usize = 8;
const TICK_US: u64 = 20_000;
/// A pause of a whole server. Far below the time after which it is taken for dead.
const LONGEST_PAUSE_MS: i64 = 250;

/// The most configurations of one key that are searched for one reply.
const MAX_CONFIGURATIONS: usize = 50_000;
/// No replica takes over sooner after a master was killed: it is taken for dead when it was silent for 2 seconds, and it may
/// have been for one before.
const DETECTION_NS: u64 = 500_000_000;
/// A failover that no test caused may have lost the effects of this time.
const UNFORESEEN_NS: u64 = 3_000_000_000;
/// The fewest calls per second of a long history.
const LEAST_CALLS_A_SECOND: u64 = 834;

/// Which command a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HistoryKind {
    Bucket,
    Sliding,
    Fixed,
    Reserved,
}

/// The limit of a key, and the calls on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyUse {
    kind: HistoryKind,
    /// It remembers for longer than a failover takes.
    is_long: bool,
}

impl KeyUse {
    /// Each kind, with a short and with a long memory.
    fn all() -> impl Iterator<Item = KeyUse> + Clone {
        use HistoryKind::{Bucket, Fixed, Reserved, Sliding};
        let of = |kind| [false, true].map(|is_long| KeyUse { kind, is_long });
        [Bucket, Sliding, Fixed, Reserved].into_iter().flat_map(of)
    }

    /// The limit, and the period in seconds.
    fn window(self) -> (u64, u64) {
        match (self.kind, self.is_long) {
            (HistoryKind::Reserved, false) => (6, 1),
            (HistoryKind::Reserved, true) => (60, 8),
            (HistoryKind::Fixed, true) => (150, 5),
            (HistoryKind::Sliding | HistoryKind::Bucket, true) => (200, 8),
            (_, false) => (8, 1),
        }
    }

    /// The burst of its bucket, which fills at 20 a second.
    fn max_burst(self) -> u64 {
        if self.is_long {
            199
        } else {
            4
        }
    }

    fn bounds(self) -> Bounds {
        let period_us = 1_000_000 * self.window().1;
        Bounds { tick_us: TICK_US, period_us, max_configurations: MAX_CONFIGURATIONS }
    }
}

fn memory() -> Memory {
    let memory = Memory::default();
    memory.zones(|zones| zones.zone_by_name(b"UTC"));
    memory
}

fn window(limit: u64, rule: &str) -> WindowLimit {
    let rule = memory().zones(|zones| Rule::parse(rule.as_bytes(), zones)).expect("a rule");
    WindowLimit { limit, rule, max_entries: 4096 }
}

/// A call: its words before and behind the key, and the same for the engine.
fn random_call(
    key: KeyUse,
    random: &mut Random,
    id: &str,
    mine: &mut Vec<String>,
) -> (String, String, HistoryEvent) {
    let kind = key.kind;
    let quantity = 1 + random.below(2);
    let taking = |limit: Limit, quantity: i64, manner: Manner| {
        let mut request = Request::new(limit);
        request.ask.quantity = Quantity::from_signed(quantity);
        request.ask.manner = manner;
        HistoryEvent::Take(request)
    };
    let (quantity, options, manner) = match random.below(8) {
        0 if kind != HistoryKind::Reserved => (-quantity, "", Manner::Whole),
        1 if kind != HistoryKind::Reserved => (2 * quantity, "ATMOST", Manner::AtMost),
        2 => (0, "", Manner::Whole),
        _ => (quantity, "", Manner::Whole),
    };
    let (limit, seconds) = key.window();
    match kind {
        HistoryKind::Bucket => {
            let burst = key.max_burst();
            let rate = Rate::new(burst, 20, 1_000).expect("a rate");
            let event = taking(Limit::Rate(rate), quantity, manner);
            ("RL.THROTTLE".into(), format!("{burst} 20 1s {quantity} {options} MS"), event)
        }
        HistoryKind::Sliding => {
            let window = window(limit, &format!("{seconds}s"));
            let event = taking(Limit::Window(window), quantity, manner);
            ("RL.WINDOW".into(), format!("{limit} {seconds}s {quantity} {options} MS"), event)
        }
        HistoryKind::Fixed => {
            let window = window(limit, &format!("{seconds}s@UTC"));
            let event = taking(Limit::Window(window), quantity, manner);
            let words = format!("{limit} {seconds}s {quantity} FIXED TZ UTC {options} MS");
            ("RL.WINDOW".into(), words, event)
        }
        HistoryKind::Reserved => {
            if !mine.is_empty() && random.one_in(2) {
                let id = mine.remove(random.below(mine.len() as i64) as usize);
                let engine_id = Id::from(id.as_bytes());
                return match random.one_in(2) {
                    true => ("RL.APPLY".into(), id, HistoryEvent::Apply(engine_id)),
                    false => ("RL.RELEASE".into(), id, HistoryEvent::Release(engine_id)),
                };
            }
            let count_lapsed = random.one_in(3);
            let least_ms = if key.is_long { 1_000 } else { 100 };
            let lease_ms = least_ms * (1 + random.below(4) as u64);
            let id_of_engine = Some(Id::from(id.as_bytes()));
            let reserve = NewReservation {
                lease_ms,
                count_lapsed,
                id: id_of_engine,
                max_reservations: 65_536,
            };
            let window = window(limit, &format!("{seconds}s"));
            let event = taking(Limit::Reserve(window, reserve), quantity, manner);
            let lapsed = if count_lapsed { "COUNTLAPSED" } else { "" };
            let words =
                format!("{limit} {seconds}s {quantity} LEASE {lease_ms} {lapsed} ID {id} MS");
            ("RL.ACQUIRE".into(), words, event)
        }
    }
}

/// The integers of a reply; an id counts as 1, none as 0.
fn numbers(reply: &Value) -> Vec<i64> {
    match reply {
        Value::Int(number) => vec![*number],
        Value::Nil => vec![0],
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        Value::BulkString(_) | Value::SimpleString(_) => vec![1],
        other => panic!("an unexpected reply: {other:?}"),
    }
}

struct Recorder<'n> {
    /// The servers to ask first, or again after a failure.
    ports: &'n [u16],
    clock: &'n Clock,
    /// Held by each call, so that the clock stands still meanwhile.
    still: &'n RwLock<()>,
    begin: Instant,
    conns: BTreeMap<u16, Conn>,
    /// Which server a key was last found on.
    known: BTreeMap<String, u16>,
    random: Random,
}

enum CallOutcome {
    Reply(Value),
    /// Nothing was done.
    Refused,
    /// The connection died, and whether it was done is not known.
    Unknown,
}

impl Recorder<'_> {
    fn ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Sends a command to a server, behind ASKING if need be.
    fn send(&mut self, port: u16, line: &str, asking: bool) -> CallOutcome {
        let conn = match self.conns.entry(port) {
            std::collections::btree_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => match Conn::open(port) {
                Ok(conn) => place.insert(conn),
                Err(_) => return CallOutcome::Refused,
            },
        };
        if asking && conn.try_cmd("ASKING").is_err() {
            self.conns.remove(&port);
            return CallOutcome::Refused;
        }
        match conn.try_cmd(line) {
            Ok(reply) => CallOutcome::Reply(reply),
            Err(_) => {
                self.conns.remove(&port);
                CallOutcome::Unknown
            }
        }
    }

    /// Makes one call, wherever its key is. `None` if nothing was done.
    fn call(&mut self, key: &str, line: &str, event: HistoryEvent) -> Option<Recorded> {
        let known = self.known.get(key).copied();
        let mut port = known.unwrap_or_else(|| self.random.pick(self.ports));
        let mut asking = false;
        for _ in 0..6 {
            let held = self.still.read().expect("no thread panics");
            let (from_ns, from_us) = (self.ns(), self.clock.now_us() as u64);
            let outcome = self.send(port, line, asking);
            let (to_us, to_ns) = (self.clock.now_us() as u64, self.ns());
            drop(held);
            let call =
                |reply| Recorded { event, from_ns, to_ns, clock_us: (from_us, to_us), reply };
            match outcome {
                CallOutcome::Unknown => {
                    // The server may come back as a replica of another one without knowing it yet.
                    self.known.retain(|_, known| *known != port);
                    return Some(call(None));
                }
                CallOutcome::Refused => {
                    self.known.retain(|_, known| *known != port);
                    sleep(Duration::from_millis(10));
                    return None;
                }
                CallOutcome::Reply(error @ Value::ServerError(_)) => {
                    let error = error_line(&error);
                    let words: Vec<&str> = error.split(' ').collect();
                    let to = words.last().and_then(|at| at.rsplit(':').next()?.parse().ok());
                    match (words[0], to) {
                        ("MOVED", Some(to)) => {
                            self.known.insert(key.into(), to);
                            (port, asking) = (to, false);
                        }
                        ("ASK", Some(to)) => (port, asking) = (to, true),
                        ("DUPLICATE", _) => return Some(call(Some(vec![DUPLICATE]))),
                        ("CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "READONLY" | "MASTERDOWN", _) => {
                            self.known.remove(key);
                            sleep(Duration::from_millis(10));
                            return None;
                        }
                        _ => panic!("{line}: {error}"),
                    }
                }
                CallOutcome::Reply(reply) => {
                    if !asking {
                        self.known.insert(key.into(), port);
                    }
                    return Some(call(Some(numbers(&reply))));
                }
            }
        }
        None
    }
}

/// A key of a history.
#[derive(Clone, Debug)]
struct HistoryKey {
    name: String,
    key_use: KeyUse,
}

/// A replica took over.
struct Failover {
    /// Until then it had everything.
    complete_ns: u64,
    /// It took over between these two moments.
    from_ns: u64,
    to_ns: u64,
    /// The keys that it may have changed. `None` if any may have.
    keys: Option<Vec<String>>,
}

/// The faults that were caused during the calls.
#[derive(Default)]
struct HistoryFaults {
    counts: BTreeMap<&'static str, u64>,
    failovers: Vec<Failover>,
}

impl HistoryFaults {
    fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    /// A machine that is too busy makes a server look dead.
    fn unforeseen(&mut self, from_ns: u64, to_ns: u64) {
        let complete_ns = from_ns.saturating_sub(UNFORESEEN_NS);
        self.failovers.push(Failover { complete_ns, from_ns, to_ns, keys: None });
        self.count("unforeseen failovers", 1);
    }
}

/// A record of calls and faults.
struct History {
    /// The calls of each key, and the failovers that concern it.
    keys: Vec<(HistoryKey, Vec<Recorded>)>,
    faults: HistoryFaults,
    seconds: f64,
}

/// Real time, rounded down to a tick.
fn tick_now_us() -> i64 {
    let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    (real.as_micros() as u64 / TICK_US * TICK_US) as i64
}

/// The value of a field of INFO. `None` if the server does not answer.
fn info(server: &Server, field: &str) -> Option<String> {
    let info = text(&server.try_ask("INFO everything")?);
    let value = |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned);
    info.lines().find_map(value)
}

/// Cuts a master's replicas off, so that they lack its newest effects. Returns the moment until which they had everything;
/// they stand still until the guards are dropped.
fn leave_behind(
    master: &Server,
    replicas: &[&Server],
    random: &mut Random,
    ns: &dyn Fn() -> u64,
) -> (u64, Vec<Frozen>) {
    let offset =
        |server: &Server, field: &str| -> Option<u64> { info(server, field)?.parse().ok() };
    let complete_ns = ns();
    let mut sent = None;
    eventually(SOON, || {
        sent = offset(master, "master_repl_offset");
        sent.is_some()
    });
    let has_all = |replica: &&Server| offset(replica, "slave_repl_offset") >= sent;
    eventually(SOON, || replicas.iter().all(has_all));
    let frozen = replicas.iter().map(|replica| replica.freeze()).collect();
    let _ = master.try_ask("CLIENT KILL TYPE replica");
    sleep(Duration::from_millis(20 + random.below(180) as u64));
    (complete_ns, frozen)
}

/// Holds a server's writes up for a moment. What the server takes for the end lies by its clock, which stands still while
/// calls are held up, so the pause is ended by a command.
fn pause_writes(server: &Server, random: &mut Random, faults: &mut HistoryFaults) {
    let _ = server.try_ask("CLIENT PAUSE 3600000 WRITE");
    sleep(Duration::from_millis(10 + random.below(LONGEST_PAUSE_MS) as u64));
    let _ = server.try_ask("CLIENT UNPAUSE");
    faults.count("CLIENT PAUSE", 1);
}

/// Stops a server's process for a moment.
fn pause_process(server: &Server, random: &mut Random, faults: &mut HistoryFaults) {
    let _frozen = server.freeze();
    sleep(Duration::from_millis(1 + random.below(LONGEST_PAUSE_MS) as u64));
    faults.count("pauses of a process", 1);
}

/// Records what clients do on these keys for at least this time and this many calls, while `cause_faults` runs.
fn record(
    ports: &[u16],
    clock: &Clock,
    keys: &[HistoryKey],
    (seconds, least_calls): (u64, u64),
    seed: u64,
    cause_faults: impl FnOnce(&dyn Fn() -> u64, &AtomicBool, &mut HistoryFaults) + Send,
) -> History {
    let (begin, over, calls) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    let recorded: Mutex<BTreeMap<&str, Vec<Recorded>>> = Mutex::default();
    let mut faults = HistoryFaults::default();
    let (done, still) = (AtomicBool::new(false), RwLock::new(()));
    clock.set_us(tick_now_us());
    scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                if tick_now_us() > clock.now_us() {
                    let _still = still.write().expect("no thread panics");
                    clock.set_us(tick_now_us());
                }
                sleep(Duration::from_millis(1));
            }
        });
        let workers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (recorded, over, calls, still) = (&recorded, &over, &calls, &still);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 100 + client as u64);
                    let own = Random::new(seed * 1_000 + client as u64);
                    let mut recorder = Recorder {
                        ports,
                        clock,
                        still,
                        begin,
                        conns: BTreeMap::new(),
                        known: BTreeMap::new(),
                        random: own,
                    };
                    let mut made: BTreeMap<&str, Vec<Recorded>> = BTreeMap::new();
                    let mut mine: BTreeMap<&str, Vec<String>> = BTreeMap::new();
                    let mut number = 0;
                    while !over.load(SeqCst) {
                        // Half of the calls meet on one key, which is another one twice a second.
                        let hot = begin.elapsed().as_millis() as usize / 500 * 7 % keys.len();
                        let other = random.below(keys.len() as i64) as usize;
                        let HistoryKey { name, key_use } =
                            &keys[if random.one_in(2) { hot } else { other }];
                        number += 1;
                        let id = format!("c{client}n{number}");
                        let mine = mine.entry(name).or_default();
                        let (command, words, event) = random_call(*key_use, &mut random, &id, mine);
                        // Bursts, with as much time between them as leaves the machine to others.
                        if random.one_in(8) {
                            sleep(Duration::from_millis(random.below(40) as u64));
                        }
                        let Some(call) =
                            recorder.call(name, &format!("{command} {name} {words}"), event)
                        else {
                            continue;
                        };
                        let had = call.reply.as_ref().is_none_or(|reply| reply.last() == Some(&1));
                        if command == "RL.ACQUIRE" && had {
                            mine.push(id);
                        }
                        made.entry(name).or_default().push(call);
                        calls.fetch_add(1, SeqCst);
                    }
                    let mut all = recorded.lock().expect("no client fails");
                    for (key, calls) in made {
                        all.entry(key).or_default().extend(calls);
                    }
                })
            })
            .collect();
        let causing = scope.spawn(|| {
            cause_faults(&|| begin.elapsed().as_nanos() as u64, &done, &mut faults);
        });
        let longest = Duration::from_secs(3 * seconds);
        while begin.elapsed() < Duration::from_secs(seconds)
            || (calls.load(SeqCst) < least_calls && begin.elapsed() < longest)
        {
            sleep(Duration::from_millis(10));
        }
        done.store(true, SeqCst);
        let caused = causing.join();
        over.store(true, SeqCst);
        workers.into_iter().for_each(|worker| worker.join().expect("a client fails"));
        caused.expect("a fault fails");
    });
    let mut recorded = recorded.into_inner().expect("no client fails");
    let failovers_of = |key: &str| -> Vec<Recorded> {
        let concerns = |failover: &&Failover| {
            failover.keys.as_ref().is_none_or(|keys| keys.iter().any(|one| one == key))
        };
        let of_key = faults.failovers.iter().filter(concerns);
        of_key
            .map(|failover| Recorded {
                event: HistoryEvent::Failover { complete_ns: failover.complete_ns },
                from_ns: failover.from_ns,
                to_ns: failover.to_ns,
                clock_us: (0, 0),
                reply: None,
            })
            .collect()
    };
    let of_key = |key: &HistoryKey| {
        let calls = recorded.remove(key.name.as_str()).unwrap_or_default();
        (key.clone(), [calls, failovers_of(&key.name)].concat())
    };
    let keys = keys.iter().map(of_key).collect();
    History { keys, seconds: begin.elapsed().as_secs_f64(), faults }
}

/// The head of the table that has the rows [`judge_all`] returns.
const TABLE_HEAD: &str = "| history | calls answered | concurrent on their key | cut off | SIGKILL | pauses | slots moved | effects lost | most of one key |\n\
                          |---|---|---|---|---|---|---|---|---|";

/// Judges a history, and returns a row of a Markdown table.
fn judge_all(name: &str, history: &History, least_calls: u64, needed: &[&str]) -> String {
    let memory = memory();
    let History { keys, faults, seconds } = history;
    let (mut answered, mut cut_off, mut overlapping) = (0, 0, 0);
    let mut lost = Vec::new();
    let mut wrong = Vec::new();
    for (key, calls) in keys {
        answered += calls.iter().filter(|call| call.reply.is_some()).count();
        let is_call = |call: &&Recorded| !matches!(call.event, HistoryEvent::Failover { .. });
        cut_off += calls.iter().filter(is_call).filter(|call| call.reply.is_none()).count();
        overlapping += count_overlapping(calls);
        match judge(&memory, calls, key.key_use.bounds()) {
            Ok(judged) => lost.extend(judged.lost),
            Err(why) => wrong.push(format!("{} {:?}: {why}", key.name, key.key_use)),
        }
    }
    assert!(wrong.is_empty(), "{name} is not linearizable\n{}", wrong.join("\n\n"));
    let count = |fault: &str| faults.counts.get(fault).copied().unwrap_or_default();
    for needed in needed {
        assert!(count(needed) > 0, "{name}: no {needed}");
    }
    assert!(answered as u64 >= least_calls, "{name}: {answered} calls, fewer than {least_calls}");
    format!(
        "| {name}, {seconds:.0} s | {answered} | {overlapping} | {cut_off} | {} | {} | {} | {} | {} |",
        count("kill -9"),
        count("pauses of a process") + count("CLIENT PAUSE"),
        count("slots moved"),
        lost.iter().sum::<usize>(),
        lost.iter().max().unwrap_or(&0),
    )
}

/// Counts the calls that were under way while another one of the same key was.
fn count_overlapping(calls: &[Recorded]) -> usize {
    let mut times: Vec<_> = calls
        .iter()
        .filter(|call| call.reply.is_some())
        .map(|call| (call.from_ns, call.to_ns))
        .collect();
    times.sort_unstable();
    let (mut overlapping, mut latest_ns) = (0, 0);
    for (at, (from_ns, to_ns)) in times.iter().enumerate() {
        let meets_next = times.get(at + 1).is_some_and(|(next_ns, _)| next_ns < to_ns);
        overlapping += usize::from(*from_ns < latest_ns || meets_next);
        latest_ns = latest_ns.max(*to_ns);
    }
    overlapping
}

// ---- An invented history ----

const RESERVED: KeyUse = KeyUse { kind: HistoryKind::Reserved, is_long: false };

/// Calls of some clients that overlap, answered by the engine; the clock moves on between them.
fn generated(seed: u64) -> Vec<Recorded> {
    let (mut random, memory) = (Random::new(seed), memory());
    let (mut saved, mut calls, mut now_us) = (None, Vec::new(), START_US as u64);
    let mut mine = Vec::new();
    for number in 0..250u64 {
        let id = format!("g{number}");
        let (command, _, event) = random_call(RESERVED, &mut random, &id, &mut mine);
        let (reply, after) = apply(&memory, saved.as_ref(), &event, now_us);
        if command == "RL.ACQUIRE" && reply.last() == Some(&1) {
            mine.push(id);
        }
        saved = after;
        // It was made at 1000 * number, somewhere between its beginning and its end.
        let from_ns = (1_000 * number).saturating_sub(random.below(2_500) as u64);
        let to_ns = 1_000 * number + 1 + random.below(2_500) as u64;
        let clock_us = (now_us, now_us + TICK_US * random.below(2) as u64);
        calls.push(Recorded { event, from_ns, to_ns, clock_us, reply: Some(reply) });
        if random.one_in(3) {
            now_us += TICK_US;
        }
    }
    calls
}

#[test]
fn a_history_with_one_lie_is_refused() {
    let memory = memory();
    for seed in 0..2 {
        let truth = generated(seed);
        let judged = judge(&memory, &truth, RESERVED.bounds()).expect("the truth");
        assert_eq!(judged.calls, truth.len());
        // A denial that says it was a grant, a unit too many, a wait that is a millisecond short, an id that was not held.
        let mut lies = 0;
        for at in (0..truth.len()).step_by(5) {
            let mut lie = truth.clone();
            let reply = lie[at].reply.as_mut().expect("all were answered");
            match &mut reply[..] {
                [settled] if *settled == 0 => *settled = 1,
                [limited @ 1..=2, .., id] => (*limited, *id) = (0, 1),
                [0, _, remaining, ..] if at % 2 == 0 => *remaining += 1,
                [_, _, _, _, reset, _] if *reset > 1 => *reset += 1,
                _ => continue,
            }
            // Where clocks overlap, one millisecond of a time may be true of another order; so each kind has its share.
            lies += usize::from(judge(&memory, &lie, RESERVED.bounds()).is_err());
        }
        assert!(lies > 10, "{lies} of the lies were refused");
    }
}

// ---- A cluster ----

/// Keys of each use in the first slots of each of three masters, which are those that move.
fn keys_in_first_slots(conn: &mut Conn) -> Vec<HistoryKey> {
    let names: Vec<String> = (0..12_000).map(|number| format!("h{number}")).collect();
    let slots = conn.pipeline(names.iter().map(|name| ["CLUSTER", "KEYSLOT", name.as_str()]));
    let mut keys = Vec::new();
    for first in [0, 5_461, 10_923] {
        let near = names.iter().zip(&slots).filter(|(_, slot)| match slot {
            Value::Int(slot) => (first..first + SLOTS_MOVED).contains(slot),
            _ => false,
        });
        let of_master = near.zip(KeyUse::all());
        keys.extend(
            of_master.map(|((name, _), key_use)| HistoryKey { name: name.clone(), key_use }),
        );
    }
    assert_eq!(keys.len(), 24);
    keys
}

/// The number of slots that move at a time.
const SLOTS_MOVED: i64 = 100;

fn cluster_history(seconds: u64, least_calls: u64, seed: u64, kills: bool) -> String {
    let mut cluster = Cluster::by_one_clock(3, 1);
    cluster.notice_the_dead();
    let ports = [0, 1, 2, 3, 4, 5].map(|node| cluster.node(node).port());
    let keys = keys_in_first_slots(&mut cluster.node(0).conn());
    let clock = cluster.node(0).shared_clock();
    let masters = |cluster: &Cluster| -> Vec<usize> {
        (0..6).filter(|node| cluster.is_master(*node)).collect()
    };
    let limits = (seconds, least_calls);
    let history = record(&ports, &clock, &keys, limits, seed, |ns, over, faults| {
        let mut random = Random::new(seed);
        let mut turn = seed;
        let (mut before, mut before_ns) = (masters(&cluster), ns());
        while !over.load(SeqCst) {
            sleep(Duration::from_millis(500 + random.below(1_000) as u64));
            let master = random.pick(&before);
            turn += 1;
            let mut expected = before.clone();
            match turn % 4 {
                0 if kills => {
                    let replica = cluster.replica_of(master);
                    let lost_keys = keys
                        .iter()
                        .map(|key| key.name.clone())
                        .filter(|key| cluster.master_of(key) == master)
                        .collect();
                    let behind = [cluster.node(replica)];
                    let (complete_ns, frozen) =
                        leave_behind(cluster.node(master), &behind, &mut random, ns);
                    let from_ns = ns() + DETECTION_NS;
                    cluster.kill(master);
                    drop(frozen);
                    eventually(SOON, || cluster.is_master(replica));
                    let keys = Some(lost_keys);
                    faults.failovers.push(Failover { complete_ns, from_ns, to_ns: ns(), keys });
                    cluster.start_again(master);
                    eventually(SOON, || !cluster.is_master(master));
                    cluster.wait_until_agreed();
                    eventually(SOON, || {
                        info(cluster.node(master), "master_link_status").as_deref() == Some("up")
                    });
                    expected.retain(|node| *node != master);
                    expected.push(replica);
                    expected.sort_unstable();
                    faults.count("kill -9", 1);
                }
                1 => pause_process(cluster.node(master), &mut random, faults),
                2 => pause_writes(cluster.node(master), &mut random, faults),
                _ => {
                    let at = before.iter().position(|one| *one == master).unwrap_or(0);
                    let to = before[(at + 1) % before.len()];
                    cluster.reshard(master, to, SLOTS_MOVED as u32);
                    cluster.wait_until_agreed();
                    faults.count("slots moved", SLOTS_MOVED as u64);
                }
            }
            let now = masters(&cluster);
            if now != expected {
                faults.unforeseen(before_ns, ns());
            }
            (before, before_ns) = (now, ns());
        }
    });
    let needed: &[&str] = match (least_calls, kills) {
        (0, _) => &[],
        (_, false) => &["pauses of a process", "CLIENT PAUSE", "slots moved"],
        (_, true) => &["kill -9", "pauses of a process", "CLIENT PAUSE", "slots moved"],
    };
    judge_all(&format!("cluster, seed {seed}"), &history, least_calls, needed)
}

#[test]
fn a_short_history_of_a_cluster_is_linearizable() {
    println!("{}", cluster_history(4, 0, env_number("RATELIMIT_SEED").unwrap_or(1), false));
}

#[test]
#[ignore = "minutes: make prove"]
fn long_histories_are_linearizable() {
    let seconds = env_number("RATELIMIT_HISTORY_SECONDS").unwrap_or(60);
    let least_calls = LEAST_CALLS_A_SECOND * seconds;
    let seed = env_number("RATELIMIT_SEED").unwrap_or(1);
    println!("\n{TABLE_HEAD}");
    for number in 0..env_number("RATELIMIT_HISTORIES").unwrap_or(10) {
        println!("{}", cluster_history(seconds, least_calls, seed + number, true));
    }
}

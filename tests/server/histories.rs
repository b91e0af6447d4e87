//! Histories of many clients on a cluster and on a set that Sentinel watches, while servers are killed and paused, slots move
//! and replicas take over: each key's calls must be linearizable against the engine. `make prove` records long ones.
//!
//! The servers live by one clock that moves every 20 ms, by the test's hand. A call reads it between being sent and being
//! answered, so almost always it is known which moment decided, and the engine must give the very answer, to the millisecond.
//!
//! `RATELIMIT_HISTORIES` is how many histories of each kind are recorded, of `RATELIMIT_HISTORY_SECONDS` seconds each, and
//! `RATELIMIT_SEED` what happens in which order.

mod checker;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use checker::{apply, judge, Op, What, DUPLICATE};
use engine::decision::{Manner, Quantity};
use engine::memory::Memory;
use engine::request::{Limit, Request, Reserve, WindowLimit};
use engine::reservation::Id;
use engine::rule::Rule;
use engine::throttle::Rate;
use support::*;

const CLIENTS: usize = 8;
const TICK_US: u64 = 20_000;
const SOON: Duration = Duration::from_secs(60);
/// A pause of a whole server. Far below the time after which it is taken for dead.
const LONGEST_PAUSE_MS: i64 = 250;

/// What lies under a key, and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HistoryKind {
    Bucket,
    Sliding,
    Fixed,
    Reserved,
}

const KINDS: [HistoryKind; 4] =
    [HistoryKind::Bucket, HistoryKind::Sliding, HistoryKind::Fixed, HistoryKind::Reserved];

fn memory() -> Memory {
    let memory = Memory::default();
    memory.zones(|zones| zones.named(b"UTC"));
    memory
}

fn window(limit: u64, rule: &str) -> WindowLimit {
    let rule = memory().zones(|zones| Rule::parse(rule.as_bytes(), zones)).expect("a rule");
    WindowLimit { limit, rule, most_entries: 4096 }
}

/// A call: its words behind the key, and the same for the engine.
fn random_call(
    kind: HistoryKind,
    random: &mut Random,
    id: &str,
    mine: &mut Vec<String>,
) -> (String, String, What) {
    let quantity = 1 + random.below(2);
    let taking = |limit: Limit, quantity: i64, manner: Manner| {
        let mut request = Request::of(limit);
        request.ask.quantity = Quantity::from_signed(quantity);
        request.ask.manner = manner;
        What::Take(request)
    };
    let (quantity, options, manner) = match random.below(8) {
        0 if kind != HistoryKind::Reserved => (-quantity, "", Manner::Whole),
        1 if kind != HistoryKind::Reserved => (2 * quantity, "ATMOST", Manner::AtMost),
        2 => (0, "", Manner::Whole),
        _ => (quantity, "", Manner::Whole),
    };
    match kind {
        HistoryKind::Bucket => {
            let what =
                taking(Limit::Bucket(Rate::new(4, 20, 1_000).expect("a rate")), quantity, manner);
            ("RL.THROTTLE".into(), format!("4 20 1s {quantity} {options} MS"), what)
        }
        HistoryKind::Sliding => {
            let what = taking(Limit::Window(window(8, "1s")), quantity, manner);
            ("RL.WINDOW".into(), format!("8 1s {quantity} {options} MS"), what)
        }
        HistoryKind::Fixed => {
            let what = taking(Limit::Window(window(8, "1s@UTC")), quantity, manner);
            ("RL.WINDOW".into(), format!("8 1s {quantity} FIXED TZ UTC {options} MS"), what)
        }
        HistoryKind::Reserved => {
            if !mine.is_empty() && random.one_in(2) {
                let id = mine.remove(random.below(mine.len() as i64) as usize);
                let engine_id = Id::from(id.as_bytes());
                return match random.one_in(2) {
                    true => ("RL.APPLY".into(), id, What::Apply(engine_id)),
                    false => ("RL.RELEASE".into(), id, What::Release(engine_id)),
                };
            }
            let count_lapsed = random.one_in(3);
            let lease_ms = 100 + 100 * random.below(4) as u64;
            let reserve =
                Reserve { lease_ms, count_lapsed, id: Some(Id::from(id.as_bytes())), most: 65_536 };
            let what = taking(Limit::Reserve(window(6, "1s"), reserve), quantity, manner);
            let lapsed = if count_lapsed { "COUNTLAPSED" } else { "" };
            (
                "RL.ACQUIRE".into(),
                format!("6 1s {quantity} LEASE {lease_ms} {lapsed} ID {id} MS"),
                what,
            )
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

/// Where the key's master is, as far as a client knows.
trait Nodes: Sync {
    /// All servers.
    fn servers(&self) -> Vec<u16>;
    /// The server to ask first, or again after a failure.
    fn master(&self) -> Option<u16>;
}

struct Recorder<'n> {
    nodes: &'n dyn Nodes,
    clock: &'n Clock,
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
            std::collections::btree_map::Entry::Vacant(place) => match open(port) {
                Some(conn) => place.insert(conn),
                None => return CallOutcome::Refused,
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

    /// One call, wherever its key is. `None` where nothing was done.
    fn call(&mut self, key: &str, line: &str, what: What) -> Option<Op> {
        let servers = self.nodes.servers();
        let random = servers[self.random.below(servers.len() as i64) as usize];
        let mut port = match self.known.get(key) {
            Some(port) => *port,
            None => self.nodes.master().unwrap_or(random),
        };
        let mut asking = false;
        for _ in 0..6 {
            let (from_ns, from_us) = (self.ns(), self.clock.now_us() as u64);
            let outcome = self.send(port, line, asking);
            let (to_us, to_ns) = (self.clock.now_us() as u64, self.ns());
            let op = |reply| Op { what, from_ns, to_ns, clock_us: (from_us, to_us), reply };
            match outcome {
                CallOutcome::Unknown => {
                    self.known.remove(key);
                    return Some(op(None));
                }
                CallOutcome::Refused => {
                    self.known.remove(key);
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
                        ("DUPLICATE", _) => return Some(op(Some(vec![DUPLICATE]))),
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
                    return Some(op(Some(numbers(&reply))));
                }
            }
        }
        None
    }
}

fn open(port: u16) -> Option<Conn> {
    Conn::to(port).ok()
}

/// The calls of each key.
type History = BTreeMap<String, Vec<Op>>;

/// Real time, rounded down to a tick.
fn tick_now_us() -> i64 {
    let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    (real.as_micros() as u64 / TICK_US * TICK_US) as i64
}

/// Records what clients do on these keys, while `faults` happen, which get the history to note failovers in.
fn record(
    nodes: &dyn Nodes,
    clock: &Clock,
    keys: &[(String, HistoryKind)],
    seconds: u64,
    seed: u64,
    faults: impl FnOnce(&dyn Fn() -> u64, &AtomicBool, &mut Vec<(u64, u64)>) + Send,
) -> History {
    let (begin, over, calls) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    let history: Mutex<History> = Mutex::default();
    let mut failovers = Vec::new();
    let done = AtomicBool::new(false);
    clock.set_us(tick_now_us());
    scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                let us = tick_now_us();
                if us > clock.now_us() {
                    clock.set_us(us);
                }
                sleep(Duration::from_millis(1));
            }
        });
        let workers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (history, over, calls) = (&history, &over, &calls);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 100 + client as u64);
                    let own = Random::new(seed * 1_000 + client as u64);
                    let mut recorder = Recorder {
                        nodes,
                        clock,
                        begin,
                        conns: BTreeMap::new(),
                        known: BTreeMap::new(),
                        random: own,
                    };
                    let mut ops: History = BTreeMap::new();
                    let mut mine: BTreeMap<&str, Vec<String>> = BTreeMap::new();
                    let mut number = 0;
                    while !over.load(SeqCst) {
                        let (key, kind) = &keys[random.below(keys.len() as i64) as usize];
                        number += 1;
                        let id = format!("c{client}n{number}");
                        let mine = mine.entry(key).or_default();
                        let (command, words, what) = random_call(*kind, &mut random, &id, mine);
                        let Some(op) =
                            recorder.call(key, &format!("{command} {key} {words}"), what)
                        else {
                            continue;
                        };
                        let had = op.reply.as_ref().is_none_or(|reply| reply.last() == Some(&1));
                        if command == "RL.ACQUIRE" && had {
                            mine.push(id);
                        }
                        ops.entry(key.clone()).or_default().push(op);
                        calls.fetch_add(1, SeqCst);
                    }
                    let mut all = history.lock().expect("no client fails");
                    for (key, ops) in ops {
                        all.entry(key).or_default().extend(ops);
                    }
                })
            })
            .collect();
        let causing = scope.spawn(|| {
            faults(&|| begin.elapsed().as_nanos() as u64, &done, &mut failovers);
        });
        sleep(Duration::from_secs(seconds));
        done.store(true, SeqCst);
        let caused = causing.join();
        over.store(true, SeqCst);
        workers.into_iter().for_each(|worker| worker.join().expect("a client fails"));
        caused.expect("a fault fails");
    });
    let mut history = history.into_inner().expect("no client fails");
    for ops in history.values_mut() {
        for (from_ns, to_ns) in &failovers {
            let (from_ns, to_ns) = (*from_ns, *to_ns);
            ops.push(Op { what: What::Failover, from_ns, to_ns, clock_us: (0, 0), reply: None });
        }
    }
    history
}

/// Judges a history. Returns what there is to tell of it.
fn judge_all(name: &str, history: &History, faults: usize) -> String {
    let begin = Instant::now();
    let memory = memory();
    let (mut calls, mut unknown, mut tried, mut lost, mut wrong) = (0, 0, 0, 0, Vec::new());
    for (key, ops) in history {
        let answered = ops.iter().filter(|op| op.reply.is_some()).count();
        calls += answered;
        unknown += ops
            .iter()
            .filter(|op| op.reply.is_none() && !matches!(op.what, What::Failover))
            .count();
        match judge(&memory, ops, TICK_US) {
            Ok(judged) => {
                tried += judged.tried;
                lost = lost.max(judged.lost);
            }
            Err(why) => wrong.push(format!("{key}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{name} is not linearizable\n{}", wrong.join("\n\n"));
    format!(
        "{name}: {calls} calls answered, {unknown} cut off, {} keys, {faults} failovers, at most {lost} effects of a key \
         lost in one; {tried} states compared in {:.1} s",
        history.len(),
        begin.elapsed().as_secs_f64()
    )
}

fn how_many(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

// ---- A history that nobody recorded ----

/// Calls of some clients that overlap, answered by the engine; the clock moves on between them.
fn generated(seed: u64) -> Vec<Op> {
    let (mut random, memory) = (Random::new(seed), memory());
    let (mut saved, mut ops, mut now_us) = (None, Vec::new(), START_US as u64);
    let mut mine = Vec::new();
    for number in 0..250u64 {
        let id = format!("g{number}");
        let (command, _, what) = random_call(HistoryKind::Reserved, &mut random, &id, &mut mine);
        let (reply, after) = apply(&memory, &saved, &what, now_us);
        if command == "RL.ACQUIRE" && reply.last() == Some(&1) {
            mine.push(id);
        }
        saved = after;
        // It was made at 1000 * number, somewhere between its beginning and its end.
        let from_ns = (1_000 * number).saturating_sub(random.below(2_500) as u64);
        let to_ns = 1_000 * number + 1 + random.below(2_500) as u64;
        let clock_us = (now_us, now_us + TICK_US * random.below(2) as u64);
        ops.push(Op { what, from_ns, to_ns, clock_us, reply: Some(reply) });
        if random.one_in(3) {
            now_us += TICK_US;
        }
    }
    ops
}

#[test]
fn a_history_with_one_lie_is_refused() {
    let memory = memory();
    for seed in 0..2 {
        let truth = generated(seed);
        let judged = judge(&memory, &truth, TICK_US).expect("the truth");
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
            lies += usize::from(judge(&memory, &lie, TICK_US).is_err());
        }
        assert!(lies > 10, "{lies} of the lies were refused");
    }
}

/// A failover may lose the newest effects, and nothing before them.
#[test]
fn a_failover_loses_a_suffix_and_nothing_else() {
    let memory = memory();
    let limit = Limit::Window(window(8, "1s"));
    let what = What::Take(Request::of(limit));
    let mut saved = None;
    let mut ops = Vec::new();
    let now_us = START_US as u64;
    let mut states = Vec::new();
    for number in 0..5u64 {
        states.push(saved.clone());
        let (reply, after) = apply(&memory, &saved, &what, now_us);
        saved = after;
        let (from_ns, to_ns) = (10 * number, 10 * number + 5);
        ops.push(Op { what, from_ns, to_ns, clock_us: (now_us, now_us), reply: Some(reply) });
    }
    let failover =
        Op { what: What::Failover, from_ns: 60, to_ns: 70, clock_us: (0, 0), reply: None };
    let then = |state: &Option<_>| {
        let (reply, _) = apply(&memory, state, &what, now_us);
        Op { what, from_ns: 80, to_ns: 90, clock_us: (now_us, now_us), reply: Some(reply) }
    };
    for lost in 1..=5 {
        let after = then(&states[5 - lost]);
        let with = [&ops[..], &[failover.clone(), after.clone()]].concat();
        assert_eq!(judge(&memory, &with, TICK_US).expect("a suffix was lost").lost, lost);
        let without = [&ops[..], &[after]].concat();
        assert!(judge(&memory, &without, TICK_US).is_err(), "nothing was lost without a failover");
    }
    // The first alone is no suffix: then four are counted that were granted second to fifth, with other totals, so that more
    // is there than after any loss of five or four.
    let mut more = then(&saved);
    more.reply.as_mut().expect("answered")[2] -= 1;
    let with = [&ops[..], &[failover, more]].concat();
    assert!(judge(&memory, &with, TICK_US).is_err());
}

// ---- A cluster ----

struct ClusterNodes(Vec<u16>);

impl Nodes for ClusterNodes {
    fn servers(&self) -> Vec<u16> {
        self.0.clone()
    }

    fn master(&self) -> Option<u16> {
        None
    }
}

/// Keys of each kind in the first slots of each of three masters, which are those that move.
fn keys_in_first_slots(conn: &mut Conn) -> Vec<(String, HistoryKind)> {
    let names: Vec<String> = (0..12_000).map(|number| format!("h{number}")).collect();
    let slots = conn.pipeline(names.iter().map(|name| ["CLUSTER", "KEYSLOT", name.as_str()]));
    let mut keys = Vec::new();
    for first in [0, 5_461, 10_923] {
        let near = names.iter().zip(&slots).filter(|(_, slot)| match slot {
            Value::Int(slot) => (first..first + 100).contains(slot),
            _ => false,
        });
        keys.extend(near.zip(KINDS).map(|((name, _), kind)| (name.clone(), kind)));
    }
    assert_eq!(keys.len(), 12);
    keys
}

fn cluster_history(seconds: u64, seed: u64, kills: bool) -> String {
    let mut cluster = Cluster::by_one_clock(3, 1);
    cluster.notice_the_dead();
    let ports = (0..6).map(|node| cluster.node(node).port()).collect();
    let keys = keys_in_first_slots(&mut cluster.node(0).conn());
    let nodes = ClusterNodes(ports);
    let clock = cluster.node(0).shared_clock();
    let mut seen = BTreeMap::<&str, usize>::new();
    let mut failed_over = 0;
    let history = record(&nodes, &clock, &keys, seconds, seed, |ns, over, failovers| {
        let mut random = Random::new(seed);
        let mut turn = seed;
        while !over.load(SeqCst) {
            sleep(Duration::from_millis(200 + random.below(600) as u64));
            let masters = |cluster: &Cluster| -> Vec<usize> {
                (0..6).filter(|node| cluster.is_master(*node)).collect()
            };
            let before = masters(&cluster);
            let Some(master) = before.get(random.below(before.len() as i64) as usize).copied()
            else {
                continue;
            };
            let began_ns = ns();
            turn += 1;
            let what = match turn % 4 {
                0 if kills => {
                    let key = keys[random.below(keys.len() as i64) as usize].0.clone();
                    let master = cluster.master_of(&key);
                    let replica = cluster.replica_of(master);
                    cluster.kill(master);
                    eventually(SOON, || cluster.is_master(replica));
                    failovers.push((began_ns, ns()));
                    cluster.start_again(master);
                    eventually(SOON, || !cluster.is_master(master));
                    cluster.wait_until_agreed();
                    eventually(SOON, || {
                        cluster.node(master).info("master_link_status").as_deref() == Some("up")
                    });
                    "kill -9"
                }
                1 => {
                    let frozen = cluster.node(master).freeze();
                    sleep(Duration::from_millis(1 + random.below(LONGEST_PAUSE_MS) as u64));
                    drop(frozen);
                    "pause"
                }
                2 => {
                    let ms = 10 + random.below(LONGEST_PAUSE_MS);
                    let _ = cluster.node(master).try_ask(format!("CLIENT PAUSE {ms} WRITE"));
                    "CLIENT PAUSE"
                }
                _ => {
                    let to = before[(before.iter().position(|one| *one == master).unwrap_or(0)
                        + 1)
                        % before.len()];
                    cluster.reshard(master, to, 100);
                    cluster.wait_until_agreed();
                    "reshard"
                }
            };
            // A machine that is busy makes a paused one look dead.
            if what != "kill -9" && masters(&cluster) != before {
                failovers.push((began_ns, ns()));
            }
            *seen.entry(what).or_default() += 1;
        }
        failed_over = failovers.len();
    });
    format!("{}; {seen:?}", judge_all("cluster", &history, failed_over))
}

// ---- A set under Sentinel ----

struct SentinelNodes {
    servers: Vec<u16>,
    sentinel: u16,
}

impl Nodes for SentinelNodes {
    fn servers(&self) -> Vec<u16> {
        self.servers.clone()
    }

    fn master(&self) -> Option<u16> {
        let reply = Conn::to(self.sentinel)
            .ok()?
            .try_cmd("SENTINEL GET-MASTER-ADDR-BY-NAME limits")
            .ok()?;
        flat(&reply).get(1)?.parse().ok()
    }
}

fn sentinel_history(seconds: u64, seed: u64) -> String {
    let first = Server::builder().clock(true).start();
    let mut servers = vec![first];
    for _ in 0..2 {
        let replica = Server::builder().replica_of(&servers[0]).start();
        wait_for_sync(&servers[0], &replica);
        servers.push(replica);
    }
    let sentinel = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|at| at.local_addr())
        .expect("a port")
        .port();
    let config = servers[0].dir().join("sentinel.conf");
    let lines = [
        "bind 127.0.0.1".to_owned(),
        format!("port {sentinel}"),
        format!("dir {:?}", servers[0].dir()),
        format!("sentinel monitor limits 127.0.0.1 {} 1", servers[0].port()),
        "sentinel down-after-milliseconds limits 2000".to_owned(),
        "sentinel failover-timeout limits 6000".to_owned(),
    ];
    fs::write(&config, lines.join("\n") + "\n").expect("write Sentinel's configuration");
    let binary = env::var_os("REDIS_SERVER").unwrap_or("redis-server".into());
    let mut command = Command::new(binary);
    command.arg(&config).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
    let _sentinel = Running::start(&mut command);
    let nodes = SentinelNodes { servers: servers.iter().map(Server::port).collect(), sentinel };
    eventually(SOON, || {
        let replicas = Conn::to(sentinel)
            .ok()
            .and_then(|mut conn| conn.try_cmd("SENTINEL REPLICAS limits").ok());
        matches!(replicas, Some(Value::Array(replicas)) if replicas.len() == 2)
    });
    let clock = servers[0].shared_clock();
    let keys: Vec<_> = (0..12).map(|number| (format!("s{number}"), KINDS[number % 4])).collect();
    let mut seen = BTreeMap::<&str, usize>::new();
    let mut failed_over = 0;
    let history = record(&nodes, &clock, &keys, seconds, seed, |ns, over, failovers| {
        let mut random = Random::new(seed);
        let mut turn = seed;
        while !over.load(SeqCst) {
            sleep(Duration::from_millis(200 + random.below(600) as u64));
            let Some(port) = nodes.master() else { continue };
            let at =
                servers.iter().position(|server| server.port() == port).expect("one of the set");
            let began_ns = ns();
            turn += 1;
            let what = match turn % 3 {
                0 => {
                    servers[at].stop(Stop::Kill);
                    eventually(SOON, || nodes.master().is_some_and(|now| now != port));
                    let now = nodes.master().expect("a master");
                    let new = servers
                        .iter()
                        .position(|server| server.port() == now)
                        .expect("one of the set");
                    eventually(SOON, || servers[new].info("role").as_deref() == Some("master"));
                    failovers.push((began_ns, ns()));
                    servers[at].restart(Stop::Kill);
                    eventually(SOON, || servers[at].info("role").as_deref() == Some("slave"));
                    for (other, server) in
                        servers.iter().enumerate().filter(|(other, _)| *other != new)
                    {
                        let up = || server.info("master_link_status").as_deref() == Some("up");
                        let _ = other;
                        eventually(SOON, up);
                    }
                    "kill -9"
                }
                1 => {
                    let frozen = servers[at].freeze();
                    sleep(Duration::from_millis(1 + random.below(LONGEST_PAUSE_MS) as u64));
                    drop(frozen);
                    "pause"
                }
                _ => {
                    let ms = 10 + random.below(LONGEST_PAUSE_MS);
                    let _ = servers[at].try_ask(format!("CLIENT PAUSE {ms} WRITE"));
                    "CLIENT PAUSE"
                }
            };
            if what != "kill -9" && nodes.master() != Some(port) {
                failovers.push((began_ns, ns()));
            }
            *seen.entry(what).or_default() += 1;
        }
        failed_over = failovers.len();
    });
    format!("{}; {seen:?}", judge_all("Sentinel set", &history, failed_over))
}

#[test]
fn a_short_history_of_a_cluster_is_linearizable() {
    println!("{}", cluster_history(4, how_many("RATELIMIT_SEED", 1), false));
}

#[test]
#[ignore = "minutes: make prove"]
fn long_histories_are_linearizable() {
    let seconds = how_many("RATELIMIT_HISTORY_SECONDS", 60);
    let seed = how_many("RATELIMIT_SEED", 1);
    for number in 0..how_many("RATELIMIT_HISTORIES", 10) {
        println!("{}", cluster_history(seconds, seed + number, true));
        println!("{}", sentinel_history(seconds, seed + number));
    }
}

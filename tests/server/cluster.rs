//! A real cluster, driven by a real cluster client: the books balance while slots move and masters die.
//!
//! docs/operations.md says the same: a move admits exactly the limit, and a master that dies loses only what WAIT 1 has not
//! confirmed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::redis::cluster::{ClusterClient, ClusterConnection};
use support::redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use support::redis::RedisResult;
use support::*;

const LIMIT: i64 = 30;

/// A hash tag for each of these slots.
fn tags_in(slots: std::ops::Range<i64>, cluster: &Cluster) -> Vec<String> {
    let mut conn = cluster.node(0).conn();
    let mut tags = BTreeMap::new();
    for number in 0.. {
        let names: Vec<_> =
            (number * 1000..number * 1000 + 1000).map(|n| format!("{{{n}}}")).collect();
        let slot_of = conn.pipeline(names.iter().map(|name| ["CLUSTER", "KEYSLOT", name]));
        for (name, slot) in names.into_iter().zip(slot_of) {
            if let Value::Int(slot) = slot {
                tags.entry(slot).or_insert(name);
            }
        }
        if slots.clone().all(|slot| tags.contains_key(&slot)) {
            break;
        }
    }
    slots.map(|slot| tags[&slot].clone()).collect()
}

/// Three limits of one slot, in one call. The window is the tightest, so the others show what only some of the clauses took.
fn all_of(tag: &str) -> String {
    let (rate, place) = (LIMIT + 10, LIMIT + 5);
    let clauses =
        format!("THROTTLE {} 1 1d WINDOW {LIMIT} 1d ACQUIRE {place} 0 1 LEASE 600000", rate - 1);
    format!("RL.ALL 3 {tag}t {tag}w {tag}a {clauses} MS")
}

/// Makes that call, and returns the id of what it reserved.
fn take_all(conn: &mut ClusterConnection, tag: &str, by_key: bool) -> Option<String> {
    let call = all_of(tag);
    let reply = if by_key { ask_by_key(conn, tag, &call) } else { ask(conn, &call) };
    all_reply(&reply.unwrap_or_else(|error| panic!("{call}: {error}"))).ids.swap_remove(2)
}

/// The ids that clients were granted, by tag.
type GrantedIds = BTreeMap<String, Vec<String>>;

/// Runs `work` while two clients take the limits of all tags, one of which names the key of each call.
fn under_load(cluster: &Cluster, tags: &[String], work: impl FnOnce()) -> GrantedIds {
    let over = AtomicBool::new(false);
    let mut granted = GrantedIds::new();
    thread::scope(|scope| {
        let clients = [true, false].map(|by_key| {
            let over = &over;
            scope.spawn(move || {
                let (mut conn, mut random) = (cluster.client(), Random::new(by_key.into()));
                let mut granted = Vec::new();
                while !over.load(SeqCst) {
                    let tag = &tags[random.below(tags.len() as i64) as usize];
                    let id = take_all(&mut conn, tag, by_key);
                    granted.extend(id.map(|id| (tag.clone(), id)));
                }
                granted
            })
        });
        // Also when the work fails, or the clients never end.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, SeqCst);
        for client in clients {
            for (tag, id) in client.join().expect("a client failed") {
                granted.entry(tag).or_default().push(id);
            }
        }
        ended.expect("the work failed");
    });
    granted
}

/// Takes what is left, and asserts that each limit has counted what was granted, not one more or less.
#[track_caller]
fn assert_exactly_the_limit(cluster: &Cluster, tags: &[String], mut granted: GrantedIds) {
    let mut conn = cluster.client();
    for tag in tags {
        let granted = granted.entry(tag.clone()).or_default();
        assert!(granted.len() <= LIMIT as usize, "{tag}: {}", granted.len());
        while let Some(id) = take_all(&mut conn, tag, true) {
            granted.push(id);
        }
        let looks = [
            format!("RL.THROTTLE_RO {tag}t {} 1 1d", LIMIT + 9),
            format!("RL.WINDOW_RO {tag}w {LIMIT} 1d"),
            format!("RL.ACQUIRE_RO {tag}a {} 0", LIMIT + 5),
        ];
        let left = looks.map(|look| flat(&ask(&mut conn, look).unwrap()).swap_remove(2));
        assert_eq!(left, ["10", "0", "5"], "{tag}");
        let mut held = held_ids(&mut conn, &format!("{tag}a"));
        held.sort();
        granted.sort();
        assert_eq!((held.len(), &held), (LIMIT as usize, &*granted), "{tag}");
    }
}

/// The ids of what a key holds.
fn held_ids(conn: &mut ClusterConnection, key: &str) -> Vec<String> {
    let held = held(&ask(conn, format!("RL.HELD {key}")).unwrap());
    held.into_iter().map(|one| String::from_utf8(one.id).unwrap()).collect()
}

/// Workers who wait for a semaphore of one, while `work` runs and then gives it back: each has it once, no two at a time.
fn while_workers_wait(cluster: &mut Cluster, key: &str, work: impl FnOnce(&mut Cluster)) {
    let clients = cluster.clients(16);
    let mut holder = cluster.client();
    let holds = format!("RL.ACQUIRE {key} 1 0 ID holder LEASE 600000");
    assert_eq!(acquired(&ask(&mut holder, holds).unwrap()).limited(), 0);
    let (inside, served) = (AtomicI64::new(1), AtomicI64::new(0));
    thread::scope(|scope| {
        for worker in 0..3 {
            let (inside, served, clients) = (&inside, &served, &clients);
            scope.spawn(move || {
                let id = format!("worker{worker}");
                let call = format!("RL.ACQUIRE {key} 1 0 ID {id} LEASE 600000 BLOCK 50000");
                let (mut conn, had) = until_answered(clients, &call);
                assert_eq!(acquired(&had).id(), id);
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at a time");
                sleep(Duration::from_millis(20));
                inside.fetch_sub(1, SeqCst);
                let back = ask(&mut conn, format!("RL.RELEASE {key} {id}")).unwrap();
                assert_eq!(back, Value::Int(1));
                served.fetch_add(1, SeqCst);
            });
        }
        cluster.node(cluster.master_of(key)).wait_until_waiting(3);
        work(cluster);
        cluster.node(cluster.master_of(key)).wait_until_waiting(3);
        assert_eq!(served.load(SeqCst), 0);
        inside.fetch_sub(1, SeqCst);
        let release = format!("RL.RELEASE {key} holder");
        assert_eq!(until_answered(&clients, &release).1, Value::Int(1));
    });
    assert_eq!(served.load(SeqCst), 3);
    for node in cluster.living() {
        cluster.node(node).expect_no_waiting_calls();
    }
}

/// Calls until there is a reply. The client library does not call again when its master died or became a replica
/// (-UNBLOCKED), or when the nodes do not agree yet and sent it from one to the other several times (-MOVED).
fn until_answered(clients: &ClusterClient, call: &str) -> (ClusterConnection, Value) {
    let mut answered = None;
    eventually(SOON, || {
        answered = match connect(clients) {
            Ok(mut conn) => match ask(&mut conn, call) {
                Ok(reply) => Some((conn, reply)),
                Err(error) if error.is_io_error() => None,
                Err(error) if matches!(error.code(), Some("UNBLOCKED" | "MOVED")) => None,
                Err(error) => panic!("{call}: {error}"),
            },
            Err(_) => None,
        };
        answered.is_some()
    });
    answered.unwrap()
}

/// Takes limits, and waits for a semaphore, while `change` moves slots 0 to 59 from one master to another.
#[track_caller]
fn limits_hold_while_slots_move(change: impl FnOnce(&Cluster, usize, usize)) {
    let mut cluster = Cluster::start();
    // The slots that move, and some that stay.
    let tags = tags_in(0..80, &cluster);
    let (from, to) = (cluster.master_of(&tags[0]), cluster.master_of("{foo}"));
    assert_ne!(from, to);
    let waits = format!("{}sem", tags[30]);
    let mut granted = GrantedIds::new();
    while_workers_wait(&mut cluster, &waits, |cluster| {
        granted = under_load(cluster, &tags, || change(cluster, from, to));
        cluster.wait_until_agreed();
        assert_eq!(cluster.master_of(&waits), to);
    });
    assert_eq!(cluster.master_of(&tags[70]), from);
    expect_empty(&cluster, from, 0..60);
    assert_exactly_the_limit(&cluster, &tags, granted);
}

#[test]
fn every_limit_holds_while_its_slot_is_resharded() {
    limits_hold_while_slots_move(|cluster, from, to| cluster.reshard(from, to, 60));
}

// ---- Slots that move as a whole ----

#[test]
fn every_limit_holds_while_its_slots_move_as_a_whole() {
    if Version::under_test().lacks_atomic_migration() {
        return;
    }
    limits_hold_while_slots_move(|cluster, from, to| {
        sleep(Duration::from_millis(200));
        cluster.begin_migration(from, to, 0..=59);
        cluster.wait_until_migrated(from, to);
    });
}

/// Waits until a node has no key left in these slots.
#[track_caller]
fn expect_empty(cluster: &Cluster, node: usize, slots: std::ops::Range<i64>) {
    let mut conn = cluster.node(node).conn();
    eventually(SOON, || {
        slots.clone().all(|slot| conn.int(format!("CLUSTER COUNTKEYSINSLOT {slot}")) == 0)
    });
}

/// The slot of `{bar}` on its way between two masters, which goes on when the test says so.
struct Migration {
    cluster: Cluster,
    from: usize,
    to: usize,
    slot: i64,
}

impl Migration {
    /// Nothing, if this server cannot do that.
    #[track_caller]
    fn prepare() -> Option<Migration> {
        if Version::under_test().lacks_held_migration() {
            return None;
        }
        let cluster = Cluster::of(3, 0);
        let (from, to) = (cluster.master_of("{bar}"), cluster.master_of("{foo}"));
        assert_ne!(from, to);
        let slot = cluster.node(from).conn().int("CLUSTER KEYSLOT {bar}");
        Some(Migration { cluster, from, to, slot })
    }

    fn source(&self) -> &Server {
        self.cluster.node(self.from)
    }

    fn target(&self) -> &Server {
        self.cluster.node(self.to)
    }

    /// Lets the slot go on its way, up to the moment before the source stands still: what it writes now has been copied
    /// or follows the copy.
    #[track_caller]
    fn begin(&self) {
        self.hold("PREVENT-PAUSE", true);
        self.cluster.begin_migration(self.from, self.to, self.slot as u32..=self.slot as u32);
        self.wait_until("waiting-to-pause");
    }

    #[track_caller]
    fn hold(&self, where_: &str, on: bool) {
        for node in [self.source(), self.target()] {
            let hold = format!("DEBUG SLOTMIGRATION {where_} {}", i32::from(on));
            assert_eq!(node.conn().text(hold), "OK");
        }
    }

    #[track_caller]
    fn wait_until(&self, state: &str) {
        eventually(SOON, || self.cluster.migration(self.from, self.to) == state);
    }

    /// Lets it come to its end, after which the source has no such keys and no calls that wait for them.
    #[track_caller]
    fn end(&self, waiters: &mut [Conn]) {
        self.hold("PREVENT-PAUSE", false);
        self.hold("PREVENT-FAILOVER", false);
        self.cluster.wait_until_migrated(self.from, self.to);
        let moved = format!("MOVED {} 127.0.0.1:{}", self.slot, self.target().port());
        for waiter in waiters {
            assert_eq!(error_line(&waiter.recv()), moved);
        }
        expect_empty(&self.cluster, self.from, self.slot..self.slot + 1);
    }
}

#[test]
fn a_slot_that_moves_as_a_whole_takes_along_what_happens_meanwhile() {
    let Some(migration) = Migration::prepare() else { return };
    let (source, target) = (migration.source(), migration.target());
    let mut here = source.conn();
    let mut there = target.conn();
    // Another slot of the source, which stays.
    let stays = format!("{}s", tags_in(0..1, &migration.cluster)[0]);
    assert_eq!(migration.cluster.master_of(&stays), migration.from);
    let hold = |key: &str| format!("RL.ACQUIRE {key} 1 0 1 ID holder LEASE 600000");
    let wait = |key: &str, id: &str| format!("RL.ACQUIRE {key} 1 0 1 ID {id} LEASE 600000 BLOCK 0");
    for call in [
        "RL.THROTTLE {bar}t 4 7 1h 3",
        "RL.WINDOW {bar}w 5 1h 2",
        "RL.ACQUIRE {bar}a 3 1h 1 ID x LEASE 600000",
        "RL.THROTTLE {bar}drains 0 1 1h",
        "RL.ACQUIRE {bar}slides 1 1h 1 ID holder LEASE 600000",
        "RL.WINDOW {bar}counts 9 1h 9",
        &hold("{bar}lapses"),
        &hold("{bar}dies"),
        &hold("{bar}left"),
        &hold(&stays),
    ] {
        assert_eq!(limited(&here.cmd(call)), 0, "{call}");
    }
    let mut served = [
        source.wait_in_line(wait("{bar}lapses", "next")),
        source.wait_in_line("RL.THROTTLE {bar}drains 0 1 1h 1 BLOCK 0"),
        source.wait_in_line("RL.WINDOW {bar}slides 1 1h 1 BLOCK 0"),
        source.wait_in_line(wait(&stays, "next")),
    ];
    let mut unblocked = source.conn();
    let unblocked_id = unblocked.id();
    let call = "RL.WINDOW {bar}counts 9 1h 2 COUNTDENIED BLOCK 0";
    let mut unblocked = source.wait_on(unblocked, call);
    let (mut killed, killed_id) = source.wait_with_id(wait("{bar}dies", "dead"));
    let mut after_it = source.wait_in_line(wait("{bar}dies", "living"));
    let mut left = [
        source.wait_in_line("RL.THROTTLE {bar}t 4 7 1h 5 BLOCK 0"),
        source.wait_in_line("RL.WINDOW {bar}w 5 1h 5 BLOCK 0"),
        source.wait_in_line("RL.ACQUIRE {bar}a 3 1h 3 BLOCK 0"),
        source.wait_in_line(wait("{bar}left", "next")),
    ];

    migration.begin();
    // Calls.
    assert_eq!(here.acquire("RL.ACQUIRE {bar}new 3 1h 1 ID y LEASE 600000").limited(), 0);
    assert_eq!(here.int("RL.APPLY {bar}new y"), 1);
    assert_eq!(here.int("RL.RENEW {bar}a x LEASE 700000"), 1);
    // Timers: what they write has no command to tell its slot.
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(100);
    let replies = here.pipeline([
        "RL.RENEW {bar}lapses holder LEASE 100".to_owned(),
        format!("SET {{bar}}drains {} EX 10000", soon.as_nanos()),
        "RL.RENEW {bar}slides holder LEASE 100".to_owned(),
        format!("RL.RENEW {stays} holder LEASE 100"),
    ]);
    assert_eq!(replies, [Value::Int(1), Value::Okay, Value::Int(1), Value::Int(1)]);
    for waiter in &mut served {
        assert_eq!(limited(&waiter.recv()), 0);
    }
    // If a client dies before it receives its grant, a timer gives the grant back, and it goes to the next.
    let kill = format!("CLIENT KILL ID {killed_id}");
    here.pipeline(["RL.RELEASE {bar}dies holder", &kill]);
    killed.expect_closed();
    assert_eq!(acquired(&after_it.recv()).id(), "living");
    // A denial that counts.
    here.cmd(format!("CLIENT UNBLOCK {unblocked_id}"));
    assert_eq!(limited(&unblocked.recv()), 1);
    eventually(SOON, || here.ints("RL.WINDOW_RO {bar}counts 1000 1h 0")[2] == 989);

    let keys = ["t", "w", "a", "drains", "slides", "counts", "lapses", "dies", "left", "new"];
    let keys = keys.map(|key| format!("{{bar}}{key}"));
    let before = keys.clone().map(|key| state(&mut here, &key));
    let stayed = state(&mut here, &stays);
    there.refuses("RL.HELD {bar}lapses", "MOVED ");
    migration.end(&mut left);
    assert_eq!(keys.clone().map(|key| state(&mut there, &key)), before);
    assert_eq!(there.int(format!("CLUSTER COUNTKEYSINSLOT {}", migration.slot)), 10);
    assert_eq!(state(&mut here, &stays), stayed);
    assert_eq!(here.int("DBSIZE"), 1);
    for (key, id) in [("lapses", "next"), ("dies", "living"), ("left", "holder"), ("a", "x")] {
        assert_eq!(there.held_ids(&format!("{{bar}}{key}")), [id]);
    }
    source.expect_no_waiting_calls();
    // There they wait again, and are served.
    let mut again = target.wait_in_line(wait("{bar}left", "next"));
    assert_eq!(there.int("RL.RELEASE {bar}left holder"), 1);
    assert_eq!(acquired(&again.recv()).id(), "next");
    assert_eq!(here.text("MODULE UNLOAD ratelimit"), "OK");
}

#[test]
fn while_a_slot_stands_still_before_it_moves_nothing_is_granted() {
    let Some(migration) = Migration::prepare() else { return };
    let (source, target) = (migration.source(), migration.target());
    let (mut here, mut there) = (source.conn(), target.conn());
    let wait = |id: &str| format!("RL.ACQUIRE {{bar}} 1 0 1 ID {id} LEASE 600000 BLOCK 0");
    here.cmd("RL.ACQUIRE {bar} 1 0 1 ID holder LEASE 600000");
    let mut first = source.wait_in_line(wait("a"));
    let dropped = source.wait_in_line(wait("b"));
    let (mut unblocked, id) = source.wait_with_id(wait("c"));
    let mut last = source.wait_in_line(wait("d"));
    let mut overdue = source.wait_in_line("RL.ACQUIRE {bar} 1 0 1 BLOCK 1000");
    migration.begin();
    migration.hold("PREVENT-FAILOVER", true);
    assert_eq!(here.int("RL.RENEW {bar} holder LEASE 2000"), 1);
    migration.hold("PREVENT-PAUSE", false);
    migration.wait_until("failover-granted");
    // The lease lapses here, if it has not before that on a machine that was busy with something else.
    let granted = !first.silent_for(Duration::from_millis(2500));
    drop(dropped);
    here.cmd(format!("CLIENT UNBLOCK {id}"));
    assert_eq!(limited(&unblocked.recv()), 2);
    assert!(last.silent_for(Duration::from_millis(100)));
    if granted {
        assert_eq!(acquired(&first.recv()).id(), "a");
        migration.end(&mut [last]);
        assert_eq!(there.held_ids("{bar}"), ["a"]);
    } else {
        migration.end(&mut [first, last]);
        assert_eq!(there.held("{bar}"), []);
        assert_eq!(there.acquire("RL.ACQUIRE {bar} 1 0 1 ID e").limited(), 0);
    }
    // Its time was up meanwhile, or before.
    match overdue.recv() {
        error @ Value::ServerError(_) => assert!(error_line(&error).starts_with("MOVED ")),
        denial => assert_eq!(limited(&denial), 2),
    }
    source.expect_no_waiting_calls();
    assert_eq!(here.text("MODULE UNLOAD ratelimit"), "OK");
}

#[test]
fn a_slot_that_stays_after_all_keeps_its_waiters() {
    let Some(migration) = Migration::prepare() else { return };
    let source = migration.source();
    let mut here = source.conn();
    let wait = |id: &str| format!("RL.ACQUIRE {{bar}} 1 0 1 ID {id} LEASE 600000 BLOCK 0");
    here.cmd("RL.ACQUIRE {bar} 1 0 1 ID holder LEASE 600000");
    let mut line = ["a", "b"].map(|id| source.wait_in_line(wait(id)));
    migration.begin();
    assert_eq!(here.int("RL.RELEASE {bar} holder"), 1);
    assert_eq!(acquired(&line[0].recv()).id(), "a");
    assert_eq!(here.text("CLUSTER CANCELSLOTMIGRATIONS"), "OK");
    migration.wait_until("cancelled");
    expect_empty(&migration.cluster, migration.to, migration.slot..migration.slot + 1);
    assert!(line[1].silent_for(Duration::from_millis(200)));
    assert_eq!(here.held_ids("{bar}"), ["a"]);
    assert_eq!(here.int("RL.RELEASE {bar} a"), 1);
    assert_eq!(acquired(&line[1].recv()).id(), "b");
    source.expect_no_waiting_calls();
}

// ---- Masters that go ----

#[test]
fn a_failover_that_was_asked_for_loses_nothing() {
    let mut cluster = Cluster::start();
    let tags = tags_in(0..40, &cluster);
    let master = cluster.master_of(&tags[0]);
    let replica = cluster.replica_of(master);
    let waits = format!("{}sem", tags[30]);
    let mut granted = GrantedIds::new();
    while_workers_wait(&mut cluster, &waits, |cluster| {
        granted = under_load(cluster, &tags, || {
            sleep(Duration::from_millis(200));
            assert_eq!(cluster.node(replica).conn().text("CLUSTER FAILOVER"), "OK");
            eventually(SOON, || cluster.is_master(replica) && !cluster.is_master(master));
            cluster.wait_until_agreed();
        });
    });
    assert_exactly_the_limit(&cluster, &tags, granted);
}

#[test]
fn a_killed_master_loses_only_what_its_replica_has_not_confirmed() {
    const LIMIT: i64 = 200;
    let mut cluster = Cluster::start();
    let master = cluster.master_of("{bar}");
    let replica = cluster.replica_of(master);
    let window = format!("RL.WINDOW {{bar}}w {LIMIT} 1d");
    let reserve = |id: &str| format!("RL.ACQUIRE {{bar}}a {LIMIT} 0 ID {id} LEASE 600000");
    let admit = |conn: &mut Conn, calls: i64| -> i64 {
        let replies = conn.pipeline((0..calls).map(|_| &window));
        replies.iter().filter(|reply| limited(reply) == 0).count() as i64
    };
    let mut conn = cluster.node(master).conn();
    let confirmed = admit(&mut conn, 70);
    assert_eq!(conn.acquire(reserve("kept")).id(), "kept");
    assert_eq!(conn.int("WAIT 1 20000"), 1);
    cluster.notice_the_dead();
    // The replica stands still and its link is cut, so nothing of what follows can reach it.
    let frozen = cluster.node(replica).freeze();
    conn.cmd("CLIENT KILL TYPE replica");
    let lost = admit(&mut conn, 50);
    assert_eq!(conn.acquire(reserve("lost")).id(), "lost");
    assert_eq!((confirmed, lost, conn.int("WAIT 1 20")), (70, 50, 0));
    cluster.kill(master);
    drop(frozen);
    eventually(SOON, || cluster.is_master(replica));
    cluster.wait_until_agreed();
    let mut conn = cluster.node(replica).conn();
    assert_eq!(conn.held_ids("{bar}a"), ["kept"]);
    assert_eq!(LIMIT - conn.ints(format!("RL.WINDOW_RO {{bar}}w {LIMIT} 1d"))[2], confirmed);
    assert_eq!(admit(&mut conn, LIMIT + 1), LIMIT - confirmed);
}

// ---- RL.ALL ----

/// Sends a command straight to the master of a key, as its caller names the key. redis-rs takes the first argument of a
/// command that it does not know for the key.
fn ask_by_key(conn: &mut ClusterConnection, key: &str, call: &str) -> RedisResult<Value> {
    let (name, arguments) = call.split_once(' ').unwrap();
    let mut command = redis::cmd(name);
    command.arg(arguments.split(' ').collect::<Vec<_>>());
    let route = Route::with_key(key, SlotAddr::Master);
    let node = SingleNodeRoutingInfo::SpecificNode(route);
    conn.route_command(&command, RoutingInfo::SingleNode(node))
}

/// The error of the module, on servers that send none themselves.
const MOVING: &str =
    "TRYAGAIN the keys of one call must be on one node, but their slot is being migrated: call again after the migration";

/// The names of the keys end in where the two of a call are, each at the source or the target of the slot's way.
#[test]
fn several_limits_are_taken_nowhere_while_their_keys_are_on_two_nodes() {
    let cluster = Cluster::of(3, 0);
    let (from, to) = (cluster.master_of("{bar}"), cluster.master_of("{foo}"));
    let (mut source, mut target) = (cluster.node(from).conn(), cluster.node(to).conn());
    let slot = source.int("CLUSTER KEYSLOT {bar}");
    for key in ["1st", "2st", "1ts", "2ts", "1ss", "2ss", "1tt", "2tt"] {
        source.cmd(format!("RL.WINDOW {{bar}}{key} 5 1h"));
    }
    cluster.begin_move(slot, from, to);
    cluster.move_keys(from, to, &["2st", "1ts", "1tt", "2tt"].map(|key| format!("{{bar}}{key}")));
    let version = cluster.node(from).version();
    for (name, left) in [("RL.ALL_RO", "4"), ("RL.ALL", "3")] {
        let call =
            |keys: &str| format!("{name} 2 {{bar}}1{keys} {{bar}}2{keys} WINDOW 5 1h WINDOW 5 1h");
        for keys in ["st", "ts"] {
            // The hash of limits is a key like the others.
            let limits = call(keys).replace("5 1h WINDOW 5 1h", "@any LIMITS");
            let error = source.err(call(keys));
            assert_eq!(source.err(&limits), error, "{limits}");
            // Redis 6.2 sends to the other node where others ask to come back, and so does Valkey, which looks at the first
            // key alone, if that one has left.
            let sends_on = !version.is_from(7, 0) || version.is_valkey && keys == "ts";
            let code = if sends_on { "ASK " } else { "TRYAGAIN " };
            assert!(error.starts_with(code), "{name} {keys}: {error}");
            target.cmd("ASKING");
            let error = target.err(call(keys));
            target.cmd("ASKING");
            assert_eq!(target.err(&limits), error, "{limits}");
            // Valkey leaves it to the module.
            let expected = if version.is_valkey { MOVING } else { "TRYAGAIN " };
            assert!(error.starts_with(expected), "{name} {keys}: {error}");
            // From a script that was sent to the node for the key that it has.
            let script = format!("return redis.call('{}')", call(keys).replace(' ', "', '"));
            let here = format!("{{bar}}1{keys}");
            let (node, is_asking) =
                if keys == "st" { (&mut source, false) } else { (&mut target, true) };
            if is_asking {
                node.cmd("ASKING");
            }
            assert!(
                matches!(node.cmd(["EVAL", &script, "1", &here]), Value::ServerError(_)),
                "{script}"
            );
        }
        assert_eq!(flat(&source.cmd(call("ss")))[2], left, "{name}");
        source.refuses(call("tt"), "ASK ");
        target.cmd("ASKING");
        assert_eq!(flat(&target.cmd(call("tt")))[2], left, "{name}");
        target.refuses(call("tt"), "MOVED ");
        // The target cannot know whether the source has keys that are on neither.
        source.refuses(call("new"), "ASK ");
        target.cmd("ASKING");
        target.refuses(call("new"), "TRYAGAIN ");
    }
    // What was refused was counted nowhere.
    for (key, is_here, counted) in [
        ("1st", true, 1),
        ("2st", false, 1),
        ("1ts", false, 1),
        ("2ts", true, 1),
        ("1tt", false, 2),
    ] {
        let conn = if is_here { &mut source } else { &mut target };
        conn.cmd("ASKING");
        let left = conn.ints(format!("RL.WINDOW_RO {{bar}}{key} 5 1h"))[2];
        assert_eq!(5 - left, counted, "{key}");
    }
}

//! The index of reservations that a key has in memory, compared with a fresh reading after every change by others.
//!
//! A fresh reading is the same value, restored into a second server that never saw the key.

use support::*;

/// A server with a key that is tampered with, and one that reads each state for the first time.
struct Lab {
    server: Server,
    conn: Conn,
    /// Kept because dropping it ends the server.
    _fresh: Server,
    fresh_conn: Conn,
    /// The window of the calls: 0 is a semaphore.
    window: &'static str,
    /// Checks that began while the key had an index.
    warm: u32,
    new_ids: u32,
    history: String,
}

/// A reservation, as its member spells it.
#[derive(Clone, Debug)]
struct SetMember {
    id: String,
    quantity: i64,
    lease_ms: i64,
    end_us: i64,
    rule: String,
}

impl SetMember {
    fn read(text: &str) -> SetMember {
        let id_len: usize = text[1..3].parse().unwrap();
        let fields: Vec<_> = text[5 + id_len..].splitn(5, ':').collect();
        SetMember {
            id: text[4..4 + id_len].into(),
            quantity: fields[0].parse().unwrap(),
            lease_ms: fields[1].parse().unwrap(),
            end_us: fields[2].parse().unwrap(),
            rule: fields[4].into(),
        }
    }

    fn text(&self) -> String {
        let SetMember { id, quantity, lease_ms, end_us, rule } = self;
        format!("#{:02}:{id}:{quantity}:{lease_ms}:{end_us}::{rule}", id.len())
    }

    fn lapses_us(&self, now_us: i64) -> i64 {
        self.end_us.min(now_us + self.lease_ms * 1_000)
    }
}

impl Lab {
    fn new(window: &'static str) -> Lab {
        let (server, conn) = Server::with_held_clock();
        let fresh = Server::builder().clock_of(&server).start();
        let fresh_conn = fresh.conn();
        let history = String::new();
        Lab { server, conn, _fresh: fresh, fresh_conn, window, warm: 0, new_ids: 0, history }
    }

    fn new_id(&mut self) -> String {
        self.new_ids += 1;
        format!("n{}", self.new_ids)
    }

    /// Reserves `number` times in the key, with ids from `from` on.
    fn fill(&mut self, key: &str, from: u32, number: u32) {
        let acquire = |n: u32| {
            let (quantity, lease) = (1 + n % 3, 20_000 + 500 * (n % 40));
            let window = self.window;
            format!("RL.ACQUIRE {key} 1000000 {window} {quantity} LEASE {lease} ID r{n}")
        };
        for reply in self.conn.pipeline((from..from + number).map(acquire)) {
            assert_eq!(acquired(&reply).limited(), 0);
        }
    }

    /// A key of as many elements as `key`, one of them another one.
    fn twin(&mut self, key: &str, twin: &str) {
        let mut member = self.members(key).swap_remove(0);
        self.conn.int(["COPY", key, twin, "REPLACE"]);
        let text = member.text_of(&mut self.conn, twin);
        self.conn.int(["ZREM", twin, &text]);
        member.id = self.new_id();
        member.quantity += 7;
        self.conn.int(["ZADD", twin, "-inf", &member.text()]);
    }

    fn texts(&mut self, key: &str) -> Vec<String> {
        flat(&self.conn.cmd(["ZRANGEBYSCORE", key, "-inf", "-inf"]))
    }

    /// The reservations of the key.
    fn members(&mut self, key: &str) -> Vec<SetMember> {
        self.texts(key).iter().map(|text| SetMember::read(text)).collect()
    }

    /// Puts a fresh copy of the key into the other server.
    fn copy(&mut self, key: &str) {
        let dump = self.conn.cmd(["DUMP", key]);
        let ttl = self.conn.int(["PTTL", key]).max(0).to_string();
        self.fresh_conn.int(["DEL", key]);
        if let Value::BulkString(dump) = dump {
            let restore = [b"RESTORE", key.as_bytes(), ttl.as_bytes(), &dump];
            assert_eq!(self.fresh_conn.cmd(restore), Value::Okay);
        }
    }

    /// Runs the command on the key and on a fresh copy; both must answer and leave the same.
    #[track_caller]
    fn compare(&mut self, key: &str, command: &str) {
        self.copy(key);
        let left = [
            words(command),
            words(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
            words(&format!("PTTL {key}")),
        ];
        let answers = self.conn.pipeline(&left);
        let fresh = self.fresh_conn.pipeline(&left);
        assert_eq!(answers, fresh, "{command}\n{}", self.last_steps());
    }

    fn last_steps(&self) -> String {
        let lines: Vec<_> = self.history.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Looks at the key in every way.
    #[track_caller]
    fn check(&mut self, key: &str) {
        self.look(key);
        // An id that went, one that came, and one that never was.
        let ids = self.conn_ids(key);
        for id in ids.first().into_iter().chain(ids.last()) {
            self.compare(key, &format!("RL.RENEW {key} {id} LEASE 45s"));
        }
        self.compare(key, &format!("RL.RENEW {key} nobody"));
        self.look(key);
    }

    /// Looks at the key and changes nothing.
    #[track_caller]
    fn look(&mut self, key: &str) {
        self.warm += u32::from(self.indexes() > 0);
        self.copy(key);
        let held = self.held_sum(key);
        let mut commands = vec![format!("RL.HELD {key}")];
        for limit in [1, held.max(1), held + 1, held + 5, 10_000_000] {
            for quantity in [1, 2] {
                let window = self.window;
                commands.push(format!("RL.ACQUIRE_RO {key} {limit} {window} {quantity} MS"));
            }
        }
        let answers = self.conn.pipeline(&commands);
        let fresh = self.fresh_conn.pipeline(&commands);
        assert_eq!(answers, fresh, "{commands:?}\n{}", self.last_steps());
    }

    fn indexes(&self) -> i64 {
        self.server.info_ratelimit("indexes")
    }

    fn now_us(&self) -> i64 {
        self.server.clock().now_us()
    }

    fn live(&mut self, key: &str) -> Vec<SetMember> {
        if self.conn.text(["TYPE", key]) != "zset" {
            return vec![];
        }
        let now_us = self.now_us();
        let texts = self.texts(key);
        let ours = texts.iter().filter(|text| text.starts_with('#'));
        ours.map(|text| SetMember::read(text))
            .filter(|one| one.lapses_us(now_us) > now_us)
            .collect()
    }

    fn conn_ids(&mut self, key: &str) -> Vec<String> {
        self.live(key).into_iter().map(|one| one.id).collect()
    }

    fn held_sum(&mut self, key: &str) -> i64 {
        self.live(key).iter().map(|one| one.quantity).sum()
    }

    /// Carries commands out as they are, in a transaction, or in a script.
    fn carry_out(&mut self, how: &str, commands: &[Vec<String>]) {
        self.history += &format!(
            "{how}: {}\n",
            commands.iter().map(|c| c.join(" ")).collect::<Vec<_>>().join(" ; ")
        );
        match how {
            "MULTI" => {
                self.conn.text("MULTI");
                commands.iter().for_each(|command| drop(self.conn.cmd(command)));
                self.conn.cmd("EXEC");
            }
            "EVAL" => {
                for command in commands {
                    let script = "return redis.pcall(unpack(ARGV))";
                    let words = ["EVAL", script, "0"].map(str::to_owned);
                    self.conn.cmd(words.iter().chain(command).collect::<Vec<_>>());
                    self.conn.text("SELECT 0");
                }
            }
            // Valkey 8.1.1 leaves the connection in the database that MOVE and COPY wrote to: docs/servers.md.
            _ => commands.iter().for_each(|command| {
                self.conn.cmd(command);
                self.conn.text("SELECT 0");
            }),
        }
    }
}

impl SetMember {
    /// The member of this id as the server has it, with its order of arrival.
    fn text_of(&self, conn: &mut Conn, key: &str) -> String {
        let begin = format!("#{:02}:{}:", self.id.len(), self.id);
        let texts = flat(&conn.cmd(["ZRANGEBYSCORE", key, "-inf", "-inf"]));
        texts.into_iter().find(|text| text.starts_with(&begin)).expect("a reservation of this id")
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

const WAYS: [&str; 3] = ["plain", "MULTI", "EVAL"];

/// Each command keeps the number of elements, so that alone tells of no change.
#[test]
fn an_index_does_not_follow_a_value_that_another_module_changes_on_its_way() {
    for command in ["RL.RENEW a r1 LEASE 45s", "COPY t a REPLACE"] {
        // A module that subscribes to events earlier is notified of each before us.
        for is_notified_first in [false, true] {
            let mut lab = Lab::new("0");
            let load = ["MODULE", "LOAD", &test_module(), "meddle"].map(String::from);
            let load = [&load[..], &words(command)].concat();
            let fill = |lab: &mut Lab| {
                lab.fill("k", 0, 30);
                lab.twin("k", "t");
                lab.look("k");
            };
            if is_notified_first {
                assert_eq!(lab.conn.text(&load), "OK");
                fill(&mut lab);
            } else {
                fill(&mut lab);
                assert_eq!(lab.conn.text(&load), "OK");
            }
            assert_eq!(lab.conn.text("RENAME k a"), "OK");
            lab.check("a");
        }
    }
}

/// Changes by hand, most of which keep the number of elements. `b` is another set of as many.
const CHANGES: [&str; 52] = [
    // Another set takes the place of `k`.
    "COPY b k REPLACE",
    "RENAME b k;COPY k b",
    "ZUNIONSTORE k 1 b",
    "ZINTERSTORE k 1 b",
    "ZRANGESTORE k b 0 -1",
    "ZDIFFSTORE k 1 b",
    "COPY k c;RENAME b k;RENAME c b",
    "RENAME k c;RENAME b k;RENAME c b",
    "UNLINK k;COPY b k",
    "PEXPIRE k 0;RENAME b k;COPY k b",
    "SET k x;RENAME b k;COPY k b",
    "MOVE k 7;COPY b k",
    "SET k x;DEL k;COPY b k",
    "RENAME k c;RENAME c k",
    "COPY k c;ZREM k <one>;RENAME c k",
    "COPY k b REPLACE",
    "COPY k b REPLACE;ZREM k <one>;ZADD k -inf <other>",
    // Members come and go.
    "ZREM k <one>;ZADD k -inf <other>",
    "ZREM k <one>;ZADD k -inf <one>",
    "ZADD k -inf <other>;ZPOPMIN k",
    "ZPOPMIN k;ZADD k -inf <other>",
    "BZPOPMIN k 0;ZADD k -inf <other>",
    "ZPOPMAX k 3;ZADD k -inf <other>",
    "ZPOPMAX k 30",
    "ZMPOP 1 k MIN COUNT 5",
    "ZREMRANGEBYRANK k <rank> <rank>;ZADD k -inf <other>",
    "ZREMRANGEBYRANK k 0 3",
    "ZREMRANGEBYLEX k [<one> [<one>",
    "ZREMRANGEBYSCORE k -inf -inf",
    "ZADD k -inf <other>",
    "ZINCRBY k -3 <one>",
    "ZINCRBY k inf 1;ZREM k 1",
    // The database, and the time to live.
    "MOVE k 5;SELECT 5;ZREM k <one>;ZADD k -inf <other>;MOVE k 0;SELECT 0",
    "SWAPDB 0 5;SELECT 5;ZREM k <one>;ZADD k -inf <other>;SELECT 0;SWAPDB 0 5",
    "SWAPDB 0 5;RL.ACQUIRE k 1000 <window> 2 ID <new>;SWAPDB 0 5",
    "SWAPDB 0 3",
    "SWAPDB 0 3;SWAPDB 0 3",
    "EXPIRE k 1000",
    "PERSIST k",
    "DEL k",
    "FLUSHDB",
    "FLUSHALL ASYNC",
    "DEBUG RELOAD",
    // The module's own.
    "RL.RELEASE k <id>;RL.ACQUIRE k 100000 <window> 2 ID <new>",
    "RL.ACQUIRE k 100000 <window> 3 ID <new> LEASE 3s",
    "RL.RENEW k <id> LEASE 9s",
    "RL.RELEASE k <id> <new>;RENAME k c;RL.ACQUIRE k 5 <window>;RENAME c k",
    "RL.APPLY k <id> 4;ZADD k -inf <other>",
    "RL.APPLY k <id>",
    "RL.RENEW k nobody",
    "RL.RELEASE k <id> another <id>",
    "RL.WINDOW k 10000 60 3",
];

/// One of these changes, in words that `carry_out` takes.
fn tampering(lab: &mut Lab, random: &mut Random, change: &str) -> Vec<Vec<String>> {
    let members = if lab.live("k").is_empty() { vec![] } else { lab.texts("k") };
    let Some(one) = members.get(random.below(members.len().max(1) as i64) as usize) else {
        return vec![words("RENAME b k")];
    };
    let mut other = SetMember::read(one);
    let id = other.id.clone();
    if !random.one_in(4) {
        other.id = lab.new_id();
    }
    other.quantity = 1 + random.below(9);
    other.lease_ms = 1_000 + random.below(50_000);
    other.end_us = lab.now_us() + random.below(other.lease_ms * 1_500) - other.lease_ms * 250;
    let line = [
        ("<one>", one),
        ("<other>", &other.text()),
        ("<id>", &id),
        ("<new>", &lab.new_id()),
        ("<rank>", &random.below(members.len() as i64).to_string()),
        ("<window>", &lab.window.to_owned()),
    ]
    .into_iter()
    .fold(change.to_owned(), |line, (name, value)| line.replace(name, value));
    line.split(';').map(words).collect()
}

#[test]
fn no_sequence_of_changes_by_hand_leaves_an_index_that_is_wrong() {
    let seed = env_number("RATELIMIT_SEED").unwrap_or(12);
    println!("RATELIMIT_SEED={seed}");
    let mut random = Random::new(seed);
    for window in ["0", "60"] {
        let mut lab = Lab::new(window);
        let number = 8 + random.below(160) as u32;
        lab.fill("k", 0, number);
        lab.twin("k", "b");
        lab.history = format!("seed {seed}, {number} reservations\n");
        // Each of them twice, in an order without a pattern: 19 has no divisor in common with their number.
        let first = random.below(CHANGES.len() as i64) as usize;
        for step in 0..2 * CHANGES.len() {
            let change = CHANGES[(first + 19 * step) % CHANGES.len()];
            let commands = tampering(&mut lab, &mut random, change);
            // SELECT in a script and DEBUG in either would change nothing here, and BZPOPMIN is not for scripts.
            let plain = ["SELECT", "DEBUG", "BZPOPMIN"];
            let is_plain = commands.iter().any(|command| plain.contains(&command[0].as_str()));
            let how = if is_plain { "plain" } else { random.pick(&WAYS) };
            lab.carry_out(how, &commands);
            if random.one_in(3) {
                let us = random.below(4_000_000) - 500_000;
                lab.server.clock().advance_us(us);
                lab.history += &format!("clock {us}\n");
            }
            lab.look("k");
            if let Some(id) = lab.conn_ids("k").first() {
                let id = id.clone();
                let new_id = lab.new_id();
                let write = match random.below(5) {
                    0 => format!("RL.RELEASE k {id}"),
                    1 => format!("RL.RENEW k {id}"),
                    2 => format!("RL.APPLY k {id} 2"),
                    3 => format!("RL.ACQUIRE k 100000 {window} 2 ID {id}"),
                    _ => format!("RL.ACQUIRE k 100000 {window} 2 ID {new_id}"),
                };
                lab.history += &format!("{write}\n");
                lab.compare("k", &write);
                lab.look("k");
            }
            if lab.live("k").len() < 8 {
                lab.conn.cmd("DEL k");
                let from = lab.new_ids * 1_000;
                lab.fill("k", from, number);
                lab.new_id();
                lab.twin("k", "b");
            }
        }
        assert!(lab.warm > 50, "{}", lab.warm);
    }
}

#[test]
fn an_index_does_not_outlive_a_reload() {
    // The second one replaces keys and empties no database.
    for reload in ["DEBUG RELOAD NOSAVE", "DEBUG RELOAD NOSAVE NOFLUSH MERGE"] {
        let mut lab = Lab::new("0");
        lab.fill("k", 0, 30);
        lab.conn.text("SAVE");
        let first = lab.members("k").swap_remove(0);
        // As many as before: no change by others, nor in number, tells that the file has another set.
        lab.conn.int(format!("RL.RELEASE k {}", first.id));
        lab.conn.acquire("RL.ACQUIRE k 1000000 0 77 ID other");
        lab.look("k");
        assert_eq!(lab.indexes(), 1);
        lab.conn.text(reload);
        lab.look("k");
        let again = lab.conn.err(format!("RL.ACQUIRE k 1000000 0 ID {}", first.id));
        assert!(again.starts_with("DUPLICATE "), "{again}");
        assert_eq!(lab.conn.int("RL.RELEASE k other"), 0);
        lab.check("k");
    }
}

#[test]
fn an_index_does_not_outlive_the_role_of_its_server() {
    let mut lab = Lab::new("0");
    lab.fill("k", 0, 30);
    lab.look("k");
    let other = Server::builder().clock_of(&lab.server).start();
    let mut theirs = other.conn();
    for n in 0..30 {
        theirs.acquire(format!("RL.ACQUIRE k 1000000 0 5 ID t{n} LEASE 40s"));
    }
    lab.conn.text(format!("REPLICAOF 127.0.0.1 {}", other.port()));
    wait_for_sync(&other, &lab.server);
    lab.look("k");
    assert_eq!(lab.held_sum("k"), 150);
    // What the master decides comes as ZADD and ZREM.
    theirs
        .pipeline(["RL.RELEASE k t7", "RL.ACQUIRE k 1000000 0 9 ID u7", "RL.RENEW k t8 LEASE 50s"]);
    wait_for_sync(&other, &lab.server);
    lab.look("k");
    lab.conn.text("REPLICAOF NO ONE");
    lab.look("k");
    assert_eq!(lab.conn.int("RL.RELEASE k u7 t7 r1"), 1);
    lab.check("k");
    // The old master becomes a replica of this one.
    theirs.text(format!("REPLICAOF 127.0.0.1 {}", lab.server.port()));
    wait_for_sync(&lab.server, &other);
    lab.conn.pipeline(["RL.RELEASE k t1", "RL.ACQUIRE k 1000000 0 4 ID v1"]);
    wait_for_sync(&lab.server, &other);
    let looks = ["RL.HELD k", "RL.ACQUIRE_RO k 150 0 1 MS"];
    assert_eq!(theirs.pipeline(looks), lab.conn.pipeline(looks));
    theirs.text("REPLICAOF NO ONE");
    assert_eq!(theirs.int("RL.RELEASE k v1 t1 t2"), 2);
}

#[test]
fn a_key_that_expires_under_an_index_starts_over() {
    let mut lab = Lab::new("0");
    for step_ms in [15_000, 25_000, 39_000, 60_000] {
        lab.fill("k", 0, 30);
        lab.look("k");
        lab.server.clock().advance_us(step_ms * 1_000);
        lab.check("k");
        lab.conn.int("PEXPIRE k 1");
        lab.server.clock().advance_us(2_000);
        for n in 0..30 {
            lab.compare("k", &format!("RL.ACQUIRE k 1000 0 3 ID r{n} LEASE 9s"));
        }
        lab.check("k");
        lab.conn.int("DEL k");
    }
}

#[test]
fn the_memory_of_indexes_goes_with_their_keys() {
    let mut lab = Lab::new("0");
    assert_eq!((lab.indexes(), lab.server.info_ratelimit("index_bytes")), (0, 0));
    let all: Vec<_> = (0..400).map(|n| format!("r{n}")).collect();
    let release = format!("RL.RELEASE k {}", all.join(" "));
    // The server reports no event of the last one, so the next call finds it out.
    let ends = ["DEL k", "UNLINK k", "PEXPIRE k 0", "FLUSHALL", "SWAPDB 0 1", &release, "SET k x"];
    for end in ends {
        lab.conn.text("FLUSHALL");
        lab.fill("k", 0, 400);
        lab.conn.acquire("RL.ACQUIRE_RO k 1 0");
        assert_eq!(lab.indexes(), 1, "{end}");
        let bytes = lab.server.info_ratelimit("index_bytes");
        assert!((400 * 60..400 * 400).contains(&bytes), "{bytes}");
        lab.conn.cmd(end);
        lab.conn.cmd("RL.HELD k");
        assert_eq!((lab.indexes(), lab.server.info_ratelimit("index_bytes")), (0, 0), "{end}");
    }
    lab.conn.text("FLUSHALL");
    lab.fill("k", 0, 400);
    lab.server.clock().advance_us(100_000_000);
    eventually(SOON, || lab.indexes() == 0 && lab.server.info_ratelimit("index_bytes") == 0);
}

#[test]
fn after_the_clock_was_set_back_any_number_of_reservations_is_healed_in_pieces() {
    const HELD: usize = 20_000;
    const LIMIT: i64 = HELD as i64 + 5;
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("k", HELD, "20s");
    let replica = Server::replica_of(&server, true);
    server.clock().advance_us(-3_600_000_000);
    // Each lease ends at most its own length from now.
    let call = format!("RL.ACQUIRE k {LIMIT} 0 6 MS");
    let count = "local number = 0
        for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
            local end_us = member:match('^#%d+:%w+:%d+:%d+:(%d+):')
            if tonumber(end_us) <= tonumber(ARGV[1]) then number = number + 1 end
        end return number";
    let healed = |conn: &mut Conn| {
        let end_us = server.clock().now_us() + 20_000_000;
        conn.int(["EVAL", count, "1", "k", &end_us.to_string()])
    };
    assert_eq!(conn.acquire(&call).numbers, [2, LIMIT, 5, 20_000, 20_000]);
    let piece = healed(&mut conn);
    assert!((1..=1_024).contains(&piece), "{piece} in one call");
    for _ in 0..80 {
        assert_eq!(conn.acquire(&call).numbers, [2, LIMIT, 5, 20_000, 20_000]);
    }
    assert_eq!(healed(&mut conn), HELD as i64);
    assert_eq!(conn.int("ZCARD k"), HELD as i64);
    wait_for_sync(&server, &replica);
    let look = format!("RL.ACQUIRE_RO k {LIMIT} 0 6 MS");
    assert_eq!(replica.conn().acquire(&look).numbers, [2, LIMIT, 5, 20_000, 20_000]);
    server.clock().advance_us(19_999_000);
    assert_eq!(conn.acquire(&look).numbers, [2, LIMIT, 5, 1, 1]);
    server.clock().advance_us(1_000);
    assert_eq!(conn.acquire(&look).numbers, [0, LIMIT, LIMIT, -1, 0]);
}

/// Sixteen keys of 65,536 kept the server for three seconds.
#[test]
fn one_call_reads_a_bounded_number_of_reservations_again() {
    let mut lab = Lab::new("0");
    let keys = ["a", "b", "c", "d", "e"];
    lab.conn.reserve_many("a", 30_000, "60s");
    for key in &keys[1..] {
        lab.conn.int(["COPY", "a", key]);
    }
    // Events are not read, however many there are, and few reservations are quickly read.
    let now_us = lab.now_us();
    let entry = |n: i64| [(n - now_us).to_string(), (6_001 - n).to_string()];
    lab.conn.add_entries("w", (1..=6_000).map(entry));
    lab.conn.reserve_many("few", 100, "60s");
    let call = "RL.ALL 7 few a b w c d e ACQUIRE 1000 0 ACQUIRE 100000 0 ACQUIRE 100000 0 WINDOW 70000 1h \
                ACQUIRE 100000 0 ACQUIRE 100000 0 ACQUIRE 100000 0";
    for _ in 0..3 {
        for key in keys.iter().chain(&["few"]) {
            lab.conn.int(["ZADD", key, "-inf", "#01:x:1:20000:1::-"]);
            lab.conn.int(["ZREM", key, "#01:x:1:20000:1::-"]);
        }
        assert_eq!(lab.indexes(), 0);
        let taken = lab.conn.int("ZCARD e");
        for indexes in [3, 5] {
            let error = lab.conn.err(call);
            assert!(error.starts_with("TRYAGAIN the keys hold more reservations than"), "{error}");
            assert_eq!((lab.indexes(), lab.conn.int("ZCARD a")), (indexes, taken));
        }
        let reply = lab.conn.cmd(call);
        assert_eq!(lab.conn.int("ZCARD e"), taken + 1, "{reply:?}");
    }
    // A single key is read, whatever other calls read before.
    lab.conn.int("ZREM a #01:r:1:20000:1::-");
    lab.conn.acquire("RL.ACQUIRE a 100000 0");
    // A key with more than all that one call may read.
    if Version::under_test().lacks_settings() {
        return;
    }
    lab.conn.text("CONFIG SET ratelimit.max-reservations 100000");
    lab.conn.reserve_many("large", 70_000, "60s");
    lab.conn.int("ZADD large -inf #01:x:1:20000:1::-");
    let reply = lab.conn.cmd("RL.ALL 2 w large WINDOW 70000 1h ACQUIRE 100000 0");
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
}

/// Otherwise the waiter on the large key gets an error that is meant for the call, and loses its place in line.
#[test]
fn waiters_are_tried_whatever_the_call_that_tries_them_may_read() {
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("few", 200, "1h");
    conn.reserve_many("large", 65_400, "1h");
    let calls = ["RL.ACQUIRE few 200 0 1 BLOCK 0", "RL.ACQUIRE large 65400 0 1 BLOCK 0"];
    let mut waiters = calls.map(|call| server.wait_shortly(call));
    let replies = conn.transaction([
        "ZADD few -inf #01:x:1:20000:1::-",
        "ZADD large -inf #01:x:1:20000:1::-",
        "RL.ALL 2 few large ACQUIRE 100000 0 ACQUIRE 100000 0",
    ]);
    // If trying `few` takes all the time for waiters, `large` is not tried, and is more than the call itself may read.
    match replies.last() {
        Some(Value::Array(_)) => {}
        Some(Value::ServerError(error)) => assert_eq!(error.code(), "TRYAGAIN", "{error:?}"),
        _ => panic!("{replies:?}"),
    }
    for waiter in &mut waiters {
        assert!(waiter.silent_for(ms(200)), "{:?}", waiter.recv());
    }
}

/// During CLIENT PAUSE nobody is tried, and whoever waits too long is denied by what the keys hold.
#[test]
fn a_call_that_waited_is_denied_whatever_one_call_may_read() {
    let (server, mut conn) = Server::with_held_clock();
    conn.reserve_many("a", 35_000, "1h");
    conn.int("COPY a b");
    let call = "RL.ALL 2 a b ACQUIRE 35000 0 ACQUIRE 35000 0 BLOCK 1s";
    let mut waiter = server.wait_shortly(call);
    let tamper = ["ZADD a -inf #01:x:1:20000:1::-", "ZADD b -inf #01:x:1:20000:1::-"];
    conn.transaction(tamper.into_iter().chain(["CLIENT PAUSE 60000 WRITE"]));
    server.clock().advance_us(1_000_000);
    let reply = waiter.recv();
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
}

#[test]
fn a_replica_takes_an_expired_key_for_gone_before_its_master_deletes_it() {
    let (server, mut conn) = Server::with_held_clock();
    conn.text("DEBUG SET-ACTIVE-EXPIRE 0");
    conn.reserve_many("k", 20, "1h");
    conn.int("PEXPIRE k 1000");
    let replica = Server::replica_of(&server, true);
    let mut reader = replica.conn();
    let look = "RL.ACQUIRE_RO k 20 0";
    for _ in 0..2 {
        assert_eq!(reader.acquire(look).numbers, [2, 20, 0, 3_600, 3_600]);
    }
    server.clock().advance_us(1_500_000);
    assert_eq!(reader.acquire(look).numbers, [0, 20, 20, -1, 0]);
    assert_eq!(reader.held("k"), []);
    // The master finds it out when it is asked.
    assert_eq!(conn.acquire("RL.ACQUIRE k 20 0 ID r1").numbers[..3], [0, 20, 19]);
    wait_for_sync(&server, &replica);
    assert_eq!(reader.acquire(look).numbers[..3], [0, 20, 19]);
}

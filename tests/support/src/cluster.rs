use std::env;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis_client::cluster::{ClusterClient, ClusterConnection};
use redis_client::{RedisResult, Value};

use super::client::{error_line, text, CommandWords};
use super::{eventually, wait_for_sync, Conn, Server, Stop, SOON};

/// The node timeout of a cluster in which a master dies.
const NOTICED_MS: u32 = 2_000;
/// The node timeout of all other clusters. It is long, so that a busy machine does not make a master look dead.
const NEVER_MS: u32 = 600_000;

/// Masters with their replicas, as `redis-cli --cluster create` makes them.
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Three masters with a replica each.
    #[track_caller]
    pub fn start() -> Cluster {
        Cluster::of(3, 1)
    }

    /// Makes the cluster and waits until its nodes agree. No master is replaced before [`Cluster::notice_the_dead`].
    #[track_caller]
    pub fn of(masters: usize, replicas_each: usize) -> Cluster {
        Cluster::start_nodes(masters, replicas_each, false)
    }

    /// Makes a cluster whose nodes read one clock.
    #[track_caller]
    pub fn by_one_clock(masters: usize, replicas_each: usize) -> Cluster {
        Cluster::start_nodes(masters, replicas_each, true)
    }

    #[track_caller]
    fn start_nodes(masters: usize, replicas_each: usize, one_clock: bool) -> Cluster {
        let mut nodes: Vec<Server> = Vec::new();
        for _ in 0..masters * (1 + replicas_each) {
            let node = Server::builder().config("cluster-enabled yes");
            let node = match nodes.first() {
                Some(first) => node.clock_of(first),
                None => node.clock(one_clock),
            };
            // They come together the sooner, and a replica takes over however old its copy is.
            let node = node
                .config(format!("cluster-node-timeout {NOTICED_MS}"))
                .config("cluster-replica-validity-factor 0");
            nodes.push(node.start());
        }
        let cluster = Cluster { nodes };
        let mut arguments = vec!["create".to_owned()];
        arguments.extend(cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())));
        let replicas = replicas_each.to_string();
        arguments.extend(["--cluster-replicas", &replicas, "--cluster-yes"].map(str::to_owned));
        cluster.cli(&arguments);
        cluster.trust_the_living();
        for replica in 0..cluster.nodes.len() {
            if let Some(master) = cluster.master_followed_by(replica) {
                wait_for_sync(&cluster.nodes[master], &cluster.nodes[replica]);
            }
        }
        cluster
    }

    /// From now on a master that dies is replaced.
    pub fn notice_the_dead(&self) {
        self.set_timeout_ms(NOTICED_MS);
    }

    /// Waits until no node takes another for dead, and makes the node timeout long. With it, a master that was taken for dead
    /// would stay so for twice as long.
    #[track_caller]
    fn trust_the_living(&self) {
        loop {
            self.wait_until_agreed();
            self.set_timeout_ms(NEVER_MS);
            if self.agrees() {
                return;
            }
            self.set_timeout_ms(NOTICED_MS);
        }
    }

    fn set_timeout_ms(&self, ms: u32) {
        for node in &self.nodes {
            let set = format!("CONFIG SET cluster-node-timeout {ms}");
            assert_eq!(node.conn().text(set), "OK");
        }
    }

    /// A node by its number.
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// Connects a cluster client, which follows -MOVED and -ASK and calls again while the cluster is down.
    #[track_caller]
    pub fn client(&self) -> ClusterConnection {
        connect(&self.clients(16)).expect("connect a cluster client")
    }

    /// Cluster clients that retry this many times before their user sees a failure.
    pub fn clients(&self, retries: u32) -> ClusterClient {
        // It asks these for the others: all of them, as any may be dead.
        let builder = ClusterClient::builder(self.nodes.iter().map(Server::url));
        let wait_ms = 500;
        builder.retries(retries).max_retry_wait(wait_ms).build().expect("a cluster client")
    }

    /// The master of the slot of `key`, as all nodes see it.
    pub fn master_of(&self, key: &str) -> usize {
        let slot = self.nodes[0].conn().int(["CLUSTER", "KEYSLOT", key]);
        let owns = |line: String| line.split(' ').skip(8).any(|range| in_range(range, slot));
        (0..self.nodes.len())
            .find(|node| self.own_line(*node).is_some_and(owns))
            .expect("a slot has a master")
    }

    /// The replica of a master.
    pub fn replica_of(&self, master: usize) -> usize {
        (0..self.nodes.len())
            .find(|node| self.master_followed_by(*node) == Some(master))
            .expect("it has a replica")
    }

    /// Asks a node if it is a master.
    pub fn is_master(&self, index: usize) -> bool {
        self.own_line(index).is_some_and(|line| line.contains("myself,master"))
    }

    /// The node's name in the cluster.
    pub fn id(&self, index: usize) -> String {
        self.nodes[index].conn().text("CLUSTER MYID")
    }

    /// Kills a node as a crash would; `start_again` brings it back.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].stop(Stop::Kill);
    }

    /// Starts a killed node again.
    pub fn start_again(&mut self, index: usize) {
        self.nodes[index].restart(Stop::Kill);
    }

    /// Moves the first `slots` slots of one master to another, by `redis-cli --cluster reshard`.
    #[track_caller]
    pub fn reshard(&self, from: usize, to: usize, slots: u32) {
        let at = format!("127.0.0.1:{}", self.nodes[to].port());
        let (from, to, slots) = (self.id(from), self.id(to), slots.to_string());
        let words = ["reshard", &at, "--cluster-from", &from, "--cluster-to", &to];
        self.cli(&[&words[..], &["--cluster-slots", &slots, "--cluster-yes"]].concat());
    }

    /// Begins to move a slot by hand. Its keys go over by [`Cluster::move_keys`], and [`Cluster::end_move`] ends it.
    #[track_caller]
    pub fn begin_move(&self, slot: i64, from: usize, to: usize) {
        for (node, what, other) in [(to, "IMPORTING", from), (from, "MIGRATING", to)] {
            let set = format!("CLUSTER SETSLOT {slot} {what} {}", self.id(other));
            assert_eq!(self.nodes[node].conn().text(set), "OK");
        }
    }

    /// Moves keys of a slot that is being moved.
    #[track_caller]
    pub fn move_keys(&self, from: usize, to: usize, keys: &[impl AsRef<str>]) {
        let port = self.nodes[to].port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let keys = keys.iter().map(AsRef::as_ref);
        let words: Vec<&str> = migrate.into_iter().chain(keys).collect();
        assert_eq!(self.nodes[from].conn().text(words), "OK");
    }

    /// Gives the slot to the other master.
    #[track_caller]
    pub fn end_move(&self, slot: i64, from: usize, to: usize) {
        for node in [to, from] {
            let set = format!("CLUSTER SETSLOT {slot} NODE {}", self.id(to));
            assert_eq!(self.nodes[node].conn().text(set), "OK");
        }
    }

    /// Has one master begin to move slots to another as a whole, as Valkey 9.0 and Redis 8.4 can.
    #[track_caller]
    pub fn begin_migration(&self, from: usize, to: usize, slots: RangeInclusive<u32>) {
        let (first, last) = slots.into_inner();
        let (node, begin) = if self.nodes[from].version().is_valkey {
            // However long the source has to stand still.
            let patience = "CONFIG SET cluster-manual-failover-timeout 60000";
            self.nodes.iter().for_each(|node| assert_eq!(node.conn().text(patience), "OK"));
            let to = self.id(to);
            (from, format!("CLUSTER MIGRATESLOTS SLOTSRANGE {first} {last} NODE {to}"))
        } else {
            (to, format!("CLUSTER MIGRATION IMPORT {first} {last}"))
        };
        let reply = self.nodes[node].conn().cmd(begin);
        if let Value::ServerError(_) = reply {
            panic!("the slots cannot be moved: {}", error_line(&reply));
        }
    }

    /// The state of the only migration there was, by both masters: `success` or `completed` in the end.
    #[track_caller]
    pub fn migration(&self, from: usize, to: usize) -> String {
        let (node, status) = if self.nodes[from].version().is_valkey {
            (from, "CLUSTER GETSLOTMIGRATIONS")
        } else {
            (to, "CLUSTER MIGRATION STATUS ALL")
        };
        let Value::Array(jobs) = self.nodes[node].conn().cmd(status) else { panic!("{status}") };
        let [Value::Array(fields)] = jobs.as_slice() else { panic!("one migration: {jobs:?}") };
        let mut pairs = fields.chunks(2);
        let state = pairs.find(|pair| text(&pair[0]) == "state").expect("a migration's state");
        assert_ne!(text(&state[1]), "failed", "{fields:?}");
        text(&state[1])
    }

    /// Waits for the end of a migration, until the slots' keys are gone where they were.
    #[track_caller]
    pub fn wait_until_migrated(&self, from: usize, to: usize) {
        let over = ["success", "completed"];
        eventually(SOON, || over.contains(&self.migration(from, to).as_str()));
        self.wait_until_agreed();
    }

    /// Waits until all living nodes say `cluster_state:ok` and agree on the slots and on the epoch of each node. A node whose
    /// epoch is not known to all could get back a slot that it gives away.
    #[track_caller]
    pub fn wait_until_agreed(&self) {
        let begin = Instant::now();
        while !self.agrees() {
            if begin.elapsed() > SOON {
                let tell = |node: usize| {
                    let mut conn = self.nodes[node].conn();
                    format!("{}{}", conn.text("CLUSTER INFO"), conn.text("CLUSTER NODES"))
                };
                let views: Vec<_> = self.living().into_iter().map(tell).collect();
                panic!("the nodes do not agree:\n{}", views.join("\n"));
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn agrees(&self) -> bool {
        let mut views = self.living().into_iter().map(|node| self.slots_seen_by(node));
        let first = views.next().flatten();
        first.is_some() && views.all(|views| views == first)
    }

    /// The nodes that run.
    pub fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| Conn::open(self.nodes[*node].port()).is_ok()).collect()
    }

    /// The slots of each master and their epoch, by a node that says `cluster_state:ok`.
    fn slots_seen_by(&self, node: usize) -> Option<Vec<String>> {
        let mut conn = Conn::open(self.nodes[node].port()).ok()?;
        let mut tell = |line: &str| Some(text(&conn.try_cmd(line).ok()?));
        let info = tell("CLUSTER INFO")?;
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        if !info.contains("cluster_state:ok") || !info.contains(&known) {
            return None;
        }
        let nodes = tell("CLUSTER NODES")?;
        let words = nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let living = words.filter(|words| !words[2].contains("fail"));
        let mut views: Vec<_> = living
            .map(|words| {
                let slots = words[8..].join(" ");
                format!("{} follows {} in epoch {} has {slots}", words[0], words[3], words[6])
            })
            .collect();
        views.sort();
        Some(views)
    }

    /// The line of a living node in its own CLUSTER NODES.
    fn own_line(&self, index: usize) -> Option<String> {
        let nodes = text(&self.nodes[index].try_ask("CLUSTER NODES")?);
        nodes.lines().find(|line| line.contains("myself")).map(str::to_owned)
    }

    fn master_followed_by(&self, index: usize) -> Option<usize> {
        let line = self.own_line(index)?;
        let master = line.split(' ').nth(3).filter(|id| *id != "-")?.to_owned();
        (0..self.nodes.len())
            .find(|node| self.own_line(*node).is_some_and(|line| line.starts_with(&master)))
    }

    /// Runs `redis-cli --cluster` with these arguments.
    #[track_caller]
    fn cli<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) {
        let output = Command::new(cli()).arg("--cluster").args(arguments).output();
        let output = output.expect("redis-cli is needed to make a cluster");
        let views = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{views}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A connection of a cluster client to all nodes.
pub fn connect(client: &ClusterClient) -> RedisResult<ClusterConnection> {
    let conn = client.get_connection()?;
    // A reply that does not come fails the test instead of hanging it.
    conn.set_read_timeout(Some(SOON))?;
    Ok(conn)
}

/// Sends a command through a cluster client, which finds its node by its one key.
pub fn ask(conn: &mut ClusterConnection, words: impl CommandWords) -> RedisResult<Value> {
    let words = words.words();
    let mut command = redis_client::cmd(&String::from_utf8_lossy(&words[0]));
    command.arg(&words[1..]);
    command.query(conn)
}

/// Looks for a slot in `7` or `7-12`.
fn in_range(range: &str, slot: i64) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<i64>(), last.parse::<i64>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&slot),
        _ => false,
    }
}

/// The redis-cli next to the server, or any other: each works with all servers.
pub fn cli() -> PathBuf {
    let server = PathBuf::from(env::var_os("REDIS_SERVER").unwrap_or_default());
    let beside = server.with_file_name("redis-cli");
    let found = |name: &str| {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.exists())
    };
    if server.is_absolute() && beside.exists() {
        return beside;
    }
    found("redis-cli").or_else(|| found("valkey-cli")).unwrap_or_else(|| "redis-cli".into())
}

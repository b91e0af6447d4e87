//! Finds the server to send a call to: the only one, or the cluster node that serves the key's slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{timeout_at, Instant};

use crate::attempt::Attempt;
use crate::breaker::Breaker;
use crate::reply::{array, bytes, integer};
use crate::server::{after, connect_timeout, ProbeGuard, SendError, Sentinels, Server};
use crate::transport::{Address, Command, ErrorReply, Kind, Servers, Transport, Value};
use crate::Error;

/// The shortest time between two reads of the slot table.
const PAUSE: Duration = Duration::from_millis(500);
const SLOTS: usize = 16384;

/// The server to send a call to.
#[derive(Clone)]
pub(crate) struct Route {
    pub server: Arc<Server>,
    /// True if ASKING must be sent first, because the key's slot is moving to this server.
    pub asking: bool,
}

/// All servers of a limiter.
pub(crate) enum Routes {
    One(Arc<Server>),
    Cluster(Box<Cluster>),
}

impl Routes {
    pub fn new(servers: Servers, deadline: Option<Duration>) -> Routes {
        match servers.0 {
            Kind::Single(transport) => {
                Routes::One(Arc::new(Server::new(transport, None, None, deadline)))
            }
            Kind::Sentinel { service, sentinels, node } => {
                let sentinels = Some(Sentinels { service, all: sentinels });
                Routes::One(Arc::new(Server::new(node, None, sentinels, deadline)))
            }
            Kind::Cluster { first, others } => {
                Routes::Cluster(Box::new(Cluster::new(first, others, deadline)))
            }
        }
    }

    /// Returns the server of a key.
    pub async fn find(&self, key: &[u8], attempt: &Attempt) -> Result<Arc<Server>, SendError> {
        match self {
            Routes::One(server) => Ok(Arc::clone(server)),
            Routes::Cluster(cluster) => cluster.find(slot_of(key), attempt).await,
        }
    }

    /// Returns all servers that serve keys.
    pub async fn all(&self, attempt: &Attempt) -> Result<Vec<Arc<Server>>, SendError> {
        match self {
            Routes::One(server) => Ok(vec![Arc::clone(server)]),
            Routes::Cluster(cluster) => cluster.all(attempt).await,
        }
    }

    /// Returns where to send a call again after an error reply of `server`; `None` if the error is final.
    pub fn redirected(&self, error: &ErrorReply, server: &Arc<Server>) -> Option<Route> {
        match self {
            // The master became a replica. It did not execute the call.
            Routes::One(server) => (error.code == "READONLY" && server.has_sentinels())
                .then(|| Route { server: Arc::clone(server), asking: false }),
            Routes::Cluster(cluster) => cluster.redirected(error, server),
        }
    }

    /// Makes the next call read the slot table again, because a server did not reply or is no longer the master.
    pub fn mark_stale(&self) {
        if let Routes::Cluster(cluster) = self {
            cluster.state().is_stale = true;
        }
    }

    /// Returns whether a transaction can have all these keys.
    pub fn are_in_one_slot<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        match self {
            Routes::One(_) => true,
            Routes::Cluster(_) => {
                let first = keys.next().map(slot_of);
                keys.all(|key| Some(slot_of(key)) == first)
            }
        }
    }
}

/// The nodes of a cluster. The slot table is read again when a node replies MOVED or does not reply.
pub(crate) struct Cluster {
    /// The first of the given nodes. Its settings apply to all nodes.
    first: Arc<dyn Transport>,
    others: Vec<Arc<dyn Transport>>,
    deadline: Option<Duration>,
    state: Mutex<State>,
    /// Opens if no node can be reached before the slots are known.
    breaker: Breaker,
    /// One call at a time reads the slot table.
    reading: tokio::sync::Mutex<()>,
}

struct State {
    servers: HashMap<Address, Arc<Server>>,
    slots: Vec<Option<Arc<Server>>>,
    is_stale: bool,
    read_at: Option<Instant>,
}

impl Cluster {
    fn new(
        first: Arc<dyn Transport>,
        others: Vec<Arc<dyn Transport>>,
        deadline: Option<Duration>,
    ) -> Cluster {
        let state =
            State { servers: HashMap::new(), slots: Vec::new(), is_stale: true, read_at: None };
        let reading = tokio::sync::Mutex::new(());
        let (state, breaker) = (Mutex::new(state), Breaker::new());
        Cluster { first, others, deadline, state, breaker, reading }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find(&self, slot: usize, attempt: &Attempt) -> Result<Arc<Server>, SendError> {
        if self.state().is_stale {
            self.refresh(attempt).await?;
        }
        let found = self.state().slots.get(slot).cloned().flatten();
        let reason = || format!("no node of the cluster serves the slot {slot}");
        found.ok_or_else(|| SendError::Lost(reason()))
    }

    async fn all(&self, attempt: &Attempt) -> Result<Vec<Arc<Server>>, SendError> {
        if self.state().is_stale {
            self.refresh(attempt).await?;
        }
        let mut all: Vec<Arc<Server>> = Vec::new();
        for server in self.state().slots.iter().flatten() {
            if !all.iter().any(|other| Arc::ptr_eq(other, server)) {
                all.push(Arc::clone(server));
            }
        }
        Ok(all)
    }

    fn redirected(&self, error: &ErrorReply, server: &Arc<Server>) -> Option<Route> {
        let asking = error.code == "ASK";
        if !asking && error.code != "MOVED" {
            return None;
        }
        let (slot, address) = error.message.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() { server.host() } else { host.to_owned() };
        let target = self.server(Address { host, port: port.parse().ok()? });
        if !asking {
            let mut state = self.state();
            let slot = slot.parse::<usize>().ok()?;
            if let Some(entry) = state.slots.get_mut(slot) {
                *entry = Some(Arc::clone(&target));
            }
            state.is_stale = true;
        }
        Some(Route { server: target, asking })
    }

    fn server(&self, address: Address) -> Arc<Server> {
        let mut state = self.state();
        if let Some(server) = state.servers.get(&address) {
            return Arc::clone(server);
        }
        let settings = Arc::clone(&self.first);
        let server = Server::new(settings, Some(address.clone()), None, self.deadline);
        let server = Arc::new(server);
        state.servers.insert(address, Arc::clone(&server));
        server
    }

    /// Reads the slot table, unless another call is reading it. Waits for that call only if there is no table yet.
    async fn refresh(&self, attempt: &Attempt) -> Result<(), SendError> {
        let has_table = !self.state().slots.is_empty();
        let reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(_) if has_table => return Ok(()),
            Err(_) => self.reading.lock().await,
        };
        {
            let state = self.state();
            let is_recent = state.read_at.is_some_and(|at| at.elapsed() < PAUSE);
            if !state.is_stale || (has_table && is_recent) {
                return Ok(());
            }
        }
        let is_probe = !has_table && self.breaker.is_open();
        if is_probe && !self.breaker.may_probe(Instant::now()) {
            return Err(SendError::Lost(self.breaker.reason()));
        }
        let probe = is_probe.then(|| ProbeGuard(&self.breaker));
        let result = self.read(attempt).await;
        drop(probe);
        let now = Instant::now();
        match &result {
            Err(SendError::Lost(reason) | SendError::Refused(reason)) => {
                self.breaker.record_failure(attempt.began, now, reason);
            }
            _ => self.breaker.record_reply(now),
        }
        {
            let mut state = self.state();
            state.read_at = Some(now);
            // Forget nodes that are neither in the table nor in use.
            state.servers.retain(|_, server| Arc::strong_count(server) > 1);
        }
        drop(reading);
        match result {
            Err(_) if has_table => Ok(()),
            other => other,
        }
    }

    async fn read(&self, attempt: &Attempt) -> Result<(), SendError> {
        // Ask the nodes first that replied last.
        let mut nodes: Vec<_> = self.state().servers.values().cloned().collect();
        nodes.sort_by_key(|server| {
            (server.breaker.has_failed(), std::cmp::Reverse(server.breaker.replied_at()))
        });
        let startup = std::iter::once(&self.first).chain(&self.others).map(|transport| {
            Arc::new(Server::new(Arc::clone(transport), None, None, self.deadline))
        });
        // The call may have more time than others that wait for the table, or no deadline (BLOCK 0).
        let longest = after(connect_timeout(self.deadline));
        let until = attempt.until.map_or(longest, |until| until.min(longest));
        let mut last_error = None;
        for server in nodes.into_iter().chain(startup) {
            let mut command = Command::new("CLUSTER");
            command.arg(b"SLOTS");
            // Leave time for the next node.
            let left = until.saturating_duration_since(Instant::now());
            let each = left.checked_div(2).unwrap_or_default();
            let asked = timeout_at(after(each), server.ask_once(command)).await;
            let silent = || SendError::Lost(format!("{} does not answer", server.name()));
            match asked.unwrap_or_else(|_| Err(silent())) {
                Ok(Value::Error(error)) => last_error = Some(SendError::Reply(error)),
                Ok(table) => match self.keep(&table, &server) {
                    Ok(()) => return Ok(()),
                    Err(error) => last_error = Some(SendError::Lost(error.to_string())),
                },
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or(SendError::BreakerOpen))
    }

    fn keep(&self, table: &Value, asked: &Server) -> Result<(), Error> {
        let mut slots: Vec<Option<Arc<Server>>> = vec![None; SLOTS];
        for range in array(table)? {
            let [first, last, master, ..] = array(range)? else {
                return Err(Error::unexpected("a range of slots", range));
            };
            let [host, port, ..] = array(master)? else {
                return Err(Error::unexpected("a node", master));
            };
            // A node that does not know its own host sends an empty one. It is the host that was asked.
            let host = match bytes(host) {
                Ok(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
                _ => asked.host(),
            };
            let port =
                u16::try_from(integer(port)?).map_err(|_| Error::unexpected("a port", master))?;
            let server = self.server(Address { host, port });
            let (first, last) = (slot_number(first)?, slot_number(last)?);
            let range = slots.get_mut(first..=last.max(first));
            range.unwrap_or_default().fill(Some(server));
        }
        let mut state = self.state();
        state.slots = slots;
        state.is_stale = false;
        Ok(())
    }
}

fn slot_number(value: &Value) -> Result<usize, Error> {
    let slot = usize::try_from(integer(value)?).ok().filter(|slot| *slot < SLOTS);
    slot.ok_or_else(|| Error::unexpected("a slot", value))
}

/// Returns the slot of a key: the CRC16 of its hash tag, or of the whole key if it has none.
pub(crate) fn slot_of(key: &[u8]) -> usize {
    let tag = || {
        let begin = key.iter().position(|byte| *byte == b'{')?.checked_add(1)?;
        let rest = key.get(begin..)?;
        let end = rest.iter().position(|byte| *byte == b'}').filter(|end| *end > 0)?;
        rest.get(..end)
    };
    let mut crc: u16 = 0;
    for byte in tag().unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    usize::from(crc) & (SLOTS - 1)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::testing::Double;

    const DEADLINE: Duration = Duration::from_millis(250);

    /// A node of a cluster in which these ports share the slots. Without ports it accepts connections and hangs.
    fn node(ports: &Arc<Mutex<Vec<u16>>>) -> Arc<dyn Transport> {
        let ports = Arc::clone(ports);
        Arc::new(Double::new(move |_| {
            let ports = ports.lock().unwrap().clone();
            async move {
                if ports.is_empty() {
                    pending::<()>().await;
                }
                Ok(vec![table(&ports)])
            }
        }))
    }

    fn table(ports: &[u16]) -> Value {
        let size = SLOTS / ports.len();
        let range = |(at, port): (usize, &u16)| {
            let node = [Value::Bytes(b"node".to_vec()), Value::Integer((*port).into())];
            let ends = [at * size, (at + 1) * size - 1].map(|slot| Value::Integer(slot as i64));
            Value::Array(ends.into_iter().chain([Value::Array(node.to_vec())]).collect())
        };
        Value::Array(ports.iter().enumerate().map(range).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_does_not_hold_up_the_slot_table_for_good() {
        let (hangs, others) = (node(&Arc::default()), vec![node(&Arc::new(Mutex::new(vec![1])))]);
        let cluster = Arc::new(Cluster::new(hangs, others, Some(DEADLINE)));
        let reading = Arc::clone(&cluster);
        // As a call with BLOCK 0.
        tokio::spawn(async move { reading.find(0, &Attempt::new(None)).await.map(drop) });
        sleep(DEADLINE * 8).await;
        let found = timeout(DEADLINE, cluster.find(0, &Attempt::new(Some(DEADLINE)))).await;
        assert!(matches!(found, Ok(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_left_the_cluster_are_forgotten_unless_they_are_in_use() {
        let members = Arc::new(Mutex::new(vec![1, 2]));
        let cluster = Cluster::new(node(&members), Vec::new(), Some(DEADLINE));
        let attempt = || Attempt::new(Some(DEADLINE));
        let ports = || {
            let mut ports: Vec<_> = cluster.state().servers.keys().map(|of| of.port).collect();
            ports.sort_unstable();
            ports
        };
        let read_again = || async {
            cluster.state().is_stale = true;
            sleep(PAUSE).await;
            cluster.find(0, &attempt()).await.unwrap()
        };
        let in_use = cluster.find(0, &attempt()).await.unwrap();
        assert_eq!(ports(), [1, 2]);
        *members.lock().unwrap() = vec![3];
        read_again().await;
        assert_eq!(ports(), [1, 3]);
        drop(in_use);
        read_again().await;
        assert_eq!(ports(), [3]);
    }

    #[test]
    fn slots_are_those_of_the_server() {
        // From CLUSTER KEYSLOT.
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{}{bar}"), 8363);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"123456789"), 0x31C3);
    }
}

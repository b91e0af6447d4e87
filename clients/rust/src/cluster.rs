//! Finds the server to send a call to: the only one, or the node of a cluster that has the key's slot.
//!
//! Each node is a [`Server`] here, because the cluster connection of the crate redis (1.2) cannot keep the promises of a
//! call. It counts redirections and lost connections as retries of one kind: with `retries(0)` it returns MOVED and ASK as
//! errors, and from `retries(1)` on it also sends a call again whose reply was lost, so that it counts twice. While it
//! connects to a node again, it sends nothing to any other: a node that hangs holds up all of them. It does not tell which
//! node has a slot, which a call with BLOCK needs to know for a connection of its own.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::cluster_routing::Slot;
use redis::Client;
use tokio::time::Instant;

use crate::library::{Kind, Servers, Source};
use crate::reply::{array, bytes, fields, integer};
use crate::server::{Attempt, Server};
use crate::transport::{Command, Value};
use crate::Error;

/// The maximum number of redirections of a call. If the nodes of a cluster disagree, MOVED replies would never end.
const REDIRECTIONS: usize = 5;

/// Replies, error replies among them, and the server that sent the last of them.
type Answer = Result<(Vec<Value>, Arc<Server>), Error>;

/// All servers of a limiter.
pub(crate) enum Routes {
    One(Arc<Server>),
    Cluster(Box<Cluster>),
}

impl Routes {
    pub fn new(servers: Servers, deadline: Option<Duration>) -> Routes {
        match servers.0 {
            Kind::One(source) => Routes::One(Arc::new(Server::new(source, deadline))),
            Kind::Cluster { first, others } => {
                Routes::Cluster(Box::new(Cluster::new(first, others, deadline)))
            }
        }
    }

    /// Sends commands on a key.
    pub async fn route(&self, key: &[u8], commands: &[Command], attempt: &Attempt) -> Answer {
        match self {
            Routes::One(server) => {
                Ok((server.exchange(commands, attempt).await?, Arc::clone(server)))
            }
            // Boxed, so that the future of a call without a cluster stays small.
            Routes::Cluster(cluster) => Box::pin(cluster.route(key, commands, attempt)).await,
        }
    }

    /// Sends commands to each server that has keys.
    pub async fn route_to_each(&self, commands: &[Command], attempt: &Attempt) -> Answer {
        let servers = match self {
            Routes::One(server) => vec![Arc::clone(server)],
            Routes::Cluster(cluster) => cluster.masters(attempt).await?,
        };
        let (mut all, mut last) = (Vec::new(), None);
        for server in servers {
            all.extend(server.exchange(commands, attempt).await?);
            last = Some(server);
        }
        let last = last.ok_or_else(|| Error::lost("the cluster", "it has no slots", false))?;
        Ok((all, last))
    }

    /// Returns whether a transaction can have all these keys.
    pub fn are_in_one_slot<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        match self {
            Routes::One(_) => true,
            Routes::Cluster(_) => {
                let first = keys.next().map(Slot::for_key);
                keys.all(|key| Some(Slot::for_key(key)) == first)
            }
        }
    }
}

/// The nodes of a cluster. MOVED replies say which of them has a slot.
pub(crate) struct Cluster {
    /// The first of the given nodes. Its settings apply to all nodes.
    first: Box<Client>,
    deadline: Option<Duration>,
    state: Mutex<State>,
}

struct State {
    /// The given nodes, and those that replies have named since.
    nodes: Vec<Arc<Server>>,
    slots: HashMap<Slot, Arc<Server>>,
}

impl Cluster {
    fn new(first: Box<Client>, others: Vec<Source>, deadline: Option<Duration>) -> Cluster {
        let given = std::iter::once(Source::Client(first.clone())).chain(others);
        let nodes = given.map(|node| Arc::new(Server::new(node, deadline))).collect();
        let state = State { nodes, slots: HashMap::new() };
        Cluster { first, deadline, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node that has a slot. If that is not known, or the node has failed, so that another may have taken over,
    /// returns the one of all nodes that has not failed for the longest time: it has the slot, or knows which node has it.
    /// Of several that have not failed, it is the one that replied last, because a node that hangs fails only at a deadline.
    fn find(&self, slot: Slot) -> Option<Arc<Server>> {
        let state = self.state();
        if let Some(server) = state.slots.get(&slot) {
            if server.breaker.failed_at().is_none() {
                return Some(Arc::clone(server));
            }
        }
        let health = |server: &&Arc<Server>| {
            (server.breaker.failed_at(), Reverse(server.breaker.replied_at()))
        };
        state.nodes.iter().min_by_key(health).cloned()
    }

    async fn route(&self, key: &[u8], commands: &[Command], attempt: &Attempt) -> Answer {
        let slot = Slot::for_key(key);
        let (mut server, mut replies) = self.exchange_on(slot, commands, attempt).await?;
        if !replies.iter().any(|reply| matches!(reply, Value::Error(_))) {
            self.state().slots.insert(slot, Arc::clone(&server));
        }
        for _ in 0..REDIRECTIONS {
            let redirections: Vec<_> = replies.iter().map(Redirection::read).collect();
            let Some(to) = redirections.iter().flatten().last() else { break };
            let host = if to.host.is_empty() { server.host() } else { &to.host };
            server = self.node(host.to_owned(), to.port)?;
            if !to.is_asking {
                self.state().slots.insert(slot, Arc::clone(&server));
            }
            // Of a transaction all commands are sent again, and else those that were redirected.
            let is_transaction = is_transaction(commands);
            let is_again = |to: &Option<Redirection>| is_transaction || to.is_some();
            let again = commands.iter().zip(&redirections).filter(|(_, to)| is_again(to));
            let again: Vec<_> = again.map(|(command, _)| command.clone()).collect();
            let found = match to.is_asking {
                true => exchange_asking(&server, &again, attempt).await?,
                false => server.exchange(&again, attempt).await?,
            };
            let places = replies.iter_mut().zip(&redirections).filter(|(_, to)| is_again(to));
            places.zip(found).for_each(|((place, _), reply)| *place = reply);
        }
        Ok((replies, server))
    }

    /// Sends commands to the node of a slot, or to another one if it cannot be reached.
    async fn exchange_on(
        &self,
        slot: Slot,
        commands: &[Command],
        attempt: &Attempt,
    ) -> Result<(Arc<Server>, Vec<Value>), Error> {
        let none = || Error::lost("the cluster", "it has no nodes", false);
        let server = self.find(slot).ok_or_else(none)?;
        let error = match server.exchange(commands, attempt).await {
            Ok(replies) => return Ok((server, replies)),
            Err(error) => error,
        };
        let is_over = attempt.until.is_some_and(|until| Instant::now() >= until);
        let other = self.find(slot).filter(|other| !Arc::ptr_eq(other, &server));
        match other
            .filter(|_| !is_over && matches!(error, Error::Unreachable { is_sent: false, .. }))
        {
            Some(other) => {
                let replies = other.exchange(commands, attempt).await?;
                Ok((other, replies))
            }
            None => Err(error),
        }
    }

    fn node(&self, host: String, port: u16) -> Result<Arc<Server>, Error> {
        let mut state = self.state();
        let is_sought = |server: &&Arc<Server>| server.address() == Some((&*host, port));
        if let Some(server) = state.nodes.iter().find(is_sought) {
            return Ok(Arc::clone(server));
        }
        let source = Source::node(&self.first, host, port)?;
        let server = Arc::new(Server::new(source, self.deadline));
        state.nodes.push(Arc::clone(&server));
        Ok(server)
    }

    /// Returns the nodes that have slots.
    async fn masters(&self, attempt: &Attempt) -> Result<Vec<Arc<Server>>, Error> {
        let mut command = Command::new("CLUSTER");
        command.arg(b"SLOTS");
        let (server, replies) = self.exchange_on(Slot::for_key(b""), &[command], attempt).await?;
        let table = replies.first().unwrap_or(&Value::Nil);
        if let Value::Error(error) = table {
            return Err(server.error(error.clone(), false));
        }
        let mut masters: Vec<Arc<Server>> = Vec::new();
        for range in array(table)? {
            let [_, _, master] = fields(range)?;
            let [host, port] = fields(master)?;
            // A node that does not know its own host sends an empty one. It is the host that was asked.
            let host = match bytes(host) {
                Ok(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
                _ => server.host().to_owned(),
            };
            let port = u16::try_from(integer(port)?);
            let master = self.node(host, port.map_err(|_| Error::unexpected("a port", master))?)?;
            if !masters.iter().any(|other| Arc::ptr_eq(other, &master)) {
                masters.push(master);
            }
        }
        Ok(masters)
    }
}

fn is_transaction(commands: &[Command]) -> bool {
    commands.first().is_some_and(|first| first.word(0) == Some(b"MULTI"))
}

/// A reply that names another node.
struct Redirection {
    /// Empty if it is the host of the node that replied.
    host: String,
    port: u16,
    /// True if ASKING must be sent first, because the slot is moving there.
    is_asking: bool,
}

impl Redirection {
    fn read(reply: &Value) -> Option<Redirection> {
        let Value::Error(error) = reply else { return None };
        let is_asking = error.code == "ASK";
        if !is_asking && error.code != "MOVED" {
            return None;
        }
        let (_, address) = error.message.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        Some(Redirection { host: host.to_owned(), port: port.parse().ok()?, is_asking })
    }
}

/// Sends commands with ASKING before each, or before a whole transaction.
async fn exchange_asking(
    server: &Arc<Server>,
    commands: &[Command],
    attempt: &Attempt,
) -> Result<Vec<Value>, Error> {
    let (asking, each) =
        ([Command::new("ASKING")], if is_transaction(commands) { commands.len() } else { 1 });
    let chunks = commands.chunks(each);
    let all: Vec<_> = chunks.flat_map(|chunk| asking.iter().chain(chunk)).cloned().collect();
    let mut replies = server.exchange(&all, attempt).await?;
    let mut sent = all.iter().map(|command| command.word(0));
    replies.retain(|_| sent.next() != Some(Some(b"ASKING")));
    Ok(replies)
}

//! One server, its connections and its breaker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{watch, Semaphore};
use tokio::time::{sleep, timeout_at, Instant};

use crate::attempt::Attempt;
use crate::breaker::{Breaker, PROBE};
use crate::transport::{
    Address, Command, Connection, ErrorReply, Failure, FailureKind, Transport, Value,
};

/// The maximum number of calls in flight on a connection. Further calls wait, and are not sent if they are given up.
const MAX_IN_FLIGHT: usize = 256;
/// The maximum number of idle connections that are kept for calls with BLOCK.
const MAX_SPARE: usize = 16;
/// The pauses between attempts to connect to a server that hangs up. Each pause is twice as long as the one before.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// If a server hangs up, it is assumed to be full if it reported that within this time.
const FULL: Duration = Duration::from_secs(1);
/// The time limit for connecting, for renewals, and for the commands of a local limit, if the limiter has no deadline.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time limit for connecting, whatever the deadline.
const DAY: Duration = Duration::from_secs(86_400);
/// The pause before asking the sentinels again after none replied.
const SENTINEL_PAUSE: Duration = Duration::from_millis(500);

/// The reason why sending failed, or an error reply.
#[derive(Clone, Debug)]
pub(crate) enum SendError {
    /// An error reply.
    Reply(ErrorReply),
    /// The server rejected the login.
    Login(String),
    /// The server has reached its maximum number of clients.
    Full,
    /// There is no connection, or it was lost.
    Lost(String),
    /// No server listens.
    Refused(String),
    /// Nothing was sent, because earlier calls failed.
    BreakerOpen,
}

impl SendError {
    /// Returns whether connecting again may succeed.
    fn is_transient(&self) -> bool {
        matches!(self, SendError::Full | SendError::Lost(_))
    }
}

impl From<Failure> for SendError {
    fn from(failure: Failure) -> SendError {
        let reason = failure.message;
        match failure.kind {
            FailureKind::Refused => SendError::Refused(reason),
            FailureKind::Login if is_full(&reason) => SendError::Full,
            FailureKind::Login => SendError::Login(reason),
            FailureKind::NotSent | FailureKind::Lost => SendError::Lost(reason),
        }
    }
}

/// Returns whether a message says that the server has reached its maximum number of clients. There is no error code for it.
fn is_full(text: &str) -> bool {
    text.contains("max number of clients reached")
}

/// Returns whether an error reply means that the server cannot handle the call now: it is loading its data, the replica or
/// the slot has no master, or only some of the call's keys have moved to another node.
pub(crate) fn is_not_serving(reply: &ErrorReply) -> bool {
    matches!(reply.code.as_str(), "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN")
}

/// An open connection.
pub(crate) struct Link {
    connection: Arc<dyn Connection>,
    opened: Instant,
    /// The time of the last reply, in microseconds since the connection was opened.
    replied: AtomicU64,
    /// True if no more calls are sent on it.
    is_retired: AtomicBool,
}

impl Link {
    fn new(connection: Arc<dyn Connection>) -> Link {
        Link {
            connection,
            opened: Instant::now(),
            replied: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        }
    }

    /// Returns the time of the last reply.
    pub fn replied_at(&self) -> Instant {
        let since = Duration::from_micros(self.replied.load(Relaxed));
        self.opened.checked_add(since).unwrap_or(self.opened)
    }

    /// Sends commands.
    async fn send(&self, commands: &[Command], sent: &AtomicBool) -> Result<Vec<Value>, Failure> {
        sent.store(true, Relaxed);
        let replies = self.connection.send(commands).await;
        match &replies {
            Ok(_) => {
                let since = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.replied.store(since, Relaxed);
            }
            Err(Failure { kind: FailureKind::NotSent, .. }) => sent.store(false, Relaxed),
            Err(_) => {}
        }
        replies
    }
}

/// The result of an attempt to open the shared connection; `None` while it runs.
type Opening = watch::Receiver<Option<Result<Arc<Link>, SendError>>>;

/// The sentinels of a service.
pub(crate) struct Sentinels {
    pub service: String,
    /// The sentinel that replied last comes first.
    pub all: Vec<Arc<dyn Transport>>,
}

/// One server, or the master that the sentinels name.
pub(crate) struct Server {
    name: String,
    transport: Arc<dyn Transport>,
    /// The address of a node of a cluster; `None` if the transport knows it.
    address: Option<Address>,
    sentinels: Option<Mutex<Sentinels>>,
    pub breaker: Breaker,
    permits: Semaphore,
    state: Mutex<State>,
    deadline: Option<Duration>,
    /// The time limit for connecting.
    connect_timeout: Duration,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    spare: Vec<Arc<Link>>,
    opening: Option<Opening>,
    full_at: Option<Instant>,
    /// The reason why the last attempt to connect failed.
    connect_error: Option<String>,
    /// The address of the master, from a sentinel.
    master: Option<Address>,
    /// No sentinel is asked before this time, because none replied.
    silent_until: Option<Instant>,
}

impl Server {
    pub fn new(
        transport: Arc<dyn Transport>,
        address: Option<Address>,
        sentinels: Option<Sentinels>,
        deadline: Option<Duration>,
    ) -> Server {
        let name = match (&address, &sentinels) {
            (Some(address), _) => address.to_string(),
            (None, Some(sentinels)) => format!("the master of {}", sentinels.service),
            (None, None) => transport.name(),
        };
        Server {
            name,
            transport,
            address,
            sentinels: sentinels.map(Mutex::new),
            breaker: Breaker::new(),
            permits: Semaphore::new(MAX_IN_FLIGHT),
            state: Mutex::default(),
            deadline,
            connect_timeout: connect_timeout(deadline),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the server in error messages.
    pub fn name(&self) -> String {
        match &self.state().master {
            Some(master) => format!("{} at {master}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns the host to use for a cluster node that does not know its own host.
    pub fn host(&self) -> String {
        match &self.address {
            Some(address) => address.host.clone(),
            None => self.transport.host(),
        }
    }

    pub fn has_sentinels(&self) -> bool {
        self.sentinels.is_some()
    }

    /// Returns whether the server recently reported that it has reached its maximum number of clients.
    pub fn is_full(&self) -> bool {
        self.state().full_at.is_some_and(|at| at.elapsed() < FULL)
    }

    /// Returns the reason why there is no connection.
    pub fn connect_error(&self) -> Option<String> {
        self.state().connect_error.clone()
    }

    /// Sends commands on the shared connection, and waits if too many calls are in flight. With `is_alone`, because one of
    /// them has BLOCK, sends them on a connection of their own, which is closed if the call is given up.
    pub async fn send(
        self: &Arc<Self>,
        commands: &[Command],
        is_alone: bool,
        attempt: &Attempt,
    ) -> Result<Vec<Value>, SendError> {
        let _permit = if is_alone { None } else { self.permits.acquire().await.ok() };
        loop {
            let link = match is_alone {
                true => self.own_link().await?,
                false => self.shared_link().await?,
            };
            attempt.set_link(self, &link);
            match link.send(commands, &attempt.is_sent).await {
                Ok(replies) => {
                    self.breaker.record_reply(Instant::now());
                    if is_alone && !link.is_retired.load(Relaxed) {
                        let mut state = self.state();
                        state.spare.push(link);
                        state.spare.truncate(MAX_SPARE);
                    }
                    return Ok(replies);
                }
                Err(failure) => {
                    self.retire(&link);
                    // If nothing was sent, the server had closed the idle connection.
                    if failure.kind != FailureKind::NotSent {
                        return Err(failure.into());
                    }
                }
            }
        }
    }

    /// Sends one command on a new connection, and returns the reply.
    pub async fn ask_once(&self, command: Command) -> Result<Value, SendError> {
        let connection = self.transport.connect(self.address.clone()).await?;
        let replies = connection.send(&[command]).await?;
        replies.into_iter().next().ok_or_else(no_reply)
    }

    /// Stops sending calls on a connection. Calls in flight may finish.
    pub fn retire(&self, link: &Arc<Link>) {
        link.is_retired.store(true, Relaxed);
        let mut state = self.state();
        if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            state.link = None;
        }
    }

    /// Stops sending calls on all connections, because the server did not reply or became a replica.
    pub fn retire_all(&self) {
        let mut state = self.state();
        for link in state.link.take().into_iter().chain(state.spare.drain(..)) {
            link.is_retired.store(true, Relaxed);
        }
        state.master = None;
    }

    /// Returns an idle connection, or opens one.
    async fn own_link(&self) -> Result<Arc<Link>, SendError> {
        let spare = self.state().spare.pop();
        match spare {
            Some(link) => Ok(link),
            // A call without a deadline (BLOCK 0) still has a time limit for connecting.
            None => self.open_until(after(self.deadline.unwrap_or(self.connect_timeout))).await,
        }
    }

    /// Returns the shared connection. Opens it once for all calls that need it: a task connects, because that may take
    /// longer than a call's deadline.
    async fn shared_link(self: &Arc<Self>) -> Result<Arc<Link>, SendError> {
        let open = self.state().link.clone();
        if let Some(link) = open {
            return Ok(link);
        }
        loop {
            let mut opening = self.opening();
            let outcome = opening.wait_for(Option::is_some).await;
            let outcome = outcome.map(|outcome| outcome.clone());
            match outcome {
                // Try again: the next attempt may succeed, and the deadline ends the call.
                Ok(Some(Err(error))) if error.is_transient() && self.deadline.is_some() => {}
                Ok(Some(result)) => return result,
                // The runtime of the task was shut down. Start another task.
                _ => self.state().opening = None,
            }
        }
    }

    fn opening(self: &Arc<Self>) -> Opening {
        let mut state = self.state();
        if let Some(link) = &state.link {
            return watch::channel(Some(Ok(Arc::clone(link)))).1;
        }
        if let Some(opening) = &state.opening {
            return opening.clone();
        }
        let (report, opening) = watch::channel(None);
        state.opening = Some(opening.clone());
        drop(state);
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let result = server.open_until(after(server.connect_timeout)).await;
            let mut state = server.state();
            state.opening = None;
            if let Ok(link) = &result {
                state.link = Some(Arc::clone(link));
            }
            drop(state);
            report.send_replace(Some(result));
        });
        opening
    }

    /// Opens a connection. If the server accepts it and hangs up immediately, tries again until the time limit.
    async fn open_until(&self, until: Instant) -> Result<Arc<Link>, SendError> {
        let mut pause = MIN_PAUSE;
        loop {
            let result = match timeout_at(until, self.open()).await {
                Ok(result) => result,
                Err(_) => return Err(not_connected()),
            };
            match result {
                Err(error) if error.is_transient() && after(pause) < until => {
                    sleep(pause).await;
                    pause = MAX_PAUSE.min(pause.saturating_mul(2));
                }
                other => return other.map(Arc::new),
            }
        }
    }

    /// Connects, and checks that the server can handle calls.
    async fn open(&self) -> Result<Link, SendError> {
        let address = match self.sentinels {
            Some(_) => Some(self.locate().await?),
            None => self.address.clone(),
        };
        let result = self.open_at(address).await;
        self.state().connect_error = match &result {
            Err(SendError::Lost(reason)) => Some(reason.clone()),
            _ => None,
        };
        if let Err(SendError::Full) = result {
            self.state().full_at = Some(Instant::now());
            self.breaker.record_reply(Instant::now());
        }
        result
    }

    async fn open_at(&self, address: Option<Address>) -> Result<Link, SendError> {
        let connection = self.transport.connect(address).await?;
        let replies = connection.send(&[Command::new("PING")]).await?;
        match replies.into_iter().next() {
            Some(Value::Error(error)) if is_full(&error.message) => Err(SendError::Full),
            Some(Value::Error(error)) if error.code == "NOAUTH" => {
                Err(SendError::Login(error.to_string()))
            }
            Some(Value::Error(error)) if is_not_serving(&error) => Err(SendError::Reply(error)),
            // A user who may not send PING may be allowed to send other commands.
            Some(_) => Ok(Link::new(connection)),
            None => Err(no_reply()),
        }
    }

    /// Asks the sentinels for the address of the master, which may have changed since the last connection. If none replies,
    /// returns the last known address.
    async fn locate(&self) -> Result<Address, SendError> {
        let Some(sentinels) = &self.sentinels else { return Err(not_connected()) };
        let (service, all) = {
            let sentinels = sentinels.lock().unwrap_or_else(PoisonError::into_inner);
            (sentinels.service.clone(), sentinels.all.clone())
        };
        let last_master = {
            let state = self.state();
            let is_silent = state.silent_until.is_some_and(|until| Instant::now() < until);
            match &state.master {
                Some(master) if is_silent => return Ok(master.clone()),
                master => master.clone(),
            }
        };
        let mut command = Command::new("SENTINEL");
        command.arg(b"GET-MASTER-ADDR-BY-NAME").arg(service.as_bytes());
        // Leave time for the other sentinels, and for connecting to the master.
        let each = self.connect_timeout.checked_div(4).unwrap_or_default();
        let mut reason = format!("no sentinel knows the master of {service}");
        for (at, sentinel) in all.iter().enumerate() {
            let ask = async {
                let connection = sentinel.connect(None).await?;
                connection.send(std::slice::from_ref(&command)).await
            };
            match timeout_at(after(each), ask).await {
                Ok(Ok(replies)) => {
                    if let Some(address) = replies.first().and_then(parse_address) {
                        let mut sentinels =
                            sentinels.lock().unwrap_or_else(PoisonError::into_inner);
                        if at < sentinels.all.len() {
                            sentinels.all.swap(0, at);
                        }
                        self.state().master = Some(address.clone());
                        return Ok(address);
                    }
                }
                Ok(Err(failure)) => reason = format!("{}: {}", sentinel.name(), failure.message),
                Err(_) => reason = format!("{} does not answer", sentinel.name()),
            }
        }
        let Some(master) = last_master else { return Err(SendError::Lost(reason)) };
        // If that server is no longer the master, it replies READONLY.
        self.state().silent_until = Some(after(SENTINEL_PAUSE));
        Ok(master)
    }

    /// Checks whether the server is back, while the breaker is open. One call at a time does this. Returns `Ok` if it is.
    ///
    /// The call that starts the probe still ends at its deadline. The probe continues, because connecting may take longer
    /// than that, and later calls use its connection.
    pub async fn probe(self: &Arc<Self>) -> Result<(), SendError> {
        if !self.breaker.may_probe(Instant::now()) {
            return Err(SendError::BreakerOpen);
        }
        let server = Arc::clone(self);
        let probing = tokio::spawn(async move {
            let began = Instant::now();
            let guard = ProbeGuard(&server.breaker);
            let opened = timeout_at(after(PROBE), server.open()).await;
            match opened.unwrap_or_else(|_| Err(not_connected())) {
                Ok(link) => {
                    server.state().link = Some(Arc::new(link));
                    server.breaker.record_reply(Instant::now());
                }
                Err(SendError::Reply(_) | SendError::Login(_) | SendError::Full) => {
                    server.breaker.record_reply(Instant::now());
                }
                Err(SendError::Lost(reason) | SendError::Refused(reason)) => {
                    server.breaker.record_failure(began, Instant::now(), &reason);
                }
                Err(SendError::BreakerOpen) => {}
            }
            drop(guard);
        });
        // The task does not panic. It fails only if its runtime was shut down.
        let _ = probing.await;
        if self.breaker.is_open() {
            return Err(SendError::Lost(self.breaker.reason()));
        }
        Ok(())
    }
}

/// Returns the time limit for connecting, and for finding out where to connect, of a limiter with this deadline.
pub(crate) fn connect_timeout(deadline: Option<Duration>) -> Duration {
    deadline.unwrap_or(DEFAULT_TIMEOUT).clamp(PROBE, DAY)
}

/// Ends a probe when it is dropped, even if the runtime shuts down first.
pub(crate) struct ProbeGuard<'a>(pub &'a Breaker);

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        self.0.end_probe(Instant::now());
    }
}

/// Returns the time `length` from now, or a day from now if that is earlier.
pub(crate) fn after(length: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(length.min(DAY)).unwrap_or(now)
}

fn not_connected() -> SendError {
    SendError::Lost("no connection in time".into())
}

fn no_reply() -> SendError {
    SendError::Lost("no reply".into())
}

/// Parses the host and the port in a sentinel's reply.
fn parse_address(value: &Value) -> Option<Address> {
    let Value::Array(elements) = value else { return None };
    let [Value::Bytes(host), port] = elements.as_slice() else { return None };
    let port = match port {
        Value::Bytes(port) => std::str::from_utf8(port).ok()?.parse().ok()?,
        Value::Integer(port) => u16::try_from(*port).ok()?,
        _ => return None,
    };
    Some(Address { host: String::from_utf8_lossy(host).into_owned(), port })
}

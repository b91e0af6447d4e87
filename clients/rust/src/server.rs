//! One server: its connections, and how it answered before.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{watch, Semaphore};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout_at, Instant};

use crate::breaker::{Breaker, PROBE};
use crate::transport::{
    Address, Command, Connection, ErrorReply, Failure, FailureKind, Transport, Value,
};

/// The most calls that are under way on a connection. Others wait, and are not sent if they are given up.
const MOST_UNDER_WAY: usize = 256;
/// The most connections for waiting calls that are kept for the next such call.
const MOST_SPARE: usize = 16;
/// The pauses between two tries to connect to a server that hangs up: each is twice as long as the one before.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
const MOST_PAUSE: Duration = Duration::from_millis(100);
/// A server that hangs up is taken to be full if it said so within this time.
const FULL: Duration = Duration::from_secs(1);
/// The longest attempt to connect of a limiter without a deadline.
const LONG_ATTEMPT: Duration = Duration::from_secs(5);
/// The longest attempt to connect of any limiter.
const DAY: Duration = Duration::from_secs(86_400);
/// Turns of the runtime in which a reply that has arrived is read: one reads from the network, the next hands it on.
const TURNS: usize = 3;
/// The pause before sentinels are asked again after none answered.
const SENTINEL_PAUSE: Duration = Duration::from_millis(500);

/// The reason why a call got no reply, or an error reply.
#[derive(Clone, Debug)]
pub(crate) enum SendError {
    /// An error reply.
    Reply(ErrorReply),
    /// The server did not let the client in.
    Login(String),
    /// The server has no connection to give.
    Full,
    /// There is no connection, or it was lost.
    Lost(String),
    /// No server listens.
    Refused(String),
    /// Calls before this one failed, so this one was not sent.
    BreakerOpen,
}

impl SendError {
    /// Returns whether another try to connect may succeed.
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

/// Returns whether a server refuses more connections. It has no error code for this.
fn is_full(text: &str) -> bool {
    text.contains("max number of clients reached")
}

/// Returns whether an error reply means that no call can be served now: the server loads its data, a replica has no master,
/// a slot of a cluster has no master, or a slot moves with only some of a call's keys.
pub(crate) fn is_nobody_served(reply: &ErrorReply) -> bool {
    matches!(reply.code.as_str(), "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN")
}

/// An open connection.
pub(crate) struct Link {
    connection: Arc<dyn Connection>,
    opened: Instant,
    /// The time of the last reply, in microseconds since it was opened.
    answered: AtomicU64,
    /// True once no call is to be sent on it any more.
    is_retired: AtomicBool,
}

impl Link {
    fn new(connection: Arc<dyn Connection>) -> Link {
        Link {
            connection,
            opened: Instant::now(),
            answered: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        }
    }

    /// Returns the time of the last reply.
    pub fn answered_at(&self) -> Instant {
        let since = Duration::from_micros(self.answered.load(Relaxed));
        self.opened.checked_add(since).unwrap_or(self.opened)
    }

    /// Sends commands.
    async fn send(&self, commands: &[Command], sent: &AtomicBool) -> Result<Vec<Value>, Failure> {
        sent.store(true, Relaxed);
        let replies = self.connection.send(commands).await;
        match &replies {
            Ok(_) => {
                let since = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.answered.store(since, Relaxed);
            }
            Err(Failure { kind: FailureKind::NotSent, .. }) => sent.store(false, Relaxed),
            Err(_) => {}
        }
        replies
    }
}

/// The result of an attempt to open the shared connection; `None` while it runs.
type Opening = watch::Receiver<Option<Result<Arc<Link>, SendError>>>;

/// Finds the master of a service.
pub(crate) struct Sentinels {
    pub service: String,
    /// The sentinels, of which the one that answered last is asked first.
    pub all: Vec<Arc<dyn Transport>>,
}

/// One server, or the master that sentinels name.
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
    /// The longest that an attempt to connect takes.
    patience: Duration,
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
    /// The time until which no sentinel is asked, as none answered.
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
            permits: Semaphore::new(MOST_UNDER_WAY),
            state: Mutex::default(),
            deadline,
            patience: deadline.unwrap_or(LONG_ATTEMPT).clamp(PROBE, DAY),
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

    /// Returns the host to use for a node of a cluster that does not know its own.
    pub fn host(&self) -> String {
        match &self.address {
            Some(address) => address.host.clone(),
            None => self.transport.host(),
        }
    }

    pub fn has_sentinels(&self) -> bool {
        self.sentinels.is_some()
    }

    /// Returns whether the server said a moment ago that it has no connection to give.
    pub fn is_full(&self) -> bool {
        self.state().full_at.is_some_and(|at| at.elapsed() < FULL)
    }

    /// Returns the reason why there is no connection.
    pub fn connect_error(&self) -> Option<String> {
        self.state().connect_error.clone()
    }

    /// Sends commands on the connection that all calls share. Waits if many calls are under way.
    pub async fn send(
        self: &Arc<Self>,
        commands: &[Command],
        attempt: &Attempt,
    ) -> Result<Vec<Value>, SendError> {
        let Ok(_permit) = self.permits.acquire().await else {
            return Err(SendError::BreakerOpen);
        };
        loop {
            let link = match self.ready_link() {
                Some(link) => link,
                None => self.opened().await?,
            };
            attempt.set_link(self, &link);
            match link.send(commands, &attempt.is_sent).await {
                // The server had closed it while it was idle.
                Err(Failure { kind: FailureKind::NotSent, .. }) => self.retire(&link),
                Err(failure) => {
                    self.retire(&link);
                    return Err(failure.into());
                }
                Ok(replies) => {
                    self.breaker.answered(Instant::now());
                    return Ok(replies);
                }
            }
        }
    }

    /// Sends commands of which one may wait, on a separate connection. It is closed if the call is given up.
    pub async fn send_alone(
        self: &Arc<Self>,
        commands: &[Command],
        attempt: &Attempt,
    ) -> Result<Vec<Value>, SendError> {
        loop {
            let spare = self.state().spare.pop();
            let link = match spare {
                Some(link) => link,
                // A call that waits without end does not wait so for a connection.
                None => self.open_patiently(after(self.deadline.unwrap_or(self.patience))).await?,
            };
            attempt.set_link(self, &link);
            match link.send(commands, &attempt.is_sent).await {
                Err(Failure { kind: FailureKind::NotSent, .. }) => {}
                Err(failure) => return Err(failure.into()),
                Ok(replies) => {
                    self.breaker.answered(Instant::now());
                    let mut state = self.state();
                    if state.spare.len() < MOST_SPARE && !link.is_retired.load(Relaxed) {
                        state.spare.push(link);
                    }
                    return Ok(replies);
                }
            }
        }
    }

    /// Returns the reply to one command on a connection that is opened for it alone.
    pub async fn ask_once(&self, command: Command) -> Result<Value, SendError> {
        let connection = self.transport.connect(self.address.clone()).await?;
        let replies = connection.send(&[command]).await?;
        replies.into_iter().next().ok_or_else(no_reply)
    }

    /// Returns the shared connection, if it is open.
    fn ready_link(&self) -> Option<Arc<Link>> {
        self.state().link.clone()
    }

    /// Sends no more calls on a connection. Those that are under way on it may finish.
    pub fn retire(&self, link: &Arc<Link>) {
        link.is_retired.store(true, Relaxed);
        let mut state = self.state();
        if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            state.link = None;
        }
    }

    /// Closes all connections, as the server was silent or became a replica.
    pub fn leave(&self) {
        let mut state = self.state();
        for link in state.link.take().into_iter().chain(state.spare.drain(..)) {
            link.is_retired.store(true, Relaxed);
        }
        state.master = None;
    }

    /// Opens the shared connection, once for all calls that want it. A task does it, as connecting may take longer than the
    /// deadline of a call.
    async fn opened(self: &Arc<Self>) -> Result<Arc<Link>, SendError> {
        loop {
            let mut opening = self.opening();
            let outcome = opening.wait_for(Option::is_some).await;
            let outcome = outcome.map(|outcome| outcome.clone());
            match outcome {
                // The next attempt may go better, and the call ends at its deadline.
                Ok(Some(Err(error))) if error.is_transient() && self.deadline.is_some() => {}
                Ok(Some(result)) => return result,
                // The runtime of the task has ended: another one opens it.
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
            let result = server.open_patiently(after(server.patience)).await;
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

    /// Opens a connection. A server that accepts one and hangs up at once is asked again while there is time.
    async fn open_patiently(&self, until: Instant) -> Result<Arc<Link>, SendError> {
        let mut pause = LEAST_PAUSE;
        loop {
            let result = match timeout_at(until, self.open()).await {
                Ok(result) => result,
                Err(_) => return Err(not_connected()),
            };
            match result {
                Err(error) if error.is_transient() && after(pause) < until => {
                    sleep(pause).await;
                    pause = MOST_PAUSE.min(pause.saturating_mul(2));
                }
                other => return other.map(Arc::new),
            }
        }
    }

    /// Connects, and asks the server whether it serves calls.
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
            self.breaker.answered(Instant::now());
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
            Some(Value::Error(error)) if is_nobody_served(&error) => Err(SendError::Reply(error)),
            // A user without permission to send PING may send other commands.
            Some(_) => Ok(Link::new(connection)),
            None => Err(no_reply()),
        }
    }

    /// Returns the address of the master. Each new connection asks, as it may have changed. If no sentinel answers, it is
    /// the last address.
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
        // Time is left for the others, and for the way to the master.
        let each = self.patience.checked_div(4).unwrap_or_default();
        let mut reason = format!("no sentinel knows the master of {service}");
        for (at, sentinel) in all.iter().enumerate() {
            let ask = async {
                let connection = sentinel.connect(None).await?;
                connection.send(std::slice::from_ref(&command)).await
            };
            match timeout_at(after(each), ask).await {
                Ok(Ok(replies)) => {
                    if let Some(address) = replies.first().and_then(address_of) {
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
        // A server that is no master any more says so.
        self.state().silent_until = Some(after(SENTINEL_PAUSE));
        Ok(master)
    }

    /// Lets one call at a time ask whether the server is back, while the breaker is open. Returns `Ok` if it is.
    ///
    /// The call that began the probe is answered at its deadline like any other. The probe goes on: to connect may take
    /// longer than a deadline, and what it has connected is there for the calls that follow.
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
                    server.breaker.answered(Instant::now());
                }
                Err(SendError::Reply(_) | SendError::Login(_) | SendError::Full) => {
                    server.breaker.answered(Instant::now());
                }
                Err(SendError::Lost(reason) | SendError::Refused(reason)) => {
                    server.breaker.failed(began, Instant::now(), &reason);
                }
                Err(SendError::BreakerOpen) => {}
            }
            drop(guard);
        });
        // The task does not panic, and its runtime may have ended.
        let _ = probing.await;
        if self.breaker.is_open() {
            return Err(SendError::Lost(self.breaker.reason()));
        }
        Ok(())
    }
}

/// Ends a probe, also where its runtime ends before it does.
pub(crate) struct ProbeGuard<'a>(pub &'a Breaker);

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        self.0.probe_ended(Instant::now());
    }
}

/// Returns the time that is this far ahead, at most a day.
fn after(length: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(length.min(DAY)).unwrap_or(now)
}

fn not_connected() -> SendError {
    SendError::Lost("no connection in time".into())
}

fn no_reply() -> SendError {
    SendError::Lost("no reply".into())
}

/// Reads the host and the port that a sentinel answers.
fn address_of(value: &Value) -> Option<Address> {
    let Value::Array(elements) = value else { return None };
    let [Value::Bytes(host), port] = elements.as_slice() else { return None };
    let port = match port {
        Value::Bytes(port) => std::str::from_utf8(port).ok()?.parse().ok()?,
        Value::Integer(port) => u16::try_from(*port).ok()?,
        _ => return None,
    };
    Some(Address { host: String::from_utf8_lossy(host).into_owned(), port })
}

/// The server that a call is sent to, and the connection that it was sent on.
type Target = (Arc<Server>, Option<Arc<Link>>);

/// The state of a call while it is under way.
pub(crate) struct Attempt {
    pub began: Instant,
    pub until: Option<Instant>,
    /// True once something was sent, which may have been executed.
    pub is_sent: AtomicBool,
    target: Mutex<Option<Target>>,
}

impl Attempt {
    pub fn new(within: Option<Duration>) -> Attempt {
        let began = Instant::now();
        Attempt {
            began,
            until: within.and_then(|within| began.checked_add(within)),
            is_sent: AtomicBool::new(false),
            target: Mutex::new(None),
        }
    }

    /// Records the server that the call is about to be sent to.
    pub fn set_server(&self, server: &Arc<Server>) {
        *self.lock_target() = Some((Arc::clone(server), None));
    }

    /// Records the connection that the call is sent on.
    fn set_link(&self, server: &Arc<Server>, link: &Arc<Link>) {
        *self.lock_target() = Some((Arc::clone(server), Some(Arc::clone(link))));
    }

    /// Drops the connection, which closes it if no other call uses it.
    pub fn drop_link(&self) {
        *self.lock_target() = None;
    }

    /// Returns the last server that the call was for, and the connection if it was sent.
    pub fn target(&self) -> Option<Target> {
        self.lock_target().clone()
    }

    fn lock_target(&self) -> MutexGuard<'_, Option<Target>> {
        // Nothing panics while it is held.
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls a future until a time, and for some turns of the runtime after that: in a program that was busy, timers fire before
/// what has arrived is read.
pub(crate) async fn bounded<T>(
    until: Option<Instant>,
    mut work: Pin<&mut (impl Future<Output = T> + Send)>,
) -> Option<T> {
    let Some(until) = until else { return Some(work.await) };
    if let Ok(done) = timeout_at(until, work.as_mut()).await {
        return Some(done);
    }
    for _ in 0..TURNS {
        yield_now().await;
        let polled =
            std::future::poll_fn(|context| std::task::Poll::Ready(work.as_mut().poll(context)));
        if let std::task::Poll::Ready(done) = polled.await {
            return Some(done);
        }
    }
    None
}

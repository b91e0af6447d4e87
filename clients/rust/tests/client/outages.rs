//! What a limiter returns while Redis does not answer, and how long that takes.
//!
//! The first test prints the figures of the table in clients/README.md.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Error, Limiter, Reply, Semaphore, Unreachable};
use support::{all_clients, error_line, unless_stalled, Conn, Server, Stop, Value};
use tokio::runtime::Runtime;

use super::proxy::Proxy;
use super::{per_day, rate, until, url, waiting, DEADLINE, LONG, MS, PATIENCE, SLACK};

/// If the machine stalls for longer, a server may answer nothing within a deadline.
const STALL: Duration = Duration::from_millis(25);

/// The results of calls, and the times that they took.
#[derive(Default)]
struct Answers {
    kinds: BTreeMap<&'static str, usize>,
    times: Vec<Duration>,
}

impl Answers {
    fn add(&mut self, answer: Result<Reply, Error>, took: Duration) {
        let kind = match answer {
            Ok(reply) if reply.reachable => "decided",
            Ok(reply) if reply.is_allowed() => "allowed",
            Ok(_) => "denied",
            Err(Error::Busy(_)) => "Busy",
            Err(Error::Unreachable { .. }) => "Unreachable",
            Err(error) => panic!("{error:?}"),
        };
        *self.kinds.entry(kind).or_default() += 1;
        self.times.push(took);
    }

    fn p50(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times[times.len() / 2]
    }

    fn min(&self) -> Duration {
        *self.times.iter().min().unwrap()
    }

    fn max(&self) -> Duration {
        *self.times.iter().max().unwrap()
    }

    #[track_caller]
    fn assert_all(&self, kind: &str) {
        assert!(self.kinds.keys().eq([kind].iter()), "{self:?}, not {kind}");
    }

    /// Asserts that the server is not taken for unreachable: it is only busy.
    #[track_caller]
    fn assert_none_let_through(&self) {
        assert!(self.kinds.keys().all(|kind| ["Busy", "decided"].contains(kind)), "{self:?}");
    }

    #[track_caller]
    fn assert_within(&self, most: Duration) {
        assert!(self.max() < most, "{self:?}, not within {most:?}");
    }

    /// Asserts that each call took until the deadline, and not much longer.
    #[track_caller]
    fn assert_at_the_deadline(&self) {
        assert!(self.min() >= DEADLINE, "{self:?}, before the deadline");
        self.assert_within(DEADLINE + SLACK);
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} p50 {:?} max {:?}", self.kinds, self.p50(), self.max())
    }
}

/// A limiter, used from outside of its runtime.
struct Caller {
    limiter: Limiter,
    runtime: Runtime,
}

impl Caller {
    fn new(port: u16, unreachable: Unreachable, deadline: Duration) -> Caller {
        let servers = Servers::open(url(port)).unwrap();
        Caller::of(servers, unreachable, deadline)
    }

    fn of(servers: Servers, unreachable: Unreachable, deadline: Duration) -> Caller {
        let builder = Limiter::builder(servers).unreachable(unreachable).deadline(deadline);
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        Caller { limiter: builder.build().unwrap(), runtime }
    }

    /// Creates a caller whose calls are allowed while no server answers.
    fn allowing(port: u16) -> Caller {
        Caller::new(port, Unreachable::Allow, DEADLINE)
    }

    fn one_by_one(&self, times: usize) -> Answers {
        let (mut answers, rate) = (Answers::default(), rate());
        self.runtime.block_on(async {
            for _ in 0..times {
                let begin = Instant::now();
                let answer = self.limiter.take("k", &rate).await;
                answers.add(answer, begin.elapsed());
            }
        });
        answers
    }

    fn at_once(&self, times: usize) -> Answers {
        self.at_once_of(times, |limiter| async move { limiter.take("k", &rate()).await })
    }

    fn at_once_of<F>(&self, times: usize, call: impl Fn(Limiter) -> F) -> Answers
    where
        F: std::future::Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        let begun = |_| {
            let call = call(self.limiter.clone());
            self.runtime.spawn(async move {
                let begin = Instant::now();
                (call.await, begin.elapsed())
            })
        };
        let calls: Vec<_> = (0..times).map(begun).collect();
        let mut answers = Answers::default();
        for call in calls {
            let (answer, took) = self.runtime.block_on(call).unwrap();
            answers.add(answer, took);
        }
        answers
    }

    /// Calls until the server decides this many calls at the same time.
    fn until_decided(&self, times: usize) {
        let begin = Instant::now();
        while self.at_once(times).kinds.get("decided") != Some(&times) {
            assert!(begin.elapsed() < PATIENCE, "waited in vain for decisions");
        }
    }

    /// Returns the time from now until the server decides again.
    #[track_caller]
    fn decides_again(&self) -> Duration {
        let begin = Instant::now();
        while !self.one_by_one(1).kinds.contains_key("decided") {
            assert!(begin.elapsed() < PATIENCE, "waited in vain for a decision");
            std::thread::sleep(MS * 10);
        }
        begin.elapsed()
    }
}

/// Prints a row of the table.
fn row(what: &str, answers: &Answers) {
    eprintln!("{what:36} {answers:?}");
}

/// Calls while a server is away, and after it is back.
fn away(
    name: &str,
    begin: impl FnOnce(&mut Server, &Proxy),
    end: impl FnOnce(&mut Server, &Proxy),
) {
    let mut server = Server::start();
    let proxy = Proxy::start(server.port());
    let is_dropped = name == "packets dropped";
    let caller = Caller::allowing(if is_dropped { proxy.port() } else { server.port() });
    caller.until_decided(20);
    begin(&mut server, &proxy);
    let answers = caller.one_by_one(3);
    answers.assert_all("allowed");
    match name {
        // A connection is refused at once. The fastest call counts, as the machine may be busy.
        "killed" => assert!(answers.min() < DEADLINE, "{answers:?}"),
        _ => answers.assert_at_the_deadline(),
    }
    row(name, &answers);
    let opened = caller.one_by_one(2000);
    opened.assert_all("allowed");
    assert!(opened.p50() < MS, "{opened:?}");
    row(&format!("{name}, breaker open"), &opened);
    for times in [200, 600] {
        caller.at_once(times).assert_all("allowed");
    }
    end(&mut server, &proxy);
    eprintln!("  decided again after {:?}", caller.decides_again());
    caller.until_decided(50);
}

fn start_again(server: &mut Server) {
    server.restart(Stop::Kill);
}

/// Calls after something has closed the connections: the server decides each call once.
fn first_calls(name: &str, mut server: Server, happen: impl Fn(&mut Server)) {
    let caller = Caller::new(server.port(), Unreachable::Allow, Duration::from_secs(5));
    let rounds = if all_clients() { 20 } else { 4 };
    let mut all = Answers::default();
    for _ in 0..rounds {
        caller.until_decided(50);
        happen(&mut server);
        server.conn().cmd("DEL w");
        let limit = || per_day(1_000_000);
        let call = |limiter: Limiter| async move { limiter.take("w", &limit()).await };
        let found = caller.at_once_of(50, call);
        let looked = caller.runtime.block_on(async { caller.limiter.look("w", &limit()).await });
        assert_eq!(looked.unwrap().remaining, 1_000_000 - 50, "each is counted once");
        found.assert_all("decided");
        *all.kinds.entry("decided").or_default() += 50;
        all.times.extend(found.times);
    }
    row(name, &all);
}

#[test]
fn the_table_of_outages() {
    unless_stalled(STALL, || {
        away("killed", |server, _| server.stop(Stop::Kill), |server, _| start_again(server));
        let frozen = std::cell::RefCell::new(None);
        away(
            "stopped (SIGSTOP)",
            |server, _| *frozen.borrow_mut() = Some(server.freeze()),
            |_, _| drop(frozen.borrow_mut().take()),
        );
        for times in [200, 600] {
            let server = Server::start();
            let caller = Caller::allowing(server.port());
            caller.until_decided(20);
            let frozen = server.freeze();
            let answers = caller.at_once(times);
            answers.assert_all("allowed");
            answers.assert_within(DEADLINE + SLACK);
            row(&format!("stopped, {times} calls at once"), &answers);
            drop(frozen);
        }
        away("packets dropped", |_, proxy| proxy.drops(true), |_, proxy| proxy.drops(false));
        first_calls("restarted", Server::start(), start_again);
        let impatient = Server::builder().config("timeout 1").config("hz 100").start();
        first_calls("idle connections closed (timeout 1)", impatient, |server| {
            let mut conn = server.conn();
            let begin = Instant::now();
            while conn.text("CLIENT LIST TYPE normal").lines().count() > 1 {
                assert!(begin.elapsed() < PATIENCE);
                std::thread::sleep(MS * 20);
            }
        });
        first_calls("CLIENT KILL", Server::start(), |server| {
            server.conn().cmd("CLIENT KILL TYPE normal SKIPME yes");
            // The connection is idle when it is closed: a call may be sent before that is noticed.
            std::thread::sleep(MS * 5);
        });
        maxclients();
        loading();
        slow();
        healthy();
    });
}

fn maxclients() {
    let server = Server::builder().config("maxclients 4").start();
    // With a database, which is one command more to log in.
    let servers = Servers::open(format!("{}3", url(server.port()))).unwrap();
    let caller = Caller::of(servers, Unreachable::Allow, LONG);
    let others: Vec<Conn> = (0..4)
        .map(|_| {
            let mut conn = server.conn();
            conn.cmd("PING");
            conn
        })
        .collect();
    let answers = caller.one_by_one(4);
    row("maxclients", &answers);
    answers.assert_all("Busy");
    answers.assert_within(LONG);
    drop(others);
    caller.decides_again();
}

fn loading() {
    let mut server = Server::builder()
        .config("enable-debug-command yes")
        .config("loading-process-events-interval-bytes 1024")
        .start();
    let (port, caller) = (server.port(), Caller::allowing(server.port()));
    caller.until_decided(1);
    server.conn().cmd("DEBUG POPULATE 20000");
    server.conn().cmd("CONFIG SET key-load-delay 500");
    server.conn().cmd("CONFIG REWRITE");
    server.conn().cmd("SAVE");
    server.stop(Stop::Kill);
    // Starting it waits until it has loaded its data, so a thread does that.
    let starting = std::thread::spawn(move || {
        server.restart(Stop::Kill);
        server
    });
    let ask = |command: &str| Conn::open(port).and_then(|mut conn| conn.try_cmd(command)).ok();
    let is_loading = || match ask("PING") {
        Some(reply @ Value::ServerError(_)) => error_line(&reply).starts_with("LOADING"),
        _ => false,
    };
    support::eventually(PATIENCE, is_loading);
    let answers = caller.one_by_one(20);
    assert!(is_loading());
    row("LOADING", &answers);
    answers.assert_all("allowed");
    answers.assert_within(DEADLINE + SLACK);
    ask("CONFIG SET key-load-delay 0");
    support::eventually(PATIENCE, || !is_loading());
    // Error replies do not open the breaker: the server decides the next call.
    caller.one_by_one(1).assert_all("decided");
    drop(starting.join().unwrap());
}

fn slow() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // A busy machine may be late with the replies, by which the server is known to answer.
    let (deadline, delay) = if is_table() { (DEADLINE, MS * 40) } else { (LONG, MS * 120) };
    let caller = Caller::new(proxy.port(), Unreachable::Allow, deadline);
    caller.until_decided(1);
    proxy.delay(delay);
    let answers = caller.at_once(3000);
    row("too many calls for a slow server", &answers);
    answers.assert_none_let_through();
    assert!(answers.kinds["Busy"] > 0 && answers.kinds["decided"] > 0, "{answers:?}");
    answers.assert_within(deadline + SLACK);
    caller.decides_again();
}

/// Returns whether the figures are for the table, from a machine without other work.
fn is_table() -> bool {
    std::env::var_os("OUTAGES_TABLE").is_some()
}

fn healthy() {
    let server = Server::start();
    let deadline = if is_table() { DEADLINE } else { PATIENCE };
    let caller = Caller::new(server.port(), Unreachable::Allow, deadline);
    for times in [200, 600] {
        let answers = caller.at_once(times);
        answers.assert_none_let_through();
        let name = format!("healthy, {times} calls at once");
        row(&name, &answers);
    }
}

#[tokio::test]
async fn what_would_never_be_denied_is_not_denied_while_no_server_answers() {
    let builder = Limiter::builder(Servers::open(url(1)).unwrap());
    let (limiter, rate) = (builder.unreachable(Unreachable::Deny).build().unwrap(), rate());
    assert!(limiter.take("k", &rate).force().await.unwrap().is_allowed());
    assert!(limiter.take("k", &rate).quantity(-1).await.unwrap().is_allowed());
    assert!(limiter.take("k", &rate).quantity(0).await.unwrap().is_allowed());
    let denied = limiter.take("k", &rate).quantity(9).at_most().await.unwrap();
    assert_eq!((denied.is_allowed(), denied.granted), (false, Some(0)));
    let denied = limiter.take("k", &rate).ahead(MS).await.unwrap();
    assert_eq!((denied.is_allowed(), denied.wait), (false, None));
    let error = limiter.acquire("s", &Semaphore::new(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "denied, because no server answers");
}

/// Makes a call, and keeps its only thread busy until the call's deadline is over.
async fn busy(limiter: &Limiter) -> Result<Reply, Error> {
    let rate = rate();
    let call = tokio::spawn(limiter.take("k", &rate).into_future());
    tokio::task::yield_now().await;
    std::thread::sleep(DEADLINE + MS * 100);
    call.await.unwrap()
}

#[tokio::test]
async fn a_program_that_was_busy_past_the_deadline_still_reads_the_reply() {
    let server = Server::start();
    let builder = Limiter::builder(Servers::open(server.url()).unwrap()).deadline(DEADLINE);
    let limiter = builder.unreachable(Unreachable::Allow).build().unwrap();
    let _ = limiter.take("k", &rate()).await.unwrap();
    let mut decided = 0;
    for _ in 0..5 {
        decided += u32::from(busy(&limiter).await.unwrap().reachable);
    }
    assert!(decided > 0);
}

#[test]
fn a_call_that_waits_has_that_much_more_time() {
    unless_stalled(STALL, || {
        let server = Server::start();
        let caller = Caller::new(server.port(), Unreachable::Allow, LONG);
        caller.runtime.block_on(async {
            let (limiter, one) = (&caller.limiter, Semaphore::new(1));
            let _permit = limiter.acquire("s", &one).await.unwrap();
            let begin = Instant::now();
            let denied = limiter.acquire("s", &one).block(MS * 400).await;
            assert!(matches!(denied, Err(Error::Denied(reply)) if reply.reachable));
            let took = begin.elapsed();
            assert!(took >= MS * 400 && took < MS * 400 + LONG, "{took:?}");
            let begin = Instant::now();
            let waits = tokio::spawn(limiter.acquire("s", &one).block(MS * 400).into_future());
            // The server answers this limiter as the wait begins, but not when it ends.
            until(|| async { waiting(limiter, "s").await == 1 }).await;
            let frozen = server.freeze();
            assert!(!waits.await.unwrap().unwrap().reply().reachable);
            let took = begin.elapsed();
            assert!(took >= MS * 400 + LONG && took < MS * 400 + LONG + SLACK, "{took:?}");
            drop(frozen);
        });
    });
}

#[test]
fn a_call_that_waits_without_end_connects_within_the_deadline() {
    let server = Server::start();
    let frozen = server.freeze();
    let caller = Caller::allowing(server.port());
    let answers = caller.at_once_of(1, |limiter| async move {
        limiter.take("k", &rate()).block(Duration::ZERO).await
    });
    answers.assert_all("allowed");
    answers.assert_within(DEADLINE + SLACK);
    drop(frozen);
}

#[test]
fn a_server_so_far_away_that_connecting_takes_longer_than_a_deadline() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let deadline = DEADLINE * 2;
    proxy.delay(MS * 300);
    // A login, so that there are two steps to wait for.
    let servers = Servers::open(format!("redis://127.0.0.1:{}/1", proxy.port())).unwrap();
    let caller = Caller::of(servers, Unreachable::Allow, deadline);
    let answers = caller.one_by_one(1);
    answers.assert_all("allowed");
    answers.assert_within(deadline + SLACK);
    caller.decides_again();
}

#[test]
fn a_call_that_was_sent_is_never_sent_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let caller = Caller::new(proxy.port(), Unreachable::Error, PATIENCE);
    caller.until_decided(1);
    proxy.delay(PATIENCE);
    let lost = caller.runtime.block_on(async {
        let window = per_day(10);
        let call = caller.limiter.take("w", &window).into_future();
        let call = tokio::spawn(call);
        until(|| async { server.conn().int("ZCARD w") == 1 }).await;
        // The reply is on its way when the connection breaks.
        proxy.drops(true);
        server.conn().cmd("CLIENT KILL TYPE normal SKIPME yes");
        proxy.hang_up();
        call.await.unwrap()
    });
    assert!(matches!(lost, Err(Error::Unreachable { is_sent: true, .. })), "{lost:?}");
    assert_eq!(server.conn().int("ZCARD w"), 1);
}

//! The client on a real server.

use std::future::{poll_fn, Future, IntoFuture};
use std::pin::{pin, Pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{
    Clause, Decision, Error, Limiter, MemoryLimiter, Rate, Semaphore, Unreachable, Window,
};
use support::{Server, Stop};
use tokio::time::{sleep, timeout};

use super::proxy::Proxy;
use super::{patient, per_day, until, until_waiting, url, waiting, DEADLINE, MS, PATIENCE};

fn limiter_of(server: &Server) -> Limiter {
    limiter_at(server.port())
}

fn limiter_at(port: u16) -> Limiter {
    patient(Servers::open(url(port)).unwrap())
}

/// Returns a limiter of a server, and one without a server.
fn both(server: &Server) -> [Limiter; 2] {
    [limiter_of(server), MemoryLimiter::new().into()]
}

/// Polls once.
async fn is_ready(future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
}

/// Returns how much of a window is counted or held.
async fn used(limiter: &Limiter, key: &str, window: &Window) -> u64 {
    let reply = limiter.look(key, window).quantity(0).await.unwrap();
    reply.limit - reply.remaining
}

#[tokio::test]
async fn a_reservation_that_is_dropped_is_settled_in_the_background() {
    let server = Server::start();
    let (limiter, window) = (limiter_of(&server), per_day(100));
    drop(limiter.acquire("k", &window).quantity(40).await.unwrap());
    until(|| async { used(&limiter, "k", &window).await == 0 }).await;

    let mut reservation = limiter.acquire("k", &window).quantity(40).await.unwrap();
    reservation.set(7).unwrap();
    drop(reservation);
    until(|| async { used(&limiter, "k", &window).await == 7 }).await;

    // The future of a settlement may be dropped as well.
    let mut reservation = limiter.acquire("k", &window).quantity(40).await.unwrap();
    let mut settling = Box::pin(reservation.apply());
    assert!(!is_ready(&mut settling).await);
    drop(settling);
    until(|| async { used(&limiter, "k", &window).await == 47 }).await;
}

#[tokio::test]
async fn leases_are_renewed_while_the_work_runs() {
    let server = Server::start();
    let (limiter, jobs) = (limiter_of(&server), Semaphore::new(5));
    // So long that a busy machine renews it in time.
    let (begin, lease) = (Instant::now(), MS * 3000);
    let renewed = limiter.acquire("jobs", &jobs).lease(lease).await.unwrap();
    let mut lapsing = limiter.acquire("jobs", &jobs).lease(lease).renewed(false).await.unwrap();
    until(|| async { limiter.held("jobs").await.unwrap().len() == 1 }).await;
    assert!(begin.elapsed() >= lease);
    sleep(lease + MS * 100).await;
    assert_eq!(limiter.held("jobs").await.unwrap()[0].id, *renewed.id().unwrap());
    assert!(matches!(lapsing.release().await, Err(Error::Lapsed { .. })));
    // It gets another lease, and is not renewed any more after `detach`.
    let mut renewed = renewed;
    renewed.renew(PATIENCE).await.unwrap();
    assert!(limiter.held("jobs").await.unwrap()[0].left > PATIENCE / 2);
    let id = renewed.id().cloned().unwrap();
    renewed.detach();
    assert!(limiter.renew("jobs", &id, Some(MS * 100)).await.unwrap());
    until(|| async { limiter.held("jobs").await.unwrap().is_empty() }).await;
    assert!(!limiter.renew("jobs", &id, None).await.unwrap());
    assert_eq!(limiter.release("jobs", [id]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_semaphore_holds_up_those_who_come_later() {
    let server = Server::start();
    let (limiter, jobs) = (limiter_of(&server), Semaphore::new(1));
    let mut permit = limiter.acquire("jobs", &jobs).await.unwrap();
    match limiter.acquire("jobs", &jobs).await {
        Err(Error::Denied(reply)) => assert_eq!(reply.decision, Decision::Held),
        other => panic!("{other:?}"),
    }
    assert_eq!(limiter.look("jobs", &jobs).await.unwrap().decision, Decision::Held);
    let begin = Instant::now();
    let waited = limiter.acquire("jobs", &jobs).block(MS * 50).await;
    assert!(matches!(waited, Err(Error::Denied(_))));
    assert!(begin.elapsed() >= MS * 50);
    let next = tokio::spawn(limiter.acquire("jobs", &jobs).block(Duration::ZERO).into_future());
    until(|| async { waiting(&limiter, "jobs").await == 1 }).await;
    permit.apply().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(limiter.held("jobs").await.unwrap(), []);
}

#[tokio::test]
async fn callers_take_turns_in_the_line() {
    let (server, jobs) = (Server::start(), Semaphore::new(1));
    for limiter in both(&server) {
        let mut permit = limiter.acquire("jobs", &jobs).await.unwrap();
        let (granted, mut names) = tokio::sync::mpsc::unbounded_channel();
        for (who, ahead) in ["a", "a", "a", "b", "b"].into_iter().zip(0..) {
            let weight = if who == "a" { 2 } else { 1 };
            let call = limiter.acquire("jobs", &jobs).block(PATIENCE).by(who).weight(weight);
            let granted = granted.clone();
            tokio::spawn(async move {
                let mut permit = call.await.unwrap();
                granted.send(who).unwrap();
                permit.release().await.unwrap();
            });
            until(|| async { waiting(&limiter, "jobs").await == ahead + 1 }).await;
        }
        permit.release().await.unwrap();
        for who in ["a", "b", "a", "a", "b"] {
            assert_eq!(timeout(PATIENCE, names.recv()).await.unwrap(), Some(who));
        }
    }
}

#[tokio::test]
async fn a_call_of_several_limits_that_is_dropped_in_the_line_leaves_nothing_held() {
    let (server, jobs, window) = (Server::start(), Semaphore::new(1), per_day(5));
    for limiter in both(&server) {
        let mut permit = limiter.acquire("{k}jobs", &jobs).await.unwrap();
        let clauses = [
            Clause::acquire("{k}tpm", &window).quantity(3),
            Clause::acquire("{k}jobs", &jobs),
            Clause::take("{k}rpm", &window),
        ];
        let mut waits = Box::pin(limiter.acquire_all(clauses).block(PATIENCE).into_future());
        until_waiting(&mut waits, &limiter, "{k}jobs").await;
        drop(waits);
        until(|| async { waiting(&limiter, "{k}jobs").await == 0 }).await;
        permit.release().await.unwrap();
        for key in ["{k}tpm", "{k}jobs", "{k}rpm"] {
            assert_eq!(limiter.info(key).await.unwrap(), None, "{key}");
        }
    }
}

#[tokio::test]
async fn a_key_that_is_closed_keeps_others_away() {
    let server = Server::builder().config("ratelimit.policies upstream WINDOW 9 1s").start();
    let (limiter, window) = (limiter_of(&server), Window::policy("upstream"));
    let (rate, long) = (Rate::per("9/s").unwrap(), MS * 60_000);
    let closed = limiter.close("w", &window, long).await.unwrap();
    assert_eq!((closed.is_allowed(), closed.remaining), (true, 0));
    let denied = limiter.take("w", &window).block(MS * 1000).await.unwrap();
    assert!(denied.retry_after > Some(long / 2), "{denied:?}");
    let _ = limiter.close("r", &rate, MS * 50).await.unwrap();
    assert!(!limiter.take("r", &rate).await.unwrap().is_allowed());
    until(|| async { limiter.take("r", &rate).await.unwrap().is_allowed() }).await;
}

#[tokio::test]
async fn limits_of_a_hash_count_from_the_next_call() {
    let (limiter, rpm) = (MemoryLimiter::new(), Window::policy("rpm"));
    let define = async |limit| limiter.define("{up}:limits", "rpm", limit).await.unwrap();
    let call = || limiter.all([Clause::take("{up}:rpm", &rpm)]).limits("{up}:limits");
    assert!(matches!(call().await, Err(Error::UnknownPolicy(_))));
    for (definition, expected) in [("WINDOW 2 1min", (2, 1)), ("WINDOW 5 1min", (5, 3))] {
        define(Some(definition)).await;
        let reply = call().await.unwrap();
        assert_eq!((reply.limit, reply.remaining), expected);
    }
    define(None).await;
    assert!(matches!(call().look().await, Err(Error::UnknownPolicy(_))));
}

#[tokio::test]
async fn a_policy_that_is_a_semaphore_is_given_back_as_one() {
    let server = Server::builder().config("ratelimit.policies jobs WINDOW 2 0").start();
    let limiter = limiter_of(&server);
    for _ in 0..3 {
        limiter.acquire("jobs", &Window::policy("jobs")).await.unwrap().apply().await.unwrap();
        limiter.acquire("jobs", &Semaphore::policy("jobs")).await.unwrap().apply().await.unwrap();
    }
    assert_eq!(limiter.held("jobs").await.unwrap(), []);
    let policies = limiter.policies().await.unwrap();
    assert_eq!((policies[0].name.as_str(), policies[0].allowed), ("jobs", 6));
    assert_eq!(policies[0].definition, "WINDOW 2 0");
}

#[tokio::test]
async fn what_is_granted_to_a_call_that_waited_and_was_dropped_is_given_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (limiter, direct) = (limiter_at(proxy.port()), limiter_of(&server));
    let jobs = Semaphore::new(1);
    for is_single in [true, false, true, false] {
        let mut permit = direct.acquire("jobs", &jobs).await.unwrap();
        let mut waits = match is_single {
            true => limiter.acquire("jobs", &jobs).block(PATIENCE).into_future(),
            false => {
                let clauses = [Clause::acquire("jobs", &jobs)];
                limiter.acquire_all(clauses).block(PATIENCE).into_future()
            }
        };
        until_waiting(&mut waits, &direct, "jobs").await;
        // The grant is on its way when the call is dropped.
        proxy.delay(MS * 100);
        permit.release().await.unwrap();
        until(|| async { direct.held("jobs").await.unwrap().len() == 1 }).await;
        drop(waits);
        until(|| async { direct.held("jobs").await.unwrap().is_empty() }).await;
        proxy.delay(Duration::ZERO);
    }
}

#[tokio::test]
async fn what_a_server_reserves_after_the_deadline_is_released() {
    let server = Server::start();
    let builder = Limiter::builder(Servers::open(server.url()).unwrap()).deadline(DEADLINE);
    let limiter = builder.unreachable(Unreachable::Allow).build().unwrap();
    let (direct, jobs, hour) = (limiter_of(&server), Semaphore::new(9), Duration::from_secs(3600));
    until(|| async { limiter.take("other", &per_day(9)).await.unwrap().reachable }).await;
    let frozen = server.freeze();
    let both = ["{k}1", "{k}2"].map(|key| Clause::acquire(key, &jobs).lease(hour));
    assert!(!limiter.acquire_all(both).await.unwrap().reply().reachable);
    sleep(DEADLINE * 4).await;
    drop(frozen);
    let executed = || server.conn().text("INFO commandstats").to_lowercase().contains("rl.all:");
    until(|| async { executed() }).await;
    let held = async |key| direct.held(key).await.unwrap().len();
    until(|| async { held("{k}1").await + held("{k}2").await == 0 }).await;
}

#[tokio::test]
async fn errors_say_what_is_wrong_by_their_code() {
    let server = Server::start();
    server.conn().cmd("LPUSH list x");
    let limiter = limiter_of(&server);
    let error = limiter.take("k", &Rate::policy("gold")).await.unwrap_err();
    assert!(matches!(&error, Error::UnknownPolicy(_)), "{error:?}");
    assert!(error.to_string().contains("no policy has the name gold"), "{error}");
    let error = limiter.all([Clause::take("k", &Window::policy("gold"))]).await.unwrap_err();
    assert!(matches!(error, Error::UnknownPolicy(_)));
    let used = [("k", Window::policy("gold")), ("l", per_day(1))];
    let used = used.map(|(key, window)| Clause::take(key, &window));
    let error = limiter.all(used).force().await.unwrap_err();
    assert!(matches!(error, Error::UnknownPolicy(_)), "{error:?}");
    let cluster = Limiter::new(Servers::open_cluster([server.url()]).unwrap());
    assert_eq!(cluster.top(1).await.unwrap_err().code(), Some("ERR"));
    server.conn().cmd("CONFIG SET ratelimit.policies-only yes");
    let error = limiter.take("k", &per_day(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Server(reply) if reply.code == "NOPOLICY"), "{error:?}");
    server.conn().cmd("CONFIG SET ratelimit.policies-only no");
    let error = limiter.take("list", &per_day(1)).await.unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
    assert!(!error.is_transient());

    let nine = per_day(9);
    let named = || limiter.acquire("named", &nine).id("job-17");
    let _held = named().await.unwrap();
    let error = named().await.unwrap_err();
    assert!(matches!(&error, Error::Duplicate(reply) if reply.code == "DUPLICATE"), "{error:?}");
    let clauses = [Clause::acquire("named", &nine).id("job-17")];
    let error = limiter.acquire_all(clauses).await.unwrap_err();
    assert!(matches!(&error, Error::Duplicate(_)), "{error:?}");

    let bare = Server::builder().module(false).start();
    let address = format!("127.0.0.1:{}", bare.port());
    let limiter = limiter_of(&bare);
    match limiter.take("k", &per_day(1)).await {
        Err(Error::MissingModule { server, .. }) => assert_eq!(server, address),
        other => panic!("{other:?}"),
    }
    let text = limiter.held("k").await.unwrap_err().to_string();
    let begin = format!("{address} has no redis-ratelimit, or one that");
    assert!(text.starts_with(&begin), "{text}");
    let protected = Server::builder().config("requirepass secret").start();
    let error = limiter_of(&protected).take("k", &per_day(1)).await.unwrap_err();
    assert!(matches!(error, Error::Login(_)), "{error:?}");
    let url = format!("redis://:wrong@127.0.0.1:{}/", protected.port());
    let error = Limiter::open(url).unwrap().take("k", &per_day(1)).await.unwrap_err();
    assert!(matches!(error, Error::Login(_)), "{error:?}");
    let url = format!("redis://:secret@127.0.0.1:{}/3", protected.port());
    let limiter = Limiter::open(url).unwrap();
    assert!(limiter.take("k", &per_day(1)).await.unwrap().is_allowed());
    assert_eq!(limiter.top(1).await.unwrap(), []);
    let _ = limiter.take("k", &per_day(1)).await.unwrap();
    assert_eq!(limiter.top(1).await.unwrap()[0].db, 3);
}

#[tokio::test]
async fn another_limiter_decides_while_the_server_is_away_and_settles_what_it_reserved() {
    let (mut away, here) = (Server::start(), Server::start());
    let fallback = limiter_of(&here);
    let limiter = Limiter::builder(Servers::open(away.url()).unwrap())
        .unreachable(Unreachable::Limiter(fallback.clone()))
        .build()
        .unwrap();
    let window = per_day(100);
    let before = limiter.acquire("k", &window).quantity(3).await.unwrap();
    away.stop(Stop::Kill);
    let reply = limiter.take("k", &window).quantity(10).await.unwrap();
    assert!(reply.is_allowed() && !reply.reachable && reply.remaining == 90);
    let mut reservation = limiter.acquire("k", &window).quantity(40).await.unwrap();
    assert!(!reservation.reply().reachable);
    reservation.set(5).unwrap();
    reservation.apply().await.unwrap();
    assert_eq!(used(&fallback, "k", &window).await, 15);
    let clauses = [Clause::acquire("k", &window).quantity(7)];
    limiter.acquire_all(clauses).await.unwrap().apply().await.unwrap();
    assert_eq!(used(&fallback, "k", &window).await, 22);
    // It also settles by id what it reserved, but not what the other server holds.
    let detached = limiter.acquire("k", &window).id("mine").await.unwrap();
    detached.detach();
    assert!(limiter.apply("k", "mine", None).await.unwrap());
    let error = limiter.apply("k", before.id().unwrap(), None).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    before.detach();
    // An error reply of the fallback is returned.
    here.conn().cmd("LPUSH list x");
    assert_eq!(limiter.take("list", &window).await.unwrap_err().code(), Some("WRONGTYPE"));
}

#[tokio::test]
async fn what_the_server_does_not_hold_is_no_error_while_the_fallback_is_away() {
    let server = Server::start();
    let limiter = Limiter::builder(Servers::open(server.url()).unwrap())
        .unreachable(Unreachable::Limiter(Limiter::open(url(1)).unwrap()))
        .build()
        .unwrap();
    limiter.acquire("k", &per_day(9)).id("mine").await.unwrap().detach();
    assert!(!limiter.apply("k", "gone", None).await.unwrap());
    assert!(!limiter.renew("k", "gone", None).await.unwrap());
    assert_eq!(limiter.release("k", ["gone", "mine"]).await.unwrap(), 1);
}

#[test]
fn a_limiter_outlives_the_runtimes_that_use_it() {
    let server = Server::start();
    let (limiter, window) = (limiter_of(&server), per_day(100));
    for round in 1..=5 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let left = runtime.block_on(async {
            let reply = limiter.take("k", &window).block(MS).await.unwrap();
            assert!(reply.reachable);
            limiter.take("k", &window).await.unwrap().remaining
        });
        assert_eq!(left, 100 - 2 * round);
        let outside = pin!(limiter.take("k", &window).into_future());
        let outside = outside.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(outside, Poll::Ready(Err(Error::NoRuntime))), "{outside:?}");
    }
}

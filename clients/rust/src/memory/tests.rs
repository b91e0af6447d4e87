use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::{Clause, Decision, Rate, Semaphore, Window};

/// A clock in milliseconds, and a limiter that goes by it.
fn held(builder: MemoryLimiterBuilder) -> (Arc<AtomicU64>, MemoryLimiter) {
    let ms = Arc::new(AtomicU64::new(1_800_000_000_000));
    let clock = Arc::clone(&ms);
    let now = move || UNIX_EPOCH + Duration::from_millis(clock.load(Relaxed));
    (ms, builder.clock(now).build())
}

#[tokio::test]
async fn the_clock_that_a_test_holds_decides() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let window = Window::per("2/min").unwrap();
    for left in [1, 0] {
        assert_eq!(limiter.take("user:1", &window).await.unwrap().remaining, left);
    }
    ms.fetch_add(59_999, Relaxed);
    let denied = limiter.take("user:1", &window).await.unwrap();
    assert_eq!(
        (denied.decision, denied.retry_after),
        (Decision::Denied, Some(Duration::from_millis(1)))
    );
    ms.fetch_add(1, Relaxed);
    assert!(limiter.take("user:1", &window).await.unwrap().is_allowed());
    assert!(limiter.reset("user:1").await.unwrap());
    assert!(!limiter.reset("user:1").await.unwrap());
}

#[tokio::test]
async fn reservations_of_several_limits_are_settled_as_one() {
    let (_, limiter) = held(MemoryLimiter::builder());
    let tokens = Window::per("100/min").unwrap();
    let clauses = || {
        [
            Clause::acquire("{a}:tokens", &tokens).quantity(80).name("tokens"),
            Clause::acquire("{a}:calls", &Semaphore::new(1)).name("calls"),
        ]
    };
    let mut first = limiter.acquire_all(clauses()).await.unwrap();
    assert!(limiter.acquire_all(clauses()).await.is_err());
    first.set([("tokens", 30)]).unwrap();
    first.apply().await.unwrap();
    assert_eq!(limiter.look("{a}:tokens", &tokens).await.unwrap().remaining, 70);
    drop(limiter.acquire_all(clauses()).await.unwrap_err());
    assert!(limiter.held("{a}:calls").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_call_in_line_is_granted_when_another_gives_back() {
    let (_, limiter) = held(MemoryLimiter::builder());
    let jobs = Semaphore::new(1);
    let permit = limiter.acquire("jobs", &jobs).await.unwrap();
    let waiting = {
        let (limiter, jobs) = (limiter.clone(), jobs.clone());
        tokio::spawn(async move {
            limiter.acquire("jobs", &jobs).block(Duration::from_secs(60)).await.map(drop)
        })
    };
    while limiter.info("jobs").await.unwrap().is_none_or(|info| info.waiting == 0) {
        tokio::task::yield_now().await;
    }
    permit.release().await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_in_line_is_denied_when_its_time_is_up() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let rate = Rate::per("1/min").unwrap();
    limiter.take("mail", &rate).await.unwrap();
    // What cannot be had within the time is denied at once.
    assert!(!limiter.take("mail", &rate).block(Duration::from_secs(5)).await.unwrap().is_allowed());
    let waiting = {
        let (limiter, rate) = (limiter.clone(), rate.clone());
        tokio::spawn(
            async move { limiter.take("mail", &rate).block(Duration::from_secs(90)).await },
        )
    };
    while limiter.info("mail").await.unwrap().is_none_or(|info| info.waiting == 0) {
        tokio::task::yield_now().await;
    }
    ms.fetch_add(60_000, Relaxed);
    assert!(waiting.await.unwrap().unwrap().is_allowed());
}

#[tokio::test]
async fn what_waits_and_is_dropped_leaves_the_line_and_gives_back_what_it_was_granted() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let memory = limiter.core().memory.clone().unwrap();
    let rate = Rate::per("1/min").unwrap();
    limiter.take("mail", &rate).await.unwrap();
    let mut command = Command::new("RL.THROTTLE");
    for word in ["mail", "0", "1", "60", "1", "BLOCK", "90000", "MS"] {
        command.arg(word.as_bytes());
    }
    for is_granted in [false, true] {
        let mut waiting = Box::pin(memory.ask(&command));
        let poll = |waiting: &mut std::pin::Pin<_>| {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            std::future::Future::poll(std::pin::Pin::as_mut(waiting), &mut context).is_ready()
        };
        assert!(!poll(&mut waiting));
        assert_eq!(memory.lock().waiting, 1);
        if is_granted {
            ms.fetch_add(60_000, Relaxed);
            // Another call that sees the time grants it.
            let now_us = memory.now_us();
            assert!(memory.lock().server.take_reply(Ticket::of(u64::MAX), now_us).is_none());
        }
        drop(waiting);
        assert_eq!(memory.lock().waiting, 0);
        let left = limiter.look("mail", &rate).await.unwrap().remaining;
        assert_eq!(left, u64::from(is_granted));
    }
}

#[tokio::test]
async fn policies_shares_and_settings_are_as_the_server_has_them() {
    let builder = MemoryLimiter::builder();
    let builder = builder.share(1, 4).unwrap().policies("free WINDOW 8 1d").unwrap();
    let (_, limiter) = held(builder.setting("ratelimit.timezone", "Asia/Tokyo").unwrap());
    assert_eq!(limiter.take("a", &Window::policy("free")).await.unwrap().limit, 2);
    assert_eq!(limiter.take("b", &Window::per("100/s").unwrap()).await.unwrap().limit, 25);
    assert_eq!(limiter.policies().await.unwrap()[0].allowed, 1);
    let unknown = limiter.take("a", &Window::policy("gold")).await.unwrap_err();
    assert!(matches!(unknown, Error::UnknownPolicy(_)), "{unknown:?}");
    for (name, value) in
        [("policies", "free WINDOW x 1d"), ("timezone", "Moon"), ("maxmemory", "1")]
    {
        let refused = MemoryLimiter::builder().setting(name, value).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused:?}");
    }
    for (part, whole) in [(0, 4), (5, 4), (1, 0)] {
        assert!(MemoryLimiter::builder().share(part, whole).is_err());
    }
}

#[tokio::test]
async fn it_decides_in_the_place_of_a_server_that_does_not_answer() {
    struct Gone;
    impl Transport for Gone {
        fn connect(
            &self,
            _: Option<Address>,
        ) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>> {
            let kind = crate::transport::FailureKind::Refused;
            Box::pin(std::future::ready(Err(Failure { kind, message: "refused".into() })))
        }

        fn name(&self) -> String {
            "gone".into()
        }

        fn host(&self) -> String {
            "gone".into()
        }
    }
    let memory = MemoryLimiter::builder().share(1, 2).unwrap().build();
    let limiter = Limiter::builder(Servers::single(Gone))
        .unreachable(Unreachable::Limiter(memory.into()))
        .build()
        .unwrap();
    let reply = limiter.take("a", &Window::per("4/min").unwrap()).await.unwrap();
    assert_eq!((reply.limit, reply.remaining, reply.reachable), (2, 1, false));
}

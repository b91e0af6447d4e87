use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::time::timeout;

use super::*;
use crate::{Clause, Rate, Window};

/// Returns a clock in milliseconds, and a limiter that uses it.
fn held(builder: MemoryLimiterBuilder) -> (Arc<AtomicU64>, MemoryLimiter) {
    let ms = Arc::new(AtomicU64::new(1_800_000_000_000));
    let clock = Arc::clone(&ms);
    let now = move || UNIX_EPOCH + Duration::from_millis(clock.load(Relaxed));
    (ms, builder.clock(now).build())
}

/// Waits until this many calls wait for a key.
async fn until_waiting(limiter: &Limiter, key: &str, calls: u64) {
    let waiting = async || limiter.info(key).await.unwrap().map_or(0, |info| info.waiting);
    let reached = async {
        while waiting().await != calls {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), reached).await.unwrap();
}

#[tokio::test]
async fn a_call_in_line_is_granted_when_its_time_has_come() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let rate = Rate::per("1/min").unwrap();
    let _ = limiter.take("mail", &rate).await.unwrap();
    // A call that cannot be allowed in time is denied at once.
    assert!(!limiter.take("mail", &rate).block(Duration::from_secs(5)).await.unwrap().is_allowed());
    let call = limiter.take("mail", &rate).block(Duration::from_secs(90));
    let waiting = tokio::spawn(call.into_future());
    until_waiting(&limiter, "mail", 1).await;
    ms.fetch_add(60_000, Relaxed);
    assert!(waiting.await.unwrap().unwrap().is_allowed());
}

#[tokio::test]
async fn what_waits_and_is_dropped_leaves_the_line_and_gives_back_what_it_was_granted() {
    let (ms, limiter) = held(MemoryLimiter::builder());
    let rate = Rate::per("1/min").unwrap();
    let _ = limiter.take("mail", &rate).await.unwrap();
    let call =
        || Box::pin(limiter.take("mail", &rate).block(Duration::from_secs(90)).into_future());
    let mut waiting = call();
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
    until_waiting(&limiter, "mail", 1).await;
    drop(waiting);
    until_waiting(&limiter, "mail", 0).await;
    assert_eq!(limiter.look("mail", &rate).await.unwrap().remaining, 0);
    let mut waiting = call();
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
    ms.fetch_add(60_000, Relaxed);
    // Another call that sees the time grants it.
    assert_eq!(limiter.take("mail", &rate).await.unwrap().remaining, 0);
    drop(waiting);
    let given_back = async {
        while limiter.look("mail", &rate).await.unwrap().remaining == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), given_back).await.unwrap();
}

#[tokio::test]
async fn a_limit_with_a_ban_is_refused_by_calls_that_cannot_ban() {
    let (limiter, second) = (MemoryLimiter::new(), Duration::from_secs(1));
    let rate = Rate::per("5/s").unwrap().ban(second);
    let window = Window::per("5/s").unwrap().ban(second);
    let take = || limiter.take("k", &window);
    let clause = || Clause::take("k", &window);
    let results = [
        take().quantity(0).await.map(drop),
        take().quantity(-1).await.map(drop),
        take().at_most().await.map(drop),
        take().force().await.map(drop),
        take().block(second).await.map(drop),
        limiter.take("r", &rate).ahead(second).await.map(drop),
        limiter.acquire("k", &window).await.map(drop),
        limiter.all([clause().check()]).await.map(drop),
        limiter.all([clause().quantity(0)]).await.map(drop),
        limiter.all([clause()]).force().await.map(drop),
        limiter.acquire_all([Clause::acquire("k", &window)]).await.map(drop),
        limiter.local("k", &window).build().map(drop),
    ];
    for (at, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{at}: {result:?}");
    }
    assert!(limiter.look("k", &window).quantity(0).await.unwrap().is_allowed());
    assert!(take().count_denied().await.unwrap().is_allowed());
}

#[test]
fn settings_that_the_server_would_refuse_are_refused() {
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

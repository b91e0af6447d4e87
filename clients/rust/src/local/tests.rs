use std::future::ready;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::*;
use crate::testing::{table, window, Double};
use crate::transport::{Command, ErrorReply};
use crate::Unreachable;
use crate::{breaker, reservation, MemoryLimiter};

/// Takes 1 as soon as a batch has been fetched.
async fn fetch(local: &Local) {
    let fetched = async {
        while local.try_take(1).unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), fetched).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_tasks_and_threads_never_spend_more_than_the_limit() {
    let limiter = MemoryLimiter::new();
    let window = Window::per("200/h").unwrap();
    let local = Arc::new(limiter.local("k", &window).build().unwrap());
    let spent = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (local, spent) = (Arc::clone(&local), Arc::clone(&spent));
        tasks.spawn(async move {
            for _ in 0..50 {
                if local.take(1).await.unwrap().is_allowed() {
                    spent.fetch_add(1, Relaxed);
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(spent.load(Relaxed), 200);
}

#[tokio::test]
async fn what_is_dropped_is_settled_in_the_background() {
    let limiter = MemoryLimiter::new();
    let window = Window::per("100/min").unwrap();
    let local = limiter.local("k", &window).lease(Duration::from_secs(3600)).build().unwrap();
    let _ = local.take(3).await.unwrap();
    drop(local);
    let settled = async {
        while !limiter.held("k").await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), settled).await.unwrap();
    assert_eq!(limiter.look("k", &window).await.unwrap().remaining, 97);
}

#[test]
fn it_may_be_used_in_several_runtimes_one_after_the_other() {
    let limiter = MemoryLimiter::new();
    let window = Window::per("100/min").unwrap();
    let lease = Duration::from_secs(3600);
    let local = limiter.local("k", &window).lease(lease).build().unwrap();
    // Outside of a runtime nothing is asked.
    assert!(local.try_take(1).unwrap().is_none());
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let outside = std::future::Future::poll(std::pin::pin!(local.take(1)), context);
    assert!(matches!(outside, std::task::Poll::Ready(Err(Error::NoRuntime))));
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // More than is held, so that the server must be asked.
        assert!(runtime.block_on(local.take(5)).unwrap().is_allowed());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        local.close().await.unwrap();
        assert_eq!(limiter.look("k", &window).await.unwrap().remaining, 85);
    });
}

#[tokio::test]
async fn the_clock_that_a_test_holds_ends_the_lease() {
    let ms = Arc::new(AtomicU64::new(1_800_000_000_000));
    let clock = Arc::clone(&ms);
    let limiter = MemoryLimiter::builder()
        .clock(move || UNIX_EPOCH + Duration::from_millis(clock.load(Relaxed)))
        .build();
    let window = Window::per("2/min").unwrap();
    let local = limiter.local("k", &window).build().unwrap();
    assert!(local.take(1).await.unwrap().is_allowed());
    assert!(local.take(1).await.unwrap().is_allowed());
    let denied = local.take(1).await.unwrap();
    assert_eq!(denied.decision, Decision::Denied);
    assert!(denied.retry_after.unwrap() > Duration::from_secs(50));
    ms.fetch_add(61_000, Relaxed);
    assert!(local.take(1).await.unwrap().is_allowed());
}

#[tokio::test]
async fn invalid_local_limits_are_refused() {
    let limiter = MemoryLimiter::builder().policies("jobs WINDOW 3 0").unwrap().build();
    let window = Window::per("5/s").unwrap();
    let none: crate::Period = "0".parse().unwrap();
    let refused = limiter.local("k", &Window::new(3, none)).build().unwrap_err().to_string();
    assert!(refused.contains("must not be 0"), "{refused}");
    let local = limiter.local("k", &window).build().unwrap();
    assert!(local.take(0).await.unwrap_err().to_string().contains("above 0"));
    assert!(!local.take(6).await.unwrap().is_allowed());
    let unknown = Window::policy("gold");
    let unknown = limiter.local("k", &unknown).build().unwrap().take(1).await.unwrap_err();
    assert!(matches!(unknown, Error::UnknownPolicy(_)), "{unknown:?}");
    // A limit in numbers names no policy.
    let only = MemoryLimiter::builder().setting("policies-only", "yes").unwrap().build();
    let refused = only.local("k", &window).build().unwrap().take(1).await.unwrap_err();
    assert!(matches!(&refused, Error::Server(reply) if reply.code == "NOPOLICY"), "{refused:?}");
    let semaphore = Window::policy("jobs");
    let local = limiter.local("jobs", &semaphore).build().unwrap();
    assert!(local.take(1).await.unwrap().is_allowed());
    let refused = loop {
        match local.take(1).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("semaphore"), "{refused}");
    local.close().await.unwrap();
    assert!(limiter.held("jobs").await.unwrap().is_empty());
}

/// A server that can be taken away, or become a replica.
#[derive(Clone, Default)]
struct Line {
    memory: MemoryLimiter,
    /// The outcome of each command instead.
    instead: Arc<Mutex<Option<Result<Value, String>>>>,
}

impl Line {
    fn limiter(&self, unreachable: Unreachable) -> Limiter {
        let line = self.clone();
        let server = Double::new(move |commands| ready(line.reply(commands)));
        let builder = Limiter::builder(server.servers()).unreachable(unreachable);
        builder.deadline(Duration::from_millis(50)).build().unwrap()
    }

    fn reply(&self, commands: &[Command]) -> Result<Vec<Value>, String> {
        match self.instead.lock().unwrap().clone() {
            Some(instead) => instead.map(|reply| vec![reply; commands.len()]),
            None => Ok(self.memory.core().memory.as_ref().unwrap().execute_together(commands)),
        }
    }
}

#[tokio::test]
async fn while_redis_is_away_what_is_held_is_spent_and_then_unreachable_decides() {
    let (line, window) = (Line::default(), Window::per("100/min").unwrap());
    let other = MemoryLimiter::builder().share(1, 10).unwrap().build();
    let cases = [
        (Unreachable::Allow, Some((true, 0))),
        (Unreachable::Deny, Some((false, 0))),
        (Unreachable::Limiter(other.into()), Some((true, 10))),
        (Unreachable::Error, None),
    ];
    for (unreachable, expected) in cases {
        *line.instead.lock().unwrap() = None;
        let limiter = line.limiter(unreachable);
        let lease = Duration::from_secs(3600);
        let local = limiter.local("k", &window).lease(lease).build().unwrap();
        assert!(local.take(1).await.unwrap().is_allowed());
        // A batch for the next take, which is given up.
        fetch(&local).await;
        *line.instead.lock().unwrap() = Some(Err("cut".into()));
        while local.try_take(1).unwrap().is_some() {}
        match (local.take(1).await, expected) {
            (Ok(reply), Some((is_allowed, limit))) => {
                assert_eq!(
                    (reply.is_allowed(), reply.limit, reply.reachable),
                    (is_allowed, limit, false)
                );
            }
            (Err(error), None) => assert!(error.is_transient(), "{error}"),
            (found, _) => panic!("{found:?}"),
        }
        assert_eq!(local.close().await.is_err(), expected.is_none());
    }
}

#[tokio::test]
async fn closing_returns_the_error_of_a_settlement_that_is_refused_whatever_unreachable_says() {
    let window = Window::per("100/min").unwrap();
    // What was spent cannot be counted, or what was not spent cannot be given back.
    for is_spent in [true, false] {
        let line = Line::default();
        let limiter = line.limiter(Unreachable::Allow);
        let local = limiter.local("k", &window).lease(Duration::from_secs(3600)).build().unwrap();
        match is_spent {
            true => assert!(local.take(3).await.unwrap().is_allowed()),
            false => assert!(local.try_take(3).unwrap().is_none()),
        }
        while line.memory.held("k").await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let refused = Value::Error(ErrorReply::new("READONLY it is a replica"));
        *line.instead.lock().unwrap() = Some(Ok(refused));
        for _ in 0..2 {
            assert_eq!(local.close().await.unwrap_err().code(), Some("READONLY"));
        }
        assert_eq!(line.memory.held("k").await.unwrap()[0].quantity, 3);
    }
}

#[test]
fn the_numbers_are_those_of_all_clients() {
    let numbers = &table("numbers.json")[0];
    let ms = |length: Duration| length.as_millis() as u64;
    let breaker = serde_json::json!({
        "failures": breaker::FAILURES, "pause_ms": ms(breaker::PAUSE), "probe_ms": ms(breaker::PROBE),
    });
    assert_eq!(breaker, numbers["breaker"]);
    let renewal = serde_json::json!({
        "per_lease": reservation::RENEWALS_PER_LEASE, "default_lease_ms": ms(reservation::DEFAULT_LEASE),
        "least_ms": ms(reservation::LEAST_RENEWAL),
    });
    assert_eq!(renewal, numbers["renewal"]);
    assert_eq!(serde_json::json!({ "pauses_ms": crate::core::PAUSES_MS }), numbers["settling"]);
    for case in numbers["held"].as_array().unwrap() {
        let lease_ms = case["lease_ms"].as_u64().unwrap();
        let lease = Duration::from_millis(lease_ms);
        let terms = terms(b"k", &window(&case["limit"]), lease, 0).unwrap();
        assert_eq!(Some(lease_ms + terms.counted_ms), case["held_ms"].as_u64(), "{case}");
    }
}

#[cfg(unix)]
#[test]
#[allow(unsafe_code)]
fn a_forked_child_holds_nothing_of_its_parents() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = MemoryLimiter::new();
    let window = Window::per("100/min").unwrap();
    let local = limiter.local("k", &window).lease(Duration::from_secs(3600)).build().unwrap();
    runtime.block_on(async {
        assert!(local.try_take(9).unwrap().is_none());
        fetch(&local).await;
    });
    // Another thread holds the lock while the process forks.
    let process = local.shared.current().unwrap();
    let lock = process.lock();
    // SAFETY: the child takes no lock that a thread of its parent may hold, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_new = local.shared.current().is_ok_and(|other| !std::ptr::eq(other, process));
        let holds_nothing = local.try_take(1).is_ok_and(|reply| reply.is_none());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(is_new && holds_nothing))) };
    }
    drop(lock);
    let mut status = 0;
    // SAFETY: the status is this function's own.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(local.try_take(1).unwrap().is_some(), "the parent goes on");
}

//! The cost of decisions in the process. `cargo test --release -p redis-ratelimit-client --test in_process -- --nocapture`
//! prints how long they take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use redis_ratelimit_client::{Local, MemoryLimiter, Rate, Window};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the calls of each thread.
struct Counting;

// SAFETY: everything is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller guarantees.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the output of a future that does not wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// A local limit that holds a batch.
async fn holding(limiter: &MemoryLimiter, quantity: u64) -> Local {
    let window = Window::new(1_000_000_000, Duration::from_secs(3600));
    let local = limiter.local("k", &window).lease(Duration::from_secs(3600)).build().unwrap();
    assert!(local.try_take(quantity).unwrap().is_none());
    let fetched = async {
        while local.try_take(1).unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), fetched).await.unwrap();
    local
}

#[tokio::test]
async fn a_local_decision_allocates_nothing() {
    let local = holding(&MemoryLimiter::new(), 1_000_000).await;
    let before = ALLOCATIONS.get();
    for _ in 0..1000 {
        assert!(local.try_take(1).unwrap().unwrap().is_allowed());
        assert!(now(local.take(1)).unwrap().is_allowed());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

/// The least time that a call took, in nanoseconds, of many rounds: other work on the machine only adds to it.
fn least_ns(mut call: impl FnMut()) -> u128 {
    const CALLS: u32 = 1000;
    let round = |call: &mut dyn FnMut()| {
        let began = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        (began.elapsed() / CALLS).as_nanos()
    };
    (0..100).map(|_| round(&mut call)).min().unwrap_or_default()
}

#[tokio::test]
async fn decisions_in_the_process_take_about_a_microsecond() {
    let limiter = MemoryLimiter::new();
    let local = holding(&limiter, 10_000_000).await;
    let rate = Rate::new(1_000_000, 1_000_000_000, Duration::from_secs(1));
    let (empty, window) = (Rate::per("1/d").unwrap(), Window::per("1000000/min").unwrap());
    let clocks = least_ns(|| {
        black_box((Instant::now(), std::time::SystemTime::now()));
    });
    let found = [
        ("local", least_ns(|| drop(black_box(local.try_take(1))))),
        ("local, awaited", least_ns(|| drop(black_box(now(local.take(1)))))),
        (
            "memory, a rate",
            least_ns(|| drop(black_box(now(limiter.take("user:1", &rate).into_future())))),
        ),
        (
            "memory, a denied rate",
            least_ns(|| drop(black_box(now(limiter.take("user:2", &empty).into_future())))),
        ),
        (
            "memory, a window",
            least_ns(|| drop(black_box(now(limiter.take("user:3", &window).into_future())))),
        ),
    ];
    println!("reading both clocks takes {clocks} ns");
    for (name, ns) in found {
        println!("{name}: {ns} ns");
        // A build without optimizations is several times slower.
        assert!(cfg!(debug_assertions) || ns < 2000, "{name}: {ns} ns");
    }
}

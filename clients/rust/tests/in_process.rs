//! The cost of decisions in the process. `cargo bench -p redis-ratelimit-client` measures how long they take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis_ratelimit_client::{MemoryLimiter, Window};

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

#[tokio::test]
async fn a_local_decision_allocates_nothing() {
    let window = Window::new(1_000_000_000, Duration::from_secs(3600));
    let limiter = MemoryLimiter::new();
    let local = limiter.local("k", &window).lease(Duration::from_secs(3600)).build().unwrap();
    assert!(local.try_take(1_000_000).unwrap().is_none());
    let fetched = async {
        while local.try_take(1).unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), fetched).await.unwrap();
    let before = ALLOCATIONS.get();
    for _ in 0..1000 {
        assert!(local.try_take(1).unwrap().unwrap().is_allowed());
        assert!(now(local.take(1)).unwrap().is_allowed());
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

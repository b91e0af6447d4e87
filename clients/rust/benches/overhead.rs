//! The cost of a call of the limiter, compared with the same command sent by the crate redis: CPU time of the thread, and
//! allocations. The two take turns, and medians are compared. Then the time of decisions in the process.
//!
//!     cargo bench -p redis-ratelimit-client

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::future::{Future, IntoFuture};
use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Limiter, MemoryLimiter, Rate, Window};
use support::Server;

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 41;
const CALLS: u32 = 2000;

/// The cost of a round of calls.
#[derive(Clone, Copy)]
struct Used {
    cpu_ns: u64,
    allocations: u64,
}

/// Returns what this thread has used. Everything but the server runs on it.
fn used() -> Used {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let cpu_ns = stat.split(' ').next().and_then(|text| text.parse().ok()).expect("nanoseconds");
    Used { cpu_ns, allocations: ALLOCATIONS.load(Relaxed) }
}

fn since(before: Used) -> Used {
    let now = used();
    let each = |now: u64, before: u64| (now - before) / u64::from(CALLS);
    Used {
        cpu_ns: each(now.cpu_ns, before.cpu_ns),
        allocations: each(now.allocations, before.allocations),
    }
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Prints the least time of a call, because other work on the machine only adds to it.
fn print_least(name: &str, mut call: impl FnMut()) {
    let mut round = || {
        let began = Instant::now();
        (0..CALLS).for_each(|_| call());
        (began.elapsed() / CALLS).as_nanos()
    };
    let least = (0..ROUNDS).map(|_| round()).min().unwrap();
    println!("{name:16} {least:>6} ns");
}

/// Measures decisions in the process.
async fn measure_in_process() {
    let limiter = MemoryLimiter::new();
    let (rate, window) = (
        Rate::new(1_000_000, 1_000_000_000, Duration::from_secs(1)),
        Window::per("1000000000/h").unwrap(),
    );
    let local = limiter.local("k", &window).lease(Duration::from_secs(3600)).build().unwrap();
    assert!(local.try_take(10_000_000).unwrap().is_none());
    while local.try_take(1).unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    print_least("a local limit", || drop(black_box(local.try_take(1))));
    print_least("MemoryLimiter", || {
        let call = pin!(limiter.take("user:1", &rate).into_future());
        let taken = call.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(taken, Poll::Ready(Ok(reply)) if reply.is_allowed()));
    });
}

fn main() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = redis::Client::open(server.url()).unwrap();
        // Both set a timer, for longer than a busy machine is late.
        let (longest, config) = (Duration::from_secs(60), redis::AsyncConnectionConfig::new());
        let config = config.set_response_timeout(Some(longest));
        let conn = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut conn = conn.unwrap();
        let servers = Servers::from(client);
        let limiter = Limiter::builder(servers).deadline(longest).build();
        let limiter = limiter.unwrap();
        let rate = Rate::new(1_000_000_000, 1_000_000, Duration::from_secs(1));
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let before = used();
            for _ in 0..CALLS {
                let mut command = redis::cmd("RL.THROTTLE");
                command.arg("k").arg(1_000_000_000).arg(1_000_000).arg(1).arg(1).arg("MS");
                let (limited, ..): (i64, i64, i64, i64, i64) =
                    command.query_async(&mut conn).await.unwrap();
                assert_eq!(limited, 0);
            }
            bare.push(since(before));
            let before = used();
            for _ in 0..CALLS {
                assert!(limiter.take("k", &rate).await.unwrap().is_allowed());
            }
            ours.push(since(before));
        }
        let cpu = |all: &[Used]| median(all.iter().map(|each| each.cpu_ns).collect());
        let allocations = |all: &[Used]| median(all.iter().map(|each| each.allocations).collect());
        let added: Vec<_> = bare
            .iter()
            .zip(&ours)
            .map(|(bare, ours)| ours.cpu_ns.saturating_sub(bare.cpu_ns))
            .collect();
        println!("{ROUNDS} rounds of {CALLS} calls, one after the other");
        println!(
            "the crate redis  {:>6} ns of CPU, {:>2} allocations",
            cpu(&bare),
            allocations(&bare)
        );
        println!(
            "the limiter      {:>6} ns of CPU, {:>2} allocations",
            cpu(&ours),
            allocations(&ours)
        );
        println!("added            {:>6} ns of CPU, the median of the rounds", median(added));
        measure_in_process().await;
    });
}

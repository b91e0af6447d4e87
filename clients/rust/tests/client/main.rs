//! The client against the tables in clients/spec, and against real servers.

mod dropped;
mod events;
mod outages;
mod proxy;
mod renewal;
mod scripted;
mod server;
mod spec;
#[path = "../../src/testing.rs"]
mod testing;
mod tls;
mod topologies;

use std::future::Future;
use std::time::{Duration, Instant};

use redis_ratelimit_client::transport::{self, Servers};
use redis_ratelimit_client::{Error, Limiter, Period, Rate, Window};
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
/// The longest wait for something that takes milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_millis(250);
/// A deadline of calls that must succeed, where the test has to wait for it.
const LONG: Duration = Duration::from_secs(2);
/// The time that a busy machine may add to a deadline. It is less than that of connecting, 5 s, which a call must not wait for.
const SLACK: Duration = Duration::from_secs(4);

/// A rate that admits every call of a test.
fn rate() -> Rate {
    Rate::new(1_000_000_000, 1_000_000, Duration::from_secs(1))
}

fn per_day(limit: u64) -> Window {
    Window::new(limit, Duration::from_secs(86_400))
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// Returns a limiter that does not give up while this machine is busy.
fn patient(servers: Servers) -> Limiter {
    Limiter::builder(servers).deadline(PATIENCE).build().unwrap()
}

/// Waits until something is true.
async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < PATIENCE, "waited in vain");
        sleep(MS).await;
    }
}

/// Returns the number of calls that wait for a key.
async fn waiting(limiter: &Limiter, key: &str) -> u64 {
    limiter.info(key).await.unwrap().map_or(0, |info| info.waiting)
}

/// Polls a call until it waits for a key.
async fn until_waiting(call: &mut (impl Future + Unpin), limiter: &Limiter, key: &str) {
    let begin = Instant::now();
    while waiting(limiter, key).await == 0 {
        assert!(begin.elapsed() < PATIENCE, "waited in vain");
        assert!(timeout(MS, &mut *call).await.is_err(), "it did not wait");
    }
}

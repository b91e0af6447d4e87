//! The pauses between renewals of leases, on tokio's clock, which stands still until all tasks wait.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis_ratelimit_client::transport::{Command, Value};
use redis_ratelimit_client::{Limiter, Reservation, Semaphore};
use serde_json::json;
use tokio::time::{sleep, Instant};

use crate::scripted::value_of;
use crate::testing::Double;

const SECOND: Duration = Duration::from_secs(1);

/// A server that holds whatever is reserved. Renewals that change the length of a lease are lost while `loses_leases` is
/// set.
#[derive(Clone)]
struct Holder {
    start: Instant,
    loses_leases: Arc<AtomicBool>,
    /// The number of renewals that will be lost.
    lost: Arc<AtomicU32>,
    /// The time until a renewal gets its reply, in milliseconds.
    late_ms: Arc<AtomicU64>,
    /// The times at which renewals arrived that do not change the length, in seconds after the start.
    renewed_at: Arc<Mutex<Vec<f64>>>,
}

impl Holder {
    fn new() -> Holder {
        Holder {
            start: Instant::now(),
            loses_leases: Arc::default(),
            lost: Arc::default(),
            late_ms: Arc::default(),
            renewed_at: Arc::default(),
        }
    }

    /// Returns the times of renewals since the last call, rounded to tenths.
    fn renewed_at(&self) -> Vec<f64> {
        std::mem::take(&mut self.renewed_at.lock().unwrap())
    }

    /// Reserves with a limiter of this server.
    async fn permit(&self, deadline: impl Into<Option<Duration>>, lease: Duration) -> Reservation {
        let holder = self.clone();
        let server = Double::new(move |commands| {
            let (holder, command) = (holder.clone(), commands[0].clone());
            async move { Ok(vec![holder.reply(&command).await]) }
        });
        let limiter = Limiter::builder(server.servers()).deadline(deadline).build().unwrap();
        limiter.acquire("jobs", &Semaphore::new(1)).lease(lease).await.unwrap()
    }

    async fn reply(&self, command: &Command) -> Value {
        let words: Vec<_> = command.words().collect();
        match words[0] {
            b"RL.ACQUIRE" => value_of(&json!([0, 1, 0, -1, 3000, "id"])),
            b"RL.RENEW" if !words.contains(&&b"LEASE"[..]) => {
                let tenths = (self.start.elapsed().as_secs_f64() * 10.0).round();
                self.renewed_at.lock().unwrap().push(tenths / 10.0);
                if self.lost.fetch_update(Relaxed, Relaxed, |lost| lost.checked_sub(1)).is_ok() {
                    pending::<()>().await;
                }
                sleep(Duration::from_millis(self.late_ms.load(Relaxed))).await;
                Value::Integer(1)
            }
            b"RL.RENEW" if self.loses_leases.load(Relaxed) => pending().await,
            _ => Value::Integer(1),
        }
    }
}

/// If renewals became as rare as the new lease allows before the server knows it, the old lease would end.
#[tokio::test(start_paused = true)]
async fn a_longer_lease_slows_renewals_only_when_the_server_has_confirmed_it() {
    let server = Holder::new();
    let mut permit = server.permit(SECOND / 2, 3 * SECOND).await;
    sleep(SECOND / 2).await;
    server.loses_leases.store(true, Relaxed);
    // It ends with the limiter's deadline, at second 1.
    permit.renew(30 * SECOND).await.unwrap_err();
    sleep(3 * SECOND).await;
    assert_eq!(server.renewed_at(), [1.5, 2.5, 3.5]);

    server.loses_leases.store(false, Relaxed);
    permit.renew(30 * SECOND).await.unwrap();
    sleep(25 * SECOND).await;
    assert_eq!(server.renewed_at(), [14.0, 24.0]);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_lease_speeds_renewals_up_before_the_server_has_confirmed_it() {
    let server = Holder::new();
    let mut permit = server.permit(SECOND / 2, 30 * SECOND).await;
    server.loses_leases.store(true, Relaxed);
    permit.renew(3 * SECOND).await.unwrap_err();
    sleep(3 * SECOND).await;
    assert_eq!(server.renewed_at(), [1.0, 2.0, 3.0]);
    // The server may have the shorter lease although its reply was lost.
    permit.renew(12 * SECOND).await.unwrap_err();
    sleep(3 * SECOND).await;
    assert_eq!(server.renewed_at(), [4.5, 5.5, 6.5]);

    server.loses_leases.store(false, Relaxed);
    permit.renew(12 * SECOND).await.unwrap();
    sleep(9 * SECOND).await;
    assert_eq!(server.renewed_at(), [11.0, 15.0]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_a_reply_does_not_delay_the_next() {
    for deadline in [None, Some(SECOND / 2), Some(10 * SECOND)] {
        let server = Holder::new();
        server.lost.store(2, Relaxed);
        let permit = server.permit(deadline, 3 * SECOND).await;
        sleep(9 * SECOND / 2).await;
        assert_eq!(server.renewed_at(), [1.0, 2.0, 3.0, 4.0], "{deadline:?}");
        drop(permit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_when_no_renewal_was_confirmed_for_as_long_as_it_lasts() {
    let server = Holder::new();
    let permit = server.permit(SECOND / 2, 3 * SECOND).await;
    sleep(9 * SECOND / 2).await;
    // The last that was confirmed is that of second 4.
    server.lost.store(u32::MAX, Relaxed);
    let outage = Instant::now();
    permit.lost().await;
    assert_eq!(outage.elapsed(), 5 * SECOND / 2);
}

/// Otherwise other calls would find the breaker open.
#[tokio::test(start_paused = true)]
async fn a_renewal_has_the_deadline_of_a_call_although_the_next_begins_before_it() {
    let server = Holder::new();
    server.late_ms.store(1500, Relaxed);
    let permit = server.permit(2 * SECOND, 3 * SECOND).await;
    sleep(13 * SECOND / 2).await;
    assert_eq!(server.renewed_at(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    drop(permit);
}

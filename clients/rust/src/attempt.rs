//! One attempt to get the reply to a call by its deadline.

use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{timeout_at, Instant};

use crate::server::{after, Link, Server};

/// The number of yields to the runtime after which what has arrived is noticed: one task reads a reply and another receives
/// it, or the task that reads the end of a connection ends in its next turn.
const TURNS: usize = 3;
/// A program is too busy to read replies if the timer of a call fires this late, and later than 1/LATE_PART of its time.
const LATE: Duration = Duration::from_millis(40);
const LATE_PART: u32 = 8;
/// The longest that a call goes on after its deadline, because the timer fired late.
const MAX_MORE: Duration = Duration::from_millis(20);

/// The server that a call is sent to, and the connection that it was sent on.
type Target = (Arc<Server>, Option<Arc<Link>>);

/// The progress of a call.
pub(crate) struct Attempt {
    pub began: Instant,
    pub until: Option<Instant>,
    /// True if something was sent, so the server may have executed it.
    pub is_sent: AtomicBool,
    /// True if the program was too busy to read a reply by the deadline.
    pub is_late: AtomicBool,
    target: Mutex<Option<Target>>,
}

impl Attempt {
    pub fn new(within: Option<Duration>) -> Attempt {
        let began = Instant::now();
        Attempt {
            began,
            until: within.and_then(|within| began.checked_add(within)),
            is_sent: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            target: Mutex::new(None),
        }
    }

    /// Records the server that the call is about to be sent to.
    pub fn set_server(&self, server: &Arc<Server>) {
        *self.lock_target() = Some((Arc::clone(server), None));
    }

    /// Records the connection that the call is sent on.
    pub fn set_link(&self, server: &Arc<Server>, link: &Arc<Link>) {
        *self.lock_target() = Some((Arc::clone(server), Some(Arc::clone(link))));
    }

    /// Drops the connection, which closes it if no other call uses it.
    pub fn drop_link(&self) {
        *self.lock_target() = None;
    }

    /// Returns the last server that the call was for, and the connection if it was sent.
    pub fn target(&self) -> Option<Target> {
        self.lock_target().clone()
    }

    fn lock_target(&self) -> MutexGuard<'_, Option<Target>> {
        // Nothing panics while it is held.
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the outcome of a call until its deadline, and a little longer: if the program was busy, the timer fires late,
/// and a reply that has arrived was not read, or the call has only just been written.
pub(crate) async fn bounded<T>(
    attempt: &Attempt,
    mut work: Pin<&mut (impl Future<Output = T> + Send)>,
) -> Option<T> {
    let Some(until) = attempt.until else { return Some(work.await) };
    if let Ok(done) = timeout_at(until, work.as_mut()).await {
        return Some(done);
    }
    let now = Instant::now();
    let late = now.saturating_duration_since(until);
    let waited = now.saturating_duration_since(attempt.began);
    let is_late = late >= LATE && late.saturating_mul(LATE_PART) > waited;
    attempt.is_late.store(is_late, Relaxed);
    if let Ok(done) = timeout_at(after(late.min(MAX_MORE)), work.as_mut()).await {
        return Some(done);
    }
    for _ in 0..TURNS {
        yield_now().await;
        if let Some(done) = poll_once(work.as_mut()).await {
            return Some(done);
        }
    }
    None
}

/// Yields until what has arrived is noticed.
#[cfg(feature = "redis")]
pub(crate) async fn yield_turns() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

/// Polls a future once, and returns its output if it is ready.
pub(crate) async fn poll_once<T>(
    mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) -> Option<T> {
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

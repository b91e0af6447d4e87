//! Decides whether to send calls to a server, by the outcome of earlier calls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The number of consecutive failures that open a breaker. One or two may be the fault of a connection.
pub(crate) const FAILURES: u32 = 3;
/// The pause between two probes. A server that is back gets calls again after at most this pause and one probe.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// The time limit of a probe.
pub(crate) const PROBE: Duration = Duration::from_secs(1);

/// While it is closed, every call is sent. Consecutive failures open it: then no calls are sent, and one call at a time may
/// probe whether the server is back. Any reply closes it, even an error reply.
///
/// Concurrent calls fail for the same reason, so they count as one failure: a call that began before the last failure does
/// not count. Neither does a call during which the server replied to another call.
#[derive(Default)]
pub(crate) struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    failures: u32,
    failed_at: Option<Instant>,
    replied_at: Option<Instant>,
    /// The time of the next probe. While one goes on, it is after the end of that one, even if its runtime is shut down.
    probe_at: Option<Instant>,
    reason: String,
}

impl Breaker {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_open(&self) -> bool {
        self.state().failures >= FAILURES
    }

    /// Returns the time of the last failure, unless the server has replied since.
    pub fn failed_at(&self) -> Option<Instant> {
        let state = self.state();
        state.failed_at.filter(|_| state.failures > 0)
    }

    /// Returns the time of the server's last reply.
    pub fn replied_at(&self) -> Option<Instant> {
        self.state().replied_at
    }

    /// Returns the reason why the last call failed.
    pub fn reason(&self) -> String {
        self.state().reason.clone()
    }

    /// Records that a call got a reply. Returns whether that closes the breaker.
    pub fn record_reply(&self, now: Instant) -> bool {
        let mut state = self.state();
        state.replied_at = Some(now);
        std::mem::take(&mut state.failures) >= FAILURES
    }

    /// Records that a call that began at `began` got no reply. Returns whether that opens the breaker.
    pub fn record_failure(&self, began: Instant, now: Instant, reason: &str) -> bool {
        let mut state = self.state();
        reason.clone_into(&mut state.reason);
        let is_counted = state.failed_at.is_some_and(|failed| began < failed);
        let has_replied_since = state.replied_at.is_some_and(|at| began <= at);
        if is_counted || has_replied_since {
            return false;
        }
        state.failed_at = Some(now);
        state.failures = state.failures.saturating_add(1);
        let opens = state.failures == FAILURES;
        if opens {
            state.probe_at = now.checked_add(PAUSE);
        }
        opens
    }

    /// Returns whether the caller may probe the server. If so, it must call `end_probe` afterwards.
    pub fn may_probe(&self, now: Instant) -> bool {
        let mut state = self.state();
        if state.probe_at.is_some_and(|at| now < at) {
            return false;
        }
        state.probe_at = now.checked_add(PROBE.saturating_add(PAUSE));
        true
    }

    /// Records that the probe has ended. Its outcome is recorded by `record_reply` or `record_failure`.
    pub fn end_probe(&self, now: Instant) {
        self.state().probe_at = now.checked_add(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_opens_after_three_failures_in_a_row() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        assert!(!breaker.record_failure(start, start + MS, ""));
        assert!(!breaker.record_failure(start + MS * 2, start + MS * 3, ""));
        breaker.record_reply(start + MS * 4);
        assert!(!breaker.record_failure(start + MS * 5, start + MS * 6, ""));
        assert!(!breaker.record_failure(start + MS * 7, start + MS * 8, ""));
        assert!(breaker.record_failure(start + MS * 9, start + MS * 10, "gone"));
        assert!(breaker.is_open());
        assert_eq!(breaker.reason(), "gone");
    }

    #[test]
    fn calls_that_fail_at_the_same_time_count_as_one() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..10 {
            assert!(!breaker.record_failure(start, start + MS, ""));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_call_during_which_another_was_answered_counts_nothing() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for round in 0..10 {
            let began = start + MS * round;
            breaker.record_reply(began);
            assert!(!breaker.record_failure(began, began + MS, ""));
        }
        assert!(breaker.failed_at().is_none());
    }

    #[test]
    fn one_at_a_time_probes_and_pauses_after_it() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        let times = [start, start + MS, start + MS * 2, start + MS * 3];
        times.windows(2).for_each(|pair| {
            breaker.record_failure(pair[0], pair[1], "");
        });
        let opened = start + MS * 3;
        assert!(breaker.is_open());
        assert!(!breaker.may_probe(opened + PAUSE - MS));
        assert!(breaker.may_probe(opened + PAUSE));
        assert!(!breaker.may_probe(opened + PAUSE));
        breaker.end_probe(opened + PAUSE * 2);
        assert!(!breaker.may_probe(opened + PAUSE * 3 - MS));
        assert!(breaker.may_probe(opened + PAUSE * 3));
        assert!(breaker.record_reply(opened + PAUSE * 3));
        assert!(!breaker.is_open());
    }
}

//! The server's wall clock.

use super::api::{api, optional};
use std::sync::atomic::{AtomicU64, Ordering};

/// The time of the running command in Unix microseconds: the one that the server froze for it, where it has
/// one (7.2 and later, Valkey).
pub fn command_time_us() -> u64 {
    match optional!(RedisModule_CachedMicroseconds) {
        // SAFETY: takes nothing.
        Some(cached) => u64::try_from(unsafe { cached() }).unwrap_or(0),
        None => wall_time_us(),
    }
}

/// The wall clock itself, for callbacks that are no command and find no frozen time of their own.
pub fn wall_time_us() -> u64 {
    clock_us(libc::CLOCK_REALTIME)
}

/// Microseconds on a clock that nobody can set, for how long a call has waited.
pub fn monotonic_us() -> u64 {
    clock_us(libc::CLOCK_MONOTONIC)
}

fn clock_us(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Every call asks. The standard library's way costs three times as much.
    // SAFETY: the time is ours to write.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    // The clock gives less than a second of them.
    let us = time.tv_nsec as u32 / 1_000;
    seconds.saturating_mul(1_000_000).saturating_add(us.into())
}

/// A clock that loses more than this against the monotonic one between two looks was set.
const STEP_MS: u64 = 5;

/// Whether the wall clock, as the server sees it, was set back since this was last asked.
pub fn detect_set_back() -> bool {
    static START_MS: AtomicU64 = AtomicU64::new(0);
    // SAFETY: takes nothing.
    let now_ms = u64::try_from(unsafe { api!(RedisModule_Milliseconds()) }).unwrap_or(0);
    let start_ms = now_ms.saturating_sub(monotonic_us() / 1_000);
    start_ms.saturating_add(STEP_MS) < START_MS.swap(start_ms, Ordering::Relaxed)
}

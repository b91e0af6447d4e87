//! The server's wall clock.

use super::api::{api, optional};

/// Returns the time of the running command in Unix microseconds. Redis from 7.2 on and Valkey freeze it for the whole
/// command.
pub fn command_time_us() -> u64 {
    match optional!(RedisModule_CachedMicroseconds) {
        // SAFETY: takes nothing.
        Some(cached) => u64::try_from(unsafe { cached() }).unwrap_or(0),
        None => wall_time_us(),
    }
}

/// Returns the wall clock in Unix microseconds, for callbacks outside of commands, which have no frozen time of their own.
pub fn wall_time_us() -> u64 {
    clock_us(libc::CLOCK_REALTIME)
}

/// Returns the time of a clock that cannot be set, in microseconds, to measure how long a call has waited.
pub fn monotonic_us() -> u64 {
    clock_us(libc::CLOCK_MONOTONIC)
}

fn clock_us(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Every call asks for the time. The standard library takes three times as long.
    // SAFETY: the time is ours to write.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    // Less than a second.
    let us = time.tv_nsec as u32 / 1_000;
    seconds.saturating_mul(1_000_000).saturating_add(us.into())
}

/// If the wall clock loses more than this against the monotonic clock, it has been set.
const STEP_MS: u64 = 5;

/// Watches whether the server's wall clock is set back.
#[derive(Default)]
pub struct ClockWatch {
    /// The time by which the wall clock was ahead of the monotonic clock.
    ahead_ms: u64,
}

impl ClockWatch {
    /// Returns whether the wall clock was set back since this was called last.
    pub fn detect_set_back(&mut self) -> bool {
        // SAFETY: takes nothing.
        let now_ms = u64::try_from(unsafe { api!(RedisModule_Milliseconds()) }).unwrap_or(0);
        let ahead_ms = now_ms.saturating_sub(monotonic_us() / 1_000);
        ahead_ms.saturating_add(STEP_MS) < std::mem::replace(&mut self.ahead_ms, ahead_ms)
    }
}

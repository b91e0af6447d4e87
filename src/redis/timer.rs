//! The module's only timer.
//!
//! The server counts in milliseconds, so its timers for modules fire up to two milliseconds late. From 7.0 on its event loop
//! can watch a file, so there the time is kept by a timer of Linux, the [`Alarm`]. When that goes off, a timer of the server
//! that is due at once does the work. The alarm itself must not do it: nothing that it writes would be replicated, and it
//! also goes off while a script is busy, when the server fires no timer.

use super::api::{api, optional, RawContext, OK};
use super::context::Context;
use super::guard::guard;
use super::handlers::{handle, own_context};
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null_mut;

/// A timer of the server that has not fired. Dropping it stops it.
struct Timer(raw::RedisModuleTimerID);

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the server looks up the id.
        unsafe { api!(RedisModule_StopTimer(own_context(), self.0, null_mut())) };
    }
}

/// The timer of the server, while it runs.
static TIMER: UnderLock<Option<Timer>> = UnderLock::new(|| None);

/// The alarm. `None` if the server cannot watch a file.
static ALARM: UnderLock<Option<Alarm>> = UnderLock::new(Alarm::create);

/// Starts the timer, or restarts it if it is running.
pub fn start_timer(after_us: u64) {
    stop_timer();
    // An alarm at zero would be none.
    let is_set = ALARM.with(|alarm| alarm.as_ref().is_some_and(|alarm| alarm.set(after_us.max(1))));
    if !is_set {
        start_server_timer(after_us.div_ceil(1_000));
    }
}

/// Stops the timer if it is running.
pub fn stop_timer() {
    ALARM.with(|alarm| alarm.as_ref().map(|alarm| alarm.set(0)));
    drop(TIMER.replace(None));
}

fn start_server_timer(after_ms: u64) {
    let after_ms = i64::try_from(after_ms).unwrap_or(i64::MAX);
    // SAFETY: the context is the module's own, which outlives every timer; there is no data.
    let id =
        unsafe { api!(RedisModule_CreateTimer(own_context(), after_ms, Some(fired), null_mut())) };
    TIMER.replace(Some(Timer(id)));
}

unsafe extern "C" fn fired(ctx: RawContext, _data: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    handle(ctx, |handlers, ctx| {
        // The server removes the timer after this callback.
        std::mem::forget(TIMER.replace(None));
        (handlers.serve_timer)(ctx);
    });
}

/// A timer of Linux, as a file that the server's event loop watches.
struct Alarm(File);

impl Alarm {
    fn create() -> Option<Alarm> {
        let add = optional!(RedisModule_EventLoopAdd)?;
        // SAFETY: takes no pointers.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC)
        };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor was just opened, and nothing else closes it.
        let file = unsafe { File::from_raw_fd(fd) };
        let readable = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
        // SAFETY: the function lives as long as the module, and there is no data. Unless this succeeds, the file is closed.
        (unsafe { add(fd, readable, Some(went_off), null_mut()) } == OK).then_some(Alarm(file))
    }

    /// Sets the alarm, or stops it if `after_us` is 0. Returns whether it will go off.
    fn set(&self, after_us: u64) -> bool {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (Ok(tv_sec), Ok(us)) = (
            libc::time_t::try_from(after_us / 1_000_000),
            libc::c_long::try_from(after_us % 1_000_000),
        ) else {
            return false;
        };
        let first = libc::timespec { tv_sec, tv_nsec: us.saturating_mul(1_000) };
        let time = libc::itimerspec { it_interval: never, it_value: first };
        // SAFETY: the file is a timer, the time is ours, and the old one is not asked for.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &time, null_mut()) == 0 }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let readable = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
        if let Some(delete) = optional!(RedisModule_EventLoopDel) {
            // SAFETY: the server looks up the descriptor, which is closed after this.
            unsafe { delete(self.0.as_raw_fd(), readable) };
        }
    }
}

/// Called when the alarm has gone off.
unsafe extern "C" fn went_off(_: c_int, _: *mut c_void, _: c_int) {
    guard(None, || {
        // Until it is read, the file stays readable. An alarm that was set again is not.
        let mut times = [0; 8];
        let has_gone_off = ALARM
            .with(|alarm| alarm.as_ref().is_some_and(|alarm| (&alarm.0).read(&mut times).is_ok()));
        if has_gone_off {
            start_server_timer(0);
        }
    });
}

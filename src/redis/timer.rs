//! The module's only timer.
//!
//! The server counts in milliseconds, so its timers for modules fire up to two milliseconds late. From 7.0 on its event loop
//! can watch a file, so there the time is kept by a timer of Linux, the [`Alarm`]. When that goes off, a timer of the server
//! that is due at once does the work. The alarm itself must not do it: nothing that it writes would be replicated, and it
//! also goes off while a script is busy, when the server fires no timer.

use super::api::{api, optional, RawContext, OK};
use super::context::Context;
use super::guard::guard;
use super::under_lock::UnderLock;
use redis_module::raw;
use std::cell::OnceCell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{null_mut, NonNull};

pub trait TimerEvents {
    fn timer() -> &'static UnderLock<Timer>;

    /// Does what is due, because the timer has fired.
    fn fired(ctx: Context);
}

#[derive(Default)]
pub struct Timer {
    /// A timer of the server that has not fired.
    running: Option<raw::RedisModuleTimerID>,
    /// Created by the first start. `None` in the cell if the server cannot watch a file.
    alarm: OnceCell<Option<Alarm>>,
    own_context: Option<OwnContext>,
}

impl Timer {
    /// Takes a context for timers that are started outside of commands.
    pub fn prepare(&mut self, ctx: Context) {
        // SAFETY: the context is live.
        let raw = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.raw())) };
        self.own_context = NonNull::new(raw).map(OwnContext);
    }

    /// Starts the timer, or restarts it if it is running.
    pub fn start<E: TimerEvents>(&mut self, after_us: u64) {
        self.stop();
        let alarm = self.alarm.get_or_init(Alarm::create::<E>);
        // An alarm at zero would be none.
        if !alarm.as_ref().is_some_and(|alarm| alarm.set(after_us.max(1))) {
            self.start_server_timer::<E>(after_us.div_ceil(1_000));
        }
    }

    pub fn stop(&mut self) {
        if let Some(Some(alarm)) = self.alarm.get() {
            alarm.set(0);
        }
        self.stop_server_timer();
    }

    fn start_server_timer<E: TimerEvents>(&mut self, after_ms: u64) {
        self.stop_server_timer();
        let after_ms = i64::try_from(after_ms).unwrap_or(i64::MAX);
        let (ctx, fired) = (self.context(), Some(fired::<E> as _));
        // SAFETY: the context is the module's own, which outlives every timer; there is no data.
        self.running =
            Some(unsafe { api!(RedisModule_CreateTimer(ctx, after_ms, fired, null_mut())) });
    }

    fn stop_server_timer(&mut self) {
        if let Some(id) = self.running.take() {
            // SAFETY: the context is the module's own, and the server looks up the id.
            unsafe { api!(RedisModule_StopTimer(self.context(), id, null_mut())) };
        }
    }

    fn context(&self) -> RawContext {
        self.own_context.as_ref().map_or(null_mut(), |own| own.0.as_ptr())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A context that outlives the command in which it was created.
struct OwnContext(NonNull<raw::RedisModuleCtx>);

// SAFETY: the context belongs to no thread, and is used under the server's lock.
unsafe impl Send for OwnContext {}

impl Drop for OwnContext {
    fn drop(&mut self) {
        // SAFETY: created by `prepare`, and no longer used.
        unsafe { api!(RedisModule_FreeThreadSafeContext(self.0.as_ptr())) };
    }
}

unsafe extern "C" fn fired<E: TimerEvents>(ctx: RawContext, _data: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let Some(ctx) = (unsafe { Context::new(ctx) }) else { return };
    guard(Some(ctx), || {
        // The server removes the timer after this callback, so it must not be stopped.
        E::timer().with(|timer| timer.running = None);
        E::fired(ctx);
    });
}

/// A timer of Linux, as a file that the server's event loop watches.
struct Alarm(File);

impl Alarm {
    fn create<E: TimerEvents>() -> Option<Alarm> {
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
        let status = unsafe { add(fd, readable, Some(went_off::<E>), null_mut()) };
        (status == OK).then_some(Alarm(file))
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

unsafe extern "C" fn went_off<E: TimerEvents>(_: c_int, _: *mut c_void, _: c_int) {
    guard(None, || {
        E::timer().with(|timer| {
            // Until it is read, the file stays readable. An alarm that was set again is not.
            let mut times = [0; 8];
            let alarm = timer.alarm.get().and_then(Option::as_ref);
            if alarm.is_some_and(|alarm| (&alarm.0).read(&mut times).is_ok()) {
                timer.start_server_timer::<E>(0);
            }
        });
    });
}

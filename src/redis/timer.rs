//! The module's only timer.

use super::api::{api, RawContext};
use super::context::Context;
use super::handlers::{handle, own_context};
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A timer that has not fired. Dropping it stops it.
struct Timer(raw::RedisModuleTimerID);

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the server looks up the id.
        unsafe { api!(RedisModule_StopTimer(own_context(), self.0, null_mut())) };
    }
}

/// The timer, while it runs.
static TIMER: UnderLock<Option<Timer>> = UnderLock::new(|| None);

/// Starts the timer, or restarts it if it is running.
pub fn start_timer(after_ms: u64) {
    stop_timer();
    let after_ms = i64::try_from(after_ms).unwrap_or(i64::MAX);
    // SAFETY: the context is the module's own, which outlives every timer; there is no data.
    let id =
        unsafe { api!(RedisModule_CreateTimer(own_context(), after_ms, Some(fired), null_mut())) };
    TIMER.replace(Some(Timer(id)));
}

/// Stops the timer if it is running.
pub fn stop_timer() {
    drop(TIMER.replace(None));
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

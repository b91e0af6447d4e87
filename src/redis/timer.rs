//! The one timer.

use super::api::api;
use super::context::Context;
use super::handlers::{handle, own_context};
use redis_module::raw;
use std::os::raw::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the timer that runs; 0 is none.
static TIMER: AtomicU64 = AtomicU64::new(0);

/// Starts the timer, and stops it first if it runs.
pub fn start_timer(after_ms: u64) {
    stop_timer();
    let after_ms = i64::try_from(after_ms).unwrap_or(i64::MAX);
    let ctx = own_context();
    // SAFETY: the context is the one of the module, which outlives every timer; there is no data.
    let timer = unsafe { api!(RedisModule_CreateTimer(ctx, after_ms, Some(fired), null_mut())) };
    TIMER.store(timer, Ordering::Relaxed);
}

/// Stops the timer, if it runs.
pub fn stop_timer() {
    match TIMER.swap(0, Ordering::Relaxed) {
        0 => {}
        // SAFETY: a number that the server looks up, of a timer that has not fired.
        timer => unsafe {
            api!(RedisModule_StopTimer(own_context(), timer, null_mut()));
        },
    }
}

unsafe extern "C" fn fired(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // The server stops it by itself after this.
    TIMER.store(0, Ordering::Relaxed);
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    handle(ctx, |handlers, ctx| (handlers.serve_timer)(ctx));
}

//! The module's only timer.

use super::api::{api, RawContext};
use super::context::Context;
use super::handlers::{handle, own_context};
use std::os::raw::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// The id of the running timer, or 0 if no timer runs.
static TIMER: AtomicU64 = AtomicU64::new(0);

/// Starts the timer, or restarts it if it is running.
pub fn start_timer(after_ms: u64) {
    stop_timer();
    let after_ms = i64::try_from(after_ms).unwrap_or(i64::MAX);
    let ctx = own_context();
    // SAFETY: the context is the module's own, which outlives every timer; there is no data.
    let timer = unsafe { api!(RedisModule_CreateTimer(ctx, after_ms, Some(fired), null_mut())) };
    TIMER.store(timer, Ordering::Relaxed);
}

/// Stops the timer if it is running.
pub fn stop_timer() {
    match TIMER.swap(0, Ordering::Relaxed) {
        0 => {}
        // SAFETY: the server looks up the id. This timer has not fired.
        timer => unsafe {
            api!(RedisModule_StopTimer(own_context(), timer, null_mut()));
        },
    }
}

unsafe extern "C" fn fired(ctx: RawContext, _data: *mut c_void) {
    // The server removes the timer after this callback.
    TIMER.store(0, Ordering::Relaxed);
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    handle(ctx, |handlers, ctx| (handlers.serve_timer)(ctx));
}

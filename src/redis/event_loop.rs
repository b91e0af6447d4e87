//! Counts the iterations of the server's event loop, and runs the module's periodic work.

use super::api::{api, RawContext};
use super::clock;
use super::context::Context;
use super::handlers::{handle, own_context};
use super::load::tick;
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the server call us several times a second.
pub fn start(ctx: Context) {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_CRON_LOOP, dataver: 1 };
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, Some(cron))) };
}

/// Grows twice in each iteration: before the server waits for events, and after that.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// True once iterations are counted.
static COUNTED: UnderLock<bool> = UnderLock::new(|| false);

/// Returns a number that changes with each iteration of the event loop, from 7.0 on and after [`count_turns`].
pub fn turn() -> u64 {
    TURNS.load(Ordering::Relaxed)
}

/// Counts iterations from now on. Each costs a little, so it begins when the first call waits. It never ends: while
/// another module handles an event, the server's list of subscribers must not shrink.
pub fn count_turns() {
    if COUNTED.replace(true) {
        return;
    }
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    let ctx = own_context();
    // SAFETY: the context is the module's own, and the function lives as long as the module. A server that does not know the
    // event does nothing.
    unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, Some(looped))) };
}

/// Called before and after the server waits for something to do.
unsafe extern "C" fn looped(_: RawContext, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    TURNS.fetch_add(1, Ordering::Relaxed);
}

/// Called several times a second. Nothing may be written here.
unsafe extern "C" fn cron(ctx: RawContext, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    tick();
    handle(ctx, |handlers, _| {
        if clock::detect_set_back() {
            // Timers fire by the wall clock.
            (handlers.restart_timer)();
        }
    });
}

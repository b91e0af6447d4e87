//! Events of the whole server.

use super::api::{api, RawContext};
use super::context::Context;
use super::guard::guard;
use redis_module::raw;
use std::ffi::c_void;

/// The server's periodic work, several times a second. Nothing may be written then.
pub const TICKS: &[u64] = &[raw::REDISMODULE_EVENT_CRON_LOOP];

/// Before and after the server waits for something to do, in each iteration of its event loop, from 7.0 on.
pub const ITERATIONS: &[u64] = &[raw::REDISMODULE_EVENT_EVENTLOOP];

/// Any key may have changed: databases were emptied, swapped or loaded, or this server changed its role.
pub const DATABASE_CHANGES: &[u64] = &[
    raw::REDISMODULE_EVENT_FLUSHDB,
    raw::REDISMODULE_EVENT_SWAPDB,
    raw::REDISMODULE_EVENT_LOADING,
    raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
    raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
];

pub trait ServerEvents {
    const IDS: &'static [u64];

    fn happened();
}

/// Makes the server call [`ServerEvents::happened`] until the module is unloaded. It cannot end earlier: while another
/// module handles an event, the server's list of subscribers must not shrink.
pub fn subscribe<E: ServerEvents>(ctx: Context) {
    for &id in E::IDS {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is live; the function lives as long as the module. A server refuses an event that it does not
        // know.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, Some(happened::<E>))) };
    }
}

unsafe extern "C" fn happened<E: ServerEvents>(
    ctx: RawContext,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    guard(ctx, E::happened);
}

//! Notifications of changes that others make to keys.

use super::api::{api, RawContext, RawString, OK};
use super::context::{Context, KeyName};
use super::handlers::handle;
use super::key::is_calling;
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void, CStr};

/// A change to a key by another client or module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// A part of the value changed, or the key is gone.
    Edited,
    /// A command wrote a whole value.
    Filled,
    /// A command moved the value to another name or database. [`KeyChange::Arrived`] follows.
    Left,
    /// A command moved the value here.
    Arrived,
}

impl KeyChange {
    /// Returns the change that the server reports by this event. `None` if the value stays as it was.
    fn from_event(event: &[u8]) -> Option<KeyChange> {
        match event {
            b"expire" | b"persist" => None,
            b"rename_from" | b"move_from" => Some(KeyChange::Left),
            b"rename_to" | b"move_to" => Some(KeyChange::Arrived),
            b"copy_to" | b"restore" | b"zrangestore" | b"zunionstore" | b"zinterstore"
            | b"zdiffstore" => Some(KeyChange::Filled),
            _ => Some(KeyChange::Edited),
        }
    }
}

/// True once the server notifies us of changes to keys.
static WATCHING: UnderLock<bool> = UnderLock::new(|| false);

/// Asks the server to notify us of changes to whole databases.
pub fn register(ctx: Context) {
    for id in [
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
    ] {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is live; the function lives as long as the module. A server refuses an event that it does not
        // know.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, Some(all_changed))) };
    }
}

/// Asks the server for notifications of changes to sorted sets, of generic commands, expiry and eviction from now on. A
/// `SET` over a sorted set sends none of these. Returns whether it sends them. They cost every
/// write about 5 %, so this is called when they are first needed. Not every server can stop them again.
pub fn watch(ctx: Context) -> bool {
    if WATCHING.get() {
        return true;
    }
    let types = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_ZSET
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the context is live; the function lives as long as the module.
    let status = unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(ctx.raw(), types as c_int, Some(key_changed)))
    };
    WATCHING.replace(status == OK);
    status == OK
}

/// Publishes an event of a key (class d of notify-keyspace-events).
pub fn notify(ctx: Context, event: &CStr, key: KeyName) {
    let class = raw::REDISMODULE_NOTIFY_MODULE as c_int;
    // SAFETY: the context and the key are live, the text ends in NUL.
    unsafe { api!(RedisModule_NotifyKeyspaceEvent(ctx.raw(), class, event.as_ptr(), key.raw())) };
}

unsafe extern "C" fn key_changed(
    ctx: RawContext,
    _type: c_int,
    event: *const c_char,
    key: RawString,
) -> c_int {
    if is_calling() {
        return OK;
    }
    // SAFETY: the server keeps all three during the callback, and the event ends in NUL.
    let (ctx, event, key) =
        unsafe { (Context::new(ctx), CStr::from_ptr(event), KeyName::from_event(key)) };
    let Some(change) = KeyChange::from_event(event.to_bytes()) else { return OK };
    handle(ctx, |handlers, ctx| (handlers.key_changed)(ctx, key, change));
    OK
}

unsafe extern "C" fn all_changed(
    ctx: RawContext,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    handle(ctx, |handlers, _| (handlers.all_changed)());
}

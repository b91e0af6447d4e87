//! Notifications of changes that others make to keys.

use super::api::{api, RawContext, RawString, OK};
use super::context::{Context, KeyName};
use super::guard::guard;
use redis_module::raw;
use std::ffi::{c_char, c_int, CStr};

/// A change to a key by another client or module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// A part of the value changed, or the key is gone.
    Edited,
    /// A command wrote a whole value.
    Written,
    /// A command moved the value to another name or database. [`KeyChange::MovedHere`] follows.
    MovedAway,
    /// A command moved the value here.
    MovedHere,
}

impl KeyChange {
    /// Returns the change that the server reports by this event. `None` if the value stays as it was.
    fn from_event(event: &[u8]) -> Option<KeyChange> {
        match event {
            b"expire" | b"persist" => None,
            b"rename_from" | b"move_from" => Some(KeyChange::MovedAway),
            b"rename_to" | b"move_to" => Some(KeyChange::MovedHere),
            b"copy_to" | b"restore" | b"zrangestore" | b"zunionstore" | b"zinterstore"
            | b"zdiffstore" => Some(KeyChange::Written),
            _ => Some(KeyChange::Edited),
        }
    }
}

/// What the module does when others change keys.
pub trait KeyEvents {
    /// Another client or module changed this key in the selected database.
    fn key_changed(ctx: Context, key: KeyName, change: KeyChange);
}

/// Asks the server for notifications of changes to sorted sets, of generic commands, expiry and eviction from now on. A
/// `SET` over a sorted set sends none of these. Returns whether it sends them. They cost every write about 5 %, so this is
/// called when they are first needed. Not every server can stop them again.
pub fn watch_keys<E: KeyEvents>(ctx: Context) -> bool {
    let types = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_ZSET
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            types as c_int,
            Some(key_changed::<E>)
        )) == OK
    }
}

/// Publishes an event of a key (class d of notify-keyspace-events).
pub fn notify(ctx: Context, event: &CStr, key: KeyName) {
    let class = raw::REDISMODULE_NOTIFY_MODULE as c_int;
    // SAFETY: the context and the key are live, the text ends in NUL.
    unsafe { api!(RedisModule_NotifyKeyspaceEvent(ctx.raw(), class, event.as_ptr(), key.raw())) };
}

unsafe extern "C" fn key_changed<E: KeyEvents>(
    ctx: RawContext,
    _type: c_int,
    event: *const c_char,
    key: RawString,
) -> c_int {
    // SAFETY: the server keeps all three during the callback, and the event ends in NUL.
    let (ctx, event, key) =
        unsafe { (Context::new(ctx), CStr::from_ptr(event), KeyName::from_event(key)) };
    let Some(change) = KeyChange::from_event(event.to_bytes()) else { return OK };
    if let Some(ctx) = ctx {
        guard(Some(ctx), || E::key_changed(ctx, key, change));
    }
    OK
}

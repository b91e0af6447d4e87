//! Clients that wait, and the timers that wake them.
//!
//! What works on all servers: block on a key with a reply callback that never replies, so that the server's own
//! signals wake nobody; to end the wait, store the answer and call RedisModule_UnblockClient, which makes the
//! server call the timeout callback, and that is the one place where a waiter is answered.

use super::api::api;
use super::call::{guard, reply, Call, Context};
use super::clock;
use super::text::OwnedString;
use crate::commands::waiting;
use crate::error::Error;
use crate::limit::waiters::Ticket;
use redis_module::raw;
use std::os::raw::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// The number of a client, never given to another.
#[derive(Debug, Clone, Copy)]
pub struct ClientId(u64);

impl ClientId {
    /// The client of `call`.
    pub fn of(call: &Call) -> ClientId {
        // SAFETY: the context is live.
        ClientId(unsafe { api!(RedisModule_GetClientId(call.context().raw())) })
    }

    /// Whether it is still connected, as far as the server knows.
    pub fn is_connected(self) -> bool {
        // SAFETY: without a place for what is known about the client, the server only looks for it.
        unsafe { api!(RedisModule_GetClientInfoById(null_mut(), self.0)) == OK }
    }
}

/// A client that is blocked.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

// SAFETY: only the main thread ever looks at one.
unsafe impl Send for Blocked {}

impl Blocked {
    /// Blocks the client of `call`, which must not be one that may not block.
    pub fn client(call: &Call, key: &[u8], ticket: Ticket) -> Option<Blocked> {
        // Blocking on the key itself would make the server try all its waiters whenever it is created.
        let lot = OwnedString::new(&waiting_lot(key));
        let mut keys = [lot.raw()];
        // SAFETY: the context is a command's; the server keeps its own reference of the key; the private data is a
        // number and never followed.
        unsafe {
            let blocked = api!(RedisModule_BlockClientOnKeys(
                call.context().raw(),
                Some(not_yet),
                Some(answer),
                Some(forget),
                0,
                keys.as_mut_ptr(),
                1,
                ticket as *mut c_void,
            ));
            if blocked.is_null() {
                return None;
            }
            api!(RedisModule_SetDisconnectCallback(blocked, Some(disconnected)));
            Some(Blocked(blocked))
        }
    }

    /// Ends the wait: the server asks [`waiting::answer`] what to reply, now or soon.
    pub fn end(self) {
        // SAFETY: the client is still blocked: whoever ends a wait takes the handle out of the line before.
        unsafe { api!(RedisModule_UnblockClient(self.0, null_mut())) };
    }
}

/// A key that is never there, in the cluster slot of `key`. Without one, `key` itself.
fn waiting_lot(key: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b"\0ratelimit";
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = key.get(open.checked_add(1)?..)?;
        rest.get(..rest.iter().position(|&byte| byte == b'}')?)
    });
    match tag {
        Some(tag) if !tag.is_empty() => [b"{", tag, b"}", MARK].concat(),
        _ if key.is_empty() || key.contains(&b'}') => key.to_vec(),
        _ => [b"{", key, b"}", MARK].concat(),
    }
}

unsafe extern "C" fn not_yet(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    ERR
}

unsafe extern "C" fn answer(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server keeps the context during the callback; the private data is a ticket.
    let (ctx, ticket) = unsafe {
        (Context::new(ctx), api!(RedisModule_GetBlockedClientPrivateData(ctx)) as Ticket)
    };
    match guard(ctx, || waiting::answer(ctx, ticket)) {
        Some(Some((command, result))) => reply(ctx, command, result),
        // Before 7.2, CLIENT UNBLOCK asks once more where we ended the wait in the same transaction.
        Some(None) => {}
        // SAFETY: as above. The client must not hang.
        None => unsafe {
            api!(RedisModule_ReplyWithError(ctx.raw(), Error::Internal.text().as_ptr()));
        },
    }
    OK
}

unsafe extern "C" fn forget(ctx: *mut raw::RedisModuleCtx, ticket: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, cut_off) =
        unsafe { (Context::new(ctx), api!(RedisModule_BlockedClientDisconnected(ctx)) != 0) };
    guard(ctx, || waiting::forget(ticket as Ticket, cut_off));
}

unsafe extern "C" fn disconnected(
    _ctx: *mut raw::RedisModuleCtx,
    blocked: *mut raw::RedisModuleBlockedClient,
) {
    // SAFETY: without a context, see `report` in info.rs.
    let ctx = unsafe { Context::new(null_mut()) };
    guard(ctx, || waiting::disconnected(Blocked(blocked)));
}

/// The module's own context, for what is begun where no command runs.
static MODULE: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// Makes the module's own context.
pub(super) fn keep_module_context(ctx: Context) {
    // SAFETY: the context is live.
    let own = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.raw())) };
    MODULE.store(own, Ordering::Relaxed);
}

/// Frees it.
pub(super) fn release_module_context() {
    let own = MODULE.swap(null_mut(), Ordering::Relaxed);
    if !own.is_null() {
        // SAFETY: made by `keep_module_context`, and no longer used.
        unsafe { api!(RedisModule_FreeThreadSafeContext(own)) };
    }
}

/// A timer that was started and has not fired.
#[derive(Debug)]
pub struct Timer(raw::RedisModuleTimerID);

impl Timer {
    /// Calls [`waiting::tick`] with `line` after `ms` milliseconds.
    pub fn start(ms: u64, line: u64) -> Timer {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        // SAFETY: the context is the one of the module, which outlives every timer; the data is a number.
        unsafe {
            let ctx = MODULE.load(Ordering::Relaxed);
            Timer(api!(RedisModule_CreateTimer(ctx, ms, Some(fired), line as *mut c_void)))
        }
    }

    /// Stops it. Not for the timer that is firing.
    pub fn stop(self) {
        // SAFETY: a number that the server looks up; nothing is written through the data.
        unsafe { api!(RedisModule_StopTimer(MODULE.load(Ordering::Relaxed), self.0, null_mut())) };
    }
}

unsafe extern "C" fn fired(ctx: *mut raw::RedisModuleCtx, line: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    guard(ctx, || waiting::tick(ctx, line as u64));
}

/// Has the server call [`waiting::clock_went_back`] when that is so: its timers live by the wall clock.
pub(super) fn watch_the_clock(ctx: Context) {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_CRON_LOOP, dataver: 1 };
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, Some(cron))) };
}

/// Some times a second. Nothing may be written here.
unsafe extern "C" fn cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    guard(ctx, || {
        if clock::went_back() {
            waiting::clock_went_back();
        }
    });
}

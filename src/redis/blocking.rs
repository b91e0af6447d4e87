//! Clients that wait, and the timers that wake them.
//!
//! What works on all servers: block on a key with a reply callback that never replies, so that the server's own
//! signals wake nobody; to end the wait, store the answer and call RedisModule_UnblockClient, which makes the
//! server call the timeout callback, and that is the one place where a waiter is answered.

use super::api::api;
use super::call::{Call, Context};
use super::clock;
use super::guard::guard;
use super::text::OwnedString;
use redis_module::raw;
use std::os::raw::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// What a module does when the server calls back. Tickets and the numbers of timers are the module's own.
pub struct Callbacks {
    /// Replies to the call with this ticket, which does not wait any more.
    pub answer: fn(Context, u64),
    /// Replies where `answer` panicked.
    pub failed: fn(Context),
    /// The server has let go of the call with this ticket; with `true` it ended the wait itself.
    pub forget: fn(u64, bool),
    /// The wait of a client was ended without an answer of the module's.
    pub disconnected: fn(Blocked),
    /// The timer of this number has fired.
    pub fired: fn(Context, u64),
    /// The wall clock was set back.
    pub clock_went_back: fn(),
}

static CALLBACKS: OnceLock<Callbacks> = OnceLock::new();

/// Sets what is done when the server calls back.
pub fn set_callbacks(callbacks: Callbacks) {
    // Only the first one of a load counts. There is no second.
    let _ = CALLBACKS.set(callbacks);
}

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
    pub fn client(call: &Call, key: &[u8], ticket: u64) -> Option<Blocked> {
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

    /// Ends the wait: the server calls [`Callbacks::answer`], now or soon.
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
    let (ctx, ticket) =
        unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientPrivateData(ctx)) as u64) };
    let (Some(ctx), Some(callbacks)) = (ctx, CALLBACKS.get()) else { return ERR };
    if guard(Some(ctx), || (callbacks.answer)(ctx, ticket)).is_none() {
        // The client must not hang.
        (callbacks.failed)(ctx);
    }
    OK
}

unsafe extern "C" fn forget(ctx: *mut raw::RedisModuleCtx, ticket: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, cut_off) =
        unsafe { (Context::new(ctx), api!(RedisModule_BlockedClientDisconnected(ctx)) != 0) };
    if let Some(callbacks) = CALLBACKS.get() {
        guard(ctx, || (callbacks.forget)(ticket as u64, cut_off));
    }
}

unsafe extern "C" fn disconnected(
    _ctx: *mut raw::RedisModuleCtx,
    blocked: *mut raw::RedisModuleBlockedClient,
) {
    if let Some(callbacks) = CALLBACKS.get() {
        guard(None, || (callbacks.disconnected)(Blocked(blocked)));
    }
}

/// The module's own context, for what is begun where no command runs.
static MODULE: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// Makes the module's own context.
pub fn keep_module_context(ctx: Context) {
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
    /// Calls [`Callbacks::fired`] with `line` after `ms` milliseconds.
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
    if let (Some(ctx), Some(callbacks)) = (ctx, CALLBACKS.get()) {
        guard(Some(ctx), || (callbacks.fired)(ctx, line as u64));
    }
}

/// Has the server call [`Callbacks::clock_went_back`] when that is so: its timers live by the wall clock.
pub fn watch_the_clock(ctx: Context) {
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
        if let (true, Some(callbacks)) = (clock::went_back(), CALLBACKS.get()) {
            (callbacks.clock_went_back)();
        }
    });
}

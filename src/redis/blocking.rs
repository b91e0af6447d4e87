//! Clients that wait, and the timer that wakes them.
//!
//! What works on all servers: block on a key with a reply callback that never replies, so that the server's own
//! signals wake nobody; to end the wait, store the answer and call RedisModule_UnblockClient, which makes the
//! server call the timeout callback, and that is the one place where a waiter is answered.
//!
//! The key is one that never exists: signalling a key makes the server try all who are blocked on it, so it must be a
//! key that no client can name. It is in the slot of the limit's key, as in a cluster the server sends those away who are
//! blocked on a key of a slot that it has lost.

use super::api::api;
use super::call::Call;
use super::context::Context;
use super::guard::guard;
use super::load::tick;
use super::main_thread::MainThread;
use super::text::OwnedString;
use super::{clock, random, slot};
use engine::text::Text;
use redis_module::raw;
use std::os::raw::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::OnceLock;

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// The number that a module gave to a call that waits.
pub type Ticket = u64;

/// Whom the server's callbacks call.
pub struct Handlers {
    /// The server asks for the answer to a waiter: reply it, unless it was replied before.
    pub answer: fn(Context, Ticket),
    /// The client of a waiter is gone, or the server told it something else.
    pub disconnected: fn(Ticket),
    /// The server has let go of a waiter's client, which it had disconnected before the answer where this is true.
    pub forget: fn(Ticket, bool),
    /// The timer has fired.
    pub fired: fn(Context),
    /// The wall clock was set back.
    pub clock_went_back: fn(),
    /// Replies where `answer` panicked: the client must not hang.
    pub failed: fn(Context),
}

/// Handed in at load, taken away before the module goes.
static HANDLERS: MainThread<Option<&'static Handlers>> = MainThread::new(None);

/// Calls a handler, under the guard.
fn handle(ctx: Option<Context>, call: impl FnOnce(&Handlers, Context)) {
    guard(ctx, || {
        if let (Some(handlers), Some(ctx)) = (HANDLERS.get(), ctx) {
            call(handlers, ctx);
        }
    });
}

/// Begins to serve those who wait, with callbacks that call `handlers`.
pub fn start(ctx: Context, handlers: &'static Handlers) {
    HANDLERS.set(Some(handlers));
    // SAFETY: the context is live.
    let own = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.raw())) };
    MODULE.store(own, Ordering::Relaxed);
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_CRON_LOOP, dataver: 1 };
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, Some(cron))) };
}

/// Frees what [`start`] made, before the module goes.
pub fn stop() {
    HANDLERS.set(None);
    COUNTED.store(false, Ordering::Relaxed);
    let own = MODULE.swap(null_mut(), Ordering::Relaxed);
    if !own.is_null() {
        // SAFETY: made by `start`, and no longer used.
        unsafe { api!(RedisModule_FreeThreadSafeContext(own)) };
    }
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
#[derive(Debug)]
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

impl Blocked {
    /// Blocks the client of `call`, which waits for something on `key`. It must be one that may be blocked.
    pub fn client(call: &Call, key: &[u8], ticket: Ticket) -> Option<Blocked> {
        let ctx = call.context().raw();
        let key = OwnedString::new(blocking_key(key).as_bytes());
        let mut keys = [key.raw()];
        // SAFETY: the context is a command's; the server keeps its own reference of the key; the private data is a
        // number and never followed.
        let blocked = unsafe {
            api!(RedisModule_BlockClientOnKeys(
                ctx,
                Some(not_yet),
                Some(answer),
                Some(forget),
                0,
                keys.as_mut_ptr(),
                1,
                ticket as *mut c_void,
            ))
        };
        if blocked.is_null() {
            return None;
        }
        // SAFETY: the client was just blocked.
        unsafe { api!(RedisModule_SetDisconnectCallback(blocked, Some(disconnected))) };
        Some(Blocked(blocked))
    }

    /// Ends the wait: the server asks for the answer, now or soon.
    pub fn end(self) {
        // SAFETY: the client is still blocked. There is one handle for each, which is dropped when the server tells that
        // it ended the wait by itself.
        unsafe { api!(RedisModule_UnblockClient(self.0, null_mut())) };
    }
}

/// The characters of the secret in the names of the keys on which clients are blocked: 96 random bits.
const SECRET: usize = 16;

/// The key on which those are blocked who wait for something on `key`: in its slot, and never there.
fn blocking_key(key: &[u8]) -> Text<{ SECRET + 4 }> {
    static DRAWN: OnceLock<[u8; SECRET]> = OnceLock::new();
    let mut name = Text::new();
    name.push(b"{");
    name.push(&slot::tag(slot::of_key(key)));
    name.push(b"}");
    name.push(DRAWN.get_or_init(random::id));
    name
}

unsafe extern "C" fn not_yet(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    ERR
}

/// # Safety
/// `ctx` is the context of a callback of a blocked client.
unsafe fn ticket(ctx: *mut raw::RedisModuleCtx) -> Ticket {
    // SAFETY: the caller's promise. The private data is a ticket.
    unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)) as Ticket }
}

unsafe extern "C" fn answer(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, ticket) = unsafe { (Context::new(ctx), ticket(ctx)) };
    let (Some(ctx), Some(handlers)) = (ctx, guard(ctx, || HANDLERS.get()).flatten()) else {
        return OK;
    };
    if guard(Some(ctx), || (handlers.answer)(ctx, ticket)).is_none() {
        (handlers.failed)(ctx);
    }
    OK
}

unsafe extern "C" fn forget(ctx: *mut raw::RedisModuleCtx, ticket: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, cut_off) =
        unsafe { (Context::new(ctx), api!(RedisModule_BlockedClientDisconnected(ctx)) != 0) };
    handle(ctx, |handlers, _| (handlers.forget)(ticket as Ticket, cut_off));
}

unsafe extern "C" fn disconnected(
    ctx: *mut raw::RedisModuleCtx,
    _blocked: *mut raw::RedisModuleBlockedClient,
) {
    // SAFETY: the server keeps the context during the callback, and gives it the private data.
    let (ctx, ticket) = unsafe { (Context::new(ctx), ticket(ctx)) };
    handle(ctx, |handlers, _| (handlers.disconnected)(ticket));
}

/// The module's own context, for what is begun where no command runs.
static MODULE: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// The number of the timer that runs; 0 is none.
static TIMER: AtomicU64 = AtomicU64::new(0);

/// Starts the timer, and stops it first if it runs.
pub fn start_timer(after_ms: u64) {
    stop_timer();
    let after_ms = i64::try_from(after_ms).unwrap_or(i64::MAX);
    let ctx = MODULE.load(Ordering::Relaxed);
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
            api!(RedisModule_StopTimer(MODULE.load(Ordering::Relaxed), timer, null_mut()));
        },
    }
}

unsafe extern "C" fn fired(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // The server stops it by itself after this.
    TIMER.store(0, Ordering::Relaxed);
    // SAFETY: the server keeps the context during the callback.
    let ctx = unsafe { Context::new(ctx) };
    handle(ctx, |handlers, ctx| (handlers.fired)(ctx));
}

/// How many turns of the event loop have begun since they are counted.
static TURNS: AtomicU64 = AtomicU64::new(0);

static COUNTED: AtomicBool = AtomicBool::new(false);

/// A number that changes with every turn of the event loop, from 7.0 on and after [`count_turns`].
pub fn turn() -> u64 {
    TURNS.load(Ordering::Relaxed)
}

/// Has turns counted from now on. It costs something in every turn, so that servers where nobody ever waits need not pay
/// it. It is never ended: while another module handles an event, the server's list of subscribers must not shrink.
pub fn count_turns() {
    if COUNTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    let ctx = MODULE.load(Ordering::Relaxed);
    // SAFETY: the context is the one of the module; the function lives as long as it. A server that does not know the
    // event says so and does nothing.
    unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, Some(looped))) };
}

/// Before and after the server waits for something to do.
unsafe extern "C" fn looped(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    TURNS.fetch_add(1, Ordering::Relaxed);
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
    tick();
    handle(ctx, |handlers, _| {
        if clock::went_back() {
            // Timers live by the wall clock.
            (handlers.clock_went_back)();
        }
    });
}

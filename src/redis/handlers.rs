//! The functions of the module that the server's callbacks call, and the module's own context.

use super::api::{api, RawContext};
use super::context::{Context, KeyName};
use super::events::KeyChange;
use super::guard::guard;
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ptr::{null_mut, NonNull};

/// The number that the module gave to a waiting call.
pub type WaitNumber = u64;

/// The functions that the server's callbacks call.
pub struct Handlers {
    /// The server asks for the reply to a waiter. It may ask twice.
    pub answer: fn(Context, WaitNumber),
    /// The client of a waiter has disconnected, or the server has answered it.
    pub withdraw: fn(WaitNumber),
    /// The server has let a waiter's client go. The second argument says whether it cut the client off before the reply.
    pub forget: fn(WaitNumber, bool),
    /// The timer has fired.
    pub serve_timer: fn(Context),
    /// The wall clock was set back.
    pub restart_timer: fn(),
    /// Another client or module changed this key in the selected database.
    pub key_changed: fn(Context, KeyName, KeyChange),
    /// Any key may have changed: databases were emptied, swapped or loaded, or this server changed its role.
    pub all_changed: fn(),
    /// `answer` has panicked: replies with an error, so that the client does not hang.
    pub answer_after_panic: fn(Context, WaitNumber),
}

/// The handlers, from when the module is loaded until it is unloaded.
pub(super) static HANDLERS: UnderLock<Option<&'static Handlers>> = UnderLock::new(|| None);

/// Calls a handler, under the guard.
pub(super) fn handle(ctx: Option<Context>, call: impl FnOnce(&Handlers, Context)) {
    guard(ctx, || {
        if let (Some(handlers), Some(ctx)) = (HANDLERS.get(), ctx) {
            call(handlers, ctx);
        }
    });
}

/// Makes the callbacks call `handlers` from now on.
pub fn start(ctx: Context, handlers: &'static Handlers) {
    // SAFETY: the context is live.
    let raw = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.raw())) };
    drop(OWN_CONTEXT.replace(NonNull::new(raw).map(OwnContext)));
    HANDLERS.replace(Some(handlers));
}

/// A context that outlives the command in which it was created.
struct OwnContext(NonNull<raw::RedisModuleCtx>);

// SAFETY: the context belongs to no thread, and is used under the server's lock.
unsafe impl Send for OwnContext {}

impl Drop for OwnContext {
    fn drop(&mut self) {
        // SAFETY: created by `start`, and no longer used.
        unsafe { api!(RedisModule_FreeThreadSafeContext(self.0.as_ptr())) };
    }
}

/// The module's own context, for timers and events that are started outside of commands.
static OWN_CONTEXT: UnderLock<Option<OwnContext>> = UnderLock::new(|| None);

/// Returns the module's own context, which outlives all timers and subscriptions that are created with it.
pub(super) fn own_context() -> RawContext {
    OWN_CONTEXT.with(|own| own.as_ref().map_or(null_mut(), |own| own.0.as_ptr()))
}

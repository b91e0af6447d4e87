//! Blocked clients.
//!
//! A client is blocked on a key, with a reply callback that never replies, so that no signal of the server ends a wait. To
//! end the wait, the module stores the reply and calls RedisModule_UnblockClient. The server then calls the timeout
//! callback, which is the only place where a waiter gets its reply. This works on all servers.
//!
//! The key never exists. When a key is signalled, the server tries all clients that are blocked on it, so clients must not
//! be able to guess its name. It is in the slot of the limit's key, because a cluster node that loses a slot redirects the
//! clients that are blocked on keys in it.

use super::api::{api, RawContext, RawString, ERR, OK};
use super::call::Call;
use super::context::Context;
use super::guard::guard;
use super::text::OwnedString;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The number that the module gave to a waiting call.
pub type WaitNumber = u64;

/// The functions of the module that the server calls for a blocked client.
pub trait BlockedEvents {
    /// Replies to a waiter whose wait is over. The server may ask twice.
    fn answer(ctx: Context, wait: WaitNumber);

    /// Replies with an error after [`BlockedEvents::answer`] has panicked, so that the client does not hang.
    fn answer_after_panic(ctx: Context, wait: WaitNumber);

    /// The client of a waiter has disconnected, or the server has answered it.
    fn withdraw(wait: WaitNumber);

    /// The server has let a waiter's client go. `cut_off` says whether it did so before the reply.
    fn forget(wait: WaitNumber, cut_off: bool);
}

#[derive(Debug)]
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

// SAFETY: a handle belongs to no thread. The server accepts it in any thread.
unsafe impl Send for Blocked {}

impl Blocked {
    /// Blocks the client of `call`, which must allow that, on `key`.
    pub fn block<E: BlockedEvents>(call: &Call, key: &[u8], wait: WaitNumber) -> Option<Blocked> {
        let ctx = call.ctx.raw();
        let key = OwnedString::new(key);
        let mut keys = [key.raw()];
        // SAFETY: the context is a command's; the server keeps its own reference of the key; the private data is a
        // number and never followed.
        let blocked = unsafe {
            api!(RedisModule_BlockClientOnKeys(
                ctx,
                Some(not_yet),
                Some(answer::<E>),
                Some(forget::<E>),
                0,
                keys.as_mut_ptr(),
                1,
                wait as *mut c_void,
            ))
        };
        if blocked.is_null() {
            return None;
        }
        // SAFETY: the client was just blocked.
        unsafe { api!(RedisModule_SetDisconnectCallback(blocked, Some(disconnected::<E>))) };
        Some(Blocked(blocked))
    }

    /// Ends the wait. The server asks for the reply now or soon.
    pub fn end(self) {
        // SAFETY: the client is still blocked: its only handle is dropped when the server reports that it ended the wait.
        unsafe { api!(RedisModule_UnblockClient(self.0, null_mut())) };
    }
}

unsafe extern "C" fn not_yet(_ctx: RawContext, _argv: *mut RawString, _argc: c_int) -> c_int {
    ERR
}

/// Returns the number that the module gave to the waiting call.
///
/// # Safety
/// `ctx` is the context of a callback of a blocked client.
unsafe fn wait_number(ctx: RawContext) -> WaitNumber {
    // SAFETY: the caller's promise. The private data is the number.
    unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)) as WaitNumber }
}

unsafe extern "C" fn answer<E: BlockedEvents>(
    ctx: RawContext,
    _argv: *mut RawString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, wait) = unsafe { (Context::new(ctx), wait_number(ctx)) };
    let Some(ctx) = ctx else { return OK };
    if guard(Some(ctx), || E::answer(ctx, wait)).is_none() {
        guard(Some(ctx), || E::answer_after_panic(ctx, wait));
    }
    OK
}

unsafe extern "C" fn forget<E: BlockedEvents>(ctx: RawContext, wait: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, cut_off) =
        unsafe { (Context::new(ctx), api!(RedisModule_BlockedClientDisconnected(ctx)) != 0) };
    guard(ctx, || E::forget(wait as WaitNumber, cut_off));
}

unsafe extern "C" fn disconnected<E: BlockedEvents>(
    ctx: RawContext,
    _blocked: *mut raw::RedisModuleBlockedClient,
) {
    // SAFETY: the server keeps the context during the callback, and gives it the private data.
    let (ctx, wait) = unsafe { (Context::new(ctx), wait_number(ctx)) };
    guard(ctx, || E::withdraw(wait));
}

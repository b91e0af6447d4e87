//! Blocked clients.
//!
//! A client is blocked on a key, with a reply callback that never replies, so that signals of the server wake nobody. To end
//! the wait, the module stores the reply and calls RedisModule_UnblockClient. The server then calls the timeout callback,
//! which is the only place where a waiter gets its reply. This works on all servers.
//!
//! The key never exists. When a key is signalled, the server tries all clients that are blocked on it, so clients must not
//! be able to guess its name. It is in the slot of the limit's key, because a cluster node that loses a slot redirects the
//! clients that are blocked on keys in it.

use super::api::{api, RawContext, RawString, ERR, OK};
use super::call::Call;
use super::context::Context;
use super::guard::guard;
use super::handlers::{handle, WaitNumber, HANDLERS};
use super::text::OwnedString;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// A blocked client.
#[derive(Debug)]
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

// SAFETY: a handle belongs to no thread. The server accepts it in any thread.
unsafe impl Send for Blocked {}

impl Blocked {
    /// Blocks the client of `call`, which must allow that, on `key`.
    pub fn block(call: &Call, key: &[u8], wait: WaitNumber) -> Option<Blocked> {
        let ctx = call.ctx.raw();
        let key = OwnedString::new(key);
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
                wait as *mut c_void,
            ))
        };
        if blocked.is_null() {
            return None;
        }
        // SAFETY: the client was just blocked.
        unsafe { api!(RedisModule_SetDisconnectCallback(blocked, Some(disconnected))) };
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

unsafe extern "C" fn answer(ctx: RawContext, _argv: *mut RawString, _argc: c_int) -> c_int {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, wait) = unsafe { (Context::new(ctx), wait_number(ctx)) };
    let (Some(ctx), Some(handlers)) = (ctx, guard(ctx, || HANDLERS.get()).flatten()) else {
        return OK;
    };
    if guard(Some(ctx), || (handlers.answer)(ctx, wait)).is_none() {
        guard(Some(ctx), || (handlers.answer_after_panic)(ctx, wait));
    }
    OK
}

unsafe extern "C" fn forget(ctx: RawContext, wait: *mut c_void) {
    // SAFETY: the server keeps the context during the callback.
    let (ctx, cut_off) =
        unsafe { (Context::new(ctx), api!(RedisModule_BlockedClientDisconnected(ctx)) != 0) };
    handle(ctx, |handlers, _| (handlers.forget)(wait as WaitNumber, cut_off));
}

unsafe extern "C" fn disconnected(ctx: RawContext, _blocked: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server keeps the context during the callback, and gives it the private data.
    let (ctx, wait) = unsafe { (Context::new(ctx), wait_number(ctx)) };
    handle(ctx, |handlers, _| (handlers.withdraw)(wait));
}

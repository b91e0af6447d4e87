//! Whether the server would accept a write now. It checks that itself for commands of clients, but not for what a
//! module does in a timer, nor for what a command without the flag deny-oom writes beside what it was sent for.

use super::api::{api, optional};
use super::call::Context;
use redis_module::raw;
use std::ffi::CStr;

/// The first server with the checks of RedisModule_Call: 7.0.0.
const CHECKS_SINCE: i32 = 0x0007_0000;

/// What the server answers to a write that it does not accept. Without the flag "E" Valkey 9.1 crashes on these.
const REFUSALS: [&[u8]; 4] = [b"NOREPLICAS", b"MISCONF", b"OOM", b"READONLY"];

/// Whether a write would be accepted: this is a master, no CLIENT PAUSE or failover is in force, memory is not short,
/// and (from 7.0) the server answers neither NOREPLICAS nor MISCONF.
pub fn accepts_writes(ctx: Context) -> bool {
    // SAFETY: the context is live.
    let flags = unsafe { api!(RedisModule_GetContextFlags(ctx.raw())) }.unsigned_abs();
    if flags & raw::REDISMODULE_CTX_FLAGS_MASTER == 0 || ctx.is_paused() {
        return false;
    }
    let is_full = flags & raw::REDISMODULE_CTX_FLAGS_OOM != 0;
    if is_full && flags & raw::REDISMODULE_CTX_FLAGS_EVICT == 0 {
        return false;
    }
    // SAFETY: takes nothing.
    let version = optional!(RedisModule_GetServerVersion).map_or(0, |version| unsafe { version() });
    let has_checks = version >= CHECKS_SINCE;
    // Where the server evicts, it is short of memory only if that failed when the last command came ("M").
    !has_checks || is_allowed(ctx, if is_full { c"SMEbcb" } else { c"SEbcb" })
}

/// Whether the server allows a command with the flags write and deny-oom. It writes nothing: an empty string set into
/// the empty key.
fn is_allowed(ctx: Context, format: &CStr) -> bool {
    let (command, empty) = (c"SETRANGE".as_ptr(), c"".as_ptr());
    // SAFETY: the context is live; "b" takes bytes and their number, "c" a text that ends in NUL.
    let reply = unsafe {
        api!(RedisModule_Call(
            ctx.raw(),
            command,
            format.as_ptr(),
            empty,
            0usize,
            c"0".as_ptr(),
            empty,
            0usize,
        ))
    };
    if reply.is_null() {
        return true;
    }
    let mut len = 0;
    // SAFETY: the reply is ours; the text of an error lives as long as it, and what is no text is null.
    unsafe {
        let text = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
        let text = match text.is_null() {
            true => &[],
            false => std::slice::from_raw_parts(text.cast::<u8>(), len),
        };
        // Another error may come from the key: in a cluster its slot may be another node's.
        let is_refused = REFUSALS.iter().any(|code| text.starts_with(code));
        api!(RedisModule_FreeCallReply(reply));
        !is_refused
    }
}

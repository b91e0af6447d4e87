//! Whether the server would accept a write now. It checks that itself for commands of clients, but not for what a
//! module does in a timer, nor for what a command without the flag deny-oom writes beside what it was sent for.

use super::api::api;
use super::call::Context;
use redis_module::raw;
use std::ffi::CStr;

/// The first server with the checks of RedisModule_Call: 7.0.0.
const CHECKS_SINCE: i32 = 0x0007_0000;

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
    // SAFETY: set once by RedisModule_Init; takes nothing.
    let has_checks = unsafe {
        raw::RedisModule_GetServerVersion.is_some_and(|version| version() >= CHECKS_SINCE)
    };
    // Where the server evicts, it is short of memory only if that failed when the last command came ("M").
    !has_checks || is_allowed(ctx, if is_full { c"SMbcb" } else { c"Sbcb" })
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
        // Another reason is the key: its slot may be another node's.
        let why = std::io::Error::last_os_error().raw_os_error();
        return why != Some(libc::ESPIPE) && why != Some(libc::ENOSPC);
    }
    // SAFETY: the reply is ours.
    unsafe { api!(RedisModule_FreeCallReply(reply)) };
    true
}

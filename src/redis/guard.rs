//! The guard around all callbacks of the server, and the server's log.

use super::api::optional;
use super::context::Context;
use std::ffi::CStr;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;

/// The line that is logged when [`guard`] catches a panic.
const PANIC_LINE: &CStr = c"redis-ratelimit: internal error, please report it";

/// Runs `body` for an `extern "C"` function that the server called. Returns `None` if it panics: the panic is logged and
/// does not unwind into C.
pub(super) fn guard<T>(ctx: Option<Context>, body: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(body)).ok();
    if result.is_none() {
        log(ctx, c"warning", PANIC_LINE);
    }
    result
}

/// Writes a line to the server's log at a level such as `warning`. Without a context the server does not name the module.
pub fn log(ctx: Option<Context>, level: &CStr, line: &CStr) {
    let Some(log) = optional!(RedisModule_Log) else { return };
    let ctx = ctx.map_or(null_mut(), Context::raw);
    // SAFETY: the context is live, or null, which the server allows here. The texts end in NUL, and "%s" takes one of them.
    unsafe { log(ctx, level.as_ptr(), c"%s".as_ptr(), line.as_ptr()) }
}

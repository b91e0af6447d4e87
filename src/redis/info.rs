//! INFO ratelimit.

use super::api::api;
use super::call::{guard, Context};
use crate::commands::waiting;
use crate::{stats, COMMANDS};
use redis_module::raw;
use std::ffi::{CStr, CString};
use std::os::raw::c_int;
use std::ptr::null_mut;

/// Tells the server whom to ask for the section.
pub(super) fn register(ctx: Context) {
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(report))) };
}

unsafe extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // SAFETY: without a context log lines go under the name "module"; the server allows that.
    let ctx = unsafe { Context::new(null_mut()) };
    guard(ctx, || {
        // SAFETY: the server keeps `info` while this callback runs.
        if unsafe { api!(RedisModule_InfoAddSection(info, c"".as_ptr())) }
            != raw::REDISMODULE_OK as c_int
        {
            return;
        }
        for command in &COMMANDS {
            let name = command.name.to_string_lossy();
            let name = name.trim_start_matches("rl.");
            for (what, counter) in [
                ("allowed", &command.stats.allowed),
                ("denied", &command.stats.denied),
                ("errors", &command.stats.errors),
            ] {
                if let Ok(field) = CString::new(format!("{name}_{what}")) {
                    add(info, &field, counter.get());
                }
            }
        }
        // A server that dies while the lines are locked must not wait for them.
        if for_crash_report == 0 {
            add(info, c"waiting", waiting::waiting());
            add(info, c"waiting_oldest_ms", waiting::oldest_wait_ms());
        }
        add(info, c"waiting_longest_turn_us", waiting::longest_turn_us());
        add(info, c"waited_granted", stats::WAITED_GRANTED.get());
        add(info, c"waited_timed_out", stats::WAITED_TIMED_OUT.get());
        add(info, c"reservations_applied", stats::APPLIED.get());
        add(info, c"reservations_released", stats::RELEASED.get());
        add(info, c"reservations_lapsed", stats::LAPSED.get());
    });
}

fn add(info: *mut raw::RedisModuleInfoCtx, field: &CStr, value: u64) {
    // SAFETY: `info` is live, see `report`; the name is copied.
    unsafe { api!(RedisModule_InfoAddFieldULongLong(info, field.as_ptr(), value)) };
}

//! Lines in the server's log.

use crate::redis::context::Context;
use crate::redis::guard::log;
use std::ffi::{CStr, CString};

/// The beginning of every line.
pub const PREFIX: &str = "redis-ratelimit: ";

pub fn log_warning(ctx: Context, text: &str) {
    log_line(ctx, c"warning", text);
}

pub fn log_notice(ctx: Context, text: &str) {
    log_line(ctx, c"notice", text);
}

fn log_line(ctx: Context, level: &CStr, text: &str) {
    // No text of the module contains a NUL.
    if let Ok(line) = CString::new([PREFIX, text].concat()) {
        log(Some(ctx), level, &line);
    }
}

//! Lines in the server's log.

use crate::redis::context::Context;
use crate::redis::guard::{note, warn};
use std::ffi::CString;

/// What every line begins with.
pub const PREFIX: &str = "redis-ratelimit: ";

/// Writes a line at level "warning", after [`PREFIX`].
pub fn log_warning(ctx: Context, text: &str) {
    if let Some(line) = line(text) {
        warn(Some(ctx), &line);
    }
}

/// Writes a line at level "notice", after [`PREFIX`].
pub fn log_notice(ctx: Context, text: &str) {
    if let Some(line) = line(text) {
        note(ctx, &line);
    }
}

/// A line as the server takes it; `None` for a text with a NUL, which no text of the module has.
fn line(text: &str) -> Option<CString> {
    CString::new([PREFIX, text].concat()).ok()
}

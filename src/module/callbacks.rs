//! What is done when the server calls back for clients that wait, and for timers.

use super::registration::answer;
use crate::blocking;
use crate::redis::handlers::WaitHandlers;
use commands::error::Error;

/// What the server's callbacks call.
pub static HANDLERS: WaitHandlers = WaitHandlers {
    answer,
    disconnected: blocking::disconnected,
    forget: blocking::forget,
    fired: blocking::fired,
    clock_went_back: blocking::clock_went_back,
    failed: |ctx| ctx.reply_error(Error::internal().text().as_bytes()),
};

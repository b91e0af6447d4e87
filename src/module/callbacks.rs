//! What is done when the server calls back for clients that wait, and for timers.

use super::commands::answer_waiter;
use crate::commands::waiting;
use crate::error::Error;
use crate::redis::blocking::Handlers;

/// What the server's callbacks call.
pub static HANDLERS: Handlers = Handlers {
    answer: answer_waiter,
    disconnected: waiting::disconnected,
    forget: waiting::forget,
    fired: waiting::fired,
    clock_went_back: waiting::clock_stepped_back,
    failed: |ctx| ctx.reply_error(Error::internal().text().as_bytes()),
};

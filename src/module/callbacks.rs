//! What is done when the server calls back for clients that wait, and for timers.

use super::registration::answer;
use crate::blocking;
use crate::redis::handlers::WaitHandlers;
use commands::error::Error;

/// What the server's callbacks call.
pub static HANDLERS: WaitHandlers = WaitHandlers {
    answer,
    withdraw: blocking::withdraw,
    forget: blocking::forget,
    serve_timer: blocking::serve_timer,
    restart_timer: blocking::restart_timer,
    reply_internal_error: |ctx| ctx.reply_error(Error::internal().text().as_bytes()),
};

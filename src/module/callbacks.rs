//! What is done when the server calls back for clients that wait, and for timers.

use super::commands::answer_waiter;
use crate::commands::waiting;
use crate::error::Error;
use crate::redis::blocking::{set_callbacks, Callbacks};

/// Hands the callbacks to the server's side.
pub fn set() {
    set_callbacks(Callbacks {
        answer: answer_waiter,
        failed: |ctx| ctx.reply_error(Error::Internal.text().as_bytes()),
        forget: waiting::forget,
        disconnected: waiting::disconnected,
        fired: waiting::tick,
        clock_went_back: waiting::clock_went_back,
    });
}

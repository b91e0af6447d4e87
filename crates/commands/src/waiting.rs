//! Calls that wait (BLOCK): the head of a line is tried. The lines are those of [`engine::line`].

use crate::decide::{decide_and_write, Keyspace};
use crate::error::Error;
use engine::decide::Mode;
use engine::decision::Decision;
use engine::line::{LineId, LineTypes, Lines, Ticket};
use engine::request::Request;

/// A server with lines, as far as trying a head needs it.
pub trait WaitingServer: Keyspace {
    /// The types of its lines.
    type Types: LineTypes;

    /// Makes a transition of the lines, which is given their time.
    fn change<T>(&self, transition: impl FnOnce(&mut Lines<Self::Types>, u64) -> T) -> T;

    /// Returns how many microseconds ago the time of the call was read.
    fn age_us(&self, key: Self::Key) -> u64;

    /// Ends a wait with this result.
    fn end(
        &self,
        ticket: Ticket,
        key: Self::Key,
        request: &Request,
        result: Result<Decision, Error>,
    );
}

/// Tries the call at the head of a line, on its key. If it is denied it goes on waiting, unless its time `is_overdue`.
/// Returns whether its wait is over.
pub fn try_head<S: WaitingServer>(
    server: &S,
    line: LineId,
    (ticket, request): (Ticket, &Request),
    key: S::Key,
    is_overdue: bool,
) -> bool {
    let mode = if is_overdue { Mode::Final } else { Mode::Try };
    match decide_and_write(server, key, request, false, mode) {
        Ok(decision) if !decision.allowed() && !is_overdue => {
            let wait_us = decision.verdict.retry_after_us();
            let wait_us = wait_us.map(|wait_us| wait_us.saturating_sub(server.age_us(key)));
            server.change(|lines, now_us| lines.record_denial(line, wait_us, now_us));
            false
        }
        // The key cannot be written just now. The call goes on waiting, even past its deadline.
        Err(Error::InUse) => {
            server.change(|lines, now_us| lines.postpone(line, now_us));
            false
        }
        result => {
            server.end(ticket, key, request, result);
            true
        }
    }
}

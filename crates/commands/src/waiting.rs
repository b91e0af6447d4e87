//! Calls that wait (BLOCK): the head of a line is tried. The lines are those of [`engine::line`].

use crate::attempt::AttemptReply;
use crate::error::Error;
use engine::attempt::AttemptTerms;
use engine::judge::Mode;
use engine::line::{LineId, LineTypes, Lines, Ticket};
use engine::request::Request;

/// A server with lines, as far as trying a head needs it. `K` names a key at the time of an attempt.
pub trait WaitingServer<K: Copy> {
    /// The types of its lines.
    type Types: LineTypes;

    /// Makes a transition of the lines, which is given their time.
    fn change<T>(&self, transition: impl FnOnce(&mut Lines<Self::Types>, u64) -> T) -> T;
    /// Tries a request on a key.
    fn attempt(
        &self,
        key: K,
        request: &Request,
        terms: AttemptTerms,
    ) -> Result<AttemptReply, Error>;
    /// How many microseconds ago the time of the attempt was.
    fn age_us(&self, key: K) -> u64;
    /// Ends a wait with what its last attempt gave.
    fn end(&self, ticket: Ticket, key: K, request: &Request, tried: Result<AttemptReply, Error>);
}

/// Tries the call at the head of a line, on its key. If it is denied it goes on waiting, unless its time `is_overdue`.
/// Returns whether its wait is over.
pub fn try_head<K: Copy>(
    server: &impl WaitingServer<K>,
    line: LineId,
    (ticket, request): (Ticket, &Request),
    key: K,
    is_overdue: bool,
) -> bool {
    let mode = if is_overdue { Mode::Final } else { Mode::Try };
    match server.attempt(key, request, AttemptTerms { barred: false, mode }) {
        Ok(tried) if !tried.allowed() && !is_overdue => {
            let wait_us = tried.reply.decision.verdict.retry_after_us();
            let wait_us = wait_us.map(|wait_us| wait_us.saturating_sub(server.age_us(key)));
            server.change(|lines, now_us| lines.denied(line, wait_us, now_us));
            false
        }
        // It waits on, also past its time: the server knows no better.
        Err(Error::InUse) => {
            server.change(|lines, now_us| lines.postpone(line, now_us));
            false
        }
        tried => {
            server.end(ticket, key, request, tried);
            true
        }
    }
}

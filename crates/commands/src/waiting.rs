//! Ends the waits of calls that wait (BLOCK): the head of a line is granted or goes on waiting, and a call whose time is up
//! is denied. The lines are those of [`engine::line`].

use crate::decide::{decide, note, Keyspace};
use crate::error::Error;
use engine::line::{LineId, LineStep, LineTypes, Lines, Ticket};
use engine::store::Access;
use engine::{Decision, Mode, Request, Verdict};

/// The reply that ended a wait, and its time.
#[derive(Clone, Copy)]
pub struct TimedReply {
    /// The decision, or the error to reply with.
    pub result: Result<Decision, Error>,
    /// Unix microseconds.
    pub at_us: u64,
}

/// A server with lines of waiting calls.
pub trait WaitingServer: Keyspace {
    /// The types of its lines.
    type Types: LineTypes;

    /// Makes a transition of the lines, which receives the time of their clock.
    fn change<T>(&self, transition: impl FnOnce(&mut Lines<Self::Types>, u64) -> T) -> T;

    /// Returns the request of a call that waits.
    fn request(call: &<Self::Types as LineTypes>::Call) -> &Request;

    /// Returns the microseconds since the time of the call was read.
    fn age_us(&self, key: Self::Key) -> u64;

    /// Counts a wait that ended with a grant or without one, and after a grant marks the key as used.
    fn wait_ended(&self, key: Self::Key, granted: bool);

    /// Removes a call from its line, and passes it the reply that ends its wait.
    fn deliver(&self, ticket: Ticket, key: Self::Key, result: Result<Decision, Error>);

    /// Makes a write that was left to do when a wait ended. If it is impossible at the moment, adds it to the line again and
    /// returns false.
    fn write(&self, line: LineId, key: Self::Key, write: <Self::Types as LineTypes>::Write)
        -> bool;
}

/// Does the next step in a line that is due at `due_us`, on the key of the line. Without `may_write` it only ends waits.
/// Returns false if nothing is due, or if the line has to wait because its key cannot be written.
pub fn do_next_step<S: WaitingServer>(
    server: &S,
    line: LineId,
    key: S::Key,
    may_write: bool,
    due_us: u64,
) -> bool {
    match server.change(|lines, _| lines.next_step(line, may_write, due_us)) {
        None => false,
        Some(LineStep::Write(write)) => server.write(line, key, write),
        Some(LineStep::Try { ticket, call, is_overdue }) => {
            let head = (ticket, S::request(&call));
            let mode = if is_overdue { Mode::Final } else { Mode::Try };
            let ended = try_head(server, line, head, key, server.store(key, Access::Write), mode);
            // An overdue head that could not be tried would be next again, although its line was postponed.
            ended || !is_overdue
        }
        Some(LineStep::Dismiss { ticket, call }) => {
            let deny_in = |mode| deny(server, key, S::request(&call), mode);
            let mut denied = deny_in(if may_write { Mode::Final } else { Mode::Look });
            if denied == Err(Error::InUse) {
                denied = deny_in(Mode::Look);
            }
            server.deliver(ticket, key, denied);
            true
        }
    }
}

/// Tries the call at the head of a line, on its key, which `store` opens for writing. If it is denied it goes on waiting in
/// [`Mode::Try`], but not in [`Mode::Final`], because its time is up. Returns whether its wait is over.
pub fn try_head<S: WaitingServer>(
    server: &S,
    line: LineId,
    (ticket, request): (Ticket, &Request),
    key: S::Key,
    store: S::Store<'_>,
    mode: Mode,
) -> bool {
    match decide(server, store, request, false, mode) {
        Ok(Decision { verdict: Verdict::Denied { wait_us, .. }, .. }) if mode == Mode::Try => {
            let wait_us = wait_us.saturating_sub(server.age_us(key));
            server.change(|lines, now_us| lines.retry_head_after(line, wait_us, now_us));
            return false;
        }
        // The key cannot be written at the moment. The call goes on waiting, even past its deadline.
        Err(Error::InUse) => {
            server.change(|lines, now_us| lines.postpone(line, now_us));
            return false;
        }
        result => {
            if let Ok(decision) = &result {
                note(server, key, request, decision);
                server.wait_ended(key, decision.allowed());
            }
            server.deliver(ticket, key, result);
        }
    }
    true
}

/// Denies a call that stops waiting without another try: its time is up and others are before it in line, or the server has
/// ended its wait. It is decided as barred, in [`Mode::Final`], or in [`Mode::Look`] if nothing can be written.
///
/// # Errors
///
/// Those of [`decide`].
pub fn deny<S: WaitingServer>(
    server: &S,
    key: S::Key,
    request: &Request,
    mode: Mode,
) -> Result<Decision, Error> {
    let denied = decide(server, server.store(key, mode.access()), request, true, mode);
    if let Ok(decision) = &denied {
        note(server, key, request, decision);
        server.wait_ended(key, false);
    }
    denied
}

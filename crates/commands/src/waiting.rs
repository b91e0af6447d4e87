//! Ends the waits of calls that wait (BLOCK): the head of a line is granted or goes on waiting, and a call whose time is up
//! is denied. The lines are those of [`engine::line`].

use crate::decide::{decide, note, Keyspace};
use crate::error::Error;
use engine::line::{LineId, LineTypes, Lines, Ticket};
use engine::{Decision, Mode, Place, Request};

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

    /// Returns the microseconds since the time of the call was read.
    fn age_us(&self, key: Self::Key) -> u64;

    /// Counts a wait that ended with a grant or without one, and after a grant marks the key as used.
    fn wait_ended(&self, key: Self::Key, granted: bool);

    /// Removes a call from its line, and passes it the reply that ends its wait.
    fn deliver(&self, ticket: Ticket, key: Self::Key, result: Result<Decision, Error>);
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
    match decide(server, store, request, Place::default(), mode) {
        Ok(decision) if !decision.allowed() && mode == Mode::Try => {
            let wait_us = decision.verdict.retry_after_us();
            let wait_us = wait_us.map(|wait_us| wait_us.saturating_sub(server.age_us(key)));
            server.change(|lines, now_us| lines.record_denial(line, wait_us, now_us));
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
    let place = Place { barred: true, ..Place::default() };
    let denied = decide(server, server.store(key, mode.access()), request, place, mode);
    if let Ok(decision) = &denied {
        note(server, key, request, decision);
        server.wait_ended(key, false);
    }
    denied
}

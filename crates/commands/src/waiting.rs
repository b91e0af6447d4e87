//! Ends the waits of calls that wait (BLOCK): the head of a line is granted or goes on waiting, and a call whose time is up
//! is denied. The lines are those of [`engine::line`].

use crate::decide::{decide, note};
use crate::error::Error;
use crate::keyspace::{EmptiedOf, Keyspace};
use crate::reply::TakeCall;
use engine::line::{LineId, LineStep, LineTypes, Lines, Ticket};
use engine::store::Access;
use engine::{DbKey, Decision, Mode, Verdict};

/// The reply that ended a wait, and its time.
#[derive(Clone, Copy)]
pub struct TimedReply {
    /// The decision, or the error to reply with.
    pub result: Result<Decision, Error>,
    /// Unix microseconds.
    pub at_us: u64,
}

/// A keyspace with lines of waiting calls.
pub trait WaitingKeyspace: Keyspace {
    type Types: LineTypes;

    /// Makes a transition of the lines, which receives the time of their clock.
    fn change<T>(&self, transition: impl FnOnce(&mut Lines<Self::Types>, u64) -> T) -> T;

    /// Reads the lines, which know the key by the name that `read` receives. Returns the default if there are no lines.
    fn read_lines<T: Default>(
        &self,
        key: Self::Key,
        read: impl FnOnce(&Lines<Self::Types>, DbKey) -> T,
    ) -> T;

    /// Grants available capacity to the waiters on the key. If a call has emptied the key, the first waiter goes on with it,
    /// and without a grant it is deleted.
    fn wake<'k>(&self, key: Self::Key, emptied: Option<EmptiedOf<'k, Self>>)
    where
        Self: 'k;

    /// Returns what a call that waits asks for.
    fn take_call(call: &<Self::Types as LineTypes>::Call) -> &TakeCall;

    /// Returns the microseconds since the time of the call was read.
    fn age_us(&self, key: Self::Key) -> u64;

    /// Returns whether the server accepts a write to the key now. This is asked only before a write, because the question
    /// shows in the server's statistics.
    fn accepts_write(&self, _key: Self::Key) -> bool {
        true
    }

    /// Counts a wait that ended with a grant or without one, and after a grant marks the key as used.
    fn note_wait(&self, key: Self::Key, granted: bool);

    /// Removes a call from its line, and passes it the reply that ends its wait.
    fn deliver(&self, ticket: Ticket, key: Self::Key, result: Result<Decision, Error>);

    /// Makes a write that was left to do when a wait ended. If the key cannot be written at the moment, the line waits with
    /// the write.
    fn write(&self, line: LineId, key: Self::Key, write: <Self::Types as LineTypes>::Write)
        -> Step;
}

/// What follows a step in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Another one, which may be due.
    Again,
    /// Nothing for now: nothing is due, or the key cannot be written at the moment. The line is scheduled for later.
    Later,
}

/// What became of the head of a line that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Tried {
    /// Its wait is over.
    Over,
    /// It goes on waiting: it was denied, or its key cannot be written at the moment.
    Waits,
}

/// The maximum number of steps in a line before it is the next line's turn.
const STEPS_IN_A_ROW: usize = 8;

/// Takes the steps in a line that are due at `due_us`, at most `STEPS_IN_A_ROW`, and goes on after each only while `has_time`
/// says so. The other arguments are those of [`take_step`].
pub fn take_steps<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    key: S::Key,
    may_write: bool,
    due_us: u64,
    has_time: impl Fn() -> bool,
) {
    for _ in 0..STEPS_IN_A_ROW {
        let step = take_step(keyspace, line, key, may_write, due_us);
        if step == Step::Later || !has_time() {
            return;
        }
    }
}

/// Takes the next step in a line that is due at `due_us`, on the key of the line. Without `may_write` it only ends waits.
pub fn take_step<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    key: S::Key,
    may_write: bool,
    due_us: u64,
) -> Step {
    match keyspace.change(|lines, _| lines.next_step(line, may_write, due_us)) {
        None => Step::Later,
        Some(LineStep::Write(write)) => keyspace.write(line, key, write),
        Some(LineStep::Try { ticket, call, is_overdue }) => {
            let head = (ticket, S::take_call(&call));
            let mode = if is_overdue { Mode::Final } else { Mode::Try };
            let store = keyspace.store(key, Access::Write);
            match try_head(keyspace, line, head, key, store, mode) {
                // It would be the next step again, although its line was postponed: its key cannot be written.
                Tried::Waits if is_overdue => Step::Later,
                // Waiters behind the head may be overdue.
                Tried::Waits | Tried::Over => Step::Again,
            }
        }
        Some(LineStep::Dismiss { ticket, call }) => {
            let deny_in = |mode| deny(keyspace, key, S::take_call(&call), mode);
            let mut denied = deny_in(if may_write { Mode::Final } else { Mode::Look });
            if denied == Err(Error::InUse) {
                denied = deny_in(Mode::Look);
            }
            keyspace.deliver(ticket, key, denied);
            Step::Again
        }
    }
}

/// Tries the head of a line on the key, and after each grant the next head, while `has_time` says so. `open` returns the key,
/// to be opened for writing.
pub fn try_heads<'k, S: WaitingKeyspace>(
    keyspace: &'k S,
    line: LineId,
    key: S::Key,
    mut open: impl FnMut() -> S::Store<'k>,
    has_time: impl Fn() -> bool,
) {
    let head = || keyspace.read_lines(key, |lines, _| lines.head(line)).filter(|_| has_time());
    while let Some((ticket, call)) = head() {
        // Commands do not end waits that are overdue: by the time of the command, which may lie some time back, a waiter
        // could be denied although enough is available by now.
        let head = (ticket, S::take_call(&call));
        if try_head(keyspace, line, head, key, open(), Mode::Try) == Tried::Waits {
            return;
        }
    }
}

/// Tries the call at the head of a line, on its key, which `store` opens for writing. If it is denied it goes on waiting in
/// [`Mode::Try`], but not in [`Mode::Final`], because its time is up.
fn try_head<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    (ticket, call): (Ticket, &TakeCall),
    key: S::Key,
    store: S::Store<'_>,
    mode: Mode,
) -> Tried {
    match decide(keyspace, store, &call.request, false, mode, || keyspace.accepts_write(key)) {
        Ok(Decision { verdict: Verdict::Denied { wait_us, .. }, .. }) if mode == Mode::Try => {
            let wait_us = wait_us.saturating_sub(keyspace.age_us(key));
            keyspace.change(|lines, now_us| lines.retry_head_after(line, wait_us, now_us));
            Tried::Waits
        }
        // The key cannot be written at the moment. The call goes on waiting, even past its deadline.
        Err(Error::InUse) => {
            keyspace.change(|lines, now_us| lines.postpone(line, now_us));
            Tried::Waits
        }
        result => {
            if let Ok(decision) = &result {
                note(keyspace, key, call, decision);
                keyspace.note_wait(key, decision.allowed());
            }
            keyspace.deliver(ticket, key, result);
            Tried::Over
        }
    }
}

/// Denies a call that stops waiting without another try: its time is up and others are before it in line, or the server has
/// ended its wait. It is decided as barred, in [`Mode::Final`], or in [`Mode::Look`] if nothing can be written.
///
/// # Errors
///
/// Those of [`decide`].
pub fn deny<S: WaitingKeyspace>(
    keyspace: &S,
    key: S::Key,
    call: &TakeCall,
    mode: Mode,
) -> Result<Decision, Error> {
    let (store, request) = (keyspace.store(key, mode.access()), &call.request);
    let denied = decide(keyspace, store, request, true, mode, || keyspace.accepts_write(key));
    if let Ok(decision) = &denied {
        note(keyspace, key, call, decision);
        keyspace.note_wait(key, false);
    }
    denied
}

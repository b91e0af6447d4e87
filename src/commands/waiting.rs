//! BLOCK: calls that wait in the server, for each key in the order of LEAVE and then of arrival.
//!
//! Only the head of a line is ever tried: by every RL.* command that may write to its key, before that command takes
//! and after it gave back, and by a timer at the next moment that matters. That is when the head could have what it asks
//! for, when somebody's time is up, and at least every [`engine::line::POLL_US`], as nothing tells of other
//! changes to the key. A grant is charged in the context of whoever tries, then the client is unblocked.
//!
//! ```text
//! serve -> join -> end -> answer -> forget
//!          |       |      |         the server has let the client go; a grant that it was not told is given back
//!          |       |      the server asks what to reply
//!          |       granted, refused with an error, or its time is up
//!          a place in the line
//! ```
//!
//! CLIENT UNBLOCK leads from join to answer. A client that is gone, or that the server sent elsewhere, goes from there
//! to forget, by way of [`disconnected`].
//!
//! The lines themselves are in [`engine::line`]: it says what to do next, and this file does it.

use super::attempt::{attempt, give_back, Attempt, Terms};
use super::lines::{self, Outcome, Turn, Waiting, Write};
use super::policies::Ended;
use super::{observe, reply, spot};
use crate::answer::Answer;
use crate::config;
use crate::error::Error;
use crate::redis::acceptance::{accepts_write_to, accepts_writes, Acceptance};
use crate::redis::blocking::{Blocked, ClientId};
use crate::redis::call::{Call, CommandNumber};
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::key::touch;
use crate::redis::text::OwnedString;
use crate::state::Spot;
use crate::stats::{self, Replied};
use engine::judge::Mode;
use engine::line::{Cause, LineId, Place, Reply, Step, Ticket};
use engine::request::Request;
use std::sync::atomic::{AtomicU64, Ordering};

pub use super::lines::{clock_stepped_back, unload, waiting};

/// So many steps are made in a line before it is another line's turn.
const STEPS_IN_A_ROW: usize = 8;

/// Carries out a call of a taking command: answers it, or makes it wait.
pub fn serve(call: &Call, request: &Request, block_ms: Option<u64>) -> Result<Replied, Error> {
    let spot = spot(call)?;
    let takes = request.takes();
    if takes {
        wake_key(spot);
    }
    let barred = takes && is_barred(spot, request.leave());
    if request.id().is_some_and(|id| is_waiting(spot, id)) {
        return Err(Error::Duplicate);
    }
    let block_ms = block_ms.filter(|_| takes && !request.shadow && spot.ctx.may_block());
    // A denial behind a line is not counted: that would take from those who wait. A denial under SHADOW is not counted:
    // the caller does not see it.
    let counts = block_ms.is_none() && !barred && !request.shadow;
    let mode = if counts { Mode::Final } else { Mode::Try };
    let mut tried = attempt(spot, request, Terms { barred, mode })?;
    if let Some(ms) = block_ms.filter(|_| !tried.allowed()) {
        let last_us =
            if ms == 0 { u64::MAX } else { spot.now_us.saturating_add(ms.saturating_mul(1_000)) };
        if tried.alone_us.is_some_and(|alone_us| alone_us <= last_us) {
            return join(call, spot, *request, ms, tried.answer.decision.verdict.retry_after_us());
        }
        if request.count_denied && !barred {
            tried = attempt(spot, request, Terms { barred, mode: Mode::Final })?;
        }
    }
    if !takes {
        // It may have given back. A call that takes has been barred, or nobody waits before it.
        wake_key(spot);
    }
    let ended = tried.end(request);
    observe::note(spot, request, ended);
    Ok(reply::answer(spot.ctx, &tried.answer))
}

/// Whether somebody stands before a call that comes to the key now with this LEAVE.
pub fn is_barred(spot: Spot, leave: u64) -> bool {
    !lines::is_empty() && lines::is_barred(spot.ctx.db(), spot.name.as_bytes(), leave)
}

/// Whether a call waits on the key that will give this id to its reservation.
pub fn is_waiting(spot: Spot, id: &[u8]) -> bool {
    !lines::is_empty() && lines::is_waiting(spot.ctx.db(), spot.name.as_bytes(), id)
}

/// Grants to the head of the line on the key, and to the next, as long as they can be had and the turn's budget lasts:
/// before a command takes, and after one that may have given something back. The timer tries the rest.
pub fn wake_key(spot: Spot) {
    // With this LEAVE everybody who waits stands before.
    if !is_barred(spot, u64::MAX) {
        return;
    }
    let turn = Turn::begin(Cause::Command, note_turn);
    let Some(line) = lines::wake(spot.ctx.db(), spot.name.as_bytes()) else { return };
    if !turn.has_time() || !accepts_writes(spot.ctx) {
        return;
    }
    if accepts_write_to(spot.ctx, spot.name) != Acceptance::Accepted {
        return;
    }
    while let Some((ticket, call)) = lines::head(line).filter(|_| turn.has_time()) {
        // A command does not end waits that are overdue. Its clock may be frozen in the past (MULTI, Lua), and a waiter
        // could be denied what is free by now.
        if !try_head(spot, line, ticket, &call, false) {
            return;
        }
    }
}

/// Tries the head of a line. Whether its wait is over.
fn try_head(spot: Spot, line: LineId, ticket: Ticket, call: &Waiting, is_overdue: bool) -> bool {
    let mode = if is_overdue { Mode::Final } else { Mode::Try };
    match attempt(spot, &call.request, Terms { barred: false, mode }) {
        Ok(Attempt { answer, .. }) if !answer.allowed() && !is_overdue => {
            // The time of a command may be an old one.
            let age_us = clock::wall_time_us().saturating_sub(spot.now_us);
            let wait_us = answer.decision.verdict.retry_after_us();
            lines::denied(line, wait_us.map(|wait_us| wait_us.saturating_sub(age_us)));
            return false;
        }
        Ok(Attempt { answer, .. }) => {
            let (waited, ended) = match answer.allowed() {
                true => (&stats::WAITED_GRANTED, Ended::Allowed),
                false => (&stats::WAITED_TIMED_OUT, Ended::Denied),
            };
            waited.add(1);
            observe::note(spot, &call.request, ended);
            if answer.allowed() {
                touch(spot.ctx, spot.name);
            }
            end(ticket, Ok(answer), spot);
        }
        // It waits on, also past its time: the server knows no better.
        Err(Error::InUse) => {
            lines::postpone(line);
            return false;
        }
        Err(error) => end(ticket, Err(error), spot),
    }
    true
}

/// Ends a wait with this result.
fn end(ticket: Ticket, result: Result<Answer, Error>, spot: Spot) {
    if let Some(blocked) = lines::end(ticket, Outcome { result, at_us: spot.now_us }) {
        blocked.end();
    }
}

/// Lets a call wait in its line, after it was denied for `wait_us`.
fn join(
    call: &Call,
    spot: Spot,
    request: Request,
    block_ms: u64,
    wait_us: Option<u64>,
) -> Result<Replied, Error> {
    let key = spot.name.as_bytes();
    let ticket = lines::admit(config::MAX_WAITERS.get()).ok_or(Error::TooManyWaiters)?;
    let blocked = Blocked::client(call, key, ticket).ok_or(Error::internal())?;
    let waits = Waiting { request, command: call.command(), client: ClientId::of(call) };
    lines::join(ticket, (spot.ctx.db(), key), waits, blocked, block_ms, wait_us);
    Ok(Replied::Later)
}

/// The server asks what to answer to a waiter, because we ended its wait or because somebody else did. `None` where it
/// was answered before: before 7.2, CLIENT UNBLOCK asks once more where we ended the wait in the same transaction.
pub fn answer(ctx: Context, ticket: Ticket) -> Option<(CommandNumber, Result<Answer, Error>)> {
    let (call, place, was_head) = match lines::answered(ticket)? {
        Reply::Ended { call, outcome } => return Some((call.command, outcome.result)),
        Reply::Unblocked { call, place, was_head } => (call, place, was_head),
    };
    // Answer with a denial. This callback must not write.
    stats::WAITED_TIMED_OUT.add(1);
    let key = OwnedString::new(&place.key);
    let spot = Spot { ctx, name: KeyName::polled(&key), now_us: clock::command_time_us() };
    let denied = attempt(spot, &call.request, Terms { barred: true, mode: Mode::Look });
    if denied.is_ok() && was_head && call.request.count_denied {
        lines::write(&place, Write::CountDenial(call.request));
    }
    let answer = denied.map(|denied| told(spot, &call.request, denied));
    Some((call.command, answer))
}

/// What a waiter is told at the end of its wait, which is noted.
fn told(spot: Spot, request: &Request, mut attempt: Attempt) -> Answer {
    let ended = attempt.end(request);
    observe::note(spot, request, ended);
    attempt.answer
}

/// The client of a waiter is gone, or the server told it something else.
pub fn disconnected(ticket: Ticket) {
    lines::withdraw(ticket);
}

/// The server is done with a blocked call. With `cut_off` the server ended the wait, instead of us or after us.
pub fn forget(ticket: Ticket, cut_off: bool) {
    let Some(gone) = lines::forgotten(ticket) else { return };
    let Some(Outcome { result: Ok(answer), at_us }) = gone.outcome else { return };
    // CLIENT UNBLOCK in the transaction that granted sets `cut_off`, but the client got its answer.
    let untold = cut_off && !(gone.answered && gone.call.client.is_connected());
    if untold && answer.allowed() {
        lines::write(&gone.place, Write::GiveBack(gone.call.request, answer, at_us));
    }
}

/// The timer has fired.
pub fn fired(ctx: Context) {
    let turn = Turn::begin(Cause::Timer, note_turn);
    let mut accepted = accepts_writes(ctx);
    if !accepted {
        lines::refuse();
        if !ctx.is_master() {
            // The new master decides about the keys.
            lines::drop_all_writes();
        }
    }
    while let Some((line, place)) = lines::next_line().filter(|_| turn.has_time()) {
        accepted = visit(ctx, &turn, line, &place, accepted);
        lines::pass_on(line);
    }
}

/// Does what is due in a line, for a while. Returns whether the server accepts writes, of which some are only known
/// when it is asked for a key.
fn visit(ctx: Context, turn: &Turn, line: LineId, place: &Place, accepted: bool) -> bool {
    let due_us = clock::monotonic_us();
    let key = OwnedString::new(&place.key);
    let spot = Spot { ctx, name: KeyName::polled(&key), now_us: clock::wall_time_us() };
    // Select the database even if writing is refused: dismissed calls are still judged in it.
    let selected = ctx.select_db(place.db);
    let acceptance = match (accepted, selected) {
        (false, _) => Acceptance::Refused,
        (true, false) => Acceptance::Elsewhere,
        (true, true) => accepts_write_to(ctx, spot.name),
    };
    match acceptance {
        Acceptance::Accepted => {}
        // So it is for each key. What is to be written waits until writes are accepted again.
        Acceptance::Refused if accepted => lines::refuse(),
        Acceptance::Refused => {}
        Acceptance::Elsewhere => {
            // Another node owns the key now. The server will redirect the waiters. Until then they stay in line.
            lines::drop_writes(line);
            lines::postpone(line);
        }
    }
    let may_write = acceptance == Acceptance::Accepted;
    let accepted = acceptance != Acceptance::Refused;
    for _ in 0..STEPS_IN_A_ROW {
        match lines::next_step(line, may_write, due_us) {
            None => return accepted,
            Some(Step::Write(write)) => {
                if carry_out(spot, write) == Err(Error::InUse) {
                    lines::write(place, write);
                    lines::postpone(line);
                    return accepted;
                }
            }
            Some(Step::Try { ticket, call, is_overdue }) => {
                if !try_head(spot, line, ticket, &call, is_overdue) && is_overdue {
                    return accepted;
                }
            }
            Some(Step::Dismiss { ticket, call }) => {
                let mode = if may_write { Mode::Try } else { Mode::Look };
                let denied = attempt(spot, &call.request, Terms { barred: true, mode });
                stats::WAITED_TIMED_OUT.add(1);
                let answer = denied.map(|denied| told(spot, &call.request, denied));
                end(ticket, answer, spot);
            }
        }
        if !turn.has_time() {
            return accepted;
        }
    }
    accepted
}

/// Writes what the end of a wait left to be written. Where the key was changed meanwhile so that it cannot be done, there
/// is nothing to do any more.
fn carry_out(spot: Spot, write: Write) -> Result<(), Error> {
    match write {
        Write::GiveBack(request, answer, granted_us) => {
            give_back(spot, &request, &answer, granted_us)
        }
        Write::CountDenial(request) => {
            attempt(spot, &request, Terms { barred: true, mode: Mode::Final }).map(|_| ())
        }
    }
}

// ---- Figures ----

static LONGEST_TURN_US: AtomicU64 = AtomicU64::new(0);

fn note_turn(took_us: u64) {
    LONGEST_TURN_US.fetch_max(took_us, Ordering::Relaxed);
}

/// The longest time that was spent on waiters at a stretch since the module was loaded, in microseconds.
pub fn longest_turn_us() -> u64 {
    LONGEST_TURN_US.load(Ordering::Relaxed)
}

/// For how long the oldest of those who wait has waited, in milliseconds; 0 where nobody waits.
pub fn oldest_wait_ms() -> u64 {
    lines::oldest_age_us() / 1_000
}

//! BLOCK: calls that wait in the server, first come, first served for each key.
//!
//! Only the head of a line is ever tried. It is tried by every RL.* command that may write to its key, before that
//! command takes and after it gave back, and by a timer at the next moment that matters: when the head's own wait
//! should be over, when somebody's time is up, and at least every [`POLL_MS`], as nothing tells us of other changes
//! to the key. A grant is charged in the context of whoever tries, then the client is unblocked.
//!
//! ```text
//! serve -> join -> end -> answer -> forget
//!          |       |      |         the server has let the client go; a grant that it was not told is given back
//!          |       |      the server asks what to reply
//!          |       granted, refused with an error, or its time is up
//!          a place at the end of the line
//! ```
//!
//! CLIENT UNBLOCK leads from join to answer. A client that is gone, or that the server sent elsewhere, goes from there
//! to forget, by way of [`disconnected`].

use super::reply;
use super::attempt::{attempt, give_back, Attempt, Mode, Terms};
use super::spot;
use crate::limit::request::Request;
use crate::state::Spot;
use super::room::{is_empty, room, Debt, LineId, Outcome, Waiter};
use crate::config;
use crate::error::Error;
use crate::limit::waiters::Ticket;
use crate::redis::blocking::{Blocked, ClientId, Timer};
use crate::redis::call::{Call, CommandNumber, Context, KeyName};
use crate::redis::clock;
use crate::stats::{self, Replied};
use std::sync::Arc;

/// The longest that a line goes untried. Within 100 ms other changes to its key are to be noticed; the rest is
/// for timers that come late.
const POLL_MS: u64 = 80;
/// How long to leave a line alone while CLIENT PAUSE or a failover is in force, on a replica, or where the slot
/// has moved away.
const PAUSED_MS: u64 = 5;

/// Carries out a call of a taking command: answers it, or makes it wait.
pub fn serve(call: &Call, request: Request, block_ms: Option<u64>) -> Result<Replied, Error> {
    let spot = spot(call)?;
    let takes = request.takes();
    if takes {
        wake_key(spot);
    }
    let line = line_on(spot);
    let barred = line.is_some() && takes;
    if let (Some(line), Some(id)) = (line, request.id()) {
        if room(|room| room.lines.get(&line).is_some_and(|line| line.ids.contains(id))) {
            return Err(Error::Duplicate);
        }
    }
    let block_ms = block_ms.filter(|_| takes && spot.ctx.may_block());
    // Counting a denial would take from those who wait.
    let mode = if block_ms.is_some() || barred { Mode::Try } else { Mode::Final };
    let mut tried = attempt(spot, &request, Terms { barred, mode })?;
    if let (Attempt::Denied { answer, alone_us }, Some(ms)) = (&tried, block_ms) {
        let last_us =
            if ms == 0 { u64::MAX } else { spot.now_us.saturating_add(ms.saturating_mul(1_000)) };
        if alone_us.is_some_and(|alone_us| alone_us <= last_us) {
            let wait_us = if barred { None } else { answer.decision.verdict.retry_after_us() };
            return join(call, spot, request, ms, wait_us);
        }
        if request.count_denied && !barred {
            tried = attempt(spot, &request, Terms { barred, mode: Mode::Final })?;
        }
    }
    if !takes {
        // It may have given back. A call that takes has been barred, or nobody waits.
        wake_key(spot);
    }
    Ok(reply::answer(spot.ctx, &tried.answer()))
}

/// Grants to the head of the line on the key, and to the next, as long as they can be had: before a command takes,
/// and after one that may have given something back.
pub fn wake_key(spot: Spot) {
    if let Some(line) = line_on(spot) {
        let wait_us = serve_heads(spot, line, None);
        rearm(line, wait_us);
    }
}

/// The line on a key, if somebody waits there.
fn line_on(spot: Spot) -> Option<LineId> {
    if is_empty() {
        return None;
    }
    let db = spot.ctx.db();
    room(|room| {
        let id = room.line_on(db, spot.name.as_bytes())?;
        room.lines.get(&id).filter(|line| !line.queue.is_empty()).map(|_| id)
    })
}

/// Lets a call wait at the end of its line.
fn join(
    call: &Call,
    spot: Spot,
    request: Request,
    block_ms: u64,
    wait_us: Option<u64>,
) -> Result<Replied, Error> {
    let key = spot.name.as_bytes();
    let ticket = room(|room| {
        let free = room.waiting() < config::MAX_WAITERS.get();
        free.then(|| room.new_number())
    })
    .ok_or(Error::TooManyWaiters)?;
    let blocked = Blocked::client(call, key, ticket).ok_or(Error::Internal)?;
    let deadline_us = (block_ms > 0)
        .then(|| clock::monotonic_us().saturating_add(block_ms.saturating_mul(1_000)));
    let line = room(|room| {
        let id = room.open_line(spot.ctx.db(), key);
        let waiter = Waiter {
            line: id,
            at: Arc::clone(&room.lines.get(&id)?.at),
            request,
            command: call.command(),
            client: ClientId::of(call),
            blocked,
            outcome: None,
            answered: false,
        };
        room.join(ticket, waiter, deadline_us);
        Some(id)
    });
    if let Some(line) = line {
        rearm(line, wait_us);
    }
    Ok(Replied::Later)
}

/// Grants to the head, and to the next, as long as they can be had, or else their time was up at `due_us` of the
/// monotonic clock; returns how long the next has to wait. Only a timer tells whose time is up: the time of a command
/// may be an old one, of a transaction or a script, at which what a waiter could have by now was not there.
fn serve_heads(spot: Spot, id: LineId, due_us: Option<u64>) -> Option<u64> {
    while let Some((ticket, request)) = room(|room| room.head(id)) {
        match attempt(spot, &request, Terms { barred: false, mode: Mode::Try }) {
            Ok(Attempt::Allowed(answer)) => {
                stats::WAITED_GRANTED.add(1);
                end(ticket, Ok(answer), spot.now_us);
            }
            Ok(Attempt::Denied { answer, .. }) => {
                let overdue =
                    due_us.is_some_and(|due_us| room(|room| room.is_overdue(id, ticket, due_us)));
                if !overdue {
                    return answer.decision.verdict.retry_after_us();
                }
                give_up(spot, ticket, &request, Terms { barred: false, mode: Mode::Final });
            }
            Err(error) => end(ticket, Err(error), spot.now_us),
        }
    }
    None
}

/// Answers all whose time was up at `due_us`, behind a head who goes on waiting.
fn dismiss_overdue(spot: Spot, id: LineId, due_us: u64, mode: Mode) {
    while let Some((ticket, request)) = room(|room| room.overdue(id, due_us)) {
        give_up(spot, ticket, &request, Terms { barred: true, mode });
    }
}

/// Answers the denial to a waiter whose time is up.
fn give_up(spot: Spot, ticket: Ticket, request: &Request, terms: Terms) {
    let answer = attempt(spot, &request, terms).map(Attempt::answer);
    stats::WAITED_TIMED_OUT.add(1);
    end(ticket, answer, spot.now_us);
}

/// Ends a wait with this outcome.
fn end(ticket: Ticket, outcome: Outcome, now_us: u64) {
    let blocked = room(|room| {
        if !room.leave(ticket) {
            return None;
        }
        let waiter = room.waiters.get_mut(&ticket)?;
        waiter.outcome = Some((outcome, now_us));
        Some(waiter.blocked)
    });
    if let Some(blocked) = blocked {
        blocked.end();
    }
}

/// The server asks what to answer to a waiter, because we ended its wait or because somebody else did. `None` if
/// it was told before.
pub fn answer(ctx: Context, ticket: Ticket) -> Option<(CommandNumber, Outcome)> {
    let (waiter, was_head) = room(|room| {
        let waiter = room.waiters.get_mut(&ticket)?;
        if std::mem::replace(&mut waiter.answered, true) {
            return None;
        }
        let waiter = waiter.clone();
        let was_head = room.head(waiter.line).is_some_and(|(head, _)| head == ticket);
        room.leave(ticket);
        Some((waiter, was_head))
    })?;
    if let Some((outcome, _)) = waiter.outcome {
        return Some((waiter.command, outcome));
    }
    // CLIENT UNBLOCK: the denial, and nothing may be written here.
    stats::WAITED_TIMED_OUT.add(1);
    let terms = Terms { barred: true, mode: Mode::Look };
    let spot = Spot { ctx, name: KeyName::of(&waiter.at.key), now_us: clock::command_time_us() };
    let attempt = attempt(spot, &waiter.request, terms);
    if attempt.is_ok() && was_head && waiter.request.count_denied {
        room(|room| room.owe(&waiter.at, waiter.request, Debt::CountDenial));
    }
    rearm(waiter.line, Some(0));
    Some((waiter.command, attempt.map(Attempt::answer)))
}

/// The wait of a client was ended without an answer of ours: it is gone, or the server told it something else.
pub fn disconnected(blocked: Blocked) {
    let line = room(|room| {
        let ticket = room.blocked.remove(&blocked)?;
        room.leave(ticket);
        room.waiters.get(&ticket).map(|waiter| waiter.line)
    });
    if let Some(line) = line {
        rearm(line, Some(0));
    }
}

/// The server is done with a blocked call. It was `cut_off` if the server ended it after we did or instead.
pub fn forget(ticket: Ticket, cut_off: bool) {
    let line = room(|room| {
        let left = room.leave(ticket);
        let waiter = room.waiters.remove(&ticket)?;
        if room.blocked.get(&waiter.blocked) == Some(&ticket) {
            room.blocked.remove(&waiter.blocked);
        }
        // By CLIENT UNBLOCK in the transaction that granted, it is cut off and was told all the same.
        let untold = cut_off && !(waiter.answered && waiter.client.is_connected());
        match waiter.outcome {
            Some((Ok(answer), granted_us)) if untold && answer.allowed() => {
                let debt = Debt::GiveBack(answer, granted_us);
                Some(room.owe(&waiter.at, waiter.request, debt))
            }
            _ => left.then_some(waiter.line),
        }
    });
    if let Some(line) = line {
        rearm(line, Some(0));
    }
}

/// The timer of a line has fired.
pub fn tick(ctx: Context, id: LineId) {
    let Some(at) = room(|room| {
        let line = room.lines.get_mut(&id)?;
        line.timer = None;
        Some(Arc::clone(&line.at))
    }) else {
        return;
    };
    if ctx.is_paused() {
        rearm_after(id, PAUSED_MS.saturating_mul(1_000));
        return;
    }
    // In this order: what is there when somebody's time is up is still theirs.
    let due_us = clock::monotonic_us();
    let spot = Spot { ctx, name: KeyName::of(&at.key), now_us: clock::wall_time_us() };
    let debts = room(|room| Some(std::mem::take(&mut room.lines.get_mut(&id)?.debts)));
    // Also where the rest fails: whoever is dismissed is judged in this database.
    let selected = ctx.select_db(at.db);
    if !ctx.is_master() || !selected || !ctx.serves(spot.name) {
        // Whoever has the key now decides about it. Until the server sends them there, they wait for that.
        dismiss_overdue(spot, id, due_us, Mode::Look);
        rearm(id, Some(PAUSED_MS.saturating_mul(1_000)));
        return;
    }
    for (request, debt) in debts.unwrap_or_default() {
        // What cannot be settled because the key was changed meanwhile is not owed any more.
        match debt {
            Debt::GiveBack(answer, granted_us) => {
                let _ = give_back(spot, &request, &answer, granted_us);
            }
            Debt::CountDenial => {
                let terms = Terms { barred: true, mode: Mode::Final };
                let _ = attempt(spot, &request, terms);
            }
        }
    }
    let wait_us = serve_heads(spot, id, Some(due_us));
    dismiss_overdue(spot, id, due_us, Mode::Try);
    rearm(id, wait_us);
}

/// The wall clock was set back, and every timer would be late by as much: starts them anew.
pub fn clock_went_back() {
    let lines: Vec<LineId> = room(|room| {
        room.lines
            .values_mut()
            .filter_map(|line| line.timer.take())
            .for_each(|(timer, _)| timer.stop());
        room.lines.keys().copied().collect()
    });
    for line in lines {
        rearm(line, Some(0));
    }
}

/// Starts the timer of a line anew, if it would come too late: for a head that waits `wait_us` microseconds, for
/// the next who gives up, and for changes that nobody tells of. Closes the line if nobody is left.
fn rearm(id: LineId, wait_us: Option<u64>) {
    let now_us = clock::monotonic_us();
    let due_us = room(|room| {
        let line = room.lines.get(&id)?;
        if line.queue.is_empty() && line.debts.is_empty() {
            room.close_line(id);
            return None;
        }
        let deadline_us = line.queue.next_deadline_us().map(|at_us| at_us.saturating_sub(now_us));
        let poll_us = Some(POLL_MS.saturating_mul(1_000));
        [wait_us, deadline_us, poll_us].into_iter().flatten().min()
    });
    if let Some(due_us) = due_us {
        rearm_after(id, due_us);
    }
}

fn rearm_after(id: LineId, after_us: u64) {
    let after_ms = after_us.div_ceil(1_000).max(1);
    let due_us = clock::monotonic_us().saturating_add(after_ms.saturating_mul(1_000));
    room(|room| {
        let Some(line) = room.lines.get_mut(&id) else { return };
        if line.timer.as_ref().is_some_and(|(_, at_us)| *at_us <= due_us) {
            return;
        }
        if let Some((late, _)) = line.timer.replace((Timer::start(after_ms, id), due_us)) {
            late.stop();
        }
    });
}

//! Work on waiters: granting to the heads of lines.
//!
//! Only the head of a line is ever tried: by every RL.* command that may write to its key, before that command takes
//! and after it gave back, and by a timer at the next moment that matters. That is when the head could have what it asks
//! for, when somebody's time is up, and at least every [`engine::line::POLL_US`], as the server does not notify of other
//! changes to the key. A grant is charged in the context of whoever tries, then the client is unblocked.

use super::registry::{change, is_barred, look, LateWrite, Outcome, TurnGuard, WaitingCall};
use super::wait::note_end;
use crate::attempt::{attempt, give_back};
use crate::observe;
use crate::redis::acceptance::{
    accepts_write_in_command, accepts_write_to, accepts_writes, Acceptance,
};
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::key::touch;
use crate::redis::text::OwnedString;
use crate::state::KeyContext;
use crate::stats;
use commands::attempt::AttemptReply;
use commands::error::Error;
use commands::policies::PolicyVerdict;
use commands::reply::Reply;
use engine::attempt::AttemptTerms;
use engine::judge::Mode;
use engine::line::{Cause, Effect, LineId, Place, Ticket};

/// So many steps are made in a line before it is another line's turn.
const STEPS_IN_A_ROW: usize = 8;

/// Grants to the head of the line on the key, and to the next, as long as they can be had and the turn's budget lasts:
/// before a command takes, and after one that may have given something back. The timer tries the rest.
#[inline]
pub fn wake_key(key_ctx: KeyContext) {
    // With this LEAVE everybody who waits stands before.
    if is_barred(key_ctx, u64::MAX) {
        wake_line(key_ctx);
    }
}

#[cold]
fn wake_line(key_ctx: KeyContext) {
    let turn = TurnGuard::begin(Cause::Command);
    let (db, key) = (key_ctx.ctx.db(), key_ctx.name.as_bytes());
    let Some(line) = change(|lines, now_us| lines.wake(db, key, now_us)) else { return };
    if !turn.has_time() || !accepts_write_in_command(key_ctx.ctx, key_ctx.name) {
        return;
    }
    while let Some((ticket, call)) = look(|lines| lines.head(line)).filter(|_| turn.has_time()) {
        // A command does not end waits that are overdue. Its clock may be frozen in the past (MULTI, Lua), and a waiter
        // could be denied what is free by now.
        if !try_head(key_ctx, line, ticket, &call, false) {
            return;
        }
    }
}

/// Tries the head of a line. Whether its wait is over.
fn try_head(
    key_ctx: KeyContext,
    line: LineId,
    ticket: Ticket,
    call: &WaitingCall,
    is_overdue: bool,
) -> bool {
    let mode = if is_overdue { Mode::Final } else { Mode::Try };
    match attempt(key_ctx, &call.request, AttemptTerms { barred: false, mode }) {
        Ok(AttemptReply { answer, .. }) if !answer.allowed() && !is_overdue => {
            // The time of a command may be an old one.
            let age_us = clock::wall_time_us().saturating_sub(key_ctx.now_us);
            let wait_us = answer.decision.verdict.retry_after_us();
            let wait_us = wait_us.map(|wait_us| wait_us.saturating_sub(age_us));
            change(|lines, now_us| lines.denied(line, wait_us, now_us));
            return false;
        }
        Ok(AttemptReply { answer, .. }) => {
            let (waited, ended) = match answer.allowed() {
                true => (&stats::WAITED_GRANTED, PolicyVerdict::Allowed),
                false => (&stats::WAITED_TIMED_OUT, PolicyVerdict::Denied),
            };
            waited.add(1);
            observe::note(key_ctx, &call.request, ended);
            if answer.allowed() {
                touch(key_ctx.ctx, key_ctx.name);
            }
            end(ticket, Ok(answer), key_ctx);
        }
        // It waits on, also past its time: the server knows no better.
        Err(Error::InUse) => {
            change(|lines, now_us| lines.postpone(line, now_us));
            return false;
        }
        Err(error) => end(ticket, Err(error), key_ctx),
    }
    true
}

/// Ends a wait with this result.
fn end(ticket: Ticket, result: Result<Reply, Error>, key_ctx: KeyContext) {
    let outcome = Outcome { result, at_us: key_ctx.now_us };
    if let Some(blocked) = change(|lines, now_us| lines.end(ticket, outcome, now_us)) {
        blocked.end();
    }
}

/// The timer has fired.
pub fn fired(ctx: Context) {
    let turn = TurnGuard::begin(Cause::Timer);
    let mut accepted = accepts_writes(ctx);
    if !accepted {
        change(|lines, now_us| lines.refuse(now_us));
        if !ctx.is_master() {
            // The new master decides about the keys.
            change(|lines, _| lines.drop_all_writes());
        }
    }
    let next = || change(|lines, now_us| lines.next_line(now_us));
    while let Some((line, place)) = next().filter(|_| turn.has_time()) {
        accepted = visit(ctx, &turn, line, &place, accepted);
        change(|lines, now_us| lines.pass_on(line, now_us));
    }
}

/// Does what is due in a line, for a while. Returns whether the server accepts writes, of which some are only known
/// when it is asked for a key.
fn visit(ctx: Context, turn: &TurnGuard, line: LineId, place: &Place, accepted: bool) -> bool {
    let due_us = clock::monotonic_us();
    let key = OwnedString::new(&place.key);
    let key_ctx = KeyContext { ctx, name: KeyName::polled(&key), now_us: clock::wall_time_us() };
    // Select the database even if writing is refused: dismissed calls are still judged in it.
    let selected = ctx.select_db(place.db);
    let acceptance = match (accepted, selected) {
        (false, _) => Acceptance::Refused,
        (true, false) => Acceptance::Elsewhere,
        (true, true) => accepts_write_to(ctx, key_ctx.name),
    };
    match acceptance {
        Acceptance::Accepted => {}
        // So it is for each key. What is to be written waits until writes are accepted again.
        Acceptance::Refused if accepted => change(|lines, now_us| lines.refuse(now_us)),
        Acceptance::Refused => {}
        Acceptance::Elsewhere => {
            // Another node owns the key now. The server will redirect the waiters. Until then they stay in line.
            change(|lines, now_us| {
                lines.drop_writes(line);
                lines.postpone(line, now_us);
            });
        }
    }
    let may_write = acceptance == Acceptance::Accepted;
    let accepted = acceptance != Acceptance::Refused;
    for _ in 0..STEPS_IN_A_ROW {
        match change(|lines, _| lines.next_step(line, may_write, due_us)) {
            None => return accepted,
            Some(Effect::Write(write)) => {
                if carry_out(key_ctx, write) == Err(Error::InUse) {
                    change(|lines, now_us| lines.write(place, write, now_us));
                    change(|lines, now_us| lines.postpone(line, now_us));
                    return accepted;
                }
            }
            Some(Effect::Try { ticket, call, is_overdue }) => {
                if !try_head(key_ctx, line, ticket, &call, is_overdue) && is_overdue {
                    return accepted;
                }
            }
            Some(Effect::Dismiss { ticket, call }) => {
                let mode = if may_write { Mode::Try } else { Mode::Look };
                let denied = attempt(key_ctx, &call.request, AttemptTerms { barred: true, mode });
                stats::WAITED_TIMED_OUT.add(1);
                let answer = denied.map(|denied| note_end(key_ctx, &call.request, denied));
                end(ticket, answer, key_ctx);
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
fn carry_out(key_ctx: KeyContext, write: LateWrite) -> Result<(), Error> {
    match write {
        LateWrite::GiveBack(request, answer, granted_us) => {
            give_back(key_ctx, &request, &answer, granted_us)
        }
        LateWrite::CountDenial(request) => {
            attempt(key_ctx, &request, AttemptTerms { barred: true, mode: Mode::Final }).map(|_| ())
        }
    }
}

//! Granting to the heads of lines.
//!
//! Only the head of a line is ever tried: by each RL.* command that may write to its key, before it takes and after it has
//! given something back, and by a timer. The timer fires when the head could be granted, when a wait times out, and at least
//! every [`engine::line::POLL_US`], because the server does not notify us of other changes to the key. A grant is written by
//! the command or timer that tries the head, and then the client is unblocked.

use super::lines::{
    change, read_lines, read_lines_or_default, PendingWrite, ServerLineTypes, WaitingCall,
    WorkGuard,
};
use crate::redis::acceptance::{
    accepts_write_in_command, accepts_write_to, accepts_writes, Acceptance,
};
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::key::touch;
use crate::redis::text::OwnedString;
use crate::state::{EmptiedKey, KeyContext, ServerKeyspace};
use crate::stats;
use commands::decide::{decide, give_back, Keyspace};
use commands::error::Error;
use commands::waiting::{do_next_step, try_head, TimedReply, WaitingServer};
use engine::line::{Cause, LineId, Lines, Ticket};
use engine::store::Access;
use engine::{Decision, Mode, OwnedDbKey, Request};

/// The maximum number of steps in a line before it is the next line's turn.
const STEPS_IN_A_ROW: usize = 8;

/// Tries the head of the line on the key, and after each grant the next head, while the time budget lasts. The timer tries
/// the rest. Called before a command takes, and after a command that may have given something back. `emptied` is the key, if
/// the command has just emptied it: the first head is tried on it, and dropping it deletes the key.
pub fn wake<'c>(key_ctx: KeyContext<'c>, emptied: Option<EmptiedKey<'c>>) {
    if read_lines_or_default(|lines| lines.waiting_on(key_ctx.db_key())) > 0 {
        wake_line(key_ctx, emptied);
    }
}

#[cold]
fn wake_line<'c>(key_ctx: KeyContext<'c>, mut emptied: Option<EmptiedKey<'c>>) {
    let work = WorkGuard::begin(Cause::Command);
    let key = key_ctx.db_key();
    let Some(line) = change(|lines, now_us| lines.wake(key, now_us)) else { return };
    if !work.has_time() || !accepts_write_in_command(key_ctx.ctx, key_ctx.name) {
        return;
    }
    let keyspace = ServerKeyspace::default();
    while let Some((ticket, call)) =
        read_lines(|lines| lines.head(line)).filter(|_| work.has_time())
    {
        // A command does not end waits that are overdue. In MULTI and Lua its clock may be frozen in the past, so a waiter
        // could be denied although enough is available by now.
        let store = keyspace.store(key_ctx, Access::Write).with_emptied(emptied.take());
        if !try_head(&keyspace, line, (ticket, &call.request), key_ctx, store, Mode::Try) {
            return;
        }
    }
}

impl<'c> WaitingServer for ServerKeyspace<'c> {
    type Types = ServerLineTypes;

    fn change<T>(&self, transition: impl FnOnce(&mut Lines<ServerLineTypes>, u64) -> T) -> T {
        super::lines::change(transition)
    }

    fn request(call: &WaitingCall) -> &Request {
        &call.request
    }

    // In MULTI and scripts the time of a command stands still.
    fn age_us(&self, key_ctx: KeyContext<'c>) -> u64 {
        clock::wall_time_us().saturating_sub(key_ctx.now_us)
    }

    fn wait_ended(&self, key_ctx: KeyContext<'c>, granted: bool) {
        if granted {
            stats::WAITED_GRANTED.add(1);
            touch(key_ctx.ctx, key_ctx.name);
        } else {
            stats::WAITED_TIMED_OUT.add(1);
        }
    }

    fn deliver(&self, ticket: Ticket, key_ctx: KeyContext<'c>, result: Result<Decision, Error>) {
        let reply = TimedReply { result, at_us: key_ctx.now_us };
        if let Some(blocked) = change(|lines, now_us| lines.end(ticket, reply, now_us)) {
            blocked.end();
        }
    }

    // A write is dropped if the key has changed so that it is impossible.
    fn write(&self, line: LineId, key_ctx: KeyContext<'c>, write: PendingWrite) -> bool {
        let written = match write {
            PendingWrite::GiveBack { request, granted, granted_us } => {
                give_back(self, key_ctx, &request, &granted, granted_us)
            }
            PendingWrite::CountDenial(request) => {
                let store = self.store(key_ctx, Access::Write);
                decide(self, store, &request, false, Mode::CountDenial).map(|_| ())
            }
        };
        let is_postponed = written == Err(Error::InUse);
        if is_postponed {
            change(|lines, now_us| lines.add_write(key_ctx.db_key(), write, now_us));
            change(|lines, now_us| lines.postpone(line, now_us));
        }
        !is_postponed
    }
}

/// Does the due work in all lines. Called when the timer fires.
pub fn serve_timer(ctx: Context) {
    let work = WorkGuard::begin(Cause::Timer);
    let mut accepted = accepts_writes(ctx);
    if !accepted {
        change(|lines, now_us| lines.pause(now_us));
        if !ctx.is_master() {
            // The new master decides on these keys.
            change(|lines, _| lines.drop_all_writes());
        }
    }
    let next = || change(|lines, now_us| lines.next_line(now_us));
    while let Some((line, line_key)) = next().filter(|_| work.has_time()) {
        accepted = visit(ctx, &work, line, &line_key, accepted);
        change(|lines, now_us| lines.move_to_back(line, now_us));
    }
}

/// Does the due work in a line, in at most [`STEPS_IN_A_ROW`] steps. `accepted` says whether the server accepted writes when
/// last asked. Returns the new answer.
fn visit(
    ctx: Context,
    work: &WorkGuard,
    line: LineId,
    line_key: &OwnedDbKey,
    accepted: bool,
) -> bool {
    let due_us = clock::monotonic_us();
    let key = OwnedString::new(&line_key.name);
    let key_ctx = KeyContext { ctx, name: KeyName::polled(&key), now_us: clock::wall_time_us() };
    let acceptance = acceptance_at(key_ctx, line_key.db, accepted);
    match acceptance {
        Acceptance::Accepted => {}
        // The server would refuse every other key too, so no head is tried now, and pending writes wait.
        Acceptance::Refused if accepted => change(|lines, now_us| lines.pause(now_us)),
        Acceptance::Refused => {}
        // Another node owns the key now. The waiters stay in line until the server redirects them.
        Acceptance::Elsewhere => change(|lines, now_us| {
            lines.drop_writes(line);
            lines.postpone(line, now_us);
        }),
    }
    let (keyspace, may_write) = (ServerKeyspace::default(), acceptance == Acceptance::Accepted);
    for _ in 0..STEPS_IN_A_ROW {
        if !do_next_step(&keyspace, line, key_ctx, may_write, due_us) || !work.has_time() {
            break;
        }
    }
    acceptance != Acceptance::Refused
}

/// Returns whether the server accepts a write to this key. `accepted` is its answer without a key. In a cluster the answer
/// depends on the key.
fn acceptance_at(key_ctx: KeyContext, db: i32, accepted: bool) -> Acceptance {
    // Select the database even if writes are refused, because calls that time out are still decided in it.
    let selected = key_ctx.ctx.select_db(db);
    match (accepted, selected) {
        (false, _) => Acceptance::Refused,
        // This database no longer exists.
        (true, false) => Acceptance::Elsewhere,
        (true, true) => accepts_write_to(key_ctx.ctx, key_ctx.name),
    }
}

//! Granting to the heads of lines.
//!
//! Only the head of a line is ever tried: by each RL.* command that may write to its key, before it takes and after it has
//! given something back, and by a timer. The timer fires when the head could be granted, when a wait times out, after a
//! transaction or script that had such a command, and at least every [`engine::line::POLL_US`], because the server does not
//! notify us of other changes to the key. A grant is written by the command or timer that tries the head, and then the client
//! is unblocked.

use super::lines::{self, change, PendingWrite, ServerLineTypes, WaitingCall, WorkGuard};
use crate::redis::acceptance::{accepts_write_in_call, may_accept_writes, Acceptance};
use crate::redis::clock;
use crate::redis::context::{Context, KeyName};
use crate::redis::key::touch;
use crate::redis::text::OwnedString;
use crate::state::{EmptiedKey, KeyContext, ServerKeyspace};
use crate::stats;
use commands::decide::{decide, give_back};
use commands::error::Error;
use commands::keyspace::Keyspace;
use commands::reply::TakeCall;
use commands::waiting::{take_steps, try_heads, Step, TimedReply, WaitingKeyspace};
use engine::line::{Cause, LineId, Lines, Ticket};
use engine::store::{Access, EmptiedKey as _};
use engine::{DbKey, Decision, Mode};

impl<'c> WaitingKeyspace for ServerKeyspace<'c> {
    type Types = ServerLineTypes;

    fn change<T>(&self, transition: impl FnOnce(&mut Lines<ServerLineTypes>, u64) -> T) -> T {
        lines::change(transition)
    }

    fn read_lines<T: Default>(
        &self,
        key_ctx: KeyContext<'c>,
        read: impl FnOnce(&Lines<ServerLineTypes>, DbKey) -> T,
    ) -> T {
        lines::read_lines(|lines| read(lines, key_ctx.db_key()))
    }

    fn wake<'k>(&self, key_ctx: KeyContext<'c>, emptied: Option<EmptiedKey<'c>>)
    where
        Self: 'k,
    {
        if self.read_lines(key_ctx, |lines, key| lines.waiting_on(key)) > 0 {
            wake_line(key_ctx, emptied.as_ref());
        }
        // Unless a waiter was granted something, which goes on with the key.
        if let Some(emptied) = emptied {
            emptied.delete();
        }
    }

    fn take_call(call: &WaitingCall) -> &TakeCall {
        &call.call
    }

    // A few microseconds, which add up in a line that thousands of calls pass in a second.
    fn age_us(&self, key_ctx: KeyContext<'c>) -> u64 {
        clock::wall_time_us().saturating_sub(key_ctx.now_us)
    }

    fn accepts_write(&self, key_ctx: KeyContext<'c>) -> bool {
        self.ask_for_acceptance(key_ctx) == Acceptance::Accepted
    }

    fn note_wait(&self, key_ctx: KeyContext<'c>, granted: bool) {
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
    fn write(&self, line: LineId, key_ctx: KeyContext<'c>, write: PendingWrite) -> Step {
        let written = match write {
            _ if !self.accepts_write(key_ctx) => Err(Error::InUse),
            PendingWrite::GiveBack { request, granted, granted_us } => {
                give_back(self, key_ctx, &request, &granted, granted_us)
            }
            PendingWrite::CountDenial(request) => {
                let store = self.store(key_ctx, Access::Write);
                decide(self, store, &request, true, Mode::CountDenial, || true).map(|_| ())
            }
        };
        if written != Err(Error::InUse) {
            return Step::Again;
        }
        let key = key_ctx.db_key();
        change(|lines, now_us| {
            lines.add_write(key, write, now_us);
            lines.postpone(line, now_us);
        });
        Step::Later
    }
}

/// Tries the head of the line on the key, and after each grant the next head, while the time budget lasts. The timer tries
/// the rest. The first head is tried on the emptied key, if a release has left one.
#[cold]
fn wake_line<'c>(key_ctx: KeyContext<'c>, emptied: Option<&EmptiedKey<'c>>) {
    if !key_ctx.ctx.is_single_call() {
        // A transaction or a script is one step for those who wait. The timer fires after it.
        change(|lines, now_us| lines.wake(key_ctx.db_key(), now_us));
        return;
    }
    let work = WorkGuard::begin(Cause::Command);
    let key = key_ctx.db_key();
    let Some(line) = change(|lines, now_us| lines.wake(key, now_us)) else { return };
    if work.has_time() && accepts_write_in_call(key_ctx.ctx, key_ctx.name) {
        let keyspace = ServerKeyspace::for_waiters(Some(Acceptance::Accepted));
        let open = || keyspace.store(key_ctx, Access::Write).with_emptied(emptied);
        try_heads(&keyspace, line, key_ctx, open, || work.has_time());
    }
}

/// Does the due work in all lines. Called when the timer fires.
pub fn serve_timer(ctx: Context) {
    let work = WorkGuard::begin(Cause::Timer);
    // The server is asked before the first write. Once it refuses one, it would refuse those to all other keys too.
    let mut acceptance = None;
    if !may_accept_writes(ctx) {
        acceptance = Some(Acceptance::Refused);
        change(|lines, now_us| lines.pause(now_us));
        if !ctx.is_master() {
            // The new master decides on these keys.
            change(|lines, _| lines.drop_all_writes());
        }
    }
    let next = || change(|lines, now_us| lines.next_line(now_us));
    while let Some((line, line_key)) = next().filter(|_| work.has_time()) {
        let key = OwnedString::new(&line_key.name);
        let now_us = clock::wall_time_us();
        let key_ctx = KeyContext { ctx, name: KeyName::polled(&key), now_us };
        // Even if writes are refused, because calls that time out are still decided in their database.
        let keyspace = ServerKeyspace::for_waiters(match ctx.select_db(line_key.db) {
            true => acceptance,
            // This database no longer exists.
            false => Some(Acceptance::Elsewhere),
        });
        let due_us = clock::monotonic_us();
        let take_steps = |may_write| {
            take_steps(&keyspace, line, key_ctx, may_write, due_us, || work.has_time());
        };
        if matches!(keyspace.acceptance(), None | Some(Acceptance::Accepted)) {
            take_steps(true);
        }
        match keyspace.acceptance() {
            None => {}
            Some(Acceptance::Accepted) => {
                // In a cluster that goes only for this key.
                acceptance = keyspace.acceptance().filter(|_| !ctx.is_in_cluster());
            }
            // No head is tried now, and pending writes wait. Calls whose time is up are denied.
            Some(Acceptance::Refused) => {
                acceptance = Some(Acceptance::Refused);
                change(|lines, now_us| lines.pause(now_us));
                take_steps(false);
            }
            // Another node owns the key now. The waiters stay in line until the server redirects them.
            Some(Acceptance::Elsewhere) => {
                change(|lines, now_us| {
                    lines.drop_writes(line);
                    lines.postpone(line, now_us);
                });
                take_steps(false);
            }
        }
        change(|lines, now_us| lines.move_to_back(line, now_us));
    }
}

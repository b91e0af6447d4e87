//! Calls that wait (BLOCK). The lines are the engine's; what is due is done when the caller asks for it, and before and
//! after the calls that may change a key.

use super::memory_call::KeyMoment;
use super::value::{Value, ValueBuilder};
use super::MemoryServer;
use crate::decide::{conclude, decide_and_write, give_back};
use crate::error::Error;
use crate::reply;
use crate::waiting::{try_head, WaitingServer};
use engine::decide::Mode;
use engine::decision::Decision;
use engine::line::{deadline_us, Joining, LineId, LineStep, LineTypes, Lines, Ticket};
use engine::request::Request;
use std::convert::Infallible;

/// The types of the lines in memory.
pub struct MemoryLineTypes;

impl LineTypes for MemoryLineTypes {
    type Call = Request;
    type Handle = ();
    type Reply = ();
    type Write = Infallible;
}

/// A wait that has ended, whose reply has not been taken yet.
pub(super) struct EndedWait {
    ticket: Ticket,
    reply: Value,
    /// What was granted, in case it has to be given back.
    granted: Option<EndedGrant>,
}

/// What a wait that is over was granted.
struct EndedGrant {
    /// The key's name.
    name: Box<[u8]>,
    /// What was asked for.
    request: Request,
    decision: Decision,
    /// When it was granted, in Unix microseconds.
    granted_us: u64,
}

/// A clock that never goes back, derived from one that may be set.
#[derive(Default)]
pub(super) struct WaitClock {
    /// The last time that was seen.
    wall_us: u64,
    /// How many microseconds have passed, which only grows.
    passed_us: u64,
}

impl WaitClock {
    /// Returns the last time that was seen, in Unix microseconds.
    pub(super) fn wall_us(&self) -> u64 {
        self.wall_us
    }

    /// Takes note of the time; returns whether the clock was set back.
    fn see(&mut self, wall_us: u64) -> bool {
        let back = wall_us < self.wall_us;
        self.passed_us = self.passed_us.saturating_add(wall_us.saturating_sub(self.wall_us));
        self.wall_us = wall_us;
        back
    }
}

impl MemoryServer {
    /// Returns the replies to the calls whose wait has ended by `now_us`: granted, or denied because their time is up. Call
    /// it at [`MemoryServer::next_us`].
    pub fn take_ended(&mut self, now_us: u64) -> Vec<(Ticket, Value)> {
        self.end_due(now_us);
        let ended = std::mem::take(&mut *self.ended.borrow_mut());
        ended.into_iter().map(|one| (one.ticket, one.reply)).collect()
    }

    /// Returns the calls whose wait has ended by `now_us` and whose reply was not taken yet. Use it with
    /// [`MemoryServer::take_reply`] where a caller may still be withdrawn after its grant.
    pub fn ended(&mut self, now_us: u64) -> Vec<Ticket> {
        self.end_due(now_us);
        self.ended.borrow().iter().map(|one| one.ticket).collect()
    }

    /// Returns the reply to one call that waited, if it is over at `now_us`. Those of others stay, so that each can still be
    /// withdrawn with what it was granted.
    pub fn take_reply(&mut self, ticket: Ticket, now_us: u64) -> Option<Value> {
        self.end_due(now_us);
        let mut ended = self.ended.borrow_mut();
        let at = ended.iter().position(|one| one.ticket == ticket)?;
        Some(ended.remove(at).reply)
    }

    /// Ends the waits that are over at `now_us`.
    fn end_due(&mut self, now_us: u64) {
        self.see_time(now_us);
        let passed_us = self.clock.passed_us;
        loop {
            let due = self.lines.borrow().next_line(passed_us);
            let Some((line, line_key)) = due else { break };
            let key = KeyMoment { name: &line_key.name, now_us };
            if !self.visit(line, key) {
                // The engine takes care that what was done is not due again. If it were, this would go on for ever.
                break;
            }
        }
    }

    /// Returns when [`MemoryServer::take_ended`] should be called next, in Unix microseconds. `None` while no call waits.
    /// Each call may change it.
    pub fn next_us(&self) -> Option<u64> {
        let WaitClock { wall_us, passed_us } = self.clock;
        if !self.ended.borrow().is_empty() {
            return Some(wall_us);
        }
        let due_us = self.lines.borrow().due_us()?;
        Some(wall_us.saturating_add(due_us.saturating_sub(passed_us)))
    }

    /// Ends a wait without a reply, because the caller is gone. A grant that the caller did not receive is given back.
    pub fn withdraw(&mut self, ticket: Ticket, now_us: u64) {
        self.see_time(now_us);
        let passed_us = self.clock.passed_us;
        self.lines.borrow_mut().forget(ticket, passed_us);
        let place = self.ended.borrow().iter().position(|one| one.ticket == ticket);
        let Some(ended) = place.map(|at| self.ended.borrow_mut().remove(at)) else { return };
        if let Some(EndedGrant { name, request, decision, granted_us }) = ended.granted {
            let key = KeyMoment { name: &name, now_us };
            // If the key was changed meanwhile so that this cannot be done, it is dropped.
            let _ = give_back(&&*self, key, &request, &decision, granted_us);
            self.wake_line(key);
        }
    }

    pub(super) fn see_time(&mut self, now_us: u64) {
        if self.clock.see(now_us) {
            self.lines.borrow_mut().restart_timer(self.clock.passed_us);
        }
    }

    /// Puts a call into the line of its key.
    pub(super) fn join_line(
        &self,
        key: KeyMoment,
        request: &Request,
        block_ms: u64,
        wait_us: Option<u64>,
    ) -> Result<Ticket, Error> {
        let most = self.numbers.max_waiters.get();
        let mut lines = self.lines.borrow_mut();
        let ticket = lines.admit(most).ok_or(Error::TooManyWaiters)?;
        let passed_us = self.clock.passed_us;
        let deadline_us = deadline_us(passed_us, block_ms);
        let joins = Joining { call: *request, handle: (), deadline_us, wait_us };
        lines.join(ticket, key.db_key(), joins, passed_us);
        Ok(ticket)
    }

    /// Tries the head of the line on the key, and after each grant the next.
    pub(super) fn wake_line(&self, key: KeyMoment) {
        let line = self.lines.borrow_mut().wake(key.db_key(), self.clock.passed_us);
        let Some(line) = line else { return };
        loop {
            let head = self.lines.borrow().head(line);
            let Some((ticket, request)) = head else { return };
            if !try_head(&self, line, (ticket, &request), key, false) {
                return;
            }
        }
    }

    /// Does what is due in a line. Returns whether anything was.
    fn visit(&self, line: LineId, key: KeyMoment) -> bool {
        let mut any = false;
        loop {
            let step = self.lines.borrow_mut().next_step(line, true, self.clock.passed_us);
            match step {
                None => return any,
                Some(LineStep::Write(never)) => match never {},
                Some(LineStep::Try { ticket, call, is_overdue }) => {
                    try_head(&self, line, (ticket, &call), key, is_overdue);
                }
                Some(LineStep::Dismiss { ticket, call }) => {
                    let denied = decide_and_write(&self, key, &call, true, Mode::Try);
                    (&self).end(ticket, key, &call, denied);
                }
            }
            any = true;
        }
    }
}

impl<'a> WaitingServer for &'a MemoryServer {
    type Types = MemoryLineTypes;

    fn change<T>(&self, transition: impl FnOnce(&mut Lines<MemoryLineTypes>, u64) -> T) -> T {
        transition(&mut self.lines.borrow_mut(), self.clock.passed_us)
    }

    fn age_us(&self, _key: KeyMoment<'a>) -> u64 {
        0
    }

    fn end(
        &self,
        ticket: Ticket,
        key: KeyMoment<'a>,
        request: &Request,
        result: Result<Decision, Error>,
    ) {
        if self.change(|lines, passed_us| lines.forget(ticket, passed_us)).is_none() {
            return;
        }
        let (mut granted, builder) = (None, ValueBuilder::default());
        let reply = match result {
            Ok(decision) => {
                conclude(self, key, request, &decision);
                if decision.allowed() {
                    granted = Some(EndedGrant {
                        name: key.name.into(),
                        request: *request,
                        decision,
                        granted_us: key.now_us,
                    });
                }
                let _ = reply::write(&&builder, request, &decision);
                builder.take().unwrap_or(Value::Nil)
            }
            Err(error) => Value::Error(error.to_string()),
        };
        self.ended.borrow_mut().push(EndedWait { ticket, reply, granted });
    }
}

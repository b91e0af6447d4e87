//! Calls that wait (BLOCK), in the lines of the engine. Waits end when the caller asks for replies, and before and after
//! calls that may change a key.

use super::value::{Value, ValueBuilder};
use super::MemoryServer;
use crate::decide::give_back;
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::waiting::{
    decide_waiting, is_granted, take_step, try_heads, Decisions, Step, TimedReply, Trial,
    WaitingCall, WaitingKeyspace,
};
use engine::line::{LineId, LineTypes, Lines, Ticket};
use engine::{AwaitedLimit, DbKey, OwnedDbKey};
use std::convert::Infallible;
use std::sync::Arc;

pub struct MemoryLineTypes;

impl LineTypes for MemoryLineTypes {
    type Call = Arc<WaitingCall>;
    type Handle = ();
    type Reply = TimedReply;
    type Write = Infallible;
}

/// A clock that never goes back, derived from a wall clock that may be set back.
#[derive(Default)]
pub(super) struct WaitClock {
    /// The last time of the wall clock, in Unix microseconds.
    pub(super) wall_us: u64,
    /// The time of this clock, in microseconds since the server was created.
    passed_us: u64,
}

impl MemoryServer {
    /// Returns the replies to the calls whose wait has ended by `now_us`, with a grant or because their time is up. Call it
    /// at [`MemoryServer::next_us`].
    pub fn take_ended(&mut self, now_us: u64) -> Vec<(Ticket, Value)> {
        self.end_due(now_us);
        let ended = std::mem::take(self.ended.get_mut());
        ended.into_iter().filter_map(|ticket| Some((ticket, self.forget(ticket)?))).collect()
    }

    /// Returns the calls whose wait has ended by `now_us` and whose reply was not taken yet. Use it with
    /// [`MemoryServer::take_reply`] if a caller may still be withdrawn after its grant.
    pub fn ended(&mut self, now_us: u64) -> Vec<Ticket> {
        self.end_due(now_us);
        self.ended.get_mut().clone()
    }

    /// Returns the reply to one call if its wait has ended by `now_us`. The replies to other calls stay, so that each call
    /// can still be withdrawn together with its grant.
    pub fn take_reply(&mut self, ticket: Ticket, now_us: u64) -> Option<Value> {
        self.end_due(now_us);
        let at = self.ended.get_mut().iter().position(|ended| *ended == ticket)?;
        self.ended.get_mut().remove(at);
        self.forget(ticket)
    }

    /// Forgets a call whose wait has ended, and returns the reply to it.
    fn forget(&mut self, ticket: Ticket) -> Option<Value> {
        let ended = self.lines.get_mut().forget(ticket, self.clock.passed_us)?;
        match &ended.reply()?.result {
            Ok(decisions) => {
                let builder = ValueBuilder::default();
                let _ = ended.call.write_reply(&&builder, decisions);
                builder.take()
            }
            Err(error) => Some(Value::Error(error.to_string())),
        }
    }

    fn end_due(&mut self, now_us: u64) {
        self.set_time(now_us);
        let passed_us = self.clock.passed_us;
        loop {
            let due = self.lines.borrow().next_line(passed_us);
            let Some((line, line_key)) = due else { break };
            let step = take_step(&&*self, line, line_key.borrowed(), true, passed_us);
            if step == Step::Later {
                // The engine never returns a line without a step. If it did, this loop would never end.
                break;
            }
        }
    }

    /// Returns the time at which to call [`MemoryServer::take_ended`] next, in Unix microseconds. `None` while no call
    /// waits. Every call may change it.
    pub fn next_us(&self) -> Option<u64> {
        let WaitClock { wall_us, passed_us } = self.clock;
        if !self.ended.borrow().is_empty() {
            return Some(wall_us);
        }
        let due_us = self.lines.borrow().due_us()?;
        Some(wall_us.saturating_add(due_us.saturating_sub(passed_us)))
    }

    /// Ends a wait without a reply, because the caller is gone. A grant that the caller has not received is given back.
    pub fn withdraw(&mut self, ticket: Ticket, now_us: u64) {
        self.set_time(now_us);
        self.ended.get_mut().retain(|ended| *ended != ticket);
        let Some(gone) = self.lines.get_mut().forget(ticket, self.clock.passed_us) else { return };
        let Some(TimedReply { result: Ok(granted), at_us }) = gone.reply() else { return };
        for (key, request, decision) in gone.call.grants(granted) {
            // This fails only if the key was changed meanwhile so that nothing can be given back.
            let _ = give_back(&&*self, key, request, &decision, *at_us);
        }
        for (key, ..) in gone.call.grants(granted) {
            (&*self).wake(key, None);
        }
    }

    pub(super) fn set_time(&mut self, now_us: u64) {
        let WaitClock { wall_us, passed_us } = &mut self.clock;
        *passed_us = passed_us.saturating_add(now_us.saturating_sub(*wall_us));
        if now_us < std::mem::replace(wall_us, now_us) {
            self.lines.get_mut().restart_timer(*passed_us);
        }
    }
}

impl<'a> WaitingKeyspace for &'a MemoryServer {
    type Types = MemoryLineTypes;

    fn name(&self, key: DbKey<'a>) -> OwnedDbKey {
        key.into()
    }

    fn change_lines<T>(&self, transition: impl FnOnce(&mut Lines<MemoryLineTypes>, u64) -> T) -> T {
        transition(&mut self.lines.borrow_mut(), self.clock.passed_us)
    }

    fn read_lines<T: Default>(
        &self,
        key: DbKey<'a>,
        read: impl FnOnce(&Lines<MemoryLineTypes>, DbKey) -> T,
    ) -> T {
        read(&self.lines.borrow(), key)
    }

    fn wake<'k>(&self, key: DbKey<'a>, _emptied: Option<Infallible>)
    where
        Self: 'k,
    {
        if let Some(line) = self.change_lines(|lines, now_us| lines.make_head_due(key, now_us)) {
            try_heads(self, line, key, None, || true);
        }
    }

    fn waiting_call(call: &Arc<WaitingCall>) -> &WaitingCall {
        call
    }

    fn decide_on_its_keys(
        &self,
        _key: DbKey<'a>,
        _emptied: Option<&Infallible>,
        trial: Trial,
    ) -> Result<(Decisions, Option<AwaitedLimit>), Error> {
        let server: &MemoryServer = self;
        let keys: Vec<_> = trial.call.keys().collect();
        let own = *keys.get(trial.at).ok_or(Error::internal())?;
        decide_waiting(&server, &keys, server.store(own, trial.access()), trial)
    }

    fn elapsed_us(&self, _key: DbKey<'a>) -> u64 {
        0
    }

    fn note_wait(&self, _keys: &[DbKey<'a>], _granted: bool) {}

    fn deliver(&self, ticket: Ticket, _key: DbKey<'a>, result: Result<Decisions, Error>) {
        let (granted, at_us) = (is_granted(&result), self.clock.wall_us);
        let reply = TimedReply { result, at_us };
        if self
            .change_lines(|lines, passed_us| lines.end(ticket, reply, granted, passed_us))
            .is_some()
        {
            self.ended.borrow_mut().push(ticket);
        }
    }

    fn make_pending_write(&self, _line: LineId, _key: DbKey<'a>, never: Infallible) -> Step {
        match never {}
    }
}

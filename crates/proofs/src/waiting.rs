//! A small world with a line: clients wait for a semaphore, each with its own LEAVE and BLOCK. They release, disconnect and
//! let leases lapse. The key may be deleted without notice to the module, and the clock may step.
//!
//! The lines and the limits are the engine's. The world itself carries out the steps of a line, in the same order as the
//! module: a command wakes the head before it takes and after it gives back, and a timer does the rest.

use crate::mistake::Mistake;
use crate::outcome::{self, Claim, Event, HasOutcome, StepOutcome};
use engine::line::{
    Cause, Joining, LineId, LineStep, LineTypes, Lines, Ticket, TimerChange, POLL_US,
};
use engine::memory::{Memory, Saved};
use engine::model::decide;
use engine::reservation::Id;
use engine::rule::Rule;
use engine::{
    DbKey, Decision, Limit, Mode, NewReservation, Quantity, Request, Verdict, WindowLimit,
};
use stateright::{Model, Property};

thread_local! {
    static MEMORY: Memory = Memory::default();
}

const KEY: &[u8] = b"k";
const DB_KEY: DbKey = DbKey { db: 0, name: KEY };

/// The resolution of the timer: a millisecond.
const TIMER_US: u64 = 1_000;

/// A call that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockedCall {
    /// The client that makes the call.
    pub client: usize,
    /// The quantity to reserve.
    pub quantity: u64,
    /// LEAVE.
    pub leave: u64,
    /// BLOCK in microseconds, 0 for no limit. `None` if the call does not wait.
    pub block_us: Option<u64>,
    id: [u8; 1],
}

impl BlockedCall {
    fn request(&self, limit: u64, lease_ms: u64) -> Request {
        let window = WindowLimit { max: limit, rule: Rule::Semaphore, max_entries: 4096 };
        let id = Some(Id::from(&self.id[..]));
        let reserve = NewReservation { lease_ms, count_lapsed: false, id, max_reservations: 100 };
        let mut request = Request::new(Limit::Reserve(window, reserve));
        request.ask.quantity = Quantity::Take(self.quantity);
        request.ask.leave = self.leave;
        request
    }
}

/// The types of the lines in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiters;

impl LineTypes for Waiters {
    type Call = BlockedCall;
    type Handle = usize;
    type Reply = bool;
    type Write = ();
}

/// A semaphore, its clients, and the events that may happen.
#[derive(Clone, Debug)]
pub struct WaitingWorld {
    /// The largest quantity that is held at once.
    pub limit: u64,
    /// The length of each lease in milliseconds.
    pub lease_ms: u64,
    /// The calls that each client may make: quantity, LEAVE, and BLOCK in microseconds.
    pub clients: Vec<Vec<(u64, u64, Option<u64>)>>,
    /// The maximum number of actions of each client.
    pub calls: u8,
    /// The maximum number of times that time passes, and the possible lengths in microseconds.
    pub time_passes: (u8, Vec<u64>),
    /// The maximum number of faults: the key is deleted, or the clock steps back or forward by a second.
    pub faults: u8,
    /// A planted mistake.
    pub mistake: Option<Mistake>,
}

/// A step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineAction {
    /// A client makes one of its calls.
    Ask(usize, usize),
    /// A client releases its reservation.
    Release(usize),
    /// A waiting client disconnects.
    Gone(usize),
    /// Time passes.
    Pass(u64),
    /// The key is deleted.
    Delete,
    /// The server's clock steps back.
    Back,
    /// The server's clock steps forward.
    Forward,
}

/// A waiting call in the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BookedWaiter {
    leave: u64,
    ticket: Ticket,
    client: usize,
    until_us: Option<u64>,
}

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct LineState {
    lines: Lines<Waiters>,
    saved: Option<Saved>,
    wall_us: u64,
    mono_us: u64,
    timer_us: Option<u64>,
    waiting: Vec<BookedWaiter>,
    /// For each client, whether it believes that it holds a reservation.
    holds_lease: Vec<bool>,
    calls: Vec<u8>,
    time_passes: u8,
    faults: u8,
    /// The time since which the head could be granted, and whether the module was notified of the cause.
    head_could_since: Option<(u64, bool)>,
    outcome: StepOutcome,
}

impl HasOutcome for LineState {
    fn outcome(&self) -> StepOutcome {
        self.outcome
    }
}

fn with_key<T>(saved: &mut Option<Saved>, body: impl FnOnce(&Memory) -> T) -> T {
    MEMORY.with(|memory| {
        memory.delete(KEY);
        if let Some(saved) = saved {
            memory.restore(KEY, saved).expect("what was saved is sound");
        }
        let done = body(memory);
        *saved = memory.save(KEY);
        done
    })
}

impl WaitingWorld {
    /// Makes the call in the engine, and writes its result.
    fn attempt(
        &self,
        state: &mut LineState,
        call: &BlockedCall,
        barred: bool,
        mode: Mode,
    ) -> Option<Decision> {
        let request = call.request(self.limit, self.lease_ms);
        let now_us = state.wall_us;
        with_key(&mut state.saved, |memory| {
            let new_id = || Id::from(&b"z"[..]);
            decide(memory.key(KEY, now_us), &request, barred, mode, new_id).ok()
        })
    }

    /// Returns the verdict that the call would get now.
    fn look(&self, state: &LineState, call: &BlockedCall) -> Option<Verdict> {
        let request = call.request(self.limit, self.lease_ms);
        let look = |memory: &Memory| memory.look(KEY, &request, state.wall_us);
        with_key(&mut state.saved.clone(), look).ok().map(|decision| decision.verdict)
    }

    fn head(&self, state: &LineState) -> Option<(LineId, Ticket, BlockedCall)> {
        let mut lines = state.lines.clone();
        let line = lines.wake(DB_KEY, state.mono_us)?;
        lines.head(line).map(|(ticket, call)| (line, ticket, call))
    }

    /// Tries the call at the head of the line, and ends its wait if it is granted or overdue. Returns whether it ended.
    fn try_head(
        &self,
        state: &mut LineState,
        line: LineId,
        ticket: Ticket,
        call: &BlockedCall,
        is_overdue: bool,
    ) -> bool {
        let (mut ticket, mut call) = (ticket, *call);
        if self.mistake == Some(Mistake::LastIsTried) {
            if let Some(last) = state.waiting.last().copied() {
                let clients = &self.clients[last.client];
                if let Some((quantity, leave, block_us)) =
                    clients.iter().copied().find(|(_, leave, _)| *leave == last.leave)
                {
                    let id = [b'a' + last.client as u8];
                    call = BlockedCall { client: last.client, quantity, leave, block_us, id };
                    ticket = last.ticket;
                }
            }
        }
        let mode = if is_overdue { Mode::Final } else { Mode::Try };
        let Some(decision) = self.attempt(state, &call, false, mode) else {
            // An error: its id is held again, by a lease that had ended before the clock stepped back.
            self.leave(state, ticket, false);
            return true;
        };
        if decision.verdict.allowed() {
            let first = state.waiting.iter().min_by_key(|one| (one.leave, one.ticket));
            let is_first = first.is_some_and(|first| first.ticket == ticket);
            let waits = state.waiting.iter().any(|one| one.ticket == ticket);
            state.outcome.check(waits, Claim::Waiting);
            state.outcome.check(is_first, Claim::Order);
            state.outcome.event = Some(Event::GrantedAfterWaiting);
            state.holds_lease[call.client] = true;
        } else if let (false, Some(wait_us)) = (is_overdue, decision.verdict.retry_after_us()) {
            state.lines.retry_head_after(line, wait_us, state.mono_us);
            return false;
        }
        self.end(state, ticket, decision.verdict.allowed());
        true
    }

    fn end(&self, state: &mut LineState, ticket: Ticket, granted: bool) {
        if !granted {
            let until_us =
                state.waiting.iter().find(|one| one.ticket == ticket).and_then(|one| one.until_us);
            state
                .outcome
                .check(until_us.is_none_or(|until_us| until_us <= state.mono_us), Claim::Patience);
            state.outcome.event = Some(Event::Dismissed);
        }
        self.leave(state, ticket, granted);
    }

    fn leave(&self, state: &mut LineState, ticket: Ticket, granted: bool) {
        state.lines.end(ticket, granted, state.mono_us);
        state.lines.take_reply(ticket, state.mono_us);
        state.lines.forget(ticket, state.mono_us);
        state.waiting.retain(|one| one.ticket != ticket);
        state.head_could_since = None;
    }

    /// Wakes the head of the line, as the module's `wake_key` does.
    fn wake(&self, state: &mut LineState) {
        if self.mistake == Some(Mistake::NoWake) || !state.lines.is_barred(DB_KEY, u64::MAX) {
            return;
        }
        state.lines.begin_work(Cause::Command, 0, state.wall_us, state.mono_us);
        if let Some(line) = state.lines.wake(DB_KEY, state.mono_us) {
            while let Some((ticket, call)) = state.lines.head(line) {
                if !self.try_head(state, line, ticket, &call, false) {
                    break;
                }
            }
        }
        state.lines.end_work(state.mono_us);
    }

    /// Runs the timer's work, as the module's `fired` does.
    fn fire(&self, state: &mut LineState) {
        state.timer_us = None;
        state.lines.begin_work(Cause::Timer, 0, state.wall_us, state.mono_us);
        while let Some((line, _)) = state.lines.next_line(state.mono_us) {
            for _ in 0..8 {
                match state.lines.next_step(line, true, state.mono_us) {
                    None => break,
                    Some(LineStep::Write(())) => {}
                    Some(LineStep::Try { ticket, call, is_overdue }) => {
                        if !self.try_head(state, line, ticket, &call, is_overdue) && is_overdue {
                            break;
                        }
                    }
                    Some(LineStep::Dismiss { ticket, call }) => {
                        self.attempt(state, &call, true, Mode::Try);
                        self.end(state, ticket, false);
                    }
                }
            }
            state.lines.move_to_back(line, state.mono_us);
        }
        state.lines.end_work(state.mono_us);
    }

    fn set_timer(&self, state: &mut LineState) {
        match state.lines.timer(state.mono_us) {
            TimerChange::Keep => {}
            TimerChange::Stop => state.timer_us = None,
            TimerChange::Start { .. } if self.mistake == Some(Mistake::NoTimer) => {}
            TimerChange::Start { after_ms } => {
                state.timer_us = Some(state.mono_us + after_ms * 1_000)
            }
        }
    }

    fn ask(&self, state: &mut LineState, client: usize, which: usize) -> Option<()> {
        if state.waiting.iter().any(|one| one.client == client) {
            return None;
        }
        let (quantity, leave, block_us) = self.clients[client][which];
        let call = BlockedCall { client, quantity, leave, block_us, id: [b'a' + client as u8] };
        self.wake(state);
        let barred =
            state.lines.is_barred(DB_KEY, leave) && self.mistake != Some(Mistake::Overtakes);
        let mode = if block_us.is_some() { Mode::Try } else { Mode::Final };
        let decision = self.attempt(state, &call, barred, mode)?;
        if decision.verdict.allowed() {
            let overtaken = state.waiting.iter().any(|one| one.leave <= leave);
            state.outcome.check(!overtaken, Claim::Order);
            state.holds_lease[client] = true;
            return Some(());
        }
        let (Some(block_us), Verdict::Denied { wait_us, .. }) = (block_us, decision.verdict) else {
            return Some(());
        };
        let ticket = state.lines.admit(100)?;
        let until_us = (block_us > 0).then(|| state.mono_us + block_us);
        let id = Some(Box::from(call.id));
        let joins = Joining { call, leave, id, handle: client, deadline_us: until_us, wait_us };
        state.lines.join(ticket, DB_KEY, joins, state.mono_us);
        state.waiting.push(BookedWaiter { leave, ticket, client, until_us });
        state.outcome.event = Some(Event::Waits);
        Some(())
    }

    /// Releases the client's reservation. Returns `None` if that is an error.
    fn release(&self, state: &mut LineState, client: usize) -> Option<()> {
        self.wake(state);
        let (id, now_us) = (Id::from(&[b'a' + client as u8][..]), state.wall_us);
        with_key(&mut state.saved, |memory| memory.release(KEY, &id, now_us)).ok()?;
        state.holds_lease[client] = false;
        self.wake(state);
        Some(())
    }

    /// Ends the client's wait because it has disconnected.
    fn disconnect(&self, state: &mut LineState, client: usize) -> Option<()> {
        let ticket = state.waiting.iter().find(|one| one.client == client)?.ticket;
        let head = self.head(state).map(|(_, head, _)| head);
        if self.mistake != Some(Mistake::GhostInLine) {
            state.lines.withdraw(ticket, state.mono_us);
            state.lines.forget(ticket, state.mono_us);
        }
        state.waiting.retain(|one| one.ticket != ticket);
        // Otherwise the head still waits.
        if head == Some(ticket) {
            state.head_could_since = None;
        }
        Some(())
    }

    /// Lets time pass, and fires the timer whenever it is due.
    fn pass(&self, state: &mut LineState, us: u64) {
        let end_us = state.mono_us + us;
        for _ in 0..10_000 {
            let wait_us =
                self.head(state).and_then(|(_, _, call)| self.look(state, &call)?.retry_after_us());
            let lapses_us = wait_us.map(|wait_us| state.mono_us + wait_us);
            let due_us = state.timer_us.map(|us| us.max(state.mono_us));
            let stop_us =
                [due_us, lapses_us].into_iter().flatten().min().unwrap_or(end_us).min(end_us);
            state.wall_us += stop_us - state.mono_us;
            state.mono_us = stop_us;
            self.note_could(state, true);
            if state.timer_us.is_some_and(|us| us <= state.mono_us) {
                self.fire(state);
                self.set_timer(state);
                self.note_could(state, true);
            } else if stop_us == end_us {
                return;
            }
        }
        state.outcome.check(false, Claim::TimerStops);
    }

    /// Notes the time since which the head could be granted, and checks that no call waits too long.
    fn note_could(&self, state: &mut LineState, is_woken: bool) {
        let head = self.head(state);
        let could =
            head.and_then(|(_, _, call)| self.look(state, &call)).is_some_and(Verdict::allowed);
        if !could {
            state.head_could_since = None;
        } else {
            let (since_us, is_woken) =
                *state.head_could_since.get_or_insert((state.mono_us, is_woken));
            let max_us = if is_woken { TIMER_US } else { POLL_US + TIMER_US };
            state.outcome.check(state.mono_us - since_us <= max_us, Claim::Woken);
        }
        for one in state.waiting.clone() {
            let late = one.until_us.is_some_and(|us| us + TIMER_US < state.mono_us);
            state.outcome.check(!late, Claim::Patience);
        }
        let works = state.waiting.is_empty() || state.timer_us.is_some();
        state.outcome.check(works || self.mistake.is_some(), Claim::Woken);
    }
}

impl Model for WaitingWorld {
    type State = LineState;
    type Action = LineAction;

    fn init_states(&self) -> Vec<LineState> {
        vec![LineState {
            lines: Lines::default(),
            saved: None,
            wall_us: 1_795_223_799_000_000,
            mono_us: 1_000_000,
            timer_us: None,
            waiting: Vec::new(),
            holds_lease: vec![false; self.clients.len()],
            calls: vec![self.calls; self.clients.len()],
            time_passes: self.time_passes.0,
            faults: self.faults,
            head_could_since: None,
            outcome: StepOutcome::default(),
        }]
    }

    fn actions(&self, state: &LineState, actions: &mut Vec<LineAction>) {
        if state.outcome.violated.is_some() {
            return;
        }
        for (client, asks) in self.clients.iter().enumerate() {
            let waits = state.waiting.iter().any(|one| one.client == client);
            if state.calls[client] == 0 {
                continue;
            }
            if waits {
                actions.push(LineAction::Gone(client));
                continue;
            }
            actions.extend((0..asks.len()).map(|which| LineAction::Ask(client, which)));
            if state.holds_lease[client] {
                actions.push(LineAction::Release(client));
            }
        }
        if state.time_passes > 0 {
            actions.extend(self.time_passes.1.iter().copied().map(LineAction::Pass));
        }
        if state.faults > 0 {
            actions.extend([LineAction::Delete, LineAction::Back, LineAction::Forward]);
        }
    }

    fn next_state(&self, last: &LineState, action: LineAction) -> Option<LineState> {
        let mut state = last.clone();
        state.outcome.event = None;
        let mut is_woken = true;
        match action {
            LineAction::Ask(client, which) => {
                state.calls[client] -= 1;
                self.ask(&mut state, client, which)?;
            }
            LineAction::Release(client) => {
                state.calls[client] -= 1;
                self.release(&mut state, client)?;
            }
            LineAction::Gone(client) => {
                state.calls[client] -= 1;
                self.disconnect(&mut state, client)?;
            }
            LineAction::Pass(us) => {
                state.time_passes -= 1;
                self.pass(&mut state, us);
            }
            LineAction::Delete => {
                state.faults -= 1;
                state.saved = None;
                is_woken = false;
            }
            LineAction::Back => {
                state.faults -= 1;
                state.wall_us -= 1_000_000;
                // The module notices the step and wakes the lines. Its timer is late.
                state.timer_us = None;
                state.lines.restart_timer(state.mono_us);
            }
            LineAction::Forward => {
                state.faults -= 1;
                state.wall_us += 1_000_000;
                is_woken = false;
            }
        }
        self.set_timer(&mut state);
        let by_command = matches!(action, LineAction::Ask(..) | LineAction::Release(_));
        self.note_could(&mut state, is_woken);
        if by_command {
            let could = state.head_could_since.is_some();
            state.outcome.check(!could, Claim::Woken);
        }
        let held = with_key(&mut state.saved.clone(), |memory| memory.held(KEY, state.wall_us));
        let held: u64 = held.unwrap_or_default().iter().map(|one| one.quantity).sum();
        state.outcome.check(held <= self.limit, Claim::Limit);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<WaitingWorld>> {
        outcome::properties(&[Event::Waits, Event::GrantedAfterWaiting, Event::Dismissed])
    }
}

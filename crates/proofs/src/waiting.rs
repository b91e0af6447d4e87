//! A small world with a line: clients wait for a semaphore, each with its own LEAVE and BLOCK. They release, disconnect and
//! let leases lapse. The key may be deleted without notice to the module, and the clock may step.
//!
//! The world is a keyspace of one key, on which the functions run that decide calls and serve lines in the module. It makes
//! what the module gets from its server: clients, commands, a clock and the timer.

use crate::mistake::Mistake;
use crate::outcome::{self, Claim, Event, HasOutcome, StepOutcome};
use commands::decide::decide;
use commands::error::Error;
use commands::keyspace::{Inspection, Keyspace};
use commands::policies::PolicyVerdict;
use commands::reply::{TakeCall, TimeUnit};
use commands::take::{decide_in_turn, Attempt};
use commands::waiting::{
    decide_waiting, is_granted, take_steps, try_heads, Block, Decisions, Next, Place, Step, Trial,
    WaitingCall, WaitingKeyspace,
};
use engine::line::{
    deadline_us, Cause, Joining, LineId, LineTypes, Lines, Ticket, TimerChange, Turn, POLL_US,
};
use engine::memory::{Memory, MemoryKey, MemoryWindow, Saved};
use engine::model;
use engine::reservation::Id;
use engine::rule::Rule;
use engine::settle::Settling;
use engine::store::Access;
use engine::top_keys::TopRow;
use engine::{
    DbKey, Limit, Mode, NewReservation, OwnedDbKey, Quantity, Request, Verdict, WindowLimit,
};
use stateright::{Model, Property};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::iter;
use std::sync::Arc;

thread_local! {
    static MEMORY: Memory = Memory::default();
}

const KEY: &[u8] = b"k";
const DB_KEY: DbKey = DbKey { db: 0, name: KEY };

/// The resolution of the timer: a millisecond.
const TIMER_US: u64 = 1_000;

/// A call that waits.
#[derive(Clone, Debug)]
pub struct BlockedCall {
    client: usize,
    /// Which of its calls the client has made.
    which: usize,
    call: Arc<WaitingCall>,
}

// The request follows from the other fields.
impl PartialEq for BlockedCall {
    fn eq(&self, other: &BlockedCall) -> bool {
        (self.client, self.which) == (other.client, other.which)
    }
}

impl Eq for BlockedCall {}

impl Hash for BlockedCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.client, self.which).hash(state);
    }
}

/// The types of the lines in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiters;

impl LineTypes for Waiters {
    type Call = BlockedCall;
    type Handle = usize;
    type Reply = bool;
    type Write = Infallible;
}

/// A semaphore, its clients, and the events that may happen.
#[derive(Clone, Debug)]
pub struct WaitingWorld {
    /// The largest quantity that is held at once.
    pub limit: u64,
    /// The length of each lease in milliseconds.
    pub lease_ms: u64,
    /// The calls that each client may make: quantity, LEAVE, and BLOCK in milliseconds, 0 for no limit. `None` if the call
    /// does not wait.
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
    /// A client releases its reservation, and makes its first call without waiting, in a transaction.
    Transaction(usize),
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

/// The id of the client's reservation.
fn id_of(client: usize) -> [u8; 1] {
    [b'a' + client as u8]
}

/// Returns the call at the head of the line.
fn head(state: &LineState) -> Option<(Ticket, BlockedCall)> {
    let mut lines = state.lines.clone();
    let line = lines.wake(DB_KEY, state.mono_us)?;
    lines.head(line)
}

/// The key and the line of a state while a step is taken.
struct WorldKeyspace<'w> {
    memory: &'w Memory,
    state: RefCell<&'w mut LineState>,
    mistake: Option<Mistake>,
    in_transaction: Cell<bool>,
}

impl Keyspace for WorldKeyspace<'_> {
    type Key = ();
    type Store<'k>
        = MemoryKey<'k>
    where
        Self: 'k;

    fn store(&self, (): (), _access: Access) -> MemoryKey<'_> {
        self.memory.key(KEY, self.state.borrow().wall_us)
    }

    fn new_id(&self) -> Id {
        Id::from(&b"z"[..])
    }

    fn inspect(&self, (): ()) -> Result<Inspection<MemoryWindow<'_>>, Error> {
        Err(Error::NotLimit)
    }

    fn count_applied(&self, _number: u64) {}

    fn count_released(&self, _number: u64) {}

    fn count_policy(&self, _id: u64, _verdict: PolicyVerdict) {}

    fn note_denial(&self, (): ()) {}

    fn most_denied(&self, _now_us: u64, _count: usize) -> Vec<TopRow> {
        Vec::new()
    }

    fn forget_denials(&self) {}
}

impl WaitingKeyspace for WorldKeyspace<'_> {
    type Types = Waiters;

    fn name(&self, (): ()) -> OwnedDbKey {
        DB_KEY.into()
    }

    fn change<T>(&self, transition: impl FnOnce(&mut Lines<Waiters>, u64) -> T) -> T {
        let state = &mut **self.state.borrow_mut();
        transition(&mut state.lines, state.mono_us)
    }

    fn read_lines<T: Default>(&self, (): (), read: impl FnOnce(&Lines<Waiters>, DbKey) -> T) -> T {
        read(&self.state.borrow().lines, DB_KEY)
    }

    fn wake<'k>(&self, (): (), _emptied: Option<Infallible>)
    where
        Self: 'k,
    {
        let waiting = self.read_lines((), |lines, key| lines.waiting_on(key));
        if self.mistake == Some(Mistake::NoWake) || waiting == 0 {
            return;
        }
        if self.in_transaction.get() && self.mistake != Some(Mistake::TriedWithin) {
            self.change(|lines, now_us| lines.wake(DB_KEY, now_us));
            return;
        }
        let wall_us = self.state.borrow().wall_us;
        self.change(|lines, now_us| lines.begin_work(Cause::Command, 0, wall_us, now_us));
        if let Some(line) = self.change(|lines, now_us| lines.wake(DB_KEY, now_us)) {
            try_heads(self, line, (), None, || true);
        }
        self.change(|lines, now_us| lines.end_work(now_us));
    }

    fn waiting_call(call: &BlockedCall) -> &WaitingCall {
        &call.call
    }

    fn decide_on_its_keys(
        &self,
        (): (),
        _emptied: Option<&Infallible>,
        trial: Trial,
    ) -> Result<(Decisions, Next), Error> {
        decide_waiting(self, &[()], self.store((), Access::Write), trial)
    }

    fn age_us(&self, (): ()) -> u64 {
        0
    }

    fn note_wait(&self, _keys: &[()], _granted: bool) {}

    fn deliver(&self, ticket: Ticket, (): (), result: Result<Decisions, Error>) {
        let state = &mut **self.state.borrow_mut();
        let granted = is_granted(&result);
        let ticket = match (self.mistake, state.waiting.last()) {
            (Some(Mistake::LastIsGranted), Some(last)) if granted => last.ticket,
            _ => ticket,
        };
        let waiter = state.waiting.iter().find(|one| one.ticket == ticket).copied();
        if granted {
            let first = state.waiting.iter().min_by_key(|one| (one.leave, one.ticket));
            let is_first = first.is_some_and(|first| first.ticket == ticket);
            state.outcome.check(waiter.is_some(), Claim::Waiting);
            state.outcome.check(is_first, Claim::Order);
            state.outcome.check(!self.in_transaction.get(), Claim::OneStep);
            state.outcome.event = Some(Event::GrantedAfterWaiting);
            if let Some(waiter) = waiter {
                state.holds_lease[waiter.client] = true;
            }
        } else if result.is_ok() {
            let until_us = waiter.and_then(|one| one.until_us);
            let is_over = until_us.is_none_or(|until_us| until_us <= state.mono_us);
            state.outcome.check(is_over, Claim::Patience);
            state.outcome.event = Some(Event::Dismissed);
        }
        // Otherwise the call has failed: its id is held again, by a lease that had ended before the clock stepped back.
        state.lines.end(ticket, granted, granted, state.mono_us);
        state.lines.take_reply(ticket, state.mono_us);
        state.lines.forget(ticket, state.mono_us);
        state.waiting.retain(|one| one.ticket != ticket);
        state.head_could_since = None;
    }

    fn write(&self, _line: LineId, (): (), never: Infallible) -> Step {
        match never {}
    }
}

impl WaitingWorld {
    /// Runs `step` on the key and the line of a state.
    fn run<T>(&self, state: &mut LineState, step: impl FnOnce(&WorldKeyspace) -> T) -> T {
        let mut saved = state.saved.take();
        let done = with_key(&mut saved, |memory| {
            step(&WorldKeyspace {
                memory,
                state: RefCell::new(state),
                mistake: self.mistake,
                in_transaction: Cell::new(false),
            })
        });
        state.saved = saved;
        done
    }

    fn request(&self, client: usize, which: usize) -> Request {
        let (quantity, leave, _) = self.clients[client][which];
        let window = WindowLimit { limit: self.limit, rule: Rule::Semaphore, max_entries: 4096 };
        let reserve = NewReservation {
            lease_ms: self.lease_ms,
            count_lapsed: false,
            id: Some(Id::from(&id_of(client)[..])),
            max_reservations: 100,
        };
        let mut request = Request::new(Limit::Reserve(window, reserve));
        request.ask.quantity = Quantity::Take(quantity);
        request.ask.leave = leave;
        request
    }

    /// Returns the verdict that the call at the head of the line would get now. `None` if nobody waits.
    fn look_at_head(&self, state: &LineState) -> Option<Verdict> {
        let (_, call) = head(state)?;
        let request = self.request(call.client, call.which);
        let look = |memory: &Memory| memory.look(KEY, &request, state.wall_us);
        with_key(&mut state.saved.clone(), look).ok().map(|decision| decision.verdict)
    }

    /// Serves the lines when the timer fires.
    fn fire(&self, state: &mut LineState) {
        let due_us = state.mono_us;
        state.timer_us = None;
        state.lines.begin_work(Cause::Timer, 0, state.wall_us, due_us);
        self.run(state, |keyspace| {
            let next = || keyspace.change(|lines, now_us| lines.next_line(now_us));
            while let Some((line, _)) = next() {
                take_steps(keyspace, line, (), true, due_us, || true);
                keyspace.change(|lines, now_us| lines.move_to_back(line, now_us));
            }
        });
        state.lines.end_work(due_us);
    }

    fn set_timer(&self, state: &mut LineState) {
        match state.lines.timer(state.mono_us) {
            TimerChange::Keep => {}
            TimerChange::Stop => state.timer_us = None,
            TimerChange::Start { .. } if self.mistake == Some(Mistake::NoTimer) => {}
            // As on a server whose timers count in milliseconds.
            TimerChange::Start { after_us } => {
                state.timer_us = Some(state.mono_us + after_us.next_multiple_of(TIMER_US))
            }
        }
    }

    /// Makes a call. Returns `None` if the client waits, or if the call is an error.
    fn ask(&self, state: &mut LineState, client: usize, which: usize) -> Option<()> {
        if state.waiting.iter().any(|one| one.client == client) {
            return None;
        }
        let (quantity, leave, block_ms) = self.clients[client][which];
        let request = self.request(client, which);
        let block = block_ms.map(|ms| Block { ms, who: None, weight: 1 });
        let now_us = state.wall_us;
        let Attempt { decision, place } = self.run(state, |keyspace| match self.mistake {
            Some(Mistake::Overtakes) => {
                keyspace.wake((), None);
                let store = keyspace.store((), Access::Write);
                let mode = if block_ms.is_some() { Mode::Try } else { Mode::Final };
                let decision = decide(keyspace, store, &request, false, mode, || true).ok()?;
                let wait_us = decision.verdict.retry_after_us();
                Some(Attempt { decision, place: wait_us.map(|wait_us| Place { at: 0, wait_us }) })
            }
            _ => decide_in_turn(keyspace, (), &request, Mode::Final, block.as_ref(), now_us).ok(),
        })?;
        if decision.allowed() {
            let overtaken = state.waiting.iter().any(|one| one.leave <= leave);
            state.outcome.check(!overtaken, Claim::Order);
            state.holds_lease[client] = true;
            return Some(());
        }
        let (Some(Place { wait_us, .. }), Some(block)) = (place, block) else { return Some(()) };
        let ticket = state.lines.admit(100)?;
        let until_us = deadline_us(state.mono_us, block.ms);
        let call = TakeCall { request, unit: TimeUnit::Seconds, policy: None };
        let limit = iter::once((DB_KEY.into(), call));
        let call = Arc::new(WaitingCall::new(limit, None, &block));
        let call = BlockedCall { client, which, call };
        let turn = Turn { leave, who: None, weight: 1, quantity };
        let id = id_of(client);
        let ids = vec![(DB_KEY, &id[..])];
        let joins = Joining { call, turn, ids, handle: client, deadline_us: until_us, wait_us };
        state.lines.join(ticket, DB_KEY, joins, state.mono_us);
        state.waiting.push(BookedWaiter { leave, ticket, client, until_us });
        state.outcome.event = Some(Event::Waits);
        Some(())
    }

    /// Releases the client's reservation. Returns `None` if that is an error.
    fn release(&self, state: &mut LineState, client: usize) -> Option<()> {
        self.run(state, |keyspace| {
            let store = keyspace.store((), Access::Write);
            model::settle(store, &Id::from(&id_of(client)[..]), Settling::Release).ok()?;
            keyspace.wake((), None);
            Some(())
        })?;
        state.holds_lease[client] = false;
        Some(())
    }

    /// Releases the client's reservation and makes its first call, in a transaction. Returns `None` if that is an error.
    fn transact(&self, state: &mut LineState, client: usize) -> Option<()> {
        let request = self.request(client, 0);
        let Attempt { decision, .. } = self.run(state, |keyspace| {
            keyspace.in_transaction.set(true);
            let store = keyspace.store((), Access::Write);
            model::settle(store, &Id::from(&id_of(client)[..]), Settling::Release).ok()?;
            keyspace.wake((), None);
            let now_us = keyspace.state.borrow().wall_us;
            decide_in_turn(keyspace, (), &request, Mode::Final, None, now_us).ok()
        })?;
        let overtaken = state.waiting.iter().any(|one| one.leave <= request.leave());
        state.outcome.check(!decision.allowed() || !overtaken, Claim::Order);
        state.holds_lease[client] = decision.allowed();
        Some(())
    }

    /// Ends the client's wait because it has disconnected.
    fn disconnect(&self, state: &mut LineState, client: usize) -> Option<()> {
        let ticket = state.waiting.iter().find(|one| one.client == client)?.ticket;
        let head = head(state).map(|(head, _)| head);
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
            let wait_us = self.look_at_head(state).and_then(Verdict::retry_after_us);
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
        if !self.look_at_head(state).is_some_and(Verdict::allowed) {
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
                actions.extend([LineAction::Release(client), LineAction::Transaction(client)]);
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
            LineAction::Transaction(client) => {
                state.calls[client] -= 1;
                self.transact(&mut state, client)?;
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

//! Small worlds with lines: clients wait for one limit, each with its own LEAVE and BLOCK, or for two at once. They release,
//! disconnect and let leases lapse. The keys may be deleted without notice to the module, and the clock may step.
//!
//! A world is a keyspace of one or two keys, on which the commands of the module run, and the functions that serve its
//! lines. It makes what the module gets from its server: clients, a clock and the timer.

use crate::mistake::Mistake;
use crate::outcome::{self, Claim, Event, HasOutcome, StepOutcome};
use commands::arguments::Words;
use commands::call::ServerCall;
use commands::decide::decide;
use commands::dispatch::run;
use commands::error::{CallError, Error};
use commands::keyspace::{Inspection, Keyspace};
use commands::memory::MemoryServer;
use commands::policies::PolicyVerdict;
use commands::reply::{CallResult, ReplySink};
use commands::table::COMMANDS;
use commands::waiting::{
    decide_waiting, is_granted, serve_line, try_heads, Decisions, Step, Trial, TrialKind,
    WaitingCall, WaitingKeyspace,
};
use engine::calendar::Zones;
use engine::line::{
    deadline_us, LineId, LineTypes, Lines, NewWaiter, Ticket, TimerChange, WorkCause, POLL_US,
};
use engine::memory::{Memory, MemoryKey, MemoryWindow, Saved};
use engine::reservation::Id;
use engine::rule::Rule;
use engine::store::Access;
use engine::top_keys::TopRow;
use engine::{
    AwaitedLimit, DbKey, Limit, Mode, NewReservation, OwnedDbKey, Part, Quantity, Request,
    WindowLimit,
};
use stateright::{Model, Property};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::slice;
use std::sync::Arc;

thread_local! {
    static MEMORY: Memory = Memory::default();
    /// A server for its default settings.
    static SETTINGS: &'static MemoryServer = Box::leak(Box::new(MemoryServer::new(|_| ())));
}

const KEYS: [&[u8]; 2] = [b"a", b"b"];

/// The resolution of the timer: a millisecond.
const TIMER_US: u64 = 1_000;

/// A client that makes no calls.
const NOBODY: usize = 9;

fn db_key(key: usize) -> DbKey<'static> {
    DbKey { db: 0, name: KEYS[key] }
}

fn index_of(key: DbKey) -> usize {
    KEYS.iter().position(|name| *name == key.name).expect("a key of the world")
}

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

/// The types of the lines in these worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiters;

impl LineTypes for Waiters {
    type Call = BlockedCall;
    type Handle = usize;
    type Reply = bool;
    type Write = Infallible;
}

/// A limit.
#[derive(Clone, Copy, Debug)]
pub struct LineLimit {
    /// The largest quantity at once.
    pub limit: u64,
    /// The length of a window in milliseconds, which counts denied calls. 0 for a semaphore, in which calls reserve.
    pub period_ms: u64,
}

/// A call that a client may make.
#[derive(Clone, Debug)]
pub struct LineCall {
    /// The quantity that it asks for of each of its keys. Several make it an RL.ALL.
    pub asks: Vec<(usize, u64)>,
    pub leave: u64,
    /// BLOCK in milliseconds, 0 for no limit. `None` if it does not wait.
    pub block_ms: Option<u64>,
}

/// Limits, their clients, and the events that may happen.
#[derive(Clone, Debug)]
pub struct WaitingWorld {
    /// The limits on the keys.
    pub limits: Vec<LineLimit>,
    /// The length of each lease in milliseconds.
    pub lease_ms: u64,
    /// The calls that each client may make.
    pub clients: Vec<Vec<LineCall>>,
    /// The maximum number of actions of each client.
    pub calls: u8,
    /// The maximum number of times that time passes, and the possible lengths in microseconds.
    pub time_passes: (u8, Vec<u64>),
    /// The maximum number of faults: the keys are deleted, or the clock steps back or forward by a second.
    pub faults: u8,
    pub must_happen: Vec<Event>,
    /// A planted mistake.
    pub mistake: Option<Mistake>,
}

/// A step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineAction {
    /// A client makes one of its calls.
    Ask(usize, usize),
    /// A client releases its reservations.
    Release(usize),
    /// A client releases its reservations, and makes its first call without waiting, in a transaction.
    Transaction(usize),
    /// A waiting client disconnects.
    Gone(usize),
    /// Time passes.
    Pass(u64),
    /// The keys are deleted.
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
    /// The ticket with which it came.
    came: Ticket,
    /// The ticket that it has now. Only a mistake changes it.
    ticket: Ticket,
    client: usize,
    which: usize,
    /// The key in whose line it stands.
    at: usize,
    until_us: Option<u64>,
    /// The time since which it could be granted, and whether the module was notified of the cause.
    could_since: Option<(u64, bool)>,
}

impl BookedWaiter {
    fn place(&self) -> (u64, Ticket) {
        (self.leave, self.came)
    }
}

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct LineState {
    lines: Lines<Waiters>,
    saved: Vec<Option<Saved>>,
    wall_us: u64,
    mono_us: u64,
    timer_us: Option<u64>,
    waiting: Vec<BookedWaiter>,
    /// For each client, whether it believes that it holds reservations.
    holds_lease: Vec<bool>,
    calls: Vec<u8>,
    time_passes: u8,
    faults: u8,
    /// The time of the last change of which the module was not notified.
    unnoticed_us: Option<u64>,
    outcome: StepOutcome,
}

impl LineState {
    /// Returns whether a waiter stands in the line of the key before this place.
    fn is_preceded(&self, key: usize, place: (u64, Ticket)) -> bool {
        self.waiting.iter().any(|one| one.at == key && one.place() < place)
    }

    fn waiting_on(&self) -> Vec<usize> {
        (0..self.saved.len()).map(|key| self.lines.waiting_on(db_key(key))).collect()
    }
}

impl HasOutcome for LineState {
    fn outcome(&self) -> StepOutcome {
        self.outcome
    }
}

fn with_keys<T>(saved: &mut [Option<Saved>], body: impl FnOnce(&Memory) -> T) -> T {
    MEMORY.with(|memory| {
        for (name, saved) in KEYS.iter().zip(&*saved) {
            memory.delete(name);
            if let Some(saved) = saved {
                memory.restore(name, saved).expect("what was saved is sound");
            }
        }
        let done = body(memory);
        for (name, saved) in KEYS.iter().zip(saved) {
            *saved = memory.save(name);
        }
        done
    })
}

/// The id of the client's reservations.
fn id_of(client: usize) -> [u8; 1] {
    [b'p' + client as u8]
}

/// The keys and the lines of a state while a step is taken.
struct WorldKeyspace<'w> {
    world: &'w WaitingWorld,
    memory: &'w Memory,
    state: RefCell<&'w mut LineState>,
    in_transaction: Cell<bool>,
    /// Waiters are being served.
    serves: Cell<bool>,
    /// The quantity that each key had left when the waiters before a call had been served.
    left: RefCell<Vec<u64>>,
}

impl WorldKeyspace<'_> {
    fn is_planted(&self, mistake: Mistake) -> bool {
        self.world.mistake == Some(mistake)
    }

    /// Returns the quantity that each key has left.
    fn left(&self) -> Vec<u64> {
        let wall_us = self.state.borrow().wall_us;
        let left = |key: usize| {
            let request = self.world.request(NOBODY, (key, 1), 0);
            self.memory.look(KEYS[key], &request, wall_us).map_or(0, |decision| decision.remaining)
        };
        (0..self.world.limits.len()).map(left).collect()
    }

    /// Notes in the books that a call has changed its line, and makes the mistakes of such calls.
    fn note_change(&self, state: &mut LineState) {
        let mut lines = state.lines.clone();
        let changed = state.waiting.iter_mut().find_map(|one| {
            let waiter = lines.forget(one.ticket, state.mono_us)?;
            (index_of(waiter.key.borrowed()) != one.at).then_some((one, waiter))
        });
        let Some((one, waiter)) = changed else { return };
        let old = std::mem::replace(&mut one.at, index_of(waiter.key.borrowed()));
        state.outcome.event = Some(Event::ChangesLine);
        let join = |lines: &mut Lines<Waiters>, at: usize| {
            let ticket = lines.admit(100).expect("few wait");
            let call = waiter.call.clone();
            let turn = call.call.turn(call.call.index_of(db_key(at)).expect("a key of the call"));
            let new_waiter = NewWaiter {
                call: waiter.call.clone(),
                turn: turn.expect("a limit of the call"),
                ids: waiter.call.call.ids(),
                handle: one.client,
                deadline_us: one.until_us,
                wait_us: POLL_US,
            };
            lines.join(ticket, db_key(at), new_waiter, state.mono_us);
            ticket
        };
        match self.world.mistake {
            Some(Mistake::JoinsAtTheEnd) => {
                let ticket = join(&mut state.lines, one.at);
                state.lines.forget(one.ticket, state.mono_us);
                one.ticket = ticket;
            }
            Some(Mistake::TwoPlaces) => {
                join(&mut state.lines, old);
            }
            _ => {}
        }
    }
}

impl<'a> Keyspace for &'a WorldKeyspace<'_> {
    type Key = usize;
    type Store<'k>
        = MemoryKey<'a>
    where
        Self: 'k;

    fn store(&self, key: usize, _access: Access) -> MemoryKey<'a> {
        let keyspace: &'a WorldKeyspace = self;
        keyspace.memory.key(KEYS[key], keyspace.state.borrow().wall_us)
    }

    fn new_id(&self) -> Id {
        Id::from(&b"z"[..])
    }

    fn inspect(&self, _key: usize) -> Result<Option<Inspection<MemoryWindow<'a>>>, Error> {
        Err(Error::NotLimit)
    }

    fn count_applied(&self, _number: u64) {}

    fn count_released(&self, _number: u64) {}

    fn count_policy(&self, _id: u64, _verdict: PolicyVerdict) {}

    fn note_denial(&self, _key: usize) {}

    fn most_denied(&self, _now_us: u64, _count: usize) -> Vec<TopRow> {
        Vec::new()
    }

    fn forget_denials(&self) {}
}

impl<'a> WaitingKeyspace for &'a WorldKeyspace<'_> {
    type Types = Waiters;

    fn name(&self, key: usize) -> OwnedDbKey {
        db_key(key).into()
    }

    fn change_lines<T>(&self, transition: impl FnOnce(&mut Lines<Waiters>, u64) -> T) -> T {
        let state = &mut **self.state.borrow_mut();
        let (waiting, waiting_on) = (state.lines.waiting_count(), state.waiting_on());
        let result = transition(&mut state.lines, state.mono_us);
        if state.lines.waiting_count() == waiting && state.waiting_on() != waiting_on {
            self.note_change(state);
        }
        result
    }

    fn read_lines<T: Default>(
        &self,
        key: usize,
        read: impl FnOnce(&Lines<Waiters>, DbKey) -> T,
    ) -> T {
        if self.is_planted(Mistake::Overtakes) && !self.serves.get() {
            return T::default();
        }
        read(&self.state.borrow().lines, db_key(key))
    }

    fn wake<'k>(&self, key: usize, _emptied: Option<Infallible>)
    where
        Self: 'k,
    {
        let waiting = self.state.borrow().lines.waiting_on(db_key(key));
        if waiting > 0 && !self.is_planted(Mistake::NoWake) {
            if self.in_transaction.get() && !self.is_planted(Mistake::TriedWithin) {
                self.change_lines(|lines, now_us| lines.make_head_due(db_key(key), now_us));
            } else {
                self.serves.set(true);
                let wall_us = self.state.borrow().wall_us;
                let begin = WorkCause::Command;
                self.change_lines(|lines, now_us| lines.begin_work(begin, 0, wall_us, now_us));
                if let Some(line) =
                    self.change_lines(|lines, now_us| lines.make_head_due(db_key(key), now_us))
                {
                    try_heads(self, line, key, None, || true);
                }
                self.change_lines(|lines, now_us| lines.end_work(now_us));
                self.serves.set(false);
            }
        }
        self.left.replace(self.left());
    }

    fn waiting_call(call: &BlockedCall) -> &WaitingCall {
        &call.call
    }

    fn decide_on_its_keys(
        &self,
        _key: usize,
        _emptied: Option<&Infallible>,
        trial: Trial,
    ) -> Result<(Decisions, Option<AwaitedLimit>), Error> {
        let keyspace: &'a WorldKeyspace = self;
        let keys: Vec<usize> = trial.call.keys().map(index_of).collect();
        let own = || keyspace.store(keys[trial.at], trial.access());
        let before = self.left();
        let one =
            self.state.borrow().waiting.iter().find(|one| one.ticket == trial.ticket).copied();
        let asks = one.map(|one| self.world.clients[one.client][one.which].asks.clone());
        if let (true, Some(one)) = (self.is_planted(Mistake::OneKeyAlone), one) {
            let ask = asks.as_ref().expect("it asks")[trial.at];
            let request = self.world.request(one.client, ask, one.leave);
            let mut part = Part::new(own(), &request, 0, !trial.may_grant());
            let parts = slice::from_mut(&mut part);
            if let Ok((plan, _)) = decide(&keyspace, parts, Mode::Try, |_| Ok(None)) {
                plan.write();
            }
        }
        let mut decided = decide_waiting(&keyspace, &keys, own(), trial);
        let granted = is_granted(&decided.clone().map(|(decisions, _)| decisions));
        let counts = matches!(trial.kind, TrialKind::LastTry | TrialKind::Dismiss);
        if self.is_planted(Mistake::CountsTwice) && counts && !granted {
            decided = decide_waiting(&keyspace, &keys, own(), trial);
        }
        let after = self.left();
        let outcome = &mut self.state.borrow_mut().outcome;
        let taken = |key: usize| before[key].saturating_sub(after[key]);
        match (&decided, asks) {
            (Ok((_, None)), Some(asks)) if granted => {
                let all = asks.iter().all(|(key, quantity)| taken(*key) == *quantity);
                outcome.check(all, Claim::AllOrNothing);
            }
            (Ok((_, None)), Some(asks)) => {
                let once = asks.iter().all(|(key, quantity)| taken(*key) <= *quantity);
                outcome.check(once, Claim::CountedOnce);
            }
            (Ok((_, None)), None) => {}
            (Ok(_) | Err(_), _) => outcome.check(before == after, Claim::HoldsNothing),
        }
        decided
    }

    fn elapsed_us(&self, _key: usize) -> u64 {
        0
    }

    fn note_wait(&self, _keys: &[usize], _granted: bool) {}

    fn deliver(&self, ticket: Ticket, _key: usize, result: Result<Decisions, Error>) {
        let state = &mut **self.state.borrow_mut();
        let granted = is_granted(&result);
        let ticket = match (self.world.mistake, state.waiting.last()) {
            (Some(Mistake::LastIsGranted), Some(last)) if granted => last.ticket,
            _ => ticket,
        };
        let waiter = state.waiting.iter().find(|one| one.ticket == ticket).copied();
        if granted {
            state.outcome.check(waiter.is_some(), Claim::Waiting);
            state.outcome.check(!self.in_transaction.get(), Claim::OneStep);
            state.outcome.event = Some(Event::GrantedAfterWaiting);
            if let Some(one) = waiter {
                let asks = &self.world.clients[one.client][one.which].asks;
                let preceded = asks.iter().any(|(key, _)| state.is_preceded(*key, one.place()));
                state.outcome.check(!preceded, Claim::Order);
                state.holds_lease[one.client] = self.world.reserves(one.client, one.which);
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
    }

    fn make_pending_write(&self, _line: LineId, _key: usize, never: Infallible) -> Step {
        match never {}
    }
}

/// A command that a client sends.
struct WorldCall<'a, 'w> {
    keyspace: &'a WorldKeyspace<'w>,
    words: &'a [&'a [u8]],
    client: usize,
    which: usize,
}

impl<'a> Words<'a> for WorldCall<'a, '_> {
    fn len(&self) -> usize {
        self.words.len()
    }

    fn word(&self, at: usize) -> Option<&'a [u8]> {
        self.words.get(at).copied()
    }
}

impl<'a, 'w> ServerCall<'a> for WorldCall<'a, 'w> {
    type Key = usize;
    type Keyspace = &'a WorldKeyspace<'w>;
    type Environment = &'static MemoryServer;
    type Hash = Infallible;
    type Sink = NoReply;

    fn keyspace(&self) -> Self::Keyspace {
        self.keyspace
    }

    fn keyspace_for_all(&self, _words: Range<usize>) -> Result<Self::Keyspace, Error> {
        Ok(self.keyspace)
    }

    fn environment(&self) -> &'static MemoryServer {
        SETTINGS.with(|settings| *settings)
    }

    fn sink(&self) -> NoReply {
        NoReply
    }

    fn now_us(&self) -> u64 {
        self.keyspace.state.borrow().wall_us
    }

    fn key(&self, at: usize, _now_us: u64) -> Option<usize> {
        self.word(at).map(|name| index_of(DbKey { db: 0, name }))
    }

    fn open_hash(&self, _key: usize) -> Result<Infallible, Error> {
        Err(Error::NotHash)
    }

    fn field(&self, _hash: &Infallible, _name: &[u8]) -> Option<impl AsRef<[u8]>> {
        None::<&[u8]>
    }

    fn may_block(&self) -> bool {
        !self.keyspace.in_transaction.get()
    }

    fn join(
        &self,
        key: usize,
        call: WaitingCall,
        block_ms: u64,
        AwaitedLimit { index, wait_us }: AwaitedLimit,
    ) -> Result<(), Error> {
        let unchanged = self.keyspace.left() == *self.keyspace.left.borrow();
        let WorldCall { keyspace, client, which, .. } = *self;
        let leave = keyspace.world.clients[client][which].leave;
        let state = &mut **keyspace.state.borrow_mut();
        state.outcome.check(unchanged, Claim::HoldsNothing);
        let ticket = state.lines.admit(100).ok_or(Error::TooManyWaiters)?;
        let until_us = deadline_us(state.mono_us, block_ms);
        let call = Arc::new(call);
        let new_waiter = NewWaiter {
            call: BlockedCall { client, which, call: call.clone() },
            turn: call.turn(index).ok_or(Error::internal())?,
            ids: call.ids(),
            handle: client,
            deadline_us: until_us,
            wait_us,
        };
        state.lines.join(ticket, db_key(key), new_waiter, state.mono_us);
        let (came, at, could_since) = (ticket, key, None);
        let waiter = BookedWaiter { leave, came, ticket, client, which, at, until_us, could_since };
        state.waiting.push(waiter);
        state.outcome.event = Some(Event::Waits);
        Ok(())
    }
}

/// Drops the reply.
struct NoReply;

impl ReplySink for NoReply {
    fn array(&self, _len: usize) {}

    fn map(&self, _fields: usize) {}

    fn integer(&self, _value: i64) {}

    fn text(&self, _text: &[u8]) {}

    fn nil(&self) {}
}

impl WaitingWorld {
    /// Runs `step` on the keys and the lines of a state.
    fn run<T>(&self, state: &mut LineState, step: impl FnOnce(&WorldKeyspace) -> T) -> T {
        let mut saved = std::mem::take(&mut state.saved);
        state.saved = vec![None; saved.len()];
        let done = with_keys(&mut saved, |memory| {
            step(&WorldKeyspace {
                world: self,
                memory,
                state: RefCell::new(state),
                in_transaction: Cell::new(false),
                serves: Cell::new(false),
                left: RefCell::default(),
            })
        });
        state.saved = saved;
        done
    }

    /// Returns the request for a quantity of a key.
    fn request(&self, client: usize, (key, quantity): (usize, u64), leave: u64) -> Request {
        let LineLimit { limit, period_ms } = self.limits[key];
        let rule = match period_ms {
            0 => Rule::Semaphore,
            _ => {
                let text = format!("{period_ms}ms");
                Rule::parse(text.as_bytes(), &mut Zones::new()).expect("a rule")
            }
        };
        let window = WindowLimit { limit, rule, max_entries: 4096 };
        let reserve = NewReservation {
            lease_ms: self.lease_ms,
            count_lapsed: false,
            id: Some(Id::from(&id_of(client)[..])),
            max_reservations: 100,
        };
        let mut request = Request::new(match period_ms {
            0 => Limit::Reserve(window, reserve),
            _ => Limit::Window(window),
        });
        request.ask.quantity = Quantity::Take(quantity);
        request.ask.leave = leave;
        request
    }

    /// Returns whether a call reserves something.
    fn reserves(&self, client: usize, which: usize) -> bool {
        let asks = &self.clients[client][which].asks;
        asks.iter().any(|(key, _)| self.limits[*key].period_ms == 0)
    }

    /// Returns the command for a call.
    fn command(&self, client: usize, which: usize) -> String {
        let LineCall { asks, leave, block_ms } = &self.clients[client][which];
        let id = id_of(client)[0] as char;
        let clause = |(key, quantity): &(usize, u64)| {
            let LineLimit { limit, period_ms } = self.limits[*key];
            match period_ms {
                0 => {
                    let lease_ms = self.lease_ms;
                    format!("ACQUIRE {limit} 0 {quantity} LEAVE {leave} LEASE {lease_ms} ID {id}")
                }
                _ => format!("WINDOW {limit} {period_ms}ms {quantity} LEAVE {leave} COUNTDENIED"),
            }
        };
        let name = |key: usize| KEYS[key][0] as char;
        let call = match &asks[..] {
            [ask] => {
                let clause = clause(ask);
                let (family, rest) = clause.split_once(' ').expect("a clause has several words");
                format!("RL.{family} {} {rest}", name(ask.0))
            }
            _ => {
                let keys: Vec<String> = asks.iter().map(|ask| name(ask.0).to_string()).collect();
                let clauses: Vec<String> = asks.iter().map(clause).collect();
                format!("RL.ALL {} {} {}", keys.len(), keys.join(" "), clauses.join(" "))
            }
        };
        match block_ms {
            Some(ms) => format!("{call} BLOCK {ms}"),
            None => call,
        }
    }

    /// Executes a command of a client. `None` if the reply is an error.
    fn execute(
        &self,
        keyspace: &WorldKeyspace,
        command: &str,
        client: usize,
        which: usize,
    ) -> Option<CallResult> {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let is_row = |name: &[u8]| name.eq_ignore_ascii_case(words[0]);
        let row = COMMANDS.iter().find(|row| is_row(row.name.to_bytes())).expect("a command");
        let call = WorldCall { keyspace, words: &words, client, which };
        match run(row, &call) {
            Err(CallError::Plain(Error::Duplicate)) => None,
            result => Some(result.expect("a sound command")),
        }
    }

    /// Serves the lines when the timer fires.
    fn fire(&self, state: &mut LineState) {
        let due_us = state.mono_us;
        state.timer_us = None;
        state.lines.begin_work(WorkCause::Timer, 0, state.wall_us, due_us);
        self.run(state, |keyspace| {
            keyspace.serves.set(true);
            let next = || keyspace.change_lines(|lines, now_us| lines.next_line(now_us));
            while let Some((line, key)) = next() {
                let key = index_of(key.borrowed());
                serve_line(&keyspace, line, key, true, due_us, || true);
                keyspace.change_lines(|lines, now_us| lines.move_to_back(line, now_us));
            }
        });
        state.lines.end_work(due_us);
    }

    fn set_timer(&self, state: &mut LineState) {
        match state.lines.update_timer(state.mono_us) {
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
        let command = self.command(client, which);
        let result = self.run(state, |keyspace| self.execute(keyspace, &command, client, which))?;
        if matches!(result, CallResult::Allowed) {
            self.check_arrival(state, client, which);
            state.holds_lease[client] |= self.reserves(client, which);
        }
        Some(())
    }

    /// Checks that a call that was allowed on arrival has overtaken nobody.
    fn check_arrival(&self, state: &mut LineState, client: usize, which: usize) {
        let LineCall { asks, leave, .. } = &self.clients[client][which];
        let place = (leave.saturating_add(1), Ticket::from_number(0));
        let preceded = asks.iter().any(|(key, _)| state.is_preceded(*key, place));
        state.outcome.check(!preceded, Claim::Order);
    }

    /// Releases the client's reservations. Returns `None` if it has none.
    fn release(&self, keyspace: &WorldKeyspace, client: usize) -> Option<()> {
        let id = id_of(client)[0] as char;
        let mut released = None;
        for (name, limit) in KEYS.iter().zip(&self.limits) {
            if limit.period_ms == 0 {
                let command = format!("RL.RELEASE {} {id}", name[0] as char);
                if let Some(CallResult::Allowed) = self.execute(keyspace, &command, client, 0) {
                    released = Some(());
                }
            }
        }
        released
    }

    /// Releases the client's reservations and makes its first call, in a transaction. Returns `None` if that is an error.
    fn transact(&self, state: &mut LineState, client: usize) -> Option<()> {
        let command = self.command(client, 0);
        let result = self.run(state, |keyspace| {
            keyspace.in_transaction.set(true);
            self.release(keyspace, client)?;
            self.execute(keyspace, &command, client, 0)
        })?;
        let allowed = matches!(result, CallResult::Allowed);
        if allowed {
            self.check_arrival(state, client, 0);
        }
        state.holds_lease[client] = allowed && self.reserves(client, 0);
        Some(())
    }

    /// Ends the client's wait because it has disconnected.
    fn disconnect(&self, state: &mut LineState, client: usize) -> Option<()> {
        let ticket = state.waiting.iter().find(|one| one.client == client)?.ticket;
        if self.mistake != Some(Mistake::GhostInLine) {
            state.lines.withdraw(ticket, state.mono_us);
            state.lines.forget(ticket, state.mono_us);
        }
        state.waiting.retain(|one| one.ticket != ticket);
        Some(())
    }

    /// Lets time pass, and fires the timer whenever it is due.
    fn pass(&self, state: &mut LineState, us: u64) {
        let end_us = state.mono_us + us;
        for _ in 0..10_000 {
            let lapses_us = self.next_grant_us(state);
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

    /// Returns the wait of a waiter until each of its limits allows it. `None` if one never does.
    fn wait_us(&self, memory: &Memory, wall_us: u64, one: &BookedWaiter) -> Option<u64> {
        let mut longest_us = 0;
        for ask in &self.clients[one.client][one.which].asks {
            let request = self.request(one.client, *ask, one.leave);
            let verdict = memory.look(KEYS[ask.0], &request, wall_us).ok()?.verdict;
            if !verdict.allowed() {
                longest_us = longest_us.max(verdict.retry_after_us()?);
            }
        }
        Some(longest_us)
    }

    /// Returns the next time at which time alone lets a waiter be granted.
    fn next_grant_us(&self, state: &LineState) -> Option<u64> {
        with_keys(&mut state.saved.clone(), |memory| {
            let waits =
                state.waiting.iter().filter_map(|one| self.wait_us(memory, state.wall_us, one));
            waits.filter(|wait_us| *wait_us > 0).min().map(|wait_us| state.mono_us + wait_us)
        })
    }

    /// Notes the time since which each waiter could be granted, and checks that no call waits too long.
    fn note_could(&self, state: &mut LineState, is_woken: bool) {
        let mut waiting = state.waiting.clone();
        with_keys(&mut state.saved.clone(), |memory| {
            for one in &mut waiting {
                let asks = &self.clients[one.client][one.which].asks;
                let is_first = !asks.iter().any(|(key, _)| state.is_preceded(*key, one.place()));
                if !is_first || self.wait_us(memory, state.wall_us, one) != Some(0) {
                    one.could_since = None;
                    continue;
                }
                let (since_us, is_woken) =
                    *one.could_since.get_or_insert((state.mono_us, is_woken));
                let mut last_us = since_us + if is_woken { 0 } else { POLL_US };
                if let Some(unnoticed_us) = state.unnoticed_us.filter(|_| asks.len() > 1) {
                    // What has changed unnoticed may be the key of its line, and what allows it now another key.
                    last_us = last_us.max(unnoticed_us + POLL_US);
                }
                state.outcome.check(state.mono_us <= last_us + TIMER_US, Claim::Woken);
            }
        });
        for one in &waiting {
            let late = one.until_us.is_some_and(|us| us + TIMER_US < state.mono_us);
            state.outcome.check(!late, Claim::Patience);
        }
        let works = waiting.is_empty() || state.timer_us.is_some();
        state.outcome.check(works || self.mistake.is_some(), Claim::Woken);
        state.waiting = waiting;
    }
}

impl WaitingWorld {
    /// Checks that no more than each limit is held.
    fn check_held(&self, state: &mut LineState) {
        let held = with_keys(&mut state.saved.clone(), |memory| {
            KEYS[..self.limits.len()]
                .iter()
                .map(|name| memory.held(name, state.wall_us).unwrap_or_default())
                .collect::<Vec<_>>()
        });
        for (held, limit) in held.iter().zip(&self.limits) {
            let held: u64 = held.iter().map(|one| one.quantity).sum();
            state.outcome.check(held <= limit.limit, Claim::Limit);
        }
    }
}

impl Model for WaitingWorld {
    type State = LineState;
    type Action = LineAction;

    fn init_states(&self) -> Vec<LineState> {
        vec![LineState {
            lines: Lines::default(),
            saved: vec![None; self.limits.len()],
            wall_us: 1_795_223_799_000_000,
            mono_us: 1_000_000,
            timer_us: None,
            waiting: Vec::new(),
            holds_lease: vec![false; self.clients.len()],
            calls: vec![self.calls; self.clients.len()],
            time_passes: self.time_passes.0,
            faults: self.faults,
            unnoticed_us: None,
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
                self.run(&mut state, |keyspace| self.release(keyspace, client))?;
                state.holds_lease[client] = false;
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
                state.saved = vec![None; self.limits.len()];
                (state.unnoticed_us, is_woken) = (Some(state.mono_us), false);
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
                (state.unnoticed_us, is_woken) = (Some(state.mono_us), false);
            }
        }
        self.set_timer(&mut state);
        self.note_could(&mut state, is_woken);
        // A command serves the lines of its keys before it ends.
        let served = |key: usize| match action {
            LineAction::Ask(client, which) => {
                self.clients[client][which].asks.iter().any(|ask| ask.0 == key)
            }
            LineAction::Release(_) => self.limits[key].period_ms == 0,
            _ => false,
        };
        let could = state.waiting.iter().any(|one| one.could_since.is_some() && served(one.at));
        state.outcome.check(!could, Claim::Woken);
        self.check_held(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<WaitingWorld>> {
        outcome::properties(&self.must_happen)
    }
}

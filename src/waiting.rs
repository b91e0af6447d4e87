//! BLOCK: calls that wait in the server, for each key in the order of LEAVE, turns (BY) and arrival.
//!
//! ```text
//! A call with BLOCK is denied.
//!   join           blocks its client, and puts it into the line on its key
//! The head of the line is tried, and nobody else (try_head in crates/commands/src/waiting.rs).
//!   wake           by each command that may write to the key, before it takes and after it gives back
//!   serve_timer    by the timer, when the head could be granted or a wait times out, after a transaction or a script with
//!                  such a command, and every POLL_US, because the server does not notify us of all changes to the key
//!   deliver        granted, refused with an error, or denied in the end: keeps the reply, and unblocks the client
//! The server lets the client go (redis/blocked.rs), at once or in a later iteration of its event loop.
//!   answer         the server asks for the reply, which is written here
//!   forget         the client is gone; a grant that did not reach it is given back by the next serve_timer
//! ```
//!
//! CLIENT UNBLOCK leads from join to answer. For a client that disconnects, or that the server redirects, withdraw and
//! forget follow join.
//!
//! The lines are a state machine, [`engine::line`]. Its transitions change the lines and return what has to be done with the
//! server, and the functions here do that. So no line is in use while the server runs, which may call the module back. A
//! grant is written in the context of the command or timer that tries the head, before the client is unblocked.
//!
//! To add another way to end a wait, add a transition to the engine and call it here.

use crate::call_end::{end_call, end_call_after_panic, ServerCommand};
use crate::keys::{EmptiedZset, KeyContext, ServerKeyspace};
use crate::redis::acceptance::{accepts_write_in_call, may_accept_writes, Acceptance};
use crate::redis::blocked::{Blocked, BlockedEvents, WaitNumber};
use crate::redis::call::{Call, CommandNumber};
use crate::redis::clock::{command_time_us, monotonic_us, wall_time_us};
use crate::redis::context::{ClientId, Context, KeyName};
use crate::redis::key::touch;
use crate::redis::random::RandomPool;
use crate::redis::server_events::{subscribe, ServerEvents, ITERATIONS};
use crate::redis::slot;
use crate::redis::text::OwnedString;
use crate::redis::timer::{Timer, TimerEvents};
use crate::redis::under_lock::UnderLock;
use crate::state::State;
use commands::decide::{count_denial, give_back};
use commands::error::Error;
use commands::keyspace::Keyspace;
use commands::waiting::{
    decide_waiting, is_granted, serve_line, try_heads, Decisions, Step, TimedReply, Trial,
    TrialKind, WaitingCall, WaitingKeyspace,
};
use engine::line::{
    deadline_us, LineId, LineTypes, Lines, NewWaiter, Ticket, TimerChange, WaiterReply,
    WaiterState, WorkCause,
};
use engine::reservation::id_from_random;
use engine::store::EmptiedKey as _;
use engine::text::ShortText;
use engine::{AwaitedLimit, DbKey, Decision, OwnedDbKey, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The calls that wait on this server.
#[derive(Default)]
pub struct Waiting {
    lines: UnderLock<ServerLines>,
    /// The number of lines. While there are none, a command only reads this.
    line_count: AtomicUsize,
    /// Fires when something is due in a line.
    timer: UnderLock<Timer>,
    /// The longest time spent on waiters at a stretch, in microseconds. A crash report reads it in any thread.
    longest_work_us: AtomicU64,
    /// Grows twice in each iteration of the event loop, from 7.0 on and once a call has waited.
    iterations: AtomicU64,
    counts_iterations: AtomicBool,
    /// The end of the names of the keys on which clients are blocked: 96 random bits, drawn when the first call waits.
    secret: OnceLock<[u8; SECRET_LEN]>,
}

const SECRET_LEN: usize = 16;

type BlockingKey = ShortText<{ SECRET_LEN + 4 }>;

type ServerLines = Lines<ServerLineTypes>;

/// What the lines of this server keep.
pub struct ServerLineTypes;

impl LineTypes for ServerLineTypes {
    type Call = ServerWaiter;
    type Handle = Blocked;
    type Reply = TimedReply;
    type Write = PendingWrite;
}

/// A call that waits, and the client that made it.
#[derive(Clone)]
pub struct ServerWaiter {
    waiting_call: Arc<WaitingCall>,
    command: CommandNumber,
    client: ClientId,
}

/// A write that is still to be made, because a wait ended in a callback that must not write.
#[derive(Clone, Copy)]
pub enum PendingWrite {
    /// Give back what was granted to a client that disconnected before it was notified.
    GiveBack {
        request: Request,
        granted: Decision,
        /// The time of the grant, in Unix microseconds.
        granted_us: u64,
    },
    /// Count a denied call in its key (COUNTDENIED).
    CountDenial(Request),
}

impl Waiting {
    /// Prepares the timer, with the context of the load.
    pub fn prepare(&self, ctx: Context) {
        self.timer.with(|timer| timer.prepare(ctx));
    }

    /// Makes a transition of the lines at the current time, and then starts or stops the timer. A transition has no context,
    /// so it cannot call a command or end a wait: the caller does that with its result.
    fn change<T>(&self, transition: impl FnOnce(&mut ServerLines, u64) -> T) -> T {
        let now_us = monotonic_us();
        let (result, timer_change) = self.lines.with(|lines| {
            let result = transition(lines, now_us);
            self.line_count.store(lines.line_count(), Ordering::Relaxed);
            (result, lines.update_timer(now_us))
        });
        match timer_change {
            TimerChange::Keep => {}
            TimerChange::Stop => self.timer.with(Timer::stop),
            TimerChange::Start { after_us } => {
                self.timer.with(|timer| timer.start::<WaitEvents>(after_us));
            }
        }
        result
    }

    /// Reads the lines, or returns the default without locking if there are none.
    fn read<T: Default>(&self, read: impl FnOnce(&ServerLines) -> T) -> T {
        match self.has_lines() {
            true => self.read_existing(read),
            false => T::default(),
        }
    }

    // Out of line, because most calls find no lines.
    #[cold]
    #[inline(never)]
    fn read_existing<T>(&self, read: impl FnOnce(&ServerLines) -> T) -> T {
        self.lines.with(|lines| read(lines))
    }

    /// Returns whether a call waits, or a write is still to be made.
    pub fn has_lines(&self) -> bool {
        self.line_count.load(Ordering::Relaxed) > 0
    }

    pub fn number(&self) -> u64 {
        u64::try_from(self.read(ServerLines::waiting_count)).unwrap_or(u64::MAX)
    }

    /// Returns how long the oldest waiter has been waiting, in milliseconds. 0 if no call waits.
    pub fn oldest_wait_ms(&self) -> u64 {
        let since_us = self.read(ServerLines::oldest_since_us);
        since_us.map_or(0, |since_us| monotonic_us().saturating_sub(since_us)) / 1_000
    }

    /// Returns the longest time spent on waiters at a stretch since the module was loaded, in microseconds.
    pub fn longest_work_us(&self) -> u64 {
        self.longest_work_us.load(Ordering::Relaxed)
    }

    /// Starts the timer again after the wall clock, by which timers fire, was set back.
    pub fn restart_timer(&self) {
        self.change(ServerLines::restart_timer);
    }

    /// Returns the key on which the server blocks calls that wait on `key`. It is in the same slot and never exists.
    fn blocking_key(&self, key: &[u8], random: &UnderLock<RandomPool>) -> BlockingKey {
        let secret = self.secret.get_or_init(|| id_from_random(random.with(RandomPool::next)));
        let mut name = BlockingKey::new();
        name.push(b"{");
        name.push(&slot::slot_tag(slot::key_slot(key)));
        name.push(b"}");
        name.push(secret);
        name
    }

    fn begin_work(&self, cause: WorkCause) -> WorkGuard<'_> {
        let iteration = self.iterations.load(Ordering::Relaxed);
        self.change(|lines, now_us| lines.begin_work(cause, iteration, wall_time_us(), now_us));
        WorkGuard(self)
    }
}

/// A stretch of work on waiters. A destructor ends it, also after a panic, because until then the timer does not start
/// again.
struct WorkGuard<'s>(&'s Waiting);

impl WorkGuard<'_> {
    /// Returns whether there is time for another step. There is none without a line.
    fn has_time(&self) -> bool {
        self.0.read(|lines| lines.has_time(monotonic_us()))
    }
}

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        let took_us = self.0.change(ServerLines::end_work);
        self.0.longest_work_us.fetch_max(took_us, Ordering::Relaxed);
    }
}

// ---- A call begins to wait ----

/// Adds a call that was denied to the line on this key, which is that of the awaited limit. It waits for at most `block_ms`
/// milliseconds, or forever if that is 0.
// Out of line, because most calls do not wait.
#[cold]
#[inline(never)]
pub fn join(
    state: &'static State,
    call: &Call,
    key_ctx: KeyContext,
    waiting_call: WaitingCall,
    block_ms: u64,
    AwaitedLimit { index, wait_us }: AwaitedLimit,
) -> Result<(), Error> {
    let waiting = &state.waiting;
    let (key, waiting_call) = (key_ctx.db_key(), Arc::new(waiting_call));
    let turn = waiting_call.turn(index).ok_or(Error::internal())?;
    let admitted = waiting.change(|lines, _| lines.admit(state.numbers.max_waiters.get()));
    let ticket = admitted.ok_or(Error::TooManyWaiters)?;
    let blocking_key = waiting.blocking_key(key.name, &state.random);
    let blocked = Blocked::block::<WaitEvents>(call, blocking_key.as_bytes(), ticket.number());
    let handle = blocked.ok_or(Error::internal())?;
    if !waiting.counts_iterations.swap(true, Ordering::Relaxed) {
        subscribe::<WaitEvents>(call.ctx);
    }
    let (command, client) = (call.command, call.ctx.client());
    let waiter = ServerWaiter { waiting_call: waiting_call.clone(), command, client };
    waiting.change(|lines, now_us| {
        let (ids, deadline_us) = (waiting_call.ids(), deadline_us(now_us, block_ms));
        let new_waiter = NewWaiter { call: waiter, turn, ids, handle, deadline_us, wait_us };
        lines.join(ticket, key, new_waiter, now_us);
    });
    Ok(())
}

// ---- Heads are tried ----

impl<'c> WaitingKeyspace for ServerKeyspace<'c> {
    type Types = ServerLineTypes;

    fn name(&self, key_ctx: KeyContext<'c>) -> OwnedDbKey {
        key_ctx.db_key().into()
    }

    fn change_lines<T>(&self, transition: impl FnOnce(&mut ServerLines, u64) -> T) -> T {
        self.state.waiting.change(transition)
    }

    fn read_lines<T: Default>(
        &self,
        key_ctx: KeyContext<'c>,
        read: impl FnOnce(&ServerLines, DbKey) -> T,
    ) -> T {
        self.state.waiting.read(|lines| read(lines, key_ctx.db_key()))
    }

    fn wake<'k>(&self, key_ctx: KeyContext<'c>, emptied: Option<EmptiedZset<'c>>)
    where
        Self: 'k,
    {
        if let Some(line) = self.read_lines(key_ctx, |lines, key| lines.line_id(key)) {
            wake_line(self.state, line, key_ctx, emptied.as_ref());
        }
        // Unless a waiter was granted something, which goes on with the key.
        if let Some(emptied) = emptied {
            emptied.delete();
        }
    }

    fn waiting_call(waiter: &ServerWaiter) -> &WaitingCall {
        &waiter.waiting_call
    }

    fn decide_on_its_keys(
        &self,
        key_ctx: KeyContext<'c>,
        emptied: Option<&EmptiedZset<'c>>,
        trial: Trial,
    ) -> Result<(Decisions, Option<AwaitedLimit>), Error> {
        let access = trial.access();
        if trial.call.keys().len() == 1 {
            let own = self.store(key_ctx, access).with_emptied(emptied);
            return decide_waiting(self, &[key_ctx], own, trial);
        }
        // Its other keys are not those of the running command. None may be open twice, so the emptied one is closed.
        if let Some(emptied) = emptied {
            emptied.delete_now();
        }
        let names: Vec<_> = trial.call.keys().map(|key| OwnedString::new(key.name)).collect();
        let named = names.iter().map(|name| KeyContext { name: KeyName::polled(name), ..key_ctx });
        let mut keys: Vec<KeyContext> = named.collect();
        let own = keys.get_mut(trial.at).ok_or(Error::internal())?;
        *own = key_ctx;
        let keyspace = ServerKeyspace::new(self.state).for_waiters(self.acceptance());
        let keyspace = keyspace.for_keys(names.len());
        let own = keyspace.store(key_ctx, access);
        let decided = decide_waiting(&keyspace, &keys, own, trial);
        self.learn_acceptance(&keyspace);
        decided
    }

    // A few microseconds, which add up in a line that thousands of calls pass in a second.
    fn elapsed_us(&self, key_ctx: KeyContext<'c>) -> u64 {
        wall_time_us().saturating_sub(key_ctx.now_us)
    }

    fn accepts_write(&self, own: KeyContext<'c>, keys: &[KeyContext<'c>]) -> bool {
        // What else the server may refuse is the same for all keys, but some may have migrated.
        self.ask_for_acceptance(own) == Acceptance::Accepted
            && (keys.len() == 1 || keys.iter().all(|key_ctx| key_ctx.ctx.serves(key_ctx.name)))
    }

    fn note_wait(&self, keys: &[KeyContext<'c>], granted: bool) {
        if granted {
            self.state.stats.waited_granted.add(1);
            keys.iter().for_each(|key_ctx| touch(key_ctx.ctx, key_ctx.name));
        } else {
            self.state.stats.waited_timed_out.add(1);
        }
    }

    fn deliver(&self, ticket: Ticket, key_ctx: KeyContext<'c>, result: Result<Decisions, Error>) {
        let granted = is_granted(&result);
        let reply = TimedReply { result, at_us: key_ctx.now_us };
        let end = |lines: &mut ServerLines, now_us| lines.end(ticket, reply, granted, now_us);
        if let Some(blocked) = self.change_lines(end) {
            blocked.end();
        }
    }

    // A write is dropped if the key has changed so that it is impossible.
    fn make_pending_write(
        &self,
        line: LineId,
        key_ctx: KeyContext<'c>,
        write: PendingWrite,
    ) -> Step {
        let written = match write {
            _ if !self.accepts_write(key_ctx, &[key_ctx]) => Err(Error::NotWritable),
            PendingWrite::GiveBack { request, granted, granted_us } => {
                give_back(self, key_ctx, &request, &granted, granted_us)
            }
            PendingWrite::CountDenial(request) => count_denial(self, key_ctx, &request),
        };
        // While the server refuses writes, a denial counts nothing.
        let gives_back = matches!(write, PendingWrite::GiveBack { .. });
        if written != Err(Error::NotWritable) || !gives_back {
            return Step::Again;
        }
        let key = key_ctx.db_key();
        self.change_lines(|lines, now_us| {
            lines.add_write(key, write, now_us);
            lines.postpone(line, now_us);
        });
        Step::Later
    }
}

/// Makes the writes that are left in the line on the key, tries its head, and after each grant the next one, while the time
/// budget lasts. The timer does the rest. The first head is tried on the emptied key, if a release has left one.
#[cold]
fn wake_line<'c>(
    state: &'static State,
    line: LineId,
    key_ctx: KeyContext<'c>,
    emptied: Option<&EmptiedZset<'c>>,
) {
    let waiting = &state.waiting;
    waiting.change(|lines, now_us| lines.make_head_due(key_ctx.db_key(), now_us));
    // A transaction or a script is one step for those who wait. The timer fires after it.
    if !key_ctx.ctx.is_single_call() {
        return;
    }
    let work = waiting.begin_work(WorkCause::Command);
    if !work.has_time() || !accepts_write_in_call(key_ctx.ctx, key_ctx.name) {
        return;
    }
    let keyspace = ServerKeyspace::new(state).for_waiters(Some(Acceptance::Accepted));
    // An emptied key is still open.
    while emptied.is_none() && work.has_time() {
        let Some(write) = waiting.change(|lines, _| lines.take_write(line)) else { break };
        if keyspace.make_pending_write(line, key_ctx, write) == Step::Later {
            break;
        }
    }
    try_heads(&keyspace, line, key_ctx, emptied, || work.has_time());
}

/// Does the due work in all lines. Called when the timer fires.
///
/// The lines take turns, and each says whether the server accepts writes to its key. Where it does, heads are granted and
/// pending writes are made. Where it does not, calls whose time is up are still denied, by looking at the key.
pub fn serve_timer(state: &'static State, ctx: Context) {
    let waiting = &state.waiting;
    let work = waiting.begin_work(WorkCause::Timer);
    // The server is asked before the first write. Once it refuses one, it would refuse those to all other keys too.
    let mut acceptance = None;
    if !may_accept_writes(ctx) {
        acceptance = Some(Acceptance::Refused);
        waiting.change(|lines, now_us| lines.pause(now_us));
        if !ctx.is_master() {
            // The new master decides on these keys.
            waiting.change(|lines, _| lines.drop_all_writes());
        }
    }
    let next = || waiting.change(|lines, now_us| lines.next_line(now_us));
    while let Some((line, line_key)) = next().filter(|_| work.has_time()) {
        let key = OwnedString::new(&line_key.name);
        let key_ctx = KeyContext { ctx, name: KeyName::polled(&key), now_us: wall_time_us() };
        // Even if writes are refused, because calls that time out are still decided in their database.
        let has_db = ctx.select_db(line_key.db);
        let known = if has_db { acceptance } else { Some(Acceptance::Unreachable) };
        let keyspace = ServerKeyspace::new(state).for_waiters(known);
        let due_us = monotonic_us();
        let serve_line = |may_write| {
            serve_line(&keyspace, line, key_ctx, may_write, due_us, || work.has_time());
        };
        if matches!(keyspace.acceptance(), None | Some(Acceptance::Accepted)) {
            serve_line(true);
        }
        match keyspace.acceptance() {
            None => {}
            Some(Acceptance::Accepted) => {
                // In a cluster that goes only for this key.
                acceptance = keyspace.acceptance().filter(|_| !ctx.is_in_cluster());
            }
            // No head is tried now, and pending writes wait.
            Some(Acceptance::Refused) => {
                acceptance = Some(Acceptance::Refused);
                waiting.change(|lines, now_us| lines.pause(now_us));
                serve_line(false);
            }
            // If another node owns the key now, the waiters stay in line until the server redirects them.
            Some(Acceptance::Unreachable) => {
                waiting.change(|lines, now_us| {
                    lines.drop_writes(line);
                    lines.postpone(line, now_us);
                });
                serve_line(false);
            }
        }
        waiting.change(|lines, now_us| lines.move_to_back(line, now_us));
    }
}

// ---- The server calls ----

/// What the server calls for calls that wait.
pub struct WaitEvents;

impl TimerEvents for WaitEvents {
    fn timer() -> &'static UnderLock<Timer> {
        &State::get().waiting.timer
    }

    fn fired(ctx: Context) {
        serve_timer(State::get(), ctx);
    }
}

impl ServerEvents for WaitEvents {
    const IDS: &'static [u64] = ITERATIONS;

    fn happened() {
        State::get().waiting.iterations.fetch_add(1, Ordering::Relaxed);
    }
}

impl BlockedEvents for WaitEvents {
    fn answer(ctx: Context, wait: WaitNumber) {
        let (state, ticket) = (State::get(), Ticket::from_number(wait));
        let reply = state.waiting.change(|lines, now_us| lines.take_reply(ticket, now_us));
        let (waiter, result) = match reply {
            // Before 7.2, CLIENT UNBLOCK asks again for a wait that we ended in the same iteration of the event loop.
            None => return,
            Some(WaiterReply::Ended { call, reply }) => (call, reply.result),
            Some(WaiterReply::Unblocked { call, key, was_head }) => {
                let denied = deny_unblocked(state, ctx, ticket, &call.waiting_call, &key, was_head);
                (call, denied)
            }
        };
        let Some(command) = ServerCommand::find(state, waiter.command) else { return };
        let result = result.and_then(|decisions| waiter.waiting_call.write_reply(&ctx, &decisions));
        end_call(ctx, command, result.map_err(Into::into));
    }

    fn answer_after_panic(ctx: Context, wait: WaitNumber) {
        let (state, ticket) = (State::get(), Ticket::from_number(wait));
        let number =
            state.waiting.change(|lines, _| lines.call(ticket).map(|waiter| waiter.command));
        end_call_after_panic(ctx, number.and_then(|number| ServerCommand::find(state, number)));
    }

    fn withdraw(wait: WaitNumber) {
        let ticket = Ticket::from_number(wait);
        State::get().waiting.change(|lines, now_us| lines.withdraw(ticket, now_us));
    }

    fn forget(wait: WaitNumber, cut_off: bool) {
        let (waiting, ticket) = (&State::get().waiting, Ticket::from_number(wait));
        let forgotten = waiting.change(|lines, now_us| lines.forget(ticket, now_us));
        let Some(forgotten) = forgotten else { return };
        let Some(TimedReply { result: Ok(granted), at_us }) = forgotten.reply() else { return };
        let (waiter, answered) =
            (&forgotten.call, matches!(forgotten.state, WaiterState::Answered(_)));
        // CLIENT UNBLOCK right after the grant sets `cut_off`, but the client got its reply.
        let notified = !cut_off || (answered && waiter.client.is_connected());
        if notified {
            return;
        }
        for (key, request, granted) in waiter.waiting_call.grants(granted) {
            let write = PendingWrite::GiveBack { request: *request, granted, granted_us: *at_us };
            waiting.change(|lines, now_us| lines.add_write(key, write, now_us));
        }
    }
}

/// Denies a call whose wait the server has ended (CLIENT UNBLOCK). The callback must not write, so what the denial counts is
/// written later.
fn deny_unblocked(
    state: &'static State,
    ctx: Context,
    ticket: Ticket,
    call: &WaitingCall,
    line_key: &OwnedDbKey,
    was_head: bool,
) -> Result<Decisions, Error> {
    let key = OwnedString::new(&line_key.name);
    let key_ctx = KeyContext { ctx, name: KeyName::polled(&key), now_us: command_time_us() };
    let kind = match may_accept_writes(ctx) {
        true => TrialKind::Unblock { was_head },
        false => TrialKind::Look,
    };
    let keyspace = ServerKeyspace::new(state);
    let trial = Trial::new(&keyspace, key_ctx, ticket, call, kind);
    let (decisions, _) = keyspace.decide_on_its_keys(key_ctx, None, trial)?;
    for (key, request) in call.counted_denials(&decisions) {
        let write = PendingWrite::CountDenial(*request);
        state.waiting.change(|lines, now_us| lines.add_write(key, write, now_us));
    }
    Ok(decisions)
}

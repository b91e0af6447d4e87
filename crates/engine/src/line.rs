//! The lines of calls that wait, one line for each key of each database.
//!
//! ```text
//! join -> [ leave 0: 7 9 | leave 5: 8 12 15 ]    a line, in the order of LEAVE and then of arrival
//!           ^ head: the only one that is tried
//!
//! join -> InLine --end-------> Ended ------answered--> Answered
//!           |---withdraw-----> Withdrawn --answered------^      the client is gone
//!           +---answered---------------------------------^      the server ended the wait by itself
//!
//! Each of the four --forgotten--> no waiter any more
//! ```
//!
//! Nothing here calls the server. A transition changes the state and returns what the caller has to carry out: the
//! handle of the wait to end, the call to try, the write to make, the timer to start.
//!
//! All times are microseconds of one clock that nobody can set back.

use super::db_key::{DbKey, OwnedDbKey};
use super::request::Request;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Names a waiter. A later one is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket with this number, for those who can keep numbers only.
    pub const fn of(number: u64) -> Ticket {
        Ticket(number)
    }

    /// Its number, never 0.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Names a line. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(u64);

/// The longest that a head goes untried. Other changes to its key must be noticed within 100 ms; the rest is for timers
/// that come late.
pub const POLL_US: u64 = 80_000;
/// How long no head is tried after the server refused a write.
pub const REFUSED_US: u64 = 5_000;
/// The most microseconds that one firing of the timer spends on waiters. All commands between two firings share as much
/// again.
pub const BUDGET_US: u64 = 1_000;
/// A wall clock that gains more than this from one beginning of work to the next was set forward.
const STEP_US: u64 = 1_000;
/// Commands get a new budget after this time at the latest, even if no turn of the event loop was seen to end.
const BUDGET_RENEWED_US: u64 = 20_000;

/// The types of what the lines keep for their owner.
pub trait LineTypes {
    /// What waits.
    type Call: LineCall;
    /// Ends one wait, once.
    type Handle;
    /// The reply to a waiter.
    type Reply: Clone;
    /// What has to be written to a key because a wait ended where nothing could be written.
    type Write;
}

/// What a line asks of a call that waits.
pub trait LineCall: Clone {
    /// The call's LEAVE: smaller ones stand before larger ones.
    fn leave(&self) -> u64;
    /// The id that the call will give to its reservation.
    fn id(&self) -> Option<&[u8]>;
}

impl LineCall for Request {
    fn leave(&self) -> u64 {
        Request::leave(self)
    }

    fn id(&self) -> Option<&[u8]> {
        Request::id(self)
    }
}

/// When the time of a call is up that waits from `now_us` on for `block_ms` milliseconds. `None` for 0, which waits for
/// ever.
pub fn deadline_us(now_us: u64, block_ms: u64) -> Option<u64> {
    (block_ms > 0).then(|| now_us.saturating_add(block_ms.saturating_mul(1_000)))
}

/// All lines, and every waiter until the server has forgotten it.
pub struct Lines<P: LineTypes> {
    /// The last number that a ticket or a line got.
    last_number: u64,
    /// How many stand in a line.
    waiting: usize,
    /// Those who stand in a line, and those whose wait is over and who are not forgotten.
    waiters: BTreeMap<Ticket, Waiter<P>>,
    /// The lines where somebody stands or something is to be written.
    lines: BTreeMap<LineId, Line<P>>,
    /// The line on each key, by database and name.
    line_on: BTreeMap<i32, BTreeMap<Box<[u8]>, LineId>>,
    /// When the head of each line is to be tried next.
    tries: BTreeSet<(u64, LineId)>,
    /// When somebody's time is up in each line where some wait for a limited time.
    deadlines: BTreeSet<(u64, LineId)>,
    /// No head is tried before this time.
    refused_until_us: Option<u64>,
    /// When the timer fires that was started last.
    timer_us: Option<u64>,
    work: Option<Work>,
    /// The wall clock less the clock of all times here, when work last began. If it grows, the wall clock was set forward.
    ahead_us: u64,
    /// When the head of the line that was [passed on](Lines::pass_on) last is to be tried. The next one comes later.
    last_passed_us: u64,
    /// What commands have spent of their budget in microseconds, and when they got it.
    spent_us: u64,
    budget_since_us: u64,
    /// The turn of the event loop in which commands got their budget.
    event_loop: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter<P: LineTypes> {
    line: LineId,
    key: Arc<OwnedDbKey>,
    call: P::Call,
    deadline_us: Option<u64>,
    since_us: u64,
    state: WaitState<P::Handle, P::Reply>,
}

/// How far a wait has come, as the picture above shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WaitState<H, R> {
    /// It stands in its line; the handle ends it.
    InLine(H),
    /// It stepped out without a reply: the client is gone.
    Withdrawn,
    /// It was ended with this reply, and the server has not asked for it.
    Ended(R),
    /// The server has asked for the reply. Without one the server ended the wait by itself.
    Answered(Option<R>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Line<P: LineTypes> {
    key: Arc<OwnedDbKey>,
    /// LEAVE and ticket of all who stand here. The first is the head.
    order: BTreeSet<(u64, Ticket)>,
    /// When the time of those is up who wait for a limited time, and their tickets.
    deadlines: BTreeSet<(u64, Ticket)>,
    /// The ids that they will give to their reservations.
    ids: BTreeSet<Box<[u8]>>,
    /// What is to be written to the key, the oldest first.
    writes: VecDeque<P::Write>,
    /// When the head is to be tried.
    try_us: u64,
    /// When the head was last denied.
    denied_us: Option<u64>,
    /// Waiters whose time is up are not dismissed before this time.
    dismiss_from_us: u64,
    /// The line's entries in the two schedules.
    scheduled: (Option<u64>, Option<u64>),
}

/// A call that begins to wait.
pub struct Joining<P: LineTypes> {
    /// What it asks for.
    pub call: P::Call,
    /// Ends its wait.
    pub handle: P::Handle,
    /// When its time is up; `None` for never.
    pub deadline_us: Option<u64>,
    /// After how many microseconds it could be granted, as its denial said; `None` if it was not tried, or nobody knows.
    pub wait_us: Option<u64>,
}

/// What begins work on waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A command that may have changed a key.
    Command,
    /// The timer.
    Timer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    cause: Cause,
    began_us: u64,
}

/// What to do next in a line.
pub enum LineStep<P: LineTypes> {
    /// Write this to the key.
    Write(P::Write),
    /// Try the head, then tell [`Lines::denied`] or [`Lines::end`]. Where `is_overdue`, end its wait also if it is
    /// denied.
    Try {
        /// The head.
        ticket: Ticket,
        /// What it asks for.
        call: P::Call,
        /// Its time is up.
        is_overdue: bool,
    },
    /// Tell [`Lines::end`] the denial of a waiter whose time is up.
    Dismiss {
        /// The waiter.
        ticket: Ticket,
        /// What it asked for.
        call: P::Call,
    },
}

/// What to reply to a waiter when the server asks.
pub enum WaiterReply<P: LineTypes> {
    /// The wait was ended with a reply.
    Ended {
        /// What waited.
        call: P::Call,
        /// The reply.
        reply: P::Reply,
    },
    /// The server ended the wait by itself: reply a denial.
    Unblocked {
        /// What waited.
        call: P::Call,
        /// On which key.
        key: Arc<OwnedDbKey>,
        /// Nobody stood before it.
        was_head: bool,
    },
}

/// A waiter that the server has forgotten.
pub struct ForgottenWaiter<P: LineTypes> {
    /// What waited.
    pub call: P::Call,
    /// On which key.
    pub key: Arc<OwnedDbKey>,
    /// How its wait was ended, unless the server ended it by itself.
    pub reply: Option<P::Reply>,
    /// The server has asked for the reply.
    pub answered: bool,
}

/// What to do with the one timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Nothing.
    Keep,
    /// Stop it.
    Stop,
    /// Stop it if it runs, and start it.
    Start {
        /// After so many milliseconds.
        after_ms: u64,
    },
}

impl<P: LineTypes> Default for Lines<P> {
    fn default() -> Self {
        Lines::new()
    }
}

impl<P: LineTypes> Lines<P> {
    /// No lines.
    pub const fn new() -> Lines<P> {
        Lines {
            last_number: 0,
            waiting: 0,
            waiters: BTreeMap::new(),
            lines: BTreeMap::new(),
            line_on: BTreeMap::new(),
            tries: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            refused_until_us: None,
            timer_us: None,
            work: None,
            ahead_us: 0,
            last_passed_us: 0,
            spent_us: 0,
            budget_since_us: 0,
            event_loop: 0,
        }
    }

    // ---- Questions ----

    /// How many lines there are.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// How many stand in a line.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// When the oldest call that stands in a line began to wait.
    pub fn oldest_since_us(&self) -> Option<u64> {
        let in_line = |waiter: &&Waiter<P>| matches!(waiter.state, WaitState::InLine(_));
        self.waiters.values().find(in_line).map(|waiter| waiter.since_us)
    }

    /// Whether somebody on the key stands before a call that comes now with this LEAVE.
    pub fn is_barred(&self, key: DbKey, leave: u64) -> bool {
        let line = self.line_on(key).and_then(|id| self.lines.get(&id));
        line.and_then(|line| line.order.first()).is_some_and(|(least, _)| *least <= leave)
    }

    /// Whether a call waits on the key that will give this id to its reservation.
    pub fn id_waits(&self, key: DbKey, id: &[u8]) -> bool {
        let line = self.line_on(key).and_then(|id| self.lines.get(&id));
        line.is_some_and(|line| line.ids.contains(id))
    }

    /// How many calls wait on the key.
    pub fn waiting_on(&self, key: DbKey) -> usize {
        let line = self.line_on(key).and_then(|id| self.lines.get(&id));
        line.map_or(0, |line| line.order.len())
    }

    // ---- Waits begin and end ----

    /// The ticket of a call that is going to wait; `None` where `most` wait already.
    pub fn admit(&mut self, most: u64) -> Option<Ticket> {
        let waiting = u64::try_from(self.waiting).unwrap_or(u64::MAX);
        (waiting < most).then(|| Ticket(self.new_number()))
    }

    /// Puts a call into the line on its key, in the place that its LEAVE and its ticket give it.
    pub fn join(&mut self, ticket: Ticket, key: DbKey, joins: Joining<P>, now_us: u64) {
        let Joining { call, handle, deadline_us, wait_us } = joins;
        let id = self.open(key, now_us);
        let Some(line) = self.lines.get_mut(&id) else { return };
        let entry = (call.leave(), ticket);
        line.order.insert(entry);
        line.deadlines.extend(deadline_us.map(|deadline_us| (deadline_us, ticket)));
        line.ids.extend(call.id().map(Box::from));
        if line.order.first() == Some(&entry) {
            let wait_us = wait_us.unwrap_or(POLL_US).min(POLL_US);
            line.try_us = now_us.saturating_add(wait_us);
            line.denied_us = Some(now_us);
        }
        let key = Arc::clone(&line.key);
        let waiter = Waiter {
            line: id,
            key,
            call,
            deadline_us,
            since_us: now_us,
            state: WaitState::InLine(handle),
        };
        self.waiters.insert(ticket, waiter);
        self.waiting = self.waiting.saturating_add(1);
        self.schedule(id);
    }

    /// Ends a wait with this reply. Returns the handle to end it with, unless the wait is over.
    pub fn end(&mut self, ticket: Ticket, reply: P::Reply, now_us: u64) -> Option<P::Handle> {
        let handle = self.step_out(ticket, now_us)?;
        let waiter = self.waiters.get_mut(&ticket)?;
        waiter.state = WaitState::Ended(reply);
        Some(handle)
    }

    /// Takes a waiter out of its line whose client is gone, or was told something else by the server.
    pub fn withdraw(&mut self, ticket: Ticket, now_us: u64) {
        self.step_out(ticket, now_us);
    }

    /// The server asks for the reply. `None` if it has asked before.
    pub fn answered(&mut self, ticket: Ticket, now_us: u64) -> Option<WaiterReply<P>> {
        let waiter = self.waiters.get_mut(&ticket)?;
        let call = waiter.call.clone();
        let (key, line) = (Arc::clone(&waiter.key), waiter.line);
        match &waiter.state {
            WaitState::Answered(_) => return None,
            WaitState::Ended(reply) => {
                let reply = reply.clone();
                waiter.state = WaitState::Answered(Some(reply.clone()));
                return Some(WaiterReply::Ended { call, reply });
            }
            WaitState::InLine(_) | WaitState::Withdrawn => {}
        }
        let first = self.lines.get(&line).and_then(|line| line.order.first());
        let was_head = first.is_some_and(|(_, head)| *head == ticket);
        self.step_out(ticket, now_us);
        self.waiters.get_mut(&ticket)?.state = WaitState::Answered(None);
        Some(WaiterReply::Unblocked { call, key, was_head })
    }

    /// The server has let go of the client: forgets the waiter, and returns what it was.
    pub fn forgotten(&mut self, ticket: Ticket, now_us: u64) -> Option<ForgottenWaiter<P>> {
        self.step_out(ticket, now_us);
        let Waiter { call, key, state, .. } = self.waiters.remove(&ticket)?;
        let (reply, answered) = match state {
            WaitState::InLine(_) | WaitState::Withdrawn => (None, false),
            WaitState::Ended(reply) => (Some(reply), false),
            WaitState::Answered(reply) => (reply, true),
        };
        Some(ForgottenWaiter { call, key, reply, answered })
    }

    /// Notes what is to be written to a key as soon as the server accepts writes.
    pub fn add_write(&mut self, key: DbKey, write: P::Write, now_us: u64) {
        let id = self.open(key, now_us);
        if let Some(line) = self.lines.get_mut(&id) {
            line.writes.push_back(write);
            line.try_us = line.try_us.min(now_us);
        }
        self.schedule(id);
    }

    // ---- Work on waiters ----

    /// Begins to work on waiters. Until [`Lines::end_work`] the timer is left alone. Where the wall clock, which shows
    /// `wall_us`, was set forward since work last began, all heads are to be tried. Commands get a new budget when
    /// `event_loop` has changed.
    pub fn begin_work(&mut self, cause: Cause, event_loop: u64, wall_us: u64, now_us: u64) {
        let ahead_us = wall_us.saturating_sub(now_us);
        let before_us = std::mem::replace(&mut self.ahead_us, ahead_us);
        if ahead_us > before_us.saturating_add(STEP_US) {
            self.try_all(now_us);
        }
        match cause {
            Cause::Timer => (self.timer_us, self.refused_until_us) = (None, None),
            Cause::Command => {
                let is_old = now_us.saturating_sub(self.budget_since_us) >= BUDGET_RENEWED_US;
                if is_old || self.event_loop != event_loop {
                    (self.spent_us, self.budget_since_us) = (0, now_us);
                    self.event_loop = event_loop;
                }
            }
        }
        self.work = Some(Work { cause, began_us: now_us });
    }

    /// Whether the budget of this work leaves time for another step.
    pub fn has_time(&self, now_us: u64) -> bool {
        let Some(work) = &self.work else { return false };
        let spent_us = now_us.saturating_sub(work.began_us);
        match work.cause {
            Cause::Timer => spent_us < BUDGET_US,
            Cause::Command => self.spent_us.saturating_add(spent_us) < BUDGET_US,
        }
    }

    /// Ends the work. Returns how many microseconds it took.
    pub fn end_work(&mut self, now_us: u64) -> u64 {
        let Some(work) = self.work.take() else { return 0 };
        let took_us = now_us.saturating_sub(work.began_us);
        match work.cause {
            Cause::Timer => (self.spent_us, self.budget_since_us) = (0, now_us),
            Cause::Command => self.spent_us = self.spent_us.saturating_add(took_us),
        }
        took_us
    }

    /// A command may have changed the key: its head is to be tried. Returns the line, if somebody waits there.
    pub fn wake(&mut self, key: DbKey, now_us: u64) -> Option<LineId> {
        let id = self.line_on(key)?;
        let line = self.lines.get_mut(&id).filter(|line| !line.order.is_empty())?;
        line.try_us = line.try_us.min(now_us);
        self.schedule(id);
        Some(id)
    }

    /// The call that stands first in a line.
    pub fn head(&self, id: LineId) -> Option<(Ticket, P::Call)> {
        let (_, ticket) = self.lines.get(&id)?.order.first()?;
        self.waiters.get(ticket).map(|waiter| (*ticket, waiter.call.clone()))
    }

    /// The head of a line was tried and denied. It could be granted after `wait_us`; `None` where nobody knows.
    pub fn denied(&mut self, id: LineId, wait_us: Option<u64>, now_us: u64) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.try_us = now_us.saturating_add(wait_us.unwrap_or(POLL_US).min(POLL_US));
        line.denied_us = Some(now_us);
        self.schedule(id);
    }

    /// The server accepts no writes: no head of any line is tried for [`REFUSED_US`].
    pub fn writes_refused(&mut self, now_us: u64) {
        self.refused_until_us = Some(now_us.saturating_add(REFUSED_US));
    }

    /// Nothing may be written to the key of this line: its head is not tried for [`REFUSED_US`].
    pub fn postpone(&mut self, id: LineId, now_us: u64) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.try_us = now_us.saturating_add(REFUSED_US);
        }
        self.schedule(id);
    }

    /// Drops what was to be written to the key of this line: another server decides about it now.
    pub fn drop_writes(&mut self, id: LineId) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.writes.clear();
        }
        self.schedule(id);
    }

    /// Drops what was to be written to any key.
    pub fn drop_all_writes(&mut self) {
        let owing = self.lines.iter().filter(|(_, line)| !line.writes.is_empty());
        let owing: Vec<LineId> = owing.map(|(id, _)| *id).collect();
        owing.into_iter().for_each(|id| self.drop_writes(id));
    }

    /// The line that has been due for the longest time.
    pub fn next_line(&self, now_us: u64) -> Option<(LineId, Arc<OwnedDbKey>)> {
        let tries = self.tries.first().filter(|_| self.refused_until_us.is_none());
        let due = tries.into_iter().chain(self.deadlines.first()).min()?;
        let (_, id) = due.to_owned();
        let line = self.lines.get(&id).filter(|_| due.0 <= now_us)?;
        Some((id, Arc::clone(&line.key)))
    }

    /// What to do next in a line at `now_us`; `None` where nothing is due. A head that could be had is granted before
    /// those behind it whose time is up are dismissed. Without `may_write` only waiters whose time is up are
    /// dismissed.
    pub fn next_step(&mut self, id: LineId, may_write: bool, now_us: u64) -> Option<LineStep<P>> {
        let line = self.lines.get_mut(&id)?;
        let overdue = line.deadlines.first().copied().filter(|(due_us, _)| *due_us <= now_us);
        if may_write {
            if let Some(write) = line.writes.pop_front() {
                self.schedule(id);
                return Some(LineStep::Write(write));
            }
            let untried = overdue.is_some_and(|(due_us, _)| line.denied_us < Some(due_us));
            if line.try_us <= now_us || untried {
                if let Some((_, ticket)) = line.order.first().copied() {
                    let waiter = self.waiters.get(&ticket)?;
                    let is_overdue = waiter.deadline_us.is_some_and(|due_us| due_us <= now_us);
                    return Some(LineStep::Try { ticket, call: waiter.call.clone(), is_overdue });
                }
            }
        }
        let (_, ticket) = overdue?;
        let call = self.waiters.get(&ticket)?.call.clone();
        Some(LineStep::Dismiss { ticket, call })
    }

    /// Puts a line behind all others that are due, so that what is still due there comes last.
    pub fn pass_on(&mut self, id: LineId, now_us: u64) {
        let now_us = now_us.max(self.last_passed_us.saturating_add(1));
        if let Some(line) = self.lines.get_mut(&id) {
            line.try_us = line.try_us.max(now_us);
            line.dismiss_from_us = now_us;
            self.last_passed_us = now_us;
        }
        self.schedule(id);
    }

    /// The wall clock was set back, and the timer that was started would come as much too late. All heads are to be
    /// tried.
    pub fn clock_went_back(&mut self, now_us: u64) {
        self.timer_us = self.timer_us.map(|_| u64::MAX);
        self.try_all(now_us);
    }

    /// When something is due next.
    pub fn due_us(&self) -> Option<u64> {
        let at_us = |entry: Option<&(u64, LineId)>| entry.map(|(at_us, _)| *at_us);
        let tries = at_us(self.tries.first());
        let tries = tries.map(|at_us| at_us.max(self.refused_until_us.unwrap_or(0)));
        tries.into_iter().chain(at_us(self.deadlines.first())).min()
    }

    /// What to do with the timer after any other transition, so that it fires when something is due.
    pub fn timer(&mut self, now_us: u64) -> Timer {
        if self.work.is_some() {
            return Timer::Keep;
        }
        let Some(due_us) = self.due_us() else {
            return if self.timer_us.take().is_some() { Timer::Stop } else { Timer::Keep };
        };
        let after_ms = due_us.saturating_sub(now_us).div_ceil(1_000).max(1);
        let fires_us = now_us.saturating_add(after_ms.saturating_mul(1_000));
        if self.timer_us.is_some_and(|timer_us| timer_us <= fires_us) {
            return Timer::Keep;
        }
        self.timer_us = Some(fires_us);
        Timer::Start { after_ms }
    }

    // ---- Inside ----

    fn try_all(&mut self, now_us: u64) {
        let ids: Vec<LineId> = self.lines.keys().copied().collect();
        for id in ids {
            if let Some(line) = self.lines.get_mut(&id) {
                line.try_us = line.try_us.min(now_us);
            }
            self.schedule(id);
        }
    }

    fn new_number(&mut self) -> u64 {
        self.last_number = self.last_number.saturating_add(1);
        self.last_number
    }

    #[inline]
    fn line_on(&self, key: DbKey) -> Option<LineId> {
        self.line_on.get(&key.db)?.get(key.name).copied()
    }

    /// The line on a key, a new one if need be.
    fn open(&mut self, key: DbKey, now_us: u64) -> LineId {
        if let Some(id) = self.line_on(key) {
            return id;
        }
        let id = LineId(self.new_number());
        let line = Line {
            key: Arc::new(key.into()),
            order: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            ids: BTreeSet::new(),
            writes: VecDeque::new(),
            try_us: now_us,
            denied_us: None,
            dismiss_from_us: 0,
            scheduled: (None, None),
        };
        self.lines.insert(id, line);
        self.line_on.entry(key.db).or_default().insert(key.name.into(), id);
        id
    }

    /// Takes a waiter out of its line, if it stands there. Whoever is the head then is to be tried.
    fn step_out(&mut self, ticket: Ticket, now_us: u64) -> Option<P::Handle> {
        let waiter = self.waiters.get_mut(&ticket)?;
        let state = std::mem::replace(&mut waiter.state, WaitState::Withdrawn);
        let WaitState::InLine(handle) = state else {
            waiter.state = state;
            return None;
        };
        let id = waiter.line;
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(line) = self.lines.get_mut(&id) {
            let entry = (waiter.call.leave(), ticket);
            if line.order.first() == Some(&entry) {
                line.try_us = line.try_us.min(now_us);
                line.denied_us = None;
            }
            line.order.remove(&entry);
            if let Some(deadline_us) = waiter.deadline_us {
                line.deadlines.remove(&(deadline_us, ticket));
            }
            if let Some(id) = waiter.call.id() {
                line.ids.remove(id);
            }
        }
        self.schedule(id);
        Some(handle)
    }

    /// Brings the schedules up to date with a line. Closes it where nobody stands and nothing is to be written.
    fn schedule(&mut self, id: LineId) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        let is_empty = line.order.is_empty() && line.writes.is_empty();
        let deadline_us =
            line.deadlines.first().map(|(at_us, _)| (*at_us).max(line.dismiss_from_us));
        let new = ((!is_empty).then_some(line.try_us), deadline_us);
        let old = std::mem::replace(&mut line.scheduled, new);
        for (schedule, old, new) in
            [(&mut self.tries, old.0, new.0), (&mut self.deadlines, old.1, new.1)]
        {
            if old != new {
                if let Some(at_us) = old {
                    schedule.remove(&(at_us, id));
                }
                schedule.extend(new.map(|at_us| (at_us, id)));
            }
        }
        if is_empty {
            let Some(line) = self.lines.remove(&id) else { return };
            if let Some(keys) = self.line_on.get_mut(&line.key.db) {
                keys.remove(&line.key.name);
                if keys.is_empty() {
                    self.line_on.remove(&line.key.db);
                }
            }
        }
    }
}

#[cfg(test)]
mod model;
mod value;

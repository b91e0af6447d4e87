//! The lines of calls that wait, one line for each key of each database.
//!
//! ```text
//! join -> [ leave 0: 7 9 | leave 5: 8 12 15 ]    a line, in the order of LEAVE, turns (BY) and arrival
//!           ^ head: the only one that is tried
//!
//!         change_line
//!           |     |
//! join -> in line --end-------> has a reply --take_reply--> answered
//!            |---withdraw-----> no reply -----take_reply------^      the client is gone
//!            +---take_reply-----------------------------------^      the server ended the wait
//!
//! `forget` removes the waiter in each of these four states.
//! ```
//!
//! A call over several keys stands in one line at a time, and the ids of its reservations are claimed on each key.
//!
//! Nothing here calls the server. A transition changes the state and returns what the caller has to do: the handle of the
//! wait to end, the call to try, the write to make, the timer to start.
//!
//! All times but `wall_us` are microseconds of a monotonic clock.
//!
//! ```
//! use redis_ratelimit_engine::line::{NewWaiter, LineTypes, Lines, TimerChange, Turn, WaiterState};
//! use redis_ratelimit_engine::DbKey;
//!
//! struct Example;
//! impl LineTypes for Example {
//!     type Call = &'static str;
//!     type Handle = &'static str;
//!     type Reply = bool;
//!     type Write = ();
//! }
//! let (mut lines, key) = (Lines::<Example>::default(), DbKey { db: 0, name: b"jobs" });
//! for (call, leave) in [("batch", 5), ("urgent", 0)] {
//!     let ticket = lines.admit(10_000).unwrap();
//!     let turn = Turn { leave, caller: b"", weight: 1, quantity: 1 };
//!     let new_waiter = NewWaiter { call, turn, ids: vec![], handle: call, deadline_us: None, wait_us: 80_000 };
//!     lines.join(ticket, key, new_waiter, 0);
//! }
//! assert_eq!(lines.update_timer(0), TimerChange::Start { after_us: 80_000 });
//! // A command changes the key, so the head is tried. Say that it is granted.
//! let line = lines.make_head_due(key, 1_000).unwrap();
//! let (ticket, call) = lines.head(line).unwrap();
//! assert_eq!(call, "urgent");
//! assert_eq!(lines.end(ticket, true, true, 1_000), Some("urgent"));
//! // The new head is due at once, and the reply waits for the server.
//! assert_eq!(lines.next_line(1_000).unwrap().0, line);
//! let waiter = lines.forget(ticket, 1_000).unwrap();
//! assert_eq!(waiter.state, WaiterState::HasReply(true));
//! ```

mod claimed_ids;
mod turns;
mod work_budget;

pub use turns::Turn;
pub use work_budget::{WorkCause, BUDGET_US};

use crate::db_key::{DbKey, OwnedDbKey};
use claimed_ids::ClaimedIds;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use turns::Turns;
use work_budget::WorkBudget;

/// Identifies a waiter. Tickets increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Returns the ticket with this number, for callers that can only store a number.
    pub const fn from_number(number: u64) -> Ticket {
        Ticket(number)
    }

    /// Returns the number of the ticket, which is never 0.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Identifies a line. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(u64);

/// The longest time between two tries of a head. Changes to its key by others must be noticed within 100 ms; the rest allows
/// for timers that fire late.
pub const POLL_US: u64 = 80_000;

/// Polls are due at multiples of this, so that the polls of thousands of lines share iterations of the event loop. A head
/// that can be granted before that is due at its own microsecond.
const POLL_GRID_US: u64 = 1_000;

/// The time for which the timer tries no head after the server has refused a write.
pub const PAUSE_US: u64 = 5_000;

/// If the wall clock gains more than this from the beginning of one piece of work to that of the next, it was set forward.
const STEP_US: u64 = 1_000;

/// The types that a server keeps in its lines.
pub trait LineTypes {
    type Call: Clone;
    /// The handle that ends one wait, once.
    type Handle;
    type Reply: Clone;
    /// A write to a key that could not be made when a wait ended.
    type Write;
}

/// Returns the deadline of a call that begins to wait at `now_us` for `block_ms` milliseconds. `None` for 0, which waits
/// forever.
pub fn deadline_us(now_us: u64, block_ms: u64) -> Option<u64> {
    (block_ms > 0).then(|| now_us.saturating_add(block_ms.saturating_mul(1_000)))
}

/// All lines, and every waiter until it is forgotten. They can be cloned, compared and hashed if the types in `T` can, for
/// searches through all states of a small world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lines<T: LineTypes> {
    /// The last number that a ticket or a line got.
    last_number: u64,
    /// The number of waiters that are in a line.
    waiting_count: usize,
    /// The maximum that [`Lines::admit`] was given last. A line remembers at most that many callers (BY).
    max_callers: usize,
    /// The waiters that are in a line, and those whose wait is over but that are not forgotten yet.
    #[expect(clippy::type_complexity, reason = "derives find the bounds that they need in it")]
    waiters: BTreeMap<Ticket, Waiter<T::Call, T::Handle, T::Reply>>,
    /// The lines that have a waiter or a write.
    lines: BTreeMap<LineId, Line<T::Write>>,
    /// The line on each key, by database and name.
    line_by_key: BTreeMap<i32, BTreeMap<Box<[u8]>, LineId>>,
    /// The ids that the waiters in a line will give to their reservations.
    claimed_ids: ClaimedIds,
    /// The time of the next try of the head of each line.
    tries: BTreeSet<(u64, LineId)>,
    /// The time of the next dismissal in each line that has a deadline.
    dismissals: BTreeSet<(u64, LineId)>,
    /// The timer tries no head before this time.
    paused_until_us: Option<u64>,
    /// The time at which the running timer fires.
    timer_us: Option<u64>,
    budget: WorkBudget,
    /// The time by which the wall clock was ahead of the monotonic clock when work last began. If it grows, the wall clock
    /// was set forward.
    ahead_us: u64,
    /// The time of the next try of the line that was last [moved to the back](Lines::move_to_back). The next line
    /// that is moved comes later.
    last_moved_us: u64,
}

/// A call that waits, or whose wait is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<C, H, R> {
    pub call: C,
    /// The key in whose line it waits, or waited last.
    pub key: Arc<OwnedDbKey>,
    pub state: WaiterState<H, R>,
    line: LineId,
    leave: u64,
    /// The caller, whose turn it takes (BY). Empty without BY.
    caller: Box<[u8]>,
    claimed_ids: Vec<(Arc<OwnedDbKey>, Box<[u8]>)>,
    deadline_us: Option<u64>,
    since_us: u64,
}

/// The state of a waiter: see the picture above.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WaiterState<H, R> {
    /// It waits. The handle ends the wait.
    InLine(H),
    /// Its wait was ended with a reply, which the server has not taken yet.
    HasReply(R),
    /// Its client is gone.
    NoReply,
    /// The server has taken the reply. `None` if the server itself ended the wait.
    Answered(Option<R>),
}

impl<C, H, R> Waiter<C, H, R> {
    fn is_in_line(&self) -> bool {
        matches!(self.state, WaiterState::InLine(_))
    }

    /// Returns the reply that ended its wait. `None` if the server or the client ended it.
    pub fn reply(&self) -> Option<&R> {
        match &self.state {
            WaiterState::HasReply(reply) | WaiterState::Answered(Some(reply)) => Some(reply),
            WaiterState::InLine(_) | WaiterState::NoReply | WaiterState::Answered(None) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Line<W> {
    key: Arc<OwnedDbKey>,
    turns: Turns,
    /// Deadline and ticket of each waiter that has a deadline.
    deadlines: BTreeSet<(u64, Ticket)>,
    /// The writes still to be made, the oldest first.
    writes: VecDeque<W>,
    /// The time of the next try of the head.
    try_us: u64,
    /// The time at which the head was last denied.
    denied_us: Option<u64>,
    /// The deadlines of the line are not scheduled before this time. A step that is taken earlier still dismisses waiters.
    dismiss_from_us: u64,
    /// The line's entries in the two schedules.
    scheduled: (Option<u64>, Option<u64>),
}

impl<W> Line<W> {
    fn head(&self) -> Option<Ticket> {
        self.turns.head().map(|head| head.ticket)
    }

    /// Gives a waiter its place. If it becomes the head, it is tried after `wait_us`.
    fn enter(
        &mut self,
        ticket: Ticket,
        turn: &Turn,
        deadline_us: Option<u64>,
        wait_us: u64,
        now_us: u64,
    ) {
        self.turns.enter(turn, ticket);
        self.deadlines.extend(deadline_us.map(|deadline_us| (deadline_us, ticket)));
        if self.head() == Some(ticket) {
            self.retry_head_after(wait_us, now_us);
        }
    }

    /// Removes a waiter. If it was the head, the new head becomes due.
    fn remove<C, H, R>(
        &mut self,
        ticket: Ticket,
        waiter: &Waiter<C, H, R>,
        granted: bool,
        now_us: u64,
    ) {
        if self.head() == Some(ticket) {
            self.make_due(now_us);
            self.denied_us = None;
        }
        self.turns.remove(waiter.leave, &waiter.caller, ticket, granted);
        if let Some(deadline_us) = waiter.deadline_us {
            self.deadlines.remove(&(deadline_us, ticket));
        }
    }

    /// Returns whether the head was denied at this time or later.
    fn was_denied_since(&self, us: u64) -> bool {
        self.denied_us.is_some_and(|denied_us| denied_us >= us)
    }

    fn make_due(&mut self, now_us: u64) {
        self.try_us = self.try_us.min(now_us);
    }

    fn retry_head_after(&mut self, wait_us: u64, now_us: u64) {
        let poll_us = now_us.saturating_add(POLL_US);
        let poll_us = poll_us.saturating_sub(poll_us % POLL_GRID_US);
        self.try_us = now_us.saturating_add(wait_us).min(poll_us);
        self.denied_us = Some(now_us);
    }
}

/// A call that begins to wait.
pub struct NewWaiter<'j, T: LineTypes> {
    pub call: T::Call,
    pub turn: Turn<'j>,
    /// The ids that the call will give to its reservations, each with its key. They are claimed wherever the call stands.
    pub ids: Vec<(DbKey<'j>, &'j [u8])>,
    pub handle: T::Handle,
    /// The time at which it stops waiting. `None` if it waits forever.
    pub deadline_us: Option<u64>,
    /// The microseconds after which it could be granted, according to its denial.
    pub wait_us: u64,
}

pub enum LineStep<T: LineTypes> {
    Write(T::Write),
    /// Try the head. Then call [`Lines::end`] if its wait is over, [`Lines::retry_head_after`] if it goes on, or
    /// [`Lines::postpone`] if its key could not be written, even if it `is_overdue`.
    Try {
        ticket: Ticket,
        call: T::Call,
        /// Its deadline has passed.
        is_overdue: bool,
    },
    /// Call [`Lines::end`] with a denial, because the waiter's deadline has passed.
    Dismiss {
        ticket: Ticket,
        call: T::Call,
    },
}

pub enum WaiterReply<T: LineTypes> {
    /// Its wait was ended with a reply.
    Ended {
        call: T::Call,
        /// The reply that [`Lines::end`] was given.
        reply: T::Reply,
    },
    /// The server itself ended the wait. The reply is a denial.
    Unblocked { call: T::Call, key: Arc<OwnedDbKey>, was_head: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerChange {
    Keep,
    Stop,
    /// Stop it if it is running, and start it.
    Start {
        after_us: u64,
    },
}

impl<T: LineTypes> Default for Lines<T> {
    fn default() -> Self {
        Lines {
            last_number: 0,
            waiting_count: 0,
            max_callers: 0,
            waiters: BTreeMap::new(),
            lines: BTreeMap::new(),
            line_by_key: BTreeMap::new(),
            claimed_ids: ClaimedIds::default(),
            tries: BTreeSet::new(),
            dismissals: BTreeSet::new(),
            paused_until_us: None,
            timer_us: None,
            budget: WorkBudget::default(),
            ahead_us: 0,
            last_moved_us: 0,
        }
    }
}

impl<T: LineTypes> Lines<T> {
    /// Returns the number of lines, including those that only have writes to make.
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Returns the number of calls that wait, in all lines.
    pub fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    /// Returns the time at which the longest wait began.
    pub fn oldest_since_us(&self) -> Option<u64> {
        let mut in_line = self.waiters.values().filter(|waiter| waiter.is_in_line());
        in_line.next().map(|waiter| waiter.since_us)
    }

    /// Returns whether a new call that does not wait is barred by a waiter on the key, whose LEAVE is the same or smaller.
    pub fn is_barred(&self, key: DbKey, leave: u64) -> bool {
        let head = self.line(key).and_then(|line| line.turns.head());
        head.is_some_and(|head| head.leave <= leave)
    }

    /// Returns whether a waiter on the key would stand before a call with this turn. `ticket` is that of a call which
    /// already waits, in any line. `None` for a call that arrives now.
    pub fn is_preceded(&self, key: DbKey, turn: &Turn, ticket: Option<Ticket>) -> bool {
        let Some(line_id) = self.line_id(key) else { return false };
        let Some(line) = self.lines.get(&line_id) else { return false };
        match ticket {
            Some(ticket) if self.stands_in(ticket, line_id) => line.head() != Some(ticket),
            _ => line.turns.is_preceded(turn, ticket),
        }
    }

    /// Counts a turn of a caller in the line on this key, for a call that was granted there without standing in it. `ticket`
    /// is as in [`Lines::is_preceded`]. Does nothing if nobody waits on the key.
    pub fn count_turn(&mut self, key: DbKey, turn: &Turn, ticket: Option<Ticket>) {
        let Some(line_id) = self.line_id(key) else { return };
        let stands_there = ticket.is_some_and(|ticket| self.stands_in(ticket, line_id));
        if let Some(line) = self.lines.get_mut(&line_id).filter(|_| !stands_there) {
            line.turns.count_turn(turn, ticket);
            line.turns.forget_callers(self.max_callers);
        }
    }

    /// Returns whether the reservation of a waiting call will get this id on this key.
    pub fn is_id_claimed(&self, key: DbKey, id: &[u8]) -> bool {
        self.claimed_ids.contains(key, id)
    }

    /// Returns the call of a waiter that is not forgotten.
    pub fn call(&self, ticket: Ticket) -> Option<&T::Call> {
        self.waiters.get(&ticket).map(|waiter| &waiter.call)
    }

    pub fn waiting_on(&self, key: DbKey) -> usize {
        self.line(key).map_or(0, |line| line.turns.len())
    }

    /// Returns the line on a key, in which calls wait or writes are left.
    pub fn line_id(&self, key: DbKey) -> Option<LineId> {
        self.line_by_key.get(&key.db)?.get(key.name).copied()
    }

    /// Returns the ticket of a call that is going to wait. `None` if `max_waiters` calls wait already.
    pub fn admit(&mut self, max_waiters: u64) -> Option<Ticket> {
        self.max_callers = usize::try_from(max_waiters).unwrap_or(usize::MAX);
        let waiting = u64::try_from(self.waiting_count).unwrap_or(u64::MAX);
        (waiting < max_waiters).then(|| Ticket(self.new_number()))
    }

    pub fn join(&mut self, ticket: Ticket, key: DbKey, new_waiter: NewWaiter<T>, now_us: u64) {
        let NewWaiter { call, turn, ids, handle, deadline_us, wait_us } = new_waiter;
        let line_id = self.find_or_open(key, now_us);
        let Some(line) = self.lines.get_mut(&line_id) else { return };
        let line_key = Arc::clone(&line.key);
        line.enter(ticket, &turn, deadline_us, wait_us, now_us);
        let mut claimed_ids = Vec::with_capacity(ids.len());
        for (id_key, id) in ids {
            self.claimed_ids.insert(id_key, id);
            let is_same = id_key == line_key.borrowed();
            let id_key = if is_same { Arc::clone(&line_key) } else { Arc::new(id_key.into()) };
            claimed_ids.push((id_key, id.into()));
        }
        let waiter = Waiter {
            call,
            key: line_key,
            state: WaiterState::InLine(handle),
            line: line_id,
            leave: turn.leave,
            caller: turn.caller.into(),
            claimed_ids,
            deadline_us,
            since_us: now_us,
        };
        self.waiters.insert(ticket, waiter);
        self.waiting_count = self.waiting_count.saturating_add(1);
        self.schedule(line_id);
    }

    /// Moves a waiter to the line on another key. There it stands before the first call of the same caller and LEAVE that
    /// came later, and takes the turn of that call. If there is none, it joins as a new call does. If it becomes the head,
    /// it is tried again after `wait_us`.
    pub fn change_line(
        &mut self,
        ticket: Ticket,
        key: DbKey,
        turn: &Turn,
        wait_us: u64,
        now_us: u64,
    ) {
        let new_id = self.find_or_open(key, now_us);
        let waiter = self.waiters.get_mut(&ticket).filter(|waiter| waiter.is_in_line());
        if let Some(waiter) = waiter.filter(|waiter| waiter.line != new_id) {
            let old_id = waiter.line;
            if let Some(line) = self.lines.get_mut(&old_id) {
                line.remove(ticket, waiter, false, now_us);
            }
            if let Some(line) = self.lines.get_mut(&new_id) {
                line.enter(ticket, turn, waiter.deadline_us, wait_us, now_us);
                waiter.key = Arc::clone(&line.key);
            }
            waiter.line = new_id;
            waiter.leave = turn.leave;
            waiter.caller = turn.caller.into();
            self.schedule(old_id);
        }
        self.schedule(new_id);
    }

    /// Ends a wait with this reply. Returns its handle, or `None` if the wait is over already. Only a call that was
    /// `granted` something counts among the turns of its line.
    pub fn end(
        &mut self,
        ticket: Ticket,
        reply: T::Reply,
        granted: bool,
        now_us: u64,
    ) -> Option<T::Handle> {
        let handle = self.remove_from_line(ticket, granted, now_us)?;
        self.waiters.get_mut(&ticket)?.state = WaiterState::HasReply(reply);
        Some(handle)
    }

    /// Takes a waiter out of its line, because its client is gone or has got another reply from the server.
    pub fn withdraw(&mut self, ticket: Ticket, now_us: u64) {
        self.remove_from_line(ticket, false, now_us);
    }

    /// Takes the reply to a waiter, and ends its wait if it is still in line. `None` if the reply was taken before.
    pub fn take_reply(&mut self, ticket: Ticket, now_us: u64) -> Option<WaiterReply<T>> {
        let waiter = self.waiters.get(&ticket)?;
        let call = waiter.call.clone();
        let (reply, taken) = match &waiter.state {
            WaiterState::Answered(_) => return None,
            WaiterState::HasReply(reply) => {
                (Some(reply.clone()), WaiterReply::Ended { call, reply: reply.clone() })
            }
            WaiterState::InLine(_) | WaiterState::NoReply => {
                let was_head = self.lines.get(&waiter.line).and_then(Line::head) == Some(ticket);
                (None, WaiterReply::Unblocked { call, key: Arc::clone(&waiter.key), was_head })
            }
        };
        self.remove_from_line(ticket, false, now_us);
        self.waiters.get_mut(&ticket)?.state = WaiterState::Answered(reply);
        Some(taken)
    }

    /// Forgets a waiter whose client the server no longer blocks, and returns it.
    pub fn forget(
        &mut self,
        ticket: Ticket,
        now_us: u64,
    ) -> Option<Waiter<T::Call, T::Handle, T::Reply>> {
        self.remove_from_line(ticket, false, now_us);
        self.waiters.remove(&ticket)
    }

    /// Adds a write to make as soon as the server accepts writes.
    pub fn add_write(&mut self, key: DbKey, write: T::Write, now_us: u64) {
        let id = self.find_or_open(key, now_us);
        self.edit(id, |line| {
            line.writes.push_back(write);
            line.make_due(now_us);
        });
    }

    /// Takes the oldest write that is left in a line.
    pub fn take_write(&mut self, id: LineId) -> Option<T::Write> {
        let write = self.lines.get_mut(&id)?.writes.pop_front()?;
        self.schedule(id);
        Some(write)
    }

    /// Begins to work on waiters. Until [`Lines::end_work`] the timer stays as it is. If the wall clock (`wall_us`) was set
    /// forward since work last began, all heads become due. Commands get a new budget when the `iteration` of the event loop
    /// has changed, and after 20 ms.
    pub fn begin_work(&mut self, cause: WorkCause, iteration: u64, wall_us: u64, now_us: u64) {
        let ahead_us = wall_us.saturating_sub(now_us);
        let before_us = std::mem::replace(&mut self.ahead_us, ahead_us);
        if ahead_us > before_us.saturating_add(STEP_US) {
            self.edit_all(|line| line.make_due(now_us));
        }
        if cause == WorkCause::Timer {
            (self.timer_us, self.paused_until_us) = (None, None);
        }
        self.budget.begin(cause, iteration, now_us);
    }

    /// Returns whether the work that was begun may take another step.
    pub fn has_time(&self, now_us: u64) -> bool {
        self.budget.has_time(now_us)
    }

    /// Ends the work, and returns the microseconds that it took.
    pub fn end_work(&mut self, now_us: u64) -> u64 {
        self.budget.end(now_us)
    }

    /// Makes the head on a key due, because a command may have changed the key. Returns the line if it has a waiter.
    pub fn make_head_due(&mut self, key: DbKey, now_us: u64) -> Option<LineId> {
        let id = self.line_id(key)?;
        self.lines.get(&id).filter(|line| !line.turns.is_empty())?;
        self.edit(id, |line| line.make_due(now_us));
        Some(id)
    }

    pub fn head(&self, id: LineId) -> Option<(Ticket, T::Call)> {
        let ticket = self.lines.get(&id)?.head()?;
        Some((ticket, self.waiters.get(&ticket)?.call.clone()))
    }

    /// Keeps the head of a line waiting, which was tried and denied. It can be granted after `wait_us`.
    pub fn retry_head_after(&mut self, id: LineId, wait_us: u64, now_us: u64) {
        self.edit(id, |line| line.retry_head_after(wait_us, now_us));
    }

    /// Lets the timer try no head for [`PAUSE_US`], because the server accepts no writes.
    pub fn pause(&mut self, now_us: u64) {
        self.paused_until_us = Some(now_us.saturating_add(PAUSE_US));
    }

    /// Lets the timer leave this line alone for [`PAUSE_US`], because nothing may be written to its key.
    pub fn postpone(&mut self, id: LineId, now_us: u64) {
        let until_us = now_us.saturating_add(PAUSE_US);
        self.edit(id, |line| (line.try_us, line.dismiss_from_us) = (until_us, until_us));
    }

    /// Drops the writes to the key of this line, because another server owns the key now.
    pub fn drop_writes(&mut self, id: LineId) {
        self.edit(id, |line| line.writes.clear());
    }

    pub fn drop_all_writes(&mut self) {
        self.edit_all(|line| line.writes.clear());
    }

    /// Returns the line that has been due for the longest time.
    pub fn next_line(&self, now_us: u64) -> Option<(LineId, Arc<OwnedDbKey>)> {
        let tries = self.tries.first().filter(|_| self.paused_until_us.is_none());
        let first = tries.into_iter().chain(self.dismissals.first()).min();
        let (_, id) = first.filter(|(due_us, _)| *due_us <= now_us)?;
        Some((*id, Arc::clone(&self.lines.get(id)?.key)))
    }

    /// Returns the next step in a line at `now_us`. `None` if nothing is due. The head is tried before waiters behind it are
    /// dismissed. Without `may_write` waiters are only dismissed.
    pub fn next_step(&mut self, id: LineId, may_write: bool, now_us: u64) -> Option<LineStep<T>> {
        if let Some(write) = may_write.then(|| self.take_write(id)).flatten() {
            return Some(LineStep::Write(write));
        }
        let line = self.lines.get(&id)?;
        let overdue = line.deadlines.first().copied().filter(|(due_us, _)| *due_us <= now_us);
        if may_write {
            // Something may have become free just before that deadline, so the head is tried before anybody is dismissed.
            // An overdue head is always tried. A command may have tried it since its deadline, but such a try neither ends
            // the wait of a head that it denies nor counts the denial.
            let head = line.head();
            let untried = overdue.is_some_and(|(due_us, ticket)| {
                !line.was_denied_since(due_us) || head == Some(ticket)
            });
            if line.try_us <= now_us || untried {
                if let Some(ticket) = head {
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

    /// Puts a line behind all others that are due.
    pub fn move_to_back(&mut self, id: LineId, now_us: u64) {
        let now_us = now_us.max(self.last_moved_us.saturating_add(1));
        if let Some(line) = self.lines.get_mut(&id) {
            line.try_us = line.try_us.max(now_us);
            line.dismiss_from_us = line.dismiss_from_us.max(now_us);
            self.last_moved_us = now_us;
        }
        self.schedule(id);
    }

    /// Makes all heads due and the timer start again, because the wall clock was set back: the running timer would fire
    /// that much too late.
    pub fn restart_timer(&mut self, now_us: u64) {
        // As if it fired later than anything is due, so that `update_timer` starts it again.
        self.timer_us = self.timer_us.map(|_| u64::MAX);
        self.edit_all(|line| line.make_due(now_us));
    }

    pub fn due_us(&self) -> Option<u64> {
        let at_us = |entry: Option<&(u64, LineId)>| entry.map(|(at_us, _)| *at_us);
        let tries = at_us(self.tries.first());
        let tries = tries.map(|at_us| at_us.max(self.paused_until_us.unwrap_or(0)));
        tries.into_iter().chain(at_us(self.dismissals.first())).min()
    }

    /// Returns what to do with the timer so that it fires when the next step is due. Call it after any other transition.
    pub fn update_timer(&mut self, now_us: u64) -> TimerChange {
        if self.budget.is_working() {
            return TimerChange::Keep;
        }
        let Some(due_us) = self.due_us() else {
            return self.timer_us.take().map_or(TimerChange::Keep, |_| TimerChange::Stop);
        };
        let fires_us = due_us.max(self.budget.rests_until_us()).max(now_us);
        if self.timer_us.is_some_and(|timer_us| timer_us <= fires_us) {
            return TimerChange::Keep;
        }
        self.timer_us = Some(fires_us);
        TimerChange::Start { after_us: fires_us.saturating_sub(now_us) }
    }

    fn edit_all(&mut self, edit: impl Fn(&mut Line<T::Write>)) {
        let ids: Vec<LineId> = self.lines.keys().copied().collect();
        ids.into_iter().for_each(|id| self.edit(id, &edit));
    }

    fn edit(&mut self, id: LineId, edit: impl FnOnce(&mut Line<T::Write>)) {
        if let Some(line) = self.lines.get_mut(&id) {
            edit(line);
            self.schedule(id);
        }
    }

    fn new_number(&mut self) -> u64 {
        self.last_number = self.last_number.saturating_add(1);
        self.last_number
    }

    #[inline]
    fn line(&self, key: DbKey) -> Option<&Line<T::Write>> {
        self.lines.get(&self.line_id(key)?)
    }

    /// Returns the line on a key, which is created if there is none.
    fn find_or_open(&mut self, key: DbKey, now_us: u64) -> LineId {
        if let Some(id) = self.line_id(key) {
            return id;
        }
        let id = LineId(self.new_number());
        let line = Line {
            key: Arc::new(key.into()),
            turns: Turns::default(),
            deadlines: BTreeSet::new(),
            writes: VecDeque::new(),
            try_us: now_us,
            denied_us: None,
            dismiss_from_us: 0,
            scheduled: (None, None),
        };
        self.lines.insert(id, line);
        self.line_by_key.entry(key.db).or_default().insert(key.name.into(), id);
        id
    }

    fn stands_in(&self, ticket: Ticket, line: LineId) -> bool {
        let waiter = self.waiters.get(&ticket);
        waiter.is_some_and(|waiter| waiter.is_in_line() && waiter.line == line)
    }

    /// Takes a waiter out of its line if it is still there. If it was the head, the new head becomes due.
    fn remove_from_line(
        &mut self,
        ticket: Ticket,
        granted: bool,
        now_us: u64,
    ) -> Option<T::Handle> {
        let waiter = self.waiters.get_mut(&ticket).filter(|waiter| waiter.is_in_line())?;
        let state = std::mem::replace(&mut waiter.state, WaiterState::NoReply);
        let WaiterState::InLine(handle) = state else { return None };
        self.waiting_count = self.waiting_count.saturating_sub(1);
        for (key, id) in waiter.claimed_ids.drain(..) {
            self.claimed_ids.remove(&key, &id);
        }
        let line_id = waiter.line;
        if let Some(line) = self.lines.get_mut(&line_id) {
            line.remove(ticket, waiter, granted, now_us);
        }
        self.schedule(line_id);
        Some(handle)
    }

    /// Updates the schedules for a line, and removes the line if it has no waiter and no write.
    fn schedule(&mut self, id: LineId) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.turns.forget_callers(self.max_callers);
        let is_empty = line.turns.is_empty() && line.writes.is_empty();
        let deadline_us =
            line.deadlines.first().map(|(at_us, _)| (*at_us).max(line.dismiss_from_us));
        let new = ((!is_empty).then_some(line.try_us), deadline_us);
        let old = std::mem::replace(&mut line.scheduled, new);
        for (schedule, old, new) in
            [(&mut self.tries, old.0, new.0), (&mut self.dismissals, old.1, new.1)]
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
            if let Some(keys) = self.line_by_key.get_mut(&line.key.db) {
                keys.remove(&line.key.name);
                if keys.is_empty() {
                    self.line_by_key.remove(&line.key.db);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Calls that wait (BLOCK), from their denial to their reply. The server implements [`ServerCall`](crate::call::ServerCall)
//! and [`WaitingKeyspace`], and calls the functions of this file.
//!
//! ```text
//! take, all                       a denied call waits for a limit (crate::arrival)
//!   ServerCall::join                blocks the client, and puts the call into the line on the key of that limit
//!
//! WaitingKeyspace::wake           by each command that may change the key, before it takes and after it gives back
//!   make_pending_write              what CLIENT UNBLOCK or a client that is gone has left to write
//!   try_heads                       try_head for the head, and after each grant for the next one
//! the server's timer              when the head could be granted, a wait times out, or others may have changed the key
//!   serve_line                      makes the writes that are left, try_head, and dismiss for calls whose time is up
//!     try_head, dismiss
//!       decide_on_its_keys            finds the keys of the call
//!         decide_waiting                the steps of crate::decide: it is granted, waits on, or is denied in the end
//!       WaitingKeyspace::deliver      ends the wait with the decisions or an error, and lets the client go
//! CLIENT UNBLOCK                  the server has ended the wait
//!   decide_on_its_keys              as when the time is up, but what it counts is left to write
//!
//! the client gets its reply
//!   WaitingCall::write_reply        from the decisions with which the wait ended
//! the client is gone before
//!   crate::decide::give_back        what it was granted, on each key
//! ```
//!
//! A call over several limits (RL.ALL) stands in one line at a time, that of the limit that denies it for the longest time,
//! and holds nothing. When that limit would allow it and another one denies, it changes to the line of that one. The lines
//! are those of [`engine::line`].

use crate::decide::{decide, note_end};
use crate::error::Error;
use crate::keyspace::{EmptiedOf, Keyspace};
use crate::reply::{write_call, CallResult, ReplyForm, ReplySink};
use engine::line::{deadline_us, LineId, LineStep, LineTypes, Lines, Ticket, Turn};
use engine::store::{Access, Store};
use engine::{
    AwaitedLimit, DbKey, Decision, Judged, Mode, OwnedDbKey, Part, PartDecision, Request, Standing,
};
use smallvec::SmallVec;

/// BLOCK: how long a call waits, and whose turn it takes.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The maximum wait in milliseconds, or 0 if there is none.
    pub ms: u64,
    pub caller: WeightedCaller<'a>,
}

/// The caller of a call that waits (BY), and its share of the turns (WEIGHT).
#[derive(Clone, Copy, Debug)]
pub struct WeightedCaller<'a> {
    /// Empty for all calls without BY.
    pub name: &'a [u8],
    /// From 1 to 1000.
    pub weight: u64,
}

impl Block<'_> {
    /// Returns the last time at which a call of this time may be granted. Both in Unix microseconds.
    pub(crate) fn last_us(&self, now_us: u64) -> u64 {
        deadline_us(now_us, self.ms).unwrap_or(u64::MAX)
    }
}

impl<'a> WeightedCaller<'a> {
    /// Returns what decides the place of a request in a line.
    pub(crate) fn turn(self, request: &Request) -> Turn<'a> {
        let WeightedCaller { name: caller, weight } = self;
        Turn { leave: request.leave(), caller, weight, quantity: request.ask.quantity.wanted() }
    }
}

/// A call that waits: what it asks of each of its keys.
#[derive(Clone, Debug)]
pub struct WaitingCall {
    limits: Box<[WaitingLimit]>,
    form: ReplyForm,
    caller: Box<[u8]>,
    weight: u64,
}

/// A limit of a call that waits.
#[derive(Clone, Debug)]
struct WaitingLimit {
    key: OwnedDbKey,
    request: Request,
    policy_id: Option<u64>,
}

/// The decisions about the limits of a call that waits, in their order.
pub type Decisions = SmallVec<[LimitDecision; 1]>;

/// A [`PartDecision`] without its request, which the call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    standing: Standing,
    decision: Decision,
    counts_denial: bool,
}

impl From<PartDecision<'_>> for LimitDecision {
    fn from(part: PartDecision) -> LimitDecision {
        let PartDecision { standing, decision, counts_denial, .. } = part;
        LimitDecision { standing, decision, counts_denial }
    }
}

/// The reply that ended a wait, and its time.
#[derive(Clone)]
pub struct TimedReply {
    /// The decisions, or the error to reply with.
    pub result: Result<Decisions, Error>,
    /// Unix microseconds.
    pub at_us: u64,
}

impl WaitingCall {
    /// Creates a call with these limits: the key, the request, and the policy on which it is counted.
    pub fn new(
        limits: impl Iterator<Item = (OwnedDbKey, (Request, Option<u64>))>,
        form: ReplyForm,
        WeightedCaller { name, weight }: WeightedCaller,
    ) -> WaitingCall {
        let limits = limits
            .map(|(key, (request, policy_id))| WaitingLimit { key, request, policy_id })
            .collect();
        WaitingCall { limits, form, caller: name.into(), weight }
    }

    /// Returns the keys of the limits.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = DbKey<'_>> {
        self.limits.iter().map(|limit| limit.key.borrowed())
    }

    /// Returns the ids that the call will give to its reservations, each with its key.
    pub fn ids(&self) -> Vec<(DbKey<'_>, &[u8])> {
        let ids = self.limits.iter().map(|limit| (limit.key.borrowed(), limit.request.id()));
        ids.filter_map(|(key, id)| Some((key, id?))).collect()
    }

    fn caller(&self) -> WeightedCaller<'_> {
        WeightedCaller { name: &self.caller, weight: self.weight }
    }

    /// Returns what decides the place of the call in the line of the limit with this index.
    pub fn turn(&self, index: usize) -> Option<Turn<'_>> {
        self.limits.get(index).map(|limit| self.caller().turn(&limit.request))
    }

    /// Returns the index of the limit on this key.
    pub fn index_of(&self, key: DbKey) -> Option<usize> {
        self.keys().position(|other| other == key)
    }

    /// Returns what was granted: the key, the request and the decision of each limit from which the call took.
    pub fn grants<'g>(
        &'g self,
        decisions: &'g Decisions,
    ) -> impl Iterator<Item = (DbKey<'g>, &'g Request, Decision)> {
        let parts = self.parts(decisions);
        let allowed = parts.iter().all(PartDecision::allows);
        let granted = self.keys().zip(parts).filter(move |(_, part)| allowed && part.takes());
        granted.map(|(key, part)| (key, part.request, part.decision))
    }

    /// Returns the requests whose denial counts (COUNTDENIED), each with its key.
    pub fn counted_denials<'d>(
        &'d self,
        decisions: &'d Decisions,
    ) -> impl Iterator<Item = (DbKey<'d>, &'d Request)> {
        let counted = self.limits.iter().zip(decisions).filter(|(_, limit)| limit.counts_denial);
        counted.map(|(limit, _)| (limit.key.borrowed(), &limit.request))
    }

    /// Writes the reply, and returns how the call ended.
    pub fn write_reply(
        &self,
        sink: &impl ReplySink,
        decisions: &Decisions,
    ) -> Result<CallResult, Error> {
        write_call(sink, self.form, &self.parts(decisions))
    }

    /// Returns the decisions with the requests. Each limit is a group of its own: a call with ELSE does not wait.
    fn parts(&self, decisions: &Decisions) -> SmallVec<[PartDecision<'_>; 1]> {
        let parts = self.limits.iter().zip(decisions.iter().copied()).enumerate();
        let part = parts.map(|(index, (limit, decided))| {
            let (request, group) = (&limit.request, index);
            let LimitDecision { standing, decision, counts_denial } = decided;
            PartDecision { index, request, group, standing, decision, counts_denial }
        });
        part.collect()
    }
}

/// Returns whether a wait ended with a grant.
pub fn is_granted(result: &Result<Decisions, Error>) -> bool {
    let allows = |limit: &LimitDecision| limit.standing != Standing::Denied;
    result.as_ref().is_ok_and(|decisions| decisions.iter().all(allows))
}

/// A call that waits, which is decided on all of its keys.
#[derive(Clone, Copy)]
pub struct Trial<'w> {
    pub ticket: Ticket,
    pub call: &'w WaitingCall,
    /// The index of the limit in whose line it stands or stood last.
    pub at: usize,
    pub kind: TrialKind,
}

/// Why a call that waits is decided, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialKind {
    /// It is the head of its line. If it is denied, it goes on waiting.
    Try,
    /// It is the head of its line and its time is up. If it is denied, its wait is over and the denial counts.
    LastTry,
    /// Its time is up, and others stand before it. It is denied, and the denial counts only on keys where nobody does.
    Dismiss,
    /// Its wait is over, but nothing can be written. It is denied by looking, and the denial does not count.
    Look,
    /// The server has ended its wait, in a callback that must not write. It is denied, and the denial counts as it would when
    /// its time is up, but what was planned is not written.
    Unblock { was_head: bool },
}

impl<'w> Trial<'w> {
    /// Creates a trial of a call that stands, or stood last, in the line on `key`.
    pub fn new<S: WaitingKeyspace>(
        keyspace: &S,
        key: S::Key,
        ticket: Ticket,
        call: &'w WaitingCall,
        kind: TrialKind,
    ) -> Trial<'w> {
        let at = match call.keys().len() {
            1 => 0,
            _ => call.index_of(keyspace.name(key).borrowed()).unwrap_or_default(),
        };
        Trial { ticket, call, at, kind }
    }

    /// Returns whether the call may be granted.
    pub fn may_grant(&self) -> bool {
        matches!(self.kind, TrialKind::Try | TrialKind::LastTry)
    }

    /// Returns the access to its keys that the trial needs.
    pub fn access(&self) -> Access {
        match self.kind {
            TrialKind::Try | TrialKind::LastTry | TrialKind::Dismiss => Access::Write,
            TrialKind::Look | TrialKind::Unblock { .. } => Access::Read,
        }
    }

    fn mode(&self) -> Mode {
        match self.kind {
            TrialKind::Try => Mode::Try,
            TrialKind::LastTry | TrialKind::Dismiss | TrialKind::Unblock { .. } => Mode::Final,
            TrialKind::Look => Mode::Look,
        }
    }

    /// Returns the limit for which the call goes on waiting: that of its line as long as that limit denies it, and then the
    /// one with the longest wait. `None` if its wait is over.
    fn find_awaited<S: Store>(&self, judged: &Judged<S>) -> Option<AwaitedLimit> {
        if self.kind != TrialKind::Try {
            return None;
        }
        let longest = judged.longest_wait()?;
        Some(judged.wait_for(self.at).unwrap_or(longest))
    }
}

/// A keyspace with lines of waiting calls.
pub trait WaitingKeyspace: Keyspace {
    type Types: LineTypes;

    /// Returns the name by which the lines know the key.
    fn name(&self, key: Self::Key) -> OwnedDbKey;

    /// Makes a transition of the lines, which receives the time of their clock.
    fn change_lines<T>(&self, transition: impl FnOnce(&mut Lines<Self::Types>, u64) -> T) -> T;

    /// Reads the lines, which know the key by the name that `read` receives. Returns the default if there are no lines.
    fn read_lines<T: Default>(
        &self,
        key: Self::Key,
        read: impl FnOnce(&Lines<Self::Types>, DbKey) -> T,
    ) -> T;

    /// Grants available capacity to the waiters on the key. If a call has emptied the key, the first waiter goes on with it,
    /// and without a grant it is deleted.
    fn wake<'k>(&self, key: Self::Key, emptied: Option<EmptiedOf<'k, Self>>)
    where
        Self: 'k;

    /// Returns what a call that waits asks for.
    fn waiting_call(call: &<Self::Types as LineTypes>::Call) -> &WaitingCall;

    /// Decides a call that stands in the line on the key: with [`decide_waiting`], on all of its keys. The key may be one
    /// that a call has just emptied.
    ///
    /// # Errors
    ///
    /// Those of [`decide_waiting`].
    fn decide_on_its_keys(
        &self,
        key: Self::Key,
        emptied: Option<&EmptiedOf<'_, Self>>,
        trial: Trial,
    ) -> Result<(Decisions, Option<AwaitedLimit>), Error>;

    /// Returns the microseconds that have passed since the time of a key was read.
    fn elapsed_us(&self, key: Self::Key) -> u64;

    /// Returns whether the server accepts a write to the keys of a call now, of which `own` is that of its line. This is
    /// asked only before a write, because the question shows in the server's statistics.
    fn accepts_write(&self, _own: Self::Key, _keys: &[Self::Key]) -> bool {
        true
    }

    /// Counts a wait that ended with a grant or without one, and after a grant marks the keys as used.
    fn note_wait(&self, keys: &[Self::Key], granted: bool);

    /// Removes a call from its line, and passes it the reply that ends its wait.
    fn deliver(&self, ticket: Ticket, key: Self::Key, result: Result<Decisions, Error>);

    /// Makes a write that was left to do when a wait ended. If the key cannot be written at the moment, the line waits with
    /// the write.
    fn make_pending_write(
        &self,
        line: LineId,
        key: Self::Key,
        write: <Self::Types as LineTypes>::Write,
    ) -> Step;
}

/// What follows a step in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Another one, which may be due.
    Again,
    /// Nothing for now: nothing is due, or the key cannot be written at the moment. The line is scheduled for later.
    Later,
}

/// What became of the head of a line that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Tried {
    /// It has left the line: its wait is over, or it stands in another line.
    Left,
    /// It goes on waiting: it was denied, or its key cannot be written at the moment.
    Waits,
}

/// The maximum number of steps in a line before it is the next line's turn.
const STEPS_IN_A_ROW: usize = 8;

/// Takes the steps in a line that are due at `due_us`, at most `STEPS_IN_A_ROW`, and goes on after each only while
/// `has_time` says so. The other arguments are those of [`take_step`].
pub fn serve_line<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    key: S::Key,
    may_write: bool,
    due_us: u64,
    has_time: impl Fn() -> bool,
) {
    for _ in 0..STEPS_IN_A_ROW {
        let step = take_step(keyspace, line, key, may_write, due_us);
        if step == Step::Later || !has_time() {
            return;
        }
    }
}

/// Takes the next step in a line that is due at `due_us`, on the key of the line. Without `may_write` it only ends waits.
pub fn take_step<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    key: S::Key,
    may_write: bool,
    due_us: u64,
) -> Step {
    match keyspace.change_lines(|lines, _| lines.next_step(line, may_write, due_us)) {
        None => Step::Later,
        Some(LineStep::Write(write)) => keyspace.make_pending_write(line, key, write),
        Some(LineStep::Try { ticket, call, is_overdue }) => {
            let kind = if is_overdue { TrialKind::LastTry } else { TrialKind::Try };
            let trial = Trial::new(keyspace, key, ticket, S::waiting_call(&call), kind);
            match try_head(keyspace, line, key, None, trial) {
                // It would be the next step again, although its line was postponed.
                Tried::Waits if is_overdue => Step::Later,
                // Waiters behind the head may be overdue.
                Tried::Waits | Tried::Left => Step::Again,
            }
        }
        Some(LineStep::Dismiss { ticket, call }) => {
            let kind = if may_write { TrialKind::Dismiss } else { TrialKind::Look };
            let trial = Trial::new(keyspace, key, ticket, S::waiting_call(&call), kind);
            match dismiss(keyspace, line, key, trial) {
                Tried::Waits => Step::Later,
                Tried::Left => Step::Again,
            }
        }
    }
}

/// Tries the head of a line on the key, and after each grant the next head, while `has_time` says so. The first head goes on
/// with the key that a call has emptied, if there is one.
pub fn try_heads<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    key: S::Key,
    emptied: Option<&EmptiedOf<'_, S>>,
    has_time: impl Fn() -> bool,
) {
    let head = || keyspace.read_lines(key, |lines, _| lines.head(line)).filter(|_| has_time());
    while let Some((ticket, call)) = head() {
        // Commands do not end waits that are overdue: by the time of the command, which may lie some time back, a waiter
        // could be denied although enough is available by now.
        let trial = Trial::new(keyspace, key, ticket, S::waiting_call(&call), TrialKind::Try);
        if try_head(keyspace, line, key, emptied, trial) == Tried::Waits {
            return;
        }
    }
}

/// Tries the call at the head of a line, on the key of that line, which a call may have just emptied.
fn try_head<S: WaitingKeyspace>(
    keyspace: &S,
    line: LineId,
    key: S::Key,
    emptied: Option<&EmptiedOf<'_, S>>,
    trial: Trial,
) -> Tried {
    let Trial { ticket, call, at, kind } = trial;
    match keyspace.decide_on_its_keys(key, emptied, trial) {
        Ok((_, Some(AwaitedLimit { index, wait_us }))) => {
            let wait_us = wait_us.saturating_sub(keyspace.elapsed_us(key));
            if index == at {
                keyspace
                    .change_lines(|lines, now_us| lines.retry_head_after(line, wait_us, now_us));
                return Tried::Waits;
            }
            if let (Some(key), Some(turn)) = (call.keys().nth(index), call.turn(index)) {
                keyspace.change_lines(|lines, now_us| {
                    lines.change_line(ticket, key, &turn, wait_us, now_us);
                });
            }
            Tried::Left
        }
        Err(Error::NotWritable) if kind == TrialKind::LastTry => {
            dismiss(keyspace, line, key, Trial { kind: TrialKind::Look, ..trial })
        }
        // A key cannot be written at the moment, or holds more than one call may read, which another try reads.
        Err(Error::NotWritable | Error::TooMuchToRead) => {
            keyspace.change_lines(|lines, now_us| lines.postpone(line, now_us));
            Tried::Waits
        }
        result => {
            keyspace.deliver(ticket, key, result.map(|(decisions, _)| decisions));
            Tried::Left
        }
    }
}

/// Ends the wait of a call whose time is up with its denial, unless its keys hold more than one call may read: another try
/// reads the rest.
fn dismiss<S: WaitingKeyspace>(keyspace: &S, line: LineId, key: S::Key, trial: Trial) -> Tried {
    let decide = |kind| keyspace.decide_on_its_keys(key, None, Trial { kind, ..trial });
    let denied = match decide(trial.kind) {
        Err(Error::NotWritable) => decide(TrialKind::Look),
        denied => denied,
    };
    if let Err(Error::TooMuchToRead) = denied {
        keyspace.change_lines(|lines, now_us| lines.postpone(line, now_us));
        return Tried::Waits;
    }
    keyspace.deliver(trial.ticket, key, denied.map(|(decisions, _)| decisions));
    Tried::Left
}

/// Decides a call that waits on all of its keys, and writes the result if the server accepts that. `own` is the key of the
/// line in which it stands. Notes the end of the call, or returns the limit for which it goes on waiting.
///
/// # Errors
///
/// [`Error::NotWritable`] if the write is not accepted, and those of [`engine::read`], [`engine::Found::judge`] and
/// [`Judged::plan`]. Nothing changes then.
pub fn decide_waiting<'k, S: WaitingKeyspace>(
    keyspace: &'k S,
    keys: &[S::Key],
    own: S::Store<'k>,
    trial: Trial,
) -> Result<(Decisions, Option<AwaitedLimit>), Error> {
    let Trial { ticket, call, at, kind } = trial;
    let mut decisions = SmallVec::<[PartDecision; 1]>::new();
    // The block closes the keys.
    let awaited = {
        let mut own = Some(own);
        let mut parts = SmallVec::<[Part<S::Store<'k>>; 1]>::new();
        for (index, (limit, &key)) in call.limits.iter().zip(keys).enumerate() {
            let (store, barred) = match own.take_if(|_| index == at) {
                Some(own) => (own, !trial.may_grant()),
                None => {
                    let is_preceded = |lines: &Lines<S::Types>, key: DbKey| {
                        let turn = call.turn(index);
                        turn.is_some_and(|turn| lines.is_preceded(key, &turn, Some(ticket)))
                    };
                    (keyspace.store(key, trial.access()), keyspace.read_lines(key, is_preceded))
                }
            };
            let part = Part::new(store, &limit.request, index, barred);
            let was_head = index == at && kind == TrialKind::Unblock { was_head: true };
            parts.push(if was_head { part.count_barred() } else { part });
        }
        let (plan, awaited) =
            decide(keyspace, &mut parts, trial.mode(), |judged| Ok(trial.find_awaited(judged)))?;
        decisions.extend(plan.decisions());
        if plan.changes_something() && trial.access() == Access::Write {
            let own = *keys.get(at).ok_or(Error::internal())?;
            if !keyspace.accepts_write(own, keys) {
                return Err(Error::NotWritable);
            }
            plan.write();
        }
        awaited
    };
    if awaited.is_none() {
        let policies = call.limits.iter().map(|limit| limit.policy_id);
        note_end(keyspace, keys, policies, &decisions, Some((call.caller(), Some(ticket))));
        keyspace.note_wait(keys, decisions.iter().all(PartDecision::allows));
    }
    Ok((decisions.into_iter().map(LimitDecision::from).collect(), awaited))
}

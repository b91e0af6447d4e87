//! BLOCK: calls that wait in the server, first come, first served for each key.
//!
//! Only the head of a line is ever tried. It is tried by every RL.* command that may write to its key, before that command
//! takes and after it gave back, and by a timer at the next moment that matters: when the head's own wait should be
//! over, when somebody's time is up, and at least every [`POLL_MS`], as nothing tells us of other changes to the
//! key. A grant is charged in the context of whoever tries, then the client is unblocked.

use super::request::{Attempt, Mode, Request, Terms};
use crate::answer::Answer;
use crate::command::Command;
use crate::config;
use crate::error::Error;
use crate::limit::waiters::{Line, Ticket};
use crate::redis::blocking::{Blocked, ClientId, Timer};
use crate::redis::call::{Call, Context, KeyName};
use crate::redis::clock;
use crate::redis::text::OwnedString;
use crate::stats;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest that a line goes untried. Within 100 ms other changes to its key are to be noticed; the rest is
/// for timers that come late.
const POLL_MS: u64 = 80;
/// How long to leave a line alone while CLIENT PAUSE or a failover is in force, on a replica, or where the slot
/// has moved away.
const PAUSED_MS: u64 = 5;

type LineId = u64;
type Outcome = Result<Answer, Error>;

/// A client that waits, until the server has forgotten it.
struct Waiter {
    line: LineId,
    place: Arc<Place>,
    request: Request,
    command: &'static Command,
    client: ClientId,
    blocked: Blocked,
    /// What it is answered, once that is known, and when it was decided.
    outcome: Option<(Outcome, u64)>,
    /// Whether the answer was handed to the server.
    answered: bool,
}

/// A key of a database.
struct Place {
    db: i32,
    key: OwnedString,
}

/// All who wait on one key.
struct KeyLine {
    place: Arc<Place>,
    line: Line,
    /// Ids that waiting calls will give to their reservations.
    ids: BTreeSet<Box<[u8]>>,
    timer: Option<(Timer, u64)>,
    /// What is to be written as soon as that is allowed.
    debts: Vec<(Request, Debt)>,
}

/// What follows from the end of a wait that was learnt of where nothing may be written.
enum Debt {
    /// A grant, made at this time, whose client died before it was told.
    GiveBack(Answer, u64),
    /// A denial that counts.
    CountDenial,
}

/// Everybody. Never locked while a wait is ended or a request attempted: the server may call back.
struct Room {
    last: u64,
    waiting: usize,
    waiters: BTreeMap<Ticket, Waiter>,
    blocked: BTreeMap<Blocked, Ticket>,
    lines: BTreeMap<LineId, KeyLine>,
    names: BTreeMap<i32, BTreeMap<Box<[u8]>, LineId>>,
}

static ROOM: Mutex<Room> = Mutex::new(Room::EMPTY);

/// How many lines there are, so that commands pay nothing while there are none.
static LINES: AtomicUsize = AtomicUsize::new(0);

fn room<T>(body: impl FnOnce(&mut Room) -> T) -> T {
    body(&mut ROOM.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Frees the room, before the module goes: the server lets it go only when nobody waits.
pub fn release() {
    room(|room| *room = Room::EMPTY);
}

/// How many calls wait now.
pub fn waiting() -> u64 {
    room(|room| u64::try_from(room.waiting).unwrap_or(u64::MAX))
}

/// Carries out a call of a taking command: answers it, or makes it wait.
pub fn serve(call: &Call, request: Request, block_ms: Option<u64>) -> Result<(), Error> {
    let (ctx, name) = (call.context(), call.key()?);
    let now_us = clock::command_time_us();
    let mut line = line_of(ctx, name);
    if let (Some(id), true) = (line, request.takes()) {
        wake(ctx, id, now_us);
        line = line_of(ctx, name);
    }
    let barred = line.is_some() && request.takes();
    if let (Some(line), Some(id)) = (line, request.id()) {
        if room(|room| room.lines.get(&line).is_some_and(|line| line.ids.contains(id))) {
            return Err(Error::Duplicate);
        }
    }
    let block_ms = block_ms.filter(|_| request.takes() && ctx.may_block());
    let mode = if block_ms.is_some() { Mode::Try } else { Mode::Last };
    let mut attempt = request.attempt(ctx, name, now_us, Terms { barred, mode })?;
    if let (Attempt::Denied { answer, alone_us }, Some(ms)) = (&attempt, block_ms) {
        let last_us =
            if ms == 0 { u64::MAX } else { now_us.saturating_add(ms.saturating_mul(1_000)) };
        if alone_us.is_some_and(|alone_us| alone_us <= last_us) {
            let wait_us = if barred { None } else { answer.decision.retry_after_us };
            return join(call, request, ms, wait_us);
        }
        attempt = request.attempt(ctx, name, now_us, Terms { barred, mode: Mode::Last })?;
    }
    if let (Some(line), false) = (line, request.takes()) {
        // It may have given back. A call that takes has been barred, or nobody waits.
        wake(ctx, line, now_us);
    }
    call.reply(attempt.answer());
    Ok(())
}

/// Tries the head of the line on the key, after a command that may have given something back.
pub fn wake_key(ctx: Context, name: KeyName, now_us: u64) {
    if let Some(line) = line_of(ctx, name) {
        wake(ctx, line, now_us);
    }
}

/// The line on a key, if somebody waits there.
fn line_of(ctx: Context, name: KeyName) -> Option<LineId> {
    if LINES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let db = ctx.db();
    room(|room| {
        let id = *room.names.get(&db)?.get(name.as_bytes())?;
        room.lines.get(&id).filter(|line| !line.line.is_empty()).map(|_| id)
    })
}

/// Lets a call wait at the end of its line.
fn join(call: &Call, request: Request, block_ms: u64, wait_us: Option<u64>) -> Result<(), Error> {
    let (ctx, name) = (call.context(), call.key()?);
    let ticket = room(|room| {
        let free = u64::try_from(room.waiting).unwrap_or(u64::MAX) < config::MAX_WAITERS.get();
        free.then(|| room.new_number())
    })
    .ok_or(Error::TooManyWaiters)?;
    let blocked = Blocked::client(call, name.as_bytes(), ticket).ok_or(Error::Internal)?;
    let deadline_us = (block_ms > 0)
        .then(|| clock::monotonic_us().saturating_add(block_ms.saturating_mul(1_000)));
    let line = room(|room| {
        let id = room.open_line(ctx.db(), name.as_bytes());
        let line = room.lines.get_mut(&id)?;
        line.line.join(ticket, deadline_us);
        line.ids.extend(request.id().map(Box::from));
        let waiter = Waiter {
            line: id,
            place: Arc::clone(&line.place),
            request,
            command: call.command(),
            client: ClientId::of(call),
            blocked,
            outcome: None,
            answered: false,
        };
        room.waiters.insert(ticket, waiter);
        room.blocked.insert(blocked, ticket);
        room.waiting = room.waiting.saturating_add(1);
        Some(id)
    });
    if let Some(line) = line {
        rearm(line, wait_us);
    }
    Ok(())
}

/// Grants to the head, and to the next, as long as they can be had.
fn wake(ctx: Context, id: LineId, now_us: u64) {
    let wait_us = serve_heads(ctx, id, now_us, None);
    rearm(id, wait_us);
}

/// Grants to the head, and to the next, as long as they can be had, or else their time was up at `due_us` of the
/// monotonic clock; returns how long the next has to wait. Only a timer tells whose time is up: the time of a command
/// may be an old one, of a transaction or a script, at which what a waiter could have by now was not there.
fn serve_heads(ctx: Context, id: LineId, now_us: u64, due_us: Option<u64>) -> Option<u64> {
    while let Some((ticket, request, place)) = room(|room| room.head(id)) {
        let name = KeyName::of(&place.key);
        let terms = Terms { barred: false, mode: Mode::Try };
        match request.attempt(ctx, name, now_us, terms) {
            Ok(Attempt::Allowed(answer)) => {
                stats::WAITED.add(1);
                end(ticket, Ok(answer), now_us);
            }
            Ok(Attempt::Denied { answer, .. }) => {
                let overdue =
                    due_us.is_some_and(|due_us| room(|room| room.is_overdue(id, ticket, due_us)));
                if !overdue {
                    return answer.decision.retry_after_us;
                }
                let terms = Terms { barred: false, mode: Mode::Last };
                give_up(ctx, ticket, &request, name, now_us, terms);
            }
            Err(error) => end(ticket, Err(error), now_us),
        }
    }
    None
}

/// Answers all whose time was up at `due_us`, behind a head who goes on waiting.
fn dismiss_overdue(ctx: Context, id: LineId, now_us: u64, due_us: u64, mode: Mode) {
    while let Some((ticket, request, place)) = room(|room| room.overdue(id, due_us)) {
        let terms = Terms { barred: true, mode };
        give_up(ctx, ticket, &request, KeyName::of(&place.key), now_us, terms);
    }
}

/// Answers the denial to a waiter whose time is up.
fn give_up(
    ctx: Context,
    ticket: Ticket,
    request: &Request,
    name: KeyName,
    now_us: u64,
    terms: Terms,
) {
    let answer = request.attempt(ctx, name, now_us, terms).map(Attempt::answer);
    stats::TIMED_OUT.add(1);
    end(ticket, answer, now_us);
}

/// Ends a wait with this outcome.
fn end(ticket: Ticket, outcome: Outcome, now_us: u64) {
    let blocked = room(|room| {
        if !room.leave(ticket) {
            return None;
        }
        let waiter = room.waiters.get_mut(&ticket)?;
        waiter.outcome = Some((outcome, now_us));
        Some(waiter.blocked)
    });
    if let Some(blocked) = blocked {
        blocked.end();
    }
}

/// The server asks what to answer to a waiter, because we ended its wait or because somebody else did. `None` if
/// it was told before.
pub fn answer(ctx: Context, ticket: Ticket) -> Option<(&'static Command, Outcome)> {
    let (command, outcome, request, line, place) = room(|room| {
        let waiter = room.waiters.get_mut(&ticket)?;
        if std::mem::replace(&mut waiter.answered, true) {
            return None;
        }
        let place = Arc::clone(&waiter.place);
        let known = (waiter.command, waiter.outcome, waiter.request, waiter.line, place);
        room.leave(ticket);
        Some(known)
    })?;
    if let Some((outcome, _)) = outcome {
        return Some((command, outcome));
    }
    // CLIENT UNBLOCK: the denial, and nothing may be written here.
    stats::TIMED_OUT.add(1);
    let terms = Terms { barred: true, mode: Mode::Look };
    let attempt = request.attempt(ctx, KeyName::of(&place.key), clock::command_time_us(), terms);
    if attempt.is_ok() && request.counts_denials() {
        room(|room| room.owe(&place, request, Debt::CountDenial));
    }
    rearm(line, Some(0));
    Some((command, attempt.map(Attempt::answer)))
}

/// The wait of a client was ended without an answer of ours: it is gone, or the server told it something else.
pub fn disconnected(blocked: Blocked) {
    let line = room(|room| {
        let ticket = room.blocked.remove(&blocked)?;
        room.leave(ticket);
        room.waiters.get(&ticket).map(|waiter| waiter.line)
    });
    if let Some(line) = line {
        rearm(line, Some(0));
    }
}

/// The server is done with a blocked call. It was `cut_off` if the server ended it after we did or instead.
pub fn forget(ticket: Ticket, cut_off: bool) {
    let line = room(|room| {
        let left = room.leave(ticket);
        let waiter = room.waiters.remove(&ticket)?;
        if room.blocked.get(&waiter.blocked) == Some(&ticket) {
            room.blocked.remove(&waiter.blocked);
        }
        // By CLIENT UNBLOCK in the transaction that granted, it is cut off and was told all the same.
        let untold = cut_off && !(waiter.answered && waiter.client.is_connected());
        match waiter.outcome {
            Some((Ok(answer), granted_us)) if untold && answer.decision.allowed() => {
                let debt = Debt::GiveBack(answer, granted_us);
                Some(room.owe(&waiter.place, waiter.request, debt))
            }
            _ => left.then_some(waiter.line),
        }
    });
    if let Some(line) = line {
        rearm(line, Some(0));
    }
}

/// The timer of a line has fired.
pub fn tick(ctx: Context, id: LineId) {
    let Some(place) = room(|room| {
        let line = room.lines.get_mut(&id)?;
        line.timer = None;
        Some(Arc::clone(&line.place))
    }) else {
        return;
    };
    let name = KeyName::of(&place.key);
    if ctx.is_paused() {
        rearm_after(id, PAUSED_MS.saturating_mul(1_000));
        return;
    }
    // In this order: what is there when somebody's time is up is still theirs.
    let due_us = clock::monotonic_us();
    let now_us = clock::wall_time_us();
    let debts = room(|room| Some(std::mem::take(&mut room.lines.get_mut(&id)?.debts)));
    // Also where the rest fails: whoever is dismissed is judged in this database.
    let selected = ctx.select_db(place.db);
    if !ctx.is_master() || !selected || !ctx.serves(name) {
        // Whoever has the key now decides about it. Until the server sends them there, they wait for that.
        dismiss_overdue(ctx, id, now_us, due_us, Mode::Look);
        rearm(id, Some(PAUSED_MS.saturating_mul(1_000)));
        return;
    }
    for (request, debt) in debts.unwrap_or_default() {
        // What cannot be settled because the key was changed meanwhile is not owed any more.
        match debt {
            Debt::GiveBack(answer, granted_us) => {
                let _ = request.give_back(ctx, name, now_us, &answer, granted_us);
            }
            Debt::CountDenial => {
                let terms = Terms { barred: true, mode: Mode::Last };
                let _ = request.attempt(ctx, name, now_us, terms);
            }
        }
    }
    let wait_us = serve_heads(ctx, id, now_us, Some(due_us));
    dismiss_overdue(ctx, id, now_us, due_us, Mode::Last);
    rearm(id, wait_us);
}

/// The wall clock was set back, and every timer would be late by as much: starts them anew.
pub fn clock_went_back() {
    let lines: Vec<LineId> = room(|room| {
        room.lines
            .values_mut()
            .filter_map(|line| line.timer.take())
            .for_each(|(timer, _)| timer.stop());
        room.lines.keys().copied().collect()
    });
    for line in lines {
        rearm(line, Some(0));
    }
}

/// Starts the timer of a line anew, if it would come too late: for a head that waits `wait_us` microseconds, for
/// the next who gives up, and for changes that nobody tells of. Closes the line if nobody is left.
fn rearm(id: LineId, wait_us: Option<u64>) {
    let now_us = clock::monotonic_us();
    let due_us = room(|room| {
        let line = room.lines.get(&id)?;
        if line.line.is_empty() && line.debts.is_empty() {
            room.close_line(id);
            return None;
        }
        let deadline_us = line.line.next_deadline_us().map(|at_us| at_us.saturating_sub(now_us));
        let poll_us = Some(POLL_MS.saturating_mul(1_000));
        [wait_us, deadline_us, poll_us].into_iter().flatten().min()
    });
    if let Some(due_us) = due_us {
        rearm_after(id, due_us);
    }
}

fn rearm_after(id: LineId, after_us: u64) {
    let after_ms = after_us.div_ceil(1_000).max(1);
    let due_us = clock::monotonic_us().saturating_add(after_ms.saturating_mul(1_000));
    room(|room| {
        let Some(line) = room.lines.get_mut(&id) else { return };
        if line.timer.as_ref().is_some_and(|(_, at_us)| *at_us <= due_us) {
            return;
        }
        if let Some((late, _)) = line.timer.replace((Timer::start(after_ms, id), due_us)) {
            late.stop();
        }
    });
}

impl Room {
    const EMPTY: Room = Room {
        last: 0,
        waiting: 0,
        waiters: BTreeMap::new(),
        blocked: BTreeMap::new(),
        lines: BTreeMap::new(),
        names: BTreeMap::new(),
    };

    fn new_number(&mut self) -> u64 {
        self.last = self.last.saturating_add(1);
        self.last
    }

    fn open_line(&mut self, db: i32, key: &[u8]) -> LineId {
        if let Some(&id) = self.names.get(&db).and_then(|keys| keys.get(key)) {
            return id;
        }
        let id = self.new_number();
        let line = KeyLine {
            place: Arc::new(Place { db, key: OwnedString::new(key) }),
            line: Line::default(),
            ids: BTreeSet::new(),
            timer: None,
            debts: Vec::new(),
        };
        self.lines.insert(id, line);
        self.names.entry(db).or_default().insert(key.into(), id);
        LINES.store(self.lines.len(), Ordering::Relaxed);
        id
    }

    /// Notes what is to be written; returns the line that sees to it.
    fn owe(&mut self, place: &Place, request: Request, debt: Debt) -> LineId {
        // The line may have been closed since.
        let id = self.open_line(place.db, place.key.as_bytes());
        if let Some(line) = self.lines.get_mut(&id) {
            line.debts.push((request, debt));
        }
        id
    }

    fn close_line(&mut self, id: LineId) {
        let Some(line) = self.lines.remove(&id) else { return };
        if let Some(keys) = self.names.get_mut(&line.place.db) {
            keys.remove(line.place.key.as_bytes());
            if keys.is_empty() {
                self.names.remove(&line.place.db);
            }
        }
        LINES.store(self.lines.len(), Ordering::Relaxed);
        if let Some((timer, _)) = line.timer {
            timer.stop();
        }
    }

    /// Takes a waiter out of its line, if it still stands there.
    fn leave(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiters.get(&ticket) else { return false };
        let Some(line) = self.lines.get_mut(&waiter.line) else { return false };
        let left = line.line.leave(ticket);
        if left {
            if let Some(id) = waiter.request.id() {
                line.ids.remove(id);
            }
            self.waiting = self.waiting.saturating_sub(1);
        }
        left
    }

    fn head(&self, id: LineId) -> Option<(Ticket, Request, Arc<Place>)> {
        self.waiter(self.lines.get(&id)?.line.head()?)
    }

    fn overdue(&self, id: LineId, due_us: u64) -> Option<(Ticket, Request, Arc<Place>)> {
        self.waiter(self.lines.get(&id)?.line.overdue(due_us)?)
    }

    fn is_overdue(&self, id: LineId, ticket: Ticket, due_us: u64) -> bool {
        self.lines.get(&id).is_some_and(|line| line.line.is_overdue(ticket, due_us))
    }

    fn waiter(&self, ticket: Ticket) -> Option<(Ticket, Request, Arc<Place>)> {
        let waiter = self.waiters.get(&ticket)?;
        Some((ticket, waiter.request, Arc::clone(&waiter.place)))
    }
}

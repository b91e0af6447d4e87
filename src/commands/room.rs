//! Who waits, on which key: the state behind BLOCK. What is done with it is in [`super::waiting`].

use crate::limit::request::Request;
use crate::answer::Answer;
use crate::error::Error;
use crate::limit::waiters::{Queue, Ticket};
use crate::redis::blocking::{Blocked, ClientId, Timer};
use crate::redis::call::CommandNumber;
use crate::redis::text::OwnedString;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Names a line. Never given twice.
pub type LineId = u64;

/// What a waiter is answered.
pub type Outcome = Result<Answer, Error>;

/// A client that waits, until the server has forgotten it.
#[derive(Clone)]
pub struct Waiter {
    /// The line that it joined.
    pub line: LineId,
    /// On which key.
    pub at: Arc<KeyAt>,
    /// What it waits for.
    pub request: Request,
    /// What it called.
    pub command: CommandNumber,
    /// Who it is.
    pub client: ClientId,
    /// The server's handle.
    pub blocked: Blocked,
    /// What it is answered, once that is known, and when it was decided.
    pub outcome: Option<(Outcome, u64)>,
    /// Whether the answer was handed to the server.
    pub answered: bool,
}

/// A key of a database.
pub struct KeyAt {
    /// The database's number.
    pub db: i32,
    /// The key's name.
    pub key: OwnedString,
}

/// All who wait on one key, and what is to be written to it.
pub struct Line {
    /// The key.
    pub at: Arc<KeyAt>,
    /// Who waits.
    pub queue: Queue,
    /// Ids that waiting calls will give to their reservations.
    pub ids: BTreeSet<Box<[u8]>>,
    /// The timer, and when it fires on the monotonic clock.
    pub timer: Option<(Timer, u64)>,
    /// What is to be written as soon as that is allowed.
    pub debts: Vec<(Request, Debt)>,
}

/// What follows from the end of a wait that was learnt of where nothing may be written.
pub enum Debt {
    /// A grant, made at this time, whose client died before it was told.
    GiveBack(Answer, u64),
    /// A denial that counts.
    CountDenial,
}

/// Everybody who waits.
pub struct Room {
    /// The last number that was given out, to a line or as a ticket.
    last_number: u64,
    /// How many stand in a line.
    waiting: usize,
    /// Also those that were answered and that the server has not forgotten.
    pub waiters: BTreeMap<Ticket, Waiter>,
    /// Whose the server's handles are.
    pub blocked: BTreeMap<Blocked, Ticket>,
    /// The lines that somebody stands in or that have debts.
    pub lines: BTreeMap<LineId, Line>,
    line_on_key: BTreeMap<i32, BTreeMap<Box<[u8]>, LineId>>,
}

static ROOM: Mutex<Room> = Mutex::new(Room::EMPTY);

/// How many lines there are, so that commands pay nothing while there are none.
static LINES: AtomicUsize = AtomicUsize::new(0);

/// Looks at or changes the room. Not for `body` to end a wait or to attempt a request: the server may call back, and
/// the room is locked.
pub fn room<T>(body: impl FnOnce(&mut Room) -> T) -> T {
    body(&mut ROOM.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether there is no line at all.
pub fn is_empty() -> bool {
    LINES.load(Ordering::Relaxed) == 0
}

/// Frees the room, before the module goes: the server lets it go only when nobody waits.
pub fn release() {
    room(|room| *room = Room::EMPTY);
}

impl Room {
    const EMPTY: Room = Room {
        last_number: 0,
        waiting: 0,
        waiters: BTreeMap::new(),
        blocked: BTreeMap::new(),
        lines: BTreeMap::new(),
        line_on_key: BTreeMap::new(),
    };

    /// How many stand in a line.
    pub fn waiting(&self) -> u64 {
        u64::try_from(self.waiting).unwrap_or(u64::MAX)
    }

    /// A number above all before.
    pub fn new_number(&mut self) -> u64 {
        self.last_number = self.last_number.saturating_add(1);
        self.last_number
    }

    /// The line on a key, if there is one.
    pub fn line_on(&self, db: i32, key: &[u8]) -> Option<LineId> {
        self.line_on_key.get(&db)?.get(key).copied()
    }

    /// The line on a key, a new one if need be.
    pub fn open_line(&mut self, db: i32, key: &[u8]) -> LineId {
        if let Some(id) = self.line_on(db, key) {
            return id;
        }
        let id = self.new_number();
        let line = Line {
            at: Arc::new(KeyAt { db, key: OwnedString::new(key) }),
            queue: Queue::default(),
            ids: BTreeSet::new(),
            timer: None,
            debts: Vec::new(),
        };
        self.lines.insert(id, line);
        self.line_on_key.entry(db).or_default().insert(key.into(), id);
        LINES.store(self.lines.len(), Ordering::Relaxed);
        id
    }

    /// Puts a waiter at the end of its line, until `deadline_us` of the monotonic clock (`None`: for ever).
    pub fn join(&mut self, ticket: Ticket, waiter: Waiter, deadline_us: Option<u64>) {
        let Some(line) = self.lines.get_mut(&waiter.line) else { return };
        line.queue.join(ticket, deadline_us);
        line.ids.extend(waiter.request.id().map(Box::from));
        self.blocked.insert(waiter.blocked, ticket);
        self.waiters.insert(ticket, waiter);
        self.waiting = self.waiting.saturating_add(1);
    }

    /// Takes a waiter out of its line, if it still stands there.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waiters.get(&ticket) else { return false };
        let Some(line) = self.lines.get_mut(&waiter.line) else { return false };
        let left = line.queue.leave(ticket);
        if left {
            if let Some(id) = waiter.request.id() {
                line.ids.remove(id);
            }
            self.waiting = self.waiting.saturating_sub(1);
        }
        left
    }

    /// Notes what is to be written; returns the line that sees to it.
    pub fn owe(&mut self, at: &KeyAt, request: Request, debt: Debt) -> LineId {
        // The line may have been closed since.
        let id = self.open_line(at.db, at.key.as_bytes());
        if let Some(line) = self.lines.get_mut(&id) {
            line.debts.push((request, debt));
        }
        id
    }

    /// Closes a line in which nobody stands.
    pub fn close_line(&mut self, id: LineId) {
        let Some(line) = self.lines.remove(&id) else { return };
        if let Some(keys) = self.line_on_key.get_mut(&line.at.db) {
            keys.remove(line.at.key.as_bytes());
            if keys.is_empty() {
                self.line_on_key.remove(&line.at.db);
            }
        }
        LINES.store(self.lines.len(), Ordering::Relaxed);
        if let Some((timer, _)) = line.timer {
            timer.stop();
        }
    }

    /// Who stands first in a line.
    pub fn head(&self, id: LineId) -> Option<(Ticket, Request)> {
        self.waiter(self.lines.get(&id)?.queue.head()?)
    }

    /// Somebody in a line whose deadline has come at `due_us`.
    pub fn overdue(&self, id: LineId, due_us: u64) -> Option<(Ticket, Request)> {
        self.waiter(self.lines.get(&id)?.queue.overdue(due_us)?)
    }

    /// Whether this waiter's deadline has come at `due_us`.
    pub fn is_overdue(&self, id: LineId, ticket: Ticket, due_us: u64) -> bool {
        self.lines.get(&id).is_some_and(|line| line.queue.is_overdue(ticket, due_us))
    }

    fn waiter(&self, ticket: Ticket) -> Option<(Ticket, Request)> {
        self.waiters.get(&ticket).map(|waiter| (ticket, waiter.request))
    }
}

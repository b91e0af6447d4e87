//! The lines of this server: the state behind BLOCK, and the only lock around it.
//!
//! Each function makes one transition of [`engine::line`], and starts or stops the timer after it has unlocked the
//! lines. Nothing here has a context, so that nothing can call a command or end a wait while the lines are locked.

use crate::answer::Answer;
use crate::error::Error;
use crate::redis::blocking::{count_turns, start_timer, stop_timer, turn, Blocked, ClientId};
use crate::redis::call::CommandNumber;
use crate::redis::clock::{monotonic_us, wall_time_us};
use crate::redis::main_thread::MainThread;
use engine::line::{self, Cause, Gone, LineId, Place, Reply, Step, Ticket, Timer};
use engine::request::Request;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// A call that waits.
#[derive(Clone, Copy)]
pub struct Waiting {
    /// What it asks for.
    pub request: Request,
    /// By which command.
    pub command: CommandNumber,
    /// Whose call it is.
    pub client: ClientId,
}

impl line::Call for Waiting {
    fn leave(&self) -> u64 {
        self.request.leave()
    }

    fn id(&self) -> Option<&[u8]> {
        self.request.id()
    }
}

/// What a waiter is answered, and when that was decided, in Unix microseconds.
#[derive(Clone, Copy)]
pub struct Outcome {
    /// The answer.
    pub result: Result<Answer, Error>,
    /// When.
    pub at_us: u64,
}

/// What is to be written because a wait ended where nothing may be written.
#[derive(Clone, Copy)]
pub enum Write {
    /// Give back what was granted, at this time, to a client that was gone before it was told.
    GiveBack(Request, Answer, u64),
    /// Count a denial.
    CountDenial(Request),
}

/// What the lines of this server are made of.
pub struct Server;

impl line::Parts for Server {
    type Call = Waiting;
    type Handle = Blocked;
    type Outcome = Outcome;
    type Write = Write;
}

type Lines = line::Lines<Server>;

static LINES: MainThread<Lines> = MainThread::new(Lines::new());

/// How many lines there are, so that commands pay nothing while there are none.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn look<T>(question: impl FnOnce(&Lines) -> T) -> T {
    LINES.with(|lines| question(lines))
}

fn change<T>(transition: impl FnOnce(&mut Lines, u64) -> T) -> T {
    let now_us = monotonic_us();
    let (result, timer) = LINES.with(|lines| {
        let result = transition(lines, now_us);
        OPEN.store(lines.lines(), Ordering::Relaxed);
        (result, lines.timer(now_us))
    });
    match timer {
        Timer::Keep => {}
        Timer::Stop => stop_timer(),
        Timer::Start { after_ms } => start_timer(after_ms),
    }
    result
}

/// Whether there is no line at all.
pub fn is_empty() -> bool {
    OPEN.load(Ordering::Relaxed) == 0
}

/// How many wait.
pub fn waiting() -> u64 {
    u64::try_from(look(Lines::waiting)).unwrap_or(u64::MAX)
}

/// For how long the oldest of those who wait has waited, in microseconds; 0 where nobody waits.
pub fn oldest_age_us() -> u64 {
    look(Lines::oldest_us).map_or(0, |since_us| monotonic_us().saturating_sub(since_us))
}

/// See [`line::Lines::is_barred`].
pub fn is_barred(db: i32, key: &[u8], leave: u64) -> bool {
    !is_empty() && look(|lines| lines.is_barred(db, key, leave))
}

/// See [`line::Lines::is_waiting`].
pub fn is_waiting(db: i32, key: &[u8], id: &[u8]) -> bool {
    !is_empty() && look(|lines| lines.is_waiting(db, key, id))
}

/// See [`line::Lines::waiting_on`].
pub fn waiting_on(db: i32, key: &[u8]) -> u64 {
    let waiting = if is_empty() { 0 } else { look(|lines| lines.waiting_on(db, key)) };
    u64::try_from(waiting).unwrap_or(u64::MAX)
}

/// See [`line::Lines::admit`].
pub fn admit(most: u64) -> Option<Ticket> {
    change(|lines, _| lines.admit(most))
}

/// See [`line::Lines::join`]. The call waits for `block_ms` milliseconds, 0 for ever.
pub fn join(
    ticket: Ticket,
    place: (i32, &[u8]),
    call: Waiting,
    handle: Blocked,
    block_ms: u64,
    wait_us: Option<u64>,
) {
    count_turns();
    change(|lines, now_us| {
        let block_us = (block_ms > 0).then(|| block_ms.saturating_mul(1_000));
        let deadline_us = block_us.map(|block_us| now_us.saturating_add(block_us));
        lines.join(ticket, place, call, handle, deadline_us, wait_us, now_us);
    });
}

/// See [`line::Lines::end`].
pub fn end(ticket: Ticket, outcome: Outcome) -> Option<Blocked> {
    change(|lines, now_us| lines.end(ticket, outcome, now_us))
}

/// See [`line::Lines::withdraw`].
pub fn withdraw(ticket: Ticket) {
    change(|lines, now_us| lines.withdraw(ticket, now_us));
}

/// See [`line::Lines::answered`].
pub fn answered(ticket: Ticket) -> Option<Reply<Server>> {
    change(|lines, now_us| lines.answered(ticket, now_us))
}

/// See [`line::Lines::forgotten`].
pub fn forgotten(ticket: Ticket) -> Option<Gone<Server>> {
    change(|lines, now_us| lines.forgotten(ticket, now_us))
}

/// See [`line::Lines::write`].
pub fn write(place: &Place, write: Write) {
    change(|lines, now_us| lines.write(place, write, now_us));
}

/// See [`line::Lines::wake`].
pub fn wake(db: i32, key: &[u8]) -> Option<LineId> {
    change(|lines, now_us| lines.wake(db, key, now_us))
}

/// See [`line::Lines::head`].
pub fn head(line: LineId) -> Option<(Ticket, Waiting)> {
    look(|lines| lines.head(line))
}

/// See [`line::Lines::denied`].
pub fn denied(line: LineId, wait_us: Option<u64>) {
    change(|lines, now_us| lines.denied(line, wait_us, now_us));
}

/// See [`line::Lines::refuse`].
pub fn refuse() {
    change(|lines, now_us| lines.refuse(now_us));
}

/// See [`line::Lines::postpone`].
pub fn postpone(line: LineId) {
    change(|lines, now_us| lines.postpone(line, now_us));
}

/// See [`line::Lines::drop_writes`].
pub fn drop_writes(line: LineId) {
    change(|lines, _| lines.drop_writes(line));
}

/// See [`line::Lines::drop_all_writes`].
pub fn drop_all_writes() {
    change(|lines, _| lines.drop_all_writes());
}

/// See [`line::Lines::next_line`].
pub fn next_line() -> Option<(LineId, Arc<Place>)> {
    change(|lines, now_us| lines.next_line(now_us))
}

/// See [`line::Lines::next_step`].
pub fn next_step(line: LineId, may_write: bool, now_us: u64) -> Option<Step<Server>> {
    change(|lines, _| lines.next_step(line, may_write, now_us))
}

/// See [`line::Lines::pass_on`].
pub fn pass_on(line: LineId) {
    change(|lines, now_us| lines.pass_on(line, now_us));
}

/// See [`line::Lines::clock_stepped_back`].
pub fn clock_stepped_back() {
    change(Lines::clock_stepped_back);
}

/// Forgets everything, before the module goes: the server lets it go only when nobody waits.
pub fn unload() {
    drop(LINES.with(std::mem::take));
    stop_timer();
}

/// A turn of work on waiters, which ends when this is dropped.
pub struct Turn {
    longest_us: fn(u64),
}

impl Turn {
    /// Begins one. `longest_us` is told how long it took.
    pub fn begin(cause: Cause, longest_us: fn(u64)) -> Turn {
        change(|lines, now_us| lines.begin_turn(cause, turn(), wall_time_us(), now_us));
        Turn { longest_us }
    }

    /// Whether there is time for another step.
    pub fn has_time(&self) -> bool {
        look(|lines| lines.has_time(monotonic_us()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        (self.longest_us)(change(Lines::end_turn));
    }
}

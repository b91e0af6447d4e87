//! The lines of this server.

use crate::redis::blocked::Blocked;
use crate::redis::call::CommandNumber;
use crate::redis::clock::{monotonic_us, wall_time_us};
use crate::redis::context::ClientId;
use crate::redis::event_loop::turn;
use crate::redis::timer::{start_timer, stop_timer};
use crate::redis::under_lock::UnderLock;
use commands::reply::TakeCall;
use commands::waiting::TimedReply;
use engine::line::{self, Cause, TimerChange};
use engine::{Decision, Request};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A blocked call, as the lines of waiters keep it.
#[derive(Clone, Copy)]
pub struct WaitingCall {
    pub call: TakeCall,
    pub command: CommandNumber,
    /// The client that made the call.
    pub client: ClientId,
}

/// A write that is still to be made, because a wait ended in a callback that must not write.
#[derive(Clone, Copy)]
pub enum PendingWrite {
    /// Give back what was granted to a client that disconnected before it was notified.
    GiveBack {
        request: Request,
        /// The grant of which the client was not notified.
        granted: Decision,
        /// The time of the grant, in Unix microseconds.
        granted_us: u64,
    },
    /// Count a denied call in its key (COUNTDENIED).
    CountDenial(Request),
}

/// The types of the lines of this server.
pub struct ServerLineTypes;

impl line::LineTypes for ServerLineTypes {
    type Call = WaitingCall;
    type Handle = Blocked;
    type Reply = TimedReply;
    type Write = PendingWrite;
}

type ServerLines = line::Lines<ServerLineTypes>;

static LINES: UnderLock<ServerLines> = UnderLock::new(ServerLines::default);

/// The number of lines. While there are none, a command only reads this.
static LINE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes a transition of the lines at the current time, and then starts or stops the timer. A transition has no context, so
/// it cannot call a command or end a wait: the caller does that with its result.
pub fn change<T>(transition: impl FnOnce(&mut ServerLines, u64) -> T) -> T {
    let now_us = monotonic_us();
    let (result, timer) = LINES.with(|lines| {
        let result = transition(lines, now_us);
        LINE_COUNT.store(lines.lines(), Ordering::Relaxed);
        (result, lines.timer(now_us))
    });
    match timer {
        TimerChange::Keep => {}
        TimerChange::Stop => stop_timer(),
        TimerChange::Start { after_us } => start_timer(after_us),
    }
    result
}

/// Starts the timer again after the wall clock, by which timers fire, was set back.
pub fn restart_timer() {
    change(ServerLines::restart_timer);
}

// ---- Reading ----

/// Reads the lines, or returns the default without locking if there are none.
pub fn read_lines<T: Default>(read: impl FnOnce(&ServerLines) -> T) -> T {
    match has_lines() {
        true => read_existing(read),
        false => T::default(),
    }
}

// Out of line, because most calls find no lines.
#[cold]
#[inline(never)]
fn read_existing<T>(read: impl FnOnce(&ServerLines) -> T) -> T {
    LINES.with(|lines| read(lines))
}

/// Returns whether a call waits, or a write is still to be made.
pub fn has_lines() -> bool {
    LINE_COUNT.load(Ordering::Relaxed) > 0
}

/// Returns how many calls wait.
pub fn waiting() -> u64 {
    u64::try_from(read_lines(ServerLines::waiting)).unwrap_or(u64::MAX)
}

/// Returns how long the oldest waiter has been waiting, in milliseconds. 0 if no call waits.
pub fn oldest_wait_ms() -> u64 {
    let since_us = read_lines(ServerLines::oldest_since_us);
    since_us.map_or(0, |since_us| monotonic_us().saturating_sub(since_us)) / 1_000
}

// ---- Work ----

/// Marks that waiters are being served. Dropping it ends that work.
pub struct WorkGuard(());

/// The longest time spent on waiters at a stretch, in microseconds. A crashing server reads it in any thread.
static LONGEST_WORK_US: AtomicU64 = AtomicU64::new(0);

impl WorkGuard {
    /// Begins a stretch of work on waiters, which `cause` started.
    pub fn begin(cause: Cause) -> WorkGuard {
        change(|lines, now_us| lines.begin_work(cause, turn(), wall_time_us(), now_us));
        WorkGuard(())
    }

    /// Returns whether there is time for another step. There is none without a line.
    pub fn has_time(&self) -> bool {
        read_lines(|lines| lines.has_time(monotonic_us()))
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        LONGEST_WORK_US.fetch_max(change(ServerLines::end_work), Ordering::Relaxed);
    }
}

/// Returns the longest time spent on waiters at a stretch since the module was loaded, in microseconds.
pub fn longest_work_us() -> u64 {
    LONGEST_WORK_US.load(Ordering::Relaxed)
}

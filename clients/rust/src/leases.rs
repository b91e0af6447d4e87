//! The part of a limit that a process holds, spends and settles. No I/O is done here, and no clock is read: see `local`.
//!
//! A batch is a reservation with COUNTLAPSED: the server holds it until it is settled, or counts it when its lease ends. So
//! it may be spent bit by bit without a call, as long as the clock is read within the lease. What a process does not settle
//! before it dies counts as spent, so that no period ever has more than the limit, whatever dies.
//!
//! ```text
//! reserve        spend, without the server        settle
//! |--------------------------------------|---|
//! ACQUIRE 20     take take take .. take    ^   APPLY 17
//!                                          the margin: the lease ends on the server, not here
//! ```
//!
//! Invariants: a unit is spent only if the clock, read first, says that the lease is running; a batch is removed from the
//! list before it is settled, so nothing of it is spent afterwards; an APPLY is sent with the same units each time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limit::{whole_ms, LimitWords};
use crate::transport::{Command, Value};
use crate::{Decision, Error, Reply, Window};

const MS: i64 = 1_000_000;

/// The shortest lease: too little of a shorter one would be left, as a lease is given up early.
pub(crate) const MIN_LEASE_MS: u64 = 20;
/// The longest that a denial is remembered: others may give something back before its retry_after.
const DENIAL_NS: i64 = 100 * MS;
/// From a settlement that got no answer to the next try.
const RETRY_NS: i64 = 100 * MS;
/// A reservation whose answer was lost is released at once, and again this long after its lease, as the command may have
/// been carried out in between.
const LOST_NS: i64 = 1000 * MS;
/// The part of a lease at its end that is not used, and its least length: clocks differ in speed.
const MARGIN: f64 = 0.1;
const MIN_MARGIN_NS: i64 = 2 * MS;
/// The next batch is fetched this many round trips plus this long before it is needed, and at most this part of a lease
/// before.
const AHEAD_ROUND_TRIPS: f64 = 2.0;
const AHEAD_NS: i64 = 2 * MS;
const MAX_AHEAD: f64 = 0.25;
/// A take is not answered by the server after this many batches in a row that arrived when their leases were over.
const MAX_LATE: u32 = 3;
/// A moment before all others.
const NEVER_YET: i64 = i64::MIN;

/// A reading of both clocks, in nanoseconds, each since a moment of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Never goes back, and may stand still while the machine sleeps.
    pub(crate) monotonic_ns: i64,
    pub(crate) wall_ns: i64,
}

impl Now {
    fn after(self, ns: i64) -> Now {
        Now {
            monotonic_ns: self.monotonic_ns.saturating_add(ns),
            wall_ns: self.wall_ns.saturating_add(ns),
        }
    }

    /// Returns whether one of the clocks has reached `end`. A batch that was asked for later may end earlier by the wall
    /// clock.
    fn has_reached(self, end: Now) -> bool {
        self.monotonic_ns >= end.monotonic_ns || self.wall_ns >= end.wall_ns
    }
}

/// Readings of the clocks, taken when they are needed.
pub(crate) trait Clock {
    fn monotonic_ns(&self) -> i64;
    fn wall_ns(&self) -> i64;

    fn now(&self) -> Now {
        Now { monotonic_ns: self.monotonic_ns(), wall_ns: self.wall_ns() }
    }
}

impl Clock for Now {
    fn monotonic_ns(&self) -> i64 {
        self.monotonic_ns
    }

    fn wall_ns(&self) -> i64 {
        self.wall_ns
    }
}

/// Returns an answer of the process.
#[inline]
fn answer(
    decision: Decision,
    limit: u64,
    remaining: u64,
    retry_after: Option<Duration>,
    reset_after: Duration,
) -> Reply {
    Reply {
        decision,
        limit,
        remaining,
        retry_after,
        reset_after,
        granted: None,
        reservations: None,
        id: None,
        wait: None,
        reachable: true,
    }
}

/// The numbers of the reply to a take that was allowed. A [`Reply`] is four times as large, and takes longer to pass on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    limit: u64,
    remaining: u64,
    reset_after: Duration,
}

impl From<Spent> for Reply {
    #[inline]
    fn from(spent: Spent) -> Reply {
        answer(Decision::Allowed, spent.limit, spent.remaining, None, spent.reset_after)
    }
}

/// Reads the answer to what was asked for.
fn read_granted(asked: &Asked, value: &Value) -> Result<Reply, Error> {
    if asked.exactly {
        Reply::read_id(value)
    } else {
        Reply::read_id_and_granted(value)
    }
}

fn as_ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(MS)
}

/// Returns the quantity to ask for: what is `expected` to be spent within half a lease, and at least what is `needed`.
///
/// It is no more than the limit, nor than twice the even part of each of the `reservations` in the key. Before the first
/// answer (`limit` is `None`) their number is unknown, and it is only what is needed.
fn batch_size(expected: f64, needed: u64, limit: Option<u64>, reservations: u64) -> u64 {
    let needed = needed.max(1);
    match limit {
        None => needed,
        Some(limit) => {
            let part = limit.saturating_mul(2).checked_div(reservations).unwrap_or(limit);
            // `as` saturates.
            needed.max((expected.ceil() as u64).min(part).min(limit))
        }
    }
}

/// The limit that is leased.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    key: Box<[u8]>,
    window: Window,
    /// The limit of the window; `None` for a policy, whose limit only the server knows.
    limit: Option<u64>,
    lease_ms: u64,
    leave: u64,
    /// The time after a reservation was asked for in which it cannot have ended by itself.
    held_ms: u64,
}

impl Terms {
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the window is not valid, its period is 0, or the lease is too short.
    pub(crate) fn new(
        key: &[u8],
        window: &Window,
        lease: Duration,
        leave: u64,
    ) -> Result<Terms, Error> {
        window.check()?;
        let numbers = window.numbers();
        if numbers.is_some_and(|(_, period)| period.least_duration().is_zero()) {
            return Err(Error::lease_of_semaphore());
        }
        let lease_ms = whole_ms(lease);
        if lease_ms < MIN_LEASE_MS {
            return Err(Error::short_lease(MIN_LEASE_MS, lease_ms));
        }
        // Where windows are the calendar's, a reservation that lapsed may leave with the end of its lease.
        let is_first = window.anchor().is_some_and(|anchor| anchor.eq_ignore_ascii_case("first"));
        let is_calendar = window.is_fixed() && !is_first;
        let counted = numbers.filter(|_| !is_calendar).map(|(_, period)| period.least_duration());
        Ok(Terms {
            key: key.into(),
            window: window.clone(),
            limit: numbers.map(|(limit, _)| limit),
            lease_ms,
            leave,
            held_ms: lease_ms.saturating_add(whole_ms(counted.unwrap_or_default())),
        })
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    pub(crate) fn leave(&self) -> u64 {
        self.leave
    }

    fn is_policy(&self) -> bool {
        self.limit.is_none()
    }
}

/// The units of one reservation.
#[derive(Debug)]
struct Batch {
    /// `None`: nothing is reserved, as a policy's SHADOW lets everything pass.
    id: Option<String>,
    granted: u64,
    left: u64,
    /// The time at which the process stops spending it.
    end: Now,
    /// The quantity at which the next batch is fetched.
    low: u64,
    /// True if its settlement was sent and not answered.
    tried: bool,
}

impl Batch {
    fn spent(&self) -> u64 {
        self.granted.saturating_sub(self.left)
    }
}

/// A reservation that may have been made: its answer was lost. It is released twice.
#[derive(Debug)]
struct Lost {
    id: String,
    /// The time of the second release; `None` before the first.
    again_at_ns: Option<i64>,
}

/// A reservation that is asked for, and how much of it a take waits for.
#[derive(Debug)]
struct Asked {
    id: String,
    quantity: u64,
    need: u64,
    /// True for all of it or nothing: a denial says when all of it is available.
    exactly: bool,
}

#[derive(Debug)]
enum Item {
    Lost(Lost),
    Batch(Batch),
    /// The units that were spent of a reservation that the server lost.
    Force(u64),
    Asked(Asked),
}

/// Commands that are sent together: one for each item.
#[derive(Debug)]
pub(crate) struct Plan {
    sent: Now,
    items: Vec<Item>,
    pub(crate) commands: Vec<Command>,
}

/// The quantity that takes ask for: a moving average over a lease.
#[derive(Debug)]
struct Demand {
    lease_ns: f64,
    /// Units in a nanosecond.
    rate: f64,
    updated_at_ns: i64,
    /// Units that were asked for since.
    asked: u64,
    /// The time of the last take.
    asked_at_ns: i64,
}

impl Demand {
    /// Brings the average up to date.
    fn update(&mut self, now_ns: i64) {
        // A clock that a test sets may go back.
        let passed = now_ns.saturating_sub(self.updated_at_ns).max(0) as f64;
        let kept = (-passed / self.lease_ns).exp();
        let asked = self.asked as f64;
        let more = if passed > 0.0 { asked * (1.0 - kept) / passed } else { asked / self.lease_ns };
        self.rate = self.rate * kept + more;
        self.asked = 0;
        self.updated_at_ns = now_ns;
    }
}

/// A denial while it is remembered.
#[derive(Debug)]
struct Denial {
    reply: Reply,
    /// The quantity beyond what is held that was denied.
    short: u64,
    at_ns: i64,
    until_ns: i64,
}

impl Denial {
    /// Returns the answer to a take while `left` is held.
    fn reply_to(&self, quantity: u64, leave: u64, left: u64, now_ns: i64) -> Reply {
        let passed_ms = now_ns.saturating_sub(self.at_ns).max(0) / MS;
        let passed = Duration::from_millis(passed_ms.unsigned_abs());
        let retry_after = match self.reply.retry_after {
            Some(wait) if quantity.saturating_add(leave) <= self.reply.limit => {
                Some(wait.saturating_sub(passed).max(Duration::from_millis(1)))
            }
            _ => None,
        };
        let reset_after = self.reply.reset_after.saturating_sub(passed);
        answer(self.reply.decision, self.reply.limit, left, retry_after, reset_after)
    }
}

/// The error of a limit that turned out to be a semaphore's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IsSemaphore;

/// The reason why a take cannot wait for the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    IsSemaphore,
    Closed,
}

impl From<IsSemaphore> for Refused {
    fn from(_: IsSemaphore) -> Refused {
        Refused::IsSemaphore
    }
}

/// The batches of one key.
///
/// A caller tries [`Leases::take`]. Where it has no answer, the caller calls [`Leases::want`], and tries again after the
/// next round. Whoever does the I/O sends what [`Leases::plan`] says and reports the outcome with [`Leases::receive`] or
/// [`Leases::fail`], until there is no plan. Then it waits until [`Leases::next_at`], or until [`Leases::take_due`] is true.
#[derive(Debug)]
pub(crate) struct Leases {
    terms: Terms,
    lease_ns: i64,
    spendable_ns: i64,
    /// The beginning of the ids of its reservations.
    prefix: String,
    made: u64,
    /// Oldest first.
    batches: VecDeque<Batch>,
    /// Batches to settle.
    done: Vec<Batch>,
    lost: Vec<Lost>,
    forces: Vec<u64>,
    /// The largest quantity of the takes that wait for the server.
    wanted: u64,
    /// The quantity that a take still lacks after the server gave what it had.
    short: u64,
    is_closing: bool,
    /// True if the policy turned out to be a semaphore's, which only the server knows: nothing more is reserved.
    is_semaphore: bool,
    /// Goes up each time that waiting calls should try again.
    pub(crate) rounds: u64,
    /// Goes up with each plan that failed.
    pub(crate) failures: u64,
    /// The last error, and its round. A caller that waited for that round may look when the next is over.
    error: Option<Error>,
    error_round: u64,
    is_under_way: bool,
    retry_at_ns: i64,
    demand: Demand,
    round_trip_ns: f64,
    /// True if the server gave less than was asked for the last time: then nothing is fetched ahead.
    is_full: bool,
    /// The number of batches in a row that arrived when their leases were over.
    late: u32,
    denial: Option<Denial>,
    /// From the server's last reply: the limit, the reservations in the key, what is available beyond what is held.
    limit: Option<u64>,
    /// The time until which a policy's limit is taken to be what the server said, as the policy may be changed.
    limit_until_ns: i64,
    reservations: u64,
    remaining: u64,
    reset_after: Duration,
    /// True if there is something to plan since this was last asked.
    is_due: bool,
}

impl Leases {
    /// Creates the leases of a process. The ids of its reservations begin with `prefix`, which no other process has.
    pub(crate) fn new(terms: Terms, prefix: String, now: Now) -> Leases {
        let lease_ns = as_ns(terms.lease_ms);
        let margin_ns = ((lease_ns as f64 * MARGIN) as i64).max(MIN_MARGIN_NS);
        Leases {
            lease_ns,
            spendable_ns: lease_ns.saturating_sub(margin_ns),
            terms,
            prefix,
            made: 0,
            batches: VecDeque::with_capacity(8),
            done: Vec::with_capacity(8),
            lost: Vec::new(),
            forces: Vec::new(),
            wanted: 0,
            short: 0,
            is_closing: false,
            is_semaphore: false,
            rounds: 0,
            failures: 0,
            error: None,
            error_round: 0,
            is_under_way: false,
            retry_at_ns: NEVER_YET,
            demand: Demand {
                lease_ns: lease_ns as f64,
                rate: 0.0,
                updated_at_ns: now.monotonic_ns,
                asked: 0,
                asked_at_ns: NEVER_YET,
            },
            round_trip_ns: MS as f64,
            is_full: false,
            late: 0,
            denial: None,
            limit: None,
            limit_until_ns: NEVER_YET,
            reservations: 1,
            remaining: 0,
            reset_after: Duration::ZERO,
            is_due: false,
        }
    }

    /// Returns whether [`Leases::plan`] has something to do.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(crate) fn set_due(&mut self) {
        self.is_due = true;
    }

    /// Returns whether [`Leases::plan`] has something to do, and takes note that it was asked.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    // Spending.

    /// Spends of the first batch, as nearly every take does; `None` if that is not enough.
    #[inline]
    pub(crate) fn spend(
        &mut self,
        quantity: u64,
        is_counted: bool,
        clock: &impl Clock,
    ) -> Option<Spent> {
        let now_ns = clock.monotonic_ns();
        self.demand.asked_at_ns = now_ns;
        if let Some(batch) = self.batches.front_mut() {
            if quantity <= batch.left
                && now_ns < batch.end.monotonic_ns
                && clock.wall_ns() < batch.end.wall_ns
            {
                if !is_counted {
                    self.demand.asked = self.demand.asked.saturating_add(quantity);
                }
                batch.left = batch.left.saturating_sub(quantity);
                let (left, low) = (batch.left, batch.low);
                if left <= low {
                    self.refill(left);
                }
                return Some(self.spent(left));
            }
        }
        None
    }

    /// Decides; `None` if the server must be asked. What is decided counts as demand, unless [`Leases::want`] counted it.
    pub(crate) fn take(
        &mut self,
        quantity: u64,
        is_counted: bool,
        clock: &impl Clock,
    ) -> Result<Option<Reply>, IsSemaphore> {
        if let Some(spent) = self.spend(quantity, is_counted, clock) {
            return Ok(Some(spent.into()));
        }
        let now = clock.now();
        let reply = self.take_slowly(quantity, now)?;
        if reply.is_some() && !is_counted {
            self.count(quantity, now.monotonic_ns);
        }
        Ok(reply)
    }

    #[inline]
    fn spent(&self, left: u64) -> Spent {
        Spent {
            limit: self.limit.unwrap_or(0),
            remaining: self.remaining.saturating_add(left),
            reset_after: self.reset_after,
        }
    }

    /// Settles the first batch if it is spent, and asks for the next one.
    fn refill(&mut self, left: u64) {
        if left == 0 {
            if let Some(batch) = self.batches.pop_front() {
                self.settle(batch);
            }
        }
        self.is_due = true;
    }

    fn take_slowly(&mut self, quantity: u64, now: Now) -> Result<Option<Reply>, IsSemaphore> {
        if self.is_semaphore {
            return Err(IsSemaphore);
        }
        if self.drop_ended(now) {
            self.is_due = true;
        }
        let left = self.left();
        if quantity <= left {
            let mut rest = quantity;
            while rest > 0 {
                let Some(batch) = self.batches.front_mut() else { break };
                let part = rest.min(batch.left);
                batch.left = batch.left.saturating_sub(part);
                rest = rest.saturating_sub(part);
                let (left, low) = (batch.left, batch.low);
                if left <= low {
                    self.refill(left);
                }
            }
            return Ok(Some(self.spent(left.saturating_sub(quantity)).into()));
        }
        if self.is_too_much(quantity, now.monotonic_ns) {
            let limit = self.terms.limit.or(self.limit).unwrap_or(0);
            let remaining = self.remaining.saturating_add(left);
            return Ok(Some(answer(Decision::Denied, limit, remaining, None, self.reset_after)));
        }
        Ok(self.denial.as_ref().and_then(|denial| {
            let is_short = quantity.saturating_sub(left) >= denial.short;
            let is_known = now.monotonic_ns < denial.until_ns && is_short;
            is_known.then(|| denial.reply_to(quantity, self.terms.leave, left, now.monotonic_ns))
        }))
    }

    fn left(&self) -> u64 {
        self.batches.iter().fold(0, |sum, batch| sum.saturating_add(batch.left))
    }

    /// Returns whether a take can never be allowed.
    fn is_too_much(&self, quantity: u64, now_ns: i64) -> bool {
        let believed = self.limit.filter(|_| now_ns < self.limit_until_ns);
        let limit = self.terms.limit.or(believed);
        limit.is_some_and(|limit| quantity.saturating_add(self.terms.leave) > limit)
    }

    fn count(&mut self, quantity: u64, now_ns: i64) {
        // What can never be allowed makes no batch larger.
        if !self.is_too_much(quantity, now_ns) {
            self.demand.asked = self.demand.asked.saturating_add(quantity);
        }
    }

    /// Stops spending batches that have ended. Returns whether there were any.
    fn drop_ended(&mut self, now: Now) -> bool {
        let before = self.batches.len();
        for _ in 0..before {
            let Some(batch) = self.batches.pop_front() else { break };
            if now.has_reached(batch.end) {
                self.settle(batch);
            } else {
                self.batches.push_back(batch);
            }
        }
        self.batches.len() < before
    }

    fn settle(&mut self, batch: Batch) {
        if batch.id.is_some() {
            self.done.push(batch);
        }
    }

    /// Notes that a take waits for the server. It tries again when `rounds` is what this returns.
    pub(crate) fn want(
        &mut self,
        quantity: u64,
        is_counted: bool,
        now: Now,
    ) -> Result<u64, Refused> {
        if self.is_closing {
            return Err(Refused::Closed);
        }
        if self.is_semaphore {
            return Err(Refused::IsSemaphore);
        }
        if !is_counted {
            self.count(quantity, now.monotonic_ns);
        }
        self.wanted = self.wanted.max(quantity);
        self.is_due = true;
        Ok(self.next_round())
    }

    /// Returns the answer to a take for which nothing was left each time that something came.
    pub(crate) fn outrun_reply(&self) -> Reply {
        let limit = self.limit.unwrap_or(0);
        answer(Decision::Held, limit, 0, Some(Duration::from_millis(1)), self.reset_after)
    }

    /// Begins to settle what is held. Nothing more is asked for.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        if self.is_settled() {
            return;
        }
        self.retry_at_ns = NEVER_YET;
        self.end_round();
        self.is_due = true;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Returns whether nothing is held, and nothing is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.batches.is_empty()
            && self.done.is_empty()
            && self.lost.is_empty()
            && self.forces.is_empty()
            && !self.is_under_way
    }

    // Planning.

    fn ahead_ns(&self) -> f64 {
        let wanted = AHEAD_ROUND_TRIPS * self.round_trip_ns + AHEAD_NS as f64;
        wanted.min(self.lease_ns as f64 * MAX_AHEAD)
    }

    /// Returns what to send now, if anything.
    pub(crate) fn plan(&mut self, now: Now) -> Option<Plan> {
        let now_ns = now.monotonic_ns;
        self.demand.update(now_ns);
        self.drop_ended(now);
        let is_idle = now_ns.saturating_sub(self.demand.asked_at_ns) >= self.lease_ns;
        if self.is_closing || (is_idle && self.wanted == 0) {
            while let Some(batch) = self.batches.pop_front() {
                self.settle(batch);
            }
        }
        let asked = self.next_request(now_ns, is_idle);
        let mut items = Vec::new();
        if asked.is_some() || now_ns >= self.retry_at_ns {
            let is_closing = self.is_closing;
            let is_due = |lost: &Lost| is_closing || lost.again_at_ns.is_none_or(|at| now_ns >= at);
            let (due, later) = self.lost.drain(..).partition(is_due);
            self.lost = later;
            let due: Vec<Lost> = due;
            items.extend(due.into_iter().map(Item::Lost));
            items.extend(self.done.drain(..).map(Item::Batch));
            items.extend(self.forces.drain(..).map(Item::Force));
        }
        items.extend(asked.map(Item::Asked));
        if items.is_empty() {
            self.end_round();
            return None;
        }
        self.wanted = 0;
        self.is_under_way = true;
        let commands = items.iter().map(|item| self.command(item)).collect();
        Some(Plan { sent: now, items, commands })
    }

    fn command(&self, item: &Item) -> Command {
        let Terms { key, window, leave, lease_ms, .. } = &self.terms;
        let begin = |name: &str| {
            let mut command = Command::new(name);
            command.arg(key);
            command
        };
        match item {
            Item::Lost(Lost { id, .. }) => {
                let mut command = begin("RL.RELEASE");
                command.arg(id.as_bytes());
                command
            }
            Item::Batch(batch) => {
                let is_spent = batch.spent() > 0;
                let mut command = begin(if is_spent { "RL.APPLY" } else { "RL.RELEASE" });
                command.arg(batch.id.as_deref().unwrap_or_default().as_bytes());
                if is_spent {
                    command.number(batch.spent());
                }
                command
            }
            Item::Force(quantity) => {
                let mut command = begin("RL.WINDOW");
                window.write(&mut command);
                command.number(*quantity);
                window.write_options(&mut command);
                command.arg(b"FORCE").arg(b"MS");
                command
            }
            Item::Asked(asked) => {
                let mut command = begin("RL.ACQUIRE");
                window.write(&mut command);
                command.number(asked.quantity);
                window.write_options(&mut command);
                if *leave > 0 {
                    command.arg(b"LEAVE").number(*leave);
                }
                command.arg(b"LEASE").number(*lease_ms).arg(b"ID").arg(asked.id.as_bytes());
                if !asked.exactly {
                    command.arg(b"ATMOST");
                }
                command.arg(b"COUNTLAPSED").arg(b"MS");
                command
            }
        }
    }

    fn next_round(&self) -> u64 {
        self.rounds.saturating_add(1)
    }

    /// Ends a round: whoever waits has what it needs by now, or will not get it.
    fn end_round(&mut self) {
        if self.wanted > 0 {
            self.wanted = 0;
            self.error = None;
            self.rounds = self.next_round();
        }
    }

    /// Returns what to ask the server for.
    fn next_request(&mut self, now_ns: i64, is_idle: bool) -> Option<Asked> {
        if self.is_closing || self.is_semaphore {
            return None;
        }
        let left = self.left();
        if self.wanted <= left {
            return self.is_needed_soon(left, now_ns, is_idle).then(|| self.request(0, false));
        }
        let wanted = self.wanted.saturating_add(self.terms.leave);
        if self.limit.is_some_and(|limit| wanted > limit) {
            // Of a policy, which may have more by now.
            return Some(self.request(self.wanted, true));
        }
        let is_rest = self.short > 0;
        self.short = 0;
        Some(self.request(self.wanted.saturating_sub(left), is_rest))
    }

    /// Returns whether the next batch is to be fetched while the last is spent.
    fn is_needed_soon(&self, left: u64, now_ns: i64, is_idle: bool) -> bool {
        let denied_until = self.denial.as_ref().map_or(NEVER_YET, |denial| denial.until_ns);
        if is_idle
            || self.expected() < 1.0
            || self.is_full
            || now_ns < denied_until.max(self.retry_at_ns)
        {
            return false;
        }
        let ends = self.batches.iter().map(|batch| batch.end.monotonic_ns).max();
        let lasts_ns = ends.unwrap_or(now_ns).saturating_sub(now_ns);
        left <= self.low() || lasts_ns as f64 <= self.ahead_ns()
    }

    /// Returns how much is spent until the next batch is there.
    fn low(&self) -> u64 {
        (self.demand.rate * self.ahead_ns()) as u64
    }

    /// Returns what is expected to be asked for within half a lease.
    fn expected(&self) -> f64 {
        self.demand.rate * self.lease_ns as f64 / 2.0
    }

    fn request(&mut self, need: u64, exactly: bool) -> Asked {
        self.made = self.made.saturating_add(1);
        let size = batch_size(self.expected(), need, self.limit, self.reservations);
        let quantity = if exactly { need } else { size };
        Asked { id: format!("{}-{}", self.prefix, self.made), quantity, need, exactly }
    }

    /// Returns when [`Leases::plan`] will have something to do by itself; `None` if never.
    pub(crate) fn next_at(&self, now: Now) -> Option<i64> {
        let now_ns = now.monotonic_ns;
        let lost = self.lost.iter().map(|lost| lost.again_at_ns.unwrap_or(self.retry_at_ns));
        let is_unsettled = !self.done.is_empty() || !self.forces.is_empty();
        let settle = is_unsettled.then(|| now_ns.max(self.retry_at_ns));
        // The wall clock may end a batch earlier. Then take() sees it, and nothing more is spent.
        let ends = || self.batches.iter().map(|batch| batch.end.monotonic_ns);
        let soon = ends().max().map(|end| end.saturating_sub(self.ahead_ns() as i64));
        let idle = self.demand.asked_at_ns.saturating_add(self.lease_ns);
        let held = ends().min().into_iter().chain((!self.batches.is_empty()).then_some(idle));
        lost.chain(settle).chain(held).chain(soon.filter(|soon| *soon > now_ns)).min()
    }

    // The outcome of a plan.

    /// Reads the answers of the server, error replies among them.
    pub(crate) fn receive(&mut self, plan: Plan, answers: Vec<Result<Value, Error>>, now: Now) {
        let now_ns = now.monotonic_ns;
        let took = now_ns.saturating_sub(plan.sent.monotonic_ns) as f64;
        self.round_trip_ns += (took - self.round_trip_ns) / 8.0;
        let Plan { sent, items, .. } = plan;
        if let Some(Item::Asked(_)) = items.last() {
            self.error = None;
        }
        for (item, answer) in items.into_iter().zip(answers) {
            match answer {
                Err(error) => self.read_error(item, error, now),
                Ok(value) => self.read(item, &value, sent, now),
            }
        }
        if self.is_semaphore {
            // Only this gives them back.
            let given_back = self.batches.drain(..).chain(self.done.drain(..));
            let ids = given_back.filter_map(|batch| batch.id);
            self.lost.extend(ids.map(|id| Lost { id, again_at_ns: None }));
        }
        self.finish_plan();
    }

    fn read(&mut self, item: Item, answer: &Value, sent: Now, now: Now) {
        let is_gone = *answer == Value::Integer(0);
        match item {
            Item::Lost(lost) => {
                if is_gone && lost.again_at_ns.is_none() {
                    let again_at = now.after(self.lease_ns).after(LOST_NS).monotonic_ns;
                    self.lost.push(Lost { id: lost.id, again_at_ns: Some(again_at) });
                }
            }
            Item::Batch(batch) => {
                if is_gone && batch.spent() > 0 && !batch.tried && self.is_held(&batch, now) {
                    self.forces.push(batch.spent());
                }
            }
            Item::Force(_) => {}
            Item::Asked(asked) => match read_granted(&asked, answer) {
                Ok(reply) => self.read_asked(asked, reply, sent, now),
                Err(error) => {
                    self.keep_error(error);
                    self.lost.push(Lost { id: asked.id, again_at_ns: None });
                }
            },
        }
    }

    /// Returns whether its reservation cannot have ended by itself.
    fn is_held(&self, batch: &Batch, now: Now) -> bool {
        !now.has_reached(
            batch.end.after(as_ns(self.terms.held_ms).saturating_sub(self.spendable_ns)),
        )
    }

    fn read_error(&mut self, item: Item, error: Error, now: Now) {
        let Item::Batch(mut batch) = item else { return self.keep_error(error) };
        if self.terms.is_policy() && error.code() == Some("ERR") {
            // The only ERR of an RL.APPLY that is written right: the reservation is a semaphore's.
            self.is_semaphore = true;
            self.done.push(batch);
        } else if batch.spent() == 0 {
            self.lost.extend(batch.id.take().map(|id| Lost { id, again_at_ns: None }));
        } else if self.is_held(&batch, now) && !self.is_closing {
            // Such as by a server that has just become a replica. What was spent is not given back: it is settled later, or
            // counted when the server finds its lease over.
            self.done.push(batch);
            self.retry_at_ns = now.monotonic_ns.saturating_add(RETRY_NS);
        }
        self.keep_error(error);
    }

    /// Reads the answer to what was asked for.
    fn read_asked(&mut self, asked: Asked, reply: Reply, sent: Now, now: Now) {
        let granted = match asked.exactly {
            true if reply.is_allowed() => asked.quantity,
            true => 0,
            false => reply.granted.unwrap_or(0),
        };
        self.limit = Some(reply.limit);
        self.limit_until_ns = now.monotonic_ns.saturating_add(DENIAL_NS);
        if !asked.exactly {
            self.reservations = reply.reservations.unwrap_or(0).max(1);
        }
        self.remaining = reply.remaining;
        self.reset_after = reply.reset_after;
        self.is_full = granted < asked.quantity;
        // A take that needs more than it got asks for all of the rest.
        self.short = if granted > 0 { asked.need.saturating_sub(granted) } else { 0 };
        if !reply.is_allowed() {
            let at_ns = now.monotonic_ns;
            let retry_ns = reply.retry_after.map_or(DENIAL_NS, |wait| {
                i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX).min(DENIAL_NS)
            });
            // Where less would have done, even 1 was denied.
            let short = if asked.exactly { asked.quantity } else { 1 };
            self.denial =
                Some(Denial { reply, short, at_ns, until_ns: at_ns.saturating_add(retry_ns) });
        } else if granted > 0 {
            self.hold(asked, reply.id.is_some(), granted, sent, now);
        }
    }

    fn hold(&mut self, asked: Asked, is_reserved: bool, granted: u64, sent: Now, now: Now) {
        let low = if self.is_full { 0 } else { self.low().min(granted.saturating_sub(1)) };
        let batch = Batch {
            id: is_reserved.then_some(asked.id),
            granted,
            left: granted,
            end: sent.after(self.spendable_ns),
            low,
            tried: false,
        };
        self.denial = None;
        self.late = if now.has_reached(batch.end) { self.late.saturating_add(1) } else { 0 };
        if self.late == MAX_LATE {
            self.late = 0;
            self.keep_error(Error::late_batches(self.terms.lease_ms));
        }
        if self.is_too_much(asked.need, now.monotonic_ns) {
            // It was for a take that can never be allowed.
            self.settle(batch);
            return;
        }
        for each in &mut self.batches {
            each.low = 0;
        }
        self.batches.push_back(batch);
    }

    /// Notes that there was no answer. `is_sent` says whether the server may have executed the commands.
    pub(crate) fn fail(&mut self, plan: Plan, error: Error, is_sent: bool, now: Now) {
        self.keep_error(error);
        self.retry_at_ns = now.monotonic_ns.saturating_add(RETRY_NS);
        for item in plan.items {
            match item {
                Item::Batch(mut batch) => {
                    batch.tried |= is_sent;
                    self.done.push(batch);
                }
                Item::Lost(lost) => self.lost.push(lost),
                // It may have been counted.
                Item::Force(_) if is_sent => {}
                Item::Force(quantity) => self.forces.push(quantity),
                Item::Asked(asked) if is_sent => {
                    self.lost.push(Lost { id: asked.id, again_at_ns: None });
                }
                Item::Asked(_) => {}
            }
        }
        self.failures = self.failures.saturating_add(1);
        self.finish_plan();
    }

    fn keep_error(&mut self, error: Error) {
        self.error = Some(error);
        self.error_round = self.next_round();
    }

    /// Returns the error of the round `awaited`, or of a later one.
    pub(crate) fn error_since(&self, awaited: u64) -> Option<&Error> {
        self.error.as_ref().filter(|_| self.error_round >= awaited)
    }

    /// Returns the last error.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    fn finish_plan(&mut self) {
        self.is_under_way = false;
        self.rounds = self.next_round();
    }
}

#[cfg(test)]
mod tests;

//! The leases of one key: the batches that a process has reserved of a limit, how it spends them, and how it settles them.
//! This module does no I/O and reads no clock, see `local`.
//!
//! A batch is a reservation with COUNTLAPSED. The server holds it until it is settled, and counts all of it if its lease
//! ends first. So it can be spent without the server while the lease lasts. Whatever a process has not settled when it dies
//! counts as spent, so no period ever has more than the limit.
//!
//! ```text
//! reserve        spend, without the server        settle
//! |--------------------------------------|---|
//! ACQUIRE 20     take take take .. take    ^   APPLY 17
//!                                          the margin: the lease ends on the server, not here
//! ```
//!
//! The states of a batch:
//!
//! ```text
//! requested ---granted---> held ---spent, ended or idle---> settling ---answered---> gone
//!     |                                                      |    ^
//!     | no reply                                    no reply |    | after RETRY_NS
//!     v                                                      +----+
//!   lost ---released twice---> gone
//! ```
//!
//! - Requested: RL.ACQUIRE is in the round that is under way.
//! - Held: it is in `batches`, oldest first, and `take` spends it.
//! - Settling: it is in `settling`, or in the round that is under way. RL.APPLY counts what was spent; RL.RELEASE is sent if
//!   that is nothing. If the reply is 0 although the reservation cannot have ended, the server has lost the reservation, and
//!   RL.WINDOW with FORCE counts what was spent.
//! - Lost: it is in `lost`. The server may have executed the RL.ACQUIRE, or may still do so. So RL.RELEASE is sent now, and
//!   again LOST_NS after the end of the lease.
//!
//! Invariants: a unit is spent only if the clock, read first, says that the lease lasts. A batch leaves `batches` before it
//! is settled, so nothing more is spent of it. Each RL.APPLY of a batch has the same quantity.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limit::{whole_ms, LimitWords};
use crate::transport::{Command, Value};
use crate::{Decision, Error, Reply, Window};

const MS: i64 = 1_000_000;

/// The shortest lease. Of a shorter one too little would be left, as a lease is given up early.
pub(crate) const MIN_LEASE_MS: u64 = 20;
/// The longest time that a denial is remembered: others may give something back before `retry_after`.
const DENIAL_NS: i64 = 100 * MS;
/// The pause before settling again after no reply.
const RETRY_NS: i64 = 100 * MS;
/// A reservation whose reply was lost is released at once, and again this long after its lease, as the server may have
/// executed RL.ACQUIRE after the first RL.RELEASE.
const LOST_NS: i64 = 1000 * MS;
/// The part at the end of a lease that is not used, as clocks differ in speed, and its shortest length.
const MARGIN: f64 = 0.1;
const MIN_MARGIN_NS: i64 = 2 * MS;
/// The next batch is fetched this many round trips plus `AHEAD_NS` before it is needed, but at most `MAX_AHEAD` of a lease.
const AHEAD_ROUND_TRIPS: f64 = 2.0;
const AHEAD_NS: i64 = 2 * MS;
const MAX_AHEAD: f64 = 0.25;
/// After this many batches in a row that arrived after their lease, the calls that wait are answered without the server.
const MAX_LATE: u32 = 3;
/// A time before all others.
const NEVER_YET: i64 = i64::MIN;

/// A reading of both clocks, in nanoseconds. Each counts from its own origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Never goes back. It may stand still while the machine sleeps.
    pub(crate) monotonic_ns: i64,
    /// The time of day, which may be set.
    pub(crate) wall_ns: i64,
}

impl Now {
    fn after(self, ns: i64) -> Now {
        Now {
            monotonic_ns: self.monotonic_ns.saturating_add(ns),
            wall_ns: self.wall_ns.saturating_add(ns),
        }
    }

    /// Returns whether one of the clocks has reached `until`. By the wall clock, a newer batch may end before an older one.
    fn has_reached(self, until: Now) -> bool {
        self.monotonic_ns >= until.monotonic_ns || self.wall_ns >= until.wall_ns
    }
}

/// Clocks, which are read only when they are needed.
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

/// Returns a reply that the process gives without the server.
#[inline]
fn reply_with(
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

/// The numbers in the reply to a take that was allowed. A [`Reply`] is four times as large, and slower to return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    limit: u64,
    remaining: u64,
    reset_after: Duration,
}

impl From<Spent> for Reply {
    #[inline]
    fn from(spent: Spent) -> Reply {
        reply_with(Decision::Allowed, spent.limit, spent.remaining, None, spent.reset_after)
    }
}

/// Parses the reply to a request.
fn parse_reply(request: &Request, value: &Value) -> Result<Reply, Error> {
    if request.exactly {
        Reply::read_id(value)
    } else {
        Reply::read_id_and_granted(value)
    }
}

fn as_ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(MS)
}

/// Returns the quantity to reserve: what is `expected` to be spent within half a lease, and at least what is `needed`. It is
/// at most the limit, and twice the limit divided by the number of `reservations` in the key. Before the first reply, when
/// `limit` is `None`, it is what is needed.
fn batch_size(expected: f64, needed: u64, limit: Option<u64>, reservations: u64) -> u64 {
    let needed = needed.max(1);
    match limit {
        None => needed,
        Some(limit) => {
            let fair_share = limit.saturating_mul(2).checked_div(reservations).unwrap_or(limit);
            // `as` saturates.
            needed.max((expected.ceil() as u64).min(fair_share).min(limit))
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
    /// The time after its request in which a reservation cannot have ended by itself: it is held, or counted as lapsed.
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
        // A window of the calendar may end at any time, so a reservation may stop counting as soon as it lapses.
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

/// A reservation that is held or settled.
#[derive(Debug)]
struct Batch {
    /// `None` if nothing is reserved, because the SHADOW of a policy lets everything pass.
    id: Option<String>,
    granted: u64,
    left: u64,
    /// The time at which the process stops spending it.
    until: Now,
    /// The next batch is fetched when no more than this is left.
    low: u64,
    /// True if its settlement was sent before and got no reply.
    tried: bool,
}

impl Batch {
    fn spent(&self) -> u64 {
        self.granted.saturating_sub(self.left)
    }
}

/// A reservation whose reply was lost.
#[derive(Debug)]
struct LostReservation {
    id: String,
    /// The time of the second release; `None` before the first.
    again_at_ns: Option<i64>,
}

/// A reservation to make.
#[derive(Debug)]
struct Request {
    id: String,
    quantity: u64,
    /// The part of the quantity that a call waits for.
    needed: u64,
    /// Reserves the whole quantity or nothing. A denial then says when the whole quantity is available.
    exactly: bool,
}

/// The quantity that was spent of a reservation that the server has lost.
#[derive(Debug)]
struct ForcedCount {
    quantity: u64,
}

#[derive(Debug)]
enum Item {
    Lost(LostReservation),
    Batch(Batch),
    Force(ForcedCount),
    Request(Request),
}

/// Commands to send together, one for each item.
#[derive(Debug)]
pub(crate) struct Round {
    sent_at: Now,
    items: Vec<Item>,
    pub(crate) commands: Vec<Command>,
}

/// The quantity that is asked for in each nanosecond, as a moving average over a lease.
#[derive(Debug)]
struct Demand {
    lease_ns: f64,
    rate: f64,
    updated_at_ns: i64,
    /// The quantity since the last update.
    asked: u64,
    /// The time of the last take.
    asked_at_ns: i64,
}

impl Demand {
    /// Updates the average.
    fn update(&mut self, now_ns: i64) {
        // The clock of a test may go back.
        let passed = now_ns.saturating_sub(self.updated_at_ns).max(0) as f64;
        let weight = (-passed / self.lease_ns).exp();
        let asked = self.asked as f64;
        let more =
            if passed > 0.0 { asked * (1.0 - weight) / passed } else { asked / self.lease_ns };
        self.rate = self.rate * weight + more;
        self.asked = 0;
        self.updated_at_ns = now_ns;
    }
}

/// A denial that is remembered.
#[derive(Debug)]
struct Denial {
    reply: Reply,
    /// The quantity beyond what is held that was denied.
    short: u64,
    at_ns: i64,
    until_ns: i64,
}

impl Denial {
    /// Returns the reply to a take while `left` is held.
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
        reply_with(self.reply.decision, self.reply.limit, left, retry_after, reset_after)
    }
}

/// The policy turned out to be a semaphore, as only the server knows.
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

/// The leases of one key.
///
/// A caller tries [`Leases::take`]. If that returns `None`, it calls [`Leases::want`], and tries again after the next round.
/// The caller that does the I/O sends what [`Leases::next_round`] returns and reports the outcome by [`Leases::receive`] or
/// [`Leases::fail`], until [`Leases::next_round`] returns `None`. Then it waits until [`Leases::next_at`], or until
/// [`Leases::take_due`] returns true.
#[derive(Debug)]
pub(crate) struct Leases {
    terms: Terms,
    lease_ns: i64,
    spendable_ns: i64,
    /// The start of the ids of its reservations.
    prefix: String,
    requests: u64,
    /// Oldest first.
    batches: VecDeque<Batch>,
    settling: Vec<Batch>,
    lost: Vec<LostReservation>,
    forced: Vec<ForcedCount>,
    /// The largest quantity for which a call waits.
    wanted: u64,
    /// The quantity that a call still lacks after the server granted a part.
    short: u64,
    is_closing: bool,
    /// True if the policy turned out to be a semaphore, as only the server knows. Then nothing more is reserved.
    is_semaphore: bool,
    /// The number of rounds that are over. Calls that wait try again when it grows.
    pub(crate) rounds: u64,
    /// The number of rounds that failed.
    pub(crate) failures: u64,
    /// The last error, and the number of its round. It is kept until a later round replaces it, as the calls that waited for
    /// its round may read it only then.
    error: Option<Error>,
    error_round: u64,
    is_under_way: bool,
    retry_at_ns: i64,
    demand: Demand,
    round_trip_ns: f64,
    /// True if the server granted less than the last request. Then nothing is fetched ahead.
    is_full: bool,
    /// The number of batches in a row that arrived after their lease.
    late: u32,
    denial: Option<Denial>,
    // From the server's last reply.
    limit: Option<u64>,
    reservations: u64,
    /// The quantity that is available in addition to what is held.
    remaining: u64,
    reset_after: Duration,
    /// Until then the limit of a policy is taken from the server's reply. Later it may have been changed.
    limit_until_ns: i64,
    /// True if [`Leases::next_round`] may have something to send since [`Leases::take_due`] was last called.
    is_due: bool,
}

impl Leases {
    /// Creates leases. The ids of the reservations start with `prefix`, which must be unique to the process.
    pub(crate) fn new(terms: Terms, prefix: String, now: Now) -> Leases {
        let lease_ns = as_ns(terms.lease_ms);
        let margin_ns = ((lease_ns as f64 * MARGIN) as i64).max(MIN_MARGIN_NS);
        Leases {
            lease_ns,
            spendable_ns: lease_ns.saturating_sub(margin_ns),
            terms,
            prefix,
            requests: 0,
            batches: VecDeque::with_capacity(8),
            settling: Vec::with_capacity(8),
            lost: Vec::new(),
            forced: Vec::new(),
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
            reservations: 1,
            remaining: 0,
            reset_after: Duration::ZERO,
            limit_until_ns: NEVER_YET,
            is_due: false,
        }
    }

    /// Returns whether [`Leases::next_round`] may have something to send.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(crate) fn set_due(&mut self) {
        self.is_due = true;
    }

    /// Returns whether [`Leases::next_round`] may have something to send, and clears that mark.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    // Spending.

    /// Spends from the first batch, as nearly every take does. Returns `None` if that is not enough.
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
                && now_ns < batch.until.monotonic_ns
                && clock.wall_ns() < batch.until.wall_ns
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

    /// Decides. Returns `None` if the server must be asked. The quantity counts as demand, unless it `is_counted` already
    /// because [`Leases::want`] was called for it.
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

    /// Settles the first batch if it is spent, and requests the next one.
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
                let taken = rest.min(batch.left);
                batch.left = batch.left.saturating_sub(taken);
                rest = rest.saturating_sub(taken);
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
            return Ok(Some(reply_with(
                Decision::Denied,
                limit,
                remaining,
                None,
                self.reset_after,
            )));
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
        let known = self.limit.filter(|_| now_ns < self.limit_until_ns);
        let limit = self.terms.limit.or(known);
        limit.is_some_and(|limit| quantity.saturating_add(self.terms.leave) > limit)
    }

    fn count(&mut self, quantity: u64, now_ns: i64) {
        // Calls that can never be allowed do not make batches larger.
        if !self.is_too_much(quantity, now_ns) {
            self.demand.asked = self.demand.asked.saturating_add(quantity);
        }
    }

    /// Stops spending the batches that have ended. Returns whether there were any.
    fn drop_ended(&mut self, now: Now) -> bool {
        let before = self.batches.len();
        for _ in 0..before {
            let Some(batch) = self.batches.pop_front() else { break };
            if now.has_reached(batch.until) {
                self.settle(batch);
            } else {
                self.batches.push_back(batch);
            }
        }
        self.batches.len() < before
    }

    fn settle(&mut self, batch: Batch) {
        if batch.id.is_some() {
            self.settling.push(batch);
        }
    }

    /// Requests what a take needs. The caller tries the take again when `rounds` has reached the number that is returned.
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
        Ok(self.next_round_number())
    }

    /// Returns the reply to a take that found nothing left after each round, because others spent what arrived.
    pub(crate) fn outrun_reply(&self) -> Reply {
        let limit = self.limit.unwrap_or(0);
        reply_with(Decision::Held, limit, 0, Some(Duration::from_millis(1)), self.reset_after)
    }

    /// Settles what is held, and requests nothing more.
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

    /// Returns whether nothing is held or being settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.batches.is_empty()
            && self.settling.is_empty()
            && self.lost.is_empty()
            && self.forced.is_empty()
            && !self.is_under_way
    }

    // Rounds.

    fn ahead_ns(&self) -> f64 {
        let wanted = AHEAD_ROUND_TRIPS * self.round_trip_ns + AHEAD_NS as f64;
        wanted.min(self.lease_ns as f64 * MAX_AHEAD)
    }

    /// Returns what is to be sent now; `None` if there is nothing.
    pub(crate) fn next_round(&mut self, now: Now) -> Option<Round> {
        let now_ns = now.monotonic_ns;
        self.demand.update(now_ns);
        self.drop_ended(now);
        let is_idle = now_ns.saturating_sub(self.demand.asked_at_ns) >= self.lease_ns;
        if self.is_closing || (is_idle && self.wanted == 0) {
            while let Some(batch) = self.batches.pop_front() {
                self.settle(batch);
            }
        }
        let request = self.next_request(now_ns, is_idle);
        let mut items = Vec::new();
        if request.is_some() || now_ns >= self.retry_at_ns {
            let is_closing = self.is_closing;
            let is_due = |lost: &LostReservation| {
                is_closing || lost.again_at_ns.is_none_or(|at| now_ns >= at)
            };
            let (due, later) = self.lost.drain(..).partition(is_due);
            self.lost = later;
            let due: Vec<LostReservation> = due;
            items.extend(due.into_iter().map(Item::Lost));
            items.extend(self.settling.drain(..).map(Item::Batch));
            items.extend(self.forced.drain(..).map(Item::Force));
        }
        items.extend(request.map(Item::Request));
        if items.is_empty() {
            self.end_round();
            return None;
        }
        self.wanted = 0;
        self.is_under_way = true;
        let commands = items.iter().map(|item| self.command(item)).collect();
        Some(Round { sent_at: now, items, commands })
    }

    fn command(&self, item: &Item) -> Command {
        let Terms { key, window, leave, lease_ms, .. } = &self.terms;
        let begin = |name: &str| {
            let mut command = Command::new(name);
            command.arg(key);
            command
        };
        match item {
            Item::Lost(LostReservation { id, .. }) => {
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
            Item::Force(ForcedCount { quantity }) => {
                let mut command = begin("RL.WINDOW");
                window.write(&mut command);
                command.number(*quantity);
                window.write_options(&mut command);
                command.arg(b"FORCE").arg(b"MS");
                command
            }
            Item::Request(request) => {
                let mut command = begin("RL.ACQUIRE");
                window.write(&mut command);
                command.number(request.quantity);
                window.write_options(&mut command);
                if *leave > 0 {
                    command.arg(b"LEAVE").number(*leave);
                }
                command.arg(b"LEASE").number(*lease_ms).arg(b"ID").arg(request.id.as_bytes());
                if !request.exactly {
                    command.arg(b"ATMOST");
                }
                command.arg(b"COUNTLAPSED").arg(b"MS");
                command
            }
        }
    }

    fn next_round_number(&self) -> u64 {
        self.rounds.saturating_add(1)
    }

    /// Ends a round. The calls that wait have what they need by now, or will not get it.
    fn end_round(&mut self) {
        if self.wanted > 0 {
            self.wanted = 0;
            self.error = None;
            self.rounds = self.next_round_number();
        }
    }

    fn next_request(&mut self, now_ns: i64, is_idle: bool) -> Option<Request> {
        if self.is_closing || self.is_semaphore {
            return None;
        }
        let left = self.left();
        if self.wanted <= left {
            return self.is_needed_soon(left, now_ns, is_idle).then(|| self.request(0, false));
        }
        let wanted = self.wanted.saturating_add(self.terms.leave);
        if self.limit.is_some_and(|limit| wanted > limit) {
            // It is the limit of a policy, which may be higher by now.
            return Some(self.request(self.wanted, true));
        }
        let is_rest = self.short > 0;
        self.short = 0;
        Some(self.request(self.wanted.saturating_sub(left), is_rest))
    }

    /// Returns whether to fetch the next batch while the last one is being spent.
    fn is_needed_soon(&self, left: u64, now_ns: i64, is_idle: bool) -> bool {
        let denied_until = self.denial.as_ref().map_or(NEVER_YET, |denial| denial.until_ns);
        if is_idle
            || self.expected() < 1.0
            || self.is_full
            || now_ns < denied_until.max(self.retry_at_ns)
        {
            return false;
        }
        let ends = self.batches.iter().map(|batch| batch.until.monotonic_ns).max();
        let lasts_ns = ends.unwrap_or(now_ns).saturating_sub(now_ns);
        left <= self.low() || lasts_ns as f64 <= self.ahead_ns()
    }

    /// Returns the quantity that is expected to be spent until the next batch arrives.
    fn low(&self) -> u64 {
        (self.demand.rate * self.ahead_ns()) as u64
    }

    /// Returns the quantity that is expected to be asked for within half a lease.
    fn expected(&self) -> f64 {
        self.demand.rate * self.lease_ns as f64 / 2.0
    }

    fn request(&mut self, needed: u64, exactly: bool) -> Request {
        self.requests = self.requests.saturating_add(1);
        let size = batch_size(self.expected(), needed, self.limit, self.reservations);
        let quantity = if exactly { needed } else { size };
        Request { id: format!("{}-{}", self.prefix, self.requests), quantity, needed, exactly }
    }

    /// Returns when [`Leases::next_round`] should be called next if nothing makes it due before; `None` if it need not.
    pub(crate) fn next_at(&self, now: Now) -> Option<i64> {
        let now_ns = now.monotonic_ns;
        let lost = self.lost.iter().map(|lost| lost.again_at_ns.unwrap_or(self.retry_at_ns));
        let is_unsettled = !self.settling.is_empty() || !self.forced.is_empty();
        let settle = is_unsettled.then(|| now_ns.max(self.retry_at_ns));
        // A batch may end earlier by the wall clock. `take` reads that clock, so nothing more is spent then.
        let ends = || self.batches.iter().map(|batch| batch.until.monotonic_ns);
        let soon = ends().max().map(|end| end.saturating_sub(self.ahead_ns() as i64));
        let idle = self.demand.asked_at_ns.saturating_add(self.lease_ns);
        let held = ends().min().into_iter().chain((!self.batches.is_empty()).then_some(idle));
        lost.chain(settle).chain(held).chain(soon.filter(|soon| *soon > now_ns)).min()
    }

    // The outcome of a round.

    /// Reads the replies to a round, error replies among them.
    pub(crate) fn receive(&mut self, round: Round, replies: Vec<Result<Value, Error>>, now: Now) {
        let now_ns = now.monotonic_ns;
        let Round { sent_at, items, .. } = round;
        let passed_ns = now_ns.saturating_sub(sent_at.monotonic_ns) as f64;
        self.round_trip_ns += (passed_ns - self.round_trip_ns) / 8.0;
        if let Some(Item::Request(_)) = items.last() {
            self.error = None;
        }
        for (item, reply) in items.into_iter().zip(replies) {
            match reply {
                Err(error) => {
                    if let Item::Batch(batch) = item {
                        self.keep_refused(batch, &error, now);
                    }
                    self.keep_error(error);
                }
                Ok(reply) => self.read_item(item, &reply, sent_at, now),
            }
        }
        if self.is_semaphore {
            // Reservations of a semaphore can only be released.
            let batches = self.batches.drain(..).chain(self.settling.drain(..));
            let ids = batches.filter_map(|batch| batch.id);
            self.lost.extend(ids.map(|id| LostReservation { id, again_at_ns: None }));
        }
        self.finish_round();
    }

    fn read_item(&mut self, item: Item, reply: &Value, sent_at: Now, now: Now) {
        let is_gone = *reply == Value::Integer(0);
        match item {
            Item::Lost(lost) => {
                if is_gone && lost.again_at_ns.is_none() {
                    let again_at = now.after(self.lease_ns).after(LOST_NS).monotonic_ns;
                    self.lost.push(LostReservation { id: lost.id, again_at_ns: Some(again_at) });
                }
            }
            Item::Batch(batch) => {
                let quantity = batch.spent();
                if is_gone && quantity > 0 && !batch.tried && self.is_held(&batch, now) {
                    self.forced.push(ForcedCount { quantity });
                }
            }
            Item::Force(_) => {}
            Item::Request(request) => match parse_reply(&request, reply) {
                Ok(reply) => self.read(request, reply, sent_at, now),
                Err(error) => {
                    self.keep_error(error);
                    self.lost.push(LostReservation { id: request.id, again_at_ns: None });
                }
            },
        }
    }

    /// Returns whether the reservation of a batch cannot have ended by itself.
    fn is_held(&self, batch: &Batch, now: Now) -> bool {
        let after_spending_ns = as_ns(self.terms.held_ms).saturating_sub(self.spendable_ns);
        !now.has_reached(batch.until.after(after_spending_ns))
    }

    /// Decides about a batch that could not be settled because of an error reply.
    fn keep_refused(&mut self, batch: Batch, error: &Error, now: Now) {
        if self.terms.is_policy() && error.code() == Some("ERR") {
            // A correct RL.APPLY replies ERR only if the reservation is a semaphore's.
            self.is_semaphore = true;
            self.settling.push(batch);
        } else if batch.spent() == 0 {
            self.lost.extend(batch.id.map(|id| LostReservation { id, again_at_ns: None }));
        } else if self.is_held(&batch, now) && !self.is_closing {
            // Such as READONLY of a server that became a replica. What was spent is settled later, or counted when the lease
            // ends.
            self.settling.push(batch);
            self.retry_at_ns = now.monotonic_ns.saturating_add(RETRY_NS);
        }
    }

    /// Reads the reply to a request.
    fn read(&mut self, request: Request, reply: Reply, sent_at: Now, now: Now) {
        let granted = match request.exactly {
            true if reply.is_allowed() => request.quantity,
            true => 0,
            false => reply.granted.unwrap_or(0),
        };
        self.limit = Some(reply.limit);
        self.limit_until_ns = now.monotonic_ns.saturating_add(DENIAL_NS);
        if !request.exactly {
            self.reservations = reply.reservations.unwrap_or(0).max(1);
        }
        self.remaining = reply.remaining;
        self.reset_after = reply.reset_after;
        self.is_full = granted < request.quantity;
        // The next request of a call that needs more is for all of the rest.
        self.short = if granted > 0 { request.needed.saturating_sub(granted) } else { 0 };
        if !reply.is_allowed() {
            let at_ns = now.monotonic_ns;
            let retry_ns = reply.retry_after.map_or(DENIAL_NS, |wait| {
                i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX).min(DENIAL_NS)
            });
            // With ATMOST, even 1 was denied.
            let short = if request.exactly { request.quantity } else { 1 };
            self.denial =
                Some(Denial { reply, short, at_ns, until_ns: at_ns.saturating_add(retry_ns) });
        } else if granted > 0 {
            self.hold(request, reply.id.is_some(), granted, sent_at, now);
        }
    }

    fn hold(&mut self, request: Request, is_reserved: bool, granted: u64, sent_at: Now, now: Now) {
        let low = if self.is_full { 0 } else { self.low().min(granted.saturating_sub(1)) };
        let batch = Batch {
            id: is_reserved.then_some(request.id),
            granted,
            left: granted,
            until: sent_at.after(self.spendable_ns),
            low,
            tried: false,
        };
        self.denial = None;
        self.late = if now.has_reached(batch.until) { self.late.saturating_add(1) } else { 0 };
        if self.late == MAX_LATE {
            self.late = 0;
            self.keep_error(Error::late_batches(self.terms.lease_ms));
        }
        if self.is_too_much(request.needed, now.monotonic_ns) {
            // It was for a call that can never be allowed.
            self.settle(batch);
            return;
        }
        for older in &mut self.batches {
            older.low = 0;
        }
        self.batches.push_back(batch);
    }

    /// Records that a round got no replies. `is_sent` is whether the server may have executed it.
    pub(crate) fn fail(&mut self, round: Round, error: Error, is_sent: bool, now: Now) {
        self.keep_error(error);
        self.retry_at_ns = now.monotonic_ns.saturating_add(RETRY_NS);
        for item in round.items {
            match item {
                Item::Batch(mut batch) => {
                    batch.tried |= is_sent;
                    self.settling.push(batch);
                }
                Item::Lost(lost) => self.lost.push(lost),
                // If it was sent, it may have been counted.
                Item::Force(_) if is_sent => {}
                Item::Force(count) => self.forced.push(count),
                Item::Request(request) if is_sent => {
                    self.lost.push(LostReservation { id: request.id, again_at_ns: None });
                }
                Item::Request(_) => {}
            }
        }
        self.failures = self.failures.saturating_add(1);
        self.finish_round();
    }

    fn keep_error(&mut self, error: Error) {
        self.error = Some(error);
        self.error_round = self.next_round_number();
    }

    /// Returns the error if it is of the round `awaited` or a later one.
    pub(crate) fn error_since(&self, awaited: u64) -> Option<&Error> {
        self.error.as_ref().filter(|_| self.error_round >= awaited)
    }

    /// Returns the last error.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    fn finish_round(&mut self) {
        self.is_under_way = false;
        self.rounds = self.next_round_number();
    }
}

#[cfg(test)]
mod tests;

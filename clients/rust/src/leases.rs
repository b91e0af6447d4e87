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
//!   RL.WINDOW with FORCE counts what was spent. After `close`, a settlement is given up if the server refuses it or does not
//!   answer CLOSE_TRIES rounds. Then the batch counts when its lease ends.
//! - Lost: it is in `lost`. The server may have executed the RL.ACQUIRE, or may still do so. So RL.RELEASE is sent now, and
//!   again LOST_NS after the end of the lease.
//!
//! Invariants: a unit is spent only if the clock, read first, says that the lease lasts. A batch leaves `batches` before it
//! is settled, so nothing more is spent of it. Each RL.APPLY of a batch has the same quantity.

mod demand;
mod round;

use std::collections::VecDeque;
use std::time::Duration;

use demand::Demand;
pub(crate) use round::Round;
use round::{ForcedCount, LostReservation};

use crate::limit::ToAnyLimit;
use crate::period::whole_ms;
use crate::{Decision, Error, Id, Reply, Window};

const MS: i64 = 1_000_000;

/// The shortest lease. As leases are given up early, too little would be left of a shorter one.
pub(crate) const MIN_LEASE_MS: u64 = 20;
/// The longest time that a denial is remembered: others may give something back before `retry_after`.
const DENIAL_NS: i64 = 100 * MS;
/// The pause before settling again after no reply.
const RETRY_NS: i64 = 100 * MS;
/// A reservation whose reply was lost is released immediately, and again this long after its lease, because the server may
/// have executed RL.ACQUIRE after the first RL.RELEASE.
const LOST_NS: i64 = 1000 * MS;
/// The part at the end of a lease that is not used, as clocks differ in speed, and its shortest length.
const MARGIN: f64 = 0.1;
const MIN_MARGIN_NS: i64 = 2 * MS;
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

/// Returns a reply that the process gives without the server.
#[inline]
fn reply_with(
    decision: Decision,
    limit: u64,
    remaining: u64,
    retry_after: Option<Duration>,
    reset_after: Duration,
) -> Reply {
    let reply = Reply::unreached(true);
    Reply { decision, limit, remaining, retry_after, reset_after, reachable: true, ..reply }
}

fn as_ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(MS)
}

/// The limit that is leased.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub key: Box<[u8]>,
    pub window: Window,
    /// The limit of the window; `None` for a policy, whose limit only the server knows.
    limit: Option<u64>,
    lease_ms: u64,
    pub leave: u64,
    /// The time after its request in which a reservation cannot have ended by itself: it is held, or counted as lapsed.
    held_ms: u64,
}

impl Terms {
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the window is not valid, its period is 0, it has a ban, or the lease is too short.
    pub(crate) fn new(
        key: &[u8],
        window: &Window,
        lease: Duration,
        leave: u64,
    ) -> Result<Terms, Error> {
        let limit = window.to_any();
        limit.check()?;
        if limit.ban_length().is_some() {
            return Err(Error::ban_with("a local limit"));
        }
        let numbers = window.numbers();
        if numbers.is_some_and(|(_, period)| period.least_duration().is_zero()) {
            return Err(Error::lease_of_semaphore());
        }
        let lease_ms = whole_ms(lease);
        if lease_ms < MIN_LEASE_MS {
            return Err(Error::short_lease(MIN_LEASE_MS, lease_ms));
        }
        // A window of the calendar may end at any time, so a reservation may stop counting as soon as it lapses.
        let is_first = window.starts_at().is_some_and(|start| start.eq_ignore_ascii_case("first"));
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

    pub(crate) fn is_policy(&self) -> bool {
        self.limit.is_none()
    }
}

/// A reservation that is held or settled.
#[derive(Debug)]
struct Batch {
    id: Id,
    /// False if the SHADOW of a policy lets everything pass.
    is_reserved: bool,
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

/// A denial that is remembered.
#[derive(Debug)]
struct Denial {
    reply: Reply,
    /// The quantity beyond what is held that was denied.
    short: u64,
    at_ns: i64,
    until_ns: i64,
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
    pub is_closing: bool,
    /// True if the policy turned out to be a semaphore, as only the server knows. Then nothing more is reserved.
    is_semaphore: bool,
    /// The number of rounds that are over. Calls that wait try again when it grows.
    pub rounds: u64,
    /// The number of rounds that failed.
    pub failures: u64,
    /// The last error, and the number of its round. It is kept until a later round replaces it, as the calls that waited for
    /// its round may read it only then.
    error: Option<Error>,
    error_round: u64,
    /// The last error reply to a settlement since [`Leases::close`]. What it was to settle counts when its lease ends.
    pub refused: Option<Error>,
    is_under_way: bool,
    retry_at_ns: i64,
    demand: Demand,
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
    pub is_due: bool,
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
            refused: None,
            is_under_way: false,
            retry_at_ns: NEVER_YET,
            demand: Demand::new(lease_ns, now.monotonic_ns),
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

    /// Returns whether [`Leases::next_round`] may have something to send, and clears that mark.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    // Spending.

    /// Decides. Returns `None` if the server must be asked. The quantity counts as demand, unless it `is_counted` already
    /// because [`Leases::want`] was called for it.
    #[inline]
    pub(crate) fn take(
        &mut self,
        quantity: u64,
        is_counted: bool,
        clock: &impl Clock,
    ) -> Result<Option<Reply>, Error> {
        let monotonic_ns = clock.monotonic_ns();
        self.demand.asked_at_ns = monotonic_ns;
        // Nearly every take spends from the first batch.
        if let Some(batch) = self.batches.front_mut() {
            if quantity <= batch.left
                && monotonic_ns < batch.until.monotonic_ns
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
                return Ok(Some(self.allowed(left)));
            }
        }
        let reply = self.take_slowly(quantity, Now { monotonic_ns, wall_ns: clock.wall_ns() })?;
        if reply.is_some() && !is_counted {
            self.count(quantity, monotonic_ns);
        }
        Ok(reply)
    }

    /// Returns the reply to a take that was allowed, while `left` is held.
    #[inline]
    fn allowed(&self, left: u64) -> Reply {
        let (limit, remaining) = (self.limit.unwrap_or(0), self.remaining.saturating_add(left));
        reply_with(Decision::Allowed, limit, remaining, None, self.reset_after)
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

    fn refuse_semaphore(&self) -> Result<(), Error> {
        if self.is_semaphore {
            return Err(Error::lease_of_semaphore());
        }
        Ok(())
    }

    fn take_slowly(&mut self, quantity: u64, now: Now) -> Result<Option<Reply>, Error> {
        self.refuse_semaphore()?;
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
            return Ok(Some(self.allowed(left.saturating_sub(quantity))));
        }
        if self.is_too_much(quantity, now.monotonic_ns) {
            let limit = self.terms.limit.or(self.limit).unwrap_or(0);
            let remaining = self.remaining.saturating_add(left);
            let reply = reply_with(Decision::Denied, limit, remaining, None, self.reset_after);
            return Ok(Some(reply));
        }
        let is_denied = |denial: &&Denial| {
            let is_short = quantity.saturating_sub(left) >= denial.short;
            now.monotonic_ns < denial.until_ns && is_short
        };
        let denial = self.denial.as_ref().filter(is_denied);
        Ok(denial.map(|denial| self.denied(denial, quantity, left, now.monotonic_ns)))
    }

    /// Returns the reply to a take by a remembered denial, while `left` is held.
    fn denied(&self, denial: &Denial, quantity: u64, left: u64, now_ns: i64) -> Reply {
        let passed_ms = now_ns.saturating_sub(denial.at_ns).max(0) / MS;
        let passed = Duration::from_millis(passed_ms.unsigned_abs());
        let Reply { decision, limit, retry_after, reset_after, .. } = denial.reply;
        let can_be_allowed = quantity.saturating_add(self.terms.leave) <= limit;
        let retry_after = retry_after.filter(|_| can_be_allowed);
        let retry_after =
            retry_after.map(|wait| wait.saturating_sub(passed).max(Duration::from_millis(1)));
        reply_with(decision, limit, left, retry_after, reset_after.saturating_sub(passed))
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
        if batch.is_reserved {
            self.settling.push(batch);
        }
    }

    /// Requests what a take needs. The caller tries the take again when `rounds` has reached the number that is returned.
    pub(crate) fn want(&mut self, quantity: u64, is_counted: bool, now: Now) -> Result<u64, Error> {
        if self.is_closing {
            return Err(Error::Closed);
        }
        self.refuse_semaphore()?;
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

    /// Returns whether nothing is held or being settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.batches.is_empty()
            && self.settling.is_empty()
            && self.lost.is_empty()
            && self.forced.is_empty()
            && !self.is_under_way
    }
}

#[cfg(test)]
mod tests;

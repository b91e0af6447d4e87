//! Leases: how a process decides a limit of redis-ratelimit by itself. It reserves batches of the limit on the server,
//! spends them, and settles them. All processes together never spend more than the limit in any period.
//!
//! This crate does no I/O, reads no clock and starts no thread. The clients for Python, TypeScript and Rust all use it: they
//! tell it the time and the server's replies, send the commands that it returns, and answer the calls that wait.
//!
//! A batch is a reservation with COUNTLAPSED. The server holds it until it is settled, and counts all of it if its lease
//! ends first. So it can be spent without the server while the lease lasts. What a process has not settled when it dies
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
//!   RL.WINDOW with FORCE counts what was spent. After `close`, a settlement is given up if the server refuses it or does
//!   not answer CLOSE_TRIES rounds. Then the batch counts when its lease ends.
//! - Lost: it is in `lost`. The server may have executed the RL.ACQUIRE, or may still do so. So RL.RELEASE is sent now, and
//!   again LOST_NS after the end of the lease.
//!
//! Invariants: a unit is spent only if the clock, read first, says that the lease lasts. A batch leaves `batches` before it
//! is settled, so nothing more is spent of it. Each RL.APPLY of a batch has the same quantity.

#![forbid(unsafe_code)]

mod demand;
mod round;

use std::collections::VecDeque;

use demand::Demand;
use round::LostReservation;
pub use round::{ErrorReply, Round, Value};

const MS: i64 = 1_000_000;

/// The shortest lease, in milliseconds. As leases are given up early, too little would be left of a shorter one.
pub const MIN_LEASE_MS: u64 = 20;
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
/// The number of rounds after [`Leases::close`] that may fail. Then nothing more is sent.
const CLOSE_TRIES: u64 = 3;
/// A time before all others.
const NEVER_YET: i64 = i64::MIN;

/// A reading of both clocks, in nanoseconds. Each counts from its own origin.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Never goes back. It may stand still while the machine sleeps.
    pub monotonic_ns: i64,
    /// The time of day, which may be set.
    pub wall_ns: i64,
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

fn as_ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(MS)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    /// Too much is counted, or the limit can never allow the call.
    Denied,
    /// Others hold the capacity and may return it.
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub decision: Decision,
    /// The limit, by the server's last reply.
    pub limit: u64,
    /// The quantity that is left for this process, and was left on the server by its last reply.
    pub remaining: u64,
    /// The wait after which the same take may be allowed. `None` if it was allowed, or never can be.
    pub retry_after_ms: Option<u64>,
    /// The wait until the key is unused, by the server's last reply.
    pub reset_after_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    Closed,
    /// The policy turned out to be a semaphore, which cannot be leased. Only the server knows which policies are semaphores.
    Semaphore,
}

/// What went wrong in a round. `E` is the client's own error.
#[derive(Clone, Debug)]
pub enum Failure<E> {
    /// The server replied with an error, or did not reply.
    Error(E),
    /// This reply is not that of its command.
    Unreadable(Value),
    /// Several batches in a row arrived after their lease.
    LateBatches,
}

/// The limit that is leased. The caller has checked its words.
#[derive(Clone, Debug)]
pub struct Terms {
    pub key: Vec<u8>,
    /// The words of the window before the quantity: limit and period, or the name of a policy with its `@`.
    pub window: Vec<Vec<u8>>,
    /// The words of the window after the quantity, such as `FIXED`.
    pub options: Vec<Vec<u8>>,
    /// The limit of the window; `None` for a policy, whose limit only the server knows.
    pub limit: Option<u64>,
    /// How long a settled event is certain to count, in milliseconds: the shortest period that the window can have, and 0
    /// for a policy and for windows of the calendar, which may end at any time.
    pub counted_ms: u64,
    /// The length of a lease, at least [`MIN_LEASE_MS`].
    pub lease_ms: u64,
    /// The quantity that must remain for others.
    pub leave: u64,
}

impl Terms {
    fn is_policy(&self) -> bool {
        self.limit.is_none()
    }

    /// Returns the time after its request in which a reservation cannot have ended by itself: it is held, or counted as
    /// lapsed.
    fn held_ms(&self) -> u64 {
        self.lease_ms.saturating_add(self.counted_ms)
    }
}

/// A reservation that is held or settled.
#[derive(Clone, Debug)]
struct Batch {
    id: String,
    /// False if the SHADOW of a policy lets everything pass.
    is_reserved: bool,
    granted: u64,
    left: u64,
    /// The time at which the process stops spending it.
    until: Now,
    /// The next batch is fetched when no more than this is left.
    refill_at: u64,
    /// True if its settlement was sent before and got no reply.
    was_sent: bool,
}

impl Batch {
    fn spent(&self) -> u64 {
        self.granted.saturating_sub(self.left)
    }
}

#[derive(Clone, Debug)]
struct Denial {
    reply: Reply,
    /// The quantity that was denied, in addition to what is held.
    beyond_held: u64,
    at_ns: i64,
    until_ns: i64,
}

/// The leases of one key.
///
/// A caller tries [`Leases::take`]. If that returns `None`, it calls [`Leases::want`], and tries again after the next round.
/// The caller that does the I/O sends what [`Leases::next_round`] returns and reports the outcome by [`Leases::receive`] or
/// [`Leases::fail`], until [`Leases::next_round`] returns `None`. Then it waits until [`Leases::next_at`], or until
/// [`Leases::take_due`] returns true.
///
/// ```
/// use redis_ratelimit_leases::{Leases, Now, Terms, Value};
///
/// let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
/// let terms = Terms {
///     key: b"ingest".to_vec(),
///     window: words(&["100", "1s"]),
///     options: words(&[]),
///     limit: Some(100),
///     counted_ms: 1_000,
///     lease_ms: 100,
///     leave: 0,
/// };
/// let now = Now { monotonic_ns: 0, wall_ns: 0 };
/// let mut leases = Leases::<()>::new(terms, "process-1".to_string(), now);
/// assert_eq!(leases.take(3, false, now), Ok(None)); // it holds nothing yet
/// let awaited = leases.want(3, true, now).unwrap();
/// let round = leases.next_round(now).unwrap();
/// assert_eq!(round.commands[0].join(&b' '), b"RL.ACQUIRE ingest 100 1s 3 LEASE 100 ID process-1-1 ATMOST COUNTLAPSED MS");
/// let [allowed, limit, remaining, retry, reset] = [0, 100, 97, -1, 1_000].map(Value::Integer);
/// let [granted, reservations] = [3, 1].map(Value::Integer);
/// let reply = vec![allowed, limit, remaining, retry, reset, Value::Text, granted, reservations];
/// leases.receive(round, vec![Ok(Value::Array(reply))], now);
/// assert_eq!(leases.rounds(), awaited);
/// assert_eq!(leases.take(3, true, now).unwrap().unwrap().remaining, 97);
/// ```
#[derive(Clone, Debug)]
pub struct Leases<E> {
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
    /// Quantities that were spent of reservations that the server has lost.
    forced: Vec<u64>,
    /// The largest quantity for which a call waits.
    wanted: u64,
    /// The quantity that a call still lacks after the server granted a part.
    missing: u64,
    is_closing: bool,
    /// True if the policy turned out to be a semaphore. Then nothing more is reserved.
    is_semaphore: bool,
    rounds: u64,
    /// The number of rounds that failed.
    failures: u64,
    /// The number of failures at which closed leases stop trying to settle.
    last_failure: u64,
    /// The last error, and the number of its round. It is kept until a later round replaces it, as the calls that waited for
    /// its round may read it only then.
    error: Option<Failure<E>>,
    error_round: u64,
    /// The last error reply to a settlement since [`Leases::close`].
    refused: Option<E>,
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
    reset_after_ms: u64,
    /// Until then the limit of a policy is taken from the server's reply. Later it may have been changed.
    limit_until_ns: i64,
    /// True if [`Leases::next_round`] may have something to send since [`Leases::take_due`] was last called.
    is_due: bool,
}

impl<E: Clone> Leases<E> {
    /// Creates leases. The ids of the reservations start with `prefix`, which must be unique to the process.
    pub fn new(terms: Terms, prefix: String, now: Now) -> Leases<E> {
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
            missing: 0,
            is_closing: false,
            is_semaphore: false,
            rounds: 0,
            failures: 0,
            last_failure: 0,
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
            reset_after_ms: 0,
            limit_until_ns: NEVER_YET,
            is_due: false,
        }
    }

    /// Returns whether [`Leases::next_round`] may have something to send since the last call, and clears that mark.
    #[inline]
    pub fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    /// Returns the number of rounds that are over. Calls that wait try again when it grows.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    // Spending.

    /// Decides. Returns `None` if the server must be asked. The quantity counts as demand, unless it `is_counted` already
    /// because [`Leases::want`] was called for it.
    ///
    /// # Errors
    ///
    /// [`TakeError::Semaphore`]. After [`Leases::close`], what can no longer be decided is an error of [`Leases::want`].
    #[inline]
    pub fn take(
        &mut self,
        quantity: u64,
        is_counted: bool,
        now: Now,
    ) -> Result<Option<Reply>, TakeError> {
        self.demand.asked_at_ns = now.monotonic_ns;
        // Nearly every take spends from the first batch.
        if let Some(batch) = self.batches.front_mut() {
            if quantity <= batch.left && !now.has_reached(batch.until) {
                if !is_counted {
                    self.demand.asked = self.demand.asked.saturating_add(quantity);
                }
                batch.left = batch.left.saturating_sub(quantity);
                let (left, refill_at) = (batch.left, batch.refill_at);
                if left <= refill_at {
                    self.refill(left);
                }
                return Ok(Some(self.allowed(left)));
            }
        }
        let reply = self.take_slowly(quantity, now)?;
        if reply.is_some() && !is_counted {
            self.count_demand(quantity, now.monotonic_ns);
        }
        Ok(reply)
    }

    /// Returns the reply to a take that was allowed, while `left` is held.
    #[inline]
    fn allowed(&self, left: u64) -> Reply {
        Reply {
            decision: Decision::Allowed,
            limit: self.limit.unwrap_or(0),
            remaining: self.remaining.saturating_add(left),
            retry_after_ms: None,
            reset_after_ms: self.reset_after_ms,
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

    fn refuse_semaphore(&self) -> Result<(), TakeError> {
        if self.is_semaphore {
            return Err(TakeError::Semaphore);
        }
        Ok(())
    }

    fn take_slowly(&mut self, quantity: u64, now: Now) -> Result<Option<Reply>, TakeError> {
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
                let (left, refill_at) = (batch.left, batch.refill_at);
                if left <= refill_at {
                    self.refill(left);
                }
            }
            return Ok(Some(self.allowed(left.saturating_sub(quantity))));
        }
        if self.is_too_much(quantity, now.monotonic_ns) {
            return Ok(Some(Reply {
                decision: Decision::Denied,
                limit: self.terms.limit.or(self.limit).unwrap_or(0),
                ..self.allowed(left)
            }));
        }
        let is_denied = |denial: &&Denial| {
            let is_short = quantity.saturating_sub(left) >= denial.beyond_held;
            now.monotonic_ns < denial.until_ns && is_short
        };
        let denial = self.denial.as_ref().filter(is_denied);
        Ok(denial.map(|denial| self.denied(denial, quantity, left, now.monotonic_ns)))
    }

    /// Returns the reply to a take by a remembered denial, while `left` is held.
    fn denied(&self, denial: &Denial, quantity: u64, left: u64, now_ns: i64) -> Reply {
        let passed_ms = (now_ns.saturating_sub(denial.at_ns).max(0) / MS).unsigned_abs();
        let Reply { decision, limit, retry_after_ms, reset_after_ms, .. } = denial.reply;
        let can_be_allowed = quantity.saturating_add(self.terms.leave) <= limit;
        let retry_after_ms = retry_after_ms.filter(|_| can_be_allowed);
        Reply {
            decision,
            limit,
            remaining: left,
            retry_after_ms: retry_after_ms.map(|wait| wait.saturating_sub(passed_ms).max(1)),
            reset_after_ms: reset_after_ms.saturating_sub(passed_ms),
        }
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

    fn count_demand(&mut self, quantity: u64, now_ns: i64) {
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

    /// Requests what a take needs. The caller tries the take again when [`Leases::rounds`] has reached the number that is
    /// returned.
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    pub fn want(&mut self, quantity: u64, is_counted: bool, now: Now) -> Result<u64, TakeError> {
        if self.is_closing {
            return Err(TakeError::Closed);
        }
        self.refuse_semaphore()?;
        if !is_counted {
            self.count_demand(quantity, now.monotonic_ns);
        }
        self.wanted = self.wanted.max(quantity);
        self.is_due = true;
        Ok(self.next_round_number())
    }

    /// Returns the reply to a take that found nothing left after each round, because others spent what arrived.
    pub fn outrun_reply(&self) -> Reply {
        Reply { decision: Decision::Held, remaining: 0, retry_after_ms: Some(1), ..self.allowed(0) }
    }

    /// Settles what is held, and requests nothing more.
    pub fn close(&mut self) {
        if self.is_closing {
            return;
        }
        self.is_closing = true;
        self.last_failure = self.failures.saturating_add(CLOSE_TRIES);
        if self.holds_nothing() {
            return;
        }
        self.retry_at_ns = NEVER_YET;
        self.end_round();
        self.is_due = true;
    }

    /// Returns whether nothing is held or being settled, or closed leases have given up settling. Nothing is sent any more
    /// then until the next [`Leases::want`].
    pub fn is_settled(&self) -> bool {
        self.holds_nothing() || self.has_given_up()
    }

    fn holds_nothing(&self) -> bool {
        self.batches.is_empty()
            && self.settling.is_empty()
            && self.lost.is_empty()
            && self.forced.is_empty()
            && !self.is_under_way
    }

    /// Returns whether closed leases have given up settling, because the server did not reply.
    fn has_given_up(&self) -> bool {
        self.is_closing && self.failures >= self.last_failure && !self.is_under_way
    }

    /// Returns why closed leases could not settle everything: what was held then counts when its lease ends.
    pub fn unsettled(&self) -> Option<Failure<E>> {
        let refused = self.refused.clone().map(Failure::Error);
        refused.or_else(|| self.error.clone().filter(|_| !self.holds_nothing()))
    }
}

#[cfg(test)]
mod tests;

//! The rounds of commands that reserve batches and settle them.

use super::demand::batch_size;
use super::{
    as_ns, Batch, Decision, Denial, Failure, Leases, Now, Reply, Terms, DENIAL_NS, LOST_NS,
    MAX_LATE, NEVER_YET, RETRY_NS,
};

/// A value of the server's reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Nil,
    Integer(i64),
    /// Text. The leases only need to know that there is some.
    Text,
    Array(Vec<Value>),
}

#[derive(Clone, Debug)]
pub struct ErrorReply<E> {
    /// The code that its text begins with, such as `READONLY`.
    pub code: String,
    /// The client's own error.
    pub error: E,
}

/// A reservation whose reply was lost.
#[derive(Clone, Debug)]
pub(super) struct LostReservation {
    id: String,
    /// The time of the second release; `None` before the first.
    again_at_ns: Option<i64>,
}

#[derive(Clone, Debug)]
struct Request {
    id: String,
    quantity: u64,
    /// The part of the quantity that a call waits for.
    needed: u64,
    /// Reserves the whole quantity or nothing. A denial then says when the whole quantity is available.
    whole: bool,
}

#[derive(Clone, Debug)]
enum Item {
    Lost(LostReservation),
    Batch(Batch),
    /// Counts the quantity that was spent of a reservation that the server has lost.
    Force(u64),
    Request(Request),
}

/// Commands to send together, one for each item.
#[derive(Clone, Debug)]
pub struct Round {
    sent_at: Now,
    items: Vec<Item>,
    pub commands: Vec<Vec<Vec<u8>>>,
}

impl<E: Clone> Leases<E> {
    /// Returns what is to be sent now; `None` if there is nothing.
    pub fn next_round(&mut self, now: Now) -> Option<Round> {
        if self.has_given_up() {
            self.end_round();
            return None;
        }
        let now_ns = now.monotonic_ns;
        self.demand.update(now_ns);
        self.drop_ended(now);
        let is_idle = now_ns >= self.demand.idle_at_ns();
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
            let (due, later): (Vec<_>, Vec<_>) = self.lost.drain(..).partition(is_due);
            self.lost = later;
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

    fn command(&self, item: &Item) -> Vec<Vec<u8>> {
        let settle =
            |name: &str, id: &str| words(&[name.as_bytes(), &self.terms.key, id.as_bytes()]);
        match item {
            Item::Lost(LostReservation { id, .. }) => settle("RL.RELEASE", id),
            Item::Batch(batch) if batch.spent() == 0 => settle("RL.RELEASE", &batch.id),
            Item::Batch(batch) => {
                let mut command = settle("RL.APPLY", &batch.id);
                command.push(number(batch.spent()));
                command
            }
            Item::Force(quantity) => {
                let mut command = self.on_window("RL.WINDOW", *quantity);
                command.extend(words(&[b"FORCE", b"MS"]));
                command
            }
            Item::Request(request) => {
                let Terms { leave, lease_ms, .. } = self.terms;
                let mut command = self.on_window("RL.ACQUIRE", request.quantity);
                if leave > 0 {
                    command.extend([b"LEAVE".to_vec(), number(leave)]);
                }
                command.extend([b"LEASE".to_vec(), number(lease_ms)]);
                command.extend(words(&[b"ID", request.id.as_bytes()]));
                if !request.whole {
                    command.push(b"ATMOST".to_vec());
                }
                command.extend(words(&[b"COUNTLAPSED", b"MS"]));
                command
            }
        }
    }

    /// Returns a command on the window, without options of the call.
    fn on_window(&self, name: &str, quantity: u64) -> Vec<Vec<u8>> {
        let Terms { key, window, options, .. } = &self.terms;
        let mut command = words(&[name.as_bytes(), key]);
        command.extend_from_slice(window);
        command.push(number(quantity));
        command.extend_from_slice(options);
        command
    }

    pub(super) fn next_round_number(&self) -> u64 {
        self.rounds.saturating_add(1)
    }

    /// Ends a round. The calls that wait have what they need by now, or will not get it.
    pub(super) fn end_round(&mut self) {
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
        let is_rest = self.missing > 0;
        self.missing = 0;
        Some(self.request(self.wanted.saturating_sub(left), is_rest))
    }

    /// Returns whether to fetch the next batch while the last one is being spent.
    fn is_needed_soon(&self, left: u64, now_ns: i64, is_idle: bool) -> bool {
        let denied_until = self.denial.as_ref().map_or(NEVER_YET, |denial| denial.until_ns);
        if is_idle
            || self.demand.expected() < 1.0
            || self.is_full
            || now_ns < denied_until.max(self.retry_at_ns)
        {
            return false;
        }
        let ends = self.batches.iter().map(|batch| batch.until.monotonic_ns).max();
        let lasts_ns = ends.unwrap_or(now_ns).saturating_sub(now_ns);
        left <= self.demand.refill_at() || lasts_ns as f64 <= self.demand.ahead_ns()
    }

    fn request(&mut self, needed: u64, whole: bool) -> Request {
        self.requests = self.requests.saturating_add(1);
        let size = batch_size(self.demand.expected(), needed, self.limit, self.reservations);
        let quantity = if whole { needed } else { size };
        let id = format!("{}-{}", self.prefix, self.requests);
        Request { id, quantity, needed, whole }
    }

    /// Returns the time in monotonic nanoseconds at which to call [`Leases::next_round`] next, if nothing makes it due
    /// earlier. `None` if there is no such time.
    pub fn next_at(&self, now: Now) -> Option<i64> {
        if self.has_given_up() {
            return None;
        }
        let now_ns = now.monotonic_ns;
        let lost = self.lost.iter().map(|lost| lost.again_at_ns.unwrap_or(self.retry_at_ns));
        let is_unsettled = !self.settling.is_empty() || !self.forced.is_empty();
        let settle = is_unsettled.then(|| now_ns.max(self.retry_at_ns));
        // A batch may end earlier by the wall clock. `take` reads that clock, so nothing more is spent then.
        let ends = || self.batches.iter().map(|batch| batch.until.monotonic_ns);
        let soon = ends().max().map(|end| end.saturating_sub(self.demand.ahead_ns() as i64));
        let idle = self.demand.idle_at_ns();
        let held = ends().min().into_iter().chain((!self.batches.is_empty()).then_some(idle));
        lost.chain(settle).chain(held).chain(soon.filter(|soon| *soon > now_ns)).min()
    }

    // The outcome of a round.

    /// Reads the replies to a round, including error replies. If one cannot be read, all of them count as lost.
    pub fn receive(&mut self, round: Round, replies: Vec<Result<Value, ErrorReply<E>>>, now: Now) {
        let read = |(item, reply): (&Item, Result<Value, ErrorReply<E>>)| match reply {
            Ok(value) => read_reply(item, &value).map(Ok).ok_or(value),
            Err(error) => Ok(Err(error)),
        };
        let replies: Vec<_> = match round.items.iter().zip(replies).map(read).collect() {
            Ok(replies) => replies,
            Err(value) => return self.lose(round, Failure::Unreadable(value), true, now),
        };
        let now_ns = now.monotonic_ns;
        let Round { sent_at, items, .. } = round;
        self.demand.record_round_trip(now_ns.saturating_sub(sent_at.monotonic_ns));
        if let Some(Item::Request(_)) = items.last() {
            self.error = None;
        }
        for (item, reply) in items.into_iter().zip(replies) {
            match (item, reply) {
                (item, Err(error)) => {
                    match item {
                        Item::Batch(batch) => self.keep_refused(batch, &error, now),
                        Item::Lost(_) | Item::Force(_) if self.is_closing => {
                            self.refused = Some(error.error.clone());
                        }
                        _ => {}
                    }
                    self.keep_error(Failure::Error(error.error));
                }
                (Item::Lost(lost), Ok(ItemReply::Count(0))) if lost.again_at_ns.is_none() => {
                    let again_at = now.after(self.lease_ns).after(LOST_NS).monotonic_ns;
                    self.lost.push(LostReservation { id: lost.id, again_at_ns: Some(again_at) });
                }
                (Item::Batch(batch), Ok(ItemReply::Count(0))) => {
                    let quantity = batch.spent();
                    if quantity > 0 && !batch.was_sent && self.is_held(&batch, now) {
                        self.forced.push(quantity);
                    }
                }
                (Item::Request(request), Ok(ItemReply::Acquired(acquired))) => {
                    self.apply_reply(request, acquired, sent_at, now);
                }
                _ => {}
            }
        }
        if self.is_semaphore {
            // Reservations of a semaphore can only be released.
            let batches = self.batches.drain(..).chain(self.settling.drain(..));
            let reserved = batches.filter(|batch| batch.is_reserved);
            self.lost
                .extend(reserved.map(|batch| LostReservation { id: batch.id, again_at_ns: None }));
        }
        self.finish_round();
    }

    /// Returns whether the reservation of a batch cannot have ended by itself.
    fn is_held(&self, batch: &Batch, now: Now) -> bool {
        let after_spending_ns = as_ns(self.terms.held_ms()).saturating_sub(self.spendable_ns);
        !now.has_reached(batch.until.after(after_spending_ns))
    }

    /// Decides about a batch that could not be settled because of an error reply.
    fn keep_refused(&mut self, batch: Batch, error: &ErrorReply<E>, now: Now) {
        if self.terms.is_policy() && error.code == "ERR" {
            // A correct RL.APPLY replies ERR only if the reservation is a semaphore's.
            self.is_semaphore = true;
            self.settling.push(batch);
        } else if batch.spent() == 0 {
            self.lost.push(LostReservation { id: batch.id, again_at_ns: None });
        } else if self.is_closing {
            self.refused = Some(error.error.clone());
        } else if self.is_held(&batch, now) {
            // Such as READONLY of a server that became a replica. What was spent is settled later, or counted when the lease
            // ends.
            self.settling.push(batch);
            self.retry_at_ns = now.monotonic_ns.saturating_add(RETRY_NS);
        }
    }

    /// Takes over what the reply to a request says.
    fn apply_reply(&mut self, request: Request, acquired: AcquireReply, sent_at: Now, now: Now) {
        let AcquireReply { reply, is_reserved, granted, reservations } = acquired;
        let is_allowed = reply.decision == Decision::Allowed;
        let granted = match request.whole {
            true if is_allowed => request.quantity,
            true => 0,
            false => granted,
        };
        self.limit = Some(reply.limit);
        self.limit_until_ns = now.monotonic_ns.saturating_add(DENIAL_NS);
        if !request.whole {
            self.reservations = reservations.max(1);
        }
        self.remaining = reply.remaining;
        self.reset_after_ms = reply.reset_after_ms;
        self.is_full = granted < request.quantity;
        // The next request of a call that needs more is for all of the rest.
        self.missing = if granted > 0 { request.needed.saturating_sub(granted) } else { 0 };
        if !is_allowed {
            let at_ns = now.monotonic_ns;
            let retry_ns =
                reply.retry_after_ms.map_or(DENIAL_NS, |wait| as_ns(wait).min(DENIAL_NS));
            // With ATMOST, even 1 was denied.
            let beyond_held = if request.whole { request.quantity } else { 1 };
            self.denial = Some(Denial {
                reply,
                beyond_held,
                at_ns,
                until_ns: at_ns.saturating_add(retry_ns),
            });
        } else if granted > 0 {
            self.hold(request, is_reserved, granted, sent_at, now);
        }
    }

    fn hold(&mut self, request: Request, is_reserved: bool, granted: u64, sent_at: Now, now: Now) {
        let refill_at =
            if self.is_full { 0 } else { self.demand.refill_at().min(granted.saturating_sub(1)) };
        let batch = Batch {
            id: request.id,
            is_reserved,
            granted,
            left: granted,
            until: sent_at.after(self.spendable_ns),
            refill_at,
            was_sent: false,
        };
        self.denial = None;
        self.late = if now.has_reached(batch.until) { self.late.saturating_add(1) } else { 0 };
        if self.late == MAX_LATE {
            self.late = 0;
            self.keep_error(Failure::LateBatches);
        }
        if self.is_too_much(request.needed, now.monotonic_ns) {
            // It was for a call that can never be allowed.
            self.settle(batch);
            return;
        }
        for older in &mut self.batches {
            older.refill_at = 0;
        }
        self.batches.push_back(batch);
    }

    /// Records that a round got no replies. `is_sent` is whether the server may have executed it.
    pub fn fail(&mut self, round: Round, error: E, is_sent: bool, now: Now) {
        self.lose(round, Failure::Error(error), is_sent, now);
    }

    fn lose(&mut self, round: Round, failure: Failure<E>, is_sent: bool, now: Now) {
        self.keep_error(failure);
        self.retry_at_ns = now.monotonic_ns.saturating_add(RETRY_NS);
        for item in round.items {
            match item {
                Item::Batch(mut batch) => {
                    batch.was_sent |= is_sent;
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

    fn keep_error(&mut self, error: Failure<E>) {
        self.error = Some(error);
        self.error_round = self.next_round_number();
    }

    /// Returns the error if it is of the round `awaited` or a later one. A call that waited for that round, and still cannot
    /// be decided, is answered by it.
    pub fn error_since(&self, awaited: u64) -> Option<&Failure<E>> {
        self.error.as_ref().filter(|_| self.error_round >= awaited)
    }

    fn finish_round(&mut self) {
        self.is_under_way = false;
        self.rounds = self.next_round_number();
    }
}

fn words(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

enum ItemReply {
    Acquired(AcquireReply),
    /// The number of reservations that were settled.
    Count(u64),
}

struct AcquireReply {
    reply: Reply,
    /// False under SHADOW.
    is_reserved: bool,
    granted: u64,
    reservations: u64,
}

/// Reads the reply to the command of an item; `None` if it is not one.
fn read_reply(item: &Item, value: &Value) -> Option<ItemReply> {
    match (item, value) {
        (Item::Lost(_) | Item::Batch(_), Value::Integer(count)) => {
            Some(ItemReply::Count(u64::try_from(*count).ok()?))
        }
        (Item::Force(_) | Item::Request(_), Value::Array(values)) => {
            read_acquired(values).map(ItemReply::Acquired)
        }
        _ => None,
    }
}

fn read_acquired(values: &[Value]) -> Option<AcquireReply> {
    let integer = |at: usize| match values.get(at) {
        Some(Value::Integer(number)) => Some(*number),
        _ => None,
    };
    let unsigned = |at| u64::try_from(integer(at)?).ok();
    let reply = Reply {
        decision: match integer(0)? {
            0 => Decision::Allowed,
            1 => Decision::Denied,
            2 => Decision::Held,
            _ => return None,
        },
        limit: unsigned(1)?,
        remaining: unsigned(2)?,
        retry_after_ms: u64::try_from(integer(3)?).ok(),
        reset_after_ms: unsigned(4)?,
    };
    let is_reserved = matches!(values.get(5), Some(Value::Text));
    // Without ATMOST the reply has neither of them.
    let count = |at| if at < values.len() { unsigned(at) } else { Some(0) };
    Some(AcquireReply { reply, is_reserved, granted: count(6)?, reservations: count(7)? })
}

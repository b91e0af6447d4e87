//! Decides a request on one key of a server, writes the result, and notes how the call ended.

use crate::error::Error;
use crate::policies::PolicyVerdict;
use engine::all::PartDecision;
use engine::decide::{Mode, Part};
use engine::decision::{Ask, Decision, Quantity, Verdict};
use engine::request::{Limit, Request};
use engine::reservation::{lease_end_us, Id};
use engine::settle::release;
use engine::store::Store;
use std::slice;

/// The keys of a server, and where it notes how calls on them ended.
pub trait Keyspace {
    /// Names a key at the time of a call.
    type Key: Copy;
    /// A key, opened to read or to write.
    type Store: Store<Error: Into<Error>>;

    /// Opens a key for a call in this mode.
    fn store(&self, key: Self::Key, mode: Mode) -> Self::Store;

    /// Makes the id of a reservation that its caller did not name.
    fn new_id(&self) -> Id;

    /// Counts reservations that were dropped because they were gone.
    fn count_dropped(&self, number: usize);

    /// Counts how a call on the policy of this number ended.
    fn count_policy(&self, id: u64, ended: PolicyVerdict);

    /// Notes a denial of a call that takes.
    fn note_denial(&self, key: Self::Key);
}

/// What was decided about a request.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    /// The verdict, and the numbers of the reply.
    pub decision: Decision,
    /// The id of the reservation that was made.
    pub id: Option<Id>,
    /// How many reservations the key holds whose lease runs, if RL.ACQUIRE has ATMOST.
    pub running: Option<usize>,
    /// The earliest grant, ignoring reservations and waiters, in Unix microseconds. `None` if the request can never be
    /// granted, or was not denied in [`Mode::Try`].
    pub earliest_grant_us: Option<u64>,
}

impl From<&PartDecision> for Decided {
    fn from(part: &PartDecision) -> Decided {
        let PartDecision { decision, id, running, earliest_grant_us, .. } = *part;
        Decided { decision, id, running, earliest_grant_us }
    }
}

impl Decided {
    /// Returns whether the call got what it asked for.
    pub fn allowed(&self) -> bool {
        self.decision.verdict.allowed()
    }

    /// Ends the call: a denial under a policy with SHADOW becomes a reply that says allowed. Returns what the policy counts.
    pub fn conclude(&mut self, request: &Request) -> PolicyVerdict {
        let ended = match self.allowed() {
            true => PolicyVerdict::Allowed,
            false if request.shadow => PolicyVerdict::ShadowDenied,
            false => PolicyVerdict::Denied,
        };
        if request.shadow {
            let verdict = &mut self.decision.verdict;
            let go_after_us = match verdict {
                Verdict::Allowed { go_after_us, .. } => *go_after_us,
                Verdict::Denied { .. } | Verdict::Never => 0,
            };
            *verdict = Verdict::Allowed { taken: request.ask.quantity.wanted(), go_after_us };
        }
        ended
    }
}

/// Decides a request on its key, and writes the result. With `barred` a waiter comes first.
///
/// # Errors
///
/// As [`engine::decide::decide`]. Nothing changes then.
#[inline]
pub fn decide_and_write<K: Keyspace>(
    keys: &K,
    key: K::Key,
    request: &Request,
    barred: bool,
    mode: Mode,
) -> Result<Decided, Error> {
    let mut part = Part::new(keys.store(key, mode), request);
    part.barred = barred;
    let plan = engine::decide::decide(slice::from_mut(&mut part), mode, || keys.new_id());
    keys.count_dropped(plan.map_err(Into::into)?.write());
    Ok(Decided::from(part.decided()))
}

/// Turns what was decided into the final reply to a request on this key, and notes how the call ended, which it returns.
#[inline]
pub fn note_end<K: Keyspace>(
    keys: &K,
    key: K::Key,
    request: &Request,
    decided: &mut Decided,
) -> PolicyVerdict {
    let ended = decided.conclude(request);
    if request.takes() {
        if let Some(id) = request.policy {
            keys.count_policy(id, ended);
        }
        if ended == PolicyVerdict::Denied {
            keys.note_denial(key);
        }
    }
    ended
}

/// Gives back what was granted, at `granted_us`, to a client that disconnected before it was notified.
///
/// # Errors
///
/// The key's own. Nothing changes then.
pub fn give_back<K: Keyspace>(
    keys: &K,
    key: K::Key,
    request: &Request,
    granted: &Decided,
    granted_us: u64,
) -> Result<(), Error> {
    let Limit::Reserve(_, reserve) = &request.limit else {
        let ask = Ask::of(Quantity::GiveBack(granted.decision.verdict.taken()));
        return decide_and_write(keys, key, &Request { ask, ..*request }, false, Mode::Final)
            .map(|_| ());
    };
    if let Some(id) = &granted.id {
        let lease_end_us = lease_end_us(granted_us, reserve.lease_ms);
        release(keys.store(key, Mode::Final), id, Some(lease_end_us)).map_err(Into::into)?;
    }
    Ok(())
}

//! Decides a request on one key of a server, writes the result, and notes how a call ended.

use crate::error::Error;
use crate::policies::PolicyVerdict;
use engine::heavy::HeavyRow;
use engine::reservation::{lease_end_us, Id};
use engine::settle::{release_lease, SettleOutcome};
use engine::store::{Access, Store};
use engine::throttle::Stored;
use engine::{judge, Ask, Decision, Limit, Mode, Part, Place, Quantity, Request};
use std::slice;

/// The window of a key of these keys.
pub type WindowOf<'k, K> = <<K as Keyspace>::Store<'k> as Store>::Window;

/// What a key holds, and when it expires.
pub type Inspection<W> = (KeyState<W>, Option<u64>);

/// The keys of a server, and its counters of the calls on them.
pub trait Keyspace {
    /// Names a key at the time of a call.
    type Key: Copy;
    /// A key for one call.
    type Store<'k>: Store<Error: Into<Error>>
    where
        Self: 'k;

    /// Returns a key, to be opened with this access.
    fn store(&self, key: Self::Key, access: Access) -> Self::Store<'_>;

    /// Opens a key once, for reading. Returns what it holds, and when it expires, in Unix milliseconds: `None` if it never
    /// does, or if there is no key.
    ///
    /// # Errors
    ///
    /// [`Error::NotLimit`] if it is neither a bucket nor a window, and those of reading it.
    fn inspect(&self, key: Self::Key) -> Result<Inspection<WindowOf<'_, Self>>, Error>;

    /// Creates the id of a reservation whose caller names none.
    fn new_id(&self) -> Id;

    /// Counts reservations that were settled with this outcome.
    fn count_settled(&self, outcome: SettleOutcome, number: u64);

    /// Counts a call on the policy with this id.
    fn count_policy(&self, id: u64, verdict: PolicyVerdict);

    /// Notes that a call that takes was denied.
    fn note_denial(&self, key: Self::Key);

    /// Returns the keys with the most noted denials at this time, the most denied first, and at most `count` of them.
    fn most_denied(&self, now_us: u64, count: usize) -> Vec<HeavyRow>;

    /// Forgets the noted denials.
    fn forget_denials(&self);
}

/// What a key holds.
pub enum KeyState<W> {
    /// Nothing: there is no key.
    Missing,
    /// A bucket.
    Bucket(Stored),
    /// A window.
    Window(W),
}

/// Decides a request on its key, and writes the result. With `barred` a waiter comes first. The caller then notes how the
/// call ended; the key is closed by then.
///
/// # Errors
///
/// Those of [`judge`] and [`engine::Judged::plan`]. Nothing changes then.
#[inline]
pub fn decide<K: Keyspace>(
    keyspace: &K,
    store: K::Store<'_>,
    request: &Request,
    barred: bool,
    mode: Mode,
) -> Result<Decision, Error> {
    let mut part = Part::new(store, request, Place::default(), barred);
    let judged = judge(slice::from_mut(&mut part), mode).map_err(Into::into)?;
    let mut plan = judged.plan(|| keyspace.new_id()).map_err(Into::into)?;
    let decision = plan.decision();
    plan.write();
    Ok(decision)
}

/// Counts a call that is over for its policy, and notes a denial.
#[inline]
pub(crate) fn note<K: Keyspace>(keyspace: &K, key: K::Key, request: &Request, decision: &Decision) {
    if request.takes() {
        let verdict = match decision.allowed() {
            true => PolicyVerdict::Allowed,
            false if request.shadow => PolicyVerdict::ShadowDenied,
            false => PolicyVerdict::Denied,
        };
        if let Some(id) = request.policy {
            keyspace.count_policy(id, verdict);
        }
        if verdict == PolicyVerdict::Denied {
            keyspace.note_denial(key);
        }
    }
}

/// Gives back a grant that was made at `granted_us` to a client that disconnected before it was notified.
///
/// # Errors
///
/// The key's own. Nothing changes then.
pub fn give_back<K: Keyspace>(
    keyspace: &K,
    key: K::Key,
    request: &Request,
    granted: &Decision,
    granted_us: u64,
) -> Result<(), Error> {
    let mut store = keyspace.store(key, Access::Write);
    let Limit::Reserve(_, reserve) = &request.limit else {
        let ask = Ask::whole(Quantity::GiveBack(granted.verdict.taken()));
        let request = Request { ask, ..*request };
        return decide(keyspace, store, &request, false, Mode::Final).map(|_| ());
    };
    if let Some(id) = &granted.id {
        let lease_end_us = lease_end_us(granted_us, reserve.lease_ms);
        release_lease(&mut store.window(), id, lease_end_us).map_err(Into::into)?;
    }
    Ok(())
}

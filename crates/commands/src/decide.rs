//! Decides a request on one key of a server, writes the result, and notes how a call ended.

use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::policies::PolicyVerdict;
use crate::reply::TakeCall;
use engine::reservation::lease_end_us;
use engine::settle::{self, Settling};
use engine::store::{Access, EmptiedKey, Store};
use engine::{read, Ask, Decision, Limit, Mode, Part, Quantity, Request};
use std::slice;

/// Decides a request on its key, and writes the result if `accepts_write` returns true, which is only called if there is
/// something to write. With `barred` a waiter comes first. The caller then notes how the call ended; the key is closed by
/// then.
///
/// # Errors
///
/// [`Error::InUse`] if the write is not accepted, and those of [`read`], [`engine::Found::judge`] and
/// [`engine::Judged::plan`]. Nothing changes then.
#[inline]
pub fn decide<K: Keyspace>(
    keyspace: &K,
    store: K::Store<'_>,
    request: &Request,
    barred: bool,
    mode: Mode,
    accepts_write: impl FnOnce() -> bool,
) -> Result<Decision, Error> {
    let mut part = Part::new(store, request, 0, barred);
    let found = read(slice::from_mut(&mut part)).map_err(Into::into)?;
    let judged = found.judge().map_err(Into::into)?;
    let plan = judged.plan(mode, || keyspace.new_id()).map_err(Into::into)?;
    let decision = plan.decision();
    if plan.changes_something() && !accepts_write() {
        return Err(Error::InUse);
    }
    plan.write();
    Ok(decision)
}

/// Counts a call that is over for its policy, and notes a denial.
#[inline]
pub(crate) fn note<K: Keyspace>(keyspace: &K, key: K::Key, call: &TakeCall, decision: &Decision) {
    if call.request.takes() {
        let verdict = match decision.allowed() {
            true => PolicyVerdict::Allowed,
            false if call.request.shadow => PolicyVerdict::ShadowDenied,
            false => PolicyVerdict::Denied,
        };
        if let Some(id) = call.policy_id {
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
        return decide(keyspace, store, &request, false, Mode::Final, || true).map(|_| ());
    };
    if let Some(id) = &granted.id {
        let lease_end_us = lease_end_us(granted_us, reserve.lease_ms);
        let (mut window, ids) = (store.window(), [id.as_bytes()]);
        let release = Settling::ReleaseLease { lease_end_us };
        let plan = settle::plan(&store, &mut window, &ids, release).map_err(Into::into)?;
        if let Some(emptied) = plan.write(window).emptied {
            emptied.delete();
        }
    }
    Ok(())
}

//! The steps of a call over one limit or several: when it arrives (`crate::arrival`), and at each try of a call that waits
//! ([`crate::waiting`]).
//!
//! ```text
//! read    what does each key hold?
//! judge   is the call allowed?
//! await   if it is denied, does it wait, and for which limit?
//! plan    what becomes of each key, and what the reply says
//! write   the keys
//! end     counters, denials and turns, once the keys are closed
//! ```

use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::policies::PolicyVerdict;
use crate::waiting::{WaitingKeyspace, WeightedCaller};
use engine::line::Ticket;
use engine::reservation::lease_end_us;
use engine::settle::{self, Settling};
use engine::store::{Access, EmptiedKey, Store};
use engine::{
    denials, read, Ask, AwaitedLimit, Decision, Judged, Limit, Mode, Part, PartDecision, Plan,
    Quantity, Request, Standing,
};
use std::slice;

/// Takes the steps of a call up to the plan, and returns that and the limit for which the call waits: the one that
/// `find_awaited` returns if the call is denied. The caller then writes the plan, closes the keys, and notes the end of the
/// call if it does not wait.
///
/// # Errors
///
/// Those of [`read`], [`engine::Found::judge`] and [`Judged::plan`]. Nothing changes then.
#[inline(always)]
pub fn decide<'p, 'r, K: Keyspace, S: Store<Error: Into<Error>>>(
    keyspace: &K,
    parts: &'p mut [Part<'r, S>],
    mode: Mode,
    find_awaited: impl FnOnce(&mut Judged<S>) -> Result<Option<AwaitedLimit>, S::Error>,
) -> Result<(Plan<'p, 'r, S>, Option<AwaitedLimit>), Error> {
    let mut judged = read(parts).map_err(Into::into)?.judge().map_err(Into::into)?;
    let awaited = find_awaited(&mut judged).map_err(Into::into)?;
    // A call that waits is tried again, so its denial does not count yet.
    let mode = if awaited.is_some() { Mode::Try } else { mode };
    let plan = judged.plan(mode, || keyspace.new_id()).map_err(Into::into)?;
    Ok((plan, awaited))
}

/// Notes the end of a call: counts it for the policies of its limits, notes its denials, and counts its turns if it is
/// granted. A call with BLOCK has a caller, and if it has waited, a ticket.
#[inline(always)]
pub(crate) fn note_end<K: WaitingKeyspace>(
    keyspace: &K,
    keys: &[K::Key],
    policies: impl Iterator<Item = Option<u64>>,
    decisions: &[PartDecision],
    caller: Option<(WeightedCaller, Option<Ticket>)>,
) {
    let allowed = decisions.iter().all(PartDecision::allows);
    count_for_policies(keyspace, policies, decisions, allowed);
    match caller {
        _ if !allowed => note_denials(keyspace, keys, decisions),
        Some((caller, ticket)) => count_turns(keyspace, keys, decisions, caller, ticket),
        None => {}
    }
}

/// Counts a call for the policies of its limits: of an allowed call the choice of each group, a shadow that would have
/// denied, and all limits of a group that denies.
#[inline(always)]
fn count_for_policies<K: Keyspace>(
    keyspace: &K,
    policies: impl Iterator<Item = Option<u64>>,
    decisions: &[PartDecision],
    allowed: bool,
) {
    for (part, policy) in decisions.iter().zip(policies) {
        let Some(id) = policy.filter(|_| part.request.takes()) else { continue };
        let verdict = match part.standing {
            Standing::Choice if allowed => PolicyVerdict::Allowed,
            Standing::Shadow => PolicyVerdict::ShadowDenied,
            Standing::Denied => PolicyVerdict::Denied,
            Standing::Choice | Standing::Spare => continue,
        };
        keyspace.count_policy(id, verdict);
    }
}

/// Notes one denial for each group that denies, on the key of the limit that speaks for it in the reply. A group that denies
/// only because this denial was counted is not noted.
#[inline(always)]
fn note_denials<K: Keyspace>(keyspace: &K, keys: &[K::Key], decisions: &[PartDecision]) {
    let note = |part: &PartDecision| {
        let is_noted = part.standing == Standing::Denied && part.request.takes();
        if let Some(key) = keys.get(part.index).filter(|_| is_noted) {
            keyspace.note_denial(*key);
        }
    };
    match decisions {
        // The limit of most calls, which speaks for itself.
        [only] => note(only),
        several => denials(several).for_each(|(part, _)| note(part)),
    }
}

/// Counts the turn of a granted call in the lines of the keys from which it took, past those who wait there. In the line in
/// which it stands itself, ending its wait does that.
fn count_turns<K: WaitingKeyspace>(
    keyspace: &K,
    keys: &[K::Key],
    decisions: &[PartDecision],
    caller: WeightedCaller,
    ticket: Option<Ticket>,
) {
    for (&key, part) in keys.iter().zip(decisions).filter(|(_, part)| part.takes()) {
        if keyspace.read_lines(key, |lines, key| lines.waiting_on(key)) > 0 {
            let (name, turn) = (keyspace.name(key), caller.turn(part.request));
            keyspace.change_lines(|lines, _| lines.count_turn(name.borrowed(), &turn, ticket));
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
    let Limit::Reserve(_, reserve) = &request.limit else {
        let ask = Ask::whole(Quantity::GiveBack(granted.verdict.taken()));
        return decide_and_write(keyspace, key, &Request { ask, ..*request }, false, Mode::Final);
    };
    if let Some(id) = &granted.id {
        let mut store = keyspace.store(key, Access::Write);
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

/// Counts the denial of a call on a key (COUNTDENIED) that could not be written when its wait ended.
///
/// # Errors
///
/// The key's own. Nothing changes then.
pub fn count_denial<K: Keyspace>(
    keyspace: &K,
    key: K::Key,
    request: &Request,
) -> Result<(), Error> {
    decide_and_write(keyspace, key, request, true, Mode::CountDenial)
}

/// Decides a request on one key, after its call has ended.
fn decide_and_write<K: Keyspace>(
    keyspace: &K,
    key: K::Key,
    request: &Request,
    barred: bool,
    mode: Mode,
) -> Result<(), Error> {
    let mut part = Part::new(keyspace.store(key, mode.access()), request, 0, barred);
    let (plan, _) = decide(keyspace, slice::from_mut(&mut part), mode, |_| Ok(None))?;
    plan.write();
    Ok(())
}

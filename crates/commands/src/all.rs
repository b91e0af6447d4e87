//! RL.ALL and RL.ALL_RO: several limits, all or nothing.
//!
//! ```text
//! clause   THROTTLE <max_burst count period | @policy> [quantity] [LEAVE n] [BAN ms] [CHECK | SHADOW]
//!        | WINDOW <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [COUNTDENIED]
//!          [BAN ms] [CHECK | SHADOW]
//!        | ACQUIRE <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [LEASE ms]
//!          [COUNTLAPSED] [ID id] [CHECK | SHADOW]
//! ```

use crate::arguments::{is_else, Arguments, Clause, Family};
use crate::call::{command_us, CallResult, ServerCall, WaitQueue};
use crate::decide::Keyspace;
use crate::error::Error;
use crate::policies::PolicyVerdict;
use crate::reply::{self, ReplySink};
use engine::decide::{decide, Mode, Part, Place};
use engine::decision::TimeUnit;
use engine::groups::{denials, whole_reply, PartDecision};
use engine::store::Store;
use smallvec::SmallVec;

/// The maximum number of keys in a call.
const MAX_KEYS: u64 = 64;

/// Up to this many limits a call allocates nothing.
const FEW_KEYS: usize = 8;

/// The clauses of a call, one for each key.
type Clauses = SmallVec<[Clause; FEW_KEYS]>;

/// Executes a call of a command over several limits, which only looks in [`Mode::Look`]:
///
/// `RL.ALL numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
///
/// `RL.ALL_RO numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
pub(crate) fn all<'a, C: WaitQueue<'a>>(call: &C, mode: Mode) -> Result<CallResult, Error> {
    let keys = read_keys(call)?;
    // CROSSSLOT and TRYAGAIN come first, then errors of arguments, then those of what the keys hold.
    let clauses = read_clauses(call, &keys)?;
    if mode != Mode::Look {
        // Calls that wait come first.
        keys.keys.iter().for_each(|key| call.wake(*key));
    }
    let mut parts = SmallVec::<[Part<_>; FEW_KEYS]>::new();
    for (&key, clause) in keys.keys.iter().zip(&clauses) {
        if mode != Mode::Look && clause.request.id().is_some_and(|id| call.id_waits(key, id)) {
            return Err(Error::Duplicate);
        }
        parts.push(part(call, keys.keyspace.store(key, mode), key, clause, mode));
    }
    let plan = decide(&mut parts, mode, || keys.keyspace.new_id()).map_err(Into::into)?;
    let allowed = plan.allowed;
    keys.keyspace.count_dropped(plan.write());
    let parts: Parts = parts.iter().map(|part| *part.in_call()).collect();
    if mode != Mode::Look {
        note(&keys, &clauses, &parts, allowed);
    }
    reply_to_all(&call.sink(), &clauses, &parts, allowed)
}

/// The decisions about the clauses.
type Parts = SmallVec<[PartDecision; FEW_KEYS]>;

/// Returns a clause as a part of the call. Waiters on its key bar the clause, unless the call only looks.
// Inlined so that the large value is built in the caller's frame and not copied.
#[inline(always)]
fn part<'a, 'r, C: WaitQueue<'a>, S: Store>(
    call: &C,
    store: S,
    key: C::Key,
    clause: &'r Clause,
    mode: Mode,
) -> Part<'r, S> {
    let Clause { request, place } = clause;
    let barred = mode != Mode::Look && request.takes() && call.is_barred(key, request.leave());
    Part::with_place(store, request, Place { barred, ..*place })
}

/// Writes the reply: the integers of the clause that decides, its number, and a reply for each clause.
fn reply_to_all(
    sink: &impl ReplySink,
    clauses: &Clauses,
    parts: &Parts,
    allowed: bool,
) -> Result<CallResult, Error> {
    let reply = whole_reply(parts, allowed);
    let (clause, decides) =
        clauses.iter().zip(parts).nth(reply.deciding_part).ok_or(Error::internal())?;
    sink.array(7);
    reply::integers(
        sink,
        &decides.decision,
        clause.request.unit,
        reply.limited,
        reply.retry_after_us,
    );
    sink.unsigned(u64::try_from(reply.deciding_part).unwrap_or(u64::MAX).saturating_add(1));
    sink.array(parts.len());
    for (clause, part) in clauses.iter().zip(parts) {
        let _ = reply::write(sink, &clause.request, &part.decision);
    }
    Ok(CallResult::from_allowed(allowed))
}

/// Counts the clauses for their policies: the choice of each group, and all clauses of a group that denies the call. Notes
/// one denial for each such group, on the key of the clause that stands for it in the reply.
fn note<K: Keyspace>(keys: &CallKeys<K>, clauses: &Clauses, parts: &Parts, allowed: bool) {
    for (clause, part) in clauses.iter().zip(parts) {
        let verdict = match (part.is_choice, part.allowed) {
            (true, true) if allowed => PolicyVerdict::Allowed,
            (true, false) => PolicyVerdict::ShadowDenied,
            (false, _) if !part.group_allowed => PolicyVerdict::Denied,
            _ => continue,
        };
        if let Some(id) = clause.request.policy.filter(|_| clause.request.takes()) {
            keys.keyspace.count_policy(id, verdict);
        }
    }
    if allowed {
        return;
    }
    for (at, ..) in denials(parts).filter(|(_, part, _)| !part.group_allowed) {
        if clauses.get(at).is_some_and(|clause| clause.request.takes()) {
            if let Some(key) = keys.keys.get(at) {
                keys.keyspace.note_denial(*key);
            }
        }
    }
}

/// The keys of a call, which are all different.
struct CallKeys<K: Keyspace> {
    keyspace: K,
    keys: SmallVec<[K::Key; FEW_KEYS]>,
    /// The position of the first word after the keys.
    end: usize,
}

/// Reads the names of the keys.
fn read_keys<'a, C: ServerCall<'a>>(call: &C) -> Result<CallKeys<C::Keys>, Error> {
    // Before 7.0 the server does not know the arity.
    if call.len() < 3 {
        return Err(Error::Arity);
    }
    let mut arguments = Arguments::from(call, 1);
    let number = arguments.unsigned(1, Error::NumKeys)?;
    if number > MAX_KEYS {
        return Err(Error::NumKeys);
    }
    // The same time for all keys, even on a server that does not freeze it during a command.
    let now_us = command_us(call)?;
    let words = 2..usize::try_from(number).unwrap_or(usize::MAX).saturating_add(2);
    for at in words.clone() {
        let word = call.word(at).ok_or(Error::Clauses)?;
        if (2..at).any(|other| call.word(other) == Some(word)) {
            return Err(Error::KeyTwice);
        }
    }
    let keyspace = call.keys_of_several(words.clone())?;
    let end = words.end;
    Ok(CallKeys { keyspace, keys: words.filter_map(|at| call.key(at, now_us)).collect(), end })
}

/// Reads the clauses, one for each key.
fn read_clauses<'a, C: ServerCall<'a>>(
    call: &C,
    keys: &CallKeys<C::Keys>,
) -> Result<Clauses, Error> {
    let environment = call.environment();
    let mut arguments = Arguments::from(call, keys.end);
    let mut clauses = Clauses::new();
    let mut unit = TimeUnit::Seconds;
    let mut group: usize = 0;
    loop {
        if arguments.take_last(b"MS") {
            unit = TimeUnit::Milliseconds;
        }
        let Some(mut word) = arguments.next_word() else { break };
        match (is_else(word), clauses.is_empty()) {
            (true, true) => return Err(Error::Else),
            (true, false) => {
                let next = arguments.next_word().filter(|next| Family::parse(next).is_some());
                word = next.ok_or(Error::Else)?;
            }
            (false, true) => {}
            (false, false) => group = group.saturating_add(1),
        }
        let family = Family::parse(word).ok_or(Error::NoClause)?;
        clauses.push(arguments.clause(&environment, family, group)?);
        // The rest is not read after one clause too many, because it may be long.
        if clauses.len() > keys.keys.len() {
            return Err(Error::Clauses);
        }
    }
    if clauses.len() != keys.keys.len() {
        return Err(Error::Clauses);
    }
    clauses.iter_mut().for_each(|clause| clause.request.unit = unit);
    Ok(clauses)
}

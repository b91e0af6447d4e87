//! RL.ALL and RL.ALL_RO: several limits, all or nothing.
//!
//! ```text
//! clause   THROTTLE <max_burst count period | @policy> [quantity] [LEAVE n] [BAN ms] [CHECK | SHADOW]
//!        | WINDOW <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [COUNTDENIED]
//!          [BAN ms] [CHECK | SHADOW]
//!        | ACQUIRE <limit period | @policy> [quantity] [BUCKETS n | FIXED [FROM anchor] [TZ zone]] [LEAVE n] [LEASE ms] [ID id]
//!          [CHECK | SHADOW]
//! ```

use super::arguments::{is_else, Arguments, Clause, Family};
use super::{now_us, reply};
use crate::attempt::{attempt_all, Part, PartReply};
use crate::blocking;
use crate::error::Error;
use crate::observe;
use crate::options::Known;
use crate::policies::PolicyVerdict;
use crate::redis::call::Call;
use crate::redis::slots::{spread, Spread};
use crate::state::KeyContext;
use crate::stats::CallResult;
use engine::all::{speakers, together, PartDecision};
use engine::decision::TimeUnit;
use engine::judge::Mode;

/// The most keys of a call.
const MOST_KEYS: u64 = 64;

/// `RL.ALL numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
pub fn all(call: &Call, _known: Known) -> Result<CallResult, Error> {
    run(call, Mode::Final)
}

/// `RL.ALL_RO numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
pub fn all_ro(call: &Call, _known: Known) -> Result<CallResult, Error> {
    run(call, Mode::Look)
}

fn run(call: &Call, mode: Mode) -> Result<CallResult, Error> {
    let (key_ctxs, first_clause) = keys(call)?;
    // All errors of arguments come before those of the keys.
    let (mut clauses, unit) = clauses(call, key_ctxs.len(), first_clause)?;
    clauses.iter_mut().for_each(|clause| clause.request.unit = unit);
    if mode != Mode::Look {
        // Calls that wait come first.
        key_ctxs.iter().for_each(|key_ctx| blocking::wake_key(*key_ctx));
    }
    let parts: Vec<_> = key_ctxs
        .into_iter()
        .zip(&clauses)
        .map(|(key_ctx, clause)| part(key_ctx, clause, mode))
        .collect();
    let (allowed, done) = attempt_all(&parts, mode)?;
    let shares: Vec<_> = parts.iter().zip(&done).map(|(part, done)| part.share(done)).collect();
    if mode != Mode::Look {
        note(&parts, &done, &shares, allowed);
    }
    let whole = together(&shares, allowed);
    let decides = shares.get(whole.decides).ok_or(Error::internal())?;
    let ctx = call.context();
    ctx.reply_array(7);
    reply::integers(ctx, &decides.decision, unit, whole.limited, whole.retry_after_us);
    ctx.reply_integer(u64::try_from(whole.decides).unwrap_or(u64::MAX).saturating_add(1));
    ctx.reply_array(done.len());
    for done in &done {
        let _ = reply::answer(ctx, &done.answer);
    }
    Ok(CallResult::of(allowed))
}

/// A clause on its key, and what those who wait on the key mean for it: nothing where it only looks.
fn part<'c>(key_ctx: KeyContext<'c>, clause: &'c Clause, mode: Mode) -> Part<'c> {
    let Clause { request, check, shadow, group } = clause;
    let writes = mode != Mode::Look;
    Part {
        key_ctx,
        request,
        check: *check,
        shadow: *shadow,
        group: *group,
        barred: writes && request.takes() && blocking::is_barred(key_ctx, request.leave()),
        id_waits: writes && request.id().is_some_and(|id| blocking::is_waiting(key_ctx, id)),
    }
}

/// Notes how the parts ended: policies count choices, and every clause of a group that denied; of such a group one denial
/// is noted, on the key of the clause that speaks for it.
fn note(parts: &[Part], done: &[PartReply], shares: &[PartDecision], call_allowed: bool) {
    let has_choice = |group: usize| {
        done.iter().zip(shares).any(|(done, share)| done.choice && share.group == group)
    };
    for ((part, done), share) in parts.iter().zip(done).zip(shares) {
        let request = part.request;
        match (done.choice, done.allowed) {
            (true, true) if call_allowed => observe::count(request, PolicyVerdict::Allowed),
            (true, false) => observe::count(request, PolicyVerdict::ShadowDenied),
            (false, _) if !has_choice(share.group) => {
                observe::count(request, PolicyVerdict::Denied)
            }
            _ => {}
        }
    }
    for (at, ..) in speakers(shares).filter(|(_, share, _)| !has_choice(share.group)) {
        if let Some(part) = parts.get(at).filter(|part| part.request.takes()) {
            observe::note_denial(part.key_ctx);
        }
    }
}

/// The keys of a call, and where its clauses begin.
fn keys<'c>(call: &Call<'c>) -> Result<(Vec<KeyContext<'c>>, usize), Error> {
    // Before 7.0 the server does not know the arity.
    if call.len() < 3 {
        return Err(Error::Arity);
    }
    let mut arguments = Arguments::from(call, 1);
    let number = arguments.unsigned(1, Error::NumKeys)?;
    if number > MOST_KEYS {
        return Err(Error::NumKeys);
    }
    // One instant for all, also where the server does not freeze the time of a command.
    let (ctx, now_us) = (call.context(), now_us()?);
    let mut key_ctxs: Vec<KeyContext> = Vec::new();
    let first_clause = usize::try_from(number).unwrap_or(usize::MAX).saturating_add(2);
    for at in 2..first_clause {
        let name = call.key_at(at).ok_or(Error::Clauses)?;
        if key_ctxs.iter().any(|other| other.name.as_bytes() == name.as_bytes()) {
            return Err(Error::KeyTwice);
        }
        key_ctxs.push(KeyContext { ctx, name, now_us });
    }
    match spread(call, 2..first_clause) {
        Spread::None => Ok((key_ctxs, first_clause)),
        Spread::Slots => Err(Error::CrossSlot),
        Spread::Nodes => Err(Error::TryAgain),
    }
}

/// The clauses of a call, one for each of `keys` keys, and the unit of its times.
fn clauses(call: &Call, keys: usize, first: usize) -> Result<(Vec<Clause>, TimeUnit), Error> {
    let mut arguments = Arguments::from(call, first);
    let mut clauses = Vec::with_capacity(keys);
    let mut unit = TimeUnit::Seconds;
    let mut group: usize = 0;
    loop {
        if arguments.take_last(b"MS") {
            unit = TimeUnit::Milliseconds;
        }
        let Some(mut word) = arguments.next() else { break };
        match (is_else(word), clauses.is_empty()) {
            (true, true) => return Err(Error::Else),
            (true, false) => {
                let next = arguments.next().filter(|next| Family::named(next).is_some());
                word = next.ok_or(Error::Else)?;
            }
            (false, true) => {}
            (false, false) => group = group.saturating_add(1),
        }
        let family = Family::named(word).ok_or(Error::NoClause)?;
        let clause = arguments.clause(family, group)?;
        // What follows one too many is not read, however much it is.
        if clauses.len() >= keys {
            return Err(Error::Clauses);
        }
        clauses.push(clause);
    }
    if clauses.len() != keys {
        return Err(Error::Clauses);
    }
    Ok((clauses, unit))
}

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
use crate::call::{command_us, ServerCall};
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::options::{OptionSet, Options};
use crate::reply::{self, CallResult};
use crate::waiting::{is_barred, note_all, pass, place_in_line, WaitingCall, WaitingKeyspace};
use engine::{read, Mode, Part, PartDecision};
use smallvec::SmallVec;

/// The maximum number of keys in a call.
const MAX_KEYS: u64 = 64;

/// Up to this many limits a call allocates nothing.
const FEW_KEYS: usize = 8;

type Clauses = SmallVec<[Clause; FEW_KEYS]>;

/// Executes a call of a command over several limits, which only looks in [`Mode::Look`]:
///
/// `RL.ALL numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
///
/// `RL.ALL_RO numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
pub(crate) fn all<'a, C: ServerCall<'a>>(
    call: &C,
    accepted: OptionSet,
    mode: Mode,
) -> Result<CallResult, Error> {
    let call_keys = read_keys(call)?;
    // Errors of numkeys and the keys come first, CROSSSLOT and TRYAGAIN last among them; then those of the clauses and
    // options, and then those of what the keys hold.
    let mut options = Options::default();
    let clauses = read_clauses(call, &call_keys, accepted, &mut options)?;
    let CallKeys { keyspace, keys, now_us, .. } = &call_keys;
    let block = options.block().filter(|_| call.may_block());
    let looks = mode == Mode::Look;
    if !looks {
        // Calls that wait come first.
        keys.iter().for_each(|key| keyspace.wake(*key, None));
    }
    let mut parts = SmallVec::<[Part<_>; FEW_KEYS]>::new();
    for (&key, Clause { call, group, .. }) in keys.iter().zip(&clauses) {
        let barred = is_barred(keyspace, key, &call.request, mode, block.as_ref())?;
        let store = keyspace.store(key, mode.access());
        parts.push(Part::new(store, &call.request, *group, barred));
    }
    let mut judged = read(&mut parts).map_err(Into::into)?.judge().map_err(Into::into)?;
    let last_us = block.map(|block| block.last_us(*now_us));
    let place = place_in_line(&mut judged, last_us).map_err(Into::into)?;
    // A call that waits is tried again, so its denial does not count yet.
    let denial = if place.is_some() { Mode::Try } else { mode };
    let plan = judged.plan(denial, || keyspace.new_id()).map_err(Into::into)?;
    let decisions: SmallVec<[PartDecision; FEW_KEYS]> = plan.decisions().collect();
    plan.write();
    // Closes the keys before others are notified of a denial.
    parts.clear();
    if let (Some(place), Some(block)) = (place, &block) {
        let limits = keys.iter().zip(&clauses);
        let limits = limits.map(|(key, clause)| (keyspace.name(*key), clause.call));
        let waiting = WaitingCall::new(limits, Some(options.unit()), block);
        let key = *keys.get(place.at).ok_or(Error::internal())?;
        return call.join(key, waiting, block.ms, place).map(|()| CallResult::Later);
    }
    if !looks {
        note_all(keyspace, keys, clauses.iter().map(|clause| clause.call.policy), &decisions);
    }
    if let Some(block) = block.filter(|_| decisions.iter().all(PartDecision::allows)) {
        let taken = keys.iter().zip(&decisions).filter(|(_, part)| part.takes());
        taken.for_each(|(key, part)| pass(keyspace, *key, part.request, &block));
    }
    reply::write_all(&call.sink(), options.unit(), &decisions)
}

/// The keys of a call, which are all different.
struct CallKeys<K: Keyspace> {
    keyspace: K,
    keys: SmallVec<[K::Key; FEW_KEYS]>,
    /// The position of the first word after the keys.
    end: usize,
    /// The time of the call, in Unix microseconds.
    now_us: u64,
}

/// Reads the names of the keys.
fn read_keys<'a, C: ServerCall<'a>>(call: &C) -> Result<CallKeys<C::Keyspace>, Error> {
    // Before 7.0 the server does not know the arity.
    if call.len() < 3 {
        return Err(Error::Arity);
    }
    let mut arguments = Arguments::from(call, 1);
    let number = arguments.unsigned(1, Error::InvalidNumKeys)?;
    if number > MAX_KEYS {
        return Err(Error::InvalidNumKeys);
    }
    // The same time for all keys, even on a server that does not freeze it during a command.
    let now_us = command_us(call)?;
    let words = 2..usize::try_from(number).unwrap_or(usize::MAX).saturating_add(2);
    for at in words.clone() {
        let word = call.word(at).ok_or(Error::WrongClauseCount)?;
        if (2..at).any(|other| call.word(other) == Some(word)) {
            return Err(Error::KeyTwice);
        }
    }
    let keyspace = call.keyspace_for_all(words.clone())?;
    let end = words.end;
    let keys = words.filter_map(|at| call.key(at, now_us)).collect();
    Ok(CallKeys { keyspace, keys, end, now_us })
}

/// Reads the clauses, one for each key, and adds the options that follow them, which must be among `accepted`, to `options`.
fn read_clauses<'a, C: ServerCall<'a>>(
    call: &C,
    call_keys: &CallKeys<C::Keyspace>,
    accepted: OptionSet,
    options: &mut Options<'a>,
) -> Result<Clauses, Error> {
    let environment = call.environment();
    let mut arguments = Arguments::clauses_from(call, call_keys.end);
    let mut clauses = Clauses::new();
    let mut group: usize = 0;
    while let Some(mut word) = arguments.next_word_of_clauses() {
        match (is_else(word), clauses.is_empty()) {
            (true, true) => return Err(Error::MisplacedElse),
            (true, false) => {
                let next = arguments.next_word().filter(|next| Family::parse(next).is_some());
                word = next.ok_or(Error::MisplacedElse)?;
            }
            (false, true) => {}
            (false, false) => group = group.saturating_add(1),
        }
        let family = Family::parse(word).ok_or(Error::NoClause)?;
        clauses.push(arguments.clause(&environment, family, group)?);
        // The rest is not read after one clause too many, because it may be long.
        if clauses.len() > call_keys.keys.len() {
            return Err(Error::WrongClauseCount);
        }
    }
    if clauses.is_empty() && arguments.remaining() > 0 {
        return Err(Error::NoClause);
    }
    arguments.options_of_all(&environment, options, accepted)?;
    if options.has(OptionSet::BLOCK) {
        do_not_ban(&mut clauses)?;
    }
    match clauses.len() == call_keys.keys.len() {
        true => Ok(clauses),
        false => Err(Error::WrongClauseCount),
    }
}

/// Refuses what a call that waits must not have, BAN and ELSE, and drops the bans of policies.
fn do_not_ban(clauses: &mut Clauses) -> Result<(), Error> {
    for (index, clause) in clauses.iter_mut().enumerate() {
        if clause.group != index {
            return Err(Error::NotTogether("ELSE", "BLOCK"));
        }
        if clause.has_ban {
            return Err(Error::NotTogether("BAN", "BLOCK"));
        }
        clause.call.request.ban_ms = None;
    }
    Ok(())
}

//! RL.ALL and RL.ALL_RO: several limits, all or nothing.

use crate::arguments::{is_else, Arguments, Clause, LimitKind, NamedClause};
use crate::arrival::Arrival;
use crate::call::{checked_now_us, ServerCall};
use crate::definitions::parse_field;
use crate::environment::Environment;
use crate::error::{CallError, Error};
use crate::keyspace::Keyspace;
use crate::options::{spells, OptionSet, Options};
use crate::policies::NamedLimit;
use crate::reply::{write_call, CallResult, ReplyForm};
use crate::waiting::WaitingKeyspace;
use engine::{Mode, Part, PartDecision};
use smallvec::SmallVec;

/// The maximum number of clauses in a call.
const MAX_CLAUSES: usize = 64;

/// Up to this many limits a call allocates nothing.
const FEW_LIMITS: usize = 8;

type Clauses = SmallVec<[Clause; FEW_LIMITS]>;

/// Clauses whose limits are still to be looked up, each with its position among all clauses.
type NamedClauses<'a> = SmallVec<[(usize, NamedClause<'a>); FEW_LIMITS]>;

/// Executes a call of a command over several limits, which only looks in [`Mode::Look`].
pub(crate) fn all<'a, C: ServerCall<'a>>(
    call: &C,
    accepted: OptionSet,
    mode: Mode,
) -> Result<CallResult, CallError> {
    let mut call_keys = read_keys(call)?;
    // Errors of numkeys and the keys come first, CROSSSLOT and TRYAGAIN last among them; then those of the clauses and
    // options, those of the hash of limits, and then those of what the other keys hold.
    let (mut clauses, mut options) = (Clauses::new(), Options::default());
    read_clauses(call, &mut call_keys, accepted, &mut clauses, &mut options)?;
    let CallKeys { keyspace, keys, now_us, .. } = &call_keys;
    let block = options.block().filter(|_| call.may_block());
    // Let waiters go first.
    if mode != Mode::Look {
        keys.iter().for_each(|key| keyspace.wake(*key, None));
    }
    // Read, judge, plan and write.
    let arrival = Arrival { keyspace, mode, block, now_us: *now_us };
    let mut decisions = SmallVec::<[PartDecision; FEW_LIMITS]>::new();
    // The block closes the keys.
    let awaited = {
        let mut parts = SmallVec::<[Part<_>; FEW_LIMITS]>::new();
        let with_keys = || keys.iter().zip(&clauses);
        let mut barred = SmallVec::<[bool; FEW_LIMITS]>::new();
        for (key, clause) in with_keys() {
            barred.push(arrival.is_barred(*key, &clause.asked.request)?);
        }
        // Pushed one by one, the large parts would be copied.
        parts.extend(with_keys().zip(barred).map(|((&key, clause), barred)| {
            let store = keyspace.store(key, mode.access());
            Part::new(store, &clause.asked.request, clause.group, barred)
        }));
        let (plan, awaited) = arrival.decide(&mut parts)?;
        decisions.extend(plan.decisions());
        plan.write();
        awaited
    };
    // Wait or reply.
    let form = ReplyForm::All(options.unit(), mode);
    let policies = clauses.iter().map(|clause| clause.asked.policy_id);
    if arrival.join_or_end(call, keys, policies, form, &decisions, awaited)? {
        return Ok(CallResult::Waits);
    }
    Ok(write_call(&call.sink(), form, &decisions)?)
}

/// The keys of a call, which are all different.
struct CallKeys<K: Keyspace> {
    keyspace: K,
    /// The keys of the clauses. Until the options are read, also the hash of limits, which is the last key.
    keys: SmallVec<[K::Key; FEW_LIMITS + 1]>,
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
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    let words = 2..number.saturating_add(2);
    let has_one_more = || number == MAX_CLAUSES + 1 && mention_limits(call, words.end);
    if number > MAX_CLAUSES && !has_one_more() {
        return Err(Error::InvalidNumKeys);
    }
    // The same time for all keys, even on a server that does not freeze it during a command.
    let now_us = checked_now_us(call)?;
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

/// Returns whether a word from `at` on is LIMITS. It may also be a value, such as an id.
fn mention_limits<'a, C: ServerCall<'a>>(call: &C, at: usize) -> bool {
    let mut words = (at..call.len()).filter_map(|at| call.word(at));
    words.any(|word| spells(word, b"LIMITS"))
}

/// Reads the clauses, one for each key, into `clauses`, and the options that follow them, which must be among `accepted`,
/// into `options`. With LIMITS, takes the hash of limits from the keys. The caller creates both, because a copy of them
/// would cost as much as reading a clause.
fn read_clauses<'a, C: ServerCall<'a>>(
    call: &C,
    call_keys: &mut CallKeys<C::Keyspace>,
    accepted: OptionSet,
    clauses: &mut Clauses,
    options: &mut Options<'a>,
) -> Result<(), CallError> {
    let environment = call.environment();
    let mut arguments = Arguments::clauses_from(call, call_keys.end);
    // With LIMITS, names are looked up once all arguments are known to be right.
    let mut may_have_limits = None;
    let mut named = NamedClauses::new();
    let (mut number, mut group): (usize, usize) = (0, 0);
    while let Some(mut word) = arguments.next_word_of_clauses() {
        match (is_else(word), number == 0) {
            (true, true) => return Err(Error::MisplacedElse.into()),
            (true, false) => {
                let next = arguments.next_word().filter(|next| LimitKind::parse(next).is_some());
                word = next.ok_or(Error::MisplacedElse)?;
            }
            (false, true) => {}
            (false, false) => group = group.saturating_add(1),
        }
        let kind = LimitKind::parse(word).ok_or(Error::NoClause)?;
        let is_looked_up_later = arguments.has_limit_name()
            && *may_have_limits.get_or_insert_with(|| mention_limits(call, call_keys.end));
        match is_looked_up_later {
            true => named.push((number, arguments.named_clause(&environment, kind, group)?)),
            false => {
                arguments.clause(&environment, kind, group, |clause| clauses.push(clause))?;
            }
        }
        number = number.saturating_add(1);
        // The rest is not read after one clause too many, because it may be long.
        if number > call_keys.keys.len() {
            return Err(Error::WrongClauseCount.into());
        }
    }
    if number == 0 && arguments.remaining() > 0 {
        return Err(Error::NoClause.into());
    }
    arguments.options_of_all(&environment, options, accepted)?;
    let waits = options.has(OptionSet::BLOCK);
    if waits && number != group.saturating_add(1) {
        return Err(Error::NotTogether("ELSE", "BLOCK").into());
    }
    if waits && clauses.iter().any(|clause| clause.has_ban) {
        return Err(Error::NotTogether("BAN", "BLOCK").into());
    }
    let (hash_key, wrong_count) = match options.has(OptionSet::LIMITS) {
        true => (call_keys.keys.pop(), Error::WrongClauseCountWithLimits),
        false => (None, Error::WrongClauseCount),
    };
    if number != call_keys.keys.len() {
        return Err(wrong_count.into());
    }
    if number > MAX_CLAUSES {
        return Err(Error::InvalidNumKeys.into());
    }
    if !named.is_empty() {
        let hash = hash_key.map(|key| call.open_hash(key)).transpose()?;
        for (at, clause) in &named {
            let limit = find_limit(call, hash.as_ref(), clause.name)?;
            clauses.insert(*at, clause.with_limit(&environment, &limit)?);
        }
    }
    if waits {
        // Only named limits bring a ban.
        clauses.iter_mut().for_each(|clause| clause.asked.request.ban_ms = None);
    }
    Ok(())
}

/// Returns the limit with this name: what the field of the hash of limits says, or else the policy.
fn find_limit<'a, C: ServerCall<'a>>(
    call: &C,
    hash: Option<&C::Hash>,
    name: &[u8],
) -> Result<NamedLimit, CallError> {
    let environment = &call.environment();
    let Some(value) = hash.and_then(|hash| call.field(hash, name)) else {
        return Ok(environment.policy_limit(name)?);
    };
    let defined = parse_field(value.as_ref(), environment)
        .map_err(|error| CallError::InvalidField(Box::new((name.into(), error))))?;
    Ok(NamedLimit { defined, policy_id: environment.policy(name).map(|policy| policy.id) })
}

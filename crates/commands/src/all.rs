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
use crate::policies::PolicyVerdict;
use crate::reply::{self, CallResult, ReplySink, TimeUnit};
use crate::take::is_barred;
use crate::waiting::WaitingKeyspace;
use engine::{combine, denials, read, Mode, Part, PartDecision, Standing};
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
    let looks = mode == Mode::Look;
    if !looks {
        // Calls that wait come first.
        call_keys.keys.iter().for_each(|key| call_keys.keyspace.wake(*key, None));
    }
    let mut parts = SmallVec::<[Part<_>; FEW_KEYS]>::new();
    for (&key, Clause { call, group }) in call_keys.keys.iter().zip(&clauses) {
        let barred = is_barred(&call_keys.keyspace, key, &call.request, mode)?;
        let store = call_keys.keyspace.store(key, mode.access());
        parts.push(Part::new(store, &call.request, *group, barred));
    }
    let judged = read(&mut parts).map_err(Into::into)?.judge().map_err(Into::into)?;
    let plan = judged.plan(mode, || call_keys.keyspace.new_id()).map_err(Into::into)?;
    let decisions: Decisions = plan.decisions().collect();
    plan.write();
    // Closes the keys before others are notified of a denial.
    parts.clear();
    if !looks {
        note(&call_keys, &clauses, &decisions);
    }
    reply_to_all(&call.sink(), options.unit(), &decisions)
}

/// The decisions about the clauses.
type Decisions<'r> = SmallVec<[PartDecision<'r>; FEW_KEYS]>;

/// Writes the reply: the integers of the clause that decides, its number, and a reply for each clause.
fn reply_to_all(
    sink: &impl ReplySink,
    unit: TimeUnit,
    decisions: &Decisions,
) -> Result<CallResult, Error> {
    let (verdict, deciding) = combine(decisions).ok_or(Error::internal())?;
    sink.array(7);
    reply::integers(sink, verdict, &deciding.decision, unit);
    sink.unsigned(u64::try_from(deciding.index).unwrap_or(u64::MAX).saturating_add(1));
    sink.array(decisions.len());
    for part in decisions {
        reply::write_part(sink, part.request, unit, part.decision.verdict, &part.decision);
    }
    Ok(CallResult::from_allowed(verdict.allowed()))
}

/// Counts the call for the policies of its clauses: of an allowed call the choice of each group, a shadow that would have
/// denied, and all clauses of a group that denies. Notes one denial for each such group, on the key of the clause that
/// speaks for it in the reply.
fn note<K: Keyspace>(call_keys: &CallKeys<K>, clauses: &Clauses, decisions: &Decisions) {
    let allowed = decisions.iter().all(|part| part.standing != Standing::Denied);
    for (part, clause) in decisions.iter().zip(clauses).filter(|(part, _)| part.request.takes()) {
        let verdict = match part.standing {
            Standing::Choice if allowed => PolicyVerdict::Allowed,
            Standing::Shadow => PolicyVerdict::ShadowDenied,
            Standing::Denied => PolicyVerdict::Denied,
            Standing::Choice | Standing::Spare => continue,
        };
        if let Some(id) = clause.call.policy {
            call_keys.keyspace.count_policy(id, verdict);
        }
    }
    // A group that denies only because this denial was counted is not noted.
    let noted = denials(decisions)
        .filter(|(part, _)| part.standing == Standing::Denied && part.request.takes());
    for key in noted.filter_map(|(part, _)| call_keys.keys.get(part.index)) {
        call_keys.keyspace.note_denial(*key);
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
    Ok(CallKeys { keyspace, keys: words.filter_map(|at| call.key(at, now_us)).collect(), end })
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
    match clauses.len() == call_keys.keys.len() {
        true => Ok(clauses),
        false => Err(Error::WrongClauseCount),
    }
}

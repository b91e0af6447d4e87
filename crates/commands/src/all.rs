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
use crate::call::{command_us, CallResult, ServerCall};
use crate::error::Error;
use crate::notes::Notes;
use crate::policies::PolicyVerdict;
use crate::reply::{self, Reply, ReplySink};
use engine::all::{denials, whole_reply};
use engine::attempt::{attempt_all, Part, WholeAttempt, FEW_PARTS};
use engine::decision::TimeUnit;
use engine::judge::Mode;
use engine::short::ShortList;
use std::ops::Range;

/// The most keys of a call.
const MAX_KEYS: u64 = 64;

/// The clauses of a call. Its short form allocates nothing.
type Clauses = ShortList<Option<Clause>, FEW_PARTS>;

/// `RL.ALL numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
pub(crate) fn all<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    run(call, Mode::Final)
}

/// `RL.ALL_RO numkeys key [key ...] clause [[ELSE] clause ...] [MS]`
pub(crate) fn all_ro<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    run(call, Mode::Look)
}

fn run<'a, C: ServerCall<'a>>(call: &C, mode: Mode) -> Result<CallResult, Error> {
    let keys = keys(call)?;
    // All errors of arguments come before those of the keys.
    let mut clauses = Clauses::new();
    let unit = read_clauses(call, &keys, &mut clauses)?;
    if mode != Mode::Look {
        // Calls that wait come first.
        keys.each(call).for_each(|key| call.wake(key));
    }
    let parts = keys.each(call).zip(clauses.iter().flatten());
    let parts = parts.map(|(key, clause)| part(call, key, clause, mode));
    let told = |whole: WholeAttempt<'_>| {
        call.count_dropped(whole.dropped);
        if mode != Mode::Look {
            note(call, &keys, &clauses, &whole);
        }
        reply_to_all(&call.sink(), &clauses, unit, &whole)
    };
    attempt_all(parts, mode, || call.new_id(), told).map_err(Into::into)?
}

/// Replies the integers of the clause that decides, its number, and what each clause answers.
fn reply_to_all(
    sink: &impl ReplySink,
    clauses: &Clauses,
    unit: TimeUnit,
    whole: &WholeAttempt<'_>,
) -> Result<CallResult, Error> {
    let reply = whole_reply(whole.parts, whole.allowed);
    let decides = whole.parts.get(reply.decides).ok_or(Error::internal())?;
    sink.array(7);
    reply::integers(sink, &decides.decision, unit, reply.limited, reply.retry_after_us);
    sink.unsigned(u64::try_from(reply.decides).unwrap_or(u64::MAX).saturating_add(1));
    sink.array(whole.parts.len());
    for (clause, part) in clauses.iter().flatten().zip(whole.parts.iter()) {
        let _ = reply::write(sink, &Reply::to(&clause.request, part.decision, part.id, None));
    }
    Ok(CallResult::of(whole.allowed))
}

/// A clause on its key, and what those who wait on the key mean for it: nothing where it only looks.
fn part<'a, 'r, C: ServerCall<'a>>(
    call: &C,
    key: C::Key,
    clause: &'r Clause,
    mode: Mode,
) -> Part<'r, C::Store> {
    let Clause { request, check, shadow, group } = clause;
    let writes = mode != Mode::Look;
    Part {
        store: call.store_of_several(key, mode),
        request,
        check: *check,
        shadow: *shadow,
        group: *group,
        barred: writes && request.takes() && call.is_barred(key, request.leave()),
        id_waits: writes && request.id().is_some_and(|id| call.id_waits(key, id)),
    }
}

/// Notes how the clauses ended: policies count choices, and every clause of a group that denied; of such a group one denial
/// is noted, on the key of the clause that speaks for it.
fn note<'a, C: ServerCall<'a>>(
    call: &C,
    keys: &CallKeys,
    clauses: &Clauses,
    whole: &WholeAttempt<'_>,
) {
    let notes = call.notes();
    for (clause, part) in clauses.iter().flatten().zip(whole.parts.iter()) {
        let ended = match (part.choice, part.allowed) {
            (true, true) if whole.allowed => PolicyVerdict::Allowed,
            (true, false) => PolicyVerdict::ShadowDenied,
            (false, _) if !whole.choices.has_choice(part.group) => PolicyVerdict::Denied,
            _ => continue,
        };
        notes.count(&clause.request, ended);
    }
    if whole.allowed {
        return;
    }
    let denying = |group| !whole.choices.has_choice(group);
    for (at, ..) in denials(whole.parts).filter(|(_, part, _)| denying(part.group)) {
        let takes = |clause: &Clause| clause.request.takes();
        if clauses.get(at).and_then(Option::as_ref).is_some_and(takes) {
            if let Some(key) = keys.each(call).nth(at) {
                notes.note_denial(key);
            }
        }
    }
}

/// The keys of a call, which are all different.
struct CallKeys {
    /// Which of its words they are.
    words: Range<usize>,
    /// One instant for all, also where the server does not freeze the time of a command.
    now_us: u64,
}

impl CallKeys {
    fn each<'s, 'a, C: ServerCall<'a>>(
        &'s self,
        call: &'s C,
    ) -> impl Iterator<Item = C::Key> + use<'s, 'a, C> {
        self.words.clone().filter_map(|at| call.key(at, self.now_us))
    }
}

/// The keys of a call.
fn keys<'a, C: ServerCall<'a>>(call: &C) -> Result<CallKeys, Error> {
    // Before 7.0 the server does not know the arity.
    if call.len() < 3 {
        return Err(Error::Arity);
    }
    let mut arguments = Arguments::from(call, 1);
    let number = arguments.unsigned(1, Error::NumKeys)?;
    if number > MAX_KEYS {
        return Err(Error::NumKeys);
    }
    let now_us = command_us(call)?;
    let words = 2..usize::try_from(number).unwrap_or(usize::MAX).saturating_add(2);
    for at in words.clone() {
        let word = call.word(at).ok_or(Error::Clauses)?;
        if (2..at).any(|other| call.word(other) == Some(word)) {
            return Err(Error::KeyTwice);
        }
    }
    call.check_keys(words.clone())?;
    Ok(CallKeys { words, now_us })
}

/// Reads the clauses of a call, one for each of its keys; returns the unit of its times.
fn read_clauses<'a, C: ServerCall<'a>>(
    call: &C,
    keys: &CallKeys,
    clauses: &mut Clauses,
) -> Result<TimeUnit, Error> {
    let environment = call.environment();
    let mut arguments = Arguments::from(call, keys.words.end);
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
                let next = arguments.next_word().filter(|next| Family::named(next).is_some());
                word = next.ok_or(Error::Else)?;
            }
            (false, true) => {}
            (false, false) => group = group.saturating_add(1),
        }
        let family = Family::named(word).ok_or(Error::NoClause)?;
        let clause = clauses.add().ok_or(Error::internal())?.insert(Clause::unread());
        arguments.clause(&environment, family, group, clause)?;
        // What follows one too many is not read, however much it is.
        if clauses.len() > keys.words.len() {
            return Err(Error::Clauses);
        }
    }
    if clauses.len() != keys.words.len() {
        return Err(Error::Clauses);
    }
    clauses.iter_mut().flatten().for_each(|clause| clause.request.unit = unit);
    Ok(unit)
}

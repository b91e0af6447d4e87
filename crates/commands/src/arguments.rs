//! Turns the arguments of a call into a checked request.

use crate::environment::Environment;
use crate::error::Error;
use crate::limits::LimitSpec;
use crate::options::{spells, OptionSet, Options};
use crate::policies::NamedLimit;
use engine::decimal::parse_i64;
use engine::period::{Length, Period, PeriodError};
use engine::reservation::{is_id, Id};
use engine::rule::Rule;
use engine::throttle::Rate;
use engine::{Ask, Limit, Manner, NewReservation, Quantity, Request};

/// The words of a call or of a policy's definition. Word 0 of a call is the name of the command.
#[allow(clippy::len_without_is_empty, reason = "no caller needs is_empty")]
pub trait Words<'a> {
    fn len(&self) -> usize;

    /// Returns the word at `at`, counted from 0.
    fn word(&self, at: usize) -> Option<&'a [u8]>;
}

impl<'a> Words<'a> for [&'a [u8]] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }

    fn word(&self, at: usize) -> Option<&'a [u8]> {
        self.get(at).copied()
    }
}

/// Returns whether a word is ELSE, which joins the clauses before and after it to a group.
pub fn is_else(word: &[u8]) -> bool {
    spells(word, b"ELSE")
}

/// Returns whether a word of RL.ALL where an option may stand ends a clause: it begins the next one, or it is an option of
/// the whole call.
fn ends_clause(word: &[u8]) -> bool {
    is_else(word) || LimitKind::parse(word).is_some() || OptionSet::ALL.row_named(word).is_some()
}

/// The kind of a [`Limit`], which a command or the first word of a clause says before any numbers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// THROTTLE: [`Limit::Rate`]
    Rate,
    /// WINDOW: [`Limit::Window`]
    Window,
    /// ACQUIRE: [`Limit::Reserve`]
    Reserve,
}

/// A checked request, and the policy on which it is counted.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRequest {
    pub request: Request,
    /// The number of the policy that gave the limit.
    pub policy_id: Option<u64>,
}

/// A clause of RL.ALL.
#[derive(Clone, Copy, Debug)]
pub struct Clause {
    pub asked: PolicyRequest,
    /// The number of its group: clauses that ELSE joins have the same.
    pub group: usize,
    /// The clause itself says BAN, not only its policy.
    pub has_ban: bool,
}

/// A clause of RL.ALL whose limit is still to be looked up by its name.
#[derive(Debug)]
pub struct NamedClause<'a> {
    pub name: &'a [u8],
    kind: LimitKind,
    group: usize,
    quantity: i64,
    options: Options<'a>,
}

impl LimitKind {
    /// Returns the kind whose clauses begin with `word`.
    pub fn parse(word: &[u8]) -> Option<LimitKind> {
        const NAMES: [(&[u8], LimitKind); 3] = [
            (b"THROTTLE", LimitKind::Rate),
            (b"WINDOW", LimitKind::Window),
            (b"ACQUIRE", LimitKind::Reserve),
        ];
        let found = NAMES.iter().find(|(name, _)| spells(word, name));
        found.map(|(_, kind)| *kind)
    }

    /// Refuses a named limit of another kind.
    fn check(self, limit: &NamedLimit) -> Result<(), Error> {
        match (self, limit.defined.spec) {
            (LimitKind::Rate, LimitSpec::Rate(_)) => Ok(()),
            (LimitKind::Window, LimitSpec::Window { period: None, .. }) => {
                Err(Error::SemaphorePolicy)
            }
            (LimitKind::Window | LimitKind::Reserve, LimitSpec::Window { .. }) => Ok(()),
            (LimitKind::Rate, LimitSpec::Window { .. }) => Err(Error::WindowPolicy),
            (LimitKind::Window | LimitKind::Reserve, LimitSpec::Rate(_)) => Err(Error::RatePolicy),
        }
    }

    /// Returns the options that a clause of this kind accepts.
    fn clause_options(self) -> OptionSet {
        match self {
            LimitKind::Rate => const { OptionSet::THROTTLE.in_clause() },
            LimitKind::Window => const { OptionSet::WINDOW.in_clause() },
            LimitKind::Reserve => const { OptionSet::ACQUIRE.in_clause() },
        }
    }
}

/// Reads arguments one after the other.
pub struct Arguments<'c, 'a, W: ?Sized> {
    words: &'c W,
    next: usize,
    /// The next word, which is kept so that each word is looked up once.
    word: Option<&'a [u8]>,
    /// True for the clauses of RL.ALL, each of which ends where the next one, or the options of the whole call, begin.
    in_clauses: bool,
}

impl<'c, 'a, W: Words<'a> + ?Sized> Arguments<'c, 'a, W> {
    /// Begins after the command's name and the key.
    pub fn after_key(words: &'c W) -> Self {
        Arguments::from(words, 2)
    }

    /// Begins with word number `next`. Word 0 of a call is the command's name.
    pub fn from(words: &'c W, next: usize) -> Self {
        Arguments { words, next, word: words.word(next), in_clauses: false }
    }

    /// Begins with word number `next`, which is the first word of a clause of RL.ALL.
    pub fn clauses_from(words: &'c W, next: usize) -> Self {
        Arguments { in_clauses: true, ..Arguments::from(words, next) }
    }

    /// Returns the next argument.
    pub fn next_word(&mut self) -> Option<&'a [u8]> {
        let word = self.word?;
        self.advance();
        Some(word)
    }

    /// Returns the next argument, unless it is an option of the whole call, which ends the clauses of RL.ALL.
    pub fn next_word_of_clauses(&mut self) -> Option<&'a [u8]> {
        let word = self.word?;
        // Nearly all words here begin a clause, and that takes fewer comparisons.
        let is_option =
            LimitKind::parse(word).is_none() && OptionSet::ALL.row_named(word).is_some();
        if is_option {
            return None;
        }
        self.next_word()
    }

    /// Goes on to the next argument.
    fn advance(&mut self) {
        // A call never has this many words.
        self.next = self.next.wrapping_add(1);
        self.word = self.words.word(self.next);
    }

    /// Returns how many arguments have not been read.
    pub fn remaining(&self) -> usize {
        self.words.len().saturating_sub(self.next)
    }

    /// Returns whether a name comes next, in place of a limit in numbers.
    pub fn has_limit_name(&self) -> bool {
        self.word.is_some_and(|word| word.starts_with(b"@"))
    }

    /// Reads the name that stands in place of a limit in numbers. `None` if the numbers come next.
    fn limit_name(&mut self) -> Option<&'a [u8]> {
        let [b'@', name @ ..] = self.word? else { return None };
        self.advance();
        Some(name)
    }

    /// Reads a clause of this kind and group, from the word after THROTTLE, WINDOW or ACQUIRE up to the next clause. `keep`
    /// takes the clause to where the caller needs it, because it would be copied if it were returned.
    pub fn clause(
        &mut self,
        environment: &impl Environment,
        kind: LimitKind,
        group: usize,
        keep: impl FnOnce(Clause),
    ) -> Result<(), Error> {
        let mut options = Options::default();
        let accepted = kind.clause_options();
        let asked = self.request(environment, kind, accepted, &mut options);
        // Borrowed, because moving it out of the result would copy it.
        let asked = asked.as_ref().map_err(|error| *error)?;
        keep(Clause::new(asked, group, &options));
        Ok(())
    }

    /// Reads a clause whose limit has a name, which is still to be looked up. Otherwise as [`Arguments::clause`].
    pub fn named_clause(
        &mut self,
        environment: &impl Environment,
        kind: LimitKind,
        group: usize,
    ) -> Result<NamedClause<'a>, Error> {
        let name = self.limit_name().unwrap_or_default();
        let mut options = Options::default();
        let accepted = kind.clause_options();
        let quantity =
            self.quantity_and_options(environment, kind, accepted, &mut options, None)?;
        Ok(NamedClause { name, kind, group, quantity, options })
    }

    /// Reads a limit of this kind, the quantity, and options, which must be among `accepted` and are added to `options`.
    /// The caller creates `options`, because a copy of them would cost more than reading most calls.
    ///
    /// # Errors
    ///
    /// The first fault from left to right; if there is none, the first forbidden combination.
    pub fn request(
        &mut self,
        environment: &impl Environment,
        kind: LimitKind,
        accepted: OptionSet,
        options: &mut Options<'a>,
    ) -> Result<PolicyRequest, Error> {
        let (limit, numbers);
        let (spec, named) = match self.limit_name() {
            Some(name) => {
                limit = environment.policy_limit(name)?;
                kind.check(&limit)?;
                (&limit.defined.spec, Some(&limit))
            }
            None if environment.policies_only() => return Err(Error::PoliciesOnly),
            None => {
                numbers = self.limit(environment, kind)?;
                (&numbers, None)
            }
        };
        let given = named.is_none().then_some(spec);
        let quantity = self.quantity_and_options(environment, kind, accepted, options, given)?;
        make_request(environment, kind, spec, named, quantity, accepted, options)
    }

    /// Reads the arguments after a limit: the quantity, which is returned, and options, which must be among `accepted` and
    /// are added to `options`. There are no `numbers` if the limit has a name.
    #[inline]
    fn quantity_and_options(
        &mut self,
        environment: &impl Environment,
        kind: LimitKind,
        accepted: OptionSet,
        options: &mut Options<'a>,
        numbers: Option<&LimitSpec>,
    ) -> Result<i64, Error> {
        let quantity = self.quantity(kind)?;
        if self.remaining() > 0 {
            self.options(environment, options, accepted)?;
            options.check(quantity, numbers)?;
        }
        Ok(quantity)
    }

    /// Reads a limit in numbers.
    #[inline]
    pub fn limit(
        &mut self,
        environment: &impl Environment,
        kind: LimitKind,
    ) -> Result<LimitSpec, Error> {
        let error = match kind {
            LimitKind::Rate => return self.rate(environment).map(LimitSpec::Rate),
            LimitKind::Window => Error::InvalidPeriod,
            LimitKind::Reserve => Error::InvalidPeriodOrZero,
        };
        let limit = self.unsigned(0, Error::InvalidLimit)?;
        // A semaphore.
        if kind == LimitKind::Reserve && self.word == Some(b"0") {
            self.advance();
            return Ok(LimitSpec::Window { limit, period: None });
        }
        Ok(LimitSpec::Window { limit, period: Some(self.period(error)?) })
    }

    /// Reads `max_burst count period`.
    #[inline]
    fn rate(&mut self, environment: &impl Environment) -> Result<Rate, Error> {
        let max_burst = self.unsigned(0, Error::InvalidMaxBurst)?;
        if max_burst == i64::MAX.unsigned_abs() {
            return Err(Error::InvalidMaxBurst);
        }
        let count = self.unsigned(1, Error::InvalidCount)?;
        let period_ms = match self.period(Error::InvalidPlainPeriod)?.length() {
            Length::Ms(ms) => ms,
            Length::Months(_) => return Err(Error::InvalidPlainPeriod),
        };
        environment.scale_rate(max_burst, count, period_ms).ok_or(Error::BucketTooLong)
    }

    fn period(&mut self, error: Error) -> Result<Period, Error> {
        Period::parse(self.next_word().ok_or(Error::Arity)?).map_err(|kind| match kind {
            PeriodError::AmbiguousM => Error::AmbiguousPeriod,
            PeriodError::Syntax | PeriodError::Range => error,
        })
    }

    /// Returns the next argument as an integer from `min`, which is at least 0, to 2^63 - 1. Otherwise returns `error`.
    pub fn unsigned(&mut self, min: i64, error: Error) -> Result<u64, Error> {
        let text = self.next_word().ok_or(Error::Arity)?;
        Ok(integer(text, min).ok_or(error)?.unsigned_abs())
    }

    /// Returns the quantity: the next word, or 1 if that begins with a letter, as the names of options do.
    fn quantity(&mut self, kind: LimitKind) -> Result<i64, Error> {
        let (min, error) = match kind {
            LimitKind::Rate | LimitKind::Window if !self.in_clauses => {
                (i64::MIN, Error::InvalidSignedQuantity)
            }
            _ => (0, Error::InvalidQuantity),
        };
        match self.word.map(<[u8]>::first) {
            None => Ok(1),
            Some(Some(byte)) if byte.is_ascii_alphabetic() => Ok(1),
            Some(_) => integer(self.next_word().unwrap_or_default(), min).ok_or(error),
        }
    }

    /// Returns the next argument as the id of a reservation.
    pub fn id(&mut self) -> Result<&'a [u8], Error> {
        let id = self.next_word().ok_or(Error::Arity)?;
        is_id(id).then_some(id).ok_or(Error::InvalidId)
    }

    /// Reads the options of the whole call, which follow the last clause of RL.ALL and must be among `accepted`.
    pub fn options_of_all(
        &mut self,
        environment: &impl Environment,
        options: &mut Options<'a>,
        accepted: OptionSet,
    ) -> Result<(), Error> {
        self.in_clauses = false;
        self.options(environment, options, accepted)?;
        options.check(1, None)
    }

    /// Reads the remaining words as options, which must be among `accepted`. They come in any order and case, each at most
    /// once. In a clause they end where the next clause, or the options of the whole call, begin.
    pub fn options(
        &mut self,
        environment: &impl Environment,
        options: &mut Options<'a>,
        accepted: OptionSet,
    ) -> Result<(), Error> {
        while let Some(word) = self.word {
            if self.in_clauses && ends_clause(word) {
                break;
            }
            self.advance();
            let added = options.add(environment, accepted, word, || self.next_word());
            added.map_err(|error| match OptionSet::NOT_IN_CLAUSE.row_named(word) {
                Some(row) if self.in_clauses => Error::NotInAll(row.name),
                _ => error,
            })?;
        }
        Ok(())
    }
}

impl Clause {
    #[inline(always)]
    fn new(asked: &PolicyRequest, group: usize, options: &Options) -> Clause {
        let mut clause = Clause { asked: *asked, group, has_ban: options.has(OptionSet::BAN) };
        let request = &mut clause.asked.request;
        request.check = options.has(OptionSet::CHECK);
        if let (true, Limit::Reserve(_, reserve)) = (request.check, &mut request.limit) {
            // A check makes no reservation, so this bound does not apply.
            reserve.max_reservations = u64::MAX;
        }
        request.shadow |= options.has(OptionSet::SHADOW);
        clause
    }
}

impl NamedClause<'_> {
    /// Returns the clause with its limit, which must be of its kind.
    pub fn with_limit(
        &self,
        environment: &impl Environment,
        limit: &NamedLimit,
    ) -> Result<Clause, Error> {
        let NamedClause { kind, group, quantity, options, .. } = self;
        kind.check(limit)?;
        let (spec, accepted) = (&limit.defined.spec, kind.clause_options());
        let asked =
            make_request(environment, *kind, spec, Some(limit), *quantity, accepted, options)?;
        Ok(Clause::new(&asked, *group, options))
    }
}

/// Returns a request with this limit, which may be `named`, this quantity, and options that were checked. They are among
/// `accepted`.
#[inline]
fn make_request(
    environment: &impl Environment,
    kind: LimitKind,
    spec: &LimitSpec,
    named: Option<&NamedLimit>,
    quantity: i64,
    accepted: OptionSet,
    options: &Options,
) -> Result<PolicyRequest, Error> {
    let leave = options.number(OptionSet::LEAVE);
    // The ban of a named limit has no effect on a call that could not have the option BAN.
    let permits_ban =
        || accepted.contains(OptionSet::BAN) && options.permits(OptionSet::BAN, quantity);
    let request = Request {
        limit: match *spec {
            LimitSpec::Rate(rate) => Limit::Rate(rate),
            LimitSpec::Window { limit, period } => {
                let window_kind = named.map(|named| named.defined.window_kind);
                let window_kind = window_kind.unwrap_or_else(|| options.window_kind());
                let window = environment.window(limit, period, window_kind)?;
                match kind {
                    LimitKind::Reserve => {
                        Limit::Reserve(window, reserve(options, &window.rule, environment))
                    }
                    LimitKind::Rate | LimitKind::Window => Limit::Window(window),
                }
            }
        },
        ask: Ask {
            quantity: Quantity::from_signed(quantity),
            leave: leave.map_or(0, |leave| environment.scale_leave(leave)),
            manner: manner(options),
        },
        count_denied: options.has(OptionSet::COUNTDENIED),
        ban_ms: match named {
            Some(named) if !options.has(OptionSet::BAN) => {
                named.defined.ban_ms.filter(|_| permits_ban())
            }
            _ => options.number(OptionSet::BAN),
        },
        shadow: named.is_some_and(|named| named.defined.shadow),
        check: false,
    };
    let policy_id = named.and_then(|named| named.policy_id);
    Ok(PolicyRequest { request, policy_id })
}

/// Returns the manner in which the quantity is taken. The options were checked, so at most one of these was given.
fn manner(options: &Options) -> Manner {
    match options.number(OptionSet::AHEAD) {
        Some(ms) => Manner::Ahead { within_us: ms.saturating_mul(1_000) },
        None if options.has(OptionSet::FORCE) => Manner::Force,
        None if options.has(OptionSet::ATMOST) => Manner::AtMost,
        None => Manner::Whole,
    }
}

/// Returns the reservation to make. COUNTLAPSED has no effect on a policy with period 0.
fn reserve(options: &Options, rule: &Rule, environment: &impl Environment) -> NewReservation {
    NewReservation {
        count_lapsed: options.has(OptionSet::COUNTLAPSED) && !matches!(rule, Rule::Semaphore),
        lease_ms: options
            .number(OptionSet::LEASE)
            .unwrap_or_else(|| environment.numbers().lease_ms.get()),
        id: options.id.map(Id::from),
        max_reservations: environment.numbers().max_reservations.get(),
    }
}

/// Parses an integer of at least `min`.
fn integer(text: &[u8], min: i64) -> Option<i64> {
    parse_i64(text).filter(|value| *value >= min)
}

#[cfg(test)]
mod tests;

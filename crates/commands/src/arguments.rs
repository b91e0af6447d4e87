//! From the arguments of a call to a checked request.

use crate::call::Words;
use crate::environment::Environment;
use crate::error::Error;
use crate::limits::{LimitSpec, WindowKind};
use crate::options::{spells, OptionSet, Options};
use crate::policies::Policy;
use crate::share::Share;
use engine::decimal::parse_i64;
use engine::decision::{Manner, Quantity, TimeUnit};
use engine::period::{Length, Period, PeriodError};
use engine::request::{Limit, Request, Reserve};
use engine::reservation::{Id, MAX_ID};
use engine::rule::Rule;
use engine::throttle::Rate;
use std::sync::Arc;

/// Whether a word between two clauses joins them to a group.
pub fn is_else(word: &[u8]) -> bool {
    spells(word, b"ELSE")
}

/// The commands with the same limit: one that takes, and its _RO form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// RL.THROTTLE
    Throttle,
    /// RL.WINDOW
    Window,
    /// RL.ACQUIRE
    Acquire,
}

/// A clause of RL.ALL.
#[derive(Clone, Copy, Debug)]
pub struct Clause {
    /// What it asks for.
    pub request: Request,
    /// Whether it must be allowed but takes nothing (CHECK).
    pub check: bool,
    /// Whether it is in the reply but never denies the call (SHADOW).
    pub shadow: bool,
    /// The number of its group: clauses that ELSE joins have the same.
    pub group: usize,
}

impl Family {
    /// The family whose clauses begin with `word`.
    pub fn named(word: &[u8]) -> Option<Family> {
        const NAMES: [(&[u8], Family); 3] = [
            (b"THROTTLE", Family::Throttle),
            (b"WINDOW", Family::Window),
            (b"ACQUIRE", Family::Acquire),
        ];
        let found = NAMES.iter().find(|(name, _)| spells(word, name));
        found.map(|(_, family)| *family)
    }

    /// The options of a clause.
    fn of_clause(self) -> OptionSet {
        match self {
            Family::Throttle => const { OptionSet::THROTTLE.in_clause() },
            Family::Window => const { OptionSet::WINDOW.in_clause() },
            Family::Acquire => const { OptionSet::ACQUIRE.in_clause() },
        }
    }
}

/// Reads arguments one after the other.
pub struct Arguments<'c, 'a, W: ?Sized> {
    words: &'c W,
    next: usize,
    /// The next word, kept so that each word is asked for once.
    word: Option<&'a [u8]>,
}

impl<'c, 'a, W: Words<'a> + ?Sized> Arguments<'c, 'a, W> {
    /// Begins after the command's name and the key.
    pub fn after_key(words: &'c W) -> Self {
        Arguments::from(words, 2)
    }

    /// Begins with word number `next`. Word 0 of a call is the command's name.
    pub fn from(words: &'c W, next: usize) -> Self {
        Arguments { words, next, word: words.word(next) }
    }

    /// Passes the next argument if it is `word` and the last one; returns whether it was.
    pub fn take_last(&mut self, word: &[u8]) -> bool {
        let last = self.remaining() == 1 && self.word.is_some_and(|last| spells(last, word));
        if last {
            self.pass();
        }
        last
    }

    /// The next argument.
    pub fn next_word(&mut self) -> Option<&'a [u8]> {
        let word = self.word?;
        self.pass();
        Some(word)
    }

    /// Goes on to the next argument.
    fn pass(&mut self) {
        // There are far fewer words.
        self.next = self.next.wrapping_add(1);
        self.word = self.words.word(self.next);
    }

    /// How many arguments are left.
    pub fn remaining(&self) -> usize {
        self.words.len().saturating_sub(self.next)
    }

    /// Reads a clause of this family and group, after the word that it begins with and up to the next clause.
    pub fn clause(
        &mut self,
        environment: &impl Environment,
        family: Family,
        group: usize,
    ) -> Result<Clause, Error> {
        let mut options = Options::new();
        let known = family.of_clause();
        let mut request = self.request(environment, family, known, true, &mut options)?;
        let check = options.has(OptionSet::CHECK);
        if let (true, Limit::Reserve(_, reserve)) = (check, &mut request.limit) {
            // It makes no reservation.
            reserve.most = u64::MAX;
        }
        // A policy may be a shadow by itself.
        let shadow = options.has(OptionSet::SHADOW) || request.shadow;
        Ok(Clause { request, check, shadow, group })
    }

    /// Reads a limit of this family, the quantity, and those of the options `known` that are given, which are left in
    /// `options`. With `in_clause` it ends where the next clause begins.
    pub fn request(
        &mut self,
        environment: &impl Environment,
        family: Family,
        known: OptionSet,
        in_clause: bool,
        options: &mut Options<'a>,
    ) -> Result<Request, Error> {
        let may_give_back = family != Family::Acquire && !in_clause;
        let (least, error) = match may_give_back {
            true => (i64::MIN, Error::SignedQuantity),
            false => (0, Error::Quantity),
        };
        let policy = self.policy(environment, family)?;
        let spec = match &policy {
            Some(policy) => policy.limit,
            None => self.limit(family, environment.share())?,
        };
        let quantity = self.quantity(least, error)?;
        if self.remaining() > 0 {
            self.options(environment, options, known, in_clause)?;
            options.check(quantity, policy.is_none().then_some(&spec))?;
        }
        let limit = match spec {
            LimitSpec::Rate(rate) => Limit::Bucket(rate),
            LimitSpec::Window { limit, period } => {
                let kind = policy.as_ref().map(|policy| policy.window_kind);
                let kind = kind.unwrap_or_else(|| WindowKind::new(options));
                let window = kind.window(limit, period, environment)?;
                match family {
                    Family::Acquire => {
                        Limit::Reserve(window, reserve(options, &window.rule, environment))
                    }
                    Family::Throttle | Family::Window => Limit::Window(window),
                }
            }
        };
        let mut request = Request::new(limit);
        request.ask.quantity = Quantity::from_signed(quantity);
        if options.any() {
            request.ask.leave = options.number(OptionSet::LEAVE).unwrap_or(0);
            request.ask.leave = environment.share().of_leave(request.ask.leave);
            request.ask.manner = manner(options);
            request.count_denied = options.has(OptionSet::COUNTDENIED);
            request.ban_ms = options.number(OptionSet::BAN);
            if options.has(OptionSet::MS) {
                request.unit = TimeUnit::Milliseconds;
            }
        }
        if let Some(policy) = &policy {
            // The policy's ban has no effect on a call that must not have BAN.
            let permits =
                known.contains(OptionSet::BAN) && options.permit(OptionSet::BAN, quantity);
            request.ban_ms = policy.ban_ms.filter(|_| permits);
            (request.policy, request.shadow) = (Some(policy.id), policy.shadow);
        }
        Ok(request)
    }

    /// The policy that is named in place of the limit. `None` if the limit is given as numbers.
    fn policy(
        &mut self,
        environment: &impl Environment,
        family: Family,
    ) -> Result<Option<Arc<Policy>>, Error> {
        let Some([b'@', name @ ..]) = self.word else {
            return match environment.policies_only() {
                true => Err(Error::PoliciesOnly),
                false => Ok(None),
            };
        };
        self.pass();
        let policy = environment.policy(name).ok_or_else(|| Error::NoPolicy(name.into()))?;
        match (family, policy.limit) {
            (Family::Throttle, LimitSpec::Rate(_)) => Ok(Some(policy)),
            (Family::Window, LimitSpec::Window { period: None, .. }) => Err(Error::SemaphorePolicy),
            (Family::Window | Family::Acquire, LimitSpec::Window { .. }) => Ok(Some(policy)),
            (Family::Throttle, LimitSpec::Window { .. }) => Err(Error::WindowPolicy),
            (Family::Window | Family::Acquire, LimitSpec::Rate(_)) => Err(Error::RatePolicy),
        }
    }

    /// A share of the limit that numbers give.
    #[inline]
    pub fn limit(&mut self, family: Family, share: Share) -> Result<LimitSpec, Error> {
        match family {
            Family::Throttle => Ok(LimitSpec::Rate(self.rate(share)?)),
            Family::Window => self.window(false, share),
            Family::Acquire => self.window(true, share),
        }
    }

    /// `max_burst count period`
    #[inline]
    fn rate(&mut self, share: Share) -> Result<Rate, Error> {
        let max_burst = self.unsigned(0, Error::MaxBurst)?;
        if max_burst == i64::MAX.unsigned_abs() {
            return Err(Error::MaxBurst);
        }
        let count = self.unsigned(1, Error::Count)?;
        let period_ms = match self.period(Error::PlainPeriod)?.length() {
            Length::Ms(ms) => ms,
            Length::Months(_) => return Err(Error::PlainPeriod),
        };
        let at_once = share.of_limit(max_burst.saturating_add(1));
        let (count, period_ms) = share.of_rate(count, period_ms);
        Rate::new(at_once.saturating_sub(1), count, period_ms).ok_or(Error::BucketTooLong)
    }

    /// `limit period`. With `semaphore` the period may be 0, for a limit without a window.
    fn window(&mut self, semaphore: bool, share: Share) -> Result<LimitSpec, Error> {
        let limit = share.of_limit(self.unsigned(0, Error::Limit)?);
        if semaphore && self.word == Some(b"0") {
            self.pass();
            return Ok(LimitSpec::Window { limit, period: None });
        }
        let error = if semaphore { Error::PeriodOrZero } else { Error::Period };
        Ok(LimitSpec::Window { limit, period: Some(self.period(error)?) })
    }

    fn period(&mut self, error: Error) -> Result<Period, Error> {
        Period::parse(self.next_word().ok_or(Error::Arity)?).map_err(|why| match why {
            PeriodError::AmbiguousM => Error::PeriodM,
            PeriodError::Syntax | PeriodError::Range => error,
        })
    }

    /// The next argument as an integer from 0 to 2^63 - 1, but at least `least`, or else `error`.
    pub fn unsigned(&mut self, least: i64, error: Error) -> Result<u64, Error> {
        let text = self.next_word().ok_or(Error::Arity)?;
        Ok(integer(text, least).ok_or(error)?.unsigned_abs())
    }

    /// The quantity, if the next word does not begin with a letter, as the names of options do.
    fn quantity(&mut self, least: i64, error: Error) -> Result<i64, Error> {
        match self.word.map(<[u8]>::first) {
            None => Ok(1),
            Some(Some(byte)) if byte.is_ascii_alphabetic() => Ok(1),
            Some(_) => integer(self.next_word().unwrap_or_default(), least).ok_or(error),
        }
    }

    /// Reads all that is left as options of which the command knows `known`. They come in any order and case, each at
    /// most once. In a clause they end where the next clause begins, or with MS as the very last word.
    pub fn options(
        &mut self,
        environment: &impl Environment,
        options: &mut Options<'a>,
        known: OptionSet,
        in_clause: bool,
    ) -> Result<(), Error> {
        while let Some(word) = self.word {
            let is_last = self.remaining() == 1 && spells(word, b"MS");
            if in_clause && (is_last || is_else(word) || Family::named(word).is_some()) {
                break;
            }
            self.pass();
            options.add(environment, known, word, || self.next_word())?;
        }
        Ok(())
    }
}

/// How the quantity is taken.
fn manner(options: &Options) -> Manner {
    match options.number(OptionSet::AHEAD) {
        Some(ms) => Manner::Ahead { within_us: ms.saturating_mul(1_000) },
        None if options.has(OptionSet::FORCE) => Manner::Force,
        None if options.has(OptionSet::ATMOST) => Manner::AtMost,
        None => Manner::Whole,
    }
}

/// The reservation that is made. COUNTLAPSED has no effect on a policy with period 0.
fn reserve(options: &Options, rule: &Rule, environment: &impl Environment) -> Reserve {
    Reserve {
        count_lapsed: options.has(OptionSet::COUNTLAPSED) && !matches!(rule, Rule::Semaphore),
        lease_ms: options
            .number(OptionSet::LEASE)
            .unwrap_or_else(|| environment.numbers().lease_ms.get()),
        id: options.word(OptionSet::ID).map(Id::from),
        most: environment.numbers().max_reservations.get(),
    }
}

/// An integer of at least `least`.
fn integer(text: &[u8], least: i64) -> Option<i64> {
    parse_i64(text).filter(|value| *value >= least)
}

/// An id of 1 to 64 bytes.
pub fn checked_id(id: &[u8]) -> Result<Id, Error> {
    check_id(id).map(|()| Id::from(id))
}

/// Refuses what is no id.
pub fn check_id(id: &[u8]) -> Result<(), Error> {
    let is_one = (1..=MAX_ID).contains(&id.len());
    is_one.then_some(()).ok_or(Error::Id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definitions;
    use crate::environment::TestEnvironment;
    use crate::options::{OptionRow, OptionValue, TABLE};
    use engine::reservation::YEAR_MS;

    /// Who takes options.
    #[derive(Clone, Copy, Debug)]
    enum Taker {
        Command(Family, OptionSet),
        Clause(Family),
    }

    const TAKERS: [Taker; 9] = [
        Taker::Command(Family::Throttle, OptionSet::THROTTLE),
        Taker::Command(Family::Throttle, OptionSet::THROTTLE_RO),
        Taker::Command(Family::Window, OptionSet::WINDOW),
        Taker::Command(Family::Window, OptionSet::WINDOW_RO),
        Taker::Command(Family::Acquire, OptionSet::ACQUIRE),
        Taker::Command(Family::Acquire, OptionSet::WINDOW_RO),
        Taker::Clause(Family::Throttle),
        Taker::Clause(Family::Window),
        Taker::Clause(Family::Acquire),
    ];

    impl Taker {
        fn family(self) -> Family {
            match self {
                Taker::Command(family, _) | Taker::Clause(family) => family,
            }
        }

        fn known(self) -> OptionSet {
            match self {
                Taker::Command(_, known) => known,
                Taker::Clause(family) => family.of_clause(),
            }
        }

        fn takes_negative(self) -> bool {
            matches!(self, Taker::Command(Family::Throttle | Family::Window, _))
        }

        fn limit(self) -> &'static str {
            match self.family() {
                Family::Throttle => "5 5 60",
                Family::Window | Family::Acquire => "5 60",
            }
        }

        /// What is said of words, apart by single blanks.
        fn read(self, words: &str) -> Result<(), Error> {
            self.read_in(&TestEnvironment::default(), words)
        }

        fn read_in(self, environment: &TestEnvironment, words: &str) -> Result<(), Error> {
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            let mut arguments = Arguments::from(&words[..], 0);
            match self {
                Taker::Command(family, known) => arguments
                    .request(environment, family, known, false, &mut Options::new())
                    .map(|_| ()),
                Taker::Clause(family) => arguments.clause(environment, family, 0).map(|_| ()),
            }
        }

        /// What is said of these options after a limit.
        fn options(self, options: &str) -> Result<(), Error> {
            self.read(&format!("{} {options}", self.limit()))
        }
    }

    /// The option with a value that it may have.
    fn spelled(row: &OptionRow) -> String {
        match row.value {
            None => row.name.into(),
            Some(OptionValue::Integer { least, .. }) => format!("{} {}", row.name, least + 1),
            Some(OptionValue::Duration { least_ms, .. }) => {
                format!("{} {}", row.name, least_ms + 1)
            }
            Some(OptionValue::Start) => format!("{} 2026-11-02", row.name),
            Some(OptionValue::Zone | OptionValue::Id) => format!("{} UTC", row.name),
        }
    }

    /// The same with what it needs.
    fn complete(row: &OptionRow) -> String {
        let needed = row.needs.rows().map(spelled);
        needed.chain([spelled(row)]).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_option_is_taken_once_with_a_value_and_by_no_other_command() {
        for taker in TAKERS {
            for row in taker.known().rows() {
                let (name, once) = (row.name, spelled(row));
                assert_eq!(taker.options(&complete(row)), Ok(()), "{taker:?} {name}");
                let twice = taker.options(&format!("{once} {once}"));
                assert_eq!(twice, Err(Error::Twice(name)), "{taker:?} {name}");
                let wanted = match row.value {
                    Some(_) => Err(Error::NoValue(name, &row.error)),
                    None => taker.options(&complete(row)),
                };
                assert_eq!(taker.options(name), wanted, "{taker:?} {name}");
            }
            // MS as the last word is the end of a clause.
            let others = OptionSet::all().difference(taker.known()).difference(OptionSet::MS);
            for row in others.rows() {
                let unknown = Error::UnknownOption(row.name.as_bytes().into());
                assert_eq!(taker.options(&spelled(row)), Err(unknown), "{taker:?} {}", row.name);
            }
        }
    }

    #[test]
    fn a_value_out_of_its_range_is_an_error_that_says_the_range() {
        let no_numbers = || ["", "x", "+1", "01", "1.5", "-1", "1m", "1mo"].map(String::from);
        let plus = |value: u64, more: i128| (i128::from(value) + more).to_string();
        for row in &TABLE {
            let (good, bad): (Vec<String>, Vec<String>) = match row.value {
                Some(OptionValue::Integer { least, most, .. }) => (
                    vec![plus(least, 0), plus(most, 0)],
                    [plus(least, -1), plus(most, 1), plus(u64::MAX, 2), "1s".into()]
                        .into_iter()
                        .chain(no_numbers())
                        .collect(),
                ),
                Some(OptionValue::Duration { least_ms, .. }) => (
                    vec![plus(least_ms, 0), plus(YEAR_MS, 0), "52w".into(), "5Min".into()],
                    [plus(least_ms, -1), plus(YEAR_MS, 1), "53w".into(), "1y".into()]
                        .into_iter()
                        .chain(no_numbers())
                        .collect(),
                ),
                Some(OptionValue::Id) => {
                    let id = |bytes| "x".repeat(bytes);
                    (vec![id(1), id(MAX_ID)], vec![String::new(), id(MAX_ID + 1)])
                }
                Some(OptionValue::Start) => (
                    [
                        "first",
                        "FIRST",
                        "09:00",
                        "sun@09:00:30",
                        "31",
                        "02-29",
                        "2255-12-31@23:59:59",
                    ]
                    .map(String::from)
                    .into(),
                    ["", "0", "32", "9:00", "firs", "sun@", "1969-12-31", "2256-01-01"]
                        .map(String::from)
                        .into(),
                ),
                Some(OptionValue::Zone) => (
                    vec!["UTC".into(), "+08:00".into()],
                    ["", "1", "Mars"].map(String::from).into(),
                ),
                None => continue,
            };
            let read = |value: &String| {
                Options::new().add(
                    &TestEnvironment::default(),
                    row.option,
                    row.name.as_bytes(),
                    || Some(value.as_bytes()),
                )
            };
            for value in &good {
                assert_eq!(read(value), Ok(()), "{} {value:?}", row.name);
            }
            for value in &bad {
                assert_eq!(read(value), Err(row.error), "{} {value:?}", row.name);
            }
        }
    }

    #[test]
    fn options_stand_together_unless_one_excludes_the_other() {
        for taker in TAKERS {
            let known = taker.known();
            for (one, other) in known.rows().flat_map(|one| known.rows().map(move |it| (one, it))) {
                // What one of them needs may exclude the other.
                let mut needed = one.needs.rows().chain(other.needs.rows());
                if one.option == other.option
                    || needed.any(|row| row.clashes_with(one) || row.clashes_with(other))
                {
                    continue;
                }
                let mut words = vec![spelled(one), spelled(other)];
                let missing = one.needs.union(other.needs).difference(one.option | other.option);
                words.extend(missing.rows().map(spelled));
                let wanted = match (one.excludes.contains(other.option), one.clashes_with(other)) {
                    (true, _) => Err(Error::NotTogether(other.name, one.name)),
                    (false, true) => Err(Error::NotTogether(one.name, other.name)),
                    (false, false) => Ok(()),
                };
                let words = words.join(" ");
                assert_eq!(taker.options(&words), wanted, "{taker:?} {words}");
            }
        }
    }

    #[test]
    fn an_option_needs_what_its_row_says() {
        for taker in TAKERS {
            for row in taker.known().rows() {
                for needed in row.needs.rows() {
                    let error = Err(Error::Needs(row.name, needed.name));
                    assert_eq!(taker.options(&spelled(row)), error, "{taker:?}");
                }
            }
        }
    }

    #[test]
    fn an_option_stands_beside_the_quantities_that_its_row_allows() {
        for taker in TAKERS {
            let least = if taker.takes_negative() { -1 } else { 0 };
            for (row, quantity) in
                taker.known().rows().flat_map(|row| (least..=1).map(move |it| (row, it)))
            {
                let wanted = match quantity < row.least_quantity {
                    true => Err(Error::QuantityBelow(row.name, row.least_quantity)),
                    false => Ok(()),
                };
                let options = format!("{quantity} {}", complete(row));
                assert_eq!(taker.options(&options), wanted, "{taker:?} {options}");
            }
        }
    }

    #[test]
    fn an_option_that_says_the_limit_stands_in_a_policy_and_not_beside_it() {
        let environment = TestEnvironment::default();
        let table = b"rate THROTTLE 5 5 60; window WINDOW 5 60";
        let definitions = definitions::parse(table, &environment).unwrap();
        environment.policies.borrow_mut().replace(table, definitions);
        for taker in TAKERS {
            let policy = if taker.family() == Family::Throttle { "@rate" } else { "@window" };
            for row in taker.known().rows().filter(|row| row.needs.is_empty()) {
                let wanted =
                    if row.says_limit { Err(Error::BesidePolicy(row.name)) } else { Ok(()) };
                let words = format!("{policy} {}", spelled(row));
                assert_eq!(taker.read_in(&environment, &words), wanted, "{taker:?} {words}");
            }
        }
        for row in &TABLE {
            let in_policy = OptionSet::WINDOW.in_policy().contains(row.option);
            let definition = format!("a WINDOW 5 60 {}", complete(row));
            let read = definitions::parse(definition.as_bytes(), &environment).map(|_| ());
            assert_eq!(read.is_ok(), in_policy, "{definition}: {read:?}");
        }
    }

    #[test]
    fn an_option_that_needs_a_window_does_not_stand_beside_period_0() {
        for taker in TAKERS.into_iter().filter(|taker| taker.family() == Family::Acquire) {
            for row in taker.known().rows().filter(|row| row.needs.is_empty()) {
                let wanted = row.period_0.map_or(Ok(()), Err);
                let words = format!("5 0 {}", spelled(row));
                assert_eq!(taker.read(&words), wanted, "{taker:?} {words}");
            }
        }
    }
}

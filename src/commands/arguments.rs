//! From the arguments of a call to a checked request.

use super::policies::{self, Policy};
use crate::config;
use crate::error::{Error, Word};
use crate::options::{self, Known};
use crate::redis::call::Call;
use crate::zones::zones;
use engine::anchor::{AnchorError, AnchorText, Start};
use engine::calendar::{Calendar, Zone};
use engine::decimal::parse_i64;
use engine::decision::{Ask, Manner, Quantity, TimeUnit};
use engine::period::{Length, Period, PeriodError};
use engine::request::{Limit, Request, Reserve, WindowLimit};
use engine::reservation::{Id, MAX_ID, YEAR_MS};
use engine::rule::Rule;
use engine::throttle::Rate;
use std::sync::Arc;

const MAX_BUCKETS: u64 = 65_536;

/// How a window counts, as options say it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    buckets: Option<u32>,
    fixed: bool,
    start: Option<Start>,
    zone: Option<Zone>,
}

/// The options of a call.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Which there are.
    seen: Known,
    atmost: bool,
    force: bool,
    count_denied: bool,
    check: bool,
    /// `SHADOW`
    pub shadow: bool,
    unit: TimeUnit,
    leave: u64,
    ahead_ms: Option<u64>,
    /// `LEASE`, in milliseconds.
    pub lease_ms: Option<u64>,
    id: Option<&'a [u8]>,
    /// `BLOCK`: how long the call may wait, in milliseconds; 0 is for ever.
    pub block_ms: Option<u64>,
    /// `BUCKETS`, `FIXED`, `FROM` and `TZ`.
    pub shape: Shape,
}

/// A command that takes, or looks at what it would take.
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
    /// It must be allowed, and takes nothing.
    pub check: bool,
    /// It is told, and never denies the call.
    pub shadow: bool,
}

impl Family {
    const NAMES: [(&'static str, Family); 3] =
        [("THROTTLE", Family::Throttle), ("WINDOW", Family::Window), ("ACQUIRE", Family::Acquire)];

    /// The family whose clauses begin with `word`.
    pub fn named(word: &[u8]) -> Option<Family> {
        let found =
            Family::NAMES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, family)| *family)
    }

    /// The options of a clause.
    fn of_clause(self) -> Known {
        let all = Known::LEAVE | Known::CHECK | Known::SHADOW;
        match self {
            Family::Throttle => all,
            Family::Window => all | Known::WINDOW | Known::COUNTDENIED,
            Family::Acquire => all | Known::WINDOW | Known::LEASE | Known::ID,
        }
    }
}

/// A limit as its positional arguments give it.
#[derive(Clone, Copy, Debug)]
pub enum Given {
    /// A rate.
    Rate(Rate),
    /// A window; without a period a semaphore.
    Window {
        /// The most that there may be at one time.
        limit: u64,
        /// The period.
        period: Option<Period>,
    },
}

/// Where words come from.
#[derive(Clone, Copy)]
pub enum Words<'c, 'a> {
    /// The arguments of a call.
    Call(&'c Call<'a>),
    /// A definition.
    List(&'c [&'a [u8]]),
}

impl<'a> Words<'_, 'a> {
    fn get(&self, at: usize) -> Option<&'a [u8]> {
        match self {
            Words::Call(call) => call.argument(at),
            Words::List(words) => words.get(at).copied(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Words::Call(call) => call.len(),
            Words::List(words) => words.len(),
        }
    }
}

/// Reads arguments one after the other.
pub struct Arguments<'c, 'a> {
    words: Words<'c, 'a>,
    next: usize,
}

impl<'c, 'a> Arguments<'c, 'a> {
    /// After the command's name and the key.
    pub fn after_key(call: &'c Call<'a>) -> Self {
        Arguments::from(call, 2)
    }

    /// From argument number `next` on; 0 is the command's name.
    pub fn from(call: &'c Call<'a>, next: usize) -> Self {
        Arguments { words: Words::Call(call), next }
    }

    /// All words of a definition.
    pub fn of(words: &'c [&'a [u8]]) -> Self {
        Arguments { words: Words::List(words), next: 0 }
    }

    /// The very last argument, if it comes next and is `word`.
    pub fn take_last(&mut self, word: &[u8]) -> bool {
        let last = self.remaining() == 1
            && self.words.get(self.next).is_some_and(|last| last.eq_ignore_ascii_case(word));
        if last {
            self.next = self.next.saturating_add(1);
        }
        last
    }

    /// The next argument.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let argument = self.words.get(self.next)?;
        self.next = self.next.saturating_add(1);
        Some(argument)
    }

    /// How many are left.
    pub fn remaining(&self) -> usize {
        self.words.len().saturating_sub(self.next)
    }

    /// All that is left, as a call of this family that knows the options `known`, which are read into `options`.
    pub fn request(
        &mut self,
        family: Family,
        known: Known,
        options: &mut Options<'a>,
    ) -> Result<Request, Error> {
        let least = match family {
            Family::Acquire => 0,
            Family::Throttle | Family::Window => i64::MIN,
        };
        self.parts(family, least, known, false, options)
    }

    /// A clause of this family, after the word that it begins with and up to the next clause.
    pub fn clause(&mut self, family: Family) -> Result<Clause, Error> {
        let mut options = Options::default();
        let mut request = self.parts(family, 0, family.of_clause(), true, &mut options)?;
        let Options { check, shadow, .. } = options;
        for (given, name) in [
            (options.id.is_some(), "ID"),
            (options.lease_ms.is_some(), "LEASE"),
            (options.count_denied, "COUNTDENIED"),
            (shadow, "SHADOW"),
        ] {
            if check && given {
                return Err(Error::NotTogether(name, "CHECK"));
            }
        }
        if shadow && options.count_denied {
            return Err(Error::NotTogether("COUNTDENIED", "SHADOW"));
        }
        if let (true, Limit::Reserve(_, reserve)) = (check, &mut request.limit) {
            // It makes no reservation.
            reserve.most = u64::MAX;
        }
        // A policy may be a shadow by itself.
        let shadow = shadow || request.shadow;
        Ok(Clause { request, check, shadow })
    }

    /// A limit, the quantity and options. Nothing that is large is moved, as every call comes through here.
    fn parts(
        &mut self,
        family: Family,
        least: i64,
        known: Known,
        in_clause: bool,
        options: &mut Options<'a>,
    ) -> Result<Request, Error> {
        let policy = self.policy(family)?;
        let given = match &policy {
            Some(policy) => policy.given,
            None => self.numbers(family)?,
        };
        let error = if least < 0 { Error::SignedQuantity } else { Error::Quantity };
        let quantity = self.quantity(least, error)?;
        if self.remaining() > 0 {
            self.options(options, known, in_clause)?;
            options.check(quantity)?;
        }
        if policy.is_some() {
            options.check_beside_policy()?;
        }
        let limit = match given {
            Given::Rate(rate) => Limit::Bucket(rate),
            Given::Window { limit, period } => {
                let shape = policy.as_ref().map_or(&options.shape, |policy| &policy.shape);
                let window = shape.window(limit, period)?;
                match family {
                    Family::Acquire => Limit::Reserve(window, options.reserve()),
                    Family::Throttle | Family::Window => Limit::Window(window),
                }
            }
        };
        let ask = Ask {
            quantity: Quantity::from_signed(quantity),
            leave: options.leave,
            manner: options.manner(),
        };
        Ok(Request {
            limit,
            ask,
            count_denied: options.count_denied,
            unit: options.unit,
            policy: policy.as_ref().map(|policy| policy.id),
            shadow: policy.is_some_and(|policy| policy.shadow),
        })
    }

    /// The policy whose name stands in the place of the limit; `None` where numbers do.
    fn policy(&mut self, family: Family) -> Result<Option<Arc<Policy>>, Error> {
        let Some([b'@', name @ ..]) = self.words.get(self.next) else {
            return match config::POLICIES_ONLY.get() {
                true => Err(Error::PoliciesOnly),
                false => Ok(None),
            };
        };
        self.next = self.next.saturating_add(1);
        let policy = policies::named(name).ok_or(Error::NoPolicy)?;
        match (family, policy.given) {
            (Family::Throttle, Given::Rate(_)) => Ok(Some(policy)),
            (Family::Window, Given::Window { period: None, .. }) => Err(Error::SemaphorePolicy),
            (Family::Window | Family::Acquire, Given::Window { .. }) => Ok(Some(policy)),
            (Family::Throttle, Given::Window { .. }) => Err(Error::WindowPolicy),
            (Family::Window | Family::Acquire, Given::Rate(_)) => Err(Error::RatePolicy),
        }
    }

    /// A limit in numbers.
    pub fn numbers(&mut self, family: Family) -> Result<Given, Error> {
        match family {
            Family::Throttle => Ok(Given::Rate(self.rate()?)),
            Family::Window => self.window(false),
            Family::Acquire => self.window(true),
        }
    }

    /// `max_burst count period`
    fn rate(&mut self) -> Result<Rate, Error> {
        let max_burst = self.unsigned(0, Error::MaxBurst)?;
        if max_burst == i64::MAX.unsigned_abs() {
            return Err(Error::MaxBurst);
        }
        let count = self.unsigned(1, Error::Count)?;
        let period_ms = match self.period(Error::PlainPeriod)?.length() {
            Length::Ms(ms) => ms,
            Length::Months(_) => return Err(Error::PlainPeriod),
        };
        Rate::new(max_burst, count, period_ms).map_err(|_| Error::BucketTooLong)
    }

    /// `limit period`; with `semaphore` the period may be 0, which is no window at all.
    fn window(&mut self, semaphore: bool) -> Result<Given, Error> {
        let limit = self.unsigned(0, Error::Limit)?;
        if semaphore && self.words.get(self.next) == Some(b"0") {
            self.next = self.next.saturating_add(1);
            return Ok(Given::Window { limit, period: None });
        }
        let error = if semaphore { Error::PeriodOrZero } else { Error::Period };
        Ok(Given::Window { limit, period: Some(self.period(error)?) })
    }

    fn period(&mut self, error: Error) -> Result<Period, Error> {
        Period::parse(self.next().ok_or(Error::Arity)?).map_err(|why| match why {
            PeriodError::AmbiguousM => Error::PeriodM,
            PeriodError::Syntax | PeriodError::Range => error,
        })
    }

    /// The next argument as an integer from 0 to 2^63 - 1, but at least `least`, or else `error`.
    pub fn unsigned(&mut self, least: i64, error: Error) -> Result<u64, Error> {
        let text = self.next().ok_or(Error::Arity)?;
        Ok(integer(text, least).ok_or(error)?.unsigned_abs())
    }

    /// The quantity, if one comes next: whatever does not begin like the name of an option.
    fn quantity(&mut self, least: i64, error: Error) -> Result<i64, Error> {
        match self.words.get(self.next).map(<[u8]>::first) {
            None => Ok(1),
            Some(Some(byte)) if byte.is_ascii_alphabetic() => Ok(1),
            Some(_) => integer(self.next().unwrap_or_default(), least).ok_or(error),
        }
    }

    /// Reads all that is left as options of which the command knows `known`. They come in any order and case, each at
    /// most once. In a clause they end where the next clause begins, or with MS as the very last word.
    pub fn options(
        &mut self,
        options: &mut Options<'a>,
        known: Known,
        in_clause: bool,
    ) -> Result<(), Error> {
        while let Some(word) = self.words.get(self.next) {
            let is_last = self.remaining() == 1 && word.eq_ignore_ascii_case(b"MS");
            if in_clause && (is_last || Family::named(word).is_some()) {
                break;
            }
            self.next = self.next.saturating_add(1);
            let row = options::named(word).filter(|row| known.contains(row.option));
            let row = row.ok_or_else(|| Error::UnknownOption(Word::from(word)))?;
            if options.seen.contains(row.option) {
                return Err(Error::Twice(row.name()));
            }
            options.seen |= row.option;
            if row.value == options::Value::Nothing {
                options.set(row.option);
            } else {
                let value = self.next().ok_or_else(|| Error::NoValue(row.name()))?;
                options.set_value(row.option, value)?;
            }
        }
        Ok(())
    }
}

impl<'a> Options<'a> {
    fn set(&mut self, option: Known) {
        match option {
            Known::MS => self.unit = TimeUnit::Milliseconds,
            Known::ATMOST => self.atmost = true,
            Known::FORCE => self.force = true,
            Known::COUNTDENIED => self.count_denied = true,
            Known::FIXED => self.shape.fixed = true,
            Known::CHECK => self.check = true,
            Known::SHADOW => self.shadow = true,
            _ => {}
        }
    }

    fn set_value(&mut self, option: Known, value: &'a [u8]) -> Result<(), Error> {
        match option {
            Known::LEAVE => {
                let leave = integer(value, 0).ok_or(Error::Leave)?;
                self.leave = leave.unsigned_abs();
            }
            Known::AHEAD => self.ahead_ms = Some(duration_ms(value, 1).ok_or(Error::Ahead)?),
            Known::LEASE => self.lease_ms = Some(duration_ms(value, 1).ok_or(Error::Lease)?),
            Known::BLOCK => self.block_ms = Some(duration_ms(value, 0).ok_or(Error::Block)?),
            Known::ID => {
                checked_id(value)?;
                self.id = Some(value);
            }
            Known::FROM => {
                let start = Start::parse(value).map_err(|why| match why {
                    AnchorError::Syntax => Error::From,
                    AnchorError::NoSuchDay => Error::NoSuchDay,
                })?;
                self.shape.start = Some(start);
            }
            Known::TZ => {
                self.shape.zone = Some(zones(|zones| zones.named(value)).ok_or(Error::Zone)?);
            }
            Known::BUCKETS => {
                let buckets = integer(value, 1).map(i64::unsigned_abs);
                let buckets = buckets.filter(|buckets| *buckets <= MAX_BUCKETS);
                self.shape.buckets = u32::try_from(buckets.ok_or(Error::Buckets)?).ok();
            }
            _ => return Err(Error::Internal),
        }
        Ok(())
    }

    /// Refuses options that exclude each other, or a quantity below 0.
    fn check(&self, quantity: i64) -> Result<(), Error> {
        let leaves = self.leave > 0;
        let ahead = self.ahead_ms.is_some();
        let negative = quantity < 0;
        for (given, name) in
            [(self.atmost, "ATMOST"), (leaves, "LEAVE"), (self.force, "FORCE"), (ahead, "AHEAD")]
        {
            if negative && given {
                return Err(Error::NotNegative(name));
            }
        }
        for (given, name) in [
            (leaves, "LEAVE"),
            (self.atmost, "ATMOST"),
            (self.block_ms.is_some(), "BLOCK"),
            (self.count_denied, "COUNTDENIED"),
            (ahead, "AHEAD"),
        ] {
            if self.force && given {
                return Err(Error::NotTogether(name, "FORCE"));
            }
            if ahead && given && name != "AHEAD" && name != "COUNTDENIED" {
                return Err(Error::NotTogether(name, "AHEAD"));
            }
        }
        Ok(())
    }

    fn manner(&self) -> Manner {
        match self.ahead_ms {
            Some(ms) => Manner::Ahead(ms.saturating_mul(1_000)),
            None if self.force => Manner::Force,
            None if self.atmost => Manner::AtMost,
            None => Manner::Whole,
        }
    }

    fn reserve(&self) -> Reserve {
        Reserve {
            lease_ms: self.lease_ms.unwrap_or_else(|| config::LEASE_MS.get()),
            id: self.id.map(Id::from),
            most: config::MAX_RESERVATIONS.get(),
        }
    }

    /// Refuses options that say what a policy says.
    fn check_beside_policy(&self) -> Result<(), Error> {
        for (given, name) in [
            (self.shape.buckets.is_some(), "BUCKETS"),
            (self.shape.fixed, "FIXED"),
            (self.shape.start.is_some(), "FROM"),
            (self.shape.zone.is_some(), "TZ"),
        ] {
            if given {
                return Err(Error::BesidePolicy(name));
            }
        }
        Ok(())
    }
}

impl Shape {
    /// How a window of `limit` each `period` counts; without a period it is a semaphore.
    pub fn window(&self, limit: u64, period: Option<Period>) -> Result<WindowLimit, Error> {
        if self.buckets.is_some() && self.fixed {
            return Err(Error::NotTogether("BUCKETS", "FIXED"));
        }
        if self.start.is_some() && !self.fixed {
            return Err(Error::FromAlone);
        }
        if self.zone.is_some() && !self.fixed {
            return Err(Error::ZoneAlone);
        }
        if self.zone.is_some() && self.start == Some(Start::First) {
            return Err(Error::NotTogether("TZ", "FROM first"));
        }
        let Some(period) = period else {
            if self.buckets.is_some() || self.fixed {
                return Err(Error::SemaphoreWindow);
            }
            return Ok(WindowLimit { limit, rule: Rule::Semaphore, most_entries: 0 });
        };
        if self.fixed {
            let rule = self.fixed_rule(period)?;
            return Ok(WindowLimit { limit, rule, most_entries: 1 });
        }
        let most_entries = self.buckets.unwrap_or_else(config::window_entries);
        let buckets = (limit > u64::from(most_entries)).then_some(most_entries);
        Ok(WindowLimit { limit, rule: Rule::Sliding { period, buckets }, most_entries })
    }

    fn fixed_rule(&self, period: Period) -> Result<Rule, Error> {
        let zone = || self.zone.or_else(config::timezone).ok_or(Error::Zone);
        let calendar = match self.start {
            Some(Start::First) => return Ok(Rule::FirstHit(period)),
            Some(Start::Anchor(anchor)) => {
                Calendar::anchored(period, anchor, zone()?).map_err(|unfit| {
                    let mut text = AnchorText::new();
                    anchor.write(&mut text);
                    Error::Unfit(Word::from(text.as_bytes()), unfit)
                })?
            }
            None => Calendar::new(period, zone()?).map_err(|_| Error::Calendar)?,
        };
        Ok(Rule::Calendar(calendar))
    }
}

/// An integer of at least `least`.
pub fn integer(text: &[u8], least: i64) -> Option<i64> {
    parse_i64(text).filter(|value| *value >= least)
}

/// Milliseconds, or a number with a unit, from `least` to a year.
fn duration_ms(text: &[u8], least: u64) -> Option<u64> {
    let with_unit = |text| match Period::parse(text).ok()?.length() {
        Length::Ms(ms) => Some(ms),
        Length::Months(_) => None,
    };
    let ms = match (parse_i64(text), text) {
        (Some(ms), _) => u64::try_from(ms).ok()?,
        // No period is 0, but a wait may be.
        (None, [b'0', unit @ ..]) if unit.first().is_some_and(u8::is_ascii_alphabetic) => {
            with_unit(&[b"1", unit].concat()).map(|_| 0)?
        }
        (None, text) => with_unit(text)?,
    };
    Some(ms).filter(|ms| (least..=YEAR_MS).contains(ms))
}

/// An id of 1 to 64 bytes.
pub fn checked_id(id: &[u8]) -> Result<Id, Error> {
    let known = (1..=MAX_ID).contains(&id.len());
    known.then(|| Id::from(id)).ok_or(Error::Id)
}

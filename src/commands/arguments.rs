//! A cursor over the arguments of a call.

use crate::config;
use crate::error::Error;
use crate::limit::calendar::{Calendar, Zone};
use crate::limit::decimal::parse_i64;
use crate::limit::decision::TimeUnit;
use crate::limit::period::{Length, Period, PeriodError};
use crate::limit::reservation::{MAX_ID, YEAR_MS};
use crate::limit::rule::Rule;
use crate::options::{self, Known};
use crate::redis::call::Call;

const MAX_BUCKETS: u64 = 65_536;

/// The options of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// `ATMOST`
    pub atmost: bool,
    /// `COUNTDENIED`
    pub count_denied: bool,
    /// `MS` or seconds
    pub unit: TimeUnit,
    /// `LEASE ms`
    pub lease_ms: Option<u64>,
    /// `ID id`
    pub id: Option<&'a [u8]>,
    /// `BLOCK ms`
    pub block_ms: Option<u64>,
    buckets: Option<u32>,
    fixed: bool,
    zone: Option<Zone>,
}

/// How a window counts.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How events leave.
    pub rule: Rule,
    /// The most entries of events that are live at one time.
    pub most_entries: u32,
}

/// What RL.WINDOW and RL.ACQUIRE have in common: `limit period [quantity]` and options.
#[derive(Clone, Copy, Debug)]
pub struct Windowed<'a> {
    /// The most that there may be at one time.
    pub limit: u64,
    /// How much is asked for.
    pub quantity: u64,
    /// How it is counted.
    pub shape: Shape,
    /// All options.
    pub options: Options<'a>,
}

/// Reads the arguments of a call on a window, with `semaphore` also one of period 0.
pub fn windowed<'a>(call: &Call<'a>, semaphore: bool, known: Known) -> Result<Windowed<'a>, Error> {
    let mut arguments = Arguments::after_key(call);
    let limit = arguments.unsigned(0, Error::Limit)?;
    let period = arguments.period(semaphore)?;
    let quantity = arguments.quantity(0, Error::Quantity)?.unsigned_abs();
    let options = arguments.options(known)?;
    Ok(Windowed { limit, quantity, shape: options.shape(limit, period)?, options })
}

/// Reads arguments one after the other.
pub struct Arguments<'c, 'a> {
    call: &'c Call<'a>,
    next: usize,
}

impl<'c, 'a> Arguments<'c, 'a> {
    /// After the command's name and the key.
    pub fn after_key(call: &'c Call<'a>) -> Self {
        Arguments { call, next: 2 }
    }

    /// The next argument.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let argument = self.call.argument(self.next)?;
        self.next = self.next.saturating_add(1);
        Some(argument)
    }

    /// How many are left.
    pub fn remaining(&self) -> usize {
        self.call.len().saturating_sub(self.next)
    }

    /// The next argument as an integer from `least` to 2^63 - 1, or else `error`.
    pub fn integer(&mut self, least: i64, error: Error) -> Result<i64, Error> {
        let text = self.next().ok_or(Error::Arity)?;
        parse_i64(text).filter(|value| *value >= least).ok_or(error)
    }

    /// As [`Arguments::integer`], for numbers without a sign.
    pub fn unsigned(&mut self, least: i64, error: Error) -> Result<u64, Error> {
        Ok(self.integer(least, error)?.unsigned_abs())
    }

    /// The next argument as a period of a fixed length, in milliseconds.
    pub fn plain_period_ms(&mut self) -> Result<u64, Error> {
        match Period::parse(self.next().ok_or(Error::Arity)?).map(|period| period.length()) {
            Ok(Length::Ms(ms)) => Ok(ms),
            Err(PeriodError::AmbiguousM) => Err(Error::PeriodM),
            Ok(Length::Months(_)) | Err(_) => Err(Error::PlainPeriod),
        }
    }

    /// The next argument as a period, or with `zero` as 0, which is no window at all: `None`.
    fn period(&mut self, zero: bool) -> Result<Option<Period>, Error> {
        match self.next().ok_or(Error::Arity)? {
            b"0" if zero => Ok(None),
            text => match Period::parse(text) {
                Ok(period) => Ok(Some(period)),
                Err(PeriodError::AmbiguousM) => Err(Error::PeriodM),
                Err(_) if zero => Err(Error::PeriodOrZero),
                Err(_) => Err(Error::Period),
            },
        }
    }

    /// The quantity, if one comes next: whatever does not begin like the name of an option.
    pub fn quantity(&mut self, least: i64, error: Error) -> Result<i64, Error> {
        match self.call.argument(self.next).map(<[u8]>::first) {
            None => Ok(1),
            Some(Some(byte)) if byte.is_ascii_alphabetic() => Ok(1),
            Some(_) => self.integer(least, error),
        }
    }

    /// All that is left, as options of which the command knows `known`. They come in any order and case, each at
    /// most once.
    pub fn options(&mut self, known: Known) -> Result<Options<'a>, Error> {
        let mut options = Options::default();
        let mut seen = Known::empty();
        while let Some(name) = self.next() {
            let option = options::named(name).ok_or(Error::Option)?.option;
            if !known.contains(option) {
                return Err(Error::Option);
            }
            if seen.contains(option) {
                return Err(Error::OptionTwice);
            }
            seen |= option;
            match option {
                Known::MS => options.unit = TimeUnit::Milliseconds,
                Known::ATMOST => options.atmost = true,
                Known::COUNTDENIED => options.count_denied = true,
                Known::FIXED => options.fixed = true,
                Known::BUCKETS => {
                    let buckets = self.value(1, MAX_BUCKETS, Error::Buckets)?;
                    options.buckets = u32::try_from(buckets).ok();
                }
                Known::TZ => {
                    let name = self.next().ok_or(Error::Zone)?;
                    options.zone = Some(Zone::named(name).ok_or(Error::Zone)?);
                }
                Known::LEASE => options.lease_ms = Some(self.value(1, YEAR_MS, Error::Lease)?),
                Known::BLOCK => options.block_ms = Some(self.value(0, YEAR_MS, Error::Block)?),
                Known::ID => {
                    let id = self.next().ok_or(Error::Id)?;
                    options.id = Some(checked_id(id)?);
                }
                _ => return Err(Error::Option),
            }
        }
        Ok(options)
    }

    /// The value of an option, from `least` to `most`, or else `error`.
    fn value(&mut self, least: i64, most: u64, error: Error) -> Result<u64, Error> {
        let text = self.next().ok_or(error)?;
        let value = parse_i64(text).filter(|value| *value >= least).ok_or(error)?;
        Some(value.unsigned_abs()).filter(|value| *value <= most).ok_or(error)
    }
}

impl Options<'_> {
    /// How a window of `limit` each `period` counts; without a period it is a semaphore.
    fn shape(&self, limit: u64, period: Option<Period>) -> Result<Shape, Error> {
        if self.buckets.is_some() && self.fixed {
            return Err(Error::BucketsAndFixed);
        }
        if self.zone.is_some() && !self.fixed {
            return Err(Error::ZoneAlone);
        }
        let Some(period) = period else {
            if self.buckets.is_some() || self.fixed {
                return Err(Error::SemaphoreWindow);
            }
            return Ok(Shape { rule: Rule::Semaphore, most_entries: 0 });
        };
        if self.fixed {
            let zone = self.zone.or_else(config::timezone).ok_or(Error::Zone)?;
            let calendar = Calendar::new(period, zone).map_err(|_| Error::Calendar)?;
            return Ok(Shape { rule: Rule::Calendar(calendar), most_entries: 1 });
        }
        let most_entries = self.buckets.unwrap_or_else(config::window_entries);
        let buckets = (limit > u64::from(most_entries)).then_some(most_entries);
        Ok(Shape { rule: Rule::Sliding { period, buckets }, most_entries })
    }
}

/// An id of 1 to 64 bytes.
pub fn checked_id(id: &[u8]) -> Result<&[u8], Error> {
    Some(id).filter(|id| (1..=MAX_ID).contains(&id.len())).ok_or(Error::Id)
}

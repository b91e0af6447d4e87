//! The options of one call or of a policy's definition: read, checked, and their values.

use super::{spells, OptionRow, OptionSet, OptionValue};
use crate::environment::Environment;
use crate::error::Error;
use crate::limits::{LimitSpec, WindowKind};
use crate::reply::TimeUnit;
use crate::waiting::{Block, WeightedCaller};
use engine::anchor::{AnchorError, Start};
use engine::calendar::Zone;
use engine::decimal::parse_i64;
use engine::period::{Length, Period, PeriodError, YEAR_MS};
use engine::reservation::is_id;
use smallvec::SmallVec;

/// At least the maximum number of options with a number in one call.
const INLINE_NUMBERS: usize = 8;

/// The options of a call or of a policy's definition.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// All options that were read.
    read: OptionSet,
    /// The options that were read, without those whose value means the same as leaving them out (`LEAVE 0`).
    effective: OptionSet,
    /// The values of the options that have a number; of a duration, milliseconds.
    numbers: SmallVec<[(OptionSet, u64); INLINE_NUMBERS]>,
    /// The value of FROM.
    pub start: Option<Start>,
    /// The value of TZ.
    pub zone: Option<Zone>,
    /// The value of ID.
    pub id: Option<&'a [u8]>,
    /// The value of BY. Empty without it.
    caller: &'a [u8],
}

impl<'a> Options<'a> {
    /// Adds the option `name`, which must be one of `accepted`. `next` returns the word after the name.
    pub fn add(
        &mut self,
        environment: &impl Environment,
        accepted: OptionSet,
        name: &[u8],
        next: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Result<(), Error> {
        let row = accepted.row_named(name).ok_or_else(|| Error::UnknownOption(name.into()))?;
        if self.read.contains(row.option) {
            return Err(Error::Twice(row.name));
        }
        self.read |= row.option;
        if let Some(value) = row.value {
            let word = next().ok_or(Error::NoValue(row.name, &row.error))?;
            self.read_value(row, value, word, environment)?;
            if row.zero_means_absent && self.number(row.option) == Some(0) {
                return Ok(());
            }
        }
        self.effective |= row.option;
        Ok(())
    }

    /// Refuses options that must not be used together, with this quantity or with this limit. There is no limit if the call
    /// names a policy.
    pub fn check(&self, quantity: i64, limit: Option<&LimitSpec>) -> Result<(), Error> {
        self.effective.rows().try_for_each(|row| row.check(self.effective, quantity, limit))
    }

    /// Returns whether this part of a limit, which was not given, could be added to the options that were, with this
    /// quantity.
    pub fn permits(&self, option: OptionSet, quantity: i64) -> bool {
        let clashes = |row: &OptionRow| {
            self.effective.intersects(row.of_call_with)
                || self.effective.rows().any(|other| row.clashes_with(other))
        };
        option.rows().all(|row| quantity >= row.min_quantity && !clashes(row))
    }

    /// Returns whether this option was given, with a value that has an effect: not for `LEAVE 0`.
    #[inline]
    pub fn has(&self, option: OptionSet) -> bool {
        self.effective.contains(option)
    }

    /// Returns the number that was given with this option; for a duration, milliseconds. `None` without the option.
    #[inline]
    pub fn number(&self, option: OptionSet) -> Option<u64> {
        self.numbers.iter().find(|(other, _)| *other == option).map(|(_, number)| *number)
    }

    /// Returns how the call waits. `None` without BLOCK.
    pub fn block(&self) -> Option<Block<'a>> {
        let ms = self.number(OptionSet::BLOCK)?;
        let weight = self.number(OptionSet::WEIGHT).unwrap_or(1);
        Some(Block { ms, caller: WeightedCaller { name: self.caller, weight } })
    }

    /// Returns the unit of the times in the reply.
    pub fn unit(&self) -> TimeUnit {
        match self.has(OptionSet::MS) {
            true => TimeUnit::Milliseconds,
            false => TimeUnit::Seconds,
        }
    }

    /// Returns the kind of window that these options ask for, once they were checked.
    pub fn window_kind(&self) -> WindowKind {
        if self.has(OptionSet::FIXED) {
            return WindowKind::Fixed { start: self.start, zone: self.zone };
        }
        let buckets = self.number(OptionSet::BUCKETS);
        WindowKind::Sliding { buckets: buckets.and_then(|buckets| u32::try_from(buckets).ok()) }
    }

    /// Reads the value of an option, which is of this kind.
    fn read_value(
        &mut self,
        row: &OptionRow,
        value: OptionValue,
        word: &'a [u8],
        environment: &impl Environment,
    ) -> Result<(), Error> {
        let number = match value {
            OptionValue::Integer { min, max } => {
                let number = parse_i64(word).and_then(|number| u64::try_from(number).ok());
                number.filter(|number| (min..=max).contains(number))
            }
            OptionValue::Duration { min_ms } => {
                if Period::parse(word) == Err(PeriodError::AmbiguousM) {
                    return Err(Error::AmbiguousDuration(row.name));
                }
                duration_ms(word).filter(|ms| (min_ms..=YEAR_MS).contains(ms))
            }
            OptionValue::Start => {
                self.start = Some(Start::parse(word).map_err(|error| match error {
                    AnchorError::NoSuchDay => Error::NoSuchDay,
                    AnchorError::Syntax => row.error,
                })?);
                return Ok(());
            }
            OptionValue::Zone => {
                self.zone = Some(environment.zone_by_name(word).ok_or(row.error)?);
                return Ok(());
            }
            OptionValue::Id => {
                self.id = Some(is_id(word).then_some(word).ok_or(row.error)?);
                return Ok(());
            }
            OptionValue::Caller => {
                self.caller = is_id(word).then_some(word).ok_or(row.error)?;
                return Ok(());
            }
        };
        self.numbers.push((row.option, number.ok_or(row.error)?));
        Ok(())
    }
}

/// Parses milliseconds, or a number with a unit.
fn duration_ms(text: &[u8]) -> Option<u64> {
    const UNITS: [&[u8]; 6] = [b"ms", b"s", b"min", b"h", b"d", b"w"];
    if let Some(ms) = parse_i64(text) {
        return u64::try_from(ms).ok();
    }
    match (text, Period::parse(text).map(|period| period.length())) {
        (_, Ok(Length::Ms(ms))) => Some(ms),
        // No period is 0, but a wait may be.
        ([b'0', unit @ ..], _) => UNITS.iter().any(|name| spells(unit, name)).then_some(0),
        _ => None,
    }
}

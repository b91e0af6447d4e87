//! The options of one call or of a policy's definition: read, checked, and their values.

use super::{spells, OptionRow, OptionSet, OptionValue};
use crate::environment::Environment;
use crate::error::Error;
use crate::limits::{LimitSpec, WindowKind};
use engine::anchor::{AnchorError, Start};
use engine::calendar::Zone;
use engine::decimal::parse_i64;
use engine::period::{Length, Period, PeriodError, YEAR_MS};
use engine::reservation::is_id;
use smallvec::SmallVec;

/// The value of an option in a call.
#[derive(Clone, Copy, Debug)]
enum Parsed<'a> {
    Number(u64),
    Start(Start),
    Zone(Zone),
    Word(&'a [u8]),
}

/// At least the maximum number of options with a value in one call.
const INLINE_VALUES: usize = 8;

/// The options of a call or of a policy's definition.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// All options that were read.
    read: OptionSet,
    /// The options that were read, without those whose value means the same as leaving them out (`LEAVE 0`).
    effective: OptionSet,
    /// The values of the options that have one.
    values: SmallVec<[(OptionSet, Parsed<'a>); INLINE_VALUES]>,
}

impl<'a> Options<'a> {
    /// Creates an empty set of options.
    pub fn new() -> Options<'a> {
        Options::default()
    }

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
            let value = row.read(value, word, environment)?;
            if row.zero_means_absent && matches!(value, Parsed::Number(0)) {
                return Ok(());
            }
            self.values.push((row.option, value));
        }
        self.effective |= row.option;
        Ok(())
    }

    /// Refuses options that must not be used together, with this quantity or with this limit. There is no limit if the call
    /// names a policy.
    pub fn check(&self, quantity: i64, limit: Option<&LimitSpec>) -> Result<(), Error> {
        self.effective.rows().try_for_each(|row| row.check(self.effective, quantity, limit))
    }

    /// Returns whether this option, which was not given, could be added to those that were, with this quantity.
    pub fn permits(&self, option: OptionSet, quantity: i64) -> bool {
        let clashes = |row: &OptionRow| self.effective.rows().any(|other| row.clashes_with(other));
        option.rows().all(|row| quantity >= row.min_quantity && !clashes(row))
    }

    /// Returns whether this option was given, with a value that has an effect: not for `LEAVE 0`.
    #[inline]
    pub fn has(&self, option: OptionSet) -> bool {
        self.effective.contains(option)
    }

    /// Returns the number that was given with this option; for a duration, milliseconds. `None` without the option. The
    /// three functions below are for values of other kinds.
    #[inline]
    pub fn number(&self, option: OptionSet) -> Option<u64> {
        let Parsed::Number(number) = self.value(option)? else { return None };
        Some(number)
    }

    /// Returns the start of windows that was given with this option.
    pub fn start(&self, option: OptionSet) -> Option<Start> {
        let Parsed::Start(start) = self.value(option)? else { return None };
        Some(start)
    }

    /// Returns the time zone that was given with this option.
    pub fn zone(&self, option: OptionSet) -> Option<Zone> {
        let Parsed::Zone(zone) = self.value(option)? else { return None };
        Some(zone)
    }

    /// Returns the word that was given with this option.
    pub fn word(&self, option: OptionSet) -> Option<&'a [u8]> {
        let Parsed::Word(word) = self.value(option)? else { return None };
        Some(word)
    }

    /// Returns the kind of window that these options ask for, once they were checked.
    pub fn window_kind(&self) -> WindowKind {
        if self.has(OptionSet::FIXED) {
            let (start, zone) = (self.start(OptionSet::FROM), self.zone(OptionSet::TZ));
            return WindowKind::Fixed { start, zone };
        }
        let buckets = self.number(OptionSet::BUCKETS);
        WindowKind::Sliding { buckets: buckets.and_then(|buckets| u32::try_from(buckets).ok()) }
    }

    #[inline]
    fn value(&self, option: OptionSet) -> Option<Parsed<'a>> {
        if !self.has(option) {
            return None;
        }
        self.values.iter().find(|(other, _)| *other == option).map(|(_, value)| *value)
    }
}

impl OptionRow {
    /// Parses the value of the option, which is of this kind.
    fn read<'w>(
        &self,
        value: OptionValue,
        word: &'w [u8],
        environment: &impl Environment,
    ) -> Result<Parsed<'w>, Error> {
        let parsed = match value {
            OptionValue::Integer { min, max } => {
                let number = parse_i64(word).and_then(|number| u64::try_from(number).ok());
                number.filter(|number| (min..=max).contains(number)).map(Parsed::Number)
            }
            OptionValue::Duration { min_ms } => {
                if Period::parse(word) == Err(PeriodError::AmbiguousM) {
                    return Err(Error::AmbiguousDuration(self.name));
                }
                let ms = duration_ms(word).filter(|ms| (min_ms..=YEAR_MS).contains(ms));
                ms.map(Parsed::Number)
            }
            OptionValue::Start => match Start::parse(word) {
                Err(AnchorError::NoSuchDay) => return Err(Error::NoSuchDay),
                start => start.ok().map(Parsed::Start),
            },
            OptionValue::Zone => environment.zone_by_name(word).map(Parsed::Zone),
            OptionValue::Id => is_id(word).then_some(Parsed::Word(word)),
        };
        parsed.ok_or(self.error)
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

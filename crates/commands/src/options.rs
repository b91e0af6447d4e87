//! The options of all commands: one row for each, and what follows from the rows. Reading an option, its errors, the
//! checks of what may stand together and COMMAND DOCS use the rows and know no option by name.
//!
//! To add an option, write its row, and name it in the sets of the commands that take it, which follow the rows.

use crate::arguments::check_id;
use crate::environment::Environment;
use crate::error::Error;
use crate::limits::LimitSpec;
use bitflags::bitflags;
use engine::anchor::{AnchorError, Start};
use engine::calendar::Zone;
use engine::decimal::{parse_i64, Text};
use engine::period::{Length, Period, PeriodError};
use engine::reservation::YEAR_MS;
use smallvec::SmallVec;
use std::ffi::CStr;

/// Returns whether `word` is this name, in any case. The spelling of the documentation is compared first, because most
/// callers use it.
#[inline]
pub fn spells(word: &[u8], name: &[u8]) -> bool {
    word == name || word.eq_ignore_ascii_case(name)
}

/// The set of these options.
macro_rules! set {
    ($($option:ident)|+) => { OptionSet::empty()$(.union(OptionSet::$option))+ };
}

/// Makes a flag of [`OptionSet`] and a row of [`TABLE`] of each option, in the same order. The option's name is the flag's.
macro_rules! options {
    ($($(#[doc = $doc:literal])+ $name:ident = $row:expr;)*) => {
        #[expect(clippy::upper_case_acronyms, reason = "these are the names of the options")]
        enum Position { $($name),* }

        bitflags! {
            /// A set of options.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct OptionSet: u32 {
                $($(#[doc = $doc])+ const $name = 1 << Position::$name as u32;)*
            }
        }

        /// All options, in the order of COMMAND DOCS.
        pub static TABLE: [OptionRow; [$(stringify!($name)),*].len()] = [
            $(named_row(OptionSet::$name, stringify!($name), concat!(stringify!($name), "\0"), $row)),*
        ];
    };
}

options! {
    /// `BUCKETS n`: at most this many entries.
    BUCKETS = OptionRow {
        value: Some(OptionValue::Integer { least: 1, most: 65_536 }),
        value_name: c"buckets",
        part_of_limit: true,
        semaphore_error: Some(Error::SemaphoreWindow),
        choice: Some(c"kind"),
        ..OptionRow::PLAIN
    };

    /// `FIXED`: windows of the calendar.
    FIXED = OptionRow {
        excludes: OptionSet::BUCKETS,
        part_of_limit: true,
        semaphore_error: Some(Error::SemaphoreWindow),
        group: Some(c"calendar"),
        ..OptionRow::PLAIN
    };

    /// `FROM anchor`: windows start there, or with the first event.
    FROM = OptionRow {
        value: Some(OptionValue::Start),
        value_name: c"anchor",
        needs: OptionSet::FIXED,
        part_of_limit: true,
        ..OptionRow::PLAIN
    };

    /// `TZ zone`: in this zone.
    TZ = OptionRow {
        value: Some(OptionValue::Zone),
        value_name: c"zone",
        needs: OptionSet::FIXED,
        part_of_limit: true,
        ..OptionRow::PLAIN
    };

    /// `LEAVE n`: keep this much for others.
    LEAVE = OptionRow {
        value: Some(OptionValue::Integer { least: 0, most: MAX_NUMBER }),
        value_name: c"leave",
        zero_means_absent: true,
        least_quantity: 0,
        ..OptionRow::PLAIN
    };

    /// `ATMOST`: take what is available, up to the quantity.
    ATMOST = OptionRow { least_quantity: 0, choice: Some(c"manner"), ..OptionRow::PLAIN };
    /// `FORCE`: take even if not enough is available.
    FORCE = OptionRow {
        excludes: set!(LEAVE | ATMOST | BLOCK | COUNTDENIED | AHEAD),
        least_quantity: 0,
        ..OptionRow::PLAIN
    };

    /// `COUNTDENIED`: denied calls count as well.
    COUNTDENIED = OptionRow::PLAIN;
    /// `LEASE ms`: how long the reservation holds.
    LEASE = OptionRow {
        value: Some(OptionValue::Duration { least_ms: 1 }),
        value_name: c"lease-ms",
        ..OptionRow::PLAIN
    };

    /// `COUNTLAPSED`: a reservation whose lease ends counts as an event at that moment.
    COUNTLAPSED = OptionRow { semaphore_error: Some(Error::SemaphoreCounts), ..OptionRow::PLAIN };
    /// `ID id`: the id of the reservation.
    ID = OptionRow {
        value: Some(OptionValue::Id),
        value_name: c"id",
        ..OptionRow::PLAIN
    };

    /// `BLOCK ms`: wait at most this long; 0 is for ever.
    BLOCK = OptionRow {
        value: Some(OptionValue::Duration { least_ms: 0 }),
        value_name: c"block-ms",
        choice: Some(c"wait"),
        ..OptionRow::PLAIN
    };

    /// `AHEAD ms`: book what becomes available within that time.
    AHEAD = OptionRow {
        value: Some(OptionValue::Duration { least_ms: 1 }),
        value_name: c"ahead-ms",
        excludes: set!(LEAVE | ATMOST | BLOCK),
        least_quantity: 0,
        ..OptionRow::PLAIN
    };

    /// `BAN ms`: a denial closes the key for this long.
    BAN = OptionRow {
        value: Some(OptionValue::Duration { least_ms: 1 }),
        value_name: c"ban-ms",
        excludes: set!(ATMOST | FORCE | BLOCK | AHEAD),
        least_quantity: 1,
        part_of_limit: true,
        ..OptionRow::PLAIN
    };

    /// `CHECK`: must be allowed, and takes nothing.
    CHECK = OptionRow {
        excludes: set!(ID | LEASE | COUNTLAPSED | COUNTDENIED | BAN | SHADOW),
        ..OptionRow::PLAIN
    };

    /// `SHADOW`: the clause is in the reply, but never denies the call.
    SHADOW = OptionRow { excludes: OptionSet::COUNTDENIED, ..OptionRow::PLAIN };
    /// `COUNT n`: at most this many rows.
    COUNT = OptionRow {
        value: Some(OptionValue::Integer { least: 1, most: MAX_NUMBER }),
        value_name: c"count",
        ..OptionRow::PLAIN
    };

    /// `RESET`: forget what is shown.
    RESET = OptionRow::PLAIN;
    /// `MS`: times in milliseconds.
    MS = OptionRow::PLAIN;
}

/// Which options go with which commands.
impl OptionSet {
    /// Of RL.THROTTLE.
    pub const THROTTLE: OptionSet = set!(THROTTLE_RO | ATMOST | FORCE | BLOCK | AHEAD | BAN);

    /// Of RL.THROTTLE_RO.
    pub const THROTTLE_RO: OptionSet = set!(LEAVE | MS);

    /// Of RL.WINDOW.
    pub const WINDOW: OptionSet = set!(WINDOW_RO | ATMOST | FORCE | COUNTDENIED | BLOCK | BAN);

    /// Of RL.WINDOW_RO and RL.ACQUIRE_RO.
    pub const WINDOW_RO: OptionSet = set!(BUCKETS | FIXED | FROM | TZ | LEAVE | MS);

    /// Of RL.ACQUIRE.
    pub const ACQUIRE: OptionSet = set!(WINDOW_RO | ATMOST | LEASE | COUNTLAPSED | ID | BLOCK);

    /// Options that no clause of RL.ALL takes.
    pub const NOT_IN_CLAUSE: OptionSet = set!(ATMOST | FORCE | BLOCK | AHEAD);

    /// Returns the options of clauses of RL.ALL whose command takes these. MS may only end the whole call.
    pub const fn in_clause(self) -> OptionSet {
        self.difference(OptionSet::NOT_IN_CLAUSE.union(OptionSet::MS)).union(set!(CHECK | SHADOW))
    }

    /// Returns the options in definitions of policies for a command that takes these.
    pub fn in_policy(self) -> OptionSet {
        let part_of_limit = self.rows().filter(|row| row.part_of_limit).map(|row| row.option);
        part_of_limit.chain([OptionSet::SHADOW]).collect()
    }

    /// Returns the rows of these options, in the order of [`TABLE`].
    pub fn rows(self) -> impl Iterator<Item = &'static OptionRow> {
        let mut left = self.bits();
        std::iter::from_fn(move || {
            let row = row_of(left)?;
            left &= left.wrapping_sub(1);
            Some(row)
        })
    }
}

/// Returns the row of the lowest flag in `bits`.
#[inline]
fn row_of(bits: u32) -> Option<&'static OptionRow> {
    TABLE.get(usize::try_from(bits.trailing_zeros()).ok()?)
}

/// The largest integer of Redis.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// An option: what follows its name, and what it may be combined with.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// The option.
    pub option: OptionSet,
    /// Its name, in upper case.
    pub name: &'static str,
    /// Its name in COMMAND DOCS.
    pub token: &'static CStr,
    /// What follows its name.
    pub value: Option<OptionValue>,
    /// The name of the value in COMMAND DOCS.
    pub value_name: &'static CStr,
    /// The error for a wrong value.
    pub error: Error,
    /// Whether the value 0 means the same as leaving the option out.
    pub zero_means_absent: bool,
    /// The options that it excludes. Of two that exclude each other, only one row says so.
    pub excludes: OptionSet,
    /// The option that it needs, or empty.
    pub needs: OptionSet,
    /// The least quantity that it may be combined with.
    pub least_quantity: i64,
    /// Whether it is a part of the limit. Then the definition of a policy may have it, and a call with `@policy` may not.
    pub part_of_limit: bool,
    /// The error if it is combined with period 0, a semaphore. `None` if that is allowed.
    pub semaphore_error: Option<Error>,
    /// The name in COMMAND DOCS of a choice between options that exclude each other and whose rows are neighbours. The first
    /// of these rows has it.
    pub choice: Option<&'static CStr>,
    /// The name in COMMAND DOCS of the option together with those that need it.
    pub group: Option<&'static CStr>,
}

/// What follows the name of an option.
#[derive(Clone, Copy, Debug)]
pub enum OptionValue {
    /// An integer in this range.
    Integer {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Milliseconds, or a number with a unit, up to a year.
    Duration {
        /// The least, in milliseconds.
        least_ms: u64,
    },
    /// Where windows start.
    Start,
    /// A time zone.
    Zone,
    /// The id of a reservation.
    Id,
}

impl OptionRow {
    /// The defaults of a row: an option without a value that may be combined with everything.
    const PLAIN: OptionRow = OptionRow {
        option: OptionSet::empty(),
        name: "",
        token: c"",
        value: None,
        value_name: c"",
        error: Error::internal(),
        zero_means_absent: false,
        excludes: OptionSet::empty(),
        needs: OptionSet::empty(),
        least_quantity: i64::MIN,
        part_of_limit: false,
        semaphore_error: None,
        choice: None,
        group: None,
    };

    /// Returns whether the options of both rows exclude each other.
    pub fn clashes_with(&self, other: &OptionRow) -> bool {
        self.excludes.contains(other.option) || other.excludes.contains(self.option)
    }

    /// Refuses the option if `others`, this quantity or a limit of this form exclude it.
    fn check(
        &self,
        others: OptionSet,
        quantity: i64,
        limit: Option<&LimitSpec>,
    ) -> Result<(), Error> {
        if quantity < self.least_quantity {
            return Err(Error::QuantityBelow(self.name, self.least_quantity));
        }
        if self.part_of_limit && limit.is_none() {
            return Err(Error::BesidePolicy(self.name));
        }
        if let Some(excluded) = self.excludes.intersection(others).rows().next() {
            return Err(Error::NotTogether(excluded.name, self.name));
        }
        if let Some(needed) = self.needs.difference(others).rows().next() {
            return Err(Error::Needs(self.name, needed.name));
        }
        match self.semaphore_error {
            Some(error) if matches!(limit, Some(LimitSpec::Window { period: None, .. })) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Returns the value that `word` spells, of the kind of `value`.
    fn read<'w>(
        &self,
        value: OptionValue,
        word: &'w [u8],
        environment: &impl Environment,
    ) -> Result<Parsed<'w>, Error> {
        let parsed = match value {
            OptionValue::Integer { least, most } => {
                let number = parse_i64(word).and_then(|number| u64::try_from(number).ok());
                number.filter(|number| (least..=most).contains(number)).map(Parsed::Number)
            }
            OptionValue::Duration { least_ms } => {
                if Period::parse(word) == Err(PeriodError::AmbiguousM) {
                    return Err(Error::AmbiguousUnit(self.name));
                }
                let ms = duration_ms(word).filter(|ms| (least_ms..=YEAR_MS).contains(ms));
                ms.map(Parsed::Number)
            }
            OptionValue::Start => match Start::parse(word) {
                Err(AnchorError::NoSuchDay) => return Err(Error::NoSuchDay),
                start => start.ok().map(Parsed::Start),
            },
            OptionValue::Zone => environment.zone_named(word).map(Parsed::Zone),
            OptionValue::Id => check_id(word).ok().map(|()| Parsed::Word(word)),
        };
        parsed.ok_or(self.error)
    }
}

/// Completes a row.
const fn named_row(
    option: OptionSet,
    name: &'static str,
    token: &'static str,
    row: OptionRow,
) -> OptionRow {
    let error = match row.value {
        Some(OptionValue::Integer { least, most }) => Error::OptionInteger(name, least, most),
        Some(OptionValue::Duration { least_ms }) => Error::OptionDuration(name, least_ms),
        Some(OptionValue::Start) => Error::From,
        Some(OptionValue::Zone) => Error::Zone,
        Some(OptionValue::Id) => Error::Id,
        None => Error::internal(),
    };
    let token = match CStr::from_bytes_with_nul(token.as_bytes()) {
        Ok(token) => token,
        Err(_) => c"",
    };
    OptionRow { option, name, token, error, ..row }
}

/// Parses milliseconds, or a number with a unit.
fn duration_ms(text: &[u8]) -> Option<u64> {
    if let Some(ms) = parse_i64(text) {
        return u64::try_from(ms).ok();
    }
    let with_unit = |text| match Period::parse(text).ok()?.length() {
        Length::Ms(ms) => Some(ms),
        Length::Months(_) => None,
    };
    match text {
        // No period is 0, but a wait may be.
        [b'0', unit @ ..] if unit.first().is_some_and(u8::is_ascii_alphabetic) => {
            let mut one = Text::<8>::from(&b"1"[..]);
            one.push(unit);
            // A longer word does not fit, and is no unit.
            let fits = one.as_bytes().len() == text.len();
            with_unit(one.as_bytes()).filter(|_| fits).map(|_| 0)
        }
        text => with_unit(text),
    }
}

/// A value that was given.
#[derive(Clone, Copy, Debug)]
enum Parsed<'a> {
    Number(u64),
    Start(Start),
    Zone(Zone),
    Word(&'a [u8]),
}

/// At least the number of options with a value that any one call can have.
const MAX_VALUES: usize = 8;

/// The options of a call.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Those that were read.
    read: OptionSet,
    /// Those that were read, except `LEAVE 0`.
    given: OptionSet,
    /// The values of those that have one.
    values: SmallVec<[(OptionSet, Parsed<'a>); MAX_VALUES]>,
}

impl<'a> Options<'a> {
    /// Creates an empty set of options.
    pub fn new() -> Options<'a> {
        Options::default()
    }

    /// Adds the option `name`, if it is one of `known`. `next` returns its value, if it has one.
    pub fn add(
        &mut self,
        environment: &impl Environment,
        known: OptionSet,
        name: &[u8],
        next: impl FnOnce() -> Option<&'a [u8]>,
    ) -> Result<(), Error> {
        let row = known.rows().find(|row| spells(name, row.name.as_bytes()));
        let row = row.ok_or_else(|| Error::UnknownOption(name.into()))?;
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
        self.given |= row.option;
        Ok(())
    }

    /// Refuses options that exclude each other, this quantity, or a limit of this form.
    pub fn check(&self, quantity: i64, limit: Option<&LimitSpec>) -> Result<(), Error> {
        self.given.rows().try_for_each(|row| row.check(self.given, quantity, limit))
    }

    /// Returns whether the option could be added to those that were given, with this quantity.
    pub fn permit(&self, option: OptionSet, quantity: i64) -> bool {
        let clashes = |row: &OptionRow| self.given.rows().any(|other| row.clashes_with(other));
        option.rows().all(|row| quantity >= row.least_quantity && !clashes(row))
    }

    /// Returns whether any option was given.
    #[inline]
    pub fn any(&self) -> bool {
        !self.given.is_empty()
    }

    /// Returns whether this option was given.
    #[inline]
    pub fn has(&self, option: OptionSet) -> bool {
        self.given.contains(option)
    }

    /// Returns the number that was given with this option; for a duration, milliseconds.
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

    #[inline]
    fn value(&self, option: OptionSet) -> Option<Parsed<'a>> {
        if !self.has(option) {
            return None;
        }
        self.values.iter().find(|(other, _)| *other == option).map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests;

//! The options of all commands, one row for each. The code that reads options, checks them against each other and shows them
//! in COMMAND DOCS uses the rows and knows no option by name.
//!
//! To add an option, write its row in `options!`, name it in the sets below of the commands that take it, and use it in
//! `Arguments::request`. docs/design.md lists the other places.

use crate::environment::Environment;
use crate::error::Error;
use crate::limits::{LimitSpec, WindowKind};
use bitflags::bitflags;
use engine::anchor::{AnchorError, Start};
use engine::calendar::Zone;
use engine::decimal::parse_i64;
use engine::period::{Length, Period, PeriodError};
use engine::reservation::{is_id, YEAR_MS};
use smallvec::SmallVec;
use std::ffi::CStr;

/// Returns whether `word` is this name, in any case. The spelling of the documentation is compared first, because most
/// callers use it.
#[inline]
pub fn spells(word: &[u8], name: &[u8]) -> bool {
    word == name || word.eq_ignore_ascii_case(name)
}

/// Makes a set of these options.
macro_rules! set {
    ($($option:ident)|+) => { OptionSet::empty()$(.union(OptionSet::$option))+ };
}

/// Makes a flag of [`OptionSet`] and a row of [`TABLE`] for each option, in the same order. The flag has the name of the
/// option.
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
        part_of_limit: true,
        semaphore_error: Some(Error::NeedsWindow("BUCKETS and FIXED")),
        choice: Some(c"kind"),
        ..OptionRow::with_value(c"buckets", OptionValue::Integer { min: 1, max: 65_536 })
    };

    /// `FIXED`: windows of the calendar.
    FIXED = OptionRow {
        excludes: OptionSet::BUCKETS,
        part_of_limit: true,
        semaphore_error: Some(Error::NeedsWindow("BUCKETS and FIXED")),
        group: Some(c"calendar"),
        ..OptionRow::PLAIN
    };

    /// `FROM anchor`: windows start there, or with the first event.
    FROM = OptionRow {
        needs: OptionSet::FIXED,
        part_of_limit: true,
        ..OptionRow::with_value(c"anchor", OptionValue::Start)
    };

    /// `TZ zone`: in this zone.
    TZ = OptionRow {
        needs: OptionSet::FIXED,
        part_of_limit: true,
        ..OptionRow::with_value(c"zone", OptionValue::Zone)
    };

    /// `LEAVE n`: keep this much for others.
    LEAVE = OptionRow {
        zero_means_absent: true,
        min_quantity: 0,
        ..OptionRow::with_value(c"leave", OptionValue::Integer { min: 0, max: MAX_NUMBER })
    };

    /// `ATMOST`: take as much of the quantity as is available.
    ATMOST = OptionRow { min_quantity: 0, choice: Some(c"manner"), ..OptionRow::PLAIN };
    /// `FORCE`: take even if not enough is available.
    FORCE = OptionRow {
        excludes: set!(LEAVE | ATMOST | BLOCK | COUNTDENIED | AHEAD),
        min_quantity: 0,
        ..OptionRow::PLAIN
    };

    /// `COUNTDENIED`: denied calls count as well.
    COUNTDENIED = OptionRow::PLAIN;
    /// `LEASE ms`: how long the reservation holds.
    LEASE = OptionRow::with_value(c"lease-ms", OptionValue::Duration { min_ms: 1 });

    /// `COUNTLAPSED`: a reservation whose lease ends counts as an event at that moment.
    COUNTLAPSED = OptionRow { semaphore_error: Some(Error::NeedsWindow("COUNTLAPSED")), ..OptionRow::PLAIN };
    /// `ID id`: the id of the reservation.
    ID = OptionRow::with_value(c"id", OptionValue::Id);

    /// `BLOCK ms`: wait at most this long, or forever for 0.
    BLOCK = OptionRow {
        choice: Some(c"wait"),
        ..OptionRow::with_value(c"block-ms", OptionValue::Duration { min_ms: 0 })
    };

    /// `AHEAD ms`: book what becomes available within that time.
    AHEAD = OptionRow {
        excludes: set!(LEAVE | ATMOST | BLOCK),
        min_quantity: 0,
        ..OptionRow::with_value(c"ahead-ms", OptionValue::Duration { min_ms: 1 })
    };

    /// `BAN ms`: a denial closes the key for this long.
    BAN = OptionRow {
        excludes: set!(ATMOST | FORCE | BLOCK | AHEAD),
        min_quantity: 1,
        part_of_limit: true,
        ..OptionRow::with_value(c"ban-ms", OptionValue::Duration { min_ms: 1 })
    };

    /// `CHECK`: must be allowed, and takes nothing.
    CHECK = OptionRow {
        excludes: set!(ID | LEASE | COUNTLAPSED | COUNTDENIED | BAN | SHADOW),
        ..OptionRow::PLAIN
    };

    /// `SHADOW`: the clause is in the reply, but never denies the call.
    SHADOW = OptionRow { excludes: OptionSet::COUNTDENIED, ..OptionRow::PLAIN };
    /// `COUNT n`: at most this many rows.
    COUNT = OptionRow::with_value(c"count", OptionValue::Integer { min: 1, max: MAX_NUMBER });

    /// `RESET`: forget all rows.
    RESET = OptionRow::PLAIN;
    /// `MS`: times in milliseconds.
    MS = OptionRow::PLAIN;
}

/// The options of each command.
impl OptionSet {
    /// The options of RL.THROTTLE.
    pub const THROTTLE: OptionSet = set!(THROTTLE_RO | ATMOST | FORCE | BLOCK | AHEAD | BAN);

    /// The options of RL.THROTTLE_RO.
    pub const THROTTLE_RO: OptionSet = set!(LEAVE | MS);

    /// The options of RL.WINDOW.
    pub const WINDOW: OptionSet = set!(WINDOW_RO | ATMOST | FORCE | COUNTDENIED | BLOCK | BAN);

    /// The options of RL.WINDOW_RO and RL.ACQUIRE_RO.
    pub const WINDOW_RO: OptionSet = set!(BUCKETS | FIXED | FROM | TZ | LEAVE | MS);

    /// The options of RL.ACQUIRE.
    pub const ACQUIRE: OptionSet = set!(WINDOW_RO | ATMOST | LEASE | COUNTLAPSED | ID | BLOCK);

    /// The options that no clause of RL.ALL takes.
    pub const NOT_IN_CLAUSE: OptionSet = set!(ATMOST | FORCE | BLOCK | AHEAD);

    /// Returns the options of clauses of RL.ALL whose command takes these. MS may only end the whole call.
    pub const fn in_clause(self) -> OptionSet {
        self.difference(OptionSet::NOT_IN_CLAUSE.union(OptionSet::MS)).union(set!(CHECK | SHADOW))
    }

    /// Returns the options that the definition of a policy may have if the command that uses the policy takes these: those
    /// that are part of the limit, and SHADOW.
    pub fn in_policy(self) -> OptionSet {
        let part_of_limit = self.rows().filter(|row| row.part_of_limit).map(|row| row.option);
        part_of_limit.chain([OptionSet::SHADOW]).collect()
    }

    /// Returns the row of the option with this name in any case, if it is one of these.
    pub fn row_named(self, name: &[u8]) -> Option<&'static OptionRow> {
        self.rows().find(|row| spells(name, row.name.as_bytes()))
    }

    /// Returns the rows of these options, in the order of [`TABLE`].
    pub fn rows(self) -> impl Iterator<Item = &'static OptionRow> {
        let mut left = self.bits();
        std::iter::from_fn(move || {
            let row = TABLE.get(usize::try_from(left.trailing_zeros()).ok()?)?;
            left &= left.wrapping_sub(1);
            Some(row)
        })
    }
}

/// The largest integer of Redis.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// The row of an option: its name, its value, and the rules for combining it.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// The option as a set of one.
    pub option: OptionSet,
    /// The name, in upper case.
    pub name: &'static str,
    /// The name in COMMAND DOCS.
    pub token: &'static CStr,
    /// The kind of value that follows the name, if any.
    pub value: Option<OptionValue>,
    /// The name of the value in COMMAND DOCS.
    pub value_name: &'static CStr,
    /// The error for a wrong value.
    pub error: Error,
    /// True if the value 0 means the same as leaving the option out.
    pub zero_means_absent: bool,
    /// The options that it must not be combined with. Of two such options, only one row says so.
    pub excludes: OptionSet,
    /// The option that it needs, or empty.
    pub needs: OptionSet,
    /// The minimum quantity that it may be combined with.
    pub min_quantity: i64,
    /// True for a part of the limit, which the definition of a policy may have, but not a call with `@policy`.
    pub part_of_limit: bool,
    /// The error for period 0, a semaphore. `None` if the option may be used with it.
    pub semaphore_error: Option<Error>,
    /// The name in COMMAND DOCS of a choice between neighbours that exclude each other. The first of their rows has it.
    pub choice: Option<&'static CStr>,
    /// The name in COMMAND DOCS of a group: the option and those that need it.
    pub group: Option<&'static CStr>,
}

/// The kind of value that follows the name of an option.
#[derive(Clone, Copy, Debug)]
pub enum OptionValue {
    /// An integer in this range.
    Integer {
        /// The lowest value that is allowed.
        min: u64,
        /// The highest value that is allowed.
        max: u64,
    },
    /// Milliseconds, or a number with a unit, up to a year.
    Duration {
        /// The shortest duration that is allowed, in milliseconds.
        min_ms: u64,
    },
    /// The date and time at which a window starts, or `first`.
    Start,
    /// The name of a time zone, as in `Asia/Shanghai`.
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
        min_quantity: i64::MIN,
        part_of_limit: false,
        semaphore_error: None,
        choice: None,
        group: None,
    };

    /// The same with a value after the name, which COMMAND DOCS shows as `value_name`.
    const fn with_value(value_name: &'static CStr, value: OptionValue) -> OptionRow {
        OptionRow { value: Some(value), value_name, ..OptionRow::PLAIN }
    }

    /// Returns whether the options of both rows exclude each other.
    pub fn clashes_with(&self, other: &OptionRow) -> bool {
        self.excludes.contains(other.option) || other.excludes.contains(self.option)
    }

    /// Refuses the option if it must not be used with these other options, with this quantity or with this limit. There is
    /// no limit if the call names a policy.
    fn check(
        &self,
        others: OptionSet,
        quantity: i64,
        limit: Option<&LimitSpec>,
    ) -> Result<(), Error> {
        if quantity < self.min_quantity {
            return Err(Error::QuantityBelow(self.name, self.min_quantity));
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

/// Completes a row.
const fn named_row(
    option: OptionSet,
    name: &'static str,
    token: &'static str,
    row: OptionRow,
) -> OptionRow {
    let error = match row.value {
        Some(OptionValue::Integer { min, max }) => Error::OptionInteger(name, min, max),
        Some(OptionValue::Duration { min_ms }) => Error::OptionDuration(name, min_ms),
        Some(OptionValue::Start) => Error::InvalidFrom,
        Some(OptionValue::Zone) => Error::InvalidZone,
        Some(OptionValue::Id) => Error::InvalidId,
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

#[cfg(test)]
mod tests;

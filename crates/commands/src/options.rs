//! The options of all commands: one row for each, and what follows from the rows. Reading an option, its errors, the
//! checks of what may stand together and COMMAND DOCS use the rows and know no option by name.
//!
//! To add an option, write its row, and name it in the sets of the commands that take it, which follow the rows.

use crate::environment::Environment;
use crate::error::Error;
use crate::limits::LimitSpec;
use bitflags::bitflags;
use engine::anchor::{AnchorError, Start};
use engine::calendar::Zone;
use engine::decimal::{parse_i64, Text};
use engine::period::{Length, Period};
use engine::reservation::{MAX_ID, YEAR_MS};
use std::ffi::CStr;

/// Whether `word` is this name, in any case. Most write it as the documentation does, which is compared first.
#[inline]
pub fn spells(word: &[u8], name: &[u8]) -> bool {
    word == name || word.eq_ignore_ascii_case(name)
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
        pub static TABLE: [OptionRow; [$(stringify!($name)),*].len()] = with_places([
            $(named_row(OptionSet::$name, stringify!($name), concat!(stringify!($name), "\0"), $row)),*
        ]);
    };
}

options! {
    /// `BUCKETS n`: at most this many entries.
    BUCKETS = OptionRow {
        value: Some(OptionValue::Integer { name: c"buckets", least: 1, most: 65_536 }),
        says_limit: true,
        period_0: Some(Error::SemaphoreWindow),
        choice: Some(c"kind"),
        ..OptionRow::PLAIN
    };
    /// `FIXED`: windows of the calendar.
    FIXED = OptionRow {
        excludes: OptionSet::BUCKETS,
        says_limit: true,
        period_0: Some(Error::SemaphoreWindow),
        group: Some(c"calendar"),
        ..OptionRow::PLAIN
    };
    /// `FROM anchor`: windows start there, or with the first event.
    FROM = OptionRow {
        value: Some(OptionValue::Start { name: c"anchor" }),
        needs: OptionSet::FIXED,
        says_limit: true,
        ..OptionRow::PLAIN
    };
    /// `TZ zone`: in this zone.
    TZ = OptionRow {
        value: Some(OptionValue::Zone { name: c"zone" }),
        needs: OptionSet::FIXED,
        says_limit: true,
        ..OptionRow::PLAIN
    };
    /// `LEAVE n`: keep so much for others.
    LEAVE = OptionRow {
        value: Some(OptionValue::Integer { name: c"leave", least: 0, most: MAX_NUMBER }),
        void_at_0: true,
        least_quantity: 0,
        ..OptionRow::PLAIN
    };
    /// `ATMOST`: take less where there is less.
    ATMOST = OptionRow { least_quantity: 0, choice: Some(c"manner"), ..OptionRow::PLAIN };
    /// `FORCE`: take also where there is not enough.
    FORCE = OptionRow {
        excludes: OptionSet::LEAVE
            .union(OptionSet::ATMOST)
            .union(OptionSet::BLOCK)
            .union(OptionSet::COUNTDENIED)
            .union(OptionSet::AHEAD),
        least_quantity: 0,
        ..OptionRow::PLAIN
    };
    /// `COUNTDENIED`: denied calls count as well.
    COUNTDENIED = OptionRow::PLAIN;
    /// `LEASE ms`: how long a reservation lasts.
    LEASE = OptionRow {
        value: Some(OptionValue::Duration { name: c"lease-ms", least_ms: 1 }),
        ..OptionRow::PLAIN
    };
    /// `COUNTLAPSED`: a reservation whose lease ends counts as an event of that moment.
    COUNTLAPSED = OptionRow { period_0: Some(Error::SemaphoreCounts), ..OptionRow::PLAIN };
    /// `ID id`: what the caller calls it.
    ID = OptionRow {
        value: Some(OptionValue::Word { name: c"id", most_bytes: MAX_ID, error: Error::Id }),
        ..OptionRow::PLAIN
    };
    /// `BLOCK ms`: wait so long at most; 0 is for ever.
    BLOCK = OptionRow {
        value: Some(OptionValue::Duration { name: c"block-ms", least_ms: 0 }),
        choice: Some(c"wait"),
        ..OptionRow::PLAIN
    };
    /// `AHEAD ms`: take what can be had within that time.
    AHEAD = OptionRow {
        value: Some(OptionValue::Duration { name: c"ahead-ms", least_ms: 1 }),
        excludes: OptionSet::LEAVE.union(OptionSet::ATMOST).union(OptionSet::BLOCK),
        least_quantity: 0,
        ..OptionRow::PLAIN
    };
    /// `BAN ms`: a denial closes the key for so long.
    BAN = OptionRow {
        value: Some(OptionValue::Duration { name: c"ban-ms", least_ms: 1 }),
        excludes: OptionSet::ATMOST.union(OptionSet::FORCE).union(OptionSet::BLOCK).union(OptionSet::AHEAD),
        least_quantity: 1,
        says_limit: true,
        ..OptionRow::PLAIN
    };
    /// `CHECK`: must be allowed, and takes nothing.
    CHECK = OptionRow {
        excludes: OptionSet::ID
            .union(OptionSet::LEASE)
            .union(OptionSet::COUNTLAPSED)
            .union(OptionSet::COUNTDENIED)
            .union(OptionSet::BAN)
            .union(OptionSet::SHADOW),
        ..OptionRow::PLAIN
    };
    /// `SHADOW`: the clause is in the reply, but never denies the call.
    SHADOW = OptionRow { excludes: OptionSet::COUNTDENIED, ..OptionRow::PLAIN };
    /// `COUNT n`: at most this many rows.
    COUNT = OptionRow {
        value: Some(OptionValue::Integer { name: c"count", least: 1, most: MAX_NUMBER }),
        ..OptionRow::PLAIN
    };
    /// `RESET`: forget what is shown.
    RESET = OptionRow::PLAIN;
    /// `MS`: times in milliseconds.
    MS = OptionRow::PLAIN;
}

/// Which options go with which commands.
impl OptionSet {
    /// Those that say how a window moves.
    const MOVES: OptionSet =
        OptionSet::BUCKETS.union(OptionSet::FIXED).union(OptionSet::FROM).union(OptionSet::TZ);

    /// Of RL.THROTTLE.
    pub const THROTTLE: OptionSet = OptionSet::THROTTLE_RO
        .union(OptionSet::ATMOST)
        .union(OptionSet::FORCE)
        .union(OptionSet::BLOCK)
        .union(OptionSet::AHEAD)
        .union(OptionSet::BAN);

    /// Of RL.THROTTLE_RO.
    pub const THROTTLE_RO: OptionSet = OptionSet::LEAVE.union(OptionSet::MS);

    /// Of RL.WINDOW.
    pub const WINDOW: OptionSet = OptionSet::WINDOW_RO
        .union(OptionSet::ATMOST)
        .union(OptionSet::FORCE)
        .union(OptionSet::COUNTDENIED)
        .union(OptionSet::BLOCK)
        .union(OptionSet::BAN);

    /// Of RL.WINDOW_RO and RL.ACQUIRE_RO.
    pub const WINDOW_RO: OptionSet = OptionSet::MOVES.union(OptionSet::LEAVE).union(OptionSet::MS);

    /// Of RL.ACQUIRE.
    pub const ACQUIRE: OptionSet = OptionSet::WINDOW_RO
        .union(OptionSet::ATMOST)
        .union(OptionSet::LEASE)
        .union(OptionSet::COUNTLAPSED)
        .union(OptionSet::ID)
        .union(OptionSet::BLOCK);

    /// Of the clauses of RL.ALL whose command takes these.
    pub const fn in_clause(self) -> OptionSet {
        const OF_WHOLE_CALL: OptionSet = OptionSet::ATMOST
            .union(OptionSet::FORCE)
            .union(OptionSet::BLOCK)
            .union(OptionSet::AHEAD)
            .union(OptionSet::MS);
        self.difference(OF_WHOLE_CALL).union(OptionSet::CHECK).union(OptionSet::SHADOW)
    }

    /// Of the definitions of policies that stand for the limit of a command with these.
    pub fn in_policy(self) -> OptionSet {
        let says_limit = self.rows().filter(|row| row.says_limit).map(|row| row.option);
        says_limit.chain([OptionSet::SHADOW]).collect()
    }

    /// The rows of these options, in the order of [`TABLE`].
    pub fn rows(self) -> impl Iterator<Item = &'static OptionRow> {
        let mut left = self.bits();
        std::iter::from_fn(move || {
            let row = row_of(left)?;
            left &= left.wrapping_sub(1);
            Some(row)
        })
    }
}

/// The row of the lowest flag in `bits`.
#[inline]
fn row_of(bits: u32) -> Option<&'static OptionRow> {
    TABLE.get(usize::try_from(bits.trailing_zeros()).ok()?)
}

/// The largest integer that Redis knows.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// An option: what follows its name, and what it may be combined with.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// The option.
    pub option: OptionSet,
    /// Its name, in upper case.
    pub name: &'static str,
    /// The same for COMMAND DOCS.
    pub token: &'static CStr,
    /// What follows its name.
    pub value: Option<OptionValue>,
    /// The error for a wrong value.
    pub error: Error,
    /// The place of its value in [`Options`], among those of its kind.
    value_at: usize,
    /// Its value 0 is as if the option were not there.
    pub void_at_0: bool,
    /// The options that it excludes. Of two that exclude each other, only one row says so.
    pub excludes: OptionSet,
    /// The option that it needs, or empty.
    pub needs: OptionSet,
    /// The least quantity that it may be combined with.
    pub least_quantity: i64,
    /// Whether it is a part of the limit. Then the definition of a policy may have it, and a call with `@policy` may not.
    pub says_limit: bool,
    /// The error if it is combined with period 0, a semaphore. `None` if that is allowed.
    pub period_0: Option<Error>,
    /// The name in COMMAND DOCS of a choice between options that exclude each other and whose rows are neighbours. The first
    /// of these rows has it.
    pub choice: Option<&'static CStr>,
    /// The name in COMMAND DOCS of the option together with those that need it.
    pub group: Option<&'static CStr>,
}

/// What follows the name of an option. The name of the value is that in COMMAND DOCS.
#[derive(Clone, Copy, Debug)]
pub enum OptionValue {
    /// An integer in this range.
    Integer {
        /// Its name.
        name: &'static CStr,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Milliseconds, or a number with a unit, up to a year.
    Duration {
        /// Its name.
        name: &'static CStr,
        /// The least, in milliseconds.
        least_ms: u64,
    },
    /// Where windows start.
    Start {
        /// Its name.
        name: &'static CStr,
    },
    /// A time zone.
    Zone {
        /// Its name.
        name: &'static CStr,
    },
    /// A word that is not empty, which its use reads.
    Word {
        /// Its name.
        name: &'static CStr,
        /// How long it may be.
        most_bytes: usize,
        /// The error for a wrong one, which says what it may be.
        error: Error,
    },
}

impl OptionRow {
    /// The defaults of a row: an option without a value that may be combined with everything.
    const PLAIN: OptionRow = OptionRow {
        option: OptionSet::empty(),
        name: "",
        token: c"",
        value: None,
        error: Error::internal(),
        value_at: usize::MAX,
        void_at_0: false,
        excludes: OptionSet::empty(),
        needs: OptionSet::empty(),
        least_quantity: i64::MIN,
        says_limit: false,
        period_0: None,
        choice: None,
        group: None,
    };

    /// Whether the options of both rows exclude each other.
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
        if self.says_limit && limit.is_none() {
            return Err(Error::BesidePolicy(self.name));
        }
        if let Some(excluded) = self.excludes.intersection(others).rows().next() {
            return Err(Error::NotTogether(excluded.name, self.name));
        }
        if let Some(needed) = self.needs.difference(others).rows().next() {
            return Err(Error::Needs(self.name, needed.name));
        }
        match self.period_0 {
            Some(error) if matches!(limit, Some(LimitSpec::Window { period: None, .. })) => {
                Err(error)
            }
            _ => Ok(()),
        }
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
        Some(OptionValue::Integer { least, most, .. }) => Error::OptionInteger(name, least, most),
        Some(OptionValue::Duration { least_ms, .. }) => Error::OptionDuration(name, least_ms),
        Some(OptionValue::Start { .. }) => Error::From,
        Some(OptionValue::Zone { .. }) => Error::Zone,
        Some(OptionValue::Word { error, .. }) => error,
        None => Error::internal(),
    };
    let token = match CStr::from_bytes_with_nul(token.as_bytes()) {
        Ok(token) => token,
        Err(_) => c"",
    };
    OptionRow { option, name, token, error, ..row }
}

/// Numbers the rows whose values are kept in the same list of [`Options`].
#[expect(clippy::indexing_slicing, reason = "it is checked when this is built")]
const fn with_places<const N: usize>(mut rows: [OptionRow; N]) -> [OptionRow; N] {
    let mut at = 0;
    while at < N {
        if let Some(value) = rows[at].value {
            rows[at].value_at = kept_before(&rows, at, value);
        }
        at = at.saturating_add(1);
    }
    rows
}

/// How many of the first `end` rows have values that are kept in the same list as `value`.
#[expect(clippy::indexing_slicing, reason = "it is checked when this is built")]
const fn kept_before(rows: &[OptionRow], end: usize, value: OptionValue) -> usize {
    let (mut at, mut kept) = (0, 0usize);
    while at < end {
        if let Some(other) = rows[at].value {
            kept = kept.saturating_add(other.is_kept_as(value) as usize);
        }
        at = at.saturating_add(1);
    }
    kept
}

impl OptionValue {
    /// Whether values of both kinds are kept in the same list.
    const fn is_kept_as(self, other: OptionValue) -> bool {
        match self {
            OptionValue::Integer { .. } | OptionValue::Duration { .. } => {
                matches!(other, OptionValue::Integer { .. } | OptionValue::Duration { .. })
            }
            OptionValue::Start { .. } => matches!(other, OptionValue::Start { .. }),
            OptionValue::Zone { .. } => matches!(other, OptionValue::Zone { .. }),
            OptionValue::Word { .. } => matches!(other, OptionValue::Word { .. }),
        }
    }

    /// The error for a `word` that is no such value, if it is not that of the row.
    fn special_error(self, word: &[u8]) -> Option<Error> {
        let special = matches!(self, OptionValue::Start { .. })
            && Start::parse(word) == Err(AnchorError::NoSuchDay);
        special.then_some(Error::NoSuchDay)
    }

    /// The value that `word` spells.
    fn read<'w>(self, word: &'w [u8], environment: &impl Environment) -> Option<Parsed<'w>> {
        match self {
            OptionValue::Integer { least, most, .. } => {
                let value = u64::try_from(parse_i64(word)?).ok()?;
                (least..=most).contains(&value).then_some(Parsed::Number(value))
            }
            OptionValue::Duration { least_ms, .. } => {
                let ms = duration_ms(word)?;
                (least_ms..=YEAR_MS).contains(&ms).then_some(Parsed::Number(ms))
            }
            OptionValue::Start { .. } => Start::parse(word).ok().map(Parsed::Start),
            OptionValue::Zone { .. } => environment.zone_named(word).map(Parsed::Zone),
            OptionValue::Word { most_bytes, .. } => {
                (1..=most_bytes).contains(&word.len()).then_some(Parsed::Word(word))
            }
        }
    }
}

/// Milliseconds, or a number with a unit.
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

/// The options of a call. It is small, as each call has one.
#[derive(Debug)]
pub struct Options<'a> {
    /// Those that were read.
    read: OptionSet,
    /// Of these, those that matter: without `LEAVE 0`.
    given: OptionSet,
    numbers: [u64; NUMBERS],
    starts: [Option<Start>; STARTS],
    zones: [Option<Zone>; ZONES],
    words: [&'a [u8]; WORDS],
}

const NUMBERS: usize =
    kept_before(&TABLE, TABLE.len(), OptionValue::Integer { name: c"", least: 0, most: 0 });
const STARTS: usize = kept_before(&TABLE, TABLE.len(), OptionValue::Start { name: c"" });
const ZONES: usize = kept_before(&TABLE, TABLE.len(), OptionValue::Zone { name: c"" });
const WORDS: usize = kept_before(
    &TABLE,
    TABLE.len(),
    OptionValue::Word { name: c"", most_bytes: 0, error: Error::internal() },
);

impl Default for Options<'_> {
    fn default() -> Self {
        Options::new()
    }
}

impl<'a> Options<'a> {
    /// No options.
    pub fn new() -> Options<'a> {
        Options {
            read: OptionSet::empty(),
            given: OptionSet::empty(),
            numbers: [0; NUMBERS],
            starts: [None; STARTS],
            zones: [None; ZONES],
            words: [b""; WORDS],
        }
    }

    /// Adds the option `name`, if it is one of `known`. Its value, if it has one, is asked from `next`.
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
            let wrong = || value.special_error(word).unwrap_or(row.error);
            let value = value.read(word, environment).ok_or_else(wrong)?;
            if row.void_at_0 && matches!(value, Parsed::Number(0)) {
                return Ok(());
            }
            self.keep(row.value_at, value).ok_or(Error::internal())?;
        }
        self.given |= row.option;
        Ok(())
    }

    fn keep(&mut self, at: usize, value: Parsed<'a>) -> Option<()> {
        match value {
            Parsed::Number(number) => *self.numbers.get_mut(at)? = number,
            Parsed::Start(start) => *self.starts.get_mut(at)? = Some(start),
            Parsed::Zone(zone) => *self.zones.get_mut(at)? = Some(zone),
            Parsed::Word(word) => *self.words.get_mut(at)? = word,
        }
        Some(())
    }

    /// Refuses options that exclude each other, this quantity, or a limit of this form.
    pub fn check(&self, quantity: i64, limit: Option<&LimitSpec>) -> Result<(), Error> {
        self.given.rows().try_for_each(|row| row.check(self.given, quantity, limit))
    }

    /// Whether the option could be added to those that were given, with this quantity.
    pub fn permit(&self, option: OptionSet, quantity: i64) -> bool {
        let clashes = |row: &OptionRow| self.given.rows().any(|other| row.clashes_with(other));
        option.rows().all(|row| quantity >= row.least_quantity && !clashes(row))
    }

    /// Whether any option was given.
    #[inline]
    pub fn any(&self) -> bool {
        !self.given.is_empty()
    }

    /// Whether this option was given.
    #[inline]
    pub fn has(&self, option: OptionSet) -> bool {
        self.given.contains(option)
    }

    /// The number that was given with this option; of a length of time the milliseconds.
    #[inline]
    pub fn number(&self, option: OptionSet) -> Option<u64> {
        match self.place(option)? {
            (OptionValue::Integer { .. } | OptionValue::Duration { .. }, at) => {
                self.numbers.get(at).copied()
            }
            (
                OptionValue::Start { .. } | OptionValue::Zone { .. } | OptionValue::Word { .. },
                _,
            ) => None,
        }
    }

    /// The start of windows that was given with this option.
    #[inline]
    pub fn start(&self, option: OptionSet) -> Option<Start> {
        match self.place(option)? {
            (OptionValue::Start { .. }, at) => self.starts.get(at).copied()?,
            _ => None,
        }
    }

    /// The time zone that was given with this option.
    #[inline]
    pub fn zone(&self, option: OptionSet) -> Option<Zone> {
        match self.place(option)? {
            (OptionValue::Zone { .. }, at) => self.zones.get(at).copied()?,
            _ => None,
        }
    }

    /// The word that was given with this option.
    #[inline]
    pub fn word(&self, option: OptionSet) -> Option<&'a [u8]> {
        match self.place(option)? {
            (OptionValue::Word { .. }, at) => self.words.get(at).copied(),
            _ => None,
        }
    }

    /// Where the value of an option is kept, if it was given.
    #[inline]
    fn place(&self, option: OptionSet) -> Option<(OptionValue, usize)> {
        if !self.has(option) {
            return None;
        }
        let row = row_of(option.bits())?;
        Some((row.value?, row.value_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::TestEnvironment;

    #[test]
    fn each_option_is_found_by_its_name_in_any_case_where_it_is_known() {
        for row in &TABLE {
            assert_eq!(row.token.to_bytes(), row.name.as_bytes());
            for name in [row.name.to_lowercase(), row.name.to_uppercase()] {
                let word = || Some(if row.option == OptionSet::TZ { &b"UTC"[..] } else { b"1" });
                assert_eq!(
                    Options::new().add(
                        &TestEnvironment::default(),
                        row.option,
                        name.as_bytes(),
                        word
                    ),
                    Ok(())
                );
                let others = OptionSet::all().difference(row.option);
                let unknown = Error::UnknownOption(name.as_bytes().into());
                assert_eq!(
                    Options::new().add(&TestEnvironment::default(), others, name.as_bytes(), word),
                    Err(unknown)
                );
            }
        }
        for name in ["", "M", "MSS"] {
            assert!(
                Options::new()
                    .add(&TestEnvironment::default(), OptionSet::all(), name.as_bytes(), || None)
                    .is_err(),
                "{name}"
            );
        }
    }

    #[test]
    fn each_value_is_kept_and_read_back() {
        let (mut options, environment) = (Options::new(), TestEnvironment::default());
        let rows = || TABLE.iter().filter(|row| row.value.is_some());
        // An offset in minutes is a zone too, and without its sign a time of day.
        let words: Vec<_> = (10..).take(rows().count()).map(|it| format!("+00:{it}")).collect();
        let is_number = |row: &OptionRow| {
            matches!(row.value, Some(OptionValue::Integer { .. } | OptionValue::Duration { .. }))
        };
        for (row, word) in rows().zip(&words) {
            let word = match row.value {
                Some(OptionValue::Start { .. }) => &word[1..],
                _ if is_number(row) => &word[4..],
                _ => word,
            };
            options
                .add(&environment, OptionSet::all(), row.name.as_bytes(), || Some(word.as_bytes()))
                .unwrap();
        }
        for (row, word) in rows().zip(&words) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let zone = |zone| text(environment.zones.borrow().name(zone).as_bytes());
            let start = |start| match start {
                Start::First => panic!("it is an anchor"),
                Start::Anchor(anchor) => format!("+{anchor}"),
            };
            let read = [
                options.start(row.option).map(start),
                options.number(row.option).map(|number| format!("+00:{number}")),
                options.zone(row.option).map(zone),
                options.word(row.option).map(text),
            ];
            assert_eq!(read.iter().flatten().collect::<Vec<_>>(), [word], "{}", row.name);
        }
        assert_eq!(options.number(OptionSet::MS), None);
        assert_eq!(Options::new().number(OptionSet::LEAVE), None);
    }

    #[test]
    fn leave_0_is_as_if_it_were_not_there_but_is_there_once() {
        let (mut options, environment) = (Options::new(), TestEnvironment::default());
        let zero = || Some(&b"0"[..]);
        assert_eq!(options.add(&environment, OptionSet::LEAVE, b"LEAVE", zero), Ok(()));
        assert!(!options.has(OptionSet::LEAVE));
        assert_eq!(options.number(OptionSet::LEAVE), None);
        assert_eq!(
            options.add(&environment, OptionSet::LEAVE, b"LEAVE", zero),
            Err(Error::Twice("LEAVE"))
        );
    }

    #[test]
    fn of_two_options_that_exclude_each_other_one_says_so() {
        for row in &TABLE {
            assert!(!row.excludes.contains(row.option), "{}", row.name);
            for other in row.excludes.rows() {
                assert!(!other.excludes.contains(row.option), "{} and {}", row.name, other.name);
            }
        }
    }

    #[test]
    fn an_option_that_others_need_names_the_group_of_them() {
        for row in &TABLE {
            for needed in row.needs.rows() {
                assert!(needed.group.is_some() && needed.needs.is_empty(), "{}", needed.name);
            }
        }
    }

    #[test]
    fn what_a_value_may_be_fits_and_is_in_the_documentation() {
        let page = include_str!("../../../docs/commands.md");
        for row in TABLE.iter().filter(|row| row.value.is_some()) {
            let text = row.error.text();
            let text = std::str::from_utf8(text.as_bytes()).unwrap();
            assert!(page.contains(&format!("`{text}`")), "{text}");
            let missing = Error::NoValue(row.name, &row.error).text();
            assert!(missing.as_bytes().ends_with(&text.as_bytes()[4..]), "{missing:?}");
        }
    }

    #[test]
    fn lengths_of_time_are_milliseconds_or_carry_a_unit() {
        for (text, ms) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("0MIN", Some(0)),
            ("1500", Some(1_500)),
            ("5s", Some(5_000)),
            ("2Min", Some(120_000)),
            ("0mo", None),
            ("1y", None),
            ("0m", None),
            ("0 s", None),
            ("0millisecondsandmore", None),
            ("00s", None),
            ("-1", None),
            ("", None),
            ("s", None),
        ] {
            assert_eq!(duration_ms(text.as_bytes()), ms, "{text:?}");
        }
    }
}

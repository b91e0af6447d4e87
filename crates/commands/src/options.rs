//! The options of all commands, one row for each. The code that reads options, checks them against each other and shows them
//! in COMMAND DOCS uses the rows and knows no option by name. `options/given.rs` has the options of one call.
//!
//! To add an option, write its row in `options!`, name it in the sets below of the commands that take it, and use it in
//! `Arguments::request`. docs/design.md lists the other places.

use crate::error::Error;
use crate::limits::LimitSpec;
use bitflags::bitflags;
use std::ffi::CStr;

mod given;

pub use given::Options;

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

    /// `LIMITS`: the last key is a hash of limits.
    LIMITS = OptionRow::PLAIN;

    /// `BLOCK ms`: wait at most this long, or forever for 0.
    BLOCK = OptionRow {
        choice: Some(c"wait"),
        group: Some(c"line"),
        ..OptionRow::with_value(c"block-ms", OptionValue::Duration { min_ms: 0 })
    };

    /// `BY who`: take turns with others who wait.
    BY = OptionRow {
        needs: OptionSet::BLOCK,
        group: Some(c"turn"),
        ..OptionRow::with_value(c"who", OptionValue::Caller)
    };

    /// `WEIGHT n`: a part of the turns that is this large.
    WEIGHT = OptionRow {
        needs: OptionSet::BY,
        ..OptionRow::with_value(c"weight", OptionValue::Integer { min: 1, max: 1_000 })
    };

    /// `AHEAD ms`: book what becomes available within that time.
    AHEAD = OptionRow {
        excludes: set!(LEAVE | ATMOST | BLOCK),
        min_quantity: 0,
        ..OptionRow::with_value(c"ahead-ms", OptionValue::Duration { min_ms: 1 })
    };

    /// `BAN ms`: a denial closes the key for this long. With FORCE the call itself does.
    BAN = OptionRow {
        excludes: set!(ATMOST | BLOCK | AHEAD),
        min_quantity: 1,
        part_of_limit: true,
        of_call_with: OptionSet::FORCE,
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
    pub const THROTTLE: OptionSet = set!(THROTTLE_RO | ATMOST | FORCE | LINE | AHEAD | BAN);

    /// The options of RL.THROTTLE_RO.
    pub const THROTTLE_RO: OptionSet = set!(LEAVE | MS);

    /// The options of RL.WINDOW.
    pub const WINDOW: OptionSet = set!(WINDOW_RO | ATMOST | FORCE | COUNTDENIED | LINE | BAN);

    /// The options of RL.WINDOW_RO and RL.ACQUIRE_RO.
    pub const WINDOW_RO: OptionSet = set!(BUCKETS | FIXED | FROM | TZ | LEAVE | MS);

    /// The options of RL.ACQUIRE.
    pub const ACQUIRE: OptionSet = set!(WINDOW_RO | ATMOST | LEASE | COUNTLAPSED | ID | LINE);

    /// The options of calls that wait in line.
    const LINE: OptionSet = set!(BLOCK | BY | WEIGHT);

    /// The options of RL.ALL itself, which follow its clauses.
    pub const ALL: OptionSet = set!(ALL_RO | LINE);

    /// The options of RL.ALL_RO itself.
    pub const ALL_RO: OptionSet = set!(LIMITS | MS);

    /// The options that no clause of RL.ALL takes.
    pub const NOT_IN_CLAUSE: OptionSet = set!(ATMOST | FORCE | AHEAD);

    /// Returns the options of clauses of RL.ALL whose command takes these.
    pub const fn in_clause(self) -> OptionSet {
        let not_in_clause = OptionSet::NOT_IN_CLAUSE.union(OptionSet::ALL);
        self.difference(not_in_clause).union(set!(CHECK | SHADOW))
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
    /// The option with which it is no part of the limit, and may be combined with the quantities of that option. May be
    /// empty.
    pub of_call_with: OptionSet,
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
    /// The name of a caller.
    Caller,
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
        of_call_with: OptionSet::empty(),
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
        let is_of_call = others.intersects(self.of_call_with);
        if quantity < self.min_quantity && !is_of_call {
            return Err(Error::QuantityBelow(self.name, self.min_quantity));
        }
        if self.part_of_limit && limit.is_none() && !is_of_call {
            return Err(Error::WithPolicy(self.name));
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
        Some(OptionValue::Caller) => Error::InvalidBy,
        None => Error::internal(),
    };
    let token = match CStr::from_bytes_with_nul(token.as_bytes()) {
        Ok(token) => token,
        Err(_) => c"",
    };
    OptionRow { option, name, token, error, ..row }
}

#[cfg(test)]
mod tests;

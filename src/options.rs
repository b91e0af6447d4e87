//! The options of all commands. To add one: a flag in [`Known`], and a row in [`TABLE`] that says what follows its
//! name. A command takes it when its row in command.rs names it; commands/arguments.rs reads its value.

use bitflags::bitflags;
use std::ffi::CStr;

bitflags! {
    /// The options that a command knows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Known: u32 {
        /// `MS`: times in milliseconds.
        const MS = 1;
        /// `ATMOST`: take less where there is less.
        const ATMOST = 1 << 1;
        /// `COUNTDENIED`: denied calls count as well.
        const COUNTDENIED = 1 << 2;
        /// `BUCKETS n`: so many entries at most.
        const BUCKETS = 1 << 3;
        /// `FIXED`: windows of the calendar.
        const FIXED = 1 << 4;
        /// `FROM start`: windows start there.
        const FROM = 1 << 14;
        /// `TZ zone`: in this zone.
        const TZ = 1 << 5;
        /// `LEASE ms`: how long a reservation lasts.
        const LEASE = 1 << 6;
        /// `ID id`: what the caller calls it.
        const ID = 1 << 7;
        /// `BLOCK ms`: wait so long at most.
        const BLOCK = 1 << 8;
        /// `LEAVE n`: keep so much for others.
        const LEAVE = 1 << 9;
        /// `FORCE`: take also where there is not enough.
        const FORCE = 1 << 10;
        /// `AHEAD ms`: take what can be had within that time.
        const AHEAD = 1 << 11;
        /// `CHECK`: must be allowed, and takes nothing.
        const CHECK = 1 << 12;
        /// `SHADOW`: is told, and never denies the call.
        const SHADOW = 1 << 13;
        /// Those that say how a window moves.
        const WINDOW = Known::BUCKETS.bits()
            | Known::FIXED.bits()
            | Known::FROM.bits()
            | Known::TZ.bits();
    }
}

/// An option as clients write it and COMMAND DOCS shows it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The option.
    pub option: Known,
    /// Its name, in upper case.
    pub name: &'static CStr,
    /// What follows its name.
    pub value: Value,
    /// How it stands to others.
    pub place: Place,
}

/// What follows the name of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Nothing,
    /// A number, with its name in COMMAND DOCS.
    Integer(&'static CStr),
    /// A text, with its name in COMMAND DOCS.
    Text(&'static CStr),
}

/// How an option stands to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It excludes no other option.
    Free,
    /// It may not stand beside the rows next to it that belong to the same choice, which has this name in COMMAND DOCS.
    Choice(&'static CStr),
    /// It must stand beside the last row before that is none of these; the name is that of all together in COMMAND DOCS.
    With(&'static CStr),
}

/// All options, in the order of COMMAND DOCS.
pub static TABLE: [Row; 15] = [
    Row::new(Known::BUCKETS, c"BUCKETS", Value::Integer(c"buckets"), Place::Choice(c"kind")),
    Row::new(Known::FIXED, c"FIXED", Value::Nothing, Place::Choice(c"kind")),
    Row::new(Known::FROM, c"FROM", Value::Text(c"anchor"), Place::With(c"calendar")),
    Row::new(Known::TZ, c"TZ", Value::Text(c"zone"), Place::With(c"calendar")),
    Row::new(Known::LEAVE, c"LEAVE", Value::Integer(c"leave"), Place::Free),
    Row::new(Known::ATMOST, c"ATMOST", Value::Nothing, Place::Choice(c"manner")),
    Row::new(Known::FORCE, c"FORCE", Value::Nothing, Place::Choice(c"manner")),
    Row::new(Known::COUNTDENIED, c"COUNTDENIED", Value::Nothing, Place::Free),
    Row::new(Known::LEASE, c"LEASE", Value::Text(c"lease-ms"), Place::Free),
    Row::new(Known::ID, c"ID", Value::Text(c"id"), Place::Free),
    Row::new(Known::BLOCK, c"BLOCK", Value::Text(c"block-ms"), Place::Choice(c"wait")),
    Row::new(Known::AHEAD, c"AHEAD", Value::Text(c"ahead-ms"), Place::Choice(c"wait")),
    Row::new(Known::CHECK, c"CHECK", Value::Nothing, Place::Choice(c"weight")),
    Row::new(Known::SHADOW, c"SHADOW", Value::Nothing, Place::Choice(c"weight")),
    Row::new(Known::MS, c"MS", Value::Nothing, Place::Free),
];

impl Row {
    const fn new(option: Known, name: &'static CStr, value: Value, place: Place) -> Row {
        Row { option, name, value, place }
    }

    /// The name as text.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

/// The option of this name, in any case.
pub fn named(name: &[u8]) -> Option<&'static Row> {
    TABLE.iter().find(|row| name.eq_ignore_ascii_case(row.name.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_one_row_and_is_found_by_its_name_in_any_case() {
        let mut seen = Known::empty();
        for row in &TABLE {
            assert!(!seen.intersects(row.option), "{row:?}");
            assert_eq!(row.option.bits().count_ones(), 1, "{row:?}");
            seen |= row.option;
            let name = row.name.to_bytes();
            assert_eq!(name, name.to_ascii_uppercase(), "{row:?}");
            assert_eq!(named(&name.to_ascii_lowercase()).map(|row| row.option), Some(row.option));
        }
        assert_eq!(seen, Known::all());
        assert!(named(b"").is_none() && named(b"MSS").is_none() && named(b"M").is_none());
    }
}

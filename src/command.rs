//! What a command is: its code, and what COMMAND INFO and COMMAND DOCS say of it.

use crate::error::Error;
use crate::redis::call::Call;
use crate::stats::CommandStats;
use std::ffi::CStr;

/// A row of the table in lib.rs.
pub struct Command {
    /// As clients call it, in lower case.
    pub name: &'static CStr,
    /// The code.
    pub run: fn(&mut Call) -> Result<(), Error>,
    /// Flags as RedisModule_CreateCommand spells them, separated by blanks.
    pub flags: &'static str,
    /// What it does with its key.
    pub access: Access,
    /// Arguments with the name: exactly so many, or at least so many if below 0.
    pub arity: i32,
    /// One sentence.
    pub summary: &'static CStr,
    /// What it costs.
    pub complexity: &'static CStr,
    /// All arguments after the name.
    pub arguments: &'static [Argument],
    /// What became of its calls.
    pub stats: CommandStats,
}

impl Command {
    /// A command that still lacks its code and arguments.
    pub const fn new(
        name: &'static CStr,
        flags: &'static str,
        access: Access,
        summary: &'static CStr,
    ) -> Command {
        Command {
            name,
            run: |_| Err(Error::Internal),
            flags,
            access,
            arity: -2,
            summary,
            complexity: c"O(1)",
            arguments: &[],
            stats: CommandStats::new(),
        }
    }
}

/// What a command does with its key, for key specs and ACL rules such as `%R~`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Reads and may change it.
    Update,
}

/// An argument as COMMAND DOCS shows it.
#[derive(Debug)]
pub enum Argument {
    /// The key.
    Key,
    /// A number.
    Integer(&'static CStr),
    /// Any text.
    Text(&'static CStr),
    /// A bare word, such as `MS`.
    Flag(&'static CStr),
    /// A word and a value, such as `LEASE ms`.
    Valued(&'static CStr, &'static Argument),
    /// One of several.
    OneOf(&'static CStr, &'static [Argument]),
    /// Several in a row.
    Group(&'static CStr, &'static [Argument]),
    /// One that may be left out.
    Optional(&'static Argument),
    /// One that may be repeated.
    Multiple(&'static Argument),
}

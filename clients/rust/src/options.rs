//! The options of calls and clauses. Each is a field of [`Options`] or [`CallOptions`], a line of their `write`, and a method
//! of a call or a clause.

use std::time::Duration;

use crate::error::Error;
use crate::period::whole_ms;
use crate::reply::Id;
use crate::transport::Command;

/// The longest name of a caller in a line, in bytes.
const MAX_NAME: usize = 64;
/// The largest weight of a caller in a line.
const MAX_WEIGHT: u64 = 1000;

/// The options of a limit, which follow the quantity.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub leave: u64,
    pub lease: Option<Duration>,
    pub count_lapsed: bool,
    pub id: Option<Id>,
    /// True if the limiter made the id.
    pub has_made_id: bool,
    pub at_most: bool,
    pub force: bool,
    pub count_denied: bool,
    pub check: bool,
    pub shadow: bool,
    pub ahead: Option<Duration>,
}

impl Options {
    /// Refuses lengths of 0, and a ban by a call that cannot ban. `reserves` is true if the call reserves.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub fn check(&self, ban: Option<Duration>, quantity: i64, reserves: bool) -> Result<(), Error> {
        check_length("lease", self.lease)?;
        check_length("ban", ban)?;
        check_length("ahead", self.ahead)?;
        let excluded = [
            ("a reservation", reserves),
            ("a quantity below 1", quantity < 1),
            ("at_most", self.at_most),
            ("force", self.force),
            ("check", self.check),
            ("ahead", self.ahead.is_some()),
        ];
        match excluded.iter().find(|(_, is_used)| *is_used) {
            Some((what, _)) if ban.is_some() => Err(Error::ban_with(what)),
            _ => Ok(()),
        }
    }

    /// Makes an id, unless the caller gave one.
    ///
    /// # Errors
    ///
    /// [`Error::NoRandomBytes`].
    pub fn make_id(&mut self) -> Result<(), Error> {
        if self.id.is_none() {
            self.id = Some(Id::random()?);
            self.has_made_id = true;
        }
        Ok(())
    }

    /// Adds the options to a command.
    pub fn write(&self, command: &mut Command, ban: Option<Duration>) {
        if self.leave > 0 {
            command.arg(b"LEAVE").number(self.leave);
        }
        write_length(command, b"LEASE", self.lease);
        write_flag(command, b"COUNTLAPSED", self.count_lapsed);
        if let Some(id) = &self.id {
            command.arg(b"ID").arg(id.as_ref());
        }
        write_flag(command, b"ATMOST", self.at_most);
        write_flag(command, b"FORCE", self.force);
        write_flag(command, b"COUNTDENIED", self.count_denied);
        write_flag(command, b"CHECK", self.check);
        write_flag(command, b"SHADOW", self.shadow);
        write_length(command, b"BAN", ban);
        write_length(command, b"AHEAD", self.ahead);
    }
}

/// The options of a call as a whole, which are its last.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOptions {
    /// The key of the hash of limits.
    pub limits: Option<Box<[u8]>>,
    /// Zero waits without limit.
    pub block: Option<Duration>,
    pub by: Option<Box<[u8]>>,
    pub weight: Option<u64>,
}

impl CallOptions {
    /// Refuses a name or a weight that no server accepts.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub fn check(&self) -> Result<(), Error> {
        match (&self.by, self.weight) {
            (Some(_), _) if self.block.is_none() => Err(Error::needs("by", "block")),
            (None, Some(_)) => Err(Error::needs("weight", "by")),
            (Some(who), _) if who.is_empty() || who.len() > MAX_NAME => {
                Err(Error::name_length(MAX_NAME, who.len()))
            }
            (_, Some(weight)) if !(1..=MAX_WEIGHT).contains(&weight) => {
                Err(Error::weight(MAX_WEIGHT, weight))
            }
            _ => Ok(()),
        }
    }

    /// Adds the options to a command.
    pub fn write(&self, command: &mut Command) {
        write_flag(command, b"LIMITS", self.limits.is_some());
        write_length(command, b"BLOCK", self.block);
        if let Some(who) = &self.by {
            command.arg(b"BY").arg(who);
        }
        if let Some(weight) = self.weight {
            command.arg(b"WEIGHT").number(weight);
        }
    }
}

/// Refuses a length of 0, which no server accepts.
///
/// # Errors
///
/// [`Error::InvalidArgument`].
pub(crate) fn check_length(name: &str, length: Option<Duration>) -> Result<(), Error> {
    match length {
        Some(Duration::ZERO) => Err(Error::length_of_zero(name)),
        _ => Ok(()),
    }
}

fn write_length(command: &mut Command, word: &[u8], length: Option<Duration>) {
    if let Some(length) = length {
        command.arg(word).number(whole_ms(length));
    }
}

fn write_flag(command: &mut Command, word: &[u8], is_set: bool) {
    if is_set {
        command.arg(word);
    }
}

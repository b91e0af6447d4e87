//! A cursor over the arguments of a call.

use crate::error::Error;
use crate::limit::decimal::parse_i64;
use crate::limit::period::{Length, Period, PeriodError};
use crate::redis::call::Call;

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
    pub fn fixed_period_ms(&mut self) -> Result<u64, Error> {
        match Period::parse(self.next().ok_or(Error::Arity)?).map(|period| period.length()) {
            Ok(Length::Ms(ms)) => Ok(ms),
            Err(PeriodError::AmbiguousM) => Err(Error::PeriodM),
            Ok(Length::Months(_)) | Err(_) => Err(Error::FixedPeriod),
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
}

/// Notes an option that has no value; twice is an error.
pub fn set_flag(flag: &mut bool) -> Result<(), Error> {
    if std::mem::replace(flag, true) {
        return Err(Error::OptionTwice);
    }
    Ok(())
}

/// Whether `argument` is this option, in any case.
pub fn is(argument: &[u8], option: &str) -> bool {
    argument.eq_ignore_ascii_case(option.as_bytes())
}

//! What the settings of the module and those of a server in memory share: names, ranges and defaults, and how a value is read.

use crate::environment::Environment;
use crate::error::Error;
use engine::calendar::Zone;
use engine::decimal::parse_i64;
use engine::reservation::YEAR_MS;
use std::ffi::CStr;
use std::ops::RangeInclusive;

/// A setting that is a number.
#[derive(Clone, Copy, Debug)]
pub struct NumberRow {
    /// Its name, without `ratelimit.`.
    pub name: &'static CStr,
    /// The value where nobody set another.
    pub default: i64,
    /// The lowest value.
    pub min: i64,
    /// The highest value.
    pub max: i64,
}

const fn row(name: &'static CStr, default: i64, min: i64, max: i64) -> NumberRow {
    NumberRow { name, default, min, max }
}

/// Entries that a sliding window may use where a call does not say BUCKETS.
pub const WINDOW_ENTRIES: NumberRow = row(c"window-entries", 4096, 1, 65_536);
/// How long a reservation lasts where a call does not say LEASE, in milliseconds.
pub const LEASE_MS: NumberRow = row(c"lease", 20_000, 1, YEAR_MS as i64);
/// The most reservations in one key.
pub const MAX_RESERVATIONS: NumberRow = row(c"max-reservations", 65_536, 1, 1_048_576);
/// The most calls that wait at one time, over all keys.
pub const MAX_WAITERS: NumberRow = row(c"max-waiters", 10_000, 0, 1_000_000);
/// The number of keys that RL.TOP counts; 0 counts none.
pub const TOP_KEYS: NumberRow = row(c"top-keys", 128, 0, 10_000);

/// The zone of calendar windows until somebody sets another.
pub const DEFAULT_TIMEZONE: &[u8] = b"UTC";

/// The number that a setting of this range is set to.
///
/// # Errors
///
/// Says what is allowed, as the next two do.
pub fn read_number(value: &[u8], range: RangeInclusive<i64>) -> Result<i64, String> {
    let number = parse_i64(value).filter(|number| range.contains(number));
    let (least, most) = range.into_inner();
    number.ok_or_else(|| format!("must be an integer from {least} to {most}"))
}

/// Whether a switch is set to `yes` or to `no`, in any case.
pub fn read_switch(value: &[u8]) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_slice() {
        b"yes" => Ok(true),
        b"no" => Ok(false),
        _ => Err("must be yes or no".into()),
    }
}

/// The zone that the setting `timezone` is set to.
pub fn read_zone(value: &[u8], environment: &impl Environment) -> Result<Zone, String> {
    environment.zone_named(value).ok_or_else(|| {
        let why = Error::Zone.to_string();
        why.strip_prefix("ERR TZ ").unwrap_or(&why).to_owned()
    })
}

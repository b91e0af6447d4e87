//! The settings that are numbers: their ranges and defaults.

use engine::reservation::YEAR_MS;

/// What a setting may be.
#[derive(Clone, Copy, Debug)]
pub struct SettingRange {
    /// The value where nobody set another.
    pub default: i64,
    /// The lowest value.
    pub min: i64,
    /// The highest value.
    pub max: i64,
}

const fn range(default: i64, min: i64, max: i64) -> SettingRange {
    SettingRange { default, min, max }
}

/// Entries that a sliding window may use where a call does not say BUCKETS.
pub const WINDOW_ENTRIES: SettingRange = range(4096, 1, 65_536);
/// How long a reservation lasts where a call does not say LEASE, in milliseconds.
pub const LEASE_MS: SettingRange = range(20_000, 1, YEAR_MS as i64);
/// The most reservations in one key.
pub const MAX_RESERVATIONS: SettingRange = range(65_536, 1, 1_048_576);
/// The most calls that wait at one time, over all keys.
pub const MAX_WAITERS: SettingRange = range(10_000, 0, 1_000_000);
/// The number of keys that RL.TOP counts; 0 counts none.
pub const TOP_KEYS: SettingRange = range(128, 0, 10_000);

/// The zone of calendar windows until somebody sets another.
pub const DEFAULT_TIMEZONE: &[u8] = b"UTC";

//! The values of the settings `ratelimit.*` that are numbers or switches. The names, defaults and ranges of numbers are in
//! [`commands::settings`]; module/settings.rs has the table of all settings.

use crate::redis::config::{NumberSetting, SwitchSetting};
use commands::settings::{self, NumberRow};

const fn number(row: NumberRow) -> NumberSetting {
    NumberSetting::new(row.name, row.default, row.min, row.max)
}

/// The number of entries that a sliding window may use if the call does not say BUCKETS.
pub static WINDOW_ENTRIES: NumberSetting = number(settings::WINDOW_ENTRIES);
/// How long a reservation holds if the call does not say LEASE, in milliseconds.
pub static LEASE_MS: NumberSetting = number(settings::LEASE_MS);
/// The maximum number of reservations in one key.
pub static MAX_RESERVATIONS: NumberSetting = number(settings::MAX_RESERVATIONS);
/// The maximum number of calls that wait at the same time, over all keys.
pub static MAX_WAITERS: NumberSetting = number(settings::MAX_WAITERS);
/// The number of keys that RL.TOP counts. 0 turns counting off.
pub static TOP_KEYS: NumberSetting = number(settings::TOP_KEYS);
/// Whether limits must be given as policies.
pub static POLICIES_ONLY: SwitchSetting = SwitchSetting::off();
/// Whether denials are published as keyspace events.
pub static NOTIFY_DENIED: SwitchSetting = SwitchSetting::off();
/// Whether the module also answers CL.THROTTLE.
pub static CL_THROTTLE: SwitchSetting = SwitchSetting::off();
/// Whether MODULE UNLOAD may lose settings.
pub static ALLOW_UNLOAD: SwitchSetting = SwitchSetting::off();

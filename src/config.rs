//! The values of the settings `ratelimit.*`. The names, ranges and defaults of numbers are in [`commands::settings`], the names
//! of the others in module/settings.rs.

use crate::redis::under_lock::UnderLock;
use crate::zones;
use commands::settings::{self, NumberRow};
use engine::calendar::Zone;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// A setting that is a number.
#[derive(Debug)]
pub struct NumberSetting {
    /// The lowest value.
    pub min: i64,
    /// The highest value.
    pub max: i64,
    /// The value where nobody set another.
    pub default: i64,
    value: AtomicI64,
}

impl NumberSetting {
    const fn new(row: NumberRow) -> NumberSetting {
        let NumberRow { default, min, max, .. } = row;
        NumberSetting { min, max, default, value: AtomicI64::new(default) }
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed).unsigned_abs()
    }

    /// Changes it; whether `value` was in range.
    pub fn set(&self, value: i64) -> bool {
        let fits = (self.min..=self.max).contains(&value);
        if fits {
            self.value.store(value, Ordering::Relaxed);
        }
        fits
    }
}

/// Entries that a sliding window may use where a call does not say BUCKETS.
pub static WINDOW_ENTRIES: NumberSetting = NumberSetting::new(settings::WINDOW_ENTRIES);
/// How long a reservation lasts where a call does not say LEASE, in milliseconds.
pub static LEASE_MS: NumberSetting = NumberSetting::new(settings::LEASE_MS);
/// The most reservations in one key.
pub static MAX_RESERVATIONS: NumberSetting = NumberSetting::new(settings::MAX_RESERVATIONS);
/// The most calls that wait at one time, over all keys.
pub static MAX_WAITERS: NumberSetting = NumberSetting::new(settings::MAX_WAITERS);

/// A setting that is on or off.
#[derive(Debug)]
pub struct SwitchSetting(AtomicBool);

impl SwitchSetting {
    const fn off() -> SwitchSetting {
        SwitchSetting(AtomicBool::new(false))
    }

    /// Whether it is on.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

/// The number of keys that RL.TOP counts; 0 counts none.
pub static TOP_KEYS: NumberSetting = NumberSetting::new(settings::TOP_KEYS);
/// Whether limits must be given as policies.
pub static POLICIES_ONLY: SwitchSetting = SwitchSetting::off();
/// Whether denials are told as keyspace events.
pub static NOTIFY_DENIED: SwitchSetting = SwitchSetting::off();
/// Whether the module also answers CL.THROTTLE.
pub static CL_THROTTLE: SwitchSetting = SwitchSetting::off();
/// Whether MODULE UNLOAD goes on where it loses settings.
pub static ALLOW_UNLOAD: SwitchSetting = SwitchSetting::off();

static ZONE: UnderLock<Option<Zone>> = UnderLock::new(None);

/// The zone that the setting `timezone` was set to, if it was.
pub fn timezone() -> Option<Zone> {
    ZONE.get()
}

/// Changes it.
pub fn set_timezone(zone: Zone) {
    ZONE.set(Some(zone));
}

/// Forgets all zones, before the module goes.
pub fn unload() {
    ZONE.set(None);
    zones::unload();
}

/// [`WINDOW_ENTRIES`] as windows count them.
pub fn window_entries() -> u32 {
    u32::try_from(WINDOW_ENTRIES.get()).unwrap_or(u32::MAX)
}

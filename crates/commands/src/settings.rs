//! The settings that the module and a server in memory share: names, defaults, ranges and values.
//!
//! To add a setting that is a number, add a field of [`NumberSettings`], its row in [`NumberSettings::new`], its place in
//! [`NumberSettings::all`], and a row in module/settings.rs of the module. Any other setting has its value in the module's
//! state.rs, a row as well, and, if it concerns keys in memory, its arms in memory/settings.rs here.

use engine::decimal::parse_i64;
use engine::period::YEAR_MS;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug)]
pub struct NumberSetting {
    /// The name, without `ratelimit.`.
    pub name: &'static CStr,
    pub default: i64,
    pub min: i64,
    pub max: i64,
    /// The unit of the value as text, after a space. Empty for a number without a unit.
    pub unit: &'static str,
    value: AtomicU64,
}

impl NumberSetting {
    const fn new(name: &'static CStr, default: i64, min: i64, max: i64) -> NumberSetting {
        let value = AtomicU64::new(default.unsigned_abs());
        NumberSetting { name, default, min, max, unit: "", value }
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Changes the value to the number in this text.
    ///
    /// # Errors
    ///
    /// A text that says which values are allowed. Nothing changes then.
    pub fn set(&self, text: &[u8]) -> Result<(), String> {
        let (min, max, unit) = (self.min, self.max, self.unit);
        let value = parse_i64(text).filter(|value| (min..=max).contains(value));
        let value = value.ok_or_else(|| format!("must be an integer from {min} to {max}{unit}"))?;
        self.value.store(value.unsigned_abs(), Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Debug)]
pub struct NumberSettings {
    /// The number of entries that a sliding window may use if the call does not say BUCKETS.
    pub window_entries: NumberSetting,
    /// The lease of a reservation if the call does not say LEASE, in milliseconds.
    pub lease_ms: NumberSetting,
    pub max_reservations: NumberSetting,
    /// The maximum number of calls that wait at the same time, over all keys.
    pub max_waiters: NumberSetting,
    /// The number of keys that RL.TOP counts. 0 turns counting off.
    pub top_keys: NumberSetting,
}

impl NumberSettings {
    pub const fn new() -> NumberSettings {
        NumberSettings {
            window_entries: NumberSetting::new(c"window-entries", 4096, 1, 65_536),
            lease_ms: NumberSetting {
                unit: " ms",
                ..NumberSetting::new(c"lease", 20_000, 1, YEAR_MS as i64)
            },
            max_reservations: NumberSetting::new(c"max-reservations", 65_536, 1, 1_048_576),
            max_waiters: NumberSetting::new(c"max-waiters", 10_000, 0, 1_000_000),
            top_keys: NumberSetting::new(c"top-keys", 128, 0, 10_000),
        }
    }

    pub fn all(&self) -> [&NumberSetting; 5] {
        let NumberSettings { window_entries, lease_ms, max_reservations, max_waiters, top_keys } =
            self;
        [window_entries, lease_ms, max_reservations, max_waiters, top_keys]
    }
}

impl Default for NumberSettings {
    fn default() -> NumberSettings {
        NumberSettings::new()
    }
}

#[derive(Debug, Default)]
pub struct SwitchSetting(AtomicBool);

impl SwitchSetting {
    /// Creates a switch that is off, which is the default of every switch.
    pub const fn off() -> SwitchSetting {
        SwitchSetting(AtomicBool::new(false))
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns `yes` or `no`, as CONFIG GET shows it.
    pub fn text(&self) -> &'static [u8] {
        if self.get() {
            b"yes"
        } else {
            b"no"
        }
    }

    /// Turns it on for `yes` and off for `no`, in any case.
    ///
    /// # Errors
    ///
    /// A text that says which values are allowed. Nothing changes then.
    pub fn set(&self, text: &[u8]) -> Result<(), String> {
        let on = match text.to_ascii_lowercase().as_slice() {
            b"yes" => true,
            b"no" => false,
            _ => return Err("must be yes or no".into()),
        };
        self.0.store(on, Ordering::Relaxed);
        Ok(())
    }
}

pub const DEFAULT_TIMEZONE: &[u8] = b"UTC";

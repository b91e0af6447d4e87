//! The settings of a server in memory.

use super::MemoryServer;
use crate::definitions;
use crate::error::Error;
use crate::settings::{
    SettingRange, LEASE_MS, MAX_RESERVATIONS, MAX_WAITERS, TOP_KEYS, WINDOW_ENTRIES,
};
use engine::decimal::parse_i64;

/// Numbers and switches.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemorySettings {
    pub(super) window_entries: i64,
    pub(super) lease_ms: i64,
    pub(super) max_reservations: i64,
    pub(super) max_waiters: i64,
    pub(super) top_keys: i64,
    pub(super) policies_only: bool,
}

impl Default for MemorySettings {
    fn default() -> MemorySettings {
        MemorySettings {
            window_entries: WINDOW_ENTRIES.default,
            lease_ms: LEASE_MS.default,
            max_reservations: MAX_RESERVATIONS.default,
            max_waiters: MAX_WAITERS.default,
            top_keys: TOP_KEYS.default,
            policies_only: false,
        }
    }
}

/// A number with its range.
type NumberRow = (&'static str, SettingRange, fn(&mut MemorySettings) -> &mut i64);

const NUMBERS: [NumberRow; 5] = [
    ("window-entries", WINDOW_ENTRIES, |settings| &mut settings.window_entries),
    ("lease", LEASE_MS, |settings| &mut settings.lease_ms),
    ("max-reservations", MAX_RESERVATIONS, |settings| &mut settings.max_reservations),
    ("max-waiters", MAX_WAITERS, |settings| &mut settings.max_waiters),
    ("top-keys", TOP_KEYS, |settings| &mut settings.top_keys),
];

/// What every name begins with, where it is said.
const PREFIX: &[u8] = b"ratelimit.";

/// Names are in any case.
pub(super) fn plain_name(name: &[u8]) -> Vec<u8> {
    let name = name.to_ascii_lowercase();
    name.strip_prefix(PREFIX).map(<[u8]>::to_vec).unwrap_or(name)
}

impl MemoryServer {
    /// Changes a setting, with or without `ratelimit.` before its name: `policies`, `window-entries`, `lease`,
    /// `max-reservations`, `max-waiters`, `timezone`, `policies-only`, `top-keys`.
    ///
    /// # Errors
    ///
    /// Says what was wrong and what is allowed.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let name = plain_name(name);
        if let Some((_, range, field)) = NUMBERS.iter().find(|row| row.0.as_bytes() == name) {
            let SettingRange { min, max, .. } = *range;
            let number = parse_i64(value).filter(|number| (min..=max).contains(number));
            let wrong = || format!("must be an integer from {min} to {max}");
            *field(&mut self.settings) = number.ok_or_else(wrong)?;
            if name == b"top-keys" {
                self.top.take();
            }
            return Ok(());
        }
        match name.as_slice() {
            b"policies" => {
                let definitions = definitions::parse(value, &&*self)?;
                self.policies.replace(value, definitions);
            }
            b"timezone" => {
                let zone = self.keys.zones(|zones| zones.named(value));
                self.timezone = Some(zone.ok_or_else(|| {
                    let why = Error::Zone.text();
                    let why = String::from_utf8_lossy(why.as_bytes());
                    why.strip_prefix("ERR TZ ").unwrap_or(&why).to_owned()
                })?);
            }
            b"policies-only" => {
                self.settings.policies_only = match value.to_ascii_lowercase().as_slice() {
                    b"yes" => true,
                    b"no" => false,
                    _ => return Err("must be yes or no".into()),
                };
            }
            _ => return Err("no such setting".into()),
        }
        Ok(())
    }

    /// The value of a setting, as CONFIG GET shows it; `None` where there is none of this name.
    pub fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        let name = plain_name(name);
        if let Some((_, _, field)) = NUMBERS.iter().find(|row| row.0.as_bytes() == name) {
            let mut settings = self.settings;
            return Some(field(&mut settings).to_string().into_bytes());
        }
        match name.as_slice() {
            b"policies" => Some(self.policies.text().to_vec()),
            b"timezone" => {
                let zone = self.zone_of_calendar()?;
                Some(self.keys.zones(|zones| zones.name(zone).as_bytes().to_vec()))
            }
            b"policies-only" => {
                Some(if self.settings.policies_only { b"yes".to_vec() } else { b"no".to_vec() })
            }
            _ => None,
        }
    }
}

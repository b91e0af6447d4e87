//! The settings of a server in memory.

use super::MemoryServer;
use crate::definitions;
use crate::environment::Environment;
use crate::settings::{
    read_number, read_switch, read_zone, NumberRow, LEASE_MS, MAX_RESERVATIONS, MAX_WAITERS,
    TOP_KEYS, WINDOW_ENTRIES,
};

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

/// The field of a number.
type NumberField = fn(&mut MemorySettings) -> &mut i64;

const NUMBERS: [(NumberRow, NumberField); 5] = [
    (WINDOW_ENTRIES, |settings| &mut settings.window_entries),
    (LEASE_MS, |settings| &mut settings.lease_ms),
    (MAX_RESERVATIONS, |settings| &mut settings.max_reservations),
    (MAX_WAITERS, |settings| &mut settings.max_waiters),
    (TOP_KEYS, |settings| &mut settings.top_keys),
];

/// The number of this plain name.
fn number_named(name: &[u8]) -> Option<(NumberRow, NumberField)> {
    NUMBERS.into_iter().find(|(row, _)| row.name.to_bytes() == name)
}

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
        if let Some((row, field)) = number_named(&name) {
            *field(&mut self.settings) = read_number(value, row.min..=row.max)?;
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
            b"timezone" => self.timezone = Some(read_zone(value, &&*self)?),
            b"policies-only" => self.settings.policies_only = read_switch(value)?,
            _ => return Err("no such setting".into()),
        }
        Ok(())
    }

    /// The value of a setting, as CONFIG GET shows it; `None` where there is none of this name.
    pub fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        let name = plain_name(name);
        if let Some((_, field)) = number_named(&name) {
            let mut settings = self.settings;
            return Some(field(&mut settings).to_string().into_bytes());
        }
        match name.as_slice() {
            b"policies" => Some(self.policies.text().to_vec()),
            b"timezone" => {
                let zone = self.timezone()?;
                Some(self.keys.zones(|zones| zones.name(zone).as_bytes().to_vec()))
            }
            b"policies-only" => {
                Some(if self.settings.policies_only { b"yes".to_vec() } else { b"no".to_vec() })
            }
            _ => None,
        }
    }
}

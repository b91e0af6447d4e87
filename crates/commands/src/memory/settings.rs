//! The settings of a server in memory.

use super::{top_keys, MemoryServer};
use crate::definitions;
use crate::environment::Environment;
use crate::settings::NumberSetting;

/// The prefix of every name, which may be left out.
const PREFIX: &[u8] = b"ratelimit.";

/// Returns the name in lower case and without the prefix.
pub(super) fn plain_name(name: &[u8]) -> Vec<u8> {
    let name = name.to_ascii_lowercase();
    name.strip_prefix(PREFIX).map(<[u8]>::to_vec).unwrap_or(name)
}

impl MemoryServer {
    fn number_named(&self, name: &[u8]) -> Option<&NumberSetting> {
        self.numbers.all().into_iter().find(|number| number.name.to_bytes() == name)
    }

    /// Changes a setting, with or without `ratelimit.` before its name: `policies`, `window-entries`, `lease`,
    /// `max-reservations`, `max-waiters`, `timezone`, `policies-only`, `top-keys`.
    ///
    /// # Errors
    ///
    /// A text that says which values are allowed.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let name = plain_name(name);
        if let Some(number) = self.number_named(&name) {
            number.set(value)?;
            if name == b"top-keys" {
                self.most_denied.replace(top_keys(&self.numbers));
            }
            return Ok(());
        }
        match name.as_slice() {
            b"policies" => {
                let definitions = definitions::parse_policies(value, &&*self)?;
                self.policies.replace(value, definitions);
            }
            b"timezone" => self.timezone = Some((&*self).read_timezone(value)?),
            b"policies-only" => self.policies_only.set(value)?,
            _ => return Err("no such setting".into()),
        }
        Ok(())
    }

    /// Returns the value of a setting, as CONFIG GET shows it. `None` if no setting has this name.
    pub fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        let name = plain_name(name);
        if let Some(number) = self.number_named(&name) {
            return Some(number.get().to_string().into_bytes());
        }
        match name.as_slice() {
            b"policies" => Some(self.policies.text().to_vec()),
            b"timezone" => {
                let zone = self.timezone()?;
                Some(self.keys.zones(|zones| zones.name(zone).as_bytes().to_vec()))
            }
            b"policies-only" => Some(self.policies_only.text().to_vec()),
            _ => None,
        }
    }
}

//! The settings, policies and time zones that the arguments of calls refer to.

use crate::policies::Policy;
use crate::settings::{Numbers, DEFAULT_TIMEZONE};
use crate::share::Share;
use engine::calendar::Zone;
use std::sync::Arc;

/// The settings, policies and time zones that the arguments of a call refer to.
pub trait Environment {
    /// Returns the settings that are numbers.
    fn numbers(&self) -> &Numbers;

    /// Returns whether limits must be given as policies.
    fn policies_only(&self) -> bool;

    /// Returns the zone that the setting `timezone` was set to, if any.
    fn chosen_timezone(&self) -> Option<Zone>;

    /// Returns the zone with this name, if there is one.
    fn zone_by_name(&self, name: &[u8]) -> Option<Zone>;

    /// Returns the policy with this name, if there is one.
    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>>;

    /// Returns the share of each limit that a call may use.
    fn share(&self) -> Share {
        Share::ALL
    }

    /// Returns the number of entries that a sliding window may use if the call does not say BUCKETS.
    fn window_entries(&self) -> u32 {
        u32::try_from(self.numbers().window_entries.get()).unwrap_or(u32::MAX)
    }

    /// Returns the zone of calendar windows if the call does not say TZ.
    fn timezone(&self) -> Option<Zone> {
        self.chosen_timezone().or_else(|| self.zone_by_name(DEFAULT_TIMEZONE))
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::TestEnvironment;

//! What the arguments of a call refer to, as a trait of the server.

use crate::policies::Policy;
use crate::settings::{Numbers, DEFAULT_TIMEZONE};
use crate::share::Share;
use engine::calendar::Zone;
use std::sync::Arc;

/// The settings, policies and time zones that the arguments of a call refer to.
pub trait Environment {
    /// Returns the settings that are numbers.
    fn numbers(&self) -> &Numbers;

    /// Returns whether calls must name a policy instead of a limit in numbers (`policies-only`).
    fn policies_only(&self) -> bool;

    /// Returns the zone that the setting `timezone` was set to. `None` until it is set.
    fn chosen_timezone(&self) -> Option<Zone>;

    /// Returns the zone with this IANA name, in any case, or with this offset from UTC. `None` if there is no such zone.
    fn zone_by_name(&self, name: &[u8]) -> Option<Zone>;

    /// Returns the policy with this name, as it is now: a later change of the policies does not change it.
    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>>;

    /// Returns the share of each limit that the calls of this process may use. On a server it is the whole.
    fn share(&self) -> Share {
        Share::ALL
    }

    /// Returns the maximum number of entries of a sliding window if the call does not say BUCKETS.
    fn window_entries(&self) -> u32 {
        u32::try_from(self.numbers().window_entries.get()).unwrap_or(u32::MAX)
    }

    /// Returns the zone of calendar windows if the call does not say TZ. `None` only if time zones cannot be read.
    fn timezone(&self) -> Option<Zone> {
        self.chosen_timezone().or_else(|| self.zone_by_name(DEFAULT_TIMEZONE))
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::TestEnvironment;

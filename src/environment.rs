//! The settings, policies and time zones of this server, which the arguments of calls refer to.

use crate::config::{NUMBERS, POLICIES_ONLY};
use crate::redis::under_lock::UnderLock;
use commands::environment::Environment;
use commands::policies::{Policy, PolicyTable};
use commands::settings::Numbers;
use engine::calendar::{Zone, Zones};
use std::sync::Arc;

/// The policies.
pub static POLICIES: UnderLock<PolicyTable> = UnderLock::new(PolicyTable::default);

/// The time zones that calls and settings have named.
pub static ZONES: UnderLock<Zones> = UnderLock::new(Zones::new);

/// The zone that the setting `timezone` was set to, if any.
pub static TIMEZONE: UnderLock<Option<Zone>> = UnderLock::new(|| None);

/// The environment of every call.
pub struct ServerEnvironment;

impl Environment for ServerEnvironment {
    fn numbers(&self) -> &Numbers {
        &NUMBERS
    }

    fn policies_only(&self) -> bool {
        POLICIES_ONLY.get()
    }

    fn chosen_timezone(&self) -> Option<Zone> {
        TIMEZONE.get()
    }

    fn zone_by_name(&self, name: &[u8]) -> Option<Zone> {
        ZONES.with(|zones| zones.zone_by_name(name))
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        POLICIES.with(|table| table.policy_by_name(name))
    }
}

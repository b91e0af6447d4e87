//! The settings, policies and time zones of this server. The arguments of calls refer to most of them. module/settings.rs
//! has the table of all settings.

use crate::redis::under_lock::UnderLock;
use crate::zoneinfo;
use commands::environment::Environment;
use commands::policies::{Policies, Policy, PolicyTable};
use commands::settings::{Numbers, Switch};
use engine::calendar::{Zone, Zones};
use std::sync::Arc;

/// The settings that are numbers.
pub static NUMBERS: Numbers = Numbers::new();
/// `policies-only`: limits must be given as policies.
pub static POLICIES_ONLY: Switch = Switch::off();
/// `notify-denied`: denials are published as keyspace events.
pub static NOTIFY_DENIED: Switch = Switch::off();
/// `cl-throttle`: the module also answers CL.THROTTLE.
pub static CL_THROTTLE: Switch = Switch::off();
/// `allow-unload`: MODULE UNLOAD may lose settings.
pub static ALLOW_UNLOAD: Switch = Switch::off();

/// The policies.
pub static POLICIES: UnderLock<PolicyTable> = UnderLock::new(PolicyTable::default);

/// The time zones that calls and settings have named.
pub static ZONES: UnderLock<Zones> = UnderLock::new(|| Zones::with_source(zoneinfo::rules));

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

    fn policies(&self) -> Policies {
        POLICIES.with(|table| table.policies().clone())
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        POLICIES.with(|table| table.policy_by_name(name))
    }
}

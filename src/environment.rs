//! What arguments mean on this server: its settings, policies and time zones.

use crate::config::{NUMBERS, POLICIES_ONLY};
use crate::redis::under_lock::UnderLock;
use commands::environment::Environment;
use commands::policies::{Policy, PolicyTable};
use commands::settings::Numbers;
use engine::calendar::{Zone, Zones};
use std::sync::Arc;

static POLICIES: UnderLock<PolicyTable> = UnderLock::new(PolicyTable::new());

/// The time zones that calls and settings have named.
static ZONES: UnderLock<Zones> = UnderLock::new(Zones::new());

/// The zone that the setting `timezone` was set to, if any.
static TIMEZONE: UnderLock<Option<Zone>> = UnderLock::new(None);

/// Lends the table of policies. `body` must not borrow it again.
pub fn policies<T>(body: impl FnOnce(&mut PolicyTable) -> T) -> T {
    POLICIES.with(body)
}

/// Lends the time zones. `body` must not borrow them again.
pub fn zones<T>(body: impl FnOnce(&mut Zones) -> T) -> T {
    ZONES.with(body)
}

/// Sets the zone of calendar windows.
pub fn set_timezone(zone: Zone) {
    TIMEZONE.set(Some(zone));
}

/// Forgets policies and zones before the module is unloaded. No zone may be used afterwards.
pub fn unload() {
    policies(PolicyTable::clear);
    TIMEZONE.set(None);
    zones(|zones| *zones = Zones::new());
}

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

    fn zone_named(&self, name: &[u8]) -> Option<Zone> {
        zones(|zones| zones.named(name))
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        policies(|table| table.named(name))
    }
}

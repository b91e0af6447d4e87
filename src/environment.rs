//! What arguments mean on this server.

use crate::config::{self, LEASE_MS, MAX_RESERVATIONS, POLICIES_ONLY};
use crate::policies;
use crate::zones::zones;
use commands::environment::Environment;
use commands::policies::Policy;
use engine::calendar::Zone;
use std::sync::Arc;

/// The settings, policies and zones of this server.
pub struct ServerEnvironment;

impl Environment for ServerEnvironment {
    #[inline]
    fn window_entries(&self) -> u32 {
        config::window_entries()
    }

    #[inline]
    fn lease_ms(&self) -> u64 {
        LEASE_MS.get()
    }

    #[inline]
    fn max_reservations(&self) -> u64 {
        MAX_RESERVATIONS.get()
    }

    #[inline]
    fn policies_only(&self) -> bool {
        POLICIES_ONLY.get()
    }

    fn chosen_timezone(&self) -> Option<Zone> {
        config::timezone()
    }

    fn zone_named(&self, name: &[u8]) -> Option<Zone> {
        zones(|zones| zones.named(name))
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        policies::named(name)
    }
}

//! The time zones that calls and settings named.

use engine::calendar::Zones;
use std::sync::{Mutex, PoisonError};

static ZONES: Mutex<Zones> = Mutex::new(Zones::new());

/// Looks zones up. `body` must not call this again.
pub fn zones<T>(body: impl FnOnce(&mut Zones) -> T) -> T {
    body(&mut ZONES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Forgets every zone, before the module goes: no zone may be used any more.
pub fn release() {
    zones(|zones| *zones = Zones::new());
}

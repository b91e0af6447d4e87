//! The time zones that calls and settings named.

use crate::redis::under_lock::UnderLock;
use engine::calendar::Zones;

static ZONES: UnderLock<Zones> = UnderLock::new(Zones::new());

/// Looks zones up. `body` must not call this again.
pub fn zones<T>(body: impl FnOnce(&mut Zones) -> T) -> T {
    ZONES.with(body)
}

/// Forgets every zone, before the module goes: no zone may be used any more.
pub fn unload() {
    zones(|zones| *zones = Zones::new());
}

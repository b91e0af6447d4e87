//! The values of the settings `ratelimit.*` that are numbers or switches. module/settings.rs has the table of all settings.

use commands::settings::{Numbers, Switch};

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

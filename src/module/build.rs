//! The version of this build, and the line that it logs when it is loaded.

use super::settings;
use crate::log::{log_notice, PREFIX};
use crate::redis::context::Context;
use crate::state::State;
use std::ffi::{c_int, CStr};

pub const VERSION: &CStr = c_text(concat!(env!("CARGO_PKG_VERSION"), "\0"));

/// The abbreviated commit of the build, or `unknown`.
pub const COMMIT: &CStr = c_text(concat!(env!("RATELIMIT_COMMIT"), "\0"));

/// The version as MODULE LIST shows it: 10000 * major + 100 * minor + patch.
pub const VERSION_NUMBER: c_int = number(env!("CARGO_PKG_VERSION_MAJOR"))
    .saturating_mul(10_000)
    .saturating_add(number(env!("CARGO_PKG_VERSION_MINOR")).saturating_mul(100))
    .saturating_add(number(env!("CARGO_PKG_VERSION_PATCH")));

const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

const fn number(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

/// The maximum length of a line. Servers cut lines at 1,024 bytes, including what they write before the text.
const MAX_LINE: usize = 900;

/// Logs the version, the release of the time zones, the number of policies, and the settings that are not at their defaults.
pub fn log_load(state: &State, ctx: Context) {
    let (version, commit) = (VERSION.to_string_lossy(), COMMIT.to_string_lossy());
    let policies = state.policies.with(|table| table.policies().len());
    let zones = state.zoneinfo.with(|zoneinfo| zoneinfo.release.clone());
    let mut line =
        format!("version {version}, commit {commit}, time zones {zones}, {policies} policies");
    let changed = settings::changed_settings();
    // Only the number of policies is logged, because their definitions are long.
    let changed: Vec<_> = changed.iter().filter(|(name, _)| *name != "policies").collect();
    line.push_str(if changed.is_empty() { ", default settings" } else { ", settings:" });
    for (name, value) in changed {
        let mut numbers = state.numbers.all().into_iter();
        let number = numbers.find(|number| number.name.to_bytes() == name.as_bytes());
        let unit = number.map_or("", |number| number.unit);
        line.push_str(&format!(" {name} {}{unit}", value.escape_ascii()));
    }
    line.truncate(MAX_LINE.saturating_sub(PREFIX.len()));
    log_notice(ctx, &line);
}

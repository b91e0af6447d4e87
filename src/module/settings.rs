//! The settings `ratelimit.*`. To add one, add its value to [`crate::environment`], or a number to [`Numbers`], and a row
//! here. If keys in memory have it too and it is not a number, also add it to memory/settings.rs of crates/commands.
//!
//! [`Numbers`]: commands::settings::Numbers

use super::log::log_warning;
use crate::environment::{
    ServerEnvironment, ALLOW_UNLOAD, CL_THROTTLE, NOTIFY_DENIED, NUMBERS, POLICIES, POLICIES_ONLY,
    TIMEZONE, ZONES,
};
use crate::redis::config::{apply_file, has_settings, Setting, SettingValue};
use crate::redis::context::Context;
use crate::redis::load::has_clients;
use crate::state::keyspace::forget_top;
use crate::zoneinfo;
use commands::definitions;
use commands::environment::Environment;
use commands::settings::{NumberSetting, Switch, DEFAULT_TIMEZONE};
use engine::calendar::Zones;
use std::ffi::CStr;

/// The setting that permits MODULE UNLOAD to lose the others.
const PERMISSION: &CStr = c"allow-unload";

/// All settings of the module. INFO has a digest of those that affect replies, and another one of the policies.
pub static SETTINGS: [Setting; 12] = [
    number(&NUMBERS.window_entries),
    number(&NUMBERS.lease_ms),
    number(&NUMBERS.max_reservations),
    number(&NUMBERS.max_waiters),
    Setting::new(c"timezone", &TIMEZONE_SETTING),
    Setting::new(c"policies-only", &POLICIES_ONLY),
    // A change of the number of keys starts counting again.
    Setting { affects_replies: false, after_change: forget_top, ..number(&NUMBERS.top_keys) },
    Setting { affects_replies: false, ..Setting::new(c"notify-denied", &NOTIFY_DENIED) },
    Setting { affects_replies: false, ..Setting::new(PERMISSION, &ALLOW_UNLOAD) },
    Setting { at_load_only: true, ..Setting::new(c"cl-throttle", &CL_THROTTLE) },
    Setting { at_load_only: true, ..Setting::new(c"zoneinfo", &ZONEINFO_SETTING) },
    Setting {
        takes_rest: true,
        affects_replies: false,
        ..Setting::new(c"policies", &POLICIES_SETTING)
    },
];

const fn number(number: &'static NumberSetting) -> Setting {
    Setting::new(number.name, number)
}

impl SettingValue for NumberSetting {
    fn default_text(&self) -> Vec<u8> {
        self.default.to_string().into_bytes()
    }

    fn text(&self) -> Vec<u8> {
        self.get().to_string().into_bytes()
    }

    fn set_text(&self, text: &[u8]) -> Result<(), String> {
        self.set(text)
    }
}

impl SettingValue for Switch {
    fn default_text(&self) -> Vec<u8> {
        Switch::off().text().to_vec()
    }

    fn text(&self) -> Vec<u8> {
        Switch::text(self).to_vec()
    }

    fn set_text(&self, text: &[u8]) -> Result<(), String> {
        self.set(text)
    }
}

/// A setting whose value another part of the module keeps.
struct TextSetting {
    default: &'static [u8],
    get: fn() -> Vec<u8>,
    set: fn(&[u8]) -> Result<(), String>,
}

impl SettingValue for TextSetting {
    fn default_text(&self) -> Vec<u8> {
        self.default.to_vec()
    }

    fn text(&self) -> Vec<u8> {
        (self.get)()
    }

    fn set_text(&self, text: &[u8]) -> Result<(), String> {
        (self.set)(text)
    }
}

static TIMEZONE_SETTING: TextSetting = TextSetting {
    default: DEFAULT_TIMEZONE,
    get: || {
        let zone = ServerEnvironment.timezone();
        let zone = zone.map(|zone| ZONES.with(|zones| zones.name(zone).as_bytes().to_vec()));
        zone.unwrap_or_else(|| DEFAULT_TIMEZONE.to_vec())
    },
    set: |value| {
        TIMEZONE.replace(Some(ServerEnvironment.read_timezone(value)?));
        Ok(())
    },
};

static ZONEINFO_SETTING: TextSetting = TextSetting {
    default: b"",
    get: zoneinfo::folder,
    set: |value| {
        // Settings before this one may have named zones.
        if zoneinfo::set_folder(value)? {
            ZONES.with(Zones::reload);
        }
        Ok(())
    },
};

static POLICIES_SETTING: TextSetting = TextSetting {
    default: b"",
    get: || POLICIES.with(|table| table.text().to_vec()),
    set: |value| {
        let definitions = definitions::parse(value, &ServerEnvironment)?;
        POLICIES.with(|table| table.replace(value, definitions));
        Ok(())
    },
};

/// Registers all settings with their current values as the defaults, and applies redis.conf.
pub fn register(ctx: Context) -> Result<(), String> {
    if !has_settings() {
        return Ok(());
    }
    if let Some(refused) = SETTINGS.iter().find(|setting| !setting.register(ctx)) {
        let name = refused.name.to_string_lossy();
        return Err(format!("the server refused the setting ratelimit.{name}"));
    }
    match apply_file(ctx) {
        true => Ok(()),
        false => Err("the server refused a setting ratelimit.*, see the line before".into()),
    }
}

/// Returns the names and values of the settings that are not at their defaults. The permission to lose them is left out: it
/// is given for a single MODULE UNLOAD.
pub fn not_default() -> Vec<(&'static str, Vec<u8>)> {
    SETTINGS
        .iter()
        .filter(|one| one.name != PERMISSION && one.value.text() != one.value.default_text())
        .map(|one| (one.name.to_str().unwrap_or_default(), one.value.text()))
        .collect()
}

/// Returns the names and values of the settings that change how calls are answered, in the order of [`SETTINGS`].
pub fn affecting_replies() -> Vec<u8> {
    SETTINGS
        .iter()
        .filter(|setting| setting.affects_replies)
        .flat_map(|setting| [setting.name.to_bytes(), b" ", &setting.value.text(), b";"].concat())
        .collect()
}

/// Resets all settings before the module is unloaded.
pub fn reset() {
    for setting in &SETTINGS {
        // Every default is allowed.
        let _ = setting.set(&setting.value.default_text());
    }
}

/// The settings that load arguments have set, with their values.
pub type AppliedArguments<'r> = Vec<(&'r Setting, Vec<u8>)>;

/// Refuses load arguments whose settings the server has overridden with other values. When the server is starting, this is
/// only logged: CONFIG REWRITE writes a new value into the file next to a `loadmodule` line with the old one, and the server
/// must start with that file. A client that sends MODULE LOADEX has given both values.
pub fn refuse_lost(ctx: Context, applied: &AppliedArguments) -> Result<(), String> {
    let Some((setting, _)) = applied.iter().find(|(one, value)| one.value.text() != *value) else {
        return Ok(());
    };
    let name = setting.name.to_string_lossy();
    if has_clients(ctx) {
        return Err(format!(
            "ratelimit.{name} has one value after CONFIG and another after ARGS: give it once"
        ));
    }
    log_warning(
        ctx,
        &format!(
            "the load argument {name} is not used, as the configuration file has ratelimit.{name}"
        ),
    );
    Ok(())
}

/// Applies load arguments `name value ...`, with or without `ratelimit.` before a name. Returns the settings that they set.
pub fn apply_arguments<'r>(
    settings: &'r [Setting],
    mut arguments: &[&[u8]],
) -> Result<AppliedArguments<'r>, String> {
    let mut applied = AppliedArguments::new();
    while let [name, rest @ ..] = arguments {
        let [value, after_value @ ..] = rest else {
            return Err("load arguments come in pairs of a setting's name and its value".into());
        };
        let plain = name.strip_prefix(b"ratelimit.").unwrap_or(name);
        let named = |one: &&Setting| plain.eq_ignore_ascii_case(one.name.to_bytes());
        let (name, value_text) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        let Some(setting) = settings.iter().find(named) else {
            return Err(format!("load argument {name} {value_text}: no such setting"));
        };
        let (result, remaining) = match setting.takes_rest {
            true => (setting.set(&rest.join(&b' ')), [].as_slice()),
            false => (setting.set(value), after_value),
        };
        result.map_err(|why| match setting.takes_rest {
            // The server cuts long lines, and a table of policies is long.
            true => format!("load argument {name}: {why}"),
            false => format!("load argument {name} {value_text}: {why}"),
        })?;
        applied.retain(|(other, _)| other.name != setting.name);
        applied.push((setting, setting.value.text()));
        arguments = remaining;
    }
    Ok(applied)
}

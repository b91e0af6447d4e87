//! The settings `ratelimit.*`. To add one, add its value to [`State`], or a number to [`NumberSettings`], and a row here. If
//! keys in memory have it too and it is not a number, also add it to memory/settings.rs of crates/commands.
//!
//! [`NumberSettings`]: commands::settings::NumberSettings

use crate::log::log_warning;
use crate::redis::config::{apply_file, has_settings, Setting, SettingValue};
use crate::redis::context::Context;
use crate::redis::load::has_clients;
use crate::redis::text::OwnedString;
use crate::redis::under_lock::UnderLock;
use crate::state::State;
use crate::zoneinfo::Zoneinfo;
use commands::definitions;
use commands::environment::Environment;
use commands::settings::{NumberSetting, SwitchSetting, DEFAULT_TIMEZONE};
use engine::calendar::Zones;
use std::ffi::CStr;

/// The setting that permits MODULE UNLOAD to lose the others.
const PERMISSION: &CStr = c"allow-unload";

/// All settings of the module. INFO has a digest of those that affect replies, and another one of the policies.
pub static SETTINGS: [Setting; 12] = [
    Setting::new(c"window-entries", &Value::Number(|state| &state.numbers.window_entries)),
    Setting::new(c"lease", &Value::Number(|state| &state.numbers.lease_ms)),
    Setting::new(c"max-reservations", &Value::Number(|state| &state.numbers.max_reservations)),
    Setting::new(c"max-waiters", &Value::Number(|state| &state.numbers.max_waiters)),
    Setting::new(c"timezone", &TIMEZONE),
    Setting::new(c"policies-only", &Value::Switch(|state| &state.policies_only)),
    Setting {
        affects_replies: false,
        // Counting starts again.
        after_change: || State::get().forget_denials(),
        ..Setting::new(c"top-keys", &Value::Number(|state| &state.numbers.top_keys))
    },
    Setting {
        affects_replies: false,
        ..Setting::new(c"notify-denied", &Value::Switch(|state| &state.notify_denied))
    },
    Setting {
        affects_replies: false,
        ..Setting::new(PERMISSION, &Value::Switch(|state| &state.allow_unload))
    },
    Setting {
        at_load_only: true,
        ..Setting::new(c"cl-throttle", &Value::Switch(|state| &state.cl_throttle))
    },
    Setting { at_load_only: true, ..Setting::new(c"zoneinfo", &ZONEINFO) },
    Setting { takes_rest: true, affects_replies: false, ..Setting::new(c"policies", &POLICIES) },
];

/// Where the state has the value of a setting.
enum Value {
    Number(fn(&State) -> &NumberSetting),
    Switch(fn(&State) -> &SwitchSetting),
    Text {
        default: &'static [u8],
        get: fn(&State) -> Vec<u8>,
        set: fn(&State, &[u8]) -> Result<(), String>,
    },
}

impl SettingValue for Value {
    fn default_text(&self) -> Vec<u8> {
        match self {
            Value::Number(number) => number(State::get()).default.to_string().into_bytes(),
            Value::Switch(_) => SwitchSetting::off().text().to_vec(),
            Value::Text { default, .. } => default.to_vec(),
        }
    }

    fn text(&self) -> Vec<u8> {
        match self {
            Value::Number(number) => number(State::get()).get().to_string().into_bytes(),
            Value::Switch(switch) => switch(State::get()).text().to_vec(),
            Value::Text { get, .. } => get(State::get()),
        }
    }

    fn set_text(&self, text: &[u8]) -> Result<(), String> {
        match self {
            Value::Number(number) => number(State::get()).set(text),
            Value::Switch(switch) => switch(State::get()).set(text),
            Value::Text { set, .. } => set(State::get(), text),
        }
    }

    fn shown(&self) -> &UnderLock<Option<OwnedString>> {
        &State::get().shown_setting
    }
}

const TIMEZONE: Value = Value::Text {
    default: DEFAULT_TIMEZONE,
    get: |state| {
        let zone = state.timezone();
        let zone = zone.map(|zone| state.zones.with(|zones| zones.name(zone).as_bytes().to_vec()));
        zone.unwrap_or_else(|| DEFAULT_TIMEZONE.to_vec())
    },
    set: |state, value| {
        state.timezone.replace(Some(state.read_timezone(value)?));
        Ok(())
    },
};

const ZONEINFO: Value = Value::Text {
    default: b"",
    get: |state| state.zoneinfo.with(|zoneinfo| zoneinfo.folder.clone()),
    set: |state, value| {
        if state.zoneinfo.with(|zoneinfo| zoneinfo.folder != value) {
            state.zoneinfo.replace(Zoneinfo::open(value)?);
            // Settings before this one may have named zones.
            state.zones.with(Zones::reload);
        }
        Ok(())
    },
};

const POLICIES: Value = Value::Text {
    default: b"",
    get: |state| state.policies.with(|table| table.text().to_vec()),
    set: |state, value| {
        let definitions = definitions::parse_policies(value, &state)?;
        state.policies.with(|table| table.replace(value, definitions));
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
pub fn changed_settings() -> Vec<(&'static str, Vec<u8>)> {
    SETTINGS
        .iter()
        .filter(|one| one.name != PERMISSION && one.value.text() != one.value.default_text())
        .map(|one| (one.name.to_str().unwrap_or_default(), one.value.text()))
        .collect()
}

/// Returns the names and values of the settings that change how calls are answered, in the order of [`SETTINGS`].
pub fn reply_settings_text() -> Vec<u8> {
    SETTINGS
        .iter()
        .filter(|setting| setting.affects_replies)
        .flat_map(|setting| [setting.name.to_bytes(), b" ", &setting.value.text(), b";"].concat())
        .collect()
}

pub type AppliedArguments<'r> = Vec<(&'r Setting, Vec<u8>)>;

/// Refuses load arguments whose settings the server has overridden with other values. When the server is starting, this is
/// only logged: CONFIG REWRITE writes a new value into the file next to a `loadmodule` line with the old one, and the server
/// must start with that file. A client that sends MODULE LOADEX has given both values.
pub fn refuse_overridden(ctx: Context, applied: &AppliedArguments) -> Result<(), String> {
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

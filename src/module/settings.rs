//! The settings `ratelimit.*`. To add one:
//!
//! - for a number, add its name, default and range to the commands' settings.rs;
//! - add its value to config.rs, and a row here;
//! - if it concerns keys in memory, add its value to the commands' memory/settings.rs: a number as a row of `NUMBERS`,
//!   anything else as an arm of `set`.

use super::log::log_warning;
use crate::config::{
    ALLOW_UNLOAD, CL_THROTTLE, LEASE_MS, MAX_RESERVATIONS, MAX_WAITERS, NOTIFY_DENIED,
    POLICIES_ONLY, TOP_KEYS, WINDOW_ENTRIES,
};
use crate::environment::{policies, set_timezone, zones, ServerEnvironment};
use crate::keys;
use crate::redis::config::{
    apply_file, has_settings, NumberSetting, Setting, SettingValue, SwitchSetting, TextSetting,
};
use crate::redis::context::Context;
use crate::redis::load::has_clients;
use commands::definitions;
use commands::environment::Environment;
use commands::settings::{read_number, read_switch, read_zone, DEFAULT_TIMEZONE};
use std::ffi::CStr;

/// A setting, and how load arguments give it.
pub struct SettingRow {
    setting: Setting,
    /// As a load argument it comes last: everything after its name, joined with blanks, is its value.
    takes_rest: bool,
    /// Whether two servers on which it differs may answer the same call differently. INFO compares the policies on their
    /// own.
    decides: bool,
}

/// The setting that lets MODULE UNLOAD lose the others.
const PERMISSION: &CStr = c"allow-unload";
pub static SETTINGS: [SettingRow; 11] = [
    row(number(&WINDOW_ENTRIES)),
    row(number(&LEASE_MS)),
    row(number(&MAX_RESERVATIONS)),
    row(number(&MAX_WAITERS)),
    row(Setting::new(c"timezone", SettingValue::Text(TIMEZONE))),
    row(switch(c"policies-only", &POLICIES_ONLY)),
    // With another number of keys, counting starts again.
    SettingRow {
        decides: false,
        ..row(Setting { before_change: keys::forget_top, ..number(&TOP_KEYS) })
    },
    SettingRow { decides: false, ..row(switch(c"notify-denied", &NOTIFY_DENIED)) },
    SettingRow { decides: false, ..row(switch(PERMISSION, &ALLOW_UNLOAD)) },
    row(Setting { at_load_only: true, ..switch(c"cl-throttle", &CL_THROTTLE) }),
    SettingRow {
        takes_rest: true,
        decides: false,
        ..row(Setting::new(c"policies", SettingValue::Text(POLICIES)))
    },
];

const fn row(setting: Setting) -> SettingRow {
    SettingRow { setting, takes_rest: false, decides: true }
}

const fn number(number: &'static NumberSetting) -> Setting {
    Setting::new(number.name, SettingValue::Number(number))
}

const fn switch(name: &'static CStr, switch: &'static SwitchSetting) -> Setting {
    Setting::new(name, SettingValue::Switch(switch))
}

const TIMEZONE: TextSetting = TextSetting {
    default: DEFAULT_TIMEZONE,
    get: || {
        let zone = ServerEnvironment.timezone();
        let zone = zone.map(|zone| zones(|zones| zones.name(zone).as_bytes().to_vec()));
        zone.unwrap_or_else(|| DEFAULT_TIMEZONE.to_vec())
    },
    set: |value| read_zone(value, &ServerEnvironment).map(set_timezone),
};

const POLICIES: TextSetting = TextSetting {
    default: b"",
    get: || policies(|table| table.text().to_vec()),
    set: |value| {
        let definitions = definitions::parse(value, &ServerEnvironment)?;
        policies(|table| table.replace(value, definitions));
        Ok(())
    },
};

/// Registers all settings with their current values as the defaults, and applies redis.conf.
pub fn register(ctx: Context) -> Result<(), String> {
    if !has_settings() {
        return Ok(());
    }
    if let Some(row) = SETTINGS.iter().find(|row| !row.setting.register(ctx)) {
        let name = row.setting.name.to_string_lossy();
        return Err(format!("the server refused the setting ratelimit.{name}"));
    }
    match apply_file(ctx) {
        true => Ok(()),
        false => Err("the server refused a setting ratelimit.*, see the line before".into()),
    }
}

/// The names and values of the settings that are not at their defaults. The permission to lose them is left out: it is given
/// for a single MODULE UNLOAD.
pub fn not_default() -> Vec<(&'static str, Vec<u8>)> {
    let settings = SETTINGS.iter().map(|row| &row.setting);
    settings
        .filter(|setting| setting.name != PERMISSION && !setting.is_default())
        .map(|setting| (setting.name.to_str().unwrap_or_default(), setting.shown()))
        .collect()
}

/// The names and values of the settings that change how calls are answered, in the order of [`SETTINGS`].
pub fn decisive() -> Vec<u8> {
    let settings = SETTINGS.iter().filter(|row| row.decides).map(|row| &row.setting);
    settings
        .flat_map(|setting| [setting.name.to_bytes(), b" ", &setting.shown(), b";"].concat())
        .collect()
}

/// Resets numbers and switches before the module is unloaded. The texts are dropped with the policies and zones.
pub fn reset() {
    for row in &SETTINGS {
        match row.setting.value {
            SettingValue::Number(number) => number.set(number.default),
            SettingValue::Switch(switch) => switch.set(false),
            SettingValue::Text(_) => {}
        }
    }
}

/// The settings that load arguments have set, with their values.
pub type TakenArguments<'r> = Vec<(&'r Setting, Vec<u8>)>;

/// Refuses load arguments whose settings the server has overridden with other values. When the server is starting, this is
/// only logged: CONFIG REWRITE writes a new value into the file next to a `loadmodule` line with the old one, and the server
/// must start with that file. A client that sends MODULE LOADEX has given both values.
pub fn refuse_lost(ctx: Context, taken: &TakenArguments) -> Result<(), String> {
    let Some((setting, _)) = taken.iter().find(|(one, value)| one.shown() != *value) else {
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
pub fn take_arguments<'r>(
    rows: &'r [SettingRow],
    mut arguments: &[&[u8]],
) -> Result<TakenArguments<'r>, String> {
    let mut all = TakenArguments::new();
    while let [name, rest @ ..] = arguments {
        let [value, after @ ..] = rest else {
            return Err("load arguments come in pairs of a setting's name and its value".into());
        };
        let plain = name.strip_prefix(b"ratelimit.").unwrap_or(name);
        let row = rows.iter().find(|row| plain.eq_ignore_ascii_case(row.setting.name.to_bytes()));
        let (name, value_text) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        let Some(SettingRow { setting, takes_rest, .. }) = row else {
            return Err(format!("load argument {name} {value_text}: no such setting"));
        };
        let (taken, after) = match takes_rest {
            true => (set_from_text(setting, &rest.join(&b' ')), [].as_slice()),
            false => (set_from_text(setting, value), after),
        };
        taken.map_err(|why| match takes_rest {
            // The server cuts long lines, and a table of policies is long.
            true => format!("load argument {name}: {why}"),
            false => format!("load argument {name} {value_text}: {why}"),
        })?;
        all.retain(|(other, _)| other.name != setting.name);
        all.push((setting, setting.shown()));
        arguments = after;
    }
    Ok(all)
}

/// Changes a setting to a value that is given as text, or says what is allowed.
fn set_from_text(setting: &Setting, value: &[u8]) -> Result<(), String> {
    match setting.value {
        SettingValue::Number(number) => {
            let value = read_number(value, number.range())?;
            (setting.before_change)();
            number.set(value);
        }
        SettingValue::Switch(switch) => switch.set(read_switch(value)?),
        SettingValue::Text(text) => (text.set)(value)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_setting_that_takes_the_rest_gets_all_words_after_its_name() {
        static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        static SWITCH: SwitchSetting = SwitchSetting::off();
        let text = SettingValue::Text(TextSetting {
            default: b"",
            get: || TEXT.lock().unwrap().clone(),
            set: |value| {
                *TEXT.lock().unwrap() = value.to_vec();
                Ok(())
            },
        });
        let rows = [
            row(switch(c"switch", &SWITCH)),
            SettingRow { takes_rest: true, ..row(Setting::new(c"all", text)) },
        ];
        let take = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
            take_arguments(&rows, &words).map(|taken| taken.len())
        };
        assert_eq!(take("switch YES ratelimit.all a 1 2; switch no"), Ok(2));
        assert_eq!(*TEXT.lock().unwrap(), b"a 1 2; switch no");
        assert!(SWITCH.get());
        assert_eq!(take("switch yes switch no"), Ok(1));
        assert!(!SWITCH.get());
        assert!(take("switch").is_err());
        assert!(take("switch 1").is_err());
        assert!(take("all").is_err());
    }
}

//! The settings `ratelimit.*`. To add one:
//!
//! - for a number, its name, default and range in the commands' settings.rs;
//! - its value in config.rs, and a row here: of another kind than a number with its name;
//! - where it concerns keys in memory, its value in the commands' memory/settings.rs: for a number with a row in `NUMBERS`, else
//!   with an arm in `set`.

use super::log::log_warning;
use crate::config::{
    self, ALLOW_UNLOAD, CL_THROTTLE, LEASE_MS, MAX_RESERVATIONS, MAX_WAITERS, NOTIFY_DENIED,
    POLICIES_ONLY, TOP_KEYS, WINDOW_ENTRIES,
};
use crate::environment::ServerEnvironment;
use crate::redis::config::{
    NumberSource, Setting, SettingRefused, SettingValue, SwitchSource, TextSource,
};
use crate::redis::context::Context;
use crate::redis::load::has_clients;
use crate::zones::zones;
use crate::{observe, policies};
use commands::definitions;
use commands::environment::Environment;
use commands::settings::{self, read_number, read_switch, read_zone, DEFAULT_TIMEZONE};
use std::ffi::CStr;
use std::ops::RangeInclusive;

/// A setting, and how load arguments give it.
pub struct SettingRow {
    setting: Setting,
    /// As a load argument it stands last: all that follows its name, joined with blanks, is its value.
    takes_rest: bool,
    /// Two servers on which it differs may answer the same call differently. Not so the policies, which INFO compares themselves.
    decides: bool,
}

/// The setting that lets MODULE UNLOAD lose the others.
const PERMISSION: &CStr = c"allow-unload";

/// All settings.
pub static SETTINGS: [SettingRow; 11] = [
    SettingRow::new(settings::WINDOW_ENTRIES.name, SettingValue::Number(&WINDOW_ENTRIES)),
    SettingRow::new(settings::LEASE_MS.name, SettingValue::Number(&LEASE_MS)),
    SettingRow::new(settings::MAX_RESERVATIONS.name, SettingValue::Number(&MAX_RESERVATIONS)),
    SettingRow::new(settings::MAX_WAITERS.name, SettingValue::Number(&MAX_WAITERS)),
    SettingRow::new(c"timezone", SettingValue::Text(&Timezone)),
    SettingRow::new(c"policies-only", SettingValue::Switch(&POLICIES_ONLY)),
    SettingRow {
        decides: false,
        ..SettingRow::new(settings::TOP_KEYS.name, SettingValue::Number(&TopKeys))
    },
    SettingRow {
        decides: false,
        ..SettingRow::new(c"notify-denied", SettingValue::Switch(&NOTIFY_DENIED))
    },
    SettingRow {
        decides: false,
        ..SettingRow::new(PERMISSION, SettingValue::Switch(&ALLOW_UNLOAD))
    },
    SettingRow {
        setting: Setting {
            name: c"cl-throttle",
            at_load_only: true,
            value: SettingValue::Switch(&CL_THROTTLE),
        },
        takes_rest: false,
        decides: true,
    },
    SettingRow {
        takes_rest: true,
        decides: false,
        ..SettingRow::new(c"policies", SettingValue::Text(&Policies))
    },
];

impl SettingRow {
    const fn new(name: &'static CStr, value: SettingValue) -> SettingRow {
        let setting = Setting { name, at_load_only: false, value };
        SettingRow { setting, takes_rest: false, decides: true }
    }
}

impl NumberSource for config::NumberSetting {
    fn range(&self) -> RangeInclusive<i64> {
        self.min..=self.max
    }

    fn default_value(&self) -> i64 {
        self.default
    }

    fn get(&self) -> i64 {
        i64::try_from(config::NumberSetting::get(self)).unwrap_or(self.max)
    }

    fn set(&self, value: i64) -> bool {
        config::NumberSetting::set(self, value)
    }
}

impl SwitchSource for config::SwitchSetting {
    fn get(&self) -> bool {
        config::SwitchSetting::get(self)
    }

    fn set(&self, value: bool) {
        config::SwitchSetting::set(self, value);
    }
}

/// A new number of keys begins to count anew.
struct TopKeys;

impl NumberSource for TopKeys {
    fn range(&self) -> RangeInclusive<i64> {
        NumberSource::range(&TOP_KEYS)
    }

    fn default_value(&self) -> i64 {
        TOP_KEYS.default
    }

    fn get(&self) -> i64 {
        NumberSource::get(&TOP_KEYS)
    }

    fn set(&self, value: i64) -> bool {
        observe::forget_top();
        NumberSource::set(&TOP_KEYS, value)
    }
}

struct Policies;

impl TextSource for Policies {
    fn default_value(&self) -> Vec<u8> {
        Vec::new()
    }

    fn get(&self) -> Vec<u8> {
        policies::text()
    }

    fn set(&self, value: &[u8]) -> Result<(), String> {
        policies::replace(value, definitions::parse(value, &ServerEnvironment)?);
        Ok(())
    }
}

struct Timezone;

impl TextSource for Timezone {
    fn default_value(&self) -> Vec<u8> {
        DEFAULT_TIMEZONE.to_vec()
    }

    fn get(&self) -> Vec<u8> {
        let zone = ServerEnvironment.timezone();
        let zone = zone.map(|zone| zones(|zones| zones.name(zone).as_bytes().to_vec()));
        zone.unwrap_or_else(|| DEFAULT_TIMEZONE.to_vec())
    }

    fn set(&self, value: &[u8]) -> Result<(), String> {
        config::set_timezone(read_zone(value, &ServerEnvironment)?);
        Ok(())
    }
}

/// Registers all settings, and applies redis.conf. What the load arguments said becomes the default.
pub fn register(ctx: Context) -> Result<(), String> {
    let settings = SETTINGS.iter().map(|row| &row.setting);
    crate::redis::config::register(ctx, settings).map_err(|SettingRefused(name)| match name {
        Some(name) => {
            format!("the server refused the setting ratelimit.{}", name.to_string_lossy())
        }
        None => "the server refused a setting ratelimit.*, see the line before".into(),
    })
}

/// Names and values of the settings that are not at their defaults. The permission to lose them is none of them: it
/// is given for one MODULE UNLOAD, and would else be carried on.
pub fn not_default() -> Vec<(&'static str, Vec<u8>)> {
    let rows = SETTINGS.iter().map(|row| &row.setting);
    rows.filter(|setting| setting.name != PERMISSION && !setting.value.is_default())
        .map(|setting| (setting.name.to_str().unwrap_or_default(), setting.value.shown()))
        .collect()
}

/// Names and values of the settings that change what a call is answered, in the order of [`SETTINGS`].
pub fn decisive() -> Vec<u8> {
    let rows = SETTINGS.iter().filter(|row| row.decides).map(|row| &row.setting);
    rows.flat_map(|setting| [setting.name.to_bytes(), b" ", &setting.value.shown(), b";"].concat())
        .collect()
}

/// Sets numbers and switches to their defaults, before the module goes. The texts are forgotten with what they name.
pub fn reset() {
    for row in &SETTINGS {
        match &row.setting.value {
            SettingValue::Number(number) => {
                number.set(number.default_value());
            }
            SettingValue::Switch(switch) => switch.set(false),
            SettingValue::Text(_) => {}
        }
    }
}

/// The settings that load arguments gave, with their values.
pub type TakenArguments<'r> = Vec<(&'r Setting, Vec<u8>)>;

/// Refuses load arguments that the server has overridden with other values of the same settings. When a server starts it is
/// only logged: CONFIG SET and CONFIG REWRITE put a new value into the file next to a `loadmodule` line with the old one, and
/// the server must start with that file. But whoever sends MODULE LOADEX gave both.
pub fn refuse_lost(ctx: Context, taken: &TakenArguments) -> Result<(), String> {
    let Some((setting, _)) = taken.iter().find(|(one, value)| one.value.shown() != *value) else {
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

/// Takes load arguments `name value ...`, with or without `ratelimit.` before a name; returns which settings they gave.
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
        let joined;
        let (value, after) = match row {
            Some(row) if row.takes_rest => {
                joined = rest.join(&b' ');
                (joined.as_slice(), [].as_slice())
            }
            _ => (*value, after),
        };
        let taken = match row {
            Some(row) => set_from_text(&row.setting.value, value),
            None => Err("no such setting".into()),
        };
        if let Some(SettingRow { setting, .. }) = row {
            all.retain(|(other, _)| other.name != setting.name);
            all.push((setting, setting.value.shown()));
        }
        if let Err(why) = taken {
            let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            // The server cuts long lines, and a table is long.
            return Err(match row {
                Some(row) if row.takes_rest => format!("load argument {name}: {why}"),
                _ => format!("load argument {name} {value}: {why}"),
            });
        }
        arguments = after;
    }
    Ok(all)
}

/// Sets a value that is given as text, or says why not.
fn set_from_text(setting: &SettingValue, value: &[u8]) -> Result<(), String> {
    match setting {
        SettingValue::Number(number) => {
            number.set(read_number(value, number.range())?);
            Ok(())
        }
        SettingValue::Text(text) => text.set(value),
        SettingValue::Switch(switch) => {
            switch.set(read_switch(value)?);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Kept(Mutex<Vec<u8>>);

    impl TextSource for Kept {
        fn default_value(&self) -> Vec<u8> {
            Vec::new()
        }

        fn get(&self) -> Vec<u8> {
            self.0.lock().unwrap().clone()
        }

        fn set(&self, value: &[u8]) -> Result<(), String> {
            *self.0.lock().unwrap() = value.to_vec();
            Ok(())
        }
    }

    impl SwitchSource for Kept {
        fn get(&self) -> bool {
            TextSource::get(self) == b"on"
        }

        fn set(&self, value: bool) {
            *self.0.lock().unwrap() = if value { b"on".to_vec() } else { b"off".to_vec() };
        }
    }

    #[test]
    fn a_setting_that_takes_the_rest_is_given_all_words_that_follow_its_name() {
        static REST: Kept = Kept(Mutex::new(Vec::new()));
        static SWITCH: Kept = Kept(Mutex::new(Vec::new()));
        let rows = [
            SettingRow::new(c"switch", SettingValue::Switch(&SWITCH)),
            SettingRow { takes_rest: true, ..SettingRow::new(c"all", SettingValue::Text(&REST)) },
        ];
        let take = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
            take_arguments(&rows, &words).map(|taken| taken.len())
        };
        assert_eq!(take("switch YES ratelimit.all a 1 2; switch no"), Ok(2));
        assert_eq!(TextSource::get(&REST), b"a 1 2; switch no");
        assert!(SwitchSource::get(&SWITCH));
        assert_eq!(take("switch yes switch no"), Ok(1));
        assert!(!SwitchSource::get(&SWITCH));
        assert!(take("switch").is_err());
        assert!(take("switch 1").is_err());
        assert!(take("all").is_err());
    }
}

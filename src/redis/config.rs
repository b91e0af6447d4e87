//! Settings in the server's configuration: CONFIG GET, SET and REWRITE, and redis.conf, from 7.0 on.

use super::api::{optional, RawString, ERR, OK};
use super::context::Context;
use super::guard::guard;
use super::text::{bytes_of, OwnedString};
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_void, CStr, CString};
use std::ops::RangeInclusive;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// A setting. The server puts the name of the module before its name.
pub struct Setting {
    pub name: &'static CStr,
    /// Whether CONFIG SET refuses it, so that only redis.conf and load arguments set it.
    pub at_load_only: bool,
    /// What is done before a number changes.
    pub before_change: fn(),
    pub value: SettingValue,
}

/// The value of a setting.
#[derive(Clone, Copy)]
pub enum SettingValue {
    /// An integer.
    Number(&'static NumberSetting),
    /// `yes` or `no`.
    Switch(&'static SwitchSetting),
    /// Any text.
    Text(TextSetting),
}

/// An integer within a range.
pub struct NumberSetting {
    /// The name of the setting.
    pub name: &'static CStr,
    /// Its default.
    pub default: i64,
    min: i64,
    max: i64,
    value: AtomicI64,
}

/// A switch, which is off by default.
pub struct SwitchSetting(AtomicBool);

/// A text that the module keeps.
#[derive(Clone, Copy)]
pub struct TextSetting {
    /// Its default.
    pub default: &'static [u8],
    /// Returns the current value.
    pub get: fn() -> Vec<u8>,
    /// Changes the value, or says why it cannot.
    pub set: fn(&[u8]) -> Result<(), String>,
}

impl NumberSetting {
    /// A setting with its default value.
    pub const fn new(name: &'static CStr, default: i64, min: i64, max: i64) -> NumberSetting {
        NumberSetting { name, default, min, max, value: AtomicI64::new(default) }
    }

    /// The allowed values.
    pub fn range(&self) -> RangeInclusive<i64> {
        self.min..=self.max
    }

    /// The current value. No setting is negative.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed).unsigned_abs()
    }

    /// Changes the value, which must be in range.
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

impl SwitchSetting {
    /// A switch that is off.
    pub const fn off() -> SwitchSetting {
        SwitchSetting(AtomicBool::new(false))
    }

    /// Whether it is on.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Turns it on or off.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

/// Whether this server has settings of modules (7.0). Otherwise there are only load arguments.
pub fn has_settings() -> bool {
    optional!(RedisModule_LoadConfigs).is_some()
}

/// Applies redis.conf to the registered settings. Returns false if the server refuses a value.
pub fn apply_file(ctx: Context) -> bool {
    // SAFETY: the context is live.
    optional!(RedisModule_LoadConfigs).is_some_and(|load| unsafe { load(ctx.raw()) } == OK)
}

impl Setting {
    /// A setting that CONFIG SET can change.
    pub const fn new(name: &'static CStr, value: SettingValue) -> Setting {
        Setting { name, at_load_only: false, before_change: || {}, value }
    }

    /// The current value, as CONFIG GET shows it.
    pub fn shown(&self) -> Vec<u8> {
        match self.value {
            SettingValue::Number(number) => number.get().to_string().into_bytes(),
            SettingValue::Switch(switch) => if switch.get() { b"yes" } else { &b"no"[..] }.to_vec(),
            SettingValue::Text(text) => (text.get)(),
        }
    }

    /// Whether the current value is the default of the module. Load arguments do not change that default.
    pub fn is_default(&self) -> bool {
        match self.value {
            SettingValue::Number(number) => i64::try_from(number.get()) == Ok(number.default),
            SettingValue::Switch(switch) => !switch.get(),
            SettingValue::Text(text) => (text.get)() == text.default,
        }
    }

    /// Registers the setting with its current value as the default. Returns false if the server refuses.
    pub fn register(&'static self, ctx: Context) -> bool {
        self.try_register(ctx) == Some(OK)
    }

    fn try_register(&'static self, ctx: Context) -> Option<c_int> {
        let flags = match self.at_load_only {
            true => raw::REDISMODULE_CONFIG_IMMUTABLE,
            false => raw::REDISMODULE_CONFIG_DEFAULT,
        };
        let (ctx, name) = (ctx.raw(), self.name.as_ptr());
        let data = std::ptr::from_ref(self).cast_mut().cast();
        let status = match self.value {
            SettingValue::Number(number) => {
                let (get, set) = (Some(get_number as _), Some(set_number as _));
                let value = i64::try_from(number.get()).ok()?;
                let register = optional!(RedisModule_RegisterNumericConfig)?;
                let (min, max) = (number.min, number.max);
                // SAFETY: the context is live; the name is copied; the functions and the setting are static.
                unsafe { register(ctx, name, value, flags, min, max, get, set, None, data) }
            }
            SettingValue::Switch(switch) => {
                let (get, set) = (Some(get_switch as _), Some(set_switch as _));
                let register = optional!(RedisModule_RegisterBoolConfig)?;
                // SAFETY: as above.
                unsafe { register(ctx, name, switch.get().into(), flags, get, set, None, data) }
            }
            SettingValue::Text(text) => {
                let (get, set) = (Some(get_text as _), Some(set_text as _));
                let value = CString::new((text.get)()).ok()?;
                let register = optional!(RedisModule_RegisterStringConfig)?;
                // SAFETY: as above; the value is copied too.
                unsafe { register(ctx, name, value.as_ptr(), flags, get, set, None, data) }
            }
        };
        Some(status)
    }

    /// Changes a number or a switch. Returns false for another value.
    fn set_integer(&self, value: i64) -> bool {
        match self.value {
            SettingValue::Number(number) if number.range().contains(&value) => {
                (self.before_change)();
                number.set(value);
            }
            SettingValue::Switch(switch) => switch.set(value != 0),
            SettingValue::Number(_) | SettingValue::Text(_) => return false,
        }
        true
    }
}

/// # Safety
/// `data` is what [`Setting::register`] passed to the server.
unsafe fn setting(data: *mut c_void) -> &'static Setting {
    // SAFETY: the caller's promise; settings are static.
    unsafe { &*data.cast::<Setting>() }
}

unsafe extern "C" fn get_number(_name: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: the server passes what was registered.
    let SettingValue::Number(number) = (unsafe { setting(data) }).value else { return 0 };
    guard(None, || number.value.load(Ordering::Relaxed)).unwrap_or(0)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    _error: *mut RawString,
) -> c_int {
    // SAFETY: the server passes what was registered. It has checked the range, and words what is wrong.
    let setting = unsafe { setting(data) };
    match guard(None, || setting.set_integer(value)) {
        Some(true) => OK,
        _ => ERR,
    }
}

unsafe extern "C" fn get_switch(_name: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: the server passes what was registered.
    let SettingValue::Switch(switch) = (unsafe { setting(data) }).value else { return 0 };
    c_int::from(guard(None, || switch.get()).unwrap_or(false))
}

unsafe extern "C" fn set_switch(
    name: *const c_char,
    value: c_int,
    data: *mut c_void,
    error: *mut RawString,
) -> c_int {
    // SAFETY: the server passes what was registered.
    unsafe { set_number(name, value.into(), data, error) }
}

/// The text that the server asked for last. The server copies it and does not take it over.
static SHOWN: UnderLock<Option<OwnedString>> = UnderLock::new(None);

/// Frees what is kept between calls before the module is unloaded.
pub(super) fn unload() {
    drop(SHOWN.with(Option::take));
}

unsafe extern "C" fn get_text(_name: *const c_char, data: *mut c_void) -> RawString {
    // SAFETY: the server passes what was registered.
    let setting = unsafe { setting(data) };
    let shown = guard(None, || {
        let value = OwnedString::new(&setting.shown());
        let raw = value.raw();
        drop(SHOWN.with(|shown| shown.replace(value)));
        raw
    });
    shown.unwrap_or(null_mut())
}

unsafe extern "C" fn set_text(
    _name: *const c_char,
    value: RawString,
    data: *mut c_void,
    error: *mut RawString,
) -> c_int {
    // SAFETY: the server passes what was registered.
    let SettingValue::Text(text) = (unsafe { setting(data) }).value else { return ERR };
    // SAFETY: the server keeps the value during the call.
    let value = unsafe { bytes_of(value) };
    match guard(None, || (text.set)(value)) {
        Some(Ok(())) => return OK,
        // SAFETY: the server takes the string over.
        Some(Err(why)) if !error.is_null() => unsafe {
            *error = OwnedString::new(why.as_bytes()).into_raw();
        },
        _ => {}
    }
    ERR
}

//! Settings in the server's configuration: CONFIG GET, SET and REWRITE, and redis.conf, from 7.0 on.

use super::api::{optional, RawString, ERR, OK};
use super::context::Context;
use super::guard::guard;
use super::text::{bytes_of, OwnedString};
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_void, CStr, CString};
use std::ptr::null_mut;

/// A setting. The server puts the name of the module before its name.
pub struct Setting {
    pub name: &'static CStr,
    /// True if CONFIG SET refuses the setting, and only redis.conf and load arguments set it.
    pub at_load_only: bool,
    /// Called after the value has changed.
    pub after_change: fn(),
    pub value: &'static dyn SettingValue,
}

/// The value of a setting, which is read and changed as text.
pub trait SettingValue: Sync {
    /// Returns the kind of values that CONFIG SET accepts.
    fn kind(&self) -> SettingKind;

    /// Returns the default of the module. Load arguments and redis.conf do not change it.
    fn default(&self) -> Vec<u8>;

    /// Returns the current value, as CONFIG GET shows it.
    fn get(&self) -> Vec<u8>;

    /// Changes the value. The error says which values are allowed.
    fn set(&self, value: &[u8]) -> Result<(), String>;
}

/// The kind of values that CONFIG SET accepts.
#[derive(Clone, Copy)]
pub enum SettingKind {
    /// An integer within this range.
    Number { min: i64, max: i64 },
    /// `yes` or `no`.
    Switch,
    /// Any text.
    Text,
}

/// Returns whether this server has settings of modules (7.0). Otherwise there are only load arguments.
pub fn has_settings() -> bool {
    optional!(RedisModule_LoadConfigs).is_some()
}

/// Applies redis.conf to the registered settings. Returns false if the server refuses a value.
pub fn apply_file(ctx: Context) -> bool {
    // SAFETY: the context is live.
    optional!(RedisModule_LoadConfigs).is_some_and(|load| unsafe { load(ctx.raw()) } == OK)
}

impl Setting {
    /// Creates a setting that CONFIG SET can change.
    pub const fn new(name: &'static CStr, value: &'static dyn SettingValue) -> Setting {
        Setting { name, at_load_only: false, after_change: || {}, value }
    }

    /// Returns whether the value is the default of the module.
    pub fn is_default(&self) -> bool {
        self.value.get() == self.value.default()
    }

    /// Changes the value. The error says which values are allowed.
    pub fn set(&self, value: &[u8]) -> Result<(), String> {
        self.value.set(value)?;
        (self.after_change)();
        Ok(())
    }

    /// Returns the value of a number.
    fn number(&self) -> Option<i64> {
        std::str::from_utf8(&self.value.get()).ok()?.parse().ok()
    }

    /// Returns whether a switch is on.
    fn is_on(&self) -> bool {
        self.value.get() == b"yes"
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
        let status = match self.value.kind() {
            SettingKind::Number { min, max } => {
                let (get, set) = (Some(get_number as _), Some(set_number as _));
                let value = self.number()?;
                let register = optional!(RedisModule_RegisterNumericConfig)?;
                // SAFETY: the context is live; the name is copied; the functions and the setting are static.
                unsafe { register(ctx, name, value, flags, min, max, get, set, None, data) }
            }
            SettingKind::Switch => {
                let (get, set) = (Some(get_switch as _), Some(set_switch as _));
                let value = self.is_on().into();
                let register = optional!(RedisModule_RegisterBoolConfig)?;
                // SAFETY: as above.
                unsafe { register(ctx, name, value, flags, get, set, None, data) }
            }
            SettingKind::Text => {
                let (get, set) = (Some(get_text as _), Some(set_text as _));
                let value = CString::new(self.value.get()).ok()?;
                let register = optional!(RedisModule_RegisterStringConfig)?;
                // SAFETY: as above; the value is copied too.
                unsafe { register(ctx, name, value.as_ptr(), flags, get, set, None, data) }
            }
        };
        Some(status)
    }
}

/// Returns the setting whose address the server passes to a callback.
///
/// # Safety
/// `data` is the pointer that [`Setting::register`] passed to the server.
unsafe fn setting(data: *mut c_void) -> &'static Setting {
    // SAFETY: the caller's promise; settings are static.
    unsafe { &*data.cast::<Setting>() }
}

/// Changes a setting for the server. If the value is refused, `error` is set to the reason.
///
/// # Safety
/// As for [`setting`]. `error` is null, or points to where the server expects a string, which it then owns.
unsafe fn change(data: *mut c_void, value: &[u8], error: *mut RawString) -> c_int {
    // SAFETY: the caller's promise.
    let setting = unsafe { setting(data) };
    match guard(None, || setting.set(value)) {
        Some(Ok(())) => return OK,
        // SAFETY: the caller's promise.
        Some(Err(why)) if !error.is_null() => unsafe {
            *error = OwnedString::new(why.as_bytes()).into_raw();
        },
        _ => {}
    }
    ERR
}

unsafe extern "C" fn get_number(_name: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: the server passes what was registered.
    let setting = unsafe { setting(data) };
    guard(None, || setting.number()).flatten().unwrap_or(0)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    error: *mut RawString,
) -> c_int {
    // SAFETY: the server passes what was registered.
    unsafe { change(data, value.to_string().as_bytes(), error) }
}

unsafe extern "C" fn get_switch(_name: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: the server passes what was registered.
    let setting = unsafe { setting(data) };
    guard(None, || setting.is_on()).unwrap_or(false).into()
}

unsafe extern "C" fn set_switch(
    _name: *const c_char,
    value: c_int,
    data: *mut c_void,
    error: *mut RawString,
) -> c_int {
    let value = if value == 0 { &b"no"[..] } else { b"yes" };
    // SAFETY: the server passes what was registered.
    unsafe { change(data, value, error) }
}

/// The last text that the server asked for. The server copies it, and does not free it.
static SHOWN: UnderLock<Option<OwnedString>> = UnderLock::new(|| None);

unsafe extern "C" fn get_text(_name: *const c_char, data: *mut c_void) -> RawString {
    // SAFETY: the server passes what was registered.
    let setting = unsafe { setting(data) };
    let shown = guard(None, || {
        let value = OwnedString::new(&setting.value.get());
        let raw = value.raw();
        drop(SHOWN.replace(Some(value)));
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
    // SAFETY: the server passes what was registered, and keeps the value during the call.
    unsafe { change(data, bytes_of(value), error) }
}

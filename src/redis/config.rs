//! Settings in the server's configuration: CONFIG GET, SET and REWRITE, and redis.conf, from 7.0 on. The server takes each
//! value as text, so that only the module parses it, and refuses it with the same error as a load argument.

use super::api::{optional, RawString, ERR, OK};
use super::context::Context;
use super::guard::guard;
use super::text::{bytes_of, OwnedString};
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::null_mut;

/// A setting. The server puts the name of the module before its name.
pub struct Setting {
    pub name: &'static CStr,
    /// True if CONFIG SET refuses the setting, and only redis.conf and load arguments set it.
    pub at_load_only: bool,
    /// True if the setting comes last as a load argument. Everything after its name is its value, joined with spaces.
    pub takes_rest: bool,
    /// True if two servers may answer the same call differently because of this setting.
    pub affects_replies: bool,
    pub after_change: fn(),
    pub value: &'static dyn SettingValue,
}

/// The value of a setting, which is read and changed as text.
pub trait SettingValue: Sync {
    /// Returns the default of the module. Load arguments and redis.conf do not change it.
    fn default_text(&self) -> Vec<u8>;

    /// Returns the current value, as CONFIG GET shows it.
    fn text(&self) -> Vec<u8>;

    /// Changes the value. The error says which values are allowed.
    fn set_text(&self, text: &[u8]) -> Result<(), String>;

    /// Returns the place of the text that the server was shown last. The server copies it, and does not free it.
    fn shown(&self) -> &UnderLock<Option<OwnedString>>;
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
    /// Creates a setting that CONFIG SET can change and that affects replies.
    pub const fn new(name: &'static CStr, value: &'static dyn SettingValue) -> Setting {
        let (at_load_only, takes_rest, affects_replies) = (false, false, true);
        Setting { name, at_load_only, takes_rest, affects_replies, after_change: || {}, value }
    }

    /// Changes the value. The error says which values are allowed.
    pub fn set(&self, value: &[u8]) -> Result<(), String> {
        self.value.set_text(value)?;
        (self.after_change)();
        Ok(())
    }

    /// Registers the setting with its current value as the default. Returns false if the server refuses.
    pub fn register(&'static self, ctx: Context) -> bool {
        let flags = match self.at_load_only {
            true => raw::REDISMODULE_CONFIG_IMMUTABLE,
            false => raw::REDISMODULE_CONFIG_DEFAULT,
        };
        let (Some(register), Ok(value)) =
            (optional!(RedisModule_RegisterStringConfig), CString::new(self.value.text()))
        else {
            return false;
        };
        let (ctx, name, value) = (ctx.raw(), self.name.as_ptr(), value.as_ptr());
        let data = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the context is live; name and value are copied; the functions and the setting are static.
        unsafe { register(ctx, name, value, flags, Some(get), Some(set), None, data) == OK }
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

unsafe extern "C" fn get(_name: *const c_char, data: *mut c_void) -> RawString {
    // SAFETY: the server passes what was registered.
    let setting = unsafe { setting(data) };
    let shown = guard(None, || {
        let value = OwnedString::new(&setting.value.text());
        let raw = value.raw();
        drop(setting.value.shown().replace(Some(value)));
        raw
    });
    shown.unwrap_or(null_mut())
}

unsafe extern "C" fn set(
    _name: *const c_char,
    value: RawString,
    data: *mut c_void,
    error: *mut RawString,
) -> c_int {
    // SAFETY: the server passes what was registered, and keeps the value during the call.
    let (setting, value) = unsafe { (setting(data), bytes_of(value)) };
    match guard(None, || setting.set(value)) {
        Some(Ok(())) => return OK,
        // SAFETY: the pointer is where the server expects a string, which it then owns.
        Some(Err(why)) if !error.is_null() => unsafe {
            *error = OwnedString::new(why.as_bytes()).into_raw();
        },
        _ => {}
    }
    ERR
}

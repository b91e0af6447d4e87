//! Settings of the server's configuration: CONFIG GET, SET and REWRITE, and redis.conf, from 7.0 on.

use super::api::{optional, OK};
use super::context::Context;
use super::guard::guard;
use super::text::{bytes_of, OwnedString};
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void, CStr, CString};
use std::ops::RangeInclusive;
use std::ptr::null_mut;

const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// A setting, which the server shows under the module's name and its own.
pub struct Setting {
    /// Its name without the module's.
    pub name: &'static CStr,
    /// Whether CONFIG SET refuses it, so that only redis.conf and load arguments set it.
    pub at_load_only: bool,
    /// How it is read and changed.
    pub value: SettingValue,
}

/// The value of a setting.
pub enum SettingValue {
    /// A number.
    Number(&'static dyn NumberSource),
    /// A text.
    Text(&'static dyn TextSource),
    /// `yes` or `no`.
    Switch(&'static dyn SwitchSource),
}

/// A setting that is a number.
pub trait NumberSource: Sync {
    /// The values that it takes.
    fn range(&self) -> RangeInclusive<i64>;
    /// The value where nobody set another.
    fn default_value(&self) -> i64;
    /// The present value.
    fn get(&self) -> i64;
    /// Changes it; false if that is refused.
    fn set(&self, value: i64) -> bool;
}

/// A setting that is a text.
pub trait TextSource: Sync {
    /// The value where nobody set another.
    fn default_value(&self) -> Vec<u8>;
    /// The present value.
    fn get(&self) -> Vec<u8>;
    /// Changes it, or says why not.
    fn set(&self, value: &[u8]) -> Result<(), String>;
}

/// A setting that is `yes` or `no`, and `no` where nobody set it.
pub trait SwitchSource: Sync {
    /// The present value.
    fn get(&self) -> bool;
    /// Changes it.
    fn set(&self, value: bool);
}

impl SettingValue {
    /// The present value, as CONFIG GET shows it.
    pub fn shown(&self) -> Vec<u8> {
        match self {
            SettingValue::Number(number) => number.get().to_string().into_bytes(),
            SettingValue::Text(text) => text.get(),
            SettingValue::Switch(switch) => if switch.get() { b"yes" } else { &b"no"[..] }.to_vec(),
        }
    }

    /// Whether the present value is the default of the module, which load arguments do not change.
    pub fn is_default(&self) -> bool {
        match self {
            SettingValue::Number(number) => number.get() == number.default_value(),
            SettingValue::Text(text) => text.get() == text.default_value(),
            SettingValue::Switch(switch) => !switch.get(),
        }
    }
}

/// Whether this server knows settings of modules: else they are load arguments alone.
pub fn has_settings() -> bool {
    optional!(RedisModule_LoadConfigs).is_some()
}

/// A setting that the server refused, or all of them together.
pub struct SettingRefused(pub Option<&'static CStr>);

/// Registers the settings where the server knows settings of modules, and applies redis.conf. The present values
/// become the defaults.
pub fn register(
    ctx: Context,
    settings: impl Iterator<Item = &'static Setting>,
) -> Result<(), SettingRefused> {
    let Some(load) = optional!(RedisModule_LoadConfigs) else { return Ok(()) };
    for setting in settings {
        if !setting.register(ctx) {
            return Err(SettingRefused(Some(setting.name)));
        }
    }
    // SAFETY: the context is live.
    if unsafe { load(ctx.raw()) } == OK {
        Ok(())
    } else {
        Err(SettingRefused(None))
    }
}

impl Setting {
    fn register(&'static self, ctx: Context) -> bool {
        let flags = match self.at_load_only {
            true => raw::REDISMODULE_CONFIG_IMMUTABLE,
            false => raw::REDISMODULE_CONFIG_DEFAULT,
        };
        let registered = match &self.value {
            SettingValue::Number(number) => self.register_number(ctx, flags, *number),
            SettingValue::Text(text) => self.register_text(ctx, flags, *text),
            SettingValue::Switch(switch) => self.register_switch(ctx, flags, *switch),
        };
        registered == Some(OK)
    }

    fn register_number(
        &'static self,
        ctx: Context,
        flags: c_uint,
        number: &dyn NumberSource,
    ) -> Option<c_int> {
        let (least, most) = number.range().into_inner();
        let register = optional!(RedisModule_RegisterNumericConfig)?;
        // SAFETY: the context is live; the name is copied; the functions and the setting are static.
        Some(unsafe {
            register(
                ctx.raw(),
                self.name.as_ptr(),
                number.get(),
                flags,
                least,
                most,
                Some(get_number),
                Some(set_number),
                None,
                self.data(),
            )
        })
    }

    fn register_text(
        &'static self,
        ctx: Context,
        flags: c_uint,
        text: &dyn TextSource,
    ) -> Option<c_int> {
        let default = CString::new(text.get()).ok()?;
        let register = optional!(RedisModule_RegisterStringConfig)?;
        // SAFETY: the context is live; name and default are copied; the functions and the setting are static.
        Some(unsafe {
            register(
                ctx.raw(),
                self.name.as_ptr(),
                default.as_ptr(),
                flags,
                Some(get_text),
                Some(set_text),
                None,
                self.data(),
            )
        })
    }

    fn register_switch(
        &'static self,
        ctx: Context,
        flags: c_uint,
        switch: &dyn SwitchSource,
    ) -> Option<c_int> {
        let register = optional!(RedisModule_RegisterBoolConfig)?;
        // SAFETY: the context is live; the name is copied; the functions and the setting are static.
        Some(unsafe {
            register(
                ctx.raw(),
                self.name.as_ptr(),
                c_int::from(switch.get()),
                flags,
                Some(get_switch),
                Some(set_switch),
                None,
                self.data(),
            )
        })
    }

    fn data(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// # Safety
    /// `data` is what [`Setting::data`] returned.
    unsafe fn from_data(data: *mut c_void) -> &'static SettingValue {
        // SAFETY: the caller's promise; nothing changes a setting's description.
        unsafe { &(*data.cast::<Setting>()).value }
    }
}

unsafe extern "C" fn get_number(_name: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: the server hands back what was registered.
    match unsafe { Setting::from_data(data) } {
        SettingValue::Number(number) => guard(None, || number.get()).unwrap_or(0),
        SettingValue::Text(_) | SettingValue::Switch(_) => 0,
    }
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server hands back what was registered.
    match unsafe { Setting::from_data(data) } {
        // The server has checked the range, and words what is wrong.
        SettingValue::Number(number) if guard(None, || number.set(value)) == Some(true) => OK,
        _ => ERR,
    }
}

unsafe extern "C" fn get_switch(_name: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: the server hands back what was registered.
    match unsafe { Setting::from_data(data) } {
        SettingValue::Switch(switch) => c_int::from(guard(None, || switch.get()).unwrap_or(false)),
        SettingValue::Number(_) | SettingValue::Text(_) => 0,
    }
}

unsafe extern "C" fn set_switch(
    _name: *const c_char,
    value: c_int,
    data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server hands back what was registered.
    match unsafe { Setting::from_data(data) } {
        SettingValue::Switch(switch) if guard(None, || switch.set(value != 0)).is_some() => OK,
        _ => ERR,
    }
}

/// The text that the server asked for last: it copies the text and does not take it over.
static SHOWN: UnderLock<Option<OwnedString>> = UnderLock::new(None);

/// Frees what is kept from call to call, before the module goes.
pub(super) fn unload() {
    drop(SHOWN.with(Option::take));
}

unsafe extern "C" fn get_text(
    _name: *const c_char,
    data: *mut c_void,
) -> *mut raw::RedisModuleString {
    // SAFETY: the server hands back what was registered.
    let SettingValue::Text(text) = (unsafe { Setting::from_data(data) }) else { return null_mut() };
    let shown = guard(None, || {
        let value = OwnedString::new(&text.get());
        let raw = value.raw();
        drop(SHOWN.with(|shown| shown.replace(value)));
        raw
    });
    shown.unwrap_or(null_mut())
}

unsafe extern "C" fn set_text(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    data: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server hands back what was registered.
    let SettingValue::Text(text) = (unsafe { Setting::from_data(data) }) else { return ERR };
    // SAFETY: the server keeps the value during the call.
    let value = unsafe { bytes_of(value) };
    let why = match guard(None, || text.set(value)) {
        Some(Ok(())) => return OK,
        Some(Err(why)) => why,
        None => return ERR,
    };
    if !error.is_null() {
        // SAFETY: the server takes the string over.
        unsafe { *error = OwnedString::new(why.as_bytes()).into_raw() };
    }
    ERR
}

//! The settings `ratelimit.*`: CONFIG GET, SET and REWRITE from 7.0 on, and load arguments everywhere.

use super::call::{guard, Context};
use super::text::{bytes_of, OwnedString};
use crate::config::{self, Number, NUMBERS};
use crate::error::Error;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_void, CString};
use std::ptr::null_mut;
use std::sync::Mutex;

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Takes load arguments `name value ...`, with or without `ratelimit.` before a name.
pub(super) fn take_arguments(arguments: &[&[u8]]) -> Result<(), String> {
    for pair in arguments.chunks(2) {
        let [name, value] = *pair else {
            return Err("load arguments come in pairs of a setting's name and its value".into());
        };
        let plain = name.strip_prefix(b"ratelimit.").unwrap_or(name);
        let taken = if plain.eq_ignore_ascii_case(config::TIMEZONE.to_bytes()) {
            config::set_timezone(value)
        } else {
            let number =
                NUMBERS.iter().find(|number| plain.eq_ignore_ascii_case(number.name.to_bytes()));
            let value = crate::limit::decimal::parse_i64(value);
            number.zip(value).is_some_and(|(number, value)| number.set(value))
        };
        if !taken {
            let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            return Err(format!(
                "load argument {name} {value}: no such setting, or not a value for it"
            ));
        }
    }
    Ok(())
}

/// Registers the settings where the server knows settings of modules, and applies redis.conf. What the load
/// arguments said becomes the default.
pub(super) fn register(ctx: Context) -> Result<(), String> {
    // SAFETY: set once by RedisModule_Init; the names are copied, the numbers static.
    unsafe {
        let (Some(numeric), Some(string), Some(load)) = (
            raw::RedisModule_RegisterNumericConfig,
            raw::RedisModule_RegisterStringConfig,
            raw::RedisModule_LoadConfigs,
        ) else {
            return Ok(());
        };
        for number in NUMBERS {
            let status = numeric(
                ctx.raw(),
                number.name.as_ptr(),
                c_longlong::try_from(number.get()).unwrap_or(number.default),
                raw::REDISMODULE_CONFIG_DEFAULT,
                number.min,
                number.max,
                Some(get_number),
                Some(set_number),
                None,
                std::ptr::from_ref(number).cast_mut().cast(),
            );
            if status != OK {
                let name = number.name.to_string_lossy();
                return Err(format!("the server refused the setting ratelimit.{name}"));
            }
        }
        let zone = config::timezone().map(|zone| CString::new(zone.name().as_bytes()));
        let zone = zone.and_then(Result::ok).unwrap_or(config::DEFAULT_TIMEZONE.into());
        let status = string(
            ctx.raw(),
            config::TIMEZONE.as_ptr(),
            zone.as_ptr(),
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_timezone),
            Some(set_timezone),
            None,
            null_mut(),
        );
        if status != OK || load(ctx.raw()) != OK {
            return Err("the server refused a setting ratelimit.*, see the line before".into());
        }
    }
    Ok(())
}

/// # Safety
/// `number` is one of [`NUMBERS`], as registered.
unsafe fn number_of<'a>(number: *mut c_void) -> &'a Number {
    // SAFETY: the caller's promise.
    unsafe { &*number.cast::<Number>() }
}

unsafe extern "C" fn get_number(_name: *const c_char, number: *mut c_void) -> c_longlong {
    // SAFETY: the server hands back what we registered.
    let number = unsafe { number_of(number) };
    c_longlong::try_from(number.get()).unwrap_or(number.default)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    number: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server hands back what we registered. It has checked the range.
    if unsafe { number_of(number) }.set(value) {
        OK
    } else {
        ERR
    }
}

/// The string that CONFIG GET answered last: the server does not take it over.
static SHOWN: Mutex<Option<OwnedString>> = Mutex::new(None);

/// Frees what settings keep, before the module goes.
pub(super) fn release() {
    config::release();
    if let Ok(mut shown) = SHOWN.lock() {
        *shown = None;
    }
}

unsafe extern "C" fn get_timezone(
    _name: *const c_char,
    _data: *mut c_void,
) -> *mut raw::RedisModuleString {
    // SAFETY: see `report` in info.rs.
    let ctx = unsafe { Context::new(null_mut()) };
    let shown = guard(ctx, || {
        let name = config::timezone()?.name();
        let mut shown = SHOWN.lock().ok()?;
        Some(shown.insert(OwnedString::new(name.as_bytes())).raw())
    });
    shown.flatten().unwrap_or(null_mut())
}

unsafe extern "C" fn set_timezone(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    _data: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: see `report` in info.rs.
    let ctx = unsafe { Context::new(null_mut()) };
    // SAFETY: the server keeps the value during the call.
    let name = unsafe { bytes_of(value) };
    match guard(ctx, || config::set_timezone(name)) {
        Some(true) => OK,
        _ => {
            if !error.is_null() {
                let why = Error::Zone.text().to_bytes();
                let why = why.strip_prefix(b"ERR TZ ").unwrap_or(why);
                // SAFETY: the server takes the string over.
                unsafe { *error = OwnedString::new(why).into_raw() };
            }
            ERR
        }
    }
}

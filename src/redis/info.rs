//! The module's section of INFO.

use super::api::{api, OK};
use super::context::Context;
use super::guard::guard;
use redis_module::raw;
use std::ffi::{c_int, CStr};
use std::ptr::NonNull;

/// The function of the module that the server calls for INFO.
pub trait InfoSection {
    /// Writes the fields of the section. If `crashed`, the server is dying, perhaps while it was running this module, and
    /// calls without its lock, on the thread that crashed.
    fn write(info: &Info, crashed: bool);
}

pub struct Info(NonNull<raw::RedisModuleInfoCtx>);

impl Info {
    /// Adds a number. The server puts the name of the module before the name of the field.
    pub fn number(&self, name: &CStr, value: u64) {
        // SAFETY: the server keeps the section during the callback, and copies the name.
        unsafe { api!(RedisModule_InfoAddFieldULongLong(self.0.as_ptr(), name.as_ptr(), value)) };
    }

    pub fn text(&self, name: &CStr, value: &CStr) {
        let (name, value) = (name.as_ptr(), value.as_ptr());
        // SAFETY: the server keeps the section during the callback, and copies the texts.
        unsafe { api!(RedisModule_InfoAddFieldCString(self.0.as_ptr(), name, value)) };
    }
}

/// Registers the section, which has the name of the module.
pub fn register<S: InfoSection>(ctx: Context) {
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(report::<S>))) };
}

unsafe extern "C" fn report<S: InfoSection>(info: *mut raw::RedisModuleInfoCtx, crashed: c_int) {
    let Some(info) = NonNull::new(info) else { return };
    // SAFETY: the server keeps the section during the callback.
    let added = unsafe { api!(RedisModule_InfoAddSection(info.as_ptr(), c"".as_ptr())) };
    // The server refuses a section that was not asked for.
    if added == OK {
        guard(None, || S::write(&Info(info), crashed != 0));
    }
}

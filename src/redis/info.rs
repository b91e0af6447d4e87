//! The module's section of INFO.

use super::api::{api, OK};
use super::context::Context;
use super::guard::guard;
use redis_module::raw;
use std::ffi::{c_int, CStr};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Writes the fields of the section. If the second argument is true, the server has crashed, perhaps while it was running
/// this module.
pub type WriteFields = fn(&Info, bool);

/// Not one of the handlers, because a crashing server asks without its lock.
static WRITE_FIELDS: OnceLock<WriteFields> = OnceLock::new();

/// The section that is being written.
pub struct Info(NonNull<raw::RedisModuleInfoCtx>);

impl Info {
    /// Adds a number. The server puts the name of the module before the name of the field.
    pub fn number(&self, name: &CStr, value: u64) {
        // SAFETY: the server keeps the section during the callback, and copies the name.
        unsafe { api!(RedisModule_InfoAddFieldULongLong(self.0.as_ptr(), name.as_ptr(), value)) };
    }

    /// Adds a text.
    pub fn text(&self, name: &CStr, value: &CStr) {
        let (name, value) = (name.as_ptr(), value.as_ptr());
        // SAFETY: the server keeps the section during the callback, and copies the texts.
        unsafe { api!(RedisModule_InfoAddFieldCString(self.0.as_ptr(), name, value)) };
    }
}

/// Registers the section, which has the name of the module.
pub fn register(ctx: Context, write_fields: WriteFields) {
    // Set only once.
    let _ = WRITE_FIELDS.set(write_fields);
    // SAFETY: the context is live; the function lives as long as the module.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(report))) };
}

unsafe extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, crashed: c_int) {
    let (Some(info), Some(write_fields)) = (NonNull::new(info), WRITE_FIELDS.get()) else { return };
    // SAFETY: the server keeps the section during the callback.
    let added = unsafe { api!(RedisModule_InfoAddSection(info.as_ptr(), c"".as_ptr())) };
    // The server refuses a section that was not asked for.
    if added == OK {
        guard(None, || write_fields(&Info(info), crashed != 0));
    }
}

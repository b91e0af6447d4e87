//! Keys and what is done to them. Every method that changes the keyspace also replicates the plain command
//! with the same effect, so that the two cannot differ.

use super::api::api;
use super::call::{Context, KeyName};
use redis_module::raw;
use std::os::raw::{c_int, c_longlong};
use std::ptr::null_mut;

/// What lies under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No key.
    Empty,
    /// A string.
    String,
    /// A sorted set.
    Zset,
    /// Any other type, of this server or a later one.
    Other,
}

/// An open key. When it is closed, clients that WATCH or track it are told if it was changed.
pub struct Key<'c> {
    raw: *mut raw::RedisModuleKey,
    ctx: Context<'c>,
    name: KeyName<'c>,
    changed: bool,
}

impl<'c> Key<'c> {
    /// Opens for reading only.
    pub fn read(ctx: Context<'c>, name: KeyName<'c>) -> Key<'c> {
        Key::open(ctx, name, raw::REDISMODULE_READ)
    }

    /// Opens for reading and writing.
    pub fn write(ctx: Context<'c>, name: KeyName<'c>) -> Key<'c> {
        Key::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    fn open(ctx: Context<'c>, name: KeyName<'c>, mode: u32) -> Key<'c> {
        // SAFETY: context and name are live.
        let raw = unsafe { api!(RedisModule_OpenKey(ctx.raw(), name.raw(), mode as c_int)) };
        Key { raw: raw.cast(), ctx, name, changed: false }
    }

    /// What lies there.
    pub fn kind(&self) -> Kind {
        // SAFETY: null, for a missing key opened to read, is allowed and is "empty".
        let kind = unsafe { api!(RedisModule_KeyType(self.raw)) };
        // Compared as numbers: a later server may know types that the bindings do not.
        match kind as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Kind::Empty,
            raw::REDISMODULE_KEYTYPE_STRING => Kind::String,
            raw::REDISMODULE_KEYTYPE_ZSET => Kind::Zset,
            _ => Kind::Other,
        }
    }

    /// The bytes of a string; none for anything else.
    pub fn string(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the key is open. The pointer is valid until the key is written or closed, both of which need
        // `&mut self` or the key itself.
        unsafe {
            let start =
                api!(RedisModule_StringDMA(self.raw, &mut len, raw::REDISMODULE_READ as c_int));
            if start.is_null() || self.kind() != Kind::String {
                return &[];
            }
            std::slice::from_raw_parts(start.cast(), len)
        }
    }

    /// `SET key value PXAT expire_at_ms`, on a missing key or a string.
    pub fn set(&mut self, value: &[u8], expire_at_ms: u64) {
        let expire_at = c_longlong::try_from(expire_at_ms).unwrap_or(c_longlong::MAX);
        let mut len = 0;
        // SAFETY: the key is open for writing and holds a string or nothing. The pointer is good for `len` bytes
        // until the key is touched again.
        unsafe {
            if self.kind() == Kind::Empty || self.string().len() != value.len() {
                api!(RedisModule_StringTruncate(self.raw, value.len()));
            }
            let start =
                api!(RedisModule_StringDMA(self.raw, &mut len, raw::REDISMODULE_WRITE as c_int));
            if start.is_null() || len != value.len() {
                return;
            }
            std::ptr::copy_nonoverlapping(value.as_ptr(), start.cast(), len);
            api!(RedisModule_SetAbsExpire(self.raw, expire_at));
            self.changed = true;
            api!(RedisModule_Replicate(
                self.ctx.raw(),
                c"SET".as_ptr(),
                c"sbcl".as_ptr(),
                self.name.raw(),
                value.as_ptr(),
                value.len(),
                c"PXAT".as_ptr(),
                expire_at,
            ));
        }
    }

    /// `DEL key`.
    pub fn delete(&mut self) {
        // SAFETY: the key is open for writing.
        unsafe {
            api!(RedisModule_DeleteKey(self.raw));
            self.changed = true;
            api!(RedisModule_Replicate(
                self.ctx.raw(),
                c"DEL".as_ptr(),
                c"s".as_ptr(),
                self.name.raw(),
            ));
        }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by us and closed once; null is ignored by the server. The context and the name
        // outlive the key.
        unsafe {
            if self.raw != null_mut() {
                api!(RedisModule_CloseKey(self.raw));
            }
            if self.changed {
                api!(RedisModule_SignalModifiedKey(self.ctx.raw(), self.name.raw()));
            }
        }
    }
}

//! The server's strings.

use super::api::{api, RawString};
use redis_module::raw;
use std::ptr::{null_mut, NonNull};

/// A string that this module owns.
#[derive(Debug)]
pub struct OwnedString(NonNull<raw::RedisModuleString>);

// SAFETY: a string belongs to no thread. The server counts references without atomics, under its lock. Only one callback of
// this module runs without that lock, INFO in a crash, and it uses no such string.
unsafe impl Send for OwnedString {}

impl OwnedString {
    pub fn new(bytes: &[u8]) -> OwnedString {
        let (start, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the bytes are copied; without a context the server does not free the string on its own.
        let raw = unsafe { api!(RedisModule_CreateString(null_mut(), start, len)) };
        // SAFETY: the server aborts rather than return null.
        OwnedString(unsafe { NonNull::new_unchecked(raw) })
    }

    pub(super) fn raw(&self) -> RawString {
        self.0.as_ptr()
    }

    /// Takes ownership of a string that the API has returned.
    pub(super) fn adopt(raw: RawString) -> Option<OwnedString> {
        NonNull::new(raw).map(OwnedString)
    }

    pub(super) fn into_raw(self) -> RawString {
        std::mem::ManuallyDrop::new(self).raw()
    }

    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the string lives as long as `self`, and nothing changes it.
        unsafe { bytes_of(self.raw()) }
    }
}

impl AsRef<[u8]> for OwnedString {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: we own one reference, and release it once.
        unsafe { api!(RedisModule_FreeString(null_mut(), self.raw())) }
    }
}

/// Returns the bytes of a server's string.
///
/// # Safety
/// `raw` is a live string that outlives `'a` and is not modified meanwhile.
pub(super) unsafe fn bytes_of<'a>(raw: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the string is live, and the server returns its length. It never returns null, not even for an empty string.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(raw, &mut len));
        debug_assert!(!start.is_null(), "every string has bytes");
        std::slice::from_raw_parts(start.cast(), len)
    }
}

//! Which server the module runs in.

use super::api::optional;
use std::ffi::{c_int, c_void, CStr};
use std::ptr::null_mut;

/// The first Redis that looks for the keys of commands in I/O threads: 8.2, and 8.1 is what its previews are called.
const KEYS_IN_THREADS_SINCE: c_int = 0x0008_0100;

/// Whether this server asks for the keys of a command with the flag `getkeys-api` on its main thread alone: Redis before
/// 8.2. Redis 8.2 and Valkey 8 ask in I/O threads while the main thread runs another command, and neither their context
/// of the call nor this module is made for that: the server dies. Of a server that is unknown nothing is assumed.
pub fn asks_for_keys_on_main_thread() -> bool {
    let Some(version) = optional!(RedisModule_GetServerVersion) else { return false };
    // SAFETY: takes nothing.
    let version = unsafe { version() };
    version < KEYS_IN_THREADS_SINCE && !is_valkey()
}

/// Whether this is a Valkey, from 8.0 on: they have names of their own for the functions of the API. Before that Valkey
/// is Redis 7.2 in all that matters here.
fn is_valkey() -> bool {
    const NAME: &CStr = c"ValkeyModule_GetServerVersion";
    let mut function: *mut c_void = null_mut();
    if let Some(get) = optional!(RedisModule_GetApi) {
        // SAFETY: the server writes the address of the function of that name to the place, or leaves it as it is.
        unsafe { get(NAME.as_ptr(), (&raw mut function).cast()) };
    }
    !function.is_null()
}

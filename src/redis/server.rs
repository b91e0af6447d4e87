//! Which server the module runs in.

use super::api::optional;
use std::ffi::{c_int, CStr};

/// The first Redis that finds the keys of commands in I/O threads: 8.2, whose previews are called 8.1.
const KEYS_IN_THREADS_SINCE: c_int = 0x0008_0100;

/// Whether this server asks for the keys of a command with the flag `getkeys-api` only on its main thread: Redis before 8.2.
/// Redis 8.2 and Valkey 8 ask in I/O threads while the main thread runs another command. Neither the context that they pass
/// nor this module can bear that, and the server dies. Unknown servers are treated alike.
pub fn asks_for_keys_on_main_thread() -> bool {
    // SAFETY: takes nothing.
    let version = optional!(RedisModule_GetServerVersion).map(|version| unsafe { version() });
    version.is_some_and(|version| version < KEYS_IN_THREADS_SINCE)
        && valkey_function(c"ValkeyModule_GetServerVersion").is_none()
}

/// A function of the API that only a Valkey has, from 8.0 on. Before that Valkey is Redis 7.2 in all that matters here.
pub(super) fn valkey_function(name: &CStr) -> Option<unsafe extern "C" fn() -> c_int> {
    let mut function: Option<unsafe extern "C" fn() -> c_int> = None;
    if let Some(get) = optional!(RedisModule_GetApi) {
        // SAFETY: the server writes the address of the function to the place, or leaves the place as it is. All functions
        // that are asked for here take nothing and return a C integer.
        unsafe { get(name.as_ptr(), (&raw mut function).cast()) };
    }
    function
}

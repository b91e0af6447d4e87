//! The functions of the module API. The module checks once, on load, that the required ones exist.

use redis_module::raw;
use std::ffi::{c_int, CStr};

pub(super) type RawContext = *mut raw::RedisModuleCtx;
pub(super) type RawString = *mut raw::RedisModuleString;

pub(super) const OK: c_int = raw::REDISMODULE_OK as c_int;

pub(super) const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Lists the functions that this module uses. [`api`] and [`optional`] cannot call any other.
macro_rules! functions {
    (required { $($required:ident)* } optional { $($optional:ident)* }) => {
        /// The functions that every supported server has.
        #[expect(non_camel_case_types, reason = "they are the server's names")]
        pub(in crate::redis) mod every_server {
            $(pub struct $required;)*
        }

        /// The functions that only some servers have.
        #[expect(non_camel_case_types, reason = "they are the server's names")]
        pub(in crate::redis) mod some_servers {
            $(pub struct $optional;)*
        }

        /// Returns the name of a required function that this server lacks. To be called after RedisModule_Init.
        pub(super) fn missing() -> Option<&'static str> {
            $(
                // SAFETY: RedisModule_Init wrote the pointer, and nothing writes it later.
                if unsafe { redis_module::raw::$required }.is_none() {
                    return Some(stringify!($required));
                }
            )*
            None
        }
    };
}

/// Calls a function of the API that every supported server has.
macro_rules! api {
    ($function:ident ( $($argument:expr),* $(,)? )) => {{
        let _ = crate::redis::api::every_server::$function;
        // The module refuses to load if a required function is missing. The caller justifies the call itself.
        (redis_module::raw::$function.unwrap_unchecked())($($argument),*)
    }};
}
pub(super) use api;

/// Returns a function of the API that only some servers have, if this one has it.
macro_rules! optional {
    ($function:ident) => {{
        let _ = crate::redis::api::some_servers::$function;
        // SAFETY: RedisModule_Init writes the pointer before anything else runs, and nothing writes it later.
        unsafe { redis_module::raw::$function }
    }};
}
pub(super) use optional;

functions! {
    required {
        RedisModule_CreateCommand RedisModule_CreateString RedisModule_FreeString
        RedisModule_StringPtrLen RedisModule_WrongArity
        RedisModule_IsKeysPositionRequest RedisModule_KeyAtPos
        RedisModule_ReplyWithArray RedisModule_ReplyWithLongLong RedisModule_ReplyWithError
        RedisModule_ReplyWithStringBuffer RedisModule_ReplyWithNull
        RedisModule_OpenKey RedisModule_CloseKey RedisModule_KeyType RedisModule_DeleteKey
        RedisModule_HashGet
        RedisModule_UnlinkKey
        RedisModule_ValueLength RedisModule_StringDMA RedisModule_StringTruncate
        RedisModule_GetAbsExpire RedisModule_SetAbsExpire RedisModule_SignalModifiedKey
        RedisModule_ZsetAdd RedisModule_ZsetRem RedisModule_ZsetFirstInScoreRange
        RedisModule_ZsetLastInScoreRange
        RedisModule_ZsetRangeStop RedisModule_ZsetRangeEndReached RedisModule_ZsetRangeNext
        RedisModule_ZsetRangePrev RedisModule_ZsetRangeCurrentElement
        RedisModule_Replicate RedisModule_Call RedisModule_FreeCallReply
        RedisModule_CallReplyStringPtr RedisModule_CallReplyLength
        RedisModule_CallReplyArrayElement
        RedisModule_GetContextFlags RedisModule_GetSelectedDb RedisModule_SelectDb
        RedisModule_BlockClientOnKeys RedisModule_UnblockClient
        RedisModule_GetBlockedClientPrivateData RedisModule_BlockedClientDisconnected
        RedisModule_GetClientId RedisModule_GetClientInfoById
        RedisModule_CreateTimer RedisModule_StopTimer RedisModule_GetRandomBytes
        RedisModule_Milliseconds
        RedisModule_RegisterInfoFunc RedisModule_InfoAddSection
        RedisModule_InfoAddFieldULongLong
        RedisModule_SetModuleOptions RedisModule_AvoidReplicaTraffic
        RedisModule_SetDisconnectCallback RedisModule_GetDetachedThreadSafeContext
        RedisModule_FreeThreadSafeContext RedisModule_SubscribeToServerEvent
        RedisModule_SubscribeToKeyspaceEvents RedisModule_NotifyKeyspaceEvent
        RedisModule_InfoAddFieldCString
        RedisModule_GetServerInfo RedisModule_ServerInfoGetFieldUnsigned
        RedisModule_FreeServerInfo
    }
    optional {
        RedisModule_GetApi RedisModule_GetServerVersion RedisModule_Log RedisModule_CachedMicroseconds
        RedisModule_GetCommand RedisModule_SetCommandInfo
        RedisModule_AddACLCategory RedisModule_SetCommandACLCategories
        RedisModule_RegisterStringConfig RedisModule_LoadConfigs RedisModule_ReplyWithMap
        RedisModule_EventLoopAdd RedisModule_EventLoopDel
    }
}

/// Returns whether the server is Redis from 7.0 on, or Valkey.
pub(super) fn is_from_7() -> bool {
    // SAFETY: takes nothing.
    optional!(RedisModule_GetServerVersion)
        .is_some_and(|version| unsafe { version() } >= 0x0007_0000)
}

/// Looks up a function of the API that only Valkey has, from 8.0 on. Earlier versions of Valkey behave like Redis 7.2 here.
pub(super) fn valkey_function(name: &CStr) -> Option<unsafe extern "C" fn() -> c_int> {
    let mut function: Option<unsafe extern "C" fn() -> c_int> = None;
    if let Some(get) = optional!(RedisModule_GetApi) {
        // SAFETY: the server writes the address of the function, or nothing. All functions that are looked up here take no
        // arguments and return a C integer.
        unsafe { get(name.as_ptr(), (&raw mut function).cast()) };
    }
    function
}

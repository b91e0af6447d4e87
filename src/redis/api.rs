//! The functions of the module API that the bindings of `redis-module` name, called without a check.

use redis_module::raw;

/// Calls a function of the module API that every supported server has.
macro_rules! api {
    ($function:ident ( $($argument:expr),* $(,)? )) => {
        // SAFETY of the unwrap: `missing()` refuses to load the module into a server that lacks one of the
        // functions. The call itself is the caller's to justify.
        (redis_module::raw::$function.unwrap_unchecked())($($argument),*)
    };
}
pub(super) use api;

macro_rules! required {
    ($($function:ident)*) => {
        /// The name of a required function that this server lacks.
        pub fn missing() -> Option<&'static str> {
            $(
                // SAFETY: written by RedisModule_Init before, read-only since.
                if unsafe { raw::$function }.is_none() {
                    return Some(stringify!($function));
                }
            )*
            None
        }
    };
}

required! {
    RedisModule_CreateCommand RedisModule_CreateString RedisModule_FreeString
    RedisModule_StringPtrLen RedisModule_WrongArity RedisModule_Log
    RedisModule_ReplyWithArray RedisModule_ReplyWithLongLong RedisModule_ReplyWithError
    RedisModule_ReplyWithStringBuffer RedisModule_ReplyWithNull
    RedisModule_OpenKey RedisModule_CloseKey RedisModule_KeyType RedisModule_DeleteKey
    RedisModule_ValueLength RedisModule_StringDMA RedisModule_StringTruncate
    RedisModule_GetAbsExpire RedisModule_SetAbsExpire RedisModule_SignalModifiedKey
    RedisModule_ZsetAdd RedisModule_ZsetRem RedisModule_ZsetFirstInScoreRange
    RedisModule_ZsetLastInScoreRange RedisModule_ZsetFirstInLexRange RedisModule_ZsetRangeStop
    RedisModule_ZsetRangeEndReached RedisModule_ZsetRangeNext
    RedisModule_ZsetRangeCurrentElement
    RedisModule_Replicate RedisModule_Call RedisModule_FreeCallReply RedisModule_CallReplyStringPtr
    RedisModule_GetContextFlags RedisModule_GetSelectedDb RedisModule_SelectDb
    RedisModule_BlockClientOnKeys RedisModule_UnblockClient RedisModule_GetBlockedClientPrivateData
    RedisModule_BlockedClientDisconnected RedisModule_GetClientId
    RedisModule_GetClientInfoById
    RedisModule_CreateTimer RedisModule_StopTimer RedisModule_GetRandomBytes
    RedisModule_Milliseconds
    RedisModule_RegisterInfoFunc RedisModule_InfoAddSection RedisModule_InfoAddFieldULongLong
    RedisModule_SetModuleOptions RedisModule_AvoidReplicaTraffic
    RedisModule_SetDisconnectCallback RedisModule_GetDetachedThreadSafeContext
    RedisModule_FreeThreadSafeContext RedisModule_SubscribeToServerEvent
}

use redis_module::raw;
use std::os::raw::c_int;

#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    unsafe { raw::Export_RedisModule_Init(ctx, c"ratelimit".as_ptr(), 1, raw::REDISMODULE_APIVER_1 as c_int) }
}

//! MODULE LOAD and UNLOAD.

use super::api::{api, missing, valkey_function, RawContext, RawString, ERR, OK};
use super::call::arguments;
use super::context::Context;
use super::guard::{guard, log};
use super::text::bytes_of;
use super::under_lock::WhileLoaded;
use redis_module::raw;
use std::ffi::{c_int, c_void, CStr};
use std::ptr::null_mut;

pub trait Module {
    const NAME: &'static CStr;
    const VERSION: c_int;
    /// The line that is logged when the server already has a module with this name.
    const NAME_TAKEN_LINE: &'static CStr;
    /// All that the module keeps between calls.
    type State: Send + Sync + 'static;

    /// Returns the place of the state, which [`Module::load`] creates. It is dropped when the module is unloaded.
    fn state() -> &'static WhileLoaded<Self::State>;

    /// Registers everything with the server, or logs why that failed and returns false. The arguments are those of MODULE
    /// LOAD, and the name of a required function that the server lacks.
    fn load(ctx: Context, arguments: &[&[u8]], missing: Option<&str>) -> bool;

    /// Prepares the server for MODULE UNLOAD. Returns false, and logs why, if the module must stay. The server then replies
    /// with an error.
    fn prepare_unload(ctx: Context) -> bool;
}

/// Exports a [`Module`] to the server.
macro_rules! export {
    ($module:ty) => {
        /// Called by the server on load.
        ///
        /// # Safety
        /// Only the server calls it.
        #[allow(unsafe_code)]
        #[no_mangle]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut redis_module::raw::RedisModuleCtx,
            argv: *mut *mut redis_module::raw::RedisModuleString,
            argc: std::ffi::c_int,
        ) -> std::ffi::c_int {
            // SAFETY: called by the server.
            unsafe { $crate::redis::load::on_load::<$module>(ctx, argv, argc) }
        }

        /// Called by the server on unload, when no client waits and no timer runs.
        ///
        /// # Safety
        /// Only the server calls it.
        #[allow(unsafe_code)]
        #[no_mangle]
        pub unsafe extern "C" fn RedisModule_OnUnload(
            ctx: *mut redis_module::raw::RedisModuleCtx,
        ) -> std::ffi::c_int {
            // SAFETY: called by the server.
            unsafe { $crate::redis::load::on_unload::<$module>(ctx) }
        }
    };
}
pub(crate) use export;

/// Loads the module.
///
/// # Safety
/// Only [`export`] calls it, for the server.
pub unsafe fn on_load<M: Module>(ctx: RawContext, argv: *mut RawString, argc: c_int) -> c_int {
    let api_version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the context is live, and the name ends in NUL. Nothing may allocate before this call, because the allocator is
    // the server's.
    let status =
        unsafe { raw::Export_RedisModule_Init(ctx, M::NAME.as_ptr(), M::VERSION, api_version) };
    if status != OK {
        // It fails only if the name is taken. If that is by the same file, the state belongs to the loaded module.
        log(None, c"warning", M::NAME_TAKEN_LINE);
        return ERR;
    }

    // SAFETY: the context and the `argc` arguments are live until we return.
    let (ctx, arguments) = unsafe { (Context::new(ctx), arguments(argv, argc)) };
    let Some(ctx) = ctx else { return ERR };
    let loaded = guard(Some(ctx), || {
        let missing = missing();
        let arguments = if missing.is_none() { arguments } else { &[] };
        // SAFETY: as for the slice that contains them.
        let arguments: Vec<_> = arguments.iter().map(|&raw| unsafe { bytes_of(raw) }).collect();
        M::load(ctx, &arguments, missing)
    });
    if loaded == Some(true) {
        return OK;
    }
    // The server does not unload a module that did not load.
    // SAFETY: the module is not running.
    guard(Some(ctx), || unsafe { M::state().drop() });
    ERR
}

/// Unloads the module.
///
/// # Safety
/// Only [`export`] calls it, for the server.
pub unsafe fn on_unload<M: Module>(ctx: RawContext) -> c_int {
    // SAFETY: the context is live until we return.
    let ctx = unsafe { Context::new(ctx) };
    if ctx.and_then(|ctx| guard(Some(ctx), || M::prepare_unload(ctx))) == Some(false) {
        return ERR;
    }
    // SAFETY: nothing else of the module runs, and it keeps no reference between calls.
    guard(ctx, || unsafe { M::state().drop() });
    OK
}

/// Finds out whether the command that loaded the module has ended.
#[derive(Clone, Copy, Default)]
pub struct LoadWatch {
    /// The number of commands that the server had run when the module was loaded.
    commands_before: u64,
    /// True once the server has returned to its event loop.
    has_ticked: bool,
}

impl LoadWatch {
    /// Begins to watch, at the end of the load.
    pub fn start(ctx: Context) -> LoadWatch {
        LoadWatch { commands_before: commands_processed(ctx), has_ticked: false }
    }

    /// Notes that the server is in its event loop.
    pub fn tick(&mut self) {
        self.has_ticked = true;
    }

    pub fn has_ended(self, ctx: Context) -> bool {
        self.has_ticked || commands_processed(ctx) != self.commands_before
    }
}

/// Returns the number of commands that the server has run, without the current one.
fn commands_processed(ctx: Context) -> u64 {
    server_number(ctx, c"stats", c"total_commands_processed")
}

/// Returns whether any client is connected: none while the server starts, at least the one that sends MODULE LOAD later.
pub fn has_clients(ctx: Context) -> bool {
    server_number(ctx, c"clients", c"connected_clients") > 0
}

/// Returns a number in INFO.
fn server_number(ctx: Context, section: &CStr, field: &CStr) -> u64 {
    let (section, field) = (section.as_ptr(), field.as_ptr());
    // SAFETY: the context is live, the texts end in NUL, and the information is freed once. The last argument may be null.
    unsafe {
        let info = api!(RedisModule_GetServerInfo(ctx.raw(), section));
        let number = api!(RedisModule_ServerInfoGetFieldUnsigned(info, field, null_mut()));
        api!(RedisModule_FreeServerInfo(ctx.raw(), info));
        number
    }
}

/// Returns the path of the module's file, as the server was given it.
pub fn own_path() -> Option<Vec<u8>> {
    // SAFETY: all zeros is a value of this struct of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let address = own_path as *const c_void;
    // SAFETY: the address is one of this module's, and the struct is ours to write.
    let is_found = unsafe { libc::dladdr(address, &mut info) } != 0;
    if !is_found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the name, which ends in NUL, as long as the module is loaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes().to_vec())
}

/// The options for every server: the module has no data types that could fail to be read, signals modified keys itself, and
/// works while a replica serves reads and loads a new data set.
const OPTIONS: u32 = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
    | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
    | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;

/// The module replicates only commands that the server has, so the server need not look them up (from 8.1 on).
const SKIP_COMMAND_VALIDATION: u32 = 1 << 4;

/// The module works while slots move to another node atomically.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// Returns the options for a server. Only Valkey has the last two, and it reports all options that it knows. Redis does not
/// report its options, and may use the same bits for others.
fn module_options(options_of_valkey: u32) -> u32 {
    OPTIONS | ((SKIP_COMMAND_VALIDATION | HANDLE_ATOMIC_SLOT_MIGRATION) & options_of_valkey)
}

/// Tells the server what the module supports, as far as the server knows such options.
pub fn set_module_options(ctx: Context) {
    let get = valkey_function(c"ValkeyModule_GetModuleOptionsAll");
    // SAFETY: takes nothing.
    let options_of_valkey = get.map_or(0, |get| unsafe { get() }).unsigned_abs();
    let options = c_int::try_from(module_options(options_of_valkey)).unwrap_or(0);
    // SAFETY: the context is live.
    unsafe { api!(RedisModule_SetModuleOptions(ctx.raw(), options)) };
}

#[cfg(test)]
mod tests;

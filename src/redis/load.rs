//! MODULE LOAD and UNLOAD: what the server is told about this module.

use super::api::{api, missing};
use super::call::{entry, guard, Context};
use super::text::bytes_of;
use super::{blocking, config, info, key};
use crate::command::{Access, Argument, Command};
use crate::commands::waiting;
use crate::COMMANDS;
use redis_module::raw;
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int};
use std::ptr::{null, null_mut, NonNull};

const MODULE_VERSION: c_int = 1;
const NAME: &CStr = c"ratelimit";
const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// The server calls this on load.
///
/// # Safety
/// Only the server calls it.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the context is live, the name ends in NUL. Nothing may allocate before this call: the allocator
    // is the server's.
    unsafe {
        let version = raw::REDISMODULE_APIVER_1 as c_int;
        if raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), MODULE_VERSION, version) != OK {
            return ERR;
        }
    }
    // SAFETY: the context and the `argc` arguments are live until we return.
    let (ctx, arguments) = unsafe {
        let len = if argv.is_null() { 0 } else { usize::try_from(argc).unwrap_or(0) };
        let start = if len == 0 { NonNull::dangling().as_ptr() } else { argv };
        (Context::new(ctx), std::slice::from_raw_parts(start, len))
    };
    let loaded = guard(ctx, || load(ctx, arguments));
    if let Some(Ok(())) = loaded {
        return OK;
    }
    if let Some(Err(Refused(why))) = loaded {
        if let Ok(line) = CString::new(format!("redis-ratelimit: {why}")) {
            log_warning(ctx, &line);
        }
    }
    // The server asks a module that did not load nothing more.
    guard(ctx, release);
    ERR
}

/// The server calls this on unload, when no client waits and no timer runs.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the context is live until we return.
    let ctx = unsafe { Context::new(ctx) };
    guard(ctx, release);
    OK
}

/// Frees what is kept from call to call.
fn release() {
    waiting::release();
    key::release();
    config::release();
    blocking::stop();
}

/// Why the module does not load.
struct Refused(String);

fn log_warning(ctx: Context, line: &CStr) {
    // SAFETY: RedisModule_Log is older than every server that we load into, but asked for all the same, as this
    // runs even where functions are missing.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(ctx.raw(), c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr());
        }
    }
}

/// Without it Valkey from 9.0 refuses CLUSTER MIGRATESLOTS. The bindings, which are Redis', do not name it.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// The module options that this server knows, if it is a Valkey: Redis may give the same bits another meaning.
fn options_of_valkey() -> c_int {
    let mut options_all: Option<unsafe extern "C" fn() -> c_int> = None;
    // SAFETY: the server writes the function of that name to the place, which has its type, or leaves it as it is.
    unsafe {
        if let Some(get) = raw::RedisModule_GetApi {
            get(c"ValkeyModule_GetModuleOptionsAll".as_ptr(), (&raw mut options_all).cast());
        }
        options_all.map_or(0, |options_all| options_all())
    }
}

fn load(ctx: Context, arguments: &[*mut raw::RedisModuleString]) -> Result<(), Refused> {
    if let Some(function) = missing() {
        return Err(Refused(format!("this server lacks {function}; Redis 6.2 or later is needed")));
    }
    let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let options = options as c_int | (HANDLE_ATOMIC_SLOT_MIGRATION & options_of_valkey());
    // SAFETY: the context is live.
    unsafe { api!(RedisModule_SetModuleOptions(ctx.raw(), options)) };
    let category = add_acl_category(ctx);
    for (command, entry) in COMMANDS.iter().zip(ENTRIES) {
        create(ctx, command, entry)?;
        describe(ctx, command, category)?;
    }
    // SAFETY: as for the slice that they come in.
    let arguments: Vec<&[u8]> = arguments.iter().map(|&raw| unsafe { bytes_of(raw) }).collect();
    config::take_arguments(&arguments).map_err(Refused)?;
    config::register(ctx).map_err(Refused)?;
    info::register(ctx);
    blocking::start(ctx, &waiting::HANDLERS);
    Ok(())
}

type Entry = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// One C function for each row of the table.
const ENTRIES: [Entry; COMMANDS.len()] = [
    entry::<0>, entry::<1>, entry::<2>, entry::<3>, entry::<4>, entry::<5>, entry::<6>, entry::<7>,
    entry::<8>, entry::<9>,
];

fn create(ctx: Context, command: &Command, entry: Entry) -> Result<(), Refused> {
    let create = |flags: &str| {
        let flags = CString::new(flags).unwrap_or_default();
        // SAFETY: the texts end in NUL and are copied; the entry lives as long as the module.
        unsafe {
            api!(RedisModule_CreateCommand(
                ctx.raw(),
                command.name.as_ptr(),
                Some(entry),
                flags.as_ptr(),
                1,
                1,
                1,
            ))
        }
    };
    // Servers before 7.0 do not know the flag "blocking" and refuse the whole command.
    if create(command.flags) == OK || create(&command.flags.replace(" blocking", "")) == OK {
        return Ok(());
    }
    let name = command.name.to_string_lossy();
    Err(Refused(format!(
        "the server refused the command {name}; is another module using its name?"
    )))
}

/// Whether commands can be put into the category `@ratelimit` here.
fn add_acl_category(ctx: Context) -> bool {
    // SAFETY: set once by RedisModule_Init; the name is copied.
    unsafe {
        let (Some(add), Some(_)) =
            (raw::RedisModule_AddACLCategory, raw::RedisModule_SetCommandACLCategories)
        else {
            return false;
        };
        add(ctx.raw(), NAME.as_ptr()) == OK
    }
}

/// Tells COMMAND INFO and COMMAND DOCS (from 7.0), and the ACL categories (from 7.2): servers put no module's
/// command into `@read` or `@write` by its flags.
fn describe(ctx: Context, command: &Command, category: bool) -> Result<(), Refused> {
    // SAFETY: set once by RedisModule_Init. The structures are the ones of the version that we name, and the
    // server copies them, so they may go when this returns.
    unsafe {
        let (Some(get), Some(set)) = (raw::RedisModule_GetCommand, raw::RedisModule_SetCommandInfo)
        else {
            return Ok(());
        };
        let handle = get(ctx.raw(), command.name.as_ptr());
        let mut keys = [key_spec(command.access), std::mem::zeroed()];
        let mut arguments = RawArguments::of(command.arguments);
        let info = raw::RedisModuleCommandInfo {
            version: &VERSION,
            summary: command.summary.as_ptr(),
            complexity: command.complexity.as_ptr(),
            since: c"0.1.0".as_ptr(),
            history: null_mut(),
            tips: null(),
            arity: command.arity,
            key_specs: keys.as_mut_ptr(),
            args: arguments.raw.as_mut_ptr(),
        };
        if handle.is_null() || set(handle, &info) != OK {
            let name = command.name.to_string_lossy();
            return Err(Refused(format!("the server refused the description of {name}")));
        }
        if let Some(set) = raw::RedisModule_SetCommandACLCategories {
            let flags = command.flags.replace("readonly", "read").replace(" deny-oom", "");
            let own = if category { " ratelimit" } else { "" };
            let categories = CString::new(format!("{flags}{own}")).unwrap_or_default();
            set(handle, categories.as_ptr());
        }
    }
    Ok(())
}

static VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

/// The first argument is the key, and the only one.
fn key_spec(access: Access) -> raw::RedisModuleCommandKeySpec {
    let flags = match access {
        Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Access::Update => {
            raw::REDISMODULE_CMD_KEY_RW
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    };
    // SAFETY: all zero is how the header initialises this structure; it holds integers, pointers and unions
    // of both.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = u64::from(flags);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range.lastkey = 0;
    spec.fk.range.keystep = 1;
    spec.fk.range.limit = 0;
    spec
}

/// A zero-terminated array of arguments, and what its elements point to.
struct RawArguments {
    raw: Vec<raw::RedisModuleCommandArg>,
    _nested: Vec<RawArguments>,
    _names: Vec<CString>,
}

impl RawArguments {
    fn of(arguments: &[Argument]) -> RawArguments {
        let mut all = RawArguments { raw: Vec::new(), _nested: Vec::new(), _names: Vec::new() };
        for argument in arguments {
            let raw = all.convert(argument);
            all.raw.push(raw);
        }
        all.raw.push(empty());
        all
    }

    fn convert(&mut self, argument: &Argument) -> raw::RedisModuleCommandArg {
        use raw::{
            RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK as BLOCK,
            RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER as INTEGER,
            RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY as KEY,
            RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF as ONE_OF,
            RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN as PURE_TOKEN,
            RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING as STRING,
        };
        let named = |name: &CStr, kind| raw::RedisModuleCommandArg {
            name: name.as_ptr(),
            type_: kind,
            ..empty()
        };
        match argument {
            Argument::Key => raw::RedisModuleCommandArg { key_spec_index: 0, ..named(c"key", KEY) },
            Argument::Integer(name) => named(name, INTEGER),
            Argument::Text(name) => named(name, STRING),
            Argument::Flag(token) => {
                let name = CString::new(token.to_bytes().to_ascii_lowercase()).unwrap_or_default();
                let arg = raw::RedisModuleCommandArg {
                    token: token.as_ptr(),
                    ..named(&name, PURE_TOKEN)
                };
                // The bytes stay where they are when the CString moves.
                self._names.push(name);
                arg
            }
            Argument::Valued(token, value) => {
                raw::RedisModuleCommandArg { token: token.as_ptr(), ..self.convert(value) }
            }
            Argument::OneOf(name, choices) => {
                raw::RedisModuleCommandArg { subargs: self.nest(choices), ..named(name, ONE_OF) }
            }
            Argument::Group(name, parts) => {
                raw::RedisModuleCommandArg { subargs: self.nest(parts), ..named(name, BLOCK) }
            }
            Argument::Optional(argument) => {
                let mut arg = self.convert(argument);
                arg.flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
                arg
            }
            Argument::Multiple(argument) => {
                let mut arg = self.convert(argument);
                arg.flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int;
                arg
            }
        }
    }

    fn nest(&mut self, arguments: &[Argument]) -> *mut raw::RedisModuleCommandArg {
        let mut nested = RawArguments::of(arguments);
        // The elements stay where they are when the Vec moves.
        let start = nested.raw.as_mut_ptr();
        self._nested.push(nested);
        start
    }
}

fn empty() -> raw::RedisModuleCommandArg {
    raw::RedisModuleCommandArg {
        name: null::<c_char>(),
        type_: 0,
        key_spec_index: -1,
        token: null(),
        summary: null(),
        since: null(),
        flags: 0,
        deprecated_since: null(),
        subargs: null_mut(),
        display_text: null(),
    }
}

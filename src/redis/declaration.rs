//! Registering commands, and what COMMAND INFO, COMMAND DOCS and ACLs show about them.

use super::api::{api, optional, valkey_function, OK};
use super::call::{Call, EntryPoint};
use super::context::Context;
use redis_module::raw::{
    self, RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK as BLOCK,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER as INTEGER,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY as KEY,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF as ONE_OF,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN as PURE_TOKEN,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING as STRING,
};
use std::ffi::{c_int, CStr, CString};
use std::io::Error;
use std::ptr::{null, null_mut};

/// The access of a command to its keys, for key specs and ACL rules such as `%R~`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    Read,
    Update,
}

/// The positions of the keys among a command's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPositions {
    None,
    /// The first argument is the only key.
    First(KeyAccess),
    /// The first argument is the number of the keys that follow it.
    Counted(KeyAccess),
}

/// The first Redis that finds the keys of commands in I/O threads: 8.2, whose previews are called 8.1.
const KEYS_IN_THREADS_SINCE: c_int = 0x0008_0100;

/// Returns whether this server asks for the keys of a command with the flag `getkeys-api` only on its main thread: Redis
/// before 8.2. Redis 8.2 and Valkey 8 ask in I/O threads while the main thread runs another command. Neither the context
/// that they pass nor this module is safe for that, and the server crashes. Unknown servers are treated in the same way.
fn asks_for_keys_on_main_thread() -> bool {
    // SAFETY: takes nothing.
    let version = optional!(RedisModule_GetServerVersion).map(|version| unsafe { version() });
    version.is_some_and(|version| version < KEYS_IN_THREADS_SINCE)
        && valkey_function(c"ValkeyModule_GetServerVersion").is_none()
}

impl KeyAccess {
    fn flags(self) -> u32 {
        match self {
            KeyAccess::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            KeyAccess::Update => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
        }
    }
}

impl KeyPositions {
    /// Returns the flag with which the server asks the module for the keys of a command. Redis 6.2 has no key specs, and 7.x
    /// and 8.0 route by [`KeyPositions::range`] alone: only with this flag do they check that all keys are in one slot on
    /// this node. Servers that would ask in other threads do not get it.
    fn flag(self) -> Option<&'static str> {
        match self {
            KeyPositions::Counted(_) if asks_for_keys_on_main_thread() => Some("getkeys-api"),
            KeyPositions::Counted(_) | KeyPositions::First(_) | KeyPositions::None => None,
        }
    }

    /// Returns the first key, the last key and the step between keys, for servers before 7.0. All 0 if the keys have no
    /// fixed place.
    fn range(self) -> [c_int; 3] {
        match self {
            KeyPositions::None => [0, 0, 0],
            KeyPositions::First(_) => [1, 1, 1],
            KeyPositions::Counted(_) if self.flag().is_some() => [0, 0, 0],
            // The first key is enough to find the node.
            KeyPositions::Counted(_) => [2, 2, 1],
        }
    }

    /// Returns where the keys are, for servers from 7.0 on. ACLs and COMMAND GETKEYS use the first spec.
    fn specs(self) -> Vec<raw::RedisModuleCommandKeySpec> {
        match self {
            KeyPositions::None => vec![],
            KeyPositions::First(access) => vec![one_key(1, access.flags())],
            KeyPositions::Counted(access) if self.flag().is_some() => vec![counted_keys(access)],
            // Clusters and CLIENT TRACKING use only ranges. ACLs ignore the range, because it is marked as not a key.
            KeyPositions::Counted(access) => {
                let no_key = access.flags() | raw::REDISMODULE_CMD_KEY_NOT_KEY;
                vec![counted_keys(access), one_key(2, no_key)]
            }
        }
    }

    /// Reports the keys of `call` to a server that only asks for them. Returns whether it did.
    pub fn report_keys_if_asked(self, call: &Call) -> bool {
        let KeyPositions::Counted(_) = self else { return false };
        // SAFETY: the context is live.
        let is_asked = unsafe { api!(RedisModule_IsKeysPositionRequest(call.ctx.raw())) != 0 };
        if is_asked {
            report_counted_keys(call);
        }
        is_asked
    }
}

/// Returns a key spec that begins at argument `at` and finds nothing yet.
fn spec_from(at: c_int, flags: u32) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: all zero is how the header initialises this structure; it holds integers, pointers and unions of both.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = at;
    spec.flags = u64::from(flags);
    spec
}

/// Returns the spec of a key in argument `at`.
fn one_key(at: c_int, flags: u32) -> raw::RedisModuleCommandKeySpec {
    let mut spec = spec_from(at, flags);
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
        lastkey: 0,
        keystep: 1,
        limit: 0,
    };
    spec
}

/// Returns the spec of keys that follow their number in argument 1.
fn counted_keys(access: KeyAccess) -> raw::RedisModuleCommandKeySpec {
    let mut spec = spec_from(1, access.flags());
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
    spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
        keynumidx: 0,
        firstkey: 1,
        keystep: 1,
    };
    spec
}

/// Reports the keys that follow their number. Their access is not reported: servers from 7.0 on take it from the specs.
fn report_counted_keys(call: &Call) {
    let count = call.argument(1).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let last = count.and_then(|count: usize| count.checked_add(1)).unwrap_or(0);
    // A call with too few keys is an error, and has none.
    if last < call.len() {
        for at in (2..=last).filter_map(|at| c_int::try_from(at).ok()) {
            // SAFETY: the context is live, and the server asks.
            unsafe { api!(RedisModule_KeyAtPos(call.ctx.raw(), at)) };
        }
    }
}

/// An argument as COMMAND DOCS shows it.
#[derive(Clone, Debug)]
pub struct Argument {
    kind: raw::RedisModuleCommandArgType,
    pub name: CString,
    /// The word before the value, such as LEASE, or the only word of the argument, such as MS.
    pub token: Option<&'static CStr>,
    /// The arguments in a group or a choice.
    pub parts: Vec<Argument>,
    flags: u32,
}

impl Argument {
    fn new(kind: raw::RedisModuleCommandArgType, name: &CStr, parts: Vec<Argument>) -> Argument {
        Argument { kind, name: name.into(), token: None, parts, flags: 0 }
    }

    pub fn key() -> Argument {
        Argument::new(KEY, c"key", vec![])
    }

    pub fn integer(name: &'static CStr) -> Argument {
        Argument::new(INTEGER, name, vec![])
    }

    pub fn text(name: &'static CStr) -> Argument {
        Argument::new(STRING, name, vec![])
    }

    /// Declares a bare word, such as `MS`.
    pub fn word(token: &'static CStr) -> Argument {
        let name = CString::new(token.to_bytes().to_ascii_lowercase()).unwrap_or_default();
        Argument::new(PURE_TOKEN, &name, vec![]).after(token)
    }

    pub fn one_of(name: &'static CStr, choices: Vec<Argument>) -> Argument {
        Argument::new(ONE_OF, name, choices)
    }

    /// Declares several in a row.
    pub fn group(name: &'static CStr, parts: Vec<Argument>) -> Argument {
        Argument::new(BLOCK, name, parts)
    }

    /// Makes it follow a word, as in `LEASE ms`.
    pub fn after(self, token: &'static CStr) -> Argument {
        Argument { token: Some(token), ..self }
    }

    pub fn optional(self) -> Argument {
        Argument { flags: self.flags | raw::REDISMODULE_CMD_ARG_OPTIONAL, ..self }
    }

    pub fn multiple(self) -> Argument {
        Argument { flags: self.flags | raw::REDISMODULE_CMD_ARG_MULTIPLE, ..self }
    }

    /// Returns the server's form of these arguments. It points into `arguments` and `nested`.
    fn convert(arguments: &[Argument], nested: &mut Vec<RawArguments>) -> RawArguments {
        let mut raw: RawArguments = Vec::new();
        for argument in arguments {
            let subargs = match argument.parts.as_slice() {
                [] => null_mut(),
                parts => {
                    let mut parts = Argument::convert(parts, nested);
                    // The elements stay where they are when the Vec moves.
                    let start = parts.as_mut_ptr();
                    nested.push(parts);
                    start
                }
            };
            raw.push(raw::RedisModuleCommandArg {
                name: argument.name.as_ptr(),
                type_: argument.kind,
                key_spec_index: if argument.kind == KEY { 0 } else { -1 },
                token: argument.token.map_or(null(), CStr::as_ptr),
                flags: argument.flags as c_int,
                subargs,
                ..END
            });
        }
        raw.push(END);
        raw
    }
}

/// Arguments in the server's form, with [`END`] as the last one.
type RawArguments = Vec<raw::RedisModuleCommandArg>;

/// Ends a list of arguments.
// SAFETY: all zero is how the header initialises this structure; it holds integers and pointers.
const END: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };

pub struct Declaration<'c> {
    ctx: Context<'c>,
    name: &'static CStr,
}

/// The description of a command in COMMAND INFO and COMMAND DOCS.
pub struct Description {
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    pub since: &'static CStr,
    /// The number of arguments including the name, or minus the least number.
    pub arity: c_int,
    pub keys: KeyPositions,
    /// All arguments after the name.
    pub arguments: Vec<Argument>,
}

impl<'c> Declaration<'c> {
    /// Registers a command with flags of RedisModule_CreateCommand. `None` if the server refuses it.
    pub fn create(
        ctx: Context<'c>,
        name: &'static CStr,
        entry: EntryPoint,
        flags: &str,
        keys: KeyPositions,
    ) -> Option<Declaration<'c>> {
        let flags: Vec<_> = [flags].into_iter().chain(keys.flag()).collect();
        let flags = CString::new(flags.join(" ")).ok()?;
        let [first, last, step] = keys.range();
        // SAFETY: the texts end in NUL and are copied; the entry lives as long as the module.
        let status = unsafe {
            api!(RedisModule_CreateCommand(
                ctx.raw(),
                name.as_ptr(),
                Some(entry),
                flags.as_ptr(),
                first,
                last,
                step,
            ))
        };
        (status == OK).then_some(Declaration { ctx, name })
    }

    /// Describes the command to servers from 7.0 on. Returns false if the server refuses.
    pub fn describe(&self, description: &Description) -> bool {
        let Some(set) = optional!(RedisModule_SetCommandInfo) else { return true };
        let Some(command) = self.handle() else { return false };
        let mut keys = description.keys.specs();
        // SAFETY: all zero ends the list of key specs.
        keys.push(unsafe { std::mem::zeroed() });
        let mut nested = Vec::new();
        let mut arguments = Argument::convert(&description.arguments, &mut nested);
        let info = raw::RedisModuleCommandInfo {
            version: &VERSION,
            summary: description.summary.as_ptr(),
            complexity: description.complexity.as_ptr(),
            since: description.since.as_ptr(),
            history: null_mut(),
            tips: null(),
            arity: description.arity,
            key_specs: keys.as_mut_ptr(),
            args: arguments.as_mut_ptr(),
        };
        // SAFETY: the command is live. The structures are those of the version that we name, and the server copies them.
        unsafe { set(command, &info) == OK }
    }

    /// Sets the ACL categories of the command, on servers with such a function (7.2).
    pub fn categorize(&self, categories: &str) {
        let Some(set) = optional!(RedisModule_SetCommandACLCategories) else { return };
        if let (Some(command), Ok(categories)) = (self.handle(), CString::new(categories)) {
            // SAFETY: the command is live; the text ends in NUL and is copied.
            unsafe { set(command, categories.as_ptr()) };
        }
    }

    fn handle(&self) -> Option<*mut raw::RedisModuleCommand> {
        let get = optional!(RedisModule_GetCommand)?;
        // SAFETY: the context is live; the name ends in NUL.
        let command = unsafe { get(self.ctx.raw(), self.name.as_ptr()) };
        (!command.is_null()).then_some(command)
    }
}

/// Adds an ACL category. Returns false if the server cannot add it, or cannot put commands into it. A category outlives the
/// module that added it, so the next load finds it there.
pub fn add_category(ctx: Context, name: &CStr) -> bool {
    let (Some(add), Some(_)) =
        (optional!(RedisModule_AddACLCategory), optional!(RedisModule_SetCommandACLCategories))
    else {
        return false;
    };
    // SAFETY: the context is live; the name is copied.
    let is_added = unsafe { add(ctx.raw(), name.as_ptr()) } == OK;
    is_added || Error::last_os_error().raw_os_error() == Some(libc::EBUSY)
}

static VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

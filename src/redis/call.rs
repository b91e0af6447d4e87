//! One call of a command: its arguments, and the way from the server to the command.

use super::api::{api, optional, ERR, OK};
use super::context::{Context, KeyName};
use super::guard::guard;
use super::text::bytes_of;
use redis_module::raw;
use std::ffi::c_int;
use std::ops::Range;

/// Which command of the module's table is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandNumber(pub usize);

/// A running command.
pub struct Call<'a> {
    ctx: Context<'a>,
    arguments: &'a [*mut raw::RedisModuleString],
    command: CommandNumber,
}

impl<'a> Call<'a> {
    /// The context.
    pub fn context(&self) -> Context<'a> {
        self.ctx
    }

    /// How many arguments came, the command's name among them.
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// The bytes of argument `at`; 0 is the command's name.
    pub fn argument(&self, at: usize) -> Option<&'a [u8]> {
        // SAFETY: the server keeps the arguments of a running command.
        self.arguments.get(at).map(|&raw| unsafe { bytes_of(raw) })
    }

    /// Argument `at` as the name of a key.
    pub fn key_at(&self, at: usize) -> Option<KeyName<'a>> {
        // SAFETY: the server keeps the arguments of a running command.
        self.arguments.get(at).map(|&raw| unsafe { KeyName::from_argument(raw) })
    }

    /// Some of the arguments, to hand them on.
    pub(super) fn raw_arguments(&self, range: Range<usize>) -> &'a [*mut raw::RedisModuleString] {
        self.arguments.get(range).unwrap_or_default()
    }

    /// The command, for a reply that comes later.
    pub fn command(&self) -> CommandNumber {
        self.command
    }

    /// Whether the server only asks where the keys are, of a command that [`super::declaration::Keys::Counted`]
    /// describes.
    pub fn asks_for_keys(&self) -> bool {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.ctx.raw())) != 0 }
    }

    /// Tells the server, which asked, that argument `at` is a key that is used as `flags` say.
    pub(super) fn key_is_at(&self, at: c_int, flags: c_int) {
        match optional!(RedisModule_KeyAtPosWithFlags) {
            // SAFETY: the context is live, and the server asked.
            Some(key_at) => unsafe { key_at(self.ctx.raw(), at, flags) },
            // SAFETY: as above.
            None => unsafe { api!(RedisModule_KeyAtPos(self.ctx.raw(), at)) },
        }
    }
}

/// The module's commands, by their number in its table.
pub trait Commands {
    /// Carries out a call, and replies to it now or later.
    fn run(call: &Call);

    /// Replies to a call that panicked.
    fn panicked(call: &Call);
}

/// A function that the server calls for a command.
pub type EntryPoint = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// Is called by the server for command `NUMBER` of the table `C`.
///
/// # Safety
/// Only the server calls it, with the arguments of the call.
pub unsafe extern "C" fn entry<C: Commands, const NUMBER: usize>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server keeps the context and the `argc` arguments while the command runs.
    let (ctx, arguments) = unsafe { (Context::new(ctx), arguments(argv, argc)) };
    let Some(ctx) = ctx else { return ERR };
    let call = Call { ctx, arguments, command: CommandNumber(NUMBER) };
    if guard(Some(ctx), || C::run(&call)).is_none() {
        C::panicked(&call);
    }
    OK
}

/// The arguments of a call.
///
/// # Safety
/// `argv` holds `argc` strings that outlive `'a`.
pub(super) unsafe fn arguments<'a>(
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> &'a [*mut raw::RedisModuleString] {
    let len = usize::try_from(argc).unwrap_or(0);
    if argv.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(argv, len) }
}

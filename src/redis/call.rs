//! A call of a command: its arguments, and the function through which the server makes it.

use super::api::{RawContext, RawString, ERR, OK};
use super::context::{Context, KeyName};
use super::guard::guard;
use super::text::bytes_of;
use std::ffi::c_int;
use std::ops::Range;

/// The position of a command in the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandNumber(pub usize);

pub struct Call<'a> {
    pub ctx: Context<'a>,
    arguments: &'a [RawString],
    pub command: CommandNumber,
}

impl<'a> Call<'a> {
    /// Returns the number of arguments, including the name of the command.
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// Returns the bytes of argument `at`. Argument 0 is the name of the command.
    pub fn argument(&self, at: usize) -> Option<&'a [u8]> {
        // SAFETY: the server keeps the arguments of a running command.
        self.arguments.get(at).map(|&raw| unsafe { bytes_of(raw) })
    }

    pub fn key_at(&self, at: usize) -> Option<KeyName<'a>> {
        // SAFETY: the server keeps the arguments of a running command.
        self.arguments.get(at).map(|&raw| unsafe { KeyName::from_argument(raw) })
    }

    pub(super) fn raw_arguments(&self, range: Range<usize>) -> &'a [RawString] {
        self.arguments.get(range).unwrap_or_default()
    }
}

/// The commands of the module. A trait, so that each entry point is compiled for its command.
pub trait Commands {
    /// Runs a call, and replies to it now or later.
    fn run(call: &Call);

    fn reply_to_panic(call: &Call);
}

pub type EntryPoint = unsafe extern "C" fn(RawContext, *mut RawString, c_int) -> c_int;

/// The server calls this for command `NUMBER` of `C`.
///
/// # Safety
/// Only the server calls it, with the arguments of the call.
pub unsafe extern "C" fn entry<C: Commands, const NUMBER: usize>(
    ctx: RawContext,
    argv: *mut RawString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server keeps the context and the `argc` arguments while the command runs.
    let (ctx, arguments) = unsafe { (Context::new(ctx), arguments(argv, argc)) };
    let Some(ctx) = ctx else { return ERR };
    let call = Call { ctx, arguments, command: CommandNumber(NUMBER) };
    if guard(Some(ctx), || C::run(&call)).is_none() {
        C::reply_to_panic(&call);
    }
    OK
}

/// Returns the arguments of a call.
///
/// # Safety
/// `argv` holds `argc` strings that outlive `'a`.
pub(super) unsafe fn arguments<'a>(argv: *mut RawString, argc: c_int) -> &'a [RawString] {
    let len = usize::try_from(argc).unwrap_or(0);
    if argv.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(argv, len) }
}

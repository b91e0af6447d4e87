//! One call of a command: its arguments, its reply, and the guard around it.

use super::api::api;
use super::text::bytes_of;
use crate::error::Error;
use crate::limit::decision::{Decision, TimeUnit};
use crate::{Command, COMMANDS};
use redis_module::raw;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::raw::{c_int, c_long, c_longlong};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The server's handle for the running command or callback.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    raw: *mut raw::RedisModuleCtx,
    lifetime: PhantomData<&'a ()>,
}

impl Context<'_> {
    /// # Safety
    /// `raw` is a live context for as long as the value is used.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Context { raw, lifetime: PhantomData }
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    /// Writes a line at level "warning" to the server's log.
    pub fn warn(self, line: &CStr) {
        // SAFETY: both strings end in NUL; "%s" takes exactly the one.
        unsafe {
            api!(RedisModule_Log(self.raw, c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr()))
        }
    }
}

/// The name of a key, borrowed from the call or from a waiter.
#[derive(Clone, Copy)]
pub struct KeyName<'a> {
    raw: *mut raw::RedisModuleString,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> KeyName<'a> {
    pub(super) fn raw(self) -> *mut raw::RedisModuleString {
        self.raw
    }
}

/// A running command.
pub struct Call<'a> {
    ctx: Context<'a>,
    arguments: &'a [*mut raw::RedisModuleString],
    command: &'static Command,
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

    /// The key, which is the first argument of every command.
    pub fn key(&self) -> Result<KeyName<'a>, Error> {
        let &raw = self.arguments.get(1).ok_or(Error::Arity)?;
        Ok(KeyName { raw, lifetime: PhantomData })
    }

    /// Replies `[limited, limit, remaining, retry_after, reset_after]`, and with `granted` how much was had.
    pub fn reply_decision(&self, decision: &Decision, unit: TimeUnit, granted: bool) {
        self.five_integers(decision, unit, if granted { 6 } else { 5 });
        if granted {
            self.integer(decision.granted);
        }
    }

    /// Replies the five integers and the id of the reservation, or nil.
    pub fn reply_reservation(&self, decision: &Decision, unit: TimeUnit, id: Option<&[u8]>) {
        self.five_integers(decision, unit, 6);
        match id {
            Some(id) => self.text(id),
            // SAFETY: the context is live.
            None => unsafe {
                api!(RedisModule_ReplyWithNull(self.ctx.raw));
            },
        }
    }

    /// Replies how many reservations were settled.
    pub fn reply_settled(&self, settled: u64) {
        self.count(settled > 0);
        self.integer(settled);
    }

    /// Notes for INFO that the call was allowed or denied.
    pub fn count(&self, allowed: bool) {
        let stats = &self.command.stats;
        if allowed { &stats.allowed } else { &stats.denied }.add(1);
    }

    fn five_integers(&self, decision: &Decision, unit: TimeUnit, array: usize) {
        self.count(decision.allowed());
        self.array(array);
        self.integer(decision.limited as u64);
        self.integer(decision.limit);
        self.integer(decision.remaining);
        match decision.retry_after_us {
            Some(us) => self.integer(unit.round_up(us)),
            None => self.signed(-1),
        }
        self.integer(unit.round_up(decision.reset_after_us));
    }

    /// Replies a string.
    pub fn text(&self, text: &[u8]) {
        // SAFETY: the context is live; the bytes are copied.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer(self.ctx.raw, text.as_ptr().cast(), text.len()))
        };
    }

    /// Begins an array of `len` elements.
    pub fn array(&self, len: usize) {
        let len = c_long::try_from(len).unwrap_or(c_long::MAX);
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx.raw, len)) };
    }

    /// Replies an integer; what passes 2^63 - 1 saturates.
    pub fn integer(&self, value: u64) {
        self.signed(c_longlong::try_from(value).unwrap_or(c_longlong::MAX));
    }

    fn signed(&self, value: c_longlong) {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx.raw, value)) };
    }
}

/// What the server calls for command number `COMMAND` of the table.
///
/// # Safety
/// Only the server calls it, with the arguments of the call.
pub(super) unsafe extern "C" fn entry<const COMMAND: usize>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let Some(command) = COMMANDS.get(COMMAND) else { return raw::REDISMODULE_ERR as c_int };
    // SAFETY: the server passes `argc` arguments and keeps them while the command runs.
    let (ctx, arguments) = unsafe {
        let len = usize::try_from(argc).unwrap_or(0);
        (Context::new(ctx), std::slice::from_raw_parts(argv, len))
    };
    let mut call = Call { ctx, arguments, command };
    let error = match guard(ctx, || (command.run)(&mut call)) {
        Some(Ok(())) => return raw::REDISMODULE_OK as c_int,
        Some(Err(error)) => error,
        None => Error::Internal,
    };
    command.stats.errors.add(1);
    // SAFETY: the context is live and the text ends in NUL.
    unsafe {
        match error {
            Error::Arity => api!(RedisModule_WrongArity(ctx.raw)),
            error => api!(RedisModule_ReplyWithError(ctx.raw, error.text().as_ptr())),
        }
    }
}

/// Runs `body`, which the server called through an `extern "C"` function: a panic stops here, with a line in
/// the log, and never unwinds into C.
pub(super) fn guard<T>(ctx: Context, body: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(body)).ok();
    if result.is_none() {
        ctx.warn(c"redis-ratelimit: internal error, please report it");
    }
    result
}

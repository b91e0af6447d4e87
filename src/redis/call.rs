//! One call of a command: its arguments, its reply, and the guard around it.

use super::api::api;
use super::text::{bytes_of, OwnedString};
use crate::answer::{Answer, Sixth};
use crate::error::Error;
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

    /// The number of the selected database.
    pub fn db(self) -> i32 {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_GetSelectedDb(self.raw)) }
    }

    /// Selects a database; whether there is one of this number.
    pub fn select_db(self, db: i32) -> bool {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_SelectDb(self.raw, db)) == raw::REDISMODULE_OK as c_int }
    }

    /// Whether the client may be blocked: not in MULTI, scripts, functions, nor where another module calls; nor on
    /// a replica, where only its own clients would wake it.
    pub fn may_block(self) -> bool {
        let never = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & never == 0 && self.is_master()
    }

    /// Whether CLIENT PAUSE or a failover is in force, when the server asserts that nothing is replicated.
    pub fn is_paused(self) -> bool {
        // SAFETY: takes nothing.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// Whether this is no replica.
    pub fn is_master(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_MASTER != 0
    }

    /// Whether this node serves the slot of `key`: always, outside of a cluster. While the slot moves away, only
    /// as long as the key is here.
    pub fn serves(self, key: KeyName) -> bool {
        if self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER == 0 {
            return true;
        }
        // SAFETY: the context is live; "s" takes the key. For a key of a foreign slot there is no reply; what
        // there is is ours to free.
        unsafe {
            let call = c"EXISTS".as_ptr();
            let reply = api!(RedisModule_Call(self.raw, call, c"s".as_ptr(), key.raw()));
            if reply.is_null() {
                return false;
            }
            api!(RedisModule_FreeCallReply(reply));
            true
        }
    }

    fn flags(self) -> u32 {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_GetContextFlags(self.raw)) }.unsigned_abs()
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
    /// The key of this name.
    pub fn of(name: &'a OwnedString) -> KeyName<'a> {
        KeyName { raw: name.raw(), lifetime: PhantomData }
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        // SAFETY: whoever made the value keeps the string for 'a.
        unsafe { bytes_of(self.raw) }
    }

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

    /// The command, for a reply that comes later.
    pub fn command(&self) -> &'static Command {
        self.command
    }

    /// Replies the answer.
    pub fn reply(&self, answer: Answer) {
        reply(self.ctx, self.command, Ok(answer));
    }

    /// Replies how many reservations were settled.
    pub fn reply_settled(&self, settled: u64) {
        self.count(settled > 0);
        self.integer(settled);
    }

    /// Notes for INFO that the call was allowed or denied.
    pub fn count(&self, allowed: bool) {
        self.command.stats.count(allowed);
    }

    /// Begins an array of `len` elements.
    pub fn array(&self, len: usize) {
        array(self.ctx, len);
    }

    /// Replies an integer; what passes 2^63 - 1 saturates.
    pub fn integer(&self, value: u64) {
        integer(self.ctx, value);
    }

    /// Replies a string.
    pub fn text(&self, text: &[u8]) {
        self::text(self.ctx, text);
    }
}

/// Replies an answer or an error, and counts it for INFO.
pub fn reply(ctx: Context, command: &Command, result: Result<Answer, Error>) {
    let answer = match result {
        Ok(answer) => answer,
        Err(error) => {
            command.stats.errors.add(1);
            // SAFETY: the context is live and the text ends in NUL.
            unsafe { api!(RedisModule_ReplyWithError(ctx.raw, error.text().as_ptr())) };
            return;
        }
    };
    let decision = &answer.decision;
    command.stats.count(decision.allowed());
    array(ctx, if matches!(answer.sixth, Sixth::Absent) { 5 } else { 6 });
    integer(ctx, decision.limited as u64);
    integer(ctx, decision.limit);
    integer(ctx, decision.remaining);
    match decision.retry_after_us {
        Some(us) => integer(ctx, answer.unit.round_up(us)),
        None => signed(ctx, -1),
    }
    integer(ctx, answer.unit.round_up(decision.reset_after_us));
    match &answer.sixth {
        Sixth::Absent => {}
        Sixth::Granted => integer(ctx, decision.granted),
        Sixth::Id(Some(id)) => text(ctx, id.as_bytes()),
        // SAFETY: the context is live.
        Sixth::Id(None) => unsafe {
            api!(RedisModule_ReplyWithNull(ctx.raw));
        },
    }
}

fn array(ctx: Context, len: usize) {
    let len = c_long::try_from(len).unwrap_or(c_long::MAX);
    // SAFETY: the context is live.
    unsafe { api!(RedisModule_ReplyWithArray(ctx.raw, len)) };
}

fn integer(ctx: Context, value: u64) {
    signed(ctx, c_longlong::try_from(value).unwrap_or(c_longlong::MAX));
}

fn signed(ctx: Context, value: c_longlong) {
    // SAFETY: the context is live.
    unsafe { api!(RedisModule_ReplyWithLongLong(ctx.raw, value)) };
}

fn text(ctx: Context, text: &[u8]) {
    // SAFETY: the context is live; the bytes are copied.
    unsafe {
        api!(RedisModule_ReplyWithStringBuffer(ctx.raw, text.as_ptr().cast(), text.len()));
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
    if error == Error::Arity {
        command.stats.errors.add(1);
        // SAFETY: the context is live.
        return unsafe { api!(RedisModule_WrongArity(ctx.raw)) };
    }
    reply(ctx, command, Err(error));
    raw::REDISMODULE_OK as c_int
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

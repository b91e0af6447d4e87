//! The context of a command or a callback, which writes replies; the replies to the module's own calls; the names of keys.

use super::api::{api, optional, RawContext, RawString, OK};
use super::text::{bytes_of, OwnedString};
use redis_module::raw;
use std::ffi::{c_int, c_long, CStr, CString};
use std::marker::PhantomData;
use std::ptr::{null_mut, NonNull};

#[derive(Clone, Copy)]
pub struct Context<'a> {
    raw: NonNull<raw::RedisModuleCtx>,
    lifetime: PhantomData<&'a ()>,
}

impl Context<'_> {
    /// Returns `None` for null, which some callbacks are given.
    ///
    /// # Safety
    /// `raw` is null, or a live context for as long as the value is used.
    pub(super) unsafe fn new(raw: RawContext) -> Option<Self> {
        NonNull::new(raw).map(|raw| Context { raw, lifetime: PhantomData })
    }

    pub(super) fn raw(self) -> RawContext {
        self.raw.as_ptr()
    }

    pub fn db(self) -> i32 {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_GetSelectedDb(self.raw())) }
    }

    /// Selects a database. Returns false if there is none with this number.
    pub fn select_db(self, db: i32) -> bool {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_SelectDb(self.raw(), db)) == OK }
    }

    /// Returns whether a client made the running call by itself: not in MULTI, in a script or a function, or through another
    /// module.
    pub fn is_single_call(self) -> bool {
        let within_another = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & within_another == 0
    }

    /// Returns whether the client may be blocked. It may not within a transaction and the like, and on a replica, where only
    /// clients of that replica would wake it.
    pub fn may_block(self) -> bool {
        self.is_single_call() && self.is_master()
    }

    pub fn client(self) -> ClientId {
        // SAFETY: the context is live.
        ClientId(unsafe { api!(RedisModule_GetClientId(self.raw())) })
    }

    /// Returns whether CLIENT PAUSE or a failover is in force. Then the server asserts that nothing is replicated.
    pub fn is_paused(self) -> bool {
        // SAFETY: takes nothing.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    pub fn is_master(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_MASTER != 0
    }

    pub fn is_in_cluster(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Returns whether this node serves `key`: always outside of a cluster, and only if the key is here while its slot is
    /// migrating.
    pub fn serves(self, key: KeyName) -> bool {
        // SAFETY: the name is live.
        !self.is_in_cluster() || unsafe { self.serves_all(&[key.raw()]) }
    }

    /// Returns whether the server would accept a command on these keys because it serves their slot.
    ///
    /// # Safety
    /// The names are live.
    pub(super) unsafe fn serves_all(self, names: &[RawString]) -> bool {
        // Without a reply the server has refused.
        // SAFETY: the caller's promise.
        unsafe { self.call_raw(c"EXISTS", names) }.is_some()
    }

    /// Calls a command, as a client that may do everything. `None` if the server refuses.
    pub(super) fn call(self, command: &CStr, arguments: &[&[u8]]) -> Option<CallReply> {
        let arguments: Vec<_> = arguments.iter().map(|bytes| OwnedString::new(bytes)).collect();
        let raw: Vec<_> = arguments.iter().map(OwnedString::raw).collect();
        // SAFETY: the strings are live.
        unsafe { self.call_raw(command, &raw) }
    }

    /// Calls a command, as [`Context::call`] does.
    ///
    /// # Safety
    /// The arguments are live.
    unsafe fn call_raw(self, command: &CStr, arguments: &[RawString]) -> Option<CallReply> {
        let (command, format) = (command.as_ptr(), c"v".as_ptr());
        let (start, len) = (arguments.as_ptr(), arguments.len());
        // SAFETY: the context is live; "v" takes strings and their number.
        CallReply::adopt(unsafe { api!(RedisModule_Call(self.raw(), command, format, start, len)) })
    }

    pub(super) fn flags(self) -> u32 {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_GetContextFlags(self.raw())) }.unsigned_abs()
    }
}

/// The id of a client, which the server does not reuse.
#[derive(Debug, Clone, Copy)]
pub struct ClientId(u64);

impl ClientId {
    /// Returns whether the client is still connected, as far as the server knows.
    pub fn is_connected(self) -> bool {
        // SAFETY: with null in place of the result, the server only looks for the client.
        unsafe { api!(RedisModule_GetClientInfoById(null_mut(), self.0)) == OK }
    }
}

/// Replies. Each function writes one element.
impl Context<'_> {
    pub fn reply_array(self, len: usize) {
        let len = c_long::try_from(len).unwrap_or(c_long::MAX);
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_ReplyWithArray(self.raw(), len)) };
    }

    /// Begins a map of this many fields, each of which is two elements. Before 7.0 it is an array.
    pub fn reply_map(self, fields: usize) {
        let Some(reply) = optional!(RedisModule_ReplyWithMap) else {
            return self.reply_array(fields.saturating_mul(2));
        };
        let fields = c_long::try_from(fields).unwrap_or(c_long::MAX);
        // SAFETY: the context is live.
        unsafe { reply(self.raw(), fields) };
    }

    pub fn reply_integer(self, value: i64) {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.raw(), value)) };
    }

    /// Replies with a bulk string.
    pub fn reply_text(self, text: &[u8]) {
        let (start, len) = (text.as_ptr().cast(), text.len());
        // SAFETY: the context is live; the bytes are copied.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.raw(), start, len)) };
    }

    pub fn reply_nil(self) {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_ReplyWithNull(self.raw())) };
    }

    /// Replies with an error. The text begins with its code and contains no NUL.
    pub fn reply_error(self, text: &str) {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the context is live and the text ends in NUL.
        unsafe { api!(RedisModule_ReplyWithError(self.raw(), text.as_ptr())) };
    }

    /// Replies with the server's own error for too few or too many arguments.
    pub fn reply_wrong_arity(self) {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_WrongArity(self.raw())) };
    }
}

/// The server's reply to a command that the module called. It is freed when this is dropped.
pub(super) struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl CallReply {
    /// Takes over the result of RedisModule_Call. `None` if the server did not make the call.
    pub(super) fn adopt(raw: *mut raw::RedisModuleCallReply) -> Option<CallReply> {
        NonNull::new(raw).map(CallReply)
    }

    /// Returns the text of an error or a string. Empty for any other reply.
    pub(super) fn text(&self) -> &[u8] {
        // SAFETY: the reply is ours.
        unsafe { text_of(self.0.as_ptr()) }
    }

    /// Returns the texts of the elements of an array. Empty for any other reply.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: the reply is ours.
        let len = unsafe { api!(RedisModule_CallReplyLength(self.0.as_ptr())) };
        (0..len).map_while(|at| {
            // SAFETY: as above. Any other reply than an array has a length and gives null.
            let element = unsafe { api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), at)) };
            // SAFETY: an element lives as long as the reply.
            (!element.is_null()).then(|| unsafe { text_of(element) })
        })
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: the reply is ours to free, once.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}

/// Returns the text of an error or a string. Empty for any other reply.
///
/// # Safety
/// The reply is live for as long as the text is used.
unsafe fn text_of<'a>(reply: *mut raw::RedisModuleCallReply) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the caller's promise. Any other reply gives null.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
        if start.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// Modes in which opening a key does not count as a use. Servers before 7.2 ignore them.
pub(super) const UNTOUCHED: u32 =
    raw::REDISMODULE_OPEN_KEY_NOTOUCH | raw::REDISMODULE_OPEN_KEY_NOSTATS;

/// The name of a key, borrowed from the call or from a waiter.
#[derive(Clone, Copy)]
pub struct KeyName<'a> {
    raw: RawString,
    /// The modes in which the key is opened, in addition to reading and writing. As wide as a pointer, so that a name is
    /// copied in whole words.
    modes: usize,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> KeyName<'a> {
    /// Names a key that the module looks at without a call from a client. Opening it changes neither its LRU and LFU nor,
    /// from 7.2 on, the server's counts of hits and misses.
    pub fn polled(name: &'a OwnedString) -> KeyName<'a> {
        KeyName { raw: name.raw(), modes: UNTOUCHED as usize, lifetime: PhantomData }
    }

    /// Returns the key that is an argument of a call.
    ///
    /// # Safety
    /// `raw` is a live string that outlives `'a`.
    pub(super) unsafe fn from_argument(raw: RawString) -> KeyName<'a> {
        KeyName { raw, modes: 0, lifetime: PhantomData }
    }

    /// Returns the key of an event, like [`KeyName::polled`].
    ///
    /// # Safety
    /// `raw` is a live string that outlives `'a`.
    pub(super) unsafe fn from_event(raw: RawString) -> KeyName<'a> {
        KeyName { raw, modes: UNTOUCHED as usize, lifetime: PhantomData }
    }

    /// Returns whether opening the key does not count as a use.
    pub(super) fn is_polled(self) -> bool {
        self.modes != 0
    }

    /// Returns the modes in which the key is opened, including `mode`.
    pub(super) fn open_mode(self, mode: u32) -> c_int {
        // All modes are bits of a C integer.
        self.modes as c_int | mode as c_int
    }

    pub fn as_bytes(self) -> &'a [u8] {
        // SAFETY: the caller of the constructor keeps the string for 'a.
        unsafe { bytes_of(self.raw) }
    }

    pub(super) fn raw(self) -> RawString {
        self.raw
    }
}

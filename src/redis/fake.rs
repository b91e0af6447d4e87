//! A server for unit tests: keys in memory, behind those functions of the module API that the commands call; and an
//! allocator that counts what the module allocates, but not what this server does.
//!
//! To serve a command that calls another function, add that function to the list at the end.

use super::api::{RawContext, RawString, ERR, OK};
use super::call::EntryPoint;
use super::context::Context;
use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_long, c_longlong, c_void, CStr};
use std::mem::transmute;
use std::ptr::{null_mut, NonNull};
use std::slice::from_raw_parts;
use std::sync::Once;

type RawKey = *mut raw::RedisModuleKey;
type RawClient = *mut raw::RedisModuleBlockedClient;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static NOW_US: Cell<i64> = const { Cell::new(0) };
    static UNBLOCKED: Cell<usize> = const { Cell::new(0) };
    static OPEN_KEYS: Cell<usize> = const { Cell::new(0) };
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more.
        let _ = ALLOCATIONS.try_with(|number| number.set(number.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the number of allocations by `work` on this thread, and its result.
pub fn count_allocations<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.get();
    let result = work();
    (ALLOCATIONS.get() - before, result)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyElement {
    Array(i64),
    Integer(i64),
    Text(String),
    Error(String),
    Nil,
    WrongArity,
}

#[derive(Default)]
enum FakeValue {
    #[default]
    Missing,
    String(Vec<u8>),
    /// The scores and members, in order.
    Zset(Vec<(f64, Vec<u8>)>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
}

#[derive(Default)]
struct FakeKey {
    value: FakeValue,
    expires_at_ms: i64,
    /// The number of handles that are open.
    handles: usize,
    /// The most handles that were open when a string was read or written.
    handles_of_string: usize,
}

/// The server. A context points to it.
#[derive(Default)]
pub struct FakeServer {
    keys: BTreeMap<Vec<u8>, Box<FakeKey>>,
    replies: Vec<ReplyElement>,
    /// The names of the commands that were replicated.
    pub replicated: Vec<String>,
    pub log: Vec<String>,
    /// The number of times that the module signalled a modified key.
    pub modified: usize,
    /// True if the server has all keys in use and allows no writes.
    pub keys_in_use: bool,
    /// The number of keys that the module had open when it notified others, for each notification.
    pub open_when_notified: Vec<usize>,
    /// The number of allocations by the module in the last call.
    pub allocations: u64,
}

impl FakeServer {
    pub fn at(now_us: i64) -> Box<FakeServer> {
        install();
        NOW_US.set(now_us);
        UNBLOCKED.set(0);
        Box::default()
    }

    /// Makes a key hold a string.
    pub fn set(&mut self, key: &str, value: &[u8]) {
        self.keys.entry(key.into()).or_default().value = FakeValue::String(value.into());
    }

    pub fn set_field(&mut self, key: &str, field: &str, value: &str) {
        let stored = &mut self.keys.entry(key.into()).or_default().value;
        if !matches!(stored, FakeValue::Hash(_)) {
            *stored = FakeValue::Hash(BTreeMap::new());
        }
        if let FakeValue::Hash(fields) = stored {
            fields.insert(field.into(), value.into());
        }
    }

    pub fn get(&self, key: &str) -> Option<String> {
        match &self.keys.get(key.as_bytes())?.value {
            FakeValue::String(value) => Some(text(value)),
            _ => None,
        }
    }

    /// Returns the most handles of a key that were open when its string was read or written.
    pub fn handles_of_string(&self, key: &str) -> usize {
        self.keys.get(key.as_bytes()).map_or(0, |key| key.handles_of_string)
    }

    /// Returns the number of waits that the module has ended.
    pub fn unblocked(&self) -> usize {
        UNBLOCKED.get()
    }

    /// Makes a call, given as words with single spaces between them, and returns its reply.
    pub fn call(&mut self, entry: EntryPoint, words: &str) -> Vec<ReplyElement> {
        let ctx: RawContext = std::ptr::from_mut(self).cast();
        let mut arguments: Vec<_> = words.split(' ').map(|word| string(word.as_bytes())).collect();
        let argc = c_int::try_from(arguments.len()).unwrap();
        // SAFETY: the functions below know this context and these strings.
        let (allocations, status) =
            count_allocations(|| unsafe { entry(ctx, arguments.as_mut_ptr(), argc) });
        assert_eq!(status, OK);
        self.allocations = allocations;
        for argument in arguments {
            // SAFETY: made above, and not kept.
            drop(unsafe { Box::from_raw(argument.cast::<Vec<u8>>()) });
        }
        std::mem::take(&mut self.replies)
    }

    /// Calls the module back, as for a timer or a blocked client, and returns its replies.
    pub fn call_back(&mut self, callback: impl FnOnce(Context)) -> Vec<ReplyElement> {
        let ctx: RawContext = std::ptr::from_mut(self).cast();
        // SAFETY: the functions below know this context.
        callback(unsafe { Context::new(ctx) }.unwrap());
        std::mem::take(&mut self.replies)
    }
}

struct OpenKey {
    key: *mut FakeKey,
    /// The element at which a search is.
    at: usize,
    /// The highest score of the search.
    max: f64,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn string(bytes: &[u8]) -> RawString {
    Box::into_raw(Box::new(bytes.to_vec())).cast()
}

/// # Safety
/// `string` came from [`string`].
unsafe fn bytes<'a>(string: *const raw::RedisModuleString) -> &'a Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe { &*string.cast() }
}

/// # Safety
/// `text` ends in NUL.
unsafe fn c_text(c_text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    text(unsafe { CStr::from_ptr(c_text) }.to_bytes())
}

/// # Safety
/// `ctx` is the context of [`FakeServer::call`], and nothing else uses the server now.
unsafe fn server<'a>(ctx: RawContext) -> &'a mut FakeServer {
    // SAFETY: the caller's promise.
    unsafe { &mut *ctx.cast() }
}

/// # Safety
/// As for [`server`].
unsafe fn reply(ctx: RawContext, element: ReplyElement) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { server(ctx) }.replies.push(element);
    OK
}

/// # Safety
/// `key` came from RedisModule_OpenKey and is not null.
unsafe fn opened<'a>(key: RawKey) -> (&'a mut OpenKey, &'a mut FakeKey) {
    // SAFETY: the caller's promise; the key lives in the server.
    unsafe {
        let open: &mut OpenKey = &mut *key.cast();
        let key = &mut *open.key;
        (open, key)
    }
}

/// # Safety
/// As for [`opened`].
unsafe fn elements<'a>(key: RawKey) -> Option<&'a mut Vec<(f64, Vec<u8>)>> {
    // SAFETY: the caller's promise.
    match unsafe { &mut opened(key).1.value } {
        FakeValue::Zset(elements) => Some(elements),
        _ => None,
    }
}

/// Defines functions of the API, and [`install`], which puts them in the place of the server's. What they allocate is not
/// counted.
macro_rules! server_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        pub fn install() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                install_variadic();
                $({
                    #[allow(unused_unsafe, clippy::redundant_closure_call)]
                    unsafe extern "C" fn function($($argument: $type),*) $(-> $result)? {
                        let before = ALLOCATIONS.get();
                        // SAFETY: the module passes its context, and keys and strings that these functions made.
                        let result = (|| unsafe { $body })();
                        ALLOCATIONS.set(before);
                        result
                    }
                    // SAFETY: written once, before any test calls one of the functions.
                    unsafe { raw::$name = Some(function) };
                })*
            });
        }
    };
}

/// Installs the functions that take any number of arguments. These read only the first ones, which are passed in the same
/// way on the systems that we build for.
fn install_variadic() {
    unsafe extern "C" fn log(
        ctx: RawContext,
        _: *const c_char,
        _: *const c_char,
        line: *const c_char,
    ) {
        let before = ALLOCATIONS.get();
        if !ctx.is_null() {
            // SAFETY: the module passes its context and a line.
            unsafe { server(ctx).log.push(c_text(line)) };
        }
        ALLOCATIONS.set(before);
    }
    unsafe extern "C" fn replicate(
        ctx: RawContext,
        command: *const c_char,
        _: *const c_char,
    ) -> c_int {
        let before = ALLOCATIONS.get();
        // SAFETY: the module passes its context and a name.
        unsafe { server(ctx).replicated.push(c_text(command)) };
        ALLOCATIONS.set(before);
        OK
    }
    unsafe extern "C" fn hash_get(
        key: RawKey,
        _: c_int,
        field: RawString,
        value: *mut RawString,
    ) -> c_int {
        let before = ALLOCATIONS.get();
        // SAFETY: the module passes an open key, its string, and a place for one.
        unsafe {
            let FakeValue::Hash(fields) = &opened(key).1.value else { return ERR };
            *value = fields.get(bytes(field)).map_or(null_mut(), |found| string(found));
        }
        ALLOCATIONS.set(before);
        OK
    }
    type Log = unsafe extern "C" fn(RawContext, *const c_char, *const c_char, ...);
    type Replicate = unsafe extern "C" fn(RawContext, *const c_char, *const c_char, ...) -> c_int;
    type HashGet = unsafe extern "C" fn(RawKey, c_int, ...) -> c_int;
    // SAFETY: written once, before any test calls one of the functions.
    unsafe {
        raw::RedisModule_HashGet =
            Some(transmute::<*const c_void, HashGet>(hash_get as *const c_void));
        raw::RedisModule_Log = Some(transmute::<*const c_void, Log>(log as *const c_void));
        raw::RedisModule_Replicate =
            Some(transmute::<*const c_void, Replicate>(replicate as *const c_void));
    }
}

server_functions! {
    fn RedisModule_CachedMicroseconds() -> c_longlong { NOW_US.get() }
    fn RedisModule_IsKeysPositionRequest(_ctx: RawContext) -> c_int { 0 }

    fn RedisModule_CreateString(_ctx: RawContext, start: *const c_char, len: usize) -> RawString {
        string(from_raw_parts(start.cast(), len))
    }
    fn RedisModule_FreeString(_ctx: RawContext, string: RawString) {
        drop(Box::from_raw(string.cast::<Vec<u8>>()))
    }
    fn RedisModule_StringPtrLen(string: *const raw::RedisModuleString, len: *mut usize) -> *const c_char {
        *len = bytes(string).len();
        bytes(string).as_ptr().cast()
    }

    fn RedisModule_WrongArity(ctx: RawContext) -> c_int { reply(ctx, ReplyElement::WrongArity) }
    fn RedisModule_ReplyWithArray(ctx: RawContext, len: c_long) -> c_int { reply(ctx, ReplyElement::Array(len)) }
    fn RedisModule_ReplyWithLongLong(ctx: RawContext, value: c_longlong) -> c_int {
        reply(ctx, ReplyElement::Integer(value))
    }
    fn RedisModule_ReplyWithError(ctx: RawContext, text: *const c_char) -> c_int {
        reply(ctx, ReplyElement::Error(c_text(text)))
    }
    fn RedisModule_ReplyWithStringBuffer(ctx: RawContext, start: *const c_char, len: usize) -> c_int {
        reply(ctx, ReplyElement::Text(text(from_raw_parts(start.cast(), len))))
    }
    fn RedisModule_ReplyWithNull(ctx: RawContext) -> c_int { reply(ctx, ReplyElement::Nil) }

    fn RedisModule_GetSelectedDb(_ctx: RawContext) -> c_int { 0 }
    fn RedisModule_SelectDb(_ctx: RawContext, _db: c_int) -> c_int { OK }
    fn RedisModule_GetContextFlags(_ctx: RawContext) -> c_int { raw::REDISMODULE_CTX_FLAGS_MASTER as c_int }
    fn RedisModule_AvoidReplicaTraffic() -> c_int { 0 }
    fn RedisModule_GetClientId(_ctx: RawContext) -> u64 { 1 }
    fn RedisModule_GetClientInfoById(_info: *mut c_void, _client: u64) -> c_int { OK }
    fn RedisModule_GetRandomBytes(to: *mut u8, len: usize) { std::ptr::write_bytes(to, 7, len) }

    fn RedisModule_BlockClientOnKeys(
        _ctx: RawContext,
        _reply: raw::RedisModuleCmdFunc,
        _timeout: raw::RedisModuleCmdFunc,
        _free: Option<unsafe extern "C" fn(RawContext, *mut c_void)>,
        _timeout_ms: c_longlong,
        _keys: *mut RawString,
        _number: c_int,
        _data: *mut c_void,
    ) -> RawClient {
        NonNull::<u64>::dangling().as_ptr().cast()
    }
    fn RedisModule_SetDisconnectCallback(_client: RawClient, _callback: raw::RedisModuleDisconnectFunc) {}
    fn RedisModule_UnblockClient(_client: RawClient, _data: *mut c_void) -> c_int {
        UNBLOCKED.set(UNBLOCKED.get() + 1);
        OK
    }
    fn RedisModule_CreateTimer(
        _ctx: RawContext,
        _after_ms: c_longlong,
        _callback: raw::RedisModuleTimerProc,
        _data: *mut c_void,
    ) -> raw::RedisModuleTimerID {
        1
    }
    fn RedisModule_StopTimer(_ctx: RawContext, _timer: raw::RedisModuleTimerID, _data: *mut *mut c_void) -> c_int { OK }
    fn RedisModule_SubscribeToServerEvent(
        _ctx: RawContext,
        _event: raw::RedisModuleEvent,
        _callback: raw::RedisModuleEventCallback,
    ) -> c_int {
        OK
    }

    fn RedisModule_OpenKey(ctx: RawContext, name: RawString, mode: c_int) -> RawKey {
        let (server, name) = (server(ctx), bytes(name));
        let writes = mode & raw::REDISMODULE_WRITE as c_int != 0;
        let is_missing = match server.keys.get(name) {
            Some(key) => matches!(key.value, FakeValue::Missing),
            None => true,
        };
        if if writes { server.keys_in_use } else { is_missing } {
            return null_mut();
        }
        let key: *mut FakeKey = &mut **server.keys.entry(name.clone()).or_default();
        OPEN_KEYS.set(OPEN_KEYS.get() + 1);
        (*key).handles += 1;
        Box::into_raw(Box::new(OpenKey { key, at: 0, max: 0.0 })).cast()
    }
    fn RedisModule_CloseKey(key: RawKey) {
        OPEN_KEYS.set(OPEN_KEYS.get() - 1);
        opened(key).1.handles -= 1;
        drop(Box::from_raw(key.cast::<OpenKey>()))
    }
    fn RedisModule_NotifyKeyspaceEvent(ctx: RawContext, _class: c_int, _event: *const c_char, _key: RawString) -> c_int {
        server(ctx).open_when_notified.push(OPEN_KEYS.get());
        OK
    }
    fn RedisModule_KeyType(key: RawKey) -> c_int {
        if key.is_null() {
            return raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
        }
        match opened(key).1.value {
            FakeValue::Missing => raw::REDISMODULE_KEYTYPE_EMPTY as c_int,
            FakeValue::String(_) => raw::REDISMODULE_KEYTYPE_STRING as c_int,
            FakeValue::Zset(_) => raw::REDISMODULE_KEYTYPE_ZSET as c_int,
            FakeValue::Hash(_) => raw::REDISMODULE_KEYTYPE_HASH as c_int,
        }
    }
    fn RedisModule_DeleteKey(key: RawKey) -> c_int {
        opened(key).1.value = FakeValue::Missing;
        OK
    }
    fn RedisModule_ValueLength(key: RawKey) -> usize {
        if key.is_null() {
            return 0;
        }
        match &opened(key).1.value {
            FakeValue::Missing => 0,
            FakeValue::String(value) => value.len(),
            FakeValue::Zset(elements) => elements.len(),
            FakeValue::Hash(fields) => fields.len(),
        }
    }
    fn RedisModule_GetAbsExpire(key: RawKey) -> c_longlong { opened(key).1.expires_at_ms }
    fn RedisModule_SetAbsExpire(key: RawKey, at_ms: c_longlong) -> c_int {
        opened(key).1.expires_at_ms = at_ms;
        OK
    }
    fn RedisModule_SignalModifiedKey(ctx: RawContext, _name: RawString) -> c_int {
        server(ctx).modified += 1;
        OK
    }

    fn RedisModule_StringDMA(key: RawKey, len: *mut usize, _mode: c_int) -> *mut c_char {
        let key = opened(key).1;
        key.handles_of_string = key.handles_of_string.max(key.handles);
        let FakeValue::String(value) = &mut key.value else {
            *len = 0;
            return c"".as_ptr().cast_mut();
        };
        *len = value.len();
        value.as_mut_ptr().cast()
    }
    fn RedisModule_StringTruncate(key: RawKey, len: usize) -> c_int {
        let value = &mut opened(key).1.value;
        match value {
            FakeValue::String(bytes) => bytes.resize(len, 0),
            FakeValue::Missing => *value = FakeValue::String(vec![0; len]),
            FakeValue::Zset(_) | FakeValue::Hash(_) => return ERR,
        }
        OK
    }

    fn RedisModule_ZsetAdd(key: RawKey, score: f64, member: RawString, _flags: *mut c_int) -> c_int {
        let value = &mut opened(key).1.value;
        if let FakeValue::Missing = value {
            *value = FakeValue::Zset(Vec::new());
        }
        let Some(elements) = elements(key) else { return ERR };
        elements.retain(|(_, old)| old != bytes(member));
        elements.push((score, bytes(member).clone()));
        elements.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        OK
    }
    fn RedisModule_ZsetRem(key: RawKey, member: RawString, _deleted: *mut c_int) -> c_int {
        let Some(elements) = elements(key) else { return ERR };
        elements.retain(|(_, old)| old != bytes(member));
        OK
    }
    fn RedisModule_ZsetFirstInScoreRange(key: RawKey, min: f64, max: f64, _minex: c_int, _maxex: c_int) -> c_int {
        let Some(elements) = elements(key) else { return ERR };
        let at = elements.iter().position(|(score, _)| *score >= min).unwrap_or(elements.len());
        (opened(key).0.at, opened(key).0.max) = (at, max);
        OK
    }
    fn RedisModule_ZsetLastInScoreRange(key: RawKey, _min: f64, max: f64, _minex: c_int, _maxex: c_int) -> c_int {
        let Some(elements) = elements(key) else { return ERR };
        let at = elements.iter().rposition(|(score, _)| *score <= max).unwrap_or(elements.len());
        (opened(key).0.at, opened(key).0.max) = (at, max);
        OK
    }
    fn RedisModule_ZsetRangeStop(_key: RawKey) {}
    fn RedisModule_ZsetRangeEndReached(key: RawKey) -> c_int {
        let OpenKey { at, max, .. } = opened(key).0;
        let current = elements(key).and_then(|elements| elements.get(*at));
        c_int::from(!current.is_some_and(|(score, _)| *score <= *max))
    }
    fn RedisModule_ZsetRangeNext(key: RawKey) -> c_int {
        let OpenKey { at, max, .. } = opened(key).0;
        *at += 1;
        let current = elements(key).and_then(|elements| elements.get(*at));
        c_int::from(current.is_some_and(|(score, _)| *score <= *max))
    }
    fn RedisModule_ZsetRangeCurrentElement(key: RawKey, score: *mut f64) -> RawString {
        let at = opened(key).0.at;
        let Some((found, member)) = elements(key).and_then(|elements| elements.get(at)) else {
            return null_mut();
        };
        *score = *found;
        string(member)
    }
}

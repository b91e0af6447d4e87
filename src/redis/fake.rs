//! A server for unit tests: a few keys in fixed places, behind the functions of the module API that the commands use.
//! Its own memory comes from malloc, as a server's does, so that a test can count what the module allocates.
//!
//! To serve a command that calls more functions: write the function below and name it in [`install`].

use super::api::{ERR, OK};
use super::call::EntryPoint;
use redis_module::raw;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_longlong, c_void, CStr};
use std::mem::transmute;
use std::ptr::{null_mut, NonNull};
use std::sync::Once;

type Ctx = *mut raw::RedisModuleCtx;
type KeyHandle = *mut raw::RedisModuleKey;
type TextHandle = *mut raw::RedisModuleString;

/// Bytes in a fixed place.
#[derive(Clone, Copy)]
struct Bytes {
    len: usize,
    bytes: [u8; 128],
}

impl Bytes {
    const EMPTY: Bytes = Bytes { len: 0, bytes: [0; 128] };

    fn of(text: &[u8]) -> Bytes {
        let mut bytes = Bytes { len: text.len(), ..Bytes::EMPTY };
        bytes.bytes[..text.len()].copy_from_slice(text);
        bytes
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(self.as_slice()).into_owned()
    }
}

/// An element of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyElement {
    Array(i64),
    Integer(i64),
    Text(String),
    Error(String),
    Nil,
    WrongArity,
}

#[derive(Clone, Copy)]
enum Written {
    Array(i64),
    Integer(i64),
    Text(Bytes),
    Error(Bytes),
    Nil,
    WrongArity,
}

#[expect(clippy::large_enum_variant, reason = "the elements lie in a fixed place")]
#[derive(Clone, Copy)]
enum FakeValue {
    Missing,
    String(Bytes),
    /// The elements in order, and how many there are.
    Zset([(f64, Bytes); 16], usize),
}

#[derive(Clone, Copy)]
struct FakeSlot {
    name: Bytes,
    value: FakeValue,
    expires_at: i64,
}

/// A list of bounded length.
struct List<T, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> List<T, N> {
    const EMPTY: List<T, N> = List { items: [None; N], len: 0 };

    fn push(&mut self, item: T) {
        self.items[self.len] = Some(item);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.items.iter().copied().flatten()
    }
}

/// The server. A context points to it.
pub struct FakeServer {
    keys: [FakeSlot; 9],
    replies: List<Written, 64>,
    replicated: List<Bytes, 16>,
    log: List<Bytes, 4>,
    asks_for_keys: bool,
    key_positions: List<(c_int, c_int), 16>,
    modified: usize,
    in_use: bool,
    unblocked: usize,
}

/// An open key.
struct OpenKey {
    slot: *mut FakeSlot,
    /// The element that a search has come to.
    at: usize,
    /// The highest score of the search.
    max: f64,
}

thread_local! {
    static NOW_US: Cell<i64> = const { Cell::new(0) };
    static UNBLOCKED: Cell<usize> = const { Cell::new(0) };
}

impl FakeServer {
    /// A server without keys, at this time.
    pub fn at(now_us: i64) -> Box<FakeServer> {
        install();
        NOW_US.set(now_us);
        let missing = FakeSlot { name: Bytes::EMPTY, value: FakeValue::Missing, expires_at: -1 };
        Box::new(FakeServer {
            keys: [missing; 9],
            replies: List::EMPTY,
            replicated: List::EMPTY,
            log: List::EMPTY,
            asks_for_keys: false,
            key_positions: List::EMPTY,
            modified: 0,
            in_use: false,
            unblocked: 0,
        })
    }

    /// Lets the next calls be asked where their keys are, instead of being carried out.
    pub fn ask_for_keys(&mut self) {
        self.asks_for_keys = true;
    }

    /// The positions of keys that were told, with their flags.
    pub fn key_positions(&self) -> Vec<(c_int, c_int)> {
        self.key_positions.iter().collect()
    }

    /// Puts a string under a key.
    pub fn set(&mut self, key: &str, value: &[u8]) {
        let slot = self.keys.iter_mut().find(|slot| slot.name.len == 0).unwrap();
        slot.name = Bytes::of(key.as_bytes());
        slot.value = FakeValue::String(Bytes::of(value));
    }

    /// The string under a key.
    pub fn get(&self, key: &str) -> Option<String> {
        let slot = self.keys.iter().find(|slot| slot.name.as_slice() == key.as_bytes())?;
        match &slot.value {
            FakeValue::String(value) => Some(value.text()),
            FakeValue::Missing | FakeValue::Zset(..) => None,
        }
    }

    /// The names of the commands that were replicated.
    pub fn replicated(&self) -> Vec<String> {
        self.replicated.iter().map(|name| name.text()).collect()
    }

    /// The lines that were logged.
    pub fn log(&self) -> Vec<String> {
        self.log.iter().map(|line| line.text()).collect()
    }

    /// Has the server use all keys, and let nobody write them, or no longer.
    pub fn use_keys(&mut self, in_use: bool) {
        self.in_use = in_use;
    }

    /// How many waits were ended in calls to this server.
    pub fn unblocked(&self) -> usize {
        self.unblocked
    }

    /// How often a key was told to be modified.
    pub fn modified(&self) -> usize {
        self.modified
    }

    /// Makes a call; what `around` makes of it, and what was replied.
    pub fn call<T>(
        &mut self,
        entry: EntryPoint,
        words: &[&str],
        around: impl FnOnce(&mut dyn FnMut()) -> T,
    ) -> (T, Vec<ReplyElement>) {
        self.replies = List::EMPTY;
        let mut arguments: Vec<TextHandle> =
            words.iter().map(|word| string(word.as_bytes())).collect();
        let ctx: Ctx = std::ptr::from_mut(self).cast();
        let mut work = || {
            let argc = c_int::try_from(arguments.len()).unwrap();
            // SAFETY: the functions below know this context and these strings.
            assert_eq!(unsafe { entry(ctx, arguments.as_mut_ptr(), argc) }, OK);
        };
        let before = UNBLOCKED.get();
        let result = around(&mut work);
        self.unblocked += UNBLOCKED.get() - before;
        for argument in arguments {
            // SAFETY: made above, and nobody keeps it.
            unsafe { free_string(ctx, argument) };
        }
        let replies = self.replies.iter().map(|reply| match reply {
            Written::Array(len) => ReplyElement::Array(len),
            Written::Integer(value) => ReplyElement::Integer(value),
            Written::Text(text) => ReplyElement::Text(text.text()),
            Written::Error(text) => ReplyElement::Error(text.text()),
            Written::Nil => ReplyElement::Nil,
            Written::WrongArity => ReplyElement::WrongArity,
        });
        (result, replies.collect())
    }
}

/// Puts the functions below in the place of the server's.
fn install() {
    static ONCE: Once = Once::new();
    type Log = unsafe extern "C" fn(Ctx, *const c_char, *const c_char, ...);
    type Replicate = unsafe extern "C" fn(Ctx, *const c_char, *const c_char, ...) -> c_int;
    ONCE.call_once(|| {
        // SAFETY: this is written once, before any test calls one of the functions. Those two that take any number of
        // arguments read the first ones only, which are passed the same way on the systems that we build for.
        unsafe {
            raw::RedisModule_Log = Some(transmute::<*const c_void, Log>(log as *const c_void));
            raw::RedisModule_Replicate =
                Some(transmute::<*const c_void, Replicate>(replicate as *const c_void));
            raw::RedisModule_CachedMicroseconds = Some(now);
            raw::RedisModule_IsKeysPositionRequest = Some(is_keys_position_request);
            raw::RedisModule_KeyAtPosWithFlags = Some(key_at);
            raw::RedisModule_CreateString = Some(create_string);
            raw::RedisModule_FreeString = Some(free_string);
            raw::RedisModule_StringPtrLen = Some(string_ptr_len);
            raw::RedisModule_WrongArity = Some(wrong_arity);
            raw::RedisModule_ReplyWithArray = Some(reply_array);
            raw::RedisModule_ReplyWithLongLong = Some(reply_integer);
            raw::RedisModule_ReplyWithError = Some(reply_error);
            raw::RedisModule_ReplyWithStringBuffer = Some(reply_text);
            raw::RedisModule_ReplyWithNull = Some(reply_nil);
            raw::RedisModule_GetSelectedDb = Some(selected_db);
            raw::RedisModule_SelectDb = Some(select_db);
            raw::RedisModule_GetContextFlags = Some(context_flags);
            raw::RedisModule_AvoidReplicaTraffic = Some(avoid_replica_traffic);
            raw::RedisModule_GetClientId = Some(client_id);
            raw::RedisModule_GetClientInfoById = Some(client_info);
            raw::RedisModule_GetRandomBytes = Some(random_bytes);
            raw::RedisModule_BlockClientOnKeys = Some(block_client);
            raw::RedisModule_SetDisconnectCallback = Some(set_disconnect_callback);
            raw::RedisModule_UnblockClient = Some(unblock_client);
            raw::RedisModule_CreateTimer = Some(create_timer);
            raw::RedisModule_StopTimer = Some(stop_timer);
            raw::RedisModule_SubscribeToServerEvent = Some(subscribe);
            raw::RedisModule_OpenKey = Some(open_key);
            raw::RedisModule_CloseKey = Some(close_key);
            raw::RedisModule_KeyType = Some(key_type);
            raw::RedisModule_DeleteKey = Some(delete_key);
            raw::RedisModule_ValueLength = Some(value_length);
            raw::RedisModule_StringDMA = Some(string_dma);
            raw::RedisModule_StringTruncate = Some(string_truncate);
            raw::RedisModule_GetAbsExpire = Some(get_abs_expire);
            raw::RedisModule_SetAbsExpire = Some(set_abs_expire);
            raw::RedisModule_SignalModifiedKey = Some(signal_modified_key);
            raw::RedisModule_ZsetAdd = Some(zset_add);
            raw::RedisModule_ZsetRem = Some(zset_remove);
            raw::RedisModule_ZsetFirstInScoreRange = Some(zset_first);
            raw::RedisModule_ZsetLastInScoreRange = Some(zset_last);
            raw::RedisModule_ZsetRangeStop = Some(zset_stop);
            raw::RedisModule_ZsetRangeEndReached = Some(zset_end_reached);
            raw::RedisModule_ZsetRangeNext = Some(zset_next);
            raw::RedisModule_ZsetRangeCurrentElement = Some(zset_current);
        }
    });
}

/// # Safety
/// `ctx` is the context of [`FakeServer::call`], and nobody else uses the server now.
unsafe fn server<'a>(ctx: Ctx) -> &'a mut FakeServer {
    // SAFETY: the caller's promise.
    unsafe { &mut *ctx.cast::<FakeServer>() }
}

/// # Safety
/// `key` came from [`open_key`] and is not null.
unsafe fn opened<'a>(key: KeyHandle) -> (&'a mut OpenKey, &'a mut FakeSlot) {
    // SAFETY: the caller's promise; the slot lives in the server.
    unsafe {
        let key = &mut *key.cast::<OpenKey>();
        let slot = &mut *key.slot;
        (key, slot)
    }
}

/// Memory that is the server's and not the module's.
fn allocate<T>(value: T) -> *mut T {
    // SAFETY: malloc aligns for every type of this file.
    let place = unsafe { libc::malloc(size_of::<T>()) }.cast::<T>();
    let place = NonNull::new(place).unwrap().as_ptr();
    // SAFETY: the place is large enough, and ours.
    unsafe { place.write(value) };
    place
}

fn string(text: &[u8]) -> TextHandle {
    allocate(Bytes::of(text)).cast()
}

/// # Safety
/// `text` came from [`string`].
unsafe fn bytes<'a>(text: *const raw::RedisModuleString) -> &'a Bytes {
    // SAFETY: the caller's promise.
    unsafe { &*text.cast::<Bytes>() }
}

/// # Safety
/// `text` ends in NUL.
unsafe fn c_bytes(text: *const c_char) -> Bytes {
    // SAFETY: the caller's promise.
    Bytes::of(unsafe { CStr::from_ptr(text) }.to_bytes())
}

unsafe extern "C" fn log(
    ctx: Ctx,
    _level: *const c_char,
    _format: *const c_char,
    line: *const c_char,
) {
    if !ctx.is_null() {
        // SAFETY: the module passes its context and a line.
        unsafe { server(ctx).log.push(c_bytes(line)) };
    }
}

unsafe extern "C" fn replicate(ctx: Ctx, command: *const c_char, _format: *const c_char) -> c_int {
    // SAFETY: the module passes its context and a name.
    unsafe { server(ctx).replicated.push(c_bytes(command)) };
    OK
}

unsafe extern "C" fn now() -> c_longlong {
    NOW_US.get()
}

unsafe extern "C" fn is_keys_position_request(ctx: Ctx) -> c_int {
    // SAFETY: the module passes its context.
    c_int::from(unsafe { server(ctx) }.asks_for_keys)
}

unsafe extern "C" fn key_at(ctx: Ctx, at: c_int, flags: c_int) {
    // SAFETY: the module passes its context.
    unsafe { server(ctx) }.key_positions.push((at, flags));
}

unsafe extern "C" fn create_string(_ctx: Ctx, start: *const c_char, len: usize) -> TextHandle {
    // SAFETY: the module passes `len` bytes.
    string(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

unsafe extern "C" fn free_string(_ctx: Ctx, text: TextHandle) {
    // SAFETY: made by `string`.
    unsafe { libc::free(text.cast()) };
}

unsafe extern "C" fn string_ptr_len(
    text: *const raw::RedisModuleString,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: made by `string`; the module passes a place for the length.
    unsafe {
        *len = bytes(text).len;
        bytes(text).bytes.as_ptr().cast()
    }
}

/// # Safety
/// As for [`server`].
unsafe fn reply(ctx: Ctx, reply: Written) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { server(ctx) }.replies.push(reply);
    OK
}

unsafe extern "C" fn wrong_arity(ctx: Ctx) -> c_int {
    // SAFETY: the module passes its context.
    unsafe { reply(ctx, Written::WrongArity) }
}

unsafe extern "C" fn reply_array(ctx: Ctx, len: c_long) -> c_int {
    // SAFETY: the module passes its context.
    unsafe { reply(ctx, Written::Array(len)) }
}

unsafe extern "C" fn reply_integer(ctx: Ctx, value: c_longlong) -> c_int {
    // SAFETY: the module passes its context.
    unsafe { reply(ctx, Written::Integer(value)) }
}

unsafe extern "C" fn reply_error(ctx: Ctx, text: *const c_char) -> c_int {
    // SAFETY: the module passes its context and a text.
    unsafe { reply(ctx, Written::Error(c_bytes(text))) }
}

unsafe extern "C" fn reply_text(ctx: Ctx, start: *const c_char, len: usize) -> c_int {
    // SAFETY: the module passes its context and `len` bytes.
    unsafe {
        let text = Bytes::of(std::slice::from_raw_parts(start.cast(), len));
        reply(ctx, Written::Text(text))
    }
}

unsafe extern "C" fn reply_nil(ctx: Ctx) -> c_int {
    // SAFETY: the module passes its context.
    unsafe { reply(ctx, Written::Nil) }
}

unsafe extern "C" fn select_db(_ctx: Ctx, _db: c_int) -> c_int {
    OK
}

unsafe extern "C" fn context_flags(_ctx: Ctx) -> c_int {
    raw::REDISMODULE_CTX_FLAGS_MASTER as c_int
}

/// Every call came over a connection.
unsafe extern "C" fn client_info(_info: *mut c_void, _client: u64) -> c_int {
    OK
}

unsafe extern "C" fn avoid_replica_traffic() -> c_int {
    0
}

unsafe extern "C" fn client_id(_ctx: Ctx) -> u64 {
    1
}

unsafe extern "C" fn random_bytes(to: *mut u8, len: usize) {
    // SAFETY: the module passes a place of this length.
    unsafe { std::ptr::write_bytes(to, 7, len) };
}

type BlockedHandle = *mut raw::RedisModuleBlockedClient;

unsafe extern "C" fn block_client(
    _ctx: Ctx,
    _reply: raw::RedisModuleCmdFunc,
    _timeout: raw::RedisModuleCmdFunc,
    _free: Option<unsafe extern "C" fn(Ctx, *mut c_void)>,
    _timeout_ms: c_longlong,
    _keys: *mut TextHandle,
    _number: c_int,
    _data: *mut c_void,
) -> BlockedHandle {
    NonNull::<u64>::dangling().as_ptr().cast()
}

unsafe extern "C" fn set_disconnect_callback(
    _blocked: BlockedHandle,
    _callback: raw::RedisModuleDisconnectFunc,
) {
}

unsafe extern "C" fn unblock_client(_blocked: BlockedHandle, _data: *mut c_void) -> c_int {
    UNBLOCKED.set(UNBLOCKED.get() + 1);
    OK
}

unsafe extern "C" fn create_timer(
    _ctx: Ctx,
    _after_ms: c_longlong,
    _callback: raw::RedisModuleTimerProc,
    _data: *mut c_void,
) -> raw::RedisModuleTimerID {
    1
}

unsafe extern "C" fn stop_timer(
    _ctx: Ctx,
    _timer: raw::RedisModuleTimerID,
    _data: *mut *mut c_void,
) -> c_int {
    OK
}

unsafe extern "C" fn subscribe(
    _ctx: Ctx,
    _event: raw::RedisModuleEvent,
    _callback: raw::RedisModuleEventCallback,
) -> c_int {
    OK
}

unsafe extern "C" fn open_key(ctx: Ctx, name: TextHandle, mode: c_int) -> KeyHandle {
    // SAFETY: the module passes its context and a string.
    let (server, name) = unsafe { (server(ctx), bytes(name)) };
    if server.in_use && mode & raw::REDISMODULE_WRITE as c_int != 0 {
        return null_mut();
    }
    let named = |slot: &&mut FakeSlot| slot.name.as_slice() == name.as_slice();
    if let Some(slot) = server.keys.iter_mut().find(named) {
        let missing = matches!(slot.value, FakeValue::Missing);
        if missing && mode & raw::REDISMODULE_WRITE as c_int == 0 {
            return null_mut();
        }
        return allocate(OpenKey { slot, at: 0, max: 0.0 }).cast();
    }
    if mode & raw::REDISMODULE_WRITE as c_int == 0 {
        return null_mut();
    }
    let slot = server.keys.iter_mut().find(|slot| slot.name.len == 0).unwrap();
    slot.name = *name;
    allocate(OpenKey { slot, at: 0, max: 0.0 }).cast()
}

unsafe extern "C" fn close_key(key: KeyHandle) {
    // SAFETY: made by `open_key`.
    unsafe { libc::free(key.cast()) };
}

unsafe extern "C" fn key_type(key: KeyHandle) -> c_int {
    if key.is_null() {
        return raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
    }
    // SAFETY: made by `open_key`.
    let kind = match unsafe { opened(key) }.1.value {
        FakeValue::Missing => raw::REDISMODULE_KEYTYPE_EMPTY,
        FakeValue::String(_) => raw::REDISMODULE_KEYTYPE_STRING,
        FakeValue::Zset(..) => raw::REDISMODULE_KEYTYPE_ZSET,
    };
    kind as c_int
}

unsafe extern "C" fn delete_key(key: KeyHandle) -> c_int {
    // SAFETY: made by `open_key`.
    unsafe { opened(key) }.1.value = FakeValue::Missing;
    OK
}

unsafe extern "C" fn value_length(key: KeyHandle) -> usize {
    if key.is_null() {
        return 0;
    }
    // SAFETY: made by `open_key`.
    match unsafe { opened(key) }.1.value {
        FakeValue::Missing => 0,
        FakeValue::String(value) => value.len,
        FakeValue::Zset(_, len) => len,
    }
}

unsafe extern "C" fn string_dma(key: KeyHandle, len: *mut usize, _mode: c_int) -> *mut c_char {
    // SAFETY: made by `open_key`; the module passes a place for the length.
    unsafe {
        match &mut opened(key).1.value {
            FakeValue::String(value) => {
                *len = value.len;
                value.bytes.as_mut_ptr().cast()
            }
            FakeValue::Missing => {
                *len = 0;
                c"".as_ptr().cast_mut()
            }
            FakeValue::Zset(..) => null_mut(),
        }
    }
}

unsafe extern "C" fn string_truncate(key: KeyHandle, len: usize) -> c_int {
    // SAFETY: made by `open_key`.
    let slot = unsafe { opened(key) }.1;
    match &mut slot.value {
        FakeValue::String(value) => value.len = len,
        FakeValue::Missing => slot.value = FakeValue::String(Bytes { len, ..Bytes::EMPTY }),
        FakeValue::Zset(..) => return ERR,
    }
    OK
}

unsafe extern "C" fn get_abs_expire(key: KeyHandle) -> c_longlong {
    // SAFETY: made by `open_key`.
    unsafe { opened(key) }.1.expires_at
}

unsafe extern "C" fn set_abs_expire(key: KeyHandle, at_ms: c_longlong) -> c_int {
    // SAFETY: made by `open_key`.
    unsafe { opened(key) }.1.expires_at = at_ms;
    OK
}

unsafe extern "C" fn selected_db(_ctx: Ctx) -> c_int {
    0
}

unsafe extern "C" fn signal_modified_key(ctx: Ctx, _name: TextHandle) -> c_int {
    // SAFETY: the module passes its context.
    unsafe { server(ctx) }.modified += 1;
    OK
}

unsafe extern "C" fn zset_add(
    key: KeyHandle,
    score: f64,
    member: TextHandle,
    _flags: *mut c_int,
) -> c_int {
    // SAFETY: made by `open_key` and `string`.
    let (slot, member) = unsafe { (opened(key).1, *bytes(member)) };
    if let FakeValue::Missing = slot.value {
        slot.value = FakeValue::Zset([(0.0, Bytes::EMPTY); 16], 0);
    }
    let FakeValue::Zset(elements, len) = &mut slot.value else { return ERR };
    let same = |old: &(f64, Bytes)| old.1.as_slice() == member.as_slice();
    if let Some(at) = elements[..*len].iter().position(same) {
        elements[at..*len].rotate_left(1);
        *len -= 1;
    }
    elements[*len] = (score, member);
    *len += 1;
    elements[..*len].sort_unstable_by(|one, other| {
        one.0.total_cmp(&other.0).then(one.1.as_slice().cmp(other.1.as_slice()))
    });
    OK
}

unsafe extern "C" fn zset_remove(
    key: KeyHandle,
    member: TextHandle,
    _deleted: *mut c_int,
) -> c_int {
    // SAFETY: made by `open_key` and `string`.
    let (slot, member) = unsafe { (opened(key).1, *bytes(member)) };
    let FakeValue::Zset(elements, len) = &mut slot.value else { return ERR };
    if let Some(at) = elements[..*len].iter().position(|one| one.1.as_slice() == member.as_slice())
    {
        elements[at..*len].rotate_left(1);
        *len -= 1;
    }
    OK
}

unsafe extern "C" fn zset_first(
    key: KeyHandle,
    min: f64,
    max: f64,
    exclusive: c_int,
    _: c_int,
) -> c_int {
    // SAFETY: made by `open_key`.
    let (key, slot) = unsafe { opened(key) };
    let FakeValue::Zset(elements, len) = &slot.value else { return ERR };
    let from = |score: f64| score > min || (exclusive == 0 && score == min);
    key.at = elements[..*len].iter().position(|one| from(one.0)).unwrap_or(*len);
    key.max = max;
    OK
}

unsafe extern "C" fn zset_last(key: KeyHandle, _min: f64, max: f64, _: c_int, _: c_int) -> c_int {
    // SAFETY: made by `open_key`.
    let (key, slot) = unsafe { opened(key) };
    let FakeValue::Zset(elements, len) = &slot.value else { return ERR };
    key.at = elements[..*len].iter().rposition(|one| one.0 <= max).unwrap_or(*len);
    key.max = max;
    OK
}

unsafe extern "C" fn zset_stop(_key: KeyHandle) {}

unsafe extern "C" fn zset_end_reached(key: KeyHandle) -> c_int {
    // SAFETY: made by `open_key`.
    let (key, slot) = unsafe { opened(key) };
    let FakeValue::Zset(elements, len) = &slot.value else { return 1 };
    c_int::from(!elements[..*len].get(key.at).is_some_and(|one| one.0 <= key.max))
}

unsafe extern "C" fn zset_next(key: KeyHandle) -> c_int {
    // SAFETY: made by `open_key`.
    unsafe { opened(key) }.0.at += 1;
    // SAFETY: as above.
    c_int::from(unsafe { zset_end_reached(key) } == 0)
}

unsafe extern "C" fn zset_current(key: KeyHandle, score: *mut f64) -> TextHandle {
    // SAFETY: made by `open_key`; the module passes a place for the score.
    unsafe {
        let (key, slot) = opened(key);
        let FakeValue::Zset(elements, _) = &slot.value else { return null_mut() };
        let (of, member) = elements[key.at];
        *score = of;
        string(member.as_slice())
    }
}

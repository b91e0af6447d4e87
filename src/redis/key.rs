//! Keys. Every method that changes a key also replicates the plain command with the same effect, so that a change and what
//! replicas receive cannot differ. What the key API cannot do, removing a range of elements, is a command.

use super::api::{api, is_from_7, RawString, OK};
use super::context::{CallReply, Context, KeyName, UNTOUCHED};
use super::text::OwnedString;
use super::under_lock::UnderLock;
use redis_module::raw;
use std::ffi::{c_int, c_longlong, c_void, CStr};
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;

/// From this many elements on, a range is removed by one command, and a whole set is freed in the background.
pub const MANY: usize = 1_024;

#[derive(Clone, Copy)]
pub enum KeyValue<'k, 'c> {
    Empty,
    String(StringValue<'k, 'c>),
    Zset,
    Hash,
    /// A value of another type, perhaps of a type that only later servers have.
    Other,
}

#[derive(Clone, Copy)]
pub struct StringValue<'k, 'c>(&'k ReadKey<'c>);

impl<'k> StringValue<'k, '_> {
    /// Returns the bytes of the string. Reading them makes the server store numbers and short strings in another form, so
    /// call it only if the string may be ours.
    pub fn bytes(self) -> &'k [u8] {
        let (mut len, read) = (0, raw::REDISMODULE_READ as c_int);
        // SAFETY: the key is open and holds a string. The pointer is valid until the key is written or closed, which needs
        // `&mut` of the key or the key itself.
        unsafe {
            let start = api!(RedisModule_StringDMA(self.0.raw, &mut len, read));
            if start.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(start.cast(), len)
        }
    }
}

#[derive(Debug)]
pub struct Element {
    pub score: f64,
    pub member: OwnedString,
}

/// A range of scores, including both ends.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    pub from: f64,
    pub to: f64,
}

/// A key that is open for reading. A missing key holds nothing.
pub struct ReadKey<'c> {
    /// Null for a missing key.
    raw: *mut raw::RedisModuleKey,
    ctx: Context<'c>,
    name: KeyName<'c>,
}

/// A key that is open for reading and writing. What changes it must [`close`](WriteKey::close) it.
pub struct WriteKey<'c> {
    key: ReadKey<'c>,
    words: &'static UnderLock<ReplicatedWords>,
    changed: bool,
}

/// Words of replicated commands. The server copies no string that it is passed, so these are created once.
pub struct ReplicatedWords {
    /// The option of SET before the time at which the key expires.
    pxat: OwnedString,
    /// The score of reservations.
    minus_inf: OwnedString,
}

impl Default for ReplicatedWords {
    fn default() -> ReplicatedWords {
        let (pxat, minus_inf) = (OwnedString::new(b"PXAT"), OwnedString::new(b"-inf"));
        ReplicatedWords { pxat, minus_inf }
    }
}

/// Replicates a command on an open key. The format describes the arguments after the key's name.
macro_rules! replicate {
    ($key:expr, $command:expr, $format:literal $(, $argument:expr)*) => {
        // SAFETY: context, name and arguments are live, and the format has an entry for each of them.
        unsafe {
            api!(RedisModule_Replicate(
                $key.ctx.raw(),
                $command.as_ptr(),
                concat!("s", $format, "\0").as_ptr().cast(),
                $key.name.raw()
                $(, $argument)*
            ))
        }
    };
}

/// Marks a key as used that was opened under a [polled](KeyName::polled) name, which does not count as a use.
pub fn touch(ctx: Context, name: KeyName) {
    if name.is_polled() {
        // SAFETY: the same string, as live as before.
        let used = unsafe { KeyName::from_argument(name.raw()) };
        drop(open(ctx, used, raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOSTATS));
    }
}

fn open<'c>(ctx: Context<'c>, name: KeyName<'c>, mode: u32) -> ReadKey<'c> {
    // SAFETY: context and name are live.
    let raw = unsafe { api!(RedisModule_OpenKey(ctx.raw(), name.raw(), name.open_mode(mode))) };
    ReadKey { raw: raw.cast(), ctx, name }
}

/// Returns whether a key exists, without counting as a use or in the server's statistics.
pub fn is_here(ctx: Context, name: KeyName) -> bool {
    let traceless =
        UNTOUCHED | raw::REDISMODULE_OPEN_KEY_NONOTIFY | raw::REDISMODULE_OPEN_KEY_NOEXPIRE;
    !matches!(open(ctx, name, raw::REDISMODULE_READ | traceless).value(), KeyValue::Empty)
}

impl<'c> ReadKey<'c> {
    pub fn open(ctx: Context<'c>, name: KeyName<'c>) -> ReadKey<'c> {
        open(ctx, name, raw::REDISMODULE_READ)
    }

    /// Returns a key that is not open, which looks as if it were missing.
    pub fn closed(ctx: Context<'c>, name: KeyName<'c>) -> ReadKey<'c> {
        ReadKey { raw: null_mut(), ctx, name }
    }

    /// Returns whether the key is not open, or missing.
    pub fn is_closed(&self) -> bool {
        self.raw.is_null()
    }

    pub fn value(&self) -> KeyValue<'_, 'c> {
        // SAFETY: null is allowed, and means "empty".
        let kind = unsafe { api!(RedisModule_KeyType(self.raw)) };
        // Compared as numbers: a later server may know types that the bindings do not.
        match kind as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => KeyValue::Empty,
            raw::REDISMODULE_KEYTYPE_STRING => KeyValue::String(StringValue(self)),
            raw::REDISMODULE_KEYTYPE_ZSET => KeyValue::Zset,
            raw::REDISMODULE_KEYTYPE_HASH => KeyValue::Hash,
            _ => KeyValue::Other,
        }
    }

    /// Returns the value of a field of a hash. `None` if there is no such field, and for another type.
    pub fn field(&self, name: &[u8]) -> Option<OwnedString> {
        if self.raw.is_null() {
            return None;
        }
        let (name, none) = (OwnedString::new(name), raw::REDISMODULE_HASH_NONE as c_int);
        let mut value: RawString = null_mut();
        // SAFETY: the key is open; the server stores a string of ours, or null. Null ends the fields.
        unsafe {
            let end = null_mut::<c_void>();
            api!(RedisModule_HashGet(self.raw, none, name.raw(), &raw mut value, end));
        }
        OwnedString::adopt(value)
    }

    /// Returns when the key expires, in Unix milliseconds. `None` for a missing key or one without a TTL.
    pub fn expires_at_ms(&self) -> Option<u64> {
        if self.raw.is_null() {
            return None;
        }
        // SAFETY: the key is open.
        u64::try_from(unsafe { api!(RedisModule_GetAbsExpire(self.raw)) }).ok()
    }

    /// Returns the number of elements in a sorted set, or the length of another value.
    pub fn len(&self) -> usize {
        // SAFETY: null is allowed, and has length 0.
        unsafe { api!(RedisModule_ValueLength(self.raw)) }
    }

    pub fn lowest(&mut self, scores: Scores) -> Option<Element> {
        self.ascending(scores).next()
    }

    pub fn highest(&mut self, scores: Scores) -> Option<Element> {
        self.descending(scores).next()
    }

    /// Returns the elements with these scores, the lowest first.
    pub fn ascending(&mut self, scores: Scores) -> Elements<'_, 'c> {
        self.search(scores, false)
    }

    /// Returns the elements with these scores, the highest first.
    pub fn descending(&mut self, scores: Scores) -> Elements<'_, 'c> {
        self.search(scores, true)
    }

    fn search(&mut self, Scores { from, to }: Scores, backwards: bool) -> Elements<'_, 'c> {
        let raw = self.raw;
        // SAFETY: the key is open; on another type than a sorted set this fails.
        let begin = || unsafe {
            match backwards {
                false => api!(RedisModule_ZsetFirstInScoreRange(raw, from, to, 0, 0)),
                true => api!(RedisModule_ZsetLastInScoreRange(raw, from, to, 0, 0)),
            }
        };
        let is_searching = !raw.is_null() && begin() == OK;
        Elements { key: self, is_searching, has_first: false, backwards }
    }
}

impl Drop for ReadKey<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: opened by us and closed once.
            unsafe { api!(RedisModule_CloseKey(self.raw)) };
        }
    }
}

/// An iterator over elements of a sorted set. It borrows the key, so that nothing can change it meanwhile.
pub struct Elements<'k, 'c> {
    key: &'k mut ReadKey<'c>,
    /// True if the key holds a sorted set. Then the search has to be stopped.
    is_searching: bool,
    has_first: bool,
    backwards: bool,
}

impl Iterator for Elements<'_, '_> {
    type Item = Element;

    fn next(&mut self) -> Option<Element> {
        if !self.is_searching {
            return None;
        }
        let raw = self.key.raw;
        let mut score = 0.0;
        // SAFETY: a search was begun on the open key, which is borrowed and so has not changed. Past the end the string is
        // null, otherwise it is ours.
        let member = unsafe {
            let moved = match (self.has_first, self.backwards) {
                (false, _) => true,
                (true, false) => api!(RedisModule_ZsetRangeNext(raw)) != 0,
                (true, true) => api!(RedisModule_ZsetRangePrev(raw)) != 0,
            };
            if !moved || api!(RedisModule_ZsetRangeEndReached(raw)) != 0 {
                return None;
            }
            api!(RedisModule_ZsetRangeCurrentElement(raw, &mut score))
        };
        self.has_first = true;
        OwnedString::adopt(member).map(|member| Element { score, member })
    }
}

impl Drop for Elements<'_, '_> {
    fn drop(&mut self) {
        if self.is_searching {
            // SAFETY: the key is open.
            unsafe { api!(RedisModule_ZsetRangeStop(self.key.raw)) };
        }
    }
}

impl<'c> WriteKey<'c> {
    /// Opens a key. `None` if the server has it in use and does not allow writes to it for now. No server does so yet;
    /// Valkey plans to while it saves without a fork.
    pub fn open(
        ctx: Context<'c>,
        name: KeyName<'c>,
        words: &'static UnderLock<ReplicatedWords>,
    ) -> Option<WriteKey<'c>> {
        let key = open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE);
        // A missing key is not null when it is opened for writing.
        let is_open = !key.raw.is_null();
        is_open.then_some(WriteKey { key, words, changed: false })
    }

    /// Executes `SET key value PXAT expire_at_ms`, on a missing key or a string.
    pub fn set(&mut self, value: &[u8], expire_at_ms: u64) {
        let expire_at = c_longlong::try_from(expire_at_ms).unwrap_or(c_longlong::MAX);
        // Passing a buffer and a shared string saves the server two allocations.
        let mut buffer = itoa::Buffer::new();
        let expire_text = buffer.format(expire_at_ms);
        let mut len = 0;
        // SAFETY: the key is open for writing and holds a string or nothing. The pointer is good for `len` bytes
        // until the key is touched again.
        unsafe {
            let write = raw::REDISMODULE_WRITE as c_int;
            let mut start = api!(RedisModule_StringDMA(self.raw, &mut len, write));
            if len != value.len() {
                api!(RedisModule_StringTruncate(self.raw, value.len()));
                start = api!(RedisModule_StringDMA(self.raw, &mut len, write));
            }
            // A string has the length to which it was truncated, and can be written in place. If a server breaks this rule,
            // the guard logs it, because the call would be lost.
            assert!(!start.is_null() && len == value.len(), "the server gave no room for a value");
            std::ptr::copy_nonoverlapping(value.as_ptr(), start.cast(), len);
            api!(RedisModule_SetAbsExpire(self.raw, expire_at));
        }
        self.changed = true;
        let (text, len) = (expire_text.as_ptr(), expire_text.len());
        replicate!(
            self,
            c"SET",
            "bsb",
            value.as_ptr(),
            value.len(),
            self.words.with(|words| words.pxat.raw()),
            text,
            len
        );
    }

    /// Executes `DEL key`, or `UNLINK key` if the value is large.
    pub fn delete(&mut self) {
        self.changed = true;
        let is_large = self.len() >= MANY;
        // SAFETY: the key is open for writing.
        let status = unsafe {
            match is_large {
                true => api!(RedisModule_UnlinkKey(self.raw)),
                false => api!(RedisModule_DeleteKey(self.raw)),
            }
        };
        // Deleting fails only on a key that is not open for writing.
        debug_assert_eq!(status, OK);
        replicate!(self, if is_large { c"UNLINK" } else { c"DEL" }, "");
    }

    /// Executes `ZADD key score member`. The score is a whole number above -2^53 and at most 0, or -inf.
    pub fn add(&mut self, score: f64, member: &[u8]) {
        let member = OwnedString::new(member);
        self.changed = true;
        // SAFETY: the key is open for writing and holds a sorted set or nothing. The string outlives the call.
        let status =
            unsafe { api!(RedisModule_ZsetAdd(self.raw, score, member.raw(), null_mut())) };
        // Adding fails only on a key of another type, which the caller has refused, and for a score that is not a number.
        debug_assert_eq!(status, OK);
        if score.is_infinite() {
            let minus_inf = self.words.with(|words| words.minus_inf.raw());
            replicate!(self, c"ZADD", "ss", minus_inf, member.raw());
            return;
        }
        let mut buffer = itoa::Buffer::new();
        let score_text = buffer.format(score as i64);
        let (text, len) = (score_text.as_ptr(), score_text.len());
        replicate!(self, c"ZADD", "bs", text, len, member.raw());
    }

    /// Executes `ZREM key member [member ...]`. The key vanishes with its last element.
    pub fn remove<'m>(&mut self, members: impl IntoIterator<Item = &'m OwnedString>) {
        // The pointers are on the stack, so only this many members are removed at a time.
        const PIECE: usize = 64;
        let mut members = members.into_iter();
        loop {
            let (mut raws, mut len) = ([null_mut(); PIECE], 0_usize);
            for (raw, member) in raws.iter_mut().zip(&mut members) {
                *raw = member.raw();
                len = len.saturating_add(1);
                // SAFETY: the key is open for writing; the member is a live string.
                let status =
                    unsafe { api!(RedisModule_ZsetRem(self.raw, member.raw(), null_mut())) };
                // Removing fails only on a key of another type, which the caller has refused, and not for a missing member.
                debug_assert_eq!(status, OK);
            }
            if len == 0 {
                return;
            }
            self.changed = true;
            // The first `len` pointers are strings that live as long as `'m`.
            replicate!(self, c"ZREM", "v", raws.as_mut_ptr(), len);
        }
    }

    /// Executes `PEXPIREAT key at_ms`. Does nothing on a missing key.
    pub fn expire_at(&mut self, at_ms: u64) {
        let expire_at = c_longlong::try_from(at_ms).unwrap_or(c_longlong::MAX);
        let mut buffer = itoa::Buffer::new();
        let text = buffer.format(at_ms);
        // SAFETY: the key is open for writing; on a missing one this fails.
        if unsafe { api!(RedisModule_SetAbsExpire(self.raw, expire_at)) } != OK {
            return;
        }
        self.changed = true;
        let (text, len) = (text.as_ptr(), text.len());
        replicate!(self, c"PEXPIREAT", "b", text, len);
    }

    /// Closes the key. If it was changed, the server notifies the clients that WATCH or track it.
    pub fn close(self) {
        if self.changed {
            // SAFETY: context and name are live.
            unsafe { api!(RedisModule_SignalModifiedKey(self.ctx.raw(), self.name.raw())) };
        }
    }
}

/// Removes the `count` elements with the highest scores: `ZREMRANGEBYRANK key -count -1`. The key must not be open, because
/// it may vanish. The server notifies the module of this change as if another client had made it.
pub fn remove_highest(ctx: Context, name: KeyName, count: usize) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    remove_range(ctx, name, c"ZREMRANGEBYRANK", count.saturating_neg(), -1);
}

/// Removes the elements with these scores, which are whole numbers: `ZREMRANGEBYSCORE key from to`. For many elements this
/// is faster than [`WriteKey::remove`]. The same holds as for [`remove_highest`].
pub fn remove_scores(ctx: Context, name: KeyName, Scores { from, to }: Scores) {
    remove_range(ctx, name, c"ZREMRANGEBYSCORE", from as i64, to as i64);
}

/// Executes `command key first last`.
fn remove_range(ctx: Context, name: KeyName, command: &CStr, first: i64, last: i64) {
    let mut buffers = [itoa::Buffer::new(); 2];
    let [first_buffer, last_buffer] = &mut buffers;
    let (first, last) = (first_buffer.format(first), last_buffer.format(last));
    // Redis 6.2 replicates at once what it is called for with "!", before the other effects of the call. Without the element
    // that the call adds, replicas would delete the key, and with it the TTL.
    let is_in_order = is_from_7();
    let format = if is_in_order { c"!sbb" } else { c"sbb" };
    // SAFETY: context, name and texts are live; the format has an entry for each.
    let reply = unsafe {
        api!(RedisModule_Call(
            ctx.raw(),
            command.as_ptr(),
            format.as_ptr(),
            name.raw(),
            first.as_ptr(),
            first.len(),
            last.as_ptr(),
            last.len(),
        ))
    };
    drop(CallReply::adopt(reply));
    if !is_in_order {
        let key = ReadKey::closed(ctx, name);
        let (first_len, last_len) = (first.len(), last.len());
        replicate!(key, command, "bb", first.as_ptr(), first_len, last.as_ptr(), last_len);
    }
}

impl<'c> Deref for WriteKey<'c> {
    type Target = ReadKey<'c>;

    fn deref(&self) -> &ReadKey<'c> {
        &self.key
    }
}

impl DerefMut for WriteKey<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.key
    }
}

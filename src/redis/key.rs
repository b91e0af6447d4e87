//! Keys and what is done to them. Every method that changes the keyspace also replicates the plain command
//! with the same effect, so that the two cannot differ.

use super::api::api;
use super::call::{Context, KeyName};
use super::text::OwnedString;
use crate::text::Text;
use redis_module::raw;
use std::os::raw::{c_int, c_longlong};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

const OK: c_int = raw::REDISMODULE_OK as c_int;

/// How long a key may outlive its meaning. A caller who comes back within this time finds it, where the server
/// would otherwise have deleted it and replicated that; and while calls come, a TTL need not be moved by each.
/// Below one second, as a TTL is rounded up to a millisecond too.
pub const TTL_SLACK_MS: u64 = 900;

/// What lies under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No key.
    Empty,
    /// A string.
    String,
    /// A sorted set.
    Zset,
    /// Any other type, of this server or a later one.
    Other,
}

/// An element of a sorted set.
#[derive(Debug)]
pub struct Element {
    /// Its score.
    pub score: f64,
    /// Its member.
    pub member: OwnedString,
}

/// An open key. When it is closed, clients that WATCH or track it are told if it was changed. What would change a key
/// that was opened for reading only does nothing.
pub struct Key<'c> {
    raw: *mut raw::RedisModuleKey,
    ctx: Context<'c>,
    name: KeyName<'c>,
    writable: bool,
    changed: bool,
}

impl<'c> Key<'c> {
    /// Opens for reading only.
    pub fn read(ctx: Context<'c>, name: KeyName<'c>) -> Key<'c> {
        Key::open(ctx, name, raw::REDISMODULE_READ)
    }

    /// Opens for reading and writing.
    pub fn write(ctx: Context<'c>, name: KeyName<'c>) -> Key<'c> {
        Key::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    fn open(ctx: Context<'c>, name: KeyName<'c>, mode: u32) -> Key<'c> {
        // SAFETY: context and name are live.
        let raw = unsafe { api!(RedisModule_OpenKey(ctx.raw(), name.raw(), mode as c_int)) };
        let writable = mode & raw::REDISMODULE_WRITE != 0;
        Key { raw: raw.cast(), ctx, name, writable, changed: false }
    }

    /// What lies there.
    pub fn kind(&self) -> Kind {
        // SAFETY: null, for a missing key opened to read, is allowed and is "empty".
        let kind = unsafe { api!(RedisModule_KeyType(self.raw)) };
        // Compared as numbers: a later server may know types that the bindings do not.
        match kind as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Kind::Empty,
            raw::REDISMODULE_KEYTYPE_STRING => Kind::String,
            raw::REDISMODULE_KEYTYPE_ZSET => Kind::Zset,
            _ => Kind::Other,
        }
    }

    /// The bytes of a string; none for anything else.
    pub fn string(&self) -> &[u8] {
        if self.kind() != Kind::String {
            return &[];
        }
        let mut len = 0;
        // SAFETY: the key is open and holds a string. The pointer is valid until the key is written or closed, both of
        // which need `&mut self` or the key itself.
        unsafe {
            let start =
                api!(RedisModule_StringDMA(self.raw, &mut len, raw::REDISMODULE_READ as c_int));
            if start.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(start.cast(), len)
        }
    }

    /// `SET key value PXAT expire_at_ms`, on a missing key or a string.
    pub fn set(&mut self, value: &[u8], expire_at_ms: u64) {
        if !self.writable {
            return;
        }
        let expire_at = c_longlong::try_from(expire_at_ms).unwrap_or(c_longlong::MAX);
        // Text that we write and a word that is kept cost the server two allocations less than numbers and C
        // strings do.
        let mut at = Text::<24>::new();
        at.push_number(expire_at_ms, 1);
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
            if start.is_null() || len != value.len() {
                return;
            }
            std::ptr::copy_nonoverlapping(value.as_ptr(), start.cast(), len);
            api!(RedisModule_SetAbsExpire(self.raw, expire_at));
            self.changed = true;
            api!(RedisModule_Replicate(
                self.ctx.raw(),
                c"SET".as_ptr(),
                c"sbsb".as_ptr(),
                self.name.raw(),
                value.as_ptr(),
                value.len(),
                pxat(),
                at.as_bytes().as_ptr(),
                at.as_bytes().len(),
            ));
        }
    }

    /// `DEL key`.
    pub fn delete(&mut self) {
        if !self.writable {
            return;
        }
        // SAFETY: the key is open for writing.
        unsafe {
            api!(RedisModule_DeleteKey(self.raw));
            self.changed = true;
            api!(RedisModule_Replicate(
                self.ctx.raw(),
                c"DEL".as_ptr(),
                c"s".as_ptr(),
                self.name.raw(),
            ));
        }
    }
}

/// Sorted sets. Every reading method is harmless on a missing key, and finds nothing there.
impl Key<'_> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        // SAFETY: null, for a missing key opened to read, is allowed and is 0.
        unsafe { api!(RedisModule_ValueLength(self.raw)) }
    }

    /// The first element with a score above `min` (from it on with `inclusive`), and at most `max`.
    pub fn first_by_score(&self, min: f64, inclusive: bool, max: f64) -> Option<Element> {
        if self.raw.is_null() {
            return None;
        }
        // SAFETY: the key is open; on another type than a sorted set this fails.
        unsafe {
            let exclusive = c_int::from(!inclusive);
            if api!(RedisModule_ZsetFirstInScoreRange(self.raw, min, max, exclusive, 0)) != OK {
                return None;
            }
            let element = self.current();
            api!(RedisModule_ZsetRangeStop(self.raw));
            element
        }
    }

    /// The last element with a score of at most `max`.
    pub fn last_by_score(&self, max: f64) -> Option<Element> {
        if self.raw.is_null() {
            return None;
        }
        // SAFETY: as above.
        unsafe {
            if api!(RedisModule_ZsetLastInScoreRange(self.raw, f64::NEG_INFINITY, max, 0, 0)) != OK
            {
                return None;
            }
            let element = self.current();
            api!(RedisModule_ZsetRangeStop(self.raw));
            element
        }
    }

    /// Shows the elements with scores above `min` (from it on with `inclusive`) and at most `max` to `visit`,
    /// in order, until it returns false.
    pub fn scan<E>(
        &self,
        min: f64,
        inclusive: bool,
        max: f64,
        mut visit: impl FnMut(Element) -> Result<bool, E>,
    ) -> Result<(), E> {
        if self.raw.is_null() {
            return Ok(());
        }
        // SAFETY: the key is open and not changed meanwhile, as `visit` cannot reach it mutably.
        unsafe {
            let exclusive = c_int::from(!inclusive);
            if api!(RedisModule_ZsetFirstInScoreRange(self.raw, min, max, exclusive, 0)) != OK {
                return Ok(());
            }
            let mut result = Ok(());
            while let Some(element) = self.current() {
                match visit(element) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                if api!(RedisModule_ZsetRangeNext(self.raw)) == 0 {
                    break;
                }
            }
            api!(RedisModule_ZsetRangeStop(self.raw));
            result
        }
    }

    /// The first element whose member is at least `from` and less than `to`. Only where members are in order,
    /// as they are among equal scores.
    pub fn first_by_member(&self, from: &[u8], to: &[u8]) -> Option<Element> {
        if self.raw.is_null() {
            return None;
        }
        let mut bound = Text::<96>::new();
        bound.push(b"[");
        bound.push(from);
        let min = OwnedString::new(bound.as_bytes());
        let mut bound = Text::<96>::new();
        bound.push(b"(");
        bound.push(to);
        let max = OwnedString::new(bound.as_bytes());
        // SAFETY: the key is open, the bounds outlive the search.
        unsafe {
            if api!(RedisModule_ZsetFirstInLexRange(self.raw, min.raw(), max.raw())) != OK {
                return None;
            }
            let element = self.current();
            api!(RedisModule_ZsetRangeStop(self.raw));
            element
        }
    }

    /// # Safety
    /// A search has been begun on the open key, which was not changed since.
    unsafe fn current(&self) -> Option<Element> {
        let mut score = 0.0;
        // SAFETY: the caller's promise. The string is null past the end, and ours otherwise.
        let raw = unsafe {
            if api!(RedisModule_ZsetRangeEndReached(self.raw)) != 0 {
                return None;
            }
            api!(RedisModule_ZsetRangeCurrentElement(self.raw, &mut score))
        };
        OwnedString::adopt(raw).map(|member| Element { score, member })
    }

    /// `ZADD key score member`. The score is a whole number below 2^53, or +inf.
    pub fn add(&mut self, score: f64, member: &[u8]) {
        if !self.writable {
            return;
        }
        let member = OwnedString::new(member);
        let mut text = Text::<24>::new();
        if score.is_infinite() {
            text.push(b"inf");
        } else {
            text.push_number(score as u64, 1);
        }
        // SAFETY: the key is open for writing and holds a sorted set or nothing. Strings and text outlive the
        // calls.
        unsafe {
            api!(RedisModule_ZsetAdd(self.raw, score, member.raw(), null_mut()));
            self.changed = true;
            api!(RedisModule_Replicate(
                self.ctx.raw(),
                c"ZADD".as_ptr(),
                c"sbs".as_ptr(),
                self.name.raw(),
                text.as_bytes().as_ptr(),
                text.as_bytes().len(),
                member.raw(),
            ));
        }
    }

    /// `ZREM key member [member ...]`. The key vanishes with its last element.
    pub fn remove(&mut self, members: &[OwnedString]) {
        if !self.writable {
            return;
        }
        // A bounded piece at a time, as the pointers lie on the stack.
        const PIECE: usize = 64;
        for piece in members.chunks(PIECE) {
            let mut raws = [null_mut(); PIECE];
            for (raw, member) in raws.iter_mut().zip(piece) {
                *raw = member.raw();
            }
            // SAFETY: the key is open for writing; the first `piece.len()` pointers are live strings.
            unsafe {
                for member in piece {
                    api!(RedisModule_ZsetRem(self.raw, member.raw(), null_mut()));
                }
                self.changed = true;
                api!(RedisModule_Replicate(
                    self.ctx.raw(),
                    c"ZREM".as_ptr(),
                    c"sv".as_ptr(),
                    self.name.raw(),
                    raws.as_mut_ptr(),
                    piece.len(),
                ));
            }
        }
    }

    /// When the key expires, in Unix milliseconds; `None` for a missing key or one without a TTL.
    pub fn expires_at_ms(&self) -> Option<u64> {
        if self.raw.is_null() {
            return None;
        }
        // SAFETY: the key is open.
        u64::try_from(unsafe { api!(RedisModule_GetAbsExpire(self.raw)) }).ok()
    }

    /// `PEXPIREAT key at_ms`. Nothing on a missing key.
    pub fn expire_at(&mut self, at_ms: u64) {
        if !self.writable {
            return;
        }
        let at = c_longlong::try_from(at_ms).unwrap_or(c_longlong::MAX);
        let mut text = Text::<24>::new();
        text.push_number(at_ms, 1);
        // SAFETY: the key is open for writing; on a missing one this fails.
        unsafe {
            if api!(RedisModule_SetAbsExpire(self.raw, at)) != OK {
                return;
            }
            self.changed = true;
            api!(RedisModule_Replicate(
                self.ctx.raw(),
                c"PEXPIREAT".as_ptr(),
                c"sb".as_ptr(),
                self.name.raw(),
                text.as_bytes().as_ptr(),
                text.as_bytes().len(),
            ));
        }
    }
}

static PXAT: AtomicPtr<raw::RedisModuleString> = AtomicPtr::new(null_mut());

/// The word PXAT, made once.
fn pxat() -> *mut raw::RedisModuleString {
    let kept = PXAT.load(Ordering::Relaxed);
    if !kept.is_null() {
        return kept;
    }
    let made = OwnedString::new(b"PXAT").into_raw();
    PXAT.store(made, Ordering::Relaxed);
    made
}

/// Frees what is kept from call to call, before the module goes.
pub(super) fn release() {
    drop(OwnedString::adopt(PXAT.swap(null_mut(), Ordering::Relaxed)));
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by us and closed once; null is ignored by the server. The context and the name
        // outlive the key.
        unsafe {
            if !self.raw.is_null() {
                api!(RedisModule_CloseKey(self.raw));
            }
            if self.changed {
                api!(RedisModule_SignalModifiedKey(self.ctx.raw(), self.name.raw()));
            }
        }
    }
}

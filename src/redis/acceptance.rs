//! Asks the server whether it would accept a write now. The server checks the commands of clients itself. It does not check
//! what a module writes in a timer, nor what a command without the flag deny-oom grants to waiters.

use super::api::{api, is_from_7};
use super::context::{CallReply, Context, KeyName};
use redis_module::raw;
use std::ffi::c_char;
use std::io::Error;

/// The codes of the errors with which the server refuses a write. Without the flag "E" they crash Valkey 9.1.
const REFUSALS: [&[u8]; 4] = [b"NOREPLICAS", b"MISCONF", b"OOM", b"READONLY"];

/// Part of the error if the cluster is down.
const CLUSTER_DOWN: &[u8] = b"while the cluster is down";

/// Part of the error for a key on another node, and for a missing key in a slot that is migrating.
const NOT_LOCAL: &[u8] = b"non local key";

/// The server's answer to the question whether a key may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    Accepted,
    /// The server refuses all writes for now.
    Refused,
    /// The key is on another node, or its database cannot be selected.
    Unreachable,
}

/// Returns whether the server may accept writes: it is a master, no CLIENT PAUSE or failover is in force, and it evicts keys
/// if memory is short. [`accepts_write_to`] asks for the rest.
pub fn may_accept_writes(ctx: Context) -> bool {
    let flags = ctx.flags();
    let is_full = flags & raw::REDISMODULE_CTX_FLAGS_OOM != 0;
    let evicts = flags & raw::REDISMODULE_CTX_FLAGS_EVICT != 0;
    ctx.is_master() && !ctx.is_paused() && (!is_full || evicts)
}

/// Returns whether the server accepts a write to this key, if [`may_accept_writes`] holds: whether (from 7.0) it replies
/// neither NOREPLICAS nor MISCONF, and in a cluster, whether the cluster is up and the key is on this node.
pub fn accepts_write_to(ctx: Context, key: KeyName) -> Acceptance {
    let flags = ctx.flags();
    let is_full = flags & raw::REDISMODULE_CTX_FLAGS_OOM != 0;
    let in_cluster = flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
    if !in_cluster && !is_from_7() {
        return Acceptance::Accepted;
    }
    let key_name = if in_cluster { key.as_bytes() } else { b"" };
    probe(ctx, key_name, is_full).unwrap_or_else(|| match ctx.serves(key) {
        true => Acceptance::Accepted,
        false => Acceptance::Unreachable,
    })
}

/// Returns whether the server accepts a write to this key in a [single call](Context::is_single_call) on it. The server has
/// checked that call like any write, but not every command has the flag deny-oom.
pub fn accepts_write_in_call(ctx: Context, key: KeyName) -> bool {
    if ctx.flags() & raw::REDISMODULE_CTX_FLAGS_OOM == 0 {
        return ctx.is_master() && !ctx.is_paused();
    }
    may_accept_writes(ctx) && accepts_write_to(ctx, key) == Acceptance::Accepted
}

/// Makes the server check a command with the flags write and deny-oom that writes nothing: copying a key to itself is an
/// error. That error comes before the look-up, so the key does not count as used, as it would with `SETRANGE key 0 ""`.
/// `None` if the server has no such command.
fn probe(ctx: Context, key: &[u8], is_full: bool) -> Option<Acceptance> {
    // RedisModule_Call can check what the server checks for clients since 7.0.
    let format = match (is_from_7(), is_full) {
        (false, _) => c"bb",
        (true, false) => c"SEbb",
        // "M": if the server evicts, memory is short only if eviction failed before the last command.
        (true, true) => c"SMEbb",
    };
    let start: *const c_char = key.as_ptr().cast();
    // SAFETY: the context is live; "b" takes bytes and their number.
    let reply = unsafe {
        api!(RedisModule_Call(
            ctx.raw(),
            c"COPY".as_ptr(),
            format.as_ptr(),
            start,
            key.len(),
            start,
            key.len(),
        ))
    };
    let Some(reply) = CallReply::adopt(reply) else {
        // Without "E" the server sets errno.
        return match Error::last_os_error().raw_os_error() {
            Some(libc::EPERM) => Some(Acceptance::Unreachable),
            Some(libc::ENOENT) => None,
            _ => Some(Acceptance::Refused),
        };
    };
    acceptance_in(reply.text())
}

fn acceptance_in(text: &[u8]) -> Option<Acceptance> {
    let contains = |phrase: &[u8]| text.windows(phrase.len()).any(|window| window == phrase);
    if contains(NOT_LOCAL) {
        Some(Acceptance::Unreachable)
    } else if REFUSALS.iter().any(|code| text.starts_with(code)) || contains(CLUSTER_DOWN) {
        Some(Acceptance::Refused)
    } else if contains(b"nknown") {
        // "unknown command" or "Unknown", depending on the version.
        None
    } else {
        Some(Acceptance::Accepted)
    }
}

#[cfg(test)]
mod tests;

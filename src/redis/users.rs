//! The users and clients of the server.

use super::api::optional;
use super::context::Context;

/// Returns whether the server applies the rules of all users again when a module is unloaded: from 7.2 on, as it puts
/// commands of modules into categories. It crashes if a rule names a command that is gone.
pub fn rules_are_applied_again() -> bool {
    optional!(RedisModule_SetCommandACLCategories).is_some()
}

/// Returns the lines of ACL LIST, `user NAME RULE ...`.
pub fn users(ctx: Context) -> Vec<Vec<u8>> {
    // The only reason for no reply is a command that redis.conf has renamed.
    let reply = ctx.call(c"ACL", &[b"LIST"]);
    reply.iter().flat_map(|reply| reply.texts()).map(<[u8]>::to_vec).collect()
}

/// Returns CLIENT LIST: a line of fields `name=value` for each client.
pub fn clients(ctx: Context) -> Vec<u8> {
    ctx.call(c"CLIENT", &[b"LIST"]).map_or(Vec::new(), |reply| reply.text().to_vec())
}

pub fn close_connection(ctx: Context, id: &[u8]) {
    ctx.call(c"CLIENT", &[b"KILL", b"ID", id]);
}

//! Attempts on the server's keys, for calls that wait.

use crate::redis::random;
use crate::state::emptied::{AwaitedKey, EmptiedKey};
use crate::state::{KeyContext, ServerKey};
use crate::stats;
use commands::attempt::AttemptReply;
use commands::error::Error;
use commands::reply::Reply;
use engine::attempt::AttemptTerms;
use engine::judge::Mode;
use engine::request::Request;
use engine::reservation::{spelled_id, Id};
use std::cell::Cell;

/// A new id for a reservation.
pub fn new_id() -> Id {
    Id::from(&spelled_id(random::bytes())[..])
}

/// Tries a request on its key. Only what takes is ever barred.
pub fn attempt(
    key_ctx: KeyContext,
    request: &Request,
    terms: AttemptTerms,
) -> Result<AttemptReply, Error> {
    attempt_after(key_ctx, &Cell::new(None), request, terms)
}

/// The same after a release, which may have `emptied` the key.
pub fn attempt_after<'c>(
    key_ctx: KeyContext<'c>,
    emptied: &Cell<Option<EmptiedKey<'c>>>,
    request: &Request,
    terms: AttemptTerms,
) -> Result<AttemptReply, Error> {
    let key = AwaitedKey { key: ServerKey::in_mode(key_ctx, terms.mode), emptied };
    let tried = commands::attempt::attempt(key, request, terms, new_id)?;
    stats::count_lapsed(tried.dropped);
    Ok(tried)
}

/// Gives back what was granted with `reply`, at `granted_us`, to a client that was gone before it was notified.
pub fn give_back(
    key_ctx: KeyContext,
    request: &Request,
    reply: &Reply,
    granted_us: u64,
) -> Result<(), Error> {
    let key = ServerKey::in_mode(key_ctx, Mode::Final);
    let dropped = commands::attempt::give_back(key, request, reply, granted_us, new_id)?;
    stats::count_lapsed(dropped);
    Ok(())
}

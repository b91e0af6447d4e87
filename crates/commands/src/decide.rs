//! A request on one key of a server: decided, written, and turned into the reply.

use crate::error::Error;
use crate::reply::{Reply, ReplyTail};
use engine::decide::{Mode, Part};
use engine::decision::{Ask, Quantity};
use engine::request::{Limit, Request};
use engine::reservation::{lease_end_us, Id};
use engine::settle::release;
use engine::store::Store;
use std::slice;

/// The keys of a server.
pub trait Keyspace {
    /// Names a key, at the time of a call.
    type Key: Copy;
    /// A key, opened to read or to write.
    type Store: Store<Error: Into<Error>>;

    /// A key, for a call in this mode.
    fn store(&self, key: Self::Key, mode: Mode) -> Self::Store;
    /// The id of a reservation that its caller did not name.
    fn new_id(&self) -> Id;
    /// Counts reservations that were dropped because they had ended.
    fn count_dropped(&self, number: usize);
}

/// What was decided.
pub struct Decided {
    /// The reply.
    pub reply: Reply,
    /// Earliest grant, ignoring reservations and waiters, in Unix microseconds. `None` if it can never be granted, and unless the
    /// request was denied in [`Mode::Try`].
    pub earliest_grant_us: Option<u64>,
}

/// Decides a request on its key, and writes what follows. With `barred` others wait on the key and came before.
///
/// # Errors
///
/// As [`engine::decide::decide`]. Nothing changes then.
#[inline]
pub fn decide<K: Keyspace>(
    keys: &K,
    key: K::Key,
    request: &Request,
    barred: bool,
    mode: Mode,
) -> Result<Decided, Error> {
    let mut part = Part::new(keys.store(key, mode), request);
    part.barred = barred;
    let plan = engine::decide::decide(slice::from_mut(&mut part), mode, || keys.new_id());
    keys.count_dropped(plan.map_err(Into::into)?.write());
    let decided = part.decided();
    let reply = Reply::to(request, decided.decision, decided.id, decided.running);
    Ok(Decided { reply, earliest_grant_us: decided.earliest_grant_us })
}

/// Gives back what was granted with `reply`, at `granted_us`, to a client that was gone before it was notified.
///
/// # Errors
///
/// The key's own. Nothing changes then.
pub fn give_back<K: Keyspace>(
    keys: &K,
    key: K::Key,
    request: &Request,
    reply: &Reply,
    granted_us: u64,
) -> Result<(), Error> {
    match (&request.limit, &reply.tail) {
        (
            Limit::Reserve(_, reserve),
            ReplyTail::Id(Some(id)) | ReplyTail::IdAtMost { id: Some(id), .. },
        ) => {
            let lease_end_us = lease_end_us(granted_us, reserve.lease_ms);
            let store = keys.store(key, Mode::Final);
            release(store, id, Some(lease_end_us)).map_err(Into::into)?;
        }
        (Limit::Reserve(..), _) => {}
        (Limit::Bucket(_) | Limit::Window(_), _) => {
            let ask = Ask::of(Quantity::GiveBack(reply.decision.verdict.taken()));
            decide(keys, key, &Request { ask, ..*request }, false, Mode::Final)?;
        }
    }
    Ok(())
}

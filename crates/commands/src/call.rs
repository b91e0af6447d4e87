//! What a command needs from a call and its server: a trait that the module and [`crate::memory`] implement.

use crate::arguments::Words;
use crate::environment::Environment;
use crate::error::Error;
use crate::reply::ReplySink;
use crate::waiting::{WaitingCall, WaitingKeyspace};
use engine::entry::check_clock;
use engine::AwaitedLimit;
use std::ops::Range;

/// A call: where its keys are, what its arguments mean, whether it may wait, and what receives its reply. Nothing here
/// decides anything.
pub trait ServerCall<'a>: Words<'a> {
    /// Names a key, at the time of the call.
    type Key: Copy;
    type Keyspace: WaitingKeyspace<Key = Self::Key>;
    type Environment: Environment;
    /// An open hash.
    type Hash;
    type Sink: ReplySink;

    fn keyspace(&self) -> Self::Keyspace;

    /// Returns the keys of the server, for one call over the keys that these words name. Refuses keys that are not all on
    /// this server.
    fn keyspace_for_all(&self, words: Range<usize>) -> Result<Self::Keyspace, Error>;

    fn environment(&self) -> Self::Environment;

    fn sink(&self) -> Self::Sink;

    /// Returns the time, in Unix microseconds.
    fn now_us(&self) -> u64;

    /// Returns the key that the word at `at` names, at this time.
    fn key(&self, at: usize, now_us: u64) -> Option<Self::Key>;

    /// Opens a hash for reading. A missing key is an empty hash.
    ///
    /// # Errors
    ///
    /// [`Error::NotHash`]
    fn open_hash(&self, key: Self::Key) -> Result<Self::Hash, Error>;

    fn field(&self, hash: &Self::Hash, name: &[u8]) -> Option<impl AsRef<[u8]>>;

    /// Returns whether the server lets the call wait. It does not in MULTI and scripts.
    fn may_block(&self) -> bool;

    /// Adds the call, which was denied, to the line on this key, which is that of the awaited limit. It waits for at most
    /// `block_ms` milliseconds, or forever if that is 0.
    fn join(
        &self,
        key: Self::Key,
        call: WaitingCall,
        block_ms: u64,
        awaited: AwaitedLimit,
    ) -> Result<(), Error>;
}

pub(crate) fn first_key<'a, C: ServerCall<'a>>(call: &C) -> Result<(C::Key, u64), Error> {
    let now_us = checked_now_us(call)?;
    Ok((call.key(1, now_us).ok_or(Error::Arity)?, now_us))
}

/// Returns the time of a call. Refuses one outside the years that the engine supports.
pub(crate) fn checked_now_us<'a, C: ServerCall<'a>>(call: &C) -> Result<u64, Error> {
    let now_us = call.now_us();
    check_clock(now_us)?;
    Ok(now_us)
}

//! The server's keys as a store of the [`engine`]: reads the state that the engine needs for a decision, and writes what it
//! has planned.

mod entries;
pub mod indexes;
mod keyspace;
mod server_bucket;
mod server_window;

use crate::redis::acceptance::{accepts_write_to, Acceptance};
use crate::redis::context::{Context, KeyName};
use crate::redis::key::{ReadKey, WriteKey};
use crate::state::State;
use commands::error::Error;
use engine::calendar::Zones;
use engine::store::{Access, Store, MAX_HEALED_EVENTS};
use engine::DbKey;
use entries::{ALL, RESERVED};
use server_bucket::ServerBucket;
pub use server_window::{EmptiedZset, ServerWindow};
use std::cell::Cell;
use std::marker::PhantomData;

/// A key, and the time of the wall clock at which a call uses it.
#[derive(Clone, Copy)]
pub struct KeyContext<'c> {
    pub ctx: Context<'c>,
    /// The key, in the selected database.
    pub name: KeyName<'c>,
    /// Unix microseconds.
    pub now_us: u64,
}

impl KeyContext<'_> {
    pub fn db_key(&self) -> DbKey<'_> {
        DbKey { db: self.ctx.db(), name: self.name.as_bytes() }
    }
}

/// The keys of this server, for one call.
pub struct ServerKeyspace<'c> {
    pub state: &'static State,
    budget: Option<CallBudget>,
    /// Whether the server accepts what is written for waiters. `None` if it was not asked yet.
    acceptance: Cell<Option<Acceptance>>,
    context: PhantomData<Context<'c>>,
}

impl<'c> ServerKeyspace<'c> {
    pub fn new(state: &'static State) -> ServerKeyspace<'c> {
        let (acceptance, context) = (Cell::new(None), PhantomData);
        ServerKeyspace { state, budget: None, acceptance, context }
    }

    /// Bounds the work of a call over this many keys.
    pub fn for_keys(self, keys: usize) -> ServerKeyspace<'c> {
        let budget = CallBudget { left_to_read: Cell::new(MAX_READ), keys };
        ServerKeyspace { budget: Some(budget), ..self }
    }

    /// Returns the part of `max` that a call may do for each of its keys.
    fn share(&self, max: usize) -> usize {
        let share = self.budget.as_ref().and_then(|budget| max.checked_div(budget.keys));
        share.unwrap_or(max).max(1)
    }

    /// Sets whether the server accepts what is written for waiters. `None` if it was not asked yet.
    pub fn for_waiters(self, acceptance: Option<Acceptance>) -> ServerKeyspace<'c> {
        ServerKeyspace { acceptance: Cell::new(acceptance), ..self }
    }

    /// Returns whether the server accepts what is written for waiters. `None` if it was not asked.
    pub fn acceptance(&self) -> Option<Acceptance> {
        self.acceptance.get()
    }

    /// Takes over what the server has answered to another keyspace.
    pub fn learn_acceptance(&self, other: &ServerKeyspace) {
        self.acceptance.set(other.acceptance.get());
    }

    /// Asks the server whether it accepts a write to a key for a waiter, unless it was asked before.
    pub fn ask_for_acceptance(&self, key_ctx: KeyContext) -> Acceptance {
        let asked = self.acceptance.get();
        let acceptance = asked.unwrap_or_else(|| accepts_write_to(key_ctx.ctx, key_ctx.name));
        self.acceptance.set(Some(acceptance));
        acceptance
    }
}

/// Bounds the work of a call over several keys.
///
/// Reading the reservations of a single key may take tens of milliseconds. If the next key holds more than what is left to
/// read, the call is refused. What has been read stays in memory, so another call reads the rest.
struct CallBudget {
    left_to_read: Cell<usize>,
    keys: usize,
}

/// The number of reservations that a call reads: as many as one key may hold by default.
const MAX_READ: usize = 1 << 16;

impl CallBudget {
    /// Refuses to read the reservations in `key`, which has no index, if the set, events included, is longer than what is
    /// left of the budget. The first large key is never refused.
    fn check(&self, key: &mut ReadKey) -> Result<(), Error> {
        let (len, left) = (key.len(), self.left_to_read.get());
        if len <= indexes::SMALL || len <= left || left == MAX_READ {
            return Ok(());
        }
        // The key may hold mostly events, which are not read.
        match key.lowest(ALL).is_some_and(|first| first.score == RESERVED) {
            true => Err(Error::TooMuchToRead),
            false => Ok(()),
        }
    }

    /// Charges for reservations that were read. A few cost nothing, because their index may be dropped before the next call,
    /// which would have to read them again.
    fn spend(&self, number: usize) {
        if number > indexes::SMALL {
            self.left_to_read.set(self.left_to_read.get().saturating_sub(number));
        }
    }
}

#[derive(Clone, Copy)]
pub struct ServerKey<'k, 'c> {
    keyspace: &'k ServerKeyspace<'c>,
    key_ctx: KeyContext<'c>,
    access: Access,
    /// The key, if a call has just emptied it.
    emptied: Option<&'k EmptiedZset<'c>>,
}

impl<'k, 'c> ServerKey<'k, 'c> {
    /// Uses the open key that a release has emptied, if there is one, instead of opening it.
    pub fn with_emptied(self, emptied: Option<&'k EmptiedZset<'c>>) -> Self {
        ServerKey { emptied, ..self }
    }
}

impl<'k, 'c> Store for ServerKey<'k, 'c> {
    type Error = Error;
    type Bucket = ServerBucket<'c>;
    type Window = ServerWindow<'k, 'c>;

    fn now_us(&self) -> u64 {
        self.key_ctx.now_us
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        self.keyspace.state.zones.with(body)
    }

    fn max_healed(&self) -> usize {
        self.keyspace.share(MAX_HEALED_EVENTS)
    }

    fn bucket(self) -> ServerBucket<'c> {
        let ServerKey { keyspace, key_ctx, access, emptied } = self;
        if let Some(emptied) = emptied {
            // Only a key that does not exist can become a bucket.
            emptied.delete_now();
        }
        ServerBucket { state: keyspace.state, key_ctx, access, key: KeyHandle::closed(key_ctx) }
    }

    fn window(&mut self) -> ServerWindow<'k, 'c> {
        ServerWindow::new(*self, KeyHandle::closed(self.key_ctx))
    }
}

enum KeyHandle<'c> {
    Read(ReadKey<'c>),
    Write(WriteKey<'c>),
}

impl<'c> KeyHandle<'c> {
    fn open(
        state: &'static State,
        key_ctx: KeyContext<'c>,
        access: Access,
    ) -> Result<KeyHandle<'c>, Error> {
        let KeyContext { ctx, name, .. } = key_ctx;
        if access == Access::Read {
            return Ok(KeyHandle::Read(ReadKey::open(ctx, name)));
        }
        let key = WriteKey::open(ctx, name, &state.replicated_words);
        key.map(KeyHandle::Write).ok_or(Error::NotWritable)
    }

    fn closed(key_ctx: KeyContext<'c>) -> KeyHandle<'c> {
        KeyHandle::Read(ReadKey::closed(key_ctx.ctx, key_ctx.name))
    }

    /// Takes the key if it is open for writing, and leaves a closed one.
    fn take(&mut self, key_ctx: KeyContext<'c>) -> Option<WriteKey<'c>> {
        match std::mem::replace(self, KeyHandle::closed(key_ctx)) {
            KeyHandle::Write(key) => Some(key),
            KeyHandle::Read(_) => None,
        }
    }

    fn reader(&mut self) -> &mut ReadKey<'c> {
        match self {
            KeyHandle::Read(key) => key,
            KeyHandle::Write(key) => key,
        }
    }
}

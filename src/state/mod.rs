//! How limits are stored: the server's key as the store of [`engine`], which judges what is read here and plans what is
//! written here.
//!
//! ```text
//! bucket.rs         the string of RL.THROTTLE
//! window.rs         the sorted set of RL.WINDOW and RL.ACQUIRE, opened for one call
//! entries.rs        reading its events
//! reservations.rs   reading its reservations: from the set where they are few, else from an index in memory
//! emptied.rs        a key that a release has emptied, while somebody waits on it
//! inspect.rs        what lies under a key, for RL.INFO
//! indexes.rs        those indexes, and when they are dropped
//! ```

pub mod bucket;
pub mod emptied;
mod entries;
pub mod indexes;
pub mod inspect;
pub mod reservations;
pub mod window;

use crate::redis::context::{Context, KeyName};
use crate::redis::key::{ReadKey, WriteKey};
use crate::redis::random;
use crate::zones::zones;
use bucket::ServerBucket;
use commands::error::Error;
use engine::calendar::Zones;
use engine::db_key::DbKey;
use engine::decide::Mode;
use engine::reservation::{spelled_id, Id};
use engine::store::Store;
use window::ServerWindow;

/// A new id for a reservation.
pub fn new_id() -> Id {
    Id::from(&spelled_id(random::bytes())[..])
}

/// Where and when something is tried: on which key, and at which time of the wall clock.
#[derive(Clone, Copy)]
pub struct KeyContext<'c> {
    /// The running command or callback.
    pub ctx: Context<'c>,
    /// The key, in the database that is selected.
    pub name: KeyName<'c>,
    /// Unix microseconds.
    pub now_us: u64,
}

impl KeyContext<'_> {
    /// The key, with the database that is selected.
    #[inline]
    pub fn db_key(&self) -> DbKey<'_> {
        DbKey { db: self.ctx.db(), name: self.name.as_bytes() }
    }
}

/// What a call may do with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Only read it.
    Read,
    /// Read and change it.
    Write,
}

/// A key of the server, as the engine sees it.
#[derive(Clone, Copy)]
pub struct ServerKey<'c> {
    /// Which, and when.
    pub key_ctx: KeyContext<'c>,
    /// What may be done with it.
    pub intent: Intent,
    /// Whether it is one of several keys of a call.
    pub of_several: bool,
}

impl<'c> ServerKey<'c> {
    /// A key for a call in this mode.
    #[inline]
    pub fn in_mode(key_ctx: KeyContext<'c>, mode: Mode) -> ServerKey<'c> {
        let intent = match mode {
            Mode::Look => Intent::Read,
            Mode::Try | Mode::Final | Mode::Deny => Intent::Write,
        };
        ServerKey { key_ctx, intent, of_several: false }
    }
}

impl<'c> Store for ServerKey<'c> {
    type Error = Error;
    type Bucket = ServerBucket<'c>;
    type Window = ServerWindow<'c>;

    fn now_us(&self) -> u64 {
        self.key_ctx.now_us
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        zones(body)
    }

    fn bucket(self) -> ServerBucket<'c> {
        ServerBucket::new(self)
    }

    fn window(self) -> ServerWindow<'c> {
        ServerWindow::new(self)
    }
}

/// An open key.
enum Open<'c> {
    Read(ReadKey<'c>),
    Write(WriteKey<'c>),
}

impl<'c> Open<'c> {
    fn new(key_ctx: KeyContext<'c>, intent: Intent) -> Result<Open<'c>, Error> {
        match intent {
            Intent::Read => Ok(Open::Read(ReadKey::open(key_ctx.ctx, key_ctx.name))),
            Intent::Write => {
                // Where another module calls us in the middle of a RENAME, the value that it moves may be changed.
                indexes::drop_leaving();
                WriteKey::open(key_ctx.ctx, key_ctx.name).map(Open::Write).ok_or(Error::InUse)
            }
        }
    }

    /// No key: closed again, or not open yet.
    fn closed(key_ctx: KeyContext<'c>) -> Open<'c> {
        Open::Read(ReadKey::closed(key_ctx.ctx, key_ctx.name))
    }

    /// Takes a key that is open for writing, and leaves a closed one.
    fn take(&mut self, key_ctx: KeyContext<'c>) -> Option<WriteKey<'c>> {
        match std::mem::replace(self, Open::closed(key_ctx)) {
            Open::Write(key) => Some(key),
            Open::Read(_) => None,
        }
    }

    fn reader(&mut self) -> &mut ReadKey<'c> {
        match self {
            Open::Read(key) => key,
            Open::Write(key) => key,
        }
    }
}

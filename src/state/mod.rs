//! How limits are stored: the only code that knows what lies under a key. It reads what [`crate::limit`] judges, and
//! writes what that decides.
//!
//! ```text
//! bucket.rs         the string of RL.THROTTLE
//! window.rs         the sorted set of RL.WINDOW and RL.ACQUIRE, opened for one call
//! entries.rs        reading its events
//! reservations.rs   reading its reservations: from the set where they are few, else from an index in memory
//! part.rs           one limit on one key: read, judged, granted or denied, written
//! settle.rs         what becomes of one reservation
//! indexes.rs        those indexes, and when they are dropped
//! ```

pub mod bucket;
mod entries;
pub mod indexes;
pub mod part;
mod reservations;
pub mod settle;
pub mod window;

use crate::error::Error;
use crate::redis::call::{Context, KeyName};
use crate::redis::key::{Kind, ReadKey, WriteKey};

/// Where and when something is tried: on which key, and at which time of the wall clock.
#[derive(Clone, Copy)]
pub struct Spot<'c> {
    /// The running command or callback.
    pub ctx: Context<'c>,
    /// The key, in the database that is selected.
    pub name: KeyName<'c>,
    /// Unix microseconds.
    pub now_us: u64,
}

/// What a call may do with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Only read it.
    Read,
    /// Read and change it.
    Write,
}

/// An open key.
enum Open<'c> {
    Read(ReadKey<'c>),
    Write(WriteKey<'c>),
}

impl<'c> Open<'c> {
    fn new(spot: Spot<'c>, intent: Intent) -> Result<Open<'c>, Error> {
        match intent {
            Intent::Read => Ok(Open::Read(ReadKey::open(spot.ctx, spot.name))),
            Intent::Write => {
                WriteKey::open(spot.ctx, spot.name).map(Open::Write).ok_or(Error::InUse)
            }
        }
    }

    /// No key: closed again, or not open yet.
    fn closed(spot: Spot<'c>) -> Open<'c> {
        Open::Read(ReadKey::closed(spot.ctx, spot.name))
    }

    /// Takes a key that is open for writing, and leaves a closed one.
    fn take(&mut self, spot: Spot<'c>) -> Option<WriteKey<'c>> {
        match std::mem::replace(self, Open::closed(spot)) {
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

    fn kind(&mut self) -> Kind {
        self.reader().kind()
    }
}

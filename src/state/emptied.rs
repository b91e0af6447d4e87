//! A key that a release has emptied, while somebody waits on it.
//!
//! ```text
//! release --> EmptiedKey --the head is tried--> add what it was granted, then remove what was released
//!                        --else---------------> delete the key
//! ```

use super::bucket::ServerBucket;
use super::entries::EntryReader;
use super::reservations::ServerReservations;
use super::window::ServerWindow;
use super::{Open, ServerKey};
use crate::redis::key::WriteKey;
use crate::redis::text::OwnedString;
use commands::error::Error;
use engine::ban::Ban;
use engine::calendar::Zones;
use engine::store::{Change, Store, WindowKey};
use std::cell::Cell;

/// A key whose elements were all released, and still lie in it. It counts as empty. Who writes to it adds first and then
/// removes them, so that the key does not vanish in between. If nobody does, it is deleted when this is dropped.
pub struct EmptiedKey<'c> {
    /// Open for writing, until somebody takes it.
    key: Open<'c>,
    released: Vec<OwnedString>,
}

impl<'c> EmptiedKey<'c> {
    /// A key that has the `released` elements, and no others.
    pub(super) fn new(key: WriteKey<'c>, released: Vec<OwnedString>) -> EmptiedKey<'c> {
        EmptiedKey { key: Open::Write(key), released }
    }

    /// Writes what was planned for its window, which was found empty.
    fn write(&mut self, window: &mut ServerWindow<'c>, change: Change<'_, OwnedString>) -> usize {
        let Some(key) = self.key.take(window.key_ctx()) else { return 0 };
        window.write_to(key, std::mem::take(&mut self.released), change)
    }
}

impl Drop for EmptiedKey<'_> {
    fn drop(&mut self) {
        if let Open::Write(key) = &mut self.key {
            key.delete();
        }
    }
}

/// A key on which somebody waits: as the server has it, or as a release has left it. It is a store of its own, so that other
/// calls pay nothing for it.
#[derive(Clone, Copy)]
pub struct AwaitedKey<'e, 'c> {
    /// As the server has it.
    pub key: ServerKey<'c>,
    /// Where it is if a release has emptied it. Who opens it first takes it from there.
    pub emptied: &'e Cell<Option<EmptiedKey<'c>>>,
}

impl<'c> Store for AwaitedKey<'_, 'c> {
    type Error = Error;
    type Bucket = ServerBucket<'c>;
    type Window = AwaitedWindow<'c>;

    fn now_us(&self) -> u64 {
        self.key.now_us()
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        self.key.zones(body)
    }

    fn bucket(self) -> ServerBucket<'c> {
        // Only a key that is gone becomes a bucket.
        drop(self.emptied.take());
        self.key.bucket()
    }

    fn window(self) -> AwaitedWindow<'c> {
        AwaitedWindow { window: self.key.window(), emptied: self.emptied.take() }
    }
}

/// The window under such a key, for one call.
pub struct AwaitedWindow<'c> {
    /// As it is read. It stays closed where a release has emptied the key, so it has nothing then.
    window: ServerWindow<'c>,
    emptied: Option<EmptiedKey<'c>>,
}

impl<'c> WindowKey for AwaitedWindow<'c> {
    type Error = Error;
    type Events<'k>
        = EntryReader<'k, 'c>
    where
        Self: 'k;
    type Reservations = ServerReservations<'c>;
    type Member = OwnedString;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Error> {
        match self.emptied {
            Some(_) => Ok(()),
            None => self.window.read(id),
        }
    }

    fn reservations(&self) -> &ServerReservations<'c> {
        self.window.reservations()
    }

    fn ban(&self) -> Option<Ban> {
        self.window.ban()
    }

    fn split(&mut self) -> (EntryReader<'_, 'c>, &ServerReservations<'c>) {
        self.window.split()
    }

    fn running(&mut self) -> usize {
        self.window.running()
    }

    fn find_live(&mut self, id: &[u8]) -> Result<Option<OwnedString>, Error> {
        self.window.find_live(id)
    }

    fn write(&mut self, change: Change<'_, OwnedString>) -> usize {
        match &mut self.emptied {
            Some(emptied) => emptied.write(&mut self.window, change),
            None => self.window.write(change),
        }
    }
}

//! The keys of a server and the counters of the calls on them, as a trait.

use crate::error::Error;
use crate::policies::PolicyVerdict;
use engine::reservation::Id;
use engine::store::{Access, KeyState, Store, WindowKey};
use engine::throttle::StoredBucket;
use engine::top_keys::TopRow;

/// The window of a key of these keys.
pub type WindowOf<'k, K> = <<K as Keyspace>::Store<'k> as Store>::Window;

/// What is left of a key of these keys that settling has emptied.
pub type EmptiedOf<'k, K> = <WindowOf<'k, K> as WindowKey>::Emptied;

/// What a key holds, and when it expires, in Unix milliseconds: `None` if it never does.
pub type Inspection<W> = (KeyState<StoredBucket, W>, Option<u64>);

/// The keys of a server, and its counters of the calls on them.
pub trait Keyspace {
    /// Names a key at the time of a call.
    type Key: Copy;
    type Store<'k>: Store<Error: Into<Error>>
    where
        Self: 'k;

    /// Returns a key, to be opened with this access.
    fn store(&self, key: Self::Key, access: Access) -> Self::Store<'_>;

    /// Opens a key once, for reading. `None` if there is no key.
    ///
    /// # Errors
    ///
    /// [`Error::NotLimit`] if it is neither a bucket nor a window, and those of reading it.
    fn inspect(&self, key: Self::Key) -> Result<Option<Inspection<WindowOf<'_, Self>>>, Error>;

    /// Creates the id of a reservation whose caller names none.
    fn new_id(&self) -> Id;

    /// Counts reservations that were counted as events.
    fn count_applied(&self, number: u64);

    /// Counts reservations that were released.
    fn count_released(&self, number: u64);

    fn count_policy(&self, id: u64, verdict: PolicyVerdict);

    /// Notes that a call that takes was denied.
    fn note_denial(&self, key: Self::Key);

    /// Returns the keys with the most noted denials at this time, the most denied first, and at most `count` of them.
    fn most_denied(&self, now_us: u64, count: usize) -> Vec<TopRow>;

    /// Forgets the noted denials.
    fn forget_denials(&self);
}

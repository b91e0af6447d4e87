//! Where the state of a key is stored, as traits. They are implemented for the keys of a server (src/keys of the module)
//! and for keys in memory ([`crate::memory`]).
//!
//! ```text
//! Store --bucket()--> BucketKey --read--> the stored time --write-->
//!       --window()--> WindowKey --read--> events and reservations --write-->
//! ```
//!
//! Reading may fail, because another client may have written the key. Writing a planned change cannot.

use crate::ban::Ban;
use crate::calendar::Zones;
use crate::entry::Entries;
use crate::expiry::Expiry;
use crate::refusal::Refusal;
use crate::reservation::ReservationRef;
use crate::reservations::Reservations;
use crate::rule::{Rule, RuleNow, RuleText};
use crate::throttle::{BucketEdit, StoredBucket};
use crate::window::{EventEdit, WindowCount};
use std::convert::Infallible;

/// How a call opens a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading. Nothing may be written.
    Read,
    /// For reading and writing.
    Write,
}

/// About how many entries from the future a call merges at most after the clock was set back. This takes about 3 ms.
pub const MAX_HEALED_EVENTS: usize = 10_000;

/// Where the state of one key is stored, seen at one moment.
pub trait Store {
    /// The error of reading.
    type Error: From<Refusal>;
    type Bucket: BucketKey<Error = Self::Error>;
    type Window: WindowKey<Error = Self::Error>;

    /// Returns that moment, in Unix microseconds.
    fn now_us(&self) -> u64;

    /// Lends the store's time zones to `body`, which must not ask for them again.
    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T;

    /// Returns a rule at this moment. `None` only outside the years that a calendar covers.
    #[inline]
    fn rule_now(&self, rule: &Rule) -> Option<RuleNow> {
        self.zones(|zones| rule.at(self.now_us(), zones))
    }

    /// Returns the time at which an event of `event_us`, now or later, expires by a rule. `None` only outside the years that
    /// a calendar covers.
    fn expires_us(&self, rule: &Rule, event_us: u64) -> Option<u64> {
        self.zones(|zones| rule.expires_us(event_us, zones))
    }

    /// Returns the time at which a reservation stops holding if its lease ends at `lease_end_us`: then, or when an event of
    /// that moment expires (COUNTLAPSED).
    ///
    /// # Errors
    ///
    /// [`Refusal::Clock`] outside the years that a calendar covers.
    fn gone_us(&self, rule: &Rule, lease_end_us: u64, count_lapsed: bool) -> Result<u64, Refusal> {
        match count_lapsed {
            true => self.expires_us(rule, lease_end_us).ok_or(Refusal::Clock),
            false => Ok(lease_end_us),
        }
    }

    /// Returns the time for which the events of a count under this rule need the key. Those that stay in the future may
    /// expire with a later window than now.
    #[inline]
    fn expiry(&self, rule: &Rule, count: &WindowCount) -> Expiry {
        let stays_until_us = count.stays_us().and_then(|us| self.expires_us(rule, us));
        count.expiry().extend_to(stays_until_us)
    }

    /// Returns about how many entries from the future a call merges at most after the clock was set back.
    fn max_healed(&self) -> usize {
        MAX_HEALED_EVENTS
    }

    /// Returns the text of a rule, which a reservation stores.
    fn write_rule(&self, rule: &Rule) -> RuleText {
        self.zones(|zones| rule.write(zones))
    }

    /// Returns the rule that a reservation stores. `None` for one that the module did not write.
    fn parse_rule(&self, text: &[u8]) -> Option<Rule> {
        self.zones(|zones| Rule::parse(text, zones))
    }

    /// Returns the key as a bucket that has not been read.
    fn bucket(self) -> Self::Bucket;

    /// Returns the key as a window that has not been read.
    fn window(&mut self) -> Self::Window;
}

/// A key that holds a bucket, or nothing.
pub trait BucketKey {
    /// The error of reading.
    type Error;

    /// Opens the key, and returns what it holds. `None` if it is missing.
    fn read(&mut self) -> Result<Option<StoredBucket>, Self::Error>;

    /// Writes an edit. A key that was opened for reading only gets one that changes nothing.
    fn write(&mut self, edit: BucketEdit);
}

/// A key that holds events and reservations, or nothing.
pub trait WindowKey {
    /// The error of reading.
    type Error: From<Refusal>;
    type Events: Entries<Error = Self::Error>;
    /// What is left of a key that settling has emptied.
    type Emptied: EmptiedKey;

    /// Opens the key, reads its reservations, and notes whether `id` is held. Refuses a key that the module did not write.
    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Self::Error>;

    fn events(&mut self) -> &mut Self::Events {
        self.split().0
    }

    fn reservations(&self) -> &Reservations;

    /// Returns its reservations, to count those whose lease runs.
    fn reservations_mut(&mut self) -> &mut Reservations;

    fn split(&mut self) -> (&mut Self::Events, &Reservations);

    /// Returns the stored ban, or the mark that a past one left.
    fn ban(&self) -> Option<Ban> {
        self.reservations().ban()
    }

    /// Writes an edit. A key that was opened for reading only gets one that changes nothing.
    fn write(&mut self, edit: WindowEdit) -> Settlement<Self::Emptied>;
}

/// What a key holds: a bucket or a window, each in the form that the caller needs. These are not the kinds of a
/// [`Limit`](crate::Limit), because events and reservations are in the same window.
pub enum KeyState<B, W> {
    Bucket(B),
    Window(W),
}

/// What came of settling reservations.
#[must_use]
pub struct Settlement<E> {
    /// How many reservations were settled or renewed.
    pub number: usize,
    /// The key, if it holds nothing any more. It is kept for the first waiter, so that it does not vanish before that adds
    /// to it. Without a waiter it must be deleted.
    pub emptied: Option<E>,
}

/// A key that holds nothing any more, but still exists.
pub trait EmptiedKey {
    fn delete(self);
}

/// In memory a key that holds nothing does not exist.
impl EmptiedKey for Infallible {
    fn delete(self) {}
}

/// The changes to write to a window.
#[derive(Debug)]
pub struct WindowEdit<'p> {
    /// The ids of the reservations to remove, because they are applied, released or renewed. Ids that are not live are
    /// ignored, and may repeat.
    pub settled: &'p [&'p [u8]],
    /// The changes of the entries of events.
    pub events: &'p EventEdit,
    /// The reservation to add.
    pub reservation: Option<ReservationRef<'p>>,
    /// Drops reservations that are gone, and rewrites those from the future: a bounded number of each.
    pub clean: bool,
    /// The ban after the edit, or the mark of a past one.
    pub ban: Option<Ban>,
    /// The time for which the events need the key. `None` leaves the TTL as it is.
    pub expiry: Option<Expiry>,
}

//! What a key holds, as the engine sees it. The product has two implementations: the server's key (src/state of
//! the module) and a key in memory ([`crate::memory`]).
//!
//! ```text
//! Store --bucket()--> BucketKey --read--> the stored time --write-->
//!       --window()--> WindowKey --read--> events and reservations --write-->
//! ```
//!
//! Reading may fail: another client may have written the key. Writing what was planned cannot.

use crate::ban::Ban;
use crate::calendar::Zones;
use crate::entry::{Entry, LAST_US};
use crate::expiry::Expiry;
use crate::held::Holds;
use crate::reservation::{HeldReservation, ReservationRef};
use crate::rule::{Rule, RuleNow, RuleText};
use crate::throttle::{BucketEdit, Stored};
use crate::window::EventEdit;

/// Why a call is an error, apart from its arguments. Nothing changes then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds something else than a bucket.
    NotBucket,
    /// The key holds something else than events and reservations.
    NotWindow,
    /// The value or an entry was not written by this module, or entries contradict each other.
    Foreign,
    /// The clock is outside of the years that scores and calendars support.
    Clock,
    /// The stored time would lie beyond what a value can spell, or the debt beyond 100 years.
    DebtTooLong,
    /// FORCE would pass the largest sum.
    SumTooLarge,
    /// The id is held.
    Duplicate,
    /// The key holds as many reservations as it may.
    TooManyReservations,
    /// A semaphore's reservation cannot be applied.
    Semaphore,
}

impl Refusal {
    /// Refuses a time that scores do not hold exactly.
    ///
    /// # Errors
    ///
    /// [`Refusal::Clock`] after [`LAST_US`].
    #[inline]
    pub fn check_clock(now_us: u64) -> Result<(), Refusal> {
        if now_us > LAST_US {
            return Err(Refusal::Clock);
        }
        Ok(())
    }
}

/// A key of a store, at one moment.
pub trait Store: Copy {
    /// What reading can fail with.
    type Error: From<Refusal>;
    /// Its bucket.
    type Bucket: BucketKey<Error = Self::Error>;
    /// Its window.
    type Window: WindowKey<Error = Self::Error>;

    /// Returns the wall clock, in Unix microseconds.
    fn now_us(&self) -> u64;

    /// Lends the time zones that the store knows. `body` must not ask for them again.
    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T;

    /// Returns a rule as it stands now. `None` only outside of the years that a calendar knows.
    #[inline]
    fn rule_now(&self, rule: &Rule) -> Option<RuleNow> {
        self.zones(|zones| rule.at(self.now_us(), zones))
    }

    /// Returns when an event that happens at `event_us`, now or later, leaves by a rule. `None` only outside of the years
    /// that a calendar knows.
    fn leaves_us(&self, rule: &Rule, event_us: u64) -> Option<u64> {
        self.zones(|zones| rule.leaves_us(event_us, zones))
    }

    /// Returns about the most entries from the future that a call merges after the clock was set back: they take some 3
    /// milliseconds.
    fn heal_most(&self) -> usize {
        10_000
    }

    /// Returns a rule as text, for a reservation to remember.
    fn write_rule(&self, rule: &Rule) -> RuleText {
        self.zones(|zones| rule.write(zones))
    }

    /// Returns the rule that a reservation remembers; `None` for one that the module did not write.
    fn parse_rule(&self, text: &[u8]) -> Option<Rule> {
        self.zones(|zones| Rule::parse(text, zones))
    }

    /// Returns the key as a bucket that has not been read.
    fn bucket(self) -> Self::Bucket;

    /// Returns the key as a window that has not been read.
    fn window(self) -> Self::Window;
}

/// A key that holds a bucket, or nothing.
pub trait BucketKey {
    /// What reading can fail with.
    type Error;

    /// Opens the key; `None` if it is missing.
    fn read(&mut self) -> Result<Option<Stored>, Self::Error>;

    /// Writes what was planned. Does nothing if the key was opened for reading.
    fn write(&mut self, next: BucketEdit);
}

/// Reads a key's entries of events by their times.
pub trait Entries {
    /// What reading can fail with.
    type Error: From<Refusal>;

    /// Returns how many there are.
    fn len(&self) -> usize;

    /// Returns whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the newest entry of at most `until_us`; the newest of all for `None`.
    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Self::Error>;

    /// Returns the oldest entry after `after_us`; the oldest of all for `None`.
    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Self::Error>;

    /// Shows the entries after `after_us` and up to `until_us` to `visit`, the oldest first, until it returns false. `None`
    /// is no bound.
    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Self::Error>;
}

impl<E: Entries> Entries for &mut E {
    type Error = E::Error;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Self::Error> {
        (**self).newest(until_us)
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Self::Error> {
        (**self).oldest(after_us)
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Self::Error> {
        (**self).scan(after_us, until_us, visit)
    }
}

/// The reservations of a key, at one moment.
pub trait Reservations: Holds {
    /// Returns whether the id that was asked for is held.
    fn has_id(&self) -> bool;

    /// Returns how many are live.
    fn live_len(&self) -> usize;

    /// Returns the place of a new one in the order of arrival.
    fn next_order_us(&self, now_us: u64) -> u64;

    /// Returns whether even a denied call writes: to start leases again after the clock was set back, or to drop many that
    /// are gone.
    fn must_write(&self) -> bool;
}

/// A key that holds events and reservations, or nothing.
pub trait WindowKey {
    /// What reading can fail with.
    type Error: From<Refusal>;
    /// The entries of its events.
    type Events<'k>: Entries<Error = Self::Error>
    where
        Self: 'k;
    /// What is reserved in it.
    type Reservations: Reservations;
    /// The stored form of a reservation, which [`Reservation::decode`](crate::reservation::Reservation::decode) reads.
    type Member: AsRef<[u8]>;

    /// Opens the key, reads what is reserved, and notes whether `id` is held. Refuses a key that the module did not write.
    fn read(&mut self, id: Option<&[u8]>) -> Result<(), Self::Error>;

    /// Its events.
    fn events(&mut self) -> Self::Events<'_> {
        self.split().0
    }

    /// Returns what is reserved.
    fn reservations(&self) -> &Self::Reservations;

    /// Returns the ban that is stored, or the mark that a past one left.
    fn ban(&self) -> Option<Ban>;

    /// Its events, and what is reserved.
    fn split(&mut self) -> (Self::Events<'_>, &Self::Reservations);

    /// Returns how many reservations have a lease that runs.
    fn running(&mut self) -> usize;

    /// Returns the live reservations, the oldest first.
    fn list_live(&self) -> Vec<HeldReservation>;

    /// Returns the stored form of the reservation `id`, if it is live.
    fn find_live(&mut self, id: &[u8]) -> Result<Option<Self::Member>, Self::Error>;

    /// Writes what was planned; returns how many reservations were dropped because they were gone. Does nothing if the key
    /// was opened for reading.
    fn write(&mut self, edit: WindowEdit<'_, Self::Member>) -> usize;
}

/// What becomes of a key's ban.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BanEdit {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is removed.
    Remove,
    /// It becomes this one.
    Put(Ban),
}

impl BanEdit {
    /// Returns what is there after this edit, where `ban` was there before.
    pub fn after(self, ban: Option<Ban>) -> Option<Ban> {
        match self {
            BanEdit::Keep => ban,
            BanEdit::Remove => None,
            BanEdit::Put(new) => Some(new),
        }
    }
}

/// The changes to write to a window.
#[derive(Debug)]
pub struct WindowEdit<'p, M> {
    /// The changes of the entries of events.
    pub events: &'p EventEdit,
    /// The reservation to add.
    pub reservation: Option<ReservationRef<'p>>,
    /// The reservation to remove, because it was applied, released or renewed.
    pub settled: Option<M>,
    /// Drops reservations that are gone, and rewrites those from the future: a bounded number of each.
    pub clean: bool,
    /// The change of the ban.
    pub ban: BanEdit,
    /// The time for which the events need the key. `None` leaves the TTL as it is.
    pub expiry: Option<Expiry>,
}

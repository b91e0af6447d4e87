//! Mistakes that the searches must find. None of them is in the engine: the store in which a world keeps its keys makes
//! them, or the code that drives the engine.

use engine::ban::Ban;
use engine::calendar::Zones;
use engine::reservations::Reservations;
use engine::rule::Rule;
use engine::store::{BucketKey, Settlement, Store, WindowEdit, WindowKey};
use engine::throttle::{BucketEdit, StoredBucket};
use engine::window::EventEdit;

listed! {
    /// A planted mistake.
    Mistake {
        /// The third client's calls are decided by its own clock, which is fast.
        ClientsClock,
        /// The second client's calls are granted, but not written.
        LostWrite,
        /// A key expires a second too early.
        EarlyExpiry,
        /// A denied call does not write back a state from the future.
        NoHealing,
        /// A reservation with COUNTLAPSED does not count after its lease.
        LapsedForgotten,
        /// A settled reservation is not removed.
        SettledStays,
        /// A stored lease is a second longer than the granted one.
        LongLease,
        /// The mark of a ban is not read once it is over.
        MarkForgotten,
        /// Every write lifts the ban.
        BanLifted,
        /// A call that gives back returns one unit too many.
        GenerousRefund,
        /// Every limit of a group that would allow its call takes.
        AllOfGroupTake,
        /// A group takes from its last limit that allows the call, instead of its first.
        LastChoice,
        /// A denied call takes from those limits that would allow it.
        NotAtomic,
        /// A failover loses one effect more than the replica lacks.
        FailoverLosesMore,
        /// No waiter is woken when units are given back.
        NoWake,
        /// The waiters are woken within a transaction.
        TriedWithin,
        /// The timer is not started.
        NoTimer,
        /// A call ignores the waiters before it.
        Overtakes,
        /// The last waiter in a line is granted instead of the first.
        LastIsGranted,
        /// A waiter keeps its place after its client has disconnected.
        GhostInLine,
        /// A call that changes its line stands at the end of the new one.
        JoinsAtTheEnd,
        /// A call that changes its line keeps its place in the old one.
        TwoPlaces,
        /// A waiting call takes from the key of its line before its other keys allow it.
        OneKeyAlone,
        /// A denial at the end of a wait is counted twice.
        CountsTwice,
        /// A process counts its lease from the reply instead of from the request.
        LeaseFromReply,
        /// A process settles less than it has spent.
        SettlesLess,
        /// A process reads only its monotonic clock, which stands still while the machine sleeps.
        SleepForgotten,
    }
}

/// A store with a planted mistake, or without one.
#[derive(Clone, Copy)]
pub struct FaultyStore<S> {
    /// The store.
    pub inner: S,
    /// The mistake.
    pub mistake: Option<Mistake>,
    /// The client that makes the call.
    pub client: usize,
}

impl<S: Store> Store for FaultyStore<S> {
    type Error = S::Error;
    type Bucket = FaultyKey<S::Bucket>;
    type Window = FaultyKey<S::Window>;

    fn now_us(&self) -> u64 {
        self.inner.now_us()
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        self.inner.zones(body)
    }

    fn expires_us(&self, rule: &Rule, event_us: u64) -> Option<u64> {
        match self.mistake {
            Some(Mistake::LapsedForgotten) => Some(event_us),
            _ => self.inner.expires_us(rule, event_us),
        }
    }

    fn bucket(self) -> FaultyKey<S::Bucket> {
        let FaultyStore { mistake, client, .. } = self;
        FaultyKey { now_us: self.now_us(), inner: self.inner.bucket(), mistake, client }
    }

    fn window(&mut self) -> FaultyKey<S::Window> {
        let FaultyStore { mistake, client, .. } = *self;
        FaultyKey { now_us: self.now_us(), inner: self.inner.window(), mistake, client }
    }
}

/// A key of a [`FaultyStore`].
pub struct FaultyKey<K> {
    inner: K,
    mistake: Option<Mistake>,
    client: usize,
    now_us: u64,
}

impl<K: BucketKey> BucketKey for FaultyKey<K> {
    type Error = K::Error;

    fn read(&mut self) -> Result<Option<StoredBucket>, K::Error> {
        self.inner.read()
    }

    fn write(&mut self, edit: BucketEdit) {
        if self.mistake == Some(Mistake::LostWrite) && self.client == 1 {
            return;
        }
        self.inner.write(edit);
    }
}

impl<K: WindowKey> WindowKey for FaultyKey<K> {
    type Error = K::Error;
    type Events = K::Events;
    type Emptied = K::Emptied;

    fn read(&mut self, id: Option<&[u8]>) -> Result<(), K::Error> {
        self.inner.read(id)
    }

    fn reservations(&self) -> &Reservations {
        self.inner.reservations()
    }

    fn reservations_mut(&mut self) -> &mut Reservations {
        self.inner.reservations_mut()
    }

    fn ban(&self) -> Option<Ban> {
        let over = |ban: &Ban| ban.end_us() <= self.now_us;
        match self.mistake {
            Some(Mistake::MarkForgotten) => self.inner.ban().filter(|ban| !over(ban)),
            _ => self.inner.ban(),
        }
    }

    fn split(&mut self) -> (&mut K::Events, &Reservations) {
        self.inner.split()
    }

    fn write(&mut self, edit: WindowEdit) -> Settlement<K::Emptied> {
        let nothing = EventEdit::default();
        let mut edit = WindowEdit { ..edit };
        match self.mistake {
            Some(Mistake::LostWrite) if self.client == 1 => {
                edit = WindowEdit { events: &nothing, ..edit };
            }
            Some(Mistake::SettledStays) => {
                let is_live = |id: &&&[u8]| self.inner.reservations().find_live(id).is_some();
                let number = edit.settled.iter().filter(is_live).count();
                return Settlement {
                    number,
                    ..self.inner.write(WindowEdit { settled: &[], ..edit })
                };
            }
            Some(Mistake::LongLease) => {
                if let Some(new) = &mut edit.reservation {
                    new.lease_end_us += 1_000_000;
                    new.gone_us += 1_000_000;
                    new.lease_ms += 1_000;
                }
            }
            Some(Mistake::BanLifted) if edit.ban == self.inner.ban() => edit.ban = None,
            _ => {}
        }
        self.inner.write(edit)
    }
}

//! The request of one call to one key.

use crate::decision::{Ask, Manner, Quantity};
use crate::reservation::Id;
use crate::rule::Rule;
use crate::throttle::Rate;

/// A checked call of a command that takes or looks, without its key: the limit, what is asked of it, and the options.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The limit of the key, and what a grant leaves there.
    pub limit: Limit,
    /// How much the call takes or gives back, and how.
    pub ask: Ask,
    /// A denied call counts too (COUNTDENIED).
    pub count_denied: bool,
    /// A denial closes the key for this many milliseconds (BAN). With FORCE the call itself does.
    pub ban_ms: Option<u64>,
    /// The limit never denies (SHADOW).
    pub shadow: bool,
    /// The limit must allow the call, but nothing is taken from it (CHECK).
    pub check: bool,
}

/// A limit, and the kind of state that a grant leaves.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// A rate: the key holds a bucket (RL.THROTTLE).
    Rate(Rate),
    /// A maximum in a window, in which a grant counts an event (RL.WINDOW).
    Window(WindowLimit),
    /// A maximum in a window or of a semaphore, in which a grant makes a reservation (RL.ACQUIRE).
    Reserve(WindowLimit, NewReservation),
}

impl Limit {
    /// Returns the reservation that a grant makes, if it makes one.
    #[inline]
    pub(crate) fn reservation(&self) -> Option<&NewReservation> {
        match self {
            Limit::Reserve(_, new) => Some(new),
            Limit::Rate(_) | Limit::Window(_) => None,
        }
    }
}

/// A maximum in a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowLimit {
    /// The largest sum of counted events and held reservations at one time.
    pub limit: u64,
    /// The rule by which events expire.
    pub rule: Rule,
    /// The most entries of events that are live at one time.
    pub max_entries: u32,
}

/// The reservation that a grant makes.
#[derive(Clone, Copy, Debug)]
pub struct NewReservation {
    /// The length of the lease, in milliseconds.
    pub lease_ms: u64,
    /// The reservation holds beyond the end of its lease, until an event of that moment would have expired
    /// (COUNTLAPSED).
    pub count_lapsed: bool,
    /// The id that the caller chose. Without one the server makes it.
    pub id: Option<Id>,
    /// The most reservations that the key may hold.
    pub max_reservations: u64,
}

impl Request {
    /// Creates a request that takes 1, without options.
    pub const fn new(limit: Limit) -> Request {
        Request {
            limit,
            ask: Ask::whole(Quantity::Take(1)),
            count_denied: false,
            ban_ms: None,
            shadow: false,
            check: false,
        }
    }

    /// Only a request that takes something stands in line.
    pub fn takes(&self) -> bool {
        self.ask.quantity.takes()
    }

    /// Returns for how many milliseconds the call closes the key, whatever is counted (BAN with FORCE).
    #[inline]
    pub(crate) fn closes_for_ms(&self) -> Option<u64> {
        self.ban_ms.filter(|_| self.ask.manner == Manner::Force)
    }

    /// Returns the quantity that must remain for others (LEAVE), which orders a line.
    pub fn leave(&self) -> u64 {
        self.ask.leave
    }

    /// Returns the id that the caller chose for the reservation.
    pub fn id(&self) -> Option<&[u8]> {
        self.limit.reservation()?.id.as_ref().map(Id::as_bytes)
    }
}

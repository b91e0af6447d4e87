//! What one call asks of one key.

use crate::decision::{Ask, Quantity, TimeUnit};
use crate::reservation::Id;
use crate::rule::Rule;
use crate::throttle::Rate;

/// A checked call of a taking or a looking command, without its key.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The limit.
    pub limit: Limit,
    /// How much is asked for, and how.
    pub ask: Ask,
    /// Denied calls count as well (COUNTDENIED).
    pub count_denied: bool,
    /// For how many milliseconds a denial closes the key (BAN); `None` if it does not.
    pub ban_ms: Option<u64>,
    /// The unit of the times in the reply.
    pub unit: TimeUnit,
    /// The number of the policy that gave the limit.
    pub policy: Option<u64>,
    /// The policy never denies (SHADOW).
    pub shadow: bool,
}

/// A limit, and what a grant leaves.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// A bucket.
    Bucket(Rate),
    /// Events in a window.
    Window(WindowLimit),
    /// Reservations in a window, or a semaphore.
    Reserve(WindowLimit, NewReservation),
}

impl Limit {
    /// Returns the reservation that a grant makes; `None` if it makes none.
    #[inline]
    pub(crate) fn reservation(&self) -> Option<&NewReservation> {
        match self {
            Limit::Reserve(_, new) => Some(new),
            Limit::Bucket(_) | Limit::Window(_) => None,
        }
    }
}

/// At most `limit` in a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowLimit {
    /// The most that there may be at one time.
    pub limit: u64,
    /// The rule by which events leave.
    pub rule: Rule,
    /// The most entries of events that are live at one time.
    pub most_entries: u32,
}

/// The reservation that a grant makes.
#[derive(Clone, Copy, Debug)]
pub struct NewReservation {
    /// How long it lasts, in milliseconds.
    pub lease_ms: u64,
    /// It still holds when its lease has ended, until an event of that moment would have left (COUNTLAPSED).
    pub count_lapsed: bool,
    /// The id that the caller gave; for `None` one is made.
    pub id: Option<Id>,
    /// The most reservations that the key may hold.
    pub most: u64,
}

impl Request {
    /// Takes one of this limit, with no option.
    pub const fn new(limit: Limit) -> Request {
        Request {
            limit,
            ask: Ask::of(Quantity::Take(1)),
            count_denied: false,
            ban_ms: None,
            unit: TimeUnit::Seconds,
            policy: None,
            shadow: false,
        }
    }

    /// Returns whether it takes something, so that it has to stand in line and may wait.
    pub fn takes(&self) -> bool {
        self.ask.quantity.takes()
    }

    /// Returns how much it leaves for others, which is its place in a line.
    pub fn leave(&self) -> u64 {
        self.ask.leave
    }

    /// Returns the id that the caller gave to the reservation.
    pub fn id(&self) -> Option<&[u8]> {
        self.limit.reservation()?.id.as_ref().map(Id::as_bytes)
    }
}

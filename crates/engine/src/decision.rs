//! What a call asks of one limit, and what is decided about it. Times are in microseconds.

use crate::reservation::Id;

/// The shortest wait, in microseconds, in the reply to a barred call.
pub const LEAST_WAIT_IN_LINE_US: u64 = 1_000;

/// Whether a request may have what it asks. Nothing is carried out yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allowed {
        /// How much a grant takes: the quantity, less with ATMOST, 0 if the call looks or gives back.
        taken: u64,
        /// With AHEAD: microseconds until the caller may go on. Otherwise 0.
        go_after_us: u64,
    },
    /// Not now.
    Denied {
        /// Microseconds after which the same call is allowed, if nobody else takes anything.
        wait_us: u64,
        /// What is in the way.
        obstacle: Obstacle,
    },
    /// It asks for more than the limit can ever allow.
    #[default]
    Never,
}

/// What stands in the way of a denied call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// What is counted leaves too little.
    Counted,
    /// What is counted leaves enough. Others hold it, or wait for it, and may give it back.
    Held,
}

impl Verdict {
    /// Returns the verdict of a call that is allowed and takes this much now.
    pub fn taking(taken: u64) -> Verdict {
        Verdict::Allowed { taken, go_after_us: 0 }
    }

    /// Returns the verdict on a barred call: denied, for at least a millisecond.
    pub fn in_line(self, obstacle: Obstacle) -> Verdict {
        self.denied_for(LEAST_WAIT_IN_LINE_US, obstacle)
    }

    /// Returns the verdict on a key that a ban closes for `left_us`: denied, until both waits are over. 0 is no ban.
    pub fn closed_for(self, left_us: u64) -> Verdict {
        if left_us == 0 {
            return self;
        }
        self.denied_for(left_us, Obstacle::Counted)
    }

    /// Makes it denied for at least this long because of `by`, unless it can never be allowed.
    fn denied_for(self, least_us: u64, obstacle: Obstacle) -> Verdict {
        let wait_us = match self {
            Verdict::Never => return self,
            Verdict::Allowed { .. } => 0,
            Verdict::Denied { wait_us, .. } => wait_us,
        };
        Verdict::Denied { wait_us: wait_us.max(least_us), obstacle }
    }

    /// Returns whether the call got what it asked for.
    pub fn allowed(self) -> bool {
        matches!(self, Verdict::Allowed { .. })
    }

    /// Returns the reply's `limited`: 0 allowed, 1 denied, 2 denied only because others hold.
    pub fn limited(self) -> u64 {
        match self {
            Verdict::Allowed { .. } => 0,
            Verdict::Denied { obstacle: Obstacle::Counted, .. } | Verdict::Never => 1,
            Verdict::Denied { obstacle: Obstacle::Held, .. } => 2,
        }
    }

    /// Microseconds after which the same call is allowed; `None` if it was, or can never be.
    pub fn retry_after_us(self) -> Option<u64> {
        match self {
            Verdict::Denied { wait_us, .. } => Some(wait_us),
            Verdict::Allowed { .. } | Verdict::Never => None,
        }
    }

    /// Returns how much was taken.
    pub fn taken(self) -> u64 {
        match self {
            Verdict::Allowed { taken, .. } => taken,
            Verdict::Denied { .. } | Verdict::Never => 0,
        }
    }
}

/// The decision about one call on one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call is allowed.
    pub verdict: Verdict,
    /// The most that is ever available at once.
    pub limit: u64,
    /// The quantity that is left after this call.
    pub remaining: u64,
    /// Microseconds until the key is as good as new.
    pub reset_after_us: u64,
    /// The id of the reservation that the call made.
    pub id: Option<Id>,
    /// The number of reservations of the key whose lease runs after this call. `None` unless it reserves with ATMOST.
    pub running: Option<usize>,
    /// The earliest grant in Unix microseconds if nobody held or waited for anything. `None` if the call can never be
    /// granted, and unless it was denied in [`Mode::Try`](crate::decide::Mode::Try).
    pub earliest_grant_us: Option<u64>,
}

impl Decision {
    /// Returns whether the call got what it asked for.
    pub fn allowed(&self) -> bool {
        self.verdict.allowed()
    }
}

/// How much a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Takes this much, at least 1.
    Take(u64),
    /// Looks, and changes nothing.
    Look,
    /// Gives this much back, at least 1.
    GiveBack(u64),
}

impl Quantity {
    /// Takes what is above 0, gives back what is below, and looks at 0.
    pub fn from_signed(quantity: i64) -> Quantity {
        match quantity {
            0 => Quantity::Look,
            1.. => Quantity::Take(quantity.unsigned_abs()),
            _ => Quantity::GiveBack(quantity.unsigned_abs()),
        }
    }

    /// Returns how much is to be taken.
    pub fn wanted(self) -> u64 {
        match self {
            Quantity::Take(wanted) => wanted,
            Quantity::Look | Quantity::GiveBack(_) => 0,
        }
    }

    /// Returns whether something is to be taken.
    pub fn takes(self) -> bool {
        matches!(self, Quantity::Take(_))
    }
}

/// How a call takes its quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// All or nothing, at once.
    #[default]
    Whole,
    /// As much of it as there is (ATMOST).
    AtMost,
    /// All of it, even if there is not enough (FORCE).
    Force,
    /// All of it now, or booked if it will be available soon enough (AHEAD).
    Ahead {
        /// Within this many microseconds.
        within_us: u64,
    },
}

/// What one call asks of one limit.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// How much.
    pub quantity: Quantity,
    /// How much must remain for others (LEAVE).
    pub leave: u64,
    /// How it is taken.
    pub manner: Manner,
}

impl Ask {
    /// Asks for all of `quantity`, leaving nothing.
    pub const fn of(quantity: Quantity) -> Ask {
        Ask { quantity, leave: 0, manner: Manner::Whole }
    }

    /// Returns whether it takes something, and not by FORCE: lines, bans and marks of bans are for such calls.
    #[inline]
    pub fn takes_unforced(&self) -> bool {
        self.quantity.takes() && self.manner != Manner::Force
    }

    /// Returns the least that has to be there for the call to be allowed: what it must get, and what it leaves. `None` if
    /// that is more than `limit`.
    pub fn least(&self, limit: u64) -> Option<u64> {
        let wanted = if self.manner == Manner::AtMost { 1 } else { self.quantity.wanted() };
        wanted.checked_add(self.leave).filter(|least| *least <= limit)
    }
}

/// The unit of the times in a reply. Times are rounded up, so that a wait from a reply is always long enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Whole seconds, the default.
    #[default]
    Seconds,
    /// Whole milliseconds, with the option MS.
    Milliseconds,
}

impl TimeUnit {
    /// Converts `us` microseconds to this unit, rounded up.
    pub fn round_up(self, us: u64) -> u64 {
        match self {
            TimeUnit::Seconds => us.div_ceil(1_000_000),
            TimeUnit::Milliseconds => us.div_ceil(1_000),
        }
    }
}

//! What a call asks of one limit, and what is decided about it. Times are in microseconds.
//!
//! ```text
//! Refusal       the call is an error, and changes nothing
//! Verdict       one limit allows the call, denies it for a time, or can never allow it
//! Standing      what that means for the call: the limit is its group's choice, or not
//! Decision      a verdict, and the state in which the call leaves the key: the numbers of a reply
//! PartDecision  a decision and a standing, in a call over several limits
//! ```

use crate::reservation::Id;

/// The shortest wait in the reply to a barred call, in microseconds.
const MIN_WAIT_IN_LINE_US: u64 = 1_000;

/// Whether a limit allows a request. With the state in which the call leaves the key it is a [`Decision`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The request is allowed.
    Allowed {
        /// The quantity that a grant takes. This may be less than was asked for with ATMOST, and is 0 if the call looks or
        /// gives back.
        taken: u64,
        /// Microseconds until the caller may go on (AHEAD). 0 without AHEAD.
        go_after_us: u64,
    },
    /// The request is denied for now.
    Denied {
        /// Microseconds after which the same call is allowed, if nobody else takes anything.
        wait_us: u64,
        /// What is in the way. [`Obstacle::Held`] means that others may give back what is missing.
        obstacle: Obstacle,
    },
    /// The request asks for more than the limit can ever allow.
    #[default]
    Never,
}

/// What is in the way of a denied request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The counted events leave too little, or a ban runs. RL.THROTTLE and RL.WINDOW always report this, because their
    /// replies do not distinguish it from [`Obstacle::Held`].
    Counted,
    /// The counted events leave enough, but others hold it or wait for it. They may give it back.
    Held,
}

impl Verdict {
    /// Returns the verdict on a call that is allowed and takes this quantity now.
    pub fn taking(taken: u64) -> Verdict {
        Verdict::Allowed { taken, go_after_us: 0 }
    }

    /// Returns the verdict on a barred call: denied, for at least a millisecond.
    pub fn deny_in_line(self, obstacle: Obstacle) -> Verdict {
        self.denied_for(MIN_WAIT_IN_LINE_US, obstacle)
    }

    /// Returns the verdict on a key that a ban closes for `left_us`: denied until both waits are over. 0 means no ban.
    pub fn deny_for_ban(self, left_us: u64) -> Verdict {
        if left_us == 0 {
            return self;
        }
        self.denied_for(left_us, Obstacle::Counted)
    }

    /// Returns a denial of at least `min_us` because of `obstacle`, unless the call can never be allowed.
    fn denied_for(self, min_us: u64, obstacle: Obstacle) -> Verdict {
        let wait_us = match self {
            Verdict::Never => return self,
            Verdict::Allowed { .. } => 0,
            Verdict::Denied { wait_us, .. } => wait_us,
        };
        Verdict::Denied { wait_us: wait_us.max(min_us), obstacle }
    }

    /// Returns whether the call got what it asked for.
    pub fn allowed(self) -> bool {
        matches!(self, Verdict::Allowed { .. })
    }

    /// Returns the microseconds after which the same call is allowed. `None` if it was allowed, or can never be.
    pub fn retry_after_us(self) -> Option<u64> {
        match self {
            Verdict::Denied { wait_us, .. } => Some(wait_us),
            Verdict::Allowed { .. } | Verdict::Never => None,
        }
    }

    /// Returns the number that stands for the verdict in a reply: 0 if it allows, 2 if others hold what is missing or wait
    /// for it, and 1 for any other denial.
    pub fn limited(self) -> u64 {
        match self {
            Verdict::Allowed { .. } => 0,
            Verdict::Denied { obstacle: Obstacle::Counted, .. } | Verdict::Never => 1,
            Verdict::Denied { obstacle: Obstacle::Held, .. } => 2,
        }
    }

    /// Returns the quantity that a grant takes. 0 for a denial.
    pub fn taken(self) -> u64 {
        match self {
            Verdict::Allowed { taken, .. } => taken,
            Verdict::Denied { .. } | Verdict::Never => 0,
        }
    }
}

/// The decision about a request on one key: its [`Verdict`], and the state in which the call leaves the key. Of several
/// limits in a call, each has its own, in a [`PartDecision`](crate::groups::PartDecision).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed. This is as it is after a denial was counted (COUNTDENIED).
    pub verdict: Verdict,
    /// The most that is ever available at once.
    pub limit: u64,
    /// The quantity that is left after this call.
    pub remaining: u64,
    /// Microseconds until the key is clear (its bucket is full, or nothing is counted or held) and no ban runs.
    pub reset_after_us: u64,
    /// The id of the reservation that the call made.
    pub id: Option<Id>,
    /// The number of reservations of the key whose lease runs after this call. `None` unless it reserves with ATMOST.
    pub running: Option<u32>,
}

impl Decision {
    pub fn allowed(&self) -> bool {
        self.verdict.allowed()
    }
}

/// The quantity that a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Takes this quantity, at least 1.
    Take(u64),
    /// Looks without changing anything.
    Look,
    /// Gives back this quantity, at least 1.
    GiveBack(u64),
}

impl Quantity {
    /// Converts a signed quantity: a positive one takes, a negative one gives back, and 0 looks.
    pub fn from_signed(quantity: i64) -> Quantity {
        match quantity {
            0 => Quantity::Look,
            1.. => Quantity::Take(quantity.unsigned_abs()),
            _ => Quantity::GiveBack(quantity.unsigned_abs()),
        }
    }

    /// 0 for a call that does not take.
    pub fn wanted(self) -> u64 {
        match self {
            Quantity::Take(wanted) => wanted,
            Quantity::Look | Quantity::GiveBack(_) => 0,
        }
    }

    pub fn takes(self) -> bool {
        matches!(self, Quantity::Take(_))
    }
}

/// The manner in which a call takes its quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// All of it or nothing, at once.
    #[default]
    Whole,
    /// As much of it as is available (ATMOST).
    AtMost,
    /// All of it, even if there is not enough (FORCE).
    Force,
    /// All of it, booked ahead if it is not available yet (AHEAD).
    Ahead {
        /// It must be available within this many microseconds.
        within_us: u64,
    },
}

/// The part of a [`Request`](crate::Request) that its limit decides about: how much the call takes or gives back, and how.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Whether the call takes or gives back, and how much.
    pub quantity: Quantity,
    /// The quantity that must remain for others (LEAVE).
    pub leave: u64,
    /// Whether the quantity may be taken in part, beyond the limit, or later.
    pub manner: Manner,
}

impl Ask {
    /// Asks for all of `quantity`, without LEAVE.
    pub const fn whole(quantity: Quantity) -> Ask {
        Ask { quantity, leave: 0, manner: Manner::Whole }
    }

    /// Returns whether the call takes something without FORCE. Lines, bans and the marks of bans apply only to such calls.
    #[inline]
    pub fn takes_unforced(&self) -> bool {
        self.quantity.takes() && self.manner != Manner::Force
    }

    /// Returns the least quantity that must be available for the call to be allowed: what it must get and what it leaves.
    /// `None` if that is more than `limit`.
    pub fn min_available(&self, limit: u64) -> Option<u64> {
        let wanted = if self.manner == Manner::AtMost { 1 } else { self.quantity.wanted() };
        wanted.checked_add(self.leave).filter(|quantity| *quantity <= limit)
    }
}

//! What a call is told: the numbers of the reply, still in microseconds.

/// The least wait that a call is told while others wait before it, in microseconds.
pub const LEAST_WAIT_IN_LINE_US: u64 = 1_000;

/// Why a call got something or nothing; the number is the reply's `limited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Granted, or nothing was asked.
    Allowed = 0,
    /// Denied: what was counted leaves too little, or the limit could never allow it.
    Denied = 1,
    /// Denied only because others hold or wait for what they may give back (RL.ACQUIRE).
    Held = 2,
}

/// The answer to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Allowed or not.
    pub limited: Limited,
    /// The most that can be had at once.
    pub limit: u64,
    /// What could still be had now, after this call.
    pub remaining: u64,
    /// Microseconds after which the same call is allowed if nobody else takes anything; `None` if it
    /// was allowed or can never be.
    pub retry_after_us: Option<u64>,
    /// Microseconds until the key is as good as new.
    pub reset_after_us: u64,
    /// How much was taken: the quantity, less with ATMOST, nothing when denied.
    pub granted: u64,
}

impl Decision {
    /// The same for a command that does not tell apart why it was denied.
    pub fn without_held(mut self) -> Decision {
        if self.limited == Limited::Held {
            self.limited = Limited::Denied;
        }
        self
    }

    /// Whether the call got what it asked for.
    pub fn allowed(&self) -> bool {
        self.limited == Limited::Allowed
    }
}

/// The unit of the times in a reply. Times are rounded up, so that waiting as told always suffices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Whole seconds, the default.
    #[default]
    Seconds,
    /// Whole milliseconds, with the option MS.
    Milliseconds,
}

impl TimeUnit {
    /// `us` microseconds in this unit, rounded up.
    pub fn round_up(self, us: u64) -> u64 {
        match self {
            TimeUnit::Seconds => us.div_ceil(1_000_000),
            TimeUnit::Milliseconds => us.div_ceil(1_000),
        }
    }
}

//! The verdict on a request: whether a limit has room for it next to what is counted and held.

use crate::decision::{Ask, Manner, Obstacle, Quantity};

/// The limit of a window, and its use at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowUsage {
    /// The largest sum of counted events and held reservations at one time.
    pub limit: u64,
    /// The sum of the counted events.
    pub counted: u64,
    /// The sum of the held reservations.
    pub held: u128,
}

/// A verdict on an [`Ask`], without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UntimedVerdict {
    /// The request is allowed, and takes this quantity.
    Allowed(u64),
    /// The request asks for more than the limit can ever allow.
    Never,
    /// The request is denied until `need` has left or was given back.
    Denied {
        /// The missing quantity. 0 if only the line is in the way.
        need: u128,
        /// The obstacle.
        obstacle: Obstacle,
    },
}

impl WindowUsage {
    /// Returns the verdict on a request. With `barred` a waiter comes first.
    pub fn judge(&self, ask: &Ask, barred: bool) -> UntimedVerdict {
        let Quantity::Take(wanted) = ask.quantity else { return UntimedVerdict::Allowed(0) };
        if ask.manner == Manner::Force {
            return UntimedVerdict::Allowed(wanted);
        }
        let Some(min_available) = ask.min_available(self.limit) else {
            return UntimedVerdict::Never;
        };
        let free = self.remaining();
        if min_available <= free && !barred {
            return UntimedVerdict::Allowed(wanted.min(free.saturating_sub(ask.leave)));
        }
        let used = u128::from(self.counted).saturating_add(self.held);
        let need =
            used.saturating_add(u128::from(min_available)).saturating_sub(u128::from(self.limit));
        let without_held = self.limit.saturating_sub(self.counted);
        let obstacle =
            if min_available <= without_held { Obstacle::Held } else { Obstacle::Counted };
        UntimedVerdict::Denied { need, obstacle }
    }

    /// Returns whether the request is denied only because of its LEAVE.
    pub fn only_leave_denies(&self, ask: &Ask) -> bool {
        let allows = |ask: &Ask| matches!(self.judge(ask, false), UntimedVerdict::Allowed(_));
        !allows(ask) && allows(&Ask { leave: 0, ..*ask })
    }

    /// Returns the quantity that is left.
    pub fn remaining(&self) -> u64 {
        let free = self.limit.saturating_sub(self.counted);
        u64::try_from(u128::from(free).saturating_sub(self.held)).unwrap_or(0)
    }
}

//! Whether a limit has room for a request next to what is counted and held.

use crate::decision::{Ask, Manner, Obstacle, Quantity};

/// The limit of a window, and its use at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowUsage {
    /// The largest sum of counted events and held reservations at one time.
    pub limit: u64,
    pub counted: u64,
    pub held: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is, and it takes this quantity.
    Enough(u64),
    /// It asks for more than the limit can ever allow.
    Never,
    /// There is not, until `need` has expired or was given back.
    Missing {
        /// The missing quantity. 0 if only the line is in the way.
        need: u128,
        obstacle: Obstacle,
    },
}

impl WindowUsage {
    /// Returns whether there is room for a request. With `barred` a waiter comes first.
    pub fn room(&self, ask: &Ask, barred: bool) -> Room {
        let Quantity::Take(wanted) = ask.quantity else { return Room::Enough(0) };
        if ask.manner == Manner::Force {
            return Room::Enough(wanted);
        }
        let Some(min_available) = ask.min_available(self.limit) else {
            return Room::Never;
        };
        let free = self.remaining();
        if min_available <= free && !barred {
            return Room::Enough(wanted.min(free.saturating_sub(ask.leave)));
        }
        let used = u128::from(self.counted).saturating_add(self.held);
        let need =
            used.saturating_add(u128::from(min_available)).saturating_sub(u128::from(self.limit));
        let without_held = self.limit.saturating_sub(self.counted);
        let obstacle =
            if min_available <= without_held { Obstacle::Held } else { Obstacle::Counted };
        Room::Missing { need, obstacle }
    }

    /// Returns whether the request is denied only because of its LEAVE.
    pub fn only_leave_denies(&self, ask: &Ask) -> bool {
        let allows = |ask: &Ask| matches!(self.room(ask, false), Room::Enough(_));
        !allows(ask) && allows(&Ask { leave: 0, ..*ask })
    }

    pub fn remaining(&self) -> u64 {
        let free = self.limit.saturating_sub(self.counted);
        u64::try_from(u128::from(free).saturating_sub(self.held)).unwrap_or(0)
    }
}

//! The time that is spent on waiters.

/// The most microseconds that the timer spends on waiters each time it fires. Commands share a budget of the same size,
/// which begins again with each iteration of the event loop and after `RENEW_AFTER_US`.
pub const BUDGET_US: u64 = 1_000;

/// Commands get a new budget after this time, even if no iteration of the event loop was seen to end.
const RENEW_AFTER_US: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkCause {
    /// A command that may have changed a key.
    Command,
    /// The timer, which does what is due in all lines.
    Timer,
}

/// The work on waiters that is going on, and the time that is left for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct WorkBudget {
    work: Option<Work>,
    /// The microseconds that commands have spent of their budget.
    spent_us: u64,
    /// The time at which they got it.
    renewed_us: u64,
    /// The iteration of the event loop in which commands got their budget.
    iteration: u64,
    /// The time at which the timer may fire again.
    rests_until_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Work {
    cause: WorkCause,
    began_us: u64,
}

impl WorkBudget {
    /// Begins work. Commands get a new budget when the `iteration` of the event loop has changed, and after
    /// [`RENEW_AFTER_US`].
    pub fn begin(&mut self, cause: WorkCause, iteration: u64, now_us: u64) {
        match cause {
            WorkCause::Timer => self.spent_us = 0,
            WorkCause::Command => {
                let is_old = now_us.saturating_sub(self.renewed_us) >= RENEW_AFTER_US;
                if is_old || self.iteration != iteration {
                    (self.spent_us, self.renewed_us) = (0, now_us);
                    self.iteration = iteration;
                }
            }
        }
        self.work = Some(Work { cause, began_us: now_us });
    }

    pub fn is_working(&self) -> bool {
        self.work.is_some()
    }

    pub fn has_time(&self, now_us: u64) -> bool {
        let Some(work) = &self.work else { return false };
        self.spent_us.saturating_add(now_us.saturating_sub(work.began_us)) < BUDGET_US
    }

    /// Returns the time before which the timer must not fire. After each piece of work it rests for as long as that took, so
    /// that it takes at most half of the server's time.
    pub fn rests_until_us(&self) -> u64 {
        self.rests_until_us
    }

    pub fn end(&mut self, now_us: u64) -> u64 {
        let Some(work) = self.work.take() else { return 0 };
        let took_us = now_us.saturating_sub(work.began_us);
        match work.cause {
            WorkCause::Timer => {
                (self.spent_us, self.renewed_us) = (0, now_us);
                self.rests_until_us = now_us.saturating_add(took_us);
            }
            WorkCause::Command => self.spent_us = self.spent_us.saturating_add(took_us),
        }
        took_us
    }
}

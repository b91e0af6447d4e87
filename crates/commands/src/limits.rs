//! A limit as the arguments of a call or the definition of a policy give it.

use engine::anchor::Start;
use engine::calendar::Zone;
use engine::period::Period;
use engine::throttle::Rate;

/// The numbers of a limit: its positional arguments, checked. They are not an [`engine::Limit`] yet: whether a window counts
/// events or reservations is up to the command, and what else it needs is up to options, and to settings that may change
/// until a policy is used.
#[derive(Clone, Copy, Debug)]
pub enum LimitSpec {
    /// `max_burst count period`.
    Rate(Rate),
    /// `limit period`.
    Window {
        /// The maximum at any time.
        limit: u64,
        /// The period. `None` for a semaphore.
        period: Option<Period>,
    },
}

/// The kind of window that the options of a call or a policy ask for.
#[derive(Clone, Copy, Debug)]
pub enum WindowKind {
    /// A window that ends now and is one period long.
    Sliding {
        /// `BUCKETS`: the maximum number of entries. `None` means the setting `window-entries`.
        buckets: Option<u32>,
    },
    /// `FIXED`: a window of the calendar.
    Fixed {
        /// `FROM`: the start of its windows. `None` means the unit of the period.
        start: Option<Start>,
        /// `TZ`: its time zone. `None` means the setting `timezone`.
        zone: Option<Zone>,
    },
}

//! A limit as the arguments of a call or the definition of a policy give it.

use crate::environment::Environment;
use crate::error::Error;
use crate::options::{OptionSet, Options};
use engine::anchor::Start;
use engine::calendar::{Calendar, Zone};
use engine::period::Period;
use engine::rule::Rule;
use engine::throttle::Rate;
use engine::WindowLimit;

/// The numbers of a limit: its positional arguments, checked.
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

impl WindowKind {
    /// Returns the kind that checked options ask for.
    pub fn new(options: &Options) -> WindowKind {
        if options.has(OptionSet::FIXED) {
            let (start, zone) = (options.start(OptionSet::FROM), options.zone(OptionSet::TZ));
            return WindowKind::Fixed { start, zone };
        }
        let buckets = options.number(OptionSet::BUCKETS);
        WindowKind::Sliding { buckets: buckets.and_then(|buckets| u32::try_from(buckets).ok()) }
    }

    /// Returns the window of `limit` in each `period`, or a semaphore if there is no period.
    pub fn window(
        self,
        limit: u64,
        period: Option<Period>,
        environment: &impl Environment,
    ) -> Result<WindowLimit, Error> {
        let (rule, max_entries) = match (period, self) {
            (None, _) => (Rule::Semaphore, 0),
            (Some(period), WindowKind::Sliding { buckets }) => {
                let max_entries = buckets.unwrap_or_else(|| environment.window_entries());
                let buckets = (limit > u64::from(max_entries)).then_some(max_entries);
                (Rule::Sliding { period, buckets }, max_entries)
            }
            (Some(period), WindowKind::Fixed { start, zone }) => {
                (fixed(period, start, zone, environment)?, 1)
            }
        };
        Ok(WindowLimit { limit, rule, max_entries })
    }
}

/// Returns the rule of FIXED, FROM and TZ.
fn fixed(
    period: Period,
    start: Option<Start>,
    zone: Option<Zone>,
    environment: &impl Environment,
) -> Result<Rule, Error> {
    let in_zone = || zone.or_else(|| environment.timezone()).ok_or(Error::Zone);
    let calendar = match start {
        Some(Start::First) if zone.is_some() => {
            return Err(Error::NotTogether("TZ", "FROM first"));
        }
        Some(Start::First) => return Ok(Rule::FromFirst(period)),
        Some(Start::Anchor(anchor)) => Calendar::anchored(period, anchor, in_zone()?)
            .map_err(|unfit| Error::Unfit(anchor, unfit))?,
        None => Calendar::new(period, in_zone()?).ok_or(Error::Calendar)?,
    };
    Ok(Rule::Calendar(calendar))
}

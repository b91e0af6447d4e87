//! A limit as the arguments of a call or the definition of a policy give it.

use crate::environment::Environment;
use crate::error::Error;
use crate::options::{LimitForm, OptionSet, Options};
use engine::anchor::{Anchor, AnchorText, Start};
use engine::calendar::{Calendar, Zone};
use engine::period::Period;
use engine::request::WindowLimit;
use engine::rule::Rule;
use engine::throttle::Rate;

/// A limit as its positional arguments give it.
#[derive(Clone, Copy, Debug)]
pub enum LimitNumbers {
    /// A rate.
    Rate(Rate),
    /// A window; without a period a semaphore.
    Window {
        /// The most that there may be at one time.
        limit: u64,
        /// The period.
        period: Option<Period>,
    },
}

impl LimitNumbers {
    /// The form of the limit, for the options beside it.
    pub fn form(self) -> LimitForm {
        match self {
            LimitNumbers::Window { period: None, .. } => LimitForm::PeriodZero,
            LimitNumbers::Rate(_) | LimitNumbers::Window { .. } => LimitForm::Numbers,
        }
    }
}

/// How a window counts, as options say it.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// It slides.
    Sliding {
        /// `BUCKETS`: so many entries at most, if not as many as the setting says.
        buckets: Option<u32>,
    },
    /// `FIXED`: it follows the calendar.
    Fixed {
        /// `FROM`: its windows start there, if not on the unit.
        start: Option<Start>,
        /// `TZ`: in this zone, if not in the one of the setting.
        zone: Option<Zone>,
    },
}

impl Shape {
    /// What checked options say.
    pub fn of(options: &Options) -> Shape {
        if options.has(OptionSet::FIXED) {
            let (start, zone) = (options.start(OptionSet::FROM), options.zone(OptionSet::TZ));
            return Shape::Fixed { start, zone };
        }
        let buckets = options.number(OptionSet::BUCKETS);
        Shape::Sliding { buckets: buckets.and_then(|buckets| u32::try_from(buckets).ok()) }
    }

    /// How a window of `limit` each `period` counts; without a period it is a semaphore.
    pub fn window(
        self,
        limit: u64,
        period: Option<Period>,
        environment: &impl Environment,
    ) -> Result<WindowLimit, Error> {
        let Some(period) = period else {
            return Ok(WindowLimit { limit, rule: Rule::Semaphore, most_entries: 0 });
        };
        match self {
            Shape::Sliding { buckets } => {
                let most_entries = buckets.unwrap_or_else(|| environment.window_entries());
                let buckets = (limit > u64::from(most_entries)).then_some(most_entries);
                Ok(WindowLimit { limit, rule: Rule::Sliding { period, buckets }, most_entries })
            }
            Shape::Fixed { start, zone } => {
                let rule = fixed(period, start, zone, environment)?;
                Ok(WindowLimit { limit, rule, most_entries: 1 })
            }
        }
    }
}

/// The rule of FIXED, FROM and TZ.
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
        Some(Start::First) => return Ok(Rule::FirstHit(period)),
        Some(Start::Anchor(anchor)) => anchored(period, anchor, in_zone()?)?,
        None => Calendar::new(period, in_zone()?).map_err(|_| Error::Calendar)?,
    };
    Ok(Rule::Calendar(calendar))
}

fn anchored(period: Period, anchor: Anchor, zone: Zone) -> Result<Calendar, Error> {
    Calendar::anchored(period, anchor, zone).map_err(|unfit| {
        let mut text = AnchorText::new();
        anchor.write(&mut text);
        Error::Unfit(text.as_bytes().into(), unfit)
    })
}

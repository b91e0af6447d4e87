//! A limit as the arguments of a call or the definition of a policy give it.

use crate::config;
use crate::error::Error;
use crate::limit::calendar::{Calendar, Zone};
use crate::limit::period::Period;
use crate::limit::request::WindowLimit;
use crate::limit::rule::Rule;
use crate::limit::throttle::Rate;

/// A limit as its positional arguments give it.
#[derive(Clone, Copy, Debug)]
pub enum Given {
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

/// How a window counts, as options say it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// `BUCKETS`
    pub buckets: Option<u32>,
    /// `FIXED`
    pub fixed: bool,
    /// `TZ`
    pub zone: Option<Zone>,
}

impl Shape {
    /// How a window of `limit` each `period` counts; without a period it is a semaphore.
    pub fn window(&self, limit: u64, period: Option<Period>) -> Result<WindowLimit, Error> {
        if self.buckets.is_some() && self.fixed {
            return Err(Error::NotTogether("BUCKETS", "FIXED"));
        }
        if self.zone.is_some() && !self.fixed {
            return Err(Error::ZoneAlone);
        }
        let Some(period) = period else {
            if self.buckets.is_some() || self.fixed {
                return Err(Error::SemaphoreWindow);
            }
            return Ok(WindowLimit { limit, rule: Rule::Semaphore, most_entries: 0 });
        };
        if self.fixed {
            let zone = self.zone.or_else(config::timezone).ok_or(Error::Zone)?;
            let calendar = Calendar::new(period, zone).map_err(|_| Error::Calendar)?;
            return Ok(WindowLimit { limit, rule: Rule::Calendar(calendar), most_entries: 1 });
        }
        let most_entries = self.buckets.unwrap_or_else(config::window_entries);
        let buckets = (limit > u64::from(most_entries)).then_some(most_entries);
        Ok(WindowLimit { limit, rule: Rule::Sliding { period, buckets }, most_entries })
    }
}

//! The rule by which events leave a window, and by which two of them may share an entry.

use super::calendar::{Calendar, Zone};
use super::decimal::{parse_u64, Text};
use super::period::{Length, Period};

/// The finest that denied calls are ever told apart: period / 4096.
pub const DEFAULT_ENTRIES: u32 = 4096;

/// Longest text of a rule: 20 digits and a unit, a mark, and a zone's name.
pub type RuleText = Text<96>;

/// How long an event counts. Reservations remember it, so that APPLY needs no arguments.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// Until the period has passed since the event.
    Sliding {
        /// Its length.
        period: Period,
        /// With `Some(n)` events closer than period / n share an entry; with `None` only those of the same
        /// microsecond do.
        buckets: Option<u32>,
    },
    /// Until the window of the calendar ends.
    Calendar(Calendar),
    /// Nothing is counted, only held: a semaphore.
    Semaphore,
}

impl Rule {
    /// Reads what [`Rule::write`] wrote.
    pub fn parse(text: &[u8]) -> Option<Rule> {
        if text == b"-" {
            return Some(Rule::Semaphore);
        }
        if let Some(at) = text.iter().position(|&byte| byte == b'@') {
            let period = Period::parse(text.get(..at)?).ok()?;
            let zone = Zone::named(text.get(at.checked_add(1)?..)?)?;
            return Calendar::new(period, zone).ok().map(Rule::Calendar);
        }
        let (period, buckets) = match text.iter().position(|&byte| byte == b'/') {
            Some(at) => {
                let buckets = u32::try_from(parse_u64(text.get(at.checked_add(1)?..)?)?).ok()?;
                (text.get(..at)?, Some(buckets).filter(|n| *n > 0)?.into())
            }
            None => (text, None),
        };
        Some(Rule::Sliding { period: Period::parse(period).ok()?, buckets })
    }

    /// The rule as text: `-`, `60s`, `60s/10` or `1d@Asia/Shanghai`.
    pub fn write(&self) -> RuleText {
        let mut text = RuleText::new();
        match self {
            Rule::Sliding { period, buckets } => {
                period.write(&mut text);
                if let Some(buckets) = buckets {
                    text.push(b"/");
                    text.push_number(u64::from(*buckets), 1);
                }
            }
            Rule::Calendar(calendar) => {
                calendar.period().write(&mut text);
                text.push(b"@");
                text.push(calendar.zone().name().as_bytes());
            }
            Rule::Semaphore => text.push(b"-"),
        }
        text
    }

    /// The rule as it stands at `now_us`. `None` only outside of the years that a calendar knows.
    pub fn at(&self, now_us: u64) -> Option<Moment> {
        let stretch = match self {
            Rule::Sliding { period, buckets } => {
                let length = period.length();
                Stretch::Sliding { length, left_us: length.last_left_us(now_us), buckets: *buckets }
            }
            Rule::Calendar(calendar) => {
                let frame = calendar.frame(now_us)?;
                Stretch::Fixed { start_us: frame.start_us, end_us: frame.end_us }
            }
            Rule::Semaphore => Stretch::Nothing,
        };
        Some(Moment { now_us, stretch, denied_entries: DEFAULT_ENTRIES })
    }
}

/// A rule at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    now_us: u64,
    stretch: Stretch,
    denied_entries: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stretch {
    Sliding { length: Length, left_us: Option<u64>, buckets: Option<u32> },
    Fixed { start_us: u64, end_us: u64 },
    Nothing,
}

impl Moment {
    /// The same, but denied calls that are counted need no more than about `entries`.
    pub fn folding_denied(mut self, entries: u32) -> Moment {
        self.denied_entries = entries.min(DEFAULT_ENTRIES);
        self
    }

    /// The moment itself, in Unix microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// The latest event time that no longer counts; `None` if all do.
    pub fn left_us(&self) -> Option<u64> {
        match self.stretch {
            Stretch::Sliding { left_us, .. } => left_us,
            Stretch::Fixed { start_us, .. } => start_us.checked_sub(1),
            Stretch::Nothing => Some(u64::MAX),
        }
    }

    /// When an event of `event_us`, which counts now, stops counting.
    pub fn leave_us(&self, event_us: u64) -> u64 {
        match self.stretch {
            Stretch::Sliding { length, .. } => length.leave_us(event_us),
            Stretch::Fixed { end_us, .. } => end_us,
            Stretch::Nothing => self.now_us,
        }
    }

    /// The latest time of the events, of those that count now, that will have left at `then_us`.
    pub fn left_by(&self, then_us: u64) -> Option<u64> {
        match self.stretch {
            Stretch::Sliding { length, .. } => length.last_left_us(then_us),
            Stretch::Fixed { end_us, .. } if then_us < end_us => None,
            Stretch::Fixed { .. } | Stretch::Nothing => Some(u64::MAX),
        }
    }

    /// The most entries that live events need under this rule; `None` where it depends on the limit.
    pub fn entries(&self) -> Option<u32> {
        match self.stretch {
            Stretch::Sliding { buckets, .. } => buckets,
            Stretch::Fixed { .. } => Some(1),
            Stretch::Nothing => Some(0),
        }
    }

    /// Whether a new event shares the last entry, which began at `first_us`.
    ///
    /// Under an exact rule an admitted event must leave on time, so it never shares, and denied ones
    /// share among themselves. Where entries are folded anyway, all share, denied ones as coarsely among
    /// themselves as under an exact rule.
    pub fn shares(&self, first_us: u64, entry_denied: bool, denied: bool) -> bool {
        let Stretch::Sliding { left_us, buckets, .. } = self.stretch else {
            return match self.stretch {
                Stretch::Fixed { start_us, .. } => first_us >= start_us,
                _ => false,
            };
        };
        let buckets = match buckets {
            Some(buckets) if denied && entry_denied => buckets.min(self.denied_entries),
            Some(buckets) => buckets,
            None if denied && entry_denied => self.denied_entries,
            None => return false,
        };
        let since = u128::from(self.now_us.saturating_sub(first_us));
        let length = u128::from(self.now_us.saturating_sub(left_us.unwrap_or(0)));
        since.saturating_mul(u128::from(buckets)) < length
    }
}

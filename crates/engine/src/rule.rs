//! The rule of a window: when events expire, and which of them may share an entry.
//!
//! ```text
//! 60s, BUCKETS 10 or FIXED --> Rule -----------------at(now)--> RuleNow
//! what the caller says         what a reservation remembers     what has expired, what expires when, what shares an entry
//! ```

use crate::calendar::{zone_code, Calendar, CalendarWindow, Zone, Zones, SHORT_ZONE_NAME};
use crate::decimal::{parse_base36, parse_u64, split_at_mark, split_once};
use crate::entry::Entry;
use crate::period::{Length, Period};
use crate::text::ShortText;

/// The approximate maximum number of entries for events that are counted coarsely: denied calls, and events beyond the
/// limit.
const MAX_COARSE_ENTRIES: u32 = 4096;

/// The most dead entries in a gap that a call closes.
const MAX_GAP: usize = 64;

/// The room for the text of a rule. The longest, of about 35 bytes, has 13 digits, a unit, a zone, a start and their marks.
pub const MAX_RULE: usize = 96;

pub type RuleText = ShortText<MAX_RULE>;

/// The time for which an event counts. Reservations store their rule, so that APPLY needs no limit.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// An event counts for one period.
    Sliding {
        /// The period. Months and years are calendar lengths in UTC.
        period: Period,
        /// With `Some(n)` events closer than period / n share an entry; with `None` only those of the same
        /// microsecond do.
        buckets: Option<u32>,
    },
    /// An event counts until the window of the calendar ends.
    Calendar(Calendar),
    /// An event counts until one period after the first event of the window, which opened it (FIXED FROM first).
    FromFirst(Period),
    /// Events do not count, only reservations do: a semaphore.
    Semaphore,
}

impl Rule {
    /// Parses the text that [`Rule::write`] returns. A zone with a long name is also read by that name. `None` for any other
    /// text.
    pub fn parse(text: &[u8], zones: &mut Zones) -> Option<Rule> {
        if text == b"-" {
            return Some(Rule::Semaphore);
        }
        if let Some(period) = text.strip_suffix(FROM_FIRST) {
            return Some(Rule::FromFirst(Period::parse(period).ok()?));
        }
        let (window, start) = split_at_mark(text, b'=');
        if let Some((period, zone)) = split_zone(window, zones) {
            return Some(Rule::Calendar(match start {
                Some(start) => {
                    Calendar::starting(period, parse_base36(start)?.try_into().ok()?, zone)?
                }
                None => Calendar::new(period, zone)?,
            }));
        }
        let (period, buckets) = split_at_mark(text, b'/');
        let buckets = match buckets {
            Some(number) => Some(u32::try_from(parse_u64(number)?).ok().filter(|n| *n > 0)?),
            None => None,
        };
        Some(Rule::Sliding { period: Period::parse(period).ok()?, buckets })
    }

    /// Returns the rule as text: `-`, `60s`, `60s/10`, `60s^first`, `1d@UTC`, or `1mo~QFzl=quo0`. The last is `1mo FIXED
    /// FROM 15@12:00 TZ Europe/Berlin`: a code for a zone with a long name, and where windows start, in seconds
    /// after 1970 by the wall clock, in base 36. It is short because the server keeps a small sorted set in one piece, a
    /// listpack, only while none of its members is longer than 64 bytes.
    pub fn write(&self, zones: &Zones) -> RuleText {
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
                let name = zones.name(calendar.zone());
                if name.as_bytes().len() <= SHORT_ZONE_NAME {
                    text.push(b"@");
                    text.push(name.as_bytes());
                } else {
                    text.push(b"~");
                    text.push(&zone_code(name.as_bytes()));
                }
                if let Some(start_s) = calendar.start_s() {
                    text.push(b"=");
                    text.push_base36(start_s.unsigned_abs());
                }
            }
            Rule::FromFirst(period) => {
                period.write(&mut text);
                text.push(FROM_FIRST);
            }
            Rule::Semaphore => text.push(b"-"),
        }
        text
    }

    /// Returns the rule at `now_us`. `None` only outside the years that a calendar covers.
    pub fn at(&self, now_us: u64, zones: &mut Zones) -> Option<RuleNow> {
        let (expiring, horizon_us) = match self {
            Rule::Sliding { period, buckets } => {
                let length = period.length();
                (Expiring::Sliding { length, buckets: *buckets }, length.horizon_us(now_us))
            }
            Rule::Calendar(calendar) => {
                let CalendarWindow { start_us, end_us } = zones.window_at(calendar, now_us)?;
                (Expiring::Calendar { end_us }, start_us.checked_sub(1))
            }
            Rule::FromFirst(period) => {
                (Expiring::FromFirst { length: period.length(), end_us: None }, None)
            }
            Rule::Semaphore => (Expiring::Semaphore, Some(u64::MAX)),
        };
        Some(RuleNow { now_us, horizon_us, expiring, max_entries: MAX_COARSE_ENTRIES })
    }

    /// Returns the time at which an event of `event_us` expires if no other event counts. `None` only outside the years that
    /// a calendar covers.
    pub fn expires_us(&self, event_us: u64, zones: &mut Zones) -> Option<u64> {
        Some(self.at(event_us, zones)?.expires_us(event_us))
    }
}

/// The end of the text of a rule by which the first event opens a window.
const FROM_FIRST: &[u8] = b"^first";

/// Returns the period and the zone of `1d@UTC` and `1d~QFzl`; `None` for anything else.
fn split_zone(text: &[u8], zones: &mut Zones) -> Option<(Period, Zone)> {
    let (period, zone) = match split_once(text, b'~') {
        Some((period, code)) => (period, zones.zone_by_code(code)?),
        None => {
            let (period, name) = split_once(text, b'@')?;
            (period, zones.zone_by_name(name)?)
        }
    };
    Some((Period::parse(period).ok()?, zone))
}

/// A rule at one moment. If the first event opens a window, call [`set_newest`](RuleNow::set_newest) before anything else.
///
/// ```
/// use redis_ratelimit_engine::{calendar::Zones, rule::Rule};
///
/// let (mut zones, now_us) = (Zones::new(), 1_795_223_799_000_000);
/// let rule_now = Rule::parse(b"60s/10", &mut zones).unwrap().at(now_us, &mut zones).unwrap();
/// assert_eq!(rule_now.horizon_us(), Some(now_us - 60_000_000));
/// assert_eq!(rule_now.expires_us(now_us), now_us + 60_000_000);
/// // Events within a tenth of the period share an entry.
/// let joins = |since_us| rule_now.joins_newest(now_us - since_us, false);
/// assert_eq!((joins(5_999_999), joins(6_000_000)), (true, false));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleNow {
    now_us: u64,
    /// The latest time of an event that no longer counts. `None` if all events count.
    horizon_us: Option<u64>,
    expiring: Expiring,
    max_entries: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Expiring {
    /// Each on its own, after this length.
    Sliding { length: Length, buckets: Option<u32> },
    /// All of them at the end of the window.
    Calendar { end_us: u64 },
    /// All of them at the end of the open window. `None` if the next event opens one.
    FromFirst { length: Length, end_us: Option<u64> },
    /// At once.
    #[default]
    Semaphore,
}

/// What becomes of the newest entry when an event is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// It stays, and the event gets an entry of its own.
    Apart,
    /// The event joins it.
    Joined,
    /// The event takes its place.
    Replaced,
}

impl RuleNow {
    /// Sets the most entries that live events need. The default is 4096.
    pub(crate) fn with_max_entries(self, max_entries: u32) -> RuleNow {
        RuleNow { max_entries, ..self }
    }

    /// Sets the newest entry, and returns whether it counts. If the first event opens a window, this decides whether one is
    /// open. All other entries are older than `newest_from_us`.
    pub fn set_newest(&mut self, newest: &Entry, newest_from_us: u64) -> bool {
        let now_us = self.now_us;
        if let Expiring::FromFirst { length, end_us } = &mut self.expiring {
            *end_us = Some(length.expires_us(newest.first_us())).filter(|end_us| now_us < *end_us);
            self.horizon_us = newest_from_us.checked_sub(1);
            return end_us.is_some();
        }
        self.horizon_us.is_none_or(|horizon_us| newest.newest_us > horizon_us)
    }

    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    pub fn horizon_us(&self) -> Option<u64> {
        self.horizon_us
    }

    /// Returns the horizon at a later time, for the events that count now.
    pub fn horizon_us_at(&self, then_us: u64) -> Option<u64> {
        match self.expiring {
            Expiring::Sliding { length, .. } => length.horizon_us(then_us),
            // All events expire together.
            _ => (then_us >= self.expires_us(self.now_us)).then_some(u64::MAX),
        }
    }

    /// Returns the time at which an event of `event_us`, which counts now, stops counting. If the first event opens a window
    /// and none is open, this event opens it.
    pub fn expires_us(&self, event_us: u64) -> u64 {
        match self.expiring {
            Expiring::Sliding { length, .. } => length.expires_us(event_us),
            Expiring::Calendar { end_us } => end_us,
            Expiring::FromFirst { length, end_us } => {
                end_us.unwrap_or_else(|| length.expires_us(event_us))
            }
            Expiring::Semaphore => self.now_us,
        }
    }

    /// Returns whether events are counted at all.
    pub fn counts(&self) -> bool {
        !matches!(self.expiring, Expiring::Semaphore)
    }

    pub(crate) fn is_sliding(&self) -> bool {
        matches!(self.expiring, Expiring::Sliding { .. })
    }

    /// Returns the length of a sliding window in microseconds. 0 for other rules.
    pub(crate) fn sliding_period_us(&self) -> u64 {
        match self.expiring {
            Expiring::Sliding { .. } => self.now_us.saturating_sub(self.horizon_us.unwrap_or(0)),
            _ => 0,
        }
    }

    /// Returns the most entries that live events need under this rule. `None` if the rule sets no bound.
    pub(crate) fn rule_max_entries(&self) -> Option<u32> {
        match self.expiring {
            Expiring::Sliding { buckets, .. } => buckets,
            Expiring::Calendar { .. } | Expiring::FromFirst { .. } => Some(1),
            Expiring::Semaphore => Some(0),
        }
    }

    /// Returns the most entries that are live at one time. In a sliding window this is one more than live events need,
    /// because the oldest entry has begun to expire.
    pub(crate) fn max_live(&self) -> usize {
        let expiring = u32::from(self.is_sliding());
        usize::try_from(self.max_entries.saturating_add(expiring)).unwrap_or(usize::MAX)
    }

    /// Returns the oldest entry that counts if all from `oldest` to `newest` are after the horizon, so that none is dead.
    /// The first event of a window opens it, and all events of an open window are in one entry: the newest.
    pub(crate) fn first_counted(&self, oldest: Entry, newest: Entry) -> Entry {
        match self.expiring {
            Expiring::FromFirst { .. } => newest,
            _ => oldest,
        }
    }

    /// Returns whether a call may merge some of the events from the future, and leave others there. If the first event opens
    /// a window, they are one entry, which stays whole.
    pub(crate) fn heals_in_parts(&self) -> bool {
        !matches!(self.expiring, Expiring::FromFirst { .. })
    }

    /// Returns how many dead entries a call drops at most after it has uncounted events, so that they cannot count again. It
    /// drops all or none. With `is_empty` it has uncounted all events.
    pub(crate) fn max_dropped_in_gap(&self, is_empty: bool) -> usize {
        match self.expiring {
            Expiring::Sliding { .. } => MAX_GAP,
            // The entry before the newest would be the newest.
            Expiring::FromFirst { .. } if is_empty => usize::MAX,
            // The newest entry is the only one that counts, whatever the clock does.
            Expiring::FromFirst { .. } | Expiring::Calendar { .. } | Expiring::Semaphore => 0,
        }
    }

    /// Returns what becomes of the newest entry if an event is counted now. With `coarse` both are denied calls, or are
    /// beyond the limit.
    #[inline(always)]
    pub(crate) fn sharing(&self, newest: &Entry, coarse: bool) -> Sharing {
        match self.expiring {
            // Its window has ended, and the event opens the next one.
            Expiring::FromFirst { end_us: None, .. } => Sharing::Replaced,
            Expiring::FromFirst { .. } => Sharing::Joined,
            _ if newest.newest_us == self.now_us => Sharing::Joined,
            _ if self.joins_newest(newest.first_us(), coarse) => Sharing::Joined,
            _ => Sharing::Apart,
        }
    }

    /// Returns whether a new event shares the newest entry, which began at `first_us`. With `coarse` both are denied calls,
    /// or are beyond the limit.
    ///
    /// Under an exact rule an admitted event must expire on time, so it never shares an entry. A coarse event joins an entry
    /// that began less than period / n before, where n is the smallest of BUCKETS, `max_entries` and 4096. With BUCKETS n
    /// all events join within period / n.
    pub fn joins_newest(&self, first_us: u64, coarse: bool) -> bool {
        let buckets = match self.expiring {
            Expiring::Semaphore => return false,
            Expiring::Calendar { .. } => return self.horizon_us.is_none_or(|us| first_us > us),
            Expiring::FromFirst { end_us, .. } => return end_us.is_some(),
            Expiring::Sliding { buckets, .. } if coarse => {
                buckets.unwrap_or(u32::MAX).min(self.max_entries).min(MAX_COARSE_ENTRIES)
            }
            Expiring::Sliding { buckets: Some(buckets), .. } => buckets,
            Expiring::Sliding { buckets: None, .. } => return false,
        };
        let since = u128::from(self.now_us.saturating_sub(first_us));
        since.saturating_mul(u128::from(buckets)) < u128::from(self.sliding_period_us())
    }
}

#[cfg(test)]
mod tests;

